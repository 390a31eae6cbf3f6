"""The commands ``sweep`` and ``report``: many runs that a file states, and a page of their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dualmech.watching import passing

if TYPE_CHECKING:
    from rich.console import Console

    from dualmech.studies.sweeps.running import Row, Verdict


def sweep(
    grid: Annotated[
        str, typer.Argument(metavar="GRID", help="A TOML file of workloads, sizes, layers; see docs/sweeps.md.")
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="File of results, .jsonl: a line a run, added as it ends. Runs whose line is there are not run again.",
        ),
    ],
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    dask: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on the workers of this Dask scheduler. Needs the extra dask."),
    ] = None,
) -> None:
    """Run every combination that a file states, and compare the answers."""
    from dualmech import files
    from dualmech.command.runs import PosedRun
    from dualmech.crosscheck import printing, processes
    from dualmech.studies.sweeps import running
    from dualmech.studies.sweeps.grid import read_grid

    if dask is not None:
        processes.check_dask()
    files.check_writable(output, running.SUFFIX)
    with passing("reading the grid"):
        runs = read_grid(grid, PosedRun)
    out, done = printing.console(), 0
    for row in running.sweep(runs, output, jobs, dask, grid):
        done += 1
        out.print(f"{done}: {row_line(row)}", markup=False, soft_wrap=True)
    digests = {run.digest for run in runs}
    rows = [row for row in running.read_rows(output) if row["digest"] in digests]
    counts = {status: sum(row["status"] == status for row in rows) for status in {r["status"]: None for r in rows}}
    ends = ", ".join(f"{count} {status}" for status, count in counts.items())
    out.print(f"{output}: {len(rows)} runs, {done} of them now: {ends}", markup=False, soft_wrap=True)
    for verdict in running.verdicts(rows):
        if verdict.disagree:
            _disagreement(out, verdict, output)
    raise typer.Exit(running.exit_status(rows))


def row_line(row: Row) -> str:
    cells = [row["family"], row["workload"]]
    named = ("targets", "rho", "epsilon", "t1", "seed", "tol")
    cells += [
        f"{name} {row[name]:g}" if isinstance(row[name], float) else f"{name} {row[name]}"
        for name in named
        if row[name] is not None
    ]
    who = " ".join(filter(None, (row["layer"], row["backend"])))
    if row["lower"] is None:
        return f"{', '.join(cells)}, {who}: {row['status']}: {row['message']}"
    gap = "no gap proven" if row["gap"] is None else f"gap {row['gap']:.1e}"
    return f"{', '.join(cells)}, {who}: {row['status']}, {gap}, {row['wall_seconds']:.2g} s"


def _disagreement(out: Console, verdict: Verdict, output: str) -> None:
    """Print that answers disagree, and write the smallest problem on which they still do."""
    from dualmech.command.runs import PosedRun
    from dualmech.studies.sweeps.grid import shrink, write_instance
    from dualmech.studies.sweeps.running import interval

    for row in verdict.outermost:
        out.print(f"DISAGREE: {row_line(row)}, {interval(row)}", markup=False, soft_wrap=True)
    with passing("making the disagreement smaller"):
        first, second = verdict.outermost
        ends = (interval(first) or (0.0, 0.0), interval(second) or (0.0, 0.0))
        small = shrink(PosedRun.of(first), PosedRun.of(second), ends)
        path, command = write_instance(small, output)
    out.print(f"written: {path}; repeated by: {command}", markup=False, soft_wrap=True)


def report(
    results: Annotated[str, typer.Argument(metavar="RESULTS", help="A file that `dualmech sweep` wrote.")],
    html: Annotated[str, typer.Option("--html", metavar="FILE", help="Write this page, .html.")],
) -> None:
    """Write a page of tables and figures of a sweep's results; it needs nothing else to be read."""
    from dualmech.crosscheck import printing
    from dualmech.studies.sweeps.page import write_page

    with passing("drawing"):
        words = write_page(results, html)
    printing.console().print(f"written: {html}{words}", markup=False, soft_wrap=True)
