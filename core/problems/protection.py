"""Neighbours that a workload takes, in place of those that were asked for: they protect as many or more."""

from __future__ import annotations

import contextlib
from typing import Any

from dualmech.errors import InvalidInputError
from dualmech.neighbours import Contributions
from dualmech.problems.fitness import FitnessForUse
from dualmech.workloads.base import Workload


def reachable(workload: Workload, neighbours: object) -> Any:
    """Return neighbours that a workload takes and that protect all who were asked for, these themselves if it can be.

    Where contributions of k records to each of l values are not taken, ``K ≥ k l / m`` records to each of m ≤ l values
    protect as many, and cost more (Theorem 3a of ``docs/theorems.md``).

    Examples
    --------
    >>> import dualmech as dm
    >>> asked = dm.workloads.marginals({"month": 12, "sex": 2, "age": 74}, ways=(1, 2))
    >>> str(reachable(asked, dm.neighbours.Relation.of("contributions:month:2:3")))
    'contributions:month:3:2'
    """
    if (
        not isinstance(neighbours, Contributions)
        or workload.domain is None
        or neighbours.attribute not in workload.domain.names
    ):
        return neighbours
    (axis,) = workload.domain.axes([neighbours.attribute])
    groups = min(neighbours.groups, workload.domain.shape[axis])
    for m in range(groups, 0, -1):  # first as asked, in no more values than there are
        candidate = Contributions(-(-neighbours.members * groups // m), neighbours.attribute, m)
        with contextlib.suppress(InvalidInputError):
            FitnessForUse(workload, 1.0, neighbours=candidate)
            return candidate
    return neighbours
