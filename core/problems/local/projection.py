"""Projection onto local strategies: the ε-LDP strategy matrix nearest to any matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Never, NoReturn

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.certificate import FEASIBLE, Certificate, with_reasons
from dualmech.errors import InvalidInputError
from dualmech.geometry.local import as_epsilon
from dualmech.immutable import set_parts
from dualmech.linalg import EPS
from dualmech.problems.base import Problem
from dualmech.validate import Array


@dataclass(frozen=True, slots=True, eq=False)
class ProjectionDual:
    """Multipliers that prove a lower bound on the distance.

    Attributes
    ----------
    sums : (n,) array
        λ, of the columns' sums; any at all.
    ratios : (m, n) array, optional
        γ, of ``Q_ou ≥ z_o`` where positive and of ``Q_ou ≤ e^ε z_o``, negated, where negative; 0 by default, and
        without use where z is fixed. Any at all: in a row whose negative part outweighs the positive one by more
        than ``e^-ε`` the judge shrinks it.
    """

    sums: Array
    ratios: Array | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LocalProjection(Problem[ProjectionDual, Never]):
    """The ε-LDP strategy matrix that is nearest to a given one.

    Minimise ``½ ‖Q - R‖²`` over Q (m, n) subject to

    - ``Σ_o Q_ou = 1`` for every user type u, and
    - ``z_o ≤ Q_ou ≤ e^ε z_o`` for every output o,

    over ``z ≥ 0`` as well, or for a given `floor` z. For a fixed z each column is a problem of its own, solved by
    ``q = clip(r + λ, z, e^ε z)`` with the λ at which it sums to 1, and its dual is
    ``½ ‖q_λ - r‖² - λ (1'q_λ - 1)``. Else the dual is ``1'λ - ½ ‖D‖² - ⟨D, R⟩`` with ``D = 1 λ' + γ``, where in every
    row of γ the positive entries sum to at least ``e^ε`` times what the negative ones do.
    Raises `InvalidInputError` or `InputTypeError` for an ε that is not in (0, 100], a matrix that is not one, a
    floor that is negative, of the wrong length or that no strategy can have.

    Parameters
    ----------
    matrix : (m, n) array
        R, m outputs by n user types.
    epsilon : float
        ε, in (0, 100].
    floor : (m,) array, optional
        z, the least probability of each output, for which ``Σ z ≤ 1 ≤ e^ε Σ z``.

    Notes
    -----
    The distance may be 0: the gap is relative to the bound plus ``n / (2 m)``, half the least squared norm that a
    matrix with columns of sum 1 can have.

    Problem 4.1 and algorithm 1 of McKenna, Maity, Mazumdar and Miklau, "A workload-adaptive mechanism for linear
    queries under local differential privacy", PVLDB 13(11), 2020, for a fixed z.

    Examples
    --------
    >>> import numpy as np
    >>> import dualmech as dm
    >>> problem = dm.LocalProjection(np.eye(2), epsilon=np.log(3))
    >>> dual = dm.duals.ProjectionDual([-1 / 8, -1 / 8], [[-1 / 8, 3 / 8], [3 / 8, -1 / 8]])
    >>> judged = problem.certify([[0.75, 0.25], [0.25, 0.75]], dual)
    >>> round(judged.objective, 6), round(judged.lower_bound, 6)
    (0.125, 0.125)
    """

    matrix: Array
    epsilon: float
    floor: Array | None

    dual_type: ClassVar[Callable[..., ProjectionDual]] = ProjectionDual
    arguments: ClassVar[tuple[str, ...]] = ("matrix", "epsilon", "floor")
    optional_arguments: ClassVar[tuple[str, ...]] = ("floor",)
    objective_name = "half the squared distance"

    def __init__(self, matrix: npt.ArrayLike, epsilon: float, floor: npt.ArrayLike | None = None) -> None:
        array = validate.finite(2, matrix=matrix)
        validate.moderate(matrix=array)
        set_parts(self, matrix=array, epsilon=as_epsilon(epsilon))
        set_parts(self, floor=None if floor is None else self._as_floor(floor))

    def in_numbers(self) -> dict[str, object]:
        arguments = {"matrix": self.matrix, "epsilon": self.epsilon, "floor": self.floor}
        return {"kind": "projection"} | arguments

    @property
    def growth(self) -> float:
        """The largest ratio allowed, ``e^ε``."""
        return float(np.exp(self.epsilon))

    @property
    def scale(self) -> float:
        """What is added to the bound before the gap is taken relative to it, ``n / (2 m)``."""
        outputs, size = self.matrix.shape
        return size / (2 * outputs)

    @with_reasons
    def certify(self, primal: npt.ArrayLike, dual: ProjectionDual) -> Certificate:
        """Judge a strategy (m, n) and multipliers; neither needs to come from a solver.

        What is evaluated of a feasible strategy is the one that `feasible` makes of it, which meets all constraints.
        The violation is the largest relative excess of a ratio over e^ε, of an entry over its limits, or of a column's
        sum over 1.
        """
        bound, rounding = self._bound(dual)
        strategy = self._strategy(primal)
        violation = self._violation(strategy)
        proven = max(bound - rounding, 0.0) if np.isfinite(bound) else 0.0
        if not np.isfinite(violation):
            return Certificate.of(np.inf, proven, np.inf, rounding / (proven + self.scale), self.scale)
        point = self.feasible(strategy) if violation <= FEASIBLE else strategy
        apart = float(np.linalg.norm(point - self.matrix))
        # What rounding leaves of an excess v is mended by a share v / (1 - e^-ε) of the rows' means.
        spread = np.linalg.norm(point - point.mean(axis=1, keepdims=True)) / -np.expm1(-self.epsilon)
        departure = 8 * (sum(point.shape) + 2) * EPS * float(np.linalg.norm(point) + spread)
        missed = rounding + departure * (apart + departure) + point.size * EPS * apart**2
        resolution = missed / (proven + self.scale)
        return Certificate.of(apart**2 / 2, proven, violation, resolution, self.scale)

    def feasible(self, primal: npt.ArrayLike) -> Array:
        """Return a strategy close by that meets its constraints."""
        strategy = np.maximum(self._strategy(primal), 0.0)
        return self._project_on_floor(strategy, self.floor) if self.floor is not None else self._repair(strategy)

    def mechanism(self, primal: npt.ArrayLike) -> NoReturn:
        """Refuse: a nearest strategy serves no workload in particular; `LocalMechanism` takes it for any."""
        raise InvalidInputError(
            "a LocalProjection has no mechanism of its own; give its strategy and a workload to LocalMechanism"
        )

    def prices(self, dual: ProjectionDual) -> NoReturn:
        """Refuse: there are no queries to have a price."""
        raise InvalidInputError("a LocalProjection has no queries, so none has a price")

    def binding(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the outputs whose largest ratio is within `slack`, relative, of e^ε."""
        within, strategy = 1 - validate.nonnegative_number(slack=slack), self._strategy(primal)
        least = strategy.min(axis=1)
        return np.flatnonzero((strategy.max(axis=1) >= within * self.growth * least) & (least > 0))

    def _bound(self, dual: ProjectionDual) -> tuple[float, float]:
        """Return a bound on the objective, and an allowance for its rounding, absolute."""
        validate.instance(ProjectionDual, dual=dual)
        shape, sums = self.matrix.shape, validate.numeric(1, **{"dual sums": dual.sums})
        ratios = np.zeros(shape)
        if dual.ratios is not None and self.floor is None:
            ratios = validate.numeric(2, **{"dual ratios": dual.ratios})
        if sums.shape != (shape[1],) or ratios.shape != shape:
            raise InvalidInputError(
                f"dual must hold {shape[1]} sums and ratios of shape {shape}, got {sums.shape} and {ratios.shape}"
            )
        if not (np.all(np.isfinite(sums)) and np.all(np.isfinite(ratios))):
            return 0.0, 0.0
        if self.floor is None:
            moved = sums + self._balance(ratios)
            nearest = self.matrix + moved
        else:
            nearest = np.clip(self.matrix + sums, self.floor[:, None], self.growth * self.floor[:, None])
            moved = nearest - self.matrix
        # For a fixed z the multipliers of its limits are the rest of the move: they count through `nearest`.
        other = np.vdot(moved - sums, nearest) if self.floor is None else 0.0
        squared = float(np.square(moved).sum()) / 2
        value = squared - float(sums @ (nearest.sum(axis=0) - 1)) - float(other)
        size = float((np.abs(sums) * (1 + np.abs(nearest).sum(axis=0))).sum())
        if self.floor is None:
            size += float(np.vdot(np.abs(moved) + np.abs(sums), np.abs(nearest)))
        return value, 2 * (sum(shape) + 4) * EPS * (squared + size)

    def _balance(self, ratios: Array) -> Array:
        """Return multipliers γ with the negative entries of a row shrunk until e^ε times their sum is not too much."""
        positive, negative = np.maximum(ratios, 0.0), np.maximum(-ratios, 0.0)
        received, taken = positive.sum(axis=1), self.growth * negative.sum(axis=1)
        shrunk = np.minimum(1.0, np.divide(received, taken, out=np.ones_like(received), where=taken > 0))
        slack = 1 - 4 * ratios.shape[1] * EPS
        return np.asarray(positive - np.where(shrunk < 1, shrunk * slack, 1.0)[:, None] * negative)

    def _violation(self, strategy: Array) -> float:
        """Return the largest relative excess over a constraint; infinite where a row has no ratio."""
        if not np.all(np.isfinite(strategy)) or np.any(strategy < 0):
            return np.inf
        excess = [float(np.abs(strategy.sum(axis=0) - 1).max())]
        rows = strategy[np.any(strategy > 0, axis=1)]
        if self.floor is None:
            if np.any(rows == 0):
                return np.inf
            excess.append(float((rows.max(axis=1) / rows.min(axis=1)).max(initial=1.0)) / self.growth - 1)
        else:
            used = self.floor > 0
            if np.any(strategy[~used] > 0):
                return np.inf
            relative = strategy[used] / self.floor[used, None]
            excess += [1 - float(relative.min()), float(relative.max()) / self.growth - 1]
        # Sums and ratios are known to a few units of rounding only; less is no violation.
        return max(excess) if max(excess) > 8 * len(strategy) * EPS else 0.0

    def _project_on_floor(self, strategy: Array, floor: Array) -> Array:
        """Clip every column to its limits, then move it towards one of them until it sums to 1."""
        # No probability exceeds 1: a higher limit would only cost digits.
        least, most = floor[:, None], np.minimum(self.growth * floor, 1.0)[:, None]
        clipped = np.clip(strategy, least, most)
        missing = 1 - clipped.sum(axis=0)
        target = np.where(missing > 0, most, least)
        room = (target - clipped).sum(axis=0)
        share = np.divide(missing, room, out=np.zeros_like(room), where=room != 0)
        return np.clip(clipped + np.clip(share, 0.0, 1.0) * (target - clipped), least, most)

    def _repair(self, strategy: Array) -> Array:
        """Raise small entries to e^-ε of their row's largest, then share out what the columns lack.

        What they lack, together with a share of all reports that keeps its own ratio below e^ε, is a strategy of one
        output. It is spread over the outputs in proportion to how often they are used: sums keep the ratios.
        """
        if not strategy.any():
            strategy = np.ones_like(strategy)
        raised = np.maximum(strategy, strategy.max(axis=1, keepdims=True) / self.growth * (1 + 4 * EPS))
        totals = raised.sum(axis=0)
        scaled, missing = raised / totals.max(), 1 - totals / totals.max()
        largest = float(missing.max())
        if largest <= 4 * EPS * len(strategy):
            return np.asarray(scaled)
        share = largest / (np.expm1(self.epsilon) + largest) * (1 + 1e-12)
        use = scaled.sum(axis=1) / scaled.sum()
        return np.asarray((1 - share) * scaled + np.outer(use, share + (1 - share) * missing))

    def _strategy(self, primal: npt.ArrayLike) -> Array:
        strategy = validate.numeric(2, strategy=primal)
        if strategy.shape != self.matrix.shape:
            raise InvalidInputError(f"strategy must have shape {self.matrix.shape}, got {strategy.shape}")
        return strategy

    def _as_floor(self, floor: npt.ArrayLike) -> Array:
        vector, outputs = validate.finite(1, floor=floor), len(self.matrix)
        if vector.shape != (outputs,) or np.any(vector < 0):
            raise InvalidInputError(
                f"floor must hold {outputs} probabilities, one per output and none negative, got {len(vector)} numbers "
                f"down to {vector.min():g}"
            )
        total, spare = float(vector.sum()), 8 * outputs * EPS
        if not (total <= 1 + spare and self.growth * total >= 1 - spare):
            raise InvalidInputError(
                f"floor must have a sum between e^-ε = {1 / self.growth:g} and 1, or no strategy has it, got {total:g}"
            )
        return vector
