"""Running sums, with or without decay: noise with two parameters for each cell, for any number of cells."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from dualmech import mechanisms, validate
from dualmech.errors import GeometryError, InputTypeError, InvalidInputError
from dualmech.geometry.base import EvaluatedForms, Geometry, Index, Judged, Offer, Request
from dualmech.geometry.causal import Causal, strategy_parts, unit_forms
from dualmech.geometry.dense import Dense, as_dual_weights, divided_covariance
from dualmech.geometry.moves import LARGEST_DENSE
from dualmech.geometry.tridiagonal import Bidiagonal, inverse_root_diagonals, poles_of, square_root
from dualmech.geometry.weights import shares, valid_weights
from dualmech.geometry.words import Ranked
from dualmech.immutable import freeze
from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.verified import two_product
from dualmech.workloads import numbers
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload
from dualmech.workloads.streams import RangeWorkload, StreamWorkload
from dualmech.workloads.unions import UnionWorkload

if TYPE_CHECKING:
    from dualmech.mechanisms.privacy import GaussianPrivacy

NUM_ITERATIONS, UNEQUAL_FACTOR = 16.0, {"targets": 3.0, "weights": 1.5}
"""Iterations for equal numbers, and the factor for unequal numbers, or for targets of decayed sums."""

ITERATION_OPERATIONS, CELL_OPERATIONS = {"targets": 6e6, "weights": 4.5e6}, {"targets": 3.3e4, "weights": 2.2e4}
"""Operations of an iteration, and of each cell in it, as operations of a matrix product of the same time."""

INVERSE_ROOT_TOL = 1e-13  # relative error of inverse square roots in certificates

FLOOR = 1e-26
"""Minimum weight in certificates, relative to the largest: any positive weights give a bound."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamPoint:
    """Noise of covariance ``level · P # Q⁻¹`` on the cells, with ``P = diag(λ)`` and ``Q = W' diag(μ) W``.

    The geometric mean of the two matrices; the optimum has this form, with the optimal weights. All are positive.
    """

    neighbour_weights: Array  # λ (d,)
    query_weights: Array  # μ (d,)
    level: float

    def divided(self, divisor: float) -> StreamPoint:
        """Divide the noise by a positive number."""
        return replace(self, level=_over(self.level, divisor))

    def checked(self) -> StreamPoint:
        """Return this point; refuse weights or a level that are not positive."""
        weights = {"neighbour_weights": self.neighbour_weights, "query_weights": self.query_weights}
        for name, value in weights.items():
            validate.positive(1, **{name: value})
        return replace(self, level=validate.positive_number(level=self.level))

    def forms(self, geometry: Stream) -> EvaluatedForms | None:
        """Evaluate costs and variances; None for weights or a level that are not positive."""
        cells, sums = self.neighbour_weights, self.query_weights
        weights = np.concatenate([cells, sums, [self.level]])
        if not (np.all(np.isfinite(weights)) and np.all(weights > 0)):
            return None
        with np.errstate(all="ignore"):
            cells_unit, sums_unit = cells.max(), sums.max()
            left, right, error = geometry.diagonals(cells / cells_unit, sums / sums_unit)
            # Scaling the weights by a and b scales the geometric mean by √(a / b).
            level = self.level * np.sqrt(cells_unit / sums_unit)
            costs, variances = left * cells_unit / cells / level, right * sums_unit / sums * level
        if not (np.all(np.isfinite(costs)) and np.all(np.isfinite(variances))):
            return None
        return EvaluatedForms(costs, variances, error * costs, error * variances)

    def covariance(self, geometry: Stream) -> Array:
        """Return the covariance on the cells (d, d), computed without cancellation."""
        cells, sums, decay = self.neighbour_weights, self.query_weights, geometry.decay
        level = self.level * np.sqrt(cells.max() / sums.max())
        cells, sums = cells / cells.max(), sums / sums.max()
        matrix = Bidiagonal.of(cells, sums, decay)
        root = np.sqrt(level * cells)
        return root[:, None] * square_root(matrix, poles_of(matrix, cells, sums, decay, INVERSE_ROOT_TOL)) * root


