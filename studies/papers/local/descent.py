"""The local privacy paper's gradient descent (its algorithm 2) against certified optima, and the time of a step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import dualmech as dm
from dualmech import fast, files, validate, workloads
from dualmech.crosscheck.sheet import Columns, Row, Sheet, one_table
from dualmech.errors import InvalidInputError
from dualmech.studies import rivals
from dualmech.studies.papers.local import instances as ldp
from dualmech.studies.papers.local.comparison import NAMED
from dualmech.studies.rivals import LocalRival
from dualmech.validate import Array

TOLERANCE = 1e-6

ANY_GAP = 1e6  # gap requested of descents, which prove nothing

SEEDS, QUICK_SEEDS = 10, 3  # of random starts

METHODS = (fast.PublishedGradient, fast.ProjectedGradient)
"""Gradient descent with the derivative of the authors' code, and with that of the text."""

STEPS = 15  # steps that are timed (section 6.4)


def descended(values: Mapping[str, Any], gap: float) -> Row:
    """Return the row of gradient descent on a workload at one n and ε, which never ends below the optimum.

    - `values`: with 'objectives', by method, L over the optimum, a random start each;
    - `gap`: of the optimum.
    """
    nothing_below = min(map(min, values["objectives"].values())) >= 1 - 2 * TOLERANCE
    return Row(values, gap, certified=gap <= TOLERANCE, sound=nothing_below)


def solve(instance: ldp.LocalInstance, epsilon: float, seeds: int) -> Row:
    """Run gradient descent from some random starts, and the exact solver once.

    'variances' are, as the objectives, of the average variance, L less the workload's squares; 'median' is the time of
    the median start, of all methods.
    """
    problem = dm.LocalStrategy(instance.build(), epsilon)
    squares = float((problem.root**2).sum())
    best = fast.solve(problem, tol=TOLERANCE)
    objectives, variances, seconds = {}, {}, []
    for method in METHODS:
        runs = [fast.solve(problem, method=method(rng=seed), tol=ANY_GAP) for seed in range(seeds)]
        objectives[method.name] = [run.objective / best.objective for run in runs]
        variances[method.name] = [(run.objective - squares) / (best.objective - squares) for run in runs]
        seconds += [run.seconds for run in runs]
    values = {"name": instance.name, "size": instance.size, "epsilon": epsilon, "objectives": objectives}
    values |= {"variances": variances, "median": median(seconds), "seconds": best.seconds}
    return descended(values, best.gap)


def rows(quick: bool) -> list[Callable[[], Row]]:
    """Return the tasks; instances of fewer than three attributes have no 3-way marginals."""
    sizes, seeds = ((4,), QUICK_SEEDS) if quick else ((8, 16), SEEDS)
    names = (ldp.HISTOGRAM, ldp.PREFIX, ldp.ALL_RANGE) if quick else tuple(ldp.WORKLOADS)
    instances = [ldp.LocalInstance(name, size) for size in sizes for name in names]
    return [
        partial(solve, instance, epsilon, seeds) for instance in instances if instance.queries for epsilon in (1.0, 4.0)
    ]


def time_steps(size: int) -> Row:
    """Time steps of gradient descent on histograms of n types, with 4 n outputs, on one thread.

    `STEPS` are timed one by one; the medians, by the clock and by the processor, are of the first ones of the search
    for a step length.
    """
    problem = dm.LocalStrategy(ldp.LocalInstance(ldp.HISTOGRAM, size).build(), 1.0)
    clocks: list[tuple[float, float]] = []

    def note(news: dm.Progress) -> None:
        clocks.append((time.perf_counter(), time.process_time()))

    fast.solve(problem, method="gradient", max_iterations=STEPS + 1, callback=note, tol=ANY_GAP)
    wall, processor = (
        median(after[clock] - before[clock] for before, after in itertools.pairwise(clocks)) for clock in (0, 1)
    )
    return Row({"size": size, "seconds": wall, "processor": processor})


def steps(quick: bool) -> list[Callable[[], Row]]:
    return [partial(time_steps, size) for size in ((16, 32, 64) if quick else (16, 32, 64, 128, 256, 512))]


# Where gradient descent begins (the local privacy paper, end of section 4): at random, or at a fixed mechanism.
#
# The text says that beginning at the best known mechanism is never worse than that mechanism, and that beginning at
# random tends to end better. Both are held against certified optima here.

STARTS = (ldp.RESPONSE, ldp.HADAMARD, ldp.TREE)
"""Fixed mechanisms whose reports can be listed."""


def begun(values: Mapping[str, Any], gap: float) -> Row:
    """Return the row of gradient descent from several starts, on a workload at one n and ε; L is over the optimum.

    - `values`: with 'before' and 'after', by fixed mechanism, its L, and L where the descent from it ends, which is no
      more, and 'random', where descents from random strategies end;
    - `gap`: of the optimum.
    """
    before, after = values["before"], values["after"]
    risen = max(after[name] / before[name] for name in after)
    sound = min(*after.values(), *values["random"]) >= 1 - 2 * TOLERANCE and risen <= 1 + TOLERANCE
    return Row(values, gap, certified=gap <= TOLERANCE, sound=sound)


