"""Total variance: the least weighted sum of variances at a given privacy cost, the matrix mechanism's problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dualmech import linalg, validate
from dualmech.certificate import Certificate
from dualmech.errors import InvalidInputError
from dualmech.geometry.dense import Geometry
from dualmech.geometry.dense_forms import (
    covariance_of,
    proving,
    quadratic_forms,
    spending_one,
    trace_norm_bound,
)
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload

if TYPE_CHECKING:
    from dualmech.mechanisms.gaussian import LinearGaussianMechanism


@dataclass(frozen=True, slots=True, eq=False)
class VarianceDual:
    """Weights that prove a lower bound: λ on neighbours (s,), none negative.

    Any such vector proves a bound, whatever its scale; solvers return one with ``Σ λ_i = 1``.
    """

    neighbour_weights: Array


@dataclass(frozen=True, slots=True, eq=False)
class TotalVariance:
    """Least total variance: the weighted sum of the queries' variances at a squared privacy cost of 1.

    Minimise ``Σ_j w_j v_j Σ v_j'`` over Σ ≻ 0 subject to

    - ``(B u_i)' Σ⁻¹ (B u_i) ≤ 1`` for every pair of neighbours u_i,

    where ``W = L B`` and v_j are the rows of L. At another squared cost c the optimum is ``1/c`` times as
    large, at ``Σ / c``.

    The dual is to maximise ``‖diag(√w) W U diag(√λ)‖_*²`` over ``λ ≥ 0, Σ λ_i ≤ 1``; any such λ bounds the
    optimum from below, and strong duality holds. At the uniform λ this is the singular value bound.

    Parameters
    ----------
    workload : Workload
        W, m queries over d cells.
    weights : float or (m,) array, optional
        What a unit of each query's variance counts, w ≥ 0 and not all zero; by default 1.
    basis : (k, d) array, optional
        B, of full row rank, spanning the rows of W whose weight is positive, k of them independent. By default
        the identity if these have full column rank, else orthonormal rows.
    neighbours : (d, s) array or sparse matrix, optional
        U, the differences of neighbouring data sets up to sign (`dualmech.neighbours`); by default the
        identity, one record added or removed.

    Raises
    ------
    InvalidInputError, InputTypeError
        Weights that are negative, of the wrong number, or positive on no query but all-zero ones; a basis
        that lacks full row rank or does not span the weighted queries; neighbours of the wrong shape or that
        change none of them.

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
    >>> judged = problem.certify(covariance, dm.VarianceDual([0.72, 0.28]))
    >>> round(judged.objective, 4), round(judged.lower_bound, 4)
    (2.619, 2.618)
    >>> round(problem.certify(covariance, [1, 1]).lower_bound, 4)
    2.5
    """

    workload: Workload
    weights: Array
    basis: Array
    neighbours: Matrix | None
    geometry: Geometry = field(repr=False)

    def __init__(
        self,
        workload: Workload,
        weights: npt.ArrayLike | None = None,
        basis: npt.ArrayLike | None = None,
        neighbours: Matrix | npt.ArrayLike | None = None,
    ) -> None:
        asked = workload
        if isinstance(workload, Workload):
            checked = _weights(workload, 1.0 if weights is None else weights)
            object.__setattr__(self, "weights", checked)
            asked = workload if np.all(checked) else workload.select(np.flatnonzero(checked))
        geometry = Geometry.of(asked, basis, neighbours)
        object.__setattr__(self, "workload", workload)
        object.__setattr__(self, "basis", geometry.basis)
        object.__setattr__(self, "neighbours", geometry.neighbours)
        object.__setattr__(self, "geometry", geometry)

    @property
    def asked(self) -> npt.NDArray[np.intp]:
        """Indices of the queries of positive weight, which are the geometry's."""
        return np.flatnonzero(self.weights)

    def certify(self, primal: npt.ArrayLike, dual: VarianceDual | npt.ArrayLike) -> Certificate:
        """Judge a covariance on B x (k, k) and dual weights; neither needs to come from a solver."""
        lower_bound, rounding = self._bound(dual)
        forms = quadratic_forms(self, primal)
        if forms is None:
            return Certificate.of(np.inf, lower_bound, np.inf, rounding)
        weights = self.weights[self.asked]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            total = weights @ forms.variances
            rounding += forms.cost_rounding + float(weights @ forms.variance_rounding / total)
        return Certificate.of(float(total), lower_bound, max(forms.cost - 1, 0.0), rounding)

    def feasible(self, primal: npt.ArrayLike) -> Array:
        """Return the covariance scaled so that the squared privacy cost is exactly 1."""
        return spending_one(self, primal)

    def mechanism(self, primal: npt.ArrayLike, cost: float = 1.0) -> LinearGaussianMechanism:
        """Return the mechanism that adds noise of this covariance, divided by a squared cost, to B x."""
        # Imported here so that the judge rests on no module that it does not need.
        from dualmech.mechanisms.gaussian import LinearGaussianMechanism

        spent = validate.positive_number(cost=cost)
        return LinearGaussianMechanism(self.basis, covariance_of(self, primal) / spent, self.neighbours)

    def prices(self, dual: VarianceDual | npt.ArrayLike) -> Array:
        """Return each query's share of the total variance (m,), ``w_j · variance_j / Σ_l w_l · variance_l``.

        They are those of the covariance that the dual weights λ belong to: with singular values s and left
        singular vectors X of ``diag(√w) W U diag(√λ)``, the shares are the diagonal of ``X s X' / Σ s``. A
        weight w_j that grows by the small fraction t raises the optimum by the fraction ``prices[j] · t``.
        """
        prices = np.zeros(len(self.weights))
        shares = self._neighbour_weights(dual)
        if not proving(shares):
            return prices
        moves = np.flatnonzero(shares)
        product = self.geometry.differences(np.arange(len(self.asked)), moves)
        product = product * np.sqrt(shares[moves] / shares.max()) * np.sqrt(self.weights[self.asked])[:, None]
        left, values, _ = linalg.svd(product)
        bill = left**2 @ values
        prices[self.asked] = bill / bill.sum() if bill.any() else 0.0
        return prices

    def binding(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the neighbours whose cost is within `slack`, relative, of the largest."""
        forms = quadratic_forms(self, primal)
        return np.zeros(0, dtype=np.intp) if forms is None else forms.binding(slack)

    def loose(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return no query: none has a target of its own that it could fall short of."""
        return np.zeros(0, dtype=np.intp)

    def _bound(self, dual: VarianceDual | npt.ArrayLike) -> tuple[float, float]:
        """Return ``‖diag(√w) W U diag(√λ)‖_*² / Σ λ_i`` and its rounding, relative.

        Proof that it bounds the optimum: with S = Σ^(1/2), ``Σ_i λ_i (B u_i)'Σ⁻¹(B u_i)``, which is
        ``‖S⁻¹ B U diag(√λ)‖_F²``, is at most ``Σ λ_i`` where Σ is feasible, and the total variance is
        ``‖diag(√w) L S‖_F²``; multiply, and use ``‖X Y‖_* ≤ ‖X‖_F ‖Y‖_F``.
        """
        return trace_norm_bound(
            self.geometry, self._neighbour_weights(dual), np.sqrt(self.weights[self.asked])
        )

    def _neighbour_weights(self, dual: VarianceDual | npt.ArrayLike) -> Array:
        given = dual.neighbour_weights if isinstance(dual, VarianceDual) else dual
        named = {"dual weights on neighbours": given}
        checked, expected = validate.numeric(1, **named), self.geometry.moves.shape[1]
        if checked.shape != (expected,):
            raise InvalidInputError(
                f"dual must hold {expected} weights, one a pair of neighbours, got {len(checked)}"
            )
        return checked


def _weights(workload: Workload, weights: npt.ArrayLike) -> Array:
    """Return the weights (m,), a single one spread over all queries."""
    checked, count = validate.finite(weights=weights), workload.shape[0]
    if checked.ndim == 0:
        checked = validate.read_only(np.full(count, float(checked)))
    if checked.shape != (count,):
        raise InvalidInputError(f"weights must be one number or {count} numbers, got shape {checked.shape}")
    if np.any(checked < 0):
        first = int(np.flatnonzero(checked < 0)[0])
        raise InvalidInputError(f"weights must not be negative, got {checked[first]:g} at weights[{first}]")
    validate.moderate(weights=checked)
    if np.any(checked == 0) and not np.any(checked[workload.row_norms() > 0]):
        raise InvalidInputError("weights must be positive on at least one query that is not all zero")
    return checked
