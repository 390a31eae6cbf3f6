"""Privacy accounting of the continuous Gaussian mechanism: Δ, α = Δ², ρ, μ and (ε, δ), and margins of error.

The privacy cost Δ, the largest distance between neighbours in units of the noise, determines everything: the mechanism
is ρ-zCDP with ρ = Δ²/2 (Bun and Steinke 2016, Proposition 1.6), μ-GDP with μ = Δ (Dong, Roth and Su 2022,
section 2.2), and (ε, δ)-private exactly on the curve of Balle and Wang (2018, Theorem 8). All are pure numbers.
The δ of a discrete or rounded release can be larger: quote ρ and `zcdp_epsilon` for it.

Bad input raises `InvalidInputError` (out of range, NaN, infinite) or `InputTypeError` (not a number).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # it loads special when that is used

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.validate import Array

CENSUS_Z = 1.645
"""The normal quantile of a margin of error at 90 % confidence, as the American Community Survey rounds it."""

LEVEL = 0.95
"""The default level of a margin of error: truth lies within the margin 19 times in 20."""

_EPS, _UP = 2.0**-52, 1 + 2.0**-49  # a unit of rounding, and a factor above the rounding of a few steps
# Compared with 80 digits, the errors of log δ were at most 10 absolute and 1.1 relative units of rounding.
_ERROR, _RELATIVE_ERROR = 12 * _EPS, 3 * _EPS
_LOG_SQRT_2PI = math.log(2 * math.pi) / 2
_LOG_ORDERS = 690.0, -690.0  # any Rényi order gives a valid δ, so the search may stop before e^±710 overflows
_ASYMPTOTIC_FROM = 20.0  # below, 1 - t R(t) loses a few hundred ulps; above, 13 terms of its series are exact
_SERIES = np.cumprod([1.0, *(-(2.0 * k + 1) for k in range(1, 13))])[::-1]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)

UNBOUNDED = 100  # above it noise protects next to nothing: ε is about 190 at δ = 1e-9
CONVERSION = (
    "as rho implies it (Canonne, Kamath and Steinke 2020, section 2.3), which holds for the discrete noise of a release"
)


def rho_from_squared_cost(squared_cost: float) -> float:
    """Return the ρ of zero-concentrated privacy, ``ρ = α/2``, of a squared privacy cost α > 0.

    Raises `InvalidInputError`. Source: Bun and Steinke (2016), Proposition 1.6.

    Examples
    --------
    >>> rho_from_squared_cost(3.0)
    1.5
    """
    return validate.positive_number(squared_cost=squared_cost) / 2


def squared_cost_from_rho(rho: float | str | Fraction) -> float:
    """Return the squared privacy cost ``α = 2ρ`` that ρ > 0, a number or a text such as ``1/20``, allows.

    It is the largest double that is not above 2ρ.

    Raises `InvalidInputError`. Source: Bun and Steinke (2016), Proposition 1.6.

    Examples
    --------
    >>> squared_cost_from_rho(1.5)
    3.0
    """
    exact = 2 * validate.exact_number(rho=rho)
    cost = float(min(exact, Fraction(sys.float_info.max)))
    cost = cost if Fraction(cost) <= exact else math.nextafter(cost, 0.0)
    if not cost:
        raise InvalidInputError(f"rho must be at least {math.ulp(0.0)}, got {validate.shown(rho)}")
    return cost


def cost_or_rho(cost: float | None, rho: float | str | Fraction | None) -> float:
    """Return the squared privacy cost that one of a cost and a ρ, a number or a text such as ``1/20``, allows.

    Raises `InvalidInputError` for both, or for neither.

    Examples
    --------
    >>> cost_or_rho(None, "1/8"), cost_or_rho(0.5, None)
    (0.25, 0.5)
    """
    if (cost is None) == (rho is None):
        raise InvalidInputError("rho must be given, or instead of it cost, the squared privacy cost 2 rho")
    return validate.positive_number(cost=cost) if rho is None else squared_cost_from_rho(rho)


def mu_from_squared_cost(squared_cost: float) -> float:
    """Return the μ of Gaussian privacy, ``μ = Δ = √α``, of a squared privacy cost α > 0, rounded up.

    Raises `InvalidInputError`. Source: Dong, Roth and Su (2022), section 2.2.

    Examples
    --------
    >>> mu_from_squared_cost(2.25)
    1.5
    """
    cost = validate.positive_number(squared_cost=squared_cost)
    root = math.sqrt(cost)
    return math.nextafter(root, math.inf) if Fraction(root) ** 2 < Fraction(cost) else root


def squared_cost_from_mu(mu: float) -> float:
    """Return the squared privacy cost ``α = μ²`` that μ > 0 allows, rounded down.

    Raises `InvalidInputError`. Source: Dong, Roth and Su (2022), section 2.2.

    Examples
    --------
    >>> squared_cost_from_mu(1.5)
    2.25
    """
    value = validate.positive_number(mu=mu)
    cost = value * value
    return cost if math.isinf(cost) or Fraction(cost) <= Fraction(value) ** 2 else math.nextafter(cost, 0.0)


def log_delta(privacy_cost: float, epsilon: float) -> float:
    """Return log δ on the exact curve of privacy cost Δ > 0 at ε ≥ 0.

    ``δ = Φ(Δ/2 - ε/Δ) - e^ε Φ(-Δ/2 - ε/Δ)``, with a relative error below 1e-10 down to log δ = -5000; below
    that, log δ itself is as accurate as a double. Rounding goes to the larger δ, the safe side. It is -inf only where
    log δ is beyond the doubles.
    Raises `InvalidInputError`. Source: Balle and Wang (2018), Theorem 8.

    Examples
    --------
    >>> round(log_delta(1.0, 100.0), 6)
    -4960.254554
    """
    cost = validate.positive_number(privacy_cost=privacy_cost)
    return _log_delta(cost, validate.nonnegative_number(epsilon=epsilon))


def delta(privacy_cost: float, epsilon: float) -> float:
    """Return the least δ for which a privacy cost Δ > 0 is (ε, δ)-private, ε ≥ 0; never 0, which would be pure privacy.

    ``δ = Φ(Δ/2 - ε/Δ) - e^ε Φ(-Δ/2 - ε/Δ)``; see `log_delta`.
    Raises `InvalidInputError`. Source: Balle and Wang (2018), Theorem 8.

    Examples
    --------
    >>> round(delta(1.0, 1.0), 9)
    0.126936738
    """
    return min(math.nextafter(math.exp(log_delta(privacy_cost, epsilon)), math.inf), 1.0)


def epsilon(privacy_cost: float, delta: float) -> float:
    """Return the least ε for which a privacy cost Δ > 0 is (ε, δ)-private, 0 < δ < 1.

    The inverse of `delta`, and 0 where δ ≥ 2 Φ(Δ/2) - 1. Rounding goes to the larger ε, the safe side.
    Raises `InvalidInputError`. Source: Balle and Wang (2018), Theorem 8.

    Examples
    --------
    >>> round(epsilon(1.0, 1e-9), 6)
    6.173935
    """
    return epsilon_from_log_delta(privacy_cost, _log_below(validate.probability(delta=delta)))


def epsilon_from_log_delta(privacy_cost: float, log_delta: float) -> float:
    """Return the least ε for which a privacy cost Δ > 0 is (ε, δ)-private, from log δ < 0.

    The function is `epsilon` for a δ that is too close to 0 or to 1 for a double.
    Raises `InvalidInputError`. Source: Balle and Wang (2018), Theorem 8.

    Examples
    --------
    >>> round(epsilon_from_log_delta(1.0, -4000.0), 6)
    89.831795
    """
    cost = validate.positive_number(privacy_cost=privacy_cost)
    target = float(validate.finite(0, log_delta=log_delta))
    if target >= 0:
        raise InvalidInputError(f"log_delta must be below 0, got {target:g}")
    # With u = ε/Δ - Δ/2 ≥ 0, δ ≤ Φ(-u) ≤ exp(-u²/2)/2: at this u, at most half of the δ asked for.
    safe_value = cost * (math.sqrt(-2 * target) + cost / 2) * _UP
    return _safe_root(lambda trial: _log_delta(cost, trial) - target, 0.0, safe_value)


def privacy_cost(epsilon: float, delta: float) -> float:
    """Return the largest privacy cost Δ that is (ε, δ)-private, ε > 0 and 0 < δ < 1.

    The inverse of `delta` in Δ. Rounding goes to the smaller Δ, the safe side.
    Raises `InvalidInputError`. Source: Balle and Wang (2018), Theorem 8 and Algorithm 1.

    Examples
    --------
    >>> round(privacy_cost(1.0, 1e-9), 6)
    0.181975
    """
    bound, share = validate.positive_number(epsilon=epsilon), validate.probability(delta=delta)
    target, root = _log_below(share), math.sqrt(2) * math.sqrt(bound)
    # With u = ε/Δ - Δ/2: δ ≤ exp(-u²/2)/2 where u ≥ 0, and 1 - δ ≤ 2 Φ(u) ≤ exp(-u²/2) where u ≤ 0.
    tail, head = math.sqrt(-2 * target), math.sqrt(-2 * math.log1p(-share))
    safe_value = max(root * (root / (tail + math.hypot(tail, root))) / _UP, math.ulp(0.0))
    unsafe = (head + math.hypot(head, root)) * _UP
    return _safe_root(lambda trial: _log_delta(trial, bound) - target, unsafe, safe_value)


def zcdp_log_delta(rho: float, epsilon: float) -> float:
    """Return log δ such that every ρ-zCDP mechanism is (ε, δ)-private, ρ > 0 and ε ≥ 0.

    ``δ = inf over a > 1 of exp((a-1)(aρ-ε))/(a-1) · (1-1/a)^a``; each order a gives a valid δ; rounded up.
    Raises `InvalidInputError`. Source: Canonne, Kamath and Steinke (2020), section 2.3.

    Examples
    --------
    >>> round(zcdp_log_delta(0.5, 100.0), 6)
    -4955.730216
    """
    return _zcdp_log_delta(validate.positive_number(rho=rho), validate.nonnegative_number(epsilon=epsilon))


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Return a δ such that every ρ-zCDP mechanism is (ε, δ)-private, ρ > 0 and ε ≥ 0; see `zcdp_log_delta`.

    Raises `InvalidInputError`. Source: Canonne, Kamath and Steinke (2020), section 2.3.

    Examples
    --------
    >>> round(zcdp_delta(0.5, 1.0), 9)
    0.246846331
    """
    return min(math.nextafter(math.exp(zcdp_log_delta(rho, epsilon)), math.inf), 1.0)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return an ε such that every ρ-zCDP mechanism is (ε, δ)-private, ρ > 0 and 0 < δ < 1.

    The inverse of `zcdp_delta`, below the classical ``ρ + 2 √(ρ log(1/δ))``; rounded up.
    Raises `InvalidInputError`. Source: Canonne, Kamath and Steinke (2020), section 2.3.

    Examples
    --------
    >>> round(zcdp_epsilon(0.5, 1e-9), 6)
    6.47407
    """
    rate, target = validate.positive_number(rho=rho), _log_below(validate.probability(delta=delta))
    safe_value = 2 * (rate + 2 * math.sqrt(-rate * target))
    return _safe_root(lambda trial: _zcdp_log_delta(rate, trial) - target, 0.0, safe_value)


def normal_quantile(level: float, count: int = 1) -> float:
    """Return the standard deviations within which a normal variable lies with a probability, such as 1.96 at 0.95.

    `count` variables all lie within them with at least that probability, whatever their correlations (Šidák): each
    variable does with ``level^(1 / count)``.

    Examples
    --------
    >>> round(normal_quantile(0.95), 6), round(normal_quantile(0.95, count=1000), 6)
    (1.959964, 4.049661)
    """
    share = math.log(validate.probability(level=level)) / validate.size(count=count)
    # The probability or its complement to 1, whichever is small, keeps its digits.
    if share < -1:
        return float(math.sqrt(2) * scipy.special.erfinv(math.exp(share)))
    return -float(scipy.special.ndtri(-math.expm1(share) / 2))


def level_of(quantile: float) -> float:
    """Return the probability that a normal variable lies within a number of standard deviations.

    Examples
    --------
    >>> round(level_of(1.645), 6)
    0.90003
    """
    return math.erf(validate.positive_number(quantile=quantile) / math.sqrt(2))


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Return the largest ρ for which every ρ-zCDP mechanism is (ε, δ)-private, ε > 0 and 0 < δ < 1.

    The inverse of `zcdp_epsilon` in ρ, for noise of any kind that is ρ-zCDP, such as the discrete noise of a release.
    Rounding goes to the smaller ρ, the safe side.
    Raises `InvalidInputError`. Source: Canonne, Kamath and Steinke (2020), section 2.3.

    Examples
    --------
    >>> round(zcdp_rho(1.0, 1e-9), 6), zcdp_epsilon(zcdp_rho(1.0, 1e-9), 1e-9) <= 1.0
    (0.014973, True)
    """
    bound, share = validate.positive_number(epsilon=epsilon), validate.probability(delta=delta)
    target = _log_below(share)
    # ε ≥ ρ + 2 √(ρ log(1/δ)) is enough, and an ε too small for Gaussian noise of the same ρ is too small for all noise.
    safe_value = max((bound / (math.sqrt(bound - target) + math.sqrt(-target)) / _UP) ** 2, math.ulp(0.0))
    unsafe = privacy_cost(bound, share) ** 2 / 2 * (1 + 1e-6)
    rho = _safe_root(lambda trial: _zcdp_log_delta(trial, bound) - target, unsafe, safe_value)
    while zcdp_epsilon(rho, share) > bound:  # the inverse of a bound that is rounded up
        rho /= _UP
    return rho


