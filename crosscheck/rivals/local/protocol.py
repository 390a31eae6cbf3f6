"""Fixed mechanisms of local privacy: what every one of them answers, and those whose reports can be listed.

A fixed mechanism knows neither the workload nor the data; only its reconstruction V depends on the workload, and is
the best for it (McKenna, Maity, Mazumdar and Miklau, PVLDB 13(11), 2020, theorem 3.10). Everything here asks of a
workload no more than its Gram matrix, so `dualmech.workloads.from_gram` does where there are too many queries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.local.strategies import as_epsilon
from dualmech.linalg import EPS
from dualmech.mechanisms.local import NORMALISED_VARIANCE, LocalMechanism
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload

UNSEEN = 1e-12
"""Part of a workload's squares outside what a mechanism tells, relative, up to which it counts as rounding."""


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
    def user_variances(self, workload: Workload) -> Array:
        """Return ``T_u`` (n,): total variance over all queries that one user of each type adds."""

    @abstractmethod
    def respond(self, user: int, rng: np.random.Generator | int | None = None) -> Any:
        """Draw the report of one user of a type, for study: whoever knows the seed knows the user."""

    @abstractmethod
    def simulate(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        """Draw an estimate of the data vector (n,) from ``x_u`` users of each type, for study.

        A workload's answers are its product with it, unbiased and of variance ``Σ_u x_u T_u`` in total, provided that
        the mechanism can answer it.
        """

    def objective(self, workload: Workload) -> float:
        """Return ``L = Σ_u T_u + ‖W‖_F²``, what `dualmech.LocalStrategy` minimises on average."""
        return float(self.user_variances(workload).sum() + np.trace(self._gram_of(workload)))

    def sample_complexity(
        self,
        workload: Workload,
        alpha: float = NORMALISED_VARIANCE,
        average: bool = False,
        queries: int | None = None,
    ) -> float:
        """Return how many users bring the variance of a query, divided by their number squared, to α.

        ``max_u T_u / (p α)``, p the number of `queries`, by default of the workload's rows (definition 5.2 and
        corollary 5.4 of the paper); with `average` the mean over the user types instead.
        """
        count = check_workload(workload).shape[0] if queries is None else validate.size(queries=queries)
        variances = self.user_variances(workload)
        spread = variances.mean() if average else variances.max()
        return float(spread / (count * validate.positive_number(alpha=alpha)))

    def _gram_of(self, workload: Workload) -> Array:
        if check_workload(workload).shape[1] != self.user_types:
            raise InvalidInputError(
                f"workload must have {self.user_types} cells, one per user type, got {workload.shape[1]}"
            )
        return workload.gram()

    def _counts(self, x: npt.ArrayLike) -> npt.NDArray[np.int64]:
        data = validate.finite(1, x=x)
        if len(data) != self.user_types or np.any(data < 0) or np.any(data != np.round(data)):
            raise InvalidInputError(f"x must hold {self.user_types} whole numbers of users, none negative")
        return data.astype(np.int64)

    def _type(self, user: int) -> int:
        if isinstance(user, bool) or not isinstance(user, int | np.integer):
            raise InputTypeError(f"user must be a type from 0 to {self.user_types - 1}, got {user!r}")
        if not 0 <= user < self.user_types:
            raise InvalidInputError(f"user must be a type from 0 to {self.user_types - 1}, got {user}")
        return int(user)


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

    def user_variances(self, workload: Workload) -> Array:
        """Return ``T_u = Σ_o Q_ou ‖W G⁺ p_o‖² - ‖W_u‖²`` (n,), variance with the best reconstruction."""
        asked = self._gram_of(workload)
        inverse, unseen = self._inverse()
        if float(np.einsum("iu,uv,iv->", unseen, asked, unseen)) > UNSEEN * float(np.trace(asked)):
            raise InvalidInputError("the mechanism's reports do not determine the workload's answers")
        form = inverse @ asked @ inverse
        return np.asarray(self.second_moments((form + form.T) / 2) - np.diag(asked))

    def simulate(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        """Draw ``G⁺ Σ p_o`` (n,) over the reports of ``x_u`` users of each type."""
        return np.asarray(self._inverse()[0] @ self.evidence(x, rng))

    def _inverse(self) -> tuple[Array, Array]:
        """Return G⁺, and orthonormal rows that span what G does not see."""
        gram = self.gram()
        values, vectors = np.linalg.eigh((gram + gram.T) / 2)
        kept = values > 8 * self.user_types * EPS * values[-1]
        seen = vectors[:, kept]
        return (seen / values[kept]) @ seen.T, vectors[:, ~kept].T


class MatrixRival(FactorisedRival):
    """A fixed mechanism whose reports can be listed: a strategy matrix Q (m, n).

    - `strategy` (m, n): Q; `dualmech.LocalMechanism` says what it must be;
    - `epsilon`: ε, from 1e-6 to 100.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> flip = rivals.MatrixRival([[0.75, 0.25], [0.25, 0.75]], np.log(3))
    >>> flip.user_variances(dm.workloads.identity(2)).round(9)
    array([1.5, 1.5])
    """

    def __init__(self, strategy: npt.ArrayLike, epsilon: float) -> None:
        given = validate.finite(2, strategy=strategy)
        # The mean over all users can be told from any report, so this checks the strategy alone.
        total = Workload(np.ones((1, given.shape[1])))
        self.strategy: Array = LocalMechanism(given, epsilon, total).strategy
        self.user_types, self.epsilon = given.shape[1], as_epsilon(epsilon)

    def mechanism(self, workload: Workload) -> LocalMechanism:
        """Return the mechanism with the best reconstruction for a workload."""
        return LocalMechanism(self.strategy, self.epsilon, workload)

    def gram(self) -> Array:
        """Return ``Q' diag(Q 1)⁻¹ Q`` (n, n)."""
        return np.asarray(self.strategy.T @ self._rows())

    def second_moments(self, form: Array) -> Array:
        """Return ``Σ_o Q_ou p_o' K p_o`` (n,) of a symmetric K (n, n)."""
        rows = self._rows()
        return np.asarray(self.strategy.T @ np.einsum("ou,ou->o", rows @ form, rows))

    def respond(self, user: int, rng: np.random.Generator | int | None = None) -> int:
        """Draw the output that one user of a type reports, for study."""
        column = self.strategy[:, self._type(user)]
        return int(validate.generator(rng=rng).choice(len(column), p=column / column.sum()))

    def evidence(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        """Draw ``Σ p_o`` (n,) over the reports of ``x_u`` users of each type."""
        generator, rows = validate.generator(rng=rng), self._rows()
        columns = zip(self._counts(x), self.strategy.T, strict=True)
        counts = sum(generator.multinomial(count, column / column.sum()) for count, column in columns)
        return np.asarray(counts @ rows)

    def _rows(self) -> Array:
        return np.asarray(self.strategy / self.strategy.sum(axis=1, keepdims=True))

    def __repr__(self) -> str:
        outputs, size = self.strategy.shape
        return f"MatrixRival({outputs} outputs x {size} user types, epsilon={self.epsilon:.6g})"
