"""The best mechanism of a problem in a class of strategies."""

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

PRIVACY_MARGIN = 1 + 8e-9
"""Factor on the variances, for a privacy cost below the limit by more than the judge's rounding errors."""

Scaled: TypeAlias = tuple[float, CausalMechanism]


def best_mechanism(
    problem: Any, family: Family, rule: Participation | None, deadline: Deadline = NO_DEADLINE
) -> Scaled:
    """Return the objective of the best mechanism from descent in a class of strategies, and the mechanism."""
    strategies = descents(_objective_of_power(problem, family), family, problem.sums_variances, deadline)
    candidates = [_scaled_mechanism(problem, CausalMechanism(strategy), rule) for strategy in strategies]
    return min(candidates, key=lambda candidate: candidate[0])


def _objective_of_power(problem: Any, family: Family) -> ObjectiveOfPower:
    workload = problem.geometry.workload
    squares = problem.row_weights / problem.row_weights.max()
    if isinstance(workload, StreamWorkload) and family.by_series:
        return partial(SumsObjective, squares, workload.decay)
    rows = workload.dense() * np.sqrt(squares)[:, None]
    return partial(RowsObjective, rows / np.abs(rows).max())


def _scaled_mechanism(problem: Any, mechanism: CausalMechanism, rule: Participation | None) -> Scaled:
    shared = None if rule is None else mechanism.participation_cost(rule.times, rule.separation, rule.at_least)
    cost = mechanism.squared_privacy_cost if shared is None else shared.squared_cost
    variances = mechanism.variances(problem.geometry.workload)
    if problem.sums_variances:
        return cost * float(problem.row_weights @ variances), mechanism.scaled(cost * PRIVACY_MARGIN)
    excess = float((variances / problem.targets).max())
    if isinstance(problem, PrivacyFirst):
        return cost * excess, mechanism.scaled(cost * PRIVACY_MARGIN / problem.cost)
    return cost * excess, mechanism.scaled(1 / (excess * PRIVACY_MARGIN))
