"""The judge of fitness for use: what lies is never certified, and bad input is refused by its name."""

import itertools
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from intervals import contains

import dualmech as dm
from dualmech import fast
from dualmech.fast.engine import ascent
from dualmech.geometry.dense import Dense
from dualmech.validate import Array

TOL = 1e-6


Judged = dm.FitnessForUse | dm.PrivacyFirst | dm.TotalVariance


PREFIX, RANGES = dm.workloads.prefix(8), dm.workloads.random_range(6, 9, rng=1)
DEFICIENT, REPLACED = dm.workloads.related(6, 7, rank=3, rng=2), dm.neighbours.replace_one(5)
PROBLEMS: dict[str, Judged] = {
    "prefix": dm.FitnessForUse(PREFIX, 1.0),
    "ranges": dm.FitnessForUse(RANGES, np.linspace(1, 4, 9)),
    "deficient": dm.FitnessForUse(DEFICIENT, 2.0),
    "replace": dm.FitnessForUse(dm.workloads.prefix(5), 1.0, neighbours=REPLACED),
    "privacy": dm.PrivacyFirst(PREFIX, 1.0, cost=3.0),
    "variance": dm.TotalVariance(RANGES, np.linspace(1, 4, 9)),
    "variance, deficient": dm.TotalVariance(DEFICIENT, 2.0),
    "variance, weights with zeros": dm.TotalVariance(RANGES, [1, 0, 2, 0, 0, 1, 1, 3, 1]),
    "variance, replace": dm.TotalVariance(dm.workloads.prefix(5), neighbours=REPLACED),
}


@pytest.fixture(scope="module", params=PROBLEMS)
def answer(request: pytest.FixtureRequest) -> dm.Solution:
    solved = fast.solve(PROBLEMS[request.param], tol=TOL)
    assert solved.status is dm.Status.CERTIFIED
    return solved


def worst_way(problem: Judged) -> float:
    """Return the factor that a covariance must not be multiplied by: up for accuracy, down for privacy."""
    return 2.0 if isinstance(problem, dm.FitnessForUse) else 0.5


def parts_of(answer: dm.Solution) -> list[Array]:
    return [getattr(answer.dual, name) for name in answer.dual.__dataclass_fields__]


COVARIANCES: dict[str, Callable[[dm.Solution], Array]] = {
    "scaled a little out of bounds": lambda a: a.primal * worst_way(a.problem) ** 1e-5,
    "slightly indefinite": lambda a: a.primal - 1e-6 * np.trace(a.primal) * np.eye(len(a.primal)),
    "slightly asymmetric": lambda a: a.primal + 1e-5 * np.abs(a.primal).max() * np.triu(np.ones_like(a.primal), 1),
    "rank one": lambda a: np.outer(a.primal[0], a.primal[0]) / a.primal[0, 0],
    "off the diagonal alone": lambda a: a.primal - np.diag(np.diag(a.primal)),
    "its inverse": lambda a: a.problem.feasible(np.linalg.pinv(a.primal)),
    "no correlation": lambda a: a.problem.feasible(np.diag(np.diag(a.primal))),
    "overflow": lambda a: a.primal * 1e308 * 1e10,
    "underflow": lambda a: a.primal * 1e-320,
    "huge asymmetry": lambda a: a.primal + 1.5e308 * (np.triu(np.ones_like(a.primal), 1) * 2 - 1),
}
"""Beyond those of the conformance suite."""


