"""Unions of product tables on geometry ``blocks``, against dense solvers, brute force and closed forms."""

import itertools
import pickle
from collections.abc import Callable
from functools import reduce
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from intervals import meet, solved

import dualmech as dm
from dualmech import crosscheck, fast, reference, workloads
from dualmech.crosscheck.agreement import Agreement
from dualmech.geometry.blocks import Blocks
from dualmech.reference import blocks as reference_blocks
from dualmech.validate import Array
from dualmech.workloads import unions

quick = settings(max_examples=10)
seeds = st.integers(0, 10_000)

Problem = dm.FitnessForUse | dm.TotalVariance


def groups_of(size: int, rng: np.random.Generator) -> dm.Workload:
    labels = rng.integers(0, max(1, size - 1), size)
    return dm.Workload(np.eye(size)[labels].T[np.unique(labels)])


def signs(size: int, rng: np.random.Generator) -> dm.Workload:
    """Anything of 0, 1 and -1; a query twice, and one of zeros."""
    rows = rng.integers(-1, 2, (2, size)).astype(float)
    return dm.Workload(np.vstack([rows, -rows[:1], np.zeros((1, size)), np.ones((1, size))]))


KINDS: tuple[Callable[[int, np.random.Generator], dm.Workload | None], ...] = (
    lambda size, rng: None,
    groups_of,
    signs,
    lambda size, rng: workloads.prefix(size),
    lambda size, rng: workloads.all_range(size),
    lambda size, rng: workloads.circular_ranges(size),
    lambda size, rng: workloads.circular_ranges(size, lengths=[1 + size // 3]),
    lambda size, rng: workloads.differences(size) if size > 1 else None,
    lambda size, rng: workloads.total(size),
    lambda size, rng: dm.Workload(rng.integers(-1, 2, (1, size))),
)


def random_workload(seed: int) -> dm.workloads.UnionWorkload:
    """Up to three attributes of 1 to 6 values, up to four tables of any queries; now and then a table twice."""
    rng = np.random.default_rng(seed)
    sizes = {name: int(size) for name, size in zip("abc", rng.integers(1, 7, rng.integers(1, 4)), strict=False)}
    while np.prod([*sizes.values()]) > 60:
        sizes.pop(next(iter(sizes)))
    tables: dict[str, dict[str, dm.Workload | None]] = {}
    for number in range(int(rng.integers(1, 5))):
        chosen = [name for name in sizes if rng.random() < 0.6]
        tables[f"t{number}"] = {name: KINDS[rng.integers(0, len(KINDS))](sizes[name], rng) for name in chosen}
    if rng.random() < 0.2:
        tables["again"] = tables["t0"]
    found = workloads.union(sizes, tables)
    return found if found.matrix.nnz else workloads.union(sizes, {**tables, "total": {}})


def numbers_for(workload: dm.workloads.UnionWorkload, seed: int) -> Array:
    return np.random.default_rng(seed).uniform(1, 9, len(workload.tables))


def written_out(problem: Problem) -> Any:
    return type(problem)(problem.workload, problem.per_query(), geometry="dense")


def random_point(blocks: Blocks, rng: np.random.Generator) -> dm.duals.BlockPoint:
    roots = [rng.standard_normal((len(block.moves),) * 2) for block in blocks.matrix_blocks]
    return dm.duals.BlockPoint(
        rng.uniform(0.1, 5, len(blocks.keys)), tuple(root @ root.T + 0.3 * np.eye(len(root)) for root in roots)
    )


def random_dual(blocks: Blocks, rng: np.random.Generator) -> dm.duals.FitnessDual:
    return dm.duals.FitnessDual(rng.uniform(0, 1, blocks.cells), rng.uniform(0, 1, len(blocks.tables)))


def cell_orbits(blocks: Blocks) -> npt.NDArray[np.intp]:
    orbits = np.zeros(1, dtype=np.intp)
    for axis, symmetry in enumerate(blocks.symmetries):
        own = symmetry.labels if axis in blocks.wide else np.zeros(len(symmetry.labels), dtype=np.intp)
        orbits = np.add.outer(orbits * (own.max() + 1), own).ravel()
    return orbits


def query_orbits(blocks: Blocks) -> npt.NDArray[np.intp]:
    numbers = np.arange(len(blocks.tables)).astype(float)
    return np.concatenate([blocks.spread(t, numbers).ravel() for t in range(len(blocks.parts))]).astype(np.intp)


def evenly(weights: Array, orbits: npt.NDArray[np.intp]) -> Array:
    return np.asarray(weights[orbits] / np.bincount(orbits)[orbits])


def measured(blocks: Blocks, point: dm.duals.BlockPoint) -> tuple[Array, Array]:
    """Return the rows and the covariance of the measurements that noise on blocks stands for, a second time.

    A coordinate of a block stands for ``mult`` orthonormal functions on its orbit, over √(mult / cells of the orbit).
    """
    rows, noise = [], []
    sizes = np.bincount(cell_orbits(blocks))
    orbit_of = blocks.reach.tocsc().indices
    single = [
        (key, np.array([orbit]), np.eye(1), np.array([[level]]))
        for key, orbit, level in zip(blocks.keys, orbit_of, point.levels, strict=True)
    ]
    several = [
        (block.key, block.cells, block.moves, own)
        for block, own in zip(blocks.matrix_blocks, point.covariances, strict=True)
    ]
    for key, orbits, moves, own in [*single, *several]:
        chosen, factors = dict(key), []
        for axis, symmetry in enumerate(blocks.symmetries):
            if axis in chosen:
                factors.append([column[None, :] for column in symmetry.directions(chosen[axis]).T])
            else:
                factors.append([np.eye(len(symmetry.sizes))[symmetry.labels].T / np.sqrt(symmetry.sizes)[:, None]])
        copies = [*itertools.product(*factors)]
        scale = np.sqrt(sizes[orbits] / len(copies))
        rows += [moves @ (scale[:, None] * reduce(np.kron, each)) for each in copies]
        noise += [own] * len(copies)
    return np.vstack(rows), scipy.linalg.block_diag(*noise)


class TestReduction:
    @quick
    @given(seeds)
    def test_noise_on_blocks_is_noise_on_cells(self, seed: int) -> None:
        workload = random_workload(seed)
        blocks, rng = dm.FitnessForUse(workload).geometry, np.random.default_rng(seed)
        point = random_point(blocks, rng)
        forms = blocks.forms(point)
        rows, noise = measured(blocks, point)
        assert forms is not None
        costs = np.einsum("ki,ki->i", rows, np.linalg.solve(noise, rows))
        np.testing.assert_allclose(costs, forms.profile[cell_orbits(blocks)], rtol=1e-8)
        answers = np.linalg.lstsq(rows.T, workload.dense().T, rcond=None)[0].T
        np.testing.assert_allclose(answers @ rows, workload.dense(), atol=1e-9)
        variances = np.einsum("jk,jk->j", answers @ noise, answers)
        np.testing.assert_allclose(variances, forms.variances[query_orbits(blocks)], rtol=1e-7, atol=1e-9)
        np.testing.assert_array_equal(np.bincount(query_orbits(blocks)), blocks.counts)

    @quick
    @given(seeds)
    def test_weights_on_orbits_prove_what_they_do_spread_evenly(self, seed: int) -> None:
        workload, rng = random_workload(seed), np.random.default_rng(seed)
        problem, total = (kind(workload, numbers_for(workload, seed)) for kind in (dm.FitnessForUse, dm.TotalVariance))
        dense, least = cast(Any, written_out(problem)), cast(Any, written_out(total))
        orbits, point = (
            (cell_orbits(problem.geometry), query_orbits(problem.geometry)),
            random_point(problem.geometry, rng),
        )
        for _ in range(3):
            dual = random_dual(problem.geometry, rng)
            weights = evenly(dual.neighbour_weights, orbits[0]), evenly(dual.query_weights, orbits[1])
            ours = problem.certify(point, dual).lower_bound
            theirs = dense.certify(np.eye(len(dense.basis)), dm.duals.FitnessDual(*weights)).lower_bound
            assert ours == pytest.approx(theirs, rel=1e-9)
            ours = total.certify(point, dm.duals.VarianceDual(dual.neighbour_weights)).lower_bound
            theirs = least.certify(np.eye(len(least.basis)), dm.duals.VarianceDual(weights[0])).lower_bound
            assert ours == pytest.approx(theirs, rel=1e-9)

    @quick
    @given(seeds)
    def test_has_the_dense_optimum(self, seed: int) -> None:
        workload = random_workload(seed)
        numbers = numbers_for(workload, seed)
        for problem in (dm.FitnessForUse(workload, numbers), dm.TotalVariance(workload, numbers)):
            answer = fast.solve(problem, tol=1e-7)
            assert answer.status is dm.Status.CERTIFIED
            assert meet(answer, solved(written_out(problem)))
            assert answer.prices.sum() == pytest.approx(1)

    @pytest.mark.parametrize("seed", range(0, 60, 5))
    def test_has_no_unit(self, seed: int) -> None:
        workload = random_workload(seed)
        numbers = numbers_for(workload, seed)
        kinds: tuple[Any, ...] = (dm.FitnessForUse, dm.TotalVariance)
        for kind, scaled in itertools.product(kinds, (1e6, 1e-6)):
            plain = fast.solve(kind(workload, numbers))
            for problem, factor in (
                (kind(workload, numbers * scaled), 1 / scaled if kind is dm.FitnessForUse else scaled),
                (kind(times(workload, scaled), numbers), scaled**2),
            ):
                answer = fast.solve(problem)
                assert answer.status is dm.Status.CERTIFIED
                assert answer.objective == pytest.approx(plain.objective * factor, rel=2e-6)

    @pytest.mark.parametrize("seed", range(0, 40, 5))
    def test_tables_of_every_size_leave_an_honest_interval(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        workload = random_workload(seed)
        mixed = times(workload, *10.0 ** rng.choice([-6, 0, 6], len(workload.tables)))
        targets = numbers_for(workload, seed) * 10.0 ** rng.choice([-6, 6], len(workload.tables))
        problem = dm.FitnessForUse(mixed, targets)
        assert meet(solved(problem), solved(written_out(problem)))

    @quick
    @given(seeds)
    def test_neither_order_nor_names_of_values_and_tables_matter(self, seed: int) -> None:
        workload, rng = random_workload(seed), np.random.default_rng(seed)
        numbers = numbers_for(workload, seed)
        orders = [rng.permutation(size) for size in cast(dm.Domain, workload.domain).shape]
        places = rng.permutation(len(workload.tables))
        tables = [
            unions.Table(
                workload.tables[place].name,
                tuple(
                    (axis, None if own is None else dm.Workload(own.dense()[:, orders[axis]]))
                    for axis, own in workload.tables[place].queries
                ),
            )
            for place in places
        ]
        turned = dm.workloads.UnionWorkload(cast(dm.Domain, workload.domain), tables)
        one, two = (fast.solve(dm.FitnessForUse(*each)) for each in ((workload, numbers), (turned, numbers[places])))
        assert meet(one, two)


def times(workload: dm.workloads.UnionWorkload, *factors: float) -> dm.workloads.UnionWorkload:
    """Take the queries of each table times a number; totals stay."""
    sizes = cast(dm.Domain, workload.domain).shape
    many = factors * len(workload.tables) if len(factors) == 1 else factors
    tables = []
    for table, factor in zip(workload.tables, many, strict=True):
        first, *others = table.queries or ((0, workloads.total(sizes[0])),)
        rows = np.eye(sizes[first[0]]) if first[1] is None else first[1].dense()
        tables.append(unions.Table(table.name, ((first[0], dm.Workload(rows * factor)), *others)))
    return dm.workloads.UnionWorkload(cast(dm.Domain, workload.domain), tables)


class TestOtherWays:
    @quick
    @given(seeds)
    def test_marginals_are_unions(self, seed: int) -> None:
        """Whoever splits a union of plain tables by its symmetry finds the residual subspaces."""
        rng = np.random.default_rng(seed)
        tables = workloads.marginals(rng.integers(1, 6, 3).tolist(), ways=[(0, 1), (1, 2), (2,)][seed % 3])
        numbers, whole = rng.uniform(1, 9, len(tables.axes)), workloads.stack(tables)
        assert isinstance(whole, dm.workloads.UnionWorkload)
        for kind in (dm.FitnessForUse, dm.TotalVariance):
            union, quick_way = kind(whole, numbers), kind(tables, numbers)
            assert union.geometry.symmetries and not quick_way.geometry.symmetries
            assert {*union.geometry.keys} == {*quick_way.geometry.keys}
            assert meet(fast.solve(union), fast.solve(quick_way))

    def test_products_are_unions(self) -> None:
        ages = dm.Workload(workloads.prefix(6).matrix, domain=dm.Domain({"age": 6}))
        tables = workloads.marginals({"b": 4, "c": 3}, ways=(0, 1))
        asked = workloads.kron(ages, tables)
        product = dm.FitnessForUse(asked, dm.ByFactor(2.0, {0: 1.0, 1: 3.0}))
        union = dm.FitnessForUse(asked, [2.0, 6.0, 6.0], geometry="blocks")
        assert (product.geometry.name, union.geometry.name) == ("product", "blocks")
        assert union.geometry.workload.table_names == ("age & total", "age & b", "age & c")
        answer = fast.solve(union)
        assert meet(answer, fast.solve(product))
        assert union.same_as(product) and product.same_as(union)
        assert meet(answer, solved(written_out(union)))

    def test_intervals_of_query_tables_hold_the_optimum(self) -> None:
        queries = {"age": workloads.prefix(6)}
        asked = workloads.query_tables({"age": 6, "sex": 2, "race": 3}, queries, ways=(1, 2))
        targets = np.arange(1.0, 7.0)
        answer = fast.solve(dm.FitnessForUse(asked, targets))
        assert answer.status is dm.Status.CERTIFIED
        assert meet(answer, solved(dm.FitnessForUse(asked, targets, geometry="split")))

    def test_both_layers_agree(self) -> None:
        for seed in range(0, 30, 3):
            workload = random_workload(seed)
            problem: Any = (dm.FitnessForUse, dm.TotalVariance)[seed % 2](workload, numbers_for(workload, seed))
            formulation = reference_blocks.FORMULATION_NAMES[seed % 3 % 2]
            answers = [fast.solve(problem), reference.solve(problem, formulation=formulation)]
            assert all(each.status is dm.Status.CERTIFIED for each in answers)
            assert crosscheck.compare(answers).outcome is Agreement.AGREE

    def test_statements_over_a_problems_own_arrays(self) -> None:
        tables = {"ages": {"age": workloads.prefix(4)}, "both": ["age", "sex"], "sexes": ["sex"]}
        workload = workloads.union({"age": 4, "sex": 2}, cast(Any, tables))
        for kind in (dm.FitnessForUse, dm.TotalVariance):
            problem: Any = kind(workload, [2.0, 3.0, 0.5])
            answer = fast.solve(problem)
            for formulation in reference_blocks.FORMULATION_NAMES:
                program = reference.formulate(problem, formulation=formulation)
                assert float(cast(Any, program).solve(solver="CLARABEL")) == pytest.approx(answer.objective, rel=1e-5)
            with pytest.raises(
                dm.errors.InvalidInputError, match="formulation must be one of schur, matrix_frac, got 'dual'"
            ):
                reference.solve(problem, formulation="dual")
        labels = [constraint.label for constraint in reference.formulate(dm.FitnessForUse(workload)).constraints]
        assert labels == ["schur[0]", "schur[1]", "privacy", "accuracy"]
        stopped = dm.FitnessForUse(workload, 1.0)
        with pytest.warns(dm.errors.UncertifiedWarning):
            answer = reference.solve(stopped, time_limit=1e-9)
        assert answer.certificate.feasible and answer.lower_bound > 0


class TestJudge:
    thirds = dm.Workload([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1]])
    tables = workloads.union(
        {"age": 6, "sex": 2, "race": 3},
        {"ages": {"age": None}, "groups": {"age": thirds, "race": None}, "sexes": ["sex"], "races": ["race"]},
    )
    numbers = {"ages": 2.0, "groups": 1.0, "sexes": 3.0, "races": 0.5}

    @quick
    @given(seeds)
    def test_bounds_hold_and_have_no_unit(self, seed: int) -> None:
        workload, rng = random_workload(seed), np.random.default_rng(seed)
        for kind in (dm.FitnessForUse, dm.TotalVariance):
            problem = kind(workload, numbers_for(workload, seed))
            best, given = fast.solve(problem).objective, random_dual(problem.geometry, rng)
            dual: Any = given if kind is dm.FitnessForUse else dm.duals.VarianceDual(given.neighbour_weights)
            point = problem.feasible(random_point(problem.geometry, rng))
            judged = problem.certify(point, dual)
            assert judged.feasible and judged.lower_bound <= best * (1 + 1e-9)
            assert judged.objective >= best * (1 - 2e-6)
            scaled: Any = dm.duals.VarianceDual(1e9 * given.neighbour_weights)
            if kind is dm.FitnessForUse:
                scaled = dm.duals.FitnessDual(scaled.neighbour_weights, 1e-9 * given.query_weights)
            assert problem.certify(point, scaled).lower_bound == pytest.approx(judged.lower_bound, rel=1e-9)

    @pytest.mark.parametrize(
        ("message", "change"),
        [
            ("levels must be", lambda point: dm.duals.BlockPoint(np.ones(99), point.covariances)),
            ("covariances must be", lambda point: dm.duals.BlockPoint(point.levels, point.covariances[1:])),
            ("must have shape", lambda point: dm.duals.BlockPoint(point.levels, (np.eye(9),) * len(point.covariances))),
            ("noise on blocks, a dualmech.duals.BlockPoint", lambda point: point.levels),
            ("covariances must be a tuple", lambda point: dm.duals.BlockPoint(point.levels, cast(Any, 3))),
        ],
    )
    def test_refuses_points_of_other_shapes(self, message: str, change: Callable[[dm.duals.BlockPoint], Any]) -> None:
        problem = dm.FitnessForUse(self.tables)
        point = random_point(problem.geometry, np.random.default_rng(0))
        dual = random_dual(problem.geometry, np.random.default_rng(0))
        for call in (problem.certify, lambda point, _: problem.feasible(point)):
            with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError), match=message):
                call(change(point), dual)

    def test_refuses_weights_of_other_shapes(self) -> None:
        problem = dm.FitnessForUse(self.tables)
        point = random_point(problem.geometry, np.random.default_rng(0))
        queries = np.ones(len(problem.geometry.tables))
        for dual, message in (
            (dm.duals.FitnessDual(np.ones(99), queries), "neighbour_weights must be 3, one per orbit, got 99"),
            (dm.duals.FitnessDual(np.ones(3), np.ones(99)), "query_weights must be"),
            (dm.duals.FitnessDual(np.ones(3), np.ones((2, 2))), "query_weights must have 1 dimension"),
            (dm.duals.VarianceDual(np.ones(3)), "must be a FitnessDual of dualmech"),
            (np.ones(3), "must be a FitnessDual of dualmech"),
        ):
            with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError), match=message):
                problem.certify(point, cast(Any, dual))

    def test_says_who_binds_and_who_is_loose(self) -> None:
        problem = dm.FitnessForUse(self.tables, {**self.numbers, "races": 1000.0})
        answer = fast.solve(problem, tol=1e-8)
        assert [*problem.loose(answer.primal, 1e-3)] == [3]
        assert answer.prices[3] < 1e-6 and answer.prices.sum() == pytest.approx(1)
        assert len(problem.binding(answer.primal, 1e-6)) >= 1
        assert not len(dm.TotalVariance(self.tables).loose(answer.primal, 1e-3))
        small = fast.solve(dm.TotalVariance(self.tables, {**self.numbers, "sexes": 1e-6}), tol=1e-8)
        assert small.prices[2] < 0.01


