"""Elementary linear algebra that the judge rests on: rank, row space, Cholesky, trace norm."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech.errors import InvalidInputError
from dualmech.validate import Array, Matrix

EPS = float(np.finfo(np.float64).eps)

SPAN_TOLERANCE = 1e-9
"""Largest part of a row outside a row space, relative to the row, that counts as rounding."""

UNCLEAR = 1e-7
"""Singular values below this, relative to the largest, are not taken for proof of rank without a second look."""
CLEARLY = 1e-6  # reciprocal condition above which columns are independent without a closer look


def to_dense(matrix: Matrix) -> Array:
    """Return a matrix as a dense array."""
    return np.asarray(matrix.toarray()) if sp.issparse(matrix) else np.asarray(matrix)


def is_identity(matrix: Matrix) -> bool:
    """Whether a matrix is exactly the identity."""
    rows, columns = matrix.shape
    if rows != columns:
        return False
    if sp.issparse(matrix):
        return bool((abs(matrix - sp.eye_array(rows)) > 0).nnz == 0)
    return bool(np.all(np.diagonal(matrix) == 1) and np.count_nonzero(matrix) == rows)


def equilibrate(matrix: Array) -> Array:
    """Scale the rows, then the columns, to unit norm (zero ones stay), so that rank ignores units.

    Multiplying rows or columns by positive numbers never changes a rank; without it, a query asked in
    millions would hide one asked in millionths.
    """
    rows = np.linalg.norm(matrix, axis=1)
    scaled = matrix / np.where(rows > 0, rows, 1.0)[:, None]
    columns = np.linalg.norm(scaled, axis=0)
    return np.asarray(scaled / np.where(columns > 0, columns, 1.0))


def numerical_rank(singular_values: Array, shape: tuple[int, int]) -> int:
    """Count the singular values above ``max(shape) · eps`` times the largest, with a factor 8 to spare."""
    if singular_values.size == 0 or singular_values[0] == 0:
        return 0
    return int(np.sum(singular_values > 8 * max(shape) * EPS * singular_values[0]))


def rank(matrix: Array) -> int:
    """Return the numerical rank of a matrix, units ignored."""
    if is_identity(matrix):
        return int(matrix.shape[0])
    scaled = equilibrate(matrix)
    return numerical_rank(singular_values(scaled), scaled.shape)


def svd(matrix: Array, full_matrices: bool = False) -> tuple[Array, Array, Array]:
    """Return a singular value decomposition, by whichever of LAPACK's two algorithms converges.

    Divide and conquer is the quick one; on matrices with many equal singular values it gives up now and then.
    """
    try:
        parts = scipy.linalg.svd(matrix, full_matrices=full_matrices, check_finite=False)
    except np.linalg.LinAlgError:
        parts = scipy.linalg.svd(
            matrix, full_matrices=full_matrices, check_finite=False, lapack_driver="gesvd"
        )
    return parts[0], parts[1], parts[2]


def singular_values(matrix: Array) -> Array:
    """Return the singular values, in decreasing order, by whichever algorithm converges."""
    try:
        values = scipy.linalg.svdvals(matrix, check_finite=False)
    except np.linalg.LinAlgError:
        values = scipy.linalg.svd(matrix, compute_uv=False, check_finite=False, lapack_driver="gesvd")
    return np.asarray(values)


def row_space(matrix: Array) -> Array:
    """Return orthonormal rows (k, d) that span the row space of an (m, d) matrix of rank k.

    Rows are brought to unit norm first, which leaves their span alone. The rank is read off the singular
    values; where one of them is neither clearly zero nor clearly not, the equilibrated matrix decides.
    """
    norms = np.linalg.norm(matrix, axis=1)
    kept = matrix[norms > 0] / norms[norms > 0, None]
    orthonormal = None
    if kept.shape[0] < kept.shape[1]:
        orthonormal, triangle = scipy.linalg.qr(kept.T, mode="economic", check_finite=False)
        kept = triangle.T
    _, values, basis = svd(kept)
    basis = basis[: _rank_of_singular_values(values, matrix)]
    spanned = np.ascontiguousarray(basis if orthonormal is None else basis @ orthonormal.T)
    spanned[:, ~np.any(matrix, axis=0)] = (
        0.0  # Rounding there would count as a direction once units are ignored.
    )
    return spanned


def row_basis(matrix: Array) -> Array:
    """Return orthonormal rows that span the rows of a matrix: the identity where these span everything."""
    basis = np.eye(matrix.shape[1]) if spans_all(matrix) else row_space(matrix)
    return np.eye(len(basis)) if len(basis) == matrix.shape[1] else basis


def spans_all(matrix: Array) -> bool:
    """Whether the columns of a matrix are clearly independent, so that its rows span everything.

    A triangular factor of the rows, brought to unit norm, tells by the condition of its columns at a tenth of what
    singular values cost. False says that these must decide.
    """
    norms = np.linalg.norm(matrix, axis=1)
    kept = matrix[norms > 0] / norms[norms > 0, None]
    if kept.shape[0] < kept.shape[1]:
        return False
    triangle = scipy.linalg.qr(kept, mode="r", check_finite=False)[0][: kept.shape[1]]
    triangle = triangle / np.linalg.norm(triangle, axis=0) if np.all(np.any(triangle, axis=0)) else triangle
    reciprocal, _ = scipy.linalg.lapack.dtrcon(triangle, norm="1", uplo="U", diag="N")
    return bool(reciprocal > CLEARLY)


def row_rank(matrix: Array) -> int:
    """Return the number of rows of `row_space`, which are not computed."""
    if is_identity(matrix):
        return len(matrix)
    norms = np.linalg.norm(matrix, axis=1)
    kept = matrix[norms > 0] / norms[norms > 0, None]
    if kept.shape[0] < kept.shape[1]:
        kept = scipy.linalg.qr(kept.T, mode="r", check_finite=False)[0][: len(kept)]
    return _rank_of_singular_values(singular_values(kept), matrix)


def _rank_of_singular_values(values: Array, matrix: Array) -> int:
    """Return the rank that singular values of unit rows tell, or the equilibrated matrix where they are unclear."""
    size = numerical_rank(values, matrix.shape)
    return rank(matrix) if np.any(values[:size] < UNCLEAR * values[0]) else size


def represent(matrix: Array, basis: Array, names: tuple[str, ...], what: str = "workload") -> Array:
    """Return L (m, k) with ``L @ basis = matrix``; refuse a row outside the row space, naming it."""
    orthonormal, triangle = scipy.linalg.qr(basis.T, mode="economic", check_finite=False)
    coordinates = matrix @ orthonormal
    residual = np.linalg.norm(matrix - coordinates @ orthonormal.T, axis=1)
    outside = np.flatnonzero(residual > SPAN_TOLERANCE * np.linalg.norm(matrix, axis=1))
    if outside.size:
        raise InvalidInputError(
            f"{what}: query {names[outside[0]]!r} lies outside the row space of the basis "
            f"({outside.size} of {len(matrix)} do)"
        )
    solved = scipy.linalg.solve_triangular(triangle, coordinates.T, check_finite=False)
    return np.ascontiguousarray(solved.T)


def kronecker(factors: Sequence[Array]) -> Array:
    """Return the Kronecker product of one or more matrices, the last one's indices fastest."""
    one: Array = np.ones((1, 1))
    return functools.reduce(lambda product, factor: np.asarray(np.kron(product, factor)), factors, one)


