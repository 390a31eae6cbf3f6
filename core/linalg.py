"""Elementary linear algebra that the judge rests on: rank, row space, Cholesky, trace norm."""

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
"""Largest part of a row outside a row space, relative to the row, that counts as rounding."""

UNCLEAR = 1e-7
"""Singular values below this, relative to the largest, prove no rank without a second check."""
CLEARLY = 1e-6  # reciprocal condition above which columns are independent without a further check
CLEARLY_BY_GRAM = 1e-4  # the same where a Gram matrix, in which conditions are squared, tells it
TALL = 4  # rows, relative to columns, from which on a Gram matrix of the columns is less work
NEARLY = 1e-12  # distance of a Gram matrix from the identity from which on rows are improved in twice the precision

FROM_GRAM = 1e-8
"""Share of the largest eigenvalue of ``A A'`` above which an eigenvalue tells its singular value to half the digits."""
LOST = 0.25  # share of the singular values that ``A A'`` may lose, up to which these are computed apart


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
    """Scale the rows, then the columns, to unit norm (zeros stay zeros), so that rank ignores units.

    Positive factors on rows or columns never change a rank; without them, a query in millions would hide a query in
    millionths.
    """
    rows = np.linalg.norm(matrix, axis=1)
    scaled = matrix / np.where(rows > 0, rows, 1.0)[:, None]
    columns = np.linalg.norm(scaled, axis=0)
    return np.asarray(scaled / np.where(columns > 0, columns, 1.0))


def numerical_rank(singular_values: Array, shape: tuple[int, int]) -> int:
    """Count the singular values above ``max(shape) · eps`` times the largest, with a factor 8 to spare."""
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
    """Return a singular value decomposition from the first of LAPACK's two algorithms that converges.

    Divide and conquer is faster; on matrices with many equal singular values it sometimes fails. Raises
    `numpy.linalg.LinAlgError` where neither does, and where an entry is not finite.
    """
    if not np.isfinite(matrix).all():
        raise np.linalg.LinAlgError("a matrix with entries that are not finite has no singular values")
    try:
        parts = scipy.linalg.svd(matrix, full_matrices=full_matrices, check_finite=False)
    except np.linalg.LinAlgError:
        parts = scipy.linalg.svd(matrix, full_matrices=full_matrices, check_finite=False, lapack_driver="gesvd")
    return parts[0], parts[1], parts[2]


def singular_values(matrix: Array) -> Array:
    """Return the singular values, in decreasing order, from the first algorithm that converges."""
    try:
        values = scipy.linalg.svdvals(matrix, check_finite=False)
    except np.linalg.LinAlgError:
        values = scipy.linalg.svd(matrix, compute_uv=False, check_finite=False, lapack_driver="gesvd")
    return np.asarray(values)


def triangle(rows: Matrix) -> Array:
    """Return R (k, k), or (m, k) of fewer rows, with ``R'R = X'X`` for rows X (m, k).

    Long rows come first: a factorisation by reflections then keeps the short ones accurate.
    """
    order = np.argsort(-np.linalg.norm(rows, axis=1), kind="stable")
    factor = scipy.linalg.qr(rows[order], mode="r", check_finite=False)[0]
    return np.ascontiguousarray(factor[: rows.shape[1]])


def row_space(matrix: Array) -> Array:
    """Return orthonormal rows (k, d) that span the row space of an (m, d) matrix of rank k.

    Rows are scaled to unit norm first, which keeps their span. The singular values tell the rank; where one of them is
    neither clearly zero nor clearly positive, the equilibrated matrix decides.
    """
    norms = np.linalg.norm(matrix, axis=1)
    kept = matrix[norms > 0] / norms[norms > 0, None]
    orthonormal = None
    if kept.shape[0] < kept.shape[1]:
        orthonormal, triangle = scipy.linalg.qr(kept.T, mode="economic", check_finite=False)
        kept = triangle.T
    elif len(kept) >= 2 * kept.shape[1]:
        kept = scipy.linalg.qr(kept, mode="r", check_finite=False)[0][: kept.shape[1]]  # the left side is not needed
    _, values, basis = svd(kept)
    basis = basis[: _rank_of_singular_values(values, matrix)]
    spanned = np.ascontiguousarray(basis if orthonormal is None else basis @ orthonormal.T)
    spanned[:, ~np.any(matrix, axis=0)] = 0.0  # Rounding there would count as a direction once units are ignored.
    return spanned


