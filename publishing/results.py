"""Results of the methods of mechanisms, problems and releases: classes that users need not construct."""

from dualmech.adaptive.chain import ChainOutcome, ChainStage, ChosenAnswers, Guarantee
from dualmech.mechanisms.frames import Decomposition
from dualmech.mechanisms.gaussian import Answerability, Equivalence
from dualmech.mechanisms.step_noise import StepNoise
from dualmech.problems.common import Maximality
from dualmech.problems.refinement import RefinementStage

__all__ = [
    "Answerability",
    "ChainOutcome",
    "ChainStage",
    "ChosenAnswers",
    "Decomposition",
    "Equivalence",
    "Guarantee",
    "Maximality",
    "RefinementStage",
    "StepNoise",
]
