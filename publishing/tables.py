"""Mechanisms of tables on a grid: integer residuals of counted tables, integer rows, and discrete noise."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg
from dualmech.errors import InvalidInputError
from dualmech.geometry.attribute_symmetry import AttributeSymmetry, Key
from dualmech.geometry.block_neighbours import Pairs, Types
from dualmech.mechanisms import block_noise
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.block_noise import Piece
from dualmech.mechanisms.tables import IndexedTables, Tables
from dualmech.neighbours import ADD_REMOVE
from dualmech.publishing import drawing, records
from dualmech.publishing.dense import covariance_of, draw_noise, factor_from_grid, rounded_factor, solve_factor
from dualmech.publishing.drawing import Exact, Integers, Noise, integer_counts, user_counts
from dualmech.validate import Array
from dualmech.workloads.domain import Axes, Domain

SensitivePart: TypeAlias = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
"""Maps rows (r, b) on the classes of a block to their differences that neighbours can change."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawnBlock:
    """A block of a mechanism on the grid: it releases ``N s + z`` in each cell of the attributes of its key.

    With n_c values in the class of each attribute of the key, s is ``⊗ (n_c I - 11')`` times the table on those values
    and on the classes of the block's other attributes. It holds integers: ``Π n_c`` times the components of the block.

    The first integer rows have no noise if no neighbour changes them, such as the total if records are replaced.
    """

    factor: Integers  # (r, r) lower triangular, diag(2^b) F on the grid, of the rows with noise
    exponents: Integers  # (r,)
    basis: Integers  # (r, b) integer rows on the classes of the block
    change: Array  # (r, r) maps the integer rows to the rows of the block's `Piece`
    cells: int  # Π n_c
    nominal_noise: Array  # (e, e) covariance attributed to the e exact rows, since a `Piece` must be definite

    @classmethod
    def of(cls, piece: Piece, rows: Array, sizes: list[int], sensitive: SensitivePart | None = None) -> DrawnBlock:
        """Round the noise of a piece to the grid; `rows` (r, b) are its rows on the classes of the block.

        Insensitive rows come first. The others keep their covariance, so they cost no more than all rows with noise.
        None for `sensitive` means that neighbours can change all rows.
        """
        basis, exact = drawing.integer_basis(rows), 0
        if sensitive is not None:
            basis, exact = _insensitive_first(basis, rows, sensitive)
        coordinates = np.linalg.lstsq(rows.T, basis.T.astype(np.float64), rcond=None)[0].T
        cells = math.prod(sizes)
        noise = cells * (coordinates @ piece.covariance @ coordinates.T)
        factor, exponents = rounded_factor(noise[exact:, exact:])
        return cls(factor, exponents, basis, np.linalg.inv(coordinates), cells, noise[:exact, :exact])

    @property
    def exact(self) -> int:
        """Number of the first integer rows, which are released without noise and have no privacy cost."""
        return len(self.nominal_noise)

    @property
    def integer_rows(self) -> Integers:
        """N (r, b)."""
        return self.factor @ self.basis[self.exact :]

    @property
    def covariance(self) -> Array:
        """The covariance of the block's rows, as in its `Piece`."""
        drawn_noise = covariance_of(factor_from_grid(self.factor, self.exponents))
        noise = scipy.linalg.block_diag(self.nominal_noise, drawn_noise)[-len(self.basis) :, -len(self.basis) :]
        return np.asarray(self.change @ noise @ self.change.T / self.cells)

    def draw(self, residual: Exact, noise: Noise) -> Array:
        """Draw the block's noisy rows (…, r) from its residual (…, b). Noise is added to tables only here."""
        data = residual.reshape(-1, residual.shape[-1]).T
        noisy = drawing.product(self.integer_rows, data)
        noisy = noisy + draw_noise(noise, np.broadcast_to(self.exponents[:, None], noisy.shape))
        answers = np.ldexp(noisy.astype(np.float64), -self.exponents[:, None])
        exact_answers = drawing.product(self.basis[: self.exact], data).astype(np.float64)
        rows = np.concatenate([exact_answers, solve_factor(self.factor, self.exponents, answers)])
        directions = (self.change @ rows / self.cells).T
        return np.asarray(directions.reshape(*residual.shape[:-1], -1))


def _insensitive_first(basis: Integers, rows: Array, sensitive: SensitivePart) -> tuple[Integers, int]:
    """Return integer rows with the same span, insensitive rows first, and the number of insensitive rows.

    Singular values find these rows, and integer arithmetic verifies them.
    """
    if not np.any(sensitive(basis)):
        return basis, len(basis)
    insensitive = drawing.integer_basis(_insensitive_combinations(rows, sensitive) @ rows)
    if np.any(sensitive(insensitive)):
        raise InvalidInputError("mechanism must answer insensitive queries by integer rows, and none were found")
    return np.vstack([insensitive, drawing.rows_beyond(basis, insensitive)]), len(insensitive)


