"""Design queries compared: what weighing others than the eigen-queries gives away.

EIG, section 5.3, weighs the rows of other bases by Program 1 and sets the strategies beside that of the eigen-queries,
on two workloads and on the same with their cells permuted. All errors are root mean squares, over the certified optimum
of any strategy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy.linalg

from dualmech import fast, linalg, workloads
from dualmech.crosscheck import rivals
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.eigen.experiments import DESIGN_TOLERANCE, OPTIMUM_TOLERANCE, root_errors
from dualmech.crosscheck.papers.eigen.instances import IDENTITY, SEED, Shape, shape_text
from dualmech.crosscheck.papers.eigen.printed import FOURIER, WAVELET
from dualmech.crosscheck.papers.printed import Interval
from dualmech.crosscheck.papers.solving import certified_outcome, without_warnings
from dualmech.problems import designs, strategies
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.solution import Solution
from dualmech.validate import Array
from dualmech.workloads.base import Workload

EIGEN_QUERIES = "eigen-queries"

DESIGNS: dict[str, Callable[[Workload, Shape], Array]] = {
    EIGEN_QUERIES: lambda workload, shape: designs.eigen_queries(workload),
    WAVELET: lambda workload, shape: rivals.haar_matrix(shape).toarray(),
    FOURIER: lambda workload, shape: rivals.fourier_matrix(shape),
    IDENTITY: lambda workload, shape: np.eye(math.prod(shape)),
}
"""Design queries that the paper compares, by name, and single cells."""

MORE_DESIGNS: dict[str, Callable[[Workload, Shape], Array]] = {
    "tree": lambda workload, shape: rivals.hierarchical_matrix(shape).toarray(),
    "queries": lambda workload, shape: workload.dense(),
    "root": lambda workload, shape: prefix_root(math.prod(shape)),
}
"""Candidates for prefixes besides: a binary tree, the prefixes themselves, and their square root."""

COMPLETE = 1e-6
"""Slack of a squared column norm, relative to the largest, that is left as it is: hardly more than a solver leaves."""

CLEAR = 1e-4
"""Least diagonal entry of the Cholesky factor of a cost matrix of unit diagonal at which errors are read off it."""


@dataclass(frozen=True, slots=True)
class Weighted:
    """A design with its best weights."""

    name: str  # Which design queries
    # Root of the optimum of Program 1, proven from both sides. It is the error of the strategy, or
    # above it where design queries depend on one another.
    program: Interval
    completed: Interval  # Error of the strategy with its columns completed
    certified: bool  # Whether Program 1 was solved to its tolerance


@dataclass(frozen=True, slots=True)
class DesignRow:
    """Designs compared on one workload."""

    name: str
    entries: tuple[Weighted, ...]
    gap: float

    @property
    def outcome(self) -> Agreement:
        """Whether the optimum and every program were certified."""
        certified = self.gap <= OPTIMUM_TOLERANCE and all(entry.certified for entry in self.entries)
        return certified_outcome(certified)

    @property
    def eigen_queries(self) -> Weighted:
        """The eigen-queries among the designs."""
        return next(entry for entry in self.entries if entry.name == EIGEN_QUERIES)

    @property
    def best(self) -> Weighted:
        """The design whose completed strategy has the least error."""
        return min(self.entries, key=lambda entry: entry.completed)


def compare(name: str, build: Callable[[], Workload], shape: Shape, every: bool = False) -> DesignRow:
    """Weigh each design's queries for a workload by Program 1; `every` adds `MORE_DESIGNS`."""
    workload = build()
    with without_warnings():
        best = fast.solve(TotalVariance(workload), tol=OPTIMUM_TOLERANCE)
        interval = best.certificate.interval
        makers = DESIGNS | (MORE_DESIGNS if every else {})
        entries = tuple(
            _weigh_design(each, workload, make(workload, shape), interval) for each, make in makers.items()
        )
    return DesignRow(name, entries, best.gap)


def _weigh_design(name: str, workload: Workload, design: Array, optimum: Interval) -> Weighted:
    program = QueryWeighting(workload, design)
    answer = fast.solve(program, tol=DESIGN_TOLERANCE)
    return Weighted(
        name,
        root_errors(answer.certificate.interval, optimum),
        completed_error(answer, optimum),
        answer.certificate.certifies(DESIGN_TOLERANCE),
    )


def completed_error(answer: Solution, optimum: Interval) -> Interval:
    """Return the root error of weighted design queries, columns completed, over a proven optimum of total variance."""
    total = completed_total(answer)
    return root_errors((total, total), optimum)


def completed_total(answer: Solution) -> float:
    """Return the total variance of weighted design queries, columns completed, at squared cost 1.

    To complete the columns of A is to raise the diagonal of ``A'A`` to its largest entry. With a Cholesky factor R
    of the result, ``tr(W (A'A)⁻¹ W') = ‖R'⁻¹ W'‖²``, which takes a quarter of the time of least squares
    (`strategies.total_variance`); those are asked where the factor would lose digits.
    """
    workload: Workload = answer.problem.workload
    strategy = answer.problem.strategy(answer.primal)
    cost = strategy.T @ strategy
    largest = np.diagonal(cost).max()
    slack = 1 - np.diagonal(cost) / largest
    slack[slack < COMPLETE] = 0.0
    factor = linalg.cholesky(cost / largest + np.diag(slack))
    if factor is None or np.diagonal(factor).min() < CLEAR:
        cells = np.diag(np.sqrt(largest * slack))[slack > 0]
        return strategies.total_variance(np.vstack([strategy[np.any(strategy, axis=1)], cells]), workload)
    half = scipy.linalg.solve_triangular(factor, workload.dense().T, trans="T", check_finite=False)
    return float(np.vdot(half, half))


def comparisons(quick: bool) -> list[Callable[[], DesignRow]]:
    """Return the comparisons of designs to make: 1024 cells, or 128."""
    cells = 128 if quick else 1024
    shape = (4, 4, 8) if quick else (8, 8, 16)
    ranges, tables = partial(all_ranges, cells), partial(two_way_marginals, shape)
    return [
        partial(compare, f"all ranges, {cells}", ranges, (cells,)),
        partial(compare, f"all ranges, {cells}, permuted", partial(_permuted_workload, ranges), (cells,)),
        partial(compare, f"2-way marginals, {shape_text(shape)}", tables, shape),
        partial(
            compare,
            f"2-way marginals, {shape_text(shape)}, permuted",
            partial(_permuted_workload, tables),
            shape,
        ),
        partial(compare, f"prefixes, {cells}", partial(workloads.prefix, cells), (cells,), every=True),
    ]


def prefix_root(cells: int) -> Array:
    """Return the lower triangle whose square is `workloads.prefix`: a Toeplitz matrix of ``C(2k, k) / 4^k``."""
    steps = np.arange(1, cells)
    column = np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])
    return np.asarray(np.tril(scipy.linalg.toeplitz(column)))


def all_ranges(cells: int) -> Workload:
    """Return a workload with the Gram matrix of all ranges of ordered cells."""
    return workloads.from_gram(workloads.all_range_gram(cells))


def two_way_marginals(shape: Shape) -> Workload:
    """Return a workload with the Gram matrix of all two-way marginals of a shape."""
    return workloads.from_gram(workloads.marginals_gram(shape, ways=2), shape)


def _permuted_workload(build: Callable[[], Workload]) -> Workload:
    return workloads.permuted(build(), SEED)
