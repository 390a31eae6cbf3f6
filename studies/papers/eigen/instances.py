"""The workloads and rivals of the Eigen-Design paper's experiments, its printed numbers, and certified ones.

The converted text names 2048 cells and two data sets, of three and of four attributes, whose sizes it has lost. Of the
shapes that were tried, 8 x 16 x 16 gives the printed wavelet error on predicates (1.94) and 8 x 8 x 16 x 2 the printed
DataCube error on one-way ranges, so these two stand for the lost ones. Only Gram matrices enter, so workloads of
millions of ranges are no larger than their cells.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from rich.console import Console

import dualmech as dm
from dualmech import fast, workloads
from dualmech.crosscheck.printing import (
    Interval,
    TextTable,
    print_lines,
    rounded_from,
    table_of_lines,
    uncertified_mark,
    with_allowance,
    yes_or_no,
)
from dualmech.crosscheck.sheet import Columns, Row, Sheet, one_table
from dualmech.studies import rivals
from dualmech.studies.papers.verdicts import Evidence, InstanceVerdict, verdict

# The printed numbers of the Eigen-Design paper, as texts, digits included; nothing is computed.
#
# All are from Li and Miklau, "An adaptive mechanism for accurate query answering under differential privacy",
# PVLDB 5(6), 2012 ("EIG"), section 5: the table of alternative workloads, and the text's claims on its figures.
# The converted text has lost most of its numbers of cells, attributes and queries, so these are assumed
# (`dualmech.studies.papers.eigen.instances`).

Shape: TypeAlias = tuple[int, ...]

EIG = "Li and Miklau, PVLDB 5(6), 2012"

WAVELET, HIERARCHICAL, FOURIER, DATACUBE = "wavelet", "hierarchical", "Fourier", "DataCube"

BOUND = "bound"  # the column of the singular value bound (Theorem 2) over the error of the Eigen-Design

ALTERNATIVES = {
    "1D Range, permuted": {WAVELET: "9.62", HIERARCHICAL: "13.16", BOUND: "0.99"},
    "1Way Range": {DATACUBE: "1.30", FOURIER: "7.69", BOUND: "0.98"},
    "2Way Range": {HIERARCHICAL: "1.63", FOURIER: "3.23", BOUND: "0.95"},
    "1D CDF": {WAVELET: "1.01", HIERARCHICAL: "1.01", BOUND: "0.80"},
    "Predicate": {WAVELET: "1.39", FOURIER: "1.94", BOUND: "1.00"},
}
"""The table of alternative workloads, absolute errors: the best rival, then the worst, over the Eigen-Design."""

RELATIVE = {
    "1D Range, permuted": {WAVELET: "1.51", HIERARCHICAL: "2.43"},
    "1Way Range": {DATACUBE: "1.36", FOURIER: "4.93"},
    "2Way Range": {WAVELET: "1.81", DATACUBE: "2.38"},
    "1D CDF": {WAVELET: "0.46", HIERARCHICAL: "0.54"},
    "Predicate": {FOURIER: "1.42", HIERARCHICAL: "3.55"},
}
"""The same, relative errors, of the best and the worst rival; on which of the two data sets is not said."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The text's claim on a figure of absolute errors."""

    factor: tuple[str, str]  # Least and largest error of the best rival over that of the Eigen-Design
    over_bound: str  # Largest error of the Eigen-Design over the singular value bound


RANGES = Claim(("1.2", "2.1"), "1.3")
MARGINALS = Claim(("1.3", "2.2"), "1.0")

PERMUTED_DESIGNS = 4.0
"""Other design queries are said to be "worse than the eigen-queries by more than 4 times" on permuted ranges."""

IDENTITY = "identity"

SEED = 0  # of every permutation and every sample: the paper names none
SAMPLED = 64  # random predicates asked for each cell
ORDERS = 12  # random orders of the cells that the rivals are tried in

CELLS = 2048  # cells of the paper's experiments
THREE, FOUR = (8, 16, 16), (8, 8, 16, 2)  # attributes of three and of four, as assumed

QUICK_THREE, QUICK_FOUR = (4, 8, 8), (4, 4, 8, 2)


