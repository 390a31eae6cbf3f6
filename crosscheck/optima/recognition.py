"""Optimal noise and weights to hundreds of digits, and the numbers with square roots that such digits are."""

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

# Optimal noise and weights to hundreds of digits: Newton steps on the conditions of optimality, in whole numbers.
#
# The unknowns are Σ, in coordinates of the space that neighbours move, the positive weights λ and μ, and t. The
# conditions are ``Σ Q Σ = t P`` with ``P = Σ λ_i u_i u_i'`` and ``Q = Σ μ_j v_j v_j'``, equality of the variances and
# costs that carry weight, and ``Σ λ_i = 1``; t is one over the optimum of fitness for use, and the optimum of total
# variance. Where there are many optima there are many solutions: the free unknowns are then set to simple fractions.


BITS = 1024
"""Binary digits after the point of the numbers found."""

GUARD = 96
"""Binary digits that may be lost on the way: the conditions hold to ``BITS - GUARD`` of them."""

SUPPORTS = (1e-3, 1e-5, 1e-7)
"""Weights, of queries times their targets, count as positive above one of these shares of the largest."""

PINNED = (1e-2, 1e-4)
"""Largest distance of the fractions to which free unknowns are set."""

MOST_STEPS = 60
NEAR = 1e-12  # residual, relative, at which a derivative in doubles is that at the solution
RANK = 1e-7  # singular values of the conditions' derivative, over the largest, up to which they count as 0
ONE = 1 << BITS

Units = Any
"""Whole numbers of units of ``2**-BITS``, in an array of Python's integers, which have no largest."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Σ, λ and μ in units of ``2**-BITS``; μ is None of total variance, where it is given."""

    covariance: Units  # (r, r)
    neighbour_weights: Units  # (s,)
    query_weights: Units | None  # (m,)


def solutions(problem: FractionProblem, sigma: Array, lam: Array, mu: Array) -> Iterator[Digits]:
    """Yield optima to hundreds of digits near one in doubles: one where it is unique, else a few simple ones.

    Parameters
    ----------
    sigma : (r, r) array
        Σ in coordinates of the space that neighbours move.
    lam, mu : (s,) and (m,) arrays
        Weights; for total variance μ stands for its weights.
    """
    tried: set[tuple[int, ...]] = set()
    bill = mu * [float(number) for number in problem.limits or problem.weights]
    for share in SUPPORTS:
        seen = np.flatnonzero(lam > share * lam.max()), np.flatnonzero(bill > share * bill.max())
        if (key := (*seen[0], -1, *seen[1])) in tried:
            continue
        tried.add(key)
        conditions = _Conditions(problem, *seen)
        near = conditions.near(sigma, lam, mu)
        rough = None if near is None else _newton(conditions, near, {}, BITS - 40)
        if rough is None:
            continue
        free = conditions.free(rough)
        for within in PINNED if free else PINNED[:1]:
            pins = conditions.pinned(rough, free, within)
            exact = _newton(conditions, conditions.moved(rough, pins), pins, GUARD)
            if exact is not None:
                yield conditions.digits(exact)