def _insensitive_combinations(rows: Array, sensitive: SensitivePart) -> Array:
    """Return orthonormal coefficients (e, r) of the combinations of rows that neighbours do not change."""
    directions, values, _ = linalg.svd(sensitive(rows))
    return np.asarray(directions[:, linalg.numerical_rank(values, rows.shape) :].T)


def insensitive_rows(mechanism: BlockMechanism, key: Key) -> Array:
    """Return coefficients (e, r) of the combinations of a block's rows that are released without noise."""
    piece, sensitive = mechanism.pieces[key], _sensitive_part(mechanism, key)
    if sensitive is None:
        return np.zeros((0, len(piece.moves)))
    return _insensitive_combinations(mechanism.class_basis(key, piece), sensitive)


# Exact privacy costs of neighbours, in integers.


def costs_of_orbits(mechanism: BlockMechanism, blocks: Mapping[Key, DrawnBlock]) -> Exact:
    """Return the squared privacy cost of each orbit of neighbours (s,), as fractions.

    A record in a cell changes the integers of a block by ``⊗ (n e_v - 1) ⊗ N e_o``, with squared norm ``Π n (n - 1)``
    times a squared column of N. The inner product of two records is the product over attributes of ``n (n - 1)`` for
    equal values, ``-n`` for other values of one class, and 0 for values of different classes.
    """
    neighbours, squares_by_block = mechanism.moved, dict[Any, Exact]()
    total = np.array([Fraction(0)] * neighbours.count, dtype=object)
    for key, block in blocks.items():
        if not len(block.factor):  # released without noise
            continue
        integers, cells = mechanism.over_all_classes(key, block.integer_rows), neighbours.rows.cells_of(key)
        if neighbours.pairs is None:
            content = integers.shape, integers.tobytes(), block.exponents.tobytes()
            if content not in squares_by_block:
                squares_by_block[content] = drawing.sums_of_squares(integers, block.exponents)
            total[cells] += squares_by_block[content] * _record_square(mechanism, key)
            continue
        for exponent in np.unique(block.exponents).tolist():
            rows, unit = integers[block.exponents == exponent], Fraction(1) / Fraction(4) ** exponent
            total = total + _pair_costs(mechanism, neighbours.pairs, key, rows, cells) * (unit / 2)
    return total * Fraction(neighbours.scale) ** 2


def _record_square(mechanism: BlockMechanism, key: Key) -> int:
    """Return ``Π n (n - 1)`` over the classes of a key."""
    sizes = [class_size(mechanism.symmetries[axis], component) for axis, component in key]
    return math.prod(size * (size - 1) for size in sizes)


def class_size(symmetry: AttributeSymmetry, component: int) -> int:
    """Return the number of values in the class of a component."""
    return int(symmetry.sizes[symmetry.classes[component]])


def _pair_costs(
    mechanism: BlockMechanism, pairs: Pairs, key: Key, rows: Integers, cells: np.typing.NDArray[np.intp]
) -> Exact:
    """Return twice the squared cost of each orbit of pairs in some rows of a block, from squares and inner products."""
    places = np.full(1 + int(max(cells.max(), pairs.first.max(initial=0), pairs.second.max(initial=0))), len(cells))
    places[cells] = np.arange(len(cells))
    columns = np.hstack([rows, np.zeros((len(rows), 1), dtype=np.int64)])  # a zero column for cells outside
    first, second, square = places[pairs.first], places[pairs.second], _record_square(mechanism, key)
    squares = drawing.column_squares(columns)
    shared = np.array([1] * pairs.count, dtype=object)
    for axis, component in key:
        inner = _inner_products(mechanism.symmetries[axis], component, pairs.types[axis])
        shared = shared * inner[pairs.pair_types[axis]]
    crossed = np.zeros(pairs.count, dtype=object)
    nonzero = np.flatnonzero((first < len(cells)) & (second < len(cells)) & (shared != 0))
    crossed[nonzero] = drawing.column_products(columns[:, first[nonzero]], columns[:, second[nonzero]])
    inner, crosswise = (np.array(weight, dtype=object) for weight in pairs.weights())
    return np.asarray(inner * square * (squares[first] + squares[second]) + crosswise * shared * crossed)


def _inner_products(symmetry: AttributeSymmetry, component: int, types: Types) -> Exact:
    """Return the inner products of ``n e_v - 1`` for each type of pair of values, in a component."""
    size, codes = class_size(symmetry, component), symmetry.classes[component]
    in_class = (types.first == codes) & (types.second == codes)
    products = np.where(types.equal, size * (size - 1), -size)
    return np.asarray(np.where(in_class, products, 0).astype(object))


