"""Tables: which form of noise and of weights shows both bounds, by the geometry that the answer is on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg
from dualmech.crosscheck.proofs import noise
from dualmech.crosscheck.proofs.checker.tables import (
    AskedTables,
    Classes,
    Part,
    by_block,
    placed,
    shared_weights,
)
from dualmech.crosscheck.proofs.noise import ItemDual, inverse, limited, polar_factor, square_strategy
from dualmech.crosscheck.proofs.texts import Parts, PrimalAndDual, as_read
from dualmech.errors import CertificateError
from dualmech.geometry.attribute_symmetry import AttributeSymmetry, Key
from dualmech.geometry.blocks import BlockPoint, Blocks
from dualmech.geometry.split import Split, SplitPoint
from dualmech.geometry.weights import FitnessDual, VarianceDual
from dualmech.problems.base import OnGeometry
from dualmech.validate import Array
from dualmech.workloads.domain import count_text

# Noise on blocks: levels and strategies, weights of orbits and isometries (see the checker's ``blocks``).
#
# The checker finds by itself what follows from the classes of values. The components of an attribute that is turned are
# waves, which no fraction equals: there every value is a class, and blocks that differ in the wave alone become one.


Index = npt.NDArray[np.intp]

UNASKED = 1e-12
"""Share of the cost that noise takes where rounding hid a part of a query, which the checker sees."""


def refuse_large_blocks(problem: OnGeometry) -> None:
    """Refuse a problem of too many multiplications of whole numbers, before any of them."""
    blocks = problem.geometry
    if not blocks.symmetries:
        return limited(sum(2.0 ** len(axes) for axes in blocks.workload.axes), "marginal tables")
    kinds = [_kinds(symmetry) for symmetry in blocks.symmetries]
    work = 0.0
    for key in {_place(blocks, key)[0] for key in _keys(blocks)}:
        work += math.prod(orbits for axis, (orbits, _) in enumerate(kinds) if axis not in dict(key)) ** 3.0
    for table, parts in zip(blocks.workload.tables, blocks.parts, strict=True):
        operations = math.prod(orbits**2.0 for axis, (orbits, _) in enumerate(kinds) if axis not in table.axes)
        for axis, part in zip(table.axes, parts, strict=True):
            orbits, components = kinds[axis]
            queries = len(part.orbits) if blocks.symmetries[axis].turning else len(part.means)
            operations *= queries * (orbits**2 + components)
        work += operations
    for axis, query in {pair for table in blocks.workload.tables for pair in table.queries}:
        if query is not None and kinds[axis][1] > 0:
            work += query.shape[0] * query.shape[1] ** 2.0
    limited(work, f"{len(blocks.workload.tables)} tables on {blocks.cells} kinds of records")


def blocks_witness(problem: OnGeometry, primal: Any, dual: ItemDual, stated: Parts) -> PrimalAndDual:
    """Return the parts that show the upper and the lower bound."""
    form = Form.of(problem.geometry, stated)
    return _blocks_noise(form, primal), _blocks_weights(form, dual)


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """Blocks, and the classes that the checker has of them."""

    blocks: Blocks
    classes: Classes
    turning: tuple[int, ...]  # the attributes whose values are turned
    attributes: Parts  # what the file says of the classes

    @classmethod
    def of(cls, blocks: Blocks, stated: Parts) -> Form:
        """Sort the values as the blocks do, those of a turned attribute each by itself."""
        attributes, turning = {}, []
        for axis, symmetry in enumerate(blocks.symmetries):
            if symmetry.turning:
                turning.append(axis)
            labels = np.arange(len(symmetry.labels)) if symmetry.turning else symmetry.labels
            if labels.max() > 0:
                attributes[str(axis)] = {"classes": labels}
        tables = AskedTables(as_read(stated))
        return cls(blocks, Classes(tables, as_read({"attributes": attributes})), tuple(turning), attributes)

    def add(self, pieces: dict[Key, list[tuple[Array, Array]]], key: Key, basis: Array, noise: Array) -> None:
        """Add the noise on a block to the pieces of its key, as a basis of sums over orbits and a covariance there."""
        components, waves = _place(self.blocks, key)
        if not self._axes:  # one orbit, whose only order is its own
            pieces.setdefault(components, []).append((basis, self._unit(key) * noise))
            return
        for axis in self.turning:
            symmetry = self.blocks.symmetries[axis]
            rows = symmetry.directions(waves[axis]).T if axis in waves else np.ones((1, len(symmetry.labels)))
            basis, noise = linalg.kronecker([basis, rows]), linalg.kronecker([noise, np.eye(len(rows))])
        shape = [1 if axis in dict(components) else len(self.classes.sizes[axis]) for axis in self._axes]
        pieces.setdefault(components, []).append((basis[:, self._order(shape)], self._unit(key) * noise))

    def noise(self, key: Key, pieces: list[tuple[Array, Array]]) -> Parts:
        cells = np.array(self.classes.cells(key), dtype=np.float64)
        if len(cells) == 1:
            return {"on": _named(key), "level": float(pieces[0][1][0, 0])}
        basis = np.vstack([rows for rows, _ in pieces])
        strategy = square_strategy(basis, scipy.linalg.block_diag(*(noise for _, noise in pieces)), None)
        guess = scipy.linalg.solve_triangular(strategy, np.eye(len(strategy)), check_finite=False)
        scaled = strategy * cells
        return {"on": _named(key), "strategy": scaled, "inverse": inverse(scaled, guess / cells[:, None])}

    def spread(self, weights: Array) -> Array:
        """Return weights of the checker's orbits of cells, from the weights of the blocks' own."""
        shape = [len(self.classes.sizes[axis]) for axis in self._axes]
        turned = math.prod(len(self.classes.sizes[axis]) for axis in self.turning)
        return np.kron(weights, np.full(turned, 1 / turned))[self._order(shape)]

    def grouped(self, table: int, weights: Array) -> Array:
        """Return weights of all cases of a table, from those of the blocks' own orbits of queries."""
        blocks, queries = self.blocks, self.classes.asked.tables[table]
        table_weights = weights[blocks.tables == table]
        if not blocks.symmetries:
            return table_weights
        array = table_weights.reshape(blocks.orbit_shape(table))
        for place, (pair, parts) in enumerate(zip(queries.items(), blocks.parts[table], strict=True)):
            groups = self.classes.groups[pair]
            shares = np.zeros((len(groups), array.shape[place]))
            for row, group in zip(shares, groups, strict=True):
                np.add.at(row, parts.orbits[np.array(group.members)], 1.0)
            array = np.moveaxis(np.tensordot(shares / parts.counts, array, (1, place)), 0, place)
        return array.ravel()

    @property
    def _axes(self) -> list[int]:
        """The attributes of several classes, as the blocks order them; those that are turned last."""
        return [*self.blocks.wide, *self.turning]

    def _order(self, shape: list[int]) -> Index:
        """Return the places of coordinates in the checker's order, the order of the attributes."""
        places = np.arange(math.prod(shape)).reshape(shape)
        return np.asarray(places.transpose(np.argsort(self._axes))).ravel()

    def _unit(self, key: Key) -> float:
        """Return the factor on the noise of a block, as its components are scaled by their dimensions."""
        if not self.blocks.symmetries:
            return math.prod(1 - 1 / self.classes.asked.sizes[axis] for axis, _ in key)
        unit = 1.0
        for axis, component in key:
            symmetry = self.blocks.symmetries[axis]
            unit *= symmetry.dimensions[component] / symmetry.sizes[symmetry.classes[component]]
        return float(unit)


