"""The largest ratio of variance to target of every mechanism in FFU's Tables 4 to 11, at one privacy cost.

At squared privacy cost α a mechanism's variances are 1/α of those at squared cost 1. So each is solved once, at
cost 1, and its ratio at any α is its `value` over α.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from rich.console import Console

import dualmech as dm
from dualmech import fast, workloads
from dualmech.crosscheck import table2 as table2
from dualmech.crosscheck.instances import fitness as instances
from dualmech.crosscheck.instances.fitness import (
    CONVERGENCE,
    FFU,
    MECHANISMS,
    RATIO_TABLES,
    FitnessInstance,
    RatioTable,
)
from dualmech.crosscheck.printing import (
    Interval,
    TextTable,
    interval_text,
    is_rounding,
    print_lines,
    table_of_lines,
    uncertified_mark,
    with_allowance,
)
from dualmech.crosscheck.sheet import Columns, Row, Sheet, one_table
from dualmech.studies import rivals
from dualmech.studies.papers.verdicts import Evidence, Finding, InstanceVerdict, verdict
from dualmech.validate import Array

COST_TOLERANCE = 1e-6  # gap to which every optimum of fitness for use is solved

ROUNDING = 1e-10  # relative allowance for rounding in mechanisms of closed form
RIDGE = 1e-3  # addition of the published code for CA to the diagonal of W'W, in units of the diagonal's mean

MOST_RIDGED_CELLS = 1100
"""Cells up to which CA is also solved with its ridge, which makes every workload one of full rank."""

CA_WEIGHTINGS = {"CA": 0.0, "wCA-I": 2.0, "wCA-II": 1.0}
"""Powers of 1/target that weight the queries in the published code."""

WORDS = {"wCA-I": 1.0, "wCA-II": 0.5}  # the powers that the paper's words suggest


@dataclass(frozen=True, slots=True)
class SolvedRatios:
    """One instance of a table's row, solved."""

    label: str  # Which instance
    size: tuple[int, int]  # (queries, cells): Of the workload
    cost: Interval  # Proven interval of the least squared privacy cost α
    gap: float
    certified: bool  # Whether every optimum was proven to its tolerance
    uniform: bool  # Whether all targets are equal, so that CA and its weightings coincide
    values: dict[str, Interval]  # By mechanism: largest variance over target at squared cost 1
    # By mechanism: the same for CA and its weightings as the published code states them, with a ridge;
    # empty where there are more than `MOST_RIDGED_CELLS` cells
    coded: dict[str, Interval]
    words: dict[str, Interval]  # By mechanism: the same for the weightings as the paper words them
    # Sum of variances of the covariance found, over that of CA's, at the same privacy cost. Where optimal dual
    # weights are positive on every cell, as on PL-94, the optimum is unique; elsewhere others may have another sum.
    total_error: float
    seconds: float  # From the instance to the last optimum

    def at_cost(self, value: Interval) -> Interval:
        """Return the interval at the certified cost of a largest ratio at squared cost 1."""
        return value[0] / self.cost[1], value[1] / self.cost[0]

    def ratio(self, mechanism: str) -> Interval:
        """Return the interval of a mechanism's largest ratio at the certified cost."""
        return self.at_cost(self.values[mechanism])


def solve(instance: FitnessInstance, variants: bool = True) -> SolvedRatios:
    """Solve an instance for every mechanism; with `variants`, for CA as coded and as worded too."""
    begun = time.perf_counter()
    workload, targets = instance.build()
    goals = np.broadcast_to(np.asarray(targets, dtype=np.float64), workload.shape[:1])
    optimum = fast.solve(dm.FitnessForUse(workload, goals, geometry="dense"), tol=COST_TOLERANCE)
    spent = optimum.objective * optimum.mechanism.variances(workload).sum()
    family = _TotalVarianceFamily(workload, goals)
    values = _closed_forms(workload, goals) | {name: family.value(p) for name, p in CA_WEIGHTINGS.items()}
    coded, words = {}, {}
    if variants and workload.shape[1] <= MOST_RIDGED_CELLS:
        coded = {name: family.value(p, RIDGE) for name, p in CA_WEIGHTINGS.items()}
    if variants and not family.uniform:
        words = {name: family.value(p) for name, p in WORDS.items()}
    return SolvedRatios(
        instance.label,
        workload.shape,
        optimum.certificate.interval,
        optimum.gap,
        optimum.certificate.certifies(COST_TOLERANCE) and family.certified,
        family.uniform,
        values,
        coded,
        words,
        float(spent) / family.least_total,
        time.perf_counter() - begun,
    )


