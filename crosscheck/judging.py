"""The judge of answers of any origin: their proven distance from the optimum."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dualmech import fast, validate
from dualmech.certificate import FEASIBLE, Certificate
from dualmech.errors import DualmechError, InputTypeError, InvalidInputError
from dualmech.geometry.dense import Dense
from dualmech.geometry.stream import Stream
from dualmech.linalg import to_dense
from dualmech.problems.base import AnyProblem, Dual, Made, Problem
from dualmech.problems.common import CommonMechanism, Maximality
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.reuse import ReuseFitness
from dualmech.problems.softmax import SoftmaxFitness
from dualmech.problems.variance import TotalVariance
from dualmech.progress import Callback, Status
from dualmech.solution import Solution, judged_solution
from dualmech.threads import blas_threads
from dualmech.validate import Array
from dualmech.watching import without_warnings
from dualmech.workloads.base import Workload

ROUNDING_TOL = 1e-6
"""Relative excess over a constraint that counts as rounding."""

SINGLE_ROUNDING_TOL = 1e-4  # the same for single precision, where seven digits may cancel

SYMMETRY_TOL = 0.01  # relative asymmetry of a matrix that is meant to be symmetric


def read_answer(problem: Problem, primal: object) -> Any:
    """Return an answer as a point of the problem.

    Raises the errors of `problem.as_primal`, with a hint if the shape of the matrix suggests another object.
    """
    matrix = _matrix(problem, primal)
    try:
        return problem.as_primal(primal)
    except InvalidInputError as error:
        hint = "" if matrix is None else by_shape(problem, matrix)
        raise InvalidInputError(f"{error}{hint and '; '}{hint}") from None


def is_rounding(primal: object, violation: float) -> bool:
    """Return whether an excess over a constraint is explained by rounding of the stored answer."""
    return FEASIBLE < violation <= (SINGLE_ROUNDING_TOL if _is_single(primal) else ROUNDING_TOL)


def _matrix(problem: Problem, primal: object) -> Array | None:
    """Return an answer that is a matrix, for a covariance on a dense geometry or a stream; else None."""
    if not isinstance(getattr(problem, "geometry", None), Dense | Stream):
        return None
    try:
        matrix = validate.finite(2, primal=primal)
    except DualmechError:
        return None
    return matrix


def by_shape(problem: AnyProblem, matrix: Array) -> str:
    """Return a hint about a refused matrix from its shape; empty without a hint."""
    rank, (queries, cells) = len(problem.basis), problem.workload.shape
    requirement = f"the judge takes the covariance on the {rank} rows of problem.basis"
    if matrix.shape[0] == matrix.shape[1]:
        size = len(matrix)
        if np.abs(matrix - matrix.T).max() <= SYMMETRY_TOL * np.abs(matrix).max():
            noises = {queries: f"noise on the {queries} answers", cells: f"noise on the {cells} cells"}
            if size == rank or size not in noises:
                return ""
            return f"it looks like the covariance of the {noises[size]}; {requirement}"
        if not np.any(np.triu(matrix, 1)) or not np.any(np.tril(matrix, -1)):
            return "it looks like a Cholesky factor: the judge takes its product with its transpose"
    if matrix.shape[1] == cells:
        return f"it looks like a strategy over {cells} cells: covariance_of_strategy returns its covariance"
    if matrix.shape[0] == cells:
        return f"it looks like the transpose of a strategy over {cells} cells: covariance_of_strategy takes strategies"
    return ""


def _is_single(primal: object) -> bool:
    """Return whether all numbers are representable in single precision."""
    if isinstance(primal, np.ndarray) and primal.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return primal.dtype.itemsize < 8 or np.array_equal(primal, primal.astype(np.float32))
    return False


OfCovariance: TypeAlias = FitnessForUse | PrivacyFirst | TotalVariance | SoftmaxFitness | ReuseFitness
"""Problems whose answer is a covariance."""

DEFAULT_TOL = 1e-6  # gap of a certified answer

BOUND_TOL = 1e-9  # gap of the judge's own bound

STREAM_TOL, STREAM_SHARE = 1e-2, 1e-3
"""Gap of the first bound of a stream; the final gap is this share of the answer's gap, if that is smaller."""

