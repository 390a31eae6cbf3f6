"""What a practitioner reads: tables for a terminal, of answers and of verdicts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as progress_bar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from dualmech import accounting
from dualmech.certificate import Certificate
from dualmech.crosscheck.judging import Verdict
from dualmech.mechanism import LinearGaussianMechanism
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.solution import Callback, Progress, Solution, Status
from dualmech.validate import Array

WIDTH = 132
"""Columns to write where the output is no terminal."""

NARROWEST = 108
"""Columns below which tables would lose columns of their own."""

LISTED = 6
"""Most names that a line lists before it counts the rest."""


def console() -> Console:
    """Return a console for standard output, wide enough for every table; a narrow terminal wraps its lines."""
    wide = Console(highlight=False, soft_wrap=False)
    if not sys.stdout.isatty():
        wide.width = WIDTH
    wide.width = max(wide.width, NARROWEST)
    return wide


@contextlib.contextmanager
def progress(unit: str) -> Iterator[Callback]:
    """Show a line on standard error while something runs, where it is a terminal; yields the callback."""
    error = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with progress_bar(*columns, console=error, transient=True, disable=not error.is_terminal) as bar:
        task = bar.add_task("starting")

        def tell(news: Progress) -> None:
            bar.update(task, description=f"{news.iteration} {unit}, gap {news.gap:.1e}")

        yield tell


def solution_report(out: Console, solution: Solution, z: float, delta: float) -> None:
    """Print the certificate, the table of query groups and the privacy of an answer."""
    problem, certificate = solution.problem, solution.certificate
    word = "squared privacy cost" if isinstance(problem, FitnessForUse) else "factor on the targets"
    out.print(f"{solution.status.name}: {word} {certificate.objective:.9g}, optimum proven to lie in")
    out.print(
        f"  {interval_text(certificate.interval)}  (gap {certificate.gap:.1e}, asked {solution.tol:.1e})"
    )
    if solution.status is not Status.CERTIFIED:
        out.print(f"  {solution.message or solution.status.value}")
    unit = "eigendecompositions" if solution.solver.startswith("fast") else "iterations"
    out.print(f"  {solution.solver}: {solution.iterations} {unit}, {solution.seconds:.3g} s")
    for line in free_lines(problem):
        out.print(line)
    if not certificate.feasible:
        out.print(f"  infeasible by {certificate.violation:.1e}: no mechanism")
        return
    mechanism = solution.mechanism
    out.print(group_table(problem, mechanism, solution.prices, max(1e-6, solution.gap**0.5), z))
    out.print(privacy_line(mechanism, delta))
    out.print(f"{len(solution.binding)} of {len(mechanism.profile)} neighbours bind.")


def stage_lines(out: Console, answer: Solution, stages: Sequence[Solution]) -> None:
    """Print what every stage of the refined privacy ordering settled, in the units of the answer, and what is left."""
    if not stages or not answer.certificate.feasible:
        return
    mechanism = answer.mechanism
    unit = mechanism.squared_privacy_cost / stages[0].objective
    for count, stage in enumerate(stages, start=1):
        still = len(stage.problem.neighbours)
        out.print(
            f"Stage {count}: {stage.status.name}, worst squared cost of {still} open neighbour{'s'[: still != 1]} "
            f"{unit * stage.objective:.9g} (gap {stage.gap:.1e})"
        )
    budget = mechanism.free_budget()
    left = int((budget > stages[0].tol * mechanism.squared_privacy_cost).sum())
    out.print(
        f"Left for later queries at no further cost: up to {budget.max():.6g} "
        f"for {left} of {len(budget)} neighbours."
    )


def interval_text(interval: tuple[float, float]) -> str:
    """Return an interval with as many digits as it takes to see that it is one, and two more."""
    low, high = interval
    if not np.isfinite(high):
        return f"[{low:.6g}, inf)"
    width = (high - low) / high if high > 0 else 0.0
    digits = int(np.clip(2 - np.floor(np.log10(max(width, 1e-15))), 4, 16))
    return f"[{low:.{digits}g}, {high:.{digits}g}]"


def free_lines(problem: FitnessForUse | PrivacyFirst) -> list[str]:
    """Say which queries constrain nothing: those that no neighbour changes are answered exactly, for free."""
    free = problem.geometry.free_queries
    if not len(free):
        return []
    return [f"Answered exactly at no cost (no neighbour changes them): {names(problem, free)}."]


def clean(text: str) -> str:
    """Return a user's text for a terminal: no markup, no control characters."""
    return escape("".join(letter if letter.isprintable() else "?" for letter in text))


