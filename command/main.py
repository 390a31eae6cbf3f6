"""The ``dualmech`` command.

Exit status: 0 success, certified; 1 invalid input; 2 invalid usage; 3 not certified; 4 certified answers disagree;
130 interrupted.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dualmech.command import commands
from dualmech.command.commands import explain, leaderboard, library, plot, verify
from dualmech.command.options import STUDIES, Checked, Grouped, UsageError
from dualmech.command.releasing import combine, release
from dualmech.errors import DualmechError, printable
from dualmech.studies.papers import sheets
from dualmech.watching import passing

if TYPE_CHECKING:
    from dualmech.crosscheck.agreement import Agreement
    from dualmech.crosscheck.sheet import Row

app = typer.Typer(
    cls=Grouped, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

WIDE_MESSAGE = (
    "dualmech: status 3, not certified: rows marked wide have an interval wider than the tolerance; run that table "
    "alone, or leave out the largest rows with --quick"
)


def _print_version(value: bool) -> None:
    if value:
        import importlib.metadata

        typer.echo(f"dualmech {importlib.metadata.version('dualmech')}")
        raise typer.Exit


@app.callback()
def command(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Optimal mechanisms for private linear queries, with a certificate for every number."""


for function in (commands.solve, commands.judge, commands.waste, verify, explain, release, combine, plot):
    app.command(cls=Checked)(function)


@app.command(cls=Checked, rich_help_panel=STUDIES)
def crosscheck(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help=f"{sheets.sheet_names()}. [default: {next(iter(sheets.SHEETS))}]"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only rows that take seconds.")] = False,
    longer: Annotated[
        bool, typer.Option("--all", help="With SM-II in three bases and two Hessians below fitness/table2.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Rows to solve at a time.")] = 1,
    data: Annotated[
        str | None,
        typer.Option(
            help="Real records: the Adult table as CSV for eigen/relative, which is skipped without it; a matrix of "
            "blocks by cells for common/hisrace, common/brazil or common/thresholds, or a histogram for "
            "local/consistency, by default synthetic."
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds for each run of a published solver, or for each optimised local strategy of any size."
        ),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(
            help="Other settings for common/hisrace, common/brazil or common/thresholds: a CSV file with a header of "
            "rho or sigma, and optionally x, y, gamma, by default the paper's."
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Draw figures into this folder, as SVG and PNG.")
    ] = None,
    prove: Annotated[
        str | None,
        typer.Option(help="Write a proof of every optimum in the rows into this folder. See verify."),
    ] = None,
) -> None:
    """Print a paper's tables and figures next to certified values, with a verdict on the printed numbers."""
    from dualmech import files, validate
    from dualmech.crosscheck import printing
    from dualmech.crosscheck.agreement import Agreement

    options = {"data": data, "grid": grid, "longer": longer or None, "limit": time_limit}
    with passing("loading"):
        selected = sheets.select_sheets(tables or [])
        if time_limit is not None:
            validate.positive_number(time_limit=time_limit)
        tasks = sheets.planned(selected, quick, {name: value for name, value in options.items() if value is not None})
        if prove is not None:
            files.atomic.make_folder(prove)
    if output is not None:
        if not any(sheet.picture for sheet in selected.values()):
            raise UsageError("--output takes the pictures of figures; no figure was named")
        printing.check_drawable(output)
    out = printing.console()
    outcomes: set[Agreement] = set()
    for (name, sheet), rows in zip(selected.items(), sheets.compute(tasks, jobs, prove), strict=True):
        printed_rows: list[Row] = []
        sheet.show(out, f"{name}: {sheet.source}", _with_progress(rows, outcomes, printed_rows))
        if output is not None and sheet.picture:
            for path in printing.save_picture(
                name.replace("/", "-"), output, sheet.picture, printed_rows, sheet.panels
            ):
                out.print(f"written: {path}", markup=False, soft_wrap=True)
    if prove is not None:
        out.print(sheets.written(prove), markup=False, soft_wrap=True)
    if Agreement.DISAGREE in outcomes:
        raise typer.Exit(4)
    if Agreement.WIDE in outcomes:
        typer.echo(WIDE_MESSAGE, err=True)
        raise typer.Exit(3)
    raise typer.Exit(0)


def _with_progress(rows: Iterator[Row], outcomes: set[Agreement], printed_rows: list[Row]) -> Iterator[Row]:
    count, widest = 0, 0.0
    while True:
        with passing(f"{count} rows, gap {widest:.1e}" if count else "the first row"):
            row = next(rows, None)
        if row is None:
            return
        count, widest = count + 1, max(widest, row.gap)
        outcomes.add(row.outcome)
        printed_rows.append(row)
        yield row


for study in (library, leaderboard, commands.sweep, commands.simulate):
    app.command(cls=Checked, rich_help_panel=STUDIES)(study)


@app.command(cls=Checked, rich_help_panel=STUDIES)
def info() -> None:
    """Print versions, backends and threads."""
    import importlib.metadata
    import platform

    from dualmech import reference
    from dualmech.crosscheck import printing

    out = printing.console()
    packages = ("dualmech", "numpy", "scipy", "cvxpy")
    out.print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages))
    out.print(f"Python {platform.python_version()} on {platform.machine()}")
    out.print(f"backends: {', '.join(f'{name} {version}' for name, version in reference.backends.installed().items())}")
    out.print(f"BLAS threads: {_threads()}")


def main() -> None:
    """Run the command; print an expected error as one line on standard error, with exit status 1, or 2 for misuse."""
    # A stream that was closed before the start is None.
    sys.stdout, sys.stderr = (
        stream or open(os.devnull, "w")  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr)
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Greek letters gets question marks
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # raises here for a full disk or a closed pipe, not in a traceback at exit
    except (DualmechError, OSError, MemoryError) as error:
        print(f"dualmech: {_one_line(error)}", file=sys.stderr)
        if isinstance(error, OSError):
            with contextlib.suppress(OSError):  # a stream without a file
                # Drop unwritten output: Python would try to write it again at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2 if isinstance(error, UsageError) else 1)


def _one_line(error: Exception) -> str:
    text = str(error)
    if isinstance(error, MemoryError):
        text = f"not enough memory{text and ': '}{text}"
    elif isinstance(error, OSError):
        text = f"{error.filename or 'output'}: {error.strerror or error}"
    return printable(" ".join(text.split()))


def _threads() -> str:
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
    settings = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    default = ", ".join(settings) or f"up to {os.cpu_count()} cores"
    return f"{os.environ.get('DUALMECH_THREADS', 1)} in each solve (DUALMECH_THREADS), elsewhere {default}"


if __name__ == "__main__":
    main()
