"""Elementary linear algebra of the judge: rank, row space, Cholesky factors, trace norm, with rounding-error bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech.errors import InvalidInputError
from dualmech.validate import Array, Matrix
from dualmech.verified import (
    CONTRACTED,
    UPWARDS,
    Enclosure,
    gram_defect,
    inverse_near_identity,
    spectral_norm,
    sum_rounding,
)

EPS = float(np.finfo(np.float64).eps)

SPAN_TOLERANCE = 1e-9
"""Maximum relative distance of a row from a row space that counts as rounding."""

RANK_CHECK_TOL = 1e-7
"""A relative singular value below this needs a second check before it counts in a rank."""

MIN_RECIPROCAL_CONDITION = 1e-6  # columns of a triangular factor above this are independent without a further check
MIN_GRAM_RECIPROCAL_CONDITION = 1e-4  # the same for a Gram matrix, which squares condition numbers
GRAM_ASPECT_RATIO = 4  # a matrix with this many rows for each column is cheaper to handle by its Gram matrix
GRAM_DEFECT_TOL = 1e-12  # rows whose Gram matrix is farther from the identity are improved in double-double arithmetic

GRAM_EIGENVALUE_TOL = 1e-8
"""Eigenvalues of ``A A'`` above this, relative to the largest, give their singular values to half the digits."""

MAX_SMALL_FRACTION = 0.25  # fraction of singular values, too small for ``A A'``, that are computed separately


def to_dense(matrix: Matrix) -> Array:
    return np.asarray(matrix.toarray()) if sp.issparse(matrix) else np.asarray(matrix)


def is_identity(matrix: Matrix) -> bool:
    rows, columns = matrix.shape
    if rows != columns:
        return False
    if sp.issparse(matrix):
        return bool((abs(matrix - sp.eye_array(rows)) > 0).nnz == 0)
    return bool(np.all(np.diagonal(matrix) == 1) and np.count_nonzero(matrix) == rows)


def equilibrate(matrix: Array) -> Array:
    """Scale the rows, then the columns, to unit norm (zeros stay zeros), so that the rank does not depend on units."""
    rows = np.linalg.norm(matrix, axis=1)
    scaled = matrix / np.where(rows > 0, rows, 1.0)[:, None]
    columns = np.linalg.norm(scaled, axis=0)
    return np.asarray(scaled / np.where(columns > 0, columns, 1.0))


def numerical_rank(singular_values: Array, shape: tuple[int, int]) -> int:
    """Count the singular values above ``8 max(shape) eps`` times the largest."""
    if singular_values.size == 0 or singular_values[0] == 0:
        return 0
    return int(np.sum(singular_values > rank_tolerance(max(shape)) * singular_values[0]))


def rank_tolerance(size: int) -> float:
    """Return the singular value, relative to the largest, up to which one of a matrix of this size counts as 0."""
    return 8 * size * EPS


def rank(matrix: Array) -> int:
    if is_identity(matrix):
        return int(matrix.shape[0])
    scaled = equilibrate(matrix)
    return numerical_rank(singular_values(scaled), scaled.shape)


def svd(matrix: Array, full_matrices: bool = False) -> tuple[Array, Array, Array]:
    """Return a singular value decomposition by divide and conquer or, if that fails, by QR iterations.

    Divide and conquer is faster, but sometimes fails on matrices with many equal singular values. Raises
    `numpy.linalg.LinAlgError` if neither algorithm converges, or if an entry is not finite.
    """
    if not np.isfinite(matrix).all():
        raise np.linalg.LinAlgError("a matrix with entries that are not finite has no singular values")
    try:
        parts = scipy.linalg.svd(matrix, full_matrices=full_matrices, check_finite=False)
    except np.linalg.LinAlgError:
        parts = scipy.linalg.svd(matrix, full_matrices=full_matrices, check_finite=False, lapack_driver="gesvd")
    return parts[0], parts[1], parts[2]


def singular_values(matrix: Array) -> Array:
    """Return the singular values in decreasing order."""
    try:
        values = scipy.linalg.svdvals(matrix, check_finite=False)
    except np.linalg.LinAlgError:
        values = scipy.linalg.svd(matrix, compute_uv=False, check_finite=False, lapack_driver="gesvd")
    return np.asarray(values)


