"""The command ``plot``: pictures of a solution, each that it has."""

from __future__ import annotations

from typing import Annotated

import typer

from dualmech.errors import DualmechError, InvalidInputError
from dualmech.watching import passing

KINDS = ("covariance", "correlation", "variances", "profile", "tradeoff")
"""What a file holds enough for; the steps of a solver are in none."""


def plot(
    solution: Annotated[
        str, typer.Argument(metavar="SOLUTION", help="File of a solution, as solve -o writes it.")
    ],
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="DIRECTORY", help="Folder for the pictures, as SVG and PNG."),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(KINDS)}; several times for several. [default: all]"),
    ] = None,
) -> None:
    """Draw an answer: its noise, prices, profile of neighbours, privacy against accuracy."""
    from dualmech import plots, validate
    from dualmech.crosscheck.command import inputs, report
    from dualmech.crosscheck.papers.plots import check_drawable, save_picture

    asked = [validate.choice(KINDS, only=each) for each in only or KINDS]
    check_drawable(output)
    answer = inputs.read_solution(solution)
    if answer is None:
        raise InvalidInputError(f"{solution}: holds no solution; solve -o writes one")
    draw = {
        "covariance": lambda axes, rows: plots.covariance(rows, axes=axes),
        "correlation": lambda axes, rows: plots.covariance(rows, axes=axes, correlation=True),
        "variances": lambda axes, rows: plots.variances(rows, axes=axes),
        "profile": lambda axes, rows: plots.profile(rows, axes=axes),
        "tradeoff": lambda axes, rows: plots.tradeoff(rows, axes=axes),
    }
    out = report.console()
    for kind in asked:
        try:
            with passing(f"drawing {kind}"):
                paths = save_picture(kind, output, draw[kind], answer)
        except DualmechError as error:
            if only:
                raise
            out.print(f"not drawn: {kind}: {error}", markup=False)
            continue
        for path in paths:
            out.print(f"drawn: {path}", markup=False)
