"""Costs of participations with minimum separation b: intervals, and dual weights for lower bounds.

A person participates in a set P of up to k steps with a minimum separation of b, and costs the largest ``⟨C_P, R⟩``
over correlation matrices R, or over ``z z'`` for signs z. This is at most ``Σ |C_st|`` over s, t in P, and at least
``z' C_P z`` for any signs z. If C is 0 at distances of b and more, both are the sum of the diagonal over P, which
dynamic programming maximises.

For weights of persons P with sum 1, let ``Π_st`` be the total weight of persons that participate in both s and t. For
any correlation matrix G of all steps, ``⟨C, Π ∘ G⟩`` is the mean over persons of ``⟨C_P, G_P⟩``, at most the largest
cost. So ``Λ = Π ∘ G`` (entrywise) gives a lower bound on the optimum. Persons are weighted as walks from participation
to participation, so that Π is a sum of products of non-negative numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.verified import UPWARDS, sum_rounding

Index = npt.NDArray[np.intp]

EQUAL_ROW_TOL = 1e-12  # largest entrywise difference of unit rows that are made equal


def largest_diagonal(diagonal: Array, times: int, separation: int) -> tuple[float, float]:
    """Return upper and lower bounds on the largest sum of up to `times` numbers ≥ 0 (n,) with this separation."""
    best, largest = diagonal, float(diagonal.max())
    for _ in range(1, min(times, -(-len(diagonal) // separation))):
        earlier = np.maximum.accumulate(best)[: len(diagonal) - separation]
        best = np.concatenate([diagonal[:separation], diagonal[separation:] + earlier])
        largest = max(largest, float(best.max()))
    error = 2 * sum_rounding(min(times, len(diagonal)))
    return largest * (1 + error), largest * (1 - error)


def largest_sums(costs: Array, rounding: Array, times: int, separation: int) -> tuple[float, float]:
    """Return upper and lower bounds on the largest cost of a person, for C (n, n) with entrywise error bounds.

    For the steps ``p_1 < p_2 < …`` of a person, ``Σ |C_st|`` is the sum over j of ``|C_jj|`` and of twice the
    ``|C_ij|`` with i < j. The latter sum is at most its maximum over any j - 1 separated steps before p_j. Dynamic
    programming maximises the sum of these bounds over the steps, forwards and backwards in time.
    """
    if not np.all(np.isfinite(costs)):
        return np.inf, 0.0
    magnitudes = (np.abs(costs) + rounding) * UPWARDS
    count, max_parts = len(magnitudes), min(times, -(-len(magnitudes) // separation))
    forward, first = _bounded_sum(magnitudes, max_parts, separation)
    backward, last = _bounded_sum(magnitudes[::-1, ::-1], max_parts, separation)
    diagonal_steps, _ = _best_steps([np.diagonal(magnitudes)] * max_parts, separation)
    upper = min(forward, backward) * (1 + 2 * sum_rounding(max_parts**2))
    lower = max(_signed_cost(costs, rounding, steps) for steps in (first, count - 1 - last[::-1], diagonal_steps))
    return upper, lower


def _bounded_sum(magnitudes: Array, max_parts: int, separation: int) -> tuple[float, Index]:
    """Return the largest sum over separated steps of bounds on each step's cost with earlier steps, and the steps."""
    diagonal, count = np.diagonal(magnitudes), len(magnitudes)
    charges, shared = [diagonal], np.zeros_like(magnitudes)
    ends = np.arange(count)
    for _ in range(1, max_parts):
        # shared[s, t]: the largest sum of |C_it| over j separated steps i, the last of them s or earlier.
        extended = magnitudes.copy()
        extended[separation:] += shared[:-separation]
        extended = np.maximum.accumulate(extended, axis=0)
        unchanged = np.array_equal(extended, shared)
        shared = extended
        common = np.where(ends >= separation, shared[np.maximum(ends - separation, 0), ends], 0.0)
        charges.append(diagonal + 2 * common)
        if unchanged:
            charges += [charges[-1]] * (max_parts - len(charges))
            break
    steps, total = _best_steps(charges, separation)
    return total, steps


