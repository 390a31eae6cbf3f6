"""The local privacy paper's figures: what each asks to be computed, and how it looks in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from statistics import median
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.local import (
    comparison,
    descent,
    histograms,
    worst,
)
from dualmech.crosscheck.papers.local import (
    consistency as local_consistency,
)
from dualmech.crosscheck.papers.local.comparison import Comparison
from dualmech.crosscheck.papers.local.consistency import ConsistencyRow
from dualmech.crosscheck.papers.local.descent import DescentRow, StepRow
from dualmech.crosscheck.papers.local.histograms import OTHERS, HistogramRow
from dualmech.crosscheck.papers.local.instances import (
    ALL_RIVALS,
    BEST_HADAMARD,
    BRANCHING,
    COMPARED,
    DELTA,
    FOURIER,
    GAUSS,
    HADAMARD,
    LAPLACE,
    LDP,
    RESPONSE,
    SUBSETS,
    TREE,
    TREE_OF_SUBSETS,
)
from dualmech.crosscheck.papers.local.worst import WorstRow
from dualmech.mechanisms.local import NORMALISED_VARIANCE


def _table(title: str, first: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column(first)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _certified(row: Any) -> str:
    return "yes" if row.outcome is Agreement.AGREE else "NO" if row.outcome is Agreement.DISAGREE else "wide"


LEGEND = f"""\
Users needed for a variance of {NORMALISED_VARIANCE:g} per query, over the number of users squared, in the worst case.
'bound': what every mechanism needs, proven. All else as multiples of it: the paper's bound, the best strategy on
average, and fixed mechanisms with the best reconstruction. Had.: Hadamard response in blocks by its authors' rule,
Had.* in as many as are best. tree: hierarchical of branching {BRANCHING}, by Hadamard response, tree* by subset
selection. L1, L2: matrix mechanism, L2 with Gaussian noise and δ = {DELTA:g}."""

SHORT = {
    RESPONSE: "random",
    HADAMARD: "Had.",
    BEST_HADAMARD: "Had.*",
    SUBSETS: "subset",
    TREE: "tree",
    TREE_OF_SUBSETS: "tree*",
    LAPLACE: "L1",
    GAUSS: "L2",
}
"""Headings of mechanisms with long names."""


def _show_comparisons(varied: str, out: Console, title: str, rows: Iterator[Comparison]) -> None:
    for line in (title, LEGEND):
        out.print(line, markup=False)
    headings = ("bound", "paper", "best", *(SHORT.get(name, name) for name in ALL_RIVALS), "proven")
    for name, group in groupby(rows, key=lambda row: row.instance.name):
        found = list(group)
        size, epsilon = found[0].instance.size, found[0].epsilon
        fixed = f"n = {size}" if varied == "ε" else f"ε = {epsilon:g}"
        table = _table(f"{name}, {fixed}", varied, headings)
        table.padding = (0, 1, 0, 0)
        for row in found:
            own = "" if row.optimised is None else f"{row.optimised / row.bound:.3f}"
            others = (f"{row.rivals[each] / row.bound:.2f}" for each in ALL_RIVALS)
            gap = _certified(row) if np.isfinite(row.asked) else ""
            first = f"{row.epsilon:g}" if varied == "ε" else str(row.instance.size)
            table.add_row(first, f"{row.bound:.1f}", f"{row.paper_bound / row.bound:.2f}", own, *others, gap)
        out.print(table)
        out.print(_summary(varied, found), markup=False)
    out.print()


def _summary(varied: str, rows: Sequence[Comparison]) -> str:
    """Return what the rows say on the claims of sections 6.2 and 6.3."""
    best, best_of_all = (
        ", ".join(dict.fromkeys(row.best(names) for row in rows)) for names in (COMPARED, ALL_RIVALS)
    )
    text = f"  Best of the paper's rivals: {best}; of all: {best_of_all}."
    solved = [row for row in rows if row.optimised is not None]
    if solved:
        paper, everyone = (
            [row.improvement(names) or 0.0 for row in solved] for names in (COMPARED, ALL_RIVALS)
        )
        text += (
            f" The best of them needs {min(paper):.2f} to {max(paper):.2f} times the optimised users; "
            f"of all, {min(everyone):.2f} to {max(everyone):.2f}."
        )
    if varied == "n" and len(rows) > 1:
        powers = {"bound": None, "tree": TREE, "Fourier": FOURIER}
        slopes = ", ".join(f"{key} {comparison.slope(rows, name):.2f}" for key, name in powers.items())
        text += f" Growth by powers of n at the end: {slopes}."
    return text


def _show_histograms(out: Console, title: str, rows: Iterator[HistogramRow]) -> None:
    out.print(title, markup=False)
    headings = ("ε", "set size", "users", "paper's bound", *OTHERS, "distance from the bound", "optimal")
    table = _table("Subset selection, and multiples of its users", "n", headings)
    sizes: dict[int, None] = {}
    for row in rows:
        sizes[row.size] = None
        others = (f"{row.others[name]:.3f}" for name in OTHERS)
        numbers = (f"{row.epsilon:g}", str(row.members), f"{row.users:.2f}", f"{row.paper_bound:.2f}")
        table.add_row(str(row.size), *numbers, *others, f"{row.gap:.0e}", _certified(row))
    out.print(table)
    starts = ", ".join(f"{histograms.response_is_optimal_from(size):.3f} (n = {size})" for size in sizes)
    out.print(f"Randomised response is optimal from ε = {starts} on.")


def _show_worst(out: Console, title: str, rows: Iterator[WorstRow]) -> None:
    out.print(title, markup=False)
    headings = (
        "n",
        "ε",
        "worst / average",
        "theorem 5.1",
        "above the least worst",
        "gap",
        "certified",
        "seconds",
    )
    table = _table("The best strategy on average, in the worst case", "workload", headings)
    found = list(rows)
    for row in found:
        low, high = (100 * end for end in row.excess)
        excess = f"{high:.4f} %" if high - low < 1e-3 else f"{low:.4f} to {high:.4f} %"
        numbers = (
            str(row.instance.size),
            f"{row.epsilon:g}",
            f"{row.ratio:.4f}",
            f"{row.allowed:.2f}",
            excess,
        )
        table.add_row(row.instance.name, *numbers, f"{row.gap:.0e}", _certified(row), f"{row.seconds:.2g}")
    out.print(table)
    ratios = sorted(row.ratio for row in found)
    out.print(
        f"Nine in ten ratios are at most {ratios[int(0.9 * (len(ratios) - 1))]:.3f}, the largest is {ratios[-1]:.3f}."
    )


def _show_descent(out: Console, title: str, rows: Iterator[DescentRow]) -> None:
    out.print(title, markup=False)
    kinds = ("code: L", "variance", "text: L", "variance")
    headings = ("n", "ε", *kinds, "seconds", "exact: gap", "seconds", "certified")
    table = _table("Over the certified optimum", "workload", headings)
    for row in rows:
        shown = []
        for method in descent.METHODS:
            shown += [
                f"{min(found):.3f}, {median(found):.3f}"
                for found in (row.objectives[method], row.variances[method])
            ]
        exact = (f"{row.seconds:.2g}", f"{row.gap:.0e}", f"{row.exact_seconds:.2g}", _certified(row))
        table.add_row(row.instance.name, str(row.instance.size), f"{row.epsilon:g}", *shown, *exact)
    out.print(table)
    out.print(
        "Best and median of random starts, with the derivative of the authors' code and with that of the text. L is\n"
        "tr(W G⁺ W'), what all minimise; the average variance is L less the squares of the workload."
    )


def _show_steps(out: Console, title: str, rows: Iterator[StepRow]) -> None:
    out.print(title, markup=False)
    table = _table("One step, 4 n outputs", "n", ("seconds", "processor", "growth"))
    previous: StepRow | None = None
    for row in rows:
        growth = ""
        if previous and previous.processor_seconds > 0 and row.processor_seconds > 0:
            power = np.log(row.processor_seconds / previous.processor_seconds) / np.log(
                row.size / previous.size
            )
            growth = f"n^{power:.1f}"
        table.add_row(str(row.size), f"{row.seconds:.2g}", f"{row.processor_seconds:.2g}", growth)
        previous = row
    out.print(table)


def _show_consistency(out: Console, title: str, rows: Iterator[ConsistencyRow]) -> None:
    out.print(title, markup=False)
    found = list(rows)
    data = found[0].data if found else ""
    headings = ("mechanism", "stated", "unbiased", "x ≥ 0", "x ≥ 0, total", "improvement", "certified")
    table = _table(f"Normalised squared error; {data}", "workload", headings)
    for row in found:
        numbers = (row.stated, row.unbiased, row.nonnegative, row.consistent)
        shown = (f"{number:.3g}" for number in numbers)
        ratios = f"{row.unbiased / row.nonnegative:.2f}, {row.unbiased / row.consistent:.2f}"
        table.add_row(row.workload, row.mechanism, *shown, ratios, _certified(row))
    out.print(table)
    runs = found[0].runs if found else 0
    out.print(
        f"Means over {runs} simulated surveys at ε = {local_consistency.EPSILON:g}; 'stated' is the mechanism's own."
    )


Parts = tuple[
    str, Callable[[bool], Sequence[Callable[[], Any]]], Callable[[Console, str, Iterator[Any]], None]
]

EPSILON: Parts = (
    f"{LDP}, Figure 1, few user types",
    comparison.by_epsilon,
    partial(_show_comparisons, "ε"),
)
EPSILON_LARGE: Parts = (
    f"{LDP}, Figure 1",
    comparison.by_epsilon_at_size,
    partial(_show_comparisons, "ε"),
)
SIZE: Parts = (f"{LDP}, Figure 2", comparison.by_size, partial(_show_comparisons, "n"))
HISTOGRAMS: Parts = (f"{LDP}, histograms", histograms.rows, _show_histograms)
WORST: Parts = (f"{LDP}, Figure 3b", worst.rows, _show_worst)
DESCENT: Parts = (f"{LDP}, algorithm 2", descent.rows, _show_descent)
STEPS: Parts = (f"{LDP}, Figure 3a", descent.steps, _show_steps)


def consistency(path: str | None = None) -> Parts:
    """Return the sheet of non-negative estimates, on a file of counts where one is given; any other is refused."""
    if path is not None:
        local_consistency.read(path)
    return f"{LDP}, Figure 3c", partial(local_consistency.rows, path=path), _show_consistency
