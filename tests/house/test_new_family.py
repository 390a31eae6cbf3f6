"""Adding a family, in one file: its problem, two solvers and a record, and the conformance suite does the rest."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import cvxpy as cp
import numpy as np
import pytest
from conformance import CHECKS, ConformanceCase, Run, conform

import dualmech as dm
from dualmech import fast, reference, validate
from dualmech.certificate import with_reasons
from dualmech.crosscheck import families
from dualmech.fast import methods
from dualmech.geometry.weights import VarianceDual, shares, valid_weights
from dualmech.immutable import set_parts
from dualmech.problems.base import OnGeometry, Problem
from dualmech.problems.fitness import scale_to_cost
from dualmech.progress import Status
from dualmech.reference import attempts, formulas, variance
from dualmech.reference.formulas import noise
from dualmech.reference.formulas.writing import Formula, Line, Program, Symbol
from dualmech.solution import Solution, judged_solution
from dualmech.storage import store
from dualmech.validate import Array


@dataclass(frozen=True, slots=True, eq=False)
class PlainDual:
    """Weights on queries (m,), none negative."""

    query_weights: Array


@dataclass(frozen=True, slots=True, eq=False)
class PlainNoise(Problem):
    """Equal noise s on every cell: minimise ``1/s`` subject to ``s ‖w_j‖² ≤ c_j``.

    For any μ ≥ 0, ``Σ μ_j c_j ≥ s Σ μ_j ‖w_j‖²``, so that the cost 1/s is at least ``Σ μ_j ‖w_j‖² / Σ μ_j c_j``.
    """

    workload: dm.Workload
    targets: Array

    dual_type: ClassVar[type] = PlainDual
    arguments: ClassVar[tuple[str, ...]] = ("workload", "targets")

    @with_reasons
    def certify(self, primal: Any, dual: PlainDual) -> dm.Certificate:
        (level,), squares = np.atleast_1d(primal), self.workload.row_norms() ** 2
        weights = np.asarray(dual.query_weights)
        bound = float(weights @ squares / (weights @ self.targets)) if valid_weights(weights) else 0.0
        rounding = 4 * len(squares) * np.finfo(float).eps
        if not (np.isfinite(level) and level > 0):
            return dm.Certificate.of(math.inf, bound, math.inf, rounding)
        excess = float((level * squares / self.targets).max()) - 1
        return dm.Certificate.of(1 / level, bound, max(excess, 0.0), rounding)

    def feasible(self, primal: Any) -> Array:
        (level,) = np.atleast_1d(primal)
        return np.array([level / (level * self.workload.row_norms() ** 2 / self.targets).max()])

    def mechanism(self, primal: Any) -> dm.LinearGaussianMechanism:
        cells = np.eye(self.workload.shape[1])
        return dm.LinearGaussianMechanism(cells, float(primal[0]) * cells)

    def prices(self, dual: PlainDual) -> Array:
        return shares(np.asarray(dual.query_weights) * self.targets)

    def binding(self, primal: Any, slack: float) -> np.ndarray:
        return np.arange(self.workload.shape[1])


def solve_fast(problem: PlainNoise, limits: Any, *, method: str = "auto") -> Solution:
    needs = problem.workload.row_norms() ** 2 / problem.targets
    point, dual = problem.feasible([1.0]), PlainDual(np.eye(len(needs))[np.argmax(needs)])
    return judged_solution(problem, point, dual, tol=limits.tol, otherwise=Status.ROUNDING, solver="fast:closed_form")


def formulate(problem: PlainNoise) -> cp.Problem:
    s = cp.Variable(name="s")
    limits = s * problem.workload.row_norms() ** 2 <= problem.targets
    return cp.Problem(cp.Minimize(cp.inv_pos(s)), [limits])


def solve_reference(
    problem: PlainNoise,
    *,
    backend: str = "CLARABEL",
    formulation: str = "own",
    tol: float | None = None,
    **options: Any,
) -> Solution:
    validate.choice(("own",), formulation=formulation)
    request = attempts.BackendRequest.of(backend, frozenset({"SOC"}), tol, None, options)
    program = formulate(problem)
    program.solve(solver=backend)
    dual = PlainDual(np.maximum(program.constraints[0].dual_value, 0.0))
    point = problem.feasible([program.var_dict["s"].value])
    return judged_solution(problem, point, dual, tol=request.tol, otherwise=Status.BACKEND, solver="reference:plain")


PLAIN = families.Family("plain", ("PlainNoise",), lambda problem: "squared privacy cost of equal noise")


def plain_statement(problem: PlainNoise) -> Formula:
    queries, cells = problem.workload.shape
    return Formula(
        (
            Symbol("W", "the queries, with the rows $w_j$", (queries, cells), problem.workload.dense),
            Symbol("c", "the variance targets", (queries,), lambda: problem.targets),
        ),
        (Symbol("s", "the variance of the noise on every cell"),),
        Program("minimise", "1 / s", "$s > 0$", (Line(r"s \lVert w_j \rVert^2 \le c_j", "for all queries j"),)),
        (Symbol(r"\mu", "weights on queries, none negative", (queries,), part="query_weights"),),
        Program("maximise", r"\sum_j \mu_j \lVert w_j \rVert^2", r"$\mu \ge 0$", (Line(r"\sum_j \mu_j c_j \le 1"),)),
        (Line(r"1 \ge \sum_j \mu_j c_j \ge s \sum_j \mu_j \lVert w_j \rVert^2"),),
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LimitedVariance(OnGeometry):
    """Least total variance at a squared privacy cost of at most `cost`: what a family on a geometry has to say itself.

    It is `TotalVariance` at another cost. Noise, its mechanism and files come from `OnGeometry`.
    """

    workload: dm.Workload
    weights: Any
    cost: float
    geometry: Any = field(repr=False)

    numbers: ClassVar[str] = "weights"
    dual_type: ClassVar[type] = VarianceDual
    arguments: ClassVar[tuple[str, ...]] = ("workload", "weights", "cost")

    def __init__(self, workload: dm.Workload, weights: Any, cost: float, geometry: Any = "dense", **more: Any) -> None:
        at_one = dm.TotalVariance(workload, weights, geometry=geometry, **more)
        set_parts(self, workload=workload, weights=at_one.weights, cost=float(cost), geometry=at_one.geometry)

    @property
    def at_one(self) -> dm.TotalVariance:
        return dm.TotalVariance(self.workload, self.weights, geometry=self.geometry.name)

    @property
    def cost_limit(self) -> float:
        return self.cost

    @with_reasons
    def certify(self, primal: Any, dual: Any) -> dm.Certificate:
        geometry, weights = self.geometry, self.weights
        bound, rounding = geometry.total_bound(geometry.weights(dual, queries=False)[0], weights)
        forms = geometry.forms(geometry.point(primal))
        if forms is None:
            return dm.Certificate.of(math.inf, bound / self.cost, math.inf, rounding)
        total, slack = forms.total(weights)
        violation = max(forms.cost / self.cost - 1, 0.0)
        return dm.Certificate.of(total, bound / self.cost, violation, rounding + forms.cost_rounding + slack)

    def feasible(self, primal: Any) -> Any:
        return scale_to_cost(self.geometry, self.geometry.point(primal), self.cost)

    def prices(self, dual: Any) -> Array:
        return self.at_one.prices(dual)


def solve_limited(problem: LimitedVariance, limits: Any, *, method: str = "auto") -> Solution:
    found = fast.solve(problem.at_one, tol=limits.tol)
    point = problem.feasible(found.primal / problem.cost)
    return judged_solution(problem, point, found.dual, tol=limits.tol, otherwise=Status.ROUNDING, solver="fast:limited")


def formulate_limited(problem: LimitedVariance, formulation: str = "own") -> cp.Problem:
    geometry = problem.geometry
    return variance.schur(
        geometry.moves * problem.cost**-0.5, geometry.representation * problem.weights[:, None] ** 0.5
    )


def solve_limited_by_reference(
    problem: LimitedVariance,
    *,
    backend: str = "CLARABEL",
    formulation: str = "own",
    tol: float | None = None,
    **options: Any,
) -> Solution:
    validate.choice(("own",), formulation=formulation)
    request = attempts.BackendRequest.of(backend, frozenset({"PSD"}), tol, None, options)
    program = formulate_limited(problem)
    program.solve(solver=backend)
    point = problem.feasible(np.linalg.inv(np.asarray(program.var_dict["X"].value)))
    dual = VarianceDual(np.maximum(program.constraints[1].dual_value, 0.0))
    return judged_solution(problem, point, dual, tol=request.tol, otherwise=Status.BACKEND, solver="reference:limited")


LIMITED = families.Family("limited", ("LimitedVariance",), lambda problem: "total variance at a privacy cost")


def limited_statement(problem: LimitedVariance) -> Formula:
    limit = Symbol("a", "the squared privacy cost allowed", (), lambda: np.asarray(problem.cost))
    formula = noise.variance(problem.at_one)
    notes = (*formula.notes, "At the squared privacy cost $a$ the optimum is $1 / a$ times as large.")
    return dataclasses.replace(formula, given=(*formula.given, limit), notes=notes)


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConformanceCase]:
    """The family on a geometry, for as long as a test lasts."""
    monkeypatch.setitem(methods.FAMILY_SOLVERS, "LimitedVariance", solve_limited)
    monkeypatch.setitem(reference.FAMILIES, LimitedVariance, (formulate_limited, solve_limited_by_reference))
    monkeypatch.setitem(formulas.FORMULAS, LimitedVariance, limited_statement)
    monkeypatch.setitem(store.PROBLEMS, "LimitedVariance", LimitedVariance)
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, LIMITED))

    def make(cost: float = 0.3) -> LimitedVariance:
        return LimitedVariance(dm.workloads.prefix(4), [1.0, 2.0, 3.0, 5.0], cost)

    yield ConformanceCase("limited", make, lambda: make(0.7))


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConformanceCase]:
    """The family, for as long as a test lasts."""
    monkeypatch.setitem(methods.FAMILY_SOLVERS, "PlainNoise", solve_fast)
    monkeypatch.setitem(reference.FAMILIES, PlainNoise, (formulate, solve_reference))
    monkeypatch.setitem(formulas.FORMULAS, PlainNoise, plain_statement)
    monkeypatch.setitem(store.PROBLEMS, "PlainNoise", PlainNoise)
    monkeypatch.setitem(store.KINDS, "PlainDual", PlainDual)
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, PLAIN))
    workload, targets = dm.workloads.prefix(4), np.array([1.0, 2.0, 3.0, 5.0])
    yield ConformanceCase("plain", lambda: PlainNoise(workload, targets), lambda: PlainNoise(workload, 2 * targets))


def test_a_family_in_one_file_conforms(plain: ConformanceCase) -> None:
    conform(plain)


def test_a_family_on_a_geometry_conforms(limited: ConformanceCase) -> None:
    conform(limited)


@pytest.mark.parametrize("cells", [2, 3, 5, 8])
def test_the_mechanism_that_a_family_inherits_costs_no_more_than_its_limit(
    limited: ConformanceCase, cells: int
) -> None:
    for cost in (0.1, 0.3, 0.7, 1 / 3, 3.0):
        problem = LimitedVariance(dm.workloads.prefix(cells), np.linspace(1, 2, cells), cost)
        assert fast.solve(problem).mechanism.squared_privacy_cost <= cost, cost


def test_the_checks_find_an_unlimited_mechanism(limited: ConformanceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(limited)
    monkeypatch.setattr(LimitedVariance, "mechanism", lambda self, primal: self.geometry.mechanism(primal))
    with pytest.raises(AssertionError, match="costs more"):
        CHECKS["a_mechanism_costs_no_more_than_its_limit"](run)


def test_the_checks_find_a_limit_that_is_not_stated(limited: ConformanceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(limited)
    run.answer("fast")
    monkeypatch.setattr(LimitedVariance, "cost_limit", None)
    with pytest.raises(AssertionError, match="cost_limit does not say"):
        CHECKS["a_mechanism_costs_no_more_than_its_limit"](run)
    monkeypatch.delattr(LimitedVariance, "cost_limit")
    with pytest.raises(dm.errors.InputTypeError, match="LimitedVariance must define cost_limit"):
        run.answer("fast").mechanism  # noqa: B018


def test_a_family_has_no_proof_of_another(limited: ConformanceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(limited)
    with pytest.raises(dm.errors.InvalidInputError, match="no proof in whole numbers is known of a LimitedVariance"):
        dm.prove(run.answer("fast"))
    monkeypatch.setattr(OnGeometry, "in_numbers", lambda self: self._noise_in_numbers(self.cost), raising=False)
    with pytest.raises(AssertionError, match="a LimitedVariance states the proof of a OnGeometry"):
        CHECKS["a_proof_is_of_its_own_family"](run)
    with pytest.raises(dm.errors.InvalidInputError, match="in_numbers is that of a OnGeometry"):
        dm.prove(run.answer("fast"))
