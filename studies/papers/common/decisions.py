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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

import dualmech as dm
from dualmech import decisions, fast, validate
from dualmech.crosscheck.instances import common as instances
from dualmech.crosscheck.instances.common import AccuracyTable, Setting
from dualmech.crosscheck.printing import COLOURS, is_rounding, print_lines, yes_or_no
from dualmech.crosscheck.sheet import Columns, Row, Sheet, drawn
from dualmech.errors import FileFormatError, InvalidInputError
from dualmech.files import csv
from dualmech.studies import rivals
from dualmech.studies.papers.common.census import BLOCKS, NOISE_SEED, POPULATIONS, read_counts
from dualmech.studies.rivals import census
from dualmech.validate import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A grid of the user's in place of the settings that the paper's tables have: a file with a line for each setting.

NOISE = ("rho", "sigma")
OWN, COUNTED = ("ρ, x, y", "ρ, x, y, γ")  # names of a setting, without and with the cost of a head count
COLUMNS = (*NOISE, "x", "y", "gamma")
"""What a header may name. One of the first two must be there; other columns that are left out are as in the paper."""


def read_grid(path: str, usual: Setting, coarsest: float) -> list[Setting]:
    """Read settings from a CSV file whose header names columns out of `COLUMNS`.

    - `usual`: the paper's setting, for columns that are left out;
    - `coarsest`: variance of an answer of the coarsest mechanism at squared privacy cost 1, by which ``sigma``, the
      standard deviation of each of its answers, becomes ρ.

    Raises `FileFormatError` for a file that holds no such table, or numbers out of range.
    """
    table = csv.read_table(path)
    names = [name.strip() for name in table.cell_names or ()]
    known = f"a header of columns out of {', '.join(COLUMNS)}"
    if not names or table.names is not None or len(set(names)) < len(names) or set(names) - {*COLUMNS}:
        raise FileFormatError(f"{path}: a grid needs {known}, each once")
    if sum(name in names for name in NOISE) != 1:
        raise FileFormatError(f"{path}: a grid needs either rho or sigma")
    settings = []
    for number, row in enumerate(table.values.tolist(), 1):
        fields = dict(zip(names, row, strict=True))
        try:
            settings.append(_setting(fields, usual, coarsest))
        except InvalidInputError as error:
            raise FileFormatError(f"{path}: setting {number}: {error}") from error
    return settings


def _setting(fields: dict[str, float], usual: Setting, coarsest: float) -> Setting:
    numbers = {name: validate.positive_number(**{name: value}) for name, value in fields.items()}
    for name in ("x", "gamma"):
        if name in numbers and not numbers[name] <= 1:
            raise InvalidInputError(f"{name} must be at most 1, got {numbers[name]:g}")
    rho = numbers.get("rho") or coarsest / (2 * numbers["sigma"] ** 2)
    share, level = numbers.get("x", usual.share), numbers.get("y", usual.level)
    return Setting(validate.positive_number(rho=rho), share, level, numbers.get("gamma", instances.GAMMA))


def by_name(settings: list[Setting], counted: bool) -> dict[str, Setting]:
    """Return settings by name, each once, with γ where heads are counted."""
    numbers = [(setting.rho, setting.share, setting.level, *([setting.gamma] * counted)) for setting in settings]
    for digits in (4, 17):
        names = [", ".join(f"{number:.{digits}g}" for number in row) for row in numbers]
        if len({*names}) == len({*numbers}):
            break
    return dict(zip(names, settings, strict=True))


MARGINS = (0.0, 3.0)
"""Standard deviations by which a noisy answer must exceed the need: none, and those of section 6.1."""

PLAIN, SURE = MARGINS

SUMMED, ESTIMATED = "sums of cells", "best estimates"
"""How the noise of a coarse answer under the finer mechanism is read."""

AGES = "AgeGender"  # the population whose tracts are decided on

POPULATION = {instances.HISRACE_TABLES: "HisRace", instances.HISRACE_CELLS: "HisRace", instances.BRAZIL: "Brazil"}

QUICK_BLOCKS = 1000

ERRORS = 4.0  # standard errors by which an accuracy on the paper's own data may differ from the printed one

EDGE = 1e-9
"""Part of a level that may be missed: a count that reaches it exactly does so in spite of rounding."""


@dataclass(frozen=True, slots=True)
class CensusBlocks:
    name: str  # Of the population, or of the file
    counts: Array  # (n, d)
    real: bool  # Whether they come from a file


