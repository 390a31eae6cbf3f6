"""Pictures of the papers' figures, as SVG and PNG; matplotlib is loaded only here, and only when one is drawn."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dualmech import accounting, files
from dualmech.crosscheck.papers.common import picture as common_picture
from dualmech.crosscheck.papers.common import thresholds
from dualmech.crosscheck.papers.common.printed import TABLE_7
from dualmech.crosscheck.papers.fitness.figures import (
    COSTS,
    FIGURE_2,
    FIGURE_3,
    Figure,
    point,
)
from dualmech.crosscheck.papers.fitness.ratios import CA_WEIGHTINGS
from dualmech.crosscheck.papers.scale import report
from dualmech.errors import BackendError, FileFormatError, InvalidInputError

KINDS = ("svg", "png")

STYLE: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10.0,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "dualmech",
}

COLOURS = {"SM-II": "#1b1b1b", "CA": "#0072b2", "wCA-I": "#d55e00", "wCA-II": "#009e73"}
"""Told apart by readers who do not see all colours."""

LARGEST_EPSILON, STEPS = 1.0, 201

RESOLUTION = 200
"""Dots per inch of a PNG."""

METADATA: dict[str, dict[str, str | None]] = {"svg": {"Date": None}, "png": {}}
"""Without the date, so that the same figure gives the same file."""


def check_drawable(folder: str) -> Path:
    """Return the folder for pictures, made where it is missing, before anything is computed.

    Raises
    ------
    BackendError
        matplotlib, of the extra ``plots``, is not installed.
    FileFormatError
        The folder cannot be made or written to.
    InvalidInputError
        An empty path.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BackendError(
            "pictures need matplotlib, which the extra `plots` brings: pip install 'dualmech[plots]'"
        )
    if not folder:
        raise InvalidInputError("output must be the path of a folder, got an empty one")
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileFormatError(f"{folder}: cannot be made a folder: {error.strerror or error}") from error
    files.check_writable(path / "picture")
    return path


def draw(name: str, folder: str) -> list[Path]:
    """Draw one of `PICTURES` into a folder and return the two files, each written whole.

    Raises
    ------
    BackendError, FileFormatError
        As `check_drawable`.
    """
    return paint(name, folder, PICTURES[name])


def paint(name: str, folder: str, picture: Callable[[Any], None], columns: int = 1) -> list[Path]:
    """Draw a picture of one or more pairs of axes, side by side, and return its files, each written whole.

    Raises
    ------
    BackendError, FileFormatError
        As `check_drawable`.
    """
    target = check_drawable(folder)
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    paths = [target / f"{name}.{kind}" for kind in KINDS]
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(5.6 * columns, 3.8), layout="constrained")
        picture(canvas.subplots(ncols=columns))
        for kind, path in zip(KINDS, paths, strict=True):
            with files.atomic_write(path) as handle:
                canvas.savefig(handle, format=kind, dpi=RESOLUTION, metadata=METADATA[kind])
    return paths


def _privacy_curves(axes: Any) -> None:
    epsilons = np.linspace(0.0, LARGEST_EPSILON, STEPS)
    for cost, colour in zip(COSTS, COLOURS.values(), strict=True):
        deltas = [accounting.delta(cost, float(epsilon)) for epsilon in epsilons]
        axes.plot(epsilons, deltas, color=colour, label=f"Δ = {cost:g}")
    axes.set(xlabel="ε", ylabel="δ", xlim=(0, LARGEST_EPSILON), ylim=(0, None))
    axes.set_title("Least δ at every ε, by privacy cost Δ", loc="left", fontsize=10)
    axes.legend()


def _ratios(figure: Figure, axes: Any) -> None:
    points = [point(cells, target) for cells, target in figure.points]
    xs = [each.cells if figure.varied == "d" else each.total_target for each in points]
    for name in CA_WEIGHTINGS:
        axes.plot(xs, [each.curves[name] for each in points], "o-", ms=3.5, color=COLOURS[name], label=name)
    axes.plot(xs, np.ones(len(xs)), "s-", ms=3.5, color=COLOURS["SM-II"], label="fitness for use")
    axes.set_xscale("log", base=2)
    axes.set_xticks(xs, [str(x) for x in xs])
    axes.set(xlabel=figure.varied, ylabel="largest variance / target", ylim=(0, None))
    axes.set_title(figure.subject.capitalize(), loc="left", fontsize=10)
    axes.legend()


def _thresholds(axes: Any) -> None:
    rows = [thresholds.of_population(rho) for rho in TABLE_7]
    curves = {
        "chain": [row.chain[0.0] for row in rows],
        "chain, 3σ margin": [row.chain[3.0] for row in rows],
        "thresholds, tuned": [row.tuned for row in rows],
        "best thresholds": [row.best for row in rows],
    }
    places = np.arange(len(rows))
    for (name, values), colour in zip(curves.items(), COLOURS.values(), strict=True):
        axes.plot(places, values, "o-", ms=3.5, color=colour, label=name)
    axes.set_xticks(places, list(TABLE_7))
    axes.set(xlabel="ρ", ylabel="right choices, percent", ylim=(None, 100.5))
    axes.set_title(f"Age buckets for {rows[0].number} blocks of {rows[0].blocks}", loc="left", fontsize=10)
    axes.legend()


PICTURES: dict[str, Callable[[Any], None]] = {
    "fitness-figure1": _privacy_curves,
    "fitness-figure2": partial(_ratios, FIGURE_2),
    "fitness-figure3": partial(_ratios, FIGURE_3),
    "common-ellipses": common_picture.picture,
    "common-thresholds": _thresholds,
    "scale-growth": report.growth_picture,
}
"""What draws each figure on a pair of axes."""
