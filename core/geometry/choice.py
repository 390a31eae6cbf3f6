"""Which geometry a problem stands on: the cheapest that is exact, by the structure of its workload and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import numpy as np

from dualmech import validate
from dualmech.errors import DualmechError, InputTypeError, InvalidInputError, LittleSymmetryError
from dualmech.geometry.base import Geometry
from dualmech.geometry.block_rows import MAX_ORBITS
from dualmech.geometry.blocks import Blocks
from dualmech.geometry.dense import Dense
from dualmech.geometry.moves import LARGEST_DENSE, bound_words, check_relation, on_matrix
from dualmech.geometry.product import ByFactor, Product
from dualmech.geometry.split import Split
from dualmech.geometry.stream import Stream, stream_of
from dualmech.neighbours import Relation
from dualmech.validate import Array
from dualmech.workloads import numbers, products
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.products import ProductWorkload
from dualmech.workloads.query_tables import TableWorkload
from dualmech.workloads.streams import RangeWorkload, StreamWorkload
from dualmech.workloads.unions import UnionWorkload, union_of

KINDS = ("auto", "dense", "blocks", "product", "split", "stream")

SPLIT_FROM = 2048
"""Number of kinds of records above which ``auto`` splits the noise on query tables rather than solve their blocks."""

PRODUCT_FROM = 512
"""Number of kinds of records above which ``auto`` looks for a product: in numbers one by one, and in a single table."""

DenseBuilder = Callable[[Workload, Array, Any], Dense]
"""Makes the dense geometry of a workload, its numbers, one per query, and neighbours."""


def choose(
    workload: Any,
    given: Any,
    name: str,
    geometry: str | Geometry,
    dense: DenseBuilder | None = None,
    basis: Any = None,
    neighbours: Any = None,
) -> tuple[Geometry, Any]:
    """Return a geometry for a workload and its numbers, and the numbers, one for each of the geometry's items.

    Raises `InvalidInputError` or `InputTypeError` for no workload, a geometry that cannot hold it, numbers
    that it cannot use.

    Parameters
    ----------
    workload : Workload
        What is asked.
    given : number, array, mapping, Series or ByFactor
        Targets or weights, called `name`.
    geometry : str or Geometry
        One of `KINDS`, or a geometry of this workload that was made before.
    dense : callable
        How a dense geometry is made.
    basis, neighbours
        What was given: a basis and a matrix of neighbours are for dense geometries alone; neighbours by a rule, such as
        ``replace``, also for blocks.
    """
    if not isinstance(workload, Workload):
        raise InputTypeError(f"workload must be a Workload of dualmech, got {type(workload).__name__}")
    given = numbers.as_mapping(given, name)
    if not isinstance(geometry, str):
        if basis is not None or neighbours is not None:
            raise InvalidInputError(
                "basis and neighbours are those of the geometry that is given; leave them out"
            )
        return _again(workload, given, name, geometry)
    kind = validate.choice(KINDS, geometry=geometry)
    relation = relation_of(neighbours)
    if relation is not None:
        relation.check(workload.domain)
    if basis is not None or (neighbours is not None and relation is None):
        kind = on_matrix(workload, kind, neighbours if relation is None else None)
    if relation == Relation():
        relation = neighbours = None
    if relation is not None and kind in ("product", "split", "stream"):
        raise InvalidInputError(
            f"geometry {kind!r} takes neighbours that differ by one record added or removed, got {relation}"
            f"{bound_words(relation.reach, kind)}"
        )
    if kind in ("auto", "product") and relation is None and basis is None:
        workload, given = _multiplied(workload, given, name, kind)
    if _factored(workload, given, name, kind, relation):
        return _product(workload, given, name, dense)
    if kind == "stream" or (kind == "auto" and neighbours is None and _takes_stream(workload, given, name)):
        stream = stream_of(workload)
        return stream, stream.numbers(given, name)
    if kind == "split":
        return _split(workload, given, name)
    tables = tabular(workload) if kind == "blocks" else workload.tabular() if kind == "auto" else None
    if tables is not None:
        found = _blocks(workload, tables, given, name, kind == "auto", relation, dense)
        if found is not None:
            return found
    each = numbers.by_query_or_table(workload, given, name)
    assert dense is not None
    if relation is not None:
        check_relation(relation, workload, kind)
    moves = neighbours if relation is None else relation.matrix(workload.shape[1], workload.domain)
    return dense(workload, each, moves), each


def _multiplied(workload: Workload, given: Any, name: str, kind: str) -> tuple[Workload, Any]:
    """Return products with numbers by factor, where those of the queries are products; one table as a product."""
    if isinstance(workload, UnionWorkload) and kind == "product" and (own := products.as_product(workload)):
        each_table = (
            None if isinstance(given, ByFactor) else numbers.of_tables(workload, workload, given, name)
        )
        return own, given if each_table is None else float(each_table[0])
    large = kind == "product" or workload.shape[1] > PRODUCT_FROM
    single = not isinstance(given, Mapping | ByFactor) and np.shape(given) == workload.shape[:1]
    if isinstance(workload, ProductWorkload) and large and single:
        each = numbers.by_query(workload, given, name, positive=name == "targets")
        parts = products.factored(workload, each)
        return workload, given if parts is None else ByFactor(*parts)
    return workload, given


def _takes_stream(workload: Workload, given: Any, name: str) -> bool:
    """Whether running sums, or all ranges, take fewer operations as such than as a matrix, or have none."""
    if not isinstance(workload, StreamWorkload | RangeWorkload):
        return False
    stream = stream_of(workload)
    try:
        held = stream.numbers(given, name)
    except InvalidInputError:  # of what only a matrix can hold, or nothing at all
        return isinstance(workload, StreamWorkload) and workload.shape[0] > LARGEST_DENSE
    return not stream.has_matrix or stream.operations(held, name) < Dense.operations(workload.shape)


def _factored(
    workload: Workload, given: Any, name: str, kind: str, relation: Relation | None
) -> TypeGuard[ProductWorkload]:
    """Whether to take the product of the factors' geometries; what only that can hold is refused elsewhere."""
    multiplied, by_factor = isinstance(workload, ProductWorkload), isinstance(given, ByFactor)
    if (
        kind in ("auto", "product")
        and multiplied
        and (by_factor or numbers.is_number(given))
        and relation is None
    ):
        return True
    if by_factor and multiplied:
        raise InvalidInputError(
            f"{name} by factor are for geometry 'product' and for one record added or removed, not for "
            f"{kind if relation is None else relation}"
        )
    if by_factor or kind == "product":
        raise InvalidInputError(
            f"geometry 'product' takes workloads made by dualmech.workloads.kron, with one number for {name} or "
            f"dualmech.ByFactor"
        )
    return False


