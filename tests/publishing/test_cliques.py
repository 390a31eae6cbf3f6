"""Cliques of attributes on trees: their tables, what is least over all cells, whole numbers, and forests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech.publishing.fitting.cliques import CliqueTables, junction_tree, spanning_forests
from dualmech.publishing.fitting.nearest import project
from dualmech.publishing.fitting.records import glued_records, whole_tables


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

    def test_the_least_cell_is_that_of_all(self) -> None:
        domain = dm.Domain({"a": 3, "b": 2, "c": 4, "d": 2, "e": 1})
        layout = CliqueTables(junction_tree(domain, [(0, 1), (1, 2), (2, 3), (0, 3), (4,)]), domain.shape)
        for seed in range(4):
            weights = np.random.default_rng(seed).standard_normal(layout.cells)
            everywhere = np.zeros(domain.shape)
            for clique, table in zip(layout.cliques, layout.views(weights), strict=True):
                sides = [size if axis in clique.axes else 1 for axis, size in enumerate(domain.shape)]
                everywhere += table.reshape(sides)
            assert layout.least(weights) == pytest.approx(everywhere.min()), seed

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
            slope = found - point  # of half the squared distance: least at a vertex, by no more than at the point
            assert slope @ found - total * slope.min() <= 1e-9 * (1 + total)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.sets(st.integers(0, 6), max_size=3), min_size=1, max_size=12))
    @example([{0, 1}, {1, 2}, {0, 2}, {2}])
    def test_a_forest_has_no_circle(self, sets: list[set[int]]) -> None:
        """Each set's attributes less one are edges: as many as attributes less trees, in each part."""
        parts = spanning_forests([tuple(sorted(own)) for own in sets])
        assert sorted(number for part in parts for number in part) == [*range(len(sets))]
        for part in parts:
            largest = [sets[number] for number in part]
            kept = [own for place, own in enumerate(largest) if not any(own <= other for other in largest[:place])]
            trees = {axis: {axis} for own in kept for axis in own}
            for own in kept:
                assert len({id(trees[axis]) for axis in own}) == len(own)
                joined = set().union(*(trees[axis] for axis in own))
                trees.update(dict.fromkeys(joined, joined))