def _best_steps(charges: list[Array], separation: int) -> tuple[Index, float]:
    """Return separated steps with the largest sum, in which the j-th step has its charge from row j, and the sum."""
    count, ends = len(charges[0]), [charges[0]]
    previous: list[Index] = []
    for row in charges[1:]:
        highest = np.maximum.accumulate(ends[-1])
        place = np.maximum.accumulate(np.where(ends[-1] == highest, np.arange(count), 0))
        ends.append(np.r_[np.full(min(separation, count), -np.inf), row[separation:] + highest[:-separation]])
        previous.append(place)
    index = int(np.argmax([row.max() for row in ends]))
    steps = [int(np.argmax(ends[index]))]
    for place in previous[:index][::-1]:
        steps.append(int(place[steps[-1] - separation]))
    return np.array(steps[::-1], dtype=np.intp), float(ends[index].max())


def _signed_cost(costs: Array, rounding: Array, steps: Index) -> float:
    """Return a lower bound on the cost of participations in these steps, with greedily chosen signs."""
    block = costs[np.ix_(steps, steps)]
    signs = np.ones(len(steps))
    for step in range(1, len(steps)):
        signs[step] = 1.0 if block[step, :step] @ signs[:step] >= 0 else -1.0
    error = float(rounding[np.ix_(steps, steps)].sum()) + sum_rounding(len(steps) ** 2) * float(np.abs(block).sum())
    return max(float(signs @ block @ signs) - error * UPWARDS, 0.0)


# Dual weights of persons, weighted as walks.

MIN_STOPPED_SHARE = 1e-4  # minimum weight of walks that stop in a step, relative to the largest weight of a step

MIN_TOTAL_WEIGHT = 1e-200  # minimum total weight of persons, relative to the largest weight of a first step


@dataclass(frozen=True, slots=True, eq=False)
class Walks:
    """The weights of persons: the weight of the first participation times the weights of all transitions.

    A person may stop after any participation.
    """

    following: Array  # (n, n) weight of the transition from step s to step t
    begun: Array  # (times, n) weight of the walks of 1, 2, … participations that end in each step
    ended: Array  # (times, n) weight of the continuations from each step by at most 0, 1, … participations

    @classmethod
    def of(cls, first: Array, following: Array, times: int) -> Walks:
        """Return the walks of up to `times` participations, for weights of the first (n,) and of transitions (n, n)."""
        begun, ended = [first], [np.ones(len(first))]
        for _ in range(1, times):
            begun.append(begun[-1] @ following)
            ended.append(1 + following @ ended[-1])
        return cls(following, np.array(begun), np.array(ended))

    @property
    def total(self) -> float:
        """Weight of all persons."""
        return float(self.begun.sum())

    @property
    def single(self) -> Array:
        """Weight of the persons that participate in each step (n,)."""
        return np.asarray(np.einsum("js,js->s", self.begun, self.ended[::-1]))

    def between(self) -> Iterator[Array]:
        """Yield the weights (n, n) of the paths between two steps with 1, 2, … transitions."""
        ways = self.following
        for parts in range(1, len(self.begun)):
            ways = ways @ self.following if parts > 1 else ways
            yield ways

    def around(self, parts: int) -> Array:
        """Return the weights (n, n) of all starts before s and ends after t, with `parts` transitions from s to t."""
        before = self.begun[: len(self.begun) - parts]
        return np.asarray(before.T @ self.ended[: len(before)][::-1])

    @property
    def pairs(self) -> Array:
        """Weight of the persons that participate in both of two steps (n, n), symmetric."""
        upper = np.zeros_like(self.following)
        for parts, ways in enumerate(self.between(), start=1):
            upper += ways * self.around(parts)
        return upper + upper.T + np.diag(self.single)


def persons_apart(count: int, times: int, separation: int, limit: int) -> list[Index]:
    """Return the maximal sets of separated steps, at most ``limit + 1`` of them."""
    persons: list[Index] = []

    def extend(steps: list[int]) -> None:
        start = steps[-1] + separation if steps else 0
        if len(steps) == times or start >= count:
            gaps = np.diff([-separation, *steps, count - 1 + separation])
            if len(steps) == times or not np.any(gaps >= 2 * separation):
                persons.append(np.array(steps, dtype=np.intp))
            return
        for step in range(start, count):
            if len(persons) > limit:
                return
            extend([*steps, step])

    extend([])
    return persons


