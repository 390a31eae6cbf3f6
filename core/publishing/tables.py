"""Mechanisms of tables, drawn: whole residuals of counted tables, whole multiples of them, and discrete noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dualmech.errors import InvalidInputError
from dualmech.geometry.block_rows import Key
from dualmech.mechanisms import components, records
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.pieces import Piece, axes_of
from dualmech.publishing import whole_numbers
from dualmech.publishing.dense import drawn, rounded_factor, solved
from dualmech.publishing.discrete import Noise
from dualmech.publishing.pairs import costs_of_orbits
from dualmech.publishing.whole_numbers import Exact, Integers
from dualmech.validate import Array
from dualmech.workloads.domain import Domain
from dualmech.workloads.lattice import Axes


@dataclass(frozen=True, slots=True, eq=False)
class DrawnBlock:
    """A block as it is drawn: ``N s + z`` in every cell of what the attributes of its key leave of a table.

    With n_c values in the class of each attribute of the key, s is ``⊗ (n_c I - 11')`` times the table on those values
    and on the classes of other wide attributes that the block sees: whole numbers, whose parts are ``Π n_c`` times the
    block's own.
    """

    factor: Integers  # (r, r) lower triangular, diag(2^b) F on the grid
    exponents: Integers  # (r,)
    basis: Integers  # (r, b) whole rows on the classes that the block sees
    moves: Array  # (r, r) from the whole rows to the block's own
    cells: int  # Π n_c

    @classmethod
    def of(cls, piece: Piece, moves: Array, sizes: list[int]) -> DrawnBlock:
        """Put the noise of a piece on a grid; `moves` (r, b) are its rows on the classes that it sees."""
        basis = whole_numbers.whole_basis(moves)
        turn = np.linalg.lstsq(moves.T, basis.T.astype(np.float64), rcond=None)[0].T
        cells = math.prod(sizes)
        factor, exponents = rounded_factor(cells * (turn @ piece.covariance @ turn.T))
        return cls(factor, exponents, basis, np.linalg.inv(turn), cells)

    @property
    def whole(self) -> Integers:
        """N (r, b)."""
        return self.factor @ self.basis

    @property
    def covariance(self) -> Array:
        """Noise on the block's own rows, as a `Piece` has it."""
        inverse = self.moves @ solved(self.factor, self.exponents, np.eye(len(self.factor)))
        return np.asarray(inverse @ inverse.T / self.cells)

    def draw(self, residual: Exact, noise: Noise) -> Array:
        """Draw the block's rows (…, r) from its residual (…, b): the one place where tables meet noise."""
        data = residual.reshape(-1, residual.shape[-1]).T
        noisy = whole_numbers.product(self.whole, data)
        noisy = noisy + drawn(noise, np.broadcast_to(self.exponents[:, None], noisy.shape))
        answers = np.ldexp(noisy.astype(np.float64), -self.exponents[:, None]) / self.cells
        found = (self.moves @ solved(self.factor, self.exponents, answers)).T
        return np.asarray(found.reshape(*residual.shape[:-1], -1))


class DrawnTables:
    """A `BlockMechanism` as it is drawn, from marginal tables of counts alone, on a domain of any size.

    Every block is drawn as `DrawnBlock`; the mechanism that this amounts to, `mechanism`, differs from what was given by
    some 1e-6 of its noise and costs no pair of neighbours more; its privacy, `costs`, is computed in whole numbers.
    Raises `InvalidInputError` for blocks of waves, on attributes that queries turn: they have no whole rows.
    """

    __slots__ = ("blocks", "costs", "mechanism")

    blocks: dict[Key, DrawnBlock]
    costs: Exact  # (s,) squared privacy cost of each orbit of neighbours
    mechanism: BlockMechanism

    def __init__(self, mechanism: BlockMechanism) -> None:
        for axis, symmetry in enumerate(mechanism.symmetries):
            if symmetry.turning:
                raise InvalidInputError(
                    f"mechanism must see classes of values of {mechanism.domain.names[axis]!r}, not its waves, to be "
                    f"drawn exactly; where its domain is small, draw its dense()"
                )
        self.blocks, pieces = {}, {}
        for key, piece in mechanism.pieces.items():
            sizes = [int(mechanism.symmetries[a].sizes[mechanism.symmetries[a].classes[c]]) for a, c in key]
            block = DrawnBlock.of(piece, mechanism.class_basis(key, piece), sizes)
            self.blocks[key] = block
            moved = piece.moves
            pieces[key] = Piece.of(mechanism.symmetries, mechanism.moved, key, moved, block.covariance)
        self.mechanism = mechanism.with_pieces(pieces)
        self.costs = costs_of_orbits(self.mechanism, self.blocks)

    @property
    def squared_privacy_cost(self) -> Fraction:
        """The largest of the neighbours' costs, exactly."""
        return Fraction(max(self.costs))

    by_table = True

    def read(self, source: Any, domain: Domain | None, allow_empty: bool) -> records.Tables:
        """Return the tables of counts that are needed of records, or those that were given."""
        if isinstance(source, Mapping):
            return records.check_tables(records=source)
        return records.count(source, self.mechanism.needed_tables, allow_empty=allow_empty)

    def draw(self, tables: records.Tables, noise: Noise) -> dict[Axes, Array]:
        """Draw the noisy parts of all blocks from tables of counts, as `BlockMechanism.measure` returns them."""
        mechanism, measured = self.mechanism, dict[Axes, Array]()
        for (key_axes, classed), keys in mechanism.blocks_by_view().items():
            found = measured.setdefault(key_axes, np.zeros(mechanism.extents(key_axes)))
            counts = _whole(mechanism.counts_by_class(tables, key_axes, classed))
            for key in keys:
                where = mechanism.places(key)
                own = counts[np.ix_(*where)] if where else counts
                residual = _scaled_residual(own, len(key)).reshape(*own.shape[: len(key)], -1)
                noisy = self.blocks[key].draw(residual, noise)
                for position, (axis, component) in enumerate(key):
                    noisy = components.unit_noise(mechanism.symmetries[axis], component, noisy, position)
                extents = (*noisy.shape[:-1], *found.shape[len(key) :])
                found[np.ix_(*where)] = (noisy @ mechanism.pieces[key].moves).reshape(extents)
        return measured

    def estimate(self, measured: records.Tables, table: str | Iterable[str]) -> Array:
        """Return the unbiased estimate of a table, an axis per attribute, from what was drawn."""
        return self.mechanism.recombine(measured, table)


def _whole(counts: Array) -> Exact:
    """Return counts as Python's integers; anything but whole numbers below 2^53 is refused."""
    if np.any(counts != np.rint(counts)) or np.abs(counts).max(initial=0.0) > 2**53:
        raise InvalidInputError("tables must hold whole numbers of at most 2^53: counts of records")
    return np.asarray(counts.astype(np.int64).astype(object))


def _scaled_residual(table: Exact, axes: int) -> Exact:
    """Return n times each entry less the sum along its line, for each of the first axes."""
    for axis in range(axes):
        table = table.shape[axis] * table - table.sum(axis=axis, keepdims=True)
    return table
