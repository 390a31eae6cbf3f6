"""Local privacy: a strategy with a reconstruction, and dual weights for all patterns."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from dualmech.errors import CertificateError, InvalidInputError
from dualmech.proofs.checker import exact
from dualmech.proofs.checker.exact import Matrix
from dualmech.proofs.texts import exactly
from dualmech.proofs.witnesses import noise
from dualmech.proofs.witnesses.strategies import mixed, summing_to_one
from dualmech.validate import Array

Given = dict[str, Any]

MOST_TYPES = 20
"""User types up to which a proof is written: the checker looks at all their sets."""

ALONE = 1e-10
"""Share of randomised response that a strategy is mixed with which cannot tell all user types from each other."""

CLOSE = Fraction(1, 2**80)  # what may be left of ``B Q - I``


def refuse_large(problem: Any, stated: Given) -> None:
    """Refuse more user types than all sets can be looked at of, and too many queries."""
    queries, types = stated["workload"].shape
    if types > MOST_TYPES:
        raise InvalidInputError(
            f"a proof in whole numbers looks at all sets of user types, of {MOST_TYPES} at most, got {types}; the "
            "certificate in floating point has no such limit"
        )
    noise.limited(queries * types**3, f"{queries} queries on {types} user types")


def witness(problem: Any, primal: Any, dual: Any, stated: Given) -> tuple[Given, Given]:
    """Return what shows the upper and what shows the lower bound."""
    point = problem.feasible(primal)
    chosen = _telling_all_apart(point.strategy[np.any(point.strategy > 0, axis=1)], stated["epsilon"])
    strategy = summing_to_one(mixed(chosen, chosen.mean(axis=1)[:, None], stated["epsilon"]))
    upper = {"strategy": strategy, "reconstruction": _reconstruction(strategy, chosen, point.prior)}
    workload, lower = stated["workload"], {"costs": dual.costs}
    if stated["prior"] is None:
        centres = workload.mean(axis=1)
        if np.linalg.norm(workload - centres[:, None]) <= 1e-14 * np.linalg.norm(workload):
            centres = np.zeros(len(workload))
        workload = workload - centres[:, None]
        # A pattern's share of the prior is what n times it was to the judge.
        prior = problem.user_types * np.asarray(problem.prior if dual.prior is None else dual.prior)
        lower |= {"centres": centres[:, None], "prior": prior}
    # The judge's root is ``R = O W`` with ``R'R = W'W``: with ``Z O`` in place of Z, W takes the place of R.
    turn = problem.root @ np.linalg.pinv(workload)
    return upper, lower | {"matrix": dual.matrix @ turn}


def _telling_all_apart(strategy: Array, epsilon: float) -> Array:
    """Return a strategy mixed with randomised response where it does not tell all user types from each other."""
    sizes = np.linalg.svd(strategy / np.sqrt(strategy.sum(axis=1))[:, None], compute_uv=False)
    types = strategy.shape[1]
    if len(sizes) == types and sizes[-1] > 1e-6 * sizes[0]:
        return strategy
    response = 1 + np.expm1(epsilon) * np.eye(types)
    return np.vstack([(1 - ALONE) * strategy, ALONE * response / response.sum(axis=0)])


def _reconstruction(whole: Matrix, strategy: Array, prior: Array) -> Matrix:
    """Return B with ``B Q`` next to I, of least expected variance, improved by Newton's steps ``B - (B Q - I) B``."""
    scale = np.sqrt(strategy @ prior)
    scale = np.where(scale > 0, scale, np.sqrt(strategy.mean(axis=1)))
    guess = np.linalg.pinv(strategy / scale[:, None], rcond=1e-15) / scale
    if not np.all(np.isfinite(guess)):
        raise CertificateError(
            "the answer shows nothing in whole numbers: its strategy has no reconstruction"
        )
    found = exactly(guess)
    for _ in range(noise.MOST_STEPS):
        error = exact.departure(found, whole)
        if sum(error.squares()) <= CLOSE**2:
            break
        found = noise.shortened(found.plus(error.times(found), -1), noise.INVERSE_BITS)
    return found
