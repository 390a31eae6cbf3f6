"""Texts of the command line as data: workloads, numbers, neighbours, designs, and answers to judge."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import dualmech as dm
from dualmech import files, validate, workloads
from dualmech.crosscheck.families import POSED
from dualmech.crosscheck.judging import OfCovariance, by_shape, covariance_of_strategy
from dualmech.errors import FileFormatError, InvalidInputError, did_you_mean
from dualmech.files import csv
from dualmech.files.csv import Named, read_named
from dualmech.linalg import is_identity
from dualmech.mechanisms.epochs import EpochsMechanism
from dualmech.mechanisms.stream import CausalMechanism
from dualmech.neighbours import ADD_REMOVE, Relation
from dualmech.problems import designs, strategies
from dualmech.problems.base import AnyProblem
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.solution import Solution
from dualmech.storage import codec, store
from dualmech.validate import Array, Matrix
from dualmech.watching import without_warnings
from dualmech.workloads import census, names
from dualmech.workloads.base import Workload
from dualmech.workloads.streams import RangeWorkload
from dualmech.workloads.unions import UnionWorkload, tables_of

if TYPE_CHECKING:
    from dualmech.publishing.specification import Specification

CAUSAL = {"sqrt": strategies.sqrt_toeplitz, "tree": strategies.tree}
"""Causal strategies by name; write ``./tree`` for a file of this name."""

COEFFICIENTS = "toeplitz:"  # prefix of the file of coefficients of a Toeplitz strategy


def read_workload(text: str) -> Workload:
    """Return a built-in workload such as ``prefix:64``, or the workload in a file or specification.

    Write ``./prefix`` for a file with the name of a built-in workload.
    """
    if names.is_named(text):
        return names.builtin_workload(text)
    if (specified := read_specification(text)) is not None:
        return specified.workload
    if _schema(text) == codec.SOLUTION:
        raise InvalidInputError(
            f"{text}: is a plan, the solution of a problem, not a workload: judge, explain, release and plot take it"
        )
    if Path(text).suffix.lower() in files.SUFFIXES or Path(text).exists():
        return files.read_workload(text)
    if Path(text).suffix and ":" not in text:
        raise InvalidInputError(
            f"{text!r} is no file: files of workloads end in {', '.join(files.SUFFIXES)}, specifications in .toml"
        )
    return names.builtin_workload(text)


def read_specification(text: object) -> Specification | None:
    """Return the specification in a file that ends in ``.toml``; None for another text."""
    if not isinstance(text, str) or Path(text).suffix.lower() != ".toml":
        return None
    from dualmech.publishing.specification import Specification

    return Specification.read(text)


def read_neighbours(text: str) -> Relation | Array:
    """Return the relation of a text such as ``replace:2``, or the matrix in a file."""
    if Path(text).suffix.lower() in files.SUFFIXES:
        matrix = files.read_matrix(text, "neighbours")
        return Relation.matching(matrix) or matrix
    try:
        return Relation.of(text)
    except InvalidInputError as error:
        raise InvalidInputError(f"{str(error).replace('a matrix', 'a file')}") from None


def read_own_neighbours(path: str) -> Relation | Array | None:
    """Return the neighbours of a saved solution or mechanism; None for files without neighbours."""
    schema, key = _schema(path), "mechanism.neighbours"
    if schema == codec.SOLUTION:
        key, problems = "neighbours", {kind for family in POSED for kind in family.problems}
        if str(files.read_archive(path, {"problem"}).get("problem")) not in problems:
            return None
    elif schema != codec.MECHANISM:
        return None
    if (relation := files.read_archive(path, {key}).get(key)) is None:
        return ADD_REMOVE
    if relation.ndim == 0:
        return Relation.of(str(relation))
    differences = validate.finite(2, neighbours=relation)
    return Relation.matching(differences) or differences


DESIGNS: dict[str, Callable[[Workload], Workload | Matrix]] = {
    "eigen": lambda workload: (  # for all ranges they are sines, without a matrix
        workloads.sines(workload.shape[1]) if isinstance(workload, RangeWorkload) else designs.eigen_queries(workload)
    ),
    "haar": lambda workload: designs.haar_matrix(designs.domain_of(workload, None)),
    "fourier": lambda workload: designs.fourier_matrix(designs.domain_of(workload, None), workload),
    "tree": lambda workload: designs.hierarchical_matrix(designs.domain_of(workload, None)),
    "identity": lambda workload: workloads.identity(workload.shape[1]),
    "queries": lambda workload: workload,
}
"""Design queries by name; if the workload has a domain, they are products over its attributes."""


def read_design(text: str, workload: Workload) -> Workload | Matrix:
    """Return the design queries of a name, of a matrix in a file, or of a solution in a file."""
    if text in DESIGNS:
        return DESIGNS[text](workload)
    solution = read_solution(text) if Path(text).suffix.lower() == ".npz" else None
    if solution is not None and isinstance(solution.problem, QueryWeighting):
        design: Workload | Matrix = solution.problem.design
        return design
    if Path(text).suffix.lower() in files.SUFFIXES:
        return files.read_matrix(text, "design")
    raise InvalidInputError(f"design must be {', '.join(DESIGNS)} or a file, got {text!r}{did_you_mean(text, DESIGNS)}")


def read_solution(text: str) -> Solution | None:
    if _schema(text) != codec.SOLUTION:
        return None
    with without_warnings():  # commands report its status
        return store.load_solution(text)


def mechanism_in(path: str) -> Any:
    """Return the mechanism in a file, of a solution in a file, or of a release in a folder; refuse other files."""
    if os.path.isdir(path):
        from dualmech.publishing.combining import mechanism_of  # a slow import

        return mechanism_of(dm.load_publication(path))
    solution = read_solution(path)
    return store.load(path) if solution is None else solution.mechanism


def read_mechanism(path: str) -> Any:
    """Return the mechanism in a file, or of a solution by table or factor; None for other files."""
    schema = _schema(path)
    if schema == codec.MECHANISM:
        return store.load_mechanism(path)
    if schema != codec.SOLUTION or "basis" in files.read_archive(path, {"basis"}):
        return None
    solution = read_solution(path)
    tabular = solution is not None and getattr(solution.problem.geometry, "name", "dense") != "dense"
    return solution.mechanism if solution is not None and tabular else None


def read_answer(problem: AnyProblem, kind: str, path: str) -> Array:
    """Return a user's answer from a file: a covariance, a strategy or weights of design queries."""
    if isinstance(problem, QueryWeighting):
        return read_query_weights(problem, path)
    if kind == "covariance" and Path(path).suffix.lower() == ".npz":
        return _answer(path, "covariance", problem.basis, "basis", "query_matrix")
    if kind == "covariance":
        return _on_basis(problem, files.read_matrix(path, "covariance"))
    covariance = covariance_of_strategy(problem, read_strategy(path))
    # For total variance, a strategy may have any scale: the noise is scaled to its sensitivity.
    return problem.feasible(covariance) if isinstance(problem, TotalVariance) else covariance