def _kinds(symmetry: AttributeSymmetry) -> tuple[int, int]:
    """Return how many classes the checker has of an attribute's values, and how many components."""
    return (len(symmetry.labels), 0) if symmetry.turning else (len(symmetry.sizes), len(symmetry.classes))


def _place(blocks: Blocks, key: Key) -> tuple[Key, dict[int, int]]:
    """Return the checker's key of a block, and the wave of each turned attribute."""
    components, waves = [], {}
    for axis, component in key:
        symmetry = blocks.symmetries[axis] if blocks.symmetries else None
        if symmetry is not None and symmetry.turning:
            waves[axis] = component
        else:
            components.append((axis, 0 if symmetry is None else int(symmetry.classes[component])))
    return tuple(components), waves


def _keys(blocks: Blocks) -> tuple[Key, ...]:
    return (*blocks.keys, *(block.key for block in blocks.matrix_blocks))


def _blocks_noise(form: Form, point: BlockPoint) -> Parts:
    blocks = form.blocks
    forms = blocks.forms(point)
    if forms is None:
        raise CertificateError("the answer shows nothing in whole numbers: its noise is no covariance")
    pieces: dict[Key, list[tuple[Array, Array]]] = {}
    one = np.ones((1, 1))
    for key, value in zip(blocks.keys, point.levels.tolist(), strict=True):
        form.add(pieces, key, one, value * one)
    for block, covariance in zip(blocks.matrix_blocks, point.covariances, strict=True):
        form.add(pieces, block.key, block.moves, covariance)
    needed = {
        placed(on, tuple(table))
        for table in form.classes.asked.tables
        for _, parts in form.classes.cases(table)
        for on, *_ in parts
    }
    for key in needed - pieces.keys():
        coordinates = np.eye(len(form.classes.cells(key)))
        share = math.prod(1 - 1 / form.classes.sizes[axis][label] for axis, label in key)
        pieces[key] = [(coordinates, share / (UNASKED * forms.cost) * coordinates)]
    return {"attributes": form.attributes, "blocks": [form.noise(key, piece) for key, piece in pieces.items()]}


