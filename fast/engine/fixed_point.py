"""The multiplicative fixed point of the dual, accelerated and safeguarded; cheap steps for large problems.

At the optimum every weight w that is not zero has ``gain = F``, so ``log w ← log w + κ log(gain / F)`` leaves
it alone. With κ = 1 the bound rises in practice at every step; κ near 2 and Anderson acceleration are quicker,
and a step that lowers the bound is taken back and replaced by the plain one. Multiplicative fixed points for
factorisation norms are known from the literature on private continual counting (Denisov et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dualmech import linalg
from dualmech.fast.engine.dual_function import Evaluable, Evaluated
from dualmech.validate import Array

POWER = 1.8  # κ of an ordinary step; 1 is the plain step, 2 the edge of stability
MEMORY = 6  # number of earlier steps that Anderson acceleration mixes
FLOOR = 1e-14  # smallest weight, relative to the mean weight: a zero could not grow again
LONG = 2**15  # weights from which on a mixture is found by normal equations
DEPENDENT = 1e-13  # eigenvalue of these, relative, below which what is mixed depends on the rest
LONGEST = 3.0  # largest change of the logarithm of a weight in one step


@dataclass(frozen=True, slots=True, eq=False)
class FixedPointState:
    """The dual function at the current weights and, oldest first, the recent (log weights, log gains / F).

    `decompositions` counts those of the last step.
    """

    spectrum: Evaluated
    trail: tuple[tuple[Array, Array], ...] = ()
    decompositions: int = 1


@dataclass(frozen=True, slots=True)
class Acceleration:
    """How steps are mixed, and when a mixture is taken back."""

    memory: int = MEMORY
    spare: float = 0.0  # by how much a mixture may lower the bound, relative
    # weights below this share of the mean go where their own gains say: a mixture that is best for the bound knows
    # nothing of them, and their gains decide the other side
    steered: float = 0.0


def step(
    program: Evaluable, state: FixedPointState, acceleration: Acceleration = Acceleration()
) -> FixedPointState:
    """Take one accelerated step, or the plain one where acceleration would lower the bound."""
    spectrum = state.spectrum
    position = np.log(spectrum.weights)
    # What hardly moves anything may gain nothing at all in floating point.
    residual = np.log(np.maximum(spectrum.gains / spectrum.fidelity, linalg.EPS))
    trail = (*state.trail, (position, residual))[-acceleration.memory :]
    proposed = _evaluate(program, spectrum, _anderson_step(trail, spectrum.weights, acceleration.steered))
    if proposed is not None and proposed.lower_bound >= (1 - acceleration.spare) * spectrum.lower_bound:
        return FixedPointState(proposed, trail, proposed.decompositions)
    plain = _evaluate(program, spectrum, position + residual)
    spent = sum(each.decompositions for each in (proposed, plain) if each is not None)
    return FixedPointState(spectrum if plain is None else plain, decompositions=spent)


def _anderson_step(trail: tuple[tuple[Array, Array], ...], weights: Array, steered: float) -> Array:
    """Mix the trail so that the residual, weighted as it enters F, would be least (Anderson, type II)."""
    position, residual = trail[-1]
    target = position + POWER * residual
    if len(trail) < 3:
        return target
    moves = np.diff([place for place, _ in trail], axis=0)
    changes = np.diff([left for _, left in trail], axis=0)
    importance = np.sqrt(weights)
    mix = _least_squares(changes * importance, residual * importance)
    mixed = target - mix @ (moves + POWER * changes)
    astray = (weights < steered * weights.mean()) & ((mixed - position) * residual < 0)
    return np.where(astray, position + residual, mixed)


def _least_squares(rows: Array, right: Array) -> Array:
    """Return the mix of rows that is nearest to the right side; of long ones by their products."""
    if len(right) <= LONG:
        return np.asarray(np.linalg.lstsq(rows.T, right, rcond=1e-10)[0])
    norms = np.linalg.norm(rows, axis=1)
    units = np.divide(1.0, norms, out=np.zeros(len(norms)), where=norms > 0)
    values, vectors = np.linalg.eigh((rows @ rows.T) * units * units[:, None])
    kept = values > DEPENDENT * values[-1]
    basis = vectors[:, kept] * units[:, None]
    return np.asarray(basis @ (basis.T @ (rows @ right) / values[kept]))


def _evaluate(program: Evaluable, spectrum: Evaluated, position: Array) -> Evaluated | None:
    step_taken = np.clip(position - np.log(spectrum.weights), -LONGEST, LONGEST)
    if not np.all(np.isfinite(step_taken)):
        return None
    return program.at(normalise(spectrum.weights * np.exp(step_taken), spectrum.neighbours))


def normalise(weights: Array, neighbours: int) -> Array:
    """Return positive weights whose two parts each sum to 1; the second is empty where Q is fixed."""
    parts = []
    for part in (weights[:neighbours], weights[neighbours:]):
        if part.size:
            floored = np.maximum(part, FLOOR * part.mean())
            parts.append(floored / floored.sum())
    return np.concatenate(parts)
