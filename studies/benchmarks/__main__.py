"""Measure from the command line: ``python -m dualmech.studies.benchmarks [NAME …] [--no-reference]``.

Names compare solvers instead: ``peers`` total variance with other libraries that are installed, ``epochs`` that of
several epochs (its cases alone: ``epochs:``); ``softmax`` SM-II with others; ``program1`` the weighting of
eigen-queries, and ``common`` common mechanisms, with general backends; ``local`` the solvers of local privacy with each
other, and the time of a step of gradient descent (ten minutes). ``growth`` says how time and memory grow on each
geometry; ``fitted`` fits tables of one data set to noisy ones; ``records`` counts 100 million
of them on engines (extra ``engines``, 4 GB of disk). ``--plots FOLDER`` draws ``softmax`` and ``growth``.
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
from dualmech.studies.benchmarks.layers import BENCHMARKS, Benchmark, measure, measure_against_reference

THREADS = ("DUALMECH_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

AGAINST_REFERENCE, LOCAL, GROWTH, FITTED, WAY, RECORDS = "reference", "local", "growth", "fitted", "way", "records"

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
            "fitted, records."
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
    contests = [each for each in CONTESTS if any(each.startswith(name) for name in names or [])]
    for each in contests:
        _compare(each, CONTESTS[each], folder)
    if LOCAL in (names or []):
        for laid in local.tables(_in_own_process(LOCAL, 1)):
            printing.console().print(laid)
    if GROWTH in (names or []):
        _growth(folder)
    if FITTED in (names or []):
        printing.console().print(growth.lay_out_fitted(_in_own_process(FITTED, 1)))
    if RECORDS in (names or []):
        with counting.written() as place:
            measured = [_in_own_process(f"{RECORDS}:{each}:{place}", 2) for each in counting.METHODS]
        printing.console().print(counting.lay_out(measured))
    if contests or {LOCAL, GROWTH, FITTED, RECORDS} & {*(names or [])}:
        return
    title = "fast layer: steps are decompositions, seconds medians from the workload to the certificate"
    rows = (
        _row(case, _in_own_process(str(index), case.threads))
        for index, case in enumerate(BENCHMARKS)
        if not names or any(case.name.startswith(name) for name in names)
    )
    out = printing.console()
    out.print(table(title, HEADINGS, rows, ()))
    if reference and not names:
        out.print(_comparison(_in_own_process(AGAINST_REFERENCE, 1)))


def _measure(which: str) -> object:
    if which in CONTESTS:
        return CONTESTS[which].measure()
    if which == LOCAL:
        return local.measure()
    if which == FITTED:
        return growth.measure_fitted()
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
    entries = [Timing(**found) for found in _in_own_process(name, 1)]
    out = printing.console()
    out.print(compared.table(entries))
    for path in contest.draw(entries, folder) if drawn else []:
        out.print(f"drawn: {path}")


def _growth(folder: str) -> None:
    """Print how time and memory grow, every size in a process of its own, and draw it where a folder is given."""
    if folder:
        printing.check_drawable(folder)
    asked = [(index, size) for index, case in enumerate(growth.CASES) for size in case.sizes]
    found = [_in_own_process(f"{GROWTH}:{index}:{size}", 1) for index, size in asked]
    out = printing.console()
    out.print(growth.lay_out(found))
    out.print(growth.lay_out_way([_in_own_process(f"{WAY}:{each}", 1) for each in growth.ATTRIBUTES]))
    for path in growth.draw(found, folder) if folder else []:
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
        f"{found['processor']:.3g}",
        "" if math.isnan(found["limit ratio"]) else f"{found['limit ratio']:.2g}",
        *(f"{found['seconds']:.3g}", f"{found['mebibytes']:.0f}"),
        *(str(case.threads), f"{found['load']:.1f}"),
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
    command = [sys.executable, "-m", "dualmech.studies.benchmarks", "--one", which]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    app()
