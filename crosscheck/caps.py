"""Some queries within fixed limits, the others as good as possible at a given privacy cost."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import accounting, fast, reference, validate
from dualmech.certificate import Certificate
from dualmech.display import Displayed, decimal_above
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.neighbours import NeighboursLike
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.limits import HardLimits
from dualmech.solution import Solution, retold
from dualmech.validate import Array
from dualmech.watching import without_warnings
from dualmech.workloads import numbers
from dualmech.workloads.base import Workload, check_workload

STEPS = 60  # tangents, each a problem solved
FAR = 1e6  # factor at which the targets of the others count for nothing
DOWN = 16.0  # ratio by which the factor falls where a line says nothing of it
LAYERS: dict[str, Callable[..., Solution]] = {"fast": fast.solve, "reference": reference.solve}


LISTED = 6  # most caps that a message names


class TightLimitsError(InvalidInputError):
    """Caps that alone cost more than may be spent.

    Attributes
    ----------
    least : float
        Squared privacy cost that they take.
    allowed : dict of names to float
        The tightest variances that this cost allows, all caps loosened alike.
    """

    def __init__(self, message: str, least: float, allowed: Mapping[str, float]) -> None:
        super().__init__(message)
        self.least, self.allowed = least, dict(allowed)


@dataclass(frozen=True, slots=True, repr=False)
class Capped(Displayed):
    """The least factor on some targets at which caps on the others and a privacy cost are kept, proven from both sides.

    Attributes
    ----------
    low, high : float
        Proven interval of the optimum: at `low` the caps and targets provably cost `cost` or more, at `high` the noise
        of `answer` meets them at no more.
    cost : float
        Squared privacy cost that may be spent.
    answer : Solution
        Of `FitnessForUse` at `high`, with its mechanism.
    below : Solution
        Of `FitnessForUse` at `low`, whose certificate is the proof.
    """

    low: float
    high: float
    cost: float
    answer: Solution
    below: Solution

    @property
    def gap(self) -> float:
        """Relative width of the interval."""
        return self.high / self.low - 1

    @property
    def certificate(self) -> Certificate:
        """The interval as a certificate of the factor, computed anew: both ends already allow for rounding."""
        return self.limits.certificate(self.answer.problem, self.answer.certificate)

    @property
    def limits(self) -> HardLimits:
        """The hard limits, as the answer's file keeps them."""
        limits: HardLimits = self.answer.metadata["limits"]
        return limits

    @property
    def mechanism(self) -> GaussianPrivacy:
        """The mechanism to release with."""
        return self.answer.mechanism

    def _facts(self) -> dict[str, object]:
        return {"factor on the targets": f"{self.low:.9g} to {self.high:.9g}", "rho (zCDP)": self.cost / 2}

    def __repr__(self) -> str:
        return f"Capped(factor {self.high:.6g}, gap {self.gap:.2g}, rho {self.cost / 2:.6g})"


