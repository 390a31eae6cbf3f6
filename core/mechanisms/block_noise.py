"""Noise on the blocks of a union of tables: what it costs, and how accurate it makes any product query."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dualmech import linalg
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.block_forms import BlockForms, BlockPoint
from dualmech.geometry.block_rows import Block, Key
from dualmech.geometry.blocks import Blocks
from dualmech.mechanisms import components, records
from dualmech.mechanisms.noise import TRIFLE
from dualmech.mechanisms.subspace_noise import factors_of
from dualmech.validate import Array
from dualmech.workloads.domain import rounded
from dualmech.workloads.lattice import Axes
from dualmech.workloads.unions import Table, UnionWorkload

EVEN = 1e-12
"""What rounding may make a basis differ over classes that it does not tell apart, relative to its largest entry."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Noise on a block.

    A copy of the block is a choice of an orthonormal function u_i in the component of every attribute of the key. Its
    coordinate o is the sum of the data times ``Π u_i`` over the cells of the wide attributes' classes that o names,
    divided by ``weight = √(Π mult_i / n_i)``, n_i the size of the class on which the component lives. In every copy
    ``moves`` times the coordinates are released with noise of covariance K.

    Attributes
    ----------
    moves : (r, b) array
        The basis, in coordinates.
    covariance, root : (r, r) arrays
        K and R with ``R'R = K``.
    weight : float
    classed : tuple of int
        The wide attributes outside the key whose classes `moves` tells apart: it is even over the others'.
    """

    moves: Array
    covariance: Array
    root: Array
    weight: float
    classed: Axes = ()

    @property
    def partial(self) -> bool:
        """Whether some combination of the coordinates is not released."""
        return len(self.moves) < self.moves.shape[1]


Look = Mapping[int, tuple[Array, Array]]
"""Of a product query: the class means and the parts of each attribute's factor, by position."""


