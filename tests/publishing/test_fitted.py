"""Fitted tables: of one data set without negative counts, whole where asked, as near to the noisy ones as is proven."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import releases
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import rounded_gaussian

import dualmech as dm
from dualmech import fast
from dualmech.publishing.fitting.cliques import CliqueTables
from dualmech.publishing.fitting.nearest import CLOSE, NoisyTable, NoisyTables, nearest
from dualmech.publishing.fitting.records import FittedTables
from dualmech.publishing.fitting.released import layouts_of
from dualmech.publishing.publication import Publication
from dualmech.publishing.release import plan

ROUNDING = 1e-9


def published(problem: Any, records: Any, seed: int = 0) -> Publication:
    """Return what a release would publish of records (N, attributes), or of a data vector."""
    return releases.published(fast.solve(problem, tol=1e-2), records, rounded_gaussian(seed), allow_empty=True)


def coded(found: FittedTables, released: Publication) -> np.ndarray:
    """Return the records of a fit by the domain's attributes, 0 for those of which nothing was asked."""
    names = released.workload.tabular().domain.names
    own = found.records()
    codes = np.zeros((len(own), len(names)), dtype=np.int64)
    codes[:, [names.index(name) for name in found.attributes]] = own
    return codes


def of_so_many(records: np.ndarray, count: int) -> np.ndarray:
    """Return some records, the first ones repeated or the last ones left out; of none, those of all zeros."""
    given = records if len(records) else np.zeros((1, records.shape[1]), dtype=np.int64)
    return given[np.arange(count) % len(given)]


def answered(released: Publication, codes: Any) -> dict[str, Any]:
    """Return the tables of records, counted one by one."""
    tabular, tables = released.workload.tabular(), {}
    for name, own in zip(released.tables, tabular.product_tables, strict=True):
        counts = np.zeros([tabular.domain.shape[axis] for axis in own.axes])
        np.add.at(counts, tuple(codes[:, list(own.axes)].T), 1 if own.axes else len(codes))
        for side, (_, asked) in enumerate(own.queries):
            if asked is not None:
                counts = np.moveaxis(np.tensordot(asked.dense(), counts, (1, side)), 0, side)
        tables[name] = counts
    return tables


