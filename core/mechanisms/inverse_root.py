"""An inverse square root as a sum over poles: noise on a stream, and the variances that queries get of it."""

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

# With y = L' diag(√λ) v', v Σ v' is the sum over the poles of c_j y' (L'L + w_j)⁻¹ y. In units in which cell i has the
# weight √μ_i, L'L + w is the matrix of a chain of conductances: b_i from node i to the next, and w to the ground.
# Elimination from the first node on leaves at node i a conductance g_i = w + s_i to the ground (`passed_on`: positive
# numbers, none subtracted) and a current X_i, and what v Σ v' has of the pole is Σ_i X_i² / (μ_i (g_i + b_i)):
#
#     X_i = (v_i - β v_{i+1}) + X_{i-1} (1 - l_{i-1}) / β,  where l = g / (g + b) is the share that goes to the ground.
#
# **Rounding.** All that is computed of g, b and l is, but for a few roundings a step, what a chain has whose
# conductances are larger or smaller by as little: errors of step i count as a factor on all conductances before it.
# No variance moves by more than these factors, however much cancels in it, since it grows and falls with each
# conductance. What is left is the rounding of X itself, by κ Ξ at most, Ξ being what X is with magnitudes in the place
# of differences, and no subtraction: it moves the sum by at most 2 √(E F) κ + F κ², E and F being the sums of X² and
# of Ξ². Where doubles leave too much, 1 - l, and all of X, are carried in two of them.


FINE = 1e-10
"""What doubles may leave a variance off by, relative, before it is computed in pairs of them."""

ROUNDINGS = 16  # of a step, at most


