"""Workloads by a rule: any of their rows is made when it is asked for, and the whole matrix on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload


class RuleWorkload(Workload):
    """A workload whose rows follow from their numbers; subclasses have `_rows` and `_named`, and say what they are."""

    __slots__ = ("_written",)

    counted: ClassVar[str]
    """What the rows are over, such as ``sines over``, of a number of cells that is too large."""

    instead: ClassVar[str]
    """What needs no matrix."""

    _written: Array | None

    def _begin(self, queries: int, cells: int) -> None:
        """Set what every workload has; nothing is written out."""
        object.__setattr__(self, "domain", None)
        object.__setattr__(self, "cell_names", None)
        object.__setattr__(self, "shape", (queries, cells))
        object.__setattr__(self, "_written", None)

    @property
    def matrix(self) -> Array:
        """W (m, d), dense; refused where it is too large to write out."""
        if self._written is None:
            queries, cells = self.shape
            if queries * cells > MAX_DENSE_ENTRIES:
                raise InvalidInputError(
                    f"{self.counted} {cells} cells are too many to write out (limit {MAX_DENSE_ENTRIES} entries); "
                    f"{self.instead}"
                )
            object.__setattr__(self, "_written", validate.read_only(self._rows(np.arange(queries))))
        assert self._written is not None
        return self._written

    @property
    def names(self) -> tuple[str, ...]:
        """One name per query."""
        self._check_query_count()
        return self._named(np.arange(self.shape[0]))

    @property
    def groups(self) -> tuple[str, ...]:
        """One name for all."""
        self._check_query_count()
        return (self._group,) * self.shape[0]

    @property
    def is_sparse(self) -> bool:
        """Never: too many of the entries are not zero."""
        return False

    def select(self, queries: Sequence[int] | npt.NDArray[np.integer]) -> Workload:
        """Return the workload of the chosen queries, in the chosen order."""
        index = validate.indices(self.shape[0], queries=queries)
        if len(index) * self.shape[1] > MAX_DENSE_ENTRIES or not len(index):
            return super().select(queries)
        return Workload(self._rows(index), self._named(index), [self._group] * len(index))

    @property
    def _group(self) -> str:
        raise NotImplementedError

    def _named(self, index: npt.NDArray[Any]) -> tuple[str, ...]:
        raise NotImplementedError

    def _rows(self, index: npt.NDArray[Any]) -> Array:
        raise NotImplementedError
