"""The one place where noise of a release is drawn: OpenDP's exact discrete Gaussian sampler."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from dualmech.errors import BackendError, InvalidInputError
from dualmech.publishing.whole_numbers import MOST_EXPONENT, Exact

Noise: TypeAlias = Callable[[float, int], Exact]
"""Whole-number noise: a parameter σ and a count give that many independent draws."""

LARGEST_DEVIATION = 2.0**MOST_EXPONENT


def discrete_gaussian(deviation: float, count: int) -> Exact:
    """Draw from the discrete Gaussian of parameter σ, probabilities ``∝ exp(-z²/2σ²)``, of variance σ² at most.

    Added to whole numbers it is ``‖difference‖² / 2σ²`` zCDP, exactly (Canonne, Kamath and Steinke, "The discrete
    Gaussian for differential privacy", NeurIPS 2020, Theorem 14). The draws are OpenDP's, on the numbers 0, from the
    operating system's entropy: there is no seed to give. What they are added to is never handed over, so that neither
    the sampler's 64 bits nor its own account of sensitivity matter; and its σ is the very number given.
    Raises `BackendError` where OpenDP, of the extra ``release``, is not installed; `InvalidInputError` for a deviation
    that is not positive, which would publish the data, or above 2^56, where draws could leave 64 bits.
    """
    if not 0 < deviation <= LARGEST_DEVIATION:
        raise InvalidInputError(
            f"noise must have a deviation above 0, of at most {LARGEST_DEVIATION:g} in units of its grid, "
            f"got {deviation:g}"
        )
    if not count:
        return np.zeros(0, dtype=object)
    return np.array(_measurement(deviation, count)([0] * count), dtype=object)


def require_sampler() -> None:
    """Raise `BackendError` where OpenDP is not installed: before any records are read."""
    if importlib.util.find_spec("opendp") is None:
        raise BackendError("a release needs OpenDP, of the extra `release`: pip install 'dualmech[release]'")


@functools.lru_cache(maxsize=64)
def _measurement(deviation: float, count: int) -> Any:
    require_sampler()
    from opendp import prelude as opendp  # which takes a while, and is of an extra

    opendp.enable_features("contrib")
    numbers = opendp.vector_domain(opendp.atom_domain(T="i64"), size=count)
    return opendp.m.make_gaussian(numbers, opendp.l2_distance(T="f64"), scale=deviation)
