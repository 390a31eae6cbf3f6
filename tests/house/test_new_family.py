"""Adding a family: power means of variances, on a geometry, and equal noise on all cells; conformance does the rest.

Each part stands here as it would in its layer: the problem and its dual, the fast solver, the program and the formulas,
the conformance case. `monkeypatch` adds the one line of each layer's list.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import cvxpy as cp
import numpy as np
import numpy.typing as npt
import pytest
from conformance import CHECKS, ConformanceCase, Run, conform

import dualmech as dm
from dualmech import fast, reference, validate
from dualmech.certificate import Certificate, with_reasons
from dualmech.errors import InvalidInputError
from dualmech.fast import methods
from dualmech.fast.custom import Custom
from dualmech.fast.engine.loop import MAX_STALLED_STEPS, Limits
from dualmech.fast.fitness import solve_on_geometry
from dualmech.fast.methods import FamilySolver
from dualmech.geometry.base import Geometry
from dualmech.geometry.choice import choose
from dualmech.geometry.weights import shares, valid_weights
from dualmech.immutable import set_parts
from dualmech.linalg import EPS
from dualmech.neighbours import NeighboursLike
from dualmech.problems.base import OnGeometry, Problem
from dualmech.problems.variance import TotalVariance
from dualmech.progress import Status
from dualmech.reference import attempts, backends
from dualmech.reference import solving as reference_solving
from dualmech.reference.attempts import label
from dualmech.reference.fitness import symmetric, variances
from dualmech.reference.formulas import noise, programs
from dualmech.reference.formulas.writing import Formula, Line, Program, Symbol
from dualmech.reference.scaling import Scaled
from dualmech.solution import Solution, judged_solution, retold
from dualmech.storage import store
from dualmech.validate import Array
from dualmech.workloads.base import Workload

# The problem: core/problems/pmean.py, with its line in core/__init__.pyi.


@dataclass(frozen=True, slots=True, eq=False)
class PMeanDual:
    """Weights that prove a lower bound: λ on neighbours (s,) and μ on queries (m,), none negative, of any scale."""

    neighbour_weights: Array
    query_weights: Array

    def __iter__(self) -> Iterator[Array]:
        return iter((self.neighbour_weights, self.query_weights))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PMean(OnGeometry[PMeanDual]):
    """Least power mean of the ratios of variances to targets, at a squared privacy cost of 1.

    Minimise ``F(v / c) = (Σ_j w_j (v_j / c_j)^p)^(1/p)`` over Σ ≻ 0 subject to ``(B u_i)' Σ⁻¹ (B u_i) ≤ 1`` for every
    pair of neighbours u_i, where ``v_j = l_j Σ l_j'``. It is total variance for p = 1 and tends to privacy first.

    The dual: for ``μ ≥ 0`` and ``1/p + 1/q = 1`` let ``N(μ) = (Σ_j w_j (μ_j / w_j)^q)^(1/q)``, for p = 1 the maximum of
    ``μ_j / w_j``. By Hölder's inequality ``Σ_j μ_j r_j ≤ N(μ) F(r)``, so that ``F(v / c)`` is at least the total
    variance with the weights ``μ_j / c_j``, over N(μ). Any λ ≥ 0 bounds that total from below (`TotalVariance`).
    """

    workload: Workload
    targets: Any
    p: float
    weights: Array
    geometry: Any = field(repr=False)

    numbers: ClassVar[str] = "targets"
    dual_type: ClassVar[type] = PMeanDual
    arguments: ClassVar[tuple[str, ...]] = ("workload", "targets", "p", "weights")
    objective_name = "power mean of the variances over their targets"
    cost_limit = 1.0

    def __init__(
        self,
        workload: Workload,
        targets: object = 1.0,
        p: float = 2.0,
        weights: npt.ArrayLike = 1.0,
        basis: npt.ArrayLike | None = None,
        neighbours: NeighboursLike = None,
        *,
        geometry: str | Geometry = "dense",
    ) -> None:
        exponent = validate.positive_number(p=p)
        if exponent < 1:
            raise InvalidInputError(f"p must be at least 1, got {exponent}")
        chosen, numbers = choose(workload, targets, "targets", geometry, basis, neighbours)
        if chosen.name != "dense":
            raise InvalidInputError(f"geometry must be 'dense' for a PMean, got {chosen.name!r}")
        values = validate.per_item(workload.shape[0], weights=weights)
        set_parts(self, workload=workload, targets=numbers, p=exponent, weights=values, geometry=chosen)

    def _mean(self, ratios: Array) -> float:
        """Return F of ratios, none negative (m,)."""
        largest = float(ratios.max())
        return largest * float(self.weights @ (ratios / largest) ** self.p) ** (1 / self.p)

    def _dual_norm(self, query_weights: Array) -> float:
        """Return N(μ), the largest ``Σ_j μ_j r_j`` where F(r) is at most 1."""
        ratios = query_weights / self.weights
        largest = float(ratios.max())
        if self.p == 1:
            return largest
        q = self.p / (self.p - 1)
        return largest * float(self.weights @ (ratios / largest) ** q) ** (1 / q)

    @with_reasons
    def certify(self, primal: object, dual: object) -> Certificate:
        """Judge a covariance on B x (k, k), and dual weights, from wherever they come."""
        bound, rounding = self._bound(*self.geometry.weights(dual))
        forms = self.geometry.forms(self.geometry.point(primal))
        if forms is None:
            return Certificate.of(np.inf, bound, np.inf, rounding)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            mean = self._mean(np.maximum(forms.variances, 0.0) / self.targets)
            higher = self._mean((np.maximum(forms.variances, 0.0) + forms.variance_rounding) / self.targets)
            rounding += higher / mean - 1 if mean > 0 else np.inf
        return Certificate.of(mean, bound, max(forms.cost - 1, 0.0), rounding + forms.cost_rounding)

    def _bound(self, neighbour_weights: Array, query_weights: Array) -> tuple[float, float]:
        """Return the lower bound and its relative rounding-error bound."""
        if not valid_weights(query_weights):
            return 0.0, 0.0
        scaled = query_weights / query_weights.max()
        total, rounding = self.geometry.total_bound(neighbour_weights, scaled / self.targets)
        return total / self._dual_norm(scaled), rounding + 4 * (len(scaled) + 4) * EPS

    def prices(self, dual: object) -> Array:
        """Return each query's share of ``Σ_j μ_j v_j / c_j`` at the covariance of the dual weights."""
        neighbour_weights, query_weights = self.geometry.weights(dual)
        if not valid_weights(query_weights):
            return np.zeros(len(query_weights))
        scaled = query_weights / query_weights.max()
        prices: Array = self.geometry.total_prices(neighbour_weights, scaled / self.targets)
        return prices


