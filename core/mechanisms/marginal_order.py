"""Mechanisms of marginal tables in order: common to several, left of one, revealed together; a number a subspace.

On one domain all have cost matrices ``Σ_T (d / τ_T) P_T`` on the same projectors, so that everything that
`dualmech.mechanisms.answerability`, `dualmech.CommonMechanism` and `dualmech.residual` do with matrices goes subspace
by subspace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.mechanisms.answerability import TOLERANCE
from dualmech.mechanisms.decomposition import NOTHING_LEFT
from dualmech.mechanisms.subspace_noise import SubspaceNoise
from dualmech.workloads.lattice import Axes

__all__ = ["TOLERANCE", "MarginalAnswerability", "answerable", "common", "left", "together"]

Noise = dict[Axes, float]


@dataclass(frozen=True, slots=True)
class MarginalAnswerability:
    """Whether one mechanism of marginals can be answered from another, and why; true or false in a condition.

    Attributes
    ----------
    answerable : bool
        Whether ``1/τ ≤ (1 + tol) / τ_other`` on every subspace.
    excess : float
        The least e ≥ 0 with ``1/τ ≤ (1 + e) / τ_other``; infinite where the other does not measure a subspace.
    attributes : tuple of str or None
        The subspace, by its attributes, on which it is worst; None where it is answerable.
    """

    answerable: bool
    excess: float
    attributes: tuple[str, ...] | None = None

    def __bool__(self) -> bool:
        return self.answerable


def answerable(wanted: SubspaceNoise, given: SubspaceNoise, tol: float = TOLERANCE) -> MarginalAnswerability:
    """Say whether `wanted` can be answered from `given`; see `MarginalMechanism.is_answerable_from`."""
    tol = validate.positive_number(tol=tol)
    check_domain([wanted, given])
    excess, worst = 0.0, None
    for axes, level in wanted.noise.items():
        over = given.noise[axes] / level - 1 if axes in given.noise else math.inf
        if over > excess:
            excess, worst = over, axes
    if excess <= tol or worst is None:
        return MarginalAnswerability(True, excess)
    return MarginalAnswerability(False, excess, tuple(wanted.domain.names[axis] for axis in worst))


def common(mechanisms: Sequence[SubspaceNoise]) -> Noise:
    """Return the noise of the common mechanism, the largest of all; see `MarginalMechanism.common_with`."""
    check_domain(mechanisms)
    if len(mechanisms) < 2:
        raise InvalidInputError("others must be one or more mechanisms, got none")
    first, *others = mechanisms
    return {
        axes: max(level, *(other.noise[axes] for other in others))
        for axes, level in first.noise.items()
        if all(axes in other.noise for other in others)
    }


def left(mechanism: SubspaceNoise, known: SubspaceNoise, tol: float = TOLERANCE) -> Noise:
    """Return the noise of the residual; see `MarginalMechanism.residual`."""
    verdict = answerable(known, mechanism, tol)
    if not verdict:
        named = " x ".join(verdict.attributes or ()) or "the total"
        raise InvalidInputError(
            f"common must be answerable from mechanism, but exceeds its cost by {verdict.excess:.3g}, relative, "
            f"on {named}"
        )
    shares = {
        axes: 1 - level / known.noise[axes] if axes in known.noise else 1.0
        for axes, level in mechanism.noise.items()
    }
    return {axes: mechanism.noise[axes] / share for axes, share in shares.items() if share > NOTHING_LEFT}


def together(mechanisms: Sequence[SubspaceNoise]) -> Noise:
    """Return the noise of what all reveal together; see `MarginalMechanism.compose`."""
    check_domain(mechanisms)
    told: Noise = {}
    for mechanism in mechanisms:
        for axes, level in mechanism.noise.items():
            told[axes] = told.get(axes, 0.0) + 1 / level
    return {axes: 1 / amount for axes, amount in told.items()}


def check_domain(mechanisms: Sequence[object]) -> None:
    """Refuse what is no mechanism of marginals, and mechanisms on another domain than the first."""
    domain = None
    for index, mechanism in enumerate(mechanisms):
        if not isinstance(mechanism, SubspaceNoise):
            raise InputTypeError(
                f"mechanisms[{index}] must be a MarginalMechanism, got {type(mechanism).__name__}"
            )
        domain = mechanism.domain if domain is None else domain
        if mechanism.domain != domain:
            raise InvalidInputError(
                f"mechanisms must be on the same domain, mechanisms[{index}] is on another"
            )