@dataclass(frozen=True, slots=True, eq=False)
class CausalPoint:
    """Noise of variance `level` on the answers of a causal strategy."""

    strategy: Causal
    level: float

    def divided(self, divisor: float) -> CausalPoint:
        """Divide the noise by a positive number."""
        return replace(self, level=_over(self.level, divisor))

    def checked(self) -> CausalPoint:
        return replace(self, level=validate.positive_number(level=self.level))

    def forms(self, geometry: Stream) -> EvaluatedForms | None:
        """Evaluate costs and variances; None for a level that is not positive, other sums, or overflow."""
        decay, unit = geometry.decay, None
        if isinstance(decay, float) and 0 < self.level < np.inf:
            unit = unit_forms(self.strategy, decay)
        if unit is None:
            return None
        with np.errstate(all="ignore"):
            costs, variances = unit.profile / self.level, unit.variances * self.level
            rounding = unit.profile_rounding / self.level, unit.variance_rounding * self.level
        finite = np.isfinite(costs).all() and np.isfinite(variances).all()
        return EvaluatedForms(costs, variances, *rounding) if finite else None

    def covariance(self, geometry: Stream) -> Array:
        """Return the covariance on the cells (d, d); refused for a strategy without a matrix."""
        inverse = np.linalg.inv(self.strategy.matrix())
        return np.asarray(self.level * inverse @ inverse.T)

    def file_parts(self) -> dict[str, object]:
        """Return the fields of a file, by name."""
        return {"level": self.level, **strategy_parts(self.strategy)}


