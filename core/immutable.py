"""Immutable copies of judged data: arrays over read-only memory, at any depth of an object."""

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

IMMUTABLE_TYPES = frozenset({bool, bytes, float, int, str, type(None)})
MAX_COPIED_BYTES = 2**20  # a larger array is frozen as a read-only view instead of a copy


def set_parts(instance: object, /, **parts: object) -> None:
    """Set fields of a frozen dataclass, in its constructor."""
    for name, part in parts.items():
        object.__setattr__(instance, name, part)


def is_frozen(array: np.ndarray[Any, Any]) -> bool:
    """Return whether an array's memory is read-only, so that NumPy refuses to make the array writeable."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return isinstance(owner, bytes) or (isinstance(owner, memoryview) and owner.readonly)


def freeze(value: T) -> T:
    """Return the value with all its arrays frozen, in place where possible: the caller must hold the only reference."""
    if type(value) in IMMUTABLE_TYPES:
        return value
    if isinstance(value, np.ndarray):
        return _frozen(value, value.nbytes <= MAX_COPIED_BYTES)
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

    An object with two references in the value has two references in the copy.
    """
    return _copied(value, {})


def apart(value: T) -> T:
    """Return a copy that shares only frozen arrays with the value, so that changes to the copy do not change it."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        text = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    except (pickle.PicklingError, AttributeError, TypeError):  # the value's class is defined in a function
        return copy.deepcopy(value)
    result: T = pickle.loads(text, buffers=[memoryview(buffer).toreadonly() for buffer in buffers])
    return result


def _frozen(array: Any, copy_data: bool) -> Any:
    if is_frozen(array) or not array.size or array.dtype.hasobject:
        array.flags.writeable = False
        return array
    if 0 in array.strides and array.size > 1:  # a broadcast array, which may have 10⁹ entries
        entries = array[tuple(slice(0, 1) if not stride else slice(None) for stride in array.strides)]
        return np.broadcast_to(_frozen(entries.copy(), copy_data), array.shape)
    if copy_data or not (array.flags.c_contiguous or array.flags.f_contiguous):
        order: Literal["C", "F"] = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        return np.frombuffer(array.tobytes(order=order), dtype=array.dtype).reshape(array.shape, order=order)
    array.flags.writeable = False
    return np.asarray(memoryview(array).toreadonly())


def _copied(value: object, copies: dict[int, object]) -> Any:
    if id(value) in copies:
        return copies[id(value)]
    result = value
    if isinstance(value, np.ndarray):
        has_numbers = value.size and not value.dtype.hasobject
        result = value if is_frozen(value) else _frozen(value if has_numbers else value.copy(), True)
    elif isinstance(value, tuple):
        result = tuple(_copied(item, copies) for item in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        result = copy.copy(value)  # a shallow copy, not a new instance: a user's point may have another constructor
        for name in _fields(value):
            object.__setattr__(result, name, _copied(getattr(value, name), copies))
    copies[id(value)] = result
    return result


def _fields(value: Any) -> list[str]:
    """Return the names of the stored fields of a dataclass, without properties."""
    names = (field.name for field in dataclasses.fields(value))
    return [name for name in names if not isinstance(getattr(type(value), name, None), property)]
