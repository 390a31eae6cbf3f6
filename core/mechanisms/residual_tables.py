"""Noisy residuals of marginal tables: drawn, put together from several mechanisms, and made into tables again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.mechanisms import marginal_order
from dualmech.mechanisms import sampler as draws
from dualmech.mechanisms.sampler import Sampler
from dualmech.mechanisms.subspace_noise import SubspaceNoise
from dualmech.validate import Array
from dualmech.workloads.domain import Domain
from dualmech.workloads.lattice import Axes
from dualmech.workloads.marginals import MarginalWorkload, cells_of, check_marginal

Tables = Mapping[Axes, Array]
"""Marginal tables by the positions of their attributes, each with one axis an attribute."""


class ResidualTables(SubspaceNoise):
    """Residuals of marginal tables with noise of known levels; the parameters are those of `SubspaceNoise`."""

    __slots__ = ()

    def measure(
        self, tables: Tables, rng: np.random.Generator | int = 0, sampler: Sampler | None = None
    ) -> dict[Axes, Array]:
        """Draw the noisy residuals of all measured sets, for study: with floating-point noise NOT a private release.

        This is the one place where these tables meet noise. Of a marginal table y on T, ``⊗ (n_i I - 11') y`` is
        measured, whole numbers where y is, with independent noise of variance ``τ_T cells_T`` in every cell. Then the
        sum is centred and divided by ``cells_T``.

        Parameters
        ----------
        tables : mapping of axes to arrays
            Marginal tables of the records; any that cover the measured sets (`dualmech.records.count`).
        rng : numpy.random.Generator or int
            Where Gaussian noise in floating point comes from, if there is no `sampler`.
        sampler : `dualmech.draws.Sampler`, optional
            What draws the noise instead, called once a measured set with a standard deviation and a shape: the place
            for exact noise on integers.

        Raises
        ------
        InvalidInputError, InputTypeError
            A measured set that no table covers, a table of another shape, draws of another shape or not finite.

        Examples
        --------
        >>> import dualmech as dm
        >>> mechanism = dm.MarginalMechanism(dm.Domain({"sex": 2}), {(): 1.0, (0,): 1.0})
        >>> silent = mechanism.measure({(0,): [30, 20]}, sampler=lambda deviation, shape: np.zeros(shape))
        >>> silent[()], silent[0,]
        (array(50.), array([ 5., -5.]))
        """
        given, draw = _mapping(tables=tables), draws.gaussian(rng) if sampler is None else sampler
        measured = {}
        for axes, level in self.noise.items():
            whole = _whole(marginal_of(self.domain, given, axes))
            noisy = whole + draws.drawn(draw, math.sqrt(level * whole.size), whole.shape)
            measured[axes] = np.asarray(_centred(noisy) / whole.size)
        return measured

    def recombine(self, residuals: Tables, attributes: Iterable[str]) -> Array:
        """Return the unbiased estimate of a marginal table from noisy residuals.

        Raises
        ------
        InvalidInputError, InputTypeError
            A table with a part that is not measured, or that the residuals lack; one of another shape.
        """
        axes = self.domain.axes(attributes)
        shape = tuple(self.domain.shape[axis] for axis in axes)
        table = np.zeros(shape)
        for part in self._under(axes):
            spread = [slice(None) if axis in part else None for axis in axes]
            share = math.prod(self.domain.shape[a] for a in axes if a not in part)
            table += self._residual(residuals, part)[tuple(spread)] / share
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

    def combine(self, residuals: Tables, *others: tuple[ResidualTables, Tables]) -> dict[Axes, Array]:
        """Return what noisy residuals of this mechanism and of others say together: averages, by their accuracy.

        Parameters
        ----------
        residuals : mapping of axes to arrays
            What `measure` of this mechanism returned.
        others : pairs of a mechanism and what its `measure` returned
            Run independently, on the same records.

        Returns
        -------
        dict of axes to arrays
            Distributed as those of `MarginalMechanism.compose`.

        Raises
        ------
        InvalidInputError, InputTypeError
            Mechanisms on another domain, residuals that lack a measured set.

        Notes
        -----
        Algorithm 4 of CMN, a subspace at a time.

        Examples
        --------
        >>> import dualmech as dm
        >>> domain = dm.Domain({"sex": 2})
        >>> first, second = (dm.MarginalMechanism(domain, {(): level}) for level in (1, 3))
        >>> first.combine({(): np.array(10.0)}, (second, {(): np.array(14.0)}))[()]
        array(11.)
        """
        parts = [(self, residuals), *others]
        combined = {}
        for axes, level in marginal_order.together([each for each, _ in parts]).items():
            shares = [(level / each.noise[axes], given) for each, given in parts if axes in each.noise]
            combined[axes] = np.asarray(sum(share * self._residual(given, axes) for share, given in shares))
        return combined

    def _residual(self, residuals: Tables, axes: Axes) -> Array:
        given = _mapping(residuals=residuals)
        if axes not in given:
            raise InvalidInputError(f"residuals must hold {self._shown(axes)}, which is measured")
        table = validate.finite(**{f"residuals[{axes}]": given[axes]})
        shape = tuple(self.domain.shape[axis] for axis in axes)
        if table.shape != shape:
            raise InvalidInputError(f"residuals[{axes}] must have shape {shape}, got {table.shape}")
        return table


def marginal_of(domain: Domain, tables: Tables, axes: Axes) -> Array:
    """Return the marginal on a set of attributes from the smallest given table that covers it.

    Raises
    ------
    InvalidInputError, InputTypeError
        No table that covers it, or one of another shape.
    """
    covering = [given for given in tables if set(axes) <= set(given)]
    if not covering:
        shown = " x ".join(domain.names[axis] for axis in axes) or "the total"
        raise InvalidInputError(f"tables must cover {shown}, which is measured; none does")
    best = min(covering, key=lambda given: cells_of(domain, given))
    table = validate.finite(**{f"tables[{best}]": tables[best]})
    shape = tuple(domain.shape[axis] for axis in best)
    if table.shape != shape:
        raise InvalidInputError(f"tables[{best}] must have shape {shape}, got {table.shape}")
    return np.asarray(table.sum(axis=tuple(i for i, axis in enumerate(best) if axis not in axes)))


def _whole(table: Array) -> Array:
    """Return n times each entry less the sum along its line, for every axis: no rounding below 2^53."""
    for axis, size in enumerate(table.shape):
        table = size * table - table.sum(axis=axis, keepdims=True)
    return table


def _centred(table: Array) -> Array:
    """Return a table less its mean along every axis: its part in the residual subspace of all its attributes."""
    for axis in range(table.ndim):
        table = table - table.mean(axis=axis, keepdims=True)
    return np.asarray(table)


def _mapping(**named: object) -> Tables:
    ((name, given),) = named.items()
    if not isinstance(given, Mapping) or not all(isinstance(axes, tuple) for axes in given):
        raise InputTypeError(
            f"{name} must map tuples of attribute positions, such as (0, 2), to arrays, got {type(given).__name__}"
        )
    return given
