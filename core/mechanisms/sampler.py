"""Where noise is drawn: the one kind of function that hands random numbers to measurements of tables."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.validate import Array


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
    >>> from dualmech.mechanisms.sampler import gaussian
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
        raise InputTypeError(
            f"sampler must be a function of a deviation and a shape, got {type(sampler).__name__}"
        )
    draws = validate.finite(sampler=sampler(deviation, shape))
    if draws.shape != shape:
        raise InvalidInputError(f"sampler must return draws of shape {shape}, got {draws.shape}")
    return draws
