"""Sums over several epochs as a chain of phases: the trace norm that bounds noise for them, from determinants.

Let ``s_t = β s_{t-1} + x_t`` be the sums of n steps, and Λ a positive definite matrix that ties the steps of a phase
together and no others. All that counts of the trace norm of ``diag(√μ) W Λ^½`` is ``M = diag(√μ) W Λ W' diag(√μ)``: it
is the sum of the roots of the eigenvalues of M. For every number x > 0

    ``√x = (1 / 2π) ∫ log(1 + x / e^v) e^{v/2} dv``,

and the sum over points of distance h that stands for the integral is within ``Σ_{l≥1} 1 / (|½ + iω| cosh πω)``, ``ω =
2πl/h``, of it, relative, since the Fourier transform of ``log(1 + e^{-v}) e^{v/2}`` is ``π / (s sin πs)`` for ``s = ½ +
iω``. So the trace norm is a sum of ``log det(1 + M / t)``. What stands right of the points that are taken is bounded
from below by ``log(1 + y) ≥ y (1 - y / 2)``, and left of them by the convexity of ``log(1 + x / e^v)`` in v.

With ``P = Λ⁻¹``, D the differences of the sums and ``w = 1 / t``, ``det(1 + M / t) = det(D'P D + w diag(μ)) / det P``.
In order of phases the vectors of the sums of a phase, one number an epoch, are a chain: P_p weighs ``s_p - β s_{p-1}``,
and before phase 0 stand the sums of the last phase, one epoch earlier. A *segment* of the chain is a quadratic form in
the vector s before it and in what its phases add, ``d = s' - β s`` for the vector s' at its end and the product β of
its decays. Two segments that meet become one as what the first adds is eliminated; all are joined two by two, until one
is left, whose ends meet.

**Rounding.** What an elimination is off by is as if the segments had been others, by no more than its residual says,
and ``log det(A + E)`` differs from ``log det A`` by at most ``η / (1 - η)``, ``η = tr |A^-½ E A^-½|``. A⁻¹ is the
covariance of the sums: that of d is at most what its phases add where nothing is known of their sums, and that of s at
most what it is in a chain of numbers, each step with a variance that is no less. So errors count relative to forms that
are small wherever the covariances are large, and η stays at some ulp a segment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dualmech.geometry.tridiagonal import Bidiagonal, Poles, inverse_root_diagonals
from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.verified import UPWARDS

STEP = 1.0
"""Distance h of the points v, at which `QUADRATURE` is what their sum may be above the integral, relative."""

QUADRATURE = 1e-9

REACH = 8.0  # how far the points go beyond the eigenvalues of M, in logarithms

FALLING, RISING = (math.exp(-STEP / 2) / (1 - math.exp(-STEP / 2)) ** power for power in (1, 2))
"""``Σ_m e^{-mh/2}`` and ``Σ_m m e^{-mh/2}`` over m ≥ 1."""

NEGLIGIBLE, SHOWN = 1e-7, 1e-3
"""Shares of the trace norm that points which are left out may count, of it and of what sums and parts have of it."""

MOST_MISSED = 0.5  # η up to which anything is said of a determinant


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Quadratic forms in s and d, and what the covariances are at most that errors are weighed by."""

    forms: Array  # (c, 2k, 2k)
    decays: Array  # product of the decays of a segment's phases, for each epoch (c, k)
    starts: Array  # bounds of the trace of the covariance of s (c,), the first that of z, of which s is a part
    added: Array  # and of d (c,)

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """All four arrays."""
        return self.forms, self.decays, self.starts, self.added

    def joins(self) -> Iterator[Join]:
        """Join them until one is left."""
        segments = self
        while len(segments.forms) > 1:
            join = segments.joined()
            segments = join.left
            yield join

    def joined(self) -> Join:
        """Join them two by two; of an odd number the last is left as it is."""
        size, pairs = self.decays.shape[1], len(self.forms) // 2 * 2
        first, second = (Segments(*(array[start:pairs:2] for array in self.arrays)) for start in (0, 1))
        whole, across, middle = _meeting(first, second)
        between = _symmetric(np.asarray(np.linalg.inv(middle)))
        shares = between @ across
        forms = _symmetric(whole - across.swapaxes(1, 2) @ shares)
        joined = forms, first.decays * second.decays, first.starts, first.added + second.added
        left = Segments(
            *(np.concatenate([array, rest[pairs:]]) for array, rest in zip(joined, self.arrays, strict=True))
        )

        # Errors in units of the covariances: η is at most the sum of the norms of their four blocks, twice that of all.
        # The forms are off by R'S⁻¹ (R - S Y) for R = `across`, S = `middle` and Y = `shares`; what they are made of
        # has rounding of its own, and so has the Cholesky factor of S.
        unit, units = np.sqrt(first.added)[:, None, None], _units(first.starts, joined[3], size)
        off = (size + 8) * EPS
        sized, known = _sizes(middle * unit**2), _sizes(between / unit**2)
        spread, shared = _sizes(across * unit * units), _sizes(shares / unit * units)
        residual = _sizes((across - middle @ shares) * unit * units) + off * (spread + sized * shared)
        inexact = _sizes(middle @ between - np.eye(size)) + off * sized * known
        missed = residual * (shared + known / np.maximum(1 - inexact, 0.0) * residual)
        wide = (units + unit) * (units + unit).swapaxes(1, 2)
        made = sum(_sizes(array * wide) for array in (whole, first.forms, second.forms))
        pivots = np.trace(middle, axis1=1, axis2=2) * first.added
        eta = (2 * (missed + off * spread * shared) + off * (pivots + 16 * made)).sum() * UPWARDS
        return Join(left, between, shares, _logarithms(middle), (first.decays, second.decays), float(eta))

    def closed(self) -> tuple[Array, Array, float]:
        """Return the form of the sums z of the last phase, once the ends meet, with s and d by z, and η of this.

        s are the sums z one epoch earlier; a column of s and d by z has three entries.
        """
        earlier = np.eye(self.decays.shape[1], k=-1)
        ends = np.concatenate([earlier, np.eye(len(earlier)) - self.decays[0][:, None] * earlier])
        form = _symmetric(ends.T @ self.forms[0] @ ends)
        missed = 256 * np.linalg.norm(self.forms) + (len(form) + 8) * np.trace(form)
        return form, ends, float(missed * self.starts[0]) * EPS * UPWARDS


