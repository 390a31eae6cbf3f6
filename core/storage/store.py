"""What was saved, whatever it is: written whole or not at all, and judged anew when it is read."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import PurePath
from typing import Any

import numpy as np

from dualmech import files, validate
from dualmech.asked import Asked
from dualmech.errors import DualmechError, FileFormatError, InputTypeError
from dualmech.files.archives import Arrays, FilePath
from dualmech.mechanisms import block, gaussian, local, privacy
from dualmech.progress import Status
from dualmech.solution import SCHEMA, VERSION, Solution, judged_solution, warn_if_uncertified
from dualmech.storage import codec
from dualmech.storage.schemas import unpack_answer
from dualmech.workloads.base import Workload


def save(thing: object, path: FilePath) -> None:
    """Write a solution, a mechanism or a workload to a file, whole or not at all; `load` reads it back.

    Raises `FileFormatError` where the path cannot be written, `InputTypeError` for what has no file. Solutions and
    mechanisms are ``.npz`` files; workloads any of those in ``docs/formats.md``.
    """
    if isinstance(thing, Workload):
        files.write_workload(thing, path)
    elif isinstance(thing, KEPT):
        thing.save(path)
    else:
        raise InputTypeError(
            f"thing must be a solution, a mechanism or a workload, got a {type(thing).__name__}; "
            f"of a refinement save its solution"
        )


def load(path: FilePath) -> Any:
    """Read whatever was saved: a `Solution`, judged anew, a mechanism, or a `Workload`.

    Raises `FileFormatError` where the file cannot be read, follows no known schema, lacks an array, or holds something
    impossible; `InputTypeError` for a path that is neither a text nor a path.

    Examples
    --------
    >>> import os, tempfile
    >>> import dualmech as dm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "prefix.csv")
    ...     dm.save(dm.workloads.prefix(3), path)
    ...     dm.load(path) == dm.workloads.prefix(3)
    True
    """
    if isinstance(path, str | PathLike) and PurePath(path).suffix.lower() == ".npz":
        head = files.read_archive(path, {"schema"})
        read = READERS.get(str(head.get("schema", "")))
        if read is not None:
            return read(path)
    return files.read_workload(path)


def load_solution(path: FilePath) -> Solution:
    """Read a solution back and judge it anew; a file that lies about its answer is found out here.

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
            asked=_asked(arrays),
        )
    except (DualmechError, ValueError, TypeError, OverflowError) as error:
        raise FileFormatError(f"{path}: {error}") from error
    return warn_if_uncertified(solution)


def _asked(arrays: Arrays) -> Asked | None:
    """Return what was asked beyond the problem, where a file says so."""
    found = codec.unpack(arrays, "asked")
    return None if found is None else validate.instance(Asked, asked=found)


def load_mechanism(path: FilePath) -> privacy.GaussianPrivacy:
    """Read a mechanism of any structure back; its privacy is computed anew from its noise.

    Raises `FileFormatError` where the file cannot be read, follows another schema, or its parts do not fit together.
    """
    codec.known_problems()
    arrays = files.read_npz(path, privacy.SCHEMA, (privacy.VERSION,))
    with files.errors_naming(path):
        made = codec.unpack(arrays, "mechanism")
        if not isinstance(made, privacy.GaussianPrivacy):
            raise InputTypeError(f"mechanism must be of a kind of mechanism, got {type(made).__name__}")
        return made


def _reason(arrays: Arrays) -> Status:
    """Return why the solver stopped; a file's own claim to be certified counts for nothing."""
    claimed = Status.__members__.get(str(arrays.get("status", "")), Status.STALLED)
    return Status.STALLED if claimed is Status.CERTIFIED else claimed


KEPT = (Solution, privacy.GaussianPrivacy, local.LocalMechanism)
"""What has a file, beside workloads."""

READERS: dict[str, Callable[[FilePath], Any]] = {
    SCHEMA: load_solution,
    privacy.SCHEMA: load_mechanism,
    gaussian.SCHEMA: gaussian.LinearGaussianMechanism.load,
    block.SCHEMA: block.BlockMechanism.load,
    local.SCHEMA: local.LocalMechanism.load,
}
"""By schema, what reads a file of it."""
