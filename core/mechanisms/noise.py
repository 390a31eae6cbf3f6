"""Linear queries with Gaussian noise: variances and privacy costs from the query matrix and the covariance."""

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

MAX_VERIFIED_ENTRIES = 2**20  # queries times entries of B; larger workloads verify only inaccurate variances

VERIFIED_CHUNK = 4096  # queries of a larger workload that are verified together

MIN_SINGULAR_RATIO = 1e-4  # least to largest singular value: variances of dependent rows keep eight digits

ROW_SCALE = 2.0**40  # significant binary digits, 40, of rows that are released without noise


@dataclass(frozen=True, slots=True, eq=False)
class StandardForm:
    """A mechanism written with unit noise: ``B = L S`` with ``L' Σ⁻¹ L = I``.

    The answers y to B x are equivalent to ``G y``, which is ``S x`` with unit noise. The component of y that G drops
    is noise alone: it shows by how much dependent rows of B contradict each other.
    """

    queries: Array  # (k, d) S, of full row rank k = rank B; ``S'S`` is the cost matrix
    lift: Array  # (m, k) L, from S x back to the rows of B
    estimate: Array  # (k, m) G = L' Σ⁻¹, the best unbiased estimate of S x from the answers

    @classmethod
    def of_independent(cls, queries: Array, covariance: Array) -> StandardForm:
        """Standardise independent rows by a Cholesky factor; refused if the covariance is singular."""
        if not len(queries):
            return cls(queries, covariance, covariance)
        factor = linalg.cholesky(covariance)
        if factor is None:
            raise InvalidInputError("covariance must be positive definite for a standard form")
        stacked = np.hstack([queries, np.eye(len(queries))])
        standardised = scipy.linalg.solve_triangular(factor, stacked, trans="T", check_finite=False)
        return cls(standardised[:, : queries.shape[1]], factor.T, standardised[:, queries.shape[1] :])


@dataclass(frozen=True, slots=True, eq=False)
class IndependentForm:
    """Equivalent answers on independent rows: ``estimate`` maps answers to B x to answers to ``rows`` x."""

    rows: Array
    noise: Array
    estimate: Array

    @classmethod
    def of_dependent(cls, queries: Array, covariance: Array) -> IndependentForm | StandardForm:
        """Combine dependent rows by generalised least squares; with unit noise if no row is released exactly."""
        diagonal = np.diagonal(covariance)
        units = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        values, vectors = np.linalg.eigh(covariance / units / units[:, None])
        positive = values > linalg.rank_tolerance(len(values)) * values[-1]
        scaled, whiten = queries / units[:, None], (vectors[:, positive] / np.sqrt(values[positive])).T / units
        if np.any(linalg.leaves_range(covariance, queries)):
            return cls._of_exact(queries, whiten, vectors[:, ~positive].T @ scaled, vectors[:, ~positive].T / units)
        left, sizes, right = linalg.svd(whiten @ queries)
        size = linalg.row_rank(queries)
        return StandardForm(
            sizes[:size, None] * right[:size],
            (vectors[:, positive] * np.sqrt(values[positive]) * units[:, None]) @ left[:, :size],
            left[:, :size].T @ whiten,
        )

    @classmethod
    def _of_exact(cls, queries: Array, whiten: Array, exact: Array, silent: Array) -> IndependentForm:
        """Treat the exact rows as known, and estimate the other rows from the noisy answers."""
        _, sizes, directions = linalg.svd(exact)
        # At least one row, and no row of rounding errors: an exact row has infinite cost.
        exact_rows = in_few_digits(directions[sizes > linalg.rank_tolerance(max(queries.shape)) * sizes[0]])
        basis = linalg.row_space(queries)
        noisy_rows = scipy.linalg.null_space(exact_rows @ basis.T).T @ basis
        exact_estimate = exact_rows @ np.linalg.pinv(exact) @ silent
        noisy = whiten @ queries
        fit = np.linalg.pinv(noisy @ noisy_rows.T)
        noise = np.zeros((len(exact_rows) + len(noisy_rows),) * 2)
        noise[len(exact_rows) :, len(exact_rows) :] = fit @ fit.T
        estimate = np.vstack([exact_estimate, fit @ (whiten - noisy @ np.linalg.pinv(exact_rows) @ exact_estimate)])
        return cls(np.vstack([exact_rows, noisy_rows]), noise, estimate)


