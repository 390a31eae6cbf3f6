"""Fixed mechanisms of local privacy: the methods that all of them have, and those whose reports can be listed.

A fixed mechanism knows neither the workload nor the data; only its reconstruction V depends on the workload, and is
the best for it (McKenna, Maity, Mazumdar and Miklau, PVLDB 13(11), 2020, theorem 3.10). Everything here needs no more
of a workload than its Gram matrix, so `dualmech.workloads.from_gram` does where there are too many queries.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import scipy.linalg

import dualmech as dm
from dualmech import validate, workloads
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.studies.rivals.plain import checked
from dualmech.validate import Array

ALPHA = 0.01  # variance of a query over the squared number of users, for which users are counted

UNSEEN = 1e-12
"""Part of a workload's squares that a mechanism does not tell, relative, up to which it counts as rounding."""


def as_epsilon(epsilon: float) -> float:
    value = validate.positive_number(epsilon=epsilon)
    if not 1e-6 <= value <= 100:
        raise InvalidInputError(f"epsilon must be from 1e-06 to 100, got {value:g}")
    return value


def patterns(sets: npt.ArrayLike, epsilon: float) -> Array:
    """Return ``(1 + c 1_S) / (n + c |S|)`` of sets S of user types, one a row (s, n), ``c = e^ε - 1``."""
    rows = 1 + math.expm1(epsilon) * np.asarray(sets, dtype=np.float64)
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


class LocalRival(ABC):
    """A mechanism that n types of users run by themselves, without knowing the workload.

    Attributes
    ----------
    user_types : int
        n.
    epsilon : float
        ε.
    """

    user_types: int
    epsilon: float

    @abstractmethod
    def user_variances(self, workload: dm.Workload) -> Array:
        """Return ``T_u`` (n,): total variance over all queries that one user of each type adds."""

    def objective(self, workload: dm.Workload) -> float:
        """Return ``L = Σ_u T_u + ‖W‖_F²``, the objective of `dualmech.LocalStrategy` on average."""
        return float(self.user_variances(workload).sum() + np.trace(self._gram_of(workload)))

    def sample_complexity(self, workload: dm.Workload, alpha: float = ALPHA, queries: int | None = None) -> float:
        """Return how many users bring the variance of a query, divided by their number squared, to α.

        ``max_u T_u / (p α)``, p the number of `queries`, by default of the workload's rows (definition 5.2 and
        corollary 5.4 of the paper).
        """
        count = checked(workload).shape[0] if queries is None else validate.size(queries=queries)
        return float(self.user_variances(workload).max() / (count * validate.positive_number(alpha=alpha)))

    def _gram_of(self, workload: dm.Workload) -> Array:
        if checked(workload).shape[1] != self.user_types:
            raise InvalidInputError(
                f"workload must have {self.user_types} cells, one per user type, got {workload.shape[1]}"
            )
        return workload.gram()


