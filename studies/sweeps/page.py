"""A page of a sweep's results that needs nothing else: tables that sort, and figures of the same rows."""

from __future__ import annotations

import base64
import html
import importlib.util
import io
import math
import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dualmech import files
from dualmech.crosscheck.printing import COLOURS, STYLE, interval_text
from dualmech.errors import printable
from dualmech.files.reading import FilePath
from dualmech.studies.sweeps.running import Row, Verdict, interval, read_rows, verdicts

# Figures of a sweep as SVG texts: gap against time, time against size. Matplotlib is loaded only here.


MARKERS = "osD^vP*X"
LEAST_GAP = 1e-17  # at which a gap of 0 is drawn, which has no logarithm

METADATA: dict[str, None] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
"""None of it, so that the same rows give the same figure, and no address is in it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of rows: what is on its axes, both logarithmic, across in powers of `base`."""

    title: str
    across: str  # name of a number of a row
    up: str
    across_label: str
    up_label: str
    base: int = 10

    def point(self, row: Row) -> tuple[float, float] | None:
        across, up = (self._value(row, name) for name in (self.across, self.up))
        return None if across is None or up is None else (across, up)

    @staticmethod
    def _value(row: Row, name: str) -> float | None:
        value = row[name]
        if row["lower"] is None or value is None or value < 0:
            return None
        return max(float(value), LEAST_GAP) if name == "gap" else float(value) or None


FIGURES = (
    Figure("Gap against time", "wall_seconds", "gap", "seconds of a solve", "proven gap, relative"),
    Figure("Time against size", "cells", "wall_seconds", "cells of the domain", "seconds of a solve", base=2),
)


def drawable() -> bool:
    """Whether matplotlib, of the extra ``plots``, is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def solver_of(row: Row) -> str:
    """Return who answered: the layer, and the backend where it has one."""
    return " ".join(filter(None, (row["layer"], row["backend"])))


def svg(figure: Figure, rows: Sequence[Row]) -> str:
    """Return a figure with a point for every row that has both numbers, by family and solver."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if (point := figure.point(row)) is not None:
            series.setdefault(f"{row['family']}, {solver_of(row)}", []).append(point)
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a letter that the font has not is a box
        canvas = Canvas(figsize=(7.2, 4.2), layout="constrained")
        axes: Any = canvas.subplots()
        for number, (label, points) in enumerate(series.items()):
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            shown = f"\u200b{printable(label)}"  # an underscore in front would hide it from the legend
            axes.plot(*zip(*points, strict=True), marker, color=colour, label=shown, alpha=0.7, gid=f"series {number}")
        if series:
            axes.set_xscale("log", base=figure.base)
            axes.set_yscale("log")
            for name in axes.legend(fontsize="small").get_texts():
                name.set_parse_math(False)  # a dollar sign of a name begins no formula
        axes.set(xlabel=figure.across_label, ylabel=figure.up_label)
        text = io.StringIO()
        canvas.savefig(text, format="svg", metadata=METADATA)
    return text.getvalue()


WITHOUT_FIGURES = "without figures, which need the extra `plots`: pip install 'dualmech[plots]'"

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The page's permissions in a browser: nothing from outside."""

