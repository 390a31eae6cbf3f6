"""Noise on blocks: levels and strategies, weights of orbits and isometries (see the checker's ``blocks``).

What follows from the classes of values, the checker finds by itself. The components of an attribute that is turned are
waves, which no fraction equals: there every value is a class, and blocks that differ in the wave alone become one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg
from dualmech.errors import CertificateError
from dualmech.geometry.base import FitnessDual
from dualmech.geometry.block_rows import Key
from dualmech.proofs.checker.blocks import by_block, shared_weights
from dualmech.proofs.checker.classes import Classes, Part
from dualmech.proofs.checker.domain import Asked
from dualmech.proofs.texts import as_read
from dualmech.proofs.witnesses.noise import inverse, limited, polar_factor, square_strategy
from dualmech.validate import Array

Index = npt.NDArray[np.intp]
Given = dict[str, Any]

UNASKED = 1e-12
"""Share of the cost that noise takes where rounding hid a part of a query, which the checker sees."""


def refuse_large(problem: Any) -> None:
    """Refuse what takes too many multiplications of whole numbers, before any of them."""
    blocks = problem.geometry
    if not blocks.symmetries:
        return limited(sum(2.0 ** len(axes) for axes in blocks.workload.axes), "marginal tables")
    kinds = [_kinds(symmetry) for symmetry in blocks.symmetries]
    work = 0.0
    for key in {_place(blocks, key)[0] for key in _keys(blocks)}:
        work += math.prod(orbits for axis, (orbits, _) in enumerate(kinds) if axis not in dict(key)) ** 3.0
    for table, parts in zip(blocks.workload.tables, blocks.parts, strict=True):
        own = math.prod(orbits**2.0 for axis, (orbits, _) in enumerate(kinds) if axis not in table.axes)
        for axis, each in zip(table.axes, parts, strict=True):
            orbits, components = kinds[axis]
            queries = len(each.orbits) if blocks.symmetries[axis].turning else len(each.means)
            own *= queries * (orbits**2 + components)
        work += own
    for axis, asked in {pair for table in blocks.workload.tables for pair in table.queries}:
        if asked is not None and kinds[axis][1] > 0:
            work += asked.shape[0] * asked.shape[1] ** 2.0
    limited(work, f"{len(blocks.workload.tables)} tables on {blocks.cells} kinds of records")


def witness(problem: Any, primal: Any, dual: Any, stated: Given) -> tuple[Given, Given]:
    """Return what shows the upper and what shows the lower bound."""
    form = Form.of(problem.geometry, stated)
    return _noise(form, primal), _weights(form, dual)


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """Blocks beside the classes that the checker has of them."""

    blocks: Any
    classes: Classes
    turning: tuple[int, ...]  # the attributes whose values are turned
    attributes: Given  # what the file says of the classes

    @classmethod
    def of(cls, blocks: Any, stated: Given) -> Form:
        """Sort the values as the blocks do, those of a turned attribute each by itself."""
        attributes, turning = {}, []
        for axis, symmetry in enumerate(blocks.symmetries):
            if symmetry.turning:
                turning.append(axis)
            labels = np.arange(len(symmetry.labels)) if symmetry.turning else symmetry.labels
            if labels.max() > 0:
                attributes[str(axis)] = {"classes": labels}
        asked = Asked(as_read(stated))
        return cls(blocks, Classes(asked, as_read({"attributes": attributes})), tuple(turning), attributes)

    def add(self, pieces: dict[Key, list[tuple[Array, Array]]], key: Key, basis: Array, noise: Array) -> None:
        """Add the noise on a block to what it is a part of, as a basis of sums over orbits and a covariance there."""
        own, waves = _place(self.blocks, key)
        for axis in self.turning:
            symmetry = self.blocks.symmetries[axis]
            rows = symmetry.directions(waves[axis]).T if axis in waves else np.ones((1, len(symmetry.labels)))
            basis, noise = linalg.kronecker([basis, rows]), linalg.kronecker([noise, np.eye(len(rows))])
        shape = [1 if axis in dict(own) else len(self.classes.sizes[axis]) for axis in self._axes]
        pieces.setdefault(own, []).append((basis[:, self._order(shape)], self._unit(key) * noise))

    def noise(self, key: Key, pieces: list[tuple[Array, Array]]) -> Given:
        """Return the noise of a block as a file has it."""
        cells = np.array(self.classes.cells(key), dtype=np.float64)
        if len(cells) == 1:
            return {"on": _named(key), "level": float(pieces[0][1][0, 0])}
        basis = np.vstack([rows for rows, _ in pieces])
        strategy = square_strategy(basis, scipy.linalg.block_diag(*(noise for _, noise in pieces)), None)
        guess = scipy.linalg.solve_triangular(strategy, np.eye(len(strategy)), check_finite=False)
        scaled = strategy * cells
        return {"on": _named(key), "strategy": scaled, "inverse": inverse(scaled, guess / cells[:, None])}

    def spread(self, weights: Array) -> Array:
        """Return weights of the checker's orbits of cells, from those of the blocks' own."""
        shape = [len(self.classes.sizes[axis]) for axis in self._axes]
        turned = math.prod(len(self.classes.sizes[axis]) for axis in self.turning)
        return np.kron(weights, np.full(turned, 1 / turned))[self._order(shape)]

    def grouped(self, table: int, weights: Array) -> Array:
        """Return weights of all cases of a table, from those of the blocks' own orbits of queries."""
        blocks, asked = self.blocks, self.classes.asked.tables[table]
        own = weights[blocks.tables == table]
        if not blocks.symmetries:
            return own
        found = own.reshape(blocks.orbit_shape(table))
        for place, (pair, parts) in enumerate(zip(asked.items(), blocks.parts[table], strict=True)):
            groups = self.classes.groups[pair]
            shares = np.zeros((len(groups), found.shape[place]))
            for row, group in zip(shares, groups, strict=True):
                np.add.at(row, parts.orbits[np.array(group.members)], 1.0)
            found = np.moveaxis(np.tensordot(shares / parts.counts, found, (1, place)), 0, place)
        return found.ravel()

    @property
    def _axes(self) -> list[int]:
        """The attributes of several classes, as the blocks order them; those that are turned last."""
        return [*self.blocks.wide, *self.turning]

    def _order(self, shape: list[int]) -> Index:
        """Return the places of coordinates in the checker's order, that of the attributes."""
        places = np.arange(math.prod(shape)).reshape(shape)
        return np.asarray(places.transpose(np.argsort(self._axes))).ravel()

    def _unit(self, key: Key) -> float:
        """Return what the noise of a block is multiplied by, as its components are scaled by their dimensions."""
        if not self.blocks.symmetries:
            return math.prod(1 - 1 / self.classes.asked.sizes[axis] for axis, _ in key)
        found = 1.0
        for axis, each in key:
            symmetry = self.blocks.symmetries[axis]
            found *= symmetry.dimensions[each] / symmetry.sizes[symmetry.classes[each]]
        return float(found)


