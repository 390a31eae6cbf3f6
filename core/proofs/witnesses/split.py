"""Split noise: a strategy for each attribute and a level for each set of them, roots and isometries (see ``split``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg

from dualmech.errors import CertificateError
from dualmech.geometry.base import FitnessDual
from dualmech.geometry.split import SplitPoint
from dualmech.proofs.witnesses.noise import inverse, limited, polar_factor
from dualmech.validate import Array
from dualmech.workloads.domain import count_text

Given = dict[str, Any]


def refuse_large(problem: Any) -> None:
    """Refuse what takes too many multiplications of whole numbers, before any of them."""
    workload, work = problem.geometry.workload, 0.0
    for axis in {axis for axes in workload.tables.axes for axis in axes}:
        own = workload.queries[axis]
        if own is not None:
            work += _work(*own.shape)
    for axes in workload.tables.axes:
        asked = [workload.queries[axis] for axis in axes]
        cases = (
            1.0
            if problem.numbers == "weights"
            else np.prod([1.0 if each is None else each.shape[0] for each in asked])
        )
        work += 2 ** len(axes) * cases
    limited(float(work), f"{count_text(workload.shape[0])} queries split by attribute")


def witness(problem: Any, primal: Any, dual: Any, stated: Given) -> tuple[Given, Given]:
    """Return what shows the upper and what shows the lower bound."""
    return _noise(problem.geometry, primal), _weights(problem, dual, stated)


def _noise(split: Any, point: SplitPoint) -> Given:
    """Return strategies of attributes, but of those whose values are asked and have equal noise, and levels."""
    attributes, units = {}, []
    for axis, covariance in enumerate(point.shapes):
        unit = covariance[0, 0]
        even = split.workload.queries[axis] is None and np.array_equal(
            covariance, unit * np.eye(len(covariance))
        )
        units.append(float(unit) if even else 1.0)
        if not even:
            attributes[str(axis)] = _strategy(covariance)
    blocks = [
        {"on": {str(axis): "0" for axis in axes}, "level": level * np.prod([units[axis] for axis in axes])}
        for axes, level in zip(split.workload.tables.lattice.axes, point.levels.tolist(), strict=True)
    ]
    return {"attributes": attributes, "blocks": blocks}


def _strategy(covariance: Array) -> Given:
    """Return the rows 1' and R with ``R'R`` the rest of the precision of a covariance, and their inverse.

    With orthonormal rows H that are orthogonal to 1, ``Σ 1 / (1'Σ1) = θ`` and ``H (Σ - 1'Σ1 θθ') H' = L L'``, they are
    ``L⁻¹ H (I - θ1')``, and the inverse has the columns θ and ``H'L``.
    """
    size = len(covariance)
    if size == 1:
        return {"strategy": np.ones((1, 1)), "inverse": np.ones((1, 1))}
    limited(_work(size, size), f"{size} values of an attribute")
    sums = covariance.sum(axis=1)
    means, rows = sums / sums.sum(), scipy.linalg.helmert(size)
    left = rows @ (covariance - np.outer(sums, means)) @ rows.T
    try:
        root = np.linalg.cholesky((left + left.T) / 2)
    except np.linalg.LinAlgError as error:
        raise CertificateError(
            "the answer shows nothing in whole numbers: its noise is no covariance"
        ) from error
    measured = scipy.linalg.solve_triangular(root, rows - np.outer(rows @ means, np.ones(size)), lower=True)
    strategy = np.vstack([np.ones(size), measured])
    return {"strategy": strategy, "inverse": inverse(strategy, np.column_stack([means, rows.T @ root]))}


def _weights(problem: Any, dual: Any, stated: Given) -> Given:
    """Return roots and polar factors of attributes, but of those whose values are asked with equal weights."""
    asked = isinstance(dual, FitnessDual)
    users, queries = problem.geometry.weights(dual, asked)
    names = {axis: name for table in stated["tables"] for axis, name in table.items()}
    attributes = {}
    for axis, name in names.items():
        own, each = users[int(axis)], queries.queries[int(axis)]
        if problem.geometry.workload.queries[int(axis)] is None and np.ptp(own) == np.ptp(each) == 0:
            continue
        p, q = np.sqrt(each), np.sqrt(own)
        polar = polar_factor(p[:, None] * problem.geometry.workload.matrix_of(int(axis)) * q)
        attributes[axis] = {"roots": q, name: {"isometry": polar, **({"roots": p} if asked else {})}}
    return {"attributes": attributes, **({"weights": queries.tables} if asked else {})}


def _work(queries: int, size: int) -> float:
    return float(size**3 + queries * size**2 + queries * size * min(queries, size))
