"""Query weighting beside general backends on the eigen-queries of all ranges: seconds and proven gaps, in one run."""

from __future__ import annotations

from functools import cache, partial

from dualmech import fast, workloads
from dualmech.crosscheck.benchmarks.contest import Contender, Contest, by_reference
from dualmech.problems import designs
from dualmech.problems.weighting import QueryWeighting

SIZES = (128, 256, 512, 1024, 2048)

TOLERANCE = 1e-9  # gap that is asked of the interior-point method; backends are asked for their own


@cache
def _problem(cells: int) -> QueryWeighting:
    """Return Program 1 with its eigenvectors computed: the decomposition is the same for all solvers."""
    ranges = workloads.from_gram(workloads.all_range_gram(cells))
    return QueryWeighting(ranges, designs.eigen_queries(ranges))


CONTEST = Contest(
    "Program 1 on the eigen-queries of all ranges",
    SIZES,
    _problem,
    (
        Contender("interior point", partial(fast.solve, tol=TOLERANCE)),
        Contender(
            "Clarabel",
            partial(by_reference, backend="CLARABEL"),
            largest=1024,
            skipped="d = 2048 takes it minutes",
        ),
        Contender(
            "Clarabel, as printed",
            partial(by_reference, backend="CLARABEL", formulation="sdp"),
            largest=1024,
            skipped="likewise",
        ),
        Contender("SCS", partial(by_reference, backend="SCS")),
    ),
)
"""Clarabel and SCS get reciprocals as second-order cones, unless the statement is the paper's."""