def row_basis(matrix: Array) -> Array:
    """Return orthonormal rows that span the rows of a matrix: the identity where the rows span the whole space."""
    basis = np.eye(matrix.shape[1]) if spans_all(matrix) else row_space(matrix)
    return np.eye(len(basis)) if len(basis) == matrix.shape[1] else basis


def spans_all(matrix: Array) -> bool:
    """Whether the columns of a matrix are clearly independent, so that its rows span the whole space.

    The condition of a triangular factor of the rows, scaled to unit norm, decides at a tenth of the cost of singular
    values. False means that singular values must decide.
    """
    norms = np.linalg.norm(matrix, axis=1)
    kept = matrix[norms > 0] / norms[norms > 0, None]
    if kept.shape[0] < kept.shape[1]:
        return False
    if len(kept) >= TALL * kept.shape[1] and are_clearly_independent(kept.T @ kept):
        return True
    triangle = scipy.linalg.qr(kept, mode="r", check_finite=False)[0][: kept.shape[1]]
    triangle = triangle / np.linalg.norm(triangle, axis=0) if np.all(np.any(triangle, axis=0)) else triangle
    reciprocal, _ = scipy.linalg.lapack.dtrcon(triangle, norm="1", uplo="U", diag="N")
    return bool(reciprocal > CLEARLY)


def are_clearly_independent(gram: Array) -> bool:
    """Whether columns are independent by a Gram matrix of theirs, in which rounding may hide what is not clear."""
    factor = cholesky(gram)
    if factor is None:
        return False
    scaled = factor / np.sqrt(np.diagonal(gram))
    reciprocal, _ = scipy.linalg.lapack.dtrcon(scaled, norm="1", uplo="U", diag="N")
    return bool(reciprocal > CLEARLY_BY_GRAM)


def row_rank(matrix: Array) -> int:
    if is_identity(matrix):
        return len(matrix)
    norms = np.linalg.norm(matrix, axis=1)
    kept = matrix[norms > 0] / norms[norms > 0, None]
    if kept.shape[0] < kept.shape[1]:
        kept = scipy.linalg.qr(kept.T, mode="r", check_finite=False)[0][: len(kept)]
    return _rank_of_singular_values(singular_values(kept), matrix)


def _rank_of_singular_values(values: Array, matrix: Array) -> int:
    """Return the rank from singular values of unit rows, or from the equilibrated matrix where these are unclear."""
    size = numerical_rank(values, matrix.shape)
    return rank(matrix) if np.any(values[:size] < UNCLEAR * values[0]) else size


def represent(matrix: Array, basis: Array, names: tuple[str, ...], what: str = "workload") -> Array:
    """Return L (m, k) with ``L @ basis = matrix``; refuse a row outside the row space, naming it."""
    units, orthonormal, triangle = row_factors(basis)
    scaled = matrix * units
    coordinates = scaled @ orthonormal
    residual = np.linalg.norm(scaled - coordinates @ orthonormal.T, axis=1)
    outside = np.flatnonzero(residual > SPAN_TOLERANCE * np.linalg.norm(scaled, axis=1))
    if outside.size:
        raise InvalidInputError(
            f"{what}: query {names[outside[0]]!r} lies outside the row space of the basis "
            f"({outside.size} of {len(matrix)} do)"
        )
    solved = scipy.linalg.solve_triangular(triangle, coordinates.T, check_finite=False)
    return np.ascontiguousarray(solved.T)


def row_factors(rows: Array) -> tuple[Array, Array, Array]:
    """Return units u (d,), Q (d, k) and a triangle R (k, k) with ``diag(u) rows' = Q R``, of independent rows.

    The units are 1, or powers of 2 that make the columns alike where the triangle would be singular up to rounding.
    Raises `InvalidInputError` for rows that differ by rounding alone in both.
    """
    units = np.ones(rows.shape[1])
    for _ in range(2):
        orthonormal, triangle = scipy.linalg.qr((rows * units).T, mode="economic", check_finite=False)
        sizes = np.abs(np.diagonal(triangle))
        if np.all(sizes > 8 * max(rows.shape) * EPS * np.linalg.norm(triangle, axis=0)):
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
    """Return the Kronecker product of one or more matrices, the last one's indices fastest."""
    product: Array = np.ones((1, 1))
    for factor in factors:  # `np.kron` for any number of axes takes five times as long for small ones
        rows, columns = len(product) * len(factor), product.shape[1] * factor.shape[1]
        product = (product[:, None, :, None] * factor[None, :, None, :]).reshape(rows, columns)
    return product


