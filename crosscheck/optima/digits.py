"""Optimal noise and weights to hundreds of digits: Newton steps on the conditions of optimality, in whole numbers.

The unknowns are Σ, in coordinates of what neighbours move, the positive weights λ and μ, and t. The conditions are
``Σ Q Σ = t P`` with ``P = Σ λ_i u_i u_i'`` and ``Q = Σ μ_j v_j v_j'``, equality of the variances and costs that carry
weight, and ``Σ λ_i = 1``; t is one over the optimum of fitness for use, and the optimum of total variance. Where
optima are many the solutions are: as many unknowns as are free are then set to simple fractions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech.crosscheck.optima import matrices
from dualmech.crosscheck.optima.rationals import Asked
from dualmech.validate import Array

BITS = 1024
"""Binary digits after the point of what is found."""

GUARD = 96
"""Binary digits that may be lost on the way: the conditions hold to ``BITS - GUARD`` of them."""

SUPPORTS = (1e-3, 1e-5, 1e-7)
"""Weights, those of queries times targets, are taken for positive above one of these shares of the largest."""

PINNED = (0.1, 1e-2, 1e-3, 1e-5)
"""How far the fractions may be away that free unknowns are set to."""

MOST_STEPS = 60
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


def solutions(asked: Asked, sigma: Array, lam: Array, mu: Array) -> Iterator[Digits]:
    """Yield optima to hundreds of digits near one in doubles: one where it is unique, else a few simple ones.

    Parameters
    ----------
    sigma : (r, r) array
        Σ in coordinates of what neighbours move.
    lam, mu : (s,) and (m,) arrays
        Weights; of total variance μ stands for its weights.
    """
    tried: set[tuple[int, ...]] = set()
    bill = mu * [float(each) for each in asked.limits or asked.weights]
    for share in SUPPORTS:
        seen = np.flatnonzero(lam > share * lam.max()), np.flatnonzero(bill > share * bill.max())
        if (key := (*seen[0], -1, *seen[1])) in tried:
            continue
        tried.add(key)
        conditions = _Conditions(asked, *seen)
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

    def __init__(self, asked: Asked, neighbours: Any, queries: Any) -> None:
        self.asked, self.of_variance = asked, asked.limits is None
        self.size, self.neighbours = len(asked.moves), neighbours
        self.seen = queries[:0] if self.of_variance else queries  # those whose weights are unknown
        self.upper = np.triu_indices(self.size)
        self.moves = _units(matrices.transpose(asked.moves))[neighbours]
        self.rows = _units(asked.queries)
        self.limits = _units([asked.weights if asked.limits is None else asked.limits])[0]
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
        shares, own = lam[self.neighbours], mu[self.seen]
        weights = shares / shares.sum(), own / max(own @ _doubles(self.limits[self.seen]), 1e-300)
        return _from_doubles(np.concatenate([sigma[self.upper], *weights, [t]]))

    def parts(self, unknowns: Units) -> tuple[Units, Units, Units, Any]:
        """Return Σ, λ, μ of the queries that carry weight, and t."""
        ends = np.cumsum([len(self.upper[0]), len(self.neighbours), len(self.seen)])
        entries, lam, mu, (t,) = np.split(unknowns, ends)
        sigma = np.zeros((self.size, self.size), dtype=unknowns.dtype)
        sigma[self.upper] = entries
        sigma.T[self.upper] = entries
        return sigma, lam, mu, t

    def residual(self, unknowns: Units) -> Units | None:
        """Return what the conditions lack, in units; None where Σ has no inverse."""
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
        own = self.rows[self.seen]
        variances = (_product(own, sigma) * own).sum(axis=1) >> BITS
        return np.concatenate(
            [balance[self.upper], costs - ONE, variances - self.limits[self.seen], [lam.sum() - ONE]]
        )

    def derivative(self, unknowns: Units) -> Array:
        """Return the derivative of the conditions, in doubles."""
        sigma, lam, mu, t = self.parts(_doubles(unknowns))
        moves, own = _doubles(self.moves), _doubles(self.rows[self.seen])
        rows, weights = (_doubles(self.rows), _doubles(self.limits)) if self.of_variance else (own, mu)
        inverse, p, q = np.linalg.inv(sigma), (moves.T * lam) @ moves, (rows.T * weights) @ rows
        found, dual, level = [], moves @ inverse, 1.0 if self.of_variance else t
        for a, b in zip(*self.upper, strict=True):
            change = np.zeros((self.size, self.size))
            change[a, b] = change[b, a] = 1.0
            half = change @ q @ sigma
            cost = -level * np.einsum("ik,kl,il->i", dual, change, dual)
            variance = np.einsum("jk,kl,jl->j", own, change, own)
            found.append(np.concatenate([(half + half.T)[self.upper], cost, variance, [0.0]]))
        none = np.zeros(len(self.neighbours) + len(own))
        for each in moves:
            found.append(np.concatenate([-t * np.outer(each, each)[self.upper], none, [1.0]]))
        for each in own @ sigma:
            found.append(np.concatenate([np.outer(each, each)[self.upper], none, [0.0]]))
        costs = 0.0 * lam if self.of_variance else (dual * moves).sum(axis=1)
        found.append(np.concatenate([-p[self.upper], costs, np.zeros(len(own)), [0.0]]))
        return np.transpose(found)

    def sizes(self, unknowns: Units) -> tuple[Array, Array]:
        """Return how large the conditions' two sides, and the unknowns, may be: ``t P`` is at most Σ, or t Σ."""
        sigma, _, _, t = self.parts(_doubles(unknowns))
        entries = np.sqrt(np.abs(np.outer(np.diag(sigma), np.diag(sigma))))[self.upper]
        limits, ones = _doubles(self.limits[self.seen]), np.ones(len(self.neighbours))
        balance = entries * (t if self.of_variance else 1.0)
        return np.concatenate([balance, ones, limits, [1.0]]), np.concatenate(
            [entries, ones, 1 / limits, [t]]
        )

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
        """Return simple fractions near free unknowns, in units."""
        _, sizes = self.sizes(unknowns)
        near = [Fraction(int(unknowns[each]), ONE) for each in free]
        found = [
            matrices.simplest_near(a, Fraction(within * sizes[b])) for a, b in zip(near, free, strict=True)
        ]
        return {each: int(value * ONE) for each, value in zip(free, found, strict=True)}

    def moved(self, unknowns: Units, pins: dict[int, int]) -> Units:
        """Return the unknowns with some of them set, Σ as it was where it would not be one."""
        found = unknowns.copy()
        for each, value in pins.items():
            found[each] = value
        sigma = _doubles(self.parts(found)[0])
        return found if np.linalg.eigvalsh(sigma)[0] > 0 else unknowns

    def digits(self, unknowns: Units) -> Digits:
        """Return the unknowns as noise and weights, with those that are 0."""
        sigma, lam, mu, _ = self.parts(unknowns)
        every = np.zeros(len(self.asked.moves[0]), dtype=object)
        every[self.neighbours] = lam
        queries = np.zeros(len(self.rows), dtype=object)
        queries[self.seen] = mu
        return Digits(sigma, every, None if self.of_variance else queries)


