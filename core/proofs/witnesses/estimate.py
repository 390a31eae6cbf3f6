"""Non-negative estimates: the estimate, and a residual without a negative slope."""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from dualmech.errors import CertificateError
from dualmech.proofs.checker.estimate import product
from dualmech.proofs.witnesses import noise
from dualmech.validate import Array

Given = dict[str, Any]
Numbers = list[Fraction]

MOST_SOLVED = 64  # columns up to which a residual is made orthogonal to them in fractions


def refuse_large(problem: Any, stated: Given) -> None:
    """Refuse what takes too many multiplications of whole numbers, before any of them."""
    queries, cells = stated["workload"].shape
    noise.limited(50 * queries * cells, f"{queries} queries on {cells} cells")


def witness(problem: Any, primal: Any, dual: Any, stated: Given) -> tuple[Given, Given]:
    """Return what shows the upper and what shows the lower bound."""
    estimate = np.asarray(problem.feasible(primal))
    if not estimate.any():
        estimate = estimate + (stated["total"] == 0)  # any data will do, all of it weighed by nothing
    residual: Any = np.asarray(dual.residual, dtype=np.float64)
    if stated["total"] is None:
        residual = _without_negative_slopes(stated["workload"], residual)
    return {"estimate": estimate}, {"residual": residual}


def _without_negative_slopes(workload: Array, residual: Array) -> list[int]:
    """Return whole numbers in the direction of a residual near by whose products with all columns are not negative.

    First what is nearest to a combination of queries that is 1 in every cell is added, as often as needed. Cells that
    nothing lifts, as where columns cancel, need a product of exactly 0: the residual is projected off their columns.
    """
    columns = [[Fraction(each) for each in column] for column in workload.T.tolist()]
    ones = np.ones(workload.shape[1])
    lift = [Fraction(float(each)) for each in np.linalg.lstsq(workload.T, ones, rcond=None)[0]]
    found, still = [Fraction(each) for each in residual.tolist()], set[int]()
    for _ in range(len(columns) + 1):
        lifted = _lifted(columns, found, lift)
        low = {cell for cell, column in enumerate(columns) if product(column, lifted) < 0}
        if not low:
            whole = lcm(*(each.denominator for each in lifted))
            return [int(each * whole) for each in lifted]
        still |= low
        if len(still) > MOST_SOLVED:
            break
        held = [columns[cell] for cell in sorted(still)]
        found, lift = _projected(held, found), _projected(held, lift)
    raise CertificateError("the answer shows nothing in whole numbers: slopes of its residual stay negative")


def _lifted(columns: list[Numbers], given: Numbers, lift: Numbers) -> Numbers:
    """Return what is given with as much of a lift as its negative slopes need where the lift is positive."""
    most = Fraction(0)
    for column in columns:
        slope, gain = product(column, given), product(column, lift)
        if slope < 0 < gain:
            most = max(most, -slope / gain)
    return [own + most * each for own, each in zip(given, lift, strict=True)]


def _projected(columns: list[Numbers], given: Numbers) -> Numbers:
    """Return what is given less its projection on the span of columns, exactly."""
    basis: list[Numbers] = []
    for column in columns:
        left = _off(basis, column)
        if any(left):
            basis.append(left)
    return _off(basis, given)


def _off(basis: list[Numbers], given: Numbers) -> Numbers:
    """Return what is given less its projections on directions that are orthogonal to each other."""
    for direction in basis:
        share = product(direction, given) / product(direction, direction)
        if share:
            given = [own - share * each for own, each in zip(given, direction, strict=True)]
    return given