def apply_along_axes(matrices: Sequence[Array], tensor: Array) -> Array:
    """Return ``(⊗ A_i) vec(tensor)`` as a tensor: each matrix acts along its own axis, one after another."""
    for axis, matrix in enumerate(matrices):
        tensor = np.moveaxis(np.tensordot(matrix, tensor, axes=(1, axis)), 0, axis)
    return np.asarray(tensor)


def cholesky(matrix: Array) -> Array | None:
    """Return the upper factor R with ``R' R = matrix``, or None where the matrix is not positive definite.

    The matrix is scaled to unit diagonal first: the factor's accuracy depends on the condition of the scaled matrix,
    not on the units of the rows.
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
    """Return the covariance that the judge takes in place of one that rounding leaves singular; None if indefinite.

    A clearly positive definite matrix is returned unchanged. Otherwise coordinates without noise are set aside (their
    rows must be exactly zero). The rest is scaled to unit diagonal, and its eigenvalues below ``cut = 8 k eps`` of the
    largest are raised to the cut; an eigenvalue below -cut makes the matrix indefinite. The result is itself a
    covariance, within rounding of the given one, so every statement about it is exact: a small eigenvalue makes no
    direction exactly known, and none harmless.
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
    raised = (vectors * np.maximum(values, cut)) @ vectors.T * units * units[:, None]
    result = np.zeros_like(covariance)
    result[np.ix_(noisy, noisy)] = (raised + raised.T) / 2
    return result


def is_singular(covariance: Array) -> bool:
    """Whether some direction has no noise, or only noise that may be rounding, each coordinate in its own unit."""
    noisy = bool(np.all(np.diagonal(covariance) > 0))
    if not noisy or _is_clearly_definite(covariance):
        return not noisy
    _, values, _, _ = _spectrum(covariance, np.arange(len(covariance)))
    return bool(np.any(are_silent(values)))


def are_silent(values: Array) -> npt.NDArray[np.bool_]:
    """Which eigenvalues, in increasing order, of a covariance with unit diagonal may be rounding alone.

    The limit is twice the value to which `regularised_covariance` raises eigenvalues, so that raised ones are still
    found.
    """
    return np.asarray(values <= 16 * len(values) * EPS * values[-1])


def _is_clearly_definite(covariance: Array) -> bool:
    """Whether a Cholesky factor says that no eigenvalue, each coordinate in its own unit, can be rounding."""
    factor, size = cholesky(covariance), len(covariance)
    if factor is None:
        return False
    scaled = factor / np.sqrt(np.diagonal(covariance))
    reciprocal, _ = scipy.linalg.lapack.dtrcon(scaled, norm="1", uplo="U", diag="N")
    return bool(reciprocal**2 > 64 * size**2 * EPS)


def _spectrum(covariance: Array, noisy: npt.NDArray[np.intp]) -> tuple[Array, Array, Array, float]:
    """Return units of coordinates, eigenvalues and eigenvectors in these, and the cut below which eigenvalues are 0."""
    units = np.sqrt(np.diagonal(covariance)[noisy])
    values, vectors = np.linalg.eigh(covariance[np.ix_(noisy, noisy)] / units / units[:, None])
    return units, values, vectors, 8 * len(values) * EPS * float(values[-1])


def leaves_range(covariance: Array, vectors: Array, rounding: Array | None = None) -> npt.NDArray[np.bool_]:
    """Whether a column leaves the range of a singular covariance by more than the column's own rounding (s,).

    With ``b = Σ y``, an error E of Σ turns the directions without noise, so that b has the part ``E y`` in them.
    """
    allowance = np.zeros((1, 1)) if rounding is None else rounding
    silent = np.diagonal(covariance) <= 0
    outside = np.any((np.abs(vectors) > allowance) & silent[:, None], axis=0)
    if not np.all(silent):
        units, values, directions, cut = _spectrum(covariance, np.flatnonzero(~silent))
        seen = directions.T @ (vectors[~silent] / units[:, None])
        none, some = values <= cut, values > cut
        solved = np.linalg.norm(seen[some] / values[some, None], axis=0) * values[-1]
        spread = np.linalg.norm(np.broadcast_to(allowance, vectors.shape)[~silent] / units[:, None], axis=0)
        hidden = 8 * len(values) * EPS * (np.linalg.norm(seen, axis=0) + solved) + spread
        outside |= np.linalg.norm(seen[none], axis=0) > hidden
    return np.asarray(outside)