def half_distance(found: FittedTables | dict[str, Any], released: Publication) -> float:
    """Return half the squared distance in units of the noise."""
    tables = found if isinstance(found, dict) else {name: found.counts(name) for name in found.tables}
    return 0.5 * sum(
        float(((counts - released.estimates(name)) ** 2 / released.variances(name)).sum())
        for name, counts in tables.items()
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
        tables[f"t{number}"] = {f"a{axis}": dm.workloads.prefix(shape[axis]) if sums else None for axis in sorted(axes)}
    seed = draw(st.integers(0, 2**16))
    records = np.random.default_rng(seed).integers(0, shape, (draw(st.sampled_from([0, 3, 60, 900])), 5))
    scale = draw(st.sampled_from([1e-2, 1.0, 25.0, 1e6]))
    return dm.FitnessForUse(dm.workloads.union(domain, tables), scale, geometry="blocks"), records, seed


class TestAnyUnion:
    @settings(max_examples=12, deadline=None)
    @given(unions())
    def test_tables_are_of_whole_records(self, given: Any) -> None:
        problem, records, seed = given
        released = published(problem, records, seed)
        for integer in (False, True):
            found = released.fitted(integer=integer)
            assert found.whole is integer and np.isfinite(found.gap) and found.gap >= 0
            assert all(np.all(found.counts(name) >= 0) for name in found.tables)
            for name, asked in zip(found.tables, released.workload.tabular().tables, strict=True):
                for side, (_, queries) in enumerate(asked.queries):
                    if queries is not None:
                        steps = np.diff(found.counts(name), axis=side)
                        assert np.all(steps >= -ROUNDING * max(1.0, found.counts(name).max(initial=0)))
            others = of_so_many(records, len(released.fitted(integer=True).records()))
            least = half_distance(answered(released, others), released) * (1 + ROUNDING)
            assert half_distance(found, released) - found.gap <= least
        for name, counts in answered(released, coded(found, released)).items():
            assert np.array_equal(counts, found.counts(name))

    @settings(max_examples=10, deadline=None)
    @given(unions())
    def test_cliques_and_all_cells_prove_the_same(self, given: Any) -> None:
        """The least distance is in the interval of a fit on cliques, and in that on all cells: they overlap."""
        problem, records, seed = given
        released = published(problem, records, seed)
        on_cliques = released.fitted()
        domain = problem.workload.domain
        (part,) = layouts_of(dm.workloads.union(domain, {"all": dict.fromkeys(domain.names)}))
        assert len(part.layout.cliques) == 1
        noisy = on_all_cells(released, part.layout)
        vector, direction = nearest(noisy)
        least = noisy.least_distance(direction)
        most = noisy.distance(noisy.residuals(vector))
        upper = half_distance(on_cliques, released)
        rounding = 1e-6 * (1 + upper + most)
        assert upper - on_cliques.gap <= most + rounding
        assert least <= upper + rounding


def on_all_cells(released: Publication, layout: CliqueTables) -> NoisyTables:
    """Return the tables of a release on one clique of all attributes."""
    tables = []
    for name, own in zip(released.tables, released.workload.tabular().tables, strict=True):
        unit = 1 / np.sqrt(released.variances(name))
        queries = tuple(None if asked is None else asked.dense() for _, asked in own.queries)
        shape = tuple(layout.sizes[axis] for axis in own.axes)
        aim = np.asarray(released.estimates(name) * unit)
        tables.append(NoisyTable(own.axes, shape, queries, np.asarray(unit), aim).on(layout))
    total = max(round(float(np.asarray(released.drawn.estimate(released.measured, ())).item())), 0)
    return NoisyTables(layout, tuple(tables), float(total))


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
        with pytest.raises(dm.errors.InvalidInputError, match="too large to write out"):
            _ = fitted.data
        with pytest.raises(dm.errors.InvalidInputError, match="integer=True"):
            fitted.records()

    def test_records_and_files(self, tmp_path: Path) -> None:
        released = self.released()
        fitted = released.fitted(integer=True)
        for name, counts in answered(released, coded(fitted, released)).items():
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
        large = dm.Domain({"a": 600, "b": 700})
        with pytest.raises(dm.errors.InvalidInputError, match="2 attributes together, 'a', 'b', of 4.2e"):
            layouts_of(dm.workloads.marginals(large, ways=2))
        singles = {f"a{each}": [f"a{each}"] for each in range(17)}
        with pytest.raises(dm.errors.InvalidInputError, match="in all"):
            layouts_of(dm.workloads.union(dict.fromkeys(singles, 2**16), singles))

    def test_labels(self) -> None:
        pytest.importorskip("pandas")
        people = dm.Schema({"age": range(3, 6), "sex": ["f", "m"], "pay": ["low", "high"]})
        asked = dm.workloads.union(people, {"ages": {"age": dm.workloads.prefix(3)}, "sex": ["sex"]})
        tables = {(0,): np.array([1.0, 0, 2]), (1,): np.array([3.0, 0])}
        drawn, _ = plan(fast.solve(dm.FitnessForUse(asked, 1e-9)))
        found = Publication(drawn, drawn.draw(tables, rounded_gaussian(0)), asked).fitted(integer=True)
        assert found.attributes == ("age", "sex")  # of pay nothing was asked
        frame = found.frame()
        assert sorted(frame["age"]) == ["3", "5", "5"] and {*frame["sex"]} == {"f"}
        assert found.counts("ages").tolist() == [1, 1, 3]


TRIPLE = dm.Domain({"a": 3, "b": 2, "c": 4})
ON_CELLS = dm.Workload(np.tril(np.ones((6, 6)))[[1, 3, 5]], domain=dm.Domain({"a": 3, "b": 2}))


class TestTooTight:
    """All pairs of attributes that have too many cells together: records are moved, parts give the bound."""

    pairs = dm.workloads.marginals(dm.Domain({f"a{axis}": 8 for axis in range(7)}), ways=2)

    def test_records_come_near_and_the_bound_holds(self) -> None:
        generator = np.random.default_rng(0)
        records = np.cumsum(generator.integers(0, 2, (400, 7)), axis=1) % 8
        released = published(dm.FitnessForUse(self.pairs, 9.0), records)
        assert len(layouts_of(self.pairs)) > 1
        fitted = released.fitted()
        assert fitted.whole and fitted.gap < 0.2 * self.pairs.shape[0]
        for name, counts in answered(released, coded(fitted, released)).items():
            assert np.array_equal(counts, fitted.counts(name))
        others = of_so_many(records, len(fitted.records()))
        truth = half_distance(answered(released, others), released)
        assert half_distance(fitted, released) - fitted.gap <= truth
        assert half_distance(fitted, released) < truth  # which noise is part of

    def test_nobody(self) -> None:
        for seed in range(2):
            released = published(dm.FitnessForUse(self.pairs, 9.0), np.zeros((0, 7)), seed)
            fitted = released.fitted(integer=True)
            assert np.isfinite(fitted.gap) and fitted.counts("a0 x a1").sum() == len(fitted.records())


class TestOthers:
    """Releases that are not of tables, and what is asked of them at the ends."""

    def test_queries_on_a_matrix_and_products(self) -> None:
        product = dm.workloads.kron(dm.workloads.prefix(3), dm.workloads.identity(4))
        asked: Any
        for asked, data in (
            (dm.workloads.prefix(6), np.arange(6.0)),
            (ON_CELLS, np.arange(6.0)),
            (product, np.full((3, 4), 5)),
        ):
            released = published(dm.FitnessForUse(asked, 4.0), data)
            for found in (released.fitted(integer=each) for each in (False, True)):
                (table,) = found.tables
                assert np.allclose(asked.dense() @ found.data.ravel(), found.counts(table).ravel())
                assert half_distance(found, released) >= -1e-12 and found.data.min() >= 0

    def test_noise_of_a_million(self) -> None:
        asked = dm.workloads.union(TRIPLE, {"one": ["a", "b"], "two": ["b", "c"], "all": []})
        for seed in range(6):
            released = published(dm.FitnessForUse(asked, 1e12), np.zeros((50, 3)), seed)
            found = released.fitted()
            assert 0 <= found.gap <= 2 * CLOSE * asked.shape[0]
            assert np.isclose(found.counts("one").sum(), found.counts("two").sum())

    def test_hardly_any_noise(self) -> None:
        asked = dm.workloads.union(TRIPLE, {"one": ["a", "b"], "two": ["b", "c"]})
        records = np.random.default_rng(0).integers(0, TRIPLE.shape, (50, 3))
        found = published(dm.FitnessForUse(asked, 1e-12), records).fitted(integer=True)
        expected = dm.records.count(records, dm.workloads.marginals(TRIPLE, sets=[("a", "b")]))
        assert np.array_equal(found.counts("one"), expected[0, 1])

    def test_nobody_and_less_than_nobody(self) -> None:
        domain = dm.Domain({"a": 3, "b": 2})
        asked = dm.workloads.union(domain, {"all": [], "a": ["a"], "b": ["b"]})
        totals = set()
        for seed in range(6):
            released = published(dm.FitnessForUse(asked, 9.0), np.zeros((0, 2)), seed)
            found = released.fitted(integer=True)
            totals.add(total := float(found.counts("all")))
            assert total == max(round(float(released.estimates("all"))), 0) == len(found.records())
        assert 0.0 in totals and len(totals) > 1

    def test_a_release_that_does_not_tell_the_total(self) -> None:
        released = published(dm.FitnessForUse(dm.Workload([[1.0, -1.0]]), 4.0), np.array([3.0, 4.0]))
        with pytest.raises(dm.errors.InvalidInputError):
            released.fitted()