class _Conditions:
    """The conditions of an optimum at which given neighbours and queries carry weight."""

    def __init__(self, problem: FractionProblem, neighbours: Any, queries: Any) -> None:
        self.asked, self.of_variance = problem, problem.limits is None
        self.size, self.neighbours = len(problem.moves), neighbours
        self.seen = queries[:0] if self.of_variance else queries  # those whose weights are unknown
        self.upper = np.triu_indices(self.size)
        self.moves = _units(problem.moves.T)[neighbours]
        self.rows = _units(problem.queries)
        self.limits = _units([problem.weights if problem.limits is None else problem.limits])[0]
        self.count = len(self.upper[0]) + len(self.neighbours) + len(self.seen) + 1

    def near(self, sigma: Array, lam: Array, mu: Array) -> Units | None:
        """Return the unknowns in units, from doubles; None where they are no noise."""
        moves, rows = _doubles(self.moves), _doubles(self.rows)
        variances = np.einsum("jk,kl,jl->j", rows, sigma, rows)
        if not self.of_variance:
            sigma = sigma / (variances / _doubles(self.limits)).max()
        try:
            costs = np.einsum("ik,ki->i", moves, np.linalg.solve(sigma, moves.T))
        except np.linalg.LinAlgError:
            return None
        t = _doubles(self.limits) @ variances if self.of_variance else 1 / costs.max()
        shares, user_weights = lam[self.neighbours], mu[self.seen]
        weights = shares / shares.sum(), user_weights / max(user_weights @ _doubles(self.limits[self.seen]), 1e-300)
        return _from_doubles(np.concatenate([sigma[self.upper], *weights, [t]]))

    def parts(self, unknowns: Units) -> tuple[Units, Units, Units, Units]:
        """Return Σ, λ, μ of the queries that carry weight, and t."""
        ends = np.cumsum([len(self.upper[0]), len(self.neighbours), len(self.seen)])
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
        rows, weights = (self.rows, self.limits) if self.of_variance else (self.rows[self.seen], mu)
        p = _product(self.moves.T * lam >> BITS, self.moves)
        q = _product(rows.T * weights >> BITS, rows)
        balance = _product(_product(sigma, q), sigma) - (t * p >> BITS)
        costs = (_product(self.moves, inverse) * self.moves).sum(axis=1) >> BITS
        costs = costs if self.of_variance else t * costs >> BITS
        seen_rows = self.rows[self.seen]
        variances = (_product(seen_rows, sigma) * seen_rows).sum(axis=1) >> BITS
        return np.concatenate([balance[self.upper], costs - ONE, variances - self.limits[self.seen], [lam.sum() - ONE]])

    def derivative(self, unknowns: Units) -> Array:
        sigma, lam, mu, t = self.parts(_doubles(unknowns))
        moves, seen_rows = _doubles(self.moves), _doubles(self.rows[self.seen])
        rows, weights = (_doubles(self.rows), _doubles(self.limits)) if self.of_variance else (seen_rows, mu)
        inverse, p, q = np.linalg.inv(sigma), (moves.T * lam) @ moves, (rows.T * weights) @ rows
        columns, dual, level = [], moves @ inverse, 1.0 if self.of_variance else t
        for a, b in zip(*self.upper, strict=True):
            change = np.zeros((self.size, self.size))
            change[a, b] = change[b, a] = 1.0
            half = change @ q @ sigma
            cost = -level * np.einsum("ik,kl,il->i", dual, change, dual)
            variance = np.einsum("jk,kl,jl->j", seen_rows, change, seen_rows)
            columns.append(np.concatenate([(half + half.T)[self.upper], cost, variance, [0.0]]))
        none = np.zeros(len(self.neighbours) + len(seen_rows))
        for row in moves:
            columns.append(np.concatenate([-t * np.outer(row, row)[self.upper], none, [1.0]]))
        for row in seen_rows @ sigma:
            columns.append(np.concatenate([np.outer(row, row)[self.upper], none, [0.0]]))
        costs = 0.0 * lam if self.of_variance else (dual * moves).sum(axis=1)
        columns.append(np.concatenate([-p[self.upper], costs, np.zeros(len(seen_rows)), [0.0]]))
        return np.transpose(columns)

    def sizes(self, unknowns: Units) -> tuple[Array, Array]:
        """Return how large the conditions' two sides, and the unknowns, may be: ``t P`` is at most Σ, or t Σ."""
        sigma, _, _, t = self.parts(_doubles(unknowns))
        entries = np.sqrt(np.abs(np.outer(np.diag(sigma), np.diag(sigma))))[self.upper]
        limits, ones = _doubles(self.limits[self.seen]), np.ones(len(self.neighbours))
        balance = entries * (t if self.of_variance else 1.0)
        return np.concatenate([balance, ones, limits, [1.0]]), np.concatenate([entries, ones, 1 / limits, [t]])

    def free(self, unknowns: Units) -> list[int]:
        """Return as many unknowns as the conditions leave free, those that they leave free most."""
        rows, columns = self.sizes(unknowns)
        _, values, directions = np.linalg.svd(self.derivative(unknowns) / rows[:, None] * columns)
        open_ = directions[values <= RANK * values[0]].T * columns[:, None]
        chosen: list[int] = []
        for _ in range(open_.shape[1]):
            lengths = np.linalg.norm(open_, axis=1)
            chosen.append(int(lengths.argmax()))
            row = open_[chosen[-1]] / lengths.max()
            open_ = open_ - np.outer(open_ @ row, row)
        return chosen

    def pinned(self, unknowns: Units, free: list[int], within: float) -> dict[int, int]:
        _, sizes = self.sizes(unknowns)
        near = [Fraction(int(unknowns[place]), ONE) for place in free]
        values = [surds.simplest_near(a, Fraction(within * sizes[b])) for a, b in zip(near, free, strict=True)]
        return {place: int(value * ONE) for place, value in zip(free, values, strict=True)}

    def moved(self, unknowns: Units, pins: dict[int, int]) -> Units:
        """Return the unknowns with some of them set, Σ as it was where it would not be one."""
        updated = unknowns.copy()
        for place, value in pins.items():
            updated[place] = value
        sigma = _doubles(self.parts(updated)[0])
        return updated if np.linalg.eigvalsh(sigma)[0] > 0 else unknowns

    def digits(self, unknowns: Units) -> Digits:
        sigma, lam, mu, _ = self.parts(unknowns)
        every = np.zeros(len(self.asked.moves[0]), dtype=object)
        every[self.neighbours] = lam
        queries = np.zeros(len(self.rows), dtype=object)
        queries[self.seen] = mu
        return Digits(sigma, every, None if self.of_variance else queries)


