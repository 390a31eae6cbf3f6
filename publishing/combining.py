"""Several releases of the same records as one: generalised least squares on all noisy answers, and ρ that adds up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from dualmech import linalg
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.block_rows import Key
from dualmech.mechanisms import block_noise
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.block_noise import Piece, axes_of, same_symmetry
from dualmech.mechanisms.frames import TableBlocks
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.publishing.dense import AnsweredRows
from dualmech.publishing.publication import Publication, ReleasePlan
from dualmech.publishing.tables import AnsweredTables, still_rows
from dualmech.threads import blas_threads
from dualmech.validate import Array
from dualmech.workloads.base import Workload, same_content
from dualmech.workloads.domain import Axes
from dualmech.workloads.unions import Table, UnionWorkload

SAME = 1e-9  # how far two answers without noise may differ by rounding, relative to the larger


class CombinedRows(AnsweredRows):
    """What releases on matrices tell together; its cost is the sum of theirs."""

    __slots__ = ("squared_privacy_cost",)

    def __init__(self, mechanism: LinearGaussianMechanism, exact: int, squared_privacy_cost: Fraction) -> None:
        self.mechanism, self.exact, self.squared_privacy_cost = mechanism, exact, squared_privacy_cost


class CombinedTables(AnsweredTables):
    """What releases of tables tell together; its cost is the sum of theirs.

    `kept` is the mechanism with all tables from which its symmetry follows, `mechanism` with those that are published.
    """

    __slots__ = ("kept", "squared_privacy_cost")

    kept: BlockMechanism

    def __init__(self, mechanism: BlockMechanism, workload: Workload, squared_privacy_cost: Fraction) -> None:
        self.kept, self.squared_privacy_cost = mechanism, squared_privacy_cost
        self.mechanism = mechanism.answering(workload) if isinstance(workload, UnionWorkload) else mechanism


@blas_threads()
def combine(first: Publication, second: Publication, *others: Publication) -> Publication:
    """Return the least-squares tables of several releases of the same records, each table more accurate than alone.

    Releases y_i of ``B_i x`` with independent noise of covariance Σ_i say of x what generalised least squares makes of
    all: the estimate ``(Σ_i B_i' Σ_i⁻¹ B_i)⁺ Σ_i B_i' Σ_i⁻¹ y_i`` of what they answer, whose precisions add. It is
    computed on the cells, or block by block of the tables; what neighbours do not change stays exact. All tables are in
    it by their names and agree with one another, and margins are of the joint covariance. Nothing is drawn, so that the
    combination costs no more than its releases: its ρ is the sum of theirs, exactly.
    Raises `InputTypeError` for no publication; `InvalidInputError`, by the argument's name, for a release twice, which
    has one noise; releases that protect other neighbours, or are of other attributes or cells; two tables of one name
    that ask different things; answers without noise that differ, which are of other records; adaptive releases,
    products, splits and streams; a release on a matrix together with one of tables.

    Parameters
    ----------
    first, second, *others : Publication
        Released independently: what `dualmech.release` returned, `load_publication` read, or a combination.

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
    return combined((first, second, *others), names)


def combined(every: Sequence[Publication], names: Sequence[str]) -> Publication:
    """Return what `combine` does of releases that messages call by `names`, such as the files that hold them."""
    _check(every, names)
    first = every[0]
    workload, parts = _together(every, names), tuple(part for each in every for part in each.parts)
    cost = sum((2 * part.rho for part in parts), Fraction(0))
    drawn: CombinedRows | CombinedTables
    measured: Any
    if first.drawn.by_table:
        mechanism, measured = _of_tables(every, names)
        drawn = CombinedTables(mechanism, workload, cost)
    else:
        drawn, measured = _of_rows(every, names, cost)
    found = Publication(drawn, measured, workload)
    found.combined = parts
    return found


# What is refused, before any work.


def _check(every: Sequence[Publication], names: Sequence[str]) -> None:
    first, seen = every[0], dict[str, str]()
    for name, each in zip(names, every, strict=True):
        if not isinstance(each, Publication):
            raise InputTypeError(f"{name} must be a Publication, got {type(each).__name__}")
        require_kept(name, each)
        if each.drawn.by_table != first.drawn.by_table:
            raise InvalidInputError(
                f"{name} must be of the kind of {names[0]}: one is on a matrix, one of tables by blocks"
            )
        if each.workload.domain != first.workload.domain or _cells(each) != _cells(first):
            raise InvalidInputError(f"{name} must be of the same attributes, values and cells as {names[0]}")
        if each.relation != first.relation:
            raise InvalidInputError(
                f"{name} must protect the neighbours of {names[0]}, for their rho to add up: {first.relation}; got "
                f"{each.relation}"
            )
        for part in each.parts:
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
    drawn = published.drawn
    if is_kept(published):
        return
    adaptive = getattr(drawn, "adaptive", False)
    kind = "an adaptive release" if adaptive else f"one by a {type(drawn.mechanism).__name__}"
    raise InvalidInputError(f"{name} must be a release on a matrix or of tables by blocks, got {kind}")


def _cells(published: Publication) -> object:
    mechanism = published.drawn.mechanism
    return mechanism.domain if published.drawn.by_table else mechanism.query_matrix.shape[1]


# The tables of all releases, each once.


def _together(every: Sequence[Publication], names: Sequence[str]) -> Workload:
    """Return a workload with the tables of all releases by their names."""
    tabular = [each.workload.tabular() for each in every]
    if all(own is None for own in tabular):
        return _groups_together(every, names)
    tables: dict[str, tuple[Table, str]] = {}
    for name, each, own in zip(names, every, tabular, strict=True):
        if own is None:
            raise InvalidInputError(f"{name} must publish tables of attributes, as the others do")
        for called, table in zip(each.tables, own.product_tables, strict=True):
            known = tables.setdefault(called, (Table(called, table.queries), name))
            if not known[0].asks_the_same(table):
                raise InvalidInputError(
                    f"{name} has a table {called!r} that asks other queries than that of {known[1]}"
                )
    domain = every[0].workload.domain
    assert domain is not None
    return UnionWorkload(domain, [table for table, _ in tables.values()])


def _groups_together(every: Sequence[Publication], names: Sequence[str]) -> Workload:
    rows: list[Any] = []
    labels, groups, known = list[str](), list[str](), dict[str, tuple[Workload, str]]()
    for name, each in zip(names, every, strict=True):
        for called, table in each.published.items():
            matrix = sp.csr_array(each.workload.matrix)[table.rows]
            own = Workload(matrix, names=[each.workload.names[row] for row in table.rows])
            if called not in known:
                known[called] = own, name
                rows.append(matrix)
                labels, groups = [*labels, *own.names], [*groups, *[called] * len(own.names)]
            elif own.names != known[called][0].names or not same_content(own, known[called][0]):
                raise InvalidInputError(
                    f"{name} has a table {called!r} that asks other queries than that of {known[called][1]}"
                )
    first = every[0].workload
    return Workload(sp.vstack(rows).toarray(), labels, groups, first.domain, first.cell_names)


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

    @classmethod
    def of(cls, exact: Sequence[Array], noisy: Sequence[tuple[Array, Array]]) -> LeastSquares:
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
        if rank:
            directions, sizes, right = linalg.svd(whiten @ left)
            rows, fit = right[:rank], directions[:, :rank].T @ whiten / sizes[:rank, None]
            noise = np.diag(sizes[:rank] ** -2.0)
            if rank == rows.shape[1]:  # the cells themselves
                fit, noise, rows = rows.T @ fit, rows.T @ noise @ rows, np.eye(rank)
        from_exact = np.asarray(np.linalg.pinv(known @ shares) if size else np.zeros((0, len(known))))
        return cls(chosen, rows, (noise + noise.T) / 2, from_exact, fit, queries @ shares)

    def solve(self, known: Array, noisy: Array) -> tuple[Array, Array]:
        """Return values of `exact` (e, n) and estimates of `rows` (r, n) from answers, a column for each copy."""
        values = self.from_exact @ known
        return values, self.from_noisy @ (noisy - self.lift @ values)

    def off(self, known: Array, values: Array, exact: Array) -> float:
        """Return the largest relative difference of exact answers from what all of them say together."""
        shares = exact @ np.linalg.pinv(self.exact) if len(self.exact) else np.zeros((len(exact), 0))
        return float(np.max(np.abs(known - shares @ values), initial=0.0) / max(np.abs(known).max(initial=0.0), 1.0))


def _require_same_records(off: float, names: Sequence[str]) -> None:
    if off > SAME:
        raise InvalidInputError(
            f"{' and '.join(names)} must be of the same records: they differ on what is released without noise"
        )


# On matrices.


def _of_rows(every: Sequence[Publication], names: Sequence[str], cost: Fraction) -> tuple[CombinedRows, Array]:
    """Return the joint mechanism on the cells, and its answers."""
    split = [(each.drawn.mechanism, each.drawn.exact, np.asarray(each.measured)) for each in every]
    exact = [mechanism.query_matrix[:count] for mechanism, count, _ in split]
    noisy = [(own.query_matrix[count:], own.covariance()[count:, count:]) for own, count, _ in split]
    fit = LeastSquares.of(exact, noisy)
    known = np.concatenate([answers[:count] for _, count, answers in split])[:, None]
    values, estimates = fit.solve(known, np.concatenate([answers[count:] for _, count, answers in split])[:, None])
    _require_same_records(fit.off(known, values, np.vstack(exact)), names)
    count, size = len(fit.exact), len(fit.exact) + len(fit.rows)
    covariance = np.zeros((size, size))
    covariance[count:, count:] = fit.covariance
    mechanism = LinearGaussianMechanism(np.vstack([fit.exact, fit.rows]), covariance, split[0][0].neighbours)
    return CombinedRows(mechanism, count, cost), np.concatenate([values, estimates]).ravel()


# On blocks of tables.


def _of_tables(every: Sequence[Publication], names: Sequence[str]) -> tuple[BlockMechanism, dict[Axes, Array]]:
    """Return the joint mechanism on the blocks that all tables leave together, and what it would have measured."""
    frame = TableBlocks([mechanism_of(each) for each in every], names)
    refined = [frame.refined(mechanism_of(each)) for each in every]
    told = [refined_parts(mechanism_of(each), fine, each.measured) for each, fine in zip(every, refined, strict=True)]
    blank, pieces, measured = refined[0], dict[Key, Piece](), dict[Axes, Array]()
    for key in frame.keys:
        axes, where = axes_of(key), np.ix_(*blank.places(key))
        holders = [(fine, own) for fine, own in zip(refined, told, strict=True) if key in fine.pieces]
        answers = [own[axes][where] for _, own in holders]
        shape = answers[0].shape
        flat = [each.reshape(math.prod(shape[: len(axes)]), -1).T for each in answers]
        piece, found = _block([fine for fine, _ in holders], key, flat, names)
        pieces[key] = Piece.of(blank.symmetries, blank.moved, key, *piece)
        measured.setdefault(axes, np.zeros(blank.extents(axes)))[where] = found.T.reshape(shape)
    return blank.with_pieces(pieces), measured


def mechanism_of(published: Publication) -> Any:
    """Return the mechanism of a release; of tables with all tables from which its symmetry follows."""
    return getattr(published.drawn, "kept", published.drawn.mechanism)


def _block(
    mechanisms: Sequence[BlockMechanism], key: Key, told: Sequence[Array], names: Sequence[str]
) -> tuple[tuple[Array, Array], Array]:
    """Return rows of a block and their covariance, and the coordinates (b, copies) that several mechanisms tell of it.

    Rows without noise have some in a `Piece`, since it must be definite; least squares do without.
    """
    exact, noisy, known, answers, said = list[Array](), list[tuple[Array, Array]](), [], [], math.inf
    for mechanism, coordinates in zip(mechanisms, told, strict=True):
        piece, still = mechanism.pieces[key], still_rows(mechanism, key)
        beyond = scipy.linalg.null_space(still).T if len(still) else np.eye(len(piece.moves))
        noise = beyond @ piece.covariance @ beyond.T
        if len(still):
            own, across = still @ piece.covariance @ still.T, still @ piece.covariance @ beyond.T
            noise, said = noise - across.T @ np.linalg.solve(own, across), min(said, np.linalg.eigvalsh(own)[0])
        rows = piece.moves @ coordinates
        exact.append(still @ piece.moves)
        noisy.append((beyond @ piece.moves, (noise + noise.T) / 2))
        known.append(still @ rows)
        answers.append(beyond @ rows)
    fit, given = LeastSquares.of(exact, noisy), np.vstack(known)
    values, estimates = fit.solve(given, np.vstack(answers))
    _require_same_records(fit.off(given, values, np.vstack(exact)), names)
    span = linalg.row_space(fit.exact) if len(fit.exact) else fit.exact
    silent = np.eye(len(span)) * (said if len(span) else 1.0)
    covariance = scipy.linalg.block_diag(silent, fit.covariance)[-(len(span) + len(fit.rows)) :]
    found = fit.rows.T @ estimates
    if len(span):
        found = found + np.linalg.pinv(fit.exact) @ values
    return (np.vstack([span, fit.rows]), covariance[:, -len(covariance) :]), found


def refined_parts(coarse: BlockMechanism, fine: BlockMechanism, measured: Mapping[Axes, Array]) -> dict[Axes, Array]:
    """Return what was measured on blocks, by the parts and classes of a finer symmetry.

    It is what data would have that have these parts and no others: even over each class, which is all that rows of the
    finer blocks see.
    """
    if same_symmetry(coarse.symmetries, fine.symmetries):
        return dict(measured)
    found: dict[Axes, Array] = {}
    wanted = {axes_of(key) for key in fine.pieces}
    for axes in {axes_of(key) for key in coarse.pieces}:
        for inside in itertools.chain.from_iterable(itertools.combinations(axes, n) for n in range(len(axes) + 1)):
            if inside in wanted and {*axes} - {*inside} <= {*fine.wide}:  # else parts add up to 0
                part = _refined(coarse, fine, np.asarray(measured[axes]), axes, inside)
                found[inside] = found.get(inside, 0.0) + part
    return found


def _refined(coarse: BlockMechanism, fine: BlockMechanism, parts: Array, axes: Axes, inside: Axes) -> Array:
    """Return measurements on some attributes as parts along those `inside`, and by finer classes of all others."""
    order = [*axes, *(axis for axis in coarse.wide if axis not in axes)]
    for place, axis in enumerate(order):
        own, finer = coarse.symmetries[axis], fine.symmetries[axis]
        if axis not in axes:
            shares = _shares(own.labels, finer.labels, finer.sizes / own.sizes[_parents(own.labels, finer.labels)])
            parts = np.moveaxis(np.tensordot(shares, parts, axes=(1, place)), 0, place)
            continue
        values = block_noise.from_parts(own, parts, place)
        parts = (block_noise.parts_of if axis in inside else block_noise.class_sums)(finer, values, place)
    for axis in fine.wide:
        if axis not in order:  # all of its values were alike
            sizes = fine.symmetries[axis].sizes
            parts, order = parts[..., None] * (sizes / sizes.sum()), [*order, axis]
    target = [*inside, *(axis for axis in fine.wide if axis not in inside)]
    return np.transpose(parts, [order.index(axis) for axis in target])


def _parents(coarse: Any, fine: Any) -> Any:
    """Return the coarse class of each fine class, from the classes of all values."""
    found = np.zeros(int(fine.max()) + 1, dtype=np.intp)
    found[fine] = coarse
    return found


def _shares(coarse: Any, fine: Any, shares: Array) -> Array:
    """Return the matrix (fine, coarse) that spreads sums over coarse classes evenly over the finer ones."""
    parents = _parents(coarse, fine)
    found = np.zeros((len(parents), int(coarse.max()) + 1))
    found[np.arange(len(parents)), parents] = shares
    return found
