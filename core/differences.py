"""Differences of neighbours as matrices: which data sets privacy must keep apart.

The columns u_1 … u_s of U (d, s) are the differences of neighbouring data vectors up to sign. The squared
privacy cost of a mechanism with cost matrix ``C = B' Σ⁻¹ B`` is ``max_i u_i' C u_i``, the maximum over pairs
of neighbours in Theorem 3 of Xiao, Ding, Wang, Zhang and Kifer, PVLDB 14(10), 2021. Since ``z' C z`` is
convex and even in z, its maximum over a polytope is at a vertex, and of two opposite vertices one is enough;
this keeps s small below. Every builder returns a scipy sparse CSC matrix, to pass as `neighbours`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.validate import Array

# Neighbours that differ by one record, or by the records of one household, added, removed or replaced.


MAX_ENTRIES = 2**27  # largest number of non-zero entries that a builder writes out (2 GB)
MAX_MEMBERS = 2**53  # largest number of records of one household, that float64 still counts exactly


def add_or_remove(d: int) -> sp.csc_array:
    """Neighbours differ by one record added or removed: ``U = I``, (d, d), the default of every problem.

    One record in cell i changes the data vector by ``± e_i``; these are all the differences.
    Raises `InvalidInputError` or `InputTypeError` where `d` is not an integer of at least 1, or too large.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.add_or_remove(2).toarray()
    array([[1., 0.],
           [0., 1.]])
    """
    return _units(d, 1)


def replace_one(d: int, within: npt.ArrayLike | None = None) -> sp.csc_array:
    """Neighbours differ by the value of one record: the columns ``e_u - e_v``, u < v; (d, d (d - 1) / 2).

    A record that moves from cell v to cell u changes the data vector by ``e_u - e_v``, and moving it back
    changes only the sign. Every column sums to 0, so the total costs nothing. With `within`, a record stays in its
    group of cells, such as those of one state: only pairs of one group are columns, and the total of each group costs
    nothing.
    Raises `InvalidInputError` or `InputTypeError` where `d` is not an integer of at least 2 (in one cell nothing
    can be replaced), or too large; for another number of groups than cells, and groups of one cell alone.

    Parameters
    ----------
    d : int
        Number of cells.
    within : (d,) array, optional
        The group of each cell, by any numbers or texts; by default all cells are in one.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.replace_one(3).toarray()
    array([[ 1.,  1.,  0.],
           [-1.,  0.,  1.],
           [ 0., -1., -1.]])
    >>> dm.neighbours.replace_one(4, within=["A", "B", "A", "B"]).toarray()
    array([[ 1.,  0.],
           [ 0.,  1.],
           [-1.,  0.],
           [ 0., -1.]])
    """
    return _swaps(d, 1) if within is None else swaps_within(cells_of_groups(d, within=within))


def household(d: int, members: int, replace: bool = False) -> sp.csc_array:
    """Neighbours differ by a household, a person or a device with at most `members` records, in any cells.

    Without `replace`, its records join or leave, so the difference z has ``Σ_i |z_i| <= members``: it lies
    in the convex hull of ``± members e_i``, where the cost is greatest at a vertex, and each vertex is
    itself such a difference, all records being in cell i. So ``U = members I``, (d, d).

    With `replace`, up to `members` records change their cells, and z is a sum of at most `members`
    differences ``e_u - e_v``: the mean of that many vectors ``members (e_u - e_v)`` and zeros, so again the
    cost is greatest where all records make the same move. U is (d, d (d - 1) / 2).
    Raises `InvalidInputError` or `InputTypeError` where `d` or `members` is not an integer of at least 1 (`d` of at
    least 2 with `replace`), or too large.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.household(2, members=3).toarray()
    array([[3., 0.],
           [0., 3.]])
    >>> dm.neighbours.household(2, members=3, replace=True).toarray()
    array([[ 3.],
           [-3.]])
    """
    count = as_members(members=members)
    return _swaps(d, count) if validate.boolean(replace=replace) else _units(d, count)


def compositions(d: int, groups: Iterable[Iterable[int]]) -> sp.csc_array:
    """Neighbours differ by one of the listed households, whose records join or leave together; (d, s).

    A household with n_i records in cell i changes the data vector by ``± Σ_i n_i e_i`` when all of it joins
    or leaves, and the list says which households there can be: these are all the differences. A part that
    can leave alone is no convex combination of the others in general; it must be listed too.
    Raises `InvalidInputError` or `InputTypeError` for no household, one without records, a cell that is not an
    integer from 0 to d - 1.

    Parameters
    ----------
    d : int
        Number of cells.
    groups : iterable of iterables of ints
        Each household by the cells of its records, a cell repeated as often as it has records in it.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.compositions(3, [(0, 0, 2), (1,)]).toarray()
    array([[2., 0.],
           [0., 1.],
           [1., 0.]])
    """
    cells = validate.size(d=d)
    check_entries(cells)
    sets = validate.sequence(groups=groups)
    columns = [_household(group, cells, f"groups[{index}]") for index, group in enumerate(sets)]
    if not columns:
        raise InvalidInputError("groups must hold at least one household, got none")
    rows = np.concatenate(columns)
    owners = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
    # Repeated cells add up when the coordinates are compressed.
    return sp.csc_array((np.ones(len(rows)), (rows, owners)), shape=(cells, len(columns)))


def _household(group: Iterable[int], cells: int, name: str) -> npt.NDArray[np.int64]:
    members = validate.sequence(**{name: group})
    if not members:
        raise InvalidInputError(f"{name} must have at least one record, got none")
    for cell in members:
        if isinstance(cell, bool | np.bool_) or not isinstance(cell, int | np.integer):
            raise InputTypeError(f"{name} must hold integers, got {cell!r}")
        if not 0 <= cell < cells:
            raise InvalidInputError(f"{name} must hold cells from 0 to {cells - 1}, got {cell}")
    return np.array(members, dtype=np.int64)


def as_members(**named: int) -> int:
    """Return a number of records that float64 counts exactly."""
    ((name, value),) = named.items()
    count = validate.size(**{name: value})
    if count > MAX_MEMBERS:
        raise InvalidInputError(f"{name} must be at most {MAX_MEMBERS}, got {count}")
    return count


def _units(d: int, size: int) -> sp.csc_array:
    cells = validate.size(d=d)
    check_entries(cells)
    return sp.csc_array(sp.diags_array(np.full(cells, float(size)), format="csc"))


def _swaps(d: int, size: int) -> sp.csc_array:
    cells = validate.size(d=d)
    if cells < 2:
        raise InvalidInputError(f"d must be at least 2 for a record to be replaced, got {cells}")
    pairs = cells * (cells - 1) // 2
    check_entries(2 * pairs)
    entries = np.stack(np.triu_indices(cells, k=1), axis=1).ravel()
    signs = np.tile([float(size), -float(size)], pairs)
    return sp.csc_array((signs, entries, 2 * np.arange(pairs + 1)), shape=(cells, pairs))


def swaps_within(groups: list[list[int]], size: int = 1) -> sp.csc_array:
    """Return the swaps of ``size`` records between two cells of one group."""
    pairs = sum(len(cells) * (len(cells) - 1) // 2 for cells in groups)
    if not pairs:
        raise InvalidInputError("within must have two cells or more in one group for a record to be replaced")
    check_entries(2 * pairs)
    entries = np.concatenate([np.array(cells)[np.stack(np.triu_indices(len(cells), k=1), axis=1)] for cells in groups])
    signs = np.tile([float(size), -float(size)], pairs)
    shape = (sum(map(len, groups)), pairs)
    return sp.csc_array((signs, entries.ravel(), 2 * np.arange(pairs + 1)), shape=shape)


def cells_of_groups(d: int, **named: npt.ArrayLike) -> list[list[int]]:
    """Return the cells of each group, in the order in which groups appear; refuse another number than d of them."""
    ((name, groups),) = named.items()
    cells = validate.size(d=d)
    try:
        labels = np.asarray(groups)
    except ValueError as error:
        raise InvalidInputError(
            f"{name} must have {cells} entries, one per cell, got {validate.shown(groups)}"
        ) from error
    if labels.shape != (cells,) or labels.dtype.names:
        raise InvalidInputError(f"{name} must have {cells} entries, one per cell, got shape {labels.shape}")
    return [np.flatnonzero(labels == label).tolist() for label in dict.fromkeys(labels.tolist())]


def check_entries(entries: int) -> None:
    """Refuse more non-zero entries than are written out."""
    if entries > MAX_ENTRIES:
        raise InvalidInputError(f"neighbours of {entries} non-zero entries are too many (limit {MAX_ENTRIES})")


# Neighbours that differ by one person with several records: in some groups of cells, or in some steps of a stream.


MOST_SIGNS = 30  # participations of one person up to which the number of their signs is counted


def contributions(d: int, groups: npt.ArrayLike, records: int, most: int) -> sp.csc_array:
    """Neighbours differ by one person with up to `records` records in each of up to `most` groups of cells; (d, s).

    Groups are, say, the months that a person may be in: every cell is in one, and the person joins or leaves with all
    her records, so that the difference z has no entries of both signs, at most `records` in a group, and at most `most`
    groups. The cost is convex in her records of a group, so it is greatest where she has none in the group, or all of
    them in one cell: each column has `records` in one cell of each of up to `most` groups. ``N = records · most``
    records anywhere, ``add-remove:N`` on tables of any size, bound this cost. Where groups do not share noise, it is
    far below the bound. That bound is at most `most` squared times their cost, since `records` in one cell are a
    difference, too. Where groups are the values of an attribute, tables of many sizes need no bound:
    ``contributions:ATTRIBUTE:RECORDS:GROUPS`` (`dualmech.neighbours.Contributions`).
    Raises `InvalidInputError` or `InputTypeError` for numbers that are no integers of at least 1, another number of
    groups than cells, more columns than can be written out.

    Parameters
    ----------
    d : int
        Number of cells.
    groups : (d,) array
        The group of each cell, by any numbers or texts.
    records, most : int
        The most records of a person in a group, and the most groups that she is in.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.contributions(4, ["jan", "jan", "feb", "feb"], records=2, most=2).shape
    (4, 8)
    """
    cells, count = validate.size(d=d), as_members(records=records)
    members = cells_of_groups(cells, groups=groups)
    together = min(validate.size(most=most), len(members))
    columns = ways_to_contribute([len(member) for member in members], together)
    if columns * together > MAX_ENTRIES:
        raise InvalidInputError(
            f"{columns:.3g} ways to be in up to {together} groups are too many to write out; add-remove:"
            f"{count * together} bounds them all"
        )
    chosen = [
        cell
        for number in range(1, together + 1)
        for several in itertools.combinations(members, number)
        for cell in itertools.product(*several)
    ]
    rows = np.array([cell for cells_of in chosen for cell in cells_of], dtype=np.intp)
    owners = np.repeat(np.arange(len(chosen)), [len(cells_of) for cells_of in chosen])
    return sp.csc_array((np.full(len(rows), float(count)), (rows, owners)), shape=(cells, len(chosen)))


def sign_patterns(n: int, times: int, separation: int, signs: npt.ArrayLike | None = None) -> sp.csc_array:
    """Neighbours differ by a person with a part in at most `times` steps, `separation` apart: every sign; (n, s).

    A person adds between -1 and 1 to a step, as in training over several epochs in one order (C. Choquette-Choo,
    McMahan, Rush and Thakurta, ICML 2023). The cost is greatest where every part is -1 or 1, and all signs count: for
    plus alone the total variance of 64 prefixes in four epochs would seem to be 752, and it is 1,243, since noise may
    cancel along the signs that were left out. Columns are the signs of every start, the first of them plus:
    ``2^(times - 1)``. `participation` states the same persons, and such as add vectors, without columns, for many
    epochs. `LinearGaussianMechanism.participation_cost` bounds the cost under every sign without them.
    Raises `InvalidInputError` or `InputTypeError` for numbers that are no integers of at least 1, more columns than can
    be written out, signs that are not -1 or 1.

    Parameters
    ----------
    n, times, separation : int
        Steps, the most in which one person takes part, and how far apart.
    signs : (r, times) array, optional
        Only these signs: the optimum for fewer neighbours is a bound for all, and no more.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.sign_patterns(4, times=2, separation=2).toarray()
    array([[ 1.,  1.,  0.,  0.],
           [ 0.,  0.,  1.,  1.],
           [ 1., -1.,  0.,  0.],
           [ 0.,  0.,  1., -1.]])
    """
    steps, most = validate.size(n=n), validate.size(times=times)
    apart = validate.size(separation=separation)
    most = min(most, -(-steps // apart))
    whole = (
        steps - (most - 1) * apart
    )  # starts after which there are steps for all parts; later ones have one part less
    starts = max(whole, min(apart, steps))
    if signs is None:
        check_entries(starts * most * 2 ** (min(most, MOST_SIGNS) - 1))
        patterns = np.array([*itertools.product((1.0, -1.0), repeat=most - 1)]).reshape(2 ** (most - 1), most - 1)
        patterns = np.hstack([np.ones((len(patterns), 1)), patterns])
    else:
        patterns = validate.finite(2, signs=signs)
        if patterns.shape[1] != times or np.any(np.abs(patterns) != 1):
            raise InvalidInputError(f"signs must be rows of {times} numbers -1 or 1, got {patterns.shape}")
        patterns = patterns[:, :most]
        check_entries(starts * patterns.size)
    groups = [(np.arange(whole), patterns)]
    if starts > whole:  # where signs come several times
        groups.append((np.arange(whole, starts), -np.unique(-patterns[:, :-1], axis=0)))
    parts = [_columns(members, kept, apart) for members, kept in groups]
    rows, entries, lengths = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return sp.csc_array((entries, rows, np.r_[0, np.cumsum(lengths)]), shape=(steps, len(lengths)))


def _columns(
    starts: npt.NDArray[np.intp], patterns: Array, apart: int
) -> tuple[npt.NDArray[np.intp], Array, npt.NDArray[np.intp]]:
    """Return rows, entries and numbers of entries of the columns that begin at these starts, with every pattern."""
    count, parts = patterns.shape
    taken = starts[:, None, None] + apart * np.arange(parts)
    rows = np.broadcast_to(taken, (len(starts), count, parts)).ravel()
    return rows, np.tile(patterns.ravel(), len(starts)), np.full(len(starts) * count, parts)


def ways_to_contribute(sizes: list[int], most: int) -> float:
    """Return in how many ways one can be chosen from each of up to `most` groups of these sizes."""
    ways = [1.0] + [0.0] * most
    for size in sizes:
        for number in range(most, 0, -1):
            ways[number] += ways[number - 1] * size
    return sum(ways[1:])