def half_fits(row: Row) -> bool:
    """Whether plain sums without a margin give the printed numbers: right choices to the digit, accuracy nearly.

    The accuracy may differ by four of its standard errors, since the noise is drawn anew.
    """
    first, _, accuracy = row.printed
    outcome = row.values[SUMMED]
    return is_rounding(first, (outcome.first,) * 2) and near(outcome.plain, float(accuracy), row.number)


def solve(table: AccuracyTable, blocks: CensusBlocks, grid: Mapping[str, Setting] | None = None) -> Row:
    """Compute a half of one of Tables 2 to 6 on some blocks, or the settings of a grid, by name, for its choice.

    The parts are its rows: for either reading of the noise, percent of blocks for which the first mechanism is right
    ('first'), and of right choices, without a margin ('plain') and with one ('sure'). Seconds are for one release of
    every block: common mechanism, choice, residual, and the answers put together.
    """
    choice = instances.CHOICES[table.choice]
    chain = fast.chain(choice.mechanisms)
    finer = {SUMMED: cell_sums(*choice.workloads), ESTIMATED: choice.mechanisms[1]}
    settings = {row: table.setting(row) for row in table.rows} if grid is None else grid
    shared = {"number": len(blocks.counts), "judged": blocks.real and grid is None}
    parts = tuple(
        Row(
            {"name": name, "printed": table.printed(name) if grid is None else None, **shared}
            | {reading: _outcome(chain, candidate, setting, blocks.counts) for reading, candidate in finer.items()}
        )
        for name, setting in settings.items()
    )
    begun, setting = time.perf_counter(), next(iter(settings.values()))
    rule = decisions.SignalToNoiseRule(chain, setting.share, setting.level * (1 - EDGE))
    chain.simulate(scaled_counts(blocks.counts, setting.rho), rule, NOISE_SEED)
    seconds = time.perf_counter() - begun
    values = {"table": table, "blocks": blocks.name, "own": grid is not None, "real": blocks.real, "seconds": seconds}
    return Row(values | shared, chain.gap, chain.certified, parts=parts)


def cell_sums(primary: dm.Workload, secondary: dm.Workload) -> dm.LinearGaussianMechanism:
    """Return a mechanism whose noise in the primary answers is the noise of plain sums of one secondary table's cells.

    It has independent noise on the cells of the domain, so its answers have none to share: the primary answers here
    are all of equally many cells, or of tables whose cells are those of the domain.
    """
    variances = instances.summed_variances(primary, secondary) / primary.dense().sum(axis=1)
    return rivals.input_perturbation(primary, 1 / float(variances.max()))


def scaled_counts(counts: Array, rho: float) -> Array:
    """Return counts in units in which mechanisms of ρ have squared privacy cost 1."""
    return counts * np.sqrt(2 * rho)


def _outcome(chain: dm.Chain, finer: dm.LinearGaussianMechanism, setting: Setting, counts: Array) -> Row:
    (stage,) = chain.stages
    data, level = scaled_counts(counts, setting.rho), setting.level * (1 - EDGE)
    plain, sure = (
        decisions.SignalToNoise(chain.mechanisms[0], finer, stage.known, setting.share, level, margin)
        for margin in MARGINS
    )
    right = plain.true_verdict(data) == decisions.Verdict.SECONDARY
    answers = stage.known.simulate(data, NOISE_SEED)
    accuracy = {
        name: percent((rule.choose(answers) == decisions.Verdict.SECONDARY) == right)
        for name, rule in (("plain", plain), ("sure", sure))
    }
    return Row({"first": percent(~right), **accuracy})


def near(accuracy: float, printed: float, number: int) -> bool:
    """Whether an accuracy in percent is within `ERRORS` standard errors of a printed one, and its rounding."""
    error = 100 * np.sqrt(printed / 100 * (1 - printed / 100) / number)
    return bool(abs(accuracy - printed) <= ERRORS * error + 0.005)  # half of the last digit


def percent(holds: npt.NDArray[np.bool_]) -> float:
    return 100 * float(np.mean(holds))


@cache
def population(name: str, blocks: int) -> Array:
    return POPULATIONS[name].draw(blocks)


def blocks_of(name: str, number: int = BLOCKS, data: str | None = None) -> CensusBlocks:
    """Return so many blocks of a synthetic population, or those in a file, which must have as many cells."""
    if data is not None:
        return CensusBlocks(data, read_counts(data, len(POPULATIONS[name].mean)), real=True)
    return CensusBlocks(f"synthetic {name}", population(name, number), real=False)


