"""Fitness for use and total variance of marginal tables: exact at any size of the domain, by residual subspaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.certificate import Certificate
from dualmech.errors import InvalidInputError
from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.workloads.marginals import MarginalWorkload, check_marginal

if TYPE_CHECKING:
    from dualmech.mechanisms.marginal import MarginalMechanism
    from dualmech.solution import Solution

Targets = npt.ArrayLike | Mapping[Any, float]


@dataclass(frozen=True, slots=True, eq=False)
class MarginalDual:
    """Weights that prove a lower bound, ``m_S ≥ 0``, one a table; any such weights prove one."""

    table_weights: Array


@dataclass(frozen=True, slots=True, eq=False)
class MarginalFitness:
    """Fitness for use on marginal tables: each table's cells have one variance target, and the privacy cost is least.

    A marginal workload looks the same from every cell, and from every cell of a table. So the best noise is independent
    on the residual subspaces T, with a variance ``s_T = τ_T / d`` on each; its privacy cost is the same for all
    records, ``Σ_T mult_T / τ_T``, and a cell of table S has the variance ``Σ_{T ⊆ S} mult_T τ_T / cells_S²``. Minimise

    - ``α = Σ_T mult_T / τ_T`` over τ > 0 subject to ``Σ_{T ⊆ S} mult_T τ_T / cells_S² ≤ c_S`` for every table S.

    The dual is to maximise ``(Σ_T mult_T √e_T)²``, ``e_T = Σ_{S ⊇ T} m_S / cells_S²``, over ``m ≥ 0`` with
    ``Σ_S m_S c_S ≤ 1``. Both are those of `FitnessForUse`: nothing is lost, and no matrix is needed.

    Parameters
    ----------
    workload : MarginalWorkload
        Made by `dualmech.workloads.marginals`.
    targets : float, array or mapping
        Variance targets: one for all tables, one each, or a mapping of attribute names, sets of them, or numbers of
        ways to targets, such as ``{("age", "sex"): 25.0, 1: 4.0}``; a table's own comes before its ways'.

    Raises
    ------
    InvalidInputError, InputTypeError
        Another workload, targets that are not positive or miss a table, a table that is not in the workload.

    Notes
    -----
    One record added or removed. The residual basis, and that it answers marginals with independent noise: Xiao, He,
    Zhang and Kifer, "An optimal and scalable matrix mechanism for noisy marginals under convex loss functions"
    (ResidualPlanner), NeurIPS 2023; what is added here is the dual, and with it the certificate.

    Examples
    --------
    >>> import dualmech as dm
    >>> tables = dm.workloads.marginals([16, 16, 16], ways=(1, 2))
    >>> problem = dm.MarginalFitness(tables, targets=1.0)
    >>> problem.certify(*problem.at([1.0] * 3 + [1.0] * 3)).gap < 0.25
    True
    """

    workload: MarginalWorkload
    targets: Array

    def __init__(self, workload: MarginalWorkload, targets: Targets = 1.0) -> None:
        object.__setattr__(self, "workload", check_marginal(workload))
        checked = workload.per_table(targets, "targets")
        validate.moderate(targets=checked)
        object.__setattr__(self, "targets", checked)

    @property
    def sensitivities(self) -> Any:
        """N (t, tables), sparse: ``N' τ ≤ 1`` says that every table meets its target."""
        lattice, scale = self.workload.lattice, 1 / (self.workload.table_cells**2 * self.targets)
        return lattice.incidence.multiply(lattice.dimensions[:, None]).multiply(scale[None, :]).tocsr()

    def certify(self, primal: npt.ArrayLike, dual: MarginalDual | npt.ArrayLike) -> Certificate:
        """Judge noise levels τ (t,) and table weights; neither needs to come from a solver."""
        noise, weights = self._noise(primal), self._weights(dual)
        lattice = self.workload.lattice
        rounding = 8 * (len(noise) + len(weights)) * EPS
        bound = 0.0
        if np.all(np.isfinite(weights)) and np.all(weights >= 0) and np.any(weights):
            shares = weights / weights.max()
            seen = lattice.incidence @ (shares / self.workload.table_cells**2)
            bound = float(lattice.dimensions @ np.sqrt(seen)) ** 2 / float(shares @ self.targets)
        if not (np.all(np.isfinite(noise)) and np.all(noise > 0)):
            return Certificate.of(np.inf, bound, np.inf, rounding)
        ratios = self.variances(noise) / self.targets
        excess = float(ratios.max()) - 1
        violation = excess if excess > rounding else 0.0
        return Certificate.of(self.cost(noise), bound, violation, rounding)

    def cost(self, noise: Array) -> float:
        """Return the squared privacy cost ``Σ_T mult_T / τ_T``."""
        return float((self.workload.lattice.dimensions / noise).sum())

    def variances(self, noise: Array) -> Array:
        """Return the variance of each cell of every table (tables,)."""
        lattice = self.workload.lattice
        return np.asarray(lattice.incidence.T @ (lattice.dimensions * noise)) / self.workload.table_cells**2

    def at(self, weights: npt.ArrayLike) -> tuple[Array, MarginalDual]:
        """Return the noise that table weights suggest, ``τ_T ∝ 1/√e_T`` just within the targets, and the weights."""
        given = self._weights(weights)
        seen = self.workload.lattice.incidence @ (given / self.workload.table_cells**2)
        return self.feasible(1 / np.sqrt(seen)), MarginalDual(given)

    def feasible(self, primal: npt.ArrayLike) -> Array:
        """Return the noise scaled so that the tightest target is met exactly."""
        noise = self._noise(primal)
        return np.asarray(noise / (self.variances(noise) / self.targets).max())

    def spending(self, answer: Solution, cost: float) -> Solution:
        """Return an answer, from whichever layer, at a squared privacy cost of its own: privacy first, judged anew.

        If all targets are multiplied by κ, so is the best noise, and its cost divided. So the least κ that a cost
        allows is ``α / cost``, and the result is the answer to the problem with the targets κ c; the same dual weights
        bound it (Theorem 5 of the paper that `FitnessForUse` cites).

        Parameters
        ----------
        answer : Solution
            Of this problem.
        cost : float
            Squared privacy cost to spend, > 0 (ρ-zCDP is 2ρ).

        Raises
        ------
        InvalidInputError, InputTypeError
            A cost that is not positive, or so far from the answer's that targets are no longer moderate numbers.

        Examples
        --------
        >>> import dualmech as dm
        >>> from dualmech import fast
        >>> problem = dm.MarginalFitness(dm.workloads.marginals([16, 16, 16], ways=(1, 2)), targets=1.0)
        >>> spent = problem.spending(fast.solve(problem), cost=0.1)
        >>> spent.status.name, round(spent.mechanism.rho, 9), spent.problem.targets[0].round(3)
        ('CERTIFIED', 0.05, np.float64(51.789))
        """
        # Imported here so that the judge rests on no module that it does not need.
        from dualmech.solution import required, restated

        noise = self.feasible(required(answer).primal)
        factor = self.cost(noise) / validate.positive_number(cost=cost)
        problem = MarginalFitness(self.workload, factor * self.targets)
        return restated(answer, problem, factor * noise, MarginalDual(self._weights(answer.dual) / factor))

    def mechanism(self, primal: npt.ArrayLike) -> MarginalMechanism:
        """Return the mechanism with this noise on the residual subspaces."""
        return _mechanism(self.workload, self._noise(primal))

    def prices(self, dual: MarginalDual | npt.ArrayLike) -> Array:
        """Return each table's share of the privacy bill (tables,), ``m_S c_S`` over its sum."""
        bill = self._weights(dual) * self.targets
        return np.asarray(bill / bill.sum())

    def binding(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the one neighbour that stands for all: every record costs the same."""
        return np.zeros(1, dtype=np.intp)

    def loose(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the tables whose cells' variance is below their target by more than `slack`, relative."""
        return np.flatnonzero(self.variances(self._noise(primal)) / self.targets < 1 - slack)

    def _noise(self, primal: npt.ArrayLike) -> Array:
        return _levels(self.workload, primal)

    def _weights(self, dual: MarginalDual | npt.ArrayLike) -> Array:
        given = dual.table_weights if isinstance(dual, MarginalDual) else dual
        weights = validate.numeric(1, **{"dual weights": given})
        if len(weights) != len(self.targets):
            raise InvalidInputError(
                f"dual must hold {len(self.targets)} weights, one a table, got {len(weights)}"
            )
        return weights


@dataclass(frozen=True, slots=True, eq=False)
class MarginalVariance:
    """Least total variance of marginal tables at a squared privacy cost of 1, in closed form at any size of the domain.

    With the weight ``w_S`` on the variance of every cell of table S and ``g_T = Σ_{S ⊇ T} w_S / cells_S``, the total is
    ``Σ_T mult_T g_T τ_T`` and the cost ``Σ_T mult_T / τ_T``: by the Cauchy-Schwarz inequality the least total is
    ``(Σ_T mult_T √g_T)²``, at ``τ_T ∝ 1/√g_T``. The bound takes nothing but the weights, so there is no dual to choose.

    Parameters
    ----------
    workload : MarginalWorkload
        Made by `dualmech.workloads.marginals`.
    weights : float, array or mapping
        What a unit of a cell's variance counts, as the targets of `MarginalFitness`; by default 1.

    Raises
    ------
    InvalidInputError, InputTypeError
        As for `MarginalFitness`.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.MarginalVariance(dm.workloads.marginals([10] * 60, ways=(1, 2)))
    >>> problem.certify(problem.optimum).gap < 1e-10
    True
    """

    workload: MarginalWorkload
    weights: Array

    def __init__(self, workload: MarginalWorkload, weights: Targets = 1.0) -> None:
        object.__setattr__(self, "workload", check_marginal(workload))
        checked = workload.per_table(weights, "weights")
        validate.moderate(weights=checked)
        object.__setattr__(self, "weights", checked)

    @property
    def optimum(self) -> Array:
        """The best noise levels τ (t,)."""
        return self.feasible(1 / np.sqrt(self.seen))

    def certify(self, primal: npt.ArrayLike, dual: object = None) -> Certificate:
        """Judge noise levels τ (t,); the bound needs no dual."""
        noise, lattice = _levels(self.workload, primal), self.workload.lattice
        rounding = 8 * (len(noise) + len(self.weights)) * EPS
        bound = float(lattice.dimensions @ np.sqrt(self.seen)) ** 2
        if not (np.all(np.isfinite(noise)) and np.all(noise > 0)):
            return Certificate.of(np.inf, bound, np.inf, rounding)
        excess = float((lattice.dimensions / noise).sum()) - 1
        violation = excess if excess > rounding else 0.0
        return Certificate.of(float(lattice.dimensions @ (self.seen * noise)), bound, violation, rounding)

    def feasible(self, primal: npt.ArrayLike) -> Array:
        """Return the noise scaled so that the squared privacy cost is 1."""
        noise = _levels(self.workload, primal)
        return np.asarray(noise * float((self.workload.lattice.dimensions / noise).sum()))

    def mechanism(self, primal: npt.ArrayLike) -> MarginalMechanism:
        """Return the mechanism with this noise on the residual subspaces."""
        return _mechanism(self.workload, _levels(self.workload, primal))

    def prices(self, dual: object = None) -> Array:
        """Return each table's share of the least total variance (tables,)."""
        lattice, noise = self.workload.lattice, self.optimum
        shares = (
            self.weights * (lattice.incidence.T @ (lattice.dimensions * noise)) / self.workload.table_cells
        )
        return np.asarray(shares / shares.sum())

    def binding(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the one neighbour that stands for all: every record costs the same."""
        return np.zeros(1, dtype=np.intp)

    @property
    def seen(self) -> Array:
        """What a unit of each level adds to the total, ``g_T`` (t,), for one dimension of the subspace."""
        return self.workload.gram_levels(self.weights)


def _levels(workload: MarginalWorkload, primal: npt.ArrayLike) -> Array:
    noise, count = validate.numeric(1, noise=primal), len(workload.lattice.axes)
    if len(noise) != count:
        raise InvalidInputError(f"noise must have {count} levels, one a residual subspace, got {len(noise)}")
    return noise


def _mechanism(workload: MarginalWorkload, noise: Array) -> MarginalMechanism:
    # Imported here so that the judge rests on no module that it does not need.
    from dualmech.mechanisms.marginal import MarginalMechanism

    lattice = workload.lattice
    assert workload.domain is not None
    return MarginalMechanism(workload.domain, dict(zip(lattice.axes, noise.tolist(), strict=True)))
