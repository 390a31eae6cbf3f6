"""Known strategies of running sums: what is computed, and how it looks in a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from rich.console import Console

from dualmech import fast
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.judging import Judgement, judge
from dualmech.crosscheck.papers.sheet import Sheet
from dualmech.crosscheck.printing import certified_outcome, table, without_warnings
from dualmech.mechanisms.causal import CausalMechanism
from dualmech.problems import strategies
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.solution import Solution
from dualmech.workloads.streams import StreamWorkload

# How far known causal strategies of running sums are from the proven optimum, at any number of steps.


TOLERANCE = 1e-4  # gap to which the bounds are solved

QUICK, ALL = (256, 1024), (1024, 16_384, 262_144)
"""Numbers of steps."""

BAND = 64  # coefficients of the root that its banded form keeps

BUFFERS = (0.2785, 0.1419, 0.0703), (0.66362, 0.95975, 0.99711)
"""Scales and decays of the three buffers with the least total variance of 1,024 prefixes that a search without
derivatives found (Nelder and Mead's, from a dozen points); they are meant for that number of steps."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownRow:
    """Every known strategy over one number of steps, judged for the largest and for the total variance."""

    steps: int
    bounds: tuple[Solution, Solution]
    judged: Mapping[str, tuple[Judgement, Judgement]]
    seconds: float  # of judging all, the bounds at hand

    @property
    def gap(self) -> float:
        """The wider gap of both bounds."""
        return max(bound.gap for bound in self.bounds)

    @property
    def outcome(self) -> Agreement:
        """Whether both bounds are proven."""
        return certified_outcome(all(bound.certificate.certifies(TOLERANCE) for bound in self.bounds))


def judged(steps: int) -> KnownRow:
    """Judge every known strategy over so many steps.

    Examples
    --------
    >>> row = judged(64)
    >>> largest, total = row.judged["square root"]
    >>> round(largest.scaled.gap, 3), round(total.scaled.gap, 3)
    (0.28, 0.127)
    """
    problems = [family(StreamWorkload(steps), geometry="stream") for family in (FitnessForUse, TotalVariance)]
    with without_warnings():
        bounds = [fast.solve(problem, tol=TOLERANCE) for problem in problems]
    begun, found = time.perf_counter(), {}
    for name, made in STRATEGIES.items():
        strategy = made(steps)
        first, last = (judge(each, strategy, bound=own) for each, own in zip(problems, bounds, strict=True))
        found[name] = first, last
    return KnownRow(steps, (bounds[0], bounds[1]), found, time.perf_counter() - begun)


def _identity(steps: int) -> CausalMechanism:
    return strategies.toeplitz([1.0], steps)


def _sums(steps: int) -> CausalMechanism:
    return strategies.toeplitz(np.ones(steps), steps)


def _banded_root(steps: int) -> CausalMechanism:
    return strategies.toeplitz(strategies.root_coefficients(min(BAND, steps)), steps)


STRATEGIES: Mapping[str, Callable[[int], CausalMechanism]] = {
    "noise on every record": _identity,
    "noise on every sum": _sums,
    "binary tree": strategies.tree,
    f"square root, {BAND} bands": _banded_root,
    "square root": strategies.sqrt_toeplitz,
    "three buffers": lambda steps: strategies.buffered(*BUFFERS, steps),
}

LEGEND = (
    "How far each strategy is above what is proven to be the least, in the squared privacy cost at one largest "
    "variance of all prefixes, and in their total variance at one privacy cost. 'off by at most' is what its "
    "evaluation, in time that grows as the steps do, may be off by. The buffers are tuned to the total of 1,024 "
    "prefixes."
)


def _tasks(quick: bool) -> list[Callable[[], KnownRow]]:
    return [partial(judged, steps) for steps in (QUICK if quick else ALL)]


def _show(out: Console, title: str, rows: Iterator[KnownRow]) -> None:
    headings = ("strategy", "steps", "largest variance", "total variance", "off by at most")
    found = [*rows]
    drawn = (
        (
            name,
            str(row.steps),
            *(f"{each.scaled.gap:+.2%}" for each in pair),
            f"{max(each.scaled.resolution for each in pair):.0e}",
        )
        for row in found
        for name, pair in row.judged.items()
    )
    notes = [
        f"{row.steps} steps: bounds proven to {row.gap:.0e}; all judged in {row.seconds:.2g} s."
        for row in found
    ]
    out.print(table(title, headings, drawn, notes=[LEGEND, *notes]))


SHEETS = {"known": Sheet("known strategies of running sums, before the proven optimum", _tasks, _show)}