def halves(name: str, quick: bool, data: str | None = None, grid: str | None = None) -> list[Callable[[], Row]]:
    """Return the tasks for a data set: a half of a table each.

    - `name`: of the data set, ``HisRace`` or ``Brazil``;
    - `quick`: whether to draw few blocks;
    - `data`: a file of blocks instead;
    - `grid`: a file of settings in place of the printed ones.
    """
    tables = [table for table in instances.ACCURACY if POPULATION[table.choice] == name]
    chosen: list[tuple[AccuracyTable, dict[str, Setting] | None]] = [(table, None) for table in tables]
    if grid is not None:
        chosen = [
            (table, by_name(read_grid(grid, table.fixed, coarsest(choice)), counted=False))
            for choice, table in {table.choice: table for table in tables}.items()
        ]
    number = QUICK_BLOCKS if quick else BLOCKS
    if data is not None:
        blocks_of(name, number, data)  # refuses another file, before any work
    return [partial(_half, table, settings, name, number, data) for table, settings in chosen]


def coarsest(choice: str) -> float:
    """Return the variance of an answer of a choice's first mechanism, at squared privacy cost 1."""
    return rivals.raw_gaussian_variance(instances.CHOICES[choice].workloads[0], 1.0)


def _half(table: AccuracyTable, settings: dict[str, Setting] | None, *drawn: Any) -> Row:
    return solve(table, blocks_of(*drawn), settings)


# The chain of common mechanisms against thresholds on head counts (CMN, Figure 1 and the Acc column of Table 7).
#
# The thresholds get exact counts, and are tuned on the right choices of the very blocks that they are judged on: by
# logistic regression, as the paper has it, and the best possible, which no tuning can beat there.


def as_printed(row: Row) -> bool:
    """Whether the shares are the printed ones to their digits, and the chain's accuracy without a margin nearly.

    Thresholds are left out: the regularisation of the paper's regression is not stated.
    """
    pairs = zip(row.printed.shares, row.shares, strict=True)
    same = all(is_rounding(printed, (share, share)) for printed, share in pairs)
    return same and near(row.chain[PLAIN], float(row.printed.accuracy), row.number)


def solve_thresholds(name: str, blocks: CensusBlocks, setting: Setting | None = None) -> Row:
    """Compute a row of Table 7 and Figure 1; Total counts all people, as in the published code, which Table 7 fits.

    All numbers are percent: 'shares' of the blocks for which each histogram is right; 'saved', %PLB saved on these
    blocks, the cost of the chain's knowledge when it decides, over the budget, in the mean; by margin, the accuracy of
    the 'chain', and 'finer', blocks for which it chose a finer histogram than is right; accuracy of 'tuned' thresholds
    by logistic regression, of the 'best' thresholds, and 'noisy', of the best for head counts that cost a share γ of ρ.
    Seconds are of one release.

    - `name`: ρ of the row of Table 7, or the name of a setting of your own, of which nothing is printed.

    Examples
    --------
    >>> found = solve_thresholds("1/32", blocks_of(AGES, 300))
    >>> found.certified, found.tuned <= found.best, found.chain[0.0] > 90
    (True, True, True)
    """
    chain = fast.chain(instances.census(by_gender=False))
    printed = None
    if setting is None:
        setting, printed = replace(instances.CENSUS_SETTING, rho=float(Fraction(name))), instances.TABLE_7[name]
    share, level = setting.share, setting.level
    rules = {margin: decisions.SignalToNoiseRule(chain, share, level * (1 - EDGE), margin) for margin in MARGINS}
    data = scaled_counts(blocks.counts, setting.rho)
    right = right_choices(rules[0.0], data)
    begun = time.perf_counter()
    by_margin = {margin: chain.simulate(data, rule, NOISE_SEED).choices for margin, rule in rules.items()}
    seconds = (time.perf_counter() - begun) / len(rules)
    people = blocks.counts.sum(axis=1)
    shares = tuple(percent(right == index) for index in range(len(instances.BUCKETS)))
    costs = [stage.known.squared_privacy_cost for stage in chain.stages]
    thresholds = [
        fit(people, right, len(instances.BUCKETS)) for fit in (census.logistic_thresholds, census.best_thresholds)
    ]
    tuned, best = (percent(threshold.choose(people) == right) for threshold in thresholds)
    counted = noisy_counts(people, setting)
    noisy = census.best_thresholds(counted, right, len(instances.BUCKETS)).choose(counted)
    values = {
        "name": name,
        "setting": setting,
        "printed": printed,
        "blocks": blocks.name,
        "number": len(people),
        "judged": blocks.real and printed is not None,
        "shares": shares,
        "saved": float(np.dot(shares, [*costs, costs[-1]])),
        "chain": {margin: percent(choices == right) for margin, choices in by_margin.items()},
        "finer": {margin: percent(choices > right) for margin, choices in by_margin.items()},
        "tuned": tuned,
        "best": best,
        "noisy": percent(noisy == right),
        "seconds": seconds,
    }
    return Row(values, chain.gap, chain.certified)


