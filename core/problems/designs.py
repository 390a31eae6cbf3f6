"""Design queries to choose weights for (`dualmech.QueryWeighting`): eigen-queries, wavelets, trees, Fourier bases.

Any rows serve as a design, a workload's own among them; `dualmech.fast.eigen_design` takes the eigen-queries.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload, check_asks, check_workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.streams import RangeWorkload, SineWorkload
from dualmech.workloads.tabulations import DomainLike, as_domain

__all__ = ["eigen_queries"]

GRADED = 1e-12
"""Ratio of eigenvalues of a Gram matrix below which the eigenvectors are taken from the queries themselves."""

NEGLIGIBLE = 1e-30
"""Entries of a unit vector below this are written as 0: far below rounding, and too small for a problem's data."""


def eigen_queries(workload: Workload) -> Array:
    """Return the eigenvectors of ``W'W`` whose eigenvalues are not zero: (k, d), orthonormal rows, k the rank.

    They stand in the order of falling eigenvalues, and the largest entry of each is positive. Where eigenvalues
    coincide, eigenvectors are not unique, and neither is the optimum of weighting them. The eigenvectors of all
    ranges are `dualmech.workloads.sines`, which need no matrix.
    Raises `InvalidInputError` or `InputTypeError` for no workload, an all-zero one, or one that is too
    large to write out and lacks full column rank.
    Source: definition 6 of Li and Miklau, "An adaptive mechanism for accurate query answering under differential
    privacy", PVLDB 5(6), 2012; zero eigenvalues are dropped as in their section 4.1.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.designs.eigen_queries(dm.workloads.identity_total(2)).round(4)
    array([[ 0.7071,  0.7071],
           [ 0.7071, -0.7071]])
    """
    if isinstance(check_workload(workload), RangeWorkload):
        return _with_fixed_signs(SineWorkload(workload.shape[1]).matrix)
    check_asks(workload)
    queries, cells = workload.shape
    if queries >= cells:
        values, vectors = scipy.linalg.eigh(workload.gram(), check_finite=False)
        if values[0] > GRADED * values[-1]:
            return _with_fixed_signs(vectors[:, ::-1].T)
    return _with_fixed_signs(_right_singular_vectors(workload.dense()))


def _right_singular_vectors(queries: Array) -> Array:
    """Return orthonormal rows that span the rows of W and are its right singular vectors, however it is scaled.

    The rows at unit norm span it; within it, a triangle stands for W, its long rows reflected first.
    """
    basis = linalg.row_space(queries)
    inner = queries @ basis.T
    _, _, right = linalg.svd(linalg.triangle(inner), full_matrices=True)
    return np.asarray(right @ basis)


def _with_fixed_signs(rows: Array) -> Array:
    """Return the rows, entries below rounding set to zero, with the sign that makes the largest magnitude positive."""
    rows = np.where(np.abs(rows) > NEGLIGIBLE, rows, 0.0)
    largest = rows[np.arange(len(rows)), np.argmax(np.abs(rows), axis=1)]
    return np.ascontiguousarray(rows * np.sign(largest)[:, None])


# The Haar wavelet, over one attribute and over several.


MAX_ENTRIES = 2**26  # largest number of non-zero entries of a strategy matrix that is written out


def haar_matrix(domain: int | DomainLike) -> sp.csr_array:
    """Return the Haar wavelet as a strategy: the total, then left half minus right half of every node.

    The nodes of n cells belong to the binary tree over the next power of two N: the root, its halves, and
    so on down to pairs, level by level. Entries are 1, -1 and 0. Cells from n on do not exist: their columns are
    dropped, and so are the rows that this leaves empty. Every column has the squared norm ``1 + log₂ N``. Over
    several attributes it is the Kronecker product.
    Returns a sparse array (m, d): square and invertible, with orthogonal rows, where all sizes are powers of two; else
    of full column rank, with some rows that depend on others.
    Rows of ones and minus ones are the weights of Xiao, Wang and Gehrke, "Differential privacy via wavelet transforms",
    ICDE 2010 (Privelet): their coefficient of a node of s cells is the row over s, and its noise is proportional to
    1/s. Orthonormal rows would all get equal noise, which is input perturbation.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.designs.haar_matrix(4).toarray().astype(int)
    array([[ 1,  1,  1,  1],
           [ 1,  1, -1, -1],
           [ 1, -1,  0,  0],
           [ 0,  0,  1, -1]])
    >>> dm.designs.haar_matrix({"age": 5, "sex": 2}).shape
    (14, 10)
    """
    return product_matrix(attributes_of(domain), _haar)


def levels(cells: int) -> int:
    """Return log₂ of the least power of two that is not below the number of cells."""
    return (cells - 1).bit_length()


