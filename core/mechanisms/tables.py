"""Marginal tables by their attributes: what a mechanism measures, and the samplers of the noise that it adds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.domain import Domain
from dualmech.workloads.marginal import Axes, cells_of

LARGEST_TABLE = 2**27  # largest number of cells of a table that is counted (1 GiB)

Tables = Mapping[Axes, Array]
"""Marginal tables by the positions of their attributes, each with one axis per attribute."""


class IndexedTables(dict[Axes, Array]):
    """Tables with checked keys that are asked for many marginals: by attribute, which of them have it."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._holders: dict[int, list[Axes]] = {}
        for held in self:
            for axis in held:
                self._holders.setdefault(axis, []).append(held)

    def covering(self, axes: Axes) -> list[Axes]:
        """Return the tables that have all of some attributes, or the one of just these."""
        if axes in self or not axes:
            return [axes] if axes in self else [*self]
        rarest = min((self._holders.get(axis, []) for axis in axes), key=len)
        return [wider for wider in rarest if set(axes) <= set(wider)]


def marginal_of(domain: Domain, tables: Tables, axes: Axes) -> Array:
    """Return the marginal on a set of attributes from the smallest given table that covers it.

    Raises `InvalidInputError` or `InputTypeError` for no table that covers it, or one of another shape.
    """
    covering = (tables if isinstance(tables, IndexedTables) else IndexedTables(tables)).covering(axes)
    if not covering:
        shown = " x ".join(domain.names[axis] for axis in axes) or "the total"
        raise InvalidInputError(f"tables must cover {shown}, which is measured; none does")
    best = min(covering, key=lambda wider: cells_of(domain, wider))
    table = validate.finite(**{f"tables[{best}]": tables[best]})
    shape = tuple(domain.shape[axis] for axis in best)
    if table.shape != shape:
        raise InvalidInputError(f"tables[{best}] must have shape {shape}, got {table.shape}")
    return np.asarray(table.sum(axis=tuple(i for i, axis in enumerate(best) if axis not in axes)))


def check_tables(**named: object) -> Any:
    """Return tables by the positions of their attributes; what maps nothing, or other keys, is refused."""
    ((name, value),) = named.items()
    if isinstance(value, IndexedTables):
        return value
    tables = validate.mapping("tuples of attribute positions, such as (0, 2), to arrays", **named)
    if not all(isinstance(key, tuple) for key in tables):
        raise InputTypeError(f"{name} must map tuples of attribute positions, such as (0, 2), to arrays")
    for key in tables:
        whole = all(isinstance(axis, int | np.integer) and axis >= 0 for axis in key)
        if not whole or any(one >= two for one, two in itertools.pairwise(key)):
            raise InvalidInputError(
                f"{name} must name the attributes of a table by their positions in rising order, such as (0, 2), got "
                f"{key!r}"
            )
    return value


def maximal_sets(chosen: Iterable[Axes]) -> list[Axes]:
    """Return the sets that no other one contains.

    Examples
    --------
    >>> from dualmech.mechanisms.tables import maximal_sets
    >>> maximal_sets([(), (0,), (1,), (0, 2)])
    [(0, 2), (1,)]
    """
    kept: list[Axes] = []
    holders: dict[int, list[frozenset[int]]] = {}
    ordered = sorted(set(chosen), key=len, reverse=True)
    for _, alike in itertools.groupby(ordered, key=len):  # of as many attributes, none contains another
        sets = [
            axes
            for axes in alike
            if not (any(set(axes) <= other for other in holders.get(axes[0], [])) if axes else kept)
        ]
        kept += sets
        for axes in sets:
            for axis in axes:
                holders.setdefault(axis, []).append(frozenset(axes))
    return kept


class Sampler(Protocol):
    """Independent noise of mean 0 and a given standard deviation, as many draws as an array has entries.

    Of marginal tables `BlockMechanism.measure` adds the draws to whole numbers: n times each count less the counts
    along its line, for every attribute of n values. Everything after that uses the sum alone. So where counts
    are whole, and all numbers below 2^53, the release has the privacy that the sampler's noise gives to integers.
    Discrete Gaussian noise gives them ``½ ‖differences‖² / deviation²`` zCDP (Canonne, Kamath and Steinke, "The
    discrete Gaussian for differential privacy", NeurIPS 2020, section 2), which makes the mechanism's own ``rho``.
    """

    def __call__(self, deviation: float, shape: tuple[int, ...], /) -> Array:
        """Return independent draws of the standard deviation `deviation` in an array of this shape."""


def gaussian(rng: np.random.Generator | int | None = None) -> Sampler:
    """Return the sampler of Gaussian noise in floating point: for study, since its rounding can reveal the data.

    Examples
    --------
    >>> from dualmech.mechanisms.tables import gaussian
    >>> gaussian(0)(2.0, (3,)).round(2)
    array([ 0.25, -0.26,  1.28])
    """
    generator = validate.generator(rng=rng)
    return lambda deviation, shape: np.asarray(deviation * generator.standard_normal(shape))


def draw_noise(sampler: Sampler, deviation: float, shape: tuple[int, ...]) -> Array:
    """Return what a sampler draws, once it has the shape that was asked for and is finite.

    Raises `InvalidInputError` or `InputTypeError` for something that cannot be called; draws of another shape, NaN
    or infinity.
    """
    if not callable(sampler):
        raise InputTypeError(f"sampler must be a function of a deviation and a shape, got {type(sampler).__name__}")
    draws = validate.finite(sampler=sampler(deviation, shape))
    if draws.shape != shape:
        raise InvalidInputError(f"sampler must return draws of shape {shape}, got {draws.shape}")
    return draws
