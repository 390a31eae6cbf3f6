"""The matrix mechanism of the central model, run by every user on their own one record."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.spatial.distance

import dualmech as dm
from dualmech import accounting, designs, fast, neighbours, validate, workloads
from dualmech.errors import InvalidInputError
from dualmech.studies.rivals.plain import checked
from dualmech.studies.rivals.responses import UNSEEN, LocalRival, as_epsilon
from dualmech.studies.rivals.trees import interval_tree
from dualmech.validate import Array

# Strategies for Laplace noise that are optimised: the cells and some weighted sums of them, each column scaled.
#
# The problem is not convex. The method finds a local optimum, about which nothing is proven.

CELLS_PER_SUM = 16  # cells for each weighted sum, as the authors of HDMM have it


def identity_and_sums(gram: Array, rng: np.random.Generator | int) -> Array:
    """Return a strategy A (d + p, d) with columns of L1 norm 1 and a small total variance ``tr((A'A)⁻¹ W'W)``.

    ``A = [I; Θ] diag(1 + Θ'1)⁻¹`` with Θ (p, d) ≥ 0, p a sixteenth of d (the p-identity strategies of McKenna, Miklau,
    Hay and Machanavajjhala, "Optimizing error of high-dimensional statistical queries under differential privacy",
    PVLDB 11(10), 2018): such an A always has full rank, and no constraint is left but the signs.

    Parameters
    ----------
    gram : (d, d) array
        ``W'W``.
    rng : int or Generator
        The source of the random starts.
    """
    # Imported here so that rivals load without it.
    from scipy.optimize import minimize

    generator, size = validate.generator(rng=rng), len(gram)
    sums = max(size // CELLS_PER_SUM, 1)
    unit = float(np.linalg.norm(gram)) or 1.0
    trials = [
        minimize(
            lambda values: total_variance(values.reshape(sums, size), gram / unit),
            generator.uniform(size=sums * size),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * (sums * size),
            options={"maxiter": 300, "maxcor": 10},
        )
        for _ in range(2)  # of random starts, the best counts
    ]
    weights = min(trials, key=lambda trial: float(trial.fun)).x.reshape(sums, size)
    return np.asarray(np.vstack([np.eye(size), weights]) / (1 + weights.sum(axis=0)))


def total_variance(weights: Array, gram: Array) -> tuple[float, Array]:
    """Return ``tr((A'A)⁻¹ W'W)`` and its derivative in Θ (p, d), raveled.

    ``(A'A)⁻¹ = D (I + Θ'Θ)⁻¹ D`` with ``D = diag(1 + Θ'1)``, and the inverse is of a p x p matrix.
    """
    scale = 1 + weights.sum(axis=0)
    small = np.linalg.inv(np.eye(len(weights)) + weights @ weights.T)
    inverse = np.eye(len(scale)) - weights.T @ small @ weights
    scaled = scale[:, None] * gram * scale
    solved = weights @ inverse
    slopes = 2 * np.einsum("uv,uv,v->u", inverse, gram, scale) - 2 * (solved @ scaled) @ inverse
    return float(np.vdot(inverse, scaled)), slopes.ravel()


BRANCHINGS = (2, 4, 8, 16)  # branching factors of the trees that the L1 version tries

EXACT = 64
"""User types up to which the strategy of the L2 version is optimised for the neighbours of local privacy, two types."""


class NoiseRival(LocalRival):
    """Every user of type u reports column u of a strategy A with noise of their own.

    The reports have infinitely many values, so there is no strategy matrix Q; every user type has the same
    variance. Two types differ by ``A (e_u - e_v)``, whose largest norm is the sensitivity, and the number of users is
    known. So A is centred, ``A Π``, and the mean of x over the cells is exact.

    - `strategy` (k, n): A, one query per row;
    - `epsilon`: ε, from 1e-6 to 100;
    - `norm`: Laplace noise for the L1 sensitivity, or Gaussian noise for the L2 sensitivity;
    - `delta`: δ in (0, 1) of Gaussian noise, which is private in the sense of (ε, δ) only; not for Laplace noise.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> cells = dm.workloads.identity(4)
    >>> rivals.NoiseRival(np.eye(4), epsilon=1.0).user_variances(cells)   # 2 (2/ε)² times 3, one mean being known
    array([24., 24., 24., 24.])
    """

    def __init__(self, strategy: npt.ArrayLike, epsilon: float, norm: str = "l1", delta: float | None = None) -> None:
        array = validate.finite(2, strategy=strategy)
        validate.choice(("l1", "l2"), norm=norm)
        if (delta is None) != (norm == "l1"):
            raise InvalidInputError("delta is needed by Gaussian noise, norm='l2', and by no other")
        if array.shape[1] < 2:
            raise InvalidInputError("strategy must have at least two columns, one per user type, got 1")
        self.strategy: Array = array - array.mean(axis=1, keepdims=True)
        self.user_types, self.epsilon, self.norm = array.shape[1], as_epsilon(epsilon), norm
        self.delta = delta if delta is None else validate.probability(delta=delta)
        metric = "cityblock" if norm == "l1" else "euclidean"
        sensitivity = float(scipy.spatial.distance.pdist(array.T, metric).max())
        if sensitivity == 0:
            raise InvalidInputError("strategy must differ between user types, all its columns are the same")
        # Standard deviation of the noise: √2 b for Laplace noise of scale b.
        self.deviation = (
            2**0.5 * sensitivity / self.epsilon
            if self.delta is None
            else sensitivity / accounting.privacy_cost(self.epsilon, self.delta)
        )

    def user_variances(self, workload: dm.Workload) -> Array:
        """Return the variance that every user adds, ``s² ‖W (AΠ)⁺‖²`` (n,), s the noise's standard deviation."""
        gram, inverse = self._gram_of(workload), self._inverse()
        unseen = np.eye(self.user_types) - inverse @ self.strategy - 1 / self.user_types
        if float(np.einsum("ui,uv,vi->", unseen, gram, unseen)) > UNSEEN * float(np.trace(gram)):
            raise InvalidInputError("the strategy of the mechanism does not answer the workload")
        total = self.deviation**2 * float(np.einsum("uk,uv,vk->", inverse, gram, inverse))
        return np.full(self.user_types, max(total, 0.0))

    def _inverse(self) -> Array:
        return np.asarray(np.linalg.pinv(self.strategy, rcond=8 * max(self.strategy.shape) * np.finfo(float).eps))

    def __repr__(self) -> str:
        rows, size = self.strategy.shape
        return f"NoiseRival({rows} queries x {size} user types, {self.norm}, epsilon={self.epsilon:.6g})"


def matrix_mechanism(workload: dm.Workload, epsilon: float, norm: str = "l1", delta: float | None = None) -> NoiseRival:
    """Run the matrix mechanism locally, with the best strategy known for a workload.

    For L2 that is the one of least total variance (`dualmech.TotalVariance`) among neighbours that differ by the type
    of one user, up to `EXACT` user types; beyond, for the largest distance of a user from the mean. For L1 it is the
    best of one that is optimised, to a local optimum that is not certified (`identity_and_sums`), and of the cells,
    trees of `BRANCHINGS`, the Haar wavelet and, over attributes, the Fourier coefficients needed.
    Source: Edmonds, Nikolov and Ullman, "The power of factorization mechanisms in local and central differential
    privacy", STOC 2020.

    - `workload`: the queries for which the strategy is chosen;
    - `epsilon`, `norm`, `delta`: as for `NoiseRival`.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> prefixes = dm.workloads.prefix(16)
    >>> laplace = rivals.matrix_mechanism(prefixes, 1.0)
    >>> gauss = rivals.matrix_mechanism(prefixes, 1.0, norm="l2", delta=1e-9)
    >>> round(laplace.sample_complexity(prefixes), -1), round(gauss.sample_complexity(prefixes), -2)
    (2130.0, 10000.0)
    """
    checked(workload)
    strategies = [_least_total_variance(workload)] if norm == "l2" else _strategies(workload)
    rivals = [NoiseRival(strategy, epsilon, norm, delta) for strategy in strategies]
    return min(rivals, key=lambda rival: float(rival.user_variances(workload)[0]))


def _least_total_variance(workload: dm.Workload) -> Array:
    """Return a strategy of least total variance, stated where it matters: on the complement of the ones."""
    size = workload.shape[1]
    complement = scipy.linalg.null_space(np.ones((1, size)))
    moves = neighbours.replace_one(size).toarray() if size <= EXACT else np.eye(size)
    gram = workload.gram()
    compressed = complement.T @ gram @ complement
    if np.trace(compressed) <= UNSEEN * np.trace(gram):
        raise InvalidInputError("workload must ask more than the number of users, which is known")
    queries = workloads.from_gram(compressed)
    best = fast.solve(dm.TotalVariance(queries, neighbours=complement.T @ moves), tol=1e-3)
    values, vectors = np.linalg.eigh(best.mechanism.cost_matrix)
    kept = values > 8 * size * np.finfo(float).eps * values[-1]
    return np.asarray(np.sqrt(values[kept])[:, None] * (complement @ vectors[:, kept]).T)


def _strategies(workload: dm.Workload) -> list[Array]:
    size = workload.shape[1]
    gram = workload.gram()
    means = gram.mean(axis=1)
    centred = gram - means[:, None] - means + means.mean()
    strategies = [np.eye(size), designs.haar_matrix(size).toarray(), identity_and_sums(centred, rng=0)]
    strategies += [interval_tree(size, branching).matrix.toarray() for branching in BRANCHINGS]
    if workload.domain is not None:
        strategies.append(designs.fourier_matrix(workload.domain, workload))
    return strategies
