"""Reuse of a release: the judge, its laws on random points, closed forms, both layers, and the three ways to a wish."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from intervals import contains

import dualmech as dm
from dualmech import crosscheck, fast, reference
from dualmech.mechanisms.frames import TableBlocks
from dualmech.problems import released
from dualmech.studies.papers.common.examples import compare_reuse
from dualmech.validate import Array
from dualmech.workloads.marginal import MarginalWorkload

quick = settings(max_examples=20)
seeds = st.integers(0, 10**6)
TOL = 1e-6
REPLACE = dm.neighbours.replace_one(6)


def unit(rows: npt.ArrayLike, neighbours: object = None) -> dm.LinearGaussianMechanism:
    return dm.LinearGaussianMechanism(rows, np.eye(len(np.asarray(rows))), neighbours)


def random_problem(seed: int, neighbours: bool = False) -> dm.ReuseFitness:
    rng = np.random.default_rng(seed)
    cells, queries = rng.integers(2, 7), rng.integers(1, 8)
    rows = rng.standard_normal((rng.integers(1, cells + 1), cells))
    moves = rng.standard_normal((cells, rng.integers(2, 9))) if neighbours else None
    workload = dm.Workload(rng.standard_normal((queries, cells)))
    return dm.ReuseFitness(workload, rng.uniform(0.5, 4, queries), unit(rng.choice([0.2, 0.5, 1]) * rows, moves))


def random_point(problem: dm.ReuseFitness, rng: np.random.Generator) -> tuple[Array, tuple[Array, Array, Array]]:
    size, released = problem.geometry.rank, len(problem.release)
    factor, root = rng.standard_normal((size, 2 * size)), rng.standard_normal((released, released))
    neighbours, queries = problem.geometry.moves.shape[1], len(problem.targets)
    weights = rng.exponential(size=(neighbours,)), rng.exponential(size=(queries,)), root @ root.T
    return problem.feasible(factor @ factor.T), weights


def ones(problem: dm.ReuseFitness) -> tuple[Array, Array, Array]:
    return (np.ones(problem.geometry.moves.shape[1]), np.ones(len(problem.targets)), np.eye(len(problem.release)))


@functools.cache
def instances() -> dict[str, dm.ReuseFitness]:
    rng = np.random.default_rng(7)
    some, few = rng.standard_normal((6, 6)), rng.standard_normal((3, 6))
    units = np.array([1.0, 1e6, 1, 1, 1e-6, 1])
    margins = dm.workloads.marginals(dm.Domain({"a": 3, "b": 4}), ways=(1,)).dense()
    half = fast.solve(dm.FitnessForUse(dm.workloads.prefix(6), 2.0, neighbours=REPLACE)).mechanism
    apart = np.hstack([np.zeros((3, 3)), np.eye(3)])
    return {
        "plain": dm.ReuseFitness(dm.Workload(some), 1.0, unit(few)),
        "no more than it needs": dm.ReuseFitness(dm.Workload(some), 1.0, unit(few / 4)),
        "free for the wish": dm.ReuseFitness(dm.Workload(some), 1.0, unit(few / 0.6)),
        "one-row wish": dm.ReuseFitness(dm.Workload(some[:1]), 1.0, unit(few / 4)),
        "one-row release": dm.ReuseFitness(dm.Workload(some), 1.0, unit(few[:1])),
        "one cell": dm.ReuseFitness(dm.Workload([[2.0]]), 1.0, dm.LinearGaussianMechanism([[1]], [[3]])),
        "rank-deficient": dm.ReuseFitness(dm.Workload(some[:, :2] @ some[:2]), 1.0, unit(few / 4)),
        "tall, a zero query": dm.ReuseFitness(dm.Workload(np.vstack([some, some, 0 * few])), 1.0, unit(few)),
        "dependent rows out": dm.ReuseFitness(dm.workloads.prefix(6), 1.0, unit(np.vstack([few, few[:2]]))),
        "margins out": dm.ReuseFitness(
            dm.workloads.identity(12), 2.0, dm.LinearGaussianMechanism(margins, 4 * np.eye(7))
        ),
        "nothing shared": dm.ReuseFitness(dm.Workload(apart[:, ::-1] + 0), 1.0, unit(3 * apart)),
        "cells in other units": dm.ReuseFitness(dm.Workload(some * units), 1.0, unit(few * units / 4)),
        "one replaced": dm.ReuseFitness(dm.workloads.prefix(6), 1.0, unit(few, REPLACE)),
        "total exact": dm.ReuseFitness(dm.workloads.identity(6), 0.5, half),
        "met": dm.ReuseFitness(dm.workloads.prefix(6), 18.0, dm.LinearGaussianMechanism(np.eye(6), 3 * np.eye(6))),
    }


@pytest.fixture(scope="module", params=list(instances()))
def problem(request: pytest.FixtureRequest) -> dm.ReuseFitness:
    return instances()[request.param]


@pytest.fixture(scope="module")
def answer(problem: dm.ReuseFitness) -> dm.Solution:
    return fast.solve(problem, tol=TOL)


class TestBothLayers:
    def test_their_intervals_meet(self, problem: dm.ReuseFitness, answer: dm.Solution) -> None:
        assert answer.status is dm.Status.CERTIFIED
        assert answer.certificate.feasible and answer.gap <= TOL
        same = reference.solve(problem)
        assert same.status is dm.Status.CERTIFIED
        assert crosscheck.compare([answer, same]).outcome is crosscheck.Agreement.AGREE

    def test_release_and_further_make_up_the_total(self, problem: dm.ReuseFitness, answer: dm.Solution) -> None:
        further = problem.new_mechanism(answer.primal)
        both = problem.released.profile + further.profile
        np.testing.assert_allclose(both, answer.mechanism.profile, rtol=1e-6, atol=1e-9 * both.max())
        assert both.max() <= answer.objective * (1 + 1e-8)
        assert np.all(answer.mechanism.variances(problem.workload) <= problem.targets * (1 + 1e-8))
        assert np.all(answer.prices >= 0)
        assert answer.prices.sum() + np.trace(answer.dual.release_weights) == pytest.approx(1)
        assert len(answer.binding) and not set(answer.binding) - set(range(problem.geometry.moves.shape[1]))

    def test_scs_a_program_of_ones_own_and_a_tight_tolerance(self) -> None:
        problem = instances()["plain"]
        best = fast.solve(problem, tol=1e-9)
        assert best.status is dm.Status.CERTIFIED
        assert crosscheck.compare([reference.solve(problem, backend="SCS"), best]).outcome.name == "AGREE"
        program = reference.formulate(problem)
        assert [each.label for each in program.constraints] == ["schur", "privacy", "accuracy", "released"]
        with pytest.raises(dm.errors.InvalidInputError, match="formulation must be one of schur"):
            reference.formulate(problem, formulation="sum")

    @pytest.mark.slow
    @pytest.mark.parametrize("cells", [32, 64])
    def test_larger(self, cells: int) -> None:
        ranges = dm.workloads.random_range(cells, cells // 2, rng=5).dense()
        released = dm.LinearGaussianMechanism(ranges, 8 * np.eye(cells // 2))
        assert fast.solve(dm.ReuseFitness(dm.workloads.prefix(cells), 1.0, released)).status is dm.Status.CERTIFIED


class TestLaws:
    @given(seed=seeds, neighbours=st.booleans())
    @quick
    def test_weak_duality(self, seed: int, neighbours: bool) -> None:
        problem = random_problem(seed, neighbours)
        covariance, weights = random_point(problem, np.random.default_rng(seed))
        judged = problem.certify(covariance, weights)
        assert judged.feasible and 0 < judged.lower_bound <= judged.objective

    @given(seed=seeds, factor=st.floats(1e-3, 1e3))
    @quick
    def test_scales(self, seed: int, factor: float) -> None:
        """Variances of targets and release up by a factor, everything is that much cheaper."""
        problem, rng = random_problem(seed), np.random.default_rng(seed)
        covariance, weights = random_point(problem, rng)
        louder = dm.LinearGaussianMechanism(problem.release, factor * np.eye(len(problem.release)))
        other = dm.ReuseFitness(problem.workload, factor * problem.targets, louder)
        first, last, matrix = weights
        judged, same = problem.certify(covariance, weights), other.certify(factor * covariance, weights)
        moved = problem.certify(covariance, (10 * first, 1e-3 * last, 1e-3 * matrix))
        assert same.objective * factor == pytest.approx(judged.objective, rel=1e-9)
        weighed = other.certify(factor * covariance, (first, last / factor, matrix))
        assert weighed.lower_bound * factor == pytest.approx(judged.lower_bound, rel=1e-9)
        assert moved.lower_bound == pytest.approx(judged.lower_bound, rel=1e-9)

    @given(seed=seeds)
    @quick
    def test_only_the_cost_matrix_of_a_release_matters(self, seed: int) -> None:
        problem, rng = random_problem(seed), np.random.default_rng(seed)
        covariance, (first, last, matrix) = random_point(problem, rng)
        turn = np.linalg.qr(rng.standard_normal(matrix.shape))[0]
        other = dm.ReuseFitness(problem.workload, problem.targets, unit(turn @ problem.release))
        judged = problem.certify(covariance, (first, last, matrix))
        there = np.linalg.lstsq(problem.basis.T, other.basis.T, rcond=None)[0].T
        same = other.certify(there @ covariance @ there.T, (first, last, turn @ matrix @ turn.T))
        assert same.interval == pytest.approx(judged.interval, rel=1e-8)

    @given(seed=seeds)
    @quick
    def test_leaner_costs_nobody_more(self, seed: int) -> None:
        problem, rng = random_problem(seed), np.random.default_rng(seed)
        covariance = problem.feasible(random_point(problem, rng)[0] / rng.uniform(1, 50))
        lean = problem.least_informative(covariance)
        before, after = problem.mechanism(covariance), problem.mechanism(lean)
        assert problem.certify(lean, ones(problem)).feasible
        assert np.all(after.profile <= before.profile * (1 + 1e-8))

    @given(seed=seeds)
    @settings(quick, max_examples=10)
    def test_a_release_is_never_taken_back(self, seed: int) -> None:
        problem = random_problem(seed)
        alone = fast.solve(dm.FitnessForUse(problem.workload, problem.targets)).certificate.interval
        low, high = fast.solve(problem).certificate.interval
        released = problem.released.squared_privacy_cost
        assert max(alone[0], released) <= high * (1 + 1e-9) and low <= (alone[1] + released) * (1 + 1e-9)

    def test_household_of_three(self) -> None:
        plain = instances()["plain"]
        home = dm.ReuseFitness(plain.workload, 1.0, plain.released, dm.neighbours.household(6, 3))
        assert fast.solve(home).objective == pytest.approx(9 * fast.solve(plain).objective, rel=2e-6)

    def test_the_dual_in_shares_of_the_cost(self) -> None:
        """Another proof: ``α ≥ tr(Z K'K) + ‖(P - Z)^½ Q^½‖_*²`` for ``0 ⪯ Z ⪯ P``, here with Z from Ω."""
        problem = instances()["plain"]
        answer = fast.solve(problem, tol=1e-9)
        first, last, matrix = answer.dual
        moves, rows = problem.geometry.moves, problem.geometry.representation[: len(last)]
        known = problem.rows.coordinates
        spent = (moves * first) @ moves.T
        paid = answer.primal @ known.T @ matrix @ known @ answer.primal
        share = paid * answer.objective  # Σ (Q + K'Ω K) Σ is P over α
        values, vectors = np.linalg.eigh(spent - share)
        left = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
        norm = np.linalg.norm(left @ rows.T * np.sqrt(last), "nuc")
        bound = np.trace(share @ known.T @ known) + norm**2 / (last @ problem.targets)
        assert values[0] > -1e-4 and bound == pytest.approx(answer.objective, rel=1e-3)


class TestClosedForms:
    def test_cells_after_their_total(self) -> None:
        """By symmetry the total cost is ``a`` on differences and ``b`` on the total, b at least the release's."""
        for cells, variance in ((2, 0.5), (3, 1.0), (5, 0.1), (6, 4.0), (6, 9.0)):
            released = dm.LinearGaussianMechanism(np.ones((1, cells)), [[variance]])
            answer = fast.solve(dm.ReuseFitness(dm.workloads.identity(cells), 1.0, released), tol=1e-9)
            b = max(cells / variance, 1.0)
            a = (cells - 1) / (cells - 1 / b)
            assert contains(answer.certificate, (a * (cells - 1) + b) / cells, 1e-12), (cells, variance)

    def test_no_release_is_fitness_for_use(self) -> None:
        nothing = dm.LinearGaussianMechanism(np.zeros((0, 8)), np.zeros((0, 0)))
        workload = dm.workloads.prefix(8)
        answer = fast.solve(dm.ReuseFitness(workload, 1.0, nothing))
        alone = fast.solve(dm.FitnessForUse(workload, 1.0))
        np.testing.assert_array_equal(answer.primal, alone.primal)
        assert answer.objective == alone.objective
        assert answer.lower_bound == pytest.approx(alone.lower_bound, rel=1e-14)
        further = answer.problem.new_mechanism(answer.primal)
        np.testing.assert_allclose(further.cost_matrix, alone.mechanism.cost_matrix, rtol=1e-12)

    def test_a_wish_that_is_met_costs_nothing(self) -> None:
        problem = instances()["met"]
        for answer in (fast.solve(problem), reference.solve(problem)):
            further = problem.new_mechanism(answer.primal)
            assert answer.gap <= 1e-12 and answer.objective == pytest.approx(1 / 3, rel=1e-12)
            assert further.rank == 0 and further.squared_privacy_cost == 0

    def test_half_of_its_own_optimum_is_reused_in_full(self) -> None:
        alone = fast.solve(dm.FitnessForUse(dm.workloads.prefix(8), 1.0), tol=1e-9)
        half = dm.LinearGaussianMechanism(np.eye(8), 2 * alone.primal)
        answer = fast.solve(dm.ReuseFitness(dm.workloads.prefix(8), 1.0, half))
        assert answer.objective == pytest.approx(alone.objective, rel=1e-6)


class TestLies:
    def test_one_that_forgets_the_release_and_a_false_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = instances()["plain"]
        honest = fast.solve(problem, tol=1e-7)
        alone = fast.solve(dm.FitnessForUse(problem.workload, 1.0)).primal
        judged = problem.certify(alone, honest.dual)
        assert not judged.feasible and judged.gap == np.inf
        monkeypatch.setattr(released.ReleasedRows, "bound", lambda *given: (1e6, 1e-15))
        with pytest.raises(dm.errors.CertificateError, match="below the proven bound"):
            problem.certify(honest.primal, honest.dual)


class TestInput:
    WISH = dm.workloads.prefix(3)

    def test_what_is_refused_is_named(self) -> None:
        cells, other = unit(np.eye(3)), unit(np.eye(4))
        with pytest.raises(dm.errors.InputTypeError, match="released must be a LinearGaussianMechanism"):
            dm.ReuseFitness(self.WISH, 1.0, np.eye(3))  # type: ignore[arg-type]
        with pytest.raises(dm.errors.InvalidInputError, match="released must have 3 cells, as the workload, got 4"):
            dm.ReuseFitness(self.WISH, 1.0, other)
        with pytest.raises(dm.errors.InvalidInputError, match="targets must be positive"):
            dm.ReuseFitness(self.WISH, 0.0, cells)
        exact = dm.LinearGaussianMechanism(np.eye(3), np.diag([1, 1, 0]))
        with pytest.raises(dm.errors.InvalidInputError, match="must not be exact in any query that differs"):
            dm.ReuseFitness(self.WISH, 1.0, exact)

    def test_duals_of_another_shape(self) -> None:
        problem = dm.ReuseFitness(self.WISH, 1.0, unit(np.eye(3) / 9))
        cases: list[tuple[object, str]] = [
            ((np.ones(3), np.ones(3)), "weights on neighbours, queries and the release"),
            ((np.ones(3), np.ones(2), np.eye(3)), "on queries must be 3, one per query, got 2"),
            ((np.ones(3), np.ones(3), np.eye(2)), r"shape \(3, 3\), got \(2, 2\)"),
            ((np.ones(3), np.ones(3), "Ω"), "must be a number or an array of numbers"),
        ]
        for dual, message in cases:
            with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError), match=message):
                problem.certify(np.eye(3) / 9, dual)

    def test_what_no_neighbour_changes_may_be_exact(self) -> None:
        problem = instances()["total exact"]
        assert len(problem.release) == 5
        moves = problem.release @ REPLACE
        np.testing.assert_allclose((moves**2).sum(axis=0), problem.released.profile, rtol=1e-9)

    def test_loose_targets_are_named(self) -> None:
        problem = dm.ReuseFitness(dm.workloads.identity(3), [1, 1, 50], unit(np.eye(3) / 2))
        answer = fast.solve(problem)
        np.testing.assert_array_equal(problem.loose(answer.primal, 1e-3), [2])
        np.testing.assert_array_equal(answer.binding, [0, 1])