def capped(
    workload: Workload,
    targets: Mapping[Any, float] | float,
    caps: Mapping[Any, float],
    cost: float | None = None,
    neighbours: NeighboursLike = None,
    *,
    rho: float | str | Fraction | None = None,
    tol: float = 1e-6,
    geometry: str = "auto",
    layer: str = "fast",
) -> Capped:
    """Minimise the factor t for which variances are at most caps, or t times targets, at a squared privacy cost.

    With α(t) the optimum of `FitnessForUse` for these targets, ``1/α`` is concave in t: by weak duality any weights
    prove ``α(t) ≥ N / (Σ_capped μ_j c_j + t Σ_others μ_j c_j)``, so ``1/α`` is a minimum of lines, and where one says
    ``α(t) ≥ cost``, t is a lower bound. That is Newton's method, from below; every line is one problem solved, and both
    ends are judged by `FitnessForUse` itself.
    Products have targets by factor, ``c_ij = a_i b_j``, and a factor t on some queries keeps that form only where the
    caps follow one factor. The optimum of this factor times that of the others is the product's, so the factor is
    solved alone: ``capped(first, …, cost / fast.solve(FitnessForUse(second)).objective)``, and
    `dualmech.ProductMechanism` of both mechanisms is the answer. Other caps on products are solved on a matrix, where
    they fit.
    Raises `InvalidInputError` or `InputTypeError` for a query or table in both or in neither, caps that alone cost
    more, targets by factor, and anything that `FitnessForUse` refuses.

    Parameters
    ----------
    workload : Workload
        The queries.
    targets : mapping of names to float, or float
        By table, group or query, as `FitnessForUse` takes targets: ratios of the variances that are minimised together.
        One number holds for all that `caps` do not name.
    caps : mapping of names to float
        Variances that are not exceeded.
    cost : float
        Δ² that may be spent, twice ρ; or instead
    rho : number, Fraction or text such as "1/4"
        The ρ itself.
    neighbours : str, Relation or matrix, optional
        Which data sets privacy keeps apart.
    tol : float
        Relative width of the interval that is aimed at; `Capped.gap` is the proven width.
    geometry, layer : str
        As for `FitnessForUse`; the layer that solves, ``fast`` or ``reference``.

    Examples
    --------
    >>> import dualmech as dm
    >>> asked = dm.workloads.marginals({"hour": 24, "day": 7}, ways=(1, 2))
    >>> best = dm.crosscheck.capped(asked, {"day": 1.0, "hour x day": 4.0}, {"hour": 10.0}, rho="1/4")
    >>> best.gap < 1e-5, bool(best.mechanism.variance(["hour"]) <= 10 * (1 + 1e-9))
    (True, True)
    """
    allowed, tol = accounting.cost_or_rho(cost, rho), validate.positive_number(tol=tol)
    solve = LAYERS[validate.choice((*LAYERS,), layer=layer)]
    stated, capped_items = posed(workload, targets, caps, neighbours, geometry)
    named = {" x ".join(map(str, np.atleast_1d(name))): limit for name, limit in caps.items()}
    return _Search(stated, named, capped_items, allowed, tol, solve).run()


def posed(
    workload: Workload, targets: object, caps: object, neighbours: NeighboursLike, geometry: str
) -> tuple[FitnessForUse, npt.NDArray[np.bool_]]:
    """Return the problem at a factor of 1, and which of its numbers are caps; refused as `capped` says."""
    check_workload(workload)
    held: dict[Hashable, float] = {**validate.mapping("names to positive numbers", caps=caps)}
    others = _others(workload, held)
    target_by_name: dict[Hashable, float]
    if not isinstance(targets, Mapping) and numbers.is_number(targets):
        target_by_name = dict.fromkeys(others, validate.positive_number(targets=np.asarray(targets)[()]))
    else:
        target_by_name = {**validate.mapping("names to positive numbers", targets=targets)}
    both = [name for name in target_by_name if name in held]
    if both or not target_by_name or not held:
        raise InvalidInputError(
            f"targets and caps must each name something, and nothing both, got {both or 'none in one'}"
        )
    return _stated(workload, target_by_name, held, others, neighbours, geometry)


def _others(workload: Workload, held: dict[Hashable, float]) -> list[Hashable]:
    """Return the fewest names, of ways or of groups, that with the names of caps stand for all tables or queries."""
    tables = workload.tabular()
    if tables is not None:
        ways = {len(table.axes) for table in tables.product_tables}.difference(held)
        with contextlib.suppress(InvalidInputError):  # caps that name queries
            tables.per_table(dict.fromkeys(ways, 1.0) | held, "caps")
            return [*ways]
    return [group for group in dict.fromkeys(workload.groups) if group not in held]


def _stated(
    workload: Workload,
    target_by_name: dict[Hashable, float],
    held: dict[Hashable, float],
    others: list[Hashable],
    neighbours: NeighboursLike,
    geometry: str,
) -> tuple[FitnessForUse, npt.NDArray[np.bool_]]:
    """Return the problem at a factor of 1, and which of its numbers are caps.

    A cap on a table or group that a target names more closely would not hold: that is refused.
    """
    pairs = target_by_name | held, dict.fromkeys(target_by_name, 1.0) | dict.fromkeys(held, 2.0)
    stated, marks = (FitnessForUse(workload, limits, None, neighbours, geometry=geometry) for limits in pairs)
    if isinstance(stated.targets, tuple):
        raise InvalidInputError(
            "workload must have targets by query or table: a product has them by factor, so cap one factor alone, at "
            "the cost over that of the others"
        )
    if stated.targets.shape != marks.targets.shape:  # one of them is even within tables, the other is not
        stated, marks = (FitnessForUse(workload, limits, None, neighbours, geometry="dense") for limits in pairs)
    meant = FitnessForUse(workload, dict.fromkeys(others, 1.0) | dict.fromkeys(held, 2.0), geometry=marks.geometry)
    if not np.array_equal(meant.targets, marks.targets):
        raise InvalidInputError("caps must hold for all that they name: targets name some of it more closely")
    if np.all(marks.targets == 2.0):
        raise InvalidInputError("targets must name something that caps leave, got caps on all that is asked")
    return stated, marks.targets == 2.0