def variance_from_margin(margin: object, z: float = CENSUS_Z) -> Any:
    """Return the variances ``(margin/z)²`` of unbiased answers with margins of error > 0, in their shape.

    A mapping, or a pandas Series with names, gives a mapping with the same names.
    Raises `InvalidInputError`. Source: U.S. Census Bureau, Understanding and Using ACS Data (2020), chapter 7.

    Examples
    --------
    >>> variance_from_margin([1.645, 3.29]).round(6)
    array([1., 4.])
    """
    margins = validate.as_mapping(margin=margin)
    if isinstance(margins, Mapping):
        return {name: float(variance_from_margin(margin, z)) for name, margin in margins.items()}
    values, quantile = validate.positive(margin=margins), validate.positive_number(z=z)
    with np.errstate(over="ignore", under="ignore"):
        variances = (values / quantile) ** 2
    if not np.all((variances > 0) & np.isfinite(variances)):
        raise InvalidInputError("margin over z must have a square that a double can hold")
    return np.asarray(variances)


def margin_from_variance(variance: npt.ArrayLike, z: float = CENSUS_Z) -> Array:
    """Return the margins of error ``z √variance`` of unbiased answers with variances ≥ 0, in their shape.

    Raises `InvalidInputError`. Source: U.S. Census Bureau, Understanding and Using ACS Data (2020), chapter 7.

    Examples
    --------
    >>> margin_from_variance([1.0, 4.0]).round(6)
    array([1.645, 3.29 ])
    """
    quantile, variances = validate.positive_number(z=z), validate.finite(variance=variance)
    if np.any(variances < 0):
        raise InvalidInputError(f"variance must be at least 0, got {variances.min():g}")
    return np.asarray(quantile * np.sqrt(variances))


