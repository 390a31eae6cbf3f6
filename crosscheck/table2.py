"""Table 2 of the fitness-for-use paper: both layers side by side, and SM-II in each basis it may have had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import partial

import numpy as np
from rich.console import Console

from dualmech import fast, reference
from dualmech.crosscheck.agreement import TOLERANCES, compare
from dualmech.crosscheck.instances.fitness import FFU, TABLE_2, PrintedCase
from dualmech.crosscheck.printing import Interval, table, without_warnings, yes_or_no
from dualmech.crosscheck.sheet import Columns, Row, Sheet, drawn
from dualmech.problems.fitness import FitnessForUse
from dualmech.progress import Status
from dualmech.solution import Solution
from dualmech.validate import Array
from dualmech.workloads.base import Workload

BACKENDS = ("CLARABEL", "SCS")

PROGRAMS = {
    f"{backend}{'' if formulation == 'schur' else f', {formulation}'}": (backend, formulation)
    for formulation in ("schur", "logdet")
    for backend in BACKENDS
}
"""The programs of the reference layer in Table 2, by the names of their columns."""

QUICK_CELLS = 16  # largest size of Table 2 in a quick run

LOGDET_CELLS, QUICK_LOGDET_CELLS = 16, 8
"""Largest size of Table 2 at which the reference layer follows the central path, too."""

SECONDS, QUICK_SECONDS = 120.0, 20.0  # that a run of SM-II gets, and in a quick run

DIGITS = 9
"""Significant digits of an interval's ends; they are rounded outwards, so what is printed is still proven."""


def solve_case(case: PrintedCase, limit: float, centred: int) -> Row:
    """Solve one case with every backend of the reference layer, with the fast layer, and by SM-II in every basis.

    A run of SM-II that does not end by its own rule is stopped after `limit` seconds. The central path, one conic
    program for every sharpness, is followed up to `centred` cells. The row has an `answer` of every layer by its name,
    the interval that all of them share ('optimum'), and the runs of SM-II by basis and Hessian.
    """
    problem = case.problem()
    answers: dict[str, Solution] = {}
    with without_warnings():
        for name, (backend, formulation) in PROGRAMS.items():
            if formulation != "logdet" or problem.workload.shape[1] <= centred:
                answers[name] = reference.solve(
                    problem, backend=backend, formulation=formulation, tol=TOLERANCES[backend]
                )
        answers["fast"] = fast.solve(problem, tol=TOLERANCES["fast"])
    runs = tuple(
        run_published(problem.workload, problem.targets, basis, limit, hessian=hessian)
        for basis in BASES
        for hessian in ("exact", "printed")
    )
    found, comparison = answers_of(answers), compare(list(answers.values()))
    return Row.compared(
        {
            "case": case,
            "size": problem.workload.shape[1],
            "answers": found,
            "optimum": (comparison.lower_bound, comparison.objective),
            "runs": runs,
        },
        max(each.gap for each in found.values()),
        comparison.outcome,
    )


def answers_of(answers: Mapping[str, Solution]) -> dict[str, Row]:
    """Return each layer's certified interval and the seconds that it took."""
    return {
        name: Row(
            {"interval": answer.certificate.interval, "seconds": answer.seconds},
            answer.gap,
            answer.certificate.certifies(answer.tol),
        )
        for name, answer in answers.items()
    }


def _privacy_costs(quick: bool, limit: float | None = None) -> list[Callable[[], Row]]:
    cases = [case for case in TABLE_2 if not quick or case.problem().workload.shape[1] <= QUICK_CELLS]
    seconds = limit or (QUICK_SECONDS if quick else SECONDS)
    centred = QUICK_LOGDET_CELLS if quick else LOGDET_CELLS
    return [partial(solve_case, case, seconds, centred) for case in cases]


