"""What problems ask of a geometry: how noise is evaluated, and what dual weights prove."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from dualmech.errors import GeometryError, InvalidInputError
from dualmech.geometry.words import Ranked, ranked
from dualmech.neighbours import Relation
from dualmech.validate import Array, Matrix
from dualmech.workloads import numbers
from dualmech.workloads.base import MAX_NAMES, Workload

Point = TypeVar("Point")
Lambda = TypeVar("Lambda")  # dual weights λ on neighbours
Mu = TypeVar("Mu")  # dual weights μ on queries
Numbers = TypeVar("Numbers")  # targets or weights, one per item
NumbersIn = TypeVar("NumbersIn", contravariant=True)
Index = npt.NDArray[np.intp]
Judged = tuple[float, float]  # a number and an allowance for its rounding, relative


@runtime_checkable
class Geometry(Protocol[Point, Lambda, Mu, Numbers]):
    """The structure of a workload, and how to evaluate noise on it: generic in its points, dual weights and numbers.

    Numbers that come with the queries, targets or weights, are one per *item*: a query of a dense geometry, a table of
    blocks and of split noise, and on a product a tuple of what each factor takes.
    """

    __slots__ = ()

    name: ClassVar[str]  # dense, blocks, product, split or stream
    takes: ClassVar[str]  # which workloads it is for, in words
    takes_relations: ClassVar[bool]  # or one record added or removed alone

    workload: Workload

    @classmethod
    def offer(cls, request: Request) -> Offer | None:
        """Return the geometry with its number of operations; None for a workload that it is not for.

        Raises `GeometryError` for other numbers or neighbours than it can hold, `InvalidInputError` for such as
        nothing holds.
        """

    def numbers(self, workload: Workload, values: object, name: str) -> Numbers:
        """Return one number per item from the values of a problem; refuse a workload that is not the geometry's own."""

    @property
    def rank(self) -> int:
        """Size of the largest matrix that is decomposed."""

    def point(self, primal: object) -> Point:
        """Return a primal point of the right form and shapes, its entries unseen; refuse any other."""

    def checked(self, answer: object) -> Point:
        """Return a given answer as a point; refuse one that is no covariance."""

    def divide(self, point: Point, divisor: float) -> Point:
        """Return noise over a positive number; by nothing else: the judge refuses the rest."""

    def argument_values(self) -> dict[str, object]:
        """Return what fixes this geometry on any machine, besides the workload and its name: by default nothing."""
        return {}

    def in_numbers(self, workload: Workload, kind: str, numbers: Numbers) -> dict[str, object]:
        """Return the problem's data in numbers alone, as proof files have it; `kind` is ``targets`` or ``weights``."""

    def stored(self, point: Point) -> object:
        """Return a point as a file holds it, so that it means the same on any machine; `restored` takes it back."""
        return point

    def restored(self, point: object) -> object:
        """Return a point from what a file holds; anything else is left to the judge."""
        return point

    def forms(self, point: Point) -> Forms[Numbers] | None:
        """Evaluate both sides of a checked point; None where it is no covariance, or a neighbour leaves its support."""

    def largest_ratio(self, point: Point, targets: Numbers) -> float:
        """Return the largest ratio of a variance to its target, however noise is at the neighbours."""
        forms = self.forms(point)
        return np.inf if forms is None else forms.excess(targets)[0]

    def weights(self, dual: object, queries: bool = True) -> tuple[Lambda, Mu]:
        """Return checked weights on neighbours and, if asked for, on queries; refuse other shapes."""

    def bound(self, neighbour_weights: Lambda, query_weights: Mu, targets: Numbers) -> Judged:
        """Return ``‖diag(√μ) W U diag(√λ)‖_*² / (Σ λ_i Σ μ_j c_j)``; 0 from weights that prove nothing."""

    def total_bound(self, neighbour_weights: Lambda, weights: Numbers) -> Judged:
        """Return ``‖diag(√w) W U diag(√λ)‖_*² / Σ λ_i``; 0 from weights that prove nothing."""

    def per_query(self, workload: Workload, numbers: Numbers) -> Array:
        """Return one number per query of the workload asked, from one per item; refused for too many queries."""

    def item_words(self, index: Any) -> str:
        """Return what a query, or table, of `Forms.worst_items` is called."""

    def neighbour_words(self, index: Any) -> str:
        """Return what neighbours of `Forms.worst_neighbours` are called."""

    def prices(self, query_weights: Mu, targets: Numbers) -> Array:
        """Return each item's share of ``Σ μ_j c_j``."""

    def total_prices(self, neighbour_weights: Lambda, weights: Numbers) -> Array:
        """Return each item's share of the trace norm that `total_bound` squares."""


class TableGeometry(Geometry[Point, Lambda, Mu, Array], Protocol[Point, Lambda, Mu]):
    """A geometry whose items are the tables of a workload."""

    __slots__ = ()

    def per_query(self, workload: Workload, numbers: Array) -> Array:
        """Return one number per query, its table's number; refused where they are too many to write out."""
        if workload.shape[0] > MAX_NAMES:
            raise InvalidInputError(f"{workload.shape[0]} queries are too many to write out")
        return np.asarray(numbers[workload.table_numbers()])

    def item_words(self, index: int) -> str:
        names: Sequence[str] = cast(Any, self.workload).table_names
        return f"table {names[index]!r}"


# Noise as a geometry evaluates it.


