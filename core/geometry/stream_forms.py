"""Running sums: costs, variances and trace norms in time and memory proportional to their number.

Let W be sums with decay, ``(W x)_j = x_j + β (W x)_{j-1}``, where each step may have its own β, so that ``W⁻¹`` is
bidiagonal. With ``M = diag(√μ) W diag(√λ)``, ``L = M⁻¹`` is bidiagonal too, with the diagonal a and -b below it, ``T =
L L'`` is tridiagonal, and ``T^-½ = (M'M)^½``. So the trace norm of M is ``tr T^-½``, and noise of covariance ``diag(√λ)
T^½ diag(√λ)`` costs cell i ``(T^-½)_ii / λ_i`` and gives sum j the variance ``(T'^-½)_jj / μ_j`` with ``T' = L'L``,
which is T of the reversed a and b.

**The inverse square root.** With ``s = √m sc(u)``, Jacobi's function of the modulus ``k'² = 1 - m/M``, where ``m ≤ T
≤ M``, ``t^-½ = (2/π) ∫ ds / (t + s²)`` is the mean over a period ``2 K'`` of a function that is analytic but for
simple poles on the lines ``Im u = ± K``, and changes its sign from u to ``u + 2 i K``. Its Fourier coefficients over
its mean are ``cos(π l y / K') / cosh(π l K / K')`` for some real y, so that the sum over N midpoints of half a
period, ``Σ_j c_j / (t + w_j)``, is ``t^-½`` times ``1 + 2 Σ_n (-1)^n cos(…) / cosh(2 π n N K / K')``: within ``4 q /
(1 - q)`` of it, relative, for ``q = exp(-2 π N K / K')`` and every t between m and M. Both diagonals of ``T^-½`` are
known as well. (N. Hale, N. Higham and L. N. Trefethen, SIAM J. Numer. Anal. 46(5), 2008, have the sum; the bound is
of the same kind.)

**The diagonal of a shifted inverse.** ``((T + w)⁻¹)_ii = 1 / (w + p_i + r_i)`` with ``p_1 = 0``, ``p_{i+1} = b_i²
(p_i + w) / (p_i + w + a_i²)`` and ``r_n = a_n²``, ``r_i = a_i² (r_{i+1} + w) / (r_{i+1} + w + b_i²)``. There is no
subtraction in it: every number keeps its digits, however small the eigenvalues of T.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.special

from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.workloads.streams import running_sums

POLES = 16  # poles that are carried along at a time: what bounds the memory
RESCALED = 4  # steps of a recurrence after which its matrices are brought to a last entry of 1
SAFE = 1 - 1e-6  # of the least eigenvalue as it is computed, less than it is for certain
NARROWEST = 4.0  # least ratio of the ends of the interval on which the sum of poles is taken


@dataclass(frozen=True, slots=True, eq=False)
class Poles:
    """``Σ_j c_j / (t + w_j)``, which is ``t^-½`` from m to M within `error`, relative."""

    places: Array  # w_j
    factors: Array  # c_j
    error: float

    @classmethod
    def of(cls, low: float, high: float, tol: float) -> Poles:
        """Find as few poles as make the error at most `tol`, or what rounding leaves."""
        high = max(high, NARROWEST * low)
        ratio = low / high
        other, own = float(scipy.special.ellipk(ratio)), float(scipy.special.ellipkm1(ratio))  # K and K'
        count = max(int(np.ceil(np.log(5 / tol) * own / (2 * np.pi * other))), 2)
        count += count % 2
        nome = np.exp(-np.pi * own / other)
        # By Jacobi's imaginary transformation sc(u|k') is the sine amplitude of modulus k along the imaginary axis;
        # up to K'/2 its series has positive terms that fall like the nome's root. The rest is its mirror image.
        angles = np.pi / (2 * other) * (np.arange(count // 2) + 0.5) * own / count
        odd = 2 * np.arange(24)[:, None] + 1
        weights = 2 * np.pi / (np.sqrt(ratio) * other) / (1 - nome**odd)
        rise, fall = (np.exp(odd * (sign * angles + np.log(nome) / 2)) for sign in (1, -1))
        roots = np.sqrt(low) * (weights * (rise - fall) / 2).sum(axis=0)
        slopes = np.sqrt(low) * (weights * odd * np.pi / (2 * other) * (rise + fall) / 2).sum(axis=0)
        mirrored = np.sqrt(low * high) / roots
        slopes = np.concatenate([slopes, slopes * mirrored / roots])
        q = np.exp(-2 * np.pi * count * other / own)
        return cls(
            np.concatenate([roots, mirrored]) ** 2,
            2 * own / (np.pi * count) * slopes,
            float(4 * q / (1 - q) + 64 * EPS),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Bidiagonal:
    """The squares of a (n,) and b (n - 1,): L, up to signs."""

    a: Array
    b: Array

    @classmethod
    def of(cls, neighbour_weights: Array, query_weights: Array, decay: float | Array) -> Bidiagonal:
        """Return L for positive weights λ and μ."""
        return cls(
            1 / (neighbour_weights * query_weights), decay**2 / (neighbour_weights[1:] * query_weights[:-1])
        )

    @property
    def reversed(self) -> Bidiagonal:
        """What has ``L'L`` for ``L L'``, both from the last entry to the first."""
        return Bidiagonal(self.a[::-1], self.b[::-1])

    @property
    def largest(self) -> float:
        """Return what no eigenvalue of T exceeds, the largest sum of magnitudes in a row."""
        beside = np.sqrt(self.a[:-1] * self.b)
        rows = self.a + np.r_[0.0, self.b] + np.r_[beside, 0.0] + np.r_[0.0, beside]
        return float(rows.max()) * (1 + 8 * EPS)


def poles_of(
    matrix: Bidiagonal, neighbour_weights: Array, query_weights: Array, decay: float | Array, tol: float
) -> Poles:
    """Return poles for the eigenvalues of T, which lie between ``1 / ‖M‖_F²`` and the largest sum in a row."""
    squares = running_sums(neighbour_weights, decay**2)
    return Poles.of(SAFE / float(query_weights @ squares), matrix.largest, tol)


def inverse_root_diagonal(matrix: Bidiagonal, poles: Poles) -> Array:
    """Return the diagonal of ``Σ_j c_j (L L' + w_j)⁻¹`` (n,)."""
    found = np.zeros(len(matrix.a))
    for start in range(0, len(poles.places), POLES):
        chosen = slice(start, start + POLES)
        found += _resolvent_diagonals(matrix.a, matrix.b, poles.places[chosen], poles.factors[chosen])
    return found


def _resolvent_diagonals(a: Array, b: Array, places: Array, factors: Array) -> Array:
    """Return the diagonal of ``Σ_j c_j (T + w_j)⁻¹``."""
    before = _sequence(np.r_[0.0, b], np.r_[1.0, a[:-1]], places)
    after = _sequence(a[::-1], np.r_[0.0, b[::-1]], places)[::-1]
    before += after
    before += places
    return np.asarray((factors / before).sum(axis=1))


def _sequence(gains: Array, halves: Array, shifts: Array) -> Array:
    """Return ``y_k = g_k (y_{k-1} + w) / (y_{k-1} + w + h_k)`` (n, p), for each of the shifts w; no start matters.

    Many stretches are followed at a time. A step is ``y ↦ (α y + β) / (γ y + δ)`` with positive numbers, and these
    compose as matrices do: so each stretch is composed first, and followed once it is known what it begins with.
    """
    count = len(gains)
    length = max(int(np.sqrt(count) / 2), 1)
    stretches = -(-count // length)
    g, h = (np.ones((stretches * length, 1)) for _ in range(2))
    g[:count, 0], h[:count, 0] = gains, halves
    g, h = (np.ascontiguousarray(each.reshape(stretches, length, 1).swapaxes(0, 1)) for each in (g, h))
    alpha, beta, gamma, delta = (np.full((stretches, len(shifts)), each) for each in (1.0, 0.0, 0.0, 1.0))
    for step in range(length):
        alpha += shifts * gamma
        beta += shifts * delta
        gamma *= h[step]
        gamma += alpha
        delta *= h[step]
        delta += beta
        alpha *= g[step]
        beta *= g[step]
        if step % RESCALED == 0:
            for each in (alpha, beta, gamma):
                each /= delta
            delta.fill(1.0)
    y, end = np.empty((stretches, len(shifts))), np.ones(len(shifts))
    for stretch in range(stretches):
        y[stretch] = end
        end = (alpha[stretch] * end + beta[stretch]) / (gamma[stretch] * end + delta[stretch])
    found = np.empty((stretches, length, len(shifts)))
    for step in range(length):
        shifted = y + shifts
        y = shifted / (shifted + h[step])
        y *= g[step]
        found[:, step] = y
    return found.reshape(stretches * length, len(shifts))[:count]
