"""What an array over an attribute's values shows of its components, along one axis and without a matrix.

Where values are exchanged, the part in the component of a class is what its entries are less their mean: it stays one
number per value, on no basis. Where they are turned, it is coordinates on the waves of
`AttributeSymmetry.directions`, by fast Fourier transforms. Either way parts have the inner products of what they are
parts of, and have places along the axis: those of a component are `places`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech.geometry.base import Index
from dualmech import validate
from dualmech.geometry.attribute_symmetry import AttributeSymmetry
from dualmech.linalg import EPS
from dualmech.validate import Array
from dualmech.workloads.domain import Domain



class WholeAttribute(AttributeSymmetry):
    """The symmetry of an attribute all of whose values are exchanged; it takes no room, whatever their number."""

    __slots__ = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", np.array([float(len(self.labels))]))


def marginal_symmetries(sizes: Iterable[int]) -> tuple[AttributeSymmetry, ...]:
    """Return the symmetry of attributes that marginal tables alone are asked of."""
    return tuple(
        WholeAttribute(
            np.broadcast_to(np.intp(0), size),
            np.zeros(int(size > 1), dtype=np.intp),
            np.full(int(size > 1), size - 1.0),
            False,
        )
        for size in sizes
    )


def places(symmetry: AttributeSymmetry, component: int) -> Index:
    """Return where along the axis the parts in a component lie: of values of its class, or of its waves."""
    if symmetry.turning:
        return 2 * component + np.arange(int(symmetry.dimensions[component]))
    return np.flatnonzero(symmetry.labels == symmetry.classes[component])


def parts_of(symmetry: AttributeSymmetry, array: Array, axis: int = 0) -> Array:
    """Return the parts in all components: n places along the axis, or n - 1 of waves.

    Examples
    --------
    >>> import numpy as np
    >>> from dualmech.geometry.attribute_symmetry import AttributeSymmetry
    >>> parts_of(AttributeSymmetry.of([], 3), np.array([1.0, 2.0, 6.0]))
    array([-2., -1.,  3.])
    """
    if not symmetry.turning:
        return np.asarray(array - spread_over_values(symmetry, class_sums(symmetry, array, axis), axis))
    size = len(symmetry.labels)
    waves = np.fft.rfft(np.moveaxis(array, axis, -1), axis=-1)[..., 1:]
    pairs = np.stack([waves.real, -waves.imag], axis=-1).reshape(*waves.shape[:-1], -1)
    return np.asarray(np.moveaxis(pairs[..., : size - 1] * _units(symmetry), -1, axis))


def from_parts(symmetry: AttributeSymmetry, parts: Array, axis: int = 0) -> Array:
    """Return the function on the values that has these parts and no constant, the adjoint of `parts_of`."""
    if not symmetry.turning:
        return parts
    size = len(symmetry.labels)
    scaled = np.moveaxis(parts, axis, -1) / _units(symmetry)
    if size % 2 == 0:
        scaled = np.concatenate([scaled, np.zeros((*scaled.shape[:-1], 1))], axis=-1)
    waves = np.concatenate(
        [np.zeros((*scaled.shape[:-1], 1)), scaled[..., 0::2] - 1j * scaled[..., 1::2]], axis=-1
    )
    return np.asarray(np.moveaxis(np.fft.irfft(waves, size, axis=-1), -1, axis))


def class_sums(symmetry: AttributeSymmetry, array: Array, axis: int = 0) -> Array:
    """Return the sum over each class along the axis."""
    size = len(symmetry.labels)
    if len(symmetry.sizes) == 1:
        return np.asarray(array.sum(axis=axis, keepdims=True))
    class_of = sp.csr_array((np.ones(size), symmetry.labels, np.arange(size + 1)))
    moved = np.moveaxis(array, axis, 0)
    sums = class_of.T @ moved.reshape(size, -1)
    return np.moveaxis(sums.reshape(-1, *moved.shape[1:]), 0, axis)


def spread_over_values(symmetry: AttributeSymmetry, sums: Array, axis: int = 0) -> Array:
    """Return class sums spread evenly over the values of their classes."""
    means = np.moveaxis(sums, axis, -1) / symmetry.sizes
    return np.moveaxis(means[..., symmetry.labels], -1, axis)


def of_query(symmetry: AttributeSymmetry, factor: Array) -> tuple[Array, Array]:
    """Return the class means and the parts of a query's factor (n,), rounding set to zero."""
    cut = 4 * len(factor) * EPS * np.abs(factor).max()
    means, parts = class_sums(symmetry, factor) / symmetry.sizes, parts_of(symmetry, factor)
    return np.where(np.abs(means) > cut, means, 0.0), np.where(np.abs(parts) > cut, parts, 0.0)


def inner_products(symmetry: AttributeSymmetry, one: Array, two: Array) -> Array:
    """Return the inner product of two arrays of parts (n,) in every component."""
    return np.array(
        [
            one[where] @ two[where]
            for where in (places(symmetry, each) for each in range(len(symmetry.classes)))
        ]
    )


def unit_noise(symmetry: AttributeSymmetry, component: int, draws: Array, axis: int) -> Array:
    """Return unit noise on a component from independent unit noise in its places."""
    return draws if symmetry.turning else np.asarray(draws - draws.mean(axis=axis, keepdims=True))


def scaled_residual(table: npt.NDArray[Any], axes: int) -> npt.NDArray[Any]:
    """Return n times each entry less the sum along its line, for each of the first axes: whole numbers stay whole."""
    for axis in range(axes):
        table = table.shape[axis] * table - table.sum(axis=axis, keepdims=True)
    return table


def _units(symmetry: AttributeSymmetry) -> Array:
    """Return the norms that make waves orthonormal, one per place."""
    size = len(symmetry.labels)
    units = np.full(size - 1, np.sqrt(2 / size))
    if size % 2 == 0:
        units[-1] = np.sqrt(1 / size)
    return units


def factors_of(
    domain: Domain, query: Mapping[str, npt.ArrayLike], argument: str = "query"
) -> dict[int, Array]:
    """Return the factors of a product query by the positions of their attributes."""
    validate.mapping("attributes to factors", **{argument: query})
    factors = {}
    for name, factor in query.items():
        (axis,) = domain.axes([name])
        factors[axis] = validate.vector(domain.shape[axis], "value", **{f"{argument}[{name!r}]": factor})
    return factors
