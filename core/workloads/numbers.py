"""Numbers that come with queries, targets or weights: one for all, one each, or by the names of tables and queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.immutable import freeze
from dualmech.validate import Array
from dualmech.workloads.base import Workload, counts_from_zero
from dualmech.workloads.domain import Domain

Axes = tuple[int, ...]

MAX_NAMED = 2**20  # largest number of queries among whose names numbers are looked up


def as_mapping(given: Any, name: str) -> Any:
    """Return a pandas Series with names as a mapping, and anything else as it is; a name may come once only.

    A Series whose index only counts from 0, as one that was given no names, is taken by position. So is a DataFrame
    of one column. Lists of different lengths in one another, which are no array, are refused.
    """
    if isinstance(given, list | tuple):
        try:
            np.ndim(given)
        except ValueError:
            raise InvalidInputError(
                f"{name} must be a number or an array of numbers, got lists of different lengths"
            ) from None
    if hasattr(given, "columns") and hasattr(given, "dtypes"):
        if len(given.columns) != 1:
            raise InvalidInputError(f"{name} must be one column of numbers, got {len(given.columns)} columns")
        given = given[given.columns[0]]
    index = getattr(given, "index", None)
    if index is None or callable(index) or not hasattr(given, "to_numpy"):
        return given
    if not hasattr(index, "is_unique") or counts_from_zero(index):
        return given.to_numpy()
    if not index.is_unique:
        raise InvalidInputError(f"{name} must name each item once, {index[index.duplicated()][0]!r} is double")
    # Sets of attributes of different sizes are padded with NaN, which no name equals.
    keys = [tuple(part for part in key if part == part) if isinstance(key, tuple) else key for key in index]
    return dict(zip(keys, given.to_numpy().tolist(), strict=True))


def by_table(given: object, name: str, domain: Domain, tables: Sequence[Axes], names: Sequence[str]) -> Array:
    """Return one positive number a table, from one for all, one each, or a mapping.

    Keys of a mapping are names of tables, sets of attributes, or numbers of ways; a table's own name comes before
    its attributes, and these before its ways.
    Raises `InvalidInputError` or `InputTypeError` for numbers that are not positive, of another count, a table that
    is not named, is named twice, or is not in the workload.
    """
    given = as_mapping(given, name)
    if not isinstance(given, Mapping):
        return validate.per_item(len(tables), **{name: given})
    asked = {*names, *tables, *(len(axes) for axes in tables)}
    known: dict[Any, float] = {}
    for key, value in given.items():
        found = _key(key, name, domain, asked)
        if found not in asked:
            shown = f"{key}-way" if isinstance(found, int) else repr(key)
            raise InvalidInputError(f"{name} must name tables of the workload, got {shown}")
        if found in known:
            raise InvalidInputError(f"{name} must name each table once, {key!r} is double")
        known[found] = validate.positive_number(**{f"{name}[{key!r}]": value})
    chosen = [
        known.get(label, known.get(axes, known.get(len(axes)))) for label, axes in zip(names, tables, strict=True)
    ]
    for label, value in zip(names, chosen, strict=True):
        if value is None:
            raise InvalidInputError(
                f"{name} must name every table, by its name, its attributes or its ways; {label!r} is not"
            )
    return freeze(np.array(chosen, dtype=np.float64))


def by_query(workload: Workload, given: object, name: str, positive: bool = True) -> Array:
    """Return one number per query, from one for all, one each, or a mapping of names of queries or of their groups.

    A query's own name comes before its group's.
    """
    count = workload.shape[0]
    if isinstance(given, Mapping):
        given = _of_each_query(workload, given, name, positive)
    if positive:
        checked = validate.per_item(count, **{name: given})
    else:
        checked = validate.finite(**{name: given})
        if checked.ndim == 0:
            checked = freeze(np.full(count, float(checked)))
        if checked.shape != (count,):
            raise InvalidInputError(f"{name} must be one number or {count} numbers, got shape {checked.shape}")
        if np.any(checked < 0):
            first = int(np.flatnonzero(checked < 0)[0])
            raise InvalidInputError(f"{name} must not be negative, got {checked[first]:g} at {name}[{first}]")
    validate.moderate(**{name: checked})
    return checked


def _of_each_query(workload: Workload, given: Mapping[Any, Any], name: str, positive: bool) -> list[Any]:
    groups = {*workload.groups}
    known = groups.union(workload.names)
    found: dict[str, object] = {}
    for key, value in given.items():
        own = key if key in known else str(key)  # the numbers of an index are names of queries as texts
        if own not in known:
            raise InvalidInputError(f"{name} must name queries of the workload or groups, got {key!r}")
        if own in found:
            raise InvalidInputError(f"{name} must name each query once, {key!r} is double")
        found[own] = value
        if not (isinstance(value, float | int) and 0 < value < np.inf):  # what is plain needs no more of a check
            allowed = validate.positive_number if positive else validate.nonnegative_number
            found[own] = allowed(**{f"{name}[{key!r}]": value})
    if not groups.issuperset(found):
        twice = next((own for own, times in Counter(workload.names).items() if times > 1), None)
        if twice is not None:
            raise InvalidInputError(f"{name} by name needs queries with distinct names, {twice!r} is double")
    chosen = [found.get(own, found.get(group)) for own, group in zip(workload.names, workload.groups, strict=True)]
    if None in chosen:
        raise InvalidInputError(f"{name} must name every query, {workload.names[chosen.index(None)]!r} is not")
    return chosen


def _key(key: object, name: str, domain: Domain, asked: set[Any]) -> Any:
    if isinstance(key, str) and key in asked:
        return key
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return int(key)
    if isinstance(key, str) and key not in domain.names:
        return key
    if not isinstance(key, Iterable):
        raise InputTypeError(f"{name} must be given by names of tables, attributes or ways, got {key!r}")
    return domain.axes(key)


def by_query_or_table(workload: Workload, given: object, name: str) -> Array:
    """Return one number per query, also from a mapping that names more than queries and groups: tables."""
    if isinstance(given, Mapping) and not {*given} <= {*workload.names, *workload.groups}:
        tables = workload.tabular()
        if tables is not None:
            given = tables.per_table(given, name)[workload.table_numbers()]
    return by_query(workload, given, name, positive=name == "targets")


def of_tables(workload: Workload, tables: Any, given: Any, name: str) -> Array | None:
    """Return one number a table, or None where queries of a table have different ones."""
    counted = not isinstance(given, Mapping) and not is_number(given)
    if counted:
        checked = validate.numeric(1, **{name: given})
        if len(checked) not in (len(tables.table_names), workload.shape[0]):
            raise InvalidInputError(
                f"{name} must be one number, {len(tables.table_names)} numbers, one per table, or "
                f"{workload.shape[0]}, one per query, got shape {checked.shape}"
            )
        if len(checked) != len(tables.table_names):
            return _even(workload, by_query(workload, checked, name))
    try:
        found = tables.per_table(given, name)
    except InvalidInputError:
        if not isinstance(given, Mapping) or workload.shape[0] > MAX_NAMED:
            raise
        keys = {*given}
        if keys <= {*tables.table_names} or not keys <= {*workload.names, *workload.groups}:
            raise
        return _even(workload, by_query(workload, given, name))
    validate.moderate(**{name: found})
    return found


def _even(workload: Workload, each: Array) -> Array | None:
    """Return the number of each table, where all its queries have the same."""
    tables = workload.table_numbers()
    firsts = each[np.unique(tables, return_index=True)[1]]
    return firsts if np.array_equal(firsts[tables], each) else None


def is_number(given: object) -> bool:
    return isinstance(given, int | float | np.number) or (isinstance(given, np.ndarray) and given.ndim == 0)
