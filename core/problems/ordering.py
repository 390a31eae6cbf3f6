"""The refined privacy ordering: which of two mechanisms of equal privacy cost leaves more privacy budget."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.privacy import GaussianMechanism
from dualmech.problems.refinement import Refinement
from dualmech.solution import Solution
from dualmech.validate import Array

Profiled: TypeAlias = LinearGaussianMechanism | GaussianMechanism | Solution | Refinement | npt.ArrayLike
"""A mechanism, a solution or refinement that has one, or a privacy profile itself (s,)."""


def compare_privacy(a: Profiled, b: Profiled, tol: float = 1e-9) -> int:
    """Compare two mechanisms in the refined privacy ordering: -1 if a is more private, 0 if equal, 1 if less.

    The privacy profiles ``p_i = (B u_i)' Σ⁻¹ (B u_i)`` are sorted in decreasing order and compared like words in
    a dictionary: the first entries that differ decide, the smaller is the more private. So the privacy cost
    decides, and where it is equal, what remains of it for further queries (`free_budget`).
    Raises `InvalidInputError` or `InputTypeError` for profiles of different lengths, with NaN or negative entries,
    or not numbers; a negative tolerance; `InfeasibleAnswerError` for a solution without a mechanism.
    Source: definitions 4 and 5 of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of differentially
    private linear queries", PVLDB 14(10), 2021.

    Parameters
    ----------
    a, b : LinearGaussianMechanism, Solution, Refinement or (s,) array
        The mechanisms, or their profiles. Profiles of one length, over the same kind of neighbours.
    tol : float
        Entries differ if they do by more than this, relative to the larger of the two; infinite ones are
        equal. Equality within a tolerance is not transitive: many small steps can add up to a difference.

    Returns
    -------
    int
        -1, 0 or 1.

    Examples
    --------
    >>> import dualmech as dm
    >>> two = dm.LinearGaussianMechanism([[1, 1, 0], [0, 1, 1]], [[1, 0], [0, 1]])
    >>> dm.compare_privacy(two, [2, 2, 2]), two.privacy_cost == 2**0.5
    (-1, True)
    """
    margin = validate.nonnegative_number(tol=tol)
    first, second = np.sort(_profile("a", a))[::-1], np.sort(_profile("b", b))[::-1]
    if first.shape != second.shape:
        raise InvalidInputError(
            f"a and b must be profiles of the same length, got {len(first)} and {len(second)} pairs of neighbours"
        )
    with np.errstate(invalid="ignore"):
        apart = np.abs(first - second) > margin * np.maximum(first, second)
    apart |= np.isinf(first) != np.isinf(second)
    if not np.any(apart):
        return 0
    decisive = int(np.argmax(apart))
    return -1 if first[decisive] < second[decisive] else 1


def _profile(argument: str, given: Profiled) -> Array:
    if isinstance(given, Solution | Refinement):
        given = given.mechanism
    if isinstance(given, LinearGaussianMechanism):
        return given.profile
    profile = validate.numeric(1, **{argument: given})
    if not np.all(profile >= 0):
        raise InvalidInputError(
            f"{argument} must be a profile of entries of at least 0, got {profile.min():g}"
        )
    return profile