def inverse_forms(
    covariance: Array, vectors: Array, rounding: Array | None = None
) -> tuple[Array, Array, Array] | None:
    """Return the regularised covariance Σ, ``b_i' Σ⁻¹ b_i`` for the columns b_i of `vectors`, and an allowance.

    Where Σ had to be raised, the form of a column that leaves its range is ``inf``. None if it is indefinite.
    `rounding` is the absolute error that the entries of the columns may have.
    """
    judged = regularised_covariance(covariance)
    if judged is None:
        return None
    forms, allowance = _forms(judged, vectors)
    if rounding is not None:
        moved = np.linalg.norm(_whitener(covariance, judged) @ rounding, axis=0)
        allowance = allowance + (2 * np.sqrt(forms) + moved) * moved
    if judged is not covariance or not np.all(np.diagonal(covariance)):
        forms = np.where(leaves_range(covariance, vectors, rounding), np.inf, forms)
    return judged, forms, allowance


def _forms(covariance: Array, vectors: Array) -> tuple[Array, Array]:
    """Return the forms on the noisy coordinates and a proven bound of their errors; ``inf`` where no bound is proven.

    For any y, with ``r = b - Σ y``: ``b' Σ⁻¹ b = b'y + y'r + r' Σ⁻¹ r``, and the last term is at most ``‖r‖² ‖Σ⁻¹‖``.
    """
    noisy = np.diagonal(covariance) > 0
    scaled, units = in_powers_of_two(covariance[np.ix_(noisy, noisy)])
    factor, moved = cholesky(scaled), vectors[noisy] * units[:, None]
    if factor is None:
        return np.full(vectors.shape[1], np.inf), np.zeros(vectors.shape[1])
    half = scipy.linalg.solve_triangular(factor, moved, trans="T", check_finite=False)
    forms = np.einsum("ki,ki->i", half, half)
    exact = is_identity(factor) and bool(np.all(half == np.rint(half)))
    if exact and np.all(forms <= 2**53):
        return forms, np.zeros(len(forms))  # sums of whole squares are exact
    if (proven := inverse_root(scaled, factor)) is None:
        return forms, np.full(len(forms), np.inf)
    solved, left, rounding = _solution(scaled, factor, moved, half)
    sizes = np.abs(solved)
    once, again = np.einsum("ki,ki->i", moved, solved), np.einsum("ki,ki->i", solved, left)
    off = np.abs(once + again - forms) + 4 * EPS * forms + np.einsum("ki,ki->i", sizes, rounding)
    off += sum_rounding(len(scaled)) * np.einsum("ki,ki->i", sizes, np.abs(moved) + np.abs(left))
    rest = np.abs(left) + rounding
    off += np.einsum("ki,ki->i", rest, rest) * _inverse_norm(*proven)
    return forms, np.where(exact & (forms <= 2**53), 0.0, off * UPWARDS)


def _solution(matrix: Array, factor: Array, moved: Array, half: Array) -> tuple[Array, Array, Array]:
    """Return y with ``Σ y = b`` for the columns b, the residual ``b - Σ y``, and its rounding, entry by entry."""
    solved = scipy.linalg.solve_triangular(factor, half, check_finite=False)
    left = moved - matrix @ solved
    return solved, left, sum_rounding(len(matrix) + 1) * (np.abs(matrix) @ np.abs(solved) + np.abs(moved))


def _inverse_norm(root: Array, reach: float) -> float:
    """Return a bound of ``‖Σ⁻¹‖`` from what `inverse_root` proves."""
    return reach * spectral_norm(np.abs(root)) ** 2


