"""The pseudoinverse of design queries, with proven bounds of its error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg
from dualmech.validate import Array
from dualmech.verified import (
    UNIT,
    UPWARDS,
    Enclosure,
    gram_defect,
    inverse_near_identity,
    proves_span,
)

ORTHONORMAL = 1e-12
"""Largest entry of ``Q Q' - I``, for rows Q of unit norm, at which Q' serves as the pseudoinverse."""


@dataclass(frozen=True, slots=True, eq=False)
class PseudoInverse:
    """``Q⁺`` (d, k) in doubles, with what each column is proven to be off by at most.

    A design is brought to nearly orthonormal rows or columns by a triangle T from a factorisation with the long rows
    first and pivots, which need not be accurate: ``K = T Q`` and ``K K'`` are enclosed in twice the precision, and
    where that is close to the identity, ``Q⁺ = K' (K K')⁻¹ T`` for independent rows, ``Q⁺ = T (O'O)⁻¹ O'`` with
    ``O = Q T`` for independent columns. Where neither are independent, ``Q = H K`` by rows that span the others, and
    ``Q⁺ = K⁺ H⁺``; that they do must be proven, too.
    """

    design: Array  # (k, d) Q
    matrix: Array  # (d, k) Q⁺, with a zero column for an all-zero row of Q
    rounding: (
        Array  # (k,) what the norm of a column's error does not exceed; infinite where nothing is proven
    )
    basis: Array  # (r, d) orthonormal rows that span the rows of Q
    independent: bool  # whether the rows of Q that are not all zero are linearly independent
    known: Enclosure | None  # in twice the precision, where that was computed already

    @classmethod
    def of(cls, design: Array) -> PseudoInverse:
        """Transpose orthogonal rows; enclose the pseudoinverse of others."""
        norms = np.linalg.norm(design, axis=1)
        kept = np.flatnonzero(norms)
        shape = design.shape[1], len(design)
        matrix, allowance = np.zeros(shape), np.zeros(len(norms))
        rows = design[kept] / norms[kept, None]
        if len(rows) <= shape[0]:
            defect, error = gram_defect(rows)
            if np.abs(defect).max() <= ORTHONORMAL:
                off = np.linalg.norm(defect, axis=0) + np.sqrt(len(rows)) * error
                # With ``K K' = I + E``, ``K⁺ - K' = -K'E (I + E)⁻¹``; K is rounded, and so is its scale.
                reach = float(np.linalg.norm(off)) + 3 * UNIT * len(rows)
                if reach < 1e-3:
                    matrix[:, kept] = rows.T / norms[kept]
                    allowance[kept] = 1.01 * (off + (3 * np.sqrt(len(rows)) + 4) * UNIT) / norms[kept]
                    return cls(design, matrix, allowance, rows, True, None)
        basis = linalg.row_basis(design)
        known = _enclosed(design, kept, len(basis))
        if known is None:
            matrix[:, kept], allowance[kept] = np.linalg.pinv(design[kept]), np.inf
        else:
            matrix = known.high
            allowance = np.linalg.norm(np.abs(known.low) + known.radius, axis=0) * UPWARDS
        return cls(design, matrix, allowance, basis, len(basis) == len(kept), known)

    def enclosed(self) -> Enclosure | None:
        """Return the pseudoinverse in twice the precision; None where none is proven."""
        if self.known is not None or not np.all(np.isfinite(self.rounding)):
            return self.known
        return _enclosed(self.design, np.flatnonzero(np.any(self.design, axis=1)), len(self.basis))


def _enclosed(design: Array, kept: npt.NDArray[np.intp], rank: int) -> Enclosure | None:
    """Return the pseudoinverse, where it can be proven, with columns of zeros for rows of zeros."""
    rows, cells = design[kept], design.shape[1]
    # Rows are scaled by powers of 2 where they are independent: ``(D Q)⁺ = Q⁺ D⁻¹`` then, so that units are immaterial.
    units = np.ldexp(1.0, -np.frexp(np.abs(rows).max(axis=1))[1])
    with np.errstate(all="ignore"):
        if rank == len(rows):
            found = _of_independent(rows * units[:, None])
            found = None if found is None else found.columns_scaled(units)
        elif rank == cells:
            found = _of_spanning(Enclosure.of(rows))
        else:
            found = _of_dependent(rows, units, rank)
    if found is None or not np.all(np.isfinite(found.radius)):
        return None
    parts = []
    for each in (found.high, found.low, found.radius):
        whole = np.zeros((cells, len(design)))
        whole[:, kept] = each
        parts.append(whole)
    return Enclosure(*parts)


def _of_independent(rows: Array) -> Enclosure | None:
    """Return ``Q⁺ = K' (K K')⁻¹ T`` of independent rows."""
    root, order = _row_root(rows, len(rows))
    root[:, order] = root.copy()
    orthonormal = Enclosure.of(root) @ Enclosure.of(rows)
    middle = inverse_near_identity(orthonormal @ orthonormal.T)
    return None if middle is None else orthonormal.T @ (middle @ Enclosure.of(root))


def _of_spanning(rows: Enclosure) -> Enclosure | None:
    """Return ``Q⁺ = T (O'O)⁻¹ O'`` of independent columns."""
    root = Enclosure.of(_column_root(rows.high))
    orthonormal = rows @ root
    middle = inverse_near_identity(orthonormal.T @ orthonormal)
    return None if middle is None else (root @ middle) @ orthonormal.T


def _of_dependent(rows: Array, units: Array, rank: int) -> Enclosure | None:
    """Return ``Q⁺ = K⁺ H⁺``, ``Q = H K``, where K stands for as many rows as the rank, which span all."""
    scaled = rows * units[:, None]
    root, order = _row_root(scaled, rank)
    chosen = order[:rank]
    orthonormal = Enclosure.of(root) @ Enclosure.of(scaled[chosen])
    gram = orthonormal @ orthonormal.T
    middle = inverse_near_identity(gram)
    if middle is None:
        return None
    half = orthonormal.T @ middle
    tall = Enclosure.of(rows) @ half
    left = (Enclosure.of(rows) - tall @ orthonormal).T.columns_scaled(units).T
    spread = (gram - Enclosure.of(np.eye(rank))).norm()
    if not proves_span(scaled, chosen, np.diagonal(root), left, spread):
        return None
    others = _of_spanning(tall)
    return None if others is None else half @ others


def _row_root(rows: Array, rank: int) -> tuple[Array, npt.NDArray[np.intp]]:
    """Return a triangle T that makes as many rows nearly orthonormal, and an order of rows that has these first."""
    triangle, order = scipy.linalg.qr(rows.T, mode="r", pivoting=True, check_finite=False)
    return _inverse(triangle[:rank, :rank]).T.copy(), order


def _column_root(rows: Array) -> Array:
    """Return T such that ``Q T`` has nearly orthonormal columns, however long the rows are next to each other."""
    long_first = np.argsort(-np.linalg.norm(rows, axis=1), kind="stable")
    triangle, order = scipy.linalg.qr(rows[long_first], mode="r", pivoting=True, check_finite=False)
    root = np.zeros((rows.shape[1], rows.shape[1]))
    root[order] = _inverse(triangle[: rows.shape[1]])
    return root


def _inverse(triangle: Array) -> Array:
    """Return the inverse of a triangle, NaN where it has none."""
    if not np.all(np.diagonal(triangle)):
        return np.full(triangle.shape, np.nan)
    return np.asarray(scipy.linalg.solve_triangular(triangle, np.eye(len(triangle)), check_finite=False))
