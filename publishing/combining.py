"""Several releases of the same records as one: generalised least squares on all noisy answers, and ρ that adds up."""

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
from dualmech.publishing.tables import AnsweredTables, still_rows
from dualmech.threads import blas_threads
from dualmech.validate import Array
from dualmech.verified import Enclosure
from dualmech.workloads.base import Workload, same_content
from dualmech.workloads.domain import Axes
from dualmech.workloads.unions import Table, UnionWorkload

SAME = 1e-9  # how far two answers without noise may differ by rounding, relative to the larger
CHANCE = 1e-6  # probability at which releases of the same records are refused by their χ² test


class CombinedRows(AnsweredRows):
    """Least-squares answers of several releases on matrices; `squared_privacy_cost` is that of all of them."""

    __slots__ = ("squared_privacy_cost",)

    def __init__(self, mechanism: LinearGaussianMechanism, exact: int, squared_privacy_cost: Fraction) -> None:
        self.mechanism, self.exact, self.squared_privacy_cost = mechanism, exact, squared_privacy_cost


class CombinedTables(AnsweredTables):
    """Least-squares answers of several releases of tables; `squared_privacy_cost` is that of all of them.

    `kept` is the mechanism with all tables from which its symmetry follows, `mechanism` with those that are published.
    """

    __slots__ = ("kept", "squared_privacy_cost")

    kept: BlockMechanism

    def __init__(self, mechanism: BlockMechanism, workload: Workload, squared_privacy_cost: Fraction) -> None:
        self.kept, self.squared_privacy_cost = mechanism, squared_privacy_cost
        self.mechanism = mechanism.answering(workload) if isinstance(workload, UnionWorkload) else mechanism


