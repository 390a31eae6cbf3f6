"""Running sums: diagonals of inverse square roots, both layers and the dense judge, noise without a matrix."""

import itertools
import pickle
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from commanded import run
from hypothesis import given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, reference
from dualmech.fast.engine import loop
from dualmech.fast.reductions import stream as reduced
from dualmech.fast.reductions.stream import MAX_HESSIAN_ERROR, Groups, StreamProgram
from dualmech.geometry.tridiagonal import Bidiagonal, Poles, inverse_root_diagonals, poles_of

FAMILIES: list[Any] = [dm.FitnessForUse, dm.TotalVariance]


class TestPoles:
    @given(st.floats(0, 60), st.floats(-30, 30), st.sampled_from([1e-3, 1e-6, 1e-13]))
    def test_the_bound_on_the_error_holds_and_is_tight(self, spread: float, size: float, tol: float) -> None:
        low, high = 10.0**size, 10.0 ** (size + spread)
        poles = Poles.of(low, high, tol)
        values = np.geomspace(low, high, 400)
        found = (poles.factors / (values[:, None] + poles.places)).sum(axis=1) * np.sqrt(values)
        error = np.abs(found - 1).max()
        assert error <= poles.error <= max(tol, 1e-13)
        if poles.error > 1e-9 and spread > 2:
            assert error > 0.5 * poles.error

    def test_places_are_accurate(self) -> None:
        """They are those of Jacobi's function in many digits, although the modulus is next to 1."""
        low, high = 1.0, 1e16
        poles = Poles.of(low, high, 1e-8)
        with mpmath.workdps(60):
            modulus = 1 - mpmath.mpf(low) / mpmath.mpf(high)
            period = mpmath.ellipk(modulus)
            for index, place in enumerate(np.sort(poles.places)):
                u = (index + mpmath.mpf(1) / 2) * period / len(poles.places)
                root = mpmath.ellipfun("sc", u, m=modulus)
                assert abs(place / float(low * root**2) - 1) < 1e-13


