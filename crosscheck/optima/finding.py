"""Exact optima of small problems: guessed from many digits, and proven by equal upper and lower bounds."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import numpy as np

from dualmech import fast, validate
from dualmech.crosscheck.optima import rationals, recognition, surds
from dualmech.crosscheck.optima.rationals import ExactOptimum
from dualmech.crosscheck.optima.recognition import recognised
from dualmech.crosscheck.optima.surds import Number, Rows
from dualmech.errors import InvalidInputError
from dualmech.problems.base import AnyProblem, Problem
from dualmech.solution import Solution
from dualmech.threads import blas_threads
from dualmech.watching import without_warnings

START_TOL = 1e-12  # gap of the solver's answer from which the exact optimum is computed


def exact(problem: AnyProblem) -> ExactOptimum:
    """Find the optimum of a small problem as a number of a field of square roots, and prove it in exact arithmetic.

    Newton's method on the optimality conditions computes about three hundred digits of a solver's answer. Lattice
    reduction recognises numbers ``a + b √d + …`` of a field of degree at most 8 in them. The proof does not depend on
    this: noise and weights are then checked in exact arithmetic. Σ is positive definite by its pivots, meets every
    constraint, and attains the value. The weights are non-negative, and prove the same value as a lower bound by weak
    duality: since ``Σ Q Σ = t P`` holds entry by entry, the trace norm of ``diag(√μ) W U diag(√λ)`` is
    ``tr(Q Σ) / √t``, and its square divided by ``Σ λ_i Σ μ_j c_j`` is a lower bound on every privacy cost.
    Among several optima, a simple one is chosen. A double in the problem means the simplest fraction that rounds to it.

    Parameters
    ----------
    problem : FitnessForUse, PrivacyFirst or TotalVariance
        The problem, with at most 24 cells, 24 queries and 24 pairs of neighbours, and rank at most 12. Other geometries
        are materialised as a dense matrix.

    Returns
    -------
    ExactOptimum
        The value, Σ, λ and μ.

    Raises
    ------
    InvalidInputError
        For other families, whose optimality conditions have another form; for larger problems; for a basis with more
        rows than the rank of the workload; for numbers that no fraction with a denominator of at most 10^7 rounds to;
        and if no optimum in such a field is found, as for prefix sums of four cells.
    InputTypeError
        For an object that is no problem.

    Notes
    -----
    Square roots of different square-free integers are linearly independent over the rationals, so numbers are equal if
    their coefficients are. The lattice reduction is by Lenstra, Lenstra and Lovász, "Factoring polynomials with
    rational coefficients", Mathematische Annalen 261 (1982); its use for recognising algebraic numbers is by Kannan,
    Lenstra and Lovász (1988).

    Examples
    --------
    >>> import dualmech as dm
    >>> proof = dm.exact(dm.FitnessForUse(dm.workloads.prefix(3)))
    >>> str(proof.optimum), str(proof.covariance[0][1]), proof.radicals
    ('(59 + 24 √6)/75', '-3 + √6', (6,))
    >>> [str(weight) for weight in proof.neighbour_weights]
    ['(8 + 3 √6)/30', '(6 + √6)/30', '(8 - 2 √6)/15']
    >>> proof.certificate.gap < 1e-12
    True
    """
    dense_problem = _small(validate.instance(Problem, problem=problem))
    with without_warnings(), np.errstate(all="ignore"):
        proof = proven(fast.solve(dense_problem, tol=START_TOL))
    if proof is None:
        raise InvalidInputError(
            f"problem has no optimum in a field of square roots of degree up to 8 that was found and proven, got "
            f"{dense_problem!r}; `dualmech.prove` proves an interval, of any width, from a solution"
        )
    return proof


@blas_threads()
def proven(answer: Solution) -> ExactOptimum | None:
    """Return an exact proof near a solver's answer, in fractions and square roots; None if none is found."""
    problem = answer.problem
    exact_problem = rationals.in_fractions(problem) if rationals.worth_trying(problem) else None
    if exact_problem is None:
        return None
    lam = np.asarray(getattr(answer.dual, "neighbour_weights", None), dtype=float)
    weights = (
        [float(weight) for weight in exact_problem.weights]
        if exact_problem.limits is None
        else answer.dual.query_weights
    )
    noise = rationals.inner_noise(exact_problem, np.asarray(answer.primal))
    with contextlib.suppress(OverflowError, np.linalg.LinAlgError):
        for digits in recognition.solutions(exact_problem, noise, lam, np.asarray(weights, dtype=float)):
            proof = _recognised(exact_problem, digits)
            if proof is not None:
                return proof
    return None


def _small(problem: AnyProblem) -> AnyProblem:
    """Return the problem on a matrix and a basis in fractions; raise if exact proofs do not apply."""
    if not isinstance(problem, rationals.FAMILIES):
        raise InvalidInputError(
            f"problem must be FitnessForUse, PrivacyFirst or TotalVariance, whose conditions of optimality are "
            f"equations between fractions, got {type(problem).__name__}"
        )
    _refuse_large(*problem.workload.shape)
    dense_problem = problem.on_geometry("dense")
    _refuse_large(*problem.workload.shape, dense_problem.geometry.moves.shape[1], dense_problem.geometry.rank)
    if dense_problem.geometry.redundant_rows:
        raise InvalidInputError(
            "problem must have a basis with as many rows as the rank of the workload: with more no noise is optimal"
        )
    if rationals.in_fractions(dense_problem) is not None:
        return dense_problem
    equivalent = rationals.on_own_rows(dense_problem)
    if equivalent is None or rationals.in_fractions(equivalent) is None:
        raise InvalidInputError(
            f"problem must have numbers that are fractions with denominators of at most {surds.MAX_DENOMINATOR}, "
            f"got others"
        )
    return equivalent


def _refuse_large(queries: int, cells: int, neighbours: int = 0, rank: int = 0) -> None:
    max_size = 2 * rationals.MAX_RANK
    if max(queries, cells, neighbours) > max_size or rank > rationals.MAX_RANK:
        pairs = f", {neighbours} pairs of neighbours and rank {rank}" if neighbours else ""
        raise InvalidInputError(
            f"problem must have at most {max_size} queries, cells and pairs of neighbours and a rank of at most "
            f"{rationals.MAX_RANK} to be solved exactly, got {queries} queries x {cells} cells{pairs}"
        )


def _recognised(problem: rationals.FractionProblem, digits: recognition.Digits) -> ExactOptimum | None:
    """Return the proof of the numbers with these digits; None if they are in no common field or prove no optimum."""
    size, count = len(digits.covariance), len(digits.neighbour_weights)
    values = [*digits.covariance.ravel(), *digits.neighbour_weights]
    values += [] if digits.query_weights is None else [*digits.query_weights]
    field_numbers = recognised([int(value) for value in values])
    if field_numbers is None:
        return None
    numbers = [surd if surd.radicals else surd.terms.get(1, Fraction(0)) for surd in field_numbers]
    sigma: Rows = np.array(numbers[: size**2], dtype=object).reshape(size, size)
    lam: list[Number] = [*numbers[size**2 : size**2 + count]]
    mu: list[Number] = [*numbers[size**2 + count :]]
    return rationals.verified(problem, sigma, lam, mu or problem.weights)