class TestThreeWays:
    @given(seed=seeds)
    @settings(quick, max_examples=8)
    def test_each_is_at_least_as_good_as_the_last(self, seed: int) -> None:
        problem = random_problem(seed)
        naive, residual, joint = compare_reuse(problem.workload, problem.targets, problem.released)
        assert naive.total >= residual.total * (1 - 1e-8)
        assert residual.total >= joint.bound * (1 - 1e-8) and joint.excess <= 2 * TOL
        for way in (naive, residual, joint):
            # What both hold adds up; a stack is refused where rows depend on others but for rounding.
            cost, rows = problem.released.cost_matrix + way.further.cost_matrix, problem.workload.dense()
            variances = np.sum(rows @ np.linalg.pinv(cost, rcond=1e-9, hermitian=True) * rows, axis=1)
            assert np.all(variances <= problem.targets * (1 + 1e-6))

    def test_both_margins_of_a_table_of_3_by_4(self) -> None:
        domain = dm.Domain({"a": 3, "b": 4})
        margins = dm.workloads.marginals(domain, ways=(1,)).dense()
        wish = dm.workloads.marginals(domain, sets=[("a", "b"), ("a",)])
        ways = compare_reuse(wish, 3.0, dm.LinearGaussianMechanism(margins, 5 * np.eye(7)))
        assert [round(way.total, 3) for way in ways] == [0.933, 0.622, 0.588]

    def test_what_two_mechanisms_share_is_counted_twice(self) -> None:
        """``C_1 + C_2 = C'_1 + C'_2 + 2 C_*``."""
        for seed in range(5):
            rng = np.random.default_rng(seed)
            pair = [unit(rng.standard_normal((4, 5))) for _ in range(2)]
            common = fast.solve(dm.CommonMechanism(pair)).mechanism
            both = sum(dm.residual(each, common).cost_matrix for each in pair) + 2 * common.cost_matrix
            np.testing.assert_allclose(sum(each.cost_matrix for each in pair), both, atol=1e-8)


