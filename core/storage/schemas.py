"""Problems, and answers to them, as the arrays of an ``.npz`` file (``docs/formats.md``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dualmech import files, linalg
from dualmech.errors import DualmechError, InvalidInputError
from dualmech.files import domains
from dualmech.files.archives import Arrays
from dualmech.geometry.block_forms import UnionPoint
from dualmech.problems.fitness import FitnessDual, FitnessForUse, PrivacyFirst
from dualmech.problems.marginals import MarginalDual, MarginalFitness, MarginalVariance
from dualmech.problems.products import ProductDual, ProductFitness, ProductVariance
from dualmech.problems.softmax import SoftmaxDual, SoftmaxFitness
from dualmech.problems.tables import TableDual, TableFitness, TablePoint
from dualmech.problems.unions import UnionDual, UnionFitness, UnionVariance
from dualmech.problems.variance import TotalVariance, VarianceDual
from dualmech.problems.weighting import QueryWeighting, WeightingDual
from dualmech.workloads.base import Workload
from dualmech.workloads.circular import CircularWorkload
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.query_tables import query_tables
from dualmech.workloads.unions import Queries, UnionWorkload, union

Given: TypeAlias = Mapping[str, npt.NDArray[Any]]

Answer: TypeAlias = tuple[Any, Any, Any]
"""A problem, a primal point and dual weights."""

PREFIX = "workload_"
"""What the keys of a workload start with."""

NONE = -1
"""What stands for no item among the numbers of items."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem whose keys are named as the parameters of the problem and of its dual weights.

    Where it is of marginal tables, the file names the tables instead of holding a matrix.
    """

    problem: type
    dual: type
    data: tuple[str, ...]
    optional: tuple[str, ...] = ("basis", "neighbours")
    weights: tuple[str, ...] = ("neighbour_weights",)
    tables: bool = False

    def arrays(self, problem: Any, primal: Any, dual: Any) -> Arrays:
        """Return what describes a problem of this kind and an answer to it."""
        workload = problem.workload
        arrays: dict[str, Any] = _table_arrays(workload) if self.tables else files.workload_arrays(workload)
        for name in (*self.data, *self.optional):
            if getattr(problem, name) is not None:
                arrays[name] = linalg.to_dense(getattr(problem, name))
        return arrays | {"primal": primal} | {name: getattr(dual, name) for name in self.weights}

    def answer(self, given: Given) -> Answer:
        """Return what `arrays` described."""
        _need(given, "primal", *self.data, *self.weights)
        stated = {key: _value(given[key]) for key in (*self.data, *self.optional) if key in given}
        workload = _tables(given) if self.tables else files.workload_from_arrays(given)
        weights = {key: given[key] for key in self.weights}
        return self.problem(workload, **stated), given["primal"], self.dual(**weights)


@dataclass(frozen=True, slots=True)
class TableKind:
    """`TableFitness`: marginal tables, the queries asked along their attributes, and a covariance for each of these."""

    problem: type = TableFitness

    def arrays(self, problem: TableFitness, primal: TablePoint, dual: TableDual) -> Arrays:
        """Return what describes a problem of this kind and an answer to it."""
        return {
            **_table_arrays(problem.workload.tables),
            **_pooled("queries", problem.workload.queries, files.workload_arrays),
            "targets": problem.targets,
            "primal": primal.noise,
            **_pooled("shapes", primal.shapes, lambda shape: {"covariance": shape}),
            "neighbour_weights": np.concatenate(dual.neighbour_weights),
            "query_weights": np.concatenate(dual.query_weights),
            "table_weights": dual.table_weights,
        }

    def answer(self, given: Given) -> Answer:
        """Return what `arrays` described."""
        _need(given, "targets", "primal", "neighbour_weights", "query_weights", "table_weights")
        tables = _tables(given)
        assert tables.domain is not None
        names, asked = tables.domain.names, _spread(given, "queries", files.workload_from_arrays, NONE)
        if len(asked) != len(names):
            raise InvalidInputError(f"queries must be {len(names)}, one an attribute, got {len(asked)}")
        named = {name: each for name, each in zip(names, asked, strict=True) if each is not None}
        workload = query_tables(tables.domain, named, sets=tables.sets)
        point = TablePoint(tuple(_spread(given, "shapes", _one)), given["primal"])
        dual = TableDual(
            _split(given, "neighbour_weights", workload.sizes),
            _split(given, "query_weights", workload.table_shape(range(len(names)))),
            given["table_weights"],
        )
        return TableFitness(workload, given["targets"]), point, dual


@dataclass(frozen=True, slots=True)
class UnionKind:
    """A union of tables: their names and attributes, what is asked along each, and noise on the blocks.

    A covariance is kept with its basis, so that it means the same to a machine that would choose another.
    """

    problem: type
    data: str
    weights: tuple[str, ...]

    def arrays(self, problem: Any, primal: UnionPoint, dual: UnionDual) -> Arrays:
        """Return what describes a problem of this kind and an answer to it."""
        workload, several = problem.workload, problem.blocks.several
        tables = domains.arrays(workload.domain, [table.axes for table in workload.tables])
        asked = [own for table in workload.tables for _, own in table.queries]
        return {
            **{f"{PREFIX}{key}": value for key, value in tables.items()},
            f"{PREFIX}table_names": files.texts("table names", workload.table_names),
            **_pooled("queries", asked, _query_arrays),
            self.data: getattr(problem, self.data),
            "primal": primal.levels,
            **_pooled(
                "blocks",
                [*zip(primal.covariances, several, strict=True)],
                lambda each: {"covariance": each[0], "basis": each[1].moves},
            ),
            **{key: getattr(dual, key) for key in self.weights},
        }

    def answer(self, given: Given) -> Answer:
        """Return what `arrays` described."""
        _need(given, self.data, "primal", *self.weights)
        problem = self.problem(_union(given), given[self.data])
        noise = _spread(given, "blocks", lambda parts: (_one(parts), _one(parts, "basis")))
        if len(noise) != len(problem.blocks.several):
            raise InvalidInputError(f"blocks must be {len(problem.blocks.several)}, got {len(noise)}")
        found = zip(noise, problem.blocks.several, strict=True)
        point = UnionPoint(given["primal"], tuple(block.restated(*own) for own, block in found))
        return problem, point, UnionDual(**{key: given[key] for key in self.weights})


@dataclass(frozen=True, slots=True)
class ProductKind:
    """A product of problems: its factors, each as a file of its own would have it, those that come again once."""

    problem: type

    def arrays(self, problem: Any, primal: Sequence[Any], dual: ProductDual) -> Arrays:
        """Return what describes a problem of this kind and an answer to it."""
        answers = zip(problem.factors, primal, dual.factors, strict=True)
        known: dict[tuple[int, ...], Answer] = {}
        same = [known.setdefault(tuple(map(id, each)), each) for each in answers]
        return _pooled("factors", same, lambda each: described(*each))

    def answer(self, given: Given) -> Answer:
        """Return what `arrays` described."""
        found = _spread(given, "factors", _factor)
        problems, primals, duals = (tuple(each[which] for each in found) for which in range(3))
        return self.problem(problems), primals, ProductDual(duals)


_BOTH_WEIGHTS = ("neighbour_weights", "query_weights")

KINDS: dict[str, Kind | TableKind | UnionKind | ProductKind] = {
    kind.problem.__name__: kind
    for kind in (
        Kind(FitnessForUse, FitnessDual, ("targets",), weights=_BOTH_WEIGHTS),
        Kind(PrivacyFirst, FitnessDual, ("targets", "cost"), weights=_BOTH_WEIGHTS),
        Kind(SoftmaxFitness, SoftmaxDual, ("targets", "t1", "t2", "total_weight"), weights=_BOTH_WEIGHTS),
        Kind(TotalVariance, VarianceDual, ("weights",)),
        Kind(MarginalFitness, MarginalDual, ("targets",), (), ("table_weights",), tables=True),
        Kind(MarginalVariance, type(None), ("weights",), (), (), tables=True),
        Kind(QueryWeighting, WeightingDual, ("design", "privacy"), optional=("neighbours",)),
        TableKind(),
        UnionKind(UnionFitness, "targets", ("cell_weights", "query_weights")),
        UnionKind(UnionVariance, "weights", ("cell_weights",)),
        ProductKind(ProductFitness),
        ProductKind(ProductVariance),
    )
}
"""The problems whose solutions can be written, by name."""


def described(problem: Any, primal: Any, dual: Any) -> Arrays:
    """Return the arrays of a problem, one of `KINDS`, and an answer to it."""
    name = type(problem).__name__
    return {"problem": np.array(name)} | KINDS[name].arrays(problem, primal, dual)


def answered(given: Given) -> Answer:
    """Return what `described` was given.

    Raises
    ------
    InvalidInputError, InputTypeError
        A problem of a kind that is not known, a key that is missing, or arrays that do not fit together.
    """
    _need(given, "problem")
    kind = KINDS.get(str(given["problem"]))
    if kind is None:
        raise InvalidInputError(f"problem must be one of {', '.join(KINDS)}, got {str(given['problem'])!r}")
    return kind.answer(given)


def _factor(given: Given) -> Answer:
    # A product in a product would stand for its factors; files have these themselves.
    if isinstance(KINDS.get(str(given.get("problem"))), ProductKind):
        raise InvalidInputError("a factor must be no product itself")
    return answered(given)


def _table_arrays(workload: MarginalWorkload) -> Arrays:
    assert workload.domain is not None
    tables = domains.arrays(workload.domain, workload.axes)
    return {f"{PREFIX}{key}": value for key, value in tables.items()}


def _tables(given: Given) -> MarginalWorkload:
    _need(given, *(f"{PREFIX}{key}" for key in domains.KEYS))
    parts = {key: given[f"{PREFIX}{key}"] for key in domains.KEYS}
    return MarginalWorkload(*domains.from_arrays(parts))


def _query_arrays(asked: Workload) -> Arrays:
    if isinstance(asked, CircularWorkload):
        return {"bases": asked.bases}
    return files.workload_arrays(asked)


def _queries(given: Given) -> Workload:
    return CircularWorkload(given["bases"]) if "bases" in given else files.workload_from_arrays(given)


def _union(given: Given) -> UnionWorkload:
    keys = (*domains.KEYS, "table_names")
    _need(given, *(f"{PREFIX}{key}" for key in keys))
    parts = {key: given[f"{PREFIX}{key}"] for key in keys}
    domain, sets = domains.from_arrays(parts, distinct=False)
    names, asked = np.atleast_1d(parts["table_names"]).tolist(), _spread(given, "queries", _queries, NONE)
    if len(names) != len(sets) or len(set(map(str, names))) < len(names):
        raise InvalidInputError(f"{PREFIX}table_names must be {len(sets)} distinct texts, got {names}")
    if len(asked) != (count := sum(map(len, sets))):
        raise InvalidInputError(f"queries must be {count}, one an attribute of a table, got {len(asked)}")
    own = iter(asked)
    tables: dict[str, dict[str, Queries]] = {
        name: {domain.names[axis]: next(own) for axis in axes} for name, axes in zip(names, sets, strict=True)
    }
    return union(domain, tables)


def _pooled(key: str, items: Sequence[Any], arrays: Callable[[Any], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the arrays of several items, those that come again once, and under `key` which of them each one is."""
    kept = {id(item): item for item in items if item is not None}
    order = {identity: number for number, identity in enumerate(kept)}
    pooled: dict[str, Any] = {key: np.array([order.get(id(item), NONE) for item in items], dtype=np.int64)}
    for identity, item in kept.items():
        pooled |= {f"{key}{order[identity]}_{name}": value for name, value in arrays(item).items()}
    return pooled


