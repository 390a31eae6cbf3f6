"""Chains of common mechanisms with the library's own solver, every stage far below the tolerance asked for."""

from __future__ import annotations

from collections.abc import Sequence

from dualmech import validate
from dualmech.adaptive.building import build
from dualmech.adaptive.chain import Chain
from dualmech.fast.common import solver
from dualmech.fast.engine import loop, threads
from dualmech.mechanisms.privacy import GaussianMechanism, GaussianPrivacy
from dualmech.problems.common import CommonMechanism
from dualmech.solution import Solution

STAGE_GAP = 1e-10
"""Gap to which a stage is solved where that can be reached: the next stage inherits what is left."""


def chain(mechanisms: Sequence[GaussianPrivacy | GaussianMechanism], *, tol: float = 1e-6) -> Chain:
    """Return the chain of certified common mechanisms of two or more, in the order in which they drop out.

    Stage s releases what is common to mechanisms s, s + 1, … beyond what is released already, so that the choice
    among them can wait for its answer (`dualmech.AdaptiveRelease`).
    Raises `InvalidInputError` or `InputTypeError` for what `dualmech.CommonMechanism` refuses; a tolerance that is
    not positive.
    Returns `Chain`: with a judged `Solution` for every stage, and an `UncertifiedWarning` where one is not proven.

    - `mechanisms`: two or more, on the same cells, or of tables on the same attributes, with the same neighbours, none
      releasing anything exactly;
    - `tol`: gap to prove in every stage.

    Examples
    --------
    >>> import numpy as np
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> rows = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
    >>> columns = dm.LinearGaussianMechanism([[1, 0, 1, 0], [0, 1, 0, 1]], np.eye(2))
    >>> release = dm.AdaptiveRelease(fast.chain([rows, columns]), x=[1, 2, 3, 4])
    >>> release.advance().shape, release.known.variances(dm.workloads.total(4)).round(6)
    ((1,), array([2.]))
    """
    accuracy = min(validate.positive_number(tol=tol), STAGE_GAP)

    def stage(problem: CommonMechanism) -> Solution:
        # That the tolerance asked for was missed is for the chain to say, not this one.
        return solver.solve(problem, loop.Limits(accuracy))

    with threads.threads_for_rank(_size(mechanisms)):
        return build(mechanisms, stage, tol=tol, solver="fast:chain")


def _size(mechanisms: object) -> int:
    """Return the number of rows of the largest matrix of some mechanisms: those of tables are small."""
    given = mechanisms if isinstance(mechanisms, Sequence) else ()
    return max((len(getattr(each, "query_matrix", ())) for each in given), default=0)
