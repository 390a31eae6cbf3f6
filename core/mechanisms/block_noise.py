"""Noise on the blocks of tables: privacy costs, and variances of any table or product query."""

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

# Parts: the components of an array along the axis of an attribute, without a matrix.
#
# Under exchanges of values, the part in the component of a class is its entries minus their mean, one number for each
# value of the class. Under rotations, the part is the coefficients of the Fourier modes `AttributeSymmetry.directions`,
# by fast Fourier transforms. Both are isometries. `places` are the indices of a component's part along the axis.


class WholeAttribute(AttributeSymmetry):
    """The symmetry under all exchanges of values, with constant memory for any number of values."""

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
    """Return the indices along the axis of the parts in a component: values of its class, or its Fourier modes."""
    if symmetry.turning:
        return 2 * component + np.arange(int(symmetry.dimensions[component]))
    return np.flatnonzero(symmetry.labels == symmetry.classes[component])


def parts_of(symmetry: AttributeSymmetry, array: Array, axis: int = 0) -> Array:
    """Return the parts in all components: n entries along the axis, or n - 1 coefficients of Fourier modes.

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
    """Return the function with these parts and mean 0, the adjoint of `parts_of`."""
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
    leading = np.moveaxis(array, axis, 0)
    sums = class_of.T @ leading.reshape(size, -1)
    return np.moveaxis(sums.reshape(-1, *leading.shape[1:]), 0, axis)


def spread_over_values(symmetry: AttributeSymmetry, sums: Array, axis: int = 0) -> Array:
    means = np.moveaxis(sums, axis, -1) / symmetry.sizes
    return np.moveaxis(means[..., symmetry.labels], -1, axis)


def of_query(symmetry: AttributeSymmetry, factor: Array) -> tuple[Array, Array]:
    """Return the class means and the parts of a query's factor (n,), with rounding errors of zeros set to 0."""
    tolerance = 4 * len(factor) * EPS * np.abs(factor).max()
    means, parts = class_sums(symmetry, factor) / symmetry.sizes, parts_of(symmetry, factor)
    return np.where(np.abs(means) > tolerance, means, 0.0), np.where(np.abs(parts) > tolerance, parts, 0.0)


def inner_products(symmetry: AttributeSymmetry, first: Array, second: Array) -> Array:
    """Return the inner products of two arrays of parts (n,), one for each component."""
    return np.array(
        [
            first[index] @ second[index]
            for index in (places(symmetry, component) for component in range(len(symmetry.classes)))
        ]
    )


def unit_noise(symmetry: AttributeSymmetry, component: int, draws: Array, axis: int) -> Array:
    return draws if symmetry.turning else np.asarray(draws - draws.mean(axis=axis, keepdims=True))


def scaled_residual(table: npt.NDArray[Any], axes: int) -> npt.NDArray[Any]:
    """Return n times each entry minus the sum along its line, for each of the first axes; exact for integers."""
    for axis in range(axes):
        table = table.shape[axis] * table - table.sum(axis=axis, keepdims=True)
    return table


def _units(symmetry: AttributeSymmetry) -> Array:
    """Return the factors (n - 1,) that make Fourier modes orthonormal."""
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


CONSTANT_TOL = 1e-12
"""Largest range of a basis that is constant over classes, relative to its largest entry."""

