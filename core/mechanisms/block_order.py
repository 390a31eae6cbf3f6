"""Mechanisms of tables in order: which can be answered from which, and what several reveal together, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.block_rows import Key
from dualmech.mechanisms.answerability import TOLERANCE, Answerability, answerable
from dualmech.mechanisms.block_refinement import same_symmetry
from dualmech.mechanisms.block_tables import BlockTables
from dualmech.mechanisms.frames import TableBlocks
from dualmech.mechanisms.pieces import axes_of
from dualmech.mechanisms.records import Tables, check_tables
from dualmech.validate import Array
from dualmech.workloads.lattice import Axes
from dualmech.workloads.unions import Table


class OrderedBlocks(BlockTables):
    """What compares mechanisms of tables; the parameters are those of `BlockMechanism`.

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
        frame = TableBlocks([self, other], ("the mechanism", "other"))
        limit, excess, worst = validate.positive_number(tol=tol), 0.0, None
        for key, wanted, given in zip(frame.keys, frame.parts(self), frame.parts(other), strict=True):
            found = answerable(wanted, given, limit).excess
            if found > excess:
                excess, worst = found, key
        if excess <= limit or worst is None:
            return Answerability(True, excess)
        names = tuple(self.domain.names[axis] for axis in axes_of(worst))
        return Answerability(False, excess, attributes=names)

    def compose(self, *others: BlockTables) -> Self:
        """Return what this mechanism and others reveal together, run independently; their costs add."""
        every: list[Any] = [self, *others]
        frame = TableBlocks(every, ["the mechanism", *(f"others[{index}]" for index in range(len(others)))])
        blocks = zip(*(frame.parts(each) for each in every), strict=True)
        together: Self = frame.joined([first.compose(*rest) for first, *rest in blocks])
        return together

    def combine(self, measured: Tables, *others: tuple[BlockTables, Tables]) -> dict[Axes, Array]:
        """Return what noisy parts of this mechanism and of others say together: averages, by their accuracy.

        They are distributed as those of `compose`. Algorithm 4 of CMN, block by block.
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
        return self.compose(*(each for each, _ in parts[1:])).recreate(parts)

    def recreate(self, parts: Sequence[tuple[Any, Tables]]) -> dict[Axes, Array]:
        """Return what this mechanism would measure, from what mechanisms have that together reveal as much.

        Raises `InvalidInputError` for measurements on other blocks, or that lack a part.

        - `parts`: each with what it measured, run independently on the same records.
        """
        given = _pairs("parts", parts)
        for each, _ in given:
            if not same_symmetry(each.symmetries, self.symmetries):
                raise InvalidInputError(
                    "what was measured must be on the same blocks, its tables leave others"
                )
        combined: dict[Axes, Array] = {}
        for key, piece in self.pieces.items():
            found = combined.setdefault(axes_of(key), np.zeros(self.extents(axes_of(key))))
            where = np.ix_(*self.places(key))
            said = [each._told(key, own) for each, own in given if key in each.pieces]
            if not said:
                raise InvalidInputError(f"parts must measure {self._named(key)}, none of them does")
            told = np.asarray(sum(said))
            answers = told @ piece.moves.T @ piece.covariance
            found[where] = (answers @ piece.moves).reshape(found[where].shape)
        return combined

    def _told(self, key: Key, measured: Tables) -> Array:
        """Return ``moves' K⁻¹`` times the noisy answers in every copy of a block (…, b)."""
        piece, axes = self.pieces[key], axes_of(key)
        own = self._as_block_table(measured, axes)[np.ix_(*self.places(key))]
        answers = own.reshape(*own.shape[: len(axes)], -1) @ piece.moves.T
        solved = np.linalg.solve(piece.covariance, answers.reshape(-1, len(piece.moves)).T).T
        return np.asarray(solved.reshape(answers.shape) @ piece.moves)


def _pairs(name: str, given: Any) -> list[tuple[Any, Tables]]:
    """Return mechanisms of tables, each with what it measured."""
    found = []
    for index, each in enumerate(validate.sequence(**{name: given})):
        pair = validate.sequence(**{f"{name}[{index}]": each})
        if len(pair) != 2 or not isinstance(pair[0], OrderedBlocks):
            raise InvalidInputError(f"{name}[{index}] must be a BlockMechanism and what it measured")
        found.append((pair[0], check_tables(**{f"{name}[{index}]": pair[1]})))
    return found
