"""How time and memory grow with the size of a problem, on every geometry: exponents, and a picture of them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dualmech import fast, workloads
from dualmech.crosscheck import printing
from dualmech.crosscheck.judging import judge
from dualmech.crosscheck.printing import TextTable, table
from dualmech.crosscheck.proofs.prove import prove
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.problems.fitness import FitnessForUse
from dualmech.publishing.prices import prices_in_words
from dualmech.publishing.release import plan_release
from dualmech.storage.store import load as load_solution
from dualmech.storage.store import save
from dualmech.studies.benchmarks.layers import load, peak_mebibytes
from dualmech.watching import without_warnings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Measured = dict[str, Any]  # as JSON has it

TOLERANCE = 1e-4  # requested gap

WAY_TARGET = 1e6  # variance of every answer

HEADINGS = ("geometry", "what grows", "size", "CPU s", "wall s", "MiB more", "decompositions", "gap")

LEAST_SECONDS, LEAST_MEBIBYTES = 0.05, 8.0
"""Below these a figure says more of fixed costs than of the size: it counts for no exponent."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Problems of growing size on one geometry; the workload is of a kind that suits it."""

    geometry: str
    what: str  # the unit of the size
    sizes: tuple[int, ...]
    problem: Callable[[int], FitnessForUse]
    colour: str


def _ranges(cells: int, queries: int) -> FitnessForUse:
    return FitnessForUse(workloads.random_range(cells, queries, rng=0), geometry="dense")


def _kron(cells: int) -> FitnessForUse:
    return FitnessForUse(workloads.kron(workloads.prefix(cells), workloads.prefix(cells)), geometry="product")


def _marginals(attributes: int) -> FitnessForUse:
    return FitnessForUse(workloads.marginals([10] * attributes, ways=(1, 2, 3)), geometry="blocks")


def _tables(cells: int) -> FitnessForUse:
    domain = {"age": cells, "sex": 2, "race": 5}
    return FitnessForUse(
        workloads.query_tables(domain, {"age": workloads.prefix(cells)}, ways=(1, 2)), geometry="split"
    )


def _stream(steps: int) -> FitnessForUse:
    return FitnessForUse(workloads.prefix(steps), geometry="stream")


CASES = (
    Growth("dense", "cells d, 2 d ranges", (128, 256, 512, 1024), lambda d: _ranges(d, 2 * d), "#0072b2"),
    Growth("dense", "ranges m on 128 cells", (512, 1024, 2048, 4096), partial(_ranges, 128), "#56b4e9"),
    Growth("product", "cells of each of two factors", (64, 128, 256, 512), _kron, "#009e73"),
    Growth("blocks", "attributes, up to three at a time", (10, 20, 40, 80), _marginals, "#d55e00"),
    Growth("split", "cells of one of three attributes", (64, 128, 256, 512), _tables, "#cc79a7"),
    Growth("stream", "running sums", (4096, 16_384, 65_536, 262_144), _stream, "#1b1b1b"),
)


def measure(case: int, size: int) -> Measured:
    benchmark, held, busy = CASES[case], peak_mebibytes(), load()
    with without_warnings():
        fast.solve(FitnessForUse(workloads.prefix(8)), tol=TOLERANCE)  # loading, which happens once, is not measured
        begun, spent = time.perf_counter(), time.process_time()
        answer = fast.solve(benchmark.problem(size), tol=TOLERANCE)
    return {
        "case": case,
        "size": size,
        "processor": time.process_time() - spent,
        "seconds": time.perf_counter() - begun,
        "mebibytes": peak_mebibytes() - held,
        "steps": answer.iterations,
        "gap": answer.gap,
        "load": busy,
    }


def exponent(measured: list[Measured], name: str, least: float) -> float:
    """Return the exponent e of the line ``log y = e log size + c`` through values that are not too small, or NaN."""
    points = [(row["size"], row[name]) for row in measured if row[name] >= least]
    if len(points) < 2:
        return float("nan")
    sizes, values = np.log(np.array(points, dtype=np.float64)).T
    return float(np.polyfit(sizes, values, 1)[0])