COST_ROUNDINGS = 8  # upper bound on the rounding errors, in units of ε, of the cost of a block of one coordinate


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Noise on a block.

    A copy of the block is a choice of an orthonormal function u_i in the component of every attribute of the key. Its
    coordinate o is the sum of the data times ``Π u_i`` over the cells in class o of the wide attributes, divided by
    ``weight = 1/√(Π n_i)``, with n_i the size of the component's class. In every copy ``moves`` times the coordinates
    are released with noise of one covariance, `copies` times the covariance of a `BlockPoint`.
    """

    moves: Array  # the basis, in coordinates (r, b)
    covariance: Array  # (r, r)
    root: Array  # R with R'R the covariance
    weight: float
    copies: float
    costs: Array  # (s,) of each sensitivity vector
    rounding: Array  # (s,) absolute error bounds on the costs
    orbits: Index  # (s,) the orbit of neighbours of each sensitivity vector
    classed: Axes = ()  # wide attributes outside the key over whose classes `moves` is not constant'

    @classmethod
    def of(
        cls,
        symmetries: Sequence[AttributeSymmetry],
        neighbours: NeighbourMoves,
        key: Key,
        moves: Array,
        covariance: Array,
    ) -> Piece:
        """Return the noise of a block with its costs; refuses a covariance that is not positive definite."""
        steps, orbits = neighbours.steps(key, moves)
        pairs = [(symmetries[axis], component) for axis, component in key]
        weight = math.prod(float(symmetry.sizes[symmetry.classes[component]]) for symmetry, component in pairs) ** -0.5
        copies = math.prod(float(symmetry.dimensions[component]) for symmetry, component in pairs)
        if moves.size == 1:
            level, unit = float(covariance[0, 0]), np.ones((1, 1))
            if not (math.isfinite(level) and level > 0):
                raise InvalidInputError(f"levels must be positive and finite, got {level:g}")
            if not (math.isfinite(basis := float(moves.flat[0])) and basis):
                raise InvalidInputError(f"moves of a block of one row must be finite and not 0, got {basis:g}")
            cost = copies / level * (steps[0] / moves[0]) ** 2
            root = unit * math.sqrt(level)
            return cls(unit, unit * level, root, weight, copies, cost, COST_ROUNDINGS * linalg.EPS * cost, orbits)
        checked = judged_covariance(covariance, steps)
        triangle = None if checked is None else linalg.cholesky(checked[0])
        if checked is None or triangle is None:
            raise InvalidInputError("point must have positive definite covariances")
        other_axes = [axis for axis in neighbours.rows.wide if axis not in dict(key)]
        tensor = moves.reshape(len(moves), *(len(symmetries[axis].sizes) for axis in other_axes))
        ranges = [np.ptp(tensor, axis=place).max() for place in range(1, tensor.ndim)]
        limit = CONSTANT_TOL * np.abs(moves).max()
        classed = tuple(axis for axis, largest in zip(other_axes, ranges, strict=True) if largest > limit)
        costs, rounding = copies * checked[1], copies * checked[2]
        return cls(moves, checked[0], triangle, weight, copies, costs, rounding, orbits, classed)

    def costing(self, share: float) -> Piece:
        """Return the same noise with all costs increased by a relative amount."""
        return replace(self, rounding=self.rounding + share * (self.costs + self.rounding))

    def scaled(self, factor: float) -> Piece:
        """Return the noise with all variances times a factor."""
        return replace(
            self,
            covariance=self.covariance * factor,
            root=self.root * math.sqrt(factor),
            costs=self.costs / factor,
            rounding=self.rounding / factor + 4 * linalg.EPS * (self.costs / factor),
        )

    @property
    def unit(self) -> float:
        """Error bound of a variance, relative to the variance with absolute values of all entries."""
        return 4 * (sum(self.moves.shape) + 8) * linalg.EPS

    def covers(self, rows: Array, coordinates: Array) -> bool:
        """Whether rows with these coordinates lie in the span of the basis."""
        residual = np.linalg.norm(rows - coordinates @ self.moves)
        return bool(residual <= linalg.SPAN_TOLERANCE * np.linalg.norm(rows))


def axes_of(key: Key) -> Axes:
    return tuple(axis for axis, _ in key)


BlockQueries = tuple[Index, Array, Array]
"""Rows of a table in a block: their orbits, their coordinates on the basis, and these with absolute values."""

ProductQuery = Mapping[int, tuple[Array, Array]]
"""A product query: the class means and the parts of each attribute's factor, by position of the attribute."""


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
    largest: float  # largest variance of a measurement
    workload: UnionWorkload | MarginalWorkload | None
    known: Mapping[str, tuple[Parts, ...]]  # parts of the tables of a union, by name

    def __init__(self, blocks: Blocks, point: object) -> None:
        workload, checked = validate.instance(Blocks, blocks=blocks).workload, blocks.point(point)
        assert workload.domain is not None
        symmetries = blocks.symmetries or marginal_symmetries(workload.domain.shape)
        keys, rows = (
            [*blocks.keys, *(block.key for block in blocks.matrix_blocks)],
            BlockRows(symmetries, blocks.wide),
        )
        moves = NeighbourMoves.of(blocks.neighbours, workload.domain, symmetries, rows, keys)
        unit = np.ones((1, 1))
        levels = zip(blocks.keys, (checked.levels * blocks.copies).tolist(), strict=True)
        pieces = {key: Piece.of(symmetries, moves, key, unit, unit * level) for key, level in levels}
        for block, covariance in zip(blocks.matrix_blocks, checked.covariances, strict=True):
            noise = covariance * block.copies
            pieces[block.key] = Piece.of(symmetries, moves, block.key, block.moves, noise)
        known = dict(zip(workload.table_names, blocks.parts, strict=True)) if blocks.symmetries else {}
        self._hold(workload.domain, symmetries, blocks.neighbours, moves, pieces, workload, known)

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
        """Return noise with other pieces and the same symmetry."""
        mechanism = object.__new__(type(self))
        union = self.workload if isinstance(self.workload, UnionWorkload) else None
        mechanism._hold(self.domain, self.symmetries, self.neighbours, self.moved, pieces, union, self.known)
        return mechanism

    def answering(self, workload: UnionWorkload) -> Self:
        """Return the same noise with the tables of another workload; a query refuses tables outside the span."""
        mechanism = object.__new__(type(self))
        mechanism._hold(self.domain, self.symmetries, self.neighbours, self.moved, self.pieces, workload)
        return mechanism

    @property
    def rank(self) -> float:
        """Number of independent queries that are answered, 0 for the mechanism without queries."""
        return sum(piece.copies * len(piece.moves) for piece in self.pieces.values())

    @property
    def wide(self) -> Axes:
        """The attributes whose values fall into several classes."""
        return self.moved.rows.wide

    @property
    def profile(self) -> Array:
        """Squared privacy cost of each orbit of neighbours (s,), equal for every pair in it.

        For records added or removed it is ``Σ_b (K_b⁻¹)_oo``. An orbit is then a choice of one class of values for
        each attribute in `wide`, in row-major order, and ``symmetries[axis].labels`` has the class of each value;
        marginal tables have one orbit. For replaced records an orbit is a kind of pairs of cells.
        These are upper bounds: the rounding-error bound is added.
        """
        return self.costs + self.rounding

    @property
    def noise(self) -> dict[Axes, float]:
        """The noise level τ_T of each measured set T of attributes; refused for other workloads than marginal tables.

        With d cells, ``τ_T / d`` is the variance of the noise on the residual subspace of T.
        """
        if not self.plain:
            raise InvalidInputError("noise has one level for each set of attributes, for marginal tables alone")
        return {axes_of(key): float(piece.covariance[0, 0]) for key, piece in self.pieces.items()}

    def variance(self, table: str | Iterable[str]) -> float:
        """Return the largest variance of a query of a table; all cells of a marginal table have the same variance.

        Raises `InvalidInputError` for an unknown table or attribute, or a component that is not measured.

        `table` is the name of a table of the union, or the attributes of a marginal table.
        """
        return self._largest(self._table(table))

    def _largest(self, table: Table) -> float:
        """Return the largest variance of a query of a table, of any queries."""
        parts, rows = self._rows(table)
        return float(self._orbit_variances(rows, self._unmoved(table, parts)).max())

    def variances(self, table: str | Iterable[str] | Workload) -> Array:
        """Return the variance of every query of a table, an axis per attribute; of a workload, one per table.

        Raises `InvalidInputError` as `variance` does, and for a table with too many queries.
        """
        if isinstance(table, Workload):
            return self._by_table(tables_of(table))
        return self._each(self._few(self._table(table)))

    def _each(self, table: Table) -> Array:
        """Return the variance of every query of a table, an axis per attribute."""
        parts, rows = self._rows(table)
        variances = self._orbit_variances(rows, self._unmoved(table, parts))
        array = variances.reshape(tuple(len(part.means) for part in parts))
        return np.asarray(array[np.ix_(*(part.orbits for part in parts))])

    @property
    def plain(self) -> bool:
        """Whether the workload is of marginal tables, so that all cells of a table have the same variance."""
        return not self.wide and not any(symmetry.turning for symmetry in self.symmetries)

    def _by_table(self, workload: MarginalWorkload | UnionWorkload) -> Array:
        """Return the largest variance of each table; of marginal tables by the levels of their subsets."""
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
        """Return the variance of a product query: one factor for each attribute, 1 for all others."""
        return self._variance(self._product_query(query))

    def covariance_of(self, first: Mapping[str, npt.ArrayLike], second: Mapping[str, npt.ArrayLike]) -> float:
        """Return the covariance of two product queries, ``x ↦ Σ_cells Π_i f_i(cell_i) x_cell``.

        They need not be in the workload, if its queries and their images under the symmetry span them.
        Raises `InvalidInputError` or `InputTypeError` for unknown attributes, factors of another length, a
        component that is not measured, or a relative error bound above 1e-6.

        `first` and `second` map attributes to factors f_i; all other attributes have the factor 1.
        """
        left, right = self._product_query(first, "first"), self._product_query(second, "second")
        covariance, off = self._covariance(left, right)
        require_told(np.sqrt([self._variance(left) * self._variance(right)]), np.array([off]))
        return covariance

    def _table(self, attributes: str | Iterable[str]) -> Table:
        """Return a table of the union by name, or a marginal table by its attributes."""
        if isinstance(attributes, str) and isinstance(self.workload, UnionWorkload):
            return self.workload.table(attributes)
        axes = self.domain.axes(attributes)
        return Table(self._shown(axes), tuple((axis, None) for axis in axes))

    def _few(self, table: Table) -> Table:
        """Refuse a table with too many queries."""
        sizes = (self.domain.shape[axis] if query is None else query.shape[0] for axis, query in table.queries)
        if (queries := math.prod(sizes)) > LARGEST_TABLE:
            raise InvalidInputError(
                f"table {table.name!r} of {count_text(queries)} queries is too large for a dense matrix "
                f"(limit {LARGEST_TABLE})"
            )
        return table

    def _rows(self, table: Table) -> tuple[tuple[Parts, ...], dict[Key, BlockQueries]]:
        """Return the parts of a table, and its rows in each block."""
        tables = self.workload.tables if isinstance(self.workload, UnionWorkload) else ()
        stored = self.known.get(table.name) if any(other is table for other in tables) else None
        parts = stored or tuple(self.symmetries[axis].parts(query) for axis, query in table.queries)
        rows, vectors = BlockRows(self.symmetries, self.wide), {}
        if self.wide or any(query is not None or self.symmetries[axis].turning for axis, query in table.queries):
            rows.add(table.axes, parts, np.arange(math.prod(len(part.means) for part in parts)))
        else:
            self._add_marginal(rows, table.axes)
        for key, (values,) in rows.values.items():
            piece = self.pieces.get(key)
            coordinates = values if piece is None else values @ piece.moves.T
            if piece is None or not piece.covers(values, coordinates):
                raise InvalidInputError(f"{table.name} is not answered: {self._named(key)} is not measured")
            vectors[key] = rows.rows[key][0], coordinates, np.abs(values) @ np.abs(piece.moves.T)
        return parts, vectors

    def _add_marginal(self, rows: BlockRows, axes: Axes) -> None:
        """Add a marginal table S to its blocks ``T ⊆ S`` of one coordinate: mult(T) over the number of cells of S."""
        sizes = {axis: float(self.domain.shape[axis]) for axis in axes}
        cells, varying = math.prod(sizes.values()), [axis for axis, size in sizes.items() if size > 1]
        for count in range(len(varying) + 1):
            for subset in itertools.combinations(varying, count):
                key = tuple((axis, 0) for axis in subset)
                rows.rows[key] = [np.zeros(1, dtype=np.intp)]
                rows.values[key] = [np.full((1, 1), math.prod(sizes[axis] - 1 for axis in subset) / cells)]

    @property
    def fixed(self) -> Axes | None:
        """Attributes with equal counts for all neighbours, () for the total alone; None if the total may differ."""
        fixed = None if self.neighbours is None else self.neighbours.fixed
        return None if fixed is None else self.domain.axes(fixed)

    def _unmoved(self, table: Table, parts: Sequence[Parts]) -> npt.NDArray[np.bool_]:
        """Return which orbits of queries are equal for all neighbours."""
        queries = np.array([self.fixed is not None])
        for (axis, query), part in zip(table.queries, parts, strict=True):
            insensitive = np.zeros(len(part.means), dtype=bool)
            if self.neighbours is not None:
                insensitive[part.orbits] = self.neighbours.leaves(
                    self.domain.names[axis], query, self.domain.shape[axis]
                )
            queries = np.logical_and.outer(queries, insensitive).ravel()
        return queries

    def _orbit_variances(self, rows: Mapping[Key, BlockQueries], unmoved: npt.NDArray[np.bool_]) -> Array:
        variances = np.zeros(1 + max((int(orbits.max()) for orbits, _, _ in rows.values()), default=0))
        errors = np.zeros_like(variances)
        for key, (orbits, coordinates, sizes) in rows.items():
            piece = self.pieces[key]
            products, magnitude_products = coordinates @ piece.covariance, sizes @ np.abs(piece.covariance)
            variances[orbits] += np.einsum("jk,jk->j", products, coordinates) / piece.copies
            errors[orbits] += piece.unit * np.einsum("jk,jk->j", magnitude_products, sizes) / piece.copies
        return require_told(variances, errors, self.largest, unmoved)

    def _product_query(self, query: Mapping[str, npt.ArrayLike], argument: str = "query") -> ProductQuery:
        """Return the means and parts of a query; refuse a component that is not measured."""
        factors = factors_of(self.domain, query, argument)
        query_parts = {axis: of_query(self.symmetries[axis], factor) for axis, factor in factors.items()}
        name = self._shown(sorted(query_parts))
        for key in self._block_keys(query_parts):
            piece = self.pieces.get(key)
            if piece is None:
                raise InvalidInputError(f"query of {name} is not answered: {self._named(key)} is not measured")
            vector = self._vector(query_parts, key)
            if not piece.covers(vector, piece.moves @ vector):
                other_axes = self._shown(axis for axis in self.wide if axis not in dict(key))
                raise InvalidInputError(
                    f"query of {name} is not answered: of {self._named(key)} only other sums over {other_axes} are "
                    f"measured"
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
        """Return the covariance of two queries, and an absolute error bound."""
        total = error = 0.0
        products = {
            axis: inner_products(self.symmetries[axis], first[axis][1], second[axis][1])
            for axis in first
            if axis in second
        }
        for key in self._block_keys(first):
            piece = self.pieces[key]
            share = piece.weight**2 * math.prod(
                products[axis][component] if axis in products else 0.0 for axis, component in key
            )
            if share:
                first_vector, second_vector = (self._vector(query_parts, key) for query_parts in (first, second))
                total += share * float(piece.moves @ first_vector @ piece.covariance @ (piece.moves @ second_vector))
                magnitudes = [np.abs(piece.moves) @ np.abs(vector) for vector in (first_vector, second_vector)]
                error += abs(share) * piece.unit * float(magnitudes[0] @ np.abs(piece.covariance) @ magnitudes[1])
        return float(total), float(error)

    def _block_keys(self, query_parts: ProductQuery) -> Iterator[Key]:
        """Yield the keys of the blocks in which a query is not 0."""
        choices: list[list[Key]] = []
        for axis, (means, parts) in sorted(query_parts.items()):
            symmetry = self.symmetries[axis]
            components = (
                component for component in range(len(symmetry.classes)) if np.any(parts[places(symmetry, component)])
            )
            choices.append([*([()] if np.any(means) else []), *(((axis, component),) for component in components)])
        for combination in itertools.product(*choices):
            yield tuple(pair for pairs in combination for pair in pairs)

    def _vector(self, query_parts: ProductQuery, key: Key) -> Array:
        """Return a query's coordinates in a block, without the factors of the key's attributes."""
        vector = np.ones((1, 1))
        for axis in sorted({*query_parts, *self.wide} - dict(key).keys()):
            means = query_parts[axis][0] if axis in query_parts else np.ones(len(self.symmetries[axis].sizes))
            vector = linalg.kronecker([vector, means[None, :]])
        return vector[0]

    def _named(self, key: Key) -> str:
        """Return a description of a block for messages."""
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


# Noise on the blocks of a symmetry as noise on the blocks of a finer one, for comparison with other tables.
#
# The common symmetry of two sets of tables is that of their union. Its classes are finer, so a block of the first set
# decomposes. Functions with sum 0 on a class F of n values are spanned by *contrasts*, which are constant on the finer
# classes f of F, rows a over these classes with ``Σ n_f a_f = 0`` and ``Σ n_f a_f² = 1``, and by functions with sum 0
# on one f.


Noise = tuple[Array, Array]
"""Rows over the classes of a block, and their covariance, in units of counts."""


@dataclass(frozen=True, slots=True, eq=False)
class RefinedAttribute:
    """An attribute's classes as unions of finer classes, and the decomposition of its components."""

    fine: AttributeSymmetry
    sums: Array  # (coarse classes, fine classes) indicators of the fine classes in each coarse class
    inside: tuple[tuple[int, ...], ...]  # for each coarse component, its fine components
    contrasts: tuple[Array, ...]  # for each coarse component, its contrasts (m - 1, fine classes)

    @classmethod
    def of(cls, name: str, coarse: AttributeSymmetry, fine: AttributeSymmetry) -> RefinedAttribute:
        """Decompose the components of a symmetry; refuses symmetries without a common refinement."""
        parent = np.zeros(len(fine.sizes), dtype=np.intp)
        parent[fine.labels] = coarse.labels
        if not coarse.turning and np.any(parent[fine.labels] != coarse.labels):
            raise InvalidInputError(f"the compared mechanism distinguishes values of {name!r} that the others do not")
        sums = (parent == np.arange(len(coarse.sizes))[:, None]).astype(np.float64)
        if coarse.turning or fine.turning:
            if not fine.turning or not (coarse.turning or len(coarse.sizes) == 1):
                raise InvalidInputError(f"cyclic queries of {name!r} have no common blocks with queries of its classes")
            waves = tuple(range(len(fine.classes)))
            inside = tuple((wave,) for wave in waves) if coarse.turning else (waves,) * len(coarse.classes)
            return cls(fine, sums, inside, (np.zeros((0, 1)),) * len(inside))
        components = tuple(tuple(np.flatnonzero(parent[fine.classes] == label).tolist()) for label in coarse.classes)
        contrasts = tuple(_contrasts(np.where(parent == label, fine.sizes, 0.0)) for label in coarse.classes)
        return cls(fine, sums, components, contrasts)

    def choices(self, component: int) -> list[int | None]:
        """Return the fine components of a component, and None for its contrasts if it has any."""
        contrasts: list[int | None] = [None] if len(self.contrasts[component]) else []
        return [*self.inside[component], *contrasts]


def same_symmetry(first: Sequence[AttributeSymmetry], second: Sequence[AttributeSymmetry]) -> bool:
    """Whether all attributes have the same classes and kind of symmetry."""
    return len(first) == len(second) and all(
        left.turning == right.turning
        and np.array_equal(left.sizes, right.sizes)
        and (len(left.sizes) == 1 or np.array_equal(left.labels, right.labels))
        for left, right in zip(first, second, strict=True)
    )


def _contrasts(sizes: Array) -> Array:
    """Return orthonormal contrasts of the classes with these sizes; 0 on classes of size 0."""
    present = np.flatnonzero(sizes)
    unit = np.sqrt(sizes[present])
    orthogonal = scipy.linalg.null_space(unit[None]).T if len(present) > 1 else np.zeros((0, len(present)))
    rows = np.zeros((len(orthogonal), len(sizes)))
    rows[:, present] = orthogonal / unit
    return rows


def refined_noise(
    attributes: Sequence[RefinedAttribute], pieces: Sequence[tuple[Key, Piece]], classes: Sequence[int]
) -> dict[Key, Noise]:
    """Return the noise on every block of the finer symmetry.

    `classes` are the numbers of coarse classes, one an attribute.
    """
    noises: dict[Key, list[Noise]] = {}
    for key, piece in pieces:
        for combination in itertools.product(*(attributes[axis].choices(component) for axis, component in key)):
            fine = tuple(
                (axis, component)
                for (axis, _), component in zip(key, combination, strict=True)
                if component is not None
            )
            noises.setdefault(fine, []).append(_rows(attributes, dict(key), fine, piece, classes))
    return {
        key: (np.vstack([rows for rows, _ in parts]), scipy.linalg.block_diag(*(noise for _, noise in parts)))
        for key, parts in noises.items()
    }


def _rows(
    attributes: Sequence[RefinedAttribute], coarse: dict[int, int], fine: Key, piece: Piece, classes: Sequence[int]
) -> Noise:
    """Return the noise of a piece on a finer block, as rows over fine classes outside its key."""
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
