"""Multiple epochs: persons who participate in every step of a phase, on a dense matrix.

With the cost matrix ``C = B' Σ⁻¹ B`` a phase p costs the largest ``⟨C_p, R⟩`` over correlation matrices R of its steps
if participations are vectors, and over ``z z'`` for signs z if they are numbers. For vectors this is, by duality, the
least ``1'd`` with ``diag(d) ⪰ C_p``; any such d is an upper bound for both.

With a minimum separation there are more persons than phases: `largest_sums` bounds the cost of noise, and weights of
persons bound the optimum (`apart`). The bounds differ.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from dualmech import linalg, mechanisms, validate
from dualmech.errors import GeometryError
from dualmech.geometry import words
from dualmech.geometry.apart import largest_sums, roots_of, roots_of_walks
from dualmech.geometry.base import SET_UP, EvaluatedForms, Geometry, Judged, Offer, Request, decompositions
from dualmech.geometry.dense import Dense
from dualmech.geometry.epoch_stream import MAX_UNKNOWNS, EpochStream
from dualmech.geometry.moves import LARGEST_DENSE
from dualmech.geometry.weights import matrix_weights, shares, valid_weights
from dualmech.immutable import freeze
from dualmech.neighbours import Participation
from dualmech.validate import Array
from dualmech.verified import UPWARDS, spectral_norm, sum_rounding
from dualmech.workloads import numbers as given_numbers
from dualmech.workloads.base import Workload

if TYPE_CHECKING:
    from dualmech.mechanisms.privacy import GaussianPrivacy

Index = npt.NDArray[np.intp]

SIGN_PATTERN_OPERATIONS = 1e13
"""Nominal operations of a geometry whose bounds may differ at the optimum: cheaper sign patterns are preferred."""


@dataclass(frozen=True, slots=True, eq=False)
class Epochs(Geometry[Array, Array, Array, Array]):
    """A matrix ``W = L B`` on the steps of a stream, with persons who participate in all steps of a phase.

    A point is the covariance of the noise on B x (k, k), as on a dense geometry. Dual weights on neighbours are a
    symmetric matrix for each phase, (phases, times, times), ``m_p R_p`` with a mass and a correlation matrix, 0 for
    missing steps. Only their positive semidefinite part is used, so any numbers give a bound. With a minimum separation
    they are two matrices of all steps (2, n, n), weights of persons and correlations, as in `roots_of_walks`.
    """

    steps: Dense  # the workload on a basis, with one sensitivity vector for each step
    neighbours: Participation
    phases: (
        Index  # (phases, times) steps of each phase, padded with -1; one phase of all steps for a minimum separation
    )

    name: ClassVar[str] = "epochs"
    takes: ClassVar[str] = "persons who participate in several steps, participation:TIMES:SEPARATION"
    takes_relations: ClassVar[bool] = True

    def __post_init__(self) -> None:
        freeze(self)

    @classmethod
    def offer(cls, request: Request) -> Offer | None:
        workload, rule = request.workload, request.neighbours
        if not isinstance(rule, Participation):
            return None
        queries, steps = workload.shape
        phases = rule.phases(steps)
        unknowns = len(phases) * (1 + rule.times * (rule.times - 1) / 2) + queries * (request.name == "targets")
        if (steps > LARGEST_DENSE or unknowns > MAX_UNKNOWNS) and (long := EpochStream.offer(request)) is not None:
            return long
        if not workload.has_matrix or min(queries, steps) > LARGEST_DENSE:
            raise GeometryError(
                f"geometry 'epochs' needs the matrix of the workload and noise of rank up to {LARGEST_DENSE}, "
                f"got {queries} x {steps}"
            )

        def take() -> tuple[Geometry, Array]:
            per_query = given_numbers.by_query_or_table(workload, request.values, request.name)
            return cls(Dense.of_numbers(request, per_query, None), rule, phases), per_query

        if rule.parts == "signs" or rule.at_least:  # the bounds may differ at the optimum
            return Offer(SIGN_PATTERN_OPERATIONS, take)
        rank = min(queries, steps)
        return Offer(SET_UP + decompositions(rank, queries + steps - rank) + 10 * unknowns**3 / 3, take)

    @property
    def workload(self) -> Workload:  # type: ignore[override]
        """The workload."""
        return self.steps.workload

    @property
    def basis(self) -> Array:
        """B (k, n), the rows with noise."""
        return self.steps.basis

    @property
    def matrix(self) -> Dense:
        """The same workload with single steps as neighbours."""
        return self.steps

    @property
    def rank(self) -> int:
        return self.steps.rank

    @property
    def free_queries(self) -> Index:
        """Indices of the all-zero queries."""
        return self.steps.free_queries

    def numbers(self, workload: Workload, values: object, name: str) -> Array:
        return self.steps.numbers(workload, values, name)

    def argument_values(self) -> dict[str, object]:
        return {"neighbours": str(self.neighbours)}

    def in_numbers(self, workload: Workload, kind: str, numbers: Array) -> dict[str, object]:
        rule = self.neighbours
        return {
            "kind": f"participation {kind}",
            "numbers": numbers,
            "workload": workload.dense(),
            "times": rule.times,
            "separation": rule.separation,
            "apart": "at least" if rule.at_least else "exactly",
            "parts": rule.parts,
        }

    def point(self, primal: object) -> Array:
        return self.steps.point(primal)

    def checked(self, answer: object) -> Array:
        return self.steps.checked(answer)

    def divide(self, point: Array, divisor: float) -> Array:
        return self.steps.divide(point, divisor)

    def mechanism(self, point: Array) -> GaussianPrivacy:
        return mechanisms.epochs.EpochsMechanism(self.steps.mechanism(point), self.neighbours)

    def forms(self, point: Array) -> EvaluatedForms | None:
        costs = phase_costs(point, self.steps.moves, self.phases, self.neighbours, self.steps.moves_rounding)
        if costs is None or not np.all(np.isfinite(costs[1])):
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            variances, rounding = self.steps.variances(costs[0])
        return EvaluatedForms(costs[1], variances, np.zeros(len(self.phases)), rounding)

    def largest_ratio(self, point: Array, targets: Array) -> float:
        return self.steps.largest_ratio(point, targets)

    def weights(self, dual: object, queries: bool = True) -> tuple[Array, Array]:
        count, times = self.phases.shape
        matrices, of = (2, "of persons and of steps") if self.neighbours.at_least else (count, "per phase")
        return matrix_weights(dual, (matrices, times, times), of, self.workload.shape[0] if queries else None)

    def bound(self, neighbour_weights: Array, query_weights: Array, targets: Array) -> Judged:
        """Return ``‖diag(√μ) W Λ^½‖_*² / (Σ m_p Σ μ_j c_j)`` and a relative error bound, for Λ of the phases' weights.

        Proof: ``⟨C, Λ⟩ ≤ α Σ m_p``, then as for `Dense.bound`. Invalid weights give the bound 0.
        """
        if not valid_weights(query_weights):
            return 0.0, 0.0
        normalised = query_weights / query_weights.max()
        return self._trace_norm_bound(neighbour_weights, np.sqrt(normalised / (normalised @ targets)))

    def total_bound(self, neighbour_weights: Array, weights: Array) -> Judged:
        """Return ``‖diag(√w) W Λ^½‖_*² / Σ m_p`` and a relative error bound."""
        return self._trace_norm_bound(neighbour_weights, np.sqrt(weights))

    def total_prices(self, neighbour_weights: Array, weights: Array) -> Array:
        """Return the diagonal of ``X s X' / Σ s`` (m,), with the s and X of ``diag(√w) W Λ^½``."""
        scaled = self._scaled(neighbour_weights, np.sqrt(weights))
        if scaled is None:
            return np.zeros(len(weights))
        left, values, _ = linalg.svd(scaled[0])
        return shares(left**2 @ values)

    def phase_prices(self, neighbour_weights: Array, weights: Array) -> Array:
        """Return the normalised shadow prices of participations (phases, times), 0 for missing steps.

        With ``diag(√w) W F = Y s Z'``, ``Λ = F F'``, the price of step i is ``(W' diag(√w) Y Z' F')_ii / Σ s``. It is
        half the logarithmic derivative of the bound in the size of the participation: for sizes D, Λ becomes D Λ D.
        """
        factors = np.sqrt(weights) if valid_weights(weights) else np.zeros(len(weights))
        scaled = self._scaled(neighbour_weights, factors)
        roots = self._roots(neighbour_weights)
        if scaled is None or roots is None:
            return np.zeros(self.phases.shape)
        left, values, right = linalg.svd(scaled[0])
        nonzero = values > values.max(initial=0.0) * len(values) * linalg.EPS
        polar = (left[:, nonzero] @ right[nonzero]).reshape(len(factors), len(self.phases), -1)
        slopes = np.einsum("mpa,pia->mpi", polar * factors[:, None, None], roots[0], optimize=True)
        return shares(np.einsum("mpi,mpi->pi", slopes, self._rows().swapaxes(0, 1)))

    def per_query(self, workload: Workload, numbers: Array) -> Array:
        return numbers

    def item_words(self, index: int) -> str:
        return words.query_words(self.workload, index)

    def neighbour_words(self, index: int) -> str:
        if self.neighbours.at_least:
            return f"a person with participations at least {self.neighbours.separation} steps apart"
        return self.phase_words(index)

    def phase_words(self, index: int) -> str:
        """Return a description of a phase for messages; of all persons for a minimum separation."""
        if self.neighbours.at_least:
            return "all persons, by step"
        return words.person_words(self.workload, self.phases[index])

    def _trace_norm_bound(self, neighbour_weights: Array, factors: Array) -> Judged:
        scaled = self._scaled(neighbour_weights, factors)
        if scaled is None:
            return 0.0, 0.0
        norm, rounding = linalg.trace_norm(*scaled)
        sums = (len(factors) + self.phases.size + 4 * self.phases.shape[1]) * linalg.EPS
        return norm**2, 2 * rounding / norm + sums if norm > 0 else 0.0

    def _roots(self, weights: Array) -> tuple[Array, float] | None:
        """Return roots of the weights on the steps of each phase, and their total; None if all weights are 0."""
        rule = self.neighbours
        if not rule.at_least:
            return roots_of(weights, self.phases, rule.parts)
        root_and_total = roots_of_walks(weights, rule.times, rule.separation, rule.parts)
        return None if root_and_total is None else (root_and_total[0][None], root_and_total[1])

    def _rows(self) -> Array:
        """Return the workload on the steps of each phase (phases, m, times), 0 for missing steps."""
        dense = self.workload.dense()
        return np.append(dense, np.zeros((len(dense), 1)), axis=1)[:, self.phases].swapaxes(0, 1)

    def _scaled(self, neighbour_weights: Array, factors: Array) -> tuple[Array, float] | None:
        """Return ``diag(factors) W Λ^½`` for weights of total mass 1, and an error bound; None if all weights are 0."""
        scaled_roots = self._roots(neighbour_weights)
        if scaled_roots is None:
            return None
        roots = scaled_roots[0] / np.sqrt(scaled_roots[1])
        rows = self._rows()
        image, size = rows @ roots, np.abs(rows) @ np.abs(roots)  # (phases, m, times)
        off = sum_rounding(self.phases.shape[1]) + 4 * linalg.EPS
        error = off * np.linalg.norm(size * factors[:, None])
        error += np.linalg.norm(factors * self.steps.mismatch) * np.linalg.norm(np.abs(roots).sum(axis=1))
        flat = image.swapaxes(0, 1).reshape(len(factors), -1) * factors[:, None]
        return flat, float(error) * UPWARDS


