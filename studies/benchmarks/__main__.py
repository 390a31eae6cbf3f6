"""Measure from the command line: ``python -m dualmech.studies.benchmarks [NAME …] [--no-reference]``.

Names compare solvers instead: ``peers`` total variance with other libraries that are installed, ``epochs`` that of
several epochs (its cases alone: ``epochs:``); ``softmax`` SM-II with others; ``program1`` the weighting of
eigen-queries with general backends. ``growth`` says how time and memory grow on each geometry, and ``tables``
how a release grows with its tables; ``commands`` says what those take that answer at once; ``records`` counts
100 million records on engines (extra ``engines``, 4 GB of disk).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from dualmech.crosscheck import printing
from dualmech.studies.benchmarks import commands, contest, counting, growth, layers

GROUPS: dict[str, Callable[[], object]] = contest.REPORTS | {
    **{"growth": growth.report, "tables": growth.release_report},
    **{"commands": commands.report, "records": counting.counts},
}
"""What is measured besides the cases of the fast layer, by the name that runs it; each returns a table."""


def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(help=f"Only cases whose name begins so; or of: {', '.join(GROUPS)}."),
    ] = None,
    reference: Annotated[bool, typer.Option(help="Also time the reference layer on prefix 64 (minutes).")] = True,
) -> None:
    """Measure the fast layer, one line per case; steps are decompositions, of query weighting factorisations."""
    out = printing.console()
    groups = [name for name in names or [] if name in GROUPS]
    for name in groups:
        out.print(GROUPS[name]())
    cases = [name for name in names or [] if name not in GROUPS]
    if cases or not groups:
        out.print(layers.report(cases))
    if reference and not names:
        out.print(layers.report_against_reference())


if __name__ == "__main__":
    typer.run(run)
