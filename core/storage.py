"""Solutions on disk: written whole or not at all, and judged anew when they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import files, linalg, marginal_files
from dualmech.archives import Arrays, FilePath
from dualmech.errors import DualmechError, FileFormatError, InputTypeError
from dualmech.marginals import MarginalWorkload
from dualmech.problems.fitness import FitnessDual, FitnessForUse, PrivacyFirst
from dualmech.problems.marginals import MarginalDual, MarginalFitness, MarginalVariance
from dualmech.problems.softmax import SoftmaxDual, SoftmaxFitness
from dualmech.problems.variance import TotalVariance, VarianceDual
from dualmech.problems.weighting import QueryWeighting, WeightingDual
from dualmech.solution import Solution, Status, judged, warned

SCHEMA, VERSION = "dualmech.solution", 1

PREFIX = "workload_"
"""What the keys of a workload start with."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem in a file; its keys are named as the parameters of the problem and of its dual weights.

    Where it is of marginal tables, the file names the tables instead of holding a matrix.
    """

    problem: type
    dual: type
    data: tuple[str, ...]
    optional: tuple[str, ...] = ("basis", "neighbours")
    weights: tuple[str, ...] = ("neighbour_weights",)
    tables: bool = False


BOTH_WEIGHTS = ("neighbour_weights", "query_weights")

KINDS = {
    kind.problem.__name__: kind
    for kind in (
        Kind(FitnessForUse, FitnessDual, ("targets",), weights=BOTH_WEIGHTS),
        Kind(PrivacyFirst, FitnessDual, ("targets", "cost"), weights=BOTH_WEIGHTS),
        Kind(SoftmaxFitness, SoftmaxDual, ("targets", "t1", "t2", "total_weight"), weights=BOTH_WEIGHTS),
        Kind(TotalVariance, VarianceDual, ("weights",)),
        Kind(MarginalFitness, MarginalDual, ("targets",), (), ("table_weights",), tables=True),
        Kind(MarginalVariance, type(None), ("weights",), (), (), tables=True),
        Kind(QueryWeighting, WeightingDual, ("design", "privacy"), optional=("neighbours",)),
    )
}
"""The problems whose solutions can be written, by name."""


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
    kind = KINDS.get(type(problem).__name__)
    if kind is None:
        raise InputTypeError(
            f"solution must be of one of {', '.join(KINDS)} to be written, got that of a {type(problem).__name__}"
        )
    arrays: dict[str, Any] = (
        _table_arrays(problem) if kind.tables else files.workload_arrays(problem.workload)
    )
    arrays["problem"] = type(problem).__name__
    for name in (*kind.data, *kind.optional):
        if getattr(problem, name) is not None:
            arrays[name] = linalg.to_dense(getattr(problem, name))
    arrays["primal"] = solution.primal
    arrays |= {name: getattr(solution.dual, name) for name in kind.weights}
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
    files.require(path, arrays, "problem", "primal")
    kind = KINDS.get(str(arrays["problem"]))
    if kind is None:
        raise FileFormatError(
            f"{path}: problem must be one of {', '.join(KINDS)}, got {str(arrays['problem'])!r}"
        )
    files.require(path, arrays, *kind.data, *kind.weights)
    try:
        stated = {key: _value(arrays[key]) for key in (*kind.data, *kind.optional) if key in arrays}
        workload = _tables(path, arrays) if kind.tables else files.workload_from_arrays(arrays)
        problem = kind.problem(workload, **stated)
        solution = judged(
            problem,
            arrays["primal"],
            kind.dual(**{key: arrays[key] for key in kind.weights}),
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


def _table_arrays(problem: Any) -> Arrays:
    tables = marginal_files.arrays(problem.workload.domain, problem.workload.axes)
    return {f"{PREFIX}{key}": value for key, value in tables.items()}


def _tables(path: FilePath, arrays: Arrays) -> MarginalWorkload:
    files.require(path, arrays, *(f"{PREFIX}{key}" for key in marginal_files.KEYS))
    parts = {key: arrays[f"{PREFIX}{key}"] for key in marginal_files.KEYS}
    return MarginalWorkload(*marginal_files.from_arrays(parts))


def _reason(arrays: Arrays) -> Status:
    """Return why the solver stopped; a file's own claim to be certified counts for nothing."""
    claimed = Status.__members__.get(str(arrays.get("status", "")), Status.STALLED)
    return Status.STALLED if claimed is Status.CERTIFIED else claimed


def _value(array: npt.NDArray[Any]) -> Any:
    """Return the number or the text that an array of no dimension holds, and any other array as it is."""
    return array.item() if array.ndim == 0 else array