# The costs of phases.


MAX_ENUMERATED_STEPS = 10
"""Maximum number of participations for the enumeration of all signs."""

MAX_SWEEPS, SWEEPS_PER_CHECK = 400, 20
"""Maximum number of sweeps over a correlation matrix, and sweeps between two evaluations of the bound."""

COST_TOL = 1e-9  # relative gap at which an upper bound on a cost is accepted


def phase_costs(
    covariance: Array, moves: Array, phases: Index, rule: Participation, rounding: Array | None = None
) -> tuple[Array, Array] | None:
    """Return the regularised covariance, and upper bounds on the costs of all phases; None if it is no covariance.

    With a minimum separation there is one bound, for all persons.
    """
    if not np.all(np.isfinite(covariance)):
        return None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        asymmetry = np.abs(covariance - covariance.T).max()
        if not asymmetry <= validate.SYMMETRY_TOLERANCE * np.abs(covariance).max():
            return None
        inverse = linalg.inverse_blocks((covariance + covariance.T) / 2, moves, phases, rounding)
        if inverse is None:
            return None
        regular, blocks, errors = inverse
        if rule.at_least:
            largest, _ = largest_sums(blocks[0], errors[0], rule.times, rule.separation)
            return regular, np.array([largest])
        return regular, largest_costs(blocks, errors, rule.parts)


