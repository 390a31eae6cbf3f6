"""Families of problems on the command line: one record for each family that a command poses or explains.

A family without a record is solved, judged and reported like others, but no command poses it. Records have names of
classes, so that help does not import the problems.
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
    """A family of problems, for the command line and reports."""

    name: str  # its name for ``--problem``
    problems: tuple[str, ...]  # the classes that belong to it
    options: tuple[str, ...] = ()  # options of the command line for this family, but not for all families
    help: str = ""  # its line in ``--help``; empty if the command line only explains it
    explained: str = ""  # its line in ``explain --help``, if no other command poses it
    steps: str = "decompositions"  # unit of its fast solver's iterations
    at_a_cost: bool = False  # whether it is solved at a squared privacy cost of 1, and scaled to the budget


_COVARIANCE = ("covariance", "strategy")

FAMILIES = (
    Family(
        "fitness",
        ("FitnessForUse", "PrivacyFirst"),
        ("targets", "moe", "rho", "epsilon", "cap", "refine", *_COVARIANCE),
        "minimum privacy cost for a variance target of every query",
    ),
    Family(
        "variance",
        ("TotalVariance",),
        ("weights", "rho", "epsilon", *_COVARIANCE),
        "minimum total variance",
        at_a_cost=True,
    ),
    Family(
        "weighting",
        ("QueryWeighting",),
        ("design", "privacy", "rho", "epsilon", "query_weights"),
        "optimal weights of given design queries",
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
        explained="the maximal common mechanism of files of mechanisms, instead of a workload",
    ),
    Family(
        "reuse",
        ("ReuseFitness",),
        ("targets", "moe", "after"),
        "fitness together with an earlier release, in the file of --after",
    ),
    Family(
        "local",
        ("LocalStrategy",),
        ("epsilon", "criterion", "prior"),
        explained="the optimal local randomiser of each record",
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
        explained="the non-negative data nearest to noisy answers",
        steps="updates of the factors",
    ),
)

POSED = tuple(family for family in FAMILIES if family.help)  # the families that the command line poses


def family_of(problem: Problem) -> Family:
    """Return the family of a problem; without a record, a family with the name of its class.

    Raises `InputTypeError` for no problem of the library.
    """
    kinds = {kind.__name__ for kind in type(problem).__mro__}
    for family in FAMILIES:
        if not kinds.isdisjoint(family.problems):
            return family
    if "Problem" in kinds:
        return Family(type(problem).__name__, (type(problem).__name__,), steps="steps")
    raise InputTypeError(f"problem must be one of the library's, got {type(problem).__name__}")
