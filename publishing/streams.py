"""Running sums, drawn without a matrix: the mechanism as decayed sums of its own, each a pole of an inverse root."""

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
from dualmech.publishing.drawing import Counts, Exact, Noise, counted_vector, whole_counts
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain

# The optimal noise of running sums is ``Σ = level · D^½ T^½ D^½`` with D diagonal and T tridiagonal. As ``T^-½`` is
# ``Σ_j c_j (T + w_j)⁻¹`` to any accuracy, its inverse is a sum too: whoever knows x with this noise knows as much as
# from measuring, for each pole j, ``√(c_j / level) R_j⁻¹ D^-½ x`` with unit noise, ``R_j R_j' = T + w_j``. R_j is
# bidiagonal, so that each measurement is a running sum with decay, ``u_i = t_i x_i + α_i u_{i-1}``. In whole numbers,
# with noise of deviation 2^b,
#
#     g_i = (p_i x_i + q_i g_{i-1}) / 2^f, rounded to the nearest,
#
# which is a function of the data alone and computed exactly. A record more in cell k changes the number that is rounded
# in step k by ``p_k / 2^f``, and in each later one by ``q_i / 2^f`` times what g_{i-1} changed; rounding adds 1 at
# most. So the change of g is at most as long as ``p_k / 2^f (1, α_{k+1}, α_{k+1} α_{k+2}, …)`` and e together, with
# ``e_i = α_i e_{i-1} + 1``, and the privacy cost at most the sum over j of ``(‖first‖ + ‖e‖)² / 4^b``.


EXPONENT = 52  # b
FRACTION = 62  # f
POLES = 2e-7  # relative error of the sum over the poles
ACCURACY = 1e-6  # by how much less is measured than may be, relative: no direction then costs more
LARGER = 1 + 4e-6  # how much larger the noise that is drawn is than the mechanism's, at most
MOST_STEPS = 100_000
PASSES = 40  # of the solution for the cells: each leaves a millionth of the error, or what rounding does
SOLVED = 1e-7  # of the noise's deviation: what the solution for the cells may miss
ROUNDED = 2.0**-48  # of a gain or a decay, relative


@dataclass(frozen=True, slots=True, eq=False)
class DecayedSum:
    """``g_i = (p_i x_i + q_i g_{i-1}) / 2^f``, of whole numbers."""

    whole_gains: tuple[int, ...]  # p
    whole_decays: tuple[int, ...]  # q, of which the first one is not used
    gains: Array  # t = p / 2^(f + b), what a record adds in units of the noise
    decays: Array  # α = q / 2^f

    @classmethod
    def of(cls, gains: Array, decays: Array) -> DecayedSum:
        """Return the sums of gains and decays near to these."""
        first, second = _whole(gains, EXPONENT + FRACTION), _whole(decays, FRACTION)
        return cls(first, second, _reals(first, EXPONENT + FRACTION), _reals(second, FRACTION))

    def answers(self, x: Counts) -> Exact:
        """Return g (n,), exactly."""
        half, answers, last = 1 << (FRACTION - 1), [], 0
        for gain, decay, count in zip(self.whole_gains, self.whole_decays, x.tolist(), strict=True):
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
        """N with ``F = N⁻¹ diag(t)``, lower bidiagonal (2, n): substitution, which does not pivot, cancels least."""
        return np.vstack([np.ones(len(self.gains)), np.r_[-self.decays[1:], 0.0]])

    def changes(self) -> Array:
        """Return how long the change of g is at most, over 2^b, for a record more in each cell (n,)."""
        decays = self.decays
        squares = [*itertools.accumulate((decays[:0:-1] ** 2).tolist(), lambda s, a: 1 + a * s, initial=1.0)]
        true = self.gains * np.sqrt(squares[::-1])
        # All terms are positive, and none has passed through more than four operations a step.
        longest = (1 + 8 * len(decays) * EPS) * (true + np.linalg.norm(_sums_of(decays)) * 2.0**-EXPONENT)
        return np.asarray(longest)

    @property
    def moved(self) -> float:
        """How far rounding moves it at most, relative: ``‖F~ F⁻¹ - I‖`` for the sums F that it stands for.

        With ``N = I - A``, A having the decays below its diagonal, ``F = N⁻¹ diag(t)`` with the gains t. No entry of
        ``N⁻¹ A = N⁻¹ - I`` is negative: decays that are off by a share ε move F by ``ε ‖N⁻¹‖`` at most, and gains by
        ``ε ‖N⁻¹ (I + A)‖``, twice as much.
        """
        rows, columns = _sums_of(self.decays), _sums_of(np.r_[0.0, self.decays[:0:-1]])
        return 4 * ROUNDED * math.sqrt(float(rows.max()) * float(columns.max()))


def _sums_of(decays: Array) -> Array:
    """Return e (n,) with ``e_i = α_i e_{i-1} + 1``: the sums of rows of ``N⁻¹``, or of its columns backwards."""
    return np.array([*itertools.accumulate(decays[1:].tolist(), lambda e, a: 1 + a * e, initial=1.0)])


