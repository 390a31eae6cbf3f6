"""Where several mechanisms are held against each other: on all cells at once, or block by block of their tables.

The common part of mechanisms, the rest of one, and the sum of several are questions about matrices. Where
all have the symmetry of tables, each block has a small matrix, and no cell is ever written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.attribute_symmetry import MAX_ORBITS, Key
from dualmech.geometry.block_neighbours import NeighbourMoves
from dualmech.geometry.block_rows import BlockRows, symmetries_of
from dualmech.mechanisms.block_noise import BlockNoise, Piece, RefinedAttribute, refined_noise, same_symmetry
from dualmech.mechanisms.costs import EQUIVALENCE_TOL, rounding_share
from dualmech.mechanisms.gaussian import LinearGaussianMechanism, check_comparable, without_tiny_entries
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.mechanisms.tables import Tables
from dualmech.validate import Array
from dualmech.workloads.domain import Axes
from dualmech.workloads.unions import UnionWorkload, each_once


class Frame(Protocol):
    """Mechanisms in parts, one for each block, compared part by part."""

    of_tables: ClassVar[bool]
    """Whether mechanisms are of tables, and not on cells."""

    def parts(self, mechanism: GaussianPrivacy, name: str = "mechanism") -> list[LinearGaussianMechanism]:
        """Return a mechanism's parts; refused where the frame has no parts to compare with."""

    def joined(self, parts: Sequence[LinearGaussianMechanism]) -> GaussianPrivacy:
        """Return the mechanism that has these parts."""

    def decomposed(self, parts: Sequence[Decomposition]) -> AnyDecomposition:
        """Return the decomposition of a mechanism whose parts are decomposed like this."""

    def unit(self, bounds: Array) -> float:
        """Return by what the rows of a block are multiplied, on which covariances (p, r, r) are compared."""


class Cells:
    """Mechanisms on matrices have one part: themselves, on all cells."""

    __slots__ = ("first",)

    of_tables: ClassVar[bool] = False

    def __init__(self, mechanisms: Sequence[LinearGaussianMechanism], names: Sequence[str] = ()) -> None:
        check_comparable(mechanisms, names)
        self.first = mechanisms[0]

    def parts(self, mechanism: Any, name: str = "mechanism") -> list[LinearGaussianMechanism]:
        check_comparable((self.first, mechanism), ("mechanisms[0]", name))
        return [mechanism]

    def joined(self, parts: Sequence[LinearGaussianMechanism]) -> LinearGaussianMechanism:
        (part,) = parts
        if part.neighbours is self.first.neighbours:
            return part
        return LinearGaussianMechanism(part.query_matrix, part.covariance(), self.first.neighbours)

    def decomposed(self, parts: Sequence[Decomposition]) -> Decomposition:
        (part,) = parts
        return part

    def unit(self, bounds: Array) -> float:
        return 1.0