@dataclass(frozen=True, slots=True, eq=False)
class Join:
    """Segments that were joined two by two."""

    left: Segments
    between: Array  # covariance of what first segments add, all else known (j, k, k)
    shares: Array  # and that, by s and d, with the other sign (j, k, 2k)
    logarithm: tuple[float, float]  # of the determinants of the forms of what was eliminated, and what it may be off by
    decays: tuple[Array, Array]  # of the first and of the second segments (j, k)
    missed: float  # η

    def parted(self, covariances: Array) -> Array:
        """Return the covariances of s and d of the segments, from those of the segments that were joined."""
        pairs, size = self.between.shape[:2]
        s, x, d = slice(0, size), slice(size, 2 * size), slice(2 * size, 3 * size)
        one = np.broadcast_to(np.eye(2 * size), (pairs, 2 * size, 2 * size))
        # What the first adds, x, is `- shares` of s and d, and noise of its own.
        by_ends = np.concatenate([one[:, :size], -self.shares, one[:, size:]], axis=1)
        whole = by_ends @ covariances[:pairs] @ by_ends.swapaxes(1, 2)
        whole[:, x, x] += self.between
        before, after = (decays[:, :, None] * np.eye(size) for decays in self.decays)
        onward = np.zeros((pairs, 2 * size, 3 * size))  # the second begins with ``β s + x`` and adds ``d - β' x``
        onward[:, :size, s], onward[:, :size, x] = before, np.eye(size)
        onward[:, size:, x], onward[:, size:, d] = -after, np.eye(size)
        parted = np.empty((2 * pairs, 2 * size, 2 * size))
        parted[0::2], parted[1::2] = whole[:, : 2 * size, : 2 * size], onward @ whole @ onward.swapaxes(1, 2)
        return np.concatenate([parted, covariances[pairs:]])


