"""SM-II beside the dual solver and general backends on the prefixes of Table 2: seconds and proven gaps, in one run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from dualmech import fast, workloads
from dualmech.crosscheck import plots
from dualmech.errors import UncertifiedWarning
from dualmech.problems.fitness import FitnessForUse
from dualmech.solution import Solution

SIZES = (2, 4, 8, 16, 32, 64)

BOUND_TOLERANCE = 1e-9
"""Gap to which the optimum is known that answers are held against."""

LONG = 1.0
"""Seconds above which a solve is measured once."""

REPEATS = 5

LONGEST = 60.0
"""Seconds after which gradient descent gives up."""

MOST_STEPS = 10**7

FIFTY = 50
"""Conjugate gradients a step instead of the paper's five: enough to see what the Hessian is worth."""

DUAL = "dual solver"

HEADINGS = ("d", "solver", "seconds", "ratio", "proven gap", "above the optimum", "steps", "status")


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to solve Problem 1, how it is drawn, and the largest size that it is given, with the reason."""

    name: str
    solve: Callable[[FitnessForUse], Solution]
    colour: str
    line: str = "-"
    largest: int = SIZES[-1]
    skipped: str = ""


def _softmax(method: str, problem: FitnessForUse, **options: Any) -> Solution:
    return fast.solve(
        problem,
        method=method,
        options=fast.SoftmaxOptions(**options),
        max_iterations=MOST_STEPS,
        time_limit=LONGEST,
    )


def _on_queries(problem: FitnessForUse) -> Solution:
    """Run SM-II on the queries themselves as basis, where conjugate gradients have less to do."""
    stated = FitnessForUse(problem.workload, problem.targets, basis=problem.workload.dense())
    return _softmax("softmax_newton", stated)


def _reference(backend: str, formulation: str, problem: FitnessForUse) -> Solution:
    from dualmech import reference

    return reference.solve(problem, backend=backend, formulation=formulation)


CONTENDERS = (
    Contender(DUAL, fast.solve, "#1b1b1b"),
    Contender("SM-II", partial(_softmax, "softmax_newton"), "#0072b2"),
    Contender(
        "SM-II, printed Hessian", partial(_softmax, "softmax_newton", hessian="printed"), "#0072b2", "--"
    ),
    Contender("SM-II, 50 CG", partial(_softmax, "softmax_newton", conjugate_gradients=FIFTY), "#56b4e9"),
    Contender(
        "SM-II, 50 CG, printed",
        partial(_softmax, "softmax_newton", conjugate_gradients=FIFTY, hessian="printed"),
        "#56b4e9",
        "--",
    ),
    Contender("SM-II, B = W", _on_queries, "#009e73"),
    Contender(
        "gradient descent",
        partial(_softmax, "softmax_gradient"),
        "#cc79a7",
        largest=16,
        skipped=f"it uses up its {LONGEST:g} s from d = 8 on",
    ),
    Contender(
        "Clarabel",
        partial(_reference, "CLARABEL", "schur"),
        "#d55e00",
        largest=32,
        skipped="d = 64 takes it minutes; the benchmark of fitness for use has it",
    ),
    Contender("SCS", partial(_reference, "SCS", "sum"), "#e69f00"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One contender at one size; `ratio` is to the seconds of the dual solver in the same run."""

    cells: int
    solver: str
    seconds: float
    ratio: float
    gap: float
    above: float
    steps: int
    status: str


def measure() -> list[dict[str, Any]]:
    """Solve every size with every contender that is not too slow for it; seconds include the certificate."""
    entries: list[Entry] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)
        for contender in CONTENDERS:
            contender.solve(_problem(SIZES[0]))  # what is only loaded once is not measured
        for cells in SIZES:
            entries += _at_size(cells)
    return [asdict(entry) for entry in entries]


def _problem(cells: int) -> FitnessForUse:
    return FitnessForUse(workloads.prefix(cells), targets=1.0)


def _at_size(cells: int) -> list[Entry]:
    bound = fast.solve(_problem(cells), tol=BOUND_TOLERANCE).lower_bound
    entries: list[Entry] = []
    for contender in CONTENDERS:
        if cells > contender.largest:
            continue
        seconds: list[float] = []
        while len(seconds) < REPEATS and (not seconds or seconds[-1] < LONG):
            begun = time.perf_counter()
            answer = contender.solve(_problem(cells))
            seconds.append(time.perf_counter() - begun)
        middle = float(np.median(seconds))
        base = entries[0].seconds if entries else middle
        entries.append(
            Entry(
                cells,
                contender.name,
                middle,
                middle / base,
                answer.gap,
                answer.objective / bound - 1,
                answer.iterations,
                answer.status.name,
            )
        )
    return entries


def table(entries: list[Entry]) -> Table:
    """Lay the entries out, one line each, and say which sizes were left out."""
    left_out = [
        f"{each.name}: up to d = {each.largest}, {each.skipped}" for each in CONTENDERS if each.skipped
    ]
    laid = Table(
        title="prefix workloads, targets 1: medians of seconds, certificates included",
        title_justify="left",
        caption="; ".join(left_out),
        caption_justify="left",
    )
    for heading in HEADINGS:
        laid.add_column(heading, justify="left" if heading in ("solver", "status") else "right")
    for entry in entries:
        laid.add_row(
            str(entry.cells),
            entry.solver,
            f"{entry.seconds:.3g}",
            f"{entry.ratio:.3g}",
            f"{entry.gap:.1e}",
            f"{max(entry.above, 0.0):.1e}",
            str(entry.steps),
            entry.status,
            end_section=entry.solver == CONTENDERS[-1].name,
        )
    return laid


def draw(entries: list[Entry], folder: str) -> list[Path]:
    """Draw seconds and proven gaps over d into a folder, as SVG and PNG.

    Raises
    ------
    BackendError, FileFormatError
        As `plots.check_drawable`.
    """
    return plots.paint("softmax-prefix", folder, partial(_panels, entries), columns=2)


def _panels(entries: list[Entry], axes: Any) -> None:
    for contender in CONTENDERS:
        mine = [entry for entry in entries if entry.solver == contender.name]
        cells = [entry.cells for entry in mine]
        for panel, values in zip(
            axes, ([each.seconds for each in mine], [each.gap for each in mine]), strict=True
        ):
            panel.plot(
                cells, values, "o" + contender.line, ms=3.5, color=contender.colour, label=contender.name
            )
    for panel, what in zip(axes, ("seconds", "proven gap"), strict=True):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(SIZES, [str(size) for size in SIZES])
        panel.set(xlabel="d")
        panel.set_title(what, loc="left", fontsize=10)
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
