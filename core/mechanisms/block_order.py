"""Mechanisms on the same blocks in order: common to several, left of one, revealed together; one number per block.

Where every block has one coordinate, as those of marginal tables do, all cost matrices are sums of the same projectors,
and everything that `dualmech.mechanisms.answerability`, `dualmech.CommonMechanism` and `dualmech.residual` do with
matrices goes block by block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.attribute_symmetry import AttributeSymmetry
from dualmech.geometry.block_rows import Key
from dualmech.mechanisms.answerability import TOLERANCE, Answerability
from dualmech.mechanisms.block_tables import BlockTables
from dualmech.mechanisms.decomposition import NOTHING_LEFT
from dualmech.mechanisms.pieces import Piece, axes_of
from dualmech.mechanisms.records import Tables, check_tables
from dualmech.validate import Array
from dualmech.workloads.lattice import Axes


class OrderedBlocks(BlockTables):
    """What compares mechanisms on the same blocks; the parameters are those of `BlockMechanism`.

    All of it refuses, with `InvalidInputError` or `InputTypeError`, mechanisms of another kind, on another domain or
    with another symmetry, and those with a block of several coordinates: their order is that of matrices (`dense`).
    """

    __slots__ = ()

    def common_with(self, *others: BlockTables) -> Self:
        """Return a mechanism that this one and others can all answer, as accurate as possible.

        On a block that all measure, its noise is the largest of theirs; what one does not measure is not common. It is
        the common mechanism of least total variance on an orthonormal basis of what all see (`CommonMechanism` on a
        domain that matrices can hold): all cost matrices are multiples of the same projectors, and on such a basis no
        covariance above theirs has a smaller entry on its diagonal.
        Raises `InvalidInputError` or `InputTypeError` for no others, mechanisms that cannot be compared.
        Source: equation 1 and algorithm 1 of Xiao, Wang, Zhang and Kifer, PVLDB 16(8), 2023 (CMN); sections 7.3 and 7.4
        there choose between marginals.

        Examples
        --------
        >>> import dualmech as dm
        >>> domain = dm.Domain([(f"a{attribute}", 2) for attribute in range(7)])
        >>> one, cells = (
        ...     dm.BlockMechanism.of_tables(dm.workloads.marginals(domain, ways=ways)) for ways in (1, 7)
        ... )
        >>> round(one.common_with(cells).squared_privacy_cost, 6)
        0.0625
        """
        if not others:
            raise InvalidInputError("others must be one or more mechanisms, got none")
        first, *rest = _levels([self, *others])
        return self._with_levels(
            {
                key: max(level, *(each[key] for each in rest))
                for key, level in first.items()
                if all(key in each for each in rest)
            }
        )

    def residual(self, common: BlockTables, tol: float = TOLERANCE) -> Self:
        """Return what is left of this mechanism once a part of it is known, ``1 / (1/τ - 1/τ_*)`` on each block.

        Run independently, the two parts are equivalent to the whole (`combine` puts their answers together). Of a
        block of which less than 1e-9 is left nothing more is asked. Algorithm 3 of CMN.
        Raises `InvalidInputError` or `InputTypeError` for a common part that is not answerable from this
        mechanism, its worst block named, or cannot be compared.

        Examples
        --------
        >>> import dualmech as dm
        >>> domain = dm.Domain({"sex": 2})
        >>> noisy, better = (dm.BlockMechanism.of_levels(domain, {(): level}) for level in (2, 1))
        >>> better.residual(noisy).noise      # 1 / (1/1 - 1/2)
        {(): 2.0}
        """
        own, known = _levels([self, common], "common")
        excess, worst = _excess(known, own)
        if excess > validate.positive_number(tol=tol) and worst is not None:
            raise InvalidInputError(
                f"common must be answerable from mechanism, but exceeds its cost by {excess:.3g}, relative, "
                f"on {self._shown(axes_of(worst))}"
            )
        shares = {key: 1 - level / known.get(key, math.inf) for key, level in own.items()}
        return self._with_levels({k: own[k] / share for k, share in shares.items() if share > NOTHING_LEFT})

    def compose(self, *others: BlockTables) -> Self:
        """Return what this mechanism and others reveal together, run independently; their costs add."""
        return self._with_levels(_combined_levels(_levels([self, *others])))

    def is_answerable_from(self, other: BlockTables, tol: float = TOLERANCE) -> Answerability:
        """Say whether the other's answers, with more noise, are this mechanism's: ``1/τ ≤ (1 + tol) / τ_other``.

        The answer has the least relative excess that would do, and the attributes of the block where it is worst.
        """
        excess, worst = _excess(*_levels([self, other], "other"))
        if excess <= validate.positive_number(tol=tol) or worst is None:
            return Answerability(True, excess)
        names = tuple(self.domain.names[axis] for axis in axes_of(worst))
        return Answerability(False, excess, attributes=names)

    def combine(self, measured: Tables, *others: tuple[BlockTables, Tables]) -> dict[Axes, Array]:
        """Return what noisy parts of this mechanism and of others say together: averages, by their accuracy.

        They are distributed as those of `compose`. Algorithm 4 of CMN, block by block.
        Raises `InvalidInputError` or `InputTypeError` for mechanisms that cannot be compared, measurements that
        lack a part.

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
        parts = [(self, check_tables(measured=measured))]
        for index, each in enumerate(others):
            if len(pair := validate.sequence(**{f"others[{index}]": each})) != 2:
                raise InvalidInputError(f"others[{index}] must be a mechanism and what it measured")
            parts.append((pair[0], check_tables(**{f"others[{index}]": pair[1]})))
        levels = _levels([each for each, _ in parts])
        combined: dict[Axes, Array] = {}
        for key, level in _combined_levels(levels).items():
            axes = axes_of(key)
            found = combined.setdefault(axes, np.zeros(self.extents(axes)))
            for (_, given), own in zip(parts, levels, strict=True):
                if key in own:
                    where = np.ix_(*self.places(key))
                    found[where] += level / own[key] * self._as_block_table(given, axes)[where]
        return combined

    def _with_levels(self, levels: Mapping[Key, float]) -> Self:
        one = np.ones((1, 1))
        pieces = {
            key: Piece.of(self.symmetries, self.moved, key, one, one * level) for key, level in levels.items()
        }
        return self.with_pieces(pieces)


