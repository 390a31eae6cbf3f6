"""Enclosures contain what they enclose: products and inverses against fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualmech.verified import Enclosure, exactly_independent, inverse_near_identity, spectral_norm


def exact(matrix: Enclosure) -> np.ndarray:
    whole = np.vectorize(Fraction, otypes=[object])
    return whole(matrix.high) + whole(matrix.low)


def holds(enclosure: Enclosure, true: np.ndarray) -> bool:
    off = np.abs(exact(enclosure) - true)
    return bool(np.all(off <= np.vectorize(Fraction, otypes=[object])(enclosure.radius)))


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 6), digits=st.integers(1, 17))
def test_inverse_near_identity(seed: int, size: int, digits: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = Enclosure.of(np.eye(size) + rng.normal(size=(size, size)) * 10.0**-digits / (4 * size))
    inverse = inverse_near_identity(matrix)
    if inverse is None:
        assert digits == 1
        return
    # The true inverse lies within the radius: C⁻¹ - X = C⁻¹ (I - C X), summed up to far below it.
    residual = np.eye(size, dtype=int).astype(object) - exact(matrix) @ exact(inverse)
    true, power = exact(inverse), residual
    for _ in range(3):
        true, power = true + exact(inverse) @ power, power @ residual
    assert holds(inverse, true)
    assert float(np.abs(inverse.radius).max()) < 1e-28


@pytest.mark.parametrize("digits", [3, 8, 12, 15])
def test_every_matrix_of_an_enclosure_has_its_inverse_enclosed(digits: int) -> None:
    rng = np.random.default_rng(digits)
    high, low = np.eye(5) + rng.normal(size=(5, 5)) * 10.0**-digits, rng.normal(size=(5, 5)) * 1e-18
    corner = np.where(rng.random((5, 5)) < 0.5, 1e-18, -1e-18)
    whole = inverse_near_identity(Enclosure(high, low, np.full((5, 5), 1e-18)))
    one = inverse_near_identity(Enclosure(high, low + corner, np.zeros((5, 5))))
    assert whole is not None and one is not None
    assert np.all(np.abs((whole.high - one.high) + (whole.low - one.low)) <= whole.radius + one.radius)


def test_the_identity_multiplies_without_error() -> None:
    matrix = Enclosure(*np.random.default_rng(1).normal(size=(3, 4, 4)) ** 2)
    identity = Enclosure.of(np.eye(4))
    for product in (identity @ matrix, matrix @ identity):
        assert all(np.array_equal(getattr(product, part), getattr(matrix, part)) for part in ("high", "low", "radius"))
    nearly = Enclosure(np.eye(4), np.zeros((4, 4)), np.full((4, 4), 1e-30))
    assert np.all((nearly @ matrix).radius > matrix.radius)


@pytest.mark.parametrize("exponent", [-1074, -1073, -1070, -1000, -600, -540, -500, -401, -399, 0, 500, 1000])
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 5), (7, 4)])
def test_the_bound_of_a_norm_is_one_for_entries_of_any_size(exponent: int, shape: tuple[int, int]) -> None:
    # A matrix of one number c has the norm ``c √(a b)``, and a diagonal one that of its largest entry.
    for number in (1.0, 3.0, 1.7):
        entry = float(np.ldexp(number, exponent))
        bound = Fraction(spectral_norm(np.full(shape, entry)))
        assert bound**2 >= Fraction(entry) ** 2 * shape[0] * shape[1]
        assert bound**2 <= Fraction(entry + 1e-322) ** 2 * shape[0] * shape[1] * Fraction(1 + 1e-8)
        assert Fraction(entry) <= Fraction(spectral_norm(np.eye(*shape) * entry)) <= Fraction(entry + 1e-322) * 2
    assert spectral_norm(np.zeros(shape)) == 0


@given(columns=st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=6))
def test_columns_are_chosen_where_the_rank_rises(columns: list[list[int]]) -> None:
    matrix = np.array(columns, dtype=np.float64).T
    ranks = [0, *(np.linalg.matrix_rank(matrix[:, :count]) for count in range(1, len(columns) + 1))]
    rises = [place for place in range(len(columns)) if ranks[place + 1] > ranks[place]]
    assert exactly_independent(matrix) == rises
