"""Inverse square roots of tridiagonal matrices: what running sums cost, in time proportional to their number."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy  # it loads special when that is used

from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.workloads.streams import running_sums

# Running sums: costs, variances and trace norms in time and memory proportional to their number.
#
# Let W be sums with decay, ``(W x)_j = x_j + β (W x)_{j-1}``, where each step may have its own β, so that ``W⁻¹`` is
# bidiagonal. With ``M = diag(√μ) W diag(√λ)``, ``L = M⁻¹`` is bidiagonal too, with the diagonal a and -b below it,
# ``T = L L'`` is tridiagonal, and ``T^-½ = (M'M)^½``. So the trace norm of M is ``tr T^-½``, and noise of covariance
# ``diag(√λ) T^½ diag(√λ)`` costs cell i ``(T^-½)_ii / λ_i`` and gives sum j the variance ``(T'^-½)_jj / μ_j`` with
# ``T' = L'L``, which is T of the reversed a and b.
#
# **The inverse square root.** With ``s = √m sc(u)``, Jacobi's function of the modulus ``k'² = 1 - m/M``, where ``m ≤ T
# ≤ M``, ``t^-½ = (2/π) ∫ ds / (t + s²)`` is the mean over a period ``2 K'`` of a function that is analytic but for
# simple poles on the lines ``Im u = ± K``, and changes its sign from u to ``u + 2 i K``. Its Fourier coefficients over
# its mean are ``cos(π l y / K') / cosh(π l K / K')`` for some real y, so that the sum over N midpoints of half a
# period, ``Σ_j c_j / (t + w_j)``, is ``t^-½`` times ``1 + 2 Σ_n (-1)^n cos(…) / cosh(2 π n N K / K')``: within ``4 q /
# (1 - q)`` of it, relative, for ``q = exp(-2 π N K / K')`` and every t between m and M. Both diagonals of ``T^-½`` are
# known as well. (N. Hale, N. Higham and L. N. Trefethen, SIAM J. Numer. Anal. 46(5), 2008, have the sum; the bound is
# of the same kind.)
#
# **The diagonal of a shifted inverse.** ``((T + w)⁻¹)_ii = 1 / (w + p_i + r_i)`` with ``p_1 = 0``, ``p_{i+1} = b_i²
# (p_i + w) / (p_i + w + a_i²)`` and ``r_n = a_n²``, ``r_i = a_i² (r_{i+1} + w) / (r_{i+1} + w + b_i²)``. There is no
# subtraction in it: every number keeps its digits, however small the eigenvalues of T. From the same p and r follows
# ``((T' + w)⁻¹)_ii = 1 / (w + s_i + q_i)`` with ``s_i = w a_i² / (w + p_i)``, ``q_i = w b_i² / (w + r_{i+1})`` and
# ``q_n = 0``.


POLES = 24  # most poles that are carried along at a time: what bounds the memory
BACK = slice(None, None, -1)  # from the last step to the first
SAFE = 1 - 1e-6  # of the least eigenvalue as it is computed, less than it is for certain
NARROWEST = 4.0  # least ratio of the ends of the interval on which the sum of poles is taken


@dataclass(frozen=True, slots=True, eq=False)
class Poles:
    """``Σ_j c_j / (t + w_j)``, which is ``t^-½`` from m to M within `error`, relative."""

    places: Array  # w_j
    factors: Array  # c_j
    error: float

    @property
    def in_parts(self) -> Iterator[tuple[Array, Array]]:
        """Yield places and factors of some poles after others."""
        parts = -(-len(self.places) // POLES)
        return zip(np.array_split(self.places, parts), np.array_split(self.factors, parts), strict=True)

    @classmethod
    def of(cls, low: float, high: float, tol: float) -> Poles:
        """Find as few poles as make the error at most `tol`, or what rounding leaves."""
        high = max(high, NARROWEST * low)
        ratio = low / high
        if not (ratio > 0 and high < np.inf):  # no sum reaches from 0, nor to infinity: nothing is known
            return cls(np.full(2, np.nan), np.full(2, np.nan), np.inf)
        other, complement = float(scipy.special.ellipk(ratio)), float(scipy.special.ellipkm1(ratio))  # K and K'
        count = max(int(np.ceil(np.log(5 / tol) * complement / (2 * np.pi * other))), 2)
        count += count % 2
        nome = np.exp(-np.pi * complement / other)
        # By Jacobi's imaginary transformation sc(u|k') is the sine amplitude of modulus k along the imaginary axis;
        # up to K'/2 its series has positive terms that fall like the nome's root. The rest is its mirror image.
        angles = np.pi / (2 * other) * (np.arange(count // 2) + 0.5) * complement / count
        odd = 2 * np.arange(24)[:, None] + 1
        weights = 2 * np.pi / (np.sqrt(ratio) * other) / (1 - nome**odd)
        rise, fall = (np.exp(odd * (sign * angles + np.log(nome) / 2)) for sign in (1, -1))
        roots = np.sqrt(low) * (weights * (rise - fall) / 2).sum(axis=0)
        slopes = np.sqrt(low) * (weights * odd * np.pi / (2 * other) * (rise + fall) / 2).sum(axis=0)
        mirrored = np.sqrt(low * high) / roots
        slopes = np.concatenate([slopes, slopes * mirrored / roots])
        q = np.exp(-2 * np.pi * count * other / complement)
        return cls(
            np.concatenate([roots, mirrored]) ** 2,
            2 * complement / (np.pi * count) * slopes,
            float(4 * q / (1 - q) + 64 * EPS),
        )


@dataclass(frozen=True, eq=False)
class Bidiagonal:
    """The squares of a (n,) and b (n - 1,): L, up to signs."""

    a: Array
    b: Array

    @classmethod
    def of(cls, neighbour_weights: Array, query_weights: Array, decay: float | Array) -> Bidiagonal:
        return cls(1 / (neighbour_weights * query_weights), decay**2 / (neighbour_weights[1:] * query_weights[:-1]))

    @functools.cached_property
    def ahead(self) -> tuple[Array, Array]:
        """The gains and halves of p, in stretches; see `follow`."""
        return stretched(np.r_[0.0, self.b], 1.0), stretched(np.r_[1.0, self.a[:-1]], 1.0)

    @functools.cached_property
    def back(self) -> tuple[Array, Array]:
        """The same of r: a and b, with a 0 after its last."""
        return stretched(self.a, 1.0), stretched(np.r_[self.b, 0.0], 1.0)

    @property
    def largest(self) -> float:
        """Return what no eigenvalue of T exceeds, the largest sum of magnitudes in a row."""
        off_diagonal = np.sqrt(self.a[:-1] * self.b)
        rows = self.a + np.r_[0.0, self.b] + np.r_[off_diagonal, 0.0] + np.r_[0.0, off_diagonal]
        return float(rows.max()) * (1 + 8 * EPS)


def poles_of(matrix: Bidiagonal, cells: Array, sums: Array, decay: float | Array, tol: float) -> Poles:
    """Return poles for the eigenvalues of T, which lie between ``1 / ‖M‖_F²`` and the largest sum in a row."""
    return Poles.of(float(SAFE / (sums @ running_sums(cells, decay**2))), matrix.largest, tol)


def square_root(matrix: Bidiagonal, poles: Poles) -> Array:
    """Return ``T^½``, ``Σ_j c_j T (T + w_j)⁻¹`` (n, n), every entry as accurate as the poles.

    With ``G = (T + w)⁻¹``, of positive entries, ``T G = 1 - w G`` is ``(p + r) / (w + p + r)`` on the diagonal. Beside
    it ``G_ij = G_{i+1,j} √(a_i b_i) / (w + p_i + a_i)`` for ``i < j``.
    """
    root = np.zeros((len(matrix.a),) * 2)
    for place, factor in zip(poles.places, poles.factors, strict=True):
        before = forwards(matrix, np.array([place]))[:, 0]
        after = _sequence(matrix.a[::-1], np.r_[0.0, matrix.b[::-1]], np.array([place]))[::-1, 0]
        shares = np.r_[np.sqrt(matrix.a[:-1] * matrix.b) / (place + before[:-1] + matrix.a[:-1]), 0.0]
        row = np.zeros(0)
        for step in range(len(root) - 1, -1, -1):
            whole = place + before[step] + after[step]
            root[step, step] += factor * (before[step] + after[step]) / whole
            row *= shares[step]
            root[step, step + 1 :] -= factor * place * row
            row = np.r_[1 / whole, row]
    upper = np.triu(root, 1)
    return upper + upper.T + np.diag(np.diagonal(root))


def passed_on(matrix: Bidiagonal, places: Array) -> Array:
    """Return s (n, p), for each of the shifts w; ``w + s + b`` are the squares of the diagonal of F, F F' = L'L + w."""
    return _sequence(matrix.a, np.r_[0.0, matrix.b], places)


def forwards(matrix: Bidiagonal, places: Array) -> Array:
    """Return p (n, p), for each of the shifts w."""
    return _sequence(np.r_[0.0, matrix.b], np.r_[1.0, matrix.a[:-1]], places)


def inverse_root_diagonals(matrix: Bidiagonal, poles: Poles, both: bool = True) -> tuple[Array, Array]:
    """Return the diagonals of ``Σ_j c_j (L L' + w_j)⁻¹`` and, if asked for, of ``Σ_j c_j (L'L + w_j)⁻¹`` (n,)."""
    count, (a, b) = len(matrix.a), matrix.back
    left, right = np.zeros((2, *a.shape))
    for places, factors in poles.in_parts:
        shifts, shares = places[:, None], factors / places
        _, *before = follow(*matrix.ahead, places)
        back = follow(a, b, places, BACK)
        following = next(back) + shifts
        for step, after in zip(range(len(a))[BACK], back, strict=True):
            shifted = before.pop() + shifts
            left[step] += factors @ (1 / (shifted + after))
            if both:
                right[step] += shares @ (1 / (1 + a[step] / shifted + b[step] / following))  # s and q, over w
                following = after + shifts
    return in_order(left, count), in_order(right, count if both else 0)


def factor_squares(matrix: Bidiagonal, shifts: Array) -> Array:
    """Return the squared diagonal of R with ``R R' = L L' + w`` (n, p), for each of the shifts w."""
    return matrix.a[:, None] + shifts + forwards(matrix, shifts)


def stretched(values: Array, rest: float) -> Array:
    """Return a sequence (n,) cut into stretches that stand side by side (length, s), the last one filled up."""
    length = max(math.isqrt(len(values)) // 2, 1)
    whole = np.r_[values, np.full(-len(values) % length, rest)]
    return np.ascontiguousarray(whole.reshape(-1, length).T)


def in_order(stretches: Array, count: int) -> Array:
    """Return the first `count` numbers of a sequence in stretches."""
    return stretches.T.reshape(-1)[:count]


def follow(gains: Array, halves: Array, shifts: Array, order: slice = slice(None)) -> Iterator[Array]:
    """Yield ``y_k = g_k (y_{k-1} + w) / (y_{k-1} + w + h_k)`` (p, s) step by step, for each of the shifts w.

    All stretches of g and h (length, s) are followed at a time, from the last to the first if that is the order; what
    each begins with comes first, and no start of the whole matters. A step is ``y ↦ (α y + β) / (γ y + 1)`` with
    positive numbers, and these compose as matrices do: so each stretch is composed before it is followed.
    """
    w, shape = shifts[:, None], (len(shifts), gains.shape[1])
    alpha, beta, gamma, share = (np.full(shape, value) for value in (1.0, 0.0, 0.0, 0.0))
    for gain, half in zip(gains[order], halves[order], strict=True):
        alpha += np.multiply(w, gamma, out=share)
        beta += w
        gamma *= half
        gamma += alpha
        np.add(beta, half, out=share)
        gamma /= share
        np.divide(gain, share, out=share)
        alpha *= share
        beta *= share
    ends, y = np.empty(shape[::-1]), np.ones(shape[0])
    alpha, beta, gamma = (np.ascontiguousarray(array.T) for array in (alpha, beta, gamma))
    for stretch in range(shape[1])[order]:
        ends[stretch] = y
        y = (alpha[stretch] * y + beta[stretch]) / (gamma[stretch] * y + 1)
    yield (y := np.ascontiguousarray(ends.T))
    for gain, half in zip(gains[order], halves[order], strict=True):
        shifted = y + w
        y = shifted + half
        np.divide(shifted, y, out=y)
        y *= gain
        yield y


def _sequence(gains: Array, halves: Array, shifts: Array) -> Array:
    """Return all y of `follow` (n, p)."""
    _, *steps = follow(stretched(gains, 1.0), stretched(halves, 1.0), shifts)
    return np.stack(steps).transpose(2, 0, 1).reshape(-1, len(shifts))[: len(gains)]