def _zcdp_log_delta(rate: float, bound: float) -> float:
    # log δ is convex in b = a - 1: its one stationary point is the minimum, sought in log b.
    x = _safe_root(lambda t: (2 * math.exp(t) + 1) * rate - bound - math.log1p(math.exp(-t)), *_LOG_ORDERS)
    b = math.exp(x)
    factor = b * math.log1p(1 / b) + math.log1p(b)
    # Each term is taken a little too large: rounding must not make δ too small.
    return min(0.0, b * (_UP * (b + 1) * rate - bound / _UP) - factor / _UP + _UP - 1)


def _log_below(share: float) -> float:
    """Return a number below the logarithm of δ, and of every decimal that Python reads as this double.

    A double has a relative distance of at most `_EPS` / 2 from the decimal, and the computed logarithm is off by less
    than a unit of rounding.
    """
    return math.log(share) * (1 + 2 * _EPS) - _EPS


def _log_delta(cost: float, bound: float) -> float:
    """Return log δ, rounded up."""
    # u²/2 reaches thousands, and its absolute error is the relative error of δ: rationals keep it exact.
    exact, ratio = Fraction(cost), Fraction(bound) / Fraction(cost)
    exact_u = ratio - exact / 2
    try:
        log_density = -float(exact_u * exact_u / 2) - _LOG_SQRT_2PI
    except OverflowError:
        return -math.inf if exact_u > 0 else 0.0
    u, v = float(exact_u), float(ratio + exact / 2)
    if 2 * cost <= 1 + max(u, 0.0):
        # R(u) - R(v) cancels; it is the integral of 1 - t R(t) = -R'(t), a positive function.
        mean = float(_WEIGHTS @ _mills_slope(u + cost / 2 * (1 + _NODES))) / 2
        log_delta = log_density + math.log(cost) + math.log(mean)
        return log_delta + _ERROR + _RELATIVE_ERROR * abs(log_delta)
    if u >= 0:
        log_delta = log_density + math.log(_mills(u) - _mills(v))
        return log_delta + _ERROR + _RELATIVE_ERROR * abs(log_delta)
    # Here 1 - δ = Φ(u) + e^ε Φ(-v), and e^ε times the density at v is the density at u.
    inside = math.exp(log_density) * (_mills(-u) + _mills(v))
    return math.log1p(-inside * max(1 - _ERROR + _RELATIVE_ERROR * log_density, 0.0))


