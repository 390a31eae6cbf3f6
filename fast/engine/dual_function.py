"""What the fixed point and Newton's method need of a dual function, however it is evaluated."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dualmech.validate import Array


class Evaluated(Protocol):
    """A dual function and its primal point at given weights (`dualmech.fast.fidelity.Spectrum` has the formulas)."""

    @property
    def weights(self) -> Array:
        """On neighbours, then on queries."""

    @property
    def values(self) -> Array:
        """Singular values, ascending."""

    @property
    def mean(self) -> Array:
        """The n that belong to them at the smoothing."""

    @property
    def neighbours(self) -> int:
        """Number of weights on neighbours."""

    @property
    def decompositions(self) -> int:
        """How many the evaluation took."""

    @property
    def offsets(self) -> Array | None:
        """Costs that come on top."""

    @property
    def gains(self) -> Array:
        """Costs of the neighbours, then variances of the queries, at the primal point."""

    @property
    def linear(self) -> Array:
        """Coefficients of what is linear in the weights beside the smoothed function."""

    @property
    def fidelity(self) -> float:
        """The dual function."""

    @property
    def lower_bound(self) -> float:
        """What the weights prove."""

    @property
    def objective(self) -> float:
        """What the primal point costs, scaled to be feasible."""

    @property
    def barrier(self) -> float:
        """The logarithmic barrier, but for constants and the weights' own part."""

    def gradient(self) -> Array:
        """Return the gradient of the smoothed function."""

    def gradient_slope(self) -> Array:
        """Return its derivative by the smoothing."""

    def smoothed(self, smoothing: float) -> Any:
        """Return the same decomposition at another smoothing."""

    def curvature_diagonal(self) -> Array:
        """Return the diagonal of `curvature`."""

    def curvature(self, chosen: npt.NDArray[np.intp], exactly: bool = False) -> Array:
        """Return the lower triangle of minus the Hessian in relative weights, for the chosen indices.

        It may be good to a percent only, and unless it is wanted `exactly`, in single precision.
        """

    def curvature_product(self, change: Array) -> Array:
        """Return minus the Hessian in relative weights times a vector."""

    def covariance(self) -> Any:
        """Return the primal point, unscaled."""

    def calmed(self, share: float) -> Any:
        """Return it without noise that nothing limits, at costs that are higher by a share."""


class Evaluable(Protocol):
    """A dual function that can be evaluated at strictly positive weights."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of weights on neighbours and on queries, and rank."""

    @property
    def operations(self) -> tuple[float, float, float]:
        """Approximate operations of an evaluation, of the curvature of all weights, and of a product with it."""

    def at(self, weights: Array) -> Any:
        """Evaluate."""
