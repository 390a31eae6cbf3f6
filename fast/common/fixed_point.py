"""The least trace above several covariances: an accelerated fixed point of the dual, a measurement of quantum states.

Write ``Y_i = V_i V_i'``, so that ``Σ_i Y_i = I`` says that the rows of ``[V_1 … V_p]`` are orthonormal. At a maximum of
``Σ_i tr(P_i Y_i)`` they are the polar factor of ``[P_1 V_1 … P_p V_p]``, and where all ``P_i ⪰ 0`` the value never
falls when they are replaced by it (Ježek, Řeháček and Fiurášek 2002). Three things make that quick:

- Σ and all P_i may be shifted by the same matrix. The step changes most where the P_i are small, so as much as all of
  them have in common is taken away first; for two of them hardly a step is then left to take.
- Steps are extrapolated with Nesterov's momentum, which starts anew whenever the value falls.
- ``Σ_i P_i Y_i`` is the Σ that fits the optimality conditions ``(Σ - P_i) Y_i = 0`` best, but is not yet above the P_i.
  It is raised by the positive part of ``P_i - Σ``, one mechanism after the other, which costs far less trace than a
  multiple of the identity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dualmech.linalg import EPS
from dualmech.validate import Array

LIFT = 1e-4
"""Multiple of the identity added to the shifted P_i, in units of their mean variance: it keeps them invertible."""

CLEAR = 1e-6
"""Least eigenvalue, relative to the largest, at which a polar factor counts as orthonormal without a second look."""

MOST_DECOMPOSITIONS = 4  # attempts that one polar factor may take
MEMORY = 3  # the momentum after j steps is ``j / (j + MEMORY)``
ROUND = 15  # steps of the fixed point between two looks at the gap
ROUNDING = 64 * EPS  # fall of the value, relative, that is no reason to start the momentum anew

WARM_SHARE = 1e-3
"""Share of equal weights mixed into a warm start: a direction without any weight could not win one back."""


@dataclass(frozen=True, slots=True, eq=False)
class CommonProgram:
    """The bounds in units of order one, less what they have in common."""

    bounds: Array  # (p, r, r) ``(P_i - shift) / unit``, positive definite but for rounding
    shift: Array  # (r, r) a common lower bound of the P_i, less a small multiple of the identity
    unit: float  # mean variance of the ``P_i - shift``

    @classmethod
    def of(cls, bounds: Array) -> CommonProgram:
        """Take away what the covariances have in common."""
        count, size, _ = bounds.shape
        lower = -raise_above_bounds(-bounds, -bounds[0])
        excess = bounds - lower
        traces = [float(np.trace(excess.sum(axis=0))), EPS * float(np.trace(bounds.sum(axis=0)))]
        unit = max(traces) / (count * size) or 1.0
        identity = np.eye(size)
        return cls(excess / unit + LIFT * identity, lower - LIFT * unit * identity, unit)

    def covariance(self, inner: Array) -> Array:
        """Return a covariance in the problem's own units."""
        return self.shift + self.unit * inner

    def value(self, inner: float) -> float:
        """Return a trace in the problem's own units."""
        return float(np.trace(self.shift)) + self.unit * inner


@dataclass(frozen=True, slots=True, eq=False)
class CommonPoint:
    """The two sides of the gap, in the problem's own units, with the covariance (r, r) that reaches the first."""

    objective: float
    lower_bound: float
    covariance: Array


@dataclass(frozen=True, slots=True, eq=False)
class CommonState:
    """The state of the fixed point."""

    spectrum: CommonPoint  # what is proven here
    factors: Array  # factors, pulled, last_pulled: (p, r, r) V_i, ``P_i V_i``, and the same one step earlier
    pulled: Array
    last_pulled: Array
    age: int  # steps since the momentum last started
    decompositions: int  # eigendecompositions so far

    @property
    def weights(self) -> Array:
        """The dual weights ``Y_i = V_i V_i'``."""
        return self.factors @ _transpose(self.factors)


