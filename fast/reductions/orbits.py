"""Problems whose weights are equal within orbits: of permutations that a user states, or of cells and their mirror."""

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
    """A reduction with its weights tied: it maps weights of orbits to the problem's weights and back."""

    whole: Any
    program: OrbitProgram
    groups: Index  # (s + m,) the orbit of each weight
    turns: tuple[Array, ...] | None = None  # (k, r) for each part takes its coordinates to the whole's; None: the whole

    @property
    def shape(self) -> tuple[int, int]:
        return self.whole.shape

    def covariance(self, points: tuple[Array, tuple[Array, ...]]) -> Array:
        parts = points[1]
        if self.turns is None:
            return np.asarray(self.whole.covariance(parts[0]))
        turned = [turn @ part @ turn.T for turn, part in zip(self.turns, parts, strict=True)]
        return np.asarray(self.whole.covariance(np.sum(turned, axis=0)))

    def spread(self, weights: Array) -> Array:
        return np.asarray(weights[self.groups] / np.bincount(self.groups)[self.groups])

    def gather(self, weights: Array) -> Array:
        return np.asarray(np.bincount(self.groups, weights, sum(self.program.sizes[:2])), dtype=np.float64)


def tied(reduced: ascent.ReducedProblem, under: Any) -> ascent.ReducedProblem:
    """Return a problem with a reduction on top of its own, which maps weights by `spread` and `gather`."""

    def gather(dual: object) -> Array | None:
        weights = reduced.gather(dual)
        return None if weights is None else under.gather(weights)

    return replace(reduced, reduction=under, dual=lambda weights: reduced.dual(under.spread(weights)), gather=gather)


def by_orbit(reduced: ascent.ReducedProblem, orbits: Orbits) -> ascent.ReducedProblem:
    reduction, program = reduced.reduction, reduced.reduction.program
    groups, first = _renumber(orbits.neighbours[reduction.neighbours])
    last = 0
    if not program.fixed:
        queries, last = _renumber(orbits.queries[reduction.queries])
        groups = np.concatenate([groups, first + queries])
    shares = 1 / np.bincount(groups)[groups]
    whole = OrbitProgram((Part(program, groups, shares),), None, first, last, program.fixed)
    return tied(reduced, OrbitReduction(reduction, whole, groups))


def _renumber(labels: Index) -> tuple[Index, int]:
    distinct, numbers = np.unique(labels, return_inverse=True)
    return numbers.ravel().astype(np.intp), len(distinct)


# Queries of which each has its mirror image among them, the cells in reverse order, as all ranges have. Noise is then
# best on the sums ``x_i + x_i'`` of a cell and its image and on the differences ``x_i' - x_i``, independently: two
# programs of half the size, with one weight for a cell and its image. Whatever comes out, the judge judges the whole.


def mirrored(reduced: ascent.ReducedProblem) -> ascent.ReducedProblem:
    """Return the problem in its even and its odd part where queries by steps are symmetric; else as it is."""
    program = reduced.reduction.program
    queries = program.queries
    if not (isinstance(queries, SteppedQueries) and program.moves is None and queries.steps.is_whole):
        return reduced
    if (cells := queries.shape[1]) == 1:
        return reduced
    images = _mirror_images(queries)
    if images is None:
        return reduced
    orbits, last = _renumber(orbit_labels([images], len(images)))
    _, firsts = np.unique(orbits, return_index=True)
    right = np.arange(cells // 2, cells)  # from the middle on: a range is two steps there as well
    left, count = cells - 1 - right, len(right)
    parts, turns = [], []
    for sign, paired in ((1, np.arange(count)), (-1, np.arange(cells % 2, count))):
        half = _folded(queries.chosen(firsts), left[paired], right[paired], sign)
        if half is None or not half.steps.steps.nnz:
            return reduced
        there = np.flatnonzero(np.diff(half.steps.steps.indptr))
        groups = np.concatenate([paired, count + there])
        parts.append(Part(DenseDual(half.chosen(there), None), groups, np.ones(len(groups))))
        turn = np.zeros((cells, len(paired)))
        turn[right[paired], np.arange(len(paired))] += 0.5
        turn[left[paired], np.arange(len(paired))] += sign * 0.5
        turns.append(turn)
    groups = np.concatenate([np.abs(np.arange(cells) - (cells - 1) / 2).astype(np.intp), count + orbits])
    whole = OrbitProgram(tuple(parts), None, count, last)
    return tied(reduced, OrbitReduction(reduced.reduction, whole, groups, tuple(turns)))


def _mirror_images(queries: SteppedQueries) -> Index | None:
    """Return for each query the number of its mirror image, of the same target; None where some query has none."""
    cells = queries.shape[1]
    numbers = np.random.default_rng(0).integers(0, 2**64, cells, dtype=np.uint64)
    steps = queries.steps.steps.astype(np.int64).astype(np.uint64)
    # Sums of products modulo 2^64: the same for the same queries, and hardly ever for others.
    keys, mirror_keys = steps @ numbers.cumsum(), steps @ numbers[::-1].cumsum()
    order, mirror_order = (np.lexsort((queries.factors, several)) for several in (keys, mirror_keys))
    same = np.array_equal(keys[order], mirror_keys[mirror_order])
    if not (same and np.array_equal(queries.factors[order], queries.factors[mirror_order])):
        return None
    images = np.empty(len(keys), dtype=np.intp)
    images[mirror_order] = order
    return images


def _folded(queries: SteppedQueries, left: Index, right: Index, sign: int) -> SteppedQueries | None:
    """Return the queries on half the sums of pairs of cells, or on half the differences, from the middle outwards."""
    steps, count = queries.steps, len(right)
    # The first cell is a step as well, from the 0 before it: step 0 here, and the others come after it.
    first = sp.csr_array(-steps.steps.sum(axis=1)[:, None])
    pairs = np.concatenate([np.arange(count), np.arange(count)])
    entries = np.repeat([0.5, -0.5 * sign], count), (np.concatenate([right + 1, left]), pairs)
    folded = sp.csr_array(sp.hstack([first, steps.steps]) @ sp.csr_array(entries, shape=(queries.shape[1] + 1, count)))
    folded.eliminate_zeros()
    folded.sort_indices()
    half = Steps.few(folded, steps.largest, False)
    return None if half is None else SteppedQueries(half, queries.factors)