def triangle(rows: Matrix) -> Array:
    """Return an upper triangular R, shape (min(m, k), k), with ``R'R = X'X`` for rows X, shape (m, k).

    Rows are sorted by decreasing norm: a QR factorisation by reflections then keeps the short rows accurate.
    """
    order = np.argsort(-np.linalg.norm(rows, axis=1), kind="stable")
    factor = scipy.linalg.qr(rows[order], mode="r", check_finite=False)[0]
    return np.ascontiguousarray(factor[: rows.shape[1]])


def row_space(matrix: Array) -> Array:
    """Return orthonormal rows (k, d) that span the row space of an (m, d) matrix of rank k.

    Rows are scaled to unit norm first. The rank follows from the singular values; if one of them is neither clearly
    zero nor clearly positive, the rank of the equilibrated matrix is taken.
    """
    rows = _unit_rows(matrix)
    orthonormal = None
    if rows.shape[0] < rows.shape[1]:
        orthonormal, triangle = scipy.linalg.qr(rows.T, mode="economic", check_finite=False)
        rows = triangle.T
    elif len(rows) >= 2 * rows.shape[1]:
        rows = scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]]
    _, values, basis = svd(rows)
    basis = basis[: _rank_of_singular_values(values, matrix)]
    basis = np.ascontiguousarray(basis if orthonormal is None else basis @ orthonormal.T)
    basis[:, ~np.any(matrix, axis=0)] = 0.0  # equilibration would scale rounding errors in zero columns up
    return basis


def _unit_rows(matrix: Array) -> Array:
    """Return the non-zero rows, scaled to unit norm."""
    norms = np.linalg.norm(matrix, axis=1)
    return np.asarray(matrix[norms > 0] / norms[norms > 0, None])


def row_basis(matrix: Array) -> Array:
    """Return orthonormal rows that span the row space; the identity if that is the whole space."""
    basis = np.eye(matrix.shape[1]) if spans_all(matrix) else row_space(matrix)
    return np.eye(len(basis)) if len(basis) == matrix.shape[1] else basis


def spans_all(matrix: Array) -> bool:
    """Return whether the columns are clearly independent, so that the rows span the whole space.

    The condition number of a triangular factor of the unit rows is estimated, at a tenth of the cost of singular
    values. False means that the singular values must be computed.
    """
    rows = _unit_rows(matrix)
    if rows.shape[0] < rows.shape[1]:
        return False
    if len(rows) >= GRAM_ASPECT_RATIO * rows.shape[1] and are_clearly_independent(rows.T @ rows):
        return True
    triangle = scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]]
    triangle = triangle / np.linalg.norm(triangle, axis=0) if np.all(np.any(triangle, axis=0)) else triangle
    reciprocal, _ = scipy.linalg.lapack.dtrcon(triangle, norm="1", uplo="U", diag="N")
    return bool(reciprocal > MIN_RECIPROCAL_CONDITION)


def are_clearly_independent(gram: Array) -> bool:
    """Return whether the Gram matrix of columns is so well conditioned that they are independent despite rounding."""
    factor = cholesky(gram)
    if factor is None:
        return False
    scaled = factor / np.sqrt(np.diagonal(gram))
    reciprocal, _ = scipy.linalg.lapack.dtrcon(scaled, norm="1", uplo="U", diag="N")
    return bool(reciprocal > MIN_GRAM_RECIPROCAL_CONDITION)


def row_rank(matrix: Array) -> int:
    if is_identity(matrix):
        return len(matrix)
    rows = _unit_rows(matrix)
    if rows.shape[0] < rows.shape[1]:
        rows = scipy.linalg.qr(rows.T, mode="r", check_finite=False)[0][: len(rows)]
    return _rank_of_singular_values(singular_values(rows), matrix)


def _rank_of_singular_values(values: Array, matrix: Array) -> int:
    """Return the rank from singular values of unit rows or, if these are inconclusive, of the equilibrated matrix."""
    size = numerical_rank(values, matrix.shape)
    return rank(matrix) if np.any(values[:size] < RANK_CHECK_TOL * values[0]) else size


