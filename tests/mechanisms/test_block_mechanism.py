"""The mechanism of a union of tables, against the one written out on the cells, and its noisy tables."""

from __future__ import annotations

import itertools
import math
from typing import Any, cast

import numpy as np
import pytest

import dualmech as dm
from dualmech import fast, linalg
from dualmech.geometry.attribute_symmetry import AttributeSymmetry
from dualmech.geometry.blocks import Blocks
from dualmech.mechanisms import block_noise
from dualmech.validate import Array
from dualmech.workloads.unions import UnionWorkload

GROUPS = dm.Workload([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]])
SIGNED = dm.Workload([[1, 1, 0, 0, 0], [1, -1, 0, 0, 0]])
FEW = {"age": dm.Workload([[1, 2, 3, 4], [1, 1, 0, 0]]), "b": dm.Workload([[1, 1, 1], [1, 2, 0]])}
UNIONS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "marginals": ({"a": 2, "b": 3, "c": 2}, {"ab": ["a", "b"], "bc": ["b", "c"], "total": []}),
    "prefixes": (
        {"age": 5, "sex": 2, "race": 3},
        {"ages": {"age": dm.workloads.prefix(5), "sex": None}, "races": ["race", "sex"], "both": ["age", "race"]},
    ),
    "circle": (
        {"hour": 6, "sex": 2, "age": 4},
        {
            "runs": {"hour": dm.workloads.circular_ranges(6), "age": dm.workloads.prefix(4)},
            "hours": ["hour", "sex"],
            "ages": ["sex", "age"],
        },
    ),
    "circles": (
        {"hour": 5, "day": 6},
        {
            "waves": {"hour": dm.workloads.circular([[1, 2, 0, 0, -1]]), "day": dm.workloads.differences(6)},
            "hours": {"hour": dm.workloads.differences(5)},
            "days": ["day"],
        },
    ),
    "groups": (
        {"age": 5, "sex": 2},
        {
            "groups": {"age": GROUPS},
            "signs": {"age": SIGNED, "sex": dm.workloads.total(2)},
            "nothing": {"age": dm.Workload([[0.0] * 5]), "sex": None},
        },
    ),
    "few": ({"age": 4, "b": 3}, {"few": FEW, "b": {"b": None}}),
    "runs": ({"hour": 6}, {"runs": {"hour": dm.workloads.circular_ranges(6, [3])}}),
    "differences": ({"hour": 6}, {"differences": {"hour": dm.workloads.differences(6)}}),
    "single values": ({"a": 1, "b": 1}, {"a": ["a"]}),
}


def union(name: str) -> dm.workloads.UnionWorkload:
    return dm.workloads.union(*UNIONS[name])


def mechanism_of(name: str, seed: int = 0) -> dm.BlockMechanism:
    """Return random noise on the blocks of a union: no solver's."""
    blocks, rng = Blocks.of(union(name)), np.random.default_rng(seed)
    roots = [rng.normal(size=(len(block.moves), len(block.moves) + 2)) for block in blocks.matrix_blocks]
    point = dm.duals.BlockPoint(rng.uniform(0.5, 3, len(blocks.keys)), tuple(root @ root.T for root in roots))
    return dm.BlockMechanism(blocks, point)


def silent(deviation: float, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape)


def product_query(workload: dm.workloads.UnionWorkload, rng: np.random.Generator) -> tuple[dict[str, Array], Array]:
    """Return a random combination of a table's queries that is a product, by factors and over the cells."""
    assert workload.domain is not None
    table = workload.tables[rng.integers(len(workload.tables))]
    factors = {}
    for axis, asked in table.queries:
        matrix = np.eye(workload.domain.shape[axis]) if asked is None else asked.dense()
        factors[workload.domain.names[axis]] = rng.normal(size=len(matrix)) @ matrix
    written = [factors.get(name, np.ones(size))[None, :] for name, size in workload.domain.sizes]
    return factors, linalg.kronecker(written)[0]


def records_of(workload: dm.workloads.UnionWorkload) -> tuple[Any, Array]:
    assert workload.domain is not None
    shape = workload.domain.shape
    codes = np.random.default_rng(1).integers(0, shape, (40, len(shape)))
    counts = np.zeros(shape)
    np.add.at(counts, tuple(codes.T), 1)
    return codes, counts.ravel()


def asked_of(mechanism: dm.BlockMechanism) -> UnionWorkload:
    assert isinstance(mechanism.workload, UnionWorkload)
    return mechanism.workload