class Forms(Protocol[NumbersIn]):
    """Both sides of noise: what it costs pairs of neighbours, and what variances it gives queries."""

    __slots__ = ()

    @property
    def cost(self) -> float:
        """Squared privacy cost, the largest over all neighbours."""

    @property
    def cost_rounding(self) -> float:
        """Allowance for the rounding of the cost, relative."""

    def excess(self, targets: NumbersIn) -> Judged:
        """Return the largest ratio of a variance to its target."""

    def total(self, weights: NumbersIn) -> Judged:
        """Return the weighted sum of the variances of all queries."""

    def binding(self, slack: float) -> Index:
        """Return the neighbours, or orbits of them, whose cost is within `slack`, relative, of the largest."""

    def loose(self, targets: NumbersIn, slack: float) -> Index:
        """Return the queries, or tables, below their targets by more than `slack`, relative."""

    def worst_items(self, targets: NumbersIn) -> Ranked:
        """Return the queries, or tables, of the largest variances over their targets, with these."""

    def worst_neighbours(self) -> Ranked:
        """Return the neighbours of the largest costs, with these."""


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedForms(Forms[Array]):
    """Both quadratic forms of a covariance, with allowances for their rounding, absolute."""

    profile: Array  # profile, profile_rounding: (s,) cost ``(B u_i)' Σ⁻¹ (B u_i)`` of each pair of neighbours
    variances: Array  # variances, variance_rounding: (m,) variance ``v_j Σ v_j'`` of each query
    profile_rounding: Array
    variance_rounding: Array

    @property
    def cost(self) -> float:
        return float(self.profile.max())

    @property
    def cost_rounding(self) -> float:
        return float((self.profile + self.profile_rounding).max() / self.cost - 1)

    def limits(self, targets: Array) -> Array:
        """Return the target of each variance."""
        return targets

    def bill(self, weights: Array) -> Array:
        """Return what each variance counts in all."""
        return weights

    def ratios(self, targets: Array) -> Array:
        """Return the variance of each item over its target."""
        return self.variances / targets

    def excess(self, targets: Array) -> Judged:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            limits = self.limits(targets)
            ratios = self.variances / limits
            higher = np.maximum(ratios, 0.0) + self.variance_rounding / limits
            # Variances that cancellation left at 0 or below say nothing: the allowance is then all there is.
            return float(ratios.max()), float(higher.max() / ratios.max() - 1 if ratios.max() > 0 else np.inf)

    def total(self, weights: Array) -> Judged:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            bill = self.bill(weights)
            total = float(bill @ self.variances)
            return total, float(bill @ self.variance_rounding / total)

    def binding(self, slack: float) -> Index:
        return np.flatnonzero((self.profile >= (1 - slack) * self.cost) & np.isfinite(self.cost))

    def loose(self, targets: Array, slack: float) -> Index:
        return np.flatnonzero(self.ratios(targets) < 1 - slack)

    def worst_items(self, targets: Array) -> Ranked:
        return ranked(self.ratios(targets))

    def worst_neighbours(self) -> Ranked:
        return ranked(self.profile)


T = TypeVar("T")

MOST_PASSES = 10
"""Times that noise is scaled to its limits: where it is ill-conditioned, rounding undoes a little of it.

Each time after the first, a growing margin is left for that."""


def scale_to_limit(
    noise: T, excess: Callable[[T], float], power: int, divided: Callable[[T, float], T], slack: float
) -> T:
    """Return noise divided until `excess`, proportional to a power of it, is 1 at most, or by `slack` more."""
    for count in range(MOST_PASSES):
        ratio = excess(noise)
        if count and not ratio > 1 + slack:
            break
        margin = 1 + count * abs(ratio - 1) if count else 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            noise = divided(noise, np.float64(ratio * margin) ** power)
    return noise


# How a geometry is found: each says at how many operations it would hold a workload.


SET_UP = 4e7
"""Operations that a solution takes however small it is, as measured; with them offers are counted."""


def decompositions(rank: int, rows: int) -> float:
    """Return about how many operations a solution takes on matrices of a rank, with so many queries and neighbours."""
    return 180.0 * rank**3 + 16.0 * rows * rank**2


DenseBuilder = Callable[[Workload, Array, Matrix | None], "Geometry"]
"""Makes the dense geometry of a workload, its numbers, one per query, and a matrix of neighbours."""


@dataclass(frozen=True, slots=True)
class Request:
    """A workload, its numbers and its neighbours, for which a geometry is looked for."""

    workload: Workload
    values: object  # targets or weights
    name: str  # what they are called
    dense: DenseBuilder
    neighbours: Relation | Matrix | None  # a matrix of differences for dense geometries alone
    named: bool  # whether the geometry was asked for by its name
    most: float = math.inf  # operations that the best geometry so far takes


@dataclass(frozen=True, slots=True)
class Offer:
    """A geometry that holds the workload: its operations, and a function that makes it with the items' numbers.

    A geometry that proves an interval only states, as its operations, the most that an exact geometry may take before
    the interval is preferred.
    """

    operations: float
    take: Callable[[], tuple[Geometry, Any]]


def numbers_by_table(geometry: str, workload: Workload, tables: Any, values: object, name: str) -> Array:
    """Return one positive number per table; refuse, by the geometry's name, such as differ within a table."""
    table_numbers = numbers.of_tables(workload, tables, values, name)
    if table_numbers is None:
        raise GeometryError(f"geometry {geometry!r} takes {name} that are equal within a table")
    return table_numbers
