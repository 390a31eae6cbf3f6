"""Figures 1 and 2 of the local privacy paper: users needed by every mechanism, over ε and over the domain.

All numbers are sample complexities in the worst case, ``max_u T_u / (p α)`` at α = 0.01. The optimised strategy is the
best on average, as the paper's is; the proven bound next to it holds for every mechanism of the kind, average and
worst.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console

import dualmech as dm
from dualmech import fast, workloads
from dualmech.crosscheck.printing import print_lines
from dualmech.crosscheck.sheet import Columns, Row, Sheet, drawn, one_table
from dualmech.errors import InvalidInputError
from dualmech.studies import rivals
from dualmech.studies.papers.local import instances as ldp

EPSILONS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)  # section 6.2: from 0.5 to 4
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)  # section 6.3

EXACT_SIZE, EXACT_TOLERANCE = 16, 1e-6
"""User types up to which the optimum is solved, and the gap requested there."""

QUICK_SECONDS = 1.0  # time for a strategy where all has to be quick


def compared(values: Mapping[str, Any], gap: float) -> Row:
    """Return the row of a workload at one n and ε, where no mechanism may need fewer users than is proven.

    - `values`: 'rivals', by name, and 'optimised', users that the fixed mechanisms and the strategy found need in the
      worst case; 'bound', users that every mechanism needs; 'tolerance', the requested gap, infinite if none was;
    - `gap`: of the optimisation, relative.
    """
    least = min(*values["rivals"].values(), values["optimised"])
    return Row(values, gap, gap <= values["tolerance"], sound=least >= values["bound"] * (1 - 1e-9))  # rounding


def best(row: Row, names: Sequence[str]) -> str:
    """Return which of some rivals needs the fewest users."""
    return min(names, key=lambda name: row.rivals[name])


def improvement(row: Row, names: Sequence[str]) -> float:
    """Return by what factor the best of some rivals needs more users than the strategy found."""
    return float(row.rivals[best(row, names)] / row.optimised)


def solve(
    instance: ldp.LocalInstance, epsilon: float, names: Sequence[str] = ldp.ALL_RIVALS, limit: float | None = None
) -> Row:
    """Compare the mechanisms on one workload with a strategy that is optimised for so many seconds at most.

    'paper' is the paper's own bound (its theorem 5.6), at least 0; 'average' are the users that the strategy needs
    where all types are equally many. Up to `EXACT_SIZE` types the least worst case is solved as well: it is the bound.
    """
    workload, size, unit = instance.build(), instance.size, instance.queries * rivals.ALPHA
    problem = dm.LocalStrategy(workload, epsilon)
    # A strategy is searched for until it is proven near the optimum; beyond few types, for as long as time allows.
    exact, few = size <= EXACT_SIZE, size <= 64
    tol, seconds = EXACT_TOLERANCE if exact else 0.02, limit or (60.0 if few else 120.0)
    squares = float((problem.root**2).sum())
    nuclear = float(np.linalg.svd(problem.root, compute_uv=False).sum())
    mean = fast.solve(problem, tol=tol, time_limit=None if exact else seconds)
    bounds, gap = [(mean.lower_bound - squares) / size], mean.gap
    if exact:
        worst = fast.solve(dm.LocalStrategy(workload, epsilon, criterion="worst"), tol=tol)
        bounds.append(worst.lower_bound)
        gap = max(gap, worst.gap)
    # The root has the Gram matrix of the workload, on which variances depend, and no more rows than columns.
    try:
        variances = dm.LocalMechanism(mean.primal, epsilon, dm.Workload(problem.root)).user_variances
    except InvalidInputError:  # in the time there was, no strategy was found that answers the workload
        variances = np.full(size, np.inf)
    values = {
        **{"name": instance.name, "size": size, "epsilon": epsilon, "bound": max(bounds) / unit},
        "paper": max(nuclear**2 / math.exp(epsilon) - squares, 0.0) / size / unit,
        "rivals": {
            name: instance.rival(name, epsilon).sample_complexity(workload, queries=instance.queries) for name in names
        },
        **{"optimised": float(variances.max()) / unit, "average": float(variances.mean()) / unit},
        "tolerance": tol if few and limit is None else np.inf,
        "capped": mean.status is dm.Status.STEPS_EXHAUSTED,
    }
    return compared(values, gap)


def by_epsilon(quick: bool) -> list[Callable[[], Row]]:
    """Return the tasks for Figure 1 on few user types, where the optimum is known."""
    size, epsilons = (8, (1.0, 4.0)) if quick else (EXACT_SIZE, EPSILONS)
    names = [name for name in ldp.WORKLOADS if not quick or name not in ("All Marginals", "3-Way Marginals")]
    return [partial(solve, ldp.LocalInstance(name, size), epsilon) for name in names for epsilon in epsilons]


def by_epsilon_at_size(quick: bool, limit: float | None = None) -> list[Callable[[], Row]]:
    """Return the tasks for Figure 1 at the paper's size, where the optimum is only bounded."""
    size, epsilons, usual = (32, (1.0, 4.0), QUICK_SECONDS) if quick else (512, EPSILONS, None)
    pairs = itertools.product(ldp.WORKLOADS, epsilons)
    return [partial(solve, ldp.LocalInstance(name, size), epsilon, limit=limit or usual) for name, epsilon in pairs]


