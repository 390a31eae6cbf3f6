"""Which geometry a problem stands on, and how its numbers are given; the same problem on two of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from intervals import meet, solved

import dualmech as dm
from dualmech import fast, workloads
from dualmech.geometry import block_rows, split
from dualmech.geometry.blocks import Blocks
from dualmech.geometry.dense import Dense
from dualmech.validate import Array
from dualmech.workloads import base

PREFIXES = workloads.prefix(4)
TABLES = workloads.marginals({"age": 3, "sex": 2}, ways=(1, 2))
UNION = workloads.union({"age": 4, "sex": 2}, {"ages": {"age": PREFIXES}, "cells": ["age", "sex"]})
CIRCLE = workloads.circular_ranges(5)
QUERIES = workloads.query_tables({"age": 4, "sex": 2}, {"age": PREFIXES}, ways=(1, 2))
AGES = dm.Workload(np.tri(3), domain=dm.Domain({"age": 3}))
PRODUCT = workloads.kron(AGES, workloads.marginals({"sex": 2, "race": 2}, ways=1))
KINDS = (dm.FitnessForUse, dm.TotalVariance)
"""Families of both numbers, targets and weights."""

STANDING: dict[str, tuple[dm.Workload, Any, str]] = {
    "a matrix": (PREFIXES, 2.0, "dense"),
    "marginals": (TABLES, 2.0, "blocks"),
    "marginals, one per table": (TABLES, [1.0, 2.0, 3.0], "blocks"),
    "marginals, one per query": (TABLES, [1.0] * 3 + [2.0] * 2 + [3.0] * 6, "blocks"),
    "marginals, that differ inside a table": (TABLES, np.arange(1.0, 12.0), "dense"),
    "a union": (UNION, {"ages": 1.0, "cells": 2.0}, "blocks"),
    "a union, by query": (UNION, {"ages": 1.0, "ages: cell 0": 9.0, "cells": 2.0}, "dense"),
    "a circle": (CIRCLE, 1.0, "blocks"),
    "a circle, one per query": (CIRCLE, np.ones(21), "blocks"),
    "query tables": (QUERIES, {1: 1.0, 2: 2.0}, "blocks"),
    "a product": (PRODUCT, 2.0, "product"),
    "a product, by factor": (PRODUCT, dm.ByFactor([1.0, 2.0, 3.0], {1: 4.0}), "product"),
    "a product, one per table": (PRODUCT, [1.0, 2.0], "blocks"),
    "a product, one per query": (PRODUCT, np.tile([1.0, 1.0, 2.0, 2.0], 3), "blocks"),
    "a product, that differ inside a table": (PRODUCT, np.arange(1.0, 13.0), "dense"),
    "a product over no domain": (workloads.kron(PREFIXES, PREFIXES), np.ones(16), "dense"),
    "a stack of tables": (workloads.stack(TABLES, TABLES), 1.0, "blocks"),
}


def names_of(problem: Any) -> str:
    return str(problem.geometry.name)


class TestAuto:
    @pytest.mark.parametrize("label", STANDING)
    def test_takes_the_cheapest_that_is_exact(self, label: str) -> None:
        asked, numbers, expected = STANDING[label]
        problems: list[Any] = [kind(asked, numbers) for kind in KINDS]
        problems.append(dm.PrivacyFirst(asked, numbers, 0.5))
        assert [names_of(each) for each in problems] == [expected] * 3
        written = [dm.FitnessForUse(asked, each.per_query(), geometry="dense") for each in problems]
        assert all(names_of(each) == "dense" and each.same_as(problems[0]) for each in written)

    def test_matrices_of_neighbours_and_bases_need_a_matrix_and_rules_keep_blocks(self) -> None:
        for options in ({"neighbours": dm.neighbours.replace_one(6)}, {"basis": np.eye(6)}):
            found: Any = options
            assert names_of(dm.FitnessForUse(TABLES, **found)) == "dense"
            for kind in ("blocks", "split", "product"):
                with pytest.raises(dm.errors.InvalidInputError, match=f"for geometry 'dense', not for '{kind}'"):
                    dm.FitnessForUse(TABLES, geometry=kind, **found)
        for rule in ("replace", "add-remove:2", dm.neighbours.Relation(replace=True, members=3)):
            found = rule
            problem = dm.FitnessForUse(TABLES, neighbours=found)
            dense = dm.FitnessForUse(TABLES, neighbours=found, geometry="dense")
            assert (names_of(problem), names_of(dense)) == ("blocks", "dense") and problem.same_as(dense)
            assert not problem.same_as(dm.FitnessForUse(TABLES))
            assert meet(fast.solve(problem), fast.solve(dense))
        assert names_of(dm.FitnessForUse(PRODUCT, neighbours="add-remove")) == "product"
        for asked, kind in ((PRODUCT, "product"), (QUERIES, "split")):
            with pytest.raises(
                dm.errors.InvalidInputError, match=f"geometry '{kind}' takes neighbours that differ by one"
            ):
                dm.FitnessForUse(asked, neighbours="replace", geometry=kind)

    def test_query_tables_with_little_symmetry_are_split(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes = {"age": 50, "income": 50}
        queries = {name: workloads.prefix(50) for name in sizes}
        assert names_of(dm.FitnessForUse(workloads.query_tables(sizes, queries, ways=1))) == "blocks"
        assert names_of(dm.FitnessForUse(workloads.query_tables(sizes, queries, ways=2))) == "split"
        monkeypatch.setattr(split, "SPLIT_FROM", 0)
        assert names_of(dm.TotalVariance(QUERIES)) == "split"
        assert names_of(dm.TotalVariance(QUERIES, geometry="blocks")) == "blocks"

    def test_too_little_symmetry_says_which_geometries_hold_the_workload(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(block_rows, "MAX_ORBITS", 3)
        monkeypatch.setattr(base, "MAX_DENSE_ENTRIES", 300)
        large = {"a": workloads.prefix(5), "b": workloads.prefix(6)}
        product = workloads.kron(
            *(dm.Workload(each.matrix, domain=dm.Domain({name: each.shape[1]})) for name, each in large.items())
        )
        for asked, suggested in (
            (QUERIES, ["split", "dense"]),
            (product, ["product"]),
            (workloads.union({"a": 5, "b": 6}, {"t": large}), []),
        ):
            with pytest.raises(dm.errors.GeometryError) as error:
                dm.FitnessForUse(asked, geometry="blocks")
            said = str(error.value).rpartition("; ")[2]
            assert [name for name in ("split", "product", "dense") if f"'{name}'" in said] == suggested
            assert suggested or said == "no other geometry supports it: ask for coarser values"
            for name in suggested:
                assert dm.FitnessForUse(asked, geometry=name).geometry.name == name

    def test_a_union_with_little_symmetry_is_refused_and_says_of_what(self) -> None:
        tables = {"t": {name: workloads.prefix(300) for name in ("a", "b")}, "a": ["a"]}
        with pytest.raises(dm.errors.InvalidInputError, match="orbits of cells.*a 300, b 300"):
            dm.FitnessForUse(workloads.union({"a": 300, "b": 300}, tables))


class TestPrivacyFirst:
    @pytest.mark.parametrize("label", ["marginals", "a union", "a circle", "query tables", "a product, by factor"])
    def test_spends_what_it_is_told(self, label: str) -> None:
        asked, numbers, _ = STANDING[label]
        options: dict[str, Any] = {"geometry": "split"} if label == "query tables" else {}
        tol = 0.1 if options else 1e-8
        problem: Any = dm.FitnessForUse(asked, numbers, **options)
        plain = fast.solve(problem, tol=tol)
        answer = fast.solve(dm.PrivacyFirst(asked, numbers, 0.3, **options), tol=tol)
        assert answer.status is dm.Status.CERTIFIED
        assert answer.objective == pytest.approx(plain.objective / 0.3, rel=1e-7)
        np.testing.assert_allclose(answer.prices, plain.prices, atol=1e-4)
        mechanism: Any = answer.mechanism
        for factor in (1.0, 2.0):
            assert mechanism.scaled(factor).squared_privacy_cost == pytest.approx(0.3 / factor, rel=1e-9)
        ratios = mechanism.dense().variances(asked) / problem.per_query()
        assert ratios.max() == pytest.approx(answer.objective, rel=1e-6)


class TestByName:
    WANTED = (1.0, 2.0, 4.0)

    def test_tables_by_their_names_attributes_and_ways(self) -> None:
        for targets in (
            {"age": 1.0, "sex": 2.0, "age x sex": 4.0},
            {("age",): 1.0, ("sex",): 2.0, ("sex", "age"): 4.0},
            {1: 1.0, "sex": 2.0, 2: 4.0},
            {np.int64(1): 1.0, "sex": 2.0, ("age", "sex"): 4.0},
            [1.0, 2.0, 4.0],
            [1.0] * 3 + [2.0] * 2 + [4.0] * 6,
        ):
            for kind in KINDS:
                problem: Any = kind(TABLES, targets)
                assert getattr(problem, problem.numbers).tolist() == [*self.WANTED]
                split: Any = kind(workloads.query_tables({"age": 3, "sex": 2}, {}, ways=(1, 2)), targets)
                assert getattr(split, split.numbers).tolist() == [*self.WANTED]

            # A name comes before attributes, and these before ways.
            found = dm.FitnessForUse(TABLES, {"age": 1.0, ("age",): 9.0, 1: 2.0, ("age", "sex"): 4.0, 2: 9.0})
            assert found.targets.tolist() == [*self.WANTED]

    def test_queries_and_tables_on_a_matrix_by_their_names_and_groups(self) -> None:
        asked = dm.Workload(np.eye(3), ["a", "b", "c"], ["first", "others", "others"])
        for given_numbers in ({"a": 1.0, "b": 2.0, "c": 4.0}, {"first": 1.0, "others": 4.0, "b": 2.0}):
            for kind in KINDS:
                problem: Any = kind(asked, given_numbers)
                assert getattr(problem, problem.numbers).tolist() == [*self.WANTED]
        for numbers in ({1: 1.0, 2: 4.0}, {"age": 1.0, ("sex",): 1.0, 2: 4.0}):
            dense = dm.FitnessForUse(TABLES, numbers, geometry="dense")
            assert dense.same_as(dm.FitnessForUse(TABLES, numbers))
            again = dm.FitnessForUse(TABLES, numbers, geometry=dense.geometry)
            assert again.same_as(dense)

    def test_a_series_is_taken_by_its_index(self) -> None:
        pandas = pytest.importorskip("pandas")
        series = pandas.Series([4.0, 1.0, 2.0], index=["age x sex", "age", "sex"])
        assert dm.FitnessForUse(TABLES, series).targets.tolist() == [*self.WANTED]
        queries = pandas.Series([4.0, 1.0, 2.0, 3.0], index=[f"cells 0..{i}" for i in (3, 1, 2)] + ["cell 0"])
        assert dm.FitnessForUse(PREFIXES, queries).targets.tolist() == [3, 1, 2, 4]
        assert dm.FitnessForUse(TABLES, pandas.Series(self.WANTED)).targets.tolist() == [*self.WANTED]
        for ways in ([1, 2], [2, 1]):
            by_ways = pandas.Series({way: float(way) for way in ways})  # pandas may keep 1, 2 as a range
            assert dm.FitnessForUse(TABLES, by_ways).targets.tolist() == [1, 1, 2]
        sets = pandas.Series({("age",): 1.0, ("sex",): 2.0, ("age", "sex"): 4.0})
        assert dm.FitnessForUse(TABLES, sets).targets.tolist() == [1, 2, 4]
        column = pandas.DataFrame({"target": [2.0, 1.0]}, index=[7, 5])
        numbered = dm.Workload(pandas.DataFrame(np.eye(2), index=[5, 7]))
        assert dm.FitnessForUse(numbered, column).targets.tolist() == [1, 2]
        with pytest.raises(dm.errors.InvalidInputError, match="targets must be one column of numbers, got 2 columns"):
            dm.FitnessForUse(numbered, column.assign(other=1.0))
        double = pandas.Series([1.0, 2.0], index=["age", "age"])
        with pytest.raises(dm.errors.InvalidInputError, match="targets must name each item once, 'age' is double"):
            dm.FitnessForUse(TABLES, double)

    def test_what_names_too_little_or_too_much_is_refused(self) -> None:
        for message, asked, numbers in (
            ("must name every table.*'age x sex' is not", TABLES, {1: 1.0}),
            ("must name tables of the workload, got 'height'", TABLES, {1: 1.0, 2: 1.0, "height": 1.0}),
            ("'height' is not in the domain", TABLES, {1: 1.0, 2: 1.0, ("height",): 1.0}),
            ("must name tables of the workload, got 3-way", TABLES, {1: 1.0, 2: 1.0, ("age", "sex"): 3, 3: 1.0}),
            ("once, .'age', 'sex'. is double", TABLES, {1: 1.0, ("sex", "age"): 1.0, ("age", "sex"): 2.0}),
            ("names of tables, attributes or ways, got None", TABLES, {None: 1.0}),
            (r"\[2\] must be positive", TABLES, {1: 1.0, 2: 0.0}),
            ("must name queries of the workload or groups, got 'x'", PREFIXES, {"x": 1.0}),
            ("must name every query, 'cells 0..1' is not", PREFIXES, {"cell 0": 1.0}),
            ("distinct names, 'a' is double", dm.Workload(np.eye(2), ["a", "a"], ["g", "g"]), {"a": 1.0}),
            ("3 numbers, one per table, or 11, one per query, got shape", TABLES, [1.0, 2.0]),
            ("got shape", TABLES, np.ones((3, 1))),
            ("must", PREFIXES, "many"),
            ("lists of different lengths", PRODUCT, ([1.0, 2.0], [1.0])),
            ("must", TABLES, [1.0, np.nan, 1.0]),
            ("must", TABLES, 1e300),
        ):
            for kind in KINDS:
                with pytest.raises(dm.errors.DualmechError, match=message):
                    kind(asked, numbers)

    @pytest.mark.parametrize("form", ["mapping", "Series", "CSV"])
    @pytest.mark.parametrize(
        ("asked", "names", "kept"),
        [(PREFIXES, PREFIXES.names, "dense"), (TABLES, TABLES.table_names, "blocks"), (PRODUCT, None, "product")],
        ids=["dense", "blocks", "product"],
    )
    def test_numbers_follow_their_names_in_every_form(
        self, tmp_path: Path, asked: dm.Workload, names: tuple[str, ...] | None, kept: str, form: str
    ) -> None:
        own = AGES.names if names is None else names

        def pose(pairs: list[tuple[str, float]]) -> Any:
            numbers: Any = dict(pairs)
            if form == "Series":
                pandas = pytest.importorskip("pandas")
                numbers = pandas.Series([value for _, value in pairs], index=[name for name, _ in pairs])
            elif form == "CSV":
                lines = (f"{name},{value}\n" for name, value in pairs)
                (tmp_path / "t.csv").write_text("query,target\n" + "".join(lines))
                numbers = dm.files.read_by_name(tmp_path / "t.csv", "targets")
            return dm.FitnessForUse(asked, numbers if names else dm.ByFactor(numbers, 1.0))

        turned = [(name, 1.0 + j) for j, name in enumerate(own)][::-1]
        problem = pose(turned)
        assert names_of(problem) == kept
        assert [*(problem.targets if names else problem.targets[0])] == [1.0 + j for j in range(len(own))]
        wrong = {"missing": turned[:-1], "unknown": [*turned, ("height", 1.0)]}
        if form != "mapping":
            wrong["double"] = [*turned, turned[0]]
        for fault, pairs in wrong.items():
            named = {"missing": own[0], "unknown": "height", "double": own[-1]}[fault]
            with pytest.raises(dm.errors.InvalidInputError, match=f"targets.*must name .*'{named}'"):
                pose(pairs)
        with pytest.raises(dm.errors.InvalidInputError, match=rf"targets\['{own[0]}'\] must be positive, got 0"):
            pose([*turned[:-1], (own[0], 0.0)])

    def test_margins_keep_their_names(self) -> None:
        pandas = pytest.importorskip("pandas")
        margins = {"cells 0..1": 3.29, "cell 0": 1.645, "cells 0..2": 1.645, "cells 0..3": 1.645}
        for given_margins in (margins, pandas.Series(margins)):
            variances = dm.accounting.variance_from_margin(given_margins)
            assert dm.FitnessForUse(PREFIXES, variances).targets.round(9).tolist() == [1, 4, 1, 1]

    def test_weights_of_tables_are_positive_and_of_queries_not_negative(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="weights"):
            dm.TotalVariance(TABLES, [1.0, 0.0, 2.0], geometry="blocks")
        assert dm.TotalVariance(PREFIXES, [1.0, 0.0, 2.0, 0.0]).geometry.workload.shape == (2, 4)
        with pytest.raises(dm.errors.InvalidInputError, match=r"weights must not be negative, got -1 at weights\[1\]"):
            dm.TotalVariance(PREFIXES, [1.0, -1.0, 2.0, 0.0])


class TestNamed:
    def test_what_cannot_hold_the_workload_is_refused(self) -> None:
        cases: Any = (
            ("geometry must be one of auto, blocks, dense", PREFIXES, 1.0, "round"),
            ("geometry must be one of .* or a Geometry, got 3", PREFIXES, 1.0, 3),
            ("geometry 'blocks' takes workloads that keep their structure", PREFIXES, 1.0, "blocks"),
            ("geometry 'blocks' takes .* equal within a table", TABLES, np.arange(1.0, 12.0), "blocks"),
            ("geometry 'split' takes workloads made by", TABLES, 1.0, "split"),
            ("geometry 'product' takes workloads made by", TABLES, 1.0, "product"),
            ("geometry 'product' takes workloads made by", PRODUCT, np.r_[2.0, np.ones(11)], "product"),
            ("workload must be a Workload of dualmech", np.eye(3), 1.0, "auto"),
        )
        for message, asked, numbers, kind in cases:
            for family in KINDS:
                with pytest.raises(dm.errors.DualmechError, match=message):
                    family(asked, numbers, geometry=kind)

    @pytest.mark.parametrize("label", STANDING)
    def test_one_is_used_again_for_its_own_workload_alone(self, label: str) -> None:
        asked, numbers, _ = STANDING[label]
        first = dm.FitnessForUse(asked, numbers)
        for kind in KINDS:
            reused: Any = kind(
                asked,
                dm.ByFactor(*first.targets) if isinstance(first.targets, tuple) else first.targets,
                geometry=first.geometry,
            )
            assert reused.geometry is first.geometry
            assert first.same_as(dm.FitnessForUse(asked, reused.per_query(), geometry="dense"))
        other = workloads.identity(asked.shape[1])
        with pytest.raises(dm.errors.InvalidInputError, match="geometry must be of this workload"):
            dm.FitnessForUse(other, geometry=first.geometry)

    def test_one_of_the_same_shape_is_none_of_this_workload(self) -> None:
        """A certificate would speak of other queries."""
        pairs: list[tuple[dm.Workload, dm.Workload]] = [
            (PREFIXES, workloads.identity(4)),
            (workloads.marginals([2, 2], sets=["a0"]), workloads.marginals([2, 2], sets=["a1"])),
            (workloads.kron(PREFIXES, PREFIXES), workloads.kron(PREFIXES, workloads.identity(4))),
        ]
        for one, two in pairs:
            assert one.shape == two.shape
            with pytest.raises(dm.errors.InvalidInputError, match="geometry must be of this workload"):
                dm.FitnessForUse(two, geometry=dm.FitnessForUse(one).geometry)
        weighted = dm.TotalVariance(PREFIXES, [1.0, 0.0, 2.0, 1.0])
        with pytest.raises(dm.errors.InvalidInputError, match="geometry must be of this workload"):
            dm.TotalVariance(PREFIXES, [1.0, 1.0, 2.0, 0.0], geometry=weighted.geometry)
        with pytest.raises(dm.errors.InvalidInputError, match="leave both out"):
            dm.FitnessForUse(PREFIXES, neighbours=np.eye(4), geometry=weighted.geometry)

    def test_a_geometry_made_by_hand(self) -> None:
        for asked, made in ((PREFIXES, Dense.of(PREFIXES, None, None)), (UNION, Blocks.of(UNION))):
            geometry: Any = made
            answer = fast.solve(dm.FitnessForUse(asked, 2.0, geometry=geometry))
            assert answer.problem.geometry is made and answer.status is dm.Status.CERTIFIED


quick = settings(max_examples=6)
seeds = st.integers(0, 10_000)


def random_queries(size: int, rng: np.random.Generator) -> dm.Workload | None:
    kinds: tuple[Callable[[int], dm.Workload | None], ...] = (
        lambda size: None,
        workloads.prefix,
        workloads.all_range,
        lambda size: dm.Workload(np.vstack([rng.integers(-1, 2, (1, size)), np.ones(size)])),
    )
    return kinds[int(rng.integers(0, len(kinds)))](size)


def random_tables(seed: int) -> tuple[dm.workloads.TableWorkload, Array]:
    rng = np.random.default_rng(seed)
    sizes = {name: int(size) for name, size in zip("abc", rng.integers(2, 4, rng.integers(1, 4)), strict=False)}
    asked = {name: random_queries(size, rng) for name, size in sizes.items()}
    queries = {name: own for name, own in asked.items() if own is not None}
    ways = [way for way in ((0, 1), (1,), (1, 2), (2,))[int(rng.integers(0, 4))] if way <= len(sizes)] or [1]
    found = workloads.query_tables(sizes, queries, ways=ways)
    return found, rng.uniform(1, 9, len(found.tables.axes))


class TestTwoGeometries:
    @quick
    @given(seeds)
    def test_blocks_and_split_meet_a_matrix(self, seed: int) -> None:
        asked, numbers = random_tables(seed)
        for kind in KINDS:
            blocks, split = (kind(asked, numbers, geometry=name) for name in ("blocks", "split"))
            dense: Any = kind(asked, blocks.per_query(), geometry="dense")
            assert blocks.same_as(split) and split.same_as(dense) and dense.same_as(blocks)
            answers = [solved(each, tol=tol) for each, tol in ((blocks, 1e-6), (split, 0.1), (dense, 1e-6))]
            assert all(meet(one, two) for one in answers for two in answers)
            verdicts = [
                dense.certify(dense.as_primal(answer.mechanism.dense()), answers[2].dual) for answer in answers[:2]
            ]
            assert all(judged.violation <= 1e-8 for judged in verdicts)
            assert verdicts[0].objective == pytest.approx(answers[0].objective, rel=1e-6)
            # Split noise may be on more than is asked, which the matrix leaves out.
            assert verdicts[1].objective <= answers[1].objective * (1 + 1e-6)

    @quick
    @given(seeds, st.sampled_from(["replace", "replace:2", "add-remove:3"]))
    def test_blocks_meet_a_matrix_whoever_is_a_neighbour(self, seed: int, relation: str) -> None:
        asked, numbers = random_tables(seed)
        for kind in KINDS:
            each = kind(asked, numbers, geometry="blocks").per_query()
            try:
                blocks = kind(asked, numbers, geometry="blocks", neighbours=relation)
            except dm.errors.InvalidInputError:
                with pytest.raises(
                    dm.errors.InvalidInputError, match="none does, so every answer can be released exactly"
                ):
                    kind(asked, each, geometry="dense", neighbours=relation)
                continue
            dense = kind(asked, each, geometry="dense", neighbours=relation)
            assert blocks.same_as(dense) and not blocks.same_as(kind(asked, numbers, geometry="blocks"))
            one, two = (solved(each, tol=1e-6) for each in (blocks, dense))
            assert meet(one, two)
            judged = dense.certify(dense.as_primal(one.mechanism.dense()), two.dual)
            assert judged.violation <= 1e-8 and judged.objective == pytest.approx(one.objective, rel=1e-6)

    @quick
    @given(seeds)
    def test_products_meet_a_matrix_and_blocks(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        size = int(rng.integers(2, 5))
        queries = random_queries(size, rng) or workloads.identity(size)
        first = dm.Workload(queries.matrix, domain=dm.Domain({"z": size}))
        second = workloads.marginals(rng.integers(2, 4, 2).tolist(), ways=[(0, 1), (1, 2)][seed % 2])
        one, two = float(rng.uniform(1, 9)), rng.uniform(1, 9, len(second.axes))
        asked = workloads.kron(first, second)
        for kind in KINDS:
            product: Any = kind(asked, dm.ByFactor(one, two))
            blocks: Any = kind(asked, one * two, geometry="blocks")
            dense: Any = kind(asked, product.per_query(), geometry="dense")
            np.testing.assert_allclose(blocks.per_query(), dense.per_query(), rtol=1e-14)
            answers = [solved(each, tol=1e-6) for each in (product, blocks, dense)]
            assert all(meet(one, two) for one in answers for two in answers)


def test_numbers_by_factor_and_rules_say_what_they_are_for() -> None:
    for options in ({"geometry": "dense"}, {"geometry": "blocks"}, {"neighbours": "replace"}):
        found: Any = options
        with pytest.raises(dm.errors.InvalidInputError, match="targets by factor are for geometry 'product'"):
            dm.FitnessForUse(PRODUCT, dm.ByFactor(1.0, 2.0), **found)
    with pytest.raises(dm.errors.InvalidInputError, match="method 'softmax_newton' is for geometry 'dense'"):
        fast.solve(dm.FitnessForUse(TABLES), method="softmax_newton")
    for text in ("replace:0", "replace:", "add-remove:", "replace:one", "replace:1:2", "replace: "):
        with pytest.raises(dm.errors.InvalidInputError, match=f"neighbours must be .*:RECORDS, .*got '{text}'"):
            dm.FitnessForUse(TABLES, 1.0, neighbours=text)


class TestProductsWithoutSymmetry:
    """Two attributes of prefixes: a matrix of all cells would never end, the factors take no time."""

    def test_numbers_of_all_queries_that_are_products(self) -> None:
        both = workloads.kron(workloads.prefix(40), workloads.prefix(30))
        first, second = np.linspace(1, 2, 40), np.linspace(3, 1, 30)
        for family in (dm.FitnessForUse, dm.TotalVariance):
            for numbers, by_factor in (
                (np.ones(1200), dm.ByFactor(1.0, 1.0)),
                (np.kron(first, second), dm.ByFactor(first, second)),
            ):
                problem = family(both, numbers)
                assert problem.geometry.name == "product"
                np.testing.assert_allclose(problem.per_query(), numbers, rtol=1e-14)
                found, other = (fast.solve(each, tol=1e-6) for each in (problem, family(both, by_factor)))
                assert found.objective == pytest.approx(other.objective, rel=1e-9)
        small = workloads.kron(workloads.prefix(3), workloads.prefix(4))
        assert dm.FitnessForUse(small, np.ones(12)).geometry.name == "dense"
        assert dm.FitnessForUse(small, np.ones(12), geometry="product").geometry.name == "product"
        assert dm.FitnessForUse(small, np.r_[2.0, np.ones(11)]).geometry.name == "dense"

    @pytest.mark.parametrize("family", [dm.FitnessForUse, dm.TotalVariance])
    def test_a_union_of_one_table(self, family: Any, tmp_path: Path) -> None:
        domain, table = {"a": 5, "b": 2, "c": 4}, {"t": {"a": workloads.prefix(5), "c": workloads.prefix(4)}}
        asked = workloads.union(domain, table)
        by_product, by_blocks = (family(asked, 2.0, geometry=name) for name in ("product", "blocks"))
        found, other = (fast.solve(each, tol=1e-8) for each in (by_product, by_blocks))
        assert found.objective == pytest.approx(other.objective, rel=1e-7)
        assert by_product.same_as(by_blocks) and by_product.workload is asked
        dm.save(found, tmp_path / "found.npz")
        again = dm.load(tmp_path / "found.npz")
        assert again == found and again.problem.geometry.name == "product"
        np.testing.assert_allclose(by_product.per_query(), 2.0)
        large = workloads.union({"a": 75, "b": 42}, {"t": {"a": workloads.prefix(75), "b": workloads.prefix(42)}})
        assert family(large).geometry.name == "product"
        assert fast.solve(family(large)).status.name == "CERTIFIED"