def _newton(conditions: _Conditions, unknowns: Units, pins: dict[int, int], guard: int) -> Units | None:
    """Return unknowns that meet the conditions but for the last `guard` binary digits, with some set; or None."""
    places, last = [*pins], np.inf
    chosen = np.zeros((len(places), conditions.count))
    chosen[np.arange(len(places)), places] = 1.0
    for step in range(MOST_STEPS):
        lacking = conditions.residual(unknowns)
        if lacking is None:
            return None
        rows, columns = conditions.sizes(unknowns)
        rows = np.concatenate([rows, columns[places]])
        lacking = np.concatenate([lacking, [unknowns[place] - pins[place] for place in places]])
        off = _doubles(lacking) / rows
        largest = np.abs(off).max()
        if largest <= 2.0 ** (guard - BITS):
            return unknowns
        if not np.isfinite(largest) or (step > 10 and largest > last):
            return None
        if last > NEAR:  # at a point so near, the derivative is what it was
            slopes = np.vstack([conditions.derivative(unknowns), chosen]) / rows[:, None] * columns
            inverse = np.linalg.pinv(slopes, rcond=RANK)
        last = largest
        change = inverse @ (off / largest)
        unknowns = unknowns - _from_doubles(columns * change * largest)
    return None


def _inverse(matrix: Units) -> Units | None:
    """Invert a matrix in units: each step doubles the digits of an inverse in doubles."""
    try:
        inverse = _from_doubles(np.linalg.inv(_doubles(matrix)))
    except (np.linalg.LinAlgError, OverflowError):
        return None
    identity = np.array([[ONE * (i == j) for j in range(len(matrix))] for i in range(len(matrix))], dtype=object)
    for _ in range(12):
        left = identity - _product(matrix, inverse)
        if np.abs(left).max() > ONE >> 3:
            return None
        inverse = inverse + _product(inverse, left)
        if np.abs(left).max() <= ONE >> (BITS // 2 + 8):
            return inverse
    return inverse


def _product(left: Units, right: Units) -> Units:
    return left @ right >> BITS


def _units(rows: Units) -> Units:
    """Return fractions in units, rounded down."""
    return np.array([[number.numerator * ONE // number.denominator for number in row] for row in rows], dtype=object)


def _doubles(units: Units) -> Array:
    numbers = np.asarray(units)
    return np.array([int(unit) / ONE for unit in numbers.ravel()], dtype=float).reshape(numbers.shape)


def _from_doubles(values: npt.ArrayLike) -> Units:
    flat = [0 if value != value else int(Fraction(value) * ONE) for value in np.asarray(values, float).ravel().tolist()]
    return np.array([*flat, None], dtype=object)[:-1].reshape(np.shape(values))


SEARCHED = (128, 256, 480, 800)
"""Binary digits from which relations are sought, one after the other; they are held against all digits."""

MOST_ROOTS = 8
"""Largest degree of a field: three independent square roots have it."""

MOST_MISSED = 8
"""Most numbers that may be of a larger degree than 4, at which no field is found from one alone."""


def recognised(values: Sequence[int]) -> list[Surd] | None:
    """Return the numbers of one field of square roots that values are digits of, None where there is none.

    Parameters
    ----------
    values : whole numbers
        In units of ``2**-BITS``, of which `GUARD` binary digits may be wrong.
    """
    field, surds, missed = [1], dict[int, Surd](), list[int]()
    for value in sorted({*values}, key=abs):
        number = expressed(value, field)
        if number is None:
            field = _joined(field, _new_radicals(value))
            number = expressed(value, field)
        if number is not None:
            surds[value] = number
            continue
        missed.append(value)
        if len(missed) > MOST_MISSED:
            return None
    for value in missed:  # of a degree that is found only once the field is known
        number = expressed(value, field) if len(field) > 4 else None
        if number is None:
            return None
        surds[value] = number
    return [surds[value] for value in values]


def expressed(value: int, field: Sequence[int]) -> Surd | None:
    """Return the number of a field, given by the numbers under its roots, whose digits a value is."""
    coefficients = relation([value, *(math.isqrt(root << 2 * BITS) for root in field)])
    if coefficients is None or not coefficients[0]:
        return None
    return Surd({root: Fraction(-a, coefficients[0]) for root, a in zip(field, coefficients[1:], strict=True)})


def relation(values: Sequence[int]) -> list[int] | None:
    """Return small whole numbers, not all 0, whose products with the values add up to 0; None where there are none.

    >>> relation([3 * ONE + 3, 2 * ONE])
    [-2, 3]
    """
    for bits in SEARCHED:
        rows = [[*(int(i == j) for j in range(len(values))), value >> BITS - bits] for i, value in enumerate(values)]
        shortest = reduced(rows)[0][:-1]
        off = abs(sum(a * value for a, value in zip(shortest, values, strict=True)))
        if any(shortest) and off <= sum(map(abs, shortest)) << GUARD + 32:
            return shortest
    return None


def reduced(rows: list[list[int]]) -> list[list[int]]:
    """Return a reduced basis of the lattice of independent rows, a short vector first.

    The algorithm of Lenstra, Lenstra and Lovász in whole numbers: Cohen, "A course in computational algebraic number
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
    """Rows with their Gram-Schmidt coefficients, scaled to whole numbers; d_i are minors of their Gram matrix."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows, self.known = [list(row) for row in rows], 0
        self.minors = [1, _dot(rows[0], rows[0])] + [0] * (len(rows) - 1)  # d_0, d_1, …
        self.inner = [[0] * len(rows) for _ in rows]

    def orthogonalise(self, place: int) -> None:
        """Compute the coefficients of a row that is reached for the first time."""
        if place <= self.known:
            return
        self.known = place
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
        """Subtract the multiple of another row that leaves the least along it."""
        below = self.minors[other + 1]
        times = (2 * self.inner[place][other] + below) // (2 * below)
        if not times:
            return
        self.rows[place] = [a - times * b for a, b in zip(self.rows[place], self.rows[other], strict=True)]
        self.inner[place][other] -= times * below
        for i in range(other):
            self.inner[place][i] -= times * self.inner[other][i]

    def out_of_order(self, place: int) -> bool:
        """Whether a row is so much shorter than the one before, off the rows before both, that they change places."""
        before, minor, after = self.minors[place - 1 : place + 2]
        return 4 * (after * before + self.inner[place][place - 1] ** 2) < 3 * minor**2

    def swap(self, place: int) -> None:
        """Let a row and the one before it change places."""
        rows, inner, minors = self.rows, self.inner, self.minors
        rows[place], rows[place - 1] = rows[place - 1], rows[place]
        for i in range(place - 1):
            inner[place][i], inner[place - 1][i] = inner[place - 1][i], inner[place][i]
        shared = inner[place][place - 1]
        changed = (minors[place - 1] * minors[place + 1] + shared**2) // minors[place]
        for i in range(place + 1, self.known + 1):
            entry = inner[i][place]
            inner[i][place] = (minors[place + 1] * inner[i][place - 1] - shared * entry) // minors[place]
            inner[i][place - 1] = (changed * entry + shared * inner[i][place]) // minors[place + 1]
        minors[place] = changed


def _dot(left: list[int], right: list[int]) -> int:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _joined(field: list[int], radicals: list[int]) -> list[int]:
    """Return the numbers under the roots of a field with further square roots, up to the largest degree."""
    for radical in radicals:
        if radical in field:
            continue
        if 2 * len(field) > MOST_ROOTS:
            break
        field = field + [root * radical // math.gcd(root, radical) ** 2 for root in field]
    return field


def _new_radicals(value: int) -> list[int]:
    """Return the numbers under the square roots of a number of degree 2 or 4, none where it is no such number."""
    powers = [ONE]
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

    Where its roots are ``f + q √a + r √b + s √(ab)`` with all signs, those are 4 q² a, 4 r² b and 4 s² a b.
    """
    e, d, c, b = (coefficient / coefficients[-1] for coefficient in coefficients[:-1])
    p, q = c - 3 * b * b / 8, b**3 / 8 - b * c / 2 + d
    r = -3 * b**4 / 256 + b * b * c / 16 - b * d / 4 + e
    return _rational_roots([-q * q, p * p - 4 * r, 2 * p, Fraction(1)])


def _rational_roots(cubic: list[Fraction]) -> list[Fraction]:
    """Return the rational roots of a cubic with leading coefficient 1, by ascending powers."""
    below = math.lcm(*(coefficient.denominator for coefficient in cubic))
    size = max(float(abs(coefficient)) ** (1 / (3 - power)) for power, coefficient in enumerate(cubic[:3])) or 1.0
    scaled = [float(coefficient) / size ** (3 - power) for power, coefficient in enumerate(cubic)]
    roots = set[Fraction]()
    for near in np.roots(scaled[::-1]).real:
        value = Fraction(float(near) * size)
        for _ in range(8):
            slope = _value([power * coefficient for power, coefficient in enumerate(cubic)][1:], value)
            if not slope:
                break
            value = Fraction(round((value - _value(cubic, value) / slope) * ONE), ONE)
        value = Fraction(round(value * below), below)
        if _value(cubic, value) == 0:
            roots.add(value)
    return sorted(roots)


def _value(coefficients: list[Fraction], at: Fraction) -> Fraction:
    value = Fraction(0)
    for coefficient in reversed(coefficients):
        value = value * at + coefficient
    return value
