"""A publication in a file: its noisy answers with all digits, the mechanism that drew them, and what it costs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from dualmech import files, validate
from dualmech.errors import FileFormatError, InvalidInputError
from dualmech.geometry.block_rows import symmetries_of
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.block_noise import axes_of, same_symmetry
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.plans import PlanTerms
from dualmech.publishing.combining import CombinedRows, CombinedTables, is_kept, mechanism_of, require_kept
from dualmech.publishing.publication import Part, Publication, write_into
from dualmech.solution import Solution
from dualmech.storage import codec, store
from dualmech.validate import Array
from dualmech.workloads.arrays import Arrays
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Axes
from dualmech.workloads.unions import UnionWorkload

SCHEMA, VERSION = "dualmech.publication", 1
KEPT = "release.npz"  # the file of a publication in the folder of its tables
ANSWER = "answer."  # before the arrays of the plan's solution
ROUNDING = 1e-6  # by how much what noise costs in doubles may exceed what it costs exactly, relative


def save_publication(released: Publication, path: str | PathLike[str]) -> None:
    """Write a publication to an ``.npz`` file, whole or not at all; `load_publication` reads it back, to the last bit.

    The CSV files of `Publication.write` have the digits that noise leaves; this file has all, with the mechanism, the
    exact ρ, the workload and the plan. It holds nothing that may not be told to anybody.
    Raises `InputTypeError` for no publication, a plan whose problem has no file; `InvalidInputError` for an adaptive
    release, a product, a split or a stream; `FileFormatError` where the path cannot be written.
    """
    validate.instance(Publication, released=released)
    require_kept("released", released)
    mechanism, drawn = mechanism_of(released), released.drawn
    if drawn.by_table and not mechanism.plain:
        known = mechanism.workload
        if not isinstance(known, UnionWorkload) or not same_symmetry(symmetries_of(known)[0], mechanism.symmetries):
            raise InvalidInputError("released must be of a mechanism with the symmetry of its own tables")
    arrays = codec.pack("workload", released.workload) | codec.pack("mechanism", mechanism)
    arrays |= (
        {} if released.answer is None else {f"{ANSWER}{key}": array for key, array in released.answer.arrays().items()}
    )
    if drawn.by_table:
        arrays |= {f"measured.{_name(axes)}": np.asarray(array) for axes, array in released.measured.items()}
    else:
        arrays |= {"measured": np.asarray(released.measured), "exact": np.array(drawn.exact)}
    cost, parts = str(Fraction(drawn.squared_privacy_cost)), json.dumps([_told(part) for part in released.combined])
    files.write_npz(path, SCHEMA, VERSION, **arrays, squared_privacy_cost=cost, combined=parts)


def write_with_file(
    released: Publication, folder: str | PathLike[str], level: float | None = None, simultaneous: bool = False
) -> list[str]:
    """Write what `Publication.write` does, and beside it the publication's file, where it has one; return the names.

    The command writes so: what it released can be combined with what comes next.
    """
    with files.atomic_folder(folder) as place:
        names = write_into(released, place, level, simultaneous)
        if not is_kept(released):
            return names
        save_publication(released, place / KEPT)
        return [*names, KEPT]


def load_publication(path: str | PathLike[str]) -> Publication:
    """Read a publication from its file, or from the folder that the command left; its plan is judged anew.

    Raises `FileFormatError` where the file cannot be read, follows another schema, was changed, lacks an array, or
    says that its noise costs less than it does.
    """
    if isinstance(path, str | PathLike) and os.path.isdir(path):
        path = Path(path) / KEPT
        if not path.exists():
            raise FileFormatError(
                f"{path.parent}: holds no {KEPT}, which releases on a matrix and of tables by blocks have"
            )
    arrays = files.read_npz(path, SCHEMA, (VERSION,))
    with files.errors_naming(path):
        workload = validate.instance(Workload, workload=store.unpack(arrays, "workload"))
        cost = Fraction(str(store.required_array(arrays, "squared_privacy_cost")))
        mechanism = store.unpack(arrays, "mechanism")
        if not isinstance(mechanism, LinearGaussianMechanism | BlockMechanism):
            raise InvalidInputError("mechanism must be on a matrix or of tables")
        if mechanism.squared_privacy_cost > float(cost) * (1 + ROUNDING):
            raise InvalidInputError(f"squared_privacy_cost must be what the noise costs, got {float(cost):.6g}")
        drawn: CombinedRows | CombinedTables
        measured: Any
        if isinstance(mechanism, BlockMechanism):
            drawn, measured = CombinedTables(mechanism, workload, cost), _measured_tables(arrays, mechanism)
        else:
            rows = len(mechanism.query_matrix)
            exact = int(store.required_array(arrays, "exact"))
            measured = validate.vector(rows, "row", measured=store.required_array(arrays, "measured"))
            if not 0 <= exact <= rows:
                raise InvalidInputError(f"exact must be from 0 to {rows}, got {exact}")
            drawn = CombinedRows(mechanism, exact, cost)
        publication = Publication(drawn, measured, workload, _answer(arrays))
        publication.combined = tuple(map(_part, json.loads(str(store.required_array(arrays, "combined")))))
        return publication


def _name(axes: Axes) -> str:
    return "_".join(map(str, axes)) or "total"


def _measured_tables(arrays: Arrays, mechanism: BlockMechanism) -> dict[Axes, Array]:
    tables: dict[Axes, Array] = {}
    for axes in dict.fromkeys(map(axes_of, mechanism.pieces)):
        array = np.asarray(store.required_array(arrays, f"measured.{_name(axes)}"), dtype=np.float64)
        if array.shape != mechanism.extents(axes) or not np.all(np.isfinite(array)):
            raise InvalidInputError(f"measured.{_name(axes)} must be numbers of shape {mechanism.extents(axes)}")
        tables[axes] = array
    return tables


def _answer(arrays: Arrays) -> Solution | None:
    parts = {key.removeprefix(ANSWER): array for key, array in arrays.items() if key.startswith(ANSWER)}
    return store.solution_of(parts) if parts else None


def _told(part: Part) -> dict[str, Any]:
    terms = part.terms
    kept = {} if terms is None else {key: getattr(terms, key) for key in ("quantile", "delta", "rho", "specification")}
    return {"rho": str(part.rho), "tables": [*part.tables], "digest": part.digest, "terms": kept or None}


def _part(facts: Mapping[str, Any]) -> Part:
    try:
        terms = None if facts["terms"] is None else PlanTerms(**facts["terms"])
        return Part(Fraction(facts["rho"]), tuple(map(str, facts["tables"])), str(facts["digest"]), terms)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"combined must list releases, each with rho, tables, digest and terms: {error}"
        ) from error
