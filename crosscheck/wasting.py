"""How much of its privacy a mechanism wastes: what it costs, and the least that gives every query the same accuracy."""

from __future__ import annotations

import contextlib
import math
import warnings
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from typing import Any

import numpy as np

from dualmech import fast
from dualmech.certificate import Certificate
from dualmech.crosscheck.judging import describe_kind
from dualmech.display import Displayed
from dualmech.errors import InputTypeError, InvalidInputError, UncertifiedWarning
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.neighbours import Relation
from dualmech.problems.fitness import FitnessForUse
from dualmech.progress import Callback
from dualmech.solution import Solution
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload

ROUNDING = 1e-9
"""Least allowance for the rounding of the variances that are matched, relative: the interval of the least cost is
widened by it, and targets within a table that differ by less are one."""

QUERY_BY_QUERY = 1024  # most cells on which queries of a table are matched one by one


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Waste(Displayed):
    """What a mechanism costs beyond the least, at the same accuracy of every query of a workload.

    Attributes
    ----------
    mechanism
        What was judged.
    answer : Solution
        The noise of least cost for its variances as targets, with the certificate of the bound.
    by_table : bool
        Whether only the largest variance of each table was matched, as the domain is too large to go query by query.
    rounding : float
        Allowance for the rounding of the variances that are matched, relative, by which the interval is widened.
    """

    mechanism: Any
    answer: Solution
    by_table: bool
    rounding: float = ROUNDING

    @property
    def cost(self) -> float:
        """Squared privacy cost that the mechanism spends."""
        return float(self.mechanism.squared_privacy_cost)

    @property
    def least(self) -> tuple[float, float]:
        """Proven interval of the least squared privacy cost at which every query is as accurate."""
        low, high = self.answer.certificate.interval
        known = min(self.rounding, 1.0)
        return min(low * (1 - known), self.cost), min(high * (1 + known), self.cost)

    @property
    def share(self) -> tuple[float, float]:
        """Proven interval of the share of the cost that is wasted, ``1 - least / cost``."""
        low, high = self.least
        return 1 - high / self.cost, 1 - low / self.cost

    @property
    def certificate(self) -> Certificate:
        """The mechanism's own certificate: how far its cost is from the least."""
        given = self.answer.certificate
        return Certificate.of(self.cost, given.lower_bound, 0.0, given.resolution + self.rounding)

    @property
    def better(self) -> Any:
        """The mechanism of `answer`, or the one that was judged where that costs no more."""
        found = self.answer.mechanism if self.answer.certificate.feasible else self.mechanism
        return found if found.squared_privacy_cost < self.cost else self.mechanism

    @property
    def words(self) -> tuple[str, ...]:
        """The verdict in sentences."""
        low, high = self.share
        enough = _rounded_up(self.least[1] / 2)
        whom = "the least accurate query of every table" if self.by_table else "every query"
        said = [
            f"It costs rho = {self.cost / 2:.6g} (zCDP); noise of rho = {enough} is enough to make {whom} as accurate.",
            f"Wasted: {_percent(low, high)} of rho (proven).",
        ]
        if self.by_table:
            said.append(
                "Within a table, queries that were more accurate than its worst may lose some of that."
            )
        return tuple(said)

    def _facts(self) -> dict[str, object]:
        return {
            "squared privacy cost": self.cost,
            "the least lies in": self.least,
            "wasted": _percent(*self.share),
            "matched": "the worst of every table" if self.by_table else "every query",
        }

    def __repr__(self) -> str:
        return f"Waste({_percent(*self.share)} of {self.cost:.6g})"


