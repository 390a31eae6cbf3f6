"""Solutions on disk: written whole or not at all, and judged anew when they are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from dualmech import files, linalg
from dualmech.archives import Arrays, FilePath
from dualmech.errors import DualmechError, FileFormatError, InputTypeError
from dualmech.problems.fitness import FitnessDual, FitnessForUse, PrivacyFirst
from dualmech.problems.variance import TotalVariance, VarianceDual
from dualmech.problems.weighting import QueryWeighting, WeightingDual
from dualmech.solution import Solution, Status, judged, warned

SCHEMA, VERSION = "dualmech.solution", 1

REQUIRED = {"TotalVariance": ("weights",), "QueryWeighting": ("design", "privacy")}
"""What a file must hold beside what all hold, by kind of problem."""

OF_FITNESS = ("targets", "query_weights")
"""The same for the other kinds."""


def save_solution(solution: Solution, path: FilePath) -> None:
    """Write a solution and its problem to an ``.npz`` file (schema in ``docs/formats.md``).

    The certificate is not written: whoever reads the file has the judge compute it again.

    Raises
    ------
    FileFormatError
        The path cannot be written; nothing is left behind.
    InputTypeError
        A solution of a problem that has no file schema yet.

    Examples
    --------
    >>> import os, tempfile
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "prefix.npz")
    ...     dm.save_solution(answer, path)
    ...     again = dm.load_solution(path)
    >>> again.objective == answer.objective, again.status.name
    (True, 'CERTIFIED')
    """
    if not isinstance(solution, Solution):
        raise InputTypeError(
            f"solution must be a dualmech.Solution (of a refinement, its .solution), got {type(solution).__name__}"
        )
    problem = solution.problem
    if not isinstance(problem, FitnessForUse | PrivacyFirst | TotalVariance | QueryWeighting):
        raise InputTypeError(
            f"solution of a {type(problem).__name__} cannot be written: it has no schema yet"
        )
    arrays: dict[str, Any] = files.workload_arrays(problem.workload)
    arrays["problem"] = type(problem).__name__
    for name in ("basis", "targets", "cost", "weights", "design", "privacy"):
        if hasattr(problem, name):
            arrays[name] = getattr(problem, name)
    if problem.neighbours is not None:
        arrays["neighbours"] = linalg.to_dense(problem.neighbours)
    arrays |= {"primal": solution.primal, "neighbour_weights": solution.dual.neighbour_weights}
    if isinstance(solution.dual, FitnessDual):
        arrays["query_weights"] = solution.dual.query_weights
    arrays["status"] = solution.status.name
    arrays |= {key: getattr(solution, key) for key in ("tol", "message", "iterations", "seconds", "solver")}
    files.write_npz(path, SCHEMA, VERSION, **arrays)


def load_solution(path: FilePath) -> Solution:
    """Read a solution back and judge it anew; a file that lies about its answer is found out here.

    Raises
    ------
    FileFormatError
        The file cannot be read, follows another schema, lacks an array, or holds an impossible problem.
    """
    arrays = files.read_npz(path, SCHEMA, (VERSION,))
    files.require(path, arrays, "problem", "primal", "neighbour_weights")
    files.require(path, arrays, *REQUIRED.get(str(arrays["problem"]), OF_FITNESS))
    try:
        problem = _problem(arrays)
        solution = judged(
            problem,
            arrays["primal"],
            _dual(problem, arrays),
            tol=float(arrays.get("tol", np.array(1e-6))),
            otherwise=_reason(arrays),
            iterations=int(arrays.get("iterations", np.array(0))),
            seconds=float(arrays.get("seconds", np.array(0.0))),
            message=str(arrays.get("message", "")),
            solver=str(arrays.get("solver", "")),
        )
    except (DualmechError, ValueError, TypeError) as error:
        raise FileFormatError(f"{path}: {error}") from error
    return warned(solution)


def _reason(arrays: Arrays) -> Status:
    """Return why the solver stopped; a file's own claim to be certified counts for nothing."""
    claimed = Status.__members__.get(str(arrays.get("status", "")), Status.STALLED)
    return Status.STALLED if claimed is Status.CERTIFIED else claimed


def _dual(problem: Any, arrays: Arrays) -> FitnessDual | VarianceDual | WeightingDual:
    if isinstance(problem, QueryWeighting):
        return WeightingDual(arrays["neighbour_weights"])
    if isinstance(problem, TotalVariance):
        return VarianceDual(arrays["neighbour_weights"])
    return FitnessDual(arrays["neighbour_weights"], arrays["query_weights"])


def _problem(arrays: Arrays) -> FitnessForUse | PrivacyFirst | TotalVariance | QueryWeighting:
    workload = files.workload_from_arrays(arrays)
    shared = {key: arrays[key] for key in ("basis", "neighbours") if key in arrays}
    kind = str(arrays["problem"])
    if kind == "PrivacyFirst" and "cost" in arrays:
        return PrivacyFirst(workload, arrays["targets"], float(arrays["cost"]), **shared)
    if kind == "FitnessForUse":
        return FitnessForUse(workload, arrays["targets"], **shared)
    if kind == "TotalVariance":
        return TotalVariance(workload, arrays["weights"], **shared)
    if kind == "QueryWeighting":
        return QueryWeighting(
            workload, arrays["design"], str(arrays["privacy"]), neighbours=arrays.get("neighbours")
        )
    raise FileFormatError(
        f"problem must be FitnessForUse, PrivacyFirst with a cost, TotalVariance or QueryWeighting, got {kind!r}"
    )
