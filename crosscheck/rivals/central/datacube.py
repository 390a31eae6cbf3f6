"""Data cubes: measure a few marginal tables, chosen so that the noisiest table that is asked for has least noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from dualmech import validate
from dualmech.crosscheck.rivals.central.fourier import character_block, dependence, subsets, unit_rows
from dualmech.crosscheck.rivals.central.products import attributes_of, domain_of
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.tabulations import DomainLike, chosen_axes

MAX_PAIRS = 2**22  # largest product of the numbers of tables asked for and of tables that may be measured
MAX_EXACT = 32  # largest number of tables that may be measured where the best choice is searched for exactly

Axes = tuple[int, ...]


def choose_marginals(
    domain: DomainLike,
    sets: Iterable[str | Iterable[str]],
    among: Iterable[str | Iterable[str]] | None = None,
    exact: bool = False,
) -> list[tuple[str, ...]]:
    """Choose the marginal tables to measure so that the largest variance in a table asked for is least ("BMAX").

    With equal noise on p tables at squared cost 1, a measured count has variance p. A table on the attributes S
    is summed up from one measured table on ``C ⊇ S``, a count from as many as the attributes in C but not in S
    have values together: its magnification. The choice minimises

        ``p · max_S min_{C ⊇ S, C measured} magnification(C, S)``.

    For every magnification that occurs, the tables that are within it of each other make a set-cover problem,
    solved by taking the table that covers most of what is not yet covered, the first given among equals. The
    best of these choices is within a factor ``1 + ln(number of sets)`` of the optimum.

    - `domain`: the attributes;
    - `sets`: the marginal tables asked for;
    - `among`: the tables that may be measured; by default those asked for;
    - `exact`: search for the best choice instead, among at most `MAX_EXACT` tables.

    Returns a list of tuples of attribute names: the tables to measure.
    Source: Ding, Winslett, Han and Li, "Differentially private data cubes: optimizing noise sources and consistency",
    SIGMOD 2011, problem Bound Max Variance. There, under ε-differential privacy, p² stands for p and the factor is
    squared; the bound on the variance is bisected, where here every value that it can take is tried. Li and Miklau,
    PVLDB 5(6), 2012 ("EIG"), section 5, measure cost as here and choose among the tables asked for.

    Examples
    --------
    >>> from dualmech.crosscheck import rivals
    >>> rivals.choose_marginals([2, 2, 40], sets=["a0", "a1", ("a0", "a1")])
    [('a0', 'a1')]
    >>> rivals.choose_marginals([2, 3, 40], sets=["a0", "a1", ("a0", "a1")])
    [('a0',), ('a1',), ('a0', 'a1')]
    """
    table = attributes_of(domain)
    asked = chosen_axes(table, None, sets)
    offered = asked if among is None else chosen_axes(table, None, among)
    chosen = _choose(table, asked, offered, exact)
    return [tuple(table.names[axis] for axis in axes) for axes in chosen]


def datacube(
    workload: Workload,
    cost: float,
    domain: int | DomainLike | None = None,
    sets: Iterable[str | Iterable[str]] | None = None,
    exact: bool = False,
) -> LinearGaussianMechanism:
    """Add equal noise to the marginal tables of `choose_marginals`, and use them consistently ("DataCube").

    Least squares combines all measured tables. In the residual space of the attributes T it sees the eigenvalue
    ``e_T = Σ_{C ⊇ T} d / cells_C`` over the measured tables C, and so the variance ``p / (e_T cost)`` in each of
    its directions; no matrix is factored.
    See `choose_marginals`. EIG takes it for workloads of marginals and of range marginals.

    Parameters
    ----------
    sets : iterable of attribute names or of sets of them, optional
        The marginal tables asked for; by default, for each group of queries, those on the attributes on which one
        of its queries depends, unless another of the group depends on these and more.
    exact : bool
        As for `choose_marginals`.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import rivals
    >>> workload = dm.workloads.marginals([3, 4], ways=1)
    >>> rivals.datacube(workload, cost=1).variances(workload).round(4)
    array([1.7143, 1.7143, 1.7143, 1.7143, 1.7143, 1.7143, 1.7143])
    """
    table, spent = domain_of(workload, domain), validate.positive_number(cost=cost)
    asked = _tables_of(workload, table) if sets is None else chosen_axes(table, None, sets)
    chosen = _choose(table, asked, asked, exact)
    blocks, variances = [], []
    for axes in subsets(len(table.shape)):
        shares = [1 / _cells(table, measured) for measured in chosen if set(axes) <= set(measured)]
        if shares:
            blocks.append(character_block(table, axes))
            variances += [len(chosen) / (table.cells * sum(shares))] * len(blocks[-1])
    basis, spread = np.vstack(blocks), np.array(variances) / spent
    if len(basis) == table.cells:
        return LinearGaussianMechanism(np.eye(table.cells), (basis.T * spread) @ basis)
    return LinearGaussianMechanism(basis, np.diag(spread))


def _choose(domain: Domain, asked: Sequence[Axes], offered: Sequence[Axes], exact: bool) -> list[Axes]:
    """Return the best choice over all magnifications; covered tables are the bits of an integer."""
    if len(asked) * len(offered) > MAX_PAIRS:
        raise InvalidInputError(
            f"sets must be at most {MAX_PAIRS} pairs of a table asked for and one measured, "
            f"got {len(asked)} x {len(offered)}"
        )
    if exact and len(offered) > MAX_EXACT:
        raise InvalidInputError(f"exact choice is among at most {MAX_EXACT} tables, got {len(offered)}")
    covers = [_magnifications(domain, table, asked) for table in offered]
    for position, axes in enumerate(asked):
        if not any(position in cover for cover in covers):
            names = [domain.names[axis] for axis in axes]
            raise InvalidInputError(f"among must hold a table that contains the one on {names}")
    limits = sorted({ratio for cover in covers for ratio in cover.values()})
    whole, best = (1 << len(asked)) - 1, list(range(len(offered)))
    least = len(offered) * limits[-1] + 1
    for limit in limits:
        masks = [
            sum(1 << position for position, ratio in cover.items() if ratio <= limit) for cover in covers
        ]
        affordable = (least - 1) // limit
        found = _least_cover(masks, whole, affordable) if exact else _greedy_cover(masks, whole)
        if found is not None and len(found) <= affordable:
            best, least = found, len(found) * limit
    return [offered[index] for index in sorted(best)]


def _magnifications(domain: Domain, measured: Axes, asked: Sequence[Axes]) -> dict[int, int]:
    """Return the magnification of every table asked for that a measured one contains, by its position."""
    inside = set(measured)
    return {
        position: _cells(domain, measured) // _cells(domain, axes)
        for position, axes in enumerate(asked)
        if inside.issuperset(axes)
    }


def _greedy_cover(masks: Sequence[int], whole: int) -> list[int] | None:
    """Return a cover that takes, again and again, the mask with most bits that are missing; None if there is none."""
    missing, chosen = whole, []
    while missing:
        index = max(range(len(masks)), key=lambda each: (masks[each] & missing).bit_count())
        if not masks[index] & missing:
            return None
        chosen.append(index)
        missing &= ~masks[index]
    return chosen


def _least_cover(masks: Sequence[int], missing: int, most: int) -> list[int] | None:
    """Return a cover of fewest masks, `most` or fewer; None if there is none."""
    if not missing:
        return []
    best = None
    if most >= 1:
        lowest = missing & -missing
        for index, mask in enumerate(masks):
            if mask & lowest:
                rest = _least_cover(masks, missing & ~mask, most - 1)
                if rest is not None:
                    best, most = [index, *rest], len(rest)
    return best


def _tables_of(workload: Workload, domain: Domain) -> list[Axes]:
    """Return, group by group, the sets of attributes on which a query depends and no other of its group on more."""
    depends = dependence(unit_rows(workload), domain)
    groups: dict[str, dict[Axes, None]] = {}
    for query, row in zip(np.flatnonzero(workload.row_norms()), depends, strict=True):
        axes = tuple(int(axis) for axis in np.flatnonzero(row))
        groups.setdefault(workload.groups[query], {})[axes] = None
    largest = [
        axes
        for found in groups.values()
        for axes in found
        if not any(set(axes) < set(other) for other in found)
    ]
    return list(dict.fromkeys(largest))


def _cells(domain: Domain, axes: Axes) -> int:
    return math.prod(domain.shape[axis] for axis in axes)
