"""Plain rivals of the central model: noise on cells, answers, Fourier coefficients, and marginal tables by choice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg

import dualmech as dm
from dualmech import validate, workloads
from dualmech.errors import InvalidInputError


def input_perturbation(workload: dm.Workload, cost: float) -> dm.LinearGaussianMechanism:
    """Add independent noise to every cell: ``B = I``, ``Σ = I / cost`` ("IP").

    The answer to a query w has variance ``‖w‖² / cost``.
    Source: section 7 of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of differentially private linear
    queries", PVLDB 14(10), 2021 ("FFU").

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> workload = dm.workloads.prefix(3)
    >>> rivals.input_perturbation(workload, cost=2).variances(workload)
    array([0.5, 1. , 1.5])
    """
    cells, spent = checked(workload).shape[1], validate.positive_number(cost=cost)
    return dm.LinearGaussianMechanism(np.eye(cells), np.eye(cells) / spent)


def gaussian_mechanism(workload: dm.Workload, cost: float) -> dm.LinearGaussianMechanism:
    """Add independent noise to every workload answer, and use the answers consistently ("GM").

    The answers ``W x`` get noise of variance ``σ² = max_i ‖W e_i‖² / cost``, the largest squared column norm
    of W over the cost. Where W has more rows than its rank, least squares answers every query at a variance of at most
    σ². `raw_gaussian_variance` is σ² itself.
    Source: FFU, section 7 (see `input_perturbation`).

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> workload = dm.workloads.identity_total(4)
    >>> rivals.gaussian_mechanism(workload, cost=2).variances(workload)
    array([0.8, 0.8, 0.8, 0.8, 0.8])
    >>> rivals.raw_gaussian_variance(workload, cost=2)
    1.0
    """
    variance = raw_gaussian_variance(workload, cost)
    geometry = dm.TotalVariance(workload, geometry="dense").geometry  # W = L B
    triangle = scipy.linalg.qr(geometry.representation, mode="r", check_finite=False)[0][: geometry.rank]
    half = scipy.linalg.solve_triangular(triangle, np.eye(geometry.rank), check_finite=False)
    return dm.LinearGaussianMechanism(geometry.basis, variance * (half @ half.T))


def raw_gaussian_variance(workload: dm.Workload, cost: float) -> float:
    """Return the variance of every raw answer of the Gaussian mechanism: the largest squared column norm / cost.

    FFU means this variance by its "GM", without the least squares of `gaussian_mechanism`. (The code published
    with the paper takes the squared spectral norm of W in place of the largest squared column norm, which
    is never smaller and mostly far larger.)

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> rivals.raw_gaussian_variance(dm.workloads.prefix(8), cost=4)
    2.0
    """
    matrix, spent = checked(workload).matrix, validate.positive_number(cost=cost)
    return float((matrix * matrix).sum(axis=0).max() / spent)


def checked(workload: object) -> dm.Workload:
    """Return a workload; anything else is refused."""
    return validate.instance(dm.Workload, workload=workload)


# Marginal tables. In the residual subspace of the attributes T, noise is of one level τ_T; see `BlockMechanism`.


def fourier(workload: workloads.MarginalWorkload, cost: float) -> dm.LinearGaussianMechanism:
    """Add equal noise to the Fourier coefficients that marginal tables need ("Fourier").

    With r coefficients needed, every column of the strategy has the squared norm ``r / d``, and a cell of a marginal
    table of s cells has the variance ``r / (s cost)``. Where all d are needed the strategy is input perturbation.
    Barak, Chaudhuri, Dwork, Kale, McSherry and Talwar, "Privacy, accuracy, and consistency too", PODS 2007, for
    attributes of two values; Li and Miklau, PVLDB 5(6), 2012 ("EIG"), section 5: coefficients that the workload does
    not need are left out "to reduce sensitivity".

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> workload = dm.workloads.marginals([3, 4], ways=1)
    >>> rivals.fourier(workload, cost=1).variances(workload).round(6)
    array([2. , 2. , 2. , 1.5, 1.5, 1.5, 1.5])
    """
    domain, spent = _domain_of(workload), validate.positive_number(cost=cost)
    lattice = workload.lattice
    level = float(lattice.dimensions.sum()) / spent
    return dm.BlockMechanism.of_levels(domain, dict.fromkeys(lattice.axes, level)).dense()


MAX_PAIRS = 2**22  # largest product of the numbers of requested tables and of tables that may be measured


def datacube(workload: workloads.MarginalWorkload, cost: float) -> dm.LinearGaussianMechanism:
    """Add equal noise to some of the requested marginal tables, and use them consistently ("DataCube").

    With equal noise on p tables at squared cost 1, a measured count has variance p. A table on the attributes S is
    summed up from one measured table on ``C ⊇ S``, a count from as many as the attributes in C but not in S have values
    together: its magnification. The choice makes ``p · max_S min_{C ⊇ S} magnification(C, S)`` small ("BMAX"): for
    every magnification that occurs, the tables that are within it of each other make a set-cover problem, solved by
    taking the table that covers most of the uncovered ones, the first among equals. The best of these choices is within
    a factor ``1 + ln(number of tables)`` of the optimum. Least squares then combines all measured tables.

    Source: Ding, Winslett, Han and Li, "Differentially private data cubes: optimizing noise sources and consistency",
    SIGMOD 2011, problem Bound Max Variance, where p² stands for p and the factor is squared. Li and Miklau, PVLDB 5(6),
    2012 ("EIG"), section 5, measure cost as here and choose among the requested tables.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.studies import rivals
    >>> workload = dm.workloads.marginals([3, 4], ways=1)
    >>> rivals.datacube(workload, cost=1).variances(workload).round(4)
    array([1.7143, 1.7143, 1.7143, 1.7143, 1.7143, 1.7143, 1.7143])
    """
    domain, spent = _domain_of(workload), validate.positive_number(cost=cost)
    cells = dict(zip(workload.axes, workload.table_cells, strict=True))
    if len(cells) ** 2 > MAX_PAIRS:
        raise InvalidInputError(f"workload must have at most {MAX_PAIRS**0.5:.0f} tables, got {len(cells)}")
    chosen = _measured(cells)
    precisions = {
        axes: sum(spent / len(chosen) / cells[table] for table in chosen if {*axes} <= {*table})
        for axes in workload.lattice.axes
    }
    levels = {axes: 1 / precision for axes, precision in precisions.items() if precision > 0}
    return dm.BlockMechanism.of_levels(domain, levels).dense()


def _measured(cells: dict[tuple[int, ...], float]) -> list[tuple[int, ...]]:
    """Return the best choice over all magnifications of the tables that cover all others."""
    magnifications = {
        table: {other: round(cells[table] / cells[other]) for other in cells if {*other} <= {*table}} for table in cells
    }
    best, least = [*cells], np.inf
    for limit in sorted({ratio for cover in magnifications.values() for ratio in cover.values()}):
        covers = [{other for other, ratio in magnifications[table].items() if ratio <= limit} for table in cells]
        picked = _cover(covers)
        if len(picked) * limit < least:
            best, least = [table for place, table in enumerate(cells) if place in picked], len(picked) * limit
    return best


def _cover(covers: Sequence[set[tuple[int, ...]]]) -> list[int]:
    """Return the places of sets that cover all, each taken for having most members that are missing."""
    missing, picked = set[tuple[int, ...]]().union(*covers), list[int]()
    while missing:
        picked.append(max(range(len(covers)), key=lambda place: len(covers[place] & missing)))
        missing -= covers[picked[-1]]
    return picked


def weighted_marginals(workload: workloads.MarginalWorkload, cost: float) -> dm.BlockMechanism:
    """Measure marginal tables of the domain, weighed for the least total variance of the requested ones.

    With noise of variance ``1 / w_S`` on the table S of every set of attributes a record costs ``Σ_S w_S``, and the
    residual subspace of T gets the level ``τ_T = 1 / Σ_{S ⊇ T} w_S / cells_S``. The total variance ``f = Σ_T b_T τ_T``
    is convex in w, and minus its derivatives times w add up to f: so at sum 1 no weights are better than ``2 f - max``.
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
    domain, spent = _domain_of(workload), validate.positive_number(cost=cost)
    measured = workloads.marginals(domain, ways=range(len(domain.shape) + 1))
    shares = measured.lattice.incidence.multiply(1 / measured.table_cells).tocsr()
    wanted = shares[[measured.lattice.axes.index(axes) for axes in workload.lattice.axes]]
    variances = workload.lattice.dimensions * workload.gram_levels()
    weights = np.full(len(measured.axes), 1 / len(measured.axes))
    for _ in range(20_000):
        levels = 1 / (wanted @ weights)
        total, gains = float(variances @ levels), wanted.T @ (variances * levels**2)
        if gains.max() <= (1 + 1e-6) * total:
            break
        weights *= np.sqrt(gains / total)
        weights /= weights.sum()
    weights[weights < 1e-9 * weights.max()] = 0.0  # tables that are not measured
    precisions = zip(measured.lattice.axes, shares @ (weights * spent / weights.sum()), strict=True)
    return dm.BlockMechanism.of_levels(domain, {axes: 1 / precision for axes, precision in precisions if precision > 0})


def _domain_of(workload: workloads.MarginalWorkload) -> dm.Domain:
    domain = validate.instance(workloads.MarginalWorkload, workload=workload).domain
    assert domain is not None
    return domain
