"""SM-II: derivatives against differences and dense matrices, the paper's three algorithms, and how they end."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck import compare
from dualmech.fast.softmax.published import Objective, ObjectivePoint, conjugate_gradient, line_search
from dualmech.validate import Array

quick = settings(max_examples=20)
STEP = 1e-5
"""Of central differences; their error is some STEP² of a third derivative, relative."""


@dataclass(frozen=True)
class Case:
    """F at a covariance, with a symmetric direction."""

    point: ObjectivePoint
    direction: Array

    @property
    def objective(self) -> Objective:
        return self.point.objective

    @property
    def t(self) -> tuple[float, float]:
        return self.objective.t1, self.objective.t2


def at_covariance(objective: Objective, covariance: Array) -> ObjectivePoint:
    point = objective.at(covariance)
    assert point is not None
    return point


def made(seed: int, k: int, s: int, m: int, t1: float, t2: float, w: float) -> Case:
    rng = np.random.default_rng(seed)
    extra = w * rng.uniform(0.5, 2, m)
    objective = Objective(rng.standard_normal((k, s)), rng.standard_normal((m, k)), t1, t2, extra)
    factor, direction = rng.standard_normal((2, k, k))
    point = at_covariance(objective, factor @ factor.T + np.eye(k))
    return Case(point, (direction + direction.T) / 2)


sharpness = st.sampled_from([0.2, 1.0, 4.0])
cases = st.builds(
    made,
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 6),
    sharpness,
    sharpness,
    st.sampled_from([0.0, 0.7]),
)


def differences(case: Case) -> tuple[float, Array]:
    """Central differences of F and of its gradient along the direction."""
    ahead, behind = (
        at_covariance(case.objective, case.point.covariance + side * STEP * case.direction) for side in (1, -1)
    )
    bend = (ahead.derivatives().gradient - behind.derivatives().gradient) / (2 * STEP)
    return (ahead.value - behind.value) / (2 * STEP), bend


def singles(case: Case) -> tuple[Array, list[Array], list[Array]]:
    """``Σ⁻¹`` and the gradients of each g_i and h_j (Equations 9 and 11)."""
    inverse = np.asarray(np.linalg.inv(case.point.covariance), dtype=np.float64)
    first: list[Array] = [-inverse @ np.outer(b, b) @ inverse for b in case.objective.moves.T]
    last: list[Array] = [np.outer(v, v) for v in case.objective.queries]
    return inverse, first, last


def dense_exact(case: Case) -> Array:
    """The Hessian on vectorised matrices, from the second derivative of a soft max."""
    inverse, first, last = singles(case)
    total = np.zeros((len(inverse) ** 2,) * 2)
    for t, gradients, shares in zip(
        case.t, (first, last), (case.point.neighbour_shares, case.point.query_shares), strict=True
    ):
        vectors = np.array([each.ravel() for each in gradients])
        mean = shares @ vectors
        total += t * ((vectors.T * shares) @ vectors - np.outer(mean, mean))
    for share, gradient in zip(case.point.neighbour_shares, first, strict=True):
        total -= share * (np.kron(gradient, inverse) + np.kron(inverse, gradient))
    return total


def dense_printed(case: Case) -> Array:
    """Equation 14, term by term, with Kronecker products."""
    inverse, first, last = singles(case)
    p, q = case.point.neighbour_shares, case.point.query_shares
    t1, t2 = case.t
    mean_first = np.einsum("i,ikl->kl", p, np.array(first))
    mean_last = np.einsum("j,jkl->kl", q, np.array(last))
    total = -t1 * np.kron(mean_first, mean_first) - t2 * np.kron(mean_last, mean_last)
    for share, gradient in zip(p, first, strict=True):
        second = -np.kron(gradient, inverse) - np.kron(inverse, gradient)
        total += t1 * share * (second + np.kron(gradient, gradient))
    for share, gradient in zip(q, last, strict=True):
        total += t2 * share * np.kron(gradient, gradient)
    return total


def close(one: Array, two: Array, tolerance: float) -> None:
    assert np.abs(one - two).max() <= tolerance * max(np.abs(two).max(), 1e-3)


class TestDerivatives:
    @quick
    @given(cases)
    def test_gradient_and_exact_product_against_differences(self, case: Case) -> None:
        slope, bend = differences(case)
        derivatives, shape = case.point.derivatives(), case.direction.shape
        assert float(np.vdot(derivatives.gradient, case.direction)) == pytest.approx(slope, rel=1e-5, abs=1e-6)
        close(derivatives.exact_product(case.direction), bend, 1e-4)
        exact = dense_exact(case)
        for product, dense in ((derivatives.exact_product, exact), (derivatives.printed_product, dense_printed(case))):
            close(product(case.direction), (dense @ case.direction.ravel()).reshape(shape), 1e-10)
        values = np.linalg.eigvalsh(exact)
        assert values[0] >= -1e-12 * values[-1], "Problem 4 is convex (Theorem 13)"

    @quick
    @given(cases)
    def test_hybrid_adds_the_gram_matrix_of_the_queries(self, case: Case) -> None:
        plain = Objective(case.objective.moves, case.objective.queries, *case.t, 0 * case.objective.extra)
        bare = at_covariance(plain, case.point.covariance)
        added = case.point.derivatives().gradient - bare.derivatives().gradient
        close(added, (case.objective.queries.T * case.objective.extra) @ case.objective.queries, 1e-12)

    @pytest.mark.parametrize(("t", "least", "most"), [(1, 0.05, 0.5), (8, 0.4, 7.1)])
    def test_equation_14_is_not_the_derivative_of_equation_13(self, t: float, least: float, most: float) -> None:
        """At t = 1 only the products of the means differ; at t = 8 the second derivatives are 8 - 1 times too many."""
        errors = []
        for seed in range(10):
            case = made(seed, 4, 5, 6, t, t, 0.0)
            bend = differences(case)[1]
            off = np.linalg.norm(case.point.derivatives().printed_product(case.direction) - bend)
            errors.append(off / np.linalg.norm(bend))
        assert least <= min(errors) and 0.9 * most <= max(errors) <= most

    def test_equation_14_can_be_indefinite(self) -> None:
        entries = np.eye(16).reshape(4, 4, 4, 4)
        units = np.array([entries[a, b] + entries[b, a] for a in range(4) for b in range(a, 4)])
        symmetric = units.reshape(-1, 16) / np.linalg.norm(units, axis=(1, 2))[:, None]
        for seed in (0, 4, 5):
            case = made(seed, 4, 5, 6, 1, 1, 0.0)
            exact, printed = (
                np.linalg.eigvalsh(symmetric @ dense(case) @ symmetric.T) for dense in (dense_exact, dense_printed)
            )
            assert exact[0] > 0 > -5e-4 * printed[-1] > printed[0], seed

    def test_equation_14_is_t_times_too_stiff_where_the_objective_is_flat(self) -> None:
        """At the optimum on prefix 8 its least eigenvalue is near t times the right one: steps are t times short."""
        best = fast.solve(prefix(8))
        for t in (8, 64):
            objective = Objective(np.eye(8), dm.workloads.prefix(8).dense(), t, t, np.zeros(8))
            case = Case(at_covariance(objective, best.primal * best.objective**0.5), np.eye(8))
            exact, printed = (np.linalg.eigvalsh(dense(case))[0] for dense in (dense_exact, dense_printed))
            assert 0.7 * t <= printed / exact <= t

    def test_single_terms_need_no_correction(self) -> None:
        """A gradient of rank one acts alike as a vector and as a Kronecker product; only the means do not."""
        for gradient in singles(made(0, 3, 4, 4, 1, 1, 0))[1]:
            kronecker: Array = np.asarray(np.kron(gradient, gradient), dtype=np.float64)
            close(kronecker, np.outer(gradient.ravel(), gradient.ravel()), 1e-12)


class TestAlgorithm2:
    def test_enough_steps_give_newtons_direction(self) -> None:
        case = made(3, 4, 6, 6, 4, 4, 0.5)
        derivatives = case.point.derivatives()
        step = conjugate_gradient(derivatives.exact_product, derivatives.gradient, 100, 1e-24)
        # On symmetric matrices the dense Hessian has an inverse of its own.
        expected: Array = -np.linalg.pinv(dense_exact(case)) @ derivatives.gradient.ravel()
        close(step.ravel(), expected, 1e-7)

    def test_few_steps_lead_downhill(self) -> None:
        for seed, most in itertools.product(range(5), (1, 2, 5)):
            derivatives = made(seed, 4, 6, 6, 4, 4, 0.5).point.derivatives()
            step = conjugate_gradient(derivatives.exact_product, derivatives.gradient, most, 1e-10)
            assert np.vdot(step, derivatives.gradient) < 0
            np.testing.assert_array_equal(step, step.T)

    def test_a_curvature_of_zero_ends_it(self) -> None:
        gradient = np.diag([1.0, -2.0])
        assert not conjugate_gradient(lambda matrix: 0 * matrix, gradient, 5, 1e-10).any()


class TestAlgorithm3:
    def test_takes_the_first_length_that_gains_enough(self) -> None:
        case = made(1, 4, 6, 6, 4, 4, 0.0)
        step = -100 * case.point.derivatives().gradient
        slope = float(np.vdot(step, case.point.derivatives().gradient))
        found = line_search(case.point, step, slope)
        assert found is not None
        length = float(np.vdot(found.covariance - case.point.covariance, step) / np.vdot(step, step))
        assert math.log2(length) == pytest.approx(round(math.log2(length)), abs=1e-9) and length < 1
        assert found.value <= case.point.value + 0.01 * length * slope
        longer = case.objective.at(case.point.covariance + 2 * length * step)
        assert longer is None or longer.value > case.point.value + 0.01 * 2 * length * slope

    def test_ends_where_the_printed_loop_would_not(self) -> None:
        """Uphill there is no length that gains."""
        case = made(1, 4, 6, 6, 4, 4, 0.0)
        uphill = case.point.derivatives().gradient
        assert line_search(case.point, uphill, -float(np.vdot(uphill, uphill))) is None


def run(problem: Any, most: int = 5000, tol: float = 1e-6, method: Any = fast.SoftmaxNewton, **options: Any) -> Any:
    return fast.solve(problem, tol=tol, method=method(**options), max_iterations=most)


def prefix(d: int, **options: Any) -> dm.FitnessForUse:
    return dm.FitnessForUse(dm.workloads.prefix(d), 1.0, **options)


class TestSection63:
    """The start: noise of ``σ² B Q⁺(B Q⁺)'`` on B x, 0.99 of what the tightest target allows."""

    @pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
    def test_is_the_mechanism_that_q_names(self) -> None:
        lower = np.tril(np.ones((6, 6)))
        for basis, strategy in ((None, None), (None, lower), (lower.T, None), (lower.T, np.eye(6)[::-1] * 3)):
            problem = dm.FitnessForUse(dm.workloads.prefix(6), np.linspace(1, 3, 6), basis=basis)
            # The very first answer, scaled to its targets: what is left of it is its shape.
            answer = run(problem, most=1, strategy=strategy, newton_tolerance=1e9, path_tolerance=1e9)
            cells = np.linalg.pinv(np.eye(6) if strategy is None else strategy)
            noise = problem.basis @ cells @ cells.T @ problem.basis.T
            np.testing.assert_allclose(answer.primal, problem.feasible(noise), rtol=1e-10, atol=1e-12)
            assert answer.iterations == 1

    def test_a_strategy_that_cannot_answer(self) -> None:
        for strategy, what in ((np.eye(5), "columns"), (np.ones((1, 6)), "span"), (np.full((6, 6), np.nan), "finite")):
            with pytest.raises(dm.errors.InvalidInputError, match=f"strategy must .*{what}"):
                run(prefix(6), strategy=strategy)


@pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
class TestTable2:
    """How far SM-II gets on the sizes of Table 2; what stops it is its own rule, (s + m)/t < TOL = 1e-3."""

    @pytest.mark.parametrize(("d", "gap"), [(2, 1.0e-4), (4, 9.5e-5), (8, 7.5e-5)])
    def test_right_hessian_and_enough_conjugate_gradients(self, d: int, gap: float) -> None:
        answer = run(prefix(d), conjugate_gradients=50)
        assert answer.gap <= gap
        assert answer.status is dm.Status.STALLED and "own rule" in answer.message
        assert compare([answer, fast.solve(prefix(d))]).outcome.name == "WIDE"
        tighter = run(prefix(d), conjugate_gradients=50, path_tolerance=1e-5, newton_tolerance=1e-6)
        assert tighter.status is dm.Status.CERTIFIED and tighter.gap <= 1e-6

    @pytest.mark.parametrize("d", [2, 4, 8])
    def test_the_papers_five_conjugate_gradients(self, d: int) -> None:
        """With the printed Hessian they stop higher."""
        exact, printed = (run(prefix(d), hessian=hessian) for hessian in ("exact", "printed"))
        assert exact.objective < printed.objective and exact.gap < printed.gap
        if d == 8:
            assert 1e-4 <= exact.gap <= 1e-3 and 1e-4 <= printed.gap <= 2e-3

    def test_gradient_descent_is_worse(self) -> None:
        newton, descent = (run(prefix(4), most=400, method=each) for each in (fast.SoftmaxNewton, fast.SoftmaxGradient))
        assert newton.iterations < descent.iterations == 400
        assert descent.status is dm.Status.STEPS_EXHAUSTED and newton.gap < descent.gap
        assert descent.solver == "fast:softmax_gradient"


@pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
class TestAnswers:
    def test_status_and_message_are_honest(self) -> None:
        assert run(prefix(4), tol=1e-3).status is dm.Status.CERTIFIED
        assert run(prefix(4), most=3).status is dm.Status.STEPS_EXHAUSTED
        answer = run(prefix(4))
        assert answer.status is dm.Status.STALLED and "proves no bound" in answer.message
        again = answer.problem.certify(answer.primal, answer.dual)  # on other threads than the solver's, perhaps
        assert again.interval == pytest.approx(answer.certificate.interval, rel=1e-12)
        assert answer.certificate.feasible and answer.mechanism.variances(answer.problem.workload).max() <= 1 + 1e-9
        assert answer.prices.sum() == pytest.approx(1)
        again = run(prefix(4))
        np.testing.assert_array_equal(answer.primal, again.primal)
        assert answer.iterations == again.iterations

    def test_news_come_where_a_sub_problem_ends(self) -> None:
        news: list[dm.Progress] = []
        answer = fast.solve(prefix(4), method="softmax_newton", callback=news.append, tol=1e-3)
        assert tuple(news) == answer.history
        # From t = 1 by factors of 2 to the first t above 8 / 1e-3.
        assert len(news) == 1 + math.ceil(math.log2(8 / 1e-3))
        assert news[-1].gap == pytest.approx(answer.gap, rel=1e-6)

    def test_a_basis_that_suits_the_queries_saves_steps(self) -> None:
        """Conjugate gradients see the basis: on the prefixes as basis the queries are the unit vectors."""
        cells, queries = prefix(16), prefix(16, basis=dm.workloads.prefix(16).dense())
        one, two = run(cells), run(queries)
        assert two.gap < one.gap and two.iterations < one.iterations / 2

    @pytest.mark.parametrize(
        "problem",
        [
            prefix(6, neighbours=dm.neighbours.replace_one(6)),
            dm.FitnessForUse(
                dm.workloads.identity_total(5), np.arange(1.0, 7), neighbours=dm.neighbours.replace_one(5)
            ),
            dm.FitnessForUse(dm.Workload([[1, 0, 2, 1], [0, 0, 0, 0], [1, 0, -1, 1.0]]), [1.0, 1e-3, 3.0]),
            dm.FitnessForUse(dm.workloads.random_range(6, 20, rng=0), np.linspace(1, 9, 20)),
            dm.PrivacyFirst(dm.workloads.prefix(6), 1.0, cost=0.25),
        ],
        ids=["replaced", "total released", "rank-deficient", "ranges", "privacy first"],
    )
    def test_other_problems(self, problem: Any) -> None:
        answer = run(problem, tol=1e-3, conjugate_gradients=50)
        assert answer.status is dm.Status.CERTIFIED
        assert not answer.dual.query_weights[problem.geometry.free_queries].any()
        low, high = fast.solve(problem).certificate.interval
        assert answer.lower_bound <= high and low <= answer.objective

    @pytest.mark.parametrize("method", [fast.SoftmaxNewton, fast.SoftmaxGradient])
    def test_ends_whatever_the_units(self, method: Any) -> None:
        """The paper's tolerances are absolute: units decide what it reaches, but it ends and the judge says where."""
        for target, hessian in ((1e-12, "exact"), (1e-6, "printed"), (1e6, "exact"), (1e12, "printed")):
            problem = dm.FitnessForUse(dm.workloads.prefix(4), target)
            answer = run(problem, most=150, hessian=hessian, method=method)
            assert answer.certificate.feasible and 0 < answer.gap < np.inf, (target, hessian)

    def test_a_basis_too_ill_conditioned_to_begin_with(self) -> None:
        """Rounding decides for each basis: where Σ is not positive definite it is said, else the end is honest."""
        refused = 0
        for seed in range(8):
            sides = np.linalg.qr(np.random.default_rng(seed).standard_normal((4, 4)))[0]
            basis = sides * 10.0 ** -np.linspace(0, 10, 4) @ sides.T
            try:
                answer = run(prefix(4, basis=basis), most=5)
            except dm.errors.InvalidInputError as error:
                assert "basis and strategy must be well conditioned" in str(error)
                refused += 1
            else:
                assert answer.certificate.certifies(1e-6) is (answer.status is dm.Status.CERTIFIED)
        assert refused

    @pytest.mark.parametrize(
        ("matrix", "hessian"), [([[1, 0], [1e8, 1e-8]], "exact"), (np.vander(np.linspace(0.1, 1, 9)), "printed")]
    )
    def test_ill_conditioned_workloads(self, matrix: Any, hessian: str) -> None:
        answer = run(dm.FitnessForUse(dm.Workload(matrix), 1.0), most=150, hessian=hessian, sharpness=1e-3)
        assert answer.certificate.certifies(1e-6) is (answer.status is dm.Status.CERTIFIED)


