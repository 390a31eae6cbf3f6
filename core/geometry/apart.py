"""Persons whose parts are at least b steps apart: what they cost, an interval where not exact, and what bounds it.

A person has a part in a set P of up to k steps, of which no two are less than b apart, and costs the largest
``⟨C_P, R⟩`` over correlation matrices R, or ``z z'`` for signs z: at most ``Σ |C_st|`` over s, t in P, and at least
``z' C_P z`` for any signs z. Where C is 0 at distances of b and more both are the sum of the diagonal over P, whose
largest value dynamic programming finds.

For any weights of persons P with sum 1, let ``Π_st`` be the weight of those with parts in both s and t. With any
correlation matrix G of all steps, ``⟨C, Π ∘ G⟩`` is the mean over persons of ``⟨C_P, G_P⟩``, at most the largest cost:
``Λ = Π ∘ G`` (entry by entry) bounds the optimum from below, as the weights of phases do. Persons are weighed as walks,
from part to part, so that Π is a sum of products of numbers none of which is negative.
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

ALIKE = 1e-12  # largest distance of unit rows, entry by entry, that are made equal


def largest_diagonal(diagonal: Array, times: int, apart: int) -> tuple[float, float]:
    """Return the largest sum of up to `times` of numbers ≥ 0 (n,) at least `apart` apart: rounded up, and down."""
    best, largest = diagonal, float(diagonal.max())
    for _ in range(1, min(times, -(-len(diagonal) // apart))):
        ended = np.maximum.accumulate(best)[: len(diagonal) - apart]
        best = np.concatenate([diagonal[:apart], diagonal[apart:] + ended])
        largest = max(largest, float(best.max()))
    off = 2 * sum_rounding(min(times, len(diagonal)))
    return largest * (1 + off), largest * (1 - off)


def largest_sums(costs: Array, rounding: Array, times: int, apart: int) -> tuple[float, float]:
    """Return what persons cost at most, and what one of them costs, for a C (n, n) known up to its rounding.

    For the steps ``p_1 < p_2 < …`` of a person, ``Σ |C_st|`` is the sum over j of ``|C_jj|`` and of twice the
    ``|C_ij|`` with i < j. These are at most what any j - 1 steps before p_j, so far apart, have in common with it: this
    is the charge on p_j, and dynamic programming finds the steps of the largest sum. The same of the steps after.
    """
    if not np.all(np.isfinite(costs)):
        return np.inf, 0.0
    sizes = (np.abs(costs) + rounding) * UPWARDS
    count, most = len(sizes), min(times, -(-len(sizes) // apart))
    before, first = _charged(sizes, most, apart)
    after, last = _charged(sizes[::-1, ::-1], most, apart)
    alone, _ = _best([np.diagonal(sizes)] * most, apart)
    upper = min(before, after) * (1 + 2 * sum_rounding(most**2))
    lower = max(_reached(costs, rounding, steps) for steps in (first, count - 1 - last[::-1], alone))
    return upper, lower


def _charged(sizes: Array, most: int, apart: int) -> tuple[float, Index]:
    """Return the largest sum of steps, each charged with what it has in common with those before, and its steps."""
    diagonal, count = np.diagonal(sizes), len(sizes)
    charged, shared = [diagonal], np.zeros_like(sizes)
    reach = np.arange(count)
    for _ in range(1, most):
        # shared[s, t]: the most that so many steps, the last of them s or earlier, have in common with step t.
        longer = sizes.copy()
        longer[apart:] += shared[:-apart]
        longer = np.maximum.accumulate(longer, axis=0)
        same = np.array_equal(longer, shared)
        shared = longer
        common = np.where(reach >= apart, shared[np.maximum(reach - apart, 0), reach], 0.0)
        charged.append(diagonal + 2 * common)
        if same:
            charged += [charged[-1]] * (most - len(charged))
            break
    steps, total = _best(charged, apart)
    return total, steps


def _best(charged: list[Array], apart: int) -> tuple[Index, float]:
    """Return steps at least so far apart, the j-th of them charged by row j, whose sum is largest, and the sum."""
    count, ends = len(charged[0]), [charged[0]]
    chosen: list[Index] = []
    for charges in charged[1:]:
        highest = np.maximum.accumulate(ends[-1])
        place = np.maximum.accumulate(np.where(ends[-1] == highest, np.arange(count), 0))
        ends.append(np.r_[np.full(min(apart, count), -np.inf), charges[apart:] + highest[:-apart]])
        chosen.append(place)
    parts = int(np.argmax([row.max() for row in ends]))
    steps = [int(np.argmax(ends[parts]))]
    for place in chosen[:parts][::-1]:
        steps.append(int(place[steps[-1] - apart]))
    return np.array(steps[::-1], dtype=np.intp), float(ends[parts].max())


def _reached(costs: Array, rounding: Array, steps: Index) -> float:
    """Return what a person with parts in these steps costs at least: signs are chosen one after the other."""
    block = costs[np.ix_(steps, steps)]
    signs = np.ones(len(steps))
    for step in range(1, len(steps)):
        signs[step] = 1.0 if block[step, :step] @ signs[:step] >= 0 else -1.0
    off = float(rounding[np.ix_(steps, steps)].sum()) + sum_rounding(len(steps) ** 2) * float(np.abs(block).sum())
    return max(float(signs @ block @ signs) - off * UPWARDS, 0.0)


# Persons weighed as walks, and the dual weights that follow.


RARE = 1e-4  # least share of the persons of the commonest step that stop in a step

FAINT = 1e-200  # total weight of the persons, over the largest of a first part, below which they prove nothing


@dataclass(frozen=True, slots=True, eq=False)
class Walks:
    """The weights of persons: that of the first part, times that of each step from one part to the next.

    A person may stop after any part.
    """

    following: Array  # (n, n) weight of a part in one step after one in another
    begun: Array  # (times, n) weight of the walks of 1, 2, … parts whose last part is in each step
    ended: Array  # (times, n) weight of the ways to go on from each step by at most 0, 1, … parts

    @classmethod
    def of(cls, first: Array, following: Array, times: int) -> Walks:
        """Return the walks of up to `times` parts for weights of a first part (n,), and of one part after another."""
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
        """Weight of the persons with a part in each step (n,)."""
        return np.asarray(np.einsum("js,js->s", self.begun, self.ended[::-1]))

    def between(self) -> Iterator[Array]:
        """Yield the weight of the ways from one step to another by 1, 2, … parts (n, n)."""
        ways = self.following
        for parts in range(1, len(self.begun)):
            ways = ways @ self.following if parts > 1 else ways
            yield ways

    def around(self, parts: int) -> Array:
        """Return the weight of what may be before s and after t, which are so many parts apart (n, n)."""
        before = self.begun[: len(self.begun) - parts]
        return np.asarray(before.T @ self.ended[: len(before)][::-1])

    @property
    def pairs(self) -> Array:
        """Weight of the persons with parts in both of two steps (n, n), the same in either order, in one on itself."""
        later = np.zeros_like(self.following)
        for parts, ways in enumerate(self.between(), start=1):
            later += ways * self.around(parts)
        return later + later.T + np.diag(self.single)


def persons_apart(count: int, times: int, apart: int, most: int) -> list[Index]:
    """Return the sets of steps to which no person may add a part; at most so many and one more."""
    persons: list[Index] = []

    def extend(steps: list[int]) -> None:
        begin = steps[-1] + apart if steps else 0
        if len(steps) == times or begin >= count:
            gaps = np.diff([-apart, *steps, count - 1 + apart])
            if len(steps) == times or not np.any(gaps >= 2 * apart):
                persons.append(np.array(steps, dtype=np.intp))
            return
        for step in range(begin, count):
            if len(persons) > most:
                return
            extend([*steps, step])

    extend([])
    return persons


def walks_of_persons(persons: list[Index], weights: list[Array], count: int) -> Array:
    """Return weights of walks and correlations (2, n, n) that come close to ``m_P R_P`` of each person (k, k).

    A part follows another as often as among these persons, whatever came before; walks weigh a chain's, where one that
    may stop with probability q weighs as one that always may, for a next part in t over s times ``q_t / q_s``.
    """
    single, first, last = np.zeros(count), np.zeros(count), np.zeros(count)
    links, both, products = (np.zeros((count, count)) for _ in range(3))
    for steps, matrix in zip(persons, weights, strict=True):
        mass = float(np.diagonal(matrix).max())
        single[steps] += mass
        first[steps[0]] += mass
        last[steps[-1]] += mass
        links[steps[:-1], steps[1:]] += mass
        both[np.ix_(steps, steps)] += mass
        products[np.ix_(steps, steps)] += matrix
    stopped = np.maximum(last, RARE * single.max())
    # first_s q_s, and links_st / single_s times q_t / q_s, with q = stopped / single.
    seldom = np.maximum(single, np.finfo(float).tiny)
    chain = links * (stopped / seldom)[None, :] / stopped[:, None] + np.diag(first * stopped / seldom)
    return np.array([chain, np.divide(products, both, out=np.eye(count), where=both > 0)])


def roots_of(weights: Array, phases: Index, of: str) -> tuple[Array, float] | None:
    """Return roots F_p with ``F_p F_p' ⪯ m_p R_p`` (phases, times, times), and ``Σ m_p``; None of weights for nothing.

    Of vectors, m_p is the largest diagonal entry of the positive semidefinite part of the weights. Of signs that part,
    with a diagonal of 1, is a correlation matrix G, and R is ``(2/π) arcsin(G)`` (`mean_products`).
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


