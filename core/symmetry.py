"""Symmetry that a user knows of: permutations of the cells that change nothing, checked, and the orbits they make.

If permutations of cells take the queries to each other, targets and neighbours included, both sides of fitness for use
may be averaged over them: best weights λ and μ are equal within orbits (`docs/scale.md`). A solver that is told the
orbits has one weight for each. The judge is not told: the certificate is that of the whole problem.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse import csgraph

from dualmech import linalg, validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.validate import Array, Matrix

Index = npt.NDArray[np.intp]

CHUNK = 2**22
"""Entries that are compared at a time."""

ALIKE = 1e-9
"""Two sums of a row that differ by less than this share of its size may belong to the same query."""


@dataclass(frozen=True, slots=True, eq=False)
class Orbits:
    """Which neighbours, and which queries, a group of permutations of the cells takes to each other.

    Attributes
    ----------
    neighbours : (s,) array of int
        The orbit of each pair of neighbours, numbered from 0.
    queries : (m,) array of int
        The orbit of each query.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.FitnessForUse(dm.workloads.all_range(4), targets=1.0)
    >>> mirrored = dm.Orbits.of(problem, [[3, 2, 1, 0]])
    >>> mirrored.neighbours, mirrored.queries
    (array([0, 1, 1, 0]), array([0, 1, 2, 3, 4, 5, 2, 4, 1, 0]))
    """

    neighbours: Index
    queries: Index

    @classmethod
    def of(cls, problem: Any, permutations: Iterable[npt.ArrayLike] | Orbits) -> Orbits:
        """Check that permutations of the cells leave a problem as it is, and return the orbits of what they generate.

        Parameters
        ----------
        problem : FitnessForUse, PrivacyFirst or TotalVariance
            With its targets or weights, and its neighbours.
        permutations : iterable of (d,) arrays, or Orbits
            Each lists, for every cell, the cell that takes its place: W is compared with ``W[:, p]``. A few that
            generate the group are enough. Orbits that were found before are taken as they are.

        Raises
        ------
        InvalidInputError, InputTypeError
            What is no permutation of the cells; one that takes a query to none of the same target, or neighbours to
            none, the first of them named; orbits of another number of neighbours or queries.
        """
        queries, cells = problem.workload.shape
        neighbours = problem.neighbours
        count = cells if neighbours is None else neighbours.shape[1]
        if isinstance(permutations, Orbits):
            if (len(permutations.neighbours), len(permutations.queries)) != (count, queries):
                raise InvalidInputError(
                    f"orbits must be of {count} neighbours and {queries} queries, got "
                    f"{len(permutations.neighbours)} and {len(permutations.queries)}"
                )
            return permutations
        if isinstance(permutations, str) or not isinstance(permutations, Iterable):
            raise InputTypeError(
                f"orbits must be permutations of the cells, got {type(permutations).__name__}"
            )
        numbers = problem.weights if hasattr(problem, "weights") else problem.targets
        moves, links = [], []
        for index, given in enumerate(permutations):
            order = _permutation(given, index, cells)
            links.append(
                _images(problem.workload.matrix, order, numbers, f"orbits[{index}]", _query(problem))
            )
            if neighbours is None:
                moves.append(order)
            else:
                rows = neighbours.T.tocsr() if sp.issparse(neighbours) else neighbours.T
                moves.append(_images(rows, order, np.ones(count), f"orbits[{index}]", "neighbours {}".format))
        return cls(_joined(moves, count), _joined(links, queries))


def averages(orbits: Index) -> sp.csr_array:
    """Return the matrix (orbits, items) that takes means over orbits; numbers without items are left out."""
    _, numbers, counts = np.unique(orbits, return_inverse=True, return_counts=True)
    members = numbers.ravel()
    shape = len(counts), len(members)
    return sp.csr_array((1 / counts[members], (members, np.arange(len(members)))), shape=shape)


def _query(problem: Any) -> Any:
    return lambda row: f"query {problem.workload.names[row]!r}"


def _permutation(given: npt.ArrayLike, index: int, cells: int) -> Index:
    """Return one permutation, checked."""
    order = validate.numeric(1, **{f"orbits[{index}]": given})
    if len(order) != cells or not np.array_equal(np.sort(order), np.arange(cells)):
        raise InvalidInputError(f"orbits[{index}] must be a permutation of the cells 0 to {cells - 1}")
    return order.astype(np.intp)


def _images(rows: Matrix, order: Index, numbers: Array, what: str, named: Any) -> Index:
    """Return, for each row, the row that it becomes, up to sign, where the columns are permuted.

    Rows are paired by their sum with random factors and by their number, in order; then every pair is compared entry by
    entry, so that chance may miss a symmetry, once in very many times, but never sees one that is not there.
    """
    factors = np.random.default_rng(0).uniform(0.5, 1.5, rows.shape[1])
    back = np.empty_like(factors)
    back[order] = factors
    sizes = np.asarray(abs(rows) @ factors)
    before, after = (_rounded(np.abs(np.asarray(rows @ each)), sizes) for each in (factors, back))
    targets, sources = np.lexsort((before, numbers)), np.lexsort((after, numbers))
    image = np.empty(len(sources), dtype=np.intp)
    image[sources] = targets
    wrong = np.flatnonzero(numbers != numbers[image])
    step = max(1, CHUNK // rows.shape[1])
    for start in range(0, len(image), step):
        own = slice(start, start + step)
        moved, found = linalg.to_dense(rows[own])[:, order], linalg.to_dense(rows[image[own]])
        same = np.all(moved == found, axis=1) | np.all(moved == -found, axis=1)
        wrong = np.union1d(wrong, start + np.flatnonzero(~same))
    if wrong.size:
        raise InvalidInputError(
            f"{what} takes {named(int(wrong[0]))} to none of the same target: it is no symmetry of the problem "
            f"({wrong.size} are not matched)"
        )
    return image


def _rounded(sums: Array, sizes: Array) -> Array:
    """Return sums without the digits that depend on the order of summation."""
    units = ALIKE * np.maximum(sizes, np.finfo(np.float64).tiny / ALIKE)
    return np.asarray(np.round(sums / units) * units)


def _joined(images: list[Index], count: int) -> Index:
    """Return the orbit of each item, numbered as they appear, under maps that take items to items."""
    rows = np.concatenate([np.zeros(0, dtype=np.intp), *[np.arange(count)] * len(images)])
    columns = np.concatenate([np.zeros(0, dtype=np.intp), *images])
    links = sp.coo_array((np.ones(len(rows)), (rows, columns)), shape=(count, count))
    labels = csgraph.connected_components(links, directed=False)[1]
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.ravel()].astype(np.intp)
