"""What a release will cost and how accurate it will be, before any record is read."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import accounting, validate
from dualmech.accounting import LEVEL, level_of, normal_quantile
from dualmech.display import Displayed, counted, decimal_above, decimal_below, rounded_up
from dualmech.errors import InputTypeError, InvalidInputError, did_you_mean
from dualmech.mechanisms import records
from dualmech.neighbours import canonical
from dualmech.publishing.drawing import Measured, is_records, require_domain
from dualmech.publishing.published import PublishedTable, published_tables
from dualmech.publishing.specification import Specification
from dualmech.publishing.statement import neighbours_text, plan_lines
from dualmech.solution import Solution, require_solution
from dualmech.validate import Array
from dualmech.workloads import products
from dualmech.workloads.base import Workload, check_workload
from dualmech.workloads.schema import Schema

SEEDS = ("rng", "seed", "random_state", "random_seed", "generator", "key", "sampler", "noise")

UNBOUNDED = 100  # the ρ above which a release is refused unless a limit was given: ε is about 190 at δ = 1e-9

GRID = 1e-5  # how much more the grid may make noise cost once it is scaled, relative


def require_no_seed(refused: Mapping[str, object]) -> None:
    """Refuse a seed, and all else that a release takes no argument for."""
    shown = ", ".join(refused)
    if any(name in SEEDS for name in refused):
        raise InputTypeError(
            f"a release takes no {shown}: noise that can be drawn again protects nobody; a mechanism's simulate takes "
            f"a seed, for study"
        )
    if refused:
        raise InputTypeError(
            f"a release takes no {shown}: what it costs is settled by the mechanism, and limited by rho; accuracy is "
            f"asked of the problem, levels of what is returned"
        )


def as_fraction(rho: object) -> Fraction | None:
    """Return a positive number or a text such as ``1/2`` as a fraction, None as it is."""
    return None if rho is None else validate.exact_number(rho=rho)


def require_within(squared_cost: Fraction, rho: Fraction | None) -> None:
    """Refuse an exact squared privacy cost of more than twice the ρ allowed: what is given, or UNBOUNDED."""
    if rho is None and squared_cost > 2 * UNBOUNDED:
        raise InvalidInputError(
            f"mechanism costs rho = {decimal_above(squared_cost / 2)}, which protects next to nothing: no more than "
            f"{UNBOUNDED} is released unless rho says so; ask for less accuracy, or allow so much, rho=… (--rho …)"
        )
    if rho is not None and squared_cost > 2 * rho:
        larger = float(squared_cost / (2 * rho)) * (1 + GRID)
        raise InvalidInputError(
            f"mechanism costs rho = {decimal_above(squared_cost / 2, 12)}, more than the {decimal_below(rho, 12)} "
            f"allowed: solve for that rho; or, since noise that is larger by a factor costs less by as much, take "
            f"scaled({larger:.12g})"
        )


def check_columns(source: object, workload: Workload | None) -> None:
    """Refuse records whose columns lack an attribute of what is to be published; counts have no columns, and pass."""
    if workload is not None and is_records(source):
        records.check_columns(source, require_domain(workload.domain))


class ReleasePlan(Displayed):
    """A mechanism on its grid and what it will publish, as `dualmech.plan_release` returns it: no record is in it.

    Attributes
    ----------
    drawn : Measured
        The mechanism on its grid; ``drawn.mechanism`` is the Gaussian mechanism with the noise that is drawn.
    workload : Workload
        What is published.
    answer : Solution or None
        What the noise is the best for, with the proof, where the mechanism came as one.
    """

    def __init__(self, drawn: Measured, workload: Workload, answer: Solution | None = None) -> None:
        if not hasattr(drawn, "squared_privacy_cost") or not hasattr(drawn, "by_table"):
            raise InputTypeError(f"drawn must be a mechanism on its grid, got {type(drawn).__name__}")
        self.drawn: Any = drawn
        self.workload = check_workload(workload)
        self.answer = None if answer is None else require_solution(answer)
        self.ledger: Any = None  # where it was recorded, the ledger with it

    @cached_property
    def specification(self) -> Specification | None:
        """What was asked, where the plan keeps it."""
        text = None if self.answer is None or self.answer.terms is None else self.answer.terms.specification
        return None if text is None else Specification.of_json(text)

    @property
    def quantile(self) -> float:
        """Standard deviations in a margin of error where no level is named: as asked, else those of 19 in 20."""
        own = None if self.answer is None or self.answer.terms is None else self.answer.terms.quantile
        return normal_quantile(LEVEL) if own is None else own

    @property
    def rho(self) -> Fraction:
        """The ρ of zero-concentrated differential privacy: that which the plan keeps, else exactly that of the grid.

        A plan's is not below the grid's, which differs by some 1e-9 from machine to machine: both are compared here.
        """
        drawn: Fraction = self.drawn.squared_privacy_cost / 2
        kept = None if self.answer is None or self.answer.terms is None else self.answer.terms.rho
        return drawn if kept is None else max(drawn, Fraction(kept))

    @property
    def rho_text(self) -> str:
        """ρ as a decimal of ten digits that is not below it."""
        return decimal_above(self.rho, 10)

    def epsilon(self, delta: float) -> float:
        """Return an ε at which the release is (ε, δ)-differentially private, as ρ implies it; rounded up.

        The noise is discrete: the curve of the continuous Gaussian mechanism, which is lower, does not hold for it.
        """
        return accounting.zcdp_epsilon(rounded_up(self.rho), delta) if self.rho else 0.0

    def delta(self, epsilon: float) -> float:
        """Return a δ at which the release is (ε, δ)-differentially private, as ρ implies it; rounded up."""
        return accounting.zcdp_delta(rounded_up(self.rho), epsilon) if self.rho else 0.0

    @cached_property
    def published(self) -> dict[str, PublishedTable]:
        """The tables, by name: what their entries are called."""
        return {table.name: table for table in published_tables(self.workload)}

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self.published)

    @property
    def neighbours(self) -> str:
        """Which data sets count as neighbours, in words."""
        return neighbours_text(self)

    @property
    def relation(self) -> str:
        """The same as a text that no other neighbours have; see `dualmech.neighbours.canonical`."""
        domain = self.workload.domain
        cells = domain.to_json() if isinstance(domain, Schema) else "" if domain is None else repr(domain.sizes)
        return canonical(getattr(self.drawn.mechanism, "neighbours", None), cells)

    def unmoved(self, table: str) -> npt.NDArray[np.bool_]:
        """Return which entries of a table no neighbour changes, an axis a side: they are published as they are."""
        asked = self._table(table)
        if not hasattr(self.drawn, "unmoved"):
            return np.zeros(asked.shape, dtype=bool)
        found = self.drawn.unmoved(asked.asked) if self.drawn.by_table else self._unmoved[asked.rows]
        return np.asarray(found).reshape(asked.shape)

    def variances(self, table: str) -> Array:
        """Return the variance of each estimate of a table, an axis a side; 0 of what no neighbour changes."""
        asked = self._table(table)
        found = (
            np.asarray(self.drawn.mechanism.variances(asked.asked)) if self.drawn.by_table else self._spread[asked.rows]
        )
        return np.where(self.unmoved(table), 0.0, found.reshape(asked.shape))

    def margins(self, table: str, level: float | None = None, simultaneous: bool = False) -> Array:
        """Return the margin of error of each estimate: truth lies within it with this probability.

        Without a level it is the plan's own, or 19 in 20 where that keeps none.
        With `simultaneous`, all truths of all tables do at once: by Šidák's inequality, which holds for Gaussian noise
        however it is correlated, at the level ``level^(1/m)`` of each of the m that have noise.
        """
        quantile = self.quantile if level is None else normal_quantile(validate.probability(level=level))
        if validate.boolean(simultaneous=simultaneous):
            noisy = sum(int(np.sum(~self.unmoved(name))) for name in self.tables)
            quantile = normal_quantile(level_of(quantile), max(noisy, 1))
        return np.asarray(quantile * np.sqrt(self.variances(table)))

    def lines(self, level: float | None = None, simultaneous: bool = False) -> list[str]:
        """Return who is protected, the exact privacy, and the largest margin of error of each table, in lines."""
        return plan_lines(self, level, simultaneous)

    def check_columns(self, source: object) -> None:
        """Refuse records whose columns lack an attribute: of a CSV file the header is read, and no record.

        Raises `FileFormatError` or `InvalidInputError` with the attribute; `InputTypeError` where no domain says which
        columns to count. Counts have no columns, and pass.
        """
        check_columns(source, self.workload)

    @cached_property
    def _unmoved(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.drawn.unmoved(self.workload))

    @cached_property
    def _spread(self) -> Array:
        return self._variances(self.workload)

    def _variances(self, workload: Workload) -> Array:
        found = self.drawn.mechanism.variances(workload)
        if isinstance(found, tuple):  # of a product, by factor
            return products.outer(found).ravel()
        return np.asarray(found)

    def _table(self, name: str) -> PublishedTable:
        if not isinstance(name, str) or name not in self.published:
            near = did_you_mean(name, self.published) if isinstance(name, str) else ""
            raise InvalidInputError(f"table must be one of {list(self.tables)}, got {validate.shown(name)}{near}")
        return self.published[name]

    def _facts(self) -> dict[str, object]:
        return {
            "tables": len(self.tables),
            "queries": sum(each.entries for each in self.published.values()),
            "rho (zCDP)": decimal_above(self.rho),
            "epsilon at delta = 1e-09": decimal_above(self.epsilon(1e-9)),
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({counted(len(self.tables), 'table')}, rho={decimal_above(self.rho)})"
