"""Words and numbers of a report: what is measured, intervals, percentages, names of queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.markup import escape

from dualmech.certificate import Certificate
from dualmech.crosscheck.families import family_of
from dualmech.geometry.dense import Dense
from dualmech.neighbours import Relation
from dualmech.solution import Solution
from dualmech.validate import Array
from dualmech.workloads.base import Workload

LISTED = 6  # most names that a line lists before it counts the rest


@dataclass(frozen=True, slots=True)
class Terms:
    """In what terms an answer is reported."""

    z: float  # margin of error in standard deviations
    delta: float  # δ at which ε is given
    # squared privacy cost that `TotalVariance` and `QueryWeighting`, solved at 1, are to spend; ``ε²/2`` for the
    # Laplace noise of pure privacy. It divides their variances
    cost: float

    def divisor(self, problem: Any) -> float:
        """Return what an objective of the problem is divided by."""
        return self.cost if family_of(problem).at_a_cost else 1.0

    def privacy(self, problem: Any) -> str:
        """Return at which privacy an objective of the problem holds, where it is not the objective itself."""
        if not family_of(problem).at_a_cost:
            return ""
        if getattr(problem, "privacy", None) == "pure":
            return f" at epsilon = {self.laplace_epsilon:.6g} (pure)"
        return f" at squared privacy cost {self.cost:.6g}"

    @property
    def laplace_epsilon(self) -> float:
        """The ε that Laplace noise spends."""
        return float(np.sqrt(2 * self.cost))


def measure(problem: Any) -> str:
    """Return what the objective of a problem is."""
    return family_of(problem).measure(problem)


def steps(solution: Solution) -> str:
    """Return the steps that a solver took, by their name."""
    unit = "iterations"
    if solution.solver.startswith("fast"):
        unit = "steps" if "softmax" in solution.solver else family_of(solution.problem).steps
    return f"{solution.iterations} {unit}"


def interval_text(interval: tuple[float, float]) -> str:
    """Return an interval with as many digits as it takes to see that it is one, and two more."""
    low, high = interval
    if not np.isfinite(high):
        return f"[{low:.6g}, inf)"
    width = (high - low) / high if high > 0 else 0.0
    digits = int(np.clip(2 - np.floor(np.log10(max(width, 1e-15))), 4, 16))
    return f"[{low:.{digits}g}, {high:.{digits}g}]"


def gap_percent(certificate: Certificate) -> str:
    """Return the gap of a certificate in percent, never less than rounding allows to say."""
    return f"{100 * max(certificate.gap, certificate.resolution):.3g} %"


def names(workload: Workload, queries: npt.NDArray[np.intp]) -> str:
    """Return the names of some queries, cut after `LISTED`."""
    listed = ", ".join(escape(workload.names[j]) for j in queries[:LISTED])
    return listed if len(queries) <= LISTED else f"{listed} and {len(queries) - LISTED} more"


def range_text(values: Array) -> str:
    """Return one number, or the least and the largest."""
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"


def neighbours_name(neighbours: Any) -> str:
    """Return what neighbours are called on the command line, a matrix by its size."""
    known = neighbours if isinstance(neighbours, Relation) else Relation.matching(neighbours)
    cells, pairs = (0, 0) if known else neighbours.shape
    return str(known) if known else f"a matrix of {pairs} differences over {cells} cells"


def neighbours_lines(problem: Any) -> list[str]:
    """Say who are neighbours, where that is not one record added or removed."""
    own = getattr(problem, "neighbours", None)
    return [] if own is None else [f"Neighbours: {neighbours_name(own)}."]


def free_lines(geometry: Any) -> list[str]:
    """Say which queries constrain nothing: those that no neighbour changes are answered exactly, for free."""
    if not isinstance(geometry, Dense) or not len(free := geometry.free_queries):
        return []
    return [f"Answered exactly at no cost (no neighbour changes them): {names(geometry.workload, free)}."]
