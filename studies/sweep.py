"""One question over a grid: every combination is solved, and gives a row of proven numbers in a table of pandas."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

from dualmech import Solution, errors, validate
from dualmech.files.csv import as_frame
from dualmech.watching import without_warnings

Row: TypeAlias = dict[str, Any]

RESULTS = ("status", "lower", "upper", "gap", "steps", "seconds", "message")
"""The columns of a table behind those of the grid."""

SOLVERS = ("layer", "backend", "method", "tol", "time_limit")
"""Names that say how a problem is solved: rows that differ in these alone are of one problem."""


def sweep(solve: Callable[..., Solution], grid: Mapping[str, Sequence[Any]], jobs: int = 1) -> Any:
    """Solve every combination of the values of a grid; return a DataFrame with a row for each.

    Its columns are the names of the grid, then `RESULTS`: how the solver ended, the proven interval of the optimum, the
    relative gap, the solver's steps, wall seconds, and its message. An error of one run is the row's message.
    Raises `InvalidInputError` or `InputTypeError` for no function, an empty grid, a name of `RESULTS`; `BackendError`
    without pandas.

    Parameters
    ----------
    solve : callable
        Takes a value for each name of the grid, and returns a `Solution`. `joblib.Memory` keeps its answers on disk, so
        that a sweep which was ended goes on: ``sweep(memory.cache(solve), grid)``.
    grid : mapping of names to sequences
        The values of each argument.
    jobs : int, default 1
        Runs at a time, each in a process of its own. Another backend of joblib is taken where one is configured:
        ``with joblib.parallel_config(backend="dask"): …`` runs on the workers of a Dask cluster.

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
    stated = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    columns = [*axes, *RESULTS]
    return as_frame(columns, [[row[name] for name in columns] for row in rows(solve, stated, jobs)])


def rows(solve: Callable[..., Solution], runs: Iterable[Row], jobs: int = 1) -> Iterator[Row]:
    """Yield the row of each run, in order, `jobs` at a time."""
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=validate.size(jobs=jobs), return_as="generator", batch_size=1)
    return iter(pool(delayed(_row)(solve, run) for run in runs))


def _row(solve: Callable[..., Solution], run: Row) -> Row:
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
    problems: dict[tuple[object, ...], list[Row]] = {}
    for row in table:
        if row["lower"] is not None and row["lower"] == row["lower"]:
            problems.setdefault(tuple(row[name] for name in row if name not in (*RESULTS, *SOLVERS)), []).append(row)
    ends = (
        (max(same, key=lambda row: row["lower"]), min(same, key=lambda row: row["upper"])) for same in problems.values()
    )
    return [(highest, lowest) for highest, lowest in ends if highest["lower"] > lowest["upper"]]
