"""Variances after a release, and the reduction of variance by each of several further mechanisms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.adaptive.sampling import Samples
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.gaussian import LinearGaussianMechanism, check_comparable
from dualmech.mechanisms.noise import as_matrix
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload


@dataclass(frozen=True, slots=True, eq=False)
class VarianceReduction:
    """Variances of each mechanism's own queries: with the mechanism known now, and once the mechanism itself has run.

    Source: section 6.2 of Xiao, Wang, Zhang and Kifer, PVLDB 16(8), 2023: of two mechanisms, run the one that takes
    more uncertainty away.
    """

    # before, after: one array (m_i,) a mechanism, variances in squared counts; ``inf`` where nothing bounds a query
    before: tuple[Array, ...]
    after: tuple[Array, ...]

    @property
    def reductions(self) -> tuple[Array, ...]:
        """The reduction of each query's variance, (m_i,) for each mechanism; ``inf`` if it was unbounded before."""
        return tuple(before - after for before, after in zip(self.before, self.after, strict=True))

    @property
    def totals(self) -> Array:
        """Sum of the reductions of each mechanism (p,)."""
        return np.array([reduction.sum() for reduction in self.reductions])

    @property
    def unbounded(self) -> tuple[npt.NDArray[np.intp], ...]:
        """Indices of the queries about which the known answers say nothing at all, an array per mechanism."""
        return tuple(np.flatnonzero(np.isinf(before)) for before in self.before)

    @property
    def best(self) -> int:
        """Index of the mechanism with the largest total reduction, the first of equals.

        Raises `InvalidInputError` where two mechanisms or more have infinite reductions, which cannot be compared: a
        prior bounds them.
        """
        infinite = np.flatnonzero(np.isinf(self.totals))
        if len(infinite) > 1:
            raise InvalidInputError(
                f"best needs finite variances, but mechanisms {infinite.tolist()} have infinite ones; "
                f"state a prior, or sample a confidence region"
            )
        return int(np.argmax(self.totals))


def posterior_variances(
    workload: Workload, known: LinearGaussianMechanism, prior: npt.ArrayLike | None = None
) -> Array:
    """Return the variance of each query given the answer of a mechanism (m,), whatever that answer was.

    With the prior ``x ~ N(m, S)``, ``S = F F'``, and N the standardised queries of the mechanism, the posterior
    covariance of x is ``F (I + (NF)'NF)⁻¹ F'``. The flat prior leaves ``q (N'N)⁺ q'`` to a query q in the row
    space of N, and nothing finite to any other.
    Raises `InvalidInputError` or `InputTypeError` for another number of cells; variances that are not positive; an
    indefinite covariance; queries released exactly.

    - `workload`: the queries, (m, d);
    - `known`: what has been released; nothing of it exactly;
    - `prior`: prior variance of every cell, of each, or their covariance, in squared counts; by default flat.

    Examples
    --------
    >>> import dualmech as dm
    >>> total = dm.LinearGaussianMechanism([[1, 1]], [[2]])
    >>> queries = dm.Workload([[1, 1], [1, 0]])
    >>> posterior_variances(queries, total)
    array([ 2., inf])
    >>> posterior_variances(queries, total, prior=1.0)
    array([1.  , 0.75])
    """
    check_workload(workload)
    known = as_matrix(known)
    check_comparable((known,), ("known",))
    cells = known.query_matrix.shape[1]
    if workload.shape[1] != cells:
        raise InvalidInputError(f"workload must have {cells} cells, as the mechanism, got {workload.shape[1]}")
    if prior is None:
        return _flat_variances(workload, known)
    spread = _prior_factor(prior, cells)
    informed = known.standardize().query_matrix @ spread
    factor = scipy.linalg.qr(np.vstack([informed, np.eye(spread.shape[1])]), mode="r", check_finite=False)[0]
    factor = factor[: spread.shape[1]]
    half = scipy.linalg.solve_triangular(factor, (workload.matrix @ spread).T, trans="T", check_finite=False)
    return np.einsum("rj,rj->j", half, half)


