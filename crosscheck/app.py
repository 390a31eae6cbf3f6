"""The ``dualmech`` command.

Exit status: 0 done and certified, 1 bad input, 2 usage, 3 answered but not certified, 4 certified answers
disagree, 130 interrupted.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from dualmech import fast, files, storage
from dualmech.crosscheck.inputs import Request, read_covariance
from dualmech.crosscheck.options import (
    Delta,
    Epsilon,
    Layer,
    Margins,
    Neighbours,
    Quantile,
    Rho,
    Targets,
    Workload,
)
from dualmech.errors import DualmechError, InvalidInputError, UncertifiedWarning
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.refinement import Refinement
from dualmech.solution import Callback, Progress, Solution

if TYPE_CHECKING:
    from dualmech.crosscheck.agreement import Agreement
    from dualmech.crosscheck.tables import Computed

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


Posed: TypeAlias = FitnessForUse | PrivacyFirst


REPORTED_DELTA = 1e-9


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dualmech {importlib.metadata.version('dualmech')}")
        raise typer.Exit


@app.callback()
def command(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Optimal mechanisms for private linear queries, with a certificate beside every number."""


@app.command()
def solve(
    workload: Workload,
    targets: Targets = None,
    moe: Margins = None,
    z: Quantile = 1.645,
    rho: Rho = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    neighbours: Neighbours = "add-remove",
    layer: Annotated[
        Layer, typer.Option(help="The library's own solver, or the CVXPY program.")
    ] = Layer.FAST,
    backend: Annotated[
        str | None, typer.Option(help="CVXPY backend of the reference layer. [default: CLARABEL]")
    ] = None,
    tol: Annotated[
        float | None, typer.Option(help="Gap to prove. [default: 1e-6 fast, by backend otherwise]")
    ] = None,
    refine: Annotated[
        bool, typer.Option("--refine", help="Break ties: the optimum with the least sorted privacy profile.")
    ] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write the solution to this .npz file.")
    ] = None,
) -> None:
    """Find the best noise for a workload and prove how good it is."""
    from dualmech.crosscheck import report

    request = Request(workload, targets, moe, z, rho, epsilon, delta, neighbours)
    if backend is not None and layer is Layer.FAST:
        raise InvalidInputError("--backend belongs to --layer reference; the fast layer has none")
    if output is not None:
        if not output.lower().endswith(".npz"):
            raise InvalidInputError(f"output must be a path that ends in .npz, got {output!r}")
        files.check_writable(output)
    problem = request.problem()
    with warnings.catch_warnings(), report.progress("eigendecompositions") as callback:
        warnings.simplefilter("ignore", UncertifiedWarning)
        if refine:
            found = _refined(problem, layer, backend, tol)
            answer, stages = found.solution, found.stages
        else:
            answer, stages = _solved(problem, layer, backend, tol, callback), ()
    if output is not None:
        storage.save_solution(answer, output)
    out = report.console()
    report.solution_report(out, answer, z, REPORTED_DELTA if delta is None else delta)
    report.stage_lines(out, answer, stages)
    _leave(answer, *stages)


@app.command()
def judge(
    workload: Workload,
    targets: Targets = None,
    moe: Margins = None,
    z: Quantile = 1.645,
    rho: Rho = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    neighbours: Neighbours = "add-remove",
    covariance: Annotated[
        str | None,
        typer.Option(help="File with the covariance of the noise (on the cells, or on the basis)."),
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="File with a strategy matrix instead (unit noise).")
    ] = None,
    tol: Annotated[
        float, typer.Option(help="Distance from the optimum up to which the exit status is 0.")
    ] = 1e-6,
) -> None:
    """Say how far anybody's covariance or strategy is from the optimum."""
    from dualmech.crosscheck import judging, report

    if (covariance is None) == (strategy is None):
        raise InvalidInputError("give either --covariance FILE or --strategy FILE")
    problem = Request(workload, targets, moe, z, rho, epsilon, delta, neighbours).problem()
    if covariance is not None:
        given = read_covariance(problem, covariance)
    else:
        given = judging.covariance_of_strategy(problem, files.read_matrix(str(strategy), "strategy"))
    verdict = judging.judge(problem, given)
    report.verdict_report(report.console(), problem, verdict)
    raise typer.Exit(0 if verdict.certifies(tol) else 3)


