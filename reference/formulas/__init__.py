"""Every problem in formulas: its symbols, its program, its dual and the proof, written once in LaTeX."""

from __future__ import annotations

from collections.abc import Callable

from dualmech.errors import InputTypeError
from dualmech.problems.base import AnyProblem
from dualmech.problems.common import CommonMechanism
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.local.estimate import NonnegativeEstimate
from dualmech.problems.local.projection import LocalProjection
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.problems.refinement import RefinementStage
from dualmech.problems.reuse import ReuseFitness
from dualmech.problems.softmax import SoftmaxFitness
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.reference.formulas import epochs, local, mechanisms, noise
from dualmech.reference.formulas.writing import Formula

FORMULAS: dict[type, Callable[[AnyProblem], Formula]] = {
    FitnessForUse: noise.fitness,
    PrivacyFirst: noise.privacy_first,
    TotalVariance: noise.variance,
    SoftmaxFitness: noise.softmax,
    QueryWeighting: mechanisms.weighting,
    CommonMechanism: mechanisms.common,
    RefinementStage: mechanisms.stage,
    ReuseFitness: noise.reuse,
    LocalStrategy: local.strategy,
    LocalProjection: local.projection,
    NonnegativeEstimate: local.estimate,
}
"""For each problem, the function that states it in formulas."""

ON_GEOMETRY: dict[str, Callable[[AnyProblem], Formula]] = {"blocks": mechanisms.on_blocks, "epochs": epochs.stated}
"""For geometries with formulas of their own, the function that states a problem."""


def formula(problem: object) -> Formula:
    """Return a problem in formulas, with its own sizes, and its own numbers where they are few.

    Raises `InputTypeError` for an object that is no problem of the library.
    """
    stated = FORMULAS.get(type(problem))
    if stated is None:
        known = ", ".join(kind.__name__ for kind in FORMULAS)
        raise InputTypeError(f"problem must be one that has formulas ({known}), got {type(problem).__name__}")
    stated = ON_GEOMETRY.get(getattr(getattr(problem, "geometry", None), "name", ""), stated)
    return stated(problem)
