"""Printed errors of ResidualPlanner and its successor beside what is certified: on marginal tables and on prefixes.

Errors are root mean squares over all queries at a squared privacy cost of 1. On marginals the least one is a closed
form, and proven. With prefix sums on numerical attributes the successor splits, in every attribute, the noise of least
total variance into that of the total and that of the residual. This is done again here, and held against a proven
bound and against noise found in the same way from workloads that count the total for more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from dualmech import fast, workloads
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.printed import Interval, with_allowance
from dualmech.crosscheck.papers.scale.instances import NUMERICAL, published
from dualmech.crosscheck.papers.solving import without_warnings
from dualmech.crosscheck.papers.verdicts import Evidence, InstanceVerdict, verdict
from dualmech.geometry.split import Split
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.validate import Array
from dualmech.workloads.base import Workload

PLANNER = "He et al., arXiv 2305.08175"
"""He, Xiao, Toksoz, Ding, Zhang and Kifer, "ResidualPlanner+: a scalable matrix mechanism for marginals and beyond"."""

WAYS = {"1-way": (1,), "2-way": (2,), "3-way": (3,), "up to 3-way": (0, 1, 2, 3)}
"""What is asked for, in the order of the printed numbers; the last includes the total."""

MARGINALS = {
    "CPS": ("1.744", "2.035", "2.048", "2.276"),
    "Adult": ("3.047", "6.359", "10.515", "10.665"),
    "Loans": ("2.875", "5.634", "8.702", "8.876"),
}
"""Root mean square errors of marginal tables, of the successor as of ResidualPlanner (NeurIPS 2023)."""

PREFIXES = {
    "CPS": ("3.081", "5.823", "7.302", "7.570"),
    "Adult": ("5.081", "17.274", "45.223", "45.174"),
    "Loans": ("4.681", "14.502", "34.168", "34.144"),
}
"""The same with prefix sums on numerical attributes."""

HDMM = {
    "CPS": ("3.347", "6.625", "8.634", "8.623"),
    "Adult": ("5.648", "21.111", "60.025", "61.613"),
    "Loans": ("5.127", "17.149", "42.938", "44.338"),
}
"""Of HDMM, beside them."""

TOLERANCE = 1e-9  # gap to which optima are solved

EARLY = 2e-5
"""How far, relative, a printed error may be off because its strategy was itself found by an optimiser."""

CLOSE = 1e-4  # gap to which the least error is solved where it can be
FEW = 5000  # combinations of values of numerical attributes up to which it is

TOTALS = (1.0, 10.0, 100.0)
"""How much the total counts for among the prefixes of an attribute, where noise is looked for; 1 is the paper's way."""

EVEN = (0.0, 0.5)  # shares of equal weights on values among those that a bound is tried with


@dataclass(frozen=True, slots=True)
class PrintedError:
    """One printed error."""

    asked: str  # A key of `WAYS`
    # Of ResidualPlanner or its successor, and of HDMM; empty where that is not printed
    printed: str
    rival: str
    again: Interval  # The same computed here
    least: Interval  # The least error of any noise: proven from below, and found
    largest: Interval | None  # The least largest variance of a query, proven; None where it is not computed


@dataclass(frozen=True, slots=True)
class DataSetRow:
    """A data set, and all that is printed of it."""

    name: str
    entries: tuple[PrintedError, ...]

    @property
    def outcome(self) -> Agreement:
        """Whether the proven intervals are intervals; a verdict on the paper does not enter."""
        fine = all(entry.least[0] <= entry.least[1] for entry in self.entries)
        return Agreement.AGREE if fine else Agreement.DISAGREE

    @property
    def gap(self) -> float:
        """The widest interval of the least error, relative."""
        return max(entry.least[1] / entry.least[0] - 1 for entry in self.entries)

    @property
    def excess(self) -> float:
        """By how much the printed way's error exceeds what is found, at most, relative."""
        return max(entry.again[0] / entry.least[1] - 1 for entry in self.entries)

    @property
    def verdict(self) -> InstanceVerdict:
        """What the printed errors say of the privacy cost that they are at, held against 1.

        An error is inversely proportional to the privacy cost, so each implies one, and they are independent.
        """
        evidence = [Evidence(entry.asked, entry.asked, entry.again, entry.printed) for entry in self.entries]
        return verdict(evidence, (1.0, 1.0))


