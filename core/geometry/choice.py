"""The choice of a problem's geometry: each geometry offers a number of operations, and the cheapest is taken."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy.typing as npt

from dualmech import geometry as modules  # each is loaded when its geometry is first asked
from dualmech import validate
from dualmech.errors import GeometryError, InputTypeError, InvalidInputError
from dualmech.geometry.base import KINDS, Geometry, Offer, Request
from dualmech.geometry.moves import bound_words, on_matrix
from dualmech.neighbours import ADD_REMOVE, Relation, relation_of
from dualmech.workloads.base import check_workload
from dualmech.workloads.numbers import ByFactor

SMALL_MATRIX = 512  # rank of a matrix up to which it is taken for its exact neighbours alone

NONE = "no other geometry holds it: ask for coarser values"


def geometries() -> tuple[type[Geometry], ...]:
    """Return every geometry, in the order in which ``auto`` asks them; at equal numbers the later one is taken."""
    return (
        modules.product.Product,
        modules.stream.Stream,
        modules.split.Split,
        modules.epochs.Epochs,
        modules.dense.Dense,
        modules.blocks.Blocks,
    )


def choose(
    workload: object,
    values: object,
    name: str,
    geometry: str | Geometry,
    basis: npt.ArrayLike | None = None,
    neighbours: object = None,
) -> tuple[Geometry, object]:
    """Return a geometry for a workload and its numbers, and the numbers, one for each of the geometry's items.

    Raises `InvalidInputError` or `InputTypeError` for no workload, a geometry that cannot hold it, numbers
    that it cannot use.

    Parameters
    ----------
    workload : Workload
        The workload to hold.
    values : number, array, mapping, Series or ByFactor
        Targets or weights, called `name`.
    geometry : str or Geometry
        One of `KINDS`, or a geometry of this workload that was made before.
    basis, neighbours
        The user's arguments: only dense geometries take a basis and a matrix of neighbours; blocks also take a rule of
        neighbours, such as ``replace``.
    """
    checked = check_workload(workload)
    values = validate.as_mapping(**{name: values})
    if not isinstance(geometry, str):
        if basis is not None or neighbours is not None:
            raise InvalidInputError("the geometry that is given has a basis and neighbours; leave both out")
        if not isinstance(geometry, Geometry):
            raise InputTypeError(
                f"geometry must be one of {', '.join(KINDS)}, or a Geometry, got {validate.shown(geometry)}"
            )
        return geometry, geometry.numbers(checked, values, name)
    kind = validate.choice(KINDS, geometry=geometry)
    relation = relation_of(neighbours)
    if relation is not None:
        relation.check(checked.domain)
    if basis is not None or (neighbours is not None and relation is None):
        kind = on_matrix(checked, kind, neighbours if relation is None else None)
    moves = neighbours if relation is None else None if relation == ADD_REMOVE else relation
    request = Request(checked, values, name, basis, moves, kind != "auto")
    if kind == "auto":
        return _cheapest(request).take()
    by_name = {geometry.name: geometry for geometry in geometries()}
    return _named(request, by_name[kind]).take()


def _named(request: Request, geometry: type[Geometry]) -> Offer:
    """Return what the geometry that was asked for offers; where it refuses, say which others would not."""
    try:
        offer = _offered(request, geometry)
        if offer is None:
            raise GeometryError(f"geometry {geometry.name!r} takes {geometry.takes}")
    except GeometryError as error:
        request = replace(request, named=False)
        others = [other for other in geometries() if other is not geometry and _holds(other, request)]
        held = f"geometry {' or '.join(repr(other.name) for other in others)} holds it" if others else NONE
        raise GeometryError(f"{error}; {held}") from None
    return offer


def _holds(geometry: type[Geometry], request: Request) -> bool:
    try:
        return _offered(request, geometry) is not None
    except InvalidInputError:
        return False


def _cheapest(request: Request) -> Offer:
    """Return the offer of fewest operations; where there is none, say why no geometry has one.

    Where some cells are of no record, a small matrix comes first: it alone adds no noise for them.
    """
    best, refusals = None, []
    domain, least = request.workload.domain, min(request.workload.shape)
    if domain is not None and domain.impossible and least <= SMALL_MATRIX:
        with contextlib.suppress(GeometryError):
            if (offer := _offered(request, modules.dense.Dense)) is not None:
                return offer
    for geometry in geometries():
        try:
            offer = _offered(request, geometry)
        except GeometryError as error:
            refusals.append(str(error))
            continue
        if offer is not None and (best is None or offer.operations <= best.operations):
            best, request = offer, replace(request, most=offer.operations)
    if best is None:
        raise GeometryError("; ".join(dict.fromkeys([*refusals, NONE])))
    return best


def _offered(request: Request, geometry: type[Geometry]) -> Offer | None:
    """Return what a geometry offers, its rules of neighbours and numbers by factor included."""
    if isinstance(request.values, ByFactor) and geometry.name != "product":
        raise GeometryError(
            f"{request.name} by factor are for geometry 'product' and one record added or removed; "
            f"geometry 'product' takes {modules.product.Product.takes}"
        )
    relation = request.neighbours
    if isinstance(relation, Relation) and relation.geometries and geometry.name not in relation.geometries:
        raise GeometryError(
            f"geometry {geometry.name!r} does not take neighbours {relation}"
            f"{bound_words(relation.reach, geometry.name)}"
        )
    offer = geometry.offer(request)
    if offer is not None and isinstance(relation, Relation) and not geometry.takes_relations:
        raise GeometryError(
            f"geometry {geometry.name!r} takes neighbours that differ by one record added or removed, got {relation}"
            f"{bound_words(relation.reach, geometry.name)}"
        )
    return offer
