"""The chain of common mechanisms against thresholds on head counts (CMN, Figure 1 and the Acc column of Table 7).

The thresholds get exact counts, and are tuned on the right choices of the very blocks that they are judged on: by
logistic regression, as the paper has it, and the best that there are, which no tuning can beat there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import fast
from dualmech.adaptive.decisions import SignalToNoiseRule, Verdict
from dualmech.crosscheck import rivals
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.common import decisions, instances, population
from dualmech.crosscheck.papers.common.decisions import (
    EDGE,
    MARGINS,
    QUICK_BLOCKS,
    CensusBlocks,
    near,
    percent,
)
from dualmech.crosscheck.papers.common.grid import COUNTED, by_name, read_grid
from dualmech.crosscheck.papers.common.instances import BUCKETS, CENSUS_TABLE
from dualmech.crosscheck.papers.common.population import NOISE_SEED
from dualmech.crosscheck.papers.common.printed import CENSUS_SETTING, TABLE_7, CensusRow, Setting
from dualmech.crosscheck.papers.plots import COLOURS
from dualmech.crosscheck.papers.printed import rounded_from
from dualmech.crosscheck.papers.solving import certified_outcome
from dualmech.crosscheck.rivals.central import census
from dualmech.validate import Array


@dataclass(frozen=True, slots=True)
class ThresholdRow:
    """One ρ of Table 7 and Figure 1, on some blocks; all numbers are percent."""

    name: str  # ρ as printed, or what the setting of a grid says of itself
    setting: Setting
    printed: CensusRow | None  # None for a setting of one's own
    blocks: str  # What the blocks are
    number: int  # Of the blocks
    real: bool  # Whether they are from a file, and may be the paper's
    shares: tuple[float, ...]  # Of the blocks for which each histogram is right
    # %PLB saved on these blocks: what the chain knows when it decides, over the budget, in the mean
    saved: float
    chain: dict[float, float]  # By margin: accuracy of the chain
    finer: dict[float, float]  # By margin: blocks for which the chain chose a finer histogram than is right
    # Accuracy of thresholds by logistic regression, and of the best thresholds
    tuned: float
    best: float
    noisy: float  # Of the best thresholds for head counts that cost a share γ of ρ
    gap: float  # Of the chain, certified
    certified: bool  # Whether it was proven to its tolerance
    seconds: float  # For one release of every block along the chain

    @property
    def outcome(self) -> Agreement:
        """Whether the chain was certified."""
        return certified_outcome(self.certified)

    @property
    def judged(self) -> bool:
        """Whether the row may be the paper's."""
        return self.real and self.printed is not None

    @property
    def fits(self) -> bool:
        """Whether the shares are the printed ones to their digits, and the chain's accuracy without a margin nearly.

        Thresholds are left out: the regularisation of the paper's regression is not stated.
        """
        if self.printed is None:
            return False
        pairs = zip(self.shares, map(rounded_from, self.printed.shares), strict=True)
        same = all(low <= share <= high for share, (low, high) in pairs)
        return same and near(self.chain[0.0], float(self.printed.accuracy), self.number)


def solve(name: str, blocks: CensusBlocks, setting: Setting | None = None) -> ThresholdRow:
    """Compute a row; Total counts all people, as in the published code, whose numbers Table 7 fits.

    - `name`: ρ of the row of Table 7, or what a setting of one's own says of itself.

    Examples
    --------
    >>> found = solve("1/32", synthetic_blocks(blocks=300))
    >>> found.certified, found.tuned <= found.best, found.chain[0.0] > 90
    (True, True, True)
    """
    chain = fast.chain(instances.census(by_gender=False))
    printed = None
    if setting is None:
        setting, printed = replace(CENSUS_SETTING, rho=float(Fraction(name))), TABLE_7[name]
    share, level = setting.share, setting.level
    rules = {margin: SignalToNoiseRule(chain, share, level * (1 - EDGE), margin) for margin in MARGINS}
    data = decisions.scaled_counts(blocks.counts, setting.rho)
    right = right_choices(rules[0.0], data)
    begun = time.perf_counter()
    found = {margin: chain.simulate(data, rule, NOISE_SEED).choices for margin, rule in rules.items()}
    seconds = (time.perf_counter() - begun) / len(rules)
    people = blocks.counts.sum(axis=1)
    shares = tuple(percent(right == index) for index in range(len(BUCKETS)))
    own = [stage.known.squared_privacy_cost for stage in chain.stages]
    thresholds = [
        fit(people, right, len(BUCKETS)) for fit in (census.logistic_thresholds, census.best_thresholds)
    ]
    tuned, best = (percent(each.choose(people) == right) for each in thresholds)
    counted = noisy_counts(people, setting)
    noisy = census.best_thresholds(counted, right, len(BUCKETS)).choose(counted)
    return ThresholdRow(
        name,
        setting,
        printed,
        blocks.name,
        len(people),
        blocks.real,
        shares,
        float(np.dot(shares, [*own, own[-1]])),
        {margin: percent(choices == right) for margin, choices in found.items()},
        {margin: percent(choices > right) for margin, choices in found.items()},
        tuned,
        best,
        percent(noisy == right),
        chain.gap,
        chain.certified,
        seconds,
    )


