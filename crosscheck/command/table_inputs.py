"""Workloads that the command line takes table by table: which these are, and numbers for their tables."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from dualmech import files
from dualmech.errors import FileFormatError
from dualmech.validate import Array
from dualmech.workloads import census
from dualmech.workloads import names as naming
from dualmech.workloads.circular import CircularWorkload
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.unions import UnionWorkload, union

LARGE = 2**12
"""Cells above which marginal tables are solved by their residual subspaces, and reported by table, not by query."""

MARGINALS = ("marginals", "random_marginals")

CIRCLES = ("affine", "circular_ranges", "differences")

CENSUS = ("census_redistricting", "census_tables", "sex_by_age")

Tables: TypeAlias = MarginalWorkload | UnionWorkload

PerTable: TypeAlias = float | Array | dict[Any, float]


def tables_of(text: str) -> Tables | None:
    """Return the tables that a name stands for, None where it is solved query by query.

    They are marginals of more than `LARGE` cells, the lists of the census, and queries on a circle, as one table.

    Examples
    --------
    >>> from dualmech.crosscheck.table_inputs import tables_of
    >>> tables_of("marginals:10x10:1,2") is None, tables_of("marginals:10x10x10x10x10:1")
    (True, MarginalWorkload(5 tables, 50 queries x 100000 cells))
    >>> tables_of("circular_ranges:24")
    UnionWorkload(1 tables, 553 queries x 24 cells)
    """
    name = text.strip().partition(":")[0]
    if name not in MARGINALS + CIRCLES + CENSUS:
        return None
    workload = naming.named(text)
    if isinstance(workload, CircularWorkload):
        return union({"value": workload.shape[1]}, {name: {"value": workload}})
    if isinstance(workload, UnionWorkload):
        return workload
    return workload if isinstance(workload, MarginalWorkload) and workload.shape[1] > LARGE else None


def read_per_table(text: str, name: str, workload: Tables) -> PerTable:
    """Return one number, the vector in a file, or the mapping of a CSV file whose lines are ``table,number``.

    A table is named as in reports. Marginals may have their attributes in any order, ``a1 x a0``, or stand for all of
    their ways, ``2``; in a list of the census, ``P12`` stands for all parts of that table and of its iterations that
    are not named themselves. The header may be left out.

    Raises
    ------
    FileFormatError
        A file that cannot be read, or a line of it that names no table, repeats one, or holds no number.
    """
    try:
        return float(text)
    except ValueError:
        pass
    if Path(text).suffix.lower() == ".csv":
        try:
            with files.reading(text), open(text, encoding="utf-8-sig", newline="") as stream:
                rows = [(number, row) for number, row in enumerate(csv.reader(stream), start=1) if row]
        except (UnicodeDecodeError, csv.Error) as error:
            raise FileFormatError(f"{text}: cannot be read as text: {error}") from error
        if rows and len(rows[0][1]) > 1:
            if isinstance(workload, MarginalWorkload):
                return _of_marginals(workload, text, rows)
            return _of_union(workload, text, rows)
    return files.read_vector(text, name)


def labels(workload: Tables) -> list[str]:
    """Return what the tables are called in reports."""
    if isinstance(workload, UnionWorkload):
        return [*workload.table_names]
    return [" x ".join(names) or "total" for names in workload.sets]


Rows: TypeAlias = list[tuple[int, list[str]]]


def _of_marginals(workload: MarginalWorkload, path: str, rows: Rows) -> dict[Any, float]:
    known = dict(zip(labels(workload), workload.sets, strict=True))
    orders = {tuple(sorted(names)): label for label, names in known.items()}

    def settled(label: str) -> str | None:
        found = orders.get(tuple(sorted(label.split(" x "))), label)
        return found if found in known or found.isdecimal() else None

    given = _numbers(path, rows, f"name a table such as {next(iter(known))!r}, or its ways,", settled)
    return {known[label] if label in known else int(label): number for label, number in given.items()}


def _of_union(workload: UnionWorkload, path: str, rows: Rows) -> dict[Any, float]:
    known = {name: (name, *census.published(name)) for name in workload.table_names}
    allowed = {each for names in known.values() for each in names}
    given = _numbers(
        path,
        rows,
        f"name a table such as {workload.table_names[0]!r},",
        lambda label: label if label in allowed else None,
    )
    own = {name: [given[each] for each in names if each in given] for name, names in known.items()}
    return {name: numbers[0] for name, numbers in own.items() if numbers}


def _numbers(path: str, rows: Rows, demand: str, settled: Callable[[str], str | None]) -> dict[str, float]:
    """Return the number of each line by what `settled` makes of its label, None being what it does not know."""
    found: dict[str, float] = {}
    for line, row in rows:
        try:
            label, value = (field.strip() for field in row)
            amount = float(value)
        except ValueError:
            if line == rows[0][0] and len(row) == 2:
                continue  # the header
            raise FileFormatError(
                f"{path}: line {line} must be a table and a number, got {','.join(row)!r}"
            ) from None
        if (name := settled(label)) is None:
            raise FileFormatError(f"{path}: line {line} must {demand} got {label!r}")
        if name in found:
            raise FileFormatError(f"{path}: line {line} names {name!r} a second time")
        found[name] = amount
    return found
