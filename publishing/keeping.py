"""Files of publications: noisy answers with all digits, the mechanism, and its exact cost."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, fields
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from dualmech import files, validate
from dualmech.errors import FileFormatError, InvalidInputError, printable
from dualmech.geometry.block_rows import symmetries_of
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.block_noise import axes_of, same_symmetry
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.tables import IndexedTables
from dualmech.publishing.combining import CombinedRows, CombinedTables, is_storable, mechanism_of, require_storable
from dualmech.publishing.persons import Bound
from dualmech.publishing.plans import PlanTerms
from dualmech.publishing.publication import (
    UNDECLARED,
    Part,
    Publication,
    columns_of,
    read_as,
    records_of,
    specification_of,
    truncation,
    write_into,
)
from dualmech.publishing.records import Records
from dualmech.publishing.release import NOISE_TOL, as_spent
from dualmech.storage import codec, store
from dualmech.validate import Array
from dualmech.workloads.arrays import Arrays
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Axes
from dualmech.workloads.unions import UnionWorkload

SCHEMA, VERSION = "dualmech.publication", 2
VERSIONS = (1, VERSION)  # in version 1, only the specification declares roles of columns
FILE_NAME = "release.npz"  # in the folder of the tables
ANSWER = "answer."  # prefix of the arrays of the plan's solution
COST_TOL = 1e-9  # relative rounding error of the mechanism's cost in doubles


def save_publication(released: Publication, path: str | PathLike[str]) -> None:
    """Write a publication to an ``.npz`` file, atomically; `load_publication` returns the same publication.

    The CSV files of `Publication.write` are rounded. This file has all digits, the mechanism, the exact ρ, the workload
    and the plan. It may be published.
    Raises `InputTypeError` for an argument that is no publication, and for a plan whose problem cannot be stored;
    `InvalidInputError` for a product, a split or a stream; `FileFormatError` if the path cannot be written.
    """
    validate.instance(Publication, released=released)
    require_storable("released", released)
    mechanism, answers = mechanism_of(released), released.drawn
    if answers.by_table and not mechanism.plain:
        tables = mechanism.workload
        if not isinstance(tables, UnionWorkload) or not same_symmetry(symmetries_of(tables)[0], mechanism.symmetries):
            raise InvalidInputError("released must be of a mechanism with the symmetry of its own tables")
    arrays = codec.pack("workload", released.workload) | codec.pack("mechanism", mechanism)
    if released.answer is not None:
        arrays |= {f"{ANSWER}{key}": array for key, array in codec.pack_solution(released.answer).items()}
    if answers.by_table:
        arrays |= {f"measured.{_name(axes)}": np.asarray(array) for axes, array in released.measured.items()}
    else:
        arrays |= {"measured": np.asarray(released.measured), "exact": np.array(answers.exact)}
    arrays["squared_privacy_cost"] = np.array(str(Fraction(answers.squared_privacy_cost)))
    arrays["combined"] = np.array(json.dumps([_part_spec(part) for part in released.combined]))
    arrays["records"] = np.array(json.dumps(_records_spec(released.declared)))
    files.write_npz(path, SCHEMA, VERSION, **arrays)


def write_with_file(
    released: Publication, folder: str | PathLike[str], level: float | None = None, simultaneous: bool = False
) -> list[str]:
    """Write the files of `Publication.write` and, if possible, the publication's file; return their names.

    The command uses it, so that its releases can be combined later.
    """
    with files.atomic_folder(folder) as place:
        names = write_into(released, place, level, simultaneous)
        if not is_storable(released):
            return names
        save_publication(released, place / FILE_NAME)
        return [*names, FILE_NAME]


def load_publication(path: str | PathLike[str]) -> Publication:
    """Read a publication from its file, or from the folder that the command wrote; its plan is certified again.

    Redundant contents are checked against the mechanism: the cost, the costs of the releases of a combination, the
    number of exact rows, the noise of the plan's answer, the roles of columns.
    Raises `FileFormatError` if the file cannot be read, has another schema, was changed, lacks an array, or is
    inconsistent.
    """
    if isinstance(path, str | PathLike) and os.path.isdir(path):
        path = Path(path) / FILE_NAME
        if not path.exists():
            raise FileFormatError(
                f"{path.parent}: holds no {FILE_NAME}; only releases on a matrix and of tables by blocks have one"
            )
    with store.reading(path, SCHEMA, VERSIONS) as arrays:
        return _publication(arrays)


def _publication(arrays: Arrays) -> Publication:
    workload = validate.instance(Workload, workload=store.unpack(arrays, "workload"))
    mechanism = store.unpack(arrays, "mechanism")
    if not isinstance(mechanism, LinearGaussianMechanism | BlockMechanism):
        raise InvalidInputError("mechanism must be on a matrix or of tables")
    cost = validate.exact_or_zero(squared_privacy_cost=str(store.required_array(arrays, "squared_privacy_cost")))
    if not mechanism.squared_privacy_cost <= float(cost) * (1 + COST_TOL):  # nor NaN
        raise InvalidInputError(
            f"squared_privacy_cost must be the cost of the mechanism, {mechanism.squared_privacy_cost:.9g}, or more, "
            f"got {float(cost):.9g}"
        )
    answers: CombinedRows | CombinedTables
    measured: Any
    if isinstance(mechanism, BlockMechanism):
        answers, measured = CombinedTables(mechanism, workload, cost), _measured_tables(arrays, mechanism)
    else:
        rows = len(mechanism.query_matrix)
        measured = validate.vector(rows, "row", measured=store.required_array(arrays, "measured"))
        answers = CombinedRows(mechanism, _exact_rows(arrays, mechanism), cost)
    plan = {key.removeprefix(ANSWER): array for key, array in arrays.items() if key.startswith(ANSWER)}
    publication = Publication(answers, measured, workload, store.solution_of(plan) if plan else None)
    parts = _json(list, combined=store.required_array(arrays, "combined"))
    publication.combined = tuple(_part(f"combined[{place}]", facts) for place, facts in enumerate(parts))
    _check_parts(publication)
    _check_declared(publication, arrays)
    _check_answer(publication)
    return publication


def _exact_rows(arrays: Arrays, mechanism: LinearGaussianMechanism) -> int:
    rows = len(mechanism.query_matrix)
    exact = validate.size(rows + 1, exact=store.required_array(arrays, "exact").item() + 1) - 1
    noise = np.diagonal(mechanism.covariance())
    if np.any(noise[:exact]) or not np.all(noise[exact:]):
        raise InvalidInputError(f"exact must be the number of rows without noise, the first ones, got {exact}")
    return exact


def _check_parts(publication: Publication) -> None:
    """Refuse releases whose costs add up to less than the combination's, or with tables that it lacks."""
    parts = publication.combined
    if parts and sum(2 * part.rho for part in parts) < publication.drawn.squared_privacy_cost:
        raise InvalidInputError("combined must list releases whose rho add up to half the squared_privacy_cost or more")
    if parts and (len(parts) == 1 or len({part.digest for part in parts}) < len(parts)):
        raise InvalidInputError("combined must list several releases, each of them once")
    for part in parts:
        if part.declared.count not in (None, parts[0].declared.count):
            raise InvalidInputError(
                f"combined must list releases with one column of counts, got {parts[0].declared.count!r} and "
                f"{part.declared.count!r}"
            )
        if unknown := {*part.tables} - {*publication.tables}:
            raise InvalidInputError(f"combined must list tables of the workload, got {min(unknown)!r}")
        if truncation(part.declared) is not None:
            raise InvalidInputError("combined must list releases that count all records of a person")


