"""Newton's equations for weights on neighbours and queries together with a matrix of weights on a release.

The unknowns are relative changes: ``y = √(w z) · dw / w`` for a single weight w with slack z, and Y for the matrix,
``dΩ = G D^-½ Y D^-½ G'``, where ``Ω = G G'`` and the slack matrix S satisfy ``G'S G = D²``, D diagonal: the scaling of
Nesterov and Todd, in which all unknowns have the same weight. The matrix of the equations is then the identity
plus the curvature of the dual function (`dualmech.fast.engine.fidelity`), ``⟨M, K ∘ M⟩ + τ ‖C‖²`` with

    M = Σ_j δ_j u_j u_j' + Σ_ab Δ_ab r_a r_b' - C,     C = Σ_i δ_i t_i t_i',

δ = y / √(w z), ``Δ = D^-½ Y D^-½``, and rows r_a for the release as u_j for the queries. With q rows released it has
q² unknowns too many to factor. Few of them are stiff, though: those pairs (a, b) both of whose directions bind. These
and the single weights are factored, the rest is left to conjugate gradients, which takes some tens of steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dualmech.fast.engine.conjugate_gradients import conjugate_gradients
from dualmech.validate import Array

STIFF = 3.0  # a pair whose curvature is above this many times its barrier is factored
MOST_PAIRS = 4000  # pairs that are factored at most, the stiffest
ACCURACY = 1e-3  # residual at which conjugate gradients stop, relative, in the norm of the preconditioner
MOST_STEPS = 1000  # steps of conjugate gradients at most
ENTRIES = 1024  # entries of the symmetric matrices M that are written out at a time


@dataclass(frozen=True, slots=True, eq=False)
class ReuseEquations:
    """The equations at one point; unknowns stand in one vector, y (s + m,) and then Y (q, q) row by row."""

    factors: Array  # (s + m + q, k) rows t_i, u_j and r_a
    mean: Array  # (k,) the n of `dualmech.fast.engine.fidelity`, ``K_ab = n_a n_b / (n_a + n_b + τ)``
    smoothing: float  # τ
    sides: tuple[int, int]  # (s, m) numbers of weights on neighbours and on queries
    products: Array  # (s + m,) w z
    spread: Array  # (q,) the diagonal of D

    @property
    def kernel(self) -> Array:
        """K (k, k)."""
        return self.mean[:, None] * self.mean / (self.mean[:, None] + self.mean + self.smoothing)

    @property
    def parts(self) -> tuple[Array, Array, Array]:
        """Return the rows t_i, u_j and r_a, divided so that the unknowns themselves make M of them."""
        neighbours, queries = self.sides
        first, last = self.factors[: neighbours + queries], self.factors[neighbours + queries :]
        single = first / self.products[:, None] ** 0.25
        return single[:neighbours], single[neighbours:], last / np.sqrt(self.spread)[:, None]

    def solve(self, right_side: Array, normals: Array) -> tuple[Array, Array]:
        """Return the unknowns x, with ``normals @ x = 0``, and the multipliers of these constraints."""
        apply, invert = self._operator(), self._preconditioner()
        bordered = np.stack([invert(normal) for normal in normals])
        corner = normals @ bordered.T

        def project(residual: Array) -> Array:
            direction = invert(residual)
            return np.asarray(direction - bordered.T @ np.linalg.solve(corner, normals @ direction))

        enough = ACCURACY**2 * float(right_side @ project(right_side))
        unknowns, residual = conjugate_gradients(apply, project, right_side, enough, MOST_STEPS)
        return unknowns, np.asarray(np.linalg.solve(normals @ normals.T, normals @ residual))

    def _operator(self) -> Callable[[Array], Array]:
        """Return what multiplies the unknowns with the matrix of the equations."""
        (first, last, matrix), kernel, count = self.parts, self.kernel, sum(self.sides)
        size = len(self.spread)

        def apply(unknowns: Array) -> Array:
            single, double = unknowns[:count], unknowns[count:].reshape(size, size)
            spent = (first.T * single[: len(first)]) @ first
            change = (last.T * single[len(first) :]) @ last + matrix.T @ double @ matrix - spent
            weighed = kernel * change
            on_first = self.smoothing * spent - weighed
            return unknowns + np.concatenate(
                [
                    np.einsum("ik,ik->i", first @ on_first, first),
                    np.einsum("jk,jk->j", last @ weighed, last),
                    (matrix @ weighed @ matrix.T).ravel(),
                ]
            )

        return apply

    def _preconditioner(self) -> Callable[[Array], Array]:
        """Return what divides by the diagonal, and by the whole block of the single weights and the stiff pairs."""
        (first, last, matrix), kernel, count = self.parts, self.kernel, sum(self.sides)
        size = len(self.spread)
        squares = matrix**2
        diagonal = 1 + 0.5 * (squares @ kernel @ squares.T) * (1 + np.eye(size))
        rows, columns = np.triu_indices(size)
        order = np.argsort(-diagonal[rows, columns], kind="stable")[:MOST_PAIRS]
        order = order[diagonal[rows, columns][order] > 1 + STIFF]
        rows, columns = rows[order], columns[order]
        # In units in which an entry off the diagonal, which stands twice, has the norm of one on it.
        units = np.where(rows == columns, 1.0, np.sqrt(2.0))
        block = self._block(
            np.vstack([first, last, matrix[rows]]),
            np.vstack([first, last, matrix[columns]]),
            np.concatenate([-np.ones(len(first)), np.ones(len(last)), units]),
        )
        block[: len(first), : len(first)] += self.smoothing * (first @ first.T) ** 2
        block[np.diag_indices_from(block)] += 1.0
        factor = scipy.linalg.cho_factor(block, lower=True, overwrite_a=True, check_finite=False)

        def invert(residual: Array) -> Array:
            double = residual[count:].reshape(size, size)
            coupled = np.concatenate([residual[:count], double[rows, columns] * units])
            solved = scipy.linalg.cho_solve(factor, coupled, check_finite=False)
            result = double / diagonal
            result[rows, columns] = result[columns, rows] = solved[count:] / units
            return np.concatenate([solved[:count], result.ravel()])

        return invert

    def _block(self, left: Array, right: Array, scale: Array) -> Array:
        """Return ``⟨M_a, K ∘ M_b⟩`` for the matrices ``M_a = scale_a (l_a r_a' + r_a l_a') / 2``."""
        upper, columns = np.triu_indices(left.shape[1])
        root = np.sqrt(self.kernel[upper, columns] * np.where(upper == columns, 1.0, 2.0)) / 2
        block = np.zeros((len(left), len(left)))
        for start in range(0, len(upper), ENTRIES):
            a, b = upper[start : start + ENTRIES], columns[start : start + ENTRIES]
            entries = left[:, a] * right[:, b]
            entries += left[:, b] * right[:, a]
            entries *= root[start : start + ENTRIES]
            block += entries @ entries.T
        return np.asarray(block * scale * scale[:, None])