def _mills(t: float) -> float:
    """Mills' ratio ``R(t) = Φ(-t)/φ(t)``."""
    return math.sqrt(math.pi / 2) * float(scipy.special.erfcx(t / math.sqrt(2)))


def _mills_slope(t: Array) -> Array:
    """``-R'(t) = 1 - t R(t)`` at increasing t; its series in 1/t² where the difference would cancel."""
    if t[0] < _ASYMPTOTIC_FROM:
        return np.asarray(1 - t * (math.sqrt(math.pi / 2) * scipy.special.erfcx(t / math.sqrt(2))))
    return np.asarray(np.polyval(_SERIES, t**-2.0) / t / t)


def _safe_root(function: Callable[[float], float], unsafe: float, safe_value: float) -> float:
    """Return a point with function ≤ 0 within rounding of one with function > 0, by Chandrupatla's method."""
    if math.isinf(safe_value):  # the root may lie beyond the doubles
        return safe_value
    a, b, f_a, f_b, share = unsafe, safe_value, function(unsafe), function(safe_value), 0.5
    if f_a <= 0 or f_b > 0:  # no change of sign: the end nearest to one
        return a if f_a <= 0 else b
    while abs(b - a) > 4 * _EPS * min(abs(a), abs(b)) and math.nextafter(a, b) != b:
        min_step = min(0.5, 2 * _EPS * min(abs(a), abs(b)) / abs(b - a))
        x = a + min(max(share, min_step), 1 - min_step) * (b - a)
        f_x = function(x)
        c, f_c, b, f_b = (a, f_a, b, f_b) if (f_x > 0) == (f_a > 0) else (b, f_b, a, f_a)
        a, f_a = x, f_x
        # Inverse quadratic interpolation if it is monotone between the three points, else bisection.
        ratio_f, ratio_x, share = (f_a - f_b) / (f_c - f_b), (a - b) / (c - b), 0.5
        if ratio_f * ratio_f < ratio_x and (1 - ratio_f) * (1 - ratio_f) < 1 - ratio_x:
            share = f_a / (f_b - f_a) * f_c / (f_b - f_c)
            share += (c - a) / (b - a) * f_a / (f_c - f_a) * f_b / (f_c - f_b)
    return b if f_b <= 0 else a
