"""From records to noisy tables that agree with each other, one CSV file per table."""

from __future__ import annotations

import csv
import io
import itertools
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from dualmech import files
from dualmech.crosscheck.command import answers, table_inputs
from dualmech.crosscheck.command.request import REPORTED_DELTA
from dualmech.errors import FileFormatError, InvalidInputError, UncertifiedWarning
from dualmech.mechanisms import records
from dualmech.mechanisms.block import SCHEMA, BlockMechanism
from dualmech.mechanisms.split import SplitMechanism
from dualmech.storage import store
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.query_tables import TableWorkload
from dualmech.workloads.unions import Queries, UnionWorkload

WARNING = "dualmech: noise in floating point is for study only; this is NOT a private release"

INDEX = "tables.csv"  # the file that lists the others
README, NOTICE = (
    "README.txt",
    """Noisy tables, for study only: this is NOT a private release.

The noise was drawn in floating point, whose rounding can reveal the data; and who knows the seed, where one was given,
can subtract it. tables.csv lists the tables, with the variance of their noise.
""",
)
LONGEST = 60  # most letters of a table's name that the name of its file holds

Mechanism: TypeAlias = SplitMechanism | BlockMechanism

Asked: TypeAlias = MarginalWorkload | TableWorkload | UnionWorkload


def simulate(data: str, source: str, output: str, rng: int | None, allow_empty: bool = False) -> list[str]:
    """Write the noisy tables of the records in a file, by the mechanism in another; return what there is to say."""
    mechanism, workload = read_mechanism(source)
    with files.atomic_folder(output) as folder:
        # Before the records are read: a table that is not answered is refused here.
        variances = [mechanism.variance(names) for names in _table_labels(workload)]
        counts = records.count(data, _counted_tables(mechanism, workload), allow_empty=allow_empty)
        noisy: Any = mechanism.measure(counts, rng)
        labels = table_inputs.labels(workload) or []
        listed = [_file_name(number, label, len(labels)) for number, label in enumerate(labels, start=1)]
        for name, names, sides in zip(listed, _table_labels(workload), _sides(workload), strict=True):
            cells = itertools.product(*sides.values())
            estimates = mechanism.recombine(noisy, names).ravel().tolist()
            rows = ((*cell, estimate) for cell, estimate in zip(cells, estimates, strict=True))
            _write(folder / name, (*sides, "estimate"), rows)
        with files.atomic_write(folder / README) as handle:
            handle.write(NOTICE.encode())
        _write(folder / INDEX, ("file", "table", "variance"), zip(listed, labels, variances, strict=True))
    return [
        f"counted: {next(iter(counts.values())).sum():.0f} records",
        f"written: {len(listed)} noisy tables and {INDEX} in {output}",
        f"{answers.privacy_text(mechanism, REPORTED_DELTA)[:-1]}, if the noise were exact.",
    ]


def read_mechanism(path: str) -> tuple[Mechanism, Asked]:
    """Return the mechanism in a file and the tables to make of it: a solution's own, else the largest it answers.

    Raises `FileFormatError`, `InvalidInputError` or `InfeasibleAnswerError` for a file of another schema, a
    solution of other problems or an infeasible one, a mechanism that measures nothing.
    """
    head = files.read_archive(path, {"schema"})
    files.require(path, head, "schema")
    if str(head["schema"]) == SCHEMA:
        loaded = BlockMechanism.load(path)
        if not loaded.pieces:
            raise InvalidInputError(f"{path}: holds a mechanism that measures nothing")
        return loaded, loaded.needed_tables
    if str(head["schema"]) != store.SCHEMA:
        raise FileFormatError(
            f"{path}: must follow the schema {SCHEMA!r} or {store.SCHEMA!r}, got {str(head['schema'])!r}"
        )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UncertifiedWarning
        )  # the promise is that of the mechanism, optimal or not
        solution = store.load_solution(path)
    mechanism, workload = solution.mechanism, solution.problem.workload
    if isinstance(mechanism, BlockMechanism) and mechanism.workload is not None:
        workload = mechanism.workload
    if not isinstance(mechanism, Mechanism) or not isinstance(workload, Asked):
        raise InvalidInputError(
            f"{path}: must be a solution of marginal or query tables or of a union, "
            f"got that of a {type(solution.problem).__name__} with geometry {solution.problem.geometry.name!r}"
        )
    return mechanism, workload


def _table_labels(workload: Asked) -> Sequence[Any]:
    """Return what the mechanism calls each table: its attributes, or its name."""
    if isinstance(workload, UnionWorkload):
        return workload.table_names
    return (workload.tables if isinstance(workload, TableWorkload) else workload).sets


def _counted_tables(mechanism: Mechanism, workload: Asked) -> MarginalWorkload:
    """Return the marginal tables of the records that the mechanism adds its noise to."""
    if isinstance(mechanism, BlockMechanism):
        return mechanism.needed_tables
    assert not isinstance(workload, UnionWorkload)
    return workload.tables if isinstance(workload, TableWorkload) else workload


def _sides(workload: Asked) -> Iterator[dict[str, Sequence[object]]]:
    """Yield of each table what its entries along an attribute are called: codes, or the names of queries there."""
    assert workload.domain is not None
    sizes = workload.domain.sizes
    for asked in _queries(workload):
        yield {sizes[axis][0]: range(sizes[axis][1]) if own is None else own.names for axis, own in asked}


def _queries(workload: Asked) -> Iterable[Iterable[tuple[int, Queries]]]:
    """Return of each table its attributes, and what is asked along them."""
    if isinstance(workload, UnionWorkload):
        return [table.queries for table in workload.tables]
    if isinstance(workload, MarginalWorkload):
        return [[(axis, None) for axis in axes] for axes in workload.axes]
    return [[(axis, workload.queries[axis]) for axis in axes] for axes in workload.tables.axes]


def _file_name(number: int, label: str, count: int) -> str:
    """Return a name that any file system takes, whatever the attributes are called."""
    letters = re.sub("[^0-9A-Za-z]+", "_", label).strip("_")[:LONGEST]
    return f"{number:0{len(str(count))}d}_{letters}.csv"


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with files.atomic_write(path) as handle:
        text = io.TextIOWrapper(handle, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(_shown, header))
        writer.writerows(map(_shown, row) for row in rows)
        text.flush()
        text.detach()


def _shown(cell: object) -> object:
    """Return a cell of which a spreadsheet makes no formula: a text that would begin one gets an apostrophe."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in tuple("=+-@\t\r") else cell
