"""What a squared privacy cost says, in every unit: shared by all Gaussian mechanisms, whatever their noise lies on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dualmech import accounting, validate
from dualmech.display import Displayed, decimal_above
from dualmech.errors import InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload

SHOWN_DELTA = 1e-9  # δ at which ε is shown

SPENT = 1e-9
"""A free budget of at most this, relative to the cost allowed, is none; a cost allowed may lie this far below."""


class ParticipationCost(NamedTuple):
    """What persons cost who take part in several steps, each part of any sign, or a vector of norm at most 1."""

    squared_cost: float  # that none exceeds
    exact: bool  # whether some person costs as much, up to a relative difference of 1e-8
    lower_bound: float  # what some person costs, at least 0


MET = 1e-8
"""Distance of two bounds of a cost, relative, at which they count as equal: more than rounding up and down leaves."""


def cost_between(upper: float, lower: float) -> ParticipationCost:
    """Return the cost of persons between two bounds."""
    return ParticipationCost(upper, lower >= upper * (1 - MET), lower)


class GaussianPrivacy(Displayed):
    """The privacy of a mechanism with Gaussian noise, all of it decided by its `profile`; the base of all of them."""

    __slots__ = ()

    if TYPE_CHECKING:  # what else a mechanism offers is up to what its noise lies on

        def __getattr__(self, name: str) -> Any: ...

    @property
    def squared_privacy_cost(self) -> float:
        """The largest entry of the profile, Δ²: squared distance between neighbours in units of the noise."""
        return float(self.profile.max())

    @property
    def profile(self) -> Array:
        """Squared privacy cost of each pair of neighbours, or of each kind of them."""
        raise NotImplementedError

    def free_budget(self, alpha: float | None = None) -> Array:
        """Return the remaining budget of each pair of neighbours (s,): ``α - profile``, none of it negative.

        Any further release of cost matrix G with ``u_i' G u_i ≤ α - profile_i`` for every pair of neighbours
        u_i leaves the squared privacy cost of both together at α or below: cost matrices of independent
        noise add up, and so do profiles (FFU, section 3.2.1). Pairs are in the order of `profile`.
        Raises `InvalidInputError` or `InputTypeError` for an α below the cost, a mechanism that releases
        something exactly, whose cost is infinite, or a profile that is too large to write out.

        With `alpha`, squared privacy cost allowed, at least the mechanism's own (up to 1e-9, relative); by default
        that.

        Examples
        --------
        >>> import dualmech as dm
        >>> dm.LinearGaussianMechanism([[1, 1, 0], [0, 1, 1]], [[1, 0], [0, 1]]).free_budget()
        array([1., 0., 1.])
        """
        cost = self.squared_privacy_cost
        if np.isinf(cost):
            raise InvalidInputError("a free budget needs a finite privacy cost, this mechanism releases exactly")
        allowed = cost if alpha is None else validate.positive_number(alpha=alpha)
        if allowed < cost * (1 - SPENT):
            raise InvalidInputError(
                f"alpha must be at least {decimal_above(cost)}, the squared cost spent, got {allowed:g}"
            )
        return np.maximum(allowed - self.profile, 0.0)

    def as_targets(self, workload: Workload) -> Any:
        """Return the variances that queries get, as `dualmech.FitnessForUse` takes targets.

        The workload may be of any structure, over the same cells: one number per query, or per table the largest where
        queries are too many, or by factor. Where no structure fits, the mechanism is written out on the cells.
        Raises `InvalidInputError` or `InputTypeError` for no workload, other cells, queries that are not answered, a
        mechanism that is too large to write out.

        Examples
        --------
        >>> import dualmech as dm
        >>> dm.strategies.sqrt_toeplitz(3).as_targets(dm.workloads.total(3)).round(6)
        array([1.390625])
        """
        checked = check_workload(workload)
        variances: Array = self._written().variances(checked)
        return variances

    def _written(self) -> Any:
        """Return the mechanism on the cells; refuse one that has none."""
        written = getattr(self, "dense", None)
        if written is None:
            raise InvalidInputError(f"a {type(self).__name__} has no cells that it could be written out on")
        return written()

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
        """Return the least ε at which the mechanism is (ε, δ)-differentially private; inf where Δ is."""
        if self.privacy_cost in (0.0, math.inf):
            validate.probability(delta=delta)
            return self.privacy_cost
        return accounting.epsilon(self.privacy_cost, delta)

    def participation_cost(self, times: int, separation: int, at_least: bool = False) -> ParticipationCost:
        """Return a squared privacy cost that no person exceeds who takes part up to `times`, `separation` steps apart.

        With the cost matrix C it is the largest ``Σ |C_st|`` over pairs of one person's steps: at least ``z' C z`` for
        every z with entries between -1 and 1 in these, and reached where no ``C_st`` is negative. See
        `dualmech.neighbours.participation`.

        With `at_least`, steps of one person may be farther apart. Where C is 0 at distances of `separation` and more,
        as of a strategy with no more bands, the cost is the largest sum of entries on the diagonal, by dynamic
        programming. Elsewhere each step of a person is charged with the most that it can have in common with the steps
        before: an upper bound, exact for Toeplitz strategies whose coefficients decrease from step to step and are not
        negative. `lower_bound` is the cost of one person who was found so.
        Raises `InvalidInputError` or `InputTypeError` for numbers that are no integers of at least 1, a mechanism
        whose matrix is too large to write out, or that releases something exactly, or with a singular covariance.

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
        most, apart = validate.size(times=times), validate.size(separation=separation)
        validate.boolean(at_least=at_least)
        written = getattr(self, "dense", None)
        if written is None:
            raise InvalidInputError(f"a {type(self).__name__} has no cells that could stand for steps")
        cost: ParticipationCost = written().participation_cost(most, apart, at_least)
        return cost

    def delta(self, epsilon: float) -> float:
        """Return the least δ at which the mechanism is (ε, δ)-differentially private; 1 where Δ is infinite."""
        if self.privacy_cost in (0.0, math.inf):
            validate.nonnegative_number(epsilon=epsilon)
            return float(self.privacy_cost > 0)
        return accounting.delta(self.privacy_cost, epsilon)