def _spread(given: Given, key: str, item: Callable[[Given], Any], least: int = 0) -> list[Any]:
    """Return the items that `_pooled` described, one that comes again the same object; None where there is none.

    Raises
    ------
    InvalidInputError
        Numbers below `least` or not whole, and whatever is wrong with an item, by its name.
    """
    _need(given, key)
    numbers = given[key]
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or np.any(numbers < least):
        raise InvalidInputError(f"{key} must be a list of whole numbers from {least}")
    made: dict[int, Any] = {NONE: None}
    for number in np.unique(numbers).tolist():
        prefix = f"{key}{number}_"
        parts = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
        try:
            made.setdefault(number, None if number == NONE else item(parts))
        except (DualmechError, ValueError, TypeError) as error:
            raise InvalidInputError(f"{key}{number}: {error}") from error
    return [made[number] for number in numbers.tolist()]


def _one(given: Given, key: str = "covariance") -> npt.NDArray[Any]:
    _need(given, key)
    return given[key]


def _split(given: Given, key: str, counts: Sequence[int]) -> tuple[npt.NDArray[Any], ...]:
    """Return an array cut into parts of the given lengths."""
    whole = given[key]
    if whole.shape != (sum(counts),):
        raise InvalidInputError(f"{key} must be {sum(counts)} numbers, got shape {whole.shape}")
    return tuple(np.split(whole, np.cumsum(counts)[:-1]))


def _need(given: Given, *keys: str) -> None:
    missing = [key for key in keys if key not in given]
    if missing:
        held = ", ".join(sorted(given)) or "none"
        raise InvalidInputError(f"needs the array {missing[0]!r}, has {held}")


def _value(array: npt.NDArray[Any]) -> Any:
    """Return the number or the text that an array of no dimension holds, and any other array as it is."""
    return array.item() if array.ndim == 0 else array
