"""What a release is worth: rows with unit noise, the bound it proves, and what it leaves unknown of a mechanism."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from dualmech import linalg
from dualmech.certificate import FEASIBLE
from dualmech.errors import InvalidInputError
from dualmech.geometry.base import valid_weights
from dualmech.geometry.dense import Dense
from dualmech.geometry.moves import moves_between
from dualmech.mechanisms.noise import NoisyQueries
from dualmech.validate import Array, Matrix


def unit_noise_rows(released: NoisyQueries, neighbours: Matrix | None) -> Array:
    """Return F (q, d), independent rows whose answers with unit noise are worth as much as the release.

    What it says exactly is left aside where no neighbour changes it, and refused elsewhere: it has no finite cost.
    """
    queries, covariance = released.query_matrix, released.covariance()
    if released.independent and len(queries):
        _, inverse, silent = _split_singular(covariance)
        exact = silent @ queries
        if len(exact) and not np.any(moves_between(exact, neighbours)[0]):
            return np.asarray(inverse @ queries)
        if linalg.cholesky(covariance) is None:
            raise InvalidInputError("released must not be exact in any query that differs between neighbours")
    return np.array(released.standard_form.queries)


def dual_bound(
    geometry: Dense, targets: Array, neighbour_weights: Array, query_weights: Array, release_weights: Array
) -> tuple[float, float]:
    """Return ``‖[diag(√μ) W ; Ω^½ F] U diag(√λ)‖_*² / (Σ λ_i (Σ μ_j c_j + tr Ω))`` and its rounding, relative.

    The rows of F stand after those of W in the workload of the geometry. Proof that it bounds α: the release is so
    many more queries, ``a F`` for every unit vector a, each with a target of 1. So ``Σ_j μ_j v_j Σ v_j' +
    tr(Ω K Σ K')``, which is ``‖[diag(√μ) L ; Ω^½ K] Σ^½‖_F²``, is at most ``Σ μ_j c_j + tr Ω``, and
    ``‖Σ^-½ B U diag(√λ)‖_F²`` is at most ``α Σ λ_i``; multiply, and use ``‖X Y‖_* ≤ ‖X‖_F ‖Y‖_F``. Any root of any
    Ω ⪰ 0 will do: the trace is that of the root which is used. Where weights prove nothing, the bound is 0.
    """
    entries = np.append(query_weights, release_weights.ravel())
    if not (valid_weights(neighbour_weights) and np.all(np.isfinite(entries)) and np.all(query_weights >= 0)):
        return 0.0, 0.0
    # Brought to a largest entry of 1 before anything else, so that no scale of theirs under- or overflows.
    largest, count = float(np.abs(entries).max()) or 1.0, len(targets)
    spread, root = query_weights / largest, _root(release_weights / largest)
    total = float(spread @ targets + np.sum(root**2))
    if not total > 0:
        return 0.0, 0.0
    shares = neighbour_weights / neighbour_weights.max()
    moves, queries = np.flatnonzero(shares), np.flatnonzero(spread)
    shares = np.sqrt(shares[moves] / shares.sum())
    asked, missed = geometry.differences(queries, moves, np.sqrt(spread[queries]), shares)
    held = np.arange(count, count + len(root))
    known, hidden = geometry.differences(held, moves, np.ones(len(held)), shares)
    hidden += len(held) * linalg.EPS * float(np.linalg.norm(known))
    norm, allowance = linalg.trace_norm(
        np.vstack([asked, root @ known]), missed + float(np.linalg.norm(root)) * hidden
    )
    sums = (len(queries) + len(moves) + root.size) * linalg.EPS
    return norm**2 / total, 2 * allowance / norm + sums if norm > 0 else 0.0


def new_information(covariance: Array, coordinates: Array) -> tuple[Array, Array]:
    """Return rows R with ``R'R = Σ⁻¹ - K'K``, and the rows N without noise, ``N Σ N' = 0``, both on B x.

    Directions of which the release leaves less than 1e-9 unknown count as known.
    """
    root, inverse, silent = _split(covariance)
    known, directions = _known_directions(root, coordinates)
    new = 1 - known > FEASIBLE
    return np.sqrt(1 - known[new])[:, None] * (directions[new] @ inverse), silent


def least_informative(covariance: Array, coordinates: Array, rows: Array, targets: Array) -> Array:
    """Return the covariance of cost ``K'K + t (Σ⁻¹ - K'K)`` with the least t at which the rows meet their targets."""
    root, _, _ = _split(covariance)
    known, directions = _known_directions(root, coordinates)
    root = root @ directions.T
    squares = (rows @ root) ** 2 / targets[:, None]

    def excess(share: float) -> float:
        return float((squares / (known + share * (1 - known))).sum(axis=1).max())

    low, high = 0.0, 1.0
    if not excess(high) < 1:
        return covariance
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if excess(middle) <= 1 else (middle, high)
    half = root / np.sqrt(known + high * (1 - known))
    return np.asarray(half @ half.T)


def _root(weights: Array) -> Array:
    """Return R with R'R the positive semidefinite part of symmetric weights."""
    if not weights.size:
        return weights
    values, vectors = np.linalg.eigh((weights + weights.T) / 2)
    return np.asarray(np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T)


def _known_directions(root: Array, coordinates: Array) -> tuple[Array, Array]:
    """Return directions of unit noise, in rows, and the share of the information in each that the release holds.

    With ``Σ = C C'``, they are the right singular vectors of ``K C`` and its squared singular values, at most 1: the
    difference of ``Σ⁻¹`` and ``K'K`` is never formed.
    """
    _, values, directions = linalg.svd(coordinates @ root, full_matrices=True)
    known = np.zeros(len(directions))
    known[: len(values)] = np.minimum(values**2, 1.0)
    return known, directions


def _split(covariance: Array) -> tuple[Array, Array, Array]:
    """Return C with ``C C' = Σ``, a left inverse of it, and the rows N without any noise, ``N Σ N' = 0``."""
    factor = None if linalg.is_singular(covariance) else linalg.cholesky(covariance)
    if factor is not None:
        inverse = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), trans="T", check_finite=False)
        return factor.T, inverse, np.zeros((0, len(factor)))
    return _split_singular(covariance)


def _split_singular(covariance: Array) -> tuple[Array, Array, Array]:
    diagonal = np.diagonal(covariance)
    units = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2 / units / units[:, None])
    noisy = ~linalg.are_silent(values)
    roots = np.sqrt(values[noisy])
    scaled_vectors = vectors / units[:, None]
    return (
        vectors[:, noisy] * units[:, None] * roots,
        (scaled_vectors[:, noisy] / roots).T,
        scaled_vectors[:, ~noisy].T,
    )
