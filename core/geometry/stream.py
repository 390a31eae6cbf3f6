"""Running sums, with or without decay: noise that two weights a cell describe, whatever their number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry import stream_forms
from dualmech.geometry.base import Judged, read_weights, shares, valid_weights
from dualmech.geometry.causal_forms import Causal
from dualmech.geometry.dense import as_dual_weights
from dualmech.geometry.dense_forms import DenseForms
from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.workloads import numbers
from dualmech.workloads.base import Workload
from dualmech.workloads.streams import StreamWorkload

ACCURACY = 1e-13  # to which the judge takes an inverse square root, relative

FLOOR = 1e-14
"""Least weight that the judge takes, over the largest: any positive weights prove a bound, and 0 has no logarithm."""

Noise = TypeVar("Noise", "StreamPoint", "CausalPoint")


@dataclass(frozen=True, slots=True, eq=False)
class StreamPoint:
    """Noise of covariance ``level · P # Q⁻¹`` on the cells, with ``P = diag(λ)`` and ``Q = W' diag(μ) W``.

    The geometric mean of the two matrices; the optimum has this form, with the optimal weights. All are positive.
    """

    neighbour_weights: Array  # λ (d,)
    query_weights: Array  # μ (d,)
    level: float

    def divided(self, divisor: float) -> StreamPoint:
        """Return noise over a positive number."""
        return replace(self, level=_over(self.level, divisor))

    def checked(self) -> StreamPoint:
        """Return it; refuse weights, or a level, that are not positive."""
        weights = {"neighbour_weights": self.neighbour_weights, "query_weights": self.query_weights}
        for name, each in weights.items():
            validate.positive(1, **{name: each})
        return replace(self, level=validate.positive_number(level=self.level))

    def forms(self, geometry: Stream) -> DenseForms | None:
        """Evaluate both sides; None for weights or a level that are not positive."""
        cells, sums = self.neighbour_weights, self.query_weights
        weights = np.concatenate([cells, sums, [self.level]])
        if not (np.all(np.isfinite(weights)) and np.all(weights > 0)):
            return None
        with np.errstate(all="ignore"):
            cells_unit, sums_unit = cells.max(), sums.max()
            left, right, error = geometry.diagonals(cells / cells_unit, sums / sums_unit)
            # Of weights in other units by a and b the geometric mean is √(a / b) times as large.
            level = self.level * np.sqrt(cells_unit / sums_unit)
            costs, variances = left * cells_unit / cells / level, right * sums_unit / sums * level
        if not (np.all(np.isfinite(costs)) and np.all(np.isfinite(variances))):
            return None
        return DenseForms(costs, variances, error * costs, error * variances)

    def covariance(self, sums: Array) -> Array:
        """Return the covariance on the cells (d, d), of the sums as a matrix."""
        root = np.sqrt(self.query_weights)[:, None] * sums * np.sqrt(self.neighbour_weights)
        _, sizes, right = np.linalg.svd(root)
        half = (right.T / np.sqrt(sizes)) * np.sqrt(self.neighbour_weights)[:, None]
        return np.asarray(self.level * half @ half.T)


@dataclass(frozen=True, slots=True, eq=False)
class CausalPoint:
    """Noise of variance `level` on the answers of a causal strategy: unit noise as it was evaluated, once."""

    strategy: Causal
    unit: DenseForms
    level: float

    def divided(self, divisor: float) -> CausalPoint:
        """Return noise over a positive number."""
        return replace(self, level=_over(self.level, divisor))

    def checked(self) -> CausalPoint:
        """Return it; refuse a level that is not positive."""
        return replace(self, level=validate.positive_number(level=self.level))

    def forms(self, geometry: Stream) -> DenseForms | None:
        """Evaluate both sides; None for a level that is not positive."""
        if not 0 < self.level < np.inf:
            return None
        unit = self.unit
        with np.errstate(all="ignore"):
            costs, variances = unit.profile / self.level, unit.variances * self.level
            rounding = unit.profile_rounding / self.level, unit.variance_rounding * self.level
        held = np.isfinite(costs).all() and np.isfinite(variances).all()
        return DenseForms(costs, variances, *rounding) if held else None

    def covariance(self, sums: Array) -> Array:
        """Return the covariance on the cells (d, d); refused of a strategy without a matrix."""
        inverse = np.linalg.inv(self.strategy.matrix())
        return np.asarray(self.level * inverse @ inverse.T)


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Running sums: both sides of a certificate from diagonals of inverse square roots of tridiagonal matrices.

    `dualmech.geometry.stream_forms` has the formulas, and what the sums of poles that stand for the square root are off
    by. Rounding: every number of the recurrences is positive, an error of one is not enlarged by the next, and weights
    that are off by a share change no cost and no variance by more, since the geometric mean is monotone.
    """

    workload: StreamWorkload

    name: ClassVar[str] = "stream"

    @property
    def decay(self) -> float | Array:
        """How much of each sum goes into the next: one number, or one per step."""
        return self.workload.decay

    @property
    def sums(self) -> Array:
        """The sums written out (d, d); refused where they are too large."""
        return self.workload.matrix

    def numbers(self, given: Any, name: str) -> Array:
        """Return one positive number per sum, targets or weights, from what was given."""
        return numbers.by_query(self.workload, given, name, positive=True)

    def on_sums(self, given: Array) -> Array:
        """Return the numbers of the sums from those of the items: they are these."""
        return given

    @property
    def rank(self) -> int:
        """Size of the largest matrix that is decomposed: none is."""
        return 1

    @property
    def free_queries(self) -> npt.NDArray[np.intp]:
        """Indices of the sums that no neighbour changes: none."""
        return np.zeros(0, dtype=np.intp)

    @property
    def rounding(self) -> float:
        """Allowance for the rounding of any cost or variance, relative."""
        return 32 * (self.workload.shape[1] + 8) * EPS

    def point(self, primal: Any) -> StreamPoint | CausalPoint:
        """Return a primal point of the right shapes, its entries unseen."""
        count, found = self.workload.shape[1], []
        if isinstance(primal, CausalPoint) and primal.strategy.steps == count:
            return primal
        if not isinstance(primal, StreamPoint):
            raise InputTypeError(f"primal must be a dualmech.StreamPoint, got {type(primal).__name__}")
        for name in ("neighbour_weights", "query_weights"):
            given = validate.numeric(1, **{name: getattr(primal, name)})
            if len(given) != count:
                raise InvalidInputError(f"{name} must be {count}, one per cell, got {len(given)}")
            found.append(given)
        return StreamPoint(found[0], found[1], float(validate.numeric(0, level=primal.level)))

    def divide(self, point: Noise, divisor: float) -> Noise:
        """Return noise over a positive number."""
        return point.divided(divisor)

    def forms(self, point: StreamPoint | CausalPoint) -> DenseForms | None:
        """Evaluate both sides; None for noise that is no covariance."""
        return point.forms(self)

    def largest_ratio(self, point: StreamPoint | CausalPoint, targets: Array) -> float:
        """Return the largest ratio of a variance to its target; inf for noise that is no covariance."""
        forms = self.forms(point)
        return np.inf if forms is None else forms.excess(targets)[0]

    def weights(self, dual: Any, queries: bool = True) -> tuple[Array, Array]:
        """Return weights on cells and, if asked for, on sums (d,), their entries unseen."""
        count = self.workload.shape[1]
        if queries:
            return as_dual_weights(dual, count, count)
        given = getattr(dual, "neighbour_weights", dual)
        return read_weights(count, given, "dual weights on neighbours", "cell"), np.zeros(0)

    def bound(self, neighbour_weights: Array, query_weights: Array, targets: Array) -> Judged:
        """Return ``‖diag(√μ) W diag(√λ)‖_*² / (Σ λ_i Σ μ_j c_j)`` and its rounding, relative; 0 if nothing is proven.

        Weights of less than `FLOOR` of the largest are raised to that: other weights, which prove a bound as well.
        """
        if not valid_weights(query_weights):
            return 0.0, 0.0
        sums = np.maximum(query_weights / query_weights.max(), FLOOR)
        value, rounding = self.total_bound(neighbour_weights, sums)
        return float(value / (sums @ targets)), rounding + (len(sums) + 2) * EPS

    def total_bound(self, neighbour_weights: Array, weights: Array) -> Judged:
        """Return ``‖diag(√w) W diag(√λ)‖_*² / Σ λ_i`` and its rounding, relative; 0 where nothing is proven."""
        if not valid_weights(neighbour_weights):
            return 0.0, 0.0
        cells, unit = np.maximum(neighbour_weights / neighbour_weights.max(), FLOOR), weights.max()
        found, _, error = self.diagonals(cells, weights / unit, both=False)
        return float(found.sum() ** 2 * unit / cells.sum()), 2 * error

    def per_query(self, workload: Workload, numbers: Array) -> Array:
        """Return one number per sum: they are that already."""
        return numbers

    def item_words(self, index: int) -> str:
        """Return what a sum is called."""
        return f"query 'cells 0..{index}'" if index else "query 'cell 0'"

    def neighbour_words(self, index: int) -> str:
        """Return where neighbours differ."""
        return f"neighbours in cell {index}"

    def prices(self, query_weights: Array, targets: Array) -> Array:
        """Return each sum's share of ``Σ μ_j c_j`` (d,)."""
        return shares(query_weights * targets)

    def total_prices(self, neighbour_weights: Array, weights: Array) -> Array:
        """Return each sum's share of the trace norm (d,), the diagonal of ``T'^-½``."""
        if not valid_weights(neighbour_weights):
            return np.zeros(len(weights))
        cells = np.maximum(neighbour_weights / neighbour_weights.max(), FLOOR)
        return shares(self.diagonals(cells, weights / weights.max())[1])

    def statement(self) -> dict[str, Any]:
        """Return nothing: the workload says all."""
        return {}

    def in_numbers(self, workload: Workload, kind: str, numbers: Array) -> dict[str, Any]:
        """Return the matrix of the sums, where it can be written out, and the number of each."""
        return {"kind": kind, "numbers": numbers, "workload": workload.dense(), "neighbours": None}

    def on_rows(self, point: StreamPoint | CausalPoint) -> tuple[Array, Array]:
        """Return rows that get noise, the cells, and its covariance; refused where a matrix would be too large."""
        return np.eye(self.workload.shape[1]), self.covariance(point)

    def stored(self, point: Any) -> Any:
        """Return a point as a file holds it: as it is."""
        return point

    def restored(self, point: Any) -> Any:
        """Return a point from what a file holds."""
        return point

    def covariance(self, point: StreamPoint | CausalPoint) -> Array:
        """Return the noise's covariance on the cells (d, d), as a matrix; refused where the workload's would be."""
        return point.covariance(self.sums)

    def diagonals(self, cells: Array, sums: Array, both: bool = True) -> tuple[Array, Array, float]:
        """Return the diagonals of ``T^-½`` and, if asked for, of ``T'^-½``, and what they may be off by, relative."""
        decay = self.decay
        matrix = stream_forms.Bidiagonal.of(cells, sums, decay)
        poles = stream_forms.poles_of(matrix, cells, sums, decay, ACCURACY)
        left = stream_forms.inverse_root_diagonal(matrix, poles)
        right = stream_forms.inverse_root_diagonal(matrix.reversed, poles)[::-1] if both else left[:0]
        return left, right, poles.error + self.rounding


def _over(level: float, divisor: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(level) / divisor)
