"""The common mechanism: the most informative mechanism that is answerable from each of several mechanisms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.certificate import Certificate, with_reasons
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.immutable import freeze, set_parts
from dualmech.linalg import EPS
from dualmech.mechanisms.decomposition import Meeting, decision_rows, given_rows
from dualmech.mechanisms.frames import Frame, frame_of
from dualmech.mechanisms.gaussian import TOLERANCE, LinearGaussianMechanism
from dualmech.mechanisms.noise import as_matrix
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.problems.base import Problem
from dualmech.validate import Array
from dualmech.verified import spectral_norm, sum_rounding
from dualmech.workloads.base import Workload

CRITERIA = ("trace", "volume")

IMPROVEMENT_TOL = 1e-3
"""Largest improvement of a maximal common mechanism, in units of the mean variance."""

SHIFTS = np.geomspace(1e-14, 1.0, 57)
"""Shifts τ of `loewner_improvement`, in units of the mean variance: the least of their bounds is returned."""

MAX_RAISES = 10
"""Maximum number of increases of a covariance; each is twice the last, since rounding may undo a part."""


@dataclass(frozen=True, slots=True)
class Maximality:
    """Whether a common mechanism is maximal; true or false in a condition.

    Attributes
    ----------
    improvement : float
        An upper bound, in units of the mean variance ``tr Σ / r``, on the decrease in variance of any query f B, f of
        norm 1, under any common mechanism from which this one is answerable. Infinite if a query in the intersection
        of the row spaces is not answered.
    maximal : bool
        Whether the improvement is at most the tolerance.
    """

    improvement: float
    maximal: bool

    def __bool__(self) -> bool:
        return self.maximal


def dual_bound(bounds: Array, weights: Array, roundings: Array) -> tuple[float, float]:
    """Return ``Σ_i tr(P_i Y_i)`` of the repaired weights, and its relative rounding-error bound.

    `roundings` (p,) are error bounds on the P_i, relative to their norms.

    Proof that it bounds the optimum: ``tr Σ = Σ_i tr(Σ Y_i) ≥ Σ_i tr(P_i Y_i)`` where ``Σ_i Y_i = I`` and
    ``Y_i ⪰ 0``, ``Σ ⪰ P_i``; if ``Σ_i Y_i ⪯ ν I``, then ``ν tr Σ ≥ Σ_i tr(P_i Y_i)``, since Σ ⪰ 0.
    """
    size = weights.shape[1]
    if not np.all(np.isfinite(weights)) or not np.any(weights):
        return 0.0, 0.0
    weights = weights / np.abs(weights).max()
    shifts = [max(-linalg.extreme_eigenvalues(weight)[0], 0.0) for weight in weights]
    error = len(weights) * EPS * float(np.linalg.norm(np.abs(weights).sum(axis=0)))
    largest = linalg.extreme_eigenvalues(weights.sum(axis=0), error)[1] + sum(shifts)
    value = float(np.einsum("ikl,ilk->", bounds, weights))
    value += sum(shift * float(np.trace(bound)) for shift, bound in zip(shifts, bounds, strict=True))
    norms = np.linalg.norm(bounds, axis=(1, 2)) * np.linalg.norm(weights, axis=(1, 2))
    roundings = np.where(norms > 0, roundings, 0.0)  # they may be infinite
    rounding = float((size * EPS + roundings) @ norms) / value if value > 0 else 0.0
    return value / largest, rounding


def volume_bound(bounds: Array, weights: Array, roundings: Array) -> tuple[float, float]:
    """Return a lower bound on log det Σ for every ``Σ ⪰ P_i``, from the repaired weights, and its rounding error.

    ``log det Σ ≥ log det Σ_i Y_i − r log(Σ_i tr(P_i⁻¹ Y_i) / r)``, the same at every scale of the weights; minus
    infinity if their sum is singular. `roundings` as for `dual_bound`.
    Proof: let ``X = Σ⁻¹ ⪯ P_i⁻¹`` and ``Y = Σ_i Y_i``. The eigenvalues of ``X Y`` are positive, so by the inequality of
    means ``log det(X Y) ≤ r log(tr(X Y) / r)``, and ``tr(X Y) = Σ_i tr(X Y_i) ≤ Σ_i tr(P_i⁻¹ Y_i)``.
    """
    size, units = bounds.shape[1], _units(bounds)
    if not np.all(np.isfinite(weights)) or not np.any(weights):
        return -np.inf, 0.0
    # Weights have the units of covariances; each coordinate of both is brought to its own.
    weights = weights / np.abs(weights).max() / units / units[:, None]
    weights = weights / np.abs(weights).max()
    errors = EPS * np.linalg.norm(weights, axis=(1, 2))
    least_eigenvalues = [linalg.extreme_eigenvalues(*pair)[0] for pair in zip(weights, errors, strict=True)]
    repaired = weights + np.maximum(-np.reshape(least_eigenvalues, (-1, 1, 1)), 0.0) * np.eye(size)
    total = repaired.sum(axis=0)
    error = len(bounds) * size * EPS * max(1.0, float(np.linalg.norm(weights) / np.linalg.norm(total)))
    log_total = log_det(total, error)
    if log_total is None:
        return -np.inf, 0.0
    trace = trace_error = 0.0
    for bound, weight, rounding in zip(bounds / units / units[:, None], repaired, roundings, strict=True):
        root_and_norm = _inverse_root(bound, rounding)
        if root_and_norm is None:
            return -np.inf, 0.0
        root, inverse_norm = root_and_norm
        inverse, magnitudes = root @ root.T, np.abs(root) @ np.abs(root).T
        trace += inverse_norm * float(np.vdot(inverse, weight))
        trace_error += (
            4 * inverse_norm * sum_rounding(size + len(bounds) + 1) * float(np.vdot(magnitudes, np.abs(weight)))
        )
    if not 0 < trace < np.inf:
        return -np.inf, 0.0
    value = log_total[0] + 2 * float(np.log(units).sum()) - size * float(np.log(trace / size))
    rounding = log_total[1] + size * (trace_error / trace + 8 * EPS * (1 + float(np.abs(np.log(units)).max())))
    return value, rounding


def log_det(covariance: Array, rounding: float = 0.0) -> tuple[float, float] | None:
    """Return log det of a symmetric matrix and its error bound, or None if positive definiteness is not verified.

    `rounding` is the error bound on eigenvalues, relative to the norm.
    With T upper triangular and ``C = T' Σ T`` close to I, ``log det Σ = log det C − 2 Σ_i log T_ii``; log det C is at
    least ``−r log ‖C⁻¹‖`` and, by the inequality of means, at most ``r log(tr C / r)``.
    """
    root_and_norm = _inverse_root(covariance, rounding)
    if root_and_norm is None:
        return None
    size, (root, inverse_norm) = len(covariance), root_and_norm
    magnitudes = np.abs(root)
    error = 3 * sum_rounding(size + 1) * float(np.vdot(magnitudes, np.abs(covariance) @ magnitudes))
    mean = (float(np.vdot(root, covariance @ root)) + error) / size
    logs = np.log(np.abs(np.diagonal(root)))
    distance = max(float(np.log(inverse_norm)), float(np.log(mean)), 0.0)
    return -2 * float(logs.sum()), size * (distance + 4 * EPS * (1 + 2 * float(np.abs(logs).max())))


def _inverse_root(covariance: Array, rounding: float) -> tuple[Array, float] | None:
    """Return T and an upper bound on ``‖(T' Σ T)⁻¹‖`` for every Σ within the rounding error, relative to its norm.

    Returns None if positive definiteness is not verified.
    """
    if not np.all(np.isfinite(covariance)) or not np.all(np.diagonal(covariance) > 0):
        return None
    scaled, units = linalg.in_powers_of_two(covariance)
    factor = linalg.cholesky(scaled)
    root_and_norm = None if factor is None else linalg.inverse_root(scaled, factor)
    if root_and_norm is None:
        return None
    root, inverse_norm = root_and_norm
    min_eigenvalue = 1 / inverse_norm - rounding * float(np.linalg.norm(scaled)) * spectral_norm(np.abs(root)) ** 2
    return (units[:, None] * root, (1 + 4 * EPS) / min_eigenvalue) if min_eigenvalue > 0 else None


def loewner_violation(bounds: Array, covariance: Array, roundings: Array) -> tuple[float, float]:
    """Return the least v ≥ 0 with ``P_i ⪯ (1 + v) Σ`` for all i, and its error bound; inf if Σ is not definite.

    If the least eigenvalues of the scaled differences ``Σ - P_i`` exceed their rounding errors, v is exactly 0,
    however ill-conditioned Σ is.
    """
    if not np.all(np.diagonal(covariance) > 0):
        return np.inf, 0.0
    if all(excess <= 0 for excess in _excesses(bounds, covariance, roundings)):
        return 0.0, 0.0
    scaled, units = linalg.in_powers_of_two(covariance)
    factor = linalg.cholesky(scaled)
    root_and_norm = None if factor is None else linalg.inverse_root(scaled, factor)
    if root_and_norm is None:
        return np.inf, 0.0
    root, inverse_norm = root_and_norm
    # With ``C = T' Σ T``, ``T' P_i T ⪯ λ I`` says that ``P_i ⪯ λ ‖C⁻¹‖ Σ``.
    largest, upper_bound, magnitudes = 0.0, 0.0, np.abs(root)
    for bound, rounding in zip(bounds * units * units[:, None], roundings, strict=True):
        congruent = root.T @ bound @ root
        error = 3 * sum_rounding(len(scaled) + 1) * spectral_norm(magnitudes.T @ np.abs(bound) @ magnitudes)
        error += rounding * float(np.linalg.norm(bound)) * spectral_norm(magnitudes) ** 2
        congruent = (congruent + congruent.T) / 2
        largest = max(largest, float(np.linalg.eigvalsh(congruent)[-1]))
        upper_bound = max(upper_bound, linalg.extreme_eigenvalues(congruent, error)[1])
    return max(largest - 1, 0.0), max(upper_bound * inverse_norm - largest, 0.0)


def raise_above_bounds(bounds: Array, covariance: Array, roundings: Array) -> Array:
    """Return the covariance plus a small diagonal matrix, so that ``Σ ⪰ P_i`` is verified for all i.

    A covariance whose excess overflows is returned unchanged.
    """
    units = _units(bounds)
    share = 1.0
    for _ in range(MAX_RAISES):
        worst = max(_excesses(bounds, covariance, roundings))
        if not 0 < worst < np.inf:
            return covariance
        covariance = covariance + share * max(worst, EPS) * np.diag(units**2)  # a smaller term is lost to rounding
        share *= 2
    return covariance


def loewner_improvement(bounds: Array, covariance: Array) -> float:
    """Return an upper bound on `Maximality.improvement`, in units of the mean variance.

    A better common mechanism has the covariance Σ - D with ``0 ⪯ D ⪯ S_i = Σ - P_i``. For any τ > 0, ``(S_i + τI)⁻¹ ⪯
    (D + τI)⁻¹``; the sum over all p mechanisms gives ``D ⪯ p (Σ_i (S_i + τI)⁻¹)⁻¹ - τI``, whose largest eigenvalue is
    returned, the least over several τ. With exact kernels of the S_i that span the space it tends to 0 with τ, which is
    the criterion of Stott (2017), without a decision on ranks.
    """
    size, count = len(covariance), len(bounds)
    mean = float(np.trace(covariance)) / size
    spectra = []
    for bound in bounds:
        difference = (covariance - bound) / mean
        values, vectors = np.linalg.eigh(difference)
        error = 2 * EPS * float(np.linalg.norm(covariance) + np.linalg.norm(bound)) / mean
        spectra.append((np.maximum(values, 0.0) + linalg.eigen_residual(difference, values, vectors) + error, vectors))
    best = np.inf
    for shift in SHIFTS:
        total = sum((vectors / (values + shift)) @ vectors.T for values, vectors in spectra)
        # Errors: computed vectors are orthonormal, and terms added, within a few units of rounding each.
        min_eigenvalue = linalg.extreme_eigenvalues(total, 4 * size * EPS * float(np.linalg.norm(total)))[0]
        if min_eigenvalue > 0:
            best = min(best, float(count / min_eigenvalue - shift))
    return max(best, 0.0)


def _units(bounds: Array) -> Array:
    """Return powers of 2 close to the standard deviation of each coordinate under the noisiest of the mechanisms."""
    largest = np.diagonal(bounds, axis1=1, axis2=2).max(axis=0)
    return np.ldexp(1.0, np.frexp(largest)[1] // 2)


def _excesses(bounds: Array, covariance: Array, roundings: Array) -> Iterator[float]:
    """Yield upper bounds on the largest eigenvalue of each ``P_i - Σ``, each coordinate in its own unit."""
    units = _units(bounds)
    scale = units * units[:, None]
    noise = covariance / scale
    for bound, rounding in zip(bounds / scale, roundings, strict=True):
        error = float((EPS + rounding) * np.linalg.norm(bound) + EPS * np.linalg.norm(noise))
        yield linalg.extreme_eigenvalues(bound - noise, error)[1]


TRIVIAL = "the intersection of the row spaces is 0: the common mechanism is trivial, without queries"

MAX_QUERIES = 4096
"""Maximum rank r of the intersection, for the dense (r, r) matrices."""


@dataclass(frozen=True, slots=True, eq=False)
class CommonDual:
    """Weights of a lower bound: one symmetric matrix ``Y_i ⪰ 0`` for each mechanism, (p, r, r).

    Any matrices are accepted: `certify` raises negative eigenvalues to 0. For the trace, ``Σ_i Y_i = I``, as for a
    quantum measurement of p outcomes; `certify` divides by the largest eigenvalue of the sum. For the volume the
    weights have any scale, and at the optimum their sum is a multiple of Σ.
    """

    weights: Array


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CommonMechanism(Problem[CommonDual, Any]):
    """The maximal common mechanism of two or more mechanisms, the most informative that each of them answers.

    With B the rows of `basis`, which span the intersection of all row spaces, and ``P_i`` the covariance with which
    mechanism i answers B x, minimise ``tr Σ`` subject to

    - ``Σ ⪰ P_i`` for every mechanism i,

    which says that ``B x + N(0, Σ)`` is answerable from each mechanism. The dual is to maximise
    ``Σ_i tr(P_i Y_i)`` over ``Y_i ⪰ 0, Σ_i Y_i = I``; strong duality holds. There are many
    maximal common mechanisms: the trace selects one, which depends on the basis. Criterion ``volume`` minimises
    ``(det Σ)^(1/r)`` in place of the trace, with the same optimum on every basis; its dual is to maximise
    ``(det Σ_i Y_i)^(1/r)`` over ``Y_i ⪰ 0, Σ_i tr(P_i⁻¹ Y_i) = r``.
    Raises `InvalidInputError` or `InputTypeError` for fewer than two mechanisms, mechanisms on other cells or
    with other neighbours, exact answers (their cost is not finite); a basis of another span; a decision query
    outside the intersection, by its name; basis and decisions; an unknown criterion, and for the volume decisions, and
    noise that is singular in double precision.

    Parameters
    ----------
    mechanisms : sequence of LinearGaussianMechanism
        Two or more, on the same cells and with the same neighbours.
    basis : (r, d) array, optional
        Independent rows that span the intersection; by default orthonormal ones.
    decisions : Workload, optional
        In place of a basis: queries in the intersection, whose total variance is minimised. Directions outside their
        span have the weight `UNASKED`, relative to the mean weight inside, so that the mechanism is maximal.
    criterion : {"trace", "volume"}
        The objective. The volume is on the basis, or on the coordinates of every block for tables.

    Notes
    -----
    Equation 1, algorithm 1 and theorems 5.2 to 5.4 of Xiao, Wang, Zhang and Kifer, "Answering private linear
    queries adaptively using the common mechanism", PVLDB 16(8), 2023 (CMN). The dual is the minimum-error
    discrimination of quantum states (Helstrom 1969 for two; Yuen, Kennedy and Lax 1975). A direction
    belongs to the intersection if the sine of its angle to each row space is at most 1e-9; `angles` has these sines.

    If the intersection is 0, then r is 0, the common mechanism has no queries, and `trivial` is true.

    Examples
    --------
    >>> import dualmech as dm
    >>> rows = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
    >>> columns = dm.LinearGaussianMechanism([[1, 0, 1, 0], [0, 1, 0, 1]], 2 * np.eye(2))
    >>> problem = dm.CommonMechanism([rows, columns])
    >>> problem.basis, problem.bounds.ravel().round(9)
    (array([[0.5, 0.5, 0.5, 0.5]]), array([0.5, 1. ]))
    >>> problem.certify([[1]], [[[0]], [[1]]]).gap < 1e-12
    True
    """

    mechanisms: tuple[GaussianPrivacy, ...]
    criterion: str
    frame: Frame = field(repr=False)
    meetings: tuple[Meeting, ...] = field(repr=False)
    basis: Array
    bounds: Array = field(repr=False)
    angles: Array = field(repr=False)
    roundings: Array = field(repr=False)

    dual_type: ClassVar[Callable[..., CommonDual]] = CommonDual
    arguments: ClassVar[tuple[str, ...]] = ("mechanisms", "basis", "criterion")
    optional_arguments: ClassVar[tuple[str, ...]] = ("basis", "criterion")

    def __init__(
        self,
        mechanisms: Sequence[GaussianPrivacy],
        basis: npt.ArrayLike | None = None,
        decisions: Workload | None = None,
        criterion: str = "trace",
    ) -> None:
        checked, frame = _in_frame(mechanisms)
        if validate.choice(CRITERIA, criterion=criterion) == "volume" and decisions is not None:
            raise InvalidInputError(
                "decisions belong to criterion 'trace'; the least volume is the same on every basis"
            )
        if basis is not None and decisions is not None:
            raise InvalidInputError("give either basis or decisions, not both")
        if (basis is not None or decisions is not None) and frame.of_tables:
            raise InvalidInputError("basis and decisions are of mechanisms on cells: take dense() of those of tables")
        transform = partial(given_rows, basis) if basis is not None else _unchanged
        transform = partial(decision_rows, decisions) if decisions is not None else transform
        blocks = zip(*(frame.parts(mechanism) for mechanism in checked), strict=True)
        meetings = tuple(Meeting.of([part.standard_form.queries for part in parts], transform) for parts in blocks)
        if basis is None and decisions is None:
            meetings = tuple(meeting.scaled(frame.unit(meeting.bounds)) for meeting in meetings)
        size = sum(len(meeting.rows) for meeting in meetings)
        if size > MAX_QUERIES:
            raise InvalidInputError(
                f"mechanisms have {size} queries in common, too many for one matrix (limit {MAX_QUERIES}); "
                f"BlockMechanism.common_with does without where each block has one coordinate"
            )
        set_parts(self, mechanisms=checked, criterion=criterion, frame=frame, meetings=meetings)
        arrays = {
            "basis": scipy.linalg.block_diag(*(meeting.rows for meeting in meetings)),
            "bounds": np.array(
                [
                    scipy.linalg.block_diag(*bounds)
                    for bounds in zip(*(meeting.bounds for meeting in meetings), strict=True)
                ]
            ),
            "angles": np.sort(np.concatenate([meeting.angles for meeting in meetings])),
            "roundings": np.max([meeting.roundings for meeting in meetings], axis=0),
        }
        for name, value in arrays.items():
            object.__setattr__(self, name, freeze(value))
        if criterion == "volume":
            self._refuse_singular()

    @property
    def objective_name(self) -> str:
        trace = self.criterion == "trace"
        return "trace of the common covariance" if trace else "geometric mean variance of the common noise"

    def argument_values(self) -> dict[str, object]:
        """Return the arguments of the constructor; the basis of a problem on tables is computed, not an argument."""
        arguments = Problem.argument_values(self)
        return arguments | {"basis": None} if self.frame.of_tables else arguments

    def in_numbers(self) -> dict[str, object]:
        """Return the problem's data for a proof file: the covariances ``P_i`` on the basis.

        Raises `InvalidInputError` if the intersection of the row spaces is 0.
        """
        if self.trivial:
            raise InvalidInputError(f"a proof needs a common query; {TRIVIAL}")
        kind = "common volume" if self.criterion == "volume" else "common"
        return {"kind": kind, "mechanisms": [{"covariance": bound} for bound in self.bounds]}

    @property
    def trivial(self) -> bool:
        """Whether the intersection of the row spaces is 0: the common mechanism then has no queries."""
        return not len(self.basis)

    @with_reasons
    def certify(self, primal: npt.ArrayLike, dual: CommonDual | npt.ArrayLike) -> Certificate:
        """Certify a covariance on B x (r, r) with dual weights, from any source.

        The violation is the least v with ``P_i ⪯ (1 + v) Σ`` for all i. If r is 0, all numbers are 0.
        """
        covariance, weights = self._covariance(primal), self._weights(dual)
        if self.trivial:
            return Certificate(0.0, 0.0, 0.0, 0.0, 0.0)
        lower_bound, rounding = self._lower_bound(weights)
        if covariance is None:
            return Certificate.of(np.inf, lower_bound, np.inf, rounding)
        pairs = zip(self._blocks(self.bounds), self._blocks(covariance), strict=True)
        violations = np.array([loewner_violation(*pair, self.roundings) for pair in pairs])
        violation, violation_error = violations.max(axis=0).tolist()
        objective, objective_error = self._objective(covariance)
        return Certificate.of(objective, lower_bound, violation, rounding + violation_error + objective_error)

    def _objective(self, covariance: Array) -> tuple[float, float]:
        """Return the trace, or the r-th root of the determinant, and its relative error bound."""
        if self.criterion == "trace":
            return float(np.trace(covariance)), 0.0
        logs = [log_det(block) for block in self._blocks(covariance)]
        return self._volume([(np.inf, 0.0) if pair is None else pair for pair in logs])

    def _lower_bound(self, weights: Array) -> tuple[float, float]:
        """Return the lower bound of dual weights, by blocks, and its relative error bound."""
        bound_of = dual_bound if self.criterion == "trace" else volume_bound
        pairs = zip(self._blocks(self.bounds), self._blocks(weights), strict=True)
        bounds = [bound_of(*pair, self.roundings) for pair in pairs]
        if self.criterion == "volume":
            return self._volume(bounds)
        lower_bound = sum(bound for bound, _ in bounds)
        return lower_bound, sum(bound * value for bound, value in bounds) / lower_bound if lower_bound > 0 else 0.0

    def _volume(self, logs: list[tuple[float, float]]) -> tuple[float, float]:
        """Return the r-th root of a determinant and its relative error bound, from log det of each block."""
        value, rounding = (sum(part) / len(self.basis) for part in zip(*logs, strict=True))
        return float(np.exp(value)), float(np.expm1(rounding)) + EPS * (1 + abs(value)) if np.isfinite(value) else 0.0

    def _refuse_singular(self) -> None:
        for index, (bound, rounding) in enumerate(zip(self.bounds, self.roundings, strict=True)):
            if any(_inverse_root(block, rounding) is None for block in self._blocks(bound)):
                raise InvalidInputError(
                    f"mechanisms[{index}] answers a common query with a variance below rounding error; "
                    f"take criterion 'trace'"
                )

    def feasible(self, primal: npt.ArrayLike) -> Array:
        """Return the covariance plus a small diagonal matrix, so that ``Σ ⪰ P_i`` is verified for all i."""
        covariance = self._covariance(primal)
        if covariance is None or self.trivial:
            return np.asarray(primal, dtype=np.float64)
        pairs = zip(self._blocks(self.bounds), self._blocks(covariance), strict=True)
        return scipy.linalg.block_diag(*(raise_above_bounds(*pair, self.roundings) for pair in pairs))

    def as_primal(self, answer: object) -> Array:
        """Return a covariance on the common basis, or the covariance of a mechanism with exactly these queries.

        Raises `InvalidInputError` or `InputTypeError` for a mechanism with other queries, or a matrix that is not
        symmetric.
        """
        point = self.covariance_from(answer) if isinstance(answer, GaussianPrivacy) else answer
        if point is None:
            raise InvalidInputError(f"the mechanism must answer all {len(self.basis)} common queries of the mechanisms")
        return np.zeros((0, 0)) if validate.is_empty(point) else validate.symmetric(covariance=point)

    def mechanism(self, primal: npt.ArrayLike) -> GaussianPrivacy:
        """Return the mechanism ``B x + N(0, Σ)``."""
        covariance = np.zeros((0, 0)) if self.trivial else validate.symmetric(covariance=primal)
        blocks, empty = iter(self._blocks(covariance)), np.zeros((0, 0))
        parts = [
            LinearGaussianMechanism(meeting.rows, next(blocks) if len(meeting.rows) else empty)
            for meeting in self.meetings
        ]
        return self.frame.joined(parts)

    @property
    def slices(self) -> list[slice]:
        """The diagonal blocks of matrices (r, r); one block for mechanisms on cells.

        All ``P_i`` are 0 outside these blocks, and so is the optimal Σ. Entries outside are ignored: covariances and
        dual weights stay feasible without them.
        """
        ends = np.cumsum([len(meeting.rows) for meeting in self.meetings]).tolist()
        pairs = zip([0, *ends[:-1]], ends, strict=True)
        return [slice(start, end) for start, end in pairs if end > start]

    def _blocks(self, matrices: Array) -> list[Array]:
        return [matrices[..., block, block] for block in self.slices]

    def maximality(self, primal: npt.ArrayLike | GaussianPrivacy, tol: float = IMPROVEMENT_TOL) -> Maximality:
        """Return whether a common mechanism from any source is maximal, with a bound on its improvement.

        Raises `InvalidInputError` or `InputTypeError` for a covariance or mechanism that is not common to all,
        with the mechanism of the largest violation.

        - `primal` (r, r): a covariance on B x with ``Σ ⪰ P_i``, or any mechanism that is answerable from all of them;
        - `tol`: the largest `Maximality.improvement` of a maximal mechanism.
        """
        tol = validate.positive_number(tol=tol)
        covariance = self.covariance_from(primal) if isinstance(primal, GaussianPrivacy) else self._covariance(primal)
        if self.trivial:
            return Maximality(0.0, True)
        if covariance is None:
            return Maximality(np.inf, False)
        parts = [*zip(self._blocks(self.bounds), self._blocks(covariance), strict=True)]
        violation = [
            max(loewner_violation(bounds[[index]], part, self.roundings[[index]])[0] for bounds, part in parts)
            for index in range(len(self.bounds))
        ]
        if max(violation) > TOLERANCE:
            raise InvalidInputError(
                f"no common mechanism: mechanisms[{int(np.argmax(violation))}] cannot answer it, "
                f"its cost exceeds the cost of that mechanism by a factor of up to 1 + {max(violation):.3g}"
            )
        improvement = max(loewner_improvement(bounds, part) for bounds, part in parts)
        return Maximality(improvement, improvement <= validate.positive_number(tol=tol))

    def covariance_from(self, mechanism: GaussianPrivacy) -> Array | None:
        """Return the covariance of a mechanism's answers to B x, or None if it does not answer all of B x.

        Raises `InvalidInputError` or `InputTypeError` for a mechanism with a query outside the intersection, or on
        other cells or neighbours.
        """
        parts = self.frame.parts(as_matrix(mechanism))
        covariances = [
            meeting.covariance_of(part.standard_form.queries)
            for meeting, part in zip(self.meetings, parts, strict=True)
        ]
        if any(covariance is None for covariance in covariances):
            return None
        return np.asarray(scipy.linalg.block_diag(*covariances))

    def prices(self, dual: CommonDual | npt.ArrayLike) -> Array:
        """Return each mechanism's normalised shadow price (p,).

        It is ``tr(P_i Y_i)`` for the trace, ``tr(P_i⁻¹ Y_i)`` for the volume, divided by the sum over i.
        """
        weights = self._weights(dual)
        factors = self.bounds if self.criterion == "trace" else np.linalg.inv(self.bounds)
        shares = np.einsum("ikl,ilk->i", factors, weights)
        return np.asarray(shares / shares.sum()) if np.any(shares) else np.zeros(len(self.mechanisms))

    def binding(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the indices of neighbours with a cost of at least ``1 - slack`` times the largest cost."""
        profile = self.mechanism(primal).profile
        min_share = 1 - validate.nonnegative_number(slack=slack)
        return np.flatnonzero((profile >= min_share * profile.max()) & np.isfinite(profile.max()))

    def _covariance(self, primal: npt.ArrayLike) -> Array | None:
        """Return the symmetrised covariance, or None if it is not finite."""
        size = len(self.basis)
        if size == 0 and np.size(primal) == 0:
            return np.zeros((0, 0))
        matrix = validate.numeric(2, covariance=primal)
        if matrix.shape != (size, size):
            raise InvalidInputError(f"covariance must have shape ({size}, {size}), as the basis, got {matrix.shape}")
        return (matrix + matrix.T) / 2 if np.all(np.isfinite(matrix)) else None

    def _weights(self, dual: CommonDual | npt.ArrayLike) -> Array:
        arrays = dual.weights if isinstance(dual, CommonDual) else dual
        expected = self.bounds.shape
        if not self.bounds.size and np.size(arrays) == 0:
            return np.zeros(expected)
        weights = validate.numeric(3, **{"dual weights": arrays})
        if weights.shape != expected:
            raise InvalidInputError(f"dual weights must have shape {expected}, got {weights.shape}")
        return (weights + np.swapaxes(weights, 1, 2)) / 2


def _in_frame(mechanisms: Sequence[GaussianPrivacy]) -> tuple[tuple[Any, ...], Frame]:
    if isinstance(mechanisms, GaussianPrivacy) or not isinstance(mechanisms, Sequence):
        raise InputTypeError(
            f"mechanisms must be a sequence of two or more mechanisms, got {type(mechanisms).__name__}"
        )
    matrices = tuple(map(as_matrix, mechanisms))
    if len(matrices) < 2:
        raise InvalidInputError(f"mechanisms must be two or more, got {len(matrices)}")
    frame = frame_of(matrices)
    for index, mechanism in enumerate(matrices):
        if getattr(mechanism, "releases_exactly", False):
            raise InvalidInputError(
                f"mechanisms[{index}] releases some queries exactly, its cost is not finite; give each some noise"
            )
    return matrices, frame


def _unchanged(rows: Array) -> Array:
    return rows
