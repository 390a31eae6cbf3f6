"""Design queries compared, and reductions of the Eigen-Design: what each gives away, and what it takes.

EIG, section 5.3, weighs the rows of other bases by Program 1 and sets the strategies beside that of the eigen-queries,
on two workloads and on the same with their cells permuted; and it cuts the cost of Program 1 in two ways (section 4).
All errors are root mean squares, over the certified optimum of any strategy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy.linalg

from dualmech import designs, fast, strategies, workloads
from dualmech.crosscheck import rivals
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.eigen import DESIGN_TOLERANCE, OPTIMUM_TOLERANCE
from dualmech.crosscheck.eigen_instances import IDENTITY, SEED, Shape, shape_text
from dualmech.crosscheck.eigen_printed import DATACUBE, FOURIER, WAVELET
from dualmech.crosscheck.printed import Interval
from dualmech.errors import UncertifiedWarning
from dualmech.mechanism import LinearGaussianMechanism
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.validate import Array
from dualmech.workload import Workload

EIGEN_QUERIES = "eigen-queries"

DESIGNS: dict[str, Callable[[Workload, Shape], Array]] = {
    EIGEN_QUERIES: lambda workload, shape: designs.eigen_queries(workload),
    WAVELET: lambda workload, shape: rivals.haar_matrix(shape).toarray(),
    FOURIER: lambda workload, shape: rivals.fourier_matrix(shape),
    IDENTITY: lambda workload, shape: np.eye(math.prod(shape)),
}
"""Design queries that the paper compares, by name, and single cells."""

MORE_DESIGNS: dict[str, Callable[[Workload, Shape], Array]] = {
    "tree": lambda workload, shape: rivals.hierarchical_matrix(shape).toarray(),
    "queries": lambda workload, shape: workload.dense(),
    "root": lambda workload, shape: prefix_root(math.prod(shape)),
}
"""Candidates for prefixes besides: a binary tree, the prefixes themselves, and their square root."""

REDUCTIONS: tuple[tuple[str, dict[str, float]], ...] = (
    ("newton", {}),
    ("separation", {"group_size": 4}),
    ("separation", {"group_size": 16}),
    ("separation", {"group_size": 64}),
    ("principal", {"share": 0.02}),
    ("principal", {"share": 0.05}),
    ("principal", {"share": 0.1}),
    ("principal", {"share": 0.25}),
)
"""Methods of `fast.eigen_design` with their options; the first solves Program 1 whole."""


@dataclass(frozen=True, slots=True)
class Weighted:
    """A design with its best weights.

    Attributes
    ----------
    name : str
        Which design queries.
    program : Interval
        Root of the optimum of Program 1, proven from both sides. It is the error of the strategy, or above it where
        design queries depend on one another.
    completed : Interval
        Error of the strategy with its columns completed.
    certified : bool
        Whether Program 1 was solved to its tolerance.
    """

    name: str
    program: Interval
    completed: Interval
    certified: bool


@dataclass(frozen=True, slots=True)
class DesignRow:
    """Designs compared on one workload."""

    name: str
    entries: tuple[Weighted, ...]
    gap: float

    @property
    def outcome(self) -> Agreement:
        """Whether the optimum and every program were certified."""
        certified = self.gap <= OPTIMUM_TOLERANCE and all(entry.certified for entry in self.entries)
        return Agreement.AGREE if certified else Agreement.WIDE

    @property
    def eigen_queries(self) -> Weighted:
        """The eigen-queries among the designs."""
        return next(entry for entry in self.entries if entry.name == EIGEN_QUERIES)

    @property
    def best(self) -> Weighted:
        """The design whose completed strategy has the least error."""
        return min(self.entries, key=lambda entry: entry.completed)


@dataclass(frozen=True, slots=True)
class Reduced:
    """What one way of weighing the eigen-queries reaches.

    Attributes
    ----------
    label : str
        Method and its option.
    error : Interval
        Of the strategy, columns completed, over the optimum.
    excess : float
        By how much its weights may be worse than the best, relative, as root error: proven by Program 1's judge.
    seconds : float
        Spent on the weights, the eigenvectors given.
    """

    label: str
    error: Interval
    excess: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ReductionRow:
    """Reductions compared on one workload; `rival` is the error of the best rival."""

    name: str
    rival: tuple[str, float]
    entries: tuple[Reduced, ...]
    gap: float

    @property
    def outcome(self) -> Agreement:
        """Whether the optimum was certified; a reduction proves how far off it is, however far."""
        return Agreement.AGREE if self.gap <= OPTIMUM_TOLERANCE else Agreement.WIDE


def compare(name: str, build: Callable[[], Workload], shape: Shape, every: bool = False) -> DesignRow:
    """Weigh each design's queries for a workload by Program 1; `every` adds `MORE_DESIGNS`.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import eigen_designs
    >>> row = eigen_designs.compare("prefixes", lambda: dm.workloads.prefix(16), (16,), every=True)
    >>> row.best.name, [round(end, 3) for end in row.best.completed]
    ('root', [1.018, 1.018])
    """
    workload = build()
    with warnings.catch_warnings():
        # What is not certified says so in the table; a warning beside it would only be noise.
        warnings.simplefilter("ignore", UncertifiedWarning)
        best = fast.solve(TotalVariance(workload), tol=OPTIMUM_TOLERANCE)
        interval = best.certificate.interval
        makers = DESIGNS | (MORE_DESIGNS if every else {})
        entries = tuple(
            _weighted(each, workload, make(workload, shape), interval) for each, make in makers.items()
        )
    return DesignRow(name, entries, best.gap)


def _weighted(name: str, workload: Workload, design: Array, optimum: Interval) -> Weighted:
    program = QueryWeighting(workload, design)
    answer = fast.solve(program, tol=DESIGN_TOLERANCE)
    strategy = program.strategy(answer.primal)
    total = strategies.total_variance(strategies.completed(strategy[np.any(strategy, axis=1)]), workload)
    return Weighted(
        name,
        _over(answer.certificate.interval, optimum),
        _over((total, total), optimum),
        answer.certificate.certifies(DESIGN_TOLERANCE),
    )


def reduce(
    name: str, build: Callable[[], Workload], rival: tuple[str, Callable[[], LinearGaussianMechanism]]
) -> ReductionRow:
    """Weigh the eigen-queries whole and in every reduced way; `rival` names and builds one at squared cost 1.

    Examples
    --------
    >>> from dualmech.crosscheck import eigen_designs
    >>> row = eigen_designs.reductions_of(64, (2, 4, 8))[0]()
    >>> whole, *reduced = row.entries
    >>> row.name, round(whole.error[1], 3), min(round(entry.error[1], 3) for entry in reduced) > 1
    ('all ranges, 64', 1.009, True)
    """
    workload = build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncertifiedWarning)
        best = fast.solve(TotalVariance(workload), tol=OPTIMUM_TOLERANCE)
        entries = tuple(_reduced(workload, best.certificate.interval, *each) for each in REDUCTIONS)
    spent = float(rival[1]().variances(workload).sum())
    return ReductionRow(name, (rival[0], math.sqrt(spent / best.objective)), entries, best.gap)


def _reduced(workload: Workload, optimum: Interval, method: str, options: dict[str, float]) -> Reduced:
    tol = DESIGN_TOLERANCE
    found = fast.eigen_design(workload, method=method, tol=tol, bound_tol=None, **options)  # type: ignore[arg-type]
    shown = {"group_size": "groups of {:g}", "share": "{:.0%} of the eigen-queries"}
    option = ", ".join(shown[key].format(value) for key, value in options.items())
    return Reduced(
        f"{method}, {option}" if option else "all eigen-queries",
        _over((found.total_variance, found.total_variance), optimum),
        math.sqrt(1 + found.weighting.gap) - 1,
        found.weighting.seconds,
    )


def comparisons(quick: bool) -> list[Callable[[], DesignRow]]:
    """Return the comparisons of designs to make: 1024 cells, or 128."""
    cells = 128 if quick else 1024
    shape = (4, 4, 8) if quick else (8, 8, 16)
    ranges, tables = partial(_ranges, cells), partial(_tables, shape)
    return [
        partial(compare, f"all ranges, {cells}", ranges, (cells,)),
        partial(compare, f"all ranges, {cells}, permuted", partial(_permuted, ranges), (cells,)),
        partial(compare, f"2-way marginals, {shape_text(shape)}", tables, shape),
        partial(
            compare, f"2-way marginals, {shape_text(shape)}, permuted", partial(_permuted, tables), shape
        ),
        partial(compare, f"prefixes, {cells}", partial(workloads.prefix, cells), (cells,), every=True),
    ]


def reductions(quick: bool) -> list[Callable[[], ReductionRow]]:
    """Return the reductions to compare: 1024 cells, or 256."""
    return reductions_of(256 if quick else 1024, (4, 8, 8) if quick else (8, 8, 16))


def reductions_of(cells: int, shape: Shape) -> list[Callable[[], ReductionRow]]:
    """Return the reductions to compare on all ranges of ordered cells and on two-way marginals of a shape."""
    total, tables = workloads.total(cells), workloads.marginals(shape, ways=2)
    wavelet = (WAVELET, partial(rivals.wavelet, total, 1.0))
    datacube = (DATACUBE, partial(rivals.datacube, tables, 1.0))
    return [
        partial(reduce, f"all ranges, {cells}", partial(_ranges, cells), wavelet),
        partial(reduce, f"2-way marginals, {shape_text(shape)}", partial(_tables, shape), datacube),
    ]


def prefix_root(cells: int) -> Array:
    """Return the lower triangular matrix whose square is `workloads.prefix`: a Toeplitz matrix of ``C(2k, k) / 4^k``.

    Examples
    --------
    >>> prefix_root(3)
    array([[1.   , 0.   , 0.   ],
           [0.5  , 1.   , 0.   ],
           [0.375, 0.5  , 1.   ]])
    """
    steps = np.arange(1, cells)
    column = np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])
    return np.asarray(np.tril(scipy.linalg.toeplitz(column)))


def _permuted(build: Callable[[], Workload]) -> Workload:
    return workloads.permuted(build(), SEED)


def _over(totals: Interval, optimum: Interval) -> Interval:
    return math.sqrt(totals[0] / optimum[1]), math.sqrt(totals[1] / optimum[0])


def _ranges(cells: int) -> Workload:
    return workloads.from_gram(workloads.all_range_gram(cells))


def _tables(shape: Shape) -> Workload:
    return workloads.from_gram(workloads.marginals_gram(shape, ways=2), shape)
