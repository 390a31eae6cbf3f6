"""The largest ratio of variance to target of every mechanism in FFU's Tables 4 to 11, at one privacy cost.

At squared privacy cost α a mechanism's variances are 1/α of those at squared cost 1. So each is solved once, at
cost 1, and its ratio at any α is its `value` over α.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from dualmech import fast
from dualmech.certificate import Certificate
from dualmech.crosscheck import rivals
from dualmech.crosscheck.papers.fitness.instances import FitnessInstance
from dualmech.crosscheck.papers.printed import Interval, with_allowance
from dualmech.crosscheck.papers.solving import without_warnings
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.validate import Array
from dualmech.workloads.base import Workload

COST_TOLERANCE = 1e-6  # gap to which every optimum of fitness for use is solved

VARIANCE_TOLERANCE = 1e-10
"""Gap to which optima of total variance are solved: single variances are known to about its root only."""

ROUNDING = 1e-10  # relative allowance for rounding in mechanisms of closed form
RIDGE = 1e-3  # what the published code for CA adds to the diagonal of W'W, times the diagonal's mean

MOST_RIDGED_CELLS = 1100
"""Cells up to which CA is also solved with its ridge, which makes every workload one of full rank."""

CA_WEIGHTINGS = {"CA": 0.0, "wCA-I": 2.0, "wCA-II": 1.0}
"""Powers of 1/target that weight the queries in the published code."""

WORDS = {"wCA-I": 1.0, "wCA-II": 0.5}  # the powers that the paper's words suggest


@dataclass(frozen=True, slots=True)
class SolvedRatios:
    """One instance of a table's row, solved."""

    label: str  # Which instance
    size: tuple[int, int]  # (queries, cells): Of the workload
    cost: Interval  # Proven interval of the least squared privacy cost α
    gap: float
    certified: bool  # Whether every optimum was proven to its tolerance
    uniform: bool  # Whether all targets are equal, so that CA and its weightings coincide
    values: dict[str, Interval]  # By mechanism: largest variance over target at squared cost 1
    # By mechanism: the same for CA and its weightings as the published code states them, with a ridge;
    # empty where there are more than `MOST_RIDGED_CELLS` cells
    coded: dict[str, Interval]
    words: dict[str, Interval]  # By mechanism: the same for the weightings as the paper words them
    # Sum of variances of the covariance found, over that of CA's, at the same privacy cost. Where optimal dual
    # weights are positive on every cell, as on PL-94, the optimum is unique; elsewhere others may have another sum.
    total_error: float
    seconds: float  # From the instance to the last optimum

    def ratio(self, mechanism: str) -> Interval:
        """Return the interval of a mechanism's largest ratio at the certified cost."""
        low, high = self.values[mechanism]
        return low / self.cost[1], high / self.cost[0]


def solve(instance: FitnessInstance, variants: bool = True) -> SolvedRatios:
    """Solve an instance for every mechanism; with `variants`, for CA as coded and as worded too."""
    begun = time.perf_counter()
    workload, targets = instance.build()
    goals = np.broadcast_to(np.asarray(targets, dtype=np.float64), workload.shape[:1])
    with without_warnings():
        optimum = fast.solve(FitnessForUse(workload, goals, geometry="dense"), tol=COST_TOLERANCE)
        spent = optimum.objective * optimum.mechanism.variances(workload).sum()
        family = _TotalVarianceFamily(workload, goals)
        values = _closed_forms(workload, goals) | {name: family.value(p) for name, p in CA_WEIGHTINGS.items()}
        coded, words = {}, {}
        if variants and workload.shape[1] <= MOST_RIDGED_CELLS:
            coded = {name: family.value(p, RIDGE) for name, p in CA_WEIGHTINGS.items()}
        if variants and not family.uniform:
            words = {name: family.value(p) for name, p in WORDS.items()}
    return SolvedRatios(
        instance.label,
        workload.shape,
        optimum.certificate.interval,
        optimum.gap,
        optimum.certificate.certifies(COST_TOLERANCE) and family.certified,
        family.uniform,
        values,
        coded,
        words,
        float(spent) / family.least_total,
        time.perf_counter() - begun,
    )


def _closed_forms(workload: Workload, targets: Array) -> dict[str, Interval]:
    """Return the values of the mechanisms that nothing is optimised in.

    GM is the Gaussian mechanism: independent noise on every answer, in proportion to its target, nothing made
    consistent, so that all ratios are the same.
    """
    cells = workload.shape[1]
    # Input perturbation is the tree without a sum: stated so, it needs no matrix of the size of the domain.
    trees = {"IP": rivals.IntervalTree(cells, ()), "HM": rivals.square_root_tree(cells)}
    largest = {name: float((tree.variances(workload) / targets).max()) for name, tree in trees.items()}
    weighted = Workload(workload.matrix / np.sqrt(targets)[:, None])
    largest["GM"] = rivals.raw_gaussian_variance(weighted, 1.0)
    return {name: with_allowance(value, ROUNDING) for name, value in largest.items()}


class _TotalVarianceFamily:
    """Mechanisms of least weighted total variance for one workload; each is solved once."""

    def __init__(self, workload: Workload, targets: Array) -> None:
        self.workload, self.targets = workload, targets
        self.uniform = bool(np.all(targets == targets[0]))
        self.certified, self.least_total = True, 0.0
        self._known: dict[tuple[float, float], Interval] = {}

    def value(self, power: float, ridge: float = 0.0) -> Interval:
        """Return the largest variance over target at squared cost 1, with weights ``1 / target^power``."""
        key = (0.0 if self.uniform else power, ridge)
        if key not in self._known:
            self._known[key] = self._solve(*key)
        return self._known[key]

    def _solve(self, power: float, ridge: float) -> Interval:
        weights = self.targets**-power
        plain = TotalVariance(self.workload, weights, geometry="dense")
        problem = _ridged_problem(self.workload, weights, ridge) if ridge else plain
        answer = fast.solve(problem, tol=VARIANCE_TOLERANCE)
        variances = answer.mechanism.variances(self.workload)
        self.certified &= answer.gap <= COST_TOLERANCE
        if not (power or ridge):
            self.least_total = float(variances.sum())
        return _largest_ratio(variances, self.targets, weights, answer.certificate)


def _ridged_problem(workload: Workload, weights: Array, ridge: float) -> TotalVariance:
    """Return the problem with `ridge` times the mean diagonal of the Gram matrix added to its diagonal."""
    cells = workload.shape[1]
    scaled = workload.dense() * np.sqrt(weights)[:, None]
    extra = np.sqrt(ridge * (scaled**2).sum() / cells)
    return TotalVariance(Workload(np.vstack([scaled, extra * np.eye(cells)])))


def _largest_ratio(variances: Array, targets: Array, weights: Array, certificate: Certificate) -> Interval:
    """Return ``max_j variance_j / target_j`` at the optimum, as far as the gap g of a point near it tells.

    With s_j a query's share of the weighted total, its variance differs from that at the optimum by at most
    ``√(g / s_j)``, relative and to first order in √g: near the optimum the total grows by ``Σ_j w_j ‖E v_j‖²``
    where the relative change E of the cost matrix moves variance j by ``v_j' E v_j``.
    """
    gap = max(certificate.gap, certificate.resolution)
    shares = weights * variances / certificate.objective
    ratios, slack = variances / targets, np.sqrt(gap / shares)
    return float((ratios * (1 - slack)).max()), float((ratios * (1 + slack)).max())
