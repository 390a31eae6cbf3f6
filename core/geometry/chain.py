"""Sums over several epochs as a chain of phases: a lower bound on the trace norm from determinants.

Let ``s_t = β s_{t-1} + x_t`` be the sums of n steps, and Λ a positive definite matrix that couples only steps of the
same phase. The trace norm of ``diag(√μ) W Λ^½`` is the sum of the square roots of the eigenvalues of
``M = diag(√μ) W Λ W' diag(√μ)``. For every number x > 0

    ``√x = (1 / 2π) ∫ log(1 + x / e^v) e^{v/2} dv``,

and the trapezoidal rule with step h has a relative error of at most ``Σ_{l≥1} 1 / (|½ + iω| cosh πω)``, ``ω = 2πl/h``,
since the Fourier transform of ``log(1 + e^{-v}) e^{v/2}`` is ``π / (s sin πs)`` for ``s = ½ + iω``. So the trace norm
is a sum of ``log det(1 + M / t)``. The truncated right tail is bounded from below by ``log(1 + y) ≥ y (1 - y / 2)``,
the left tail by the convexity of ``log(1 + x / e^v)`` in v.

With ``P = Λ⁻¹``, D the differences of the sums and ``w = 1 / t``, ``det(1 + M / t) = det(D'P D + w diag(μ)) / det P``.
The sums of a phase form a vector with one number per epoch, and the vectors of all phases form a chain: P_p weights
``s_p - β s_{p-1}``, and phase 0 follows the last phase of the epoch before. A *segment* of the chain is a quadratic
form in the vector s before it and in its increment ``d = s' - β s``, with the vector s' at its end and the product β of
its decays. Two adjacent segments are joined by eliminating the increment of the first. All segments are joined
pairwise, until a single segment is closed to a ring.

**Rounding.** The error of an elimination is a backward error E of the segments, bounded by its residual, and ``log
det(A + E)`` differs from ``log det A`` by at most ``η / (1 - η)``, ``η = tr |A^-½ E A^-½|``. A⁻¹ is the covariance of
the sums. The covariance of d is at most its prior covariance without observed sums, and the covariance of s is at most
its covariance in a chain of scalars with larger step variances. So errors are measured relative to forms that are small
where the covariances are large, and η is a few units of rounding per segment.
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
"""Step h of the trapezoidal rule."""

QUADRATURE_ERROR = 1e-9  # relative error bound of the rule at this step

LOG_MARGIN = 8.0  # distance of the first point from the logarithm of the largest eigenvalue of M

DECAY_SUM, DECAY_MOMENT = (math.exp(-STEP / 2) / (1 - math.exp(-STEP / 2)) ** power for power in (1, 2))
"""``Σ_m e^{-mh/2}`` and ``Σ_m m e^{-mh/2}`` over m ≥ 1."""

TRACE_NORM_TOL, SHARES_TOL = 1e-7, 1e-3
"""Relative contributions of omitted points to the trace norm, and to the shares of sums and steps."""

MAX_ETA = 0.5  # above it no bound on a determinant is stated


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Quadratic forms in s and d, with the covariance bounds that weight rounding errors."""

    forms: Array  # (c, 2k, 2k)
    decays: Array  # product of the decays of a segment's phases, for each epoch (c, k)
    starts: Array  # upper bounds on the trace of the covariance of s (c,); first of z, which contains s
    added: Array  # upper bounds on the trace of the covariance of d (c,)

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """All four arrays."""
        return self.forms, self.decays, self.starts, self.added

    def joins(self) -> Iterator[Join]:
        """Join segments pairwise, until there is one; yield each round."""
        segments = self
        while len(segments.forms) > 1:
            join = segments.joined()
            segments = join.segments
            yield join

    def joined(self) -> Join:
        """Join segments pairwise; the last of an odd number stays."""
        size, pairs = self.decays.shape[1], len(self.forms) // 2 * 2
        first, second = (Segments(*(array[start:pairs:2] for array in self.arrays)) for start in (0, 1))
        form, mixed, pivot = _meeting(first, second)
        covariance = _symmetric(np.asarray(np.linalg.inv(pivot)))
        shares = covariance @ mixed
        forms = _symmetric(form - mixed.swapaxes(1, 2) @ shares)
        joined = forms, first.decays * second.decays, first.starts, first.added + second.added
        result = Segments(*(np.concatenate([new, old[pairs:]]) for new, old in zip(joined, self.arrays, strict=True)))

        # Errors in units of the covariances: η is at most the sum of the norms of four blocks, twice the norm of all.
        # The forms have the error R'S⁻¹ (R - S Y) for R = `mixed`, S = `pivot` and Y = `shares`, and the rounding
        # errors of their terms and of the Cholesky factor of S.
        unit, units = np.sqrt(first.added)[:, None, None], _units(first.starts, joined[3], size)
        eps = (size + 8) * EPS
        pivot_norm, inverse_norm = _norms(pivot * unit**2), _norms(covariance / unit**2)
        mixed_norm, shares_norm = _norms(mixed * unit * units), _norms(shares / unit * units)
        residual = _norms((mixed - pivot @ shares) * unit * units) + eps * (mixed_norm + pivot_norm * shares_norm)
        defect = _norms(pivot @ covariance - np.eye(size)) + eps * pivot_norm * inverse_norm
        error = residual * (shares_norm + inverse_norm / np.maximum(1 - defect, 0.0) * residual)
        scale = (units + unit) * (units + unit).swapaxes(1, 2)
        terms = sum(_norms(array * scale) for array in (form, first.forms, second.forms))
        pivots = np.trace(pivot, axis1=1, axis2=2) * first.added
        eta = (2 * (error + eps * mixed_norm * shares_norm) + eps * (pivots + 16 * terms)).sum() * UPWARDS
        return Join(result, covariance, shares, _logarithms(pivot), (first.decays, second.decays), float(eta))

    def closed(self) -> tuple[Array, Array, float]:
        """Return the form in the sums z of the last phase of the closed ring, the matrix of (s, d) by z, and η.

        s are the sums z one epoch earlier; a column of that matrix has three entries.
        """
        earlier = np.eye(self.decays.shape[1], k=-1)
        ends = np.concatenate([earlier, np.eye(len(earlier)) - self.decays[0][:, None] * earlier])
        form = _symmetric(ends.T @ self.forms[0] @ ends)
        error = 256 * np.linalg.norm(self.forms) + (len(form) + 8) * np.trace(form)
        return form, ends, float(error * self.starts[0]) * EPS * UPWARDS