def names_causal(text: str | None) -> bool:
    """Return whether a text names a causal strategy or a file with one; it is for any neighbours."""
    if text is None or text in CAUSAL or text.startswith(COEFFICIENTS):
        return text is not None
    kinds = {"mechanism.kind", "mechanism.steps.kind"}  # the latter for persons with several participations
    return _schema(text) == codec.MECHANISM and CausalMechanism.__name__ in map(
        str, files.read_archive(text, kinds).values()
    )


def read_causal(problem: AnyProblem, text: str) -> CausalMechanism:
    """Return the causal strategy of a name or a file; a named one is scaled to a cost of 1 for total variance."""
    steps = problem.workload.shape[1]
    if text in CAUSAL:
        strategy = CAUSAL[text](steps)
    elif not text.startswith(COEFFICIENTS):
        mechanism = store.load(text)
        by_steps = mechanism.steps if isinstance(mechanism, EpochsMechanism) else mechanism
        return validate.instance(CausalMechanism, strategy=by_steps)
    else:
        strategy = strategies.toeplitz(files.read_vector(text.removeprefix(COEFFICIENTS), "coefficients"), steps)
    return strategy.scaled(strategy.squared_privacy_cost) if isinstance(problem, TotalVariance) else strategy


def _schema(path: str) -> str | None:
    if Path(path).suffix.lower() != ".npz" or not Path(path).is_file():
        return None
    return str(files.read_archive(path, {"schema"}).get("schema", ""))


