"""Workload, basis and neighbours: the arrays that every problem about Gaussian noise on ``B x`` shares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload

CHUNK = 4096
"""Neighbours whose effect on the queries is written out at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """``W = L B`` and the moves ``B U`` between neighbours, with the two quadratic forms of a covariance.

    Attributes
    ----------
    workload : Workload
        W, (m, d).
    basis : (k, d) array
        B, of full row rank k = rank W.
    representation : (m, k) array
        L.
    neighbours : (d, s) matrix or None
        U, differences of neighbouring data sets up to sign; None stands for the identity.
    moves : (k, s) array
        B U: how far each pair of neighbours moves the noisy vector.
    unmoved : (k - r, k) array
        Orthonormal rows f with ``f B U = 0``: what no neighbour changes, released exactly.
    mismatch : (m,) array
        Largest entry of ``(W - L B) U``, in absolute value, with its own rounding: how far the two sides of a
        certificate may speak of different queries.
    """

    workload: Workload
    basis: Array
    representation: Array
    neighbours: Matrix | None
    moves: Array
    unmoved: Array
    mismatch: Array

    @classmethod
    def of(cls, workload: Workload, basis: npt.ArrayLike | None, neighbours: Matrix | None) -> Geometry:
        """Check the three against each other and factor the workload over the basis."""
        if not isinstance(workload, Workload):
            raise InputTypeError(f"workload must be a dualmech.Workload, got {type(workload).__name__}")
        validate.moderate(workload=workload.matrix)
        dense = workload.dense()
        if not np.any(dense):
            raise InvalidInputError("workload must have at least one query that is not all zero")
        chosen, representation = _factor(dense, workload.names, basis)
        checked = checked_neighbours(neighbours, workload.shape[1])
        moves = chosen if checked is None else moves_between(chosen, checked)
        if checked is not None and not np.any(np.abs(moves) > linalg.SPAN_TOLERANCE * np.abs(chosen).max()):
            raise InvalidInputError(
                "neighbours must change at least one query; none does, so every answer can be released exactly"
            )
        unmoved = np.zeros((0, len(chosen))) if checked is None else _unmoved(moves)
        mismatch = _mismatch(dense, chosen, representation)
        if checked is not None:
            mismatch = mismatch * float(np.abs(checked).sum(axis=0).max())
        for array in (chosen, representation, moves, unmoved, mismatch):
            validate.read_only(array)
        return cls(workload, chosen, representation, checked, moves, unmoved, mismatch)

    @property
    def rank(self) -> int:
        """Number of rows k of the basis."""
        return int(self.basis.shape[0])

    @property
    def free_queries(self) -> npt.NDArray[np.intp]:
        """Indices of the queries that no neighbour changes: all-zero ones, and those released exactly."""
        matrix = self.workload.matrix
        if self.neighbours is None:
            return np.flatnonzero(self.workload.row_norms() == 0)
        changed, rounding = np.zeros(matrix.shape[0]), np.zeros(matrix.shape[0])
        for _, changes, allowed in changes_between(matrix, self.neighbours):
            changed = np.maximum(changed, changes.max(axis=1))
            rounding = np.maximum(rounding, allowed.max(axis=1))
        return np.flatnonzero(changed <= rounding)

    def differences(self, queries: npt.NDArray[np.intp], moves: npt.NDArray[np.intp]) -> Array:
        """Return the chosen rows and columns of ``W U``, from the workload itself and not from its factors."""
        rows = self.workload.matrix[queries]
        if self.neighbours is None:
            return linalg.to_dense(rows[:, moves])
        return linalg.to_dense(rows @ self.neighbours[:, moves])

    def variances(self, covariance: Array) -> tuple[Array, Array]:
        """Return ``diag(L Σ L')`` (m,) and an allowance for its rounding."""
        rows, size = self.representation, self.rank
        values = np.einsum("jk,jk->j", rows @ covariance, rows)
        magnitudes = np.einsum("jk,jk->j", np.abs(rows) @ np.abs(covariance), np.abs(rows))
        return values, 2 * size * linalg.EPS * magnitudes