@dataclass(frozen=True, slots=True, eq=False)
class Join:
    """One round of pairwise joins."""

    segments: Segments  # after the round
    covariance: Array  # conditional covariance of the increments of the first segments (j, k, k)
    shares: Array  # minus their regression coefficients on s and d (j, k, 2k)
    logarithm: tuple[float, float]  # of the determinants of the eliminated forms, and its error bound
    decays: tuple[Array, Array]  # of the first and of the second segments (j, k)
    eta: float

    def split(self, covariances: Array) -> Array:
        """Return the covariances of s and d of the segments before the round, from the covariances after it."""
        pairs, size = self.covariance.shape[:2]
        s, x, d = slice(0, size), slice(size, 2 * size), slice(2 * size, 3 * size)
        identity = np.broadcast_to(np.eye(2 * size), (pairs, 2 * size, 2 * size))
        # The increment x of the first segment is -shares · (s, d) plus independent noise.
        by_ends = np.concatenate([identity[:, :size], -self.shares, identity[:, size:]], axis=1)
        joint = by_ends @ covariances[:pairs] @ by_ends.swapaxes(1, 2)
        joint[:, x, x] += self.covariance
        first_decays, second_decays = (decays[:, :, None] * np.eye(size) for decays in self.decays)
        second = np.zeros((pairs, 2 * size, 3 * size))  # it begins with ``β s + x`` and has the increment ``d - β' x``
        second[:, :size, s], second[:, :size, x] = first_decays, np.eye(size)
        second[:, size:, x], second[:, size:, d] = -second_decays, np.eye(size)
        split = np.empty((2 * pairs, 2 * size, 2 * size))
        split[0::2], split[1::2] = joint[:, : 2 * size, : 2 * size], second @ joint @ second.swapaxes(1, 2)
        return np.concatenate([split, covariances[pairs:]])