def by_size(quick: bool, limit: float | None = None) -> list[Callable[[], Row]]:
    sizes, usual = ((8, 64), QUICK_SECONDS) if quick else (SIZES, None)
    pairs = itertools.product(ldp.WORKLOADS, sizes)
    return [partial(solve, ldp.LocalInstance(name, size), 1.0, limit=limit or usual) for name, size in pairs]


def slope(rows: Sequence[Row], users_of: Callable[[Row], float]) -> float:
    """Return the power of n by which users grow over the last two doublings.

    Two, since a tree of branching 4 has a new level at every other.
    """
    first, second = rows[max(len(rows) - 3, 0)], rows[-1]
    users = [users_of(row) for row in (first, second)]
    return float(np.log(users[1] / users[0]) / np.log(second.size / first.size))


# Worst case against average (the local privacy paper, sections 5.1 and 6.5), with both optima certified.
#
# The paper optimises the average and hopes for the worst; the worst case has a convex program of its own, so the
# price of that hope can be proven.

TOLERANCE = 1e-6


def solve_worst(instance: ldp.LocalInstance, epsilon: float) -> Row:
    """Solve both criteria.

    'ratio' is worst over average variance of the strategy that is the best on average, 'allowed' the most that theorem
    5.1 allows for it, ``e^ε (1 + ‖W‖² / n over the average)``, and 'excess' how far its worst variance is above the
    least possible, relative and proven.
    """
    workload, begun = instance.build(), time.perf_counter()
    problem = dm.LocalStrategy(workload, epsilon)
    mean = fast.solve(problem, tol=TOLERANCE)
    worst = fast.solve(dm.LocalStrategy(workload, epsilon, criterion="worst"), tol=TOLERANCE)
    seconds = time.perf_counter() - begun
    mechanism = problem.mechanism(mean.primal)
    average, largest = mechanism.average_variance(), mechanism.worst_variance()
    squares = float((problem.root**2).sum()) / instance.size
    low, high = worst.certificate.interval
    ratio, allowed = largest / average, math.exp(epsilon) * (1 + squares / average)
    gap = max(mean.gap, worst.gap)
    values = {"name": instance.name, "size": instance.size, "epsilon": epsilon, "ratio": ratio, "allowed": allowed}
    values |= {"excess": (max(largest / high - 1, 0.0), largest / low - 1), "seconds": seconds}
    return Row(values, gap, certified=gap <= TOLERANCE, sound=1 - TOLERANCE <= ratio <= allowed)


