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

from . import noise, tables
from .exact import expect
from .given import Given

FACTORS = {
    "product targets": {"targets": noise.bounds, "table targets": tables.bounds},
    "product weights": {"weights": noise.bounds, "table weights": tables.bounds},
}


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that the factors of a file show."""
    known = FACTORS[problem.word("kind", FACTORS)]
    factors = problem.parts("factors")
    noises, weights = (each.parts("factors", len(factors)) for each in (upper, lower))
    allowed = problem.number("allowed")
    expect(allowed > 0, "allowed must be positive")
    least = most = 1 / allowed
    for factor, noisy, weighed in zip(factors, noises, weights, strict=True):
        shown = known[factor.word("kind", known, "kind of a factor")](factor, noisy, weighed)
        least, most = least * shown[0], most * shown[1]
    return least, most