def apply_along_axes(matrices: Sequence[Array], tensor: Array) -> Array:
    """Return ``(⊗ A_i) vec(tensor)`` as a tensor, a matrix after another along its own axis."""
    for axis, matrix in enumerate(matrices):
        tensor = np.moveaxis(np.tensordot(matrix, tensor, axes=(1, axis)), 0, axis)
    return np.asarray(tensor)


def cholesky(matrix: Array) -> Array | None:
    """Return the upper factor R with ``R' R = matrix``, or None where the matrix is not positive definite.

    The matrix is brought to unit diagonal first: the factor is as accurate as that scaled matrix is well
    conditioned, whatever the units of its rows.
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
    """Return the covariance that is judged in place of one that rounding leaves singular; None if indefinite.

    A clearly positive definite matrix stands for itself. Otherwise coordinates without any noise are set aside (their
    rows must be exactly zero), and the rest, brought to unit diagonal, gets its eigenvalues below ``cut = 8 k eps`` of
    the largest raised to the cut; one below -cut makes it indefinite. The result is itself a covariance, within
    rounding of the one given, so every statement about it is exact: no direction is taken for exactly known, and none
    for harmless, because it is small.
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
    """Whether some direction has no noise, or none that can be told from rounding, each coordinate in its own unit."""
    noisy = bool(np.all(np.diagonal(covariance) > 0))
    if not noisy or _is_clearly_definite(covariance):
        return not noisy
    _, values, _, _ = _spectrum(covariance, np.arange(len(covariance)))
    return bool(np.any(are_silent(values)))


