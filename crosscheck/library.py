"""A library of problems with proven optima, for whoever writes a solver: data, interval and proof in plain files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache, partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from dualmech import fast, files, validate, workloads
from dualmech.crosscheck import sdpa
from dualmech.crosscheck.judging import covariance_of_strategy
from dualmech.crosscheck.papers.fitness import instances
from dualmech.crosscheck.papers.solving import without_warnings
from dualmech.errors import CertificateError, FileFormatError, InvalidInputError
from dualmech.files import archives, reading
from dualmech.neighbours import household
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.proofs.prove import Proof, prove, verify
from dualmech.validate import Array
from dualmech.workloads.base import Workload

INDEX = "index.json"
ANSWERS = (".csv", ".npy", ".npz", ".mtx")
TOLERANCE, SEED = 1e-9, 0
WIDEST = Fraction(1 + 2 * TOLERANCE)  # upper end over lower end of a proof that is kept
MOST_VARIABLES = 1000  # of a semidefinite program that is written

Stated = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Proven:
    """A problem of the library: how large it is, and between which numbers its optimum lies."""

    name: str
    family: str
    queries: int
    cells: int
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a strategy stands: what its noise achieves, and how far above the optimum that is, from both sides."""

    name: str
    objective: float
    least_excess: float
    most_excess: float


def problems() -> dict[str, Stated]:
    """Return the problems by name; each is stated when it is called.

    Examples
    --------
    >>> from dualmech.crosscheck import library
    >>> library.problems()["fitness-prefix-8"]()
    FitnessForUse(Workload(8 queries x 8 cells, dense), dense)
    """
    asked: dict[str, Callable[[], tuple[Workload, Any]]] = {}
    for cells in (2, 4, 8, 16, 32, 64):
        asked[f"prefix-{cells}"] = partial(_plain, workloads.prefix, cells)
    for cells in (4, 8, 16):
        asked[f"ranges-{cells}"] = partial(_plain, workloads.all_range, cells)
        asked[f"identity-total-{cells}"] = partial(_plain, workloads.identity_total, cells)
        asked[f"circle-{cells}"] = partial(_plain, workloads.circular_ranges, cells)
    for cells in (2, 4):
        asked[f"marginals-{cells}"] = partial(_plain, workloads.marginals, (cells,) * 3, ways=(1, 2))
    for table in instances.RANDOM_TABLES:
        asked[f"table-{table}-64"] = instances.readings(table, 64)[0].build
    for name in _shapes():
        asked[name] = partial(_shaped, name)
    found: dict[str, Stated] = {}
    for name, build in asked.items():
        found[f"fitness-{name}"] = partial(_fitness, build)
        found[f"variance-{name}"] = partial(_variance, build)
    for name, moves in (
        ("replaced", "replace"),
        ("three-records", "add-remove:3"),
        ("household", household(8, 2)),
    ):
        found[f"fitness-prefix-8-{name}"] = partial(_fitness, asked["prefix-8"], neighbours=moves)
        found[f"variance-prefix-8-{name}"] = partial(_variance, asked["prefix-8"], neighbours=moves)
    return found


def build(folder: str | PathLike[str], names: list[str] | None = None) -> Iterator[Proven]:
    """Solve, prove and write the problems of the library, those that are there already excepted; yield each.

    Of problem NAME there are ``NAME.npz``, its workload, targets or weights, and neighbours as plain arrays,
    ``NAME.json``, the proof, and where it has at most 1000 variables ``NAME.dat-s``, its semidefinite program.
    ``index.json`` lists all.
    Raises `InvalidInputError` for a name that is unknown, `FileFormatError` where the folder cannot be written.
    """
    known, place = problems(), Path(folder)
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise InvalidInputError(f"names must be of the library, got {unknown[0]!r}")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileFormatError(f"{folder}: cannot be written: {error.strerror}") from error
    listed = {each.name: each for each in read(folder)} if (place / INDEX).exists() else {}
    for name in names or known:
        problem = known[name]()
        _state(place, name, problem)
        proof = _kept(place / f"{name}.json", problem) or _made(place / f"{name}.json", problem)
        listed[name] = Proven(
            name,
            type(problem).__name__,
            len(problem.workload),
            problem.workload.shape[1],
            float(proof.lower),
            float(proof.upper),
        )
        text = json.dumps([asdict(each) for each in listed.values()], indent=1)
        with files.atomic_write(place / INDEX) as handle:
            handle.write(text.encode("ascii"))
        yield listed[name]


def read(folder: str | PathLike[str]) -> list[Proven]:
    """Return the problems of a library on disk, to test a solver against.

    Raises `FileFormatError` where there is no library.
    """
    path = Path(folder) / INDEX
    with reading.errors_naming(path), reading.decoding_errors(path, "library"):
        listed = [Proven(**each) for each in json.loads(path.read_text(encoding="utf-8"))]
        for each in listed:
            validate.text(name=each.name)
            low, high = validate.positive_number(lower=each.lower), validate.positive_number(upper=each.upper)
            if low > high:
                raise InvalidInputError(f"lower must be at most upper, got {low!r} and {high!r}")
    return listed


