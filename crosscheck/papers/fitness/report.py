"""The fitness-for-use paper's tables and figures: what each asks to be computed, and how it looks in a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import partial

from rich.console import Console

from dualmech.crosscheck.agreement import VERDICTS
from dualmech.crosscheck.papers.fitness import figures, ratios
from dualmech.crosscheck.papers.fitness.figures import (
    COSTS,
    EPSILONS,
    FIGURE_2,
    FIGURE_3,
    Curve,
    Figure,
    FigurePoint,
)
from dualmech.crosscheck.papers.fitness.instances import CONVERGENCE, FFU, RATIO_TABLES, TABLE_2, RatioTable
from dualmech.crosscheck.papers.fitness.ratios import (
    CA_WEIGHTINGS,
    LEGEND,
    PROGRAMS,
    LayerAnswer,
    OptimumRow,
    PublishedRun,
    RaceRow,
    RatioRow,
    agreed_digits,
    lines,
)
from dualmech.crosscheck.papers.sheet import Sheet
from dualmech.crosscheck.printing import interval_text, print_lines, table, yes_or_no

QUICK_CELLS = 16  # largest size of Table 2 in a quick run

LOGDET_CELLS, QUICK_LOGDET_CELLS = 16, 8
"""Largest size of Table 2 at which the reference layer follows the central path, too."""

QUICK_ROWS = {5: 64, 6: 64, 7: 64, 8: 64, 10: 6, 11: 64}
"""Largest parameter of a ratio table's rows in a quick run."""

QUICK_SEEDS = 3

RACE_SECONDS, QUICK_RACE_SECONDS = 30.0, 2.0
"""Limit of each run of Table 3; the paper let gradient descent run for minutes."""

RUNS, QUICK_RUNS = (256, 120.0), (64, 20.0)
"""Cells up to which SM-II is run for the ratio tables, and the seconds it gets, and both in a quick run; a time limit
that is asked for holds for all sizes."""

DIGITS = 9
"""Significant digits of an interval's ends; they are rounded outwards, so what is printed is still proven."""


def _privacy_costs(quick: bool, limit: float | None = None) -> list[Callable[[], OptimumRow]]:
    cases = [case for case in TABLE_2 if not quick or case.problem().workload.shape[1] <= QUICK_CELLS]
    seconds = limit or (QUICK_RUNS if quick else RUNS)[1]
    centred = QUICK_LOGDET_CELLS if quick else LOGDET_CELLS
    return [partial(ratios.solve_case, case, seconds, centred) for case in cases]


def _show_privacy_costs(out: Console, title: str, found: Iterator[OptimumRow]) -> None:
    solved = [*found]
    printed = list(TABLE_2[0].printed)
    drawn = table(
        f"{title} (squared privacy cost)",
        ("d", *(f"{name}, printed" for name in printed), *PROGRAMS, "fast", "layers agree", "printed holds"),
        (_privacy_cost(row, printed) for row in solved),
        words=(),
        show_lines=True,
        notes=(
            "Proven interval, gap, seconds. The paper calls Δ the privacy cost (section 3.2), and prints its square.",
        ),
    )
    out.print(drawn)
    headings = (
        "d",
        "B",
        "Hessian",
        "squared cost",
        "above the optimum",
        "proven gap",
        "steps",
        "rounds as printed",
    )
    notes = (
        "The text names no basis for this table, and in general B = I or U, the upper triangle of ones; W is the "
        "workload. CAPPED: stopped before its own rule ended it.",
    )
    drawn = table(
        "SM-II run here, with the parameters of the text",
        headings,
        (_published_run(row, run) for row in solved for run in row.runs),
        words=("B", "Hessian"),
        notes=notes,
    )
    out.print(drawn)


def _published_run(row: OptimumRow, run: PublishedRun) -> tuple[str, ...]:
    low, _ = run.excess(row.optimum)
    return (
        str(row.size),
        run.basis,
        run.settings.removesuffix(" Hessian"),
        f"{run.objective:.6f}",
        f"{100 * low:.3f} %",
        f"{run.gap:.1e}",
        f"{run.steps}, {run.seconds:.2g} s{', CAPPED' if run.capped else ''}",
        yes_or_no(row.case.confirms("SM-II", (run.objective, run.objective))),
    )


def _privacy_cost(row: OptimumRow, printed: Sequence[str]) -> tuple[str, ...]:
    return (
        str(row.size),
        *(row.case.printed[column] for column in printed),
        *(_entry(row.answer_of(name)) for name in (*PROGRAMS, "fast")),
        *(VERDICTS[row.outcome], yes_or_no(all(row.confirmed(column) for column in printed))),
    )