def relation_of(neighbours: Any) -> Relation | None:
    """Return neighbours by a rule, None for a matrix or none at all."""
    if isinstance(neighbours, str):
        return Relation.of(neighbours)
    return neighbours if isinstance(neighbours, Relation) else None


def _again(workload: Workload, given: Any, name: str, geometry: Any) -> tuple[Geometry, Any]:
    """Return a geometry that was made before, with other numbers."""
    if not isinstance(geometry, Geometry):
        raise InputTypeError(
            f"geometry must be one of {', '.join(KINDS)}, or a Geometry, got {validate.shown(geometry)}"
        )
    if isinstance(geometry, Product):
        workload, given = _multiplied(workload, given, name, "product")
        if not isinstance(workload, ProductWorkload) or not workload.same_as(geometry.workload):
            raise InvalidInputError("geometry must be of this workload")
        known: dict[Any, Any] = {}
        found: list[Any] = []
        for own, factor, share in zip(
            workload.factors, geometry.factors, _shares(workload, given, name), strict=True
        ):
            key = id(factor), share if numbers.is_number(share) else id(share)
            if key not in known:
                known[key] = _of_factor(len(found), given, own, share, name, factor)[1]
            found.append(known[key])
        geometry.representable(name, found)
        return geometry, tuple(found)
    if isinstance(geometry, Dense):
        each = numbers.by_query_or_table(workload, given, name)
        asked = workload if np.all(each) else workload.select(np.flatnonzero(each))
        if not geometry.workload.same_as(asked):
            raise InvalidInputError("geometry must be of this workload, and of its queries that count")
        return geometry, each
    if isinstance(geometry, Stream) and geometry.workload.same_as(workload):
        return geometry, geometry.numbers(given, name)
    tables, asked = workload.tabular(), geometry.workload
    if tables is None or not any(asked.same_as(each) for each in (workload, tables, union_of([tables]))):
        raise InvalidInputError("geometry must be of this workload")
    each_table = numbers.of_tables(workload, tables, given, name)
    if each_table is None:
        raise InvalidInputError(f"geometry {geometry.name!r} takes {name} that are equal within a table")
    return geometry, each_table