def _meeting(first: Segments, second: Segments) -> tuple[Array, Array, Array]:
    """Return the form of two segments by what the first adds, x, and by s and d of both together.

    In s and d, in x and s and d, and in x: the second begins with ``β s + x`` and adds ``d - β' x``.
    """
    size = first.decays.shape[1]
    s, d = slice(0, size), slice(size, 2 * size)
    before, after = first.decays[:, None, :], second.decays[:, None, :]
    one, two = first.forms, second.forms
    crossed, tied = two[:, s, d] * after, two[:, d, d] * after
    middle = one[:, d, d] + two[:, s, s] - crossed - crossed.swapaxes(1, 2) + tied.swapaxes(1, 2) * after
    by_start = one[:, d, s] + (two[:, s, s] - crossed.swapaxes(1, 2)) * before
    across = np.concatenate([by_start, two[:, s, d] - tied.swapaxes(1, 2)], axis=2)
    whole = two.copy()
    whole[:, s] *= before.swapaxes(1, 2)
    whole[:, :, s] *= before
    whole[:, s, s] += one[:, s, s]
    return whole, across, middle


def _units(starts: Array, added: Array, size: int) -> Array:
    """Return the roots of the covariances' bounds, one for each number of s and d (j, 1, 2k)."""
    return np.repeat(np.sqrt([starts, added]).T, size, axis=1)[:, None, :]


def _symmetric(matrices: Array) -> Array:
    return np.asarray((matrices + matrices.swapaxes(-1, -2)) / 2)


def _sizes(matrices: Array) -> Array:
    """Return the Frobenius norm of each matrix (j,)."""
    return np.asarray(np.sqrt(np.einsum("jab,jab->j", matrices, matrices)))


def _of_logarithm(eta: float) -> float:
    """Return what the logarithm of a determinant may be off by, inf where nothing is said of it."""
    return eta / (1 - eta) if eta < MOST_MISSED else np.inf


