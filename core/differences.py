"""Sensitivity vectors as matrices: the differences between neighbouring data sets.

The columns u_1 … u_s of U (d, s) are the differences of neighbouring data vectors up to sign. The squared
privacy cost of a mechanism with cost matrix ``C = B' Σ⁻¹ B`` is ``max_i u_i' C u_i``, the maximum over pairs
of neighbours in Theorem 3 of Xiao, Ding, Wang, Zhang and Kifer, PVLDB 14(10), 2021. Since ``z' C z`` is
convex and even in z, its maximum over a polytope is at a vertex, and one of two opposite vertices is enough; so few
columns suffice below. Every builder returns a scipy sparse CSC matrix, to pass as `neighbours`.
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


MAX_ENTRIES = 2**27  # maximum number of non-zero entries of a matrix (2 GB)
MAX_MEMBERS = 2**53  # maximum number of records of one household: float64 counts them exactly


def add_or_remove(d: int) -> sp.csc_array:
    """Neighbours differ by one record added or removed: ``U = I``, (d, d), the default of every problem.

    One record in cell i changes the data vector by ``± e_i``; these are all the differences.
    Raises `InvalidInputError` or `InputTypeError` if `d` is not an integer of at least 1, or too large.

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
    changes only the sign. Every column sums to 0, so the total has no privacy cost. With `within`, a record stays in
    its group of cells, for example the cells of one state: only pairs of cells in one group are columns, and the total
    of each group has no privacy cost.
    Raises `InvalidInputError` or `InputTypeError` if `d` is not an integer of at least 2 or is too large, if the number
    of groups is not `d`, or if every group has a single cell.

    Parameters
    ----------
    d : int
        Number of cells.
    within : (d,) array, optional
        The group of each cell, by any numbers or texts; by default all cells are in one group.

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

    Without `replace`, its records join or leave, so the difference z has ``Σ_i |z_i| <= members``: it lies in the
    convex hull of ``± members e_i``. The cost is greatest at a vertex, and each vertex is itself a difference, with all
    records in cell i. So ``U = members I``, (d, d).

    With `replace`, up to `members` records change their cells, and z is a sum of at most `members` differences
    ``e_u - e_v``: the mean of `members` vectors ``members (e_u - e_v)`` and zeros. So the cost is greatest if all
    records move from the same cell to the same cell. U is (d, d (d - 1) / 2).
    Raises `InvalidInputError` or `InputTypeError` if `d` or `members` is not an integer of at least 1 (`d` of at least
    2 with `replace`), or is too large.

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

    A household with n_i records in cell i changes the data vector by ``± Σ_i n_i e_i`` when all its records join or
    leave. The list must hold all possible households. If a part of a household can leave alone, list the part too: in
    general its difference is no convex combination of the others.
    Raises `InvalidInputError` or `InputTypeError` for an empty list, a household without records, or a cell that is not
    an integer from 0 to d - 1.

    Parameters
    ----------
    d : int
        Number of cells.
    groups : iterable of iterables of ints
        Each household by the cells of its records; a cell with several records is repeated.

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


def as_members(**argument: int) -> int:
    """Return a number of records of at most `MAX_MEMBERS`."""
    ((name, value),) = argument.items()
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


def cells_of_groups(d: int, **argument: npt.ArrayLike) -> list[list[int]]:
    """Return the cells of each group, in the order of the groups' first cells; refuse labels that are not d."""
    ((name, groups),) = argument.items()
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
    """Refuse more than `MAX_ENTRIES` non-zero entries."""
    if entries > MAX_ENTRIES:
        raise InvalidInputError(f"neighbours of {entries} non-zero entries are too many (limit {MAX_ENTRIES})")


# Neighbours that differ by one person with several records: in some groups of cells, or in some steps of a stream.


MAX_SIGN_EXPONENT = 30  # 2^30 sign patterns of one person are far too many already


def contributions(d: int, groups: npt.ArrayLike, records: int, most: int) -> sp.csc_array:
    """Neighbours differ by one person with up to `records` records in each of up to `most` groups of cells; (d, s).

    Groups are, for example, months: every cell is in one group, and the person joins or leaves with all her records.
    The difference z has entries of one sign, with a sum of at most `records` in each of at most `most` groups. The cost
    is convex in her records of a group, so it is greatest if she has no record in the group, or all of them in one
    cell: each column has `records` in one cell of each of up to `most` groups.

    The relation ``add-remove:N`` with ``N = records · most``, for tables of any size, bounds this cost from above, by
    at most `most` squared times the cost; far above it if the groups share no noise. If the groups are the values of an
    attribute, ``contributions:ATTRIBUTE:RECORDS:GROUPS`` (`dualmech.neighbours.Contributions`) is exact on large tables
    too.
    Raises `InvalidInputError` or `InputTypeError` for numbers that are not integers of at least 1, a number of groups
    other than `d`, and more columns than `MAX_ENTRIES` allows.

    Parameters
    ----------
    d : int
        Number of cells.
    groups : (d,) array
        The group of each cell, by any numbers or texts.
    records, most : int
        Maximum number of records of a person in a group, and maximum number of groups that she is in.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.contributions(4, ["jan", "jan", "feb", "feb"], records=2, most=2).shape
    (4, 8)
    """
    cells, count = validate.size(d=d), as_members(records=records)
    members = cells_of_groups(cells, groups=groups)
    max_groups = min(validate.size(most=most), len(members))
    num_columns = ways_to_contribute([len(member) for member in members], max_groups)
    if num_columns * max_groups > MAX_ENTRIES:
        raise InvalidInputError(
            f"{num_columns:.3g} ways to be in up to {max_groups} groups are more columns than a matrix can have; "
            f"add-remove:{count * max_groups} bounds their cost"
        )
    columns = [
        column
        for number in range(1, max_groups + 1)
        for combination in itertools.combinations(members, number)
        for column in itertools.product(*combination)
    ]
    rows = np.array([cell for column in columns for cell in column], dtype=np.intp)
    owners = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
    return sp.csc_array((np.full(len(rows), float(count)), (rows, owners)), shape=(cells, len(columns)))


