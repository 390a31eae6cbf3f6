"""Dual weights of fitness for use and total variance, and how a judge reads weights that it is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.immutable import freeze
from dualmech.validate import Array

Weights: TypeAlias = Any
"""Dual weights of one side: an array; of a product a tuple of them, where noise is split as `FitnessDual` says."""


@dataclass(frozen=True, slots=True, eq=False)
class FitnessDual:
    """Weights that prove a lower bound: λ on neighbours and μ on queries, none negative.

    Any such weights prove a bound, whatever their scale; solvers return them with ``Σ λ_i = 1`` and
    ``Σ μ_j c_j = 1``. On a dense geometry they are arrays (s,) and (m,), on blocks one number an orbit, on a product
    a tuple of such arrays, one per factor; where noise is split λ is one array per attribute, μ a `SplitWeights`.
    """

    neighbour_weights: Weights
    query_weights: Weights

    def __iter__(self) -> Iterator[Weights]:
        return iter((self.neighbour_weights, self.query_weights))


@dataclass(frozen=True, slots=True, eq=False)
class VarianceDual:
    """Weights that prove a lower bound: λ on neighbours, none negative, in the form of `FitnessDual`.

    Any such weights prove a bound, whatever their scale; solvers return them with ``Σ λ_i = 1``.
    """

    neighbour_weights: Weights


ON_NEIGHBOURS = "dual weights on neighbours", "pair of neighbours"
ON_QUERIES = "dual weights on queries", "query"

DUST = 1e-12
"""Negative dual weights of up to this share of the largest are rounding."""


def given_weights(dual: Any, queries: bool) -> tuple[Weights, Weights]:
    """Return what was given as weights on neighbours and, if asked for, on queries; anything but a pair is refused."""
    if not queries:
        dual = dual[0] if isinstance(dual, tuple) and len(dual) == 1 else dual
        return getattr(dual, "neighbour_weights", dual), None
    try:
        neighbours, last = dual
    except (TypeError, ValueError) as error:
        got = type(dual).__name__
        raise InputTypeError(
            f"dual must be a FitnessDual of dualmech or a pair of weights as its, got {got}"
        ) from error
    return neighbours, last


def read_weights(count: int, values: object, name: str, item: str) -> Array:
    """Return dual weights (count,), their entries unseen but for negative ones of rounding size, which count as 0.

    Any weights of which none is negative prove a bound, so that is sound. Another number of them is refused.
    """
    checked = validate.numeric(1, **{name: values})
    if len(checked) != count:
        raise InvalidInputError(f"{name} must be {count}, one per {item}, got {len(checked)}")
    rounding = (checked < 0) & (checked > -DUST * np.abs(checked).max())
    return freeze(np.where(rounding, 0.0, checked)) if rounding.any() else checked


def matrix_weights(dual: Any, shape: tuple[int, ...], of: str, queries: int | None) -> tuple[Array, Array]:
    """Return weights on neighbours that are symmetric matrices of a shape, one `of` each, and on so many queries."""
    first, last = given_weights(dual, queries is not None)
    checked = validate.numeric(3, **{ON_NEIGHBOURS[0]: first})
    if checked.shape != shape:
        raise InvalidInputError(f"{ON_NEIGHBOURS[0]} must have shape {shape}, a matrix {of}, got {checked.shape}")
    return checked, np.zeros(0) if queries is None else read_weights(queries, last, *ON_QUERIES)


def valid_weights(weights: Array) -> bool:
    """Whether weights prove anything: finite, none negative, not all zero."""
    return bool(np.all(np.isfinite(weights)) and np.all(weights >= 0) and np.any(weights))


def shares(bill: Array) -> Array:
    """Return numbers over their sum; all 0 where that is."""
    total = bill.sum()
    return np.asarray(bill / total) if total > 0 else np.zeros_like(bill)