def _logarithms(matrices: Array) -> tuple[float, float]:
    """Return ``Σ log det`` of positive definite matrices (j, k, k), and what the logarithms may be off by."""
    logs = 2 * np.log(np.diagonal(np.linalg.cholesky(matrices), axis1=1, axis2=2)).ravel()
    return math.fsum(logs), 4 * EPS * (math.fsum(np.abs(logs)) + len(logs))


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Sums by phases and, in each, by epochs: steps that are not there are tied to nothing, and weigh nothing."""

    ties: Array  # P, positive definite (b, k, k)
    decays: Array  # β of each step (b, k): 0 for the first of all, and for steps that are not there
    weights: Array  # μ of each sum (b, k): 0 for steps that are not there
    added: Array  # no less than the trace of each P⁻¹ (b,)

    def segments(self, shift: float) -> Segments:
        """Return each phase as a segment, for w."""
        count, size = self.decays.shape
        forms, diagonal = np.zeros((count, 2 * size, 2 * size)), np.arange(size)
        weighed = shift * self.weights
        forms[:, diagonal, diagonal] = self.decays**2 * weighed
        forms[:, diagonal, size + diagonal] = forms[:, size + diagonal, diagonal] = self.decays * weighed
        forms[:, size:, size:] = self.ties
        forms[:, size + diagonal, size + diagonal] += weighed
        return Segments(forms, self.decays, np.roll(self.traces(shift), 1), self.added)

    def log_determinant(self, shift: float) -> tuple[float, float]:
        """Return ``log det(D'P D + w diag(μ))`` for w, and what it may be off by, inf where nothing is said of it."""
        segments = self.segments(shift)
        units = _units(segments.starts, segments.added, self.decays.shape[1])
        eta = 8 * EPS * float(_sizes(segments.forms * units * units.swapaxes(1, 2)).sum())
        value, off = 0.0, 0.0
        for join in segments.joins():
            segments = join.left
            value, off, eta = value + join.logarithm[0], off + join.logarithm[1], eta + join.missed
            off += EPS * abs(value)
        form, _, met = segments.closed()
        last = _logarithms(form[None])
        value, off, eta = value + last[0], off + last[1] + EPS * abs(value), (eta + met) * UPWARDS
        return value, _of_logarithm(eta) + off

    def covariances(self, shift: float) -> Array:
        """Return the covariance of what stands before each phase, and of what it adds (b, 2k, 2k): A⁻¹, for w."""
        segments = self.segments(shift)
        joins = [*segments.joins()]
        form, ends, _ = (joins[-1].left if joins else segments).closed()
        covariances = (ends @ np.linalg.inv(form) @ ends.T)[None]
        for join in reversed(joins):
            covariances = join.parted(covariances)
        return covariances

    def shares(self, trace: tuple[float, float]) -> tuple[Array, Array]:
        """Return what each sum, and each step's part, counts in the trace norm (b, k): derivatives, but for a factor.

        By the logarithm of μ_j the determinant changes as ``w μ_j (A⁻¹)_jj``; by half that of the variance of a step as
        ``1 - (P Cov)_ii``, with the covariance of what the step adds.
        """
        by_sum, by_part = np.zeros((2, *self.decays.shape))
        size, point = self.decays.shape[1], np.log(trace[1]) + REACH
        while np.exp(point / 2) * self.decays.size > SHOWN * by_sum.sum():
            covariances = self.covariances(float(np.exp(-point)))
            added = covariances[:, size:, size:]
            before, mixed, more = (
                np.einsum("pii->pi", block)
                for block in (covariances[:, :size, :size], covariances[:, :size, size:], added)
            )
            variances = self.decays**2 * before + 2 * self.decays * mixed + more
            by_sum += np.exp(-point / 2) * self.weights * variances
            by_part += np.exp(point / 2) * (1 - np.einsum("pij,pji->pi", self.ties, added))
            point -= STEP
        return by_sum, np.where(self.weights > 0, by_part, 0.0)

    def traces(self, shift: float) -> Array:
        """Return bounds of the trace of the inverse on each phase (b,), by a chain of numbers that are tied no more."""
        present = self.weights.T > 0
        reach = np.broadcast_to(self.added, present.shape)[present]
        numbers = Bidiagonal.of(reach, self.weights.T[present], self.decays.T[present][1:])
        diagonal = np.broadcast_to(self.added, present.shape).copy()
        pole = Poles(np.array([shift]), np.ones(1), 0.0)
        diagonal[present] = inverse_root_diagonals(numbers, pole)[1] / self.weights.T[present]
        return np.asarray(diagonal.sum(axis=0) * (1 + 64 * (diagonal.size + 8) * EPS))

    def trace_norm(self, trace: tuple[float, float]) -> tuple[float, float]:
        """Return a lower bound of ``tr M^½`` for ``M = diag(√μ) W P⁻¹ W' diag(√μ)``, and its rounding, relative.

        The trace of M lies between the two numbers of `trace`. Points are taken downwards until those that are left
        count for nothing; from there ``log det(1 + M e^{-v})``, which is convex in v, rises at least as it did last.
        """
        ties, traces = _logarithms(self.ties), np.einsum("pii->p", self.ties)
        inexact = ties[1] + _of_logarithm((self.ties.shape[1] + 4) * EPS * float(traces @ self.added))
        point, before = float(np.log(trace[1])) + REACH, None
        least, most = np.array(trace) / np.exp(point)
        total = float(np.exp(point / 2) * FALLING * least * (1 - most))
        off = below = below_off = 0.0
        while True:
            value, missed = self.log_determinant(math.exp(-point))
            value, missed = value - ties[0], missed + inexact + EPS * (abs(value) + abs(ties[0]))
            if not missed < np.inf:  # what was said of the last point holds below it
                break
            scale = math.exp(point / 2)
            rise, rise_off = (0.0, 0.0) if before is None else (value - before[0], missed + before[1])
            total, off = total + scale * value, off + scale * missed
            below = scale * (FALLING * value + RISING * max(rise, 0.0))
            below_off = scale * (FALLING * missed + RISING * rise_off)
            if scale * FALLING * (self.decays.size - rise / STEP) < NEGLIGIBLE * total:
                break
            point, before = point - STEP, (value, missed)
        total, off = total + below, off + below_off
        return STEP / (2 * math.pi) * total, QUADRATURE + (off / total if total > 0 else np.inf) + 1e-12
