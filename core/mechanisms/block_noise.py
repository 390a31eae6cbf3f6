"""Noise on the blocks of tables: what it costs, and how accurate it makes any table or product query."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.attribute_symmetry import AttributeSymmetry, Key, Parts
from dualmech.geometry.base import Index, Judged
from dualmech.geometry.block_neighbours import NeighbourMoves
from dualmech.geometry.block_rows import BlockRows
from dualmech.geometry.blocks import Blocks
from dualmech.geometry.dense import judged_covariance
from dualmech.immutable import freeze
from dualmech.linalg import EPS
from dualmech.mechanisms.costs import require_told
from dualmech.mechanisms.tables import LARGEST_TABLE
from dualmech.neighbours import Relation
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Axes, Domain, count_text
from dualmech.workloads.marginal import MarginalWorkload
from dualmech.workloads.unions import Table, UnionWorkload, tables_of

# What an array over an attribute's values shows of its components, along one axis and without a matrix.
#
# Where values are exchanged, the part in the component of a class is its entries less their mean: it stays one
# number per value, on no basis. Where they are turned, it is coordinates on the waves of
# `AttributeSymmetry.directions`, by fast Fourier transforms. Either way parts have the inner products of what they are
# parts of, and have places along the axis: those of a component are `places`.


class WholeAttribute(AttributeSymmetry):
    """The symmetry of an attribute all of whose values are exchanged; it takes no room, whatever their number."""

    __slots__ = ()

    def __post_init__(self) -> None:
        self._hold_sizes(np.array([float(len(self.labels))]))


def marginal_symmetries(sizes: Iterable[int]) -> tuple[AttributeSymmetry, ...]:
    return tuple(
        WholeAttribute(
            np.broadcast_to(np.intp(0), size),
            np.zeros(int(size > 1), dtype=np.intp),
            np.full(int(size > 1), size - 1.0),
            False,
        )
        for size in sizes
    )


def places(symmetry: AttributeSymmetry, component: int) -> Index:
    """Return where along the axis the parts in a component lie: of values of its class, or of its waves."""
    if symmetry.turning:
        return 2 * component + np.arange(int(symmetry.dimensions[component]))
    return np.flatnonzero(symmetry.labels == symmetry.classes[component])


def parts_of(symmetry: AttributeSymmetry, array: Array, axis: int = 0) -> Array:
    """Return the parts in all components: n places along the axis, or n - 1 of waves.

    Examples
    --------
    >>> import numpy as np
    >>> from dualmech.geometry.attribute_symmetry import AttributeSymmetry
    >>> parts_of(AttributeSymmetry.of([], 3), np.array([1.0, 2.0, 6.0]))
    array([-2., -1.,  3.])
    """
    if not symmetry.turning:
        return np.asarray(array - spread_over_values(symmetry, class_sums(symmetry, array, axis), axis))
    size = len(symmetry.labels)
    waves = np.fft.rfft(np.moveaxis(array, axis, -1), axis=-1)[..., 1:]
    pairs = np.stack([waves.real, -waves.imag], axis=-1).reshape(*waves.shape[:-1], -1)
    return np.asarray(np.moveaxis(pairs[..., : size - 1] * _units(symmetry), -1, axis))


def from_parts(symmetry: AttributeSymmetry, parts: Array, axis: int = 0) -> Array:
    """Return the function on the values that has these parts and no constant, the adjoint of `parts_of`."""
    if not symmetry.turning:
        return parts
    size = len(symmetry.labels)
    scaled = np.moveaxis(parts, axis, -1) / _units(symmetry)
    if size % 2 == 0:
        scaled = np.concatenate([scaled, np.zeros((*scaled.shape[:-1], 1))], axis=-1)
    waves = np.concatenate([np.zeros((*scaled.shape[:-1], 1)), scaled[..., 0::2] - 1j * scaled[..., 1::2]], axis=-1)
    return np.asarray(np.moveaxis(np.fft.irfft(waves, size, axis=-1), -1, axis))


def class_sums(symmetry: AttributeSymmetry, array: Array, axis: int = 0) -> Array:
    size = len(symmetry.labels)
    if len(symmetry.sizes) == 1:
        return np.asarray(array.sum(axis=axis, keepdims=True))
    class_of = sp.csr_array((np.ones(size), symmetry.labels, np.arange(size + 1)))
    moved = np.moveaxis(array, axis, 0)
    sums = class_of.T @ moved.reshape(size, -1)
    return np.moveaxis(sums.reshape(-1, *moved.shape[1:]), 0, axis)


def spread_over_values(symmetry: AttributeSymmetry, sums: Array, axis: int = 0) -> Array:
    means = np.moveaxis(sums, axis, -1) / symmetry.sizes
    return np.moveaxis(means[..., symmetry.labels], -1, axis)


def of_query(symmetry: AttributeSymmetry, factor: Array) -> tuple[Array, Array]:
    """Return the class means and the parts of a query's factor (n,), rounding set to zero."""
    cut = 4 * len(factor) * EPS * np.abs(factor).max()
    means, parts = class_sums(symmetry, factor) / symmetry.sizes, parts_of(symmetry, factor)
    return np.where(np.abs(means) > cut, means, 0.0), np.where(np.abs(parts) > cut, parts, 0.0)


