"""Mechanisms of many steps: running sums and all ranges with noise of two weights a cell, and causal strategies."""

from __future__ import annotations

from typing import Any, ClassVar, TypeGuard

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.display import decimal_above
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.apart import largest_sums
from dualmech.geometry.base import EvaluatedForms
from dualmech.geometry.causal import Causal, Recurrence, persons_cost, strategy_parts, summing, unit_forms
from dualmech.geometry.dense import Dense
from dualmech.geometry.epochs import Epochs
from dualmech.geometry.moves import LARGEST_DENSE
from dualmech.geometry.stream import (
    INVERSE_ROOT_TOL,
    Bidiagonal,
    CausalPoint,
    Stream,
    StreamPoint,
    poles_of,
    stream_in,
    stream_of,
)
from dualmech.immutable import freeze
from dualmech.linalg import to_dense
from dualmech.mechanisms.costs import entry_condition, require_told, whitening_root
from dualmech.mechanisms.gaussian import TOLERANCE, Answerability, Equivalence, LinearGaussianMechanism
from dualmech.mechanisms.inverse_root import InverseRoot
from dualmech.mechanisms.privacy import ParticipationCost, cost_between
from dualmech.mechanisms.step_noise import NoiseByStep
from dualmech.validate import Array
from dualmech.verified import UPWARDS
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload, check_workload, same_content
from dualmech.workloads.streams import RangeWorkload, StreamWorkload


class SteppedMechanism(NoiseByStep):
    """The base of `StreamMechanism` and `CausalMechanism`, which need no matrix for what steps alone decide.

    `dense` answers all else, with its errors, up to 4,096 steps; beyond, it is refused with their number.
    """

    __slots__ = ("_matrix",)

    by_matrix: ClassVar[bool] = True
    """Functions of matrices take it by `dense`."""

    _matrix: LinearGaussianMechanism | None

    @property
    def cells(self) -> int:
        """Number of cells, one a step."""
        raise NotImplementedError

    def dense(self) -> LinearGaussianMechanism:
        """Return the mechanism written out on the cells, made once; refused beyond 4,096 steps."""
        if (count := self.cells) > LARGEST_DENSE:
            raise InvalidInputError(
                f"a {type(self).__name__} of {count} steps is too large for a matrix (at most {LARGEST_DENSE}), which "
                "this takes; privacy, variances and drawing need none"
            )
        if getattr(self, "_matrix", None) is None:
            self._matrix = self._as_matrix()
        assert self._matrix is not None
        return self._matrix

    def _as_matrix(self) -> LinearGaussianMechanism:
        raise NotImplementedError

    @property
    def cost_matrix(self) -> Array:
        """``C = Σ⁻¹`` of the noise on the cells (n, n)."""
        return self.dense().cost_matrix

    def covariance(self, workload: Workload | None = None) -> Array:
        """Return the covariance of the answers to a workload (m, m), by default of the rows that get noise."""
        return self.dense().covariance() if workload is None else self.dense()._own_covariance(workload)

    def estimates(self, workload: Workload, answers: npt.ArrayLike) -> Array:
        """Return estimates of a workload from noisy answers; see `LinearGaussianMechanism`."""
        return self.dense().estimates(workload, answers)

    def is_answerable_from(self, other: Any, tol: float = TOLERANCE) -> Answerability:
        """Say whether this mechanism can be answered from another; see `LinearGaussianMechanism`."""
        return self.dense().is_answerable_from(other, tol)

    def is_equivalent_to(self, other: Any, tol: float = TOLERANCE) -> Equivalence:
        """Say whether both mechanisms reveal the same; see `LinearGaussianMechanism`."""
        return self.dense().is_equivalent_to(other, tol)

    def stack(self, *others: Any) -> LinearGaussianMechanism:
        """Return the mechanism that runs this one and others; see `LinearGaussianMechanism`."""
        return self.dense().stack(*others)

    def compose(self, *others: Any) -> LinearGaussianMechanism:
        """Return what this mechanism and others reveal together; see `LinearGaussianMechanism`."""
        return self.dense().compose(*others)

    def rebase(self, query_matrix: npt.ArrayLike) -> LinearGaussianMechanism:
        """Return the same mechanism on other rows; see `LinearGaussianMechanism`."""
        return self.dense().rebase(query_matrix)

    def standardize(self) -> LinearGaussianMechanism:
        """Return the equivalent mechanism with unit noise; see `LinearGaussianMechanism`."""
        return self.dense().standardize()

    def causal_strategy(self) -> Array:
        """Return a lower-triangular strategy of the same noise (n, n); see `LinearGaussianMechanism`."""
        return self.dense().causal_strategy()