@dataclass(frozen=True, slots=True, eq=False)
class InverseRoot:
    """Noise of covariance ``Σ = level · D^½ L (L'L)^-½ L' D^½``, ``(L'L)^-½`` being ``Σ_j c_j (L'L + w_j)⁻¹``."""

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
        """Return ``v Σ v'`` (q,) of queries v (q, d), and what each may be off by, absolute.

        `rounding` is the error of the recurrences of positive numbers.
        """
        sure, unit = self.poles.error + rounding, ROUNDINGS * (len(self.cells) + 8) * EPS
        variances, off = self._in_doubles(rows, unit)
        rough = np.flatnonzero(~(off + sure <= FINE))
        if len(rough):
            variances[rough], off[rough] = self._in_pairs(rows[rough], unit * EPS)
        return variances * self.level, (off + sure) * variances * self.level

    def recurrence(self) -> DecayingSums:
        """Return how rows of noise follow from one another, of a covariance between Σ and ``(1 + e) / (1 - e) Σ``.

        e is the error of the poles. With ``U_j U_j' = L'L + w_j``, U upper bidiagonal, ``(L'L)^-½`` is the covariance
        of ``v = Σ_j √c_j s_j``, where ``U_j' s_j`` is independent noise: sums with decay, step by step. Given all v
        before a step, the sums have a mean and a covariance M. One new number z a step decides the next v, and moves
        the mean by a gain times z (R. Kalman, 1960): so the noise is that of the lower-triangular root of Σ.
        """
        a, b, count = self.matrix.a, np.r_[0.0, self.matrix.b], len(self.poles.places)
        backwards = Bidiagonal(a[::-1], self.matrix.b[::-1])
        squares = factor_squares(backwards, self.poles.places)[::-1]  # of the diagonals of U (d, p)
        rest = forwards(backwards, self.poles.places)[::-1] + self.poles.places  # squares - a
        scale, roots = np.sqrt(self.level * self.cells / (1 - self.poles.error)), np.sqrt(self.poles.factors)
        decays = np.sqrt(a * b)[:, None] / squares
        gains, variances, spread = np.zeros_like(squares), np.zeros(len(a)), np.zeros((count, count))
        for step, decay in enumerate(decays):
            spread = decay[:, None] * spread * decay + np.diag(1 / squares[step])
            gain = spread @ roots
            variances[step] = roots @ gain
            gains[step] = gain / np.sqrt(variances[step])
            spread -= np.outer(gains[step], gains[step])
        weights = -(scale * np.sqrt(b))[:, None] * roots * rest / squares
        return DecayingSums((weights, decays, gains, scale * np.sqrt(a * variances)))

    def _roots(self) -> list[Array]:
        """Return F with ``F F' = L'L + w`` for each pole, lower bidiagonal and negative beside the diagonal (2, d)."""
        b, pivots = self.matrix.b, np.sqrt(self._pivots())
        beside = -np.sqrt(self.matrix.a[1:] * b)[:, None] / pivots[:-1]
        return [np.vstack([one, np.r_[other, 0.0]]) for one, other in zip(pivots.T, beside.T, strict=True)]

    def _pivots(self) -> Array:
        """Return ``g + b`` (d, p), the squared diagonals of F."""
        return self._grounds() + np.r_[self.matrix.b, 0.0][:, None]

    def _grounds(self) -> Array:
        """Return g (d, p)."""
        return passed_on(self.matrix, self.poles.places) + self.poles.places

    def _in_doubles(self, rows: Array, unit: float) -> tuple[Array, Array]:
        left = _differences(rows.T, self.decay)[0] / np.sqrt(self.sums)[:, None]
        both, energy, most = np.hstack([left, np.abs(left)]), np.zeros(len(rows)), np.zeros(len(rows))
        for factor, root in zip(self.poles.factors, self._roots(), strict=True):
            parts = _quotient(root, both)
            sums = factor * np.einsum("iq,iq->q", parts, parts)
            energy, most = energy + sums[: len(rows)], most + sums[len(rows) :]
        return energy, _off(energy, most, unit)

    def _in_pairs(self, rows: Array, unit: float) -> tuple[Array, Array]:
        left, rest = _differences(rows.T, self.decay)
        pivots, grounds = self._pivots(), self._grounds()
        shares = self.poles.factors / (self.sums[:, None] * pivots)
        passed, passed_rest = self._passed(grounds[:-1], pivots[:-1])
        energy, most = np.zeros(len(rows)), np.zeros(len(rows))
        current, more, size = (np.zeros((pivots.shape[1], len(rows))) for _ in range(3))
        for step, (value, own_rest, share) in enumerate(zip(left, rest, shares, strict=True)):
            if step:
                factor, last = passed[step - 1][:, None], passed_rest[step - 1][:, None]
                product, error = two_product(current, factor)
                total, lost = two_sum(product, value)
                more = (error + lost) + (current * last + more * factor) + own_rest
                current, more = two_sum(total, more)
                size = size * factor + np.abs(value)
            else:
                current, more, size = current + value, more + own_rest, size + np.abs(value)
            energy += share @ (current * current)
            most += share @ (size * size)
        return energy, _off(energy, most, unit)

    def _passed(self, grounds: Array, pivots: Array) -> tuple[Array, Array]:
        """Return ``(1 - l) / β`` (d - 1, p) as sums of two doubles."""
        lost, kept = grounds / pivots, self.matrix.b[:, None] / pivots
        high, low = two_sum(np.ones_like(lost), -lost)
        most = lost > 0.5
        high, low = np.where(most, kept, high), np.where(most, 0.0, low)
        decay, rest = (array[:, None] for array in self.decay)
        quotient = high / decay
        product, error = two_product(quotient, decay * np.ones_like(quotient))
        return quotient, ((high - product) - error + low - quotient * rest) / decay


@dataclass(frozen=True, slots=True, eq=False)
class DecayingSums:
    """Noise of a stream: ``y_t = σ_t z_t + Σ_j η_tj s_j``, after which each s_j becomes ``φ_tj s_j + κ_tj z_t``."""

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
    """Return ``F⁻¹ y``, or ``F'⁻¹ y``, of a lower bidiagonal F: by substitution, as a solver that pivots does not."""
    quotient, _ = scipy.linalg.lapack.dtbtrs(lower, y, uplo="L", trans="T" if transposed else "N")
    return np.asarray(quotient)


def _differences(columns: Array, decay: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return ``v_i - β v_{i+1}`` (d, q) of queries v (d, q), as sums of two doubles."""
    left, rest = np.array(columns), np.zeros_like(columns)
    factor, last = (array[:, None] for array in decay)
    product, error = two_product(columns[1:], factor * np.ones_like(columns[1:]))
    left[:-1], lost = two_sum(columns[:-1], -product)
    rest[:-1] = lost - error - columns[1:] * last
    return two_sum(left, rest)


def _off(energy: Array, most: Array, unit: float) -> Array:
    """Return what sums of squares may be off by, relative, where their terms are off by `unit` of larger ones."""
    with np.errstate(all="ignore"):
        share = np.sqrt(most / energy) * unit
    return np.where(most > 0, share * (2 + share), 0.0)
