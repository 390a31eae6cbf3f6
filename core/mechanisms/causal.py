"""Causal strategies as mechanisms: noise on answers that come step by step, without a matrix."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.causal import Causal, summing, unit_forms
from dualmech.geometry.dense import Dense, DenseForms
from dualmech.geometry.stream import CausalPoint, Stream
from dualmech.immutable import freeze
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.privacy import ParticipationCost
from dualmech.mechanisms.stepped import SteppedMechanism
from dualmech.validate import Array
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload, check_workload
from dualmech.workloads.streams import StreamWorkload


class CausalMechanism(SteppedMechanism):
    """The mechanism ``x ↦ C x + N(0, level · I)`` of a causal strategy C (n, n), lower triangular: step by step.

    Made by `dualmech.strategies.toeplitz`, `sqrt_toeplitz`, `buffered`, `banded` and `tree`. A record in cell i costs
    the squared norm of column i of C over the level, and running sums ``W x`` are answered with the noise ``W C⁻¹ z``:
    both in time that grows as the number of steps, or but for a logarithm.

    Attributes
    ----------
    steps : int
        n.
    level : float
        Variance of the noise on each answer of C x.

    Examples
    --------
    >>> import dualmech as dm
    >>> mechanism = dm.strategies.sqrt_toeplitz(100_000)
    >>> sums = dm.workloads.prefix(100_000)
    >>> round(mechanism.rho, 6), round(float(mechanism.variances(sums)[-1]), 6)
    (2.365477, 4.730953)
    """

    __slots__ = ("_strategy", "_unit", "level")

    judged_on = "stream"
    """The geometry on which it is judged in linear time, where a problem can stand there."""

    level: float
    _strategy: Causal
    _unit: dict[float, DenseForms]

    def __init__(self, strategy: Causal, level: float = 1.0) -> None:
        if not all(hasattr(strategy, name) for name in ("steps", "costs", "variances")):
            raise InputTypeError(
                f"strategy must be made by a function of dualmech.strategies, got {type(strategy).__name__}"
            )
        self._strategy, self._unit = freeze(strategy), {}
        self.level = validate.positive_number(level=level)

    @property
    def steps(self) -> int:
        """Number of steps n."""
        return self._strategy.steps

    @property
    def profile(self) -> Array:
        """Squared privacy cost of a record in each cell (n,), what rounding may hide added."""
        return validate.read_only(self._strategy.costs() * (1 + summing(self.steps)) / self.level)

    def variances(self, workload: Workload) -> Array:
        """Return the variance of each sum of a stream (n,) in linear time, or of another workload by the matrix."""
        if self._asks_sums(workload):
            return np.asarray(self._forms(workload.decay).variances * self.level)
        return self.dense().variances(workload)

    def as_targets(self, workload: Workload) -> Array:
        """Return the variances of a workload's queries; see `GaussianPrivacy`."""
        return self.variances(check_workload(workload))

    def point_on(self, geometry: object) -> Any:
        """Return the noise on a geometry of the same number of cells, `stream` or `dense`."""
        if isinstance(geometry, Dense):
            return self.dense().point_on(geometry)
        if not isinstance(geometry, Stream) or not self._asks_sums(geometry.workload):
            raise InvalidInputError(
                f"a CausalMechanism of {self.steps} steps answers as many running sums, on geometry 'stream' or 'dense'"
            )
        return CausalPoint(self._strategy, self._forms(geometry.workload.decay), self.level)

    def scaled(self, factor: float) -> CausalMechanism:
        """Return the mechanism with all variances times a factor > 0: its cost is divided by that."""
        return CausalMechanism(self._strategy, self.level * validate.positive_number(factor=factor))

    def participation_cost(self, times: int, separation: int) -> ParticipationCost:
        """Return what no person exceeds who takes part in several steps, without a matrix; see `GaussianPrivacy`."""
        most, apart = validate.size(times=times), validate.size(separation=separation)
        most = min(most, -(-self.steps // apart))
        cost = self._strategy.participation(most, apart) * (1 + summing(self.steps)) / self.level
        return ParticipationCost(cost, self._strategy.nonnegative)

    @property
    def matrix(self) -> Array:
        """C (n, n); refused of a tree, and where it is too large to write out."""
        if self.steps**2 > MAX_DENSE_ENTRIES:
            raise InvalidInputError(f"a strategy of {self.steps} steps is too large to write out as a matrix")
        return self._strategy.matrix()

    @property
    def cells(self) -> int:
        """Number of steps n."""
        return self.steps

    def _as_matrix(self) -> LinearGaussianMechanism:
        matrix = self.matrix
        return LinearGaussianMechanism(matrix, self.level * np.eye(len(matrix)))

    def simulate(
        self, x: npt.ArrayLike, workload: StreamWorkload, rng: np.random.Generator | int | None = None
    ) -> Array:
        """Draw noisy running sums (n,) of a data vector x (n,), for study. NOT a private release."""
        if not self._asks_sums(workload):
            raise InvalidInputError(f"workload must be running sums of {self.steps} cells, got {workload!r}")
        self._forms(workload.decay)
        data, generator = validate.vector(self.steps, "cell", x=x), validate.generator(rng=rng)
        noise = self._strategy.noise(generator, workload.decay)
        return np.asarray(workload.apply(data) + np.sqrt(self.level) * noise)

    def _asks_sums(self, workload: object) -> TypeGuard[StreamWorkload]:
        return isinstance(workload, StreamWorkload) and workload.shape[0] == self.steps

    def _forms(self, decay: float) -> DenseForms:
        """Return both sides of unit noise, evaluated once for each decay."""
        if decay not in self._unit:
            forms = unit_forms(self._strategy, decay)
            if forms is None:
                raise InvalidInputError(
                    "strategy must have an inverse whose entries stay small enough for its noise to be known"
                )
            self._unit[decay] = freeze(forms)
        return self._unit[decay]

    def __repr__(self) -> str:
        return f"CausalMechanism({type(self._strategy).__name__}, {self.steps} steps, rho={self.rho:.6g})"
