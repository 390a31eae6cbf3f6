"""Non-negative least squares after a local mechanism (the local privacy paper, section 6.6 and appendix A).

The paper's data set is not at hand. By default the users are spread over the types by Zipf's law, ``x_u ∝ 1 / (u + 1)``
rounded to whole users; a file of counts takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dualmech import fast, files, validate, workloads
from dualmech.crosscheck import rivals
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.local.instances import ALL_RANGE, HISTOGRAM, PREFIX
from dualmech.crosscheck.papers.solving import certified_outcome, without_warnings
from dualmech.crosscheck.rivals import LocalRival
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.local import LocalMechanism
from dualmech.problems.local.estimate import NonnegativeEstimate
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.validate import Array
from dualmech.workloads.base import Workload

SIZE, USERS = 64, 1000  # user types and users of the synthetic histogram
LARGEST = 512  # most user types of a histogram in a file

EPSILON, RUNS, QUICK_RUNS = 1.0, 100, 10

SECONDS, QUICK_SECONDS = 30.0, 1.0  # time for a strategy

OPTIMISED = "optimised"  # the mechanism of the paper's figure

TOLERANCE = 1e-6

WORKLOADS: dict[str, Callable[[int], Workload]] = {
    HISTOGRAM: workloads.identity,
    PREFIX: workloads.prefix,
    ALL_RANGE: lambda size: workloads.from_gram(workloads.all_range_gram(size)),
}
"""Those of the six that take any number of user types."""


@dataclass(frozen=True, slots=True)
class ConsistencyRow:
    """Squared errors on one workload, means over simulated surveys, per query and squared number of users."""

    # What was asked, of whom, and on which histogram
    workload: str
    mechanism: str
    data: str
    stated: float  # The mechanism's variance on these data
    # Error of the unbiased answers, of the nearest ones with ``x ≥ 0``, and of those with the known
    # total as well
    unbiased: float
    nonnegative: float
    consistent: float
    gap: float  # The widest of the estimates', proven
    runs: int  # Surveys simulated

    @property
    def outcome(self) -> Agreement:
        """Whether every estimate is certified."""
        return certified_outcome(self.gap <= TOLERANCE)


def synthetic() -> Array:
    """Return the default histogram: `USERS` users over `SIZE` types by Zipf's law, largest remainders rounded up.

    Examples
    --------
    >>> counts = synthetic()
    >>> int(counts.sum()), counts[:4].astype(int).tolist(), int(counts[-1])
    (1000, [211, 105, 70, 53], 3)
    """
    shares = 1 / np.arange(1, SIZE + 1)
    exact = USERS * shares / shares.sum()
    counts = np.floor(exact)
    missing = int(USERS - counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return np.asarray(counts)


def read_histogram(path: str) -> Array:
    """Read a histogram, one count a line or a vector in ``.npy`` or ``.npz``.

    Raises `FileFormatError` or `InvalidInputError` for what is no vector of 2 to `LARGEST` whole numbers, none
    negative, not all zero.
    """
    counts = files.read_vector(path, "counts")
    if np.any(counts < 0) or np.any(counts != np.round(counts)) or not counts.any():
        raise InvalidInputError(f"counts must be whole numbers, none negative and not all zero, in {path}")
    if not 2 <= len(counts) <= LARGEST:
        raise InvalidInputError(f"counts must be of 2 to {LARGEST} user types, got {len(counts)} in {path}")
    return counts


def _best_fixed(workload: Workload) -> tuple[str, LocalRival]:
    """Return the better of two fixed mechanisms for any number of user types."""
    size = workload.shape[1]
    tried: dict[str, LocalRival] = {
        "subset selection": rivals.subset_selection(size, EPSILON),
        "hierarchical": rivals.hierarchical_response(size, EPSILON),
    }
    best = min(tried, key=lambda name: tried[name].objective(workload))
    return best, tried[best]


def _optimise(workload: Workload, seconds: float) -> LocalMechanism:
    """Return the mechanism of the best strategy on average that is found in time."""
    with without_warnings():
        found: LocalMechanism = fast.solve(
            LocalStrategy(workload, EPSILON), tol=TOLERANCE, time_limit=seconds
        ).mechanism
    return found


def solve(
    name: str, runs: int, path: str | None = None, optimised: bool = False, seconds: float = SECONDS
) -> ConsistencyRow:
    """Simulate surveys on one workload, by a fixed mechanism or an optimised one, and estimate each three ways."""
    x = synthetic() if path is None else read_histogram(path)
    size, users = len(x), float(x.sum())
    workload = WORKLOADS[name](size)
    queries = size * (size + 1) // 2 if name == ALL_RANGE else size
    if optimised:
        chosen, best = OPTIMISED, _optimise(workload, seconds)
        variances = best.user_variances
    else:
        chosen, fixed = _best_fixed(workload)
        variances = fixed.user_variances(workload)
    truth, unit, gap = workload.apply(x), queries * users**2 * runs, 0.0
    errors = np.zeros(3)
    generator = validate.generator(rng=0)
    for _ in range(runs):
        answers = best.simulate(x, generator) if optimised else workload.apply(fixed.simulate(x, generator))
        errors[0] += float(((answers - truth) ** 2).sum()) / unit
        for column, total in ((1, None), (2, users)):
            with without_warnings():
                found = fast.solve(NonnegativeEstimate(workload, answers, total), tol=TOLERANCE)
            gap = max(gap, found.gap)
            errors[column] += float(((workload.apply(found.primal) - truth) ** 2).sum()) / unit
    stated = float(x @ variances) / (queries * users**2)
    data = f"{users:g} users, {size} types" + (", synthetic" if path is None else "")
    unbiased, nonnegative, consistent = (float(error) for error in errors)
    return ConsistencyRow(name, chosen, data, stated, unbiased, nonnegative, consistent, gap, runs)


def rows(
    quick: bool, path: str | None = None, limit: float | None = None
) -> list[Callable[[], ConsistencyRow]]:
    """Return what to compute."""
    runs, usual = (QUICK_RUNS, QUICK_SECONDS) if quick else (RUNS, SECONDS)
    seconds = limit or usual
    return [
        partial(solve, name, runs, path, optimised, seconds)
        for name in WORKLOADS
        for optimised in (False, True)
    ]
