"""Gaussian noise: targets or weights on variances; common mechanisms, reuse, soft maxima, weights of design queries.

Targets and weights: there is a workload W (m, d), a query a row; neighbours U (d, s), differences of neighbouring
data sets a column, or none, which is the identity; and numbers c, one per query. Noise on the data gives query j the
variance var_j, and costs neighbours u some squared privacy cost; let ``cost`` be the largest of these. The optimum is
the least of ``cost · max_j var_j / c_j`` (targets c > 0), or of ``cost · Σ_j c_j var_j`` (weights c ≥ 0), over a number
``allowed``.

Upper bound. Measure A x with independent noise of variance 1, A square (d, d). Neighbours u cost ``|A u|²``, and if A
is invertible, query w has the variance ``|A⁻ᵀ w|²``. Given Z, let ``E = A Z - I``. If ``|E| < 1`` (Frobenius), A is
invertible, ``A⁻ᵀ w = (I + E)⁻ᵀ Zᵀ w``, and so ``var_j ≤ |w_j Z|² / (1 - |E|)²``.

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
    Given,
    Matrix,
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


def bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that noise and weights of a file show."""
    workload, neighbours = stated(problem)
    numbers = stated_numbers(problem, workload.shape[0])
    costs, variances = sides(upper, workload, neighbours)
    return between(numbers, max(costs), variances, *trace_norm(lower, moved(workload, neighbours)))


def stated_numbers(problem: Given, queries: int) -> Numbers:
    """Return whether the numbers are targets, the numbers, and the one allowed."""
    targets = problem.word("kind", TARGETS + WEIGHTS) in TARGETS
    numbers, allowed = problem.vector("numbers", queries), problem.number("allowed")
    positive = min(numbers) > 0 if targets else min(numbers) >= 0
    expect(positive and allowed > 0, "numbers must be positive (weights may be 0)")
    return targets, numbers, allowed


def between(
    numbers: Numbers, cost: Fraction, variances: list[Fraction], p: list[Fraction], norm: Fraction
) -> tuple[Fraction, Fraction]:
    """Return both bounds: of noise by its cost and variances, and of p by the squared trace norm."""
    targets, limits, allowed = numbers
    squares = [root * root for root in p]
    if not targets:
        at_most(squares, limits)
        return norm / allowed, cost * dot(variances, limits) / allowed
    weighted = dot(squares, limits)
    expect(weighted > 0, "roots of queries must not all be 0")
    return norm / weighted / allowed, cost * max(v / c for v, c in zip(variances, limits, strict=True)) / allowed


def stated(problem: Given) -> tuple[Matrix, Matrix | None]:
    """Return the workload and the neighbours of a problem."""
    workload = problem.matrix("workload")
    return workload, problem.optional_matrix("neighbours", (workload.shape[1], None))


def moved(rows: Matrix, neighbours: Matrix | None) -> Matrix:
    return rows if neighbours is None else rows.times(neighbours)


def sides(part: Given, workload: Matrix, neighbours: Matrix | None) -> tuple[list[Fraction], list[Fraction]]:
    """Return the cost of each pair of neighbours, and an upper bound on the variance of each query."""
    cells = workload.shape[1]
    strategy, inverse = (part.matrix(name, (cells, cells)) for name in ("strategy", "inverse"))
    missed = departed(strategy, inverse)
    costs = moved(strategy, neighbours).transposed().squares()
    return costs, [square / (1 - missed) ** 2 for square in workload.times(inverse).squares()]


def trace_norm(part: Given, changed: Matrix) -> tuple[list[Fraction], Fraction]:
    """Return p, and a lower bound on the squared trace norm of ``diag(p) N diag(q) / |q|``."""
    q = part.vector("neighbour_roots", changed.shape[1])
    return norm_of_columns(part, changed, dot(q, q), q)