@blas_threads()
def combine(first: Publication, second: Publication, *others: Publication, check: bool = True) -> Publication:
    """Return the least-squares tables of several releases of the same records, each table more accurate than alone.

    Releases y_i of ``B_i x`` with independent noise of covariance Σ_i say of x what generalised least squares makes of
    all: the estimate ``(Σ_i B_i' Σ_i⁻¹ B_i)⁺ Σ_i B_i' Σ_i⁻¹ y_i`` of what they answer, whose precisions add. It is
    computed on the cells, or block by block of the tables; what neighbours do not change stays exact. All tables are in
    it by their names and agree with one another, and margins are of the joint covariance. Nothing is drawn, so that the
    combination costs no more than its releases. Costs add up for each pair of neighbours: ρ is half the largest sum,
    exactly, if all releases were drawn in this process on the same neighbours or blocks; else the sum of their ρ.
    A release that was chosen after another was seen counts, in a promise, with the largest ρ over all choices.

    Of releases of the same records the residual ``Σ_i (y_i - B_i x̂)' Σ_i⁻¹ (y_i - B_i x̂)`` follows a χ² distribution.
    Where it is so large that this has a probability below 1e-6, the releases are refused: their records differ, or what
    their columns mean. The test reads published answers alone, and costs no privacy.
    Raises `InputTypeError` for no publication; `InvalidInputError`, by the argument's name, for a release twice, which
    has one noise; releases that have another unit of privacy, that truncate the records of persons, or are of other
    attributes or cells; two tables of one name that ask different things; answers that disagree; products,
    splits and streams; a release on a matrix together with one of tables.

    Parameters
    ----------
    first, second, *others : Publication
        Released independently: what `dualmech.release` returned, `load_publication` read, or a combination.
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
    ...     dm.release(fast.solve(dm.FitnessForUse(asked, 50.0)), tables)
    ...     for asked in (dm.workloads.marginals(people, ways=2), dm.workloads.union(people, {"ages": ["age"]}))
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
    every: Sequence[Publication],
    names: Sequence[str],
    check: bool = True,
    otherwise: str = "To combine them nevertheless: check=False (--no-check)",
) -> Publication:
    """Return what `combine` does of releases that messages call by `names`, such as the files that hold them.

    `otherwise` ends the message of answers that disagree.
    """
    validate.boolean(check=check)
    _check(every, names)
    workload, joint = _together(every, names), joint_of(every, names)
    parts = tuple(part for release in every for part in release.parts)
    drawn = joint.drawn(sum((2 * part.rho for part in parts), Fraction(0)) - _saving(every), workload)
    measured, residual = joint.measured([release.measured for release in every])
    publication = Publication(drawn, measured, workload)
    publication.combined = parts
    if check and residual.probability < CHANCE:
        raise InvalidInputError(
            f"{' and '.join(names)} must be of the same records, with columns of one meaning: the probability that "
            f"their answers differ so much is below {CHANCE:g} (χ² = {residual.square:.6g}, degrees of freedom "
            f"{residual.freedom}). {_largest_disagreement(every, names, publication)}. {otherwise}"
        )
    return publication


def _saving(every: Sequence[ReleasePlan]) -> Fraction:
    """Return ``Σ_i max_u c_i(u) - max_u Σ_i c_i(u)``, with the cost c_i(u) of release i for the pair of neighbours u.

    It is 0 if the costs of a release are not known pair by pair, or if the releases number these pairs differently.
    """
    costs: list[Any] = [getattr(release.drawn, "costs", None) for release in every]
    first, *others = (release.drawn.mechanism for release in every)
    if any(cost is None for cost in costs) or not all(_same_pairs(first, other) for other in others):
        return Fraction(0)
    return Fraction(sum(max(cost) for cost in costs) - max(np.sum(costs, axis=0)))


def _same_pairs(first: Any, second: Any) -> bool:
    """Return whether two mechanisms of one kind number pairs of neighbours, or the orbits of these, alike."""
    if not isinstance(first, BlockMechanism):
        return same_neighbours(first, second)
    alike = first.neighbours == second.neighbours and same_symmetry(first.symmetries, second.symmetries)
    pairs = first.moved.pairs, second.moved.pairs  # kinds of persons depend on the blocks; of add-remove there are none
    return alike and (pairs == (None, None) or same_content(*pairs))


@dataclass(frozen=True, slots=True)
class Residual:
    """The weighted squared residual of a least-squares fit, and its degrees of freedom."""

    square: float = 0.0
    freedom: int = 0

    @property
    def probability(self) -> float:
        """The probability of a residual as large or larger, where all answers are of the same records."""
        return float(scipy.special.chdtrc(self.freedom, self.square)) if self.freedom else 1.0

    def __add__(self, other: Residual) -> Residual:
        return Residual(self.square + other.square, self.freedom + other.freedom)


def _largest_disagreement(every: Sequence[Publication], names: Sequence[str], combination: Publication) -> str:
    """Name the entry whose estimate in one release is farthest from the joint estimate, in standard deviations.

    The joint estimate has the least variance of all, so that the variance of the difference is that of the release less
    the joint one.
    """
    largest, words = -1.0, ""
    for name, release in zip(names, every, strict=True):
        for table in release.tables:
            own_variances, joint_variances = release.variances(table), combination.variances(table)
            deviations = np.sqrt(np.maximum(own_variances - joint_variances, SAME * own_variances))
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


def joint_of(every: Sequence[ReleasePlan], names: Sequence[str]) -> JointRows | JointTables:
    """Return what releases, or plans of them, tell together."""
    return JointTables(every, names) if every[0].drawn.by_table else JointRows(every, names)


NAMES = "the earlier release", "the new one"  # what messages call both


class PlanAfter(ReleasePlan):
    """A plan of what is released after an earlier publication, together with it: its cost is that of what is new."""

    def __init__(self, after: Publication, further: ReleasePlan) -> None:
        every, names = (validate.instance(Publication, after=after), further), NAMES
        _check(every, names, ReleasePlan)
        workload = _together(every, names)
        drawn = joint_of(every, names).drawn(further.drawn.squared_privacy_cost, workload)
        super().__init__(drawn, workload, further.answer)
        self.after, self.further = after, further

    def declaring(self, source: object) -> PlanAfter:
        planned: Any = super().declaring(source)
        planned.further = self.further.declaring(source)
        _check((self.after, planned.further), NAMES, ReleasePlan)
        return planned

    def draw_new(self, records: object, *, allow_empty: bool = False) -> Publication:
        return self.declaring(records).further.draw_new(records, allow_empty=allow_empty)

    def joined(self, publication: Publication) -> Publication:
        """Return what both releases tell together; see `dualmech.combine`."""
        spent = "The new one was drawn, and its rho counts as spent"
        return combined((self.after, super().joined(publication)), NAMES, otherwise=spent)

    def lines(self, level: float | None = None, simultaneous: bool = False) -> list[str]:
        both = decimal_above(self.rho + self.after.rho - _saving((self.after, self.further)) / 2)
        return [*super().lines(level, simultaneous), f"Together with what was released before: rho = {both}."]


# What is refused, before any work.


def _check(every: Sequence[Any], names: Sequence[str], kind: type[ReleasePlan] = Publication) -> None:
    first, seen, named_cells = every[0], dict[str, str](), None
    for name, release in zip(names, every, strict=True):
        if not isinstance(release, kind):
            raise InputTypeError(f"{name} must be a Publication, got {type(release).__name__}")
        require_kept(name, release)
        if release.drawn.by_table != first.drawn.by_table:
            raise InvalidInputError(
                f"{name} must be of the kind of {names[0]}: one is on a matrix, one of tables by blocks"
            )
        named_cells = named_cells or release.workload.cell_names
        if (
            release.workload.domain != first.workload.domain
            or _cells(release) != _cells(first)
            or release.workload.cell_names not in (None, named_cells)
        ):
            raise InvalidInputError(f"{name} must be of the same attributes, values and cells as {names[0]}")
        if (bound := truncation(release.declared)) is not None:
            raise InvalidInputError(
                f"{name} must count all its records, to be combined: of each {bound.person!r} it counts at most "
                f"{bound.at_most}, by a choice of its own, so that other releases count other records, and margins of "
                f"a combination would not hold; publish it by itself, or all its tables in one plan"
            )
        if replace(release.unit, count=first.unit.count) != first.unit or not release.unit.protects(first.unit):
            raise InvalidInputError(
                f"{name} must have the unit of privacy of {names[0]}, for their rho to add up: {first.unit}; got "
                f"{release.unit}"
            )
        for part in release.parts if isinstance(release, Publication) else ():
            if part.digest in seen:
                raise InvalidInputError(
                    f"{name} must have noise of its own: it holds a release that {seen[part.digest]} holds too"
                )
            seen[part.digest] = name


def is_kept(published: ReleasePlan) -> bool:
    """Whether a release has a file: its answers are on a matrix, or on the blocks of tables."""
    return isinstance(published.drawn, AnsweredRows | AnsweredTables)


def require_kept(name: str, published: ReleasePlan) -> None:
    """Refuse a release whose answers are neither on a matrix nor on the blocks of tables."""
    if not is_kept(published):
        kind = type(published.drawn.mechanism).__name__
        raise InvalidInputError(f"{name} must be a release on a matrix or of tables by blocks, got one by a {kind}")


def _cells(published: ReleasePlan) -> object:
    mechanism = published.drawn.mechanism
    return mechanism.domain if published.drawn.by_table else mechanism.query_matrix.shape[1]


# The tables of all releases, each once.


def _together(every: Sequence[ReleasePlan], names: Sequence[str]) -> Workload:
    tabular = [release.workload.tabular() for release in every]
    if all(tables is None for tables in tabular):
        return _groups_together(every, names)
    tables: dict[str, tuple[Table, str]] = {}
    for name, release, tabulated in zip(names, every, tabular, strict=True):
        if tabulated is None:
            raise InvalidInputError(f"{name} must publish tables of attributes, as the others do")
        for called, table in zip(release.tables, tabulated.product_tables, strict=True):
            known = tables.setdefault(called, (Table(called, table.queries), name))
            if not known[0].asks_the_same(table):
                raise InvalidInputError(
                    f"{name} has a table {called!r} that asks other queries than that of {known[1]}: give it another "
                    "name"
                )
    domain = every[0].workload.domain
    assert domain is not None
    return UnionWorkload(domain, [table for table, _ in tables.values()])


def _groups_together(every: Sequence[ReleasePlan], names: Sequence[str]) -> Workload:
    rows: list[Any] = []
    labels, groups, known = list[str](), list[str](), dict[str, tuple[Workload, str]]()
    for name, release in zip(names, every, strict=True):
        for called, table in release.published.items():
            matrix = sp.csr_array(release.workload.matrix)[table.rows]
            workload = Workload(matrix, names=[release.workload.names[row] for row in table.rows])
            if called not in known:
                known[called] = workload, name
                rows.append(matrix)
                labels, groups = [*labels, *workload.names], [*groups, *[called] * len(workload.names)]
            elif workload.names != known[called][0].names or not same_content(workload, known[called][0]):
                raise InvalidInputError(
                    f"{name} has a table {called!r} that asks other queries than that of {known[called][1]}"
                )
    named = (release.workload.cell_names for release in every if release.workload.cell_names is not None)
    return Workload(sp.vstack(rows).toarray(), labels, groups, every[0].workload.domain, next(named, None))


# Least squares.


@dataclass(frozen=True, slots=True, eq=False)
class LeastSquares:
    """What exact and noisy answers to linear queries tell together, and how it is computed from them.

    Of exact answers to rows E and of noisy ones to rows N_i with covariances Σ_i, all independent, it is the values of
    independent rows `exact` of E, and the estimate of rows beyond, with least covariance.
    """

    exact: Array  # (e, b) rows of E
    rows: Array  # (r, b) orthogonal to those, with the rest of the span
    covariance: Array  # (r, r)
    from_exact: Array  # (e, …) from all exact answers to those of `exact`
    from_noisy: Array  # (r, …) from all noisy answers, less what the exact ones say of them
    lift: Array  # (…, e) what the exact answers say of the rows N
    whiten: Array  # from all noisy answers to answers with independent noise of variance 1
    range: Array  # (…, r) orthonormal basis of the whitened answers without noise

    @classmethod
    def of(
        cls, exact: Sequence[Array], noisy: Sequence[tuple[Array, Array]], orthonormal: bool = False
    ) -> LeastSquares:
        """Return the combination of exact rows and of noisy rows with their covariance."""
        known, queries = np.vstack(exact), np.vstack([rows for rows, _ in noisy])
        size = linalg.row_rank(known) if len(known) else 0
        chosen = np.zeros((0, known.shape[1]))
        if size:
            chosen = known[np.sort(scipy.linalg.qr(known.T, mode="r", pivoting=True)[1][:size])]
        shares = np.linalg.pinv(chosen) if size else chosen.T
        left = queries - queries @ shares @ chosen
        rank = (linalg.row_rank(np.vstack([chosen, queries])) if len(queries) else size) - size
        inverses = [np.linalg.inv(np.linalg.cholesky(noise)) if len(noise) else noise for _, noise in noisy]
        whiten = scipy.linalg.block_diag(*inverses)[-len(queries) :] if len(queries) else np.zeros((0, 0))
        rows, noise, fit = np.zeros((0, known.shape[1])), np.zeros((0, 0)), np.zeros((0, len(queries)))
        directions = np.zeros((len(queries), 0))
        if rank:
            covariance = scipy.linalg.block_diag(*(noise for _, noise in noisy if len(noise)))
            rows, noise, fit, directions = _fitted(queries, left, covariance, whiten, rank, orthonormal)
        from_exact = np.asarray(np.linalg.pinv(known @ shares) if size else np.zeros((0, len(known))))
        return cls(chosen, rows, noise, from_exact, fit, queries @ shares, whiten, directions)

    def solve(self, known: Array, noisy: Array) -> tuple[Array, Array]:
        """Return values of `exact` (e, n) and estimates of `rows` (r, n) from answers, a column for each copy."""
        values = self.from_exact @ known
        return values, self.from_noisy @ (noisy - self.lift @ values)

    def residual(self, values: Array, noisy: Array) -> Residual:
        """Return the squared residual of noisy answers (…, n), copies together, and the degrees of freedom of one."""
        whitened = self.whiten @ (noisy - self.lift @ values)
        left = whitened - self.range @ (self.range.T @ whitened)
        rounding = len(left) * linalg.EPS * np.linalg.norm(np.abs(self.whiten) @ np.abs(noisy), axis=0)
        return Residual(float(np.sum(np.maximum(np.abs(left) - rounding, 0.0) ** 2)), len(left) - self.range.shape[1])

    def off(self, known: Array, values: Array, exact: Array) -> float:
        """Return the largest relative difference of exact answers from what all of them say together."""
        shares = exact @ np.linalg.pinv(self.exact) if len(self.exact) else np.zeros((len(exact), 0))
        return float(np.max(np.abs(known - shares @ values), initial=0.0) / max(np.abs(known).max(initial=0.0), 1.0))


def _fitted(
    queries: Array, left: Array, covariance: Array, whiten: Array, rank: int, orthonormal: bool
) -> tuple[Array, Array, Array, Array]:
    """Return independent rows, the covariance of their estimate, its map from noisy answers, and the range.

    The range is an orthonormal basis of the whitened answers without noise.

    Rows are the cells, if all of these are estimated and doubles hold their covariance, else orthonormal ones, or those
    of a triangle with unit noise. The longest rows come first: then the errors of a row are relative to that row,
    however accurate others are.
    Raises `InvalidInputError` where no rows and noise are proven to be worth as much as all answers.
    """
    scaled = whiten @ left
    order = np.argsort(-np.linalg.norm(scaled, axis=1), kind="stable")
    turned, triangle, columns = scipy.linalg.qr(scaled[order], mode="economic", pivoting=True, check_finite=False)
    rows, directions = np.zeros((rank, left.shape[1])), np.zeros((len(left), rank))
    rows[:, columns], directions[order] = triangle[:rank], turned[:, :rank]
    fit = directions.T @ whiten
    for stated, noise, shares in _forms(rows, orthonormal):
        estimate = shares @ fit
        off = (Enclosure.of(estimate) @ Enclosure.of(left) - Enclosure.of(stated)).high
        estimate = estimate - off @ np.linalg.pinv(stated) @ estimate
        error = equivalence_error((queries, covariance), (stated, noise))
        if max(error, _excess(estimate, covariance, noise)) <= EQUIVALENCE_TOL:
            return stated, noise, estimate, directions
    raise InvalidInputError(
        "releases have noise of so different sizes that rounding hides the least: publish them side by side"
    )


def _forms(rows: Array, orthonormal: bool) -> Iterator[tuple[Array, Array, Array]]:
    """Yield bases of the span of `rows`, each with the covariance of unit noise in it, and the change of basis."""
    if rows.shape[0] == rows.shape[1]:
        inverse = np.asarray(np.linalg.inv(rows), dtype=np.float64)
        noise = inverse @ inverse.T
        yield np.eye(len(rows)), (noise + noise.T) / 2, inverse
    if orthonormal:
        left, sizes, right = linalg.svd(rows)
        yield right, np.diag(sizes**-2.0), left.T / sizes[:, None]
    else:
        yield rows, np.eye(len(rows)), np.eye(len(rows))


def _excess(fit: Array, covariance: Array, noise: Array) -> float:
    """Return the largest relative difference between variances of the computed estimates and the stated variances."""
    factor = linalg.cholesky(noise)
    if factor is None:
        return np.inf
    spread = scipy.linalg.solve_triangular(factor, fit, trans="T", check_finite=False)
    return float(np.linalg.norm(spread @ covariance @ spread.T - np.eye(len(noise)), 2))


def _require_same_records(off: float, names: Sequence[str]) -> None:
    if off > SAME:
        raise InvalidInputError(
            f"{' and '.join(names)} must be of the same records: they differ on what is released without noise"
        )


# On matrices.


class JointRows:
    """What several releases on matrices tell together, before anything is told; see `LeastSquares`."""

    def __init__(self, every: Sequence[ReleasePlan], names: Sequence[str]) -> None:
        drawn = [(release.drawn.mechanism, release.drawn.exact) for release in every]
        self.names, self.counts = names, [count for _, count in drawn]
        self.exact = [mechanism.query_matrix[:count] for mechanism, count in drawn]
        noisy = [(mechanism.query_matrix[count:], mechanism.covariance()[count:, count:]) for mechanism, count in drawn]
        self.fit = fit = LeastSquares.of(self.exact, noisy)
        size = len(fit.exact) + len(fit.rows)
        covariance = np.zeros((size, size))
        covariance[len(fit.exact) :, len(fit.exact) :] = fit.covariance
        rows = np.vstack([fit.exact, fit.rows])
        self.mechanism = LinearGaussianMechanism(rows, covariance, drawn[0][0].neighbours)

    def drawn(self, cost: Fraction, _: Workload) -> CombinedRows:
        """Return the joint mechanism as one that was drawn at a cost."""
        return CombinedRows(self.mechanism, len(self.fit.exact), cost)

    def measured(self, every: Sequence[Any]) -> tuple[Array, Residual]:
        """Return the least-squares answers to the joint rows, and the residual of all releases' answers."""
        split = [(count, np.asarray(answers)) for count, answers in zip(self.counts, every, strict=True)]
        known = np.concatenate([answers[:count] for count, answers in split])[:, None]
        noisy = np.concatenate([answers[count:] for count, answers in split])[:, None]
        values, estimates = self.fit.solve(known, noisy)
        _require_same_records(self.fit.off(known, values, np.vstack(self.exact)), self.names)
        return np.concatenate([values, estimates]).ravel(), self.fit.residual(values, noisy)


