"""Every builder is built a second way, from its text: by asking of each cell whether a query counts it."""

from __future__ import annotations

import itertools
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import workloads
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.validate import Array
from dualmech.workloads import names
from dualmech.workloads.base import Workload
from dualmech.workloads.builders import MAX_CELLS

quick = settings(max_examples=24)
sizes = st.integers(1, 12)


def entries(rows: int, columns: int, counts: Callable[[int, int], bool]) -> Array:
    return np.array([[float(counts(query, cell)) for cell in range(columns)] for query in range(rows)])


def same(workload: Workload, expected: Array) -> None:
    np.testing.assert_array_equal(workload.dense(), expected)
    if sp.issparse(workload.matrix):
        assert np.all(workload.matrix.data != 0), "explicit zeros are stored"


def interval(name: str) -> tuple[int, int]:
    ends = [int(number) for number in re.findall(r"\d+", name)]
    return ends[0], ends[-1]


class TestOrderedCells:
    @quick
    @given(sizes)
    def test_identity_and_total(self, d: int) -> None:
        same(workloads.identity(d), entries(d, d, lambda query, cell: query == cell))
        same(workloads.total(d), entries(1, d, lambda query, cell: True))
        both = workloads.identity_total(d)
        same(both, entries(d + 1, d, lambda query, cell: query in (cell, d)))
        assert both.names[-1] == "total" and both.groups == ("cells",) * d + ("total",)
        assert workloads.identity(d).is_sparse and both.is_sparse and not workloads.total(d).is_sparse

    @quick
    @given(sizes)
    def test_prefix(self, d: int) -> None:
        same(workloads.prefix(d), entries(d, d, lambda query, cell: cell <= query))
        assert [interval(name) for name in workloads.prefix(d).names] == [(0, j) for j in range(d)]

    @quick
    @given(sizes)
    def test_all_range(self, d: int) -> None:
        pairs = [(a, b) for a in range(d) for b in range(d) if a <= b]
        workload = workloads.all_range(d)
        same(workload, entries(len(pairs), d, lambda query, cell: pairs[query][0] <= cell <= pairs[query][1]))
        assert workload.shape[0] == d * (d + 1) // 2
        assert [interval(name) for name in workload.names] == pairs

    @quick
    @given(sizes, sizes, st.integers(0, 99))
    def test_random_range_counts_the_interval_in_its_name(self, d: int, m: int, seed: int) -> None:
        workload = workloads.random_range(d, m, seed)
        ends = [interval(name) for name in workload.names]
        same(workload, entries(len(ends), d, lambda query, cell: ends[query][0] <= cell <= ends[query][1]))
        assert workload.shape == (m, d)

    def test_random_range_draws_both_ends_uniformly(self) -> None:
        d, m = 4, 40_000
        seen = [interval(name) for name in workloads.random_range(d, m, 0).names]
        for a, b in itertools.combinations_with_replacement(range(d), 2):
            chance = (1 if a == b else 2) / d**2
            assert abs(seen.count((a, b)) - m * chance) < 5 * math.sqrt(m * chance * (1 - chance))


