"""Common mechanisms solved: both layers against each other, closed forms, degenerate families, laws, options."""

import itertools
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from intervals import meet

import dualmech as dm
from dualmech import crosscheck, fast, reference
from dualmech.crosscheck.proofs.prove import provable
from dualmech.fast import common
from dualmech.reference.common import CONES_BY_FORMULATION
from dualmech.validate import Array

quick = settings(max_examples=12)
seeds = st.integers(0, 10_000)
units = st.sampled_from([1e-6, 1.0, 1e6])


def on_cells(*covariances: Array) -> dm.CommonMechanism:
    return dm.CommonMechanism([dm.LinearGaussianMechanism(np.eye(len(each)), each) for each in covariances])


def axes(size: int, rng: np.random.Generator) -> Array:
    return np.asarray(np.linalg.qr(rng.standard_normal((size, size)))[0])


def wishart(size: int, rng: np.random.Generator, degrees: int | None = None) -> Array:
    factor = rng.standard_normal((size, degrees or 2 * size))
    return np.asarray(factor @ factor.T / size)


def turned(values: Array, rng: np.random.Generator) -> Array:
    basis = axes(len(values), rng)
    product = (basis * values) @ basis.T
    return np.asarray((product + product.T) / 2)


def random_family(seed: int, count: int, size: int, unit: float = 1.0) -> list[Array]:
    """Covariances at different scales, from nearly singular to well conditioned."""
    rng = np.random.default_rng(seed)
    degrees = int(rng.integers(size, 3 * size + 1))
    return [unit * rng.uniform(0.3, 3) * (wishart(size, rng, degrees) + 1e-6 * np.eye(size)) for _ in range(count)]


def clear_family(seed: int, count: int, size: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.3, 3) * (wishart(size, rng) + 0.1 * np.eye(size)) for _ in range(count)]


class TestBothLayers:
    @quick
    @given(seeds, st.integers(2, 5), st.integers(1, 5), units)
    def test_their_certified_intervals_meet(self, seed: int, count: int, size: int, unit: float) -> None:
        problem = on_cells(*random_family(seed, count, size, unit))
        answer, same = fast.solve(problem), reference.solve(problem)
        assert answer.status is same.status is dm.Status.CERTIFIED
        assert answer.gap <= 1e-6 and same.gap <= 1e-5 and meet(answer, same)

    @pytest.mark.parametrize("formulation", CONES_BY_FORMULATION["trace"])
    def test_every_statement_is_certified_by_every_backend(self, formulation: str) -> None:
        problem = on_cells(*random_family(3, 3, 6))
        for backend in ("CLARABEL", "SCS"):
            same = reference.solve(problem, backend=backend, formulation=formulation)
            assert same.status is dm.Status.CERTIFIED and meet(fast.solve(problem), same)
            assert same.solver == f"reference:{backend}:{formulation}"

    def test_rows_columns_and_pairs_of_a_table(self) -> None:
        """Row spaces that meet in the total alone, answered with the noise of the noisiest."""
        rows = np.kron(np.eye(2), np.ones(3))
        columns = np.kron(np.ones(2), np.eye(3))
        mechanisms = [
            dm.LinearGaussianMechanism(queries, noise * np.eye(len(queries)))
            for queries, noise in ((rows, 1.0), (columns, 1.5), (np.vstack([rows[:1] + rows[1:]]), 4.0))
        ]
        problem = dm.CommonMechanism(mechanisms)
        for answer in (fast.solve(problem), reference.solve(problem)):
            assert answer.status is dm.Status.CERTIFIED
            total = answer.mechanism.variances(dm.workloads.total(6))
            assert total == pytest.approx([4.5], rel=1e-5)

    def test_decisions_of_very_different_weight(self) -> None:
        mechanisms = [dm.LinearGaussianMechanism(np.eye(4), covariance) for covariance in random_family(1, 3, 4)]
        queries = dm.Workload(np.array([[1e4, 0, 0, 0], [0, 1, 1, 0]]))
        problem = dm.CommonMechanism(mechanisms, decisions=queries)
        answer, same = fast.solve(problem), reference.solve(problem)
        assert answer.status is same.status is dm.Status.CERTIFIED and meet(answer, same)
        plain = fast.solve(dm.CommonMechanism(mechanisms))
        asked = [each.mechanism.variances(queries).sum() for each in (answer, plain)]
        assert asked[0] <= asked[1] * (1 + 1e-5)