AXES = dm.Domain({"a": 3, "b": 4})
GROUPS = dm.Workload(np.kron(np.eye(2), np.ones(2)))


def union(**tables: Any) -> dm.Workload:
    return dm.workloads.union(AXES, tables)


CELLS, SUMS, VALUES = union(cells=["a", "b"]), union(sums={"b": dm.workloads.prefix(4)}), union(a=["a"], b=["b"])
BOTH = union(sums_b={"b": dm.workloads.prefix(4)}, sums_a={"a": dm.workloads.prefix(3)})
ONE_WAY, TWO_WAY = (dm.workloads.marginals(AXES, ways=(ways,)) for ways in (1, 2))
OF_TABLES: dict[str, tuple[dm.Workload, dm.Workload, Any, Any]] = {
    "margins, then cells": (ONE_WAY, TWO_WAY, 1.0, None),
    "cells, then margins": (TWO_WAY, ONE_WAY, 1.0, None),
    "nothing further": (CELLS, CELLS, 2.5, None),
    "sums, then cells": (SUMS, CELLS, 1.5, None),
    "cells, then sums": (CELLS, BOTH, {"sums_b": 4.0, "sums_a": 3.0}, None),
    "groups, then values": (union(g={"b": GROUPS}), VALUES, 1.0, None),
    "one replaced": (SUMS, CELLS, 1.5, "replace"),
    "replaced within a": (union(g={"b": GROUPS}), VALUES, 1.0, "replace within a"),
    "two records": (SUMS, VALUES, 1.5, "add-remove:2"),
}
"""Problems on the blocks of tables: what was released, what is wished for, with its targets, and the neighbours."""


