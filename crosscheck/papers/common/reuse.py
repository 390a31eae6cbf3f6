"""Three ways to meet a new wish when something has been released already, at what they cost together with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

import dualmech as dm
from dualmech import fast
from dualmech.errors import InvalidInputError
from dualmech.workloads.base import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One way to meet a wish."""

    name: str  # ``naive``, ``residual`` or ``joint``
    further: dm.LinearGaussianMechanism  # What it runs now, on top of the release
    total: float  # Squared privacy cost of the release and of that together
    bound: float  # What no way can go below, proven

    @property
    def excess(self) -> float:
        """How far above the proven bound the total is, relative."""
        return self.total / self.bound - 1


def compare_reuse(
    workload: Workload, targets: npt.ArrayLike, released: dm.LinearGaussianMechanism, tol: float = 1e-6
) -> tuple[Route, Route, Route]:
    """Meet a wish in three ways, each accurate enough, and say what each costs in total.

    - ``naive`` runs the wish's own optimal mechanism as if nothing had been released;
    - ``residual`` takes what that mechanism has in common with the release from there, and runs the residual alone
      (introduction of CMN);
    - ``joint`` runs what the best total mechanism that contains the release still lacks (`ReuseFitness`).

    Raises `InvalidInputError` or `InputTypeError` for what `ReuseFitness` and `CommonMechanism` refuse.

    - `workload`, `targets`, `released`: as for `ReuseFitness`; nothing may be released exactly;
    - `tol`: gap to which all optima are proven.

    The optimum of the wish alone may be reached by several mechanisms; the first two ways are those of the one that the
    fast layer returns.
    """
    problem = dm.ReuseFitness(workload, targets, released)
    answer = fast.solve(problem, tol=tol)
    wish_alone = dm.FitnessForUse(workload, targets, neighbours=problem.neighbours, geometry="dense")
    wish: Any = fast.solve(wish_alone, tol=tol).mechanism
    if wish.releases_exactly or problem.released.releases_exactly:
        raise InvalidInputError(
            "neighbours leave some queries unchanged, which are released exactly: the residual's way has no finite "
            "cost matrix to compare; ReuseFitness solves the problem all the same"
        )
    common = fast.solve(dm.CommonMechanism([released, wish]), tol=tol).mechanism
    ways: dict[str, dm.LinearGaussianMechanism] = {
        "naive": wish,
        "residual": dm.residual(wish, common),
        "joint": problem.new_mechanism(answer.primal),
    }
    naive, residual, joint = (
        Route(name, further, float((released.profile + further.profile).max()), answer.lower_bound)
        for name, further in ways.items()
    )
    return naive, residual, joint
