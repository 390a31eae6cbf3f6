"""Data that prove both bounds for tables: noise and weights on the checker's blocks, from blocks or split answers."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg
from dualmech.crosscheck.proofs.checker.tables import (
    Attributes,
    DeclaredTables,
    Part,
    by_block,
    shared_weights,
)
from dualmech.crosscheck.proofs.noise import ItemDual, inverse, limited, measured, polar_factor
from dualmech.crosscheck.proofs.texts import Parts, PrimalAndDual, as_read, root_below
from dualmech.errors import CertificateError
from dualmech.geometry.attribute_symmetry import AttributeSymmetry, Key
from dualmech.geometry.blocks import BlockPoint, Blocks
from dualmech.geometry.in_numbers import VALUES
from dualmech.geometry.split import Split, SplitPoint
from dualmech.geometry.weights import FitnessDual
from dualmech.problems.base import OnGeometry
from dualmech.validate import Array
from dualmech.workloads.domain import count_text

# Noise on blocks: levels and strategies, weights of orbits and isometries.
#
# The checker derives the blocks from the classes of values. The components of a cyclically symmetric attribute are
# Fourier modes, which are irrational. In a proof every value of such an attribute is a class, and blocks that differ
# only in the mode become one block.


Index = npt.NDArray[np.intp]

NEGLIGIBLE_COST_FACTOR = 1e-12
"""Relative cost of the noise in blocks whose queries are 0 up to rounding, but not for the checker."""


class Form:
    """The blocks of a geometry, and the checker's blocks of the same tables."""

    def __init__(self, blocks: Blocks, statement: Parts) -> None:
        """Use the classes of the blocks; in a cyclically symmetric attribute, every value is a class."""
        self.blocks, sizes = blocks, statement["sizes"]
        self.symmetries = blocks.symmetries or [AttributeSymmetry.of((), size) for size in sizes]
        self.cyclic = [axis for axis, symmetry in enumerate(self.symmetries) if symmetry.turning]
        self.axes = [*blocks.wide, *self.cyclic]  # of several classes, in the order of the blocks' coordinates
        labels = {
            axis: np.arange(sizes[axis]) if axis in self.cyclic else self.symmetries[axis].labels for axis in self.axes
        }
        self.classes = {axis: int(values.max()) + 1 for axis, values in labels.items()}
        self.statement, self.attributes = statement, {str(axis): {"classes": values} for axis, values in labels.items()}

    def checked(self, *, lower: bool) -> Attributes:
        """Return the attributes as the checker reads them in the upper or lower section."""
        return Attributes(self.declared, as_read({"attributes": self.attributes}), lower=lower)

    @cached_property
    def declared(self) -> DeclaredTables:
        """The tables, as the checker reads them."""
        return DeclaredTables(as_read(self.statement))

    def place(self, key: Key) -> tuple[Key, dict[int, int]]:
        """Return the checker's key of a block, and the Fourier mode of each cyclically symmetric attribute."""
        modes = {axis: component for axis, component in key if axis in self.cyclic}
        return tuple((axis, int(self.symmetries[axis].classes[c])) for axis, c in key if axis not in modes), modes

    def shape(self, key: Key) -> list[int]:
        """Return the number of orbits of a block of the checker along each attribute with several classes."""
        return [1 if axis in dict(key) else self.classes[axis] for axis in self.axes]

    def order(self, key: Key = ()) -> Index:
        """Return the permutation of a block's coordinates to the checker's order, the order of the attributes."""
        shape = self.shape(key)
        places = np.arange(math.prod(shape)).reshape(shape)
        return np.asarray(places.transpose(np.argsort(self.axes))).ravel()

    def add(self, pieces: dict[Key, list[tuple[Array, Array]]], key: Key, basis: Array, covariance: Array) -> None:
        """Add the noise on a block to the pieces of its key: a basis of sums over orbits, and a covariance in it."""
        place, modes = self.place(key)
        for axis in self.cyclic:
            symmetry = self.symmetries[axis]
            rows = symmetry.directions(modes[axis]).T if axis in modes else np.ones((1, len(symmetry.labels)))
            basis, covariance = linalg.kronecker([basis, rows]), linalg.kronecker([covariance, np.eye(len(rows))])
        unit = 1.0  # components of the blocks are scaled by their dimensions
        for axis, component in key:
            symmetry = self.symmetries[axis]
            unit *= float(symmetry.dimensions[component] / symmetry.sizes[symmetry.classes[component]])
        if self.axes:
            basis = basis[:, self.order(place)]
        pieces.setdefault(place, []).append((basis, unit * covariance))

    def spread(self, weights: Array) -> Array:
        """Return weights of the checker's orbits of cells, from weights of the orbits of the blocks."""
        num_values = math.prod(self.classes[axis] for axis in self.cyclic)
        return np.kron(weights, np.full(num_values, 1 / num_values))[self.order()]

    def grouped(self, checked: Attributes, weights: Array) -> Array:
        """Return weights of the cases of all tables, from weights of the blocks' orbits of queries."""
        blocks, by_table = self.blocks, []
        for table, (queries, all_parts) in enumerate(zip(checked.tables.tables, blocks.parts, strict=True)):
            array = weights[blocks.tables == table].reshape(blocks.orbit_shape(table))
            for place, (pair, parts) in enumerate(zip(queries.items(), all_parts, strict=True)):
                groups = checked.groups[pair]
                shares = np.zeros((len(groups), array.shape[place]))
                for row, group in zip(shares, groups, strict=True):
                    np.add.at(row, parts.orbits[np.array(group.members)], 1.0)
                array = np.moveaxis(np.tensordot(shares / parts.counts, array, (1, place)), 0, place)
            by_table.append(array.ravel())
        return np.concatenate(by_table)


