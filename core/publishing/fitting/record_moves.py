"""Whole records, one value of each moved at a time, towards noisy tables that tie too many attributes together."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dualmech.publishing.fitting.noisy_tables import NoisyTables
from dualmech.validate import Array

Codes = npt.NDArray[np.int64]

SWEEPS, STEPS = 12, 400  # over all attributes at most, and moves of many records at once for each
FIRST, AT_ONCE = 64, 2**20  # records that the first step looks at, and values of records in one step at most
ENOUGH = 1e-2  # part of the distance that a sweep must take off for another one to follow
KEPT = 0.5  # part of what was foreseen that a step must take off for the next one to be as large


class RecordMoves:
    """Records, their tables and how far these are from noisy ones: each table of `noisy` has a clique of its own.

    A step looks at one attribute of some records. What a value would change follows from the slope of the distance on
    each table and, roughly, its curvature; all that gain move at once if the distance falls.
    """

    def __init__(self, noisy: NoisyTables, codes: Codes) -> None:
        self.noisy, self.codes = noisy, codes
        self.shapes = noisy.layout.shapes
        self.counts = [self._count(number, codes) for number in range(len(noisy.tables))]
        self.residuals = noisy.residuals(self.vector)
        self.slopes = [self._slope(number) for number in range(len(noisy.tables))]
        self.asking: dict[int, list[int]] = {}
        for number, table in enumerate(noisy.tables):
            for axis in table.axes:
                if noisy.layout.sizes[axis] > 1:
                    self.asking.setdefault(axis, []).append(number)

    @property
    def vector(self) -> Array:
        """The tables of the records, one after another."""
        return np.concatenate([own.ravel() for own in self.counts])

    def descend(self) -> None:
        """Move records until a sweep hardly helps."""
        generator = np.random.default_rng(0)
        curvatures = {axis: self._curvature(axis) for axis in self.asking}
        most = {
            axis: min(max(AT_ONCE // self.noisy.layout.sizes[axis], 1), len(self.codes))
            for axis in self.asking
        }
        sizes = {axis: min(FIRST, most[axis]) for axis in self.asking}
        left = self.noisy.distance(self.residuals)
        for _ in range(SWEEPS if len(self.codes) else 0):
            for axis in generator.permutation(list(self.asking)).tolist():
                seen = 0
                for _ in range(STEPS):
                    chosen = generator.choice(len(self.codes), sizes[axis], replace=False)
                    seen += len(chosen)
                    as_foreseen = self._step(axis, chosen, curvatures[axis])
                    size = 2 * sizes[axis] if as_foreseen else sizes[axis] // 2
                    sizes[axis] = min(max(size, 1), most[axis])
                    if seen >= len(self.codes):
                        break
            before, left = left, self.noisy.distance(self.residuals)
            if left >= (1 - ENOUGH) * before:
                break

    def _step(self, axis: int, chosen: npt.NDArray[np.intp], curvature: Array) -> bool:
        """Move what gains among some records, if the distance falls; return whether it fell much as foreseen."""
        codes, each = self.codes[chosen], np.arange(len(chosen))
        now = codes[:, axis]
        change = self._slopes_along(axis, codes) + 0.5 * curvature[now]
        change -= change[each, now][:, None]
        value = change.argmin(axis=1)
        foreseen = change[each, value]
        gaining = foreseen < 0
        if not np.any(gaining):
            return True
        before = codes[gaining]
        after = before.copy()
        after[:, axis] = value[gaining]
        moved = {
            number: self._count(number, after) - self._count(number, before) for number in self.asking[axis]
        }
        residuals = {
            number: self.residuals[number] + self.noisy.tables[number].forward(difference)
            for number, difference in moved.items()
        }
        fallen = self.noisy.distance([self.residuals[number] for number in moved]) - self.noisy.distance(
            [*residuals.values()]
        )
        if fallen > 0:
            self.codes[chosen[gaining]] = after
            for number, difference in moved.items():
                self.counts[number] = self.counts[number] + difference
                self.residuals[number] = residuals[number]
                self.slopes[number] = self._slope(number)
        return bool(fallen >= -KEPT * foreseen[gaining].sum())

    def _slopes_along(self, axis: int, codes: Codes) -> Array:
        """Return the slope of the distance at each value that records could take along an attribute."""
        found = np.zeros((len(codes), self.noisy.layout.sizes[axis]))
        for number in self.asking[axis]:
            axes = self.noisy.tables[number].axes
            slopes = np.moveaxis(self.slopes[number], axes.index(axis), -1)
            found += slopes[tuple(codes[:, other] for other in axes if other != axis)]
        return found

    def _curvature(self, axis: int) -> Array:
        """Return what one record moved from value to value adds to twice the distance, by typical units and queries."""
        size = self.noisy.layout.sizes[axis]
        found = np.zeros((size, size))
        for number in self.asking[axis]:
            table = self.noisy.tables[number]
            gram, typical = np.eye(size), float((table.unit**2).mean())
            by_side = len(table.queries) == len(table.axes)  # else asked of all cells at once
            for side, matrix in enumerate(table.queries):
                if by_side and table.axes[side] == axis and matrix is not None:
                    product = matrix.T @ matrix
                    gram = product if isinstance(product, np.ndarray) else product.toarray()
                elif matrix is not None:
                    typical *= float((matrix * matrix).sum()) / matrix.shape[1]
            squares = np.diagonal(gram)
            found += (squares[:, None] + squares - 2 * gram) * typical
        return found

    def _count(self, number: int, codes: Codes) -> Array:
        """Return a table of records."""
        shape = self.shapes[number]
        columns = tuple(codes[:, axis] for axis in self.noisy.tables[number].axes)
        cells = np.ravel_multi_index(columns, shape) if shape else np.zeros(len(codes), dtype=np.intp)
        return np.bincount(cells, minlength=math.prod(shape)).astype(np.float64).reshape(shape)

    def _slope(self, number: int) -> Array:
        return self.noisy.tables[number].adjoint(self.residuals[number])