def inner_products(symmetry: AttributeSymmetry, one: Array, two: Array) -> Array:
    """Return the inner product of two arrays of parts (n,) in every component."""
    return np.array(
        [
            one[where] @ two[where]
            for where in (places(symmetry, component) for component in range(len(symmetry.classes)))
        ]
    )


def unit_noise(symmetry: AttributeSymmetry, component: int, draws: Array, axis: int) -> Array:
    return draws if symmetry.turning else np.asarray(draws - draws.mean(axis=axis, keepdims=True))


def scaled_residual(table: npt.NDArray[Any], axes: int) -> npt.NDArray[Any]:
    """Return n times each entry less the sum along its line, for each of the first axes: whole numbers stay whole."""
    for axis in range(axes):
        table = table.shape[axis] * table - table.sum(axis=axis, keepdims=True)
    return table


def _units(symmetry: AttributeSymmetry) -> Array:
    """Return the norms that make waves orthonormal, one per place."""
    size = len(symmetry.labels)
    units = np.full(size - 1, np.sqrt(2 / size))
    if size % 2 == 0:
        units[-1] = np.sqrt(1 / size)
    return units


def factors_of(domain: Domain, query: Mapping[str, npt.ArrayLike], argument: str = "query") -> dict[int, Array]:
    validate.mapping("attributes to factors", **{argument: query})
    factors = {}
    for name, factor in query.items():
        (axis,) = domain.axes([name])
        factors[axis] = validate.vector(domain.shape[axis], "value", **{f"{argument}[{name!r}]": factor})
    return factors


EVEN = 1e-12
"""What rounding may make a basis differ over classes that it does not tell apart, relative to its largest entry."""

