"""Products of workloads: the values of the factors' own geometries, multiplied."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from dualmech.errors import DualmechError, InputTypeError, InvalidInputError
from dualmech.geometry.base import SET_UP, Forms, Geometry, Index, Judged, Offer, Request
from dualmech.geometry.blocks import Blocks
from dualmech.geometry.dense import Dense
from dualmech.geometry.weights import FitnessDual, given_weights
from dualmech.geometry.words import Ranked, joined, joined_words
from dualmech.validate import Array
from dualmech.workloads import numbers, products
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import count_text
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.products import ProductWorkload

T = TypeVar("T")

PerFactor: TypeAlias = tuple[Any, ...]
"""What a product has of points, weights or numbers: one item per factor, as its geometry has it."""

PRODUCT_FROM = 512
"""Number of cells above which ``auto`` looks for a product: in numbers one by one, and in a single table."""

LISTED = 2**22  # largest number of cells among which those that bind are listed
LEAST = sys.float_info.min  # smallest number of which a double holds every digit


@dataclass(frozen=True, slots=True)
class ByFactor:
    """Targets, or weights, of a product of workloads, by factor; a query's number is the product of theirs.

    Parameters
    ----------
    numbers
        One per factor, each as a problem on that factor alone takes them.

    Examples
    --------
    >>> import dualmech as dm
    >>> both = dm.workloads.kron(dm.workloads.prefix(2), dm.workloads.identity(3))
    >>> dm.FitnessForUse(both, dm.ByFactor([1.0, 2.0], 4.0)).targets
    (array([1., 2.]), array([4., 4., 4.]))
    """

    numbers: PerFactor

    def __init__(self, *numbers: object) -> None:
        object.__setattr__(self, "numbers", numbers)


@dataclass(frozen=True, slots=True, eq=False)
class ProductForms(Forms[PerFactor]):
    """Both sides of a product of mechanisms: costs multiply, and so do variances."""

    product: Product
    factors: tuple[Forms, ...]

    @property
    def cost(self) -> float:
        return _representable_product("squared privacy cost of the product", [each.cost for each in self.factors])

    @property
    def cost_rounding(self) -> float:
        return _product_rounding(each.cost_rounding for each in self.factors)

    def excess(self, targets: PerFactor) -> Judged:
        return _product_judged(each.excess(own) for each, own in zip(self.factors, targets, strict=True))

    def total(self, weights: PerFactor) -> Judged:
        return _product_judged(each.total(own) for each, own in zip(self.factors, weights, strict=True))

    def binding(self, slack: float) -> Index:
        """Return the cells each of whose factors is within `slack` of its largest cost, where they can be listed.

        Raises `InvalidInputError` for more than 2^22 cells.
        """
        cells = self.product.workload.shape[1]
        if cells > LISTED:
            raise InvalidInputError(
                f"binding cells are listed among {LISTED} at most, got {count_text(cells)}; take the factors' own"
            )
        found = np.zeros(1, dtype=np.intp)
        for geometry, forms in zip(self.product.factors, self.factors, strict=True):
            size = geometry.workload.shape[1]
            own = np.arange(size) if isinstance(geometry, Blocks) else forms.binding(slack)
            found = np.add.outer(size * found, own).ravel()
        return found

    def loose(self, targets: PerFactor, slack: float) -> Index:
        """Refuse: of a product, queries are too many to tell apart one by one."""
        raise InvalidInputError("loose queries of a product are those of its factors; take the factors' own")

    def worst_items(self, targets: PerFactor) -> Ranked:
        return joined(each.worst_items(own) for each, own in zip(self.factors, targets, strict=True))

    def worst_neighbours(self) -> Ranked:
        return joined(each.worst_neighbours() for each in self.factors)


@dataclass(frozen=True, slots=True, eq=False)
class Product(Geometry[PerFactor, PerFactor, PerFactor, PerFactor]):
    """Independent factors: certificates multiply, and nothing larger than a factor is ever formed.

    The least squared privacy cost is the square of a factorisation norm, which is multiplicative: it is ``Π α_i``, by
    noise of covariance ``⊗ Σ_i`` on ``(⊗ B_i) x``. Trace norms of Kronecker products multiply too, so that ``⊗ λ_i``
    and ``⊗ μ_i`` prove the product of the factors' bounds; for total variance likewise. A point, a vector of dual
    weights and the numbers that come with the queries are tuples, one item per factor. (That γ₂ is multiplicative: Lee,
    Shraibman and Špalek, "A direct product theorem for discrepancy", CCC 2008.)
    """

    workload: ProductWorkload  # the product of the factors' workloads
    # dense, or blocks with one orbit of records; a workload that comes twice has the same geometry
    factors: tuple[Geometry, ...]

    name: ClassVar[str] = "product"
    takes: ClassVar[str] = (
        "workloads made by dualmech.workloads.kron, with one number for all queries or dualmech.ByFactor"
    )
    takes_relations: ClassVar[bool] = False

    @classmethod
    def offer(cls, request: Request) -> Offer | None:
        found = _multiplied(request.workload, request.values, request.name, request.named)
        if found is None:
            return None
        workload, given = found
        shares = _shares(workload, given, request.name)
        offers = _each_once(given, zip(workload.factors, shares, strict=True), partial(_factor_offer, request))

        def take() -> tuple[Product, PerFactor]:
            taken = _each_once(given, ((each,) for each in offers), lambda each: each.take())
            made, held = cls(workload, tuple(one for one, _ in taken)), tuple(two for _, two in taken)
            made.representable(request.name, held)
            return made, held

        distinct = {id(each): each.operations - SET_UP for each in offers}
        return Offer(SET_UP + sum(distinct.values()), take)

    def numbers(self, workload: Workload, given: object, name: str) -> PerFactor:
        """Return the numbers of each factor; a repeated factor is read once."""
        found = _multiplied(workload, given, name, True)
        if found is None or not found[0].same_as(self.workload):
            raise InvalidInputError("geometry must be of this workload")
        pairs = zip(found[0].factors, self.factors, _shares(*found, name), strict=True)
        held = tuple(_each_once(found[1], pairs, lambda own, factor, share: factor.numbers(own, share, name)))
        self.representable(name, held)
        return held

    @property
    def rank(self) -> int:
        return max(each.rank for each in self.factors)

    def point(self, primal: object) -> PerFactor:
        return self._per_factor("primal", primal, lambda factor, own: factor.point(own))

    def checked(self, given: object) -> PerFactor:
        return self._per_factor("primal", given, lambda factor, own: factor.checked(own))

    def divide(self, point: PerFactor, divisor: float) -> PerFactor:
        """Return noise over a positive number: every factor takes its share of it."""
        share = np.float64(divisor) ** (1 / len(self.factors)) if divisor > 0 else np.float64(np.nan)
        return tuple(factor.divide(own, share) for factor, own in zip(self.factors, point, strict=True))

    def forms(self, point: PerFactor) -> ProductForms | None:
        found = [factor.forms(own) for factor, own in zip(self.factors, point, strict=True)]
        held = tuple(each for each in found if each is not None)
        return ProductForms(self, held) if len(held) == len(found) else None

    def largest_ratio(self, point: PerFactor, targets: PerFactor) -> float:
        return products.product(
            max(factor.largest_ratio(own, limits), 0.0)
            for factor, own, limits in zip(self.factors, point, targets, strict=True)
        )

    def weights(self, dual: object, queries: bool = True) -> tuple[PerFactor, PerFactor]:
        neighbours, asked = given_weights(dual, queries)
        first = self._per_factor("neighbour_weights", neighbours, lambda _, own: own)
        last = self._per_factor("query_weights", asked, lambda _, own: own) if queries else first
        pairs = [
            factor.weights(FitnessDual(one, two) if queries else one, queries)
            for factor, one, two in zip(self.factors, first, last, strict=True)
        ]
        return tuple(one for one, _ in pairs), tuple(two for _, two in pairs)

    def bound(self, neighbour_weights: PerFactor, query_weights: PerFactor, targets: PerFactor) -> Judged:
        given = zip(self.factors, neighbour_weights, query_weights, targets, strict=True)
        return _product_judged(factor.bound(*own) for factor, *own in given)

    def total_bound(self, neighbour_weights: PerFactor, weights: PerFactor) -> Judged:
        given = zip(self.factors, neighbour_weights, weights, strict=True)
        return _product_judged(factor.total_bound(*own) for factor, *own in given)

    def prices(self, query_weights: PerFactor, targets: PerFactor) -> Array:
        """Return each query's share of the cost (m,), refused where they are too many to write out.

        It is the product of the factors' shares, in which a table's share is spread evenly over its queries.
        """
        given = zip(self.factors, query_weights, targets, strict=True)
        return self.outer([factor.prices(*own) for factor, *own in given])

    def total_prices(self, neighbour_weights: PerFactor, weights: PerFactor) -> Array:
        """Return each query's share of the total (m,), as `prices`."""
        given = zip(self.factors, neighbour_weights, weights, strict=True)
        return self.outer([factor.total_prices(*own) for factor, *own in given])

    def item_words(self, index: PerFactor) -> str:
        return joined_words([each.item_words for each in self.factors], index)

    def neighbour_words(self, index: PerFactor) -> str:
        return joined_words([each.neighbour_words for each in self.factors], index)

    def argument_values(self) -> dict[str, object]:
        return {"bases": tuple(factor.argument_values().get("basis") for factor in self.factors)}

    def in_numbers(self, workload: Workload, kind: str, numbers: PerFactor) -> dict[str, object]:
        given = zip(self.factors, self.workload.factors, numbers, strict=True)
        return {
            "kind": f"product {kind}",
            "factors": [{**factor.in_numbers(own, kind, each), "allowed": 1.0} for factor, own, each in given],
        }

    def stored(self, point: PerFactor) -> PerFactor:
        return tuple(factor.stored(own) for factor, own in zip(self.factors, point, strict=True))

    def restored(self, point: object) -> object:
        if not isinstance(point, tuple) or len(point) != len(self.factors):
            return point
        return tuple(factor.restored(own) for factor, own in zip(self.factors, point, strict=True))

    def per_query(self, workload: Workload, numbers: PerFactor) -> Array:
        given = zip(self.workload.factors, self.factors, numbers, strict=True)
        return products.outer([factor.per_query(asked, own) for asked, factor, own in given])

    def representable(self, name: str, numbers: PerFactor) -> None:
        """Refuse numbers of the factors whose products no double can hold."""
        held = [np.asarray(each, dtype=np.float64) for each in numbers]
        for end in ([each.max() for each in held], [each[each > 0].min() for each in held]):
            _representable_product(f"{name} of the product", end)

    def outer(self, shares: Sequence[Array]) -> Array:
        """Return the products of one share of each factor, a table's spread evenly over its queries."""
        found = []
        for factor, own in zip(self.factors, shares, strict=True):
            sizes = getattr(factor.workload, "table_cells", None)
            if sizes is not None and len(own) == len(sizes):
                if factor.workload.shape[0] > LISTED:
                    raise InvalidInputError(f"{factor.workload.shape[0]} queries of a factor are too many to write out")
                own = np.repeat(own / sizes, sizes.astype(np.int64))
            found.append(own)
        return products.outer(found)

    def _per_factor(self, name: str, given: object, checked: Callable[[Geometry, Any], Any]) -> PerFactor:
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise InputTypeError(f"{name} must be a sequence, one item per factor, got {type(given).__name__}")
        if len(given) != len(self.factors):
            raise InvalidInputError(f"{name} must have {len(self.factors)} items, one per factor, got {len(given)}")
        return tuple(checked(factor, own) for factor, own in zip(self.factors, given, strict=True))