def inverse_blocks(
    covariance: Array, vectors: Array, groups: npt.NDArray[np.intp], rounding: Array | None = None
) -> tuple[Array, Array, Array] | None:
    """Return the regularised covariance Σ, ``B_p' Σ⁻¹ B_p`` for groups of columns of `vectors`, and its allowance.

    `groups` (p, k) holds the numbers of columns, -1 for none. The blocks and the allowances of their entries are
    (p, k, k), with 0 for none, and infinite where a column leaves the range of Σ or nothing is proven.

    For any Y, with ``R = B - Σ Y``: ``B' Σ⁻¹ B = B'Y + Y'R + R' Σ⁻¹ R``, the last no larger than ``‖R_i‖ ‖R_j‖ ‖Σ⁻¹‖``.
    """
    regular = regularised_covariance(covariance)
    if regular is None:
        return None
    blocks, error, lengths = _blocks(regular, vectors, groups)
    if rounding is not None:
        shifts = _gathered(np.linalg.norm(_whitener(covariance, regular) @ rounding, axis=0), groups)
        error += shifts[:, :, None] * lengths[:, None] + (lengths + shifts)[:, :, None] * shifts[:, None]
    error = np.maximum(error, np.swapaxes(error, 1, 2)) * UPWARDS
    if regular is not covariance or not np.all(np.diagonal(covariance)):
        outside = _gathered(leaves_range(covariance, vectors, rounding), groups)
        blocks = np.where(outside[:, :, None] | outside[:, None, :], np.inf, blocks)
    there = groups >= 0
    both = there[:, :, None] & there[:, None, :]
    return regular, np.where(both, blocks, 0.0), np.where(both & np.isfinite(blocks), error, 0.0)


