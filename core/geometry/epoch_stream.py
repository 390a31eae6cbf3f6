"""Several epochs of more running sums than a matrix holds: causal strategies, and a bound from a chain of phases."""

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

MOST_UNKNOWNS = 16_384
"""Masses, correlations and weights of queries up to which there is a matrix: a Hessian of 1 GB in single precision."""


@dataclass(frozen=True, slots=True, eq=False)
class EpochStream(Stream):
    """Running sums, and persons who take part in all steps of a phase, beyond what a matrix holds.

    Noise is that of a causal strategy, whose cost for a person is known. Dual weights are those of `Epochs`, a
    symmetric matrix for each phase (phases, times, times), also where parts may be farther apart: the persons of phases
    are some of those, so that their bound holds. No optimum is known, an interval is left.
    """

    workload: StreamWorkload
    neighbours: Participation
    phases: Index = field(init=False)  # (phases, times) steps of each phase, -1 for none

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
        if (steps := workload.shape[1]) > (most := rule.times * rule.separation):
            raise GeometryError(
                f"geometry 'epochs' takes more than {LARGEST_DENSE} steps where persons' parts fill them, "
                f"{rule} at most {most}, got {steps}"
            )
        stream = cls(workload, rule)
        held = stream.numbers(request.workload, request.values, request.name)
        return Offer(stream.operations(held, request.name) * rule.times**2, lambda: (stream, held))

    def check_written(self) -> NoReturn:
        raise GeometryError(
            f"{self.workload.shape[1]} running sums with neighbours {self.neighbours} have no matrix: they take "
            f"noise of a causal strategy (dualmech.problems.strategies); matrices have at most {LARGEST_DENSE} steps, "
            f"and {MOST_UNKNOWNS} masses, correlations and weights of queries"
        )

    @property
    def raised(self) -> float:
        """Share of its mass, and of the mean one, by which each phase's weights are raised, ``√((n + 10⁴) ε) k²``.

        So they have an inverse, and rounding, which counts ε over this share and more, takes hardly more of the bound
        than this does, as measured.
        """
        return float(np.sqrt((self.phases.size + 1e4) * EPS)) * self.phases.shape[1] ** 2

    @property
    def steps(self) -> Dense:
        """Refuse: there is no matrix."""
        return self.matrix

    def argument_values(self) -> dict[str, object]:
        return {"neighbours": str(self.neighbours)}

    def in_numbers(self, workload: Workload, kind: str, numbers: Array) -> dict[str, object]:
        self.check_written()

    def point(self, primal: object) -> CausalPoint:
        """Return the noise of a causal strategy whose cost for a person is known; refuse any other."""
        if not isinstance(primal, CausalPoint) or primal.strategy.steps != self.workload.shape[1]:
            self.check_written()
        if self._cost(primal.strategy) is None:
            raise InvalidInputError(
                f"a strategy for neighbours {self.neighbours} must have at most {self.neighbours.separation} bands, or "
                "be a Toeplitz strategy whose coefficients decrease"
            )
        return primal

    def _cost(self, strategy: Causal) -> float | None:
        """Return what no person costs more than with unit noise; None where nothing is known."""
        rule = self.neighbours
        known = persons_cost(strategy, rule.times, rule.separation, rule.at_least)
        return None if known is None else known[0]

    def checked(self, proposal: object) -> CausalPoint:
        return self.point(proposal).checked()

    def mechanism(self, point: CausalPoint) -> GaussianPrivacy:  # type: ignore[override]
        noise = mechanisms.stream.CausalMechanism(point.strategy, point.level)
        return mechanisms.epochs.EpochsMechanism(noise, self.neighbours)

    def forms(self, point: CausalPoint) -> EvaluatedForms | None:  # type: ignore[override]
        """Return what a person costs at most, and the variance of each sum."""
        alone, unit = point.forms(self), self._cost(point.strategy)
        if alone is None or unit is None:
            return None
        with np.errstate(over="ignore"):
            cost = np.array([unit / point.level])
        if not np.isfinite(cost[0]):
            return None
        return EvaluatedForms(cost, alone.variances, np.zeros(1), alone.variance_rounding)

    def weights(self, dual: object, queries: bool = True) -> tuple[Array, Array]:
        count, times = self.phases.shape
        return matrix_weights(dual, (count, times, times), "per phase", self.workload.shape[0] if queries else None)

    def total_bound(self, neighbour_weights: Array, weights: Array) -> Judged:
        """Return ``‖diag(√w) W Λ^½‖_*² / Σ m_p``, rounded down, and what is left of it; 0 if nothing is proven."""
        unit = weights.max()
        with np.errstate(all="ignore"):
            stated = self._chain(neighbour_weights, weights / unit)
            if stated is None:
                return 0.0, 0.0
            chain, trace, mass = stated
            try:
                norm, rounding = chain.trace_norm(trace)
            except np.linalg.LinAlgError:
                return 0.0, 0.0
            # What rounding may hide is taken off at once: of many epochs it is no small number.
            least = norm * (1 - rounding) if rounding < 1 else 0.0
            return (float(least**2 * unit / mass), 16 * EPS) if least > 0 else (0.0, 0.0)

    def total_prices(self, neighbour_weights: Array, weights: Array) -> Array:
        """Return each sum's share of the trace norm (n,)."""
        on_sums, _ = self._shares(neighbour_weights, weights)
        by_sum = np.zeros(len(weights))
        present = self.phases >= 0
        by_sum[self.phases[present]] = on_sums[present]
        return shares(by_sum)

    def phase_prices(self, neighbour_weights: Array, weights: Array) -> Array:
        """Return what each part of each phase counts in the bound (phases, times), 0 for steps that are not there."""
        return shares(self._shares(neighbour_weights, weights)[1])

    def neighbour_words(self, index: int) -> str:
        rule = self.neighbours
        return f"a person with parts {'at least ' if rule.at_least else ''}{rule.separation} steps apart"

    def phase_words(self, index: int) -> str:
        """Return the words for a person with parts in all steps of a phase."""
        return words.person_words(self.workload, self.phases[index])

    def _shares(self, neighbour_weights: Array, weights: Array) -> tuple[Array, Array]:
        none = np.zeros(self.phases.shape)
        if not valid_weights(weights):
            return none, none
        stated = self._chain(neighbour_weights, np.maximum(weights / weights.max(), FLOOR))
        return (none, none) if stated is None else stated[0].shares(stated[1])

    def _chain(self, neighbour_weights: Array, sums: Array) -> tuple[Chain, tuple[float, float], float] | None:
        """Return the chain of weights of phases, bounds of the trace of its M, and the total of the masses.

        Any ``P⁻¹ ⪯ Λ / (1 - η)`` proves a bound that is lower by 1 - η: so what P is off by as an inverse is counted
        in the masses.
        """
        from dualmech.geometry.chain import Chain  # few problems are as long

        rooted = roots_of(neighbour_weights, self.phases, self.neighbours.parts)
        if rooted is None:
            return None
        present, size = self.phases >= 0, self.phases.shape[1]
        roots = rooted[0] / np.sqrt(rooted[1])
        products = roots @ roots.swapaxes(1, 2)
        masses = np.einsum("pia,pia->pi", roots, roots).max(axis=1)
        raised = self.raised * (masses + 1 / len(masses))
        lengths = np.where(present, raised[:, None], (masses + raised)[:, None])
        correlated = products + lengths[:, :, None] * np.eye(size)

        ties = np.linalg.inv(correlated)
        ties = (ties + ties.swapaxes(1, 2)) / 2
        spread = np.linalg.norm(ties, axis=(1, 2)) * np.linalg.norm(correlated, axis=(1, 2))
        off = np.linalg.norm(correlated @ ties - np.eye(size), axis=(1, 2)) + (4 * size + 16) * EPS * size * spread
        eta = float(off.max()) * UPWARDS
        if not eta < 0.5:
            return None
        added = np.einsum("pii->p", correlated) * (1 + 2 * eta) * UPWARDS
        decays = np.where(present, self.workload.decay, 0.0)
        decays[0, 0] = 0.0
        chain = Chain(ties, decays, np.append(sums, 0.0)[self.phases], added)
        least, most = self._trace(correlated, sums)
        if not least > 0:
            return None
        trace = least * (1 - 2 * eta), most * (1 + 2 * eta)
        return chain, trace, float((1 + raised.sum()) / (1 - eta)) * UPWARDS

    def _trace(self, correlated: Array, sums: Array) -> tuple[float, float]:
        """Return ``tr (diag(μ) W Λ W')`` for Λ of the phases, rounded down, and up.

        A pair of steps, j the later one, counts ``β^{j-i} Σ_{t≥j} μ_t β^{2(t-j)}``.
        """
        decay, (count, size) = self.workload.decay, self.phases.shape
        after = np.append(running_sums(sums[::-1], decay**2)[::-1], 0.0)[self.phases]
        epochs = np.arange(size)
        with np.errstate(under="ignore"):
            powers = float(decay) ** (count * np.abs(epochs[:, None] - epochs))
        terms = correlated * powers * after[:, np.maximum(epochs[:, None], epochs)]
        off = (self.phases.size * (size + 8)) * EPS * float(np.abs(terms).sum())
        return float(terms.sum()) - off, float(terms.sum()) + off
