"""Dual weights of fitness for use and total variance, and their checks."""

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
"""Dual weights on neighbours or queries: an array, or a tuple of arrays; see `FitnessDual`."""


@dataclass(frozen=True, slots=True, eq=False)
class FitnessDual:
    """Non-negative weights that prove a lower bound: λ on neighbours and μ on queries.

    Weights of any scale prove a bound; solvers return them with ``Σ λ_i = 1`` and ``Σ μ_j c_j = 1``. On a dense
    geometry they are arrays (s,) and (m,), on blocks arrays with one number per orbit, on a product tuples with one
    array per factor. For split noise λ has one array per attribute, and μ is a `SplitWeights`.
    """

    neighbour_weights: Weights
    query_weights: Weights

    def __iter__(self) -> Iterator[Weights]:
        return iter((self.neighbour_weights, self.query_weights))


@dataclass(frozen=True, slots=True, eq=False)
class VarianceDual:
    """Non-negative weights that prove a lower bound: λ on neighbours, in the form of `FitnessDual`.

    Weights of any scale prove a bound; solvers return them with ``Σ λ_i = 1``.
    """

    neighbour_weights: Weights


ON_NEIGHBOURS = "dual weights on neighbours", "pair of neighbours"
ON_QUERIES = "dual weights on queries", "query"

NEGATIVE_TOL = 1e-12
"""Negative dual weights of at most this size, relative to the largest, are rounding errors and count as 0."""


def given_weights(dual: Any, queries: bool) -> tuple[Weights, Weights]:
    """Return the weights on neighbours and, if `queries`, on queries of a dual; refuse one of another form."""
    if not queries:
        dual = dual[0] if isinstance(dual, tuple) and len(dual) == 1 else dual
        return getattr(dual, "neighbour_weights", dual), None
    try:
        neighbour_weights, query_weights = dual
    except (TypeError, ValueError) as error:
        raise InputTypeError(
            f"dual must be a FitnessDual of dualmech or a pair of its weights, got {type(dual).__name__}"
        ) from error
    return neighbour_weights, query_weights


def read_weights(count: int, values: object, name: str, item: str) -> Array:
    """Return dual weights (count,), with negative entries of rounding size set to 0 and other entries unchecked.

    Any non-negative weights prove a bound, so that this change is sound. Refuse another number of weights.
    """
    checked = validate.numeric(1, **{name: values})
    if len(checked) != count:
        raise InvalidInputError(f"{name} must be {count}, one per {item}, got {len(checked)}")
    rounding = (checked < 0) & (checked > -NEGATIVE_TOL * np.abs(checked).max())
    return freeze(np.where(rounding, 0.0, checked)) if rounding.any() else checked


def matrix_weights(dual: Any, shape: tuple[int, ...], item: str, queries: int | None) -> tuple[Array, Array]:
    """Return weights on neighbours that are matrices, one per `item`, and weights on `queries` queries."""
    first, last = given_weights(dual, queries is not None)
    checked = validate.numeric(3, **{ON_NEIGHBOURS[0]: first})
    if checked.shape != shape:
        raise InvalidInputError(f"{ON_NEIGHBOURS[0]} must have shape {shape}, a matrix {item}, got {checked.shape}")
    return checked, np.zeros(0) if queries is None else read_weights(queries, last, *ON_QUERIES)


def valid_weights(weights: Array) -> bool:
    """Return whether weights are finite, non-negative, and not all zero."""
    return bool(np.all(np.isfinite(weights)) and np.all(weights >= 0) and np.any(weights))


def shares(amounts: Array) -> Array:
    """Return amounts divided by their sum; zeros if the sum is 0."""
    total = amounts.sum()
    return np.asarray(amounts / total) if total > 0 else np.zeros_like(amounts)