def norm_of_columns(
    part: Given, changed: Matrix, total: Fraction, q: list[Fraction] | None = None
) -> tuple[list[Fraction], Fraction]:
    """Return p, and a lower bound on the squared trace norm of ``diag(p) N diag(q)`` over a total; q is 1 or given."""
    p = part.vector("query_roots", changed.shape[0])
    other = part.matrix("isometry", changed.shape)
    product = Fraction(0)
    for root, row, matching in zip(p, changed.rows, other.rows, strict=True):
        if root:
            products = list(map(int.__mul__, row, matching))
            product += root * (sum(products) if q is None else dot(q, products))
    product *= power(1, changed.exponent + other.exponent)
    divisor = other.norm_squared() * total
    expect(divisor > 0, "isometry and roots must not all be 0")
    return p, max(product, Fraction(0)) ** 2 / divisor


def at_most(squares: list[Fraction], weights: list[Fraction]) -> None:
    """Require that no square of a query's root exceeds its weight."""
    for square, weight in zip(squares, weights, strict=True):
        expect(square <= weight, "the square of a query's root must be at most its weight")


# The common mechanism: the least noise, on queries that several mechanisms all answer, that none of them stays below.
#
# There are covariances P_i ⪰ 0, with which mechanism i answers the common queries; the optimum is the least ``tr S``
# over ``S ⪰ P_i`` for all i.
#
# Upper bound. Given a symmetric S and matrices H_i, let ``D_i = S - P_i - H_i H_iᵀ`` and d be the largest absolute row
# sum of all of them, which no eigenvalue of them exceeds in magnitude. Then ``S + d I - P_i ⪰ H_i H_iᵀ ⪰ 0``, and ``tr
# S + d r`` is reached.
#
# Lower bound. Given G_i, let ``T = Σ G_i G_iᵀ`` and t be its largest absolute row sum: ``t I - T ⪰ 0``. So ``t tr S``
# is ``Σ tr(S G_i G_iᵀ) + tr(S (t I - T))``, at least ``Σ tr(P_i G_i G_iᵀ) + tr(P_1 (t I - T))``.


def common_bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that a covariance and a measurement of a file show."""
    mechanisms, covariance, off = stated_covariances(problem, upper)
    weights = [squared(root) for root in common_roots(lower, mechanisms)]
    total, largest = summed(weights), summed(weights).largest_sum()
    expect(largest > 0, "roots must not all be 0")
    proven = sum((member.paired(weight) for member, weight in zip(mechanisms, weights, strict=True)), Fraction(0))
    proven += largest * mechanisms[0].trace() - mechanisms[0].paired(total)
    return proven / largest, covariance.trace() + covariance.shape[0] * off


def stated_covariances(problem: Given, upper: Given) -> tuple[list[Matrix], Matrix, Fraction]:
    """Return the P_i, S and d."""
    mechanisms = [part.matrix("covariance") for part in problem.parts("mechanisms")]
    size = mechanisms[0].shape[0]
    for member in mechanisms:
        expect(member.shape == (size, size) and symmetric(member), "covariances must be symmetric and of one size")
    covariance, off = upper.matrix("covariance", (size, size)), Fraction(0)
    expect(symmetric(covariance), "the covariance must be symmetric")
    for mechanism, root in zip(mechanisms, common_roots(upper, mechanisms), strict=True):
        off = max(off, covariance.plus(mechanism, -1).plus(squared(root), -1).largest_sum())
    return mechanisms, covariance, off


def common_roots(part: Given, mechanisms: list[Matrix]) -> list[Matrix]:
    """Return the matrices H_i or G_i of a part, one for each mechanism."""
    roots = part.parts("roots", len(mechanisms))
    return [root.matrix("root", (mechanisms[0].shape[0], None)) for root in roots]


def summed(matrices: list[Matrix]) -> Matrix:
    return reduce(Matrix.plus, matrices)


# The common mechanism of least volume: the same for covariances P_i ≻ 0, with the least ``(det S)^(1/r)``.
#
# Upper bound. ``(det (S + d I))^(1/r)`` is reached.
#
# Lower bound. Let ``T = Σ G_i G_iᵀ ≻ 0`` and ``X = S⁻¹``, so that ``X ⪯ P_i⁻¹``. The eigenvalues of ``X T`` are
# positive, and by the inequality of means ``(det X det T)^(1/r) ≤ tr(X T) / r``. Here ``tr(X T) = Σ tr(G_iᵀ X G_i)`` is
# at most ``Σ tr(G_iᵀ P_i⁻¹ G_i)``.


def volume_bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that a covariance and weights of a file show."""
    mechanisms, covariance, off = stated_covariances(problem, upper)
    size, unit = covariance.shape[0], identity(covariance.shape[0])
    raised = covariance.plus(Matrix([[off.numerator * one for one in row] for row in unit.rows], -_exponent(off)))
    trace, roots = Fraction(0), common_roots(lower, mechanisms)
    for mechanism, root in zip(mechanisms, roots, strict=True):
        _, solution = eliminated(mechanism, root)
        trace += sum(map(dot, solution, root.numbers()), Fraction(0))
    proven, _ = eliminated(summed([squared(root) for root in roots]), unit)
    reached, _ = eliminated(raised, unit)
    return size * root_below(proven, size) / trace, root_above(reached, size)


