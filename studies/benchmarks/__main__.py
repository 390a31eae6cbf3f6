"""Measure from the command line: ``python -m dualmech.studies.benchmarks [NAME …] [--no-reference]``.

Names compare solvers instead: ``peers`` total variance with other libraries that are installed, ``epochs`` that of
several epochs (its cases alone: ``epochs:``); ``softmax`` SM-II with others; ``program1`` the weighting of
eigen-queries, and ``common`` common mechanisms, with general backends; ``local`` the solvers of local privacy with each
other, and the time of a step of gradient descent (ten minutes); ``start`` a small solve from the command line.
``growth`` says how time and memory grow on each geometry;
``records`` counts 100 million of them on engines (extra ``engines``, 4 GB of disk). ``--plots FOLDER`` draws
``softmax`` and ``growth``.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Annotated, Any

import typer

from dualmech.crosscheck import printing
from dualmech.crosscheck.printing import table
from dualmech.studies.benchmarks import contest, counting, growth, local
from dualmech.studies.benchmarks.contest import Contest, Timing
from dualmech.studies.benchmarks.layers import (
    BENCHMARKS,
    Benchmark,
    measure,
    measure_against_reference,
    measure_start,
)

THREADS = ("DUALMECH_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

AGAINST_REFERENCE, LOCAL, GROWTH, WAY, RECORDS = "reference", "local", "growth", "way", "records"
START = "start"

CONTESTS = {
    "peers": contest.CONTEST,
    "epochs": contest.EPOCHS_CONTEST,
    "softmax": contest.SOFTMAX_CONTEST,
    "program1": contest.PROGRAM1_CONTEST,
    **contest.CONTESTS,
}
"""Comparisons of solvers, by the name that runs them."""

HEADINGS = (
    *("workload", "m x d", "optimum at most", "gap", "asked", "steps", "allowed"),
    *("CPU s", "limit ratio", "wall s", "MiB", "threads", "load"),
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Only cases whose name begins so; or of: peers, epochs, softmax, program1, common, local, growth, "
            "records, start."
        ),
    ] = None,
    reference: Annotated[bool, typer.Option(help="Also time the reference layer on prefix 64 (minutes).")] = True,
    folder: Annotated[str, typer.Option("--plots", help="Draw `softmax` or `growth` into this folder.")] = "",
    one: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure the fast layer, one line per case; steps are decompositions, of query weighting factorisations."""
    if one:
        print(json.dumps(_measure(one)))
        return
    contests = [contest for contest in CONTESTS if any(contest.startswith(name) for name in names or [])]
    for title in contests:
        _compare(title, CONTESTS[title], folder)
    if LOCAL in (names or []):
        for laid in local.tables(_in_own_process(LOCAL, 1)):
            printing.console().print(laid)
    if GROWTH in (names or []):
        _growth(folder)
    if RECORDS in (names or []):
        with counting.written() as place:
            measured = [_in_own_process(f"{RECORDS}:{method}:{place}", 2) for method in counting.METHODS]
        printing.console().print(counting.lay_out(measured))
    if START in (names or []):
        printing.console().print(_start_comparison(measure_start()))
    if contests or {LOCAL, GROWTH, RECORDS, START} & {*(names or [])}:
        return
    title = "fast layer: steps are decompositions, seconds medians from the workload to the certificate"
    rows = (
        _row(case, _in_own_process(str(index), case.threads))
        for index, case in enumerate(BENCHMARKS)
        if not names or any(case.name.startswith(name) for name in names)
    )
    out = printing.console()
    out.print(table(title, HEADINGS, rows, ()))
    if not names:
        out.print(_start_comparison(measure_start()))
    if reference and not names:
        out.print(_comparison(_in_own_process(AGAINST_REFERENCE, 1)))


def _measure(which: str) -> object:
    if which in CONTESTS:
        return CONTESTS[which].measure()
    if which == LOCAL:
        return local.measure()
    if which.startswith(RECORDS):
        return counting.measure(*which.split(":")[1:])
    if which.startswith(WAY):
        return growth.measure_way(int(which.split(":")[1]))
    if which.startswith(GROWTH):
        return growth.measure(*map(int, which.split(":")[1:]))
    return measure_against_reference() if which == AGAINST_REFERENCE else measure(BENCHMARKS[int(which)])


def _compare(name: str, compared: Contest, folder: str) -> None:
    """Print a comparison of solvers, and draw that of SM-II where a folder is given."""
    drawn = bool(folder) and compared is contest.SOFTMAX_CONTEST
    if drawn:
        printing.check_drawable(folder)
    entries = [Timing(**record) for record in _in_own_process(name, 1)]
    out = printing.console()
    out.print(compared.table(entries))
    for path in contest.draw(entries, folder) if drawn else []:
        out.print(f"drawn: {path}")


def _growth(folder: str) -> None:
    """Print how time and memory grow, every size in a process of its own, and draw it where a folder is given."""
    if folder:
        printing.check_drawable(folder)
    pairs = [(index, size) for index, case in enumerate(growth.CASES) for size in case.sizes]
    measured = [_in_own_process(f"{GROWTH}:{index}:{size}", 1) for index, size in pairs]
    out = printing.console()
    out.print(growth.lay_out(measured))
    out.print(growth.lay_out_way([_in_own_process(f"{WAY}:{attribute}", 1) for attribute in growth.ATTRIBUTES]))
    for path in growth.draw(measured, folder) if folder else []:
        out.print(f"drawn: {path}")


def _row(case: Benchmark, measured: dict[str, float]) -> tuple[str, ...]:
    return (
        case.name,
        f"{measured['queries']} x {measured['cells']}",
        f"{measured['objective']:.9g}",
        f"{measured['gap']:.1e}",
        f"{case.tol:.0e}",
        str(measured["steps"]),
        str(case.most_steps),
        f"{measured['processor']:.3g}",
        "" if math.isnan(measured["limit ratio"]) else f"{measured['limit ratio']:.2g}",
        *(f"{measured['seconds']:.3g}", f"{measured['mebibytes']:.0f}"),
        *(str(case.threads), f"{measured['load']:.1f}"),
    )


def _comparison(measured: dict[str, float]) -> str:
    return (
        f"prefix 64, one process and thread: fast {measured['fast seconds']:.3g} s (gap {measured['fast gap']:.1e}), "
        f"reference with Clarabel {measured['reference seconds']:.3g} s (gap {measured['reference gap']:.1e}): "
        f"{measured['ratio']:.0f} times faster"
    )


def _start_comparison(measured: dict[str, float]) -> str:
    """Compare with the libraries alone, as the limit ratio does with decompositions."""
    return (
        f"dualmech solve prefix:16 {measured['solve']:.2f} s by the clock, loading NumPy and SciPy alone "
        f"{measured['libraries']:.2f} s: {measured['solve'] / measured['libraries']:.1f} times as long"
    )


def _in_own_process(which: str, threads: int) -> Any:
    """Measure in a fresh process, so that threads can be set and peak memory is the case's own."""
    environment = os.environ | {name: str(threads) for name in THREADS}
    command = [sys.executable, "-m", "dualmech.studies.benchmarks", "--one", which]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    app()
