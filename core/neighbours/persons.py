"""Neighbours that differ by one person with several records: in some groups of cells, or in some steps of a stream."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.neighbours.records import MAX_ENTRIES, as_members, check_entries
from dualmech.validate import Array

MOST_SIGNS = 30  # participations of one person up to which the number of their signs is counted


def contributions(d: int, groups: npt.ArrayLike, records: int, most: int) -> sp.csc_array:
    """Neighbours differ by one person with up to `records` records in each of up to `most` groups of cells; (d, s).

    Groups are, say, the months that a person may be in: every cell is in one, and the person joins or leaves with all
    her records, so that the difference z has no entries of both signs, at most `records` in a group, and at most `most`
    groups. The cost is convex in what she has in a group, so it is greatest where that is nothing, or all in one cell:
    the columns are `records` in one cell each of up to `most` groups. Where groups do not share noise they cost less,
    by far, than ``N = records · most`` records anywhere, which bound them: ``add-remove:N`` on tables of any size. That
    bound is at most `most` squared times their cost, since `records` in one cell are a difference, too. Where groups
    are the values of an attribute, tables of many sizes need no bound: ``contributions:ATTRIBUTE:RECORDS:GROUPS``
    (`dualmech.neighbours.Contributions`).
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
    labels = np.asarray(groups)
    if labels.shape != (cells,):
        raise InvalidInputError(f"groups must have {cells} entries, one per cell, got shape {labels.shape}")
    members = [np.flatnonzero(labels == label).tolist() for label in dict.fromkeys(labels.tolist())]
    together = min(validate.size(most=most), len(members))
    columns = ways_to_contribute([len(own) for own in members], together)
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
    whole = (
        steps - (most - 1) * apart
    )  # starts after which there are steps for all parts; later ones have one part less
    starts = max(whole, min(apart, steps))
    if signs is None:
        check_entries(starts * most * 2 ** (min(most, MOST_SIGNS) - 1))
        patterns = np.array([*itertools.product((1.0, -1.0), repeat=most - 1)]).reshape(
            2 ** (most - 1), most - 1
        )
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
    parts = [_columns(own, kept, apart) for own, kept in groups]
    rows, entries, lengths = (np.concatenate(each) for each in zip(*parts, strict=True))
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