def represent(matrix: Array, basis: Array, names: tuple[str, ...], label: str = "workload") -> Array:
    """Return L (m, k) with ``L @ basis = matrix``.

    Raises `InvalidInputError` for a row outside the row space of the basis, by its name.
    """
    units, orthonormal, triangle = row_factors(basis)
    scaled = matrix * units
    coordinates = scaled @ orthonormal
    residual = np.linalg.norm(scaled - coordinates @ orthonormal.T, axis=1)
    outside = np.flatnonzero(residual > SPAN_TOLERANCE * np.linalg.norm(scaled, axis=1))
    if outside.size:
        raise InvalidInputError(
            f"{label}: query {names[outside[0]]!r} lies outside the row space of the basis "
            f"({outside.size} of {len(matrix)} do)"
        )
    return np.ascontiguousarray(scipy.linalg.solve_triangular(triangle, coordinates.T, check_finite=False).T)


def row_factors(rows: Array) -> tuple[Array, Array, Array]:
    """Return units u (d,), Q (d, k) and a triangle R (k, k) with ``diag(u) rows' = Q R``, for independent rows.

    The units are 1. If R is singular up to rounding with them, they are powers of 2 that bring the columns to a common
    scale. Raises `InvalidInputError` for rows that are dependent up to rounding in both units.
    """
    units = np.ones(rows.shape[1])
    for _ in range(2):
        orthonormal, triangle = scipy.linalg.qr((rows * units).T, mode="economic", check_finite=False)
        sizes = np.abs(np.diagonal(triangle))
        if np.all(sizes > rank_tolerance(max(rows.shape)) * np.linalg.norm(triangle, axis=0)):
            return units, orthonormal, triangle
        largest = np.abs(rows).max(axis=0)
        units = np.where(largest > 0, np.ldexp(1.0, -np.frexp(largest)[1]), 1.0)
    if not np.all(sizes > 0):
        raise InvalidInputError(
            f"rows must be independent by more than rounding, these {len(rows)} are not: use fewer rows, or units in "
            "which cells are of similar sizes"
        )
    return units, orthonormal, triangle


def kronecker(factors: Sequence[Array]) -> Array:
    """Return the Kronecker product of one or more matrices; the indices of the last factor vary fastest."""
    product: Array = np.ones((1, 1))
    for factor in factors:  # five times faster than `np.kron` for small matrices
        rows, columns = len(product) * len(factor), product.shape[1] * factor.shape[1]
        product = (product[:, None, :, None] * factor[None, :, None, :]).reshape(rows, columns)
    return product


def apply_along_axes(matrices: Sequence[Array], tensor: Array) -> Array:
    """Return ``(⊗ A_i) vec(tensor)`` as a tensor: matrix i is multiplied along axis i."""
    for axis, matrix in enumerate(matrices):
        tensor = np.moveaxis(np.tensordot(matrix, tensor, axes=(1, axis)), 0, axis)
    return np.asarray(tensor)


def cholesky(matrix: Array) -> Array | None:
    """Return the upper factor R with ``R' R = matrix``, or None if the matrix is not positive definite.

    The matrix is scaled to unit diagonal first, so that the accuracy of R does not depend on the units of the rows.
    """
    diagonal = np.diagonal(matrix)
    if not np.all(np.isfinite(matrix)) or not np.all(diagonal > 0):
        return None
    scale = np.sqrt(diagonal)
    try:
        factor = scipy.linalg.cholesky(matrix / scale / scale[:, None], check_finite=False)
    except np.linalg.LinAlgError:
        return None
    return np.asarray(factor * scale) if np.all(np.isfinite(factor)) else None


def regularised_covariance(covariance: Array) -> Array | None:
    """Return a covariance within rounding of the given one and not numerically singular; None if it is indefinite.

    A clearly positive definite matrix is returned unchanged. Otherwise coordinates of zero variance are left out (their
    rows must be exactly zero), the other coordinates are scaled to unit diagonal, and eigenvalues below
    ``cut = 8 k eps`` times the largest are raised to the cut. An eigenvalue below -cut makes the matrix indefinite. The
    judge takes the result in place of the given matrix, so that its statements about the result are exact.
    """
    if not np.all(np.isfinite(covariance)):
        return None
    diagonal = np.diagonal(covariance)
    noisy = np.flatnonzero(diagonal > 0)
    if np.any(diagonal < 0) or np.any(covariance[diagonal == 0]) or not noisy.size:
        return None
    if _is_clearly_definite(covariance[np.ix_(noisy, noisy)]):
        return covariance
    units, values, vectors, cut = _spectrum(covariance, noisy)
    if values[0] < -cut:
        return None
    if values[0] > cut:
        return covariance
    block = (vectors * np.maximum(values, cut)) @ vectors.T * units * units[:, None]
    result = np.zeros_like(covariance)
    result[np.ix_(noisy, noisy)] = (block + block.T) / 2
    return result


