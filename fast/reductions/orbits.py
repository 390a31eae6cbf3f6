"""Problems with equal weights on orbits: of permutations declared by a user, or of cells and their mirror images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech.fast.engine import ascent
from dualmech.fast.engine.dual_function import DenseDual
from dualmech.fast.engine.orbits import OrbitProgram, Part
from dualmech.fast.engine.spectrum import SteppedQueries
from dualmech.geometry.attribute_symmetry import orbit_labels
from dualmech.geometry.orbits import Orbits
from dualmech.validate import Array
from dualmech.workloads.steps import Steps

Index = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class OrbitReduction:
    """A reduction with equal weights on orbits, and the maps between weights of orbits and of the problem."""

    base: Any
    program: OrbitProgram
    groups: Index  # (s + m,) the orbit of each weight
    lifts: tuple[Array, ...] | None = (
        None  # (k, r) maps the coordinates of each part to the full basis; None if there is a single part
    )

    @property
    def shape(self) -> tuple[int, int]:
        return self.base.shape

    def covariance(self, points: tuple[Array, tuple[Array, ...]]) -> Array:
        parts = points[1]
        if self.lifts is None:
            return np.asarray(self.base.covariance(parts[0]))
        lifted_parts = [lift @ part @ lift.T for lift, part in zip(self.lifts, parts, strict=True)]
        return np.asarray(self.base.covariance(np.sum(lifted_parts, axis=0)))

    def spread(self, weights: Array) -> Array:
        return np.asarray(weights[self.groups] / np.bincount(self.groups)[self.groups])

    def gather(self, weights: Array) -> Array:
        return np.asarray(np.bincount(self.groups, weights, sum(self.program.sizes[:2])), dtype=np.float64)


def with_reduction(reduced: ascent.ReducedProblem, reduction: Any) -> ascent.ReducedProblem:
    """Compose a reduced problem with another reduction, which maps weights by `spread` and `gather`."""

    def gather(dual: object) -> Array | None:
        weights = reduced.gather(dual)
        return None if weights is None else reduction.gather(weights)

    return replace(
        reduced, reduction=reduction, dual=lambda weights: reduced.dual(reduction.spread(weights)), gather=gather
    )


def by_orbit(reduced: ascent.ReducedProblem, orbits: Orbits) -> ascent.ReducedProblem:
    reduction, program = reduced.reduction, reduced.reduction.program
    groups, num_neighbours = _renumber(orbits.neighbours[reduction.neighbours])
    num_queries = 0
    if not program.fixed:
        queries, num_queries = _renumber(orbits.queries[reduction.queries])
        groups = np.concatenate([groups, num_neighbours + queries])
    shares = 1 / np.bincount(groups)[groups]
    orbit_program = OrbitProgram((Part(program, groups, shares),), None, num_neighbours, num_queries, program.fixed)
    return with_reduction(reduced, OrbitReduction(reduction, orbit_program, groups))


def _renumber(labels: Index) -> tuple[Index, int]:
    distinct_labels, numbers = np.unique(labels, return_inverse=True)
    return numbers.ravel().astype(np.intp), len(distinct_labels)


# Workloads that are invariant under reversal of the cells, such as all ranges. Optimal noise is then independent on the
# sums ``x_i + x_i'`` of a cell and its mirror image and on the differences ``x_i' - x_i``: two programs of half the
# size, with one weight for a cell and its image. The judge does not rely on this: it judges the full problem.


def mirrored(reduced: ascent.ReducedProblem) -> ascent.ReducedProblem:
    """Split a problem with symmetric queries into its even and odd parts; return other problems unchanged."""
    program = reduced.reduction.program
    queries = program.queries
    if not (isinstance(queries, SteppedQueries) and program.moves is None and queries.steps.is_whole):
        return reduced
    if (cells := queries.shape[1]) == 1:
        return reduced
    mirror_images = _mirror_images(queries)
    if mirror_images is None:
        return reduced
    orbits, num_queries = _renumber(orbit_labels([mirror_images], len(mirror_images)))
    _, first_queries = np.unique(orbits, return_index=True)
    right = np.arange(cells // 2, cells)  # from the middle on: a range has two non-zero differences there as well
    left, count = cells - 1 - right, len(right)
    parts, lifts = [], []
    for sign, pairs in ((1, np.arange(count)), (-1, np.arange(cells % 2, count))):
        folded = _fold(queries.chosen(first_queries), left[pairs], right[pairs], sign)
        if folded is None or not folded.steps.steps.nnz:
            return reduced
        nonzero = np.flatnonzero(np.diff(folded.steps.steps.indptr))
        groups = np.concatenate([pairs, count + nonzero])
        parts.append(Part(DenseDual(folded.chosen(nonzero), None), groups, np.ones(len(groups))))
        lift = np.zeros((cells, len(pairs)))
        lift[right[pairs], np.arange(len(pairs))] += 0.5
        lift[left[pairs], np.arange(len(pairs))] += sign * 0.5
        lifts.append(lift)
    groups = np.concatenate([np.abs(np.arange(cells) - (cells - 1) / 2).astype(np.intp), count + orbits])
    orbit_program = OrbitProgram(tuple(parts), None, count, num_queries)
    return with_reduction(reduced, OrbitReduction(reduced.reduction, orbit_program, groups, tuple(lifts)))


def _mirror_images(queries: SteppedQueries) -> Index | None:
    """Return the index of the mirror image, with the same target, of each query; None if a query has none."""
    cells = queries.shape[1]
    numbers = np.random.default_rng(0).integers(0, 2**64, cells, dtype=np.uint64)
    steps = queries.steps.steps.astype(np.int64).astype(np.uint64)
    # Hash values modulo 2^64: equal for equal queries, and for others with negligible probability.
    keys, mirror_keys = steps @ numbers.cumsum(), steps @ numbers[::-1].cumsum()
    order, mirror_order = (np.lexsort((queries.factors, key)) for key in (keys, mirror_keys))
    is_symmetric = np.array_equal(keys[order], mirror_keys[mirror_order])
    if not (is_symmetric and np.array_equal(queries.factors[order], queries.factors[mirror_order])):
        return None
    mirror_images = np.empty(len(keys), dtype=np.intp)
    mirror_images[mirror_order] = order
    return mirror_images


def _fold(queries: SteppedQueries, left: Index, right: Index, sign: int) -> SteppedQueries | None:
    """Return the queries on half the sums, or half the differences, of mirrored cells, from the middle outwards."""
    steps, count = queries.steps, len(right)
    # Difference 0 is the value of the first cell; the other differences follow.
    first_cell = sp.csr_array(-steps.steps.sum(axis=1)[:, None])
    pairs = np.concatenate([np.arange(count), np.arange(count)])
    entries = np.repeat([0.5, -0.5 * sign], count), (np.concatenate([right + 1, left]), pairs)
    folded = sp.csr_array(
        sp.hstack([first_cell, steps.steps]) @ sp.csr_array(entries, shape=(queries.shape[1] + 1, count))
    )
    folded.eliminate_zeros()
    folded.sort_indices()
    folded_steps = Steps.few(folded, steps.largest, False)
    return None if folded_steps is None else SteppedQueries(folded_steps, queries.factors)