def all_tables(mechanism: dm.BlockMechanism, coordinates: Any) -> Array:
    return np.concatenate([mechanism.recombine(coordinates, name).ravel() for name in asked_of(mechanism).table_names])


@pytest.mark.parametrize("name", UNIONS)
class TestAgainstTheCells:
    def test_costs_and_variances(self, name: str) -> None:
        mechanism = mechanism_of(name)
        workload, dense = asked_of(mechanism), mechanism.dense()
        assert workload.domain is not None
        orbits = np.zeros(workload.domain.cells, dtype=int)
        for axis in mechanism.wide:
            symmetry = mechanism.symmetries[axis]
            orbits = orbits * len(symmetry.sizes) + symmetry.labels[workload.domain.codes()[axis]]
        np.testing.assert_allclose(dense.profile, mechanism.costs[orbits], rtol=1e-9, atol=1e-12)
        assert mechanism.rho == pytest.approx(dense.rho, rel=1e-9)
        assert mechanism.epsilon(1e-6) == pytest.approx(dense.epsilon(1e-6), rel=1e-9)
        found = [mechanism.variances(table) for table in workload.table_names]
        assert [each.shape for each in found] == [workload.table_shape(table) for table in workload.tables]
        written = dense.variances(dm.Workload(workload.matrix))
        np.testing.assert_allclose(
            np.concatenate([each.ravel() for each in found]), written, rtol=1e-9, atol=1e-9 * written.max()
        )

    def test_product_queries(self, name: str) -> None:
        mechanism, rng = mechanism_of(name), np.random.default_rng(2)
        dense = mechanism.dense()
        for _ in range(5):
            (first, one), (second, two) = (product_query(asked_of(mechanism), rng) for _ in range(2))
            covariance = dense.covariance(dm.Workload([one, two, one + two]))
            scale = np.abs(covariance).max()
            assert mechanism.variance_of(first) == pytest.approx(covariance[0, 0], abs=1e-9 * scale)
            assert mechanism.covariance_of(first, second) == pytest.approx(covariance[0, 1], abs=1e-9 * scale)
            assert mechanism.covariance_of(second, first) == pytest.approx(covariance[0, 1], abs=1e-9 * scale)

    def test_plain_noise_on_every_query(self, name: str) -> None:
        workload = union(name)
        variances = np.random.default_rng(3).uniform(0.5, 3, len(workload.tables))
        per_query = np.repeat(variances, [math.prod(workload.table_shape(table)) for table in workload.tables])
        matrix = workload.matrix.toarray()
        asked = np.any(matrix, axis=1)
        plain = dm.LinearGaussianMechanism(matrix[asked], np.diag(per_query[asked]))
        found = dm.BlockMechanism.of_tables(workload, variances)
        np.testing.assert_allclose(found.dense().cost_matrix, plain.cost_matrix, rtol=0, atol=1e-11)
        assert found.squared_privacy_cost == pytest.approx(plain.squared_privacy_cost, rel=1e-11)

    def test_without_noise_the_tables_are_those_of_the_records(self, name: str) -> None:
        mechanism = mechanism_of(name)
        codes, counts = records_of(asked_of(mechanism))
        exact = asked_of(mechanism).matrix @ counts
        tables = dm.records.count(codes, mechanism.needed_tables)
        answers = all_tables(mechanism, mechanism.measure(tables, sampler=silent))
        np.testing.assert_allclose(answers, exact, rtol=0, atol=1e-10)
        slight = mechanism.scaled(1e-16).simulate(tables, 5)
        np.testing.assert_allclose(np.concatenate([each.ravel() for each in slight.values()]), exact, atol=1e-5)


