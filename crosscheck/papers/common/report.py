"""The common-mechanism paper's tables and figures: what each asks to be computed, and how it looks in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

from rich.console import Console

from dualmech.crosscheck.agreement import VERDICTS, Agreement
from dualmech.crosscheck.papers.common import census, decisions, examples
from dualmech.crosscheck.papers.common.decisions import ESTIMATED, PLAIN, SUMMED, SURE, AccuracyHalf
from dualmech.crosscheck.papers.common.instances import BRAZIL_TABLE, CENSUS_TABLE, CMN, HISRACE, RHO
from dualmech.crosscheck.papers.sheet import Sheet, Tasks
from dualmech.crosscheck.printing import Interval, print_lines, table, uncertified_mark, yes_or_no
from dualmech.workloads.domain import Domain

SAVED = (
    "%PLB saved: what it would cost to decide by a mechanism of its own instead, in percent of the privacy loss budget "
    "(PLB) of the mechanisms to choose from."
)


def _layers(outcome: Agreement | None) -> str:
    return VERDICTS[outcome] if outcome else "not asked"


def _show_examples(out: Console, title: str, rows: Iterator[examples.Example]) -> None:
    drawn = []
    for fact in (fact for row in rows for fact in row.facts):
        holds = fact.outcome is Agreement.AGREE
        off = f"{fact.difference:.0e}"
        drawn.append((fact.example, fact.statement, off, yes_or_no(holds), yes_or_no(holds and fact.printed)))
    headings = ("example", "statement", "off by", "holds", "as printed")
    out.print(table(title, headings, drawn, words=headings[:2]))
    print_lines(
        out,
        "Last column: whether the statement holds as the text at hand has it, which lost rows of some matrices.",
    )


def _show_ellipses(out: Console, title: str, rows: Iterator[examples.Ellipses]) -> None:
    drawn = (
        (
            *(row.name, f"{row.covariance.trace():.6f}", f"{row.other.trace():.6f}", f"{row.gap:.0e}"),
            yes_or_no(row.outcome is Agreement.AGREE),
        )
        for row in rows
    )
    headings = ("covariances", "least trace", "of the other basis", "gap", "both minimal")
    out.print(table(title, headings, drawn, words=()))


def _show_saved(out: Console, title: str, rows: Iterator[census.Saving]) -> None:
    readings = (census.OWN, census.BASIS, census.PRIMARY)
    drawn = (
        (
            *(row.choice, row.printed),
            *(f"{_percent(row.readings[name])}{'' if row.fits(name) else ' NO'}" for name in readings),
            *(_layers(row.layers), yes_or_no(row.maximal)),
            "yes" if row.outcome is Agreement.AGREE else "wide",
        )
        for row in rows
    )
    headings = ("choice", "printed", *readings, "layers agree", "maximal", "certified")
    out.print(table(f"{title}: percent of the budget, certified", headings, drawn))
    print_lines(
        out,
        SAVED,
        "NO: the printed number is no rounding of it. A decision looks at the answers to the primary analysis alone, "
        "so the last of the three is what the alternate approach has to spend.",
    )


def _percent(interval: Interval) -> str:
    low, high = (f"{end:.4f}" for end in interval)
    return f"{low} %" if low == high else f"{low} to {high} %"


def _show_census(out: Console, title: str, rows: Iterator[census.Census]) -> None:
    for found in rows:
        out.print(_stages(title, found.stages))
        readings = list(found.rows[0].readings)
        drawn = (
            (row.rho, row.printed.saved, *(_reading_text(row, name) for name in readings))
            for row in found.rows
        )
        headings = ("ρ", "printed", *readings)
        out.print(table(f"{title}: %PLB saved from the shares in the same row", headings, drawn))
        for name in readings:
            fitting = sum(row.fits(name) for row in found.rows)
            apart = sum(bool(row.misprint(name)) for row in found.rows)
            print_lines(
                out,
                f"{name}: {fitting} of {len(found.rows)} rows fit, {apart} more would with one digit changed.",
            )
    print_lines(
        out,
        SAVED,
        "NO: no shares that round to the printed ones give it; in brackets, a number that they give.",
    )


def _stages(title: str, stages: Sequence[census.Stages]) -> Any:
    choices = (f"decision {number}" for number in range(1, len(stages[0].costs) + 1))
    headings = ("chain", *choices, "shared buckets left out", "layers agree", "maximal", "gap", "seconds")
    drawn = (
        (
            each.name + uncertified_mark(each.certified),
            *(_percent((100 * low, 100 * high)) for low, high in each.costs),
            ", ".join(f"{100 * cost:.4f} %" for cost in each.unshared),
            *(_layers(each.layers), yes_or_no(each.maximal), f"{each.gap:.0e}", f"{each.seconds:.2g}"),
        )
        for each in stages
    )
    return table(f"{title}: what a decision would cost otherwise, certified", headings, drawn)


def _reading_text(row: census.SavedRow, name: str) -> str:
    low, high = row.readings[name]
    text = f"{low:.3f} to {high:.3f}"
    if row.fits(name):
        return text
    misprint = row.misprint(name)
    return f"{text} NO" + (f" ({misprint})" if misprint else "")


LEGEND = (
    "1st: percent of blocks for which the first mechanism is right. Right: percent of right choices from the common "
    f"mechanism's answers, without a margin and with {SURE:g} standard deviations of it (section 6.1). The noise of a "
    f"coarse answer under the finer mechanism is that of {SUMMED}, as in the published code, or of {ESTIMATED}."
)


def _show_halves(out: Console, title: str, rows: Iterator[AccuracyHalf]) -> None:
    print_lines(out, title, LEGEND, "")
    found: list[AccuracyHalf] = []
    for half in rows:
        found.append(half)
        headings = [half.table.varied, *([] if half.own else ["printed: 1st, right"])]
        for name in (SUMMED, ESTIMATED):
            headings += [f"{name}: 1st", "right", f"right, {SURE:g}σ"]
        headings += ["as printed"] if half.judged else []
        named = f"{half.table.title}; {half.number} blocks of {half.blocks}"
        out.print(table(named, headings, (_accuracies(half, row) for row in half.rows)))
        budget = "" if half.own or half.table.varied == RHO else f"ρ = {half.table.fixed.rho:g}; "
        out.print(
            f"  {budget}all blocks released in {half.seconds:.2g} s; "
            f"common mechanism certified to {half.gap:.0e}{uncertified_mark(half.certified)}"
        )
    own = any(half.own for half in found)
    if found and not own:
        print_lines(out, _summary(found))
    if not (own or all(half.real for half in found)):
        print_lines(
            out,
            "Synthetic blocks only look like the paper's, so there is no verdict; --data FILE takes real ones.",
        )


def _summary(found: Sequence[AccuracyHalf]) -> str:
    """Return how far from the printed numbers all rows are, and what the margin costs."""
    apart = [half.apart(row) for half in found for row in half.table.rows]
    accuracies = [row[SUMMED].accuracy for half in found for row in half.rows.values()]
    losses = sorted(accuracy[PLAIN] - accuracy[SURE] for accuracy in accuracies)
    return (
        f"{SUMMED.capitalize()}: within {max(share for share, _ in apart):.2f} points of the {len(apart)} printed "
        f"shares, and {max(right for _, right in apart):.2f} of the accuracies. The margin costs {losses[0]:.2f} to "
        f"{losses[-1]:.2f} points of accuracy, {median(losses):.2f} in the median."
    )


def _accuracies(half: AccuracyHalf, row: str) -> list[str]:
    shown = [row]
    if printed := half.table.printed(row):
        shown.append(f"{printed[0]}, {printed[2]}")
    for outcome in (half.rows[row][name] for name in (SUMMED, ESTIMATED)):
        numbers = (outcome.first, outcome.accuracy[PLAIN], outcome.accuracy[SURE])
        shown += [f"{number:.2f}" for number in numbers]
    return shown + ([yes_or_no(half.fits(row))] if half.judged else [])


def _of_blocks(
    source: str,
    show: Callable[[Console, str, Iterator[Any]], None],
    rows: Callable[..., Sequence[Callable[[], Any]]],
    domain: Domain,
    draw: Callable[[Any, Sequence[Any]], None] | None = None,
) -> Sheet:
    """Return a sheet of blocks: of a population, or on a file of them; one of other cells is refused."""

    def on_file(path: str) -> Tasks:
        census.read_counts(path, domain.cells)
        return partial(rows, path=path)

    def on_grid(grid: str, tasks: Tasks) -> Tasks:
        placed = partial(tasks, grid=grid)
        placed(True)  # refuses a grid that is none, before any work
        return placed

    return Sheet(source, rows, show, draw, on_file, on_grid)


SHEETS = {
    "examples": Sheet(f"{CMN}, examples 3.3, 3.8 and 3.12", examples.examples, _show_examples),
    "ellipses": Sheet(
        "Ellipses and their minimal upper bounds", examples.tasks, _show_ellipses, examples.picture
    ),
    "saved": Sheet(f"{CMN}, %PLB saved", census.savings, _show_saved),
    "census": Sheet(f"{CMN}, Table 7", census.census, _show_census),
    "hisrace": _of_blocks(
        f"{CMN}, Tables 2 to 4", _show_halves, partial(decisions.halves, "HisRace"), HISRACE
    ),
    "brazil": _of_blocks(
        f"{CMN}, Tables 5 and 6", _show_halves, partial(decisions.halves, "Brazil"), BRAZIL_TABLE
    ),
    "thresholds": _of_blocks(CMN, decisions.show, decisions.rows, CENSUS_TABLE, decisions.picture),
}
