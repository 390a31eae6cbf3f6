"""Weights of given design queries: Program 1, for Gaussian noise (power 1) or for Laplace noise (power 2).

There are a workload W (m, d), design queries Q (k, d), and neighbours U (d, s) or none. Column i of ``L = W Q⁺`` has
the squared norm c_i; ``n_ij`` is ``(q_i u_j)²`` for power 1, ``|q_i u_j|`` for power 2. Asked is the least of ``Σ c_i
/ x_i^power`` over weights x ≥ 0 with ``Σ_i n_ij x_i ≤ 1`` for every pair j. A design query that no neighbours change
costs nothing, whatever its weight.

Where W is not in the span of the design queries this is a program about their nearest combinations: that they answer W
is not shown.

The costs. Rows of zeros have cost 0, and are left out. If the others are independent, ``L = W Qᵀ (Q Qᵀ)⁻¹``. Given G
with ``E = Q Qᵀ G - I``, ``|E| < 1`` (Frobenius): then they are, and ``L = W Qᵀ G (I + E)⁻¹`` differs from ``W Qᵀ G``
by at most ``|W Qᵀ G| |E| / (1 - |E|)`` in any column. If instead the columns are independent, ``L = W (Qᵀ Q)⁻¹ Qᵀ``,
and likewise column i of ``W G Qᵀ`` is off by at most ``|W G| |q_i| |E| / (1 - |E|)``.

Upper bound. Any weights, over the largest of the sums ``Σ_i n_ij x_i``.

Lower bound. Given y ≥ 0 with sum 1, let ``g_i = Σ_j n_ij y_j``; feasible weights have ``Σ g_i x_i ≤ 1``. By Hölder's
inequality ``Σ c_i^(1/(r+1)) g_i^(r/(r+1))`` is at most ``(Σ c_i / x_i^r)^(1/(r+1)) (Σ g_i x_i)^(r/(r+1))``, r the
power; its power r + 1 is the bound.
"""

from __future__ import annotations

from fractions import Fraction

from .exact import Matrix, departed, expect, root_above, root_below
from .given import Given
from .noise import moved

Costs = list[tuple[Fraction, Fraction]]

POWERS = {"approximate": 1, "pure": 2}


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that weights of a file show."""
    power = POWERS[problem.word("privacy", POWERS)]
    workload = problem.matrix("workload")
    cells = workload.shape[1]
    design = problem.matrix("design", (None, cells))
    neighbours = problem.optional_matrix("neighbours", (cells, None))
    rows = [row for row in design.rows if any(row)]
    expect(bool(rows), "the design must have a row that is not all 0")
    design = Matrix(rows, design.exponent)
    costs = costs_of(workload, design, upper)
    reach = [
        [each * each if power == 1 else abs(each) for each in row]
        for row in moved(design, neighbours).numbers()
    ]
    given, y = (
        upper.nonnegative("weights", len(rows)),
        lower.nonnegative("neighbour_weights", len(reach[0])),
    )
    return least(costs, reach, y, power), achieved(costs, reach, given, power)


def achieved(costs: Costs, reach: list[list[Fraction]], weights: list[Fraction], power: int) -> Fraction:
    """Return what weights achieve, brought to a sensitivity of 1."""
    total, spent = Fraction(0), [Fraction(0)] * len(reach[0])
    for (_, most), row, weight in zip(costs, reach, weights, strict=True):
        if any(row):
            expect(weight > 0 or most == 0, "a design query that serves the workload must have a weight")
            total += most / weight**power if most else 0
            spent = [before + weight * each for before, each in zip(spent, row, strict=True)]
    return total * max(spent) ** power


def least(costs: Costs, reach: list[list[Fraction]], y: list[Fraction], power: int) -> Fraction:
    """Return what no weights go below."""
    terms = Fraction(0)
    for (fewest, _), row in zip(costs, reach, strict=True):
        g = sum(own * each for own, each in zip(y, row, strict=True))
        terms += root_below(fewest * g**power, power + 1)
    return terms ** (power + 1) / sum(y) ** power


def costs_of(workload: Matrix, design: Matrix, given: Given) -> Costs:
    """Return numbers between which the cost of each design query lies."""
    (rows, cells), across = design.shape, design.transposed()
    gram = design.times(across) if rows <= cells else across.times(design)
    inverse = given.matrix("inverse", gram.shape)
    missed = departed(gram, inverse)
    shares = workload.times(across).times(inverse) if rows <= cells else workload.times(inverse)
    size = root_above(sum(shares.squares())) * missed / (1 - missed)
    lengths = [Fraction(1)] * rows
    if rows > cells:
        shares, lengths = shares.times(across), [root_above(each) for each in design.squares()]
    found = []
    for square, length in zip(shares.transposed().squares(), lengths, strict=True):
        off = size * length
        found.append((max(root_below(square) - off, Fraction(0)) ** 2, (root_above(square) + off) ** 2))
    return found
