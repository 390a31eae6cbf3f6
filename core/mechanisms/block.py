"""The mechanism of tables: noise on the blocks of their symmetry, measured from low-order tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, mechanisms, validate
from dualmech.display import decimal_above
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.attribute_symmetry import MAX_ORBITS, Key
from dualmech.geometry.block_neighbours import NeighbourMoves
from dualmech.geometry.block_rows import BlockRows, check_key, key_of, symmetries_of
from dualmech.geometry.blocks import BlockPoint, Blocks
from dualmech.mechanisms import block_noise
from dualmech.mechanisms.block_noise import BlockNoise, Piece, axes_of, same_symmetry
from dualmech.mechanisms.gaussian import (
    TOLERANCE,
    Answerability,
    LinearGaussianMechanism,
    answerable,
    check_written,
    without_tiny_entries,
)
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.mechanisms.tables import (
    LARGEST_TABLE,
    IndexedTables,
    Sampler,
    Tables,
    check_tables,
    draw_noise,
    gaussian,
    marginal_of,
    maximal_sets,
)
from dualmech.neighbours import ADD_REMOVE, Relation, relation_of
from dualmech.validate import Array
from dualmech.workloads.arrays import sets_to_arrays
from dualmech.workloads.base import MAX_NAMES, Workload, check_workload
from dualmech.workloads.circle import CircularWorkload
from dualmech.workloads.domain import Axes, Domain, are_positions, count_text
from dualmech.workloads.marginal import MarginalWorkload, cells_of
from dualmech.workloads.unions import Table, UnionWorkload, tables_of, union_of

# Noisy parts of low-order tables, and estimates of the workload's tables from them.


class BlockTables(BlockNoise):
    """Tables with noise on their blocks; see `BlockMechanism` for the parameters."""

    __slots__ = ()

    def as_targets(self, workload: Workload) -> Array:
        """Return the variances of queries over the same attributes, or the largest of each table if they are too many.

        The tables may differ from the mechanism's, and have another symmetry. See `GaussianPrivacy`.
        """
        checked = check_workload(workload)
        tables = checked.tabular()
        if tables is None or tables.domain != self.domain:
            if checked.domain is not None and checked.domain != self.domain:
                raise InvalidInputError("workload must be over the attributes of the mechanism")
            variances: Array = self.dense().variances(checked)
            return variances
        per_query, union = checked.shape[0] <= MAX_NAMES, None
        if isinstance(tables, UnionWorkload) or not self.plain:
            union = tables if isinstance(tables, UnionWorkload) else union_of([tables])
        if union is None:
            largest = self._by_table(tables)
            return largest[checked.table_numbers()] if per_query else largest
        if per_query:
            return np.concatenate([self._each(table).ravel() for table in union.tables])
        return np.array([self._largest(table) for table in union.tables])

    def dense(self) -> Any:
        """Return the equivalent mechanism on the cells."""
        raise NotImplementedError

    @property
    def needed_tables(self) -> MarginalWorkload:
        """The marginal tables to count: of the attributes of each block's key and classes.

        Raises `InvalidInputError` for a table with too many cells, with its attributes.
        """
        chosen = maximal_sets(tuple(sorted(key_axes + classed)) for key_axes, classed in self.blocks_by_view())
        for axes in chosen:
            self._countable(axes)
        return MarginalWorkload(self.domain, sorted(chosen, key=lambda axes: (len(axes), axes)))

    def measure(
        self, tables: Tables, rng: np.random.Generator | int | None = None, sampler: Sampler | None = None
    ) -> dict[Axes, Array]:
        """Draw the noisy parts of all blocks, for study: with floating-point noise NOT a private release.

        If all tables are marginal tables, ``⊗ (n_i I - 11') y`` of the table y on a set T is measured, an integer for
        integer counts, with independent noise of variance ``τ_T cells_T`` in every cell. The sum is then centred and
        divided by ``cells_T``. For other blocks the noise is a linear map of samples of standard deviation 1, and the
        measured parts are not integers: a sampler of integers does not make these a private release.
        Raises `InvalidInputError` or `InputTypeError` for a missing table, or samples of another shape or not finite.
        Returns a dict of axes to arrays: for the attributes of a key, an axis for each (its values, or Fourier modes
        under rotations), then one for the classes of every other attribute with several classes.

        - ``tables``: tables of the records, which cover `needed_tables` (`dualmech.records.count`);
        - `rng`: the generator of Gaussian noise in floating point, or its seed; by default a seed of the operating
          system;
        - `sampler`: replaces the Gaussian noise; called once per block with a standard deviation and a shape.

        Examples
        --------
        >>> import dualmech as dm
        >>> mechanism = dm.BlockMechanism.of_levels(dm.Domain({"sex": 2}), {(): 1.0, (0,): 1.0})
        >>> silent = mechanism.measure({(0,): [30, 20]}, sampler=lambda deviation, shape: np.zeros(shape))
        >>> silent[()], silent[0,]
        (array(50.), array([ 5., -5.]))
        """
        indexed = IndexedTables(check_tables(tables=tables))
        draw = gaussian(rng) if sampler is None else sampler
        measured: dict[Axes, Array] = {}
        for (key_axes, classed), keys in self.blocks_by_view().items():
            if not self.wide and not any(self.symmetries[axis].turning for axis in key_axes):
                level = float(self.pieces[keys[0]].covariance[0, 0])
                table = marginal_of(self.domain, indexed, key_axes)
                scaled = block_noise.scaled_residual(table, table.ndim)  # no rounding below 2^53
                noisy = scaled + draw_noise(draw, math.sqrt(level * scaled.size), scaled.shape)
                measured[key_axes] = np.asarray(_centred(noisy) / scaled.size)
                continue
            array = measured.setdefault(key_axes, np.zeros(self.extents(key_axes)))
            parts = self._parts_of(indexed, key_axes, classed)
            for key in keys:
                self._draw(array, parts, key, draw)
        return measured

    def _draw(self, array: Array, parts: Array, key: Key, draw: Sampler) -> None:
        """Write the noisy parts of a block to the array."""
        piece, where = self.pieces[key], self.places(key)
        extents = tuple(len(places) for places in where)
        noise = draw_noise(draw, 1.0, (*extents, len(piece.moves)))
        for position, (axis, component) in enumerate(key):
            noise = block_noise.unit_noise(self.symmetries[axis], component, noise, position)
        moves = self.class_basis(key, piece)
        part = parts[np.ix_(*where)].reshape((*extents, moves.shape[1]))
        noisy = part @ moves.T + piece.weight * (noise @ piece.root)
        array[np.ix_(*where)] = (noisy @ piece.moves).reshape((*extents, *array.shape[len(key) :]))

    def recombine(self, measured: Tables, table: str | Iterable[str]) -> Array:
        """Return the unbiased estimate of a table from noisy parts, an axis per attribute.

        Raises `InvalidInputError` or `InputTypeError` for what `variance` refuses, a table too large for
        memory, parts that are missing or have another shape.

        - `measured`: what `measure` returned;
        - `table`: as `variance` takes it.
        """
        blocks, asked_queries = check_tables(measured=measured), self._few(self._table(table))
        self._countable(asked_queries.axes)
        estimate = np.zeros(tuple(self.domain.shape[axis] for axis in asked_queries.axes))
        for key_axes in dict.fromkeys(map(axes_of, self._rows(asked_queries)[1])):
            estimate += self._value_table(self._as_block_table(blocks, key_axes), key_axes, asked_queries.axes)
        for position, (_, queries) in enumerate(asked_queries.queries):
            if isinstance(queries, CircularWorkload):
                estimate = queries.along(estimate, position)
            elif queries is not None:
                estimate = np.moveaxis(np.tensordot(queries.dense(), estimate, axes=(1, position)), 0, position)
        return estimate

    def simulate(self, tables: Tables, rng: np.random.Generator | int | None = None) -> dict[Any, Array]:
        """Draw noisy, consistent tables, for study. NOT a private release.

        Returns a dict of arrays: of a union by table names, of marginal tables by attributes. Without a workload, the
        largest measured tables.
        """
        measured, workload = IndexedTables(self.measure(tables, rng)), self.workload or self.needed_tables
        names = workload.table_names if isinstance(workload, UnionWorkload) else workload.sets
        return {name: self.recombine(measured, name) for name in names}

    def blocks_by_view(self) -> dict[tuple[Axes, Axes], list[Key]]:
        """Return the blocks by the attributes of their keys and of their classes."""
        views: dict[tuple[Axes, Axes], list[Key]] = {}
        for key, piece in self.pieces.items():
            views.setdefault((axes_of(key), piece.classed), []).append(key)
        return views

    def counts_by_class(self, tables: Tables, key_axes: Axes, classed: Axes) -> Array:
        """Return the data by values of some attributes, then by classes of others."""
        all_axes = tuple(sorted(key_axes + classed))
        array = marginal_of(self.domain, tables, all_axes)
        for axis in classed:
            array = block_noise.class_sums(self.symmetries[axis], array, all_axes.index(axis))
        return np.transpose(array, [all_axes.index(axis) for axis in (*key_axes, *classed)])

    def _parts_of(self, tables: Tables, key_axes: Axes, classed: Axes) -> Array:
        """Return the data by parts along some attributes, then by classes of others."""
        array = self.counts_by_class(tables, key_axes, classed)
        for position, axis in enumerate(key_axes):
            array = block_noise.parts_of(self.symmetries[axis], array, position)
        return array

    def class_basis(self, key: Key, piece: Piece) -> Array:
        """Return the basis of a block with one coordinate for all classes over which it is constant."""
        other_axes = self._outside(axes_of(key))
        sizes = [len(self.symmetries[axis].sizes) for axis in other_axes]
        constant_axes = tuple(
            position for position, axis in enumerate(other_axes, start=1) if axis not in piece.classed
        )
        moves = piece.moves.reshape((len(piece.moves), *sizes)).mean(axis=constant_axes)
        return np.asarray(moves.reshape(len(piece.moves), -1))

    def over_all_classes(self, key: Key, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return rows on the classes of a block as rows on all classes of the attributes outside its key."""
        other_axes, classed = self._outside(axes_of(key)), self.pieces[key].classed
        sizes = [len(self.symmetries[axis].sizes) for axis in other_axes]
        block_sizes = [size if axis in classed else 1 for axis, size in zip(other_axes, sizes, strict=True)]
        return np.broadcast_to(rows.reshape(-1, *block_sizes), (len(rows), *sizes)).reshape(len(rows), -1)

    def _value_table(self, parts: Array, key_axes: Axes, axes: Axes) -> Array:
        """Return the table of `axes` with these parts for the key's attributes, constant over all other values."""
        symmetries, order = self.symmetries, [*key_axes]
        for position, axis in enumerate(key_axes):
            parts = block_noise.from_parts(symmetries[axis], parts, position)
        for axis in self._outside(key_axes):
            if axis in axes:
                parts = block_noise.spread_over_values(symmetries[axis], parts, len(order))
                order.append(axis)
            else:
                parts = parts.sum(axis=len(order))
        missing_axes = [axis for axis in axes if axis not in order]
        parts = np.transpose(parts, np.argsort(order)) / math.prod(self.domain.shape[axis] for axis in missing_axes)
        return np.asarray(np.expand_dims(parts, tuple(axes.index(axis) for axis in missing_axes)))

    def _as_block_table(self, measured: Tables, key_axes: Axes) -> Array:
        """Return the measurement of the blocks on some attributes, with a checked shape."""
        if key_axes not in measured:
            raise InvalidInputError(f"measured must hold {self._shown(key_axes)}, at {key_axes}")
        array, shape = (validate.finite(**{f"measured[{key_axes}]": measured[key_axes]}), self.extents(key_axes))
        if array.shape != shape:
            raise InvalidInputError(f"measured[{key_axes}] must have shape {shape}, got {array.shape}")
        return array

    def _countable(self, axes: Axes) -> None:
        if (cells := cells_of(self.domain, axes)) > LARGEST_TABLE:
            description = " x ".join(f"{self.domain.names[axis]} {self.domain.shape[axis]}" for axis in axes)
            raise InvalidInputError(
                f"a table of {description} has {count_text(cells)} cells, too many to count (limit {LARGEST_TABLE})"
            )

    def places(self, key: Key) -> list[block_noise.Index]:
        """Return the indices of each component of a key along the axis of its attribute."""
        return [block_noise.places(self.symmetries[axis], component) for axis, component in key]

    def extents(self, key_axes: Axes) -> tuple[int, ...]:
        """Return the shape of the measurement on some attributes: their sizes, then the classes of other wide ones."""
        sizes = (self.domain.shape[axis] - int(self.symmetries[axis].turning) for axis in key_axes)
        return (*sizes, *(len(self.symmetries[axis].sizes) for axis in self._outside(key_axes)))

    def _outside(self, key_axes: Axes) -> Axes:
        return tuple(axis for axis in self.wide if axis not in key_axes)


def _centred(table: Array) -> Array:
    """Subtract the mean of a table along every axis: the projection on the residual subspace of its attributes."""
    for axis in range(table.ndim):
        table = table - table.mean(axis=axis, keepdims=True)
    return np.asarray(table)


# Answerability and composition of mechanisms of tables, block by block.


class OrderedBlocks(BlockTables):
    """Comparisons of mechanisms of tables; see `BlockMechanism` for the parameters.

    All of it refuses, with `InvalidInputError` or `InputTypeError`, mechanisms of another kind, on other attributes or
    with other neighbours. Their tables need not be the same: they are compared on the blocks that all tables
    leave together (`dualmech.mechanisms.frames.TableBlocks`).
    """

    __slots__ = ()

    def same_as(self, other: object) -> bool:
        """Whether another mechanism has the same noise on the same blocks, and the same neighbours."""
        return (
            isinstance(other, OrderedBlocks)
            and self.domain == other.domain
            and self.neighbours == other.neighbours
            and same_symmetry(self.symmetries, other.symmetries)
            and self.pieces.keys() == other.pieces.keys()
            and all(
                np.array_equal(piece.moves, other.pieces[key].moves)
                and np.array_equal(piece.covariance, other.pieces[key].covariance)
                for key, piece in self.pieces.items()
            )
        )

    def _answers_all_of(self, table: Table) -> bool:
        """Whether a table is answered, every part of it."""
        try:
            self._rows(table)
        except InvalidInputError:
            return False
        return True

    def is_answerable_from(self, other: BlockTables, tol: float = TOLERANCE) -> Answerability:
        """Say whether the other's answers, with more noise, are this mechanism's: ``C ⪯ (1 + tol) C_other``.

        The answer has the least relative excess that would do, and the attributes of the block where it is worst.

        Examples
        --------
        >>> import dualmech as dm
        >>> domain = dm.Domain([(f"a{attribute}", 2) for attribute in range(7)])
        >>> one, cells = (
        ...     dm.BlockMechanism.of_tables(dm.workloads.marginals(domain, ways=ways)) for ways in (1, 7)
        ... )
        >>> verdict = one.is_answerable_from(cells)
        >>> bool(verdict), round(verdict.excess, 6), verdict.attributes     # of the total: variance 2/7, not 128
        (False, 447.0, ())
        """
        frame = mechanisms.frames.TableBlocks([self, other], ("the mechanism", "other"))
        limit, excess, worst = validate.positive_number(tol=tol), 0.0, None
        for key, wanted, held in zip(frame.keys, frame.parts(self), frame.parts(other), strict=True):
            beyond = answerable(wanted, held, limit).excess
            if beyond > excess:
                excess, worst = beyond, key
        if excess <= limit or worst is None:
            return Answerability(True, excess)
        names = tuple(self.domain.names[axis] for axis in axes_of(worst))
        return Answerability(False, excess, attributes=names)

    def compose(self, *others: BlockTables) -> Self:
        """Return what this mechanism and others reveal together, run independently; their costs add."""
        every: list[Any] = [self, *others]
        frame = mechanisms.frames.TableBlocks(
            every, ["the mechanism", *(f"others[{index}]" for index in range(len(others)))]
        )
        blocks = zip(*(frame.parts(mechanism) for mechanism in every), strict=True)
        together: Self = frame.joined([first.compose(*rest) for first, *rest in blocks])
        return together

    def combine(self, measured: Tables, *others: tuple[BlockTables, Tables]) -> dict[Axes, Array]:
        """Return what noisy parts of this mechanism and of others say together: averages, by their accuracy.

        They have the distribution of `compose`. Algorithm 4 of CMN, block by block.
        Raises `InvalidInputError` or `InputTypeError` for mechanisms that cannot be compared, or whose blocks are not
        those of this one; measurements that lack a part.

        - `measured`: what `measure` of this mechanism returned;
        - `others`: run independently, on the same records.

        Examples
        --------
        >>> import dualmech as dm
        >>> domain = dm.Domain({"sex": 2})
        >>> first, second = (dm.BlockMechanism.of_levels(domain, {(): level}) for level in (1, 3))
        >>> first.combine({(): np.array(10.0)}, (second, {(): np.array(14.0)}))[()]
        array(11.)
        """
        parts = [(self, check_tables(measured=measured)), *_pairs("others", others)]
        return self.compose(*(mechanism for mechanism, _ in parts[1:])).recreate(parts)

    def recreate(self, parts: Sequence[tuple[Any, Tables]]) -> dict[Axes, Array]:
        """Return what this mechanism would measure, from what mechanisms have that together reveal as much.

        Raises `InvalidInputError` for measurements on other blocks, or that lack a part.

        - `parts`: each with what it measured, run independently on the same records.
        """
        pairs = _pairs("parts", parts)
        for mechanism, _ in pairs:
            if not same_symmetry(mechanism.symmetries, self.symmetries):
                raise InvalidInputError("what was measured must be on the same blocks, its tables leave others")
        combined: dict[Axes, Array] = {}
        for key, piece in self.pieces.items():
            array = combined.setdefault(axes_of(key), np.zeros(self.extents(axes_of(key))))
            where = np.ix_(*self.places(key))
            parts_told = [mechanism._told(key, tables) for mechanism, tables in pairs if key in mechanism.pieces]
            if not parts_told:
                raise InvalidInputError(f"parts must measure {self._named(key)}, none of them does")
            total = np.asarray(sum(parts_told))
            answers = total @ piece.moves.T @ piece.covariance
            array[where] = (answers @ piece.moves).reshape(array[where].shape)
        return combined

    def _told(self, key: Key, measured: Tables) -> Array:
        """Return ``moves' K⁻¹`` times the noisy answers in every copy of a block (…, b)."""
        piece, axes = self.pieces[key], axes_of(key)
        array = self._as_block_table(measured, axes)[np.ix_(*self.places(key))]
        answers = array.reshape(*array.shape[: len(axes)], -1) @ piece.moves.T
        solved = np.linalg.solve(piece.covariance, answers.reshape(-1, len(piece.moves)).T).T
        return np.asarray(solved.reshape(answers.shape) @ piece.moves)


def _pairs(name: str, values: object) -> list[tuple[Any, Tables]]:
    pairs = []
    for index, item in enumerate(validate.sequence(**{name: values})):
        pair = validate.sequence(**{f"{name}[{index}]": item})
        if len(pair) != 2 or not isinstance(pair[0], OrderedBlocks):
            raise InvalidInputError(f"{name}[{index}] must be a BlockMechanism and what it measured")
        pairs.append((pair[0], check_tables(**{f"{name}[{index}]": pair[1]})))
    return pairs


class BlockMechanism(OrderedBlocks, GaussianPrivacy):
    """Noise on the blocks of tables, on a domain of any size.

    For every block and each of its copies the mechanism releases ``moves @ s`` with independent noise of covariance
    K_b. The entry s_o is the sum of the data times an orthonormal function of each attribute of the block's key, over
    class o of the other wide attributes and over all values of the remaining ones, times ``Π √(n_i / mult_i)``. In
    these units a record in the orbit o costs ``(K_b⁻¹)_oo`` in all copies of the block, and they contribute ``v K_b
    v'`` to the variance of a query (`dualmech.geometry.blocks`).

    For marginal tables every block is the residual subspace of a set T of attributes and has a level ``τ_T``, mult
    times K_T: the table on T, centred along every axis, is released with noise of covariance ``τ_T / cells_T`` times
    the projector on centred tables. Estimates of all tables with measured blocks are unbiased and consistent.

    Problems on geometry ``blocks`` optimise this noise. `of_tables` makes the noise of the Gaussian mechanism, and
    `of_levels` any noise on marginal tables. Raises `InvalidInputError` or `InputTypeError` for noise that is no
    covariance or does not fit the blocks. The neighbours are those of the geometry. For marginal tables: Xiao, He,
    Zhang and Kifer, NeurIPS 2023 (ResidualPlanner).

    Parameters
    ----------
    blocks : Blocks
        The geometry of the tables to answer.
    point : BlockPoint
        A level > 0 or a positive definite covariance for every block.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> asked = dm.workloads.union(
    ...     {"age": 8, "sex": 2}, {"ages": {"age": dm.workloads.prefix(8)}, "cells": ["age", "sex"]}
    ... )
    >>> mechanism = fast.solve(dm.FitnessForUse(asked, {"ages": 1.0, "cells": 4.0}), tol=1e-9).mechanism
    >>> float(mechanism.variances("ages").max().round(6)), mechanism.variances("cells").shape
    (1.0, (8, 2))
    >>> round(mechanism.variance_of({"age": [1] * 4 + [0] * 4}), 6)
    1.0
    """

    __slots__ = ()

    @classmethod
    def of_levels(
        cls, domain: Domain, noise: Mapping[Axes, float], neighbours: str | Relation | None = None
    ) -> BlockMechanism:
        """Return the mechanism of marginal tables with these levels.

        Raises `InvalidInputError` or `InputTypeError` for a set with attributes that are not in the domain, a level
        that is not positive, or neighbours that are not a rule.

        Parameters
        ----------
        domain : Domain
            The attributes.
        noise : mapping of axes to float
            ``τ_T > 0`` for each measured set T, by the positions of its attributes. Sets with an attribute of one value
            have no residual, and are ignored; the mechanism may have no sets.
        neighbours : str or Relation, optional
            The neighbouring data sets, such as ``replace``; by default one record is added or removed.

        Examples
        --------
        >>> import dualmech as dm
        >>> mechanism = dm.BlockMechanism.of_levels(dm.Domain({"age": 4, "sex": 2}), {(): 8.0, (1,): 8.0})
        >>> round(mechanism.rho, 9), mechanism.variance(["sex"]), round(mechanism.variance_of({"sex": [1, -1]}), 9)
        (0.125, 4.0, 8.0)
        """
        validate.instance(Domain, domain=domain)
        validate.mapping("sets of attributes to positive levels", noise=noise)
        count, sizes, levels = len(domain.names), domain.shape, {}
        for axes, level in noise.items():
            if not are_positions(axes, count):
                raise InvalidInputError(f"noise must be given for increasing positions below {count}, got {axes}")
            checked = validate.positive_number(**{f"noise[{axes}]": level})
            if all(sizes[axis] > 1 for axis in axes):
                levels[tuple((axis, 0) for axis in axes)] = checked
        symmetries, mechanism = block_noise.marginal_symmetries(sizes), object.__new__(cls)
        relation = relation_of(neighbours)
        if neighbours is not None and relation is None:
            raise InputTypeError(f"neighbours must be a rule such as 'replace', got {type(neighbours).__name__}")
        relation = None if relation == ADD_REMOVE else relation
        mechanism._hold(
            domain,
            symmetries,
            relation,
            NeighbourMoves.of(relation, domain, symmetries, BlockRows(symmetries, ()), levels),
            {},
        )
        unit = np.ones((1, 1))
        return mechanism.with_pieces(
            {key: Piece.of(symmetries, mechanism.moved, key, unit, unit * level) for key, level in levels.items()}
        )

    @classmethod
    def of_tables(
        cls, workload: Workload, variances: object = 1.0, neighbours: str | Relation | None = None
    ) -> BlockMechanism:
        """Return the mechanism of independent noise on every query of some tables, the Gaussian mechanism.

        Queries v_j of variance σ_j², m_j of them in orbit j, have the information ``Σ_j m_j v_j'v_j / (σ_j² mult)`` on
        each of the mult copies of a block, the inverse of its noise. So a marginal table S has ``1 / (σ² cells_S)`` on
        every subspace T ⊆ S, in units of ``1/τ_T``. Variances are those of the consistent estimates.
        Raises `InvalidInputError` or `InputTypeError` as `FitnessForUse`.

        - `workload`: the tables, supported by geometry ``blocks``;
        - `variances`: σ² of each table, as the targets of `FitnessForUse`;
        - `neighbours`: a rule, by default one record added or removed.

        Examples
        --------
        >>> import dualmech as dm
        >>> hours = dm.workloads.union({"hour": 24}, {"runs": {"hour": dm.workloads.circular_ranges(24)}})
        >>> plain = dm.BlockMechanism.of_tables(hours)
        >>> round(plain.squared_privacy_cost, 6)       # a record is in 277 of the 553 runs
        277.0
        """
        tables, relation = tables_of(workload), relation_of(neighbours)
        if isinstance(tables, MarginalWorkload) and relation is None:
            blocks = Blocks.of_marginals(tables)
        else:
            union: Any = tables if isinstance(tables, UnionWorkload) else union_of([tables])
            blocks = Blocks.of(union, neighbours=relation)
        precision = blocks.counts / tables.per_table(variances, "variances")[blocks.tables]
        covariances = []
        for block in blocks.matrix_blocks:
            rows = np.sqrt(precision[block.rows] / block.copies)[:, None] * block.queries
            triangle = scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]]
            inverse = scipy.linalg.solve_triangular(triangle, np.eye(len(triangle)), check_finite=False)
            covariances.append(inverse @ inverse.T)
        point = BlockPoint(blocks.copies / (blocks.scalar_blocks.T @ precision), tuple(covariances))
        return cls(blocks, point)

    def scaled(self, factor: float) -> BlockMechanism:
        """Return the mechanism with all variances times a factor > 0, and all costs divided by it."""
        multiple = validate.positive_number(factor=factor)
        return self.with_pieces({key: piece.scaled(multiple) for key, piece in self.pieces.items()})

    def point_on(self, geometry: object) -> BlockPoint:
        """Return the noise on the blocks of a geometry, in its order and on its bases.

        Raises `InvalidInputError` for another domain or symmetry, or noise on other blocks.
        """
        if not isinstance(geometry, Blocks):
            raise InvalidInputError("a BlockMechanism has estimates for geometry 'blocks' alone")
        if geometry.workload.domain != self.domain or not same_symmetry(
            geometry.symmetries or block_noise.marginal_symmetries(self.domain.shape), self.symmetries
        ):
            raise InvalidInputError("mechanism must be on the domain of the problem's workload, with the same symmetry")
        needed = [*geometry.keys, *(block.key for block in geometry.matrix_blocks)]
        missing = next((key for key in needed if key not in self.pieces), None)
        if missing is not None:
            raise InvalidInputError(
                f"mechanism must measure all blocks of the tables, it does not measure {self._named(missing)}"
            )
        if further := len(self.pieces) - len(needed):
            raise InvalidInputError(f"mechanism measures {further} blocks that no table needs, at a cost; remove them")
        noises = []
        for block in geometry.matrix_blocks:
            piece = self.pieces[block.key]
            noises.append(block.covariance_from_basis(piece.covariance / piece.copies, piece.moves))
        levels = np.array([self.pieces[key].covariance[0, 0] for key in geometry.keys]) / geometry.copies
        return BlockPoint(levels, tuple(noises))

    def dense(self) -> LinearGaussianMechanism:
        """Return the equivalent mechanism on the cells.

        Raises `InvalidInputError` for a query matrix of more than 2^24 entries.

        Examples
        --------
        >>> import dualmech as dm
        >>> small = dm.BlockMechanism.of_levels(dm.Domain({"age": 3, "sex": 2}), {(): 6.0, (1,): 6.0})
        >>> small.dense().query_matrix.shape, abs(small.dense().rho - small.rho) < 1e-12
        ((2, 6), True)
        """
        cells = self.domain.cells
        count = sum(piece.copies * len(piece.moves) for piece in self.pieces.values())
        check_written(max(count, 1) * cells, f"a query matrix of {count:.6g} rows and {count_text(cells)} cells")
        rows, covariances = [np.zeros((0, cells))], [np.zeros((0, 0))]
        for key, piece in self.pieces.items():
            rows.append(self._released_rows(key, piece))
            covariances += [piece.covariance] * round(piece.copies)
        moves = None if self.neighbours is None else self.neighbours.matrix(cells, self.domain)
        mechanism = LinearGaussianMechanism(np.vstack(rows), scipy.linalg.block_diag(*covariances), moves)
        return mechanism._rounded_from(rows=16 * (len(self.symmetries) + 2) * linalg.EPS)

    @classmethod
    def _of_pieces(
        cls, workload: UnionWorkload, relation: Relation | None, noise: Mapping[Key, tuple[Array, Array]]
    ) -> BlockMechanism:
        """Return the mechanism with a union's symmetry, from a basis and a covariance for each block key."""
        domain, (symmetries, looks) = workload.domain, symmetries_of(workload)
        assert domain is not None
        wide = tuple(axis for axis, symmetry in enumerate(symmetries) if len(symmetry.sizes) > 1)
        if math.prod(len(symmetries[axis].sizes) for axis in wide) > MAX_ORBITS:
            raise InvalidInputError(f"workload must have at most {MAX_ORBITS} orbits of cells")
        rows = BlockRows(symmetries, wide)
        neighbour_moves, pieces = NeighbourMoves.of(relation, domain, symmetries, rows, noise), {}
        for key, (moves, covariance) in noise.items():
            check_key(key, symmetries)
            if moves.shape[1] != len(rows.cells_of(key)):
                raise InvalidInputError(f"moves of {key} must have {len(rows.cells_of(key))} columns")
            pieces[key] = Piece.of(symmetries, neighbour_moves, key, moves, covariance)
        table_parts = {
            table.name: tuple(looks[axis][key_of(query)] for axis, query in table.queries) for table in workload.tables
        }
        mechanism = object.__new__(cls)
        mechanism._hold(domain, symmetries, relation, neighbour_moves, pieces, workload, table_parts)
        return mechanism

    def file_parts(self) -> dict[str, object]:
        """Return the fields of a file: levels for marginal tables, otherwise the noise on every block."""
        relation = None if self.neighbours is None else str(self.neighbours)
        if self._of_plain_tables():
            levels = np.array([*self.noise.values()], dtype=np.float64)
            return {**sets_to_arrays(self.domain, self.noise), "levels": levels, "neighbours": relation}
        pieces = self.pieces
        return {
            "workload": self.workload,
            "neighbours": relation,
            "key_sizes": np.array([len(key) for key in pieces], dtype=np.int64),
            "key_pairs": np.array([pair for key in pieces for pair in key], dtype=np.int64).reshape(-1, 2),
            "shapes": np.array([piece.moves.shape for piece in pieces.values()], dtype=np.int64).reshape(-1, 2),
            "moves": np.concatenate([np.zeros(0), *(piece.moves.ravel() for piece in pieces.values())]),
            "covariances": np.concatenate([np.zeros(0), *(piece.covariance.ravel() for piece in pieces.values())]),
        }

    def _of_plain_tables(self) -> bool:
        """Whether all tables are marginal tables with default names, so that levels determine the mechanism."""
        names, tables = self.domain.names, getattr(self.workload, "tables", ())
        return self.plain and all(
            table.name == (" x ".join(names[axis] for axis in table.axes) or "the total")
            and all(queries is None for _, queries in table.queries)
            for table in tables
        )

    def __repr__(self) -> str:
        return f"BlockMechanism({len(self.pieces)} blocks, rho={decimal_above(self.rho)})"

    def _released_rows(self, key: Key, piece: Piece) -> Array:
        """Return the released rows of all copies of a block."""
        factors, components = [], dict(key)
        for axis, symmetry in enumerate(self.symmetries):
            classes = symmetry.labels == np.arange(len(symmetry.sizes))[:, None]
            rows = symmetry.directions(components[axis]).T if axis in components else classes.astype(np.float64)
            factors.append(rows)
        order = [*components, *(axis for axis in range(len(factors)) if axis not in components)]
        functions = linalg.kronecker(factors).reshape(*map(len, factors), -1).transpose(*order, len(order))
        copies = functions.reshape(-1, piece.moves.shape[1], functions.shape[-1])
        return without_tiny_entries((piece.moves @ copies / piece.weight).reshape(-1, functions.shape[-1]))
