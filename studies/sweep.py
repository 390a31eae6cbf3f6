"""Solve a problem for every combination of a grid of parameters; collect the proven bounds in a pandas DataFrame."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import dualmech as dm
from dualmech import errors, validate
from dualmech.crosscheck.processes import computed
from dualmech.files.csv import as_frame
from dualmech.watching import without_warnings

Row: TypeAlias = dict[str, Any]

RESULTS = ("status", "lower", "upper", "gap", "steps", "seconds", "message")
"""The columns of results, which follow the columns of the grid."""

MAX_RUNS = 100_000

SOLVERS = ("layer", "backend", "method", "tol", "time_limit")
"""Names of solver options: rows that differ only in these are about the same problem."""


def sweep(solve: Callable[..., dm.Solution], grid: Mapping[str, Sequence[Any]], jobs: int | None = 1) -> Any:
    """Solve every combination of the values of a grid; return a DataFrame with a row for each.

    Its columns are the names of the grid, then `RESULTS`: the status, the proven bounds on the optimum, the relative
    gap, the solver's iterations, the wall time in seconds, and a message. An error of a run is the message of its row.

    Parameters
    ----------
    solve : callable
        Takes a value for each name of the grid, and returns a `Solution`. `joblib.Memory` keeps its answers on disk, so
        that an interrupted sweep can be resumed: ``sweep(memory.cache(solve), grid)``.
    grid : mapping of names to sequences
        The values of each argument.
    jobs : int or None, default 1
        Number of runs at a time, each in its own process. None uses the backend and number of jobs of
        ``joblib.parallel_config``, such as the workers of a Dask cluster.

    Raises
    ------
    InvalidInputError, InputTypeError
        If `solve` is not a function, or if the grid is empty, has more than `MAX_RUNS` combinations or uses a name of
        `RESULTS`. Raised before any run.
    BackendError
        If pandas is not installed. Raised before any run.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast, reference
    >>> from dualmech.studies.sweep import disagreements, sweep
    >>> def posed(size, layer):
    ...     solver = {"fast": fast, "reference": reference}[layer]
    ...     return solver.solve(dm.FitnessForUse(dm.workloads.prefix(size)), tol=1e-4)
    >>> table = sweep(posed, {"size": [4, 8], "layer": ["fast", "reference"]})
    >>> table[["size", "layer", "status"]].values.tolist()[2:]
    [[8, 'fast', 'CERTIFIED'], [8, 'reference', 'CERTIFIED']]
    >>> disagreements(table.to_dict("records"))
    []
    """
    validate.function(solve=solve)
    axes = {name: validate.sequence(**{name: values}) for name, values in validate.mapping("values", grid=grid).items()}
    for name in axes:
        if name in RESULTS or not axes[name]:
            raise errors.InvalidInputError(f"grid must have values for names other than {', '.join(RESULTS)}: {name!r}")
    if not axes:
        raise errors.InvalidInputError("grid must name an argument of solve, got none")
    columns, runs = [*axes, *RESULTS], combinations(axes)
    as_frame(columns, [])  # raises before any run if pandas is missing
    return as_frame(columns, [[row[name] for name in columns] for row in rows(solve, runs, jobs)])


def combinations(axes: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Return all combinations of values; refuse more than `MAX_RUNS`."""
    if (count := math.prod(map(len, axes.values()))) > MAX_RUNS:
        raise errors.InvalidInputError(f"the grid has {count} combinations, more than are run (limit {MAX_RUNS})")
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def rows(solve: Callable[..., dm.Solution], runs: Sequence[Row], jobs: int | None = 1) -> Iterator[Row]:
    """Yield the row of each run, in order, with `jobs` processes (None: as configured in joblib)."""
    tasks = [partial(_row, solve, run) for run in runs]
    if jobs is not None:
        return computed(tasks, validate.size(jobs=jobs))
    from joblib import Parallel, delayed

    return iter(Parallel(return_as="generator", batch_size=1)(delayed(task)() for task in tasks))


def _row(solve: Callable[..., dm.Solution], run: Row) -> Row:
    start_time = time.perf_counter()
    try:
        with without_warnings():
            answer = solve(**run)
    except (errors.DualmechError, MemoryError) as error:
        result: Row = dict.fromkeys(RESULTS) | {"status": "REFUSED", "message": str(error) or "not enough memory"}
    except Exception as error:  # a fault of the library or a backend must not stop the other runs
        result = dict.fromkeys(RESULTS) | {"status": "FAULT", "message": f"{type(error).__name__}: {error}"}
    else:
        lower, upper = answer.certificate.interval
        result = {"status": answer.status.name, "lower": lower, "upper": upper, "gap": answer.gap}
        result |= {"steps": answer.iterations, "message": answer.message}
    return run | result | {"seconds": time.perf_counter() - start_time}


def disagreements(table: Iterable[Row]) -> list[tuple[Row, Row]]:
    """Return pairs of rows of the same problem with disjoint intervals: one of the two certificates must be wrong."""
    from joblib import hash as digest  # values of a grid may be arrays

    problems: dict[str, list[Row]] = {}
    for row in table:
        if row["lower"] is not None and row["lower"] == row["lower"]:
            problem = {name: value for name, value in row.items() if name not in (*RESULTS, *SOLVERS)}
            problems.setdefault(digest(problem), []).append(row)
    ends = (
        (max(group, key=lambda row: row["lower"]), min(group, key=lambda row: row["upper"]))
        for group in problems.values()
    )
    return [(highest, lowest) for highest, lowest in ends if highest["lower"] > lowest["upper"]]