# The fast solver: fast/pmean.py, with its line in FAMILY_SOLVERS of fast/methods.py.


SHARE = 0.25  # of the tolerance, for the total variance of each step
MIN_DERIVATIVE = 1e-12  # relative to the largest


def solve_p_mean(problem: PMean, limits: Limits, *, method: str = "auto") -> Solution:
    """Solve the problem; see `dualmech.fast.solve`."""
    answer = Custom("reweighted", function=partial(steps, tol=SHARE * limits.tol)).solve(problem, limits)
    return retold(answer, solver="fast:reweighted")


def steps(problem: PMean, tol: float) -> Iterator[tuple[Array, PMeanDual]]:
    """Yield covariances with dual weights ``μ_j = w_j ν_j``, until the weights no longer change.

    At the optimum ``ν_j ∝ r_j^(p-1)``, the derivatives of the mean at the ratios r of the covariance that is best for
    ν. If ``log r`` changes with ``log ν`` by a factor between -1 and 0, then steps of ``2/(p+1)`` towards these
    derivatives, in logarithms, shrink the error by ``(p-1)/(p+1)`` at least.
    """
    derivatives, size = np.ones(len(problem.targets)), 2 / (problem.p + 1)
    for _ in range(int(MAX_STALLED_STEPS * (problem.p + 1))):
        weights = problem.weights * derivatives
        total = TotalVariance(problem.workload, weights / problem.targets, geometry=problem.geometry)
        answer = solve_on_geometry(total, Limits(tol))
        yield answer.primal, PMeanDual(answer.dual.neighbour_weights, weights)
        ratios = problem.geometry.forms(answer.primal).variances / problem.targets
        aims = np.maximum(ratios / ratios.max(), MIN_DERIVATIVE) ** (problem.p - 1)
        derivatives = derivatives ** (1 - size) * aims**size
        derivatives = np.maximum(derivatives / derivatives.max(), MIN_DERIVATIVE)