ROUNDINGS = 8  # how many roundings the cost of a block of one coordinate may have seen


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Noise on a block.

    A copy of the block is a choice of an orthonormal function u_i in the component of every attribute of the key. Its
    coordinate o is the sum of the data times ``Π u_i`` over the cells of the wide attributes' classes that o names,
    divided by ``weight = 1/√(Π n_i)``, n_i the size of the class on which the component lives. In every copy ``moves``
    times the coordinates are released with noise of one covariance, `copies` times the covariance of a `BlockPoint`.
    """

    moves: Array  # the basis, in coordinates (r, b)
    covariance: Array  # (r, r)
    root: Array  # R with R'R the covariance
    weight: float
    copies: float
    costs: Array  # of each move of neighbours (s,)
    rounding: Array  # allowance for the rounding of the costs
    orbits: Index  # the orbit of neighbours that makes the move (s,)
    classed: Axes = ()  # wide attributes outside the key whose classes `moves` tells apart: it is even over others'

    @classmethod
    def of(
        cls,
        symmetries: Sequence[AttributeSymmetry],
        neighbours: NeighbourMoves,
        key: Key,
        moves: Array,
        covariance: Array,
    ) -> Piece:
        """Judge the covariance of a copy."""
        steps, orbits = neighbours.steps(key, moves)
        pairs = [(symmetries[axis], component) for axis, component in key]
        weight = math.prod(float(symmetry.sizes[symmetry.classes[component]]) for symmetry, component in pairs) ** -0.5
        copies = math.prod(float(symmetry.dimensions[component]) for symmetry, component in pairs)
        if moves.size == 1:
            level, one = float(covariance[0, 0]), np.ones((1, 1))
            if not (math.isfinite(level) and level > 0):
                raise InvalidInputError(f"levels must be positive and finite, got {level:g}")
            if not (math.isfinite(basis := float(moves.flat[0])) and basis):
                raise InvalidInputError(f"moves of a block of one row must be finite and not 0, got {basis:g}")
            cost = copies / level * (steps[0] / moves[0]) ** 2
            root = one * math.sqrt(level)
            return cls(one, one * level, root, weight, copies, cost, ROUNDINGS * linalg.EPS * cost, orbits)
        judged = judged_covariance(covariance, steps)
        triangle = None if judged is None else linalg.cholesky(judged[0])
        if judged is None or triangle is None:
            raise InvalidInputError("point must have positive definite covariances")
        outside = [axis for axis in neighbours.rows.wide if axis not in dict(key)]
        spread = moves.reshape(len(moves), *(len(symmetries[axis].sizes) for axis in outside))
        uneven = [np.ptp(spread, axis=place).max() for place in range(1, spread.ndim)]
        limit = EVEN * np.abs(moves).max()
        classed = tuple(axis for axis, most in zip(outside, uneven, strict=True) if most > limit)
        costs, rounding = copies * judged[1], copies * judged[2]
        return cls(moves, judged[0], triangle, weight, copies, costs, rounding, orbits, classed)

    def costing(self, share: float) -> Piece:
        """Return the same noise, with costs that are higher by a share."""
        return replace(self, rounding=self.rounding + share * (self.costs + self.rounding))

    def scaled(self, factor: float) -> Piece:
        """Return all noise times a number."""
        return replace(
            self,
            covariance=self.covariance * factor,
            root=self.root * math.sqrt(factor),
            costs=self.costs / factor,
            rounding=self.rounding / factor + 4 * linalg.EPS * (self.costs / factor),
        )

    @property
    def unit(self) -> float:
        """What rounding may move a variance by, next to what magnitudes in the place of all numbers would make it."""
        return 4 * (sum(self.moves.shape) + 8) * linalg.EPS

    def covers(self, rows: Array, coordinates: Array) -> bool:
        """Whether rows, of these coordinates on the basis, lie in its span."""
        missed = np.linalg.norm(rows - coordinates @ self.moves)
        return bool(missed <= linalg.SPAN_TOLERANCE * np.linalg.norm(rows))


def axes_of(key: Key) -> Axes:
    return tuple(axis for axis, _ in key)


BlockQueries = tuple[Index, Array, Array]
"""Rows of a table in a block: their orbits, what they are on the basis, and that with magnitudes for numbers."""

ProductQuery = Mapping[int, tuple[Array, Array]]
"""Of a product query: the class means and the parts of each attribute's factor, by position."""