class TestOptions:
    def test_out_of_range(self) -> None:
        for name, values in {
            "conjugate_gradients": (0, 2.5),
            "residual": (0,),
            "decrease": (1.0,),
            "shrink": (0.0,),
            "growth": (1.0, np.nan),
            "sharpness": (-1,),
            "path_tolerance": (0,),
            "newton_tolerance": ("small",),
            "hessian": ("none",),
            "strategy": ([1, 2],),
        }.items():
            for value in values:
                with pytest.raises(dm.errors.DualmechError, match=name):
                    fast.SoftmaxNewton(**{name: value})  # type: ignore[arg-type]

    def test_belong_to_their_methods(self) -> None:
        with pytest.raises(dm.errors.InputTypeError, match="'growth'.* option of a method: fast.SoftmaxNewton or"):
            fast.solve(prefix(3), growth=2)  # type: ignore[call-arg]
        with pytest.raises(dm.errors.InputTypeError, match="'softmax_newton' is for FitnessForUse, .*got a TotalVar"):
            fast.solve(dm.TotalVariance(dm.workloads.prefix(3)), method=fast.SoftmaxNewton())
        with pytest.raises(dm.errors.InvalidInputError, match="method must be one of .*softmax_newton"):
            fast.solve(prefix(3), method="softmax")
        with pytest.raises(dm.errors.InvalidInputError, match="start"):
            fast.solve(prefix(3), method="softmax_newton", start=fast.solve(prefix(3)))

    def test_time_is_limited(self) -> None:
        with pytest.warns(dm.errors.UncertifiedWarning, match="softmax_newton"):
            answer = fast.solve(prefix(16), method="softmax_newton", time_limit=1e-9)
        assert answer.iterations == 1 and answer.status is dm.Status.STEPS_EXHAUSTED


