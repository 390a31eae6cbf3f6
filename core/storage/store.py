"""What was saved, whatever it is: written whole or not at all, and judged anew when it is read; its kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from os import PathLike
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np

from dualmech import files, validate
from dualmech.errors import DualmechError, FileFormatError, InputTypeError, InvalidInputError
from dualmech.files import archives
from dualmech.files.archives import Arrays, FilePath
from dualmech.geometry.base import FitnessDual, VarianceDual
from dualmech.geometry.block_rows import Key
from dualmech.geometry.blocks import BasedPoint
from dualmech.geometry.local import Relaxation
from dualmech.geometry.product import ByFactor
from dualmech.geometry.split import SplitPoint, SplitWeights
from dualmech.geometry.stream import StreamPoint
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.local import LocalMechanism
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.mechanisms.product import ProductMechanism
from dualmech.mechanisms.split import SplitMechanism
from dualmech.mechanisms.stream import CausalMechanism, StreamMechanism
from dualmech.neighbours import Relation
from dualmech.problems import strategies
from dualmech.problems.base import OnGeometry, Problem
from dualmech.problems.common import CommonDual, CommonMechanism
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.local.estimate import EstimateDual, NonnegativeEstimate
from dualmech.problems.local.projection import LocalProjection, ProjectionDual
from dualmech.problems.local.strategy import LocalDual, LocalPoint, LocalStrategy
from dualmech.problems.reuse import ReuseDual, ReuseFitness
from dualmech.problems.softmax import SoftmaxDual, SoftmaxFitness
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting, WeightingDual
from dualmech.progress import Status
from dualmech.solution import SCHEMA, VERSION, Asked, HardLimits, Solution, judged_solution, warn_if_uncertified
from dualmech.storage import codec
from dualmech.storage.codec import (
    KINDS,
    MECHANISM,
    MECHANISM_VERSION,
    PROBLEMS,
    Given,
    Kind,
    known_problems,
    of_fields,
    parts_of,
    required_array,
    required_tuple,
    required_value,
    unpack,
)
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.circular import CircularWorkload
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.products import kron
from dualmech.workloads.query_tables import TableWorkload
from dualmech.workloads.streams import RangeWorkload, SineWorkload, StreamWorkload
from dualmech.workloads.unions import Table, UnionWorkload

# Problems, and answers to them, as arrays (``docs/appendix/schemas.md``).
#
# An object is written as its parts, each under the object's key, a dot and the part's own, with a text under
# ``<key>.kind`` that says what it is. Only the kinds listed here are ever made of a file.


Answer: TypeAlias = tuple[Any, Any, Any]  # a problem, a primal point and dual weights

OPTIONAL = ("basis", "neighbours", "geometry", "floor", "total", "prior")
"""Arguments of problems that a file may leave out."""


PROBLEMS |= {
    kind.__name__: kind
    for kind in (
        *(FitnessForUse, PrivacyFirst, TotalVariance, SoftmaxFitness, QueryWeighting, CommonMechanism),
        *(ReuseFitness, LocalStrategy, LocalProjection, NonnegativeEstimate),
    )
}


def unpack_answer(given: Given) -> Answer:
    """Return what `dualmech.storage.codec.pack_answer` was given.

    Raises `InvalidInputError` or `InputTypeError` for a problem of a kind that is not known, a key that is missing,
    or arrays that do not fit together.
    """
    known_problems()  # which enters all kinds of parts
    name = str(required_array(given, "problem"))
    if name not in PROBLEMS:
        raise InvalidInputError(f"problem must be one of {', '.join(PROBLEMS)}, got {name!r}")
    problem = _rebuild_problem(PROBLEMS[name], given)
    primal, dual = (required_value(unpack(given, name), name) for name in ("primal", "dual"))
    return problem, problem.restored(primal), dual


def _rebuild_problem(kind: type[Problem], given: Given) -> Any:
    stated = {name: unpack(given, name) for name in (*kind.arguments, "geometry", "basis", "neighbours")}
    for name in kind.arguments:
        if name not in OPTIONAL:
            required_value(stated[name], name)
    stated = {name: value for name, value in stated.items() if value is not None}
    if not issubclass(kind, OnGeometry):
        return kind(**{name: stated[name] for name in kind.arguments if name in stated})
    if isinstance(stated.get(kind.numbers), tuple):
        bases = unpack(given, "bases")
        stated[kind.numbers] = ByFactor(*stated[kind.numbers])
        problem = kind(**stated)
        if bases is None:
            return problem
        return problem.with_bases(required_tuple("bases", bases, len(problem.geometry.factors)))
    return kind(**stated)


def _plain(workload: Workload) -> Mapping[str, object]:
    arrays = files.workload_arrays(workload)
    return {key.removeprefix("workload_"): value for key, value in arrays.items()}


def _plain_made(**parts: object) -> Workload:
    return files.workload_from_arrays({f"workload_{key}": np.asarray(value) for key, value in parts.items()})


def _sets_made(distinct: bool, parts: Mapping[str, object]) -> Any:
    missing = [key for key in archives.DOMAIN_KEYS if key not in parts]
    if missing:
        raise InvalidInputError(f"needs the array {missing[0]!r}")
    known = (*archives.DOMAIN_KEYS, archives.DOMAIN_SCHEMA)
    return archives.sets_from_arrays({key: np.asarray(parts[key]) for key in known if key in parts}, distinct)


def _union(workload: UnionWorkload) -> Mapping[str, object]:
    assert workload.domain is not None
    return {
        **archives.sets_to_arrays(workload.domain, [table.axes for table in workload.tables]),
        "table_names": files.as_text_array("table names", workload.table_names),
        "queries": tuple(own for table in workload.tables for _, own in table.queries),
    }


def _union_made(table_names: Any = (), queries: tuple[Any, ...] = (), **parts: Any) -> UnionWorkload:
    domain, sets = _sets_made(False, parts)
    names = [str(name) for name in np.atleast_1d(table_names).tolist()]
    if len(names) != len(sets) or len(set(names)) < len(names):
        raise InvalidInputError(f"table_names must be {len(sets)} distinct texts, got {names}")
    if len(queries) != (count := sum(map(len, sets))):
        raise InvalidInputError(f"queries must be {count}, one per attribute of a table, got {len(queries)}")
    own = iter(queries)
    tables = [Table(name, tuple((axis, next(own)) for axis in axes)) for name, axes in zip(names, sets, strict=True)]
    for table in tables:
        for axis, asked in table.queries:
            size = domain.shape[axis]
            if asked is not None and (not isinstance(asked, Workload) or asked.shape[1] != size):
                raise InvalidInputError(f"queries of {table.name!r} must be over {size} values")
    return UnionWorkload(domain, tables)


def _tables_made(tables: Any = None, queries: Any = ()) -> TableWorkload:
    if not isinstance(tables, MarginalWorkload) or tables.domain is None:
        raise InvalidInputError("needs tables that are marginals")
    sizes = tables.domain.shape
    if len(queries) != len(sizes):
        raise InvalidInputError(f"queries must be {len(sizes)}, one per attribute, got {len(queries)}")
    for own, size in zip(queries, sizes, strict=True):
        if own is not None and (not isinstance(own, Workload) or own.shape[1] != size):
            raise InvalidInputError(f"queries must be over {size} values")
    return TableWorkload(tables, queries)


def _marginals(workload: MarginalWorkload) -> Mapping[str, object]:
    assert workload.domain is not None
    return archives.sets_to_arrays(workload.domain, workload.axes)


KINDS |= {
    "Workload": Kind(_plain, _plain_made),
    "MarginalWorkload": Kind(_marginals, lambda **parts: MarginalWorkload(*_sets_made(True, parts))),
    "UnionWorkload": Kind(_union, _union_made),
    "TableWorkload": Kind(parts_of("tables", "queries"), _tables_made),
    "ProductWorkload": Kind(parts_of("factors"), lambda factors: kron(*factors)),
    "CircularWorkload": Kind(parts_of("bases"), CircularWorkload),
    "StreamWorkload": Kind(
        lambda sums: {"steps": sums.shape[0], "decay": sums.decay}, lambda steps, decay: StreamWorkload(steps, decay)
    ),
    "RangeWorkload": Kind(lambda ranges: {"cells": ranges.shape[1]}, RangeWorkload),
    "SineWorkload": Kind(lambda sines: {"cells": sines.shape[1]}, SineWorkload),
    "LinearGaussianMechanism": Kind(
        lambda mechanism: {
            "query_matrix": mechanism.query_matrix,
            "covariance": mechanism.covariance(),
            "neighbours": mechanism.neighbours,
        },
        LinearGaussianMechanism,
    ),
} | {
    kind.__name__: of_fields(kind)
    for kind in (
        *(FitnessDual, VarianceDual, SoftmaxDual, WeightingDual, CommonDual, ReuseDual, LocalDual),
        *(ProjectionDual, EstimateDual, Relaxation, LocalPoint, SplitPoint, SplitWeights),
        *(BasedPoint, StreamPoint, Asked, HardLimits),
    )
}


# Mechanisms of every structure; their privacy is computed anew.


CAUSAL: dict[str, Callable[..., CausalMechanism]] = {
    "Toeplitz": strategies.toeplitz,
    "Banded": strategies.banded,
    "Tree": strategies.tree,
}
"""What makes a causal strategy of its parts, by the name of its form."""

BLOCK_PARTS = ("key_sizes", "key_pairs", "shapes", "moves", "covariances")


def _blocks(mechanism: BlockMechanism) -> Mapping[str, object]:
    """Return the levels of marginal tables; of other tables the noise on every block, one after another."""
    pieces, relation = mechanism.pieces, None if mechanism.neighbours is None else str(mechanism.neighbours)
    if _of_plain_tables(mechanism):
        levels = np.array([*mechanism.noise.values()], dtype=np.float64)
        return {**archives.sets_to_arrays(mechanism.domain, mechanism.noise), "levels": levels, "neighbours": relation}
    return {
        "workload": mechanism.workload,
        "neighbours": relation,
        "key_sizes": np.array([len(key) for key in pieces], dtype=np.int64),
        "key_pairs": np.array([pair for key in pieces for pair in key], dtype=np.int64).reshape(-1, 2),
        "shapes": np.array([piece.moves.shape for piece in pieces.values()], dtype=np.int64).reshape(-1, 2),
        "moves": _joined([piece.moves for piece in pieces.values()]),
        "covariances": _joined([piece.covariance for piece in pieces.values()]),
    }


def _of_plain_tables(mechanism: BlockMechanism) -> bool:
    """Whether its tables are marginals that are called by their attributes, so that levels say all about it."""
    asked, names = mechanism.workload, mechanism.domain.names
    tables = asked.tables if isinstance(asked, UnionWorkload) else ()
    return mechanism.plain and all(
        table.name == (" x ".join(names[axis] for axis in table.axes) or "the total")
        and all(own is None for _, own in table.queries)
        for table in tables
    )


def _joined(matrices: list[Array]) -> Array:
    return np.concatenate([np.zeros(0), *(each.ravel() for each in matrices)])


def _blocks_made(workload: object = None, neighbours: object = None, **parts: object) -> BlockMechanism:
    given = {name: np.asarray(value) for name, value in parts.items()}
    relation = None if neighbours is None else str(neighbours)
    if workload is None:
        _require(given, ("levels", *archives.DOMAIN_KEYS))
        (domain, sets), levels = archives.sets_from_arrays(given), given["levels"]
        if levels.shape != (len(sets),):
            raise InvalidInputError(f"levels must be {len(sets)} numbers, got shape {levels.shape}")
        return BlockMechanism.of_levels(domain, dict(zip(sets, levels.tolist(), strict=True)), relation)
    if not isinstance(workload, UnionWorkload):
        raise InvalidInputError("workload must be a union of tables")
    _require(given, BLOCK_PARTS)
    own = None if relation is None else Relation.of(relation)
    return BlockMechanism._of_pieces(workload, own, _noise(given))


def _require(given: Mapping[str, object], names: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in given]
    if missing:
        raise InvalidInputError(f"needs the array {missing[0]!r}")


def _noise(given: Mapping[str, Array]) -> dict[Key, tuple[Array, Array]]:
    """Return the basis and the covariance of every block, from arrays that must fit together to the last number."""
    sizes, shapes = given["key_sizes"], given["shapes"]
    whole = all(given[name].dtype.kind in "iu" for name in ("key_sizes", "key_pairs", "shapes"))
    if not whole or sizes.ndim != 1 or shapes.shape != (len(sizes), 2) or np.any(sizes < 0) or np.any(shapes < 1):
        raise InvalidInputError("key_sizes, key_pairs and shapes must be whole numbers, a key and a shape per block")
    pairs, rows = given["key_pairs"], shapes[:, 0]
    wanted = {
        "key_pairs": (int(sizes.sum()), 2),
        "moves": (int(np.prod(shapes, axis=1).sum()),),
        "covariances": (int((rows**2).sum()),),
    }
    for name, shape in wanted.items():
        if given[name].shape != shape:
            raise InvalidInputError(f"{name} must have shape {shape}, got {given[name].shape}")
    ends = (np.cumsum(each) for each in (sizes, np.prod(shapes, axis=1), rows**2))
    found: dict[Key, tuple[Array, Array]] = {}
    for size, (r, b), *stops in zip(sizes.tolist(), shapes.tolist(), *ends, strict=True):
        key = tuple((int(axis), int(each)) for axis, each in pairs[stops[0] - size : stops[0]])
        if key in found:
            raise InvalidInputError(f"key_pairs must name each block once, {key} comes twice")
        moves = given["moves"][stops[1] - r * b : stops[1]].reshape(r, b)
        found[key] = moves, given["covariances"][stops[2] - r * r : stops[2]].reshape(r, r)
    return found


def _causal(mechanism: CausalMechanism) -> Mapping[str, object]:
    strategy: Any = mechanism._strategy
    parts = {each.name: getattr(strategy, each.name) for each in fields(strategy)}
    return {"form": type(strategy).__name__, "level": mechanism.level, **parts}


def _causal_made(form: Any, level: Any, **parts: Any) -> CausalMechanism:
    if form not in CAUSAL:
        raise InvalidInputError(f"form must be one of {', '.join(CAUSAL)}, got {form!r}")
    return CAUSAL[form](**parts).scaled(level)


def _split(mechanism: SplitMechanism) -> Mapping[str, object]:
    point = mechanism.point
    return {"workload": mechanism.workload, "shapes": tuple(point.shapes), "noise": point.levels}


def _stream(mechanism: StreamMechanism) -> Mapping[str, object]:
    point, names = mechanism.point, ("neighbour_weights", "query_weights", "level")
    return {"workload": mechanism.workload} | {name: getattr(point, name) for name in names}


def _stream_made(workload: Any, neighbour_weights: Array, query_weights: Array, level: float) -> StreamMechanism:
    return StreamMechanism(workload, neighbour_weights, query_weights, level)  # a level that lacks is not 1


KINDS |= {
    "BlockMechanism": Kind(_blocks, _blocks_made),
    "ProductMechanism": Kind(parts_of("factors"), ProductMechanism),
    "SplitMechanism": Kind(_split, SplitMechanism),
    "StreamMechanism": Kind(_stream, _stream_made),
    "CausalMechanism": Kind(_causal, _causal_made),
    "LocalMechanism": Kind(
        parts_of("strategy", "reconstruction", "workload", "epsilon"),
        lambda strategy, reconstruction, workload, epsilon: LocalMechanism(strategy, epsilon, workload, reconstruction),
    ),
}


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


def load_mechanism(path: FilePath) -> GaussianPrivacy | LocalMechanism:
    """Read a mechanism of any structure back; its privacy is computed anew from its noise.

    Raises `FileFormatError` where the file cannot be read, follows another schema, or its parts do not fit together.
    """
    arrays = files.read_npz(path, MECHANISM, (MECHANISM_VERSION,))
    with files.errors_naming(path):
        made = codec.unpack(arrays, "mechanism")
        if not isinstance(made, GaussianPrivacy | LocalMechanism):
            raise InputTypeError(f"mechanism must be of a kind of mechanism, got {type(made).__name__}")
        return made


def _reason(arrays: Arrays) -> Status:
    """Return why the solver stopped; a file's own claim to be certified is ignored."""
    claimed = Status.__members__.get(str(arrays.get("status", "")), Status.STALLED)
    return Status.STALLED if claimed is Status.CERTIFIED else claimed


KEPT = (Solution, GaussianPrivacy, LocalMechanism)
"""What has a file, besides workloads."""

READERS: dict[str, Callable[[FilePath], Any]] = {SCHEMA: load_solution, MECHANISM: load_mechanism}
"""By schema, what reads a file of it."""
