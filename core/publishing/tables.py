"""Mechanisms of tables, drawn: whole residuals of counted tables, whole multiples of them, and discrete noise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from dualmech.errors import InvalidInputError
from dualmech.geometry.block_rows import Key
from dualmech.mechanisms import components, records
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.pieces import Piece
from dualmech.publishing.blocks import DrawnBlock
from dualmech.publishing.discrete import Noise
from dualmech.publishing.drawing import given_tables, whole_counts
from dualmech.publishing.pairs import class_size, costs_of_orbits
from dualmech.publishing.whole_numbers import Exact
from dualmech.validate import Array
from dualmech.workloads.domain import Domain
from dualmech.workloads.lattice import Axes


class DrawnTables:
    """A `BlockMechanism` as it is drawn, from marginal tables of counts alone, on a domain of any size.

    Every block is drawn as `DrawnBlock`; the mechanism that this amounts to, `mechanism`, differs from what was given
    by some 1e-6 of its noise and costs no pair of neighbours more; its privacy, `costs`, is computed in whole numbers.
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
            sizes = [class_size(mechanism.symmetries[axis], component) for axis, component in key]
            still = not key and mechanism.neighbours is not None and mechanism.neighbours.replace
            block = self.blocks[key] = DrawnBlock.of(piece, mechanism.class_basis(key, piece), sizes, still)
            pieces[key] = Piece.of(mechanism.symmetries, mechanism.moved, key, piece.moves, block.covariance)
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
            return given_tables(source, self.mechanism.domain)
        return records.count(source, self.mechanism.needed_tables, allow_empty=allow_empty)

    def draw(self, tables: records.Tables, noise: Noise) -> dict[Axes, Array]:
        """Draw the noisy parts of all blocks from tables of counts, as `BlockMechanism.measure` returns them."""
        mechanism, measured = self.mechanism, dict[Axes, Array]()
        for (key_axes, classed), keys in mechanism.blocks_by_view().items():
            found = measured.setdefault(key_axes, np.zeros(mechanism.extents(key_axes)))
            counts = whole_counts(tables=mechanism.counts_by_class(tables, key_axes, classed)).astype(object)
            for key in keys:
                where = mechanism.places(key)
                own = counts[np.ix_(*where)] if where else counts
                residual = components.scaled_residual(own, len(key)).reshape(*own.shape[: len(key)], -1)
                noisy = self.blocks[key].draw(residual, noise)
                for position, (axis, component) in enumerate(key):
                    noisy = components.unit_noise(mechanism.symmetries[axis], component, noisy, position)
                extents = (*noisy.shape[:-1], *found.shape[len(key) :])
                found[np.ix_(*where)] = (noisy @ mechanism.pieces[key].moves).reshape(extents)
        return measured

    def estimate(self, measured: records.Tables, table: str | Iterable[str]) -> Array:
        """Return the unbiased estimate of a table, an axis per attribute, from what was drawn."""
        return self.mechanism.recombine(measured, table)