class BlockNoise:
    """Noise on the blocks of a union of tables; the parameters are those of `BlockMechanism`."""

    __slots__ = ("blocks", "forms", "groups", "pieces", "point", "workload")

    workload: UnionWorkload
    blocks: Blocks
    point: BlockPoint
    forms: BlockForms
    pieces: dict[Key, Piece]
    groups: dict[Axes, list[Key]]

    def __init__(self, blocks: Blocks, point: BlockPoint) -> None:
        if not isinstance(blocks, Blocks):
            raise InputTypeError(f"blocks must be Blocks, got {type(blocks).__name__}")
        workload = blocks.workload
        if not isinstance(workload, UnionWorkload):
            raise InputTypeError("blocks of marginal tables have a mechanism of their own, MarginalMechanism")
        checked = blocks.point(point)
        forms = blocks.forms(checked)
        if forms is None:
            raise InvalidInputError("point must have positive levels and positive definite covariances")
        self.workload, self.blocks, self.point, self.forms = workload, blocks, checked, forms
        one = np.ones((1, 1))
        self.pieces = {
            key: Piece(one, one * level, one * math.sqrt(level), _weight(blocks, key, copies))
            for key, level, copies in zip(
                blocks.keys, checked.levels.tolist(), blocks.copies.tolist(), strict=True
            )
        }
        for block, covariance in zip(blocks.matrix_blocks, checked.covariances, strict=True):
            self.pieces[block.key] = _piece(blocks, block, covariance)
        self.groups = {}
        for key in self.pieces:
            self.groups.setdefault(tuple(axis for axis, _ in key), []).append(key)

    @property
    def squared_privacy_cost(self) -> float:
        """The largest ``Σ_b (K_b⁻¹)_oo``, that of a record in the worst orbit of cells.

        Where its rounding may exceed 1e-9 of it, the allowance is added: privacy errs on the safe side.
        """
        rounding = self.forms.cost_rounding
        return self.forms.cost * (1 + rounding if rounding > TRIFLE else 1.0)

    def variances(self, table: str) -> Array:
        """Return the variance of every query of a table, an axis an attribute.

        Raises
        ------
        InvalidInputError
            No table of that name, or one of too many queries to write out.
        """
        self._asked(table)
        return self.blocks.spread(self.workload.table_names.index(table), self.forms.variances)

    def variance_of(self, query: Mapping[str, npt.ArrayLike]) -> float:
        """Return the variance of a product query: one factor an attribute, ones for those that are not named."""
        look = self._look(query)
        return self._covariance(look, look)

    def covariance_of(self, first: Mapping[str, npt.ArrayLike], second: Mapping[str, npt.ArrayLike]) -> float:
        """Return the covariance of two product queries, ``x ↦ Σ_cells Π_i f_i(cell_i) x_cell``.

        They need not be in the workload, as long as its queries, and what symmetry makes of them, span them.

        Parameters
        ----------
        first, second : mapping of attribute names to arrays (n_i,)
            The factors f_i; an attribute that is not named has the factor 1 for all its values.

        Raises
        ------
        InvalidInputError, InputTypeError
            Unknown attributes, factors of another length, a query with a part that is not measured.
        """
        return self._covariance(self._look(first), self._look(second))

    def _asked(self, table: str) -> Table:
        """Return a table by name, once its queries are known to be few enough to write out."""
        found = self.workload.table(table)
        if (queries := math.prod(self.workload.table_shape(found))) > records.LARGEST_TABLE:
            raise InvalidInputError(
                f"table {table!r} of {rounded(queries)} queries is too large to write out "
                f"(limit {records.LARGEST_TABLE})"
            )
        return found

    def _look(self, query: Mapping[str, npt.ArrayLike]) -> Look:
        """Return what a query is made of; refuse it where a part is not measured."""
        assert self.workload.domain is not None
        factors = factors_of(self.workload.domain, query)
        frames = self.blocks.frames
        look = {axis: components.of_query(frames[axis], factor) for axis, factor in factors.items()}
        shown = " x ".join(self.workload.domain.names[axis] for axis in sorted(look)) or "the total"
        for key in self._sought(look):
            piece = self.pieces.get(key)
            if piece is None:
                raise InvalidInputError(
                    f"query of {shown} is not answered: no table asks for {self._named(key)}"
                )
            if piece.partial:
                vector = self._vector(look, key)
                missed = np.linalg.norm(vector - (piece.moves @ vector) @ piece.moves)
                if missed > linalg.SPAN_TOLERANCE * np.linalg.norm(vector):
                    raise InvalidInputError(
                        f"query of {shown} is not answered: of {self._named(key)} only other sums over "
                        f"{self._wide_outside(key)} are asked for"
                    )
        return look

    def _covariance(self, first: Look, second: Look) -> float:
        frames, total = self.blocks.frames, 0.0
        products = {
            axis: components.inner_products(frames[axis], first[axis][1], second[axis][1])
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
            frame = self.blocks.frames[axis]
            own: list[Key] = [()] if np.any(means) else []
            found = (
                each for each in range(len(frame.classes)) if np.any(parts[components.places(frame, each)])
            )
            choices.append([*own, *(((axis, each),) for each in found)])
        for chosen in itertools.product(*choices):
            yield tuple(pair for own in chosen for pair in own)

    def _vector(self, look: Look, key: Key) -> Array:
        """Return a query's coordinates in a block, but for what it has in the components of the key."""
        inside, vector = {axis for axis, _ in key}, np.ones((1, 1))
        for axis in sorted({*look, *self.blocks.wide} - inside):
            means = look[axis][0] if axis in look else np.ones(len(self.blocks.frames[axis].sizes))
            vector = linalg.kronecker([vector, means[None, :]])
        return vector[0]

    def _named(self, key: Key) -> str:
        """Say in words where a block lives."""
        assert self.workload.domain is not None
        words = []
        for axis, component in key:
            frame, name = self.blocks.frames[axis], self.workload.domain.names[axis]
            if frame.turning:
                words.append(f"{name} at frequency {component + 1}")
            else:
                members = components.places(frame, component)
                within = f" among its values {members[0]} … {members[-1]}" if len(frame.sizes) > 1 else ""
                words.append(f"differences of {name}{within}")
        return " x ".join(words) or "sums over whole classes"

    def _wide_outside(self, key: Key) -> str:
        assert self.workload.domain is not None
        inside = {axis for axis, _ in key}
        return " x ".join(self.workload.domain.names[axis] for axis in self.blocks.wide if axis not in inside)


def _weight(blocks: Blocks, key: Key, copies: float) -> float:
    sizes = (blocks.frames[axis].sizes[blocks.frames[axis].classes[component]] for axis, component in key)
    return math.sqrt(copies / math.prod(map(float, sizes)))


def _piece(blocks: Blocks, block: Block, covariance: Array) -> Piece:
    judged = linalg.regularised_covariance((covariance + covariance.T) / 2)
    root = None if judged is None else linalg.cholesky(judged)
    if judged is None or root is None:
        raise InvalidInputError("point must have positive definite covariances")
    inside = {axis for axis, _ in block.key}
    outside = [axis for axis in blocks.wide if axis not in inside]
    moves = block.moves.reshape(len(block.moves), *(len(blocks.frames[axis].sizes) for axis in outside))
    classed = tuple(
        axis
        for position, axis in enumerate(outside, start=1)
        if np.ptp(moves, axis=position).max() > EVEN * np.abs(moves).max()
    )
    return Piece(block.moves, judged, root, _weight(blocks, block.key, block.copies), classed)
