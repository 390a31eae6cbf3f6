"""Reuse of a release: the least total privacy cost of a new workload, given an earlier release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.certificate import FEASIBLE, Certificate, with_reasons
from dualmech.errors import InfeasibleAnswerError, InputTypeError, InvalidInputError
from dualmech.geometry.base import MOST_PASSES
from dualmech.geometry.dense import Dense, Sides, as_dual_weights, divided_covariance, evaluate
from dualmech.geometry.moves import moves_between
from dualmech.geometry.weights import valid_weights
from dualmech.geometry.words import query_words, ranked, variances_over
from dualmech.immutable import freeze, set_parts
from dualmech.mechanisms.noise import NoisyQueries, as_matrix
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.neighbours import NeighboursLike
from dualmech.problems.base import Problem, point_on
from dualmech.problems.fitness import FitnessForUse
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload

if TYPE_CHECKING:
    from dualmech.mechanisms.gaussian import LinearGaussianMechanism


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

    The rows of F follow the rows of W in the workload of the geometry. Proof that it bounds α: the release is so many
    more queries, ``a F`` for every unit vector a, each with a target of 1. So ``Σ_j μ_j v_j Σ v_j' + tr(Ω K Σ K')``,
    which is ``‖[diag(√μ) L ; Ω^½ K] Σ^½‖_F²``, is at most ``Σ μ_j c_j + tr Ω``, and ``‖Σ^-½ B U diag(√λ)‖_F²`` is at
    most ``α Σ λ_i``; multiply, and use ``‖X Y‖_* ≤ ‖X‖_F ‖Y‖_F``. Any root of any Ω ⪰ 0 will do: the trace belongs to
    the root in use. Where weights prove nothing, the bound is 0.
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
    norm, allowance = linalg.trace_norm(np.vstack([asked, root @ known]), missed + float(np.linalg.norm(root)) * hidden)
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


@dataclass(frozen=True, slots=True, eq=False)
class ReuseDual:
    """Weights that prove a lower bound: λ on neighbours (s,), μ on queries (m,), Ω on the release (q, q).

    No entry of λ and μ may be negative, and of Ω counts the positive semidefinite part of its symmetric part. Any
    such weights prove a bound, whatever their scale; solvers return them with ``Σ λ_i = 1`` and
    ``Σ μ_j c_j + tr Ω = 1``.
    """

    neighbour_weights: Array
    query_weights: Array
    release_weights: Array

    def __iter__(self) -> Iterator[Array]:
        return iter((self.neighbour_weights, self.query_weights, self.release_weights))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReuseFitness(Problem[ReuseDual, "LinearGaussianMechanism"]):
    """Reuse: the least total squared privacy cost at which every target is met, given an earlier release.

    What was released is worth as much as ``F x`` with unit noise; its cost matrix is ``F'F``. Whatever is run now,
    the two together cost a matrix ``B' Σ⁻¹ B`` that is at least that. Minimise α over Σ ≻ 0, the covariance on B x
    of all that is then known, subject to

    - ``(B u_i)' Σ⁻¹ (B u_i) ≤ α`` for every pair of neighbours u_i,
    - ``v_j Σ v_j' ≤ c_j`` for every query, where ``W = L B`` and v_j are the rows of L, and
    - ``K Σ K' ⪯ I``, where ``F = K B``: the known answers then determine the release. (It says the same as
      ``Σ⁻¹ ⪰ K'K``: both say that no singular value of ``K Σ^½`` exceeds 1.)

    The dual is to maximise ``‖[diag(√μ) W ; Ω^½ F] U diag(√λ)‖_*²`` over ``λ ≥ 0, Σ λ_i ≤ 1`` and ``μ ≥ 0, Ω ⪰ 0,
    Σ μ_j c_j + tr Ω ≤ 1``; any such weights bound α from below, and strong duality holds.
    Raises `InvalidInputError` or `InputTypeError` for what `FitnessForUse` refuses of the wish; a release on other
    cells, or exact where neighbours differ.
    The introduction of Xiao, Wang, Zhang and Kifer, "Answering private linear queries adaptively using the common
    mechanism", PVLDB 16(8), 2023, takes the wish's own mechanism and pays the residual; this is the joint optimum,
    which is never worse. Several Σ can be optimal, and some spend budget that others leave free.

    Parameters
    ----------
    workload : Workload
        W, the wish: m queries over d cells.
    targets : float or (m,) array
        Variance targets c > 0, one for all or one per query.
    released : LinearGaussianMechanism
        What is out already, `stack`-ed where it is several; no part of it exact but what no neighbour changes,
        which is left aside: it costs nothing and stays known.
    neighbours : str, Relation, (d, s) array or sparse matrix, optional
        U, the differences of neighbouring data sets up to sign; by default the released mechanism's neighbours.

    Attributes
    ----------
    basis : (k, d) array
        B, spanning the rows of W and F: the identity where these have full column rank, else orthonormal rows.
    release : (q, d) array
        F, independent rows.
    row_by_row : FitnessForUse
        The relaxation in which the rows of F keep their variance of 1, one by one; exact where there is one row.

    Examples
    --------
    The total of two cells is out with variance 2; now both cells are wanted with variance 1:

    >>> import dualmech as dm
    >>> total = dm.LinearGaussianMechanism([[1, 1]], [[2]])
    >>> problem = dm.ReuseFitness(dm.workloads.identity(2), 1.0, total)
    >>> best = problem.certify([[1, 0], [0, 1]], dm.duals.ReuseDual([1, 1], [1, 1], [[0]]))
    >>> best.objective, round(best.lower_bound, 12)
    (1.0, 1.0)
    >>> problem.new_mechanism([[1, 0], [0, 1]]).profile.round(12)       # 1/2 was paid with the total
    array([0.5, 0.5])
    """

    workload: Workload
    targets: Array
    released: LinearGaussianMechanism
    basis: Array
    neighbours: Matrix | None
    release: Array
    row_by_row: FitnessForUse = field(repr=False)

    dual_type: ClassVar[Callable[..., ReuseDual]] = ReuseDual
    arguments: ClassVar[tuple[str, ...]] = ("workload", "targets", "released", "neighbours")

    def __init__(
        self, workload: Workload, targets: npt.ArrayLike, released: GaussianPrivacy, neighbours: NeighboursLike = None
    ) -> None:
        released = as_matrix(released)
        if not isinstance(released, NoisyQueries):
            raise InputTypeError(f"released must be a LinearGaussianMechanism, got {type(released).__name__}")
        wish = FitnessForUse(
            workload, targets, neighbours=released.neighbours if neighbours is None else neighbours, geometry="dense"
        )
        if wish.workload.shape[1] != released.query_matrix.shape[1]:
            raise InvalidInputError(
                f"released must have {wish.workload.shape[1]} cells, as the workload, "
                f"got {released.query_matrix.shape[1]}"
            )
        known = unit_noise_rows(released, wish.neighbours)
        together = wish
        if len(known):
            validate.moderate(released=known)
            together = FitnessForUse(
                Workload(np.vstack([workload.dense(), known])),
                np.concatenate([wish.targets, np.ones(len(known))]),
                neighbours=wish.neighbours,
                geometry="dense",
            )
        set_parts(
            self,
            workload=workload,
            targets=wish.targets,
            released=released,
            basis=together.basis,
            neighbours=wish.neighbours,
            release=freeze(known),
            row_by_row=together,
        )

    @property
    def geometry(self) -> Dense:
        """Factors of the workload and, in the rows after it, of the release."""
        return self.row_by_row.geometry

    def in_numbers(self) -> dict[str, object]:
        release = self.release if len(self.release) else None
        asked = {"targets": self.targets, "release": release}
        return {"kind": "reuse"} | self.geometry.matrices(self.workload) | asked

    @property
    def release_coordinates(self) -> Array:
        """K (q, k), with ``F = K B``."""
        return self.geometry.representation[len(self.targets) :]

    @with_reasons
    def certify(
        self, primal: npt.ArrayLike, dual: ReuseDual | tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]
    ) -> Certificate:
        """Judge a covariance on B x (k, k), of all that is known in the end, and dual weights."""
        sides = self._sides(primal)
        lower_bound, rounding = dual_bound(self.geometry, self.targets, *self._weights(dual))
        return Certificate.of(sides.cost, lower_bound, max(sides.excess - 1, 0.0), sides.rounding + rounding)

    def feasible(self, primal: npt.ArrayLike) -> Array:
        """Return the covariance scaled so that the tightest constraint, of a query or of the release, is met."""
        covariance = self.row_by_row.feasible(primal)
        for count in range(1, MOST_PASSES):
            found = self._sides(covariance).excess
            if not found > 1 + FEASIBLE / 10:
                break
            covariance = divided_covariance(covariance, 1 + count * (found - 1))
        return covariance

    def least_informative(self, primal: npt.ArrayLike) -> Array:
        """Return Σ with as much of its new information as the targets need: cost ``K'K + t (Σ⁻¹ - K'K)``, t least.

        No neighbours cost more: where the release decides α, a small part of the free noise may be enough. A covariance
        that breaks a constraint, or that would lose digits, stays as it is.
        """
        covariance, count = self.geometry.point(primal), len(self.targets)
        before = self._sides(covariance)
        if not before.excess <= 1 + FEASIBLE:
            return covariance
        rows = self.geometry.representation[:count]
        spared = self.feasible(least_informative(covariance, self.release_coordinates, rows, self.targets))
        sides = self._sides(spared)
        dearer = not sides.cost <= (1 + FEASIBLE) * before.cost
        blurred = not sides.rounding <= max(FEASIBLE, before.rounding)
        return covariance if dearer or blurred or not sides.excess <= 1 + FEASIBLE else spared

    def as_dual(self, dual: Any) -> ReuseDual:
        """Return given weights on neighbours, queries and the release, negative ones of rounding size as 0."""
        return ReuseDual(*self._weights(dual))

    def as_primal(self, answer: object) -> Array:
        """Return a covariance on B x from any source, or the covariance of a mechanism that answers B x."""
        return np.asarray(point_on(self.geometry, answer))

    def mechanism(self, primal: npt.ArrayLike) -> LinearGaussianMechanism:
        """Return all that is known in the end, release included: noise of this covariance on B x."""
        return self.row_by_row.mechanism(primal)

    def new_mechanism(self, primal: npt.ArrayLike) -> LinearGaussianMechanism:
        """Return the mechanism to run now, of cost ``B' (Σ⁻¹ - K'K) B``; without rows where nothing is needed.

        A direction in which the release holds all but 1e-9 of the information counts as known: leaving it out can
        only lower the cost, and it raises no variance by more than that share.
        Raises `InfeasibleAnswerError` where the matrix is no covariance, or the release cannot be answered from it.
        """
        from dualmech.mechanisms.gaussian import LinearGaussianMechanism
        from dualmech.mechanisms.noise import in_few_digits

        covariance = self.geometry.point(primal)
        if not self._sides(covariance).excess <= 1 + FEASIBLE:
            raise InfeasibleAnswerError("no new mechanism: the covariance breaks a constraint or is indefinite")
        rows, silent = new_information(covariance, self.release_coordinates)
        noise = np.diag(np.repeat([1.0, 0.0], [len(rows), len(silent)]))
        queries = np.vstack([rows @ self.basis, in_few_digits(silent @ self.basis)])
        return LinearGaussianMechanism(queries, noise, self.neighbours)

    def release_alone(self) -> tuple[Array, ReuseDual] | None:
        """Return the answer that runs nothing further, with its proof, where the release meets every target.

        Its cost is the release's cost, ``α = ‖F u‖²`` for some pair of neighbours u. The proof puts λ on that pair
        alone, with ``Ω = (F u)(F u)' / α``, of trace 1: ``‖Ω^½ F u‖² = ‖F u‖²``.
        """
        coordinates = self.release_coordinates
        if len(coordinates) < self.geometry.rank:
            return None
        inverse = np.linalg.inv(coordinates)
        covariance = inverse @ inverse.T
        sides = self._sides(covariance)
        if not sides.excess <= 1 + FEASIBLE:
            return None
        dearest = int(np.argmax(sides.profile))
        move = coordinates @ self.geometry.moves[:, dearest]
        weights = np.zeros(len(sides.profile))
        weights[dearest] = 1.0
        dual = ReuseDual(weights, np.zeros(len(self.targets)), np.outer(move, move) / (move @ move))
        return self.feasible(covariance), dual

    def prices(self, dual: ReuseDual) -> Array:
        """Return ``μ_j c_j / (Σ μ_l c_l + tr Ω)`` (m,): what loosening each target saves of the total cost.

        They sum to less than 1: the rest of the cost is due to the release and cannot be recovered.
        """
        _, weights, release_weights = self._weights(dual)
        bill = weights * self.targets
        total = bill.sum() + np.trace(release_weights)
        return np.asarray(bill / total) if total > 0 else np.zeros_like(bill)

    def binding(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the neighbours whose cost is within `slack`, relative, of the largest."""
        within = validate.nonnegative_number(slack=slack)
        return self._sides(primal).binding(within)

    def exceeded(self, primal: npt.ArrayLike) -> tuple[str, ...]:
        """Say which queries exceed their targets most, and whether the release does not follow."""
        ratios = self._sides(primal).ratios
        over = variances_over(ranked(ratios[: len(self.targets)]), partial(query_words, self.workload))
        follows = float(ratios[-1]) if len(ratios) > len(self.targets) else 0.0
        released = [("what was released before", follows)]
        return over + variances_over(released, str, "the variance that it was released with")

    def loose(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the queries whose variance is below their target by more than `slack`, relative."""
        below = validate.nonnegative_number(slack=slack)
        return np.flatnonzero(self._sides(primal).ratios[: len(self.targets)] < 1 - below)

    def _sides(self, primal: npt.ArrayLike) -> Sides:
        """Evaluate all constraints; the last ratio is the largest eigenvalue of ``K Σ K'``."""
        together, coordinates = self.row_by_row, self.release_coordinates
        sides = evaluate(together.geometry, together.targets, primal)
        covariance = self.geometry.point(primal)
        fixed = linalg.regularised_covariance((covariance + covariance.T) / 2) if np.isfinite(sides.excess) else None
        if fixed is None or not len(coordinates):
            return sides
        with np.errstate(over="ignore", invalid="ignore"):
            product = coordinates @ fixed @ coordinates.T
            magnitude = np.linalg.norm(np.abs(coordinates) @ np.abs(fixed) @ np.abs(coordinates).T)
        largest = np.linalg.eigvalsh((product + product.T) / 2)[-1] if np.isfinite(magnitude) else np.inf
        rounding = 4 * len(fixed) * linalg.EPS * float(magnitude)
        return Sides(sides.profile, np.append(sides.ratios, largest), sides.rounding + rounding)

    def _weights(
        self, dual: ReuseDual | tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]
    ) -> tuple[Array, Array, Array]:
        """Return the three weights, their entries unseen; other shapes are refused."""
        try:
            first, second, last = dual
        except (TypeError, ValueError) as error:
            raise InputTypeError("dual must hold weights on neighbours, queries and the release") from error
        size = len(self.release)
        if size or not validate.is_empty(last):
            last = validate.numeric(2, **{"dual weights on the release": last})
        if np.shape(last) != (size, size):
            raise InvalidInputError(
                f"dual weights on the release must have shape ({size}, {size}), got {np.shape(last)}"
            )
        return *as_dual_weights((first, second), self.geometry.moves.shape[1], len(self.targets)), np.asarray(
            last, dtype=np.float64
        )
