"""Families of problems on the command line: one record per family that a command poses or explains.

A family without a record is solved, judged and reported like any other; no command poses it. Records name classes, so
that nothing is loaded until a problem is solved: the help of a command shows every family.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dualmech.errors import InputTypeError

if TYPE_CHECKING:
    from dualmech.problems.base import Problem


class Layer(StrEnum):
    FAST = "fast"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Family:
    """A family of problems, as the command line and reports speak of it."""

    name: str  # its name for ``--problem``
    problems: tuple[str, ...]  # the classes that belong to it
    options: tuple[str, ...] = ()  # those of the command line that do not belong to all
    help: str = ""  # its line in ``--help``; empty where the command line only explains it
    explained: str = ""  # its line in ``explain --help``, where no other command poses it
    steps: str = "decompositions"  # the unit that its fast solver counts
    at_a_cost: bool = False  # whether it is solved at a squared privacy cost of 1, to be spent otherwise


_COVARIANCE = ("covariance", "strategy")

FAMILIES = (
    Family(
        "fitness",
        ("FitnessForUse", "PrivacyFirst"),
        ("targets", "moe", "rho", "epsilon", "cap", "refine", *_COVARIANCE),
        "a variance target for every query at the least privacy cost",
    ),
    Family(
        "variance",
        ("TotalVariance",),
        ("weights", "rho", "epsilon", *_COVARIANCE),
        "the least total variance",
        at_a_cost=True,
    ),
    Family(
        "weighting",
        ("QueryWeighting",),
        ("design", "privacy", "rho", "epsilon", "query_weights"),
        "the best weights of given design queries",
        "factorisations",
        at_a_cost=True,
    ),
    Family(
        "softmax",
        ("SoftmaxFitness",),
        ("targets", "moe", "t1", "t2", "total_weight", *_COVARIANCE),
        "fitness with soft maxima",
        "Newton steps",
    ),
    Family(
        "common",
        ("CommonMechanism",),
        ("criterion",),
        explained="what mechanisms have in common, files of which stand in place of a workload",
    ),
    Family(
        "reuse",
        ("ReuseFitness",),
        ("targets", "moe", "after"),
        "fitness with what is released already, in the file of --after",
    ),
    Family(
        "local",
        ("LocalStrategy",),
        ("epsilon", "criterion", "prior"),
        explained="the best way to randomise each record",
        steps="Newton steps",
    ),
    Family(
        "projection",
        ("LocalProjection",),
        ("epsilon",),
        explained="the nearest local strategy to the matrix in a file",
        steps="Newton steps",
    ),
    Family(
        "estimate",
        ("NonnegativeEstimate",),
        ("answers", "total"),
        explained="the possible data nearest to noisy answers",
        steps="updates of the factors",
    ),
)

POSED = tuple(family for family in FAMILIES if family.help)  # the families that the command line poses


def family_of(problem: Problem) -> Family:
    """Return the family that a problem belongs to; without a record, one of the name of its class.

    Raises `InputTypeError` for no problem of the library.
    """
    kinds = {kind.__name__ for kind in type(problem).__mro__}
    for family in FAMILIES:
        if not kinds.isdisjoint(family.problems):
            return family
    if "Problem" in kinds:
        return Family(type(problem).__name__, (type(problem).__name__,), steps="steps")
    raise InputTypeError(f"problem must be one of the library's, got {type(problem).__name__}")