def largest_costs(blocks: Array, rounding: Array, of: str) -> Array:
    """Return upper bounds on ``max ⟨C_p, R⟩`` for blocks C_p (phases, times, times) with entrywise error bounds."""
    steps = blocks.shape[1]
    costs = (np.abs(blocks) + rounding).sum(axis=(1, 2)) * (1 + 2 * sum_rounding(steps**2))
    traces = np.einsum("pii->p", blocks)
    open_phases = np.flatnonzero(np.isfinite(costs) & (costs > traces * (1 + COST_TOL)))
    if not len(open_phases):
        return np.asarray(costs)
    open_blocks, errors = blocks[open_phases], rounding[open_phases]
    upper = (
        _of_signs(open_blocks, errors)
        if of == "signs" and steps <= MAX_ENUMERATED_STEPS
        else diagonals_above(open_blocks, errors)[0]
    )
    costs[open_phases] = np.minimum(costs[open_phases], upper)
    return np.asarray(costs)


def sign_rows(steps: int) -> Array:
    """Return all choices of signs in rows, with 1 first."""
    return np.array([(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=steps - 1)])


def _of_signs(blocks: Array, rounding: Array) -> Array:
    """Return upper bounds on ``max z' C z`` over signs z, by enumeration."""
    steps = blocks.shape[1]
    signs = sign_rows(steps)
    forms = np.einsum("zi,pij,zj->pz", signs, blocks, signs, optimize=True)
    off = rounding.sum(axis=(1, 2)) + 2 * sum_rounding(steps**2) * np.abs(blocks).sum(axis=(1, 2))
    return np.asarray(forms.max(axis=1) + off * UPWARDS)


