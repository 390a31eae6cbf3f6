"""Running sums, with or without decay: a step a query, however many, and the matrix on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload

MAX_STEPS = 2**22  # most sums of a stream


class StreamWorkload(Workload):
    """Running sums ``s_j = x_j + β s_{j-1}`` of all cells, (d, d); the matrix on demand.

    Attributes
    ----------
    decay : float
        β, in (0, 1]: 1 for plain sums, the prefixes.

    Examples
    --------
    >>> import dualmech as dm
    >>> asked = dm.workloads.decayed_sums(3, 0.5)
    >>> asked.matrix
    array([[1.  , 0.  , 0.  ],
           [0.5 , 1.  , 0.  ],
           [0.25, 0.5 , 1.  ]])
    >>> float(dm.workloads.prefix(1_000_000).apply(np.ones(1_000_000))[-1])
    1000000.0
    """

    __slots__ = ("_written", "decay")

    decay: float
    _written: Array | None

    def __init__(self, steps: int, decay: float = 1.0) -> None:
        count, factor = validate.size(steps=steps), validate.positive_number(decay=decay)
        if count > MAX_STEPS:
            raise InvalidInputError(f"steps must be at most {MAX_STEPS}, got {count}")
        if factor > 1:
            raise InvalidInputError(f"decay must be at most 1, got {factor:g}")
        object.__setattr__(self, "decay", factor)
        object.__setattr__(self, "domain", None)
        object.__setattr__(self, "cell_names", None)
        object.__setattr__(self, "shape", (count, count))
        object.__setattr__(self, "_written", None)

    @property
    def matrix(self) -> Array:
        """W (d, d), dense; refused where it is too large to write out."""
        if self._written is None:
            count = self.shape[0]
            if count**2 > MAX_DENSE_ENTRIES:
                raise InvalidInputError(
                    f"running sums of {count} cells are too many to write out (limit {MAX_DENSE_ENTRIES} entries); "
                    "geometry='stream' needs no matrix"
                )
            object.__setattr__(self, "_written", validate.read_only(self._rows(np.arange(count))))
        assert self._written is not None
        return self._written

    def apply(self, x: npt.ArrayLike) -> Array:
        """Return the sums ``W x`` (d,) of a data vector x (d,), without the matrix."""
        return running_sums(validate.vector(self.shape[1], "cell", x=x), self.decay)

    @property
    def names(self) -> tuple[str, ...]:
        """One name per sum, such as ``cells 0..5``."""
        self._check_query_count()
        return ("cell 0", *(f"cells 0..{last}" for last in range(1, self.shape[0])))

    @property
    def groups(self) -> tuple[str, ...]:
        """One name for all: ``prefixes``, or ``decayed sums``."""
        self._check_query_count()
        return ("prefixes" if self.decay == 1 else "decayed sums",) * self.shape[0]

    @property
    def is_sparse(self) -> bool:
        """Never: half of the entries are not zero."""
        return False

    def select(self, queries: Sequence[int] | npt.NDArray[np.integer]) -> Workload:
        """Return the workload of the chosen sums, in the chosen order."""
        index = validate.indices(self.shape[0], queries=queries)
        if len(index) * self.shape[1] > MAX_DENSE_ENTRIES or not len(index):
            return super().select(queries)
        names = [f"cells 0..{last}" if last else "cell 0" for last in index]
        return Workload(self._rows(index), names, [self.groups[0]] * len(index))

    def row_norms(self) -> Array:
        """Return the Euclidean norm of each sum (d,)."""
        powers = self.decay ** (2 * np.arange(self.shape[0]))
        return np.asarray(np.sqrt(powers.cumsum()))

    def column_squares(self) -> Array:
        """Return the squared Euclidean norm of each column (d,): those of the sums, from the last to the first."""
        return np.asarray(self.row_norms()[::-1] ** 2)

    def _rows(self, index: npt.NDArray[Any]) -> Array:
        since = index[:, None] - np.arange(self.shape[1])
        return np.where(since >= 0, self.decay ** np.maximum(since, 0), 0.0)

    def _structure(self) -> Any:
        return (self.shape[0], self.decay)

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamWorkload, (self.shape[0], self.decay)

    def __repr__(self) -> str:
        kind = "running sums" if self.decay == 1 else "decayed sums"
        return f"Workload({self.shape[0]} queries x {self.shape[1]} cells, {kind})"


def running_sums(x: Array, decay: float | Array) -> Array:
    """Return ``s_j = x_j + decay · s_{j-1}`` (d,), the decay one number or one per step (d - 1,)."""
    bands = np.ones((2, len(x)))
    bands[1, :-1] = -np.asarray(decay)
    return np.asarray(scipy.linalg.solve_banded((1, 0), bands, x, check_finite=False))
