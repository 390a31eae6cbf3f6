"""All ranges of ordered cells, and the sines that are their eigen-queries: both by formulas, a matrix on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.grams import all_range_gram
from dualmech.workloads.rules import RuleWorkload

MAX_CELLS = 2**22  # most cells of either workload

MAX_ANSWERS = 2**28  # most answers, or norms, that are written out


class RangeWorkload(RuleWorkload):
    """Every interval of d ordered cells, once, by first cell and then by last: (d (d + 1) / 2, d), matrix on demand.

    Examples
    --------
    >>> import dualmech as dm
    >>> asked = dm.workloads.all_range(65536)
    >>> asked
    Workload(2147516416 queries x 65536 cells, all ranges)
    >>> asked.ends([0, 65535, 65536])
    (array([0, 0, 1]), array([    0, 65535,     1]))
    """

    __slots__ = ()

    counted = "all ranges of"
    instead = "total variance and query weighting by dualmech.workloads.sines need no matrix"

    def __init__(self, cells: int) -> None:
        count = _cells(cells)
        self._begin(count * (count + 1) // 2, count)

    def ends(
        self, queries: Sequence[int] | npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the first and the last cells of ranges, given by their numbers."""
        index, cells = validate.indices(self.shape[0], queries=queries), self.shape[1]
        # Ranges that begin at cell a or later: (d - a) (d - a + 1) / 2, which counted from the last is a triangle.
        left = self.shape[0] - 1 - np.asarray(index, dtype=np.int64)
        row = ((np.sqrt(8.0 * left + 1) - 1) / 2).astype(np.int64)
        row += ((row + 1) * (row + 2) // 2 <= left).astype(np.int64) - (row * (row + 1) // 2 > left)
        return cells - 1 - row, cells - 1 - (left - row * (row + 1) // 2)

    def apply(self, x: npt.ArrayLike) -> Array:
        """Return the answers ``W x`` (m,), differences of running sums; refused where they are too many."""
        sums = np.r_[0.0, np.cumsum(validate.vector(self.shape[1], "cell", x=x))]
        self._check_answers()
        return np.concatenate([sums[first + 1 :] - sums[first] for first in range(self.shape[1])])

    def gram(self, query_weights: npt.ArrayLike | None = None) -> Array:
        """Return ``W' diag(query_weights) W`` (d, d); all weights 1 by default."""
        return all_range_gram(self.shape[1]) if query_weights is None else super().gram(query_weights)

    def row_norms(self) -> Array:
        """Return the Euclidean norm of each range (m,), the root of its length; refused where they are too many."""
        self._check_answers()
        cells = self.shape[1]
        roots = np.sqrt(np.arange(1, cells + 1))
        return np.concatenate([roots[: cells - first] for first in range(cells)])

    def column_squares(self) -> Array:
        """Return the squared Euclidean norm of each column (d,): in how many ranges each cell is."""
        cell = np.arange(1, self.shape[1] + 1, dtype=np.float64)
        return cell * cell[::-1]

    @property
    def _group(self) -> str:
        return "ranges"

    def _named(self, index: npt.NDArray[Any]) -> tuple[str, ...]:
        ends = zip(*self.ends(index), strict=True)
        return tuple(f"cell {a}" if a == b else f"cells {a}..{b}" for a, b in ends)

    def _rows(self, index: npt.NDArray[Any]) -> Array:
        first, last = self.ends(index)
        cell = np.arange(self.shape[1])
        return ((first[:, None] <= cell) & (cell <= last[:, None])).astype(np.float64)

    def _check_answers(self) -> None:
        if self.shape[0] > MAX_ANSWERS:
            raise InvalidInputError(
                f"all ranges of {self.shape[1]} cells are too many to write out an answer of each "
                f"(limit {MAX_ANSWERS}); select some"
            )

    def _structure(self) -> Any:
        return self.shape

    def __reduce__(self) -> tuple[Any, ...]:
        return RangeWorkload, (self.shape[1],)

    def __repr__(self) -> str:
        return f"Workload({self.shape[0]} queries x {self.shape[1]} cells, all ranges)"


class SineWorkload(RuleWorkload):
    """The orthonormal sines ``q_k(i) = √(2/(d+1)) sin(π k i / (d+1))``, k and i from 1 to d: (d, d), matrix on demand.

    They are the eigenvectors of the Gram matrix of all ranges, by falling eigenvalue: ``W'W`` is d + 1 times the
    inverse of the second difference, whose eigenvalues are ``4 sin²(π k / (2 (d + 1)))``.

    Examples
    --------
    >>> import dualmech as dm
    >>> import numpy as np
    >>> sines, gram = dm.workloads.sines(4).matrix, dm.workloads.all_range_gram(4)
    >>> np.diagonal(sines @ gram @ sines.T).round(4)
    array([13.0902,  3.618 ,  1.9098,  1.382 ])
    >>> round(abs(sines @ gram @ sines.T).sum() - np.trace(gram), 9)
    np.float64(0.0)
    """

    __slots__ = ()

    counted = "sines over"
    instead = "weighting them for all ranges needs no matrix"

    def __init__(self, cells: int) -> None:
        count = _cells(cells)
        self._begin(count, count)

    def apply(self, x: npt.ArrayLike) -> Array:
        """Return ``Q x`` (d,), by a fast sine transform."""
        return np.asarray(scipy.fft.dst(validate.vector(self.shape[1], "cell", x=x), type=1, norm="ortho"))

    def row_norms(self) -> Array:
        """Return the Euclidean norm of each sine (d,): 1."""
        return np.ones(self.shape[0])

    def column_squares(self) -> Array:
        """Return the squared Euclidean norm of each column (d,): 1, the matrix being orthogonal."""
        return np.ones(self.shape[1])

    @property
    def _group(self) -> str:
        return "sines"

    def _named(self, index: npt.NDArray[Any]) -> tuple[str, ...]:
        return tuple(f"sine {each + 1}" for each in index)

    def _rows(self, index: npt.NDArray[Any]) -> Array:
        turns, period = self.shape[0] + 1, np.arange(1, self.shape[0] + 1)
        # Angles are reduced in whole numbers: a sine of a large one would lose digits.
        angles = np.multiply.outer(np.asarray(index, dtype=np.int64) + 1, period) % (2 * turns)
        return np.sqrt(2 / turns) * np.sin(np.pi / turns * np.arange(2 * turns))[angles]

    def _structure(self) -> Any:
        return self.shape

    def __reduce__(self) -> tuple[Any, ...]:
        return SineWorkload, (self.shape[0],)

    def __repr__(self) -> str:
        return f"Workload({self.shape[0]} queries x {self.shape[1]} cells, sines)"


def _cells(cells: int) -> int:
    count = validate.size(cells=cells)
    if count > MAX_CELLS:
        raise InvalidInputError(f"cells must be at most {MAX_CELLS}, got {count}")
    return count
