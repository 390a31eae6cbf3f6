"""Judged data cannot change: arrays over memory that nobody can write to, at any depth of an object."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Array = npt.NDArray[np.float64]

T = TypeVar("T")

PLAIN = frozenset({bool, bytes, float, int, str, type(None)})  # types of values that cannot change
SMALL = 2**20  # bytes up to which an array is copied to be frozen; a larger array is frozen as a read-only view


def set_parts(made: object, /, **parts: object) -> None:
    for name, part in parts.items():
        object.__setattr__(made, name, part)


def is_frozen(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array stands over memory that only reads, so that NumPy refuses to make it writeable again."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return isinstance(owner, bytes) or (isinstance(owner, memoryview) and owner.readonly)


def freeze(value: T) -> T:
    """Return the same value with all its arrays frozen, for values that nobody else holds; objects change in place."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, np.ndarray):
        return _frozen(value, value.nbytes <= SMALL)
    if isinstance(value, tuple):
        return type(value)(*map(freeze, value)) if hasattr(value, "_fields") else tuple(map(freeze, value))  # type: ignore[return-value]
    if isinstance(value, dict):
        value.update({key: freeze(item) for key, item in value.items()})
    elif sp.issparse(value):
        for name in ("data", "indices", "indptr", "coords"):
            if hasattr(value, name):
                setattr(value, name, freeze(getattr(value, name)))
    elif dataclasses.is_dataclass(value) and not hasattr(value, "has_matrix"):  # a workload's arrays may be too large
        for name in _fields(value):
            object.__setattr__(value, name, freeze(getattr(value, name, None)))
    return value


def frozen_copy(value: object) -> Any:
    """Return the value with frozen copies of all its arrays, except arrays that are frozen already.

    An object that the value holds twice, the copy holds twice.
    """
    return _copied(value, {})


def apart(value: T) -> T:
    """Return a copy that shares only frozen arrays with the value, so that no change to the copy changes the value."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        text = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    except (pickle.PicklingError, AttributeError, TypeError):  # the value's class is defined in a function
        return copy.deepcopy(value)
    copied: T = pickle.loads(text, buffers=[memoryview(buffer).toreadonly() for buffer in buffers])
    return copied


def _frozen(array: Any, small: bool) -> Any:
    if is_frozen(array) or not array.size or array.dtype.hasobject:
        array.flags.writeable = False
        return array
    if 0 in array.strides and array.size > 1:  # numbers that are held once for many places: they may be 10⁹
        held = array[tuple(slice(0, 1) if not stride else slice(None) for stride in array.strides)]
        return np.broadcast_to(_frozen(held.copy(), small), array.shape)
    if small or not (array.flags.c_contiguous or array.flags.f_contiguous):
        order: Literal["C", "F"] = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        return np.frombuffer(array.tobytes(order=order), dtype=array.dtype).reshape(array.shape, order=order)
    array.flags.writeable = False
    return np.asarray(memoryview(array).toreadonly())


def _copied(value: object, known: dict[int, object]) -> Any:
    if id(value) in known:
        return known[id(value)]
    copied = value
    if isinstance(value, np.ndarray):
        plain = value.size and not value.dtype.hasobject
        copied = value if is_frozen(value) else _frozen(value if plain else value.copy(), True)
    elif isinstance(value, tuple):
        copied = tuple(_copied(item, known) for item in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)  # a shallow copy, not a new instance: a user's point may have another constructor
        for name in _fields(value):
            object.__setattr__(copied, name, _copied(getattr(value, name), known))
    known[id(value)] = copied
    return copied


def _fields(value: Any) -> list[str]:
    """Return the names of the fields that a dataclass stores, without its computed ones."""
    names = (field.name for field in dataclasses.fields(value))
    return [name for name in names if not isinstance(getattr(type(value), name, None), property)]
