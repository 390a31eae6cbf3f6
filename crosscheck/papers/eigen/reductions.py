"""Reductions of the Eigen-Design: what weighing the eigen-queries in parts gives away, and what time it saves.

EIG, section 4, cuts the cost of Program 1 in two ways, and section 5 measures both on 8192 cells. One
eigendecomposition of the Gram matrix serves all of them here. Errors are root mean squares, columns completed, over the
certified optimum of any strategy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dualmech import fast, linalg, workloads
from dualmech.crosscheck import rivals
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.eigen.designs import all_ranges, completed_error, two_way_marginals
from dualmech.crosscheck.papers.eigen.experiments import DESIGN_TOLERANCE, OPTIMUM_TOLERANCE, root_errors
from dualmech.crosscheck.papers.eigen.instances import Shape, shape_text
from dualmech.crosscheck.papers.eigen.printed import DATACUBE, WAVELET
from dualmech.crosscheck.papers.printed import Interval
from dualmech.crosscheck.papers.solving import certified_outcome, without_warnings
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.problems import designs
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.workloads.base import Workload

Way = tuple[str, dict[str, float]]

WAYS: tuple[Way, ...] = (
    ("newton", {}),
    ("separation", {"group_size": 4}),
    ("separation", {"group_size": 16}),
    ("separation", {"group_size": 64}),
    ("principal", {"share": 0.02}),
    ("principal", {"share": 0.05}),
    ("principal", {"share": 0.1}),
    ("principal", {"share": 0.25}),
)
"""Methods of `fast.eigen_weights` with their options; the first solves Program 1 whole."""

FEWER_WAYS = (WAYS[0], WAYS[2], WAYS[3], WAYS[4], WAYS[6])  # those for the paper's own size

POWER = 1.8
"""Of the gains by which a step of the fixed point of total variance multiplies its weights: near the best of all."""


@dataclass(frozen=True, slots=True)
class ReductionResult:
    """What one way of weighing the eigen-queries reaches."""

    label: str  # Method and its option
    error: Interval  # Of the strategy, columns completed, over the optimum
    # By how much its weights may be worse than the best, relative, as root error: proven by Program 1's
    # judge
    excess: float
    seconds: float  # Spent on the weights, the eigenvectors given


@dataclass(frozen=True, slots=True)
class ReductionRow:
    """Reductions compared on one workload."""

    name: str  # Of the workload
    rival: tuple[str, Interval]  # (str, Interval): The best rival, and its error
    entries: tuple[ReductionResult, ...]  # The first weighs all eigen-queries
    # Of the optimum of total variance, proven and wanted, relative. Where it was only bounded from
    # below, infinity is wanted, the best strategy here is the other side, and errors may be less than
    # they are said to be.
    gap: float
    asked: float

    @property
    def outcome(self) -> Agreement:
        """Whether the optimum was certified; a reduction proves how far off it is, however far."""
        return certified_outcome(self.gap <= self.asked)


def solve(
    name: str,
    build: Callable[[], Workload],
    rival: tuple[str, Callable[[], LinearGaussianMechanism]],
    ways: tuple[Way, ...] = WAYS,
    tol: float = OPTIMUM_TOLERANCE,
) -> ReductionRow:
    """Weigh the eigen-queries whole and in every reduced way; `rival` names and builds one at squared cost 1.

    Where `tol` is infinite, the optimum is not solved for: `bound` is used.

    Examples
    --------
    >>> from dualmech.crosscheck.papers.eigen import reductions
    >>> row = reductions.rows_of(64, (2, 4, 8))[0]()
    >>> whole, *reduced = row.entries
    >>> row.name, round(whole.error[1], 3), min(round(entry.error[1], 3) for entry in reduced) > 1
    ('all ranges, 64', 1.009, True)
    """
    workload = build()
    program = QueryWeighting(workload, designs.eigen_queries(workload))
    with without_warnings():
        lower_only = math.isinf(tol)
        if lower_only:
            least = bound(program)
            optimum = least, least
        else:
            optimum = fast.solve(TotalVariance(workload), tol=tol).certificate.interval
        entries = tuple(_weigh_reduced(program, optimum, *way) for way in ways)
    spent = float(rival[1]().variances(workload).sum())
    best = (rival[0], root_errors((spent, spent), optimum))
    gap = min(entry.error[1] for entry in entries) ** 2 if lower_only else optimum[1] / optimum[0]
    return ReductionRow(name, best, entries, gap - 1, tol)


def bound(program: QueryWeighting) -> float:
    """Return a lower bound on the total variance of every strategy, from the eigen-queries of its workload.

    It is ``‖W diag(√λ)‖_*²``, as `TotalVariance` judges it, at the weights λ that its fixed point takes to from equal
    ones: ``λ_i`` proportional to a power of ``Σ_k √σ_k q_ki²``, eigenvalues σ and eigenvectors q being at hand. One
    decomposition more, for the singular values, and no solver.
    """
    gains = program.sensitivities.T @ program.geometry.roots
    weights = (gains / gains.max()) ** POWER
    norm, rounding = linalg.trace_norm(program.workload.dense() * np.sqrt(weights))
    return float((norm - rounding) ** 2 / weights.sum())


def _weigh_reduced(
    program: QueryWeighting, optimum: Interval, method: str, options: dict[str, float]
) -> ReductionResult:
    shown = {"group_size": "groups of {:g}", "share": "{:.0%} of the cells"}
    option = ", ".join(shown[key].format(value) for key, value in options.items())
    if "share" in options:
        # The paper counts eigenvectors by the cells, of which a workload of low rank needs few.
        queries, cells = program.design.shape
        options = {"share": min(1.0, options["share"] * cells / queries)}
    found = fast.eigen_weights(program, method=method, tol=DESIGN_TOLERANCE, **options)  # type: ignore[arg-type]
    return ReductionResult(
        f"{method}, {option}" if option else "all eigen-queries",
        completed_error(found, optimum),
        math.sqrt(1 + found.gap) - 1,
        found.seconds,
    )


def rows(quick: bool) -> list[Callable[[], ReductionRow]]:
    """Return the reductions to compare: 1024 cells, or 256."""
    return rows_of(256 if quick else 1024, (4, 8, 8) if quick else (8, 8, 16))


def large_rows(quick: bool) -> list[Callable[[], ReductionRow]]:
    """Return fewer at the paper's own size, 8192 cells, the optimum only bounded; a quick run has 256 cells."""
    return rows_of(256 if quick else 8192, (4, 8, 8) if quick else (16, 16, 32), FEWER_WAYS, math.inf)


def rows_of(
    cells: int, shape: Shape, ways: tuple[Way, ...] = WAYS, tol: float = OPTIMUM_TOLERANCE
) -> list[Callable[[], ReductionRow]]:
    """Return the reductions to compare on all ranges of ordered cells and on two-way marginals of a shape."""
    total, tables = workloads.total(cells), workloads.marginals(shape, ways=2)
    wavelet = (WAVELET, partial(rivals.wavelet, total, 1.0))
    datacube = (DATACUBE, partial(rivals.datacube, tables, 1.0))
    return [
        partial(solve, f"all ranges, {cells}", partial(all_ranges, cells), wavelet, ways, tol),
        partial(
            solve,
            f"2-way marginals, {shape_text(shape)}",
            partial(two_way_marginals, shape),
            datacube,
            ways,
            tol,
        ),
    ]
