"""Measure from the command line: ``python -m dualmech.crosscheck.benchmarks [NAME …] [--no-reference]``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Annotated

import typer
from rich.table import Table

from dualmech.crosscheck import report
from dualmech.crosscheck.benchmarks.fitness import BENCHMARKS, measure, measure_against_reference

THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

AGAINST_REFERENCE = "reference"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(help="Only cases whose name begins so.")] = None,
    reference: Annotated[
        bool, typer.Option(help="Also time the reference layer on prefix 64 (minutes).")
    ] = True,
    one: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure the fast layer and print one line a case."""
    if one:
        print(
            json.dumps(
                measure_against_reference() if one == AGAINST_REFERENCE else measure(BENCHMARKS[int(one)])
            )
        )
        return
    out = report.console()
    chosen = [
        i
        for i, case in enumerate(BENCHMARKS)
        if not names or any(case.name.startswith(name) for name in names)
    ]
    table = Table(
        title="fitness for use, fast layer; seconds are medians and include the certificate",
        title_justify="left",
    )
    headings = (
        "workload",
        "m x d",
        "optimum at most",
        "gap",
        "asked",
        "decompositions",
        "allowed",
        "seconds",
        "MiB",
        "threads",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    with report.progress("cases"):
        for index in chosen:
            case, found = BENCHMARKS[index], _in_own_process(str(index), BENCHMARKS[index].threads)
            table.add_row(
                case.name,
                f"{found['queries']} x {found['cells']}",
                f"{found['objective']:.9g}",
                *(f"{found['gap']:.1e}", f"{case.tol:.0e}"),
                *(str(found["decompositions"]), str(case.most_decompositions)),
                *(f"{found['seconds']:.3g}", f"{found['mebibytes']:.0f}", str(case.threads)),
            )
    out.print(table)
    if reference and not names:
        found = _in_own_process(AGAINST_REFERENCE, 1)
        out.print(
            f"prefix 64, one process and thread: fast {found['fast seconds']:.3g} s (gap {found['fast gap']:.1e}), "
            f"reference with Clarabel {found['reference seconds']:.3g} s (gap {found['reference gap']:.1e}): "
            f"{found['ratio']:.0f} times faster"
        )


def _in_own_process(which: str, threads: int) -> dict[str, float]:
    """Measure in a fresh process, so that threads can be set and peak memory is the case's own."""
    environment = os.environ | {name: str(threads) for name in THREADS}
    command = [sys.executable, "-m", "dualmech.crosscheck.benchmarks", "--one", which]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    app()
