"""Strategies of local privacy in numbers that sum to 1 exactly, and keep to e^ε for certain."""

from __future__ import annotations

import numpy as np

from dualmech.errors import CertificateError
from dualmech.linalg import EPS
from dualmech.proofs.checker.exact import Matrix
from dualmech.proofs.texts import exactly
from dualmech.validate import Array


def summing_to_one(strategy: Array) -> Matrix:
    """Return a strategy with columns that sum to exactly 1: each largest entry takes what is missing."""
    if not np.all(np.isfinite(strategy)):
        raise CertificateError("the answer shows nothing in whole numbers: its strategy is not finite")
    found = exactly(strategy)
    if found.exponent > 0:
        found = Matrix([[each << found.exponent for each in row] for row in found.rows], 0)
    safest = int(np.argmax(strategy.min(axis=1)))
    for column in range(strategy.shape[1]):
        missing = (1 << -found.exponent) - sum(row[column] for row in found.rows)
        found.rows[safest][column] += missing
    return found


def mixed(strategy: Array, other: Array, epsilon: float) -> Array:
    """Return a strategy with so much of another one, whose limits are slack, that rounding breaks no limit."""
    share = 16 * (sum(strategy.shape) + 2) * EPS / -np.expm1(-epsilon)
    return np.asarray((1 - share) * strategy + share * other)
