"""Mechanisms on matrices, drawn: whole rows that span the queries, whole multiples of them, and discrete noise."""

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
from dualmech.publishing.drawing import AGREEMENT, Exact, Integers, Noise, counted_vector, whole_counts
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain

PRECISIONS = (20, 26, 32, 38)  # bits of the grid's entries, the fewest that are accurate enough taken
ACCURACY = 1e-6  # largest relative error of the noise's covariance, in its own metric, that the grid may cause
NOT_MOVED = 1e-10  # largest squared length of a difference in a direction, of the largest, that counts as none
NO_NOISE = 1e-12  # largest share of the noise, in units of the rows, that counts as none
LEAST_EXPONENT = 10  # noise of deviation 1024 or more, where the discrete Gaussian's moments are the continuous one's


LARGEST = 2048
"""Most rows whose whole numbers are multiplied: twice as many take sixteen times as long, and this many ten minutes."""


def require_small(rows: int) -> None:
    """Refuse a mechanism on more rows than are drawn in whole numbers, before any of them is made."""
    if rows > LARGEST:
        raise InvalidInputError(
            f"mechanism must have at most {LARGEST} rows to be drawn in whole numbers on a matrix, got {rows}: release "
            f"coarser values, such as weeks for days, or tables, whose blocks are small"
        )


class AnsweredRows:
    """Noisy answers to independent rows, the first `exact` of them without noise: what estimates are made of."""

    __slots__ = ("exact", "mechanism")

    exact: int  # number of rows, the first ones, that are released without noise and cost nothing
    mechanism: LinearGaussianMechanism  # on independent rows, with the covariance of the noise that was drawn

    by_table = False

    def unmoved(self, workload: Workload) -> npt.NDArray[np.bool_]:
        """Return which queries (m,) are released as they are: those that the rows without noise make up."""
        shares = abs(sp.csr_array(self.mechanism.represent(workload)))
        if self.exact == shares.shape[1]:
            return np.ones(shares.shape[0], dtype=bool)
        noisy, largest = (part.max(axis=1).toarray().ravel() for part in (shares[:, self.exact :], shares))
        return np.asarray(noisy <= AGREEMENT * largest)

    def estimate(self, measured: Array, workload: Workload) -> Array:
        """Return the unbiased estimates (m,) of a workload from what was drawn."""
        return np.asarray(self.mechanism.represent(workload) @ measured)


class DrawnRows(AnsweredRows):
    """A `LinearGaussianMechanism` as it is drawn: ``N x + z``, whole numbers with discrete Gaussian noise.

    With a whole basis B of what the mechanism answers, Σ its noise on B and ``F'F = Σ⁻¹``, N is ``diag(2^b) F`` on a
    grid, times B, and z has deviations ``2^b``. The mechanism that this amounts to, `mechanism`, differs from what was
    given by some 1e-6 of its noise, and costs no direction more; its privacy, `costs`, is computed from N in whole
    numbers. What neighbours have in common, such as the number of records where records are replaced, may have no noise
    at all: it is released as it is, once its whole rows are seen to be 0 on all differences.
    Raises `InvalidInputError` for a mechanism that releases anything else exactly, a span without a whole basis, noise
    that is too small or too large.
    """

    __slots__ = ("basis", "costs", "exponents", "factor", "whole")

    basis: Integers  # (k, d) B
    factor: Integers  # lower triangular, diag(2^b) F on the grid, of the other rows
    exponents: Integers  # b of each of those
    whole: Integers  # N
    costs: Exact  # (s,) squared privacy cost of each pair of neighbours

    def __init__(self, mechanism: LinearGaussianMechanism) -> None:
        require_small(len(mechanism.query_matrix))
        basis, self.exact = _split_basis(mechanism)
        noisy = basis[self.exact :]
        rows = noisy.astype(np.float64)
        self.factor, self.exponents = rounded_factor(_noise_on(mechanism, rows))
        reach = np.abs(self.factor).astype(np.float64) @ np.abs(rows)
        if reach.max(initial=0.0) >= drawing.LARGEST:
            raise InvalidInputError("mechanism must answer rows of smaller numbers for its noise to be exact")
        exact = reach.max(initial=0.0) <= 2.0**52  # sums of doubles, which are much quicker
        product = (self.factor.astype(np.float64) @ rows).astype(np.int64) if exact else self.factor @ noisy
        self.basis, self.whole = basis, product
        self.costs = drawing.squared_costs(self.whole, self.exponents, mechanism.neighbours)
        noise = covariance_of(on_doubles(self.factor, self.exponents))
        covariance = scipy.linalg.block_diag(np.zeros((self.exact, self.exact)), noise)
        self.mechanism = LinearGaussianMechanism(
            basis.astype(np.float64), covariance[-len(basis) :, -len(basis) :], mechanism.neighbours
        )

    @property
    def squared_privacy_cost(self) -> Fraction:
        """The largest of the neighbours' costs, exactly."""
        return Fraction(max(self.costs))

    def read(self, source: object, domain: Domain | None, allow_empty: bool) -> object:
        """Return the data vector (d,) of records, or of the counts that were given."""
        return counted_vector(source, domain, allow_empty)

    def draw(self, x: object, noise: Noise) -> Array:
        """Draw estimates of B x (k,) from a data vector (d,) of whole numbers: the one place where data meet noise."""
        counts = whole_counts(records=validate.vector(self.basis.shape[1], "cell", records=x))
        noisy = drawing.product(self.whole, counts) + drawn(noise, self.exponents)
        answers = np.ldexp(noisy.astype(np.float64), -self.exponents)
        known = drawing.product(self.basis[: self.exact], counts).astype(np.float64)
        return np.concatenate([known, solved(self.factor, self.exponents, answers)])


