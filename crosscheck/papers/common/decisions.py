"""How often the common mechanism's noisy answers lead to the right choice (CMN, Tables 2 to 6, Table 7 and Figure 1).

The right choice is the one that exact counts lead to: the finer analysis, if a share x of the coarser one's queries
would still have a signal-to-noise ratio of y in it. Two points can be read in two ways, and all four are computed:

- the noise of a coarse answer under the finer mechanism is that of the best estimate from all of its answers, or, as
  the code published with the paper has it, of a plain sum of cells (`common_instances.summed_variances`);
- the noisy decision keeps a margin of three standard deviations (section 6.1), or none, as that code.

Counts are multiplied by √(2ρ), so that every mechanism stays at squared privacy cost 1 (`common_instances`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from dualmech import fast
from dualmech.adaptive.chain import Chain
from dualmech.adaptive.decisions import SignalToNoise, SignalToNoiseRule, Verdict
from dualmech.crosscheck import rivals
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.common import instances
from dualmech.crosscheck.papers.common import population as common_population
from dualmech.crosscheck.papers.common.grid import OwnTable, by_name, read_grid
from dualmech.crosscheck.papers.common.instances import CHOICES
from dualmech.crosscheck.papers.common.population import NOISE_SEED, POPULATIONS
from dualmech.crosscheck.papers.common.printed import (
    ACCURACY,
    BRAZIL,
    HISRACE_CELLS,
    HISRACE_TABLES,
    AccuracyTable,
    Setting,
)
from dualmech.crosscheck.papers.printed import rounded_from
from dualmech.crosscheck.papers.solving import certified_outcome
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.validate import Array
from dualmech.workloads.base import Workload

MARGINS = (0.0, 3.0)
"""Standard deviations by which a noisy answer must exceed what is needed: none, and those of section 6.1."""

PLAIN, SURE = MARGINS

SUMMED, ESTIMATED = "sums of cells", "best estimates"
"""How the noise of a coarse answer under the finer mechanism is read."""

POPULATION = {HISRACE_TABLES: "HisRace", HISRACE_CELLS: "HisRace", BRAZIL: "Brazil"}

QUICK_BLOCKS = 1000

ERRORS = 4.0  # standard errors by which an accuracy on the paper's own data may differ from the printed one
HALF_DIGIT = 0.005  # half of the last digit of a printed percentage

EDGE = 1e-9
"""Part of a level that may be missed: a count that reaches it exactly does so in spite of rounding."""


@dataclass(frozen=True, slots=True)
class CensusBlocks:
    """The blocks of data to decide on."""

    name: str  # Of the population, or of the file
    counts: Array  # (n, d)
    real: bool  # Whether they come from a file


@dataclass(frozen=True, slots=True)
class DecisionOutcome:
    """The outcome of one row."""

    first: float  # Percent of blocks for which the first mechanism is right
    accuracy: dict[float, float]  # By margin: percent of right choices


@dataclass(frozen=True, slots=True)
class AccuracyHalf:
    """A half of one of Tables 2 to 6, on some blocks."""

    table: AccuracyTable | OwnTable  # What is printed, or a grid of which nothing is
    blocks: str  # What the blocks are, and how many
    number: int  # Of the blocks
    real: bool  # Whether they are from a file, and may be the paper's
    rows: dict[str, dict[str, DecisionOutcome]]  # By row and by reading of the noise
    gap: float  # Of the common mechanism, certified
    certified: bool  # Whether it was proven to its tolerance
    # For one release of every block: common mechanism, choice, residual, and the answers put together
    seconds: float

    @property
    def outcome(self) -> Agreement:
        """Whether the common mechanism was certified."""
        return certified_outcome(self.certified)

    @property
    def own(self) -> bool:
        """Whether the settings are of a grid, so that nothing is printed of them."""
        return not all(map(self.table.printed, self.table.rows))

    @property
    def judged(self) -> bool:
        """Whether the rows may be the paper's."""
        return self.real and not self.own

    def apart(self, row: str) -> tuple[float, float]:
        """By how many points plain sums without a margin differ from the printed share and accuracy."""
        first, _, accuracy = map(float, self.table.printed(row))
        found = self.rows[row][SUMMED]
        return abs(found.first - first), abs(found.accuracy[0.0] - accuracy)

    def fits(self, row: str) -> bool:
        """Whether plain sums without a margin give what is printed: the right choices to the digit, accuracy nearly.

        The accuracy may differ by four of its standard errors, since the noise is drawn anew.
        """
        first, _, accuracy = self.table.printed(row)
        (low, high), printed = rounded_from(first), float(accuracy)
        found = self.rows[row][SUMMED]
        return low <= found.first <= high and near(found.accuracy[0.0], printed, self.number)