def of_marginals(name: str) -> DataSetRow:
    """Certify the least errors and the least largest variances of a data set's marginal tables."""
    entries = []
    for (asked, ways), printed in zip(WAYS.items(), MARGINALS[name], strict=True):
        tables = workloads.marginals(published(name), ways=ways)
        queries = tables.shape[0]
        low, high = fast.solve(TotalVariance(tables), tol=TOLERANCE).certificate.interval
        error = math.sqrt(low / queries), math.sqrt(high / queries)
        largest = fast.solve(FitnessForUse(tables), tol=TOLERANCE).certificate.interval
        entries.append(PrintedError(asked, printed, "", error, error, largest))
    return DataSetRow(f"{name}, marginals", tuple(entries))


def of_prefixes(name: str) -> DataSetRow:
    """Compute the successor's errors again, with prefix sums on numerical attributes, and bound the least."""
    entries = []
    for position, (asked, ways) in enumerate(WAYS.items()):
        domain = published(name)
        queries = {axis: workloads.prefix(size) for axis, size in domain.sizes if axis in NUMERICAL[name]}
        split = Split(workloads.query_tables(domain, queries, ways=ways))
        found = [split_error(split, NUMERICAL[name], total) for total in TOTALS]
        proven = max(proven_error(split, NUMERICAL[name], total, share) for total in TOTALS for share in EVEN)
        least = certified_error(split.workload) if _is_small(name, ways) else (proven, min(found))
        printed = PREFIXES[name][position], HDMM[name][position]
        entries.append(PrintedError(asked, *printed, with_allowance(found[0], EARLY), least, None))
    return DataSetRow(f"{name}, prefixes of {len(NUMERICAL[name])} attributes", tuple(entries))


def certified_error(workload: Workload) -> Interval:
    """Return the least error as blocks prove it, from what symmetry is left."""
    low, high = fast.solve(TotalVariance(workload, geometry="blocks"), tol=CLOSE).certificate.interval
    return math.sqrt(low / workload.shape[0]), math.sqrt(high / workload.shape[0])


def _is_small(name: str, ways: tuple[int, ...]) -> bool:
    """Whether the values that no symmetry joins are few enough, and no table crosses them."""
    sizes = dict(published(name).sizes)
    return max(ways) == 1 and math.prod(sizes[axis] for axis in NUMERICAL[name]) <= FEW


def split_error(split: Split, numerical: Iterable[str], total: float) -> float:
    """Return the error of split noise at its best levels, a closed form, where the judge has split it.

    With V_T the variances that a unit of ``τ_T`` adds up to over all queries, and C_T what it costs, the least of
    ``Σ V_T τ_T`` at a cost ``Σ C_T / τ_T`` of 1 is ``(Σ √(V_T C_T))²``.
    """
    tables = split.workload.tables
    assert tables.domain is not None
    shapes = [
        _attribute(size, total)[0] if axis in numerical else np.eye(size)
        for axis, size in tables.domain.sizes
    ]
    parts = split.parts(shapes)
    assert parts is not None
    roots = np.sqrt(split.totals(parts, np.ones(len(tables.axes))) * split.costs(parts))
    return float(roots.sum()) / math.sqrt(split.workload.shape[0])


def proven_error(split: Split, numerical: Iterable[str], total: float, share: float) -> float:
    """Return a bound on the error: that of the total variance at products of weights."""
    tables, users = split.workload.tables, []
    assert tables.domain is not None
    for axis, size in tables.domain.sizes:
        weights = _attribute(size, total)[1] if axis in numerical else np.ones(size)
        users.append((1 - share) * weights / weights.sum() + share / size)
    bound, _ = split.total_bound(users, np.ones(len(tables.axes)))
    return math.sqrt(bound / split.workload.shape[0])


@cache
def _attribute(size: int, total: float) -> tuple[Array, Array]:
    """Return the noise of least total variance on the values of an attribute, and the weights that prove it."""
    weights = np.ones(size)
    weights[-1] = total
    with without_warnings():
        answer = fast.solve(TotalVariance(workloads.prefix(size), weights), tol=TOLERANCE)
    covariance = answer.mechanism.covariance(workloads.identity(size))
    return (covariance + covariance.T) / 2, answer.dual.neighbour_weights
