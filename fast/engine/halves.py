"""Square roots H of ``P = D diag(λ) D'``, ``P = H H'``, and what they take to and fro."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech.validate import Array, Matrix

STEEP = 1e4  # largest singular value of what other cells add, beside those of the basis, that is told from rounding


class Half(Protocol):
    """A square root H (k, k)."""

    @property
    def log_volume(self) -> float:
        """Return ``log |det H|``."""

    def around(self, matrix: Array) -> Array:
        """Return ``H' Q H``, a new matrix."""

    def times(self, matrix: Array) -> Array:
        """Return ``H X``."""

    def moved(self, matrix: Array) -> Array:
        """Return ``(H⁻¹ D diag(√λ))' X`` (s, k)."""


@dataclass(frozen=True, slots=True, eq=False)
class DiagonalHalf:
    """That of D = I; see `Half`."""

    scale: Array  # (k,) √λ

    @property
    def log_volume(self) -> float:
        """Return the logarithm of the determinant."""
        return float(np.log(self.scale).sum())

    def around(self, matrix: Array) -> Array:
        """Return ``H' Q H``."""
        scaled = matrix * self.scale
        scaled *= self.scale[:, None]
        return np.asarray(scaled)

    def times(self, matrix: Array) -> Array:
        """Return ``H X``."""
        return np.asarray(self.scale[:, None] * matrix)

    def moved(self, matrix: Array) -> Array:
        """Return X."""
        return matrix


@dataclass(frozen=True, slots=True, eq=False)
class TriangularHalf:
    """The triangular factor of any P; see `Half`."""

    lower: Array  # (k, k)
    moves: Matrix  # (k, s) ``D diag(√λ)``

    @property
    def log_volume(self) -> float:
        """Return the logarithm of the determinant."""
        return float(np.log(np.diagonal(self.lower)).sum())

    def around(self, matrix: Array) -> Array:
        """Return ``H' Q H``."""
        return np.asarray(self.lower.T @ matrix @ self.lower)

    def times(self, matrix: Array) -> Array:
        """Return ``H X``."""
        return np.asarray(self.lower @ matrix)

    def moved(self, matrix: Array) -> Array:
        """Return ``(H⁻¹ D diag(√λ))' X``."""
        solved = scipy.linalg.solve_triangular(self.lower, matrix, trans="T", lower=True, check_finite=False)
        return np.asarray(self.moves.T @ solved)


@dataclass(frozen=True, slots=True, eq=False)
class NearlyDiagonalHalf:
    """Where D is the identity and few columns R beside it: ``P = Λ^½ (I + G G') Λ^½``, ``G = Λ^-½ R √λ``; see `Half`.

    With ``G = X σ Y'``, ``H = Λ^½ (I + X (√(1 + σ²) - 1) X')``.
    """

    diagonal: DiagonalHalf
    own: npt.NDArray[
        np.intp
    ]  # (k,), others (c,): which columns of D are those of the identity, and which of R
    others: npt.NDArray[np.intp]
    axes: Array  # (k, c) X
    lengths: Array  # (c,) √(1 + σ²)
    beside: Array  # (c, c) ``Y σ``

    @classmethod
    def of(cls, moves: Array, own: npt.NDArray[np.intp], scale: Array) -> NearlyDiagonalHalf | None:
        """Return it; None where it would lose digits."""
        others = np.setdiff1d(np.arange(len(scale)), own)
        diagonal = DiagonalHalf(scale[own])
        axes, values, turn = np.linalg.svd(
            moves[:, others] * scale[others] / scale[own, None], full_matrices=False
        )
        if not values.max(initial=0.0) < STEEP:
            return None
        return cls(diagonal, own, others, axes, np.sqrt(1 + values**2), turn.T * values)

    @property
    def log_volume(self) -> float:
        """Return the logarithm of the determinant."""
        return self.diagonal.log_volume + float(np.log(self.lengths).sum())

    def around(self, matrix: Array) -> Array:
        """Return ``H' Q H``."""
        scaled = self.diagonal.around(matrix)
        scaled += ((scaled @ self.axes) * (self.lengths - 1)) @ self.axes.T
        return self._stretched(scaled, self.lengths)

    def times(self, matrix: Array) -> Array:
        """Return ``H X``."""
        return self.diagonal.times(self._stretched(matrix, self.lengths))

    def moved(self, matrix: Array) -> Array:
        """Return ``(H⁻¹ D diag(√λ))' X``."""
        turned = self._stretched(matrix, 1 / self.lengths)
        found = np.empty((len(self.own) + len(self.others), matrix.shape[1]))
        found[self.own], found[self.others] = turned, self.beside @ (self.axes.T @ turned)
        return found

    def _stretched(self, matrix: Array, lengths: Array) -> Array:
        return np.asarray(matrix + (self.axes * (lengths - 1)) @ (self.axes.T @ matrix))
