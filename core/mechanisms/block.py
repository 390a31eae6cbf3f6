"""The mechanism of tables: noise on the blocks that their symmetry leaves, measured from low-order tables."""

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

# Noisy parts of low-order tables: how they are drawn, and recombined into the tables that are asked for.


class BlockTables(BlockNoise):
    """Tables with noise on their blocks; see `BlockMechanism` for the parameters."""

    __slots__ = ()

    def as_targets(self, workload: Workload) -> Array:
        """Return the variances of queries over the same attributes, of too many the largest of each table.

        Tables need not be those that the noise was made for, nor have its symmetry. See `GaussianPrivacy`.
        """
        checked = check_workload(workload)
        tables = checked.tabular()
        if tables is None or tables.domain != self.domain:
            if checked.domain is not None and checked.domain != self.domain:
                raise InvalidInputError("workload must be over the attributes of the mechanism")
            written: Array = self.dense().variances(checked)
            return written
        few, union = checked.shape[0] <= MAX_NAMES, None
        if isinstance(tables, UnionWorkload) or not self.plain:
            union = tables if isinstance(tables, UnionWorkload) else union_of([tables])
        if union is None:
            by_table = self._by_table(tables)
            return by_table[checked.table_numbers()] if few else by_table
        if few:
            return np.concatenate([self._each(table).ravel() for table in union.tables])
        return np.array([self._largest(table) for table in union.tables])

    def dense(self) -> Any:
        """Return the noise written out on the cells."""
        raise NotImplementedError

    @property
    def needed_tables(self) -> MarginalWorkload:
        """The marginal tables that records are counted in: of each block's attributes, and of those it has classes of.

        Raises `InvalidInputError` for a table of more cells than are counted; the message has its attributes.
        """
        chosen = maximal_sets(tuple(sorted(key_axes + classed)) for key_axes, classed in self.blocks_by_view())
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

        - ``tables``: tables of the records, which cover `needed_tables` (`dualmech.records.count`);
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
        held = IndexedTables(check_tables(tables=tables))
        draw = gaussian(rng) if sampler is None else sampler
        measured: dict[Axes, Array] = {}
        for (key_axes, classed), keys in self.blocks_by_view().items():
            if not self.wide and not any(self.symmetries[axis].turning for axis in key_axes):
                level = float(self.pieces[keys[0]].covariance[0, 0])
                table = marginal_of(self.domain, held, key_axes)
                whole = block_noise.scaled_residual(table, table.ndim)  # no rounding below 2^53
                noisy = whole + draw_noise(draw, math.sqrt(level * whole.size), whole.shape)
                measured[key_axes] = np.asarray(_centred(noisy) / whole.size)
                continue
            array = measured.setdefault(key_axes, np.zeros(self.extents(key_axes)))
            parts = self._parts_of(held, key_axes, classed)
            for key in keys:
                self._draw(array, parts, key, draw)
        return measured

    def _draw(self, array: Array, parts: Array, key: Key, draw: Sampler) -> None:
        """Write the noisy parts of a block to their places."""
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
        """Draw all tables, noisy and consistent with each other, for study. NOT a private release.

        Returns a dict of names to arrays: those of a union by their names; marginal tables by their attributes, where
        none were asked for the largest that are measured.
        """
        measured, workload = IndexedTables(self.measure(tables, rng)), self.workload or self.needed_tables
        names = workload.table_names if isinstance(workload, UnionWorkload) else workload.sets
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
            array = block_noise.class_sums(self.symmetries[axis], array, whole.index(axis))
        return np.transpose(array, [whole.index(axis) for axis in (*key_axes, *classed)])

    def _parts_of(self, tables: Tables, key_axes: Axes, classed: Axes) -> Array:
        """Return the data by parts along some attributes, then by classes of others."""
        array = self.counts_by_class(tables, key_axes, classed)
        for position, axis in enumerate(key_axes):
            array = block_noise.parts_of(self.symmetries[axis], array, position)
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
            parts = block_noise.from_parts(symmetries[axis], parts, position)
        for axis in self._outside(key_axes):
            if axis in axes:
                parts = block_noise.spread_over_values(symmetries[axis], parts, len(order))
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
        array, shape = (validate.finite(**{f"measured[{key_axes}]": measured[key_axes]}), self.extents(key_axes))
        if array.shape != shape:
            raise InvalidInputError(f"measured[{key_axes}] must have shape {shape}, got {array.shape}")
        return array

    def _countable(self, axes: Axes) -> None:
        if (cells := cells_of(self.domain, axes)) > LARGEST_TABLE:
            shown = " x ".join(f"{self.domain.names[axis]} {self.domain.shape[axis]}" for axis in axes)
            raise InvalidInputError(
                f"a table of {shown} has {count_text(cells)} cells, too many to count (limit {LARGEST_TABLE})"
            )

    def places(self, key: Key) -> list[block_noise.Index]:
        """Return where along each attribute of a key its component lies."""
        return [block_noise.places(self.symmetries[axis], component) for axis, component in key]

    def extents(self, key_axes: Axes) -> tuple[int, ...]:
        """Return the shape of the measurement on some attributes: theirs, then the classes of the other wide ones."""
        sizes = (self.domain.shape[axis] - int(self.symmetries[axis].turning) for axis in key_axes)
        return (*sizes, *(len(self.symmetries[axis].sizes) for axis in self._outside(key_axes)))

    def _outside(self, key_axes: Axes) -> Axes:
        return tuple(axis for axis in self.wide if axis not in key_axes)


