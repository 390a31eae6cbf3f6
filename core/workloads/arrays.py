"""Texts, domains and sets of attributes as arrays for files (``docs/appendix/schemas.md``)."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech.errors import InvalidInputError
from dualmech.workloads.domain import Axes, Domain

Arrays = dict[str, npt.NDArray[Any]]

MAX_CHARACTERS = 3 * 2**28  # of texts in one array: 3 GiB, the limit of a compressed file

DOMAIN_KEYS = ("domain_names", "domain_sizes", "set_axes", "set_sizes")

DOMAIN_SCHEMA = "domain_schema"  # key of a schema, which names the values of attributes

SCHEMA_READER = "dualmech.publishing.schema:Schema.of_json"  # loaded for a file that has a schema


def as_text_array(argument: str, labels: Sequence[str]) -> npt.NDArray[np.str_]:
    """Return texts as an array; refuse texts that an array would change."""
    for label in labels:
        # NumPy pads texts with NUL characters and strips them.
        if label.endswith("\0"):
            raise InvalidInputError(f"{argument} must not end in a NUL character, got {label!r}")
    if len(labels) * max(map(len, labels), default=0) > MAX_CHARACTERS:
        # Each text takes the space of the longest.
        raise InvalidInputError(f"{argument} must be shorter or fewer to be written")
    return np.array(labels, dtype=np.str_)


def domain_arrays(domain: Domain) -> Arrays:
    arrays: Arrays = {
        "domain_names": as_text_array("domain names", domain.names),
        "domain_sizes": np.array(domain.shape, dtype=np.int64),
    }
    if domain.schema_text is not None:
        arrays[DOMAIN_SCHEMA] = as_text_array("schema", [domain.schema_text])
    return arrays


def domain_from_arrays(arrays: Mapping[str, npt.NDArray[np.generic]]) -> Domain | None:
    """Return the domain of `domain_arrays`, None if there are none; refuse one array without the other."""
    columns = [arrays[key] for key in DOMAIN_KEYS[:2] if key in arrays]
    if not columns:
        return None
    if len(columns) == 1 or any(column.ndim != 1 for column in columns) or len(columns[0]) != len(columns[1]):
        raise InvalidInputError(
            "a domain needs both workload_domain_names and workload_domain_sizes, one of each per attribute"
        )
    domain = Domain(zip(*(column.tolist() for column in columns), strict=True))
    if DOMAIN_SCHEMA not in arrays:
        return domain
    schema: Domain = pkgutil.resolve_name(SCHEMA_READER)(str(np.ravel(arrays[DOMAIN_SCHEMA])[0]))
    if schema.sizes != domain.sizes:
        raise InvalidInputError("domain_schema must have the attributes and sizes of the domain")
    return schema


def sets_to_arrays(domain: Domain, sets: Collection[Axes]) -> Arrays:
    """Return the arrays of a domain and sets of its attributes: concatenated positions, and sizes of the sets."""
    return domain_arrays(domain) | {
        "set_axes": np.array([axis for axes in sets for axis in axes], dtype=np.int64),
        "set_sizes": np.array([len(axes) for axes in sets], dtype=np.int64),
    }


def sets_from_arrays(arrays: Arrays, distinct: bool = True) -> tuple[Domain, list[Axes]]:
    """Return the domain and the sets of `sets_to_arrays`.

    Raises `InvalidInputError` or `InputTypeError` for inconsistent arrays, attributes that the domain does not have,
    and, if `distinct`, for a set that comes twice.
    """
    domain = domain_from_arrays(arrays)
    axes, sizes = arrays["set_axes"], arrays["set_sizes"]
    if domain is None or axes.ndim != 1 or sizes.ndim != 1 or {axes.dtype.kind, sizes.dtype.kind} - {*"iu"}:
        raise InvalidInputError("set_axes and set_sizes must be one-dimensional arrays of integers")
    if np.any(sizes < 0) or int(sizes.sum()) != len(axes):
        raise InvalidInputError(f"set_sizes must be none negative and add up to the {len(axes)} entries of set_axes")
    ends = np.cumsum(sizes)
    sets = [tuple(axes[end - size : end].tolist()) for end, size in zip(ends, sizes, strict=True)]
    count = len(domain.names)
    for positions in sets:
        if list(positions) != sorted(set(positions)) or not all(0 <= axis < count for axis in positions):
            raise InvalidInputError(f"sets must hold increasing positions below {count}, got {positions}")
    if distinct and len(set(sets)) < len(sets):
        raise InvalidInputError("sets must be distinct, got one twice")
    return domain, sets
