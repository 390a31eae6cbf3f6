"""Known causal strategies of running sums: how far they are from the proven optimum, at any number of steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

import dualmech as dm
from dualmech import crosscheck, fast, strategies, workloads
from dualmech.crosscheck.sheet import Columns, Row, Sheet, one_table

TOLERANCE = 1e-4  # gap to which the bounds are solved

BAND = 64  # coefficients of the root that its banded form keeps

BUFFERS = (0.2785, 0.1419, 0.0703), (0.66362, 0.95975, 0.99711)
"""Scales and decays of the three buffers with the least total variance of 1,024 prefixes that a search without
derivatives found (Nelder and Mead's, from a dozen points); they are meant for that number of steps."""


def judged(steps: int) -> Row:
    """Judge every known strategy over so many steps, for the largest and for the total variance.

    Examples
    --------
    >>> root = judged(64).parts[4]
    >>> root.strategy, round(root.largest.gap, 3), round(root.total.gap, 3)
    ('square root', 0.28, 0.127)
    """
    problems = [family(workloads.prefix(steps), geometry="stream") for family in (dm.FitnessForUse, dm.TotalVariance)]
    bounds = [fast.solve(problem, tol=TOLERANCE) for problem in problems]
    begun, rows = time.perf_counter(), []
    for name, made in STRATEGIES.items():
        strategy = made(steps)
        first, last = (
            crosscheck.judge(problem, strategy, bound=bound).scaled
            for problem, bound in zip(problems, bounds, strict=True)
        )
        off = max(first.resolution, last.resolution)
        rows.append(Row({"strategy": name, "steps": steps, "largest": first, "total": last, "off": off}))
    return Row(
        {"steps": steps, "seconds": time.perf_counter() - begun},
        max(bound.gap for bound in bounds),
        all(bound.certificate.certifies(TOLERANCE) for bound in bounds),
        parts=tuple(rows),
    )


STRATEGIES: Mapping[str, Callable[[int], dm.CausalMechanism]] = {
    "noise on every record": lambda steps: strategies.toeplitz([1.0], steps),
    "noise on every sum": lambda steps: strategies.toeplitz(np.ones(steps), steps),
    "binary tree": strategies.tree,
    f"square root, {BAND} bands": lambda steps: strategies.toeplitz(
        strategies.root_coefficients(min(BAND, steps)), steps
    ),
    "square root": strategies.sqrt_toeplitz,
    "three buffers": lambda steps: strategies.buffered(*BUFFERS, steps),
}

LEGEND = (
    "How far each strategy is above what is proven to be the least, in the squared privacy cost at one largest "
    "variance of all prefixes, and in their total variance at one privacy cost. 'off by at most' is what its "
    "evaluation, in time that grows as the steps do, may be off by. The buffers are tuned to the total of 1,024 "
    "prefixes."
)

COLUMNS: Columns = (
    ("strategy", "{strategy}"),
    ("steps", "{steps}"),
    ("largest variance", "{largest.gap:+.2%}"),
    ("total variance", "{total.gap:+.2%}"),
    ("off by at most", "{off:.0e}"),
)


def _tasks(quick: bool) -> list[Callable[[], Row]]:
    return [partial(judged, steps) for steps in ((256, 1024) if quick else (1024, 16_384, 262_144))]


def _times(rows: Sequence[Row]) -> str:
    return "\n".join(
        row.text("{steps} steps: bounds proven to {gap:.0e}; all judged in {seconds:.2g} s.") for row in rows
    )


SHEETS = {
    "known": Sheet(
        "known strategies of running sums, before the proven optimum",
        _tasks,
        one_table(COLUMNS, _times, parts=True, notes=[LEGEND]),
    )
}