def walks_of_persons(persons: list[Index], weights: list[Array], count: int) -> Array:
    """Return weights of walks and correlations (2, n, n) that approximate ``m_P R_P`` (k, k) of each person.

    Transitions have their frequencies among these persons: a Markov chain. If it stops in s with probability q_s, its
    walks have the weights of walks that may stop anywhere, with transition weights times ``q_t / q_s``.
    """
    single, first, last = np.zeros(count), np.zeros(count), np.zeros(count)
    links, joint, products = (np.zeros((count, count)) for _ in range(3))
    for steps, matrix in zip(persons, weights, strict=True):
        mass = float(np.diagonal(matrix).max())
        single[steps] += mass
        first[steps[0]] += mass
        last[steps[-1]] += mass
        links[steps[:-1], steps[1:]] += mass
        joint[np.ix_(steps, steps)] += mass
        products[np.ix_(steps, steps)] += matrix
    stopped = np.maximum(last, MIN_STOPPED_SHARE * single.max())
    # first_s q_s, and links_st / single_s times q_t / q_s, with q = stopped / single.
    positive = np.maximum(single, np.finfo(float).tiny)
    chain = links * (stopped / positive)[None, :] / stopped[:, None] + np.diag(first * stopped / positive)
    return np.array([chain, np.divide(products, joint, out=np.eye(count), where=joint > 0)])


def roots_of(weights: Array, phases: Index, of: str) -> tuple[Array, float] | None:
    """Return roots F_p with ``F_p F_p' ⪯ m_p R_p`` (phases, times, times), and ``Σ m_p``; None if all weights are 0.

    For vectors, m_p is the largest diagonal entry of the positive semidefinite part of the weights. For signs that
    part, scaled to a diagonal of 1, is a correlation matrix G, and R is ``(2/π) arcsin(G)`` (`mean_products`).
    """
    if not (np.all(np.isfinite(weights)) and np.any(weights)):
        return None
    present = phases >= 0
    scaled = weights / np.abs(weights).max() * (present[:, :, None] & present[:, None, :])
    values, vectors = np.linalg.eigh((scaled + np.swapaxes(scaled, 1, 2)) / 2)
    roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None]
    lengths = np.einsum("pia,pia->pi", roots, roots)
    masses = lengths.max(axis=1)
    if not masses.max() > 0:
        return None
    if of == "signs":
        units = roots / np.sqrt(np.where(lengths > 0, lengths, 1.0))[:, :, None]
        roots = np.sqrt(masses)[:, None, None] * mixed_root(*mean_products(units, of))
    return roots, float(masses.sum())


def as_signs(blocks: Array) -> Array:
    """Return ``m_p G_p`` for ``m_p R_p``, G the positive semidefinite part of ``sin(π R / 2)`` with a diagonal of 1."""
    masses = np.einsum("pii->pi", blocks).max(axis=1)[:, None, None]
    masses = np.where(masses > 0, masses, 1.0)
    units = unit_rows(np.sin(np.pi / 2 * blocks / masses))
    return np.asarray(masses * (units @ np.swapaxes(units, 1, 2)))


