"""The interface of a geometry: it evaluates noise, and bounds the optimum by dual weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from dualmech.errors import GeometryError, InvalidInputError
from dualmech.geometry.weights import shares
from dualmech.geometry.words import Ranked, ranked
from dualmech.neighbours import Relation
from dualmech.validate import Array, Matrix
from dualmech.workloads import numbers
from dualmech.workloads.base import MAX_NAMES, Workload

if TYPE_CHECKING:
    from dualmech.mechanisms.privacy import GaussianPrivacy

KINDS = ("auto", "blocks", "dense", "epochs", "product", "split", "stream")  # auto: that of fewest operations

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

    Targets or weights are numbers, one per *item*: an item is a query on a dense geometry, and a table on blocks and
    split noise. On a product the numbers are a tuple, with the numbers of each factor.
    """

    __slots__ = ()

    name: ClassVar[str]  # dense, blocks, product, split or stream
    takes: ClassVar[str]  # the workloads that it takes, in words
    takes_relations: ClassVar[bool]  # whether it takes rules of neighbours, or only one record added or removed

    workload: Workload

    @classmethod
    def offer(cls, request: Request) -> Offer | None:
        """Return the geometry with its number of operations; None for a workload that it is not for.

        Raises `GeometryError` for numbers or neighbours that this geometry cannot hold, `InvalidInputError` for those
        that no geometry can hold.
        """

    def numbers(self, workload: Workload, values: object, name: str) -> Numbers:
        """Return one number per item from the values of a problem; refuse a workload other than the geometry's."""

    @property
    def rank(self) -> int:
        """Size of the largest matrix that is decomposed."""

    def point(self, primal: object) -> Point:
        """Return a primal point of the right form and shapes, with entries unchecked; refuse any other."""

    def checked(self, answer: object) -> Point:
        """Return a given answer as a point; refuse one that is no covariance."""

    def divide(self, point: Point, divisor: float) -> Point:
        """Divide noise by a positive number; any other number leaves the noise for the judge to refuse."""

    def mechanism(self, point: Point) -> GaussianPrivacy:
        """Return the mechanism with the noise of a point."""

    def argument_values(self) -> dict[str, object]:
        """Return the values that fix this geometry besides the workload and the name: by default none."""
        return {}

    def in_numbers(self, workload: Workload, kind: str, numbers: Numbers) -> dict[str, object]:
        """Return the problem's data in numbers alone, as proof files have it; `kind` is ``targets`` or ``weights``."""

    def stored(self, point: Point) -> object:
        """Return a point in the form for files, which means the same on any machine; `restored` reads this form."""
        return point

    def restored(self, point: object) -> object:
        """Return a point from the form in a file; any other value is left to the judge."""
        return point

    def forms(self, point: Point) -> Forms[Numbers] | None:
        """Evaluate both sides of a checked point; None where it is no covariance, or a neighbour leaves its support."""

    def cost(self, point: Point) -> float:
        """Return the squared privacy cost of a checked point, infinite if it has no forms."""
        forms = self.forms(point)
        return np.inf if forms is None else float(forms.cost)

    def largest_ratio(self, point: Point, targets: Numbers) -> float:
        """Return the largest ratio of a variance to its target, whether or not the neighbours' costs are finite."""
        forms = self.forms(point)
        return np.inf if forms is None else forms.excess(targets)[0]

    def weights(self, dual: object, queries: bool = True) -> tuple[Lambda, Mu]:
        """Return checked weights on neighbours and, if asked for, on queries; refuse other shapes."""

    def bound(self, neighbour_weights: Lambda, query_weights: Mu, targets: Numbers) -> Judged:
        """Return ``‖diag(√μ) W U diag(√λ)‖_*² / (Σ λ_i Σ μ_j c_j)``; 0 from weights that prove nothing."""

    def total_bound(self, neighbour_weights: Lambda, weights: Numbers) -> Judged:
        """Return ``‖diag(√w) W U diag(√λ)‖_*² / Σ λ_i``; 0 from weights that prove nothing."""

    def per_query(self, workload: Workload, numbers: Numbers) -> Array:
        """Return one number per query of the workload from one per item; refused for too many queries."""

    def item_words(self, index: Any) -> str:
        """Return the words for a query, or a table, of `Forms.worst_items`."""

    def neighbour_words(self, index: Any) -> str:
        """Return the words for neighbours of `Forms.worst_neighbours`."""

    def prices(self, query_weights: Mu, targets: Numbers) -> Array:
        """Return each item's share of ``Σ μ_j c_j``, here of arrays with a number for each item."""
        return shares(np.asarray(query_weights) * np.asarray(targets))

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
    """Both sides of noise: its cost for each pair of neighbours, and its variance for each query."""

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
        """Return the queries, or tables, with the largest ratios of variance to target, and the ratios."""

    def worst_neighbours(self) -> Ranked:
        """Return the neighbours with the largest costs, and the costs."""


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
        """Return the total weight of each variance."""
        return weights

    def ratios(self, targets: Array) -> Array:
        """Return the variance of each item over its target."""
        return self.variances / targets

    def excess(self, targets: Array) -> Judged:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            limits = self.limits(targets)
            ratios = self.variances / limits
            higher = np.maximum(ratios, 0.0) + self.variance_rounding / limits
            # Cancellation may leave variances at 0 or below: then only the allowance bounds them.
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
"""Times that noise is scaled to its limits: where the noise is ill-conditioned, rounding undoes part of a scaling.

Each scaling after the first leaves a growing margin for rounding."""


def scale_to_limit(
    noise: T, excess: Callable[[T], float], power: int, divided: Callable[[T, float], T], slack: float
) -> T:
    """Divide noise until `excess`, proportional to a power of the noise, is at most 1, or `slack` more."""
    for count in range(MOST_PASSES):
        ratio = excess(noise)
        if count and not ratio > 1 + slack:
            break
        margin = 1 + count * abs(ratio - 1) if count else 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            noise = divided(noise, np.float64(ratio * margin) ** power)
    return noise


# The choice of a geometry: each geometry offers to hold a workload at a number of operations.


SET_UP = 4e7
"""Operations that even the smallest solution takes, as measured; every offer includes them."""


def decompositions(rank: int, rows: int) -> float:
    """Return about how many operations a solution takes on matrices of a rank, with so many queries and neighbours."""
    return 180.0 * rank**3 + 16.0 * rows * rank**2


@dataclass(frozen=True, slots=True)
class Request:
    """A workload, its numbers and its neighbours: the request for a geometry."""

    workload: Workload
    values: object  # targets or weights
    name: str  # ``targets`` or ``weights``
    basis: npt.ArrayLike | None  # for dense geometries alone, as is a matrix of neighbours
    neighbours: Relation | Matrix | None
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
    """Return one positive number per table; refuse numbers that differ within a table, and name the geometry."""
    table_numbers = numbers.of_tables(workload, tables, values, name)
    if table_numbers is None:
        raise GeometryError(f"geometry {geometry!r} takes {name} that are equal within a table")
    return table_numbers
