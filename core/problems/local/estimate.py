"""Non-negative estimates: the possible data nearest to noisy answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Never, NoReturn

import numpy as np
import numpy.typing as npt

from dualmech import linalg, validate
from dualmech.certificate import FEASIBLE, Certificate, with_reasons
from dualmech.errors import InvalidInputError
from dualmech.immutable import set_parts
from dualmech.linalg import EPS
from dualmech.problems.base import Problem
from dualmech.validate import Array
from dualmech.verified import exactly_independent
from dualmech.workloads.base import Workload, check_asks, check_workload

TINY = 1e-200
"""Entries of ν below this, relative to the largest, are left out."""


@dataclass(frozen=True, slots=True, eq=False)
class EstimateDual:
    """What proves a lower bound on the distance.

    Attributes
    ----------
    residual : (p,) array
        ν, any at all; at the optimum ``W x - a``.
    """

    residual: Array


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NonnegativeEstimate(Problem[EstimateDual, Never]):
    """The non-negative data whose answers are nearest to given ones, workload non-negative least squares.

    Minimise ``½ ‖W x - a‖²`` over ``x ≥ 0``, with ``1'x = N`` where the total is known. The answers ``W x`` are then
    consistent, and nearer to the truth than a wherever the truth is such an x (a projection onto a convex set).

    The dual: by Cauchy's inequality ``‖W x - a‖ ≥ (ν'W x - ν'a) / ‖ν‖`` for every ν, and ``ν'W x ≥ N min_u (W'ν)_u``.
    Without a total the proof needs ``ν'W x ≥ 0``, so ``W'ν ≥ 0``: the judge adds the queries' sum, or what is nearest
    to a combination of queries that is 1 in every cell, until it is.
    Raises `InvalidInputError` or `InputTypeError` for answers of the wrong number, NaN or infinity; a negative
    total; an all-zero workload.

    Parameters
    ----------
    workload : Workload
        W, p queries over n cells.
    answers : (p,) array
        a, unbiased estimates with noise, for example ``LocalMechanism.estimate``.
    total : float, optional
        N ≥ 0, the number of users; with none, the one estimate is 0.

    Notes
    -----
    The distance may be 0: the gap is relative to the bound plus half of ``‖a‖² + ‖W 1 N / n‖²`` (plus 1 where this is
    0). Where no combination of queries is positive in a cell, as when the columns of two cells cancel, its entry of
    ``W'ν`` must be 0: such columns are compared in exact fractions, up to 2^15 multiplications; beyond, they leave no
    bound.

    Appendix A of McKenna, Maity, Mazumdar and Miklau, "A workload-adaptive mechanism for linear queries under local
    differential privacy", PVLDB 13(11), 2020, without the total.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.NonnegativeEstimate(dm.workloads.identity(3), [5.0, 4.0, -3.0])
    >>> judged = problem.certify([5, 4, 0], dm.duals.EstimateDual([0, 0, 3]))
    >>> judged.objective, round(judged.lower_bound, 12)
    (4.5, 4.5)
    >>> problem = dm.NonnegativeEstimate(dm.workloads.identity(3), [5.0, 4.0, -3.0], total=6)
    >>> problem.certify([3.5, 2.5, 0], dm.duals.EstimateDual([-1.5, -1.5, 3])).objective
    6.75
    """

    workload: Workload
    answers: Array
    total: float | None

    dual_type: ClassVar[Callable[..., EstimateDual]] = EstimateDual
    arguments: ClassVar[tuple[str, ...]] = ("workload", "answers", "total")
    optional_arguments: ClassVar[tuple[str, ...]] = ("total",)
    objective_name = "half the squared distance"

    def __init__(self, workload: Workload, answers: npt.ArrayLike, total: float | None = None) -> None:
        check_workload(workload)
        check_asks(workload)
        vector = validate.finite(1, answers=answers)
        if vector.shape != (workload.shape[0],):
            raise InvalidInputError(f"answers must have {workload.shape[0]} entries, one per query, got {len(vector)}")
        validate.moderate(answers=vector)
        set_parts(
            self,
            workload=workload,
            answers=vector,
            total=None if total is None else validate.nonnegative_number(total=total),
        )

    def in_numbers(self) -> dict[str, object]:
        arguments = {"workload": self.workload.dense(), "answers": self.answers, "total": self.total}
        return {"kind": "estimate", **arguments}

    @property
    def scale(self) -> float:
        """What is added to the bound before the gap is taken relative to it."""
        cells, total = self.workload.shape[1], 0.0 if self.total is None else self.total
        even = np.asarray(self.workload.matrix @ np.full(cells, total / cells))
        return float(self.answers @ self.answers + even @ even) / 2 or 1.0

    @with_reasons
    @np.errstate(over="ignore", invalid="ignore")
    def certify(self, primal: npt.ArrayLike, dual: EstimateDual) -> Certificate:
        """Judge an estimate (n,) and multipliers; neither needs to come from a solver.

        What is evaluated of a feasible estimate is the one that `feasible` makes of it, which meets all constraints:
        a negative entry of 1e-9 can lower the distance by any amount. The violation is the most negative entry, or
        what the sum misses the total by, relative to the total (else to the sum of magnitudes); infinite where the
        total is 0 and an entry is not.
        """
        proven, data = self._bound(dual), self._data(primal)
        if not np.all(np.isfinite(data)):
            return Certificate.of(np.inf, proven, np.inf, 0.0, self.scale)
        violation = self._violation(data)
        point = self.feasible(data) if violation <= FEASIBLE else data
        residual = np.asarray(self.workload.matrix @ point) - self.answers
        objective = float(residual @ residual) / 2
        magnitude = np.asarray(abs(self.workload.matrix) @ np.abs(point)) + np.abs(self.answers)
        missed = 2 * (len(data) + len(residual) + 4) * EPS * magnitude
        rounding = float(missed @ (np.abs(residual) + missed)) / (proven + self.scale)
        return Certificate.of(objective, proven, violation, rounding + 8 * EPS, self.scale)

    def feasible(self, primal: npt.ArrayLike) -> Array:
        """Return the estimate without its negative entries, scaled to the total if that is known."""
        data = np.maximum(self._data(primal), 0.0)
        if self.total is None:
            return data
        return data * (self.total / data.sum()) if data.any() else np.full(len(data), self.total / len(data))

    def mechanism(self, primal: npt.ArrayLike) -> NoReturn:
        """Refuse: an estimate is made of answers that are already released."""
        raise InvalidInputError("a NonnegativeEstimate has no mechanism: it uses answers already released")

    def prices(self, dual: EstimateDual) -> NoReturn:
        """Refuse: an estimate has no privacy cost."""
        raise InvalidInputError("a NonnegativeEstimate has no prices: it costs no privacy")

    def binding(self, primal: npt.ArrayLike, slack: float) -> npt.NDArray[np.intp]:
        """Return the cells whose estimate is at most `slack` of the sum of all: those held at 0."""
        share, data = validate.nonnegative_number(slack=slack), self._data(primal)
        return np.flatnonzero(data <= share * np.abs(data).sum())

    def _bound(self, dual: EstimateDual) -> float:
        """Return ``(N min_u (W'ν)_u - ν'a)² / (2 ‖ν‖²)``, rounded down, with N = 0 and ``W'ν ≥ 0`` without a total."""
        held = validate.instance(EstimateDual, dual=dual)
        residual = validate.numeric(1, **{"dual residual": held.residual})
        if residual.shape != self.answers.shape:
            raise InvalidInputError(f"dual must hold {len(self.answers)} residuals, one per query, got {len(residual)}")
        if not np.all(np.isfinite(residual)) or not residual.any():
            return 0.0
        direction = residual / np.abs(residual).max()
        # No product with the data may underflow: a slope of 0 is then one of no terms.
        direction = np.where(np.abs(direction) > TINY, direction, 0.0) / np.linalg.norm(direction)
        least, departure = 0.0, 0.0
        if self.total is None:
            direction, departure = self._nearest_feasible(direction)
        else:
            slopes, rounding = self._slopes(direction)
            least = self.total * float((slopes - rounding).min())
        length = float(np.linalg.norm(direction)) * (1 + 2 * len(direction) * EPS)
        magnitude = float(np.abs(direction) @ np.abs(self.answers)) + abs(least)
        value = least - float(direction @ self.answers) - 2 * (len(direction) + 2) * EPS * magnitude
        value -= departure * float(np.linalg.norm(self.answers))
        return (max(value, 0.0) / length) ** 2 / 2

    def _nearest_feasible(self, direction: Array) -> tuple[Array, float]:
        """Return a ν, and how far from it at most there is one, no longer, with ``W'ν ≥ 0``; infinity if none is found.

        Cells that no combination of queries lifts, as where columns cancel, must have a slope of exactly 0: that of
        the projection of ν off their columns C, which is ``‖C⁺'C'ν‖`` away, with C whatever of them are independent.
        """
        slopes, rounding = self._slopes(direction)
        if np.all(slopes >= rounding):
            return direction, 0.0
        upwards, gain, margin = self._lift()
        rising = gain > margin
        # Twice the rounding, since the sum has a little more of it than ν alone.
        short = np.maximum(2 * rounding - slopes, 0.0)[rising]
        raised = direction + upwards * float((short / (gain - margin)[rising]).max(initial=0.0))
        nearest = min(
            ((self._apart(candidate), candidate) for candidate in (raised, direction)), key=lambda pair: pair[0]
        )
        return (nearest[1], nearest[0]) if nearest[0] < 1 else (direction, np.inf)

    def _apart(self, direction: Array) -> float:
        """Return how far from ν at most there is one, no longer, with ``W'ν ≥ 0``."""
        norms = np.sqrt(np.asarray((abs(self.workload.matrix) ** 2).sum(axis=0)).ravel())
        slopes, rounding = self._slopes(direction)
        apart, still, low = 0.0, np.zeros(len(slopes), dtype=bool), slopes < rounding
        while np.any(low & ~still):
            still |= low
            apart = self._to_complement(direction, still)
            low = slopes - rounding < apart * norms
        return apart

    def _to_complement(self, direction: Array, cells: npt.NDArray[np.bool_]) -> float:
        """Return how far at most the projection of ν is that the columns of some cells are orthogonal to."""
        columns = linalg.to_dense(self.workload.matrix[:, cells])
        chosen = exactly_independent(columns)
        if chosen is None:
            return np.inf
        basis = columns[:, chosen] / np.linalg.norm(columns[:, chosen], axis=0)
        least = linalg.singular_values(basis)[-1] - 8 * sum(basis.shape) * basis.shape[1] * EPS
        seen = np.abs(basis.T @ direction) + 4 * len(direction) * EPS * np.linalg.norm(direction)
        return float(np.linalg.norm(seen) / least * (1 + 8 * len(seen) * EPS)) if least > 0 else np.inf

    def _lift(self) -> tuple[Array, Array, Array]:
        """Return a combination of queries, its value in each cell, as positive as can be, and the rounding of these."""
        ones = np.ones(len(self.answers))
        gain, margin = self._slopes(ones)
        if np.all((gain > margin) | (margin == 0)):
            return ones, gain, margin
        wanted = np.ones(self.workload.shape[1])
        upwards: Array = np.linalg.lstsq(self.workload.dense().T, wanted, rcond=None)[0].astype(np.float64)
        return (upwards, *self._slopes(upwards))

    def _slopes(self, direction: Array) -> tuple[Array, Array]:
        """Return ``W'ν`` and an allowance for its rounding."""
        matrix = self.workload.matrix
        magnitude = np.asarray(abs(matrix).T @ np.abs(direction))
        return np.asarray(matrix.T @ direction), 2 * (len(direction) + 2) * EPS * magnitude

    def _violation(self, data: Array) -> float:
        reference = float(np.abs(data).sum()) if self.total is None else self.total
        if reference == 0:
            return float("inf") if np.any(data) else 0.0
        excess = float(np.maximum(-data, 0.0).max()) / reference
        if self.total is not None:
            missed = abs(float(data.sum()) - self.total) / self.total
            excess = max(excess, missed if missed > 4 * len(data) * EPS else 0.0)
        return excess

    def _data(self, primal: npt.ArrayLike) -> Array:
        data = validate.numeric(1, estimate=primal)
        if data.shape != (self.workload.shape[1],):
            raise InvalidInputError(
                f"estimate must have {self.workload.shape[1]} entries, one per cell, got {len(data)}"
            )
        return data
