"""Solvers ranked by their answers to problems of the library, whose optima are proven in exact arithmetic."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from dualmech import files, validate
from dualmech.certificate import FEASIBLE
from dualmech.crosscheck import library
from dualmech.crosscheck.library import Proven
from dualmech.errors import CertificateError, DualmechError, FileFormatError, InvalidInputError, did_you_mean
from dualmech.files import archives
from dualmech.problems.base import AnyProblem
from dualmech.validate import Array

SUFFIXES = (".csv", ".npy", ".npz", ".mtx")
ARRAYS = ("covariance", "strategy", "answer")
"""Names for the array of an answer in an ``.npz`` file; `seconds` may come with it."""

FAR = 0.01  # relative distance from the optimum above which a symmetric strategy may be a covariance by mistake

COVARIANCE_HINT = (
    "it was read as a strategy, but looks like a covariance: save it in an .npz file as the array 'covariance'"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A solver's answer to one problem, or a file that holds no answer: its distance from the optimum.

    Attributes
    ----------
    solver, name : str
        The solver, and the problem (or the file).
    objective : float
        Objective of the point.
    least, most : float
        Relative excess of the objective over the upper and the lower end of the proven interval. `most` charges the
        violation and rounding; both are inf if there is no feasible answer.
    violation : float
        Largest relative excess over a constraint.
    seconds : float
        Seconds that the solver took; NaN if unknown.
    fault : str
        Why the answer is not a feasible point; for `testing.scores` also why dual weights or value are wrong.
    hint : str
        What the array of a bad answer looks like.
    """

    solver: str
    name: str
    objective: float = math.nan
    least: float = math.inf
    most: float = math.inf
    violation: float = math.nan
    seconds: float = math.nan
    fault: str = ""
    hint: str = ""

    @property
    def words(self) -> str:
        """The distance from the optimum, or the fault, and a hint if there is one."""
        return (self.fault or library.distance(self.least, self.most)) + (self.hint and f"; {self.hint}")

    def status(self, tol: float) -> str:
        """Return ``within`` `tol` of the optimum, ``above`` it, ``breaks`` (infeasible), or ``failed``: other faults.

        - `tol`: relative distance from the optimum.
        """
        if self.fault:
            return "breaks" if self.violation > FEASIBLE else "failed"
        return "within" if self.most <= tol else "above"


@dataclass(frozen=True, slots=True)
class Standing:
    """How a solver did: on how many answers, how many of them feasible and within a tolerance, how far at most."""

    solver: str
    answers: int
    feasible: int
    within: int
    median: float  # relative distance from the optimum at most, over the feasible answers; NaN where there are none
    worst: float
    seconds: float  # in all, of the answers that say so; NaN where none does


def entries(
    folder: str | PathLike[str], answers: Sequence[str | PathLike[str]], *, scaled: bool = False
) -> Iterator[Entry]:
    """Judge folders of answers, one for each solver, against the proven optima of a library; yield every file's entry.

    An answer to problem NAME is ``NAME.npz`` with one of the arrays `covariance`, `strategy` or `answer`, and `seconds`
    if it is known, or ``NAME.csv``, ``.npy`` or ``.mtx`` with one matrix (`library.as_point` says what it is).
    Answers are taken as they are, and must meet every constraint to 1e-9. A file that cannot be read, is no answer to
    its problem, or has no problem's name, is an entry with a fault.
    Raises `FileFormatError` where there is no library, or a folder of answers is no folder.

    - `folder`: a library, as `library.build` wrote it;
    - `answers`: folders, each named as its solver;
    - `scaled`: whether points are scaled, or mended, to be feasible first, for solvers that publish up to scale.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from dualmech.crosscheck import leaderboard, library
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mine = Path(folder) / "mine"
    ...     mine.mkdir()
    ...     problems = [*library.build(Path(folder) / "problems", ["fitness-prefix-2"])]
    ...     np.savez(mine / "fitness-prefix-2.npz", covariance=[[1, -1 / 2], [-1 / 2, 1]], seconds=0.25)
    ...     (found,) = leaderboard.entries(Path(folder) / "problems", [mine])
    >>> round(found.objective, 6), found.words.partition(" within ")[0], found.seconds
    (1.333333, 'optimal', 0.25)
    """
    listed = {proven.name: proven for proven in library.read(folder) if proven.name in library.problems()}
    mended = validate.boolean(scaled=scaled)
    places = [Path(place) for place in validate.sequence(answers=answers)]
    for place in places:
        if not place.is_dir():
            raise FileFormatError(f"{place}: is no folder of answers")
    for place in places:
        seen: set[str] = set()
        for path in sorted(place.iterdir()):
            if path.suffix in SUFFIXES and not path.name.startswith("."):
                yield _entry(place.resolve().name, path, listed, seen, mended)