# On blocks of tables.


class JointTables:
    """The same of tables, on the blocks that all of them leave together."""

    def __init__(self, every: Sequence[ReleasePlan], names: Sequence[str]) -> None:
        self.names, self.mechanisms = names, [mechanism_of(release) for release in every]
        frame = TableBlocks(self.mechanisms, names)
        self.refined = [frame.refined(mechanism) for mechanism in self.mechanisms]
        blank, pieces = self.refined[0], dict[Key, Piece]()
        self.fits = {key: BlockFit.of([fine for fine in self.refined if key in fine.pieces], key) for key in frame.keys}
        for key, fit in self.fits.items():
            pieces[key] = Piece.of(blank.symmetries, blank.moved, key, *fit.joint)
        self.mechanism = blank.with_pieces(pieces)

    def drawn(self, cost: Fraction, workload: Workload) -> CombinedTables:
        """Return the joint mechanism as one that was drawn at a cost, with the tables that are published."""
        return CombinedTables(self.mechanism, workload, cost)

    def measured(self, every: Sequence[Any]) -> tuple[dict[Axes, Array], Residual]:
        """Return the least-squares measurements of the joint mechanism, and the residual of all releases' own."""
        several = zip(self.mechanisms, self.refined, every, strict=True)
        refined = [(fine, refined_parts(mechanism, fine, answers)) for mechanism, fine, answers in several]
        blank, measured, residual = self.refined[0], dict[Axes, Array](), Residual()
        for key, fit in self.fits.items():
            axes, where = axes_of(key), np.ix_(*blank.places(key))
            answers = [parts[axes][where] for fine, parts in refined if key in fine.pieces]
            shape = answers[0].shape
            sizes = shape[: len(axes)]
            flat = [answer.reshape(math.prod(sizes), -1).T for answer in answers]
            estimates, left = fit.solve(flat, self.names)
            # Along an attribute of n values noise has the covariance (I - 11'/n)/n, of rank n - 1.
            residual += Residual(left.square * math.prod(sizes), left.freedom * math.prod(size - 1 for size in sizes))
            measured.setdefault(axes, np.zeros(blank.extents(axes)))[where] = estimates.T.reshape(shape)
        return measured, residual


