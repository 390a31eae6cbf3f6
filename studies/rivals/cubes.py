"""Rivals on tables: the Fourier strategy, data cubes, and marginals by weight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

import dualmech as dm
from dualmech import validate, workloads
from dualmech.errors import InvalidInputError
from dualmech.problems.designs import (
    attributes_of,
    character_block,
    dependence,
    domain_of,
    fourier_matrix,
    subsets,
    unit_rows,
)
from dualmech.studies.rivals.plain import input_perturbation
from dualmech.workloads.domain import Lattice
from dualmech.workloads.marginal import cells_of, check_marginal
from dualmech.workloads.tabulations import DomainLike, chosen_axes


def fourier(workload: dm.Workload, cost: float, domain: int | DomainLike | None = None) -> dm.LinearGaussianMechanism:
    """Add equal noise to the Fourier coefficients that a workload needs ("Fourier").

    On marginals, with r coefficients needed, every column of the strategy has the squared norm ``r / d``, and a
    cell of a marginal table of s cells has the variance ``r / (s cost)``. Where all d are needed the strategy is
    orthogonal, and so input perturbation.
    Barak, Chaudhuri, Dwork, Kale, McSherry and Talwar, "Privacy, accuracy, and consistency too", PODS 2007, for
    attributes of two values; Li and Miklau, PVLDB 5(6), 2012 ("EIG"), section 5: coefficients that the workload does
    not need are left out "to reduce sensitivity". Complex characters of longer attributes come in conjugate pairs;
    their real and imaginary parts are the rows here.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> workload = dm.workloads.marginals([3, 4], ways=1)
    >>> rivals.fourier(workload, cost=1).variances(workload).round(6)
    array([2. , 2. , 2. , 1.5, 1.5, 1.5, 1.5])
    """
    attributes, spent = domain_of(workload, domain), validate.positive_number(cost=cost)
    rows = fourier_matrix(attributes, workload)
    if len(rows) == attributes.cells:
        return input_perturbation(workload, spent)
    sensitivity = float((rows**2).sum(axis=0).max())
    return dm.LinearGaussianMechanism(rows, sensitivity / spent * np.eye(len(rows)))


MAX_PAIRS = 2**22  # largest product of the numbers of requested tables and of tables that may be measured
MAX_EXACT = 32  # largest number of tables that may be measured where the best choice is searched for exactly

Axes = tuple[int, ...]


def choose_marginals(
    domain: DomainLike,
    sets: Iterable[str | Iterable[str]],
    among: Iterable[str | Iterable[str]] | None = None,
    exact: bool = False,
) -> list[tuple[str, ...]]:
    """Choose the marginal tables to measure so that the largest variance in a requested table is least ("BMAX").

    With equal noise on p tables at squared cost 1, a measured count has variance p. A table on the attributes S
    is summed up from one measured table on ``C ⊇ S``, a count from as many as the attributes in C but not in S
    have values together: its magnification. The choice minimises

        ``p · max_S min_{C ⊇ S, C measured} magnification(C, S)``.

    For every magnification that occurs, the tables that are within it of each other make a set-cover problem,
    solved by taking the table that covers most of the uncovered ones, the first given among equals. The
    best of these choices is within a factor ``1 + ln(number of sets)`` of the optimum.

    - `domain`: the attributes;
    - `sets`: the requested marginal tables;
    - `among`: the tables that may be measured; by default the requested ones;
    - `exact`: search for the best choice instead, among at most `MAX_EXACT` tables.

    Returns a list of tuples of attribute names: the tables to measure.
    Source: Ding, Winslett, Han and Li, "Differentially private data cubes: optimizing noise sources and consistency",
    SIGMOD 2011, problem Bound Max Variance. There, under ε-differential privacy, p² stands for p and the factor is
    squared; the bound on the variance is bisected, where here every value that it can take is tried. Li and Miklau,
    PVLDB 5(6), 2012 ("EIG"), section 5, measure cost as here and choose among the requested tables.

    Examples
    --------
    >>> from dualmech.studies import rivals
    >>> rivals.choose_marginals([2, 2, 40], sets=["a0", "a1", ("a0", "a1")])
    [('a0', 'a1')]
    >>> rivals.choose_marginals([2, 3, 40], sets=["a0", "a1", ("a0", "a1")])
    [('a0',), ('a1',), ('a0', 'a1')]
    """
    table = attributes_of(domain)
    wanted = chosen_axes(table, None, sets)
    offered = wanted if among is None else chosen_axes(table, None, among)
    chosen = _choose(table, wanted, offered, exact)
    return [tuple(table.names[axis] for axis in axes) for axes in chosen]


def datacube(
    workload: dm.Workload,
    cost: float,
    domain: int | DomainLike | None = None,
    sets: Iterable[str | Iterable[str]] | None = None,
    exact: bool = False,
) -> dm.LinearGaussianMechanism:
    """Add equal noise to the marginal tables of `choose_marginals`, and use them consistently ("DataCube").

    Least squares combines all measured tables. In the residual space of the attributes T it sees the eigenvalue
    ``e_T = Σ_{C ⊇ T} d / cells_C`` over the measured tables C, and so the variance ``p / (e_T cost)`` in each of
    its directions; no matrix is factored.
    See `choose_marginals`. EIG takes it for workloads of marginals and of range marginals.

    Parameters
    ----------
    sets : iterable of attribute names or of sets of them, optional
        The requested marginal tables; by default, for each group of queries, those on the attributes on which one
        of its queries depends, unless another of the group depends on these and more.
    exact : bool
        As for `choose_marginals`.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> workload = dm.workloads.marginals([3, 4], ways=1)
    >>> rivals.datacube(workload, cost=1).variances(workload).round(4)
    array([1.7143, 1.7143, 1.7143, 1.7143, 1.7143, 1.7143, 1.7143])
    """
    table, spent = domain_of(workload, domain), validate.positive_number(cost=cost)
    wanted = _tables_of(workload, table) if sets is None else chosen_axes(table, None, sets)
    chosen = _choose(table, wanted, wanted, exact)
    blocks, variances = [], []
    for axes in subsets(len(table.shape)):
        shares = [1 / cells_of(table, measured) for measured in chosen if set(axes) <= set(measured)]
        if shares:
            blocks.append(character_block(table, axes))
            variances += [len(chosen) / (table.cells * sum(shares))] * len(blocks[-1])
    basis, spread = np.vstack(blocks), np.array(variances) / spent
    if len(basis) == table.cells:
        return dm.LinearGaussianMechanism(np.eye(table.cells), (basis.T * spread) @ basis)
    return dm.LinearGaussianMechanism(basis, np.diag(spread))


def _choose(domain: dm.Domain, wanted: Sequence[Axes], offered: Sequence[Axes], exact: bool) -> list[Axes]:
    """Return the best choice over all magnifications; covered tables are the bits of an integer."""
    if len(wanted) * len(offered) > MAX_PAIRS:
        raise InvalidInputError(
            f"sets must be at most {MAX_PAIRS} pairs of a table asked for and one measured, "
            f"got {len(wanted)} x {len(offered)}"
        )
    if exact and len(offered) > MAX_EXACT:
        raise InvalidInputError(f"exact choice is among at most {MAX_EXACT} tables, got {len(offered)}")
    covers = [_magnifications(domain, table, wanted) for table in offered]
    for position, axes in enumerate(wanted):
        if not any(position in cover for cover in covers):
            names = [domain.names[axis] for axis in axes]
            raise InvalidInputError(f"among must hold a table that contains the one on {names}")
    limits = sorted({ratio for cover in covers for ratio in cover.values()})
    whole, best = (1 << len(wanted)) - 1, list(range(len(offered)))
    least = len(offered) * limits[-1] + 1
    for limit in limits:
        masks = [sum(1 << position for position, ratio in cover.items() if ratio <= limit) for cover in covers]
        affordable = (least - 1) // limit
        picked = _least_cover(masks, whole, affordable) if exact else _greedy_cover(masks, whole)
        if picked is not None and len(picked) <= affordable:
            best, least = picked, len(picked) * limit
    return [offered[index] for index in sorted(best)]


def _magnifications(domain: dm.Domain, measured: Axes, wanted: Sequence[Axes]) -> dict[int, int]:
    inside = set(measured)
    return {
        position: cells_of(domain, measured) // cells_of(domain, axes)
        for position, axes in enumerate(wanted)
        if inside.issuperset(axes)
    }


def _greedy_cover(masks: Sequence[int], whole: int) -> list[int] | None:
    """Return a cover that takes, again and again, the mask with most bits that are missing; None if there is none."""
    missing, chosen = whole, []
    while missing:
        index = max(range(len(masks)), key=lambda place: (masks[place] & missing).bit_count())
        if not masks[index] & missing:
            return None
        chosen.append(index)
        missing &= ~masks[index]
    return chosen


def _least_cover(masks: Sequence[int], missing: int, most: int) -> list[int] | None:
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


def _tables_of(workload: dm.Workload, domain: dm.Domain) -> list[Axes]:
    """Return, group by group, the sets of attributes on which a query depends and no other of its group on more."""
    depends = dependence(unit_rows(workload), domain)
    groups: dict[str, dict[Axes, None]] = {}
    for query, row in zip(np.flatnonzero(workload.row_norms()), depends, strict=True):
        axes = tuple(int(axis) for axis in np.flatnonzero(row))
        groups.setdefault(workload.groups[query], {})[axes] = None
    largest = [
        axes for group in groups.values() for axes in group if not any(set(axes) < set(other) for other in group)
    ]
    return list(dict.fromkeys(largest))


# Marginal tables by weight: all of them measured, each with the accuracy that makes the total variance least.
#
# With noise of variance ``1 / w_S`` on the table S of every set of attributes a record costs ``Σ_S w_S``, and the
# residual subspace of T gets the level ``τ_T = 1 / Σ_{S ⊇ T} w_S / cells_S``. The total variance ``f = Σ_T b_T τ_T`` is
# convex in w, and minus its derivatives times w add up to f: so at sum 1 no weights are better than ``2 f - max``.


STEPS, NEAR = 20_000, 1e-6  # of the multiplicative rule, and how near the best weights it ends, relative
UNUSED = 1e-9  # weight, over the largest, of tables that are not measured


def weighted_marginals(workload: workloads.MarginalWorkload, cost: float) -> dm.BlockMechanism:
    """Measure marginal tables of the domain, weighed for the least total variance of the requested ones.

    This is the operator for marginals of HDMM (McKenna, Miklau, Hay and Machanavajjhala, "Optimizing error of
    high-dimensional statistical queries under differential privacy", PVLDB 11(10), 2018), with Gaussian noise in place
    of Laplace's; weights are within 1e-6 of the best. A domain has some ten attributes at most.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> from dualmech.studies import rivals
    >>> tables = dm.workloads.marginals([10] * 5, ways=2)
    >>> mechanism = rivals.weighted_marginals(tables, cost=1)
    >>> least = fast.solve(dm.TotalVariance(tables)).lower_bound
    >>> f"{100 * mechanism.variances(tables) @ tables.table_cells / least - 100:.2f} %"
    '4.94 %'
    """
    spent = validate.positive_number(cost=cost)
    domain, workload_lattice = check_marginal(workload).domain, workload.lattice
    assert domain is not None
    measured = list(subsets(len(domain.shape)))
    lattice = Lattice.under(domain, measured)
    shares = lattice.incidence.multiply([1 / cells_of(domain, axes) for axes in measured]).tocsr()
    wanted = shares[[lattice.axes.index(axes) for axes in workload_lattice.axes]]
    variances = workload_lattice.dimensions * workload.gram_levels()
    weights = np.full(len(measured), 1 / len(measured))
    for _ in range(STEPS):
        levels = 1 / (wanted @ weights)
        total, gains = float(variances @ levels), wanted.T @ (variances * levels**2)
        if gains.max() <= (1 + NEAR) * total:
            break
        weights *= np.sqrt(gains / total)
        weights /= weights.sum()
    weights[weights < UNUSED * weights.max()] = 0.0
    precisions = shares @ (weights * spent / weights.sum())
    return dm.BlockMechanism.of_levels(
        domain, {axes: 1 / precision for axes, precision in zip(lattice.axes, precisions, strict=True) if precision > 0}
    )