def noisy_counts(people: Array, setting: Setting) -> Array:
    """Return head counts (n,) with the noise of a count that costs γρ in zCDP (section 7.5.2): variance 1/(2γρ)."""
    spread = 1 / np.sqrt(2 * setting.gamma * setting.rho)
    return people + np.random.default_rng(NOISE_SEED).normal(scale=spread, size=len(people))


def right_choices(rule: decisions.SignalToNoiseRule, data: Array) -> npt.NDArray[np.intp]:
    """Return the choices that exact counts lead to (n,): the first mechanism that the next one cannot replace."""
    choices = np.full(len(data), len(rule.stages))
    for stage in reversed(range(len(rule.stages))):
        enough = rule.stages[stage].true_verdict(data) == decisions.Verdict.SECONDARY
        choices = np.where(enough, choices, stage)
    return choices


def rows(quick: bool, data: str | None = None, grid: str | None = None) -> list[Callable[[], Row]]:
    """Return the tasks, a ρ each, on a population drawn from a seed or on a file; or a file's settings."""
    number = QUICK_BLOCKS if quick else BLOCKS
    settings: dict[str, Setting] | dict[str, None] = dict.fromkeys(instances.TABLE_7)
    if grid is not None:
        coarsest = rivals.raw_gaussian_variance(instances.histogram("Total", by_gender=False), 1.0)
        settings = by_name(read_grid(grid, instances.CENSUS_SETTING, coarsest), counted=True)
    if data is not None:
        blocks_of(AGES, number, data)  # refuses another file, before any work
    return [partial(of_population, name, number, setting, data) for name, setting in settings.items()]


@cache
def of_population(name: str, blocks: int = BLOCKS, setting: Setting | None = None, data: str | None = None) -> Row:
    """Compute a row on the synthetic population, or on a file, once: its picture is of the same rows."""
    return solve_thresholds(name, blocks_of(AGES, blocks, data), setting)