def _newton(conditions: _Conditions, unknowns: Units, pins: dict[int, int], guard: int) -> Units | None:
    """Return what meets the conditions but for the last `guard` binary digits, with some unknowns set; or None."""
    places, last = [*pins], np.inf
    chosen = np.zeros((len(places), conditions.count))
    chosen[np.arange(len(places)), places] = 1.0
    for step in range(MOST_STEPS):
        lacking = conditions.residual(unknowns)
        if lacking is None:
            return None
        rows, columns = conditions.sizes(unknowns)
        rows = np.concatenate([rows, columns[places]])
        lacking = np.concatenate([lacking, [unknowns[each] - pins[each] for each in places]])
        off = _doubles(lacking) / rows
        largest = np.abs(off).max()
        if largest <= 2.0 ** (guard - BITS):
            return unknowns
        if not np.isfinite(largest) or (step > 10 and largest > last):
            return None
        last = largest
        slopes = np.vstack([conditions.derivative(unknowns), chosen]) / rows[:, None] * columns
        change = np.linalg.pinv(slopes, rcond=RANK) @ (off / largest)
        unknowns = unknowns - _from_doubles(columns * change * largest)
    return None


def _inverse(matrix: Units) -> Units | None:
    """Invert a matrix in units: each step doubles the digits of an inverse in doubles."""
    try:
        found = _from_doubles(np.linalg.inv(_doubles(matrix)))
    except (np.linalg.LinAlgError, OverflowError):
        return None
    identity = np.array(
        [[ONE * (i == j) for j in range(len(matrix))] for i in range(len(matrix))], dtype=object
    )
    for _ in range(12):
        left = identity - _product(matrix, found)
        if np.abs(left).max() > ONE >> 3:
            return None
        found = found + _product(found, left)
        if np.abs(left).max() <= ONE >> (BITS // 2 + 8):
            return found
    return found


def _product(left: Units, right: Units) -> Units:
    return left @ right >> BITS


def _units(rows: Any) -> Units:
    """Return fractions in units, rounded down."""
    return np.array(
        [[each.numerator * ONE // each.denominator for each in row] for row in rows], dtype=object
    )


def _doubles(units: Units) -> Array:
    """Return units as doubles."""
    given = np.asarray(units)
    return np.array([int(each) / ONE for each in given.ravel()], dtype=float).reshape(given.shape)


def _from_doubles(values: npt.ArrayLike) -> Units:
    """Return doubles in units; those that are not finite raise `OverflowError`."""
    flat = [
        0 if each != each else int(Fraction(each) * ONE)
        for each in np.asarray(values, float).ravel().tolist()
    ]
    return np.array([*flat, None], dtype=object)[:-1].reshape(np.shape(values))