def names(problem: FitnessForUse | PrivacyFirst, queries: npt.NDArray[np.intp]) -> str:
    """Return the names of some queries, cut after `LISTED`."""
    listed = ", ".join(clean(problem.workload.names[j]) for j in queries[:LISTED])
    return listed if len(queries) <= LISTED else f"{listed} and {len(queries) - LISTED} more"


def group_table(
    problem: FitnessForUse | PrivacyFirst,
    mechanism: LinearGaussianMechanism,
    prices: Array,
    slack: float,
    z: float,
) -> Table:
    """Return the table of query groups: target, achieved, how many bind, and their share of the bill."""
    variances = mechanism.variances(problem.workload)
    variances[problem.geometry.free_queries] = 0.0  # exact: what is left of them is rounding
    tight = variances >= (1 - slack) * problem.targets * (variances / problem.targets).max()
    table = Table(title=f"Queries by group (margins of error at z = {z:g})", title_justify="left")
    headings = ("queries", "target variance", "target margin", "achieved variance", "achieved margin")
    table.add_column("group")
    for heading in (*headings, "binding", "loose", "share of bill"):
        table.add_column(heading, justify="right")
    groups = np.array(problem.workload.groups)
    for group in dict.fromkeys(problem.workload.groups):
        inside = groups == group
        wanted, got = problem.targets[inside], variances[inside]
        table.add_row(
            clean(group),
            str(int(inside.sum())),
            *(spread(values) for values in (wanted, accounting.margin_from_variance(wanted, z))),
            *(spread(values) for values in (got, accounting.margin_from_variance(got, z))),
            str(int(tight[inside].sum())),
            str(int((~tight[inside]).sum())),
            f"{100 * prices[inside].sum():.1f} %",
        )
    return table


def spread(values: Array) -> str:
    """Return one number, or the least and the largest."""
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"


def privacy_line(mechanism: LinearGaussianMechanism, delta: float) -> str:
    """Return the privacy of a mechanism in the three currencies."""
    epsilon = mechanism.epsilon(delta)
    return (
        f"Privacy: rho = {mechanism.rho:.6g} (zCDP), mu = {mechanism.privacy_cost:.6g} (Gaussian DP), "
        f"epsilon = {epsilon:.6g} at delta = {delta:g}."
    )


def verdict_report(out: Console, problem: FitnessForUse | PrivacyFirst, verdict: Verdict) -> None:
    """Print the judge's verdict on an outsider's covariance."""
    word = "squared privacy cost" if isinstance(problem, FitnessForUse) else "factor on the targets"
    if not np.isfinite(verdict.objective):
        out.print(
            "NOT A MECHANISM: its privacy cost is infinite (the covariance is singular where neighbours differ)."
        )
        return
    out.print(f"{'FEASIBLE' if verdict.feasible else 'INFEASIBLE'}: {word} {verdict.objective:.9g}")
    out.print(f"  optimum at least {verdict.lower_bound:.9g} (bound found and proven by the judge)")
    if verdict.feasible:
        out.print(f"  certified distance from the optimum: at most {percent(verdict)}")
    else:
        out.print(f"  a constraint is exceeded by {100 * verdict.violation:.3g} %")
    if verdict.scaled.objective != verdict.objective:
        out.print(
            f"  scaled to meet its constraints exactly: {word} {verdict.scaled.objective:.9g}, "
            f"at most {percent(verdict.scaled)} above the optimum"
        )
    loose, binding = verdict.loose, verdict.binding
    out.print(
        f"  loose targets: {len(loose)} of {problem.workload.shape[0]}"
        + (f" ({names(problem, loose)})" if len(loose) else "")
    )
    listed = ", ".join(map(str, binding[:LISTED])) + (" …" if len(binding) > LISTED else "")
    out.print(f"  binding neighbours: {len(binding)} of {problem.geometry.moves.shape[1]} ({listed})")


def percent(certificate: Certificate) -> str:
    """Return the gap of a certificate in percent, never less than rounding allows to say."""
    return f"{100 * max(certificate.gap, certificate.resolution):.3g} %"
