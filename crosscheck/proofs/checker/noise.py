"""Gaussian noise: targets or weights on variances; common mechanisms, reuse, soft maxima, weights of design queries.

Targets and weights: the problem has a workload W (m, d), one query per row; neighbours U (d, s), whose columns are the
differences of neighbouring data sets (the identity if absent); and numbers c, one per query. A Gaussian mechanism
answers query j with the variance var_j, and has a squared privacy cost for each pair of neighbours u; let ``cost`` be
the largest of these. The optimum is the minimum of ``cost · max_j var_j / c_j`` (targets c > 0), or of ``cost · Σ_j c_j
var_j`` (weights c ≥ 0), over a number ``allowed``.

Upper bound. Measure A x with independent noise of variance 1, A square (d, d). Neighbours u have the cost ``|A u|²``.
If A is invertible, query w has the variance ``|A⁻ᵀ w|²``. Given Z, let ``E = A Z - I``. If ``|E| < 1`` (Frobenius), A
is invertible, ``A⁻ᵀ w = (I + E)⁻ᵀ Zᵀ w``, and so ``var_j ≤ |w_j Z|² / (1 - |E|)²``.

Lower bound. Given p and q, for any noise ``Σ_i q_i² cost_i ≤ cost Σ_i q_i²``, and by Cauchy's inequality the left
side times ``Σ_j p_j² var_j`` is at least the square of the trace norm of ``N = diag(p) W U diag(q)``. The trace norm
is at least ``⟨N, Q⟩ / |Q|`` for any matrix Q, and the square of its largest singular value ``|Q|`` is at most the
largest absolute row sum of ``QᵀQ``, or of ``QQᵀ``. With targets ``Σ_j p_j² var_j ≤ max_j (var_j / c_j) Σ_j p_j²
c_j``; with weights ``p_j² ≤ c_j`` is required.
"""

from __future__ import annotations

from fractions import Fraction
from functools import reduce

from .exact import (
    Matrix,
    Section,
    departed,
    dot,
    eliminated,
    exp_above,
    expect,
    identity,
    log_above,
    log_below,
    power,
    root_above,
    root_below,
)

TARGETS, WEIGHTS = ("targets", "participation targets"), ("weights", "participation weights")


Numbers = tuple[bool, list[Fraction], Fraction]


def bounds(problem: Section, upper: Section, lower: Section) -> tuple[Fraction, Fraction]:
    """Return the lower and upper bound on the optimum that the file proves."""
    workload, neighbours = read_workload(problem)
    numbers = read_numbers(problem, workload.shape[0])
    costs, variances = costs_and_variances(upper, workload, neighbours)
    return bounds_from_parts(numbers, max(costs), variances, *trace_norm(lower, sensitivities_of(workload, neighbours)))


def read_numbers(problem: Section, queries: int) -> Numbers:
    """Return whether the numbers are targets, the numbers, and the allowed privacy cost."""
    targets = problem.word("kind", TARGETS + WEIGHTS) in TARGETS
    numbers, allowed = problem.vector("numbers", queries), problem.number("allowed")
    positive = min(numbers) > 0 if targets else min(numbers) >= 0
    expect(positive and allowed > 0, "numbers must be positive (weights may be 0)")
    return targets, numbers, allowed


def bounds_from_parts(
    numbers: Numbers, cost: Fraction, variances: list[Fraction], p: list[Fraction], norm: Fraction
) -> tuple[Fraction, Fraction]:
    """Return the lower bound (from p and the squared trace norm) and the upper bound (from cost and variances)."""
    targets, limits, allowed = numbers
    squares = [root * root for root in p]
    if not targets:
        at_most(squares, limits)
        return norm / allowed, cost * dot(variances, limits) / allowed
    weighted = dot(squares, limits)
    expect(weighted > 0, "roots of queries must not all be 0")
    return norm / weighted / allowed, cost * max(v / c for v, c in zip(variances, limits, strict=True)) / allowed


def read_workload(problem: Section) -> tuple[Matrix, Matrix | None]:
    workload = problem.matrix("workload")
    return workload, problem.optional_matrix("neighbours", (workload.shape[1], None))


def sensitivities_of(rows: Matrix, neighbours: Matrix | None) -> Matrix:
    return rows if neighbours is None else rows.times(neighbours)