class TestProblem4:
    """The paper's algorithms on the smooth problem itself, at the sharpness that is asked."""

    @pytest.mark.parametrize(("t", "weight"), [((0.5, 0.5), 0.3), ((8.0, 20.0), 0.0)])
    def test_ends_at_the_minimiser(self, t: tuple[float, float], weight: float) -> None:
        problem = dm.SoftmaxFitness(dm.workloads.prefix(5), [1, 2, 1, 3, 1], *t, total_weight=weight)
        method = fast.SoftmaxNewton(conjugate_gradients=60, newton_tolerance=1e-9)
        answer = fast.solve(problem, tol=1e-4, method=method)
        assert answer.status is dm.Status.CERTIFIED
        assert compare([answer, fast.solve(problem, tol=1e-9)]).outcome.name == "AGREE"
        last = answer.history[-1]
        assert last.objective == pytest.approx(answer.objective) and last.gap == pytest.approx(answer.gap, abs=1e-9)

    def test_gradient_descent_and_neighbours_who_leave_a_direction_alone(self) -> None:
        replaced = dm.SoftmaxFitness(dm.workloads.identity(4), 1.0, 4.0, 4.0, neighbours=dm.neighbours.replace_one(4))
        problem = dm.SoftmaxFitness(dm.workloads.prefix(3), 1.0, 2.0, 2.0)
        for each, method in ((problem, "softmax_gradient"), (replaced, "softmax_newton")):
            assert fast.solve(each, tol=1e-3, method=method).status is dm.Status.CERTIFIED

    def test_they_take_no_start(self) -> None:
        problem = dm.SoftmaxFitness(dm.workloads.prefix(3), 1.0, 2.0, 2.0)
        with pytest.raises(dm.errors.InvalidInputError, match="start is not supported for method 'softmax_newton'"):
            fast.solve(problem, method="softmax_newton", start=fast.solve(problem))


