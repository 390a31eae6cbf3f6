"""The mechanism of marginal tables: independent noise on residual subspaces, measured from low-order tables alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dualmech import accounting, validate
from dualmech.domain import Domain
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.marginals import Axes, MarginalWorkload, cells_of, check_marginal
from dualmech.validate import Array

Tables = Mapping[Axes, Array]
"""Marginal tables by the positions of their attributes, each with one axis an attribute."""


class MarginalMechanism:
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
        variance of the noise on the subspace.

    Raises
    ------
    InvalidInputError, InputTypeError
        No set, one with attributes that are not in the domain, or a level that is not positive.

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

    __slots__ = ("domain", "noise")

    domain: Domain
    noise: dict[Axes, float]

    def __init__(self, domain: Domain, noise: Mapping[Axes, float]) -> None:
        if not isinstance(domain, Domain):
            raise InputTypeError(f"domain must be a dualmech.Domain, got {type(domain).__name__}")
        if not isinstance(noise, Mapping) or not noise:
            raise InvalidInputError("noise must map one or more sets of attributes to positive levels")
        count = len(domain.names)
        for axes, level in noise.items():
            if list(axes) != sorted(set(axes)) or not all(0 <= axis < count for axis in axes):
                raise InvalidInputError(
                    f"noise must be given for increasing positions below {count}, got {axes}"
                )
            validate.positive_number(**{f"noise[{axes}]": level})
        self.domain = domain
        self.noise = {tuple(axes): float(level) for axes, level in noise.items()}

    @property
    def squared_privacy_cost(self) -> float:
        """``Σ_T mult_T / τ_T``, the same for every record."""
        return math.fsum(self._dimension(axes) / level for axes, level in self.noise.items())

    @property
    def privacy_cost(self) -> float:
        """Δ, the root of the squared cost; equal to the μ of Gaussian DP."""
        return math.sqrt(self.squared_privacy_cost)

    @property
    def rho(self) -> float:
        """The ρ of zero-concentrated differential privacy, ``Δ²/2``."""
        return self.squared_privacy_cost / 2

    def epsilon(self, delta: float) -> float:
        """Return the least ε at which the mechanism is (ε, δ)-differentially private."""
        return accounting.epsilon(self.privacy_cost, delta)

    def delta(self, epsilon: float) -> float:
        """Return the least δ at which the mechanism is (ε, δ)-differentially private."""
        return accounting.delta(self.privacy_cost, epsilon)

    def variance(self, attributes: Iterable[str]) -> float:
        """Return the variance of every cell of one marginal table."""
        axes = self.domain.axes(attributes)
        return (
            math.fsum(self._dimension(each) * self.noise[each] for each in self._under(axes))
            / cells_of(self.domain, axes) ** 2
        )

    def variances(self, workload: MarginalWorkload) -> Array:
        """Return the variance of a cell of each table of a workload (tables,)."""
        return np.array([self.variance(names) for names in check_marginal(workload).sets])

    def variance_of(self, query: Mapping[str, npt.ArrayLike]) -> float:
        """Return the variance of a product query: one factor an attribute, ones for those that are not named."""
        return self.covariance_of(query, query)

    def covariance_of(self, first: Mapping[str, npt.ArrayLike], second: Mapping[str, npt.ArrayLike]) -> float:
        """Return the covariance of two product queries, ``x ↦ Σ_cells Π_i f_i(cell_i) x_cell``.

        Parameters
        ----------
        first, second : mapping of attribute names to arrays (n_i,)
            The factors f_i; an attribute that is not named has the factor 1 for all its values.

        Raises
        ------
        InvalidInputError, InputTypeError
            Unknown attributes, factors of another length, a query with a part that is not measured.
        """
        ours, theirs = self._factors(first), self._factors(second)
        for factors in (ours, theirs):
            self._under(tuple(axis for axis, factor in sorted(factors.items()) if np.ptp(factor) > 0))
        total = 0.0
        for axes, level in self.noise.items():
            share = level
            for axis, size in enumerate(self.domain.shape):
                f, g = ours.get(axis), theirs.get(axis)
                if axis in axes:
                    share *= 0.0 if f is None or g is None else float((f - f.mean()) @ (g - g.mean())) / size
                else:
                    share *= (1.0 if f is None else float(f.mean())) * (1.0 if g is None else float(g.mean()))
            total += share
        return total

    def measure(self, tables: Tables, rng: np.random.Generator | int = 0) -> dict[Axes, Array]:
        """Draw the noisy residuals of all measured sets, for study. NOT a private release.

        This is the one place where data meet noise: exact noise would be drawn here.

        Parameters
        ----------
        tables : mapping of axes to arrays
            Marginal tables of the records; any that cover the measured sets (`dualmech.records.count`).
        rng : numpy.random.Generator or int
            Where the noise comes from.

        Raises
        ------
        InvalidInputError, InputTypeError
            A measured set that no table covers, a table of another shape.
        """
        generator = validate.generator(rng=rng)
        return {
            axes: _centred(self._table(tables, axes) + self._draw(axes, level, generator))
            for axes, level in self.noise.items()
        }

    def recombine(self, residuals: Tables, attributes: Iterable[str]) -> Array:
        """Return the unbiased estimate of a marginal table from noisy residuals.

        Raises
        ------
        InvalidInputError
            A table with a part that is not measured.
        """
        axes = self.domain.axes(attributes)
        shape = tuple(self.domain.shape[axis] for axis in axes)
        table = np.zeros(shape)
        for part in self._under(axes):
            spread = [slice(None) if axis in part else None for axis in axes]
            table += residuals[part][tuple(spread)] / math.prod(
                self.domain.shape[a] for a in axes if a not in part
            )
        return table

    def simulate(
        self, tables: Tables, workload: MarginalWorkload, rng: np.random.Generator | int = 0
    ) -> dict[tuple[str, ...], Array]:
        """Draw noisy, mutually consistent tables of a workload, for study. NOT a private release.

        Returns
        -------
        dict of attribute names to arrays
            One axis an attribute, in the domain's order.
        """
        residuals = self.measure(tables, rng)
        return {names: self.recombine(residuals, names) for names in check_marginal(workload).sets}

    def __repr__(self) -> str:
        return f"MarginalMechanism({len(self.noise)} residual subspaces, rho={self.rho:.6g})"

    def _draw(self, axes: Axes, level: float, generator: np.random.Generator) -> Array:
        shape = tuple(self.domain.shape[axis] for axis in axes)
        return np.asarray(math.sqrt(level / math.prod(shape)) * generator.standard_normal(shape))

    def _table(self, tables: Tables, axes: Axes) -> Array:
        """Return the marginal on a set from the smallest given table that covers it."""
        covering = [given for given in tables if set(axes) <= set(given)]
        if not covering:
            raise InvalidInputError(f"tables must cover {self._shown(axes)}, which is measured; none does")
        best = min(covering, key=lambda given: cells_of(self.domain, given))
        table = validate.finite(**{f"tables[{best}]": tables[best]})
        shape = tuple(self.domain.shape[axis] for axis in best)
        if table.shape != shape:
            raise InvalidInputError(f"tables[{best}] must have shape {shape}, got {table.shape}")
        return np.asarray(table.sum(axis=tuple(i for i, axis in enumerate(best) if axis not in axes)))

    def _under(self, axes: Axes) -> Sequence[Axes]:
        """Return the subsets of a set that carry anything; refuse it where one is not measured."""
        varying = [axis for axis in axes if self.domain.shape[axis] > 1]
        subsets = [each for size in range(len(varying) + 1) for each in itertools.combinations(varying, size)]
        for each in subsets:
            if each not in self.noise:
                raise InvalidInputError(
                    f"{self._shown(axes)} is not answered: its residual on {self._shown(each)} is not measured"
                )
        return subsets

    def _dimension(self, axes: Axes) -> float:
        return math.prod(float(self.domain.shape[axis] - 1) for axis in axes)

    def _factors(self, query: Mapping[str, npt.ArrayLike]) -> dict[int, Array]:
        factors = {}
        for name, factor in query.items():
            (axis,) = self.domain.axes([name])
            factors[axis] = validate.finite(1, **{f"query[{name!r}]": factor})
            if len(factors[axis]) != self.domain.shape[axis]:
                raise InvalidInputError(
                    f"query[{name!r}] must have {self.domain.shape[axis]} entries, got {len(factors[axis])}"
                )
        return factors

    def _shown(self, axes: Axes) -> str:
        return " x ".join(self.domain.names[axis] for axis in axes) or "the total"


def _centred(table: Array) -> Array:
    """Return a table less its mean along every axis: its part in the residual subspace of all its attributes."""
    for axis in range(table.ndim):
        table = table - table.mean(axis=axis, keepdims=True)
    return np.asarray(table)