def is_singular(covariance: Array) -> bool:
    """Return whether a direction has zero variance up to rounding, with coordinates scaled to unit variance."""
    noisy = bool(np.all(np.diagonal(covariance) > 0))
    if not noisy or _is_clearly_definite(covariance):
        return not noisy
    _, values, _, _ = _spectrum(covariance, np.arange(len(covariance)))
    return bool(np.any(are_silent(values)))


def are_silent(values: Array) -> npt.NDArray[np.bool_]:
    """Return which eigenvalues (in increasing order) of a covariance with unit diagonal are zero up to rounding.

    The threshold is twice the cut of `regularised_covariance`, so that raised eigenvalues count as zero too.
    """
    return np.asarray(values <= 16 * len(values) * EPS * values[-1])


def _is_clearly_definite(covariance: Array) -> bool:
    """Return whether a Cholesky factor proves all eigenvalues, at unit diagonal, to be above rounding level."""
    factor, size = cholesky(covariance), len(covariance)
    if factor is None:
        return False
    scaled = factor / np.sqrt(np.diagonal(covariance))
    reciprocal, _ = scipy.linalg.lapack.dtrcon(scaled, norm="1", uplo="U", diag="N")
    return bool(reciprocal**2 > 64 * size**2 * EPS)


def _spectrum(covariance: Array, noisy: npt.NDArray[np.intp]) -> tuple[Array, Array, Array, float]:
    """Return the standard deviations, the eigenvalues and eigenvectors of the correlation matrix, and their cut."""
    units = np.sqrt(np.diagonal(covariance)[noisy])
    values, vectors = np.linalg.eigh(covariance[np.ix_(noisy, noisy)] / units / units[:, None])
    return units, values, vectors, rank_tolerance(len(values)) * float(values[-1])


def leaves_range(covariance: Array, vectors: Array, rounding: Array | None = None) -> npt.NDArray[np.bool_]:
    """Return which columns have a component outside the range of a singular covariance beyond rounding, shape (s,).

    For a column ``b = Σ y`` inside the range, an error E of Σ causes a component ``E y`` in the null space.

    - `rounding`: absolute error of the entries of the columns.
    """
    error = np.zeros((1, 1)) if rounding is None else rounding
    silent = np.diagonal(covariance) <= 0
    leaves = np.any((np.abs(vectors) > error) & silent[:, None], axis=0)
    if not np.all(silent):
        units, values, directions, cut = _spectrum(covariance, np.flatnonzero(~silent))
        coordinates = directions.T @ (vectors[~silent] / units[:, None])
        null, positive = values <= cut, values > cut
        solutions = np.linalg.norm(coordinates[positive] / values[positive, None], axis=0) * values[-1]
        column_error = np.linalg.norm(np.broadcast_to(error, vectors.shape)[~silent] / units[:, None], axis=0)
        tolerance = 8 * len(values) * EPS * (np.linalg.norm(coordinates, axis=0) + solutions) + column_error
        leaves |= np.linalg.norm(coordinates[null], axis=0) > tolerance
    return np.asarray(leaves)


def inverse_forms(
    covariance: Array, vectors: Array, rounding: Array | None = None
) -> tuple[Array, Array, Array] | None:
    """Return the regularised covariance Σ, ``b_i' Σ⁻¹ b_i`` for the columns b_i of `vectors`, and error bounds.

    The form of a column outside the range of the given covariance is ``inf``. None if the covariance is indefinite.

    - `rounding`: absolute error of the entries of the columns.
    """
    regular = regularised_covariance(covariance)
    if regular is None:
        return None
    forms, error = _forms(regular, vectors)
    if rounding is not None:
        shifts = np.linalg.norm(_whitener(covariance, regular) @ rounding, axis=0)
        error = error + (2 * np.sqrt(forms) + shifts) * shifts
    if regular is not covariance or not np.all(np.diagonal(covariance)):
        forms = np.where(leaves_range(covariance, vectors, rounding), np.inf, forms)
    return regular, forms, error


