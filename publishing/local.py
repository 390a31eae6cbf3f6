"""Local privacy, drawn: each person's report from whole-number chances, so that its privacy is a fraction."""

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

BITS = 52  # chances are whole numbers over 2^52
BATCH = 2**20  # reports that are drawn at a time
UPWARDS = decimal.Context(50, decimal.ROUND_CEILING)
EVENED = tuple(10.0**-digits for digits in range(12, 5, -1))
"""By how much a strategy is mixed with its mean before it is rounded, the least that keeps the ratio tried first."""


class LocalRandomiser:
    """What a person runs: a report drawn from her column of a strategy, exactly and from the system's entropy.

    The strategy's columns are brought to whole numbers of chances out of 2^52, a little nearer to each other first, so
    that no report's chances have a ratio above e^ε; the largest ratio is a fraction. Every draw is one whole number
    below 2^52 of the operating system's secure generator. There is no seed.
    Raises `InvalidInputError` or `InputTypeError` for no `LocalMechanism`, or one whose least chance is too small.

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

    chances: npt.NDArray[np.int64]  # (m, n) of each report by type; columns add up to 2^52
    mechanism: LocalMechanism  # with the strategy that is drawn from, and its own reconstruction

    def __init__(self, mechanism: LocalMechanism) -> None:
        planned = validate.instance(LocalMechanism, mechanism=mechanism)
        self.chances = freeze(_whole_chances(planned.strategy, planned.epsilon))
        self._ends = np.cumsum(self.chances, axis=0)
        strategy = np.ldexp(self.chances, -BITS)
        # The plan's own way to estimate, which may be for another aim than the mean user, without the grid's bias.
        missed = planned.workload.dense() - planned.reconstruction @ strategy
        estimates = planned.reconstruction + missed @ np.linalg.pinv(strategy)
        self.mechanism = LocalMechanism(strategy, planned.epsilon, planned.workload, estimates)

    @property
    def ratio(self) -> Fraction:
        """The largest ratio of two types' chances of one report, exactly: at most e^ε."""
        return _largest_ratio(self.chances)

    @property
    def epsilon(self) -> float:
        """ε of local differential privacy, the logarithm of `ratio`, rounded up."""
        return rounded_up(_log_above(self.ratio))

    def respond(self, user: int) -> int:
        """Draw the report of one person of a type, 0 … n - 1."""
        return int(self.reports([validate.index(self.chances.shape[1], user=user)])[0])

    def reports(self, users: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Draw the reports of many persons by their types (N,), each on its own."""
        kinds = validate.indices(self.chances.shape[1], users=users)
        reports = np.empty(len(kinds), dtype=np.int64)
        for start in range(0, len(kinds), BATCH):
            batch = kinds[start : start + BATCH]
            # The upper bits of eight secure bytes a person: every number below 2^52 is as likely.
            drawn = np.frombuffer(secrets.token_bytes(8 * len(batch)), dtype=np.uint64) >> np.uint64(64 - BITS)
            for kind in np.unique(batch):
                persons = np.flatnonzero(batch == kind)
                places = np.searchsorted(self._ends[:, kind], drawn[persons].astype(np.int64), side="right")
                reports[start + persons] = places
        return reports

    def histogram(self, reports: npt.ArrayLike) -> Array:
        """Return how often each report came (m,): what a mechanism's `estimate` takes."""
        indices = validate.indices(len(self.chances), reports=reports)
        return np.bincount(indices, minlength=len(self.chances)).astype(np.float64)

    def __repr__(self) -> str:
        outputs, size = self.chances.shape
        return f"LocalRandomiser({outputs} outputs x {size} user types, epsilon={decimal_above(self.epsilon)})"


def _whole_chances(strategy: Array, epsilon: float) -> npt.NDArray[np.int64]:
    """Return columns of whole numbers that add up to 2^52, with no ratio above e^ε."""
    allowed = Fraction(math.exp(epsilon)) * (1 - Fraction(1, 2**50))  # below e^ε, whatever exp rounds to
    mean = strategy.mean(axis=1, keepdims=True)
    for share in EVENED:
        scaled = np.ldexp((1 - share) * strategy + share * mean, BITS)
        whole = np.floor(scaled).astype(np.int64)
        # What is left of each column goes to its likeliest report, whose ratio that moves least.
        left = 2**BITS - whole.sum(axis=0)
        whole[np.argmax(whole, axis=0), np.arange(whole.shape[1])] += left
        if whole.min() > 0 and _largest_ratio(whole) <= allowed:
            return whole
    raise InvalidInputError(
        f"strategy must have chances above {2.0 ** (8 - BITS):.1g} and an epsilon that whole chances can keep to"
    )


def _log_above(ratio: Fraction) -> Fraction:
    """Return a number that is not below the logarithm of a ratio of at least 1, however near to 1 that is.

    `decimal` rounds logarithms correctly: the next number above is no less than the true one.
    """
    if ratio == 1:
        return Fraction(0)
    near = UPWARDS.divide(decimal.Decimal(ratio.numerator), decimal.Decimal(ratio.denominator))
    return Fraction(UPWARDS.next_plus(UPWARDS.ln(near)))


def _largest_ratio(chances: npt.NDArray[np.generic]) -> Fraction:
    pairs = zip(chances.max(axis=1).tolist(), chances.min(axis=1).tolist(), strict=True)
    return max(Fraction(most, least) for most, least in pairs)