BINDING_TOL = 1e-6
"""Relative tolerance for binding targets and neighbours: a user's answer need not be exact."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Judgement(Certificate):
    """A certificate for an answer of any origin, with its loose targets and binding neighbours."""

    # the judged answer with the dual weights of the bound; `compare`, `prove` and plots accept it or the judgement
    answer: Solution
    # queries or tables with a variance below their target, by more than 1e-6 of it; empty without targets
    loose: npt.NDArray[np.intp]
    # neighbours with the maximum cost, up to 1e-6 of it; for unions, orbits of cells
    binding: npt.NDArray[np.intp]
    # of the answer scaled to meet its constraints (a common mechanism: with the minimum increase that makes it one)
    scaled: Certificate
    # for a common mechanism, whether it is maximal for any trace; else None
    maximality: Maximality | None = None
    # the most exceeded constraints in words, with names of queries, tables or neighbours
    exceeded: tuple[str, ...] = ()
    # for example, that the answer was scaled before it was judged
    remarks: tuple[str, ...] = ()

    def _facts(self) -> dict[str, object]:
        facts = Certificate._facts(self)
        if self.exceeded:
            facts["exceeded"] = "; ".join(self.exceeded)
        if self.remarks:
            facts["remarks"] = "; ".join(self.remarks)
        return facts

    def __repr__(self) -> str:
        state = f"gap {self.gap:.2g}" if self.feasible else f"infeasible by {self.violation:.2g}"
        return f"Judgement({self.objective:.6g}, {state}, the optimum at least {self.lower_bound:.6g})"


@blas_threads()
def judge(
    problem: Problem,
    primal: object,
    tol: float | None = None,
    *,
    bound: Solution | None = None,
    callback: Callback | None = None,
) -> Judgement:
    """Judge an answer of any origin to a problem, with a bound that the judge computes.

    A causal strategy of `dualmech.strategies` is judged on geometry `stream`, if the problem supports it, in time
    linear in the number of steps.

    An answer that exceeds its constraints only by rounding, such as one stored in single precision, is scaled to meet
    them before it is judged, and `remarks` says so.
    Raises `InvalidInputError` or `InputTypeError` for an object that is no answer to the problem.

    Parameters
    ----------
    problem : any of the library's problems
        The problem of the answer.
    primal : array, point or mechanism
        The answer, as for `problem.as_primal`: on a dense geometry the covariance Σ (k, k) on the problem's basis; on
        other geometries their points (`BlockPoint`, `SplitPoint`, a tuple of the factors' points); or any mechanism
        that answers the problem, also a causal one. For `QueryWeighting` the weights u; for `CommonMechanism` also a
        mechanism that answers the common queries; for local privacy the strategy Q, which is judged with its optimal
        reconstruction.
    tol : float, optional
        Gap of the bound; the certified gap is valid for any bound. By default 1e-9, on geometry `stream` at least a
        thousandth of the answer's own gap.
    bound : Solution, optional
        A solution of the same problem, whose dual weights are used for the bound instead of solving.
    callback : callable, optional
        Receives a `Progress` after each step towards the bound.

    Examples
    --------
    >>> import numpy as np
    >>> import dualmech as dm
    >>> from dualmech import crosscheck
    >>> problem = dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0)
    >>> verdict = crosscheck.judge(problem, np.eye(2) / 2)
    >>> verdict.feasible, round(verdict.objective, 6), round(verdict.gap, 6)
    (True, 2.0, 0.5)
    >>> verdict.loose, verdict.binding
    (array([0]), array([0, 1]))
    >>> weighting = dm.QueryWeighting(dm.workloads.prefix(2), [[1, 0], [1, 1]])
    >>> round(crosscheck.judge(weighting, [0.25, 0.75]).gap, 6)
    0.333333
    """
    check_problem(problem, primal)
    judged_problem: Any = _on_judging_geometry(problem, primal)
    point = read_answer(judged_problem, primal)
    dual = _dual(judged_problem, point, tol, callback) if bound is None else _dual_of(problem, bound)
    tolerance = DEFAULT_TOL if tol is None else tol
    with np.errstate(all="ignore"):
        answer = judged_solution(judged_problem, point, dual, tol=tolerance, otherwise=Status.GIVEN)
        verdict, scaled = answer.certificate, judged_problem.certify(judged_problem.feasible(point), dual)
    remarks = verdict.remarks
    if is_rounding(primal, verdict.violation) and scaled.feasible:
        remarks += (
            f"judged scaled to meet its constraints: as it was given it exceeds one by {verdict.violation:.1e}, "
            "which is rounding",
        )
        point, verdict = judged_problem.feasible(point), scaled
        answer = judged_solution(judged_problem, point, dual, tol=tolerance, otherwise=Status.GIVEN)
    common = problem if isinstance(problem, CommonMechanism) and verdict.feasible else None
    return Judgement(
        verdict.objective,
        verdict.lower_bound,
        verdict.gap,
        verdict.violation,
        verdict.resolution,
        verdict.offset,
        answer=answer,
        loose=_indices(judged_problem.loose, point),
        binding=_indices(judged_problem.binding, point),
        scaled=scaled,
        maximality=None if common is None else common.maximality(point),
        exceeded=() if verdict.feasible else judged_problem.exceeded(point),
        remarks=remarks,
    )


def meeting(verdict: Judgement) -> Judgement:
    """Return the verdict on the same answer, scaled to meet its constraints exactly, with a remark."""
    problem, scaled = verdict.answer.problem, verdict.scaled.objective
    if np.isclose(scaled, verdict.objective, rtol=FEASIBLE, atol=0.0) or not verdict.scaled.feasible:
        return verdict
    outcome = judge(problem, problem.feasible(verdict.answer.primal), bound=verdict.answer)
    return replace(outcome, remarks=("scaled to meet the targets exactly", *outcome.remarks))


@blas_threads()
def judged(
    problem: Problem[Dual, Made],
    primal: object,
    dual: object = None,
    *,
    tol: float = DEFAULT_TOL,
    solver: str = "mine",
    seconds: float = 0.0,
) -> Solution[Dual, Made]:
    """Return a user's answer as a `Solution`, with a certificate that the problem computes here.

    The answer is not scaled, and its dual weights are judged too. Its status is CERTIFIED if the certificate proves it
    within `tol` of the optimum, else GIVEN. ``certificate.remarks`` explain why dual weights prove no bound.
    Raises `InvalidInputError` or `InputTypeError` for objects that are no point, or no dual weights, of the problem.

    Parameters
    ----------
    problem : any of the library's problems
        The problem of the answer.
    primal : array, point or mechanism
        The answer, as for `judge`.
    dual : dual weights, or a tuple of their arrays, optional
        For fitness for use ``(λ, μ)``; by default the fast layer computes the bound.
    tol : float, default 1e-6
        The gap to prove, relative to the lower bound.
    solver : str, default "mine"
        The name of the solver in the solution.
    seconds : float, default 0
        The solver's running time in seconds.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import compare, judged
    >>> problem = dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0)
    >>> mine = judged(problem, [[1, -1 / 2], [-1 / 2, 1]], ([2 / 3, 1 / 3], [1 / 3, 2 / 3]))
    >>> mine.status.name, compare([mine, dm.fast.solve(problem)]).outcome.name
    ('CERTIFIED', 'AGREE')
    >>> judged(problem, [[2, -1], [-1, 2]]).status.name
    'GIVEN'
    """
    check_problem(problem, primal)
    tol, seconds = validate.positive_number(tol=tol), validate.nonnegative_number(seconds=seconds)
    solver, point = validate.text(solver=solver), read_answer(problem, primal)
    weights = _dual(problem, point, tol, None) if dual is None else problem.as_dual(dual)
    with np.errstate(all="ignore"):
        return judged_solution(problem, point, weights, tol=tol, otherwise=Status.GIVEN, seconds=seconds, solver=solver)


def _on_judging_geometry(problem: AnyProblem, primal: Any) -> Any:
    """Return the problem on the fastest geometry for the answer, else on a matrix; unchanged if neither supports it."""
    geometry = getattr(primal, "judged_on", None)
    for name in () if geometry is None or not hasattr(problem, "on_geometry") else (geometry, "dense"):
        with contextlib.suppress(InvalidInputError):
            candidate = problem.on_geometry(name)
            candidate.as_primal(primal)
            return candidate
    return problem


def _dual(problem: AnyProblem, answer: Any, tol: float | None, callback: Callback | None) -> Any:
    """Return dual weights that prove a bound; for streams, only as accurate as the answer's gap requires."""
    streams = tol is None and getattr(getattr(problem, "geometry", None), "name", None) == Stream.name
    tolerance: float = STREAM_TOL if streams else BOUND_TOL if tol is None else tol
    with without_warnings():
        solution = fast.solve(problem, tol=tolerance, callback=callback)
        if streams:
            gap = problem.certify(problem.feasible(answer), solution.dual).gap
            tolerance = max(BOUND_TOL, STREAM_SHARE * gap)
            if tolerance < STREAM_TOL:
                solution = fast.solve(problem, tol=tolerance, start=solution, callback=callback)
    return solution.dual