class TestRandomEntries:
    def test_random_signs(self) -> None:
        workload = workloads.random_signs(200, 300, 1)
        assert workload.shape == (300, 200)
        assert set(np.unique(workload.dense())) == {-1.0, 1.0}
        heads = np.sum(workload.dense() == 1)
        assert abs(heads - 0.2 * 60_000) < 5 * math.sqrt(60_000 * 0.2 * 0.8)
        more = workloads.random_signs(200, 300, 1, probability=0.9)
        assert abs(np.mean(more.dense() == 1) - 0.9) < 0.01

    @quick
    @given(sizes, sizes, st.data())
    def test_related_is_a_product_of_normal_factors(self, d: int, m: int, data: st.DataObject) -> None:
        rank = data.draw(st.integers(1, min(d, m)))
        generator = np.random.default_rng(7)
        left = [[generator.standard_normal() for _ in range(rank)] for _ in range(m)]
        right = [[generator.standard_normal() for _ in range(d)] for _ in range(rank)]
        expected = [[sum(left[j][r] * right[r][i] for r in range(rank)) for i in range(d)] for j in range(m)]
        np.testing.assert_allclose(workloads.related(d, m, rank, 7).dense(), expected, atol=1e-12)
        assert np.linalg.matrix_rank(workloads.related(d, m, rank, 7).dense()) == rank

    @pytest.mark.parametrize(
        "build",
        [
            lambda rng: workloads.random_range(9, 7, rng),
            lambda rng: workloads.random_signs(9, 7, rng),
            lambda rng: workloads.related(9, 7, 3, rng),
        ],
    )
    def test_seeds_and_generators(self, build: Callable[[object], Workload]) -> None:
        first = build(3).dense()
        np.testing.assert_array_equal(first, build(np.int64(3)).dense())
        np.testing.assert_array_equal(first, build(np.random.default_rng(3)).dense())
        assert np.any(first != build(4).dense())
        generator = np.random.default_rng(3)
        build(generator)
        assert np.any(first != build(generator).dense()), "a generator moves on"
        for wrong in (1.5, "0", True, np.random.RandomState(0)):
            with pytest.raises(InputTypeError, match="rng"):
                build(wrong)
        with pytest.raises(InvalidInputError, match="rng"):
            build(-1)


class TestStack:
    @quick
    @given(st.lists(st.sampled_from(["identity", "total", "prefix", "all_range"]), min_size=1, max_size=4), sizes)
    def test_rows_names_and_groups_follow_the_pieces(self, kinds: list[str], d: int) -> None:
        pieces = [names.builtin_workload(f"{kind}:{d}") for kind in kinds]
        workload = workloads.stack(*pieces)
        same(workload, np.vstack([piece.dense() for piece in pieces]))
        assert workload.names == sum((piece.names for piece in pieces), ())
        assert workload.groups == sum((piece.groups for piece in pieces), ())
        labelled = workloads.stack(*pieces, labels=[f"piece {i}" for i in range(len(pieces))])
        assert labelled.names == workload.names
        assert [labelled.groups.count(f"piece {i}") for i in range(len(pieces))] == [len(p) for p in pieces]

    def test_sparsity_domains_and_refusals(self) -> None:
        small, large = workloads.identity(8), workloads.identity(300)
        assert workloads.stack(small, small).is_sparse
        assert not workloads.stack(small, workloads.total(8)).is_sparse
        mixed = workloads.stack(large, workloads.prefix(300))
        assert mixed.is_sparse
        same(mixed, np.vstack([np.eye(300), np.tril(np.ones((300, 300)))]))
        table = workloads.marginals({"a": 2, "b": 3}, ways=1)
        assert workloads.stack(workloads.prefix(6), table, table).domain == table.domain
        assert workloads.stack(workloads.prefix(6)).domain is None
        with pytest.raises(InvalidInputError, match="domain"):
            workloads.stack(table, workloads.marginals({"a": 3, "b": 2}, ways=1))
        with pytest.raises(InvalidInputError, match="at least one"):
            workloads.stack()
        with pytest.raises(InvalidInputError, match="same number of cells"):
            workloads.stack(workloads.prefix(2), workloads.prefix(3))
        with pytest.raises(InputTypeError, match="ndarray"):
            workloads.stack(np.eye(2))  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="labels"):
            workloads.stack(workloads.prefix(2), labels=["a", "b"])
        with pytest.raises(InputTypeError, match="labels"):
            workloads.stack(workloads.prefix(2), labels="a")