def read_strategy(path: str) -> Array:
    """Return the strategy matrix in a file, or of a solution of `QueryWeighting` in a file."""
    if Path(path).suffix.lower() != ".npz" or "primal" not in files.read_archive(path, {"primal"}):
        return files.read_matrix(path, "strategy")
    solution = read_solution(path)
    if solution is None or not isinstance(solution.problem, QueryWeighting):
        raise InvalidInputError(f"{path}: holds a covariance, not a strategy; give it as --covariance")
    return solution.problem.strategy(solution.primal)


def read_query_weights(problem: QueryWeighting, path: str) -> Array:
    """Return the weights of the design queries from a file of a vector, or of a solution for the same design."""
    if Path(path).suffix.lower() != ".npz":
        return files.read_vector(path, "query_weights")
    solution = read_solution(path)
    if solution is None or not isinstance(solution.problem, QueryWeighting):
        return _answer(path, "query_weights", problem.design, "design")
    design, start_design = problem.design, solution.problem.design
    if design is not start_design and (
        np.shape(design) != np.shape(start_design) or not np.allclose(design, start_design)
    ):
        raise InvalidInputError(f"{path}: has query weights on other rows than the problem's design")
    return np.asarray(solution.primal)


def _answer(path: str, name: str, rows: Array, *keys: str) -> Array:
    """Return the solution or the named array in an archive; refuse an archive with other rows."""
    arrays = files.read_archive(path)
    answer = "primal" if "primal" in arrays else name
    files.require(path, arrays, answer)
    for key in keys:
        if key in arrays and (arrays[key].shape != rows.shape or not np.allclose(arrays[key], rows)):
            words = name.replace("_", " ")
            raise InvalidInputError(f"{path}: has its {words} on other rows than the problem's {keys[0]}")
    return np.asarray(arrays[answer])


def _on_basis(problem: OfCovariance, covariance: Array) -> Array:
    """Return the covariance on the problem's basis, for a matrix that is the covariance on the cells."""
    if is_identity(problem.basis):
        return covariance
    cells = problem.workload.shape[1]
    if covariance.shape != (cells, cells):
        hint = by_shape(problem, covariance)
        raise InvalidInputError(
            f"covariance must be of the noise on the {cells} cells, or be in an .npz file with its rows "
            f"(the workload has rank {problem.geometry.rank}), got shape {covariance.shape}{hint and '; '}{hint}"
        )
    return problem.basis @ covariance @ problem.basis.T


# Numbers for queries: one number, a vector, or lines with names of tables or queries.


ByName: TypeAlias = dict[Any, float]
"""Numbers by the names of queries, groups or tables, or by sets of attributes."""

Numbers: TypeAlias = float | Array | ByName

Rows: TypeAlias = list[Named]


def read_numbers(text: str, name: str, workload: Workload) -> Numbers:
    """Return one number, the vector in a file, or the mapping of a CSV file whose lines are ``name,number``.

    Tables have the same names as in reports. Names of marginals may have their attributes in any order, ``a1 x a0``;
    ``2`` or ``2-way`` means all two-way marginals. In a list of the census, ``P12`` means all parts of that table and
    of its iterations that have no line themselves. For other workloads, names are of queries or their groups. The
    header is optional.
    Raises `FileFormatError` for a file that cannot be read, or a line with an unknown name, a duplicate name, or no
    number.
    """
    try:
        return float(text)
    except ValueError:
        pass
    suffix = Path(text).suffix.lower()
    if suffix not in files.VECTORS and not Path(text).is_file():
        raise InvalidInputError(
            f"--{name} takes one number, with a full stop, or a file that ends in {', '.join(files.VECTORS[:-1])} or "
            f"{files.VECTORS[-1]}, with one number in each line or lines of name,number; got {text!r}"
        )
    if suffix == ".csv":
        with files.errors_naming(text):
            rows = read_named(text)
        if rows is not None:
            return _by_name(workload, text, rows)
    return files.read_vector(text, name)