class TableBlocks:
    """Mechanisms of tables in parts, one for each block of the symmetry that all their tables leave together.

    A part is on orthonormal coordinates of one copy of its block, one for each kind of cells that the block sees, and
    all copies have noise of their own.
    Raises `InvalidInputError` or `InputTypeError` for mechanisms of another kind, on other attributes or with other
    neighbours; tables that turn an attribute where others tell classes of it apart; too little symmetry.
    """

    __slots__ = ("_blank", "_roots", "_rows", "keys", "workload")

    of_tables: ClassVar[bool] = True

    keys: tuple[Key, ...]
    workload: UnionWorkload  # all tables that the mechanisms were made for

    def __init__(self, mechanisms: Sequence[Any], names: Sequence[str] = ()) -> None:
        first = mechanisms[0]
        for name, mechanism in zip(names or _numbered(mechanisms), mechanisms, strict=True):
            _check(first, mechanism, name)
        self.workload, symmetries = _together(mechanisms), first.symmetries
        if not all(same_symmetry(symmetries, mechanism.symmetries) for mechanism in mechanisms):
            symmetries = symmetries_of(self.workload)[0]
        wide = tuple(axis for axis, symmetry in enumerate(symmetries) if len(symmetry.sizes) > 1)
        if (orbits := math.prod(len(symmetries[axis].sizes) for axis in wide)) > MAX_ORBITS:
            raise InvalidInputError(
                f"mechanisms must leave at most {MAX_ORBITS} kinds of records together, got {orbits}"
            )
        self._rows = BlockRows(symmetries, wide)
        keys = [key for mechanism in mechanisms for key in mechanism.pieces]
        moved = NeighbourMoves.of(first.neighbours, first.domain, symmetries, self._rows, keys)
        self._blank = object.__new__(type(first))
        self._blank._hold(first.domain, symmetries, first.neighbours, moved, {}, self.workload)
        self.keys = (*dict.fromkeys(key for mechanism in mechanisms for key in self.refined(mechanism).pieces),)
        self._roots = np.sqrt(linalg.kronecker([symmetries[axis].sizes[None, :] for axis in wide]).ravel())

    def refined(self, mechanism: Any) -> Any:
        symmetries = self._blank.symmetries
        if same_symmetry(mechanism.symmetries, symmetries):
            return self._blank.with_pieces(mechanism.pieces)
        names = mechanism.domain.names
        attributes = [
            RefinedAttribute.of(name, *pair)
            for name, pair in zip(names, zip(mechanism.symmetries, symmetries, strict=True), strict=True)
        ]
        classes = [len(symmetry.sizes) for symmetry in mechanism.symmetries]
        return self._made(refined_noise(attributes, [*mechanism.pieces.items()], classes))

    def parts(self, mechanism: object, name: str = "mechanism") -> list[LinearGaussianMechanism]:
        _check(self._blank, mechanism, name)
        pieces = self.refined(mechanism).pieces
        further = next((key for key in pieces if key not in self.keys), None)
        if further is not None:
            raise InvalidInputError(f"{name} measures {self._blank._named(further)}, which none of the others does")
        return [self._part(key, pieces.get(key)) for key in self.keys]

    def joined(self, parts: Sequence[LinearGaussianMechanism]) -> Any:
        joined = {}
        for key, part in zip(self.keys, parts, strict=True):
            form = part.standard_form.queries
            if len(form):
                joined[key] = form / self._roots_of(key), np.eye(len(form))
        stood_for = {key: part for key, part in zip(self.keys, parts, strict=True) if part._stands_for is not None}
        return self._made(joined, stood_for)

    def decomposed(self, parts: Sequence[Decomposition]) -> TableDecomposition:
        return TableDecomposition(
            *(self.joined([getattr(part, name) for part in parts]) for name in ("target", "common", "residual"))
        )

    def unit(self, bounds: Array) -> float:
        """Return what makes the largest mean variance on a block 1, so that the objective sees all blocks alike."""
        mean = float(np.trace(bounds, axis1=1, axis2=2).max(initial=0.0)) / max(bounds.shape[1], 1)
        return mean**-0.5 if mean > 0 else 1.0

    def _part(self, key: Key, piece: Piece | None) -> LinearGaussianMechanism:
        size = len(self._rows.cells_of(key))
        if piece is None:
            return LinearGaussianMechanism(np.zeros((0, size)), np.zeros((0, 0)))
        return LinearGaussianMechanism(piece.moves * self._roots_of(key), piece.weight**2 * piece.covariance)

    def _roots_of(self, key: Key) -> Array:
        """Return the root of how many cells each coordinate of a block adds up, without the attributes of the key."""
        wide = tuple(pair for pair in key if pair[0] in self._rows.wide)
        return np.asarray(self._roots[self._rows.cells_of(key)] / math.sqrt(self._values_of(wide)))

    def _values_of(self, key: Key) -> float:
        """Return the product of the sizes of the classes on which the components of a key live."""
        symmetries = self._blank.symmetries
        return math.prod(float(symmetries[axis].sizes[symmetries[axis].classes[component]]) for axis, component in key)

    def _made(
        self,
        noise: dict[Key, tuple[Array, Array]],
        stood_for: Mapping[Key, LinearGaussianMechanism] = MappingProxyType({}),
    ) -> Any:
        """Return the mechanism that releases rows of the blocks with noise, in units of counts.

        Refuse noise on a block that is that of several mechanisms, and that rounding changes by more than
        `EQUIVALENCE_TOL`: by more than a hundredth if neighbours leave sums as they are, which have next to no noise.
        """
        pieces, limit = {}, EQUIVALENCE_TOL if self._blank.fixed is None else 0.01
        for key, (rows, covariance) in noise.items():
            moves, triangle = _orthonormal(rows)
            inverse = np.linalg.solve(triangle, np.eye(len(triangle)))
            values = inverse @ covariance @ inverse.T
            share = _rounding_share(triangle, covariance, values)
            if len(rows) > 1 and key in stood_for and not max(share, stood_for[key]._equivalence_error()) <= limit:
                raise InvalidInputError(
                    f"mechanisms have noise of so different sizes on {self._blank._named(key)} that rounding hides the "
                    "lesser one: use them one by one, without a mechanism that stands for them together"
                )
            values = (values + values.T) / 2 * self._values_of(key)
            piece = Piece.of(self._blank.symmetries, self._blank.moved, key, moves, values)
            pieces[key] = piece.costing(min(share, EQUIVALENCE_TOL))
        return self._blank.with_pieces(pieces)


