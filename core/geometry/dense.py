"""Workload, basis and neighbours as matrices: both sides of a covariance on ``B x``, and the bound of dual weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import linalg, mechanisms, validate
from dualmech.errors import GeometryError, InvalidInputError
from dualmech.geometry import words
from dualmech.geometry.base import SET_UP, EvaluatedForms, Geometry, Index, Judged, Offer, Request, decompositions
from dualmech.geometry.moves import (
    CHUNK,
    UNMOVED,
    as_neighbour_matrix,
    changes_between,
    check_relation,
    moves_between,
    product,
    unmoved_directions,
    without_rounding,
)
from dualmech.geometry.weights import ON_NEIGHBOURS, ON_QUERIES, given_weights, read_weights, shares, valid_weights
from dualmech.immutable import freeze
from dualmech.neighbours import ADD_REMOVE, Relation
from dualmech.validate import Array, Matrix
from dualmech.verified import Enclosure
from dualmech.workloads import numbers
from dualmech.workloads.base import Workload, check_workload
from dualmech.workloads.steps import Steps, exact_gram, whole_matrix

if TYPE_CHECKING:
    from dualmech.mechanisms.gaussian import LinearGaussianMechanism

CLOSE = 1e-12  # allowance of a variance from sums, relative, from which on the queries are written out instead
ROUNDED = 1e-9  # negative eigenvalues of a covariance up to this, relative to its largest entry, are rounding


def judged_covariance(
    covariance: Array, moves: Array, rounding: Array | None = None
) -> tuple[Array, Array, Array] | None:
    """Return the covariance, ``diag(D' Σ⁻¹ D)`` and its rounding; None if indefinite, or left by a move."""
    if not np.all(np.isfinite(covariance)):
        return None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        asymmetry = np.abs(covariance - covariance.T).max()
        if not asymmetry <= validate.SYMMETRY_TOLERANCE * np.abs(covariance).max():
            return None
        judged = linalg.inverse_forms((covariance + covariance.T) / 2, moves, rounding)
    return judged if judged is not None and np.all(np.isfinite(judged[1])) else None


def trace_norm_bound(geometry: Dense, neighbour_weights: Array, weights: Array) -> Judged:
    """Return ``‖diag(√w) W U diag(√λ)‖_*² / Σ λ_i`` and its rounding, relative; 0 where λ proves nothing.

    It bounds ``max_i (B u_i)'Σ⁻¹(B u_i) · Σ_j w_j v_j Σ v_j'`` from below, whatever the covariance.
    """
    if not valid_weights(neighbour_weights):
        return 0.0, 0.0
    # Brought to a largest weight of 1 before anything else, so that no scale of theirs under- or overflows.
    shares = neighbour_weights / neighbour_weights.max()
    moves, queries = np.flatnonzero(shares), np.flatnonzero(weights)
    roots = np.sqrt(shares[moves] / shares.sum())
    judged = geometry.whole_trace_norm(weights, moves, roots)
    if judged is None:
        judged = linalg.trace_norm(*geometry.differences(queries, moves, np.sqrt(weights[queries]), roots))
    norm, rounding = judged
    sums = (len(queries) + len(moves) + 4) * linalg.EPS  # of the weights, to which the factors are scaled
    return norm**2, 2 * rounding / norm + sums if norm > 0 else 0.0


def as_covariance(name: str, matrix: object) -> Array:
    """Return a finite, symmetric matrix; one that is not positive semidefinite is refused."""
    covariance = validate.symmetric(**{name: matrix})
    if linalg.regularised_covariance(covariance) is None:
        smallest = float(np.linalg.eigvalsh(covariance)[0])
        if smallest < -ROUNDED * np.abs(covariance).max():
            raise InvalidInputError(f"{name} must be positive semidefinite, its least eigenvalue is {smallest:.3g}")
    return covariance


def check_noise(levels: Array, **matrices: Sequence[object]) -> None:
    """Refuse levels that are not positive, and matrices that are no covariances."""
    if len(levels):
        validate.positive(1, levels=levels)
    for name, stack in matrices.items():
        for index, matrix in enumerate(stack):
            as_covariance(f"{name}[{index}]", matrix)


def divided_covariance(covariance: Array, divisor: float) -> Array:
    """Return ``Σ / divisor``, symmetric; by nothing else than a positive number: the judge refuses the rest."""
    if not (np.isfinite(divisor) and divisor > 0):
        return covariance
    with np.errstate(over="ignore", invalid="ignore"):
        return (covariance + covariance.T) / 2 / divisor


@dataclass(frozen=True, slots=True, eq=False)
class Dense(Geometry[Array, Array, Array, Array]):
    """A matrix: ``W = L B`` and the moves ``B U`` between neighbours, with the two quadratic forms of a covariance.

    A point is the covariance of the noise on B x (k, k); there is a target or a weight for every query.
    """

    workload: Workload  # W, (m, d)
    basis: Array  # (k, d) B, of full row rank k: rank W, or more where a problem allows it
    factor: Array | None  # (m, k) L; None where it is W and its steps say it
    steps: Steps | None  # the queries by their steps, where these are few
    # (d, s) U, differences of neighbouring data sets up to sign; None stands for the identity
    neighbours: Matrix | None
    moves: Array  # (k, s) B U: how far each pair of neighbours moves the noisy vector
    moves_rounding: Array | None  # (k, s) what its entries may be off; None where the moves are B itself
    # (k - r, k) orthonormal rows f with ``f B U = 0``: what no neighbour changes, released exactly
    unmoved: Array
    # (m,) largest entry of ``W - L B``, in absolute value, with its own rounding: how far the two sides of a
    # certificate may speak of different queries
    mismatch: Array
    # (k,) by how much an error of 1 in each cell of a query may move its coordinates L
    leverage: Array
    redundant_rows: int = 0  # number of rows of the basis beyond the rank of the workload

    name: ClassVar[str] = "dense"
    takes: ClassVar[str] = "every workload"
    takes_relations: ClassVar[bool] = True

    def __post_init__(self) -> None:
        freeze(self)

    @classmethod
    def of(
        cls, workload: Workload, basis: npt.ArrayLike | None, neighbours: Matrix | None, redundant: bool = False
    ) -> Dense:
        """Check the three against each other and factor the workload over the basis.

        A `redundant` basis may have more rows than the rank of the workload, which then asks nothing of the others.
        """
        steps = check_workload(workload).steps()
        if steps is None or not steps.is_whole:
            validate.moderate(workload=workload.matrix)
        if not np.any(workload.row_norms()):
            raise InvalidInputError("workload must have at least one query that is not all zero")
        chosen, factor, extra = _factor(workload, steps, basis, redundant)
        checked = as_neighbour_matrix(neighbours, workload.shape[1], workload.domain)
        if basis is None and checked is not None:
            chosen = _alike_where_asked_alike(workload.dense(), chosen)
        moves, rounding = moves_between(chosen, checked)
        if not np.any(moves):
            raise InvalidInputError(UNMOVED)
        unmoved = np.zeros((0, len(chosen))) if checked is None else unmoved_directions(moves)
        mismatch = np.zeros(workload.shape[0]) if factor is None else _mismatch(workload.dense(), chosen, factor)
        inverse = chosen.T if basis is None else np.linalg.pinv(chosen)
        leverage = np.abs(inverse).sum(axis=0)
        factor = workload.dense() if factor is None and steps is None else factor
        return cls(workload, chosen, factor, steps, checked, moves, rounding, unmoved, mismatch, leverage, extra)

    @property
    def representation(self) -> Array:
        """L (m, k), written out."""
        return self.workload.dense() if self.factor is None else self.factor

    @classmethod
    def of_numbers(cls, request: Request, per_query: Array, neighbours: Matrix | None) -> Dense:
        """Return the geometry of the queries whose numbers are not 0, which targets never are.

        A basis may have redundant rows where there are targets.
        """
        workload = request.workload
        if np.any(per_query == 0) and not np.any(per_query[workload.row_norms() > 0]):
            raise InvalidInputError("weights must be positive on at least one query that is not all zero")
        rows = workload if np.all(per_query) else workload.select(np.flatnonzero(per_query))
        return cls.of(rows, request.basis, neighbours, redundant=request.name == "targets")

    @classmethod
    def offer(cls, request: Request) -> Offer:
        workload, relation = request.workload, request.neighbours
        queries, cells = workload.shape
        pairs = cells
        if relation is None and workload.domain is not None and workload.domain.impossible:
            relation = ADD_REMOVE  # of which not every cell is a difference
        if isinstance(relation, Relation):
            check_relation(relation, workload, request.named)
            pairs = relation.columns(cells, workload.domain)
        if not (request.named or workload.has_matrix or workload.needs_no_matrix):
            raise GeometryError(f"the matrix of the workload, {queries} x {cells}, cannot be written out")
        rank = min(queries, cells)

        def take() -> tuple[Geometry, Array]:
            per_query = numbers.by_query_or_table(workload, request.values, request.name)
            moves = relation.matrix(cells, workload.domain) if isinstance(relation, Relation) else relation
            return cls.of_numbers(request, per_query, moves), per_query

        return Offer(SET_UP + decompositions(rank, queries + pairs - rank), take)

    def numbers(self, workload: Workload, values: object, name: str) -> Array:
        per_query = numbers.by_query_or_table(workload, values, name)
        constrained = workload if np.all(per_query) else workload.select(np.flatnonzero(per_query))
        if not self.workload.same_as(constrained):
            raise InvalidInputError("geometry must be of this workload, and of its queries that count")
        return per_query

    def argument_values(self) -> dict[str, object]:
        return {"basis": self.basis, "neighbours": self.neighbours}

    def in_numbers(self, workload: Workload, kind: str, numbers: Array) -> dict[str, object]:
        return {"kind": kind, "numbers": numbers} | self.matrices(workload)

    def on_rows(self, point: Array) -> tuple[Array, Array]:
        """Return rows that get noise, the basis, and its covariance."""
        return self.basis, np.asarray(point)

    def matrices(self, workload: Workload) -> dict[str, object]:
        """Return the matrices of a workload and of the neighbours as proof files have them."""
        moves = None if self.neighbours is None else linalg.to_dense(self.neighbours)
        return {"workload": workload.dense(), "neighbours": moves}

    @property
    def rank(self) -> int:
        return int(self.basis.shape[0])

    @property
    def free_queries(self) -> npt.NDArray[np.intp]:
        """Indices of the queries that no neighbour changes: all-zero ones, and those released exactly."""
        if self.neighbours is None:
            return np.flatnonzero(self.workload.row_norms() == 0)
        changed = np.zeros(self.workload.shape[0], dtype=bool)
        for _, changes, allowed in changes_between(self.workload.matrix, self.neighbours):
            changed |= np.any(changes > allowed, axis=1)
        return np.flatnonzero(~changed)

    @property
    def reach(self) -> Array:
        """Sum of the entries of each pair of neighbours' difference, in absolute value (s,)."""
        if self.neighbours is None:
            return np.ones(self.moves.shape[1])
        return np.asarray(abs(self.neighbours).sum(axis=0)).ravel()

    def differences(
        self, queries: npt.NDArray[np.intp], moves: npt.NDArray[np.intp], factors: Array, roots: Array
    ) -> tuple[Array, float]:
        """Return ``diag(factors) W U diag(roots)`` for chosen rows and columns, and by how much it may be off.

        W is the workload itself, the other side of a certificate has its factors: ``(W - L B) U`` counts as rounding,
        in the Frobenius norm.
        """
        rows, missed = self.workload.matrix[queries], np.zeros(1)  # a copy, changed in place
        if self.neighbours is None:
            image = linalg.to_dense(rows if np.array_equal(moves, np.arange(rows.shape[1])) else rows[:, moves])
        else:
            image, missed = product(rows, self.neighbours[:, moves])
        image *= roots
        image *= factors[:, None]
        off = np.linalg.norm(missed * roots * factors[:, None]) if np.any(missed) else 0.0
        off += np.linalg.norm(factors * self.mismatch[queries]) * np.linalg.norm(roots * self.reach[moves])
        return image, float(off + 2 * linalg.EPS * np.linalg.norm(image))

    def whole_trace_norm(self, weights: Array, moves: Index, roots: Array) -> tuple[float, float] | None:
        """Return `linalg.trace_norm` of many queries in whole numbers, scaled by √weights, from their Gram matrix.

        The weights are rounded down, which proves no more. None where cells are no neighbours, or the rank is unclear.
        """
        count, cells = self.workload.shape
        if self.neighbours is not None or count < linalg.GRAM_ASPECT_RATIO * cells:
            return None
        rows = self.steps if self.steps is not None and self.steps.is_whole else whole_matrix(self.workload.matrix)
        if rows is None:
            return None
        off = float(np.linalg.norm(np.sqrt(weights) * self.mismatch) * np.linalg.norm(roots))
        gram = exact_gram(rows, weights)
        if len(moves) < cells:
            gram = Enclosure(*(part[np.ix_(moves, moves)] for part in (gram.high, gram.low, gram.radius)))
        return linalg.trace_norm_by_gram(gram, roots, min(self.rank, len(moves)), off)

    def variances(self, covariance: Array) -> tuple[Array, Array]:
        """Return ``diag(L Σ L')`` (m,) and an allowance for its rounding."""
        if self.factor is None and self.steps is not None and self.steps.is_whole:
            values, off = self.steps.enclosed_forms(covariance)
            if np.all(off <= CLOSE * values):
                return values, off
        return row_variances(self.representation, covariance, self.mismatch, self.leverage)

    def point(self, primal: object) -> Array:
        """Return a primal point as a matrix of the right shape, its entries unseen; text and the like are refused."""
        covariance = validate.numeric(2, covariance=primal)
        if covariance.shape != (self.rank, self.rank):
            raise InvalidInputError(f"covariance must have shape ({self.rank}, {self.rank}), got {covariance.shape}")
        return covariance

    def checked(self, answer: object) -> Array:
        """Return a covariance on the basis (k, k); noise on the cells (d, d), if d > k, becomes ``B Σ B'``."""
        covariance = as_covariance("covariance", answer)
        if self.rank < len(covariance) == self.basis.shape[1]:
            covariance = self.basis @ covariance @ self.basis.T
            return np.asarray((covariance + covariance.T) / 2)
        if covariance.shape != (self.rank, self.rank):
            raise InvalidInputError(
                f"covariance must have shape ({self.rank}, {self.rank}), as the basis, got {covariance.shape}"
            )
        return covariance

    def divide(self, point: Array, divisor: float) -> Array:
        return divided_covariance(point, divisor)

    @property
    def matrix(self) -> Dense:
        """The geometry on whose rows the noise stands: of a stream, and of epochs, another."""
        return self

    def mechanism(self, point: Array) -> LinearGaussianMechanism:
        """Return the mechanism of the covariance that is judged, rows without noise in few digits, to be shared."""
        judged, silent = linalg.regularised_covariance(point), np.diagonal(point) == 0
        written = mechanisms.noise.in_few_digits(self.basis) if np.any(silent) else self.basis
        rows = np.where(silent[:, None], written, self.basis)
        return mechanisms.gaussian.LinearGaussianMechanism(rows, point if judged is None else judged, self.neighbours)

    def cost(self, point: Array) -> float:
        judged = judged_covariance(point, self.moves, self.moves_rounding)
        return np.inf if judged is None else float(judged[1].max())

    def forms(self, point: Array) -> EvaluatedForms | None:
        judged = judged_covariance(point, self.moves, self.moves_rounding)
        if judged is None:
            return None
        regularised, profile, profile_rounding = judged
        with np.errstate(over="ignore", invalid="ignore"):
            variances, variance_rounding = self.variances(regularised)
        return EvaluatedForms(profile, variances, profile_rounding, variance_rounding)

    def largest_ratio(self, point: Array, targets: Array) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            regularised = linalg.regularised_covariance(point)
            noise = point if regularised is None else regularised
            if self.factor is None and self.steps is not None:
                return float((self.steps.forms(noise) / targets).max())
            return float((_spread(self.representation, noise)[1] / targets).max())

    def weights(self, dual: object, queries: bool = True) -> tuple[Array, Array]:
        return as_dual_weights(dual, self.moves.shape[1], self.workload.shape[0] if queries else None)

    def bound(self, neighbour_weights: Array, query_weights: Array, targets: Array) -> Judged:
        """Return ``‖diag(√μ) W U diag(√λ)‖_*² / (Σ λ_i Σ μ_j c_j)`` and its rounding, relative.

        Proof that it bounds α: with S = Σ^(1/2), ``Σ_i λ_i (B u_i)'Σ⁻¹(B u_i) = ‖S⁻¹ B U diag(√λ)‖_F²`` is at
        most ``α Σ λ_i``, and ``Σ_j μ_j v_j Σ v_j' = ‖diag(√μ) L S‖_F²`` at most ``Σ μ_j c_j``; multiply, and use
        ``‖X Y‖_* ≤ ‖X‖_F ‖Y‖_F``. Weights that are negative or not finite prove nothing: the bound is 0.
        """
        if not valid_weights(query_weights):
            return 0.0, 0.0
        spread = query_weights / query_weights.max()
        return trace_norm_bound(self, neighbour_weights, spread / (spread @ targets))

    def total_bound(self, neighbour_weights: Array, weights: Array) -> Judged:
        """Return ``‖diag(√w) W U diag(√λ)‖_*² / Σ λ_i`` and its rounding, relative.

        It bounds the total at a cost of 1 by the proof of `bound`, with ``Σ_j w_j v_j Σ v_j'`` for the second sum.
        """
        return trace_norm_bound(self, neighbour_weights, weights)

    def total_prices(self, neighbour_weights: Array, weights: Array) -> Array:
        """Return the diagonal of ``X s X' / Σ s`` (m,), with the s and X of ``diag(√w) W U diag(√λ)``."""
        if not valid_weights(neighbour_weights):
            return np.zeros(len(weights))
        moves = np.flatnonzero(neighbour_weights)
        roots = np.sqrt(neighbour_weights[moves] / neighbour_weights.max())
        scaled, _ = self.differences(np.arange(len(weights)), moves, np.sqrt(weights), roots)
        left, values, _ = linalg.svd(scaled)
        return shares(left**2 @ values)

    def item_words(self, index: int) -> str:
        return words.query_words(self.workload, index)

    def neighbour_words(self, index: int) -> str:
        return words.neighbour_words(self.workload, self.neighbours, index)

    def per_query(self, workload: Workload, numbers: Array) -> Array:
        return numbers


def as_dual_weights(dual: object, neighbours: int, queries: int | None) -> tuple[Array, Array]:
    """Return weights on neighbours (s,) and, if any, on queries (m,), their entries unseen; refuse other shapes."""
    first, last = given_weights(dual, queries is not None)
    checked = read_weights(neighbours, first, *ON_NEIGHBOURS)
    return checked, np.zeros(0) if queries is None else read_weights(queries, last, *ON_QUERIES)


def _alike_where_asked_alike(dense: Array, rows: Array) -> Array:
    """Return rows with one entry for all cells of which every query asks the same: to move among them is no move."""
    firsts: dict[bytes, int] = {}
    columns = np.ascontiguousarray(dense.T + 0.0)
    return rows[:, [firsts.setdefault(column.tobytes(), cell) for cell, column in enumerate(columns)]]


def _factor(
    workload: Workload, steps: Steps | None, basis: npt.ArrayLike | None, redundant: bool
) -> tuple[Array, Array | None, int]:
    """Return the basis B, the factor L with ``W = L B``, None where it is W itself, and B's rows beyond the rank."""
    cells = workload.shape[1]
    rows = None if basis is None else np.array(validate.finite(2, basis=basis))
    on_cells = rows is None or (rows.shape == (cells, cells) and linalg.is_identity(rows))
    if on_cells and steps is not None and workload.shape[0] >= linalg.GRAM_ASPECT_RATIO * cells:
        norms = workload.row_norms()
        if linalg.are_clearly_independent(steps.gram(1 / np.where(norms > 0, norms, 1.0) ** 2)):
            return np.eye(cells), None, 0
    dense = workload.dense()
    if rows is None:
        spanning = without_rounding(linalg.row_basis(dense))
        if linalg.is_identity(spanning):
            return spanning, None, 0
        return spanning, dense @ spanning.T if steps is None else steps.times(spanning.T), 0
    validate.moderate(basis=rows)
    if rows.shape[1] != cells:
        raise InvalidInputError(f"basis must have {cells} columns, as the workload, got {rows.shape[1]}")
    workload_rank = linalg.rank(dense)
    if len(rows) > workload_rank and not redundant:
        raise InvalidInputError(f"basis must have {workload_rank} rows, the rank of the workload, got {len(rows)}")
    if linalg.rank(rows) < len(rows):
        raise InvalidInputError(f"basis must have full row rank, got rank {linalg.rank(rows)} of {len(rows)}")
    representation = None if linalg.is_identity(rows) else linalg.represent(dense, rows, workload.names)
    if len(rows) < workload_rank:
        raise InvalidInputError(
            f"basis must have {workload_rank} rows, the rank of the workload, got {len(rows)}, "
            f"which span it only up to rounding"
        )
    places = {row.tobytes(): place for place, row in enumerate(rows)}
    known = [(query, places[row.tobytes()]) for query, row in enumerate(dense) if row.tobytes() in places]
    if known and representation is not None:
        # A query that is a row of the basis is known exactly, whatever the condition of the others.
        queries, positions = np.transpose(known)
        representation[queries] = np.eye(len(rows))[positions]
    return rows, representation, len(rows) - workload_rank


def row_variances(rows: Array, covariance: Array, mismatch: Array, leverage: Array) -> tuple[Array, Array]:
    """Return ``diag(L Σ L')`` (m,) of rows L (m, k), dense or sparse, and an allowance for its rounding, absolute.

    See `Dense` for `mismatch` and `leverage`.
    """
    values, off = np.empty(rows.shape[0]), np.empty(rows.shape[0])
    sizes = np.abs(covariance)
    far = float(leverage @ sizes @ leverage)
    for start in range(0, rows.shape[0], CHUNK):
        part = slice(start, start + CHUNK)
        spread, values[part] = _spread(rows[part], covariance)
        _, magnitudes = _spread(abs(rows[part]), sizes)
        # What ``W - L B`` leaves of a query meets noise as well, which may be large where the query has little.
        off[part] = mismatch[part] * (2 * np.abs(spread) @ leverage) + mismatch[part] ** 2 * far
        off[part] += 2 * len(covariance) * linalg.EPS * magnitudes
    return values, off


def _spread(rows: Matrix, covariance: Array) -> tuple[Array, Array]:
    """Return ``L Σ`` (m, k), and the diagonal of ``L Σ L'`` (m,)."""
    spread = rows @ covariance
    if sp.issparse(rows):
        return spread, np.asarray(rows.multiply(spread).sum(axis=1)).ravel()
    return spread, np.einsum("jk,jk->j", spread, rows)


def _mismatch(dense: Array, basis: Array, representation: Array) -> Array:
    """Return the largest entry of each row of ``|W - L B|``, rounding included."""
    largest = np.empty(len(dense))
    for start in range(0, len(dense), CHUNK):
        rows = representation[start : start + CHUNK]
        left = np.abs(dense[start : start + CHUNK] - rows @ basis).max(axis=1)
        single = (np.count_nonzero(rows, axis=1) == 1) & (rows.max(axis=1) == 1)
        reach = (np.abs(rows) @ np.abs(basis)).max(axis=1)
        largest[start : start + CHUNK] = left + np.where(single, 0.0, len(basis) * linalg.EPS * reach)
    return largest