def _closed_forms(workload: dm.Workload, targets: Array) -> dict[str, Interval]:
    """Return the values of the mechanisms that nothing is optimised in.

    GM is the Gaussian mechanism: independent noise on every answer, in proportion to its target, nothing made
    consistent, so that all ratios are the same.
    """
    cells = workload.shape[1]
    # Input perturbation is the tree without a sum: stated so, it needs no matrix of the size of the domain.
    trees = {"IP": rivals.IntervalTree(cells, ()), "HM": rivals.square_root_tree(cells)}
    largest = {name: float((tree.variances(workload) / targets).max()) for name, tree in trees.items()}
    weighted = dm.Workload(workload.matrix / np.sqrt(targets)[:, None])
    largest["GM"] = rivals.raw_gaussian_variance(weighted, 1.0)
    return {name: with_allowance(value, ROUNDING) for name, value in largest.items()}


class _TotalVarianceFamily:
    """Mechanisms of least weighted total variance for one workload; each is solved once."""

    def __init__(self, workload: dm.Workload, targets: Array) -> None:
        self.workload, self.targets = workload, targets
        self.uniform = bool(np.all(targets == targets[0]))
        self.certified, self.least_total = True, 0.0
        self._known: dict[tuple[float, float], Interval] = {}

    def value(self, power: float, ridge: float = 0.0) -> Interval:
        """Return the largest variance over target at squared cost 1, with weights ``1 / target^power``."""
        key = (0.0 if self.uniform else power, ridge)
        if key not in self._known:
            self._known[key] = self._solve(*key)
        return self._known[key]

    def _solve(self, power: float, ridge: float) -> Interval:
        weights = self.targets**-power
        plain = dm.TotalVariance(self.workload, weights, geometry="dense")
        problem = _ridged_problem(self.workload, weights, ridge) if ridge else plain
        answer = fast.solve(problem, tol=1e-10)  # single variances are known to about its root only
        variances = answer.mechanism.variances(self.workload)
        self.certified &= answer.gap <= COST_TOLERANCE
        if not (power or ridge):
            self.least_total = float(variances.sum())
        return _largest_ratio(variances, self.targets, weights, answer.certificate)


def _ridged_problem(workload: dm.Workload, weights: Array, ridge: float) -> dm.TotalVariance:
    """Return the problem with `ridge` times the mean diagonal of the Gram matrix added to its diagonal."""
    cells = workload.shape[1]
    scaled = workload.dense() * np.sqrt(weights)[:, None]
    extra = np.sqrt(ridge * (scaled**2).sum() / cells)
    return dm.TotalVariance(dm.Workload(np.vstack([scaled, extra * np.eye(cells)])))


def _largest_ratio(variances: Array, targets: Array, weights: Array, certificate: dm.Certificate) -> Interval:
    """Return ``max_j variance_j / target_j`` at the optimum, as far as the gap g of a point near it tells.

    With s_j a query's share of the weighted total, its variance differs from that at the optimum by at most
    ``√(g / s_j)``, relative and to first order in √g: near the optimum the total grows by ``Σ_j w_j ‖E v_j‖²``
    where the relative change E of the cost matrix moves variance j by ``v_j' E v_j``.
    """
    gap = max(certificate.gap, certificate.resolution)
    shares = weights * variances / certificate.objective
    ratios, slack = variances / targets, np.sqrt(gap / shares)
    return float((ratios * (1 - slack)).max()), float((ratios * (1 + slack)).max())


# SM-II run here on the paper's problems, in each basis that it may have been run in, next to the certified optimum.

STATED = {4: "U", 5: "U", 6: "U", 7: "I", 8: "I", 9: "U", 10: "I", 11: "I"}
"""The basis that section 7 names, by number of table. For Table 2 it names none; it has I and U in general."""

# Rows of the fitness-for-use paper's tables, solved: privacy costs, ratios, and seconds.

RIVALS = MECHANISMS[:-1]

WEIGHTS = {"IP": 3, "HM": 2}  # weight of a column's evidence (`Evidence`); 1 for the others
AS_CODED = " as coded"  # suffix, in verdicts, of a mechanism with the ridge of the published code

SEEDS = {64: 5, 128: 5, 256: 3, 512: 2}
"""Number of random instances of the text's description, by number of cells; none above."""


