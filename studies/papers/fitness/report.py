"""The fitness-for-use paper's tables and figures: the tasks of each, and how it looks in a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from rich.console import Console

from dualmech.crosscheck.instances.fitness import CONVERGENCE, FFU, RATIO_TABLES, RatioTable
from dualmech.crosscheck.printing import interval_text, print_lines
from dualmech.crosscheck.sheet import Columns, Row, Sheet, one_table
from dualmech.crosscheck.table2 import QUICK_SECONDS, SECONDS, TABLE
from dualmech.studies.papers.fitness import figures, ratios
from dualmech.studies.papers.fitness.figures import COSTS, EPSILONS, FIGURE_2, FIGURE_3, Figure
from dualmech.studies.papers.fitness.ratios import CA_WEIGHTINGS, LEGEND, agreed_digits, lines

QUICK_ROWS = {5: 64, 6: 64, 7: 64, 8: 64, 10: 6, 11: 64}
"""Largest parameter of a ratio table's rows in a quick run."""

QUICK_SEEDS = 3

RACE_SECONDS, QUICK_RACE_SECONDS = 30.0, 2.0
"""Limit of each run of Table 3; the paper let gradient descent run for minutes."""

RUNS, QUICK_RUNS = (256, SECONDS), (64, QUICK_SECONDS)
"""Cells up to which SM-II is run for the ratio tables, and the seconds it gets, and both in a quick run; a requested
time limit holds for all sizes."""


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


def _show_ratios(subject: str, out: Console, title: str, rows: Iterator[Row]) -> None:
    print_lines(out, title, f"{subject[0].upper()}{subject[1:]}.", LEGEND)
    for row in rows:
        print_lines(out, "", *lines(row, out.width), whole=True)
    print_lines(out, "")


CURVES: Columns = (
    ("Δ", "{privacy_cost:g}"),
    *((f"ε = {epsilon:g}", f"{{deltas[{place}]:.4e}}") for place, epsilon in enumerate(EPSILONS)),
    ("ε found again", "{verdict}"),
)


def _points(figure: Figure) -> Sheet:
    columns: Columns = (
        (figure.varied, lambda row: str(figure.x(row))),
        ("squared cost", "{squared_cost:.6f}"),
        *((name, f"{{curves[{name}]:.6f}}") for name in CA_WEIGHTINGS),
        ("certified squared cost", lambda row: interval_text(row.reading.cost) if row.reading else ""),
        ("certified", _certified),
    )
    show = one_table(columns, heading=f": {figure.subject}", words=())
    return Sheet(f"{FFU}, Figure {figure.number}", figure.tasks, show, partial(figures.draw_points, figure))


def _certified(row: Row) -> str:
    if row.reading is None:
        return ""
    return row.text(f"{', '.join(agreed_digits(row.reading.ratio(name)) for name in CA_WEIGHTINGS)}: {{verdict}}")


LIMIT = ("limit",)  # the option of sheets on which published solvers run

SHEETS = {
    "table2": TABLE,
    "table3": Sheet(
        f"{FFU}, Table 3", _race, one_table(RACE, heading=": seconds, and the gap proven", words=()), options=LIMIT
    ),
    **{
        f"table{table.number}": Sheet(
            table.source, partial(_ratios, table), partial(_show_ratios, table.subject), options=LIMIT
        )
        for table in RATIO_TABLES
    },
    "figure1": Sheet(
        f"{FFU}, Figure 1",
        lambda quick: [partial(figures.curve, cost) for cost in COSTS],
        one_table(CURVES, heading=": δ by ε", words=()),
        figures.draw_curves,
    ),
    **{f"figure{figure.number}": _points(figure) for figure in (FIGURE_2, FIGURE_3)},
}
