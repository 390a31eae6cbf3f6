"""Symmetry that a user states: checked, never believed, and the same certified optimum with fewer weights."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from intervals import meet

import dualmech as dm
from dualmech import fast, reference
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.fast.engine import orbits
from dualmech.fast.engine import spectrum as engine
from dualmech.fast.reductions.dense import by_orbit, reduced
from dualmech.geometry.orbits import averages


def closed_under(rows: np.ndarray, permutations: list[np.ndarray]) -> np.ndarray:
    found = {tuple(row) for row in rows}
    queue = list(found)
    while queue:
        row = np.array(queue.pop())
        for order in permutations:
            image = tuple(row[order])
            if image not in found:
                found.add(image)
                queue.append(image)
    return np.array(sorted(found))


@st.composite
def symmetric(draw: Any) -> tuple[dm.Workload, list[np.ndarray]]:
    """Draw a workload that one or two permutations take to itself."""
    cells = draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    permutations = [rng.permutation(cells) for _ in range(draw(st.integers(1, 2)))]
    rows = rng.integers(-1, 2, (draw(st.integers(1, 2)), cells)).astype(float)
    rows[0, 0] = 1.0
    return dm.Workload(closed_under(rows, permutations)), permutations


class TestOrbits:
    @given(symmetric())
    def test_are_those_of_a_search(self, drawn: tuple[dm.Workload, list[np.ndarray]]) -> None:
        workload, permutations = drawn
        found = dm.Orbits.of(dm.FitnessForUse(workload, 1.0), permutations)
        for cell in range(workload.shape[1]):
            reached = {cell}
            while True:
                wider = reached | {int(order[each]) for order in permutations for each in reached}
                wider |= {int(np.argsort(order)[each]) for order in permutations for each in reached}
                if wider == reached:
                    break
                reached = wider
            assert {*np.flatnonzero(found.neighbours == found.neighbours[cell])} == reached
        rows = np.asarray(workload.matrix)
        for order in permutations:
            for index, row in enumerate(rows):
                image = row[order]
                places = [j for j, each in enumerate(rows) if np.array_equal(np.abs(each), np.abs(image))]
                alike = [j for j in places if np.array_equal(rows[j], image) or np.array_equal(rows[j], -image)]
                assert any(found.queries[j] == found.queries[index] for j in alike)

    def test_queries_targets_neighbours_and_copies_count_and_signs_do_not(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(4), 1.0)
        with pytest.raises(InvalidInputError, match=r"orbits\[0\] takes query 'cell 0' to none"):
            dm.Orbits.of(problem, [[3, 2, 1, 0]])
        cells = dm.workloads.identity(3)
        dm.Orbits.of(dm.FitnessForUse(cells, [1.0, 2.0, 1.0]), [[2, 1, 0]])
        with pytest.raises(InvalidInputError, match="same target"):
            dm.Orbits.of(dm.FitnessForUse(cells, [1.0, 2.0, 1.0]), [[1, 0, 2]])
        cells = dm.workloads.identity(4)
        chain = sp.csc_array(np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], dtype=float))
        problem = dm.FitnessForUse(cells, 1.0, neighbours=chain)
        assert dm.Orbits.of(problem, [[1, 0, 2, 3]]).neighbours.tolist() == [0, 1]
        assert dm.Orbits.of(problem, [[2, 3, 0, 1]]).neighbours.tolist() == [0, 0]
        with pytest.raises(InvalidInputError, match="neighbours 0"):
            dm.Orbits.of(problem, [[2, 1, 0, 3]])
        rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        with pytest.raises(InvalidInputError, match="not a symmetry"):
            dm.Orbits.of(dm.FitnessForUse(dm.Workload(rows), 1.0), [[1, 0]])
        found = dm.Orbits.of(dm.FitnessForUse(dm.Workload([[1.0, -1.0], [1.0, 1.0]]), 1.0), [[1, 0]])
        assert found.queries.tolist() == [0, 1]

    @pytest.mark.parametrize("small", [1e-8, 1e-12])
    def test_rows_that_hardly_differ_are_told_apart(self, small: float) -> None:
        near = 1 + small * np.random.default_rng(0).integers(0, 9, (6, 6))
        mirror = np.arange(6)[::-1]
        problem = dm.FitnessForUse(dm.Workload(np.vstack([near, near[:, mirror]])), 1.0)
        assert dm.Orbits.of(problem, [mirror]).queries.tolist() == [*range(6)] * 2
        broken = dm.FitnessForUse(dm.Workload(np.vstack([near, (1 + 2**-50) * near[:, mirror]])), 1.0)
        with pytest.raises(InvalidInputError, match="not a symmetry"):
            dm.Orbits.of(broken, [mirror])

    def test_other_orbits_are_refused(self) -> None:
        cases: Any = (
            ([[0, 1]], InvalidInputError),
            ([[0, 0, 1]], InvalidInputError),
            ([[0.5, 1, 2]], InvalidInputError),
            ("shift", InputTypeError),
            (3, InputTypeError),
            (dm.Orbits(np.zeros(2, dtype=int), np.zeros(3, dtype=int)), InvalidInputError),
            (dm.Orbits(np.array([0, np.nan, 1]), np.zeros(3)), InvalidInputError),  # type: ignore[arg-type]
            (dm.Orbits(np.array([0, -1, 1]), np.zeros(3, dtype=int)), InvalidInputError),
        )
        for given_orbits, error in cases:
            with pytest.raises(error, match="orbits"):
                fast.solve(dm.FitnessForUse(dm.workloads.identity(3), 1.0), orbits=given_orbits)

    @pytest.mark.parametrize("problem", [None, dm.FitnessForUse(dm.workloads.circular_ranges(3))])
    def test_other_problems_are_refused(self, problem: Any) -> None:
        with pytest.raises(
            (InputTypeError, InvalidInputError), match="problem must be|orbits are for geometry 'dense'"
        ):
            dm.Orbits.of(problem, [])

    @pytest.mark.parametrize("kind", [dm.FitnessForUse, dm.TotalVariance])
    def test_unions_find_their_own(self, kind: Any) -> None:
        problem, turned = kind(dm.workloads.circular_ranges(3)), [[1, 2, 0]]
        said = "orbits are for geometry 'dense', the problem stands on 'blocks'"
        for solver in (fast.solve, reference.solve, reference.formulate):
            with pytest.raises(InvalidInputError, match=said):
                solver(problem, orbits=turned)
        with pytest.raises(InvalidInputError, match=said):
            dm.Orbits.of(problem, turned)

    def test_averages_are_means(self) -> None:
        assert averages(np.array([4, 0, 4])).toarray().tolist() == [[0, 1, 0], [0.5, 0, 0.5]]

    @pytest.mark.parametrize("scale", [1e-6, 1e6])
    def test_scale_does_not_matter(self, scale: float) -> None:
        workload = dm.Workload(scale * np.asarray(dm.workloads.all_range(5).matrix))
        found = dm.Orbits.of(dm.FitnessForUse(workload, scale), [np.arange(5)[::-1]])
        assert found.neighbours.tolist() == [0, 1, 2, 1, 0]

    def test_none_is_the_whole_problem(self) -> None:
        found = dm.Orbits.of(dm.FitnessForUse(dm.workloads.prefix(3), 1.0), [])
        assert found.neighbours.tolist() == found.queries.tolist() == [0, 1, 2]


class TestSolving:
    @given(symmetric())
    def test_fitness_and_variance_meet_the_plain_solver(self, drawn: tuple[dm.Workload, list[np.ndarray]]) -> None:
        workload, permutations = drawn
        for problem in (dm.FitnessForUse(workload, 2.0), dm.TotalVariance(workload)):
            plain, told = fast.solve(problem, tol=1e-7), fast.solve(problem, tol=1e-7, orbits=permutations)
            assert told.status is dm.Status.CERTIFIED
            assert meet(plain, told)

    def test_weights_are_equal_within_orbits(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.all_range(6), 1.0)
        found = dm.Orbits.of(problem, [np.arange(6)[::-1]])
        answer = fast.solve(problem, orbits=found)
        for weights, labels in zip(answer.dual, (found.neighbours, found.queries), strict=True):
            np.testing.assert_allclose(
                averages(labels).T @ (averages(labels) @ weights), weights / np.bincount(labels)[labels]
            )

    def test_replaced_records_and_queries_of_zeros(self) -> None:
        workload = dm.Workload(dm.workloads.circular_ranges(6).matrix)
        problem = dm.FitnessForUse(workload, 1.0, neighbours=dm.neighbours.replace_one(6))
        turned = [np.roll(np.arange(6), 1)]
        assert len(np.unique(dm.Orbits.of(problem, turned).neighbours)) == 3
        assert meet(fast.solve(problem), fast.solve(problem, orbits=turned))
        workload = dm.Workload([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
        answer = fast.solve(dm.FitnessForUse(workload, 1.0), orbits=[[1, 0]])
        assert answer.status is dm.Status.CERTIFIED
        assert answer.dual.query_weights[2] == 0

    @pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
    def test_a_start_goes_on(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.all_range(8), 1.0)
        mirrored = [np.arange(8)[::-1]]
        first = fast.solve(problem, orbits=mirrored)
        fresh, begun = (fast.solve(problem, orbits=mirrored, start=start, max_iterations=1) for start in (None, first))
        assert begun.gap < 0.1 * fresh.gap

    def test_methods_and_formulations_without_orbits_say_so(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.identity(2), 1.0)
        with pytest.raises(InvalidInputError, match="orbits are for auto"):
            fast.solve(problem, method="softmax_newton", orbits=[[1, 0]])
        problem = dm.FitnessForUse(dm.workloads.identity(2), 1.0)
        for call in (reference.formulate, reference.solve):
            with pytest.raises(InvalidInputError, match="orbits are supported for formulation 'schur'"):
                call(problem, formulation="matrix_frac", orbits=[[1, 0]])

    @pytest.mark.parametrize("kind", [dm.FitnessForUse, dm.PrivacyFirst])
    def test_the_reference_layer_agrees(self, kind: Any) -> None:
        more = {} if kind is dm.FitnessForUse else {"cost": 0.5}
        problem = kind(dm.workloads.all_range(5), 1.0, **more)
        mirrored = [np.arange(5)[::-1]]
        told = reference.solve(problem, orbits=mirrored)
        assert told.status is dm.Status.CERTIFIED
        assert meet(told, fast.solve(problem, orbits=mirrored))
        program = reference.formulate(problem, orbits=mirrored)
        sizes = {constraint.label: constraint.size for constraint in program.constraints}
        assert sizes["privacy"] == 3
        assert sizes["accuracy"] == 9


class TestTiedHessian:
    @pytest.mark.parametrize("smoothing", [0.0, 0.3])
    def test_both_ways_of_gathering_agree_with_differences(
        self, smoothing: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine, "KERNEL_ERROR", 1e-6)
        problem = dm.FitnessForUse(dm.workloads.all_range(4), 1.0)
        tied = by_orbit(reduced(problem), dm.Orbits.of(problem, [[3, 2, 1, 0]]))
        program = tied.reduction.program
        weights = np.random.default_rng(1).uniform(0.1, 1, sum(program.sizes[:2]))
        spectrum = program.at(weights).smoothed(smoothing)
        chosen = np.arange(len(weights))
        members = np.arange(len(program.parts[0].groups))
        by_matrices = orbits._hessian_by_matrices(spectrum.spectra[0], members, program.parts[0].groups, len(weights))
        hessian = spectrum.curvature(chosen)
        np.testing.assert_allclose(by_matrices, hessian, rtol=5e-3, atol=1e-4 * hessian.max())
        step = 1e-5
        for index in chosen:
            moved = [weights.copy(), weights.copy()]
            moved[0][index] *= 1 + step
            moved[1][index] *= 1 - step
            up, down = (program.at(each).smoothed(smoothing).gradient() for each in moved)
            slope = -(up - down) / (2 * step) * weights
            np.testing.assert_allclose(by_matrices[index], slope, rtol=1e-5, atol=1e-6 * hessian.max())
        assert np.all(spectrum.curvature_diagonal() >= 0.99 * np.diag(hessian))
