"""Ascent of the bound for persons whose parts are at least so far apart: weights of persons, correlations, queries.

With weights of walks, the Π and the total z of `Walks`; unit vectors v_s for all steps, ``R_st = v_s'v_t``, of signs
its ``(2/π) arcsin``; and weights μ of queries, what is ascended is

    ``log ‖diag(√μ) W (Π ∘ R)^½‖_*² - log z - log Σ μ_j``.

Its gradient in ``Λ = Π ∘ R`` is ``X / g`` with ``X = K' (K Λ K')^{-½} K``, ``K = diag(√μ) W``, one eigendecomposition;
the chain rule leads back along the walks. All weights are exponentials, so that nothing binds, and the steps are those
of L-BFGS. The function is concave in Λ but not in these: where ascent ends is a bound and need not be the best. At
first τ times the mean logarithms of all weights is added, which keeps any from vanishing before the others are known.
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

MEMORY = 20  # pairs of steps and changes of the gradient that L-BFGS keeps
ARMIJO, SHORTEST, FIRST_STEP, LONGEST = 1e-4, 1e-12, 0.02, 0.3
FIRST_BARRIER, SHRUNK = 0.1, 0.93  # τ at the start, and its factor after each step
NULL = 1e-14  # eigenvalues of this share of the largest count as this
NEARNESS, CLOSEST = 3.0, 0.05  # at the start a next part weighs (lateness + CLOSEST)^-NEARNESS, in separations
ACTIVE, LEAST = (
    64.0,
    8.0,
)  # power of a query's variance over the largest that it weighs at first, and the least logarithm
RAISED = 1e-3  # what is added to the first vectors, of norm 1, so that none is 0


@dataclass(frozen=True, eq=False)
class WalkProgram:
    """Queries in rows, and who takes part."""

    queries: Array  # (m, n) of unit target, or with the roots of their weights
    times: int
    apart: int
    of: str
    fixed: bool  # whether the weights of the queries are fixed

    @cached_property
    def links(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Steps that may follow each other."""
        count = self.queries.shape[1]
        first, second = np.triu_indices(count, self.apart)
        return first, second

    def begin(self, strategy: Array) -> Array:
        """Return the unknowns that the noise of a strategy C (n, n) suggests.

        At the best noise Λ is in proportion to ``M = Σ K'K Σ``, ``Σ = (C'C)⁻¹``: its diagonal says how often a person
        has a part in each step, its correlations which vectors to start from. People come again soon.
        """
        count = len(strategy)
        inverse = scipy.linalg.solve_triangular(strategy, np.eye(count), lower=True, check_finite=False)
        image = self.queries @ inverse
        logs = np.zeros(0)
        if not self.fixed:
            ratios = np.einsum("ji,ji->j", image, image)
            logs = np.maximum(ACTIVE * np.log(np.maximum(ratios / ratios.max(), np.exp(-LEAST))), -LEAST)
            image = np.exp(logs / 2)[:, None] * image
        root = inverse @ image.T
        sizes = np.linalg.norm(root, axis=1)
        values, turned = np.linalg.eigh(root @ root.T / np.outer(sizes, sizes).clip(sizes.max() ** 2 * NULL))
        shares = 2 * np.log(np.maximum(sizes / sizes.max(), np.exp(-LEAST / 2)))
        first, second = self.links
        later = -NEARNESS * np.log((second - first - self.apart) / self.apart + CLOSEST)
        vectors = turned * np.sqrt(np.maximum(values, 0.0)) + RAISED * np.eye(count)
        return np.concatenate([shares, shares[second] + later, vectors.ravel(), logs])

    def at(self, unknowns: Array) -> WalkPoint:
        queries, count = self.queries.shape
        ends = np.cumsum([count, len(self.links[0]), count**2])
        begin, links, vectors, logs = np.split(unknowns, ends)
        following = np.zeros((count, count))
        following[self.links] = np.exp(links)
        weights = np.ones(queries) if self.fixed else np.exp(logs - logs.max())
        walks = Walks.of(np.exp(begin), following, min(self.times, -(-count // self.apart)))
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
        """The vectors with norm 1, and their lengths."""
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
        return rows, np.sqrt(np.maximum(squares, NULL * squares[-1])), vectors

    @cached_property
    def value(self) -> float:
        """The logarithm of the bound; minus infinity where numbers end."""
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
        """Return the value and τ times the mean logarithms of the weights of steps and of queries."""
        if not barrier or not np.isfinite(self.value):
            return self.value
        with np.errstate(divide="ignore"):
            logs = np.log(self.walks.single / self.walks.total).mean()
            if not self.program.fixed:
                logs += np.log(self.query_weights / self.query_weights.sum()).mean()
        return float(self.value + barrier * logs)

    def gradient(self, barrier: float) -> Array:
        rows, values, vectors = self.decomposed
        turned = rows.T @ vectors
        slope = (turned / values) @ turned.T / values.sum()
        by_single = np.diagonal(slope) + barrier / len(slope) / self.walks.single
        by_pairs = np.triu(2 * slope * self.correlations, 1) + np.diag(by_single)
        begin, following = back_along(self.walks, by_pairs, -(1 + barrier) / self.walks.total)
        by_cosines = slope * self.pairs
        if self.program.of == "signs":
            by_cosines = by_cosines * 2 / np.pi / np.sqrt(np.maximum(1 - self.cosines**2, NULL))
        np.fill_diagonal(by_cosines, 0.0)
        units, lengths = self.units
        pull = 2 * by_cosines @ units
        pull = (pull - np.einsum("sa,sa->s", pull, units)[:, None] * units) / lengths
        parts = [begin * self.walks.begun[0], (following * self.walks.following)[self.program.links], pull.ravel()]
        if not self.program.fixed:
            by_query = vectors**2 @ values / values.sum()
            parts.append(
                by_query + barrier / len(by_query) - (1 + barrier) * self.query_weights / self.query_weights.sum()
            )
        return np.concatenate(parts)

    @property
    def lower_bound(self) -> float:
        return float(np.exp(self.value))

    @property
    def dual(self) -> Array:
        """Weights of walks and correlations of steps as the judge takes them (2, n, n)."""
        chain = self.walks.following + np.diag(self.walks.begun[0] / self.walks.begun[0].max())
        return np.array([chain, self.cosines])


def back_along(walks: Walks, by_pairs: Array, by_total: float) -> tuple[Array, Array]:
    """Return derivatives in the weights of a first part and of one after another, from those in Π and in the total.

    ``by_pairs`` has the derivatives in the weights of pairs above its diagonal, and in those of single steps on it.
    """
    begun, ended, between, following = walks.begun, walks.ended, [*walks.between()], walks.following
    times, by_single = len(begun), np.diagonal(by_pairs)
    by_begun = by_single * ended[::-1] + by_total
    by_ended = (by_single * begun)[::-1].copy()
    by_between = []
    for parts in range(1, times):
        count = times - parts
        both = np.triu(by_pairs, 1) * between[parts - 1]
        by_begun[:count] += ended[:count][::-1] @ both.T
        by_ended[:count] += (begun[:count] @ both)[::-1]
        by_between.append(by_pairs * walks.around(parts))
    result = np.zeros_like(following)
    for parts in range(times - 1, 1, -1):
        result += between[parts - 2].T @ by_between[parts - 1]
        by_between[parts - 2] = by_between[parts - 2] + by_between[parts - 1] @ following.T
    result += by_between[0] if by_between else 0.0
    for parts in range(times - 1, 0, -1):
        result += np.outer(by_ended[parts], ended[parts - 1]) + np.outer(begun[parts - 1], by_begun[parts])
        by_ended[parts - 1] += by_ended[parts] @ following
        by_begun[parts - 1] += following @ by_begun[parts]
    return by_begun[0], result


# The steps.


@dataclass(frozen=True, eq=False)
class WalkState:
    """A point of the ascent, the objective of noise that is known, and the last steps with what they changed."""

    point: WalkPoint
    objective: float
    steps: int = 1  # points evaluated
    count: int = 0  # steps taken
    memory: tuple[tuple[Array, Array], ...] = field(default=(), repr=False)

    @property
    def lower_bound(self) -> float:
        return self.point.lower_bound


def step(state: WalkState) -> WalkState:
    """Take a step of L-BFGS; raises `LinAlgError` where none leads up."""
    point, barrier = state.point, FIRST_BARRIER * SHRUNK**state.count
    gradient, merit, memory = point.gradient(barrier), point.merit(barrier), state.memory
    direction = _direction(gradient, memory)
    slope = float(direction @ gradient)
    if not slope > 0:
        direction, memory, slope = gradient, (), float(gradient @ gradient)
    length = min(1.0, (LONGEST if memory else FIRST_STEP) / max(float(np.abs(direction).max()), 1e-300))
    steps = state.steps
    while length > SHORTEST:
        following, steps = point.program.at(point.unknowns + length * direction), steps + 1
        reached = following.merit(barrier)
        if reached >= merit + ARMIJO * length * slope and reached > merit:
            change: Any = following.unknowns - point.unknowns, gradient - following.gradient(barrier)
            if float(change[0] @ change[1]) > 0:
                memory = (*memory, change)[-MEMORY:]
            return replace(state, point=following, steps=steps, count=state.count + 1, memory=memory)
        length /= 4
    raise np.linalg.LinAlgError("no step raises the bound")


def _direction(gradient: Array, memory: tuple[tuple[Array, Array], ...]) -> Array:
    """Return the gradient times the inverse of minus the Hessian that the last steps tell, by two loops over them."""
    direction, shares = gradient.copy(), []
    for moved, changed in reversed(memory):
        share = float(moved @ direction) / float(moved @ changed)
        direction -= share * changed
        shares.append(share)
    if memory:
        moved, changed = memory[-1]
        direction *= float(moved @ changed) / float(changed @ changed)
    for (moved, changed), share in zip(memory, reversed(shares), strict=True):
        direction += (share - float(changed @ direction) / float(moved @ changed)) * moved
    return direction
