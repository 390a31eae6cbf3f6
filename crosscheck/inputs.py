"""From the command line's texts to a problem: workloads, targets, neighbours, privacy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from dualmech import accounting, files, naming, neighbours, validate
from dualmech.errors import InvalidInputError
from dualmech.linalg import is_identity
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.validate import Array
from dualmech.workload import Workload


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asked for, as texts and numbers, before anything is read."""

    workload: str
    targets: str | None = None
    moe: str | None = None
    z: float = 1.645
    rho: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    neighbours: str = "add-remove"

    def problem(self) -> FitnessForUse | PrivacyFirst:
        """Read everything and state the problem: privacy first where ρ or ε is given, else accuracy first."""
        validate.positive_number(z=self.z)
        if self.delta is not None:
            validate.probability(delta=self.delta)
        cost = self._squared_cost()
        twin = self.accuracy_first()
        if cost is None:
            return twin
        return PrivacyFirst(twin.workload, twin.targets, cost, neighbours=twin.neighbours)

    def accuracy_first(self) -> FitnessForUse:
        """Read workload, targets and neighbours, and state Problem 1."""
        targets = self._variances()
        workload = read_workload(self.workload)
        return FitnessForUse(
            workload, targets, neighbours=read_neighbours(self.neighbours, workload.shape[1])
        )

    def _variances(self) -> Array | float:
        if self.targets is not None and self.moe is not None:
            raise InvalidInputError("give either --targets (variances) or --moe (margins of error), not both")
        if self.moe is not None:
            return accounting.variance_from_margin(_numbers(self.moe, "moe"), self.z)
        return _numbers("1" if self.targets is None else self.targets, "targets")

    def _squared_cost(self) -> float | None:
        if self.rho is not None and self.epsilon is not None:
            raise InvalidInputError("give either --rho or --epsilon with --delta, not both")
        if self.epsilon is not None:
            if self.delta is None:
                raise InvalidInputError("--epsilon needs --delta, the other half of (ε, δ)")
            return accounting.privacy_cost(self.epsilon, self.delta) ** 2
        return None if self.rho is None else accounting.squared_cost_from_rho(self.rho)


def read_workload(text: str) -> Workload:
    """Return a built-in workload such as ``prefix:64``, or the one in a file.

    A file in the way of a built-in name can be given as ``./prefix``.
    """
    if naming.is_named(text):
        return naming.named(text)
    if Path(text).suffix.lower() in files.SUFFIXES or Path(text).exists():
        return files.read_workload(text)
    return naming.named(text)


def _numbers(text: str, name: str) -> Array | float:
    """Return one number, or the vector in a file."""
    try:
        return float(text)
    except ValueError:
        return files.read_vector(text, name)


NEIGHBOURS: dict[str, Callable[[int, int], sp.csc_array | None]] = {
    "add-remove": lambda cells, members: None if members == 1 else neighbours.household(cells, members),
    "replace": lambda cells, members: neighbours.household(cells, members, replace=True),
}
"""Relations by name; each may be followed by a colon and the most records that one person holds."""


def read_neighbours(text: str, cells: int) -> sp.csc_array | Array | None:
    """Return the matrix of ``add-remove``, ``replace``, either with ``:RECORDS``, or that in a file."""
    name, _, members = text.partition(":")
    if name in NEIGHBOURS and (members.isdecimal() or not members):
        return NEIGHBOURS[name](cells, int(members or 1))
    if Path(text).suffix.lower() in files.SUFFIXES:
        return files.read_matrix(text, "neighbours")
    raise InvalidInputError(
        f"neighbours must be add-remove, replace, add-remove:RECORDS, replace:RECORDS or a file, got {text!r}"
    )


def _on_basis(problem: FitnessForUse | PrivacyFirst, covariance: Array) -> Array:
    """Return a bare matrix, taken for the covariance of noise on the cells, on the problem's basis."""
    if is_identity(problem.basis):
        return covariance
    cells = problem.workload.shape[1]
    if covariance.shape != (cells, cells):
        raise InvalidInputError(
            f"covariance must be that of the noise on the {cells} cells, or stand in an .npz file with its rows "
            f"(the workload has rank {problem.geometry.rank}), got shape {covariance.shape}"
        )
    return problem.basis @ covariance @ problem.basis.T


def read_covariance(problem: FitnessForUse | PrivacyFirst, path: str) -> Array:
    """Return the covariance on B x in a file, of a matrix or of a mechanism or solution on the same rows."""
    if Path(path).suffix.lower() != ".npz":
        return _on_basis(problem, files.read_matrix(path, "covariance"))
    arrays = files.read_archive(path)
    key = "primal" if "primal" in arrays else "covariance"
    files.require(path, arrays, key)
    rows = arrays.get("basis", arrays.get("query_matrix"))
    if rows is not None and (rows.shape != problem.basis.shape or not np.allclose(rows, problem.basis)):
        raise InvalidInputError(f"{path}: its covariance is stated on other rows than the problem's basis")
    return np.asarray(arrays[key])
