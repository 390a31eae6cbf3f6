"""Local privacy: strategies of least variance, non-negative estimates, and projections onto strategies.

Strategies: there are a workload W (p, n) and ε. A user of type u reports output o with probability Q_ou, and W is
answered by V times the histogram of reports, where ``V Q = W``; one user's variance is ``T_u = Σ_o Q_ou |V_o|² -
|W_u|²``. The optimum is the least, over ε-private strategies Q and V, of ``Σ_u h_u (T_u + |W_u|²)`` for given h ≥ 0
(average), or of ``max_u T_u`` (worst).

Upper bound. Given a strategy Q and B, let ``B Q = I + F`` and f = |F| < 1 (Frobenius). Then ``V = W (I + F)⁻¹ B``
answers W, and V_o differs from ``(W B)_o`` by at most ``|W| |B_o| f / (1 - f)``.

Lower bound. Every row of Q is a sum of multiples of patterns ``1 + c 1_S``, ``c = e^ε - 1``, S a set of types neither
empty nor full: ``1 + c t`` with t between 0 and 1 is a mean of the patterns of the sets ``{u : t_u ≥ s}``, and a
constant row is one of two of them. Splitting a row so, with the same V_o for all its parts, changes no T_u. So let Q
have rows ``w_S p_S``, with ``Σ_u (p_S)_u = 1``. Given Z (n, p), y and h with ``|Zᵀ p_S|² ≤ (yᵀ p_S)(hᵀ p_S)`` for all
S: as ``W = Σ_S V_S w_S p_Sᵀ``, ``tr W Z = Σ_S w_S V_Sᵀ Zᵀ p_S`` is at most ``Σ_S w_S |V_S| √((yᵀ p_S)(hᵀ p_S))``, whose
square is at most ``Σ_S w_S yᵀ p_S = Σ y_u`` times ``Σ_S w_S |V_S|² hᵀ p_S``, which is ``Σ_u h_u (T_u + |W_u|²)``. All
sets are checked, and y is raised by the same number in all entries until it holds. In the worst case h is a share of
the types, and ``max_u T_u ≥ Σ h_u T_u``; subtracting a number from all entries of a query changes no T_u.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

from .exact import Given, Matrix, departure, dot, exp_above, exp_below, expect, root_above

# Non-negative estimates: the possible data whose answers are nearest to given ones.
#
# There are a workload W (p, n), answers a, and the total N of the data or none. The optimum is the least of
# ``½ |W x - a|²`` over x ≥ 0, with ``Σ x_u = N`` if it is known.
#
# Upper bound. Any x ≥ 0, brought to the total.
#
# Lower bound. For any v, by Cauchy's inequality, ``|v| |W x - a| ≥ vᵀW x - vᵀa``. Without a total, ``Wᵀv ≥ 0`` is
# required, and the first product is at least 0; with one, it is at least N times the least entry of ``Wᵀv``. Where the
# right side is positive, its square over ``2 |v|²`` is the bound.


def estimate_bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    workload = problem.matrix("workload").numbers()
    queries, cells = len(workload), len(workload[0])
    answers = problem.vector("answers", queries)
    total = None if problem.get("total") is None else problem.number("total")
    expect(total is None or total >= 0, "the total must not be negative")
    x = upper.vector("estimate", cells)
    expect(min(x) >= 0, "the estimate must not be negative")
    if total is not None:
        expect(sum(x) > 0, "the estimate must not be all 0")
        x = [entry * total / sum(x) for entry in x]
    left = [dot(row, x) - answer for row, answer in zip(workload, answers, strict=True)]
    v = lower.vector("residual", queries)
    slopes = [dot(v, column) for column in zip(*workload, strict=True)]
    expect(total is not None or min(slopes) >= 0, "no slope of the residual may be negative")
    least = (total or 0) * min(slopes) - dot(v, answers)
    return max(least, Fraction(0)) ** 2 / (2 * (dot(v, v) or 1)), dot(left, left) / 2


# Strategies of local privacy: bounds on e^ε, and whether a matrix is a strategy.
#
# A strategy Q (m, n) has a column of probabilities for each user type; it is ε-private where no entry exceeds e^ε times
# another one of its row. The larger ε, the more strategies there are: an upper bound may take a smaller number for e^ε,
# a lower bound a larger.


def growth(problem: Given) -> tuple[Fraction, Fraction]:
    """Return two numbers with few digits, next to each other, between which e^ε lies."""
    epsilon = problem.number("epsilon")
    expect(0 < epsilon <= 100, "epsilon must be positive and at most 100")
    # Beyond 1 what counts is e^ε - 1, which is at least ε.
    unit = Fraction(1, 1 << max(70 - floor(epsilon) + epsilon.denominator.bit_length(), 70))
    return floor(exp_below(epsilon) / unit) * unit, ceil(exp_above(epsilon) / unit) * unit


def strategy(part: Given, largest: Fraction, columns: int) -> Matrix:
    """Return a strategy of a file; `Refused` where it is none, or a ratio exceeds the largest."""
    matrix = part.matrix("strategy", (None, columns))
    one = 1 << max(-matrix.exponent, 0)
    for column in zip(*matrix.rows, strict=True):
        expect(min(column) >= 0 and sum(column) << max(matrix.exponent, 0) == one, "probabilities must sum to 1")
    for index, row in enumerate(matrix.rows):
        expect(max(row) <= largest * min(row), f"row {index} of the strategy has a ratio above e^ε")
    return matrix


MOST = 20  # user types: of more there are too many sets


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that a strategy and dual weights of a file show."""
    workload = problem.matrix("workload")
    types = workload.shape[1]
    expect(2 <= types <= MOST, f"user types must be 2 to {MOST}, got {types}")
    least, most = growth(problem)
    worst = problem.get("prior") is None
    moments = moments_above(workload, strategy(upper, least, types), upper)
    if not worst:
        prior = problem.nonnegative("prior", types)
        return moment_below(workload, prior, lower, most), dot(prior, moments)
    achieved = max(moment - length for moment, length in zip(moments, workload.transposed().squares(), strict=True))
    prior = lower.nonnegative("prior", types)
    centres = lower.matrix("centres", (workload.shape[0], 1))
    moved = workload.plus(Matrix([row * types for row in centres.rows], centres.exponent), -1)
    shift = dot(prior, moved.transposed().squares())
    proven = (moment_below(moved, prior, lower, most) - shift) / sum(prior)
    return max(proven, Fraction(0)), achieved


