"""What all optima of a stage have in common: the face on which the next stage of the refined ordering stands.

Not part of any judge: a stage is judged on the face that it names, wherever that came from.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from dualmech import linalg
from dualmech.geometry.base import FitnessDual
from dualmech.problems.stages import Indices, RefinementStage, relative
from dualmech.validate import Array

SETTLED, PER_ROOT_OF_GAP = 1e-5, 30.0
"""Least eigenvalue of P, relative to the largest, that counts as range: 1e-5, or so many roots of the gap.

Where complementarity is not strict, an eigenvalue that vanishes at the optimum is still of the order of the root
of the gap. A direction left open by mistake is settled by the next stage; one settled by mistake is lost."""

MOST_LEFT = 0.5
"""The largest eigenvalues are always range, however badly a stage was solved: every stage settles something."""

SUPPORTED = 1e-4
"""Least weight, relative to the largest, that proves a neighbour (or query) tight in every optimum."""

CLOSED, SUPPORTED_CLOSED = 1e-12, 1e-6
"""A neighbour whose cost owes at most this share to M is closed; where its weight proves it tight, the second.

A query likewise, and then only where its target is spent up to the second share."""


def next_stage(stage: RefinementStage, inner: Array, dual: FitnessDual, gap: float) -> RefinementStage:
    """Return the next stage, from an optimal M (r, r) and weights that prove it to the relative `gap`.

    In coordinates in which M is the identity, P and Q are proportional up to the gap. Their common range is
    settled; neighbours and queries that no open direction reaches any more are closed.
    """
    factor = np.linalg.cholesky((inner + inner.T) / 2)
    moves = scipy.linalg.solve_triangular(factor, stage.moves, lower=True, check_finite=False)
    rows = stage.rows @ factor
    values, vectors = np.linalg.eigh(_common(moves, rows, dual))
    settled = values > min(max(SETTLED, PER_ROOT_OF_GAP * np.sqrt(max(gap, 0.0))), MOST_LEFT) * values[-1]
    shares, left = _shares(dual.neighbour_weights), vectors[:, ~settled]
    reach, costs = _norms(left.T @ moves), stage.costs + _norms(moves)
    if shares @ (costs - stage.costs) <= SUPPORTED_CLOSED * costs[stage.neighbours].max():
        # The worst neighbours cost what they cost, whatever M is: they close, and no direction is settled.
        left, reach = vectors, np.where(shares > SUPPORTED * shares.max(), 0.0, _norms(moves))
    neighbours = _still_open(stage.neighbours, relative(reach, costs), shares)
    reach, full = _norms((rows @ left).T), stage.variances + _norms(rows.T)
    loose = full - reach < (1 - SUPPORTED_CLOSED) * stage.problem.targets
    shares = _shares(dual.query_weights * stage.problem.targets)
    queries = _still_open(stage.queries, np.where(loose, 1.0, relative(reach, full)), shares)
    done = vectors[:, left.shape[1] :]
    for seen in (moves[:, neighbours], rows[queries].T):
        left, unseen = _split_by_reach(left, left.T @ seen)
        done = np.hstack([done, unseen])
    return RefinementStage(
        stage.problem,
        np.hstack([stage.settled, stage.open @ (factor @ done)]),
        stage.open @ (factor @ left),
        neighbours,
        queries,
    )


def _common(moves: Array, rows: Array, dual: FitnessDual) -> Array:
    """Return the mean of P and Q in coordinates in which the optimum is the identity, each of trace 1."""
    first = (moves * dual.neighbour_weights) @ moves.T
    last = (rows.T * dual.query_weights) @ rows
    return np.asarray(first / np.trace(first) + last / np.trace(last)) / 2


def _norms(columns: Array) -> Array:
    """Return the squared norms of columns."""
    return np.einsum("ki,ki->i", columns, columns)


def _shares(weights: Array) -> Array:
    """Return weights relative to their sum."""
    return np.asarray(weights / weights.sum())


def _split_by_reach(directions: Array, vectors: Array) -> tuple[Array, Array]:
    """Split directions into those that some of the vectors (coordinates on them) reach, and the others.

    Nothing open is moved in the others, up to what was closed as rounding: their noise stays as it is.
    """
    norms = np.linalg.norm(vectors, axis=0)
    unit = vectors[:, norms > 0] / norms[norms > 0]
    if not unit.size:
        return directions[:, :0], directions
    left, values, _ = linalg.svd(unit, full_matrices=True)
    rank = linalg.numerical_rank(values, unit.shape)
    return (
        (directions, directions[:, :0])
        if rank == len(unit)
        else (directions @ left[:, :rank], directions @ left[:, rank:])
    )


def _still_open(indices: Indices, reach: Array, shares: Array) -> Indices:
    """Return the indices that M still reaches; where a weight proves one tight, rounding may reach further."""
    least = np.where(shares > SUPPORTED * shares.max(), SUPPORTED_CLOSED, CLOSED)
    return np.asarray(indices[(reach > least)[indices]])