def arrays(folder: str | PathLike[str], name: str) -> dict[str, Array]:
    """Return the arrays ``workload`` (m, d), ``targets`` or ``weights`` (m,), and ``neighbours`` (d, s) if any.

    Beside a semidefinite program there is the ``basis`` B (k, d) as well, on which its Σ is: the noise is on B x.
    """
    found: dict[str, Array] = archives.read_archive(Path(folder) / f"{name}.npz")
    return found


@cache
def interval(name: str, tol: float = TOLERANCE) -> tuple[float, float]:
    """Return the numbers between which the optimum of a problem lies, proven in exact arithmetic.

    They are about `tol` apart, relative, where rounding allows it.
    """
    proof = _proven(problems()[name](), tol)
    return float(proof.lower), float(proof.upper)


def leaderboard(folder: str | PathLike[str], answers: str | PathLike[str]) -> Iterator[Entry]:
    """Judge a folder of strategies, ``NAME.csv``, ``.npy``, ``.npz`` or ``.mtx``, against the proven optima.

    A strategy is any matrix of queries (p, d) that are measured with unit noise; its scale does not matter.
    Raises `FileFormatError` or `InvalidInputError` for a file that is no strategy of its problem.
    """
    given = Path(answers)
    known = problems()
    for each in read(folder):
        if each.name not in known:
            continue
        paths = [path for path in (given / f"{each.name}{suffix}" for suffix in ANSWERS) if path.exists()]
        if paths:
            problem = known[each.name]()
            with reading.errors_naming(paths[0]):
                objective = achieved(problem, files.read_matrix(paths[0], "strategy"))
            yield Entry(each.name, objective, objective / each.upper - 1, objective / each.lower - 1)


def achieved(problem: Any, strategy: Array) -> float:
    """Return the objective of unit noise on a strategy, scaled to meet what is asked."""
    return achieved_by_noise(problem, covariance_of_strategy(problem, strategy))


def achieved_by_noise(problem: Any, covariance: Array) -> float:
    """Return the objective of noise on B x, B the problem's basis, scaled to meet what is asked."""
    point = problem.feasible(covariance)
    forms = problem.geometry.forms(point)
    if forms is None:
        raise InvalidInputError("strategy must give noise wherever neighbours differ, as a covariance must")
    return float(forms.total(problem.weights)[0] if isinstance(problem, TotalVariance) else forms.cost)


def _kept(path: Path, problem: Any) -> Proof | None:
    """Return a proof that is there already, of this problem and as narrow as is promised, else None."""
    try:
        proof = verify(path)
    except (FileFormatError, CertificateError):
        return None
    narrow = proof.lower > 0 and proof.upper <= proof.lower * WIDEST
    return proof if narrow and proof.is_of(problem) else None


def _state(folder: Path, name: str, problem: Any) -> None:
    """Write what is asked, as plain arrays and as a program: the same bytes each time."""
    stated = problem.in_numbers()
    data = {"workload": stated["workload"], stated["kind"]: stated["numbers"]}
    if stated["neighbours"] is not None:
        data["neighbours"] = stated["neighbours"]
    if sdpa.variables(problem) <= MOST_VARIABLES:
        data["basis"] = problem.geometry.basis
        sdpa.write(sdpa.sparse_program(problem), folder / f"{name}.dat-s")
    with files.atomic_write(folder / f"{name}.npz") as handle:
        np.savez(handle, **data)


def _made(path: Path, problem: Any) -> Proof:
    proof = _proven(problem, TOLERANCE)
    proof.save(path)
    return proof


def _proven(problem: Any, tol: float) -> Proof:
    with without_warnings():
        return prove(fast.solve(problem, tol=tol))


def _plain(build: Callable[..., Workload], *sizes: Any, **options: Any) -> tuple[Workload, float]:
    return build(*sizes, **options), 1.0


def _fitness(build: Callable[[], tuple[Workload, Any]], **options: Any) -> FitnessForUse:
    workload, targets = build()
    return FitnessForUse(workload, targets, geometry="dense", **options)


def _variance(build: Callable[[], tuple[Workload, Any]], **options: Any) -> TotalVariance:
    workload, targets = build()
    return TotalVariance(workload, 1 / np.asarray(targets, dtype=float), geometry="dense", **options)


def _shapes() -> dict[str, Array]:
    """Return matrices of the shapes and scales that solvers stumble on, from a seed."""
    rng = np.random.default_rng(SEED)
    square, few = rng.standard_normal((8, 8)), rng.standard_normal((4, 8))
    return {
        "rank-deficient": square[:, :3] @ square[:3],
        "tall": rng.standard_normal((40, 5)),
        "wide": rng.standard_normal((5, 40)),
        "one-row": few[:1],
        "one-column": square[:, :1],
        "rows-twice": np.repeat(few, 2, axis=0),
        "columns-twice": np.repeat(few, 2, axis=1),
        "large": 1e6 * square,
        "small": 1e-6 * square,
        "rows-of-all-sizes": square * np.logspace(-6, 6, 8)[:, None],
        "columns-of-all-sizes": square * np.logspace(-6, 6, 8),
        "nearly-dependent": np.vstack([few, few[:1] + 1e-7 * square[:1]]),
        "zeros": np.pad(few, ((0, 2), (0, 2))),
    }


def _shaped(name: str) -> tuple[Workload, Array]:
    matrix = _shapes()[name]
    return Workload(matrix), np.linspace(1, 10, len(matrix))
