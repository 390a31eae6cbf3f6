"""Linear Gaussian mechanisms: noise of a known covariance on linear queries, and answerability between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg, validate
from dualmech.display import decimal_above
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.apart import largest_sums
from dualmech.geometry.causal import EarlierRows
from dualmech.geometry.dense import Dense
from dualmech.geometry.moves import moves_between
from dualmech.mechanisms.noise import NoisyQueries, as_matrix
from dualmech.mechanisms.privacy import MET, ParticipationCost, cost_between
from dualmech.mechanisms.step_noise import NoiseByStep
from dualmech.neighbours import sign_patterns
from dualmech.validate import Array, Matrix
from dualmech.verified import UPWARDS, gram_defect, spectral_norm, sum_rounding
from dualmech.workloads.base import Workload

TOLERANCE = 1e-8
"""Relative excess over another mechanism's cost that counts as a rounding error."""


@dataclass(frozen=True, slots=True, eq=False)
class Answerability:
    """Whether one mechanism b is answerable from another a, with a witness; true or false in a condition.

    Attributes
    ----------
    answerable : bool
        Whether ``C_b ⪯ (1 + tol) C_a``.
    excess : float
        The least e ≥ 0 with ``C_b ⪯ (1 + e) C_a``; infinite if b has a query outside the row space of a.
    transform : (m_b, m_a) array or None
        A of Lemma 3.2: b has the distribution of ``A a(x) + C N(0, I)``. None if b is not answerable.
    noise : (m_b, m_b) array or None
        C of Lemma 3.2, symmetric.
    direction : (d,) array or None
        A difference x of data sets that costs more under b than under a, ``x'C_b x > x'C_a x``, largest entry 1;
        None if b is answerable.
    attributes : tuple of str or None
        Of mechanisms on blocks, in the place of matrices, the attributes of the worst block.
    """

    answerable: bool
    excess: float
    transform: Array | None = None
    noise: Array | None = None
    direction: Array | None = None
    attributes: tuple[str, ...] | None = None

    def __bool__(self) -> bool:
        return self.answerable


@dataclass(frozen=True, slots=True, eq=False)
class Equivalence:
    """Whether two mechanisms reveal the same, with a witness each way; true or false in a condition.

    Attributes
    ----------
    forward, backward : Answerability
        Of the first mechanism from the second, and of the second from the first.
    """

    forward: Answerability
    backward: Answerability

    def __bool__(self) -> bool:
        return bool(self.forward) and bool(self.backward)


def answerable(target: NoisyQueries, other: NoisyQueries, tol: float = TOLERANCE) -> Answerability:
    """Return whether `wanted` is answerable from `other`; see `LinearGaussianMechanism.is_answerable_from`."""
    tol, other = validate.positive_number(tol=tol), as_matrix(other)
    check_comparable((target, other), ("the mechanism", "other"))
    other_form, target_form = other.standard_form, target.standard_form
    outside = _unanswerable_part(target_form.queries, other_form.queries, min(tol, linalg.SPAN_TOLERANCE))
    if outside is not None:
        return Answerability(False, np.inf, direction=_largest_one(outside))
    shares = coordinates(target_form.queries, other_form.queries)
    _, sizes, right = linalg.svd(shares) if shares.size else (None, np.zeros(0), None)
    excess = max(float(sizes[0] - 1) * float(sizes[0] + 1), 0.0) if sizes.size else 0.0
    if excess > tol and right is not None:
        direction = np.linalg.lstsq(other_form.queries, right[0], rcond=None)[0]
        return Answerability(False, excess, direction=_largest_one(direction))
    lifted = target_form.lift @ shares
    return Answerability(True, excess, lifted @ other_form.estimate, _root(target.covariance() - lifted @ lifted.T))


def coordinates(queries: Array, rows: Array) -> Array:
    """Return T with ``T rows = queries``, for queries in the span of independent rows, whatever their units."""
    if not len(rows) or not len(queries):
        return np.zeros((len(queries), len(rows)))
    units, orthonormal, triangle = linalg.row_factors(rows)
    transposed = scipy.linalg.solve_triangular(triangle, orthonormal.T @ (queries * units).T, check_finite=False)
    return np.ascontiguousarray(transposed.T)


