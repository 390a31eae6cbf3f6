"""Weights of known strategies under pure ε-differential privacy (EIG, section 3.5): what optimising them gains.

The text finds that weighting improves the wavelet on ranges and the Fourier basis on marginals, by factors that the
copy at hand has lost, and that no basis is best for all workloads. Noise is Laplace noise and the budget of a cell a
sum of magnitudes, so every basis is weighted by its own Program 1, certified, beside equal weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dualmech import fast, workloads
from dualmech.crosscheck import rivals
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.eigen.instances import SEED, all_ranges, shape_text
from dualmech.crosscheck.papers.printed import Interval
from dualmech.crosscheck.papers.solving import certified_outcome, without_warnings
from dualmech.crosscheck.rivals.central.products import domain_of
from dualmech.problems import designs
from dualmech.problems.weighting import QueryWeighting
from dualmech.validate import Matrix
from dualmech.workloads.base import Workload

WEIGHT_TOLERANCE = 1e-6  # gap to which weights are solved

Basis = Callable[[Workload], Matrix]

RANGE_BASES: dict[str, Basis] = {
    "wavelet": lambda workload: rivals.haar_matrix((workload.shape[1],)),
    "eigen-queries": designs.eigen_queries,
}
MARGINAL_BASES: dict[str, Basis] = {
    "Fourier": lambda workload: rivals.fourier_matrix(domain_of(workload, None), workload),
    "eigen-queries": designs.eigen_queries,
}


@dataclass(frozen=True, slots=True)
class WeightedBasis:
    """A basis with its best weights."""

    name: str
    gain: Interval  # Root error at equal weights over that at the best
    total: Interval  # Least weighted sum of squares at sensitivity 1: total variance times ε²/2
    gap: float
    certified: bool


@dataclass(frozen=True, slots=True)
class PureRow:
    """A workload, and the bases that were weighted for it."""

    name: str
    bases: tuple[WeightedBasis, ...]
    seconds: float

    @property
    def outcome(self) -> Agreement:
        """Whether all weights were certified."""
        return certified_outcome(all(basis.certified for basis in self.bases))

    @property
    def gap(self) -> float:
        """The widest certified gap."""
        return max(basis.gap for basis in self.bases)

    def over_best(self, basis: WeightedBasis) -> float:
        """Return the root error of a weighted basis over that of the best one here."""
        return float(np.sqrt(basis.total[1] / min(each.total[1] for each in self.bases)))


def rows(quick: bool) -> list[Callable[[], PureRow]]:
    """Return what to compute: ranges of 1024 cells and two-way marginals of 8 x 8 x 16, or of 256 and 4 x 8 x 8."""
    cells, shape = (256, (4, 8, 8)) if quick else (1024, (8, 8, 16))
    return [
        partial(solve, f"all ranges, {cells}", partial(all_ranges, (cells,)), RANGE_BASES),
        partial(
            solve,
            f"{cells} random ranges, {cells}",
            partial(workloads.random_range, cells, cells, SEED),
            RANGE_BASES,
        ),
        partial(
            solve,
            f"2-way marginals, {shape_text(shape)}",
            partial(workloads.marginals, shape, ways=2),
            MARGINAL_BASES,
        ),
    ]


def solve(name: str, build: Callable[[], Workload], bases: dict[str, Basis]) -> PureRow:
    """Weight every basis for a workload.

    Examples
    --------
    >>> row = solve("all ranges", partial(all_ranges, (64,)), RANGE_BASES)
    >>> row.outcome.name, [round(end, 3) for end in row.bases[0].gain]
    ('AGREE', [1.034, 1.034])
    """
    begun, workload = time.perf_counter(), build()
    with without_warnings():
        found = tuple(_weighted(label, workload, basis(workload)) for label, basis in bases.items())
    return PureRow(name, found, time.perf_counter() - begun)


def _weighted(name: str, workload: Workload, design: Matrix) -> WeightedBasis:
    problem = QueryWeighting(workload, design, privacy="pure")
    answer = fast.solve(problem, tol=WEIGHT_TOLERANCE)
    equal = problem.feasible(np.ones(len(answer.primal)))
    plain = problem.certify(equal, answer.dual).objective
    low, high = answer.certificate.interval
    return WeightedBasis(
        name,
        (float(np.sqrt(plain / high)), float(np.sqrt(plain / low))),
        (low, high),
        answer.gap,
        answer.certificate.certifies(WEIGHT_TOLERANCE),
    )