def mechanism_of(published: ReleasePlan) -> Any:
    """Return the mechanism of a release; of tables with all tables from which its symmetry follows."""
    return getattr(published.drawn, "kept", published.drawn.mechanism)


@dataclass(frozen=True, slots=True, eq=False)
class BlockFit:
    """What several mechanisms tell of a block: combinations of their rows without and with noise, and the joint fit."""

    rows: tuple[Array, ...]  # of each, its rows on the classes that the block sees
    still: tuple[Array, ...]  # combinations of each one's rows that no neighbour changes
    beyond: tuple[Array, ...]  # those orthogonal to them
    exact: Array  # the rows without noise, of all
    fit: LeastSquares
    joint: tuple[Array, Array]  # orthonormal rows of the block, and their covariance

    @classmethod
    def of(cls, mechanisms: Sequence[BlockMechanism], key: Key) -> BlockFit:
        """Fit; rows without noise have some in a `Piece`, since it must be definite: least squares do without."""
        stills, beyonds, exact, noisy, least = [], [], list[Array](), list[tuple[Array, Array]](), math.inf
        for mechanism in mechanisms:
            piece, still = mechanism.pieces[key], still_rows(mechanism, key)
            beyond = scipy.linalg.null_space(still).T if len(still) else np.eye(len(piece.moves))
            noise = beyond @ piece.covariance @ beyond.T
            if len(still):
                within, across = still @ piece.covariance @ still.T, still @ piece.covariance @ beyond.T
                noise, least = (
                    noise - across.T @ np.linalg.solve(within, across),
                    min(least, np.linalg.eigvalsh(within)[0]),
                )
            stills.append(still)
            beyonds.append(beyond)
            exact.append(still @ piece.moves)
            noisy.append((beyond @ piece.moves, (noise + noise.T) / 2))
        fit = LeastSquares.of(exact, noisy, orthonormal=True)
        span = linalg.row_space(fit.exact) if len(fit.exact) else fit.exact
        silent = np.eye(len(span)) * (least if len(span) else 1.0)
        covariance = scipy.linalg.block_diag(silent, fit.covariance)[-(len(span) + len(fit.rows)) :]
        joint = np.vstack([span, fit.rows]), covariance[:, -len(covariance) :]
        rows = tuple(mechanism.pieces[key].moves for mechanism in mechanisms)
        return cls(rows, tuple(stills), tuple(beyonds), np.vstack(exact), fit, joint)

    def solve(self, known: Sequence[Array], names: Sequence[str]) -> tuple[Array, Residual]:
        """Return the coordinates (b, copies) of the joint estimate from each mechanism's, and the fit's residual."""
        answers = [rows @ coordinates for rows, coordinates in zip(self.rows, known, strict=True)]
        still_answers = np.vstack([still @ answer for still, answer in zip(self.still, answers, strict=True)])
        noisy = np.vstack([beyond @ answer for beyond, answer in zip(self.beyond, answers, strict=True)])
        values, estimates = self.fit.solve(still_answers, noisy)
        _require_same_records(self.fit.off(still_answers, values, self.exact), names)
        solution = self.fit.rows.T @ estimates
        solution = solution + np.linalg.pinv(self.fit.exact) @ values if len(self.fit.exact) else solution
        return solution, self.fit.residual(values, noisy)


