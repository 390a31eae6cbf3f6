"""A problem whose weights are equal within orbits: one weight for each orbit, and the whole problem to judge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech.fast.engine import ascent
from dualmech.fast.engine.orbits import OrbitProgram, Part
from dualmech.geometry.orbits import Orbits
from dualmech.validate import Array

Index = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class OrbitReduction:
    """A reduction with its weights tied; what it takes to and fro are weights of orbits."""

    whole: Any
    program: OrbitProgram

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of neighbours and queries of the problem."""
        return self.whole.shape

    def covariance(self, found: tuple[Array, tuple[Array, ...]]) -> Array:
        """Return the covariance on the problem's basis."""
        return np.asarray(self.whole.covariance(found[1][0]))

    def spread(self, weights: Array) -> Array:
        """Return the weights of the members from those of their orbits."""
        (part,) = self.program.parts
        return weights[part.groups] * part.shares

    def gather(self, weights: Array) -> Array:
        """Return the weights of orbits from those of their members."""
        (part,) = self.program.parts
        return np.asarray(np.bincount(part.groups, weights, sum(self.program.sizes[:2])), dtype=np.float64)


def by_orbit(task: ascent.Task, orbits: Orbits) -> ascent.Task:
    """Return the task with one weight for each orbit of its neighbours and queries."""
    reduction, program = task.reduction, task.reduction.program
    groups, first = _renumber(orbits.neighbours[reduction.neighbours])
    last = 0
    if not program.fixed:
        queries, last = _renumber(orbits.queries[reduction.queries])
        groups = np.concatenate([groups, first + queries])
    shares = 1 / np.bincount(groups)[groups]
    whole = OrbitProgram((Part(program, groups, shares),), None, first, last, program.fixed)
    under = OrbitReduction(reduction, whole)

    def gather(known: Any) -> Array | None:
        found = task.gather(known)
        return None if found is None else under.gather(found)

    return replace(
        task, reduction=under, dual=lambda weights: task.dual(under.spread(weights)), gather=gather
    )


def _renumber(labels: Index) -> tuple[Index, int]:
    """Return labels as numbers from 0 without gaps, and how many there are."""
    distinct, numbers = np.unique(labels, return_inverse=True)
    return numbers.ravel().astype(np.intp), len(distinct)