def _entry(entry: LayerAnswer | None) -> str:
    if entry is None:
        return "not run"
    low, high = entry.interval
    ends = f"[{_rounded_text(low, ROUND_FLOOR)},\n{_rounded_text(high, ROUND_CEILING)}]"
    return f"{ends}{'' if entry.certified else ' wide'}\ngap {entry.gap:.1e}\n{entry.seconds:.3g} s"


def _rounded_text(value: float, rounding: str) -> str:
    return str(Context(prec=DIGITS, rounding=rounding).create_decimal(Decimal(value)))


def _race(quick: bool, limit: float | None = None) -> list[Callable[[], RaceRow]]:
    seconds = limit or (QUICK_RACE_SECONDS if quick else RACE_SECONDS)
    return [partial(ratios.race, size, seconds) for size in CONVERGENCE]


def _show_race(out: Console, title: str, found: Iterator[RaceRow]) -> None:
    drawn = (
        (
            str(row.size),
            *(f"{seconds} s" for seconds in row.printed),
            *(
                f"{entry.seconds:.2g} s, {entry.gap:.0e}{', CAPPED' if entry.seconds >= row.limit else ''}"
                for entry in row.entries
            ),
        )
        for row in found
    )
    headings = ("d", "descent, printed", "SM-II, printed", "descent", "SM-II", "dual, certified")
    out.print(table(f"{title}: seconds, and the gap proven", headings, drawn, words=()))


def _ratios(table: RatioTable, quick: bool, limit: float | None = None) -> list[Callable[[], RatioRow]]:
    chosen = [row for row in table.rows if not quick or row <= QUICK_ROWS.get(table.number, row)]
    seeds, (cells, seconds) = (QUICK_SEEDS, QUICK_RUNS) if quick else (None, RUNS)
    runs = (cells, seconds) if limit is None else (math.inf, limit)
    return [partial(ratios.solve_row, table, row, seeds, runs) for row in chosen]


def _show_ratios(subject: str, out: Console, title: str, found: Iterator[RatioRow]) -> None:
    print_lines(out, title, f"{subject[0].upper()}{subject[1:]}.", LEGEND)
    for row in found:
        print_lines(out, "", *lines(row, out.width), whole=True)
    print_lines(out, "")


def _curves(quick: bool) -> list[Callable[[], Curve]]:
    return [partial(figures.curve, cost) for cost in COSTS]


def _show_curves(out: Console, title: str, found: Iterator[Curve]) -> None:
    drawn = (
        (f"{row.privacy_cost:g}", *(f"{delta:.4e}" for delta in row.deltas), VERDICTS[row.outcome])
        for row in found
    )
    headings = ("Δ", *(f"ε = {epsilon:g}" for epsilon in EPSILONS), "ε found again")
    out.print(table(f"{title}: δ by ε", headings, drawn, words=()))


def _show_points(figure: Figure, out: Console, title: str, found: Iterator[FigurePoint]) -> None:
    headings = (figure.varied, "squared cost", *CA_WEIGHTINGS, "certified squared cost", "certified")
    drawn = (_point(figure, row) for row in found)
    out.print(table(f"{title}: {figure.subject}", headings, drawn, words=()))


def _point(figure: Figure, row: FigurePoint) -> tuple[str, ...]:
    certified = ("", "")
    if row.reading:
        held = ", ".join(agreed_digits(row.reading.ratio(name)) for name in CA_WEIGHTINGS)
        certified = (interval_text(row.reading.cost), f"{held}: {VERDICTS[row.outcome]}")
    numbers = (row.squared_cost, *(row.curves[name] for name in CA_WEIGHTINGS))
    return str(figure.x(row)), *(f"{number:.6f}" for number in numbers), *certified


SHEETS = {
    "table2": Sheet(f"{FFU}, Table 2", _privacy_costs, _show_privacy_costs, timed=True),
    "table3": Sheet(f"{FFU}, Table 3", _race, _show_race, timed=True),
    **{
        f"table{each.number}": Sheet(
            each.source, partial(_ratios, each), partial(_show_ratios, each.subject), timed=True
        )
        for each in RATIO_TABLES
    },
    "figure1": Sheet(f"{FFU}, Figure 1", _curves, _show_curves, figures.draw_curves),
    **{
        f"figure{each.number}": Sheet(
            f"{FFU}, Figure {each.number}",
            each.tasks,
            partial(_show_points, each),
            partial(figures.draw_points, each),
        )
        for each in (FIGURE_2, FIGURE_3)
    },
}
