"""Symmetry of an attribute against brute force over permutations; queries on circles against loops."""

import itertools
import math
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import workloads
from dualmech.geometry.attribute_symmetry import AttributeSymmetry
from dualmech.validate import Array

quick = settings(max_examples=24)
seeds = st.integers(0, 10_000)


def unsigned(row: Any) -> tuple[float, ...]:
    entries = tuple(float(entry) + 0.0 for entry in row)
    return max(entries, tuple(-entry + 0.0 for entry in entries))


def same(one: Array, two: Array) -> bool:
    return Counter(map(unsigned, one)) == Counter(map(unsigned, two))


def random_sets(rng: np.random.Generator, size: int) -> list[dm.Workload]:
    """One or two sets of queries, sometimes closed under swapping two values or under turning."""
    found = []
    for _ in range(int(rng.integers(1, 3))):
        rows = rng.integers(-1, 2, (int(rng.integers(1, 5)), size)).astype(float)
        for _ in range(int(rng.integers(0, 3))):
            order = np.arange(size)
            order[rng.permutation(size)[:2]] = order[rng.permutation(size)[:2]]
            if len({*order}) == size:
                rows = np.unique(np.vstack([rows, rows[:, order]]), axis=0)
        if rng.random() < 0.25:
            rows = np.vstack([np.roll(rows, shift, axis=1) for shift in range(size)])
        found.append(dm.Workload(rows))
    return found


def group(symmetry: AttributeSymmetry) -> list[Array]:
    """All permutations of the values that the symmetry says change nothing."""
    size = len(symmetry.labels)
    if symmetry.turning:
        return [np.roll(np.arange(size), shift) for shift in range(size)]
    return [
        np.array(order)
        for order in itertools.permutations(range(size))
        if np.array_equal(symmetry.labels[list(order)], symmetry.labels)
    ]