class BlockNoise:
    """Noise on the blocks of tables; see `BlockMechanism` for the parameters."""

    __slots__ = (
        "costs",
        "domain",
        "symmetries",
        "known",
        "largest",
        "moved",
        "neighbours",
        "pieces",
        "rounding",
        "workload",
    )

    domain: Domain
    symmetries: tuple[AttributeSymmetry, ...]
    neighbours: Relation | None  # None for one record added or removed
    moved: NeighbourMoves
    pieces: dict[Key, Piece]
    costs: Array  # of each orbit of neighbours
    largest: float  # variance of the numbers released for a block
    workload: UnionWorkload | MarginalWorkload | None
    known: Mapping[str, tuple[Parts, ...]]  # what the tables of a union ask of each attribute, by name

    def __init__(self, blocks: Blocks, point: object) -> None:
        workload, checked = validate.instance(Blocks, blocks=blocks).workload, blocks.point(point)
        assert workload.domain is not None
        symmetries = blocks.symmetries or marginal_symmetries(workload.domain.shape)
        keys, rows = (
            [*blocks.keys, *(block.key for block in blocks.matrix_blocks)],
            BlockRows(symmetries, blocks.wide),
        )
        moved = NeighbourMoves.of(blocks.neighbours, workload.domain, symmetries, rows, keys)
        one = np.ones((1, 1))
        levels = zip(blocks.keys, (checked.levels * blocks.copies).tolist(), strict=True)
        pieces = {key: Piece.of(symmetries, moved, key, one, one * level) for key, level in levels}
        for block, covariance in zip(blocks.matrix_blocks, checked.covariances, strict=True):
            noise = covariance * block.copies
            pieces[block.key] = Piece.of(symmetries, moved, block.key, block.moves, noise)
        known = dict(zip(workload.table_names, blocks.parts, strict=True)) if blocks.symmetries else {}
        self._hold(workload.domain, symmetries, blocks.neighbours, moved, pieces, workload, known)

    def _hold(
        self,
        domain: Domain,
        symmetries: tuple[AttributeSymmetry, ...],
        neighbours: Relation | None,
        moved: NeighbourMoves,
        pieces: dict[Key, Piece],
        workload: UnionWorkload | MarginalWorkload | None = None,
        known: Mapping[str, tuple[Parts, ...]] | None = None,
    ) -> None:
        self.domain, self.symmetries, self.neighbours, self.moved = domain, symmetries, neighbours, moved
        self.pieces, self.workload, self.known = pieces, workload, known or {}
        self.largest = max((float(np.diagonal(piece.covariance).max()) for piece in pieces.values()), default=0.0)
        self.costs, self.rounding = np.zeros(moved.count), np.zeros(moved.count)
        for piece in pieces.values():
            np.add.at(self.costs, piece.orbits, piece.costs)
            np.add.at(self.rounding, piece.orbits, piece.rounding + len(pieces) * linalg.EPS * piece.costs)
        self.costs, self.rounding, *_ = freeze((self.costs, self.rounding, pieces, moved, symmetries))

    def with_pieces(self, pieces: dict[Key, Piece]) -> Self:
        """Return other noise with the same symmetry."""
        mechanism = object.__new__(type(self))
        kept = self.workload if isinstance(self.workload, UnionWorkload) else None
        mechanism._hold(self.domain, self.symmetries, self.neighbours, self.moved, pieces, kept, self.known)
        return mechanism

    def answering(self, workload: UnionWorkload) -> Self:
        """Return the same noise with other tables by name; those that it does not answer are refused when asked for."""
        mechanism = object.__new__(type(self))
        mechanism._hold(self.domain, self.symmetries, self.neighbours, self.moved, self.pieces, workload)
        return mechanism

    @property
    def rank(self) -> float:
        """Number of independent queries that are answered, 0 for the mechanism that releases nothing."""
        return sum(piece.copies * len(piece.moves) for piece in self.pieces.values())

    @property
    def wide(self) -> Axes:
        """The attributes whose values fall into several classes."""
        return self.moved.rows.wide

    @property
    def profile(self) -> Array:
        """Squared privacy cost of each orbit of neighbours (s,), equal for every pair in it.

        Of records added or removed, ``Σ_b (K_b⁻¹)_oo``: an orbit is a choice of one class of values of each attribute
        in `wide`, in row-major order, ``symmetries[axis].labels`` being the class of each value; of marginal tables
        there is one for all. Of replaced records an orbit is a kind of pairs of cells.
        The allowance for its rounding is added: privacy errs on the safe side.
        """
        return self.costs + self.rounding

    @property
    def noise(self) -> dict[Axes, float]:
        """Of marginal tables, the level τ_T of each measured set T of attributes; refused where symmetry is less.

        With d cells, ``τ_T / d`` is the variance of the noise on the residual subspace of T.
        """
        if not self.plain:
            raise InvalidInputError("noise is one level a set of attributes, which takes blocks of marginal tables")
        return {axes_of(key): float(piece.covariance[0, 0]) for key, piece in self.pieces.items()}

    def variance(self, table: str | Iterable[str]) -> float:
        """Return the largest variance of a query of a table; all cells of a marginal table have the same.

        Raises `InvalidInputError` for no table of that name, unknown attributes, a part that is not measured.

        With `table`, a table of the union that was asked for, or the attributes of a marginal table.
        """
        return self._largest(self._table(table))

    def _largest(self, table: Table) -> float:
        """Return the largest variance of a query of a table."""
        parts, rows = self._rows(table)
        return float(self._orbit_variances(rows, self._unmoved(table, parts)).max())

    def variances(self, table: str | Iterable[str] | Workload) -> Array:
        """Return the variance of every query of a table, an axis per attribute; of a workload, one per table.

        Raises `InvalidInputError` as `variance`; a table of too many queries to write out.
        """
        if isinstance(table, Workload):
            return self._by_table(tables_of(table))
        return self._each(self._few(self._table(table)))

    def _each(self, table: Table) -> Array:
        """Return the variance of every query of a table of any queries, an axis per attribute."""
        parts, rows = self._rows(table)
        variances = self._orbit_variances(rows, self._unmoved(table, parts))
        array = variances.reshape(tuple(len(part.means) for part in parts))
        return np.asarray(array[np.ix_(*(part.orbits for part in parts))])

    @property
    def plain(self) -> bool:
        """Whether only marginal tables were asked for, so that all cells of a table have the same variance."""
        return not self.wide and not any(symmetry.turning for symmetry in self.symmetries)

    def _by_table(self, workload: MarginalWorkload | UnionWorkload) -> Array:
        """Return the largest variance of each table; marginal tables need only the levels under them."""
        if isinstance(workload, UnionWorkload):
            return np.array([self.variance(name) for name in workload.table_names])
        if self.plain and workload.domain == self.domain:
            blocks = Blocks.of_marginals(workload)
            pieces = [self.pieces[key] for key in blocks.keys if key in self.pieces]
            if len(pieces) == len(blocks.keys):
                levels = np.array([piece.covariance[0, 0] / piece.copies for piece in pieces])
                return np.asarray(blocks.scalar_blocks @ levels)
        return np.array([self.variance(names) for names in workload.sets])

    def variance_of(self, query: Mapping[str, npt.ArrayLike]) -> float:
        """Return the variance of a product query: one factor an attribute, ones for those that are not named."""
        return self._variance(self._product_query(query))

    def covariance_of(self, first: Mapping[str, npt.ArrayLike], second: Mapping[str, npt.ArrayLike]) -> float:
        """Return the covariance of two product queries, ``x ↦ Σ_cells Π_i f_i(cell_i) x_cell``.

        They need not be in the workload, as long as its queries, and what symmetry makes of them, span them.
        Raises `InvalidInputError` or `InputTypeError` for unknown attributes, factors of another length, a
        query with a part that is not measured, or of which rounding may hide too much.

        With `first`, `second`, the factors f_i; an attribute that is not named has the factor 1 for all its values.
        """
        one, two = self._product_query(first, "first"), self._product_query(second, "second")
        covariance, off = self._covariance(one, two)
        require_told(np.sqrt([self._variance(one) * self._variance(two)]), np.array([off]))
        return covariance

    def _table(self, attributes: str | Iterable[str]) -> Table:
        """Return a table of the union by name, or a marginal table by its attributes."""
        if isinstance(attributes, str) and isinstance(self.workload, UnionWorkload):
            return self.workload.table(attributes)
        axes = self.domain.axes(attributes)
        return Table(self._shown(axes), tuple((axis, None) for axis in axes))

    def _few(self, table: Table) -> Table:
        """Refuse a table of too many queries to write out."""
        sizes = (self.domain.shape[axis] if query is None else query.shape[0] for axis, query in table.queries)
        if (queries := math.prod(sizes)) > LARGEST_TABLE:
            raise InvalidInputError(
                f"table {table.name!r} of {count_text(queries)} queries is too large to write out "
                f"(limit {LARGEST_TABLE})"
            )
        return table

    def _rows(self, table: Table) -> tuple[tuple[Parts, ...], dict[Key, BlockQueries]]:
        """Return the parts of a table, and its rows in each block."""
        tables = self.workload.tables if isinstance(self.workload, UnionWorkload) else ()
        known = self.known.get(table.name) if any(other is table for other in tables) else None
        parts = known or tuple(self.symmetries[axis].parts(query) for axis, query in table.queries)
        rows, vectors = BlockRows(self.symmetries, self.wide), {}
        if self.wide or any(query is not None or self.symmetries[axis].turning for axis, query in table.queries):
            rows.add(table.axes, parts, np.arange(math.prod(len(part.means) for part in parts)))
        else:
            self._add_marginal(rows, table.axes)
        for key, (values,) in rows.values.items():
            piece = self.pieces.get(key)
            moved = values if piece is None else values @ piece.moves.T
            if piece is None or not piece.covers(values, moved):
                raise InvalidInputError(f"{table.name} is not answered: {self._named(key)} is not measured")
            vectors[key] = rows.rows[key][0], moved, np.abs(values) @ np.abs(piece.moves.T)
        return parts, vectors

    def _add_marginal(self, rows: BlockRows, axes: Axes) -> None:
        """Add the cells of a marginal table to blocks of one coordinate, mult of ``T ⊆ S`` over the cells of S each."""
        sizes = {axis: float(self.domain.shape[axis]) for axis in axes}
        cells, varying = math.prod(sizes.values()), [axis for axis, size in sizes.items() if size > 1]
        for count in range(len(varying) + 1):
            for inside in itertools.combinations(varying, count):
                key = tuple((axis, 0) for axis in inside)
                rows.rows[key] = [np.zeros(1, dtype=np.intp)]
                rows.values[key] = [np.full((1, 1), math.prod(sizes[axis] - 1 for axis in inside) / cells)]

    @property
    def fixed(self) -> Axes | None:
        """The attributes whose counts no neighbour changes, () for the total alone; None where neighbours change it."""
        fixed = None if self.neighbours is None else self.neighbours.fixed
        return None if fixed is None else self.domain.axes(fixed)

    def _unmoved(self, table: Table, parts: Sequence[Parts]) -> npt.NDArray[np.bool_]:
        """Return which orbits of queries no neighbour changes."""
        unmoved = np.array([self.fixed is not None])
        for (axis, query), part in zip(table.queries, parts, strict=True):
            left = np.zeros(len(part.means), dtype=bool)
            if self.neighbours is not None:
                left[part.orbits] = self.neighbours.leaves(self.domain.names[axis], query, self.domain.shape[axis])
            unmoved = np.logical_and.outer(unmoved, left).ravel()
        return unmoved

    def _orbit_variances(self, rows: Mapping[Key, BlockQueries], unmoved: npt.NDArray[np.bool_]) -> Array:
        variances = np.zeros(1 + max((int(orbits.max()) for orbits, _, _ in rows.values()), default=0))
        off = np.zeros_like(variances)
        for key, (orbits, moved, sizes) in rows.items():
            piece = self.pieces[key]
            spread, wide = moved @ piece.covariance, sizes @ np.abs(piece.covariance)
            variances[orbits] += np.einsum("jk,jk->j", spread, moved) / piece.copies
            off[orbits] += piece.unit * np.einsum("jk,jk->j", wide, sizes) / piece.copies
        return require_told(variances, off, self.largest, unmoved)

    def _product_query(self, query: Mapping[str, npt.ArrayLike], argument: str = "query") -> ProductQuery:
        """Return what a query is made of; refuse it where a part is not measured."""
        factors = factors_of(self.domain, query, argument)
        query_parts = {axis: of_query(self.symmetries[axis], factor) for axis, factor in factors.items()}
        shown = self._shown(sorted(query_parts))
        for key in self._sought(query_parts):
            piece = self.pieces.get(key)
            if piece is None:
                raise InvalidInputError(f"query of {shown} is not answered: no table asks for {self._named(key)}")
            vector = self._vector(query_parts, key)
            if not piece.covers(vector, piece.moves @ vector):
                others = self._shown(axis for axis in self.wide if axis not in dict(key))
                raise InvalidInputError(
                    f"query of {shown} is not answered: of {self._named(key)} only other sums over {others} are "
                    f"asked for"
                )
        return query_parts

    def _variance(self, query: ProductQuery) -> float:
        variance, off = self._covariance(query, query)
        fixed = self.fixed
        unmoved = fixed is not None and all(
            axis in fixed or (np.ptp(means) == 0 and not np.any(parts)) for axis, (means, parts) in query.items()
        )
        return float(require_told(np.array([variance]), np.array([off]), self.largest, unmoved)[0])

    def _covariance(self, first: ProductQuery, second: ProductQuery) -> Judged:
        """Return the covariance of two queries, and what it may be off by, absolute."""
        total = off = 0.0
        products = {
            axis: inner_products(self.symmetries[axis], first[axis][1], second[axis][1])
            for axis in first
            if axis in second
        }
        for key in self._sought(first):
            piece = self.pieces[key]
            share = piece.weight**2 * math.prod(
                products[axis][component] if axis in products else 0.0 for axis, component in key
            )
            if share:
                left, right = (self._vector(query_parts, key) for query_parts in (first, second))
                total += share * float(piece.moves @ left @ piece.covariance @ (piece.moves @ right))
                sizes = [np.abs(piece.moves) @ np.abs(vector) for vector in (left, right)]
                off += abs(share) * piece.unit * float(sizes[0] @ np.abs(piece.covariance) @ sizes[1])
        return float(total), float(off)

    def _sought(self, query_parts: ProductQuery) -> Iterator[Key]:
        """Yield the blocks in which a query has a part."""
        choices: list[list[Key]] = []
        for axis, (means, parts) in sorted(query_parts.items()):
            symmetry = self.symmetries[axis]
            components = (
                component for component in range(len(symmetry.classes)) if np.any(parts[places(symmetry, component)])
            )
            choices.append([*([()] if np.any(means) else []), *(((axis, component),) for component in components)])
        for chosen in itertools.product(*choices):
            yield tuple(pair for pairs in chosen for pair in pairs)

    def _vector(self, query_parts: ProductQuery, key: Key) -> Array:
        """Return a query's coordinates in a block, but for what it has in the components of the key."""
        vector = np.ones((1, 1))
        for axis in sorted({*query_parts, *self.wide} - dict(key).keys()):
            means = query_parts[axis][0] if axis in query_parts else np.ones(len(self.symmetries[axis].sizes))
            vector = linalg.kronecker([vector, means[None, :]])
        return vector[0]

    def _named(self, key: Key) -> str:
        """Say in words where a block lives."""
        words = []
        for axis, component in key:
            symmetry, name = self.symmetries[axis], self.domain.names[axis]
            if symmetry.turning:
                words.append(f"{name} at frequency {component + 1}")
            elif len(symmetry.sizes) == 1:
                words.append(f"differences of {name}")
            else:
                members = places(symmetry, component)
                words.append(f"differences of {name} among its values {members[0]} … {members[-1]}")
        return " x ".join(words) or ("sums over whole classes" if self.wide else "the total")

    def _shown(self, axes: Iterable[int]) -> str:
        return " x ".join(self.domain.names[axis] for axis in axes) or "the total"


