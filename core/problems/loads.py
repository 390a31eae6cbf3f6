"""What weights of design queries spend between neighbours: sensitivities as a matrix, or as fast transforms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.fft

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.base import MAX_DENSE_ENTRIES

TRANSFORM = 64
"""A Fourier transform of length N is off by this many roundings times ``log₂ 4N`` at most, in Euclidean norm."""


class Loads(Protocol):
    """The sensitivities N (k, s): what a unit of each weight spends between each pair of neighbours, none negative."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of design queries, and of pairs of neighbours."""

    @property
    def matrix(self) -> Array:
        """N written out; refused where it is too large."""

    @property
    def largest(self) -> Array:
        """The largest sensitivity of each design query (k,)."""

    def reach(self, weights: Array) -> tuple[Array, Array]:
        """Return ``N y`` (k,) for weights y of sum 1, and what no entry exceeds."""

    def spent(self, weights: Array) -> tuple[Array, float]:
        """Return ``N'u`` (s,), infinite weights left out, and an allowance for rounding, relative to 1."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenLoads:
    """Sensitivities as a matrix, moves raised to 2 / p; each move of a query is off by its margin at most."""

    matrix: Array
    margin: Array  # (k,)
    power: int  # p, 1 where noise is Gaussian

    @property
    def shape(self) -> tuple[int, int]:
        """Number of design queries, and of pairs of neighbours."""
        return self.matrix.shape[0], self.matrix.shape[1]

    @property
    def largest(self) -> Array:
        """The largest sensitivity of each design query (k,)."""
        return np.asarray(self.matrix.max(axis=1))

    def reach(self, weights: Array) -> tuple[Array, Array]:
        """Return ``N y`` (k,) for weights y of sum 1, and what no entry exceeds but for the rounding of the sums."""
        found = self.matrix @ weights
        raised = (np.sqrt(found) + self.margin) ** 2 if self.power == 1 else found + self.margin
        return found, raised

    def spent(self, weights: Array) -> tuple[Array, float]:
        """Return ``N'u`` (s,), infinite weights left out, and an allowance for rounding, relative to 1."""
        weights = np.where(np.isinf(weights), 0.0, weights)
        # By Cauchy's inequality where moves are squared: ``Σ u m² ≤ 1`` and each m is off by its margin at most.
        moved = 2 * np.sqrt(weights @ self.margin**2) if self.power == 1 else weights @ self.margin
        return self.matrix.T @ weights, float(moved + 2 * len(weights) * linalg.EPS)


@dataclass(frozen=True, slots=True, eq=False)
class SineLoads:
    """Squared sines ``2 sin²(π k i / N) / N = (1 - cos(2 π k i / N)) / N``, ``N = d + 1``: a product is a transform.

    The matrix is symmetric, and its rows k and N - k are the same.
    """

    cells: int  # d

    @property
    def shape(self) -> tuple[int, int]:
        """Number of sines, and of cells."""
        return self.cells, self.cells

    @property
    def matrix(self) -> Array:
        """N written out; refused where it is too large."""
        if self.cells**2 > MAX_DENSE_ENTRIES:
            raise InvalidInputError(
                f"sensitivities of {self.cells} sines are too many to write out (limit {MAX_DENSE_ENTRIES} entries)"
            )
        period, order = self.cells + 1, np.arange(1, self.cells + 1)
        squares = 2 * np.sin(np.pi / period * np.arange(period)) ** 2 / period
        return validate.read_only(squares[np.multiply.outer(order, order) % period])

    @property
    def largest(self) -> Array:
        """The largest sensitivity of each sine, at most ``2 / N`` (k,)."""
        return np.full(self.cells, 2 / (self.cells + 1))

    def reach(self, weights: Array) -> tuple[Array, Array]:
        """Return ``N y`` (k,), and what no entry exceeds."""
        found, error = self._product(weights)
        return found, found + error

    def spent(self, weights: Array) -> tuple[Array, float]:
        """Return ``N'u`` (s,), infinite weights left out, and what its entries may be off by."""
        return self._product(np.where(np.isinf(weights), 0.0, weights))

    def _product(self, vector: Array) -> tuple[Array, float]:
        period = self.cells + 1
        half = scipy.fft.rfft(np.r_[0.0, vector]).real
        falls = half[0] - half[1:]
        found = np.r_[falls, falls[: self.cells - len(falls)][::-1]] / period
        length = np.sqrt(period) * np.linalg.norm(vector)
        error = 2 * TRANSFORM * np.log2(4 * period) * linalg.EPS * length / period
        return np.maximum(found, 0.0), float(error)