def test_sizes_and_other_parameters_are_checked() -> None:
    for build in (
        workloads.identity,
        workloads.total,
        workloads.identity_total,
        workloads.prefix,
        workloads.all_range,
        lambda d: workloads.random_range(d, 3, 0),
        lambda d: workloads.random_signs(d, 3, 0),
        lambda d: workloads.related(d, 3, 1, 0),
    ):
        sizes: Any = (0, -3, 2.0, "4", None, True, 10**30)
        for size in sizes:
            with pytest.raises((InvalidInputError, InputTypeError), match="d must|workload of shape"):
                build(size)
    for wrong in (0.0, 1.0, -0.2, np.nan):
        with pytest.raises(InvalidInputError, match="probability"):
            workloads.random_signs(3, 3, 0, probability=wrong)
    with pytest.raises(InvalidInputError, match="rank"):
        workloads.related(4, 3, 4, 0)
    with pytest.raises(InvalidInputError, match="m must"):
        workloads.random_range(4, 0, 0)
    with pytest.raises(InvalidInputError, match=str(MAX_CELLS)):
        workloads.identity(MAX_CELLS + 1)


class TestSensitivity:
    """How far one record moves the answers: the largest column norm, whoever knows it without a matrix."""

    def test_is_the_largest_column_norm(self) -> None:
        for workload in (
            dm.workloads.prefix(5),
            dm.Workload([[1.0, -2.0], [0.0, 1.0]]),
            dm.workloads.marginals([3, 2, 4], ways=(0, 1, 3)),
            dm.workloads.kron(dm.workloads.prefix(3), dm.workloads.marginals([2, 3], ways=1)),
            dm.workloads.query_tables({"a": 4, "b": 3}, {"a": dm.workloads.prefix(4)}, ways=(1, 2)),
            dm.workloads.circular([[1.0, -1.0, 0.0, 2.0], [1.0, 0.0, 1.0, 0.0]]),
            dm.workloads.union(
                {"a": 4, "b": 3},
                {
                    "early": {"a": dm.workloads.prefix(4)},
                    "late": {"a": dm.Workload([[0, 0, 0, 3.0], [0, 0, 2, 0]]), "b": dm.workloads.all_range(3)},
                    "all": [],
                },
            ),
        ):
            assert workload.sensitivity == pytest.approx(np.linalg.norm(workload.dense(), axis=0).max())
            np.testing.assert_allclose(workload.column_squares(), (workload.dense() ** 2).sum(axis=0))

    def test_needs_no_matrix_and_gram_levels_are_eigenvalues(self) -> None:
        many = dm.workloads.kron(*[dm.workloads.marginals([10] * 60, ways=(1, 2))] * 2)
        assert many.sensitivity == pytest.approx(1830)
        tables = dm.workloads.marginals([3, 4], ways=(1, 2))
        weights = np.array([2.0, 1.0, 0.5])
        rows = np.repeat(weights, [3, 4, 12])
        expected = np.repeat(12 * tables.gram_levels(weights), tables.lattice.dimensions.astype(int))
        np.testing.assert_allclose(np.sort(expected), np.linalg.eigvalsh(tables.gram(rows)))