# Noise on the blocks of a symmetry as noise on the blocks of a smaller one, where other tables tell more values apart.
#
# Two sets of tables leave two symmetries; what keeps both is what the tables together leave. Its classes are finer, so
# that a block of the first falls apart: of the functions on a class F of n values that add up to 0, those that are
# constant on the finer classes f of F are *contrasts*, rows a over these classes with ``Σ n_f a_f = 0`` and
# ``Σ n_f a_f² = 1``, and the others live on one f each.


Noise = tuple[Array, Array]
"""Rows over the classes that a block sees, and their covariance, in units of counts."""


@dataclass(frozen=True, slots=True, eq=False)
class RefinedAttribute:
    """An attribute's classes as sums of finer ones, and what its components become."""

    fine: AttributeSymmetry
    sums: Array  # (coarse classes, fine classes) which fine classes make up each
    inside: tuple[tuple[int, ...], ...]  # of each coarse component, the fine components in it
    contrasts: tuple[Array, ...]  # of each coarse component, its contrasts (m - 1, fine classes)

    @classmethod
    def of(cls, name: str, coarse: AttributeSymmetry, fine: AttributeSymmetry) -> RefinedAttribute:
        """Hold two symmetries of an attribute against each other."""
        parent = np.zeros(len(fine.sizes), dtype=np.intp)
        parent[fine.labels] = coarse.labels
        if not coarse.turning and np.any(parent[fine.labels] != coarse.labels):
            raise InvalidInputError(f"the compared mechanism tells values of {name!r} apart that the others do not")
        sums = (parent == np.arange(len(coarse.sizes))[:, None]).astype(np.float64)
        if coarse.turning or fine.turning:
            if not fine.turning or not (coarse.turning or len(coarse.sizes) == 1):
                raise InvalidInputError(
                    f"queries that turn {name!r} have no blocks in common with those that tell classes of it apart"
                )
            waves = tuple(range(len(fine.classes)))
            inside = tuple((wave,) for wave in waves) if coarse.turning else (waves,) * len(coarse.classes)
            return cls(fine, sums, inside, (np.zeros((0, 1)),) * len(inside))
        within = tuple(tuple(np.flatnonzero(parent[fine.classes] == label).tolist()) for label in coarse.classes)
        contrasts = tuple(_contrasts(np.where(parent == label, fine.sizes, 0.0)) for label in coarse.classes)
        return cls(fine, sums, within, contrasts)

    def choices(self, component: int) -> list[int | None]:
        """Return what a component becomes: fine components, and None for its contrasts where it has some."""
        contrasts: list[int | None] = [None] if len(self.contrasts[component]) else []
        return [*self.inside[component], *contrasts]