def without_tiny_entries(rows: Array) -> Array:
    """Return rows with entries below ε² times the largest one set to 0: rounding errors of zeros."""
    largest = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    return np.where(np.abs(rows) < linalg.EPS**2 * largest, 0.0, rows)


def coordinate_rounding(shares: Array, rows: Array, queries: Array) -> float:
    """Return a relative error bound on ``T T'``, for T the `coordinates` on rows S.

    With ``D = T S - B`` the error of T is ``D S⁺``, and ``S⁺ = K⁺ X'`` for ``K = X' S`` with any X that makes the rows
    of K independent: X is the inverse of a triangle of S, so that they are nearly orthonormal.
    """
    if not shares.size:
        return 0.0
    triangle = scipy.linalg.qr(rows.T, mode="r", check_finite=False)[0][: len(rows)]
    if not np.all(np.diagonal(triangle)):
        return np.inf
    inverse = scipy.linalg.solve_triangular(triangle, np.eye(len(rows)), check_finite=False)
    inverse_entries, row_entries, entries = np.abs(inverse), np.abs(rows), np.abs(shares)
    defect, gram_error = gram_defect(inverse.T @ rows)
    defect_norm = spectral_norm(np.abs(defect)) + len(rows) * gram_error
    error_norm = spectral_norm(sum_rounding(len(rows)) * (inverse_entries.T @ row_entries))
    if not defect_norm < 1 or error_norm >= np.sqrt(1 - defect_norm):
        return np.inf
    residual = np.abs(shares @ rows - queries) + sum_rounding(len(rows) + 1) * (entries @ row_entries + np.abs(queries))
    error = float(np.linalg.norm(residual)) * spectral_norm(inverse_entries) / (np.sqrt(1 - defect_norm) - error_norm)
    norm = float(np.linalg.norm(entries))
    total = (2 * spectral_norm(entries) + error) * error + sum_rounding(len(rows)) * spectral_norm(entries) * norm
    return float(total * UPWARDS / np.linalg.norm(shares @ shares.T)) + 4 * linalg.EPS


def check_comparable(mechanisms: Sequence[NoisyQueries], names: Sequence[str] = ()) -> None:
    """Refuse an object that is no mechanism, and mechanisms on other cells or with other neighbours than the first.

    `names` are the arguments that they were passed as; by default ``mechanisms[0]``, ``mechanisms[1]``, …
    """
    called = names or [f"mechanisms[{index}]" for index in range(len(mechanisms))]
    for name, mechanism in zip(called, mechanisms, strict=True):
        if not isinstance(mechanism, NoisyQueries):
            raise InputTypeError(f"{name} must be a LinearGaussianMechanism, got {type(mechanism).__name__}")
        cells, expected = mechanism.query_matrix.shape[1], mechanisms[0].query_matrix.shape[1]
        if cells != expected:
            raise InvalidInputError(
                f"{name} must be stated on the same cells as {called[0]}, got {cells} and {expected}"
            )
        if not same_neighbours(mechanism, mechanisms[0]):
            raise InvalidInputError(f"{name} must have the same neighbours as {called[0]}, it has others")


def same_neighbours(first: NoisyQueries, second: NoisyQueries) -> bool:
    if first.neighbours is second.neighbours:
        return True
    if first.neighbours is None or second.neighbours is None:
        return False
    left, right = (linalg.to_dense(mechanism.neighbours) for mechanism in (first, second))
    return left.shape == right.shape and bool(np.array_equal(left, right))


def _unanswerable_part(queries: Array, rows: Array, tol: float) -> Array | None:
    """Return the largest component of a query outside the span of the rows, or None if all are within the tolerance."""
    if not len(queries):
        return None
    basis = linalg.row_space(rows) if len(rows) else rows
    components = queries - (queries @ basis.T) @ basis
    shares = np.linalg.norm(components, axis=1) / np.linalg.norm(queries, axis=1)
    worst = int(np.argmax(shares))
    return components[worst] if shares[worst] > tol else None