# The program and the formulas: reference/pmean.py, with its line in FAMILIES of reference/solving.py.


def schur(moves: Array, queries: Array, weights: Array, p: float) -> cp.Problem:
    """State the problem with one linear matrix inequality, over BU (k, s) and the queries on B x over √c (m, k).

    Minimise ``(Σ_j w_j r_j^p)^(1/p)`` over Σ, Z and r subject to ``[[Σ, BU], [(BU)', Z]] ⪰ 0``, ``Z_ii ≤ 1`` and
    ``v_j Σ v_j' / c_j ≤ r_j``. The multipliers of ``accuracy`` are the derivatives of the mean: the weights μ.

    Examples
    --------
    >>> import dualmech as dm, numpy as np
    >>> problem = dm.PMean(dm.workloads.prefix(2), p=3.0)
    >>> program = schur(problem.geometry.moves, problem.geometry.representation, problem.weights, problem.p)
    >>> _, Sigma = program.solve(solver="CLARABEL"), program.var_dict["Sigma"].value
    >>> dual = problem.dual_type(*(constraint.dual_value for constraint in program.constraints[1:]))
    >>> problem.certify(problem.feasible(Sigma), dual).gap < 1e-6
    True
    """
    BU, V = cp.Constant(moves, name="BU"), cp.Constant(queries, name="V")
    Sigma, Z, r = symmetric("Sigma", len(moves)), symmetric("Z", moves.shape[1]), cp.Variable(len(queries), name="r")
    return cp.Problem(
        cp.Minimize(cp.pnorm(cp.multiply(weights ** (1 / p), r), p)),  # type: ignore[arg-type]  # CVXPY takes any p
        [
            label("schur", cp.bmat([[Sigma, BU], [BU.T, Z]]) >> 0),
            label("privacy", cp.diag(Z) <= 1),
            label("accuracy", variances(V, Sigma) <= r),
        ],
    )


def write(problem: PMean, formulation: str) -> cp.Problem:
    geometry = problem.geometry
    queries = geometry.representation / np.sqrt(problem.targets)[:, None]
    return schur(geometry.moves, queries, problem.weights, problem.p)


def scaled_program(problem: PMean, formulation: str, request: attempts.BackendRequest) -> attempts.ScaledProgram:
    scaled = Scaled.of(problem)
    program = schur(scaled.moves, scaled.queries, problem.weights[scaled.kept_queries], problem.p)

    def dual(privacy: Array, accuracy: Array) -> PMeanDual:
        weights = np.zeros(len(problem.targets))
        weights[scaled.kept_queries] = np.maximum(accuracy, 0.0)
        return PMeanDual(scaled.neighbour_weights(privacy), weights)

    return attempts.ScaledProgram(
        program, scaled, lambda: program.var_dict["Sigma"].value, dual, ("privacy", "accuracy")
    )


def p_mean_formula(problem: PMean) -> Formula:
    """Return the problem in formulas."""
    moves, queries = noise.counts(problem)
    total = rf"\sum_j \mu_j {noise.VARIANCE} / c_j"
    norm = r"\lVert \operatorname{diag}(\sqrt{\mu / c}) W U \operatorname{diag}(\sqrt{\lambda}) \rVert_*^2"
    square = r"\lVert \operatorname{diag}(\sqrt{\mu / c}) L \Sigma^{1/2} \rVert_F^2"
    return Formula(
        (
            *noise.matrices(problem),
            noise.targets(problem),
            Symbol("p", "the exponent, at least 1", (), lambda: np.array(problem.p)),
            Symbol("w", "the weights of the queries", problem.weights.shape, lambda: problem.weights),
        ),
        (noise.covariance(problem), Symbol("r_j", rf"the variance over its target, ${noise.VARIANCE} / c_j$")),
        Program(
            "minimise",
            r"(\sum_j w_j r_j^p)^{1/p}",
            noise.definite(problem),
            (
                Line(rf"{noise.COST} \le 1", "for all neighbours $i$", "privacy"),
                Line(rf"{noise.VARIANCE} / c_j \le r_j", "for all queries $j$", "accuracy"),
            ),
        ),
        (noise.neighbour_weights(moves), noise.query_weights(queries)),
        Program(
            "maximise",
            norm,
            r"$\lambda, \mu \ge 0$",
            (
                Line(r"\sum_i \lambda_i \le 1"),
                Line(r"\sum_j w_j (\mu_j / w_j)^q \le 1", "with $1/p + 1/q = 1$; for $p = 1$, $\\mu_j \\le w_j$"),
            ),
        ),
        (
            Line(rf"(\sum_j w_j r_j^p)^{{1/p}} \ge {total}", r"by Hölder's inequality"),
            Line(rf"1 \ge {noise.PAID.formula}", r"since $\sum_i \lambda_i \le 1$"),
            Line(rf"{total} = {square}", "a total variance"),
            noise.HOLDER,
        ),
        noise.notes(problem),
    )


