"""Objects as the arrays of an ``.npz`` file: their parts by name, the kind of each, repeated ones stored once."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dualmech import files, linalg
from dualmech.errors import DualmechError, InputTypeError, InvalidInputError
from dualmech.files.archives import Arrays, FilePath

Given: TypeAlias = Mapping[str, npt.NDArray[Any]]

ABSENT = -1  # index that marks an absent item among those of a tuple


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object in a file: its parts by name, and how it is made of them."""

    parts: Callable[[Any], Mapping[str, object]]
    made: Callable[..., Any]


KINDS: dict[str, Kind] = {}
"""The kinds of objects that are ever made of a file, by name; `dualmech.storage.store` lists them."""

PROBLEMS: dict[str, Any] = {}
"""The problems whose solutions can be written, by name; `dualmech.storage.store` lists them."""


def known_problems() -> dict[str, Any]:
    """Return the problems whose solutions can be written; `dualmech.storage.store` enters them, and all kinds."""
    importlib.import_module("dualmech.storage.store")
    return PROBLEMS


def pack_answer(problem: Any, primal: Any, dual: Any) -> Arrays:
    arrays: Arrays = {"problem": np.array(type(problem).__name__)}
    for name, part in (problem.statement() | {"primal": problem.stored(primal)}).items():
        arrays |= pack(name, part)
    return arrays | pack("dual", dual)


MECHANISM, MECHANISM_VERSION = "dualmech.mechanism", 1


def save_mechanism(mechanism: object, path: FilePath) -> None:
    """Write a mechanism of any kind to an ``.npz`` file, whole or not at all; `InputTypeError` for what has no file."""
    known_problems()  # which also enters what a mechanism is made of
    if (kind := type(mechanism).__name__) not in KINDS:
        raise InputTypeError(f"a {kind} has no file: save the mechanisms that it is of")
    files.write_npz(path, MECHANISM, MECHANISM_VERSION, **pack("mechanism", mechanism))


def parts_of(*names: str) -> Callable[[Any], Mapping[str, object]]:
    return lambda value: {name: getattr(value, name) for name in names}


def of_fields(kind: Any) -> Kind:
    return Kind(parts_of(*(each.name for each in fields(kind))), kind)


def pack(key: str, value: object) -> Arrays:
    """Return a value under a key: an array, a number, a text, a tuple of values, or an object of a known kind."""
    if value is None:
        return {}
    if isinstance(value, tuple):
        return _pack_items(key, value)
    kind = KINDS.get(type(value).__name__)
    if kind is None:
        return {key: files.as_text_array(key, [value])[0] if isinstance(value, str) else linalg.to_dense(value)}
    arrays: Arrays = {f"{key}.kind": np.array(type(value).__name__)}
    for name, part in kind.parts(value).items():
        arrays |= pack(f"{key}.{name}", part)
    return arrays


def unpack(given: Given, key: str) -> Any:
    """Return the value that `pack` stored, None where there is nothing under the key.

    Raises `InvalidInputError` for an unknown kind, and whatever is wrong with an object, by its key.
    """
    if key in given:
        array = given[key]
        if f"{key}.tuple" in given:
            return _unpack_items(given, key)
        return array.item() if array.ndim == 0 else array
    name = str(given.get(f"{key}.kind", ""))
    if not name:
        return None
    if name not in KINDS:
        raise InvalidInputError(f"{key}.kind must be one of {', '.join(KINDS)}, got {name!r}")
    prefix = f"{key}."
    names = {each.removeprefix(prefix).partition(".")[0] for each in given if each.startswith(prefix)}
    own = {each for each in names - {"kind"} if not _is_item(each)}
    made = KINDS[name].made
    asked = inspect.signature(made).parameters.values()
    own |= {each.name for each in asked if each.default is each.empty and each.kind is not each.VAR_KEYWORD}
    parts = {each: required_value(unpack(given, prefix + each), prefix + each) for each in sorted(own)}
    try:
        return made(**parts)
    except (DualmechError, ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise InvalidInputError(f"{key}: {error}") from error


def _is_item(name: str) -> bool:
    """Whether a part belongs to a tuple of the same key: its numbered items."""
    return name.rpartition("#")[2].isdigit()


def _pack_items(key: str, items: tuple[Any, ...]) -> Arrays:
    """Return the arrays of a tuple: each different item once, and under `key` the number of every item."""
    kept = {id(item): item for item in items if item is not None}
    order = {identity: number for number, identity in enumerate(kept)}
    arrays: Arrays = {
        key: np.array([order.get(id(item), ABSENT) for item in items], dtype=np.int64),
        f"{key}.tuple": np.array(len(items)),
    }
    for identity, item in kept.items():
        arrays |= pack(f"{key}#{order[identity]}", item)
    return arrays


def _unpack_items(given: Given, key: str) -> tuple[Any, ...]:
    """Return the items that `_pack_items` stored; repeated ones are the same object."""
    numbers = given[key]
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or np.any(numbers < ABSENT):
        raise InvalidInputError(f"{key} must be a list of whole numbers from {ABSENT}")
    if not np.array_equal(given[f"{key}.tuple"], len(numbers)):
        raise InvalidInputError(f"{key}.tuple must be their number, {len(numbers)}")
    made: dict[int, Any] = {ABSENT: None}
    for number in np.unique(numbers).tolist():
        if number != ABSENT:
            made[number] = required_value(unpack(given, f"{key}#{number}"), f"{key}#{number}")
    return tuple(made[number] for number in numbers.tolist())


def required_array(given: Given, key: str) -> npt.NDArray[np.generic]:
    if key not in given:
        raise InvalidInputError(f"needs the array {key!r}, has {', '.join(sorted(given)) or 'none'}")
    return given[key]


def required_value(value: object, key: str) -> Any:
    if value is None:
        raise InvalidInputError(f"needs {key!r}")
    return value


def required_tuple(name: str, given: object, count: int) -> tuple[Any, ...]:
    """Return a tuple of the right length; refuse any other."""
    if not isinstance(given, tuple) or len(given) != count:
        found = len(given) if isinstance(given, tuple) else type(given).__name__
        raise InvalidInputError(f"{name} must be {count} items, got {found}")
    return given