class TestNamesOfCells:
    def test_a_frame_names_queries_and_cells(self) -> None:
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame([[1, 0, 1], [0, 1, 1]], index=["left", "right"], columns=["a", "b", "c"])
        asked = Workload(frame)
        same(asked, frame.to_numpy())
        assert (asked.names, asked.cell_names) == (("left", "right"), ("a", "b", "c"))
        plain = Workload(pandas.DataFrame(np.eye(2)))
        assert (plain.names, plain.cell_names) == (("q0", "q1"), None)
        given_names = Workload(frame, names=["x", "y"], cell_names=["d", "e", "f"])
        assert (given_names.names, given_names.cell_names) == (("x", "y"), ("d", "e", "f"))
        pairs = pandas.DataFrame([[1]], index=pandas.MultiIndex.from_tuples([("age", 3)]), columns=[7])
        assert (Workload(pairs).names, Workload(pairs).cell_names) == (("age x 3",), ("7",))

    def test_a_frame_of_polars_names_its_cells(self) -> None:
        polars = pytest.importorskip("polars")
        frame = polars.DataFrame({"query": ["left", "right"], "a": [1.0, 0.0], "b": [0, 1], "c": [True, False]})
        with pytest.raises(InputTypeError, match=r"Workload\(frame.drop\('query'\), names=frame\['query'\]\)"):
            Workload(frame)
        asked = Workload(frame.drop("query"), names=frame["query"])
        same(asked, np.array([[1.0, 0, 1], [0, 1, 0]]))
        assert (asked.names, asked.cell_names) == (("left", "right"), ("a", "b", "c"))
        with pytest.raises(InputTypeError, match="got LazyFrame: convert it to one"):
            Workload(frame.lazy())

    def test_a_column_of_names_is_to_be_the_index(self) -> None:
        pandas = pytest.importorskip("pandas")
        with pytest.raises(InputTypeError, match=r"column 'query' holds other values; .* set_index\('query'\)"):
            Workload(pandas.DataFrame({"query": ["left"], "a": [1.0]}))

    def test_are_kept_by_what_keeps_the_cells(self) -> None:
        one, other = (Workload(np.eye(3), cell_names=names) for names in (["a", "b", "c"], ["d", "e", "f"]))
        assert one[1].cell_names == one.select([2, 0]).cell_names == one[:2].cell_names == ("a", "b", "c")
        assert workloads.stack(one, one[1:]).cell_names == ("a", "b", "c")
        assert workloads.stack(one, other).cell_names is None
        turned = workloads.permuted(one, rng=0)
        same(turned, np.eye(3)[:, ["abc".index(name) for name in turned.cell_names or ()]])
        assert one == other, "names are no part of what is asked"
        for structured in (workloads.marginals([2, 2], ways=1), workloads.circular_ranges(3)):
            assert structured.cell_names is None

    @pytest.mark.parametrize(("names", "error"), [("ab", InputTypeError), (["a"], InvalidInputError)])
    def test_are_one_per_cell(self, names: str | list[str], error: type[Exception]) -> None:
        with pytest.raises(error, match="cell_names"):
            Workload(np.eye(2), cell_names=names)


class TestSelectedRows:
    """Some queries of a rule are kept by their numbers."""

    RULES = (workloads.prefix(9), workloads.decayed_sums(9, 0.5), workloads.all_range(5), workloads.sines(6))

    @pytest.mark.parametrize("rule", RULES, ids=repr)
    def test_they_are_those_of_the_matrix(self, rule: dm.Workload, tmp_path: Path) -> None:
        index, x = np.array([4, 0, 4, 2]), np.arange(1.0, rule.shape[1] + 1)
        some, plain = rule.select(index), dm.Workload(rule.dense()[index])
        np.testing.assert_allclose(some.apply(x), plain.apply(x), rtol=1e-12)
        assert some.same_as(plain) and some.names == tuple(rule.names[j] for j in index)
        assert some.groups == rule.groups[:4] and some.select([3, 1]).same_as(plain.select([3, 1]))
        np.testing.assert_allclose(some.gram(), plain.gram())
        again = pickle.loads(pickle.dumps(some))
        assert again == some and again.names == some.names and rule.select([0, 1]) != some
        dm.save(some, tmp_path / "some.npz")
        kept = dm.load(tmp_path / "some.npz")
        assert kept == some and kept.names == some.names
        index[0] = 0
        assert some.names[0] == rule.names[4]

    def test_no_matrix_is_written(self) -> None:
        cells = 2**20
        odd = workloads.prefix(cells).select(np.arange(1, cells, 2))
        assert odd.apply(np.ones(cells))[-1] == cells and "of prefixes" in repr(odd)
        with pytest.raises(dm.errors.InvalidInputError, match="too large for a dense matrix"):
            odd.dense()
        with pytest.raises(dm.errors.InvalidInputError, match="one or more, got none"):
            odd.select([])