class TestNoisyTables:
    @pytest.mark.parametrize("name", ["circles", "few"])
    def test_are_unbiased_and_as_noisy_as_stated(self, name: str) -> None:
        """At five standard errors of every mean and covariance one seed in a hundred would fail."""
        mechanism, runs = mechanism_of(name), 200
        tables = {axes: np.zeros(shape) for axes, shape in shapes_needed(mechanism)}
        rng = np.random.default_rng(4)
        drawn = np.array([all_tables(mechanism, mechanism.measure(tables, rng)) for _ in range(runs)])
        expected = mechanism.dense().covariance(dm.Workload(asked_of(mechanism).matrix))
        variances = np.diagonal(expected)
        assert np.all(np.abs(drawn.mean(axis=0)) <= 5 * np.sqrt(variances / runs))
        errors = np.sqrt((np.outer(variances, variances) + expected**2) / runs)
        assert np.all(np.abs(drawn.T @ drawn / runs - expected) <= 5 * errors)

    def test_agree_with_each_other_and_may_be_covered_by_other_tables(self) -> None:
        mechanism = mechanism_of("prefixes")
        codes, _ = records_of(asked_of(mechanism))
        noisy = mechanism.simulate(dm.records.count(codes, mechanism.needed_tables), 6)
        assert [*noisy] == ["ages", "races", "both"]
        np.testing.assert_allclose(noisy["ages"][-1], noisy["races"].sum(axis=1), atol=1e-9)  # by sex
        np.testing.assert_allclose(noisy["ages"].sum(axis=1), noisy["both"].sum(axis=1).cumsum(), atol=1e-9)
        np.testing.assert_allclose(noisy["races"].sum(axis=0), noisy["both"].sum(axis=0), atol=1e-9)
        assert abs(noisy["both"].sum() - 40) > 1e-3
        again = mechanism.simulate(dm.records.count(codes, mechanism.needed_tables), 6)
        assert all(np.array_equal(noisy[each], again[each]) for each in noisy)
        mechanism = mechanism_of("prefixes")
        codes, counts = records_of(asked_of(mechanism))
        first = mechanism.measure({(0, 1, 2): counts.reshape(5, 2, 3)}, 7)
        second = mechanism.measure(dm.records.count(codes, mechanism.needed_tables), 7)
        for key in first:
            np.testing.assert_allclose(first[key], second[key], atol=1e-9)

    def test_classes_that_a_block_does_not_tell_apart_are_not_counted(self) -> None:
        ages = dm.workloads.prefix(5)
        asked: dict[str, Any] = {
            "ages": {"age": ages, "sex": None},
            "heights": {"height": dm.workloads.prefix(4)},
            "races": ["race"],
        }
        workload = dm.workloads.union({"age": 5, "sex": 2, "race": 3, "height": 4}, asked)
        mechanism = dm.BlockMechanism.of_tables(workload)
        assert {*mechanism.needed_tables.sets} == {("age", "height"), ("age", "sex"), ("race",)}
        codes, counts = records_of(workload)
        answers = all_tables(
            mechanism, mechanism.measure(dm.records.count(codes, mechanism.needed_tables), sampler=silent)
        )
        np.testing.assert_allclose(answers, workload.matrix @ counts, atol=1e-10)

    def test_missing_misshapen_and_too_large_tables_are_refused(self) -> None:
        mechanism = mechanism_of("prefixes")
        tables: Any = {axes: np.zeros(shape) for axes, shape in shapes_needed(mechanism)}
        measured: Any = mechanism.measure(tables, rng=0)
        no_tables: Any = [1]
        no_sampler: Any = 3
        key = next(iter(measured))
        for message, call in (
            ("tables must cover", lambda: mechanism.measure({(1,): np.zeros(2)})),
            ("tables must map tuples", lambda: mechanism.measure(no_tables)),
            ("must have shape", lambda: mechanism.measure({(0, 1, 2): np.zeros((2, 2, 2))})),
            ("sampler must be a function", lambda: mechanism.measure(tables, sampler=no_sampler)),
            ("measured must map tuples", lambda: mechanism.recombine(no_sampler, "both")),
            ("measured must hold", lambda: mechanism.recombine({}, "both")),
            ("must have shape", lambda: mechanism.recombine({**measured, key: np.zeros(9)}, "both")),
            ("table must be one of ages", lambda: mechanism.recombine(measured, "age")),
            ("table must be one of ages", lambda: mechanism.variances("age")),
        ):
            with pytest.raises(dm.errors.DualmechError, match=message):
                call()
        high = dm.Workload(np.arange(1000)[None, :] >= 18)
        domain = {"age": 1000, "income": 1000, "hours": 1000}
        mechanism = dm.BlockMechanism.of_tables(dm.workloads.union(domain, {each: {each: high} for each in domain}))
        assert mechanism.squared_privacy_cost == pytest.approx(3)
        with pytest.raises(dm.errors.InvalidInputError, match=r"age 1000 x income 1000 x hours 1000 has 1e\+09 cells"):
            mechanism.needed_tables  # noqa: B018
        cells = dm.BlockMechanism.of_tables(dm.workloads.union(domain, {"cells": [*domain]}))
        for call in (lambda: cells.variances("cells"), lambda: cells.recombine({}, "cells")):
            with pytest.raises(dm.errors.InvalidInputError, match=r"'cells' of 1e\+09 queries is too large"):
                call()

    def test_a_sampler_is_asked_once_a_block(self) -> None:
        mechanism, asked = mechanism_of("circle"), []

        def sampler(deviation: float, shape: tuple[int, ...]) -> Array:
            asked.append((deviation, shape))
            return np.zeros(shape)

        tables = {axes: np.zeros(shape) for axes, shape in shapes_needed(mechanism)}
        measured = mechanism.measure(tables, sampler=sampler)
        shapes = {
            key: (*(len(block_noise.places(mechanism.symmetries[axis], each)) for axis, each in key), len(piece.moves))
            for key, piece in mechanism.pieces.items()
        }
        assert asked == [(1.0, shape) for shape in shapes.values()]
        assert set(measured) == {tuple(axis for axis, _ in key) for key in shapes}


