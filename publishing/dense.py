"""Mechanisms on matrices on a grid: integer rows that span the queries, and discrete noise."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.costs import EQUIVALENCE_TOL, equivalence_error, rounding_share
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.publishing import drawing
from dualmech.publishing.drawing import SPAN_TOL, Exact, Integers, Noise, counted_vector, integer_counts
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain

GRID_BITS = (20, 26, 32, 38)  # bits of the grid's entries; the first accurate enough choice is used
GRID_TOL = 1e-6  # maximum relative error of the noise's covariance, in its own metric, by rounding to the grid
INSENSITIVE_TOL = 1e-10  # maximum relative squared length of the differences in an insensitive direction
NO_NOISE_TOL = 1e-12  # relative eigenvalues of the noise correlations up to this count as 0
MIN_EXPONENT = 10  # the discrete Gaussian of deviation 1024 has the moments of the continuous one


MAX_ROWS = 2048
"""Maximum number of rows: it takes ten minutes, and twice as many rows take sixteen times as long."""


def require_small(rows: int) -> None:
    """Refuse a mechanism on more than `MAX_ROWS` rows, before they are built."""
    if rows > MAX_ROWS:
        raise InvalidInputError(
            f"mechanism must have at most {MAX_ROWS} rows to be drawn in whole numbers on a matrix, got {rows}: "
            f"release coarser values, such as weeks for days, or tables, whose blocks are small"
        )


class AnsweredRows:
    """Noisy answers to independent rows, the first `exact` without noise, and estimates of other queries."""

    __slots__ = ("exact", "mechanism")

    exact: int  # number of the first rows, which are released without noise and have no privacy cost
    mechanism: LinearGaussianMechanism  # on independent rows, with the covariance of the drawn noise

    by_table = False

    def unmoved(self, workload: Workload) -> npt.NDArray[np.bool_]:
        """Return a mask (m,) of the queries that are combinations of rows without noise."""
        coordinates = abs(sp.csr_array(self.mechanism.represent(workload)))
        if self.exact == coordinates.shape[1]:
            return np.ones(coordinates.shape[0], dtype=bool)
        noisy, scale = (part.max(axis=1).toarray().ravel() for part in (coordinates[:, self.exact :], coordinates))
        return np.asarray(noisy <= SPAN_TOL * scale)

    def estimate(self, measured: Array, workload: Workload) -> Array:
        """Return the unbiased estimates (m,) of a workload from noisy answers."""
        return np.asarray(self.mechanism.represent(workload) @ measured)


class DrawnRows(AnsweredRows):
    """A `LinearGaussianMechanism` on the grid: ``N x + z``, integers with discrete Gaussian noise.

    B is an integer basis of the queries' span, Σ the covariance on B, and ``F'F = Σ⁻¹``. Then N is ``diag(2^b) F``,
    rounded to integers, times B, and z has standard deviations ``2^b``. The resulting `mechanism` differs from the
    original by about 1e-6 of its noise, and costs no direction more. Its `costs` are computed from N in integers.
    Answers that no neighbour changes, such as the number of records if they are replaced, may have no noise: their
    integer rows are verified to be 0 on all differences.
    Raises `InvalidInputError` for a mechanism that releases other answers exactly, for a span without an integer basis,
    and for noise that is too small or too large.
    """

    __slots__ = ("basis", "costs", "exponents", "factor", "integer_rows")

    basis: Integers  # (k, d) B
    factor: Integers  # lower triangular, diag(2^b) F on the grid, of the rows with noise
    exponents: Integers  # b of these rows
    integer_rows: Integers  # N
    costs: Exact  # (s,) squared privacy cost of each pair of neighbours

    def __init__(self, mechanism: LinearGaussianMechanism) -> None:
        require_small(len(mechanism.query_matrix))
        basis, self.exact = _split_basis(mechanism)
        noisy = basis[self.exact :]
        rows = noisy.astype(np.float64)
        self.factor, self.exponents = rounded_factor(_noise_on(mechanism, rows))
        max_sum = (np.abs(self.factor).astype(np.float64) @ np.abs(rows)).max(initial=0.0)
        if max_sum >= drawing.MAX_ENTRY:
            raise InvalidInputError("mechanism must answer rows of smaller numbers for its noise to be exact")
        fits_doubles = max_sum <= 2.0**52  # then products of doubles are exact, and much faster
        product = (self.factor.astype(np.float64) @ rows).astype(np.int64) if fits_doubles else self.factor @ noisy
        self.basis, self.integer_rows = basis, product
        self.costs = drawing.squared_costs(self.integer_rows, self.exponents, mechanism.neighbours)
        noise = covariance_of(factor_from_grid(self.factor, self.exponents))
        covariance = scipy.linalg.block_diag(np.zeros((self.exact, self.exact)), noise)
        self.mechanism = LinearGaussianMechanism(
            basis.astype(np.float64), covariance[-len(basis) :, -len(basis) :], mechanism.neighbours
        )

    @property
    def squared_privacy_cost(self) -> Fraction:
        """The exact maximum of the neighbours' squared privacy costs."""
        return Fraction(max(self.costs))

    def read(self, source: object, domain: Domain | None, allow_empty: bool) -> object:
        """Return the data vector (d,) of records or of the user's counts."""
        return counted_vector(source, domain, allow_empty)

    def draw(self, x: object, noise: Noise) -> Array:
        """Draw estimates of B x, shape (k,), from a data vector x of integers. Noise is added to data only here."""
        counts = integer_counts(records=validate.vector(self.basis.shape[1], "cell", records=x))
        noisy = drawing.product(self.integer_rows, counts) + draw_noise(noise, self.exponents)
        answers = np.ldexp(noisy.astype(np.float64), -self.exponents)
        exact_answers = drawing.product(self.basis[: self.exact], counts).astype(np.float64)
        return np.concatenate([exact_answers, solve_factor(self.factor, self.exponents, answers)])


