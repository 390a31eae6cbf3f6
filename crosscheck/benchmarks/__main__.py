"""Measure from the command line: ``python -m dualmech.crosscheck.benchmarks [NAME …] [--no-reference]``.

The name ``softmax`` compares SM-II with other solvers instead; ``--plots FOLDER`` draws that comparison.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Annotated, Any

import typer
from rich.table import Table

from dualmech.crosscheck import plots, report
from dualmech.crosscheck.benchmarks import softmax
from dualmech.crosscheck.benchmarks.layers import BENCHMARKS, Benchmark, measure, measure_against_reference

THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

AGAINST_REFERENCE = "reference"

SOFTMAX = "softmax"

HEADINGS = (
    "workload",
    "m x d",
    "optimum at most",
    "gap",
    "asked",
    "steps",
    "allowed",
    "seconds",
    "MiB",
    "threads",
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def run(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only cases whose name begins so; or: softmax.")
    ] = None,
    reference: Annotated[
        bool, typer.Option(help="Also time the reference layer on prefix 64 (minutes).")
    ] = True,
    folder: Annotated[str, typer.Option("--plots", help="Draw `softmax` into this folder.")] = "",
    one: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure the fast layer and print one line a case; steps are decompositions, of query weighting factorisations."""
    if one:
        print(json.dumps(_measured(one)))
        return
    if names == [SOFTMAX]:
        _compare_softmax(folder)
        return
    title = "fast layer: steps are decompositions, seconds medians from the workload to the certificate"
    table = Table(title=title, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for index, case in enumerate(BENCHMARKS):
        if not names or any(case.name.startswith(name) for name in names):
            table.add_row(*_row(case, _in_own_process(str(index), case.threads)))
    out = report.console()
    out.print(table)
    if reference and not names:
        out.print(_comparison(_in_own_process(AGAINST_REFERENCE, 1)))


def _measured(which: str) -> Any:
    if which == SOFTMAX:
        return softmax.measure()
    return measure_against_reference() if which == AGAINST_REFERENCE else measure(BENCHMARKS[int(which)])


def _compare_softmax(folder: str) -> None:
    """Print the comparison of SM-II with other solvers, and draw it where a folder is given."""
    if folder:
        plots.check_drawable(folder)
    entries = [softmax.Entry(**found) for found in _in_own_process(SOFTMAX, 1)]
    out = report.console()
    out.print(softmax.table(entries))
    for path in softmax.draw(entries, folder) if folder else []:
        out.print(f"drawn: {path}")


def _row(case: Benchmark, found: dict[str, float]) -> tuple[str, ...]:
    return (
        case.name,
        f"{found['queries']} x {found['cells']}",
        f"{found['objective']:.9g}",
        f"{found['gap']:.1e}",
        f"{case.tol:.0e}",
        str(found["steps"]),
        str(case.most_steps),
        f"{found['seconds']:.3g}",
        f"{found['mebibytes']:.0f}",
        str(case.threads),
    )


def _comparison(found: dict[str, float]) -> str:
    return (
        f"prefix 64, one process and thread: fast {found['fast seconds']:.3g} s (gap {found['fast gap']:.1e}), "
        f"reference with Clarabel {found['reference seconds']:.3g} s (gap {found['reference gap']:.1e}): "
        f"{found['ratio']:.0f} times faster"
    )


def _in_own_process(which: str, threads: int) -> Any:
    """Measure in a fresh process, so that threads can be set and peak memory is the case's own."""
    environment = os.environ | {name: str(threads) for name in THREADS}
    command = [sys.executable, "-m", "dualmech.crosscheck.benchmarks", "--one", which]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    app()
