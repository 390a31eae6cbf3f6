"""Gaussian mechanisms whose neighbours are persons with a part in several steps: what a phase costs, proven."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.display import decimal_above
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.causal import Recurrence
from dualmech.geometry.epochs import phase_costs
from dualmech.immutable import freeze
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.privacy import ParticipationCost
from dualmech.mechanisms.step_noise import NoiseByStep
from dualmech.mechanisms.stream import CausalMechanism
from dualmech.neighbours import Participation, Relation
from dualmech.validate import Array
from dualmech.verified import UPWARDS
from dualmech.workloads.base import Workload


class EpochsMechanism(NoiseByStep):
    """The mechanism ``x ↦ B x + N(0, Σ)`` for persons who take part in every step of a phase.

    `profile` has what each phase costs at most, (phases,): ``max ⟨C_p, R⟩`` over correlation matrices R for vectors,
    over signs for numbers, with ``C = B' Σ⁻¹ B``; it errs on the safe side. Where parts need only be so far apart, and
    of a causal strategy, the only entry is what any person costs at most.
    Raises `InvalidInputError` or `InputTypeError` for no mechanism of one record by a matrix or a causal strategy,
    neighbours that are no participation or do not fit its steps, a mechanism that releases something exactly, or on
    rows with a singular covariance.

    Parameters
    ----------
    steps : LinearGaussianMechanism or CausalMechanism
        The noise, stated for one record added or removed.
    neighbours : Participation or str
        Who takes part in which steps, such as ``participation:4:16``.

    Examples
    --------
    >>> import dualmech as dm
    >>> noise = dm.LinearGaussianMechanism(np.eye(4), np.eye(4))
    >>> dm.EpochsMechanism(noise, "participation:2:2").profile.round(6)
    array([2., 2.])
    """

    __slots__ = ("_profile", "neighbours", "steps")

    def __init__(self, steps: LinearGaussianMechanism | CausalMechanism, neighbours: Participation | str) -> None:
        if not isinstance(steps, LinearGaussianMechanism | CausalMechanism):
            raise InputTypeError(
                f"steps must be a LinearGaussianMechanism or a CausalMechanism, got {type(steps).__name__}"
            )
        rule = Relation.of(neighbours) if isinstance(neighbours, str) else neighbours
        self.neighbours = validate.instance(Participation, neighbours=rule)
        self.steps, self._profile = steps, freeze(self._costs(steps))

    def _costs(self, noise: LinearGaussianMechanism | CausalMechanism) -> Array:
        if isinstance(noise, CausalMechanism):
            rule = self.neighbours
            rule.phases(noise.steps)  # refused where they do not fit
            return np.array([noise.participation_cost(rule.times, rule.separation, rule.at_least).squared_cost])
        origin, factor = noise._origin or (noise, 1.0)
        if origin is not noise and isinstance(origin, LinearGaussianMechanism | CausalMechanism):
            return np.asarray(self._costs(origin) / factor * UPWARDS)
        if noise.neighbours is not None or noise.releases_exactly:
            raise InvalidInputError("steps must have the default neighbours and release nothing exactly")
        phases = self.neighbours.phases(noise.query_matrix.shape[1])
        # The rows as they are: independent ones that stand for them are rounded.
        costs = None if noise._singular else phase_costs(noise._covariance, noise.query_matrix, phases, self.neighbours)
        if costs is None or not np.all(np.isfinite(costs[1])):
            raise InvalidInputError("steps must have noise whose covariance is verified to be positive definite")
        # Another origin is a mechanism of running sums, of which `noise` is the matrix.
        return costs[1] if origin is noise else np.asarray(costs[1] / (1 - origin._matrix_error()) * UPWARDS)

    @property
    def profile(self) -> Array:
        return self._profile

    @property
    def query_matrix(self) -> Array:
        """B (k, n), the rows that get noise; refused where they are too many to write out."""
        return self.steps.matrix if isinstance(self.steps, CausalMechanism) else self.steps.query_matrix

    def covariance(self, workload: Workload | None = None) -> Array:
        """Return the covariance of the answers to a workload, as `LinearGaussianMechanism.covariance`."""
        return self.steps.covariance(workload)

    def variances(self, workload: Workload) -> Array:
        """Return the variance of each answer to a workload (m,), as `LinearGaussianMechanism.variances`."""
        return self.steps.variances(workload)

    def simulate(
        self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None, workload: Workload | None = None
    ) -> Array:
        """Draw noisy answers, for study, as `LinearGaussianMechanism.simulate`. NOT a private release."""
        return self.steps.simulate(x, rng=rng, workload=workload)  # type: ignore[arg-type]

    def recurrence(self) -> Recurrence:
        """Return how rows of noise follow from earlier ones, as for `steps`."""
        return self.steps.recurrence()

    def participation_cost(self, times: int, separation: int, at_least: bool = False) -> ParticipationCost:
        return self.steps.participation_cost(times, separation, at_least)

    def as_targets(self, workload: Workload) -> Array:
        targets: Array = self.steps.as_targets(workload)
        return targets

    def point_on(self, geometry: object) -> Any:
        """Return the noise on a geometry, as `steps` have it."""
        return self.steps.point_on(geometry)

    def scaled(self, factor: float) -> EpochsMechanism:
        """Return the mechanism with all variances times a factor > 0: its cost is divided by that."""
        return EpochsMechanism(self.steps.scaled(factor), self.neighbours)

    def same_as(self, other: object) -> bool:
        """Whether another mechanism has the same noise and the same persons."""
        return (
            isinstance(other, EpochsMechanism)
            and self.neighbours == other.neighbours
            and self.steps.same_as(other.steps)
        )

    def __eq__(self, other: object) -> bool:
        """Whether another mechanism is the same, as `same_as` says it."""
        return self.same_as(other) if isinstance(other, EpochsMechanism) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.steps, self.neighbours))

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name."""
        return {"steps": self.steps, "neighbours": str(self.neighbours)}

    def __repr__(self) -> str:
        causal = isinstance(self.steps, CausalMechanism)
        rows, steps = (self.steps.steps,) * 2 if causal else self.query_matrix.shape
        return f"EpochsMechanism({rows} queries x {steps} steps, {self.neighbours}, rho={decimal_above(self.rho)})"
