"""The judge's arithmetic for local privacy: variances of a strategy, and what dual weights prove about all of them."""

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

# Extremal patterns of local privacy, and the pricing oracle: which pattern breaks a dual constraint the most.
#
# Rows of an ε-LDP strategy lie in the cone ``{v ≥ 0 : v_u ≤ e^ε v_u'}``, which the vectors ``v_S = 1 + c 1_S``
# generate, ``c = e^ε - 1``, S a proper subset of the user types, not empty. A pattern is such a vector with sum 1,
# ``p_S = v_S / (n + c |S|)``.


Sets = npt.NDArray[np.bool_]  # subsets of the user types, one per row (s, n)

EXACT = 32  # user types up to which all 2^n patterns are priced
BLOCK = 1 << 22  # patterns that are priced at a time
FEWEST_REDUCED = 256  # queries, at least, that are reduced to a triangle at a time


def gain(epsilon: float) -> float:
    """Return ``c = e^ε - 1``, without cancellation for small ε."""
    return float(np.expm1(epsilon))


def selected_size(size: int, epsilon: float) -> int:
    """Return the number k of members of the sets that subset selection chooses among n user types.

    It makes ``k (n - k) / (n + c k)²`` the largest, and with it the trace of G across the ones.
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
    """Return every proper subset that is not empty, (2^n - 2, n); refused above 20 user types."""
    if validate.size(size=size) > 20:
        raise InvalidInputError(f"size must be at most 20 for all its subsets to be listed, got {size}")
    return _subsets(size)[1:-1]


def split_into_patterns(strategy: Array, epsilon: float) -> tuple[Array, Sets]:
    """Split the rows of a strategy into patterns: weights w and sets S with ``row = Σ w_S p_S``.

    Each row is, up to a factor, ``1 + c t`` with t between 0 and 1, a mixture of the indicators of its upper level
    sets: a chain of at most n + 1 patterns. Splitting never makes a strategy worse. (A constant is halved into a set
    and its complement.)
    """
    excess = gain(epsilon)
    least = strategy.min(axis=1, keepdims=True)
    levels = np.clip((strategy / least - 1) / excess, 0.0, 1.0)
    weights, sets = [], []
    for smallest, level in zip(least[:, 0], levels, strict=True):
        steps = np.unique(np.append(level, [0.0, 1.0]))
        for below, above in zip(steps[:-1], steps[1:], strict=True):
            members = level >= above
            weight = smallest * (above - below) * (len(level) + excess * members.sum())
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
    """A block of patterns with the values of a quadratic form on them."""

    values: Any  # (a, b) ``v_S' K v_S`` for S the union of a row's and a column's set
    left: Sets  # left, right: the rows' sets among the first user types, the columns' among the others
    right: Sets

    @property
    def sizes(self) -> npt.NDArray[np.intp]:
        """Number of user types in each set (a, b)."""
        return self.left.sum(axis=1)[:, None] + self.right.sum(axis=1)[None, :]

    def sums(self, chosen: npt.NDArray[np.intp], weights: Array) -> Array:
        """Return the total weight (s,) of the user types in each set at flat positions of the block."""
        first, second = np.unravel_index(chosen, self.values.shape)
        half = self.left.shape[1]
        return np.asarray((self.left @ weights[:half])[first] + (self.right @ weights[half:])[second])

    def sets(self, chosen: npt.NDArray[np.intp]) -> Sets:
        """Return the sets (s, n) at flat positions of the block."""
        first, second = np.unravel_index(chosen, self.values.shape)
        return np.hstack([self.left[first], self.right[second]])


def forms(matrix: Array, epsilon: float, mirrored: bool = False, single: bool = False) -> Iterator[Priced]:
    """Yield ``v_S' K v_S`` for all 2^n sets S, the empty and the full one included, in blocks.

    The user types are cut into two halves; a product of two matrices with ``2^(n/2)`` rows each does the rest. If
    K is the same with the user types in reverse, `mirrored` leaves out most sets whose image is another one: those
    with more members in the first half than in the second, for even n. `single` evaluates in single precision.
    """
    size = len(matrix)
    half, excess = (size + 1) // 2, gain(epsilon)
    left, right = _by_size(_subsets(half)), _by_size(_subsets(size - half))
    first, second = 1 + excess * left, 1 + excess * right
    blocks = [
        np.einsum("su,uv,sv->s", vectors, block, vectors, optimize=True)
        for vectors, block in ((first, matrix[:half, :half]), (second, matrix[half:, half:]))
    ]
    kind: type[np.floating[Any]] = np.float32 if single else np.float64
    columns = np.hstack([second, np.ones((len(second), 1)), blocks[1][:, None]]).T.astype(kind)
    mixed = 2 * first @ matrix[:half, half:]
    lines = np.hstack([mixed, blocks[0][:, None], np.ones((len(first), 1))]).astype(kind)
    step = max(BLOCK // columns.shape[1], 1)
    halved = mirrored and size == 2 * half
    starts = np.searchsorted(right.sum(axis=1), left.sum(axis=1)) if halved else np.zeros(len(left), dtype=np.intp)
    for start in range(0, len(lines), step):
        begin = starts[start]
        yield Priced(lines[start : start + step] @ columns[:, begin:], left[start : start + step], right[begin:])


def _by_size(sets: Sets) -> Sets:
    return sets[np.argsort(sets.sum(axis=1), kind="stable")]


def worst_by_size(matrix: Array, epsilon: float) -> tuple[Array, float]:
    """Return the largest ``v_S' K v_S`` over the sets of each size 0 … n, and an allowance for its rounding, absolute.

    If K differs from its image in reverse by rounding alone, the mean of both is priced, on half of the sets, and the
    allowance covers the difference. Raises `InvalidInputError` for more than 32 user types.
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
            reached = count + counts[starts]
            worst[reached] = np.maximum(worst[reached], values)
    return worst, largest * (4 * (size + 4) * EPS * total + mirrored * difference * UPWARDS)