def moments_above(workload: Matrix, chosen: Matrix, part: Given) -> list[Fraction]:
    """Return an upper bound on ``T_u + |W_u|²`` for each user type."""
    inverse = part.matrix("reconstruction", (chosen.shape[1], chosen.shape[0]))
    missed = root_above(sum(departure(inverse, chosen).squares()))
    expect(missed < 1, "|B Q - I| must be below 1")
    off = root_above(sum(workload.squares())) * missed / (1 - missed)
    answers, rows = (matrix.transposed().squares() for matrix in (workload.times(inverse), inverse))
    squares = [(root_above(answer) + off * root_above(row)) ** 2 for answer, row in zip(answers, rows, strict=True)]
    return [dot(column, squares) for column in zip(*chosen.numbers(), strict=True)]


def moment_below(workload: Matrix, prior: list[Fraction], part: Given, most: Fraction) -> Fraction:
    """Return a lower bound on ``Σ_u h_u (T_u + |W_u|²)``."""
    queries, types = workload.shape
    z, y = part.matrix("matrix", (types, queries)), part.vector("costs", types)
    value = workload.transposed().paired(z)
    total = sum(y) + types * lacking(z, y, prior, most - 1)
    return value**2 / total if value > 0 and total > 0 else Fraction(0)


def lacking(z: Matrix, y: list[Fraction], prior: list[Fraction], gain: Fraction) -> Fraction:
    """Return by how much y must be raised, in all entries, until the inequality holds for all sets.

    All is in whole numbers: with ``gain = c / k``, patterns are those of ``k 1 + c 1_S``, and an inequality is asked of
    integers once both of its sides are multiplied by the same power of two.
    """
    c, k, types = gain.numerator, gain.denominator, len(y)
    costs, costs_unit = whole(y)
    shares, shares_unit = whole(prior)
    form = z.times(z.transposed())
    shift = form.exponent + costs_unit + shares_unit
    form_rows = [[entry << max(shift, 0) for entry in row] for row in form.rows]
    costs = [cost << max(-shift, 0) for cost in costs]
    costs_unit += max(-shift, 0)
    sums = [k * sum(row) for row in form_rows]
    needed = Fraction(0)
    # Of a set: the types still to be thought of, its size, and what a pattern sees of the form, its rows, y and prior.
    stack = [(0, 0, k * sum(sums), sums, k * sum(costs), k * sum(shares))]
    while stack:
        first, size, square, slopes, cost, share = stack.pop()
        if 0 < size < types:
            length, missing = types * k + c * size, square - cost * share
            expect(share > 0, "the prior must not be 0 on all that a pattern sees")
            if missing * needed.denominator > needed.numerator * length * share:
                needed = Fraction(missing, length * share)
        for user in range(first, types):
            row = form_rows[user]
            stack.append(
                (
                    user + 1,
                    size + 1,
                    square + c * (2 * slopes[user] + c * row[user]),
                    [slope + c * entry for slope, entry in zip(slopes, row, strict=True)],
                    cost + c * costs[user],
                    share + c * shares[user],
                )
            )
    return needed / (1 << costs_unit)


