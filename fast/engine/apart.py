"""Maximisation of the bound for participations with a minimum separation, over weights of users and correlations.

The variables are weights of walks, with Π and total z from `Walks`; unit vectors v_s for all steps, with
``R_st = v_s'v_t`` or, for signs, ``(2/π) arcsin`` of that; and weights μ of queries. The objective is

    ``log ‖diag(√μ) W (Π ∘ R)^½‖_*² - log z - log Σ μ_j``.

With the norm g, its gradient in ``Λ = Π ∘ R`` is ``X / g`` with ``X = K' (K Λ K')^{-½} K``, ``K = diag(√μ) W``, from
one eigendecomposition. Derivatives in the weights follow by the chain rule along the walks. All weights are
exponentials, so the problem is unconstrained, and L-BFGS maximises. The function is concave in Λ but not in these
variables: the result is a bound, but not always the best. A barrier, τ times the mean logarithms of all weights, keeps
weights from vanishing too early; τ decreases in every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech.geometry.apart import Walks
from dualmech.validate import Array

LBFGS_MEMORY = 20  # number of pairs of steps and gradient changes
ARMIJO_FACTOR, MIN_STEP, FIRST_STEP, MAX_LOG_STEP = 1e-4, 1e-12, 0.02, 0.3
INITIAL_BARRIER, BARRIER_FACTOR = 0.1, 0.93  # initial τ, and its factor after each step
MIN_EIGENVALUE = 1e-14  # lower limit on eigenvalues, relative to the largest
GAP_POWER, GAP_OFFSET = 3.0, 0.05  # initial weights (excess separation + GAP_OFFSET)^-GAP_POWER
VARIANCE_POWER, MAX_LOG_DECREASE = (
    64.0,
    8.0,
)  # initial weights are this power of variance over maximum variance, and at least exp(-8)
VECTOR_RIDGE = 1e-3  # added to the initial vectors, of norm 1, so that none is 0


@dataclass(frozen=True, eq=False)
class WalkProgram:
    """Query rows, and the rule of participations."""

    queries: Array  # (m, n) over their targets, or times the roots of their weights
    times: int
    separation: int
    of: str
    fixed: bool  # whether the weights of the queries are fixed

    @cached_property
    def links(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Pairs of steps that may be successive participations."""
        count = self.queries.shape[1]
        row, column = np.triu_indices(count, self.separation)
        return row, column

    def begin(self, strategy: Array) -> Array:
        """Return initial unknowns from the noise of a strategy C, shape (n, n).

        For optimal noise, Λ is proportional to ``M = Σ K'K Σ``, ``Σ = (C'C)⁻¹``. Its diagonal gives the frequencies of
        participations in the steps, and its correlations the vectors. Successive participations are close in time.
        """
        count = len(strategy)
        inverse = scipy.linalg.solve_triangular(strategy, np.eye(count), lower=True, check_finite=False)
        image = self.queries @ inverse
        logs = np.zeros(0)
        if not self.fixed:
            ratios = np.einsum("ji,ji->j", image, image)
            logs = np.maximum(
                VARIANCE_POWER * np.log(np.maximum(ratios / ratios.max(), np.exp(-MAX_LOG_DECREASE))), -MAX_LOG_DECREASE
            )
            image = np.exp(logs / 2)[:, None] * image
        root = inverse @ image.T
        norms = np.linalg.norm(root, axis=1)
        values, eigenvectors = np.linalg.eigh(
            root @ root.T / np.outer(norms, norms).clip(norms.max() ** 2 * MIN_EIGENVALUE)
        )
        shares = 2 * np.log(np.maximum(norms / norms.max(), np.exp(-MAX_LOG_DECREASE / 2)))
        row, column = self.links
        log_gap_weights = -GAP_POWER * np.log((column - row - self.separation) / self.separation + GAP_OFFSET)
        vectors = eigenvectors * np.sqrt(np.maximum(values, 0.0)) + VECTOR_RIDGE * np.eye(count)
        return np.concatenate([shares, shares[column] + log_gap_weights, vectors.ravel(), logs])

    def at(self, unknowns: Array) -> WalkPoint:
        queries, count = self.queries.shape
        ends = np.cumsum([count, len(self.links[0]), count**2])
        log_starts, log_transitions, vectors, logs = np.split(unknowns, ends)
        transitions = np.zeros((count, count))
        transitions[self.links] = np.exp(log_transitions)
        weights = np.ones(queries) if self.fixed else np.exp(logs - logs.max())
        walks = Walks.of(np.exp(log_starts), transitions, min(self.times, -(-count // self.separation)))
        return WalkPoint(self, unknowns, walks, vectors.reshape(count, count), weights)


@dataclass(frozen=True, eq=False)
class WalkPoint:
    """The bound at some unknowns, and its gradient."""

    program: WalkProgram
    unknowns: Array
    walks: Walks
    vectors: Array  # (n, n) rows v_s, of any length
    query_weights: Array  # (m,) μ

    @cached_property
    def units(self) -> tuple[Array, Array]:
        """The normalised vectors, and their norms."""
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        return self.vectors / lengths, lengths

    @cached_property
    def cosines(self) -> Array:
        cosines = np.clip(self.units[0] @ self.units[0].T, -1.0, 1.0)
        np.fill_diagonal(cosines, 1.0)
        return cosines

    @cached_property
    def correlations(self) -> Array:
        """R."""
        return self.cosines if self.program.of == "vectors" else np.asarray(2 / np.pi * np.arcsin(self.cosines))

    @cached_property
    def pairs(self) -> Array:
        """Π."""
        return self.walks.pairs

    @cached_property
    def decomposed(self) -> tuple[Array, Array, Array]:
        """``K``, and the roots and the vectors of the eigendecomposition of ``K Λ K'``."""
        rows = np.sqrt(self.query_weights)[:, None] * self.program.queries
        gram = rows @ (self.pairs * self.correlations) @ rows.T
        squares, vectors = scipy.linalg.eigh((gram + gram.T) / 2, driver="evd", check_finite=False)
        return rows, np.sqrt(np.maximum(squares, MIN_EIGENVALUE * squares[-1])), vectors

    @cached_property
    def value(self) -> float:
        """The logarithm of the bound; minus infinity on overflow or failure."""
        if not (np.isfinite(self.walks.total) and np.all(np.isfinite(self.pairs))):
            return -np.inf
        try:
            norm = self.decomposed[1].sum()
        except np.linalg.LinAlgError:
            return -np.inf
        total = 1.0 if self.program.fixed else self.query_weights.sum()
        value = 2 * np.log(norm) - np.log(self.walks.total) - np.log(total)
        return float(value) if np.isfinite(value) else -np.inf

    def merit(self, barrier: float) -> float:
        """Return the value plus τ times the mean logarithms of the weights of steps and of queries."""
        if not barrier or not np.isfinite(self.value):
            return self.value
        with np.errstate(divide="ignore"):
            logs = np.log(self.walks.single / self.walks.total).mean()
            if not self.program.fixed:
                logs += np.log(self.query_weights / self.query_weights.sum()).mean()
        return float(self.value + barrier * logs)

    def gradient(self, barrier: float) -> Array:
        rows, values, vectors = self.decomposed
        projected = rows.T @ vectors
        slope = (projected / values) @ projected.T / values.sum()
        by_single = np.diagonal(slope) + barrier / len(slope) / self.walks.single
        by_pairs = np.triu(2 * slope * self.correlations, 1) + np.diag(by_single)
        by_start, by_transition = back_along(self.walks, by_pairs, -(1 + barrier) / self.walks.total)
        by_cosines = slope * self.pairs
        if self.program.of == "signs":
            by_cosines = by_cosines * 2 / np.pi / np.sqrt(np.maximum(1 - self.cosines**2, MIN_EIGENVALUE))
        np.fill_diagonal(by_cosines, 0.0)
        units, lengths = self.units
        by_vectors = 2 * by_cosines @ units
        by_vectors = (by_vectors - np.einsum("sa,sa->s", by_vectors, units)[:, None] * units) / lengths
        gradients = [
            by_start * self.walks.begun[0],
            (by_transition * self.walks.following)[self.program.links],
            by_vectors.ravel(),
        ]
        if not self.program.fixed:
            by_query = vectors**2 @ values / values.sum()
            gradients.append(
                by_query + barrier / len(by_query) - (1 + barrier) * self.query_weights / self.query_weights.sum()
            )
        return np.concatenate(gradients)

    @property
    def lower_bound(self) -> float:
        return float(np.exp(self.value))

    @property
    def dual(self) -> Array:
        """Weights of walks and correlations of steps in the form for the judge, shape (2, n, n)."""
        chain = self.walks.following + np.diag(self.walks.begun[0] / self.walks.begun[0].max())
        return np.array([chain, self.cosines])


def back_along(walks: Walks, by_pairs: Array, by_total: float) -> tuple[Array, Array]:
    """Return derivatives in the weights of starts and of transitions, from the derivatives in Π and in the total.

    ``by_pairs`` has the derivatives in the weights of pairs above its diagonal, and of single steps on the diagonal.
    """
    begun, ended, between_walks, transitions = walks.begun, walks.ended, [*walks.between()], walks.following
    times, by_single = len(begun), np.diagonal(by_pairs)
    by_begun = by_single * ended[::-1] + by_total
    by_ended = (by_single * begun)[::-1].copy()
    by_between = []
    for distance in range(1, times):
        count = times - distance
        weighted_pairs = np.triu(by_pairs, 1) * between_walks[distance - 1]
        by_begun[:count] += ended[:count][::-1] @ weighted_pairs.T
        by_ended[:count] += (begun[:count] @ weighted_pairs)[::-1]
        by_between.append(by_pairs * walks.around(distance))
    result = np.zeros_like(transitions)
    for distance in range(times - 1, 1, -1):
        result += between_walks[distance - 2].T @ by_between[distance - 1]
        by_between[distance - 2] = by_between[distance - 2] + by_between[distance - 1] @ transitions.T
    result += by_between[0] if by_between else 0.0
    for distance in range(times - 1, 0, -1):
        result += np.outer(by_ended[distance], ended[distance - 1]) + np.outer(begun[distance - 1], by_begun[distance])
        by_ended[distance - 1] += by_ended[distance] @ transitions
        by_begun[distance - 1] += transitions @ by_begun[distance]
    return by_begun[0], result


# The steps.


@dataclass(frozen=True, eq=False)
class WalkState:
    """A point of the ascent, the objective of a known mechanism, and the last steps with their gradient changes."""

    point: WalkPoint
    objective: float
    steps: int = 1  # points evaluated
    count: int = 0  # steps taken
    memory: tuple[tuple[Array, Array], ...] = field(default=(), repr=False)

    @property
    def lower_bound(self) -> float:
        return self.point.lower_bound


def step(state: WalkState) -> WalkState:
    """Take a step of L-BFGS; raises `LinAlgError` if no step increases the bound."""
    point, barrier = state.point, INITIAL_BARRIER * BARRIER_FACTOR**state.count
    gradient, merit, memory = point.gradient(barrier), point.merit(barrier), state.memory
    direction = _direction(gradient, memory)
    slope = float(direction @ gradient)
    if not slope > 0:
        direction, memory, slope = gradient, (), float(gradient @ gradient)
    length = min(1.0, (MAX_LOG_STEP if memory else FIRST_STEP) / max(float(np.abs(direction).max()), 1e-300))
    steps = state.steps
    while length > MIN_STEP:
        candidate, steps = point.program.at(point.unknowns + length * direction), steps + 1
        new_merit = candidate.merit(barrier)
        if new_merit >= merit + ARMIJO_FACTOR * length * slope and new_merit > merit:
            change: Any = candidate.unknowns - point.unknowns, gradient - candidate.gradient(barrier)
            if float(change[0] @ change[1]) > 0:
                memory = (*memory, change)[-LBFGS_MEMORY:]
            return replace(state, point=candidate, steps=steps, count=state.count + 1, memory=memory)
        length /= 4
    raise np.linalg.LinAlgError("no step increases the bound")


def _direction(gradient: Array, memory: tuple[tuple[Array, Array], ...]) -> Array:
    direction, factors = gradient.copy(), []
    for step, change in reversed(memory):
        factor = float(step @ direction) / float(step @ change)
        direction -= factor * change
        factors.append(factor)
    if memory:
        step, change = memory[-1]
        direction *= float(step @ change) / float(change @ change)
    for (step, change), factor in zip(memory, reversed(factors), strict=True):
        direction += (factor - float(change @ direction) / float(step @ change)) * step
    return direction