def same_symmetry(first: Sequence[AttributeSymmetry], second: Sequence[AttributeSymmetry]) -> bool:
    """Whether all attributes have the same classes, exchanged or turned."""
    return len(first) == len(second) and all(
        one.turning == two.turning
        and np.array_equal(one.sizes, two.sizes)
        and (len(one.sizes) == 1 or np.array_equal(one.labels, two.labels))
        for one, two in zip(first, second, strict=True)
    )


def _levels(mechanisms: Sequence[Any], name: str = "others") -> list[dict[Key, float]]:
    """Return the noise of each mechanism, one number per block; refuse those that have no such numbers in common."""
    found = []
    for each in mechanisms:
        if not isinstance(each, BlockTables):
            raise InputTypeError(f"{name} must be a BlockMechanism, got {type(each).__name__}")
        if each.domain != mechanisms[0].domain or not same_symmetry(
            each.symmetries, mechanisms[0].symmetries
        ):
            raise InvalidInputError(f"{name} must be mechanisms on the same domain and blocks")
        if each.neighbours != mechanisms[0].neighbours:
            raise InvalidInputError(f"{name} must be mechanisms with the same neighbours")
        large = next((key for key, piece in each.pieces.items() if piece.moves.size > 1), None)
        if large is not None:
            raise InvalidInputError(
                f"{name} must be mechanisms with blocks of one coordinate, {each._named(large)} have more"
            )
        found.append({key: float(piece.covariance[0, 0]) for key, piece in each.pieces.items()})
    return found


def _excess(wanted: Mapping[Key, float], given: Mapping[Key, float]) -> tuple[float, Key | None]:
    """Return the least e ≥ 0 with ``1/τ ≤ (1 + e) / τ_given`` on every block, and the worst block where it is not 0."""
    excess, worst = 0.0, None
    for key, level in wanted.items():
        over = given[key] / level - 1 if key in given else math.inf
        if over > excess:
            excess, worst = over, key
    return excess, worst


def _combined_levels(levels: Sequence[Mapping[Key, float]]) -> dict[Key, float]:
    """Return the noise of what all reveal together: ``1/τ`` adds up."""
    told: dict[Key, float] = {}
    for own in levels:
        for key, level in own.items():
            told[key] = told.get(key, 0.0) + 1 / level
    return {key: 1 / amount for key, amount in told.items()}