def costs_and_variances(
    part: Section, workload: Matrix, neighbours: Matrix | None
) -> tuple[list[Fraction], list[Fraction]]:
    """Return the cost of each pair of neighbours, and an upper bound on the variance of each query."""
    cells = workload.shape[1]
    strategy, inverse = (part.matrix(name, (cells, cells)) for name in ("strategy", "inverse"))
    residual = departed(strategy, inverse)
    costs = sensitivities_of(strategy, neighbours).transposed().squares()
    return costs, [square / (1 - residual) ** 2 for square in workload.times(inverse).squares()]


def trace_norm(part: Section, sensitivities: Matrix) -> tuple[list[Fraction], Fraction]:
    """Return p, and a lower bound on the squared trace norm of ``diag(p) N diag(q) / |q|``."""
    q = part.vector("neighbour_roots", sensitivities.shape[1])
    return norm_of_columns(part, sensitivities, dot(q, q), q)


def norm_of_columns(
    part: Section, sensitivities: Matrix, total: Fraction, q: list[Fraction] | None = None
) -> tuple[list[Fraction], Fraction]:
    """Return p, and a lower bound on ``‖diag(p) N diag(q)‖_*² / total``; q defaults to ones."""
    p = part.vector("query_roots", sensitivities.shape[0])
    isometry = part.matrix("isometry", sensitivities.shape)
    product = Fraction(0)
    for root, row, isometry_row in zip(p, sensitivities.rows, isometry.rows, strict=True):
        if root:
            products = list(map(int.__mul__, row, isometry_row))
            product += root * (sum(products) if q is None else dot(q, products))
    product *= power(1, sensitivities.exponent + isometry.exponent)
    divisor = isometry.norm_squared() * total
    expect(divisor > 0, "isometry and roots must not all be 0")
    return p, max(product, Fraction(0)) ** 2 / divisor


def at_most(squares: list[Fraction], weights: list[Fraction]) -> None:
    for square, weight in zip(squares, weights, strict=True):
        expect(square <= weight, "the square of a query's root must be at most its weight")


# The common mechanism: the most informative mechanism that can be simulated from each of several mechanisms.
#
# Mechanism i answers the common queries with the covariance P_i ⪰ 0. The optimum is the smallest ``tr S`` over
# ``S ⪰ P_i`` for all i.
#
# Upper bound. Given a symmetric S and matrices H_i, let ``D_i = S - P_i - H_i H_iᵀ`` and d be the largest absolute row
# sum of all D_i, a bound on their spectral norms. Then ``S + d I - P_i ⪰ H_i H_iᵀ ⪰ 0``, and ``S + d I`` is feasible,
# with the trace ``tr S + d r``.
#
# Lower bound. Given G_i, let ``T = Σ G_i G_iᵀ`` and t be its largest absolute row sum: ``t I - T ⪰ 0``. So ``t tr S``
# is ``Σ tr(S G_i G_iᵀ) + tr(S (t I - T))``, at least ``Σ tr(P_i G_i G_iᵀ) + tr(P_1 (t I - T))``.


def common_bounds(problem: Section, upper: Section, lower: Section) -> tuple[Fraction, Fraction]:
    """Return the lower and upper bound on the optimum that the file proves."""
    mechanisms, covariance, error = read_covariances(problem, upper)
    weights = [squared(root) for root in common_roots(lower, mechanisms)]
    total, largest = summed(weights), summed(weights).largest_sum()
    expect(largest > 0, "roots must not all be 0")
    value = sum((mechanism.paired(weight) for mechanism, weight in zip(mechanisms, weights, strict=True)), Fraction(0))
    value += largest * mechanisms[0].trace() - mechanisms[0].paired(total)
    return value / largest, covariance.trace() + covariance.shape[0] * error


def read_covariances(problem: Section, upper: Section) -> tuple[list[Matrix], Matrix, Fraction]:
    """Return the P_i, S and d."""
    mechanisms = [part.matrix("covariance") for part in problem.parts("mechanisms")]
    size = mechanisms[0].shape[0]
    for member in mechanisms:
        expect(member.shape == (size, size) and symmetric(member), "covariances must be symmetric and of one size")
    covariance, error = upper.matrix("covariance", (size, size)), Fraction(0)
    expect(symmetric(covariance), "the covariance must be symmetric")
    for mechanism, root in zip(mechanisms, common_roots(upper, mechanisms), strict=True):
        error = max(error, covariance.plus(mechanism, -1).plus(squared(root), -1).largest_sum())
    return mechanisms, covariance, error


