"""Noise on a stream from an inverse square root as a sum over poles, and the variances of queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from dualmech.geometry.tridiagonal import Bidiagonal, Poles, factor_squares, forwards, passed_on
from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.verified import two_product, two_sum

# With y = L' diag(√λ) v', v Σ v' is the sum over the poles of c_j y' (L'L + w_j)⁻¹ y. In units of √μ_i for cell i,
# L'L + w is the matrix of a chain of conductances: b_i from node i to the next, and w to the ground. After elimination
# of the first nodes, node i has a conductance g_i = w + s_i to the ground (`passed_on`: sums of positive numbers) and a
# current X_i, and the pole contributes Σ_i X_i² / (μ_i (g_i + b_i)) to v Σ v':
#
#     X_i = (v_i - β v_{i+1}) + X_{i-1} (1 - l_{i-1}) / β,  with the share l = g / (g + b) of current to the ground.
#
# **Rounding.** The computed g, b and l are those of a chain with conductances that differ by a few units of rounding
# for each step: errors of step i are a factor on all conductances before it. Variances are monotone in each
# conductance, so they change by at most these factors, whatever cancels. The remaining error is that of X, at most
# κ Ξ, with Ξ the recurrence for absolute values. It changes the sum by at most 2 √(E F) κ + F κ², with E and F the sums
# of X² and Ξ². If this is too much in double precision, 1 - l and X are sums of two doubles.


DOUBLE_TOL = 1e-10
"""Largest relative error bound of a variance in double precision; otherwise pairs of doubles are used."""

ROUNDINGS_PER_STEP = 16  # upper bound on the rounding errors of a step, in units of ε


@dataclass(frozen=True, slots=True, eq=False)
class InverseRoot:
    """Noise of covariance ``Σ = level · D^½ L (L'L)^-½ L' D^½``, with ``(L'L)^-½ = Σ_j c_j (L'L + w_j)⁻¹``."""

    matrix: Bidiagonal  # L
    poles: Poles  # c and w
    cells: Array  # the diagonal of D, λ, at most 1
    sums: Array  # μ, at most 1
    decay: tuple[Array, Array]  # β of each step but the first (d - 1,), as a sum of two doubles
    level: float

    def solved(self, y: Array) -> Array:
        """Return ``(L'L)^-½ y``, (d,) or (d, q)."""
        solution = np.zeros_like(y)
        for factor, root in zip(self.poles.factors, self._roots(), strict=True):
            solution += factor * _quotient(root, _quotient(root, y), transposed=True)
        return solution

    def times(self, y: Array) -> Array:
        """Return ``L y`` (d,)."""
        product = np.sqrt(self.matrix.a) * y
        product[1:] -= np.sqrt(self.matrix.b) * y[:-1]
        return product

    def transposed_times(self, y: Array) -> Array:
        """Return ``L'y`` (d,)."""
        product = np.sqrt(self.matrix.a) * y
        product[:-1] -= np.sqrt(self.matrix.b) * y[1:]
        return product

    def noise_times(self, vector: Array) -> Array:
        """Return ``Σ v`` (d,), in time proportional to d."""
        root = np.sqrt(self.level * self.cells)
        return np.asarray(root * self.times(self.solved(self.transposed_times(root * vector))))

    def draw(self, generator: np.random.Generator) -> Array:
        """Draw noise (d,): L times a sum of independent draws, one for each pole."""
        drawn = np.zeros(len(self.cells))
        for factor, root in zip(self.poles.factors, self._roots(), strict=True):
            draw = np.sqrt(factor) * generator.standard_normal(len(drawn))
            drawn += _quotient(root, draw, transposed=True)
        return np.asarray(np.sqrt(self.level * self.cells) * self.times(drawn))

    def variances(self, rows: Array, rounding: float) -> tuple[Array, Array]:
        """Return ``v Σ v'`` (q,) for queries v (q, d), and absolute error bounds.

        `rounding` is the relative error bound of recurrences of positive numbers.
        """
        shared_error, unit = self.poles.error + rounding, ROUNDINGS_PER_STEP * (len(self.cells) + 8) * EPS
        variances, errors = self._in_doubles(rows, unit)
        inaccurate = np.flatnonzero(~(errors + shared_error <= DOUBLE_TOL))
        if len(inaccurate):
            variances[inaccurate], errors[inaccurate] = self._in_pairs(rows[inaccurate], unit * EPS)
        return variances * self.level, (errors + shared_error) * variances * self.level

    def recurrence(self) -> DecayingSums:
        """Return a recurrence of noise rows with a covariance between Σ and ``(1 + e) / (1 - e) Σ``.

        Here e is the error of the poles. With ``U_j U_j' = L'L + w_j``, U upper bidiagonal, ``(L'L)^-½`` is the
        covariance of ``v = Σ_j √c_j s_j``, where ``U_j' s_j`` is independent noise: decaying sums. Given all earlier v,
        the sums have a mean and a covariance M. One normal z for each step determines the next v, and changes the mean
        by a gain times z (R. Kalman, 1960). The noise is that of the lower-triangular root of Σ.
        """
        a, b, count = self.matrix.a, np.r_[0.0, self.matrix.b], len(self.poles.places)
        backwards = Bidiagonal(a[::-1], self.matrix.b[::-1])
        squares = factor_squares(backwards, self.poles.places)[::-1]  # of the diagonals of U (d, p)
        remainders = forwards(backwards, self.poles.places)[::-1] + self.poles.places  # squares - a
        scale, roots = np.sqrt(self.level * self.cells / (1 - self.poles.error)), np.sqrt(self.poles.factors)
        decays = np.sqrt(a * b)[:, None] / squares
        gains, variances, covariance = np.zeros_like(squares), np.zeros(len(a)), np.zeros((count, count))
        for step, decay in enumerate(decays):
            covariance = decay[:, None] * covariance * decay + np.diag(1 / squares[step])
            gain = covariance @ roots
            variances[step] = roots @ gain
            gains[step] = gain / np.sqrt(variances[step])
            covariance -= np.outer(gains[step], gains[step])
        weights = -(scale * np.sqrt(b))[:, None] * roots * remainders / squares
        return DecayingSums((weights, decays, gains, scale * np.sqrt(a * variances)))

    def _roots(self) -> list[Array]:
        """Return F with ``F F' = L'L + w`` for each pole, lower bidiagonal and negative beside the diagonal (2, d)."""
        b, pivots = self.matrix.b, np.sqrt(self._pivots())
        off_diagonal = -np.sqrt(self.matrix.a[1:] * b)[:, None] / pivots[:-1]
        return [
            np.vstack([diagonal, np.r_[lower, 0.0]]) for diagonal, lower in zip(pivots.T, off_diagonal.T, strict=True)
        ]

    def _pivots(self) -> Array:
        """Return ``g + b`` (d, p), the squared diagonals of F."""
        return self._grounds() + np.r_[self.matrix.b, 0.0][:, None]

    def _grounds(self) -> Array:
        """Return g (d, p)."""
        return passed_on(self.matrix, self.poles.places) + self.poles.places

    def _in_doubles(self, rows: Array, unit: float) -> tuple[Array, Array]:
        currents = _differences(rows.T, self.decay)[0] / np.sqrt(self.sums)[:, None]
        stacked, energy, bound = np.hstack([currents, np.abs(currents)]), np.zeros(len(rows)), np.zeros(len(rows))
        for factor, root in zip(self.poles.factors, self._roots(), strict=True):
            parts = _quotient(root, stacked)
            sums = factor * np.einsum("iq,iq->q", parts, parts)
            energy, bound = energy + sums[: len(rows)], bound + sums[len(rows) :]
        return energy, _relative_error(energy, bound, unit)

    def _in_pairs(self, rows: Array, unit: float) -> tuple[Array, Array]:
        high, low = _differences(rows.T, self.decay)
        pivots, grounds = self._pivots(), self._grounds()
        shares = self.poles.factors / (self.sums[:, None] * pivots)
        ratios, ratios_low = self._passed(grounds[:-1], pivots[:-1])
        energy, bound = np.zeros(len(rows)), np.zeros(len(rows))
        current, current_low, magnitude = (np.zeros((pivots.shape[1], len(rows))) for _ in range(3))
        for step, (value, value_low, share) in enumerate(zip(high, low, shares, strict=True)):
            if step:
                factor, factor_low = ratios[step - 1][:, None], ratios_low[step - 1][:, None]
                product, error = two_product(current, factor)
                total, sum_error = two_sum(product, value)
                current_low = (error + sum_error) + (current * factor_low + current_low * factor) + value_low
                current, current_low = two_sum(total, current_low)
                magnitude = magnitude * factor + np.abs(value)
            else:
                current, current_low, magnitude = current + value, current_low + value_low, magnitude + np.abs(value)
            energy += share @ (current * current)
            bound += share @ (magnitude * magnitude)
        return energy, _relative_error(energy, bound, unit)

    def _passed(self, grounds: Array, pivots: Array) -> tuple[Array, Array]:
        """Return ``(1 - l) / β`` (d - 1, p) as sums of two doubles."""
        ground, onward = grounds / pivots, self.matrix.b[:, None] / pivots
        high, low = two_sum(np.ones_like(ground), -ground)
        mostly = ground > 0.5
        high, low = np.where(mostly, onward, high), np.where(mostly, 0.0, low)
        decay, decay_low = (array[:, None] for array in self.decay)
        quotient = high / decay
        product, error = two_product(quotient, decay * np.ones_like(quotient))
        return quotient, ((high - product) - error + low - quotient * decay_low) / decay


@dataclass(frozen=True, slots=True, eq=False)
class DecayingSums:
    """Noise of a stream: ``y_t = σ_t z_t + Σ_j η_tj s_j``, then ``s_j ← φ_tj s_j + κ_tj z_t``."""

    tables: tuple[Array, Array, Array, Array]  # η, φ and κ (n, p), and σ (n,)

    @property
    def steps(self) -> int:
        """Number of steps n."""
        return len(self.tables[0])

    def rows_kept(self, step: int) -> int:
        """Return the number of sums, one for each pole."""
        return int(self.tables[0].shape[1])

    def follow(self, parts: Sequence[Any], row: Any, kept: Any, xp: Any) -> tuple[Any, Any]:
        """Return the noise of a step, and the sums after it; see `dualmech.geometry.causal.Recurrence`."""
        weights, decays, gains, scale = parts
        return scale * row + xp.matmul(weights, kept), decays[:, None] * kept + gains[:, None] * row[None, :]


def _quotient(lower: Array, y: Array, transposed: bool = False) -> Array:
    """Return ``F⁻¹ y``, or ``F'⁻¹ y``, of a lower bidiagonal F, by substitution without pivoting."""
    quotient, _ = scipy.linalg.lapack.dtbtrs(lower, y, uplo="L", trans="T" if transposed else "N")
    return np.asarray(quotient)


def _differences(columns: Array, decay: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return ``v_i - β v_{i+1}`` (d, q) of queries v (d, q), as sums of two doubles."""
    high, low = np.array(columns), np.zeros_like(columns)
    factor, factor_low = (array[:, None] for array in decay)
    product, error = two_product(columns[1:], factor * np.ones_like(columns[1:]))
    high[:-1], sum_error = two_sum(columns[:-1], -product)
    low[:-1] = sum_error - error - columns[1:] * factor_low
    return two_sum(high, low)


def _relative_error(energy: Array, bound: Array, unit: float) -> Array:
    """Return a relative error bound on a sum of squares E whose terms have errors of `unit` times those of F."""
    with np.errstate(all="ignore"):
        share = np.sqrt(bound / energy) * unit
    return np.where(bound > 0, share * (2 + share), 0.0)
