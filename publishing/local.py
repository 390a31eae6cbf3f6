"""Local randomisers on a grid: integer chances of reports, so that the privacy parameter is a fraction."""

from __future__ import annotations

import decimal
import math
import secrets
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.display import decimal_above, rounded_up
from dualmech.errors import InvalidInputError
from dualmech.immutable import freeze
from dualmech.mechanisms.local import LocalMechanism
from dualmech.validate import Array

BITS = 52  # chances are integers divided by 2^52
BATCH = 2**20  # reports drawn at a time
UPWARDS = decimal.Context(50, decimal.ROUND_CEILING)
MIXING_WEIGHTS = tuple(10.0**-digits for digits in range(12, 5, -1))
"""Weights of the mean, which is mixed into a strategy before rounding, until no ratio exceeds e^ε."""


class LocalRandomiser:
    """Draws a person's report from the person's column of a strategy, exactly, from the system's entropy.

    The strategy's columns are mixed with a little of their mean, and rounded to integer chances out of 2^52, such that
    no ratio of a report's chances exceeds e^ε. The largest ratio is a fraction. Every draw uses one integer below 2^52
    from the operating system's secure generator. There is no seed.
    Raises `InvalidInputError` or `InputTypeError` for no `LocalMechanism`, or one with a too small chance.

    Parameters
    ----------
    mechanism : LocalMechanism
        For example ``fast.solve(dm.LocalStrategy(workload, epsilon)).mechanism``.

    Examples
    --------
    >>> import dualmech as dm
    >>> planned = dm.LocalMechanism([[0.75, 0.25], [0.25, 0.75]], np.log(3), dm.workloads.identity(2))
    >>> randomiser = dm.LocalRandomiser(planned)
    >>> randomiser.ratio <= 3, randomiser.respond(1) in (0, 1)
    (True, True)
    >>> reports = randomiser.reports([0, 1, 1, 1, 0])
    >>> reports.shape, randomiser.mechanism.estimate(randomiser.histogram(reports)).shape
    ((5,), (2,))
    """

    __slots__ = ("_ends", "chances", "mechanism")

    chances: npt.NDArray[np.int64]  # (m, n) of each report for each type; columns add up to 2^52
    mechanism: LocalMechanism  # with the rounded strategy, and its reconstruction

    def __init__(self, mechanism: LocalMechanism) -> None:
        planned = validate.instance(LocalMechanism, mechanism=mechanism)
        self.chances = freeze(_integer_chances(planned.strategy, planned.epsilon))
        self._ends = np.cumsum(self.chances, axis=0)
        strategy = np.ldexp(self.chances, -BITS)
        # Keep the planned reconstruction, which may be for another objective than the mean user, without bias.
        bias = planned.workload.dense() - planned.reconstruction @ strategy
        reconstruction = planned.reconstruction + bias @ np.linalg.pinv(strategy)
        self.mechanism = LocalMechanism(strategy, planned.epsilon, planned.workload, reconstruction)

    @property
    def ratio(self) -> Fraction:
        """The exact maximum ratio of two types' chances of one report: at most e^ε."""
        return _largest_ratio(self.chances)

    @property
    def epsilon(self) -> float:
        """ε of local differential privacy, the logarithm of `ratio`, rounded up."""
        return rounded_up(_log_above(self.ratio))

    def respond(self, user: int) -> int:
        """Draw the report of one person of a type, 0 … n - 1."""
        return int(self.reports([validate.index(self.chances.shape[1], user=user)])[0])

    def reports(self, users: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Draw independent reports of persons with these types, shape (N,)."""
        kinds = validate.indices(self.chances.shape[1], users=users)
        reports = np.empty(len(kinds), dtype=np.int64)
        for start in range(0, len(kinds), BATCH):
            batch = kinds[start : start + BATCH]
            # The upper bits of eight secure bytes: uniform on the integers below 2^52.
            numbers = np.frombuffer(secrets.token_bytes(8 * len(batch)), dtype=np.uint64) >> np.uint64(64 - BITS)
            for kind in np.unique(batch):
                persons = np.flatnonzero(batch == kind)
                places = np.searchsorted(self._ends[:, kind], numbers[persons].astype(np.int64), side="right")
                reports[start + persons] = places
        return reports

    def histogram(self, reports: npt.ArrayLike) -> Array:
        """Return the number of each report, shape (m,), for a mechanism's `estimate`."""
        indices = validate.indices(len(self.chances), reports=reports)
        return np.bincount(indices, minlength=len(self.chances)).astype(np.float64)

    def __repr__(self) -> str:
        outputs, size = self.chances.shape
        return f"LocalRandomiser({outputs} outputs x {size} user types, epsilon={decimal_above(self.epsilon)})"


def _integer_chances(strategy: Array, epsilon: float) -> npt.NDArray[np.int64]:
    """Return columns of integers that add up to 2^52, with no ratio above e^ε."""
    max_ratio = Fraction(math.exp(epsilon)) * (1 - Fraction(1, 2**50))  # below e^ε, for any rounding of exp
    mean = strategy.mean(axis=1, keepdims=True)
    for share in MIXING_WEIGHTS:
        scaled = np.ldexp((1 - share) * strategy + share * mean, BITS)
        chances = np.floor(scaled).astype(np.int64)
        # Each column's likeliest report receives the remaining chances: its ratio changes least.
        remainder = 2**BITS - chances.sum(axis=0)
        chances[np.argmax(chances, axis=0), np.arange(chances.shape[1])] += remainder
        if chances.min() > 0 and _largest_ratio(chances) <= max_ratio:
            return chances
    raise InvalidInputError(
        f"strategy must have chances above {2.0 ** (8 - BITS):.1g} and an epsilon that integer chances can meet"
    )


def _log_above(ratio: Fraction) -> Fraction:
    """Return an upper bound on the logarithm of a ratio of at least 1.

    `decimal` rounds logarithms correctly, so the next larger number is an upper bound.
    """
    if ratio == 1:
        return Fraction(0)
    quotient = UPWARDS.divide(decimal.Decimal(ratio.numerator), decimal.Decimal(ratio.denominator))
    return Fraction(UPWARDS.next_plus(UPWARDS.ln(quotient)))


def _largest_ratio(chances: npt.NDArray[np.generic]) -> Fraction:
    pairs = zip(chances.max(axis=1).tolist(), chances.min(axis=1).tolist(), strict=True)
    return max(Fraction(high, low) for high, low in pairs)
