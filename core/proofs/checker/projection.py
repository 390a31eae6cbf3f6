"""Projection onto strategies of local privacy: the ε-private strategy that is nearest to a given matrix.

There are R (m, n), ε, and a floor z (m,) or none. Asked is the least of ``½ |Q - R|²`` over strategies with ``z_o ≤
Q_ou ≤ e^ε z_o``, over z ≥ 0 as well where none is given.

Upper bound. Any such strategy.

Lower bound, without a floor. Given l (n,) and D = 1 lᵀ + C, where in every row of C (m, n) the positive entries sum
to at least ``e^ε`` times what the negative ones do. For any strategy with its z, ``⟨C, Q⟩`` is at least ``Σ_o z_o (Σ
C⁺ - e^ε Σ C⁻) ≥ 0``, and ``⟨1 lᵀ, Q⟩ = Σ l_u``; so ``½ |Q - R|² ≥ ⟨D, Q - R⟩ - ½ |D|² ≥ Σ l_u - ⟨D, R⟩ - ½ |D|²``.

Lower bound, with one. Given l, every column q of Q has ``½ |q - r|² = ½ |q - r|² - l (Σ q_o - 1)``, of which the
least over all q within the limits is at ``r_o + l``, brought within them.
"""

from __future__ import annotations

from fractions import Fraction

from .exact import Matrix, expect
from .given import Given
from .strategies import growth, strategy


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that a strategy and multipliers of a file show."""
    nearest_to = problem.matrix("matrix")
    outputs, types = nearest_to.shape
    least, most = growth(problem)
    found = strategy(upper, least, types)
    expect(found.shape[0] == outputs, f"the strategy must have {outputs} rows")
    sums = lower.vector("sums", types)
    if problem.get("floor") is None:
        proven = joint(nearest_to, lower.matrix("ratios", nearest_to.shape), sums, most)
    else:
        floor = problem.vector("floor", outputs)
        for low, row in zip(floor, found.numbers(), strict=True):
            expect(low <= min(row) and max(row) <= least * low, "the strategy must keep to the floor")
        proven = by_column(nearest_to, floor, sums, most)
    return max(proven, Fraction(0)), sum(found.plus(nearest_to, -1).squares(), Fraction(0)) / 2


def joint(nearest_to: Matrix, ratios: Matrix, sums: list[Fraction], most: Fraction) -> Fraction:
    """Return what is proven without a floor."""
    proven = sum(sums, Fraction(0))
    for row, own in zip(ratios.numbers(), nearest_to.numbers(), strict=True):
        raised = sum((max(each, Fraction(0)) for each in row), Fraction(0))
        lowered = raised - sum(row)
        expect(
            raised >= most * lowered, "multipliers of a row must sum to e^ε times the negative ones at least"
        )
        moves = [one + two for one, two in zip(sums, row, strict=True)]
        proven -= sum(move * (entry + move / 2) for move, entry in zip(moves, own, strict=True))
    return proven


def by_column(nearest_to: Matrix, floor: list[Fraction], sums: list[Fraction], most: Fraction) -> Fraction:
    """Return what is proven with a floor."""
    proven = Fraction(0)
    for multiplier, column in zip(sums, zip(*nearest_to.numbers(), strict=True), strict=True):
        chosen = [min(max(own + multiplier, low), most * low) for own, low in zip(column, floor, strict=True)]
        proven += sum((q - r) ** 2 for q, r in zip(chosen, column, strict=True)) / 2 - multiplier * (
            sum(chosen) - 1
        )
    return proven
