"""Counting records: marginal tables from a file of codes, in one pass and in the memory of the tables alone."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from dualmech import files, validate
from dualmech.errors import FileFormatError, InputTypeError, InvalidInputError
from dualmech.files.archives import check_readable
from dualmech.files.csv import check_separator
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.marginals import Axes, MarginalWorkload, cells_of, check_marginal

__all__ = ["count"]

CHUNK = 65536  # records that are read at a time
LARGEST_TABLE = 2**27  # largest number of cells of a table that is counted (1 GiB)

Codes = npt.NDArray[np.int64]

Tables = Mapping[Axes, Array]
"""Marginal tables by the positions of their attributes, each with one axis per attribute."""


def count(source: str | PathLike[str] | npt.ArrayLike, workload: MarginalWorkload) -> dict[Axes, Array]:
    """Count records into the marginal tables that a workload needs: those that no other table covers.

    Raises `FileFormatError` for a file that lacks an attribute or holds anything but whole numbers, with the line;
    `InvalidInputError` or `InputTypeError` for a code outside its attribute's size, with the record; an array of
    another width; a table too large to count.
    Returns a dict of axes to arrays: what the `measure` of a mechanism takes: an axis per attribute, counts as float64.

    Parameters
    ----------
    source : path of a CSV file, or (records, attributes) array of integers
        Codes 0 … n - 1 of every attribute. A file has a header that names all attributes of the domain, in any order
        and among others; it is read once, a chunk at a time.
    workload : MarginalWorkload
        Whose tables are wanted.

    Examples
    --------
    >>> import dualmech as dm
    >>> tables = dm.workloads.marginals({"age": 2, "sex": 2}, ways=(0, 2))
    >>> dm.records.count([[0, 1], [1, 1], [0, 1]], tables)[0, 1]
    array([[0., 2.],
           [0., 1.]])
    """
    if isinstance(workload, Workload) and not isinstance(workload, MarginalWorkload):
        raise InputTypeError(
            f"workload must be one of marginal tables, got {type(workload).__name__}; those that a mechanism of a "
            f"union counts are its `needed_tables`, those of query tables are their `tables`"
        )
    domain, tables = check_marginal(workload).domain, maximal_sets(workload.axes)
    assert domain is not None
    shapes = {axes: tuple(domain.shape[axis] for axis in axes) for axes in tables}
    for shape in shapes.values():
        if np.prod(shape, dtype=np.float64) > LARGEST_TABLE:
            raise InvalidInputError(
                f"a table of shape {shape} has more cells than are counted ({LARGEST_TABLE})"
            )
    counts = {axes: np.zeros(int(np.prod(shape, dtype=np.int64))) for axes, shape in shapes.items()}
    seen = 0
    for codes in _chunks(source, domain):
        _check_range(codes, domain, seen)
        seen += len(codes)
        for axes, shape in shapes.items():
            cells = (
                np.ravel_multi_index(tuple(codes[:, list(axes)].T), shape)
                if axes
                else np.zeros(len(codes), int)
            )
            counts[axes] += np.bincount(cells, minlength=len(counts[axes]))
    return {axes: validate.read_only(table.reshape(shapes[axes])) for axes, table in counts.items()}


def marginal_of(domain: Domain, tables: Tables, axes: Axes) -> Array:
    """Return the marginal on a set of attributes from the smallest given table that covers it.

    Raises `InvalidInputError` or `InputTypeError` for no table that covers it, or one of another shape.
    """
    covering = [given for given in tables if set(axes) <= set(given)]
    if not covering:
        shown = " x ".join(domain.names[axis] for axis in axes) or "the total"
        raise InvalidInputError(f"tables must cover {shown}, which is measured; none does")
    best = min(covering, key=lambda given: cells_of(domain, given))
    table = validate.finite(**{f"tables[{best}]": tables[best]})
    shape = tuple(domain.shape[axis] for axis in best)
    if table.shape != shape:
        raise InvalidInputError(f"tables[{best}] must have shape {shape}, got {table.shape}")
    return np.asarray(table.sum(axis=tuple(i for i, axis in enumerate(best) if axis not in axes)))


def check_tables(**named: object) -> Any:
    """Return tables by the positions of their attributes; what maps nothing, or other keys, is refused."""
    ((name, given),) = named.items()
    found = validate.mapping("tuples of attribute positions, such as (0, 2), to arrays", **named)
    if not all(isinstance(key, tuple) for key in found):
        raise InputTypeError(f"{name} must map tuples of attribute positions, such as (0, 2), to arrays")
    return given


def maximal_sets(chosen: Iterable[Axes]) -> list[Axes]:
    """Return the sets that no other one contains.

    Examples
    --------
    >>> from dualmech.mechanisms.records import maximal_sets
    >>> maximal_sets([(), (0,), (1,), (0, 2)])
    [(0, 2), (1,)]
    """
    kept: list[Axes] = []
    holders: dict[int, list[frozenset[int]]] = {}
    for axes in sorted(set(chosen), key=len, reverse=True):
        members = frozenset(axes)
        around = holders.get(axes[0], []) if axes else [frozenset(each) for each in kept]
        if not any(members <= other for other in around):
            kept.append(axes)
            for axis in axes:
                holders.setdefault(axis, []).append(members)
    return kept


def _chunks(source: str | PathLike[str] | npt.ArrayLike, domain: Domain) -> Iterator[Codes]:
    if isinstance(source, str | PathLike):
        yield from _file_chunks(source, domain)
        return
    codes = validate.finite(2, records=source)
    if codes.shape[1] != len(domain.names):
        raise InvalidInputError(
            f"records must hold {len(domain.names)} whole numbers each, one per attribute, got shape {codes.shape}"
        )
    odd = np.argwhere((codes != np.round(codes)) | (np.abs(codes) > 2.0**53))
    if len(odd):
        raise InvalidInputError(
            f"records must hold whole numbers, record {odd[0][0] + 1} has {codes[tuple(odd[0])]:g} "
            f"for {domain.names[odd[0][1]]!r}"
        )
    yield codes.astype(np.int64)


def _file_chunks(path: str | PathLike[str], domain: Domain) -> Iterator[Codes]:
    with _open_text(path) as stream:
        header = next(csv.reader([stream.readline()]), [])
        with files.errors_naming(path):
            check_separator(header)
        labels = [label.strip() for label in header]
        missing = [name for name in domain.names if name not in labels]
        if missing:
            raise FileFormatError(
                f"{path}: its first line must name the attribute {missing[0]!r}, got {labels}"
            )
        twice = [name for name in domain.names if labels.count(name) > 1]
        if twice:
            raise FileFormatError(f"{path}: its first line names the attribute {twice[0]!r} more than once")
        columns, line = [labels.index(name) for name in domain.names], 2
        while True:
            lines = [text for text in (stream.readline() for _ in range(CHUNK)) if text]
            if not lines:
                return
            yield _parse_codes(path, lines, columns, line)
            line += len(lines)


@contextlib.contextmanager
def _open_text(path: str | PathLike[str]) -> Iterator[TextIO]:
    """Open a file of text, a byte order mark or none; errors name the file."""
    check_readable(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            yield stream
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path}: cannot be read as text: {error}") from error


def _parse_codes(path: str | PathLike[str], lines: list[str], columns: list[int], first: int) -> Codes:
    try:
        return np.loadtxt(lines, dtype=np.int64, delimiter=",", usecols=columns, ndmin=2)
    except ValueError:
        for offset, text in enumerate(lines):
            try:
                np.loadtxt([text], dtype=np.int64, delimiter=",", usecols=columns, ndmin=2)
            except ValueError as error:
                raise FileFormatError(
                    f"{path}: line {first + offset} is not a record of codes: {text.strip()!r}"
                ) from error
        raise


def _check_range(codes: Codes, domain: Domain, seen: int) -> None:
    outside = (codes < 0) | (codes >= np.array(domain.shape))
    if np.any(outside):
        row, column = np.argwhere(outside)[0]
        raise InvalidInputError(
            f"records must hold codes below the domain's sizes, record {seen + row + 1} has {codes[row, column]} "
            f"for {domain.names[column]!r} of size {domain.shape[column]}"
        )
