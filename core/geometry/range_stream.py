"""All ranges of ordered cells, for total variance: sums of a stream have the same Gram matrix.

``G = W'W`` of all ranges is ``N = d + 1`` times the inverse of the second difference. It is ``V' diag(μ) V`` with
``V_ji = i / j`` for ``i ≤ j``, sums with a decay that changes, ``(V x)_j = x_j + (j - 1) / j (V x)_{j-1}``, and with
weights ``μ_j = N j / (j + 1)``. Total variance asks of a workload for its Gram matrix alone: costs, the sum of all
variances and the trace norm are those of the sums V x with the weights μ, on `dualmech.geometry.stream`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.base import Index, Judged, valid_weights
from dualmech.geometry.dense_forms import DenseForms
from dualmech.geometry.naming import Ranked
from dualmech.geometry.stream import CausalPoint, Stream, StreamPoint
from dualmech.validate import Array
from dualmech.workloads import numbers
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload
from dualmech.workloads.intervals import RangeWorkload
from dualmech.workloads.streams import StreamWorkload


@dataclass(frozen=True, slots=True, eq=False)
class RangeForms:
    """What noise costs each cell, and the sum of the variances of all ranges."""

    sums: DenseForms  # of the sums V x
    shares: Array  # (d,) μ

    @property
    def cost(self) -> float:
        """Squared privacy cost, the largest over all cells."""
        return self.sums.cost

    @property
    def cost_rounding(self) -> float:
        """Allowance for the rounding of the cost, relative."""
        return self.sums.cost_rounding

    @property
    def profile(self) -> Array:
        """Squared privacy cost of a record in each cell (d,)."""
        return self.sums.profile

    @property
    def profile_rounding(self) -> Array:
        """Allowance for the rounding of the profile (d,), absolute."""
        return self.sums.profile_rounding

    def total(self, weights: Array) -> Judged:
        """Return the sum of the variances of all ranges, times their weight."""
        return self.sums.total(weights[0] * self.shares)

    def binding(self, slack: float) -> Index:
        """Return the cells whose cost is within `slack`, relative, of the largest."""
        return self.sums.binding(slack)

    def worst_neighbours(self) -> Ranked:
        """Return the cells of the largest costs, with these."""
        return self.sums.worst_neighbours()


@dataclass(frozen=True, slots=True, eq=False)
class RangeStream(Stream):
    """All ranges, of one weight: total variance in time and memory proportional to the number of cells.

    There is one item, all ranges together.
    """

    workload: RangeWorkload  # type: ignore[assignment]

    @property
    def decay(self) -> Array:
        """How much of each sum V x goes into the next (d - 1,)."""
        before = np.arange(1, self.workload.shape[1], dtype=np.float64)
        return before / (before + 1)

    @property
    def shares(self) -> Array:
        """The weights μ of the sums V x, for which their Gram matrix is that of all ranges (d,)."""
        order = np.arange(1, self.workload.shape[1] + 1, dtype=np.float64)
        return (self.workload.shape[1] + 1) * order / (order + 1)

    @property
    def sums(self) -> Array:
        """V written out (d, d); refused where it is too large."""
        count = self.workload.shape[1]
        if count**2 > MAX_DENSE_ENTRIES:
            raise InvalidInputError(
                f"noise on {count} cells is too large to write out (limit {MAX_DENSE_ENTRIES} entries)"
            )
        order = np.arange(1, count + 1, dtype=np.float64)
        return np.tril(order / order[:, None])

    def numbers(self, given: Any, name: str) -> Array:
        """Return the one weight of all ranges (1,); refuse targets, and weights that differ."""
        if name != "weights":
            raise InvalidInputError(
                f"geometry 'stream' takes all ranges for total variance alone, not with {name}: take 'dense'"
            )
        found = one_number(self.workload, given, name)
        if found is None:
            raise InvalidInputError("geometry 'stream' takes weights that are equal for all ranges")
        return found

    def on_sums(self, given: Array) -> Array:
        """Return the weights of the sums V x (d,) from the weight of all ranges."""
        return np.asarray(given[0] * self.shares)

    def forms(self, point: StreamPoint | CausalPoint) -> Any:
        """Evaluate both sides; None for weights or a level that are not positive."""
        found = Stream.forms(self, point)
        return None if found is None else RangeForms(found, self.shares)

    def weights(self, dual: Any, queries: bool = True) -> tuple[Array, Array]:
        """Return weights on cells (d,); there are none on ranges."""
        if queries:
            raise InvalidInputError("geometry 'stream' takes all ranges for total variance alone")
        return Stream.weights(self, dual, queries=False)

    def total_bound(self, neighbour_weights: Array, weights: Array) -> Judged:
        """Return ``‖diag(√w) W diag(√λ)‖_*² / Σ λ_i`` and its rounding, relative; 0 where nothing is proven."""
        return Stream.total_bound(self, neighbour_weights, self.on_sums(weights))

    def per_query(self, workload: Workload, numbers: Array) -> Array:
        """Return one number per range; refused where they are too many."""
        count = workload.shape[0]
        if count > MAX_DENSE_ENTRIES:
            raise InvalidInputError(f"numbers of {count} ranges are too many to write out one by one")
        return np.full(count, numbers[0])

    def in_numbers(self, workload: Workload, kind: str, numbers: Array) -> dict[str, Any]:
        """Return the matrix of the ranges, where it can be written out, and the weight of each."""
        return Stream.in_numbers(self, workload, kind, self.per_query(workload, numbers))

    def item_words(self, index: int) -> str:
        """Return what the only item is called."""
        return "all ranges"

    def total_prices(self, neighbour_weights: Array, weights: Array) -> Array:
        """Return the share of all ranges (1,): everything, where anything is proven."""
        return np.ones(1) if valid_weights(neighbour_weights) else np.zeros(1)


def one_number(workload: RangeWorkload, given: Any, name: str) -> Array | None:
    """Return the number that all ranges have (1,), None where they differ; refuse what is none."""
    if isinstance(given, Mapping):
        if {*given} != {"ranges"} or workload.shape[0] == 1:
            each = numbers.by_query(workload, given, name, positive=False)
            return each[:1] if np.ptp(each) == 0 and each[0] > 0 else None
        given = given["ranges"]
    checked = validate.finite(**{name: given})
    if checked.shape not in ((), (1,)):
        each = numbers.by_query(workload, checked, name, positive=False)
        return each[:1] if np.ptp(each) == 0 and each[0] > 0 else None
    found = np.array([validate.positive_number(**{name: float(checked.reshape(()))})])
    validate.moderate(**{name: found})
    return validate.read_only(found)


def stream_of(workload: Workload) -> Stream:
    """Return the geometry of running sums, or of all ranges; refuse other workloads."""
    if isinstance(workload, RangeWorkload):
        return RangeStream(workload)
    if isinstance(workload, StreamWorkload):
        return Stream(workload)
    raise InvalidInputError(
        "geometry 'stream' takes workloads made by dualmech.workloads.prefix and decayed_sums, and all_range"
    )
