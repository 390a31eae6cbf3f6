"""Linear queries with Gaussian noise: the two matrices of a mechanism, and what they say of accuracy and cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.dense import row_variances
from dualmech.geometry.moves import as_neighbour_matrix, moves_between
from dualmech.immutable import freeze
from dualmech.mechanisms import costs
from dualmech.mechanisms.costs import MAX_VARIANCE_ERROR, PseudoInverse
from dualmech.neighbours import NeighboursLike
from dualmech.validate import Array, Matrix
from dualmech.verified import UPWARDS, exactly_independent
from dualmech.workloads.base import Workload, check_workload, same_content

MOST_PROVEN = 2**20  # terms in a workload times the rows up to which variances are proven

CHUNK = 4096  # queries whose variances are proven together, where there are more terms

CLEAR = 1e-4  # least singular value, next to the largest, at which variances of dependent rows keep eight digits

DIGITS = 2.0**40  # what entries of rows without noise are parts of, next to the largest


@dataclass(frozen=True, slots=True, eq=False)
class StandardForm:
    """A mechanism written with unit noise: ``B = L S`` with ``L' Σ⁻¹ L = I``.

    The answers y to B x are worth exactly as much as ``G y``, which is ``S x`` with unit noise: the part of the
    noise that G drops only says where dependent rows of B contradict each other.
    """

    queries: Array  # (k, d) S, of full row rank k = rank B; ``S'S`` is the cost matrix
    lift: Array  # (m, k) L, from S x back to the rows of B
    estimate: Array  # (k, m) G = L' Σ⁻¹, the best unbiased estimate of S x from the answers

    @classmethod
    def of_independent(cls, queries: Array, covariance: Array) -> StandardForm:
        """Standardise independent rows by a Cholesky factor; refused where something is released exactly."""
        if not len(queries):
            return cls(queries, covariance, covariance)
        factor = linalg.cholesky(covariance)
        if factor is None:
            raise InvalidInputError("covariance must be positive definite for a standard form")
        both = np.hstack([queries, np.eye(len(queries))])
        solved = scipy.linalg.solve_triangular(factor, both, trans="T", check_finite=False)
        return cls(solved[:, : queries.shape[1]], factor.T, solved[:, queries.shape[1] :])


@dataclass(frozen=True, slots=True, eq=False)
class IndependentForm:
    """Equivalent answers on independent rows: ``estimate`` maps answers to B x to answers to ``rows`` x."""

    rows: Array
    noise: Array
    estimate: Array

    @classmethod
    def of_dependent(cls, queries: Array, covariance: Array) -> IndependentForm | StandardForm:
        """Combine dependent rows by generalised least squares; where none is exact, with unit noise."""
        diagonal = np.diagonal(covariance)
        units = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        values, vectors = np.linalg.eigh(covariance / units / units[:, None])
        kept = values > 8 * len(values) * linalg.EPS * values[-1]
        scaled, whiten = queries / units[:, None], (vectors[:, kept] / np.sqrt(values[kept])).T / units
        if np.any(linalg.leaves_range(covariance, queries)):
            return cls._of_exact(queries, whiten, vectors[:, ~kept].T @ scaled, vectors[:, ~kept].T / units)
        left, sizes, right = linalg.svd(whiten @ queries)
        size = linalg.row_rank(queries)
        return StandardForm(
            sizes[:size, None] * right[:size],
            (vectors[:, kept] * np.sqrt(values[kept]) * units[:, None]) @ left[:, :size],
            left[:, :size].T @ whiten,
        )

    @classmethod
    def _of_exact(cls, queries: Array, whiten: Array, exact: Array, silent: Array) -> IndependentForm:
        """Treat the exact rows as known, and fit the others to what the noisy answers add."""
        _, sizes, directions = linalg.svd(exact)
        # At least one row, and none that is only rounding: an exactly known row costs more than any number.
        known = in_few_digits(directions[sizes > 8 * max(queries.shape) * linalg.EPS * sizes[0]])
        basis = linalg.row_space(queries)
        others = scipy.linalg.null_space(known @ basis.T).T @ basis
        seen = known @ np.linalg.pinv(exact) @ silent
        noisy = whiten @ queries
        fit = np.linalg.pinv(noisy @ others.T)
        noise = np.zeros((len(known) + len(others),) * 2)
        noise[len(known) :, len(known) :] = fit @ fit.T
        estimate = np.vstack([seen, fit @ (whiten - noisy @ np.linalg.pinv(known) @ seen)])
        return cls(np.vstack([known, others]), noise, estimate)


class NoisyQueries:
    """``x ↦ B x + N(0, Σ)``: the base of `LinearGaussianMechanism`, where the parameters are described."""

    __slots__ = (
        *(
            "_clear",
            "_covariance",
            "_exact",
            "_floor",
            "_form",
            "_origin",
            "_reduced",
            "_profile",
            "_shares",
            "_singular",
        ),
        *("independent", "neighbours", "query_matrix"),
    )

    query_matrix: Array
    neighbours: Matrix | None
    independent: bool
    _clear: bool | None
    _floor: Callable[[], Array] | None
    _form: StandardForm | None
    _origin: tuple[Any, float] | None
    _profile: Array | None
    _reduced: IndependentForm | None
    _shares: tuple[float, float]

    def __init__(
        self, query_matrix: npt.ArrayLike, covariance: npt.ArrayLike, neighbours: NeighboursLike = None
    ) -> None:
        queries, noise = _matrices(query_matrix, covariance)
        self.query_matrix = queries
        self.neighbours = as_neighbour_matrix(neighbours, queries.shape[1])
        self._covariance = noise
        self._form, self._reduced, self._clear = None, None, None
        self._floor, self._origin, self._shares = None, None, (0.0, 0.0)
        self.independent = not len(queries) or linalg.row_rank(queries) == len(queries)
        singular = len(queries) > 0 and linalg.is_singular(noise)
        self._exact, self._singular = self.independent and singular, singular
        # A singular covariance may be none, which its costs tell; others are proven when a user reads them.
        self._profile = freeze(costs.profile(noise, queries, self.neighbours)) if singular else None
        if not self.independent:
            self._reduce()

    def _reduce(self) -> None:
        """Find independent rows that are equivalent to the dependent ones."""
        reduced = freeze(IndependentForm.of_dependent(self.query_matrix, self._covariance))
        self._exact = isinstance(reduced, IndependentForm)
        if isinstance(reduced, StandardForm):
            self._form = reduced
            self._reduced = IndependentForm(reduced.queries, np.eye(len(reduced.queries)), reduced.estimate)
            return
        moves, _ = moves_between(reduced.rows, self.neighbours)
        everything = np.where(np.any(moves, axis=0), np.inf, 0.0)
        noisy = np.any(reduced.noise)
        profile = costs.judged_costs(reduced.noise, reduced.rows, self.neighbours) if noisy else everything
        self._reduced, self._profile = reduced, freeze(np.maximum(profile, self.profile))

    @property
    def standard_form(self) -> StandardForm:
        """The mechanism with unit noise on independent rows; refused where something is released exactly."""
        if self._form is None:
            if self._exact:
                raise InvalidInputError(
                    "cost_matrix is not finite: the covariance is singular, some queries are released exactly"
                )
            self._form = freeze(StandardForm.of_independent(self.query_matrix, self._covariance))
        return self._form

    @property
    def cost_matrix(self) -> Array:
        """``C = B' Σ⁻¹ B`` (d, d); refused where Σ is singular, since exact answers have no finite cost."""
        half = self.standard_form.queries
        return np.asarray(half.T @ half)

    @property
    def profile(self) -> Array:
        """Squared privacy cost of each pair of neighbours (s,); by default of each cell's records (d,).

        The allowance for its rounding is added: privacy errs on the safe side.
        """
        if self._profile is None:
            self._profile = freeze(self._no_lower(self._own_profile()))
        return self._profile

    @property
    def _least_profile(self) -> Array:
        """Lower bounds on the squared privacy cost of each pair of neighbours (s,), 0 where nothing is proven."""
        return costs.least_costs(self._covariance, self.query_matrix, self.neighbours)

    def _own_profile(self) -> Array:
        """Return what `profile` is by the two matrices alone."""
        return costs.profile(self._covariance, self.query_matrix, self.neighbours)

    def _no_lower(self, profile: Array) -> Array:
        """Return a profile raised to that of the mechanism that this one stands for."""
        if self._origin is None and any(self._shares):
            profile = profile + self._cost_errors()
        return np.maximum(profile, self._least_stated())

    def _least_stated(self) -> Array:
        """Return the costs of the mechanism that this one stands for (s,), or 0."""
        floor = np.zeros(1) if self._floor is None else self._floor()
        if self._origin is None:
            return floor
        origin, factor = self._origin
        return np.maximum(floor, origin.profile / factor * (1 + 2 * linalg.EPS))

    @property
    def _stands_for(self) -> tuple[Any, float] | None:
        """The mechanism that this one is on other rows, and the factor on its variances; None of one by itself."""
        return self._origin

    def _equivalence_error(self) -> float:
        """Return by which share costs of the standard form may differ from the mechanism's that it stands for."""
        queries, covariance, *shares = self._original()
        rows = self.standard_form.queries
        error = costs.equivalence_error((queries, covariance), (rows, np.eye(len(rows))))
        return np.inf if any(shares) and shares != [0.0, linalg.EPS] else error

    def _rounded_from(self, floor: Callable[[], Array] | None = None, rows: float = 0.0, noise: float = 0.0) -> Self:
        """Return this mechanism as one whose rows and noise are those of another, each entry off by a share of itself.

        Its costs are raised by what that may change, and to a floor (s,) that is called when they are needed. Variances
        that it may change by more than 1e-6 are refused.
        """
        self._floor, self._shares = floor, (rows, noise)
        return self._raised()

    def _raised(self) -> Self:
        if self._profile is not None:
            self._profile = freeze(self._no_lower(self._profile))
        return self

    @property
    def _is_plain(self) -> bool:
        """Whether rows and noise are given, and not rounded from those of another mechanism."""
        return self._origin is None and self._floor is None and not any(self._shares)

    def _original(self) -> tuple[Array, Array, float, float]:
        """Return rows and covariance of what this mechanism stands for, and by which shares their entries are off."""
        origin, factor = self._origin or (self, 1.0)
        if isinstance(origin, NoisyQueries):
            rows, noise = origin._shares
            covariance = origin._covariance
            return origin.query_matrix, covariance * factor, rows, noise + linalg.EPS * (factor != 1)
        return self.query_matrix, self._covariance, *self._shares

    def _cost_errors(self) -> Array:
        """Return bounds (s,) on how much more neighbours cost, for entries that are off by their shares.

        With ``y = Σ⁻¹ B u`` and ``T'ΣT = I``, errors Δ of B raise a cost by ``2 y'Δu + ‖T'Δu‖²``, and errors Ε of Σ by
        at most ``|y'Εy| / (1 - ‖T'ΕT‖)``.
        """
        rows, noise = self._shares
        moves, _ = moves_between(self.query_matrix, self.neighbours)
        reach = np.abs(self.query_matrix)
        reach = reach if self.neighbours is None else np.abs(linalg.to_dense(reach @ np.abs(self.neighbours)))
        root = costs.whitening_root(self._covariance)
        if root is None:
            return np.full(moves.shape[1], np.inf)
        sizes, covariance = np.abs(root), np.abs(self._covariance)
        solved = np.abs(root.T @ (root @ moves))
        left = 1 - noise * costs.entry_condition(root, covariance)
        errors = 2 * rows * np.einsum("ki,ki->i", solved, reach) + np.square(rows * (sizes @ reach)).sum(axis=0)
        errors += noise * np.einsum("ki,ki->i", solved, covariance @ solved)
        return errors * UPWARDS / left if left > 0 else np.full(len(errors), np.inf)

    def _require_accurate(self, coordinates: Matrix, variances: Array) -> None:
        """Refuse variances that rounding of the matrices may change by more than 1e-6.

        ``L B = W`` changes by ``L Δ B⁺`` for errors Δ of B, to first order.
        """
        rows, noise = self._shares
        weights, covariance = linalg.to_dense(coordinates), self._independent_noise
        inverse, sizes = np.linalg.pinv(np.asarray(self.independent_rows)), np.abs(self.independent_rows)
        spread, reach = weights @ covariance, np.abs(weights) @ sizes
        errors = 2 * rows * np.einsum("jd,jd->j", reach, np.abs(spread @ inverse.T))
        errors += rows**2 * np.einsum("jd,jd->j", reach @ np.abs(inverse @ covariance @ inverse.T), reach)
        errors += noise * np.einsum("jk,jk->j", np.abs(weights) @ np.abs(covariance), np.abs(weights))
        if not np.all(2 * errors <= MAX_VARIANCE_ERROR * variances):
            worst = int(np.argmin(2 * errors <= MAX_VARIANCE_ERROR * variances))
            raise InvalidInputError(
                "workload has variances that the rounding of the mechanism's matrices hides, such as query "
                f"{worst} has: ask the mechanism that they were made from"
            )

    def _standing_for(self, origin: Any, factor: float = 1.0) -> Self:
        """Return this mechanism as another one on other rows, with all variances times a factor.

        Its two matrices are rounded. So its variances are those of the other mechanism, and its costs no lower than
        those of either.
        """
        known = getattr(origin, "_origin", None)
        self._origin = (origin, factor) if known is None else (known[0], known[1] * factor)
        return self._raised()

    @property
    def rank(self) -> int:
        """Number of independent queries that are answered, k; 0 for the mechanism that releases nothing."""
        return len(self.query_matrix) if self._reduced is None else len(self._reduced.rows)

    @property
    def releases_exactly(self) -> bool:
        """Whether some query is answered without any noise, at a cost that is not finite."""
        return self._exact

    def same_as(self, other: object) -> bool:
        """Whether another mechanism has the same rows, covariance and neighbours."""
        return type(self) is type(other) and all(
            same_content(getattr(self, name), getattr(other, name))
            for name in ("query_matrix", "_covariance", "neighbours")
        )

    def __eq__(self, other: object) -> bool:
        """Whether another mechanism is the same, as `same_as` says it."""
        return self.same_as(other) if isinstance(other, NoisyQueries) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.query_matrix.shape)

    def covariance(self, workload: Workload | None = None) -> Array:
        """Return the covariance (m, m) of the answers to a workload; without one, Σ itself.

        A workload ``W = L B`` is answered by ``L (B x + noise)`` with covariance ``L Σ L'``. Where rows of B
        depend on one another, L belongs to generalised least squares. The diagonal is as accurate as `variances`; other
        entries are, next to the two of the diagonal. Refused where `variances` are.
        """
        if workload is None:
            return self._covariance
        if self._origin is not None:
            self.check_cells(workload)
            origin, factor = self._origin
            return np.asarray(origin.covariance(workload) * factor)
        return self._own_covariance(workload)

    def _own_covariance(self, workload: Workload) -> Array:
        """Return what `covariance` is by the two matrices alone."""
        coordinates = self.represent(workload)
        product = coordinates @ self._independent_noise @ coordinates.T
        covariance = np.asarray((product + product.T) / 2)
        variances, off = self._variances(workload, coordinates)
        if self._shares[0]:
            self._require_accurate(coordinates, variances)
        if np.all(off <= MAX_VARIANCE_ERROR * variances):
            return covariance
        proven = self._proven(costs.proven_covariance, workload.dense())
        if proven is None:
            self._require_clear()
        return covariance if proven is None else proven

    def variances(self, workload: Workload) -> Array:
        """Return the variance of each answer to a workload (m,); a query outside the row space is refused.

        Raises `InvalidInputError` where rounding may hide more than 1e-6 of one, as where rows hardly differ.
        """
        if self._origin is not None:
            self.check_cells(workload)
            origin, factor = self._origin
            return np.asarray(origin.variances(workload) * factor)
        return self._own_variances(workload)

    def _own_variances(self, workload: Workload) -> Array:
        """Return what `variances` are by the two matrices alone; by steps of queries that need no matrix."""
        self.check_cells(workload)
        by_steps = workload.needs_no_matrix and linalg.is_identity(self.independent_rows) and not any(self._shares)
        steps = workload.steps() if by_steps else None
        if steps is not None and steps.is_whole:
            variances, off = steps.enclosed_forms(self._independent_noise)
            if np.all(off <= MAX_VARIANCE_ERROR * variances):
                return variances
        coordinates = self.represent(workload)
        variances = self._variances_by_rows(workload, coordinates)
        if any(self._shares):
            self._require_accurate(coordinates, variances)
        return variances

    def _variances_by_rows(self, workload: Workload, coordinates: Matrix) -> Array:
        count = workload.shape[0]
        if 0 < count * self.query_matrix.size <= MOST_PROVEN:
            proven = self._proven(costs.proven_variances, workload.dense())
            if proven is not None:
                return proven
        variances, off = self._variances(workload, coordinates)
        rough = np.flatnonzero(~(off <= MAX_VARIANCE_ERROR * variances))
        for some in np.split(rough, range(CHUNK, len(rough), CHUNK)):
            proven = self._proven(costs.proven_variances, linalg.to_dense(workload.matrix[some]))
            if proven is None:
                self._require_clear()
            else:
                variances[some] = proven
        return variances

    def _variances(self, workload: Workload, coordinates: Matrix) -> tuple[Array, Array]:
        """Return the variances (m,) as doubles have them, and what they may be off by.

        With the residual ``R = W - L B`` the true rows are ``L + R B⁺``: deviations are off by ``‖R_j‖ ‖B⁺ Σ^½‖``.
        """
        rows, noise, nothing = self.independent_rows, self._independent_noise, np.zeros(self.rank)
        variances, off = row_variances(coordinates, noise, np.zeros(workload.shape[0]), nothing)
        variances = np.maximum(variances, 0.0)  # where an answer is exact, rounding may leave a little less than 0
        if not linalg.is_identity(rows):
            units, _, triangle = linalg.row_factors(rows)
            missed = np.linalg.norm((workload.dense() - coordinates @ rows) * units, axis=1)
            missed += (self.rank + 2) * linalg.EPS * np.linalg.norm(np.abs(coordinates) @ np.abs(rows) * units, axis=1)
            half = scipy.linalg.solve_triangular(triangle, noise, trans="T", check_finite=False)
            both = scipy.linalg.solve_triangular(triangle, half.T, trans="T", check_finite=False)
            missed *= np.sqrt(np.linalg.norm(both))
            off += (2 * np.sqrt(variances) + missed) * missed
        return variances, off if self.independent or self._is_clear else np.full(len(off), np.inf)

    @property
    def _is_clear(self) -> bool:
        """Whether dependent rows are proven to be so, and they and their noise are far from more of that."""
        if self._clear is None:
            self._clear = self._form is not None and _is_clear(self.query_matrix, self._covariance, self._form)
        return self._clear

    def _require_clear(self) -> None:
        """Refuse variances that nothing proves, unless dependent rows are far from more of them."""
        if self.independent or not self._is_clear:
            raise InvalidInputError(
                "workload has variances that cannot be told from rounding: rows of the mechanism hardly differ, or are "
                "exact up to rounding alone"
            )

    def _proven(self, function: Any, rows: Array) -> Array | None:
        """Return the proven variances of queries (m, d), or their proven covariance."""
        proven: Array | None = function(self._covariance, self.query_matrix, self.independent, rows)
        if proven is None and not self.independent:
            chosen = exactly_independent(self.query_matrix.T)
            # The independent rows must not be said to be fewer.
            if chosen is not None and len(chosen) == self.rank:
                proven = function(self._independent_noise, self.independent_rows, True, rows)
        return proven

    def simulate(
        self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None, workload: Workload | None = None
    ) -> Array:
        """Draw noisy answers to B x, or to a workload, for study. NOT a private release.

        The noise comes from a seeded floating-point generator: anyone who knows the seed, or studies the low bits of
        the output, can learn the data.
        Returns an array, (m,) or (n, m).

        - `x` (d,) or (n, d): one data vector, or one per row, each answered with noise of its own;
        - `rng`: a generator or a seed that the noise comes from, by default the operating system's;
        - `workload`: what to answer, (m, d), in the row space of B; by default B itself.
        """
        generator, data = validate.generator(rng=rng), validate.finite(x=x)
        rows, cells = self.query_matrix.shape
        if data.ndim not in (1, 2) or data.shape[-1] != cells:
            raise InvalidInputError(f"x must have {cells} entries, one per cell, in each row, got {data.shape}")
        answers = data @ self.query_matrix.T
        values, vectors = np.linalg.eigh(self._covariance) if rows else (np.zeros(0), np.zeros((0, 0)))
        noise = generator.standard_normal(answers.shape) * np.sqrt(np.maximum(values, 0))
        noisy = answers + noise @ vectors.T
        if workload is None:
            return np.asarray(noisy)
        return self.estimates(workload, noisy)

    def estimates(self, workload: Workload, answers: npt.ArrayLike) -> Array:
        """Return the best unbiased estimates of a workload (m,) or (n, m) from noisy answers to B x (k,) or (n, k).

        Raises `InvalidInputError` or `InputTypeError` for answers of another shape, a query that is not answered.
        """
        answers, count = validate.finite(answers=answers), len(self.query_matrix)
        if answers.ndim not in (1, 2) or answers.shape[-1] != count:
            raise InvalidInputError(f"answers must have {count} entries in each row, got shape {answers.shape}")
        independent = answers if self._reduced is None else answers @ self._reduced.estimate.T
        return np.asarray((self.represent(workload) @ independent.T).T)

    @property
    def independent_rows(self) -> Array:
        """Independent rows (k, d) with the span of B: B itself where its rows are."""
        return self.query_matrix if self._reduced is None else self._reduced.rows

    @property
    def _independent_noise(self) -> Array:
        """Covariance of the noise on the independent rows: Σ itself where B's are."""
        return self._covariance if self._reduced is None else self._reduced.noise

    def represent(self, workload: Workload) -> Matrix:
        """Return L with ``L B = W`` for independent rows B, sparse where B is the identity and W is sparse."""
        self.check_cells(workload)
        rows = self.independent_rows
        if linalg.is_identity(rows):
            return workload.matrix
        return linalg.represent(workload.dense(), np.asarray(rows), workload.names)

    def check_cells(self, workload: Workload) -> None:
        """Refuse an object that is no workload over the mechanism's cells."""
        check_workload(workload)
        if workload.shape[1] != self.query_matrix.shape[1]:
            raise InvalidInputError(
                f"workload must have {self.query_matrix.shape[1]} cells, as the mechanism, got {workload.shape[1]}"
            )