def _gathered(values: npt.NDArray[Any], groups: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Return values by group, 0 for none."""
    return np.append(values, np.zeros(1, dtype=values.dtype))[groups]


def _blocks(covariance: Array, vectors: Array, groups: npt.NDArray[np.intp]) -> tuple[Array, Array, Array]:
    """Return the blocks of groups, the allowances of their entries, and the roots of their diagonals, rounded up."""
    noisy = np.diagonal(covariance) > 0
    scaled, units = in_powers_of_two(covariance[np.ix_(noisy, noisy)])
    factor = cholesky(scaled)
    proven = None if factor is None else inverse_root(scaled, factor)
    if factor is None or proven is None:
        unknown = np.full((*groups.shape, groups.shape[1]), np.inf)
        return unknown, np.zeros_like(unknown), np.full(groups.shape, np.inf)
    moved = np.append(vectors[noisy] * units[:, None], np.zeros((len(scaled), 1)), axis=1)
    half = scipy.linalg.solve_triangular(factor, moved, trans="T", check_finite=False)
    parts = (*_solution(scaled, factor, moved, half), moved)
    solved, left, off, moved = (np.moveaxis(part[:, groups], 0, 1) for part in parts)  # (groups, coordinates, k)
    across, sizes = np.swapaxes(moved, 1, 2) @ solved + np.swapaxes(solved, 1, 2) @ left, np.abs(solved)
    error = np.swapaxes(sizes, 1, 2) @ off + sum_rounding(len(scaled) + 2) * (
        np.swapaxes(np.abs(moved), 1, 2) @ sizes + np.swapaxes(sizes, 1, 2) @ np.abs(left)
    )
    rest = np.linalg.norm(np.abs(left) + off, axis=1)
    error += rest[:, :, None] * rest[:, None, :] * _inverse_norm(*proven) + 2 * EPS * np.abs(across)
    blocks = (across + np.swapaxes(across, 1, 2)) / 2
    diagonals = np.einsum("pii->pi", blocks) + np.einsum("pii->pi", error)
    return blocks, error, np.sqrt(np.maximum(diagonals, 0.0)) * UPWARDS


def in_powers_of_two(covariance: Array) -> tuple[Array, Array]:
    """Return ``u_i Σ_ij u_j``, diagonal between 1/2 and 4, and the units u; powers of 2, so that nothing is rounded."""
    units = np.ldexp(1.0, -(np.frexp(np.diagonal(covariance))[1] // 2))
    return np.asarray(covariance * units * units[:, None]), units


def inverse_root(covariance: Array, factor: Array) -> tuple[Array, float] | None:
    """Return T and a bound of ``‖(T' Σ T)⁻¹‖``, which proves Σ positive definite; None where no T is found.

    T is the inverse of a Cholesky factor. Where rounding may have moved ``T' Σ T`` by a quarter, the product is
    computed in twice the precision, and T is improved.
    """
    root = np.asarray(scipy.linalg.solve_triangular(factor, np.eye(len(factor)), check_finite=False))
    if not np.all(np.isfinite(root)):
        return None
    sizes = np.abs(root)
    defect = spectral_norm(np.abs(root.T @ (covariance @ root) - np.eye(len(root))))
    # |T'||Σ||T| is symmetric and not negative: no row sum is below its norm.
    magnitude = float((sizes.T @ (np.abs(covariance) @ sizes.sum(axis=1))).max())
    defect = (defect + 3 * sum_rounding(len(root) + 1) * (magnitude + 1)) * UPWARDS
    if defect <= CONTRACTED:
        return root, 1 / (1 - defect) * (1 + 4 * EPS)
    whitening = whitened(Enclosure.of(covariance))
    return None if whitening is None else (whitening[0], whitening[1].norm())


STEPS = 3
"""How often a factor T of a covariance is improved by a factor of the remaining ``T' Σ T``."""


def whitened(covariance: Enclosure) -> tuple[Array, Enclosure] | None:
    """Return T and the inverse of ``T' Σ T``, a matrix close to the identity; None where no T is found."""
    root, current = np.eye(len(covariance.high)), covariance
    for _ in range(STEPS):
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


def _whitener(covariance: Array, judged: Array) -> Array:
    """Return |T|, where T Σ T' is the identity on the directions with noise: T tells what an error of a move costs."""
    noisy = np.flatnonzero(np.diagonal(covariance) > 0)
    whole = np.zeros((len(noisy), len(covariance)))
    factor = cholesky(covariance[np.ix_(noisy, noisy)]) if judged is covariance else None
    if factor is not None:
        whole[:, noisy] = scipy.linalg.solve_triangular(factor, np.eye(len(noisy)), trans="T")
    else:
        units, values, directions, cut = _spectrum(covariance, noisy)
        roots = np.sqrt(np.where(values > cut, values, np.inf))
        whole[:, noisy] = (directions / roots).T / units
    return np.abs(whole)


def trace_norm(matrix: Array, missed: float = 0.0) -> tuple[float, float]:
    """Return the sum of the singular values, and by how much the trace norm may be smaller, absolute.

    `missed` bounds the error of the matrix itself, in the Frobenius norm.

    For any G, ``‖A‖_* ≥ tr(A'G) / ‖G‖``, and both numbers are bounded from the computed G. No singular value is dropped
    because it may be rounding.
    """
    if not matrix.size:
        return 0.0, 0.0
    polar, longest = nearly_orthonormal(matrix)
    products = matrix * polar
    trace = math.fsum(products.sum(axis=1).tolist())
    np.abs(products, out=products)
    rounding = sum_rounding(matrix.shape[1] + 1) * math.fsum(products.sum(axis=1).tolist())
    off = rounding + trace * (longest - 1) + math.sqrt(min(matrix.shape)) * longest * missed + 4 * EPS * trace
    return trace, off * UPWARDS


def trace_norm_by_gram(gram: Enclosure, roots: Array, rank: int, missed: float = 0.0) -> tuple[float, float] | None:
    """Return what `trace_norm` does of ``A = X diag(r)``, from ``X'X`` and the rank of A.

    For any Y and V, ``‖A‖_* ≥ tr(A' X Y V') / (‖X Y‖ ‖V‖)``: the trace is ``Σ r_i (X'X Y V')_ii``, and ``‖X Y‖²`` is at
    most ``1 + ‖Y' X'X Y - I‖``. Both are computed in twice the precision. None where the rank leaves it unclear how to
    choose Y.
    """
    values, axes = np.linalg.eigh(gram.high * roots * roots[:, None])
    values, axes = values[-rank:], axes[:, -rank:]
    if not values[0] > FROM_GRAM * values[-1]:
        return None
    identity = np.eye(rank)
    scaled = roots[:, None] * axes / np.sqrt(values)
    scaled = scaled - scaled @ (scaled.T @ (gram.high @ scaled) - identity) / 2
    chosen = Enclosure.of(scaled)
    image = gram @ chosen
    defect = (chosen.T @ image) - Enclosure.of(identity)
    if defect.norm() > NEARLY:
        chosen = chosen + Enclosure.of(-scaled @ defect.high / 2)
        image = gram @ chosen
        defect = (chosen.T @ image) - Enclosure.of(identity)
    crossed, error = gram_defect(axes.T)
    first, last = defect.norm() / 2, (spectral_norm(np.abs(crossed)) + rank * error) / 2
    beyond = first + last + first * last  # what the product of both norms is above 1
    if not beyond < CONTRACTED:
        return None
    sides = roots[:, None] * axes
    products = image.high * sides
    trace = math.fsum(products.sum(axis=1).tolist())
    rounding = sum_rounding(rank + 2) * float(np.abs(products).sum()) * UPWARDS
    rounding += float((np.abs(sides) * (np.abs(image.low) + image.radius)).sum())
    off = rounding + trace * beyond + math.sqrt(len(roots)) * (1 + beyond) * missed + 4 * EPS * trace
    return trace, off * UPWARDS


def nearly_orthonormal(matrix: Array) -> tuple[Array, float]:
    """Return G, nearly the polar factor of a matrix, and an upper bound of its norm."""
    if len(matrix) > matrix.shape[1]:
        polar, longest = nearly_orthonormal(matrix.T)
        return polar.T, longest
    polar = _polar_factor(matrix)
    defect, error = gram_defect(polar)
    # ‖G‖² is at most 1 + ‖G G' - I‖.
    return polar, 1 + (spectral_norm(np.abs(defect)) + len(defect) * error) / 2


def _polar_factor(matrix: Array) -> Array:
    """Return G with nearly orthonormal rows and ``A = H G``, H symmetric, for a matrix with no more rows than columns.

    The eigenvectors of ``A A'`` are faster. Where they lose few small singular values, these are computed apart; where
    they lose many, a singular value decomposition is.
    """
    largest = np.abs(matrix).max()
    scaled = matrix / (largest if largest > 0 else 1.0)
    values, vectors = np.linalg.eigh(scaled @ scaled.T)
    small = int(np.sum(~(values > FROM_GRAM * values[-1])))
    if small > LOST * len(values):
        left, _, right = svd(matrix)
        return np.asarray(left @ right)
    rows = vectors.T @ scaled
    rows[small:] /= np.sqrt(values[small:, None])
    rows[:small] = _polar_beside(rows[:small], rows[small:])
    factor = vectors @ rows
    # A step of the Newton–Schulz iteration squares the rounding error G G' - I.
    return np.asarray((1.5 * np.eye(len(factor)) - 0.5 * (factor @ factor.T)) @ factor)


def _polar_beside(rows: Array, basis: Array) -> Array:
    """Return the polar factor of a few rows of entries up to 1, across a nearly orthonormal basis.

    Random entries below rounding take the place of what is 0.
    """
    if not len(rows):
        return rows
    rows = rows + EPS * np.random.default_rng(0).standard_normal(rows.shape)
    for _ in range(2):
        left, _, right = svd(rows - (rows @ basis.T) @ basis)
        rows = left @ right
    return rows


def extreme_eigenvalues(matrix: Array, rounding: float = 0.0) -> tuple[float, float]:
    """Return a lower bound of the least and an upper bound of the largest eigenvalue of a symmetric matrix.

    `rounding` is the error that the matrix itself may have, in the spectral norm.
    """
    values, vectors = np.linalg.eigh(matrix)
    off = eigen_residual(matrix, values, vectors) + rounding
    return float(values[0]) - off, float(values[-1]) + off


def eigen_residual(matrix: Array, values: Array, vectors: Array) -> float:
    """Return a bound of ``‖A - V D V'‖``, and of the distance from any eigenvalue to the nearest computed one.

    With ``A V = V D + R`` the matrix is similar to ``D + V⁻¹ R``, so that each eigenvalue is at most
    ``‖R‖ / σ_min(V)`` from one in D (Bauer and Fike).
    """
    sizes = np.abs(vectors)
    left = np.abs(matrix @ vectors - vectors * values)
    left += sum_rounding(len(matrix) + 2) * (np.abs(matrix) @ sizes + sizes * np.abs(values))
    defect, error = gram_defect(vectors.T)
    spread = spectral_norm(np.abs(defect)) + len(defect) * error
    if not spread < CONTRACTED:
        return math.inf
    return 2 * (spectral_norm(left) + spread * float(np.abs(values).max())) * UPWARDS
