"""Running sums, with or without decay: a step a query, however many, and the matrix on demand."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.rules import RuleWorkload

MAX_STEPS = 2**22  # most sums of a stream


class StreamWorkload(RuleWorkload):
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

    __slots__ = ("decay",)

    counted = "running sums of"
    instead = "geometry='stream' needs no matrix"

    decay: float

    def __init__(self, steps: int, decay: float = 1.0) -> None:
        count, factor = validate.size(steps=steps), validate.positive_number(decay=decay)
        if count > MAX_STEPS:
            raise InvalidInputError(f"steps must be at most {MAX_STEPS}, got {count}")
        if factor > 1:
            raise InvalidInputError(f"decay must be at most 1, got {factor:g}")
        object.__setattr__(self, "decay", factor)
        self._begin(count, count)

    def apply(self, x: npt.ArrayLike) -> Array:
        """Return the sums ``W x`` (d,) of a data vector x (d,), without the matrix."""
        return running_sums(validate.vector(self.shape[1], "cell", x=x), self.decay)

    def row_norms(self) -> Array:
        """Return the Euclidean norm of each sum (d,)."""
        powers = self.decay ** (2 * np.arange(self.shape[0]))
        return np.asarray(np.sqrt(powers.cumsum()))

    def column_squares(self) -> Array:
        """Return the squared Euclidean norm of each column (d,): those of the sums, from the last to the first."""
        return np.asarray(self.row_norms()[::-1] ** 2)

    @property
    def _group(self) -> str:
        return "prefixes" if self.decay == 1 else "decayed sums"

    def _named(self, index: npt.NDArray[Any]) -> tuple[str, ...]:
        return tuple(f"cells 0..{last}" if last else "cell 0" for last in index)

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
