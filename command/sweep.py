"""The command ``sweep``: problems of the command line over a grid that a file states."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualmech.watching import passing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dualmech.command.request import Request
    from dualmech.solution import Solution

KEYS = {
    **{"families": "problem", "workloads": "workload", "sizes": "size", "seeds": "seed", "layers": "layer"},
    **{"backends": "backend", "tolerances": "tol"},
    **{name: name for name in ("targets", "rho", "neighbours", "t1", "time_limit")},
}
"""The keys of a grid, and the argument of a run that each one's values are for."""


def sweep(
    grid: Annotated[
        str, typer.Argument(metavar="GRID", help="A TOML file of workloads, sizes, layers; see docs/sweeps.md.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="File of results, .csv, a row a run.")],
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
) -> None:
    """Solve every combination that a file states, and compare the proven intervals."""
    from dualmech import files
    from dualmech.crosscheck import printing
    from dualmech.files.csv import write_rows
    from dualmech.studies.sweep import disagreements, rows

    files.check_writable(output, ".csv")
    with passing("reading the grid"):
        runs = read_grid(grid)
    out, table = printing.console(), []
    for row in rows(run, runs, jobs):
        table.append(row)
        gap = "" if row["gap"] is None else f", gap {row['gap']:.1e}, {row['seconds']:.2g} s"
        stated = ", ".join(f"{name} {row[name]}" for name in runs[0] if row[name] is not None)
        out.print(f"{len(table)}: {stated}: {row['status']}{gap} {row['message'] or ''}", markup=False, soft_wrap=True)
    write_rows(output, [*table[0]], ([*row.values()] for row in table))
    pairs = disagreements(table)
    for pair in pairs:
        for row in pair:
            out.print(f"DISAGREE: {row}", markup=False, soft_wrap=True)
    raise typer.Exit(4 if pairs else 0 if all(row["status"] == "CERTIFIED" for row in table) else 3)


def read_grid(path: str) -> list[dict[str, Any]]:
    """Return the runs that a TOML file states, each once; files that it names are looked for in its folder.

    A run has what its family, workload and layer take: sizes and seeds stand for ``{size}`` and ``{seed}``.
    Raises `FileFormatError` for a file that cannot be read, an unknown key, a value that is not allowed, a key without
    values or that no run has a use for, more runs than are taken.
    """
    from dualmech.errors import InvalidInputError, did_you_mean
    from dualmech.files.reading import errors_naming, read_toml
    from dualmech.studies.sweep import combinations

    stated = read_toml(path)
    with errors_naming(path):
        for name in stated:
            if name not in KEYS:
                raise InvalidInputError(f"unknown key {name!r}{did_you_mean(name, KEYS)}; known are {', '.join(KEYS)}")
        if "workloads" not in stated:
            raise InvalidInputError('workloads must be given, such as workloads = ["prefix:{size}"]')
        values = {argument: _values(name, stated.get(name)) for name, argument in KEYS.items()}
        runs = [dict(run) for run in dict.fromkeys(tuple(_placed(run, path).items()) for run in combinations(values))]
        for name in stated:
            if all(run[KEYS[name]] is None for run in runs):
                raise InvalidInputError(f"{name} must be for a family, workload or layer of the grid; none has a use")
        return runs


def _values(name: str, value: object) -> list[Any]:
    from dualmech import validate
    from dualmech.crosscheck.families import POSED, Layer
    from dualmech.errors import InvalidInputError

    checks: dict[str, Callable[..., Any]] = {
        "families": partial(validate.choice, [family.name for family in POSED]),
        "layers": partial(validate.choice, [layer.value for layer in Layer]),
        "seeds": partial(validate.index, 2**63),
        **dict.fromkeys(("workloads", "neighbours", "backends"), validate.text),
        **dict.fromkeys(("tolerances", "time_limit", "t1"), validate.positive_number),
        "sizes": validate.size,
    }
    if value is None:
        return [None]
    values = value if isinstance(value, list) else [value]
    if not values:
        raise InvalidInputError(f"{name} must hold a value, or be left out, got none")
    for one in values if name in checks else ():
        checks[name](**{name: one})
    return values


def _placed(run: dict[str, Any], path: str) -> dict[str, Any]:
    """Return a run without what it has no use for, its sizes and files in place; refused as the command is."""
    from pathlib import Path

    from dualmech import files
    from dualmech.crosscheck.families import POSED, Layer
    from dualmech.errors import InvalidInputError
    from dualmech.workloads.names import is_named

    run |= {"problem": run["problem"] or "fitness", "layer": run["layer"] or "fast"}
    pattern = run["workload"]
    for name in ("size", "seed"):
        if f"{{{name}}}" in pattern and run[name] is None:
            raise InvalidInputError(f"{name}s must be given: {{{name}}} stands for it")
        run[name] = run[name] if f"{{{name}}}" in pattern else None
        run["workload"] = run["workload"].replace(f"{{{name}}}", str(run[name]))
    (taken,) = (family.options for family in POSED if family.name == run["problem"])
    for name in ("targets", "rho", "t1"):
        run[name] = run[name] if name in taken else None
    run["backend"] = run["backend"] if run["layer"] == Layer.REFERENCE else None
    for name in ("workload", "targets", "neighbours"):
        text = run[name]
        if isinstance(text, str) and not is_named(text) and Path(text).suffix.lower() in files.SUFFIXES:
            run[name] = str(Path(path).parent / text)
    request_of(run)
    return run


def request_of(run: Mapping[str, Any]) -> Request:
    """Return what the command line would take for a run; ρ is for fitness, whose objective then is a factor."""
    from fractions import Fraction

    from dualmech import validate
    from dualmech.command.request import Request
    from dualmech.errors import InvalidInputError

    rho = None if run["rho"] is None else Fraction(validate.exact_number(rho=run["rho"]))
    if rho is not None and run["problem"] != "fitness":
        raise InvalidInputError(
            "rho is for the family fitness; at another rho a total variance is that at 1/2 over 2 rho"
        )
    targets = run["targets"] if run["targets"] is None else str(run["targets"])
    return Request(
        run["workload"], run["problem"], targets=targets, rho=rho, neighbours=run["neighbours"], t1=run["t1"]
    )


def run(**stated: Any) -> Solution:
    """Solve the problem of a run."""
    from dualmech import fast, reference

    problem = request_of(stated).state()
    named = {name: stated[name] for name in ("tol", "time_limit", "backend") if stated[name] is not None}
    solver = fast if stated["layer"] == "fast" else reference
    answer: Solution = solver.solve(problem, **named)
    return answer