def _dual_of(problem: Problem, bound: Any) -> object:
    solution = validate.instance(Solution, bound=bound)
    if not solution.problem.same_as(problem):
        raise InvalidInputError(f"bound must be a solution of the same problem, got one of {solution.problem!r}")
    return solution.dual


def check_problem(problem: Problem, primal: object) -> None:
    """Refuse an object that is no problem, and an answer that has a certificate."""
    usage = "judge takes a problem and an answer to it: judge(dualmech.FitnessForUse(workload, targets), covariance)"
    if not isinstance(problem, Problem):
        raise InputTypeError(f"problem must be one of the library's problems, got {describe_kind(problem)}; {usage}")
    if hasattr(primal, "certificate") or hasattr(primal, "certify") or isinstance(primal, Workload):
        hint = "; for a Solution give its primal or its mechanism" if hasattr(primal, "primal") else ""
        raise InputTypeError(f"primal must be a point or a mechanism, got {describe_kind(primal)}{hint}; {usage}")


def describe_kind(value: object) -> str:
    shape = getattr(value, "shape", None)
    size = f" of shape {shape}" if isinstance(value, np.ndarray) else ""
    return f"{type(value).__name__}{size}"


def _indices(find: Callable[[Any, float], npt.NDArray[np.intp]], answer: object) -> npt.NDArray[np.intp]:
    """Return indices of queries or neighbours; empty if there are too many to list."""
    try:
        return find(answer, BINDING_TOL)
    except InvalidInputError:
        return np.zeros(0, dtype=np.intp)


