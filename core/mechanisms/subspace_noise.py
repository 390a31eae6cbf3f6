"""Noise on the residual subspaces of a domain: what it costs, and how accurate it makes tables and product queries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.domain import Domain
from dualmech.workloads.marginals import (
    Axes,
    MarginalWorkload,
    cells_of,
    check_marginal,
)


class SubspaceNoise:
    """Independent noise on residual subspaces of a domain: its cost, and the variances that follow from it.

    Its privacy-cost matrix is ``Σ_T (d / τ_T) P_T``, with the orthogonal projectors P_T on the subspaces. So all such
    mechanisms on one domain commute, and whatever is asked of their cost matrices is asked of numbers, one a subspace.

    Parameters
    ----------
    domain : Domain
        The attributes.
    noise : mapping of axes to float
        ``τ_T > 0`` for each measured set T, by the positions of its attributes. Sets with an attribute of one value
        have no residual, and are left out; with no others nothing is released.

    Raises
    ------
    InvalidInputError, InputTypeError
        A set with attributes that are not in the domain, or a level that is not positive.
    """

    __slots__ = ("domain", "noise")

    domain: Domain
    noise: dict[Axes, float]

    def __init__(self, domain: Domain, noise: Mapping[Axes, float]) -> None:
        if not isinstance(domain, Domain):
            raise InputTypeError(f"domain must be a dualmech.Domain, got {type(domain).__name__}")
        if not isinstance(noise, Mapping):
            raise InputTypeError(
                f"noise must map sets of attributes to positive levels, got {type(noise).__name__}"
            )
        count, sizes = len(domain.names), domain.shape
        for axes, level in noise.items():
            whole = isinstance(axes, tuple) and all(isinstance(axis, int) for axis in axes)
            if not whole or list(axes) != sorted(set(axes)) or not all(0 <= axis < count for axis in axes):
                raise InvalidInputError(
                    f"noise must be given for increasing positions below {count}, got {axes}"
                )
            validate.positive_number(**{f"noise[{axes}]": level})
        self.domain = domain
        self.noise = {
            tuple(axes): float(level)
            for axes, level in noise.items()
            if all(sizes[axis] > 1 for axis in axes)
        }

    @property
    def squared_privacy_cost(self) -> float:
        """``Σ_T mult_T / τ_T``, the same for every record."""
        return math.fsum(self._dimension(axes) / level for axes, level in self.noise.items())

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
        ours, theirs = factors_of(self.domain, first), factors_of(self.domain, second)
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

    def _shown(self, axes: Axes) -> str:
        return " x ".join(self.domain.names[axis] for axis in axes) or "the total"


def factors_of(domain: Domain, query: Mapping[str, npt.ArrayLike]) -> dict[int, Array]:
    """Return the factors of a product query by the positions of their attributes.

    Raises
    ------
    InvalidInputError, InputTypeError
        No mapping, unknown attributes, factors of another length.
    """
    if not isinstance(query, Mapping):
        raise InputTypeError(f"query must map attributes to factors, got {type(query).__name__}")
    factors = {}
    for name, factor in query.items():
        (axis,) = domain.axes([name])
        factors[axis] = validate.finite(1, **{f"query[{name!r}]": factor})
        if len(factors[axis]) != domain.shape[axis]:
            raise InvalidInputError(
                f"query[{name!r}] must have {domain.shape[axis]} entries, got {len(factors[axis])}"
            )
    return factors
