"""Relative errors of the table of alternative workloads, on the Adult table; ranges in a random order in closed form.

Ranges over an order of n cells are differences of two prefixes, so all n (n + 1) / 2 variances and answers follow from
sums along the order, and no matrix of queries is written down.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from dualmech import fast, workloads
from dualmech.crosscheck.papers.eigen.experiments import DESIGN_TOLERANCE, OPTIMUM_TOLERANCE
from dualmech.crosscheck.papers.eigen.instances import (
    CELLS,
    FOUR,
    SEED,
    EigenInstance,
    all_ranges,
    shape_text,
)
from dualmech.crosscheck.papers.eigen.printed import (
    DATACUBE,
    FOURIER,
    HIERARCHICAL,
    RELATIVE,
    WAVELET,
)
from dualmech.crosscheck.papers.eigen.relative import SANITY, RelativeRow, compared, solve
from dualmech.crosscheck.papers.solving import without_warnings
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.validate import Array
from dualmech.workloads.base import Workload

PREDICATES = 2 * CELLS  # random predicates, which take as much memory as the matrix of a design
ORDERED, EVERY = (WAVELET, HIERARCHICAL), (WAVELET, HIERARCHICAL, FOURIER, DATACUBE)


def rows(counts: Array) -> list[Callable[[], RelativeRow]]:
    """Return what to compute on the counts of all cells: all ranges, and the five workloads in the paper's order."""
    names = tuple(f"a{axis}" for axis in range(len(FOUR)))
    pairs = tuple((one, other) for place, one in enumerate(names) for other in names[place + 1 :])
    shape = shape_text(FOUR)
    listed = (
        ("1Way Range", "one-way ranges", _range_marginals(1), EVERY, tuple((name,) for name in names)),
        ("2Way Range", "two-way ranges", _range_marginals(2), EVERY, pairs),
        ("1D CDF", "prefixes", partial(workloads.prefix, CELLS), ORDERED, ()),
        ("Predicate", f"{PREDICATES} random predicates", _predicates, (*ORDERED, FOURIER), ()),
    )
    return [
        partial(line_ranges, counts),
        partial(line_ranges, counts, permuted=True),
        *(
            partial(
                solve, EigenInstance(f"{label}, {shape}", FOUR, build, rivals, sets, RELATIVE[name]), counts
            )
            for name, label, build, rivals, sets in listed
        ),
    ]


def line_ranges(counts: Array, permuted: bool = False) -> RelativeRow:
    """Compare mean relative errors on all ranges of the cells in a line, in their order or in a random one."""
    cells = len(counts)
    order = np.random.default_rng(SEED).permutation(cells) if permuted else np.arange(cells)
    ranges = partial(all_ranges, (cells,))
    label = f"all ranges, cells in {'a random' if permuted else 'their'} order"
    printed = RELATIVE["1D Range, permuted"] if permuted else {}
    instance = EigenInstance(label, (cells,), ranges, ORDERED, printed=printed)
    everywhere = workloads.identity(cells)
    with without_warnings():
        design = partial(fast.eigen_design, tol=DESIGN_TOLERANCE)
        scaled = design(_unit_ranges(cells), bound_tol=OPTIMUM_TOLERANCE)
        plain = design(ranges(), bound_tol=None)

    def error(along: npt.NDArray[np.int64], mechanism: LinearGaussianMechanism) -> float:
        spread = mechanism.covariance(everywhere)[np.ix_(along, along)]
        return range_error(spread, counts[order])

    # A design is made for the ranges, in whatever order they have the cells; the rivals know of none.
    return compared(instance, scaled, plain, partial(error, np.arange(cells)), partial(error, order))


def range_error(covariance: Array, counts: Array) -> float:
    """Return the mean over all ranges of ``√(2/π) s / max(answer, SANITY · records)``; see `relative.relative_error`.

    Examples
    --------
    >>> round(range_error(np.eye(2), np.array([1.0, 3.0])), 6)          # deviations 1, √2 and 1 on answers 1, 4 and 3
    0.448647
    """
    size = len(counts) + 1
    sums, answers = np.zeros((size, size)), np.concatenate([[0.0], np.cumsum(counts)])
    sums[1:, 1:] = covariance.cumsum(axis=0).cumsum(axis=1)
    ends = np.diag(sums)
    first, last = np.triu_indices(size, 1)
    deviations = np.sqrt(np.maximum(ends[first] + ends[last] - 2 * sums[first, last], 0.0))
    least = SANITY * counts.sum()
    return float(np.mean(np.sqrt(2 / np.pi) * deviations / np.maximum(answers[last] - answers[first], least)))


def _unit_ranges(cells: int) -> Workload:
    """Return a workload with the Gram matrix of all ranges at unit norm.

    Cells a ≤ b are together in the ranges from i ≤ a to j ≥ b, each of weight ``1 / (j - i + 1)``: of one i these add
    up to a difference of harmonic numbers.
    """
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1.0, cells + 1))])
    starts, last = np.arange(cells)[:, None], np.arange(cells)[None, :]
    from_start = np.where(
        last >= starts, harmonic[cells - starts] - harmonic[np.maximum(last - starts, 0)], 0.0
    )
    upper = np.triu(from_start.cumsum(axis=0))
    return workloads.from_gram(upper + np.triu(upper, 1).T)


def _range_marginals(ways: int) -> Callable[[], Workload]:
    return partial(workloads.range_marginals, FOUR, ways=ways)


def _predicates() -> Workload:
    return workloads.predicates(CELLS, PREDICATES, SEED)
