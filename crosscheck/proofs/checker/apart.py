"""Min-separation participation: bounds on the privacy cost of noise, and dual weights of participation patterns.

A person participates in a set P of at most k steps, any two of them at least b apart. The privacy cost of the person
is the largest ``⟨C_P, R⟩`` over R as in ``epochs``.

Upper bound. The cost is at most ``Σ |C_st|`` over s, t in P. For the steps ``p_1 < p_2 < …`` of P, this is the sum over
j of ``|C_tt|``, t = p_j, and twice the sum of ``|C_st|`` over the s in P before t. The latter sum is at most its
maximum over all sets of j - 1 steps before t with this separation. Dynamic programming maximises the total over P.
The same bound holds with the order of the steps reversed; the smaller of the two is used.

Lower bound. Given a chain, a matrix of non-negative weights on and above its diagonal: the pattern with the steps ``p_1
< p_2 < …`` has as its weight the product of the entries (p_1, p_1), (p_1, p_2), (p_2, p_3), …. Let ``Π_st`` be the
total weight of the patterns that contain s and t, and z the total weight of all patterns. For an R of ``epochs`` on all
steps, ``⟨C, Π ∘ R⟩`` (Hadamard product) is the weighted sum of ``⟨C_P, R_P⟩`` over the patterns, so at most ``z cost``.
Given F, let e be the largest absolute row sum of ``F F' - Π ∘ R``: then ``F F' ⪯ Π ∘ R + e I``. Each step is in some P,
so ``C_ss ≤ cost`` and ``⟨C, F F'⟩ ≤ (z + n e) cost``.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor

from . import noise
from .exact import Matrix, Section, arcsine_share, diagonal, expect, power

SIGN_MEAN_BITS = 120  # binary digits of the mean of a product of signs
SIGN_MEAN_ERROR = Fraction(1, 2**116)  # bound on its absolute error


def largest_cost(costs: Matrix, times: int, separation: int) -> Fraction:
    """Return an upper bound on the privacy cost of all participation patterns."""
    sizes = costs.sizes().rows
    reversed_sizes = [row[::-1] for row in sizes[::-1]]
    bound = min(pattern_bound(sizes, times, separation), pattern_bound(reversed_sizes, times, separation))
    return power(bound, costs.exponent)


def pattern_bound(sizes: list[list[int]], times: int, separation: int) -> int:
    """Return the upper bound of the module docstring by dynamic programming, in one order of the steps."""
    steps = range(len(sizes))
    own_costs = [sizes[step][step] for step in steps]
    shared = [[0] * len(sizes) for _ in steps]  # [t][s]: largest sum with s over steps up to t
    best, largest = own_costs, max(own_costs)
    for _ in range(1, min(times, -(-len(sizes) // separation))):
        extended: list[list[int]] = []
        for step in steps:
            row = sizes[step]
            if step >= separation:
                row = [size + shared_size for size, shared_size in zip(row, shared[step - separation], strict=True)]
            extended.append([max(pair) for pair in zip(row, extended[-1], strict=True)] if extended else row)
        shared, previous_best = extended, best
        best, highest = [], 0
        for step in steps[separation:]:
            highest = max(highest, previous_best[step - separation])
            best.append(own_costs[step] + 2 * shared[step - separation][step] + highest)
        best = [0] * separation + best
        largest = max(largest, *best)
    return largest


def weights(lower: Section, steps: int, times: int, separation: int, signs: bool) -> tuple[Matrix, Fraction]:
    """Return F, and a number m with ``⟨C, F F'⟩ ≤ m cost``."""
    pairs, total = weights_of_pairs(lower.matrix("chain", (steps, steps)), times, separation)
    means, error = mean_products(lower, steps, signs)
    root = lower.matrix("root", (steps, None))
    residual = noise.squared(root).plus(entrywise(pairs, means), -1).largest_sum() + error * pairs.largest_sum()
    return root, total + steps * residual


def weights_of_pairs(chain: Matrix, times: int, separation: int) -> tuple[Matrix, Fraction]:
    """Return Π and z."""
    size = len(chain.rows)
    times = min(times, -(-size // separation))
    for step, row in enumerate(chain.rows):
        allowed_entries = [entry for other, entry in enumerate(row) if other == step or other >= step + separation]
        expect(
            min(row) >= 0 and sum(allowed_entries) == sum(row),
            "a chain must have no negative weight, and no weight between steps closer than the separation",
        )
    first = Matrix([[chain.rows[step][step] for step in range(size)]], chain.exponent)
    following = chain.plus(diagonal(first), -1)
    ones = Matrix([[1]] * size, 0)
    weights_before, weights_after = [first], [ones]
    for _ in range(1, times):
        weights_before.append(weights_before[-1].times(following))
        weights_after.append(ones.plus(following.times(weights_after[-1])))
    pairs, paths = Matrix([[0] * size for _ in range(size)], 0), following
    for count in range(1, times):
        if count > 1:
            paths = paths.times(following)
        # Weights of the paths up to a step, times the weights of the paths after the step `count` participations later.
        outer_products = [
            row.transposed().times(column.transposed())
            for row, column in zip(weights_before, weights_after[-1 - count :: -1], strict=False)
        ]
        pairs = pairs.plus(entrywise(paths, noise.summed(outer_products)))
    single = noise.summed(
        [entrywise(row, column.transposed()) for row, column in zip(weights_before, weights_after[::-1], strict=True)]
    )
    return pairs.plus(pairs.transposed()).plus(diagonal(single)), noise.summed(weights_before).times(ones).trace()


def mean_products(part: Section, size: int, signs: bool) -> tuple[Matrix, Fraction]:
    """Return the correlations of normal variables, or of their signs, and a bound on the absolute error of an entry."""
    normal = part.matrix("normal", (size, None))
    expect(max(normal.squares()) <= 1, "rows of normal must have a norm of at most 1")
    means, error = noise.squared(normal), Fraction(0)
    if signs:
        rows = [[mean_of_signs(entry) for entry in row] for row in means.numbers()]
        means, error = Matrix(rows, -SIGN_MEAN_BITS), SIGN_MEAN_ERROR
    unit = 1 << -means.exponent
    rows = [[unit if i == j else entry for j, entry in enumerate(row)] for i, row in enumerate(means.rows)]
    return Matrix(rows, means.exponent), error


def mean_of_signs(cosine: Fraction) -> int:
    """Return ``(2/π) arcsin`` of a cosine, in units of ``2**-SIGN_MEAN_BITS``, with error at most `SIGN_MEAN_ERROR`."""
    lower, upper = (share * (1 << SIGN_MEAN_BITS) for share in arcsine_share(cosine))
    expect(
        upper - floor(lower) <= SIGN_MEAN_ERROR * (1 << SIGN_MEAN_BITS),
        "the bounds on the arcsine of a product are too far apart",
    )
    return floor(lower)


def entrywise(first: Matrix, second: Matrix) -> Matrix:
    rows = zip(first.rows, second.rows, strict=True)
    return Matrix([list(map(int.__mul__, *pair)) for pair in rows], first.exponent + second.exponent)
