"""Solutions on disk: written whole or not at all, and judged anew when they are read."""

from __future__ import annotations

import numpy as np

from dualmech import files, validate
from dualmech.errors import DualmechError, FileFormatError, InputTypeError
from dualmech.files.archives import Arrays, FilePath
from dualmech.solution import Solution, Status, judged_solution, warn_if_uncertified
from dualmech.storage.schemas import PROBLEMS, pack_answer, unpack_answer

SCHEMA, VERSION = "dualmech.solution", 1


def save_solution(solution: Solution, path: FilePath) -> None:
    """Write a solution and its problem to an ``.npz`` file (schema in ``docs/formats.md``).

    The certificate is not written: it is computed again when the file is read.
    Raises `FileFormatError` where the path cannot be written; nothing is left behind; `InputTypeError` for a
    solution of a problem that has no file schema yet.

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
    if type(problem).__name__ not in PROBLEMS:
        raise InputTypeError(
            f"solution must be of one of {', '.join(PROBLEMS)} to be written, got that of a {type(problem).__name__}"
        )
    arrays = pack_answer(problem, solution.primal, solution.dual)
    kept = {key: getattr(solution, key) for key in ("tol", "message", "iterations", "seconds", "solver")}
    files.write_npz(path, SCHEMA, VERSION, **arrays, status=solution.status.name, **kept)


def load_solution(path: FilePath) -> Solution:
    """Read a solution and judge it anew: a false claim in the file has no effect.

    Raises `FileFormatError` where the file cannot be read, follows another schema, lacks an array, or holds an
    impossible problem; `InputTypeError` for a path that is neither a text nor a path.
    """
    arrays = files.read_npz(path, SCHEMA, (VERSION,))
    try:
        problem, primal, dual = unpack_answer(arrays)
        solution = judged_solution(
            problem,
            primal,
            dual,
            tol=validate.positive_number(tol=float(arrays.get("tol", np.array(1e-6)))),
            otherwise=_reason(arrays),
            iterations=int(arrays.get("iterations", np.array(0))),
            seconds=float(arrays.get("seconds", np.array(0.0))),
            message=str(arrays.get("message", "")),
            solver=str(arrays.get("solver", "")),
        )
    except (DualmechError, ValueError, TypeError, OverflowError) as error:
        raise FileFormatError(f"{path}: {error}") from error
    return warn_if_uncertified(solution)


def _reason(arrays: Arrays) -> Status:
    """Return why the solver stopped; a file's own claim to be certified counts for nothing."""
    claimed = Status.__members__.get(str(arrays.get("status", "")), Status.STALLED)
    return Status.STALLED if claimed is Status.CERTIFIED else claimed
