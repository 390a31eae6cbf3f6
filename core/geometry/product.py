"""Problems on products of workloads: what the factors' own judges say, multiplied."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from dualmech.certificate import Certificate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.validate import Array
from dualmech.workloads import products
from dualmech.workloads.domain import rounded
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.products import ProductWorkload

if TYPE_CHECKING:
    from dualmech.mechanisms.product import ProductMechanism
    from dualmech.solution import Solution

LISTED = 2**22
"""Largest number of cells among which those that bind are listed."""

LEAST = sys.float_info.min
"""Smallest number of which a double holds every digit."""


@dataclass(frozen=True, slots=True, eq=False)
class ProductDual:
    """The dual weights of each factor; their products are weights on the cells and queries of the product."""

    factors: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False, init=False)
class ProductProblem:
    """What problems on products share: the optimum is the product of the factors' optima, and so is the bound.

    Attributes
    ----------
    factors : tuple of problems
        Two or more, none of them a product.
    workload : ProductWorkload
        The product of the factors' workloads.
    """

    factors: tuple[Any, ...]
    workload: ProductWorkload

    kinds: ClassVar[tuple[type, ...]]
    """What a factor can be."""

    given: ClassVar[str]
    """The numbers that come with the queries, all positive or none negative: targets or weights."""

    def __init__(self, factors: Sequence[Any]) -> None:
        if not isinstance(factors, Sequence) or isinstance(factors, str):
            raise InputTypeError(f"factors must be a sequence of problems, got {type(factors).__name__}")
        known = (*self.kinds, type(self))
        parts: list[Any] = []
        for index, factor in enumerate(factors):
            if not isinstance(factor, known):
                *others, last = (kind.__name__ for kind in known)
                raise InputTypeError(
                    f"factors[{index}] must be a {', '.join(others)} or {last}, got {type(factor).__name__}"
                )
            if getattr(factor, "neighbours", None) is not None:
                raise InvalidInputError(
                    f"factors[{index}] must have the default neighbours, one record added or removed"
                )
            parts += factor.factors if isinstance(factor, type(self)) else (factor,)
        if len(parts) < 2:
            raise InvalidInputError(f"factors must be two or more problems, got {len(parts)}")
        object.__setattr__(self, "factors", tuple(parts))
        object.__setattr__(self, "workload", products.kron(*(part.workload for part in parts)))
        values = [getattr(part, self.given) for part in parts]
        for end in ([each.max() for each in values], [each[each > 0].min() for each in values]):
            if not LEAST <= products.product(end) < math.inf:
                raise _too_far(f"{self.given} of the product must be numbers that a double can hold", end)

    def certify(self, primal: Sequence[npt.ArrayLike], dual: ProductDual | Sequence[Any]) -> Certificate:
        """Judge the factors' primal points and dual weights, each by its own problem, and multiply the verdicts.

        Raises
        ------
        InvalidInputError, InputTypeError
            Another number of items than factors; an optimum that no double can hold.
        """
        points, weights = self._each("primal", primal), self._each("dual", dual)
        judged = [
            each.certify(point, own) for each, point, own in zip(self.factors, points, weights, strict=True)
        ]
        objectives, bounds = [each.objective for each in judged], [each.lower_bound for each in judged]
        objective, bound = products.product(objectives), products.product(bounds)
        vanishes = min(objectives) > 0 and all(each.feasible for each in judged) and objective < LEAST
        if vanishes or bound == math.inf:
            words = f"{self.given} must leave the optimum of the product a number that a double can hold"
            raise _too_far(words, objectives if vanishes else bounds)
        with np.errstate(over="ignore"):
            return Certificate.of(
                objective,
                bound,
                float(np.expm1(math.fsum(math.log1p(each.violation) for each in judged))),
                float(np.expm1(math.fsum(math.log1p(each.resolution) for each in judged))),
            )

    def feasible(self, primal: Sequence[npt.ArrayLike]) -> tuple[Array, ...]:
        """Return the factors' points, each scaled so that its own constraints hold exactly."""
        points = self._each("primal", primal)
        return tuple(each.feasible(point) for each, point in zip(self.factors, points, strict=True))

    def mechanism(self, primal: Sequence[npt.ArrayLike]) -> ProductMechanism:
        """Return the mechanism with the product of the factors' noise."""
        # Imported here so that the judge rests on no module that it does not need.
        from dualmech.mechanisms.product import ProductMechanism

        points = self._each("primal", primal)
        return ProductMechanism(
            [each.mechanism(point) for each, point in zip(self.factors, points, strict=True)]
        )

    def prices(self, dual: ProductDual | Sequence[Any]) -> Array:
        """Return each query's share of the bill (m,), refused where they are too many to write out.

        It is the product of the factors' shares, in which a table's share is spread evenly over its cells.
        """
        weights = self._each("dual", dual)
        shares = []
        for factor, own in zip(self.factors, weights, strict=True):
            prices = factor.prices(own)
            if isinstance(factor.workload, MarginalWorkload):
                prices = prices / factor.workload.table_cells
            shares.append(_query_values(factor, prices))
        return products.outer(shares)

    def binding(self, primal: Sequence[npt.ArrayLike], slack: float) -> npt.NDArray[np.intp]:
        """Return the cells each of whose factors is within `slack` of its largest cost, where they can be listed.

        Raises
        ------
        InvalidInputError
            More than 2^22 cells.
        """
        if self.workload.shape[1] > LISTED:
            raise InvalidInputError(
                f"binding cells are listed among {LISTED} at most, got {rounded(self.workload.shape[1])}; "
                f"take the factors' own"
            )
        found = np.zeros(1, dtype=np.intp)
        for factor, point in zip(self.factors, self._each("primal", primal), strict=True):
            cells = factor.workload.shape[1]
            alike = isinstance(factor.workload, MarginalWorkload)
            own = np.arange(cells) if alike else factor.binding(point, slack)
            found = np.add.outer(cells * found, own).ravel()
        return found

    def combine(self, answers: Sequence[Solution], tol: float = 1e-6) -> Solution:
        """Return the factors' solutions, from whichever layer, as one of the product, judged anew.

        Raises
        ------
        InvalidInputError, InputTypeError
            Another number of solutions than factors.
        """
        # Imported here so that the judge rests on no module that it does not need.
        from dualmech.solution import Status, judged

        given = self._each("answers", answers)
        different = {id(each): each for each in given}.values()  # a factor that comes twice is solved once
        reasons = [each.status for each in given if each.status is not Status.CERTIFIED]
        return judged(
            self,
            tuple(each.primal for each in given),
            ProductDual(tuple(each.dual for each in given)),
            tol=tol,
            otherwise=reasons[0] if reasons else Status.ROUNDING,
            iterations=sum(each.iterations for each in different),
            seconds=sum(each.seconds for each in different),
            solver=" x ".join(dict.fromkeys(each.solver for each in given)),
        )

    def share(self, tol: float) -> float:
        """Return the gap to prove of each factor, so that theirs make up `tol` of the product."""
        return math.expm1(math.log1p(tol) / len(self.factors))

    def _written_out(self) -> Array:
        """Return the numbers that come with the queries (m,); refused where they are too many to write out."""
        return products.outer([_query_values(each, getattr(each, self.given)) for each in self.factors])

    def _each(self, name: str, given: Any) -> tuple[Any, ...]:
        """Return one item a factor."""
        items = given.factors if isinstance(given, ProductDual) else given
        if not isinstance(items, Sequence) or isinstance(items, str):
            raise InputTypeError(f"{name} must be a sequence, one item a factor, got {type(given).__name__}")
        if len(items) != len(self.factors):
            raise InvalidInputError(
                f"{name} must have {len(self.factors)} items, one a factor, got {len(items)}"
            )
        return tuple(items)


def _too_far(words: str, numbers: Sequence[float]) -> InvalidInputError:
    """Return the error that says how far a product is from what a double can hold."""
    exponent = math.fsum(math.log10(number) for number in numbers)
    return InvalidInputError(f"{words}, got about 1e{exponent:+.0f}; scale those of the factors")


def _query_values(factor: Any, values: Array) -> Array:
    """Return one number a query, from one a table where the factor has tables."""
    workload = factor.workload
    if not isinstance(workload, MarginalWorkload):
        return values
    if workload.shape[0] > LISTED:
        raise InvalidInputError(f"{workload.shape[0]} queries of a factor are too many to write out")
    return np.repeat(values, workload.table_cells.astype(np.int64))