@dataclass(frozen=True, slots=True)
class EigenInstance:
    """One reading of an experiment: a workload, and the rivals on it."""

    label: str  # Which workload, with what was assumed
    shape: Shape  # Sizes of the attributes that the rivals know of
    # Returns the workload, or one with the same Gram matrix; cheap to keep, called where it is needed
    build: Callable[[], dm.Workload]
    rivals: tuple[str, ...]  # Of the strategies to compare with the Eigen-Design
    # Marginal tables that Fourier and DataCube are made for; empty for all cells
    tables: tuple[tuple[str, ...], ...] = ()
    # By column: the printed number, over the error of the Eigen-Design, as this reading takes it
    printed: dict[str, str] = field(default_factory=dict)
    # Number of random orders of the cells in which the rivals answer; 0 for the order as it is. The
    # optimum and the Eigen-Design are the same in every order (EIG, Proposition 5).
    orders: int = 0

    @property
    def cells(self) -> int:
        return math.prod(self.shape)

    def errors(self, name: str, workload: dm.Workload) -> Interval:
        """Return the least and the largest total variance of a rival over all orders, at squared privacy cost 1."""
        mechanism = self.rival(name)
        if not self.orders:
            total = float(mechanism.variances(workload).sum())
            return total, total
        # Only sums of variances are asked, so the Gram matrix in another order is as good as the workload in it.
        spread, gram = mechanism.covariance(workloads.identity(self.cells)), workload.gram()
        totals = []
        for k in range(self.orders):
            order = np.random.default_rng(SEED + k).permutation(self.cells)
            totals.append(float(np.vdot(spread, gram[np.ix_(order, order)])))
        return min(totals), max(totals)

    def rival(self, name: str) -> dm.LinearGaussianMechanism:
        cells = workloads.total(self.cells)
        if name == WAVELET:
            return rivals.wavelet(cells, 1.0, self.shape)
        if name == HIERARCHICAL:
            return rivals.hierarchical_product(cells, 1.0, self.shape)
        if name == IDENTITY or not self.tables:
            return rivals.input_perturbation(cells, 1.0)
        marginals = workloads.marginals(self.shape, sets=self.tables)
        return rivals.fourier(marginals, 1.0) if name == FOURIER else rivals.datacube(marginals, 1.0)


def alternatives(quick: bool) -> tuple[tuple[str, tuple[EigenInstance, ...]], ...]:
    """Return the rows of the table of alternative workloads, each with the readings of it: 2048 cells, or 256."""
    shapes = (QUICK_THREE, QUICK_FOUR) if quick else (THREE, FOUR)
    cells = math.prod(shapes[0])
    ordered = (WAVELET, HIERARCHICAL)
    every = partial(all_ranges, (cells,))
    readings = (
        (EigenInstance(f"all ranges, {ORDERS} random orders", (cells,), every, ordered, orders=ORDERS),),
        tuple(_range_marginals(shape, 1) for shape in shapes),
        tuple(_range_marginals(shape, 2) for shape in shapes),
        (EigenInstance("prefixes", (cells,), partial(prefixes, cells), ordered),),
        (
            _predicates_of(shapes[0], "all predicates, names as printed", _predicates, {}),
            _predicates_of(
                shapes[0],
                f"{SAMPLED * cells} predicates, names exchanged",
                _random_predicates,
                _exchange_rivals(ALTERNATIVES["Predicate"]),
            ),
        ),
    )
    return tuple(
        (name, tuple(_with_printed(entry, numbers) for entry in row))
        for (name, numbers), row in zip(ALTERNATIVES.items(), readings, strict=True)
    )


def ranges(quick: bool) -> tuple[EigenInstance, ...]:
    """Return all ranges and random ranges, over one, two and three attributes: 2048 cells, or 256."""
    shapes = ((256,), (16, 16), QUICK_THREE) if quick else ((CELLS,), (64, 32), THREE)
    compared = (WAVELET, HIERARCHICAL)
    return tuple(
        EigenInstance(f"{kind}, {shape_text(shape)}", shape, partial(build, shape), compared)
        for kind, build in (("all ranges", all_ranges), ("random ranges", _random_ranges))
        for shape in shapes
    )