def _meeting(first: Segments, second: Segments) -> tuple[Array, Array, Array]:
    """Return the blocks of the form of two adjacent segments in (s, d), in x by (s, d), and in x.

    s and d belong to both segments together and x is the increment of the first: the second segment begins with
    ``β s + x`` and has the increment ``d - β' x``.
    """
    size = first.decays.shape[1]
    s, d = slice(0, size), slice(size, 2 * size)
    before, after = first.decays[:, None, :], second.decays[:, None, :]
    a, b = first.forms, second.forms
    b_sd, b_dd = b[:, s, d] * after, b[:, d, d] * after
    pivot = a[:, d, d] + b[:, s, s] - b_sd - b_sd.swapaxes(1, 2) + b_dd.swapaxes(1, 2) * after
    by_start = a[:, d, s] + (b[:, s, s] - b_sd.swapaxes(1, 2)) * before
    mixed = np.concatenate([by_start, b[:, s, d] - b_dd.swapaxes(1, 2)], axis=2)
    form = b.copy()
    form[:, s] *= before.swapaxes(1, 2)
    form[:, :, s] *= before
    form[:, s, s] += a[:, s, s]
    return form, mixed, pivot


def _units(starts: Array, added: Array, size: int) -> Array:
    """Return the square roots of the covariance bounds for each entry of s and d (j, 1, 2k)."""
    return np.repeat(np.sqrt([starts, added]).T, size, axis=1)[:, None, :]


def _symmetric(matrices: Array) -> Array:
    return np.asarray((matrices + matrices.swapaxes(-1, -2)) / 2)


def _norms(matrices: Array) -> Array:
    """Return the Frobenius norm of each matrix (j,)."""
    return np.asarray(np.sqrt(np.einsum("jab,jab->j", matrices, matrices)))


def _log_error(eta: float) -> float:
    """Return an error bound of the logarithm of a determinant, inf for large η."""
    return eta / (1 - eta) if eta < MAX_ETA else np.inf


