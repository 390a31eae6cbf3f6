"""What is asked in numbers alone, whatever the geometry that it stands on: the form in which proofs state problems."""

from __future__ import annotations

from typing import Any

import numpy as np

from dualmech import linalg
from dualmech.errors import InvalidInputError
from dualmech.neighbours import Relation
from dualmech.validate import Array
from dualmech.workloads.base import Workload

VALUES = "values"
"""What a table is said to ask of an attribute where it asks each value alone."""


class Sets:
    """Sets of queries by name, each once: two that have the same numbers are one."""

    def __init__(self) -> None:
        self.matrices: dict[str, Array] = {}
        self._names: dict[object, str] = {}

    def name(self, workload: Workload | None) -> str:
        if workload is None:
            return VALUES
        if id(workload) not in self._names:
            matrix = workload.dense() + 0.0
            key = matrix.shape, matrix.tobytes()
            if matrix.shape[0] == matrix.shape[1] and linalg.is_identity(matrix):
                self._names[key] = VALUES
            elif key not in self._names:
                self._names[key] = f"set {len(self.matrices) + 1}"
                self.matrices[self._names[key]] = matrix
            self._names[id(workload)] = self._names[key]
        return self._names[id(workload)]


def tables_in_numbers(workload: Any, kind: str, numbers: Array, relation: Relation | None) -> dict[str, object]:
    """Return what tables ask: sizes of attributes, sets of queries by name, what each table asks of which attribute.

    Raises `InvalidInputError` for neighbours that differ in several cells.
    """
    if relation is not None and relation.several_cells:
        raise InvalidInputError(
            f"a proof in whole numbers of tables is of records added or removed, not of replaced ones or a person's "
            f"in several groups ({relation}); state the problem with geometry='dense' where it is small"
        )
    sets = Sets()
    tables = [{str(axis): sets.name(workload) for axis, workload in table.queries} for table in workload.product_tables]
    return {
        "kind": f"table {kind}",
        "sizes": [*workload.domain.shape],
        "queries": sets.matrices,
        "tables": tables,
        "records": 1 if relation is None else relation.members,
        "numbers": np.asarray(numbers),
    }
