"""Products of workloads: costs, variances and bounds are products over the factors' geometries."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from dualmech import mechanisms, validate
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
from dualmech.workloads.marginal import MarginalWorkload
from dualmech.workloads.numbers import ByFactor
from dualmech.workloads.products import ProductWorkload

if TYPE_CHECKING:
    from dualmech.mechanisms.privacy import GaussianPrivacy

T = TypeVar("T")

PerFactor: TypeAlias = tuple[Any, ...]
"""A point, dual weights or numbers of a product: one item for each factor, of its geometry's type."""

MIN_PRODUCT_CELLS = 512
"""Number of cells above which ``auto`` factors numbers of single queries, and single tables."""

MAX_LISTED = 2**22  # maximum number of cells or queries for a list of indices
MIN_NORMAL = sys.float_info.min  # smallest normal double


@dataclass(frozen=True, slots=True, eq=False)
class ProductForms(Forms[PerFactor]):
    """Both sides of a product of mechanisms: costs multiply, and so do variances."""

    product: Product
    factors: tuple[Forms, ...]

    @property
    def cost(self) -> float:
        return _representable_product("squared privacy cost of the product", [factor.cost for factor in self.factors])

    @property
    def cost_rounding(self) -> float:
        return _product_rounding(factor.cost_rounding for factor in self.factors)

    def excess(self, targets: PerFactor) -> Judged:
        return _product_judged(factor.excess(target) for factor, target in zip(self.factors, targets, strict=True))

    def total(self, weights: PerFactor) -> Judged:
        return _product_judged(factor.total(weight) for factor, weight in zip(self.factors, weights, strict=True))

    def binding(self, slack: float) -> Index:
        """Return the cells whose cost in each factor is within a relative `slack` of the largest cost.

        Raises `InvalidInputError` for more than 2^22 cells.
        """
        cells = self.product.workload.shape[1]
        if cells > MAX_LISTED:
            raise InvalidInputError(
                f"binding cells are listed for at most {MAX_LISTED}, got {count_text(cells)}; take the factors' own"
            )
        items = np.zeros(1, dtype=np.intp)
        for geometry, forms in zip(self.product.factors, self.factors, strict=True):
            size = geometry.workload.shape[1]
            factor_items = np.arange(size) if isinstance(geometry, Blocks) else forms.binding(slack)
            items = np.add.outer(size * items, factor_items).ravel()
        return items

    def loose(self, targets: PerFactor, slack: float) -> Index:
        """Refuse, since the queries of a product are too many to list."""
        raise InvalidInputError("a product does not list its loose queries; take those of its factors")

    def worst_items(self, targets: PerFactor) -> Ranked:
        return joined(factor.worst_items(target) for factor, target in zip(self.factors, targets, strict=True))

    def worst_neighbours(self) -> Ranked:
        return joined(factor.worst_neighbours() for factor in self.factors)