def marginals(quick: bool) -> tuple[EigenInstance, ...]:
    """Return two-way marginals and random marginals, over three and more attributes: 2048 cells, or 256."""
    shapes = (QUICK_THREE, QUICK_FOUR, (2,) * 8) if quick else (THREE, FOUR, (2,) * 11)
    rows = []
    for shape in shapes:
        names = tuple(f"a{axis}" for axis in range(len(shape)))
        pairs = tuple(itertools.combinations(names, 2))
        rows.append(_marginals("2-way marginals", shape, pairs))
    for shape in shapes:
        drawn = min(2 ** (len(shape) - 1), 32)
        groups = workloads.random_marginals(shape, drawn, SEED).groups
        tables = tuple(tuple(group.split(" x ")) for group in dict.fromkeys(groups))
        rows.append(_marginals(f"{drawn} random marginals", shape, tables))
    return tuple(rows)


def shape_text(shape: Shape) -> str:
    """Return a shape in a word, such as ``8x16x16``."""
    return f"2^{len(shape)}" if len(shape) > 4 and set(shape) == {2} else "x".join(map(str, shape))


def _with_printed(instance: EigenInstance, numbers: dict[str, str]) -> EigenInstance:
    return replace(instance, printed=instance.printed or numbers)


def _exchange_rivals(numbers: dict[str, str]) -> dict[str, str]:
    """Return a row with the names of the best and the worst rival exchanged."""
    best, worst = (name for name in numbers if name != BOUND)
    return {best: numbers[worst], worst: numbers[best], BOUND: numbers[BOUND]}


def _range_marginals(shape: Shape, ways: int) -> EigenInstance:
    names = tuple(f"a{axis}" for axis in range(len(shape)))
    tables = tuple(itertools.combinations(names, ways))
    compared = (WAVELET, HIERARCHICAL, FOURIER, DATACUBE, IDENTITY)
    build = partial(_ranges_of, shape, ways)
    return EigenInstance(f"{ways}-way range marginals of {shape_text(shape)}", shape, build, compared, tables)


def _predicates_of(
    shape: Shape, label: str, build: Callable[[int], dm.Workload], numbers: dict[str, str]
) -> EigenInstance:
    named = f"{label}, {shape_text(shape)}"
    return EigenInstance(named, shape, partial(build, math.prod(shape)), (WAVELET, FOURIER), (), numbers)


def _marginals(kind: str, shape: Shape, tables: tuple[tuple[str, ...], ...]) -> EigenInstance:
    build = partial(_tables_workload, shape, tables)
    return EigenInstance(f"{kind}, {shape_text(shape)}", shape, build, (FOURIER, DATACUBE), tables)


def prefixes(cells: int) -> dm.Workload:
    return workloads.from_gram(workloads.prefix_gram(cells))


def _predicates(cells: int) -> dm.Workload:
    """All 2^d predicates: a pair of cells is in a quarter of them, a cell in half; a common factor is left out."""
    return workloads.from_gram(np.ones((cells, cells)) + np.eye(cells))


def _random_predicates(cells: int) -> dm.Workload:
    """Random predicates, as many as make their number immaterial to two decimals; only their sums are kept."""
    rng, gram = np.random.default_rng(SEED), np.zeros((cells, cells))
    for _ in range(SAMPLED):
        gram += workloads.predicates(cells, cells, rng).gram()
    return workloads.from_gram(gram)


def _ranges_of(shape: Shape, ways: int) -> dm.Workload:
    return workloads.from_gram(workloads.range_marginals_gram(shape, ways=ways), shape)


def all_ranges(shape: Shape) -> dm.Workload:
    return _ranges_of(shape, len(shape))


def _random_ranges(shape: Shape) -> dm.Workload:
    return workloads.random_range(shape, math.prod(shape), SEED)


def _tables_workload(shape: Shape, tables: tuple[tuple[str, ...], ...]) -> dm.Workload:
    return workloads.from_gram(workloads.marginals_gram(shape, sets=tables), shape)


# Experiments of the Eigen-Design paper, solved: its strategy, its rivals and its bound next to the certified optimum.
#
# Errors are root mean squares over all queries at one privacy cost, so their ratios depend neither on that cost nor on
# the number of queries. The unit here is the singular value bound (EIG, Theorem 2), a closed form.