class TestDiagonals:
    @pytest.mark.parametrize(
        ("count", "decay"), [(1, 1.0), (2, 0.9), (3, 1.0), (7, 1e-3), (64, 1.0), (64, 1e-3), (257, 0.9)]
    )
    def test_they_are_those_of_the_matrix(self, count: int, decay: float) -> None:
        rng = np.random.default_rng(count)
        cells, sums = rng.dirichlet(np.ones(count)), rng.dirichlet(np.ones(count))
        matrix = Bidiagonal.of(cells, sums, decay)
        poles = poles_of(matrix, cells, sums, decay, 1e-13)
        rows = np.sqrt(sums)[:, None] * dm.workloads.decayed_sums(count, decay).matrix * np.sqrt(cells)
        left, sizes, right = np.linalg.svd(rows)
        found = inverse_root_diagonals(matrix, poles)
        for mine, true in zip(found, (sizes @ right**2, left**2 @ sizes), strict=True):
            np.testing.assert_allclose(mine, true, rtol=1e-11)
        alone, none = inverse_root_diagonals(matrix, poles, both=False)
        np.testing.assert_array_equal(alone, found[0])
        assert not len(none)

    def test_small_eigenvalues_keep_their_digits(self) -> None:
        """Weights of 52 orders of magnitude: the entries against 120 digits."""
        cells, sums = np.logspace(0, -26, 6), np.logspace(-26, 0, 6)
        matrix = Bidiagonal.of(cells, sums, 1.0)
        found = inverse_root_diagonals(matrix, poles_of(matrix, cells, sums, 1.0, 1e-13))
        with mpmath.workdps(120):
            rows = mpmath.matrix(6, 6)
            for j in range(6):
                for i in range(j + 1):
                    rows[j, i] = mpmath.sqrt(mpmath.mpf(sums[j]) * mpmath.mpf(cells[i]))
            for mine, gram in zip(found, (rows.T * rows, rows * rows.T), strict=True):
                values, vectors = mpmath.eigsy(gram)
                true = [float(sum(vectors[i, k] ** 2 * mpmath.sqrt(values[k]) for k in range(6))) for i in range(6)]
                np.testing.assert_allclose(mine, true, rtol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("decay", [1.0, 0.95])
class TestAgreement:
    @pytest.mark.parametrize("count", [1, 33])
    def test_with_the_dense_judge(self, family: Any, decay: float, count: int) -> None:
        asked, numbers = dm.workloads.decayed_sums(count, decay), np.linspace(1, 3, count)
        problems = [family(asked, numbers, geometry=name) for name in ("stream", "dense")]
        assert problems[0].same_as(problems[1])
        answers = [fast.solve(each, tol=1e-6) for each in problems]
        (low, high), (least, most) = (each.certificate.interval for each in answers)
        assert low <= most and least <= high
        point = answers[0].primal
        covariance = problems[0].geometry.covariance(point)
        judged = problems[1].certify(covariance, answers[0].dual)
        assert judged.objective == pytest.approx(answers[0].objective, rel=1e-8)
        assert judged.lower_bound == pytest.approx(answers[0].lower_bound, rel=1e-8)

    def test_with_the_reference_layer_and_an_exact_proof(self, family: Any, decay: float) -> None:
        problem = family(dm.workloads.decayed_sums(6, decay), np.linspace(1, 3, 6), geometry="stream")
        answer, other = fast.solve(problem, tol=1e-8), reference.solve(problem, tol=1e-4)
        proof = dm.prove(answer)
        assert proof.width <= answer.gap + 1e-9
        for each in (answer, other):
            low, high = each.certificate.interval
            assert low <= proof.upper and proof.lower <= high
        assert proof.is_of(family(problem.workload, np.linspace(1, 3, 6), geometry="dense"))

    def test_by_either_method(self, family: Any, decay: float) -> None:
        problem = family(dm.workloads.decayed_sums(20, decay), np.linspace(1, 3, 20), geometry="stream")
        for method in ("newton", "fixed_point"):
            assert fast.solve(problem, method=method).certificate.certifies(1e-6)

    def test_random_numbers(self, family: Any, decay: float) -> None:
        numbers = 10.0 ** np.random.default_rng(0).uniform(-1, 1, 64)
        problem = family(dm.workloads.decayed_sums(64, decay), numbers, geometry="stream")
        assert fast.solve(problem, tol=1e-7).certificate.certifies(1e-7)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("decay", [1.0, 0.5])
class TestCurvature:
    def spectrum(self, decay: float, fixed: bool) -> Any:
        rng = np.random.default_rng(5)
        program = StreamProgram(rng.uniform(1, 4, 12), decay, fixed, 1e-13, rng.uniform(0, 1, 12))
        return program.at(np.exp(rng.normal(size=12 if fixed else 24)))

    def test_a_product_is_the_change_of_costs_and_variances(self, decay: float, fixed: bool) -> None:
        here = self.spectrum(decay, fixed)
        change, step = np.random.default_rng(6).normal(size=len(here.weights)), 1e-4
        ahead, behind = (here.program.at(here.weights * np.exp(sign * step * change)) for sign in (1, -1))
        slope = (ahead.weights * ahead.constraint_values - behind.weights * behind.constraint_values) / (2 * step)
        fine = here.smoothed(1e-15 * here.dual_value)
        expected = here.weights * here.constraint_values * change - slope
        np.testing.assert_allclose(fine.curvature_product(change), expected, atol=1e-6 * np.abs(expected).max())

    def test_it_is_symmetric_and_nowhere_negative(self, decay: float, fixed: bool) -> None:
        here = self.spectrum(decay, fixed)
        for smoothing, enough, digits in ((np.inf, MAX_HESSIAN_ERROR, 1e-6), (1e-14, 1e-9, 1e-12)):
            rough = here.smoothed(smoothing * here.dual_value)
            matrix = np.stack([rough.curvature_product(each) for each in np.eye(len(here.weights))])
            np.testing.assert_allclose(matrix, matrix.T, atol=digits * np.abs(matrix).max())
            assert np.linalg.eigvalsh(matrix)[0] >= -8 * enough * np.abs(matrix).max()


SMOOTH = {
    "equal": lambda steps: np.ones(len(steps)),
    "waves": lambda steps: 2 + np.sin(9 * steps),
    "rising": lambda steps: 1 + 50 * steps**3,
    "a jump": lambda steps: np.where(steps < 0.3, 1.0, 30.0),
}


@pytest.mark.parametrize("fixed", [False, True])
class TestGroups:
    @pytest.mark.parametrize(("numbers", "decay"), [*zip(SMOOTH, (0.99, 1.0, 0.9999, 1.0), strict=True)])
    def test_each_step_is_in_one_and_both_ends_are_single(self, fixed: bool, numbers: str, decay: float) -> None:
        steps = SMOOTH[numbers](np.linspace(0, 1, 5001))
        groups = Groups.of(StreamProgram(steps, decay, fixed, 1e-6))
        assert groups.sizes.sum() == 5001 and groups.sizes.min() >= 1
        assert np.all(groups.sizes[:100] == 1) and np.all(groups.sizes[-100:] == 1)
        spread = np.array([np.ptp(np.log(part)) for part in np.split(steps, np.cumsum(groups.sizes)[:-1])])
        assert spread.max() <= 1 / reduced.GROUPS_PER_E_FOLD
        assert (groups.sizes.max() - 1) * -2 * np.log(decay) <= 1 / reduced.GROUPS_PER_E_FOLD

    @pytest.mark.parametrize(("numbers", "decay"), [("equal", 0.9999), ("waves", 1.0), ("rising", 1.0)])
    def test_drawn_out_they_are_near_the_optimum(self, fixed: bool, numbers: str, decay: float) -> None:
        program = StreamProgram(SMOOTH[numbers](np.linspace(0, 1, 20_000)), decay, fixed, 1e-8)
        state = reduced.approach(program, loop.Limits(1e-6))
        assert state is not None and np.all(state.slacks > 0)
        assert 1 < state.point.objective / state.point.lower_bound < 1.25

    def test_few_steps_and_uneven_ones_begin_at_nothing(self, fixed: bool) -> None:
        uneven = np.random.default_rng(0).uniform(1, 9, 9000)
        for numbers in (np.ones(1), np.ones(2), np.ones(3), np.ones(500), uneven):
            assert reduced.approach(StreamProgram(numbers, 1.0, fixed, 1e-8), loop.Limits(1e-6)) is None

    @pytest.mark.parametrize("numbers", ["waves", "a jump"])
    def test_intervals_of_both_ways_meet(self, fixed: bool, numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
        steps = SMOOTH[numbers](np.linspace(0, 1, 2401))
        problem = FAMILIES[fixed](dm.workloads.prefix(2401), steps)
        near = fast.solve(problem, tol=1e-6)
        monkeypatch.setattr(reduced, "MIN_GROUP_SIZE", np.inf)
        plain = fast.solve(problem, tol=1e-6)
        assert near.certificate.certifies(1e-6) and plain.certificate.certifies(1e-6)
        assert max(near.lower_bound, plain.lower_bound) <= min(near.objective, plain.objective) * (1 + 1e-9)

    @pytest.mark.parametrize("decay", [1.0, 0.999])
    def test_they_have_the_trace_norm_of_their_steps(self, fixed: bool, decay: float) -> None:
        program = StreamProgram(np.ones(4000), decay, fixed, 1e-9)
        groups = Groups.of(program)
        numbers = np.tile(groups.sizes, 1 if fixed else 2).astype(np.float64)
        value = groups.program(program).at(numbers).dual_value
        assert value == pytest.approx(program.at(np.ones(4000 if fixed else 8000)).dual_value, rel=1e-3)


class TestMany:
    @pytest.mark.parametrize("largest", [1e6, 1e12])
    def test_targets_that_differ_by_a_million_millions(self, largest: float) -> None:
        """Weights far below those of other queries are not raised by the judge to where they cost the bound."""
        targets = np.ones(128)
        targets[::2] = largest
        for numbers in (targets, largest / targets, np.where(np.arange(128) == 5, 1, largest)):
            answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(128), numbers, geometry="stream"))
            assert answer.certificate.certifies(1e-6)

    def test_of_many_no_matrix_is_made(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(50_000), targets=1.0)
        assert problem.geometry.name == "stream"
        answer = fast.solve(problem, tol=0.5)
        assert answer.certificate.certifies(0.5)
        mechanism = answer.mechanism
        assert isinstance(mechanism, dm.StreamMechanism) and mechanism.variances().max() <= 1 + 1e-9
        assert mechanism.rho == pytest.approx(answer.objective / 2, rel=1e-6)
        for ask in (mechanism.dense, mechanism.covariance, lambda: answer.covariance, lambda: problem.basis):
            with pytest.raises(dm.errors.InvalidInputError, match="50000 steps is too large for a matrix"):
                ask()
        for options in ({"geometry": "dense"}, {"neighbours": "replace"}):
            with pytest.raises(dm.errors.InvalidInputError, match=r"too many"):
                dm.FitnessForUse(problem.workload, **options)

    def test_auto_takes_what_was_measured_to_be_faster(self) -> None:
        rng = np.random.default_rng(0)
        for family, make, below, above in (
            (dm.FitnessForUse, lambda count: 2.0, 64, 96),
            (dm.FitnessForUse, lambda count: np.linspace(1, 2, count), 64, 192),
            (dm.FitnessForUse, lambda count: np.exp(rng.normal(0, 2, count)), 96, 192),
            (dm.TotalVariance, lambda count: rng.uniform(0.5, 2, count), 64, 96),
            (dm.TotalVariance, lambda count: np.exp(rng.normal(0, 2, count)), 64, 192),
        ):
            for count, name in ((below, "dense"), (above, "stream")):
                problem: Any = family(dm.workloads.prefix(count), make(count))
                assert problem.geometry.name == name, (family, count)

    def test_auto_takes_what_can_hold_the_problem(self) -> None:
        for count, decay in ((256, 0.5), (512, 0.8)):
            sums = dm.workloads.decayed_sums(count, decay)
            for family in FAMILIES:
                assert family(sums).geometry.name == "stream"
                with pytest.raises(dm.errors.InvalidInputError, match="1e-40"):
                    family(sums, geometry="dense")
        assert fast.solve(dm.TotalVariance(sums)).status.name == "CERTIFIED"
        some = np.r_[0.0, np.ones(255)]
        for options in ({"weights": some}, {"neighbours": "replace"}, {"basis": np.eye(256)}):
            assert dm.TotalVariance(dm.workloads.prefix(256), **options).geometry.name == "dense"
        with pytest.raises(dm.errors.InvalidInputError, match=r"weights must be positive, got 0 at weights\[0\]"):
            dm.TotalVariance(dm.workloads.prefix(5000), np.r_[0.0, np.ones(4999)])

    @pytest.mark.slow
    @pytest.mark.parametrize(("count", "tol"), [(4096, 1e-9), (262_144, 1e-6)])
    @pytest.mark.parametrize("family", FAMILIES)
    def test_sizes_that_are_promised(self, family: Any, count: int, tol: float) -> None:
        assert fast.solve(family(dm.workloads.prefix(count)), tol=tol).certificate.certifies(tol)

    def test_a_solution_begins_where_another_ended(self) -> None:
        first = fast.solve(dm.FitnessForUse(dm.workloads.prefix(2000)), tol=1e-6)
        again = fast.solve(dm.FitnessForUse(dm.workloads.prefix(2000), 1.001), tol=1e-6, start=first)
        assert again.iterations < first.iterations / 2
        with pytest.raises(dm.errors.InvalidInputError, match="start must be a solution over 2001 running sums"):
            fast.solve(dm.FitnessForUse(dm.workloads.prefix(2001)), start=first)

    def test_random_targets_are_certified(self) -> None:
        targets = np.exp(np.random.default_rng(0).normal(size=3000))
        assert fast.solve(dm.FitnessForUse(dm.workloads.prefix(3000), targets)).certificate.certifies(1e-6)