def _subsets(size: int) -> Sets:
    """Return all subsets of `size` things (2^size, size), the empty one first and the full one last."""
    return (np.arange(1 << size)[:, None] >> np.arange(size)) % 2 == 1


# Multipliers that bound a quadratic form over all proper subsets, where these are too many to list.


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """Multipliers of what holds for the indicator s of every proper subset that is not empty."""

    squares: Array  # (n,) of ``s_u² = s_u``; of any sign. All others are taken for 0 where negative
    # both, one, neither: (n, n) of ``s_u s_v ≥ 0``, ``s_u (1 - s_v) ≥ 0`` and ``(1 - s_u)(1 - s_v) ≥ 0`` (McCormick)
    both: Array
    one: Array
    neither: Array
    sizes: Array  # (n - 2,) of ``(|s| - j)(|s| - j - 1) ≥ 0``, j = 1 … n - 2
    # (4, n) of ``(|s| - 1) s_u``, ``(n - 1 - |s|) s_u``, ``(|s| - 1)(1 - s_u)`` and ``(n - 1 - |s|)(1 - s_u)``, all
    # of them at least 0
    products: Array

    @classmethod
    def of(cls, size: int, squares: Array | None = None, **values: Array) -> Relaxation:
        """Build multipliers, 0 where not given, and check their shapes.

        Raises `InvalidInputError` or `InputTypeError` for multipliers of another shape, NaN or infinity.
        """
        parts = {}
        for name, shape in _shapes(size).items():
            array = squares if name == "squares" else values.get(name)
            blank = array is None or not np.size(array)
            parts[name] = np.zeros(shape) if blank else validate.finite(**{name: array})
        return cls(**parts).cut(size)

    def cut(self, size: int) -> Relaxation:
        """Return multipliers for n user types, 0 where they are negative, whoever made them; some may not be finite.

        Raises `InvalidInputError` or `InputTypeError` for multipliers of another shape, or that are no numbers.
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
        """Return A (n + 1, n + 1) with ``[1; s]' A [1; s] ≥ 0`` for every proper subset that is not empty."""
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

        ``v = T [1; s]`` with ``T = [1, c I]``. Where ``-T'KT - A`` has no eigenvalue below -η, the form is at most
        ``η (1 + |S|)``, since ``[1; s]' A [1; s] ≥ 0``. Entries of K may be off by the entries of `hidden`. Negative
        multipliers are taken for 0 here: nothing is proven by one.
        """
        size, kept = len(form), self.cut(len(form))
        lift = np.hstack([np.ones((size, 1)), gain(epsilon) * np.eye(size)])
        with np.errstate(over="ignore", invalid="ignore"):  # numbers that are not finite prove nothing
            implied = kept.matrix()
            certified = -(lift.T @ form @ lift) - implied
        if not np.all(np.isfinite(certified)):
            return np.inf
        rounding = lift.T @ (hidden + 2 * sum_rounding(size + 1) * np.abs(form)) @ lift
        off = spectral_norm(rounding + 2 * UNIT * (np.abs(certified) + np.abs(implied)))
        least = linalg.extreme_eigenvalues((certified + certified.T) / 2, off + kept._rounding())[0]
        counts = np.arange(size + 1)
        return float((max(-least, 0.0) * (1 + counts) / divisors)[1:-1].max())

    def _rounding(self) -> float:
        """Return what `matrix` may be off by, in the Frobenius norm: its sums have at most (n + 2)² terms.

        The factors are what the matrices of single multipliers do not exceed in that norm.
        """
        size = len(self.squares)
        total = 2 * np.abs(self.squares).sum() + self.both.sum() + self.one.sum() + 2 * self.neither.sum()
        total += 4 * size**2 * self.sizes.sum() + 4 * size * self.products.sum()
        return sum_rounding((size + 2) ** 2) * float(total)


def _shapes(size: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a relaxation's multipliers, by name."""
    pairs = dict.fromkeys(("both", "one", "neither"), (size, size))
    return {"squares": (size,), **pairs, "sizes": (max(size - 2, 0),), "products": (4, size)}


