"""Combination of several releases of the same records: generalised least squares on all noisy answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.special

from dualmech import linalg, validate
from dualmech.display import decimal_above
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.attribute_symmetry import Key
from dualmech.mechanisms import block_noise
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.block_noise import Piece, axes_of, same_symmetry
from dualmech.mechanisms.costs import EQUIVALENCE_TOL, equivalence_error
from dualmech.mechanisms.frames import TableBlocks
from dualmech.mechanisms.gaussian import LinearGaussianMechanism, same_neighbours
from dualmech.publishing.dense import AnsweredRows
from dualmech.publishing.publication import Publication, ReleasePlan, truncation
from dualmech.publishing.tables import AnsweredTables, insensitive_rows
from dualmech.threads import blas_threads
from dualmech.validate import Array
from dualmech.verified import Enclosure
from dualmech.workloads.base import Workload, same_content
from dualmech.workloads.domain import Axes
from dualmech.workloads.unions import Table, UnionWorkload

EXACT_ANSWER_TOL = 1e-9  # maximum relative difference of two answers without noise
MIN_P_VALUE = 1e-6  # of the χ² test that the releases are of the same records


class CombinedRows(AnsweredRows):
    """Least-squares answers of several releases on matrices, with their total `squared_privacy_cost`."""

    __slots__ = ("squared_privacy_cost",)

    def __init__(self, mechanism: LinearGaussianMechanism, exact: int, squared_privacy_cost: Fraction) -> None:
        self.mechanism, self.exact, self.squared_privacy_cost = mechanism, exact, squared_privacy_cost


class CombinedTables(AnsweredTables):
    """Least-squares answers of several releases of tables, with their total `squared_privacy_cost`.

    `full_mechanism` has all tables that determine its symmetry, `mechanism` only the published ones.
    """

    __slots__ = ("full_mechanism", "squared_privacy_cost")

    full_mechanism: BlockMechanism

    def __init__(self, mechanism: BlockMechanism, workload: Workload, squared_privacy_cost: Fraction) -> None:
        self.full_mechanism, self.squared_privacy_cost = mechanism, squared_privacy_cost
        self.mechanism = mechanism.answering(workload) if isinstance(workload, UnionWorkload) else mechanism


@blas_threads()
def combine(first: Publication, second: Publication, *others: Publication, check: bool = True) -> Publication:
    """Return the least-squares tables of several releases of the same records, more accurate than in each release.

    For releases y_i of ``B_i x`` with independent noise of covariance Σ_i, it is the generalised least-squares estimate
    ``x̂ = (Σ_i B_i' Σ_i⁻¹ B_i)⁺ Σ_i B_i' Σ_i⁻¹ y_i``, computed on the cells or block by block of the tables. Answers
    that no neighbour changes stay exact. The combination has all tables by their names; they are consistent, and
    their margins are computed from the joint covariance.

    No noise is drawn, so the combination costs no more than its releases. Costs add up for each pair of neighbours.
    If all releases were drawn in this process with the same neighbours or blocks, ρ is exactly half the largest sum;
    otherwise it is the sum of their ρ. If a release was chosen after an earlier one was seen, the guarantee holds with
    the largest ρ over all possible choices.

    If all releases are of the same records, the residual ``Σ_i (y_i - B_i x̂)' Σ_i⁻¹ (y_i - B_i x̂)`` follows a χ²
    distribution. If its p-value is below 1e-6, the releases are refused: their records differ, or the meanings of their
    columns. The test reads only published answers, and costs no privacy.
    Raises `InputTypeError` for an argument that is no publication. Raises `InvalidInputError`, with the argument's
    name, for the same release twice; another unit of privacy, other attributes or other cells; truncated records of
    persons; two tables with one name but different queries; answers that disagree; products, splits and streams; a
    release on a matrix together with a release of tables.

    Parameters
    ----------
    first, second, *others : Publication
        Independent releases, from `dualmech.release` or `load_publication`, or combinations.
    check : bool, default True
        Whether noisy answers must agree by the χ² test. Answers without noise must agree in any case.

    Examples
    --------
    >>> import numpy as np
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> people = dm.Schema({"age": range(17, 21), "sex": ["female", "male"]})
    >>> tables = {(0, 1): np.full((4, 2), 100)}
    >>> cells, ages = (
    ...     dm.release(fast.solve(dm.FitnessForUse(workload, 50.0)), tables)
    ...     for workload in (dm.workloads.marginals(people, ways=2), dm.workloads.union(people, {"ages": ["age"]}))
    ... )
    >>> both = dm.combine(cells, ages)
    >>> both.tables, both.rho == cells.rho + ages.rho
    (('age x sex', 'ages'), True)
    >>> bool(np.allclose(both.estimates("age x sex").sum(axis=1), both.estimates("ages")))
    True
    >>> bool(both.margins("ages").max() < ages.margins("ages").max())
    True
    """
    names = ["first", "second", *(f"others[{index}]" for index in range(len(others)))]
    return combined((first, second, *others), names, check)


def combined(
    releases: Sequence[Publication],
    names: Sequence[str],
    check: bool = True,
    otherwise: str = "To combine them nevertheless: check=False (--no-check)",
) -> Publication:
    """Return the combination of releases; messages call them by `names`, such as their files.

    `otherwise` ends the message about answers that disagree.
    """
    validate.boolean(check=check)
    _check(releases, names)
    workload, joint = _joint_workload(releases, names), joint_of(releases, names)
    parts = tuple(part for release in releases for part in release.parts)
    answers = joint.at_cost(sum((2 * part.rho for part in parts), Fraction(0)) - _saving(releases), workload)
    measured, residual = joint.measured([release.measured for release in releases])
    publication = Publication(answers, measured, workload)
    publication.combined = parts
    if check and residual.p_value < MIN_P_VALUE:
        raise InvalidInputError(
            f"{' and '.join(names)} must be of the same records, with columns of one meaning: the p-value of the "
            f"differences of their answers is below {MIN_P_VALUE:g} (χ² = {residual.square:.6g}, degrees of freedom "
            f"{residual.freedom}). {_largest_disagreement(releases, names, publication)}. {otherwise}"
        )
    return publication


def _saving(releases: Sequence[ReleasePlan]) -> Fraction:
    """Return ``Σ_i max_u c_i(u) - max_u Σ_i c_i(u)``, with the cost c_i(u) of release i for the pair of neighbours u.

    It is 0 if some release has no costs by pair, or if the releases number the pairs differently.
    """
    costs: list[Any] = [getattr(release.drawn, "costs", None) for release in releases]
    mechanisms: list[Any] = [release.drawn.mechanism for release in releases]
    if any(cost is None for cost in costs) or not all(_same_pairs(mechanisms[0], other) for other in mechanisms[1:]):
        return Fraction(0)
    return Fraction(sum(max(cost) for cost in costs) - max(np.sum(costs, axis=0)))


def _same_pairs(first: Any, second: Any) -> bool:
    """Return whether two mechanisms of one class have the same pairs of neighbours, or orbits of pairs, in order."""
    if not isinstance(first, BlockMechanism):
        return same_neighbours(first, second)
    if first.neighbours != second.neighbours or not same_symmetry(first.symmetries, second.symmetries):
        return False
    pairs = first.moved.pairs, second.moved.pairs  # None for add-remove neighbours; else they depend on the blocks
    return pairs == (None, None) or same_content(*pairs)


@dataclass(frozen=True, slots=True)
class Residual:
    """The weighted squared residual of a least-squares fit, and its degrees of freedom."""

    square: float = 0.0
    freedom: int = 0

    @property
    def p_value(self) -> float:
        """The probability of a residual at least as large, if all answers are of the same records."""
        return float(scipy.special.chdtrc(self.freedom, self.square)) if self.freedom else 1.0

    def __add__(self, other: Residual) -> Residual:
        return Residual(self.square + other.square, self.freedom + other.freedom)


def _largest_disagreement(releases: Sequence[Publication], names: Sequence[str], combination: Publication) -> str:
    """Describe the largest difference between an estimate in one release and the joint one, in standard deviations.

    The joint estimate has the minimum variance, so the variance of the difference is the difference of the variances.
    """
    largest, words = -1.0, ""
    for name, release in zip(names, releases, strict=True):
        for table in release.tables:
            release_variances, joint_variances = release.variances(table), combination.variances(table)
            deviations = np.sqrt(np.maximum(release_variances - joint_variances, EXACT_ANSWER_TOL * release_variances))
            difference = np.abs(release.estimates(table) - combination.estimates(table))
            scores = np.divide(difference, deviations, out=np.zeros(deviations.shape), where=deviations > 0)
            place = int(np.argmax(scores))
            if scores.flat[place] > largest:
                largest = float(scores.flat[place])
                entry = tuple(map(int, np.unravel_index(place, scores.shape)))
                sides = release.published[table].sides.items()
                cell = ", ".join(str(labels[at]) for (_, labels), at in zip(sides, entry, strict=True))
                words = (
                    f"The largest disagreement is {cell!r} of table {table!r}: {release.estimates(table)[entry]:.6g} "
                    f"in {name}, {combination.estimates(table)[entry]:.6g} together, {largest:.3g} standard "
                    "deviations apart"
                )
    return words


def joint_of(releases: Sequence[ReleasePlan], names: Sequence[str]) -> JointRows | JointTables:
    return JointTables(releases, names) if releases[0].drawn.by_table else JointRows(releases, names)


NAMES = "the earlier release", "the new one"  # in messages


class PlanAfter(ReleasePlan):
    """The plan of a new release, combined with an earlier publication; its cost is the cost of the new release."""

    def __init__(self, after: Publication, new_plan: ReleasePlan) -> None:
        releases, names = (validate.instance(Publication, after=after), new_plan), NAMES
        _check(releases, names, ReleasePlan)
        workload = _joint_workload(releases, names)
        answers = joint_of(releases, names).at_cost(new_plan.drawn.squared_privacy_cost, workload)
        super().__init__(answers, workload, new_plan.answer)
        self.after, self.new_plan = after, new_plan

    def declaring(self, source: object) -> PlanAfter:
        planned: Any = super().declaring(source)
        planned.new_plan = self.new_plan.declaring(source)
        _check((self.after, planned.new_plan), NAMES, ReleasePlan)
        return planned

    def draw_new(self, records: object, *, allow_empty: bool = False) -> Publication:
        return self.declaring(records).new_plan.draw_new(records, allow_empty=allow_empty)

    def joined(self, publication: Publication) -> Publication:
        """Return the combination of both releases; see `dualmech.combine`."""
        otherwise = "The new one was drawn, and its rho counts as spent"
        return combined((self.after, super().joined(publication)), NAMES, otherwise=otherwise)

    def lines(self, level: float | None = None, simultaneous: bool = False) -> list[str]:
        total = decimal_above(self.rho + self.after.rho - _saving((self.after, self.new_plan)) / 2)
        return [*super().lines(level, simultaneous), f"Together with the earlier release: rho = {total}."]


# Checks of releases.


def _check(releases: Sequence[Any], names: Sequence[str], kind: type[ReleasePlan] = Publication) -> None:
    first, names_by_digest, cell_names = releases[0], dict[str, str](), None
    for name, release in zip(names, releases, strict=True):
        if not isinstance(release, kind):
            raise InputTypeError(f"{name} must be a Publication, got {type(release).__name__}")
        require_storable(name, release)
        if release.drawn.by_table != first.drawn.by_table:
            raise InvalidInputError(
                f"{name} must be of the kind of {names[0]}: one is on a matrix, one of tables by blocks"
            )
        cell_names = cell_names or release.workload.cell_names
        if (
            release.workload.domain != first.workload.domain
            or _cells(release) != _cells(first)
            or release.workload.cell_names not in (None, cell_names)
        ):
            raise InvalidInputError(f"{name} must be of the same attributes, values and cells as {names[0]}")
        if (bound := truncation(release.declared)) is not None:
            raise InvalidInputError(
                f"{name} must count all its records, to be combined: of each {bound.person!r} it counts at most "
                f"{bound.at_most}, chosen separately in each release, so margins of a combination would not hold; "
                f"publish it by itself, or all its tables in one plan"
            )
        if replace(release.unit, count=first.unit.count) != first.unit or not release.unit.protects(first.unit):
            raise InvalidInputError(
                f"{name} must have the unit of privacy of {names[0]}, for their rho to add up: {first.unit}; got "
                f"{release.unit}"
            )
        for part in release.parts if isinstance(release, Publication) else ():
            if part.digest in names_by_digest:
                raise InvalidInputError(
                    f"{name} must have noise of its own: it and {names_by_digest[part.digest]} contain one release"
                )
            names_by_digest[part.digest] = name


def is_storable(published: ReleasePlan) -> bool:
    """Return whether a release can be stored: its answers are on a matrix, or on the blocks of tables."""
    return isinstance(published.drawn, AnsweredRows | AnsweredTables)


def require_storable(name: str, published: ReleasePlan) -> None:
    """Refuse a release whose answers are neither on a matrix nor on the blocks of tables."""
    if not is_storable(published):
        kind = type(published.drawn.mechanism).__name__
        raise InvalidInputError(f"{name} must be a release on a matrix or of tables by blocks, got one by a {kind}")


def _cells(published: ReleasePlan) -> object:
    mechanism = published.drawn.mechanism
    return mechanism.domain if published.drawn.by_table else mechanism.query_matrix.shape[1]


# The union of the tables of all releases.


def _joint_workload(releases: Sequence[ReleasePlan], names: Sequence[str]) -> Workload:
    tabular = [release.workload.tabular() for release in releases]
    if all(tables is None for tables in tabular):
        return _joint_groups(releases, names)
    tables: dict[str, tuple[Table, str]] = {}
    for name, release, tabulated in zip(names, releases, tabular, strict=True):
        if tabulated is None:
            raise InvalidInputError(f"{name} must publish tables of attributes, as the others do")
        for table_name, table in zip(release.tables, tabulated.product_tables, strict=True):
            first_table, first_name = tables.setdefault(table_name, (Table(table_name, table.queries), name))
            if not first_table.asks_the_same(table):
                raise InvalidInputError(
                    f"{name} has a table {table_name!r} with other queries than in {first_name}: give it another name"
                )
    domain = releases[0].workload.domain
    assert domain is not None
    return UnionWorkload(domain, [table for table, _ in tables.values()])


def _joint_groups(releases: Sequence[ReleasePlan], names: Sequence[str]) -> Workload:
    rows: list[Any] = []
    labels, groups, tables = list[str](), list[str](), dict[str, tuple[Workload, str]]()
    for name, release in zip(names, releases, strict=True):
        for table_name, table in release.published.items():
            matrix = sp.csr_array(release.workload.matrix)[table.rows]
            workload = Workload(matrix, names=[release.workload.names[row] for row in table.rows])
            first_workload, first_name = tables.setdefault(table_name, (workload, name))
            if first_workload is workload:
                rows.append(matrix)
                labels, groups = [*labels, *workload.names], [*groups, *[table_name] * len(workload.names)]
            elif workload.names != first_workload.names or not same_content(workload, first_workload):
                raise InvalidInputError(f"{name} has a table {table_name!r} with other queries than in {first_name}")
    cell_names = (release.workload.cell_names for release in releases if release.workload.cell_names is not None)
    return Workload(sp.vstack(rows).toarray(), labels, groups, releases[0].workload.domain, next(cell_names, None))


# Least squares.


@dataclass(frozen=True, slots=True, eq=False)
class LeastSquares:
    """Generalised least squares on exact and noisy answers to linear queries.

    There are exact answers to rows E, and answers to rows N_i with independent noise of covariance Σ_i. The result has
    the answers to the independent rows `exact` of E, and minimum-variance estimates of `rows`, which complete the span.
    """

    exact: Array  # (e, b) independent rows of E
    rows: Array  # (r, b) orthogonal to `exact`
    covariance: Array  # (r, r) of the estimates of `rows`
    from_exact: Array  # (e, …) maps the answers to E to the answers to `exact`
    from_noisy: Array  # (r, …) maps noisy answers, less their component in the span of `exact`, to estimates of `rows`
    lift: Array  # (…, e) maps the answers to `exact` to that component of the noisy answers
    whiten: Array  # maps noisy answers to answers with independent noise of variance 1
    range: Array  # (…, r) orthonormal basis of the range of the whitened answers without noise

    @classmethod
    def of(
        cls, exact: Sequence[Array], noisy: Sequence[tuple[Array, Array]], orthonormal: bool = False
    ) -> LeastSquares:
        """Return the least squares for blocks of exact rows, and blocks of noisy rows with their covariances."""
        exact_rows, queries = np.vstack(exact), np.vstack([rows for rows, _ in noisy])
        size = linalg.row_rank(exact_rows) if len(exact_rows) else 0
        basis = np.zeros((0, exact_rows.shape[1]))
        if size:
            basis = exact_rows[np.sort(scipy.linalg.qr(exact_rows.T, mode="r", pivoting=True)[1][:size])]
        inverse = np.linalg.pinv(basis) if size else basis.T
        residual = queries - queries @ inverse @ basis
        rank = (linalg.row_rank(np.vstack([basis, queries])) if len(queries) else size) - size
        inverses = [np.linalg.inv(np.linalg.cholesky(noise)) if len(noise) else noise for _, noise in noisy]
        whiten = scipy.linalg.block_diag(*inverses)[-len(queries) :] if len(queries) else np.zeros((0, 0))
        rows, noise, fit = np.zeros((0, exact_rows.shape[1])), np.zeros((0, 0)), np.zeros((0, len(queries)))
        directions = np.zeros((len(queries), 0))
        if rank:
            covariance = scipy.linalg.block_diag(*(noise for _, noise in noisy if len(noise)))
            rows, noise, fit, directions = _fitted(queries, residual, covariance, whiten, rank, orthonormal)
        from_exact = np.asarray(np.linalg.pinv(exact_rows @ inverse) if size else np.zeros((0, len(exact_rows))))
        return cls(basis, rows, noise, from_exact, fit, queries @ inverse, whiten, directions)

    def solve(self, exact_answers: Array, noisy: Array) -> tuple[Array, Array]:
        """Return answers to `exact`, shape (e, n), and estimates of `rows`, shape (r, n), for n columns of answers."""
        values = self.from_exact @ exact_answers
        return values, self.from_noisy @ (noisy - self.lift @ values)

    def residual(self, values: Array, noisy: Array) -> Residual:
        """Return the squared residual of all n columns of noisy answers, and the degrees of freedom of one column."""
        whitened = self.whiten @ (noisy - self.lift @ values)
        residuals = whitened - self.range @ (self.range.T @ whitened)
        rounding = len(residuals) * linalg.EPS * np.linalg.norm(np.abs(self.whiten) @ np.abs(noisy), axis=0)
        square = float(np.sum(np.maximum(np.abs(residuals) - rounding, 0.0) ** 2))
        return Residual(square, len(residuals) - self.range.shape[1])

    def inconsistency(self, exact_answers: Array, values: Array, exact: Array) -> float:
        """Return the maximum relative difference between exact answers and the joint values of the same queries."""
        coordinates = exact @ np.linalg.pinv(self.exact) if len(self.exact) else np.zeros((len(exact), 0))
        difference = np.max(np.abs(exact_answers - coordinates @ values), initial=0.0)
        return float(difference / max(np.abs(exact_answers).max(initial=0.0), 1.0))


def _fitted(
    queries: Array, residual: Array, covariance: Array, whiten: Array, rank: int, orthonormal: bool
) -> tuple[Array, Array, Array, Array]:
    """Return the fields `rows`, `covariance`, `from_noisy` and `range` of the least squares.

    The rows are the cells, if all cells are estimated and doubles represent their covariance; else orthonormal rows,
    or the rows of a triangular factor with unit noise. The factorisation takes the longest rows first, so that errors
    are relative to each row, even if other rows are much more accurate.
    Raises `InvalidInputError` if no form is proven equivalent to all answers.
    """
    scaled = whiten @ residual
    order = np.argsort(-np.linalg.norm(scaled, axis=1), kind="stable")
    orthogonal, triangle, columns = scipy.linalg.qr(scaled[order], mode="economic", pivoting=True, check_finite=False)
    rows, directions = np.zeros((rank, residual.shape[1])), np.zeros((len(residual), rank))
    rows[:, columns], directions[order] = triangle[:rank], orthogonal[:, :rank]
    fit = directions.T @ whiten
    for basis, noise, change in _forms(rows, orthonormal):
        estimate = change @ fit
        defect = (Enclosure.of(estimate) @ Enclosure.of(residual) - Enclosure.of(basis)).high
        estimate = estimate - defect @ np.linalg.pinv(basis) @ estimate
        error = equivalence_error((queries, covariance), (basis, noise))
        if max(error, _excess(estimate, covariance, noise)) <= EQUIVALENCE_TOL:
            return basis, noise, estimate, directions
    raise InvalidInputError(
        "releases have noise of too different sizes: their combination is not verified in double precision; publish "
        "them separately"
    )


def _forms(rows: Array, orthonormal: bool) -> Iterator[tuple[Array, Array, Array]]:
    """Yield bases of the span of `rows`, with the covariance of unit noise on `rows`, and the change of basis."""
    if rows.shape[0] == rows.shape[1]:
        inverse = np.asarray(np.linalg.inv(rows), dtype=np.float64)
        noise = inverse @ inverse.T
        yield np.eye(len(rows)), (noise + noise.T) / 2, inverse
    if orthonormal:
        left, singular_values, right = linalg.svd(rows)
        yield right, np.diag(singular_values**-2.0), left.T / singular_values[:, None]
    else:
        yield rows, np.eye(len(rows)), np.eye(len(rows))


def _excess(fit: Array, covariance: Array, noise: Array) -> float:
    """Return the maximum relative difference between the variances of the computed estimates and `noise`."""
    factor = linalg.cholesky(noise)
    if factor is None:
        return np.inf
    whitened = scipy.linalg.solve_triangular(factor, fit, trans="T", check_finite=False)
    return float(np.linalg.norm(whitened @ covariance @ whitened.T - np.eye(len(noise)), 2))


def _require_same_records(inconsistency: float, names: Sequence[str]) -> None:
    if inconsistency > EXACT_ANSWER_TOL:
        raise InvalidInputError(
            f"{' and '.join(names)} must be of the same records: they differ on answers without noise"
        )


# On matrices.


class JointRows:
    """The joint mechanism of several releases on matrices; see `LeastSquares`."""

    def __init__(self, releases: Sequence[ReleasePlan], names: Sequence[str]) -> None:
        pairs = [(release.drawn.mechanism, release.drawn.exact) for release in releases]
        self.names, self.counts = names, [count for _, count in pairs]
        self.exact = [mechanism.query_matrix[:count] for mechanism, count in pairs]
        noisy = [(mechanism.query_matrix[count:], mechanism.covariance()[count:, count:]) for mechanism, count in pairs]
        self.fit = fit = LeastSquares.of(self.exact, noisy)
        size = len(fit.exact) + len(fit.rows)
        covariance = np.zeros((size, size))
        covariance[len(fit.exact) :, len(fit.exact) :] = fit.covariance
        rows = np.vstack([fit.exact, fit.rows])
        self.mechanism = LinearGaussianMechanism(rows, covariance, pairs[0][0].neighbours)

    def at_cost(self, cost: Fraction, _: Workload) -> CombinedRows:
        """Return the joint mechanism with a squared privacy cost."""
        return CombinedRows(self.mechanism, len(self.fit.exact), cost)

    def measured(self, measurements: Sequence[Any]) -> tuple[Array, Residual]:
        """Return the least-squares answers to the joint rows, and the residual of all answers."""
        split = [(count, np.asarray(answers)) for count, answers in zip(self.counts, measurements, strict=True)]
        exact_answers = np.concatenate([answers[:count] for count, answers in split])[:, None]
        noisy = np.concatenate([answers[count:] for count, answers in split])[:, None]
        values, estimates = self.fit.solve(exact_answers, noisy)
        _require_same_records(self.fit.inconsistency(exact_answers, values, np.vstack(self.exact)), self.names)
        return np.concatenate([values, estimates]).ravel(), self.fit.residual(values, noisy)


# On blocks of tables.


class JointTables:
    """The joint mechanism of several releases of tables, on their common refinement into blocks."""

    def __init__(self, releases: Sequence[ReleasePlan], names: Sequence[str]) -> None:
        self.names, self.mechanisms = names, [mechanism_of(release) for release in releases]
        frame = TableBlocks(self.mechanisms, names)
        self.refined = [frame.refined(mechanism) for mechanism in self.mechanisms]
        first, pieces = self.refined[0], dict[Key, Piece]()
        self.fits = {key: BlockFit.of([fine for fine in self.refined if key in fine.pieces], key) for key in frame.keys}
        for key, fit in self.fits.items():
            pieces[key] = Piece.of(first.symmetries, first.moved, key, *fit.joint)
        self.mechanism = first.with_pieces(pieces)

    def at_cost(self, cost: Fraction, workload: Workload) -> CombinedTables:
        """Return the joint mechanism of the published tables, with a squared privacy cost."""
        return CombinedTables(self.mechanism, workload, cost)

    def measured(self, measurements: Sequence[Any]) -> tuple[dict[Axes, Array], Residual]:
        """Return the least-squares measurements of the joint mechanism, and the residual of all measurements."""
        triples = zip(self.mechanisms, self.refined, measurements, strict=True)
        refined = [(fine, refined_parts(mechanism, fine, answers)) for mechanism, fine, answers in triples]
        first, measured, residual = self.refined[0], dict[Axes, Array](), Residual()
        for key, fit in self.fits.items():
            axes, where = axes_of(key), np.ix_(*first.places(key))
            answers = [parts[axes][where] for fine, parts in refined if key in fine.pieces]
            shape = answers[0].shape
            sizes = shape[: len(axes)]
            flat = [answer.reshape(math.prod(sizes), -1).T for answer in answers]
            estimates, block = fit.solve(flat, self.names)
            # Along an attribute of n values, noise has the covariance (I - 11'/n)/n, of rank n - 1.
            residual += Residual(block.square * math.prod(sizes), block.freedom * math.prod(size - 1 for size in sizes))
            measured.setdefault(axes, np.zeros(first.extents(axes)))[where] = estimates.T.reshape(shape)
        return measured, residual


def mechanism_of(published: ReleasePlan) -> Any:
    """Return the mechanism of a release; for tables, with all tables that determine its symmetry."""
    return getattr(published.drawn, "full_mechanism", published.drawn.mechanism)


@dataclass(frozen=True, slots=True, eq=False)
class BlockFit:
    """The least-squares fit of one block of several mechanisms."""

    rows: tuple[Array, ...]  # of each mechanism, its rows on the classes of the block
    insensitive: tuple[Array, ...]  # of each mechanism, coefficients of the combinations of rows that are exact
    sensitive: tuple[Array, ...]  # of each mechanism, coefficients orthogonal to these
    exact: Array  # the exact rows of all mechanisms
    fit: LeastSquares
    joint: tuple[Array, Array]  # orthonormal rows of the block, and their covariance

    @classmethod
    def of(cls, mechanisms: Sequence[BlockMechanism], key: Key) -> BlockFit:
        """Return the fit. A `Piece` has noise on its exact rows, because its covariance must be definite: ignore it."""
        coefficients, exact, noisy = list[tuple[Array, Array]](), list[Array](), list[tuple[Array, Array]]()
        min_eigenvalue = math.inf
        for mechanism in mechanisms:
            piece, insensitive = mechanism.pieces[key], insensitive_rows(mechanism, key)
            sensitive = scipy.linalg.null_space(insensitive).T if len(insensitive) else np.eye(len(piece.moves))
            noise = sensitive @ piece.covariance @ sensitive.T
            if len(insensitive):
                exact_block = insensitive @ piece.covariance @ insensitive.T
                cross_block = insensitive @ piece.covariance @ sensitive.T
                noise = noise - cross_block.T @ np.linalg.solve(exact_block, cross_block)
                min_eigenvalue = min(min_eigenvalue, np.linalg.eigvalsh(exact_block)[0])
            coefficients.append((insensitive, sensitive))
            exact.append(insensitive @ piece.moves)
            noisy.append((sensitive @ piece.moves, (noise + noise.T) / 2))
        fit = LeastSquares.of(exact, noisy, orthonormal=True)
        span = linalg.row_space(fit.exact) if len(fit.exact) else fit.exact
        exact_noise = np.eye(len(span)) * (min_eigenvalue if len(span) else 1.0)
        covariance = scipy.linalg.block_diag(exact_noise, fit.covariance)[-(len(span) + len(fit.rows)) :]
        joint = np.vstack([span, fit.rows]), covariance[:, -len(covariance) :]
        rows = tuple(mechanism.pieces[key].moves for mechanism in mechanisms)
        insensitive_parts, sensitive_parts = zip(*coefficients, strict=True)
        return cls(rows, insensitive_parts, sensitive_parts, np.vstack(exact), fit, joint)

    def solve(self, coordinates: Sequence[Array], names: Sequence[str]) -> tuple[Array, Residual]:
        """Return the joint estimate from the mechanisms' coordinates, shape (b, copies) each, and its residual."""
        answers = [rows @ values for rows, values in zip(self.rows, coordinates, strict=True)]
        exact_answers = np.vstack([rows @ answer for rows, answer in zip(self.insensitive, answers, strict=True)])
        noisy = np.vstack([rows @ answer for rows, answer in zip(self.sensitive, answers, strict=True)])
        values, estimates = self.fit.solve(exact_answers, noisy)
        _require_same_records(self.fit.inconsistency(exact_answers, values, self.exact), names)
        solution = self.fit.rows.T @ estimates
        solution = solution + np.linalg.pinv(self.fit.exact) @ values if len(self.fit.exact) else solution
        return solution, self.fit.residual(values, noisy)


def refined_parts(coarse: BlockMechanism, fine: BlockMechanism, measured: Mapping[Axes, Array]) -> dict[Axes, Array]:
    """Return measurements on blocks in the coordinates of a finer symmetry.

    Data with only these components are constant on each class of the coarser symmetry.
    """
    if same_symmetry(coarse.symmetries, fine.symmetries):
        return dict(measured)
    arrays: dict[Axes, Array] = {}
    fine_axes = {axes_of(key) for key in fine.pieces}
    for axes in {axes_of(key) for key in coarse.pieces}:
        for subset in itertools.chain.from_iterable(itertools.combinations(axes, n) for n in range(len(axes) + 1)):
            if subset in fine_axes and {*axes} - {*subset} <= {*fine.wide}:  # else the components add up to 0
                part = _refined(coarse, fine, np.asarray(measured[axes]), axes, subset)
                arrays[subset] = arrays.get(subset, 0.0) + part
    return arrays


def _refined(coarse: BlockMechanism, fine: BlockMechanism, parts: Array, axes: Axes, subset: Axes) -> Array:
    """Return measurements on `axes` as components along the attributes in `subset`, and on finer classes of others."""
    order = [*axes, *(axis for axis in coarse.wide if axis not in axes)]
    for place, axis in enumerate(order):
        coarser, finer = coarse.symmetries[axis], fine.symmetries[axis]
        if axis not in axes:
            parents = np.zeros(len(finer.sizes), dtype=np.intp)  # the coarse class of each fine class
            parents[finer.labels] = coarser.labels
            shares = np.zeros((len(finer.sizes), len(coarser.sizes)))  # sums over coarse classes, distributed evenly
            shares[np.arange(len(parents)), parents] = finer.sizes / coarser.sizes[parents]
            parts = np.moveaxis(np.tensordot(shares, parts, axes=(1, place)), 0, place)
            continue
        values = block_noise.from_parts(coarser, parts, place)
        parts = (block_noise.parts_of if axis in subset else block_noise.class_sums)(finer, values, place)
    for axis in fine.wide:
        if axis not in order:  # the coarse symmetry has one class for all its values
            sizes = fine.symmetries[axis].sizes
            parts, order = parts[..., None] * (sizes / sizes.sum()), [*order, axis]
    target = [*subset, *(axis for axis in fine.wide if axis not in subset)]
    return np.transpose(parts, [order.index(axis) for axis in target])
