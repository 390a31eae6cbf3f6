"""Optimal noise and weights to hundreds of digits, and recognition of numbers with square roots from digits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech.crosscheck.optima import surds
from dualmech.crosscheck.optima.rationals import FractionProblem
from dualmech.crosscheck.optima.surds import Surd, square_root
from dualmech.validate import Array

# Optimal noise and weights to hundreds of digits, by Newton's method on the optimality conditions in integers.
#
# The unknowns are Σ, in coordinates of the span of the neighbours' differences, the positive weights λ and μ, and t.
# The conditions are ``Σ Q Σ = t P`` with ``P = Σ λ_i u_i u_i'`` and ``Q = Σ μ_j v_j v_j'``, equality of the variances
# and costs with positive weights, and ``Σ λ_i = 1``. t is the inverse of the optimum of fitness for use, or the optimum
# of total variance. If there are many optima, the undetermined unknowns are set to simple fractions.


BITS = 1024
"""Binary digits of numbers after the point."""

GUARD_BITS = 96
"""Binary digits that can be wrong: the conditions hold to ``BITS - GUARD_BITS`` digits."""

SUPPORT_TOLS = (1e-3, 1e-5, 1e-7)
"""Tried thresholds for positive weights (of queries: times their targets), relative to the largest."""

PIN_DISTANCES = (1e-2, 1e-4)
"""Maximum relative distance of simple fractions from the undetermined unknowns."""

MAX_STEPS = 60
FREEZE_TOL = 1e-12  # relative residual below which the derivative is not updated
RANK_TOL = 1e-7  # singular values of the derivative up to this, relative to the largest, count as 0
UNIT = 1 << BITS  # the number 1

Units = Any
"""Numbers as integers in units of ``2**-BITS``, in an array of Python's integers."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Σ, λ and μ in units of ``2**-BITS``; μ is None for total variance, whose weights are given."""

    covariance: Units  # (r, r)
    neighbour_weights: Units  # (s,)
    query_weights: Units | None  # (m,)


def solutions(problem: FractionProblem, sigma: Array, lam: Array, mu: Array) -> Iterator[Digits]:
    """Yield optima to hundreds of digits near an optimum in doubles: the unique one, or a few simple ones.

    Parameters
    ----------
    sigma : (r, r) array
        Σ in coordinates of the span of the neighbours' differences.
    lam, mu : (s,) and (m,) arrays
        Weights; for total variance, μ are its weights.
    """
    tried: set[tuple[int, ...]] = set()
    bill = mu * [float(number) for number in problem.limits or problem.weights]
    for tol in SUPPORT_TOLS:
        support = np.flatnonzero(lam > tol * lam.max()), np.flatnonzero(bill > tol * bill.max())
        if (key := (*support[0], -1, *support[1])) in tried:
            continue
        tried.add(key)
        conditions = _Conditions(problem, *support)
        start = conditions.start(sigma, lam, mu)
        approximation = None if start is None else _newton(conditions, start, {}, BITS - 40)
        if approximation is None:
            continue
        undetermined = conditions.undetermined(approximation)
        for distance in PIN_DISTANCES if undetermined else PIN_DISTANCES[:1]:
            pins = conditions.simple_values(approximation, undetermined, distance)
            exact = _newton(conditions, conditions.with_values(approximation, pins), pins, GUARD_BITS)
            if exact is not None:
                yield conditions.digits(exact)


