"""The privacy-accuracy curve in numbers: what every privacy buys, as rows of a table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import accounting, fast, validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.product import ByFactor
from dualmech.problems.base import Problem
from dualmech.solution import Solution
from dualmech.workloads.base import Workload, check_workload

RHOS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Where the curve is told unless it is said where."""

LISTED = 20  # most tables that have a column of their own; of more, those of as many ways share one


def curve(
    answer: Any,
    workload: Workload | None = None,
    *,
    rhos: npt.ArrayLike | None = None,
    epsilons: npt.ArrayLike | None = None,
    delta: float = 1e-9,
    z: float = accounting.CENSUS_Z,
) -> list[dict[str, float]]:
    """Return the privacy-accuracy curve: for every privacy the margins of error that it buys, a row each.

    All variances times t cost ``1/t`` of the privacy, for every Gaussian mechanism, and what is optimal stays so, with
    the same gap. A row has ``rho``, ``epsilon`` at ``delta``, the factor t on the ``variances``, and the largest
    ``margin of`` the queries of each table or group; ``pandas.DataFrame(rows)`` is a frame of them.
    Raises `InvalidInputError` or `InputTypeError` for no answer or problem, both ρ and ε, a mechanism alone without a
    workload, a privacy that is not positive.

    Parameters
    ----------
    answer : Solution, mechanism or problem
        Whose curve; a problem is solved here, to a gap of 1e-6.
    workload : Workload, optional
        Whose queries; by default those of the problem.
    rhos, epsilons : array, optional
        Where: values of ρ (zCDP), or of ε at `delta`; by default ρ from 0.01 to 10.
    delta : float
        δ of every ε.
    z : float
        Margins of error in standard deviations, by default 1.645, of 90 % confidence.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import crosscheck
    >>> ages = dm.workloads.union({"age": 8}, {"sums": {"age": dm.workloads.prefix(8)}})
    >>> rows = crosscheck.curve(dm.FitnessForUse(ages), rhos=[0.1, 1.0])
    >>> [(row["rho"], round(row["epsilon"], 3), round(row["margin of sums"], 3)) for row in rows]
    [(0.1, 2.583, 5.556), (1.0, 9.093, 1.757)]
    """
    if rhos is not None and epsilons is not None:
        raise InvalidInputError("give either rhos or epsilons, not both")
    chance, width = validate.probability(delta=delta), validate.positive_number(z=z)
    if epsilons is not None:
        wanted = validate.positive(1, epsilons=epsilons).tolist()
        costs = [accounting.privacy_cost(each, chance) ** 2 for each in wanted]
    else:
        wanted = validate.positive(1, rhos=RHOS if rhos is None else rhos).tolist()
        costs = [accounting.squared_cost_from_rho(each) for each in wanted]
    given: Any = answer
    solved = fast.solve(given) if isinstance(answer, Problem) else answer
    mechanism = mechanism_of_answer(solved)
    largest = _largest(mechanism, asked_of(solved, workload))
    own, rows = positive_cost(mechanism), []
    for each, cost in zip(wanted, costs, strict=True):
        factor = own / cost
        private = {"rho": each, "epsilon": epsilon_at(cost, chance)}
        if epsilons is not None:
            private = {"rho": cost / 2, "epsilon": each}
        margins = {
            f"margin of {name}": width * math.sqrt(factor * variance) for name, variance in largest.items()
        }
        rows.append({**private, "delta": chance, "variances": factor, **margins})
    return rows


def epsilon_at(squared_cost: float, delta: float) -> float:
    """Return the least ε at δ of Gaussian noise of a squared privacy cost."""
    return accounting.epsilon(accounting.mu_from_squared_cost(squared_cost), delta)


def mechanism_of_answer(answer: Any) -> Any:
    """Return the mechanism of a solution, or the mechanism that is given."""
    held = getattr(answer, "answer", answer)  # a judgement's
    made = held.mechanism if isinstance(held, Solution) else held
    if not hasattr(made, "squared_privacy_cost"):
        raise InputTypeError(f"answer must be a Solution or a mechanism, got {type(answer).__name__}")
    return made


def positive_cost(mechanism: Any) -> float:
    """Return the squared privacy cost of a mechanism; refuse one that is zero, or infinite."""
    cost = float(mechanism.squared_privacy_cost)
    if not 0 < cost < math.inf:
        raise InvalidInputError(f"answer must have a positive, finite privacy cost, got {cost:g}")
    return cost


def asked_of(answer: Any, workload: Workload | None) -> Workload:
    """Return the workload that is given, or that of a solution's problem."""
    if workload is None:
        held = getattr(answer, "answer", answer)
        workload = getattr(getattr(held, "problem", None), "workload", None)
    if workload is None:
        raise InvalidInputError("workload must be given: a mechanism by itself says not what is asked")
    return check_workload(workload)


def _largest(mechanism: Any, workload: Workload) -> dict[str, float]:
    """Return the largest variance of the queries of each table, of each group where there are no tables."""
    variances = mechanism.as_targets(workload)
    if isinstance(variances, ByFactor):
        return {"all": math.prod(float(np.max(each)) for each in variances.numbers)}
    tables = workload.tabular()
    if tables is None:
        names = [*workload.groups]
    else:
        names = [*tables.table_names]
        if len(names) > LISTED:
            axes = [each.axes for each in tables.tables] if hasattr(tables, "tables") else tables.axes
            names = [f"{len(each)}-way" for each in axes]
        if len(variances) != len(names):
            names = [names[number] for number in workload.table_numbers()]
    found: dict[str, float] = {}
    for name, variance in zip(names, variances.tolist(), strict=True):
        found[name] = max(found.get(name, 0.0), variance)
    return found


__all__ = ["curve"]
