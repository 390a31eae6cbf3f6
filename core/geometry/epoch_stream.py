"""Multiple epochs of running sums without a matrix: causal strategies, and a bound from a chain of phases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from dualmech import mechanisms
from dualmech.errors import GeometryError, InvalidInputError
from dualmech.geometry import words
from dualmech.geometry.apart import roots_of
from dualmech.geometry.base import EvaluatedForms, Judged, Offer, Request
from dualmech.geometry.causal import Causal, persons_cost
from dualmech.geometry.dense import Dense
from dualmech.geometry.moves import LARGEST_DENSE
from dualmech.geometry.stream import FLOOR, CausalPoint, Stream, stream_in
from dualmech.geometry.weights import matrix_weights, shares, valid_weights
from dualmech.immutable import freeze
from dualmech.linalg import EPS
from dualmech.neighbours import Participation
from dualmech.validate import Array
from dualmech.verified import UPWARDS
from dualmech.workloads.base import Workload
from dualmech.workloads.streams import StreamWorkload, running_sums

if TYPE_CHECKING:
    from dualmech.mechanisms.privacy import GaussianPrivacy

if TYPE_CHECKING:
    from dualmech.geometry.chain import Chain

Index = npt.NDArray[np.intp]

MAX_UNKNOWNS = 16_384
"""Maximum number of masses, correlations and query weights on a matrix: a Hessian of 1 GB in single precision."""


@dataclass(frozen=True, slots=True, eq=False)
class EpochStream(Stream):
    """Running sums, with persons who participate in all steps of a phase, without a matrix.

    Noise is that of a causal strategy with a known cost for a person. Dual weights are those of `Epochs`, a symmetric
    matrix for each phase (phases, times, times), also for a minimum separation: the persons of phases are a subset, so
    that their bound holds. The optimum is between the two bounds.
    """

    workload: StreamWorkload
    neighbours: Participation
    phases: Index = field(init=False)  # (phases, times) steps of each phase, padded with -1

    name: ClassVar[str] = "epochs"
    takes_relations: ClassVar[bool] = True

    def __post_init__(self) -> None:
        rule = self.neighbours
        phases = Participation(rule.times, rule.separation).phases(self.workload.shape[1])
        object.__setattr__(self, "phases", phases)
        freeze(self)

    @classmethod
    def offer(cls, request: Request) -> Offer | None:
        workload, rule = stream_in(request.workload), request.neighbours
        if not isinstance(workload, StreamWorkload) or not isinstance(rule, Participation):
            return None
        if (steps := workload.shape[1]) > (covered := rule.times * rule.separation):
            raise GeometryError(
                f"geometry 'epochs' supports more than {LARGEST_DENSE} steps if phases cover them, "
                f"{rule} at most {covered}, got {steps}"
            )
        stream = cls(workload, rule)
        per_sum = stream.numbers(request.workload, request.values, request.name)
        return Offer(stream.operations(per_sum, request.name) * rule.times**2, lambda: (stream, per_sum))

    def check_written(self) -> NoReturn:
        raise GeometryError(
            f"{self.workload.shape[1]} running sums with neighbours {self.neighbours} have no matrix: they need "
            f"noise of a causal strategy (dualmech.problems.strategies); matrices have at most {LARGEST_DENSE} steps, "
            f"and {MAX_UNKNOWNS} masses, correlations and weights of queries"
        )

    @property
    def raised(self) -> float:
        """Increase of each phase's weights relative to its mass plus the mean mass, ``√((n + 10⁴) ε) k²``.

        The weights are then invertible. Rounding errors, of the order of ε over this increase, reduce the bound about
        as much as the increase does, as measured.
        """
        return float(np.sqrt((self.phases.size + 1e4) * EPS)) * self.phases.shape[1] ** 2

    @property
    def steps(self) -> Dense:
        """Refuse, since there is no matrix."""
        return self.matrix

    def argument_values(self) -> dict[str, object]:
        return {"neighbours": str(self.neighbours)}

    def in_numbers(self, workload: Workload, kind: str, numbers: Array) -> dict[str, object]:
        self.check_written()

    def point(self, primal: object) -> CausalPoint:
        """Return the noise of a causal strategy with a known cost for a person; refuse other noise."""
        if not isinstance(primal, CausalPoint) or primal.strategy.steps != self.workload.shape[1]:
            self.check_written()
        if self._cost(primal.strategy) is None:
            raise InvalidInputError(
                f"a strategy for neighbours {self.neighbours} must have at most {self.neighbours.separation} bands, or "
                "be a Toeplitz strategy with decreasing coefficients"
            )
        return primal

    def _cost(self, strategy: Causal) -> float | None:
        """Return an upper bound on the cost of a person under unit noise, or None if none is known."""
        rule = self.neighbours
        bounds = persons_cost(strategy, rule.times, rule.separation, rule.at_least)
        return None if bounds is None else bounds[0]

    def checked(self, proposal: object) -> CausalPoint:
        return self.point(proposal).checked()

    def mechanism(self, point: CausalPoint) -> GaussianPrivacy:  # type: ignore[override]
        noise = mechanisms.stream.CausalMechanism(point.strategy, point.level)
        return mechanisms.epochs.EpochsMechanism(noise, self.neighbours)

    def forms(self, point: CausalPoint) -> EvaluatedForms | None:  # type: ignore[override]
        """Return an upper bound on the cost of a person, and the variance of each sum."""
        stream_forms, unit = point.forms(self), self._cost(point.strategy)
        if stream_forms is None or unit is None:
            return None
        with np.errstate(over="ignore"):
            cost = np.array([unit / point.level])
        if not np.isfinite(cost[0]):
            return None
        return EvaluatedForms(cost, stream_forms.variances, np.zeros(1), stream_forms.variance_rounding)

    def weights(self, dual: object, queries: bool = True) -> tuple[Array, Array]:
        count, times = self.phases.shape
        return matrix_weights(dual, (count, times, times), "per phase", self.workload.shape[0] if queries else None)

    def total_bound(self, neighbour_weights: Array, weights: Array) -> Judged:
        """Return ``‖diag(√w) W Λ^½‖_*² / Σ m_p``, rounded down, and its error bound; 0 if there is none."""
        unit = weights.max()
        with np.errstate(all="ignore"):
            parts = self._chain(neighbour_weights, weights / unit)
            if parts is None:
                return 0.0, 0.0
            chain, trace, mass = parts
            try:
                norm, rounding = chain.trace_norm(trace)
            except np.linalg.LinAlgError:
                return 0.0, 0.0
            # The rounding error is subtracted here: with many epochs it is not small.
            low = norm * (1 - rounding) if rounding < 1 else 0.0
            return (float(low**2 * unit / mass), 16 * EPS) if low > 0 else (0.0, 0.0)

    def total_prices(self, neighbour_weights: Array, weights: Array) -> Array:
        """Return each running sum's share of the trace norm (n,)."""
        on_sums, _ = self._shares(neighbour_weights, weights)
        by_sum = np.zeros(len(weights))
        present = self.phases >= 0
        by_sum[self.phases[present]] = on_sums[present]
        return shares(by_sum)

    def phase_prices(self, neighbour_weights: Array, weights: Array) -> Array:
        """Return the normalised shadow prices of participations (phases, times), 0 for missing steps."""
        return shares(self._shares(neighbour_weights, weights)[1])

    def neighbour_words(self, index: int) -> str:
        rule = self.neighbours
        return f"a person with participations {'at least ' if rule.at_least else ''}{rule.separation} steps apart"

    def phase_words(self, index: int) -> str:
        """Return a description of a phase for messages."""
        return words.person_words(self.workload, self.phases[index])

    def _shares(self, neighbour_weights: Array, weights: Array) -> tuple[Array, Array]:
        zeros = np.zeros(self.phases.shape)
        if not valid_weights(weights):
            return zeros, zeros
        parts = self._chain(neighbour_weights, np.maximum(weights / weights.max(), FLOOR))
        return (zeros, zeros) if parts is None else parts[0].shares(parts[1])

    def _chain(self, neighbour_weights: Array, sums: Array) -> tuple[Chain, tuple[float, float], float] | None:
        """Return the chain of weights of phases, bounds on the trace of its M, and the total of the masses.

        Any ``P⁻¹ ⪯ Λ / (1 - η)`` certifies a bound that is lower by a factor of 1 - η. So the error of P as an inverse
        is included in the masses.
        """
        from dualmech.geometry.chain import Chain  # loaded for long streams alone

        roots_and_total = roots_of(neighbour_weights, self.phases, self.neighbours.parts)
        if roots_and_total is None:
            return None
        present, size = self.phases >= 0, self.phases.shape[1]
        roots = roots_and_total[0] / np.sqrt(roots_and_total[1])
        products = roots @ roots.swapaxes(1, 2)
        masses = np.einsum("pia,pia->pi", roots, roots).max(axis=1)
        increases = self.raised * (masses + 1 / len(masses))
        lengths = np.where(present, increases[:, None], (masses + increases)[:, None])
        increased = products + lengths[:, :, None] * np.eye(size)

        inverses = np.linalg.inv(increased)
        inverses = (inverses + inverses.swapaxes(1, 2)) / 2
        condition = np.linalg.norm(inverses, axis=(1, 2)) * np.linalg.norm(increased, axis=(1, 2))
        errors = (
            np.linalg.norm(increased @ inverses - np.eye(size), axis=(1, 2)) + (4 * size + 16) * EPS * size * condition
        )
        eta = float(errors.max()) * UPWARDS
        if not eta < 0.5:
            return None
        traces = np.einsum("pii->p", increased) * (1 + 2 * eta) * UPWARDS
        decays = np.where(present, self.workload.decay, 0.0)
        decays[0, 0] = 0.0
        chain = Chain(inverses, decays, np.append(sums, 0.0)[self.phases], traces)
        low, high = self._trace(increased, sums)
        if not low > 0:
            return None
        trace = low * (1 - 2 * eta), high * (1 + 2 * eta)
        return chain, trace, float((1 + increases.sum()) / (1 - eta)) * UPWARDS

    def _trace(self, correlated: Array, sums: Array) -> tuple[float, float]:
        """Return lower and upper bounds on ``tr (diag(μ) W Λ W')`` for Λ of the phases.

        A pair of steps i ≤ j contributes ``β^{j-i} Σ_{t≥j} μ_t β^{2(t-j)}``.
        """
        decay, (count, size) = self.workload.decay, self.phases.shape
        suffix_sums = np.append(running_sums(sums[::-1], decay**2)[::-1], 0.0)[self.phases]
        epochs = np.arange(size)
        with np.errstate(under="ignore"):
            powers = float(decay) ** (count * np.abs(epochs[:, None] - epochs))
        terms = correlated * powers * suffix_sums[:, np.maximum(epochs[:, None], epochs)]
        error = (self.phases.size * (size + 8)) * EPS * float(np.abs(terms).sum())
        return float(terms.sum()) - error, float(terms.sum()) + error
