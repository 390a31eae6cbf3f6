"""How time and memory grow with the size of a problem, on every geometry, and with which exponents."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from rich.console import Group

import dualmech as dm
from dualmech import fast, workloads
from dualmech.crosscheck.printing import TextTable
from dualmech.crosscheck.sheet import Columns, Row, drawn
from dualmech.studies.benchmarks.layers import Measured, clocked, in_own_process, peak_mebibytes
from dualmech.watching import without_warnings

TOLERANCE = 1e-4  # requested gap


@dataclass(frozen=True, slots=True)
class Growth:
    """Problems of growing size on one geometry; the workload is of a kind that suits it."""

    geometry: str
    what: str  # the unit of the size
    sizes: tuple[int, ...]
    workload: Callable[[int], dm.Workload]


def _ranges(cells: int, queries: int) -> dm.Workload:
    return workloads.random_range(cells, queries, rng=0)


def _tables(cells: int) -> dm.Workload:
    domain = {"age": cells, "sex": 2, "race": 5}
    return workloads.query_tables(domain, {"age": workloads.prefix(cells)}, ways=(1, 2))


CASES = (
    Growth("dense", "cells d, 2 d ranges", (128, 256, 512, 1024), lambda d: _ranges(d, 2 * d)),
    Growth("dense", "ranges m on 128 cells", (512, 1024, 2048, 4096), partial(_ranges, 128)),
    Growth(
        *("product", "cells of each of two factors", (64, 128, 256, 512)),
        lambda cells: workloads.kron(workloads.prefix(cells), workloads.prefix(cells)),
    ),
    Growth(
        *("blocks", "attributes, up to three at a time", (10, 20, 40, 80)),
        lambda attributes: workloads.marginals([10] * attributes, ways=(1, 2, 3)),
    ),
    Growth("split", "cells of one of three attributes", (64, 128, 256, 512), _tables),
    Growth("stream", "running sums", (4096, 16_384, 65_536, 262_144), workloads.prefix),
)


def measure(index: int, size: int) -> Measured:
    case, before = CASES[index], peak_mebibytes()
    with without_warnings():
        fast.solve(dm.FitnessForUse(workloads.prefix(8)), tol=TOLERANCE)  # loading happens once and is not measured
        with clocked() as clock:
            answer = fast.solve(dm.FitnessForUse(case.workload(size), geometry=case.geometry), tol=TOLERANCE)
    figures = {"case": index, "geometry": case.geometry, "what": case.what, "size": size}
    figures |= {"mebibytes": peak_mebibytes() - before, "steps": answer.iterations, "proven": answer.gap}
    return figures | clock


def exponent(measured: Sequence[Measured], name: str, least: float) -> float:
    """Return the exponent e of the line ``log y = e log size + c`` through values that are not too small, or NaN."""
    points = [(row["size"], row[name]) for row in measured if row[name] >= least]
    if len(points) < 2:
        return float("nan")
    sizes, values = np.log(np.array(points, dtype=np.float64)).T
    return float(np.polyfit(sizes, values, 1)[0])


COLUMNS: Columns = (
    *(("geometry", "{geometry}"), ("what grows", "{what}"), ("size", "{size}"), ("CPU s", "{processor:.3g}")),
    *(("wall s", "{seconds:.3g}"), ("MiB more", "{mebibytes:.0f}"), ("decompositions", "{steps}")),
    ("gap", "{proven:.0e}"),
)


def lay_out(measured: Sequence[Measured]) -> TextTable:
    notes = []
    for index, case in enumerate(CASES):
        rows = [row for row in measured if row["case"] == index]
        # Smaller figures say more of fixed costs than of the size.
        powers = {"CPU time": exponent(rows, "processor", 0.05), "memory": exponent(rows, "mebibytes", 8.0)}
        words = ", ".join(
            f"{name} as the power {power:.1f}" if np.isfinite(power) else f"{name} too small to tell"
            for name, power in powers.items()
        )
        notes.append(f"{case.geometry}, {case.what}: {words}.")
    busy = max(row["load"] for row in measured)
    title = f"growth of fitness for use to a gap of {TOLERANCE:.0e}, one thread (load up to {busy:.1f})"
    return drawn(title, COLUMNS, map(Row, measured), words=("geometry", "what grows"), notes=notes)


# Work that solves nothing: what it takes beside the objects that it begins with, which are made before.


def _selecting(cells: int) -> Callable[[], object]:
    sums, half = workloads.prefix(cells), np.arange(0, cells, 2)
    return lambda: sums.select(half).apply(np.ones(cells))


def _recording(entries: int) -> Callable[[], object]:
    from dualmech.publishing.ledger import Ledger

    plan = dm.plan_release(fast.solve(dm.FitnessForUse(workloads.prefix(4), 1e6)))
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "ledger.toml"
    path.write_text('limit = "1000"\n')
    Ledger.read(path).record(plan, "", "")
    head, listed, entry = path.read_text().partition("\n[[releases]]\n")
    path.write_text(head + (listed + entry) * entries)
    ledger = Ledger.read(path)

    def record() -> None:
        kept = ledger
        for _ in range(RECORDED):
            kept = kept.record(plan, "", "")
        folder.cleanup()

    return record


def _differing(cells: int) -> Callable[[], object]:
    differences = sp.csc_array(sp.diags_array([np.ones(cells), -np.ones(cells - 1)], offsets=[0, -1]))
    sums = workloads.prefix(cells)
    return lambda: dm.FitnessForUse(sums, neighbours=differences)


RECORDED = 100  # releases that are recorded one after another

ACTIONS: dict[str, tuple[str, tuple[int, ...], Callable[[int], Callable[[], object]]]] = {
    "select": ("running sums, half of them chosen and answered", (2**16, 2**18, 2**20), _selecting),
    "neighbours": ("cells, as many sparse differences", (512, 1024, 2048), _differing),
    "ledger": (f"entries before {RECORDED} more", (100, 1000, 10_000), _recording),
}
"""By name: what grows, the sizes, and what makes the work of a size ready."""


def measure_action(name: str, size: int) -> Measured:
    work = ACTIONS[name][2](size)
    before = peak_mebibytes()
    with clocked() as clock:
        work()
    return {"name": name, "what": ACTIONS[name][0], "size": size, "mebibytes": peak_mebibytes() - before} | clock


ACTION_COLUMNS: Columns = (
    *(("work", "{name}"), ("what grows", "{what}"), ("size", "{size}"), ("CPU s", "{processor:.3g}")),
    *(("wall s", "{seconds:.3g}"), ("MiB more", "{mebibytes:.0f}")),
)


def action_report(sizes: Mapping[str, Sequence[int]] | None = None) -> TextTable:
    """Measure every action at its sizes, or at those that are given."""
    measured, notes = list[Measured](), list[str]()
    for name, (_, usual, _) in ACTIONS.items():
        rows = [in_own_process(measure_action, name, size) for size in (sizes or {}).get(name, usual)]
        measured += rows
        notes.append(f"{name}: CPU time as the power {exponent(rows, 'processor', 0.0):.1f}.")
    title = "growth of other work, one thread"
    return drawn(title, ACTION_COLUMNS, map(Row, measured), words=("work", "what grows"), notes=notes)


def report() -> Group:
    pairs = [(index, size) for index, case in enumerate(CASES) for size in case.sizes]
    return Group(lay_out([in_own_process(measure, *pair) for pair in pairs]), action_report())


# A release of many tables, step by step: what grows faster than the number of tables shows here first.

STEPS = ("count records", "draw", "estimates of all tables", "write", "simulate")


def measure_release(attributes: int) -> Measured:
    """Return the processor's seconds of each step of a release of all pairs of attributes of three values."""
    with without_warnings():
        answer = fast.solve(dm.FitnessForUse(workloads.marginals([3] * attributes, ways=2), 1e6), tol=TOLERANCE)
    records = np.random.default_rng(0).integers(0, 3, (2000, attributes))
    clocks = []

    def run(step: Callable[[], Any]) -> Any:
        with clocked() as clock:
            result = step()
        clocks.append(clock["processor"])
        return result

    counts = run(lambda: dm.records.count(records, answer.mechanism.needed_tables))
    released = run(lambda: dm.release(answer, counts))
    run(lambda: [released.estimates(name) for name in released.tables])
    with tempfile.TemporaryDirectory() as folder:
        run(lambda: released.write(f"{folder}/tables"))
    run(lambda: answer.mechanism.simulate(counts, 0))
    return {"size": len(released.tables)} | dict(zip(STEPS, clocks, strict=True))


def release_report(attributes: Sequence[int] = (25, 50, 100)) -> TextTable:
    measured = [in_own_process(measure_release, count) for count in attributes]
    columns: Columns = (
        ("step", "{step}"),
        *((f"CPU s, {row['size']} tables", f"{{seconds[{place}]:.2f}}") for place, row in enumerate(measured)),
        ("power of the number", "{power:.2f}"),
    )
    rows = [
        Row({"step": step, "seconds": [row[step] for row in measured], "power": exponent(measured, step, 0.05)})
        for step in STEPS
    ]
    return drawn("a release of all pairs of attributes of three values", columns, rows, words=("step",))