AnyNoise: TypeAlias = StreamPoint | CausalPoint | Array
"""Noise on a stream: two weights for each cell, a causal strategy, or a covariance on the cells (d, d)."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream(Geometry[AnyNoise, Array, Array, Array]):
    """Running sums: certificates from diagonals of inverse square roots of tridiagonal matrices.

    The formulas, and the error of square roots as sums over poles, are in `dualmech.geometry.tridiagonal`. Rounding:
    all numbers in the recurrences are positive, so that relative errors do not grow, and relative errors of weights
    change costs and variances by at most as much, since the geometric mean is monotone.
    """

    workload: StreamWorkload

    name: ClassVar[str] = "stream"
    takes: ClassVar[str] = "workloads made by dualmech.workloads.prefix and decayed_sums, and all_range"
    takes_relations: ClassVar[bool] = False

    @classmethod
    def offer(cls, request: Request) -> Offer | None:
        workload, name = stream_in(request.workload), request.name
        if workload is None:
            return None
        stream = stream_of(workload)
        try:
            values = stream.numbers(request.workload, request.values, name)
        except InvalidInputError as error:
            if isinstance(workload, StreamWorkload) and workload.shape[0] > LARGEST_DENSE:
                raise
            raise GeometryError(str(error)) from None  # the dense geometry may support them
        return Offer(stream.operations(values, name), lambda: (stream, values))

    @property
    def matrix(self) -> Dense:
        """The sums as a dense matrix with noise on the cells; refused beyond `LARGEST_DENSE` steps."""
        self.check_written()
        return _dense(self.workload)

    def check_written(self) -> None:
        """Refuse dense matrices for too many steps."""
        if (count := self.workload.shape[1]) > LARGEST_DENSE:
            raise InvalidInputError(
                f"noise on {count} steps is too large for a matrix (limit {LARGEST_DENSE} steps); "
                "solving, judging, variances and drawing on geometry='stream' need no matrix"
            )

    def operations(self, values: Array, name: str) -> float:
        """Return an estimate of a solver's operations, as measured."""
        equal = np.ptp(values) == 0 and (name == "weights" or np.min(self.decay) == 1)
        steps = NUM_ITERATIONS if equal else NUM_ITERATIONS * UNEQUAL_FACTOR[name]
        return float(steps * (ITERATION_OPERATIONS[name] + CELL_OPERATIONS[name] * len(self.on_sums(values))))

    @property
    def decay(self) -> float | Array:
        """The factor of each sum in the next one: one number, or one per step."""
        return self.workload.decay

    @property
    def exact_decays(self) -> tuple[Array, Array]:
        """The decays as sums of two doubles (d - 1,)."""
        return np.full(self.workload.shape[1] - 1, self.decay), np.zeros(self.workload.shape[1] - 1)

    def numbers(self, workload: Workload, values: object, name: str) -> Array:
        return numbers.by_query(self.workload, self._own(workload, values, name), name, positive=True)

    def _own(self, workload: Workload, values: object, name: str) -> object:
        """Return the numbers of the sums; for a table by its name, one number."""
        stream = stream_in(workload)
        if stream is None or not self.workload.same_as(stream):
            raise InvalidInputError("geometry must be of this workload")
        if stream is workload:
            return values
        array = numbers.of_tables(workload, workload, values, name)
        return numbers.by_query(workload, values, name) if array is None else float(array[0])

    def on_sums(self, values: Array) -> Array:
        return values

    @property
    def rank(self) -> int:
        return 1

    @property
    def free_queries(self) -> npt.NDArray[np.intp]:
        """Indices of insensitive queries: none."""
        return np.zeros(0, dtype=np.intp)

    @property
    def rounding(self) -> float:
        """Relative error bound on each cost and variance."""
        return 32 * (self.workload.shape[1] + 8) * EPS

    def point(self, primal: object) -> AnyNoise:
        """Return a primal point with checked shapes and any entries; also a covariance on the cells."""
        count, parts = self.workload.shape[1], []
        if isinstance(primal, CausalPoint) and primal.strategy.steps == count:
            return primal
        if isinstance(primal, np.ndarray | list | tuple):
            return self.matrix.point(primal)
        if not isinstance(primal, StreamPoint):
            raise InputTypeError(
                f"primal must be a StreamPoint of dualmech or a covariance on the cells, got {type(primal).__name__}"
            )
        for name in ("neighbour_weights", "query_weights"):
            array = validate.numeric(1, **{name: getattr(primal, name)})
            if len(array) != count:
                raise InvalidInputError(f"{name} must be {count}, one per cell, got {len(array)}")
            parts.append(array)
        return StreamPoint(parts[0], parts[1], float(validate.numeric(0, level=primal.level)))

    def checked(self, proposal: object) -> AnyNoise:
        if isinstance(proposal, np.ndarray | list | tuple):
            return self.matrix.checked(proposal)
        point = self.point(proposal)
        return point if isinstance(point, np.ndarray) else point.checked()

    def restored(self, point: Any) -> object:
        """Return the point of a causal mechanism, as read from a file, and any other point unchanged."""
        return point.point_on(self) if hasattr(point, "point_on") else point

    def divide(self, point: AnyNoise, divisor: float) -> AnyNoise:
        if isinstance(point, np.ndarray):
            return divided_covariance(point, divisor)
        return point.divided(divisor)

    def mechanism(self, point: AnyNoise) -> GaussianPrivacy:
        if isinstance(point, np.ndarray):
            return self.matrix.mechanism(point)
        if isinstance(point, CausalPoint):
            return mechanisms.stream.CausalMechanism(point.strategy, point.level)
        return mechanisms.stream.StreamMechanism(
            self.workload, point.neighbour_weights, point.query_weights, point.level
        )

    def forms(self, point: AnyNoise) -> EvaluatedForms | None:
        return self.matrix.forms(point) if isinstance(point, np.ndarray) else point.forms(self)

    def weights(self, dual: object, queries: bool = True) -> tuple[Array, Array]:
        count = self.workload.shape[1]
        return as_dual_weights(dual, count, count if queries else None)

    def bound(self, neighbour_weights: Array, query_weights: Array, targets: Array) -> Judged:
        """Return ``‖diag(√μ) W diag(√λ)‖_*² / (Σ λ_i Σ μ_j c_j)`` and a relative error bound; 0 for invalid weights.

        Weights below `FLOOR` times the largest are raised to that, which is also valid.
        """
        if not valid_weights(query_weights):
            return 0.0, 0.0
        sums = np.maximum(query_weights / query_weights.max(), FLOOR)
        value, rounding = self.total_bound(neighbour_weights, sums)
        return float(value / (sums @ targets)), rounding + (len(sums) + 2) * EPS

    def total_bound(self, neighbour_weights: Array, weights: Array) -> Judged:
        """Return ``‖diag(√w) W diag(√λ)‖_*² / Σ λ_i`` and a relative error bound; 0 for invalid weights."""
        if not valid_weights(neighbour_weights):
            return 0.0, 0.0
        cells, unit = np.maximum(neighbour_weights / neighbour_weights.max(), FLOOR), weights.max()
        diagonal, _, error = self.diagonals(cells, weights / unit, both=False)
        return float(diagonal.sum() ** 2 * unit / cells.sum()), 2 * error

    def per_query(self, workload: Workload, numbers: Array) -> Array:
        return numbers

    def item_words(self, index: int) -> str:
        return f"query 'cells 0..{index}'" if index else "query 'cell 0'"

    def neighbour_words(self, index: int) -> str:
        return f"neighbours in cell {index}"

    def total_prices(self, neighbour_weights: Array, weights: Array) -> Array:
        """Return each sum's share of the trace norm (d,), the diagonal of ``T'^-½``."""
        if not valid_weights(neighbour_weights):
            return np.zeros(len(weights))
        cells = np.maximum(neighbour_weights / neighbour_weights.max(), FLOOR)
        return shares(self.diagonals(cells, weights / weights.max())[1])

    def in_numbers(self, workload: Workload, kind: str, numbers: Array) -> dict[str, object]:
        return {"kind": kind, "numbers": numbers, "workload": workload.dense(), "neighbours": None}

    def on_rows(self, point: AnyNoise) -> tuple[Array, Array]:
        """Return the cells, as rows, and the covariance of their noise; refused beyond `LARGEST_DENSE` steps."""
        return np.eye(self.workload.shape[1]), self.covariance(point)

    def covariance(self, point: AnyNoise) -> Array:
        """Return the covariance of the noise on the cells (d, d); refused beyond `LARGEST_DENSE` steps."""
        self.check_written()
        return point if isinstance(point, np.ndarray) else point.covariance(self)

    def diagonals(self, cells: Array, sums: Array, both: bool = True) -> tuple[Array, Array, float]:
        """Return the diagonals of ``T^-½`` and, with `both`, of ``T'^-½``, and a relative error bound."""
        decay = self.decay
        matrix = Bidiagonal.of(cells, sums, decay)
        poles = poles_of(matrix, cells, sums, decay, INVERSE_ROOT_TOL)
        return *inverse_root_diagonals(matrix, poles, both), poles.error + self.rounding


