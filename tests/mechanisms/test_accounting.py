"""Accounting against mpmath at high precision, against its own inverses, and against what theory says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dualmech import accounting
from dualmech.errors import InputTypeError, InvalidInputError

quick = settings(max_examples=24)
DIGITS = 80  # at Δ = 1e-8 and ε = 1e5 the two terms agree in 21 digits and e^ε has 43,000 of them
ACCURACY = 1e-10


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


costs = powers(-8, 3)
probabilities = powers(-300, -0.01)
depths = powers(-6, math.log10(5000))


def exact_log_delta(privacy_cost: float, epsilon: float) -> mp.mpf:
    """The formula of Balle and Wang as it is printed, with enough digits to survive it."""
    cost, bound = mp.mpf(privacy_cost), mp.mpf(epsilon)
    lower, upper = (bound / cost + sign * cost / 2 for sign in (-1, 1))
    return mp.log((mp.erfc(lower / mp.sqrt(2)) - mp.exp(bound) * mp.erfc(upper / mp.sqrt(2))) / 2)


def exact_zcdp_log_delta(rho: float, epsilon: float) -> mp.mpf:
    """The bound of Canonne, Kamath and Steinke, its order found by bisection on the derivative."""

    def derivative(log_b: mp.mpf) -> mp.mpf:
        return (2 * mp.exp(log_b) + 1) * rho - epsilon - mp.log1p(mp.exp(-log_b))

    low, high = mp.mpf(-2000), mp.mpf(2000)
    for _ in range(150):
        middle = (low + high) / 2
        low, high = (low, middle) if derivative(middle) > 0 else (middle, high)
    b = mp.exp(low)
    a = 1 + b
    return b * (a * mp.mpf(rho) - mp.mpf(epsilon)) - mp.log(b) + a * (mp.log(b) - mp.log(a))


def relative_error(log_value: float, exact: mp.mpf) -> float:
    return float(abs(mp.expm1(mp.mpf(log_value) - exact)))


def grid() -> Iterator[tuple[float, float]]:
    """Pairs (Δ, ε): fixed ε of every size, and ε that put ε/Δ - Δ/2 at chosen places, on both sides of 0."""
    places = (0, 1e-6, 0.1, 0.5, 1, 2, 5, 10, 19.9, 20, 20.1, 30, 45, 70, 99)
    near = (0.49999, 0.5, 0.50001, 10.4, 10.6)  # where one form takes over from another
    for privacy_cost in (*10.0 ** np.arange(-8, 3.01, 0.5), 1e5, 1e8, *near):
        for epsilon in (0, 1e-12, 1e-6, 1e-3, 0.1, 1, 10, 100, 1e3, 1e4, 1e5):
            yield float(privacy_cost), float(epsilon)
        for place in places:
            yield float(privacy_cost), float(privacy_cost * (place + privacy_cost / 2))
        for fraction in (0.01, 0.5, 0.99):
            yield float(privacy_cost), float(fraction * privacy_cost**2 / 2)


class TestBalleWang:
    def test_against_mpmath(self) -> None:
        with mp.workdps(DIGITS):
            compared = 0
            for privacy_cost, epsilon in grid():
                computed, exact = (accounting.log_delta(privacy_cost, epsilon), exact_log_delta(privacy_cost, epsilon))
                where = f"Δ = {privacy_cost!r}, ε = {epsilon!r}: {computed!r}, exact {mp.nstr(exact, 20)}"
                if exact > -5000:
                    assert relative_error(computed, exact) <= ACCURACY, where
                    compared += 1
                else:
                    assert abs(computed / exact - 1) <= 1e-15, where
            assert compared > 500

    @quick
    @given(costs, depths)
    def test_against_mpmath_along_the_tail(self, privacy_cost: float, depth: float) -> None:
        epsilon = privacy_cost * (math.sqrt(2 * depth) + privacy_cost / 2)
        with mp.workdps(DIGITS):
            exact = exact_log_delta(privacy_cost, epsilon)
            assert relative_error(accounting.log_delta(privacy_cost, epsilon), exact) <= ACCURACY

    def test_delta_itself_is_as_accurate_and_far_below_the_doubles(self) -> None:
        with mp.workdps(DIGITS):
            for privacy_cost, epsilon in ((1e-8, 3e-7), (0.01, 0.3), (1, 1), (1, 37), (100, 5000), (1e3, 0)):
                exact = mp.exp(exact_log_delta(privacy_cost, epsilon))
                assert accounting.delta(privacy_cost, epsilon) == pytest.approx(float(exact), rel=ACCURACY, abs=0)
        assert accounting.delta(0.01, 1.0) == math.ulp(0.0)
        assert accounting.log_delta(1e-8, 1e5) == pytest.approx(-5e25, rel=1e-12)
        assert accounting.log_delta(1e-300, 1.0) == -math.inf
        assert accounting.log_delta(1e3, 1.0) == 0

    @quick
    @given(powers(-300, 300))
    def test_no_epsilon_is_total_variation(self, privacy_cost: float) -> None:
        total_variation = math.erf(privacy_cost / math.sqrt(8))
        assert accounting.delta(privacy_cost, 0) == pytest.approx(total_variation, rel=1e-12, abs=0)

    @quick
    @given(costs, powers(-8, 5), powers(-6, 1))
    def test_monotone(self, privacy_cost: float, epsilon: float, growth: float) -> None:
        value = accounting.log_delta(privacy_cost, epsilon)
        rounding = 1e-14 * (1 + abs(value))
        assert accounting.log_delta(privacy_cost * (1 + growth), epsilon) >= value - rounding
        assert accounting.log_delta(privacy_cost, epsilon * (1 + growth)) <= value + rounding

    @quick
    @given(powers(-1, 0.7), powers(-1, 0.7), st.floats(0, 10))
    def test_composition_adds_squares(self, first: float, second: float, epsilon: float) -> None:
        """The second mechanism, averaged over the privacy loss of the first, is one of cost √(a² + b²)."""

        def curve(bound: float) -> float:
            if bound >= 0:
                return accounting.delta(second, bound)
            return 1 - math.exp(bound) * (1 - accounting.delta(second, -bound))

        # A small second cost has a nearly kinked curve, which quadrature sees badly: the order is free.
        first, second = sorted((first, second))
        nodes, weights = np.polynomial.hermite_e.hermegauss(80)
        losses = first**2 / 2 + first * nodes
        averaged = sum(w * curve(epsilon - loss) for w, loss in zip(weights, losses, strict=True))
        composed = accounting.delta(math.hypot(first, second), epsilon)
        assert averaged / math.sqrt(2 * math.pi) == pytest.approx(composed, rel=1e-9, abs=1e-9)

    def test_extremes_stay_probabilities(self) -> None:
        for privacy_cost in (5e-324, 1e-300, 1e-155, 1e-8, 1.0, 1e8, 1e155, 1.7e308):
            for epsilon in (0.0, 5e-324, 1e-300, 1.0, 1e5, 1e155, 1.7e308):
                assert accounting.log_delta(privacy_cost, epsilon) <= 0, (privacy_cost, epsilon)
                assert 0 <= accounting.delta(privacy_cost, epsilon) <= 1, (privacy_cost, epsilon)
                assert accounting.zcdp_log_delta(privacy_cost, epsilon) <= 0, (privacy_cost, epsilon)
                assert 0 <= accounting.zcdp_delta(privacy_cost, epsilon) <= 1, (privacy_cost, epsilon)


class TestInverses:
    @quick
    @given(costs, probabilities)
    def test_epsilon_and_back(self, privacy_cost: float, delta: float) -> None:
        epsilon = accounting.epsilon(privacy_cost, delta)
        if epsilon == 0:
            assert accounting.delta(privacy_cost, 0) <= delta
        else:
            assert accounting.delta(privacy_cost, epsilon) == pytest.approx(delta, rel=ACCURACY, abs=0)
            assert accounting.log_delta(privacy_cost, epsilon) <= math.log(delta)

    @quick
    @given(powers(-8, 5), probabilities)
    def test_privacy_cost_and_back(self, epsilon: float, delta: float) -> None:
        privacy_cost = accounting.privacy_cost(epsilon, delta)
        assert accounting.delta(privacy_cost, epsilon) == pytest.approx(delta, rel=ACCURACY, abs=0)
        assert accounting.log_delta(privacy_cost, epsilon) <= math.log(delta)

    @quick
    @given(costs, probabilities)
    def test_the_two_inverses_agree(self, privacy_cost: float, delta: float) -> None:
        epsilon = accounting.epsilon(privacy_cost, delta)
        assume(epsilon > 0 and delta < 0.9 * accounting.delta(privacy_cost, 0))
        assert accounting.privacy_cost(epsilon, delta) == pytest.approx(privacy_cost, rel=ACCURACY, abs=0)

    @quick
    @given(costs, depths)
    def test_from_log_delta(self, privacy_cost: float, depth: float) -> None:
        epsilon = accounting.epsilon_from_log_delta(privacy_cost, -depth)
        assume(epsilon > 0)
        with mp.workdps(DIGITS):
            assert relative_error(-depth, exact_log_delta(privacy_cost, epsilon)) <= ACCURACY

    @quick
    @given(powers(-4, 1))
    def test_epsilon_is_zero_from_total_variation_on(self, privacy_cost: float) -> None:
        edge = math.erf(privacy_cost / math.sqrt(8))
        assert accounting.epsilon(privacy_cost, min(edge * (1 + 1e-9), 1 - 1e-16)) == 0
        assert accounting.epsilon(privacy_cost, edge * (1 - 1e-9)) > 0

    def test_extremes_stay_on_the_safe_side(self) -> None:
        for number in (5e-324, 1e-200, 1e-8, 1.0, 1e16, 1e155, 1.7e308):
            for delta in (5e-324, 1e-300, 1e-9, 0.5, 1 - 2**-53):
                case, allowed = (number, delta), math.log(delta)
                epsilon, privacy_cost = accounting.epsilon(number, delta), accounting.privacy_cost(number, delta)
                assert epsilon == math.inf or accounting.log_delta(number, epsilon) <= allowed, case
                assert accounting.log_delta(privacy_cost, number) <= allowed, case
                epsilon = accounting.zcdp_epsilon(number, delta)
                assert epsilon == math.inf or accounting.zcdp_log_delta(number, epsilon) <= allowed, case


class TestZeroConcentrated:
    @quick
    @given(powers(-12, 5), powers(-8, 5))
    @example(10.0**2.0703125, 0.1)
    def test_against_mpmath_and_never_below(self, rho: float, epsilon: float) -> None:
        computed = accounting.zcdp_log_delta(rho, epsilon)
        with mp.workdps(50):
            # Fifty digits may leave a little above 0.
            exact = min(exact_zcdp_log_delta(rho, epsilon), mp.mpf(0))
            assert computed >= exact
            allowed = ACCURACY if exact > -5000 else 1e-14 * abs(float(exact))
            assert computed - exact <= allowed

    @quick
    @given(powers(-12, 5), powers(-8, 5))
    def test_bounds_the_gaussian(self, rho: float, epsilon: float) -> None:
        exact = accounting.log_delta(math.sqrt(2 * rho), epsilon)
        assert accounting.zcdp_log_delta(rho, epsilon) >= exact
        assert accounting.zcdp_delta(rho, epsilon) >= accounting.delta(math.sqrt(2 * rho), epsilon)

    @quick
    @given(powers(-8, 4), probabilities)
    def test_epsilon_and_back(self, rho: float, delta: float) -> None:
        epsilon = accounting.zcdp_epsilon(rho, delta)
        if epsilon == 0:
            assert accounting.zcdp_delta(rho, 0) <= delta
        else:
            assert accounting.zcdp_delta(rho, epsilon) == pytest.approx(delta, rel=ACCURACY, abs=0)
            assert accounting.zcdp_log_delta(rho, epsilon) <= math.log(delta)

    @quick
    @given(powers(-8, 4), probabilities)
    def test_epsilon_lies_between_exact_and_classical(self, rho: float, delta: float) -> None:
        epsilon = accounting.zcdp_epsilon(rho, delta)
        assert epsilon >= accounting.epsilon(math.sqrt(2 * rho), delta)
        assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))

    @quick
    @given(powers(-6, 3), powers(-6, 3), powers(-3, 1))
    def test_monotone(self, rho: float, epsilon: float, growth: float) -> None:
        value = accounting.zcdp_log_delta(rho, epsilon)
        rounding = 1e-13 * (1 + abs(value))
        assert accounting.zcdp_log_delta(rho * (1 + growth), epsilon) >= value - rounding
        assert accounting.zcdp_log_delta(rho, epsilon * (1 + growth)) <= value + rounding


class TestConversions:
    @quick
    @given(powers(-100, 100))
    def test_round_trips(self, number: float) -> None:
        assert accounting.squared_cost_from_rho(accounting.rho_from_squared_cost(number)) == number
        back = accounting.squared_cost_from_mu(accounting.mu_from_squared_cost(number))
        assert back == pytest.approx(number, rel=1e-15)

    @quick
    @given(powers(-100, 100), powers(-1, 1))
    def test_margins(self, margin: float, z: float) -> None:
        variance = accounting.variance_from_margin(margin, z)
        assert float(variance) == pytest.approx((margin / z) ** 2)
        assert float(accounting.margin_from_variance(variance, z)) == pytest.approx(margin)

    def test_margins_of_arrays(self) -> None:
        margins = np.array([[1.645, 3.29], [16.45, 0.1645]])
        variances = accounting.variance_from_margin(margins)
        np.testing.assert_allclose(variances, np.array([[1, 4], [100, 0.01]]))
        np.testing.assert_allclose(accounting.margin_from_variance(variances), margins)
        assert accounting.margin_from_variance([0.0, 1.0])[0] == 0

    def test_definitions(self) -> None:
        assert accounting.rho_from_squared_cost(9) == 4.5
        assert accounting.mu_from_squared_cost(9) == 3


PAIRS: dict[Callable[..., float], tuple[str, str]] = {
    accounting.log_delta: ("privacy_cost", "epsilon"),
    accounting.delta: ("privacy_cost", "epsilon"),
    accounting.epsilon: ("privacy_cost", "delta"),
    accounting.epsilon_from_log_delta: ("privacy_cost", "log_delta"),
    accounting.privacy_cost: ("epsilon", "delta"),
    accounting.zcdp_log_delta: ("rho", "epsilon"),
    accounting.zcdp_delta: ("rho", "epsilon"),
    accounting.zcdp_epsilon: ("rho", "delta"),
}
GOOD = {"privacy_cost": 1.0, "epsilon": 1.0, "delta": 1e-6, "log_delta": -10.0, "rho": 0.5}
BAD: dict[str, tuple[object, ...]] = {
    "privacy_cost": (0, -1),
    "epsilon": (-1e-300, -1),
    "delta": (0, 1, -0.1, 1.5),
    "log_delta": (0, 1),
    "rho": (0, -1),
}


class TestNeverBelow:
    """What is told of privacy is on the safe side of the truth at 400 digits, for δ as it is written, too."""

    @given(powers(-6, 2), st.one_of(probabilities, powers(-15, -1).map(lambda share: 1 - share)))
    def test_epsilon_of_gaussian_noise(self, privacy_cost: float, delta: float) -> None:
        epsilon = accounting.epsilon(privacy_cost, delta)
        with mp.workdps(400):
            target = min(mp.mpf(delta), mp.mpf(repr(delta)))
            assert exact_log_delta(privacy_cost, epsilon) <= mp.log(target)

    @given(powers(-6, 2), powers(-6, 3))
    def test_delta_of_gaussian_noise(self, privacy_cost: float, epsilon: float) -> None:
        with mp.workdps(400):
            exact = exact_log_delta(privacy_cost, epsilon)
            assert accounting.log_delta(privacy_cost, epsilon) >= exact
            assert accounting.delta(privacy_cost, epsilon) >= mp.exp(exact)

    @quick
    @given(powers(-8, 4), probabilities)
    def test_epsilon_of_zcdp(self, rho: float, delta: float) -> None:
        epsilon = accounting.zcdp_epsilon(rho, delta)
        with mp.workdps(50):
            target = min(mp.mpf(delta), mp.mpf(repr(delta)))
            assert min(exact_zcdp_log_delta(rho, epsilon), mp.mpf(0)) <= mp.log(target)

    @quick
    @given(powers(-8, 4), powers(-8, 3))
    def test_delta_of_zcdp(self, rho: float, epsilon: float) -> None:
        with mp.workdps(50):
            assert accounting.zcdp_delta(rho, epsilon) >= min(mp.exp(exact_zcdp_log_delta(rho, epsilon)), mp.mpf(1))

    @given(powers(-100, 100))
    def test_mu_and_its_square(self, number: float) -> None:
        assert Fraction(accounting.mu_from_squared_cost(number)) ** 2 >= Fraction(number)
        assert Fraction(accounting.squared_cost_from_mu(number)) <= Fraction(number) ** 2


class TestBadInput:
    @pytest.mark.parametrize("function", PAIRS)
    def test_what_is_no_number_or_out_of_range(self, function: Callable[..., float]) -> None:
        names = PAIRS[function]
        for name in names:
            for value in (*BAD[name], math.nan, math.inf, -math.inf, [0.5, 0.5], "1", 1j, {}):
                error = InputTypeError if isinstance(value, str | complex | dict) else InvalidInputError
                with pytest.raises(error, match=f"^{name} must"):
                    function(**{n: GOOD[n] for n in names} | {name: value})

    def test_conversions_and_margins(self) -> None:
        for function, name in (
            (accounting.rho_from_squared_cost, "squared_cost"),
            (accounting.squared_cost_from_rho, "rho"),
            (accounting.mu_from_squared_cost, "squared_cost"),
            (accounting.squared_cost_from_mu, "mu"),
        ):
            for value in (0, -1, math.nan, math.inf):
                with pytest.raises(InvalidInputError, match=f"^{name} must"):
                    function(value)
        with pytest.raises(InvalidInputError, match="^epsilon must be positive"):
            accounting.privacy_cost(0.0, 1e-6)  # of which there is no inverse
        for bad in ([0.0], [1.0, -1.0], [1.0, math.nan], []):
            with pytest.raises(InvalidInputError, match="^margin must"):
                accounting.variance_from_margin(bad)
        for bad in ([1.0, -1.0], [math.inf], []):
            with pytest.raises(InvalidInputError, match="^variance must"):
                accounting.margin_from_variance(bad)
        for bad_z in (0, -1.645, math.nan):
            with pytest.raises(InvalidInputError, match="^z must"):
                accounting.variance_from_margin(1.0, bad_z)
            with pytest.raises(InvalidInputError, match="^z must"):
                accounting.margin_from_variance(1.0, bad_z)


class TestTheLargestRho:
    @given(st.floats(1e-3, 1e3), st.floats(1e-12, 0.5))
    def test_is_safe_and_hardly_more_is_not(self, epsilon: float, delta: float) -> None:
        rho = accounting.zcdp_rho(epsilon, delta)
        assert accounting.zcdp_epsilon(rho, delta) <= epsilon < accounting.zcdp_epsilon(rho * (1 + 1e-6), delta)
        assert rho <= accounting.privacy_cost(epsilon, delta) ** 2 / 2

    @given(st.fractions(min_value=1e-9, max_value=1e9))
    def test_texts_of_fractions_are_never_rounded_up(self, rho: Fraction) -> None:
        found = accounting.squared_cost_from_rho(str(rho))
        assert found == accounting.squared_cost_from_rho(rho)
        assert Fraction(found) <= 2 * rho < Fraction(math.nextafter(found, math.inf))

    def test_texts_that_are_no_fractions(self) -> None:
        for wrong in ("", "1/0", "-1/2", "0", "x", "nan"):
            with pytest.raises(InvalidInputError, match="^rho must be"):
                accounting.squared_cost_from_rho(wrong)

    def test_quantiles_of_many_at_once_against_many_digits(self) -> None:
        for level in (1e-12, 1e-3, 0.5, 0.95, 0.999, 1 - 1e-9, 1 - 2.0**-53):
            for count in (1, 2, 1000, 10**6, 10**12, 10**18):
                found = accounting.normal_quantile(level, count)
                with mp.workdps(60):
                    # What the probability misses, over its derivative, which is twice the density.
                    missed = mp.exp(mp.log(mp.mpf(level)) / count) - mp.erf(found / mp.sqrt(2))
                    assert abs(missed / (2 * mp.npdf(found))) <= 1e-12 * found, (level, count)

    @given(st.floats(0.01, 0.999))
    def test_levels_and_quantiles(self, level: float) -> None:
        assert accounting.level_of(accounting.normal_quantile(level)) == pytest.approx(level, rel=1e-9)
