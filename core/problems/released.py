"""An earlier release for reuse: rows with unit noise on a matrix, or one matrix for each block of tables.

The release contributes ``K'K`` to the total information ``Σ⁻¹``, so that ``K Σ K' ⪯ I``; blocks have one K each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.certificate import FEASIBLE
from dualmech.errors import GeometryError, InvalidInputError
from dualmech.geometry.base import EvaluatedForms, Judged
from dualmech.geometry.blocks import BlockPoint, Blocks, as_block_point, trace_norm
from dualmech.geometry.dense import Dense, as_dual_weights
from dualmech.geometry.moves import moves_between
from dualmech.geometry.weights import valid_weights
from dualmech.immutable import freeze
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.block_noise import Piece
from dualmech.mechanisms.frames import TableBlocks
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.noise import NoisyQueries, in_few_digits
from dualmech.problems.fitness import FitnessForUse
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.marginal import MarginalWorkload
from dualmech.workloads.unions import UnionWorkload, each_once

AnyPoint: TypeAlias = Any
"""A covariance on B x, or a `BlockPoint`."""


class Released(Protocol):
    """A requested workload and an earlier release on one geometry."""

    @property
    def wish(self) -> FitnessForUse:
        """The requested workload and targets alone."""

    @property
    def geometry(self) -> Any:
        """The geometry of the noise."""

    def weights(self, neighbours: object, queries: object, release: object) -> tuple[Array, Array, AnyPoint]:
        """Return weights λ, μ and Ω with checked shapes, and any entries."""

    @property
    def no_queries(self) -> Array:
        """Weights μ of 0."""

    def total(self, weights: AnyPoint) -> float:
        """Return tr Ω."""

    def bills(self, query_weights: Array) -> Array:
        """Return ``μ_j c_j`` of each query, or of each table."""

    def constraints(self, point: AnyPoint) -> EvaluatedForms | None:
        """Evaluate costs, and variances divided by targets, with limits of 1.

        The last constraint is the largest eigenvalue of ``K Σ K'``, if K has rows. None if it is no covariance.
        """

    def bound(self, neighbour_weights: Array, query_weights: Array, release_weights: AnyPoint) -> Judged:
        """Return the lower bound of dual weights and a relative error bound."""

    def feasible(self, point: AnyPoint) -> AnyPoint:
        """Return noise scaled so that the queries meet their targets, up to rounding errors."""

    def lean(self, point: AnyPoint) -> AnyPoint:
        """Return noise of cost ``K'K + t (Σ⁻¹ - K'K)`` with the least t at which the targets are met."""

    def alone(self) -> tuple[AnyPoint, Array, AnyPoint] | None:
        """Return the noise of the release, with optimal weights λ and Ω; None if it does not answer all directions."""

    def mechanism(self, point: AnyPoint) -> Any:
        """Return the composition of the release and the new mechanism."""

    def new_mechanism(self, point: AnyPoint, least: float) -> Any:
        """Return the mechanism of cost ``Σ⁻¹ - K'K``, or slightly more; see `ReuseFitness.new_mechanism`."""


CONSTRAINT_LIMIT = np.ones(1)
"""The upper limit of each constraint."""


def _with_last(
    forms: EvaluatedForms, ratios: Array, rounding: Array, eigenvalues: Sequence[Judged]
) -> EvaluatedForms | None:
    """Append the largest eigenvalue, if any, to the ratios; error bounds are absolute."""
    if eigenvalues:
        largest, allowances = zip(*eigenvalues, strict=True)
        if not np.isfinite(max(largest)):
            return None
        ratios, rounding = np.append(ratios, max(largest)), np.append(rounding, sum(allowances))
    return EvaluatedForms(forms.profile, ratios, forms.profile_rounding, rounding)


def released_on(wish: Callable[[str], FitnessForUse], released: Any) -> Released:
    """Return an earlier release with the requested problem, posed on the geometry of the release."""
    if isinstance(released, BlockMechanism):
        return ReleasedBlocks.of(wish("blocks"), released)
    return ReleasedRows.of(wish("dense"), released)