@functools.lru_cache(maxsize=2)
def _dense(workload: Workload) -> Dense:
    return Dense.of(workload, None, None)


def _over(level: float, divisor: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(level) / divisor)


# All ranges of ordered cells, for total variance: decayed sums with the same Gram matrix.
#
# ``G = W'W`` of all ranges is ``N = d + 1`` times the inverse of the second difference. It is ``V' diag(μ) V`` with
# ``V_ji = i / j`` for ``i ≤ j``, sums with varying decay, ``(V x)_j = x_j + (j - 1) / j (V x)_{j-1}``, and with
# weights ``μ_j = N j / (j + 1)``. Total variance depends on the Gram matrix of a workload alone: costs, the sum of all
# variances and the trace norm equal those of the sums V x with the weights μ.


@dataclass(frozen=True, slots=True, eq=False)
class RangeForms:
    """The cost of each cell, and the sum of the variances of all ranges."""

    sums: EvaluatedForms  # of the sums V x with the weights μ, or of the ranges themselves with equal ones
    shares: Array

    @property
    def cost(self) -> float:
        return self.sums.cost

    @property
    def cost_rounding(self) -> float:
        return self.sums.cost_rounding

    @property
    def profile(self) -> Array:
        """Squared privacy cost of a record in each cell (d,)."""
        return self.sums.profile

    @property
    def profile_rounding(self) -> Array:
        """Absolute error bounds on the profile (d,)."""
        return self.sums.profile_rounding

    def total(self, weights: Array) -> Judged:
        return self.sums.total(weights[0] * self.shares)

    def binding(self, slack: float) -> Index:
        return self.sums.binding(slack)

    def worst_neighbours(self) -> Ranked:
        return self.sums.worst_neighbours()


