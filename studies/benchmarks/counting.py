"""How fast records are counted: Parquet by DuckDB and by polars, next to DuckDB's own group-bys, and CSV."""

from __future__ import annotations

import datetime
import os
import tempfile
from pathlib import Path

import dualmech as dm
from dualmech import workloads
from dualmech.crosscheck.printing import TextTable
from dualmech.crosscheck.sheet import Columns, Row, drawn
from dualmech.studies.benchmarks.layers import Measured, clocked, in_own_process, peak_mebibytes

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
