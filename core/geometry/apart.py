"""Persons whose parts are at least b steps apart: what they cost, by dynamic programming, an interval where not exact.

A person has a part in a set P of up to k steps, of which no two are less than b apart, and costs the largest
``⟨C_P, R⟩`` over correlation matrices R, or ``z z'`` for signs z: at most ``Σ |C_st|`` over s, t in P, and at least
``z' C_P z`` for any signs z. Where C is 0 at distances of b and more both are the sum of the diagonal over P, whose
largest value dynamic programming finds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dualmech.validate import Array
from dualmech.verified import UPWARDS, sum_rounding

Index = npt.NDArray[np.intp]


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