def solve(table: AccuracyTable | OwnTable, blocks: CensusBlocks) -> AccuracyHalf:
    """Compute a half of a table, or a grid of settings, on some blocks."""
    choice = CHOICES[table.choice]
    chain = fast.chain(choice.mechanisms)
    finer = {SUMMED: cell_sums(*choice.workloads), ESTIMATED: choice.mechanisms[1]}
    rows = {
        row: {name: _outcome(chain, each, table.setting(row), blocks.counts) for name, each in finer.items()}
        for row in table.rows
    }
    begun, setting = time.perf_counter(), table.fixed
    rule = SignalToNoiseRule(chain, setting.share, setting.level * (1 - EDGE))
    chain.simulate(scaled_counts(blocks.counts, setting.rho), rule, NOISE_SEED)
    seconds = time.perf_counter() - begun
    return AccuracyHalf(
        table, blocks.name, len(blocks.counts), blocks.real, rows, chain.gap, chain.certified, seconds
    )


def cell_sums(primary: Workload, secondary: Workload) -> LinearGaussianMechanism:
    """Return a mechanism whose noise in the primary answers is that of plain sums of one secondary table's cells.

    It has independent noise on the cells of the domain, so its answers have none to share: the primary answers here
    are all of equally many cells, or of tables whose cells are those of the domain.
    """
    each = instances.summed_variances(primary, secondary) / primary.dense().sum(axis=1)
    return rivals.input_perturbation(primary, 1 / float(each.max()))


def scaled_counts(counts: Array, rho: float) -> Array:
    """Return counts in units in which mechanisms of ρ have squared privacy cost 1."""
    return counts * np.sqrt(2 * rho)


def _outcome(
    chain: Chain, finer: LinearGaussianMechanism, setting: Setting, counts: Array
) -> DecisionOutcome:
    (stage,) = chain.stages
    data = scaled_counts(counts, setting.rho)
    level = setting.level * (1 - EDGE)
    rules = {
        margin: SignalToNoise(chain.mechanisms[0], finer, stage.known, setting.share, level, margin)
        for margin in MARGINS
    }
    right = rules[0.0].true_verdict(data) == Verdict.SECONDARY
    answers = stage.known.simulate(data, NOISE_SEED)
    chosen = {margin: rule.choose(answers) == Verdict.SECONDARY for margin, rule in rules.items()}
    return DecisionOutcome(
        percent(~right), {margin: percent(each == right) for margin, each in chosen.items()}
    )


def near(accuracy: float, printed: float, number: int) -> bool:
    """Whether an accuracy in percent is within `ERRORS` standard errors of a printed one, and its rounding."""
    error = 100 * np.sqrt(printed / 100 * (1 - printed / 100) / number)
    return bool(abs(accuracy - printed) <= ERRORS * error + HALF_DIGIT)


def percent(holds: npt.NDArray[np.bool_]) -> float:
    """Return how many of the conditions hold, in percent."""
    return 100 * float(np.mean(holds))


@cache
def population(name: str, blocks: int) -> Array:
    """Return the blocks of a population, drawn once."""
    return POPULATIONS[name].draw(blocks)


def synthetic_blocks(choice: str, blocks: int = common_population.BLOCKS) -> CensusBlocks:
    """Return the blocks of the population that stands for a choice's data."""
    name = POPULATION[choice]
    return CensusBlocks(f"synthetic {name}", population(name, blocks), real=False)


def read_blocks(choice: str, path: str) -> CensusBlocks:
    """Return the blocks in a file; refused where their cells are not those of the choice."""
    return CensusBlocks(path, common_population.read_counts(path, CHOICES[choice].domain.cells), real=True)


def halves(
    name: str, quick: bool, path: str | None = None, grid: str | None = None
) -> list[Callable[[], AccuracyHalf]]:
    """Return what to compute for a data set: a half of a table each.

    - `name`: of the data set, ``HisRace`` or ``Brazil``;
    - `quick`: whether to draw few blocks;
    - `path`: a file of blocks instead;
    - `grid`: a file of settings in place of the printed ones.
    """
    tables: Sequence[AccuracyTable | OwnTable] = [
        table for table in ACCURACY if POPULATION[table.choice] == name
    ]
    if grid is not None:
        usual = {table.choice: table.fixed for table in tables}
        tables = [
            OwnTable(choice, by_name(read_grid(grid, setting, coarsest(choice)), counted=False))
            for choice, setting in usual.items()
        ]
    number = QUICK_BLOCKS if quick else common_population.BLOCKS
    return [
        partial(
            _half,
            table,
            partial(read_blocks, table.choice, path)
            if path
            else partial(synthetic_blocks, table.choice, number),
        )
        for table in tables
    ]


def coarsest(choice: str) -> float:
    """Return the variance of an answer of a choice's first mechanism, at squared privacy cost 1."""
    return rivals.raw_gaussian_variance(CHOICES[choice].workloads[0], 1.0)


def _half(table: AccuracyTable | OwnTable, blocks: Callable[[], CensusBlocks]) -> AccuracyHalf:
    return solve(table, blocks())
