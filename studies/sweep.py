"""One question over a grid: every combination is solved, and gives a row of proven numbers in a table of pandas."""

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
"""The columns of a table behind those of the grid."""

MAX_RUNS = 100_000

SOLVERS = ("layer", "backend", "method", "tol", "time_limit")
"""Names that say how a problem is solved: rows that differ in these alone are of one problem."""


def sweep(solve: Callable[..., dm.Solution], grid: Mapping[str, Sequence[Any]], jobs: int | None = 1) -> Any:
    """Solve every combination of the values of a grid; return a DataFrame with a row for each.

    Its columns are the names of the grid, then `RESULTS`: how the solver ended, the proven interval of the optimum, the
    relative gap, the solver's steps, wall seconds, and its message. An error of one run is the row's message.
    Raises `InvalidInputError` or `InputTypeError` for no function, an empty grid, one of more than `MAX_RUNS`
    combinations, a name of `RESULTS`; `BackendError` without pandas; all before anything is solved.

    Parameters
    ----------
    solve : callable
        Takes a value for each name of the grid, and returns a `Solution`. `joblib.Memory` keeps its answers on disk, so
        that a sweep which was ended goes on: ``sweep(memory.cache(solve), grid)``.
    grid : mapping of names to sequences
        The values of each argument.
    jobs : int or None, default 1
        Runs at a time, in processes of their own; None for the backend and the number that ``joblib.parallel_config``
        sets, such as the workers of a Dask cluster.

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
    as_frame(columns, [])  # without pandas nothing is solved
    return as_frame(columns, [[row[name] for name in columns] for row in rows(solve, runs, jobs)])


def combinations(axes: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Return the product of the values of all names; refused beyond `MAX_RUNS`."""
    if (count := math.prod(map(len, axes.values()))) > MAX_RUNS:
        raise errors.InvalidInputError(f"the grid has {count} combinations, more than are run (limit {MAX_RUNS})")
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def rows(solve: Callable[..., dm.Solution], runs: Sequence[Row], jobs: int | None = 1) -> Iterator[Row]:
    """Yield the row of each run, in order, `jobs` at a time; None as joblib is configured."""
    tasks = [partial(_row, solve, run) for run in runs]
    if jobs is not None:
        return computed(tasks, validate.size(jobs=jobs))
    from joblib import Parallel, delayed

    return iter(Parallel(return_as="generator", batch_size=1)(delayed(task)() for task in tasks))


def _row(solve: Callable[..., dm.Solution], run: Row) -> Row:
    began = time.perf_counter()
    try:
        with without_warnings():
            answer = solve(**run)
    except (errors.DualmechError, MemoryError) as error:
        result: Row = dict.fromkeys(RESULTS) | {"status": "REFUSED", "message": str(error) or "not enough memory"}
    except Exception as error:  # of the library or a backend: the other runs go on
        result = dict.fromkeys(RESULTS) | {"status": "FAULT", "message": f"{type(error).__name__}: {error}"}
    else:
        lower, upper = answer.certificate.interval
        result = {"status": answer.status.name, "lower": lower, "upper": upper, "gap": answer.gap}
        result |= {"steps": answer.iterations, "message": answer.message}
    return run | result | {"seconds": time.perf_counter() - began}


def disagreements(table: Iterable[Row]) -> list[tuple[Row, Row]]:
    """Return pairs of rows of one problem with disjoint intervals: one of the two certificates is wrong."""
    from joblib import hash as digest  # values of a grid may be arrays

    problems: dict[str, list[Row]] = {}
    for row in table:
        if row["lower"] is not None and row["lower"] == row["lower"]:
            problem = {name: value for name, value in row.items() if name not in (*RESULTS, *SOLVERS)}
            problems.setdefault(digest(problem), []).append(row)
    ends = (
        (max(same, key=lambda row: row["lower"]), min(same, key=lambda row: row["upper"])) for same in problems.values()
    )
    return [(highest, lowest) for highest, lowest in ends if highest["lower"] > lowest["upper"]]
