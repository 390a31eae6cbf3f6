"""Numbers recognised in their digits, and nothing recognised where there is nothing."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmech.crosscheck.optima.recognition import BITS, GUARD_BITS, UNIT, expressed, recognised, reduced, relation
from dualmech.crosscheck.optima.surds import Surd

FRACTIONS = st.fractions(-50, 50, max_denominator=60)


def digits_of(number: Surd, wrong: int = 0) -> int:
    return math.floor(number.in_units(BITS)[0]) + wrong


def of_field(field: list[int]) -> st.SearchStrategy[list[Surd]]:
    numbers = st.lists(FRACTIONS, min_size=len(field), max_size=len(field))
    return st.lists(numbers.map(lambda each: Surd(dict(zip(field, each, strict=True)))), min_size=1, max_size=4)


@pytest.mark.parametrize("field", [[1], [1, 6], [1, 2, 3, 6], [1, 5, 7, 35]])
@settings(max_examples=15)
@given(data=st.data(), wrong=st.integers(-(2**GUARD_BITS), 2**GUARD_BITS))
def test_numbers_of_a_field_are_recognised(field: list[int], data: st.DataObject, wrong: int) -> None:
    numbers = data.draw(of_field(field))
    assert recognised([digits_of(each, wrong) for each in numbers]) == numbers


def test_a_field_of_three_roots_but_not_of_four_is_found() -> None:
    roots = [Surd({root: Fraction(1)}) for root in (2, 3, 5)]
    numbers = [roots[0] + 1, roots[1] / 3, roots[2] - 2, (roots[0] + roots[1]) * roots[2] / 7 + roots[1]]
    assert recognised([digits_of(each) for each in numbers]) == numbers
    numbers = [Surd({root: Fraction(1)}) for root in (2, 3, 5, 7)]
    assert recognised([digits_of(each) for each in numbers]) is None


def cube_root(number: int) -> int:
    low, high = 0, number * UNIT
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**3 <= number * UNIT**3 else (low, middle - 1)
    return low


def test_other_numbers_and_relations_are_not() -> None:
    nested = math.isqrt((2 * UNIT + math.isqrt(2 << 2 * BITS)) << BITS)  # the square root of 2 + √2
    random = int.from_bytes(np.random.default_rng(0).bytes(BITS // 8), "big")
    for value in (cube_root(2), nested, random):
        assert recognised([value]) is None and expressed(value, [1, 2, 3, 6]) is None
    root = math.isqrt(2 << 2 * BITS)
    assert relation([root, UNIT, root + 3 * UNIT]) in ([1, 3, -1], [-1, -3, 1])
    assert relation([root, UNIT]) is None
    assert relation([root + (UNIT >> 200), root]) is None  # equal in the first 200 binary digits


@given(st.integers(2, 4).flatmap(lambda n: st.lists(
    st.lists(st.integers(-50, 50), min_size=n, max_size=n), min_size=n, max_size=n)))  # fmt: skip
def test_a_reduced_basis_is_one_of_the_same_lattice(rows: list[list[int]]) -> None:
    volume = abs(np.linalg.det(np.array(rows, dtype=float)))
    if volume < 0.5:
        return  # dependent
    found = np.array(reduced(rows), dtype=float)
    assert math.isclose(abs(np.linalg.det(found)), volume, rel_tol=1e-9)
    steps = np.linalg.solve(np.array(rows, dtype=float).T, found.T)
    assert np.abs(steps - steps.round()).max() < 1e-6
    lengths, size = np.linalg.norm(found, axis=1), len(rows)
    assert lengths[0] <= 2 ** ((size - 1) / 4) * volume ** (1 / size) * (1 + 1e-9)
