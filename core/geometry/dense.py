"""Workload, basis and sensitivity vectors as matrices: costs, variances and dual bounds of a covariance on ``B x``."""

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

STEPS_TOL = 1e-12  # maximum relative error of variances from first differences; above it the matrix is used
NEGATIVE_EIGENVALUE_TOL = 1e-9  # relative to the largest entry of a covariance; smaller ones are rounding errors


def judged_covariance(
    covariance: Array, moves: Array, rounding: Array | None = None
) -> tuple[Array, Array, Array] | None:
    """Return the regularised covariance, ``diag(D' Σ⁻¹ D)`` and error bounds; None if a cost is infinite."""
    if not np.all(np.isfinite(covariance)):
        return None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        asymmetry = np.abs(covariance - covariance.T).max()
        if not asymmetry <= validate.SYMMETRY_TOLERANCE * np.abs(covariance).max():
            return None
        judged = linalg.inverse_forms((covariance + covariance.T) / 2, moves, rounding)
    return judged if judged is not None and np.all(np.isfinite(judged[1])) else None


def trace_norm_bound(geometry: Dense, neighbour_weights: Array, weights: Array) -> Judged:
    """Return ``‖diag(√w) W U diag(√λ)‖_*² / Σ λ_i`` and its relative error bound; 0 for invalid λ.

    It bounds ``max_i (B u_i)'Σ⁻¹(B u_i) · Σ_j w_j v_j Σ v_j'`` from below, whatever the covariance.
    """
    if not valid_weights(neighbour_weights):
        return 0.0, 0.0
    # Scaled to a maximum of 1 first, to avoid under- and overflow.
    shares = neighbour_weights / neighbour_weights.max()
    moves, queries = np.flatnonzero(shares), np.flatnonzero(weights)
    roots = np.sqrt(shares[moves] / shares.sum())
    judged = geometry.whole_trace_norm(weights, moves, roots)
    if judged is None:
        judged = linalg.trace_norm(*geometry.differences(queries, moves, np.sqrt(weights[queries]), roots))
    norm, rounding = judged
    weight_error = (len(queries) + len(moves) + 4) * linalg.EPS  # of the sums of weights
    return norm**2, 2 * rounding / norm + weight_error if norm > 0 else 0.0


def as_covariance(name: str, matrix: object) -> Array:
    """Return a finite, symmetric, positive semidefinite matrix; refuse others."""
    covariance = validate.symmetric(**{name: matrix})
    if linalg.regularised_covariance(covariance) is None:
        smallest = float(np.linalg.eigvalsh(covariance)[0])
        if smallest < -NEGATIVE_EIGENVALUE_TOL * np.abs(covariance).max():
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
    """Return the symmetric ``Σ / divisor``; another divisor than a positive number leaves Σ unchanged."""
    if not (np.isfinite(divisor) and divisor > 0):
        return covariance
    with np.errstate(over="ignore", invalid="ignore"):
        return (covariance + covariance.T) / 2 / divisor