def lay_out(measured: list[Measured]) -> TextTable:
    rows, notes = [], []
    for index, case in enumerate(CASES):
        case_rows = [row for row in measured if row["case"] == index]
        for row in case_rows:
            rows.append(
                (
                    *(case.geometry, case.what, str(row["size"]), f"{row['processor']:.3g}"),
                    *(f"{row['seconds']:.3g}", f"{row['mebibytes']:.0f}", str(row["steps"])),
                    f"{row['gap']:.0e}",
                )
            )
        notes.append(f"{case.geometry}, {case.what}: {_grown(case_rows)}.")
    busy = max((row["load"] for row in measured), default=0.0)
    title = f"growth of fitness for use to a gap of {TOLERANCE:.0e}, one thread (load up to {busy:.1f})"
    return table(title, HEADINGS, rows, ("geometry", "what grows"), notes=notes)


def _grown(rows: list[Measured]) -> str:
    powers = {
        "CPU time": exponent(rows, "processor", LEAST_SECONDS),
        "memory": exponent(rows, "mebibytes", LEAST_MEBIBYTES),
    }
    return ", ".join(
        f"{name} as the power {power:.1f}" if np.isfinite(power) else f"{name} too small to tell"
        for name, power in powers.items()
    )


def draw(measured: list[Measured], folder: str) -> list[Path]:
    """Draw CPU seconds and memory over sizes into a folder, as SVG and PNG.

    Raises `BackendError` or `FileFormatError` as `plots.check_drawable`.
    """
    return printing.save_picture("growth", folder, _panels, measured, columns=2)


def _panels(axes: Sequence[Axes], measured: list[Measured]) -> None:
    titles = {"processor": "CPU seconds", "mebibytes": "memory above what loading takes, MiB"}
    for panel, (name, title) in zip(axes, titles.items(), strict=True):
        for index, case in enumerate(CASES):
            case_rows = [row for row in measured if row["case"] == index]
            panel.plot(
                [row["size"] for row in case_rows],
                [max(row[name], 1e-3) for row in case_rows],
                *("o-",),
                ms=3.5,
                color=case.colour,
                label=f"{case.geometry}: {case.what}",
            )
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set(xlabel="size", ylabel=title)
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))


# Each step of a user's way with many tables: growth faster than their number shows here first.


ATTRIBUTES = (50, 100, 200)  # of three values; the workload is all pairs


def measure_way(attributes: int) -> dict[str, float]:
    """Return the number of tables, and the seconds of each step from the workload to what may be published."""
    figures = {"tables": float(attributes * (attributes - 1) // 2)}
    begun = time.perf_counter()

    def took(step: str) -> None:
        nonlocal begun
        figures[step] = time.perf_counter() - begun
        begun = time.perf_counter()

    problem = FitnessForUse(workloads.marginals([3] * attributes, ways=2), WAY_TARGET)
    took("state")
    answer = fast.solve(problem, tol=TOLERANCE)
    took("solve")
    _ = answer.mechanism.variances(problem.workload), prices_in_words(answer)
    took("mechanism, variances, prices in words")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer.npz"
        save(answer, path)
        took("save")
        load_solution(path)
        took("load")
    judge(problem, answer.primal)
    took("judge")
    proof = prove(answer)
    took("prove")
    assert proof.is_of(problem)
    took("compare the proof with the problem")
    planned = plan_release(answer)
    took("plan a release")
    assert len(planned.tables) == figures["tables"]
    took("name its tables")
    planned.drawn.draw(_no_records(planned.drawn.mechanism), lambda _, count: np.zeros(count, dtype=object))
    took("draw it, but for the noise")
    return figures


def _no_records(mechanism: GaussianPrivacy) -> dict[object, object]:
    needed = mechanism.needed_tables
    return {axes: np.zeros([needed.domain.shape[axis] for axis in axes]) for axes in needed.axes}


def lay_out_way(measured: list[dict[str, float]]) -> TextTable:
    rows = []
    for step in [*measured[0]][1:]:
        points = [{"size": row["tables"], step: row[step]} for row in measured]
        power = exponent(points, step, LEAST_SECONDS)
        shown = f"{power:.1f}" if np.isfinite(power) else "too short to tell"
        rows.append((step, *(f"{row[step]:.3g}" for row in measured), shown))
    headings = ("step", *(f"s, {row['tables']:.0f} tables" for row in measured), "power of the number")
    return table("a user's way with all pairs of attributes of three values", headings, rows, ("step",))
