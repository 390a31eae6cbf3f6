"""The common mechanism: the most that can be learned alike from each of several mechanisms."""

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

IMPROVABLE = 1e-3
"""Improvement, in units of the mean variance, up to which a common mechanism counts as maximal."""

SHIFTS = np.geomspace(1e-14, 1.0, 57)
"""Shifts τ, in units of the mean variance, among which the best bound on an improvement is looked for."""

MOST_RAISES = 10
"""Times that a covariance is raised: each time by twice as much, since rounding may undo a little of it."""


@dataclass(frozen=True, slots=True)
class Maximality:
    """Whether a common mechanism is maximal; true or false in a condition.

    Attributes
    ----------
    improvement : float
        Proven: no mechanism that is common to all, and from which this one is answerable, lowers the variance of
        any query f B, f of norm 1, by more than this many times the mean variance ``tr Σ / r``. Infinite where some
        query in all row spaces is not answered at all.
    maximal : bool
        Whether that is within the tolerance asked for.
    """

    improvement: float
    maximal: bool

    def __bool__(self) -> bool:
        return self.maximal


def dual_bound(bounds: Array, weights: Array, roundings: Array) -> tuple[float, float]:
    """Return ``Σ_i tr(P_i Y_i)`` of the repaired weights, and its rounding, relative.

    `roundings` (p,) belong to the P_i themselves, relative to their norms.

    Proof that it bounds the optimum: ``tr Σ = Σ_i tr(Σ Y_i) ≥ Σ_i tr(P_i Y_i)`` where ``Σ_i Y_i = I`` and
    ``Y_i ⪰ 0``, ``Σ ⪰ P_i``; where ``Σ_i Y_i ⪯ ν I``, ``ν tr Σ`` is at least as much, since Σ ⪰ 0.
    """
    size = weights.shape[1]
    if not np.all(np.isfinite(weights)) or not np.any(weights):
        return 0.0, 0.0
    weights = weights / np.abs(weights).max()
    shifts = [max(-linalg.extreme_eigenvalues(weight)[0], 0.0) for weight in weights]
    hidden = len(weights) * EPS * float(np.linalg.norm(np.abs(weights).sum(axis=0)))
    largest = linalg.extreme_eigenvalues(weights.sum(axis=0), hidden)[1] + sum(shifts)
    value = float(np.einsum("ikl,ilk->", bounds, weights))
    value += sum(shift * float(np.trace(bound)) for shift, bound in zip(shifts, bounds, strict=True))
    sizes = np.linalg.norm(bounds, axis=(1, 2)) * np.linalg.norm(weights, axis=(1, 2))
    roundings = np.where(sizes > 0, roundings, 0.0)  # they may be infinite
    rounding = float((size * EPS + roundings) @ sizes) / value if value > 0 else 0.0
    return value / largest, rounding


