"""The problems of the library, a module for families that are alike; each is stated when it is called."""

from __future__ import annotations

from collections.abc import Callable

from dualmech.crosscheck.collection import (
    local,
    matrices,
    mechanisms,
    more_matrices,
    softmax,
    tables,
    weighting,
)
from dualmech.crosscheck.collection.matrices import Stated

PARTS: tuple[Callable[[], dict[str, Stated]], ...] = (
    matrices.problems,
    more_matrices.problems,
    tables.problems,
    softmax.problems,
    weighting.problems,
    mechanisms.commons,
    mechanisms.reuses,
    local.strategies,
    local.projections,
    local.estimates,
)

FAMILIES = {
    "fitness": "FitnessForUse",
    "privacy": "PrivacyFirst",
    "variance": "TotalVariance",
    "softmax": "SoftmaxFitness",
    "weighting": "QueryWeighting",
    "common": "CommonMechanism",
    "reuse": "ReuseFitness",
    "local": "LocalStrategy",
    "projection": "LocalProjection",
    "estimate": "NonnegativeEstimate",
}
"""The classes of problems, by the first word of their names in the library."""


def problems() -> dict[str, Stated]:
    """Return all problems by name."""
    return {name: state for part in PARTS for name, state in part().items()}