def common_roots(part: Section, mechanisms: list[Matrix]) -> list[Matrix]:
    """Return the matrices H_i or G_i, one for each mechanism."""
    roots = part.parts("roots", len(mechanisms))
    return [root.matrix("root", (mechanisms[0].shape[0], None)) for root in roots]


def summed(matrices: list[Matrix]) -> Matrix:
    return reduce(Matrix.plus, matrices)


# The common mechanism of least volume: as above with P_i ≻ 0 and the objective ``(det S)^(1/r)``.
#
# Upper bound. ``S + d I`` is feasible, with the objective ``(det (S + d I))^(1/r)``.
#
# Lower bound. Let ``T = Σ G_i G_iᵀ ≻ 0`` and ``X = S⁻¹``, so that ``X ⪯ P_i⁻¹``. The eigenvalues of ``X T`` are
# positive, and by the inequality of arithmetic and geometric means ``(det X det T)^(1/r) ≤ tr(X T) / r``. Here ``tr(X
# T) = Σ tr(G_iᵀ X G_i)`` is at most ``Σ tr(G_iᵀ P_i⁻¹ G_i)``.


def volume_bounds(problem: Section, upper: Section, lower: Section) -> tuple[Fraction, Fraction]:
    """Return the lower and upper bound on the optimum that the file proves."""
    mechanisms, covariance, error = read_covariances(problem, upper)
    size, unit = covariance.shape[0], identity(covariance.shape[0])
    feasible = covariance.plus(
        Matrix([[error.numerator * entry for entry in row] for row in unit.rows], -_exponent(error))
    )
    trace, roots = Fraction(0), common_roots(lower, mechanisms)
    for mechanism, root in zip(mechanisms, roots, strict=True):
        _, solution = eliminated(mechanism, root)
        trace += sum(map(dot, solution, root.numbers()), Fraction(0))
    lower_determinant, _ = eliminated(summed([squared(root) for root in roots]), unit)
    upper_determinant, _ = eliminated(feasible, unit)
    return size * root_below(lower_determinant, size) / trace, root_above(upper_determinant, size)


def _exponent(number: Fraction) -> int:
    """Return e for a number with the denominator ``2**e``."""
    return number.denominator.bit_length() - 1


def symmetric(matrix: Matrix) -> bool:
    return matrix.rows == matrix.transposed().rows


def squared(root: Matrix) -> Matrix:
    """Return ``G Gᵀ``."""
    return root.times(root.transposed())


# Reuse of a release: the smallest total privacy cost of a workload with targets, given an earlier release.
#
# With the workload W, neighbours U, costs and variances of ``noise`` and targets c > 0, the release is equivalent to
# F x with unit noise. Its information must be kept: for every a the query ``a F`` must have a variance of at most
# ``|a|²``. The optimum is the smallest cost of noise that satisfies this and ``var_j ≤ c_j`` for all j.
#
# Upper bound. A strategy A with Z and E as there; with ``M = F Z (F Z)ᵀ`` no ``a F`` has a variance above ``|a|² |M| /
# (1 - |E|)²``. Given V, let ``VᵀV = I + D``, d the largest absolute row sum of D and ``d < 1``: then V is invertible,
# and ``|M| ≤ |VᵀM V| / (1 - d)``, and the largest absolute row sum bounds the norm. Dividing the
# covariance by the largest ratio of a variance to its limit satisfies all limits, and multiplies the cost by this
# ratio.
#
# Lower bound. The bound of targets, for the queries W and ``a_k F``, a_k being rows that the file gives, whose targets
# are ``|a_k|²``.


def reuse_bounds(problem: Section, upper: Section, lower: Section) -> tuple[Fraction, Fraction]:
    """Return the lower and upper bound on the optimum that the file proves."""
    workload, neighbours = read_workload(problem)
    targets = problem.vector("targets", workload.shape[0])
    expect(min(targets) > 0, "targets must be positive")
    release = problem.optional_matrix("release", (None, workload.shape[1]))
    costs, variances = costs_and_variances(upper, workload, neighbours)
    excess = max(v / c for v, c in zip(variances, targets, strict=True))
    queries, limits = workload, targets
    if release is not None:
        excess = max(excess, largest_variance(release, upper))
        rows = lower.matrix("release_rows", (None, release.shape[0]))
        queries, limits = workload.over(rows.times(release)), targets + rows.squares()
    p, norm = trace_norm(lower, sensitivities_of(queries, neighbours))
    total = dot([root * root for root in p], limits)
    expect(total > 0, "roots of queries must not all be 0")
    return norm / total, max(costs) * excess


