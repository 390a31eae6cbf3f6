"""Products: every product of one query of each of several problems, whose bounds multiply.

The factors have workloads W_i, neighbours U_i and numbers, all targets or all weights. Asked is ``W = ⊗ W_i`` under
the neighbours ``⊗ U_i``, single records where they are for each factor, with the products of the numbers, over a
number ``allowed``.

Upper bound. Noise that measures ``A_i x`` with variance 1 in each factor measures ``⊗ A_i x`` in the product.
Neighbours there cost ``|⊗ A_i u_i|² = Π |A_i u_i|²``, and a query has the variance ``|⊗ w_i A_i⁻¹|² = Π |w_i
A_i⁻¹|²``, for a strategy of full column rank with any left inverse as well. So largest costs multiply, and so do
largest ratios, and weighted sums.

Lower bound. At the products of the factors' weights ``diag(p) W U diag(q)`` is the Kronecker product of the factors'
own, whose trace norm is the product of theirs; ``Σ p² c`` and ``Σ q²`` multiply as well.
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
        expect(str(factor.get("kind")) in known, f"kind of a factor must be one of {', '.join(known)}")
        shown = known[str(factor["kind"])](factor, noisy, weighed)
        least, most = least * shown[0], most * shown[1]
    return least, most