class TestPublishedCode:
    """Settings that bring back what the published code prints: Table 10 was run with B = I, of too high a rank."""

    @pytest.mark.parametrize(("t", "implied"), [(2, (2.1923, 2.1995)), (4, (3.5162, 3.5196))])
    def test_it_ends_at_the_cost_that_the_printed_ratios_imply(self, t: int, implied: tuple[float, float]) -> None:
        workload, cells = dm.workloads.marginals((t,) * 3, ways=(1, 2)), np.eye(t**3)
        method = fast.SoftmaxNewton.of_published_code(cells)
        problem = dm.FitnessForUse(workload, basis=cells)
        answer = fast.solve(problem, tol=0.1, method=method)
        # Hundreds of steps, each rounded: at t = 4 kernels of linear algebra end between 3.5148 and 3.5173.
        assert implied[0] * 0.999 <= answer.objective <= implied[1] * 1.001
        best = fast.solve(dm.FitnessForUse(workload), tol=1e-9)
        assert answer.objective / best.lower_bound - 1 > 0.004, "no rounding explains that it stops here"
        on_rows = fast.solve(
            dm.FitnessForUse(workload, geometry="dense"), tol=0.1, method=fast.SoftmaxNewton(hessian="printed"),
        )  # fmt: skip
        assert on_rows.objective / best.lower_bound - 1 < 2e-4, "a basis as small as the rank is all it takes"

    def test_a_run_that_is_stopped_says_so(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(8))
        with pytest.warns(dm.errors.UncertifiedWarning):
            answer = fast.solve(problem, method="softmax_newton", max_iterations=3)
        assert answer.status is dm.Status.STEPS_EXHAUSTED and "it was stopped after 3 steps" in answer.message
