"""What was saved, whatever it is: written whole or not at all, and judged anew when it is read; its kinds."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pkgutil
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from os import PathLike
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dualmech import files, validate
from dualmech.errors import DualmechError, FileFormatError, InputTypeError, InvalidInputError
from dualmech.files.archives import FilePath
from dualmech.geometry.attribute_symmetry import Key
from dualmech.geometry.blocks import BasedPoint
from dualmech.geometry.local import Relaxation
from dualmech.geometry.split import SplitPoint, SplitWeights
from dualmech.geometry.stream import StreamPoint
from dualmech.geometry.weights import FitnessDual
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.epochs import EpochsMechanism
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.local import LocalMechanism
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.mechanisms.product import ProductMechanism
from dualmech.mechanisms.split import SplitMechanism
from dualmech.mechanisms.stream import CausalMechanism, StreamMechanism
from dualmech.neighbours import Relation
from dualmech.problems import strategies
from dualmech.problems.base import OnGeometry, Problem
from dualmech.problems.limits import HardLimits
from dualmech.problems.local.strategy import LocalPoint
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution, warn_if_uncertified
from dualmech.storage import codec
from dualmech.storage.codec import ABSENT, MECHANISM, MECHANISM_VERSION
from dualmech.validate import Array
from dualmech.workloads import arrays as domains
from dualmech.workloads.arrays import Arrays
from dualmech.workloads.base import Workload
from dualmech.workloads.circle import CircularWorkload
from dualmech.workloads.marginal import MarginalWorkload
from dualmech.workloads.numbers import ByFactor
from dualmech.workloads.products import kron
from dualmech.workloads.streams import RangeWorkload, SineWorkload, StreamWorkload
from dualmech.workloads.table_queries import TableWorkload
from dualmech.workloads.unions import Table, UnionWorkload

# Problems, and answers to them, as arrays (``docs/appendix/schemas.md``).
#
# An object is written as its parts, each under the object's key, a dot and the part's own, with a text under
# ``<key>.kind`` that says what it is. Only the kinds listed here are ever made of a file.


Given: TypeAlias = Mapping[str, npt.NDArray[Any]]

Kinds: TypeAlias = Mapping[str, str | Callable[..., Any]]  # by name, the function that makes an object, or its place

Answer: TypeAlias = tuple[Any, Any, Any]  # a problem, a primal point and dual weights

PUBLIC_NAME = re.compile(r"^from \.(problems\.[\w.]+) import (\w+) as", re.MULTILINE)


@functools.cache
def places() -> dict[str, str | type]:
    """Return the places of the public names of ``core/problems``, by name: the lines of ``core/__init__.pyi``."""
    text = (Path(__file__).parents[1] / "__init__.pyi").read_text(encoding="utf-8")
    return {name: f"dualmech.{module}:{name}" for module, name in PUBLIC_NAME.findall(text)}


def problem_class(name: str) -> type[Problem] | None:
    """Return the class of a problem by its public name; None if the package offers no problem of this name."""
    place = places().get(name)
    kind = pkgutil.resolve_name(place) if isinstance(place, str) else place
    return kind if isinstance(kind, type) and issubclass(kind, Problem) else None


def problem_classes() -> dict[str, type[Problem]]:
    """Return the classes of all problems that the package offers, by name: only these are ever made of a file."""
    return {name: kind for name in places() if (kind := problem_class(name)) is not None}


def unpack_answer(arrays: Given) -> Answer:
    """Return what `dualmech.storage.codec.pack_answer` was given.

    Raises `InvalidInputError` or `InputTypeError` for a problem of a kind that is not known, a key that is missing,
    or arrays that do not fit together.
    """
    name = str(required_array(arrays, "problem"))
    kind = problem_class(name) or problem_classes()[validate.choice([*problem_classes()], problem=name)]
    problem, weights = _rebuild_problem(kind, arrays), kind.dual_type
    primal = required_value(unpack(arrays, "primal"), "primal")
    dual = required_value(unpack(arrays, "dual", KINDS | {weights.__name__: weights}), "dual")
    return problem, problem.restored(primal), problem.restored_dual(dual)


def _rebuild_problem(kind: type[Problem], arrays: Given) -> Any:
    stated = {name: unpack(arrays, name) for name in (*kind.arguments, "geometry", "basis", "neighbours")}
    for name in kind.arguments:
        if name not in kind.optional_arguments:
            required_value(stated[name], name)
    stated = {name: value for name, value in stated.items() if value is not None}
    if not issubclass(kind, OnGeometry):
        return kind(**{name: stated[name] for name in kind.arguments if name in stated})
    if isinstance(stated.get(kind.numbers), tuple):
        bases = unpack(arrays, "bases")
        stated[kind.numbers] = ByFactor(*stated[kind.numbers])
        problem = kind(**stated)
        if bases is None:
            return problem
        return problem.with_bases(required_tuple("bases", bases, len(problem.geometry.factors)))
    return kind(**stated)


def unpack(arrays: Given, key: str, kinds: Kinds | None = None) -> Any:
    """Return the value that `pack` stored, of `kinds` (by default `KINDS`); None if there is nothing under the key.

    Raises `InvalidInputError` for an unknown kind, and whatever is wrong with an object, by its key.
    """
    if key in arrays:
        array = arrays[key]
        if f"{key}.tuple" in arrays:
            return _unpack_items(arrays, key, kinds)
        return array.item() if array.ndim == 0 else array
    name = str(arrays.get(f"{key}.kind", ""))
    if not name:
        return None
    kinds = KINDS if kinds is None else kinds
    validate.choice([*kinds], **{f"{key}.kind": name})
    prefix = f"{key}."
    names = {name.removeprefix(prefix).partition(".")[0] for name in arrays if name.startswith(prefix)}
    required = {name for name in names - {"kind"} if not _is_item(name)}
    made = _maker(kinds[name])
    parameters = inspect.signature(made).parameters.values()
    required |= {
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    }
    parts = {name: required_value(unpack(arrays, prefix + name, kinds), prefix + name) for name in sorted(required)}
    try:
        return made(**parts)
    except (DualmechError, ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise InvalidInputError(f"{key}: {error}") from error


def _maker(made: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes a kind; of records it is loaded when a file has it."""
    maker: Callable[..., Any] = pkgutil.resolve_name(made) if isinstance(made, str) else made
    return maker


