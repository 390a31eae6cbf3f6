"""How fast records are counted on engines, and how fast tables of one data set are fitted to noisy ones."""

from __future__ import annotations

import datetime
import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import dualmech as dm
from dualmech import fast, workloads
from dualmech.crosscheck.instances.tables import ADULT
from dualmech.crosscheck.printing import TextTable
from dualmech.crosscheck.sheet import Columns, Row, drawn
from dualmech.studies.benchmarks.layers import Measured, clocked, in_own_process, peak_mebibytes
from dualmech.watching import without_warnings

ROWS = 100_000_000  # of Parquet; `DUALMECH_ROWS` says another number
SHARE_OF_CSV = 100  # one of how many rows is in the CSV file

WRITE = """copy (
    select 17 + (i * 7919 % 74)::smallint as age, case when i * 31 % 97 < 45 then 'female' else 'male' end as sex,
        (i * 104729 % 100000) / 1000 as hours, timestamp '2013-01-01' + to_seconds(i * 86028121 % 31536000) as day,
        ['ATL', 'BOS', 'LAX', 'ORD', 'DFW'][1 + i * 13 % 5] as dest, 'N' || (i * 7 % 5003) as tailnum
    from range({rows}) t(i)
) to '{path}'"""

DEST = "case when dest in ('ATL', 'BOS', 'LAX') then dest else 'elsewhere' end"
HOURS = "case when hours < 20 then 0 when hours < 35 then 1 when hours < 40 then 2 when hours < 60 then 3 else 4 end"
QUERIES = (f"age, sex, {HOURS}", f"day::date, {DEST}", f"{DEST}, sex")
"""What plain DuckDB groups by; it checks no value."""

PLAIN, PARQUET, POLARS, CSV = METHODS = ("DuckDB alone", "Parquet", "polars, lazy", "CSV")


def requested_tables() -> workloads.MarginalWorkload:
    schema = dm.Schema(
        {
            "age": range(17, 91),
            "sex": ["female", "male"],
            "hours": {"bins": [0, 20, 35, 40, 60, 100]},
            "day": {"from": datetime.date(2013, 1, 1), "to": datetime.date(2013, 12, 31)},
            "dest": {"labels": ["ATL", "BOS", "LAX"], "rest": "elsewhere"},
        }
    )
    return workloads.marginals(schema, sets=[["age", "sex", "hours"], ["day", "dest"], ["dest", "sex"]])


def count(method: str, folder: str) -> Measured:
    """Count the records in a folder by one method in this process, once."""
    parquet = f"{folder}/records.parquet"
    with clocked() as figures:
        if method == PLAIN:
            import duckdb

            connection = duckdb.connect()
            for query in QUERIES:
                connection.sql(f"select {query}, count(*) from '{parquet}' group by all").fetchall()
        elif method == POLARS:
            import polars

            dm.records.count(polars.scan_parquet(parquet), requested_tables())
        else:
            dm.records.count(parquet if method == PARQUET else f"{folder}/records.csv", requested_tables())
    return figures | {"method": method, "mebibytes": peak_mebibytes()}


COUNT_COLUMNS: Columns = (
    *(("records", "{method}"), ("rows", "{rows:,}"), ("seconds", "{seconds:.3g}"), ("to DuckDB alone", "{ratio}")),
    *(("peak MiB", "{mebibytes:.0f}"), ("load", "{load:.1f}")),
)


