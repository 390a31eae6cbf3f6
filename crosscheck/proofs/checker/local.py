"""Local privacy: minimum-variance strategies, non-negative estimates, and projections onto private strategies.

Strategies: the problem has a workload W (p, n) and ε. A user of type u reports output o with probability Q_ou, and W is
answered by V times the histogram of reports, where ``V Q = W``; one user's variance is ``T_u = Σ_o Q_ou |V_o|² -
|W_u|²``. The optimum is the minimum, over ε-private strategies Q and V, of ``Σ_u h_u (T_u + |W_u|²)`` for given h ≥ 0
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

from .exact import Matrix, Section, departure, dot, exp_above, exp_below, expect, root_above

# Non-negative estimates: the histogram whose answers are nearest to given noisy answers.
#
# The problem has a workload W (p, n), answers a, and optionally the total N of the data. The optimum is the minimum of
# ``½ |W x - a|²`` over x ≥ 0, with ``Σ x_u = N`` if it is known.
#
# Upper bound. Any x ≥ 0, scaled to the total.
#
# Lower bound. For any v, by Cauchy's inequality, ``|v| |W x - a| ≥ vᵀW x - vᵀa``. Without a total, ``Wᵀv ≥ 0`` is
# required, and the first product is at least 0; with one, it is at least N times the smallest entry of ``Wᵀv``. If
# the right side is positive, its square over ``2 |v|²`` is the bound.


def estimate_bounds(problem: Section, upper: Section, lower: Section) -> tuple[Fraction, Fraction]:
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
    residual_vector = [dot(row, x) - answer for row, answer in zip(workload, answers, strict=True)]
    v = lower.vector("residual", queries)
    slopes = [dot(v, column) for column in zip(*workload, strict=True)]
    expect(total is not None or min(slopes) >= 0, "no entry of Wᵀv may be negative for the residual v")
    inner_bound = (total or 0) * min(slopes) - dot(v, answers)
    return max(inner_bound, Fraction(0)) ** 2 / (2 * (dot(v, v) or 1)), dot(residual_vector, residual_vector) / 2


# Strategies of local privacy: bounds on e^ε, and a test that a matrix is an ε-private strategy.
#
# A strategy Q (m, n) has a column of probabilities for each user type. It is ε-private if no entry exceeds e^ε times
# another entry of its row. The set of ε-private strategies grows with ε: an upper bound on the optimum may use a lower
# bound on e^ε, and a lower bound an upper bound.


def growth(problem: Section) -> tuple[Fraction, Fraction]:
    """Return a lower and an upper bound on e^ε, two adjacent numbers with few digits."""
    epsilon = problem.number("epsilon")
    expect(0 < epsilon <= 100, "epsilon must be positive and at most 100")
    # The error must be small compared with e^ε - 1, which is at least ε.
    unit = Fraction(1, 1 << max(70 - floor(epsilon) + epsilon.denominator.bit_length(), 70))
    return floor(exp_below(epsilon) / unit) * unit, ceil(exp_above(epsilon) / unit) * unit


def strategy(part: Section, max_ratio: Fraction, columns: int) -> Matrix:
    """Return the strategy of a section; refuse it if a ratio of probabilities exceeds `max_ratio`."""
    matrix = part.matrix("strategy", (None, columns))
    unit = 1 << max(-matrix.exponent, 0)
    for column in zip(*matrix.rows, strict=True):
        expect(min(column) >= 0 and sum(column) << max(matrix.exponent, 0) == unit, "probabilities must sum to 1")
    for index, row in enumerate(matrix.rows):
        expect(max(row) <= max_ratio * min(row), f"row {index} of the strategy has a ratio above e^ε")
    return matrix


MAX_TYPES = 20  # the lower bound enumerates all sets of user types


def bounds(problem: Section, upper: Section, lower: Section) -> tuple[Fraction, Fraction]:
    """Return the lower and upper bound on the optimum that the file proves."""
    workload = problem.matrix("workload")
    types = workload.shape[1]
    expect(2 <= types <= MAX_TYPES, f"user types must be 2 to {MAX_TYPES}, got {types}")
    growth_lower, growth_upper = growth(problem)
    worst_case = problem.get("prior") is None
    moments = moments_above(workload, strategy(upper, growth_lower, types), upper)
    if not worst_case:
        prior = problem.nonnegative("prior", types)
        return moment_below(workload, prior, lower, growth_upper), dot(prior, moments)
    upper_value = max(moment - length for moment, length in zip(moments, workload.transposed().squares(), strict=True))
    prior = lower.nonnegative("prior", types)
    centres = lower.matrix("centres", (workload.shape[0], 1))
    centred = workload.plus(Matrix([row * types for row in centres.rows], centres.exponent), -1)
    shift = dot(prior, centred.transposed().squares())
    lower_value = (moment_below(centred, prior, lower, growth_upper) - shift) / sum(prior)
    return max(lower_value, Fraction(0)), upper_value


def moments_above(workload: Matrix, strategy_matrix: Matrix, part: Section) -> list[Fraction]:
    """Return an upper bound on ``T_u + |W_u|²`` for each user type."""
    inverse = part.matrix("reconstruction", (strategy_matrix.shape[1], strategy_matrix.shape[0]))
    residual = root_above(sum(departure(inverse, strategy_matrix).squares()))
    expect(residual < 1, "|B Q - I| must be below 1")
    error_factor = root_above(sum(workload.squares())) * residual / (1 - residual)
    answers, rows = (matrix.transposed().squares() for matrix in (workload.times(inverse), inverse))
    squares = [
        (root_above(answer) + error_factor * root_above(row)) ** 2 for answer, row in zip(answers, rows, strict=True)
    ]
    return [dot(column, squares) for column in zip(*strategy_matrix.numbers(), strict=True)]


def moment_below(workload: Matrix, prior: list[Fraction], part: Section, growth_upper: Fraction) -> Fraction:
    """Return a lower bound on ``Σ_u h_u (T_u + |W_u|²)``."""
    queries, types = workload.shape
    z, y = part.matrix("matrix", (types, queries)), part.vector("costs", types)
    value = workload.transposed().paired(z)
    total = sum(y) + types * required_shift(z, y, prior, growth_upper - 1)
    return value**2 / total if value > 0 and total > 0 else Fraction(0)


def required_shift(z: Matrix, y: list[Fraction], prior: list[Fraction], gain: Fraction) -> Fraction:
    """Return the smallest non-negative shift of all entries of y with which the inequality holds for all sets of types.

    The computation uses integers. With ``gain = c / k``, the patterns are ``k 1 + c 1_S``, and both sides of an
    inequality are multiplied by the same power of two.
    """
    c, k, types = gain.numerator, gain.denominator, len(y)
    costs, costs_unit = common_integers(y)
    shares, shares_unit = common_integers(prior)
    form = z.times(z.transposed())
    shift = form.exponent + costs_unit + shares_unit
    form_rows = [[entry << max(shift, 0) for entry in row] for row in form.rows]
    costs = [cost << max(-shift, 0) for cost in costs]
    costs_unit += max(-shift, 0)
    sums = [k * sum(row) for row in form_rows]
    smallest_shift = Fraction(0)
    # A set of types: the next type to add, its size, and the products of its pattern p with the form Z Zᵀ: pᵀ Z Zᵀ p,
    # Z Zᵀ p, yᵀ p and hᵀ p.
    stack = [(0, 0, k * sum(sums), sums, k * sum(costs), k * sum(shares))]
    while stack:
        first, size, form_value, slopes, cost, share = stack.pop()
        if 0 < size < types:
            length, excess = types * k + c * size, form_value - cost * share
            expect(share > 0, "the prior must not be 0 on a whole pattern")
            if excess * smallest_shift.denominator > smallest_shift.numerator * length * share:
                smallest_shift = Fraction(excess, length * share)
        for user in range(first, types):
            row = form_rows[user]
            stack.append(
                (
                    user + 1,
                    size + 1,
                    form_value + c * (2 * slopes[user] + c * row[user]),
                    [slope + c * entry for slope, entry in zip(slopes, row, strict=True)],
                    cost + c * costs[user],
                    share + c * shares[user],
                )
            )
    return smallest_shift / (1 << costs_unit)


def common_integers(numbers: list[Fraction]) -> tuple[list[int], int]:
    """Return the numbers as integers over a common power of two, and its exponent."""
    largest = max(number.denominator for number in numbers)
    return [int(number * largest) for number in numbers], largest.bit_length() - 1


# Projection onto strategies of local privacy: the ε-private strategy nearest to a given matrix.
#
# The problem has R (m, n), ε, and optionally a floor z (m,). The optimum is the minimum of ``½ |Q - R|²`` over
# strategies with ``z_o ≤ Q_ou ≤ e^ε z_o``, over z ≥ 0 as well if no floor is given.
#
# Upper bound. Any such strategy.
#
# Lower bound, without a floor. Given l (n,) and D = 1 lᵀ + C, where in every row of C (m, n) the sum of the positive
# entries is at least ``e^ε`` times the sum of the magnitudes of the negative entries. For any strategy with its z,
# ``⟨C, Q⟩`` is at least ``Σ_o z_o (Σ C⁺ - e^ε Σ C⁻) ≥ 0``, and ``⟨1 lᵀ, Q⟩ = Σ l_u``; so ``½ |Q - R|² ≥ ⟨D, Q - R⟩ - ½
# |D|² ≥ Σ l_u - ⟨D, R⟩ - ½ |D|²``.
#
# Lower bound, with a floor. Given l, every column q of Q has ``½ |q - r|² = ½ |q - r|² - l (Σ q_o - 1)``, since its sum
# is 1. The right side has its minimum over ``z_o ≤ q_o ≤ e^ε z_o`` at ``r_o + l``, clipped to these limits.


def projection_bounds(problem: Section, upper: Section, lower: Section) -> tuple[Fraction, Fraction]:
    """Return the lower and upper bound on the optimum that the file proves."""
    target = problem.matrix("matrix")
    outputs, types = target.shape
    growth_lower, growth_upper = growth(problem)
    matrix = strategy(upper, growth_lower, types)
    expect(matrix.shape[0] == outputs, f"the strategy must have {outputs} rows")
    sums = lower.vector("sums", types)
    if problem.get("floor") is None:
        bound = bound_without_floor(target, lower.matrix("ratios", target.shape), sums, growth_upper)
    else:
        floor = problem.vector("floor", outputs)
        for low, row in zip(floor, matrix.numbers(), strict=True):
            expect(low <= min(row) and max(row) <= growth_lower * low, "the strategy must respect the floor")
        bound = bound_with_floor(target, floor, sums, growth_upper)
    return max(bound, Fraction(0)), sum(matrix.plus(target, -1).squares(), Fraction(0)) / 2


def bound_without_floor(target: Matrix, ratios: Matrix, sums: list[Fraction], growth_upper: Fraction) -> Fraction:
    bound = sum(sums, Fraction(0))
    for row, target_row in zip(ratios.numbers(), target.numbers(), strict=True):
        positive_sum = sum((max(entry, Fraction(0)) for entry in row), Fraction(0))
        negative_sum = positive_sum - sum(row)
        expect(
            positive_sum >= growth_upper * negative_sum,
            "the positive multipliers of a row must sum to at least e^ε times the negative ones",
        )
        multipliers = [column_sum + entry for column_sum, entry in zip(sums, row, strict=True)]
        bound -= sum(
            multiplier * (entry + multiplier / 2) for multiplier, entry in zip(multipliers, target_row, strict=True)
        )
    return bound


def bound_with_floor(target: Matrix, floor: list[Fraction], sums: list[Fraction], growth_upper: Fraction) -> Fraction:
    bound = Fraction(0)
    for multiplier, column in zip(sums, zip(*target.numbers(), strict=True), strict=True):
        projected = [
            min(max(entry + multiplier, low), growth_upper * low) for entry, low in zip(column, floor, strict=True)
        ]
        bound += sum((q - r) ** 2 for q, r in zip(projected, column, strict=True)) / 2 - multiplier * (
            sum(projected) - 1
        )
    return bound