def volume_bound(bounds: Array, weights: Array, roundings: Array) -> tuple[float, float]:
    """Return a lower bound on log det Σ for every ``Σ ⪰ P_i``, from the repaired weights, and its rounding.

    ``log det Σ ≥ log det Σ_i Y_i − r log(Σ_i tr(P_i⁻¹ Y_i) / r)``, the same at every scale of the weights; minus
    infinity where their sum is singular. `roundings` as for `dual_bound`.
    Proof: let ``X = Σ⁻¹ ⪯ P_i⁻¹`` and ``Y = Σ_i Y_i``. The eigenvalues of ``X Y`` are positive, so by the inequality of
    means ``log det(X Y) ≤ r log(tr(X Y) / r)``, and ``tr(X Y) = Σ_i tr(X Y_i) ≤ Σ_i tr(P_i⁻¹ Y_i)``.
    """
    size, units = bounds.shape[1], _units(bounds)
    if not np.all(np.isfinite(weights)) or not np.any(weights):
        return -np.inf, 0.0
    # Weights have the units of covariances; each coordinate of both is brought to its own.
    weights = weights / np.abs(weights).max() / units / units[:, None]
    weights = weights / np.abs(weights).max()
    hidden = EPS * np.linalg.norm(weights, axis=(1, 2))
    least = [linalg.extreme_eigenvalues(*pair)[0] for pair in zip(weights, hidden, strict=True)]
    raised = weights + np.maximum(-np.reshape(least, (-1, 1, 1)), 0.0) * np.eye(size)
    total = raised.sum(axis=0)
    lost = len(bounds) * size * EPS * max(1.0, float(np.linalg.norm(weights) / np.linalg.norm(total)))
    proven = log_det(total, lost)
    if proven is None:
        return -np.inf, 0.0
    trace = off = 0.0
    for bound, weight, rounding in zip(bounds / units / units[:, None], raised, roundings, strict=True):
        inverted = _inverse_root(bound, rounding)
        if inverted is None:
            return -np.inf, 0.0
        root, reach = inverted
        inverse, sizes = root @ root.T, np.abs(root) @ np.abs(root).T
        trace += reach * float(np.vdot(inverse, weight))
        off += 4 * reach * sum_rounding(size + len(bounds) + 1) * float(np.vdot(sizes, np.abs(weight)))
    if not 0 < trace < np.inf:
        return -np.inf, 0.0
    value = proven[0] + 2 * float(np.log(units).sum()) - size * float(np.log(trace / size))
    rounding = proven[1] + size * (off / trace + 8 * EPS * (1 + float(np.abs(np.log(units)).max())))
    return value, rounding


def log_det(covariance: Array, rounding: float = 0.0) -> tuple[float, float] | None:
    """Return log det of a symmetric matrix and its rounding; None where it is not proven positive definite.

    `rounding` is by what eigenvalues may be less, relative to the norm.
    With T upper triangular and ``C = T' Σ T`` close to I, ``log det Σ = log det C − 2 Σ_i log T_ii``; log det C is at
    least ``−r log ‖C⁻¹‖`` and, by the inequality of means, at most ``r log(tr C / r)``.
    """
    proven = _inverse_root(covariance, rounding)
    if proven is None:
        return None
    size, (root, reach) = len(covariance), proven
    sizes = np.abs(root)
    hidden = 3 * sum_rounding(size + 1) * float(np.vdot(sizes, np.abs(covariance) @ sizes))
    mean = (float(np.vdot(root, covariance @ root)) + hidden) / size
    logs = np.log(np.abs(np.diagonal(root)))
    apart = max(float(np.log(reach)), float(np.log(mean)), 0.0)
    return -2 * float(logs.sum()), size * (apart + 4 * EPS * (1 + 2 * float(np.abs(logs).max())))


def _inverse_root(covariance: Array, rounding: float) -> tuple[Array, float] | None:
    """Return T and a bound of ``‖(T' Σ T)⁻¹‖``, for every Σ that is within the rounding, relative to its norm.

    None where Σ is not proven positive definite.
    """
    if not np.all(np.isfinite(covariance)) or not np.all(np.diagonal(covariance) > 0):
        return None
    scaled, units = linalg.in_powers_of_two(covariance)
    factor = linalg.cholesky(scaled)
    proven = None if factor is None else linalg.inverse_root(scaled, factor)
    if proven is None:
        return None
    root, reach = proven
    least = 1 / reach - rounding * float(np.linalg.norm(scaled)) * spectral_norm(np.abs(root)) ** 2
    return (units[:, None] * root, (1 + 4 * EPS) / least) if least > 0 else None


