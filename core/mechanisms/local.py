"""Local mechanisms: every user reports at random, and answers to queries are estimated from the reports."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.accounting import normal_quantile
from dualmech.display import Displayed, decimal_above
from dualmech.errors import InvalidInputError
from dualmech.geometry.local import as_epsilon, as_prior, best_reconstruction, user_variances
from dualmech.immutable import freeze
from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload

RATIO_TOLERANCE = 1e-9
"""Excess of a ratio's logarithm over ε and of a column's sum over 1, relative to ε where that is below 1, or of a
bias, relative, up to which it counts as rounding. The mechanism's ε is then its strategy's."""

NORMALISED_VARIANCE = 0.01
"""The paper's variance for each query and user at which sample complexity is counted, α."""

MOST_QUERIES = 2**53  # queries whose number a double still holds
MOST_USERS = 2.0**53  # users of one type whose number a double still holds


class LocalMechanism(Displayed):
    """A workload factorisation mechanism: reports by a strategy matrix Q, answers by a reconstruction V, ``V Q = W``.

    A user of type u reports output o with probability ``Q_ou``. With the histogram y of all reports, ``V y`` estimates
    ``W x`` without bias; its total variance on the data x is ``Σ_u x_u T_u``.
    Raises `InvalidInputError` or `InputTypeError` for a ratio above e^ε (the worst output and its users are
    named), columns that do not sum to 1, negative entries, a strategy that cannot answer the workload, a
    reconstruction with a bias, shapes that do not fit.
    Source: proposition 2.6, definition 3.2 and theorem 3.4 of McKenna, Maity, Mazumdar and Miklau, PVLDB 13(11), 2020.

    Parameters
    ----------
    strategy : (m, n) array
        Q: columns are probabilities, and no entry exceeds e^ε times another in its row.
    epsilon : float
        ε of local differential privacy, from 1e-6 to 100.
    workload : Workload
        W, p queries over the n user types.
    reconstruction : (p, m) array, optional
        V; by default the best for `prior`.
    prior : (n,) array, optional
        Probability over user types under whose expected variance V is the best; uniform by default.

    Examples
    --------
    >>> import dualmech as dm
    >>> response = dm.LocalMechanism([[0.75, 0.25], [0.25, 0.75]], np.log(3), dm.workloads.identity(2))
    >>> response.user_variances
    array([1.5, 1.5])
    >>> response.reconstruction
    array([[ 1.5, -0.5],
           [-0.5,  1.5]])
    """

    __slots__ = ("epsilon", "reconstruction", "strategy", "workload")

    strategy: Array
    epsilon: float
    workload: Workload
    reconstruction: Array

    def __init__(
        self,
        strategy: npt.ArrayLike,
        epsilon: float,
        workload: Workload,
        reconstruction: npt.ArrayLike | None = None,
        prior: npt.ArrayLike | None = None,
    ) -> None:
        check_workload(workload)
        self.workload = workload
        self.strategy, self.epsilon = _as_strategy(strategy, as_epsilon(epsilon), workload.shape[1])
        if reconstruction is not None and prior is not None:
            raise InvalidInputError("give either reconstruction or prior, not both")
        if reconstruction is None:
            chosen = as_prior(prior, workload.shape[1])
            best = best_reconstruction(workload.dense(), self.strategy, chosen)
            if best is None:
                raise InvalidInputError("strategy cannot answer the workload: its rows do not span the workload's")
            self.reconstruction = self._as_reconstruction(best)
        else:
            self.reconstruction = self._as_reconstruction(reconstruction)

    @property
    def worst_ratio(self) -> float:
        """The largest ratio of two users' probabilities of one output; ε-LDP says at most ``e^ε``."""
        return float((self.strategy.max(axis=1) / self.strategy.min(axis=1)).max())

    @property
    def user_variances(self) -> Array:
        """``T_u``, total variance over all queries that one user of each type adds (n,)."""
        return user_variances(self.workload.dense(), self.strategy, self.reconstruction)

    @property
    def objective(self) -> float:
        """The paper's L, ``tr(V diag(Q 1) V')``: ``Σ_u T_u + ‖W‖_F²``."""
        lengths = np.einsum("jo,jo->o", self.reconstruction, self.reconstruction)
        return float(self.strategy.sum(axis=1) @ lengths)

    def average_variance(self, users: float = 1.0) -> float:
        """Return the total variance with `users` users, the mean over their types."""
        return validate.positive_number(users=users) * float(self.user_variances.mean())

    def worst_variance(self, users: float = 1.0) -> float:
        """Return the total variance with `users` users of the type for which it is largest."""
        return validate.positive_number(users=users) * float(self.user_variances.max())

    def variance(self, x: npt.ArrayLike) -> float:
        """Return the total variance ``Σ_u x_u T_u`` on a data vector x (n,), or per user on a prior."""
        data = self._data(x)
        if np.any(data < 0):
            raise InvalidInputError(f"x must not be negative, its least entry is {data.min():g}")
        return float(data @ self.user_variances)

    def sample_complexity(
        self, alpha: float = NORMALISED_VARIANCE, average: bool = False, queries: int | None = None
    ) -> float:
        """Return how many users bring the variance of a query, divided by their number squared, to α.

        ``max_u T_u / (p α)``; with `average` the mean over the user types instead. p is the number of `queries`, by
        default of the workload's rows; name it where these are a root of the Gram matrix of more.
        """
        count = self.workload.shape[0] if queries is None else validate.size(MOST_QUERIES, queries=queries)
        spread = self.average_variance() if validate.boolean(average=average) else self.worst_variance()
        return spread / (count * validate.positive_number(alpha=alpha))

    def respond(self, user: int, rng: np.random.Generator | int | None = None) -> int:
        """Draw the report of one user of a type. NOT private against anyone who knows the seed, if one is given.

        Raises `InvalidInputError` or `InputTypeError` for no such type.
        """
        size = self.strategy.shape[1]
        user = validate.index(size, user=user)
        generator = validate.generator(rng=rng)
        return int(generator.choice(len(self.strategy), p=_probabilities(self.strategy[:, user])))

    def responses(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        """Draw the histogram of reports (m,) of ``x_u`` users of each type, for study."""
        data, generator = self._data(x), validate.generator(rng=rng)
        if np.any(data < 0) or np.any(data != np.round(data)) or np.any(data > MOST_USERS):
            raise InvalidInputError(f"x must hold whole numbers of users, from 0 to {MOST_USERS:g}")
        columns = zip(data.astype(np.int64), self.strategy.T, strict=True)
        counts = sum(generator.multinomial(count, _probabilities(column)) for count, column in columns)
        return np.asarray(counts, dtype=np.float64)

    def estimate(self, responses: npt.ArrayLike) -> Array:
        """Return the unbiased answers ``V y`` (p,) to a histogram of reports y (m,)."""
        counts = validate.finite(1, responses=responses)
        if len(counts) != len(self.strategy):
            raise InvalidInputError(
                f"responses must have {len(self.strategy)} entries, one per output, got {len(counts)}"
            )
        return np.asarray(self.reconstruction @ counts)

    def margins(self, responses: npt.ArrayLike, level: float = 0.95) -> Array:
        """Return the margin of error of each answer (p,) to a histogram of N reports, at a level.

        The variance of answer j on the data x is ``Σ_o V_jo² E[y_o] - Σ_u x_u W_ju²``, and the latter sum at least
        ``(W_j x)² / N`` by Cauchy's inequality. The first is estimated without bias by ``Σ_o V_jo² y_o``, and of the
        second its bound at the answer is taken off, so that margins err on the wide side.

        Examples
        --------
        >>> import dualmech as dm
        >>> response = dm.LocalMechanism([[0.75, 0.25], [0.25, 0.75]], np.log(3), dm.workloads.identity(2))
        >>> response.margins([520, 480]).round(1)
        array([61.9, 61.9])
        """
        answers, counts = self.estimate(responses), validate.finite(1, responses=responses)
        chosen, users = validate.probability(level=level), float(counts.sum())
        if np.any(counts < 0) or users <= 0:
            raise InvalidInputError("responses must hold one report or more, and no negative number of them")
        # The same as ``Σ_o V_jo² y_o - (V_j y)² / N``, of which little may be left.
        spread = (self.reconstruction - answers[:, None] / users) ** 2 @ counts
        return np.asarray(normal_quantile(chosen) * np.sqrt(spread))

    def simulate(self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> Array:
        """Draw the answers (p,) that ``x_u`` users of each type would give, for study. NOT a private release."""
        return self.estimate(self.responses(x, rng))

    def _facts(self) -> dict[str, object]:
        outputs, size = self.strategy.shape
        return {"epsilon (local)": decimal_above(self.epsilon), "outputs": outputs, "user types": size}

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name."""
        return {
            "strategy": self.strategy,
            "reconstruction": self.reconstruction,
            "workload": self.workload,
            "epsilon": self.epsilon,
        }

    def __repr__(self) -> str:
        outputs, size = self.strategy.shape
        return f"LocalMechanism({outputs} outputs x {size} user types, epsilon={decimal_above(self.epsilon)})"

    def _as_reconstruction(self, reconstruction: npt.ArrayLike) -> Array:
        matrix = validate.finite(2, reconstruction=reconstruction)
        shape, queries = (self.workload.shape[0], len(self.strategy)), self.workload.dense()
        if matrix.shape != shape:
            raise InvalidInputError(f"reconstruction must have shape {shape}, got {matrix.shape}")
        # Each query is a promise of its own: one that is small next to others is answered as well as they are.
        biases, sizes = (np.abs(rows).max(axis=1) for rows in (matrix @ self.strategy - queries, queries))
        excess = biases - RATIO_TOLERANCE * sizes
        if np.any(excess > 0):
            worst = int(np.argmax(biases / np.maximum(sizes, np.finfo(np.float64).tiny)))
            raise InvalidInputError(
                f"reconstruction must satisfy V Q = W, but misses query {worst} by {biases[worst]:.3g}, whose largest "
                f"entry is {sizes[worst]:.3g}: where none was given, the strategy cannot answer that query"
            )
        return matrix

    def _data(self, x: npt.ArrayLike) -> Array:
        vector, size = validate.finite(1, x=x), self.strategy.shape[1]
        if len(vector) != size:
            raise InvalidInputError(f"x must have {size} entries, one per user type, got {len(vector)}")
        return vector


def _as_strategy(strategy: npt.ArrayLike, epsilon: float, size: int) -> tuple[Array, float]:
    """Return Q without outputs that nobody reports, after the conditions of proposition 2.6, and the ε that it has."""
    matrix = validate.finite(2, strategy=strategy)
    if matrix.shape[1] != size:
        raise InvalidInputError(f"strategy must have {size} columns, one per user type, got {matrix.shape[1]}")
    if np.any(matrix < 0):
        raise InvalidInputError(f"strategy must not be negative, its least entry is {matrix.min():g}")
    off, allowed = np.abs(matrix.sum(axis=0) - 1), RATIO_TOLERANCE * min(epsilon, 1.0)
    if off.max() > allowed + len(matrix) * EPS:
        worst = int(np.argmax(off))
        raise InvalidInputError(f"strategy must have columns of sum 1, column {worst} misses it by {off[worst]:.3g}")
    kept = np.ascontiguousarray(matrix[np.any(matrix > 0, axis=1)])
    with np.errstate(divide="ignore", over="ignore"):
        ratios = np.log1p((kept.max(axis=1) - kept.min(axis=1)) / kept.min(axis=1))
    worst = int(np.argmax(ratios))
    if ratios[worst] > epsilon + allowed + 4 * EPS:
        row = kept[worst]
        raise InvalidInputError(
            f"strategy is not {epsilon:g}-LDP: an output has probabilities {row.max():.6g} for user type "
            f"{int(np.argmax(row))} and {row.min():.6g} for {int(np.argmin(row))}, "
            f"which takes ε of {decimal_above(float(ratios[worst]))}"
        )
    # Columns are drawn from as if they summed to 1; below a few units of rounding they do.
    unequal = 2 * float(off.max()) if off.max() > len(matrix) * EPS else 0.0
    return freeze(kept), max(epsilon, float(ratios[worst]) * (1 + 4 * EPS) + unequal)


def _probabilities(column: Array) -> Array:
    """Return a column with a sum that a generator accepts: off by rounding only."""
    return np.asarray(column / column.sum())