def _multiplied(workload: Workload, given: Any, name: str, named: bool) -> tuple[ProductWorkload, object] | None:
    """Return a workload as a product with one number, or numbers by factor; None if it is no product.

    Numbers of all queries one by one are factored, and a single table is taken as a product, where that is asked for
    by name, or pays.
    """
    large = named or workload.shape[1] > PRODUCT_FROM
    if not isinstance(workload, ProductWorkload):
        own = products.as_product(workload) if large else None
        if own is None or isinstance(given, ByFactor):
            return None if own is None else (own, given)
        each_table = numbers.of_tables(workload, workload, given, name)
        return None if each_table is None else (own, float(each_table[0]))
    if isinstance(given, ByFactor) or numbers.is_number(given):
        return workload, given
    if large and not isinstance(given, Mapping) and np.shape(given) == workload.shape[:1]:
        parts = products.factored(workload, numbers.by_query(workload, given, name, positive=name == "targets"))
        return None if parts is None else (workload, ByFactor(*parts))
    return None


def _shares(workload: ProductWorkload, given: object, name: str) -> PerFactor:
    """Return the numbers of each factor."""
    count = len(workload.factors)
    if not isinstance(given, ByFactor):
        return (given, *[1.0] * (count - 1))
    if len(given.numbers) != count:
        raise InvalidInputError(f"{name} by factor must be {count}, one per factor, got {len(given.numbers)}")
    return given.numbers


