"""Numbers that come with queries, from the command line: one, a vector, or lines that name tables or queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from dualmech import files
from dualmech.errors import FileFormatError, InvalidInputError
from dualmech.files import csv
from dualmech.files.csv import Named, read_named
from dualmech.geometry.choice import tabular
from dualmech.validate import Array
from dualmech.workloads import census
from dualmech.workloads.base import Workload
from dualmech.workloads.unions import UnionWorkload

Numbers: TypeAlias = float | Array | dict[Any, float]

VECTORS = (".csv", ".npy", ".npz")  # endings of files with one number an item

Rows: TypeAlias = list[Named]


def read_numbers(text: str, name: str, workload: Workload) -> Numbers:
    """Return one number, the vector in a file, or the mapping of a CSV file whose lines are ``name,number``.

    A table is named as in reports. Marginals may have their attributes in any order, ``a1 x a0``, or stand for all of
    their ways, ``2`` or ``2-way``; in a list of the census, ``P12`` stands for all parts of that table and of its
    iterations that are not named themselves. Of other workloads queries are named, or their groups. The header may be
    left out.
    Raises `FileFormatError` for a file that cannot be read, or a line of it that names nothing, repeats a name, or
    holds no number.
    """
    try:
        return float(text)
    except ValueError:
        pass
    suffix = Path(text).suffix.lower()
    if suffix not in VECTORS and not Path(text).is_file():
        raise InvalidInputError(
            f"--{name} takes one number, with a full stop, or a file that ends in {', '.join(VECTORS[:-1])} or "
            f"{VECTORS[-1]}, with a number a line or lines of name,number; got {text!r}"
        )
    if suffix == ".csv":
        with files.errors_naming(text):
            rows = read_named(text)
        if rows is not None:
            return _by_name(workload, text, rows)
    return files.read_vector(text, name)


def read_caps(given: Sequence[str], workload: Workload) -> dict[Any, float]:
    """Return limits by name, as `read_numbers` does, from texts ``NAME=NUMBER`` and files of lines.

    Raises `InvalidInputError` for a text that is neither, a name that is unknown or comes twice.
    """
    found: dict[Any, float] = {}
    for text in given:
        label, _, amount = text.rpartition("=")
        number = csv.number(amount) if label else None
        read: Numbers | None = None
        if number is not None:
            read = _by_name(workload, "--cap", [(0, label.strip(), number)])
        elif Path(text).suffix.lower() == ".csv":
            read = read_numbers(text, "cap", workload)
        if not isinstance(read, dict):
            raise InvalidInputError(
                f"--cap takes NAME=NUMBER, or a .csv file of lines of name,number, got {text!r}"
            )
        if twice := found.keys() & read.keys():
            raise InvalidInputError(
                f"--cap must name each table or query once, {min(map(str, twice))!r} is double"
            )
        found |= read
    return found


def labels(workload: Workload) -> list[str] | None:
    """Return what tables are called in reports, None of a workload without tables."""
    found = getattr(workload, "table_names", None)
    return None if found is None else [*found]


def _by_name(workload: Workload, path: str, rows: Rows) -> dict[Any, float]:
    names = labels(workload)
    if names is None:
        return _by_query(workload, path, rows)
    listed = isinstance(workload, UnionWorkload)  # as the census publishes tables; marginals have no parts
    published = {name: (name, *(census.published(name) if listed else ())) for name in names}
    orders = {tuple(sorted(name.split(" x "))): name for name in names}
    allowed = {*names, *(each for own in published.values() for each in own)}

    def known_as(label: str) -> str | None:
        found = orders.get(tuple(sorted(label.split(" x "))), label)
        if found in allowed:
            return found
        ways = found.removesuffix("-way")  # as reports sum up many tables
        return ways if ways.isdecimal() else None

    demand = f"name a table such as {names[0]!r}, or its ways,"
    given = _numbers(path, rows, demand, known_as)
    ways = {int(label): number for label, number in given.items() if label.isdecimal()}
    own = {name: [given[each] for each in each_of if each in given] for name, each_of in published.items()}
    return ways | {name: numbers[0] for name, numbers in own.items() if numbers}


def _by_query(workload: Workload, path: str, rows: Rows) -> dict[Any, float]:
    """Return numbers by names of queries, of groups, or of the tables that a workload is reported by."""
    try:
        tables = tabular(workload).table_names
    except InvalidInputError:
        tables = ()
    known: set[str] = set()

    def known_as(label: str) -> str | None:
        if label not in tables and not known:  # queries may be too many to name, where a table says it all
            known.update(workload.names, workload.groups)
        return label if label in tables or label in known else None

    such = f"a table such as {tables[0]!r}, a query," if tables else f"a query such as {workload.names[0]!r},"
    return _numbers(path, rows, f"name {such} or a group,", known_as)


def _numbers(path: str, rows: Rows, demand: str, known: Callable[[str], str | None]) -> dict[Any, float]:
    """Return the number of each line by what `known` makes of its label, None being what it does not know."""
    found: dict[Any, float] = {}
    for line, label, amount in rows:
        place = f"{path}: line {line}" if line else path  # an option has no lines
        if (name := known(label)) is None:
            raise FileFormatError(f"{place} must {demand} got {label!r}")
        if name in found:
            raise FileFormatError(f"{place} names {name!r} a second time")
        found[name] = amount
    return found
