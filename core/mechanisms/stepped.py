"""Mechanisms of many steps: what takes a matrix is asked of the same mechanism written out on its cells."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy.typing as npt

from dualmech.errors import InvalidInputError
from dualmech.geometry.moves import LARGEST_DENSE
from dualmech.mechanisms.gaussian import TOLERANCE, Answerability, Equivalence, LinearGaussianMechanism
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.validate import Array
from dualmech.workloads.base import Workload


class SteppedMechanism(GaussianPrivacy):
    """The base of `StreamMechanism` and `CausalMechanism`, which need no matrix for what steps alone decide.

    All else is that of `dense`, with its errors, up to 4,096 steps; beyond, it is refused with their number.
    """

    __slots__ = ("_matrix",)

    by_matrix: ClassVar[bool] = True
    """Functions of matrices take it by `dense`."""

    _matrix: LinearGaussianMechanism | None

    @property
    def cells(self) -> int:
        """Number of cells, one a step."""
        raise NotImplementedError

    def dense(self) -> LinearGaussianMechanism:
        """Return the mechanism written out on the cells, made once; refused beyond 4,096 steps."""
        if (count := self.cells) > LARGEST_DENSE:
            raise InvalidInputError(
                f"a {type(self).__name__} of {count} steps is too large for a matrix (at most {LARGEST_DENSE}), which "
                "this takes; privacy, variances and drawing need none"
            )
        if getattr(self, "_matrix", None) is None:
            self._matrix = self._as_matrix()
        assert self._matrix is not None
        return self._matrix

    def _as_matrix(self) -> LinearGaussianMechanism:
        raise NotImplementedError

    @property
    def cost_matrix(self) -> Array:
        """``C = Σ⁻¹`` of the noise on the cells (n, n)."""
        return self.dense().cost_matrix

    def covariance(self, workload: Workload | None = None) -> Array:
        """Return the covariance of the answers to a workload (m, m), by default of the rows that get noise."""
        return self.dense().covariance(workload)

    def estimates(self, workload: Workload, answers: npt.ArrayLike) -> Array:
        """Return estimates of a workload from noisy answers; see `LinearGaussianMechanism`."""
        return self.dense().estimates(workload, answers)

    def is_answerable_from(self, other: Any, tol: float = TOLERANCE) -> Answerability:
        """Say whether this mechanism can be answered from another; see `LinearGaussianMechanism`."""
        return self.dense().is_answerable_from(other, tol)

    def is_equivalent_to(self, other: Any, tol: float = TOLERANCE) -> Equivalence:
        """Say whether both mechanisms reveal the same; see `LinearGaussianMechanism`."""
        return self.dense().is_equivalent_to(other, tol)

    def stack(self, *others: Any) -> LinearGaussianMechanism:
        """Return the mechanism that runs this one and others; see `LinearGaussianMechanism`."""
        return self.dense().stack(*others)

    def compose(self, *others: Any) -> LinearGaussianMechanism:
        """Return what this mechanism and others reveal together; see `LinearGaussianMechanism`."""
        return self.dense().compose(*others)

    def rebase(self, query_matrix: npt.ArrayLike) -> LinearGaussianMechanism:
        """Return the same mechanism on other rows; see `LinearGaussianMechanism`."""
        return self.dense().rebase(query_matrix)

    def standardize(self) -> LinearGaussianMechanism:
        """Return the equivalent mechanism with unit noise; see `LinearGaussianMechanism`."""
        return self.dense().standardize()

    def causal_strategy(self) -> Array:
        """Return a lower-triangular strategy of the same noise (n, n); see `LinearGaussianMechanism`."""
        return self.dense().causal_strategy()
