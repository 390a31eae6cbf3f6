"""Linear Gaussian mechanisms, noise of a known covariance on a few linear queries: which is answerable from which."""

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
"""Share of another mechanism's cost by which a cost may exceed it and still count as rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Answerability:
    """Whether one mechanism b can be answered from another a, and why; true or false in a condition.

    Attributes
    ----------
    answerable : bool
        Whether ``C_b ⪯ (1 + tol) C_a``.
    excess : float
        The least e ≥ 0 with ``C_b ⪯ (1 + e) C_a``; infinite where b sees what a does not.
    transform : (m_b, m_a) array or None
        A of Lemma 3.2: b has the distribution of ``A a(x) + C N(0, I)``. None where it is not answerable.
    noise : (m_b, m_b) array or None
        C of Lemma 3.2, symmetric.
    direction : (d,) array or None
        A difference x of data sets that costs more under b than under a, ``x'C_b x > x'C_a x``, largest entry 1;
        None where b is answerable.
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


def answerable(wanted: NoisyQueries, other: NoisyQueries, tol: float = TOLERANCE) -> Answerability:
    """Say whether `wanted` can be answered from `other`; see `LinearGaussianMechanism.is_answerable_from`."""
    tol, other = validate.positive_number(tol=tol), as_matrix(other)
    check_comparable((wanted, other), ("the mechanism", "other"))
    above, below = other.standard_form, wanted.standard_form
    hidden = _unanswerable_part(below.queries, above.queries, min(tol, linalg.SPAN_TOLERANCE))
    if hidden is not None:
        return Answerability(False, np.inf, direction=_largest_one(hidden))
    shares = coordinates(below.queries, above.queries)
    _, sizes, right = linalg.svd(shares) if shares.size else (None, np.zeros(0), None)
    excess = max(float(sizes[0] - 1) * float(sizes[0] + 1), 0.0) if sizes.size else 0.0
    if excess > tol and right is not None:
        direction = np.linalg.lstsq(above.queries, right[0], rcond=None)[0]
        return Answerability(False, excess, direction=_largest_one(direction))
    known = below.lift @ shares
    return Answerability(True, excess, known @ above.estimate, _root(wanted.covariance() - known @ known.T))


def coordinates(queries: Array, rows: Array) -> Array:
    """Return T with ``T rows = queries``, for queries in the span of independent rows, whatever their units."""
    if not len(rows) or not len(queries):
        return np.zeros((len(queries), len(rows)))
    units, orthonormal, triangle = linalg.row_factors(rows)
    solved = scipy.linalg.solve_triangular(triangle, orthonormal.T @ (queries * units).T, check_finite=False)
    return np.ascontiguousarray(solved.T)


def without_tiny_entries(rows: Array) -> Array:
    """Return rows without entries far below their last digit: what rounding leaves of zeros."""
    largest = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    return np.where(np.abs(rows) < linalg.EPS**2 * largest, 0.0, rows)


def coordinate_rounding(shares: Array, rows: Array, queries: Array) -> float:
    """Return what ``T T'`` is proven to be off by at most, relative to its norm, T being `coordinates` on rows S.

    With ``D = T S - B`` T is off by ``D S⁺``, and ``S⁺ = K⁺ X'`` for ``K = X' S`` with any X that makes the rows of K
    independent: X is the inverse of a triangle of S, so that they are nearly orthonormal.
    """
    if not shares.size:
        return 0.0
    triangle = scipy.linalg.qr(rows.T, mode="r", check_finite=False)[0][: len(rows)]
    if not np.all(np.diagonal(triangle)):
        return np.inf
    inverse = scipy.linalg.solve_triangular(triangle, np.eye(len(rows)), check_finite=False)
    steep, long, entries = np.abs(inverse), np.abs(rows), np.abs(shares)
    defect, error = gram_defect(inverse.T @ rows)
    spread = spectral_norm(np.abs(defect)) + len(rows) * error
    moved = spectral_norm(sum_rounding(len(rows)) * (steep.T @ long))
    if not spread < 1 or moved >= np.sqrt(1 - spread):
        return np.inf
    left = np.abs(shares @ rows - queries) + sum_rounding(len(rows) + 1) * (entries @ long + np.abs(queries))
    off = float(np.linalg.norm(left)) * spectral_norm(steep) / (np.sqrt(1 - spread) - moved)
    size = float(np.linalg.norm(entries))
    total = (2 * spectral_norm(entries) + off) * off + sum_rounding(len(rows)) * spectral_norm(entries) * size
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
    """Return the largest part of a query outside the span of the rows; None where all lie inside, up to a share."""
    if not len(queries):
        return None
    basis = linalg.row_space(rows) if len(rows) else rows
    outside = queries - (queries @ basis.T) @ basis
    shares = np.linalg.norm(outside, axis=1) / np.linalg.norm(queries, axis=1)
    worst = int(np.argmax(shares))
    return outside[worst] if shares[worst] > tol else None


