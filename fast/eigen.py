"""The Eigen-Design: weighted eigen-queries as a strategy, and how far it is from the best strategy of all.

The algorithm of Li and Miklau, "An adaptive mechanism for accurate query answering under differential privacy", PVLDB
5(6), 2012 (Program 2), with their two reductions of its cost (section 4). It is a heuristic for `TotalVariance`, and
`TotalVariance` certifies its answer.
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

MOST_STEPS = 1000  # steps of the interior-point method after which it gives up; it takes some ten


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EigenDesign(Displayed):
    """A strategy of weighted eigen-queries, and its certificate."""

    problem: TotalVariance  # the problem that the strategy approximates: the least total variance of any strategy
    # of Program 1, a `QueryWeighting`: its `primal` are the weights, its problem's `design` the eigen-queries
    weighting: Solution
    # (p, d) A, the weighted eigen-queries and then the queries that complete its columns; squared cost 1
    strategy: Array
    covariance: Array  # (k, k) of the noise on the basis, after least squares from unit noise on A x
    dual: VarianceDual  # weights λ on the cells that prove the lower bound
    # the strategy's total variance, a lower bound on every strategy's, and the gap between them
    certificate: Certificate

    @property
    def total_variance(self) -> float:
        """Total variance of the workload, weighted as the problem says, at squared privacy cost 1."""
        return self.certificate.objective

    @property
    def ratio(self) -> float:
        """Proven limit on the root mean square error, as a multiple of the best strategy's error."""
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
            "error, at most, of the best": self.ratio,
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
    """Choose a strategy of weighted eigen-queries for a workload, and certify it against the best strategy.

    Neighbours differ by one record added or removed.
    Raises `InvalidInputError` or `InputTypeError` for arguments that `TotalVariance` and `designs.eigen_queries`
    refuse, or options out of range.
    Returns `EigenDesign`: an `UncertifiedWarning` says where Program 1 was not solved to `tol` (not for the reductions,
    whose `weighting.gap` is their price).
    With ``X = A'A`` and ``G = W'W``, the optimality conditions of `TotalVariance` give λ proportional to the diagonal
    of ``X⁻¹ G X⁻¹``: the bound "at once". (Li and Miklau compare with the uniform λ.)

    Parameters
    ----------
    workload : Workload
        W, (m, d).
    weights : float or (m,) array, optional
        Weight of each query's variance, as for `TotalVariance`; `strategies.relative_weights` for
        relative errors.
    complete : bool, default True
        Whether to complete the columns (Program 2, steps 4 and 5), which costs nothing and can only help.
    method : {"newton", "separation", "principal"}
        How to find the weights of the k eigen-queries: all at once; by eigen-query separation, in groups of
        consecutive eigenvalues whose common factors are found afterwards; or with one common weight for all but
        the principal eigenvectors.
    group_size : int, optional
        Size of a group for ``separation``; by default the cube root of k, rounded.
    share : float, default 0.1
        Share of the eigen-queries that are principal for ``principal``, above 0 and at most 1.
    tol : float, default 1e-9
        Gap to which Program 1 is solved (for the reductions, each part of it).
    bound_tol : float, optional
        Gap to which `TotalVariance` is solved for the bound; None for the bound that follows from the strategy
        at once, which is often within a percent of the best where W has full column rank.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> found = fast.eigen_design(dm.workloads.prefix(8))
    >>> found.strategy.shape, round(found.total_variance, 4), round(found.ratio, 4)
    ((15, 8), 20.8882, 1.0813)
    """
    find = _finder(method, group_size, share)
    limits = loop.Limits.validated(tol, MOST_STEPS)
    validate.boolean(complete=complete)
    if bound_tol is not None:
        bound_tol = validate.positive_number(bound_tol=bound_tol)
    problem = TotalVariance(workload, weights, geometry="dense")
    program = QueryWeighting(_weighted_workload(problem), designs.eigen_queries(_weighted_workload(problem)))
    best = _weigh(program, method, find, limits)
    strategy = program.strategy(best.primal)
    strategy = strategy[np.any(strategy, axis=1)]
    if complete:
        strategy = strategies.completed(strategy)
    basis, root = least_squares(strategy)
    half = problem.basis @ basis.T @ root
    judgement = _judge_covariance(problem, half @ half.T, bound_tol)
    return EigenDesign(problem, best, strategy, judgement.primal, judgement.dual, judgement.certificate)