def loewner_violation(bounds: Array, covariance: Array, roundings: Array) -> tuple[float, float]:
    """Return the least v ≥ 0 with ``P_i ⪯ (1 + v) Σ`` for all i, and its rounding; infinite where Σ is not definite.

    It is first looked for in the differences ``Σ - P_i``, brought to comparable units: where their least
    eigenvalues clear rounding, v is exactly 0, however ill-conditioned Σ may be.
    """
    if not np.all(np.diagonal(covariance) > 0):
        return np.inf, 0.0
    if all(excess <= 0 for excess in _excesses(bounds, covariance, roundings)):
        return 0.0, 0.0
    scaled, units = linalg.in_powers_of_two(covariance)
    factor = linalg.cholesky(scaled)
    proven = None if factor is None else linalg.inverse_root(scaled, factor)
    if proven is None:
        return np.inf, 0.0
    root, reach = proven
    # With ``C = T' Σ T``, ``T' P_i T ⪯ λ I`` says that ``P_i ⪯ λ ‖C⁻¹‖ Σ``.
    largest, highest, sizes = 0.0, 0.0, np.abs(root)
    for bound, rounding in zip(bounds * units * units[:, None], roundings, strict=True):
        seen = root.T @ bound @ root
        hidden = 3 * sum_rounding(len(scaled) + 1) * spectral_norm(sizes.T @ np.abs(bound) @ sizes)
        hidden += rounding * float(np.linalg.norm(bound)) * spectral_norm(sizes) ** 2
        seen = (seen + seen.T) / 2
        largest = max(largest, float(np.linalg.eigvalsh(seen)[-1]))
        highest = max(highest, linalg.extreme_eigenvalues(seen, hidden)[1])
    return max(largest - 1, 0.0), max(highest * reach - largest, 0.0)


def raise_above_bounds(bounds: Array, covariance: Array, roundings: Array) -> Array:
    """Return the covariance plus as little, in the units of each coordinate, as puts it above every P_i for certain.

    One whose excess no double holds stays as it is.
    """
    units = _units(bounds)
    share = 1.0
    for _ in range(MOST_RAISES):
        worst = max(_excesses(bounds, covariance, roundings))
        if not 0 < worst < np.inf:
            return covariance
        covariance = covariance + share * max(worst, EPS) * np.diag(units**2)  # less would change nothing
        share *= 2
    return covariance


def loewner_improvement(bounds: Array, covariance: Array) -> float:
    """Bound what a better common mechanism could gain, in units of the mean variance.

    It would have the covariance Σ - D with ``0 ⪯ D ⪯ S_i = Σ - P_i``. For any τ > 0, ``(S_i + τI)⁻¹ ⪯ (D + τI)⁻¹``;
    the sum over all p mechanisms gives ``D ⪯ p (Σ_i (S_i + τI)⁻¹)⁻¹ - τI``, whose largest eigenvalue is returned,
    the least over several τ. With exact kernels of the S_i that span the space it tends to 0 with τ, which is the
    criterion of Stott (2017); and it needs no decision on ranks.
    """
    size, count = len(covariance), len(bounds)
    mean = float(np.trace(covariance)) / size
    spectra = []
    for bound in bounds:
        left = (covariance - bound) / mean
        values, vectors = np.linalg.eigh(left)
        hidden = 2 * EPS * float(np.linalg.norm(covariance) + np.linalg.norm(bound)) / mean
        spectra.append((np.maximum(values, 0.0) + linalg.eigen_residual(left, values, vectors) + hidden, vectors))
    best = np.inf
    for shift in SHIFTS:
        total = sum((vectors / (values + shift)) @ vectors.T for values, vectors in spectra)
        # Computed vectors are orthonormal, and the sum is formed, but for a few roundings of a term each.
        least = linalg.extreme_eigenvalues(total, 4 * size * EPS * float(np.linalg.norm(total)))[0]
        if least > 0:
            best = min(best, float(count / least - shift))
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
        hidden = float((EPS + rounding) * np.linalg.norm(bound) + EPS * np.linalg.norm(noise))
        yield linalg.extreme_eigenvalues(bound - noise, hidden)[1]


TRIVIAL = "the row spaces meet in 0 alone: the common mechanism is trivial and releases nothing"