class TestClosedForms:
    @quick
    @given(seeds, st.integers(1, 12), units)
    def test_two_mechanisms(self, seed: int, size: int, unit: float) -> None:
        """Theorem 5.4: ``(P + Q)/2 + |P - Q|/2``, by the closed form and by the fixed point."""
        problem = on_cells(*random_family(seed, 2, size, unit))
        first, second = problem.bounds
        expected = (np.trace(first + second) + np.abs(np.linalg.eigvalsh(first - second)).sum()) / 2
        exact, found = fast.solve(problem), fast.solve(problem, method="fixed_point")
        assert exact.gap <= 1e-11 and exact.iterations == 1
        assert exact.objective == pytest.approx(expected, rel=1e-11)
        assert found.status is dm.Status.CERTIFIED and meet(exact, found)

    def test_two_graded_mechanisms(self) -> None:
        """Coordinates from 1 to 1e-10 in standard deviation: every one is raised in its own units."""
        grades = np.geomspace(1, 1e-10, 20)
        scale = grades * grades[:, None]
        rng = np.random.default_rng(0)
        answer = fast.solve(on_cells(*(wishart(20, rng) * scale for _ in range(2))), tol=1e-9)
        assert answer.status is dm.Status.CERTIFIED

    def test_equally_spaced_directions(self) -> None:
        """Pure states at angles π i / p in the plane: ``Y_i = (2/p) P_i`` and Σ = I; noise in all is added to it."""
        for count in (3, 5, 8):
            turns = np.pi * np.arange(count) / count
            states = np.stack([np.cos(turns), np.sin(turns)], axis=1)
            problem = on_cells(*(np.outer(state, state) + 0.1 * np.eye(2) for state in states))
            answer = fast.solve(problem, tol=1e-9)
            assert answer.status is dm.Status.CERTIFIED and problem.maximality(answer.primal), count
            assert answer.objective == pytest.approx(2.2, rel=1e-8), count

    @quick
    @given(seeds, st.integers(3, 6), st.integers(1, 10))
    def test_commuting_covariances(self, seed: int, count: int, size: int) -> None:
        rng = np.random.default_rng(seed)
        values, basis = rng.uniform(0.1, 2, (count, size)), axes(size, rng)
        answer = fast.solve(on_cells(*((basis * each) @ basis.T for each in values)))
        assert answer.status is dm.Status.CERTIFIED
        assert answer.objective == pytest.approx(values.max(axis=0).sum(), rel=2e-6)

    @quick
    @given(seeds, st.integers(3, 5))
    def test_one_above_all_others_is_common(self, seed: int, count: int) -> None:
        others = random_family(seed, count, 5)
        problem = on_cells(*others, sum(others) + np.eye(5))
        answer = fast.solve(problem, tol=1e-9)
        assert answer.status is dm.Status.CERTIFIED
        assert answer.primal == pytest.approx(problem.bounds[-1], abs=1e-7 * answer.objective)
        assert answer.prices == pytest.approx(np.append(np.zeros(count), 1), abs=1e-6)


def near_equal(rng: np.random.Generator, count: int, size: int, apart: float) -> list[Array]:
    common = wishart(size, rng, size) + np.eye(size)
    return [common + apart * wishart(size, rng, size) for _ in range(count)]


def ill_conditioned(rng: np.random.Generator, count: int, size: int, condition: float) -> list[Array]:
    return [turned(np.geomspace(1, 1 / condition, size), rng) for _ in range(count)]


def ill_conditioned_alike(rng: np.random.Generator, count: int, size: int, condition: float) -> list[Array]:
    lift = axes(size, rng) * np.geomspace(1, condition**-0.5, size)
    return [lift @ wishart(size, rng) @ lift.T for _ in range(count)]


def graded(rng: np.random.Generator, count: int, size: int, condition: float) -> list[Array]:
    grades = np.geomspace(1, condition**-0.5, size)
    return [wishart(size, rng) * grades * grades[:, None] for _ in range(count)]


def duplicates(rng: np.random.Generator, count: int, size: int, copies: int) -> list[Array]:
    drawn = [wishart(size, rng) for _ in range(count + 1 - copies)]
    return [*drawn, *[drawn[0]] * (copies - 1)]