@blas_threads()
def eigen_weights(
    program: QueryWeighting,
    *,
    method: str = "newton",
    group_size: int | None = None,
    share: float = 0.1,
    tol: float = 1e-9,
) -> Solution:
    """Weigh given eigen-queries, all at once or by a reduction.

    `eigen_design` decomposes a workload anew each time; here one decomposition serves every way of weighing.
    Raises `InvalidInputError` or `InputTypeError` for a problem that is no `QueryWeighting`, options out of range.
    Source: section 4 of Li and Miklau, PVLDB 5(6), 2012.
    Returns `Solution`: of the program, so that its `gap` bounds the loss of a reduction. An
    `UncertifiedWarning` says where ``newton`` did not reach `tol`.

    - `program`: Program 1 on the workload's `designs.eigen_queries`, in their order: of falling eigenvalues;
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
    find = _finder(method, group_size, share)
    return _weigh(program, method, find, loop.Limits.validated(tol, MOST_STEPS))


def _weigh(program: QueryWeighting, method: str, find: weighting.Finder, limits: loop.Limits) -> Solution:
    """Weigh the queries; warn where ``newton`` did not reach the tolerance."""
    if method == "newton":
        return warn_if_uncertified(weighting.run(program, find, limits, "fast:newton"), stacklevel=4)
    message = f"{method} stops at the best weights of its parts."
    return weighting.run(program, find, limits, f"fast:{method}", message)


def _weighted_workload(problem: TotalVariance) -> Workload:
    """Return the queries of positive weight, each times the root of it: a workload of equal total variance."""
    kept, roots = problem.asked, np.sqrt(problem.asked_weights)
    if len(kept) == len(problem.weights) and np.all(roots == 1):
        return problem.workload
    queries = problem.workload.select(kept)
    scaled = queries.matrix.multiply(roots[:, None]) if queries.is_sparse else queries.matrix * roots[:, None]
    return Workload(scaled, queries.names, queries.groups, queries.domain)


def _judge_covariance(problem: TotalVariance, covariance: Array, tol: float | None) -> Solution:
    """Let the problem judge a covariance by weights that follow from it, or by a solution's if these prove more."""
    rows = problem.geometry.representation * np.sqrt(problem.asked_weights)[:, None]
    pull = rows @ covariance @ problem.basis
    shares = np.einsum("ji,ji->i", pull, pull)
    verdict = partial(judged_solution, problem, tol=tol or 1.0, otherwise=Status.STEPS_EXHAUSTED)
    start = verdict(covariance, VarianceDual(shares / shares.sum()))
    if not start.certificate.feasible:
        start = verdict(problem.feasible(covariance), start.dual)
    if tol is None or start.status is Status.CERTIFIED:
        return start
    best = fitness.solve_on_geometry(problem, loop.Limits(tol), start=start)
    return verdict(start.primal, best.dual) if best.lower_bound > start.lower_bound else start


def _finder(method: str, group_size: int | None, share: float) -> weighting.Finder:
    validate.choice(METHODS, method=method)
    size = None if group_size is None else validate.size(group_size=group_size)
    if size is not None and method != "separation":
        raise InvalidInputError(f"group_size belongs to the method separation, not to {method}")
    part = validate.positive_number(share=share)
    if part > 1:
        raise InvalidInputError(f"share must be above 0 and at most 1, got {part:g}")
    if method == "separation":
        return partial(_by_groups, size)
    return partial(_principal, part) if method == "principal" else weighting.best


def _by_groups(
    size: int | None, costs: Array, sensitivities: Array, power: int, limits: loop.Limits
) -> weighting.Found:
    width = size or max(round(len(costs) ** (1 / 3)), 1)
    groups = [slice(start, start + width) for start in range(0, len(costs), width)]
    parts = [weighting.best(costs[group], sensitivities[group], power, limits).weights for group in groups]
    return _weigh_groups(list(zip(groups, parts, strict=True)), costs, sensitivities, power, limits)


def _principal(share: float, costs: Array, sensitivities: Array, power: int, limits: loop.Limits) -> weighting.Found:
    """Weigh the first queries one by one, and all others together."""
    count = math.ceil(share * len(costs))
    groups = [(slice(i, i + 1), np.ones(1)) for i in range(count)]
    if count < len(costs):
        groups.append((slice(count, len(costs)), np.ones(len(costs) - count)))
    return _weigh_groups(groups, costs, sensitivities, power, limits)


def _weigh_groups(
    groups: Sequence[tuple[slice, Array]], costs: Array, sensitivities: Array, power: int, limits: loop.Limits
) -> weighting.Found:
    """Find the best common factors of groups of weights: Program 1 again, each group a query."""
    totals = np.array([float((costs[group] * part**-power).sum()) for group, part in groups])
    rows = np.array([sensitivities[group].T @ part for group, part in groups])
    best = weighting.best(totals, rows, power, limits)
    weights = np.concatenate([factor * part for factor, (_, part) in zip(best.weights, groups, strict=True)])
    return replace(best, weights=weights)
