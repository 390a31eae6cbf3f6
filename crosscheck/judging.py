"""The judge for answers from elsewhere: how far an answer of any origin is from the optimum."""

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

ROUNDED = 1e-6
"""Excess over a constraint, relative, that counts as rounding."""

ROUNDED_SINGLE = 1e-4  # the same of numbers in single precision, of which more than seven digits may cancel

NEARLY = 0.01  # asymmetry, relative to the largest entry, up to which a matrix is meant to be symmetric


def read_answer(problem: Problem, primal: object) -> Any:
    """Return an answer in the problem's own terms.

    Raises what `problem.as_primal` raises, with a hint where the matrix looks like something else.
    """
    matrix = _matrix(problem, primal)
    try:
        return problem.as_primal(primal)
    except InvalidInputError as error:
        hint = "" if matrix is None else by_shape(problem, matrix)
        raise InvalidInputError(f"{error}{hint and '; '}{hint}") from None


def is_rounding(primal: object, violation: float) -> bool:
    """Whether storing an answer, or scaling it, can leave such an excess over a constraint."""
    return FEASIBLE < violation <= (ROUNDED_SINGLE if _is_single(primal) else ROUNDED)


def _matrix(problem: Problem, primal: object) -> Array | None:
    """Return a matrix that was given for a covariance on a dense geometry or a stream, None of anything else."""
    if not isinstance(getattr(problem, "geometry", None), Dense | Stream):
        return None
    try:
        matrix = validate.finite(2, primal=primal)
    except DualmechError:
        return None
    return matrix


def by_shape(problem: AnyProblem, matrix: Array) -> str:
    """Return a guess at what a refused matrix is, from its shape; nothing where there is no guess."""
    rank, (queries, cells) = len(problem.basis), problem.workload.shape
    wanted = f"what is judged is that of the noise on the {rank} rows of problem.basis"
    if matrix.shape[0] == matrix.shape[1]:
        size = len(matrix)
        if np.abs(matrix - matrix.T).max() <= NEARLY * np.abs(matrix).max():
            whose = {queries: f"noise on the {queries} answers", cells: f"noise on the {cells} cells"}
            known = size != rank and size in whose
            return f"it looks like the covariance of the {whose[size]}; {wanted}" if known else ""
        if not np.any(np.triu(matrix, 1)) or not np.any(np.tril(matrix, -1)):
            return "it looks like a Cholesky factor: what is judged is its product with its transpose"
    if matrix.shape[1] == cells:
        return f"it looks like a strategy over {cells} cells: covariance_of_strategy makes a covariance of it"
    if matrix.shape[0] == cells:
        return f"it looks like the transpose of a strategy over {cells} cells: covariance_of_strategy takes strategies"
    return ""


def _is_single(primal: object) -> bool:
    """Whether all numbers are as single precision, or less, holds them."""
    if isinstance(primal, np.ndarray) and primal.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return primal.dtype.itemsize < 8 or np.array_equal(primal, primal.astype(np.float32))
    return False


OfCovariance: TypeAlias = FitnessForUse | PrivacyFirst | TotalVariance | SoftmaxFitness | ReuseFitness
"""Problems whose answer is a covariance."""

WITHIN = 1e-6  # gap at which an answer counts as proven unless told otherwise

BOUND_TOLERANCE = 1e-9  # gap to which the judge's own bound is solved

ROUGH, CLOSER = 1e-2, 1e-3
"""Gap to which the bound of a stream is solved at first, and the share of the answer's own gap that is enough."""

NONE: npt.NDArray[np.intp] = np.zeros(0, dtype=np.intp)