def _forms(covariance: Array, vectors: Array) -> tuple[Array, Array]:
    """Return the forms on the coordinates of positive variance and proven error bounds (inf if none is proven).

    For any y, with ``r = b - Σ y``: ``b' Σ⁻¹ b = b'y + y'r + r' Σ⁻¹ r``, and the last term is at most ``‖r‖² ‖Σ⁻¹‖``.
    """
    noisy = np.diagonal(covariance) > 0
    scaled, units = in_powers_of_two(covariance[np.ix_(noisy, noisy)])
    factor, columns = cholesky(scaled), vectors[noisy] * units[:, None]
    if factor is None:
        return np.full(vectors.shape[1], np.inf), np.zeros(vectors.shape[1])
    half = scipy.linalg.solve_triangular(factor, columns, trans="T", check_finite=False)
    forms = np.einsum("ki,ki->i", half, half)
    exact = is_identity(factor) and bool(np.all(half == np.rint(half)))
    if exact and np.all(forms <= 2**53):
        return forms, np.zeros(len(forms))  # sums of squared integers are exact
    if (root := inverse_root(scaled, factor)) is None:
        return forms, np.full(len(forms), np.inf)
    solutions, residuals, rounding = _solution(scaled, factor, columns, half)
    sizes = np.abs(solutions)
    first, second = np.einsum("ki,ki->i", columns, solutions), np.einsum("ki,ki->i", solutions, residuals)
    error = np.abs(first + second - forms) + 4 * EPS * forms + np.einsum("ki,ki->i", sizes, rounding)
    error += sum_rounding(len(scaled)) * np.einsum("ki,ki->i", sizes, np.abs(columns) + np.abs(residuals))
    residual_bounds = np.abs(residuals) + rounding
    error += np.einsum("ki,ki->i", residual_bounds, residual_bounds) * _inverse_norm(*root)
    return forms, np.where(exact & (forms <= 2**53), 0.0, error * UPWARDS)


def _solution(matrix: Array, factor: Array, columns: Array, half: Array) -> tuple[Array, Array, Array]:
    """Return y with ``Σ y ≈ b`` for the columns b, the residuals ``b - Σ y``, and bounds on their rounding errors."""
    solutions = scipy.linalg.solve_triangular(factor, half, check_finite=False)
    rounding = sum_rounding(len(matrix) + 1) * (np.abs(matrix) @ np.abs(solutions) + np.abs(columns))
    return solutions, columns - matrix @ solutions, rounding


def _inverse_norm(root: Array, bound: float) -> float:
    """Return an upper bound on ``‖Σ⁻¹‖`` from T and the bound of `inverse_root`."""
    return bound * spectral_norm(np.abs(root)) ** 2


def inverse_blocks(
    covariance: Array, vectors: Array, groups: npt.NDArray[np.intp], rounding: Array | None = None
) -> tuple[Array, Array, Array] | None:
    """Return the regularised covariance Σ, ``B_p' Σ⁻¹ B_p`` for groups of columns of `vectors`, and error bounds.

    `groups` (p, k) holds column numbers, -1 for no column. The blocks and the error bounds of their entries have shape
    (p, k, k): 0 if there is no column, inf if a column is outside the range of Σ or no bound is proven.

    For any Y, with ``R = B - Σ Y``: ``B' Σ⁻¹ B = B'Y + Y'R + R' Σ⁻¹ R``, and entry (i, j) of the last term is at most
    ``‖R_i‖ ‖R_j‖ ‖Σ⁻¹‖``.
    """
    regular = regularised_covariance(covariance)
    if regular is None:
        return None
    blocks, error, lengths = _blocks(regular, vectors, groups)
    if rounding is not None:
        shifts = _by_group(np.linalg.norm(_whitener(covariance, regular) @ rounding, axis=0), groups)
        error += shifts[:, :, None] * lengths[:, None] + (lengths + shifts)[:, :, None] * shifts[:, None]
    error = np.maximum(error, np.swapaxes(error, 1, 2)) * UPWARDS
    if regular is not covariance or not np.all(np.diagonal(covariance)):
        leaves = _by_group(leaves_range(covariance, vectors, rounding), groups)
        blocks = np.where(leaves[:, :, None] | leaves[:, None, :], np.inf, blocks)
    pairs = (groups >= 0)[:, :, None] & (groups >= 0)[:, None, :]
    return regular, np.where(pairs, blocks, 0.0), np.where(pairs & np.isfinite(blocks), error, 0.0)


