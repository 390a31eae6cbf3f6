"""The fitness-for-use paper's tables and figures: what each asks to be computed, and how it looks in a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import partial

from rich.console import Console

from dualmech.crosscheck.papers.fitness import figures, ratios
from dualmech.crosscheck.papers.fitness.figures import COSTS, EPSILONS, FIGURE_2, FIGURE_3, Figure
from dualmech.crosscheck.papers.fitness.instances import CONVERGENCE, FFU, RATIO_TABLES, TABLE_2, RatioTable
from dualmech.crosscheck.papers.fitness.ratios import (
    CA_WEIGHTINGS,
    LEGEND,
    PROGRAMS,
    PublishedRun,
    agreed_digits,
    lines,
)
from dualmech.crosscheck.papers.sheet import Columns, Row, Sheet, Show, drawn, one_table
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


def _privacy_costs(quick: bool, limit: float | None = None) -> list[Callable[[], Row]]:
    cases = [case for case in TABLE_2 if not quick or case.problem().workload.shape[1] <= QUICK_CELLS]
    seconds = limit or (QUICK_RUNS if quick else RUNS)[1]
    centred = QUICK_LOGDET_CELLS if quick else LOGDET_CELLS
    return [partial(ratios.solve_case, case, seconds, centred) for case in cases]


def _show_privacy_costs(out: Console, title: str, found: Iterator[Row]) -> None:
    solved = [*found]
    printed = list(TABLE_2[0].printed)
    columns: Columns = (
        ("d", "{size}"),
        *((f"{name}, printed", f"{{case.printed[{name}]}}") for name in printed),
        *((name, partial(_entry, name)) for name in (*PROGRAMS, "fast")),
        ("layers agree", "{verdict}"),
        ("printed holds", lambda row: yes_or_no(all(row.case.confirms(name, row.optimum) for name in printed))),
    )
    notes = ["Proven interval, gap, seconds. The paper calls Δ the privacy cost (section 3.2), and prints its square."]
    out.print(drawn(f"{title} (squared privacy cost)", columns, solved, words=(), show_lines=True, notes=notes))
    headings = ("d", "B", "Hessian", "squared cost", "above the optimum", "proven gap", "steps", "rounds as printed")
    notes = [
        "The text names no basis for this table, and in general B = I or U, the upper triangle of ones; W is the "
        "workload. CAPPED: stopped before its own rule ended it."
    ]
    lines = (_published_run(row, run) for row in solved for run in row.runs)
    title = "SM-II run here, with the parameters of the text"
    out.print(table(title, headings, lines, words=("B", "Hessian"), notes=notes))


def _published_run(row: Row, run: PublishedRun) -> tuple[str, ...]:
    low, _ = run.excess(row.optimum)
    return (
        *(str(row.size), run.basis, run.settings.removesuffix(" Hessian"), f"{run.objective:.6f}"),
        *(f"{100 * low:.3f} %", f"{run.gap:.1e}"),
        f"{run.steps}, {run.seconds:.2g} s{', CAPPED' if run.capped else ''}",
        yes_or_no(row.case.confirms("SM-II", (run.objective, run.objective))),
    )


def _entry(name: str, row: Row) -> str:
    if name not in row.answers:
        return "not run"
    answer = row.answers[name]
    low, high = answer.interval
    ends = f"[{_rounded_text(low, ROUND_FLOOR)},\n{_rounded_text(high, ROUND_CEILING)}]"
    wide = "" if answer.certified else " wide"
    return answer.text(f"{ends}{wide}\ngap {{gap:.1e}}\n{{seconds:.3g}} s")


def _rounded_text(value: float, rounding: str) -> str:
    return str(Context(prec=DIGITS, rounding=rounding).create_decimal(Decimal(value)))


def _race(quick: bool, limit: float | None = None) -> list[Callable[[], Row]]:
    seconds = limit or (QUICK_RACE_SECONDS if quick else RACE_SECONDS)
    return [partial(ratios.race, size, seconds) for size in CONVERGENCE]


def _raced(name: str, row: Row) -> str:
    answer = row.answers[name]
    return str(answer.text(f"{{seconds:.2g}} s, {{gap:.0e}}{', CAPPED' if answer.seconds >= row.limit else ''}"))


RACE: Columns = (
    ("d", "{size}"),
    ("descent, printed", "{printed[0]} s"),
    ("SM-II, printed", "{printed[1]} s"),
    ("descent", partial(_raced, "softmax_gradient")),
    ("SM-II", partial(_raced, "softmax_newton")),
    ("dual, certified", partial(_raced, "dual")),
)


def _ratios(table: RatioTable, quick: bool, limit: float | None = None) -> list[Callable[[], Row]]:
    chosen = [row for row in table.rows if not quick or row <= QUICK_ROWS.get(table.number, row)]
    seeds, (cells, seconds) = (QUICK_SEEDS, QUICK_RUNS) if quick else (None, RUNS)
    runs = (cells, seconds) if limit is None else (math.inf, limit)
    return [partial(ratios.solve_row, table, row, seeds, runs) for row in chosen]


def _show_ratios(subject: str, out: Console, title: str, found: Iterator[Row]) -> None:
    print_lines(out, title, f"{subject[0].upper()}{subject[1:]}.", LEGEND)
    for row in found:
        print_lines(out, "", *lines(row, out.width), whole=True)
    print_lines(out, "")


def _curves(quick: bool) -> list[Callable[[], Row]]:
    return [partial(figures.curve, cost) for cost in COSTS]


CURVES: Columns = (
    ("Δ", "{privacy_cost:g}"),
    *((f"ε = {epsilon:g}", f"{{deltas[{place}]:.4e}}") for place, epsilon in enumerate(EPSILONS)),
    ("ε found again", "{verdict}"),
)


def _show_points(figure: Figure) -> Show:
    columns: Columns = (
        (figure.varied, lambda row: str(figure.x(row))),
        ("squared cost", "{squared_cost:.6f}"),
        *((name, f"{{curves[{name}]:.6f}}") for name in CA_WEIGHTINGS),
        ("certified squared cost", lambda row: interval_text(row.reading.cost) if row.reading else ""),
        ("certified", _certified),
    )
    return one_table(columns, heading=f": {figure.subject}", words=())


def _certified(row: Row) -> str:
    if row.reading is None:
        return ""
    return row.text(f"{', '.join(agreed_digits(row.reading.ratio(name)) for name in CA_WEIGHTINGS)}: {{verdict}}")


SHEETS = {
    "table2": Sheet(f"{FFU}, Table 2", _privacy_costs, _show_privacy_costs, timed=True),
    "table3": Sheet(
        f"{FFU}, Table 3", _race, one_table(RACE, heading=": seconds, and the gap proven", words=()), timed=True
    ),
    **{
        f"table{each.number}": Sheet(
            each.source, partial(_ratios, each), partial(_show_ratios, each.subject), timed=True
        )
        for each in RATIO_TABLES
    },
    "figure1": Sheet(f"{FFU}, Figure 1", _curves, one_table(CURVES, heading=": δ by ε", words=()), figures.draw_curves),
    **{
        f"figure{each.number}": Sheet(
            f"{FFU}, Figure {each.number}", each.tasks, _show_points(each), partial(figures.draw_points, each)
        )
        for each in (FIGURE_2, FIGURE_3)
    },
}