def _exponent(number: Fraction) -> int:
    """Return e, the denominator being ``2**e``."""
    return number.denominator.bit_length() - 1


def symmetric(matrix: Matrix) -> bool:
    """Whether a matrix is its own transpose."""
    return matrix.rows == matrix.transposed().rows


def squared(root: Matrix) -> Matrix:
    """Return ``G Gᵀ``."""
    return root.times(root.transposed())


# Reuse of a release: the least total privacy cost of a workload with targets, given an earlier release.
#
# With the workload W, neighbours U, costs and variances of ``noise`` and targets c > 0, the release is worth as much as
# F x with unit noise: it must stay known, which means that for every a the query ``a F`` has a variance of at most
# ``|a|²``. The optimum is the least cost at which this holds and ``var_j ≤ c_j`` for all j.
#
# Upper bound. A strategy A with Z and E as there; with ``M = F Z (F Z)ᵀ`` no ``a F`` has a variance above ``|a|² |M| /
# (1 - |E|)²``. Given V, let ``VᵀV = I + D``, d the largest absolute row sum of D and ``d < 1``: then V is invertible,
# and ``|M| ≤ |VᵀM V| / (1 - d)``, where an absolute row sum bounds the norm. All noise over the largest excess meets
# all limits, at as many times the cost.
#
# Lower bound. The bound of targets, for the queries W and ``a_k F``, a_k being rows that the file gives, whose targets
# are ``|a_k|²``.


