"""What a matrix is likely to be that is no good covariance: a hint in one sentence, by its shape or by a trial."""

from __future__ import annotations

from typing import Any

import numpy as np

from dualmech import validate
from dualmech.certificate import FEASIBLE, Certificate
from dualmech.errors import DualmechError, InvalidInputError
from dualmech.geometry.dense import Dense
from dualmech.validate import Array

ROUNDED = 1e-6
"""Excess over a constraint, relative, that is taken for rounding."""

ROUNDED_SINGLE = 1e-4  # the same of numbers in single precision, of which more than seven digits may cancel

NEARLY = 0.01  # asymmetry, relative to the largest entry, of what is still meant to be symmetric

GOOD = 0.1  # gap up to which an answer is taken for what it says it is

FAR_BETTER = (
    0.8  # share of the given matrix's cost, scaled, below which another reading of it is worth a word
)


def read_answer(problem: Any, primal: Any) -> Any:
    """Return an answer in the problem's own terms.

    Raises what `problem.as_primal` raises, with a hint where the matrix looks like something else.
    """
    matrix = _matrix(problem, primal)
    try:
        return problem.as_primal(primal)
    except InvalidInputError as error:
        hint = "" if matrix is None else by_shape(problem, matrix)
        raise InvalidInputError(f"{error}{hint and '; '}{hint}") from None


def is_rounding(primal: Any, violation: float) -> bool:
    """Whether an excess over a constraint is no more than storing an answer, or scaling it, leaves."""
    return FEASIBLE < violation <= (ROUNDED_SINGLE if _is_single(primal) else ROUNDED)


def resemblance(problem: Any, given: Any, dual: Any, verdict: Certificate, cost: float) -> tuple[str, ...]:
    """Say whether a matrix's inverse, or its square, is feasible as it is, at far less than its own scaled cost."""
    dense = isinstance(getattr(problem, "geometry", None), Dense) and isinstance(given, np.ndarray)
    if not dense or verdict.gap <= GOOD:
        return ()
    with np.errstate(all="ignore"):
        trials = {
            "an inverse of a covariance (a precision or cost matrix): its inverse": np.linalg.pinv(given),
            "a square root of a covariance: its product with its transpose": given @ given.T,
        }
    for words, trial in trials.items():
        try:
            with np.errstate(all="ignore"):
                found = problem.certify((trial + trial.T) / 2, dual)
        except (DualmechError, np.linalg.LinAlgError):
            continue
        if found.feasible and not found.objective > FAR_BETTER * cost:
            return (f"it looks like {words} is feasible at {found.objective:.6g}",)
    return ()


def _matrix(problem: Any, primal: Any) -> Array | None:
    """Return a matrix that was given for a covariance on a dense geometry, None of anything else."""
    if not isinstance(getattr(problem, "geometry", None), Dense):
        return None
    try:
        matrix = validate.finite(2, primal=primal)
    except DualmechError:
        return None
    return matrix


def by_shape(problem: Any, matrix: Array) -> str:
    """Return what a matrix that was refused looks like by its shape, nothing where it looks like nothing."""
    rank, (queries, cells) = problem.geometry.rank, problem.workload.shape
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


def _is_single(primal: Any) -> bool:
    """Whether all numbers are as single precision, or less, holds them."""
    if isinstance(primal, np.ndarray) and primal.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return primal.dtype.itemsize < 8 or np.array_equal(primal, primal.astype(np.float32))
    return False