@app.command()
def explain(workload: Workload, targets: Targets = None, neighbours: Neighbours = "add-remove") -> None:
    """Print the program, its dual, the optimal weights, the prices and the proof in words."""
    from dualmech.crosscheck import explanation, report

    problem = Request(workload, targets, neighbours=neighbours).accuracy_first()
    _leave(explanation.explain(report.console(), problem))


@app.command()
def crosscheck(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="fitness/table2 to fitness/table11, fitness/figure1 to fitness/figure3, fitness/all; "
            "eigen/alternative, eigen/ranges, eigen/marginals, eigen/designs, eigen/completion, "
            "eigen/reductions, eigen/relative, eigen/all. "
            "[default: fitness/table2]",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only what takes seconds.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Rows to solve at a time.")] = 1,
    data: Annotated[
        str | None, typer.Option(help="The Adult table as CSV, for eigen/relative; it is skipped without.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Draw figures into this folder, as SVG and PNG.")
    ] = None,
) -> None:
    """Print a paper's tables and figures beside certified values, with a verdict on what it printed."""
    from dualmech.crosscheck import plots, report
    from dualmech.crosscheck.agreement import Agreement
    from dualmech.crosscheck.tables import chosen, compute, with_data

    sheets = chosen(tables or [])
    if data is not None:
        sheets = with_data(sheets, data)
    if output is not None:
        if not any(sheet.picture for sheet in sheets.values()):
            raise InvalidInputError("--output takes the pictures of figures; no figure was named")
        plots.check_drawable(output)
    out = report.console()
    outcomes: set[Agreement] = set()
    batches = compute(list(sheets.values()), quick, jobs)
    for (name, sheet), rows in zip(sheets.items(), batches, strict=True):
        sheet.show(out, f"{name}: {sheet.source}", _watched(rows, outcomes))
        if output is not None and sheet.picture:
            for path in plots.draw(sheet.picture, output):
                out.print(f"written: {path}", markup=False, soft_wrap=True)
    if Agreement.DISAGREE in outcomes:
        raise typer.Exit(4)
    raise typer.Exit(3 if Agreement.WIDE in outcomes else 0)


def _watched(rows: Iterator[Computed], outcomes: set[Agreement]) -> Iterator[Computed]:
    """Yield rows as they are computed, with a line of progress in between, and note how each came out."""
    from dualmech.crosscheck import report

    done, widest = 0, 0.0
    while True:
        with report.progress("rows") as tell:
            if done:
                tell(Progress(done, 0.0, 0.0, widest, 0.0))
            row = next(rows, None)
        if row is None:
            return
        done, widest = done + 1, max(widest, row.gap)
        outcomes.add(row.outcome)
        yield row


@app.command()
def info() -> None:
    """Print versions, backends and threads."""
    from dualmech import reference
    from dualmech.crosscheck import report

    out = report.console()
    packages = ("dualmech", "numpy", "scipy", "cvxpy")
    out.print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages))
    out.print(f"Python {platform.python_version()} on {platform.machine()}")
    out.print(
        f"backends: {', '.join(f'{name} {version}' for name, version in reference.backends.installed().items())}"
    )
    out.print(f"BLAS threads: {_threads()}")


def main() -> None:
    """Run the command; an error of ours is one line on standard error and exit status 1."""
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
            sys.stdout.flush()  # a full disk, or a reader that left, shows here and not in a traceback at the end
    except (DualmechError, OSError) as error:
        print(f"dualmech: {' '.join(str(error).split())}", file=sys.stderr)
        if isinstance(error, OSError):
            # What could not be written is dropped: Python would try, and fail, once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _solved(
    problem: Posed, layer: Layer, backend: str | None, tol: float | None, callback: Callback
) -> Solution:
    if layer is Layer.FAST:
        return fast.solve(problem, tol=1e-6 if tol is None else tol, callback=callback)
    from dualmech import reference

    return reference.solve(problem, backend=backend or "CLARABEL", tol=tol)


def _refined(problem: Posed, layer: Layer, backend: str | None, tol: float | None) -> Refinement:
    if layer is Layer.FAST:
        return fast.refine(problem, tol=1e-9 if tol is None else tol)
    from dualmech import reference

    return reference.refine(problem, backend=backend or "CLARABEL", tol=tol)


def _leave(*answers: Solution) -> None:
    raise typer.Exit(0 if all(each.certificate.certifies(each.tol) for each in answers) else 3)


def _threads() -> str:
    """Return the thread counts that the environment sets; BLAS takes all cores where it sets none."""
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
    chosen = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return ", ".join(chosen) or f"not set, up to {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
