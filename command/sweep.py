"""Runs of the command ``sweep``: problems of the command line over a grid in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from dualmech import fast, files, reference, validate
from dualmech.command.request import Request
from dualmech.crosscheck.families import POSED, Layer
from dualmech.errors import InvalidInputError, did_you_mean
from dualmech.files.reading import errors_naming, read_toml
from dualmech.solution import Solution
from dualmech.studies.sweep import combinations
from dualmech.workloads.names import is_named

KEYS = {
    **{"families": "problem", "workloads": "workload", "sizes": "size", "seeds": "seed", "layers": "layer"},
    **{"backends": "backend", "tolerances": "tol"},
    **{name: name for name in ("targets", "rho", "neighbours", "t1", "time_limit")},
}
"""The keys of a grid, with the argument of a run for each key."""


def read_grid(path: str) -> list[dict[str, Any]]:
    """Return the distinct runs of a TOML file; paths in it are relative to its folder.

    A run has only the arguments that its family, workload and layer use. Sizes and seeds replace ``{size}`` and
    ``{seed}``.
    Raises `FileFormatError` for a file that cannot be read, an unknown key, an invalid value, a key without values or
    without any run that uses it, and too many runs.
    """
    grid = read_toml(path)
    with errors_naming(path):
        for name in grid:
            if name not in KEYS:
                raise InvalidInputError(f"unknown key {name!r}{did_you_mean(name, KEYS)}; known are {', '.join(KEYS)}")
        if "workloads" not in grid:
            raise InvalidInputError('workloads must be given, such as workloads = ["prefix:{size}"]')
        values = {argument: _values(name, grid.get(name)) for name, argument in KEYS.items()}
        runs = [
            dict(run) for run in dict.fromkeys(tuple(_completed(run, path).items()) for run in combinations(values))
        ]
        for name in grid:
            if all(run[KEYS[name]] is None for run in runs):
                raise InvalidInputError(f"{name} must be for a family, workload or layer of the grid; none uses it")
        return runs


def _values(name: str, value: object) -> list[Any]:
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
    for item in values if name in checks else ():
        checks[name](**{name: item})
    return values


def _completed(run: dict[str, Any], path: str) -> dict[str, Any]:
    """Return a run without unused arguments, with its sizes and paths filled in; refuse an invalid request."""
    run |= {"problem": run["problem"] or "fitness", "layer": run["layer"] or "fast"}
    pattern = run["workload"]
    for name in ("size", "seed"):
        if f"{{{name}}}" in pattern and run[name] is None:
            raise InvalidInputError(f"{name}s must be given for {{{name}}}")
        run[name] = run[name] if f"{{{name}}}" in pattern else None
        run["workload"] = run["workload"].replace(f"{{{name}}}", str(run[name]))
    (options,) = (family.options for family in POSED if family.name == run["problem"])
    for name in ("targets", "rho", "t1"):
        run[name] = run[name] if name in options else None
    run["backend"] = run["backend"] if run["layer"] == Layer.REFERENCE else None
    for name in ("workload", "targets", "neighbours"):
        text = run[name]
        if isinstance(text, str) and not is_named(text) and Path(text).suffix.lower() in files.SUFFIXES:
            run[name] = str(Path(path).parent / text)
    request_of(run)
    return run


def request_of(run: Mapping[str, Any]) -> Request:
    """Return the request of a run. ρ is for fitness only, whose objective is then a factor."""
    rho = None if run["rho"] is None else Fraction(validate.exact_number(rho=run["rho"]))
    if rho is not None and run["problem"] != "fitness":
        raise InvalidInputError(
            "rho is for the family fitness; divide a total variance at rho = 1/2 by 2 rho for another rho"
        )
    targets = run["targets"] if run["targets"] is None else str(run["targets"])
    return Request(
        run["workload"], run["problem"], targets=targets, rho=rho, neighbours=run["neighbours"], t1=run["t1"]
    )


def run(**arguments: Any) -> Solution:
    """Solve the problem of a run."""
    problem = request_of(arguments).state()
    options = {name: arguments[name] for name in ("tol", "time_limit", "backend") if arguments[name] is not None}
    solver = fast if arguments["layer"] == "fast" else reference
    answer: Solution = solver.solve(problem, **options)
    return answer