def _factor_offer(request: Request, factor: Workload, own: object) -> Offer:
    asked = replace(request, workload=factor, values=numbers.as_mapping(own, request.name), named=True)
    geometry: type[Geometry] = Blocks if isinstance(factor, MarginalWorkload) else Dense
    found = geometry.offer(asked)
    assert found is not None
    return found


def _each_once(given: object, items: Iterable[PerFactor], found: Callable[..., T]) -> list[T]:
    """Return what is found for each factor, of one that comes again once; an error of several numbers says of which."""
    known: dict[tuple[object, ...], T] = {}
    keys = []
    for index, item in enumerate(items):
        key = tuple(each if isinstance(each, int | float | np.number) else id(each) for each in item)
        keys.append(key)
        if key not in known:
            try:
                known[key] = found(*item)
            except DualmechError as error:
                if isinstance(given, ByFactor):
                    raise type(error)(f"factors[{index}]: {error}") from None
                raise
    return [known[key] for key in keys]


def _product_judged(judged: Iterable[Judged]) -> Judged:
    values, roundings = zip(*judged, strict=True)
    return products.product([max(each, 0.0) for each in values]), _product_rounding(roundings)


def _product_rounding(roundings: Iterable[float]) -> float:
    with np.errstate(over="ignore"):
        return float(np.expm1(math.fsum(math.log1p(each) for each in roundings)))


def _representable_product(words: str, numbers: Sequence[float]) -> float:
    """Return a product of positive numbers; refuse one that a double cannot hold, with its order of magnitude."""
    found = products.product(numbers)
    if all(0 < each < math.inf for each in numbers) and not LEAST <= found < math.inf:
        exponent = math.fsum(math.log10(number) for number in numbers)
        raise InvalidInputError(
            f"{words} must be a number that a double can hold, got about 1e{exponent:+.0f}; scale those of the factors"
        )
    return found
