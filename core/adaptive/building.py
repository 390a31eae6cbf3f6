"""Building chains stage by stage: what is common to the residuals of those that are left, block by block."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import scipy.linalg

from dualmech import linalg, validate
from dualmech.adaptive.chain import Chain, ChainStage
from dualmech.errors import UncertifiedWarning
from dualmech.mechanisms.answerability import coordinates, without_dust
from dualmech.mechanisms.decomposition import decomposition
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.intersections import MEETING
from dualmech.mechanisms.privacy import GaussianMechanism, GaussianPrivacy
from dualmech.mechanisms.recombination import Decomposition
from dualmech.problems.common import CommonMechanism
from dualmech.progress import Status
from dualmech.solution import Solution, retold
from dualmech.validate import Array

StageSolver = Callable[[CommonMechanism], Solution]
"""Returns a judged solution of a stage, as accurate as can be and judged at no larger a tolerance than is promised."""

WORTH_ASKING = 1e-5
"""Largest share of a direction's information that a stage may leave to the residuals because of a solver's gap."""


def build(
    mechanisms: Sequence[GaussianPrivacy | GaussianMechanism], solve: StageSolver, *, tol: float, solver: str
) -> Chain:
    """Build the chain of two or more mechanisms, stage by stage; the caller supplies the solver.

    A solver's gap leaves tiny shares of what is exactly common in the residuals, all but parallel to one another.
    No stage asks for a direction of which no more is left than the gap of the stage before may explain: what is
    released stays answerable from all, and is maximal up to that share.

    - `mechanisms`: in the order in which they drop out;
    - `solve`: solves the problem of a stage as accurately as it can: what is left is inherited by the next;
    - `tol`: gap to prove in every stage;
    - `solver`: name for the warning where one is not proven.
    """
    tol = validate.positive_number(tol=tol)
    problem = CommonMechanism(mechanisms)
    given, frame, stages = problem.mechanisms, problem.frame, list[ChainStage]()
    targets = [frame.parts(each) for each in given]
    known = [_empty_mechanism(each) for each in targets[0]]
    explained, spans = np.zeros(len(given)), [each.query_matrix for each in known]
    for index in range(len(given) - 1):
        solution = _with_tolerance(solve(problem), tol)
        common, left = frame.parts(solution.mechanism), list(zip(*targets[index:], strict=True))
        pairs = zip(spans, common, left, strict=True)
        spans = [_extend_span(span, part.query_matrix, own) for span, part, own in pairs]
        increments = [_on_span(*each) for each in zip(common, spans, strict=True)]
        steps = [_compose(*each) for each in zip(known, increments, spans, strict=True)]
        known = [step.target for step in steps]
        parts = [
            [decomposition(each[block], own) for block, own in enumerate(known)] for each in targets[index:]
        ]
        step, decompositions = frame.decomposed(steps), tuple(map(frame.decomposed, parts))
        stages.append(ChainStage(index, step, solution, decompositions))
        if index < len(given) - 2:
            explained = np.maximum(explained, _shares_within_gap(solution))[1:]
            left_over = [
                [_without_negligible(part, share) for part in each]
                for each, share in zip(parts[1:], explained, strict=True)
            ]
            problem = CommonMechanism([frame.joined(each) for each in left_over])
    chain = Chain(given, tuple(stages))
    if not chain.certified:
        warnings.warn(
            f"{solver}: a stage is proven to {chain.gap:.1e} where {tol:.1e} was asked",
            UncertifiedWarning,
            stacklevel=3,
        )
    return chain


def _with_tolerance(solution: Solution, tol: float) -> Solution:
    """Return a solution with the tolerance that was asked for in place of the stricter one that was tried."""
    status = Status.CERTIFIED if solution.certificate.certifies(tol) else solution.status
    return retold(solution, tol=tol, status=status)


def _empty_mechanism(like: LinearGaussianMechanism) -> LinearGaussianMechanism:
    """Return the mechanism that releases nothing, on the same cells and neighbours."""
    return LinearGaussianMechanism(
        np.zeros((0, like.query_matrix.shape[1])), np.zeros((0, 0)), like.neighbours
    )


def _extend_span(span: Array, rows: Array, mechanisms: tuple[LinearGaussianMechanism, ...]) -> Array:
    """Extend the orthonormal rows of a span by the directions of more rows that lie clearly outside it.

    What lies within `MEETING` of the span belongs to it, as in the intersection from which the rows came: a rank
    decided to the last digit would take their rounding for new queries. Cells that one of the mechanisms does not
    see, no common mechanism sees.
    """
    if not len(rows):
        return span
    outside = linalg.row_space(rows)
    for _ in range(2):
        outside = outside - (outside @ span.T) @ span
    _, sines, directions = linalg.svd(outside)
    further = directions[: len(sines)][sines > MEETING]
    unseen = [~np.any(each.query_matrix, axis=0) for each in mechanisms if len(each.query_matrix)]
    further = np.where(np.any(unseen, axis=0), 0.0, further)
    return np.vstack([span, further])


def _on_span(mechanism: LinearGaussianMechanism, span: Array) -> LinearGaussianMechanism:
    """Project a mechanism's rows onto a span that contains them up to rounding."""
    rows = without_dust((mechanism.query_matrix @ span.T) @ span)
    return LinearGaussianMechanism(rows, mechanism.covariance(), mechanism.neighbours)


def _compose(
    known: LinearGaussianMechanism, increment: LinearGaussianMechanism, span: Array
) -> Decomposition:
    """Return what both reveal together on independent rows with unit noise, made up of them.

    With unit noise on rows ``T Q``, Q the span, and ``T = O R`` a QR factorisation, ``O'`` times the answers is
    R Q x with unit noise, and the rest of them is noise alone.
    """
    form, count = increment.standard_form, len(known.query_matrix)
    rows = np.vstack([known.query_matrix, form.queries])
    orthogonal, triangle = scipy.linalg.qr(rows @ span.T, mode="economic", check_finite=False)
    said = scipy.linalg.block_diag(np.eye(count), form.estimate)[: len(rows)]
    update = orthogonal.T @ said
    together = LinearGaussianMechanism(without_dust(triangle @ span), np.eye(len(span)), known.neighbours)
    nothing = np.zeros((len(span), len(span)))
    return Decomposition(together, known, increment, update[:, :count], update[:, count:], nothing)


def _without_negligible(parts: Decomposition, allowed: float) -> LinearGaussianMechanism:
    """Return the residual without the directions of which at most this share is left."""
    rows = parts.residual.query_matrix
    shares = coordinates(rows, parts.target.standard_form.queries)
    kept = np.einsum("kl,kl->k", shares, shares) > allowed
    return LinearGaussianMechanism(rows[kept], np.eye(int(kept.sum())), parts.residual.neighbours)


def _shares_within_gap(solution: Solution) -> Array:
    """Return, of each mechanism, what share of a direction it may keep because Σ is not exactly optimal.

    Σ exceeds an optimum by a matrix of trace ``gap · tr Σ`` at most, so no more, relative, than that over the
    least eigenvalue of P_i.
    """
    problem: CommonMechanism = solution.problem
    if problem.trivial:
        return np.zeros(len(problem.mechanisms))
    excess = solution.gap * solution.objective
    least = np.array([np.linalg.eigvalsh(bound)[0] for bound in problem.bounds])
    return np.minimum(excess / np.maximum(least, np.finfo(float).tiny), WORTH_ASKING)
