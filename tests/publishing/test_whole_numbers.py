"""Whole numbers: exact products whatever their size, bases of row spaces, costs as fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import dualmech as dm
from dualmech import linalg
from dualmech.publishing import drawing

LARGE = st.integers(-(2**45), 2**45)
SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 4))
MATRICES = SHAPES.flatmap(lambda shape: arrays(np.int64, shape, elements=LARGE))


@given(MATRICES, st.data())
def test_products_are_those_of_pythons_integers(whole: np.ndarray, data: st.DataObject) -> None:
    column = data.draw(st.lists(st.integers(-(2**60), 2**60), min_size=whole.shape[1], max_size=whole.shape[1]))
    expected = [sum(int(a) * b for a, b in zip(row, column, strict=True)) for row in whole.tolist()]
    for vector in (np.array(column, dtype=object), np.array(column)):
        assert drawing.product(whole, vector).tolist() == expected
    two = np.array([column, column[::-1]], dtype=object).T
    assert drawing.product(whole, two)[:, 0].tolist() == expected
    squares = [sum(int(a) ** 2 for a in each) for each in whole.T.tolist()]
    assert drawing.column_squares(whole).tolist() == squares


@given(MATRICES)
def test_pieces_add_up(whole: np.ndarray) -> None:
    found = [each.astype(np.int64).astype(object) for each in drawing.pieces(whole)]
    assert np.all(sum(each * 2 ** (20 * j) for j, each in enumerate(found)) == whole)


@given(arrays(np.int64, (2, 3), elements=st.integers(-50, 50)), arrays(np.int64, (2, 2), elements=st.integers(-9, 9)))
def test_matrices_along_axes(one: np.ndarray, two: np.ndarray) -> None:
    data = np.arange(6).reshape(3, 2)
    found = drawing.along_axes([one, two], data)
    assert found.dtype == object and np.array_equal(found.astype(np.int64), one @ data @ two.T)


class TestWholeBasis:
    @given(arrays(np.int64, (3, 5), elements=st.integers(-3, 3)), arrays(np.float64, 3, elements=st.floats(0.01, 1e6)))
    @example(np.array([[0, 1, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]), np.ones(3))
    def test_spans_what_was_given_whatever_the_units(self, rows: np.ndarray, units: np.ndarray) -> None:
        if not np.any(rows):
            return
        basis = linalg.row_basis(rows.astype(np.float64))
        turned = np.linalg.qr(np.random.default_rng(0).standard_normal((len(basis), len(basis))))[0]
        for given_rows in (units[: len(basis), None] * basis, turned @ basis):
            found = drawing.integer_basis(given_rows).astype(np.float64)
            assert found.shape == basis.shape and linalg.rank(found) == len(found)
            assert linalg.rank(np.vstack([found, basis])) == len(found)

    def test_a_span_without_one_is_refused(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="basis of whole numbers"):
            drawing.integer_basis(np.array([[1.0, np.sqrt(2), np.pi]]))


class TestCosts:
    @given(
        arrays(np.int64, (3, 4), elements=st.integers(-(2**30), 2**30)),
        arrays(np.int64, 3, elements=st.integers(0, 40)),
    )
    def test_every_cell_and_every_pair(self, whole: np.ndarray, exponents: np.ndarray) -> None:
        rows = [[Fraction(int(a), 2 ** int(b)) for a in row] for row, b in zip(whole, exponents, strict=True)]
        cells = drawing.squared_costs(whole, exponents, None)
        assert cells.tolist() == [sum(row[i] ** 2 for row in rows) for i in range(4)]
        pairs = drawing.squared_costs(whole, exponents, dm.neighbours.replace_one(4))
        expected = [sum((row[i] - row[j]) ** 2 for row in rows) for i in range(4) for j in range(i + 1, 4)]
        assert pairs.tolist() == expected

    def test_differences_that_are_no_whole_numbers(self) -> None:
        whole, exponents = np.array([[4, 0]]), np.array([1])
        assert drawing.squared_costs(whole, exponents, np.array([[0.5], [0.25]])).tolist() == [1]
        with pytest.raises(dm.errors.InvalidInputError, match="multiples of 2"):
            drawing.squared_costs(whole, exponents, np.array([[0.1], [0.0]]))
