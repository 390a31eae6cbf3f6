"""What was judged stays what it was: arrays that nobody can write to, however deep they lie."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp

T = TypeVar("T")


def set_parts(made: object, /, **parts: object) -> None:
    for name, part in parts.items():
        object.__setattr__(made, name, part)


def freeze(value: T) -> T:
    """Return the same value, all arrays in it marked read-only; for what nobody else holds."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif sp.issparse(value):
        for name in ("data", "indices", "indptr", "coords"):
            freeze(getattr(value, name, None))
    elif isinstance(value, dict):
        freeze(tuple(value.values()))
    elif isinstance(value, tuple):
        for each in value:
            freeze(each)
    elif dataclasses.is_dataclass(value) and not hasattr(value, "has_matrix"):  # a workload's may be too large
        for field in dataclasses.fields(value):
            freeze(getattr(value, field.name, None))
    return value


def frozen_copy(value: object) -> Any:
    """Return the value with copies of all arrays in it, marked read-only, but for those that nobody can write to.

    What it holds twice, the copy holds twice.
    """
    return _copied(value, {})


def _copied(value: object, known: dict[int, object]) -> Any:
    if id(value) in known:
        return known[id(value)]
    found = value
    if isinstance(value, np.ndarray):
        own = value.flags.owndata and not value.flags.writeable
        found = value if own else freeze(value.copy(order="K"))
    elif isinstance(value, tuple):
        found = tuple(_copied(each, known) for each in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = copy.copy(value)  # not made anew: whatever was given for a point may be made in another way
        for name in (each.name for each in dataclasses.fields(value)):
            if not isinstance(getattr(type(value), name, None), property):
                object.__setattr__(found, name, _copied(getattr(value, name), known))
    known[id(value)] = found
    return found
