"""Fixed mechanisms whose reports are sets of user types: subset selection and RAPPOR.

All treat user types equally: every set S of one size is reported with the probability ``w_S p_S(u)``, ``p_S`` being the
extremal pattern ``(1 + c 1_S) / (n + c |S|)``, ``c = e^ε - 1``. So ``G = 11'/n + g Π``, Π the projector off the ones,
and variances follow from how many sets of a size hold one, two or three given types; no list of 2^n sets is needed.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.studies.rivals.responses import FactorisedRival, MatrixRival, as_epsilon, patterns
from dualmech.validate import Array

MAX_OUTPUTS = 2**14  # largest number of sets that `SetRival.with_listed_sets` writes out
CHUNK = 2**21  # random numbers that are drawn at a time


class SetRival(FactorisedRival):
    """A fixed mechanism that reports sets of user types, all of one size equally likely.

    With `sizes` (n + 1,), probability that the reported set has 0, 1, … n members; the same for every user.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> pairs = rivals.SetRival(4, 1.0, [0, 0, 1, 0, 0])
    >>> round(pairs.objective(dm.workloads.identity(4)), 4)
    43.1442
    """

    def __init__(self, user_types: int, epsilon: float, sizes: npt.ArrayLike) -> None:
        self.user_types, self.epsilon = _at_least_two(user_types), as_epsilon(epsilon)
        array = validate.finite(1, sizes=sizes)
        if len(array) != self.user_types + 1 or np.any(array < 0) or abs(array.sum() - 1) > 1e-9:
            raise InvalidInputError(
                f"sizes must be a probability over 0 to {self.user_types} members, got {len(array)} numbers "
                f"of sum {array.sum():g}"
            )
        self.sizes: Array = array / array.sum()

    @property
    def spread(self) -> float:
        """g, the eigenvalue of G on everything but the ones."""
        n, excess = self.user_types, math.expm1(self.epsilon)
        count = np.arange(n + 1)
        traces = count * (n - count) * (excess / (n + count * excess)) ** 2
        return float(self.sizes @ traces / (n - 1))

    def gram(self) -> Array:
        n = self.user_types
        return np.asarray(np.full((n, n), (1 - self.spread) / n) + self.spread * np.eye(n))

    def second_moments(self, form: Array) -> Array:
        """Return ``Σ_S Q_Su p_S' K p_S`` (n,) of a symmetric K (n, n).

        With ``p_S = 1/n + b Π 1_S``, ``b = c / (n + c |S|)``, the mean over the sets of one size takes the
        probabilities that such a set holds one, two and three given types.
        """
        n, excess = self.user_types, math.expm1(self.epsilon)
        means = form.mean(axis=1)
        slopes = means - means.mean()
        curve = np.diag(form) - 2 * means + means.mean()
        total = float(curve.sum())
        count = np.arange(n + 1)
        one = count / n
        two = one * (count - 1) / (n - 1)
        three = two * (count - 2) / max(n - 2, 1)
        weight = n * self.sizes / (n + count * excess)
        share = excess / (n + count * excess)
        lifted = curve * (one - 3 * two + 2 * three)[:, None] + total * (two - three)[:, None]
        linear = 2 * (weight * share * excess) @ (one - two) * slopes
        quadratic = (weight * share**2) @ (total * (one - two)[:, None] + excess * lifted)
        return np.asarray(means.mean() + linear + quadratic)

    def evidence(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        counts, generator = self._counts(x), validate.generator(rng=rng)
        people = np.repeat(np.arange(self.user_types), counts)
        evidence = np.zeros(self.user_types)
        for part in np.array_split(people, max(1, -(-len(people) * self.user_types // CHUNK))):
            evidence += patterns(self._draw(part, generator), self.epsilon).sum(axis=0)
        return evidence

    def with_listed_sets(self) -> MatrixRival:
        n = self.user_types
        used = [int(size) for size in np.flatnonzero(self.sizes)]
        if sum(math.comb(n, size) for size in used) > MAX_OUTPUTS:
            raise InvalidInputError(f"the mechanism reports more than {MAX_OUTPUTS} sets; they are not listed")
        blocks = []
        for size in used:
            sets = np.zeros((math.comb(n, size), n), dtype=bool)
            for row, members in zip(sets, itertools.combinations(range(n), size), strict=True):
                row[list(members)] = True
            blocks.append(n * self.sizes[size] / len(sets) * patterns(sets, self.epsilon))
        return MatrixRival(np.vstack(blocks), self.epsilon)

    def _draw(self, people: npt.NDArray[np.intp], generator: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Draw the sets of users of given types (s, n): a size, whether the own type is in, and random others."""
        n, growth = self.user_types, np.exp(self.epsilon)
        size = generator.choice(n + 1, len(people), p=self.sizes)
        keeps = generator.random(len(people)) * (size * growth + n - size) < size * growth
        keys = generator.random((len(people), n))
        # The own type goes first or last; those with the smallest keys are in.
        keys[np.arange(len(people)), people] = np.where(keeps, -1.0, 2.0)
        ranks = np.argsort(np.argsort(keys, axis=1), axis=1)
        return np.asarray(ranks < size[:, None])

    def __repr__(self) -> str:
        return f"SetRival({self.user_types} user types, epsilon={self.epsilon:.6g})"


def subset_selection(user_types: int, epsilon: float, size: int | None = None) -> SetRival:
    """Report a random set of k user types that holds the own one with probability ``k e^ε / (k e^ε + n - k)``.

    With `size`, k, from 1 to n - 1; by default the best for histograms, one of the integers next to ``n / (e^ε + 1)``.
    Source: Ye and Barg, "Optimal schemes for discrete distribution estimation under locally differential privacy", IEEE
    Transactions on Information Theory 64(8), 2018. Its objective on histograms, ``1 + (n-1)² / max_k τ_k`` with ``τ_k =
    k (n-k) c² / (n + k c)²``, meets the closed-form bound of `dualmech.LocalStrategy`: it is optimal.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> round(rivals.subset_selection(64, 1.0).objective(dm.workloads.identity(64)), 3)
    14618.662
    """
    n, excess = _at_least_two(user_types), math.expm1(as_epsilon(epsilon))
    if size is None:
        count = np.arange(1, n)
        chosen = 1 + int(np.argmax(count * (n - count) / (n + count * excess) ** 2))
    else:
        chosen = validate.size(size=size)
        if chosen >= n:
            raise InvalidInputError(f"size must be from 1 to {n - 1}, got {chosen}")
    return SetRival(n, epsilon, np.arange(n + 1) == chosen)


def rappor(user_types: int, epsilon: float) -> SetRival:
    """Report every bit of the own type's indicator, each flipped with probability ``1 / (1 + e^(ε/2))``.

    Source: Erlingsson, Pihur and Korolova, "RAPPOR: randomized aggregatable privacy-preserving ordinal response", CCS
    2014, one time, without its hashing. Each type is a bit, so its 2^n outputs are sets.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> round(rivals.rappor(64, 1.0).objective(dm.workloads.identity(64)), 3)
    15799.151
    """
    # Imported here so that rivals load without it.
    from scipy.stats import binom

    n, flipped = _at_least_two(user_types), 1 / (1 + math.exp(as_epsilon(epsilon) / 2))
    others = np.pad(binom.pmf(np.arange(n), n - 1, flipped), 1)  # the other bits that are 1
    return SetRival(n, epsilon, (1 - flipped) * others[:-1] + flipped * others[1:])


def _at_least_two(user_types: int) -> int:
    count = validate.size(user_types=user_types)
    if count < 2:
        raise InvalidInputError("user_types must be at least 2, got 1")
    return count
