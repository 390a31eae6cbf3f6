"""The commands ``library`` and ``leaderboard``: problems with proven optima, and how far answers are from them."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from dualmech.watching import passing

Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="Where the library is, or is to be.")]


def library(
    folder: Folder,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="A problem's name, or a family's; may be repeated.")
    ] = None,
) -> None:
    """Write problems with their data, proven optima and proofs, to test a solver against; what is there is kept."""
    with passing("loading"):
        from dualmech.crosscheck import library as proven
        from dualmech.crosscheck.command import report
    out = report.console()
    widest, count, began = 0.0, 0, time.perf_counter()
    built = proven.build(folder, only)
    while True:
        with passing(f"{count} proven"):
            each = next(built, None)
        if each is None:
            break
        count, widest = count + 1, max(widest, each.upper / each.lower - 1)
    out.print(
        f"{count} problems in {folder}, each optimum proven within {widest:.1e} of itself, "
        f"in {time.perf_counter() - began:.1f} s.",
        soft_wrap=True,
    )


def leaderboard(
    folder: Folder,
    answers: Annotated[
        str,
        typer.Argument(
            metavar="ANSWERS", help="Folder of answers, NAME.csv, .npy, .npz or .mtx, by problem."
        ),
    ],
) -> None:
    """Say how far strategies, or other answers, are from the proven optima of a library."""
    with passing("judging"):
        from dualmech.crosscheck import library as proven
        from dualmech.crosscheck.command import report
        from dualmech.crosscheck.papers.report import table

        found = [*proven.leaderboard(folder, answers)]
    out = report.console()
    drawn = (
        (
            each.name,
            f"{each.objective:.9g}",
            f"{100 * each.least_excess:.4g} %",
            f"{100 * each.most_excess:.4g} %",
        )
        for each in found
    )
    headings = ("problem", "achieved", "above the optimum, at least", "at most")
    out.print(table(f"{len(found)} answers", headings, drawn))
