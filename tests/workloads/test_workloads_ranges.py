"""Ranges over several attributes, random tables and predicates, cells in another order: each from its text."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, workloads
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain

quick = settings(max_examples=24)
shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def counted_by_its_name(workload: Workload) -> Array:
    """Write a workload out again from the names of its queries, such as ``a0=1..3, a2=0``."""
    domain = workload.domain
    assert domain is not None
    rows = []
    for name in workload.names:
        spans = {
            attribute: (int(first), int(last or first))
            for attribute, first, last in re.findall(r"(\w+)=(\d+)(?:\.\.(\d+))?", name)
        }
        assert spans or name == "total"
        rows.append(
            [
                all(
                    spans[attribute][0] <= code <= spans[attribute][1]
                    for attribute, code in zip(domain.names, cell, strict=True)
                    if attribute in spans
                )
                for cell in itertools.product(*map(range, domain.shape))
            ]
        )
    return np.array(rows, dtype=float)


class TestRangeMarginals:
    @quick
    @given(shapes, st.data())
    def test_counts_every_range_of_its_attributes(self, shape: list[int], data: st.DataObject) -> None:
        ways = data.draw(st.lists(st.integers(0, len(shape)), min_size=1, unique=True))
        workload = workloads.range_marginals(shape, ways=ways)
        np.testing.assert_array_equal(workload.dense(), counted_by_its_name(workload))
        assert workload.is_sparse and np.all(workload.matrix.data != 0)
        for group, names in itertools.groupby(range(len(workload)), key=lambda j: workload.groups[j]):
            sizes = [shape[int(name[1:])] for name in group.split(" x ") if name != "total"]
            asked = [workload.names[j] for j in names]
            assert len(asked) == len(set(asked)) == math.prod(n * (n + 1) // 2 for n in sizes)

    def test_ways_sets_and_sizes(self) -> None:
        by_ways = workloads.range_marginals({"a": 3, "b": 2}, ways=(1, 2))
        by_sets = workloads.range_marginals({"a": 3, "b": 2}, sets=["a", "b", ("b", "a")])
        np.testing.assert_array_equal(by_ways.dense(), by_sets.dense())
        assert by_ways.names == by_sets.names and by_ways.groups == by_sets.groups
        pairs = 2 * 36 * 136 + 136 * 136
        assert workloads.range_marginals([8, 16, 16], ways=2).shape == (pairs, 2048)
        with pytest.raises(dm.errors.InvalidInputError, match="too many"):
            workloads.range_marginals([2048], ways=1)

    @pytest.mark.parametrize(
        ("keywords", "match"), [({}, "exactly one"), ({"ways": 1, "sets": ["a"]}, "exactly one"), ({"ways": 3}, "ways")]
    )
    def test_refuses(self, keywords: dict, match: str) -> None:
        with pytest.raises(dm.errors.DualmechError, match=match):
            workloads.range_marginals({"a": 2, "b": 2}, **keywords)
        with pytest.raises(dm.errors.DualmechError, match="domain"):
            workloads.range_marginals([], ways=1)

    def test_spans_what_marginals_span(self) -> None:
        ranges = workloads.range_marginals([3, 4, 2], ways=2).dense()
        cells = workloads.marginals([3, 4, 2], ways=2).dense()
        assert np.linalg.matrix_rank(ranges) == np.linalg.matrix_rank(np.vstack([ranges, cells]))
        assert np.linalg.matrix_rank(ranges) == np.linalg.matrix_rank(cells)

    def test_one_attribute_is_all_range(self) -> None:
        np.testing.assert_array_equal(workloads.range_marginals([7], ways=1).dense(), workloads.all_range(7).dense())


class TestRandomRange:
    @quick
    @given(shapes, st.integers(1, 9), st.integers(0, 99))
    def test_counts_the_range_in_its_name(self, shape: list[int], m: int, seed: int) -> None:
        workload = workloads.random_range(shape, m, seed)
        np.testing.assert_array_equal(workload.dense(), counted_by_its_name(workload))
        assert workload.shape == (m, math.prod(shape))

    @pytest.mark.parametrize("domain", [{"a": 3, "b": 2}, [("a", 3), ("b", 2)], Domain({"a": 3, "b": 2})])
    def test_takes_any_domain(self, domain: Any) -> None:
        workload = workloads.random_range(domain, 4, 0)
        assert workload.domain == Domain({"a": 3, "b": 2})

    def test_draws_how_many_attributes_then_which_then_the_intervals(self) -> None:
        draws, shape = 60_000, (2, 3, 2)
        names = workloads.random_range(shape, draws, 0).names
        seen = Counter(tuple(re.findall(r"a(\d)=", name)) for name in names)
        for size in (1, 2, 3):
            for attributes in itertools.combinations("012", size):
                chance = 1 / 3 / math.comb(3, size)
                spread = math.sqrt(draws * chance * (1 - chance))
                assert abs(seen[attributes] - draws * chance) < 5 * spread
        spans = Counter(name for name in names if name.startswith("a1") and "," not in name)
        asked = sum(spans.values())
        for a, b in itertools.combinations_with_replacement(range(3), 2):
            chance = (1 if a == b else 2) / 9
            found = spans[f"a1={a}" if a == b else f"a1={a}..{b}"]
            assert abs(found - asked * chance) < 5 * math.sqrt(asked * chance * (1 - chance))

    def test_refuses(self) -> None:
        for wrong in ([], [2, 0], [2.5], {"a": -1}):
            with pytest.raises(dm.errors.DualmechError, match="domain"):
                workloads.random_range(wrong, 2, 0)  # type: ignore[arg-type]
        with pytest.raises(dm.errors.InvalidInputError, match="too large"):
            workloads.random_range([2] * 60, 2, 0)


class TestRandomMarginals:
    @quick
    @given(shapes, st.integers(0, 99), st.data())
    def test_is_marginals_on_distinct_sets(self, shape: list[int], seed: int, data: st.DataObject) -> None:
        tables = data.draw(st.integers(1, 2 ** len(shape) - 1))
        workload = workloads.random_marginals(shape, tables, seed)
        drawn = list(dict.fromkeys(workload.groups))
        assert len(drawn) == tables and "total" not in drawn
        expected = workloads.marginals(shape, sets=[group.split(" x ") for group in drawn])
        np.testing.assert_array_equal(workload.dense(), expected.dense())

    def test_every_set_is_alike_likely_and_refusals(self) -> None:
        seen = Counter(workloads.random_marginals([2, 2], 1, seed).groups[0] for seed in range(900))
        assert set(seen) == {"a0", "a1", "a0 x a1"}
        assert all(abs(count - 300) < 5 * math.sqrt(200) for count in seen.values())
        with pytest.raises(dm.errors.InvalidInputError, match="tables must be at most 3"):
            workloads.random_marginals([2, 2], 4, 0)
        with pytest.raises(dm.errors.DualmechError, match="tables"):
            workloads.random_marginals([2, 2], 0, 0)
        with pytest.raises(dm.errors.DualmechError, match="rng"):
            workloads.random_marginals([2, 2], 1, -1)
        with pytest.raises(dm.errors.InvalidInputError, match="too large"):
            workloads.random_marginals([2] * 60, 3, 0).matrix  # noqa: B018


def test_each_cell_belongs_with_the_probability() -> None:
    for probability in (0.5, 0.2):
        workload = workloads.predicates(200, 300, 1, probability)
        assert set(np.unique(workload.dense())) == {0.0, 1.0}
        members = workload.dense().sum()
        spread = math.sqrt(60_000 * probability * (1 - probability))
        assert abs(members - 60_000 * probability) < 5 * spread
    first = workloads.predicates(5, 4, 3).dense()
    np.testing.assert_array_equal(first, workloads.predicates(5, 4, np.random.default_rng(3)).dense())
    for wrong in (0, 1.0, -0.1, np.nan):
        with pytest.raises(dm.errors.InvalidInputError, match="probability"):
            workloads.predicates(5, 4, 0, wrong)
    with pytest.raises(dm.errors.DualmechError, match="d must|workload of shape"):
        workloads.predicates(0, 4, 0)


def test_counts_the_first_cell_d_times_and_the_last_once() -> None:
    workload = workloads.cdf(9)
    np.testing.assert_array_equal(workload.dense().sum(axis=0), np.arange(9, 0, -1))
    assert workload.names == workloads.prefix(9).names


class TestPermuted:
    @quick
    @given(shapes, st.integers(0, 99))
    def test_asks_the_same_of_cells_in_another_order(self, shape: list[int], seed: int) -> None:
        workload = workloads.marginals(shape, ways=1)
        moved = workloads.permuted(workload, seed)
        order = np.random.default_rng(seed).permutation(math.prod(shape))
        np.testing.assert_array_equal(moved.dense(), workload.dense()[:, order])
        assert moved.names == workload.names and moved.groups == workload.groups
        assert moved.is_sparse and moved.domain is None

    def test_refuses(self) -> None:
        with pytest.raises(dm.errors.InputTypeError, match="workload"):
            workloads.permuted(sp.eye_array(3), 0)
        with pytest.raises(dm.errors.DualmechError, match="rng"):
            workloads.permuted(workloads.prefix(3), "0")  # type: ignore[arg-type]

    def test_optimum_does_not_move(self) -> None:
        workload = workloads.random_range(12, 20, 1)
        one, other = (
            fast.solve(dm.TotalVariance(asked), tol=1e-9) for asked in (workload, workloads.permuted(workload, 5))
        )
        assert max(one.lower_bound, other.lower_bound) <= min(one.objective, other.objective) * (1 + 1e-12)