def _check_declared(publication: Publication, arrays: Arrays) -> None:
    if "records" not in arrays and arrays["version"] == 1:
        return
    store.required_array(arrays, "records")
    by_plan = UNDECLARED if publication.combined else publication.declared
    declared = _declared(_json(dict, records=arrays["records"]), by_plan)
    if publication.combined:
        if declared != publication.declared:
            raise InvalidInputError("records must be the same as in the first combined release")
        return
    publication._declared = declared
    publication.unit  # noqa: B018  # raises if the noise does not protect the unit


def _check_answer(publication: Publication) -> None:
    if publication.answer is None:
        return
    if publication.combined:
        raise InvalidInputError("answer must be absent from a combination, which has several plans")
    planned: Any = as_spent(publication.answer)
    mechanism = mechanism_of(publication)
    if isinstance(mechanism, LinearGaussianMechanism) and not isinstance(planned, LinearGaussianMechanism):
        planned = planned.dense()
    if not (mechanism.is_answerable_from(planned, NOISE_TOL) and planned.is_answerable_from(mechanism, NOISE_TOL)):
        raise InvalidInputError("answer must have the noise of the mechanism")


def _json(kind: type, /, **argument: Any) -> Any:
    ((name, text),) = argument.items()
    value = json.loads(str(text))
    if not isinstance(value, kind):
        raise InvalidInputError(f"{name} must be a JSON {kind.__name__}, got {type(value).__name__}")
    return value


