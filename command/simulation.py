"""The command ``simulate``: noisy, consistent tables of records, one CSV file for each table."""

from __future__ import annotations

import itertools
from typing import TypeAlias

from dualmech import files
from dualmech.command import answers
from dualmech.crosscheck.printing import REPORTED_DELTA
from dualmech.errors import InvalidInputError
from dualmech.files.csv import file_name, write_rows
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.split import SplitMechanism
from dualmech.publishing import records
from dualmech.publishing.plans import PlanTerms
from dualmech.publishing.publication import read_as, records_of, specification_of
from dualmech.publishing.published import published_tables
from dualmech.publishing.specification import Specification
from dualmech.solution import Solution
from dualmech.storage import store
from dualmech.watching import without_warnings
from dualmech.workloads.marginal import MarginalWorkload
from dualmech.workloads.table_queries import TableWorkload
from dualmech.workloads.unions import UnionWorkload

WARNING = "dualmech: noise in floating point is for study only; this is NOT a private release"

INDEX = "tables.csv"  # list of the other files
README, NOTICE = (
    "README.txt",
    """Noisy tables, for study only: this is NOT a private release.

The noise was drawn in floating point, whose rounding can reveal the data. Anybody who knows the seed can subtract the
noise. tables.csv lists the tables, with the variance of their noise.
""",
)
Mechanism: TypeAlias = SplitMechanism | BlockMechanism

AskedTables: TypeAlias = MarginalWorkload | TableWorkload | UnionWorkload


def simulate(data: records.Records, source: str, output: str, rng: int | None, allow_empty: bool = False) -> list[str]:
    """Write noisy tables of records, by the mechanism in the file `source`; return lines about them."""
    mechanism, workload, specification = read_mechanism(source)
    with files.atomic_folder(output) as folder:
        # Refuses a table that the mechanism does not answer, before the records are read.
        tables = published_tables(workload)
        variances = [mechanism.variance(table.table_key) for table in tables]
        declared = read_as(data, records_of(specification))
        counts = records.count(declared, _counted_tables(mechanism, workload), allow_empty=allow_empty)
        noisy = mechanism.measure(counts, rng)
        file_names = [file_name(number, table.name, len(tables)) for number, table in enumerate(tables, start=1)]
        for name, table in zip(file_names, tables, strict=True):
            cells = itertools.product(*table.sides.values())
            estimates = mechanism.recombine(noisy, table.table_key).ravel().tolist()
            rows = ((*cell, estimate) for cell, estimate in zip(cells, estimates, strict=True))
            write_rows(folder / name, (*table.sides, "estimate"), rows)
        files.atomic.write_text(folder / README, NOTICE)
        labels = [table.name for table in tables]
        write_rows(folder / INDEX, ("file", "table", "variance"), zip(file_names, labels, variances, strict=True))
    return [
        f"counted: {next(iter(counts.values())).sum():.0f} records",
        f"written: {len(file_names)} noisy tables and {INDEX} in {output}",
        f"{answers.privacy_text(mechanism, REPORTED_DELTA)[:-1]}, if the noise were exact.",
    ]


def read_mechanism(path: str) -> tuple[Mechanism, AskedTables, Specification | None]:
    """Return the mechanism in a file, its tables (a solution's, else the maximal ones), and its specification.

    Raises `FileFormatError`, `InvalidInputError` or `InfeasibleAnswerError` for a file of another schema, a
    solution of another problem or an infeasible one, and a mechanism without queries.
    """
    with without_warnings():  # the mechanism need not be optimal
        solution = store.load(path)
    if isinstance(solution, BlockMechanism):
        if not solution.pieces:
            raise InvalidInputError(f"{path}: holds a mechanism without queries")
        return solution, solution.workload or solution.needed_tables, None
    if not isinstance(solution, Solution):
        raise InvalidInputError(f"{path}: must hold a BlockMechanism, got a {type(solution).__name__}")
    mechanism, workload = solution.mechanism, solution.problem.workload
    if isinstance(mechanism, BlockMechanism) and mechanism.workload is not None:
        workload = mechanism.workload
    if not isinstance(mechanism, Mechanism) or not isinstance(workload, AskedTables):
        raise InvalidInputError(
            f"{path}: must be a solution of marginal or query tables or of a union, "
            f"got one of a {type(solution.problem).__name__} with geometry {solution.problem.geometry.name!r}"
        )
    return mechanism, workload, specification_of(PlanTerms.of(solution))


def _counted_tables(mechanism: Mechanism, workload: AskedTables) -> MarginalWorkload:
    if isinstance(mechanism, BlockMechanism):
        return mechanism.needed_tables
    assert not isinstance(workload, UnionWorkload)
    return workload.tables if isinstance(workload, TableWorkload) else workload
