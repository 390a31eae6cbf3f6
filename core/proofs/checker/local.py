"""Local privacy: the ε-private strategy of least variance on a workload, for the average user type or the worst.

There are a workload W (p, n) and ε. A user of type u reports output o with probability Q_ou, and W is answered by V
times the histogram of reports, where ``V Q = W``; one user's variance is ``T_u = Σ_o Q_ou |V_o|² - |W_u|²``. Asked is
the least, over ε-private strategies Q and V, of ``Σ_u h_u (T_u + |W_u|²)`` for given h ≥ 0 (average), or of ``max_u
T_u`` (worst).

Upper bound. Given a strategy Q and B, let ``B Q = I + F`` and f = |F| < 1 (Frobenius). Then ``V = W (I + F)⁻¹ B``
answers W, and V_o differs from ``(W B)_o`` by at most ``|W| |B_o| f / (1 - f)``.

Lower bound. Every row of Q is a sum of multiples of patterns ``1 + c 1_S``, ``c = e^ε - 1``, S a set of types neither
empty nor full: ``1 + c t`` with t between 0 and 1 is a mean of those of the sets ``{u : t_u ≥ s}``, and a constant
row is one of two of them. Splitting a row so, with the same V_o for all its parts, changes no T_u. So let Q have rows
``w_S p_S``, with ``Σ_u (p_S)_u = 1``. Given Z (n, p), y and h with ``|Zᵀ p_S|² ≤ (yᵀ p_S)(hᵀ p_S)`` for all S: as ``W
= Σ_S V_S w_S p_Sᵀ``, ``tr W Z = Σ_S w_S V_Sᵀ Zᵀ p_S`` is at most ``Σ_S w_S |V_S| √((yᵀ p_S)(hᵀ p_S))``, whose square
is at most ``Σ_S w_S yᵀ p_S = Σ y_u`` times ``Σ_S w_S |V_S|² hᵀ p_S``, which is ``Σ_u h_u (T_u + |W_u|²)``. All sets
are looked at, and y is raised by the same number in all entries until it holds. In the worst case h is a share of the
types, and ``max_u T_u ≥ Σ h_u T_u``; subtracting a number from all entries of a query changes no T_u.
"""

from __future__ import annotations

from fractions import Fraction

from .exact import Matrix, departure, expect, root_above
from .given import Given
from .strategies import growth, strategy

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
        achieved = sum((own * each for own, each in zip(prior, moments, strict=True)), Fraction(0))
        return moment_below(workload, prior, lower, most), achieved
    achieved = max(
        moment - length for moment, length in zip(moments, workload.transposed().squares(), strict=True)
    )
    prior = lower.nonnegative("prior", types)
    centres = lower.matrix("centres", (workload.shape[0], 1))
    moved = workload.plus(Matrix([row * types for row in centres.rows], centres.exponent), -1)
    lengths = moved.transposed().squares()
    shift = sum((own * length for own, length in zip(prior, lengths, strict=True)), Fraction(0))
    proven = (moment_below(moved, prior, lower, most) - shift) / sum(prior)
    return max(proven, Fraction(0)), achieved


def moments_above(workload: Matrix, chosen: Matrix, given: Given) -> list[Fraction]:
    """Return what ``T_u + |W_u|²`` is at most, for each user type."""
    inverse = given.matrix("reconstruction", (chosen.shape[1], chosen.shape[0]))
    missed = root_above(sum(departure(inverse, chosen).squares()))
    expect(missed < 1, "|B Q - I| must be below 1")
    off = root_above(sum(workload.squares())) * missed / (1 - missed)
    answers, rows = (each.transposed().squares() for each in (workload.times(inverse), inverse))
    squares = [(root_above(own) + off * root_above(row)) ** 2 for own, row in zip(answers, rows, strict=True)]
    return [
        sum((p * square for p, square in zip(column, squares, strict=True)), Fraction(0))
        for column in zip(*chosen.numbers(), strict=True)
    ]


def moment_below(workload: Matrix, prior: list[Fraction], given: Given, most: Fraction) -> Fraction:
    """Return what ``Σ_u h_u (T_u + |W_u|²)`` is at least."""
    queries, types = workload.shape
    z, y = given.matrix("matrix", (types, queries)), given.vector("costs", types)
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
    costs = [each << max(-shift, 0) for each in costs]
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
                    [slope + c * each for slope, each in zip(slopes, row, strict=True)],
                    cost + c * costs[user],
                    share + c * shares[user],
                )
            )
    return needed / (1 << costs_unit)


def whole(numbers: list[Fraction]) -> tuple[list[int], int]:
    """Return numbers times a power of two that makes them whole, and its exponent."""
    largest = max(each.denominator for each in numbers)
    return [int(each * largest) for each in numbers], largest.bit_length() - 1