def race(size: int, limit: float) -> Row:
    """Run the paper's two optimisers of Problem 4 on d prefixes, with its published settings, and the dual solver.

    The first two end by the paper's own rule, which proves nothing, or at `limit` seconds.
    """
    problem = dm.FitnessForUse(workloads.prefix(size), targets=1.0)
    answers = {}
    for method in ("softmax_gradient", "softmax_newton"):
        answers[method] = fast.solve(problem, method=method, time_limit=limit, max_iterations=table2.MAX_STEPS)
    answers["dual"] = fast.solve(problem, tol=COST_TOLERANCE)
    return raced(size, limit, table2.answers_of(answers))


def raced(size: int, limit: float, answers: Mapping[str, Row]) -> Row:
    """Return a row of Table 3: the intervals must meet, and the dual solver's, the last, be as narrow as promised."""
    lows, highs = zip(*(answer.interval for answer in answers.values()), strict=True)
    dual = [*answers.values()][-1]
    values = {"size": size, "printed": CONVERGENCE[size], "limit": limit, "answers": answers}
    return Row(values, dual.gap, dual.certified, sound=max(lows) <= min(highs))


def ratio_row(
    table: RatioTable,
    row: int,
    readings: Sequence[SolvedRatios],
    random: Sequence[SolvedRatios] = (),
    runs: Sequence[table2.PublishedRun | None] = (),
) -> Row:
    """Return a row of Tables 4 to 11, with a verdict on each definite instance that it may be of.

    The row is not held against an instance that fewer columns fit than fit another reading of the same row.

    - `readings`: definite instances, solved;
    - `random`: random instances as the text describes them; empty where nothing is random;
    - `runs`: SM-II as its code has it, by reading; None where it would take too long.
    """
    printed = table.printed(row)
    judged = [verdict(evidence(reading, printed), reading.cost) for reading in readings]
    most = max(candidate.sources for candidate in judged)
    verdicts = tuple(
        candidate if candidate.sources == most else replace(candidate, finding=Finding.DIFFERS) for candidate in judged
    )
    values = {"table": table, "row": row, "printed": printed, "readings": readings, "random": random, "runs": runs}
    solved = (*readings, *random)
    gap, certified = max(run.gap for run in solved), all(run.certified for run in solved)
    return Row({**values, "verdicts": verdicts}, gap, certified)


def spread(row: Row, mechanism: str) -> Interval:
    """Return the least and the largest ratio of a mechanism over the random instances of a row."""
    lows, highs = zip(*(reading.ratio(mechanism) for reading in row.random), strict=True)
    return min(lows), max(highs)


def within_spread(row: Row, mechanism: str) -> bool:
    """Whether a printed ratio can be a rounding of one in the spread."""
    return is_rounding(row.printed[mechanism], spread(row, mechanism))


def evidence(reading: SolvedRatios, printed: dict[str, str]) -> list[Evidence]:
    """Return the evidence of each printed ratio on one instance; CA as optimal, and as it was coded."""
    pieces = []
    for name in RIVALS:
        if reading.uniform and name != "CA" and name in CA_WEIGHTINGS:
            continue  # equal targets: a copy of CA, no evidence of its own
        weight = WEIGHTS.get(name, 1)
        pieces.append(Evidence(name, name, reading.values[name], printed[name], weight))
        if name in reading.coded:
            pieces.append(Evidence(name + AS_CODED, name, reading.coded[name], printed[name], weight))
    return pieces


def solve_row(table: RatioTable, row: int, seeds: int | None = None, runs: tuple[float, float] = (0, 0.0)) -> Row:
    """Solve a row of a ratio table on every reading of it, and on `seeds` random instances (by default `SEEDS`).

    SM-II is run on every reading of no more cells than the first of `runs`, for the seconds that are its second.

    Examples
    --------
    >>> from dualmech.crosscheck.instances.fitness import RATIO_TABLES
    >>> table_10 = RATIO_TABLES[6]
    >>> found = solve_row(table_10, 4).verdicts[0]
    >>> found.finding.name, found.fitting
    ('ABOVE', ('IP', 'HM', 'CA as coded'))
    """
    number, drawn = table.number, 0
    if number in instances.RANDOM_TABLES:
        drawn = SEEDS.get(row, 0) if seeds is None else seeds
    readings = instances.readings(number, row)
    return ratio_row(
        table,
        row,
        [solve(instance) for instance in readings],
        [solve(instances.random_instance(number, row, seed), variants=False) for seed in range(drawn)],
        [*_published_runs(number, readings, *runs)],
    )


