"""Words and numbers of a report: what is measured, intervals, percentages, names of queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from rich.markup import escape

from dualmech.certificate import Certificate
from dualmech.crosscheck.judging import OfCovariance
from dualmech.geometry.dense import Dense
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.marginals import MarginalFitness, MarginalVariance
from dualmech.problems.softmax import SoftmaxFitness
from dualmech.problems.unions import UnionFitness, UnionVariance
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.solution import Solution
from dualmech.validate import Array
from dualmech.workloads.base import Workload

Judged: TypeAlias = OfCovariance | QueryWeighting
"""Problems that the command line judges outsiders' answers to."""

Posed: TypeAlias = Judged | MarginalFitness | MarginalVariance | UnionFitness | UnionVariance
"""Problems that it solves."""

BY_TABLE = (MarginalFitness, MarginalVariance, UnionFitness, UnionVariance)
"""Problems with a number for each table, not for each query."""

AT_A_COST = (TotalVariance, QueryWeighting, MarginalVariance, UnionVariance)
"""Problems that are solved at a squared privacy cost of 1 and spend another."""

LISTED = 6
"""Most names that a line lists before it counts the rest."""


@dataclass(frozen=True, slots=True)
class Terms:
    """In what terms an answer is reported.

    Attributes
    ----------
    z : float
        Margin of error in standard deviations.
    delta : float
        δ at which ε is given.
    cost : float
        Squared privacy cost that `TotalVariance` and `QueryWeighting`, solved at 1, are to spend; ``ε²/2`` for the
        Laplace noise of pure privacy. It divides their variances.
    factor : float or None
        What the targets of tables were multiplied by, so that the cost asked for is spent; None where none
        was.
    """

    z: float
    delta: float
    cost: float
    factor: float | None = None

    def divisor(self, problem: Posed) -> float:
        """Return what an objective of the problem is divided by."""
        return self.cost if isinstance(problem, AT_A_COST) else 1.0

    def privacy(self, problem: Posed) -> str:
        """Return at which privacy an objective of the problem holds, where it is not the objective itself."""
        if not isinstance(problem, AT_A_COST):
            return ""
        if isinstance(problem, QueryWeighting) and problem.privacy == "pure":
            return f" at epsilon = {self.laplace_epsilon:.6g} (pure)"
        return f" at squared privacy cost {self.cost:.6g}"

    @property
    def laplace_epsilon(self) -> float:
        """The ε that Laplace noise spends."""
        return float(np.sqrt(2 * self.cost))


def measure(problem: Posed) -> str:
    """Return what the objective of a problem is."""
    if isinstance(problem, FitnessForUse | MarginalFitness | UnionFitness):
        return "squared privacy cost"
    if isinstance(problem, PrivacyFirst):
        return "factor on the targets"
    if isinstance(problem, SoftmaxFitness):
        return "sum of the soft maxima" + (" and the weighted total variance" if problem.total_weight else "")
    if isinstance(problem, TotalVariance | MarginalVariance | UnionVariance):
        return "total variance" if np.all(problem.weights == 1) else "weighted total variance"
    independent = isinstance(problem, QueryWeighting) and problem.geometry.independent
    return "total variance" if independent else "bound on the total variance"


STEPS = {
    QueryWeighting: "factorisations",
    MarginalFitness: "factorisations",
    MarginalVariance: "factorisations",
    SoftmaxFitness: "Newton steps",
}
"""What the fast layer counts, where it is not eigendecompositions."""


def steps(solution: Solution) -> str:
    """Return the steps that a solver took, by their name."""
    unit = "iterations"
    if solution.solver.startswith("fast"):
        usual = "factorisations" if solution.solver == "fast:interior_point" else "eigendecompositions"
        unit = STEPS.get(type(solution.problem), usual)
    return f"{solution.iterations} {unit}"


def interval_text(interval: tuple[float, float]) -> str:
    """Return an interval with as many digits as it takes to see that it is one, and two more."""
    low, high = interval
    if not np.isfinite(high):
        return f"[{low:.6g}, inf)"
    width = (high - low) / high if high > 0 else 0.0
    digits = int(np.clip(2 - np.floor(np.log10(max(width, 1e-15))), 4, 16))
    return f"[{low:.{digits}g}, {high:.{digits}g}]"


def percent(certificate: Certificate) -> str:
    """Return the gap of a certificate in percent, never less than rounding allows to say."""
    return f"{100 * max(certificate.gap, certificate.resolution):.3g} %"


def clean(text: str) -> str:
    """Return a user's text for a terminal: no markup, no control characters."""
    return escape("".join(letter if letter.isprintable() else "?" for letter in text))


def names(workload: Workload, queries: npt.NDArray[np.intp]) -> str:
    """Return the names of some queries, cut after `LISTED`."""
    listed = ", ".join(clean(workload.names[j]) for j in queries[:LISTED])
    return listed if len(queries) <= LISTED else f"{listed} and {len(queries) - LISTED} more"


def spread(values: Array) -> str:
    """Return one number, or the least and the largest."""
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"


def free_lines(geometry: Dense) -> list[str]:
    """Say which queries constrain nothing: those that no neighbour changes are answered exactly, for free."""
    free = geometry.free_queries
    if not len(free):
        return []
    return [f"Answered exactly at no cost (no neighbour changes them): {names(geometry.workload, free)}."]