class _Conditions:
    """The conditions of an optimum with positive weights on given neighbours and queries."""

    def __init__(self, problem: FractionProblem, neighbours: Any, queries: Any) -> None:
        self.problem, self.of_variance = problem, problem.limits is None
        self.size, self.neighbours = len(problem.moves), neighbours
        self.weighted = queries[:0] if self.of_variance else queries  # queries with unknown weights
        self.upper = np.triu_indices(self.size)
        self.moves = _units(problem.moves.T)[neighbours]
        self.rows = _units(problem.queries)
        self.limits = _units([problem.weights if problem.limits is None else problem.limits])[0]
        self.count = len(self.upper[0]) + len(self.neighbours) + len(self.weighted) + 1

    def start(self, sigma: Array, lam: Array, mu: Array) -> Units | None:
        """Return the unknowns in units, from doubles; None if Σ is singular."""
        moves, rows = _doubles(self.moves), _doubles(self.rows)
        variances = np.einsum("jk,kl,jl->j", rows, sigma, rows)
        if not self.of_variance:
            sigma = sigma / (variances / _doubles(self.limits)).max()
        try:
            costs = np.einsum("ik,ki->i", moves, np.linalg.solve(sigma, moves.T))
        except np.linalg.LinAlgError:
            return None
        t = _doubles(self.limits) @ variances if self.of_variance else 1 / costs.max()
        shares, user_weights = lam[self.neighbours], mu[self.weighted]
        weights = shares / shares.sum(), user_weights / max(user_weights @ _doubles(self.limits[self.weighted]), 1e-300)
        return _from_doubles(np.concatenate([sigma[self.upper], *weights, [t]]))

    def parts(self, unknowns: Units) -> tuple[Units, Units, Units, Units]:
        """Return Σ, λ, μ of the queries with unknown weights, and t."""
        ends = np.cumsum([len(self.upper[0]), len(self.neighbours), len(self.weighted)])
        entries, lam, mu, (t,) = np.split(unknowns, ends)
        sigma = np.zeros((self.size, self.size), dtype=unknowns.dtype)
        sigma[self.upper] = entries
        sigma.T[self.upper] = entries
        return sigma, lam, mu, t

    def residual(self, unknowns: Units) -> Units | None:
        sigma, lam, mu, t = self.parts(unknowns)
        inverse = _inverse(sigma)
        if inverse is None:
            return None
        rows, weights = (self.rows, self.limits) if self.of_variance else (self.rows[self.weighted], mu)
        p = _product(self.moves.T * lam >> BITS, self.moves)
        q = _product(rows.T * weights >> BITS, rows)
        balance = _product(_product(sigma, q), sigma) - (t * p >> BITS)
        costs = (_product(self.moves, inverse) * self.moves).sum(axis=1) >> BITS
        costs = costs if self.of_variance else t * costs >> BITS
        weighted_rows = self.rows[self.weighted]
        variances = (_product(weighted_rows, sigma) * weighted_rows).sum(axis=1) >> BITS
        return np.concatenate(
            [balance[self.upper], costs - UNIT, variances - self.limits[self.weighted], [lam.sum() - UNIT]]
        )

    def derivative(self, unknowns: Units) -> Array:
        sigma, lam, mu, t = self.parts(_doubles(unknowns))
        moves, weighted_rows = _doubles(self.moves), _doubles(self.rows[self.weighted])
        rows, weights = (_doubles(self.rows), _doubles(self.limits)) if self.of_variance else (weighted_rows, mu)
        inverse, p, q = np.linalg.inv(sigma), (moves.T * lam) @ moves, (rows.T * weights) @ rows
        columns, dual, level = [], moves @ inverse, 1.0 if self.of_variance else t
        for a, b in zip(*self.upper, strict=True):
            change = np.zeros((self.size, self.size))
            change[a, b] = change[b, a] = 1.0
            half = change @ q @ sigma
            cost = -level * np.einsum("ik,kl,il->i", dual, change, dual)
            variance = np.einsum("jk,kl,jl->j", weighted_rows, change, weighted_rows)
            columns.append(np.concatenate([(half + half.T)[self.upper], cost, variance, [0.0]]))
        zeros = np.zeros(len(self.neighbours) + len(weighted_rows))
        for row in moves:
            columns.append(np.concatenate([-t * np.outer(row, row)[self.upper], zeros, [1.0]]))
        for row in weighted_rows @ sigma:
            columns.append(np.concatenate([np.outer(row, row)[self.upper], zeros, [0.0]]))
        costs = 0.0 * lam if self.of_variance else (dual * moves).sum(axis=1)
        columns.append(np.concatenate([-p[self.upper], costs, np.zeros(len(weighted_rows)), [0.0]]))
        return np.transpose(columns)

    def sizes(self, unknowns: Units) -> tuple[Array, Array]:
        """Return the scales of the conditions and of the unknowns, since ``t P`` is at most Σ, or t Σ."""
        sigma, _, _, t = self.parts(_doubles(unknowns))
        entries = np.sqrt(np.abs(np.outer(np.diag(sigma), np.diag(sigma))))[self.upper]
        limits, ones = _doubles(self.limits[self.weighted]), np.ones(len(self.neighbours))
        balance = entries * (t if self.of_variance else 1.0)
        return np.concatenate([balance, ones, limits, [1.0]]), np.concatenate([entries, ones, 1 / limits, [t]])

    def undetermined(self, unknowns: Units) -> list[int]:
        """Return indices of unknowns that parametrise the null space of the derivative, by pivoting."""
        rows, columns = self.sizes(unknowns)
        _, values, directions = np.linalg.svd(self.derivative(unknowns) / rows[:, None] * columns)
        null_space = directions[values <= RANK_TOL * values[0]].T * columns[:, None]
        pivots: list[int] = []
        for _ in range(null_space.shape[1]):
            lengths = np.linalg.norm(null_space, axis=1)
            pivots.append(int(lengths.argmax()))
            row = null_space[pivots[-1]] / lengths.max()
            null_space = null_space - np.outer(null_space @ row, row)
        return pivots

    def simple_values(self, unknowns: Units, places: list[int], distance: float) -> dict[int, int]:
        _, sizes = self.sizes(unknowns)
        numbers = [Fraction(int(unknowns[place]), UNIT) for place in places]
        values = [surds.simplest_near(a, Fraction(distance * sizes[b])) for a, b in zip(numbers, places, strict=True)]
        return {place: int(value * UNIT) for place, value in zip(places, values, strict=True)}

    def with_values(self, unknowns: Units, pins: dict[int, int]) -> Units:
        """Return the unknowns with some values replaced; unchanged if Σ would not be positive definite."""
        updated = unknowns.copy()
        for place, value in pins.items():
            updated[place] = value
        sigma = _doubles(self.parts(updated)[0])
        return updated if np.linalg.eigvalsh(sigma)[0] > 0 else unknowns

    def digits(self, unknowns: Units) -> Digits:
        sigma, lam, mu, _ = self.parts(unknowns)
        neighbours = np.zeros(len(self.problem.moves[0]), dtype=object)
        neighbours[self.neighbours] = lam
        queries = np.zeros(len(self.rows), dtype=object)
        queries[self.weighted] = mu
        return Digits(sigma, neighbours, None if self.of_variance else queries)