def refined_parts(coarse: BlockMechanism, fine: BlockMechanism, measured: Mapping[Axes, Array]) -> dict[Axes, Array]:
    """Return what was measured on blocks, by the parts and classes of a finer symmetry.

    It is what data would have that have these parts and no others: even over each class, which is all that rows of the
    finer blocks see.
    """
    if same_symmetry(coarse.symmetries, fine.symmetries):
        return dict(measured)
    arrays: dict[Axes, Array] = {}
    wanted = {axes_of(key) for key in fine.pieces}
    for axes in {axes_of(key) for key in coarse.pieces}:
        for inside in itertools.chain.from_iterable(itertools.combinations(axes, n) for n in range(len(axes) + 1)):
            if inside in wanted and {*axes} - {*inside} <= {*fine.wide}:  # else parts add up to 0
                part = _refined(coarse, fine, np.asarray(measured[axes]), axes, inside)
                arrays[inside] = arrays.get(inside, 0.0) + part
    return arrays


def _refined(coarse: BlockMechanism, fine: BlockMechanism, parts: Array, axes: Axes, inside: Axes) -> Array:
    """Return measurements on some attributes as parts along those `inside`, and by finer classes of all others."""
    order = [*axes, *(axis for axis in coarse.wide if axis not in axes)]
    for place, axis in enumerate(order):
        coarser, finer = coarse.symmetries[axis], fine.symmetries[axis]
        if axis not in axes:
            parents = np.zeros(len(finer.sizes), dtype=np.intp)  # the coarse class of each fine class
            parents[finer.labels] = coarser.labels
            shares = np.zeros((len(finer.sizes), len(coarser.sizes)))  # spread sums over coarse classes evenly
            shares[np.arange(len(parents)), parents] = finer.sizes / coarser.sizes[parents]
            parts = np.moveaxis(np.tensordot(shares, parts, axes=(1, place)), 0, place)
            continue
        values = block_noise.from_parts(coarser, parts, place)
        parts = (block_noise.parts_of if axis in inside else block_noise.class_sums)(finer, values, place)
    for axis in fine.wide:
        if axis not in order:  # all of its values were alike
            sizes = fine.symmetries[axis].sizes
            parts, order = parts[..., None] * (sizes / sizes.sum()), [*order, axis]
    target = [*inside, *(axis for axis in fine.wide if axis not in inside)]
    return np.transpose(parts, [order.index(axis) for axis in target])