@dataclass(frozen=True, slots=True, eq=False)
class Product(Geometry[PerFactor, PerFactor, PerFactor, PerFactor]):
    """Independent factors: certificates are products, with matrices of the factors' sizes alone.

    The least squared privacy cost is the square of a factorisation norm, which is multiplicative: it is ``Π α_i``, by
    noise of covariance ``⊗ Σ_i`` on ``(⊗ B_i) x``. Trace norms of Kronecker products multiply too, so that ``⊗ λ_i``
    and ``⊗ μ_i`` certify the product of the factors' bounds, also for total variance. Points, dual weights and numbers
    of queries are tuples with one item for each factor. (That γ₂ is multiplicative: Lee,
    Shraibman and Špalek, "A direct product theorem for discrepancy", CCC 2008.)
    """

    workload: ProductWorkload  # the product of the factors' workloads
    # dense, or blocks with one orbit of cells; equal factors share a geometry
    factors: tuple[Geometry, ...]

    name: ClassVar[str] = "product"
    takes: ClassVar[str] = (
        "workloads made by dualmech.workloads.kron, with one number for all queries or dualmech.ByFactor"
    )
    takes_relations: ClassVar[bool] = False

    @classmethod
    def offer(cls, request: Request) -> Offer | None:
        product_and_values = _as_product(request.workload, request.values, request.name, request.named)
        if product_and_values is None:
            return None
        workload, values = product_and_values
        shares = _shares(workload, values, request.name)
        offers = _each_once(values, zip(workload.factors, shares, strict=True), partial(_factor_offer, request))

        def take() -> tuple[Product, PerFactor]:
            taken = _each_once(values, ((offer,) for offer in offers), lambda offer: offer.take())
            product, numbers_by_factor = (
                cls(workload, tuple(geometry for geometry, _ in taken)),
                tuple(number for _, number in taken),
            )
            product.representable(request.name, numbers_by_factor)
            return product, numbers_by_factor

        distinct = {id(offer): offer.operations - SET_UP for offer in offers}
        return Offer(SET_UP + sum(distinct.values()), take)

    def of_factors(self, factors: Sequence[Geometry]) -> Product:
        """Return the same product on other geometries of its factors."""
        return Product(self.workload, tuple(factors))

    def numbers(self, workload: Workload, values: object, name: str) -> PerFactor:
        """Return the numbers of each factor; equal factors are evaluated once."""
        product_and_values = _as_product(workload, values, name, True)
        if product_and_values is None or not product_and_values[0].same_as(self.workload):
            raise InvalidInputError("geometry must be of this workload")
        pairs = zip(product_and_values[0].factors, self.factors, _shares(*product_and_values, name), strict=True)
        by_factor = tuple(
            _each_once(
                product_and_values[1], pairs, lambda workload, factor, share: factor.numbers(workload, share, name)
            )
        )
        self.representable(name, by_factor)
        return by_factor

    @property
    def rank(self) -> int:
        return max(factor.rank for factor in self.factors)

    def point(self, primal: object) -> PerFactor:
        return self._per_factor("primal", primal, lambda factor, part: factor.point(part))

    def checked(self, point: object) -> PerFactor:
        return self._per_factor("primal", point, lambda factor, part: factor.checked(part))

    def divide(self, point: PerFactor, divisor: float) -> PerFactor:
        """Divide the noise by a positive number, each factor by its root of the number of factors."""
        share = np.float64(divisor) ** (1 / len(self.factors)) if divisor > 0 else np.float64(np.nan)
        return tuple(factor.divide(part, share) for factor, part in zip(self.factors, point, strict=True))

    def mechanism(self, point: PerFactor) -> GaussianPrivacy:
        pairs = zip(self.factors, point, strict=True)
        return mechanisms.product.ProductMechanism([factor.mechanism(part) for factor, part in pairs])

    def forms(self, point: PerFactor) -> ProductForms | None:
        forms = [factor.forms(part) for factor, part in zip(self.factors, point, strict=True)]
        evaluated = tuple(form for form in forms if form is not None)
        return ProductForms(self, evaluated) if len(evaluated) == len(forms) else None

    def largest_ratio(self, point: PerFactor, targets: PerFactor) -> float:
        return products.product(
            max(factor.largest_ratio(part, limits), 0.0)
            for factor, part, limits in zip(self.factors, point, targets, strict=True)
        )

    def weights(self, dual: object, queries: bool = True) -> tuple[PerFactor, PerFactor]:
        neighbours, second = given_weights(dual, queries)
        first = self._per_factor("neighbour_weights", neighbours, lambda _, part: part)
        last = self._per_factor("query_weights", second, lambda _, part: part) if queries else first
        pairs = [
            factor.weights(FitnessDual(left, right) if queries else left, queries)
            for factor, left, right in zip(self.factors, first, last, strict=True)
        ]
        return tuple(left for left, _ in pairs), tuple(right for _, right in pairs)

    def bound(self, neighbour_weights: PerFactor, query_weights: PerFactor, targets: PerFactor) -> Judged:
        parts = zip(self.factors, neighbour_weights, query_weights, targets, strict=True)
        return _product_judged(factor.bound(*arguments) for factor, *arguments in parts)

    def total_bound(self, neighbour_weights: PerFactor, weights: PerFactor) -> Judged:
        parts = zip(self.factors, neighbour_weights, weights, strict=True)
        return _product_judged(factor.total_bound(*arguments) for factor, *arguments in parts)

    def prices(self, query_weights: PerFactor, targets: PerFactor) -> Array:
        """Return the normalised shadow price of each query (m,); refused for too many queries.

        It is the product of the factors' prices, with a table's price spread evenly over its queries.
        """
        parts = zip(self.factors, query_weights, targets, strict=True)
        return self.outer([factor.prices(*arguments) for factor, *arguments in parts])

    def total_prices(self, neighbour_weights: PerFactor, weights: PerFactor) -> Array:
        """Return each query's share of the total variance's bound (m,), as `prices`."""
        parts = zip(self.factors, neighbour_weights, weights, strict=True)
        return self.outer([factor.total_prices(*arguments) for factor, *arguments in parts])

    def item_words(self, index: PerFactor) -> str:
        return joined_words([factor.item_words for factor in self.factors], index)

    def neighbour_words(self, index: PerFactor) -> str:
        return joined_words([factor.neighbour_words for factor in self.factors], index)

    def argument_values(self) -> dict[str, object]:
        return {"bases": tuple(factor.argument_values().get("basis") for factor in self.factors)}

    def in_numbers(self, workload: Workload, kind: str, numbers: PerFactor) -> dict[str, object]:
        parts = zip(self.factors, self.workload.factors, numbers, strict=True)
        return {
            "kind": f"product {kind}",
            "factors": [
                {**factor.in_numbers(workload, kind, number), "allowed": 1.0} for factor, workload, number in parts
            ],
        }

    def stored(self, point: PerFactor) -> PerFactor:
        return tuple(factor.stored(part) for factor, part in zip(self.factors, point, strict=True))

    def restored(self, point: object) -> object:
        if not isinstance(point, tuple) or len(point) != len(self.factors):
            return point
        return tuple(factor.restored(part) for factor, part in zip(self.factors, point, strict=True))

    def per_query(self, workload: Workload, numbers: PerFactor) -> Array:
        triples = zip(self.workload.factors, self.factors, numbers, strict=True)
        return products.outer([factor.per_query(workload, number) for workload, factor, number in triples])

    def representable(self, name: str, numbers: PerFactor) -> None:
        """Refuse numbers of the factors whose products over- or underflow."""
        arrays = [np.asarray(number, dtype=np.float64) for number in numbers]
        for end in ([array.max() for array in arrays], [array[array > 0].min() for array in arrays]):
            _representable_product(f"{name} of the product", end)

    def outer(self, shares: Sequence[Array]) -> Array:
        """Return the products of one share of each factor, with a table's share spread evenly over its queries."""
        parts = []
        for factor, share in zip(self.factors, shares, strict=True):
            sizes = getattr(factor.workload, "table_cells", None)
            if sizes is not None and len(share) == len(sizes):
                if factor.workload.shape[0] > MAX_LISTED:
                    raise InvalidInputError(
                        f"{factor.workload.shape[0]} queries of a factor are too many for a list (limit {MAX_LISTED})"
                    )
                share = np.repeat(share / sizes, sizes.astype(np.int64))
            parts.append(share)
        return products.outer(parts)

    def _per_factor(self, name: str, values: object, checked: Callable[[Geometry, Any], Any]) -> PerFactor:
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise InputTypeError(f"{name} must be a sequence, one item per factor, got {type(values).__name__}")
        if len(values) != len(self.factors):
            raise InvalidInputError(f"{name} must have {len(self.factors)} items, one per factor, got {len(values)}")
        return tuple(checked(factor, part) for factor, part in zip(self.factors, values, strict=True))