def same_symmetry(first: Sequence[AttributeSymmetry], second: Sequence[AttributeSymmetry]) -> bool:
    """Whether all attributes have the same classes, exchanged or turned."""
    return len(first) == len(second) and all(
        one.turning == two.turning
        and np.array_equal(one.sizes, two.sizes)
        and (len(one.sizes) == 1 or np.array_equal(one.labels, two.labels))
        for one, two in zip(first, second, strict=True)
    )


def _contrasts(sizes: Array) -> Array:
    """Return orthonormal contrasts of the classes of these sizes; classes of size 0 are not among them."""
    present = np.flatnonzero(sizes)
    unit = np.sqrt(sizes[present])
    across = scipy.linalg.null_space(unit[None]).T if len(present) > 1 else np.zeros((0, len(present)))
    rows = np.zeros((len(across), len(sizes)))
    rows[:, present] = across / unit
    return rows


def refined_noise(
    attributes: Sequence[RefinedAttribute], pieces: Sequence[tuple[Key, Piece]], classes: Sequence[int]
) -> dict[Key, Noise]:
    """Return the noise on every block of the finer symmetry.

    `classes` are the numbers of coarse classes, one an attribute.
    """
    noises: dict[Key, list[Noise]] = {}
    for key, piece in pieces:
        for chosen in itertools.product(*(attributes[axis].choices(component) for axis, component in key)):
            fine = tuple(
                (axis, component) for (axis, _), component in zip(key, chosen, strict=True) if component is not None
            )
            noises.setdefault(fine, []).append(_rows(attributes, dict(key), fine, piece, classes))
    return {
        key: (np.vstack([rows for rows, _ in parts]), scipy.linalg.block_diag(*(noise for _, noise in parts)))
        for key, parts in noises.items()
    }


