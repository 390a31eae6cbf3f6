"""Each neighbour matrix costs what the brute force over all data sets costs that it stands for."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, neighbours
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.moves import unmoved_directions
from dualmech.validate import Array

quick = settings(max_examples=24)
seeds = st.integers(0, 10_000)


def cost_matrix(d: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((rng.integers(1, d + 1), d))
    return factor.T @ factor


def cost(matrix: Array, moves: Iterable[Array]) -> float:
    return max(float(move @ matrix @ move) for move in moves)


def columns(matrix: sp.csc_array) -> list[Array]:
    return list(matrix.toarray().T)


def counts(cells: Sequence[int], d: int) -> Array:
    return np.bincount(np.array(cells, dtype=int), minlength=d).astype(np.float64)


def data_sets(d: int, most: int) -> list[Array]:
    """All multisets of at most `most` records, as data vectors."""
    chosen = (c for n in range(most + 1) for c in itertools.combinations_with_replacement(range(d), n))
    return [counts(cells, d) for cells in chosen]


@quick
@given(st.integers(1, 4), seeds)
def test_add_or_remove(d: int, seed: int) -> None:
    matrix = cost_matrix(d, seed)
    pairs = [x - y for x in data_sets(d, 3) for y in data_sets(d, 3) if np.abs(x - y).sum() == 1]
    assert cost(matrix, columns(neighbours.add_or_remove(d))) == pytest.approx(cost(matrix, pairs))
    assert sp.issparse(neighbours.add_or_remove(d))
    np.testing.assert_array_equal(neighbours.add_or_remove(d).toarray(), np.eye(d))


@quick
@given(st.integers(2, 4), seeds)
def test_replace_one(d: int, seed: int) -> None:
    matrix = cost_matrix(d, seed)
    tables = list(itertools.product(range(d), repeat=3))
    pairs = [
        counts(a, d) - counts(b, d)
        for a in tables
        for b in tables
        if sum(left != right for left, right in zip(a, b, strict=True)) == 1
    ]
    assert cost(matrix, columns(neighbours.replace_one(d))) == pytest.approx(cost(matrix, pairs))


@quick
@given(st.integers(2, 9))
def test_replace_one_lists_every_pair_once(d: int) -> None:
    matrix = neighbours.replace_one(d)
    assert matrix.shape == (d, d * (d - 1) // 2)
    seen = [(int(np.flatnonzero(c == 1)[0]), int(np.flatnonzero(c == -1)[0])) for c in columns(matrix)]
    assert seen == [(u, v) for u in range(d) for v in range(d) if u < v]
    assert not np.any(matrix.sum(axis=0)), "the total does not move"


@quick
@given(st.integers(1, 4), st.integers(1, 3), seeds)
def test_household_joins_or_leaves(d: int, members: int, seed: int) -> None:
    matrix = cost_matrix(d, seed)
    joins = data_sets(d, members)
    mixed = [x - y for x in joins for y in joins if np.abs(x - y).sum() <= members]
    reduced = columns(neighbours.household(d, members))
    assert cost(matrix, reduced) == pytest.approx(cost(matrix, joins))
    assert cost(matrix, reduced) == pytest.approx(cost(matrix, mixed))
    assert len(reduced) == d


@quick
@given(st.integers(2, 3), st.integers(1, 3), seeds)
def test_household_replaces(d: int, members: int, seed: int) -> None:
    matrix = cost_matrix(d, seed)
    tables = list(itertools.product(range(d), repeat=members))
    moves = [counts(a, d) - counts(b, d) for a in tables for b in tables]
    reduced = columns(neighbours.household(d, members, replace=True))
    assert cost(matrix, reduced) == pytest.approx(cost(matrix, moves))


@quick
@given(st.integers(1, 6), st.data())
def test_compositions_count_records(d: int, data: st.DataObject) -> None:
    group = st.lists(st.integers(0, d - 1), min_size=1, max_size=6)
    groups = data.draw(st.lists(group, min_size=1, max_size=6))
    expected = np.array([[float(members.count(cell)) for members in groups] for cell in range(d)])
    matrix = neighbours.compositions(d, groups)
    np.testing.assert_array_equal(matrix.toarray(), expected)
    np.testing.assert_array_equal(neighbours.compositions(d, iter(map(np.array, groups))).toarray(), expected)
    assert np.all(matrix.data != 0)


def test_a_part_of_a_household_can_cost_more_than_the_whole() -> None:
    # Opposite effects cancel when both members leave: this is why the docstring asks to list the parts.
    matrix = np.array([[1.0, -1.0], [-1.0, 1.0]])
    assert cost(matrix, columns(neighbours.compositions(2, [(0, 1)]))) == 0
    assert cost(matrix, columns(neighbours.compositions(2, [(0, 1), (0,)]))) == 1


def test_sizes_and_compositions_are_checked() -> None:
    for build in (neighbours.add_or_remove, neighbours.replace_one, lambda d: neighbours.household(d, 2)):
        for wrong in (0, -1, 2.0, "3", None, True, 10**12):
            with pytest.raises((InvalidInputError, InputTypeError), match="d must|too many"):
                build(wrong)  # type: ignore[arg-type]
    for wrong in (0, -2, 1.5, None, False, 10**400):
        with pytest.raises((InvalidInputError, InputTypeError), match="members"):
            neighbours.household(3, wrong)  # type: ignore[arg-type]
    for build in (neighbours.replace_one, lambda d: neighbours.household(d, 3, replace=True)):
        with pytest.raises(InvalidInputError, match="at least 2"):
            build(1)
    for groups, match in (
        ([], "at least one household"),
        ([(0,), ()], r"groups\[1\] must have at least one record"),
        ([(0, 3)], r"groups\[0\] must hold cells from 0 to 2, got 3"),
        ([(0,), (-1,)], r"groups\[1\]"),
        ([(0.0,)], "integers"),
        ([0, 1], r"groups\[0\]"),
        (["01"], r"groups\[0\]"),
        ("01", "groups"),
        (None, "groups"),
    ):
        with pytest.raises((InvalidInputError, InputTypeError), match=match):
            neighbours.compositions(3, groups)  # type: ignore[arg-type]


@quick
@given(st.integers(2, 6), st.integers(1, 5), st.booleans(), seeds)
def test_a_rule_is_known_by_its_matrix(d: int, members: int, replace: bool, seed: int) -> None:
    rule = neighbours.Relation(replace, members)
    matrix = neighbours.household(d, members, replace)
    assert neighbours.Relation.matching(matrix) == rule
    assert neighbours.Relation.matching(matrix.toarray()) == rule
    other = matrix.toarray()
    other[tuple(np.random.default_rng(seed).integers(0, other.shape))] += 0.5
    assert neighbours.Relation.matching(other) is None
    assert neighbours.Relation.matching(np.hstack([matrix.toarray(), np.ones((d, 1))])) is None


@pytest.mark.parametrize("family", [dm.FitnessForUse, dm.TotalVariance])
def test_a_total_beside_a_split_is_not_moved_by_replacement(family: Any) -> None:
    """Rounding in the rows of the basis was taken for what neighbours move, so that nothing was released exactly."""
    for cells, part in ((2, 1), (3, 1), (5, 2), (6, 5), (7, 3), (9, 4), (10, 3), (11, 1), (11, 6), (11, 10)):
        signs = np.where(np.arange(cells) < part, 1.0, -1.0)
        problem = family(dm.Workload([np.ones(cells), signs]), neighbours="replace", geometry="dense")
        assert len(problem.geometry.unmoved) == 1
        answer = fast.solve(problem)
        assert answer.status is dm.Status.CERTIFIED
        assert answer.objective == pytest.approx(4.0)


class TestContributions:
    @given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
    def test_no_persons_records_cost_more(self, d: int, records: int, most: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        groups, root = generator.integers(0, 3, d), generator.standard_normal((d, d))
        columns = dm.neighbours.contributions(d, groups, records, most).toarray()
        largest = (columns * (root.T @ root @ columns)).sum(axis=0).max()
        for _ in range(30):
            z = np.zeros(d)
            for group in generator.permutation(np.unique(groups))[:most]:
                inside = np.flatnonzero(groups == group)
                np.add.at(z, generator.choice(inside, generator.integers(0, records + 1)), 1)
            assert z @ root.T @ root @ z <= largest * (1 + 1e-9) + 1e-12
        every = dm.neighbours.household(d, records * most).toarray()
        assert largest <= (every * (root.T @ root @ every)).sum(axis=0).max() * (1 + 1e-9)

    def test_solved_and_refused(self) -> None:
        months = np.repeat(np.arange(4), 3)
        moves = dm.neighbours.contributions(12, months, records=1, most=2)
        assert moves.shape == (12, 12 + 6 * 9)
        asked = dm.workloads.prefix(12)
        two = fast.solve(dm.FitnessForUse(asked, 1.0, neighbours=moves), tol=1e-4)
        anywhere = fast.solve(dm.FitnessForUse(asked, 1.0, neighbours="add-remove:2"), tol=1e-4)
        assert two.status is dm.Status.CERTIFIED and two.objective < anywhere.lower_bound
        with pytest.raises(dm.errors.InvalidInputError, match="add-remove:60 bounds"):
            dm.neighbours.contributions(400, np.arange(400) % 100, 2, 30)
        with pytest.raises(dm.errors.InvalidInputError, match="groups must have 3"):
            dm.neighbours.contributions(3, [0, 1], 1, 1)


class TestWhereContributionsAreTaken:
    """A person with records in several groups: where her differences are taken, and what bounds them elsewhere."""

    @given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 3))
    def test_the_bound_loses_a_factor_of_the_groups_squared_at_most(self, seed: int, records: int, most: int) -> None:
        generator = np.random.default_rng(seed)
        cells = int(generator.integers(2, 7))
        groups = generator.integers(0, 3, cells)
        factor = generator.normal(size=(cells, cells))
        cost = factor.T @ factor
        moves = neighbours.contributions(cells, groups, records, most).toarray()
        together = min(most, len(set(groups.tolist())))
        exact = np.einsum("is,ij,js->s", moves, cost, moves).max()
        bound = (records * together) ** 2 * cost.diagonal().max()
        assert exact <= bound * (1 + 1e-12) and bound <= together**2 * exact * (1 + 1e-12)

    def test_small_domains_of_any_structure_are_taken_on_a_matrix(self) -> None:
        moves = neighbours.contributions(12, np.repeat(range(3), 4), records=2, most=2)
        months = dm.Domain({"month": 3, "age": 4})
        prefixes = {"age": dm.workloads.prefix(4)}
        for workload in (
            dm.workloads.marginals(months, ways=(1, 2)),
            dm.workloads.union(months, {"ages": prefixes, "months": ["month"]}),
            dm.workloads.query_tables(months, prefixes, ways=1),
            dm.workloads.kron(dm.workloads.prefix(3), dm.workloads.prefix(4)),
            dm.workloads.prefix(12),
        ):
            found = dm.fast.solve(dm.FitnessForUse(workload, neighbours=moves), tol=1e-5)
            bound = dm.fast.solve(dm.FitnessForUse(workload), tol=1e-5)
            assert found.problem.geometry.name == "dense" and found.status is dm.Status.CERTIFIED
            low, high = found.certificate.interval
            assert high >= 4 * bound.certificate.interval[0] and low <= 16 * bound.certificate.interval[1]

    @pytest.mark.parametrize(
        ("geometry", "told"),
        [("blocks", "add-remove:4"), ("product", "16 times its squared cost"), ("stream", "16 times")],
    )
    def test_other_geometries_refuse_them_with_a_bound(self, geometry: str, told: str) -> None:
        moves = neighbours.contributions(4, [0, 0, 1, 1], records=2, most=2)
        with pytest.raises(dm.errors.InvalidInputError, match=told):
            dm.FitnessForUse(dm.workloads.prefix(4), neighbours=moves, geometry=geometry)

    def test_large_ones_are_refused_before_any_work(self) -> None:
        for workload, moves, told in (
            (dm.workloads.marginals([10] * 60, ways=1), np.eye(3), "one per cell, got 3"),
            (dm.workloads.marginals([20, 20, 20], ways=3), sp.eye_array(8000), "'add-remove:1'"),
            (dm.workloads.prefix(5000), sp.eye_array(5000) * 3, "9 times its squared cost"),
            (dm.workloads.prefix(5000), "replace", "4 times its squared cost"),
            (dm.workloads.prefix(5000), "add-remove:3", "9 times its squared cost"),
            (dm.workloads.prefix(3000), "replace", "need a matrix of 3000 x 4498500"),
        ):
            with pytest.raises(dm.errors.InvalidInputError, match=told):
                dm.FitnessForUse(workload, neighbours=moves)


@quick
@given(seeds)
def test_directions_that_no_neighbour_moves_are_those_of_the_singular_values(seed: int) -> None:
    """A quick estimate of the condition decides the usual case alone: that there are none."""
    rng = np.random.default_rng(seed)
    cells, pairs = int(rng.integers(2, 12)), int(rng.integers(2, 16))
    moves = sp.random_array((cells, pairs), density=0.4, rng=rng).toarray() * 10.0 ** rng.integers(-3, 4, (cells, 1))
    moves[0, 0] = 1.0
    still = unmoved_directions(moves)
    rank = np.linalg.matrix_rank(moves / np.maximum(np.linalg.norm(moves, axis=1), 1e-300)[:, None])
    assert len(still) == cells - rank
    assert np.abs(still @ moves).max(initial=0.0) <= 1e-9 * np.abs(moves).max()
    nearly = np.vstack([np.eye(3), [[1, 1, 1 + 1e-15]]])  # of rank 3 but for rounding
    assert len(unmoved_directions(nearly)) == 1
    ill = np.array([[1.0, 1.0], [1.0, 1.0 + 1e-11]])  # ill-conditioned, and of full rank
    assert len(unmoved_directions(ill)) == 0
