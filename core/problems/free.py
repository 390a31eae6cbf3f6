"""Queries for free: what a privacy cost still allows after a mechanism has spent unevenly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.moves import changes_between
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.privacy import SPENT
from dualmech.problems.fitness import PrivacyFirst
from dualmech.validate import Matrix
from dualmech.workloads.base import Workload


def extra_for_free(
    mechanism: LinearGaussianMechanism,
    workload: Workload,
    targets: npt.ArrayLike = 1.0,
    alpha: float | None = None,
) -> PrivacyFirst:
    """State the problem of answering further queries as well as the free budget allows.

    Minimise the common factor κ of the variances on the targets, over the covariance S of noise on
    ``F x``, where the rows of F span the workload, subject to ``(F u_i)' S⁻¹ (F u_i) ≤ α - profile_i`` for
    every pair of neighbours: the problem of `PrivacyFirst` at cost 1 with neighbours
    ``u_i / √(α - profile_i)``. Either layer solves it. Its profile is in shares of the free budget; for
    the extra release in ordinary units, state ``LinearGaussianMechanism(basis, S, neighbours)`` anew.
    Raises `InvalidInputError` or `InputTypeError` for a query that differs between neighbours without any budget
    left (at most 1e-9 of α), named with them; queries that no neighbour changes, which need no noise; what
    `free_budget` refuses.
    Source: section 3.2.1 of Xiao et al., PVLDB 14(10), 2021.

    Parameters
    ----------
    mechanism : LinearGaussianMechanism
        What has been spent unevenly.
    workload : Workload
        The further queries, (m, d).
    targets : float or (m,) array
        Ratios that their variances must keep.
    alpha : float, optional
        As for `LinearGaussianMechanism.free_budget`.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> mechanism = dm.LinearGaussianMechanism([[1, 1, 0], [0, 1, 1]], [[1, 0], [0, 1]])
    >>> extra = fast.solve(dm.extra_for_free(mechanism, dm.Workload([[1, 0, 1]])))
    >>> round(extra.objective, 6)
    1.0
    """
    if alpha is not None:
        validate.moderate(alpha=validate.positive_number(alpha=alpha))
    left = validate.instance(LinearGaussianMechanism, mechanism=mechanism).free_budget(alpha)
    mechanism.check_cells(workload)
    allowed = float((mechanism.profile + left).max())
    cells = sp.eye_array(len(left), format="csc")
    moves = cells if mechanism.neighbours is None else mechanism.neighbours
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