def standings(rows: Iterable[Entry], tol: float) -> list[Standing]:
    """Rank solvers: by how many answers are within the tolerance, then by the worst distance, then by the median."""
    allowed, by_solver = validate.positive_number(tol=tol), dict[str, list[Entry]]()
    for entry in rows:
        by_solver.setdefault(entry.solver, []).append(entry)
    ranked = []
    for solver, solver_entries in by_solver.items():
        apart = [max(entry.most, 0.0) for entry in solver_entries if not entry.fault]
        times = [entry.seconds for entry in solver_entries if not math.isnan(entry.seconds)]
        ranked.append(
            Standing(
                solver,
                answers=len(solver_entries),
                feasible=len(apart),
                within=sum(entry.status(allowed) == "within" for entry in solver_entries),
                median=statistics.median(apart) if apart else math.nan,
                worst=max(apart, default=math.nan),
                seconds=sum(times) if times else math.nan,
            )
        )
    return sorted(
        ranked, key=lambda standing: (-standing.within, *(np.nan_to_num([standing.worst, standing.median], nan=np.inf)))
    )


def _entry(solver: str, path: Path, listed: Mapping[str, Proven], seen: set[str], scaled: bool) -> Entry:
    name = path.stem
    if name not in listed:
        return Entry(solver, path.name, fault=f"no problem of the library is called so{did_you_mean(name, [*listed])}")
    if name in seen:
        return Entry(solver, path.name, fault="the problem has another answer already")
    seen.add(name)
    known, problem = listed[name], library.problems()[name]()
    try:
        kind, numbers, seconds = _read(path)
        entry = distance_entry(solver, known, problem, library.as_point(problem, numbers, kind), scaled)
    except (DualmechError, CertificateError, OSError, ValueError, TypeError, ArithmeticError, MemoryError) as error:
        return Entry(solver, name, fault=str(error).removeprefix(f"{path}: "))
    bare = kind == "answer" and hasattr(problem, "workload") and hasattr(problem, "basis")
    hint = COVARIANCE_HINT if bare and entry.status(FAR) != "within" and _is_covariance(numbers) else ""
    return replace(entry, seconds=seconds, hint=hint)


def distance_entry(solver: str, known: Any, problem: AnyProblem, point: object, scaled: bool) -> Entry:
    """Judge a point, and return its distance from the optimum.

    - `known`: the problem's `name`, with the ends `lower` and `upper` of its proven interval.
    """
    certificate, fault = library.judged(known, problem, point, scaled)
    if fault:
        return Entry(solver, known.name, certificate.objective, violation=certificate.violation, fault=fault)
    # The violation of up to 1e-9, and rounding, are charged to the answer.
    least, most = certificate.objective / known.upper - 1, certificate.interval[1] / known.lower - 1
    return Entry(solver, known.name, certificate.objective, least, most, certificate.violation)


def _is_covariance(matrix: Array) -> bool:
    """Return whether a matrix is symmetric and positive definite, and no multiple of the identity."""
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    if not square or not np.allclose(matrix, matrix.T, rtol=1e-9, atol=0.0) or not np.triu(matrix, 1).any():
        return False
    return bool(np.linalg.eigvalsh(matrix)[0] > 0)


def _read(path: Path) -> tuple[str, Array, float]:
    """Return the kind of an answer, its array, and its seconds, NaN where the file has none."""
    if path.suffix != ".npz":
        return "answer", files.read_matrix(path, "answer"), math.nan
    held = archives.read_archive(path)
    kinds = [kind for kind in ARRAYS if kind in held]
    if len(kinds) != 1 or held.keys() - {*kinds, "seconds"}:
        raise InvalidInputError(
            f"an answer must be one array called {', '.join(ARRAYS)}, with seconds if known, got {', '.join(held)}"
        )
    seconds = validate.nonnegative_number(seconds=held["seconds"].item()) if "seconds" in held else math.nan
    return kinds[0], validate.finite(**{kinds[0]: held[kinds[0]]}), seconds
