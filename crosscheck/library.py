"""A library of problems with proven optima, for whoever writes a solver: data, interval and proof in plain files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

import dualmech as dm
from dualmech import fast, files, reference, validate
from dualmech.certificate import Certificate
from dualmech.crosscheck import collection, sdpa
from dualmech.crosscheck.collection import problems
from dualmech.crosscheck.judging import covariance_of_strategy
from dualmech.errors import CertificateError, DualmechError, FileFormatError, InvalidInputError, did_you_mean
from dualmech.files import archives, atomic, reading
from dualmech.geometry.in_numbers import VALUES
from dualmech.problems.base import AnyProblem, Problem
from dualmech.solution import Solution
from dualmech.validate import Array
from dualmech.watching import without_warnings

UNASKED = -1  # entry of a table for an attribute that it does not ask about; 0 for its values, k for queries_k


def of_problem(problem: Problem) -> dict[str, Array]:
    """Return the arrays that state a problem, and its ``basis`` where the answer is noise on one.

    The ``numbers`` of a proof file are ``targets`` or ``weights`` here, as its kind says. For tables, ``tables`` (t, r)
    holds for every attribute -1 where it is not asked about, 0 where its values are, k where ``queries_k`` are. The
    parts of factors and mechanisms are counted from 1: ``factor_1_workload``, ``covariance_1``.

    Examples
    --------
    >>> import dualmech as dm
    >>> found = of_problem(dm.FitnessForUse(dm.workloads.marginals([3, 2], ways=(1, 2)), 1.0))
    >>> [*found], found["tables"].tolist()
    (['sizes', 'tables', 'records', 'targets', 'allowed'], [[0, -1], [-1, 0], [0, 0]])
    """
    numbers = dict(_flat(problem.in_numbers()))
    if criterion := getattr(problem, "criterion", None):
        numbers["criterion"] = np.asarray(criterion)
    with suppress(InvalidInputError, AttributeError):  # where the noise is on no such basis
        numbers["basis"] = np.asarray(problem.basis)  # type: ignore[attr-defined]
    return numbers


def _flat(stated: dict[str, Any], before: str = "") -> Iterator[tuple[str, Array]]:
    kind = str(stated["kind"]).split()[-1]
    for name, value in stated.items():
        if name == "kind" or value is None:
            continue
        if name == "queries":
            for number, matrix in enumerate(value.values(), start=1):
                yield f"{before}queries_{number}", np.asarray(matrix)
        elif name == "tables":
            yield f"{before}tables", _tables(stated)
        elif name == "factors":
            for number, factor in enumerate(value, start=1):
                yield from _flat(factor, f"{before}factor_{number}_")
        elif name == "mechanisms":
            for number, mechanism in enumerate(value, start=1):
                yield f"{before}covariance_{number}", np.asarray(mechanism["covariance"])
        else:
            yield before + (kind if name == "numbers" else name), np.asarray(value)


def _tables(stated: dict[str, Any]) -> Array:
    """Return what each table (a row) asks of each attribute (a column)."""
    names = [VALUES, *stated["queries"]]
    codes = np.full((len(stated["tables"]), len(stated["sizes"])), UNASKED, dtype=np.int16)
    for row, table in zip(codes, stated["tables"], strict=True):
        for attribute, query in table.items():
            row[int(attribute)] = names.index(query)
    return np.asarray(codes)


INDEX = "index.json"
ROUNDING = 1e-12  # an answer no further above the optimum is not distinguished from it
TOLERANCE, ROUGH = 1e-9, 0.1  # gaps: of the proofs, and enough to judge another answer
WIDEST = Fraction(1 + 2 * TOLERANCE)  # upper end over lower end of a proof that is kept
MOST_VARIABLES, MOST_ENTRIES = 1000, 10_000  # of a semidefinite program that is written

FIRST_WORDS = {family: word for word, family in collection.FAMILIES.items()}


@dataclass(frozen=True, slots=True)
class Proven:
    """A problem of the library: how large it is, and between which numbers its optimum lies."""

    name: str
    family: str  # its class
    kind: str  # as proof files call it
    queries: int  # as `shape` has them
    cells: int
    lower: float
    upper: float


def named(names: Sequence[str]) -> list[str]:
    """Return the names of problems: those given, and all of a family that is given by its class or its first word.

    Raises `InvalidInputError` for a name that is neither.

    Examples
    --------
    >>> from dualmech.crosscheck import library
    >>> library.named(["fitness-prefix-8", "NonnegativeEstimate"])[:2]
    ['fitness-prefix-8', 'estimate-histogram-16']
    """
    known, chosen = problems(), dict[str, None]()
    for name in validate.sequence(names=names):
        word = FIRST_WORDS.get(validate.text(names=name), name)
        matches = [candidate for candidate in known if candidate == name or candidate.partition("-")[0] == word]
        if not matches:
            meant = did_you_mean(name, [*known, *FIRST_WORDS])
            raise InvalidInputError(f"names must be of the library, or of a family, got {name!r}{meant}")
        chosen |= dict.fromkeys(matches)
    return [*chosen]


def shape(problem: AnyProblem) -> tuple[int, int]:
    """Return the numbers of queries and cells: of common mechanisms those in common, of projections (m, n)."""
    parts = (getattr(problem, name, None) for name in ("workload", "basis", "matrix"))
    rows, columns = next(part.shape for part in parts if part is not None)
    return int(rows), int(columns)


def build(folder: str | PathLike[str], names: Sequence[str] | None = None) -> Iterator[Proven]:
    """Solve, prove and write the problems of the library, except those that are there already; yield each.

    Problem NAME has ``NAME.npz``, the problem as plain arrays, ``NAME.json``, the proof, and ``NAME.dat-s``, its
    semidefinite program where there is one of at most 1000 variables and 10,000 entries. ``index.json`` lists
    all. With `names` only those, or those of the families named.
    Raises `InvalidInputError` for a name that is unknown, `FileFormatError` where the folder cannot be written.
    """
    known = problems()
    wanted, place = [*known] if names is None else named(names), atomic.make_folder(folder)
    listed = {entry.name: entry for entry in read(folder)} if (place / INDEX).exists() else {}
    for name in wanted:
        problem = known[name]()
        _state(place, name, problem)
        path = place / f"{name}.json"
        if (proof := _kept(path, problem)) is None:
            proof = _proven(problem, TOLERANCE)
            proof.save(path)
        kind = str(proof.document["problem"]["kind"])
        ends = float(proof.lower), float(proof.upper)
        listed[name] = Proven(name, type(problem).__name__, kind, *shape(problem), *ends)
        text = json.dumps([asdict(entry) for entry in listed.values()], indent=1)
        atomic.write_text(place / INDEX, text)
        yield listed[name]


def read(folder: str | PathLike[str]) -> list[Proven]:
    """Return the problems of a library on disk, to test a solver against.

    Raises `FileFormatError` where there is no library.
    """
    path = Path(folder) / INDEX
    with reading.errors_naming(path), reading.decoding_errors(path, "library"):
        listed = [Proven(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
        for entry in listed:
            validate.text(name=entry.name), validate.text(kind=entry.kind)
            low, high = validate.positive_number(lower=entry.lower), validate.positive_number(upper=entry.upper)
            if low > high:
                raise InvalidInputError(f"lower must be at most upper, got {low!r} and {high!r}")
    return listed


def arrays(folder: str | PathLike[str], name: str) -> dict[str, Array]:
    """Return the arrays that state a problem, such as ``workload`` (m, d), ``targets`` or ``weights`` (m,).

    They are named as in the proof (`collection.arrays`); where the answer is noise on a basis there is the ``basis`` B
    (k, d) as well.
    """
    contents: dict[str, Array] = archives.read_archive(Path(folder) / f"{name}.npz")
    return contents


@cache
def interval(name: str, tol: float = TOLERANCE) -> tuple[float, float]:
    """Return the numbers between which the optimum of a problem lies, proven in exact arithmetic.

    They are about `tol` apart, relative, where rounding allows it.
    """
    proof = _proven(problems()[name](), tol)
    return float(proof.lower), float(proof.upper)


def as_point(problem: AnyProblem, answer: Array, kind: str = "answer") -> Any:
    """Return an answer that is one matrix as a point of its problem.

    For noise on a matrix it is a strategy (p, d): queries measured with unit noise; as ``covariance`` the covariance of
    the noise on the basis (k, k), or on the cells (d, d). Otherwise it is the problem's own point: weights of the
    design queries (k,), a covariance on the common basis (r, r), a strategy Q or a projection (m, n), an estimate (d,);
    vectors may lie either way.
    Raises `InvalidInputError` for an answer of another form, and for noise on tables, which is not a single matrix.
    """
    array = np.asarray(answer)
    if hasattr(problem, "workload") and hasattr(problem, "basis"):  # refused by name where the noise is on tables
        if kind != "covariance":
            return problem.as_primal(covariance_of_strategy(problem, array))
    elif 1 in array.shape and getattr(_roughly(problem).primal, "ndim", 0) == 1:
        array = array.ravel()
    return problem.as_primal(array)


def judged(known: Any, problem: AnyProblem, point: object, scaled: bool) -> tuple[Certificate, str]:
    """Return the certificate of a point, scaled or mended to be feasible if so asked; and the reason if it is not.

    - `known`: the problem's `name`, with the ends `lower` and `upper` of its proven interval.
    """
    dual = some_answer(known.name).dual
    with np.errstate(all="ignore"):
        mended: Certificate = problem.certify(problem.feasible(point), dual)
        certificate: Certificate = mended if scaled else problem.certify(point, dual)
    if certificate.feasible:
        return certificate, ""
    if certificate.remarks and not mended.feasible:
        return certificate, "; ".join(certificate.remarks)
    most = "; ".join(problem.exceeded(point)) or _excess(point, certificate.violation)
    near = distance(mended.objective / known.upper - 1, mended.objective / known.lower - 1)
    return certificate, f"infeasible: {most}; scaled it would be {near}"


def _excess(point: object, violation: float) -> str:
    """Say how far a point is from meeting the constraint that it violates most."""
    if math.isfinite(violation):
        return f"it exceeds a constraint by {violation:.3g} of the constraint's bound"
    if isinstance(point, np.ndarray) and point.ndim == 2 and len(point) == point.shape[1]:
        return f"it is not positive semidefinite, its least eigenvalue is {np.linalg.eigvalsh(point)[0]:.3g}"
    return "it is no point of the problem's domain"


def distance(least: float, most: float) -> str:
    """Say how far above the optimum an answer is, when that is between two shares of the optimum.

    Examples
    --------
    >>> distance(-1e-10, 4.4e-10), distance(0.1234561, 0.1234562), distance(0.01, 0.02)
    ('optimal within 4.4e-10', '12.35 % above', '1 % to 2 % above')
    """
    if least <= ROUNDING:
        return f"optimal within {max(most, 0.0):.1e}"
    ends = dict.fromkeys(f"{100 * share:.4g} %" for share in (least, most))
    return f"{' to '.join(ends)} above"


def _kept(path: Path, problem: Problem) -> dm.Proof | None:
    """Return a proof that is there already, of this problem and as narrow as is promised, else None."""
    try:
        proof = dm.verify(path)
    except (FileFormatError, CertificateError):
        return None
    narrow = proof.lower > 0 and proof.upper <= proof.lower * WIDEST
    return proof if narrow and proof.is_of(problem) else None


def _state(folder: Path, name: str, problem: AnyProblem) -> None:
    """Write the problem, as plain arrays and as a program: the same bytes each time."""
    try:
        program = reference.matrix_inequalities(problem)
    except DualmechError:
        program = None  # the problem has no such program
    if program and len(program.objective) <= MOST_VARIABLES and len(program.entries) <= MOST_ENTRIES:
        atomic.write_text(folder / f"{name}.dat-s", sdpa.text(problem, program))
    stated: dict[str, Any] = {**of_problem(problem)}
    with files.atomic_write(folder / f"{name}.npz") as handle:
        np.savez(handle, **stated)


@cache
def some_answer(name: str) -> Solution:
    """Return some answer to a problem: the judge compares others with its bound, which need not be a good one."""
    return _roughly(problems()[name]())


def _roughly(problem: AnyProblem) -> Solution:
    with without_warnings():
        answer: Solution = fast.solve(problem, tol=ROUGH)
        return answer


def _proven(problem: AnyProblem, tol: float) -> dm.Proof:
    """Return the narrowest proof of answers at the tolerance and, if that is beyond doubles, at looser tolerances."""
    with without_warnings():
        answers = (fast.solve(problem, tol=factor * tol) for factor in (1, 3, 10))
        narrowest = dm.prove(next(answers))
        for answer in answers:
            if narrowest.width <= 2 * tol:
                break
            narrowest = min(narrowest, dm.prove(answer), key=lambda proof: proof.width)
    return narrowest
