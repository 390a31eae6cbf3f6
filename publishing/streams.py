"""Mechanisms of running sums on a grid, without a matrix: one decayed sum for each pole of an inverse root."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy.linalg

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.stream import stream_in
from dualmech.geometry.tridiagonal import factor_squares
from dualmech.linalg import EPS
from dualmech.mechanisms.inverse_root import InverseRoot
from dualmech.mechanisms.stream import StreamMechanism, inverse_root
from dualmech.publishing.drawing import Counts, Exact, Noise, counted_vector, integer_counts
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain

# The optimal noise of running sums is ``Σ = level · D^½ T^½ D^½`` with D diagonal and T tridiagonal. ``T^-½`` is
# ``Σ_j c_j (T + w_j)⁻¹`` to any accuracy, so Σ⁻¹ is a sum too: x with this noise is equivalent to the measurements
# ``√(c_j / level) R_j⁻¹ D^-½ x`` with unit noise, for each pole j, with ``R_j R_j' = T + w_j``. R_j is bidiagonal, so
# each measurement is a running sum with decay, ``u_i = t_i x_i + α_i u_{i-1}``. In integers, with noise of standard
# deviation 2^b,
#
#     g_i = (p_i x_i + q_i g_{i-1}) / 2^f, rounded to the nearest,
#
# which is an exact function of the data. One more record in cell k changes the unrounded number of step k by
# ``p_k / 2^f``, and of each later step by ``q_i / 2^f`` times the change of g_{i-1}. Rounding adds at most 1. So the
# norm of the change of g is at most the sum of the norms of ``a = p_k / 2^f (1, α_{k+1}, α_{k+1} α_{k+2}, …)`` and e,
# with ``e_i = α_i e_{i-1} + 1``. The squared privacy cost is at most the sum over j of ``(‖a‖ + ‖e‖)² / 4^b``.


EXPONENT = 52  # b
FRACTION = 62  # f
POLE_TOL = 2e-7  # relative error of the sum over the poles
GAIN_MARGIN = 1e-6  # relative reduction of the gains; every direction then costs at most as much as planned
NOISE_FACTOR = 1 + 4e-6  # upper bound on the drawn variances, relative to the mechanism's
MAX_STEPS = 100_000
MAX_REFINEMENTS = 40  # of the solution for the cells; a few suffice, since each divides the error by about 4e5
SOLUTION_TOL = 1e-7  # error of the solution for the cells, in standard deviations of the noise
ROUNDING = 2.0**-48  # relative error of a gain, absolute error of a decay of at most 1


@dataclass(frozen=True, slots=True, eq=False)
class DecayedSum:
    """``g_i = (p_i x_i + q_i g_{i-1}) / 2^f``, rounded to integers."""

    integer_gains: tuple[int, ...]  # p
    integer_decays: tuple[int, ...]  # q; the first one is unused
    gains: Array  # t = p / 2^(f + b), the gain of a record in units of the noise
    decays: Array  # α = q / 2^f

    @classmethod
    def of(cls, gains: Array, decays: Array) -> DecayedSum:
        """Return the sum with these gains and decays, rounded."""
        first, second = _integers(gains, EXPONENT + FRACTION), _integers(decays, FRACTION)
        return cls(first, second, _scaled_reals(first, EXPONENT + FRACTION), _scaled_reals(second, FRACTION))

    def answers(self, x: Counts) -> Exact:
        """Return g (n,), exactly."""
        half, answers, last = 1 << (FRACTION - 1), [], 0
        for gain, decay, count in zip(self.integer_gains, self.integer_decays, x.tolist(), strict=True):
            last = (gain * count + decay * last + half) >> FRACTION
            answers.append(last)
        return np.array(answers, dtype=object)

    def apply(self, vector: Array) -> Array:
        """Return the sums ``F v`` (n,) of real numbers, in units of the noise."""
        return np.asarray(scipy.linalg.blas.dtbsv(1, self._banded, self.gains * vector, lower=1, diag=1))

    def transposed(self, vector: Array) -> Array:
        """Return ``F'v`` (n,)."""
        return np.asarray(self.gains * scipy.linalg.blas.dtbsv(1, self._banded, vector, lower=1, trans=1, diag=1))

    @property
    def _banded(self) -> Array:
        """The bands (2, n) of the lower bidiagonal N with ``F = N⁻¹ diag(t)``, for substitution without pivoting."""
        return np.vstack([np.ones(len(self.gains)), np.r_[-self.decays[1:], 0.0]])

    def changes(self) -> Array:
        """Return bounds (n,) on the norm of the change of g, divided by 2^b, for one more record in each cell."""
        decays = self.decays
        squares = [*itertools.accumulate((decays[:0:-1] ** 2).tolist(), lambda s, a: 1 + a * s, initial=1.0)]
        unrounded = self.gains * np.sqrt(squares[::-1])
        # All terms are positive, with at most four rounded operations a step.
        rounded_up = 1 + 8 * len(decays) * EPS
        return np.asarray(rounded_up * (unrounded + np.linalg.norm(_sums_of(decays)) * 2.0**-EXPONENT))

    @property
    def rounding_error(self) -> float:
        """Bound on ``‖F~ F⁻¹ - I‖``, for the sums F with unrounded gains and decays.

        ``F = N⁻¹ diag(t)`` with the gains t and ``N = I - A``, where A has the decays below its diagonal. All entries
        of ``N⁻¹ A = N⁻¹ - I`` are non-negative. Relative errors ε of the decays change F by at most ``ε ‖N⁻¹‖``, and of
        the gains by at most ``ε ‖N⁻¹ (I + A)‖ ≤ 2 ε ‖N⁻¹‖``.
        """
        rows, columns = _sums_of(self.decays), _sums_of(np.r_[0.0, self.decays[:0:-1]])
        return 4 * ROUNDING * math.sqrt(float(rows.max()) * float(columns.max()))