@dataclass(frozen=True, slots=True, eq=False)
class RangeStream(Stream):
    """All ranges with equal weights: total variance in time and memory proportional to the number of cells.

    All ranges together count as one table.
    """

    workload: RangeWorkload  # type: ignore[assignment]

    @property
    def decay(self) -> Array:
        """The factor of each sum V x in the next one (d - 1,)."""
        before = np.arange(1, self.workload.shape[1], dtype=np.float64)
        return before / (before + 1)

    @property
    def exact_decays(self) -> tuple[Array, Array]:
        decay, after = self.decay, np.arange(2.0, self.workload.shape[1] + 1)
        product, error = two_product(decay, after)
        return decay, ((after - 1 - product) - error) / after

    @property
    def shares(self) -> Array:
        """Weights μ (d,) for which the sums V x have the Gram matrix of all ranges."""
        order = np.arange(1, self.workload.shape[1] + 1, dtype=np.float64)
        return (self.workload.shape[1] + 1) * order / (order + 1)

    def numbers(self, workload: Workload, values: object, name: str) -> Array:
        """Return the common weight of all ranges (1,); refuse targets, and unequal weights."""
        values = self._own(workload, values, name)
        if name != "weights":
            raise InvalidInputError(
                f"geometry 'stream' supports all ranges for total variance alone, not with {name}: use 'dense'"
            )
        number = one_number(self.workload, values, name)
        if number is None:
            raise InvalidInputError("geometry 'stream' supports equal weights of all ranges alone")
        return number

    def on_sums(self, values: Array) -> Array:
        """Return the weights of the sums V x (d,) from the weight of all ranges."""
        return np.asarray(values[0] * self.shares)

    def forms(self, point: AnyNoise) -> RangeForms | None:  # type: ignore[override]
        if (forms := Stream.forms(self, point)) is None:
            return None
        of_ranges = isinstance(point, np.ndarray)
        return RangeForms(forms, np.ones(self.workload.shape[0]) if of_ranges else self.shares)

    def weights(self, dual: object, queries: bool = True) -> tuple[Array, Array]:
        """Return weights on cells (d,); ranges have none."""
        if queries:
            raise InvalidInputError("geometry 'stream' supports all ranges for total variance alone")
        return Stream.weights(self, dual, queries=False)

    def total_bound(self, neighbour_weights: Array, weights: Array) -> Judged:
        return Stream.total_bound(self, neighbour_weights, self.on_sums(weights))

    def per_query(self, workload: Workload, numbers: Array) -> Array:
        count = workload.shape[0]
        if count > MAX_DENSE_ENTRIES:
            raise InvalidInputError(f"numbers of {count} ranges are too many for an array (limit {MAX_DENSE_ENTRIES})")
        return np.full(count, numbers[0])

    def in_numbers(self, workload: Workload, kind: str, numbers: Array) -> dict[str, object]:
        return Stream.in_numbers(self, workload, kind, self.per_query(workload, numbers))

    def item_words(self, index: int) -> str:
        return "all ranges"

    def total_prices(self, neighbour_weights: Array, weights: Array) -> Array:
        return np.ones(1) if valid_weights(neighbour_weights) else np.zeros(1)


def one_number(workload: RangeWorkload, values: object, name: str) -> Array | None:
    """Return the common number of all ranges (1,), or None if they differ; refuse a value that is no number."""
    by_name = isinstance(values, Mapping)
    if isinstance(values, Mapping) and {*values} == {"ranges"} and workload.shape[0] > 1:
        values, by_name = values["ranges"], False
    checked = None if by_name else validate.finite(**{name: values})
    if checked is None or checked.shape not in ((), (1,)):
        by_query = numbers.by_query(workload, values, name, positive=False)
        return by_query[:1] if np.ptp(by_query) == 0 and by_query[0] > 0 else None
    number = np.array([validate.positive_number(**{name: float(checked.reshape(()))})])
    validate.moderate(**{name: number})
    return freeze(number)


def stream_in(workload: Workload) -> StreamWorkload | RangeWorkload | None:
    """Return a workload of running sums or all ranges, or its equivalent for one table over one attribute; or None."""
    if isinstance(workload, StreamWorkload | RangeWorkload):
        return workload
    domain = workload.domain
    if not isinstance(workload, UnionWorkload) or domain is None or len(workload.tables) + len(domain.shape) > 2:
        return None
    queries = dict(workload.tables[0].queries).get(0)
    if queries is None or isinstance(queries, StreamWorkload | RangeWorkload):
        return queries
    sums = StreamWorkload(queries.shape[1])
    if queries.shape != sums.shape:
        return None
    counts = np.arange(1.0, 1.0 + queries.shape[1])  # the answers of sums are exact integers, and cheaper than rows
    return sums if np.array_equal(queries.apply(counts), sums.apply(counts)) and sums.same_as(queries) else None


def stream_of(workload: Workload) -> Stream:
    """Return the geometry of running sums, or of all ranges; refuse other workloads."""
    if isinstance(workload, RangeWorkload):
        return RangeStream(workload)
    if isinstance(workload, StreamWorkload):
        return Stream(workload)
    raise InvalidInputError(
        "geometry 'stream' takes workloads made by dualmech.workloads.prefix and decayed_sums, and all_range"
    )