def start(program: CommonProgram, weights: Array | None = None) -> CommonState:
    """Begin with equal weights, or near those of an earlier solution."""
    count, size, _ = program.bounds.shape
    factors = np.broadcast_to(np.eye(size) / np.sqrt(count), program.bounds.shape)
    spent = 0
    if weights is not None:
        values, vectors = np.linalg.eigh((weights + _transpose(weights)) / 2)
        values = (1 - WARM_SHARE) * np.maximum(values, 0.0) + WARM_SHARE / count
        factors, spent = _polar(vectors * np.sqrt(values)[:, None, :])
        spent += count
    pulled = program.bounds @ factors
    return _with_gap(program, CommonState(_NOWHERE, factors, pulled, pulled, 0, spent))


def step(program: CommonProgram, state: CommonState) -> CommonState:
    """Take a round of steps, then compute the gap."""
    for _ in range(ROUND):
        state = _momentum_step(program, state)
    return _with_gap(program, state)


def raise_above_bounds(bounds: Array, covariance: Array) -> Array:
    """Return the covariance plus what lifts it above every bound but for rounding, the worst violation first."""
    missing = [_positive_part(bound - covariance) for bound in bounds]
    order = np.argsort([-np.trace(part) for part in missing], kind="stable")
    covariance = covariance + missing[order[0]]
    for index in order[1:]:
        covariance = covariance + _positive_part(bounds[index] - covariance)
    return (covariance + covariance.T) / 2


def _momentum_step(program: CommonProgram, state: CommonState) -> CommonState:
    """Take one step with momentum, or a plain one where momentum lowers the value."""
    momentum = state.age / (state.age + MEMORY)
    factors, spent = _polar(state.pulled + momentum * (state.pulled - state.last_pulled))
    pulled, age = program.bounds @ factors, state.age + 1
    reached = (1 - ROUNDING) * np.vdot(state.pulled, state.factors)
    if momentum and np.vdot(pulled, factors) < reached:
        factors, more = _polar(state.pulled)
        pulled, age, spent = program.bounds @ factors, 1, spent + more
    return CommonState(state.spectrum, factors, pulled, state.pulled, age, state.decompositions + spent)


def _with_gap(program: CommonProgram, state: CommonState) -> CommonState:
    """Return the state with both sides of its gap."""
    fitted = (state.pulled @ _transpose(state.factors)).sum(axis=0)
    inner = raise_above_bounds(program.bounds, (fitted + fitted.T) / 2)
    point = CommonPoint(
        program.value(float(np.trace(inner))),
        program.value(float(np.vdot(state.pulled, state.factors))),
        program.covariance(inner),
    )
    spent = state.decompositions + 2 * len(program.bounds) - 1
    return CommonState(point, state.factors, state.pulled, state.last_pulled, state.age, spent)


def _polar(blocks: Array) -> tuple[Array, int]:
    """Return the polar factor ``(G G')^(-1/2) G`` of ``G = [G_1 … G_p]``, and the decompositions that it took.

    The square of an ill-conditioned G is known to its rounding alone. What the first attempt leaves is far better
    conditioned, so it is treated the same way.
    """
    decompositions, clear = 0, False
    while not clear and decompositions < MOST_DECOMPOSITIONS:
        values, vectors = np.linalg.eigh((blocks @ _transpose(blocks)).sum(axis=0))
        decompositions += 1
        floor = len(values) * EPS * values[-1]
        blocks = (vectors / np.sqrt(np.maximum(values, floor))) @ vectors.T @ blocks
        clear = values[0] > CLEAR * values[-1]
    return blocks, decompositions


def _positive_part(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    kept = vectors[:, values > 0] * np.sqrt(values[values > 0])
    return np.asarray(kept @ kept.T)


def _transpose(blocks: Array) -> Array:
    return np.swapaxes(blocks, 1, 2)


_NOWHERE = CommonPoint(np.inf, 0.0, np.zeros((0, 0)))  # what is known before the first look