def largest_variance(release: Matrix, part: Section) -> Fraction:
    """Return an upper bound on the variance of ``a F`` over ``|a|²``."""
    strategy, inverse = part.matrix("strategy"), part.matrix("inverse")
    answers = release.times(inverse)
    frame = part.matrix("frame", (release.shape[0], release.shape[0]))
    error = frame.transposed().times(frame).plus(identity(release.shape[0]), -1).largest_sum()
    expect(error < 1, "the columns of the frame must be next to orthonormal")
    rotated = frame.transposed().times(answers)
    return rotated.times(rotated.transposed()).largest_sum() / (1 - error) / (1 - departed(strategy, inverse)) ** 2


# Gaussian noise with soft maxima in place of the largest cost and the largest variance.
#
# With the workload W, neighbours U, costs and variances of ``noise``, targets c > 0, two numbers t1, t2 > 0 and w ≥ 0,
# the optimum is the minimum of ``(1/t1) log Σ_i exp(t1 cost_i) + (1/t2) log Σ_j exp(t2 var_j / c_j) + w Σ_j var_j``.
#
# Upper bound. A strategy with its inverse, as in the module docstring. Exponentials and logarithms of decimals are
# correctly rounded, and replaced by the next larger decimal.
#
# Lower bound. For shares λ_i that sum to 1, with entropy ``H(λ) = - Σ λ_i log λ_i``, the soft maximum of x is at least
# ``Σ λ_i x_i + H(λ) / t``, since the relative entropy of λ with respect to the shares proportional to ``exp(t x_i)``
# is non-negative. So with shares μ of queries the objective is at least ``Σ λ_i cost_i + Σ_j (μ_j / c_j + w) var_j +
# H(λ) / t1 + H(μ) / t2``, and the first two sums, x and y, satisfy ``x + y ≥ 2 √(x y)``. With ``p_j² ≤ μ_j / c_j + w``
# and λ proportional to q², ``x + y`` is at least twice the trace norm of ``diag(p) W U diag(q) / |q|``.


def softmax_bounds(problem: Section, upper: Section, lower: Section) -> tuple[Fraction, Fraction]:
    """Return the lower and upper bound on the optimum that the file proves."""
    workload, neighbours = read_workload(problem)
    targets = problem.vector("targets", workload.shape[0])
    t1, t2, weight = (problem.number(name) for name in ("t1", "t2", "total_weight"))
    expect(
        min(*targets, t1, t2) > 0 and weight >= 0,
        "targets and t1, t2 must be positive, and total_weight must be non-negative",
    )
    costs, variances = costs_and_variances(upper, workload, neighbours)
    ratios = [v / c for v, c in zip(variances, targets, strict=True)]
    upper_value = soft_max_above(costs, t1) + soft_max_above(ratios, t2) + weight * sum(variances)
    sensitivities = sensitivities_of(workload, neighbours)
    p, norm = trace_norm(lower, sensitivities)
    q = lower.vector("neighbour_roots", sensitivities.shape[1])
    mu = lower.nonnegative("query_weights", len(p))
    total = sum(mu)
    at_most([root * root for root in p], [m / (total * c) + weight for m, c in zip(mu, targets, strict=True)])
    lower_value = 2 * root_below(norm) + entropy_below([root * root for root in q]) / t1 + entropy_below(mu) / t2
    return lower_value, upper_value


def soft_max_above(values: list[Fraction], sharpness: Fraction) -> Fraction:
    """Return an upper bound on ``(1/t) log Σ exp(t x_i)``, t the sharpness."""
    largest = max(values)
    powers = (exp_above(sharpness * (value - largest)) for value in values)
    return largest + log_above(sum(powers, Fraction(0))) / sharpness


def entropy_below(weights: list[Fraction]) -> Fraction:
    """Return a lower bound on the entropy of non-negative weights, normalised by their sum."""
    total = sum(weights, Fraction(0))
    return log_below(total) - sum(weight * log_above(weight) for weight in weights if weight) / total