@pytest.fixture(scope="module")
def pair() -> tuple[Any, dm.Solution, dm.Solution]:
    sums, targets = dm.workloads.prefix(6), np.linspace(1, 2, 6)
    stream, dense = (dm.FitnessForUse(sums, targets, geometry=name) for name in ("stream", "dense"))
    return stream, fast.solve(stream, tol=1e-9), fast.solve(dense, tol=1e-9)


class TestByTheMatrix:
    def test_a_covariance_is_judged_as_on_a_matrix(self, pair: Any) -> None:
        stream, answer, other = pair
        for problem, twin in ((stream, other.problem), *_of_ranges()):
            noise = np.eye(problem.workload.shape[1]) + 0.1
            dual: Any = fast.solve(problem).dual
            mine, theirs = (each.certify(each.feasible(noise), dual) for each in (problem, twin))
            assert mine.objective == pytest.approx(theirs.objective, rel=1e-12)
            assert mine.lower_bound == pytest.approx(theirs.lower_bound, rel=1e-9)
        judged = stream.certify(other.primal, other.dual)
        assert judged.certifies(1e-8) and stream.mechanism(other.primal).rho == pytest.approx(other.rho)
        assert not stream.certify(-np.eye(6), other.dual).feasible
        np.testing.assert_allclose(answer.covariance, other.covariance, atol=1e-4)
        np.testing.assert_array_equal(stream.basis, np.eye(6))

    @pytest.mark.parametrize("method", ["newton", "softmax_newton"])
    def test_methods_of_matrices(self, pair: Any, method: str) -> None:
        stream, _, other = pair
        privacy = dm.PrivacyFirst(stream.workload, stream.targets, 0.5, geometry="stream")
        for problem in (stream, privacy) if method == "newton" else (stream,):
            answer = fast.solve(problem, method=method, tol=1e-6 if method == "newton" else 1e-2)
            assert answer.status.name == "CERTIFIED" and answer.problem.same_as(problem)
        mirrored = fast.solve(dm.TotalVariance(dm.workloads.all_range(5), geometry="stream"), orbits=[[4, 3, 2, 1, 0]])
        assert mirrored.status.name == "CERTIFIED"

    def test_refined_compared_and_started(self, pair: Any) -> None:
        stream, answer, other = pair
        refined = fast.refine(stream)
        assert refined.certified and dm.compare_privacy(answer, other, tol=1e-3) == 0
        assert dm.compare_privacy(answer.mechanism, refined, tol=1e-3) == 0
        stream, answer, other = pair
        for problem, start in ((stream, other), (other.problem, answer)):
            assert fast.solve(problem, start=start, tol=1e-7).iterations < 10

    @pytest.mark.parametrize("made", ["stream", "causal"])
    def test_mechanisms(self, pair: Any, made: str) -> None:
        mine: Any = pair[1].mechanism if made == "stream" else dm.strategies.sqrt_toeplitz(6)
        dense, total = mine.dense(), dm.LinearGaussianMechanism(np.ones((1, 6)), [[1e3]])
        assert mine.dense() is dense
        np.testing.assert_array_equal(mine.cost_matrix, dense.cost_matrix)
        np.testing.assert_array_equal(mine.covariance(dm.workloads.total(6)), dense.covariance(dm.workloads.total(6)))
        assert total.is_answerable_from(mine) and not mine.is_answerable_from(total)
        assert mine.is_equivalent_to(dense) and dense.is_equivalent_to(mine)
        assert mine.rebase(np.eye(6)[::-1]).is_equivalent_to(mine) and mine.standardize().is_equivalent_to(mine)
        both, added = mine.stack(total), total.compose(mine)
        assert both.is_equivalent_to(added) and mine.compose(total).is_equivalent_to(added)
        answers = np.arange(6.0)
        np.testing.assert_array_equal(
            mine.estimates(dm.workloads.total(6), answers), dense.estimates(dm.workloads.total(6), answers)
        )
        common = fast.solve(dm.CommonMechanism([mine, dm.LinearGaussianMechanism(np.eye(6), 9 * np.eye(6))])).mechanism
        assert common.is_answerable_from(mine) and dm.residual(mine, common).stack(common).is_equivalent_to(mine)
        assert fast.solve(dm.ReuseFitness(dm.workloads.total(6), 1.0, mine)).status.name == "CERTIFIED"
        extra = fast.solve(dm.extra_for_free(mine, dm.workloads.prefix(6), alpha=9 * mine.squared_privacy_cost))
        assert extra.status.name == "CERTIFIED"
        region = dm.sampling.ConfidenceRegion(mine, answers)
        assert region.mechanism is dense
        for problem in (pair[0], pair[2].problem, dm.FitnessForUse(dm.workloads.identity(6))):
            assert problem.certify(problem.feasible(problem.as_primal(mine)), fast.solve(problem).dual).feasible


