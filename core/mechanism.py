"""Linear Gaussian mechanisms: noise of a known covariance, added to a few linear queries."""

from __future__ import annotations

from os import PathLike

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech import accounting, files, free, linalg, validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.problems.fitness import PrivacyFirst
from dualmech.problems.geometry import moves_between
from dualmech.validate import Array, Matrix
from dualmech.workload import Workload

SCHEMA, VERSION = "dualmech.mechanism", 1


class LinearGaussianMechanism:
    """The mechanism ``x ↦ B x + N(0, Σ)``, with everything that follows from its two matrices.

    Its privacy is decided by the cost matrix ``C = B' Σ⁻¹ B`` alone: neighbours that differ by u cost
    ``u' C u``, the largest of these is the squared privacy cost Δ², and the mechanism is Δ-GDP and
    Δ²/2-zCDP. Any workload ``W = L B`` in its row space is answered by ``L (B x + noise)``, without bias.

    Parameters
    ----------
    query_matrix : (k, d) array
        B, with linearly independent rows.
    covariance : (k, k) array
        Σ ⪰ 0, symmetric. Where it is singular, directions are released exactly.
    neighbours : (d, s) array or sparse matrix, optional
        Differences of neighbouring data sets up to sign; by default one record added or removed.

    Raises
    ------
    InvalidInputError, InputTypeError
        Shapes that do not fit, dependent rows, an asymmetric or indefinite covariance, NaN or infinity.

    Notes
    -----
    Definition 3, Theorem 3 and Corollary 1 of Xiao et al., PVLDB 14(10), 2021.

    Examples
    --------
    >>> import dualmech as dm
    >>> mechanism = dm.LinearGaussianMechanism([[1, 0], [0, 1]], [[1, -0.5], [-0.5, 1]])
    >>> mechanism.profile.round(6)
    array([1.333333, 1.333333])
    >>> mechanism.variances(dm.workloads.prefix(2)).round(6)
    array([1., 1.])
    >>> round(mechanism.rho, 6)
    0.666667
    """

    __slots__ = ("_covariance", "_profile", "neighbours", "query_matrix")

    query_matrix: Array
    neighbours: Matrix | None

    def __init__(
        self,
        query_matrix: npt.ArrayLike,
        covariance: npt.ArrayLike,
        neighbours: Matrix | None = None,
    ) -> None:
        queries = validate.finite(2, query_matrix=query_matrix)
        noise = validate.symmetric(covariance=covariance)
        if noise.shape[0] != queries.shape[0]:
            raise InvalidInputError(
                f"covariance must have {queries.shape[0]} rows, as query_matrix, got {noise.shape[0]}"
            )
        if linalg.rank(queries) < queries.shape[0]:
            raise InvalidInputError("query_matrix must have linearly independent rows")
        moves = queries
        if neighbours is not None:
            neighbours = validate.matrix(neighbours=neighbours)
            if neighbours.shape[0] != queries.shape[1]:
                raise InvalidInputError(
                    f"neighbours must have {queries.shape[1]} rows, one a cell, got {neighbours.shape[0]}"
                )
            moves = moves_between(queries, neighbours)
        self.query_matrix = queries
        self.neighbours = neighbours
        self._covariance = noise
        judged = linalg.inverse_forms(noise, moves)
        if judged is None:
            raise InvalidInputError(
                f"covariance must be positive semidefinite and not zero, "
                f"its smallest eigenvalue is {np.linalg.eigvalsh(noise)[0]:.3g}"
            )
        self._profile = validate.read_only(judged[1])

    @property
    def cost_matrix(self) -> Array:
        """``C = B' Σ⁻¹ B`` (d, d); refused where Σ is singular, since exact answers have no finite cost."""
        half = self._whitened()
        return np.asarray(half.T @ half)

    @property
    def profile(self) -> Array:
        """Squared privacy cost of each pair of neighbours (s,); by default of each cell's records (d,)."""
        return self._profile

    @property
    def squared_privacy_cost(self) -> float:
        """The largest entry of the profile, Δ²."""
        return float(self._profile.max())

    @property
    def privacy_cost(self) -> float:
        """Δ, the largest distance between neighbours in units of the noise; equal to the μ of Gaussian DP."""
        return self.squared_privacy_cost**0.5

    @property
    def rho(self) -> float:
        """The ρ of zero-concentrated differential privacy, ``Δ²/2``."""
        return self.squared_privacy_cost / 2

    def epsilon(self, delta: float) -> float:
        """Return the least ε at which the mechanism is (ε, δ)-differentially private; inf where Δ is."""
        if np.isinf(self.privacy_cost):
            validate.probability(delta=delta)
            return float("inf")
        return accounting.epsilon(self.privacy_cost, delta)

    def delta(self, epsilon: float) -> float:
        """Return the least δ at which the mechanism is (ε, δ)-differentially private; 1 where Δ is infinite."""
        if np.isinf(self.privacy_cost):
            validate.nonnegative_number(epsilon=epsilon)
            return 1.0
        return accounting.delta(self.privacy_cost, epsilon)

    def covariance(self, workload: Workload | None = None) -> Array:
        """Return ``L Σ L'`` (m, m) of the answers to a workload; without one, Σ (k, k) itself."""
        if workload is None:
            return self._covariance
        coordinates = self._represent(workload)
        product = coordinates @ self._covariance @ coordinates.T
        return np.asarray((product + product.T) / 2)

    def variances(self, workload: Workload) -> Array:
        """Return the variance of each answer to a workload (m,); a query outside the row space is refused."""
        coordinates = self._represent(workload)
        spread = coordinates @ self._covariance
        if sp.issparse(coordinates):
            return np.asarray(coordinates.multiply(spread).sum(axis=1)).ravel()
        return np.einsum("jk,jk->j", spread, coordinates)

    def free_budget(self, alpha: float | None = None) -> Array:
        """Return what is left to spend on each pair of neighbours (s,): ``α - profile``, none of it negative.

        Any further release of cost matrix G with ``u_i' G u_i ≤ α - profile_i`` for every pair of neighbours
        u_i leaves the squared privacy cost of both together at α or below: cost matrices of independent
        noise add up, and so do profiles (FFU, section 3.2.1).

        Parameters
        ----------
        alpha : float, optional
            Squared privacy cost allowed, at least that of the mechanism (up to 1e-9, relative); by default that.

        Raises
        ------
        InvalidInputError, InputTypeError
            An α below the cost, or a mechanism that releases something exactly, whose cost is infinite.

        Examples
        --------
        >>> import dualmech as dm
        >>> dm.LinearGaussianMechanism([[1, 1, 0], [0, 1, 1]], [[1, 0], [0, 1]]).free_budget()
        array([1., 0., 1.])
        """
        return free.budget(self._profile, alpha)

    def extra_for_free(
        self, workload: Workload, targets: npt.ArrayLike = 1.0, alpha: float | None = None
    ) -> PrivacyFirst:
        """State the problem of answering further queries as well as the free budget allows.

        Minimise the common factor κ of the variances on the targets, over the covariance S of noise on
        ``F x``, where the rows of F span the workload, subject to ``(F u_i)' S⁻¹ (F u_i) ≤ α - profile_i`` for
        every pair of neighbours: the problem of `PrivacyFirst` at cost 1 with neighbours
        ``u_i / √(α - profile_i)``. Either layer solves it. Its profile is in shares of the free budget; for
        the extra release in ordinary units, state ``LinearGaussianMechanism(basis, S, neighbours)`` anew.

        Parameters
        ----------
        workload : Workload
            The further queries, (m, d).
        targets : float or (m,) array
            How their variances shall relate.
        alpha : float, optional
            As for `free_budget`.

        Raises
        ------
        InvalidInputError, InputTypeError
            A query that differs between neighbours without any budget left (at most 1e-9 of α), named with
            them; queries that no neighbour changes, which need no noise; what `free_budget` refuses.

        Notes
        -----
        Section 3.2.1 of Xiao et al., PVLDB 14(10), 2021.

        Examples
        --------
        >>> import dualmech as dm
        >>> from dualmech import fast
        >>> mechanism = dm.LinearGaussianMechanism([[1, 1, 0], [0, 1, 1]], [[1, 0], [0, 1]])
        >>> extra = fast.solve(mechanism.extra_for_free(dm.Workload([[1, 0, 1]])))
        >>> round(extra.objective, 6)
        1.0
        """
        left = self.free_budget(alpha)
        self._check_cells(workload)
        allowed = float((self._profile + left).max())
        return free.further(workload, targets, left, allowed, self.neighbours)

    def causal_strategy(self) -> Array:
        """Return the strategy A (d, d), lower triangular with a positive diagonal, whose cost matrix is this one.

        ``A'A = C``, so unit noise z on A x is this mechanism. Row t of A x sees the cells up to t alone; and if
        ``W = L A`` is lower triangular, as prefixes are, so is L, and answer t needs the noise ``z_1 … z_t``
        alone: cells may arrive one by one, with the noise drawn as they come.

        Raises
        ------
        InvalidInputError
            Fewer independent queries than cells, or queries released exactly: C has no such factor.

        Examples
        --------
        >>> import dualmech as dm
        >>> mechanism = dm.LinearGaussianMechanism([[1, 0], [0, 1]], [[1, -0.5], [-0.5, 1]])
        >>> mechanism.causal_strategy().round(4)
        array([[1.    , 0.    ],
               [0.5774, 1.1547]])
        """
        rows, cells = self.query_matrix.shape
        if rows < cells:
            raise InvalidInputError(
                f"causal_strategy needs as many independent queries as cells, got {rows} for {cells}"
            )
        # The triangle of a QR factorisation, both its orders reversed, is that of a QL factorisation.
        triangle = scipy.linalg.qr(self._whitened()[:, ::-1], mode="r", check_finite=False)[0]
        factor = triangle[::-1, ::-1]
        # Adding 0 turns -0 into 0.
        return np.ascontiguousarray(factor * np.sign(np.diagonal(factor))[:, None] + 0.0)

    def rebase(self, query_matrix: npt.ArrayLike) -> LinearGaussianMechanism:
        """Return the same mechanism stated on other rows with the same span (Theorem 2)."""
        other = validate.finite(2, query_matrix=query_matrix)
        if other.shape != self.query_matrix.shape or linalg.rank(other) < len(other):
            raise InvalidInputError(
                f"query_matrix must have {len(self.query_matrix)} independent rows of "
                f"{self.query_matrix.shape[1]} cells, got shape {other.shape}"
            )
        return LinearGaussianMechanism(other, self.covariance(Workload(other)), self.neighbours)

    def simulate(
        self, x: npt.ArrayLike, rng: np.random.Generator | int = 0, workload: Workload | None = None
    ) -> Array:
        """Draw one noisy answer to B x, or to a workload, for study. NOT a private release.

        The noise comes from a seeded floating-point generator: whoever knows the seed, or studies the low bits
        of the output, learns the data.
        """
        generator = validate.generator(rng=rng)
        answers = Workload(self.query_matrix).apply(x)
        values, vectors = np.linalg.eigh(self._covariance)
        noise = vectors @ (np.sqrt(np.maximum(values, 0)) * generator.standard_normal(len(values)))
        noisy = answers + noise
        return noisy if workload is None else np.asarray(self._represent(workload) @ noisy)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the mechanism to an ``.npz`` file, whole or not at all (schema in ``docs/formats.md``)."""
        arrays = {"query_matrix": self.query_matrix, "covariance": self._covariance}
        if self.neighbours is not None:
            arrays["neighbours"] = linalg.to_dense(self.neighbours)
        files.write_npz(path, SCHEMA, VERSION, **arrays)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> LinearGaussianMechanism:
        """Read a mechanism back; its privacy is computed anew from its matrices."""
        arrays = files.read_npz(path, SCHEMA, (VERSION,))
        files.require(path, arrays, "query_matrix", "covariance")
        with files.reading(path):
            return cls(arrays["query_matrix"], arrays["covariance"], arrays.get("neighbours"))

    def __repr__(self) -> str:
        rows, cells = self.query_matrix.shape
        return f"LinearGaussianMechanism({rows} queries x {cells} cells, rho={self.rho:.6g})"

    def _whitened(self) -> Array:
        """Return ``R'⁻¹ B`` (k, d) with ``R' R = Σ``: unit noise on these queries is this mechanism."""
        factor = linalg.cholesky(self._covariance)
        if factor is None:
            raise InvalidInputError(
                "cost_matrix is not finite: the covariance is singular, some queries are exact"
            )
        return np.asarray(
            scipy.linalg.solve_triangular(factor, self.query_matrix, trans="T", check_finite=False)
        )

    def _represent(self, workload: Workload) -> Matrix:
        """Return L with ``L B = W``, sparse where B is the identity and W is sparse."""
        self._check_cells(workload)
        if linalg.is_identity(self.query_matrix):
            return workload.matrix
        return linalg.represent(workload.dense(), np.asarray(self.query_matrix), workload.names)

    def _check_cells(self, workload: Workload) -> None:
        if not isinstance(workload, Workload):
            raise InputTypeError(f"workload must be a dualmech.Workload, got {type(workload).__name__}")
        if workload.shape[1] != self.query_matrix.shape[1]:
            raise InvalidInputError(
                f"workload must have {self.query_matrix.shape[1]} cells, as the mechanism, got {workload.shape[1]}"
            )