def reuse_bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that noise and weights of a file show."""
    workload, neighbours = stated(problem)
    targets = problem.vector("targets", workload.shape[0])
    expect(min(targets) > 0, "targets must be positive")
    release = problem.optional_matrix("release", (None, workload.shape[1]))
    costs, variances = sides(upper, workload, neighbours)
    excess = max(v / c for v, c in zip(variances, targets, strict=True))
    queries, limits = workload, targets
    if release is not None:
        excess = max(excess, largest_variance(release, upper))
        rows = lower.matrix("release_rows", (None, release.shape[0]))
        queries, limits = workload.over(rows.times(release)), targets + rows.squares()
    p, norm = trace_norm(lower, moved(queries, neighbours))
    total = dot([root * root for root in p], limits)
    expect(total > 0, "roots of queries must not all be 0")
    return norm / total, max(costs) * excess


def largest_variance(release: Matrix, part: Given) -> Fraction:
    """Return an upper bound on the variance of ``a F`` over ``|a|²``."""
    strategy, inverse = part.matrix("strategy"), part.matrix("inverse")
    known = release.times(inverse)
    frame = part.matrix("frame", (release.shape[0], release.shape[0]))
    off = frame.transposed().times(frame).plus(identity(release.shape[0]), -1).largest_sum()
    expect(off < 1, "the columns of the frame must be next to orthonormal")
    turned = frame.transposed().times(known)
    return turned.times(turned.transposed()).largest_sum() / (1 - off) / (1 - departed(strategy, inverse)) ** 2


# Gaussian noise whose largest cost and largest variance are replaced by soft maxima.
#
# With the workload W, neighbours U, costs and variances of ``noise``, targets c > 0, two numbers t1, t2 > 0 and w ≥ 0,
# the optimum is the least of ``(1/t1) log Σ_i exp(t1 cost_i) + (1/t2) log Σ_j exp(t2 var_j / c_j) + w Σ_j var_j``.
#
# Upper bound. A strategy with its inverse, as there; exponentials and logarithms of decimals are correctly rounded, and
# are moved one step up.
#
# Lower bound. For shares λ_i that sum to 1, with entropy ``H(λ) = - Σ λ_i log λ_i``, the soft maximum of x is at least
# ``Σ λ_i x_i + H(λ) / t``, since the relative entropy of λ to the shares in proportion to ``exp(t x_i)`` is not
# negative. So with shares μ of queries the objective is at least ``Σ λ_i cost_i + Σ_j (μ_j / c_j + w) var_j + H(λ) / t1
# + H(μ) / t2``, and of the first two sums, x and y, ``x + y ≥ 2 √(x y)``: with ``p_j² ≤ μ_j / c_j + w`` and λ in
# proportion to q², at least twice the trace norm of ``diag(p) W U diag(q) / |q|``.


def softmax_bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that noise and weights of a file show."""
    workload, neighbours = stated(problem)
    targets = problem.vector("targets", workload.shape[0])
    t1, t2, weight = (problem.number(name) for name in ("t1", "t2", "total_weight"))
    expect(
        min(*targets, t1, t2) > 0 and weight >= 0, "targets and t1, t2 must be positive, and total_weight not negative"
    )
    costs, variances = sides(upper, workload, neighbours)
    ratios = [v / c for v, c in zip(variances, targets, strict=True)]
    most = soft_max_above(costs, t1) + soft_max_above(ratios, t2) + weight * sum(variances)
    changed = moved(workload, neighbours)
    p, norm = trace_norm(lower, changed)
    q = lower.vector("neighbour_roots", changed.shape[1])
    mu = lower.nonnegative("query_weights", len(p))
    total = sum(mu)
    at_most([root * root for root in p], [m / (total * c) + weight for m, c in zip(mu, targets, strict=True)])
    least = 2 * root_below(norm) + entropy_below([root * root for root in q]) / t1 + entropy_below(mu) / t2
    return least, most


def soft_max_above(values: list[Fraction], sharpness: Fraction) -> Fraction:
    """Return a number that is at least ``(1/t) log Σ exp(t x_i)``."""
    largest = max(values)
    powers = (exp_above(sharpness * (value - largest)) for value in values)
    return largest + log_above(sum(powers, Fraction(0))) / sharpness


def entropy_below(weights: list[Fraction]) -> Fraction:
    """Return a number that is at most the entropy of weights, none negative, over their sum."""
    total = sum(weights, Fraction(0))
    return log_below(total) - sum(weight * log_above(weight) for weight in weights if weight) / total


