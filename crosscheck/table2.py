"""Table 2 of the fitness-for-use paper: both layers side by side, and SM-II in each possible basis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from rich.console import Console

from dualmech import fast, reference
from dualmech.crosscheck.agreement import TOLERANCES, VERDICTS, Agreement, compare
from dualmech.crosscheck.instances.fitness import FFU, TABLE_2, PrintedCase
from dualmech.crosscheck.printing import Interval, interval_text, table, yes_or_no
from dualmech.crosscheck.sheet import Columns, Row, Sheet, drawn
from dualmech.problems.fitness import FitnessForUse
from dualmech.progress import Status
from dualmech.solution import Solution
from dualmech.validate import Array
from dualmech.watching import without_warnings
from dualmech.workloads.base import Workload

BACKENDS = ("CLARABEL", "SCS")

PROGRAMS = {
    f"{backend}{'' if formulation == 'schur' else f', {formulation}'}": (backend, formulation)
    for formulation in ("schur", "logdet")
    for backend in BACKENDS
}
"""The programs of the reference layer in Table 2, by the names of their columns."""

MAX_QUICK_CELLS = 16  # of Table 2 in a quick run

MAX_LOGDET_CELLS, MAX_QUICK_LOGDET_CELLS = 16, 8
"""Maximum size for the log-determinant formulation of the reference layer, in full and quick runs."""

SM2_SECONDS, QUICK_SM2_SECONDS = 120.0, 20.0  # time limit of a run of SM-II, in full and quick runs

MAX_DIGITS = 9  # significant digits of a value


def solve_case(case: PrintedCase, limit: float | None, max_logdet_cells: int) -> Row:
    """Solve one case with every backend of the reference layer, with the fast layer, and by SM-II in every basis.

    A run of SM-II is stopped after `limit` seconds if its own rule does not end it; None means no runs. The
    log-determinant formulation, one conic program for each barrier parameter, is solved up to `max_logdet_cells`. The
    row has the `answers` of the layers by name, the intersection of their intervals (`optimum`), and the `runs` of
    SM-II.
    """
    problem = case.problem()
    answers: dict[str, Solution] = {}
    with without_warnings():
        for name, (backend, formulation) in PROGRAMS.items():
            if formulation != "logdet" or problem.workload.shape[1] <= max_logdet_cells:
                answers[name] = reference.solve(
                    problem, backend=backend, formulation=formulation, tol=TOLERANCES[backend]
                )
        answers["fast"] = fast.solve(problem, tol=TOLERANCES["fast"])
    settings = [(basis, hessian) for basis in BASES for hessian in ("exact", "printed")]
    runs = (
        ()
        if limit is None
        else tuple(
            run_published(problem.workload, problem.targets, basis, limit, hessian=hessian)
            for basis, hessian in settings
        )
    )
    solutions, comparison = answers_of(answers), compare(list(answers.values()))
    values = {
        "case": case,
        "size": problem.workload.shape[1],
        "answers": solutions,
        "optimum": (comparison.lower_bound, comparison.objective),
        "runs": runs,
    }
    return Row.compared(values, max(solution.gap for solution in solutions.values()), comparison.outcome)


def answers_of(answers: Mapping[str, Solution]) -> dict[str, Row]:
    """Return each layer's certified interval and running time in seconds."""
    return {
        name: Row(
            {"interval": answer.certificate.interval, "seconds": answer.seconds},
            answer.gap,
            answer.certificate.certifies(answer.tol),
        )
        for name, answer in answers.items()
    }


def _privacy_costs(quick: bool, limit: float | None = None, longer: bool = False) -> list[Callable[[], Row]]:
    """Return a task for every size, with runs of SM-II in the longer study or with a time limit."""
    cases = [case for case in TABLE_2 if not quick or case.problem().workload.shape[1] <= MAX_QUICK_CELLS]
    seconds = limit or ((QUICK_SM2_SECONDS if quick else SM2_SECONDS) if longer else None)
    max_logdet_cells = MAX_QUICK_LOGDET_CELLS if quick else MAX_LOGDET_CELLS
    return [partial(solve_case, case, seconds, max_logdet_cells) for case in cases]


def _show_privacy_costs(out: Console, title: str, rows: Iterator[Row]) -> None:
    all_rows = [*rows]
    columns: Columns = (
        ("d", "{size}"),
        ("printed", _printed),
        *((name.replace(", ", "\n"), partial(_entry, name)) for name in (*PROGRAMS, "fast")),
    )
    columns_printed = " and ".join(TABLE_2[0].printed)
    notes = [f"Value to the digits that its gap proves, gap, seconds. Printed: {columns_printed}.", _verdict(all_rows)]
    title = f"{title}: squared privacy cost"
    out.print(drawn(title, columns, all_rows, words=(), notes=notes, show_lines=True, padding=(0, 1, 0, 0)))
    if any(row.runs for row in all_rows):
        _show_published_runs(out, all_rows)


