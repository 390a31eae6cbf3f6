"""What problems ask of a geometry: how noise is evaluated, and what dual weights prove, whatever the structure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.naming import Ranked
from dualmech.validate import Array
from dualmech.workloads.base import Workload

T = TypeVar("T")
Index = npt.NDArray[np.intp]
Judged = tuple[float, float]  # a number and an allowance for its rounding, relative


MOST_PASSES = 10
"""Times that noise is scaled to its limits: where it is ill-conditioned, rounding undoes a little of it.

Each time after the first, a growing margin is left for that."""

ON_NEIGHBOURS = "dual weights on neighbours", "pair of neighbours"
ON_QUERIES = "dual weights on queries", "query"

DUST = 1e-12
"""Negative dual weights of up to this share of the largest are rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class FitnessDual:
    """Weights that prove a lower bound: λ on neighbours and μ on queries, none negative.

    Any such weights prove a bound, whatever their scale; solvers return them with ``Σ λ_i = 1`` and
    ``Σ μ_j c_j = 1``. On a dense geometry they are arrays (s,) and (m,), on blocks one number an orbit, on a product
    a tuple of such arrays, one per factor; where noise is split λ is one array per attribute, μ a `SplitWeights`.
    """

    neighbour_weights: Any
    query_weights: Any

    def __iter__(self) -> Iterator[Any]:
        return iter((self.neighbour_weights, self.query_weights))


@dataclass(frozen=True, slots=True, eq=False)
class VarianceDual:
    """Weights that prove a lower bound: λ on neighbours, none negative, in the form of `FitnessDual`.

    Any such weights prove a bound, whatever their scale; solvers return them with ``Σ λ_i = 1``.
    """

    neighbour_weights: Any


class Forms(Protocol):
    """Both sides of noise: what it costs pairs of neighbours, and what variances it gives queries."""

    @property
    def cost(self) -> float:
        """Squared privacy cost, the largest over all neighbours."""

    @property
    def cost_rounding(self) -> float:
        """Allowance for the rounding of the cost, relative."""

    def excess(self, targets: Any) -> Judged:
        """Return the largest ratio of a variance to its target."""

    def total(self, weights: Any) -> Judged:
        """Return the weighted sum of the variances of all queries."""

    def binding(self, slack: float) -> Index:
        """Return the neighbours, or orbits of them, whose cost is within `slack`, relative, of the largest."""

    def loose(self, targets: Any, slack: float) -> Index:
        """Return the queries, or tables, below their targets by more than `slack`, relative."""

    def worst_items(self, targets: Any) -> Ranked:
        """Return the queries, or tables, of the largest variances over their targets, with these."""

    def worst_neighbours(self) -> Ranked:
        """Return the neighbours of the largest costs, with these."""


@runtime_checkable
class Geometry(Protocol):
    """The structure of a workload, and how to evaluate noise on it.

    Numbers that come with the queries, targets or weights, are one per *item*: a query of a dense geometry, a table of
    blocks and of split noise, and on a product a tuple of what each factor takes.
    """

    @property
    def name(self) -> str:
        """``dense``, ``blocks``, ``product``, ``split`` or ``stream``."""

    @property
    def workload(self) -> Workload:
        """The queries."""

    @property
    def rank(self) -> int:
        """Size of the largest matrix that is decomposed."""

    def point(self, primal: Any) -> Any:
        """Return a primal point of the right form and shapes, its entries unseen; refuse any other."""

    def divide(self, point: Any, divisor: float) -> Any:
        """Return noise over a positive number; by nothing else: the judge refuses the rest."""

    def statement(self) -> dict[str, Any]:
        """Return what fixes this geometry on any machine, beside the workload and its name."""

    def in_numbers(self, workload: Workload, kind: str, numbers: Any) -> dict[str, Any]:
        """Return what is asked in numbers alone, as proof files have it; `kind` is ``targets`` or ``weights``."""

    def stored(self, point: Any) -> Any:
        """Return a point as a file holds it, so that it means the same on any machine; `restored` takes it back."""

    def restored(self, point: Any) -> Any:
        """Return a point from what a file holds."""

    def forms(self, point: Any) -> Any:
        """Evaluate both sides of a checked point; None for what is no covariance, or that some neighbour leaves."""

    def largest_ratio(self, point: Any, targets: Any) -> float:
        """Return the largest ratio of a variance to its target, however noise is at the neighbours."""

    def weights(self, dual: Any, queries: bool = True) -> tuple[Any, Any]:
        """Return checked weights on neighbours and, if asked for, on queries; refuse other shapes."""

    def bound(self, neighbour_weights: Any, query_weights: Any, targets: Any) -> Judged:
        """Return ``‖diag(√μ) W U diag(√λ)‖_*² / (Σ λ_i Σ μ_j c_j)``; 0 from weights that prove nothing."""

    def total_bound(self, neighbour_weights: Any, weights: Any) -> Judged:
        """Return ``‖diag(√w) W U diag(√λ)‖_*² / Σ λ_i``; 0 from weights that prove nothing."""

    def per_query(self, workload: Workload, numbers: Any) -> Array:
        """Return one number per query of the workload asked, from one per item; refused for too many queries."""

    def item_words(self, index: Any) -> str:
        """Return what a query, or table, of `Forms.worst_items` is called."""

    def neighbour_words(self, index: Any) -> str:
        """Return what neighbours of `Forms.worst_neighbours` are called."""

    def prices(self, query_weights: Any, targets: Any) -> Array:
        """Return each item's share of ``Σ μ_j c_j``."""

    def total_prices(self, neighbour_weights: Any, weights: Any) -> Array:
        """Return each item's share of the trace norm that `total_bound` squares."""


def scale_to_limit(
    noise: T, excess: Callable[[T], float], power: int, divided: Callable[[T, float], T], slack: float
) -> T:
    """Return noise divided until `excess`, proportional to a power of it, is 1 at most, or by `slack` more."""
    for count in range(MOST_PASSES):
        found = excess(noise)
        if count and not found > 1 + slack:
            break
        margin = 1 + count * abs(found - 1) if count else 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            noise = divided(noise, np.float64(found * margin) ** power)
    return noise


def read_weights(count: int, given: Any, name: str, each: str) -> Array:
    """Return dual weights (count,), their entries unseen but for negative ones of rounding size, which count as 0.

    Any weights of which none is negative prove a bound, so that is sound. Another number of them is refused.
    """
    checked = validate.numeric(1, **{name: given})
    if len(checked) != count:
        raise InvalidInputError(f"{name} must be {count}, one per {each}, got {len(checked)}")
    rounding = (checked < 0) & (checked > -DUST * np.abs(checked).max())
    return validate.read_only(np.where(rounding, 0.0, checked)) if rounding.any() else checked


def valid_weights(weights: Array) -> bool:
    """Whether weights prove anything: finite, none negative, not all zero."""
    return bool(np.all(np.isfinite(weights)) and np.all(weights >= 0) and np.any(weights))


def shares(bill: Array) -> Array:
    """Return numbers over their sum; all 0 where that is."""
    total = bill.sum()
    return np.asarray(bill / total) if total > 0 else np.zeros_like(bill)