def _show_privacy_costs(out: Console, title: str, found: Iterator[Row]) -> None:
    solved = [*found]
    printed = list(TABLE_2[0].printed)
    columns: Columns = (
        ("d", "{size}"),
        *((f"{name}, printed", f"{{case.printed[{name}]}}") for name in printed),
        *((name, partial(_entry, name)) for name in (*PROGRAMS, "fast")),
        ("layers agree", "{verdict}"),
        ("printed holds", lambda row: yes_or_no(all(row.case.confirms(name, row.optimum) for name in printed))),
    )
    notes = ["Proven interval, gap, seconds. The paper calls Δ the privacy cost (section 3.2), and prints its square."]
    out.print(drawn(f"{title} (squared privacy cost)", columns, solved, words=(), show_lines=True, notes=notes))
    headings = ("d", "B", "Hessian", "squared cost", "above the optimum", "proven gap", "steps", "rounds as printed")
    notes = [
        "The text names no basis for this table, and in general B = I or U, the upper triangle of ones; W is the "
        "workload. CAPPED: stopped before its own rule ended it."
    ]
    lines = (_published_run(row, run) for row in solved for run in row.runs)
    title = "SM-II run here, with the parameters of the text"
    out.print(table(title, headings, lines, words=("B", "Hessian"), notes=notes))


def _published_run(row: Row, run: PublishedRun) -> tuple[str, ...]:
    low, _ = run.excess(row.optimum)
    return (
        *(str(row.size), run.basis, run.settings.removesuffix(" Hessian"), f"{run.objective:.6f}"),
        *(f"{100 * low:.3f} %", f"{run.gap:.1e}"),
        f"{run.steps}, {run.seconds:.2g} s{', CAPPED' if run.capped else ''}",
        yes_or_no(row.case.confirms("SM-II", (run.objective, run.objective))),
    )


def _entry(name: str, row: Row) -> str:
    if name not in row.answers:
        return "not run"
    answer = row.answers[name]
    low, high = answer.interval
    ends = f"[{_rounded_text(low, ROUND_FLOOR)},\n{_rounded_text(high, ROUND_CEILING)}]"
    wide = "" if answer.certified else " wide"
    return answer.text(f"{ends}{wide}\ngap {{gap:.1e}}\n{{seconds:.3g}} s")


def _rounded_text(value: float, rounding: str) -> str:
    return str(Context(prec=DIGITS, rounding=rounding).create_decimal(Decimal(value)))


TABLE = Sheet(f"{FFU}, Table 2", _privacy_costs, _show_privacy_costs, timed=True)


# SM-II run here on the paper's problems, in each basis that it may have been run in, next to the certified optimum.


MOST_STEPS = 10**7  # steps allowed to a run: more than its time limit lets it take

BASES: dict[str, Callable[[int], Array]] = {
    "I": np.eye,
    "U": lambda cells: np.triu(np.ones((cells, cells))),
    "W": lambda cells: np.tri(cells),
}
"""Bases by the letters of the paper, U being its upper triangle of ones; W is the workload of prefixes itself."""


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """Where SM-II ended, and what it took."""

    basis: str  # One of `BASES`
    settings: str  # In words: which Hessian, and whose start
    objective: float  # The squared privacy cost at which its answer meets all targets
    gap: float  # The gap that its own weights prove
    steps: int
    seconds: float
    capped: bool  # Whether it was stopped before its own rule ended it

    def excess(self, optimum: Interval) -> Interval:
        """Return by how much it lies above a certified optimum, relative, from both sides."""
        low, high = optimum
        return self.objective / high - 1, self.objective / low - 1


def run_published(
    workload: Workload,
    targets: Array | float,
    basis: str,
    limit: float,
    *,
    hessian: str = "exact",
    as_coded: bool = False,
) -> PublishedRun:
    """Run SM-II with the paper's parameters, or with the settings of its published code (`as_coded`), for some seconds.

    A basis of more rows than the rank of the workload is allowed, as the paper's experiments have it, though its own
    Definition 3 asks for as many.
    """
    rows = BASES[basis](workload.shape[1])
    problem = FitnessForUse(workload, targets, basis=rows, geometry="dense")
    method = fast.SoftmaxNewton.of_published_code(rows) if as_coded else fast.SoftmaxNewton(hessian=hessian)
    with without_warnings():
        answer = fast.solve(problem, method=method, time_limit=limit, max_iterations=MOST_STEPS)
    return PublishedRun(
        basis,
        "as coded" if as_coded else f"{hessian} Hessian",
        answer.objective,
        answer.gap,
        answer.iterations,
        answer.seconds,
        answer.status is Status.STEPS_EXHAUSTED,
    )
