"""The mechanism of marginal tables: independent noise on residual subspaces, measured from low-order tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import files, linalg
from dualmech.errors import InvalidInputError
from dualmech.files import domains
from dualmech.geometry.block_forms import BlockPoint
from dualmech.geometry.blocks import Blocks
from dualmech.mechanisms import marginal_order
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.marginal_order import MarginalAnswerability
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.mechanisms.residual_tables import ResidualTables
from dualmech.workloads.domain import rounded
from dualmech.workloads.marginals import MarginalWorkload, check_marginal

SCHEMA, VERSION = "dualmech.marginal_mechanism", 1

MAX_WRITTEN = 2**24
"""Largest number of entries of a query matrix that is written out."""


class MarginalMechanism(ResidualTables, GaussianPrivacy):
    """Independent noise on residual subspaces of a domain that no vector could hold.

    For each measured set of attributes T, the residual of its marginal table, centred along every axis, is released
    with noise of covariance ``τ_T / cells_T`` times the projector on such tables. Any marginal whose subsets are all
    measured is recombined from these, without bias, and all marginals agree with each other.

    Parameters
    ----------
    domain : Domain
        The attributes.
    noise : mapping of axes to float
        ``τ_T > 0`` for each measured set T, by the positions of its attributes; with d cells, ``τ_T / d`` is the
        variance of the noise on the subspace. Sets with an attribute of one value have no residual, and are left out;
        with no others the mechanism releases nothing.

    Raises
    ------
    InvalidInputError, InputTypeError
        A set with attributes that are not in the domain, or a level that is not positive.

    Notes
    -----
    One record added or removed. Xiao, He, Zhang and Kifer, NeurIPS 2023 (ResidualPlanner).

    Examples
    --------
    >>> import dualmech as dm
    >>> mechanism = dm.MarginalMechanism(dm.Domain({"age": 4, "sex": 2}), {(): 8.0, (1,): 8.0})
    >>> mechanism.rho, mechanism.variance(["sex"])
    (0.125, 4.0)
    >>> mechanism.variance_of({"sex": [1, -1]})
    8.0
    """

    __slots__ = ()

    @classmethod
    def of_tables(
        cls, workload: MarginalWorkload, variances: npt.ArrayLike | Mapping[object, float] = 1.0
    ) -> MarginalMechanism:
        """Return what independent noise on every cell of some tables reveals, the plain Gaussian mechanism.

        A table S with noise of variance σ² in each cell tells ``1 / (σ² cells_S)`` about every subspace T ⊆ S, in
        units of ``1/τ_T``, and what several tables tell adds up. Its variances are those of the consistent estimates.

        Parameters
        ----------
        workload : MarginalWorkload
            The tables.
        variances : float, array or mapping
            σ² of each, as the targets of `FitnessForUse`.

        Examples
        --------
        >>> import dualmech as dm
        >>> tables = dm.workloads.marginals([2, 2, 2], ways=2)
        >>> noisy = dm.MarginalMechanism.of_tables(tables, 3.0)
        >>> round(noisy.squared_privacy_cost, 9), round(noisy.variance(["a0", "a1"]), 9)
        (1.0, 1.75)
        """
        lattice = check_marginal(workload).lattice
        told = lattice.incidence @ (1 / (workload.per_table(variances, "variances") * workload.table_cells))
        assert workload.domain is not None
        return cls(workload.domain, dict(zip(lattice.axes, (1 / told).tolist(), strict=True)))

    def common_with(self, *others: MarginalMechanism) -> MarginalMechanism:
        """Return a mechanism that this one and others can all answer, as accurate as can be.

        On a subspace that all measure, its noise is the largest of theirs; what one does not measure is not common.
        It is the common mechanism of least total variance on an orthonormal basis of what all see (`CommonMechanism`
        on a domain that matrices can hold): all cost matrices are multiples of the same projectors, and on such a
        basis no covariance above theirs has a smaller entry on its diagonal.

        Parameters
        ----------
        others : MarginalMechanism
            One or more, on the same domain.

        Raises
        ------
        InvalidInputError, InputTypeError
            No others, mechanisms on another domain or of another kind.

        Notes
        -----
        Equation 1 and algorithm 1 of Xiao, Wang, Zhang and Kifer, PVLDB 16(8), 2023 (CMN); sections 7.3 and 7.4 there
        choose between marginals.

        Examples
        --------
        >>> import dualmech as dm
        >>> domain = dm.Domain([(f"a{attribute}", 2) for attribute in range(7)])
        >>> one, cells = (
        ...     dm.MarginalMechanism.of_tables(dm.workloads.marginals(domain, ways=ways)) for ways in (1, 7)
        ... )
        >>> round(one.common_with(cells).squared_privacy_cost, 6)
        0.0625
        """
        return MarginalMechanism(self.domain, marginal_order.common([self, *others]))

    def residual(self, common: MarginalMechanism, tol: float = marginal_order.TOLERANCE) -> MarginalMechanism:
        """Return what is left of this mechanism once a part of it is known, ``1 / (1/τ - 1/τ_*)`` on each subspace.

        Run independently, the two parts are equivalent to the whole (`combine` puts their answers together). Of a
        subspace of which less than 1e-9 is left nothing more is asked.

        Raises
        ------
        InvalidInputError, InputTypeError
            A common part that is not answerable from this mechanism, its worst subspace named, or on another domain.

        Notes
        -----
        Algorithm 3 of CMN; `dualmech.residual` where matrices can hold it.

        Examples
        --------
        >>> import dualmech as dm
        >>> domain = dm.Domain({"sex": 2})
        >>> noisy, better = (dm.MarginalMechanism(domain, {(): level}) for level in (2, 1))
        >>> better.residual(noisy).noise      # 1 / (1/1 - 1/2)
        {(): 2.0}
        """
        return MarginalMechanism(self.domain, marginal_order.left(self, common, tol))

    def compose(self, *others: MarginalMechanism) -> MarginalMechanism:
        """Return what this mechanism and others reveal together, run independently; their costs add.

        Raises
        ------
        InvalidInputError, InputTypeError
            Mechanisms on another domain or of another kind.
        """
        return MarginalMechanism(self.domain, marginal_order.together([self, *others]))

    def is_answerable_from(
        self, other: MarginalMechanism, tol: float = marginal_order.TOLERANCE
    ) -> MarginalAnswerability:
        """Say whether the other's answers, with more noise, are this mechanism's: ``1/τ ≤ 1/τ_other`` everywhere.

        Parameters
        ----------
        other : MarginalMechanism
            On the same domain.
        tol : float
            Relative excess that counts as rounding.

        Raises
        ------
        InvalidInputError, InputTypeError
            Another domain or kind of mechanism, a tolerance that is not positive.
        """
        return marginal_order.answerable(self, other, tol)

    def point_on(self, geometry: Any) -> BlockPoint:
        """Return the noise on the blocks of marginal tables.

        Raises
        ------
        InvalidInputError
            Another domain, noise on more or on fewer residual subspaces than the tables have.
        """
        workload = getattr(geometry, "workload", None)
        if not isinstance(geometry, Blocks) or not isinstance(workload, MarginalWorkload):
            raise InvalidInputError("a MarginalMechanism answers marginal tables on geometry 'blocks'")
        if self.domain != workload.domain:
            raise InvalidInputError("mechanism must be on the domain of the problem's workload")
        axes = workload.lattice.axes
        missing = [each for each in axes if each not in self.noise]
        if missing:
            raise InvalidInputError(
                f"mechanism must measure all that the tables need, it does not measure {self._shown(missing[0])}"
            )
        further = len(self.noise) - len(axes)
        if further:
            raise InvalidInputError(
                f"mechanism measures {further} sets that no table needs, at a cost; leave them out"
            )
        return BlockPoint(np.array([self.noise[each] for each in axes]) / geometry.copies)

    def dense(self) -> LinearGaussianMechanism:
        """Return the equivalent mechanism on the cells: orthonormal rows of each subspace, noise of variance τ_T / d.

        Raises
        ------
        InvalidInputError
            A query matrix of more than 2^24 entries.

        Examples
        --------
        >>> import dualmech as dm
        >>> small = dm.MarginalMechanism(dm.Domain({"age": 3, "sex": 2}), {(): 6.0, (1,): 6.0})
        >>> small.dense().query_matrix.shape, abs(small.dense().rho - small.rho) < 1e-12
        ((2, 6), True)
        """
        sizes, cells = self.domain.shape, self.domain.cells
        counts = [int(self._dimension(axes)) for axes in self.noise]
        if max(sum(counts), 1) * cells > MAX_WRITTEN:
            raise InvalidInputError(
                f"a query matrix of {sum(counts)} rows and {rounded(cells)} cells is too large to write out "
                f"(limit {MAX_WRITTEN} entries)"
            )
        contrasts = [scipy.linalg.helmert(size) for size in sizes]
        means = [np.full((1, size), size**-0.5) for size in sizes]
        rows = [
            linalg.kronecker([contrasts[axis] if axis in axes else means[axis] for axis in range(len(sizes))])
            for axes in self.noise
        ]
        levels = np.repeat([level / cells for level in self.noise.values()], counts)
        stacked = np.vstack([np.zeros((0, cells)), *rows])
        return LinearGaussianMechanism(stacked, np.diag(levels) if len(levels) else np.zeros((0, 0)))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the mechanism to an ``.npz`` file, whole or not at all (schema in ``docs/formats.md``)."""
        files.write_npz(
            path,
            SCHEMA,
            VERSION,
            levels=np.array(list(self.noise.values()), dtype=np.float64),
            **domains.arrays(self.domain, self.noise),
        )

    @classmethod
    def load(cls, path: str | PathLike[str]) -> MarginalMechanism:
        """Read a mechanism back; its privacy is computed anew from its noise.

        Raises
        ------
        FileFormatError
            The file cannot be read, follows another schema, or its arrays do not fit together.
        """
        arrays = files.read_npz(path, SCHEMA, (VERSION,))
        files.require(path, arrays, "levels", *domains.KEYS)
        with files.reading(path):
            domain, sets = domains.from_arrays(arrays)
            levels = arrays["levels"]
            if levels.shape != (len(sets),):
                raise InvalidInputError(f"levels must be {len(sets)} numbers, got shape {levels.shape}")
            return cls(domain, dict(zip(sets, levels.tolist(), strict=True)))

    def __repr__(self) -> str:
        return f"MarginalMechanism({len(self.noise)} residual subspaces, rho={self.rho:.6g})"