def _sensitive_part(mechanism: BlockMechanism, key: Key) -> SensitivePart | None:
    """Return the map of a block's rows to their sensitive part; None if all of each row is sensitive.

    Neighbours do not change a row that is constant over all attributes but the fixed ones. The sensitive part is a
    row's differences from the first class of each other attribute.
    """
    fixed = mechanism.fixed
    if fixed is None or not {axis for axis, _ in key} <= {*fixed}:
        return None
    classed = mechanism.pieces[key].classed
    sizes = [len(mechanism.symmetries[axis].sizes) for axis in classed]
    free_axes = tuple(place for place, axis in enumerate(classed, start=1) if axis not in fixed)

    def sensitive(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        array = rows.reshape(len(rows), *sizes)
        first = tuple(slice(0, 1) if place in free_axes else slice(None) for place in range(len(sizes) + 1))
        return np.asarray((array - array[first]).reshape(len(rows), math.prod(sizes)))

    return sensitive


class AnsweredTables:
    """Noisy components of blocks, and estimates of tables."""

    __slots__ = ("mechanism",)

    mechanism: BlockMechanism  # with the covariance of the drawn noise

    by_table = True

    def unmoved(self, table: str | Iterable[str]) -> npt.NDArray[np.bool_]:
        """Return a mask of the queries of a table that no neighbour changes, with one axis for each attribute."""
        domain, relation = self.mechanism.domain, self.mechanism.neighbours or ADD_REMOVE
        masks = (
            relation.leaves(domain.names[axis], query, domain.shape[axis])
            for axis, query in self.mechanism._table(table).queries
        )
        return np.asarray(functools.reduce(np.logical_and.outer, masks, np.array(relation.fixed is not None)))

    def estimate(self, measured: Tables, table: str | Iterable[str]) -> Array:
        """Return the unbiased estimates of a table from noisy components, with one axis for each attribute."""
        return self.mechanism.recombine(measured, table)


class DrawnTables(AnsweredTables):
    """A `BlockMechanism` on the grid, drawn from marginal tables of counts, on a domain of any size.

    Every block is a `DrawnBlock`. The resulting `mechanism` differs from the original by about 1e-6 of its noise, and
    costs no pair of neighbours more. Its `costs` are computed in integers. Answers that no neighbour changes, such as
    the number of records if they are replaced, have no noise (`unmoved`).
    Raises `InvalidInputError` for blocks of Fourier modes, on cyclically symmetric attributes: they have no integer
    rows.
    """

    __slots__ = ("blocks", "costs")

    blocks: dict[Key, DrawnBlock]
    costs: Exact  # (s,) squared privacy cost of each orbit of neighbours

    def __init__(self, mechanism: BlockMechanism) -> None:
        for axis, symmetry in enumerate(mechanism.symmetries):
            if symmetry.turning:
                raise InvalidInputError(
                    f"mechanism must have blocks of classes of values of {mechanism.domain.names[axis]!r}, not of "
                    f"Fourier modes, to be drawn exactly; if its domain is small, draw its dense()"
                )
        self.blocks, pieces, blocks_by_content = {}, {}, dict[Any, DrawnBlock]()
        for key, piece in mechanism.pieces.items():
            sizes = [class_size(mechanism.symmetries[axis], component) for axis, component in key]
            sensitive = _sensitive_part(mechanism, key)
            basis = mechanism.class_basis(key, piece)
            content = basis.shape, basis.tobytes(), piece.covariance.tobytes(), *sizes, sensitive and piece.classed
            if content not in blocks_by_content:
                blocks_by_content[content] = DrawnBlock.of(piece, basis, sizes, sensitive)
            block = self.blocks[key] = blocks_by_content[content]
            pieces[key] = Piece.of(mechanism.symmetries, mechanism.moved, key, piece.moves, block.covariance)
        self.mechanism = mechanism.with_pieces(pieces)
        self.costs = costs_of_orbits(self.mechanism, self.blocks)

    @property
    def squared_privacy_cost(self) -> Fraction:
        """The exact maximum of the neighbours' squared privacy costs."""
        return Fraction(max(self.costs))

    def read(self, source: Any, domain: Domain | None, allow_empty: bool) -> Tables:
        """Return the needed tables of counts of records, or the user's tables of counts."""
        counts = user_counts(source, self.mechanism.domain)
        return (
            records.count(source, self.mechanism.needed_tables, allow_empty=allow_empty) if counts is None else counts
        )

    def draw(self, tables: Tables, noise: Noise) -> dict[Axes, Array]:
        """Draw the noisy components of all blocks from tables of counts, in the form of `BlockMechanism.measure`."""
        mechanism, measured = self.mechanism, dict[Axes, Array]()
        tables, noise = IndexedTables(tables), drawing.in_batches(noise)
        for (key_axes, classed), keys in mechanism.blocks_by_view().items():
            array = measured.setdefault(key_axes, np.zeros(mechanism.extents(key_axes)))
            counts = integer_counts(tables=mechanism.counts_by_class(tables, key_axes, classed)).astype(object)
            for key in keys:
                where = mechanism.places(key)
                part = counts[np.ix_(*where)] if where else counts
                residual = block_noise.scaled_residual(part, len(key)).reshape(*part.shape[: len(key)], -1)
                noisy = self.blocks[key].draw(residual, noise)
                for position, (axis, component) in enumerate(key):
                    noisy = block_noise.unit_noise(mechanism.symmetries[axis], component, noisy, position)
                extents = (*noisy.shape[:-1], *array.shape[len(key) :])
                array[np.ix_(*where)] = (noisy @ mechanism.pieces[key].moves).reshape(extents)
        return IndexedTables(measured)
