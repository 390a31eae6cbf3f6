"""The Haar wavelet, over one attribute and over several."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from dualmech import validate
from dualmech.crosscheck.rivals.central.intervals import IntervalTree
from dualmech.crosscheck.rivals.central.products import (
    attributes_of,
    domain_of,
    product_matrix,
    product_mechanism,
)
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.workloads.base import Workload
from dualmech.workloads.tabulations import DomainLike


def haar_matrix(domain: int | DomainLike) -> sp.csr_array:
    """Return the Haar wavelet as a strategy: the total, then left half minus right half of every node.

    The nodes of n cells are those of the binary tree over the next power of two N: the root, its halves, and
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
    >>> from dualmech.crosscheck import rivals
    >>> rivals.haar_matrix(4).toarray().astype(int)
    array([[ 1,  1,  1,  1],
           [ 1,  1, -1, -1],
           [ 1, -1,  0,  0],
           [ 0,  0,  1, -1]])
    >>> rivals.haar_matrix({"age": 5, "sex": 2}).shape
    (14, 10)
    """
    return product_matrix(attributes_of(domain), _haar)


def haar_tree(cells: int) -> IntervalTree:
    """Return the tree of interval sums that is equivalent to the Haar wavelet.

    With h the row of a node v of the wavelet and l, r its halves, ``1_v 1_v' + h h' = 2 (1_l 1_l' + 1_r 1_r')``.
    Used from the root down, this turns the cost matrix of the wavelet into ``2 I + Σ 1_v 1_v'`` over the nodes
    between root and cells: it is the binary tree without its root, every cell counted once more.

    Examples
    --------
    >>> from dualmech.crosscheck import rivals
    >>> wavelet, tree = rivals.haar_matrix(6), rivals.haar_tree(6).matrix
    >>> int(abs(wavelet.T @ wavelet - tree.T @ tree).max())
    0
    """
    count = validate.size(cells=cells)
    return IntervalTree.of_widths(count, [2**level for level in range(_levels(count))])


def wavelet(
    workload: Workload, cost: float, domain: int | DomainLike | None = None
) -> LinearGaussianMechanism:
    """Add equal noise to every row of `haar_matrix`, and use the answers consistently ("Wavelet").

    Over d cells, a power of two, a cell has the variance ``(1 + log₂ d) (1/3 + 2/(3 d²)) / cost``, and the total
    ``(1 + log₂ d) / cost``.
    Source: Xiao, Wang and Gehrke, ICDE 2010; Li and Miklau, PVLDB 5(6), 2012 ("EIG"), section 5.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> workload = dm.workloads.identity_total(8)
    >>> rivals.wavelet(workload, cost=1).variances(workload)[-2:]
    array([1.375, 4.   ])
    """
    return product_mechanism(domain_of(workload, domain), haar_tree, cost)


def _levels(cells: int) -> int:
    """Return log₂ of the least power of two that is not below the number of cells."""
    return (cells - 1).bit_length()


def _haar(cells: int) -> sp.csr_array:
    cell = np.arange(cells)
    rows, signs, offset = [np.zeros(cells, dtype=np.intp)], [np.ones(cells)], 1
    for level in range(_levels(cells), 0, -1):
        width = 2**level
        rows.append(offset + cell // width)
        signs.append(np.where(cell % width < width // 2, 1.0, -1.0))
        offset += -(-cells // width)
    columns = np.tile(cell, len(rows))
    return sp.csr_array((np.concatenate(signs), (np.concatenate(rows), columns)), shape=(offset, cells))
