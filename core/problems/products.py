"""Fitness for use, and total variance, of product workloads: the factors' optima multiply, and so do their proofs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from dualmech.geometry.product import ProductDual, ProductProblem
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.marginals import MarginalFitness, MarginalVariance
from dualmech.problems.variance import TotalVariance
from dualmech.validate import Array

__all__ = ["Factor", "ProductDual", "ProductFitness", "ProductVariance", "VarianceFactor"]

Factor: TypeAlias = FitnessForUse | MarginalFitness
VarianceFactor: TypeAlias = TotalVariance | MarginalVariance


@dataclass(frozen=True, slots=True, eq=False, init=False)
class ProductFitness(ProductProblem):
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
        products then. Targets whose product no double can hold.

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

    kinds: ClassVar[tuple[type, ...]] = (FitnessForUse, MarginalFitness)
    given: ClassVar[str] = "targets"

    def __init__(self, factors: Sequence[Factor | ProductFitness]) -> None:
        ProductProblem.__init__(self, factors)

    @property
    def targets(self) -> Array:
        """Variance targets of all queries (m,); refused where they are too many to write out."""
        return self._written_out()


@dataclass(frozen=True, slots=True, eq=False, init=False)
class ProductVariance(ProductProblem):
    """Least total variance of a product of workloads, each query's weight the product of its factors' weights.

    The total variance of the product of mechanisms is the product of theirs, and so is its squared privacy cost: at a
    cost of 1 each, the optima multiply from above. From below they multiply because ``‖diag(√w) W diag(√λ)‖_*`` is a
    product at ``⊗ λ_i``. So the least total at a squared cost of 1 is that of the factors, multiplied, by noise of
    covariance ``⊗ Σ_i`` on ``(⊗ B_i) x``; at another cost c it is ``1/c`` times as large.

    Parameters
    ----------
    factors : sequence of TotalVariance or MarginalVariance
        Two or more; a `ProductVariance` stands for its own factors. One record added or removed.

    Attributes
    ----------
    workload : ProductWorkload
        The product of the factors' workloads.

    Raises
    ------
    InvalidInputError, InputTypeError
        As for `ProductFitness`, with weights for targets.

    Notes
    -----
    Its primal point is the tuple of the factors' primal points, its dual that of their duals, None for marginals.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> tables = dm.MarginalVariance(dm.workloads.marginals([10] * 30, ways=(1, 2)))
    >>> ages = dm.TotalVariance(dm.workloads.prefix(2))
    >>> answer = fast.solve(dm.ProductVariance([ages, tables]))
    >>> answer.status.name, round(answer.objective / fast.solve(tables).objective, 4)      # prefix 2 alone: 2.618
    ('CERTIFIED', 2.618)
    """

    kinds: ClassVar[tuple[type, ...]] = (TotalVariance, MarginalVariance)
    given: ClassVar[str] = "weights"

    def __init__(self, factors: Sequence[VarianceFactor | ProductVariance]) -> None:
        ProductProblem.__init__(self, factors)

    @property
    def weights(self) -> Array:
        """Weights of all queries (m,); refused where they are too many to write out."""
        return self._written_out()