@pytest.fixture(scope="module", params=OF_TABLES)
def tables(request: pytest.FixtureRequest) -> dm.ReuseFitness:
    earlier, wish, targets, rule = OF_TABLES[request.param]
    known = fast.solve(dm.FitnessForUse(earlier, 2.0, neighbours=rule, geometry="blocks"), tol=1e-8).mechanism
    return dm.ReuseFitness(wish, targets, known)


@pytest.fixture(scope="module")
def found(tables: dm.ReuseFitness) -> dm.Solution:
    return fast.solve(tables, tol=TOL)


class TestOnBlocks:
    @pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")  # of the matrix, next to no noise
    def test_both_layers_and_the_matrix_agree(self, tables: dm.ReuseFitness, found: dm.Solution) -> None:
        """The matrix of the release knows nothing of symmetry, and has the same optimum."""
        asked, targets = dm.Workload(tables.workload.dense()), tables.known.wish.per_query()
        written = dm.ReuseFitness(asked, targets, tables.released.dense())
        answers = found, reference.solve(tables), fast.solve(written, tol=TOL)
        lowest = max(each.lower_bound * (1 - each.certificate.resolution) for each in answers)
        assert found.status is dm.Status.CERTIFIED
        assert lowest <= min(each.objective * (1 + each.certificate.resolution) for each in answers)

    def test_release_and_further_make_up_the_total(self, tables: dm.ReuseFitness, found: dm.Solution) -> None:
        further = tables.new_mechanism(found.primal)
        total = found.mechanism.costs
        np.testing.assert_allclose(
            _costs(tables, further), total - _costs(tables, tables.released), atol=1e-6 * total.max()
        )
        variances = found.mechanism.dense().variances(dm.Workload(tables.workload.dense()))
        assert np.all(variances <= tables.known.wish.per_query() * (1 + 1e-8))

    def test_any_weights_prove_a_bound(self, tables: dm.ReuseFitness, found: dm.Solution) -> None:
        rng, geometry = np.random.default_rng(3), tables.geometry
        for _ in range(5):
            held = dm.duals.BlockPoint(
                rng.exponential(size=len(geometry.keys)),
                tuple(_square(rng, len(block.moves)) for block in geometry.matrix_blocks),
            )
            moves = rng.exponential(size=geometry.reach.shape[0])
            moves[1:][rng.random(len(moves) - 1) < 0.5] = 0.0
            weights = moves, rng.exponential(size=len(geometry.tables)), held
            certificate = tables.certify(found.primal, weights)
            assert 0 < certificate.lower_bound <= found.objective * (1 + 1e-9)

    def test_what_is_released_is_a_constraint(
        self, tables: dm.ReuseFitness, found: dm.Solution, tmp_path: Path
    ) -> None:
        """Noise that meets the targets with room, and from which the release does not follow, is no answer."""
        louder = found.primal.scaled(1 + 1e-3)
        assert tables.certify(louder, found.dual).violation >= 0.9e-3
        assert tables.certify(found.primal, found.dual).feasible
        dm.save(found, tmp_path / "answer.npz")
        again = dm.load(tmp_path / "answer.npz")
        assert again.problem == tables
        assert (again.objective, again.lower_bound) == (found.objective, found.lower_bound)


