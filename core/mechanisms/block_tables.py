"""Noisy coordinates of blocks: drawn from low-order tables, and put together to the tables of a union."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.block_rows import Key
from dualmech.mechanisms import components, records
from dualmech.mechanisms import sampler as draws
from dualmech.mechanisms.block_noise import BlockNoise, Piece
from dualmech.mechanisms.residual_tables import Tables, marginal_of
from dualmech.mechanisms.sampler import Sampler
from dualmech.validate import Array
from dualmech.workloads.circular import CircularWorkload
from dualmech.workloads.domain import rounded
from dualmech.workloads.lattice import Axes
from dualmech.workloads.marginals import MarginalWorkload, cells_of
from dualmech.workloads.unions import Table

Coordinates = Mapping[Key, Array]
"""Of each block, an array with an axis for every component of its key and a last one for its basis."""


class BlockTables(BlockNoise):
    """Tables of a union with noise on its blocks; the parameters are those of `BlockMechanism`."""

    __slots__ = ()

    @property
    def needed(self) -> MarginalWorkload:
        """The marginal tables that records are counted in: of each block's attributes, and of those it has classes of.

        Raises
        ------
        InvalidInputError
            A table of more cells than are counted; the message has its attributes.
        """
        domain = self.workload.domain
        assert domain is not None
        chosen = records.largest(tuple(sorted(key_axes + classed)) for key_axes, classed in self._views())
        for axes in chosen:
            self._countable(axes)
        return MarginalWorkload(domain, chosen)

    def measure(
        self, tables: Tables, rng: np.random.Generator | int = 0, sampler: Sampler | None = None
    ) -> dict[Key, Array]:
        """Draw the noisy coordinates of all blocks, for study: with floating-point noise NOT a private release.

        This is the one place where these tables meet noise.

        Parameters
        ----------
        tables : mapping of axes to arrays
            Marginal tables of the records; any that cover those of `needed` (`dualmech.records.count`).
        rng : numpy.random.Generator or int
            Where Gaussian noise in floating point comes from, if there is no `sampler`.
        sampler : `dualmech.draws.Sampler`, optional
            What draws the noise instead, called once a block for a standard deviation of 1. Noise of a block is a
            linear map of the draws, and what it is added to are no whole numbers: a sampler of integers does not make
            this a private release.

        Raises
        ------
        InvalidInputError, InputTypeError
            A table that no given one covers, one of another shape, draws of another shape or not finite.
        """
        given, draw = _mapping(tables=tables), draws.gaussian(rng) if sampler is None else sampler
        measured = {}
        for (key_axes, classed), keys in self._views().items():
            parts = self._parts_of(given, key_axes, classed)
            for key in keys:
                piece, places = self.pieces[key], self._places(key)
                extents = [len(each) for each in places]
                noise = draws.drawn(draw, 1.0, (*extents, len(piece.moves)))
                for position, (axis, component) in enumerate(key):
                    noise = components.white(self.blocks.frames[axis], component, noise, position)
                moves = self._moves(key, piece)
                own = parts[np.ix_(*places)].reshape((*extents, moves.shape[1]))
                measured[key] = own @ moves.T / piece.weight + noise @ piece.root
        return measured

    def recombine(self, coordinates: Coordinates, table: str) -> Array:
        """Return the unbiased estimate of a table from noisy coordinates of blocks, an axis an attribute.

        Raises
        ------
        InvalidInputError, InputTypeError
            No table of that name, one too large to write out, coordinates that lack a block or have another shape.
        """
        given, domain, asked = (
            _mapping(coordinates=coordinates),
            self.workload.domain,
            self._asked(table),
        )
        assert domain is not None
        self._countable(asked.axes)
        estimate = np.zeros(tuple(domain.shape[axis] for axis in asked.axes))
        for key_axes, keys in self._seen_by(asked).items():
            shapes = [self._extent(axis) for axis in key_axes]
            outside = [len(self.blocks.frames[axis].sizes) for axis in self._outside(key_axes)]
            parts = np.zeros((*shapes, *outside))
            for key in keys:
                piece, places = self.pieces[key], self._places(key)
                own = self._checked(given, key) @ piece.moves * piece.weight
                parts[np.ix_(*places)] = own.reshape((*(len(each) for each in places), *outside))
            estimate += self._over_values(parts, key_axes, asked.axes)
        for position, (_, queries) in enumerate(asked.queries):
            if isinstance(queries, CircularWorkload):
                estimate = queries.along(estimate, position)
            elif queries is not None:
                estimate = np.moveaxis(
                    np.tensordot(queries.dense(), estimate, axes=(1, position)), 0, position
                )
        return estimate

    def simulate(self, tables: Tables, rng: np.random.Generator | int = 0) -> dict[str, Array]:
        """Draw all tables of the union, noisy and consistent with each other, for study. NOT a private release."""
        measured = self.measure(tables, rng)
        return {name: self.recombine(measured, name) for name in self.workload.table_names}

    def _views(self) -> dict[tuple[Axes, Axes], list[Key]]:
        """Return the blocks by the attributes of their keys, and by those that they see classes of."""
        views: dict[tuple[Axes, Axes], list[Key]] = {}
        for key_axes, keys in self.groups.items():
            for key in keys:
                views.setdefault((key_axes, self.pieces[key].classed), []).append(key)
        return views

    def _parts_of(self, tables: Tables, key_axes: Axes, classed: Axes) -> Array:
        """Return the data by parts along some attributes, then by classes of others."""
        assert self.workload.domain is not None
        whole = tuple(sorted(key_axes + classed))
        array = marginal_of(self.workload.domain, tables, whole)
        for axis in classed:
            array = components.class_sums(self.blocks.frames[axis], array, whole.index(axis))
        array = np.transpose(array, [whole.index(axis) for axis in (*key_axes, *classed)])
        for position, axis in enumerate(key_axes):
            array = components.parts_of(self.blocks.frames[axis], array, position)
        return array

    def _moves(self, key: Key, piece: Piece) -> Array:
        """Return the basis of a block with one coordinate for all classes that it does not tell apart."""
        outside = self._outside(tuple(axis for axis, _ in key))
        sizes = [len(self.blocks.frames[axis].sizes) for axis in outside]
        even = tuple(position for position, axis in enumerate(outside, start=1) if axis not in piece.classed)
        moves = piece.moves.reshape((len(piece.moves), *sizes)).mean(axis=even)
        return np.asarray(moves.reshape(len(piece.moves), -1))

    def _over_values(self, parts: Array, key_axes: Axes, axes: Axes) -> Array:
        """Return the table of some attributes' values that has parts along some and is even along the others."""
        frames, order = self.blocks.frames, [*key_axes]
        for position, axis in enumerate(key_axes):
            parts = components.from_parts(frames[axis], parts, position)
        for axis in self._outside(key_axes):
            if axis in axes:
                parts = components.over_values(frames[axis], parts, len(order))
                order.append(axis)
            else:
                parts = parts.sum(axis=len(order))
        narrow = [axis for axis in axes if axis not in order]
        parts = np.transpose(parts, np.argsort(order)) / math.prod(
            len(frames[axis].labels) for axis in narrow
        )
        return np.asarray(np.expand_dims(parts, tuple(axes.index(axis) for axis in narrow)))

    def _seen_by(self, table: Table) -> dict[Axes, list[Key]]:
        """Return the blocks that a table has a part in."""
        looks = self.blocks.parts[self.workload.tables.index(table)]
        active = {axis: np.any(each.energies, axis=0) for axis, each in zip(table.axes, looks, strict=True)}
        return {
            key_axes: [key for key in keys if all(active[axis][component] for axis, component in key)]
            for key_axes, keys in self.groups.items()
            if set(key_axes) <= set(table.axes)
        }

    def _checked(self, coordinates: Coordinates, key: Key) -> Array:
        """Return the coordinates of a block, once they have its shape."""
        if key not in coordinates:
            raise InvalidInputError(f"coordinates must hold the block {key}, {self._named(key)}")
        own = validate.finite(**{f"coordinates[{key}]": coordinates[key]})
        shape = (*(len(each) for each in self._places(key)), len(self.pieces[key].moves))
        if own.shape != shape:
            raise InvalidInputError(f"coordinates[{key}] must have shape {shape}, got {own.shape}")
        return own

    def _countable(self, axes: Axes) -> None:
        domain = self.workload.domain
        assert domain is not None
        if (cells := cells_of(domain, axes)) > records.LARGEST_TABLE:
            shown = " x ".join(f"{domain.names[axis]} {domain.shape[axis]}" for axis in axes)
            raise InvalidInputError(
                f"a table of {shown} has {rounded(cells)} cells, too many to count (limit {records.LARGEST_TABLE})"
            )

    def _places(self, key: Key) -> list[components.Index]:
        return [components.places(self.blocks.frames[axis], component) for axis, component in key]

    def _extent(self, axis: int) -> int:
        frame = self.blocks.frames[axis]
        return len(frame.labels) - int(frame.turning)

    def _outside(self, key_axes: Axes) -> Axes:
        return tuple(axis for axis in self.blocks.wide if axis not in key_axes)


def _mapping(**named: object) -> Any:
    ((name, given),) = named.items()
    if not isinstance(given, Mapping) or not all(isinstance(key, tuple) for key in given):
        raise InputTypeError(f"{name} must map tuples to arrays, got {type(given).__name__}")
    return given