def _is_item(name: str) -> bool:
    """Whether a part belongs to a tuple of the same key: its numbered items."""
    return name.rpartition("#")[2].isdigit()


def _unpack_items(arrays: Given, key: str, kinds: Kinds | None) -> tuple[Any, ...]:
    """Return the items that `_pack_items` stored; repeated ones are the same object."""
    numbers = arrays[key]
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or np.any(numbers < ABSENT):
        raise InvalidInputError(f"{key} must be a list of whole numbers from {ABSENT}")
    if not np.array_equal(arrays[f"{key}.tuple"], len(numbers)):
        raise InvalidInputError(f"{key}.tuple must be their number, {len(numbers)}")
    made: dict[int, Any] = {ABSENT: None}
    for number in np.unique(numbers).tolist():
        if number != ABSENT:
            made[number] = required_value(unpack(arrays, f"{key}#{number}", kinds), f"{key}#{number}")
    return tuple(made[number] for number in numbers.tolist())


def required_array(arrays: Given, key: str) -> npt.NDArray[np.generic]:
    if key not in arrays:
        raise InvalidInputError(f"needs the array {key!r}, has {', '.join(sorted(arrays)) or 'none'}")
    return arrays[key]


def required_value(value: object, key: str) -> Any:
    if value is None:
        raise InvalidInputError(f"needs {key!r}")
    return value


def required_tuple(name: str, value: object, count: int) -> tuple[Any, ...]:
    """Return a tuple of the right length; refuse any other."""
    if not isinstance(value, tuple) or len(value) != count:
        got = len(value) if isinstance(value, tuple) else type(value).__name__
        raise InvalidInputError(f"{name} must be {count} items, got {got}")
    return value