# On a matrix.


def unit_noise_rows(released: NoisyQueries, neighbours: Matrix | None) -> Array:
    """Return F (q, d), independent rows whose answers with unit noise are equivalent to the release.

    Exact answers that are equal for all neighbours are dropped; other exact answers have infinite cost and are refused.
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


@dataclass(frozen=True, slots=True, eq=False)
class ReleasedRows:
    """A release on a matrix; see `Released`."""

    wish: FitnessForUse
    together: FitnessForUse  # the relaxation with a variance of at most 1 for each row of the release
    rows: Array  # F (q, d)

    @classmethod
    def of(cls, wish: FitnessForUse, released: NoisyQueries) -> ReleasedRows:
        cells = wish.workload.shape[1]
        if cells != released.query_matrix.shape[1]:
            raise InvalidInputError(
                f"released must have {cells} cells, as the workload, got {released.query_matrix.shape[1]}"
            )
        rows, together = unit_noise_rows(released, wish.neighbours), wish
        if len(rows):
            validate.moderate(released=rows)
            together = FitnessForUse(
                Workload(np.vstack([wish.workload.dense(), rows])),
                np.concatenate([wish.targets, np.ones(len(rows))]),
                neighbours=wish.neighbours,
                geometry="dense",
            )
        return cls(wish, together, freeze(rows))

    @property
    def geometry(self) -> Dense:
        return self.together.geometry

    @property
    def coordinates(self) -> Array:
        """K (q, k), with ``F = K B``."""
        return self.geometry.representation[len(self.wish.targets) :]

    def weights(self, neighbours: object, queries: object, release: object) -> tuple[Array, Array, Array]:
        size = len(self.rows)
        weights = np.zeros((0, 0))
        if size or not validate.is_empty(release):
            weights = validate.numeric(2, **{"dual weights on the release": release})
        if weights.shape != (size, size):
            raise InvalidInputError(
                f"dual weights on the release must have shape ({size}, {size}), got {weights.shape}"
            )
        first, second = as_dual_weights((neighbours, queries), self.geometry.moves.shape[1], len(self.wish.targets))
        return first, second, np.asarray(weights, dtype=np.float64)

    @property
    def no_queries(self) -> Array:
        return np.zeros(len(self.wish.targets))

    def total(self, weights: Array) -> float:
        return float(np.trace(weights))

    def bills(self, query_weights: Array) -> Array:
        return query_weights * self.wish.targets

    def constraints(self, point: Array) -> EvaluatedForms | None:
        forms, targets, coordinates = self.geometry.forms(point), self.wish.targets, self.coordinates
        if forms is None:
            return None
        largest = [largest_eigenvalue(coordinates, point)] if len(coordinates) else []
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            ratios, rounding = (part[: len(targets)] / targets for part in (forms.variances, forms.variance_rounding))
        return _with_last(forms, ratios, rounding, largest)

    def bound(self, neighbour_weights: Array, query_weights: Array, release_weights: Array) -> Judged:
        """Return ``‖[diag(√μ) W ; Ω^½ F] U diag(√λ)‖_*² / (Σ λ_i (Σ μ_j c_j + tr Ω))`` and a relative error bound.

        Proof that it bounds α: the release adds queries ``a F`` for all unit vectors a, each with a target of 1. So
        ``Σ_j μ_j v_j Σ v_j' + tr(Ω K Σ K')``, which is ``‖[diag(√μ) L ; Ω^½ K] Σ^½‖_F²``, is at most ``Σ μ_j c_j + tr
        Ω``, and ``‖Σ^-½ B U diag(√λ)‖_F²`` is at most ``α Σ λ_i``; multiply, and use ``‖X Y‖_* ≤ ‖X‖_F ‖Y‖_F``. Any
        root of any Ω ⪰ 0 is valid, with its own trace. Invalid weights give the bound 0.
        """
        if not _are_valid(neighbour_weights, query_weights, release_weights.ravel()):
            return 0.0, 0.0
        # Weights are first scaled to a largest entry of 1, against under- and overflow.
        largest = max(np.abs(query_weights).max(initial=0.0), np.abs(release_weights).max(initial=0.0)) or 1.0
        scaled_weights, root = query_weights / largest, _root(release_weights / largest)
        total, geometry, count = (
            float(self.bills(scaled_weights).sum() + np.sum(root**2)),
            self.geometry,
            len(scaled_weights),
        )
        if not total > 0:
            return 0.0, 0.0
        shares = neighbour_weights / neighbour_weights.max()
        pairs, queries = np.flatnonzero(shares), np.flatnonzero(scaled_weights)
        shares = np.sqrt(shares[pairs] / shares.sum())
        differences, error = geometry.differences(queries, pairs, np.sqrt(scaled_weights[queries]), shares)
        indices = np.arange(count, count + len(root))
        released_rows, released_error = geometry.differences(indices, pairs, np.ones(len(indices)), shares)
        released_error += len(indices) * linalg.EPS * float(np.linalg.norm(released_rows))
        norm, allowance = linalg.trace_norm(
            np.vstack([differences, root @ released_rows]), error + float(np.linalg.norm(root)) * released_error
        )
        sums = (len(queries) + len(pairs) + root.size) * linalg.EPS
        return norm**2 / total, 2 * allowance / norm + sums if norm > 0 else 0.0

    def feasible(self, point: Array) -> Array:
        return np.asarray(self.together.feasible(point))

    def lean(self, point: Array) -> Array:
        rows = self.geometry.representation[: len(self.wish.targets)]
        directions = KnownDirections.of(point, self.coordinates)
        squares = directions.squares(rows) / self.wish.targets[:, None]
        share = least_share(lambda share: float(directions.mixed(squares, share).max()))
        return point if share is None else directions.noise(share)

    def alone(self) -> tuple[Array, Array, Array] | None:
        """Return the noise of the release, with λ on its costliest pair u alone, and ``Ω = (F u)(F u)' / α`` (`bound`).

        Then ``‖Ω^½ F u‖² = ‖F u‖² = α``, with ``tr Ω = 1``.
        """
        coordinates = self.coordinates
        if len(coordinates) < self.geometry.rank:
            return None
        inverse = np.linalg.inv(coordinates)
        covariance = inverse @ inverse.T
        forms = self.constraints(covariance)
        if forms is None:
            return None
        profile = forms.profile
        costliest = int(np.argmax(profile))
        sensitivity = coordinates @ self.geometry.moves[:, costliest]
        return (
            covariance,
            _unit_vector(costliest, len(profile)),
            np.outer(sensitivity, sensitivity) / (sensitivity @ sensitivity),
        )

    def mechanism(self, point: Array) -> LinearGaussianMechanism:
        mechanism: LinearGaussianMechanism = self.together.mechanism(point)
        return mechanism

    def new_mechanism(self, point: Array, least: float) -> LinearGaussianMechanism:
        rows, silent = KnownDirections.of(point, self.coordinates).new_information(least)
        noise = np.diag(np.repeat([1.0, 0.0], [len(rows), len(silent)]))
        basis = self.geometry.basis
        return LinearGaussianMechanism(
            np.vstack([rows @ basis, in_few_digits(silent @ basis)]), noise, self.wish.neighbours
        )


# On blocks.


@dataclass(frozen=True, slots=True, eq=False)
class ReleasedBlocks:
    """A release of tables, block by block; see `Released`.

    K is the symmetric root of the release's information on a block, without insensitive directions. Weights Ω are a
    number for each block of one coordinate and a matrix for each other block, and the trace is the sum over all blocks.
    """

    wish: FitnessForUse
    whole: Blocks  # the blocks of all tables, requested tables first
    geometry: Blocks  # the same blocks with the rows of the requested tables alone
    coordinates: BlockPoint  # K: a number for each block of one coordinate, a matrix for each other

    @classmethod
    def of(cls, wish: FitnessForUse, released: BlockMechanism) -> ReleasedBlocks:
        workload = wish.workload.tabular()
        if workload is None or workload.domain != released.domain:
            raise InvalidInputError("released must be on the attributes of the workload, which must be of tables")
        if wish.geometry.neighbours != released.neighbours:
            raise InvalidInputError(
                "neighbours must be those of the release of tables, so that both costs add up; got others"
            )
        whole = _all_blocks(workload, released)
        frame = TableBlocks([BlockMechanism(whole, _equal_noise(whole)), released], ("workload", "released"))
        return cls(wish, whole, whole.of_first_tables(workload), _released_roots(whole, frame.refined(released).pieces))

    def weights(self, neighbours: object, queries: object, release: object) -> tuple[Array, Array, BlockPoint]:
        checked = as_block_point(self.geometry, release, "dual weights on the release")
        return *self.geometry.weights((neighbours, queries)), checked

    @property
    def no_queries(self) -> Array:
        return np.zeros(len(self.geometry.tables))

    def total(self, weights: BlockPoint) -> float:
        return float(weights.levels.sum() + sum(np.trace(covariance) for covariance in weights.covariances))

    def bills(self, query_weights: Array) -> Array:
        tables, targets = self.geometry.tables, self.wish.targets
        return np.asarray(np.bincount(tables, query_weights * targets[tables], len(targets)), dtype=np.float64)

    def constraints(self, point: BlockPoint) -> EvaluatedForms | None:
        forms, targets = self.geometry.forms(point), self.wish.targets
        if forms is None:
            return None
        largest = float((self.coordinates.levels**2 * point.levels).max(initial=0.0))
        eigenvalues = [(largest, 4 * linalg.EPS * largest)]
        for known, covariance in zip(self.coordinates.covariances, point.covariances, strict=True):
            eigenvalues.append(largest_eigenvalue(known, covariance))
        ratios, (excess, rounding) = forms.ratios(targets), forms.excess(targets)
        return _with_last(forms, ratios, np.full(len(ratios), excess * rounding), eigenvalues)

    def bound(self, neighbour_weights: Array, query_weights: Array, release_weights: BlockPoint) -> Judged:
        """Return ``(Σ_b ‖[diag(√μ) V_b ; Ω_b^½ K_b] D_b diag(√λ)‖_*)² / (Σ λ_o (Σ μ_j c_j + Σ_b tr Ω_b))``.

        Returned with a relative error bound. Proof as on a matrix (`ReleasedRows.bound`): the covariance of the noise
        on all blocks is block diagonal, and the trace norms of blocks add up.
        """
        levels, matrices = release_weights.levels, release_weights.covariances
        if not _are_valid(
            neighbour_weights, query_weights, np.concatenate([levels, *(matrix.ravel() for matrix in matrices)])
        ):
            return 0.0, 0.0
        largest = max(float(np.abs(array).max(initial=0.0)) for array in (query_weights, levels, *matrices)) or 1.0
        scaled_weights, roots = query_weights / largest, [_root(matrix / largest) for matrix in matrices]
        singles = np.maximum(levels / largest, 0.0)
        total = float(self.bills(scaled_weights).sum() + singles.sum() + sum(np.sum(root**2) for root in roots))
        if not total > 0:
            return 0.0, 0.0
        indices = [
            root @ released_rows for root, released_rows in zip(roots, self.coordinates.covariances, strict=True)
        ]
        blocks = with_rows(self.geometry, np.sqrt(singles) * self.coordinates.levels, indices)
        shares = neighbour_weights / neighbour_weights.max()
        shares = shares / shares.sum()
        ones = np.ones(len(blocks.tables) - len(scaled_weights))
        norm, allowance = trace_norm(blocks, shares, np.concatenate([scaled_weights, ones]))
        for block, root, released_rows in zip(blocks.matrix_blocks, roots, self.coordinates.covariances, strict=True):
            length = float(np.linalg.norm(block.steps * np.sqrt(shares[block.orbits])))
            size = len(root)
            error = (size + 2) * linalg.EPS * float(np.linalg.norm(root) * np.linalg.norm(released_rows)) * length
            allowance += np.sqrt(size) * error
        sums = (len(scaled_weights) + len(shares) + sum(root.size for root in roots)) * linalg.EPS
        return norm**2 / total, 2 * allowance / norm + sums if norm > 0 else 0.0

    def feasible(self, point: BlockPoint) -> BlockPoint:
        forms = self.constraints(point)
        return point if forms is None else self.geometry.divide(point, forms.excess(CONSTRAINT_LIMIT)[0])

    def lean(self, point: BlockPoint) -> BlockPoint:
        geometry, targets = self.geometry, self.wish.targets[self.geometry.tables]
        known_levels = np.minimum(self.coordinates.levels**2 * point.levels, 1.0)
        pairs = zip(point.covariances, self.coordinates.covariances, strict=True)
        matrices = [KnownDirections.of(covariance, directions) for covariance, directions in pairs]
        squares = [part.squares(block.queries) for part, block in zip(matrices, geometry.matrix_blocks, strict=True)]

        def excess(share: float) -> float:
            variances = geometry.scalar_blocks @ (point.levels / (known_levels + share * (1 - known_levels)))
            for part, block, values in zip(matrices, geometry.matrix_blocks, squares, strict=True):
                np.add.at(variances, block.rows, part.mixed(values, share))
            return float((variances / targets).max())

        share = least_share(excess)
        if share is None:
            return point
        return BlockPoint(
            point.levels / (known_levels + share * (1 - known_levels)), tuple(part.noise(share) for part in matrices)
        )

    def alone(self) -> tuple[BlockPoint, Array, BlockPoint] | None:
        """Return the noise of the release, with λ on its costliest neighbours alone; see `ReleasedRows.alone`."""
        known = self.coordinates
        full = all(
            linalg.numerical_rank(np.linalg.svd(covariance)[1], covariance.shape) == len(covariance)
            for covariance in known.covariances
        )
        if not (full and np.all(known.levels > 0)):
            return None
        inverses = [np.linalg.inv(covariance) for covariance in known.covariances]
        point = BlockPoint(known.levels**-2.0, tuple(inverse @ inverse.T for inverse in inverses))
        forms = self.constraints(point)
        if forms is None or not np.all(np.isfinite(forms.profile)):
            return None
        profile = forms.profile
        costliest = int(np.argmax(profile))
        block_costs = np.asarray(self.geometry.reach[[costliest]].todense()).ravel()
        weights = []
        for covariance, block in zip(known.covariances, self.geometry.matrix_blocks, strict=True):
            moves = covariance @ block.steps[:, block.orbits == costliest]
            weights.append(moves @ moves.T / profile[costliest])
        levels = known.levels**2 * block_costs / profile[costliest]
        return point, _unit_vector(costliest, len(profile)), BlockPoint(levels, tuple(weights))

    def mechanism(self, point: BlockPoint) -> BlockMechanism:
        return BlockMechanism(self.whole, point)

    def new_mechanism(self, point: BlockPoint, least: float) -> BlockMechanism:
        known = self.coordinates
        mechanism = BlockMechanism(self.whole, _equal_noise(self.whole))
        pieces = {}
        new_shares = 1 - known.levels**2 * point.levels
        for key, level, share, copies in zip(self.whole.keys, point.levels, new_shares, self.whole.copies, strict=True):
            if share > FEASIBLE:
                noise = np.full((1, 1), level / share * copies)
                pieces[key] = Piece.of(mechanism.symmetries, mechanism.moved, key, np.ones((1, 1)), noise)
        for block, covariance, earlier in zip(
            self.whole.matrix_blocks, point.covariances, known.covariances, strict=True
        ):
            rows, _ = KnownDirections.of(covariance, earlier).new_information(least)
            if len(rows):
                # Independent noise on orthonormal rows is a covariance at any ratio of its variances.
                _, sizes, directions = linalg.svd(rows)
                noise = np.diag(block.copies * sizes**-2.0)
                moves = directions @ block.moves
                pieces[block.key] = Piece.of(mechanism.symmetries, mechanism.moved, block.key, moves, noise)
        return mechanism.with_pieces(pieces)


def with_rows(blocks: Blocks, levels: Array, matrices: list[Array]) -> Blocks:
    """Append rows, each with its own orbit, to all blocks: a number or a matrix (n, r) for each block."""
    first = len(blocks.tables)
    singles = sp.diags_array(levels**2)
    counts = [len(matrix) for matrix in matrices]
    starts = np.cumsum([first + len(levels), *counts])
    matrix_blocks = tuple(
        replace(
            block,
            rows=np.concatenate([block.rows, np.arange(start, start + len(matrix))]),
            queries=np.vstack([block.queries, matrix]),
        )
        for block, matrix, start in zip(blocks.matrix_blocks, matrices, starts, strict=False)
    )
    count = len(levels) + sum(counts)
    empty = sp.csr_array((sum(counts), len(levels)))
    return replace(
        blocks,
        tables=np.concatenate([blocks.tables, int(blocks.tables.max(initial=-1)) + 1 + np.arange(count)]),
        magnitudes=np.concatenate([blocks.magnitudes, np.zeros(count)]),
        counts=np.concatenate([blocks.counts, np.ones(count)]),
        scalar_blocks=sp.csr_array(sp.vstack([blocks.scalar_blocks, singles, empty], format="csr")),
        matrix_blocks=matrix_blocks,
    )


def _all_blocks(workload: MarginalWorkload | UnionWorkload, released: BlockMechanism) -> Blocks:
    """Return the blocks of the requested tables, then of the released tables."""
    released_tables = released.workload or released.needed_tables
    domain: Domain = released.domain
    marginal = isinstance(workload, MarginalWorkload) and isinstance(released_tables, MarginalWorkload)
    if marginal and released.neighbours is None:
        axes = (*workload.axes, *(axis for axis in released_tables.axes if axis not in workload.axes))  # type: ignore[union-attr]
        return Blocks.of_marginals(MarginalWorkload(domain, axes))
    names = [table.name for table in workload.product_tables]
    if len({*names}) < len(names):  # names must be distinct
        raise InvalidInputError("workload must have each table once, to be reused with a release of other tables")
    tables = each_once((*workload.product_tables, *released_tables.product_tables))
    try:
        return Blocks.of(UnionWorkload(domain, tables), neighbours=released.neighbours)
    except GeometryError as error:
        raise InvalidInputError(f"released and the workload have too little common symmetry: {error}") from None


def _equal_noise(blocks: Blocks) -> BlockPoint:
    return BlockPoint(np.ones(len(blocks.keys)), tuple(np.eye(len(block.moves)) for block in blocks.matrix_blocks))


def _released_roots(whole: Blocks, pieces: dict[Any, Piece]) -> BlockPoint:
    """Return K of each block from the noise of the release; 0 for insensitive blocks."""
    levels = np.zeros(len(whole.keys))
    sensitive = np.diff(sp.csc_array(whole.reach).indptr) > 0
    for index, key in enumerate(whole.keys):
        if sensitive[index] and (piece := pieces.get(key)) is not None:
            levels[index] = abs(piece.moves[0, 0]) * np.sqrt(piece.copies / piece.covariance[0, 0])
    matrices = []
    for block in whole.matrix_blocks:
        size, piece = len(block.moves), pieces.get(block.key)
        if piece is None:
            matrices.append(np.zeros((size, size)))
            continue
        factor = linalg.cholesky(piece.covariance / piece.copies)
        if factor is None:
            raise InvalidInputError("released must have a positive definite covariance on each block")
        rows = scipy.linalg.solve_triangular(factor, piece.moves @ block.moves.T, trans="T", check_finite=False)
        directions = block.moved()
        if directions is not None:
            rows = rows @ directions @ directions.T
        _, values, right = linalg.svd(rows)
        rank = linalg.numerical_rank(values, rows.shape)
        matrices.append((right[:rank].T * values[:rank]) @ right[:rank])
    return BlockPoint(levels, tuple((matrix + matrix.T) / 2 for matrix in matrices))


# On both geometries.


@dataclass(frozen=True, slots=True, eq=False)
class KnownDirections:
    """Directions of a covariance, and the release's share of the information in each.

    With ``Σ = C C'``, these are the right singular vectors of ``K C`` and its squared singular values, at most 1. The
    difference ``Σ⁻¹ - K'K`` is not formed.
    """

    root: Array  # C with the directions for its columns
    inverse: Array  # a left inverse of it
    shares: Array
    silent: Array  # rows N without noise, ``N Σ N' = 0``

    @classmethod
    def of(cls, covariance: Array, coordinates: Array) -> KnownDirections:
        root, inverse, silent = _split(covariance)
        _, values, directions = linalg.svd(coordinates @ root, full_matrices=True)
        shares = np.zeros(len(directions))
        shares[: len(values)] = np.minimum(values**2, 1.0)
        return cls(root @ directions.T, directions @ inverse, shares, silent)

    def new_information(self, least: float) -> tuple[Array, Array]:
        """Return rows R with ``R'R = Σ⁻¹ - K'K``, and the rows without noise, both on B x.

        Directions with a share of at least ``1 - 1e-9`` from the release are dropped. If others remain, and `least` is
        not 0, R has at least this share of the information in every direction.
        """
        shares = 1 - self.shares
        new = shares > FEASIBLE
        if least and new.any():
            shares, new = np.maximum(shares, least), np.ones_like(new)
        return np.sqrt(shares[new])[:, None] * self.inverse[new], self.silent

    def squares(self, rows: Array) -> Array:
        return np.asarray((rows @ self.root) ** 2)

    def mixed(self, squares: Array, share: float) -> Array:
        """Return variances of rows with these `squares`, with a share of the new information."""
        return np.asarray((squares / (self.shares + share * (1 - self.shares))).sum(axis=1))

    def noise(self, share: float) -> Array:
        """Return the covariance with cost ``K'K + t (Σ⁻¹ - K'K)`` for the share t."""
        half = self.root / np.sqrt(self.shares + share * (1 - self.shares))
        return np.asarray(half @ half.T)


def least_share(excess: Callable[[float], float]) -> float | None:
    """Return the least share of new information that meets all limits, rounded up; None if a share of 1 does not."""
    low, high = 0.0, 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        if not excess(high) < 1:
            return None
        while low < (middle := (low + high) / 2) < high:
            low, high = (low, middle) if excess(middle) <= 1 else (middle, high)
    return high


def largest_eigenvalue(coordinates: Array, covariance: Array) -> Judged:
    """Return the largest eigenvalue of ``K Σ K'`` and an absolute error bound; infinite if Σ is no covariance."""
    fixed = linalg.regularised_covariance((covariance + covariance.T) / 2)
    if fixed is None:
        return np.inf, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        product = coordinates @ fixed @ coordinates.T
        magnitude = np.linalg.norm(np.abs(coordinates) @ np.abs(fixed) @ np.abs(coordinates).T)
    if not np.isfinite(magnitude):
        return np.inf, 0.0
    largest = float(np.linalg.eigvalsh((product + product.T) / 2)[-1])
    return largest, 4 * len(fixed) * linalg.EPS * float(magnitude)


def _are_valid(neighbour_weights: Array, query_weights: Array, release_weights: Array) -> bool:
    """Whether weights are finite, non-negative on neighbours and queries, and not all 0 on neighbours."""
    entries = np.append(query_weights, release_weights)
    return bool(valid_weights(neighbour_weights) and np.all(np.isfinite(entries)) and np.all(query_weights >= 0))


def _unit_vector(index: int, count: int) -> Array:
    vector = np.zeros(count)
    vector[index] = 1.0
    return vector


def _root(weights: Array) -> Array:
    if not weights.size:
        return weights
    values, vectors = np.linalg.eigh((weights + weights.T) / 2)
    return np.asarray(np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T)


def _split(covariance: Array) -> tuple[Array, Array, Array]:
    """Return C with ``C C' = Σ``, a left inverse of C, and rows N without noise, ``N Σ N' = 0``."""
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