FORMULATIONS = attempts.Formulations(
    lambda _: {"schur": backends.SEMIDEFINITE | {"SOC"}},
    write,
    scaled_program,
    p_mean_formula,
    forms={"schur": programs.schur},
)


# A family without a geometry: equal noise on all cells.


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
    objective_name = "squared privacy cost of equal noise"
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


# The conformance case: tests/problems/pmean/pmean_cases.py. Then the lines of the lists, for as long as a test lasts.


def p_mean(p: float = 3.0) -> PMean:
    return PMean(dm.workloads.prefix(4), [1.0, 2.0, 3.0, 5.0], p, [1.0, 2.0, 1.0, 0.5])


@pytest.fixture
def pmean(monkeypatch: pytest.MonkeyPatch) -> ConformanceCase:
    monkeypatch.setitem(store.places(), "PMean", PMean)
    monkeypatch.setitem(methods.FAMILY_SOLVERS, "PMean", FamilySolver(solve_p_mean))
    monkeypatch.setitem(reference_solving.FAMILIES, "PMean", FORMULATIONS)
    return ConformanceCase("pmean", p_mean, lambda: p_mean(2.0))


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> ConformanceCase:
    layer = SimpleNamespace(formulate=formulate, solve=solve_reference, formula=plain_statement)
    monkeypatch.setitem(store.places(), "PlainNoise", PlainNoise)
    monkeypatch.setitem(methods.FAMILY_SOLVERS, "PlainNoise", FamilySolver(solve_fast))
    monkeypatch.setitem(reference_solving.FAMILIES, "PlainNoise", layer)
    workload, targets = dm.workloads.prefix(4), np.array([1.0, 2.0, 3.0, 5.0])
    return ConformanceCase("plain", lambda: PlainNoise(workload, targets), lambda: PlainNoise(workload, 2 * targets))


def test_a_family_on_a_geometry_conforms(pmean: ConformanceCase) -> None:
    conform(pmean)


def test_a_family_in_one_file_conforms(plain: ConformanceCase) -> None:
    conform(plain)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 8.0])
def test_any_weights_bound_the_power_mean(pmean: ConformanceCase, p: float) -> None:
    """Bounds of random and of nearly optimal weights are below the optimum of the program, which both layers find."""
    problem, rng = p_mean(p), np.random.default_rng(0)
    answers = [fast.solve(problem, tol=1e-6), reference.solve(problem, tol=1e-6)]
    optimum = float(reference.formulate(problem).solve(solver="CLARABEL"))
    for answer in answers:
        assert answer.certificate.certifies(1e-6) and np.isclose(answer.objective, optimum, rtol=1e-5)
    best, bounds = answers[0].dual, []
    for spread in np.geomspace(1e-3, 3.0, 40):
        near = (part * np.exp(spread * rng.standard_normal(4)) for part in best)
        bounds.append(problem.certify(answers[0].primal, tuple(near)).lower_bound)
        bounds.append(problem.certify(answers[0].primal, tuple(rng.exponential(size=(2, 4)) ** 2)).lower_bound)
    assert min(bounds) > 0 and max(bounds) <= optimum * (1 + 1e-6)