def worst_rows(quick: bool) -> list[Callable[[], Row]]:
    """Return the tasks; instances of fewer than three attributes have no 3-way marginals."""
    sizes, epsilons = ((4,), (1.0,)) if quick else ((8, 16), (0.5, 1.0, 2.0, 4.0))
    instances = [ldp.LocalInstance(name, size) for size in sizes for name in ldp.WORKLOADS]
    return [
        partial(solve_worst, instance, epsilon) for instance in instances if instance.queries for epsilon in epsilons
    ]


# Histograms under local privacy: the one workload whose optimum is a closed form, at every size.
#
# Subset selection meets the bound ``‖W 1‖²/n + ‖W Π‖_*²/τ`` on histograms, so no unbiased linear mechanism does better,
# on average or in the worst case. Randomised response is subset selection with sets of one type, so it is optimal
# exactly where these are the best sets.

OTHERS = (ldp.RESPONSE, ldp.RAPPOR, ldp.HADAMARD, ldp.ONE_BLOCK, ldp.BEST_HADAMARD)


def solve_histograms(size: int, epsilon: float) -> Row:
    """Compare subset selection on histograms of n user types with its bound, and others with it.

    'members' is the size of the reported sets, 'users' the users that subset selection needs in both the average and
    the worst case (α = 0.01), 'paper' the paper's bound, ``(e^-ε - 1/n) / α``, at least 0.
    """
    histogram = workloads.identity(size)
    best = rivals.subset_selection(size, epsilon)
    users = best.sample_complexity(histogram)
    problem = dm.LocalStrategy(histogram, epsilon)
    if size <= 8:  # all sets are listed, and the judge prices every pattern
        strategy = best.with_listed_sets().strategy
        gap = problem.certify(strategy, problem.dual_at(strategy)).gap
    else:
        count, growth = np.arange(1, size), math.expm1(epsilon)
        share = float((count * (size - count) * (growth / (size + growth * count)) ** 2).max())
        gap = best.objective(histogram) / (1 + (size - 1) ** 2 / share) - 1
    instance = ldp.LocalInstance(ldp.HISTOGRAM, size)
    others = {name: instance.rival(name, epsilon).sample_complexity(histogram) / users for name in OTHERS}
    paper = max(math.exp(-epsilon) - 1 / size, 0.0) / rivals.ALPHA
    values = {"size": size, "epsilon": epsilon, "members": int(np.argmax(best.sizes)), "users": users}
    return Row({**values, "paper": paper, "others": others}, gap, certified=gap <= 1e-9)


def histograms_rows(quick: bool) -> list[Callable[[], Row]]:
    pairs = itertools.product((8, 64) if quick else (8, 64, 512), (0.5, 1.0, 2.0, 4.0))
    return [partial(solve_histograms, size, epsilon) for size, epsilon in pairs]


def response_is_optimal_from(size: int) -> float:
    """Return the least ε at which randomised response is optimal on histograms of n user types.

    It is where sets of two members stop being better than single ones, ``(e^ε + n - 1)² / (n - 1)`` against
    ``(2 e^ε + n - 2)² / (2 (n - 2))``: about ``ln(n / √2)``.
    """
    if size < 4:
        return 0.0
    one, two = math.sqrt(size - 1), math.sqrt(2 * (size - 2))
    growth = ((size - 1) * two - (size - 2) * one) / (2 * one - two)
    return math.log(growth)


# The sheets of the comparisons, of the worst case and of histograms.

LEGEND = (
    f"Users needed for a variance of {rivals.ALPHA:g} per query, over the number of users squared, in the worst "
    "case. 'bound': what every mechanism needs, proven. All else as multiples of it: 'paper', the paper's bound, "
    "'best', the best strategy on average, and fixed mechanisms with the best reconstruction. Had.: Hadamard response "
    "in blocks by its authors' rule, as the published code has it, Had.1 in one block, Had.* in as many as are best. "
    f"tree: hierarchical of branching {ldp.BRANCHING}, by Hadamard response, tree* by subset selection. L1, L2: matrix "
    f"mechanism, L2 with Gaussian noise and δ = {ldp.DELTA:g}. proven: whether the gap that was asked of the strategy "
    "is met, how far its objective is above the optimum at most, and CAPPED where its search was stopped by its limit "
    "of time."
)

