"""The mechanism of running sums and of all ranges: noise of two weights a cell, drawn and answered in linear time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.stream import (
    ACCURACY,
    Bidiagonal,
    Poles,
    Stream,
    StreamPoint,
    poles_of,
    stream_in,
    stream_of,
)
from dualmech.immutable import freeze
from dualmech.linalg import to_dense
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.stepped import SteppedMechanism
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload
from dualmech.workloads.streams import RangeWorkload, StreamWorkload

CHUNK = 64  # queries whose variances are found together: what bounds the memory

MOST_WRITTEN = 2**27  # most entries of a workload whose variances are found one by one


@dataclass(frozen=True, slots=True, eq=False)
class InverseRoot:
    """``(L'L)^-½`` as ``Σ_j c_j (L'L + w_j)⁻¹``, L bidiagonal, with what makes noise on the cells of it."""

    matrix: Bidiagonal  # L
    poles: Poles  # c and w
    cells: Array  # the diagonal of D, at most 1
    level: float

    @property
    def banded(self) -> Array:
        """``L'L``, its upper two diagonals."""
        a, b = self.matrix.a, self.matrix.b
        return np.vstack([np.r_[0.0, -np.sqrt(a[1:] * b)], a + np.r_[b, 0.0]])

    def solved(self, y: Array) -> Array:
        """Return ``(L'L)^-½ y``, (d,) or (d, q)."""
        banded, found = self.banded, np.zeros_like(y)
        for place, factor in zip(self.poles.places, self.poles.factors, strict=True):
            root = scipy.linalg.cholesky_banded(banded + [[0.0], [place]], check_finite=False)
            found += factor * scipy.linalg.cho_solve_banded((root, False), y, check_finite=False)
        return found

    def times(self, y: Array) -> Array:
        """Return ``L y`` (d,)."""
        found = np.sqrt(self.matrix.a) * y
        found[1:] -= np.sqrt(self.matrix.b) * y[:-1]
        return found

    def transposed_times(self, y: Array) -> Array:
        """Return ``L'y`` (d,)."""
        found = np.sqrt(self.matrix.a) * y
        found[:-1] -= np.sqrt(self.matrix.b) * y[1:]
        return found

    def noise_times(self, vector: Array) -> Array:
        """Return ``Σ v`` (d,), in time proportional to d."""
        root = np.sqrt(self.level * self.cells)
        return np.asarray(root * self.times(self.solved(self.transposed_times(root * vector))))


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
        return validate.read_only(self._forms.profile + self._forms.profile_rounding)

    def variances(self, workload: Workload | None = None) -> Array:
        """Return the variance of each sum (d,), or those of a workload on the cells, each in time proportional to d.

        Those of all ranges together are of their sum, `total_variance`: single ones are asked for by ``select``.
        Raises `InvalidInputError` or `InputTypeError` for no workload, another number of cells, more than
        `MOST_WRITTEN` entries of its matrix.
        """
        given = self.workload if workload is None else check_workload(workload)
        asked = stream_in(given) or given
        if isinstance(self.workload, StreamWorkload) and self.workload.same_as(asked):
            return np.array(self._forms.variances)
        if asked.shape[1] != self.workload.shape[1]:
            raise InvalidInputError(
                f"workload must have {self.workload.shape[1]} cells, as the mechanism, got {asked.shape[1]}"
            )
        if asked.shape[0] * asked.shape[1] > MOST_WRITTEN:
            raise InvalidInputError(
                f"variances of {asked.shape[0]} queries over {asked.shape[1]} cells are too many to find one by one; "
                "select some, or ask for the total_variance"
            )
        matrix = asked.matrix
        parts = range(0, asked.shape[0], CHUNK)
        return np.concatenate([self._quadratic(to_dense(matrix[row : row + CHUNK])) for row in parts])

    def as_targets(self, workload: Workload) -> Array:
        """Return the variances of a workload's queries, without a matrix of the noise; see `GaussianPrivacy`."""
        return self.variances(check_workload(workload))

    @property
    def total_variance(self) -> float:
        """The sum of the variances of all sums, or of all ranges."""
        count = 1 if isinstance(self.workload, RangeWorkload) else self.workload.shape[0]
        return float(self._forms.total(np.ones(count))[0])

    def point_on(self, geometry: object) -> StreamPoint | Array:
        """Return the noise on the geometry of the same sums, or as a matrix on that of other queries on the cells.

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
        """Number of cells d."""
        return int(self.workload.shape[1])

    def _as_matrix(self) -> LinearGaussianMechanism:
        covariance = self._stream.covariance(self.point)
        return LinearGaussianMechanism(np.eye(len(covariance)), covariance)

    def simulate(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        """Draw noisy sums ``W (x + noise)`` of a data vector x (d,), for study. NOT a private release.

        With ``T = L L'``, ``T^½ = L (L'L)^-½ L'``, and ``(L'L)^-½`` is a sum of inverses of tridiagonal matrices: the
        noise is L times a sum of independent draws, one for each of them.
        """
        return self.workload.apply(self.simulate_cells(x, rng))

    def simulate_cells(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        """Draw noisy cells ``x + noise`` (d,), whose sums answer any query, for study. NOT a private release."""
        data, generator = validate.vector(self.workload.shape[1], "cell", x=x), validate.generator(rng=rng)
        held, drawn = inverse_root(self), np.zeros(len(data))
        for place, factor in zip(held.poles.places, held.poles.factors, strict=True):
            root = scipy.linalg.cholesky_banded(held.banded + [[0.0], [place]], check_finite=False)
            draw = np.sqrt(factor) * generator.standard_normal(len(data))
            drawn += scipy.linalg.solve_banded((0, 1), root, draw, check_finite=False)
        return np.asarray(data + np.sqrt(held.level * held.cells) * held.times(drawn))

    def _quadratic(self, rows: Array) -> Array:
        """Return the variances of queries v (q, d): ``v Σ v' = y' (L'L)^-½ y`` with ``y = L' diag(√λ) v'``."""
        held = inverse_root(self)
        sums = np.sqrt(self.point.query_weights / self.point.query_weights.max())
        y = np.array(rows.T)
        y[:-1] -= np.asarray(self._stream.decay * np.ones(len(y) - 1))[:, None] * rows.T[1:]
        y /= sums[:, None]
        return np.asarray(held.level * np.einsum("iq,iq->q", y, held.solved(y)))

    def __repr__(self) -> str:
        return f"StreamMechanism({self.workload!r}, rho={self.rho:.6g})"


def inverse_root(mechanism: StreamMechanism, tol: float = ACCURACY) -> InverseRoot:
    """Return ``Σ = level · D^½ L (L'L)^-½ L' D^½``, the inverse square root a sum over poles to a relative accuracy."""
    point, decay = mechanism.point, stream_of(mechanism.workload).decay
    cells, sums = point.neighbour_weights, point.query_weights
    level = float(point.level * np.sqrt(cells.max() / sums.max()))
    cells, sums = cells / cells.max(), sums / sums.max()
    matrix = Bidiagonal.of(cells, sums, decay)
    return InverseRoot(matrix, poles_of(matrix, cells, sums, decay, tol), cells, level)