def test_power_means_lie_between_total_variance_and_privacy_first(pmean: ConformanceCase) -> None:
    workload, targets = dm.workloads.prefix(4), np.array([1.0, 2.0, 3.0, 5.0])
    first = fast.solve(PMean(workload, targets, 1.0))
    total = fast.solve(dm.TotalVariance(workload, 1 / targets, geometry="dense"))
    assert np.isclose(first.objective, total.objective, rtol=2e-6)
    worst = fast.solve(dm.PrivacyFirst(workload, targets, 1.0, geometry="dense")).objective
    for p in (2.0, 8.0, 32.0):
        mean = fast.solve(PMean(workload, targets, p)).objective
        assert worst <= mean * (1 + 2e-6) and mean <= worst * 4 ** (1 / p) * (1 + 2e-6)


def test_what_a_family_does_not_define_raises_and_is_named() -> None:
    class Bare(Problem):
        arguments = ()

    problem = Bare()
    for name in ("certify", "feasible", "mechanism", "prices", "binding"):
        with pytest.raises(NotImplementedError, match=rf"Bare must define {name}\("):
            getattr(problem, name)(None)
    assert problem.objective_name == "objective"


@pytest.mark.parametrize("layer", [fast, reference])
def test_an_object_of_a_class_of_the_same_name_is_no_problem(layer: Any) -> None:
    other = type("FitnessForUse", (), {})()
    with pytest.raises(dm.errors.InputTypeError, match="problem must be one that the"):
        layer.solve(other)


def test_weights_of_another_class_are_not_read(pmean: ConformanceCase, tmp_path: Path) -> None:
    """A file holds dual weights of the class that its problem names, and problems that the package offers."""
    dm.save(fast.solve(p_mean()), tmp_path / "answer.npz")
    arrays = dict(np.load(tmp_path / "answer.npz"))
    del arrays["digest"]
    for change, words in (
        ({"dual.kind": "VarianceDual"}, "dual.kind must be one of"),
        ({"problem": "Workload"}, "problem must be"),
    ):
        np.savez(tmp_path / "changed.npz", **arrays | {name: np.array(value) for name, value in change.items()})
        with pytest.raises(dm.errors.FileFormatError, match=words):
            dm.load(tmp_path / "changed.npz")


@pytest.mark.parametrize("cells", [2, 3, 5, 8])
def test_the_mechanism_that_a_family_inherits_costs_no_more_than_its_limit(pmean: ConformanceCase, cells: int) -> None:
    for p in (1.0, 1.3, 2.0, 3.0, 7.0):
        problem = PMean(dm.workloads.prefix(cells), np.linspace(1, 2, cells), p)
        assert fast.solve(problem).mechanism.squared_privacy_cost <= 1, p


def test_the_checks_find_an_unlimited_mechanism(pmean: ConformanceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PMean, "mechanism", lambda self, primal: self.geometry.mechanism(primal))
    with pytest.raises(AssertionError, match="costs more"):
        CHECKS["a_mechanism_costs_no_more_than_its_limit"](Run(pmean))


def test_the_checks_find_a_limit_that_is_not_stated(pmean: ConformanceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(pmean)
    run.answer("fast")
    monkeypatch.setattr(PMean, "cost_limit", None)
    with pytest.raises(AssertionError, match="cost_limit does not say"):
        CHECKS["a_mechanism_costs_no_more_than_its_limit"](run)
    monkeypatch.delattr(PMean, "cost_limit")
    with pytest.raises(dm.errors.InputTypeError, match="PMean must define cost_limit"):
        run.answer("fast").mechanism  # noqa: B018


def test_a_family_has_no_proof_of_another(pmean: ConformanceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(pmean)
    with pytest.raises(dm.errors.InvalidInputError, match="no exact proof is known for a PMean"):
        dm.prove(run.answer("fast"))
    monkeypatch.setattr(OnGeometry, "in_numbers", lambda self: self._noise_in_numbers(1.0), raising=False)
    with pytest.raises(AssertionError, match="a PMean states the proof of a OnGeometry"):
        CHECKS["a_proof_is_of_its_own_family"](run)
    with pytest.raises(dm.errors.InvalidInputError, match="inherits in_numbers from OnGeometry"):
        dm.prove(run.answer("fast"))