def _newton(conditions: _Conditions, unknowns: Units, pins: dict[int, int], guard: int) -> Units | None:
    """Return unknowns, with fixed `pins`, that meet the conditions except for the last `guard` digits; or None."""
    places, last = [*pins], np.inf
    pin_rows = np.zeros((len(places), conditions.count))
    pin_rows[np.arange(len(places)), places] = 1.0
    for step in range(MAX_STEPS):
        residual = conditions.residual(unknowns)
        if residual is None:
            return None
        rows, columns = conditions.sizes(unknowns)
        rows = np.concatenate([rows, columns[places]])
        residual = np.concatenate([residual, [unknowns[place] - pins[place] for place in places]])
        scaled = _doubles(residual) / rows
        largest = np.abs(scaled).max()
        if largest <= 2.0 ** (guard - BITS):
            return unknowns
        if not np.isfinite(largest) or (step > 10 and largest > last):
            return None
        if last > FREEZE_TOL:
            slopes = np.vstack([conditions.derivative(unknowns), pin_rows]) / rows[:, None] * columns
            inverse = np.linalg.pinv(slopes, rcond=RANK_TOL)
        last = largest
        change = inverse @ (scaled / largest)
        unknowns = unknowns - _from_doubles(columns * change * largest)
    return None


def _inverse(matrix: Units) -> Units | None:
    """Invert a matrix in units, by Newton's method from the inverse in doubles; None if it fails."""
    try:
        inverse = _from_doubles(np.linalg.inv(_doubles(matrix)))
    except (np.linalg.LinAlgError, OverflowError):
        return None
    identity = np.array([[UNIT * (i == j) for j in range(len(matrix))] for i in range(len(matrix))], dtype=object)
    for _ in range(12):
        defect = identity - _product(matrix, inverse)
        if np.abs(defect).max() > UNIT >> 3:
            return None
        inverse = inverse + _product(inverse, defect)
        if np.abs(defect).max() <= UNIT >> (BITS // 2 + 8):
            return inverse
    return inverse


def _product(left: Units, right: Units) -> Units:
    return left @ right >> BITS


def _units(rows: Units) -> Units:
    """Return fractions in units, rounded down."""
    return np.array([[number.numerator * UNIT // number.denominator for number in row] for row in rows], dtype=object)


def _doubles(units: Units) -> Array:
    numbers = np.asarray(units)
    return np.array([int(unit) / UNIT for unit in numbers.ravel()], dtype=float).reshape(numbers.shape)


def _from_doubles(values: npt.ArrayLike) -> Units:
    flat = [
        0 if value != value else int(Fraction(value) * UNIT) for value in np.asarray(values, float).ravel().tolist()
    ]
    return np.array([*flat, None], dtype=object)[:-1].reshape(np.shape(values))


RELATION_BITS = (128, 256, 480, 800)
"""Tried numbers of binary digits for relations; a relation is then checked with all digits."""

MAX_DEGREE = 8
"""Of a field: the degree with three independent square roots."""

MAX_DEFERRED = 8
"""Numbers of degree above 4, for which the field must be known from other numbers."""


def recognised(values: Sequence[int]) -> list[Surd] | None:
    """Return numbers in one field of square roots with these digits; None if there is no such field.

    Parameters
    ----------
    values : integers
        Numbers in units of ``2**-BITS``; their last `GUARD_BITS` binary digits can be wrong.
    """
    field, surds, deferred = [1], dict[int, Surd](), list[int]()
    for value in sorted({*values}, key=abs):
        number = expressed(value, field)
        if number is None:
            field = _joined(field, _new_radicals(value))
            number = expressed(value, field)
        if number is not None:
            surds[value] = number
            continue
        deferred.append(value)
        if len(deferred) > MAX_DEFERRED:
            return None
    for value in deferred:
        number = expressed(value, field) if len(field) > 4 else None
        if number is None:
            return None
        surds[value] = number
    return [surds[value] for value in values]


def expressed(value: int, field: Sequence[int]) -> Surd | None:
    """Return the number with the digits `value` in a field, which is given by its radicands; None if there is none."""
    coefficients = relation([value, *(math.isqrt(root << 2 * BITS) for root in field)])
    if coefficients is None or not coefficients[0]:
        return None
    return Surd({root: Fraction(-a, coefficients[0]) for root, a in zip(field, coefficients[1:], strict=True)})


def relation(values: Sequence[int]) -> list[int] | None:
    """Return small integers, not all 0, whose products with the values add up to 0; None if there are none.

    >>> relation([3 * UNIT + 3, 2 * UNIT])
    [-2, 3]
    """
    for bits in RELATION_BITS:
        rows = [[*(int(i == j) for j in range(len(values))), value >> BITS - bits] for i, value in enumerate(values)]
        coefficients = reduced(rows)[0][:-1]
        error = abs(sum(a * value for a, value in zip(coefficients, values, strict=True)))
        if any(coefficients) and error <= sum(map(abs, coefficients)) << GUARD_BITS + 32:
            return coefficients
    return None


def reduced(rows: list[list[int]]) -> list[list[int]]:
    """Return a reduced basis of the lattice of independent rows, with a short first vector.

    The algorithm of Lenstra, Lenstra and Lovász in integers: Cohen, "A course in computational algebraic number
    theory", 2.6.7.

    >>> reduced([[1, 0, 5], [0, 1, 3]])
    [[-1, 1, -2], [-1, 2, 1]]
    """
    lattice = _Lattice(rows)
    place = 1
    while place < len(rows):
        lattice.orthogonalise(place)
        lattice.shorten(place, place - 1)
        if lattice.out_of_order(place):
            lattice.swap(place)
            place = max(place - 1, 1)
            continue
        for other in range(place - 2, -1, -1):
            lattice.shorten(place, other)
        place += 1
    return lattice.rows


class _Lattice:
    """Rows with their Gram-Schmidt coefficients, scaled to integers; d_i are minors of their Gram matrix."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows, self.last_computed = [list(row) for row in rows], 0
        self.minors = [1, _dot(rows[0], rows[0])] + [0] * (len(rows) - 1)  # d_0, d_1, …
        self.inner = [[0] * len(rows) for _ in rows]

    def orthogonalise(self, place: int) -> None:
        """Compute the coefficients of a row, once."""
        if place <= self.last_computed:
            return
        self.last_computed = place
        for other in range(place + 1):
            value = _dot(self.rows[place], self.rows[other])
            for i in range(other):
                value = self.minors[i + 1] * value - self.inner[place][i] * self.inner[other][i]
                value //= self.minors[i]
            if other < place:
                self.inner[place][other] = value
            else:
                self.minors[place + 1] = value

    def shorten(self, place: int, other: int) -> None:
        """Subtract the multiple of another row that minimises the coefficient."""
        minor = self.minors[other + 1]
        times = (2 * self.inner[place][other] + minor) // (2 * minor)
        if not times:
            return
        self.rows[place] = [a - times * b for a, b in zip(self.rows[place], self.rows[other], strict=True)]
        self.inner[place][other] -= times * minor
        for i in range(other):
            self.inner[place][i] -= times * self.inner[other][i]

    def out_of_order(self, place: int) -> bool:
        """Return whether a row violates Lovász's condition with the previous row."""
        before, minor, after = self.minors[place - 1 : place + 2]
        return 4 * (after * before + self.inner[place][place - 1] ** 2) < 3 * minor**2

    def swap(self, place: int) -> None:
        """Exchange a row with the previous row."""
        rows, inner, minors = self.rows, self.inner, self.minors
        rows[place], rows[place - 1] = rows[place - 1], rows[place]
        for i in range(place - 1):
            inner[place][i], inner[place - 1][i] = inner[place - 1][i], inner[place][i]
        shared = inner[place][place - 1]
        changed = (minors[place - 1] * minors[place + 1] + shared**2) // minors[place]
        for i in range(place + 1, self.last_computed + 1):
            entry = inner[i][place]
            inner[i][place] = (minors[place + 1] * inner[i][place - 1] - shared * entry) // minors[place]
            inner[i][place - 1] = (changed * entry + shared * inner[i][place]) // minors[place + 1]
        minors[place] = changed


def _dot(left: list[int], right: list[int]) -> int:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _joined(field: list[int], radicals: list[int]) -> list[int]:
    """Return the radicands of a field extended by further square roots, up to the maximum degree."""
    for radical in radicals:
        if radical in field:
            continue
        if 2 * len(field) > MAX_DEGREE:
            break
        field = field + [root * radical // math.gcd(root, radical) ** 2 for root in field]
    return field


def _new_radicals(value: int) -> list[int]:
    """Return the radicands of a number of degree 2 or 4; empty for other numbers."""
    powers = [UNIT]
    for degree in (1, 2, 3, 4):
        powers.append(powers[-1] * value >> BITS)
        coefficients = relation(powers) if degree in (2, 4) else None
        if coefficients is not None and coefficients[-1]:
            squares = [Fraction(number) for number in coefficients]
            candidates = _of_quadratic(*squares) if degree == 2 else _of_quartic(squares)
            roots = [square_root(candidate) for candidate in candidates if candidate > 0]
            return [radical for root in roots if root is not None for radical in root.radicals]
    return []


def _of_quadratic(c: Fraction, b: Fraction, a: Fraction) -> list[Fraction]:
    """Return the discriminant of ``a x² + b x + c``."""
    return [b * b - 4 * a * c]


def _of_quartic(coefficients: list[Fraction]) -> list[Fraction]:
    """Return the rational roots of the resolvent of a quartic, by ascending powers.

    If the quartic has the roots ``f + q √a + r √b + s √(ab)`` with all signs, these are 4 q² a, 4 r² b and 4 s² a b.
    """
    e, d, c, b = (coefficient / coefficients[-1] for coefficient in coefficients[:-1])
    p, q = c - 3 * b * b / 8, b**3 / 8 - b * c / 2 + d
    r = -3 * b**4 / 256 + b * b * c / 16 - b * d / 4 + e
    return _rational_roots([-q * q, p * p - 4 * r, 2 * p, Fraction(1)])


def _rational_roots(cubic: list[Fraction]) -> list[Fraction]:
    """Return the rational roots of a cubic with leading coefficient 1, by ascending powers."""
    denominator = math.lcm(*(coefficient.denominator for coefficient in cubic))
    size = max(float(abs(coefficient)) ** (1 / (3 - power)) for power, coefficient in enumerate(cubic[:3])) or 1.0
    scaled = [float(coefficient) / size ** (3 - power) for power, coefficient in enumerate(cubic)]
    roots = set[Fraction]()
    for approximation in np.roots(scaled[::-1]).real:
        value = Fraction(float(approximation) * size)
        for _ in range(8):
            slope = _value([power * coefficient for power, coefficient in enumerate(cubic)][1:], value)
            if not slope:
                break
            value = Fraction(round((value - _value(cubic, value) / slope) * UNIT), UNIT)
        value = Fraction(round(value * denominator), denominator)
        if _value(cubic, value) == 0:
            roots.add(value)
    return sorted(roots)


def _value(coefficients: list[Fraction], at: Fraction) -> Fraction:
    value = Fraction(0)
    for coefficient in reversed(coefficients):
        value = value * at + coefficient
    return value
