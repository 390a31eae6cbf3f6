"""Total variance: the least weighted sum of variances at a given privacy cost, the matrix mechanism's problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.certificate import Certificate, with_reasons
from dualmech.geometry.base import Geometry, Index
from dualmech.geometry.choice import choose
from dualmech.geometry.weights import VarianceDual
from dualmech.immutable import set_parts
from dualmech.neighbours import NeighboursLike
from dualmech.problems.base import OnGeometry
from dualmech.validate import Array
from dualmech.workloads.base import Workload

__all__ = ["TotalVariance", "VarianceDual"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TotalVariance(OnGeometry[VarianceDual]):
    """Least total variance: the weighted sum of the queries' variances at a squared privacy cost of 1.

    Minimise ``Σ_j w_j v_j Σ v_j'`` over Σ ≻ 0 subject to

    - ``(B u_i)' Σ⁻¹ (B u_i) ≤ 1`` for every pair of neighbours u_i,

    where ``W = L B`` and v_j are the rows of L. At another squared cost c the optimum is ``1/c`` times as
    large, at ``Σ / c``.

    The dual is to maximise ``‖diag(√w) W U diag(√λ)‖_*²`` over ``λ ≥ 0, Σ λ_i ≤ 1``; any such λ bounds the
    optimum from below, and strong duality holds. At the uniform λ this is the singular value bound. Of marginal tables
    there is nothing to choose: the optimum is a closed form.
    Raises `InvalidInputError` or `InputTypeError` for weights that are negative, of the wrong number, or positive
    on no query but all-zero ones; a basis that lacks full row rank or does not span the weighted queries;
    neighbours of the wrong shape or that change none of them; a geometry that cannot hold the workload.

    Parameters
    ----------
    workload : Workload
        W, m queries over d cells.
    weights : float, array, mapping, pandas Series or ByFactor, optional
        What a unit of each query's variance counts, in the forms that `FitnessForUse` takes targets; by default 1.
        Single ones may be 0, not all.
    basis : (k, d) array, optional
        B, of full row rank, spanning the rows of W whose weight is positive, k of them independent. By default
        the identity if these have full column rank, else orthonormal rows. Dense alone.
    neighbours : str, Relation, (d, s) array or sparse matrix, optional
        As for `FitnessForUse`.
    geometry : {"auto", "dense", "epochs", "blocks", "product", "split", "stream"} or Geometry
        As for `FitnessForUse`.

    Notes
    -----
    A query of weight 0 is not asked for: noise in directions that only such queries use costs nothing and
    would grow without end, so the mechanism does not answer them. It answers those in the span of the others.

    The matrix mechanism of Li, Hay, Rastogi, Miklau and McGregor, PODS 2010, with ``X = B' Σ⁻¹ B`` the cost
    matrix of its strategy; Li and Miklau, "An adaptive mechanism for accurate query answering under
    differential privacy", PVLDB 5(6), 2012, whose Theorem 2 is the singular value bound. "CA" in Xiao et al.,
    PVLDB 14(10), 2021.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.TotalVariance(dm.workloads.prefix(2))
    >>> covariance = problem.feasible([[1, -0.4], [-0.4, 1]])
    >>> judged = problem.certify(covariance, dm.duals.VarianceDual([0.72, 0.28]))
    >>> round(judged.objective, 4), round(judged.lower_bound, 4)
    (2.619, 2.618)
    >>> round(problem.certify(covariance, [1, 1]).lower_bound, 4)
    2.5
    """

    workload: Workload
    weights: Any
    geometry: Any = field(repr=False)

    numbers: ClassVar[str] = "weights"
    dual_type: ClassVar[Callable[..., VarianceDual]] = VarianceDual
    arguments: ClassVar[tuple[str, ...]] = ("workload", "weights")
    sums_variances = True
    cost_limit = 1.0
    price_words = "Raising the weight{}", "adds about {} to the total variance"

    def __init__(
        self,
        workload: Workload,
        weights: object = None,
        basis: npt.ArrayLike | None = None,
        neighbours: NeighboursLike = None,
        *,
        geometry: str | Geometry = "auto",
    ) -> None:
        values = 1.0 if weights is None else weights
        chosen, numbers = choose(workload, values, "weights", geometry, basis, neighbours)
        set_parts(self, workload=workload, weights=numbers, geometry=chosen)

    @property
    def objective_name(self) -> str:
        plain = not isinstance(self.weights, tuple) and (self.weights == 1).all()
        return "total variance" if plain else "weighted total variance"

    def in_numbers(self) -> dict[str, object]:
        return self._noise_in_numbers(self.cost_limit)

    @property
    def asked(self) -> Index:
        """Indices of the queries, or tables, of positive weight, which are the geometry's."""
        return np.flatnonzero(self.weights)

    @property
    def asked_weights(self) -> Any:
        """The weights that the geometry's queries, or tables, have; of a product, one array per factor."""
        if isinstance(self.weights, tuple):
            return tuple(weight[weight > 0] for weight in self.weights)
        return self.weights[self.asked]

    @property
    def row_weights(self) -> Array:
        weights: Array = self.asked_weights
        return self.geometry.orbit_weights(self.weights) if self.geometry.name == "blocks" else weights

    @property
    def row_targets(self) -> Array:
        return 1 / self.row_weights

    @with_reasons
    def certify(self, primal: object, dual: object = None) -> Certificate:
        """Judge noise, on a dense geometry a covariance on B x (k, k), and dual weights, from wherever they come."""
        geometry, weights = self.geometry, self.asked_weights
        lower_bound, rounding = geometry.total_bound(geometry.weights(dual, queries=False)[0], weights)
        forms = geometry.forms(geometry.point(primal))
        if forms is None:
            return Certificate.of(np.inf, lower_bound, np.inf, rounding)
        total, slack = forms.total(weights)
        rounding += forms.cost_rounding + slack
        return Certificate.of(total, lower_bound, max(forms.cost - 1, 0.0), rounding)

    def mechanism(self, primal: object, cost: float = 1.0) -> Any:
        """Return the mechanism with this noise, divided by a squared privacy cost."""
        allowed = validate.positive_number(cost=cost)
        return self._mechanism_within(self.geometry.divide(self.geometry.point(primal), allowed), allowed)

    def prices(self, dual: object) -> Array:
        """Return each query's, or table's, share of the total variance, ``w_j · variance_j / Σ_l w_l · variance_l``.

        They belong to the covariance of the dual weights λ: with singular values s and left
        singular vectors X of ``diag(√w) W U diag(√λ)``, the shares are the diagonal of ``X s X' / Σ s``. A
        weight w_j that grows by the small fraction t raises the optimum by the fraction ``prices[j] · t``.
        """
        first = self.geometry.weights(dual, queries=False)[0]
        if isinstance(self.weights, tuple):
            factors = zip(self.factors, first, strict=True)
            outer: Array = self.geometry.outer([factor.prices(part) for factor, part in factors])
            return outer
        shares: Array = self.geometry.total_prices(first, self.asked_weights)
        if len(shares) == len(self.weights):
            return shares
        prices = np.zeros(len(self.weights))
        prices[self.asked] = shares
        return prices