def _published_runs(
    number: int, readings: Sequence[FitnessInstance], most: float, limit: float
) -> Iterator[table2.PublishedRun | None]:
    """Yield SM-II's run on each reading, as its published code has it, in the basis that the text states."""
    for workload, targets in (reading.build() for reading in readings):
        basis = STATED[number]
        small = workload.shape[1] <= most
        yield table2.run_published(workload, targets, basis, limit, as_coded=True) if small else None


# The rows of the ratio tables, Tables 4 to 11, in lines: as printed, certified, and what follows.

COLUMNS = (*MECHANISMS[:-1], "GM", MECHANISMS[-1])
"""Those of the ratio tables, and the Gaussian mechanism, which the paper leaves out of its experiments."""

DECIMALS = 4  # most decimals of a ratio; two are printed in the paper

LEGEND = (
    "Entries are the largest ratio of variance to target over all queries, each mechanism at the squared privacy "
    "cost α that fitness for use needs. 'implies α': the cost at which a printed ratio was computed. 'times Δ': the "
    "privacy cost at which a mechanism meets the targets, over the least (Theorem 5). 'CA as coded': with the ridge "
    "of the published code; wCA-I and wCA-II weight queries by 1/target² and 1/target, as it does; 'as worded' by "
    "1/target and its root. GM: the Gaussian mechanism, independent noise on every answer in proportion to its target, "
    "which the paper leaves out. 'SM-II run here': with the settings of the published code (Equation 14 as printed, "
    "its start), in the basis B that the text states; CAPPED where it was stopped before its own rule ended it."
)


def tables(row: Row) -> Iterator[TextTable]:
    """Yield a table of every reading of a row, as printed and with its verdict, and the spread of random instances."""
    name = f"{row.table.parameter} = {row.row}, " if row.table.parameter else ""
    for reading, reading_verdict, run in zip(row.readings, row.verdicts, row.runs, strict=True):
        queries, cells = reading.size
        title = (
            f"{name}{reading.label}{reading.label and ', '}{queries} queries x {cells} cells: "
            f"α in {interval_text(reading.cost)}, {reading.seconds:.3g} s{uncertified_mark(reading.certified)}"
        )
        notes = (
            [_sentence(reading_verdict)] if run is None else [_run_line(run, reading.cost), _sentence(reading_verdict)]
        )
        if words := row.table.said_of_total_error(row.row):
            notes.insert(0, f"total squared error over CA's: {reading.total_error:.3f}, printed {words}")
        yield table_of_lines(title, COLUMNS, _reading_lines(row, reading), notes)
    if row.random:
        yield _spread(row, name)


def _reading_lines(row: Row, reading: SolvedRatios) -> dict[str, dict[str, str]]:
    certified = {name: reading.ratio(name) for name in (*RIVALS, "GM")}
    implied = {name: Evidence(name, name, reading.values[name], row.printed[name]).implied for name in RIVALS}
    lines = {"printed": row.printed, "certified": _agreed_digits_of(certified) | {"SM-II": "1"}}
    for name, values in (("CA as coded", reading.coded), ("as worded", reading.words)):
        if values:
            lines[name] = _agreed_digits_of({key: reading.at_cost(value) for key, value in values.items()})
    lines["implies α"] = {name: f"{sum(ends) / 2:.5g}" for name, ends in implied.items()}
    factors = {name: (low**0.5, high**0.5) for name, (low, high) in certified.items()}
    return lines | {"times Δ": _agreed_digits_of(factors) | {"SM-II": "1"}}


def _run_line(run: table2.PublishedRun, optimum: Interval) -> str:
    """Return the result of SM-II here, and its basis."""
    low, high = (100 * share for share in run.excess(optimum))
    return (
        f"SM-II run here, {run.settings}, B = {run.basis}: α = {run.objective:.6g}, "
        f"{low:.2f} % to {high:.2f} % above the optimum, {run.steps} steps, "
        f"{run.seconds:.3g} s{', CAPPED' if run.capped else ''}"
    )


def _sentence(verdict: InstanceVerdict) -> str:
    """Return the verdict in words; a mechanism that fits both as optimal and as coded is named once."""
    fitting = tuple(
        name for name in verdict.fitting if name.removesuffix(AS_CODED) not in verdict.fitting or AS_CODED not in name
    )
    others = tuple(name for name in verdict.others if AS_CODED not in name and name + AS_CODED not in verdict.fitting)
    return replace(verdict, fitting=fitting, others=others).sentence("α =")