def _blocks_weights(form: Form, dual: object) -> Parts:
    """Return roots of the weights of orbits of cells, weights of groups of queries, and isometries of blocks."""
    is_fitness = isinstance(dual, FitnessDual)
    users, queries = form.blocks.weights(dual, is_fitness)
    parts: Parts = {"attributes": form.attributes, "roots": np.sqrt(form.spread(users))}
    if is_fitness:
        parts["weights"] = np.concatenate(
            [form.grouped(table, queries) for table in range(len(form.classes.asked.tables))]
        )
    blocks: list[Parts] = []
    if not form.classes.wide:
        return {**parts, "blocks": blocks}
    shared = shared_weights(form.classes, as_read(parts))
    for key, rows in by_block(form.classes, shared).items():
        cells = form.classes.cells(key)
        if len(cells) > 1:
            places = [form.classes.orbits().index(orbit) for orbit in form.classes.orbits(key)]
            blocks.append(
                {"on": _named(key), **_isometry(rows, parts["roots"][places] / np.array(cells, dtype=np.float64))}
            )
    return {**parts, "blocks": blocks}


def _isometry(rows: dict[Part, Fraction], scales: Array) -> Parts:
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


# Split noise: a strategy for each attribute and a level for each set of them, roots and isometries (see ``split``).


def refuse_large_split(problem: OnGeometry) -> None:
    """Refuse a problem of too many multiplications of whole numbers, before any of them."""
    workload, work = problem.geometry.workload, 0.0
    for axis in {axis for axes in workload.tables.axes for axis in axes}:
        queries = workload.queries[axis]
        if queries is not None:
            work += _work(*queries.shape)
    for axes in workload.tables.axes:
        factors = [workload.queries[axis] for axis in axes]
        cases = (
            1.0
            if problem.numbers == "weights"
            else np.prod([1.0 if matrix is None else matrix.shape[0] for matrix in factors])
        )
        work += 2 ** len(axes) * cases
    limited(float(work), f"{count_text(workload.shape[0])} queries split by attribute")


def split_witness(problem: OnGeometry, primal: Any, dual: ItemDual, stated: Parts) -> PrimalAndDual:
    """Return the parts that show the upper and the lower bound."""
    return _split_noise(problem.geometry, primal), _split_weights(problem, dual, stated)


def _split_noise(split: Split, point: SplitPoint) -> Parts:
    """Return strategies of attributes, but of those whose values are asked and have equal noise, and levels."""
    attributes, units = {}, []
    for axis, covariance in enumerate(point.shapes):
        unit = covariance[0, 0]
        even = split.workload.queries[axis] is None and np.array_equal(covariance, unit * np.eye(len(covariance)))
        units.append(float(unit) if even else 1.0)
        if not even:
            attributes[str(axis)] = _strategy(covariance)
    blocks = [
        {"on": {str(axis): "0" for axis in axes}, "level": level * np.prod([units[axis] for axis in axes])}
        for axes, level in zip(split.workload.tables.lattice.axes, point.levels.tolist(), strict=True)
    ]
    return {"attributes": attributes, "blocks": blocks}