def tabular(workload: Workload) -> MarginalWorkload | UnionWorkload:
    """Return a workload as tables; refuse what keeps no structure."""
    found: MarginalWorkload | UnionWorkload | None = validate.instance(Workload, workload=workload).tabular()
    if found is None:
        raise InvalidInputError(
            "geometry 'blocks' takes workloads that keep their structure, as those of dualmech.workloads.union, "
            "marginals, query_tables, circular and kron (over a domain) do"
        )
    return found


def _blocks(
    workload: Workload,
    tables: MarginalWorkload | UnionWorkload,
    given: Any,
    name: str,
    auto: bool,
    relation: Relation | None,
    dense: DenseBuilder | None,
) -> tuple[Geometry, Any] | None:
    """Return blocks; None where ``auto`` should rather take a matrix."""
    found = numbers.of_tables(workload, tables, given, name)
    if found is None:
        if auto:
            return None
        raise InvalidInputError(f"geometry 'blocks' takes {name} that are equal within a table")
    try:
        if isinstance(tables, MarginalWorkload) and relation is None:
            return Blocks.of_marginals(tables), found
        asked = tables if isinstance(tables, UnionWorkload) else union_of([tables])
        assert asked is not None
        return Blocks.of(asked, _most_orbits(workload) if auto else MAX_ORBITS, relation), found
    except LittleSymmetryError as error:
        if auto and relation is None and dense is not None and (own := products.as_product(workload)):
            return _product(own, float(found[0]), name, dense)
        if auto and relation is not None and workload.shape[1] <= LARGEST_DENSE:
            return None
        if auto and relation is None and isinstance(workload, TableWorkload):
            return _split(workload, given, name)
        raise LittleSymmetryError(f"{error}; {_otherwise(workload, relation)}") from None


def _most_orbits(workload: Workload) -> int:
    """Return how many kinds of records ``auto`` allows blocks, where another geometry is at hand."""
    if isinstance(workload, TableWorkload):
        return SPLIT_FROM
    return MAX_ORBITS if products.as_product(workload) is None else PRODUCT_FROM


def _otherwise(workload: Workload, relation: Relation | None) -> str:
    """Say which geometries hold a workload that has too little symmetry for blocks."""
    (queries, cells), usual = workload.shape, relation is None
    held = {
        "'split', whose interval need not be tight,": usual and isinstance(workload, TableWorkload),
        "'product'": usual and isinstance(workload, ProductWorkload),
        "'dense'": cells <= LARGEST_DENSE and queries * cells <= MAX_DENSE_ENTRIES,
    }
    named = " or ".join(words for words, holds in held.items() if holds)
    return f"geometry {named} holds it" if named else "no other geometry holds it: ask for coarser values"


def _split(workload: Workload, given: Any, name: str) -> tuple[Geometry, Any]:
    if not isinstance(workload, TableWorkload):
        raise InvalidInputError("geometry 'split' takes workloads made by dualmech.workloads.query_tables")
    found = workload.tables.per_table(given, name)
    validate.moderate(**{name: found})
    return Split(workload), found


def _shares(workload: ProductWorkload, given: Any, name: str) -> tuple[Any, ...]:
    """Return the numbers of each factor."""
    count = len(workload.factors)
    if not isinstance(given, ByFactor):
        return (given, *[1.0] * (count - 1))
    if len(given.numbers) != count:
        raise InvalidInputError(f"{name} by factor must be {count}, one per factor, got {len(given.numbers)}")
    return given.numbers


def _of_factor(index: int, given: Any, *asked: Any) -> tuple[Geometry, Any]:
    """Return what `choose` does of a factor; it says which of several numbers it cannot take."""
    try:
        return choose(*asked)
    except DualmechError as error:
        if isinstance(given, ByFactor):
            raise type(error)(f"factors[{index}]: {error}") from None
        raise


def _product(
    workload: ProductWorkload, given: Any, name: str, dense: DenseBuilder | None
) -> tuple[Geometry, Any]:
    """Return the product of the factors' geometries; a factor that comes twice with the same numbers is built once."""
    known: dict[Any, tuple[Geometry, Any]] = {}
    found: list[tuple[Geometry, Any]] = []
    for factor, own in zip(workload.factors, _shares(workload, given, name), strict=True):
        key = id(factor), own if isinstance(own, int | float | np.number) else id(own)
        if key not in known:
            kind = "blocks" if isinstance(factor, MarginalWorkload) else "dense"
            known[key] = _of_factor(len(found), given, factor, own, name, kind, dense)
        found.append(known[key])
    made = Product(workload, tuple(geometry for geometry, _ in found))
    held = tuple(own for _, own in found)
    made.representable(name, held)
    return made, held