def _of_ranges() -> list[tuple[Any, Any]]:
    problems = [dm.TotalVariance(dm.workloads.all_range(5), 2.0, geometry=name) for name in ("stream", "dense")]
    return [(problems[0], problems[1])]


class TestMechanism:
    def test_it_is_the_dense_one(self) -> None:
        asked = dm.workloads.decayed_sums(12, 0.8)
        rng = np.random.default_rng(1)
        mechanism = dm.StreamMechanism(asked, rng.uniform(0.1, 1, 12), rng.uniform(0.1, 1, 12), 2.0)
        dense = mechanism.dense()
        np.testing.assert_allclose(mechanism.profile, dense.profile, rtol=1e-10)
        np.testing.assert_allclose(mechanism.variances(), dense.variances(asked), rtol=1e-10)
        np.testing.assert_allclose(mechanism.variances(dm.workloads.total(12)), dense.variances(dm.workloads.total(12)))
        assert mechanism.scaled(3.0).rho == pytest.approx(mechanism.rho / 3)
        strategy = mechanism.causal_strategy()
        assert np.allclose(strategy, np.tril(strategy))

    def test_drawn_noise_has_the_covariance(self) -> None:
        asked = dm.workloads.decayed_sums(6, 0.8)
        mechanism = dm.StreamMechanism(asked, np.linspace(1, 2, 6), np.linspace(3, 1, 6))
        rng = np.random.default_rng(0)
        drawn = np.array([mechanism.simulate(np.zeros(6), rng) for _ in range(2000)])
        true = asked.matrix @ mechanism.dense().covariance() @ asked.matrix.T
        assert np.abs(drawn.T @ drawn / len(drawn) / true - 1)[np.diag_indices(6)].max() < 0.1
        assert np.abs(drawn.T @ drawn / len(drawn) - true).max() < 0.1 * true.max()

    def test_other_noise_and_other_sums_are_refused(self) -> None:
        ones = np.ones(4)
        for weights, words in (
            ((np.ones(3), ones), "neighbour_weights must be 4"),
            ((ones, -ones), "query_weights"),
            ((ones, np.full(4, np.nan)), "query_weights"),
            ((ones, ones, 0.0), "level"),
        ):
            with pytest.raises(dm.errors.InvalidInputError, match=words):
                dm.StreamMechanism(dm.workloads.prefix(4), *weights)
        mechanism = dm.StreamMechanism(dm.workloads.prefix(4), np.ones(4), np.ones(4))
        other = dm.FitnessForUse(dm.workloads.prefix(5), geometry="stream")
        with pytest.raises(dm.errors.InvalidInputError, match="workload must have 4 cells"):
            mechanism.point_on(other.geometry)
        tables = dm.FitnessForUse(dm.workloads.marginals([2, 2], ways=1))
        with pytest.raises(dm.errors.InvalidInputError, match="has estimates for geometry 'dense' or"):
            mechanism.point_on(tables.geometry)
        with pytest.raises(dm.errors.InputTypeError, match="workload must be made by"):
            dm.StreamMechanism(dm.workloads.identity(4), np.ones(4), np.ones(4))  # type: ignore[arg-type]

    def test_weights_of_any_size_are_taken_or_refused_by_name(self) -> None:
        cells = [(1.0, 1e-160), (1e-308, 1.0), (1e300, 1e-300), (5e-324, 1.7e308)]
        sums = [(1e-160, 1.0), (1.0, 1e-308), (1e300, 1.0), (1.7e308, 5e-324)]
        kinds: Any = (dm.workloads.prefix(2), dm.workloads.decayed_sums(2, 0.5), dm.workloads.all_range(2))
        for case in itertools.product(kinds, cells, sums, (1e-300, 1.0, 1e300)):
            try:
                made = dm.StreamMechanism(*case)
            except dm.errors.InvalidInputError as error:
                assert "neighbour_weights and query_weights must not differ" in str(error), case
                continue
            assert np.isfinite(made.rho) and np.all(made.profile > 0), case