CHUNK = 64  # queries whose variances are found together: what bounds the memory

DRAWN = 1e-6
"""Relative accuracy of the noise that is drawn step by step: each pole is a row kept, and none makes less noise."""

MOST_WRITTEN = 2**27  # most entries of a workload whose variances are found one by one


class StreamMechanism(SteppedMechanism):
    """The mechanism ``x ↦ x + N(0, Σ)`` on the cells of a stream, ``Σ = level · P # Q⁻¹``, and the sums of its answers.

    ``P = diag(λ)`` and ``Q = W' diag(μ) W``, and ``#`` is the geometric mean: the optimal noise with optimal weights.
    For all ranges ``Q = V' diag(μ) V`` with the sums V of `dualmech.geometry.stream`.
    Raises `InvalidInputError` or `InputTypeError` for weights that are not positive, or not one per cell; another
    workload.

    Parameters
    ----------
    workload : StreamWorkload or RangeWorkload
        W, of `dualmech.workloads.prefix`, `decayed_sums` or `all_range`.
    neighbour_weights, query_weights : (d,) array
        λ > 0 and μ > 0.
    level : float, default 1
        A positive factor on all variances.

    Examples
    --------
    >>> import dualmech as dm
    >>> mechanism = dm.StreamMechanism(dm.workloads.prefix(2), [2 / 3, 1 / 3], [1 / 3, 2 / 3])
    >>> mechanism.variances().round(6), mechanism.profile.round(6)
    (array([1.154701, 1.154701]), array([1.154701, 1.154701]))
    """

    __slots__ = ("_forms", "_stream", "point", "workload")

    workload: StreamWorkload | RangeWorkload
    point: StreamPoint
    _forms: Any
    _stream: Stream

    def __init__(
        self,
        workload: StreamWorkload | RangeWorkload,
        neighbour_weights: npt.ArrayLike,
        query_weights: npt.ArrayLike,
        level: float = 1.0,
    ) -> None:
        if not isinstance(workload, StreamWorkload | RangeWorkload):
            raise InputTypeError(
                "workload must be made by dualmech.workloads.prefix, decayed_sums or all_range, got "
                f"{type(workload).__name__}"
            )
        weights = (
            validate.positive(1, neighbour_weights=neighbour_weights),
            validate.positive(1, query_weights=query_weights),
        )
        self.workload = workload
        self._stream = stream_of(workload)
        self.point = StreamPoint(*weights, validate.positive_number(level=level))
        self._stream.point(self.point)  # refuses other numbers of weights
        forms = self._stream.forms(self.point)
        if forms is None:
            raise InvalidInputError("neighbour_weights and query_weights must not differ by as much as they do")
        self._forms = freeze(forms)

    @property
    def profile(self) -> Array:
        """Squared privacy cost of a record in each cell (d,), what rounding may hide added."""
        return freeze(self._forms.profile + self._forms.profile_rounding)

    def variances(self, workload: Workload | None = None) -> Array:
        """Return the variance of each sum (d,), or of each query of a workload on the cells, in time proportional to d.

        Those of all ranges together are of their sum, `total_variance`: single ones are asked for by ``select``.
        Raises `InvalidInputError` or `InputTypeError` for no workload, another number of cells, more than
        `MOST_WRITTEN` entries of its matrix, a variance of which rounding may hide more than 1e-6.
        """
        stated = self.workload if workload is None else check_workload(workload)
        rows = stream_in(stated) or stated
        if isinstance(self.workload, StreamWorkload) and self.workload.same_as(rows):
            return np.array(self._forms.variances)
        if rows.shape[1] != self.workload.shape[1]:
            raise InvalidInputError(
                f"workload must have {self.workload.shape[1]} cells, as the mechanism, got {rows.shape[1]}"
            )
        if rows.shape[0] * rows.shape[1] > MOST_WRITTEN:
            raise InvalidInputError(
                f"variances of {rows.shape[0]} queries over {rows.shape[1]} cells are too many to find one by one; "
                "select some, or ask for the total_variance"
            )
        root, count = inverse_root(self), rows.shape[0]
        parts = (rows[row : row + CHUNK].dense() for row in range(0, count, CHUNK))
        variances = (require_told(*root.variances(part, self._stream.rounding)) for part in parts)
        return np.concatenate([*variances])

    def covariance(self, workload: Workload | None = None) -> Array:
        """Return the covariance of the answers to a workload (m, m), by default of the cells.

        Raises `InvalidInputError` for too many steps, and where rounding of the noise on the cells may hide more than
        1e-6 of the deviations of two answers, multiplied.
        """
        covariance = super().covariance(workload)
        if workload is not None:
            rows, deviations = abs(workload.matrix), np.sqrt(np.diagonal(covariance))
            off = (INVERSE_ROOT_TOL + self._stream.rounding) * to_dense(
                rows @ (rows @ np.abs(self.dense().covariance())).T
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                relative = np.where(off > 0, off / np.outer(deviations, deviations), 0.0)
            require_told(np.ones(len(off)), relative.max(axis=1, initial=0.0))
        return covariance

    def participation_cost(self, times: int, separation: int, at_least: bool = False) -> ParticipationCost:
        """Return what no person exceeds who takes part in several steps; see `GaussianPrivacy`.

        Raises `InvalidInputError` where the rounding of the matrix of the noise may hide as much.
        """
        known, delta = self.dense()._own_participation_cost(times, separation, at_least), self._matrix_error()
        return cost_between(known.squared_cost / (1 - delta) * UPWARDS, known.lower_bound * (1 - delta) * (2 - UPWARDS))

    def _matrix_error(self) -> float:
        """Return δ with ``(1 - δ) Σ̂ ⪯ Σ ⪯ (1 + δ) Σ̂`` for the computed matrix Σ̂ of the noise on the cells.

        Each of its entries is off by a share η. With ``T Σ̂ T' = I``, δ is at most ``η ‖|T||Σ̂||T|'‖``.
        Raises `InvalidInputError` where δ is 1/2 or more.
        """
        covariance = self.dense().covariance()
        root = whitening_root(covariance)
        if root is not None:
            delta = 2 * (INVERSE_ROOT_TOL + self._stream.rounding) * entry_condition(root, covariance)
            if delta < 0.5:
                return delta
        raise InvalidInputError("costs of several steps are hidden by the rounding of so ill-conditioned noise")

    def as_targets(self, workload: Workload) -> Array:
        """Return the variances of a workload's queries, without a matrix of the noise; see `GaussianPrivacy`."""
        return self.variances(check_workload(workload))

    @property
    def total_variance(self) -> float:
        """The sum of the variances of all sums, or of all ranges."""
        count = 1 if isinstance(self.workload, RangeWorkload) else self.workload.shape[0]
        return float(self._forms.total(np.ones(count))[0])

    def point_on(self, geometry: object) -> StreamPoint | Array:
        """Return the noise on the geometry of the same sums, or as a matrix on another geometry of the cells.

        Raises `InvalidInputError` for a geometry of blocks, products or split noise, other cells, too many steps.
        """
        if isinstance(geometry, Stream) and geometry.workload.same_as(self.workload):
            return self.point
        return self.dense().point_on(geometry)

    def scaled(self, factor: float) -> StreamMechanism:
        """Return the mechanism with all variances times a factor > 0: its cost is divided by that."""
        level = self.point.level * validate.positive_number(factor=factor)
        return StreamMechanism(self.workload, self.point.neighbour_weights, self.point.query_weights, level)

    @property
    def cells(self) -> int:
        return int(self.workload.shape[1])

    def _as_matrix(self) -> LinearGaussianMechanism:
        covariance = self._stream.covariance(self.point)
        written = LinearGaussianMechanism(np.eye(len(covariance)), covariance)
        return written._rounded_from(noise=2 * (INVERSE_ROOT_TOL + self._stream.rounding))._standing_for(self)

    def simulate(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        """Draw noisy sums ``W (x + noise)`` of a data vector x (d,), for study. NOT a private release.

        With ``T = L L'``, ``T^½ = L (L'L)^-½ L'``, and ``(L'L)^-½`` is a sum of inverses of tridiagonal matrices: the
        noise is L times a sum of independent draws, one for each of them.
        """
        return self.workload.apply(self.simulate_cells(x, rng))

    def simulate_cells(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        """Draw noisy cells ``x + noise`` (d,), whose sums answer any query, for study. NOT a private release."""
        data, generator = validate.vector(self.workload.shape[1], "cell", x=x), validate.generator(rng=rng)
        return np.asarray(data + inverse_root(self).draw(generator))

    def recurrence(self) -> Recurrence:
        """Return how rows of noise follow from some twenty sums with decay, one for each pole."""
        return inverse_root(self, DRAWN).recurrence()

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name."""
        names = ("neighbour_weights", "query_weights", "level")
        return {"workload": self.workload} | {name: getattr(self.point, name) for name in names}

    def __repr__(self) -> str:
        return f"StreamMechanism({self.workload!r}, rho={decimal_above(self.rho)})"


def inverse_root(mechanism: StreamMechanism, tol: float = INVERSE_ROOT_TOL) -> InverseRoot:
    """Return the noise of a mechanism, the inverse square root a sum over poles to a relative accuracy."""
    point, stream = mechanism.point, stream_of(mechanism.workload)
    cells, sums = point.neighbour_weights, point.query_weights
    level = float(point.level * np.sqrt(cells.max() / sums.max()))
    cells, sums = cells / cells.max(), sums / sums.max()
    matrix = Bidiagonal.of(cells, sums, stream.decay)
    poles = poles_of(matrix, cells, sums, stream.decay, tol)
    return InverseRoot(matrix, poles, cells, sums, stream.exact_decays, level)


class CausalMechanism(SteppedMechanism):
    """The mechanism ``x ↦ C x + N(0, level · I)`` of a causal strategy C (n, n), lower triangular: step by step.

    Made by `dualmech.strategies.toeplitz`, `sqrt_toeplitz`, `buffered`, `banded` and `tree`. A record in cell i costs
    the squared norm of column i of C over the level, and running sums ``W x`` are answered with the noise ``W C⁻¹ z``:
    both in time that grows as the number of steps, or but for a logarithm.

    Attributes
    ----------
    steps : int
        n.
    level : float
        Variance of the noise on each answer of C x.

    Examples
    --------
    >>> import dualmech as dm
    >>> mechanism = dm.strategies.sqrt_toeplitz(100_000)
    >>> sums = dm.workloads.prefix(100_000)
    >>> round(mechanism.rho, 6), round(float(mechanism.variances(sums)[-1]), 6)
    (2.365477, 4.730953)
    """

    __slots__ = ("_strategy", "_unit", "level")

    judged_on = "stream"
    """The geometry on which it is judged in linear time, where a problem can stand there."""

    level: float
    _strategy: Causal
    _unit: dict[float, EvaluatedForms]

    def __init__(self, strategy: Causal, level: float = 1.0) -> None:
        if not all(hasattr(strategy, name) for name in ("steps", "costs", "variances")):
            raise InputTypeError(
                f"strategy must be made by a function of dualmech.problems.strategies, got {type(strategy).__name__}"
            )
        self._strategy, self._unit = freeze(strategy), {}
        self.level = validate.positive_number(level=level)

    @property
    def steps(self) -> int:
        """Number of steps n."""
        return self._strategy.steps

    @property
    def profile(self) -> Array:
        """Squared privacy cost of a record in each cell (n,), what rounding may hide added."""
        costs, hidden = self._strategy.costs()
        return freeze((costs + hidden) / self.level)

    def variances(self, workload: Workload) -> Array:
        """Return the variance of each sum of a stream (n,) in linear time, or of another workload by the matrix."""
        if self._asks_sums(workload):
            forms = self._forms(workload.decay)
            return require_told(forms.variances * self.level, forms.variance_rounding * self.level)
        return self.dense()._own_variances(workload)

    def as_targets(self, workload: Workload) -> Array:
        """Return the variances of a workload's queries; see `GaussianPrivacy`."""
        return self.variances(check_workload(workload))

    def point_on(self, geometry: object) -> Any:
        """Return the noise on a geometry of the same number of cells, `stream`, `dense` or `epochs`."""
        if isinstance(geometry, Dense | Epochs):
            return self.dense().point_on(geometry)
        if not isinstance(geometry, Stream) or not self._asks_sums(geometry.workload):
            raise InvalidInputError(
                f"a CausalMechanism of {self.steps} steps answers as many running sums, on geometry 'stream' or 'dense'"
            )
        self._forms(geometry.workload.decay)  # refused where they are not known
        return CausalPoint(self._strategy, self.level)

    def scaled(self, factor: float) -> CausalMechanism:
        """Return the mechanism with all variances times a factor > 0: its cost is divided by that."""
        return CausalMechanism(self._strategy, self.level * validate.positive_number(factor=factor))

    def participation_cost(self, times: int, separation: int, at_least: bool = False) -> ParticipationCost:
        """Return what no person exceeds who takes part in several steps; see `GaussianPrivacy`.

        It needs no matrix, with `at_least` where there are no more bands, or coefficients, than `separation`, or where
        the magnitudes of a Toeplitz strategy's coefficients decrease; else up to 4,096 steps.
        """
        most, apart = validate.size(times=times), validate.size(separation=separation)
        known = persons_cost(self._strategy, most, apart, validate.boolean(at_least=at_least))
        if known is None:
            return self._cost_apart(most, apart)
        upper, lower = known
        return cost_between(upper / self.level, lower / self.level)

    def _cost_apart(self, times: int, apart: int) -> ParticipationCost:
        """Return what a person costs whose parts are at least so far apart, by the matrix of products of columns."""
        if self.steps > LARGEST_DENSE:
            raise InvalidInputError(
                f"at_least of {self.steps} steps needs a strategy with at most {apart} bands, or a Toeplitz strategy "
                f"whose coefficients decrease (others have at most {LARGEST_DENSE} steps)"
            )
        products, magnitudes = self._strategy.products()
        costs, off = products / self.level, summing(self.steps) * magnitudes / self.level
        return cost_between(*largest_sums(costs, off, times, apart))

    @property
    def matrix(self) -> Array:
        """C (n, n); refused for a tree, and for too many steps."""
        if self.steps**2 > MAX_DENSE_ENTRIES:
            raise InvalidInputError(f"a strategy of {self.steps} steps is too large for a dense matrix")
        return self._strategy.matrix()

    @property
    def cells(self) -> int:
        return self.steps

    def _as_matrix(self) -> LinearGaussianMechanism:
        matrix = self.matrix
        written, share = LinearGaussianMechanism(matrix, self.level * np.eye(len(matrix))), self._strategy.entry_error
        return written._rounded_from(rows=share)._standing_for(self) if share else written

    def simulate(
        self, x: npt.ArrayLike, workload: StreamWorkload, rng: np.random.Generator | int | None = None
    ) -> Array:
        """Draw noisy running sums (n,) of a data vector x (n,), for study. NOT a private release."""
        if not self._asks_sums(workload):
            raise InvalidInputError(
                f"workload must be running sums of {self.steps} cells, got {validate.shown(workload)}"
            )
        self._forms(workload.decay)
        data, generator = validate.vector(self.steps, "cell", x=x), validate.generator(rng=rng)
        noise = self._strategy.noise(generator, workload.decay)
        return np.asarray(workload.apply(data) + np.sqrt(self.level) * noise)

    def _asks_sums(self, workload: object) -> TypeGuard[StreamWorkload]:
        return isinstance(workload, StreamWorkload) and workload.shape[0] == self.steps

    def _forms(self, decay: float) -> EvaluatedForms:
        """Return both sides of unit noise, evaluated once for each decay."""
        if decay not in self._unit:
            forms = unit_forms(self._strategy, decay)
            if forms is None:
                raise InvalidInputError(
                    "strategy must have an inverse whose entries stay small enough for its noise to be known"
                )
            self._unit[decay] = freeze(forms)
        return self._unit[decay]

    def recurrence(self) -> Recurrence:
        """Return how rows of noise follow from the rows, or buffers, that the strategy needs."""
        return self._strategy.recurrence(self.level)

    def same_as(self, other: object) -> bool:
        """Whether another mechanism has the same strategy and as much noise."""
        return (
            isinstance(other, CausalMechanism)
            and self.level == other.level
            and same_content(self._strategy, other._strategy)
        )

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name."""
        return {"level": self.level, **strategy_parts(self._strategy)}

    def __repr__(self) -> str:
        return f"CausalMechanism({type(self._strategy).__name__}, {self.steps} steps, rho={decimal_above(self.rho)})"