# Weights of given design queries: Program 1, for Gaussian noise (power 1) or for Laplace noise (power 2).
#
# There are a workload W (m, d), design queries Q (k, d), and neighbours U (d, s) or none. Column i of ``L = W Q⁺`` has
# the squared norm c_i; ``n_ij`` is ``(q_i u_j)²`` for power 1, ``|q_i u_j|`` for power 2. The optimum is the least of
# ``Σ c_i / x_i^power`` over weights x ≥ 0 with ``Σ_i n_ij x_i ≤ 1`` for every pair j. A design query that no neighbours
# change costs nothing, whatever its weight.
#
# Where W is not in the span of the design queries this is a program about their nearest combinations: that they
# answer W is not shown.
#
# The costs. Rows of zeros have cost 0, and are left out. If the others are independent, ``L = W Qᵀ (Q Qᵀ)⁻¹``. Given G
# with ``E = Q Qᵀ G - I``, ``|E| < 1`` (Frobenius): then they are, and ``L = W Qᵀ G (I + E)⁻¹`` differs from ``W Qᵀ G``
# by at most ``|W Qᵀ G| |E| / (1 - |E|)`` in any column. If instead the columns are independent, ``L = W (Qᵀ Q)⁻¹ Qᵀ``,
# and likewise column i of ``W G Qᵀ`` is off by at most ``|W G| |q_i| |E| / (1 - |E|)``.
#
# Upper bound. Any weights, over the largest of the sums ``Σ_i n_ij x_i``.
#
# Lower bound. Given y ≥ 0 with sum 1, let ``g_i = Σ_j n_ij y_j``; feasible weights have ``Σ g_i x_i ≤ 1``. By Hölder's
# inequality ``Σ c_i^(1/(r+1)) g_i^(r/(r+1))`` is at most ``(Σ c_i / x_i^r)^(1/(r+1)) (Σ g_i x_i)^(r/(r+1))``, r the
# power; its power r + 1 is the bound.


Costs = list[tuple[Fraction, Fraction]]

POWERS = {"approximate": 1, "pure": 2}


def weighting_bounds(problem: Given, upper: Given, lower: Given) -> tuple[Fraction, Fraction]:
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
        [entry * entry if power == 1 else abs(entry) for entry in row] for row in moved(design, neighbours).numbers()
    ]
    weights, y = (upper.nonnegative("weights", len(rows)), lower.nonnegative("neighbour_weights", len(reach[0])))
    return least(costs, reach, y, power), achieved(costs, reach, weights, power)


def achieved(costs: Costs, reach: list[list[Fraction]], weights: list[Fraction], power: int) -> Fraction:
    total, spent = Fraction(0), [Fraction(0)] * len(reach[0])
    for (_, most), row, weight in zip(costs, reach, weights, strict=True):
        if any(row):
            expect(weight > 0 or most == 0, "a design query that serves the workload must have a weight")
            total += most / weight**power if most else 0
            spent = [before + weight * cost for before, cost in zip(spent, row, strict=True)]
    return total * max(spent) ** power


def least(costs: Costs, reach: list[list[Fraction]], y: list[Fraction], power: int) -> Fraction:
    """Return a lower bound for all weights."""
    terms = Fraction(0)
    for (fewest, _), row in zip(costs, reach, strict=True):
        terms += root_below(fewest * dot(y, row) ** power, power + 1)
    return terms ** (power + 1) / sum(y) ** power


def costs_of(workload: Matrix, design: Matrix, part: Given) -> Costs:
    """Return numbers between which the cost of each design query lies."""
    (rows, cells), across = design.shape, design.transposed()
    gram = design.times(across) if rows <= cells else across.times(design)
    inverse = part.matrix("inverse", gram.shape)
    missed = departed(gram, inverse)
    shares = workload.times(across).times(inverse) if rows <= cells else workload.times(inverse)
    size = root_above(sum(shares.squares())) * missed / (1 - missed)
    lengths = [Fraction(1)] * rows
    if rows > cells:
        shares, lengths = shares.times(across), [root_above(square) for square in design.squares()]
    costs = []
    for square, length in zip(shares.transposed().squares(), lengths, strict=True):
        off = size * length
        costs.append((max(root_below(square) - off, Fraction(0)) ** 2, (root_above(square) + off) ** 2))
    return costs
