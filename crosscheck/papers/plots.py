"""Pictures of the papers' figures, as SVG and PNG; matplotlib is loaded only here, and only when one is drawn."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dualmech import files
from dualmech.errors import BackendError, InvalidInputError

KINDS = ("svg", "png")

STYLE: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10.0,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "dualmech",
}

COLOURS = ("#1b1b1b", "#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Told apart by readers who do not see all colours; the first is that of ink."""

RESOLUTION = 200  # dots per inch of a PNG

METADATA: dict[str, dict[str, str | None]] = {"svg": {"Date": None}, "png": {}}
"""Without the date, so that the same figure gives the same file."""


def check_installed() -> None:
    """Raise `BackendError` where matplotlib, of the extra ``plots``, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise BackendError(
            "pictures need matplotlib, which the extra `plots` brings: pip install 'dualmech[plots]'"
        )


def check_drawable(folder: str) -> Path:
    """Return the folder for pictures, made where it is missing, before anything is computed.

    Raises `BackendError` where matplotlib, of the extra ``plots``, is not installed; `FileFormatError` where the
    folder cannot be made or written to; `InvalidInputError` for an empty path.
    """
    check_installed()
    if not folder:
        raise InvalidInputError("output must be the path of a folder, got an empty one")
    return files.atomic.make_folder(folder)


def save_picture(
    name: str, folder: str, picture: Callable[..., None], rows: Any = None, columns: int = 1
) -> list[Path]:
    """Draw rows on one or more pairs of axes, side by side, and return the picture's files, each written whole.

    Raises `BackendError` or `FileFormatError` as `check_drawable`.
    """
    target = check_drawable(folder)
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    paths = [target / f"{name}.{kind}" for kind in KINDS]
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(5.6 * columns, 3.8), layout="constrained")
        picture(canvas.subplots(ncols=columns), rows)
        for kind, path in zip(KINDS, paths, strict=True):
            with files.atomic_write(path) as handle:
                canvas.savefig(handle, format=kind, dpi=RESOLUTION, metadata=METADATA[kind])
    return paths
