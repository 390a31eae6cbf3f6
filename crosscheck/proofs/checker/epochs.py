"""Gaussian noise on a stream, in which a person participates several times: targets or weights on variances.

The problem has a workload W (m, n), one query per row; numbers c, one per query; ``times`` k and ``separation`` b. If
``apart`` is "exactly", a person participates in one phase: phase p has the steps p, p + b, p + 2 b, … below n. There
are at most k steps in a phase, and every step is in a phase. If ``apart`` is "at least", the module ``apart`` has the
participation patterns and both bounds. Noise has a cost matrix C (n, n), positive semidefinite, with the block C_p on
the steps of phase p. The privacy cost of the phase is the largest ``⟨C_p, R⟩`` over

- vectors: all R that are a correlation matrix (positive semidefinite, with a diagonal of 1);
- signs: all ``z z'`` with signs z, or means of these.

With ``cost`` the largest cost of a phase, the optimum is defined as in ``noise``.

Upper bound. Measure A x with unit noise: ``C = A' A``, and the variances are as in ``noise``. Given d and H, let ``D
= diag(d) - C_p - H H'`` and e be its largest absolute row sum. Then ``diag(d) + e I ⪰ C_p``, and ``⟨C_p, R⟩ ≤ Σ (d_i +
e)`` for any R with a diagonal of 1. For signs in phases of at most ten steps, all choices of signs are tried.

Lower bound. Given F_p with rows f_i, let ``m_p = max |f_i|²``: then ``F_p F_p'`` is at most ``m_p`` times a correlation
matrix, since a diagonal that is not negative may be added. So ``Σ_p ⟨C_p, F_p F_p'⟩ ≤ cost Σ m_p``, and with Λ the sum
of the ``F_p F_p'`` on their steps, ``⟨C, Λ⟩ Σ_j p_j² var_j`` is at least the square of the trace norm of ``diag(p) W
(F_1, F_2, …)``, which an isometry bounds from below, as there.

For signs, given G_p with rows g_i, ``|g_i| ≤ 1``: normal numbers with the correlations ``g_i g_j'`` have signs whose
products have the means ``R_ij = (2/π) arcsin(g_i g_j')`` (Grothendieck). So R is a mean of ``z z'``, as I is. Given a
mass m, let e be the largest absolute row sum of ``F_p F_p' - m R``: then ``F_p F_p' ⪯ m R + e I``, and m_p is m + e.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

from . import apart, noise
from .exact import Matrix, Section, diagonal, expect, power

CONTRIBUTION_KINDS = ("vectors", "signs")
SEPARATION_RULES = ("exactly", "at least")
MAX_ENUMERATED_SIGNS = 10  # steps of a phase for which all choices of signs are tried


def bounds(problem: Section, upper: Section, lower: Section) -> tuple[Fraction, Fraction]:
    """Return the lower and upper bound on the optimum that the file proves."""
    workload = problem.matrix("workload")
    numbers = noise.read_numbers(problem, workload.shape[0])
    times, separation = (positive_integer(problem, name) for name in ("times", "separation"))
    signs = problem.word("parts", CONTRIBUTION_KINDS) == "signs"
    _, variances = noise.costs_and_variances(upper, workload, None)
    strategy, steps = upper.matrix("strategy"), workload.shape[1]
    if problem.word("apart", SEPARATION_RULES) == "at least":
        cost = apart.largest_cost(strategy.transposed().times(strategy), times, separation)
        root, total = apart.weights(lower, steps, times, separation, signs)
        sensitivities = workload.times(root)
    else:
        phases = steps_of_phases(steps, times, separation)
        cost = largest_of_phases(upper, cost_blocks(strategy, phases), signs)
        roots, total = weights_of_phases(lower, phases, signs)
        columns = [on_steps(workload, phase).times(root) for phase, root in zip(phases, roots, strict=True)]
        sensitivities = side_by_side(columns)
    return noise.bounds_from_parts(numbers, cost, variances, *noise.norm_of_columns(lower, sensitivities, total))


def positive_integer(problem: Section, name: str) -> int:
    number = problem.number(name)
    expect(number >= 1 and number.denominator == 1, f"{name} must be an integer of at least 1")
    return int(number)


def steps_of_phases(n: int, times: int, separation: int) -> list[range]:
    """Return the steps of each phase, below n."""
    expect(separation <= n <= times * separation, f"phases must cover all {n} steps, and none may be empty")
    return [range(first, n, separation) for first in range(separation)]


def largest_of_phases(upper: Section, blocks: list[Matrix], signs: bool) -> Fraction:
    """Return an upper bound on the privacy cost of all phases."""
    if signs and max(block.shape[0] for block in blocks) <= MAX_ENUMERATED_SIGNS:
        return max(map(largest_of_signs, blocks))
    return max(map(largest_of_vectors, blocks, upper.parts("phases", len(blocks))))


def weights_of_phases(lower: Section, phases: list[range], signs: bool) -> tuple[list[Matrix], Fraction]:
    """Return F_p for each phase, and the sum of the m_p."""
    roots, total = [], Fraction(0)
    for steps, part in zip(phases, lower.parts("phases", len(phases)), strict=True):
        root = part.matrix("root", (len(steps), None))
        total += mass_of_signs(part, root) if signs else max(root.squares())
        roots.append(root)
    return roots, total


def cost_blocks(strategy: Matrix, phases: list[range]) -> list[Matrix]:
    """Return ``C_p = A_p' A_p`` for the columns of each phase."""
    by_phase = [on_steps(strategy, steps) for steps in phases]
    return [columns.transposed().times(columns) for columns in by_phase]


def largest_of_vectors(block: Matrix, part: Section) -> Fraction:
    """Return an upper bound on ``⟨C_p, R⟩`` over all correlation matrices R."""
    size = block.shape[0]
    upper_diagonal, root = diagonal(part.matrix("diagonal", (1, size))), part.matrix("root", (size, None))
    residual = upper_diagonal.plus(block, -1).plus(noise.squared(root), -1).largest_sum()
    return upper_diagonal.trace() + size * residual


def largest_of_signs(block: Matrix) -> Fraction:
    """Return the largest ``z' C z`` over signs z, the first of them 1."""
    rows, largest = block.rows, 0
    for signs in itertools.product((1, -1), repeat=len(rows) - 1):
        z = (1, *signs)
        largest = max(largest, sum(sign * sum(map(int.__mul__, row, z)) for sign, row in zip(z, rows, strict=True)))
    return power(largest, block.exponent)


def mass_of_signs(part: Section, root: Matrix) -> Fraction:
    """Return a number m with ``F F' ⪯ m R`` for some mean R of ``z z'`` over signs z."""
    mass = part.number("mass")
    expect(mass >= 0, "a mass must not be negative")
    means, error = apart.mean_products(part, root.shape[0], signs=True)
    shift = mass.denominator.bit_length() - 1  # it is a power of two
    scaled = Matrix(means.rows, means.exponent - shift)
    residual = noise.squared(root).plus(scaled, -mass.numerator).largest_sum()
    return mass + residual + mass * error * root.shape[0]


def on_steps(matrix: Matrix, steps: range) -> Matrix:
    return Matrix([[row[step] for step in steps] for row in matrix.rows], matrix.exponent)


def side_by_side(matrices: list[Matrix]) -> Matrix:
    exponent = min(matrix.exponent for matrix in matrices)
    shifted = [[[entry << (matrix.exponent - exponent) for entry in row] for row in matrix.rows] for matrix in matrices]
    return Matrix([list(itertools.chain(*rows)) for rows in zip(*shifted, strict=True)], exponent)
