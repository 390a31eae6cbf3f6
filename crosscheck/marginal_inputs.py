"""Marginal tables of large domains on the command line: which workloads they are, and numbers by table."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualmech import files, naming
from dualmech.errors import FileFormatError
from dualmech.marginals import MarginalWorkload
from dualmech.validate import Array

LARGE = 2**12
"""Cells above which marginal tables are solved by their residual subspaces, and reported by table, not by query."""

BUILT_IN = ("marginals", "random_marginals")

PerTable = float | Array | dict[Any, float]


def large_tables(text: str) -> MarginalWorkload | None:
    """Return the marginal tables that a name stands for, if their domain has more than `LARGE` cells.

    Examples
    --------
    >>> from dualmech.crosscheck.marginal_inputs import large_tables
    >>> large_tables("marginals:10x10:1,2") is None, large_tables("marginals:10x10x10x10x10:1")
    (True, MarginalWorkload(5 tables, 50 queries x 100000 cells))
    """
    if text.strip().partition(":")[0] not in BUILT_IN:
        return None
    workload = naming.named(text)
    return workload if isinstance(workload, MarginalWorkload) and workload.shape[1] > LARGE else None


def read_per_table(text: str, name: str, workload: MarginalWorkload) -> PerTable:
    """Return one number, the vector in a file, or the mapping of a CSV file whose lines are ``table,number``.

    A table is named as in reports, ``a0 x a1``, or stands for all of its ways, ``2``; the header may be left out.

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
        with files.reading(text), open(text, encoding="utf-8-sig", newline="") as stream:
            rows = [(number, row) for number, row in enumerate(csv.reader(stream), start=1) if row]
        if rows and len(rows[0][1]) > 1:
            return _mapping(
                text, rows, {label: axes for label, axes in zip(labels(workload), workload.sets, strict=True)}
            )
    return files.read_vector(text, name)


def labels(workload: MarginalWorkload) -> list[str]:
    """Return what the tables are called in reports."""
    return [" x ".join(names) or "total" for names in workload.sets]


def _mapping(
    path: str, rows: list[tuple[int, list[str]]], known: Mapping[str, tuple[str, ...]]
) -> dict[Any, float]:
    found: dict[Any, float] = {}
    for number, row in rows:
        try:
            label, value = (field.strip() for field in row)
            amount = float(value)
        except ValueError:
            if number == rows[0][0] and len(row) == 2:
                continue  # the header
            raise FileFormatError(
                f"{path}: line {number} must be a table and a number, got {','.join(row)!r}"
            ) from None
        if label not in known and not label.isdecimal():
            raise FileFormatError(
                f"{path}: line {number} must name a table such as {next(iter(known))!r}, or its ways, got {label!r}"
            )
        key = known[label] if label in known else int(label)
        if key in found:
            raise FileFormatError(f"{path}: line {number} names {label!r} a second time")
        found[key] = amount
    return found