def variance_reduction(
    mechanisms: Sequence[LinearGaussianMechanism], known: LinearGaussianMechanism, prior: npt.ArrayLike | None = None
) -> VarianceReduction:
    """Compare mechanisms by how much of the uncertainty about their own queries each would take away.

    The variances of mechanism i's queries, given the answer of `known` and given that of mechanism i, which
    contains it where `known` is common to all of them.
    Raises `InvalidInputError` or `InputTypeError` for a mechanism from which `known` is not answerable, by its
    index; what `posterior_variances` refuses.
    Source: the Bayesian suggestion of section 6.2 of Xiao, Wang, Zhang and Kifer, PVLDB 16(8), 2023.

    - `mechanisms`: those to choose between;
    - `known`: what has been released, answerable from each of them;
    - `prior`: as for `posterior_variances`.

    Examples
    --------
    >>> import dualmech as dm
    >>> import numpy as np
    >>> rows = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
    >>> columns = dm.LinearGaussianMechanism([[1, 0, 1, 0], [0, 1, 0, 1]], 25 * np.eye(2))
    >>> total = dm.LinearGaussianMechanism([[1, 1, 1, 1]], [[50]])
    >>> choice = variance_reduction([rows, columns], total, prior=100.0)
    >>> choice.totals.round(1), choice.best
    (array([220.2, 177.8]), 0)
    """
    known, mechanisms = as_matrix(known), _several(mechanisms)
    check_comparable((known, *mechanisms), ("known", *(f"mechanisms[{i}]" for i in range(len(mechanisms)))))
    workloads = [Workload(mechanism.query_matrix) for mechanism in mechanisms]
    for index, mechanism in enumerate(mechanisms):
        if not known.is_answerable_from(mechanism):
            raise InvalidInputError(f"known must be answerable from every mechanism, it is not from {index}")
    return VarianceReduction(
        tuple(posterior_variances(queries, known, prior) for queries in workloads),
        tuple(
            posterior_variances(queries, mechanism, prior)
            for queries, mechanism in zip(workloads, mechanisms, strict=True)
        ),
    )


def sampled_reduction(mechanisms: Sequence[LinearGaussianMechanism], samples: Samples) -> VarianceReduction:
    """Compare mechanisms by the spread of their queries over sampled data, against their own variances.

    What is known now is that the data lie in the region that was sampled; what a mechanism gives is its variances.
    The reduction of a query is negative where the region is narrower than the mechanism is accurate.
    Raises `InvalidInputError` or `InputTypeError` for another number of cells.
    Source: the frequentist suggestion of section 6.2 of Xiao, Wang, Zhang and Kifer, PVLDB 16(8), 2023.

    Examples
    --------
    >>> import dualmech as dm
    >>> import numpy as np
    >>> total = dm.LinearGaussianMechanism([[1, 1, 1]], [[4]])
    >>> cells = dm.LinearGaussianMechanism([[1, 0, 0], [0, 1, 0], [0, 0, 1]], 4 * np.eye(3))
    >>> samples = dm.sampling.hit_and_run(dm.sampling.ConfidenceRegion(total, [60]), 4000, rng=1)
    >>> sampled_reduction([total, cells], samples).best
    1
    """
    mechanisms = _several(mechanisms)
    validate.instance(Samples, samples=samples)
    check_comparable(mechanisms)
    workloads = [Workload(mechanism.query_matrix) for mechanism in mechanisms]
    return VarianceReduction(
        tuple(samples.variances(queries) for queries in workloads),
        tuple(mechanism.variances(queries) for queries, mechanism in zip(workloads, mechanisms, strict=True)),
    )


def _several(mechanisms: Sequence[LinearGaussianMechanism]) -> tuple[LinearGaussianMechanism, ...]:
    several = validate.sequence(mechanisms=mechanisms)
    if not several:
        raise InvalidInputError("mechanisms must be one or more, got none")
    return several


def _flat_variances(workload: Workload, known: LinearGaussianMechanism) -> Array:
    """Return the variances of the queries in the row space, and inf for the others."""
    variances, rows = np.full(len(workload), np.inf), workload.dense()
    inside = np.flatnonzero(~np.any(rows, axis=1))
    if len(known.query_matrix):
        basis = linalg.row_space(known.query_matrix)
        outside = np.linalg.norm(rows - rows @ basis.T @ basis, axis=1)
        inside = np.flatnonzero(outside <= linalg.SPAN_TOLERANCE * np.linalg.norm(rows, axis=1))
    if not len(inside):
        return variances
    variances[inside] = known.variances(workload.select(inside)) if len(known.query_matrix) else 0.0
    return variances


def _prior_factor(prior: npt.ArrayLike, cells: int) -> Array:
    """Return F (d, r) with ``F F'`` the prior covariance."""
    matrix = validate.finite(prior=prior)
    validate.moderate(prior=matrix)
    if matrix.ndim < 2:
        return np.diag(np.sqrt(validate.per_item(cells, prior=prior)))
    covariance = validate.symmetric(prior=prior)
    if len(covariance) != cells:
        raise InvalidInputError(f"prior must have {cells} rows, one per cell, got {len(covariance)}")
    values, vectors = np.linalg.eigh(covariance)
    if values[0] < -8 * cells * linalg.EPS * abs(values[-1]):
        raise InvalidInputError(f"prior must be positive semidefinite, its smallest eigenvalue is {values[0]:.3g}")
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
