"""Local privacy: the variances of a strategy, and lower bounds on the variances of all strategies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse

from dualmech import linalg, validate
from dualmech.certificate import FEASIBLE
from dualmech.errors import InvalidInputError
from dualmech.immutable import freeze
from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.verified import UNIT, UPWARDS, spectral_norm, sum_rounding
from dualmech.workloads.base import Workload

# Extremal patterns of local privacy, and the pricing oracle: the pattern that violates a dual constraint the most.
#
# Rows of an ε-LDP strategy lie in the cone ``{v ≥ 0 : v_u ≤ e^ε v_u'}``. Its generators are the vectors
# ``v_S = 1 + c 1_S`` with ``c = e^ε - 1``, for non-empty proper subsets S of the user types. A pattern is a generator
# with sum 1, ``p_S = v_S / (n + c |S|)``.


Sets = npt.NDArray[np.bool_]  # subsets of the user types, one per row (s, n)

EXACT = 32  # maximum number n of user types for pricing all 2^n patterns
PATTERNS_CHUNK = 1 << 22  # patterns that are priced together
MIN_ROWS_CHUNK = 256  # minimum number of queries in one QR factorisation


def gain(epsilon: float) -> float:
    """Return ``c = e^ε - 1``, without cancellation for small ε."""
    return float(np.expm1(epsilon))


def selected_size(size: int, epsilon: float) -> int:
    """Return the set size k of subset selection among n user types.

    It maximises ``k (n - k) / (n + c k)²``, and so the trace of G orthogonal to the ones.
    """
    counts = np.arange(1, size)
    return int(counts[np.argmax(counts * (size - counts) / (size + gain(epsilon) * counts) ** 2)])


def rows(sets: Sets, epsilon: float) -> Array:
    """Return the patterns of sets (s, n), each of sum 1.

    Examples
    --------
    >>> rows(np.array([[True, False]]), np.log(3)).round(6)
    array([[0.75, 0.25]])
    """
    vectors = 1 + gain(epsilon) * np.asarray(sets, dtype=np.float64)
    return np.asarray(vectors / vectors.sum(axis=1, keepdims=True))


def all_sets(size: int) -> Sets:
    """Return every non-empty proper subset, (2^n - 2, n); refused above 20 user types."""
    if validate.size(size=size) > 20:
        raise InvalidInputError(f"size must be at most 20 for all its subsets to be listed, got {size}")
    return _subsets(size)[1:-1]


def split_into_patterns(strategy: Array, epsilon: float) -> tuple[Array, Sets]:
    """Split the rows of a strategy into patterns: weights w and sets S with ``row = Σ w_S p_S``.

    Each row is, up to a factor, ``1 + c t`` with t between 0 and 1, a mixture of the indicators of its upper level
    sets: a chain of at most n + 1 patterns. Splitting never makes a strategy worse. A constant row becomes a
    combination of the patterns of a set and its complement.
    """
    excess = gain(epsilon)
    minima = strategy.min(axis=1, keepdims=True)
    levels = np.clip((strategy / minima - 1) / excess, 0.0, 1.0)
    weights, sets = [], []
    for smallest, level in zip(minima[:, 0], levels, strict=True):
        thresholds = np.unique(np.append(level, [0.0, 1.0]))
        for lower, upper in zip(thresholds[:-1], thresholds[1:], strict=True):
            members = level >= upper
            weight = smallest * (upper - lower) * (len(level) + excess * members.sum())
            if 0 < members.sum() < len(level):
                weights.append(weight)
                sets.append(members)
            else:
                # A constant: 1 = (v_S + v_{not S}) / (2 + c).
                first = np.arange(len(level)) < len(level) / 2
                total = weight / (len(level) * (2 + excess))
                for half in (first, ~first):
                    weights.append(total * (len(level) + excess * half.sum()))
                    sets.append(half)
    return np.array(weights), np.array(sets).reshape(len(weights), strategy.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """A block of patterns with their values of a quadratic form."""

    values: Any  # (a, b) ``v_S' K v_S`` for S the union of a row's and a column's set
    left: Sets  # left, right: the rows' sets among the first user types, the columns' among the others
    right: Sets

    @property
    def sizes(self) -> npt.NDArray[np.intp]:
        """Number of user types in each set (a, b)."""
        return self.left.sum(axis=1)[:, None] + self.right.sum(axis=1)[None, :]

    def sums(self, positions: npt.NDArray[np.intp], weights: Array) -> Array:
        """Return the total weight (s,) of the user types in each set at flat positions of the block."""
        first, second = np.unravel_index(positions, self.values.shape)
        half = self.left.shape[1]
        return np.asarray((self.left @ weights[:half])[first] + (self.right @ weights[half:])[second])

    def sets(self, positions: npt.NDArray[np.intp]) -> Sets:
        """Return the sets (s, n) at flat positions of the block."""
        first, second = np.unravel_index(positions, self.values.shape)
        return np.hstack([self.left[first], self.right[second]])


def forms(matrix: Array, epsilon: float, mirrored: bool = False, single: bool = False) -> Iterator[Priced]:
    """Yield ``v_S' K v_S`` for all 2^n sets S, the empty and the full one included, in blocks.

    The form on all unions of subsets of the two halves is a product of two matrices with ``2^(n/2)`` rows each. If K
    is invariant under reversal of the user types and n is even, `mirrored` skips the sets with more members in the
    first half than in the second, whose mirror images remain. `single` evaluates in single precision.
    """
    size = len(matrix)
    half, excess = (size + 1) // 2, gain(epsilon)
    left, right = _by_size(_subsets(half)), _by_size(_subsets(size - half))
    first, second = 1 + excess * left, 1 + excess * right
    blocks = [
        np.einsum("su,uv,sv->s", vectors, block, vectors, optimize=True)
        for vectors, block in ((first, matrix[:half, :half]), (second, matrix[half:, half:]))
    ]
    dtype: type[np.floating[Any]] = np.float32 if single else np.float64
    columns = np.hstack([second, np.ones((len(second), 1)), blocks[1][:, None]]).T.astype(dtype)
    mixed = 2 * first @ matrix[:half, half:]
    lines = np.hstack([mixed, blocks[0][:, None], np.ones((len(first), 1))]).astype(dtype)
    step = max(PATTERNS_CHUNK // columns.shape[1], 1)
    skip = mirrored and size == 2 * half
    starts = np.searchsorted(right.sum(axis=1), left.sum(axis=1)) if skip else np.zeros(len(left), dtype=np.intp)
    for start in range(0, len(lines), step):
        begin = starts[start]
        yield Priced(lines[start : start + step] @ columns[:, begin:], left[start : start + step], right[begin:])


def _by_size(sets: Sets) -> Sets:
    return sets[np.argsort(sets.sum(axis=1), kind="stable")]


def worst_by_size(matrix: Array, epsilon: float) -> tuple[Array, float]:
    """Return the largest ``v_S' K v_S`` over the sets of each size 0 … n, and an absolute error bound.

    If K differs from its mirror image by rounding errors alone, the mean of both is priced, on half of the sets, and
    the error bound covers the difference. Raises `InvalidInputError` for more than 32 user types.
    """
    size = len(matrix)
    if size > EXACT:
        raise InvalidInputError(f"all patterns are priced up to {EXACT} user types only, got {size}")
    largest, total = (1 + gain(epsilon)) ** 2, float(np.abs(matrix).sum())
    difference = float(np.abs(matrix - matrix[::-1, ::-1]).sum()) / 2
    mirrored = difference <= size * EPS * total
    if mirrored:
        matrix = (matrix + matrix[::-1, ::-1]) / 2
    worst = np.full(size + 1, -np.inf)
    for block in forms(matrix, epsilon, mirrored):
        counts = block.right.sum(axis=1)
        starts = np.flatnonzero(np.diff(counts, prepend=-1))
        by_right = np.maximum.reduceat(block.values, starts, axis=1)
        for count, values in zip(block.left.sum(axis=1), by_right, strict=True):
            sizes = count + counts[starts]
            worst[sizes] = np.maximum(worst[sizes], values)
    return worst, largest * (4 * (size + 4) * EPS * total + mirrored * difference * UPWARDS)


def _subsets(size: int) -> Sets:
    """Return all subsets (2^size, size), the empty one first and the full one last."""
    return (np.arange(1 << size)[:, None] >> np.arange(size)) % 2 == 1


# Multipliers that bound a quadratic form over all proper subsets, for more user types than can be listed.


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """Multipliers of valid inequalities for the indicator s of every non-empty proper subset.

    All multipliers but `squares` are non-negative; negative values count as 0.
    """

    squares: Array  # (n,) of ``s_u² = s_u``, of any sign
    # both, one, neither: (n, n) of ``s_u s_v ≥ 0``, ``s_u (1 - s_v) ≥ 0`` and ``(1 - s_u)(1 - s_v) ≥ 0`` (McCormick)
    both: Array
    one: Array
    neither: Array
    sizes: Array  # (n - 2,) of ``(|s| - j)(|s| - j - 1) ≥ 0``, j = 1 … n - 2
    # (4, n) of ``(|s| - 1) s_u``, ``(n - 1 - |s|) s_u``, ``(|s| - 1)(1 - s_u)`` and ``(n - 1 - |s|)(1 - s_u)``,
    # all non-negative
    products: Array

    @classmethod
    def of(cls, size: int, squares: Array | None = None, **values: Array) -> Relaxation:
        """Build multipliers, 0 by default, and check their shapes.

        Raises `InvalidInputError` or `InputTypeError` for multipliers of another shape, NaN or infinity.
        """
        parts = {}
        for name, shape in _shapes(size).items():
            array = squares if name == "squares" else values.get(name)
            blank = array is None or not np.size(array)
            parts[name] = np.zeros(shape) if blank else validate.finite(**{name: array})
        return cls(**parts).cut(size)

    def cut(self, size: int) -> Relaxation:
        """Return multipliers for n user types with negative values set to 0; infinite values and NaN are kept.

        Raises `InvalidInputError` or `InputTypeError` for multipliers of another shape, or not numbers.
        """
        parts = {}
        for name, shape in _shapes(size).items():
            array = getattr(self, name)
            blank = 0 in shape and np.shape(array) == shape
            part = np.zeros(shape) if blank else validate.numeric(**{name: array})
            if part.shape != shape:
                raise InvalidInputError(f"{name} must have shape {shape}, got {part.shape}")
            parts[name] = part if name == "squares" else np.maximum(part, 0.0)
        return Relaxation(**parts)

    def times(self, exponent: int) -> Relaxation:
        """Return all multipliers times a power of 2."""
        return Relaxation(*(np.ldexp(getattr(self, part.name), exponent) for part in fields(self)))

    def matrix(self) -> Array:
        """Return A (n + 1, n + 1) with ``[1; s]' A [1; s] ≥ 0`` for every non-empty proper subset."""
        size = len(self.squares)
        matrix = np.zeros((size + 1, size + 1))
        linear = -self.squares + self.one.sum(axis=1) - 2 * _mean(self.neither).sum(axis=1)
        quadratic = np.diag(self.squares) + _mean(self.both) - _mean(self.one) + _mean(self.neither)
        constant = float(self.neither.sum())
        counts = np.arange(1, size - 1)
        quadratic += float(self.sizes.sum())
        linear = linear - float((2 * counts + 1) @ self.sizes)
        constant += float((counts * (counts + 1)) @ self.sizes)
        inside_low, inside_high, outside_low, outside_high = self.products
        ones = np.ones(size)
        slopes = inside_low - inside_high - outside_low + outside_high
        quadratic += (np.outer(slopes, ones) + np.outer(ones, slopes)) / 2
        linear = linear + (-inside_low + (size - 1) * inside_high + outside_low - (size - 1) * outside_high)
        linear = linear + outside_low.sum() - outside_high.sum()
        constant += float(-outside_low.sum() + (size - 1) * outside_high.sum())
        matrix[0, 0] = constant
        matrix[0, 1:] = matrix[1:, 0] = linear / 2
        matrix[1:, 1:] = quadratic
        return matrix

    def excess(self, form: Array, epsilon: float, divisors: Array, hidden: Array | float = 0.0) -> float:
        """Return δ ≥ 0 with ``v_S' K v_S ≤ δ · divisors[|S|]`` for all S, by one eigenvalue.

        ``v = T [1; s]`` with ``T = [1, c I]``. If ``-T'KT - A`` has no eigenvalue below -η, the form is at most
        ``η (1 + |S|)``, since ``[1; s]' A [1; s] ≥ 0``. `hidden` has error bounds on the entries of K.
        """
        size, valid = len(form), self.cut(len(form))
        lift = np.hstack([np.ones((size, 1)), gain(epsilon) * np.eye(size)])
        with np.errstate(over="ignore", invalid="ignore"):  # infinite values and NaN give no bound
            implied = valid.matrix()
            certified = -(lift.T @ form @ lift) - implied
        if not np.all(np.isfinite(certified)):
            return np.inf
        rounding = lift.T @ (hidden + 2 * sum_rounding(size + 1) * np.abs(form)) @ lift
        error = spectral_norm(rounding + 2 * UNIT * (np.abs(certified) + np.abs(implied)))
        min_eigenvalue = linalg.extreme_eigenvalues((certified + certified.T) / 2, error + valid._rounding())[0]
        counts = np.arange(size + 1)
        return float((max(-min_eigenvalue, 0.0) * (1 + counts) / divisors)[1:-1].max())

    def _rounding(self) -> float:
        """Return an error bound on `matrix` in the Frobenius norm, whose sums have at most (n + 2)² terms.

        The factors are upper bounds on the Frobenius norms of the matrices of single multipliers.
        """
        size = len(self.squares)
        total = 2 * np.abs(self.squares).sum() + self.both.sum() + self.one.sum() + 2 * self.neither.sum()
        total += 4 * size**2 * self.sizes.sum() + 4 * size * self.products.sum()
        return sum_rounding((size + 2) ** 2) * float(total)


