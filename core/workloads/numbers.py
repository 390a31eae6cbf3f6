"""Targets and weights of queries: one number for all, one per query or table, or a mapping of names to numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.immutable import freeze
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain

Axes = tuple[int, ...]

MAX_NAMED = 2**20  # queries whose numbers may be given by name


@dataclass(frozen=True, slots=True)
class ByFactor:
    """Targets or weights of the factors of a product workload; the number of a query is the product of its factors'.

    Parameters
    ----------
    numbers
        One argument per factor, in the form that a problem on the factor takes.

    Examples
    --------
    >>> import dualmech as dm
    >>> both = dm.workloads.kron(dm.workloads.prefix(2), dm.workloads.identity(3))
    >>> dm.FitnessForUse(both, dm.ByFactor([1.0, 2.0], 4.0)).targets
    (array([1., 2.]), array([4., 4., 4.]))
    """

    numbers: tuple[Any, ...]

    def __init__(self, *numbers: object) -> None:
        object.__setattr__(self, "numbers", numbers)


def by_table(values: object, name: str, domain: Domain, tables: Sequence[Axes], names: Sequence[str]) -> Array:
    """Return one positive number per table, from one for all, one per table, or a mapping.

    The keys of a mapping are names of tables, sets of attributes, or numbers of ways; a table's name takes precedence
    over its attributes, and these over its ways.
    Raises `InvalidInputError` or `InputTypeError` for numbers that are not positive, a wrong number of them, and tables
    that are not named, are named twice, or are not in the workload.
    """
    values = validate.as_mapping(**{name: values})
    if not isinstance(values, Mapping):
        return validate.per_item(len(tables), **{name: values})
    keys = {*names, *tables, *(len(axes) for axes in tables)}
    by_key: dict[Any, float] = {}
    for key, value in values.items():
        resolved = _key(key, name, domain, keys)
        if resolved not in keys:
            label = f"{key}-way" if isinstance(resolved, int) else repr(key)
            raise InvalidInputError(f"{name} must name tables of the workload, got {label}")
        if resolved in by_key:
            raise InvalidInputError(f"{name} must name each table once, {key!r} is double")
        by_key[resolved] = validate.positive_number(**{f"{name}[{key!r}]": value})
    numbers = [
        by_key.get(label, by_key.get(axes, by_key.get(len(axes)))) for label, axes in zip(names, tables, strict=True)
    ]
    for label, value in zip(names, numbers, strict=True):
        if value is None:
            raise InvalidInputError(
                f"{name} must name every table, by its name, its attributes or its ways; {label!r} is not"
            )
    return freeze(np.array(numbers, dtype=np.float64))


def by_query(workload: Workload, values: object, name: str, positive: bool = True) -> Array:
    """Return one number per query, from one for all, one per query, or a mapping of names of queries or groups.

    A query's name takes precedence over its group's.
    """
    count = workload.shape[0]
    if isinstance(values, Mapping):
        values = _of_each_query(workload, values, name, positive)
    if positive:
        checked = validate.per_item(count, **{name: values})
    else:
        checked = validate.finite(**{name: values})
        if checked.ndim == 0:
            checked = freeze(np.full(count, float(checked)))
        if checked.shape != (count,):
            raise InvalidInputError(f"{name} must be one number or {count} numbers, got shape {checked.shape}")
        if np.any(checked < 0):
            first = int(np.flatnonzero(checked < 0)[0])
            raise InvalidInputError(f"{name} must not be negative, got {checked[first]:g} at {name}[{first}]")
    validate.moderate(**{name: checked})
    return checked


def _of_each_query(workload: Workload, values: Mapping[Any, Any], name: str, positive: bool) -> list[Any]:
    groups = {*workload.groups}
    keys = groups.union(workload.names)
    numbers: dict[str, object] = {}
    for key, value in values.items():
        query = key if key in keys else str(key)  # an index of integers names queries by their digits
        if query not in keys:
            raise InvalidInputError(f"{name} must name queries of the workload or groups, got {key!r}")
        if query in numbers:
            raise InvalidInputError(f"{name} must name each query once, {key!r} is double")
        numbers[query] = value
        if not (isinstance(value, float | int) and 0 < value < np.inf):
            check = validate.positive_number if positive else validate.nonnegative_number
            numbers[query] = check(**{f"{name}[{key!r}]": value})
    if not groups.issuperset(numbers):
        duplicate = next((query for query, times in Counter(workload.names).items() if times > 1), None)
        if duplicate is not None:
            raise InvalidInputError(f"{name} by name needs queries with distinct names, {duplicate!r} is double")
    per_query = [
        numbers.get(query, numbers.get(group)) for query, group in zip(workload.names, workload.groups, strict=True)
    ]
    if None in per_query:
        raise InvalidInputError(f"{name} must name every query, {workload.names[per_query.index(None)]!r} is not")
    return per_query


def _key(key: object, name: str, domain: Domain, keys: set[Any]) -> Any:
    if isinstance(key, str) and key in keys:
        return key
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return int(key)
    if isinstance(key, str) and key not in domain.names:
        return key
    if not isinstance(key, Iterable):
        raise InputTypeError(f"{name} must be given by names of tables, attributes or ways, got {key!r}")
    return domain.axes(key)


def by_query_or_table(workload: Workload, values: object, name: str) -> Array:
    """Return one number per query; a mapping may name queries, groups or tables."""
    if isinstance(values, Mapping) and not {*values} <= {*workload.names, *workload.groups}:
        tables = workload.tabular()
        if tables is not None:
            values = tables.per_table(values, name)[workload.table_numbers()]
    return by_query(workload, values, name, positive=name == "targets")


def of_tables(workload: Workload, tables: Any, values: Any, name: str) -> Array | None:
    """Return one number per table, or None if the queries of a table have different numbers."""
    is_sequence = not isinstance(values, Mapping) and not is_number(values)
    if is_sequence:
        checked = validate.numeric(1, **{name: values})
        if len(checked) not in (len(tables.table_names), workload.shape[0]):
            raise InvalidInputError(
                f"{name} must be one number, {len(tables.table_names)} numbers, one per table, or "
                f"{workload.shape[0]}, one per query, got shape {checked.shape}"
            )
        if len(checked) != len(tables.table_names):
            return _even(workload, by_query(workload, checked, name))
    try:
        array = tables.per_table(values, name)
    except InvalidInputError:
        if not isinstance(values, Mapping) or workload.shape[0] > MAX_NAMED:
            raise
        keys = {*values}
        if keys <= {*tables.table_names} or not keys <= {*workload.names, *workload.groups}:
            raise
        return _even(workload, by_query(workload, values, name))
    validate.moderate(**{name: array})
    return array


def _even(workload: Workload, values: Array) -> Array | None:
    """Return one number per table, or None if the queries of a table have different numbers."""
    tables = workload.table_numbers()
    firsts = values[np.unique(tables, return_index=True)[1]]
    return firsts if np.array_equal(firsts[tables], values) else None


def is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) or (isinstance(value, np.ndarray) and value.ndim == 0)