def _kinds(symmetry: Any) -> tuple[int, int]:
    """Return how many classes the checker has of an attribute's values, and how many components."""
    return (len(symmetry.labels), 0) if symmetry.turning else (len(symmetry.sizes), len(symmetry.classes))


def _place(blocks: Any, key: Key) -> tuple[Key, dict[int, int]]:
    """Return where a block lives as the checker says it, and the wave of each turned attribute."""
    own, waves = [], {}
    for axis, each in key:
        symmetry = blocks.symmetries[axis] if blocks.symmetries else None
        if symmetry is not None and symmetry.turning:
            waves[axis] = each
        else:
            own.append((axis, 0 if symmetry is None else int(symmetry.classes[each])))
    return tuple(own), waves


def _keys(blocks: Any) -> tuple[Key, ...]:
    return (*blocks.keys, *(block.key for block in blocks.matrix_blocks))


def _noise(form: Form, point: Any) -> Given:
    """Return a level, or a strategy with its inverse, of every block."""
    blocks = form.blocks
    forms = blocks.forms(point)
    if forms is None:
        raise CertificateError("the answer shows nothing in whole numbers: its noise is no covariance")
    pieces: dict[Key, list[tuple[Array, Array]]] = {}
    for key, value in zip(blocks.keys, point.levels.tolist(), strict=True):
        form.add(pieces, key, np.ones((1, 1)), np.full((1, 1), value))
    for block, covariance in zip(blocks.matrix_blocks, point.covariances, strict=True):
        form.add(pieces, block.key, block.moves, covariance)
    needed = {
        key
        for table in form.classes.asked.tables
        for case in form.classes.cases(table)
        for key, *_ in form.classes.parts(table, case)
    }
    for key in needed - pieces.keys():
        coordinates = np.eye(len(form.classes.cells(key)))
        share = math.prod(1 - 1 / form.classes.sizes[axis][label] for axis, label in key)
        pieces[key] = [(coordinates, share / (UNASKED * forms.cost) * coordinates)]
    return {"attributes": form.attributes, "blocks": [form.noise(key, each) for key, each in pieces.items()]}


def _weights(form: Form, dual: Any) -> Given:
    """Return roots of the weights of orbits of cells, weights of groups of queries, and isometries of blocks."""
    asked = isinstance(dual, FitnessDual)
    users, queries = form.blocks.weights(dual, asked)
    given: Given = {"attributes": form.attributes, "roots": np.sqrt(form.spread(users))}
    if asked:
        given["weights"] = np.concatenate(
            [form.grouped(table, queries) for table in range(len(form.classes.asked.tables))]
        )
    shared = shared_weights(form.classes, as_read(given))
    blocks = []
    for key, rows in by_block(form.classes, shared).items():
        cells = form.classes.cells(key)
        if len(cells) > 1:
            places = [form.classes.orbits().index(orbit) for orbit in form.classes.orbits(key)]
            blocks.append(
                {
                    "on": _named(key),
                    **_isometry(rows, given["roots"][places] / np.array(cells, dtype=np.float64)),
                }
            )
    return {**given, "blocks": blocks}


def _isometry(rows: dict[Part, Fraction], scales: Array) -> Given:
    """Return F and G: with the roots of the weights of the rows, F has no singular value but 1, with G all of them."""
    sums = np.array([np.ldexp(np.array(row, dtype=np.float64), exponent) for row, exponent in rows])
    roots = np.sqrt(np.array([float(share) for share in rows.values()]))
    seen = np.flatnonzero(roots)
    polar = polar_factor(roots[seen, None] * sums[seen] * scales)
    isometry = np.zeros(sums.shape)
    isometry[seen] = polar / roots[seen, None]
    if len(seen) >= len(scales):
        return {"isometry": isometry}
    return {"isometry": isometry, "rest": scipy.linalg.null_space(polar).T}


def _named(key: Key) -> dict[str, str]:
    return {str(axis): str(label) for axis, label in key}