def _verdict(rows: Sequence[Row]) -> str:
    """Return sentences: whether the layers agree and the printed values hold, and the speed of the fast layer."""
    disagreements = [f"{VERDICTS[row.outcome]} at d = {row.size}" for row in rows if row.outcome is not Agreement.AGREE]
    wrong = [str(row.size) for row in rows if not all(_confirmed(row, name) for name in row.case.printed)]
    largest = rows[-1].answers
    times = [f"{_short(largest[name].seconds / largest['fast'].seconds)} times as fast as {name}" for name in BACKENDS]
    return (
        f"{'Layers agree: ' + ', '.join(disagreements) if disagreements else 'All layers agree'}. "
        f"{'Printed values do NOT hold at d = ' + ', '.join(wrong) if wrong else 'All printed values hold'}. "
        f"In this run, at d = {rows[-1].size}, fast is {' and '.join(times)}."
    )


def _confirmed(row: Row, name: str) -> bool:
    return bool(row.case.confirms(name, row.optimum))


def _printed(row: Row) -> str:
    """Return the paper's distinct printed values, with a mark at values that do not hold."""
    values = [f"{text}{'' if _confirmed(row, name) else ' NO'}" for name, text in row.case.printed.items()]
    return "\n".join(dict.fromkeys(values))


def _show_published_runs(out: Console, rows: Sequence[Row]) -> None:
    headings = ("d", "B", "Hessian", "squared cost", "above optimum", "gap", "steps", "seconds", "rounds as printed")
    notes = [
        "The text names no basis for this table, and in general B = I or U, the upper triangle of ones; W is the "
        "workload. CAPPED: stopped by the time limit."
    ]
    lines = (_published_run(row, run) for row in rows for run in row.runs)
    title = "SM-II run here, with the parameters of the text"
    out.print(table(title, headings, lines, words=("B", "Hessian"), notes=notes))


def _published_run(row: Row, run: PublishedRun) -> tuple[str, ...]:
    low, _ = run.excess(row.optimum)
    return (
        *(str(row.size), run.basis, run.settings.removesuffix(" Hessian"), f"{run.objective:.6f}"),
        *(f"{100 * low:.3f} %", f"{run.gap:.1e}", str(run.steps)),
        f"{run.seconds:.2g}{' CAPPED' if run.capped else ''}",
        yes_or_no(row.case.confirms("SM-II", (run.objective, run.objective))),
    )


def _entry(name: str, row: Row) -> str:
    if name not in row.answers:
        return "not run"
    answer = row.answers[name]
    return str(answer.text(f"{proven_digits(*answer.interval)}{{mark}}\n{{gap:.0e}}\n{_short(answer.seconds)} s"))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def proven_digits(low: float, high: float) -> str:
    """Return the number, with as many digits as possible, that both ends of an interval round to."""
    for digits in range(MAX_DIGITS, 0, -1):
        if (text := f"{low:#.{digits}g}") == f"{high:#.{digits}g}":
            return text
    return interval_text((low, high))


TABLE = Sheet(f"{FFU}, Table 2", _privacy_costs, _show_privacy_costs, options=("limit", "longer"))


# Runs of SM-II on the paper's problems, in each possible basis, next to the certified optimum.


MAX_STEPS = 10**7  # of a run: its time limit ends it earlier

BASES: dict[str, Callable[[int], Array]] = {
    "I": np.eye,
    "U": lambda cells: np.triu(np.ones((cells, cells))),
    "W": lambda cells: np.tri(cells),
}
"""Bases by the letters of the paper: U is the upper triangle of ones, W the workload of prefixes."""


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """The result of a run of SM-II."""

    basis: str  # a key of `BASES`
    settings: str  # in words: the Hessian and the start
    objective: float  # the squared privacy cost of its answer, scaled to meet all targets
    gap: float  # the gap that its dual weights prove
    steps: int
    seconds: float
    capped: bool  # whether the time limit stopped it

    def excess(self, optimum: Interval) -> Interval:
        """Return the interval of the relative excess over a certified optimum."""
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

    The basis may have more rows than the rank of the workload, as in the paper's experiments, although its
    Definition 3 requires equality.
    """
    rows = BASES[basis](workload.shape[1])
    problem = FitnessForUse(workload, targets, basis=rows, geometry="dense")
    method = fast.SoftmaxNewton.of_published_code(rows) if as_coded else fast.SoftmaxNewton(hessian=hessian)
    with without_warnings():
        answer = fast.solve(problem, method=method, time_limit=limit, max_iterations=MAX_STEPS)
    return PublishedRun(
        basis,
        "as coded" if as_coded else f"{hessian} Hessian",
        answer.objective,
        answer.gap,
        answer.iterations,
        answer.seconds,
        answer.status is Status.STEPS_EXHAUSTED,
    )