def noisy_counts(people: Array, setting: Setting) -> Array:
    """Return head counts (n,) with the noise of a count that costs γρ in zCDP (section 7.5.2): variance 1/(2γρ)."""
    spread = 1 / np.sqrt(2 * setting.gamma * setting.rho)
    return people + np.random.default_rng(NOISE_SEED).normal(scale=spread, size=len(people))


def right_choices(rule: SignalToNoiseRule, data: Array) -> npt.NDArray[np.intp]:
    """Return the choices that exact counts lead to (n,): the first mechanism that the next one cannot replace."""
    choices = np.full(len(data), len(rule.stages))
    for stage in reversed(range(len(rule.stages))):
        enough = rule.stages[stage].true_verdict(data) == Verdict.SECONDARY
        choices = np.where(enough, choices, stage)
    return choices


def synthetic_blocks(blocks: int = population.BLOCKS) -> CensusBlocks:
    """Return the blocks of the population that stands for the tracts."""
    return CensusBlocks("synthetic AgeGender", decisions.population("AgeGender", blocks), real=False)


def read_blocks(path: str) -> CensusBlocks:
    """Return the blocks in a file of 206 cells, gender slowest."""
    return CensusBlocks(path, population.read_counts(path, CENSUS_TABLE.cells), real=True)


def rows(quick: bool, path: str | None = None, grid: str | None = None) -> list[Callable[[], ThresholdRow]]:
    """Return what to compute, a ρ each, on a population drawn from a seed or on a file; or a file's settings."""
    number = QUICK_BLOCKS if quick else population.BLOCKS
    settings: dict[str, Setting] | dict[str, None] = dict.fromkeys(TABLE_7)
    if grid is not None:
        coarsest = rivals.raw_gaussian_variance(instances.histogram("Total", by_gender=False), 1.0)
        settings = by_name(read_grid(grid, CENSUS_SETTING, coarsest), counted=True)
    return [
        partial(_of_file, name, path, setting) if path else partial(of_population, name, number, setting)
        for name, setting in settings.items()
    ]


@cache
def of_population(name: str, blocks: int = population.BLOCKS, setting: Setting | None = None) -> ThresholdRow:
    """Compute a row on the synthetic population, once: its picture is of the same rows."""
    return solve(name, synthetic_blocks(blocks), setting)


def _of_file(name: str, path: str, setting: Setting | None) -> ThresholdRow:
    return solve(name, read_blocks(path), setting)


def picture(axes: Any, rows: Sequence[ThresholdRow]) -> None:
    """Draw Figure 1."""
    curves = {
        "chain": [row.chain[0.0] for row in rows],
        "chain, 3σ margin": [row.chain[3.0] for row in rows],
        "thresholds, tuned": [row.tuned for row in rows],
        "best thresholds": [row.best for row in rows],
        "best thresholds, noisy counts": [row.noisy for row in rows],
    }
    places = np.arange(len(rows))
    for (name, values), colour in zip(curves.items(), COLOURS, strict=False):
        axes.plot(places, values, "o-", ms=3.5, color=colour, label=name)
    axes.set_xticks(places, [row.name for row in rows])
    axes.set(xlabel="ρ" if rows[0].printed else COUNTED, ylabel="right choices, percent", ylim=(None, 100.5))
    axes.set_title(f"Age buckets for {rows[0].number} blocks of {rows[0].blocks}", loc="left", fontsize=10)
    axes.legend()