def random_is_better(row: Row) -> bool:
    """Whether random starts end, in the median, below the descent from the best fixed mechanism of all."""
    best = min(row.before, key=lambda name: row.before[name])
    return bool(median(row.random) < row.after[best])


def solve_initialisation(instance: ldp.LocalInstance, epsilon: float, seeds: int) -> Row:
    """Descend from every fixed mechanism and from some random strategies, and solve for the optimum."""
    problem = dm.LocalStrategy(instance.build(), epsilon)
    before, after = {}, {}
    best = fast.solve(problem, tol=TOLERANCE)
    for name in STARTS:
        rival: Any = instance.rival(name, epsilon)
        descent = fast.solve(problem, method="gradient", start=rival.strategy, tol=ANY_GAP)
        before[name] = rival.objective(problem.workload) / best.objective
        after[name] = descent.objective / best.objective
    drawn = [fast.solve(problem, method=fast.ProjectedGradient(rng=seed), tol=ANY_GAP) for seed in range(seeds)]
    values = {"name": instance.name, "size": instance.size, "epsilon": epsilon, "before": before, "after": after}
    return begun(values | {"random": [descent.objective / best.objective for descent in drawn]}, best.gap)


def initialisation_rows(quick: bool) -> list[Callable[[], Row]]:
    size, epsilons, seeds = (8, (1.0,), QUICK_SEEDS) if quick else (16, (0.5, 1.0, 2.0, 4.0), SEEDS)
    names = (ldp.HISTOGRAM, ldp.PREFIX, ldp.ALL_RANGE) if quick else tuple(ldp.WORKLOADS)
    return [
        partial(solve_initialisation, ldp.LocalInstance(name, size), epsilon, seeds)
        for name in names
        for epsilon in epsilons
    ]


# Non-negative least squares after a local mechanism (the local privacy paper, section 6.6 and appendix A).
#
# The paper's data set is not part of the project. By default the users are spread over the types by Zipf's law,
# ``x_u ∝ 1 / (u + 1)`` rounded to whole users; a file of counts takes its place.

CONSISTENCY_SIZE, USERS = 64, 1000  # user types and users of the synthetic histogram
LARGEST = 512  # most user types of a histogram in a file

EPSILON, RUNS, QUICK_RUNS = 1.0, 100, 10

SECONDS, QUICK_SECONDS = 30.0, 1.0  # time for a strategy

CONSISTENCY_WORKLOADS: dict[str, Callable[[int], dm.Workload]] = {
    ldp.HISTOGRAM: workloads.identity,
    ldp.PREFIX: workloads.prefix,
    ldp.ALL_RANGE: lambda size: workloads.from_gram(workloads.all_range_gram(size)),
}
"""Those of the six that take any number of user types."""