def _split_basis(mechanism: LinearGaussianMechanism) -> tuple[Integers, int]:
    """Return an integer basis of a mechanism's queries, and the number of its first rows that have no noise.

    If a mechanism releases some answers exactly, all rows that no neighbour changes are released without noise.
    Eigenvalues find these rows, and integer arithmetic verifies that they are 0 on all differences.
    """
    basis = drawing.integer_basis(mechanism.independent_rows)
    if not mechanism.releases_exactly:
        return basis, 0
    exact = np.zeros((0, basis.shape[1]), dtype=np.int64)
    if mechanism.neighbours is not None:
        rows = linalg.row_space(basis.astype(np.float64))
        differences, _ = drawing.integer_differences(mechanism.neighbours)
        floats = differences.astype(np.float64)
        values, vectors = np.linalg.eigh(rows @ (floats @ (floats.T @ rows.T)))
        insensitive = vectors[:, values <= INSENSITIVE_TOL * max(values[-1], 0.0)].T
        exact = drawing.integer_basis(insensitive @ rows) if len(insensitive) else exact
        if np.any((differences.T @ exact.T).T):
            raise InvalidInputError("mechanism must answer insensitive queries by integer rows; none were found")
    basis = np.vstack([exact, drawing.rows_beyond(basis, exact)])
    noisy = basis[len(exact) :]
    covariance = _noise_on(mechanism, noisy.astype(np.float64))
    diagonal = np.diagonal(covariance)
    units = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values = np.linalg.eigvalsh(covariance / units / units[:, None])
    if np.any(values <= NO_NOISE_TOL * values.max(initial=0.0)):
        raise InvalidInputError(
            "mechanism must add noise to every query that neighbours may change: some it releases exactly"
        )
    return basis, len(exact)