def _largest_one(direction: Array) -> Array:
    return np.asarray(direction / direction[np.argmax(np.abs(direction))])


def _root(matrix: Array) -> Array:
    """Return the symmetric root of a matrix that is positive semidefinite but for rounding."""
    if not matrix.size:
        return matrix
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


LARGEST_FORMS = 4096  # differences that are judged together

MAX_WRITTEN = 2**24  # largest number of entries of a query matrix that is written out


class LinearGaussianMechanism(NoisyQueries, NoiseByStep):
    """The mechanism ``x ↦ B x + N(0, Σ)``, with everything that follows from its two matrices.

    Its privacy is decided by the cost matrix ``C = B' Σ⁻¹ B`` alone: neighbours that differ by u cost
    ``u' C u``, the largest of these is the squared privacy cost Δ², and the mechanism is Δ-GDP and
    Δ²/2-zCDP. Any workload ``W = L B`` in its row space is answered by ``L (B x + noise)``, without bias.
    Raises `InvalidInputError` or `InputTypeError` for shapes that do not fit, a row of zeros, an asymmetric or
    indefinite covariance, NaN or infinity.
    Source: definition 3, Theorem 3 and Corollary 1 of Xiao et al., PVLDB 14(10), 2021.

    Parameters
    ----------
    query_matrix : (k, d) array
        B. Its rows may depend on one another, as the total does on the cells: the answers then contradict each
        other a little, and workloads are answered from their least-squares combination. With no rows at all,
        ``np.zeros((0, d))``, it is the mechanism that releases nothing.
    covariance : (k, k) array
        Σ ⪰ 0, symmetric. Where it is singular, directions are released exactly.
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

        Raises `InvalidInputError` for another geometry; queries that the mechanism does not answer.
        """
        matrix = getattr(geometry, "matrix", geometry)
        if not isinstance(matrix, Dense):
            raise InvalidInputError(
                "a mechanism on rows answers problems on geometry 'dense' or 'stream', "
                f"got {getattr(geometry, 'name', geometry)!r}"
            )
        return self.covariance(Workload(matrix.basis))

    def causal_strategy(self) -> Array:
        """Return the strategy A (d, d), lower triangular with a positive diagonal, whose cost matrix is this one.

        ``A'A = C``, so unit noise z on A x is this mechanism. Row t of A x sees the cells up to t alone; and if
        ``W = L A`` is lower triangular, as prefixes are, so is L, and answer t needs the noise ``z_1 … z_t``
        alone: cells may arrive one by one, with the noise drawn as they come.
        Raises `InvalidInputError` for fewer independent queries than cells, or queries released exactly: C
        has no such factor.

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
        """Return how rows of noise follow from all earlier ones, by `causal_strategy`."""
        return EarlierRows.of_matrix(self.causal_strategy())

    def participation_cost(self, times: int, separation: int, at_least: bool = False) -> ParticipationCost:
        if self._origin is not None:
            origin, factor = self._origin
            known: ParticipationCost = origin.participation_cost(times, separation, at_least)
            if factor == 1:
                return known
            share = 4 * linalg.EPS
            return cost_between(known.squared_cost / factor * (1 + share), known.lower_bound / factor * (1 - share))
        return self._own_participation_cost(times, separation, at_least)

    def _own_participation_cost(self, times: int, separation: int, at_least: bool) -> ParticipationCost:
        """Return what `participation_cost` is by the two matrices alone."""
        most, apart = validate.size(times=times), validate.size(separation=separation)
        free = validate.boolean(at_least=at_least)
        if self.releases_exactly:
            raise InvalidInputError(
                "participation_cost is not finite: the covariance is singular, some queries are released exactly"
            )
        if self._singular:
            raise InvalidInputError("participation_cost needs noise whose covariance is proven to be positive definite")
        if not len(self.query_matrix):
            return ParticipationCost(0.0, True, 0.0)
        if free:
            return self._cost_apart(most, apart)
        cells = self.query_matrix.shape[1]
        most = min(most, -(-cells // apart))
        together = sign_patterns(cells, most, apart, np.ones((1, most)))
        pairs = sp.coo_array(sp.triu(together @ together.T, k=1))
        first, second = (sp.eye_array(cells, format="csc")[:, coord] for coord in pairs.coords)
        costs, off = self._judged_forms(sp.eye_array(cells, format="csc"))
        # With moves u and v of two steps, 4 u'Σ⁻¹v is the cost of their sum less the cost of their difference.
        (plus, more), (minus, less) = self._judged_forms(first + second), self._judged_forms(first - second)
        sizes = sp.coo_array(((np.abs(plus - minus) + more + less) / 2, pairs.coords), shape=pairs.shape)
        largest = together.multiply((sizes + sp.diags_array(costs + off)) @ together).sum(axis=0)
        # All of one sign, or the mean over all signs.
        alike = bool(np.all(plus - minus >= -(more + less)))
        shared = sp.coo_array((alike * (plus - minus - more - less) / 2, pairs.coords), shape=pairs.shape)
        least = together.multiply((shared + sp.diags_array(costs - off)) @ together).sum(axis=0).max()
        return cost_between(float(largest.max()) * UPWARDS, max(float(least) * (2 - UPWARDS), 0.0))

    def _cost_apart(self, times: int, apart: int) -> ParticipationCost:
        """Return what a person costs whose parts are at least so far apart."""
        every = np.arange(self.query_matrix.shape[1])[None, :]
        judged = linalg.inverse_blocks(self._covariance, self.query_matrix, every)
        assert judged is not None
        return cost_between(*largest_sums(judged[1][0], judged[2][0], times, apart))

    def _judged_forms(self, differences: Matrix) -> tuple[Array, Array]:
        """Return what differences of data sets (d, s) cost, and what that may be off by, a few at a time."""
        parts = []
        for start in range(0, differences.shape[1], LARGEST_FORMS):
            some = differences[:, start : start + LARGEST_FORMS]
            judged = linalg.inverse_forms(self._covariance, *moves_between(self.query_matrix, some))
            assert judged is not None
            parts.append(judged[1:])
        forms, off = (np.concatenate(part) for part in zip(*parts, strict=True)) if parts else (np.zeros(0),) * 2
        return forms, off

    def rebase(self, query_matrix: npt.ArrayLike) -> LinearGaussianMechanism:
        """Return the same mechanism stated on other rows with the same span (Theorem 2)."""
        other, cells = validate.finite(2, query_matrix=query_matrix), self.query_matrix.shape[1]
        validate.moderate(query_matrix=other)
        if other.shape != (self.rank, cells) or linalg.rank(other) < len(other):
            raise InvalidInputError(
                f"query_matrix must have {self.rank} independent rows of {cells} cells, got shape {other.shape}"
            )
        return LinearGaussianMechanism(other, self.covariance(Workload(other)), self.neighbours)._standing_for(self)

    def standardize(self) -> LinearGaussianMechanism:
        """Return the equivalent mechanism with unit noise on independent rows (CMN, algorithm 2).

        The paper's takes the eigenvectors of the cost matrix; any rows S with ``S'S = C`` will do, and those that
        a factor of Σ gives keep the digits that forming C would lose.
        Its profile is nowhere below this one: where rounding left less, all rows are longer.
        Raises `InvalidInputError` where something is released exactly, at a cost that is not finite.
        """
        rows = without_tiny_entries(self.standard_form.queries)
        unit = LinearGaussianMechanism(rows, np.eye(len(rows)), self.neighbours)
        stated, reached = self.profile if self._is_plain else self._own_profile(), unit.profile
        # What moves rows by their rounding alone is stated, but decides nothing.
        decides = np.isfinite(stated) & (stated > linalg.EPS * np.sum(rows**2, axis=0).max(initial=0.0))
        short = decides & (reached < stated)
        with np.errstate(divide="ignore"):
            factor = float(np.max(stated[short] / reached[short], initial=1.0))
        if not np.isfinite(factor):
            raise InvalidInputError("cost_matrix is not finite, or the standard form loses a part of it to rounding")
        if factor > 1:
            # Profiles are upper bounds: with longer rows less rounding may be added.
            longer = rows * np.sqrt(factor * (1 + 8 * (len(rows) + 1) * linalg.EPS))
            unit = LinearGaussianMechanism(longer, np.eye(len(rows)), self.neighbours)
        return unit._standing_for(self)

    def stack(self, *others: LinearGaussianMechanism) -> LinearGaussianMechanism:
        """Return the mechanism that runs this one and others, each with noise of its own, their rows stacked.

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
        together = LinearGaussianMechanism(queries, noise[: len(queries)], self.neighbours)
        if all(mechanism._is_plain for mechanism in mechanisms):
            return together
        shares = np.max([part[2:] for part in parts], axis=0).tolist()
        return together._rounded_from(partial(_added_profiles, mechanisms), *shares)

    def compose(self, *others: LinearGaussianMechanism) -> LinearGaussianMechanism:
        """Return what this mechanism and others reveal together, on independent rows with unit noise.

        It is equivalent to their `stack`; cost matrices add, and so do profiles. What one of them releases exactly, is
        released exactly: the noise is then not unit noise, and the rows are those of `stack` where rounding would hide
        that something is.
        Raises `InvalidInputError` or `InputTypeError` for what `stack` refuses; mechanisms that together
        release everything exactly.
        """
        both = self.stack(*others)
        if not both.releases_exactly:
            return both.standardize()
        reduced = LinearGaussianMechanism(both.independent_rows, both._independent_noise, self.neighbours)
        hidden = np.isinf(both.profile) & np.isfinite(reduced.profile)
        return both if np.any(hidden) else reduced._standing_for(both)

    def scaled(self, factor: float) -> LinearGaussianMechanism:
        """Return the mechanism with all variances times a factor > 0: its cost is divided by that."""
        times = validate.positive_number(factor=factor)
        made = LinearGaussianMechanism(self.query_matrix, self._covariance * times, self.neighbours)
        return made._standing_for(self, times)

    def dense(self) -> LinearGaussianMechanism:
        """Return this mechanism: it is written out."""
        return self

    def is_answerable_from(self, other: LinearGaussianMechanism, tol: float = TOLERANCE) -> Answerability:
        """Say whether this mechanism is a linear function of the other's answers, plus noise.

        It is so if and only if ``C ⪯ C_other`` (CMN, theorem 3.5): whatever is learned here, is learned there.
        Raises `InvalidInputError` or `InputTypeError` for no mechanism, other cells or neighbours, exact
        answers, a tolerance that is not positive.
        Returns `Answerability`: true in a condition where it is answerable; it holds the matrices of lemma 3.2, or a
        direction that proves the contrary.

        Parameters
        ----------
        other : LinearGaussianMechanism
            On the same cells, with the same neighbours.
        tol : float
            Share of the other's cost that an excess may have, in whatever direction, to count as rounding. A query
            counts as one that the other answers where at most this share of it, and at most 1e-9, lies outside the
            span of the other's rows.

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
        """Say whether both mechanisms reveal the same, ``C = C_other`` (CMN, definition 3.6).

        Parameters, errors and tolerance as for `is_answerable_from`; the result holds its witness for either
        direction and is true in a condition where both are answerable.
        """
        return Equivalence(self.is_answerable_from(other, tol), other.is_answerable_from(self, tol))

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name.

        Raises `InvalidInputError` for matrices that cost less, by rounding, than the mechanism that they stand for.
        """
        if not self._is_plain and np.any(self._own_profile() < self._least_stated() * (1 - MET)):
            raise InvalidInputError(
                "a file holds query_matrix and covariance, which cost less here than the mechanism that they were made "
                "from, by rounding: save that one"
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
    """Refuse a query matrix that is too large to write out."""
    if entries > MAX_WRITTEN:
        raise InvalidInputError(f"{what} is too large to write out (limit {MAX_WRITTEN} entries)")