def test_sums_are_solved_written_and_read(tmp_path: Path) -> None:
    path = str(tmp_path / "answer.npz")
    for problem in ("fitness", "variance"):
        done = run("solve", "decayed_sums:1500,0.99", "--problem", problem, "--output", path)
        assert done.exit_code == 0 and "geometry: stream" in done.output and "decayed sums" in done.output
        again = dm.load(path)
        assert again.problem.geometry.name == "stream" and again.certificate.certifies(1e-6)
    judged = run("judge", "decayed_sums:1500,0.99", "--problem", "variance", "--covariance", path)
    assert judged.exit_code == 0
    path = str(tmp_path / "proof.json")
    assert run("solve", "prefix:8", "--geometry", "stream", "--prove", path).exit_code == 0
    assert run("verify", path, "prefix:8").exit_code == 0


class TestWorkload:
    @pytest.mark.parametrize("decay", [1.0, 0.5])
    def test_everything_is_that_of_the_matrix(self, decay: float) -> None:
        sums = dm.workloads.decayed_sums(7, decay)
        plain = dm.Workload(sums.matrix)
        x = np.arange(7.0)
        np.testing.assert_allclose(sums.apply(x), plain.apply(x))
        np.testing.assert_allclose(sums.row_norms(), plain.row_norms())
        np.testing.assert_allclose(sums.column_squares(), plain.column_squares())
        assert sums.same_as(plain) and plain.same_as(sums) and sums.same_as(pickle.loads(pickle.dumps(sums)))
        assert not sums.same_as(dm.workloads.decayed_sums(7, 0.25))
        np.testing.assert_array_equal(sums.select([2, 5]).dense(), plain.matrix[[2, 5]])
        assert sums.names[:2] == ("cell 0", "cells 0..1") and len(sums.groups) == 7

    def test_other_steps_decays_and_weights_are_refused(self) -> None:
        for decay in (0.0, -1.0, 1.5, np.nan):
            with pytest.raises(dm.errors.InvalidInputError, match="decay"):
                dm.workloads.decayed_sums(3, decay)
        with pytest.raises(dm.errors.InvalidInputError, match="steps must be at most"):
            dm.workloads.prefix(10**9)
        with pytest.raises(dm.errors.InvalidInputError, match="weights must be positive"):
            dm.TotalVariance(dm.workloads.prefix(3), [1.0, 0.0, 1.0], geometry="stream")
        with pytest.raises(dm.errors.InvalidInputError, match="takes workloads made by"):
            dm.TotalVariance(dm.workloads.identity(3), geometry="stream")
