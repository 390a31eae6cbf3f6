"""The judge's arithmetic for local privacy: variances of a strategy, and what dual weights prove about all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.certificate import FEASIBLE
from dualmech.errors import InvalidInputError
from dualmech.geometry.local import patterns
from dualmech.geometry.local.relaxation import Relaxation
from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.workloads.base import Workload

SMALLEST_EPSILON, LARGEST_EPSILON = 1e-6, 100.0
"""What ε can be meant: above, a report is the truth in all but name; below, no double tells it from noise."""

CANCELLED = 0.1  # a variance below this share of the parts that it is a difference of is summed as it stands


@dataclass(frozen=True, slots=True, eq=False)
class Reconstruction:
    """The best reconstruction V for a prior, and what rounding may do to it, relative."""

    matrix: Array  # (k, m) V, with ``V Q = R``
    rounding: float  # of the expected second moment ``Σ_o (Q π)_o ‖V_o‖²``, to first order
    each_rounding: float  # of a single user type's second moment


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Each user type's second moment ``Σ_o Q_ou ‖V_o‖²`` and variance (n,), the violation, and the rounding of V."""

    moments: Array
    variances: Array
    violation: float
    mending: float  # what moments rise by, relative, beyond the violation, where a strategy near by meets all limits
    reconstruction: Reconstruction


def evaluate(root: Array, strategy: Array, prior: Array, epsilon: float) -> Evaluation | None:
    """Evaluate a strategy with the best reconstruction for a prior.

    None where Q is not finite, has negative entries, or cannot answer the workload.
    """
    if not np.all(np.isfinite(strategy)) or np.any(strategy < 0):
        return None
    strategy = strategy[np.any(strategy > 0, axis=1)]
    if np.any(strategy == 0) or not len(strategy):
        return None
    best = best_reconstruction(root, strategy, prior)
    if best is None:
        return None
    lengths = np.einsum("ko,ko->o", best.matrix, best.matrix)
    moments = strategy.T @ lengths
    bias = _mended_bias(best.matrix @ strategy - root, float(prior @ moments), epsilon)
    # Ratios above e^ε by the share v are mended by ignoring a share ``v / (1 - e^-ε)`` of all reports.
    room = -np.expm1(-epsilon)
    ratios = strategy.max(axis=1) / strategy.min(axis=1) * np.exp(-epsilon)
    missed = max(float(ratios.max()) - 1, 0.0) + 2 * float(np.abs(strategy.sum(axis=0) - 1).max())
    # A ratio and a sum are known to a few units of rounding only; less is no violation.
    hidden = 4 * EPS * (len(strategy) + 2)
    excess = max(missed / room if missed > hidden else 0.0, bias if bias > 2 * hidden else 0.0)
    mending = 2 * (missed + hidden) / room + bias
    return Evaluation(moments, user_variances(root, strategy, best.matrix), excess, mending, best)


def _mended_bias(missed: Array, moment: float, epsilon: float) -> float:
    """Return by what share second moments rise where a reconstruction is to miss nothing, given what it misses.

    What it misses is answered from a share s of all reports by randomised response, whose reconstruction Q⁻¹ has no
    singular value above ``(n + c) / c``: moments are ``M / (1 - s) + M' / s``, at best ``(√M + √M')²``.
    """
    excess = patterns.gain(epsilon)
    other = float(np.linalg.norm(missed)) * (missed.shape[1] + excess) / excess
    return float(np.square(1 + other / np.sqrt(moment)) - 1) if moment > 0 else np.inf


def user_variances(root: Array, strategy: Array, reconstruction: Array) -> Array:
    """Return ``T_u = Σ_o Q_ou ‖V_o - W_u‖²``: as it stands where it is small, for there its parts would cancel."""
    lengths, squares = (np.einsum("ku,ku->u", each, each) for each in (reconstruction, root))
    crossed = np.einsum("ku,ku->u", reconstruction @ strategy, root)
    moments = lengths @ strategy
    variances = moments - 2 * crossed + squares * strategy.sum(axis=0)
    for user in np.flatnonzero(~(variances > CANCELLED * (moments + squares))):
        spread = reconstruction - root[:, user, None]
        variances[user] = np.einsum("ko,ko->o", spread, spread) @ strategy[:, user]
    return np.asarray(variances)


def best_reconstruction(root: Array, strategy: Array, prior: Array) -> Reconstruction | None:
    """Return V of least expected variance under a prior with ``V Q = R``; None if Q cannot answer R.

    ``V = R M⁺ D^(-1/2)`` with ``D = diag(Q π)`` and ``M = D^(-1/2) Q`` (the paper's, for any prior). Directions that M
    hardly sees are left out where R does not need them. A backward error E of M moves ``‖R M⁺‖²`` by at most
    ``2 ‖E‖_F ‖M⁺ M⁺' R'R M⁺‖_F``: small singular values do no harm where R is small as well.
    """
    scale = np.sqrt(strategy @ prior)
    scale = np.where(scale > 0, scale, np.sqrt(strategy.mean(axis=1)))
    orthonormal, triangle = scipy.linalg.qr(strategy / scale[:, None], mode="economic", check_finite=False)
    left, sizes, right = linalg.svd(triangle)
    seen = root @ right.T
    kept = sizes > 8 * max(strategy.shape) * EPS * sizes[0]
    if np.linalg.norm(seen[:, ~kept]) > FEASIBLE * np.linalg.norm(root):
        return None
    solved = seen[:, kept] / sizes[kept]
    moved = (solved.T @ solved) / sizes[kept][:, None]
    backward = 4 * len(sizes) * EPS * sizes[0]
    return Reconstruction(
        np.asarray(solved @ left[:, kept].T @ orthonormal.T / scale),
        float(2 * backward * np.linalg.norm(moved) / np.linalg.norm(solved) ** 2),
        float(backward / sizes[kept][-1]),
    )


