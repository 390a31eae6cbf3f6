"""Noisy parts of low-order tables: how they are drawn, and recombined into the tables that are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.block_rows import Key
from dualmech.mechanisms import components, records
from dualmech.mechanisms import sampler as draws
from dualmech.mechanisms.block_noise import BlockNoise
from dualmech.mechanisms.pieces import Piece, axes_of
from dualmech.mechanisms.records import Tables, check_tables, marginal_of
from dualmech.mechanisms.sampler import Sampler
from dualmech.validate import Array
from dualmech.workloads.base import MAX_NAMES, Workload, check_workload
from dualmech.workloads.circular import CircularWorkload
from dualmech.workloads.domain import count_text
from dualmech.workloads.lattice import Axes
from dualmech.workloads.marginals import MarginalWorkload, cells_of
from dualmech.workloads.unions import UnionWorkload, union_of


class BlockTables(BlockNoise):
    """Tables with noise on their blocks; the parameters are those of `BlockMechanism`."""

    __slots__ = ()

    def as_targets(self, workload: Workload) -> Array:
        """Return the variances of queries over the same attributes, of too many the largest of each table.

        Tables need not be those that the noise was made for, nor have its symmetry. See `GaussianPrivacy`.
        """
        asked = check_workload(workload)
        tables = asked.tabular()
        if tables is None or tables.domain != self.domain:
            if asked.domain is not None and asked.domain != self.domain:
                raise InvalidInputError("workload must be over the attributes of the mechanism")
            written: Array = self.dense().variances(asked)
            return written
        few, union = asked.shape[0] <= MAX_NAMES, None
        if isinstance(tables, UnionWorkload) or not self._plain:
            union = tables if isinstance(tables, UnionWorkload) else union_of([tables])
        if union is None:
            by_table = self._by_table(tables)
            return by_table[asked.table_numbers()] if few else by_table
        if few:
            return np.concatenate([self._each(table).ravel() for table in union.tables])
        return np.array([self._orbit_variances(self._rows(table)[1]).max() for table in union.tables])

    def dense(self) -> Any:
        """Return the noise written out on the cells."""
        raise NotImplementedError

    @property
    def needed_tables(self) -> MarginalWorkload:
        """The marginal tables that records are counted in: of each block's attributes, and of those it has classes of.

        Raises `InvalidInputError` for a table of more cells than are counted; the message has its attributes.
        """
        chosen = records.maximal_sets(
            tuple(sorted(key_axes + classed)) for key_axes, classed in self.blocks_by_view()
        )
        for axes in chosen:
            self._countable(axes)
        return MarginalWorkload(self.domain, sorted(chosen, key=lambda axes: (len(axes), axes)))

    def measure(
        self, tables: Tables, rng: np.random.Generator | int | None = None, sampler: Sampler | None = None
    ) -> dict[Axes, Array]:
        """Draw the noisy parts of all blocks, for study: with floating-point noise NOT a private release.

        This is the one place where these tables meet noise. Of a marginal table y on a set T of attributes, where all
        are marginal tables, ``⊗ (n_i I - 11') y`` is measured, whole numbers where y is, with independent noise of
        variance ``τ_T cells_T`` in every cell. Then the sum is centred and divided by ``cells_T``. Of other blocks the
        noise is a linear map of draws of deviation 1, and what it is added to are no whole numbers: there a sampler of
        integers does not make this a private release.
        Raises `InvalidInputError` or `InputTypeError` for a table that no given one covers, one of another
        shape, draws of another shape or not finite.
        Returns a dict of axes to arrays: by the attributes of blocks, an axis each for those (their values, or waves
        where values turn), then one for the classes of every other attribute that has several.

        - ``tables``: those of the records, which cover those of `needed_tables` (`dualmech.records.count`);
        - `rng`: a generator or a seed of Gaussian noise in floating point, by default the operating system's;
        - `sampler`: what draws the noise instead, called once per block with a standard deviation and a shape.

        Examples
        --------
        >>> import dualmech as dm
        >>> mechanism = dm.BlockMechanism.of_levels(dm.Domain({"sex": 2}), {(): 1.0, (0,): 1.0})
        >>> silent = mechanism.measure({(0,): [30, 20]}, sampler=lambda deviation, shape: np.zeros(shape))
        >>> silent[()], silent[0,]
        (array(50.), array([ 5., -5.]))
        """
        given, draw = check_tables(tables=tables), draws.gaussian(rng) if sampler is None else sampler
        measured: dict[Axes, Array] = {}
        for (key_axes, classed), keys in self.blocks_by_view().items():
            if not self.wide and not any(self.symmetries[axis].turning for axis in key_axes):
                level = float(self.pieces[keys[0]].covariance[0, 0])
                table = marginal_of(self.domain, given, key_axes)
                whole = components.scaled_residual(table, table.ndim)  # no rounding below 2^53
                noisy = whole + draws.draw_noise(draw, math.sqrt(level * whole.size), whole.shape)
                measured[key_axes] = np.asarray(_centred(noisy) / whole.size)
                continue
            found = measured.setdefault(key_axes, np.zeros(self.extents(key_axes)))
            parts = self._parts_of(given, key_axes, classed)
            for key in keys:
                self._draw(found, parts, key, draw)
        return measured

    def _draw(self, found: Array, parts: Array, key: Key, draw: Sampler) -> None:
        """Write the noisy parts of a block to their places."""
        piece, where = self.pieces[key], self.places(key)
        extents = tuple(len(each) for each in where)
        noise = draws.draw_noise(draw, 1.0, (*extents, len(piece.moves)))
        for position, (axis, component) in enumerate(key):
            noise = components.unit_noise(self.symmetries[axis], component, noise, position)
        moves = self.class_basis(key, piece)
        own = parts[np.ix_(*where)].reshape((*extents, moves.shape[1]))
        noisy = own @ moves.T + piece.weight * (noise @ piece.root)
        found[np.ix_(*where)] = (noisy @ piece.moves).reshape((*extents, *found.shape[len(key) :]))

    def recombine(self, measured: Tables, table: str | Iterable[str]) -> Array:
        """Return the unbiased estimate of a table from noisy parts, an axis per attribute.

        Raises `InvalidInputError` or `InputTypeError` for what `variance` refuses, a table too large to write
        out, parts that are missing or have another shape.

        - `measured`: what `measure` returned;
        - `table`: as `variance` takes it.
        """
        given, asked = check_tables(measured=measured), self._few(self._table(table))
        self._countable(asked.axes)
        estimate = np.zeros(tuple(self.domain.shape[axis] for axis in asked.axes))
        for key_axes in dict.fromkeys(map(axes_of, self._rows(asked)[1])):
            estimate += self._value_table(self._as_block_table(given, key_axes), key_axes, asked.axes)
        for position, (_, queries) in enumerate(asked.queries):
            if isinstance(queries, CircularWorkload):
                estimate = queries.along(estimate, position)
            elif queries is not None:
                estimate = np.moveaxis(
                    np.tensordot(queries.dense(), estimate, axes=(1, position)), 0, position
                )
        return estimate

    def simulate(self, tables: Tables, rng: np.random.Generator | int | None = None) -> dict[Any, Array]:
        """Draw all tables, noisy and consistent with each other, for study. NOT a private release.

        Returns a dict of names to arrays: those of a union by their names; marginal tables by their attributes, where
        none were asked for the largest that are measured.
        """
        measured, asked = self.measure(tables, rng), self.workload or self.needed_tables
        names = asked.table_names if isinstance(asked, UnionWorkload) else asked.sets
        return {name: self.recombine(measured, name) for name in names}

    def blocks_by_view(self) -> dict[tuple[Axes, Axes], list[Key]]:
        """Return the blocks by the attributes of their keys, and by those that they see classes of."""
        views: dict[tuple[Axes, Axes], list[Key]] = {}
        for key, piece in self.pieces.items():
            views.setdefault((axes_of(key), piece.classed), []).append(key)
        return views

    def counts_by_class(self, tables: Tables, key_axes: Axes, classed: Axes) -> Array:
        """Return the data by values of some attributes, then by classes of others."""
        whole = tuple(sorted(key_axes + classed))
        array = marginal_of(self.domain, tables, whole)
        for axis in classed:
            array = components.class_sums(self.symmetries[axis], array, whole.index(axis))
        return np.transpose(array, [whole.index(axis) for axis in (*key_axes, *classed)])

    def _parts_of(self, tables: Tables, key_axes: Axes, classed: Axes) -> Array:
        """Return the data by parts along some attributes, then by classes of others."""
        array = self.counts_by_class(tables, key_axes, classed)
        for position, axis in enumerate(key_axes):
            array = components.parts_of(self.symmetries[axis], array, position)
        return array

    def class_basis(self, key: Key, piece: Piece) -> Array:
        """Return the basis of a block with one coordinate for all classes that it does not tell apart."""
        outside = self._outside(axes_of(key))
        sizes = [len(self.symmetries[axis].sizes) for axis in outside]
        even = tuple(position for position, axis in enumerate(outside, start=1) if axis not in piece.classed)
        moves = piece.moves.reshape((len(piece.moves), *sizes)).mean(axis=even)
        return np.asarray(moves.reshape(len(piece.moves), -1))

    def over_all_classes(self, key: Key, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return rows on the classes that a block sees as rows on all classes of the attributes outside its key."""
        outside, classed = self._outside(axes_of(key)), self.pieces[key].classed
        sizes = [len(self.symmetries[axis].sizes) for axis in outside]
        seen = [size if axis in classed else 1 for axis, size in zip(outside, sizes, strict=True)]
        return np.broadcast_to(rows.reshape(-1, *seen), (len(rows), *sizes)).reshape(len(rows), -1)

    def _value_table(self, parts: Array, key_axes: Axes, axes: Axes) -> Array:
        """Return the table of some attributes' values that has parts along some and is even along the others."""
        symmetries, order = self.symmetries, [*key_axes]
        for position, axis in enumerate(key_axes):
            parts = components.from_parts(symmetries[axis], parts, position)
        for axis in self._outside(key_axes):
            if axis in axes:
                parts = components.spread_over_values(symmetries[axis], parts, len(order))
                order.append(axis)
            else:
                parts = parts.sum(axis=len(order))
        narrow = [axis for axis in axes if axis not in order]
        parts = np.transpose(parts, np.argsort(order)) / math.prod(self.domain.shape[axis] for axis in narrow)
        return np.asarray(np.expand_dims(parts, tuple(axes.index(axis) for axis in narrow)))

    def _as_block_table(self, measured: Tables, key_axes: Axes) -> Array:
        """Return what was measured of the blocks on some attributes, once it has their shape."""
        if key_axes not in measured:
            raise InvalidInputError(f"measured must hold {self._shown(key_axes)}, at {key_axes}")
        own, shape = (
            validate.finite(**{f"measured[{key_axes}]": measured[key_axes]}),
            self.extents(key_axes),
        )
        if own.shape != shape:
            raise InvalidInputError(f"measured[{key_axes}] must have shape {shape}, got {own.shape}")
        return own

    def _countable(self, axes: Axes) -> None:
        if (cells := cells_of(self.domain, axes)) > records.LARGEST_TABLE:
            shown = " x ".join(f"{self.domain.names[axis]} {self.domain.shape[axis]}" for axis in axes)
            raise InvalidInputError(
                f"a table of {shown} has {count_text(cells)} cells, too many to count (limit {records.LARGEST_TABLE})"
            )

    def places(self, key: Key) -> list[components.Index]:
        """Return where along each attribute of a key its component lies."""
        return [components.places(self.symmetries[axis], component) for axis, component in key]

    def extents(self, key_axes: Axes) -> tuple[int, ...]:
        """Return the shape of what is measured on some attributes: theirs, then the classes of the other wide ones."""
        own = (self.domain.shape[axis] - int(self.symmetries[axis].turning) for axis in key_axes)
        return (*own, *(len(self.symmetries[axis].sizes) for axis in self._outside(key_axes)))

    def _outside(self, key_axes: Axes) -> Axes:
        return tuple(axis for axis in self.wide if axis not in key_axes)


def _centred(table: Array) -> Array:
    """Return a table less its mean along every axis: its part in the residual subspace of all its attributes."""
    for axis in range(table.ndim):
        table = table - table.mean(axis=axis, keepdims=True)
    return np.asarray(table)
