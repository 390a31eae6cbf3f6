"""From a problem and a class of strategies to the best mechanism within it, as much noise as the problem asks for."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import numpy as np

from dualmech.fast.engine.classes import Family, ObjectiveOfPower, RowsObjective, SumsObjective, descents
from dualmech.mechanisms.stream import CausalMechanism
from dualmech.neighbours import Participation
from dualmech.problems.fitness import PrivacyFirst
from dualmech.progress import NO_DEADLINE, Deadline
from dualmech.workloads.streams import StreamWorkload

SPARE = 1 + 8e-9
"""What a mechanism costs less than it may: more than a judge's rounding adds."""

Scaled: TypeAlias = tuple[float, CausalMechanism]


def best_mechanism(
    problem: Any, family: Family, rule: Participation | None, deadline: Deadline = NO_DEADLINE
) -> Scaled:
    """Return the objective of the best mechanism that descent finds within a class of strategies, and the mechanism."""
    strategies = descents(_aims(problem, family), family, problem.sums_variances, deadline)
    candidates = [_scaled(problem, CausalMechanism(strategy), rule) for strategy in strategies]
    return min(candidates, key=lambda candidate: candidate[0])


def _aims(problem: Any, family: Family) -> ObjectiveOfPower:
    workload = problem.geometry.workload
    squares = problem.row_weights / problem.row_weights.max()
    if isinstance(workload, StreamWorkload) and family.by_series:
        return partial(SumsObjective, squares, workload.decay)
    rows = workload.dense() * np.sqrt(squares)[:, None]
    return partial(RowsObjective, rows / np.abs(rows).max())


def _scaled(problem: Any, mechanism: CausalMechanism, rule: Participation | None) -> Scaled:
    """Return the objective of a strategy, and its mechanism with as much noise as the problem asks for."""
    several = None if rule is None else mechanism.participation_cost(rule.times, rule.separation, rule.at_least)
    cost = mechanism.squared_privacy_cost if several is None else several.squared_cost
    variances = mechanism.variances(problem.geometry.workload)
    if problem.sums_variances:
        return cost * float(problem.row_weights @ variances), mechanism.scaled(cost * SPARE)
    excess = float((variances / problem.targets).max())
    if isinstance(problem, PrivacyFirst):
        return cost * excess, mechanism.scaled(cost * SPARE / problem.cost)
    return cost * excess, mechanism.scaled(1 / (excess * SPARE))