def _factor(dense: Array, names: tuple[str, ...], basis: npt.ArrayLike | None) -> tuple[Array, Array]:
    cells = dense.shape[1]
    if basis is None:
        spanning = linalg.spanning(dense)
        return spanning, dense if linalg.is_identity(spanning) else dense @ spanning.T
    given = np.array(validate.finite(2, basis=basis))
    validate.moderate(basis=given)
    if given.shape[1] != cells:
        raise InvalidInputError(f"basis must have {cells} columns, as the workload, got {given.shape[1]}")
    workload_rank = linalg.rank(dense)
    if len(given) > workload_rank:
        raise InvalidInputError(
            f"basis must have {workload_rank} rows, the rank of the workload, got {len(given)}"
        )
    if linalg.rank(given) < len(given):
        raise InvalidInputError(
            f"basis must have full row rank, got rank {linalg.rank(given)} of {len(given)}"
        )
    representation = dense if linalg.is_identity(given) else linalg.represent(dense, given, names)
    if len(given) < workload_rank:
        raise InvalidInputError(
            f"basis must have {workload_rank} rows, the rank of the workload, got {len(given)}, "
            f"which span it only up to rounding"
        )
    return given, representation


def _mismatch(dense: Array, basis: Array, representation: Array) -> Array:
    """Return the largest entry of each row of ``|W - L B|``, rounding included; nothing where B is the identity."""
    if linalg.is_identity(basis):
        return np.zeros(len(dense))
    found = np.empty(len(dense))
    for start in range(0, len(dense), CHUNK):
        rows = representation[start : start + CHUNK]
        left = np.abs(dense[start : start + CHUNK] - rows @ basis).max(axis=1)
        found[start : start + CHUNK] = left + len(basis) * linalg.EPS * (np.abs(rows) @ np.abs(basis)).max(
            axis=1
        )
    return found


def checked_neighbours(neighbours: Matrix | npt.ArrayLike | None, cells: int) -> Matrix | None:
    """Return differences of neighbouring data sets, one a column; None stands for the identity."""
    if neighbours is None:
        return None
    checked = validate.matrix(neighbours=neighbours)
    validate.moderate(neighbours=checked)
    if checked.shape[0] != cells:
        raise InvalidInputError(f"neighbours must have {cells} rows, one a cell, got {checked.shape[0]}")
    if linalg.is_identity(checked):
        return None
    return sp.csc_array(checked) if sp.issparse(checked) else checked


def changes_between(matrix: Matrix, neighbours: Matrix) -> Iterator[tuple[int, Array, Array]]:
    """Yield, from a first pair of neighbours on, ``|W U|`` for the next few and what of it may be rounding."""
    for start in range(0, neighbours.shape[1], CHUNK):
        columns = neighbours[:, start : start + CHUNK]
        reach = linalg.to_dense(abs(matrix) @ abs(columns))
        yield start, np.abs(linalg.to_dense(matrix @ columns)), 8 * matrix.shape[1] * linalg.EPS * reach


def moves_between(basis: Array, neighbours: Matrix) -> Array:
    """Return ``B U``, with zero for rows and columns that are rounding alone: they would be taken for secrets."""
    moves = linalg.to_dense(basis @ neighbours)
    units = np.abs(basis).max(axis=1)[:, None]
    reach = linalg.to_dense(np.abs(basis) @ abs(neighbours)) / units
    for axis in (0, 1):
        rounding = 8 * basis.shape[1] * linalg.EPS * np.linalg.norm(reach, axis=axis, keepdims=True)
        moves = np.where(np.linalg.norm(moves / units, axis=axis, keepdims=True) > rounding, moves, 0.0)
    return moves


def _unmoved(moves: Array) -> Array:
    """Return orthonormal rows f with ``f B U = 0``, units of the basis rows ignored; none where all are moved."""
    norms = np.linalg.norm(moves, axis=1)
    units = np.where(norms > 0, norms, 1.0)
    scaled = moves / units[:, None]
    small = scipy.linalg.qr(scaled.T, mode="r", check_finite=False)[0][: len(moves)]
    _, values, vectors = linalg.svd(small, full_matrices=True)
    still = vectors[linalg.numerical_rank(values, moves.shape) :] / units
    if not len(still):
        return still
    return np.ascontiguousarray(scipy.linalg.qr(still.T, mode="economic", check_finite=False)[0].T)