def whole(numbers: list[Fraction]) -> tuple[list[int], int]:
    """Return numbers times a power of two that makes them whole, and its exponent."""
    largest = max(number.denominator for number in numbers)
    return [int(number * largest) for number in numbers], largest.bit_length() - 1


# Projection onto strategies of local privacy: the ε-private strategy that is nearest to a given matrix.
#
# There are R (m, n), ε, and a floor z (m,) or none. The optimum is the least of ``½ |Q - R|²`` over strategies with
# ``z_o ≤ Q_ou ≤ e^ε z_o``, over z ≥ 0 as well where none is given.
#
# Upper bound. Any such strategy.
#
# Lower bound, without a floor. Given l (n,) and D = 1 lᵀ + C, where in every row of C (m, n) the positive entries sum
# to at least ``e^ε`` times what the negative ones do. For any strategy with its z, ``⟨C, Q⟩`` is at least ``Σ_o z_o (Σ
# C⁺ - e^ε Σ C⁻) ≥ 0``, and ``⟨1 lᵀ, Q⟩ = Σ l_u``; so ``½ |Q - R|² ≥ ⟨D, Q - R⟩ - ½ |D|² ≥ Σ l_u - ⟨D, R⟩ - ½ |D|²``.
#
# Lower bound, with one. Given l, every column q of Q has ``½ |q - r|² = ½ |q - r|² - l (Σ q_o - 1)``, of which the
# least over all q within the limits is at ``r_o + l``, brought within them.


def projection_bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that a strategy and multipliers of a file show."""
    nearest_to = problem.matrix("matrix")
    outputs, types = nearest_to.shape
    least, most = growth(problem)
    matrix = strategy(upper, least, types)
    expect(matrix.shape[0] == outputs, f"the strategy must have {outputs} rows")
    sums = lower.vector("sums", types)
    if problem.get("floor") is None:
        proven = joint(nearest_to, lower.matrix("ratios", nearest_to.shape), sums, most)
    else:
        floor = problem.vector("floor", outputs)
        for low, row in zip(floor, matrix.numbers(), strict=True):
            expect(low <= min(row) and max(row) <= least * low, "the strategy must keep to the floor")
        proven = by_column(nearest_to, floor, sums, most)
    return max(proven, Fraction(0)), sum(matrix.plus(nearest_to, -1).squares(), Fraction(0)) / 2


def joint(nearest_to: Matrix, ratios: Matrix, sums: list[Fraction], most: Fraction) -> Fraction:
    proven = sum(sums, Fraction(0))
    for row, nearest in zip(ratios.numbers(), nearest_to.numbers(), strict=True):
        raised = sum((max(entry, Fraction(0)) for entry in row), Fraction(0))
        lowered = raised - sum(row)
        expect(raised >= most * lowered, "multipliers of a row must sum to e^ε times the negative ones at least")
        moves = [one + two for one, two in zip(sums, row, strict=True)]
        proven -= sum(move * (entry + move / 2) for move, entry in zip(moves, nearest, strict=True))
    return proven


def by_column(nearest_to: Matrix, floor: list[Fraction], sums: list[Fraction], most: Fraction) -> Fraction:
    proven = Fraction(0)
    for multiplier, column in zip(sums, zip(*nearest_to.numbers(), strict=True), strict=True):
        chosen = [min(max(entry + multiplier, low), most * low) for entry, low in zip(column, floor, strict=True)]
        proven += sum((q - r) ** 2 for q, r in zip(chosen, column, strict=True)) / 2 - multiplier * (sum(chosen) - 1)
    return proven
