"""The interface of geometries: evaluation of noise, and lower bounds from dual weights."""

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

KINDS = ("auto", "blocks", "dense", "epochs", "product", "split", "stream")  # auto: the geometry of fewest operations

Point = TypeVar("Point")
Lambda = TypeVar("Lambda")  # dual weights λ on neighbours
Mu = TypeVar("Mu")  # dual weights μ on queries
Numbers = TypeVar("Numbers")  # targets or weights, one per item
NumbersIn = TypeVar("NumbersIn", contravariant=True)
Index = npt.NDArray[np.intp]
Judged = tuple[float, float]  # a number and a relative rounding-error bound


@runtime_checkable
class Geometry(Protocol[Point, Lambda, Mu, Numbers]):
    """The structure of a workload and the evaluation of noise on it, generic in points, dual weights and numbers.

    *Numbers* are targets or weights, one per *item*: a query on a dense geometry, a table on blocks and split noise. On
    a product the numbers are a tuple of the numbers of the factors.
    """

    __slots__ = ()

    name: ClassVar[str]  # dense, blocks, product, split or stream
    takes: ClassVar[str]  # the supported workloads, in words
    takes_relations: ClassVar[bool]  # whether it supports rules of neighbours, or only one record added or removed

    workload: Workload

    @classmethod
    def offer(cls, request: Request) -> Offer | None:
        """Return the geometry and its number of operations; None for an unsupported workload.

        Raises `GeometryError` for numbers or neighbours that this geometry does not support, `InvalidInputError` for
        numbers or neighbours that no geometry supports.
        """

    def numbers(self, workload: Workload, values: object, name: str) -> Numbers:
        """Return one number per item from a problem's targets or weights; refuse another workload."""

    @property
    def rank(self) -> int:
        """Size of the largest matrix in an eigendecomposition."""

    def point(self, primal: object) -> Point:
        """Return a primal point after checks of its form and shapes, not of its entries."""

    def checked(self, answer: object) -> Point:
        """Return a user's answer as a point; refuse one that is no covariance."""

    def divide(self, point: Point, divisor: float) -> Point:
        """Divide noise by a positive number; another number leaves the noise unchanged, for the judge to refuse."""

    def mechanism(self, point: Point) -> GaussianPrivacy:
        """Return the mechanism with the noise of a point."""

    def argument_values(self) -> dict[str, object]:
        """Return the arguments that define this geometry, besides the workload and the name."""
        return {}

    def in_numbers(self, workload: Workload, kind: str, numbers: Numbers) -> dict[str, object]:
        """Return the problem's data as numbers, for proof files; `kind` is ``targets`` or ``weights``."""

    def stored(self, point: Point) -> object:
        """Return a point in a machine-independent form for files; `restored` reads this form."""
        return point

    def restored(self, point: object) -> object:
        """Return a point from the form of `stored`; other values stay unchanged, for the judge to refuse."""
        return point

    def forms(self, point: Point) -> Forms[Numbers] | None:
        """Evaluate costs and variances of a point; None if it is no covariance or a cost is infinite."""

    def cost(self, point: Point) -> float:
        """Return the squared privacy cost of a point, infinite if it has no forms."""
        forms = self.forms(point)
        return np.inf if forms is None else float(forms.cost)

    def largest_ratio(self, point: Point, targets: Numbers) -> float:
        """Return the largest ratio of a variance to its target, also if the costs are infinite."""
        forms = self.forms(point)
        return np.inf if forms is None else forms.excess(targets)[0]

    def weights(self, dual: object, queries: bool = True) -> tuple[Lambda, Mu]:
        """Return dual weights on neighbours and, if `queries`, on queries, after checks of their shapes."""

    def bound(self, neighbour_weights: Lambda, query_weights: Mu, targets: Numbers) -> Judged:
        """Return ``‖diag(√μ) W U diag(√λ)‖_*² / (Σ λ_i Σ μ_j c_j)``; 0 for invalid weights."""

    def total_bound(self, neighbour_weights: Lambda, weights: Numbers) -> Judged:
        """Return ``‖diag(√w) W U diag(√λ)‖_*² / Σ λ_i``; 0 for invalid weights."""

    def per_query(self, workload: Workload, numbers: Numbers) -> Array:
        """Return one number per query from one per item; refused above `MAX_NAMES` queries."""

    def item_words(self, index: Any) -> str:
        """Describe an item of `Forms.worst_items` in words."""

    def neighbour_words(self, index: Any) -> str:
        """Describe neighbours of `Forms.worst_neighbours` in words."""

    def prices(self, query_weights: Mu, targets: Numbers) -> Array:
        """Return each item's share of ``Σ μ_j c_j``."""
        return shares(np.asarray(query_weights) * np.asarray(targets))

    def total_prices(self, neighbour_weights: Lambda, weights: Numbers) -> Array:
        """Return each item's share of the trace norm in `total_bound`."""