SHORT = {
    ldp.RESPONSE: "random",
    ldp.HADAMARD: "Had.",
    ldp.ONE_BLOCK: "Had.1",
    ldp.BEST_HADAMARD: "Had.*",
    ldp.SUBSETS: "subset",
    ldp.TREE: "tree",
    ldp.TREE_OF_SUBSETS: "tree*",
    ldp.LAPLACE: "L1",
    ldp.GAUSS: "L2",
}
"""Headings of mechanisms with long names."""


def _show_comparisons(varied: str, out: Console, title: str, rows: Iterator[Row]) -> None:
    print_lines(out, title, LEGEND)
    columns: Columns = (
        (varied, "{epsilon:g}" if varied == "ε" else "{size}"),
        ("bound", "{bound:.1f}"),
        ("paper", lambda row: f"{row.paper / row.bound:.2f}"),
        ("best", lambda row: f"{row.optimised / row.bound:.3f}"),
        *((SHORT.get(name, name), partial(_multiple, name)) for name in ldp.ALL_RIVALS),
        ("proven", _proven),
    )
    for name, group in itertools.groupby(rows, key=lambda row: row.name):
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
    groups = (ldp.COMPARED, ldp.ALL_RIVALS)
    of_paper, of_all = (", ".join(dict.fromkeys(best(row, names) for row in rows)) for names in groups)
    paper, everyone = ([improvement(row, names) for row in rows] for names in groups)
    text = (
        f"  Best of the paper's rivals: {of_paper}; of all: {of_all}. The best of them needs {min(paper):.2f} to "
        f"{max(paper):.2f} times the optimised users; of all, {min(everyone):.2f} to {max(everyone):.2f}."
    )
    if varied == "n" and len(rows) > 1:
        powers: dict[str, Callable[[Row], float]] = {
            "bound": lambda row: row.bound,
            "best": lambda row: row.optimised,
            "tree": lambda row: row.rivals[ldp.TREE],
            "Fourier": lambda row: row.rivals[ldp.FOURIER],
        }
        slopes = ", ".join(f"{key} {slope(rows, users):.2f}" for key, users in powers.items())
        text += f" Growth by powers of n at the end: {slopes}."
    return text


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


def _percent(least: float, most: float) -> str:
    low, high = 100 * least, 100 * most
    return f"{high:.4f} %" if high - low < 1e-3 else f"{low:.4f} to {high:.4f} %"


def _starts(rows: Sequence[Row]) -> str:
    starts = ", ".join(
        f"{response_is_optimal_from(size):.3f} (n = {size})" for size in dict.fromkeys(row.size for row in rows)
    )
    return f"Randomised response is optimal from ε = {starts} on."


def _ratios(rows: Sequence[Row]) -> str:
    ratios = sorted(row.ratio for row in rows)
    most = ratios[int(0.9 * (len(ratios) - 1))]
    return f"Nine in ten ratios are at most {most:.3f}, the largest is {ratios[-1]:.3f}."


_by_epsilon, _by_size = partial(_show_comparisons, "ε"), partial(_show_comparisons, "n")

SHEETS = {
    "histograms": Sheet(
        f"{ldp.LDP}, histograms",
        histograms_rows,
        one_table(HISTOGRAMS, _starts, heading=": subset selection, and multiples of its users"),
    ),
    "epsilon": Sheet(f"{ldp.LDP}, Figure 1, few user types", by_epsilon, _by_epsilon),
    "epsilon512": Sheet(f"{ldp.LDP}, Figure 1", by_epsilon_at_size, _by_epsilon, apart=True, options=("limit",)),
    "size": Sheet(f"{ldp.LDP}, Figure 2", by_size, _by_size, apart=True, options=("limit",)),
    "worst": Sheet(
        f"{ldp.LDP}, Figure 3b",
        worst_rows,
        one_table(WORST, _ratios, heading=": the best strategy on average, in the worst case"),
    ),
}
