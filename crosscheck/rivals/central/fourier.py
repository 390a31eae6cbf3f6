"""The Fourier strategy: real characters of the cells, those that a workload needs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.crosscheck.rivals.central.noise import input_perturbation
from dualmech.crosscheck.rivals.central.products import attributes_of, domain_of
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.tabulations import DomainLike

CHUNK = 4096  # queries whose products with characters are written out at a time


def fourier_matrix(domain: int | DomainLike, workload: Workload | None = None) -> Array:
    """Return the Fourier basis of the cells, or the rows of it that a workload needs.

    For one attribute of n values the rows are ``1/√n``, ``√(2/n) cos(2π f i / n)`` and ``√(2/n) sin(2π f i / n)``
    for the frequencies ``0 < f < n/2``, and ``(-1)^i / √n`` where n is even; over several attributes, products of
    one row each. They are ordered by the attributes on which they are not constant: first none, then single
    ones, then pairs, and so on. A workload needs the rows with which some query of it has a product that is not
    zero.

    With `workload`, queries over these cells; by default all rows are returned.
    Returns an array (k, d): orthonormal rows.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> (2 * rivals.fourier_matrix([2, 2])).round(6).astype(int)
    array([[ 1,  1,  1,  1],
           [ 1,  1, -1, -1],
           [ 1, -1,  1, -1],
           [ 1, -1, -1,  1]])
    >>> one_way = dm.workloads.marginals([3, 4], ways=1)
    >>> rivals.fourier_matrix([3, 4], one_way).shape, rivals.fourier_matrix([3, 4]).shape
    ((6, 12), (12, 12))
    """
    attributes = attributes_of(domain)
    if attributes.cells**2 > MAX_DENSE_ENTRIES:
        raise InvalidInputError(
            f"Fourier basis of {attributes.cells} cells is too large to write out "
            f"(limit {MAX_DENSE_ENTRIES} entries)"
        )
    chosen = list(subsets(len(attributes.shape)))
    if workload is None:
        return np.vstack([character_block(attributes, axes) for axes in chosen])
    domain_of(workload, attributes)
    queries = unit_rows(workload)
    depends, kept = dependence(queries, attributes), []
    for axes in chosen:
        concerned = np.flatnonzero(depends[:, list(axes)].all(axis=1))
        if concerned.size:
            block = character_block(attributes, axes)
            kept.append(block[_needed_rows(queries, concerned, block)])
    return np.vstack(kept)


def fourier(
    workload: Workload, cost: float, domain: int | DomainLike | None = None
) -> LinearGaussianMechanism:
    """Add equal noise to the Fourier coefficients that a workload needs ("Fourier").

    On marginals, with r coefficients needed, every column of the strategy has the squared norm ``r / d``, and a
    cell of a marginal table of s cells has the variance ``r / (s cost)``. Where all d are needed the strategy is
    orthogonal, and so input perturbation.
    Barak, Chaudhuri, Dwork, Kale, McSherry and Talwar, "Privacy, accuracy, and consistency too", PODS 2007, for
    attributes of two values; Li and Miklau, PVLDB 5(6), 2012 ("EIG"), section 5: what the workload does not need is
    left out "to reduce sensitivity". Complex characters of longer attributes come in conjugate pairs; their real and
    imaginary parts are the rows here.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> workload = dm.workloads.marginals([3, 4], ways=1)
    >>> rivals.fourier(workload, cost=1).variances(workload).round(6)
    array([2. , 2. , 2. , 1.5, 1.5, 1.5, 1.5])
    """
    attributes, spent = domain_of(workload, domain), validate.positive_number(cost=cost)
    rows = fourier_matrix(attributes, workload)
    if len(rows) == attributes.cells:
        return input_perturbation(workload, spent)
    sensitivity = float((rows**2).sum(axis=0).max())
    return LinearGaussianMechanism(rows, sensitivity / spent * np.eye(len(rows)))


def character_block(domain: Domain, axes: tuple[int, ...]) -> Array:
    """Return the products of characters that vary on exactly these attributes, ``Π (n_i - 1)`` orthonormal rows."""
    block: Array = np.ones((1, 1))
    for axis, size in enumerate(domain.shape):
        characters = _characters(size)
        factor = characters[1:] if axis in axes else characters[:1]
        block = np.asarray(np.kron(block, factor), dtype=np.float64)
    return block


def subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Return the subsets of ``0 … count - 1``, small ones first."""
    return itertools.chain.from_iterable(
        itertools.combinations(range(count), size) for size in range(count + 1)
    )


def dependence(queries: Matrix, domain: Domain) -> npt.NDArray[np.bool_]:
    """Return on which attributes each query depends, rounding aside: (m, attributes)."""
    cell = np.arange(domain.cells).reshape(domain.shape)
    changes = np.empty((queries.shape[0], len(domain.shape)))
    for axis in range(len(domain.shape)):
        moved = queries[:, np.roll(cell, 1, axis).ravel()] - queries
        changes[:, axis] = linalg.to_dense(abs(moved).max(axis=1)).ravel()
    largest = linalg.to_dense(abs(queries).max(axis=1)).ravel()
    return np.asarray(changes > domain.cells * linalg.EPS * largest[:, None])


def _characters(size: int) -> Array:
    """Return the real characters of the integers modulo `size`, orthonormal, the constant one first."""
    value, rows = np.arange(size), [np.full(size, size**-0.5)]
    for frequency in range(1, (size + 1) // 2):
        angle = 2 * np.pi / size * (frequency * value % size)
        rows += [np.sqrt(2 / size) * np.cos(angle), np.sqrt(2 / size) * np.sin(angle)]
    if size % 2 == 0:
        rows.append(np.where(value % 2 == 0, 1.0, -1.0) * size**-0.5)
    # A cosine that should be zero is rounding: products of several would be too small for a problem to take.
    exact = np.array(rows)
    exact[np.abs(exact) < linalg.EPS] = 0.0
    return exact


def unit_rows(workload: Workload) -> Matrix:
    """Return the queries that are not all zero, each brought to unit norm; refuse where all are zero."""
    norms = workload.row_norms()
    asked = np.flatnonzero(norms)
    if not asked.size:
        raise InvalidInputError("workload must have at least one query that is not all zero")
    rows = workload.matrix[asked]
    if sp.issparse(rows):
        return sp.csr_array(sp.diags_array(1 / norms[asked]) @ rows)
    return rows / norms[asked, None]


def _needed_rows(queries: Matrix, concerned: npt.NDArray[np.intp], block: Array) -> npt.NDArray[np.intp]:
    """Return the rows of a block with which some concerned query of unit norm has a product beyond rounding."""
    # All rows left out together stay within what `represent` takes for rounding.
    tolerance = linalg.SPAN_TOLERANCE * block.shape[1] ** -0.5
    unneeded = np.arange(len(block))
    # Long tables usually come last, and need much at little cost: their queries count few cells.
    for stop in range(len(concerned), 0, -CHUNK):
        if not unneeded.size:
            break
        products = queries[concerned[max(stop - CHUNK, 0) : stop]] @ block[unneeded].T
        unneeded = unneeded[np.abs(products).max(axis=0) <= tolerance]
    return np.setdiff1d(np.arange(len(block)), unneeded)