def _largest_one(direction: Array) -> Array:
    return np.asarray(direction / direction[np.argmax(np.abs(direction))])


def _root(matrix: Array) -> Array:
    """Return the symmetric root of a matrix that is positive semidefinite up to rounding errors."""
    if not matrix.size:
        return matrix
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


FORMS_CHUNK = 4096  # differences of data sets whose costs are computed together

MAX_QUERY_MATRIX_ENTRIES = 2**24  # of a mechanism that is materialised as a dense matrix


class LinearGaussianMechanism(NoisyQueries, NoiseByStep):
    """The mechanism ``x ↦ B x + N(0, Σ)``.

    Its privacy depends on the cost matrix ``C = B' Σ⁻¹ B`` alone: neighbours that differ by u cost
    ``u' C u``, the largest of these is the squared privacy cost Δ², and the mechanism is Δ-GDP and
    Δ²/2-zCDP. Any workload ``W = L B`` in its row space is answered by ``L (B x + noise)``, without bias.
    Raises `InvalidInputError` or `InputTypeError` for shapes that do not fit, a row of zeros, an asymmetric or
    indefinite covariance, NaN or infinity.
    Source: definition 3, Theorem 3 and Corollary 1 of Xiao et al., PVLDB 14(10), 2021.

    Parameters
    ----------
    query_matrix : (k, d) array
        B. Its rows may depend on one another, as the total does on the cells: workloads are then answered by
        generalised least squares. Without rows, ``np.zeros((0, d))``, the mechanism has no queries and no cost.
    covariance : (k, k) array
        Σ ⪰ 0, symmetric. If it is singular, some queries are released exactly.
    neighbours : str, Relation, (d, s) array or sparse matrix, optional
        Differences of neighbouring data sets up to sign; by default one record added or removed.

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
    >>> both = dm.LinearGaussianMechanism([[1, 1], [1, 0], [0, 1]], 2 * np.eye(3))      # example 3.3 of CMN
    >>> once = dm.LinearGaussianMechanism(np.eye(2), [[4 / 3, -2 / 3], [-2 / 3, 4 / 3]])
    >>> bool(both.is_equivalent_to(once))
    True
    """

    __slots__ = ()

    def point_on(self, geometry: object) -> Array:
        """Return the covariance of the estimates of a dense geometry's basis.

        Raises `InvalidInputError` for another geometry, or a basis outside the row space.
        """
        matrix = getattr(geometry, "matrix", geometry)
        if not isinstance(matrix, Dense):
            raise InvalidInputError(
                "a mechanism on rows has estimates for geometry 'dense' or 'stream' alone, "
                f"got {getattr(geometry, 'name', geometry)!r}"
            )
        return self.covariance(Workload(matrix.basis))

    def causal_strategy(self) -> Array:
        """Return the strategy A (d, d), lower triangular with a positive diagonal, whose cost matrix is this one.

        ``A'A = C``, so unit noise z on A x is an equivalent mechanism. Row t of A x depends on the cells up to t alone.
        If ``W = L A`` is lower triangular, as prefixes are, so is L, and answer t depends on the noise ``z_1 … z_t``
        alone: cells may arrive one by one, and the noise is sampled as they arrive.
        Raises `InvalidInputError` for fewer independent queries than cells, or queries released exactly: C then has
        no such factor.

        Examples
        --------
        >>> import dualmech as dm
        >>> mechanism = dm.LinearGaussianMechanism([[1, 0], [0, 1]], [[1, -0.5], [-0.5, 1]])
        >>> mechanism.causal_strategy().round(4)
        array([[1.    , 0.    ],
               [0.5774, 1.1547]])
        """
        rows, cells = self.standard_form.queries.shape
        if rows < cells:
            raise InvalidInputError(
                f"causal_strategy needs as many independent queries as cells, got {rows} for {cells}"
            )
        # The triangle of a QR factorisation, both its orders reversed, belongs to a QL factorisation.
        triangle = scipy.linalg.qr(self.standard_form.queries[:, ::-1], mode="r", check_finite=False)[0]
        factor = triangle[::-1, ::-1]
        # Adding 0 turns -0 into 0.
        return np.ascontiguousarray(factor * np.sign(np.diagonal(factor))[:, None] + 0.0)

    def recurrence(self) -> EarlierRows:
        """Return the recurrence of noise rows from all earlier rows, by `causal_strategy`."""
        return EarlierRows.of_matrix(self.causal_strategy())

    def participation_cost(self, times: int, separation: int, at_least: bool = False) -> ParticipationCost:
        if self._origin is not None:
            origin, factor = self._origin
            cost: ParticipationCost = origin.participation_cost(times, separation, at_least)
            if factor == 1:
                return cost
            share = 4 * linalg.EPS
            return cost_between(cost.squared_cost / factor * (1 + share), cost.lower_bound / factor * (1 - share))
        return self._own_participation_cost(times, separation, at_least)

    def _own_participation_cost(self, times: int, separation: int, at_least: bool) -> ParticipationCost:
        """Return `participation_cost` of query matrix and covariance alone, not of the original mechanism."""
        times, separation = validate.size(times=times), validate.size(separation=separation)
        at_least = validate.boolean(at_least=at_least)
        if self.releases_exactly:
            raise InvalidInputError(
                "participation_cost is not finite: the covariance is singular, some queries are released exactly"
            )
        if self._singular:
            raise InvalidInputError("participation_cost needs a covariance that is verified to be positive definite")
        if not len(self.query_matrix):
            return ParticipationCost(0.0, True, 0.0)
        if at_least:
            return self._cost_apart(times, separation)
        cells = self.query_matrix.shape[1]
        times = min(times, -(-cells // separation))
        patterns = sign_patterns(cells, times, separation, np.ones((1, times)))
        pairs = sp.coo_array(sp.triu(patterns @ patterns.T, k=1))
        first, second = (sp.eye_array(cells, format="csc")[:, coord] for coord in pairs.coords)
        costs, errors = self._form_costs(sp.eye_array(cells, format="csc"))
        # For sensitivity vectors u, v of two steps, 4 u'Σ⁻¹v is the cost of u + v minus the cost of u - v.
        (plus, plus_errors), (minus, minus_errors) = self._form_costs(first + second), self._form_costs(first - second)
        products, product_errors = (plus - minus) / 2, (plus_errors + minus_errors) / 2

        def largest(diagonal: Array, products: Array) -> float:
            forms = sp.coo_array((products, pairs.coords), shape=pairs.shape) + sp.diags_array(diagonal)
            return float(patterns.multiply(forms @ patterns).sum(axis=0).max())

        upper = largest(costs + errors, np.abs(products) + product_errors)
        # The cost of participations of one sign, or the mean cost over all signs.
        one_sign = bool(np.all(products >= -product_errors))
        lower = largest(costs - errors, one_sign * (products - product_errors))
        return cost_between(upper * UPWARDS, max(lower * (2 - UPWARDS), 0.0))

    def _cost_apart(self, times: int, separation: int) -> ParticipationCost:
        """Return the cost of a person whose participations are at least `separation` steps apart."""
        cells = np.arange(self.query_matrix.shape[1])[None, :]
        costs = linalg.inverse_blocks(self._covariance, self.query_matrix, cells)
        assert costs is not None
        return cost_between(*largest_sums(costs[1][0], costs[2][0], times, separation))

    def _form_costs(self, differences: Matrix) -> tuple[Array, Array]:
        """Return the costs of differences of data sets (d, s), and absolute error bounds, in chunks."""
        parts = []
        for start in range(0, differences.shape[1], FORMS_CHUNK):
            chunk = differences[:, start : start + FORMS_CHUNK]
            costs = linalg.inverse_forms(self._covariance, *moves_between(self.query_matrix, chunk))
            assert costs is not None
            parts.append(costs[1:])
        forms, errors = (np.concatenate(part) for part in zip(*parts, strict=True)) if parts else (np.zeros(0),) * 2
        return forms, errors

    def rebase(self, query_matrix: npt.ArrayLike) -> LinearGaussianMechanism:
        """Return the equivalent mechanism on other rows with the same span (Theorem 2)."""
        other, cells = validate.finite(2, query_matrix=query_matrix), self.query_matrix.shape[1]
        validate.moderate(query_matrix=other)
        if other.shape != (self.rank, cells) or linalg.rank(other) < len(other):
            raise InvalidInputError(
                f"query_matrix must have {self.rank} independent rows of {cells} cells, got shape {other.shape}"
            )
        return LinearGaussianMechanism(other, self.covariance(Workload(other)), self.neighbours)._standing_for(self)

    def standardize(self) -> LinearGaussianMechanism:
        """Return the equivalent mechanism with unit noise on independent rows (CMN, algorithm 2).

        The paper takes eigenvectors of the cost matrix C. Any rows S with ``S'S = C`` are equivalent; rows from a
        factor of Σ avoid the rounding errors of forming C.
        The profile is at least this mechanism's: if rounding lowered it, all rows are scaled up.
        Raises `InvalidInputError` if a query is released exactly, at infinite cost.
        """
        rows = without_tiny_entries(self.standard_form.queries)
        unit = LinearGaussianMechanism(rows, np.eye(len(rows)), self.neighbours)
        profile, unit_profile = self.profile if self._is_plain else self._own_profile(), unit.profile
        # Costs below the rounding error of the rows do not determine the factor.
        decides = np.isfinite(profile) & (profile > linalg.EPS * np.sum(rows**2, axis=0).max(initial=0.0))
        too_low = decides & (unit_profile < profile)
        with np.errstate(divide="ignore"):
            factor = float(np.max(profile[too_low] / unit_profile[too_low], initial=1.0))
        if not np.isfinite(factor):
            raise InvalidInputError("cost_matrix is not finite, or the standard form loses a part of it to rounding")
        if factor > 1:
            # Profiles are upper bounds, and the error bound of the longer rows may be smaller.
            longer = rows * np.sqrt(factor * (1 + 8 * (len(rows) + 1) * linalg.EPS))
            unit = LinearGaussianMechanism(longer, np.eye(len(rows)), self.neighbours)
        return unit._standing_for(self)

    def stack(self, *others: LinearGaussianMechanism) -> LinearGaussianMechanism:
        """Return the mechanism of the rows of this one and others, stacked, with independent noise.

        Raises `InvalidInputError` or `InputTypeError` for mechanisms on other cells or with other neighbours.

        Examples
        --------
        >>> import dualmech as dm
        >>> total = dm.LinearGaussianMechanism([[1, 1]], [[2]])
        >>> cells = dm.LinearGaussianMechanism(np.eye(2), 2 * np.eye(2))
        >>> total.stack(cells).variances(dm.workloads.total(2)).round(6)
        array([1.333333])
        """
        mechanisms = (self, *map(as_matrix, others))
        check_comparable(mechanisms, ["the mechanism", *(f"others[{i}]" for i in range(len(others)))])
        parts = [mechanism._original() for mechanism in mechanisms]
        queries = np.vstack([rows for rows, *_ in parts])
        noise = scipy.linalg.block_diag(*(covariance for _, covariance, *_ in parts if len(covariance)))
        stacked = LinearGaussianMechanism(queries, noise[: len(queries)], self.neighbours)
        if all(mechanism._is_plain for mechanism in mechanisms):
            return stacked
        shares = np.max([part[2:] for part in parts], axis=0).tolist()
        return stacked._rounded_from(partial(_added_profiles, mechanisms), *shares)

    def compose(self, *others: LinearGaussianMechanism) -> LinearGaussianMechanism:
        """Return the composition of this mechanism and others, on independent rows with unit noise.

        It is equivalent to their `stack`; cost matrices add, and so do profiles. A query that one of them releases
        exactly is released exactly: the noise is then not unit noise. If rounding on independent rows would lose an
        infinite cost, the result is `stack` itself.
        Raises `InvalidInputError` or `InputTypeError` as `stack` does, and for mechanisms that together release
        every query exactly.
        """
        stacked = self.stack(*others)
        if not stacked.releases_exactly:
            return stacked.standardize()
        reduced = LinearGaussianMechanism(stacked.independent_rows, stacked._independent_noise, self.neighbours)
        lost = np.isinf(stacked.profile) & np.isfinite(reduced.profile)
        return stacked if np.any(lost) else reduced._standing_for(stacked)

    def scaled(self, factor: float) -> LinearGaussianMechanism:
        """Return the mechanism with all variances times a factor > 0, and all costs divided by it."""
        times = validate.positive_number(factor=factor)
        scaled = LinearGaussianMechanism(self.query_matrix, self._covariance * times, self.neighbours)
        return scaled._standing_for(self, times)

    def dense(self) -> LinearGaussianMechanism:
        """Return this mechanism, which is dense."""
        return self

    def is_answerable_from(self, other: LinearGaussianMechanism, tol: float = TOLERANCE) -> Answerability:
        """Return whether this mechanism is a linear function of the other's answers, plus noise.

        It is, if and only if ``C ⪯ C_other`` (CMN, theorem 3.5).
        Raises `InvalidInputError` or `InputTypeError` for anything but a mechanism, other cells or neighbours, exact
        answers, or a tolerance that is not positive.
        Returns `Answerability`, true in a condition if answerable, with the matrices of lemma 3.2; otherwise with a
        direction of higher cost.

        Parameters
        ----------
        other : LinearGaussianMechanism
            On the same cells, with the same neighbours.
        tol : float
            Relative excess over the other's cost, in any direction, that counts as a rounding error. A query is in the
            other's row space if its component outside has a relative norm of at most `tol` and 1e-9.

        Examples
        --------
        >>> import dualmech as dm
        >>> total = dm.LinearGaussianMechanism([[1, 1]], [[2]])
        >>> cells = dm.LinearGaussianMechanism(np.eye(2), np.eye(2))
        >>> bool(total.is_answerable_from(cells)), bool(cells.is_answerable_from(total))
        (True, False)
        >>> cells.is_answerable_from(total).direction
        array([ 1., -1.])
        """
        return answerable(self, other, tol)

    def is_equivalent_to(self, other: LinearGaussianMechanism, tol: float = TOLERANCE) -> Equivalence:
        """Return whether both mechanisms are equivalent, ``C = C_other`` (CMN, definition 3.6).

        Parameters, errors and tolerance as for `is_answerable_from`; the result has a witness for either
        direction, and is true in a condition if each is answerable from the other.
        """
        return Equivalence(self.is_answerable_from(other, tol), other.is_answerable_from(self, tol))

    def file_parts(self) -> dict[str, object]:
        """Return the fields of a file, by name.

        Raises `InvalidInputError` if rounding lowered the costs below those of the original mechanism.
        """
        if not self._is_plain and np.any(self._own_profile() < self._cost_floor() * (1 - MET)):
            raise InvalidInputError(
                "a file holds query_matrix and covariance, and rounding lowered their cost below that of the original "
                "mechanism: save the original"
            )
        return {"query_matrix": self.query_matrix, "covariance": self._covariance, "neighbours": self.neighbours}

    def __repr__(self) -> str:
        rows, cells = self.query_matrix.shape
        return f"LinearGaussianMechanism({rows} queries x {cells} cells, rho={decimal_above(self.rho)})"


def _added_profiles(mechanisms: Sequence[NoisyQueries]) -> Array:
    """Return the sum of profiles (s,), rounded up."""
    total = np.asarray(sum(mechanism.profile for mechanism in mechanisms))
    return total * (1 + len(mechanisms) * linalg.EPS)


def check_written(entries: float, what: str) -> None:
    """Refuse to materialise a query matrix with too many entries."""
    if entries > MAX_QUERY_MATRIX_ENTRIES:
        raise InvalidInputError(f"{what} is too large for a dense matrix (limit {MAX_QUERY_MATRIX_ENTRIES} entries)")
