"""Commands that publish: ``release``, from records to tables with a statement, and ``combine``, of several of them."""

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


MOST_UNREAD = 20  # columns that are listed

DRY = "Dry run: no record was read, nothing was drawn."


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
        typer.Option(
            help="The most that it may cost, such as 1/2 or 0.5, compared exactly. [default: what the plan was asked "
            "to spend, else 100]"
        ),
    ] = None,
    level: Annotated[
        float | None,
        typer.Option(help="Probability that truth lies within a margin of error. [default: the plan's own, else 0.95]"),
    ] = None,
    simultaneous: Annotated[
        bool, typer.Option("--simultaneous", help="Margins that hold for all entries at once.")
    ] = False,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='Add the cost to this .toml file of all releases of these records, which begins with limit = "1/2"; '
            "one that would exceed the limit is refused.",
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Folder of the earlier release that the solution reuses: what is new alone is drawn, and the tables "
            "are those of both.",
        ),
    ] = None,
    count: Count = None,
    ignore: Ignore = None,
    public: Public = False,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Count a file without records.")] = False,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="QUERY", help="Records in place of RECORDS: what DuckDB selects.")
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="FILE", help="The DuckDB file that --sql looks in, opened to be read alone.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print exact cost and margins and draw nothing: of the records the header alone is read."
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
        raise UsageError("give -o DIRECTORY for the tables, or --dry-run to see what they would cost")
    with passing("reading") as line:
        _check_options(level, output)
        place, source = _records(paths, sql, database)
        office = list[str]()
        records = Records(place, count, tuple(ignore or ()), report=office.append)
        answer = inputs.read_solution(source)
        if answer is None:
            raise UsageError(_no_solution(source))
        earlier = None if after is None else dm.load_publication(after)
        planned = dm.plan_release(answer, rho=rho, after=earlier).declaring(records)
        unread = planned.check_columns(records)
        kept = None if ledger is None else Ledger.read(ledger)
        if kept is not None and not dry_run:
            kept.check(planned)  # before any record is read
        if dry_run:
            shown = [DRY, *planned.lines(level, simultaneous), *([] if kept is None else kept.outlook(planned))]
        else:
            line.say("drawing")
            released = _drawn(planned, records, allow_empty, kept, str(output))
            line.say("writing")
            shown = _written(released, str(output), level, simultaneous)
    if (words := uncertified(answer)) is not None:
        typer.echo(f"dualmech: the plan is not certified: {words}", err=True)
    out = printing.console()
    printing.print_lines(out, *_unread(unread), *office, *shown, whole=True)
    if kept is not None and dry_run:
        kept.check(planned)


def combine(
    first: Annotated[str, typer.Argument(metavar="FIRST", help="Folder of a release.")],
    others: Annotated[
        list[str], typer.Argument(metavar="SECOND...", help="Folders of other releases of the same records.")
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DIRECTORY", help="New folder for tables and statement.")
    ],
    level: Annotated[
        float | None,
        typer.Option(help="Probability that truth lies within a margin of error. [default: the plans' own, else 0.95]"),
    ] = None,
    simultaneous: Annotated[
        bool, typer.Option("--simultaneous", help="Margins that hold for all entries at once.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Refuse releases whose answers disagree by a χ² test.")
    ] = True,
    public: Public = False,
) -> None:
    """Combine releases of the same records by least squares: more accurate tables, at no further privacy."""
    import dualmech as dm
    from dualmech.crosscheck import printing
    from dualmech.publishing.combining import combined

    with passing("reading") as line:
        _check_options(level, output)
        every = [dm.load_publication(path) for path in (first, *others)]
        line.say("combining")
        both = combined(every, [first, *others], check)
        line.say("writing")
        shown = _written(both, output, level, simultaneous)
    out = printing.console()
    printing.print_lines(out, *shown, whole=True)


def _unread(names: list[str]) -> list[str]:
    """Say which columns of the records are not read; of many the first."""
    if not names:
        return []
    shown = ", ".join(printable(name) for name in names[:MOST_UNREAD])
    left = len(names) - MOST_UNREAD
    return [f"Columns that are not read: {shown}{f' and {left} more' if left > 0 else ''}."]


def _records(paths: list[str], sql: str | None, database: str | None) -> tuple[object, str]:
    from dualmech.publishing.sources import of_query

    if sql is None and database is not None:
        raise UsageError("--database is where the query of --sql looks; give --sql as well")
    if len(paths) != (2 if sql is None else 1):
        takes = "records, then the file of a solution" if sql is None else "the file of a solution alone, with --sql"
        raise UsageError(f"release takes {takes}; got {len(paths)} paths")
    return (paths[0], paths[1]) if sql is None else (of_query(sql, database), paths[0])


def _check_options(level: float | None, output: str | None) -> None:
    """Refuse a level that is no probability, and a folder that exists: before any work."""
    from dualmech import files, validate

    if level is not None:
        validate.probability(level=level)
    if output is not None:
        files.check_new_folder(output)


def _drawn(planned: ReleasePlan, records: object, allow_empty: bool, ledger: Ledger | None, output: str) -> Publication:
    """Draw a plan, record its ρ, and return what is published, together with the earlier release if it has one.

    The ρ is recorded first, since a message about answers that disagree shows some of them.
    """
    from dualmech.publishing.statement import digest

    new_answers = planned.draw_new(records, allow_empty=allow_empty)
    extended = None if ledger is None else ledger.record(planned, digest(planned.workload), output)
    released = planned.joined(new_answers)
    released.ledger = extended
    return released


def _written(released: Publication, output: str, level: float | None, simultaneous: bool) -> list[str]:
    """Write the tables and the publication's file; say what there is."""
    from dualmech.display import counted
    from dualmech.publishing.keeping import KEPT, write_with_file
    from dualmech.publishing.publication import INDEX, STATEMENT

    names = write_with_file(released, output, level, simultaneous)
    kept = f", and {KEPT}, which combine reads," if KEPT in names else ""
    return [
        f"written: {counted(len(released.tables), 'table')}, {INDEX} and {STATEMENT}{kept} in {output}",
        *released.lines(level, simultaneous),
        *([] if released.ledger is None else released.ledger.lines()),
    ]


def _no_solution(source: str) -> str:
    if not Path(source).exists():
        return f"{source}: there is no such file; release takes records, then the file of a solution"
    words = f"release takes records, then the file of a solution, which {source} is not"
    if Path(source).suffix.lower() == ".toml":
        return f"{words}: make one of it, dualmech solve {source} -o plan.npz"
    return words