# Weights of given design queries: Program 1, for Gaussian noise (power 1) or for Laplace noise (power 2).
#
# The problem has a workload W (m, d), design queries Q (k, d), and optionally neighbours U (d, s). Column i of ``L = W
# Q⁺`` has the squared norm c_i; ``n_ij`` is ``(q_i u_j)²`` for power 1, ``|q_i u_j|`` for power 2. The optimum is the
# minimum of ``Σ c_i / x_i^power`` over weights x ≥ 0 with ``Σ_i n_ij x_i ≤ 1`` for every pair j. A design query on
# which no neighbours differ has no privacy cost at any weight.
#
# If W is not in the row space of Q, the program is about the projection of W on this space. The proof does not show
# that W is in it.
#
# Costs c_i. Rows of zeros have cost 0, and are left out. If the other rows are independent, ``L = W Qᵀ (Q Qᵀ)⁻¹``.
# Given G with ``E = Q Qᵀ G - I``, ``|E| < 1`` (Frobenius): then the rows are independent, and ``L = W Qᵀ G (I + E)⁻¹``
# differs from ``W Qᵀ G`` by at most ``|W Qᵀ G| |E| / (1 - |E|)`` in any column. If instead the columns are independent,
# ``L = W (Qᵀ Q)⁻¹ Qᵀ``, and likewise column i of ``W G Qᵀ`` has an error of at most ``|W G| |q_i| |E| / (1 - |E|)``.
#
# Upper bound. Any weights, divided by the largest of the sums ``Σ_i n_ij x_i``.
#
# Lower bound. Given y ≥ 0 with sum 1, let ``g_i = Σ_j n_ij y_j``; feasible weights have ``Σ g_i x_i ≤ 1``. By Hölder's
# inequality ``Σ c_i^(1/(r+1)) g_i^(r/(r+1))`` is at most ``(Σ c_i / x_i^r)^(1/(r+1)) (Σ g_i x_i)^(r/(r+1))``, r the
# power; its power r + 1 is the bound.


Costs = list[tuple[Fraction, Fraction]]

POWERS = {"approximate": 1, "pure": 2}


def weighting_bounds(problem: Section, upper: Section, lower: Section) -> tuple[Fraction, Fraction]:
    power = POWERS[problem.word("privacy", POWERS)]
    workload = problem.matrix("workload")
    cells = workload.shape[1]
    design = problem.matrix("design", (None, cells))
    neighbours = problem.optional_matrix("neighbours", (cells, None))
    rows = [row for row in design.rows if any(row)]
    expect(bool(rows), "the design must have a row that is not all 0")
    design = Matrix(rows, design.exponent)
    costs = costs_of(workload, design, upper)
    impact = [
        [entry * entry if power == 1 else abs(entry) for entry in row]
        for row in sensitivities_of(design, neighbours).numbers()
    ]
    weights, y = (upper.nonnegative("weights", len(rows)), lower.nonnegative("neighbour_weights", len(impact[0])))
    return weighting_lower(costs, impact, y, power), weighting_upper(costs, impact, weights, power)


def weighting_upper(costs: Costs, impact: list[list[Fraction]], weights: list[Fraction], power: int) -> Fraction:
    total, privacy_costs = Fraction(0), [Fraction(0)] * len(impact[0])
    for (_, upper_cost), row, weight in zip(costs, impact, weights, strict=True):
        if any(row):
            expect(weight > 0 or upper_cost == 0, "a design query with a positive cost must have a positive weight")
            total += upper_cost / weight**power if upper_cost else 0
            privacy_costs = [
                privacy_cost + weight * entry for privacy_cost, entry in zip(privacy_costs, row, strict=True)
            ]
    return total * max(privacy_costs) ** power


def weighting_lower(costs: Costs, impact: list[list[Fraction]], y: list[Fraction], power: int) -> Fraction:
    terms = Fraction(0)
    for (lower_cost, _), row in zip(costs, impact, strict=True):
        terms += root_below(lower_cost * dot(y, row) ** power, power + 1)
    return terms ** (power + 1) / sum(y) ** power


def costs_of(workload: Matrix, design: Matrix, part: Section) -> Costs:
    """Return a lower and an upper bound on the cost c_i of each design query."""
    (rows, cells), transpose = design.shape, design.transposed()
    gram = design.times(transpose) if rows <= cells else transpose.times(design)
    inverse = part.matrix("inverse", gram.shape)
    residual = departed(gram, inverse)
    shares = workload.times(transpose).times(inverse) if rows <= cells else workload.times(inverse)
    size = root_above(sum(shares.squares())) * residual / (1 - residual)
    lengths = [Fraction(1)] * rows
    if rows > cells:
        shares, lengths = shares.times(transpose), [root_above(square) for square in design.squares()]
    costs = []
    for square, length in zip(shares.transposed().squares(), lengths, strict=True):
        error = size * length
        costs.append((max(root_below(square) - error, Fraction(0)) ** 2, (root_above(square) + error) ** 2))
    return costs
