"""The base class of all Gaussian mechanisms: a squared privacy cost in all units of privacy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dualmech import accounting, validate
from dualmech.display import Displayed, decimal_above
from dualmech.errors import InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload

SHOWN_DELTA = 1e-9  # δ of the printed ε

SPENT = 1e-9
"""Relative to the allowed cost: a free budget up to this counts as 0, and an allowed cost may be lower by this."""


class ParticipationCost(NamedTuple):
    """The cost of a person who participates in several steps with vectors of norm at most 1 (numbers of any sign)."""

    squared_cost: float  # upper bound for all persons
    exact: bool  # whether the bounds agree up to a relative difference of 1e-8
    lower_bound: float  # lower bound on the cost of one person, at least 0


MET = 1e-8
"""Maximum relative distance of two bounds on a cost that count as equal, above their rounding errors."""


def cost_between(upper: float, lower: float) -> ParticipationCost:
    """Return the cost of a person from an upper and a lower bound."""
    return ParticipationCost(upper, lower >= upper * (1 - MET), lower)


class GaussianPrivacy(Displayed):
    """The privacy of a mechanism with Gaussian noise, as a function of its `profile`."""

    __slots__ = ()

    if TYPE_CHECKING:  # subclasses have further methods

        def __getattr__(self, name: str) -> Any: ...

    @property
    def squared_privacy_cost(self) -> float:
        """The largest entry of the profile, Δ²: the squared distance between neighbours in units of the noise."""
        return float(self.profile.max())

    @property
    def profile(self) -> Array:
        """Squared privacy cost of each pair, or equivalence class of pairs, of neighbours."""
        raise NotImplementedError

    def free_budget(self, alpha: float | None = None) -> Array:
        """Return the remaining budget of each pair of neighbours (s,): ``α - profile``, at least 0.

        Any further release of cost matrix G with ``u_i' G u_i ≤ α - profile_i`` for every pair of neighbours
        u_i leaves the squared privacy cost of both together at α or below: cost matrices of independent
        noise add up, and so do profiles (FFU, section 3.2.1). Pairs are in the order of `profile`.
        Raises `InvalidInputError` or `InputTypeError` for an α below the cost, an infinite cost, or a profile that is
        too large for an array.

        - `alpha`: allowed squared privacy cost, at least the mechanism's (up to a relative 1e-9), which is the default.

        Examples
        --------
        >>> import dualmech as dm
        >>> dm.LinearGaussianMechanism([[1, 1, 0], [0, 1, 1]], [[1, 0], [0, 1]]).free_budget()
        array([1., 0., 1.])
        """
        cost = self.squared_privacy_cost
        if np.isinf(cost):
            raise InvalidInputError("a free budget needs a finite privacy cost, this mechanism releases exactly")
        budget = cost if alpha is None else validate.positive_number(alpha=alpha)
        if budget < cost * (1 - SPENT):
            raise InvalidInputError(
                f"alpha must be at least {decimal_above(cost)}, the squared cost spent, got {budget:g}"
            )
        return np.maximum(budget - self.profile, 0.0)

    def as_targets(self, workload: Workload) -> Any:
        """Return the variances of queries in the form of targets of `dualmech.FitnessForUse`.

        The workload may have any structure over the same cells: one number per query, the largest per table if there
        are too many queries, or by factor. If no structure fits, the mechanism becomes a matrix over the cells.
        Raises `InvalidInputError` or `InputTypeError` for another object than a workload, other cells, queries that the
        mechanism does not answer, and a mechanism that is too large for a matrix.

        Examples
        --------
        >>> import dualmech as dm
        >>> dm.strategies.sqrt_toeplitz(3).as_targets(dm.workloads.total(3)).round(6)
        array([1.390625])
        """
        checked = check_workload(workload)
        variances: Array = self._on_cells().variances(checked)
        return variances

    def _on_cells(self) -> Any:
        """Return the mechanism as a matrix over the cells; refuse one without cells."""
        if not hasattr(self, "dense"):
            raise InvalidInputError(f"a {type(self).__name__} has no cells, so no steps and no matrix over cells")
        return self.dense()

    @property
    def privacy_cost(self) -> float:
        """Δ, the largest distance between neighbours in units of the noise; equal to the μ of Gaussian DP."""
        cost = self.squared_privacy_cost
        return cost if cost in (0.0, math.inf) else accounting.mu_from_squared_cost(cost)

    @property
    def rho(self) -> float:
        """The ρ of zero-concentrated differential privacy, ``Δ²/2``."""
        return self.squared_privacy_cost / 2

    def _facts(self) -> dict[str, object]:
        return {
            "rho (zCDP)": decimal_above(self.rho),
            "mu (Gaussian DP)": decimal_above(self.privacy_cost),
            f"epsilon at delta = {SHOWN_DELTA:g}": decimal_above(self.epsilon(SHOWN_DELTA)),
        }

    def epsilon(self, delta: float) -> float:
        """Return the least ε for which the mechanism is (ε, δ)-differentially private; inf if Δ is infinite."""
        if self.privacy_cost in (0.0, math.inf):
            validate.probability(delta=delta)
            return self.privacy_cost
        return accounting.epsilon(self.privacy_cost, delta)

    def participation_cost(self, times: int, separation: int, at_least: bool = False) -> ParticipationCost:
        """Return bounds on the squared privacy cost of up to `times` participations, `separation` steps apart.

        With the cost matrix C the upper bound is the largest ``Σ |C_st|`` over pairs of a person's steps: at least
        ``z' C z`` for every z with entries between -1 and 1 in these steps, and equal if no ``C_st`` is negative. See
        `dualmech.neighbours.participation`.

        With `at_least`, `separation` is a minimum. If C is 0 at distances of at least `separation`, as for strategies
        with few bands, the cost is the largest sum of diagonal entries, by dynamic programming. Otherwise each step is
        charged with its largest possible products with earlier steps: an upper bound, exact for Toeplitz strategies
        with non-negative, decreasing coefficients. `lower_bound` is then the cost of one person.
        Raises `InvalidInputError` or `InputTypeError` for numbers that are not integers of at least 1, a mechanism that
        is too large for a matrix, exact releases, and a singular covariance.

        Examples
        --------
        >>> import dualmech as dm
        >>> root = dm.strategies.sqrt_toeplitz(4)
        >>> found = root.participation_cost(times=2, separation=2)
        >>> round(found.squared_cost, 6), found.exact
        (3.800781, True)
        >>> bands = dm.strategies.banded([[2, 1, 1, 2], [1, 1, 1, 0]])
        >>> [round(bands.participation_cost(2, 2, at_least).squared_cost, 6) for at_least in (False, True)]
        [7.0, 9.0]
        """
        max_times, distance = validate.size(times=times), validate.size(separation=separation)
        validate.boolean(at_least=at_least)
        cost: ParticipationCost = self._on_cells().participation_cost(max_times, distance, at_least)
        return cost

    def delta(self, epsilon: float) -> float:
        """Return the least δ for which the mechanism is (ε, δ)-differentially private; 1 if Δ is infinite."""
        if self.privacy_cost in (0.0, math.inf):
            validate.nonnegative_number(epsilon=epsilon)
            return float(self.privacy_cost > 0)
        return accounting.delta(self.privacy_cost, epsilon)