def _spread(row: Row, name: str) -> TextTable:
    """Return the spread of the random instances, and which printed ratios lie in it."""
    ends, count = {mechanism: spread(row, mechanism) for mechanism in RIVALS}, len(row.random)
    inside = [mechanism for mechanism in RIVALS if within_spread(row, mechanism)]
    outside = [mechanism for mechanism in RIVALS if mechanism not in inside]
    text = f"INSTANCE IS RANDOM: of {count} seeds' spread, printed within: {', '.join(inside) or 'none'}"
    title = f"{name}as the text, {count} seed{'s' if count > 1 else ''}"
    lines = {
        label: {mechanism: f"{pair[place]:.{DECIMALS}f}" for mechanism, pair in ends.items()}
        for place, label in enumerate(("least", "largest"))
    }
    mark = uncertified_mark(all(reading.certified for reading in row.random))
    return table_of_lines(
        title + mark, COLUMNS, lines, [text + (f"; outside: {', '.join(outside)}" if outside else "")]
    )


def _agreed_digits_of(intervals: Mapping[str, Interval]) -> dict[str, str]:
    return {name: agreed_digits(interval) for name, interval in intervals.items()}


def agreed_digits(interval: Interval) -> str:
    """Return a number with the decimals on which both ends of its interval agree, from 4 down to 2, or both ends.

    Examples
    --------
    >>> agreed_digits((4.60838, 4.60841)), agreed_digits((1.2431, 1.2444)), agreed_digits((1.2, 1.3))
    ('4.6084', '1.24', '1.2..1.3')
    """
    low, high = interval
    for decimals in range(DECIMALS, 1, -1):
        if f"{low:.{decimals}f}" == f"{high:.{decimals}f}":
            return f"{low:.{decimals}f}"
    return f"{low:.1f}..{high:.1f}"


# The sheets of the tables.

QUICK_ROWS = {5: 64, 6: 64, 7: 64, 8: 64, 10: 6, 11: 64}
"""Largest parameter of a ratio table's rows in a quick run."""


def _race(quick: bool, limit: float | None = None) -> list[Callable[[], Row]]:
    seconds = limit or (2.0 if quick else 30.0)  # the paper let gradient descent run for minutes
    return [partial(race, size, seconds) for size in CONVERGENCE]


def _raced(name: str, row: Row) -> str:
    answer = row.answers[name]
    return str(answer.text(f"{{seconds:.2g}} s, {{gap:.0e}}{', CAPPED' if answer.seconds >= row.limit else ''}"))


RACE: Columns = (
    ("d", "{size}"),
    ("descent, printed", "{printed[0]} s"),
    ("SM-II, printed", "{printed[1]} s"),
    ("descent", partial(_raced, "softmax_gradient")),
    ("SM-II", partial(_raced, "softmax_newton")),
    ("dual, certified", partial(_raced, "dual")),
)


def _ratios(table: RatioTable, quick: bool, limit: float | None = None) -> list[Callable[[], Row]]:
    chosen = [row for row in table.rows if not quick or row <= QUICK_ROWS.get(table.number, row)]
    # SM-II is run up to so many cells, for so many seconds; a requested time limit holds for all sizes.
    seeds, runs = (3, (64, table2.QUICK_SM2_SECONDS)) if quick else (None, (256, table2.SM2_SECONDS))
    all_sizes = runs if limit is None else (math.inf, limit)
    return [partial(solve_row, table, row, seeds, all_sizes) for row in chosen]


def _show_ratios(subject: str, out: Console, title: str, rows: Iterator[Row]) -> None:
    print_lines(out, title, f"{subject[0].upper()}{subject[1:]}.", LEGEND, "")
    for row in rows:
        for drawn in tables(row):
            out.print(drawn)
        print_lines(out, "")


LIMIT = ("limit",)  # the option of sheets on which published solvers run

SHEETS = {
    "table2": table2.TABLE,
    "table3": Sheet(
        f"{FFU}, Table 3", _race, one_table(RACE, heading=": seconds, and the gap proven", words=()), options=LIMIT
    ),
    **{
        f"table{table.number}": Sheet(
            table.source, partial(_ratios, table), partial(_show_ratios, table.subject), options=LIMIT
        )
        for table in RATIO_TABLES
    },
}