def _logarithms(matrices: Array) -> tuple[float, float]:
    """Return ``Σ log det`` of positive definite matrices (j, k, k) and its error bound."""
    logs = 2 * np.log(np.diagonal(np.linalg.cholesky(matrices), axis1=1, axis2=2)).ravel()
    return math.fsum(logs), 4 * EPS * (math.fsum(np.abs(logs)) + len(logs))


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Sums by phase and epoch; a missing step has weight 0 and is coupled to no other."""

    ties: Array  # P, positive definite (b, k, k)
    decays: Array  # β of each step (b, k): 0 for the first step and for missing steps
    weights: Array  # μ of each sum (b, k): 0 for missing steps
    added: Array  # upper bounds on the trace of each P⁻¹ (b,)

    def segments(self, shift: float) -> Segments:
        """Return each phase as a segment, for w (`shift`)."""
        count, size = self.decays.shape
        forms, diagonal = np.zeros((count, 2 * size, 2 * size)), np.arange(size)
        scaled_weights = shift * self.weights
        forms[:, diagonal, diagonal] = self.decays**2 * scaled_weights
        forms[:, diagonal, size + diagonal] = forms[:, size + diagonal, diagonal] = self.decays * scaled_weights
        forms[:, size:, size:] = self.ties
        forms[:, size + diagonal, size + diagonal] += scaled_weights
        return Segments(forms, self.decays, np.roll(self.traces(shift), 1), self.added)

    def log_determinant(self, shift: float) -> tuple[float, float]:
        """Return ``log det(D'P D + w diag(μ))`` for w (`shift`) and its error bound (inf if unknown)."""
        segments = self.segments(shift)
        units = _units(segments.starts, segments.added, self.decays.shape[1])
        eta = 8 * EPS * float(_norms(segments.forms * units * units.swapaxes(1, 2)).sum())
        value, error = 0.0, 0.0
        for join in segments.joins():
            segments = join.segments
            value, error, eta = value + join.logarithm[0], error + join.logarithm[1], eta + join.eta
            error += EPS * abs(value)
        form, _, closing_eta = segments.closed()
        last = _logarithms(form[None])
        value, error, eta = value + last[0], error + last[1] + EPS * abs(value), (eta + closing_eta) * UPWARDS
        return value, _log_error(eta) + error

    def covariances(self, shift: float) -> Array:
        """Return the covariance of the sums before each phase and of its increment (b, 2k, 2k), blocks of A⁻¹ for w."""
        segments = self.segments(shift)
        joins = [*segments.joins()]
        form, ends, _ = (joins[-1].segments if joins else segments).closed()
        covariances = (ends @ np.linalg.inv(form) @ ends.T)[None]
        for join in reversed(joins):
            covariances = join.split(covariances)
        return covariances

    def shares(self, trace: tuple[float, float]) -> tuple[Array, Array]:
        """Return the shares of each sum and of each step in the trace norm (b, k): derivatives up to a factor.

        The derivative of the log-determinant in ``log μ_j`` is ``w μ_j (A⁻¹)_jj``; in half the logarithm of the
        variance of a step it is ``1 - (P Cov)_ii``, with the covariance of the step's increment.
        """
        by_sum, by_step = np.zeros((2, *self.decays.shape))
        size, point = self.decays.shape[1], np.log(trace[1]) + LOG_MARGIN
        while np.exp(point / 2) * self.decays.size > SHARES_TOL * by_sum.sum():
            covariances = self.covariances(float(np.exp(-point)))
            increments = covariances[:, size:, size:]
            start_variance, mixed, step_variance = (
                np.einsum("pii->pi", block)
                for block in (covariances[:, :size, :size], covariances[:, :size, size:], increments)
            )
            variances = self.decays**2 * start_variance + 2 * self.decays * mixed + step_variance
            by_sum += np.exp(-point / 2) * self.weights * variances
            by_step += np.exp(point / 2) * (1 - np.einsum("pij,pji->pi", self.ties, increments))
            point -= STEP
        return by_sum, np.where(self.weights > 0, by_step, 0.0)

    def traces(self, shift: float) -> Array:
        """Return upper bounds on the trace of A⁻¹ on each phase (b,), from a chain of scalars without couplings."""
        present = self.weights.T > 0
        step_variances = np.broadcast_to(self.added, present.shape)[present]
        scalars = Bidiagonal.of(step_variances, self.weights.T[present], self.decays.T[present][1:])
        diagonal = np.broadcast_to(self.added, present.shape).copy()
        pole = Poles(np.array([shift]), np.ones(1), 0.0)
        diagonal[present] = inverse_root_diagonals(scalars, pole)[1] / self.weights.T[present]
        return np.asarray(diagonal.sum(axis=0) * (1 + 64 * (diagonal.size + 8) * EPS))

    def trace_norm(self, trace: tuple[float, float]) -> tuple[float, float]:
        """Return a lower bound on ``tr M^½``, ``M = diag(√μ) W P⁻¹ W' diag(√μ)``, and its relative error bound.

        `trace` encloses the trace of M. Points decrease until the remaining ones are negligible: below the last point
        ``log det(1 + M e^{-v})``, which is convex in v, increases at least as fast as over the last step.
        """
        ties, traces = _logarithms(self.ties), np.einsum("pii->p", self.ties)
        ties_error = ties[1] + _log_error((self.ties.shape[1] + 4) * EPS * float(traces @ self.added))
        point, previous = float(np.log(trace[1])) + LOG_MARGIN, None
        lower, upper = np.array(trace) / np.exp(point)
        total = float(np.exp(point / 2) * DECAY_SUM * lower * (1 - upper))
        error = tail = tail_error = 0.0
        while True:
            value, value_error = self.log_determinant(math.exp(-point))
            value, value_error = value - ties[0], value_error + ties_error + EPS * (abs(value) + abs(ties[0]))
            if not value_error < np.inf:  # the tail bound of the last point still holds
                break
            scale = math.exp(point / 2)
            rise, rise_error = (0.0, 0.0) if previous is None else (value - previous[0], value_error + previous[1])
            total, error = total + scale * value, error + scale * value_error
            tail = scale * (DECAY_SUM * value + DECAY_MOMENT * max(rise, 0.0))
            tail_error = scale * (DECAY_SUM * value_error + DECAY_MOMENT * rise_error)
            if scale * DECAY_SUM * (self.decays.size - rise / STEP) < TRACE_NORM_TOL * total:
                break
            point, previous = point - STEP, (value, value_error)
        total, error = total + tail, error + tail_error
        return STEP / (2 * math.pi) * total, QUADRATURE_ERROR + (error / total if total > 0 else np.inf) + 1e-12