def picture(axes: Axes, rows: Sequence[Row]) -> None:
    curves = {
        "chain": [row.chain[PLAIN] for row in rows],
        "chain, 3σ margin": [row.chain[SURE] for row in rows],
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


# The thresholds' tables in a terminal: whom each histogram is right for, and how often the rules find it.


def show(out: Console, title: str, rows: Iterator[Row]) -> None:
    """Print Table 7 and Figure 1 for some blocks, under the printed settings or those of a grid."""
    listed = [*rows]
    printed, judged = all(row.printed for row in listed), any(row.judged for row in listed)
    setting = "ρ" if printed else COUNTED
    choices: Columns = (
        (setting, "{name}{mark}"),
        *((bucket, f"{{shares[{place}]:.2f}}") for place, bucket in enumerate(instances.BUCKETS)),
        ("right", partial(_at_margin, "chain", PLAIN)),
        ("PLB saved", "{saved:.2f}"),
        *([("printed", _printed)] * printed),
        *([("as printed", lambda row: yes_or_no(as_printed(row)))] * judged),
    )
    where = listed[0].text("{number} blocks of {blocks}") if listed else ""
    meaning = "PLB saved: of the privacy loss budget, what the chain knows when it decides, in the mean over blocks."
    out.print(drawn(f"{title}: Table 7, percent; {where}", choices, listed, notes=[meaning]))
    columns: Columns = (
        (setting, "{name}"),
        ("chain", partial(_at_margin, "chain", PLAIN)),
        (f"chain, {SURE:g}σ", partial(_at_margin, "chain", SURE)),
        ("thresholds, tuned", "{tuned:.2f}"),
        ("best thresholds", "{best:.2f}"),
        ("best, noisy counts", "{noisy:.2f}"),
        ("too fine", partial(_at_margin, "finer", PLAIN)),
        (f"too fine, {SURE:g}σ", partial(_at_margin, "finer", SURE)),
        *([("printed: chain, thresholds", "{printed.accuracy}, {printed.thresholds}")] * printed),
    )
    out.print(drawn(f"{title}: Figure 1, percent of right choices", columns, listed))
    if listed:
        print_lines(out, *([_differences(listed)] if printed else []), _reading(listed))


def _reading(rows: Sequence[Row]) -> str:
    shares = ", ".join(f"{share:g}" for share in sorted({row.setting.gamma for row in rows}))
    return (
        f"All blocks released along the chain in at most {max(row.seconds for row in rows):.2g} s. The thresholds see "
        f"exact counts (but for 'noisy counts', which cost γ = {shares} of ρ), and are judged on the blocks that they "
        "were tuned on; no thresholds do better there than the best ones."
    )


def _at_margin(name: str, margin: float, row: Row) -> str:
    return f"{getattr(row, name)[margin]:.2f}"


def _printed(row: Row) -> str:
    return ", ".join((*row.printed.shares, row.printed.accuracy, row.printed.saved))


def _differences(rows: Sequence[Row]) -> str:
    """Return how far the chain is from its printed numbers, and the thresholds from the best ones."""
    printed = max(abs(row.chain[PLAIN] - float(row.printed.accuracy)) for row in rows)
    tuned, noisy = (max(abs(row.best - getattr(row, name)) for row in rows) for name in ("tuned", "noisy"))
    return (
        f"The chain is within {printed:.2f} points of the printed accuracy at every ρ; the best thresholds are within "
        f"{tuned:.2f} of the tuned ones, and for noisy counts within {noisy:.2f} of those for exact ones."
    )


# The halves of Tables 2 to 6 in a terminal, and the sheets.

LEGEND = (
    "1st: percent of blocks for which the first mechanism is right. Right: percent of right choices from the common "
    f"mechanism's answers, without a margin and with {SURE:g} standard deviations of it (section 6.1). The noise of a "
    f"coarse answer under the finer mechanism is that of {SUMMED}, as in the published code, or of {ESTIMATED}."
)


def _show_halves(out: Console, title: str, rows: Iterator[Row]) -> None:
    print_lines(out, title, LEGEND, "")
    listed: list[Row] = []
    for half in rows:
        listed.append(half)
        columns: Columns = (
            (OWN if half.own else half.table.varied, "{name}"),
            *([] if half.own else [("printed: 1st, right", "{printed[0]}, {printed[2]}")]),
            *(
                (heading.format(reading), f"{{{reading}.{value}:.2f}}")
                for reading in (SUMMED, ESTIMATED)
                for heading, value in (("{}: 1st", "first"), ("right", "plain"), (f"right, {SURE:g}σ", "sure"))
            ),
            *([("as printed", lambda row: yes_or_no(half_fits(row)))] if half.judged else []),
        )
        named = f"Your grid, {half.table.choice}" if half.own else half.table.title
        out.print(drawn(half.text(f"{named}; {{number}} blocks of {{blocks}}"), columns, half.parts))
        budget = "" if half.own or half.table.varied == instances.RHO else f"ρ = {half.table.fixed.rho:g}; "
        released = "all blocks released in {seconds:.2g} s; common mechanism certified to {gap:.0e}{mark}"
        out.print(half.text(f"  {budget}{released}"))
    unprinted = any(half.own for half in listed)
    if listed and not unprinted:
        print_lines(out, _summary(listed))
    if not (unprinted or all(half.real for half in listed)):
        print_lines(
            out, "Synthetic blocks only look like the paper's, so there is no verdict; --data FILE takes real ones."
        )


def _summary(halves: Sequence[Row]) -> str:
    """Return how far from the printed numbers all rows are, and the cost of the margin."""
    rows = [(row.printed, row.values[SUMMED]) for half in halves for row in half.parts]
    first, right = (
        max(abs(getattr(outcome, name) - float(printed[place])) for printed, outcome in rows)
        for name, place in (("first", 0), ("plain", 2))
    )
    losses = sorted(outcome.plain - outcome.sure for _, outcome in rows)
    return (
        f"{SUMMED.capitalize()}: within {first:.2f} points of the {len(rows)} printed shares, and {right:.2f} of the "
        f"accuracies. The margin costs {losses[0]:.2f} to {losses[-1]:.2f} points of accuracy, {median(losses):.2f} in "
        "the median."
    )


FILES = ("data", "grid")  # the options of sheets on blocks of a population

SHEETS = {
    "hisrace": Sheet(f"{instances.CMN}, Tables 2 to 4", partial(halves, "HisRace"), _show_halves, options=FILES),
    "brazil": Sheet(f"{instances.CMN}, Tables 5 and 6", partial(halves, "Brazil"), _show_halves, options=FILES),
    "thresholds": Sheet(instances.CMN, rows, show, picture, options=FILES),
}