def roots_of_walks(weights: Array, times: int, separation: int, of: str) -> tuple[Array, float] | None:
    """Return a root F (n, n) with ``F F' ⪯ Π ∘ R``, and the weight of all persons; None if all weights are 0.

    ``weights[0]`` has the weights of a first participation on its diagonal, and of transitions from s to t above it.
    Negative entries, and entries closer to the diagonal than the separation, count as 0. G is the positive semidefinite
    part of ``weights[1]``, scaled to a diagonal of 1. R is G for vectors, and ``(2/π) arcsin(G)`` for signs.
    """
    if not (np.all(np.isfinite(weights)) and np.any(weights[0])):
        return None
    count = weights.shape[1]
    chain = np.maximum(weights[0], 0.0)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        first = np.diagonal(chain) / max(np.diagonal(chain).max(), np.finfo(float).tiny)
        walks = Walks.of(first, np.triu(chain, separation), min(times, -(-count // separation)))
        single, total, pairs = walks.single, walks.total, walks.pairs
    if not (np.isfinite(total) and total > MIN_TOTAL_WEIGHT and np.all(np.isfinite(pairs))):
        return None
    sizes = np.where(single > MIN_TOTAL_WEIGHT * total, np.sqrt(single), 0.0)
    inverse = np.divide(1.0, sizes, out=np.zeros(count), where=sizes > 0)
    shares = pairs * inverse[:, None] * inverse
    shares[np.diag_indices(count)] = 1.0
    means, off = mean_products(unit_rows(weights[1]), of)
    relative = 4 * (times + 4) * sum_rounding(count + times) + 8 * EPS
    root = mixed_root(shares * means, shares * (off + relative * np.abs(means)))
    return sizes[:, None] * root, total * (1 + relative)


def unit_rows(matrix: Array) -> Array:
    """Return rows U; ``U U'`` is the positive semidefinite part of matrices (…, k, k), with a diagonal of 1 or 0."""
    largest = np.abs(matrix).max(axis=(-2, -1), keepdims=True)
    scaled = matrix / np.where(largest > 0, largest, 1.0)
    values, vectors = np.linalg.eigh((scaled + np.swapaxes(scaled, -1, -2)) / 2)
    values = np.where(
        values > matrix.shape[-1] * EPS * values[..., -1:], values, 0.0
    )  # the root of a rounding error is large
    rows = vectors * np.sqrt(values)[..., None, :]
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


def mean_products(units: Array, of: str) -> tuple[Array, Array]:
    """Return correlation matrices (…, k, k) of participations with these unit rows, and absolute error bounds.

    For vectors they are the inner products of the rows, of norm 1 or 0. For signs they are ``(2/π) arcsin`` of these,
    the means of ``z z'`` over signs z of normal variables with these covariances (Grothendieck). The diagonal is 1.
    """
    count = units.shape[-2]
    units, classes = (units, np.arange(count)) if of == "vectors" else _merge_equal_rows(units)
    means = np.clip(units @ np.swapaxes(units, -1, -2), -1.0, 1.0)
    errors = np.full_like(means, 4 * sum_rounding(units.shape[-1] + 4))
    if of == "signs":
        magnitudes = np.abs(means)
        angles, low_angles = np.arcsin(magnitudes), np.arcsin(np.maximum(magnitudes - errors, 0.0))
        errors = np.maximum(np.arcsin(np.minimum(magnitudes + errors, 1.0)) - angles, angles - low_angles) + 8 * EPS
        means = 2 / np.pi * np.arcsin(means)
    equal = classes[..., :, None] == classes[..., None, :]
    means, errors = np.where(equal, np.rint(means), means), np.where(equal, 0.0, errors)
    diagonal = np.arange(count)
    means[..., diagonal, diagonal] = 1.0
    return means, errors


def _merge_equal_rows(units: Array) -> tuple[Array, Index]:
    """Return rows (…, k, r) with nearly equal or opposite rows made exactly so, and the class of each row.

    The slope of the arcsine is unbounded near 1, so that a rounding error would lose half the digits of a bound. Equal
    rows have an inner product of exactly 1.
    """
    units, count = units.copy(), units.shape[-2]
    classes = np.broadcast_to(np.arange(count), units.shape[:-1]).copy()
    for place in range(1, count):
        before, row = units[..., :place, :], units[..., place, None, :]
        signed = before * np.where((before * row).sum(axis=-1, keepdims=True) < 0, -1.0, 1.0)
        equal = (np.abs(signed - row).max(axis=-1) <= EQUAL_ROW_TOL) & np.any(row != 0, axis=-1)
        first = equal.argmax(axis=-1)[..., None]
        matches = np.take_along_axis(signed, first[..., None], axis=-2)[..., 0, :]
        any_equal = equal.any(axis=-1)
        units[..., place, :] = np.where(any_equal[..., None], matches, units[..., place, :])
        numbers = np.take_along_axis(classes, first, axis=-1)[..., 0]
        classes[..., place] = np.where(any_equal, numbers, classes[..., place])
    return units, classes


def mixed_root(means: Array, rounding: Array) -> Array:
    """Return H with ``H H' ⪯ (1 - t) R + t I`` for some t and matrices R (…, k, k) with entrywise error bounds.

    This holds if t is at least the spectral distance of ``H H'`` and ``(1 - t) R``, with the error bounds included.
    """
    values, vectors = np.linalg.eigh(means)
    factors = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    residual = np.abs(factors @ np.swapaxes(factors, -1, -2) - means) + rounding + 4 * sum_rounding(means.shape[-1] + 2)
    # The largest absolute row sum is an upper bound on the spectral norm.
    mixed = np.minimum(residual.sum(axis=-1).max(axis=-1) * UPWARDS, 1.0)
    return np.asarray(factors * np.sqrt(1 - mixed)[..., None, None])
