"""Families of problems: one record per family holds all that the command line asks of it.

To add one, write its problem and its two solvers, and a record here; the conformance suite runs every record through
all that a user can do with a problem. Problems are known by the names of their classes, so that nothing is loaded
until one is solved: the help of a command shows every family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dualmech.errors import InputTypeError

if TYPE_CHECKING:
    from dualmech.problems.base import Problem
    from dualmech.problems.common import CommonMechanism
    from dualmech.problems.local.strategy import LocalStrategy
    from dualmech.problems.softmax import SoftmaxFitness
    from dualmech.problems.weighting import QueryWeighting

Measure = Callable[[Any], str]


class Layer(StrEnum):
    FAST = "fast"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Family:
    """A family of problems, as the command line and reports speak of it."""

    name: str  # its name for ``--problem``
    problems: tuple[str, ...]  # the classes that belong to it
    measure: Measure  # says what their objective is
    options: tuple[str, ...] = ()  # those of the command line that do not belong to all
    help: str = ""  # its line in ``--help``; empty where the command line only explains it
    explained: str = ""  # its line in ``explain --help``, where no other command poses it
    steps: str = "decompositions"  # the unit that its fast solver counts
    at_a_cost: bool = False  # whether it is solved at a squared privacy cost of 1, to be spent otherwise


def _fitness_measure(problem: Problem) -> str:
    return "factor on the targets" if type(problem).__name__ == "PrivacyFirst" else "squared privacy cost"


def _variance_measure(problem: Any) -> str:
    plain = not isinstance(problem.weights, tuple) and (problem.weights == 1).all()
    return "total variance" if plain else "weighted total variance"


def _weighting_measure(problem: QueryWeighting) -> str:
    return "total variance" if problem.geometry.independent else "bound on the total variance"


def _softmax_measure(problem: SoftmaxFitness) -> str:
    return "sum of the soft maxima" + (" and the weighted total variance" if problem.total_weight else "")


def _local_measure(problem: LocalStrategy) -> str:
    # The average is taken of second moments, variance and squared answer together, and n times.
    average = problem.criterion == "average"
    return "sum of the user types' second moments" if average else "variance of the worst user type"


def _common_measure(problem: CommonMechanism) -> str:
    trace = problem.criterion == "trace"
    return "trace of the common covariance" if trace else "geometric mean variance of the common noise"


_COVARIANCE = ("covariance", "strategy")

FAMILIES = (
    Family(
        "fitness",
        ("FitnessForUse", "PrivacyFirst"),
        _fitness_measure,
        ("targets", "moe", "rho", "epsilon", "cap", "refine", *_COVARIANCE),
        "a variance target for every query at the least privacy cost",
    ),
    Family(
        "variance",
        ("TotalVariance",),
        _variance_measure,
        ("weights", "rho", "epsilon", *_COVARIANCE),
        "the least total variance",
        at_a_cost=True,
    ),
    Family(
        "weighting",
        ("QueryWeighting",),
        _weighting_measure,
        ("design", "privacy", "rho", "epsilon", "query_weights"),
        "the best weights of given design queries",
        "factorisations",
        at_a_cost=True,
    ),
    Family(
        "softmax",
        ("SoftmaxFitness",),
        _softmax_measure,
        ("targets", "moe", "t1", "t2", "total_weight", *_COVARIANCE),
        "fitness with soft maxima",
        "Newton steps",
    ),
    Family(
        "common",
        ("CommonMechanism",),
        _common_measure,
        ("criterion",),
        explained="what mechanisms have in common, files of which stand in place of a workload",
    ),
    Family(
        "reuse",
        ("ReuseFitness",),
        lambda problem: "squared privacy cost with the release",
        ("targets", "moe", "after"),
        "fitness with what is released already, in the file of --after",
    ),
    Family(
        "local",
        ("LocalStrategy",),
        _local_measure,
        ("epsilon", "criterion", "prior"),
        explained="the best way to randomise each record",
        steps="Newton steps",
    ),
    Family(
        "projection",
        ("LocalProjection",),
        lambda problem: "half the squared distance",
        ("epsilon",),
        explained="the nearest local strategy to the matrix in a file",
        steps="Newton steps",
    ),
    Family(
        "estimate",
        ("NonnegativeEstimate",),
        lambda problem: "half the squared distance",
        ("answers", "total"),
        explained="the possible data nearest to noisy answers",
        steps="updates of the factors",
    ),
)

POSED = tuple(family for family in FAMILIES if family.help)  # the families that the command line poses


def family_of(problem: Problem) -> Family:
    """Return the family that a problem belongs to.

    Raises `InputTypeError` for no problem of the library.
    """
    kinds = {kind.__name__ for kind in type(problem).__mro__}
    for family in FAMILIES:
        if not kinds.isdisjoint(family.problems):
            return family
    raise InputTypeError(f"problem must be one of the library's, got {type(problem).__name__}")