def _rounding_share(triangle: Array, covariance: Array, values: Array) -> float:
    """Return by which share costs and variances may be off where ``T V T' = Σ`` for computed V; infinite if unknown."""
    if not len(covariance):
        return 0.0
    factor = linalg.cholesky(covariance)
    if factor is None:
        return np.inf
    return rounding_share(scipy.linalg.solve_triangular(factor, triangle, trans="T", check_finite=False), values)


def _orthonormal(rows: Array) -> tuple[Array, Array]:
    """Return orthonormal rows Q of the same span, the identity where that is all, and T with ``rows = T Q``."""
    if len(rows) == rows.shape[1]:
        return np.eye(len(rows)), rows
    orthonormal, triangle = np.linalg.qr(rows.T)
    return without_tiny_entries(orthonormal.T), triangle.T


def _check(first: BlockNoise, other: object, name: str) -> None:
    if not isinstance(other, BlockNoise):
        raise InputTypeError(
            f"{name} must be a BlockMechanism as the others, got {type(other).__name__}; where the domain is small, "
            f"take dense() of those of tables"
        )
    if other.domain != first.domain:
        raise InvalidInputError(f"{name} must be on the same attributes as mechanisms[0]")
    if other.neighbours != first.neighbours:
        raise InvalidInputError(f"{name} must have the same neighbours as mechanisms[0], it has others")


def _together(mechanisms: Sequence[Any]) -> UnionWorkload:
    """Return all tables of some mechanisms."""
    workloads = (mechanism.workload or mechanism.needed_tables for mechanism in mechanisms)
    return UnionWorkload(
        mechanisms[0].domain, each_once(table for workload in workloads for table in workload.product_tables)
    )


def frame_of(mechanisms: Sequence[Any], names: Sequence[str] = ()) -> Frame:
    """Return what mechanisms are compared on: blocks where the first is of tables, else cells.

    `names` are the arguments that they were passed as; by default ``mechanisms[0]``, ``mechanisms[1]``, …
    """
    if isinstance(mechanisms[0], BlockNoise):
        return TableBlocks(mechanisms, names)
    return Cells(mechanisms, names)


def _numbered(mechanisms: Sequence[Any]) -> list[str]:
    return [f"mechanisms[{index}]" for index in range(len(mechanisms))]