def _whole(values: Array, bits: int) -> tuple[int, ...]:
    return tuple(round(math.ldexp(value, bits)) for value in values.tolist())


def _reals(whole: tuple[int, ...], bits: int) -> Array:
    return np.array([math.ldexp(float(number), -bits) for number in whole])


class DrawnStream:
    """A `StreamMechanism` as it is drawn: decayed sums in whole numbers with discrete Gaussian noise, in linear time.

    No direction costs more than in the mechanism that was given, and the noise is larger by a few millionths. The
    squared privacy cost is a bound on the drawn noise's, proven in numbers rounded upwards.
    Raises `InvalidInputError` for more than `MOST_STEPS` steps, and for weights so uneven that sums in whole numbers
    lose more than the accuracy.
    """

    __slots__ = ("given", "mechanism", "root", "squared_privacy_cost", "sums")

    by_table = False

    given: StreamMechanism
    mechanism: StreamMechanism  # of noise that is not smaller than the drawn noise
    root: InverseRoot  # of the mechanism that was given
    sums: tuple[DecayedSum, ...]
    squared_privacy_cost: Fraction

    def __init__(self, mechanism: StreamMechanism) -> None:
        if mechanism.cells > MOST_STEPS:
            raise InvalidInputError(
                f"mechanism must have at most {MOST_STEPS} steps to be drawn in whole numbers, got {mechanism.cells}"
            )
        self.given, self.mechanism = mechanism, mechanism.scaled(LARGER)
        self.root = inverse_root(mechanism, POLES)
        self.sums = tuple(DecayedSum.of(*arguments) for arguments in _measured(self.root))
        costs = np.sum([decayed.changes() ** 2 for decayed in self.sums], axis=0)
        self.squared_privacy_cost = Fraction(float(costs.max()) * (1 + 64 * EPS))
        self._check()

    def read(self, source: object, domain: Domain | None, allow_empty: bool) -> Array:
        """Return the data vector (d,) of records, or of the counts that were given."""
        return np.asarray(counted_vector(source, domain, allow_empty))

    def draw(self, x: object, noise: Noise) -> Array:
        """Draw estimates of the cells (d,) from a data vector (d,) of whole numbers."""
        counts = whole_counts(records=validate.vector(self.given.cells, "cell", records=x))
        total = np.zeros(len(counts))
        for decayed in self.sums:
            noisy = decayed.answers(counts) + noise(2.0**EXPONENT, len(counts))
            total += decayed.transposed(np.ldexp(noisy.astype(np.float64), -EXPONENT))
        return self._cells(total)

    def estimate(self, measured: Array, workload: Workload) -> Array:
        """Return the unbiased estimates (m,) of a workload from what was drawn."""
        return (stream_in(workload) or workload).apply(measured)

    def _precision(self, vector: Array) -> Array:
        """Return ``F'F v`` (d,) of all that is measured."""
        return np.sum([decayed.transposed(decayed.apply(vector)) for decayed in self.sums], axis=0)

    def _cells(self, total: Array) -> Array:
        """Return ``(F'F)⁻¹ v`` (d,), the noise of the mechanism being nearly its inverse."""
        cells, left, missed = np.zeros(len(total)), total, math.inf
        for _ in range(PASSES):
            step = self.root.noise_times(left)
            before, missed = missed, abs(float(left @ step))  # squared, in units of the noise
            if missed <= SOLVED**2 or not missed < before / 4:
                break
            cells += step
            left = total - self._precision(cells)
        if not missed <= max(SOLVED**2, ROUNDED * abs(float(total @ cells))):
            raise InvalidInputError(UNEVEN)
        return cells

    def _check(self) -> None:
        """Refuse sums that rounding moves from the mechanism, in cost or in the noise of any direction."""
        # With each F moved by a share η at most, no direction has noise larger by more than (1 - ACCURACY - η)^-2.
        if not max(decayed.moved for decayed in self.sums) <= ACCURACY / 2:
            raise InvalidInputError(UNEVEN)
        if not float(self.squared_privacy_cost) <= self.given.squared_privacy_cost:
            raise InvalidInputError(UNEVEN)
        self._cells(self._precision(np.where(np.arange(self.given.cells) % 2, -1.0, 1.0)))


UNEVEN = "mechanism must have more even weights, or fewer steps, for its sums to be drawn in whole numbers"


def _measured(held: InverseRoot) -> list[tuple[Array, Array]]:
    """Return the gains and decays of each pole; no number is subtracted from another, so that all keep their digits."""
    matrix, poles = held.matrix, held.poles
    roots = np.sqrt(factor_squares(matrix, poles.places))
    below = np.sqrt(matrix.a[:-1] * matrix.b)[:, None] / (roots[:-1] * roots[1:])
    decays = np.vstack([np.zeros((1, roots.shape[1])), below])
    gains = (1 - ACCURACY) * np.sqrt(poles.factors / held.level / held.cells[:, None]) / roots
    return [*zip(gains.T, decays.T, strict=True)]