class TestFrames:
    @quick
    @given(seeds, st.integers(2, 5))
    def test_classes_are_those_of_a_search_over_all_swaps(self, seed: int, size: int) -> None:
        sets = random_sets(np.random.default_rng(seed), size)
        symmetry = AttributeSymmetry.of(sets, size)
        swaps = np.eye(size, dtype=bool)
        for one, two in itertools.combinations(range(size), 2):
            order = np.arange(size)
            order[[one, two]] = two, one
            alike = all(same(each.dense(), each.dense()[:, order]) for each in sets)
            swaps[one, two] = swaps[two, one] = alike
        turns = size > 3 and all(same(each.dense(), np.roll(each.dense(), 1, axis=1)) for each in sets)
        assert symmetry.turning == (turns and swaps.sum() == size)
        if not symmetry.turning:
            np.testing.assert_array_equal(symmetry.labels[:, None] == symmetry.labels, swaps)

    @quick
    @given(seeds, st.integers(2, 4))
    def test_orbits_of_queries_are_those_of_the_group(self, seed: int, size: int) -> None:
        sets = random_sets(np.random.default_rng(seed), size)
        symmetry = AttributeSymmetry.of(sets, size)
        for asked in sets:
            rows = asked.dense()
            images = [{unsigned(row[order]) for order in group(symmetry)} for row in rows]
            expected = [[unsigned(two) in own for two in rows] for own in images]
            orbits = symmetry.parts(asked).orbits
            np.testing.assert_array_equal(orbits[:, None] == orbits, expected)

    @quick
    @given(seeds, st.integers(1, 7), st.booleans())
    def test_parts_are_projections(self, seed: int, size: int, circle: bool) -> None:
        rng = np.random.default_rng(seed)
        asked = workloads.circular(rng.integers(-1, 2, (2, size))) if circle else random_sets(rng, size)[0]
        symmetry = AttributeSymmetry.of([asked], size)
        for queries, rows in ((asked, asked.dense()), (None, np.eye(size))):
            parts = symmetry.parts(queries)
            members = np.eye(len(symmetry.sizes))[symmetry.labels] / symmetry.sizes
            means, found = rows @ members, parts.means[parts.orbits]
            # A query and its negative are one orbit: products of their means are the same.
            for one, two in ((each[:, :, None] * each[:, None, :] for each in (means, found)),):
                np.testing.assert_allclose(one, two, atol=1e-12)
            for component, (of, count) in enumerate(zip(symmetry.classes, symmetry.dimensions, strict=True)):
                basis = symmetry.directions(component)
                np.testing.assert_allclose(basis.T @ basis, np.eye(int(count)), atol=1e-12)
                np.testing.assert_allclose(members.T @ basis, 0, atol=1e-12)
                squares = ((rows @ basis) ** 2).sum(axis=1) * count / symmetry.sizes[of]
                np.testing.assert_allclose(parts.component_norms[parts.orbits, component] ** 2, squares, atol=1e-9)
            np.testing.assert_array_equal(parts.magnitudes[parts.orbits], np.abs(rows).max(axis=1))
            np.testing.assert_array_equal(parts.counts, np.bincount(parts.orbits))
        assert symmetry.dimensions.sum() + len(symmetry.sizes) == size

    def test_examples(self) -> None:
        for sets, labels, turning in (
            ([None], [0, 0, 0, 0], False),
            ([workloads.prefix(4)], [0, 1, 2, 3], False),
            ([dm.Workload(workloads.differences(4).matrix)], [0, 0, 0, 0], False),
            ([workloads.circular_ranges(4), None, workloads.total(4)], [0, 0, 0, 0], True),
            ([dm.Workload(workloads.circular_ranges(6).matrix)], [0] * 6, True),
            ([workloads.circular_ranges(4), dm.Workload([[1, 1, 0, 0]])], [0, 1, 2, 3], False),
            ([workloads.circular([[1, 1, 0, 0]]), dm.Workload([[1, 0, 1, 0]])], [0, 1, 0, 1], False),
            ([dm.Workload([[1, -1, 0, 0], [0, 0, 1, -1]])], [0, 0, 1, 1], False),
            ([dm.Workload(np.zeros((2, 3)))], [0, 0, 0], False),
            ([dm.Workload([[0.1, 0.1, 0.3], [5.0, 5.0, 2.0]])], [0, 0, 1], False),
        ):
            symmetry = AttributeSymmetry.of(sets, len(labels))
            assert symmetry.labels.tolist() == labels and symmetry.turning == turning
        with pytest.raises(dm.errors.InvalidInputError, match="searched for symmetries"):
            AttributeSymmetry.of([workloads.identity(6000)], 6000)

    @pytest.mark.parametrize("circle", [True, False])
    def test_rounding_is_no_need_of_noise(self, circle: bool) -> None:
        cancelling = np.array([0.1, 0.2, -0.3, 0.0])
        assert cancelling.sum() != 0
        orders = [np.roll(cancelling, shift) for shift in range(4)] if circle else [*itertools.permutations(cancelling)]
        for asked in (dm.Workload(np.array(orders)), *([workloads.circular(cancelling[None, :])] if circle else [])):
            symmetry = AttributeSymmetry.of([asked], 4)
            assert symmetry.turning == circle and not symmetry.parts(asked).means.any()


def translates(base: Array) -> list[Array]:
    found = [np.array(base)]
    for _ in base[1:]:
        turned = np.concatenate([found[-1][-1:], found[-1][:-1]])
        if np.array_equal(turned, base) or np.array_equal(turned, -base):
            break
        found.append(turned)
    return found