def _as_product(workload: Workload, values: Any, name: str, named: bool) -> tuple[ProductWorkload, object] | None:
    """Return the workload as a product with one number, or numbers by factor; None if it is no product.

    Numbers of single queries are factored, and a single table becomes a product, if the geometry is requested by name
    or has more than `MIN_PRODUCT_CELLS` cells.
    """
    large = named or workload.shape[1] > MIN_PRODUCT_CELLS
    if not isinstance(workload, ProductWorkload):
        product = products.as_product(workload) if large else None
        if product is None or isinstance(values, ByFactor):
            return None if product is None else (product, values)
        each_table = numbers.of_tables(workload, workload, values, name)
        return None if each_table is None else (product, float(each_table[0]))
    if isinstance(values, ByFactor) or numbers.is_number(values):
        return workload, values
    if large and not isinstance(values, Mapping) and np.shape(values) == workload.shape[:1]:
        parts = products.factored(workload, numbers.by_query(workload, values, name, positive=name == "targets"))
        return None if parts is None else (workload, ByFactor(*parts))
    return None


def _shares(workload: ProductWorkload, values: object, name: str) -> PerFactor:
    """Return the numbers of each factor."""
    count = len(workload.factors)
    if not isinstance(values, ByFactor):
        return (values, *[1.0] * (count - 1))
    if len(values.numbers) != count:
        raise InvalidInputError(f"{name} by factor must be {count}, one per factor, got {len(values.numbers)}")
    return values.numbers


def _factor_offer(request: Request, factor: Workload, values: object) -> Offer:
    posed = replace(request, workload=factor, values=validate.as_mapping(**{request.name: values}), named=True)
    geometry: type[Geometry] = Blocks if isinstance(factor, MarginalWorkload) else Dense
    offer = geometry.offer(posed)
    assert offer is not None
    return offer


def _each_once(values: object, items: Iterable[PerFactor], compute: Callable[..., T]) -> list[T]:
    """Return each factor's result, computed once for equal factors; an error about numbers by factor has its index."""
    results: dict[tuple[object, ...], T] = {}
    keys = []
    for index, item in enumerate(items):
        key = tuple(part if isinstance(part, int | float | np.number) else id(part) for part in item)
        keys.append(key)
        if key not in results:
            try:
                results[key] = compute(*item)
            except DualmechError as error:
                if isinstance(values, ByFactor):
                    raise type(error)(f"factors[{index}]: {error}") from None
                raise
    return [results[key] for key in keys]


def _product_judged(pairs: Iterable[Judged]) -> Judged:
    values, roundings = zip(*pairs, strict=True)
    return products.product([max(value, 0.0) for value in values]), _product_rounding(roundings)


def _product_rounding(roundings: Iterable[float]) -> float:
    with np.errstate(over="ignore"):
        return float(np.expm1(math.fsum(math.log1p(rounding) for rounding in roundings)))


def _representable_product(words: str, numbers: Sequence[float]) -> float:
    """Return a product of positive numbers; refuse over- and underflow, with the order of magnitude."""
    value = products.product(numbers)
    if all(0 < number < math.inf for number in numbers) and not MIN_NORMAL <= value < math.inf:
        exponent = math.fsum(math.log10(number) for number in numbers)
        raise InvalidInputError(
            f"{words} must be a normal double, got about 1e{exponent:+.0f}; scale those of the factors"
        )
    return value