class TestWords:
    def test_records_are_counted_for_the_mechanism(self) -> None:
        asked: Any = workloads.union({"a": 2}, {"t": ["a"]})
        with pytest.raises(dm.errors.InputTypeError, match="`needed_tables`"):
            dm.records.count([[0]], asked)
        assert asked.table_shape("t") == asked.table_shape(asked.tables[0]) == (2,)

    def test_other_problems_take_no_orbits_in_the_reference_layer(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="orbits are for"):
            reference.solve(dm.FitnessForUse(workloads.circular_ranges(3)), orbits=[[1, 2, 0]])


class TestHiddenParts:
    def test_what_passes_for_rounding_meets_the_noise_that_it_may(self) -> None:
        """A part of a query that doubles cannot tell from zero has no variance here, and an allowance instead."""
        base = np.full(5, 1e15)
        base[0] += 2
        tables = {"large": {"h": workloads.circular([base])}, "small": {"h": workloads.differences(5)}}
        problem = dm.FitnessForUse(workloads.union({"h": 5}, tables), {"large": 1.0, "small": 1e6})
        answer = fast.solve(problem)
        levels = answer.primal.levels.copy()
        waves = [index for index, key in enumerate(problem.geometry.keys) if key]
        small = problem.geometry.tables == 1
        reached = (problem.geometry.scalar_blocks @ levels)[small].max()
        levels[waves] *= 1e6 / reached
        judged = problem.certify(dm.duals.BlockPoint(levels, ()), answer.dual)
        assert judged.resolution > 1 and not judged.certifies(1e-3)


