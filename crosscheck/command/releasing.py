"""The command ``release``: records in, exact noise, and a folder of tables with a statement out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dualmech.crosscheck.command.options import UsageError
from dualmech.watching import passing


def release(
    data: Annotated[
        str, typer.Argument(metavar="RECORDS", help="CSV file with a header; columns are matched by name.")
    ],
    source: Annotated[
        str, typer.Argument(metavar="SOLUTION", help="File of a solution, whose workload is published.")
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DIRECTORY", help="New folder for tables and statement.")
    ],
    rho: Annotated[
        str | None, typer.Option(help="The most that it may cost, such as 1/2 or 0.5, compared exactly.")
    ] = None,
    level: Annotated[
        float, typer.Option(help="Probability that truth lies within a margin of error.")
    ] = 0.95,
    simultaneous: Annotated[
        bool, typer.Option("--simultaneous", help="Margins that hold for all entries at once.")
    ] = False,
    fitted: Annotated[
        bool,
        typer.Option(
            "--fitted", help="Also tables that agree, whole and biased, in a folder `fitted` inside."
        ),
    ] = False,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Count a file without records.")] = False,
) -> None:
    """Count records, add exact noise, and write tables with margins of error and a statement for auditors."""
    import dualmech as dm
    from dualmech import files, validate
    from dualmech.crosscheck.command import inputs, report
    from dualmech.display import counted
    from dualmech.publishing.fitting.released import layouts_of
    from dualmech.publishing.release import plan

    with passing("reading") as line:
        validate.probability(level=level)
        files.check_new_folder(output)
        answer = inputs.read_solution(source)
        if answer is None:
            raise UsageError(_no_solution(source))
        if fitted:
            layouts_of(plan(answer)[1])  # which refuses what is too large to fit, before anything is drawn
        line.say("drawing")
        released = dm.release(answer, data, rho=rho, allow_empty=allow_empty)
        line.say("writing")
        names = released.write(output, level, simultaneous)
        if fitted:
            line.say("fitting")
            agreeing = released.fitted(integer=True)
            agreeing.write(Path(output) / "fitted")
    out = report.console()
    for text in (
        f"written: {counted(len(names) - 2, 'table')}, {names[-2]} and {names[-1]} in {output}",
        f"Privacy: rho is at most {released.rho_text} (zCDP), as a fraction in the statement; "
        f"epsilon = {released.epsilon(1e-9):.6g} at delta = 1e-09.",
    ):
        out.print(text, markup=False, soft_wrap=True)
    if fitted:
        text = f"fitted: whole tables that agree, and are biased, in {Path(output) / 'fitted'}; gap {agreeing.gap:.2g}"
        out.print(text, markup=False, soft_wrap=True)


def _no_solution(source: str) -> str:
    """Say why a text names no solution, and what to do."""
    if not Path(source).exists():
        return f"{source}: there is no such file; release takes records, then the file of a solution"
    told = f"release takes records, then the file of a solution, which {source} is not"
    if Path(source).suffix.lower() == ".toml":
        return f"{told}: make one of it, dualmech solve {source} -o plan.npz"
    return told
