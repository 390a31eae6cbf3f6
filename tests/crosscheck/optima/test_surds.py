"""Numbers with square roots: a field, ordered as its digits are, however near two of them lie."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualmech.crosscheck.optima.surds import Number, Surd, latex, radicals_of, square_root
from dualmech.reference.formulas.writing import plain_formula

FRACTIONS = st.fractions(-9, 9, max_denominator=12)
SURDS = st.dictionaries(st.sampled_from([1, 2, 3, 6, 10, 15]), FRACTIONS, max_size=4).map(Surd)
ROOT_2 = Surd({2: Fraction(1)})


def in_decimals(number: Surd) -> Decimal:
    return sum(
        (Decimal(a.numerator) / a.denominator * Decimal(root).sqrt() for root, a in number.terms.items()), Decimal(0)
    )


@given(SURDS, SURDS, SURDS)
def test_they_are_a_field(a: Surd, b: Surd, c: Surd) -> None:
    assert (a + b) + c == a + (b + c) and a + b == b + a and a - a == 0
    assert (a * b) * c == a * (b * c) and a * b == b * a and a * (b + c) == a * b + a * c
    if a:
        assert a * (1 / a) == 1 and b / a * a == b and (1 / a).inverse == a


@given(SURDS, FRACTIONS)
def test_fractions_and_whole_numbers_are_among_them(a: Surd, f: Fraction) -> None:
    same = Surd({1: f})
    assert same == f and f == same and hash(same) == hash(f)
    assert f + a == same + a == a + f and f - a == same - a and f * a == a * same
    assert (f < a) == (same < a) == (a > f) and a**2 == a * a and 2 * a == a + a


@given(SURDS, SURDS)
def test_they_are_ordered_as_their_digits(a: Surd, b: Surd) -> None:
    with localcontext() as context:
        context.prec = 80
        difference = in_decimals(a - b)
        assert (a < b, a <= b, a > b, a >= b) == (
            *(difference < Decimal("-1e-60"), difference < Decimal("1e-60")),
            *(difference > Decimal("1e-60"), difference > Decimal("-1e-60")),
        )
        assert math.isclose(float(a - b), float(difference), rel_tol=1e-15, abs_tol=1e-60)


def test_signs_and_doubles_are_right_where_everything_cancels() -> None:
    """Convergents of the square root of two: p - q √2 is ± 1 / (p + q √2)."""
    p, q = 1, 1
    for step in range(200):
        off = p - q * ROOT_2
        assert off.sign == (-1 if step % 2 == 0 else 1)
        assert math.isclose(float(off), (1 if off > 0 else -1) / (p + q * math.sqrt(2)), rel_tol=1e-14)
        p, q = p + 2 * q, p + q
    assert q > 10**75


@given(st.fractions(0, 10**6, max_denominator=10**4))
def test_square_roots_are_square_roots(f: Fraction) -> None:
    found = square_root(f)
    assert found is not None and found * found == f and found >= 0


def test_roots_without_known_factors_divisions_by_0_and_radicals() -> None:
    assert square_root(Fraction((10**9 + 7) * (10**9 + 9))) is None
    assert square_root(Fraction((10**9 + 7) ** 2)) == 10**9 + 7
    for divide in (lambda: 1 / Surd({}), lambda: ROOT_2 / 0, lambda: ROOT_2 / Surd({2: Fraction(0)})):
        with pytest.raises(ZeroDivisionError):
            divide()
    numbers: list[Number] = [Fraction(1, 2), ROOT_2 + 1, Surd({6: Fraction(1), 2: Fraction(3)})]
    assert radicals_of(numbers) == (2, 6)
    assert ROOT_2 != "√2" and ROOT_2 != 1.4142135623730951


def test_they_are_written_alike_everywhere() -> None:
    for terms, written in (
        ({}, "0"),
        ({1: Fraction(-4, 3)}, "-4/3"),
        ({6: Fraction(1)}, "√6"),
        ({6: Fraction(-1, 5)}, "-√6/5"),
        ({1: Fraction(-3), 6: Fraction(1)}, "-3 + √6"),
        ({1: Fraction(9, 5), 6: Fraction(-2, 5), 10: Fraction(1, 2)}, "(18 - 4 √6 + 5 √10)/10"),
    ):
        number = Surd(terms)
        assert str(number) == plain_formula(latex(number)) == written and repr(number) == f"Surd({written})"