def _blocks_noise(form: Form, point: BlockPoint) -> Parts:
    blocks, checked = form.blocks, form.checked(lower=False)
    forms = blocks.forms(point)
    if forms is None:
        raise CertificateError("the answer proves no bound in exact arithmetic: its noise is not a covariance")
    pieces: dict[Key, list[tuple[Array, Array]]] = {}
    unit = np.ones((1, 1))
    for key, value in zip(blocks.keys, point.levels.tolist(), strict=True):
        form.add(pieces, key, unit, value * unit)
    for block, covariance in zip(blocks.matrix_blocks, point.covariances, strict=True):
        form.add(pieces, block.key, block.moves, covariance)
    required_keys = {key for cases in checked.cases for _, parts in cases for key, *_ in parts}
    for key in required_keys - pieces.keys():
        coordinates = np.eye(len(checked.orbits(key)))
        share = math.prod(float(checked.costs[axis][label]) for axis, label in key)
        pieces[key] = [(coordinates, share / (NEGLIGIBLE_COST_FACTOR * forms.cost) * coordinates)]
    return {"attributes": form.attributes, "blocks": [_noise(checked, *item) for item in pieces.items()]}


def _noise(checked: Attributes, key: Key, pieces: list[tuple[Array, Array]]) -> Parts:
    cells = np.array([*checked.orbits(key).values()], dtype=np.float64)
    if len(cells) == 1:
        return {"on": _named(key), "level": float(pieces[0][1][0, 0])}
    basis = np.vstack([rows for rows, _ in pieces])
    covariance = scipy.linalg.block_diag(*(covariance for _, covariance in pieces))
    return {"on": _named(key), **measured(basis * cells, covariance, None)}


def _blocks_weights(form: Form, dual: object) -> Parts:
    """Return roots of the weights of orbits of cells, weights of groups of queries, and isometries of blocks."""
    is_fitness = isinstance(dual, FitnessDual)
    users, queries = form.blocks.weights(dual, is_fitness)
    parts: Parts = {"attributes": form.attributes, "roots": np.sqrt(form.spread(users)), "blocks": []}
    if is_fitness:
        parts["weights"] = queries
    if not form.blocks.parts:  # marginal tables: all queries of a table are equivalent, and all cells
        return parts
    checked = form.checked(lower=True)
    if is_fitness:
        parts["weights"] = form.grouped(checked, queries)
    roots = dict(zip(checked.orbits(), parts["roots"], strict=True))
    for key, rows in by_block(checked, shared_weights(checked, as_read(parts))).items():
        scales = np.array([roots[orbit] / cells for orbit, cells in checked.orbits(key).items()])
        if len(scales) > 1 and any(rows.values()):
            parts["blocks"].append({"on": _named(key), **_isometry(rows, scales)})
    return parts


def _isometry(rows: dict[Part, Fraction], scales: Array) -> Parts:
    sums = np.array([np.ldexp(np.array(row, dtype=np.float64), exponent) for row, exponent in rows])
    roots = np.array([root_below(share) for share in rows.values()])
    return {"query_roots": roots, "isometry": polar_factor(roots[:, None] * sums * scales)}


def _named(key: Key) -> dict[str, str]:
    return {str(axis): str(label) for axis, label in key}