def _name(axes: Axes) -> str:
    return "_".join(map(str, axes)) or "total"


def _measured_tables(arrays: Arrays, mechanism: BlockMechanism) -> dict[Axes, Array]:
    tables: dict[Axes, Array] = {}
    for axes in dict.fromkeys(map(axes_of, mechanism.pieces)):
        array = np.asarray(store.required_array(arrays, f"measured.{_name(axes)}"), dtype=np.float64)
        if array.shape != mechanism.extents(axes) or not np.all(np.isfinite(array)):
            raise InvalidInputError(f"measured.{_name(axes)} must be numbers of shape {mechanism.extents(axes)}")
        tables[axes] = array
    return IndexedTables(tables)


TERMS = ("quantile", "delta", "rho", "specification")  # stored terms of a release in a combination


def _part_spec(part: Part) -> dict[str, Any]:
    terms = None if part.terms is None else {key: getattr(part.terms, key) for key in TERMS}
    spec = {"rho": str(part.rho), "tables": [*part.tables], "digest": part.digest, "terms": terms}
    return spec | {"records": _records_spec(part.declared)}


def _part(name: str, spec: Any) -> Part:
    """Return a release of a combination from its spec; in version 1 its plan declares the roles of columns."""
    entries = validate.mapping("rho, tables, digest and terms", **{name: spec})
    if not {"rho", "tables", "digest", "terms"} <= entries.keys():
        raise InvalidInputError(f"{name} must have rho, tables, digest and terms, got {sorted(map(str, entries))}")
    terms = entries["terms"]
    if terms is not None:
        terms = validate.mapping("quantile, delta, rho and specification", **{f"{name}.terms": terms})
        if unknown := {*terms} - {*TERMS}:
            raise InvalidInputError(f"{name}.terms must hold {', '.join(TERMS)}, got {min(map(str, unknown))!r}")
        terms = PlanTerms(**terms)
    tables = tuple(validate.text(tables=table) for table in validate.sequence(tables=entries["tables"]))
    declared = records_of(specification_of(terms))
    if "records" in entries:
        declared = _declared(entries["records"], declared)
    digest = validate.text(digest=entries["digest"])
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise InvalidInputError(f"{name}.digest must be a SHA-256 in 64 hexadecimal digits, got {printable(digest)!r}")
    return Part(validate.exact_or_zero(**{f"{name}.rho": str(entries["rho"])}), tables, digest, terms, declared)


def _records_spec(declared: Records) -> dict[str, Any]:
    persons = None if declared.persons is None else asdict(declared.persons)
    return {"count": declared.count, "ignore": [*declared.ignore], "persons": persons}


def _declared(spec: Any, by_plan: Records) -> Records:
    """Return the declared roles of columns; refuse other roles than in the plan's specification."""
    entries = validate.mapping("count, ignore and persons", records=spec)
    if {*entries} != {"count", "ignore", "persons"}:
        raise InvalidInputError(f"records must hold count, ignore and persons, got {sorted(map(str, entries))}")
    persons = entries["persons"]
    if persons is not None:
        persons = validate.mapping("person, at_most, per, check and groups", persons=persons)
        if {*persons} != {field.name for field in fields(Bound)}:
            raise InvalidInputError(f"persons must hold the options of a bound, got {sorted(map(str, persons))}")
        persons = Bound(**persons)
    declared = Records(None, entries["count"], tuple(validate.sequence(ignore=entries["ignore"])), persons)
    if columns_of(read_as(declared, by_plan)) != declared:
        raise InvalidInputError("records must declare the same columns as the plan's specification")
    return declared