def read_caps(texts: Sequence[str], workload: Workload) -> ByName:
    """Return limits by name, as `read_numbers`, from texts ``NAME=NUMBER`` and files of lines.

    Raises `InvalidInputError` for a text that is neither, and for an unknown or duplicate name.
    """
    caps: ByName = {}
    for text in texts:
        label, _, amount = text.rpartition("=")
        number = csv.number(amount) if label else None
        read: Numbers | None = None
        if number is not None:
            read = _by_name(workload, "--cap", [(0, label.strip(), number)])
        elif Path(text).suffix.lower() == ".csv":
            read = read_numbers(text, "cap", workload)
        if not isinstance(read, dict):
            raise InvalidInputError(f"--cap takes NAME=NUMBER, or a .csv file of lines of name,number, got {text!r}")
        if duplicates := caps.keys() & read.keys():
            raise InvalidInputError(
                f"--cap must name each table or query once, got {min(map(str, duplicates))!r} twice"
            )
        caps |= read
    return caps


def labels(workload: Workload) -> list[str] | None:
    """Return the names of tables in reports; None for a workload without tables."""
    names = getattr(workload, "table_names", None)
    return None if names is None else [*names]


def _by_name(workload: Workload, path: str, rows: Rows) -> ByName:
    names = labels(workload)
    if names is None:
        return _by_query(workload, path, rows)
    has_parts = isinstance(workload, UnionWorkload)  # as tables of the census; marginals have no parts
    labels_of = {name: (name, *(census.published(name) if has_parts else ())) for name in names}
    names_by_attributes = {tuple(sorted(name.split(" x "))): name for name in names}
    valid_labels = {*names, *(label for labels in labels_of.values() for label in labels)}

    def canonical(label: str) -> str | None:
        name = names_by_attributes.get(tuple(sorted(label.split(" x "))), label)
        if name in valid_labels:
            return name
        ways = name.removesuffix("-way")  # the form of reports on many tables
        return None if validate.whole(ways) is None else ways

    demand = f"name a table such as {names[0]!r}, or its ways,"
    by_row = _numbers(path, rows, demand, canonical, lambda label: did_you_mean(label, names))
    ways = {way: number for label, number in by_row.items() if (way := validate.whole(label)) is not None}
    by_table = {name: [by_row[label] for label in labels if label in by_row] for name, labels in labels_of.items()}
    return ways | {name: numbers[0] for name, numbers in by_table.items() if numbers}


def _by_query(workload: Workload, path: str, rows: Rows) -> ByName:
    try:
        tables = tables_of(workload).table_names
    except InvalidInputError:
        tables = ()
    query_names: set[str] = set()

    def canonical(label: str) -> str | None:
        if label not in tables and not query_names:  # names of many queries are slow, and unused with only tables
            query_names.update(workload.names, workload.groups)
        return label if label in tables or label in query_names else None

    example = f"a table such as {tables[0]!r}, a query," if tables else f"a query such as {workload.names[0]!r},"
    demand = f"name {example} or a group,"
    return _numbers(path, rows, demand, canonical, lambda label: did_you_mean(label, query_names or tables))


def _numbers(
    path: str, rows: Rows, demand: str, canonical: Callable[[str], str | None], hint: Callable[[str], str]
) -> ByName:
    """Return the number of each line by its canonical name; refuse labels for which this is None, with a hint."""
    by_name: ByName = {}
    for line, label, amount in rows:
        place = f"{path}: line {line}" if line else path  # an option has no lines
        if (name := canonical(label)) is None:
            raise FileFormatError(f"{place} must {demand} got {label!r}{hint(label)}")
        if name in by_name:
            raise FileFormatError(f"{place} names {name!r} a second time")
        by_name[name] = amount
    return by_name
