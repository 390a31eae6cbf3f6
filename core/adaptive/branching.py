"""Branches of a chain: decisions, the rules that make them, the guarantee over all branches, and outcomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.validate import Array

GO_ON, STOP = -1, -2
"""What a rule may say instead of the index of a mechanism: release the next stage; release nothing more."""

Rule = Callable[[int, Any], npt.ArrayLike]
"""Takes a stage and the answers (n, k) of what is known by then, of n data sets; returns n decisions."""

Measure = Callable[[Any, Any, np.random.Generator], Any]
"""Takes a mechanism, data (n, d) or (d,), and a generator; returns noisy answers (n, m) or (m,).

Of tables it takes tables of counts, and returns what `BlockMechanism.measure` does.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Guarantee(GaussianPrivacy):
    """The guarantee of an adaptive release before any answer is seen: the maximum over its branches.

    Attributes
    ----------
    profile : (s,) array
        Squared privacy cost of each pair of neighbours, the largest over all branches.
    """

    profile: Array = field()

    def __post_init__(self) -> None:
        validate.numeric(1, profile=self.profile)


@dataclass(frozen=True, slots=True, eq=False)
class ChosenAnswers:
    """The answers of one mechanism, for the blocks that chose it: their indices (b,), and the values (b, m)."""

    blocks: npt.NDArray[np.intp]
    values: Array


@dataclass(frozen=True, slots=True, eq=False)
class ChainOutcome:
    """The outcomes of a chain for many blocks.

    Attributes
    ----------
    choices : (n,) array
        Index of the mechanism each block ended with, or `STOP`.
    stages : (n,) array
        The stage at which that was decided.
    answers : tuple of ChosenAnswers
        By mechanism.
    """

    choices: npt.NDArray[np.intp]
    stages: npt.NDArray[np.intp]
    answers: tuple[ChosenAnswers, ...]


def simulate_answers(mechanism: Any, x: Any, rng: np.random.Generator) -> Any:
    """Draw noisy answers from a seeded floating-point generator: for study, NOT a private release."""
    measure = getattr(mechanism, "measure", mechanism.simulate)
    return measure(x, rng)


def apply_rule(rule: Rule, stage: int, answers: Any, mechanisms: int) -> npt.NDArray[np.intp]:
    """Return a rule's decisions on answers (n, k) after a stage; refuse those that the stage does not offer.

    Of tables, which are a dict, there is one decision.

    Stage s offers the mechanisms s to ``mechanisms - 1``, `STOP`, and `GO_ON` unless it is the last.
    """
    of_tables = isinstance(answers, dict)
    decided = rule(stage, answers)
    said = validate.integers(**{f"what rule returns at stage {stage}": [decided] if of_tables else decided})
    expected = 1 if of_tables else len(answers)
    if len(said) != expected:
        raise InvalidInputError(f"rule must return {expected} integers at stage {stage}, got {len(said)}")
    last = stage == mechanisms - 2
    offered = (said >= stage) & (said < mechanisms) | (said == STOP)
    refused = said[~(offered if last else offered | (said == GO_ON))]
    if refused.size:
        raise InvalidInputError(
            f"rule must choose a mechanism from {stage} to {mechanisms - 1}{'' if last else ', GO_ON'} or STOP "
            f"at stage {stage}, got {refused[0]}"
        )
    return said


def gather_answers(
    mechanism: LinearGaussianMechanism, found: list[tuple[npt.NDArray[np.intp], Array]]
) -> ChosenAnswers:
    """Return the answers of one mechanism from all stages, in the order of the blocks."""
    if not found:
        return ChosenAnswers(np.zeros(0, dtype=np.intp), np.zeros((0, len(mechanism.query_matrix))))
    blocks = np.concatenate([block for block, _ in found])
    order = np.argsort(blocks)
    return ChosenAnswers(blocks[order], np.vstack([values for _, values in found])[order])