def test_a_release_of_tables_is_reused_by_tables_of_its_own_attributes() -> None:
    known = dm.BlockMechanism.of_tables(dm.workloads.marginals({"a": 3, "b": 4}, ways=1))
    other = dm.workloads.marginals({"a": 3, "c": 4}, ways=1)
    with pytest.raises(dm.errors.InvalidInputError, match="released must be on the attributes of the workload"):
        dm.ReuseFitness(other, 1.0, known)
    with pytest.raises(dm.errors.InvalidInputError, match="neighbours must be those of the release"):
        dm.ReuseFitness(dm.workloads.marginals({"a": 3, "b": 4}, ways=2), 1.0, known, neighbours="replace")
    with pytest.raises(dm.errors.InvalidInputError, match="geometry 'blocks' takes"):
        dm.ReuseFitness(dm.workloads.prefix(12), 1.0, known)
    twice = MarginalWorkload(known.domain, [(0,), (0,), (1,)])
    sums = dm.BlockMechanism.of_tables(dm.workloads.union({"a": 3, "b": 4}, {"s": {"b": dm.workloads.prefix(4)}}))
    with pytest.raises(dm.errors.InvalidInputError, match="workload must have each table once"):
        dm.ReuseFitness(twice, [1.0, 0.5, 1.0], sums)
    written = dm.ReuseFitness(dm.Workload(twice.dense()), np.repeat([1, 0.5, 1], [3, 3, 4]), known.dense())
    first, second = (
        fast.solve(each).certificate.interval for each in (dm.ReuseFitness(twice, [1, 0.5, 1], known), written)
    )
    assert max(first[0], second[0]) <= min(first[1], second[1])
    with pytest.raises(dm.errors.InvalidInputError, match="exact proofs of reuse"):
        dm.prove(fast.solve(dm.ReuseFitness(dm.workloads.marginals({"a": 3, "b": 4}, ways=2), 1.0, known)))


def _square(rng: np.random.Generator, size: int) -> Array:
    factor = rng.standard_normal((size, size))
    return factor @ factor.T


def _costs(problem: dm.ReuseFitness, mechanism: dm.BlockMechanism) -> Array:
    """Return what kinds of neighbours pay for a mechanism, as the blocks of the problem number them."""
    frame = TableBlocks([problem.mechanism(problem.feasible(_ones(problem))), mechanism])
    return np.asarray(frame.refined(mechanism).costs)


def _ones(problem: dm.ReuseFitness) -> dm.duals.BlockPoint:
    geometry = problem.geometry
    eyes = tuple(np.eye(len(block.moves)) for block in geometry.matrix_blocks)
    return dm.duals.BlockPoint(np.ones(len(geometry.keys)), eyes)
