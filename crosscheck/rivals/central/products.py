"""Strategies over several attributes as Kronecker products of strategies over one: trees of intervals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from dualmech import validate
from dualmech.crosscheck.rivals.central.intervals import IntervalTree
from dualmech.crosscheck.rivals.central.trees import interval_tree
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload, check_workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.tabulations import DomainLike, as_domain

MAX_ENTRIES = 2**26  # largest number of non-zero entries of a strategy matrix that is written out


def hierarchical_matrix(domain: int | DomainLike, branching: int = 2) -> sp.csr_array:
    """Return the strategy that sums every product of tree nodes, one node of each attribute's `interval_tree`.

    With `branching`, branching factor of every tree, at least 2.
    Returns a sparse array (m, d): of zeros and ones; a cell is counted once for each choice of a level in every tree.

    Examples
    --------
    >>> from dualmech.crosscheck import rivals
    >>> rivals.hierarchical_matrix(2).toarray()
    array([[1., 0.],
           [0., 1.],
           [1., 1.]])
    >>> rivals.hierarchical_matrix([8, 16]).shape
    (465, 128)
    """
    return product_matrix(attributes_of(domain), lambda size: interval_tree(size, branching).matrix)


def hierarchical_product(
    workload: Workload, cost: float, domain: int | DomainLike | None = None, branching: int = 2
) -> LinearGaussianMechanism:
    """Add equal noise to every product of tree nodes, and use the sums consistently ("Hierarchical").

    With X_i the cost matrix of one attribute's tree, that of the product is ``⊗ X_i``, so the covariance of the
    cells' estimate is the Kronecker product of those that the trees give alone, and its cost the product of
    theirs. Over one attribute this is `hierarchical`.

    With `branching`, branching factor of every tree, at least 2.
    Li and Miklau, PVLDB 5(6), 2012 ("EIG"), section 5, take binary trees with their root, adapted to several dimensions
    "in a manner analogous to" the wavelet's: a product in every dimension, not the nodes of one tree that halves all
    dimensions together (a quad-tree).

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> workload = dm.workloads.range_marginals([4, 4], ways=2)
    >>> round(float(rivals.hierarchical_product(workload, cost=1).variances(workload).sum()), 2)
    435.02
    """
    attributes = domain_of(workload, domain)
    return product_mechanism(attributes, lambda size: interval_tree(size, branching), cost)


def product_matrix(domain: Domain, factor: Callable[[int], Matrix]) -> sp.csr_array:
    """Return the Kronecker product, over the attributes in order, of a sparse strategy for each."""
    factors = [sp.csr_array(factor(size)) for size in domain.shape]
    entries = int(np.prod([float(each.nnz) for each in factors]))
    if entries > MAX_ENTRIES:
        raise InvalidInputError(
            f"strategy over {domain.cells} cells is too large to write out "
            f"({entries:.3g} of at most {MAX_ENTRIES} non-zero entries)"
        )
    product = factors[0]
    for each in factors[1:]:
        product = sp.csr_array(sp.kron(product, each, format="csr"))
    return product


def product_mechanism(
    domain: Domain, tree: Callable[[int], IntervalTree], cost: float
) -> LinearGaussianMechanism:
    """Return the mechanism of a product of trees at a squared privacy cost, as noise on the cells."""
    spent = validate.positive_number(cost=cost)
    covariance: Array = np.ones((1, 1))
    for size in domain.shape:
        factor = tree(size).mechanism(1.0).covariance()
        covariance = np.asarray(np.kron(covariance, factor), dtype=np.float64)
    return LinearGaussianMechanism(np.eye(domain.cells), covariance / spent)


def attributes_of(domain: int | DomainLike) -> Domain:
    """Return a domain; a number of cells is one attribute, the cell."""
    if isinstance(domain, int | np.integer):
        return Domain({"cell": validate.size(domain=domain)})
    return as_domain(domain)


def domain_of(workload: Workload, domain: int | DomainLike | None) -> Domain:
    """Return the attributes behind a workload's cells: those given, its own, or one, the cell."""
    cells = check_workload(workload).shape[1]
    given = workload.domain or Domain({"cell": cells}) if domain is None else attributes_of(domain)
    if given.cells != cells:
        raise InvalidInputError(f"domain must have {cells} cells, as the workload, got {given.cells}")
    if cells**2 > MAX_DENSE_ENTRIES:
        raise InvalidInputError(
            f"covariance of {cells} cells is too large to write out (limit {MAX_DENSE_ENTRIES} entries)"
        )
    return given