def trace_bound(root: Array, epsilon: float) -> float:
    """Return ``‖W 1‖² / n + ‖W Π‖_*² / τ``, below the L of every ε-LDP strategy, Π the projector off the ones.

    ``τ = max_k k (n-k) c² / (n + k c)²`` bounds ``tr Π G Π``. The paper's own bound is ``‖W‖_*² / e^ε``.
    """
    size, excess = root.shape[1], patterns.gain(epsilon)
    means = root.mean(axis=1)
    nuclear, rounding = linalg.trace_norm(root - means[:, None])
    count = np.arange(1, size)
    trace = float((count * (size - count) * (excess / (size + count * excess)) ** 2).max())
    return float(size * means @ means + max(nuclear - rounding, 0.0) ** 2 / trace) * (1 - 8 * size * EPS)


def excess(matrix: Array, costs: Array, share: Array, epsilon: float, relaxation: Relaxation | None) -> float:
    """Return δ ≥ 0 with ``‖Z'p_S‖² ≤ (y'p_S + δ)(n π'p_S)`` for all S; infinite where it cannot be told."""
    size = len(costs)
    mixed = np.outer(costs, share)
    form = matrix @ matrix.T - (mixed + mixed.T) / 2
    counts = patterns.gain(epsilon) * np.arange(size + 1) + size
    # v'share is n + c Σ_{u in S} share_u: at least n, and n + c |S| where the prior is uniform.
    partner = counts if np.allclose(share, 1, rtol=1e-12, atol=0) else np.full(size + 1, float(size))
    if relaxation is not None:
        return relaxation.excess(form, epsilon, counts * partner)
    if size > patterns.EXACT:
        return np.inf
    worst, allowance = patterns.worst_by_size(form, epsilon)
    return float(np.maximum((worst + allowance) / (counts * partner), 0.0)[1:-1].max())


def normalise_rows(strategy: Array) -> tuple[Array, Array]:
    """Return the rows of a strategy with sum 1, and their sums; rows of zeros are left out."""
    sums = strategy.sum(axis=1)
    with np.errstate(invalid="ignore"):  # what is not finite proves nothing
        return strategy[sums > 0] / sums[sums > 0, None], sums[sums > 0]


def repair(strategy: Array, epsilon: float) -> Array:
    """Return a strategy close by that is ε-LDP: small entries raised to e^-ε of their row's largest, columns of sum 1.

    What the columns' sums then lack goes to one further output, together with the share of all reports that keeps its
    own ratio below e^ε.
    """
    kept = np.maximum(strategy[np.any(strategy > 0, axis=1)], 0.0)
    kept = np.maximum(kept, kept.max(axis=1, keepdims=True) * np.exp(-epsilon) * (1 + 4 * EPS))
    totals = kept.sum(axis=0)
    kept, missing = kept / totals.max(), 1 - totals / totals.max()
    largest = float(missing.max())
    if largest <= 4 * EPS * len(kept):
        return np.asarray(kept)
    share = largest / (patterns.gain(epsilon) + largest) * (1 + 1e-12)
    # Not as 1 less the rest: both parts may be tiny, and cancellation would spoil the ratio between them.
    return np.vstack([(1 - share) * kept, share + (1 - share) * missing])


def as_epsilon(epsilon: float) -> float:
    """Return ε from 1e-6 to 100."""
    given = validate.positive_number(epsilon=epsilon)
    if not SMALLEST_EPSILON <= given <= LARGEST_EPSILON:
        raise InvalidInputError(
            f"epsilon must be from {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}, got {given:g}"
        )
    return given


def as_prior(prior: npt.ArrayLike | None, size: int) -> Array:
    """Return a probability over the user types, uniform by default."""
    if prior is None:
        return validate.read_only(np.full(size, 1 / size))
    given = validate.finite(1, prior=prior)
    if given.shape != (size,) or np.any(given < 0) or abs(given.sum() - 1) > FEASIBLE:
        raise InvalidInputError(
            f"prior must hold {size} numbers, none negative, of sum 1, got {len(given)} of sum {given.sum():g}"
        )
    return validate.read_only(given / given.sum())


def centred(root: Array) -> Array:
    """Return ``R Π``, each query less its mean: the total is known, so no user's variance changes.

    A workload of totals alone is left as it is, since nothing of it would remain.
    """
    centred = root - root.mean(axis=1, keepdims=True)
    return centred if np.linalg.norm(centred) > 8 * root.size * EPS * np.linalg.norm(root) else root


def root_of(workload: Workload) -> Array:
    """Return R (k, n) with ``R'R = W'W``, the workload itself where it has no more queries than user types."""
    queries, size = workload.shape
    if queries <= size:
        return np.array(workload.dense())
    if not workload.is_sparse:
        return np.asarray(scipy.linalg.qr(workload.dense(), mode="r", check_finite=False)[0][:size])
    values, vectors = np.linalg.eigh(workload.gram())
    kept = values > 8 * size * EPS * values[-1]
    return np.asarray(np.sqrt(values[kept])[:, None] * vectors[:, kept].T)