@dataclass(frozen=True, slots=True)
class _Search:
    """Newton's method on the factor."""

    stated: FitnessForUse
    caps: dict[str, float]
    held: npt.NDArray[np.bool_]  # whether each target is a cap
    cost: float
    tol: float
    solve: Callable[..., Solution]

    def numbers(self, factor: float) -> Array:
        """Return caps, and the others' targets times a factor."""
        return np.where(self.held, self.stated.targets, factor * np.asarray(self.stated.targets))

    def at(self, factor: float) -> Solution:
        """Solve for caps and the others' targets times a factor."""
        problem = copy.copy(self.stated)
        object.__setattr__(problem, "targets", validate.positive(1, targets=self.numbers(factor)))
        with without_warnings():  # both ends are judged, whatever a step reached
            solution: Solution = self.solve(problem, tol=self.tol / 20)
        return solution

    def root(self, answer: Solution, factor: float) -> float:
        """Return the factor at which the line of an answer's weights reaches the allowed cost; 0 if there is none."""
        weights = self.stated.geometry.weights(answer.dual)
        near, far = (self.inverse(weights, scale) for scale in (factor, 2 * factor))
        slope = (far - near) / factor
        return factor + (1 / self.cost - near) / slope if slope > 0 else 0.0

    def inverse(self, weights: Any, factor: float) -> float:
        """Return one over the bound that weights prove, none of it lost to rounding."""
        bound, rounding = self.stated.geometry.bound(*weights, self.numbers(factor))
        return float(1 / (bound * (1 - rounding)))

    def run(self) -> Capped:
        """Go up the lines until they move no more, then find noise just above."""
        alone = self.at(FAR)
        least = alone.certificate.interval[0]
        if least > self.cost:
            raise self.too_little(least)
        low, factor = 0.0, 1.0
        for _ in range(STEPS):
            nearest = self.root(self.at(factor), factor)
            if nearest <= 0 and not low:
                factor /= DOWN
                continue
            if nearest > FAR:
                raise self.too_little(least)
            moved, low = nearest - low, max(low, nearest)
            if moved <= self.tol / 4 * low:
                break
            factor = low
        low *= 1 - self.tol / 8  # so that rounding, and the last step's gap, leave it proven
        for _ in range(STEPS):
            below = self.at(low)
            if below.certificate.interval[0] >= self.cost:
                break
            low *= 1 - self.tol
        return self._from_above(low, below)

    def too_little(self, least: float) -> TightLimitsError:
        """Return the error for a cost that caps alone take, or that leaves next to nothing."""
        looser = math.nextafter(least / self.cost, math.inf)
        allowed = {name: looser * limit for name, limit in self.caps.items()}
        shown = ", ".join(f"{name} {limit:.6g}" for name, limit in [*allowed.items()][:LISTED])
        return TightLimitsError(
            f"rho must be more than {decimal_above(least / 2)}: the caps alone take that much, and a little more "
            f"leaves the other targets beyond {FAR:.0e} times what they are; at rho = {self.cost / 2:.6g} the "
            f"tightest caps of their kind are variances of a little more than {shown}",
            least,
            allowed,
        )

    def _from_above(self, low: float, below: Solution) -> Capped:
        """Return the noise of a factor not far above the least: doubled steps, then halves of the last one."""
        short, step, best = low, max(self.tol / 2, below.gap / 16), None
        for _ in range(STEPS):
            factor = short * (1 + step) if best is None else math.sqrt(short * best.high)
            answer = self.at(factor)
            if answer.certificate.feasible and answer.certificate.interval[1] <= self.cost:
                limits = HardLimits((*self.caps,), self.held, self.cost, low, factor, below.dual)
                best = Capped(low, factor, self.cost, retold(answer, metadata={"limits": limits}), below)
            else:
                short, step = factor, 2 * step
            if best is not None and best.high <= short * (1 + max(self.tol, best.gap / 8)):
                return best
        if best is None:
            raise InvalidInputError("rho must leave room above the caps: no factor was found that it allows")
        return best
