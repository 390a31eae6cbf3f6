"""The common-mechanism paper's tables and figures: what each asks to be computed, and how it looks in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from dualmech.crosscheck.agreement import VERDICTS, Agreement
from dualmech.crosscheck.papers.common import (
    census,
    examples,
    population,
    saved,
)
from dualmech.crosscheck.papers.common import (
    decisions as common_decisions,
)
from dualmech.crosscheck.papers.common import (
    thresholds as common_thresholds,
)
from dualmech.crosscheck.papers.common.census import Census
from dualmech.crosscheck.papers.common.decisions import (
    ESTIMATED,
    MARGINS,
    SUMMED,
    AccuracyHalf,
)
from dualmech.crosscheck.papers.common.examples import Example
from dualmech.crosscheck.papers.common.instances import (
    BRAZIL_TABLE,
    BUCKETS,
    CENSUS_TABLE,
    HISRACE,
)
from dualmech.crosscheck.papers.common.printed import CMN, RHO
from dualmech.crosscheck.papers.common.saved import Saving
from dualmech.crosscheck.papers.common.thresholds import ThresholdRow
from dualmech.crosscheck.papers.printed import Interval

PLAIN, SURE = MARGINS
"""The two margins of a decision: none, and three standard deviations."""


def _table(title: str, first: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column(first)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"


def _layers(outcome: Agreement | None) -> str:
    return VERDICTS[outcome] if outcome else "not asked"


def _show_examples(out: Console, title: str, rows: Iterator[Example]) -> None:
    table = _table(title, "example", ("statement", "off by", "holds", "as printed"))
    table.columns[1].justify = "left"
    for row in rows:
        for fact in row.facts:
            holds = fact.outcome is Agreement.AGREE
            table.add_row(
                fact.example,
                fact.statement,
                f"{fact.difference:.0e}",
                _yes(holds),
                _yes(holds and fact.printed),
            )
    out.print(table)
    out.print(
        "Last column: whether the statement holds as the text at hand has it, which lost rows of some matrices."
    )


def _show_saved(out: Console, title: str, rows: Iterator[Saving]) -> None:
    found = list(rows)
    headings = (
        "printed",
        saved.OWN,
        saved.BASIS,
        saved.PRIMARY,
        "layers agree",
        "maximal",
        "certified",
    )
    table = _table(f"{title}: percent of the budget, certified", "choice", headings)
    for row in found:
        shown = [f"{_percent(row.readings[name])}{'' if row.fits(name) else ' NO'}" for name in headings[1:4]]
        certified = "yes" if row.outcome is Agreement.AGREE else "wide"
        table.add_row(row.choice, row.printed, *shown, _layers(row.layers), _yes(row.maximal), certified)
    out.print(table)
    out.print(
        "NO: the printed number is no rounding of it. A decision looks at the answers to the primary analysis alone,\n"
        "so the last of the three is what the alternate approach has to spend."
    )


def _percent(interval: Interval) -> str:
    low, high = (f"{end:.4f}" for end in interval)
    return f"{low} %" if low == high else f"{low} to {high} %"


def _show_census(out: Console, title: str, rows: Iterator[Census]) -> None:
    for found in rows:
        decisions = [f"decision {number}" for number in range(1, len(found.stages[0].costs) + 1)]
        headings = (*decisions, "shared buckets left out", "layers agree", "maximal", "gap", "seconds")
        table = _table(f"{title}: what a decision would cost otherwise, certified", "chain", headings)
        for each in found.stages:
            table.add_row(
                each.name + ("" if each.certified else " WIDE"),
                *(_percent((100 * low, 100 * high)) for low, high in each.costs),
                ", ".join(f"{100 * cost:.4f} %" for cost in each.unshared),
                _layers(each.layers),
                _yes(each.maximal),
                f"{each.gap:.0e}",
                f"{each.seconds:.2g}",
            )
        out.print(table)
        readings = list(found.rows[0].readings)
        table = _table(f"{title}: %PLB saved from the shares in the same row", "ρ", ("printed", *readings))
        for row in found.rows:
            table.add_row(row.rho, row.printed.saved, *(_reading(row, name) for name in readings))
        out.print(table)
        for name in readings:
            fitting = sum(row.fits(name) for row in found.rows)
            apart = sum(bool(row.misprint(name)) for row in found.rows)
            out.print(
                f"{name}: {fitting} of {len(found.rows)} rows fit, {apart} more would with one digit changed."
            )
    out.print("NO: no shares that round to the printed ones give it; in brackets, a number that they give.")


def _reading(row: census.SavedRow, name: str) -> str:
    low, high = row.readings[name]
    text = f"{low:.3f} to {high:.3f}"
    if row.fits(name):
        return text
    misprint = row.misprint(name)
    return f"{text} NO" + (f" ({misprint})" if misprint else "")


LEGEND = (
    "1st: percent of blocks for which the first mechanism is right. Right: percent of right choices from the common\n"
    f"mechanism's answers, without a margin and with {SURE:g} standard deviations of it (section 6.1). The noise of a\n"
    f"coarse answer under the finer mechanism is that of {SUMMED}, as in the published code, or of {ESTIMATED}."
)


def _show_halves(out: Console, title: str, rows: Iterator[AccuracyHalf]) -> None:
    for line in (title, LEGEND, ""):
        out.print(line, markup=False)
    synthetic = False
    for half in rows:
        synthetic, fixed = synthetic or not half.real, half.table.fixed
        named = f"Table {half.table.number}, {half.table.choice}; {half.number} blocks of {half.blocks}"
        headings = ["printed: 1st, right"]
        for name in (SUMMED, ESTIMATED):
            headings += [f"{name}: 1st", "right", f"right, {SURE:g}σ"]
        table = _table(named, half.table.varied, [*headings, *(["as printed"] if half.real else [])])
        for row, outcomes in half.rows.items():
            first, _, accuracy = half.table.rows[row]
            shown = [f"{first}, {accuracy}"]
            for name in (SUMMED, ESTIMATED):
                outcome = outcomes[name]
                numbers = (outcome.first, outcome.accuracy[PLAIN], outcome.accuracy[SURE])
                shown += [f"{number:.2f}" for number in numbers]
            table.add_row(row, *shown, *([_yes(half.fits(row))] if half.real else []))
        out.print(table)
        budget = "" if half.table.varied == RHO else f"ρ = {fixed.rho:g}; "
        out.print(
            f"  {budget}all blocks released in {half.seconds:.2g} s; "
            f"common mechanism certified to {half.gap:.0e}{'' if half.certified else ' WIDE'}"
        )
    if synthetic:
        out.print(
            "Synthetic blocks only look like the paper's, so there is no verdict; --data FILE takes real ones."
        )


def _show_thresholds(out: Console, title: str, rows: Iterator[ThresholdRow]) -> None:
    found = list(rows)
    where = f"{found[0].number} blocks of {found[0].blocks}" if found else ""
    real = any(row.real for row in found)
    headings = (*BUCKETS, "right", "PLB saved", "printed", *(["as printed"] if real else []))
    table = _table(f"{title}: Table 7, percent; {where}", "ρ", headings)
    for row in found:
        printed = ", ".join((*row.printed.shares, row.printed.accuracy, row.printed.saved))
        table.add_row(
            row.rho + ("" if row.certified else " WIDE"),
            *(f"{number:.2f}" for number in (*row.shares, row.chain[PLAIN], row.saved)),
            printed,
            *([_yes(row.fits)] if real else []),
        )
    out.print(table)
    headings = (
        "chain",
        f"chain, {SURE:g}σ",
        "thresholds, tuned",
        "best thresholds",
        "too fine",
        f"too fine, {SURE:g}σ",
    )
    table = _table(
        f"{title}: Figure 1, percent of right choices", "ρ", (*headings, "printed: chain, thresholds")
    )
    for row in found:
        numbers = (row.chain[PLAIN], row.chain[SURE], row.tuned, row.best, row.finer[PLAIN], row.finer[SURE])
        printed = f"{row.printed.accuracy}, {row.printed.thresholds}"
        table.add_row(row.rho, *(f"{number:.2f}" for number in numbers), printed)
    out.print(table)
    seconds = max((row.seconds for row in found), default=0.0)
    out.print(
        f"All blocks released along the chain in at most {seconds:.2g} s. The thresholds see exact counts, and are "
        "judged on the blocks that they were\n"
        "tuned on; no thresholds do better there than the best ones."
    )


Parts = tuple[
    str, Callable[[bool], Sequence[Callable[[], Any]]], Callable[[Console, str, Iterator[Any]], None]
]

EXAMPLES: Parts = (f"{CMN}, examples 3.3, 3.8 and 3.12", examples.examples, _show_examples)
SAVED: Parts = (f"{CMN}, %PLB saved", saved.savings, _show_saved)
CENSUS: Parts = (f"{CMN}, Table 7", census.census, _show_census)


def hisrace(path: str | None = None) -> Parts:
    """Return the sheet of Tables 2 to 4, on a file of blocks where one is given; one of other cells is refused."""
    if path is not None:
        population.read(path, HISRACE.cells)
    tasks = partial(common_decisions.halves, "HisRace", path=path)
    return f"{CMN}, Tables 2 to 4", tasks, _show_halves


def brazil(path: str | None = None) -> Parts:
    """Return the sheet of Tables 5 and 6, on a file of blocks where one is given; one of other cells is refused."""
    if path is not None:
        population.read(path, BRAZIL_TABLE.cells)
    tasks = partial(common_decisions.halves, "Brazil", path=path)
    return f"{CMN}, Tables 5 and 6", tasks, _show_halves


def thresholds(path: str | None = None) -> Parts:
    """Return the sheet of Figure 1, on a file of blocks where one is given; one of other cells is refused."""
    if path is not None:
        population.read(path, CENSUS_TABLE.cells)
    return CMN, partial(common_thresholds.rows, path=path), _show_thresholds