def _plain_made(**parts: object) -> Workload:
    return files.workload_from_arrays({f"workload_{key}": np.asarray(value) for key, value in parts.items()})


def _sets_made(distinct: bool, parts: Mapping[str, object]) -> Any:
    missing = [key for key in domains.DOMAIN_KEYS if key not in parts]
    if missing:
        raise InvalidInputError(f"needs the array {missing[0]!r}")
    known = (*domains.DOMAIN_KEYS, domains.DOMAIN_SCHEMA)
    return domains.sets_from_arrays({key: np.asarray(parts[key]) for key in known if key in parts}, distinct)


def _union_made(table_names: Any = (), queries: tuple[Any, ...] = (), **parts: Any) -> UnionWorkload:
    domain, sets = _sets_made(False, parts)
    names = [str(name) for name in np.atleast_1d(table_names).tolist()]
    if len(names) != len(sets) or len(set(names)) < len(names):
        raise InvalidInputError(f"table_names must be {len(sets)} distinct texts, got {names}")
    if len(queries) != (count := sum(map(len, sets))):
        raise InvalidInputError(f"queries must be {count}, one per attribute of a table, got {len(queries)}")
    remaining = iter(queries)
    tables = [
        Table(name, tuple((axis, next(remaining)) for axis in axes)) for name, axes in zip(names, sets, strict=True)
    ]
    for table in tables:
        for axis, query in table.queries:
            size = domain.shape[axis]
            if query is not None and (not isinstance(query, Workload) or query.shape[1] != size):
                raise InvalidInputError(f"queries of {table.name!r} must be over {size} values")
    return UnionWorkload(domain, tables)


def _tables_made(tables: Any = None, queries: Any = ()) -> TableWorkload:
    if not isinstance(tables, MarginalWorkload) or tables.domain is None:
        raise InvalidInputError("needs tables that are marginals")
    sizes = tables.domain.shape
    if len(queries) != len(sizes):
        raise InvalidInputError(f"queries must be {len(sizes)}, one per attribute, got {len(queries)}")
    for query, size in zip(queries, sizes, strict=True):
        if query is not None and (not isinstance(query, Workload) or query.shape[1] != size):
            raise InvalidInputError(f"queries must be over {size} values")
    return TableWorkload(tables, queries)


BLOCK_PARTS = ("key_sizes", "key_pairs", "shapes", "moves", "covariances")


def _blocks_made(workload: object = None, neighbours: object = None, **parts: object) -> BlockMechanism:
    arrays = {name: np.asarray(value) for name, value in parts.items()}
    relation = None if neighbours is None else str(neighbours)
    if workload is None:
        _require(arrays, ("levels", *domains.DOMAIN_KEYS))
        (domain, sets), levels = domains.sets_from_arrays(arrays), arrays["levels"]
        if levels.shape != (len(sets),):
            raise InvalidInputError(f"levels must be {len(sets)} numbers, got shape {levels.shape}")
        return BlockMechanism.of_levels(domain, dict(zip(sets, levels.tolist(), strict=True)), relation)
    if not isinstance(workload, UnionWorkload):
        raise InvalidInputError("workload must be a union of tables")
    _require(arrays, BLOCK_PARTS)
    rule = None if relation is None else Relation.of(relation)
    return BlockMechanism._of_pieces(workload, rule, _noise(arrays))


def _require(arrays: Mapping[str, object], names: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in arrays]
    if missing:
        raise InvalidInputError(f"needs the array {missing[0]!r}")