def _haar(cells: int) -> sp.csr_array:
    cell = np.arange(cells)
    rows, signs, offset = [np.zeros(cells, dtype=np.intp)], [np.ones(cells)], 1
    for level in range(levels(cells), 0, -1):
        width = 2**level
        rows.append(offset + cell // width)
        signs.append(np.where(cell % width < width // 2, 1.0, -1.0))
        offset += -(-cells // width)
    columns = np.tile(cell, len(rows))
    return sp.csr_array((np.concatenate(signs), (np.concatenate(rows), columns)), shape=(offset, cells))


def hierarchical_matrix(domain: int | DomainLike, branching: int = 2) -> sp.csr_array:
    """Return the strategy that sums every product of tree nodes, one node of each attribute's tree, of `level_widths`.

    With `branching`, branching factor of every tree, at least 2.
    Returns a sparse array (m, d): of zeros and ones; a cell is counted once for each choice of a level in every tree.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.designs.hierarchical_matrix(2).toarray()
    array([[1., 0.],
           [0., 1.],
           [1., 1.]])
    >>> dm.designs.hierarchical_matrix([8, 16]).shape
    (465, 128)
    """
    return product_matrix(attributes_of(domain), lambda size: _tree(size, [1, *level_widths(size, branching)]))


def level_widths(cells: int, branching: int) -> list[int]:
    """Return the widths of a tree's intervals by level, without the cells: b, b², … while shorter than all, the root.

    Raises `InvalidInputError` or `InputTypeError` for a number of cells below 1, a branching factor below 2.
    """
    count, factor = validate.size(cells=cells), validate.size(branching=branching)
    if factor < 2:
        raise InvalidInputError(f"branching must be an integer of at least 2, got {factor}")
    widths, width = [], factor
    while width < count:
        widths.append(width)
        width *= factor
    return [*widths, count] if count > 1 else widths


def _tree(cells: int, widths: list[int]) -> sp.csr_array:
    cell, offsets = np.arange(cells), np.cumsum([0, *(-(-cells // width) for width in widths)])
    rows = np.concatenate([offset + cell // width for offset, width in zip(offsets, widths, strict=False)])
    ones, columns = np.ones(len(rows)), np.tile(cell, len(widths))
    return sp.csr_array((ones, (rows, columns)), shape=(int(offsets[-1]), cells))


def product_matrix(domain: Domain, factor: Callable[[int], Matrix]) -> sp.csr_array:
    """Return the Kronecker product, over the attributes in order, of a sparse strategy for each."""
    factors = [sp.csr_array(factor(size)) for size in domain.shape]
    entries = int(np.prod([float(factor.nnz) for factor in factors]))
    if entries > MAX_ENTRIES:
        raise InvalidInputError(
            f"strategy over {domain.cells} cells is too large for a dense matrix "
            f"({entries:.3g} of at most {MAX_ENTRIES} non-zero entries)"
        )
    product = factors[0]
    for right in factors[1:]:
        product = sp.csr_array(sp.kron(product, right, format="csr"))
    return product


def attributes_of(domain: int | DomainLike) -> Domain:
    if isinstance(domain, int | np.integer):
        return Domain({"cell": validate.size(domain=domain)})
    return as_domain(domain)


def domain_of(workload: Workload, domain: int | DomainLike | None) -> Domain:
    """Return the attributes behind a workload's cells: those given, its own, or one, the cell."""
    cells = check_workload(workload).shape[1]
    stated = workload.domain or Domain({"cell": cells}) if domain is None else attributes_of(domain)
    if stated.cells != cells:
        raise InvalidInputError(f"domain must have {cells} cells, as the workload, got {stated.cells}")
    if cells**2 > MAX_DENSE_ENTRIES:
        raise InvalidInputError(
            f"covariance of {cells} cells is too large for a dense matrix (limit {MAX_DENSE_ENTRIES} entries)"
        )
    return stated


# The Fourier strategy: real characters of the cells, those that a workload needs.


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
    >>> (2 * dm.designs.fourier_matrix([2, 2])).round(6).astype(int)
    array([[ 1,  1,  1,  1],
           [ 1,  1, -1, -1],
           [ 1, -1,  1, -1],
           [ 1, -1, -1,  1]])
    >>> one_way = dm.workloads.marginals([3, 4], ways=1)
    >>> dm.designs.fourier_matrix([3, 4], one_way).shape, dm.designs.fourier_matrix([3, 4]).shape
    ((6, 12), (12, 12))
    """
    attributes = attributes_of(domain)
    if attributes.cells**2 > MAX_DENSE_ENTRIES:
        raise InvalidInputError(
            f"Fourier basis of {attributes.cells} cells is too large for a dense matrix (limit {MAX_DENSE_ENTRIES} "
            "entries)"
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


def character_block(domain: Domain, axes: tuple[int, ...]) -> Array:
    """Return the products of characters that vary on exactly these attributes, ``Π (n_i - 1)`` orthonormal rows."""
    varying = (slice(1, None) if axis in axes else slice(1) for axis in range(len(domain.shape)))
    return linalg.kronecker([_characters(size)[rows] for size, rows in zip(domain.shape, varying, strict=True)])


def subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Return the subsets of ``0 … count - 1``, small ones first."""
    return itertools.chain.from_iterable(itertools.combinations(range(count), size) for size in range(count + 1))


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
    kept = np.flatnonzero(norms)
    if not kept.size:
        raise InvalidInputError("workload must have at least one query that is not all zero")
    rows = workload.matrix[kept]
    if sp.issparse(rows):
        return sp.csr_array(sp.diags_array(1 / norms[kept]) @ rows)
    return rows / norms[kept, None]


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
