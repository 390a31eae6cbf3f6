"""Noise on the blocks of tables: what it costs, and how accurate it makes any table or product query."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dualmech import linalg
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.attribute_symmetry import AttributeSymmetry, Parts
from dualmech.geometry.block_neighbours import Moved
from dualmech.geometry.block_rows import BlockRows, Key
from dualmech.geometry.blocks import Blocks
from dualmech.geometry.choice import tabular
from dualmech.immutable import freeze
from dualmech.mechanisms import components, records
from dualmech.mechanisms.pieces import Piece, axes_of
from dualmech.neighbours import Relation
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain, count_text
from dualmech.workloads.lattice import Axes
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.unions import Table, UnionWorkload

Look = Mapping[int, tuple[Array, Array]]
"""Of a product query: the class means and the parts of each attribute's factor, by position."""


class BlockNoise:
    """Noise on the blocks of tables; the parameters are those of `BlockMechanism`."""

    __slots__ = (
        "costs",
        "domain",
        "symmetries",
        "known",
        "moved",
        "neighbours",
        "pieces",
        "rounding",
        "workload",
    )

    domain: Domain
    symmetries: tuple[AttributeSymmetry, ...]
    neighbours: Relation | None  # None for one record added or removed
    moved: Moved
    pieces: dict[Key, Piece]
    costs: Array  # of each orbit of neighbours
    workload: UnionWorkload | MarginalWorkload | None
    known: Mapping[str, tuple[Parts, ...]]  # what the tables of a union ask of each attribute, by name

    def __init__(self, blocks: Blocks, point: Any) -> None:
        if not isinstance(blocks, Blocks):
            raise InputTypeError(f"blocks must be Blocks, got {type(blocks).__name__}")
        workload, checked = blocks.workload, blocks.point(point)
        assert workload.domain is not None
        symmetries = blocks.symmetries or components.marginal_symmetries(workload.domain.shape)
        keys, rows = (
            [*blocks.keys, *(block.key for block in blocks.matrix_blocks)],
            BlockRows(symmetries, blocks.wide),
        )
        moved = Moved.of(blocks.neighbours, workload.domain, symmetries, rows, keys)
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
        moved: Moved,
        pieces: dict[Key, Piece],
        workload: UnionWorkload | MarginalWorkload | None = None,
        known: Mapping[str, tuple[Parts, ...]] | None = None,
    ) -> None:
        self.domain, self.symmetries, self.neighbours, self.moved = domain, symmetries, neighbours, moved
        self.pieces, self.workload, self.known = pieces, workload, known or {}
        self.costs, self.rounding = np.zeros(moved.count), np.zeros(moved.count)
        for piece in pieces.values():
            np.add.at(self.costs, piece.orbits, piece.costs)
            np.add.at(self.rounding, piece.orbits, piece.rounding + len(pieces) * linalg.EPS * piece.costs)
        freeze((pieces, moved, symmetries, self.costs, self.rounding))

    def with_pieces(self, pieces: dict[Key, Piece]) -> Self:
        """Return other noise with the same symmetry."""
        found = object.__new__(type(self))
        kept = self.workload if isinstance(self.workload, UnionWorkload) else None
        found._hold(self.domain, self.symmetries, self.neighbours, self.moved, pieces, kept, self.known)
        return found

    def answering(self, workload: UnionWorkload) -> Self:
        """Return the same noise with other tables by name; those that it does not answer are refused when asked for."""
        found = object.__new__(type(self))
        found._hold(self.domain, self.symmetries, self.neighbours, self.moved, self.pieces, workload)
        return found

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
        """Squared privacy cost of each orbit of neighbours (s,), which is that of every pair in it.

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
        if not self._plain:
            raise InvalidInputError(
                "noise is one level a set of attributes, which takes blocks of marginal tables"
            )
        return {axes_of(key): float(piece.covariance[0, 0]) for key, piece in self.pieces.items()}

    def variance(self, table: str | Iterable[str]) -> float:
        """Return the largest variance of a query of a table; all cells of a marginal table have the same.

        Raises `InvalidInputError` for no table of that name, unknown attributes, a part that is not measured.

        With `table`, a table of the union that was asked for, or the attributes of a marginal table.
        """
        return float(self._orbit_variances(self._rows(self._table(table))[1]).max())

    def variances(self, table: str | Iterable[str] | Workload) -> Array:
        """Return the variance of every query of a table, an axis per attribute; of a workload, one per table.

        Raises `InvalidInputError` as `variance`; a table of too many queries to write out.
        """
        if isinstance(table, Workload):
            return self._by_table(tabular(table))
        return self._each(self._few(self._table(table)))

    def _each(self, table: Table) -> Array:
        """Return the variance of every query of a table of any queries, an axis per attribute."""
        parts, rows = self._rows(table)
        own = self._orbit_variances(rows).reshape(tuple(len(each.means) for each in parts))
        return np.asarray(own[np.ix_(*(each.orbits for each in parts))])

    @property
    def _plain(self) -> bool:
        """Whether only marginal tables were asked for, so that all cells of a table have the same variance."""
        return not self.wide and not any(symmetry.turning for symmetry in self.symmetries)

    def _by_table(self, workload: MarginalWorkload | UnionWorkload) -> Array:
        """Return the largest variance of each table; those of marginal tables need only the levels under them."""
        if isinstance(workload, UnionWorkload):
            return np.array([self.variance(name) for name in workload.table_names])
        if self._plain and workload.domain == self.domain:
            blocks = Blocks.of_marginals(workload)
            pieces = [self.pieces[key] for key in blocks.keys if key in self.pieces]
            if len(pieces) == len(blocks.keys):
                levels = np.array([piece.covariance[0, 0] / piece.copies for piece in pieces])
                return np.asarray(blocks.scalar_blocks @ levels)
        return np.array([self.variance(names) for names in workload.sets])

    def variance_of(self, query: Mapping[str, npt.ArrayLike]) -> float:
        """Return the variance of a product query: one factor an attribute, ones for those that are not named."""
        look = self._look(query)
        return self._covariance(look, look)

    def covariance_of(self, first: Mapping[str, npt.ArrayLike], second: Mapping[str, npt.ArrayLike]) -> float:
        """Return the covariance of two product queries, ``x ↦ Σ_cells Π_i f_i(cell_i) x_cell``.

        They need not be in the workload, as long as its queries, and what symmetry makes of them, span them.
        Raises `InvalidInputError` or `InputTypeError` for unknown attributes, factors of another length, a
        query with a part that is not measured.

        With `first`, `second`, the factors f_i; an attribute that is not named has the factor 1 for all its values.
        """
        return self._covariance(self._look(first, "first"), self._look(second, "second"))

    def _table(self, asked: str | Iterable[str]) -> Table:
        """Return a table of the union by name, or a marginal table by its attributes."""
        if isinstance(asked, str) and isinstance(self.workload, UnionWorkload):
            return self.workload.table(asked)
        axes = self.domain.axes(asked)
        return Table(self._shown(axes), tuple((axis, None) for axis in axes))

    def _few(self, table: Table) -> Table:
        """Refuse a table of too many queries to write out."""
        sizes = (
            self.domain.shape[axis] if asked is None else asked.shape[0] for axis, asked in table.queries
        )
        if (queries := math.prod(sizes)) > records.LARGEST_TABLE:
            raise InvalidInputError(
                f"table {table.name!r} of {count_text(queries)} queries is too large to write out "
                f"(limit {records.LARGEST_TABLE})"
            )
        return table

    def _rows(self, table: Table) -> tuple[tuple[Parts, ...], dict[Key, tuple[npt.NDArray[np.intp], Array]]]:
        """Return the parts of a table, and its rows in each block: their orbits, and what they are on the basis."""
        own = self.workload.tables if isinstance(self.workload, UnionWorkload) else ()
        known = self.known.get(table.name) if any(each is table for each in own) else None
        parts = known or tuple(self.symmetries[axis].parts(asked) for axis, asked in table.queries)
        rows, found = BlockRows(self.symmetries, self.wide), {}
        if self.wide or any(
            asked is not None or self.symmetries[axis].turning for axis, asked in table.queries
        ):
            rows.add(table.axes, parts, np.arange(math.prod(len(each.means) for each in parts)))
        else:
            self._add_marginal(rows, table.axes)
        for key, (values,) in rows.values.items():
            piece = self.pieces.get(key)
            moved = values if piece is None else values @ piece.moves.T
            if piece is None or not piece.covers(values, moved):
                raise InvalidInputError(f"{table.name} is not answered: {self._named(key)} is not measured")
            found[key] = rows.rows[key][0], moved
        return parts, found

    def _add_marginal(self, rows: BlockRows, axes: Axes) -> None:
        """Add the cells of a marginal table to blocks of one coordinate, mult of ``T ⊆ S`` over the cells of S each."""
        sizes = {axis: float(self.domain.shape[axis]) for axis in axes}
        cells, varying = math.prod(sizes.values()), [axis for axis, size in sizes.items() if size > 1]
        for count in range(len(varying) + 1):
            for inside in itertools.combinations(varying, count):
                key = tuple((axis, 0) for axis in inside)
                rows.rows[key] = [np.zeros(1, dtype=np.intp)]
                rows.values[key] = [np.full((1, 1), math.prod(sizes[axis] - 1 for axis in inside) / cells)]

    def _orbit_variances(self, rows: Mapping[Key, tuple[npt.NDArray[np.intp], Array]]) -> Array:
        found = np.zeros(1 + max((int(orbits.max()) for orbits, _ in rows.values()), default=0))
        for key, (orbits, moved) in rows.items():
            piece = self.pieces[key]
            found[orbits] += np.einsum("jk,jk->j", moved @ piece.covariance, moved) / piece.copies
        return found

    def _look(self, query: Mapping[str, npt.ArrayLike], argument: str = "query") -> Look:
        """Return what a query is made of; refuse it where a part is not measured."""
        factors = components.factors_of(self.domain, query, argument)
        look = {axis: components.of_query(self.symmetries[axis], factor) for axis, factor in factors.items()}
        shown = self._shown(sorted(look))
        for key in self._sought(look):
            piece = self.pieces.get(key)
            if piece is None:
                raise InvalidInputError(
                    f"query of {shown} is not answered: no table asks for {self._named(key)}"
                )
            vector = self._vector(look, key)
            if not piece.covers(vector, piece.moves @ vector):
                others = self._shown(axis for axis in self.wide if axis not in dict(key))
                raise InvalidInputError(
                    f"query of {shown} is not answered: of {self._named(key)} only other sums over {others} are "
                    f"asked for"
                )
        return look

    def _covariance(self, first: Look, second: Look) -> float:
        total = 0.0
        products = {
            axis: components.inner_products(self.symmetries[axis], first[axis][1], second[axis][1])
            for axis in first
            if axis in second
        }
        for key in self._sought(first):
            piece = self.pieces[key]
            share = piece.weight**2 * math.prod(
                products[axis][component] if axis in products else 0.0 for axis, component in key
            )
            if share:
                ours, theirs = (piece.moves @ self._vector(look, key) for look in (first, second))
                total += share * float(ours @ piece.covariance @ theirs)
        return float(total)

    def _sought(self, look: Look) -> Iterator[Key]:
        """Yield the blocks in which a query has a part."""
        choices: list[list[Key]] = []
        for axis, (means, parts) in sorted(look.items()):
            symmetry = self.symmetries[axis]
            found = (
                each
                for each in range(len(symmetry.classes))
                if np.any(parts[components.places(symmetry, each)])
            )
            choices.append([*([()] if np.any(means) else []), *(((axis, each),) for each in found)])
        for chosen in itertools.product(*choices):
            yield tuple(pair for own in chosen for pair in own)

    def _vector(self, look: Look, key: Key) -> Array:
        """Return a query's coordinates in a block, but for what it has in the components of the key."""
        vector = np.ones((1, 1))
        for axis in sorted({*look, *self.wide} - dict(key).keys()):
            means = look[axis][0] if axis in look else np.ones(len(self.symmetries[axis].sizes))
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
                members = components.places(symmetry, component)
                words.append(f"differences of {name} among its values {members[0]} … {members[-1]}")
        return " x ".join(words) or ("sums over whole classes" if self.wide else "the total")

    def _shown(self, axes: Iterable[int]) -> str:
        return " x ".join(self.domain.names[axis] for axis in axes) or "the total"
