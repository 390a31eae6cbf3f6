"""The local privacy paper's figures: the tasks of each, and how it looks in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, pairwise
from statistics import median

import numpy as np
from rich.console import Console

from dualmech.crosscheck.printing import print_lines
from dualmech.crosscheck.sheet import Columns, Row, Sheet, drawn, one_table
from dualmech.studies.papers.local import comparison, descent
from dualmech.studies.papers.local.comparison import OTHERS
from dualmech.studies.papers.local.instances import (
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
    ONE_BLOCK,
    RESPONSE,
    SUBSETS,
    TREE,
    TREE_OF_SUBSETS,
)
from dualmech.studies.rivals import ALPHA

LEGEND = (
    f"Users needed for a variance of {ALPHA:g} per query, over the number of users squared, in the worst "
    "case. 'bound': what every mechanism needs, proven. All else as multiples of it: 'paper', the paper's bound, "
    "'best', the best strategy on average, and fixed mechanisms with the best reconstruction. Had.: Hadamard response "
    "in blocks by its authors' rule, as the published code has it, Had.1 in one block, Had.* in as many as are best. "
    f"tree: hierarchical of branching {BRANCHING}, by Hadamard response, tree* by subset selection. L1, L2: matrix "
    "mechanism, L2 with Gaussian noise "
    f"and δ = {DELTA:g}. proven: whether the gap that was asked of the strategy is met, how far its objective is above "
    "the optimum at most, and CAPPED where its search was stopped by its limit of time."
)

SHORT = {
    RESPONSE: "random",
    HADAMARD: "Had.",
    ONE_BLOCK: "Had.1",
    BEST_HADAMARD: "Had.*",
    SUBSETS: "subset",
    TREE: "tree",
    TREE_OF_SUBSETS: "tree*",
    LAPLACE: "L1",
    GAUSS: "L2",
}
"""Headings of mechanisms with long names."""


def _show_comparisons(varied: str, out: Console, title: str, rows: Iterator[Row]) -> None:
    print_lines(out, title, LEGEND)
    columns: Columns = (
        (varied, "{epsilon:g}" if varied == "ε" else "{size}"),
        ("bound", "{bound:.1f}"),
        ("paper", lambda row: f"{row.paper / row.bound:.2f}"),
        ("best", lambda row: f"{row.optimised / row.bound:.3f}"),
        *((SHORT.get(name, name), partial(_multiple, name)) for name in ALL_RIVALS),
        ("proven", _proven),
    )
    for name, group in groupby(rows, key=lambda row: row.name):
        listed = list(group)
        fixed = listed[0].text("n = {size}" if varied == "ε" else "ε = {epsilon:g}")
        out.print(drawn(f"{name}, {fixed}", columns, listed, padding=(0, 1, 0, 0)))
        print_lines(out, _summary(varied, listed))
    print_lines(out, "")


def _multiple(name: str, row: Row) -> str:
    return f"{row.rivals[name] / row.bound:.2f}"


def _proven(row: Row) -> str:
    """Return whether the strategy is as near the optimum as was asked, and how near it is proven to be."""
    verdict = "{verdict}, " if np.isfinite(row.tolerance) else ""
    return row.text(f"{verdict}{{gap:.1%}}{' CAPPED' if row.capped else ''}")


def _summary(varied: str, rows: Sequence[Row]) -> str:
    groups = (COMPARED, ALL_RIVALS)
    best, best_of_all = (", ".join(dict.fromkeys(comparison.best(row, names) for row in rows)) for names in groups)
    paper, everyone = ([comparison.improvement(row, names) for row in rows] for names in groups)
    text = (
        f"  Best of the paper's rivals: {best}; of all: {best_of_all}. The best of them needs {min(paper):.2f} to "
        f"{max(paper):.2f} times the optimised users; of all, {min(everyone):.2f} to {max(everyone):.2f}."
    )
    if varied == "n" and len(rows) > 1:
        powers: dict[str, Callable[[Row], float]] = {
            "bound": lambda row: row.bound,
            "best": lambda row: row.optimised,
            "tree": lambda row: row.rivals[TREE],
            "Fourier": lambda row: row.rivals[FOURIER],
        }
        slopes = ", ".join(f"{key} {comparison.slope(rows, users):.2f}" for key, users in powers.items())
        text += f" Growth by powers of n at the end: {slopes}."
    return text


def _best_and_median(name: str, method: str | None, row: Row) -> str:
    numbers = getattr(row, name) if method is None else getattr(row, name)[method]
    return f"{min(numbers):.3f}, {median(numbers):.3f}"


NAMED: Columns = (("workload", "{name}"), ("n", "{size}"), ("ε", "{epsilon:g}"))

HISTOGRAMS: Columns = (
    ("n", "{size}"),
    ("ε", "{epsilon:g}"),
    ("set size", "{members}"),
    ("users", "{users:.2f}"),
    ("paper's bound", "{paper:.2f}"),
    *((name, f"{{others[{name}]:.3f}}") for name in OTHERS),
    ("distance from the bound", "{gap:.0e}"),
    ("optimal", "{verdict}"),
)

WORST: Columns = (
    *NAMED,
    ("worst / average", "{ratio:.4f}"),
    ("theorem 5.1", "{allowed:.2f}"),
    ("above the least worst", lambda row: _percent(*row.excess)),
    ("gap", "{gap:.0e}"),
    ("certified", "{verdict}"),
    ("seconds", "{seconds:.2g}"),
)

DESCENT: Columns = (
    *NAMED,
    *(
        (f"{label}{heading}", partial(_best_and_median, values, method))
        for method, label in zip((method.name for method in descent.METHODS), ("code: ", "text: "), strict=True)
        for heading, values in (("L", "objectives"), ("variance", "variances"))
    ),
    ("seconds", "{median:.2g}"),
    ("exact: gap", "{gap:.0e}"),
    ("seconds", "{seconds:.2g}"),
    ("certified", "{verdict}"),
)

INITIALISATION: Columns = (
    *NAMED,
    *((name, f"{{before[{name}]:.3f}} → {{after[{name}]:.3f}}") for name in descent.STARTS),
    ("random starts", partial(_best_and_median, "random", None)),
    ("gap", "{gap:.0e}"),
    ("certified", "{verdict}"),
)

CONSISTENCY: Columns = (
    ("workload", "{workload}"),
    ("mechanism", "{mechanism}"),
    ("stated", "{stated:.3g}"),
    ("unbiased", "{unbiased:.3g}"),
    ("x ≥ 0", "{nonnegative:.3g}"),
    ("x ≥ 0, total", "{consistent:.3g}"),
    (
        "improvement",
        lambda row: ", ".join(f"{row.unbiased / getattr(row, name):.2f}" for name in ("nonnegative", "consistent")),
    ),
    ("certified", "{verdict}"),
)


def _percent(least: float, most: float) -> str:
    low, high = 100 * least, 100 * most
    return f"{high:.4f} %" if high - low < 1e-3 else f"{low:.4f} to {high:.4f} %"


def _starts(rows: Sequence[Row]) -> str:
    starts = ", ".join(
        f"{comparison.response_is_optimal_from(size):.3f} (n = {size})"
        for size in dict.fromkeys(row.size for row in rows)
    )
    return f"Randomised response is optimal from ε = {starts} on."


def _ratios(rows: Sequence[Row]) -> str:
    ratios = sorted(row.ratio for row in rows)
    most = ratios[int(0.9 * (len(ratios) - 1))]
    return f"Nine in ten ratios are at most {most:.3f}, the largest is {ratios[-1]:.3f}."


def _better(rows: Sequence[Row]) -> str:
    better = sum(map(descent.random_is_better, rows))
    return (
        "Best and median of random starts. The median ends below the descent from the best of the fixed mechanisms in "
        f"{better} of {len(rows)} rows."
    )


STEPS: Columns = (*(("n", "{size}"), ("seconds", "{seconds:.2g}"), ("processor", "{processor:.2g}")),)


def _growth(rows: Sequence[Row]) -> str:
    powers = (
        np.log(after.processor / before.processor) / np.log(after.size / before.size)
        for before, after in pairwise(rows)
        if min(before.processor, after.processor) > 0
    )
    return f"Seconds of the processor grow from line to line as {', '.join(f'n^{power:.1f}' for power in powers)}."


def _surveys(rows: Sequence[Row]) -> str:
    return f"Means over {rows[0].runs} simulated surveys at ε = {descent.EPSILON:g}; 'stated' is the mechanism's own."


_by_epsilon, _by_size = partial(_show_comparisons, "ε"), partial(_show_comparisons, "n")

SHEETS = {
    "histograms": Sheet(
        f"{LDP}, histograms",
        comparison.histograms_rows,
        one_table(HISTOGRAMS, _starts, heading="Subset selection, and multiples of its users", titled=True),
    ),
    "descent": Sheet(
        f"{LDP}, algorithm 2",
        descent.rows,
        one_table(
            DESCENT,
            "Best and median of random starts, with the derivative of the authors' code and with that of the text. L "
            "is tr(W G⁺ W'), what all minimise; the average variance is L less the squares of the workload.",
            heading="Over the certified optimum",
            titled=True,
        ),
    ),
    "initialisation": Sheet(
        f"{LDP}, initialisation",
        descent.initialisation_rows,
        one_table(
            INITIALISATION,
            _better,
            heading="L over the certified optimum, before and after gradient descent",
            titled=True,
        ),
    ),
    "epsilon": Sheet(f"{LDP}, Figure 1, few user types", comparison.by_epsilon, _by_epsilon),
    "epsilon512": Sheet(f"{LDP}, Figure 1", comparison.by_epsilon_at_size, _by_epsilon, apart=True, options=("limit",)),
    "size": Sheet(f"{LDP}, Figure 2", comparison.by_size, _by_size, apart=True, options=("limit",)),
    "worst": Sheet(
        f"{LDP}, Figure 3b",
        comparison.worst_rows,
        one_table(WORST, _ratios, heading="The best strategy on average, in the worst case", titled=True),
    ),
    "steps": Sheet(
        f"{LDP}, Figure 3a",
        descent.steps,
        one_table(STEPS, _growth, heading="One step, 4 n outputs", titled=True),
    ),
    "consistency": Sheet(
        f"{LDP}, Figure 3c",
        descent.consistency_rows,
        one_table(CONSISTENCY, _surveys, heading=lambda rows: f"Normalised squared error; {rows[0].data}", titled=True),
        options=("data", "limit"),
    ),
}