def _shapes(size: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the multipliers, by name."""
    pairs = dict.fromkeys(("both", "one", "neither"), (size, size))
    return {"squares": (size,), **pairs, "sizes": (max(size - 2, 0),), "products": (4, size)}


def _mean(matrix: Array) -> Array:
    return np.asarray((matrix + matrix.T) / 2)


MIN_EPSILON, MAX_EPSILON = 1e-6, 100.0
"""Above, a report is true almost surely; below, its probabilities are equal up to rounding errors."""

CANCELLATION_TOL = 0.1  # smallest ratio of a variance to its terms for which it is computed as a difference


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Each user type's second moment ``Σ_o Q_ou ‖V_o‖²`` and variance (n,), the violation, and error bounds."""

    moments: Array
    variances: Array
    violation: float
    mending: float  # relative increase of moments for a nearby strategy without any violation
    sums: float  # error bound on moments (relative) and on variances (relative to the largest moment)


def evaluate(root: Array, strategy: Array, prior: Array, epsilon: float, off: float = 0.0) -> Evaluation | None:
    """Evaluate a strategy with the optimal reconstruction for a prior; `off` is the root's error in the Frobenius norm.

    Returns None if Q is not finite, has negative entries, or does not answer the workload.
    """
    if not np.all(np.isfinite(strategy)) or np.any(strategy < 0):
        return None
    strategy = strategy[np.any(strategy > 0, axis=1)]
    if np.any(strategy == 0) or not len(strategy):
        return None
    best = best_reconstruction(root, strategy, prior)
    if best is None:
        return None
    moments = strategy.T @ np.einsum("ko,ko->o", best, best)
    # Any V is valid with a correction of its bias, so the computed V needs no error bound.
    biases, rounding = best @ strategy - root, sum_rounding(best.shape[1] + 1)
    bias_errors = rounding * (np.abs(best) @ strategy + np.abs(root))
    low, high = float(np.linalg.norm(biases)), float(np.linalg.norm(np.abs(biases) + bias_errors)) + off
    bias, max_bias = (_bias_correction(norm, root.shape[1], float(prior @ moments), epsilon) for norm in (low, high))
    # Ratios of up to (1 + v) e^ε meet the limit if a share ``v / (1 - e^-ε)`` of all reports is ignored.
    ignored_ratio = -np.expm1(-epsilon)
    ratios = strategy.max(axis=1) / strategy.min(axis=1) * np.exp(-epsilon)
    violation = max(float(ratios.max()) - 1, 0.0) + 2 * float(np.abs(strategy.sum(axis=0) - 1).max())
    # Violations below the rounding error of ratios and sums count as 0.
    rounding_error = 4 * EPS * (len(strategy) + 2)
    excess = max(
        violation / ignored_ratio if violation > rounding_error else 0.0, bias if bias > 2 * rounding_error else 0.0
    )
    mending = 2 * (violation + rounding_error) / ignored_ratio + max_bias
    # Lengths ``‖W_u‖²`` have errors of ``2 off ‖R_u‖ + off²``, relative to the longest.
    sums = 4 * (sum(best.shape) + 4) * EPS + 3 * off / float(np.linalg.norm(root, axis=0).max())
    return Evaluation(moments, user_variances(root, strategy, best), excess, mending, sums)


def _bias_correction(bias: float, size: int, moment: float, epsilon: float) -> float:
    """Return the relative increase of second moments by a correction of a bias with this Frobenius norm.

    The bias is estimated from a share s of all reports by randomised response, whose reconstruction Q⁻¹ has no
    singular value above ``(n + c) / c``: moments are ``M / (1 - s) + M' / s``, at best ``(√M + √M')²``.
    """
    excess = gain(epsilon)
    correction = bias * (size + excess) / excess
    return float(np.square(1 + correction / np.sqrt(moment)) - 1) if moment > 0 else np.inf


def user_variances(root: Array, strategy: Array, reconstruction: Array) -> Array:
    """Return ``T_u = Σ_o Q_ou ‖V_o - W_u‖²``, by expansion of the square if its terms do not cancel."""
    lengths, squares = (np.einsum("ku,ku->u", rows, rows) for rows in (reconstruction, root))
    crossed = np.einsum("ku,ku->u", reconstruction @ strategy, root)
    moments = lengths @ strategy
    variances = moments - 2 * crossed + squares * strategy.sum(axis=0)
    for user in np.flatnonzero(~(variances > CANCELLATION_TOL * (moments + squares))):
        differences = reconstruction - root[:, user, None]
        variances[user] = np.einsum("ko,ko->o", differences, differences) @ strategy[:, user]
    return np.asarray(variances)


def best_reconstruction(root: Array, strategy: Array, prior: Array) -> Array | None:
    """Return V (k, m) of least expected variance under a prior with ``V Q = R``; None if Q cannot answer R.

    ``V = R M⁺ D^(-1/2)`` with ``D = diag(Q π)`` and ``M = D^(-1/2) Q`` (the paper's, for any prior). Singular
    directions of M with tiny singular values are dropped if R is orthogonal to them.
    """
    scale = np.sqrt(strategy @ prior)
    scale = np.where(scale > 0, scale, np.sqrt(strategy.mean(axis=1)))
    orthonormal, triangle = scipy.linalg.qr(strategy / scale[:, None], mode="economic", check_finite=False)
    left, sizes, right = linalg.svd(triangle)
    coordinates = root @ right.T
    positive = sizes > linalg.rank_tolerance(max(strategy.shape)) * sizes[0]
    if np.linalg.norm(coordinates[:, ~positive]) > FEASIBLE * np.linalg.norm(root):
        return None
    return np.asarray(coordinates[:, positive] / sizes[positive] @ left[:, positive].T @ orthonormal.T / scale)


def trace_bound(root: Array, epsilon: float, off: float = 0.0) -> float:
    """Return ``‖W 1‖² / n + ‖W Π‖_*² / τ``, below the L of every ε-LDP strategy, Π the projector off the ones.

    ``τ = max_k k (n-k) c² / (n + k c)²`` bounds ``tr Π G Π``. The bound of the paper is ``‖W‖_*² / e^ε``. `off` is the
    error of the root in the Frobenius norm.
    """
    size, excess = root.shape[1], gain(epsilon)
    means, sizes = root.mean(axis=1), np.abs(root).mean(axis=1)
    hidden = float(np.linalg.norm(root)) * sum_rounding(size + 2) * 2 + off
    nuclear, rounding = linalg.trace_norm(root - means[:, None], hidden)
    means = np.maximum(np.abs(means) - sum_rounding(size + 1) * sizes, 0.0)
    length = max(float(np.linalg.norm(means)) - off / np.sqrt(size), 0.0)
    count = np.arange(1, size)
    trace = float((count * (size - count) * (excess / (size + count * excess)) ** 2).max())
    return float(size * length**2 + max(nuclear - rounding, 0.0) ** 2 / trace) * (1 - 8 * size * EPS)


def in_units(matrix: Array, costs: Array, relaxation: Relaxation | None) -> tuple[Array, Array, Relaxation | None]:
    """Return Z over a power of 2 close to its largest entry, and costs and multipliers over its square.

    The bound is the same, without underflow.
    """
    exponent = -int(np.frexp(np.abs(matrix).max())[1])
    with np.errstate(over="ignore"):  # infinite values and NaN give no bound
        scaled = None if relaxation is None else relaxation.cut(len(costs)).times(2 * exponent)
        return np.ldexp(matrix, exponent), np.ldexp(costs, 2 * exponent), scaled


def excess(matrix: Array, costs: Array, share: Array, epsilon: float, relaxation: Relaxation | None) -> float:
    """Return δ ≥ 0 with ``‖Z'p_S‖² ≤ (y'p_S + δ)(n π'p_S)`` for all S; infinite if no bound is found.

    The largest entry of Z should be close to 1, as `in_units` returns it.
    """
    size = len(costs)
    mixed, sizes = np.outer(costs, share), np.abs(matrix)
    form = matrix @ matrix.T - (mixed + mixed.T) / 2
    if not np.all(np.isfinite(form)):
        return np.inf
    hidden = sum_rounding(matrix.shape[1] + 3) * (sizes @ sizes.T + np.abs(mixed + mixed.T))
    counts = gain(epsilon) * np.arange(size + 1) + size
    # v'share is Σ_u share_u + c Σ_{u in S} share_u, at least the sum with the k = |S| smallest shares.
    smallest = np.concatenate([[0.0], np.cumsum(np.sort(share))])
    partner = (share.sum() + gain(epsilon) * smallest) * (1 - 4 * sum_rounding(size + 1))
    if relaxation is not None:
        return relaxation.excess(form, epsilon, counts * partner, hidden)
    if size > EXACT:
        return np.inf
    worst, allowance = worst_by_size(form, epsilon)
    allowance += (1 + gain(epsilon)) ** 2 * float(hidden.sum())
    return float(np.maximum((worst + allowance) / (counts * partner), 0.0)[1:-1].max())


def normalise_rows(strategy: Array) -> tuple[Array, Array]:
    """Return the non-zero rows of a strategy scaled to sum 1, and their sums."""
    sums = strategy.sum(axis=1)
    with np.errstate(invalid="ignore"):  # infinite values and NaN give no bound
        return strategy[sums > 0] / sums[sums > 0, None], sums[sums > 0]


def repair(strategy: Array, epsilon: float) -> Array:
    """Return a nearby ε-LDP strategy: small entries raised to e^-ε of their row's largest, columns of sum 1.

    One further output has the missing probability of each column, plus a share of all reports that keeps its ratio
    below e^ε.
    """
    rows = np.maximum(strategy[np.any(strategy > 0, axis=1)], 0.0)
    rows = np.maximum(rows, rows.max(axis=1, keepdims=True) * np.exp(-epsilon) * (1 + 4 * EPS))
    totals = rows.sum(axis=0)
    rows, deficits = rows / totals.max(), 1 - totals / totals.max()
    largest = float(deficits.max())
    if largest <= 4 * EPS * len(rows):
        return np.asarray(rows)
    share = largest / (gain(epsilon) + largest) * (1 + 1e-12)
    # Not 1 minus the sums of the others: both terms may be tiny, and cancellation would spoil their ratio.
    return np.vstack([(1 - share) * rows, share + (1 - share) * deficits])


def as_epsilon(epsilon: float) -> float:
    value = validate.positive_number(epsilon=epsilon)
    if not MIN_EPSILON <= value <= MAX_EPSILON:
        raise InvalidInputError(f"epsilon must be from {MIN_EPSILON:g} to {MAX_EPSILON:g}, got {value:g}")
    return value


def as_prior(prior: npt.ArrayLike | None, size: int) -> Array:
    """Return a probability over the user types, uniform by default."""
    if prior is None:
        return freeze(np.full(size, 1 / size))
    value = validate.finite(1, prior=prior)
    if value.shape != (size,) or np.any(value < 0) or abs(value.sum() - 1) > FEASIBLE:
        raise InvalidInputError(
            f"prior must hold {size} non-negative numbers of sum 1, got {len(value)} of sum {value.sum():g}"
        )
    return freeze(value / value.sum())


def centred(root: Array) -> Array:
    """Return ``R Π``, each query minus its mean: the total is known, so no user's variance changes.

    A workload of totals alone is returned unchanged, since ``R Π`` would be 0.
    """
    difference = root - root.mean(axis=1, keepdims=True)
    return difference if np.linalg.norm(difference) > 8 * root.size * EPS * np.linalg.norm(root) else root


def root_of(workload: Workload, less_means: bool = False) -> tuple[Array, float]:
    """Return R (k, n) with ``R'R = W'W``, and an error bound in the Frobenius norm.

    R is the workload itself if it has at most as many queries as user types. With `less_means` the mean of each query
    is subtracted: the total is known, so no user's variance depends on a constant. A workload of totals alone is
    unchanged, since R would be 0.
    """
    queries, size = workload.shape
    step = max(4 * size, MIN_ROWS_CHUNK)
    less_means = less_means and any(_distinguishes(rows) for rows in _rows_of(workload, step))
    parts = (_less_means(rows) if less_means else rows for rows in _rows_of(workload, step))
    root, times = np.vstack([_reduced(rows) for rows in parts]), int(queries > size)
    while len(root) > size:
        root = np.vstack([_reduced(root[start : start + step]) for start in range(0, len(root), step)])
        times += 1
    root, lost = _without_noise(root) if times else (root, 0.0)
    # R from Householder's method is exact for rows whose columns have relative errors of a small multiple of this
    # (Higham, Accuracy and Stability of Numerical Algorithms, theorem 19.4). Means are subtracted twice.
    rounding = 8 * (times + 1) * min(step, queries) * size if times else 0.0
    rounding += 4 * (size + 2) ** 1.5 if less_means else 0.0
    return np.array(root), rounding * UNIT * float(np.linalg.norm(root)) + lost


def _rows_of(workload: Workload, step: int) -> Iterator[Array]:
    """Yield the rows of a workload in dense chunks of `step` rows."""
    matrix = workload.matrix
    for start in range(0, workload.shape[0], step):
        rows = matrix[start : start + step]
        yield rows.toarray() if scipy.sparse.issparse(rows) else rows


def _distinguishes(rows: Array) -> bool:
    """Whether a query distinguishes user types by more than the rounding errors of its entries."""
    return bool(np.any(np.ptp(rows, axis=1) > 8 * rows.shape[1] * EPS * np.abs(rows).max(axis=1)))


def _less_means(rows: Array) -> Array:
    """Subtract the mean of each row, twice: the second time, the rounding error of a large mean."""
    for _ in range(2):
        rows = rows - rows.mean(axis=1, keepdims=True)
    return rows


def _reduced(rows: Array) -> Array:
    """Return at most as many rows as columns, with the same inner products of columns."""
    if len(rows) <= rows.shape[1]:
        return rows
    return np.asarray(scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]])


def _without_noise(root: Array) -> tuple[Array, float]:
    """Return a root without rows of rounding errors, and the Frobenius norm of these rows."""
    size = root.shape[1]
    triangle, order = scipy.linalg.qr(root, mode="r", pivoting=True, check_finite=False)
    tails = np.sqrt(np.cumsum(np.square(triangle[::-1]).sum(axis=1))[::-1])
    rank = int(np.count_nonzero(tails > size * EPS * tails[0]))
    if rank >= len(root) - 1:  # the rank of queries minus their means is at most n - 1: the basis stays
        return root, 0.0
    rows = np.empty((rank, size))
    rows[:, order] = triangle[:rank]
    return rows, float(tails[rank]) * UPWARDS
