"""SM-II beside the dual solver and general backends on the prefixes of Table 2: seconds and proven gaps, in one run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from dualmech import fast, workloads
from dualmech.crosscheck.benchmarks.contest import Contender, Contest, Timing, by_reference
from dualmech.crosscheck.papers import plots
from dualmech.problems.fitness import FitnessForUse
from dualmech.solution import Solution

SIZES = (2, 4, 8, 16, 32, 64)

LONGEST = 60.0  # seconds after which gradient descent gives up

MOST_STEPS = 10**7

FIFTY = 50  # conjugate gradients a step instead of the paper's five: enough to see what the Hessian is worth

DUAL = "dual solver"


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
        partial(by_reference, backend="CLARABEL", formulation="schur"),
        "#d55e00",
        largest=32,
        skipped="d = 64 takes it minutes; the benchmark of fitness for use has it",
    ),
    Contender("SCS", partial(by_reference, backend="SCS", formulation="sum"), "#e69f00"),
)


def _problem(cells: int) -> FitnessForUse:
    return FitnessForUse(workloads.prefix(cells), targets=1.0)


CONTEST = Contest("prefix workloads, targets 1", SIZES, _problem, CONTENDERS)


def draw(entries: list[Timing], folder: str) -> list[Path]:
    """Draw seconds and proven gaps over d into a folder, as SVG and PNG.

    Raises `BackendError` or `FileFormatError` as `plots.check_drawable`.
    """
    return plots.save_picture("softmax-prefix", folder, _panels, entries, columns=2)


def _panels(axes: Any, entries: list[Timing]) -> None:
    for contender in CONTENDERS:
        mine = [entry for entry in entries if entry.solver == contender.name]
        cells = [entry.cells for entry in mine]
        for panel, values in zip(
            axes, ([each.seconds for each in mine], [each.gap for each in mine]), strict=True
        ):
            panel.plot(
                cells, values, "o" + contender.line, ms=3.5, color=contender.colour, label=contender.name
            )
    for panel, what in zip(axes, ("seconds, one thread", "proven gap, relative"), strict=True):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(SIZES, [str(size) for size in SIZES])
        panel.set(xlabel="cells d", ylabel=what)
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