TIGHT = 1e-6
"""A target, or a neighbour, counts as tight within this, relative; an outsider's answer need not be exact."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Judgement(Certificate):
    """A certificate for an answer of any origin, and which targets are loose."""

    # the answer, as it was judged, with the dual weights of the bound: `compare`, `prove` and plots take either
    answer: Solution
    # queries, or tables, whose variance is more than 1e-6 below their target, relative; none where there are no
    # targets
    loose: npt.NDArray[np.intp]
    # neighbours whose cost is within 1e-6 of the largest, relative; of unions, orbits of cells
    binding: npt.NDArray[np.intp]
    # the same answer, scaled so that it just meets its constraints (a common mechanism: raised by as little as makes
    # it one): how good its shape is
    scaled: Certificate
    # of a common mechanism, whether it is maximal, whatever its trace; None where it is no common mechanism
    maximality: Maximality | None = None
    # the constraints that the answer exceeds most, in words: queries, tables or neighbours by their names
    exceeded: tuple[str, ...] = ()
    # further remarks, such as that it was judged scaled
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
    """Judge an answer of any origin to a problem, with a bound that the judge finds for itself.

    A causal strategy of `dualmech.strategies` is judged on geometry `stream`, in time that grows as the number of
    steps, whichever geometry the problem stands on, if it can stand there.

    An answer that exceeds its constraints by rounding alone, for instance one stored in single precision, is judged
    scaled to meet them, and `remarks` says so.
    Raises `InvalidInputError` or `InputTypeError` for an object that the problem cannot take as an answer.

    Parameters
    ----------
    problem : any of the library's problems
        What the answer is meant to solve.
    primal : array, point or mechanism
        The answer, as `problem.as_primal` takes it: on a dense geometry Σ (k, k), the covariance of noise on the
        problem's basis; on others their points (`BlockPoint`, `SplitPoint`, a tuple of the factors'); or any mechanism
        that answers the problem, causal ones among them. For `QueryWeighting` the weights u; for `CommonMechanism` also
        a mechanism that answers the common queries; for local privacy the strategy Q, with whose best
        reconstruction it is judged.
    tol : float, optional
        Gap to which the bound is solved; the certified gap is valid whatever was reached. By default 1e-9, on geometry
        `stream` no less than a thousandth of the answer's own gap.
    bound : Solution, optional
        A solution of the same problem: its dual weights are the bound, and nothing is solved.
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
    posed: Any = _posed(problem, primal)
    point = read_answer(posed, primal)
    dual = _dual(posed, point, tol, callback) if bound is None else _dual_of(problem, bound)
    tolerance = WITHIN if tol is None else tol
    with np.errstate(all="ignore"):
        answer = judged_solution(posed, point, dual, tol=tolerance, otherwise=Status.GIVEN)
        verdict, scaled = answer.certificate, posed.certify(posed.feasible(point), dual)
    remarks = verdict.remarks
    if is_rounding(primal, verdict.violation) and scaled.feasible:
        remarks += (
            f"judged scaled to meet its constraints: as it was given it exceeds one by {verdict.violation:.1e}, "
            "which is rounding",
        )
        point, verdict = posed.feasible(point), scaled
        answer = judged_solution(posed, point, dual, tol=tolerance, otherwise=Status.GIVEN)
    common = problem if isinstance(problem, CommonMechanism) and verdict.feasible else None
    return Judgement(
        verdict.objective,
        verdict.lower_bound,
        verdict.gap,
        verdict.violation,
        verdict.resolution,
        verdict.offset,
        answer=answer,
        loose=_indices(posed.loose, point),
        binding=_indices(posed.binding, point),
        scaled=scaled,
        maximality=None if common is None else common.maximality(point),
        exceeded=() if verdict.feasible else posed.exceeded(point),
        remarks=remarks,
    )


def meeting(verdict: Judgement) -> Judgement:
    """Return the verdict on the same answer, scaled to meet its constraints exactly, with a remark; bound and all."""
    posed, scaled = verdict.answer.problem, verdict.scaled.objective
    if np.isclose(scaled, verdict.objective, rtol=FEASIBLE, atol=0.0) or not verdict.scaled.feasible:
        return verdict
    outcome = judge(posed, posed.feasible(verdict.answer.primal), bound=verdict.answer)
    return replace(outcome, remarks=("scaled to meet the targets exactly", *outcome.remarks))


