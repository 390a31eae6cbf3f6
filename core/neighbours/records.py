"""Neighbours that differ by one record, or by the records of one household, added, removed or replaced."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError

MAX_ENTRIES = 2**27  # largest number of non-zero entries that a builder writes out (2 GB)
MAX_MEMBERS = 2**53  # largest number of records of one household, that float64 still counts exactly


def add_or_remove(d: int) -> sp.csc_array:
    """Neighbours differ by one record added or removed: ``U = I``, (d, d), the default of every problem.

    One record in cell i changes the data vector by ``± e_i``, which are all the differences.
    Raises `InvalidInputError` or `InputTypeError` where `d` is not an integer of at least 1, or too large.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.add_or_remove(2).toarray()
    array([[1., 0.],
           [0., 1.]])
    """
    return _units(d, 1)


def replace_one(d: int) -> sp.csc_array:
    """Neighbours differ by the value of one record: the columns ``e_u - e_v``, u < v; (d, d (d - 1) / 2).

    A record that moves from cell v to cell u changes the data vector by ``e_u - e_v``, and moving it back
    changes only the sign. Every column sums to 0, so the total costs nothing.
    Raises `InvalidInputError` or `InputTypeError` where `d` is not an integer of at least 2 (in one cell nothing
    can be replaced), or too large.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.replace_one(3).toarray()
    array([[ 1.,  1.,  0.],
           [-1.,  0.,  1.],
           [ 0., -1., -1.]])
    """
    return _swaps(d, 1)


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
    given = validate.sequence(groups=groups)
    columns = [_household(group, cells, f"groups[{index}]") for index, group in enumerate(given)]
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
    ((name, given),) = named.items()
    count = validate.size(**{name: given})
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


def check_entries(entries: int) -> None:
    """Refuse more non-zero entries than are written out."""
    if entries > MAX_ENTRIES:
        raise InvalidInputError(
            f"neighbours of {entries} non-zero entries are too many (limit {MAX_ENTRIES})"
        )
