"""What a squared privacy cost says, in every unit: shared by all Gaussian mechanisms, whatever their noise lies on."""

from __future__ import annotations

import math

from dualmech import accounting, validate
from dualmech.display import Displayed

SHOWN_DELTA = 1e-9  # δ at which ε is shown


class GaussianPrivacy(Displayed):
    """The privacy of a mechanism with Gaussian noise, all of it decided by its `squared_privacy_cost`."""

    __slots__ = ()

    @property
    def squared_privacy_cost(self) -> float:
        """Δ², the largest squared distance between neighbours in units of the noise."""
        raise NotImplementedError

    @property
    def privacy_cost(self) -> float:
        """Δ, the largest distance between neighbours in units of the noise; equal to the μ of Gaussian DP."""
        return math.sqrt(self.squared_privacy_cost)

    @property
    def rho(self) -> float:
        """The ρ of zero-concentrated differential privacy, ``Δ²/2``."""
        return self.squared_privacy_cost / 2

    def _facts(self) -> dict[str, object]:
        return {
            "rho (zCDP)": self.rho,
            "mu (Gaussian DP)": self.privacy_cost,
            f"epsilon at delta = {SHOWN_DELTA:g}": self.epsilon(SHOWN_DELTA),
        }

    def epsilon(self, delta: float) -> float:
        """Return the least ε at which the mechanism is (ε, δ)-differentially private; inf where Δ is."""
        if self.privacy_cost in (0.0, math.inf):
            validate.probability(delta=delta)
            return self.privacy_cost
        return accounting.epsilon(self.privacy_cost, delta)

    def delta(self, epsilon: float) -> float:
        """Return the least δ at which the mechanism is (ε, δ)-differentially private; 1 where Δ is infinite."""
        if self.privacy_cost in (0.0, math.inf):
            validate.nonnegative_number(epsilon=epsilon)
            return float(self.privacy_cost > 0)
        return accounting.delta(self.privacy_cost, epsilon)