def waste(
    mechanism: Any, workload: Workload, tol: float = 1e-6, *, callback: Callback | None = None
) -> Waste:
    """Say how much privacy a mechanism wastes on a workload: the least cost of being as accurate for every query.

    Its variances are the targets of `dualmech.FitnessForUse`, under its own neighbours, and the bound is the judge's.
    What it can answer beyond the workload counts as waste. Where variances differ within a table, and the domain has
    more than 1,024 cells, the largest of each table is matched, and the result says so.
    Raises `InvalidInputError` or `InputTypeError` for no mechanism of Gaussian noise, no workload, other cells, queries
    that are not answered or are released exactly, a mechanism that answers queries only written out and is too large.

    Parameters
    ----------
    mechanism : any mechanism of Gaussian noise
        Dense, on blocks, products, split, streams or causal strategies.
    workload : Workload
        Over the same cells, of any structure.
    tol : float
        Gap to which the least cost is solved; the interval is valid whatever was reached.
    callback : callable, optional
        Receives a `Progress` after each step.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import crosscheck
    >>> counts = dm.BlockMechanism.of_tables(dm.workloads.marginals({"age": 16}, ways=(0, 1)))
    >>> found = crosscheck.waste(counts, dm.workloads.prefix(16))
    >>> round(found.cost, 6), round(found.better.squared_privacy_cost, 4)
    (2.0, 1.7153)
    >>> print(found.words[1])
    Wasted: 14.23 % to 14.24 % of rho (proven).
    """
    asked = check_workload(workload)
    if not isinstance(mechanism, GaussianPrivacy):
        raise InputTypeError(f"mechanism must be one of Gaussian noise, got {describe_kind(mechanism)}")
    if not 0 < mechanism.squared_privacy_cost < math.inf:
        raise InvalidInputError("mechanism must have a privacy cost that is positive and finite")
    targets, by_table = _targets(asked, mechanism.as_targets(asked))
    own = getattr(mechanism, "neighbours", None)
    neighbours = own if own is None or isinstance(own, Relation) else Relation.matching(own) or own
    problem = FitnessForUse(asked, targets, neighbours=neighbours)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)
        answer = fast.solve(problem, tol=tol, callback=callback)
    return Waste(
        mechanism=mechanism, answer=answer, by_table=by_table, rounding=_rounding(problem, mechanism)
    )


def _rounding(problem: FitnessForUse, mechanism: Any) -> float:
    """Return what rounding may hide of the variances, as the judge evaluates them where it can."""
    with contextlib.suppress(InvalidInputError), np.errstate(all="ignore"):
        forms = problem.geometry.forms(problem.as_primal(mechanism))
        if forms is not None:
            excess, slack = forms.excess(problem.targets)
            found = float(max(excess - 1, 0.0) + slack)
            return max(ROUNDING, found) if math.isfinite(found) else math.inf
    return ROUNDING


def _targets(workload: Workload, variances: Any) -> tuple[Any, bool]:
    """Return variances as targets, of a table one number where they are equal or the domain is large; whether so."""
    if not isinstance(variances, np.ndarray):
        return variances, False
    each = np.where(variances > 0, variances, 1.0)  # a query that is all zero constrains nothing
    if each.shape != workload.shape[:1]:
        return each, True
    if workload.tabular() is None:
        return each, False
    largest, least = _largest(workload, each), -_largest(workload, -each)
    even = bool(np.all(largest <= (1 + ROUNDING) * least))
    if even or workload.shape[1] > QUERY_BY_QUERY:
        return largest, not even
    return each, False


def _largest(workload: Workload, each: Array) -> Array:
    tables = workload.table_numbers()
    found = np.full(int(tables.max()) + 1, -np.inf)
    np.maximum.at(found, tables, each)
    return found


def _rounded_up(number: float) -> str:
    """Return a number to six digits, not less than it is."""
    return str(Context(prec=6, rounding=ROUND_CEILING).create_decimal_from_float(number).normalize())


def _percent(low: float, high: float) -> str:
    """Return an interval of shares in percent, moved out to two decimals."""
    ends = math.floor(1e4 * max(low, 0.0)) / 100, math.ceil(1e4 * high) / 100
    if ends[0] == 0:
        return f"at most {ends[1]:.2f} %"
    return " to ".join(dict.fromkeys(f"{each:.2f} %" for each in ends))


__all__ = ["Waste", "waste"]
