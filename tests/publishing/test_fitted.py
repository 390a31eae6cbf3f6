"""Fitted tables: of one data set without negative counts, whole where asked, as near to the noisy ones as is proven."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.publishing.fitting.clique_tables import CliqueTables
from dualmech.publishing.fitting.fitted import FittedTables
from dualmech.publishing.fitting.junction import junction_tree
from dualmech.publishing.fitting.nearest import CLOSE, nearest, project
from dualmech.publishing.fitting.noisy_tables import NoisyTable, NoisyTables
from dualmech.publishing.fitting.released import layout_of
from dualmech.publishing.fitting.whole_records import glued_records, whole_tables
from dualmech.publishing.publication import Publication
from dualmech.publishing.release import plan

ROUNDING = 1e-9


def seeded(seed: int) -> Any:
    """Return noise that can be drawn again, rounded to whole numbers."""
    generator = np.random.default_rng(seed)

    def noise(deviation: float, count: int) -> Any:
        drawn = (deviation * generator.standard_normal(count)).tolist()
        return np.array([round(each) for each in drawn], dtype=object)

    return noise


def published(problem: Any, records: Any, seed: int = 0) -> Publication:
    """Return what a release would publish of records (N, attributes), or of a data vector."""
    drawn, asked = plan(fast.solve(problem, tol=1e-2))
    if drawn.by_table:
        needed = drawn.mechanism.needed_tables
        records = dm.records.count(records, needed, allow_empty=True)
    return Publication(drawn, drawn.draw(drawn.read(records, asked.domain, True), seeded(seed)), asked)


def answered(found: FittedTables, released: Publication, codes: Any) -> dict[str, Any]:
    """Return the tables of records, counted one by one."""
    tabular = released.workload.tabular()
    tables = {}
    for published_table, own in zip(released.published.values(), tabular.product_tables, strict=True):
        columns = [found.attributes.index(tabular.domain.names[axis]) for axis in own.axes]
        counts = np.zeros([tabular.domain.shape[axis] for axis in own.axes])
        np.add.at(counts, tuple(codes[:, columns].T), 1 if columns else len(codes))
        for side, (_, asked) in enumerate(own.queries):
            if asked is not None:
                counts = np.moveaxis(np.tensordot(asked.dense(), counts, (1, side)), 0, side)
        tables[published_table.name] = counts
    return tables


def half_distance(found: FittedTables, released: Publication) -> float:
    return 0.5 * sum(
        float(((found.counts(name) - released.estimates(name)) ** 2 / released.variances(name)).sum())
        for name in released.tables
    )


@st.composite
def unions(draw: st.DrawFn) -> tuple[dm.FitnessForUse, np.ndarray, int]:
    """Problems of a few tables of up to three of five small attributes, and records."""
    shape = draw(st.lists(st.integers(1, 4), min_size=5, max_size=5))
    domain = dm.Domain({f"a{axis}": size for axis, size in enumerate(shape)})
    tables: dict[str, Any] = {}
    for number in range(draw(st.integers(1, 4))):
        axes = draw(st.sets(st.integers(0, 4), max_size=3))
        sums = draw(st.booleans())
        tables[f"t{number}"] = {
            f"a{axis}": dm.workloads.prefix(shape[axis]) if sums else None for axis in sorted(axes)
        }
    seed = draw(st.integers(0, 2**16))
    records = np.random.default_rng(seed).integers(0, shape, (draw(st.sampled_from([0, 3, 60, 900])), 5))
    scale = draw(st.sampled_from([1e-12, 1.0, 25.0, 1e12]))
    return dm.FitnessForUse(dm.workloads.union(domain, tables), scale, geometry="blocks"), records, seed


class TestAnyUnion:
    @settings(max_examples=25, deadline=None)
    @given(unions())
    def test_tables_are_of_whole_records(self, given: Any) -> None:
        problem, records, seed = given
        released = published(problem, records, seed)
        for integer in (False, True):
            found = released.fitted(integer=integer)
            assert found.whole is integer and np.isfinite(found.gap) and found.gap >= 0
            assert all(np.all(found.counts(name) >= 0) for name in found.tables)
            for name in found.tables:
                asked = dict(zip(found.tables, released.workload.tabular().tables, strict=True))[name]
                for side, (_, queries) in enumerate(asked.queries):
                    if queries is not None:
                        steps = np.diff(found.counts(name), axis=side)
                        assert np.all(steps >= -ROUNDING * max(1.0, found.counts(name).max(initial=0)))
        codes = found.records()
        for name, counts in answered(found, released, codes).items():
            assert np.array_equal(counts, found.counts(name))

    @settings(max_examples=15, deadline=None)
    @given(unions())
    def test_cliques_and_all_cells_prove_the_same(self, given: Any) -> None:
        """The least distance is in the interval of a fit on cliques, and in that on all cells: they overlap."""
        problem, records, seed = given
        released = published(problem, records, seed)
        on_cliques = released.fitted()
        domain = problem.workload.domain
        everything = dm.workloads.union(
            domain, {table.name: dict.fromkeys(domain.names) for table in problem.workload.tables[:1]}
        )
        whole = layout_of(everything)
        assert len(whole.cliques) == 1
        noisy = on_all_cells(released, whole)
        vector, direction = nearest(noisy)
        least = noisy.least_distance(direction)
        most = noisy.distance(noisy.residuals(vector))
        upper = half_distance(on_cliques, released)
        rounding = 1e-6 * (1 + upper + most)
        assert upper - on_cliques.gap <= most + rounding
        assert least <= upper + rounding


def on_all_cells(released: Publication, layout: CliqueTables) -> NoisyTables:
    """Return the tables of a release on one clique of all attributes, each asked cell by cell."""
    shape, tables = layout.shapes[0], []
    for name, own in zip(released.tables, released.workload.tabular().tables, strict=True):
        others = layout.outside(0, own.axes)
        unit = 1 / np.sqrt(released.variances(name))
        tables.append(
            NoisyTable(
                0,
                others,
                tuple(shape[axis] for axis in own.axes),
                tuple(1 if side in others else size for side, size in enumerate(shape)),
                tuple(None if asked is None else asked.dense() for _, asked in own.queries),
                np.asarray(unit),
                np.asarray(released.estimates(name) * unit),
            )
        )
    total = max(round(float(np.asarray(released.drawn.estimate(released.measured, ())).item())), 0)
    return NoisyTables(layout, tuple(tables), float(total))


class TestTrees:
    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.sets(st.integers(0, 7), max_size=3), min_size=1, max_size=9))
    @example([set()])
    @example([{0, 1}, {1, 2}, {2, 3}, {3, 0}])
    def test_running_intersection(self, sets: list[set[int]]) -> None:
        tree = junction_tree(dm.Domain({f"a{axis}": 2 + axis % 3 for axis in range(8)}), map(tuple, sets))
        for asked in sets:
            assert any(asked <= set(clique.axes) for clique in tree)
        seen: set[int] = set()
        for number, clique in enumerate(tree):
            if number:
                assert clique.parent < number
                assert set(clique.separator) == set(clique.axes) & seen
                assert set(clique.separator) <= set(tree[clique.parent].axes)
            seen |= set(clique.axes)

    @pytest.mark.parametrize("seed", range(4))
    def test_the_least_cell_is_that_of_all(self, seed: int) -> None:
        domain = dm.Domain({"a": 3, "b": 2, "c": 4, "d": 2, "e": 1})
        layout = CliqueTables(junction_tree(domain, [(0, 1), (1, 2), (2, 3), (0, 3), (4,)]), domain.shape)
        weights = np.random.default_rng(seed).standard_normal(layout.cells)
        everywhere = np.zeros(domain.shape)
        for clique, table in zip(layout.cliques, layout.views(weights), strict=True):
            sides = [size if axis in clique.axes else 1 for axis, size in enumerate(domain.shape)]
            everywhere += table.reshape(sides)
        assert layout.least(weights) == pytest.approx(everywhere.min())

    @pytest.mark.parametrize("seed", range(4))
    def test_whole_tables_are_near_and_of_the_records(self, seed: int) -> None:
        domain, generator = dm.Domain({"a": 3, "b": 2, "c": 4, "d": 5}), np.random.default_rng(seed)
        layout = CliqueTables(junction_tree(domain, [(0, 1), (1, 2), (2, 3)]), domain.shape)
        vector = layout.agreeing(generator.exponential(size=layout.cells) ** 3, 40.0)
        whole = whole_tables(layout, vector, 40.0)
        codes = glued_records(layout, whole, (0, 1, 2, 3))
        assert codes.shape == (40, 4)
        for clique, table, own in zip(layout.cliques, layout.views(whole), layout.views(vector), strict=True):
            counted = np.zeros(table.shape)
            np.add.at(counted, tuple(codes[:, list(clique.axes)].T), 1)
            assert np.array_equal(counted, table) and np.abs(table - own).max() < 6

    def test_a_projection_is_the_nearest_point(self) -> None:
        generator = np.random.default_rng(0)
        for _ in range(20):
            point, total = generator.standard_normal(7), generator.uniform(0, 5)
            found = project(point, total)
            assert found.min() >= 0 and found.sum() == pytest.approx(total)
            slope = (
                found - point
            )  # of half the squared distance: least at a vertex, by no more than at the point
            assert slope @ found - total * slope.min() <= 1e-9 * (1 + total)


class TestAtScale:
    chain = dm.Domain({f"a{axis}": 10 for axis in range(12)})
    neighbours = dm.workloads.union(
        chain, {f"a{axis} x a{axis + 1}": [f"a{axis}", f"a{axis + 1}"] for axis in range(11)}
    )

    def released(self, seed: int = 0) -> Publication:
        generator = np.random.default_rng(seed)
        records = np.cumsum(generator.integers(0, 3, (2000, 12)), axis=1) % 10
        return published(dm.FitnessForUse(self.neighbours, 25.0), records, seed)

    def test_a_chain_of_twelve_attributes(self) -> None:
        released = self.released()
        fitted = released.fitted()
        assert fitted.gap <= CLOSE * self.neighbours.shape[0] * (1 + 1e-6)
        tables = [fitted.counts(name) for name in fitted.tables]
        for one, two in itertools.pairwise(tables):
            np.testing.assert_allclose(one.sum(axis=0), two.sum(axis=1), rtol=1e-9, atol=1e-9)
        assert half_distance(fitted, released) > 10  # as many counts are 0, not because there is no noise
        with pytest.raises(dm.InvalidInputError, match="too large to write out"):
            _ = fitted.data
        with pytest.raises(dm.InvalidInputError, match="integer=True"):
            fitted.records()

    def test_records_and_files(self, tmp_path: Path) -> None:
        released = self.released()
        fitted = released.fitted(integer=True)
        for name, counts in answered(fitted, released, fitted.records()).items():
            assert np.array_equal(counts, fitted.counts(name))
        names = fitted.write(tmp_path / "out", records=True)
        assert names[-3:] == ["records.csv", "tables.csv", "README.md"]
        assert {each.name for each in (tmp_path / "out").iterdir()} == {*names}
        assert "biased" in (tmp_path / "out" / "README.md").read_text()
        with (tmp_path / "out" / names[0]).open() as handle:
            lines = [*csv.reader(handle)]
        assert lines[0] == ["a0", "a1", "count"] and len(lines) == 101
        assert sum(int(line[2]) for line in lines[1:]) == len(fitted.records())
        again = dm.records.count(tmp_path / "out" / "records.csv", dm.workloads.marginals(self.chain, ways=1))
        assert np.array_equal(again[3,], fitted.counts("a3 x a4").sum(axis=1))

    def test_what_hangs_together_is_named(self) -> None:
        pairs = dm.workloads.marginals(self.chain, ways=2)
        released = published(dm.FitnessForUse(pairs, 25.0), np.zeros((5, 12)))
        with pytest.raises(dm.InvalidInputError, match="12 attributes together, 'a0', 'a1'.* and 6 more"):
            released.fitted()
        with pytest.raises(dm.InvalidInputError, match="in all"):
            layout_of(
                dm.workloads.union(
                    {f"a{each}": 2**16 for each in range(17)},
                    {f"a{each}": [f"a{each}"] for each in range(17)},
                )
            )

    def test_labels(self) -> None:
        pytest.importorskip("pandas")
        people = dm.Schema({"age": range(3, 6), "sex": ["f", "m"], "pay": ["low", "high"]})
        asked = dm.workloads.union(people, {"ages": {"age": dm.workloads.prefix(3)}, "sex": ["sex"]})
        tables = {(0,): np.array([1.0, 0, 2]), (1,): np.array([3.0, 0])}
        drawn, _ = plan(fast.solve(dm.FitnessForUse(asked, 1e-9)))
        found = Publication(drawn, drawn.draw(tables, seeded(0)), asked).fitted(integer=True)
        assert found.attributes == ("age", "sex")  # of pay nothing was asked
        frame = found.frame()
        assert sorted(frame["age"]) == ["3", "5", "5"] and {*frame["sex"]} == {"f"}
        assert found.counts("ages").tolist() == [1, 1, 3]


class TestOthers:
    """Releases that are not of tables, and what is asked of them at the ends."""

    @pytest.mark.parametrize("integer", [False, True])
    def test_queries_on_a_matrix_and_products(self, integer: bool) -> None:
        for problem, data in (
            (dm.FitnessForUse(dm.workloads.prefix(6), 4.0), np.arange(6.0)),
            (
                dm.FitnessForUse(dm.workloads.kron(dm.workloads.prefix(3), dm.workloads.identity(4)), 4.0),
                5 * np.ones(12),
            ),
        ):
            released = published(problem, data)
            found = released.fitted(integer=integer)
            (table,) = found.tables
            assert np.allclose(problem.workload.dense() @ found.data.ravel(), found.counts(table).ravel())
            assert half_distance(found, released) >= -1e-12 and found.data.min() >= 0

    def test_nobody_and_less_than_nobody(self) -> None:
        domain = dm.Domain({"a": 3, "b": 2})
        asked = dm.workloads.union(domain, {"all": [], "a": ["a"], "b": ["b"]})
        totals = set()
        for seed in range(6):
            released = published(dm.FitnessForUse(asked, 9.0), np.zeros((0, 2)), seed)
            found = released.fitted(integer=True)
            total = float(found.counts("all"))
            assert total == max(round(float(released.estimates("all"))), 0) == len(found.records())
            totals.add(total)
        assert 0.0 in totals and len(totals) > 1

    def test_a_release_that_does_not_tell_the_total(self) -> None:
        released = published(dm.FitnessForUse(dm.Workload([[1.0, -1.0]]), 4.0), np.array([3.0, 4.0]))
        with pytest.raises(dm.InvalidInputError):
            released.fitted()
