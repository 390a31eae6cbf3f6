"""The mechanism of running sums: noise that two weights a cell describe, drawn and answered in linear time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry import stream_forms
from dualmech.geometry.dense_forms import DenseForms
from dualmech.geometry.stream import ACCURACY, Stream, StreamPoint
from dualmech.immutable import freeze
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.streams import StreamWorkload


class StreamMechanism(GaussianPrivacy):
    """The mechanism ``x ↦ x + N(0, Σ)`` on the cells of a stream, ``Σ = level · P # Q⁻¹``, and the sums of its answers.

    ``P = diag(λ)`` and ``Q = W' diag(μ) W``, and ``#`` is the geometric mean: the optimal noise with optimal weights.
    Raises `InvalidInputError` or `InputTypeError` for weights that are not positive, or not one per cell; another
    workload.

    Parameters
    ----------
    workload : StreamWorkload
        W, of `dualmech.workloads.prefix` or `decayed_sums`.
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

    __slots__ = ("_forms", "point", "workload")

    workload: StreamWorkload
    point: StreamPoint
    _forms: DenseForms

    def __init__(
        self,
        workload: StreamWorkload,
        neighbour_weights: npt.ArrayLike,
        query_weights: npt.ArrayLike,
        level: float = 1.0,
    ) -> None:
        if not isinstance(workload, StreamWorkload):
            raise InputTypeError(
                f"workload must be made by dualmech.workloads.prefix or decayed_sums, got {type(workload).__name__}"
            )
        weights = (
            validate.positive(1, neighbour_weights=neighbour_weights),
            validate.positive(1, query_weights=query_weights),
        )
        self.workload = workload
        self.point = StreamPoint(*weights, validate.positive_number(level=level))
        Stream(workload).point(self.point)  # refuses other numbers of weights
        forms = Stream(workload).forms(self.point)
        if forms is None:
            raise InvalidInputError(
                "neighbour_weights and query_weights must not differ by as much as they do"
            )
        self._forms = freeze(forms)

    @property
    def profile(self) -> Array:
        """Squared privacy cost of a record in each cell (d,), what rounding may hide added."""
        return validate.read_only(self._forms.profile + self._forms.profile_rounding)

    def variances(self, workload: Workload | None = None) -> Array:
        """Return the variance of each sum (d,), or those of another workload on the cells, by its matrix."""
        if workload is None or self.workload.same_as(workload):
            return self._forms.variances.copy()
        return self.dense().variances(workload)

    def point_on(self, geometry: Any) -> StreamPoint:
        """Return the noise on the geometry of the same sums.

        Raises `InvalidInputError` for another geometry, or other sums.
        """
        if not isinstance(geometry, Stream) or not geometry.workload.same_as(self.workload):
            raise InvalidInputError("a StreamMechanism answers its own running sums on geometry 'stream'")
        return self.point

    def scaled(self, factor: float) -> StreamMechanism:
        """Return the mechanism with all variances times a factor > 0: its cost is divided by that."""
        level = self.point.level * validate.positive_number(factor=factor)
        return StreamMechanism(self.workload, self.point.neighbour_weights, self.point.query_weights, level)

    def dense(self) -> LinearGaussianMechanism:
        """Return the mechanism written out on the cells; refused where its matrix is too large."""
        covariance = Stream(self.workload).covariance(self.point)
        return LinearGaussianMechanism(np.eye(len(covariance)), covariance)

    def causal_strategy(self) -> Array:
        """Return a lower-triangular strategy of the same noise (d, d); refused where a matrix would be too large."""
        return self.dense().causal_strategy()

    def simulate(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        """Draw noisy sums ``W (x + noise)`` (d,) of a data vector x (d,), for study. NOT a private release.

        With ``T = L L'``, ``T^½ = L (L'L)^-½ L'``, and ``(L'L)^-½`` is a sum of inverses of tridiagonal matrices: the
        noise is L times a sum of independent draws, one for each of them.
        """
        data, generator = validate.vector(self.workload.shape[1], "cell", x=x), validate.generator(rng=rng)
        return self.workload.apply(data + self._noise(generator))

    def _noise(self, generator: np.random.Generator) -> Array:
        cells, sums = self.point.neighbour_weights, self.point.query_weights
        level = self.point.level * np.sqrt(cells.max() / sums.max())
        cells, sums = cells / cells.max(), sums / sums.max()
        matrix = stream_forms.Bidiagonal.of(cells, sums, self.workload.decay)
        poles = stream_forms.poles_of(matrix, cells, sums, self.workload.decay, ACCURACY)
        a, b, drawn = np.sqrt(matrix.a), np.sqrt(matrix.b), np.zeros(len(cells))
        banded = np.vstack([np.r_[0.0, -a[1:] * b], matrix.a + np.r_[matrix.b, 0.0]])
        for place, factor in zip(poles.places, poles.factors, strict=True):
            root = scipy.linalg.cholesky_banded(banded + [[0.0], [place]], check_finite=False)
            draw = np.sqrt(factor) * generator.standard_normal(len(cells))
            drawn += scipy.linalg.solve_banded((0, 1), root, draw, check_finite=False)
        turned = a * drawn
        turned[1:] -= b * drawn[:-1]
        return np.asarray(np.sqrt(level * cells) * turned)

    def __repr__(self) -> str:
        return f"StreamMechanism({self.workload!r}, rho={self.rho:.6g})"
