"""The commands ``library`` and ``leaderboard``: problems with proven optima, and how far answers are from them."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Annotated

import typer

from dualmech.crosscheck.command import options
from dualmech.watching import passing

if TYPE_CHECKING:
    from dualmech.crosscheck.leaderboard import Entry, Standing

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
    widest, count, began = (0.0, ""), 0, time.perf_counter()
    built = proven.build(folder, only)
    while True:
        with passing(f"{count} proven"):
            each = next(built, None)
        if each is None:
            break
        count, widest = count + 1, max(widest, (each.upper / each.lower - 1, each.name))
    out.print(
        f"{count} problems in {folder}, each optimum proven within {widest[0]:.1e} of itself, "
        f"in {time.perf_counter() - began:.1f} s; the widest interval is that of {widest[1]}.",
        soft_wrap=True,
    )


def leaderboard(
    folder: Folder,
    answers: Annotated[
        list[str],
        typer.Argument(
            metavar="ANSWERS...",
            help="Folders of answers, one for each solver: NAME.npz, .csv, .npy or .mtx, by problem.",
        ),
    ],
    tol: Annotated[
        float,
        typer.Option(
            callback=options.tolerance, help="Distance from the optimum up to which the exit status is 0."
        ),
    ] = 1e-6,
    scaled: Annotated[
        bool, typer.Option("--scaled", help="Scale, or mend, answers to be feasible before they are judged.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Show every answer, not only those beyond the tolerance.")
    ] = False,
) -> None:
    """Rank solvers by how far their answers are from the proven optima of a library."""
    with passing("judging"):
        from dualmech.crosscheck import leaderboard as board
        from dualmech.crosscheck.command import report
        from dualmech.crosscheck.papers.report import table
        from dualmech.display import counted

        found = [*board.entries(folder, answers, scaled=scaled)]
    out, ranked = report.console(), board.standings(found, tol)
    headings = "solver", "answers", "feasible", f"within {tol:g}", "median", "worst", "seconds"
    out.print(table(counted(len(ranked), "solver"), headings, map(_standing, ranked)))
    beyond = [entry for entry in found if not entry.most <= tol]
    shown = found if every or len(answers) == 1 else beyond
    if shown:
        columns = "solver", "problem", "achieved", "from the optimum", "seconds"
        words = "solver", "problem", "from the optimum"
        out.print(table(counted(len(shown), "answer"), columns, map(_answer, shown), words))
    if beyond or not found:
        said = f"{len(beyond)} of {len(found)} answers are not within {tol:g} of the optimum"
        typer.echo(f"dualmech: {said}", err=True)
        raise typer.Exit(3)


def _answer(each: Entry) -> tuple[str, ...]:
    return each.solver, each.name, _number(each.objective, ".9g"), each.words, _number(each.seconds)


def _standing(each: Standing) -> tuple[str, ...]:
    apart = (_number(own, ".2g") for own in (each.median, each.worst))
    counts = map(str, (each.answers, each.feasible, each.within))
    return each.solver, *counts, *apart, _number(each.seconds)


def _number(value: float, form: str = ".3g") -> str:
    return "" if math.isnan(value) else f"{value:{form}}"
