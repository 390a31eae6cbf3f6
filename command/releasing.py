"""The commands ``release``, from records to tables with a statement, and ``combine``, of several releases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualmech.command.options import Count, Ignore, Public, UsageError
from dualmech.errors import printable
from dualmech.watching import passing

if TYPE_CHECKING:
    from dualmech.publishing.ledger import Ledger
    from dualmech.publishing.publication import Publication, ReleasePlan


MAX_UNREAD = 20  # unread columns in a list

DRY_RUN = "Dry run: no record was read, nothing was drawn."


def release(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="[RECORDS] SOLUTION",
            help="Records, whose columns are matched by name: .csv, .csv.gz, .parquet, .arrow, or a folder of these; "
            "then the file of a solution, whose workload is published.",
        ),
    ],
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="DIRECTORY", help="New folder for tables and statement.")
    ] = None,
    rho: Annotated[
        str | None,
        typer.Option(help="Maximum cost, such as 1/2 or 0.5, compared exactly. [default: the plan's budget, else 100]"),
    ] = None,
    level: Annotated[
        float | None,
        typer.Option(
            help="Probability that the true value lies within a margin of error. [default: the plan's, else 0.95]"
        ),
    ] = None,
    simultaneous: Annotated[
        bool, typer.Option("--simultaneous", help="Margins that hold for all entries at once.")
    ] = False,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='Add the cost to this .toml file of all releases of these records, which begins with limit = "1/2"; '
            "refuse a release that would exceed the limit.",
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Folder of the earlier release that the solution reuses: only the new noise is drawn, and the tables "
            "combine both releases.",
        ),
    ] = None,
    count: Count = None,
    ignore: Ignore = None,
    public: Public = False,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Count a file without records.")] = False,
    sql: Annotated[
        str | None,
        typer.Option("--sql", metavar="QUERY", help="DuckDB query that selects the records, instead of RECORDS."),
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="FILE", help="DuckDB file of the query, opened read-only.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print exact cost and margins without drawing; of the records only the header is read."
        ),
    ] = False,
) -> None:
    """Count records, add exact noise, and write tables with margins of error and a statement for auditors."""
    import dualmech as dm
    from dualmech.command import inputs
    from dualmech.crosscheck import printing
    from dualmech.publishing.ledger import Ledger
    from dualmech.publishing.records import Records
    from dualmech.publishing.statement import uncertified

    if output is None and not dry_run:
        raise UsageError("give -o DIRECTORY for the tables, or --dry-run to see their cost")
    with passing("reading") as line:
        _check_options(level, output)
        place, source = _records(paths, sql, database)
        reports = list[str]()
        records = Records(place, count, tuple(ignore or ()), report=reports.append)
        answer = inputs.read_solution(source)
        if answer is None:
            raise UsageError(_no_solution(source))
        earlier = None if after is None else dm.load_publication(after)
        planned = dm.plan_release(answer, rho=rho, after=earlier).declaring(records)
        unread = planned.check_columns(records)
        open_ledger = None if ledger is None else Ledger.read(ledger)
        if open_ledger is not None and not dry_run:
            open_ledger.check(planned)  # before any record is read
        if dry_run:
            outlook = [] if open_ledger is None else open_ledger.outlook(planned)
            lines = [DRY_RUN, *planned.lines(level, simultaneous), *outlook]
        else:
            line.say("drawing")
            released = _draw(planned, records, allow_empty, open_ledger, str(output))
            line.say("writing")
            lines = _write(released, str(output), level, simultaneous)
    if (words := uncertified(answer)) is not None:
        typer.echo(f"dualmech: the plan is not certified: {words}", err=True)
    out = printing.console()
    printing.print_lines(out, *_unread_lines(unread), *reports, *lines, unwrapped=True)
    if open_ledger is not None and dry_run:
        open_ledger.check(planned)


def combine(
    first: Annotated[str, typer.Argument(metavar="FIRST", help="Folder of a release.")],
    others: Annotated[
        list[str], typer.Argument(metavar="SECOND...", help="Folders of further releases of the same records.")
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DIRECTORY", help="New folder for tables and statement.")
    ],
    level: Annotated[
        float | None,
        typer.Option(
            help="Probability that the true value lies within a margin of error. [default: the plans', else 0.95]"
        ),
    ] = None,
    simultaneous: Annotated[
        bool, typer.Option("--simultaneous", help="Margins that hold for all entries at once.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Refuse releases whose answers disagree by a χ² test.")
    ] = True,
    public: Public = False,
) -> None:
    """Combine releases of the same records by least squares: more accurate tables, at no further privacy cost."""
    import dualmech as dm
    from dualmech.crosscheck import printing
    from dualmech.publishing.combining import combined

    with passing("reading") as line:
        _check_options(level, output)
        releases = [dm.load_publication(path) for path in (first, *others)]
        line.say("combining")
        combination = combined(releases, [first, *others], check)
        line.say("writing")
        lines = _write(combination, output, level, simultaneous)
    out = printing.console()
    printing.print_lines(out, *lines, unwrapped=True)


def _unread_lines(names: list[str]) -> list[str]:
    if not names:
        return []
    first = ", ".join(printable(name) for name in names[:MAX_UNREAD])
    more = len(names) - MAX_UNREAD
    return [f"Columns that are not read: {first}{f' and {more} more' if more > 0 else ''}."]


def _records(paths: list[str], sql: str | None, database: str | None) -> tuple[object, str]:
    from dualmech.publishing.sources import of_query

    if sql is None and database is not None:
        raise UsageError("--database is the file of the query of --sql; give --sql as well")
    if len(paths) != (2 if sql is None else 1):
        arguments = "records, then the file of a solution" if sql is None else "only the file of a solution with --sql"
        raise UsageError(f"release takes {arguments}; got {len(paths)} paths")
    return (paths[0], paths[1]) if sql is None else (of_query(sql, database), paths[0])


def _check_options(level: float | None, output: str | None) -> None:
    from dualmech import files, validate

    if level is not None:
        validate.probability(level=level)
    if output is not None:
        files.check_new_folder(output)


def _draw(planned: ReleasePlan, records: object, allow_empty: bool, ledger: Ledger | None, output: str) -> Publication:
    """Draw a plan, record its ρ, and return the publication, combined with the earlier release if there is one.

    The ρ is recorded before they are combined, since a message about answers that disagree shows some of them.
    """
    from dualmech.publishing.statement import digest

    new_answers = planned.draw_new(records, allow_empty=allow_empty)
    extended = None if ledger is None else ledger.record(planned, digest(planned.workload), output)
    released = planned.joined(new_answers)
    released.ledger = extended
    return released


def _write(released: Publication, output: str, level: float | None, simultaneous: bool) -> list[str]:
    from dualmech.display import counted
    from dualmech.publishing.keeping import FILE_NAME, write_with_file
    from dualmech.publishing.publication import INDEX, STATEMENT

    names = write_with_file(released, output, level, simultaneous)
    file = f", and {FILE_NAME}, which combine reads," if FILE_NAME in names else ""
    return [
        f"written: {counted(len(released.tables), 'table')}, {INDEX} and {STATEMENT}{file} in {output}",
        *released.lines(level, simultaneous),
        *([] if released.ledger is None else released.ledger.lines()),
    ]


def _no_solution(source: str) -> str:
    if not Path(source).exists():
        return f"{source}: there is no such file; release takes records, then the file of a solution"
    words = f"release takes records, then the file of a solution, which {source} is not"
    if Path(source).suffix.lower() == ".toml":
        return f"{words}: solve it first, dualmech solve {source} -o plan.npz"
    return words