class TestCircles:
    def test_names_say_what_is_counted(self) -> None:
        assert workloads.circular_ranges(5, lengths=[2]).names[-2:] == ("cells 3..4", "cells 4..0")
        assert workloads.circular_ranges(3).names[2:] == (
            "cell 2",
            "cells 0..1",
            "cells 1..2",
            "cells 2..0",
            "all cells",
        )
        assert workloads.differences(4).names[-2:] == ("cell 0 - cell 2", "cell 1 - cell 3")
        assert workloads.affine(7, [0, 1, 3]).names[1] == "cells 1, 2, 4"
        assert workloads.circular([[2.0, 1.0, 0.0]]).names[1] == "base 0 + 1"

    @quick
    @given(seeds, st.integers(1, 8), st.integers(1, 3))
    def test_asks_every_translate_once(self, seed: int, size: int, count: int) -> None:
        bases = np.random.default_rng(seed).integers(-1, 2, (count, size)).astype(float)
        asked, expected = workloads.circular(bases), [translates(base) for base in bases]
        np.testing.assert_array_equal(asked.matrix, np.vstack([row for own in expected for row in own]))
        assert asked.periods.tolist() == [len(own) for own in expected]
        assert asked.shape == asked.matrix.shape and len(asked.names) == len(asked.groups) == asked.shape[0]
        assert Counter(asked.groups) == {f"base {i}": len(own) for i, own in enumerate(expected)}
        named = dict(zip(asked.names, map(tuple, asked.matrix.tolist()), strict=True))
        assert all(named[name] == tuple(row) for name, row in zip(asked.names, asked.matrix, strict=True))
        again = pickle.loads(pickle.dumps(asked))
        np.testing.assert_array_equal(again.matrix, asked.matrix)
        assert repr(again) == f"CircularWorkload({asked.shape[0]} queries x {size} cells, {count} families)"

    @pytest.mark.parametrize("size", [1, 2, 3, 6, 7])
    def test_runs(self, size: int) -> None:
        expected = [
            [float((cell - start) % size < length) for cell in range(size)]
            for length in range(1, size + 1)
            for start in range(size if length < size else 1)
        ]
        np.testing.assert_array_equal(workloads.circular_ranges(size).matrix, expected)
        one = workloads.circular_ranges(size, lengths=[size])
        np.testing.assert_array_equal(one.matrix, np.ones((1, size)))

    @pytest.mark.parametrize("size", [2, 3, 4, 7])
    def test_differences(self, size: int) -> None:
        pairs = itertools.combinations(range(size), 2)
        expected = [[float(cell == one) - float(cell == two) for cell in range(size)] for one, two in pairs]
        assert same(workloads.differences(size).matrix, np.array(expected))

    @pytest.mark.parametrize(
        ("size", "subset"), [(7, [0, 1, 3]), (8, [0, 4]), (6, [1]), (5, [0, 1, 2, 3, 4]), (9, [0, 2, 2])]
    )
    def test_affine_images(self, size: int, subset: list[int]) -> None:
        expected = set()
        for factor, shift in itertools.product(range(size), range(size)):
            if math.gcd(factor, size) == 1 or size == 1:
                image = {(factor * each + shift) % size for each in subset}
                expected.add(tuple(float(cell in image) for cell in range(size)))
        found = workloads.affine(size, subset).matrix
        assert {*map(tuple, found)} == expected and len(found) == len(expected)

    def test_too_large_ones_and_bad_input_are_refused(self) -> None:
        asked = workloads.circular_ranges(1000)
        assert asked.shape == (999_001, 1000) and not asked.is_sparse
        with pytest.raises(dm.errors.InvalidInputError, match="too large for a dense matrix"):
            _ = asked.matrix
        for message, call in (
            ("lengths", lambda: workloads.circular_ranges(4, lengths=[5])),
            ("lengths", lambda: workloads.circular_ranges(4, lengths=[0])),
            ("lengths", lambda: workloads.circular_ranges(4, lengths=[])),
            ("n must", lambda: workloads.circular_ranges(0)),
            ("at least 2", lambda: workloads.differences(1)),
            ("subset", lambda: workloads.affine(4, [])),
            ("subset", lambda: workloads.affine(4, [4])),
            ("subset", lambda: workloads.affine(4, [0.5])),  # type: ignore[list-item]
            ("lengths", lambda: workloads.circular_ranges(5, 3)),  # type: ignore[arg-type]
            ("subset", lambda: workloads.affine(5, 3)),  # type: ignore[arg-type]
            ("too many", lambda: workloads.circular_ranges(10**5)),
            ("too many", lambda: workloads.circular_ranges(10**9, lengths=[6])),
            ("too many", lambda: workloads.differences(10**6)),
            ("too long", lambda: workloads.affine(10**9, [0])),
            ("bases", lambda: workloads.circular([])),
            ("bases", lambda: workloads.circular([1.0, 2.0])),
            ("bases", lambda: workloads.circular([[np.nan, 1.0]])),
        ):
            with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError), match=message):
                call()