def _sums_of(decays: Array) -> Array:
    """Return e (n,) with ``e_i = α_i e_{i-1} + 1``: row sums of ``N⁻¹``, or column sums for reversed decays."""
    return np.array([*itertools.accumulate(decays[1:].tolist(), lambda e, a: 1 + a * e, initial=1.0)])


def _integers(values: Array, bits: int) -> tuple[int, ...]:
    return tuple(round(math.ldexp(value, bits)) for value in values.tolist())


def _scaled_reals(integers: tuple[int, ...], bits: int) -> Array:
    return np.array([math.ldexp(float(number), -bits) for number in integers])


class DrawnStream:
    """A `StreamMechanism` in integers: decayed sums with discrete Gaussian noise, in linear time.

    No record costs more than the maximum of the planned mechanism, and variances are larger by a few millionths.
    `squared_privacy_cost` is an upper bound on the cost of the drawn noise, rounded upwards.
    Raises `InvalidInputError` for more than `MAX_STEPS` steps, and for weights so uneven that rounding to integers
    could raise the cost, or a variance by more than `NOISE_FACTOR`.
    """

    __slots__ = ("mechanism", "planned", "root", "squared_privacy_cost", "sums")

    by_table = False

    planned: StreamMechanism
    mechanism: StreamMechanism  # with an upper bound on the drawn noise
    root: InverseRoot  # of the planned mechanism
    sums: tuple[DecayedSum, ...]
    squared_privacy_cost: Fraction

    def __init__(self, mechanism: StreamMechanism) -> None:
        if mechanism.cells > MAX_STEPS:
            raise InvalidInputError(
                f"mechanism must have at most {MAX_STEPS} steps to be drawn in whole numbers, got {mechanism.cells}"
            )
        self.planned, self.mechanism = mechanism, mechanism.scaled(NOISE_FACTOR)
        self.root = inverse_root(mechanism, POLE_TOL)
        self.sums = tuple(DecayedSum.of(*arguments) for arguments in _gains_and_decays(self.root))
        costs = np.sum([decayed.changes() ** 2 for decayed in self.sums], axis=0)
        self.squared_privacy_cost = Fraction(float(costs.max()) * (1 + 64 * EPS))
        self._check()

    def read(self, source: object, domain: Domain | None, allow_empty: bool) -> Array:
        """Return the data vector (d,) of records or of the user's counts."""
        return np.asarray(counted_vector(source, domain, allow_empty))

    def draw(self, x: object, noise: Noise) -> Array:
        """Draw estimates of the cells (d,) from a data vector (d,) of integers."""
        counts = integer_counts(records=validate.vector(self.planned.cells, "cell", records=x))
        total = np.zeros(len(counts))
        for decayed in self.sums:
            noisy = decayed.answers(counts) + noise(2.0**EXPONENT, len(counts))
            total += decayed.transposed(np.ldexp(noisy.astype(np.float64), -EXPONENT))
        return self._cells(total)

    def estimate(self, measured: Array, workload: Workload) -> Array:
        """Return the unbiased estimates (m,) of a workload from noisy cells."""
        return (stream_in(workload) or workload).apply(measured)

    def _precision(self, vector: Array) -> Array:
        """Return ``F'F v`` (d,), for the stacked measurements F."""
        return np.sum([decayed.transposed(decayed.apply(vector)) for decayed in self.sums], axis=0)

    def _cells(self, transposed_answers: Array) -> Array:
        """Return the cells ``(F'F)⁻¹ F'y`` (d,) from ``F'y``, by iterative refinement with the planned covariance."""
        cells, residual, squared_error = np.zeros(len(transposed_answers)), transposed_answers, math.inf
        for _ in range(MAX_REFINEMENTS):
            step = self.root.noise_times(residual)
            previous, squared_error = squared_error, abs(float(residual @ step))  # in units of the noise
            if squared_error <= SOLUTION_TOL**2 or not squared_error < previous / 4:
                break
            cells += step
            residual = transposed_answers - self._precision(cells)
        if not squared_error <= max(SOLUTION_TOL**2, ROUNDING * abs(float(transposed_answers @ cells))):
            raise InvalidInputError(UNEVEN_WEIGHTS)
        return cells

    def _check(self) -> None:
        """Refuse sums whose rounding raises the cost or the noise of some direction too much."""
        # With relative errors of F of at most η, each variance grows at most by (1 - GAIN_MARGIN - η)^-2.
        if not max(decayed.rounding_error for decayed in self.sums) <= GAIN_MARGIN / 2:
            raise InvalidInputError(UNEVEN_WEIGHTS)
        if not float(self.squared_privacy_cost) <= self.planned.squared_privacy_cost:
            raise InvalidInputError(UNEVEN_WEIGHTS)
        self._cells(self._precision(np.where(np.arange(self.planned.cells) % 2, -1.0, 1.0)))


UNEVEN_WEIGHTS = "mechanism must have more even weights, or fewer steps, for its sums to be drawn in whole numbers"


def _gains_and_decays(root: InverseRoot) -> list[tuple[Array, Array]]:
    """Return the gains and decays of each pole, without subtractions, so that there is no cancellation."""
    matrix, poles = root.matrix, root.poles
    roots = np.sqrt(factor_squares(matrix, poles.places))
    later_decays = np.sqrt(matrix.a[:-1] * matrix.b)[:, None] / (roots[:-1] * roots[1:])
    decays = np.vstack([np.zeros((1, roots.shape[1])), later_decays])
    gains = (1 - GAIN_MARGIN) * np.sqrt(poles.factors / root.level / root.cells[:, None]) / roots
    return [*zip(gains.T, decays.T, strict=True)]
