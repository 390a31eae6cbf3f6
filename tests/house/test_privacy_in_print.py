"""A printed ε, δ or ρ is never below the true one."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.display import decimal_above, decimal_below
from dualmech.mechanisms.privacy import GaussianPrivacy

positive = st.one_of(
    st.fractions(Fraction(1, 10**12), 10**12), st.floats(5e-324, allow_nan=False, allow_infinity=False)
)
digits = st.integers(2, 15)


@given(positive, digits)
@example(0.1, 6)
@example(Fraction(1, 10), 6)
@example(5e-324, 6)
@example(Fraction(1, 10**400), 6)
@example(Fraction(10**400 + 1), 6)
@example(0.999999999, 6)
@example(1.7976931348623157e308, 6)
def test_digits_are_those_next_above_and_below(number: Fraction | float, count: int) -> None:
    above, below = Fraction(decimal_above(number, count)), Fraction(decimal_below(number, count))
    exact, unit = Fraction(number), Fraction(10) ** (1 - count)
    assert below <= exact <= above
    assert above - below <= 2 * unit * exact
    assert above < exact * (1 + unit) and below > exact * (1 - unit)
    for text in (decimal_above(number, count), decimal_below(number, count)):
        assert len(re.sub("e.*", "", text, flags=re.IGNORECASE).replace(".", "").lstrip("0")) <= count + 9


@given(st.integers(-(10**6), 10**6), st.integers(-9, 9))
def test_what_has_few_digits_is_printed_as_other_numbers_are(whole: int, power: int) -> None:
    exact = whole * Fraction(10) ** power
    assert decimal_above(exact, 7) == decimal_below(exact, 7) == f"{float(exact):.7g}"


def test_what_is_no_number_is_said() -> None:
    assert (decimal_above(math.inf), decimal_below(-math.inf), decimal_above(math.nan)) == ("inf", "-inf", "nan")


def mechanisms() -> list[GaussianPrivacy]:
    prefix = dm.workloads.prefix
    factors = dm.workloads.marginals([2, 3], [1, 2])
    return [
        fast.solve(dm.PrivacyFirst(prefix(5), 1.0, rho="1/3")).mechanism,
        fast.solve(dm.PrivacyFirst(factors, 1.0, rho="1/3")).mechanism,
        dm.StreamMechanism(prefix(4), [0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4], 0.7),
        dm.strategies.sqrt_toeplitz(7),
    ]


@pytest.mark.parametrize("mechanism", mechanisms(), ids=lambda each: type(each).__name__)
def test_mechanisms_show_no_less_than_they_cost(mechanism: GaussianPrivacy) -> None:
    shown = re.search("rho=([^,)]+)", repr(mechanism))
    assert shown is not None and Fraction(shown[1]) >= Fraction(mechanism.rho)
    facts = mechanism._facts()
    true = {"rho (zCDP)": mechanism.rho, "mu (Gaussian DP)": mechanism.privacy_cost}
    true["epsilon at delta = 1e-09"] = mechanism.epsilon(1e-9)
    assert true.keys() == facts.keys()
    assert all(Fraction(str(facts[name])) >= Fraction(value) for name, value in true.items())


@given(st.floats(1e-3, 20))
def test_local_mechanisms_show_no_less_than_they_cost(epsilon: float) -> None:
    strategy = np.ones((3, 3)) + np.expm1(epsilon) * np.eye(3)
    mechanism = dm.LocalMechanism(strategy / strategy.sum(axis=0), epsilon, dm.workloads.identity(3))
    for shown in (repr(mechanism), repr(dm.LocalRandomiser(mechanism))):
        found = re.search("epsilon=([^,)]+)", shown)
        assert found is not None
    assert Fraction(str(mechanism._facts()["epsilon (local)"])) >= Fraction(mechanism.epsilon)
    randomiser = dm.LocalRandomiser(mechanism)
    assert Fraction(repr(randomiser).split("epsilon=")[1].rstrip(")")) >= Fraction(randomiser.epsilon)