def _noise_on(mechanism: LinearGaussianMechanism, rows: Array) -> Array:
    """Return the covariance of the noise on rows (k, d), for any k ≥ 0."""
    return mechanism.covariance(Workload(rows)) if len(rows) else np.zeros((0, 0))


def solve_factor(factor: Integers, exponents: Integers, answers: Array) -> Array:
    """Return ``F⁻¹`` times answers in units of the noise, for a factor F on the grid."""
    if not len(factor):
        return answers
    scaled = factor_from_grid(factor, exponents)
    return np.asarray(scipy.linalg.solve_triangular(scaled, answers, lower=True, check_finite=False))


def factor_from_grid(factor: Integers, exponents: Integers) -> Array:
    """Return the factor F (k, k) in doubles from its integers on the grid."""
    return np.asarray(np.ldexp(factor.astype(np.float64), -exponents[:, None]))


def covariance_of(factor: Array) -> Array:
    """Return ``(F'F)⁻¹``, the covariance of the drawn noise, for a lower triangular F (k, k).

    Raises `InvalidInputError` if rounding of its entries changes a variance by more than a share `EQUIVALENCE_TOL`.
    """
    identity = np.eye(len(factor))
    if not len(factor):
        return identity
    inverse = scipy.linalg.solve_triangular(factor, identity, lower=True, check_finite=False)
    covariance = np.asarray(inverse @ inverse.T)
    if rounding_share(factor, covariance) <= EQUIVALENCE_TOL:
        return covariance
    if not equivalence_error((factor, identity), (identity, covariance)) <= EQUIVALENCE_TOL:  # also for NaN
        raise InvalidInputError("covariance must be better conditioned, to compute the covariance of the drawn noise")
    return covariance


def draw_noise(noise: Noise, exponents: Integers) -> Exact:
    """Draw independent noise of standard deviations ``2^exponents``."""
    values = np.zeros(exponents.shape, dtype=object)
    for exponent in np.unique(exponents).tolist():
        where = exponents == exponent
        values[where] = noise(2.0**exponent, int(where.sum()))
    return values


def inverse_factor(covariance: Array) -> tuple[Array, Array]:
    """Return the upper R with ``R'R = Σ``, and the lower ``F = (R')⁻¹`` with ``F'F = Σ⁻¹``."""
    upper = linalg.cholesky(covariance)
    if upper is None:
        raise InvalidInputError("covariance must be positive definite")
    identity = np.eye(len(covariance))
    return upper, np.tril(scipy.linalg.solve_triangular(upper, identity, trans="T", check_finite=False))


def rounded_factor(covariance: Array) -> tuple[Integers, Integers]:
    """Return a lower triangular F with ``F'F ⪯ Σ⁻¹`` on a grid: integers, and the exponents of the rows.

    Rounding never costs privacy: the factor is reduced before it is rounded, so that ``F Σ F' ⪯ I``. The drawn noise
    exceeds Σ by a share of at most about ``3 GRID_TOL``. The grid is the coarsest of `GRID_BITS` with this accuracy.
    Raises `InvalidInputError` for a covariance that is too ill-conditioned for the finest grid.
    """
    if not len(covariance):
        return np.zeros((0, 0), dtype=np.int64), np.zeros(0, dtype=np.int64)
    upper, exact = inverse_factor(covariance)
    factor, identity = (1 - GRID_TOL) * exact, (1 - GRID_TOL) * np.eye(len(covariance))
    for bits in GRID_BITS:
        integers, exponents = drawing.on_grid(factor, bits, MIN_EXPONENT)
        # F R', with Σ = R'R: a root of the planned noise, in units of the drawn noise.
        root = np.ldexp(integers.astype(np.float64), -exponents[:, None]) @ upper.T
        if np.linalg.norm(root @ root.T - identity @ identity) <= GRID_TOL:
            return integers, exponents
    raise InvalidInputError("covariance must be better conditioned for its noise to be drawn in whole numbers")
