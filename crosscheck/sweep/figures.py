"""Figures of a sweep as SVG texts: gap against time, time against size. Matplotlib is loaded only here."""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dualmech.crosscheck.papers.plots import COLOURS, STYLE
from dualmech.crosscheck.sweep.runs import Row
from dualmech.errors import printable

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
        """Return where a row is drawn, None where it has nothing to draw."""
        across, up = (self._value(row, name) for name in (self.across, self.up))
        return None if across is None or up is None else (across, up)

    @staticmethod
    def _value(row: Row, name: str) -> float | None:
        value = row[name]
        if row["lower"] is None or value is None or value < 0:
            return None
        return max(float(value), LEAST_GAP) if name == "gap" else float(value) or None


FIGURES = (
    Figure("Gap against time", "wall_seconds", "gap", "seconds", "proven gap"),
    Figure("Time against size", "cells", "wall_seconds", "cells", "seconds", base=2),
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
            axes.plot(
                *zip(*points, strict=True),
                marker,
                color=colour,
                label=shown,
                alpha=0.7,
                gid=f"series {number}",
            )
        if series:
            axes.set_xscale("log", base=figure.base)
            axes.set_yscale("log")
            for name in axes.legend(fontsize="small").get_texts():
                name.set_parse_math(False)  # a dollar sign of a name begins no formula
        axes.set(xlabel=figure.across_label, ylabel=figure.up_label)
        text = io.StringIO()
        canvas.savefig(text, format="svg", metadata=METADATA)
    return text.getvalue()