class TestStatement:
    def test_a_circle_is_a_table_of_one_attribute(self) -> None:
        problem = dm.FitnessForUse(workloads.circular_ranges(5), {"translates": 2.0})
        whole = problem.geometry.workload
        assert whole.domain == dm.Domain({"value": 5}) and whole.shape == problem.workload.shape == (21, 5)

    def test_targets_by_table(self) -> None:
        named, listed = (
            dm.FitnessForUse(TestJudge.tables, given) for given in (TestJudge.numbers, [2.0, 1.0, 3.0, 0.5])
        )
        np.testing.assert_array_equal(named.targets, listed.targets)
        assert TestJudge.tables.table("sexes").axes == (1,)
        for wrong, message in (
            ({"ages": 1.0}, "every table"),
            ({**TestJudge.numbers, "shoes": 1.0}, "got 'shoes'"),
            ({**TestJudge.numbers, "ages": 0.0}, "targets"),
            ([1.0, 2.0], "targets"),
            (-1.0, "targets"),
            (np.nan, "targets"),
            ("many", "targets"),
        ):
            with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError), match=message):
                dm.FitnessForUse(TestJudge.tables, wrong)
        with pytest.raises(dm.errors.InvalidInputError, match="weights must name every table"):
            dm.TotalVariance(TestJudge.tables, {"ages": 1.0})
        with pytest.raises(dm.errors.InvalidInputError, match="table must be one of ages"):
            TestJudge.tables.table("shoes")

    @pytest.mark.parametrize(
        ("message", "tables"),
        [
            ("one or more", {}),
            ("must map names", [["a"]]),
            ("must map attribute names", {"t": "a"}),
            ("must map attribute names", {"t": 3}),
            ("'z'", {"t": ["z"]}),
            ("'a'", {"t": ["a", "a"]}),
            ("over 3 values", {"t": {"a": workloads.prefix(4)}}),
            ("must be a Workload of dualmech", {"t": {"a": np.eye(3)}}),
            ("differ as texts", {1: ["a"], "1": ["a"]}),
        ],
    )
    def test_refuses_tables(self, message: str, tables: Any) -> None:
        with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError), match=message):
            workloads.union({"a": 3, "b": 2}, tables)

    @pytest.mark.parametrize(
        ("message", "workload"),
        [
            ("must be a Workload of dualmech", np.eye(3)),
            ("keep their structure", workloads.prefix(3)),
            ("keep their structure", workloads.kron(workloads.prefix(3), workloads.prefix(3))),
            ("not all zero", workloads.union([3], {"none": {"a0": dm.Workload(np.zeros((2, 3)))}})),
            ("orbits of cells", workloads.union([300, 300], {"t": {f"a{i}": workloads.prefix(300) for i in range(2)}})),
            ("searched for symmetries", workloads.union([6000], {"t": {"a0": dm.Workload(sp.eye_array(6000))}})),
            ("blocks in its tables", workloads.stack(workloads.marginals([2] * 21, ways=21))),
            (
                "entries in all its blocks",
                workloads.union([99, 99], {"t": {f"a{i}": workloads.prefix(99) for i in range(2)}}),
            ),
        ],
    )
    def test_refuses_workloads(self, message: str, workload: Any) -> None:
        for kind in (dm.FitnessForUse, dm.TotalVariance):
            with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError), match=message):
                kind(workload, geometry="blocks")

    def test_a_workload_says_what_it_asks(self) -> None:
        asked = workloads.union({"a": 3, "b": 2}, {"total": [], "both": {"b": None, "a": workloads.prefix(3)}})
        np.testing.assert_array_equal(asked.dense(), np.vstack([np.ones(6), np.kron(np.tri(3), np.eye(2))]))
        assert asked.names[:3] == ("total", "both: cell 0, b=0", "both: cell 0, b=1")
        assert asked.groups == ("total", *["both"] * 6)
        assert repr(asked) == "UnionWorkload(2 tables, 7 queries x 6 cells)"
        assert pickle.loads(pickle.dumps(asked)).names == asked.names
        large = workloads.union([10] * 400, {"t": ["a0", "a7"]})
        assert "1e+400 cells" in repr(large)
        with pytest.raises(dm.errors.InvalidInputError, match="too many for a sparse matrix"):
            _ = large.matrix
        with pytest.raises(dm.errors.InvalidInputError, match="too many"):
            _ = workloads.union([300] * 3, {"t": ["a0", "a1", "a2"]}).names