@dataclass(frozen=True, slots=True, eq=False)
class Dense(Geometry[Array, Array, Array, Array]):
    """A matrix: ``W = L B``, and the sensitivity vectors ``B U`` of neighbours.

    A point is the covariance of the noise on B x (k, k); every query has a target or a weight.
    """

    workload: Workload  # W, (m, d)
    basis: Array  # (k, d) B, of full row rank k: rank W, or more where a problem allows it
    factor: Array | None  # (m, k) L; None if it is W and the first differences replace it
    steps: Steps | None  # the queries by their first differences, if these are few
    # (d, s) U, differences of neighbouring data sets up to sign; None for the identity
    neighbours: Matrix | None
    moves: Array  # (k, s) B U, the sensitivity vectors
    moves_rounding: Array | None  # (k, s) error bounds of their entries; None if they are B itself
    # (k - r, k) orthonormal rows f with ``f B U = 0``: insensitive directions, released exactly
    unmoved: Array
    # (m,) upper bounds on the entries of ``|W - L B|``: the difference between the queries of the two sides of a
    # certificate
    mismatch: Array
    # (k,) upper bounds on the change of the coordinates L of a query if each of its cells changes by 1
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
        """Check the consistency of the arguments, and factor the workload over the basis.

        - `redundant`: whether the basis may have more rows than the rank of the workload.
        """
        steps = check_workload(workload).steps()
        if steps is None or not steps.is_whole:
            validate.moderate(workload=workload.matrix)
        if not np.any(workload.row_norms()):
            raise InvalidInputError("workload must have at least one query that is not all zero")
        chosen, factor, extra = _factor(workload, steps, basis, redundant)
        checked = as_neighbour_matrix(neighbours, workload.shape[1], workload.domain)
        if basis is None and checked is not None:
            chosen = _equal_on_equal_cells(workload.dense(), chosen)
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
        """L (m, k) as a dense array."""
        return self.workload.dense() if self.factor is None else self.factor

    @classmethod
    def of_numbers(cls, request: Request, per_query: Array, neighbours: Matrix | None) -> Dense:
        """Return the geometry of the queries whose numbers are not 0 (targets never are).

        With targets the basis may have redundant rows.
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
            relation = ADD_REMOVE  # excludes impossible cells, unlike the identity
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
            raise InvalidInputError("geometry must be of this workload, without queries of weight 0")
        return per_query

    def argument_values(self) -> dict[str, object]:
        return {"basis": self.basis, "neighbours": self.neighbours}

    def in_numbers(self, workload: Workload, kind: str, numbers: Array) -> dict[str, object]:
        return {"kind": kind, "numbers": numbers} | self.matrices(workload)

    def on_rows(self, point: Array) -> tuple[Array, Array]:
        """Return the basis and the covariance of the noise on it."""
        return self.basis, np.asarray(point)

    def matrices(self, workload: Workload) -> dict[str, object]:
        """Return the matrices of a workload and of the neighbours, for proof files."""
        moves = None if self.neighbours is None else linalg.to_dense(self.neighbours)
        return {"workload": workload.dense(), "neighbours": moves}

    @property
    def rank(self) -> int:
        return int(self.basis.shape[0])

    @property
    def free_queries(self) -> npt.NDArray[np.intp]:
        """Indices of the queries with equal answers on all neighbours, released exactly; all-zero queries included."""
        if self.neighbours is None:
            return np.flatnonzero(self.workload.row_norms() == 0)
        changed = np.zeros(self.workload.shape[0], dtype=bool)
        for _, changes, allowed in changes_between(self.workload.matrix, self.neighbours):
            changed |= np.any(changes > allowed, axis=1)
        return np.flatnonzero(~changed)

    @property
    def reach(self) -> Array:
        """L1 norm of the difference of each pair of neighbours (s,)."""
        if self.neighbours is None:
            return np.ones(self.moves.shape[1])
        return np.asarray(abs(self.neighbours).sum(axis=0)).ravel()

    def differences(
        self, queries: npt.NDArray[np.intp], moves: npt.NDArray[np.intp], factors: Array, roots: Array
    ) -> tuple[Array, float]:
        """Return ``diag(factors) W U diag(roots)`` for some rows and columns, and an error bound in the Frobenius norm.

        W is the workload itself, while the costs of a certificate use ``L B``: ``(W - L B) U`` is part of the error.
        """
        rows, product_error = self.workload.matrix[queries], np.zeros(1)  # a copy, changed in place
        if self.neighbours is None:
            image = linalg.to_dense(rows if np.array_equal(moves, np.arange(rows.shape[1])) else rows[:, moves])
        else:
            image, product_error = product(rows, self.neighbours[:, moves])
        image *= roots
        image *= factors[:, None]
        error = np.linalg.norm(product_error * roots * factors[:, None]) if np.any(product_error) else 0.0
        error += np.linalg.norm(factors * self.mismatch[queries]) * np.linalg.norm(roots * self.reach[moves])
        return image, float(error + 2 * linalg.EPS * np.linalg.norm(image))

    def whole_trace_norm(self, weights: Array, moves: Index, roots: Array) -> tuple[float, float] | None:
        """Return `linalg.trace_norm` of many integer queries, scaled by √weights, from their Gram matrix.

        The weights are rounded down, which only lowers the bound. None for other neighbours than single records, few
        queries, or an inconclusive rank.
        """
        count, cells = self.workload.shape
        if self.neighbours is not None or count < linalg.GRAM_ASPECT_RATIO * cells:
            return None
        rows = self.steps if self.steps is not None and self.steps.is_whole else whole_matrix(self.workload.matrix)
        if rows is None:
            return None
        error = float(np.linalg.norm(np.sqrt(weights) * self.mismatch) * np.linalg.norm(roots))
        gram = exact_gram(rows, weights)
        if len(moves) < cells:
            gram = Enclosure(*(part[np.ix_(moves, moves)] for part in (gram.high, gram.low, gram.radius)))
        return linalg.trace_norm_by_gram(gram, roots, min(self.rank, len(moves)), error)

    def variances(self, covariance: Array) -> tuple[Array, Array]:
        """Return ``diag(L Σ L')`` (m,) and rounding-error bounds."""
        if self.factor is None and self.steps is not None and self.steps.is_whole:
            values, errors = self.steps.enclosed_forms(covariance)
            if np.all(errors <= STEPS_TOL * values):
                return values, errors
        return row_variances(self.representation, covariance, self.mismatch, self.leverage)

    def point(self, primal: object) -> Array:
        """Return a primal point after a check of its shape, not of its entries; refuse non-numeric values."""
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
        """The dense geometry of the noise: this one (streams and epochs have another)."""
        return self

    def mechanism(self, point: Array) -> LinearGaussianMechanism:
        """Return the mechanism of the regularised covariance; rows without noise are rounded to few digits."""
        regular, silent = linalg.regularised_covariance(point), np.diagonal(point) == 0
        rounded = mechanisms.noise.in_few_digits(self.basis) if np.any(silent) else self.basis
        rows = np.where(silent[:, None], rounded, self.basis)
        return mechanisms.gaussian.LinearGaussianMechanism(rows, point if regular is None else regular, self.neighbours)

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
            return float((_row_forms(self.representation, noise)[1] / targets).max())

    def weights(self, dual: object, queries: bool = True) -> tuple[Array, Array]:
        return as_dual_weights(dual, self.moves.shape[1], self.workload.shape[0] if queries else None)

    def bound(self, neighbour_weights: Array, query_weights: Array, targets: Array) -> Judged:
        """Return ``‖diag(√μ) W U diag(√λ)‖_*² / (Σ λ_i Σ μ_j c_j)`` and its relative error bound.

        Proof that it bounds α from below: with S = Σ^(1/2), ``Σ_i λ_i (B u_i)'Σ⁻¹(B u_i) = ‖S⁻¹ B U diag(√λ)‖_F²`` is
        at most ``α Σ λ_i``, and ``Σ_j μ_j v_j Σ v_j' = ‖diag(√μ) L S‖_F²`` is at most ``Σ μ_j c_j``. Multiply both and
        use ``‖X Y‖_* ≤ ‖X‖_F ‖Y‖_F``. The bound is 0 for invalid weights.
        """
        if not valid_weights(query_weights):
            return 0.0, 0.0
        scaled = query_weights / query_weights.max()
        return trace_norm_bound(self, neighbour_weights, scaled / (scaled @ targets))

    def total_bound(self, neighbour_weights: Array, weights: Array) -> Judged:
        """Return ``‖diag(√w) W U diag(√λ)‖_*² / Σ λ_i`` and its relative error bound.

        It bounds the total variance at cost 1 from below, by the proof of `bound` with ``Σ_j w_j v_j Σ v_j'`` for the
        second sum.
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
    """Return weights on neighbours (s,) and, unless `queries` is None, on queries (m,); refuse other shapes."""
    first, last = given_weights(dual, queries is not None)
    checked = read_weights(neighbours, first, *ON_NEIGHBOURS)
    return checked, np.zeros(0) if queries is None else read_weights(queries, last, *ON_QUERIES)


def _equal_on_equal_cells(dense: Array, rows: Array) -> Array:
    """Return rows with exactly equal entries on cells with equal columns of W, whose difference no query sees."""
    firsts: dict[bytes, int] = {}
    columns = np.ascontiguousarray(dense.T + 0.0)
    return rows[:, [firsts.setdefault(column.tobytes(), cell) for cell, column in enumerate(columns)]]


def _factor(
    workload: Workload, steps: Steps | None, basis: npt.ArrayLike | None, redundant: bool
) -> tuple[Array, Array | None, int]:
    """Return the basis B, the factor L with ``W = L B`` (None if it is W), and the number of redundant rows of B."""
    cells = workload.shape[1]
    rows = None if basis is None else np.array(validate.finite(2, basis=basis))
    on_cells = rows is None or (rows.shape == (cells, cells) and linalg.is_identity(rows))
    if on_cells and steps is not None and workload.shape[0] >= linalg.GRAM_ASPECT_RATIO * cells:
        norms = workload.row_norms()
        if linalg.are_clearly_independent(steps.gram(1 / np.where(norms > 0, norms, 1.0) ** 2)):
            return np.eye(cells), None, 0
    dense = workload.dense()
    if rows is None:
        orthonormal = without_rounding(linalg.row_basis(dense))
        if linalg.is_identity(orthonormal):
            return orthonormal, None, 0
        return orthonormal, dense @ orthonormal.T if steps is None else steps.times(orthonormal.T), 0
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
    pairs = [(query, places[row.tobytes()]) for query, row in enumerate(dense) if row.tobytes() in places]
    if pairs and representation is not None:
        # A query that is a row of the basis has exact coordinates, for any condition number of the basis.
        queries, positions = np.transpose(pairs)
        representation[queries] = np.eye(len(rows))[positions]
    return rows, representation, len(rows) - workload_rank


def row_variances(rows: Array, covariance: Array, mismatch: Array, leverage: Array) -> tuple[Array, Array]:
    """Return ``diag(L Σ L')`` (m,) for rows L (m, k), dense or sparse, and absolute rounding-error bounds.

    See `Dense` for `mismatch` and `leverage`.
    """
    values, errors = np.empty(rows.shape[0]), np.empty(rows.shape[0])
    sizes = np.abs(covariance)
    max_form = float(leverage @ sizes @ leverage)
    for start in range(0, rows.shape[0], CHUNK):
        part = slice(start, start + CHUNK)
        products, values[part] = _row_forms(rows[part], covariance)
        _, magnitudes = _row_forms(abs(rows[part]), sizes)
        # The rows of ``W - L B`` meet noise too, which may be large in directions in which the query is small.
        errors[part] = mismatch[part] * (2 * np.abs(products) @ leverage) + mismatch[part] ** 2 * max_form
        errors[part] += 2 * len(covariance) * linalg.EPS * magnitudes
    return values, errors


def _row_forms(rows: Matrix, covariance: Array) -> tuple[Array, Array]:
    """Return ``L Σ`` (m, k), and the diagonal of ``L Σ L'`` (m,)."""
    products = rows @ covariance
    if sp.issparse(rows):
        return products, np.asarray(rows.multiply(products).sum(axis=1)).ravel()
    return products, np.einsum("jk,jk->j", products, rows)


def _mismatch(dense: Array, basis: Array, representation: Array) -> Array:
    """Return upper bounds on the entries of each row of ``|W - L B|``."""
    bounds = np.empty(len(dense))
    for start in range(0, len(dense), CHUNK):
        rows = representation[start : start + CHUNK]
        residual = np.abs(dense[start : start + CHUNK] - rows @ basis).max(axis=1)
        is_basis_row = (np.count_nonzero(rows, axis=1) == 1) & (rows.max(axis=1) == 1)
        magnitude = (np.abs(rows) @ np.abs(basis)).max(axis=1)
        bounds[start : start + CHUNK] = residual + np.where(is_basis_row, 0.0, len(basis) * linalg.EPS * magnitude)
    return bounds
