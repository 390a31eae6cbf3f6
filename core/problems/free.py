"""Queries for free: what a privacy cost still allows after a mechanism has spent unevenly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.dense import changes_between
from dualmech.problems.fitness import PrivacyFirst
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload

SPENT = 1e-9
"""A free budget of at most this, relative to the cost allowed, is none; a cost allowed may lie this far below."""


def budget(profile: Array, alpha: float | None) -> Array:
    """Return ``α - profile`` (s,), nowhere negative; an α below the largest entry is refused."""
    cost = float(profile.max())
    if np.isinf(cost):
        raise InvalidInputError("a free budget needs a finite privacy cost, this mechanism releases exactly")
    allowed = cost if alpha is None else validate.positive_number(alpha=alpha)
    if allowed < cost * (1 - SPENT):
        raise InvalidInputError(f"alpha must be at least {cost:g}, the squared cost spent, got {allowed:g}")
    return np.maximum(allowed - profile, 0.0)


def further(
    workload: Workload, targets: npt.ArrayLike, left: Array, allowed: float, neighbours: Matrix | None
) -> PrivacyFirst:
    """State the problem of answering a workload at a cost of at most `left` on each pair of neighbours (s,)."""
    moves = sp.eye_array(len(left), format="csc") if neighbours is None else neighbours
    open_pairs = left > SPENT * allowed
    _refuse_moved(workload, moves, np.flatnonzero(~open_pairs))
    if not np.any(open_pairs):
        raise InvalidInputError(
            "workload must change between some neighbours; none does, so every answer can be released exactly"
        )
    scaled = moves[:, open_pairs] @ sp.diags_array(1 / np.sqrt(left[open_pairs]))
    return PrivacyFirst(workload, targets, cost=1.0, neighbours=scaled)


def _refuse_moved(workload: Workload, moves: Matrix, spent: npt.NDArray[np.intp]) -> None:
    """Refuse a query that differs between neighbours on which nothing is left to spend."""
    for start, changes, rounding in changes_between(workload.matrix, moves[:, spent]):
        moved = np.argwhere(changes > rounding)
        if len(moved):
            raise InvalidInputError(
                f"workload: query {workload.names[moved[0][0]]!r} changes between neighbours "
                f"{spent[start + moved[0][1]]}, whose free budget is spent"
            )