def _rows(
    attributes: Sequence[RefinedAttribute], coarse: dict[int, int], fine: Key, piece: Piece, classes: Sequence[int]
) -> Noise:
    """Return what a piece releases of a finer block: rows over fine classes outside its key."""
    kept = dict(fine)
    outside = [axis for axis, attribute in enumerate(attributes) if axis not in kept and len(attribute.fine.sizes) > 1]
    rows = piece.moves.reshape(len(piece.moves), *(1 if axis in coarse else classes[axis] for axis in outside))
    copies = 1
    for place, attribute, axis in _places(attributes, outside):
        if axis in coarse:
            contrasts = attribute.contrasts[coarse[axis]]
            shape = (-1, *rows.shape[1:place], contrasts.shape[1], *rows.shape[place + 1 :])
            spread = np.moveaxis(rows, place, -1)[..., None] * contrasts  # each row times each contrast
            rows = np.moveaxis(np.moveaxis(spread, -1, place), -1, 1).reshape(shape)
            copies *= len(contrasts)
        else:
            rows = np.moveaxis(np.tensordot(rows, attribute.sums, axes=(place, 0)), -1, place)
    noise = np.kron(piece.weight**2 * piece.covariance, np.eye(copies))
    return np.asarray(rows.reshape(len(rows), -1)), np.asarray(noise)


def _places(
    attributes: Sequence[RefinedAttribute], outside: Sequence[int]
) -> Iterator[tuple[int, RefinedAttribute, int]]:
    return ((place, attributes[axis], axis) for place, axis in enumerate(outside, start=1))