def counts() -> TextTable:
    """Write records into a folder that goes again, and count them by every method; plain DuckDB is the first."""
    import duckdb

    rows = int(os.environ.get("DUALMECH_ROWS", ROWS))
    sizes = dict.fromkeys(METHODS, rows) | {CSV: rows // SHARE_OF_CSV}
    with tempfile.TemporaryDirectory() as folder:
        for name, number in (("records.parquet", rows), ("records.csv", sizes[CSV])):
            duckdb.connect().execute(WRITE.format(rows=number, path=Path(folder) / name))
        measured = [in_own_process(count, method, folder, threads=2) for method in METHODS]
    for figures in measured:
        method, ratio = figures["method"], figures["seconds"] / measured[0]["seconds"]
        figures |= {"rows": sizes[method], "ratio": "" if method == CSV else f"{ratio:.2f}"}
    return drawn("three tables of five attributes: seconds with all that is loaded", COUNT_COLUMNS, map(Row, measured))


# Tables of one data set from noisy ones: seconds and proven gap of fits on domains that nobody could write out.

TARGET = 100.0  # variance of every answer
PEOPLE, TOLERANCE = 48_842, 1e-3


def _pairs(domain: dm.Domain, pairs: Sequence[tuple[str, str]]) -> workloads.UnionWorkload:
    return workloads.union(domain, {f"{one} x {two}": [one, two] for one, two in pairs})


def _four() -> workloads.UnionWorkload:
    domain = dm.Domain({"age": 75, "race": 5, "sex": 2, "income": 2})
    sums = {"age": workloads.prefix(75)}
    return workloads.union(
        domain, {"ages": sums, "ages by sex": sums | {"sex": None}, "others": ["race", "sex", "income"]}
    )


def _sixty() -> workloads.UnionWorkload:
    domain = dm.Domain({f"a{axis}": 10 for axis in range(60)})
    return _pairs(domain, [*itertools.pairwise(domain.names)])


def _fourteen() -> workloads.UnionWorkload:
    domain = dm.Domain({name: min(size, 20) for name, size in ADULT.sizes})
    return _pairs(domain, [*itertools.combinations(domain.names, 2)])


FITS: dict[str, Callable[[], workloads.UnionWorkload]] = {
    "ages, and ages by sex, summed up; three others": _four,
    "pairs along sixty attributes of ten values": _sixty,
    "all pairs of fourteen Adult attributes, at most twenty values each": _fourteen,
}
"""Tables to release, of records that are drawn anew at each run, as noise is."""


def fit(name: str) -> Measured:
    """Release and fit a case in this process, to fractions and to whole numbers."""
    workload = FITS[name]()
    assert workload.domain is not None
    with without_warnings():
        answer = fast.solve(dm.FitnessForUse(workload, TARGET), tol=TOLERANCE)
    released = dm.release(answer, dm.records.count(_people(workload.domain), answer.mechanism.needed_tables))
    with clocked() as clock:
        fractions = released.fitted()
    with clocked() as whole_clock:
        whole = released.fitted(integer=True)
    queries, cells = workload.shape
    figures = {"name": name, "queries": queries, "cells": float(cells), "gaps": [fractions.gap, whole.gap]}
    return clock | figures | {"whole_seconds": whole_clock["seconds"]}


def _people(domain: dm.Domain) -> npt.NDArray[np.int64]:
    """Return records whose attributes depend on the one before, most of them among a few values."""
    generator, people = np.random.default_rng(0), []
    level = generator.random(PEOPLE)
    for size in domain.shape:
        level = np.where(generator.random(PEOPLE) < 0.6, level, generator.random(PEOPLE) ** 2)
        people.append((size * level).astype(np.int64))
    return np.stack(people, axis=1)


FIT_COLUMNS: Columns = (
    *(("tables", "{name}"), ("queries", "{queries}"), ("cells", "{cells:.3g}"), ("seconds", "{seconds:.2g}")),
    *(("gap", "{gaps[0]:.2g}"), ("seconds, whole", "{whole_seconds:.2g}"), ("gap, whole", "{gaps[1]:.2g}")),
)


def fits() -> TextTable:
    measured = [in_own_process(fit, name) for name in FITS]
    busy = max(figures["load"] for figures in measured)
    title = f"fits of noisy tables of {PEOPLE} records, one thread (load up to {busy:.1f})"
    return drawn(title, FIT_COLUMNS, map(Row, measured))