def blocks(rng: np.random.Generator, count: int, size: int, parts: int) -> list[Array]:
    mask = np.kron(np.eye(parts), np.ones((size // parts, size // parts)))
    return [wishart(size, rng) * mask for _ in range(count)]


def low_rank_apart(rng: np.random.Generator, count: int, size: int, degrees: int) -> list[Array]:
    common = wishart(size, rng)
    return [common + wishart(size, rng, degrees) for _ in range(count)]


def nearly_singular(rng: np.random.Generator, count: int, size: int, floor: float) -> list[Array]:
    return [wishart(size, rng, size // count) + floor * np.eye(size) for _ in range(count)]


def few_values(rng: np.random.Generator, count: int, size: int, largest: float) -> list[Array]:
    return [turned(rng.choice([1.0, 2.0, largest], size), rng) for _ in range(count)]


def scales(rng: np.random.Generator, count: int, size: int, step: float) -> list[Array]:
    return [step**place * wishart(size, rng) for place in range(count)]


DEGENERATE: dict[str, Callable[[np.random.Generator, int, int], list[Array]]] = {
    "near-equal, 1e-2": partial(near_equal, apart=1e-2),
    "near-equal, 1e-4": partial(near_equal, apart=1e-4),
    "near-equal, 1e-10": partial(near_equal, apart=1e-10),
    "condition 1e8": partial(ill_conditioned, condition=1e8),
    "condition 1e12": partial(ill_conditioned, condition=1e12),
    "condition 1e8 alike": partial(ill_conditioned_alike, condition=1e8),
    "condition 1e12 alike": partial(ill_conditioned_alike, condition=1e12),
    "graded 1e8": partial(graded, condition=1e8),
    "graded 1e20": partial(graded, condition=1e20),
    "all equal": lambda rng, count, size: duplicates(rng, count, size, count),
    "two equal": partial(duplicates, copies=2),
    "blocks": partial(blocks, parts=4),
    "low rank apart": partial(low_rank_apart, degrees=2),
    "nearly singular": partial(nearly_singular, floor=1e-8),
    "few values": partial(few_values, largest=5.0),
    "scales": partial(scales, step=1e4),
}


class TestDegenerateFamilies:
    @pytest.mark.parametrize("name", DEGENERATE)
    def test_are_certified(self, name: str) -> None:
        for count, size, tol in ((3, 8, 1e-9), (3, 24, 1e-9), (4, 12, 1e-6), (8, 8, 1e-9)):
            problem = on_cells(*DEGENERATE[name](np.random.default_rng(count), count, size))
            answer = fast.solve(problem, tol=tol)
            assert answer.status is dm.Status.CERTIFIED and answer.certificate.violation == 0, (count, size)
            if (count, size) == (3, 8):
                same = reference.solve(problem)
                assert same.status is dm.Status.CERTIFIED and meet(answer, same)

    @pytest.mark.parametrize("name", ["random", "near-equal, 1e-4", "condition 1e12"])
    def test_sizes_that_count(self, name: str) -> None:
        """Few cells are certified by every backend as well."""
        drawn = DEGENERATE.get(name, lambda rng, count, size: random_family(0, count, size))
        answer = fast.solve(on_cells(*drawn(np.random.default_rng(1), 3, 64)))
        assert answer.status is dm.Status.CERTIFIED
        for count, backend in itertools.product((3, 4), ("CLARABEL", "SCS")):
            few = on_cells(*drawn(np.random.default_rng(0), count, 4))
            assert reference.solve(few, backend=backend).status is dm.Status.CERTIFIED

    def test_one_cell(self) -> None:
        for count in (2, 3, 8):
            answer = fast.solve(on_cells(*(np.array([[1.0 + i % 5]]) for i in range(count))), tol=1e-9)
            assert answer.status is dm.Status.CERTIFIED
            assert answer.objective == pytest.approx(min(count, 5), rel=1e-9), count

    def test_nothing_in_common(self) -> None:
        problem = dm.CommonMechanism([dm.LinearGaussianMechanism(row[None], [[1.0]]) for row in np.eye(3)[:, :3]])
        for answer in (fast.solve(problem), reference.solve(problem)):
            assert answer.status is dm.Status.CERTIFIED and answer.iterations == 0
            assert "trivial" in answer.message and answer.mechanism.query_matrix.shape == (0, 3)
        with pytest.raises(dm.errors.InvalidInputError, match="trivial"):
            reference.formulate(problem)


class TestLaws:
    @quick
    @given(seeds, st.integers(3, 6), st.integers(1, 6), st.sampled_from([1e-6, 1e6]))
    def test_order_and_unit_do_not_matter_and_one_more_leaves_less(
        self, seed: int, count: int, size: int, unit: float
    ) -> None:
        family, order = random_family(seed, count, size), np.random.default_rng(seed).permutation(count)
        answer, other, scaled = (
            fast.solve(on_cells(*each), tol=1e-9)
            for each in (family, [family[i] for i in order], [unit * bound for bound in family])
        )
        assert answer.status is other.status is scaled.status is dm.Status.CERTIFIED and meet(answer, other)
        assert answer.objective == pytest.approx(other.objective, rel=2e-9)
        assert scaled.objective == pytest.approx(unit * answer.objective, rel=2e-9)
        fewer = fast.solve(on_cells(*family[:-1]))
        assert fewer.lower_bound <= answer.objective
        wanted: Any = answer.mechanism
        assert all(wanted.is_answerable_from(each) for each in answer.problem.mechanisms)
        assert answer.problem.maximality(fast.solve(answer.problem, tol=1e-10).primal, tol=1e-3)

    @quick
    @given(seeds, st.integers(3, 6), st.integers(1, 6))
    def test_the_value_never_falls_and_both_sides_of_the_gap_hold(self, seed: int, count: int, size: int) -> None:
        """A covariance costs at most the positive eigenvalues of what it lacks, in whatever order it is raised."""
        problem = on_cells(*random_family(seed, count, size))
        program = common.CommonProgram.of(problem.bounds)
        state = common.start(program)
        for _ in range(4):
            later = common.step(program, state)
            assert later.lower_bound >= state.lower_bound * (1 - 1e-13)
            covariance = common.covariance_of(program, later)
            judged = problem.certify(problem.feasible(covariance), later.weights)
            assert judged.lower_bound == pytest.approx(later.lower_bound, rel=1e-9)
            assert judged.objective <= later.objective * (1 + 1e-9)
            state = later

    @quick
    @given(seeds, st.integers(2, 6))
    def test_a_step_begins_where_the_last_ones_would_have_moved_least(self, seed: int, count: int) -> None:
        """Under a linear map of three dimensions, four steps tell where it stands still."""
        rng = np.random.default_rng(seed)
        linear, fixed = 0.9 * turned(rng.uniform(-1, 1, 3), rng), rng.standard_normal(3)
        last, begin = common.StepHistory(), np.zeros((1, 1, 3))
        for _ in range(max(count, 4)):
            last = last.with_step(begin, (begin - fixed) @ linear + fixed)
            begin = last.extrapolated()
        assert begin.ravel() == pytest.approx(fixed, abs=1e-3)


class TestAnotherField:
    @pytest.mark.parametrize(("count", "size"), [(2, 3), (5, 3)])
    def test_minimum_error_discrimination(self, count: int, size: int) -> None:
        """The covariances as quantum states, with their traces as prior: the optimum is the chance to tell which."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state_opt = pytest.importorskip("toqito.state_opt")
        problem = on_cells(*random_family(size, count, size))
        traces = np.trace(problem.bounds, axis1=1, axis2=2)
        states = [bound / trace for bound, trace in zip(problem.bounds, traces, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            chance, _ = state_opt.state_distinguishability(states, list(traces / traces.sum()))
        answer = fast.solve(problem, tol=1e-9)
        assert answer.objective / traces.sum() == pytest.approx(chance, rel=1e-6)


class TestStatements:
    def test_the_primal_is_equation_1_and_the_dual_measures_states(self) -> None:
        problem = on_cells(*random_family(0, 3, 2))
        program = reference.formulate(problem)
        assert [each.label for each in program.constraints] == ["common[0]", "common[1]", "common[2]"]
        assert list(program.var_dict) == ["Sigma"]
        assert str(program.objective).lower() == "minimize trace(sigma)"
        dual = reference.formulate(problem, formulation="dual")
        assert sorted(dual.var_dict) == ["Y_0", "Y_1", "Y_2"] and dual.constraints[-1].label == "complete"
        low, high = fast.solve(problem).certificate.interval
        assert low * (1 - 1e-6) <= float(dual.solve(solver="CLARABEL")) <= high * (1 + 1e-6)

    @pytest.mark.parametrize(("count", "sharpness"), [(2, 0.3), (3, 1000.0), (4, 10.0)])
    def test_a_centre_has_weights_and_the_gap_that_are_proven(self, count: int, sharpness: float) -> None:
        """The multipliers are ``(Σ - P_i)⁻¹ / t``, sum to I, and leave a gap of ``p r / t``."""
        problem = on_cells(*random_family(4, count, 3))
        program = reference.formulate(problem, "logdet", sharpness=sharpness)
        program.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
        noise: Any = program.var_dict["Sigma"].value
        weights = np.stack([each.dual_value for each in program.constraints])
        found: Any = [program.var_dict[f"S_{index}"].value for index in range(count)]
        slacks = np.stack(found)
        np.testing.assert_allclose(slacks, noise - problem.bounds, atol=1e-5 * np.trace(noise))
        np.testing.assert_allclose(weights.sum(axis=0), np.eye(3), atol=1e-4)
        np.testing.assert_allclose(
            weights @ (noise - problem.bounds), np.eye(3)[None] / sharpness + 0 * weights, atol=0.1
        )
        judged = problem.certify(noise, problem.as_dual(weights))
        assert judged.feasible
        assert judged.objective - judged.lower_bound == pytest.approx(count * 3 / sharpness, rel=1e-2)

    def test_the_parameter_sharpens_the_centre_in_place(self) -> None:
        problem = on_cells(*random_family(1, 3, 2))
        program = reference.formulate(problem, "logdet")
        (parameter,) = program.parameters()
        assert parameter.name() == "1/t" and parameter.value == 1.0 and program.is_dpp()
        traces = []
        for parameter.value in (1.0, 0.1, 0.01):
            program.solve(solver="CLARABEL")
            noise: Any = program.var_dict["Sigma"].value
            traces.append(float(np.trace(noise)))
        assert sorted(traces, reverse=True) == traces and traces[-1] >= fast.solve(problem).lower_bound

    def test_the_message_of_a_path_has_its_bound(self) -> None:
        answer = reference.solve(on_cells(*random_family(2, 3, 3)), formulation="logdet")
        bound = float(answer.message.partition("p r/t = ")[2].split()[0])
        assert answer.objective - answer.lower_bound <= 1.05 * bound
        assert "tol 1e-05" in repr(answer)

    def test_what_is_refused_of_formulations(self) -> None:
        problem = on_cells(*random_family(0, 3, 2))
        with pytest.raises(dm.errors.InvalidInputError, match="sharpness is an option of formulation 'logdet'"):
            reference.formulate(problem, sharpness=2.0)
        with pytest.raises(dm.errors.InvalidInputError, match="sharpness must be positive"):
            reference.formulate(problem, "logdet", sharpness=0.0)
        for formulation, call in itertools.product(("schur", 3), (reference.formulate, reference.solve)):
            with pytest.raises(dm.errors.InvalidInputError, match="formulation must be one of primal, dual, logdet"):
                call(problem, formulation=formulation)


def of_volume(bounds: Any, basis: Any = None) -> dm.CommonMechanism:
    """The same mechanisms, on the cells themselves unless another basis is named."""
    rows = np.eye(len(bounds[0])) if basis is None else basis
    return dm.CommonMechanism(on_cells(*bounds).mechanisms, basis=rows, criterion="volume")


class TestLeastVolume:
    """Another maximal common mechanism: of least determinant, the same in every basis."""

    @given(seeds, st.integers(2, 4), st.integers(1, 4), units)
    @settings(max_examples=15, deadline=None)
    def test_it_is_proven_and_maximal_and_no_larger_than_of_least_trace(
        self, seed: int, count: int, size: int, unit: float
    ) -> None:
        problem = of_volume([unit * bound for bound in clear_family(seed, count, size)])
        answer = fast.solve(problem)
        assert answer.certificate.certifies(1e-6)
        assert problem.maximality(answer.primal).improvement < 1e-2
        trace = fast.solve(on_cells(*(mechanism.covariance() for mechanism in problem.mechanisms)))
        assert answer.lower_bound <= problem.certify(trace.covariance, answer.dual).objective * (1 + 1e-12)

    @given(seeds, st.integers(2, 3), st.integers(1, 3))
    @settings(max_examples=15, deadline=None)
    def test_no_basis_changes_it(self, seed: int, count: int, size: int) -> None:
        bounds = clear_family(seed, count, size)
        turn = np.random.default_rng(seed).standard_normal((size, size)) + 3 * np.eye(size)
        plain, turned = fast.solve(of_volume(bounds)), fast.solve(of_volume(bounds, turn))
        expected = turn @ plain.primal @ turn.T
        np.testing.assert_allclose(turned.primal, expected, rtol=0, atol=1e-3 * float(np.linalg.norm(expected)))
        unit = abs(np.linalg.det(turn)) ** (2 / size)
        low, high = (unit * end for end in plain.certificate.interval)
        assert low <= turned.certificate.interval[1] and turned.certificate.interval[0] <= high

    @given(seeds, st.integers(2, 4), st.integers(1, 4))
    @settings(max_examples=25, deadline=None)
    def test_any_weights_bound_any_common_covariance(self, seed: int, count: int, size: int) -> None:
        bounds, rng = np.array(random_family(seed, count, size)), np.random.default_rng(seed)
        problem = of_volume(bounds)
        for weights in (np.array([wishart(size, rng) for _ in bounds]), rng.standard_normal(bounds.shape)):
            judged = problem.certify(problem.feasible(bounds.sum(axis=0)), weights)
            assert judged.violation == 0 and judged.interval[0] <= judged.interval[1]
            again = problem.certify(bounds.sum(axis=0), 7e9 * weights)
            assert again.lower_bound == pytest.approx(judged.lower_bound, rel=1e-9)

    @given(seeds, st.integers(2, 4))
    @settings(max_examples=15, deadline=None)
    def test_noise_on_the_same_axes_is_known_exactly(self, seed: int, count: int) -> None:
        variances = np.random.default_rng(seed).integers(1, 9, (count, 3))
        problem = of_volume([np.diag(row).astype(float) for row in variances])
        largest = variances.max(axis=0)
        answer = fast.solve(problem)
        assert answer.certificate.interval[0] <= np.prod(largest) ** (1 / 3) <= answer.certificate.interval[1]
        shares = np.array([np.diag(largest * (variances.argmax(axis=0) == i)) for i in range(count)])
        exact = problem.certify(np.diag(largest).astype(float), shares)
        assert exact.gap < 1e-13 and exact.resolution < 1e-13
        assert problem.prices(shares) == pytest.approx(np.bincount(variances.argmax(axis=0), minlength=count) / 3)

    @given(seeds, st.integers(2, 4), st.integers(1, 4), units)
    @settings(max_examples=10, deadline=None)
    def test_both_layers_agree(self, seed: int, count: int, size: int, unit: float) -> None:
        problem = of_volume([unit * bound for bound in clear_family(seed, count, size)])
        answers = fast.solve(problem), reference.solve(problem)
        assert meet(*answers) and all(answer.certificate.certifies(1e-5) for answer in answers)
        assert crosscheck.compare(answers).outcome is crosscheck.Agreement.AGREE

    def test_rounding_of_ill_conditioned_noise_is_stated(self) -> None:
        for power in (2, 4, 6):
            bounds = [np.array([[1 + 10.0**-power, 1], [1, 1]]), np.array([[1, -1], [-1, 1 + 10.0**-power]])]
            problem = of_volume([4 * bounds[0], bounds[0]])
            judged = problem.certify(4 * bounds[0], [bounds[0], 0 * bounds[0]])
            exact = 4 * 10.0 ** (-power / 2)
            assert judged.interval[0] <= exact <= judged.interval[1] and judged.resolution < 1e-13 * 10**power
            assert meet(fast.solve(of_volume(bounds)), fast.solve(of_volume(bounds[::-1])))

    def test_what_has_no_meaning_is_refused_by_name(self) -> None:
        pair = [dm.LinearGaussianMechanism(np.eye(2), np.diag(values)) for values in ([1.0, 2.0], [2.0, 1.0])]
        thin = dm.LinearGaussianMechanism([[1.0, 1.0], [1.0, 1.0 + 1e-7]], np.diag([1, 1e-9]))
        many, more = (dm.LinearGaussianMechanism(np.eye(size), np.eye(size)) for size in (65, 70))
        trace, volume = dm.CommonMechanism(pair), dm.CommonMechanism(pair, criterion="volume")
        asked, solved = dm.Workload([[1, 0]]), fast.solve(trace)
        cases: list[tuple[str, Callable[[], object]]] = [
            ("criterion must be one of trace, volume", lambda: dm.CommonMechanism(pair, criterion="area")),
            (
                "decisions belong to criterion 'trace'",
                lambda: dm.CommonMechanism(pair, decisions=asked, criterion="volume"),
            ),
            (
                r"mechanisms\[1\] answers a common query with a variance below rounding error",
                lambda: dm.CommonMechanism([pair[0], thin], criterion="volume"),
            ),
            (
                "method fixed_point is not for criterion 'volume'",
                lambda: fast.solve(volume, method="fixed_point"),
            ),
            ("method newton is not for criterion 'trace'", lambda: fast.solve(trace, method="newton")),
            ("start is for criterion 'trace' only", lambda: fast.solve(volume, start=solved)),
            (
                "3 mechanisms and a volume of 70 common queries takes",
                lambda: provable(dm.CommonMechanism([more] * 3, criterion="volume")),
            ),
            (
                "method newton takes at most 64 common queries",
                lambda: fast.solve(dm.CommonMechanism([many] * 3, criterion="volume")),
            ),
            ("formulation must be one of volume, got 'primal'", lambda: reference.formulate(volume, "primal")),
            ("must have a program in semidefinite cones", lambda: reference.matrix_inequalities(volume)),
        ]
        for words, call in cases:
            with pytest.raises(dm.errors.DualmechError, match=words):
                call()

    def test_files_of_earlier_versions_are_of_the_trace(self, tmp_path: Path) -> None:
        answer = fast.solve(on_cells(*clear_family(0, 2, 2)))
        dm.save(answer, tmp_path / "now.npz")
        later = ("criterion", "digest")
        with np.load(tmp_path / "now.npz") as file:
            np.savez(tmp_path / "then.npz", **{name: file[name] for name in file.files if name not in later})
        assert dm.load(tmp_path / "then.npz").problem == answer.problem


class TestOptions:
    def test_a_backend_that_is_cut_short(self) -> None:
        problem = on_cells(*random_family(0, 3, 12))
        for formulation in CONES_BY_FORMULATION["trace"]:
            with pytest.warns(dm.errors.UncertifiedWarning, match="STEPS_EXHAUSTED"):
                answer = reference.solve(problem, formulation=formulation, time_limit=1e-6)
            assert answer.certificate.feasible and answer.gap < np.inf

    def test_what_rounding_forbids_is_not_claimed(self) -> None:
        problem = on_cells(*random_family(0, 3, 16))
        with pytest.warns(dm.errors.UncertifiedWarning):
            answer = fast.solve(problem, tol=1e-16)
        assert answer.status in (dm.Status.ROUNDING, dm.Status.STALLED, dm.Status.STEPS_EXHAUSTED)
        assert answer.gap <= 1e-11

    def test_an_earlier_solution_is_a_start(self) -> None:
        problem = on_cells(*random_family(0, 3, 24))
        cold = fast.solve(problem, tol=1e-8)
        for start in (cold, reference.solve(problem)):
            warm = fast.solve(problem, tol=1e-8, start=start)
            assert warm.status is dm.Status.CERTIFIED and meet(cold, warm)
        assert fast.solve(problem, tol=1e-8, start=cold).iterations < cold.iterations

    def test_what_cannot_be_meant_is_refused(self) -> None:
        other = fast.solve(on_cells(np.eye(2), np.eye(2)))
        cases: list[tuple[dict[str, Any], str]] = [
            ({"method": "newton"}, "method newton is not for criterion .trace.: use fixed_point"),
            ({"method": "closed_form"}, "takes two mechanisms, got 3"),
            ({"tol": 0}, "tol must be positive"),
            ({"max_iterations": 0}, "max_iterations"),
            ({"start": other}, "for 3 mechanisms and a basis of 4 queries"),
            ({"start": "warm"}, "start must be a Solution of dualmech"),
        ]
        for options, said in cases:
            with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError), match=said):
                fast.solve(on_cells(*random_family(0, 3, 4)), **options)