PAGE_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #1b1b1b }
table { border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums }
th { cursor: pointer; text-align: left; border-bottom: 2px solid #1b1b1b; white-space: nowrap }
td, th { padding: .2em .7em } td { border-bottom: 1px solid #ddd } td[data-value] { text-align: right }
th[aria-sort=ascending]::after { content: " \\2191" } th[aria-sort=descending]::after { content: " \\2193" }
img { max-width: 100%; height: auto } figure { margin: 1.5em 0 } .bad { color: #b30000; font-weight: bold }
"""

SCRIPT = """
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const key = cell => "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  const order = (a, b) => a === b ? 0 : typeof a !== typeof b ? (typeof a === "number" ? -1 : 1) : a < b ? -1 : 1;
  heads.forEach((head, place) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(each => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].sort((a, b) => order(key(a.cells[place]), key(b.cells[place])));
    body.append(...(down ? rows.reverse() : rows));
  }));
}
"""

BAD = ("NO", "REFUSED", "FAULT")  # cells that stand out

Cell = tuple[str, float | None]  # the text of a cell, and the number by which it is sorted, None for a word


def write_page(results: FilePath, path: FilePath) -> str:
    """Write the page of a file of results; return a remark on it: nothing, or that it has no figures.

    Raises `FileFormatError` for a file that is none of results, or a path that cannot be written or does not end in
    .html.
    """
    files.check_writable(path, ".html")
    rows = read_rows(results)
    grids = dict.fromkeys(row["grid"] for row in rows)
    commands = [_command("sweep", grid, "-o", results) for grid in grids if grid]
    text = page(rows, str(results), [*commands, _command("report", results, "--html", path)])
    files.atomic.write_text(path, text)
    return "" if drawable() else f", {WITHOUT_FIGURES}"


def page(rows: Sequence[Row], title: str, commands: Sequence[str]) -> str:
    """Return the page: a verdict on every problem, every run, and the figures, with the commands that print them."""
    text = "\n".join(commands)
    drawn = [_drawn(figure, rows, text) for figure in FIGURES] if drawable() else []
    without = "" if drawn else f"<p>This page is {_escaped(WITHOUT_FIGURES)}.</p>"
    parts = (
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{_escaped(title)}</title><style>{PAGE_STYLE}</style></head><body>",
        f"<h1>{_escaped(title)}</h1>",
        "<p>Every interval is proven to hold the optimum. A click on a heading sorts by its column.</p>",
        f"<h2>Problems</h2>{_table(PROBLEMS, verdicts(rows))}",
        "<p>agree: yes, all intervals meet and each run is certified; wide, they meet and a run is not certified; "
        "NO, two are disjoint; none, there is no answer.</p>",
        f"<h2>Runs</h2>{_table(RUNS, rows)}",
        f"<h2>Figures</h2>{without}{''.join(drawn)}",
        f"<pre>{_escaped(text)}</pre><p>{_versions(rows)}</p>",
        f"<script>{SCRIPT}</script></body></html>",
    )
    return "\n".join(parts) + "\n"


def _drawn(figure: Figure, rows: Sequence[Row], text: str) -> str:
    picture = base64.b64encode(svg(figure, rows).encode("utf-8")).decode("ascii")
    count = sum(figure.point(row) is not None for row in rows)
    least = sum(row["gap"] == 0 for row in rows) if figure.up == "gap" else 0
    note = f" Gaps of 0 are drawn at {LEAST_GAP:g}." if least else ""
    words = f"{figure.title}: {count} of the {len(rows)} runs; the others have no answer or no such number.{note}"
    return (
        f'<figure><img alt="{_escaped(figure.title)}" src="data:image/svg+xml;base64,{picture}">'
        f"<figcaption>{_escaped(words)}<pre>{_escaped(text)}</pre></figcaption></figure>"
    )


def _word(value: object) -> Cell:
    return ("" if value is None else str(value), None)


def _number(value: float | None, form: str = ".4g") -> Cell:
    return ("", math.inf) if value is None else (format(value, form), float(value))


def _targets(row: Row) -> Cell:
    try:
        return _number(float(row["targets"] or ""))
    except ValueError:
        return _word(row["targets"])


def _ends(row: Row) -> Cell:
    ends = interval(row)
    return ("", math.inf) if ends is None else (interval_text(ends), ends[1])


PROBLEM: dict[str, Callable[[Row], Cell]] = {
    "family": lambda row: _word(row["family"]),
    "workload": lambda row: _word(row["workload"]),
    "targets": _targets,
    "rho": lambda row: _word(row["rho"]),
    "epsilon": lambda row: _number(row["epsilon"]),
    "t1": lambda row: _number(row["t1"]),
    "neighbours": lambda row: _word(row["neighbours"]),
    "seed": lambda row: _number(row["seed"], "d"),
    "queries": lambda row: _number(row["queries"], "d"),
    "cells": lambda row: _number(row["cells"], "d"),
}
"""Columns of the problem."""


def _of_problem(column: Callable[[Row], Cell]) -> Callable[[Verdict], Cell]:
    return lambda verdict: column(verdict.rows[0])


PROBLEMS: dict[str, Callable[[Verdict], Cell]] = {
    **{name: _of_problem(column) for name, column in PROBLEM.items()},
    "the optimum lies in": lambda verdict: (
        ("", math.inf)
        if verdict.word in ("none", "NO")
        else (interval_text((verdict.lower, verdict.upper)), verdict.upper)
    ),
    "runs": lambda verdict: _number(len(verdict.rows), "d"),
    "agree": lambda verdict: _word(verdict.word),
}

RUNS: dict[str, Callable[[Row], Cell]] = {
    **PROBLEM,
    "solver": lambda row: _word(solver_of(row)),
    "tolerance": lambda row: _number(row["asked_tol"] if row["tol"] is None else row["tol"]),
    "status": lambda row: _word(row["status"]),
    "interval": _ends,
    "gap": lambda row: _number(row["gap"], ".2e"),
    "decompositions": lambda row: _number(row["steps"], "d"),
    "seconds": lambda row: _number(row["wall_seconds"], ".3g"),
    "processor seconds": lambda row: _number(row["cpu_seconds"], ".3g"),
    "MiB": lambda row: _number(row["peak_mebibytes"], ".0f"),
    "threads": lambda row: _number(row["blas_threads"], "d"),
    "message": lambda row: _word(row["message"]),
}


def _table(columns: dict[str, Callable[[Any], Cell]], rows: Sequence[Any]) -> str:
    """Return a table without the columns in which every cell is empty."""
    cells = {name: [column(row) for row in rows] for name, column in columns.items()}
    shown = {name: column for name, column in cells.items() if any(text for text, _ in column)}
    heads = "".join(f'<th scope="col" title="sort">{_escaped(name)}</th>' for name in shown)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in zip(*shown.values(), strict=True))
    return f"<table><thead><tr>{heads}</tr></thead><tbody>\n{body}</tbody></table>"


def _cell(cell: Cell) -> str:
    text, number = cell
    if number is None:
        return f'<td class="bad">{text}</td>' if text in BAD else f"<td>{_escaped(text)}</td>"
    return f'<td data-value="{"Infinity" if math.isinf(number) else repr(number)}">{_escaped(text)}</td>'


def _versions(rows: Sequence[Row]) -> str:
    sets = dict.fromkeys(", ".join(f"{name} {version}" for name, version in row["versions"].items()) for row in rows)
    return "<br>".join(map(_escaped, sets))


def _command(*words: object) -> str:
    return shlex.join(["dualmech", *map(str, words)])


def _escaped(text: str) -> str:
    """Return a text as HTML, control characters written out; line breaks stay."""
    return "\n".join(html.escape(printable(line)) for line in text.split("\n"))
