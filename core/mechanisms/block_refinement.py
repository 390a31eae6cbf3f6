"""Noise on the blocks of a symmetry as noise on those of a smaller one, where other tables tell more values apart.

Two sets of tables leave two symmetries; what keeps both is what the tables together leave. Its classes are finer, so
that a block of the first falls apart: of the functions on a class F of n values that add up to 0, those that are
constant on the finer classes f of F are *contrasts*, rows a over these classes with ``Σ n_f a_f = 0`` and
``Σ n_f a_f² = 1``, and the others live on one f each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dualmech.errors import InvalidInputError
from dualmech.geometry.attribute_symmetry import AttributeSymmetry
from dualmech.geometry.block_rows import Key
from dualmech.mechanisms.pieces import Piece
from dualmech.validate import Array

Noise = tuple[Array, Array]
"""Rows over the classes that a block sees, and their covariance, in units of counts."""


@dataclass(frozen=True, slots=True, eq=False)
class RefinedAttribute:
    """An attribute's classes as sums of finer ones, and what its components become."""

    fine: AttributeSymmetry
    sums: Array  # (coarse classes, fine classes) which fine classes make up each
    inside: tuple[tuple[int, ...], ...]  # of each coarse component, the fine components in it
    contrasts: tuple[Array, ...]  # of each coarse component, its contrasts (m - 1, fine classes)

    @classmethod
    def of(cls, name: str, coarse: AttributeSymmetry, fine: AttributeSymmetry) -> RefinedAttribute:
        """Hold two symmetries of an attribute against each other."""
        parent = np.zeros(len(fine.sizes), dtype=np.intp)
        parent[fine.labels] = coarse.labels
        if not coarse.turning and np.any(parent[fine.labels] != coarse.labels):
            raise InvalidInputError(f"what is compared tells values of {name!r} apart that the others do not")
        sums = (parent == np.arange(len(coarse.sizes))[:, None]).astype(np.float64)
        if coarse.turning or fine.turning:
            if not fine.turning or not (coarse.turning or len(coarse.sizes) == 1):
                raise InvalidInputError(
                    f"queries that turn {name!r} have no blocks in common with those that tell classes of it apart"
                )
            waves = tuple(range(len(fine.classes)))
            inside = tuple((each,) for each in waves) if coarse.turning else (waves,) * len(coarse.classes)
            return cls(fine, sums, inside, (np.zeros((0, 1)),) * len(inside))
        within = tuple(
            tuple(np.flatnonzero(parent[fine.classes] == label).tolist()) for label in coarse.classes
        )
        contrasts = tuple(_contrasts(np.where(parent == label, fine.sizes, 0.0)) for label in coarse.classes)
        return cls(fine, sums, within, contrasts)

    def choices(self, component: int) -> list[int | None]:
        """Return what a component becomes: fine components, and None for its contrasts where it has some."""
        contrasts: list[int | None] = [None] if len(self.contrasts[component]) else []
        return [*self.inside[component], *contrasts]


def same_symmetry(first: Sequence[AttributeSymmetry], second: Sequence[AttributeSymmetry]) -> bool:
    """Whether all attributes have the same classes, exchanged or turned."""
    return len(first) == len(second) and all(
        one.turning == two.turning
        and np.array_equal(one.sizes, two.sizes)
        and (len(one.sizes) == 1 or np.array_equal(one.labels, two.labels))
        for one, two in zip(first, second, strict=True)
    )


def _contrasts(sizes: Array) -> Array:
    """Return orthonormal contrasts of the classes of these sizes; classes of size 0 are not among them."""
    own = np.flatnonzero(sizes)
    unit = np.sqrt(sizes[own])
    across = scipy.linalg.null_space(unit[None]).T if len(own) > 1 else np.zeros((0, len(own)))
    found = np.zeros((len(across), len(sizes)))
    found[:, own] = across / unit
    return found


def refined_noise(
    attributes: Sequence[RefinedAttribute], pieces: Sequence[tuple[Key, Piece]], classes: Sequence[int]
) -> dict[Key, Noise]:
    """Return the noise on every block of the finer symmetry.

    `classes` are the numbers of coarse classes, one an attribute.
    """
    found: dict[Key, list[Noise]] = {}
    for key, piece in pieces:
        for chosen in itertools.product(*(attributes[axis].choices(component) for axis, component in key)):
            fine = tuple(
                (axis, each) for (axis, _), each in zip(key, chosen, strict=True) if each is not None
            )
            found.setdefault(fine, []).append(_rows(attributes, dict(key), fine, piece, classes))
    return {
        key: (np.vstack([rows for rows, _ in parts]), scipy.linalg.block_diag(*(noise for _, noise in parts)))
        for key, parts in found.items()
    }


def _rows(
    attributes: Sequence[RefinedAttribute],
    coarse: dict[int, int],
    fine: Key,
    piece: Piece,
    classes: Sequence[int],
) -> Noise:
    """Return what a piece releases of a finer block: rows over fine classes outside its key."""
    kept = dict(fine)
    outside = [axis for axis, own in enumerate(attributes) if axis not in kept and len(own.fine.sizes) > 1]
    rows = piece.moves.reshape(
        len(piece.moves), *(1 if axis in coarse else classes[axis] for axis in outside)
    )
    copies = 1
    for place, own, axis in _places(attributes, outside):
        if axis in coarse:
            contrasts = own.contrasts[coarse[axis]]
            shape = (-1, *rows.shape[1:place], contrasts.shape[1], *rows.shape[place + 1 :])
            spread = np.moveaxis(rows, place, -1)[..., None] * contrasts  # each row times each contrast
            rows = np.moveaxis(np.moveaxis(spread, -1, place), -1, 1).reshape(shape)
            copies *= len(contrasts)
        else:
            rows = np.moveaxis(np.tensordot(rows, own.sums, axes=(place, 0)), -1, place)
    noise = np.kron(piece.weight**2 * piece.covariance, np.eye(copies))
    return np.asarray(rows.reshape(len(rows), -1)), np.asarray(noise)


def _places(
    attributes: Sequence[RefinedAttribute], outside: Sequence[int]
) -> Iterator[tuple[int, RefinedAttribute, int]]:
    return ((place, attributes[axis], axis) for place, axis in enumerate(outside, start=1))
