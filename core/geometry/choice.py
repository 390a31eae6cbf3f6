"""The choice of a problem's geometry: each geometry states its number of operations, and the cheapest is taken."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy.typing as npt

from dualmech import geometry as modules  # modules are loaded at first use
from dualmech import validate
from dualmech.errors import GeometryError, InputTypeError, InvalidInputError
from dualmech.geometry.base import KINDS, Geometry, Offer, Request
from dualmech.geometry.moves import bound_words, on_matrix
from dualmech.neighbours import ADD_REMOVE, Relation, relation_of
from dualmech.workloads.base import check_workload
from dualmech.workloads.numbers import ByFactor

MAX_EXACT_RANK = 512  # with impossible cells, a matrix of at most this rank is preferred, as only it is exact

NO_GEOMETRY = "no other geometry supports it: ask for coarser values"


def geometries() -> tuple[type[Geometry], ...]:
    """Return all geometries, in the order of ``auto``; of two with equal operations the later one is taken."""
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
    """Return a geometry for a workload, and one number per item of the geometry.

    Raises `InvalidInputError` or `InputTypeError` if `workload` is no workload, or the geometry does not support it or
    its numbers.

    Parameters
    ----------
    workload : Workload
        The workload.
    values : number, array, mapping, Series or ByFactor
        Targets or weights; `name` says which.
    geometry : str or Geometry
        One of `KINDS`, or an existing geometry of this workload.
    basis, neighbours
        The user's arguments: only dense geometries support a basis and a matrix of neighbours; blocks also support
        rules of neighbours, such as ``replace``.
    """
    checked = check_workload(workload)
    values = validate.as_mapping(**{name: values})
    if not isinstance(geometry, str):
        if basis is not None or neighbours is not None:
            raise InvalidInputError("a geometry has its own basis and neighbours; leave both out")
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
    chosen_neighbours = neighbours if relation is None else None if relation == ADD_REMOVE else relation
    request = Request(checked, values, name, basis, chosen_neighbours, kind != "auto")
    if kind == "auto":
        return _cheapest(request).take()
    by_name = {geometry.name: geometry for geometry in geometries()}
    return _offer_of_named(request, by_name[kind]).take()


def _offer_of_named(request: Request, geometry: type[Geometry]) -> Offer:
    """Return the offer of the geometry that the user named; if it refuses, name the geometries that do not."""
    try:
        offer = _offer(request, geometry)
        if offer is None:
            raise GeometryError(f"geometry {geometry.name!r} takes {geometry.takes}")
    except GeometryError as error:
        request = replace(request, named=False)
        others = [repr(other.name) for other in geometries() if other is not geometry and _supports(other, request)]
        hint = f"geometry {' or '.join(others)} holds it" if others else NO_GEOMETRY
        raise GeometryError(f"{error}; {hint}") from None
    return offer


def _supports(geometry: type[Geometry], request: Request) -> bool:
    try:
        return _offer(request, geometry) is not None
    except InvalidInputError:
        return False


def _cheapest(request: Request) -> Offer:
    """Return the offer of fewest operations; without an offer, raise the reasons of all geometries.

    With impossible cells a small matrix is preferred: only a matrix adds no noise for them.
    """
    best, refusals = None, []
    domain, max_rank = request.workload.domain, min(request.workload.shape)
    if domain is not None and domain.impossible and max_rank <= MAX_EXACT_RANK:
        with contextlib.suppress(GeometryError):
            if (offer := _offer(request, modules.dense.Dense)) is not None:
                return offer
    for geometry in geometries():
        try:
            offer = _offer(request, geometry)
        except GeometryError as error:
            refusals.append(str(error))
            continue
        if offer is not None and (best is None or offer.operations <= best.operations):
            best, request = offer, replace(request, most=offer.operations)
    if best is None:
        raise GeometryError("; ".join(dict.fromkeys([*refusals, NO_GEOMETRY])))
    return best


def _offer(request: Request, geometry: type[Geometry]) -> Offer | None:
    """Return the offer of a geometry, after checks of neighbours and of numbers by factor."""
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
