"""What the commands that answer at once take: loading the library is most of it."""

from __future__ import annotations

import resource
import subprocess
import sys

import numpy as np

from dualmech.crosscheck.printing import TextTable
from dualmech.crosscheck.sheet import Columns, Row, drawn
from dualmech.studies.benchmarks.layers import Measured, in_own_process

LIMIT = "NumPy and SciPy alone"
RUNS = {
    LIMIT: ("-c", "import numpy, scipy.linalg, scipy.sparse"),
    "dualmech solve prefix:16": ("-m", "dualmech", "solve", "prefix:16"),
    "dualmech explain prefix:8": ("-m", "dualmech", "explain", "prefix:8"),
}
REPEATS = 5


def measure(name: str) -> Measured:
    """Run a command a few times; seconds are medians of the processor's, the memory is the most of any run."""
    seconds, spent = [], 0.0
    for _ in range(REPEATS):
        subprocess.run([sys.executable, *RUNS[name]], capture_output=True, check=True)
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        total = usage.ru_utime + usage.ru_stime
        seconds.append(total - spent)
        spent = total
    unit = 1024 if sys.platform != "darwin" else 1024**2
    return {"name": name, "processor": float(np.median(seconds)), "mebibytes": usage.ru_maxrss / unit}


COLUMNS: Columns = (
    *(("command", "{name}"), ("CPU s", "{processor:.2f}"), ("to the first", "{ratio:.2f}")),
    ("MiB", "{mebibytes:.0f}"),
)


def report() -> TextTable:
    measured = [in_own_process(measure, name) for name in RUNS]
    for figures in measured:
        figures["ratio"] = figures["processor"] / measured[0]["processor"]
    return drawn("commands that answer at once", COLUMNS, map(Row, measured), words=("command",))