def are_silent(values: Array) -> npt.NDArray[np.bool_]:
    """Which eigenvalues, rising, of a covariance on a unit diagonal are no noise that rounding could not have made.

    Twice what `regularised_covariance` raises them to, so that what was raised is still seen.
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
    """Return units of coordinates, eigenvalues and vectors in these, and what counts as an eigenvalue of 0."""
    units = np.sqrt(np.diagonal(covariance)[noisy])
    values, vectors = np.linalg.eigh(covariance[np.ix_(noisy, noisy)] / units / units[:, None])
    return units, values, vectors, 8 * len(values) * EPS * float(values[-1])


def leaves_range(covariance: Array, vectors: Array, rounding: Array | None = None) -> npt.NDArray[np.bool_]:
    """Whether a column has a part that meets no noise of a singular covariance, beyond rounding of its own (s,).

    With ``b = Σ y``, an error E of Σ turns the directions without noise so that they see ``E y`` of b.
    """
    own = np.zeros((1, 1)) if rounding is None else rounding
    silent = np.diagonal(covariance) <= 0
    found = np.any((np.abs(vectors) > own) & silent[:, None], axis=0)
    if not np.all(silent):
        units, values, directions, cut = _spectrum(covariance, np.flatnonzero(~silent))
        seen = directions.T @ (vectors[~silent] / units[:, None])
        none, some = values <= cut, values > cut
        solved = np.linalg.norm(seen[some] / values[some, None], axis=0) * values[-1]
        spread = np.linalg.norm(np.broadcast_to(own, vectors.shape)[~silent] / units[:, None], axis=0)
        hidden = 8 * len(values) * EPS * (np.linalg.norm(seen, axis=0) + solved) + spread
        found |= np.linalg.norm(seen[none], axis=0) > hidden
    return np.asarray(found)


def inverse_forms(
    covariance: Array, vectors: Array, rounding: Array | None = None
) -> tuple[Array, Array, Array] | None:
    """Return the regularised covariance Σ, ``b_i' Σ⁻¹ b_i`` for the columns b_i of `vectors`, and an allowance.

    Where Σ had to be raised, the form of a column that leaves its range is ``inf``. None if it is indefinite.
    `rounding` is what the entries of the columns may be off, absolute.
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
    """Return the forms on the noisy coordinates and their allowance for rounding.

    With a Cholesky factor R of Σ and ``y = Σ⁻¹ b``, a backward error of componentwise size
    ``3 (k + 2) eps |R|'|R|`` moves ``b' y`` by at most ``3 (k + 2) eps ‖ |R||y| ‖²``.
    """
    noisy = np.diagonal(covariance) > 0
    factor = cholesky(covariance[np.ix_(noisy, noisy)])
    if factor is None:
        return np.full(vectors.shape[1], np.inf), np.zeros(vectors.shape[1])
    half = scipy.linalg.solve_triangular(factor, vectors[noisy], trans="T", check_finite=False)
    solved = scipy.linalg.solve_triangular(factor, half, check_finite=False)
    magnitudes = np.abs(factor) @ np.abs(solved)
    allowance = 3 * (len(covariance) + 2) * EPS * np.einsum("ki,ki->i", magnitudes, magnitudes)
    forms = np.einsum("ki,ki->i", half, half)
    if is_identity(factor) and np.all(half == np.rint(half)):
        allowance = np.where(forms <= 2**53, 0.0, allowance)  # sums of whole squares are exact
    return forms, allowance


def _whitener(covariance: Array, judged: Array) -> Array:
    """Return |T|, T Σ T' being the identity on the directions that have noise: what an error of a move costs."""
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
    """Return the sum of the singular values and an allowance for its rounding, absolute.

    `missed` is how far the matrix itself may be off, in the Frobenius norm.

    The computed values are the exact ones of ``matrix + E`` with ``‖E‖_F`` a modest multiple of
    ``√max(m, n) · eps · ‖matrix‖_F`` (backward stability), and a trace norm moves by at most
    ``‖E‖_* ≤ √min(m, n) ‖E‖_F``. All values are summed: none is dropped that could only be rounding.
    """
    values = singular_values(matrix)
    backward = 4 * np.sqrt(max(matrix.shape)) * EPS * np.linalg.norm(values)
    return float(values.sum()), float(np.sqrt(len(values)) * (backward + missed))
