"""The common-mechanism paper's tables and figures: the tasks of each, and how it looks in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

import numpy as np
from rich.console import Console

from dualmech.crosscheck.instances.common import CMN, RHO
from dualmech.crosscheck.printing import Interval, print_lines, table, yes_or_no
from dualmech.crosscheck.sheet import Columns, Row, Sheet, drawn, one_table
from dualmech.studies.papers.common import census, decisions, examples
from dualmech.studies.papers.common.decisions import ESTIMATED, PLAIN, SUMMED, SURE

SAVED = (
    "%PLB saved: what it would cost to decide by a mechanism of its own instead, in percent of the privacy loss budget "
    "(PLB) of the mechanisms to choose from."
)


EXAMPLES: Columns = (
    ("example", "{example}"),
    ("statement", "{statement}"),
    ("off by", "{gap:.0e}"),
    ("holds", lambda row: yes_or_no(row.sound)),
    ("as printed", lambda row: yes_or_no(row.sound and row.printed)),
)


ELLIPSES: Columns = (
    ("covariances", "{name}"),
    ("least trace", lambda row: f"{row.covariance.trace():.6f}"),
    ("of the other basis", lambda row: f"{row.other.trace():.6f}"),
    ("of the least volume", lambda row: f"{row.volume.trace():.6f}"),
    ("area over the trace's", lambda row: f"{(np.linalg.det(row.volume) / np.linalg.det(row.covariance)) ** 0.5:.6f}"),
    ("gap", "{gap:.0e}"),
    ("all minimal", lambda row: yes_or_no(row.certified)),
)


def _saved(name: str, row: Row) -> str:
    return f"{_percent(row.readings[name])}{'' if census.fits(row, name) else ' NO'}"


AGREED: Columns = (
    ("layers agree", lambda row: Row.compared({}, 0.0, row.layers).text("{verdict}") if row.layers else "not asked"),
    ("maximal", lambda row: yes_or_no(row.maximal)),
)

SAVINGS: Columns = (
    ("choice", "{choice}"),
    ("printed", "{printed}"),
    *((name, partial(_saved, name)) for name in (census.OWN, census.BASIS, census.PRIMARY)),
    *AGREED,
    ("certified", lambda row: "yes" if row.certified else "wide"),
)


def _percent(interval: Interval) -> str:
    low, high = (f"{end:.4f}" for end in interval)
    return f"{low} %" if low == high else f"{low} to {high} %"


def _show_census(out: Console, title: str, rows: Iterator[Row]) -> None:
    for census_row in rows:
        choices = range(len(census_row.parts[0].costs))
        columns: Columns = (
            ("chain", "{name}{mark}"),
            *((f"decision {place + 1}", partial(_cost, place)) for place in choices),
            ("shared buckets left out", lambda row: ", ".join(f"{100 * cost:.4f} %" for cost in row.unshared)),
            *AGREED,
            ("gap", "{gap:.0e}"),
            ("seconds", "{seconds:.2g}"),
        )
        out.print(drawn(f"{title}: what a decision would cost otherwise, certified", columns, census_row.parts))
        readings = list(census_row.rows[0].readings)
        columns = (("ρ", "{rho}"), ("printed", "{printed}"), *((name, partial(_reading, name)) for name in readings))
        out.print(drawn(f"{title}: %PLB saved from the shares in the same row", columns, census_row.rows))
        for name in readings:
            fitting = sum(census.fits(row, name) for row in census_row.rows)
            apart = sum(bool(census.misprint(row, name)) for row in census_row.rows)
            print_lines(
                out, f"{name}: {fitting} of {len(census_row.rows)} rows fit, {apart} more would with one digit changed."
            )
    print_lines(
        out, SAVED, "NO: no shares that round to the printed ones give it; in brackets, a number that they give."
    )


def _cost(place: int, row: Row) -> str:
    low, high = row.costs[place]
    return _percent((100 * low, 100 * high))


def _reading(name: str, row: Row) -> str:
    low, high = row.readings[name]
    text = f"{low:.3f} to {high:.3f}"
    if census.fits(row, name):
        return text
    misprint = census.misprint(row, name)
    return f"{text} NO" + (f" ({misprint})" if misprint else "")


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
        headings = [half.table.varied, *([] if half.own else ["printed: 1st, right"])]
        for name in (SUMMED, ESTIMATED):
            headings += [f"{name}: 1st", "right", f"right, {SURE:g}σ"]
        headings += ["as printed"] if half.judged else []
        named = f"{half.table.title}; {half.number} blocks of {half.blocks}"
        out.print(table(named, headings, (_accuracies(half, row) for row in half.rows)))
        budget = "" if half.own or half.table.varied == RHO else f"ρ = {half.table.fixed.rho:g}; "
        released = "all blocks released in {seconds:.2g} s; common mechanism certified to {gap:.0e}{mark}"
        out.print(half.text(f"  {budget}{released}"))
    unprinted = any(half.own for half in listed)
    if listed and not unprinted:
        print_lines(out, _summary(listed))
    if not (unprinted or all(half.real for half in listed)):
        print_lines(
            out, "Synthetic blocks only look like the paper's, so there is no verdict; --data FILE takes real ones."
        )


def _summary(rows: Sequence[Row]) -> str:
    """Return how far from the printed numbers all rows are, and the cost of the margin."""
    apart = [decisions.apart(half, row) for half in rows for row in half.table.rows]
    accuracies = [row[SUMMED].accuracy for half in rows for row in half.rows.values()]
    losses = sorted(accuracy[PLAIN] - accuracy[SURE] for accuracy in accuracies)
    return (
        f"{SUMMED.capitalize()}: within {max(share for share, _ in apart):.2f} points of the {len(apart)} printed "
        f"shares, and {max(right for _, right in apart):.2f} of the accuracies. The margin costs {losses[0]:.2f} to "
        f"{losses[-1]:.2f} points of accuracy, {median(losses):.2f} in the median."
    )


def _accuracies(half: Row, row: str) -> list[str]:
    shown = [row]
    if printed := half.table.printed(row):
        shown.append(f"{printed[0]}, {printed[2]}")
    for outcome in (half.rows[row][name] for name in (SUMMED, ESTIMATED)):
        numbers = (outcome.first, outcome.accuracy[PLAIN], outcome.accuracy[SURE])
        shown += [f"{number:.2f}" for number in numbers]
    return shown + ([yes_or_no(decisions.half_fits(half, row))] if half.judged else [])


FILES = ("data", "grid")  # the options of sheets on blocks of a population

SHEETS = {
    "examples": Sheet(
        f"{CMN}, examples 3.3, 3.8 and 3.12",
        examples.examples,
        one_table(
            EXAMPLES,
            "Last column: whether the statement holds as the converted text has it, which lost rows of some matrices.",
            parts=True,
            words=("example", "statement"),
        ),
    ),
    "ellipses": Sheet(
        "Ellipses and their minimal upper bounds", examples.tasks, one_table(ELLIPSES, words=()), examples.picture
    ),
    "saved": Sheet(
        f"{CMN}, %PLB saved",
        census.savings,
        one_table(
            SAVINGS,
            f"{SAVED}\nNO: the printed number is no rounding of it. A decision looks at the answers to the primary "
            "analysis alone, so the last of the three is what the alternate approach has to spend.",
            heading=": percent of the budget, certified",
        ),
    ),
    "census": Sheet(f"{CMN}, Table 7", census.census, _show_census),
    "hisrace": Sheet(f"{CMN}, Tables 2 to 4", partial(decisions.halves, "HisRace"), _show_halves, options=FILES),
    "brazil": Sheet(f"{CMN}, Tables 5 and 6", partial(decisions.halves, "Brazil"), _show_halves, options=FILES),
    "thresholds": Sheet(CMN, decisions.rows, decisions.show, decisions.picture, options=FILES),
}