class FactorisedRival(LocalRival):
    """A mechanism with a strategy matrix Q, whether or not it can be written out.

    With rows ``q_o`` of sum ``w_o`` and ``p_o = q_o / w_o``, all that is needed is ``G = Σ_o w_o p_o p_o'``, and the
    second moments ``Σ_o Q_ou p_o' K p_o`` for any K: the best reconstruction is ``V_o = W G⁺ p_o``.
    """

    @abstractmethod
    def gram(self) -> Array:
        """Return G (n, n)."""

    @abstractmethod
    def second_moments(self, form: Array) -> Array:
        """Return ``Σ_o Q_ou p_o' K p_o`` (n,) of a symmetric K (n, n)."""

    @abstractmethod
    def evidence(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        """Draw ``Σ p_o`` (n,) over the reports of ``x_u`` users of each type; its expectation is ``G x``."""

    def user_variances(self, workload: dm.Workload) -> Array:
        """Return ``T_u = Σ_o Q_ou ‖W G⁺ p_o‖² - ‖W_u‖²`` (n,), variance with the best reconstruction."""
        gram = self._gram_of(workload)
        inverse, unseen = self._inverse()
        if float(np.einsum("iu,uv,iv->", unseen, gram, unseen)) > UNSEEN * float(np.trace(gram)):
            raise InvalidInputError("the mechanism's reports do not determine the workload's answers")
        form = inverse @ gram @ inverse
        return np.asarray(self.second_moments((form + form.T) / 2) - np.diag(gram))

    def simulate(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        """Draw an estimate of the data vector, ``G⁺ Σ p_o`` (n,) over the reports of ``x_u`` users of each type."""
        return np.asarray(self._inverse()[0] @ self.evidence(x, rng))

    def _counts(self, x: npt.ArrayLike) -> npt.NDArray[np.int64]:
        data = validate.finite(1, x=x)
        if len(data) != self.user_types or np.any(data < 0) or np.any(data != np.round(data)):
            raise InvalidInputError(f"x must hold {self.user_types} whole numbers of users, none negative")
        return data.astype(np.int64)

    def _inverse(self) -> tuple[Array, Array]:
        """Return G⁺, and orthonormal rows that span the null space of G."""
        gram = self.gram()
        values, vectors = np.linalg.eigh((gram + gram.T) / 2)
        kept = values > 8 * self.user_types * np.finfo(float).eps * values[-1]
        seen = vectors[:, kept]
        return (seen / values[kept]) @ seen.T, vectors[:, ~kept].T


class MatrixRival(FactorisedRival):
    """A fixed mechanism whose reports can be listed: a strategy matrix Q (m, n).

    - `strategy` (m, n): Q; `dualmech.LocalMechanism` says what it must be;
    - `epsilon`: ε, from 1e-6 to 100.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> flip = rivals.MatrixRival([[0.75, 0.25], [0.25, 0.75]], np.log(3))
    >>> flip.user_variances(dm.workloads.identity(2)).round(9)
    array([1.5, 1.5])
    """

    def __init__(self, strategy: npt.ArrayLike, epsilon: float) -> None:
        array = validate.finite(2, strategy=strategy)
        # The mean over all users can be told from any report, so this checks the strategy alone.
        total = dm.Workload(np.ones((1, array.shape[1])))
        self.strategy: Array = dm.LocalMechanism(array, epsilon, total).strategy
        self.user_types, self.epsilon = array.shape[1], as_epsilon(epsilon)

    def mechanism(self, workload: dm.Workload) -> dm.LocalMechanism:
        return dm.LocalMechanism(self.strategy, self.epsilon, workload)

    def gram(self) -> Array:
        return np.asarray(self.strategy.T @ self._rows())

    def second_moments(self, form: Array) -> Array:
        rows = self._rows()
        return np.asarray(self.strategy.T @ np.einsum("ou,ou->o", rows @ form, rows))

    def evidence(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        generator, rows = validate.generator(rng=rng), self._rows()
        columns = zip(self._counts(x), self.strategy.T, strict=True)
        counts = sum(generator.multinomial(count, column / column.sum()) for count, column in columns)
        return np.asarray(counts @ rows)

    def _rows(self) -> Array:
        return np.asarray(self.strategy / self.strategy.sum(axis=1, keepdims=True))

    def __repr__(self) -> str:
        outputs, size = self.strategy.shape
        return f"MatrixRival({outputs} outputs x {size} user types, epsilon={self.epsilon:.6g})"


# Fixed mechanisms of few outputs: randomised response, Hadamard response, and one Fourier coefficient per user.

MAX_ATTRIBUTES = 12
"""Largest number of binary attributes whose coefficients are written out, for 2^12 user types."""


def randomised_response(user_types: int, epsilon: float) -> MatrixRival:
    """Report the own type with a probability e^ε times that of every other: ``Q = (11' + c I) / (n + c)``.

    Source: Warner, Journal of the American Statistical Association 60, 1965; example 2.7 of McKenna, Maity, Mazumdar
    and Miklau, PVLDB 13(11), 2020. On histograms each user's variance is ``(n-1) (n + 2c) / c²`` with ``c = e^ε - 1``.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> response = rivals.randomised_response(8, np.log(3))
    >>> response.user_variances(dm.workloads.identity(8))[0].round(9), (8 - 1) * (8 + 2 * 2) / 2**2
    (np.float64(21.0), 21.0)
    """
    size = validate.size(user_types=user_types)
    return MatrixRival(patterns(np.eye(size, dtype=bool), as_epsilon(epsilon)), epsilon)


def hadamard_response(user_types: int, epsilon: float, blocks: int | None = None) -> MatrixRival:
    """Report a random column of a Hadamard matrix; those where the own row holds +1 are e^ε times as likely.

    The outputs are B blocks of b, a power of two. Each type has its own row of the Hadamard matrix of one block, never
    the first; the b/2 outputs of this block where the row is +1 are e^ε times as likely as all others.
    Source: Acharya, Sun and Zhang, "Hadamard response: estimating distributions privately, efficiently, and with little
    communication", AISTATS 2019. b is the least power of two above ``n / B``.

    With `blocks`, B, by default ``2^(⌈log2 min(e^ε, 2n)⌉ - 1)``, the authors' rule; 1 is their scheme for high privacy.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> rivals.hadamard_response(6, 1.0), rivals.hadamard_response(7, 0.5).strategy.shape
    (MatrixRival(8 outputs x 6 user types, epsilon=1), (8, 7))
    """
    size, growth = validate.size(user_types=user_types), math.exp(as_epsilon(epsilon))
    rule = 1 << max(math.ceil(math.log2(min(growth, 2 * size))) - 1, 0)
    count = rule if blocks is None else validate.size(blocks=blocks)
    length = 1 << math.ceil(math.log2(size / count + 1))
    rows = scipy.linalg.hadamard(length)[1:] > 0
    likely = np.kron(np.eye(count, dtype=bool), rows.T)[:, :size]
    return MatrixRival(np.where(likely, growth, 1.0) / (length * (count + (growth - 1) / 2)), epsilon)


def fourier_response(attributes: int, epsilon: float, order: int | None = None) -> MatrixRival:
    """Report the sign of one Fourier coefficient of the own cell, drawn at random, by randomised response.

    The cells are those of k binary attributes, the coefficients their parities (`dualmech.workloads.parity`). Marginals
    on at most `order` attributes need no other.
    Source: Cormode, Kulkarni and Srivastava, "Marginal release under local differential privacy", SIGMOD 2018 (InpHT).

    Parameters
    ----------
    attributes : int
        k; there are ``2^k`` user types.
    order : int, optional
        Largest number of attributes of a parity; by default all. The constant is known and never asked.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> rivals.fourier_response(3, 1.0, order=2)
    MatrixRival(12 outputs x 8 user types, epsilon=1)
    """
    count, growth = validate.size(attributes=attributes), math.exp(as_epsilon(epsilon))
    largest = count if order is None else validate.size(order=order)
    if count > MAX_ATTRIBUTES:
        raise InvalidInputError(f"attributes must be at most {MAX_ATTRIBUTES}, got {count}")
    if largest > count:
        raise InvalidInputError(f"order must be from 1 to {count}, the attributes, got {largest}")
    signs = workloads.parity(count, range(1, largest + 1)).dense()
    outputs = np.vstack([signs, -signs]) > 0
    return MatrixRival(np.where(outputs, growth, 1.0) / ((growth + 1) * len(signs)), epsilon)


# The hierarchical mechanism of local privacy: every user reports their node of one level of a tree.

Oracle = Callable[[int, float], FactorisedRival]
"""Makes a mechanism to report one of several nodes at ε, such as `hadamard_response` or `subset_selection`."""


class MixedRival(FactorisedRival):
    """Every user draws one of several fixed mechanisms, which sees no more than a group of user types.

    - `parts`: drawn with equal probabilities, all of one ε;
    - `groups`: for each part, the group from 0 to k - 1 that a user type belongs to, k the user types of the part; all
      groups of one part have the same number of members.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> halves = rivals.MixedRival(
    ...     [rivals.subset_selection(4, 1.0), rivals.subset_selection(2, 1.0)], [[0, 1, 2, 3], [0, 0, 1, 1]]
    ... )
    >>> halves.user_variances(dm.workloads.identity(4)).round(4)
    array([11.9705, 11.9705, 11.9705, 11.9705])
    """

    def __init__(self, parts: Sequence[FactorisedRival], groups: Sequence[npt.ArrayLike]) -> None:
        if not parts or len(groups) != len(parts):
            raise InvalidInputError(f"groups must be given for each of the parts, got {len(groups)} for {len(parts)}")
        if any(not isinstance(part, FactorisedRival) for part in parts):
            raise InputTypeError("parts must be fixed mechanisms with a strategy matrix")
        if len({part.epsilon for part in parts}) > 1:
            raise InvalidInputError("parts must have one epsilon, got several")
        self.parts, self.epsilon = tuple(parts), parts[0].epsilon
        self.groups = tuple(np.asarray(group, dtype=np.intp) for group in groups)
        self.user_types = len(self.groups[0])
        for part, group in zip(self.parts, self.groups, strict=True):
            members = np.bincount(group, minlength=part.user_types)
            if len(group) != self.user_types or len(members) != part.user_types or members.min() != members.max():
                raise InvalidInputError(
                    f"groups must put {self.user_types} user types into {part.user_types} groups of one size"
                )

    def gram(self) -> Array:
        """Return the mean over the parts of ``A' G A``, per member of a group, A (k, n) the groups' indicators."""
        total = np.zeros((self.user_types, self.user_types))
        for part, group in zip(self.parts, self.groups, strict=True):
            total += part.gram()[np.ix_(group, group)] * part.user_types / self.user_types
        return np.asarray(total / len(self.parts))

    def second_moments(self, form: Array) -> Array:
        total = np.zeros(self.user_types)
        for part, group in zip(self.parts, self.groups, strict=True):
            sums = (np.arange(part.user_types)[:, None] == group) * (part.user_types / self.user_types)
            total += part.second_moments(sums @ form @ sums.T)[group]
        return np.asarray(total / len(self.parts))

    def evidence(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        counts, generator = self._counts(x), validate.generator(rng=rng)
        shares = np.full(len(self.parts), 1 / len(self.parts))
        taken = np.array([generator.multinomial(count, shares) for count in counts])
        total = np.zeros(self.user_types)
        for part, group, people in zip(self.parts, self.groups, taken.T, strict=True):
            evidence = part.evidence(np.bincount(group, people, part.user_types), generator)
            total += evidence[group] * part.user_types / self.user_types
        return total

    def __repr__(self) -> str:
        return f"MixedRival({len(self.parts)} parts, {self.user_types} user types, epsilon={self.epsilon:.6g})"


def hierarchical_response(
    user_types: int, epsilon: float, branching: int = 4, oracle: Oracle = hadamard_response
) -> FactorisedRival:
    """Let every user draw a level of a tree and report their node of it by a frequency oracle.

    The levels are intervals of 1, b, b², … cells while shorter than all; the last interval of a level is shorter where
    the numbers do not divide. The sum of all cells is known and never asked.
    Source: Cormode, Kulkarni and Srivastava, "Answering range queries under local differential privacy", PVLDB 12(10),
    2019.
    Returns `MatrixRival` or MixedRival: the former where the oracle's reports can be listed.

    Parameters
    ----------
    branching : int
        b, at least 2.
    oracle : callable
        Takes a number of nodes and ε to a fixed mechanism that reports one. Where it is no `MatrixRival`, the nodes
        of a level must be of one size, as where n is a power of b.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> tree = rivals.hierarchical_response(64, 1.0)
    >>> sets = rivals.hierarchical_response(64, 1.0, oracle=rivals.subset_selection)
    >>> prefixes = dm.workloads.prefix(64)
    >>> tree, round(tree.sample_complexity(prefixes)), round(sets.sample_complexity(prefixes))
    (MatrixRival(168 outputs x 64 user types, epsilon=1), 2848, 1468)
    """
    size, factor = validate.size(user_types=user_types), validate.size(branching=branching)
    if size < 2 or factor < 2:
        raise InvalidInputError(f"user_types and branching must be at least 2, got {size} and {factor}")
    validate.function(oracle=oracle)
    budget, lengths = as_epsilon(epsilon), [1]
    while lengths[-1] * factor < size:
        lengths.append(lengths[-1] * factor)
    groups = [np.arange(size) // length for length in lengths]
    parts = [oracle(int(group[-1]) + 1, budget) for group in groups]
    listed = [part for part in parts if isinstance(part, MatrixRival)]
    if len(listed) < len(parts):
        return MixedRival(parts, groups)
    stacked = [part.strategy[:, group] for part, group in zip(listed, groups, strict=True)]
    return MatrixRival(np.vstack(stacked) / len(stacked), budget)
