"""Hard limits beside a budget: which targets are limits, and the proven factor on all others."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dualmech import validate
from dualmech.certificate import Certificate
from dualmech.errors import InvalidInputError
from dualmech.geometry.weights import FitnessDual
from dualmech.validate import Array

if TYPE_CHECKING:
    from dualmech.problems.base import AnyProblem


@dataclass(frozen=True, slots=True, eq=False)
class HardLimits:
    """Limits that an answer to `FitnessForUse` keeps, and the factor on all other targets.

    Attributes
    ----------
    names : tuple of str
        The names of the tables or queries with a limit.
    held : (n,) array of 0 and 1
        Which of the problem's targets are limits.
    cost : float
        Squared privacy cost that may be spent.
    low, high : float
        The problem's other targets are `high` times the targets asked for, and no factor below `low` can be met.
    dual : FitnessDual
        Weights that prove `low`.
    """

    names: tuple[str, ...]
    held: Any
    cost: float
    low: float
    high: float
    dual: FitnessDual

    def __post_init__(self) -> None:
        for name in ("cost", "low", "high"):
            object.__setattr__(self, name, validate.positive_number(**{name: getattr(self, name)}))
        held = np.array(self.held, dtype=np.int64)
        if held.ndim != 1 or not np.all((held == 0) | (held == 1)):
            raise InvalidInputError("held must be a list of 0 and 1, one per target")
        object.__setattr__(self, "held", held)
        object.__setattr__(self, "names", tuple(map(str, self.names)))

    def numbers(self, problem: AnyProblem, factor: float) -> Array:
        """Return the problem's targets, with those that are not limits at `factor` times the targets asked for."""
        if np.shape(problem.targets) != self.held.shape:
            raise InvalidInputError(f"held must have an entry per target, {np.shape(problem.targets)}")
        return np.where(self.held == 1, problem.targets, factor / self.high * np.asarray(problem.targets))

    def below(self, problem: AnyProblem) -> AnyProblem:
        """Return the problem at the factor `low`, where weights prove that the answer needs the whole budget."""
        posed = copy.copy(problem)
        object.__setattr__(posed, "targets", validate.positive(1, targets=self.numbers(problem, self.low)))
        return posed

    def certificate(self, problem: AnyProblem, judged: Certificate) -> Certificate:
        """Return the factor's certificate, computed anew; `judged` is the problem's own, of the answer at `high`."""
        bound, rounding = problem.geometry.bound(*problem.geometry.weights(self.dual), self.numbers(problem, self.low))
        proven = bound * (1 - rounding) >= self.cost
        dear = max(judged.interval[1] / self.cost - 1, judged.violation, 0.0)
        return Certificate.of(self.high, self.low if proven else 0.0, dear, 0.0)
