"""The best reconstruction for a local strategy through CVXPY: a quadratic program with linear conditions."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import BackendError, InvalidInputError
from dualmech.geometry.local.strategies import as_prior
from dualmech.reference.engine import backends
from dualmech.reference.statements import label
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload

CONES = frozenset({"SOC"})  # what a backend must be able to do where it cannot take a square as it is
ACCURACY = 1e-6  # accuracy at which a backend is run, as that of a gap


def reconstruct(
    workload: Workload,
    strategy: npt.ArrayLike,
    *,
    prior: npt.ArrayLike | None = None,
    backend: Any = "CLARABEL",
    **options: Any,
) -> Array:
    """Return the unbiased reconstruction V of least expected variance, as a backend finds it.

    Minimise ``Σ_o (Q π)_o ‖V_o‖²`` over V (p, m) subject to ``V Q = W``. This is the definition that the closed form of
    `dualmech.LocalMechanism`, ``V = W (Q'D⁻¹Q)⁺ Q'D⁻¹`` with ``D = diag(Q π)``, is checked against.

    Raises `BackendError` for a backend that is not installed, refuses its options, fails, or finds no
    reconstruction without bias; `InvalidInputError` or `InputTypeError` for a strategy of another width or with
    negative entries, a prior that is none.
    Source: "Optimal V for fixed Q" in section 3 of McKenna, Maity, Mazumdar and Miklau, "A workload-adaptive mechanism
    for linear queries under local differential privacy", PVLDB 13(11), 2020.
    Returns an array (p, m).

    - `workload`: W, p queries over n user types;
    - `strategy` (m, n): Q ≥ 0, the probability of each output for each user type;
    - `prior` (n,): π, a probability over user types; uniform by default;
    - `backend`: an installed CVXPY backend;
    - `**options`: passed to the backend as they are.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import reference
    >>> reference.reconstruct(dm.workloads.identity(2), [[0.75, 0.25], [0.25, 0.75]]).round(6)
    array([[ 1.5, -0.5],
           [-0.5,  1.5]])
    """
    check_workload(workload)
    given, size = validate.finite(2, strategy=strategy), workload.shape[1]
    if given.shape[1] != size or np.any(given < 0):
        raise InvalidInputError(
            f"strategy must have {size} columns, one per user type, and no negative entry, got shape {given.shape} and "
            f"a least entry of {given.min():g}"
        )
    name = backends.backend_name(backend, CONES)
    program = quadratic(workload.dense(), given, as_prior(prior, size))
    outcome = backends.run(program, name, tol=ACCURACY, options=options)
    found = program.var_dict["V"].value
    if found is None:
        raise BackendError(
            f"the backend returned no reconstruction (backend {name}, status {outcome.status})"
        )
    return np.asarray(found * np.linalg.norm(workload.dense()))


def quadratic(queries: Array, strategy: Array, prior: Array) -> cp.Problem:
    """State the reconstruction of queries of norm 1, whatever theirs: V is in units of it."""
    W, Q = cp.Constant(queries / np.linalg.norm(queries), name="W"), cp.Constant(strategy, name="Q")
    V = cp.Variable((len(queries), len(strategy)), name="V")
    roots = np.sqrt(len(prior) * strategy @ prior)
    return cp.Problem(
        cp.Minimize(cp.sum_squares(cp.multiply(V, np.broadcast_to(roots, V.shape)))),
        [label("unbiased", V @ Q == W)],
    )