LARGEST = 4096
"""Most queries that mechanisms may have in common, for the matrices in which they are compared."""


@dataclass(frozen=True, slots=True, eq=False)
class CommonDual:
    """Weights that prove a lower bound: one symmetric matrix ``Y_i ⪰ 0`` a mechanism, (p, r, r).

    Any matrices prove a bound: the judge raises negative eigenvalues. For the trace they are of sum I, a measurement of
    p outcomes in the language of quantum states, and the judge divides by the largest eigenvalue of the sum. For the
    volume they are in any unit, and at the optimum their sum is a multiple of Σ.
    """

    weights: Array


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CommonMechanism(Problem[CommonDual, Any]):
    """The maximal common mechanism of two or more: what every one of them would reveal, released once.

    With B the rows of `basis`, which span the intersection of all row spaces, and ``P_i`` the covariance with which
    mechanism i answers B x, minimise ``tr Σ`` subject to

    - ``Σ ⪰ P_i`` for every mechanism i,

    which says that ``B x + N(0, Σ)`` can be answered from each of them. The dual is to maximise
    ``Σ_i tr(P_i Y_i)`` over ``Y_i ⪰ 0, Σ_i Y_i = I``; strong duality holds. Maximal common mechanisms are many:
    the trace on an orthonormal basis picks one, another basis another one. Criterion ``volume`` minimises
    ``(det Σ)^(1/r)`` in place of the trace, whose choice is the same on every basis; its dual is to maximise
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
        Instead: queries in the intersection whose total variance shall be least, since a decision will rest on
        them. What they do not ask for counts `UNASKED` of the mean of what they do, so that the mechanism is
        maximal all the same.
    criterion : {"trace", "volume"}
        What is least. The volume is on the given basis, or of tables on the coordinates of every block.

    Notes
    -----
    Equation 1, algorithm 1 and theorems 5.2 to 5.4 of Xiao, Wang, Zhang and Kifer, "Answering private linear
    queries adaptively using the common mechanism", PVLDB 16(8), 2023 (CMN). The dual is the minimum-error
    discrimination of quantum states (Helstrom 1969 for two; Yuen, Kennedy and Lax 1975). Spaces count as meeting in
    a direction where its angle to each of them has a sine of at most 1e-9; `angles` shows what was decided.

    Where the row spaces meet in 0 alone, r is 0 and the common mechanism releases nothing: `trivial` says so.

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
        chosen = partial(given_rows, basis) if basis is not None else _itself
        chosen = partial(decision_rows, decisions) if decisions is not None else chosen
        blocks = zip(*(frame.parts(mechanism) for mechanism in checked), strict=True)
        meetings = tuple(Meeting.of([part.standard_form.queries for part in parts], chosen) for parts in blocks)
        if basis is None and decisions is None:
            meetings = tuple(meeting.scaled(frame.unit(meeting.bounds)) for meeting in meetings)
        size = sum(len(meeting.rows) for meeting in meetings)
        if size > LARGEST:
            raise InvalidInputError(
                f"mechanisms have {size} queries in common, too many for one matrix (limit {LARGEST}); "
                f"BlockMechanism.common_with does without where each block has one coordinate"
            )
        set_parts(self, mechanisms=checked, criterion=criterion, frame=frame, meetings=meetings)
        fixed = {
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
        for name, value in fixed.items():
            object.__setattr__(self, name, freeze(value))
        if criterion == "volume":
            self._refuse_singular()

    @property
    def objective_name(self) -> str:
        trace = self.criterion == "trace"
        return "trace of the common covariance" if trace else "geometric mean variance of the common noise"

    def argument_values(self) -> dict[str, object]:
        """Return the arguments that make the same problem again; rows on blocks are found, not given."""
        stated = Problem.argument_values(self)
        return stated | {"basis": None} if self.frame.of_tables else stated

    def in_numbers(self) -> dict[str, object]:
        """Return the problem's data in numbers alone, as proof files have it: the covariances ``P_i`` on the basis.

        Raises `InvalidInputError` where nothing is common.
        """
        if self.trivial:
            raise InvalidInputError("a proof needs something that the mechanisms have in common; nothing is")
        kind = "common volume" if self.criterion == "volume" else "common"
        return {"kind": kind, "mechanisms": [{"covariance": bound} for bound in self.bounds]}

    @property
    def trivial(self) -> bool:
        """Whether the row spaces meet in 0 alone: then nothing is common, and nothing is released."""
        return not len(self.basis)

    @with_reasons
    def certify(self, primal: npt.ArrayLike, dual: CommonDual | npt.ArrayLike) -> Certificate:
        """Judge a covariance on B x (r, r) and dual weights; neither needs to come from a solver.

        The violation is the least v with ``P_i ⪯ (1 + v) Σ`` for all i. Where r is 0, all is 0, gap included.
        """
        covariance, weights = self._covariance(primal), self._weights(dual)
        if self.trivial:
            return Certificate(0.0, 0.0, 0.0, 0.0, 0.0)
        lower_bound, rounding = self._lower_bound(weights)
        if covariance is None:
            return Certificate.of(np.inf, lower_bound, np.inf, rounding)
        pairs = zip(self._blocks(self.bounds), self._blocks(covariance), strict=True)
        judged = np.array([loewner_violation(*pair, self.roundings) for pair in pairs])
        violation, allowance = judged.max(axis=0).tolist()
        objective, hidden = self._objective(covariance)
        return Certificate.of(objective, lower_bound, violation, rounding + allowance + hidden)

    def _objective(self, covariance: Array) -> tuple[float, float]:
        """Return the trace, or the r-th root of the determinant, and its rounding, relative."""
        if self.criterion == "trace":
            return float(np.trace(covariance)), 0.0
        judged = [log_det(block) for block in self._blocks(covariance)]
        return self._volume([(np.inf, 0.0) if pair is None else pair for pair in judged])

    def _lower_bound(self, weights: Array) -> tuple[float, float]:
        """Return what weights prove, block by block, and its rounding, relative."""
        prove = dual_bound if self.criterion == "trace" else volume_bound
        pairs = zip(self._blocks(self.bounds), self._blocks(weights), strict=True)
        proven = [prove(*pair, self.roundings) for pair in pairs]
        if self.criterion == "volume":
            return self._volume(proven)
        lower_bound = sum(bound for bound, _ in proven)
        return lower_bound, sum(bound * value for bound, value in proven) / lower_bound if lower_bound > 0 else 0.0

    def _volume(self, logs: list[tuple[float, float]]) -> tuple[float, float]:
        """Return the r-th root of a determinant, from the logarithms of its blocks with their roundings."""
        value, rounding = (sum(part) / len(self.basis) for part in zip(*logs, strict=True))
        return float(np.exp(value)), float(np.expm1(rounding)) + EPS * (1 + abs(value)) if np.isfinite(value) else 0.0

    def _refuse_singular(self) -> None:
        for index, (bound, rounding) in enumerate(zip(self.bounds, self.roundings, strict=True)):
            if any(_inverse_root(block, rounding) is None for block in self._blocks(bound)):
                raise InvalidInputError(
                    f"mechanisms[{index}] answers some common query with noise that double precision cannot tell from "
                    f"none; take criterion 'trace'"
                )

    def feasible(self, primal: npt.ArrayLike) -> Array:
        """Return the covariance, raised by as little as makes it a common mechanism's beyond doubt of rounding."""
        covariance = self._covariance(primal)
        if covariance is None or self.trivial:
            return np.asarray(primal, dtype=np.float64)
        pairs = zip(self._blocks(self.bounds), self._blocks(covariance), strict=True)
        return scipy.linalg.block_diag(*(raise_above_bounds(*pair, self.roundings) for pair in pairs))

    def as_primal(self, answer: object) -> Array:
        """Return a given covariance on the common basis, or the covariance of a mechanism that answers just this.

        Raises `InvalidInputError` or `InputTypeError` for a mechanism that answers more, or less, than all have
        in common; no symmetric matrix.
        """
        point = self.covariance_from(answer) if isinstance(answer, GaussianPrivacy) else answer
        if point is None:
            raise InvalidInputError(
                f"the rival must answer all {len(self.basis)} queries that the mechanisms have in common"
            )
        return np.zeros((0, 0)) if validate.is_empty(point) else validate.symmetric(covariance=point)

    def mechanism(self, primal: npt.ArrayLike) -> GaussianPrivacy:
        """Return the mechanism that adds noise of this covariance to B x."""
        covariance = np.zeros((0, 0)) if self.trivial else validate.symmetric(covariance=primal)
        blocks, nothing = iter(self._blocks(covariance)), np.zeros((0, 0))
        parts = [
            LinearGaussianMechanism(meeting.rows, next(blocks) if len(meeting.rows) else nothing)
            for meeting in self.meetings
        ]
        return self.frame.joined(parts)

    @property
    def slices(self) -> list[slice]:
        """Where in matrices (r, r) the blocks lie in which something is common: cells are one block.

        All ``P_i`` are 0 between blocks, and so is the best Σ. What a given one has there is left out: a common
        mechanism stays one without, and so do dual weights.
        """
        ends = np.cumsum([len(meeting.rows) for meeting in self.meetings]).tolist()
        pairs = zip([0, *ends[:-1]], ends, strict=True)
        return [slice(start, end) for start, end in pairs if end > start]

    def _blocks(self, matrices: Array) -> list[Array]:
        return [matrices[..., block, block] for block in self.slices]

    def maximality(self, primal: npt.ArrayLike | GaussianPrivacy, tol: float = IMPROVABLE) -> Maximality:
        """Say whether a common mechanism, a rival's included, is maximal, or by how much it could be bettered.

        Raises `InvalidInputError` or `InputTypeError` for a covariance or mechanism that is not common to all;
        the first mechanism that cannot answer it is named.

        - `primal` (r, r): a covariance on B x with ``Σ ⪰ P_i``, or any mechanism that is answerable from all of them;
        - `tol`: `Maximality.improvement` up to which it counts as maximal.
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
                f"it exceeds that one's cost by {max(violation):.3g}, relative"
            )
        improvement = max(loewner_improvement(bounds, part) for bounds, part in parts)
        return Maximality(improvement, improvement <= validate.positive_number(tol=tol))

    def covariance_from(self, mechanism: GaussianPrivacy) -> Array | None:
        """Return the covariance with which any mechanism answers B x; None where it leaves part of B x out.

        Raises `InvalidInputError` or `InputTypeError` for a mechanism that answers a query not in all row
        spaces, or on other cells or neighbours.
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
        """Return each mechanism's share of the proven bound (p,): who keeps the others from more.

        It is ``tr(P_i Y_i)`` of the trace, and ``tr(P_i⁻¹ Y_i)`` of the volume, over its sum.
        """
        weights = self._weights(dual)
        factors = self.bounds if self.criterion == "trace" else np.linalg.inv(self.bounds)
        shares = np.einsum("ikl,ilk->i", factors, weights)
        return np.asarray(shares / shares.sum()) if np.any(shares) else np.zeros(len(self.mechanisms))

    def binding(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the neighbours whose cost under the common mechanism is within `slack`, relative, of the largest."""
        profile = self.mechanism(primal).profile
        within = 1 - validate.nonnegative_number(slack=slack)
        return np.flatnonzero((profile >= within * profile.max()) & np.isfinite(profile.max()))

    def _covariance(self, primal: npt.ArrayLike) -> Array | None:
        """Return the covariance, symmetrised; None where it is not finite."""
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


def _itself(rows: Array) -> Array:
    return rows
