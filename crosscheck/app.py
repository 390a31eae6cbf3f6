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
from enum import StrEnum
from typing import Annotated

import typer

from dualmech import fast, files, storage
from dualmech.crosscheck.inputs import Request, read_covariance
from dualmech.errors import DualmechError, InvalidInputError, UncertifiedWarning
from dualmech.solution import Progress, Solution

app = typer.Typer(
    help="Optimal mechanisms for private linear queries, with a certificate beside every number.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Layer(StrEnum):
    """Which solver answers."""

    FAST = "fast"
    REFERENCE = "reference"


Workload = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD", help="A built-in such as prefix:64 or marginals:2x2x63:1,2, or a file."
    ),
]
Targets = Annotated[
    str | None, typer.Option(help="Variance targets: one number, or a file of one a query. [default: 1]")
]
Margins = Annotated[
    str | None, typer.Option("--moe", help="Targets as margins of error instead: a number or a file.")
]
Quantile = Annotated[float, typer.Option("--z", help="Margin of error in standard deviations.")]
Rho = Annotated[
    float | None, typer.Option(help="Privacy first: spend this ρ (zCDP) and minimise the factor on targets.")
]
Epsilon = Annotated[float | None, typer.Option(help="Privacy first: spend (ε, δ), with --delta.")]
Delta = Annotated[
    float | None, typer.Option(help="δ at which ε is spent or reported. [default for reports: 1e-9]")
]
Neighbours = Annotated[
    str, typer.Option(help="add-remove, replace, either with :RECORDS a person, or a file of differences.")
]

REPORTED_DELTA = 1e-9


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)
        if layer is Layer.FAST:
            with report.progress("eigendecompositions") as callback:
                answer = fast.solve(problem, tol=1e-6 if tol is None else tol, callback=callback)
        else:
            from dualmech import reference

            answer = reference.solve(problem, backend=backend or "CLARABEL", tol=tol)
    if output is not None:
        storage.save_solution(answer, output)
    report.solution_report(report.console(), answer, z, REPORTED_DELTA if delta is None else delta)
    _leave(answer)


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
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Tables to print. [default: fitness/2]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only what takes seconds.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Rows to solve at a time.")] = 1,
) -> None:
    """Print a paper's table beside certified values of both layers."""
    from dualmech.crosscheck import report
    from dualmech.crosscheck.agreement import Agreement
    from dualmech.crosscheck.tables import TABLES, crosscheck_table

    wanted = tables or [next(iter(TABLES))]
    unknown = [name for name in wanted if name not in TABLES]
    if unknown:
        raise InvalidInputError(f"unknown table {unknown[0]!r}; known are {', '.join(TABLES)}")
    out, outcomes = report.console(), set()
    for name in wanted:
        with report.progress("rows") as tick:
            rows = []
            for count, row in enumerate(TABLES[name](quick, jobs), start=1):
                rows.append(row)
                tick(Progress(count, row.comparison.objective, row.comparison.lower_bound, 0.0, 0.0))
        out.print(crosscheck_table(rows, f"{name}: {rows[0].case.source} (squared privacy cost)"))
        outcomes |= {row.comparison.outcome for row in rows}
    if Agreement.DISAGREE in outcomes:
        raise typer.Exit(4)
    raise typer.Exit(3 if Agreement.WIDE in outcomes else 0)


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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Greek letters gets question marks
    try:
        app()
    except (DualmechError, OSError) as error:
        print(f"dualmech: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)


def _leave(answer: Solution) -> None:
    raise typer.Exit(0 if answer.certificate.certifies(answer.tol) else 3)


def _threads() -> str:
    """Return the thread counts that the environment sets; BLAS takes all cores where it sets none."""
    names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
    chosen = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return ", ".join(chosen) or f"not set, up to {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
