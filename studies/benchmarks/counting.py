"""How fast records are counted: Parquet by DuckDB and by polars, next to DuckDB's own group-bys, and CSV."""

from __future__ import annotations

import datetime
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from dualmech import workloads
from dualmech.crosscheck.printing import TextTable, table
from dualmech.publishing import records, sources
from dualmech.publishing.schema import Schema
from dualmech.studies.benchmarks.layers import load, peak_mebibytes
from dualmech.workloads.marginal import MarginalWorkload

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


def asked() -> MarginalWorkload:
    """Return the tables of the queries."""
    schema = Schema(
        {
            "age": range(17, 91),
            "sex": ["female", "male"],
            "hours": {"bins": [0, 20, 35, 40, 60, 100]},
            "day": {"from": datetime.date(2013, 1, 1), "to": datetime.date(2013, 12, 31)},
            "dest": {"labels": ["ATL", "BOS", "LAX"], "rest": "elsewhere"},
        }
    )
    return workloads.marginals(schema, sets=[["age", "sex", "hours"], ["day", "dest"], ["dest", "sex"]])


@contextmanager
def written() -> Iterator[str]:
    """Write the records into a folder that goes again."""
    import duckdb

    rows = int(os.environ.get("DUALMECH_ROWS", ROWS))
    with tempfile.TemporaryDirectory() as folder:
        for name, count in (("records.parquet", rows), ("records.csv", rows // SHARE_OF_CSV)):
            duckdb.connect().execute(WRITE.format(rows=count, path=Path(folder) / name))
        yield folder


def measure(method: str, folder: str) -> dict[str, Any]:
    """Count the records by one method in this process, once."""
    spent: list[float] = []
    run = sources.Engine._collected

    def timed(self: sources.Engine, build: Any) -> Any:
        begun = time.perf_counter()
        result = run(self, build)
        spent.append(time.perf_counter() - begun)
        return result

    parquet, busy, begun = f"{folder}/records.parquet", load(), time.perf_counter()
    with mock.patch.object(sources.Engine, "_collected", timed):
        if method == PLAIN:
            import duckdb

            connection = duckdb.connect()
            for query in QUERIES:
                connection.sql(f"select {query}, count(*) from '{parquet}' group by all").fetchall()
        elif method == POLARS:
            import polars

            records.count(polars.scan_parquet(parquet), asked())
        else:
            records.count(parquet if method == PARQUET else f"{folder}/records.csv", asked())
    seconds = time.perf_counter() - begun
    return {
        "method": method,
        "rows": int(os.environ.get("DUALMECH_ROWS", ROWS)) // (SHARE_OF_CSV if method == CSV else 1),
        "seconds": seconds,
        "ours": 1 - sum(spent) / seconds if spent else float(method == CSV),
        "mebibytes": peak_mebibytes(),
        "load": busy,
    }


def lay_out(records: list[dict[str, Any]]) -> TextTable:
    """Return what was measured as a table, with the ratio to DuckDB alone."""
    plain = next(record["seconds"] for record in records if record["method"] == PLAIN)
    rows = [
        (
            *(record["method"], f"{record['rows']:,}", f"{record['seconds']:.3g}"),
            "" if record["method"] == CSV else f"{record['seconds'] / plain:.2f}",
            *("" if record["method"] == PLAIN else f"{record['ours']:.0%}", f"{record['mebibytes']:.0f}"),
            f"{record['load']:.1f}",
        )
        for record in records
    ]
    headings = ("records", "rows", "seconds", "to DuckDB alone", "ours", "peak MiB", "load")
    return table("three tables of five attributes: seconds with all that is loaded", headings, rows)