class TableGeometry(Geometry[Point, Lambda, Mu, Array], Protocol[Point, Lambda, Mu]):
    """A geometry whose items are the tables of a workload."""

    __slots__ = ()

    def per_query(self, workload: Workload, numbers: Array) -> Array:
        """Return the number of each query's table; refused above `MAX_NAMES` queries."""
        if workload.shape[0] > MAX_NAMES:
            raise InvalidInputError(f"{workload.shape[0]} queries are too many to write out (limit {MAX_NAMES})")
        return np.asarray(numbers[workload.table_numbers()])

    def item_words(self, index: int) -> str:
        names: Sequence[str] = cast(Any, self.workload).table_names
        return f"table {names[index]!r}"


# Costs and variances of noise.


class Forms(Protocol[NumbersIn]):
    """The costs of noise for pairs of neighbours, and its variances of queries."""

    __slots__ = ()

    @property
    def cost(self) -> float:
        """Squared privacy cost, the maximum over all neighbours."""

    @property
    def cost_rounding(self) -> float:
        """Relative rounding-error bound of the cost."""

    def excess(self, targets: NumbersIn) -> Judged:
        """Return the largest ratio of a variance to its target."""

    def total(self, weights: NumbersIn) -> Judged:
        """Return the weighted sum of the variances of all queries."""

    def binding(self, slack: float) -> Index:
        """Return the neighbours, or orbits of them, with costs within a relative `slack` of the largest."""

    def loose(self, targets: NumbersIn, slack: float) -> Index:
        """Return the queries, or tables, below their targets by more than a relative `slack`."""

    def worst_items(self, targets: NumbersIn) -> Ranked:
        """Return the queries, or tables, with the largest ratios of variance to target, and the ratios."""

    def worst_neighbours(self) -> Ranked:
        """Return the neighbours with the largest costs, and the costs."""


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedForms(Forms[Array]):
    """Costs and variances of a covariance, with absolute rounding-error bounds."""

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
        """Return the weight of each variance."""
        return weights

    def ratios(self, targets: Array) -> Array:
        """Return the variance of each item over its target."""
        return self.variances / targets

    def excess(self, targets: Array) -> Judged:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            limits = self.limits(targets)
            ratios = self.variances / limits
            upper = np.maximum(ratios, 0.0) + self.variance_rounding / limits
            # Cancellation may make computed variances 0 or negative: only the error bound bounds them then.
            return float(ratios.max()), float(upper.max() / ratios.max() - 1 if ratios.max() > 0 else np.inf)

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

MAX_RESCALINGS = 10
"""Maximum number of rescalings. On ill-conditioned covariances rounding undoes part of each one, so that the margin for
rounding grows."""


def scale_to_limit(
    noise: T, excess: Callable[[T], float], power: int, divide: Callable[[T, float], T], slack: float
) -> T:
    """Divide noise until `excess`, proportional to a power of the noise, is at most 1 + `slack`."""
    for count in range(MAX_RESCALINGS):
        ratio = excess(noise)
        if count and not ratio > 1 + slack:
            break
        margin = 1 + count * abs(ratio - 1) if count else 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            noise = divide(noise, np.float64(ratio * margin) ** power)
    return noise


# The choice of a geometry: each geometry states its number of operations for a workload.


SET_UP = 4e7
"""Operations of the smallest solve, as measured; every offer includes them."""


def decompositions(rank: int, rows: int) -> float:
    """Return an estimate of the operations of a solve; `rows` counts queries and neighbours beyond the rank."""
    return 180.0 * rank**3 + 16.0 * rows * rank**2


@dataclass(frozen=True, slots=True)
class Request:
    """The request for a geometry: a workload, its numbers and its neighbours."""

    workload: Workload
    values: object  # targets or weights
    name: str  # ``targets`` or ``weights``
    basis: npt.ArrayLike | None  # only for dense geometries, like a matrix of neighbours
    neighbours: Relation | Matrix | None
    named: bool  # whether the user named the geometry
    most: float = math.inf  # operations of the best offer so far


@dataclass(frozen=True, slots=True)
class Offer:
    """A geometry's number of operations, and a function that returns the geometry and the items' numbers.

    A geometry that only proves an interval states the number of operations above which its interval is preferred to an
    exact geometry.
    """

    operations: float
    take: Callable[[], tuple[Geometry, Any]]


def numbers_by_table(geometry: str, workload: Workload, tables: Any, values: object, name: str) -> Array:
    """Return one positive number per table; refuse numbers that differ within a table, for the named geometry."""
    table_numbers = numbers.of_tables(workload, tables, values, name)
    if table_numbers is None:
        raise GeometryError(f"geometry {geometry!r} takes {name} that are equal within a table")
    return table_numbers