@dataclass(frozen=True, slots=True, eq=False)
class Decomposition:
    """A mechanism in two parts, and how their answers make up its own (CMN, algorithm 4 and theorem 5.5).

    Attributes
    ----------
    target, common, residual : LinearGaussianMechanism
        The mechanism; the part of it that is released first; the rest of it (algorithm 3). Run independently,
        the two parts are equivalent to the target: their cost matrices add up to its own.
    from_common : (m, k) array
        A_*, on the answers of the common part.
    from_residual : (m, k') array
        A', on the answers of the residual.
    leftover : (m, m) array
        Covariance of the noise that is missing from the sum of both: 0 where the target's rows are independent. It is
        how far dependent rows contradict each other, and does not depend on the data.
    """

    target: LinearGaussianMechanism
    common: LinearGaussianMechanism
    residual: LinearGaussianMechanism
    from_common: Array
    from_residual: Array
    leftover: Array

    of_tables: ClassVar[bool] = False

    @property
    def consistent(self) -> LinearGaussianMechanism:
        """The distribution of `combine` without a generator: the target less its contradictions."""
        noise = self.target.covariance() - self.leftover
        return LinearGaussianMechanism(self.target.query_matrix, noise, self.target.neighbours)._standing_for(
            self.target
        )

    def combine(
        self,
        common_answers: npt.ArrayLike,
        residual_answers: npt.ArrayLike,
        rng: np.random.Generator | int | None = None,
    ) -> Array:
        """Return the target's answers from the answers of both parts, which must have noise of their own.

        Simulated with one seed each, the parts would share theirs: give both the same generator instead, or two seeds.
        Raises `InvalidInputError` or `InputTypeError` for answers of other shapes, NaN or infinity.
        Returns an array, (m,) or (n, m).

        Parameters
        ----------
        common_answers, residual_answers : (k,) and (k',), or (n, k) and (n, k') arrays
            Of one run, or of n.
        rng : numpy.random.Generator or int, optional
            Where the leftover noise comes from, with which the answers have the target's own distribution. Without
            it they are consistent with one another, and worth as much.
        """
        first = _answers("common_answers", common_answers, self.from_common.shape[1])
        second = _answers("residual_answers", residual_answers, self.from_residual.shape[1])
        if first.shape[:-1] != second.shape[:-1]:
            raise InvalidInputError(
                f"residual_answers must be of as many runs as common_answers, got {second.shape} and {first.shape}"
            )
        combined = first @ self.from_common.T + second @ self.from_residual.T
        if rng is None or not np.any(self.leftover):
            return np.asarray(combined)
        values, vectors = np.linalg.eigh(self.leftover)
        draws = validate.generator(rng=rng).standard_normal(combined.shape)
        return np.asarray(combined + draws * np.sqrt(np.maximum(values, 0.0)) @ vectors.T)


@dataclass(frozen=True, slots=True, eq=False)
class TableDecomposition:
    """A mechanism of tables in two parts, all three on the blocks of all tables.

    Attributes
    ----------
    target, common, residual : BlockMechanism
        As of a `Decomposition`.
    """

    target: GaussianPrivacy
    common: GaussianPrivacy
    residual: GaussianPrivacy

    of_tables: ClassVar[bool] = True

    def combine(self, common_answers: Tables, residual_answers: Tables, rng: object = None) -> dict[Axes, Array]:
        """Return what the target would measure from what both parts did, consistent: no noise is missing from it."""
        return self.target.recreate([(self.common, common_answers), (self.residual, residual_answers)])


AnyDecomposition: TypeAlias = Any
"""A `Decomposition`, or a `TableDecomposition` where mechanisms are of tables."""


def _answers(name: str, answers: npt.ArrayLike, size: int) -> Array:
    if size == 0:
        return np.zeros((*np.shape(answers)[:-1], 0))
    values = validate.finite(**{name: answers})
    if values.ndim not in (1, 2) or values.shape[-1] != size:
        raise InvalidInputError(f"{name} must have {size} entries in each row, got shape {values.shape}")
    return values