OPTIMUM_TOLERANCE = 1e-5
"""Gap to which optima of total variance are solved; root errors are known to half of it."""

DESIGN_TOLERANCE = 1e-7  # gap to which Program 1 is solved
ROUNDING = 1e-6  # relative allowance for rounding in errors that nothing was optimised for, and in the bound


def solve(instance: EigenInstance) -> Row:
    """Solve an instance: the certified optimum, the Eigen-Design, and every rival. All errors are over the bound.

    'optimum' is the proven interval of the least error of any strategy, 'design' the error of the Eigen-Design as
    found, Program 1 solved to `DESIGN_TOLERANCE` (other weights that solve it as well may leave other columns to
    complete, and so another error: `dualmech.studies.papers.eigen.designs`), and 'rivals' are the errors of the rivals
    by name, over all orders of the cells where the instance has several. Seconds are from the instance to the optimum.
    """
    begun = time.perf_counter()
    workload = instance.build()
    problem = dm.TotalVariance(workload, geometry="dense")
    solution = fast.eigen_design(workload, tol=DESIGN_TOLERANCE, bound_tol=None)
    best = fast.solve(problem, tol=OPTIMUM_TOLERANCE)
    bound = problem.certify(best.primal, np.ones(workload.shape[1])).lower_bound
    unit, errors = (bound, bound), {name: instance.errors(name, workload) for name in instance.rivals}
    values = {
        "instance": instance,
        "optimum": root_errors(best.certificate.interval, unit),
        "design": root_errors(with_allowance(solution.total_variance, ROUNDING), unit),
        "rivals": {
            name: root_errors((least * (1 - ROUNDING), largest * (1 + ROUNDING)), unit)
            for name, (least, largest) in errors.items()
        },
        "seconds": time.perf_counter() - begun,
    }
    certified = best.certificate.certifies(OPTIMUM_TOLERANCE) and solution.weighting.gap <= DESIGN_TOLERANCE
    return Row(values, best.gap, certified)


def best_rival(reading: Row) -> str:
    return min(reading.rivals, key=lambda name: reading.rivals[name])


def factor(reading: Row, name: str) -> Interval:
    """Return a rival's error, or the singular value bound, over the error of the Eigen-Design."""
    return ratio((1.0, 1.0) if name == BOUND else reading.rivals[name], reading.design)


def evidence(reading: Row) -> list[Evidence]:
    """Return what every printed number says: a known error over the design's, it implies the error of the design."""
    known = reading.rivals | {BOUND: with_allowance(1.0, ROUNDING)}
    return [Evidence(name, name, known[name], text) for name, text in reading.instance.printed.items()]


def verdict_of(reading: Row) -> InstanceVerdict:
    """Return the verdict on the error of the paper's design, held against the design's error here.

    The columns are independent of one another.
    """
    return verdict(evidence(reading), reading.design)


def within(reading: Row, claim: Claim) -> bool:
    """Whether the best rival and the bound are where the text says, to its digits."""
    low, high = factor(reading, best_rival(reading))
    least, most = rounded_from(claim.factor[0])[0], rounded_from(claim.factor[1])[1]
    return least <= high and low <= most and reading.design[0] <= rounded_from(claim.over_bound)[1]


def solve_row(name: str, instances: tuple[EigenInstance, ...]) -> Row:
    """Solve the readings of a row of the table of alternative workloads."""
    return Row({"name": name}, parts=tuple(map(solve, instances)))


def ratio(one: Interval, other: Interval) -> Interval:
    return one[0] / other[1], one[1] / other[0]


def root_errors(totals: Interval, unit: Interval) -> Interval:
    """Return root mean square errors over those of a unit, from total variances."""
    low, high = ratio(totals, unit)
    return math.sqrt(low), math.sqrt(high)


# The sheets of the instances: as printed, computed, and implied by the printed numbers.

OPTIMUM = "optimum"

COLUMNS = (BOUND, OPTIMUM, WAVELET, HIERARCHICAL, FOURIER, DATACUBE, IDENTITY)