def roots_of_walks(weights: Array, times: int, apart: int, of: str) -> tuple[Array, float] | None:
    """Return a root F (n, n) with ``F F' ⪯ Π ∘ R``, and the weight of all persons; None of weights for nothing.

    ``weights[0]`` has the weights of a first part on its diagonal, and above it those of a part in t after one in s;
    numbers below zero or too close to the diagonal count as 0. ``weights[1]`` counts by its positive semidefinite part,
    with a diagonal of 1: G, which is R of vectors; of signs R is ``(2/π) arcsin(G)``.
    """
    if not (np.all(np.isfinite(weights)) and np.any(weights[0])):
        return None
    count = weights.shape[1]
    chain = np.maximum(weights[0], 0.0)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        first = np.diagonal(chain) / max(np.diagonal(chain).max(), np.finfo(float).tiny)
        walks = Walks.of(first, np.triu(chain, apart), min(times, -(-count // apart)))
        single, total, pairs = walks.single, walks.total, walks.pairs
    if not (np.isfinite(total) and total > FAINT and np.all(np.isfinite(pairs))):
        return None
    sizes = np.where(single > FAINT * total, np.sqrt(single), 0.0)
    inverse = np.divide(1.0, sizes, out=np.zeros(count), where=sizes > 0)
    shares = pairs * inverse[:, None] * inverse
    shares[np.diag_indices(count)] = 1.0
    means, off = mean_products(unit_rows(weights[1]), of)
    relative = 4 * (times + 4) * sum_rounding(count + times) + 8 * EPS
    root = mixed_root(shares * means, shares * (off + relative * np.abs(means)))
    return sizes[:, None] * root, total * (1 + relative)


def unit_rows(matrix: Array) -> Array:
    """Return rows U with U U' the positive semidefinite part of matrices (…, k, k), with a diagonal of 1, or 0."""
    largest = np.abs(matrix).max(axis=(-2, -1), keepdims=True)
    scaled = matrix / np.where(largest > 0, largest, 1.0)
    values, vectors = np.linalg.eigh((scaled + np.swapaxes(scaled, -1, -2)) / 2)
    values = np.where(values > matrix.shape[-1] * EPS * values[..., -1:], values, 0.0)  # roots of rounding are large
    rows = vectors * np.sqrt(values)[..., None, :]
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


def mean_products(units: Array, of: str) -> tuple[Array, Array]:
    """Return the largest means of products of parts with given inner products (…, k, k), and what these are off by.

    Of vectors they are the inner products of the rows, of norm 1 or 0. Of signs they are ``(2/π) arcsin`` of these: the
    means of ``z z'`` over the signs z of normal numbers with such covariances (Grothendieck). The diagonal is 1.
    """
    count = units.shape[-2]
    units, kinds = (units, np.arange(count)) if of == "vectors" else _alike(units)
    means = np.clip(units @ np.swapaxes(units, -1, -2), -1.0, 1.0)
    off = np.full_like(means, 4 * sum_rounding(units.shape[-1] + 4))
    if of == "signs":
        known = np.abs(means)
        angles, below = np.arcsin(known), np.arcsin(np.maximum(known - off, 0.0))
        off = np.maximum(np.arcsin(np.minimum(known + off, 1.0)) - angles, angles - below) + 8 * EPS
        means = 2 / np.pi * np.arcsin(means)
    same = kinds[..., :, None] == kinds[..., None, :]
    means, off = np.where(same, np.rint(means), means), np.where(same, 0.0, off)
    diagonal = np.arange(count)
    means[..., diagonal, diagonal] = 1.0
    return means, off


def _alike(units: Array) -> tuple[Array, Index]:
    """Return rows (…, k, r), those that nearly are one of before, or its opposite, made so, and the number of that one.

    Near 1 the arcsine is so steep that rounding would cost a bound half its digits: equal rows have no rounding.
    """
    units, count = units.copy(), units.shape[-2]
    kinds = np.broadcast_to(np.arange(count), units.shape[:-1]).copy()
    for place in range(1, count):
        before, row = units[..., :place, :], units[..., place, None, :]
        signed = before * np.where((before * row).sum(axis=-1, keepdims=True) < 0, -1.0, 1.0)
        close = (np.abs(signed - row).max(axis=-1) <= ALIKE) & np.any(row != 0, axis=-1)
        first = close.argmax(axis=-1)[..., None]
        chosen = np.take_along_axis(signed, first[..., None], axis=-2)[..., 0, :]
        some = close.any(axis=-1)
        units[..., place, :] = np.where(some[..., None], chosen, units[..., place, :])
        numbers = np.take_along_axis(kinds, first, axis=-1)[..., 0]
        kinds[..., place] = np.where(some, numbers, kinds[..., place])
    return units, kinds


def mixed_root(means: Array, rounding: Array) -> Array:
    """Return H with ``H H' ⪯ (1 - t) R + t I`` for matrices R (…, k, k) known up to their rounding, and some t.

    ``(1 - t) R + t I`` is no smaller than ``H H'`` close to ``(1 - t) R`` where t is at least the distance of the two,
    rounding included, in the spectral norm.
    """
    values, vectors = np.linalg.eigh(means)
    factors = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    left = np.abs(factors @ np.swapaxes(factors, -1, -2) - means) + rounding + 4 * sum_rounding(means.shape[-1] + 2)
    # A row sum is no smaller than the spectral norm of a symmetric matrix.
    mixed = np.minimum(left.sum(axis=-1).max(axis=-1) * UPWARDS, 1.0)
    return np.asarray(factors * np.sqrt(1 - mixed)[..., None, None])