def synthetic() -> Array:
    """Return the default histogram: `USERS` users over `SIZE` types by Zipf's law, largest remainders rounded up.

    Examples
    --------
    >>> counts = synthetic()
    >>> int(counts.sum()), counts[:4].astype(int).tolist(), int(counts[-1])
    (1000, [211, 105, 70, 53], 3)
    """
    shares = 1 / np.arange(1, CONSISTENCY_SIZE + 1)
    exact = USERS * shares / shares.sum()
    counts = np.floor(exact)
    missing = int(USERS - counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return np.asarray(counts)


def read_histogram(path: str) -> Array:
    """Read a histogram, one count a line or a vector in ``.npy`` or ``.npz``.

    Raises `FileFormatError` or `InvalidInputError` for anything but a vector of 2 to `LARGEST` whole numbers, none
    negative, not all zero.
    """
    counts = files.read_vector(path, "counts")
    if np.any(counts < 0) or np.any(counts != np.round(counts)) or not counts.any():
        raise InvalidInputError(f"counts must be whole numbers, none negative and not all zero, in {path}")
    if not 2 <= len(counts) <= LARGEST:
        raise InvalidInputError(f"counts must be of 2 to {LARGEST} user types, got {len(counts)} in {path}")
    return counts


def _best_fixed(workload: dm.Workload) -> tuple[str, Any]:
    """Return the better of two fixed mechanisms for any number of user types."""
    size = workload.shape[1]
    tried: dict[str, LocalRival] = {
        "subset selection": rivals.subset_selection(size, EPSILON),
        "hierarchical": rivals.hierarchical_response(size, EPSILON),
    }
    best = min(tried, key=lambda name: tried[name].objective(workload))
    return best, tried[best]


def solve_consistency(
    name: str, runs: int, path: str | None = None, optimised: bool = False, seconds: float = SECONDS
) -> Row:
    """Simulate surveys on one workload, by a fixed mechanism or an optimised one, and estimate each three ways.

    Squared errors are means over surveys, per query and squared number of users: of the unbiased answers, of the
    nearest ones with ``x ≥ 0``, and of those with the known total as well; 'stated' is the mechanism's variance on
    these data.
    """
    x = synthetic() if path is None else read_histogram(path)
    size, users = len(x), float(x.sum())
    workload = CONSISTENCY_WORKLOADS[name](size)
    queries = size * (size + 1) // 2 if name == ldp.ALL_RANGE else size
    if optimised:
        answer = fast.solve(dm.LocalStrategy(workload, EPSILON), tol=TOLERANCE, time_limit=seconds)
        chosen, best, variances = "optimised", answer.mechanism, answer.mechanism.user_variances
    else:
        chosen, best = _best_fixed(workload)
        variances = best.user_variances(workload)
    truth, unit, gap = workload.apply(x), queries * users**2 * runs, 0.0
    errors = np.zeros(3)
    generator = validate.generator(rng=0)
    for _ in range(runs):
        simulated = best.simulate(x, generator)  # answers, or of a fixed mechanism an estimate of the data
        answers = simulated if optimised else workload.apply(simulated)
        errors[0] += float(((answers - truth) ** 2).sum()) / unit
        for column, total in ((1, None), (2, users)):
            solution = fast.solve(dm.NonnegativeEstimate(workload, answers, total), tol=TOLERANCE)
            gap = max(gap, solution.gap)
            errors[column] += float(((workload.apply(solution.primal) - truth) ** 2).sum()) / unit
    stated = float(x @ variances) / (queries * users**2)
    data = f"{users:g} users, {size} types" + (", synthetic" if path is None else "")
    unbiased, nonnegative, consistent = (float(error) for error in errors)
    values = {"workload": name, "mechanism": chosen, "data": data, "runs": runs, "stated": stated}
    values |= {"unbiased": unbiased, "nonnegative": nonnegative, "consistent": consistent}
    return Row(values, gap, certified=gap <= TOLERANCE)


def consistency_rows(quick: bool, data: str | None = None, limit: float | None = None) -> list[Callable[[], Row]]:
    if data is not None:
        read_histogram(data)  # refuses another file, before any work
    runs, usual = (QUICK_RUNS, QUICK_SECONDS) if quick else (RUNS, SECONDS)
    pairs = itertools.product(CONSISTENCY_WORKLOADS, (False, True))
    return [partial(solve_consistency, name, runs, data, optimised, limit or usual) for name, optimised in pairs]


# The sheets of descents, of the time of a step and of estimates.


def _best_and_median(name: str, method: str | None, row: Row) -> str:
    numbers = getattr(row, name) if method is None else getattr(row, name)[method]
    return f"{min(numbers):.3f}, {median(numbers):.3f}"


DESCENT: Columns = (
    *NAMED,
    *(
        (f"{label}{heading}", partial(_best_and_median, values, method))
        for method, label in zip((method.name for method in METHODS), ("code: ", "text: "), strict=True)
        for heading, values in (("L", "objectives"), ("variance", "variances"))
    ),
    ("seconds", "{median:.2g}"),
    ("exact: gap", "{gap:.0e}"),
    ("seconds", "{seconds:.2g}"),
    ("certified", "{verdict}"),
)

INITIALISATION: Columns = (
    *NAMED,
    *((name, f"{{before[{name}]:.3f}} → {{after[{name}]:.3f}}") for name in STARTS),
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


def _better(rows: Sequence[Row]) -> str:
    better = sum(map(random_is_better, rows))
    return (
        "Best and median of random starts. The median ends below the descent from the best of the fixed mechanisms in "
        f"{better} of {len(rows)} rows."
    )


STEP_COLUMNS: Columns = (*(("n", "{size}"), ("seconds", "{seconds:.2g}"), ("processor", "{processor:.2g}")),)


def _growth(rows: Sequence[Row]) -> str:
    powers = (
        np.log(after.processor / before.processor) / np.log(after.size / before.size)
        for before, after in itertools.pairwise(rows)
        if min(before.processor, after.processor) > 0
    )
    return f"Seconds of the processor grow from line to line as {', '.join(f'n^{power:.1f}' for power in powers)}."


def _surveys(rows: Sequence[Row]) -> str:
    return f"Means over {rows[0].runs} simulated surveys at ε = {EPSILON:g}; 'stated' is the mechanism's own."


SHEETS = {
    "descent": Sheet(
        f"{ldp.LDP}, algorithm 2",
        rows,
        one_table(
            DESCENT,
            "Best and median of random starts, with the derivative of the authors' code and with that of the text. L "
            "is tr(W G⁺ W'), what all minimise; the average variance is L less the squares of the workload.",
            heading=": over the certified optimum",
        ),
    ),
    "initialisation": Sheet(
        f"{ldp.LDP}, initialisation",
        initialisation_rows,
        one_table(
            INITIALISATION,
            _better,
            heading=": L over the certified optimum, before and after gradient descent",
        ),
    ),
    "steps": Sheet(
        f"{ldp.LDP}, Figure 3a",
        steps,
        one_table(STEP_COLUMNS, _growth, heading=": one step, 4 n outputs"),
    ),
    "consistency": Sheet(
        f"{ldp.LDP}, Figure 3c",
        consistency_rows,
        one_table(CONSISTENCY, _surveys, heading=lambda rows: f": normalised squared error; {rows[0].data}"),
        options=("data", "limit"),
    ),
}