LEGEND = (
    "Root mean square errors at equal privacy cost, over that of the Eigen-Design (columns completed). 'bound' is the "
    "singular value bound, 'optimum' the least error of any strategy, certified to a relative gap of "
    f"{OPTIMUM_TOLERANCE:.0e} of its "
    "square. 'implies': the error of the paper's own Eigen-Design that a printed number was divided by, over the bound."
)


def tables(row: Row) -> Iterator[TextTable]:
    """Yield a table of every reading of a row of the table of alternative workloads, with its verdict."""
    for reading in row.parts:
        instance, words = reading.instance, verdict_of(reading).sentence("a design at", "PAPER'S DESIGN WORSE")
        over = {name: factor(reading, name) for name in (BOUND, *reading.rivals)}
        over[OPTIMUM] = ratio(reading.optimum, reading.design)
        title = (
            f"{row.name}: {instance.label}, {instance.cells} cells: Eigen-Design at "
            f"{three_decimals(reading.design)} of the bound and "
            f"{three_decimals(ratio(reading.design, reading.optimum))} of the optimum, the bound at "
            f"{three_decimals(ratio((1.0, 1.0), reading.optimum))} of it, {reading.seconds:.2g} s"
            + uncertified_mark(reading.certified)
        )
        lines = {"printed": instance.printed}
        for name, values in (
            ("computed", over),
            ("implies", {item.column: item.implied for item in evidence(reading)}),
        ):
            lines[name] = {column: three_decimals(value) for column, value in values.items()}
        smaller = f"NO VERDICT: the paper's numbers are of {CELLS} cells"
        yield table_of_lines(title, COLUMNS, lines, [words if instance.cells == CELLS else smaller])


def three_decimals(interval: Interval) -> str:
    """Return a number to three decimals where the ends of its interval are that close, else both ends.

    Examples
    --------
    >>> three_decimals((1.01380, 1.01381)), three_decimals((9.5554, 9.6431)), three_decimals((1.0015, 1.0042))
    ('1.014', '9.56-9.64', '1.002-1.004')
    """
    low, high = interval
    if high - low <= 1e-3:
        return f"{(low + high) / 2:.3f}"
    decimals = 2 if f"{low:.2f}" != f"{high:.2f}" else 3
    return f"{low:.{decimals}f}-{high:.{decimals}f}"


def _show_alternatives(out: Console, title: str, rows: Iterator[Row]) -> None:
    print_lines(out, title, LEGEND, "")
    for row in rows:
        for drawn in tables(row):
            out.print(drawn)


def _readings(name: str, claim: Claim, choose: Callable[[bool], Sequence[EigenInstance]]) -> Sheet:
    """Return a sheet of instances, each certified and held against a claim of the text."""
    least, most = claim.factor

    def columns(rows: Sequence[Row]) -> Columns:
        names = dict.fromkeys(name for row in rows for name in row.rivals)
        return (
            ("workload", "{instance.label}"),
            ("text holds", lambda row: yes_or_no(within(row, claim))),
            ("best rival / design", lambda row: three_decimals(factor(row, best_rival(row)))),
            ("design / bound", lambda row: three_decimals(row.design)),
            ("optimum certified", "{verdict}"),
            *((name, partial(_over_optimum, name)) for name in ("bound", "Eigen-Design", *names)),
        )

    show = one_table(
        columns,
        f"The text says that the best rival's error is {least} to {most} times the design's, and the design's at most "
        f"{claim.over_bound} times the bound.",
        heading=": root errors over the optimum",
    )
    return Sheet(f"{EIG}, {name}", lambda quick: [partial(solve, instance) for instance in choose(quick)], show)


def _over_optimum(name: str, row: Row) -> str:
    error = {"bound": (1.0, 1.0), "Eigen-Design": row.design}.get(name) or row.rivals[name]
    return three_decimals(ratio(error, row.optimum))


SHEETS = {
    "alternative": Sheet(
        f"{EIG}, alternative workloads",
        lambda quick: [partial(solve_row, *row) for row in alternatives(quick)],
        _show_alternatives,
    ),
    "ranges": _readings("ranges", RANGES, ranges),
    "marginals": _readings("marginals", MARGINALS, marginals),
}
