"""Persons whose parts are at least b steps apart: what noise costs them, and weights of them.

A person has a part in a set P of at most k steps, no two of them less than b apart, and costs the largest ``⟨C_P, R⟩``
over R as in ``epochs``.

Upper bound. It is at most ``Σ |C_st|`` over s, t in P: for the steps ``p_1 < p_2 < …`` the sum of ``|C_jj|`` and twice
what p_j has in common with the steps before it. The latter is at most the most that any j - 1 steps before, so far
apart, have in common with p_j, its charge; and the steps with the largest sum of charges are found one after the other.
The same holds of the steps after; the smaller of both is taken.

Lower bound. Given a chain, weights on its diagonal and above: a person whose steps are ``p_1 < p_2 < …`` weighs the
entry (p_1, p_1) times (p_1, p_2) times (p_2, p_3) …, where no factor is negative. Let ``Π_st`` be the weight of those
with parts in s and t, and z the weight of all. For the R of ``epochs``, of all steps, ``⟨C, Π ∘ R⟩`` (products entry by
entry) is the sum over persons of weights times ``⟨C_P, R_P⟩``, so at most ``z cost``. Given F, let e be the largest
absolute row sum of ``F F' - Π ∘ R``: then ``F F' ⪯ Π ∘ R + e I``. Each step is in some P, so ``C_ss ≤ cost`` and ``⟨C,
F F'⟩ ≤ (z + n e) cost``.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor

from . import noise
from .exact import Given, Matrix, arcsine_share, diagonal, expect, power

BITS, UNSURE = 120, Fraction(1, 2**116)  # of a mean product of signs, and what it may be off by


def largest_cost(costs: Matrix, times: int, separation: int) -> Fraction:
    """Return a number that no person's cost exceeds."""
    sizes = costs.sizes().rows
    after = [row[::-1] for row in sizes[::-1]]
    most = min(charged(sizes, times, separation), charged(after, times, separation))
    return power(most, costs.exponent)


def charged(sizes: list[list[int]], times: int, separation: int) -> int:
    """Return the largest sum over steps so far apart, each with its charge for the steps before it."""
    steps = range(len(sizes))
    alone = [sizes[step][step] for step in steps]
    shared = [[0] * len(sizes) for _ in steps]  # by the last step or an earlier one, and the step that they meet
    best, largest = alone, max(alone)
    for _ in range(1, min(times, -(-len(sizes) // separation))):
        longer: list[list[int]] = []
        for step in steps:
            row = sizes[step]
            if step >= separation:
                row = [size + more for size, more in zip(row, shared[step - separation], strict=True)]
            longer.append([max(pair) for pair in zip(row, longer[-1], strict=True)] if longer else row)
        shared, ended = longer, best
        best, highest = [], 0
        for step in steps[separation:]:
            highest = max(highest, ended[step - separation])
            best.append(alone[step] + 2 * shared[step - separation][step] + highest)
        best = [0] * separation + best
        largest = max(largest, *best)
    return largest


def weights(lower: Given, steps: int, times: int, separation: int, signs: bool) -> tuple[Matrix, Fraction]:
    """Return F, and a total m with ``⟨C, F F'⟩ ≤ m cost``."""
    pairs, total = weights_of_pairs(lower.matrix("chain", (steps, steps)), times, separation)
    means, off = mean_products(lower, steps, signs)
    root = lower.matrix("root", (steps, None))
    missed = noise.squared(root).plus(entrywise(pairs, means), -1).largest_sum() + off * pairs.largest_sum()
    return root, total + steps * missed


def weights_of_pairs(chain: Matrix, times: int, separation: int) -> tuple[Matrix, Fraction]:
    """Return Π and z."""
    size = len(chain.rows)
    times = min(times, -(-size // separation))
    for step, row in enumerate(chain.rows):
        held = [entry for other, entry in enumerate(row) if other == step or other >= step + separation]
        expect(
            min(row) >= 0 and sum(held) == sum(row), "a chain must have no negative weight, and none of steps closer"
        )
    first = Matrix([[chain.rows[step][step] for step in range(size)]], chain.exponent)
    following = chain.plus(diagonal(first), -1)
    one = Matrix([[1]] * size, 0)
    begun, ended = [first], [one]
    for _ in range(1, times):
        begun.append(begun[-1].times(following))
        ended.append(one.plus(following.times(ended[-1])))
    pairs, between = Matrix([[0] * size for _ in range(size)], 0), following
    for parts in range(1, times):
        if parts > 1:
            between = between.times(following)
        # What may be before a part, and after one that comes so many parts later.
        around = [
            row.transposed().times(column.transposed())
            for row, column in zip(begun, ended[-1 - parts :: -1], strict=False)
        ]
        pairs = pairs.plus(entrywise(between, noise.summed(around)))
    single = noise.summed([entrywise(row, column.transposed()) for row, column in zip(begun, ended[::-1], strict=True)])
    return pairs.plus(pairs.transposed()).plus(diagonal(single)), noise.summed(begun).times(one).trace()


def mean_products(part: Given, size: int, signs: bool) -> tuple[Matrix, Fraction]:
    """Return the mean products of normal vectors or of their signs, 1 on the diagonal, and what an entry is off by."""
    normal = part.matrix("normal", (size, None))
    expect(max(normal.squares()) <= 1, "rows of normal must be no longer than 1")
    means, off = noise.squared(normal), Fraction(0)
    if signs:
        means, off = Matrix([[mean_of_signs(entry) for entry in row] for row in means.numbers()], -BITS), UNSURE
    one = 1 << -means.exponent
    rows = [[one if i == j else entry for j, entry in enumerate(row)] for i, row in enumerate(means.rows)]
    return Matrix(rows, means.exponent), off


def mean_of_signs(cosine: Fraction) -> int:
    """Return ``(2/π) arcsin`` of a number from -1 to 1, in units that it is off by `UNSURE` at most."""
    least, most = (share * (1 << BITS) for share in arcsine_share(cosine))
    expect(most - floor(least) <= UNSURE * (1 << BITS), "the arcsine of a product is not known well enough")
    return floor(least)


def entrywise(first: Matrix, second: Matrix) -> Matrix:
    """Return the products of entries at the same places."""
    rows = zip(first.rows, second.rows, strict=True)
    return Matrix([list(map(int.__mul__, *pair)) for pair in rows], first.exponent + second.exponent)
