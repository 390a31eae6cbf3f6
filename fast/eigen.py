"""The Eigen-Design: weighted eigen-queries as a strategy, with its certified distance from the best strategy.

The algorithm of Li and Miklau, "An adaptive mechanism for accurate query answering under differential privacy", PVLDB
5(6), 2012 (Program 2), with their two reductions of its cost (section 4). It is a heuristic for `TotalVariance`, which
certifies its answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.certificate import Certificate
from dualmech.display import Displayed
from dualmech.errors import InvalidInputError
from dualmech.fast import fitness, weighting
from dualmech.fast.engine import loop
from dualmech.problems import designs, strategies
from dualmech.problems.design import least_squares
from dualmech.problems.variance import TotalVariance, VarianceDual
from dualmech.problems.weighting import QueryWeighting
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution, warn_if_uncertified
from dualmech.threads import blas_threads
from dualmech.validate import Array
from dualmech.workloads.base import Workload

if TYPE_CHECKING:
    from dualmech.mechanisms.gaussian import LinearGaussianMechanism

METHODS = ("newton", "separation", "principal")

MAX_STEPS = 1000  # limit for the interior-point method, which takes about ten


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EigenDesign(Displayed):
    """A strategy of weighted eigen-queries, and its certificate."""

    problem: TotalVariance  # minimum total variance over all strategies
    # of Program 1, a `QueryWeighting`: `primal` has the weights, and its problem's `design` the eigen-queries
    weighting: Solution
    # (p, d) A, of squared cost 1: the weighted eigen-queries, then the queries that complete the columns
    strategy: Array
    covariance: Array  # (k, k) of the noise in the basis, after least squares from unit noise on A x
    dual: VarianceDual  # weights λ on the cells that prove the lower bound
    # the total variance of the strategy, a lower bound over all strategies, and the gap
    certificate: Certificate

    @property
    def total_variance(self) -> float:
        """Weighted total variance of the workload at squared privacy cost 1."""
        return self.certificate.objective

    @property
    def ratio(self) -> float:
        """Certified upper bound on the root mean square error, relative to the best strategy."""
        return math.sqrt(1 + self.certificate.gap)

    @property
    def mechanism(self) -> LinearGaussianMechanism:
        """The mechanism at squared privacy cost 1."""
        return self.problem.mechanism(self.covariance)

    def _facts(self) -> dict[str, object]:
        return {
            "problem": self.problem.headline,
            "total variance": self.total_variance,
            "lower bound": self.certificate.lower_bound,
            "error over the best, at most": self.ratio,
        }

    def __repr__(self) -> str:
        best = f"error at most {self.ratio:.6g} of the best"
        return f"EigenDesign({self.total_variance:.6g}, {best}, {self.problem.headline})"


@blas_threads()
def eigen_design(
    workload: Workload,
    *,
    weights: npt.ArrayLike | None = None,
    complete: bool = True,
    method: str = "newton",
    group_size: int | None = None,
    share: float = 0.1,
    tol: float = 1e-9,
    bound_tol: float | None = 1e-6,
) -> EigenDesign:
    """Choose a strategy of weighted eigen-queries for a workload, and certify its distance from the best strategy.

    Neighbours differ by one record added or removed. Returns an `EigenDesign`. An `UncertifiedWarning` is issued if
    Program 1 was not solved to `tol` (not for the reductions, whose loss is at most `weighting.gap`). Raises
    `InvalidInputError` or `InputTypeError` for arguments that `TotalVariance` and `designs.eigen_queries` refuse, or
    options out of range.
    With ``X = A'A`` and ``G = W'W``, the optimality conditions of `TotalVariance` give λ proportional to the diagonal
    of ``X⁻¹ G X⁻¹``: the immediate bound. (Li and Miklau compare with the uniform λ.)

    Parameters
    ----------
    workload : Workload
        W, (m, d).
    weights : float or (m,) array, optional
        Weight of each query's variance, as for `TotalVariance`; `strategies.relative_weights` for
        relative errors.
    complete : bool, default True
        Whether to complete the columns (Program 2, steps 4 and 5), which never increases the error.
    method : {"newton", "separation", "principal"}
        How to weight the k eigen-queries: jointly; by eigen-query separation, in groups of consecutive eigenvalues
        with common factors afterwards; or with one common weight for all but the principal eigenvectors.
    group_size : int, optional
        Size of a group for ``separation``; by default the cube root of k, rounded.
    share : float, default 0.1
        Fraction of principal eigen-queries for ``principal``, above 0 and at most 1.
    tol : float, default 1e-9
        Gap for Program 1 (for the reductions, for each part).
    bound_tol : float, optional
        Gap for `TotalVariance` to compute the bound; None for the immediate bound from the strategy,
        which is often within a percent of the best bound if W has full column rank.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> found = fast.eigen_design(dm.workloads.prefix(8))
    >>> found.strategy.shape, round(found.total_variance, 4), round(found.ratio, 4)
    ((15, 8), 20.8882, 1.0813)
    """
    finder = _finder(method, group_size, share)
    limits = loop.Limits.validated(tol, MAX_STEPS)
    validate.boolean(complete=complete)
    if bound_tol is not None:
        bound_tol = validate.positive_number(bound_tol=bound_tol)
    problem = TotalVariance(workload, weights, geometry="dense")
    program = QueryWeighting(_weighted_workload(problem), designs.eigen_queries(_weighted_workload(problem)))
    weighting = _weigh(program, method, finder, limits)
    strategy = program.strategy(weighting.primal)
    strategy = strategy[np.any(strategy, axis=1)]
    if complete:
        strategy = strategies.completed(strategy)
    basis, root = least_squares(strategy)
    noise_root = problem.basis @ basis.T @ root
    judgement = _judge_covariance(problem, noise_root @ noise_root.T, bound_tol)
    return EigenDesign(problem, weighting, strategy, judgement.primal, judgement.dual, judgement.certificate)


@blas_threads()
def eigen_weights(
    program: QueryWeighting,
    *,
    method: str = "newton",
    group_size: int | None = None,
    share: float = 0.1,
    tol: float = 1e-9,
) -> Solution:
    """Weight given eigen-queries, jointly or by a reduction.

    `eigen_design` decomposes a workload in every call; here one decomposition can be used with every method. Returns a
    `Solution` of the program, so that its `gap` bounds the loss of a reduction. An `UncertifiedWarning` is issued if
    ``newton`` did not reach `tol`. Raises `InvalidInputError` or `InputTypeError` for a problem that is no
    `QueryWeighting`, or options out of range. Source: section 4 of Li and Miklau, PVLDB 5(6), 2012.

    - `program`: Program 1 on the workload's `designs.eigen_queries`, in order of decreasing eigenvalues;
    - `method`, `group_size`, `share`, `tol`: as for `eigen_design`.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> ranges = dm.workloads.all_range(32)
    >>> program = dm.QueryWeighting(ranges, dm.designs.eigen_queries(ranges))
    >>> [round(fast.eigen_weights(program, method=each).objective) for each in ("newton", "separation", "principal")]
    [2289, 2342, 2588]
    """
    validate.instance(QueryWeighting, program=program)
    finder = _finder(method, group_size, share)
    return _weigh(program, method, finder, loop.Limits.validated(tol, MAX_STEPS))


def _weigh(program: QueryWeighting, method: str, finder: weighting.Finder, limits: loop.Limits) -> Solution:
    """Weight the queries; warn if ``newton`` did not reach the tolerance."""
    if method == "newton":
        return warn_if_uncertified(weighting.run(program, finder, limits, "fast:newton"), stacklevel=4)
    message = f"{method} ends at the best weights of its parts."
    return weighting.run(program, finder, limits, f"fast:{method}", message)


def _weighted_workload(problem: TotalVariance) -> Workload:
    """Return the queries of positive weight times the roots of the weights: a workload of equal total variance."""
    queries_kept, roots = problem.asked, np.sqrt(problem.asked_weights)
    if len(queries_kept) == len(problem.weights) and np.all(roots == 1):
        return problem.workload
    queries = problem.workload.select(queries_kept)
    scaled = queries.matrix.multiply(roots[:, None]) if queries.is_sparse else queries.matrix * roots[:, None]
    return Workload(scaled, queries.names, queries.groups, queries.domain)


def _judge_covariance(problem: TotalVariance, covariance: Array, tol: float | None) -> Solution:
    """Judge a covariance with its immediate dual weights, or with the weights of a solution if these prove more."""
    rows = problem.geometry.representation * np.sqrt(problem.asked_weights)[:, None]
    products = rows @ covariance @ problem.basis
    shares = np.einsum("ji,ji->i", products, products)
    judge = partial(judged_solution, problem, tol=tol or 1.0, otherwise=Status.STEPS_EXHAUSTED)
    start = judge(covariance, VarianceDual(shares / shares.sum()))
    if not start.certificate.feasible:
        start = judge(problem.feasible(covariance), start.dual)
    if tol is None or start.status is Status.CERTIFIED:
        return start
    solution = fitness.solve_on_geometry(problem, loop.Limits(tol), start=start)
    return judge(start.primal, solution.dual) if solution.lower_bound > start.lower_bound else start


def _finder(method: str, group_size: int | None, share: float) -> weighting.Finder:
    validate.choice(METHODS, method=method)
    size = None if group_size is None else validate.size(group_size=group_size)
    if size is not None and method != "separation":
        raise InvalidInputError(f"group_size is an option of method separation, not of {method}")
    fraction = validate.positive_number(share=share)
    if fraction > 1:
        raise InvalidInputError(f"share must be above 0 and at most 1, got {fraction:g}")
    if method == "separation":
        return partial(_by_groups, size)
    return partial(_principal, fraction) if method == "principal" else weighting.best


def _by_groups(
    size: int | None, costs: Array, sensitivities: Array, power: int, limits: loop.Limits
) -> weighting.WeightingResult:
    width = size or max(round(len(costs) ** (1 / 3)), 1)
    groups = [slice(start, start + width) for start in range(0, len(costs), width)]
    parts = [weighting.best(costs[group], sensitivities[group], power, limits).weights for group in groups]
    return _weigh_groups(list(zip(groups, parts, strict=True)), costs, sensitivities, power, limits)


def _principal(
    share: float, costs: Array, sensitivities: Array, power: int, limits: loop.Limits
) -> weighting.WeightingResult:
    count = math.ceil(share * len(costs))
    groups = [(slice(i, i + 1), np.ones(1)) for i in range(count)]
    if count < len(costs):
        groups.append((slice(count, len(costs)), np.ones(len(costs) - count)))
    return _weigh_groups(groups, costs, sensitivities, power, limits)


def _weigh_groups(
    groups: Sequence[tuple[slice, Array]], costs: Array, sensitivities: Array, power: int, limits: loop.Limits
) -> weighting.WeightingResult:
    """Find the best common factors for groups of weights: Program 1 with a query for each group."""
    totals = np.array([float((costs[group] * weights_of_group**-power).sum()) for group, weights_of_group in groups])
    rows = np.array([sensitivities[group].T @ weights_of_group for group, weights_of_group in groups])
    factors = weighting.best(totals, rows, power, limits)
    weights = np.concatenate(
        [factor * weights_of_group for factor, (_, weights_of_group) in zip(factors.weights, groups, strict=True)]
    )
    return replace(factors, weights=weights)