def _by_group(values: npt.NDArray[Any], groups: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Return the values of each group's columns, 0 for no column."""
    return np.append(values, np.zeros(1, dtype=values.dtype))[groups]


def _blocks(covariance: Array, vectors: Array, groups: npt.NDArray[np.intp]) -> tuple[Array, Array, Array]:
    """Return the blocks of groups, error bounds of their entries, and upper bounds on the roots of their diagonals."""
    noisy = np.diagonal(covariance) > 0
    scaled, units = in_powers_of_two(covariance[np.ix_(noisy, noisy)])
    factor = cholesky(scaled)
    root = None if factor is None else inverse_root(scaled, factor)
    if factor is None or root is None:
        unknown = np.full((*groups.shape, groups.shape[1]), np.inf)
        return unknown, np.zeros_like(unknown), np.full(groups.shape, np.inf)
    columns = np.append(vectors[noisy] * units[:, None], np.zeros((len(scaled), 1)), axis=1)
    half = scipy.linalg.solve_triangular(factor, columns, trans="T", check_finite=False)
    parts = (*_solution(scaled, factor, columns, half), columns)
    # Each has shape (groups, coordinates, k).
    solutions, residuals, rounding, columns = (np.moveaxis(part[:, groups], 0, 1) for part in parts)
    products = np.swapaxes(columns, 1, 2) @ solutions + np.swapaxes(solutions, 1, 2) @ residuals
    sizes = np.abs(solutions)
    error = np.swapaxes(sizes, 1, 2) @ rounding + sum_rounding(len(scaled) + 2) * (
        np.swapaxes(np.abs(columns), 1, 2) @ sizes + np.swapaxes(sizes, 1, 2) @ np.abs(residuals)
    )
    norms = np.linalg.norm(np.abs(residuals) + rounding, axis=1)
    error += norms[:, :, None] * norms[:, None, :] * _inverse_norm(*root) + 2 * EPS * np.abs(products)
    blocks = (products + np.swapaxes(products, 1, 2)) / 2
    diagonals = np.einsum("pii->pi", blocks) + np.einsum("pii->pi", error)
    return blocks, error, np.sqrt(np.maximum(diagonals, 0.0)) * UPWARDS


def in_powers_of_two(covariance: Array) -> tuple[Array, Array]:
    """Return ``u_i Σ_ij u_j``, with diagonal between 1/2 and 4, and the units u, powers of 2 (no rounding)."""
    units = np.ldexp(1.0, -(np.frexp(np.diagonal(covariance))[1] // 2))
    return np.asarray(covariance * units * units[:, None]), units


def inverse_root(covariance: Array, factor: Array) -> tuple[Array, float] | None:
    """Return T and an upper bound on ``‖(T' Σ T)⁻¹‖``, which proves Σ positive definite; None if the proof fails.

    T is the inverse of a Cholesky factor. If ``T' Σ T`` may be a quarter away from the identity, T is refined in
    double-double arithmetic.
    """
    root = np.asarray(scipy.linalg.solve_triangular(factor, np.eye(len(factor)), check_finite=False))
    if not np.all(np.isfinite(root)):
        return None
    sizes = np.abs(root)
    defect = spectral_norm(np.abs(root.T @ (covariance @ root) - np.eye(len(root))))
    # The norm of the symmetric, non-negative matrix |T'||Σ||T| is at most its largest row sum.
    magnitude = float((sizes.T @ (np.abs(covariance) @ sizes.sum(axis=1))).max())
    defect = (defect + 3 * sum_rounding(len(root) + 1) * (magnitude + 1)) * UPWARDS
    if defect <= CONTRACTED:
        return root, 1 / (1 - defect) * (1 + 4 * EPS)
    whitening = whitened(Enclosure.of(covariance))
    return None if whitening is None else (whitening[0], whitening[1].norm())


MAX_REFINEMENTS = 3
"""Number of times that T is refined by a Cholesky factor of ``T' Σ T``."""


def whitened(covariance: Enclosure) -> tuple[Array, Enclosure] | None:
    """Return T and the inverse of ``T' Σ T``, a matrix close to the identity; None if no T is found."""
    root, current = np.eye(len(covariance.high)), covariance
    for _ in range(MAX_REFINEMENTS):
        factor = cholesky(current.high)
        if factor is None:
            return None
        root = root @ scipy.linalg.solve_triangular(factor, np.eye(len(root)), check_finite=False)
        if not np.all(np.isfinite(root)):
            return None
        current = Enclosure.of(root.T) @ (covariance @ Enclosure.of(root))
        inverse = inverse_near_identity(current)
        if inverse is not None:
            return root, inverse
    return None


def _whitener(covariance: Array, regular: Array) -> Array:
    """Return |T| for a T with ``T Σ T' = I`` on the directions of positive variance: |T| e bounds a column error e."""
    noisy = np.flatnonzero(np.diagonal(covariance) > 0)
    whitener = np.zeros((len(noisy), len(covariance)))
    factor = cholesky(covariance[np.ix_(noisy, noisy)]) if regular is covariance else None
    if factor is not None:
        whitener[:, noisy] = scipy.linalg.solve_triangular(factor, np.eye(len(noisy)), trans="T")
    else:
        units, values, directions, cut = _spectrum(covariance, noisy)
        roots = np.sqrt(np.where(values > cut, values, np.inf))
        whitener[:, noisy] = (directions / roots).T / units
    return np.abs(whitener)


def trace_norm(matrix: Array, matrix_error: float = 0.0) -> tuple[float, float]:
    """Return the trace norm, and an upper bound on the absolute excess of that number over the true trace norm.

    For any G, ``‖A‖_* ≥ tr(A'G) / ‖G‖``, and both sides are bounded from the computed G. No singular value is dropped
    as rounding.

    - `matrix_error`: bound on the error of the matrix in the Frobenius norm.
    """
    if not matrix.size:
        return 0.0, 0.0
    polar, norm_bound = nearly_orthonormal(matrix)
    products = matrix * polar
    trace = math.fsum(products.sum(axis=1).tolist())
    np.abs(products, out=products)
    rounding = sum_rounding(matrix.shape[1] + 1) * math.fsum(products.sum(axis=1).tolist())
    error = rounding + trace * (norm_bound - 1) + 4 * EPS * trace
    error += math.sqrt(min(matrix.shape)) * norm_bound * matrix_error
    return trace, error * UPWARDS


def trace_norm_by_gram(
    gram: Enclosure, roots: Array, rank: int, matrix_error: float = 0.0
) -> tuple[float, float] | None:
    """Return the numbers of `trace_norm` for ``A = X diag(r)``, from ``X'X``, r (`roots`) and the rank of A.

    For any Y and V, ``‖A‖_* ≥ tr(A' X Y V') / (‖X Y‖ ‖V‖)``: the trace is ``Σ r_i (X'X Y V')_ii``, and ``‖X Y‖²`` is at
    most ``1 + ‖Y' X'X Y - I‖``. Both are computed in double-double arithmetic. None if eigenvalue number `rank` of
    ``A'A`` is too small.
    """
    values, axes = np.linalg.eigh(gram.high * roots * roots[:, None])
    values, axes = values[-rank:], axes[:, -rank:]
    if not values[0] > GRAM_EIGENVALUE_TOL * values[-1]:
        return None
    identity = np.eye(rank)
    scaled = roots[:, None] * axes / np.sqrt(values)
    scaled = scaled - scaled @ (scaled.T @ (gram.high @ scaled) - identity) / 2
    multipliers = Enclosure.of(scaled)
    image = gram @ multipliers
    defect = (multipliers.T @ image) - Enclosure.of(identity)
    if defect.norm() > GRAM_DEFECT_TOL:
        multipliers = multipliers + Enclosure.of(-scaled @ defect.high / 2)
        image = gram @ multipliers
        defect = (multipliers.T @ image) - Enclosure.of(identity)
    axes_defect, axes_error = gram_defect(axes.T)
    first, last = defect.norm() / 2, (spectral_norm(np.abs(axes_defect)) + rank * axes_error) / 2
    excess = first + last + first * last  # of the product ‖X Y‖ ‖V‖ over 1
    if not excess < CONTRACTED:
        return None
    sides = roots[:, None] * axes
    products = image.high * sides
    trace = math.fsum(products.sum(axis=1).tolist())
    rounding = sum_rounding(rank + 2) * float(np.abs(products).sum()) * UPWARDS
    rounding += float((np.abs(sides) * (np.abs(image.low) + image.radius)).sum())
    error = rounding + trace * excess + math.sqrt(len(roots)) * (1 + excess) * matrix_error + 4 * EPS * trace
    return trace, error * UPWARDS


def nearly_orthonormal(matrix: Array) -> tuple[Array, float]:
    """Return an approximation G of the polar factor of a matrix, and an upper bound on the norm of G."""
    if len(matrix) > matrix.shape[1]:
        polar, norm_bound = nearly_orthonormal(matrix.T)
        return polar.T, norm_bound
    polar = _polar_factor(matrix)
    defect, error = gram_defect(polar)
    # ‖G‖² is at most 1 + ‖G G' - I‖.
    return polar, 1 + (spectral_norm(np.abs(defect)) + len(defect) * error) / 2


def _polar_factor(matrix: Array) -> Array:
    """Return G with nearly orthonormal rows and ``A = H G``, H symmetric, for a matrix with no more rows than columns.

    The eigenvectors of ``A A'`` are fast but lose small singular values. A few small ones are computed separately; if
    there are many, a singular value decomposition is taken.
    """
    largest = np.abs(matrix).max()
    scaled = matrix / (largest if largest > 0 else 1.0)
    values, vectors = np.linalg.eigh(scaled @ scaled.T)
    num_small = int(np.sum(~(values > GRAM_EIGENVALUE_TOL * values[-1])))
    if num_small > MAX_SMALL_FRACTION * len(values):
        left, _, right = svd(matrix)
        return np.asarray(left @ right)
    rows = vectors.T @ scaled
    rows[num_small:] /= np.sqrt(values[num_small:, None])
    rows[:num_small] = _orthogonal_polar_factor(rows[:num_small], rows[num_small:])
    factor = vectors @ rows
    # One Newton–Schulz step squares the defect G G' - I.
    return np.asarray((1.5 * np.eye(len(factor)) - 0.5 * (factor @ factor.T)) @ factor)


def _orthogonal_polar_factor(rows: Array, basis: Array) -> Array:
    """Return the polar factor of a few rows, with entries up to 1, in the orthogonal complement of a basis.

    Random entries of rounding size are added, so that zero rows have a polar factor too.
    """
    if not len(rows):
        return rows
    rows = rows + EPS * np.random.default_rng(0).standard_normal(rows.shape)
    for _ in range(2):
        left, _, right = svd(rows - (rows @ basis.T) @ basis)
        rows = left @ right
    return rows


def extreme_eigenvalues(matrix: Array, rounding: float = 0.0) -> tuple[float, float]:
    """Return a lower bound on the least and an upper bound on the largest eigenvalue of a symmetric matrix.

    - `rounding`: bound on the error of the matrix in the spectral norm.
    """
    values, vectors = np.linalg.eigh(matrix)
    error = eigen_residual(matrix, values, vectors) + rounding
    return float(values[0]) - error, float(values[-1]) + error


def eigen_residual(matrix: Array, values: Array, vectors: Array) -> float:
    """Return an upper bound on ``‖A - V D V'‖``, and on the distance from an eigenvalue of A to the nearest one in D.

    With ``A V = V D + R`` the matrix is similar to ``D + V⁻¹ R``, so that each eigenvalue is at most
    ``‖R‖ / σ_min(V)`` from one in D (Bauer and Fike). The bound is inf if V is far from orthonormal.
    """
    sizes = np.abs(vectors)
    residual = np.abs(matrix @ vectors - vectors * values)
    residual += sum_rounding(len(matrix) + 2) * (np.abs(matrix) @ sizes + sizes * np.abs(values))
    gram, error = gram_defect(vectors.T)
    defect = spectral_norm(np.abs(gram)) + len(gram) * error
    if not defect < CONTRACTED:
        return math.inf
    return 2 * (spectral_norm(residual) + defect * float(np.abs(values).max())) * UPWARDS
