"""Builders of neighbour matrices: which data sets privacy must keep apart.

The columns u_1 … u_s of U (d, s) are the differences of neighbouring data vectors up to sign. The squared
privacy cost of a mechanism with cost matrix ``C = B' Σ⁻¹ B`` is ``max_i u_i' C u_i``, the maximum over pairs
of neighbours in Theorem 3 of Xiao, Ding, Wang, Zhang and Kifer, PVLDB 14(10), 2021. Since ``z' C z`` is
convex and even in z, its maximum over a polytope is at a vertex, and of two opposite vertices one is enough;
this is what keeps s small below. Every builder returns a scipy sparse CSC matrix, to pass as `neighbours`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError, did_you_mean
from dualmech.validate import Array, Matrix

NeighboursLike: TypeAlias = "str | Relation | Matrix | npt.ArrayLike | None"
"""What problems and mechanisms take: words, a rule, differences by column, or None for one record more or less."""

MAX_ENTRIES = 2**27  # largest number of non-zero entries that a builder writes out (2 GB)
MOST_SIGNS = 30  # participations of one person up to which the number of their signs is counted
MAX_MEMBERS = 2**53  # largest number of records of one household, that float64 still counts exactly


@dataclass(frozen=True, slots=True)
class Relation:
    """Neighbours by a rule, for domains of any size: one person's records, added or removed, or replaced.

    Attributes
    ----------
    replace : bool
        Whether records change their cells, the number of records staying what it is.
    members : int
        The most records that one person holds.
    """

    replace: bool = False
    members: int = 1

    def __post_init__(self) -> None:
        validate.boolean(replace=self.replace)
        _as_members(self.members)

    @classmethod
    def of(cls, text: str) -> Relation:
        """Return the relation that a text such as ``replace`` or ``add-remove:3`` stands for.

        Raises `InvalidInputError` for another text.

        Examples
        --------
        >>> import dualmech as dm
        >>> dm.neighbours.Relation.of("replace:3")
        Relation(replace=True, members=3)
        """
        name, colon, members = validate.text(text=text).partition(":")
        counted = not colon or (members.isdecimal() and int(members) > 0)
        if name not in ("add-remove", "replace") or not counted:
            raise InvalidInputError(
                f"neighbours must be add-remove, replace, add-remove:RECORDS, replace:RECORDS or a matrix, got {text!r}"
                f"{did_you_mean(name, ('add-remove', 'replace'))}"
            )
        return cls(name == "replace", int(members or 1))

    @classmethod
    def matching(cls, differences: Matrix) -> Relation | None:
        """Return the relation whose `matrix` this is, None where there is none.

        Examples
        --------
        >>> import dualmech as dm
        >>> dm.neighbours.Relation.matching(dm.neighbours.replace_one(3))
        Relation(replace=True, members=1)
        """
        differences = validate.matrix(differences=differences)
        cells, pairs = differences.shape
        members = float(abs(differences).max())
        if not (1 <= members <= MAX_MEMBERS and members.is_integer()):
            return None
        for relation in (cls(False, int(members)), cls(True, int(members))):
            if pairs == (cells * (cells - 1) // 2 if relation.replace else cells) > 0:
                own = household(cells, relation.members, relation.replace)
                if abs(own - sp.csc_array(differences)).max() == 0:
                    return relation
        return None

    def matrix(self, d: int) -> sp.csc_array | None:
        """Return U over d cells, None for the identity."""
        cells = validate.size(d=d)
        if not self.replace and self.members == 1:
            return None
        return household(cells, self.members, self.replace)

    def __str__(self) -> str:
        return f"{'replace' if self.replace else 'add-remove'}:{self.members}"


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
    count = _as_members(members)
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
    _check_entries(cells)
    given = validate.sequence(groups=groups)
    columns = [_household(group, cells, f"groups[{index}]") for index, group in enumerate(given)]
    if not columns:
        raise InvalidInputError("groups must hold at least one household, got none")
    rows = np.concatenate(columns)
    owners = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
    # Repeated cells add up when the coordinates are compressed.
    return sp.csc_array((np.ones(len(rows)), (rows, owners)), shape=(cells, len(columns)))


def participation(n: int, times: int, separation: int, signs: npt.ArrayLike | None = None) -> sp.csc_array:
    """Neighbours differ by a person who takes part in at most `times` steps, each `separation` after the last; (n, s).

    What a person adds to a step is between -1 and 1, as in training over several epochs in one order (C.
    Choquette-Choo, McMahan, Rush and Thakurta, ICML 2023). The cost is greatest where every part is -1 or 1, and all
    signs count: for plus alone the total variance of 64 prefixes in four epochs would seem to be 752, and it is 1,243,
    since noise may cancel where nobody looks. Columns are the signs of every start, the first of them plus:
    ``2^(times - 1)``.
    `LinearGaussianMechanism.participation_cost` bounds the cost under every sign without them.
    Raises `InvalidInputError` or `InputTypeError` for numbers that are no integers of at least 1, more columns than can
    be written out, signs that are not -1 or 1.

    Parameters
    ----------
    n, times, separation : int
        Steps, the most in which one person takes part, and how far apart.
    signs : (r, times) array, optional
        Only these signs: what is optimal for fewer neighbours is a bound for all, and no more.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.neighbours.participation(4, times=2, separation=2).toarray()
    array([[ 1.,  1.,  0.,  0.],
           [ 0.,  0.,  1.,  1.],
           [ 1., -1.,  0.,  0.],
           [ 0.,  0.,  1., -1.]])
    """
    steps, most = validate.size(n=n), validate.size(times=times)
    apart = validate.size(separation=separation)
    most = min(most, -(-steps // apart))
    if signs is None:
        _check_entries(min(steps, apart) * most * 2 ** (min(most, MOST_SIGNS) - 1))
        patterns = np.array([*itertools.product((1.0, -1.0), repeat=most - 1)]).reshape(
            2 ** (most - 1), most - 1
        )
        patterns = np.hstack([np.ones((len(patterns), 1)), patterns])
    else:
        patterns = validate.finite(2, signs=signs)
        if patterns.shape[1] != times or np.any(np.abs(patterns) != 1):
            raise InvalidInputError(f"signs must be rows of {times} numbers -1 or 1, got {patterns.shape}")
        patterns = patterns[:, :most]
    starts = [start for start in range(steps) if start < apart or start + (most - 1) * apart < steps]
    entries: list[Array] = []
    rows: list[npt.NDArray[np.intp]] = []
    ends = [0]
    for start in starts:
        taken = np.arange(start, min(start + most * apart, steps), apart)
        # Where fewer steps are left, signs come several times.
        kept = patterns if len(taken) == most else -np.unique(-patterns[:, : len(taken)], axis=0)
        entries.append(kept.ravel())
        rows.append(np.tile(taken, len(kept)))
        ends.extend(ends[-1] + len(taken) * np.arange(1, len(kept) + 1))
    return sp.csc_array((np.concatenate(entries), np.concatenate(rows), ends), shape=(steps, len(ends) - 1))


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


def _as_members(members: int) -> int:
    count = validate.size(members=members)
    if count > MAX_MEMBERS:
        raise InvalidInputError(f"members must be at most {MAX_MEMBERS}, got {count}")
    return count


def _units(d: int, size: int) -> sp.csc_array:
    cells = validate.size(d=d)
    _check_entries(cells)
    return sp.csc_array(sp.diags_array(np.full(cells, float(size)), format="csc"))


def _swaps(d: int, size: int) -> sp.csc_array:
    cells = validate.size(d=d)
    if cells < 2:
        raise InvalidInputError(f"d must be at least 2 for a record to be replaced, got {cells}")
    pairs = cells * (cells - 1) // 2
    _check_entries(2 * pairs)
    entries = np.stack(np.triu_indices(cells, k=1), axis=1).ravel()
    signs = np.tile([float(size), -float(size)], pairs)
    return sp.csc_array((signs, entries, 2 * np.arange(pairs + 1)), shape=(cells, pairs))


def _check_entries(entries: int) -> None:
    if entries > MAX_ENTRIES:
        raise InvalidInputError(
            f"neighbours of {entries} non-zero entries are too many (limit {MAX_ENTRIES})"
        )