def _noise(arrays: Mapping[str, Array]) -> dict[Key, tuple[Array, Array]]:
    """Return the basis and the covariance of every block, from arrays that must fit together to the last number."""
    sizes, shapes = arrays["key_sizes"], arrays["shapes"]
    whole = all(arrays[name].dtype.kind in "iu" for name in ("key_sizes", "key_pairs", "shapes"))
    if not whole or sizes.ndim != 1 or shapes.shape != (len(sizes), 2) or np.any(sizes < 0) or np.any(shapes < 1):
        raise InvalidInputError("key_sizes, key_pairs and shapes must be whole numbers, a key and a shape per block")
    pairs, rows = arrays["key_pairs"], shapes[:, 0]
    wanted = {
        "key_pairs": (int(sizes.sum()), 2),
        "moves": (int(np.prod(shapes, axis=1).sum()),),
        "covariances": (int((rows**2).sum()),),
    }
    for name, shape in wanted.items():
        if arrays[name].shape != shape:
            raise InvalidInputError(f"{name} must have shape {shape}, got {arrays[name].shape}")
    ends = (np.cumsum(array) for array in (sizes, np.prod(shapes, axis=1), rows**2))
    noise: dict[Key, tuple[Array, Array]] = {}
    for size, (r, b), *stops in zip(sizes.tolist(), shapes.tolist(), *ends, strict=True):
        key = tuple((int(axis), int(component)) for axis, component in pairs[stops[0] - size : stops[0]])
        if key in noise:
            raise InvalidInputError(f"key_pairs must name each block once, {key} comes twice")
        moves = arrays["moves"][stops[1] - r * b : stops[1]].reshape(r, b)
        noise[key] = moves, arrays["covariances"][stops[2] - r * r : stops[2]].reshape(r, r)
    return noise


def _causal_made(form: Any, level: Any, **parts: Any) -> CausalMechanism:
    return CAUSAL[validate.choice([*CAUSAL], form=form)](**parts).scaled(level)


def _stream_made(workload: Any, neighbour_weights: Array, query_weights: Array, level: float) -> StreamMechanism:
    return StreamMechanism(workload, neighbour_weights, query_weights, level)  # a level that lacks is not 1


def _local_made(strategy: Array, reconstruction: Array, workload: Any, epsilon: float) -> LocalMechanism:
    return LocalMechanism(strategy, epsilon, workload, reconstruction)


CAUSAL: dict[str, Callable[..., CausalMechanism]] = {
    "Toeplitz": strategies.toeplitz,
    "Banded": strategies.banded,
    "Buffered": strategies.buffered,
    "ScaledToeplitz": strategies.scaled_toeplitz,
    "Tree": strategies.tree,
}
"""What makes a causal strategy of its parts, by the name of its form."""

KINDS: dict[str, str | Callable[..., Any]] = {
    "Workload": _plain_made,
    "MarginalWorkload": lambda **parts: MarginalWorkload(*_sets_made(True, parts)),
    "UnionWorkload": _union_made,
    "TableWorkload": _tables_made,
    "ProductWorkload": lambda factors: kron(*factors),
    "StreamWorkload": lambda steps, decay: StreamWorkload(steps, decay),
    "BlockMechanism": _blocks_made,
    "StreamMechanism": _stream_made,
    "CausalMechanism": _causal_made,
    "CausalPoint": _causal_made,
    "LocalMechanism": _local_made,
    **{
        kind.__name__: kind
        for kind in (
            *(CircularWorkload, RangeWorkload, SineWorkload),
            *(LinearGaussianMechanism, EpochsMechanism, ProductMechanism, SplitMechanism),
            *(Relaxation, LocalPoint, SplitPoint, SplitWeights),
            *(BasedPoint, StreamPoint),
            *(HardLimits, FitnessDual),  # hard limits hold dual weights that prove them
        )
    },
    "PlanTerms": "dualmech.publishing.plans:PlanTerms",
}
"""The function that makes an object of its parts, or its place, by the name of the class.

Besides dual weights of the class that a problem names, nothing else is ever made of a file.
"""


