"""Mechanisms of tables, drawn: whole residuals of counted tables, whole multiples of them, and discrete noise."""

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
from dualmech.publishing.dense import covariance_of, drawn, on_doubles, rounded_factor, solved
from dualmech.publishing.drawing import Exact, Integers, Noise, given_counts, whole_counts
from dualmech.validate import Array
from dualmech.workloads.domain import Axes, Domain

Moved: TypeAlias = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
"""Of rows (r, b) on the classes that a block sees, what neighbours change of them."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawnBlock:
    """A block as it is drawn: ``N s + z`` in every cell of what the attributes of its key leave of a table.

    What no neighbour changes is released as it is, such as the total where records are replaced: the first of the whole
    rows, without noise.

    With n_c values in the class of each attribute of the key, s is ``⊗ (n_c I - 11')`` times the table on those values
    and on the classes of other wide attributes that the block sees: whole numbers, whose parts are ``Π n_c`` times the
    block's own.
    """

    factor: Integers  # (r, r) lower triangular, diag(2^b) F on the grid, of the rows with noise
    exponents: Integers  # (r,)
    basis: Integers  # (r, b) whole rows on the classes that the block sees
    moves: Array  # (r, r) from the whole rows to the block's own
    cells: int  # Π n_c
    said: Array  # (e, e) of the e rows released as they are, the noise that a definite covariance needs: none is drawn

    @classmethod
    def of(cls, piece: Piece, moves: Array, sizes: list[int], moved: Moved | None = None) -> DrawnBlock:
        """Put the noise of a piece on a grid; `moves` (r, b) are its rows on the classes that it sees.

        The rows that neighbours do not change are the first. The others keep their own noise, so that they cost no more
        than together with noise on the first. `moved` takes rows to what neighbours change of them, None for all.
        """
        basis, exact = drawing.whole_basis(moves), 0
        if moved is not None:
            basis, exact = _with_still_first(basis, moves, moved)
        turn = np.linalg.lstsq(moves.T, basis.T.astype(np.float64), rcond=None)[0].T
        cells = math.prod(sizes)
        noise = cells * (turn @ piece.covariance @ turn.T)
        factor, exponents = rounded_factor(noise[exact:, exact:])
        return cls(factor, exponents, basis, np.linalg.inv(turn), cells, noise[:exact, :exact])

    @property
    def exact(self) -> int:
        """Number of the whole rows, the first ones, that are released as they are and cost nothing."""
        return len(self.said)

    @property
    def whole(self) -> Integers:
        """N (r, b)."""
        return self.factor @ self.basis[self.exact :]

    @property
    def covariance(self) -> Array:
        """Noise on the block's own rows, as a `Piece` has it."""
        drawn_noise = covariance_of(on_doubles(self.factor, self.exponents))
        noise = scipy.linalg.block_diag(self.said, drawn_noise)[-len(self.basis) :, -len(self.basis) :]
        return np.asarray(self.moves @ noise @ self.moves.T / self.cells)

    def draw(self, residual: Exact, noise: Noise) -> Array:
        """Draw the block's rows (…, r) from its residual (…, b): the one place where tables meet noise."""
        data = residual.reshape(-1, residual.shape[-1]).T
        noisy = drawing.product(self.whole, data)
        noisy = noisy + drawn(noise, np.broadcast_to(self.exponents[:, None], noisy.shape))
        answers = np.ldexp(noisy.astype(np.float64), -self.exponents[:, None])
        known = drawing.product(self.basis[: self.exact], data).astype(np.float64)
        rows = np.concatenate([known, solved(self.factor, self.exponents, answers)])
        directions = (self.moves @ rows / self.cells).T
        return np.asarray(directions.reshape(*residual.shape[:-1], -1))


def _with_still_first(basis: Integers, moves: Array, moved: Moved) -> tuple[Integers, int]:
    """Return whole rows of the same span that begin with those that neighbours do not change, and how many these are.

    They are found by singular values, and whole numbers say that they are such rows.
    """
    if not np.any(moved(basis)):
        return basis, len(basis)
    still = drawing.whole_basis(_still(moves, moved) @ moves)
    if np.any(moved(still)):
        raise InvalidInputError("mechanism must answer what no neighbour changes by whole rows, and none were found")
    return np.vstack([still, drawing.rows_beyond(basis, still)]), len(still)


def _still(rows: Array, moved: Moved) -> Array:
    """Return the combinations of rows (e, r) that neighbours do not change, orthonormal, by singular values."""
    directions, values, _ = linalg.svd(moved(rows))
    return np.asarray(directions[:, linalg.numerical_rank(values, rows.shape) :].T)


def still_rows(mechanism: BlockMechanism, key: Key) -> Array:
    """Return the combinations (e, r) of a block's rows that no neighbour changes, which are released as they are."""
    piece, moved = mechanism.pieces[key], _moved_part(mechanism, key)
    return np.zeros((0, len(piece.moves))) if moved is None else _still(mechanism.class_basis(key, piece), moved)


# What neighbours cost in blocks of whole numbers, exactly: records added or removed, or replaced.


def costs_of_orbits(mechanism: BlockMechanism, blocks: Mapping[Key, DrawnBlock]) -> Exact:
    """Return the squared privacy cost of each orbit of neighbours (s,), as fractions.

    A record in a cell moves the drawn numbers of a block by ``⊗ (n e_v - 1) ⊗ N e_o``, whose square is ``Π n (n - 1)``
    times a squared column of N; and two records have the product of the attributes' inner products, ``n (n - 1)`` where
    they have the same value, ``-n`` where two of one class, and 0 else.
    """
    moved, known = mechanism.moved, dict[Any, Exact]()
    total = np.array([Fraction(0)] * moved.count, dtype=object)
    for key, block in blocks.items():
        if not len(block.factor):  # released as it is
            continue
        whole, cells = mechanism.over_all_classes(key, block.whole), moved.rows.cells_of(key)
        if moved.pairs is None:
            alike = whole.shape, whole.tobytes(), block.exponents.tobytes()
            if alike not in known:
                known[alike] = drawing.sums_of_squares(whole, block.exponents)
            total[cells] += known[alike] * _same(mechanism, key)
            continue
        for exponent in np.unique(block.exponents).tolist():
            rows, unit = whole[block.exponents == exponent], Fraction(1) / Fraction(4) ** exponent
            total = total + _of_pairs(mechanism, moved.pairs, key, rows, cells) * (unit / 2)
    return total * Fraction(moved.scale) ** 2


def _same(mechanism: BlockMechanism, key: Key) -> int:
    """Return ``Π n (n - 1)`` of a key's classes."""
    sizes = [class_size(mechanism.symmetries[axis], component) for axis, component in key]
    return math.prod(size * (size - 1) for size in sizes)


def class_size(symmetry: AttributeSymmetry, component: int) -> int:
    """Return how many values the class has on which a component lives."""
    return int(symmetry.sizes[symmetry.classes[component]])


def _of_pairs(
    mechanism: BlockMechanism, pairs: Pairs, key: Key, rows: Integers, cells: np.typing.NDArray[np.intp]
) -> Exact:
    """Return twice what each kind of pairs costs in some rows of a block: squares and inner products, as they count."""
    places = np.full(1 + int(max(cells.max(), pairs.first.max(initial=0), pairs.second.max(initial=0))), len(cells))
    places[cells] = np.arange(len(cells))
    columns = np.hstack([rows, np.zeros((len(rows), 1), dtype=np.int64)])  # the last for cells that it does not see
    one, two, same = places[pairs.first], places[pairs.second], _same(mechanism, key)
    squares = drawing.column_squares(columns)
    shared = np.array([1] * pairs.count, dtype=object)
    for axis, component in key:
        inner = _inner_products(mechanism.symmetries[axis], component, pairs.types[axis])
        shared = shared * inner[pairs.pair_types[axis]]
    crossed = np.zeros(pairs.count, dtype=object)
    met = np.flatnonzero((one < len(cells)) & (two < len(cells)) & (shared != 0))
    crossed[met] = drawing.column_products(columns[:, one[met]], columns[:, two[met]])
    inner, crosswise = (np.array(weight, dtype=object) for weight in pairs.weights())
    return np.asarray(inner * same * (squares[one] + squares[two]) + crosswise * shared * crossed)


def _inner_products(symmetry: AttributeSymmetry, component: int, types: Types) -> Exact:
    """Return the inner product of two values' moves in a component, for each type of pair of values."""
    size, codes = class_size(symmetry, component), symmetry.classes[component]
    inside = (types.first == codes) & (types.second == codes)
    products = np.where(types.equal, size * (size - 1), -size)
    return np.asarray(np.where(inside, products, 0).astype(object))


def _moved_part(mechanism: BlockMechanism, key: Key) -> Moved | None:
    """Return what takes rows on the classes that a block sees to what neighbours change of them, None for all of it.

    Neighbours do not change what is even over all attributes but the fixed ones: the rest is a row's differences from
    the first class of each other attribute.
    """
    fixed = mechanism.fixed
    if fixed is None or not {axis for axis, _ in key} <= {*fixed}:
        return None
    classed = mechanism.pieces[key].classed
    sizes = [len(mechanism.symmetries[axis].sizes) for axis in classed]
    free = tuple(place for place, axis in enumerate(classed, start=1) if axis not in fixed)

    def moved(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        spread = rows.reshape(len(rows), *sizes)
        first = tuple(slice(0, 1) if place in free else slice(None) for place in range(len(sizes) + 1))
        return np.asarray((spread - spread[first]).reshape(len(rows), math.prod(sizes)))

    return moved


class AnsweredTables:
    """Noisy parts of the blocks of tables: what estimates are made of."""

    __slots__ = ("mechanism",)

    mechanism: BlockMechanism  # with the noise that was drawn

    by_table = True

    def unmoved(self, table: str | Iterable[str]) -> npt.NDArray[np.bool_]:
        """Return which queries of a table, an axis per attribute, are released as they are, unchanged by neighbours."""
        domain, relation = self.mechanism.domain, self.mechanism.neighbours or ADD_REMOVE
        left = (
            relation.leaves(domain.names[axis], query, domain.shape[axis])
            for axis, query in self.mechanism._table(table).queries
        )
        return np.asarray(functools.reduce(np.logical_and.outer, left, np.array(relation.fixed is not None)))

    def estimate(self, measured: Tables, table: str | Iterable[str]) -> Array:
        """Return the unbiased estimate of a table, an axis per attribute, from what was drawn."""
        return self.mechanism.recombine(measured, table)


class DrawnTables(AnsweredTables):
    """A `BlockMechanism` as it is drawn, from marginal tables of counts alone, on a domain of any size.

    Every block is drawn as `DrawnBlock`; the mechanism that this amounts to, `mechanism`, differs from what was given
    by some 1e-6 of its noise and costs no pair of neighbours more; its privacy, `costs`, is computed in whole numbers.
    What no neighbour changes is released as it is, such as the number of records where they are replaced (`unmoved`).
    Raises `InvalidInputError` for blocks of waves, on attributes that queries turn: they have no whole rows.
    """

    __slots__ = ("blocks", "costs")

    blocks: dict[Key, DrawnBlock]
    costs: Exact  # (s,) squared privacy cost of each orbit of neighbours

    def __init__(self, mechanism: BlockMechanism) -> None:
        for axis, symmetry in enumerate(mechanism.symmetries):
            if symmetry.turning:
                raise InvalidInputError(
                    f"mechanism must see classes of values of {mechanism.domain.names[axis]!r}, not its waves, to be "
                    f"drawn exactly; where its domain is small, draw its dense()"
                )
        self.blocks, pieces, known = {}, {}, dict[Any, DrawnBlock]()
        for key, piece in mechanism.pieces.items():
            sizes = [class_size(mechanism.symmetries[axis], component) for axis, component in key]
            moved = _moved_part(mechanism, key)
            basis = mechanism.class_basis(key, piece)
            same = basis.shape, basis.tobytes(), piece.covariance.tobytes(), *sizes, moved and piece.classed
            if same not in known:
                known[same] = DrawnBlock.of(piece, basis, sizes, moved)
            block = self.blocks[key] = known[same]
            pieces[key] = Piece.of(mechanism.symmetries, mechanism.moved, key, piece.moves, block.covariance)
        self.mechanism = mechanism.with_pieces(pieces)
        self.costs = costs_of_orbits(self.mechanism, self.blocks)

    @property
    def squared_privacy_cost(self) -> Fraction:
        """The largest of the neighbours' costs, exactly."""
        return Fraction(max(self.costs))

    def read(self, source: Any, domain: Domain | None, allow_empty: bool) -> Tables:
        """Return the tables of counts that are needed of records, or those that were given."""
        counts = given_counts(source, self.mechanism.domain)
        return (
            records.count(source, self.mechanism.needed_tables, allow_empty=allow_empty) if counts is None else counts
        )

    def draw(self, tables: Tables, noise: Noise) -> dict[Axes, Array]:
        """Draw the noisy parts of all blocks from tables of counts, as `BlockMechanism.measure` returns them."""
        mechanism, measured = self.mechanism, dict[Axes, Array]()
        tables, noise = IndexedTables(tables), drawing.in_batches(noise)
        for (key_axes, classed), keys in mechanism.blocks_by_view().items():
            array = measured.setdefault(key_axes, np.zeros(mechanism.extents(key_axes)))
            counts = whole_counts(tables=mechanism.counts_by_class(tables, key_axes, classed)).astype(object)
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