def shapes_needed(mechanism: dm.BlockMechanism) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    sizes = mechanism.domain.shape
    return [(axes, tuple(sizes[axis] for axis in axes)) for axes in mechanism.needed_tables.axes]


class TestWhatIsNotAnswered:
    def test_is_refused_by_name(self) -> None:
        cases: Any = (
            ("marginals", {"a": [1, 0], "c": [1, 0]}, "a x c is not answered: differences of a x differences of c"),
            ("groups", {"age": [0, 0, 1, -1, 0]}, "differences of age among its values 2 … 4"),
            ("runs", {"hour": [1, 0, 0, 0, 0, 0]}, "query of hour is not answered: hour at frequency 2"),
            ("differences", {"hour": [1, 0, 0, 0, 0, 0]}, "the total is not measured"),
            ("circles", {"hour": [1.0] * 5, "day": [1, -1, 0, 0, 0, 0], "other": [1]}, "attribute 'other'"),
            ("circles", {"hour": [1, 2]}, "must have 5 entries"),
            ("few", {"age": [1, 0, 0, 0]}, "only other sums over age x b are measured"),
            ("few", [1], "query must map"),
        )
        for name, query, message in cases:
            with pytest.raises(dm.errors.DualmechError, match=message):
                mechanism_of(name).variance_of(query)
        mechanism = mechanism_of("marginals")
        for pair in itertools.permutations([{"a": [1, 0], "c": [1, 0]}, {}]):
            with pytest.raises(dm.errors.InvalidInputError, match="not answered"):
                mechanism.covariance_of(*pair)

    def test_a_query_outside_the_span_alone_is_refused(self) -> None:
        """Of the row space of the only block with no copies, all is answered and nothing else."""
        mechanism = mechanism_of("few")
        (piece,) = mechanism.pieces.values()
        rows, rng = piece.moves, np.random.default_rng(8)
        for factors in ({"age": rng.normal(size=4), "b": rng.normal(size=3)} for _ in range(5)):
            vector = np.kron(factors["age"], factors["b"])
            assert np.linalg.norm(vector - rows.T @ (rows @ vector)) > 1e-3
            with pytest.raises(dm.errors.InvalidInputError, match="not answered"):
                mechanism.variance_of(factors)
        assert mechanism.variance_of({"age": [0, 1, 2, 3], "b": [0, -1, 1]}) > 0
        assert mechanism.variance_of({"age": [0, 0, 0, 0], "b": [1, 0, 0]}) == 0


