"""A bound on the variance of every local strategy where patterns are too many to list: a semidefinite relaxation.

The indicators s of the sets behind a strategy's patterns enter its ``G = Σ_S w_S p_S p_S' / (share'p_S)`` only through
the weighted sums ``a`` of 1, ``b`` (n,) of s and ``B`` (n, n) of ``s s'``. What holds for every set holds for these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import numpy.typing as npt

from dualmech.errors import BackendError, InputTypeError, InvalidInputError
from dualmech.geometry.local import patterns
from dualmech.geometry.local.relaxation import Relaxation
from dualmech.problems.local.strategy import LocalDual, LocalStrategy
from dualmech.reference.engine import attempts, backends
from dualmech.reference.local.strategy import StrategyUnits
from dualmech.reference.statements import label
from dualmech.validate import Array

MOST_USER_TYPES = 32  # user types up to which the relaxation is written down


def lower_bound(
    problem: LocalStrategy,
    *,
    prior: npt.ArrayLike | None = None,
    backend: Any = "CLARABEL",
    tol: float | None = None,
    time_limit: float | None = None,
    **options: Any,
) -> LocalDual:
    """Return dual weights whose bound the judge verifies by one eigenvalue, however many patterns there are.

    Minimise ``tr(R G⁻¹ R')`` over a, b and B with ``G = a 1 1' + c (b 1' + 1 b') + c² B``, ``G share = 1`` and, in
    place of all sets being 0 or 1, ``[[a, b'], [b, B]] ⪰ 0``, ``diag B = b`` and what products of true inequalities
    say: McCormick's, ``(|S| - j)(|S| - j - 1) ≥ 0``, and ``1 ≤ |S| ≤ n - 1`` times ``s_u`` and ``1 - s_u``. Their
    multipliers prove the bound that comes with the answer, whatever the backend did.
    Raises `BackendError` for a backend that is not installed, cannot do the cones, refuses its options, fails, or
    returns no multipliers; `InvalidInputError` or `InputTypeError` for more than 32 user types, a prior for the
    average case, which has its own, or arguments out of range.
    Returns `LocalDual`: with a `relaxation`; for ``problem.certify``, together with any strategy.

    - `problem`: at most 32 user types;
    - `prior` (n,): for the worst case, the probability over user types that the adversary is held to; uniform by
      default;
    - `backend`: an installed CVXPY backend that can do semidefinite cones;
    - `tol`: how accurately to solve the relaxation, as in `dualmech.reference.solve`;
    - `time_limit`: seconds for the backend (CLARABEL and SCS);
    - `**options`: passed to the backend as they are, over what `tol` chose.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import reference
    >>> problem = dm.LocalStrategy(dm.workloads.prefix(5), epsilon=1.0)
    >>> best = reference.solve(problem)
    >>> judged = problem.certify(best.primal, reference.lower_bound(problem))
    >>> round(judged.objective, 3), 0.98 <= judged.lower_bound / judged.objective <= 1
    (63.226, True)
    """
    average = _average_case(problem, prior)
    request = attempts.BackendRequest.of(backend, backends.SEMIDEFINITE, tol, time_limit, options)
    scaled = StrategyUnits.of(average, np.zeros((0, average.user_types)))
    program = relaxation(scaled.root @ scaled.basis, scaled.basis, scaled.share, average.epsilon)
    outcome = backends.run(
        program, request.backend, tol=request.tol, deadline=request.deadline, options=options
    )
    known = {constraint.label: constraint.dual_value for constraint in program.constraints}
    if any(value is None for value in known.values()):
        raise BackendError(
            f"the backend returned no multipliers to judge (backend {request.backend}, status {outcome.status})"
        )
    size = scaled.basis.shape[1]
    unit, _ = _units(average.user_types, average.epsilon)
    found = scaled.dual(-scaled.basis @ known["schur"][:size, size:], known["columns"])
    held = average.prior if problem.criterion == "worst" else None
    return replace(found, prior=held, relaxation=_multipliers(known, average.user_types, scaled.unit / unit))


def relaxation(root: Array, basis: Array, share: Array, epsilon: float) -> cp.Problem:
    """State the relaxation, with the root and G on a basis (n, r) of what sums to 0.

    a, b and B are in a unit, and the variables multiples of them, in which those of all sets of the best size are
    near 1.
    """
    size, c = len(share), patterns.gain(epsilon)
    unit, ratio = _units(size, epsilon)
    R, ones = cp.Constant(root, name="R"), np.ones(size)
    A, b_scaled = cp.Variable(name="a"), cp.Variable(size, name="b")
    B_scaled = cp.Variable((size, size), name="B", symmetric=True)
    T = cp.Variable((len(root), len(root)), name="T", symmetric=True)
    a, b, B = A / ratio**2, b_scaled / ratio, B_scaled
    column = cp.reshape(b_scaled, (size, 1), order="C")
    moments = cp.bmat([[cp.reshape(A, (1, 1), order="C"), column.T], [column, B_scaled]])
    G = unit * c**2 * basis.T @ B @ basis
    u, v = np.triu_indices(size, 1)
    j = np.arange(1, size - 1)
    total = cp.sum(b)
    return cp.Problem(
        cp.Minimize(cp.trace(T)),
        [
            label("schur", cp.bmat([[G, R.T], [R, T]]) >> 0),
            label(
                "columns",
                unit * (size * a + c * (share @ b)) * ones + unit * c * (size * b + c * (B @ share)) == 1,
            ),
            label("moments", moments >> 0),
            label("squares", cp.diag(B) == b),
            label("both", B[u, v] >= 0),
            label("first", b[u] - B[u, v] >= 0),
            label("second", b[v] - B[u, v] >= 0),
            label("neither", a - b[u] - b[v] + B[u, v] >= 0),
            *[label("sizes", cp.sum(B) - (2 * j + 1) * total + j * (j + 1) * a >= 0) for _ in j[:1]],
            label("in_low", B @ ones - b >= 0),
            label("in_high", (size - 1) * b - B @ ones >= 0),
            label("out_low", total - a - B @ ones + b >= 0),
            label("out_high", (size - 1) * a - total - (size - 1) * b + B @ ones >= 0),
        ],
    )


def _units(size: int, epsilon: float) -> tuple[float, float]:
    """Return the B of equal weights on all sets of the best size, on its diagonal, and the root of the share of users.

    The best size is that of the closed-form bound: the largest trace that the part of G with sum 0 can have.
    """
    each = patterns.rows(np.tri(size, dtype=bool)[:-1], epsilon)
    count = int(np.argmax(np.square(each - 1 / size).sum(axis=1))) + 1
    return count / (size + patterns.gain(epsilon) * count) ** 2, float(np.sqrt(count / size))


def _multipliers(known: dict[str, Any], size: int, unit: float) -> Relaxation:
    """Return the multipliers of the program in the problem's own units."""
    u, v = np.triu_indices(size, 1)
    both, one, neither = np.zeros((3, size, size))
    both[u, v], one[u, v], one[v, u], neither[u, v] = (
        unit * known[name] for name in ("both", "first", "second", "neither")
    )
    products = np.stack([known[name] for name in ("in_low", "in_high", "out_low", "out_high")])
    return Relaxation.of(
        size,
        -unit * known["squares"],
        both=both,
        one=one,
        neither=neither,
        sizes=unit * np.ravel(known.get("sizes", [])),
        products=unit * products,
    )


def _average_case(problem: LocalStrategy, prior: npt.ArrayLike | None) -> LocalStrategy:
    """Return the average case whose bound is asked: for the worst case, under the prior given."""
    if not isinstance(problem, LocalStrategy):
        raise InputTypeError(f"problem must be a LocalStrategy, got {type(problem).__name__}")
    if problem.user_types > MOST_USER_TYPES:
        raise InvalidInputError(
            f"workload must have at most {MOST_USER_TYPES} user types, got {problem.user_types}"
        )
    if problem.criterion == "worst":
        return LocalStrategy(problem.workload, problem.epsilon, prior=prior)
    if prior is not None:
        raise InvalidInputError("prior is for the worst case; the average case has its own")
    return problem
