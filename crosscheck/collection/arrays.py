"""What a problem asks as plain arrays, named as a proof file names its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from dualmech.errors import InvalidInputError
from dualmech.geometry.statements import VALUES
from dualmech.validate import Array

UNASKED = (
    -1
)  # entry of a table for an attribute that it does not ask about; 0 for its values, k for queries_k


def of_problem(problem: Any) -> dict[str, Array]:
    """Return the arrays that state a problem, and its ``basis`` where noise on one is asked for.

    What a proof file calls ``numbers`` is here ``targets`` or ``weights``, as its kind says. Of tables ``tables``
    (t, r) says of every attribute -1 where it is not asked about, 0 where its values are, k where ``queries_k`` are.
    The parts of factors and mechanisms are counted from 1: ``factor_1_workload``, ``covariance_1``.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck.collection import arrays
    >>> found = arrays.of_problem(dm.FitnessForUse(dm.workloads.marginals([3, 2], ways=(1, 2)), 1.0))
    >>> [*found], found["tables"].tolist()
    (['sizes', 'tables', 'records', 'targets', 'allowed'], [[0, -1], [-1, 0], [0, 0]])
    """
    found = dict(_flat(problem.in_numbers()))
    basis = basis_of(problem)
    return found if basis is None else found | {"basis": basis}


def basis_of(problem: Any) -> Array | None:
    """Return B (k, d), on whose answers the noise of a problem is; None where it has no such basis."""
    with suppress(InvalidInputError):
        basis = getattr(problem, "basis", None)
        return None if basis is None else np.asarray(basis)
    return None


def _flat(stated: dict[str, Any], before: str = "") -> Iterator[tuple[str, Array]]:
    kind = str(stated["kind"]).split()[-1]
    for name, value in stated.items():
        if name == "kind" or value is None:
            continue
        if name == "queries":
            for number, matrix in enumerate(value.values(), start=1):
                yield f"{before}queries_{number}", np.asarray(matrix)
        elif name == "tables":
            yield f"{before}tables", _tables(stated)
        elif name == "factors":
            for number, factor in enumerate(value, start=1):
                yield from _flat(factor, f"{before}factor_{number}_")
        elif name == "mechanisms":
            for number, mechanism in enumerate(value, start=1):
                yield f"{before}covariance_{number}", np.asarray(mechanism["covariance"])
        else:
            yield before + (kind if name == "numbers" else name), np.asarray(value)


def _tables(stated: dict[str, Any]) -> Array:
    """Return what each table (a row) asks of each attribute (a column)."""
    names = [VALUES, *stated["queries"]]
    found = np.full((len(stated["tables"]), len(stated["sizes"])), UNASKED, dtype=np.int16)
    for row, table in zip(found, stated["tables"], strict=True):
        for attribute, asked in table.items():
            row[int(attribute)] = names.index(asked)
    return np.asarray(found)