def _centred(table: Array) -> Array:
    """Return a table less its mean along every axis: its part in the residual subspace of all its attributes."""
    for axis in range(table.ndim):
        table = table - table.mean(axis=axis, keepdims=True)
    return np.asarray(table)


# Mechanisms of tables in order: which can be answered from which, and what several reveal together, block by block.


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

    For every block and each of its copies the mechanism releases ``moves @ s`` with noise of covariance K_b, all
    independent. The entry s_o is the sum of the data times one orthonormal function of each attribute of the block's
    key, over the classes of the other wide attributes that o names and over all values of the rest, times
    ``Π √(n_i / mult_i)``. With these units a record in the orbit o costs ``(K_b⁻¹)_oo`` in the block's copies,
    together, and ``v K_b v'`` the variance that they give a query (`dualmech.geometry.blocks`).

    Of marginal tables every block is the residual subspace of a set T of attributes and has a level ``τ_T``, mult times
    K_T: the table on T, centred along every axis, is released with noise of covariance ``τ_T / cells_T`` times the
    projector on such tables. Any table whose blocks are all measured is recombined, without bias, and all tables agree.

    Problems on geometry ``blocks`` find such noise; `of_tables` is the plain one, `of_levels` any on marginal tables.
    Raises `InvalidInputError` or `InputTypeError` for noise that is no covariance or does not fit the blocks.
    The geometry has the neighbours. For marginal tables: Xiao, He, Zhang and Kifer, NeurIPS 2023 (ResidualPlanner).

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
        that is not positive, or neighbours that are no rule.

        Parameters
        ----------
        domain : Domain
            The attributes.
        noise : mapping of axes to float
            ``τ_T > 0`` for each measured set T, by the positions of its attributes. Sets with an attribute of one value
            have no residual, and are left out; with no others the mechanism releases nothing.
        neighbours : str or Relation, optional
            Which data sets privacy keeps apart, such as ``replace``; by default one record is added or removed.

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
        one = np.ones((1, 1))
        return mechanism.with_pieces(
            {key: Piece.of(symmetries, mechanism.moved, key, one, one * level) for key, level in levels.items()}
        )

    @classmethod
    def of_tables(
        cls, workload: Workload, variances: object = 1.0, neighbours: str | Relation | None = None
    ) -> BlockMechanism:
        """Return what independent noise on every query of some tables reveals, the plain Gaussian mechanism.

        Queries v_j of variance σ_j² tell ``Σ_j m_j v_j'v_j / (σ_j² mult)`` about a copy of a block, one of its mult
        copies, with m_j of them in orbit j: the inverse of the noise. So a marginal table S tells ``1 / (σ² cells_S)``
        about every subspace T ⊆ S, in units of ``1/τ_T``. Its variances belong to the consistent estimates.
        Raises `InvalidInputError` or `InputTypeError` as `FitnessForUse`.

        - `workload`: the tables, as geometry ``blocks`` takes them;
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
        """Return the mechanism with the covariance of all noise times a factor > 0: its cost is divided by that."""
        times = validate.positive_number(factor=factor)
        return self.with_pieces({key: piece.scaled(times) for key, piece in self.pieces.items()})

    def point_on(self, geometry: object) -> BlockPoint:
        """Return the noise on blocks that may stand in another order, or on other bases.

        Raises `InvalidInputError` for another domain or another symmetry, noise on more or on fewer blocks.
        """
        if not isinstance(geometry, Blocks):
            raise InvalidInputError("a BlockMechanism answers problems on geometry 'blocks'")
        if geometry.workload.domain != self.domain or not same_symmetry(
            geometry.symmetries or block_noise.marginal_symmetries(self.domain.shape), self.symmetries
        ):
            raise InvalidInputError("mechanism must be on the domain of the problem's workload, with the same symmetry")
        needed = [*geometry.keys, *(block.key for block in geometry.matrix_blocks)]
        missing = next((key for key in needed if key not in self.pieces), None)
        if missing is not None:
            raise InvalidInputError(
                f"mechanism must measure all that the tables need, it does not measure {self._named(missing)}"
            )
        if further := len(self.pieces) - len(needed):
            raise InvalidInputError(
                f"mechanism measures {further} blocks that no table needs, at a cost; leave them out"
            )
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
        written = LinearGaussianMechanism(np.vstack(rows), scipy.linalg.block_diag(*covariances), moves)
        return written._rounded_from(rows=16 * (len(self.symmetries) + 2) * linalg.EPS)

    @classmethod
    def _of_pieces(
        cls, workload: UnionWorkload, relation: Relation | None, noise: Mapping[Key, tuple[Array, Array]]
    ) -> BlockMechanism:
        """Return the mechanism of a union's symmetry with noise on blocks by key: a basis of each, and a covariance."""
        domain, (symmetries, looks) = workload.domain, symmetries_of(workload)
        assert domain is not None
        wide = tuple(axis for axis, symmetry in enumerate(symmetries) if len(symmetry.sizes) > 1)
        if math.prod(len(symmetries[axis].sizes) for axis in wide) > MAX_ORBITS:
            raise InvalidInputError(f"workload must have at most {MAX_ORBITS} kinds of records")
        rows = BlockRows(symmetries, wide)
        moved, pieces = NeighbourMoves.of(relation, domain, symmetries, rows, noise), {}
        for key, (moves, covariance) in noise.items():
            check_key(key, symmetries)
            if moves.shape[1] != len(rows.cells_of(key)):
                raise InvalidInputError(f"moves of {key} must have {len(rows.cells_of(key))} columns")
            pieces[key] = Piece.of(symmetries, moved, key, moves, covariance)
        known = {
            table.name: tuple(looks[axis][key_of(query)] for axis, query in table.queries) for table in workload.tables
        }
        mechanism = object.__new__(cls)
        mechanism._hold(domain, symmetries, relation, moved, pieces, workload, known)
        return mechanism

    def file_parts(self) -> dict[str, object]:
        """Return what a file holds: the levels of marginal tables; of other tables the noise on every block in turn."""
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
        """Whether its tables are marginals that are called by their attributes, so that levels say all about it."""
        names, tables = self.domain.names, getattr(self.workload, "tables", ())
        return self.plain and all(
            table.name == (" x ".join(names[axis] for axis in table.axes) or "the total")
            and all(queries is None for _, queries in table.queries)
            for table in tables
        )

    def __repr__(self) -> str:
        return f"BlockMechanism({len(self.pieces)} blocks, rho={decimal_above(self.rho)})"

    def _released_rows(self, key: Key, piece: Piece) -> Array:
        """Return the released rows of every copy of a block, one copy after another."""
        factors, inside = [], dict(key)
        for axis, symmetry in enumerate(self.symmetries):
            classes = symmetry.labels == np.arange(len(symmetry.sizes))[:, None]
            rows = symmetry.directions(inside[axis]).T if axis in inside else classes.astype(np.float64)
            factors.append(rows)
        order = [*inside, *(axis for axis in range(len(factors)) if axis not in inside)]
        written = linalg.kronecker(factors).reshape(*map(len, factors), -1).transpose(*order, len(order))
        copies = written.reshape(-1, piece.moves.shape[1], written.shape[-1])
        return without_tiny_entries((piece.moves @ copies / piece.weight).reshape(-1, written.shape[-1]))
