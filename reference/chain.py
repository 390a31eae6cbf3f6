"""Chains of common mechanisms through CVXPY, every stage one program of equation 1."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from dualmech import validate
from dualmech.adaptive.building import build
from dualmech.adaptive.chain import Chain
from dualmech.errors import UncertifiedWarning
from dualmech.mechanisms.privacy import GaussianMechanism, GaussianPrivacy
from dualmech.problems.common import CommonMechanism
from dualmech.reference import common
from dualmech.reference.engine import backends
from dualmech.reference.refinement import OTHER_STAGE_TOLERANCE, STAGE_TOLERANCES
from dualmech.solution import Solution


def chain(
    mechanisms: Sequence[GaussianPrivacy | GaussianMechanism],
    *,
    backend: Any = "CLARABEL",
    tol: float | None = None,
    **options: Any,
) -> Chain:
    """Return the chain of common mechanisms of two or more, in the order in which they drop out.

    Raises `BackendError` for a backend that is not installed, cannot do the cones, fails, or returns nothing to
    judge; `InvalidInputError` or `InputTypeError` for what `dualmech.CommonMechanism` refuses; a tolerance that is
    not positive.

    Parameters
    ----------
    mechanisms : sequence of LinearGaussianMechanism
        Two or more, on the same cells and with the same neighbours, none releasing anything exactly.
    backend : str, default "CLARABEL"
        An installed CVXPY backend that can do semidefinite cones.
    tol : float, optional
        Gap to prove in every stage; by default that of the backend. Stages are solved more accurately than that.
    **options
        Passed to the backend as they are.

    Examples
    --------
    >>> import numpy as np
    >>> import dualmech as dm
    >>> from dualmech import reference
    >>> total = dm.LinearGaussianMechanism([[1, 1, 1, 1]], [[1]])
    >>> halves = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
    >>> cells = dm.LinearGaussianMechanism(np.eye(4), np.eye(4))
    >>> chain = reference.chain([total, halves, cells])
    >>> chain.certified, [stage.known.rank for stage in chain.stages]
    (True, [1, 2])
    """
    name = backends.backend_name(backend, backends.SEMIDEFINITE)
    asked = backends.tolerance(name) if tol is None else validate.positive_number(tol=tol)
    accuracy = min(asked, STAGE_TOLERANCES.get(name, OTHER_STAGE_TOLERANCE))

    def solve(problem: CommonMechanism) -> Solution:
        with warnings.catch_warnings():
            # That the tolerance asked for was missed is for the chain to say, not this one.
            warnings.simplefilter("ignore", UncertifiedWarning)
            return common.STATEMENT.solve(problem, backend=name, tol=accuracy, **options)

    return build(mechanisms, solve, tol=asked, solver=f"reference:{name}:chain")