class TestAsAnAnswer:
    def test_variances_of_marginal_tables_are_those_of_each_table(self) -> None:
        tables = dm.workloads.marginals({"a": 2, "b": 1, "c": 4}, ways=(0, 1, 2, 3))
        turned = dm.workloads.marginals({"c": 4, "a": 2, "b": 1}, ways=(1, 2))
        numbers = np.arange(1.0, len(tables.sets) + 1)
        mechanism = fast.solve(dm.FitnessForUse(tables, numbers)).mechanism
        for asked in (tables, turned):
            each = [mechanism.variance(names) for names in asked.sets]
            np.testing.assert_allclose(mechanism.variances(asked), each, rtol=1e-14)
        few = dm.BlockMechanism.of_tables(dm.workloads.marginals({"a": 2, "b": 3}, ways=1))
        with pytest.raises(dm.errors.InvalidInputError, match="a x b is not answered"):
            few.variances(dm.workloads.marginals({"a": 2, "b": 3}, ways=2))

    def test_a_solution_keeps_its_promise_and_is_scaled(self) -> None:
        targets = {"ages": 1.0, "races": 2.0, "both": 4.0}
        answer = fast.solve(dm.FitnessForUse(union("prefixes"), targets), tol=1e-8)
        mechanism = answer.mechanism
        assert mechanism.squared_privacy_cost == pytest.approx(answer.objective, rel=1e-9)
        for name, target in targets.items():
            assert mechanism.variances(name).max() <= target * (1 + 1e-9)
        assert repr(mechanism) == f"BlockMechanism({len(mechanism.pieces)} blocks, rho={mechanism.rho:.6g})"
        mechanism = mechanism_of("circle")
        louder = mechanism.scaled(4)
        assert louder.privacy_cost == pytest.approx(mechanism.privacy_cost / 2)
        np.testing.assert_allclose(louder.variances("ages"), 4 * mechanism.variances("ages"))
        factors: tuple[Any, ...] = (0, -1, np.inf, "2")
        for factor in factors:
            with pytest.raises(dm.errors.DualmechError, match="factor"):
                mechanism.scaled(factor)

    def test_other_noise_and_large_matrices_are_refused(self) -> None:
        mechanism = mechanism_of("few")
        blocks = Blocks.of(asked_of(mechanism))
        point = mechanism.point_on(blocks)
        levels, (covariance,) = point.levels, point.covariances
        for message, arguments in (
            ("blocks must be", (None, point)),
            ("blocks must be", (asked_of(mechanism), point)),
            ("primal must be", (blocks, None)),
            ("positive definite", (blocks, dm.duals.BlockPoint(levels, (-covariance,)))),
            ("must have shape", (blocks, dm.duals.BlockPoint(levels, (np.eye(2),)))),
        ):
            with pytest.raises(dm.errors.DualmechError, match=message):
                dm.BlockMechanism(*cast(Any, arguments))
        asked = dm.workloads.union({"a": 1000, "b": 1000}, {"a": ["a"], "b": ["b"]})
        with pytest.raises(dm.errors.InvalidInputError, match="1e\\+06 cells is too large for a dense matrix"):
            dm.BlockMechanism.of_tables(asked).dense()


@pytest.mark.parametrize("turning", [False, True])
@pytest.mark.parametrize("size", [4, 5, 8])
class TestComponents:
    def symmetry(self, size: int, turning: bool) -> AttributeSymmetry:
        if turning:
            return AttributeSymmetry.of([dm.workloads.circular_ranges(size)], size)
        return AttributeSymmetry.of([dm.Workload(np.arange(size)[None, :] < 2), dm.Workload(np.eye(1, size))], size)

    def test_parts_are_those_that_directions_tell(self, size: int, turning: bool) -> None:
        symmetry, rng = self.symmetry(size, turning), np.random.default_rng(size)
        assert symmetry.turning == turning
        one, two = rng.normal(size=(2, size))
        products = block_noise.inner_products(
            symmetry, *(block_noise.parts_of(symmetry, each[None, :], axis=1)[0] for each in (one, two))
        )
        rebuilt = block_noise.spread_over_values(symmetry, block_noise.class_sums(symmetry, one))
        for component, product in enumerate(products):
            directions = symmetry.directions(component)
            assert product == pytest.approx((one @ directions) @ (two @ directions), abs=1e-12)
            rebuilt = rebuilt + directions @ (one @ directions)
            if turning:
                own = block_noise.parts_of(symmetry, one)[block_noise.places(symmetry, component)]
                np.testing.assert_allclose(own, one @ directions, atol=1e-12)
        np.testing.assert_allclose(rebuilt, one, atol=1e-12)

    def test_there_and_back(self, size: int, turning: bool) -> None:
        symmetry = self.symmetry(size, turning)
        data = np.random.default_rng(size).normal(size=(3, size, 2))
        parts, sums = (each(symmetry, data, 1) for each in (block_noise.parts_of, block_noise.class_sums))
        assert parts.shape[1] == size - turning
        assert sums.shape[1] == len(symmetry.sizes)
        even = block_noise.spread_over_values(symmetry, sums, 1)
        np.testing.assert_allclose(block_noise.from_parts(symmetry, parts, 1) + even, data, atol=1e-12)