def _mean(matrix: Array) -> Array:
    return np.asarray((matrix + matrix.T) / 2)


SMALLEST_EPSILON, LARGEST_EPSILON = 1e-6, 100.0
"""What ε can be meant: above, a report is the truth in all but name; below, no double tells it from noise."""

CANCELLED = 0.1  # a variance below this share of the parts that it is a difference of is summed as it stands


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Each user type's second moment ``Σ_o Q_ou ‖V_o‖²`` and variance (n,), the violation, and what rounding hides."""

    moments: Array
    variances: Array
    violation: float
    mending: float  # what moments rise by, relative, beyond the violation, where a strategy near by meets all limits
    sums: float  # rounding of moments, relative, and of variances next to the largest moment


def evaluate(root: Array, strategy: Array, prior: Array, epsilon: float, off: float = 0.0) -> Evaluation | None:
    """Evaluate a strategy with the best reconstruction for a prior; the root may be `off`, in the Frobenius norm.

    None where Q is not finite, has negative entries, or cannot answer the workload.
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
    # Any V will do whose answers are mended where they are biased: V is taken as it came out.
    missed, rounding = best @ strategy - root, sum_rounding(best.shape[1] + 1)
    hides = rounding * (np.abs(best) @ strategy + np.abs(root))
    least, largest = float(np.linalg.norm(missed)), float(np.linalg.norm(np.abs(missed) + hides)) + off
    bias, most = (_mended_bias(norm, root.shape[1], float(prior @ moments), epsilon) for norm in (least, largest))
    # Ratios above e^ε by the share v are mended by ignoring a share ``v / (1 - e^-ε)`` of all reports.
    room = -np.expm1(-epsilon)
    ratios = strategy.max(axis=1) / strategy.min(axis=1) * np.exp(-epsilon)
    exceeded = max(float(ratios.max()) - 1, 0.0) + 2 * float(np.abs(strategy.sum(axis=0) - 1).max())
    # A ratio and a sum are known to a few units of rounding only; less is no violation.
    hidden = 4 * EPS * (len(strategy) + 2)
    excess = max(exceeded / room if exceeded > hidden else 0.0, bias if bias > 2 * hidden else 0.0)
    mending = 2 * (exceeded + hidden) / room + most
    # Lengths ``‖W_u‖²`` are off by ``2 off ‖R_u‖ + off²``; the longest is in the units of this.
    sums = 4 * (sum(best.shape) + 4) * EPS + 3 * off / float(np.linalg.norm(root, axis=0).max())
    return Evaluation(moments, user_variances(root, strategy, best), excess, mending, sums)


def _mended_bias(missed: float, size: int, moment: float, epsilon: float) -> float:
    """Return by what share second moments rise where a reconstruction is to miss nothing, given the norm it misses.

    What it misses is answered from a share s of all reports by randomised response, whose reconstruction Q⁻¹ has no
    singular value above ``(n + c) / c``: moments are ``M / (1 - s) + M' / s``, at best ``(√M + √M')²``.
    """
    excess = gain(epsilon)
    other = missed * (size + excess) / excess
    return float(np.square(1 + other / np.sqrt(moment)) - 1) if moment > 0 else np.inf


def user_variances(root: Array, strategy: Array, reconstruction: Array) -> Array:
    """Return ``T_u = Σ_o Q_ou ‖V_o - W_u‖²``: as it stands where it is small, for there its parts would cancel."""
    lengths, squares = (np.einsum("ku,ku->u", rows, rows) for rows in (reconstruction, root))
    crossed = np.einsum("ku,ku->u", reconstruction @ strategy, root)
    moments = lengths @ strategy
    variances = moments - 2 * crossed + squares * strategy.sum(axis=0)
    for user in np.flatnonzero(~(variances > CANCELLED * (moments + squares))):
        spread = reconstruction - root[:, user, None]
        variances[user] = np.einsum("ko,ko->o", spread, spread) @ strategy[:, user]
    return np.asarray(variances)


def best_reconstruction(root: Array, strategy: Array, prior: Array) -> Array | None:
    """Return V (k, m) of least expected variance under a prior with ``V Q = R``; None if Q cannot answer R.

    ``V = R M⁺ D^(-1/2)`` with ``D = diag(Q π)`` and ``M = D^(-1/2) Q`` (the paper's, for any prior). Directions that M
    hardly sees are left out where R does not need them.
    """
    scale = np.sqrt(strategy @ prior)
    scale = np.where(scale > 0, scale, np.sqrt(strategy.mean(axis=1)))
    orthonormal, triangle = scipy.linalg.qr(strategy / scale[:, None], mode="economic", check_finite=False)
    left, sizes, right = linalg.svd(triangle)
    seen = root @ right.T
    kept = sizes > 8 * max(strategy.shape) * EPS * sizes[0]
    if np.linalg.norm(seen[:, ~kept]) > FEASIBLE * np.linalg.norm(root):
        return None
    return np.asarray(seen[:, kept] / sizes[kept] @ left[:, kept].T @ orthonormal.T / scale)


def trace_bound(root: Array, epsilon: float, off: float = 0.0) -> float:
    """Return ``‖W 1‖² / n + ‖W Π‖_*² / τ``, below the L of every ε-LDP strategy, Π the projector off the ones.

    ``τ = max_k k (n-k) c² / (n + k c)²`` bounds ``tr Π G Π``. The paper's own bound is ``‖W‖_*² / e^ε``. The root may
    be `off`, in the Frobenius norm.
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
    """Return Z over a power of 2 next to its largest entry, and costs and multipliers over its square.

    They prove the same, and no product that matters to the proof underflows.
    """
    exponent = -int(np.frexp(np.abs(matrix).max())[1])
    with np.errstate(over="ignore"):  # numbers that are not finite prove nothing
        scaled = None if relaxation is None else relaxation.cut(len(costs)).times(2 * exponent)
        return np.ldexp(matrix, exponent), np.ldexp(costs, 2 * exponent), scaled


def excess(matrix: Array, costs: Array, share: Array, epsilon: float, relaxation: Relaxation | None) -> float:
    """Return δ ≥ 0 with ``‖Z'p_S‖² ≤ (y'p_S + δ)(n π'p_S)`` for all S; infinite where it cannot be told.

    The largest entry of Z is meant to be near 1, as `in_units` returns it.
    """
    size = len(costs)
    mixed, sizes = np.outer(costs, share), np.abs(matrix)
    form = matrix @ matrix.T - (mixed + mixed.T) / 2
    if not np.all(np.isfinite(form)):
        return np.inf
    hidden = sum_rounding(matrix.shape[1] + 3) * (sizes @ sizes.T + np.abs(mixed + mixed.T))
    counts = gain(epsilon) * np.arange(size + 1) + size
    # v'share is Σ_u share_u + c Σ_{u in S} share_u, and a set of k user types has no less than the k smallest shares.
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
    """Return the rows of a strategy with sum 1, and their sums; rows of zeros are left out."""
    sums = strategy.sum(axis=1)
    with np.errstate(invalid="ignore"):  # numbers that are not finite prove nothing
        return strategy[sums > 0] / sums[sums > 0, None], sums[sums > 0]


def repair(strategy: Array, epsilon: float) -> Array:
    """Return a strategy close by that is ε-LDP: small entries raised to e^-ε of their row's largest, columns of sum 1.

    What the columns' sums then lack goes to one further output, together with the share of all reports that keeps its
    own ratio below e^ε.
    """
    kept = np.maximum(strategy[np.any(strategy > 0, axis=1)], 0.0)
    kept = np.maximum(kept, kept.max(axis=1, keepdims=True) * np.exp(-epsilon) * (1 + 4 * EPS))
    totals = kept.sum(axis=0)
    kept, missing = kept / totals.max(), 1 - totals / totals.max()
    largest = float(missing.max())
    if largest <= 4 * EPS * len(kept):
        return np.asarray(kept)
    share = largest / (gain(epsilon) + largest) * (1 + 1e-12)
    # Not as 1 less the rest: both parts may be tiny, and cancellation would spoil the ratio between them.
    return np.vstack([(1 - share) * kept, share + (1 - share) * missing])


def as_epsilon(epsilon: float) -> float:
    value = validate.positive_number(epsilon=epsilon)
    if not SMALLEST_EPSILON <= value <= LARGEST_EPSILON:
        raise InvalidInputError(f"epsilon must be from {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}, got {value:g}")
    return value


def as_prior(prior: npt.ArrayLike | None, size: int) -> Array:
    """Return a probability over the user types, uniform by default."""
    if prior is None:
        return freeze(np.full(size, 1 / size))
    value = validate.finite(1, prior=prior)
    if value.shape != (size,) or np.any(value < 0) or abs(value.sum() - 1) > FEASIBLE:
        raise InvalidInputError(
            f"prior must hold {size} numbers, none negative, of sum 1, got {len(value)} of sum {value.sum():g}"
        )
    return freeze(value / value.sum())


def centred(root: Array) -> Array:
    """Return ``R Π``, each query less its mean: the total is known, so no user's variance changes.

    A workload of totals alone is left as it is, since nothing of it would remain.
    """
    centred = root - root.mean(axis=1, keepdims=True)
    return centred if np.linalg.norm(centred) > 8 * root.size * EPS * np.linalg.norm(root) else root


def root_of(workload: Workload, less_means: bool = False) -> tuple[Array, float]:
    """Return R (k, n) with ``R'R = W'W``, and what it may be off by, in the Frobenius norm.

    It is the workload itself where that has no more queries than user types. With `less_means` each query is taken less
    its mean: the total is known, so no user's variance changes, whatever constant is taken off. A workload of totals
    alone is left as it is, since nothing of it would remain.
    """
    queries, size = workload.shape
    step = max(4 * size, FEWEST_REDUCED)
    less_means = less_means and any(_tells_apart(rows) for rows in _rows_of(workload, step))
    parts = (_less_means(rows) if less_means else rows for rows in _rows_of(workload, step))
    root, times = np.vstack([_reduced(rows) for rows in parts]), int(queries > size)
    while len(root) > size:
        root = np.vstack([_reduced(root[start : start + step]) for start in range(0, len(root), step)])
        times += 1
    root, lost = _without_noise(root) if times else (root, 0.0)
    # By Householder's method R is exact for rows whose columns are off by a small multiple of this, relative (Higham,
    # Accuracy and Stability of Numerical Algorithms, theorem 19.4). A mean is left up to rounding, and taken off twice.
    rounding = 8 * (times + 1) * min(step, queries) * size if times else 0.0
    rounding += 4 * (size + 2) ** 1.5 if less_means else 0.0
    return np.array(root), rounding * UNIT * float(np.linalg.norm(root)) + lost


def _rows_of(workload: Workload, step: int) -> Iterator[Array]:
    """Yield the rows of a workload, so many at a time, written out."""
    matrix = workload.matrix
    for start in range(0, workload.shape[0], step):
        rows = matrix[start : start + step]
        yield rows.toarray() if scipy.sparse.issparse(rows) else rows


def _tells_apart(rows: Array) -> bool:
    """Whether a query tells user types apart by more than the rounding of its entries."""
    return bool(np.any(np.ptp(rows, axis=1) > 8 * rows.shape[1] * EPS * np.abs(rows).max(axis=1)))


def _less_means(rows: Array) -> Array:
    """Return rows less their means, twice: a large mean is taken off up to rounding, and then what is left of it."""
    for _ in range(2):
        rows = rows - rows.mean(axis=1, keepdims=True)
    return rows


def _reduced(rows: Array) -> Array:
    """Return no more rows than columns, with the same inner products of columns."""
    if len(rows) <= rows.shape[1]:
        return rows
    return np.asarray(scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]])


def _without_noise(root: Array) -> tuple[Array, float]:
    """Return a root without the rows that a lack of rank leaves, rounding only, and the norm of what is left out."""
    size = root.shape[1]
    triangle, order = scipy.linalg.qr(root, mode="r", pivoting=True, check_finite=False)
    tails = np.sqrt(np.cumsum(np.square(triangle[::-1]).sum(axis=1))[::-1])
    kept = int(np.count_nonzero(tails > size * EPS * tails[0]))
    if kept >= len(root) - 1:  # queries less their means always lack one: no reason for another basis
        return root, 0.0
    rows = np.empty((kept, size))
    rows[:, order] = triangle[:kept]
    return rows, float(tails[kept]) * UPWARDS
