"""Products: every product of one query of each of several problems, whose bounds multiply.

The factors have workloads W_i (neighbours none), and numbers each, targets or weights; asked is ``W = ⊗ W_i``, with the
products of their numbers, over a number ``allowed``.

Upper bound. If A_i is a strategy of each factor, unit noise on ``⊗ A_i x`` costs a record of the product of cells the
product of what it costs each, ``|⊗ A_i e| = Π |A_i e|``, and gives a query the product of variances, as the inverse of a
product is that of the inverses. So the largest of either multiply, also of variances over targets, as do weighted sums.
Noise of infinitely many kinds could do better, but needs not be tried.

Lower bound. With the products of the factors' weights p and q, ``diag(p) W diag(q)`` is a Kronecker product, whose trace
norm is the product of the factors'; and so are ``Σ p² c`` and ``Σ q²``. What the factors show of these multiplies.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from . import noise, tables
from .exact import expect, number, parts

Given = dict[str, Any]

FACTORS = {
    "targets": {"targets": noise.bounds, "table targets": tables.bounds},
    "weights": {"weights": noise.bounds, "table weights": tables.bounds},
}


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that the factors of a file show."""
    known = FACTORS[str(problem.get("kind")).removeprefix("product ")]
    factors = parts(problem, "factors")
    noises, weights = (parts(each, "factors", len(factors)) for each in (upper, lower))
    allowed = number(problem, "allowed")
    expect(allowed > 0, "allowed must be positive")
    least = most = 1 / allowed
    for factor, noisy, weighed in zip(factors, noises, weights, strict=True):
        expect(factor.get("kind") in known, f"kind of a factor must be one of {', '.join(known)}")
        shown = known[str(factor["kind"])](factor, noisy, weighed)
        least, most = least * shown[0], most * shown[1]
    return least, most