class TestNeighbours:
    @pytest.mark.parametrize(
        ("asked", "rule"),
        [
            (dm.workloads.marginals([3, 2, 4], ways=(1, 2)), "replace"),
            (dm.workloads.circular_ranges(7), "replace:2"),
            (dm.workloads.marginals([3, 2, 4], ways=(1, 2)), "add-remove:3"),
        ],
    )
    def test_cost_is_that_of_the_matrix(self, asked: dm.Workload, rule: str) -> None:
        answer = fast.solve(dm.FitnessForUse(asked, 2.0, neighbours=rule))
        made = answer.mechanism
        assert made.squared_privacy_cost == pytest.approx(answer.objective, rel=1e-9)
        assert made.dense().squared_privacy_cost == pytest.approx(answer.objective, rel=1e-9)
        assert made.scaled(0.5).squared_privacy_cost == pytest.approx(2 * answer.objective, rel=1e-9)
        twice = made.compose(made) if not made.wide else made.scaled(0.5)
        assert twice.neighbours == made.neighbours == dm.neighbours.Relation.of(rule)
        assert twice.squared_privacy_cost == pytest.approx(2 * answer.objective, rel=1e-9)

    def test_others_are_not_compared_and_a_matrix_is_refused(self) -> None:
        domain = dm.Domain({"sex": 2})
        one, two = (dm.BlockMechanism.of_levels(domain, {(0,): 2.0}, rule) for rule in (None, "replace"))
        assert one.squared_privacy_cost == pytest.approx(two.squared_privacy_cost / 4)
        for call in (one.compose, one.is_answerable_from, lambda other: dm.CommonMechanism([one, other])):
            with pytest.raises(dm.errors.InvalidInputError, match="same neighbours"):
                call(two)
        with pytest.raises(dm.errors.InputTypeError, match="neighbours must be a rule"):
            dm.BlockMechanism.of_levels(domain, {(0,): 2.0}, cast(Any, np.eye(2)))


class TestFreeBudget:
    @pytest.mark.parametrize("name", UNIONS)
    def test_a_class_of_cells_has_what_its_cells_have(self, name: str) -> None:
        made = mechanism_of(name)
        shape = made.domain.shape
        classes = [made.symmetries[axis].labels for axis in made.wide]
        sizes = [len(made.symmetries[axis].sizes) for axis in made.wide]
        where = np.unravel_index(np.arange(made.domain.cells), shape)
        own = [labels[where[axis]] for axis, labels in zip(made.wide, classes, strict=True)]
        orbit = np.ravel_multi_index(own, sizes) if own else np.zeros(made.domain.cells, dtype=np.intp)
        for alpha in (None, 3 * made.squared_privacy_cost):
            left = made.free_budget(alpha)
            assert left.shape == made.profile.shape == (math.prod(sizes),)
            np.testing.assert_allclose(
                left[orbit], made.dense().free_budget(alpha), atol=1e-9 * made.squared_privacy_cost
            )
        assert made.free_budget().min() == 0
        assert made.squared_privacy_cost == made.profile.max()

    @pytest.mark.parametrize(
        ("name", "rule"),
        [("marginals", "replace"), ("prefixes", "replace:2"), ("circle", "replace"), ("prefixes", "add-remove:3")],
    )
    def test_other_neighbours_by_their_kinds(self, name: str, rule: str) -> None:
        made = fast.solve(dm.FitnessForUse(union(name), 2.0, neighbours=rule)).mechanism
        ours, theirs = made.free_budget(), made.dense().free_budget()
        unit = made.squared_privacy_cost
        nearest = np.abs(theirs[:, None] - ours).min(axis=1)
        assert nearest.max() < 1e-8 * unit  # every pair has what one of the kinds has,
        assert np.abs(theirs[:, None] - ours).min(axis=0).max() < 1e-8 * unit  # and every kind has a pair

    def test_a_large_domain_is_not_written_out_and_less_than_the_cost_is_refused(self) -> None:
        tables = dm.workloads.marginals([10] * 60, ways=1)
        made = fast.solve(dm.FitnessForUse(tables)).mechanism
        cost = made.squared_privacy_cost
        np.testing.assert_allclose(made.free_budget(2 * cost), [cost])
        made = mechanism_of("prefixes")
        with pytest.raises(dm.errors.InvalidInputError, match="alpha must be at least"):
            made.free_budget(0.5 * made.squared_privacy_cost)