def _split_basis(mechanism: LinearGaussianMechanism) -> tuple[Integers, int]:
    """Return a whole basis of what a mechanism answers, and how many of its first rows are released without noise.

    Where a mechanism releases some answers exactly, these are all rows that no neighbour changes: they cost nothing.
    Singular values find them, and whole numbers say that they are 0 on all differences.
    """
    basis = drawing.whole_basis(mechanism.independent_rows)
    if not mechanism.releases_exactly:
        return basis, 0
    exact = np.zeros((0, basis.shape[1]), dtype=np.int64)
    if mechanism.neighbours is not None:
        rows = linalg.row_space(basis.astype(np.float64))
        moves, _ = drawing.moves_of_whole_numbers(mechanism.neighbours)
        floats = moves.astype(np.float64)
        values, vectors = np.linalg.eigh(rows @ (floats @ (floats.T @ rows.T)))
        still = vectors[:, values <= NOT_MOVED * max(values[-1], 0.0)].T
        exact = drawing.whole_basis(still @ rows) if len(still) else exact
        if np.any((moves.T @ exact.T).T):
            raise InvalidInputError("mechanism must answer what no neighbour changes by whole rows; none were found")
    basis = np.vstack([exact, drawing.rows_beyond(basis, exact)])
    noisy = basis[len(exact) :]
    covariance = _noise_on(mechanism, noisy.astype(np.float64))
    diagonal = np.diagonal(covariance)
    units = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values = np.linalg.eigvalsh(covariance / units / units[:, None])
    if np.any(values <= NO_NOISE * values.max(initial=0.0)):
        raise InvalidInputError(
            "mechanism must add noise to every query that neighbours may change: some it releases exactly"
        )
    return basis, len(exact)


def _noise_on(mechanism: LinearGaussianMechanism, rows: Array) -> Array:
    """Return the covariance of the noise on rows (k, d), of which there may be none."""
    return mechanism.covariance(Workload(rows)) if len(rows) else np.zeros((0, 0))


def solved(factor: Integers, exponents: Integers, answers: Array) -> Array:
    """Return ``F⁻¹`` times answers in units of the noise, F being a factor on a grid."""
    if not len(factor):
        return answers
    scaled = on_doubles(factor, exponents)
    return np.asarray(scipy.linalg.solve_triangular(scaled, answers, lower=True, check_finite=False))


def on_doubles(factor: Integers, exponents: Integers) -> Array:
    """Return the factor F on its grid (k, k)."""
    return np.asarray(np.ldexp(factor.astype(np.float64), -exponents[:, None]))


def covariance_of(factor: Array) -> Array:
    """Return ``(F'F)⁻¹`` of a lower triangle F (k, k), the noise that is drawn.

    Raises `InvalidInputError` where rounding of its entries changes a variance by more than a share `EQUIVALENCE_TOL`.
    """
    identity = np.eye(len(factor))
    if not len(factor):
        return identity
    inverse = scipy.linalg.solve_triangular(factor, identity, lower=True, check_finite=False)
    covariance = np.asarray(inverse @ inverse.T)
    close = rounding_share(factor, covariance) <= EQUIVALENCE_TOL
    if not (close or equivalence_error((factor, identity), (identity, covariance)) <= EQUIVALENCE_TOL):
        raise InvalidInputError("covariance must be better conditioned for the noise that is drawn to be stated")
    return covariance


def drawn(noise: Noise, exponents: Integers) -> Exact:
    """Draw independent noise of deviations ``2^exponents``."""
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
    """Return F with ``F'F ⪯ Σ⁻¹`` on a grid, lower triangular: whole numbers and exponents of the rows.

    Rounding never costs privacy: the rounded factor is a little less than that of Σ⁻¹, so that ``F Σ F' ⪯ I``; and
    the noise is larger than Σ by some three times the accuracy at most. The first of the precisions, in bits, is taken
    that has it.
    Raises `InvalidInputError` for a covariance that is too ill-conditioned for the finest grid.
    """
    if not len(covariance):
        return np.zeros((0, 0), dtype=np.int64), np.zeros(0, dtype=np.int64)
    upper, exact = inverse_factor(covariance)
    factor, identity = (1 - ACCURACY) * exact, (1 - ACCURACY) * np.eye(len(covariance))
    for bits in PRECISIONS:
        whole, exponents = drawing.on_grid(factor, bits, LEAST_EXPONENT)
        # F times the transposed triangle, whose product is Σ: the planned noise in units of the drawn noise.
        turned = np.ldexp(whole.astype(np.float64), -exponents[:, None]) @ upper.T
        if np.linalg.norm(turned @ turned.T - identity @ identity) <= ACCURACY:
            return whole, exponents
    raise InvalidInputError("covariance must be better conditioned for its noise to be drawn in whole numbers")
