"""Objects written as the arrays of an ``.npz`` file: parts by name, the class of each, repeated ones stored once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import scipy.sparse as sp

from dualmech import files
from dualmech.errors import InputTypeError
from dualmech.files.archives import FilePath
from dualmech.files.formats import workload_parts
from dualmech.workloads.arrays import Arrays
from dualmech.workloads.base import Workload
from dualmech.workloads.streams import SelectedRows

ABSENT = -1  # index that marks an absent item of a tuple


SOLUTION, SOLUTION_VERSION = "dualmech.solution", 1


def pack_solution(solution: Any) -> dict[str, Any]:
    """Return the arrays of a solution's file by name; its certificate is not among them, and computed when it is read.

    Raises `InputTypeError` for a problem that has no file schema.
    """
    if "arguments" not in vars(type(solution.problem)):
        raise InputTypeError(
            f"problem must declare its own `arguments` to have a file, got a {type(solution.problem).__name__}"
        )
    arrays = pack_answer(solution.problem, solution.primal, solution.dual)
    if solution.metadata:  # the terms of a plan, which are read back as such
        arrays["asked.kind"] = np.array("PlanTerms")
        for name, part in solution.metadata.items():
            arrays |= pack(f"asked.{name}", part)
    facts = {name: getattr(solution, name) for name in ("tol", "message", "iterations", "seconds", "solver")}
    return {**arrays, "status": solution.status.name, **facts}


def pack_answer(problem: Any, primal: Any, dual: Any) -> Arrays:
    arrays: Arrays = {"problem": np.array(type(problem).__name__)}
    for name, part in (problem.argument_values() | {"primal": problem.stored(primal)}).items():
        arrays |= pack(name, part)
    return arrays | pack("dual", problem.stored_dual(dual))


MECHANISM, MECHANISM_VERSION = "dualmech.mechanism", 1


def save_mechanism(mechanism: object, path: FilePath) -> None:
    """Write a mechanism of any kind to an ``.npz`` file, whole or not at all; `InputTypeError` for what has no file."""
    if "file_parts" not in vars(type(mechanism)):
        raise InputTypeError(f"a {type(mechanism).__name__} has no file: save the mechanisms that it is of")
    files.write_npz(path, MECHANISM, MECHANISM_VERSION, **pack("mechanism", mechanism))


def pack(key: str, value: Any) -> Arrays:
    """Return a value under a key: an array, a number, a text, a tuple of values, or an object of ours by its parts."""
    if value is None:
        return {}
    if isinstance(value, tuple):
        return _pack_items(key, value)
    if isinstance(value, SelectedRows):
        value = value.written()
    parts = _parts(value)
    if parts is None:
        array = value.toarray() if sp.issparse(value) else np.asarray(value)
        return {key: files.as_text_array(key, [value])[0] if isinstance(value, str) else array}
    arrays: Arrays = {f"{key}.kind": np.array(type(value).__name__)}
    for name, part in parts.items():
        arrays |= pack(f"{key}.{name}", part)
    return arrays


def _parts(value: Any) -> Mapping[str, object] | None:
    """Return what an object says of itself, or the fields of a record; None for what is no object of ours.

    A class speaks for itself alone: one that is derived from it would be read back as what it is not.
    """
    attributes = vars(type(value))
    if type(value) is Workload:
        return workload_parts(value)
    if "file_parts" in attributes:
        return value.file_parts()
    if "__dataclass_fields__" in attributes:
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


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