class NoisyQueries:
    """``x ↦ B x + N(0, Σ)``: the base of `LinearGaussianMechanism`, where the parameters are described."""

    __slots__ = (
        *(
            "_well_conditioned",
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
    _well_conditioned: bool | None
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
        self._form, self._reduced, self._well_conditioned = None, None, None
        self._floor, self._origin, self._shares = None, None, (0.0, 0.0)
        self.independent = not len(queries) or linalg.row_rank(queries) == len(queries)
        singular = len(queries) > 0 and linalg.is_singular(noise)
        self._exact, self._singular = self.independent and singular, singular
        # Computing costs refuses a matrix that is no covariance. Only a singular one needs this check now.
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
        all_exact = np.where(np.any(moves, axis=0), np.inf, 0.0)
        noisy = np.any(reduced.noise)
        profile = costs.judged_costs(reduced.noise, reduced.rows, self.neighbours) if noisy else all_exact
        self._reduced, self._profile = reduced, freeze(np.maximum(profile, self.profile))

    @property
    def standard_form(self) -> StandardForm:
        """The mechanism with unit noise on independent rows; refused if a query is released exactly."""
        if self._form is None:
            if self._exact:
                raise InvalidInputError(
                    "cost_matrix is not finite: the covariance is singular, some queries are released exactly"
                )
            self._form = freeze(StandardForm.of_independent(self.query_matrix, self._covariance))
        return self._form

    @property
    def cost_matrix(self) -> Array:
        """``C = B' Σ⁻¹ B`` (d, d), for regular Σ; refused if a query is released exactly, at infinite cost."""
        half = self.standard_form.queries
        return np.asarray(half.T @ half)

    @property
    def profile(self) -> Array:
        """Squared privacy cost of each pair of neighbours (s,); by default of each cell's records (d,).

        These are upper bounds: the rounding-error bound is added.
        """
        if self._profile is None:
            self._profile = freeze(self._raised_profile(self._own_profile()))
        return self._profile

    @property
    def _least_profile(self) -> Array:
        """Lower bounds on the squared privacy cost of each pair of neighbours (s,), 0 if verification fails."""
        return costs.least_costs(self._covariance, self.query_matrix, self.neighbours)

    def _own_profile(self) -> Array:
        """Return `profile` of query matrix and covariance alone, whatever mechanism they were rounded from."""
        return costs.profile(self._covariance, self.query_matrix, self.neighbours)

    def _raised_profile(self, profile: Array) -> Array:
        """Return a profile raised by its rounding errors, and to the profile of the original mechanism."""
        if self._origin is None and any(self._shares):
            profile = profile + self._cost_errors()
        return np.maximum(profile, self._cost_floor())

    def _cost_floor(self) -> Array:
        """Return lower limits on the costs (s,): those of the original mechanism and of its floor, or 0."""
        floor = np.zeros(1) if self._floor is None else self._floor()
        if self._origin is None:
            return floor
        origin, factor = self._origin
        return np.maximum(floor, origin.profile / factor * (1 + 2 * linalg.EPS))

    @property
    def _stands_for(self) -> tuple[Any, float] | None:
        """The original mechanism, of which this is an equivalent form, and the factor on its variances; or None."""
        return self._origin

    def _equivalence_error(self) -> float:
        """Return a relative error bound on the costs of the standard form, against the original mechanism."""
        queries, covariance, *shares = self._original()
        rows = self.standard_form.queries
        error = costs.equivalence_error((queries, covariance), (rows, np.eye(len(rows))))
        return np.inf if any(shares) and shares != [0.0, linalg.EPS] else error  # a factor on Σ rounds it once

    def _rounded_from(self, floor: Callable[[], Array] | None = None, rows: float = 0.0, noise: float = 0.0) -> Self:
        """Mark this mechanism as a rounded copy of another, with relative error bounds on B and Σ; return it.

        Its costs are raised by the effect of these errors, and to the lower bounds (s,) that `floor` returns when the
        costs are read. `variances` refuses queries that the errors
        may change by more than 1e-6.
        """
        self._floor, self._shares = floor, (rows, noise)
        return self._raised()

    def _raised(self) -> Self:
        if self._profile is not None:
            self._profile = freeze(self._raised_profile(self._profile))
        return self

    @property
    def _is_plain(self) -> bool:
        """Whether rows and covariance are the mechanism's own, not rounded from another mechanism's."""
        return self._origin is None and self._floor is None and not any(self._shares)

    def _original(self) -> tuple[Array, Array, float, float]:
        """Return rows and covariance of the original mechanism, and relative error bounds on the entries of each."""
        origin, factor = self._origin or (self, 1.0)
        if isinstance(origin, NoisyQueries):
            rows, noise = origin._shares
            covariance = origin._covariance
            return origin.query_matrix, covariance * factor, rows, noise + linalg.EPS * (factor != 1)
        return self.query_matrix, self._covariance, *self._shares

    def _cost_errors(self) -> Array:
        """Return upper bounds on the additional cost of each pair of neighbours (s,) by errors of B and Σ.

        With ``y = Σ⁻¹ B u`` and ``T'ΣT = I``, errors Δ of B raise a cost by ``2 y'Δu + ‖T'Δu‖²``, and errors Ε of Σ by
        at most ``|y'Εy| / (1 - ‖T'ΕT‖)``.
        """
        rows, noise = self._shares
        moves, _ = moves_between(self.query_matrix, self.neighbours)
        sizes_moved = np.abs(self.query_matrix)
        sizes_moved = (
            sizes_moved if self.neighbours is None else np.abs(linalg.to_dense(sizes_moved @ np.abs(self.neighbours)))
        )
        root = costs.whitening_root(self._covariance)
        if root is None:
            return np.full(moves.shape[1], np.inf)
        sizes, covariance = np.abs(root), np.abs(self._covariance)
        weighted = np.abs(root.T @ (root @ moves))
        remaining = 1 - noise * costs.entry_condition(root, covariance)
        errors = 2 * rows * np.einsum("ki,ki->i", weighted, sizes_moved) + np.square(rows * (sizes @ sizes_moved)).sum(
            axis=0
        )
        errors += noise * np.einsum("ki,ki->i", weighted, covariance @ weighted)
        return errors * UPWARDS / remaining if remaining > 0 else np.full(len(errors), np.inf)

    def _require_accurate(self, coordinates: Matrix, variances: Array) -> None:
        """Refuse variances with a relative error bound above 1e-6 for rounded matrices.

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
                f"workload has a variance, of query {worst}, with a relative rounding error above 1e-6: ask the "
                "mechanism that this one was made from"
            )

    def _standing_for(self, origin: Any, factor: float = 1.0) -> Self:
        """Mark this mechanism as an equivalent form of another, with all variances times a factor; return it.

        Its two matrices are rounded. So its variances are computed by the original mechanism, and its costs are the
        larger ones of the two.
        """
        earlier = getattr(origin, "_origin", None)
        self._origin = (origin, factor) if earlier is None else (earlier[0], earlier[1] * factor)
        return self._raised()

    @property
    def rank(self) -> int:
        """Number of independent queries that are answered, k; 0 for the mechanism without queries."""
        return len(self.query_matrix) if self._reduced is None else len(self._reduced.rows)

    @property
    def releases_exactly(self) -> bool:
        """Whether some query is answered without noise, at infinite cost."""
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
        depend on one another, L is that of generalised least squares. The error of entry (i, j) is at most 1e-6
        of ``√(v_i v_j)``, with v the variances. Raises `InvalidInputError` as `variances` does.
        """
        if workload is None:
            return self._covariance
        if self._origin is not None:
            self.check_cells(workload)
            origin, factor = self._origin
            return np.asarray(origin.covariance(workload) * factor)
        return self._own_covariance(workload)

    def _own_covariance(self, workload: Workload) -> Array:
        """Return `covariance` of query matrix and covariance alone, not of the original mechanism."""
        coordinates = self.represent(workload)
        product = coordinates @ self._independent_noise @ coordinates.T
        covariance = np.asarray((product + product.T) / 2)
        variances, errors = self._variances(workload, coordinates)
        if self._shares[0]:
            self._require_accurate(coordinates, variances)
        if np.all(errors <= MAX_VARIANCE_ERROR * variances):
            return covariance
        verified = self._verified(costs.proven_covariance, workload.dense())
        if verified is None:
            self._require_well_conditioned()
        return covariance if verified is None else verified

    def variances(self, workload: Workload) -> Array:
        """Return the variance of each answer to a workload (m,); a query outside the row space is refused.

        Raises `InvalidInputError` if a relative error bound exceeds 1e-6, as for nearly equal rows.
        """
        if self._origin is not None:
            self.check_cells(workload)
            origin, factor = self._origin
            return np.asarray(origin.variances(workload) * factor)
        return self._own_variances(workload)

    def _own_variances(self, workload: Workload) -> Array:
        """Return `variances` of query matrix and covariance alone; by first differences for matrix-free queries."""
        self.check_cells(workload)
        matrix_free = workload.needs_no_matrix and linalg.is_identity(self.independent_rows) and not any(self._shares)
        steps = workload.steps() if matrix_free else None
        if steps is not None and steps.is_whole:
            variances, errors = steps.enclosed_forms(self._independent_noise)
            if np.all(errors <= MAX_VARIANCE_ERROR * variances):
                return variances
        coordinates = self.represent(workload)
        variances = self._variances_by_rows(workload, coordinates)
        if any(self._shares):
            self._require_accurate(coordinates, variances)
        return variances

    def _variances_by_rows(self, workload: Workload, coordinates: Matrix) -> Array:
        count = workload.shape[0]
        if 0 < count * self.query_matrix.size <= MAX_VERIFIED_ENTRIES:
            verified = self._verified(costs.proven_variances, workload.dense())
            if verified is not None:
                return verified
        variances, errors = self._variances(workload, coordinates)
        inaccurate = np.flatnonzero(~(errors <= MAX_VARIANCE_ERROR * variances))
        for indices in np.split(inaccurate, range(VERIFIED_CHUNK, len(inaccurate), VERIFIED_CHUNK)):
            verified = self._verified(costs.proven_variances, linalg.to_dense(workload.matrix[indices]))
            if verified is None:
                self._require_well_conditioned()
            else:
                variances[indices] = verified
        return variances

    def _variances(self, workload: Workload, coordinates: Matrix) -> tuple[Array, Array]:
        """Return the computed variances (m,) and absolute error bounds (m,).

        With the residual ``R = W - L B`` the true rows are ``L + R B⁺``: standard deviations have errors of at most
        ``‖R_j‖ ‖B⁺ Σ^½‖``.
        """
        rows, noise, no_error = self.independent_rows, self._independent_noise, np.zeros(self.rank)
        variances, errors = row_variances(coordinates, noise, np.zeros(workload.shape[0]), no_error)
        variances = np.maximum(variances, 0.0)  # of an exact answer, rounding may leave a negative one
        if not linalg.is_identity(rows):
            units, _, triangle = linalg.row_factors(rows)
            residuals = np.linalg.norm((workload.dense() - coordinates @ rows) * units, axis=1)
            residuals += (
                (self.rank + 2) * linalg.EPS * np.linalg.norm(np.abs(coordinates) @ np.abs(rows) * units, axis=1)
            )
            half = scipy.linalg.solve_triangular(triangle, noise, trans="T", check_finite=False)
            inverse = scipy.linalg.solve_triangular(triangle, half.T, trans="T", check_finite=False)
            residuals *= np.sqrt(np.linalg.norm(inverse))
            errors += (2 * np.sqrt(variances) + residuals) * residuals
        return variances, errors if self.independent or self._is_well_conditioned else np.full(len(errors), np.inf)

    @property
    def _is_well_conditioned(self) -> bool:
        """Whether the rank of dependent rows is verified, and rows and noise are far from any lower rank."""
        if self._well_conditioned is None:
            self._well_conditioned = self._form is not None and _is_well_conditioned(
                self.query_matrix, self._covariance, self._form
            )
        return self._well_conditioned

    def _require_well_conditioned(self) -> None:
        """Refuse variances that are not verified, unless dependent rows are far from any lower rank."""
        if self.independent or not self._is_well_conditioned:
            raise InvalidInputError(
                "workload has variances with a relative rounding error above 1e-6: rows of the mechanism are nearly "
                "dependent, or their noise is nearly 0"
            )

    def _verified(self, function: Any, rows: Array) -> Array | None:
        """Return the verified variances of queries (m, d), or their verified covariance; None if verification fails."""
        verified: Array | None = function(self._covariance, self.query_matrix, self.independent, rows)
        if verified is None and not self.independent:
            independent = exactly_independent(self.query_matrix.T)
            # Fewer independent rows than the verified rank would be another mechanism.
            if independent is not None and len(independent) == self.rank:
                verified = function(self._independent_noise, self.independent_rows, True, rows)
        return verified

    def simulate(
        self, x: npt.ArrayLike, rng: np.random.Generator | int | None = None, workload: Workload | None = None
    ) -> Array:
        """Draw noisy answers to B x, or to a workload, for study. NOT a private release.

        The noise is of a seeded floating-point generator: the seed, or the low bits of the answers, can reveal the
        data.
        Returns an array, (m,) or (n, m).

        - `x` (d,) or (n, d): one data vector, or one a row, each with independent noise;
        - `rng`: the generator of the noise, or its seed; by default a seed of the operating system;
        - `workload`: the queries (m, d) to answer, in the row space of B; by default B itself.
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
        """Return the best unbiased estimates of a workload (m,) or (n, m) from noisy answers to B x (r,) or (n, r).

        Raises `InvalidInputError` or `InputTypeError` for answers of another shape, a query that is not answered.
        """
        answers, count = validate.finite(answers=answers), len(self.query_matrix)
        if answers.ndim not in (1, 2) or answers.shape[-1] != count:
            raise InvalidInputError(f"answers must have {count} entries in each row, got shape {answers.shape}")
        independent = answers if self._reduced is None else answers @ self._reduced.estimate.T
        return np.asarray((self.represent(workload) @ independent.T).T)

    @property
    def independent_rows(self) -> Array:
        """Independent rows (k, d) with the span of B: B itself if its rows are independent."""
        return self.query_matrix if self._reduced is None else self._reduced.rows

    @property
    def _independent_noise(self) -> Array:
        """Covariance of the noise on the independent rows: Σ itself if the rows of B are independent."""
        return self._covariance if self._reduced is None else self._reduced.noise

    def represent(self, workload: Workload) -> Matrix:
        """Return L with ``L B = W`` for independent rows B, sparse if B is the identity and W is sparse."""
        self.check_cells(workload)
        rows = self.independent_rows
        if linalg.is_identity(rows):
            return workload.matrix
        return linalg.represent(workload.dense(), np.asarray(rows), workload.names)

    def check_cells(self, workload: Workload) -> None:
        """Refuse anything but a workload over the mechanism's cells."""
        check_workload(workload)
        if workload.shape[1] != self.query_matrix.shape[1]:
            raise InvalidInputError(
                f"workload must have {self.query_matrix.shape[1]} cells, as the mechanism, got {workload.shape[1]}"
            )


def as_matrix(mechanism: Any) -> Any:
    """Return the dense form of a mechanism by steps, and any other mechanism unchanged."""
    return mechanism.dense() if getattr(type(mechanism), "by_matrix", False) else mechanism


def in_few_digits(rows: Array) -> Array:
    """Return rows in units of their largest entries, rounded to 40 binary digits, so that equal entries stay equal.

    Floating-point errors make equal entries of an exactly released row differ. Neighbours with the same exact answer
    then have a difference of exactly 0 again.
    """
    return np.asarray(np.rint(rows / np.abs(rows).max(axis=1, keepdims=True) * ROW_SCALE) / ROW_SCALE)


def _is_well_conditioned(queries: Array, covariance: Array, form: StandardForm) -> bool:
    """Whether the rank of dependent rows is verified, and rows and noise are far from any lower rank."""
    units = np.sqrt(np.diagonal(covariance))
    spectrum = np.linalg.eigvalsh(covariance / units / units[:, None])
    sizes = linalg.singular_values(form.queries)
    well_conditioned = (
        spectrum[0] >= MIN_SINGULAR_RATIO**2 * spectrum[-1] and sizes[-1] >= MIN_SINGULAR_RATIO * sizes[0]
    )
    return bool(well_conditioned and PseudoInverse.of(queries).enclosed() is not None)


def _matrices(query_matrix: npt.ArrayLike, covariance: npt.ArrayLike) -> tuple[Array, Array]:
    """Return both matrices, checked; a mechanism may have no rows."""
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
