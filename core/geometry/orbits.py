"""Symmetry that a user states: permutations of the cells that change nothing, checked, and their orbits.

If permutations of cells take the queries to each other, targets and neighbours included, both sides of fitness for use
may be averaged over them: best weights λ and μ are equal within orbits (`docs/scale.md`). A solver that is told the
orbits has one weight for each. The judge is not told: it certifies the whole problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.attribute_symmetry import orbit_labels, with_positive_lead
from dualmech.validate import Array, Matrix

Index = npt.NDArray[np.intp]

CHUNK = 2**22  # entries that are written out at a time


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

        Raises `InvalidInputError` or `InputTypeError` for no permutation of the cells; one that takes a
        query to none of the same target, or neighbours to none, the first of them named; orbits of another
        number of neighbours or queries.

        Parameters
        ----------
        problem : FitnessForUse, PrivacyFirst or TotalVariance
            With its targets or weights, and its neighbours.
        permutations : iterable of (d,) arrays, or Orbits
            Each lists, for every cell, the cell that takes its place: W is compared with ``W[:, p]``. A few that
            generate the group are enough. Orbits that were found before are taken as they are.
        """
        for name in ("workload", "neighbours", "geometry"):
            if not hasattr(problem, name):
                raise InputTypeError(
                    f"problem must be a FitnessForUse, PrivacyFirst or TotalVariance, got {type(problem).__name__}"
                )
        check_orbits(problem.geometry, permutations)
        problem = problem.on_matrix()
        queries, cells = problem.workload.shape
        neighbours = problem.neighbours
        count = cells if neighbours is None else neighbours.shape[1]
        if isinstance(permutations, Orbits):
            return cls(
                _labels("neighbours", permutations.neighbours, count), _labels("queries", permutations.queries, queries)
            )
        several = validate.sequence(orbits=permutations)
        numbers = problem.weights if hasattr(problem, "weights") else problem.targets
        moves, links = [], []
        for index, permutation in enumerate(several):
            order = _permutation(permutation, index, cells)
            links.append(_images(problem.workload.matrix, order, numbers, f"orbits[{index}]", _query(problem)))
            if neighbours is None:
                moves.append(order)
            else:
                rows = neighbours.T.tocsr() if sp.issparse(neighbours) else neighbours.T
                moves.append(_images(rows, order, np.ones(count), f"orbits[{index}]", "neighbours {}".format))
        return cls(orbit_labels(moves, count), orbit_labels(links, queries))


def check_orbits(geometry: object, orbits: object) -> None:
    """Refuse orbits, unless they are None, where there is no matrix: blocks find their own."""
    if orbits is not None and (kind := getattr(geometry, "name", None)) not in ("dense", "stream"):
        raise InvalidInputError(f"orbits are for geometry 'dense', the problem stands on {kind!r}")


def averages(orbits: Index) -> sp.csr_array:
    """Return the matrix (orbits, items) that takes means over orbits; numbers without items are left out."""
    _, numbers, counts = np.unique(orbits, return_inverse=True, return_counts=True)
    members = numbers.ravel()
    shape = len(counts), len(members)
    return sp.csr_array((1 / counts[members], (members, np.arange(len(members)))), shape=shape)


def _query(problem: Any) -> Any:
    return lambda row: f"query {problem.workload.names[row]!r}"


def _labels(name: str, values: object, count: int) -> Index:
    """Return labels that a user gave, checked; whether they are orbits shows in the gap."""
    labels = validate.numeric(1, **{f"orbits.{name}": values})
    if len(labels) != count or not np.array_equal(labels, np.clip(np.round(labels), 0, count)):
        raise InvalidInputError(f"orbits.{name} must be {count} whole numbers from 0, one each")
    return labels.astype(np.intp)


def _permutation(values: npt.ArrayLike, index: int, cells: int) -> Index:
    order = validate.numeric(1, **{f"orbits[{index}]": values})
    if len(order) != cells or not np.array_equal(np.sort(order), np.arange(cells)):
        raise InvalidInputError(f"orbits[{index}] must be a permutation of the cells 0 to {cells - 1}")
    return order.astype(np.intp)


def _images(rows: Matrix, order: Index, numbers: Array, what: str, named: Any) -> Index:
    """Return, for each row, the row of the same number that it becomes, up to sign, where the columns are permuted."""
    places: dict[bytes, list[int]] = {}
    for row, digest in enumerate(_digests(rows, slice(None), numbers)):
        places.setdefault(digest, []).append(row)
    image = np.full(len(numbers), -1, dtype=np.intp)
    for row, digest in enumerate(_digests(rows, order, numbers)):
        if alike := places.get(digest):
            image[row] = alike.pop()
    wrong = np.flatnonzero(image < 0)
    if wrong.size:
        raise InvalidInputError(
            f"{what} takes {named(int(wrong[0]))} to none of the same target: it is not a symmetry of the problem "
            f"({wrong.size} are not matched)"
        )
    return image


def _digests(rows: Matrix, order: Index | slice, numbers: Array) -> Iterator[bytes]:
    """Yield 16 bytes for each row that equal rows of the same number share, up to sign, and no others."""
    step = max(1, CHUNK // rows.shape[1])
    for start in range(0, len(numbers), step):
        block = with_positive_lead(linalg.to_dense(rows[start : start + step])[:, order])
        for row, number in zip(block, numbers[start : start + step], strict=True):
            yield blake2b(row.tobytes() + number.tobytes(), digest_size=16).digest()