def save(thing: object, path: FilePath) -> None:
    """Write a solution, a mechanism or a workload to a file, whole or not at all; `load` reads it back.

    Raises `FileFormatError` where the path cannot be written, `InputTypeError` for what has no file. Solutions and
    mechanisms are ``.npz`` files, whose arrays ``docs/appendix/schemas.md`` lists; workloads any of those in
    ``docs/formats.md``. Certificates and costs are not written: `load` computes them again.

    Examples
    --------
    >>> import os, tempfile
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "prefix.npz")
    ...     dm.save(answer, path)
    ...     again = dm.load(path)
    >>> again == answer, again.status.name
    (True, 'CERTIFIED')
    """
    if isinstance(thing, Workload):
        files.write_workload(thing, path)
    elif isinstance(thing, Solution):
        files.write_npz(path, codec.SOLUTION, codec.SOLUTION_VERSION, **codec.pack_solution(thing))
    elif isinstance(thing, GaussianPrivacy | LocalMechanism):
        codec.save_mechanism(thing, path)
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
    with reading(path, codec.SOLUTION, (codec.SOLUTION_VERSION,)) as arrays:
        solution = solution_of(arrays)
    return warn_if_uncertified(solution)


@contextlib.contextmanager
def reading(path: FilePath, schema: str, versions: Collection[int]) -> Iterator[Arrays]:
    """Yield the arrays of an ``.npz`` file; every error of what is made of them becomes one that names the file.

    Solutions, mechanisms and publications are read here.
    Raises `FileFormatError`.
    """
    arrays = files.read_npz(path, schema, versions)
    try:
        with np.errstate(all="ignore"):  # what broken contents lead to is refused, and no matter for warnings
            yield arrays
    except UNREADABLE as error:
        raise FileFormatError(f"{path}: {error}") from error


UNREADABLE = (DualmechError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""Errors of contents that are broken, or were made to look so."""


def solution_of(arrays: Arrays) -> Solution:
    """Return the solution that a file's arrays hold, judged anew.

    Raises `InvalidInputError` or `InputTypeError` as `unpack_answer`.
    """
    problem, primal, dual = unpack_answer(arrays)
    return judged_solution(
        problem,
        primal,
        dual,
        tol=validate.positive_number(tol=_single(arrays, "tol", 1e-6)),
        otherwise=_reason(arrays),
        iterations=int(_single(arrays, "iterations", 0)),
        seconds=float(_single(arrays, "seconds", 0.0)),
        message=str(arrays.get("message", "")),
        solver=str(arrays.get("solver", "")),
        metadata=_metadata(arrays),
    )


def _single(arrays: Arrays, name: str, default: float) -> Any:
    """Return a number that a file holds once; refuse several, and arrays with an axis."""
    number = np.asarray(arrays.get(name, default))
    if number.ndim or number.dtype.kind not in "iuf":
        raise InvalidInputError(f"{name} must be one number, got {number.dtype} of shape {number.shape}")
    return number.item()


def _metadata(arrays: Arrays) -> dict[str, Any]:
    """Return the terms of a plan by name, where a file has them."""
    terms = unpack(arrays, "asked")
    if terms is None:
        return {}
    kind: Any = _maker(KINDS["PlanTerms"])
    return dict(validate.instance(kind, asked=terms).metadata)


def load_mechanism(path: FilePath) -> GaussianPrivacy | LocalMechanism:
    """Read a mechanism of any structure back; its privacy is computed anew from its noise.

    Raises `FileFormatError` where the file cannot be read, follows another schema, or its parts do not fit together.
    """
    with reading(path, MECHANISM, (MECHANISM_VERSION,)) as arrays:
        made = unpack(arrays, "mechanism")
        if not isinstance(made, GaussianPrivacy | LocalMechanism):
            raise InputTypeError(f"mechanism must be of a kind of mechanism, got {type(made).__name__}")
        return made


def _reason(arrays: Arrays) -> Status:
    """Return why the solver stopped; a file's own claim to be certified is ignored."""
    claimed = Status.__members__.get(str(arrays.get("status", "")), Status.STALLED)
    return Status.STALLED if claimed is Status.CERTIFIED else claimed


READERS: dict[str, Callable[[FilePath], Any]] = {codec.SOLUTION: load_solution, MECHANISM: load_mechanism}
"""By schema, what reads a file of it."""
