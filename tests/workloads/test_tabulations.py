"""Tables are built a second way, from their text: by asking of each cell whether a query counts it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmech import workloads
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain

quick = settings(max_examples=20)
shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def check(workload: Workload, expected: Array) -> None:
    np.testing.assert_array_equal(workload.dense(), expected)
    assert workload.is_sparse and np.all(workload.matrix.data != 0), "explicit zeros are stored"


def counted(cells: list[Any], queries: list[Any]) -> Array:
    return np.array([[float(query(cell)) for cell in cells] for query in queries])


class TestMarginals:
    @quick
    @given(shapes, st.data())
    def test_sums_over_the_other_attributes(self, shape: list[int], data: st.DataObject) -> None:
        axes = data.draw(st.sets(st.integers(0, len(shape) - 1)))
        names = [f"a{axis}" for axis in sorted(axes)]
        workload = workloads.marginals(shape, sets=[data.draw(st.permutations(names))])
        table = np.arange(math.prod(shape), dtype=float).reshape(shape) ** 2
        others = tuple(axis for axis in range(len(shape)) if axis not in axes)
        np.testing.assert_array_equal(workload.apply(table.ravel()), table.sum(axis=others).ravel())
        assert workload.is_sparse and set(workload.groups) == {" x ".join(names) or "total"}

    @quick
    @given(shapes, st.data())
    def test_is_the_kronecker_product_of_its_text(self, shape: list[int], data: st.DataObject) -> None:
        ways = data.draw(st.lists(st.integers(0, len(shape)), min_size=1, unique=True))
        blocks = []
        for way in ways:
            for chosen in itertools.combinations(range(len(shape)), way):
                block: Any = np.ones((1, 1))
                for axis, size in enumerate(shape):
                    block = np.kron(block, np.eye(size) if axis in chosen else np.ones((1, size)))
                blocks.append(block)
        check(workloads.marginals(shape, ways=ways), np.vstack(blocks))

    def test_names_say_what_is_counted(self) -> None:
        domain = Domain({"age": 3, "sex": 2, "race": 2})
        workload = workloads.marginals(domain, ways=(0, 1, 2, 3))
        codes = domain.codes()
        for row, name, group in zip(workload.dense(), workload.names, workload.groups, strict=True):
            wanted = dict(part.split("=") for part in name.split(", ")) if name != "total" else {}
            assert " x ".join(wanted) == (group if wanted else "")
            expected = np.ones(domain.cells)
            for attribute, code in wanted.items():
                expected *= codes[domain.names.index(attribute)] == int(code)
            np.testing.assert_array_equal(row, expected)
        assert workload.domain == domain and len(set(workload.names)) == len(workload)

    def test_ways_and_sets_agree_and_the_papers_cube(self) -> None:
        domain = {"a": 2, "b": 3, "c": 2}
        by_ways = workloads.marginals(domain, ways=2)
        by_sets = workloads.marginals(domain, sets=[("b", "a"), ("a", "c"), ["c", "b"]])
        check(by_ways, by_sets.dense())
        assert by_ways.names == by_sets.names and by_ways.groups == by_sets.groups
        assert workloads.marginals([2, 3], sets=["a1", ()]).names == ("a1=0", "a1=1", "a1=2", "total")
        workload = workloads.marginals([16, 16, 16], ways=(1, 2))
        assert workload.shape == (3 * 16 + 3 * 256, 4096)
        assert np.count_nonzero(workload.dense()) == 6 * 4096

    def test_refuses(self) -> None:
        for keywords, match in (
            ({}, "exactly one"),
            ({"ways": 1, "sets": ["a"]}, "exactly one"),
            ({"ways": (1, 1)}, "distinct"),
            ({"ways": 3}, "ways"),
            ({"ways": 1.0}, "ways"),
            ({"sets": "a"}, "sets"),
            ({"sets": []}, "sets"),
            ({"sets": [1]}, "sets"),
            ({"sets": ["c"]}, "'c'"),
            ({"sets": [("a", "a")]}, "distinct"),
            ({"sets": [("a", "b"), ("b", "a")]}, "twice"),
        ):
            with pytest.raises((InvalidInputError, InputTypeError), match=match):
                workloads.marginals({"a": 2, "b": 2}, **keywords)
        with pytest.raises(InvalidInputError, match="at most 1048576 tables"):
            workloads.marginals([2] * 60, ways=30)
        large = workloads.marginals([10**9, 10**9], sets=["a0"])
        with pytest.raises(InvalidInputError, match="too large for a dense matrix.*geometry='blocks' needs no matrix"):
            large.matrix  # noqa: B018
        with pytest.raises(InvalidInputError, match="names of 1000000000 queries are too many"):
            large.names  # noqa: B018

    @pytest.mark.parametrize("domain", [[], {}, [0], [2.5], 7, "ab", {"a": -1}, [("a", 2), ("a", 3)], None])
    def test_refuses_domains(self, domain: object) -> None:
        with pytest.raises((InvalidInputError, InputTypeError), match="domain"):
            workloads.marginals(domain, ways=1)  # type: ignore[arg-type]

    @quick
    @given(shapes, st.data())
    def test_order_of_attributes_permutes_cells_and_queries(self, shape: list[int], data: st.DataObject) -> None:
        sizes = {f"v{axis}": size for axis, size in enumerate(shape)}
        order = data.draw(st.permutations(range(len(shape))))
        turned = {f"v{axis}": shape[axis] for axis in order}
        cells = np.arange(math.prod(shape)).reshape(shape).transpose(order).ravel()
        left = workloads.marginals(sizes, ways=[0, 1]).dense()[:, cells]
        right = workloads.marginals(turned, ways=[0, 1]).dense()
        assert sorted(map(tuple, left)) == sorted(map(tuple, right))


class TestCensus:
    def test_pl94_from_the_papers_text(self) -> None:
        subsets = [set(c) for n in range(1, 7) for c in itertools.combinations(range(6), n)]
        cells = list(itertools.product((0, 1), (0, 1), subsets))
        queries: list[Any] = []
        queries += [lambda cell, v=v: cell[0] == v for v in (0, 1)]
        queries += [lambda cell, e=e: cell[1] == e for e in (0, 1)]
        queries += [lambda cell, r=r: cell[2] == {r} for r in range(6)]
        queries += [lambda cell, s=s: cell[2] == s for s in subsets if len(s) >= 2]
        queries += [lambda cell, c=c: cell == c for c in cells]
        workload = workloads.pl94()
        check(workload, counted(cells, queries))
        assert workload.shape == (319, 252) and workload.is_sparse

    def test_pl94_tables_and_age_pyramid_counts(self) -> None:
        workload = workloads.pl94()
        sizes = {group: workload.groups.count(group) for group in dict.fromkeys(workload.groups)}
        assert list(sizes.values()) == [2, 2, 6, 57, 252]
        assert list(sizes)[:4] == ["voting-age", "ethnicity", "one race", "two or more races"]
        assert workload.domain == Domain({"voting-age": 2, "ethnicity": 2, "race": 63})
        assert len(set(workload.names)) == 319
        assert all(
            (" + " in name) == (group == "two or more races")
            for name, group in zip(workload.names[:67], workload.groups, strict=False)
        )
        assert workloads.age_pyramid().shape == (351, 232)
        assert workloads.age_pyramid(adults=False).shape == (348, 232)

    @pytest.mark.parametrize(("ages", "adults"), [(116, True), (116, False), (19, True), (5, False), (1, False)])
    def test_age_pyramid_from_the_papers_text(self, ages: int, adults: bool) -> None:
        cells = list(itertools.product((0, 1), range(ages)))
        queries: list[Any] = []
        for genders in ({0}, {1}, {0, 1}):
            queries += [lambda c, g=genders, x=x: c[0] in g and c[1] <= x for x in range(ages)]
            queries += [lambda c, g=genders: c[0] in g and c[1] >= 18] if adults else []
        workload = workloads.age_pyramid(ages, adults)
        check(workload, counted(cells, queries))
        assert workload.groups == tuple(np.repeat(["males", "females", "all"], ages + adults))
        assert workload.domain == Domain({"gender": 2, "age": ages})
        assert workload.is_sparse and len(set(workload.names)) == len(workload)

    @pytest.mark.parametrize(("ages", "adults"), [(18, True), (0, False), (-1, False), (10**6, True), (2.5, True)])
    def test_age_pyramid_refuses(self, ages: int, adults: bool) -> None:
        with pytest.raises((InvalidInputError, InputTypeError), match="ages"):
            workloads.age_pyramid(ages, adults)

    def test_pl94_is_made_of_marginals(self) -> None:
        domain = workloads.pl94().domain
        assert domain is not None
        sets = [("voting-age",), ("ethnicity",), ("race",), ("voting-age", "ethnicity", "race")]
        check(workloads.pl94(), workloads.marginals(domain, sets=sets).dense())


@pytest.mark.parametrize(
    "workload",
    [workloads.marginals([2, 3, 2], ways=(1, 2)), workloads.union({"a": 2, "b": 3}, {"t": ["a"], "u": ["b"]})],
)
def test_names_of_tables_are_made_once(workload: Any) -> None:
    """Whoever names all tables one by one asks for them as often as there are tables."""
    assert workload.table_names is workload.table_names