def sign_patterns(n: int, times: int, separation: int, signs: npt.ArrayLike | None = None) -> sp.csc_array:
    """Neighbours differ by a participant in up to `times` steps, `separation` apart, with any signs; (n, s).

    A person adds between -1 and 1 to a step, as in training over several epochs in one order (C. Choquette-Choo,
    McMahan, Rush and Thakurta, ICML 2023). The cost is greatest if every contribution is -1 or 1, and all sign patterns
    count: with plus signs only, the total variance of 64 prefixes in four epochs would seem to be 752, but it is 1,243,
    since noise may cancel along the patterns that were left out. The columns are the ``2^(times - 1)`` patterns that
    begin with plus, for every first step. `participation` states the same relation, also for vectors, without columns.
    `LinearGaussianMechanism.participation_cost` bounds the cost over all patterns without columns.
    Raises `InvalidInputError` or `InputTypeError` for numbers that are not integers of at least 1, more columns than
    `MAX_ENTRIES` allows, and signs other than -1 or 1.

    Parameters
    ----------
    n, times, separation : int
        Number of steps, maximum number of participations of one person, and their separation.
    signs : (r, times) array, optional
        Sign patterns to keep. With fewer neighbours the optimum is only a lower bound for all patterns.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.sign_patterns(4, times=2, separation=2).toarray()
    array([[ 1.,  1.,  0.,  0.],
           [ 0.,  0.,  1.,  1.],
           [ 1., -1.,  0.,  0.],
           [ 0.,  0.,  1., -1.]])
    """
    steps, max_times = validate.size(n=n), validate.size(times=times)
    stride = validate.size(separation=separation)
    max_times = min(max_times, -(-steps // stride))
    full_starts = steps - (max_times - 1) * stride  # first steps of `max_times` participations; later ones have fewer
    starts = max(full_starts, min(stride, steps))
    if signs is None:
        check_entries(starts * max_times * 2 ** (min(max_times, MAX_SIGN_EXPONENT) - 1))
        patterns = np.array([*itertools.product((1.0, -1.0), repeat=max_times - 1)])
        patterns = patterns.reshape(2 ** (max_times - 1), max_times - 1)
        patterns = np.hstack([np.ones((len(patterns), 1)), patterns])
    else:
        patterns = validate.finite(2, signs=signs)
        if patterns.shape[1] != times or np.any(np.abs(patterns) != 1):
            raise InvalidInputError(f"signs must be rows of {times} numbers -1 or 1, got {patterns.shape}")
        patterns = patterns[:, :max_times]
        check_entries(starts * patterns.size)
    groups = [(np.arange(full_starts), patterns)]
    if starts > full_starts:  # patterns without their last sign coincide
        groups.append((np.arange(full_starts, starts), -np.unique(-patterns[:, :-1], axis=0)))
    parts = [_columns(first_steps, rows, stride) for first_steps, rows in groups]
    rows, entries, lengths = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return sp.csc_array((entries, rows, np.r_[0, np.cumsum(lengths)]), shape=(steps, len(lengths)))


def _columns(
    starts: npt.NDArray[np.intp], patterns: Array, stride: int
) -> tuple[npt.NDArray[np.intp], Array, npt.NDArray[np.intp]]:
    """Return rows, entries and numbers of entries of the columns of every pattern at every first step."""
    count, times = patterns.shape
    steps = starts[:, None, None] + stride * np.arange(times)
    rows = np.broadcast_to(steps, (len(starts), count, times)).ravel()
    return rows, np.tile(patterns.ravel(), len(starts)), np.full(len(starts) * count, times)


def ways_to_contribute(sizes: list[int], max_groups: int) -> float:
    """Return the number of ways to choose one cell in each of up to `max_groups` groups of these sizes."""
    ways = [1.0] + [0.0] * max_groups
    for size in sizes:
        for number in range(max_groups, 0, -1):
            ways[number] += ways[number - 1] * size
    return sum(ways[1:])