def _strategy(covariance: Array) -> Parts:
    """Return the rows 1' and R with ``R'R`` the rest of the precision of a covariance, and their inverse.

    With orthonormal rows H that are orthogonal to 1, ``Σ 1 / (1'Σ1) = θ`` and ``H (Σ - 1'Σ1 θθ') H' = L L'``, they are
    ``L⁻¹ H (I - θ1')``, and the inverse has the columns θ and ``H'L``.
    """
    size = len(covariance)
    if size == 1:
        return {"strategy": np.ones((1, 1)), "inverse": np.ones((1, 1))}
    limited(_work(size, size), f"{size} values of an attribute")
    sums = covariance.sum(axis=1)
    means, rows = sums / sums.sum(), scipy.linalg.helmert(size)
    left = rows @ (covariance - np.outer(sums, means)) @ rows.T
    try:
        root = np.linalg.cholesky((left + left.T) / 2)
    except np.linalg.LinAlgError as error:
        raise CertificateError("the answer shows nothing in whole numbers: its noise is no covariance") from error
    measured = scipy.linalg.solve_triangular(root, rows - np.outer(rows @ means, np.ones(size)), lower=True)
    strategy = np.vstack([np.ones(size), measured])
    return {"strategy": strategy, "inverse": inverse(strategy, np.column_stack([means, rows.T @ root]))}


def _split_weights(problem: OnGeometry, dual: ItemDual, stated: Parts) -> Parts:
    """Return roots and polar factors of attributes, but of those whose values are asked with equal weights."""
    is_fitness = isinstance(dual, FitnessDual)
    users, queries = problem.geometry.weights(dual, is_fitness)
    names = {axis: name for table in stated["tables"] for axis, name in table.items()}
    attributes = {}
    for axis, name in names.items():
        weights, matrix = users[int(axis)], queries.queries[int(axis)]
        if problem.geometry.workload.queries[int(axis)] is None and np.ptp(weights) == np.ptp(matrix) == 0:
            continue
        p, q = np.sqrt(matrix), np.sqrt(weights)
        polar = polar_factor(p[:, None] * problem.geometry.workload.matrix_of(int(axis)) * q)
        attributes[axis] = {"roots": q, name: {"isometry": polar, **({"roots": p} if is_fitness else {})}}
    return {"attributes": attributes, **({"weights": queries.tables} if is_fitness else {})}


def _work(queries: int, size: int) -> float:
    return float(size**3 + queries * size**2 + queries * size * min(queries, size))


FORMS: dict[str, tuple[Callable[[OnGeometry], None], Callable[[OnGeometry, Any, ItemDual, Parts], PrimalAndDual]]] = {
    "blocks": (refuse_large_blocks, blocks_witness),
    "split": (refuse_large_split, split_witness),
}


def refuse_large(problem: OnGeometry, stated: Parts) -> None:
    """Refuse a problem of too many multiplications of whole numbers, before any of them."""
    refuse, _ = FORMS[problem.geometry.name]
    refuse(problem)


def witness(problem: OnGeometry, primal: Any, dual: ItemDual, stated: Parts) -> PrimalAndDual:
    """Return the parts that show the upper and the lower bound."""
    _, make_witness = FORMS[problem.geometry.name]
    upper, lower = make_witness(problem, primal, dual, stated)
    form = {"form": problem.geometry.name}
    return {**form, **upper}, {**form, **lower}


# Products: the numbers that show the bounds of every factor.


def refuse_large_product(problem: OnGeometry, stated: Parts) -> None:
    """Refuse a factor that takes too many multiplications of whole numbers, before any of them."""
    for factor, stated_factor in zip(problem.factors, stated["factors"], strict=True):
        refuse, _ = _finders(stated_factor)
        refuse(factor, stated_factor)


def product_witness(problem: OnGeometry, primal: Any, dual: ItemDual, stated: Parts) -> PrimalAndDual:
    """Return the parts that show the upper and the lower bound."""
    parts = []
    for index, (factor, stated_factor) in enumerate(zip(problem.factors, stated["factors"], strict=True)):
        users = dual.neighbour_weights[index]
        weights = (
            FitnessDual(users, dual.query_weights[index]) if isinstance(dual, FitnessDual) else VarianceDual(users)
        )
        _, find = _finders(stated_factor)
        parts.append(find(factor, primal[index], weights, stated_factor))
    upper, lower = ([part[side] for part in parts] for side in (0, 1))
    return {"factors": upper}, {"factors": lower}


def _finders(stated: Parts) -> Any:
    """Return the function that refuses too large a factor, and the one that finds its numbers."""
    if stated["kind"].startswith("table "):
        return refuse_large, witness
    return noise.refuse_large, noise.witness