def covariance_of_strategy(problem: OfCovariance, strategy: npt.ArrayLike) -> Array:
    """Return the covariance on B x of a matrix-mechanism strategy A: unit noise on A x, least squares.

    Raises `InvalidInputError` for a strategy with another number of cells, or that cannot answer the workload.
    """
    if not isinstance(problem, Problem) or not hasattr(problem, "basis"):
        raise InputTypeError(f"problem must be one whose answer is a covariance, got {describe_kind(problem)}")
    queries = to_dense(validate.matrix(strategy=strategy))
    cells = problem.workload.shape[1]
    if queries.shape[1] != cells:
        hint = f"; its transpose has {cells}" if queries.shape[0] == cells else ""
        raise InvalidInputError(f"strategy must have {cells} columns, one per cell, got {queries.shape[1]}{hint}")
    with np.errstate(all="ignore"):
        reconstruction = problem.basis @ np.linalg.pinv(queries)
        distances = np.linalg.norm(problem.basis - reconstruction @ queries, axis=1)
        covariance = np.asarray(reconstruction @ reconstruction.T)
    if not np.all(distances <= 1e-8 * np.linalg.norm(problem.basis, axis=1)):
        raise InvalidInputError("strategy cannot answer the workload: its rows do not span the workload's")
    if not np.all(np.isfinite(covariance)):
        raise InvalidInputError("strategy must have entries whose inverse squares are finite doubles")
    return covariance


__all__ = ["Judgement", "covariance_of_strategy", "judge", "judged"]
