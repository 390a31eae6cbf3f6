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


def step(
    program: Evaluable, state: FixedPointState, acceleration: Acceleration = Acceleration()
) -> FixedPointState:
    """Take one accelerated step, or the plain one where acceleration would lower the bound."""
    spectrum = state.spectrum
    position = np.log(spectrum.weights)
    # What hardly moves anything may gain nothing at all in floating point.
    residual = np.log(np.maximum(spectrum.gains / spectrum.fidelity, linalg.EPS))
    trail = (*state.trail, (position, residual))[-acceleration.memory :]
    proposed = _evaluate(program, spectrum, _anderson_step(trail, spectrum.weights))
    if proposed is not None and proposed.lower_bound >= (1 - acceleration.spare) * spectrum.lower_bound:
        return FixedPointState(proposed, trail, proposed.decompositions)
    plain = _evaluate(program, spectrum, position + residual)
    spent = sum(each.decompositions for each in (proposed, plain) if each is not None)
    return FixedPointState(spectrum if plain is None else plain, decompositions=spent)


def _anderson_step(trail: tuple[tuple[Array, Array], ...], weights: Array) -> Array:
    """Mix the trail so that the residual, weighted as it enters F, would be least (Anderson, type II)."""
    position, residual = trail[-1]
    target = position + POWER * residual
    if len(trail) < 3:
        return target
    moves = np.diff([place for place, _ in trail], axis=0)
    changes = np.diff([left for _, left in trail], axis=0)
    importance = np.sqrt(weights)
    mix = np.linalg.lstsq((changes * importance).T, residual * importance, rcond=1e-10)[0]
    return np.asarray(target - mix @ (moves + POWER * changes))


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