class TestLyingSolvers:
    def test_a_false_covariance_is_never_certified(self, answer: dm.Solution) -> None:
        for lie, spoil in COVARIANCES.items():
            with np.errstate(all="ignore"):
                covariance = spoil(answer)
            judged = answer.problem.certify(covariance, answer.dual)
            assert not judged.certifies(0.5 * TOL) and judged.gap > TOL, lie
            assert judged.lower_bound == answer.lower_bound, lie
            assert not judged.feasible or judged.objective >= answer.lower_bound, lie
            assert lie != "slightly asymmetric" or judged.objective == np.inf

    def test_a_false_bound_is_an_error_and_weights_that_prove_nothing_have_no_prices(
        self, answer: dm.Solution, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nothing = type(answer.dual)(*(0 * part for part in parts_of(answer)))
        assert not np.any(np.isfinite(answer.problem.prices(nothing)) & (answer.problem.prices(nothing) != 0))
        for name in ("bound", "total_bound"):
            monkeypatch.setattr(Dense, name, lambda *given: (1e6, 1e-15))
        with pytest.raises(dm.errors.CertificateError, match="below the proven bound"):
            answer.problem.certify(answer.primal, answer.dual)


class TestNearSingularCovariances:
    """What rounding could hide: each cost is compared with one computed in 80 digits."""

    @staticmethod
    def exact_cost(covariance: Array, moves: Array) -> float:
        """Return the largest ``b' Σ⁻¹ b``, infinite where Σ is not positive definite."""
        with mpmath.workdps(80):
            matrix = mpmath.matrix(covariance.tolist())
            try:
                mpmath.cholesky(matrix)
            except ValueError:
                return np.inf
            columns = [mpmath.matrix(move.tolist()) for move in moves.T]
            return float(max((b.T * mpmath.lu_solve(matrix, b))[0] for b in columns))

    def test_cost_is_right_within_its_resolution(self) -> None:
        for seed in range(40):
            rng = np.random.default_rng(seed)
            size = int(rng.integers(2, 6))
            basis = np.linalg.qr(rng.standard_normal((size, size)))[0]
            covariance = basis * 10.0 ** -rng.uniform(0, 14, size) @ basis.T
            units = 10.0 ** rng.uniform(-8, 8, size)
            covariance = (covariance + covariance.T) / 2 * units * units[:, None]
            matrix = rng.standard_normal((size, size)) * units[:, None]
            problem = dm.FitnessForUse(dm.Workload(matrix), 1.0, basis=matrix)
            judged = problem.certify(problem.feasible(covariance), (np.ones(size), np.ones(size)))
            exact = self.exact_cost(problem.feasible(covariance), matrix)
            if np.isfinite(exact) and np.isfinite(judged.objective):
                assert abs(judged.objective - exact) <= 2 * judged.resolution * exact, seed
            elif np.isfinite(judged.objective):  # indefinite by less than rounding
                assert judged.resolution > 1e-3, seed

    def test_noise_that_a_released_total_gives_away(self) -> None:
        # The total is released with variance D, almost exactly, but its error is correlated with the others'.
        moves = dm.neighbours.replace_one(3)
        basis = np.array([[1.0, 0, 0], [0, 1.0, 0], [1.0, 1, 1]])
        problem = dm.FitnessForUse(dm.workloads.identity_total(3), [1, 1, 1, 1e-3], basis=basis, neighbours=moves)
        answer = fast.solve(problem, tol=1e-9)
        block = answer.primal[:2, :2]
        half = np.linalg.cholesky(block)
        for exponent, correlation in itertools.product(range(0, 42, 3), (0.99, 1 - 1e-9, 1.0)):
            d = 10.0**-exponent * 1e-3
            cross = correlation * np.sqrt(d) * half @ [0.6, 0.8]
            cheat = np.block([[block, cross[:, None]], [cross, d]])
            judged = problem.certify(cheat, answer.dual)
            assert judged.objective >= answer.lower_bound * (1 - 1e-12)
            if correlation == 1.0 and np.abs(cross).max() < 1e-11:
                continue  # what is given away is below rounding
            exact = self.exact_cost(cheat, basis @ moves)
            assert exact >= 10 * answer.objective
            assert judged.objective >= min(exact, 1e300) * (1 - 1e-6), (exponent, correlation, judged)
            assert not judged.certifies(1.0), (exponent, correlation)

    def test_an_exact_answer_has_no_price_in_any_unit(self) -> None:
        # The difference of two cells is released exactly, which nothing can pay for; the optimum is 2.
        for unit in (1.0, 1e-3, 1e-6, 1e-9, 1e-13, 1e-20, 1e9, 1e13):
            matrix = np.array([[1.0, 1.0], [unit, -unit]])
            problem = dm.FitnessForUse(dm.Workload(matrix), [1, unit**2], basis=matrix)
            judged = problem.certify(np.diag([1.0, 0.0]), ([0.5, 0.5], [1.0, 0.0]))
            assert judged.interval[1] >= 2 - 1e-9 and not judged.certifies(0.99), unit

    def test_a_total_in_any_unit_gives_nothing_away(self) -> None:
        # Cell 1 is answered without noise, since the total's noise cancels cell 0's. The optimum is 1e6.
        workload, moves = dm.Workload([[0, 1], [1, 1]]), dm.neighbours.replace_one(2)
        for unit in (1.0, 1e-3, 1e-6, 1e-9, 1e-13, 1e-20):
            basis = np.array([[1.0, 0.0], [unit, unit]])
            problem = dm.FitnessForUse(workload, [1e-6, 1], basis=basis, neighbours=moves)
            judged = problem.certify([[1, unit], [unit, unit**2]], ([1.0], [1e-3, 1.0]))
            assert judged.lower_bound == pytest.approx(1e-3), unit
            assert judged.interval[1] >= 1e6 * (1 - 1e-9) and not judged.certifies(1e6), unit

    def test_noise_below_rounding_buys_nothing(self) -> None:
        # Cell 0 on top of a multiple of the total needs variance 0.01: the optimum is 100. The total has no noise,
        # yet a covariance with cell 0, so that the matrix is indefinite by less than rounding shows.
        bases = {False: np.array([[1.0, 0.0], [1.0, 1.0]]), True: np.eye(2)}
        changes = {False: np.eye(2), True: np.array([[1.0, 0.0], [-1.0, 1.0]])}
        for size, leak, cells in itertools.product((1.0, 1e3, 1e6), (0.0, 1e-16, 1e-14, 1e-13), (False, True)):
            covariance = changes[cells] @ [[0.01, -leak], [-leak, 0.0]] @ changes[cells].T
            workload = dm.Workload([[size + 1, size], [1, 1]])
            problem = dm.FitnessForUse(workload, [0.01, 1], bases[cells], dm.neighbours.replace_one(2))
            judged = problem.certify(problem.feasible(covariance), ([1.0], [50.0, 0.5]))
            assert judged.lower_bound == pytest.approx(50), (size, leak, cells)
            assert judged.interval[1] * (1 + judged.resolution) >= 100 * (1 - 1e-13), (size, leak, cells)


class TestReleasedExactly:
    """Under replacement the total is no secret: it costs nothing and is answered without noise."""

    def test_two_cells_by_hand(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.identity_total(2), 1.0, neighbours=dm.neighbours.replace_one(2))
        np.testing.assert_array_equal(problem.geometry.free_queries, [2])
        np.testing.assert_allclose(np.abs(problem.geometry.unmoved), [[0.5**0.5] * 2])
        dual = [1.0], [0.5, 0.5, 0.0]
        judged = problem.certify([[1, -1], [-1, 1]], dual)
        assert judged.objective == pytest.approx(1, rel=1e-13) and judged.certifies(1e-12)
        noisy = problem.certify([[1, -0.5], [-0.5, 1]], dual)
        assert noisy.gap == pytest.approx(1 / 3, rel=1e-12)  # the cells need more noise when the total has some
        for total in (-1e-3, -1.0):  # noise of negative variance is none
            assert problem.certify(np.array([[1, -1], [-1, 1]]) + total / 4, dual).objective == np.inf

    def test_solver_releases_the_total_whatever_its_target(self) -> None:
        for d, target in ((2, 1e-9), (3, 1.0), (8, 1e-9)):
            targets = np.append(np.ones(d - 1), target)
            problem = dm.FitnessForUse(dm.workloads.prefix(d), targets, neighbours=dm.neighbours.replace_one(d))
            answer = fast.solve(problem, tol=1e-8)
            np.testing.assert_array_equal(problem.geometry.free_queries, [d - 1])
            assert answer.status is dm.Status.CERTIFIED
            assert answer.prices[-1] == 0 == answer.dual.query_weights[-1]
            assert answer.mechanism.variances(problem.workload)[-1] <= 1e-12
            alone = dm.FitnessForUse(problem.workload.select(range(d - 1)), 1.0, neighbours=problem.neighbours)
            assert fast.solve(alone, tol=1e-8).objective == pytest.approx(answer.objective, rel=2e-8)

    @pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
    def test_a_secret_on_top_of_a_large_total(self) -> None:
        """It is not taken for none, and is not certified where doubles do not tell it from none."""
        bases: tuple[Any, ...] = (None, [[1, 0], [1, 1]], [[1, 0], [0, 1]])
        for size, basis in itertools.product((1.0, 1e2, 1e3, 1e8, 1e10), bases):
            workload = dm.Workload([[size + 1, size], [1, 1]])
            if size > 1e3 and basis is not None:
                continue
            problem = dm.FitnessForUse(workload, [0.01, 1.0], basis, dm.neighbours.replace_one(2))
            np.testing.assert_array_equal(problem.geometry.free_queries, [1])
            answer = fast.solve(problem)
            if size <= 1e3:
                assert answer.objective == pytest.approx(100, rel=1e-6)
            assert answer.status is not dm.Status.CERTIFIED or contains(answer.certificate, 100, 1e-12)


def nearly_dependent(rng: np.random.Generator) -> Array:
    """Draw queries that nearly all ask the same, on few cells."""
    size, copies = int(rng.integers(2, 6)), int(rng.integers(1, 4))
    base = np.ones(size) + 10.0 ** rng.uniform(-10, -5) * rng.standard_normal(size)
    spread = np.eye(copies) - 1 / copies + 10.0 ** rng.uniform(-4, 0) if copies > 1 else np.ones((1, 1))
    return np.kron(spread, np.array([np.roll(base, shift) for shift in range(size)]))


@pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
def test_both_sides_of_nearly_dependent_queries_are_never_said_to_contradict_each_other() -> None:
    """What lies between a workload and its factors over an orthonormal basis is part of the allowance."""
    rng = np.random.default_rng(11)
    for _ in range(60):
        workload, target = dm.Workload(nearly_dependent(rng)), 10.0 ** rng.uniform(-3, 3)
        fast.solve(dm.TotalVariance(workload, target))
        fast.solve(dm.FitnessForUse(workload, target))


@pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
def test_privacy_is_stated_on_the_safe_side_of_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascent, "TIGHTENING_FACTORS", ())  # the solver would take back the noise that nothing limits
    base = np.ones(6)
    base[0] += 1e-12
    answer = fast.solve(dm.FitnessForUse(dm.Workload([np.roll(base, shift) for shift in range(6)]), 1.0))
    assert answer.certificate.resolution > 1e-3
    assert answer.mechanism.squared_privacy_cost >= answer.lower_bound


def test_a_user_who_misses_the_span_a_little_is_told_so() -> None:
    queries = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    exact, near = (
        dm.FitnessForUse(dm.Workload(queries), 1.0, basis=queries + error)
        for error in (0.0, 1e-11 * np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]))
    )
    answer = fast.solve(exact, tol=1e-7)
    assert exact.certify(answer.primal, answer.dual).resolution < 1e-13
    assert near.certify(answer.primal, answer.dual).resolution > 1e-12
