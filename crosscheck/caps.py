"""Hard limits: minimise a common factor on some targets at a privacy cost, with fixed limits on other queries."""

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

MAX_STEPS = 60  # of Newton's method; each step solves a problem
MAX_FACTOR = 1e6  # on the targets, at which these are negligible
REDUCTION = 16.0  # divisor of the factor if a line has no root
LAYERS: dict[str, Callable[..., Solution]] = {"fast": fast.solve, "reference": reference.solve}


MAX_LISTED = 6  # caps in a message


class TightLimitsError(InvalidInputError):
    """Caps that alone cost more than the budget.

    Attributes
    ----------
    least : float
        Squared privacy cost of the caps.
    allowed : dict of names to float
        The caps, multiplied by the minimum common factor that the budget allows.
    """

    def __init__(self, message: str, least: float, allowed: Mapping[str, float]) -> None:
        super().__init__(message)
        self.least, self.allowed = least, dict(allowed)


@dataclass(frozen=True, slots=True, repr=False)
class Capped(Displayed):
    """The minimum factor on targets, subject to caps on other queries and a privacy cost, with a proven interval.

    Attributes
    ----------
    low, high : float
        Proven interval of the optimum: at `low`, the caps and targets provably cost at least `cost`; at `high`, the
        noise of `answer` meets them at a cost of at most `cost`.
    cost : float
        The budget, as a squared privacy cost.
    answer : Solution
        The solution of `FitnessForUse` at `high`, with the mechanism.
    below : Solution
        The solution of `FitnessForUse` at `low`, whose certificate proves the lower bound.
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
        """The interval as a certificate of the factor; both ends include rounding errors."""
        return self.limits.certificate(self.answer.problem, self.answer.certificate)

    @property
    def limits(self) -> HardLimits:
        """The hard limits, as stored with the answer."""
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
    """Minimise the factor t such that variances are at most caps, or t times targets, at a squared privacy cost.

    Let α(t) be the optimum of `FitnessForUse` for these targets. By weak duality, any weights prove
    ``α(t) ≥ N / (Σ_capped μ_j c_j + t Σ_others μ_j c_j)``. So ``1/α`` is a minimum of lines in t, and concave. A line
    that proves ``α(t) ≥ cost`` makes t a lower bound. This is Newton's method from below; every line is one solved
    problem, and `FitnessForUse` certifies both ends.
    Products have targets by factor, ``c_ij = a_i b_j``. A factor t on some queries keeps this form only if the caps are
    on one factor of the product. The optimum of a product is the product of the factors' optima: solve that factor
    alone, ``capped(first, …, cost / fast.solve(FitnessForUse(second)).objective)``; the answer is the
    `dualmech.ProductMechanism` of both mechanisms. Other caps on products are solved on a matrix, if it is small.
    Raises `InvalidInputError` or `InputTypeError` for a query or table in both or in neither of targets and caps, caps
    that alone cost more than the budget, targets by factor, and the errors of `FitnessForUse`.

    Parameters
    ----------
    workload : Workload
        The queries.
    targets : mapping of names to float, or float
        By table, group or query, as for `FitnessForUse`: ratios of the variances, whose common factor is minimised. One
        number is for all tables or queries without caps.
    caps : mapping of names to float
        Maximum variances.
    cost : float
        The budget as a squared privacy cost Δ², twice ρ; or instead
    rho : number, Fraction or text such as "1/4"
        The budget ρ.
    neighbours : str, Relation or matrix, optional
        The neighbour relation, or the differences between neighbouring data sets.
    tol : float
        Requested relative width of the interval; `Capped.gap` is the proven width.
    geometry, layer : str
        The geometry, as for `FitnessForUse`; the layer of the solver, ``fast`` or ``reference``.

    Examples
    --------
    >>> import dualmech as dm
    >>> workload = dm.workloads.marginals({"hour": 24, "day": 7}, ways=(1, 2))
    >>> best = dm.crosscheck.capped(workload, {"day": 1.0, "hour x day": 4.0}, {"hour": 10.0}, rho="1/4")
    >>> best.gap < 1e-5, bool(best.mechanism.variance(["hour"]) <= 10 * (1 + 1e-9))
    (True, True)
    """
    budget, tol = accounting.cost_or_rho(cost, rho), validate.positive_number(tol=tol)
    solve = LAYERS[validate.choice((*LAYERS,), layer=layer)]
    problem, is_capped = posed(workload, targets, caps, neighbours, geometry)
    caps_by_name = {" x ".join(map(str, np.atleast_1d(name))): limit for name, limit in caps.items()}
    return _Search(problem, caps_by_name, is_capped, budget, tol, solve).run()


def posed(
    workload: Workload, targets: object, caps: object, neighbours: NeighboursLike, geometry: str
) -> tuple[FitnessForUse, npt.NDArray[np.bool_]]:
    """Return the problem at a factor of 1, and a mask of the capped targets; raises the errors of `capped`."""
    check_workload(workload)
    cap_by_name: dict[Hashable, float] = {**validate.mapping("names to positive numbers", caps=caps)}
    uncapped = _uncapped_names(workload, cap_by_name)
    target_by_name: dict[Hashable, float]
    if not isinstance(targets, Mapping) and numbers.is_number(targets):
        target_by_name = dict.fromkeys(uncapped, validate.positive_number(targets=np.asarray(targets)[()]))
    else:
        target_by_name = {**validate.mapping("names to positive numbers", targets=targets)}
    duplicates = [name for name in target_by_name if name in cap_by_name]
    if duplicates or not target_by_name or not cap_by_name:
        raise InvalidInputError(
            f"targets and caps must both have names, and none in common, got {duplicates or 'none in one'}"
        )
    return _capped_problem(workload, target_by_name, cap_by_name, uncapped, neighbours, geometry)


def _uncapped_names(workload: Workload, cap_by_name: dict[Hashable, float]) -> list[Hashable]:
    """Return names, of ways or of groups, that together with the names of caps cover all tables or queries."""
    tables = workload.tabular()
    if tables is not None:
        ways = {len(table.axes) for table in tables.product_tables}.difference(cap_by_name)
        with contextlib.suppress(InvalidInputError):  # caps on queries
            tables.per_table(dict.fromkeys(ways, 1.0) | cap_by_name, "caps")
            return [*ways]
    return [group for group in dict.fromkeys(workload.groups) if group not in cap_by_name]


def _capped_problem(
    workload: Workload,
    target_by_name: dict[Hashable, float],
    cap_by_name: dict[Hashable, float],
    uncapped: list[Hashable],
    neighbours: NeighboursLike,
    geometry: str,
) -> tuple[FitnessForUse, npt.NDArray[np.bool_]]:
    """Return the problem at a factor of 1, and a mask of the capped targets.

    Raises `InvalidInputError` if a target on a query overrides a cap on its table or group.
    """
    # The second problem marks the targets that come from caps by 2.
    marks_by_name = dict.fromkeys(target_by_name, 1.0) | dict.fromkeys(cap_by_name, 2.0)
    pair = target_by_name | cap_by_name, marks_by_name
    problem, marks = (FitnessForUse(workload, limits, None, neighbours, geometry=geometry) for limits in pair)
    if isinstance(problem.targets, tuple):
        raise InvalidInputError(
            "workload must have targets by query or table: a product has them by factor, so cap one factor alone, at "
            "the cost divided by the cost of the others"
        )
    if problem.targets.shape != marks.targets.shape:  # only one of them is constant within tables
        problem, marks = (FitnessForUse(workload, limits, None, neighbours, geometry="dense") for limits in pair)
    intended_marks = dict.fromkeys(uncapped, 1.0) | dict.fromkeys(cap_by_name, 2.0)
    intended = FitnessForUse(workload, intended_marks, geometry=marks.geometry)
    if not np.array_equal(intended.targets, marks.targets):
        raise InvalidInputError("caps must hold for all queries that they name: targets name some of these queries too")
    if np.all(marks.targets == 2.0):
        raise InvalidInputError("targets must name queries without caps, got caps on all queries")
    return problem, marks.targets == 2.0


@dataclass(frozen=True, slots=True)
class _Search:
    """Newton's method on the factor."""

    problem: FitnessForUse
    caps: dict[str, float]
    is_capped: npt.NDArray[np.bool_]  # mask of the capped targets
    cost: float
    tol: float
    solve: Callable[..., Solution]

    def numbers(self, factor: float) -> Array:
        """Return the caps, and the other targets times a factor."""
        return np.where(self.is_capped, self.problem.targets, factor * np.asarray(self.problem.targets))

    def at(self, factor: float) -> Solution:
        """Solve the problem with the caps, and the other targets times a factor."""
        problem = copy.copy(self.problem)
        object.__setattr__(problem, "targets", validate.positive(1, targets=self.numbers(factor)))
        with without_warnings():  # both ends are certified separately
            solution: Solution = self.solve(problem, tol=self.tol / 20)
        return solution

    def root(self, answer: Solution, factor: float) -> float:
        """Return the factor for which an answer's dual weights prove exactly the budget; 0 if there is none."""
        weights = self.problem.geometry.weights(answer.dual)
        value, value_at_double = (self.inverse(weights, scale) for scale in (factor, 2 * factor))
        slope = (value_at_double - value) / factor
        return factor + (1 / self.cost - value) / slope if slope > 0 else 0.0

    def inverse(self, weights: Any, factor: float) -> float:
        """Return the inverse of the bound that weights prove, rounded up."""
        bound, rounding = self.problem.geometry.bound(*weights, self.numbers(factor))
        return float(1 / (bound * (1 - rounding)))

    def run(self) -> Capped:
        """Raise the lower bound until it converges, then find a feasible factor slightly above."""
        caps_cost = self.at(MAX_FACTOR).certificate.interval[0]
        if caps_cost > self.cost:
            raise self.too_tight(caps_cost)
        low, factor = 0.0, 1.0
        for _ in range(MAX_STEPS):
            root = self.root(self.at(factor), factor)
            if root <= 0 and not low:
                factor /= REDUCTION
                continue
            if root > MAX_FACTOR:
                raise self.too_tight(caps_cost)
            increase, low = root - low, max(low, root)
            if increase <= self.tol / 4 * low:
                break
            factor = low
        low *= 1 - self.tol / 8  # a margin for rounding, and for the gap of the solution at `low`
        for _ in range(MAX_STEPS):
            lower_solution = self.at(low)
            if lower_solution.certificate.interval[0] >= self.cost:
                break
            low *= 1 - self.tol
        return self._with_upper_bound(low, lower_solution)

    def too_tight(self, caps_cost: float) -> TightLimitsError:
        """Return the error for caps whose cost alone exceeds or exhausts the budget."""
        factor = math.nextafter(caps_cost / self.cost, math.inf)
        allowed_caps = {name: factor * limit for name, limit in self.caps.items()}
        text = ", ".join(f"{name} {limit:.6g}" for name, limit in [*allowed_caps.items()][:MAX_LISTED])
        return TightLimitsError(
            f"rho must be more than {decimal_above(caps_cost / 2)}: the caps alone cost that much, and with slightly "
            f"more the factor on the other targets exceeds {MAX_FACTOR:.0e}; at rho = {self.cost / 2:.6g}, in the same "
            f"proportions, the tightest possible caps are variances of a little more than {text}",
            caps_cost,
            allowed_caps,
        )

    def _with_upper_bound(self, low: float, lower_solution: Solution) -> Capped:
        """Return the interval and noise of a feasible factor: by doubled steps, then by bisection."""
        infeasible, step, best = low, max(self.tol / 2, lower_solution.gap / 16), None
        for _ in range(MAX_STEPS):
            factor = infeasible * (1 + step) if best is None else math.sqrt(infeasible * best.high)
            answer = self.at(factor)
            if answer.certificate.feasible and answer.certificate.interval[1] <= self.cost:
                limits = HardLimits((*self.caps,), self.is_capped, self.cost, low, factor, lower_solution.dual)
                best = Capped(low, factor, self.cost, retold(answer, metadata={"limits": limits}), lower_solution)
            else:
                infeasible, step = factor, 2 * step
            if best is not None and best.high <= infeasible * (1 + max(self.tol, best.gap / 8)):
                return best
        if best is None:
            raise InvalidInputError("rho must exceed the cost of the caps: no feasible factor was found")
        return best
