"""Toeplitz strategies of running sums: power series, and what their rounding may hide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.fft
import scipy.linalg

from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.workloads.streams import running_sums

SHORT = 256  # coefficients up to which a product of series is summed term by term

TRANSFORM = 16 * EPS
"""Error of a fast transform for each doubling of its length, relative to the norm: five times what is proven of powers
of two (N. Higham, Accuracy and Stability of Numerical Algorithms, section 24.1)."""

USABLE = 0.5  # departure from an inverse up to which anything is said of it


@dataclass(frozen=True, slots=True, eq=False)
class Toeplitz:
    """``C_ij = c_{i-j}``, with ``c_0 ≠ 0``: a power series c(z).

    The sums' noise is the series ``1 / ((1 - β z) c(z))``. That is computed as g, somehow; with
    ``e = 1 - (1 - β z) c g`` the true series is ``g / (1 - e)``, so that its first k coefficients have at most the norm
    ``‖g‖ / (1 - Σ_{j<k} |e_j|)``, for every k. So the residual e decides what the variances may be off by, the rounding
    in it included.
    """

    coefficients: Array  # (b,) c, those that follow are 0
    steps: int

    def costs(self) -> Array:
        """Return the squared norm of each column (n,)."""
        squares = np.zeros(self.steps)
        squares[: len(self.coefficients)] = self.coefficients**2
        return np.cumsum(squares)[::-1].copy()

    def variances(self, decay: float) -> tuple[Array, Array]:
        """Return the variance of each sum (n,), and what it may be higher by, relative."""
        series = self.answers(decay)
        missed = np.cumsum(self._residual(series, decay))
        with np.errstate(over="ignore", invalid="ignore"):
            off = np.where(missed < USABLE, 1 / (1 - np.minimum(missed, USABLE)) ** 2 - 1, np.inf)
            return np.cumsum(series**2), off

    def answers(self, decay: float) -> Array:
        """Return the first column of ``W C⁻¹``, the coefficients of ``1 / ((1 - β z) c(z))`` (n,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            inverse = np.array([1 / self.coefficients[0]])
            while (known := len(inverse)) < self.steps:
                size = min(2 * known, self.steps)
                product, _ = _times(self.coefficients[:size], inverse, size)
                # Newton's method: twice as many coefficients are right after each step.
                inverse = np.concatenate([inverse, -_times(product[known:], inverse, size - known)[0]])
            return (
                running_sums(inverse, decay) if np.all(np.isfinite(inverse)) else np.full(self.steps, np.nan)
            )

    @property
    def nonnegative(self) -> bool:
        """Whether C has no negative entry."""
        return bool(np.all(self.coefficients >= 0))

    def participation(self, times: int, apart: int) -> float:
        """Return the largest squared norm of a sum of columns of ``|C|``: of those from the first on."""
        total = np.zeros(self.steps)
        for start in range(0, min(times * apart, self.steps), apart):
            length = min(len(self.coefficients), self.steps - start)
            total[start : start + length] += np.abs(self.coefficients[:length])
        return float(total @ total)

    def noise(self, generator: np.random.Generator, decay: float) -> Array:
        """Draw the noise of the sums (n,)."""
        return _times(self.answers(decay), generator.standard_normal(self.steps), self.steps)[0]

    def matrix(self) -> Array:
        """Return C (n, n)."""
        column = np.zeros(self.steps)
        column[: len(self.coefficients)] = self.coefficients
        return np.asarray(scipy.linalg.toeplitz(column, np.zeros(self.steps)))

    def _residual(self, series: Array, decay: float) -> Array:
        """Return what ``|e|`` may be, coefficient by coefficient (n,)."""
        shifted = np.concatenate([self.coefficients, [0.0]])
        shifted[1:] -= decay * self.coefficients
        with np.errstate(over="ignore", invalid="ignore"):
            product, rounding = _times(shifted[: self.steps], series, self.steps)
            product[0] -= 1
            # What is subtracted has been rounded itself.
            off = EPS * float(np.linalg.norm(self.coefficients) * np.linalg.norm(series))
            return np.abs(product) + rounding + EPS + off


def _times(first: Array, second: Array, size: int) -> tuple[Array, Array]:
    """Return the first coefficients of a product of two series, and what rounding may have changed of each."""
    terms = min(len(first), len(second))
    if terms <= SHORT:
        product = np.convolve(first, second)[:size]
        rounding = (terms + 2) * EPS * np.convolve(np.abs(first), np.abs(second))[:size]
    else:
        length = scipy.fft.next_fast_len(len(first) + len(second) - 1, real=True)
        product = scipy.fft.irfft(scipy.fft.rfft(first, length) * scipy.fft.rfft(second, length), length)
        # The first two transforms err by the norms of what they are given, the last by that of the product.
        unit = 2 * float(np.linalg.norm(first) * np.linalg.norm(second)) + float(np.linalg.norm(product))
        product, rounding = product[:size], np.full(size, (np.log2(length) + 2) * TRANSFORM * unit)
    missing = np.zeros(size - len(product))
    return np.concatenate([product, missing]), np.concatenate([rounding[:size], missing])
