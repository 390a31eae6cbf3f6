"""The local privacy paper's figures: what each asks to be computed, and how it looks in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from statistics import median

import numpy as np
from rich.console import Console

from dualmech.crosscheck.agreement import VERDICTS
from dualmech.crosscheck.papers.local import comparison, descent
from dualmech.crosscheck.papers.local.comparison import OTHERS, RivalComparison
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
from dualmech.crosscheck.papers.sheet import Sheet, Tasks
from dualmech.crosscheck.printing import print_lines, table
from dualmech.mechanisms.local import NORMALISED_VARIANCE

LEGEND = (
    f"Users needed for a variance of {NORMALISED_VARIANCE:g} per query, over the number of users squared, in the worst "
    "case. 'bound': what every mechanism needs, proven. All else as multiples of it: 'paper', the paper's bound, "
    "'best', the best strategy on average, and fixed mechanisms with the best reconstruction. Had.: Hadamard response "
    "in blocks by its authors' rule, Had.* in as many as are best. tree: hierarchical of branching "
    f"{BRANCHING}, by Hadamard response, tree* by subset selection. L1, L2: matrix mechanism, L2 with Gaussian noise "
    f"and δ = {DELTA:g}. proven: whether the gap that was asked of the strategy is met, how far its objective is above "
    "the optimum at most, and CAPPED where its search was stopped by its limit of time."
)

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


def _show_comparisons(varied: str, out: Console, title: str, rows: Iterator[RivalComparison]) -> None:
    print_lines(out, title, LEGEND)
    others = (SHORT.get(name, name) for name in ALL_RIVALS)
    headings = (varied, "bound", "paper", "best", *others, "proven")
    for name, group in groupby(rows, key=lambda row: row.instance.name):
        found = list(group)
        fixed = f"n = {found[0].instance.size}" if varied == "ε" else f"ε = {found[0].epsilon:g}"
        drawn = (_multiples(varied, row) for row in found)
        out.print(table(f"{name}, {fixed}", headings, drawn, padding=(0, 1, 0, 0)))
        print_lines(out, _summary(varied, found))
    print_lines(out, "")


def _multiples(varied: str, row: RivalComparison) -> tuple[str, ...]:
    return (
        f"{row.epsilon:g}" if varied == "ε" else str(row.instance.size),
        *(f"{row.bound:.1f}", f"{row.paper_bound / row.bound:.2f}"),
        "" if row.optimised is None else f"{row.optimised / row.bound:.3f}",
        *(f"{row.rivals[name] / row.bound:.2f}" for name in ALL_RIVALS),
        _proven(row),
    )


def _proven(row: RivalComparison) -> str:
    """Return whether the strategy is as near the optimum as was asked, and how near it is proven to be."""
    if row.optimised is None:
        return ""
    verdict = f"{VERDICTS[row.outcome]}, " if np.isfinite(row.asked) else ""
    return f"{verdict}{row.gap:.1%}{' CAPPED' if row.capped else ''}"


def _summary(varied: str, rows: Sequence[RivalComparison]) -> str:
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
        powers: dict[str, Callable[[RivalComparison], float]] = {
            "bound": lambda row: row.bound,
            "best": lambda row: row.optimised or np.nan,
            "tree": lambda row: row.rivals[TREE],
            "Fourier": lambda row: row.rivals[FOURIER],
        }
        slopes = ", ".join(f"{key} {comparison.slope(rows, users):.2f}" for key, users in powers.items())
        text += f" Growth by powers of n at the end: {slopes}."
    return text


def _show_histograms(out: Console, title: str, rows: Iterator[comparison.HistogramRow]) -> None:
    print_lines(out, title)
    found = list(rows)
    drawn = (
        (
            *(str(row.size), f"{row.epsilon:g}", str(row.members)),
            *(f"{users:.2f}" for users in (row.users, row.paper_bound)),
            *(f"{row.others[name]:.3f}" for name in OTHERS),
            *(f"{row.gap:.0e}", VERDICTS[row.outcome]),
        )
        for row in found
    )
    headings = ("n", "ε", "set size", "users", "paper's bound", *OTHERS, "distance from the bound", "optimal")
    out.print(table("Subset selection, and multiples of its users", headings, drawn))
    starts = ", ".join(
        f"{comparison.response_is_optimal_from(size):.3f} (n = {size})"
        for size in dict.fromkeys(row.size for row in found)
    )
    out.print(f"Randomised response is optimal from ε = {starts} on.")


def _show_worst(out: Console, title: str, rows: Iterator[comparison.WorstRow]) -> None:
    print_lines(out, title)
    found = list(rows)
    drawn = (
        (
            *(row.instance.name, str(row.instance.size), f"{row.epsilon:g}"),
            *(f"{row.ratio:.4f}", f"{row.allowed:.2f}", _percent(*row.excess)),
            *(f"{row.gap:.0e}", VERDICTS[row.outcome], f"{row.seconds:.2g}"),
        )
        for row in found
    )
    headings = (
        *("workload", "n", "ε", "worst / average", "theorem 5.1", "above the least worst"),
        *("gap", "certified", "seconds"),
    )
    out.print(table("The best strategy on average, in the worst case", headings, drawn))
    ratios = sorted(row.ratio for row in found)
    print_lines(
        out,
        f"Nine in ten ratios are at most {ratios[int(0.9 * (len(ratios) - 1))]:.3f}, the largest is {ratios[-1]:.3f}.",
    )


def _percent(least: float, most: float) -> str:
    low, high = 100 * least, 100 * most
    return f"{high:.4f} %" if high - low < 1e-3 else f"{low:.4f} to {high:.4f} %"


def _show_descent(out: Console, title: str, rows: Iterator[descent.DescentRow]) -> None:
    print_lines(out, title)
    drawn = (
        (
            *(row.instance.name, str(row.instance.size), f"{row.epsilon:g}"),
            *(
                f"{min(found):.3f}, {median(found):.3f}"
                for method in descent.METHODS
                for found in (row.objectives[method], row.variances[method])
            ),
            *(f"{row.seconds:.2g}", f"{row.gap:.0e}", f"{row.exact_seconds:.2g}", VERDICTS[row.outcome]),
        )
        for row in rows
    )
    headings = (
        *("workload", "n", "ε", "code: L", "variance", "text: L", "variance"),
        *("seconds", "exact: gap", "seconds", "certified"),
    )
    out.print(table("Over the certified optimum", headings, drawn))
    print_lines(
        out,
        "Best and median of random starts, with the derivative of the authors' code and with that of the text. L is "
        "tr(W G⁺ W'), what all minimise; the average variance is L less the squares of the workload.",
    )


def _show_initialisation(out: Console, title: str, rows: Iterator[descent.InitialisationRow]) -> None:
    print_lines(out, title)
    found = list(rows)
    drawn = (
        (
            *(row.instance.name, str(row.instance.size), f"{row.epsilon:g}"),
            *(f"{row.before[name]:.3f} → {row.after[name]:.3f}" for name in descent.STARTS),
            *(f"{min(row.random):.3f}, {median(row.random):.3f}", f"{row.gap:.0e}", VERDICTS[row.outcome]),
        )
        for row in found
    )
    headings = ("workload", "n", "ε", *descent.STARTS, "random starts", "gap", "certified")
    out.print(table("L over the certified optimum, before and after gradient descent", headings, drawn))
    better = sum(row.random_is_better for row in found)
    print_lines(
        out,
        "Best and median of random starts. The median ends below the descent from the best of the fixed mechanisms in "
        f"{better} of {len(found)} rows.",
    )


def _show_steps(out: Console, title: str, rows: Iterator[descent.StepRow]) -> None:
    print_lines(out, title)
    drawn: list[tuple[str, ...]] = []
    previous: descent.StepRow | None = None
    for row in rows:
        growth = ""
        if previous and previous.processor_seconds > 0 and row.processor_seconds > 0:
            slower = np.log(row.processor_seconds / previous.processor_seconds)
            growth = f"n^{slower / np.log(row.size / previous.size):.1f}"
        drawn.append((str(row.size), f"{row.seconds:.2g}", f"{row.processor_seconds:.2g}", growth))
        previous = row
    out.print(table("One step, 4 n outputs", ("n", "seconds", "processor", "growth"), drawn))


def _show_consistency(out: Console, title: str, rows: Iterator[descent.ConsistencyRow]) -> None:
    print_lines(out, title)
    found = list(rows)
    drawn = (
        (
            *(row.workload, row.mechanism),
            *(f"{number:.3g}" for number in (row.stated, row.unbiased, row.nonnegative, row.consistent)),
            f"{row.unbiased / row.nonnegative:.2f}, {row.unbiased / row.consistent:.2f}",
            VERDICTS[row.outcome],
        )
        for row in found
    )
    headings = (
        *("workload", "mechanism", "stated", "unbiased", "x ≥ 0", "x ≥ 0, total"),
        *("improvement", "certified"),
    )
    data, runs = (found[0].data, found[0].runs) if found else ("", 0)
    out.print(table(f"Normalised squared error; {data}", headings, drawn))
    print_lines(
        out,
        f"Means over {runs} simulated surveys at ε = {descent.EPSILON:g}; 'stated' is the mechanism's own.",
    )


def _on_histogram(path: str) -> Tasks:
    descent.read_histogram(path)
    return partial(descent.consistency_rows, path=path)


_by_epsilon, _by_size = partial(_show_comparisons, "ε"), partial(_show_comparisons, "n")

SHEETS = {
    "histograms": Sheet(f"{LDP}, histograms", comparison.histograms_rows, _show_histograms),
    "descent": Sheet(f"{LDP}, algorithm 2", descent.rows, _show_descent),
    "initialisation": Sheet(f"{LDP}, initialisation", descent.initialisation_rows, _show_initialisation),
    "epsilon": Sheet(f"{LDP}, Figure 1, few user types", comparison.by_epsilon, _by_epsilon),
    "epsilon512": Sheet(
        f"{LDP}, Figure 1", comparison.by_epsilon_at_size, _by_epsilon, apart=True, timed=True
    ),
    "size": Sheet(f"{LDP}, Figure 2", comparison.by_size, _by_size, apart=True, timed=True),
    "worst": Sheet(f"{LDP}, Figure 3b", comparison.worst_rows, _show_worst),
    "steps": Sheet(f"{LDP}, Figure 3a", descent.steps, _show_steps),
    "consistency": Sheet(
        f"{LDP}, Figure 3c", descent.consistency_rows, _show_consistency, data=_on_histogram, timed=True
    ),
}