def diagonals_above(blocks: Array, rounding: Array) -> tuple[Array, Array]:
    """Return verified upper bounds ``1'd`` close to the least, and d (phases, times) with ``diag(d) ⪰ C_p``.

    Unit vectors v_i, each in turn set to the direction of ``Σ_j≠i C_ij v_j``, raise ``⟨C, R⟩`` for ``R_ij = v_i'v_j``,
    and ``d_i = C_ii + ‖Σ_j≠i C_ij v_j‖`` at the end.
    """
    count, steps = blocks.shape[:2]
    diagonal = np.arange(steps)
    off_diagonal = blocks.copy()
    off_diagonal[:, diagonal, diagonal] = 0.0
    vectors = np.random.default_rng(0).standard_normal((count, steps, steps))
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    costs, best = np.full(count, np.inf), blocks[:, diagonal, diagonal]
    for sweep in range(MAX_SWEEPS):
        for step in range(steps):
            pull = np.einsum("pj,pja->pa", off_diagonal[:, step], vectors)
            length = np.linalg.norm(pull, axis=1, keepdims=True)
            vectors[:, step] = np.where(length > 0, pull / np.where(length > 0, length, 1.0), vectors[:, step])
        if (sweep + 1) % SWEEPS_PER_CHECK:
            continue
        pulls = np.linalg.norm(off_diagonal @ vectors, axis=2)
        attained = np.einsum("pii->p", blocks) + pulls.sum(axis=1)
        diagonals = blocks[:, diagonal, diagonal] + pulls
        verified = _verified_bounds(blocks, rounding, diagonals)
        best = np.where((verified < costs)[:, None], diagonals, best)
        costs = np.minimum(costs, verified)
        if np.all(costs <= attained * (1 + COST_TOL)):
            break
    return costs, best


def _verified_bounds(blocks: Array, rounding: Array, diagonals: Array) -> Array:
    """Return ``1'd`` for each d raised until ``diag(d) - C`` is verified to be positive semidefinite."""
    steps, totals = blocks.shape[1], diagonals.sum(axis=1)
    bounds = np.empty(len(blocks))
    for place, (block, off, diagonal) in enumerate(zip(blocks, rounding, diagonals, strict=True)):
        min_eigenvalue, _ = linalg.extreme_eigenvalues(
            np.diag(diagonal) - block, spectral_norm(off + linalg.EPS * np.abs(block))
        )
        bounds[place] = totals[place] * (1 + sum_rounding(steps)) + steps * max(0.0, -min_eigenvalue)
    return bounds * (1 + 4 * linalg.EPS)
