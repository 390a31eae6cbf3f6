"""Fitness for use of product workloads: the factors' optima multiply, and so do their certificates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dualmech import products
from dualmech.certificate import Certificate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.marginals import MarginalFitness
from dualmech.products import ProductWorkload
from dualmech.validate import Array

if TYPE_CHECKING:
    from dualmech.product_mechanism import ProductMechanism
    from dualmech.solution import Solution

Factor: TypeAlias = FitnessForUse | MarginalFitness

LISTED = 2**22
"""Largest number of cells among which those that bind are listed."""


@dataclass(frozen=True, slots=True, eq=False)
class ProductDual:
    """The dual weights of each factor; their products are weights on the cells and queries of the product."""

    factors: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ProductFitness:
    """Fitness for use on a product of workloads, each query's target the product of its factors' targets.

    The least squared privacy cost is the square of a factorisation norm, which is multiplicative: it is ``Π α_i``, by
    noise of covariance ``⊗ Σ_i`` on ``(⊗ B_i) x``. Both sides of a certificate multiply as well: the profile of the
    product is the product of the profiles, every ratio of a variance to its target that of the factors', and trace
    norms of Kronecker products multiply, so that ``⊗ λ_i`` and ``⊗ μ_i`` prove ``Π`` of the factors' bounds. Nothing
    larger than a factor is ever formed, and nobody but the factors' own judges is asked.

    Parameters
    ----------
    factors : sequence of FitnessForUse or MarginalFitness
        Two or more; a `ProductFitness` stands for its own factors. One record added or removed.

    Attributes
    ----------
    workload : ProductWorkload
        The product of the factors' workloads.

    Raises
    ------
    InvalidInputError, InputTypeError
        Fewer than two factors, one of another kind, or with neighbours of its own: differences of records are no
        products then.

    Notes
    -----
    Its primal point is the tuple of the factors' primal points. That γ₂ is multiplicative: Lee, Shraibman and Špalek,
    "A direct product theorem for discrepancy", CCC 2008.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> twice = dm.ProductFitness([dm.FitnessForUse(dm.workloads.prefix(2), 1.0)] * 2)
    >>> answer = fast.solve(twice)
    >>> round(answer.objective, 5), answer.status.name      # 4/3 squared
    (1.77778, 'CERTIFIED')
    """

    factors: tuple[Factor, ...]
    workload: ProductWorkload

    def __init__(self, factors: Sequence[Factor | ProductFitness]) -> None:
        if not isinstance(factors, Sequence):
            raise InputTypeError(f"factors must be a sequence of problems, got {type(factors).__name__}")
        parts: list[Any] = []
        for index, factor in enumerate(factors):
            if not isinstance(factor, FitnessForUse | MarginalFitness | ProductFitness):
                raise InputTypeError(
                    f"factors[{index}] must be a FitnessForUse, MarginalFitness or ProductFitness, "
                    f"got {type(factor).__name__}"
                )
            if isinstance(factor, FitnessForUse) and factor.neighbours is not None:
                raise InvalidInputError(
                    f"factors[{index}] must have the default neighbours, one record added or removed"
                )
            parts += factor.factors if isinstance(factor, ProductFitness) else (factor,)
        if len(parts) < 2:
            raise InvalidInputError(f"factors must be two or more problems, got {len(parts)}")
        object.__setattr__(self, "factors", tuple(parts))
        object.__setattr__(self, "workload", products.kron(*(part.workload for part in parts)))

    @property
    def targets(self) -> Array:
        """Variance targets of all queries (m,); refused where they are too many to write out."""
        return products.outer([_query_values(factor, factor.targets) for factor in self.factors])

    def certify(self, primal: Sequence[npt.ArrayLike], dual: ProductDual | Sequence[Any]) -> Certificate:
        """Judge the factors' primal points and dual weights, each by its own problem, and multiply the verdicts."""
        points, weights = self._each("primal", primal), self._each("dual", dual)
        judged = [
            each.certify(point, own) for each, point, own in zip(self.factors, points, weights, strict=True)
        ]
        return Certificate.of(
            math.prod(each.objective for each in judged),
            math.prod(each.lower_bound for each in judged),
            math.expm1(math.fsum(math.log1p(each.violation) for each in judged)),
            math.expm1(math.fsum(math.log1p(each.resolution) for each in judged)),
        )

    def feasible(self, primal: Sequence[npt.ArrayLike]) -> tuple[Array, ...]:
        """Return the factors' points, each scaled so that its tightest target is met exactly."""
        points = self._each("primal", primal)
        return tuple(each.feasible(point) for each, point in zip(self.factors, points, strict=True))

    def mechanism(self, primal: Sequence[npt.ArrayLike]) -> ProductMechanism:
        """Return the mechanism with the product of the factors' noise."""
        # Imported here so that the judge rests on no module that it does not need.
        from dualmech.product_mechanism import ProductMechanism

        points = self._each("primal", primal)
        return ProductMechanism(
            [each.mechanism(point) for each, point in zip(self.factors, points, strict=True)]
        )

    def prices(self, dual: ProductDual | Sequence[Any]) -> Array:
        """Return each query's share of the privacy bill (m,), refused where they are too many to write out.

        It is the product of the factors' shares, in which a table's share is spread evenly over its cells.
        """
        weights = self._each("dual", dual)
        shares = []
        for factor, own in zip(self.factors, weights, strict=True):
            given = factor.prices(own)
            if isinstance(factor, MarginalFitness):
                given = given / factor.workload.table_cells
            shares.append(_query_values(factor, given))
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
                f"binding cells are listed among {LISTED} at most, got {float(self.workload.shape[1]):.3g}; "
                f"take the factors' own"
            )
        found = np.zeros(1, dtype=np.intp)
        for factor, point in zip(self.factors, self._each("primal", primal), strict=True):
            cells = factor.workload.shape[1]
            own = np.arange(cells) if isinstance(factor, MarginalFitness) else factor.binding(point, slack)
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


def _query_values(factor: Factor, values: Array) -> Array:
    """Return one number a query, from one a table where the factor has tables."""
    if not isinstance(factor, MarginalFitness):
        return values
    if factor.workload.shape[0] > LISTED:
        raise InvalidInputError(f"{factor.workload.shape[0]} queries of a factor are too many to write out")
    return np.repeat(values, factor.workload.table_cells.astype(np.int64))