@blas_threads()
def judged(
    problem: Problem[Dual, Made],
    primal: object,
    dual: object = None,
    *,
    tol: float = WITHIN,
    solver: str = "mine",
    seconds: float = 0.0,
) -> Solution[Dual, Made]:
    """Return an answer from elsewhere as a `Solution`, whose certificate the problem makes here and now.

    It is taken as it is: nothing is scaled, and dual weights are judged too. Its status is CERTIFIED where that proves
    it within `tol` of the optimum, else GIVEN; ``certificate.remarks`` say why dual weights prove nothing.
    Raises `InvalidInputError` or `InputTypeError` for objects that the problem cannot take as a point, or as dual
    weights.

    Parameters
    ----------
    problem : any of the library's problems
        What the answer is meant to solve.
    primal : array, point or mechanism
        The answer, as `judge` takes it.
    dual : dual weights, or a tuple of their arrays, optional
        For fitness for use ``(λ, μ)``; without them the fast layer finds the bound.
    tol : float, default 1e-6
        The gap to prove, relative to the lower bound.
    solver : str, default "mine"
        The origin that the solution names.
    seconds : float, default 0
        Seconds that finding it took.

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
    within, took = validate.positive_number(tol=tol), validate.nonnegative_number(seconds=seconds)
    solver_name, point = validate.text(solver=solver), read_answer(problem, primal)
    weights = _dual(problem, point, within, None) if dual is None else problem.as_dual(dual)
    with np.errstate(all="ignore"):
        return judged_solution(
            problem, point, weights, tol=within, otherwise=Status.GIVEN, seconds=took, solver=solver_name
        )


def _posed(problem: AnyProblem, primal: Any) -> Any:
    """Return the problem on the geometry that an answer is judged on in less time, else on a matrix, if it can be."""
    wanted = getattr(primal, "judged_on", None)
    for name in () if wanted is None or not hasattr(problem, "on_geometry") else (wanted, "dense"):
        with contextlib.suppress(InvalidInputError):
            posed = problem.on_geometry(name)
            posed.as_primal(primal)
            return posed
    return problem


def _dual(problem: AnyProblem, answer: Any, tol: float | None, callback: Callback | None) -> Any:
    """Return dual weights that prove a bound; for streams no closer than the answer's own gap requires."""
    streams = tol is None and getattr(getattr(problem, "geometry", None), "name", None) == Stream.name
    tolerance: float = ROUGH if streams else BOUND_TOLERANCE if tol is None else tol
    with without_warnings():
        solved = fast.solve(problem, tol=tolerance, callback=callback)
        if streams:
            gap = problem.certify(problem.feasible(answer), solved.dual).gap
            tolerance = max(BOUND_TOLERANCE, CLOSER * gap)
            if tolerance < ROUGH:
                solved = fast.solve(problem, tol=tolerance, start=solved, callback=callback)
    return solved.dual


def _dual_of(problem: Problem, bound: Any) -> object:
    solution = validate.instance(Solution, bound=bound)
    if not solution.problem.same_as(problem):
        raise InvalidInputError(f"bound must be a solution of the same problem, got one of {solution.problem!r}")
    return solution.dual


def check_problem(problem: Problem, primal: object) -> None:
    """Refuse an object that is no problem, and an answer with a certificate of its own."""
    takes = "judge takes a problem and an answer to it: judge(dualmech.FitnessForUse(workload, targets), covariance)"
    if not isinstance(problem, Problem):
        raise InputTypeError(f"problem must be one of the library's problems, got {describe_kind(problem)}; {takes}")
    if hasattr(primal, "certificate") or hasattr(primal, "certify") or isinstance(primal, Workload):
        hint = "; of a Solution give its primal or its mechanism" if hasattr(primal, "primal") else ""
        raise InputTypeError(f"primal must be a point or a mechanism, got {describe_kind(primal)}{hint}; {takes}")


def describe_kind(value: object) -> str:
    shape = getattr(value, "shape", None)
    size = f" of shape {shape}" if isinstance(value, np.ndarray) else ""
    return f"{type(value).__name__}{size}"


def _indices(find: Callable[[Any, float], npt.NDArray[np.intp]], answer: object) -> npt.NDArray[np.intp]:
    """Return the queries or neighbours that are found; none where they are too many to list."""
    try:
        return find(answer, TIGHT)
    except InvalidInputError:
        return NONE


def covariance_of_strategy(problem: OfCovariance, strategy: npt.ArrayLike) -> Array:
    """Return the covariance on B x of a matrix-mechanism strategy A: unit noise on A x, least squares.

    Raises `InvalidInputError` for a strategy with another number of cells, or that cannot answer the workload.
    """
    if not isinstance(problem, Problem) or not hasattr(problem, "basis"):
        raise InputTypeError(f"problem must be one whose answer is a covariance, got {describe_kind(problem)}")
    queries = to_dense(validate.matrix(strategy=strategy))
    cells = problem.workload.shape[1]
    if queries.shape[1] != cells:
        turned = f"; its transpose has {cells}" if queries.shape[0] == cells else ""
        raise InvalidInputError(f"strategy must have {cells} columns, one per cell, got {queries.shape[1]}{turned}")
    with np.errstate(all="ignore"):
        answered = problem.basis @ np.linalg.pinv(queries)
        missed = np.linalg.norm(problem.basis - answered @ queries, axis=1)
        covariance = np.asarray(answered @ answered.T)
    if not np.all(missed <= 1e-8 * np.linalg.norm(problem.basis, axis=1)):
        raise InvalidInputError("strategy cannot answer the workload: its rows do not span the workload's")
    if not np.all(np.isfinite(covariance)):
        raise InvalidInputError("strategy must have entries whose inverses have squares that a double can hold")
    return covariance


__all__ = ["Judgement", "covariance_of_strategy", "judge", "judged"]