# Split noise: a strategy for each attribute and a level for each set of attributes, roots and isometries.


def _split_noise(split: Split, point: SplitPoint) -> Parts:
    """Return levels, and strategies of the attributes other than those with identity queries and equal noise."""
    attributes, units = {}, []
    for axis, covariance in enumerate(point.shapes):
        unit = covariance[0, 0]
        is_uniform = split.workload.queries[axis] is None and np.array_equal(covariance, unit * np.eye(len(covariance)))
        units.append(float(unit) if is_uniform else 1.0)
        if not is_uniform:
            attributes[str(axis)] = _strategy(covariance)
    blocks = [
        {"on": {str(axis): "0" for axis in axes}, "level": level * np.prod([units[axis] for axis in axes])}
        for axes, level in zip(split.workload.tables.lattice.axes, point.levels.tolist(), strict=True)
    ]
    return {"attributes": attributes, "blocks": blocks}


def _strategy(covariance: Array) -> Parts:
    """Return a strategy of the rows 1' and R that is equivalent to a covariance, and its inverse.

    With orthonormal rows H that are orthogonal to 1, ``Σ 1 / (1'Σ1) = θ`` and ``H (Σ - 1'Σ1 θθ') H' = L L'``, R is
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
        raise CertificateError(
            "the answer proves no bound in exact arithmetic: its noise is not a covariance"
        ) from error
    centred_rows = scipy.linalg.solve_triangular(root, rows - np.outer(rows @ means, np.ones(size)), lower=True)
    strategy = np.vstack([np.ones(size), centred_rows])
    return {"strategy": strategy, "inverse": inverse(strategy, np.column_stack([means, rows.T @ root]))}


def _split_weights(problem: OnGeometry, dual: ItemDual, statement: Parts) -> Parts:
    """Return roots and polar factors of the attributes other than those with identity queries and equal weights."""
    is_fitness = isinstance(dual, FitnessDual)
    users, queries = problem.geometry.weights(dual, is_fitness)
    names = {axis: name for table in statement["tables"] for axis, name in table.items()}
    attributes = {}
    for axis, name in names.items():
        weights, matrix = users[int(axis)], queries.queries[int(axis)]
        if problem.geometry.workload.queries[int(axis)] is None and np.ptp(weights) == np.ptp(matrix) == 0:
            continue
        p, q = np.sqrt(matrix), np.sqrt(weights)
        polar = polar_factor(p[:, None] * problem.geometry.workload.matrix_of(int(axis)) * q)
        attributes[axis] = {"roots": q, name: {"isometry": polar, **({"roots": p} if is_fitness else {})}}
    return {"attributes": attributes, "roots": [1.0], **({"weights": queries.tables} if is_fitness else {})}


def _work(queries: int, size: int) -> float:
    return float(size**3 + queries * size**2 + queries * size * min(queries, size))


def refuse_large(problem: OnGeometry, statement: Parts) -> None:
    """Refuse a problem whose proof needs too many multiplications to check."""
    classes, queries, tables = dict[int, int](), statement["queries"], statement["tables"]
    is_split = problem.geometry.name == "split"
    if is_split:
        work = sum(_work(*matrix.shape) for matrix in queries.values())
    else:
        form, blocks = Form(problem.geometry, statement), problem.geometry
        classes, keys = form.classes, (*blocks.keys, *(block.key for block in blocks.matrix_blocks))
        work = sum(math.prod(form.shape(key)) ** 3.0 for key in {form.place(key)[0] for key in keys})
        work += sum(matrix.shape[0] * matrix.shape[1] ** 2.0 for matrix in queries.values())
    for table in tables:
        operations = math.prod(count**2.0 for axis, count in classes.items() if str(axis) not in table)
        for axis, name in table.items():
            count = classes.get(int(axis), 1)
            all_as_one = is_split and problem.numbers == "weights"
            operations *= (count if name == VALUES or all_as_one else len(queries[name])) * (count**2 + count)
        work += operations
    limited(work, f"{count_text(problem.workload.shape[0])} queries in {len(tables)} tables")


def witness(problem: OnGeometry, primal: Any, dual: ItemDual, statement: Parts) -> PrimalAndDual:
    """Return the data that prove the upper and the lower bound."""
    if problem.geometry.name == "split":
        return _split_noise(problem.geometry, primal), _split_weights(problem, dual, statement)
    form = Form(problem.geometry, statement)
    return _blocks_noise(form, primal), _blocks_weights(form, dual)