def as_matrix(mechanism: Any) -> Any:
    """Return a mechanism as functions of matrices take it: one of many steps written out, any other as it is."""
    return mechanism.dense() if getattr(type(mechanism), "by_matrix", False) else mechanism


def in_few_digits(rows: Array) -> Array:
    """Return rows in units of their largest entries, to 40 binary digits: entries that rounding made differ are equal.

    Whoever knows such a row without noise knows no less; and neighbours who share it are seen to do so exactly.
    """
    return np.asarray(np.rint(rows / np.abs(rows).max(axis=1, keepdims=True) * DIGITS) / DIGITS)


def _is_clear(queries: Array, covariance: Array, form: StandardForm) -> bool:
    """Whether rows are proven to be dependent, and they and their noise are far from more of that."""
    units = np.sqrt(np.diagonal(covariance))
    spectrum = np.linalg.eigvalsh(covariance / units / units[:, None])
    sizes = linalg.singular_values(form.queries)
    far = spectrum[0] >= CLEAR**2 * spectrum[-1] and sizes[-1] >= CLEAR * sizes[0]
    return bool(far and PseudoInverse.of(queries).enclosed() is not None)


def _matrices(query_matrix: npt.ArrayLike, covariance: npt.ArrayLike) -> tuple[Array, Array]:
    """Return both matrices, checked; a mechanism without rows releases nothing."""
    shape = getattr(query_matrix, "shape", None)
    if isinstance(shape, tuple) and len(shape) == 2 and shape[0] == 0 < shape[1] and validate.is_empty(covariance):
        return freeze(np.zeros(shape)), freeze(np.zeros((0, 0)))
    queries = validate.finite(2, query_matrix=query_matrix)
    validate.moderate(query_matrix=queries)
    noise = validate.symmetric(covariance=covariance)
    if not np.all(np.any(queries, axis=1)):
        first = int(np.flatnonzero(~np.any(queries, axis=1))[0])
        raise InvalidInputError(f"query_matrix must have no row of zeros, got one at query_matrix[{first}]")
    if noise.shape[0] != queries.shape[0]:
        raise InvalidInputError(f"covariance must have {queries.shape[0]} rows, as query_matrix, got {noise.shape[0]}")
    return queries, noise