class TestStack:
    @quick
    @given(seeds)
    def test_is_the_written_one(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        domain = dm.Domain({"a": int(rng.integers(1, 5)), "b": int(rng.integers(1, 5))})
        queries = {"a": workloads.prefix(domain.shape[0])}
        age = dm.Workload(np.tri(domain.shape[0]), domain=dm.Domain({"a": domain.shape[0]}))
        every: list[dm.Workload] = [
            workloads.marginals(domain, ways=(0, 1)),
            workloads.marginals(domain, ways=2),
            workloads.query_tables(domain, queries, ways=(1, 2)),
            workloads.union(domain, {"t": {"b": KINDS[int(rng.integers(0, 3))](domain.shape[1], rng)}, "u": ["a"]}),
            workloads.kron(age, workloads.marginals({"b": domain.shape[1]}, ways=1)),
        ]
        pieces = [every[i] for i in rng.integers(0, 5, int(rng.integers(1, 4)))]
        labels = [None, [f"piece {i % 2}" for i in range(len(pieces))]][seed % 2]
        kept = workloads.stack(*pieces, labels=labels)
        plain = [dm.Workload(each.matrix, each.names, each.groups, each.domain) for each in pieces]
        written = workloads.stack(*plain, labels=labels)
        assert isinstance(kept, dm.workloads.UnionWorkload) and not isinstance(written, dm.workloads.UnionWorkload)
        np.testing.assert_array_equal(kept.dense(), written.dense())
        assert (kept.names, kept.groups, kept.domain) == (written.names, written.groups, domain)
        again = pickle.loads(pickle.dumps(kept))
        assert (again.names, again.groups, again.table_names) == (kept.names, kept.groups, kept.table_names)
        assert len({*kept.table_names}) == len(kept.tables)
        assert meet(fast.solve(dm.FitnessForUse(kept)), solved(dm.FitnessForUse(written, 1.0, geometry="dense")))

    def test_tables_of_one_name_are_told_apart(self) -> None:
        tables = workloads.marginals({"a": 2, "b": 2}, ways=1)
        assert cast(Any, workloads.stack(tables, tables, tables)).table_names == (
            "a",
            "b",
            "a (2)",
            "b (2)",
            "a (3)",
            "b (3)",
        )
        labelled = workloads.stack(tables, tables, labels=["one", "two"])
        assert cast(Any, labelled).table_names == ("one: a", "one: b", "two: a", "two: b")
        problem = dm.FitnessForUse(labelled, {"one: a": 1.0, "one: b": 2.0, "two: a": 3.0, "two: b": 4.0})
        assert problem.targets.tolist() == [1, 2, 3, 4]

    def test_queries_out_of_order_are_written_out(self) -> None:
        one, two = (workloads.marginals({name: 2}, ways=(0, 1)) for name in "ab")
        product = workloads.kron(one, two)
        assert not isinstance(workloads.stack(product), dm.workloads.UnionWorkload)
        np.testing.assert_array_equal(workloads.stack(product).dense(), product.dense())
        union = dm.FitnessForUse(product, geometry="blocks").geometry.workload
        assert union.names != product.names
        assert {*map(tuple, union.dense())} == {*map(tuple, product.dense())}


class TestRepair:
    def test_what_a_backend_leaves_is_repaired_or_refused(self) -> None:
        for kind in (dm.FitnessForUse, dm.TotalVariance):
            problem = kind(TestJudge.tables, TestJudge.numbers)
            units = reference_blocks.BlockUnits.of(problem)
            count = len(units.levels) + sum(lift.size for lift in units.lifts)
            began, spent = (units.covariance(np.eye(3), spare) for spare in (0.0, 1e-3))
            accuracy = [np.ones(len(problem.geometry.tables))] if kind is dm.FitnessForUse else []
            dual = units.dual(np.ones(problem.geometry.cells), *accuracy)
            judged = problem.certify(began, dual)
            assert judged.feasible and judged.objective <= units.objective_unit * (1 + 1e-9)
            assert judged.lower_bound > 0.2 * judged.objective
            assert problem.certify(spent, dual).objective <= judged.objective * 1.01
            for nonsense in (None, np.full(count, np.nan), -np.ones(count), np.zeros(count)):
                with pytest.raises(dm.errors.BackendError, match="the backend returned no"):
                    units.covariance(nonsense)
            indefinite = np.where(np.arange(count) < len(units.levels), -1.0, 1.0)
            indefinite[0] = 1.0
            assert problem.certify(units.covariance(indefinite), dual).feasible
