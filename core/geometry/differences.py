"""Neighbours that only a matrix of differences holds: which problems take them, and what bounds them elsewhere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dualmech.errors import InvalidInputError
from dualmech.geometry.moves import as_neighbour_matrix
from dualmech.neighbours import Relation
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload

LARGEST_DENSE = 2**12
"""Largest rank up to which ``auto`` takes a matrix of noise, and most cells where blocks cannot carry a relation."""


def on_matrix(workload: Workload, kind: str, differences: Any) -> str:
    """Return ``dense``, which alone takes a basis, or differences of neighbours in a matrix.

    Raises `InvalidInputError` for another geometry and for differences that are too many, with a bound that holds.
    """
    reach, pairs = 1.0, workload.shape[1]
    if differences is not None:
        checked = as_neighbour_matrix(differences, workload.shape[1])
        if checked is not None:
            reach, pairs = float(np.max(abs(checked).sum(axis=0))), checked.shape[1]
    if kind not in ("auto", "dense"):
        raise InvalidInputError(
            f"a basis and a matrix of neighbours are for geometry 'dense', not for {kind!r}"
            f"{'' if differences is None else bound_words(reach, kind)}"
        )
    if differences is not None:
        _refuse_large(workload, f"{pairs} differences", pairs, reach, kind)
    return "dense"


def check_relation(relation: Relation, workload: Workload, kind: str) -> None:
    """Refuse neighbours by a rule where they have to be written out and are too many.

    Raises `InvalidInputError`, with a bound that holds there.
    """
    _refuse_large(workload, str(relation), relation.pairs(workload), relation.reach, kind)


def _refuse_large(workload: Workload, named: str, pairs: int, reach: float, kind: str) -> None:
    rank = min(workload.shape)
    if rank * pairs <= MAX_DENSE_ENTRIES and (kind == "dense" or rank <= LARGEST_DENSE):
        return
    structured = "blocks" if workload.tabular() is not None else "stream"
    raise InvalidInputError(
        f"neighbours ({named}) of a workload of rank up to {rank} are too many: they need a matrix of {rank} x {pairs} "
        f"here (limits: rank {LARGEST_DENSE}, {MAX_DENSE_ENTRIES} entries){bound_words(reach, structured)}"
    )


def bound_words(reach: float, kind: str) -> str:
    """Say what bounds differences whose entries add up to `reach`: as many records in one cell cost the most.

    For z with ``Σ|z_i| ≤ N``, ``z'Cz ≤ N² max_i C_ii``, since z lies in the hull of ``± N e_i``.
    """
    most = math.ceil(reach)
    if kind == "blocks":
        return f"; neighbours='add-remove:{most}' bounds them and keeps the structure"
    return f"; solve for one record added or removed: {most**2} times its squared cost bounds them"
