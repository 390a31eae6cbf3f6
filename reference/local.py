"""Local privacy through CVXPY: the convex program over all extremal patterns, and its repaired and judged answers.

The rows of ``P`` (s, n) are the patterns p_S, ``R`` (k, n) is a root of the workload, ``R'R = W'W``, ``share`` (n,) is
n times the prior, ``w`` (s,) are the weights of the patterns, and ``U`` (k, s) their reconstructions times the weights.
The second moment of a user, averaged over the prior, is ``Σ_S ‖U_S‖² (share'p_S) / (n w_S)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.errors import BackendError, InvalidInputError
from dualmech.geometry import local
from dualmech.geometry.local import Relaxation
from dualmech.problems.local.strategy import LocalDual, LocalPoint, LocalStrategy
from dualmech.reference import attempts, backends, cp
from dualmech.reference.attempts import label
from dualmech.reference.formulas import local as formulas
from dualmech.reference.scaling import entries
from dualmech.validate import Array

if TYPE_CHECKING:
    from cvxpy.reductions.solvers.solver import Solver


def sdp(patterns: Array, directions: Array, root: Array) -> cp.Problem:
    """State the average case with one linear matrix inequality.

    In formulas: minimise ``tr(R G⁻¹ R')`` with ``G = Σ_S w_S a_S a_S'`` over ``w ≥ 0`` subject to ``Σ_S w_S p_S = 1``;
    the rows a_S of `directions` (s, r) are ``p_S / √(share'p_S)``, in any coordinates. As a program:

        minimise tr T over w, T subject to ``[[G, R'], [R, T]] ⪰ 0``, ``P'w = 1``.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.LocalStrategy(dm.workloads.identity(2), epsilon=1.0)
    >>> rows, share = local.rows(local.all_sets(2), 1.0), 2 * problem.prior
    >>> program = sdp(rows, rows / np.sqrt(rows @ share)[:, None], problem.root)
    >>> _, (schur, y) = program.solve(solver="CLARABEL"), [each.dual_value for each in program.constraints]
    >>> strategy = LocalPoint(rows * program.var_dict["w"].value[:, None], problem.prior)
    >>> problem.certify(problem.feasible(strategy), problem.dual_type(-schur[:2, 2:], y)).gap < 1e-5
    True
    """
    P, R = cp.Constant(patterns, name="P"), cp.Constant(root, name="R")
    size = directions.shape[1]
    products = np.einsum("si,sj->ijs", directions, directions).reshape(size**2, -1)
    w = cp.Variable(len(patterns), name="w", nonneg=True)
    T = cp.Variable((len(root), len(root)), name="T", symmetric=True)
    G = cp.reshape(products @ w, (size, size), order="C")
    return cp.Problem(
        cp.Minimize(cp.trace(T)), [label("schur", cp.bmat([[G, R.T], [R, T]]) >> 0), label("columns", P.T @ w == 1)]
    )


def socp(patterns: Array, root: Array, share: Array | None) -> cp.Problem:
    """State the problem in second-order cones: ``‖U_S‖² ≤ w_S s_S`` is ``‖(2 U_S, w_S - s_S)‖ ≤ w_S + s_S``.

    The objective of the average case is ``Σ_S (share'p_S) s_S``. In the worst case, without a share, t is at least the
    variance of every user type.
    """
    P, R = cp.Constant(patterns, name="P"), cp.Constant(root, name="R")
    w, s = cp.Variable(len(patterns), name="w"), cp.Variable(len(patterns), name="s")
    U, t = cp.Variable((len(root), len(patterns)), name="U"), cp.Variable(name="t")
    limits = [label("unbiased", U @ P == R), label("columns", P.T @ w == 1), label("moments", _cones(w, s, U))]
    if share is not None:
        return cp.Problem(cp.Minimize((P @ share) @ s), limits)
    users = P.T @ s - np.square(root).sum(axis=0) <= t
    return cp.Problem(cp.Minimize(t), [*limits, label("users", users)])


def dual(patterns: Array, root: Array, share: Array | None) -> cp.Problem:
    """State the dual: ``‖Z'p_S‖² ≤ (y'p_S)(share'p_S)`` for every pattern.

    In the worst case, without a share, the adversary chooses the share of each user type.
    """
    P, R = cp.Constant(patterns, name="P"), cp.Constant(root, name="R")
    size = root.shape[1]
    Z, y = cp.Variable(root.T.shape, name="Z"), cp.Variable(size, name="y")
    s = cp.Variable(size, name="share", nonneg=True) if share is None else cp.Constant(share)
    bound, limits = 2 * cp.sum(cp.multiply(Z, R.T)) - cp.sum(y), [label("patterns", _cones(P @ y, P @ s, (P @ Z).T))]
    if share is not None:
        return cp.Problem(cp.Maximize(bound), limits)
    squared_norms = np.square(root).sum(axis=0)
    return cp.Problem(cp.Maximize((bound - squared_norms @ s) / size), [*limits, label("prior", cp.sum(s) == size)])


PROGRAMS = {"socp": socp, "dual": dual}


def _cones(first: cp.Expression, second: cp.Expression, vectors: cp.Expression) -> cp.Constraint:
    """Return ``‖v_S‖² ≤ first_S second_S`` for the columns v_S of `vectors`, as second-order cones."""
    difference = cp.reshape(first - second, (1, first.size), order="F")
    return cp.SOC(first + second, cp.vstack([2 * vectors, difference]), axis=0)


CONES_BY_FORMULATION = {
    "average": {"sdp": frozenset({"PSD"}), "socp": frozenset({"SOC"}), "dual": frozenset({"SOC"})},
    "worst": {"dual": frozenset({"SOC"}), "socp": frozenset({"SOC"})},
}
"""The formulations by criterion and name, the default first, with the cones that they need."""

MAX_USER_TYPES = 10  # for a program over all 2^n - 2 patterns

WORST_CASE_FACTORS = (1e-2, 1e-3, 1e-4)
"""Factors on the tolerance for the worst case, where the maximum variance depends linearly on errors of the prior."""

MIN_RELATIVE_WEIGHT = 1e-9  # patterns of smaller weight, relative to the largest, are dropped


def _write(problem: LocalStrategy, name: str) -> cp.Problem:
    rows, share = _patterns(problem), problem.user_types * problem.prior
    if name == "sdp":
        return sdp(rows, rows / np.sqrt(rows @ share)[:, None], problem.root)
    return PROGRAMS[name](rows, problem.root, share if problem.criterion == "average" else None)


def _scaled_program(
    problem: LocalStrategy, formulation: str, request: attempts.BackendRequest
) -> attempts.ScaledProgram:
    scaled = _SCALED_PROGRAMS[formulation](StrategyUnits.of(problem, _patterns(problem)))
    if problem.criterion == "average":
        return scaled
    return replace(scaled, steps=[(accuracy * request.tol, "") for accuracy in WORST_CASE_FACTORS])


@dataclass(frozen=True, slots=True, eq=False)
class StrategyUnits:
    """A problem with a centred root, which changes the objective by a constant, scaled to an optimum near 1."""

    problem: LocalStrategy
    patterns: Array  # (s, n) P
    root: Array  # (k, n) ``(R - a 1') / √unit``
    centre: Array  # (k,) a, the mean of the columns of R under the prior, uniform in the worst case
    basis: Array  # (n, n - 1) orthogonal directions of sum 0, scaled to bring G near the identity
    unit: float  # the unit of the objective of the average case

    @classmethod
    def of(cls, problem: LocalStrategy, rows: Array) -> StrategyUnits:
        """Scale by the closed-form bound on the objective; `rows` are the patterns of the program."""
        size, root = problem.user_types, problem.root
        prior = problem.prior if problem.criterion == "average" else np.full(size, 1 / size)
        centre = root @ prior
        centred_root = root - centre[:, None]
        # One pattern of each size determines the maximum trace of the part of G with sum 0.
        ratios = local.rows(np.tri(size, dtype=bool)[:-1], problem.epsilon)
        trace = size * float(np.square(ratios - 1 / size).sum(axis=1).max())
        nuclear = float(linalg.singular_values(centred_root - centred_root.mean(axis=1)[:, None]).sum())
        # The lower limit is for workloads that are constant up to rounding.
        unit = max(nuclear, 8 * size * linalg.EPS * float(np.linalg.norm(root))) ** 2 / trace
        basis = scipy.linalg.helmert(size).T / math.sqrt(trace / (size - 1))
        return cls(problem, rows, centred_root / math.sqrt(unit), centre, basis, unit)

    @property
    def share(self) -> Array:
        return np.asarray(self.problem.user_types * self.problem.prior)

    @property
    def sizes(self) -> tuple[int, ...]:
        users = self.problem.user_types if self.problem.criterion == "worst" else 0
        return (len(self.patterns) + users,)

    @property
    def objective_unit(self) -> float:
        """The unit of the objective; in the worst case that is the variance of one user."""
        return self.unit / (1 if self.problem.criterion == "average" else self.problem.user_types)

    def program(self, formulation: str) -> cp.Problem:
        """State a formulation with second-order cones, with the root in the units of `objective_unit`."""
        share = self.share if self.problem.criterion == "average" else None
        return PROGRAMS[formulation](self.patterns, self.root * self.root_unit, share)

    @property
    def root_unit(self) -> float:
        """The factor on the root for the units of `objective_unit`."""
        return math.sqrt(self.unit / self.objective_unit)

    def covariance(self, inner: npt.ArrayLike | None, extra_share: float = 0.0) -> LocalPoint:
        """Return an exactly feasible strategy from weights w (s,), followed by a prior in the worst case.

        For a matrix, the diagonal is used. `extra_share` is the fraction of equal weights to mix in, in case rounding
        errors hide that the workload can be estimated from an almost singular strategy.
        """
        positive = np.maximum(entries(inner, "weights"), 0.0)
        weights, prior = positive[: len(self.patterns)], positive[len(self.patterns) :]
        if not weights.any() or (prior.size and not prior.any()):
            raise BackendError("the backend returned no weights to judge: none is positive")
        weights = (1 - extra_share) * weights + extra_share * weights.mean()
        is_kept = weights > MIN_RELATIVE_WEIGHT * weights.max()
        strategy = self.patterns[is_kept] * weights[is_kept, None] * (len(self.share) / weights[is_kept].sum())
        final_prior = prior / prior.sum() if prior.size else self.problem.prior
        return self.problem.feasible(LocalPoint(strategy, final_prior))

    def dual(self, matrix: Array, costs: Array, prior: Array | None = None) -> LocalDual:
        """Return Z and y for the problem's root from Z and y for the centred and scaled root.

        With ``R = R₀ + a 1'``, let Z₀ and y₀ prove a bound for R₀. Then ``Z₀ + share a'`` and
        ``y₀ + ‖a‖² share + 2 Z₀ a`` prove a bound for R that is higher by the constant, because
        they give the same condition ``‖Z'p‖² ≤ (y'p)(share'p)``.
        """
        share = self.share if prior is None else len(self.share) * prior
        inner = math.sqrt(self.unit) * matrix
        shifted_costs = self.unit * costs + (self.centre @ self.centre) * share + 2 * inner @ self.centre
        return LocalDual(inner + np.outer(share, self.centre), shifted_costs, prior)

    def empty_dual(self) -> LocalDual:
        return self.dual(np.zeros(self.root.T.shape), np.zeros(len(self.share)))


def _scaled_sdp_program(scaled: StrategyUnits) -> attempts.ScaledProgram:
    rows, basis = scaled.patterns, scaled.basis
    program = sdp(rows, rows @ basis / np.sqrt(rows @ scaled.share)[:, None], scaled.root @ basis)

    def proof() -> Proof:
        schur, columns = (constraint.dual_value for constraint in program.constraints)
        size = basis.shape[1]
        return None if schur is None or columns is None else (-basis @ schur[:size, size:], columns)

    return _with_proof(program, scaled, lambda: program.var_dict["w"].value, proof)


def _scaled_socp_program(scaled: StrategyUnits) -> attempts.ScaledProgram:
    program = scaled.program("socp")
    constraints = {constraint.label: constraint for constraint in program.constraints}
    worst = "users" in constraints

    def weights() -> Array | None:
        multipliers = [program.var_dict["w"].value, *([constraints["users"].dual_value] if worst else [])]
        return None if any(part is None for part in multipliers) else np.concatenate(multipliers)

    def proof() -> Proof:
        Z, y = constraints["unbiased"].dual_value, constraints["columns"].dual_value
        if Z is None or y is None:
            return None
        prior = [_prior(constraints["users"].dual_value)] if worst else []
        return -Z.T / 2 * scaled.root_unit, y, *prior

    return _with_proof(program, scaled, weights, proof)


def _scaled_dual_program(scaled: StrategyUnits) -> attempts.ScaledProgram:
    program = scaled.program("dual")
    variables = program.var_dict
    share = variables.get("share")

    def weights() -> Array | None:
        sums, parts = program.constraints[0].dual_value
        if sums is None or parts is None:
            return None
        multipliers = np.ravel(sums) + np.reshape(parts, (-1, len(scaled.patterns)))[-1]
        return multipliers if share is None else np.concatenate([multipliers, share.value])

    def proof() -> Proof:
        Z, y = variables["Z"].value, variables["y"].value
        if Z is None or y is None:
            return None
        prior = [] if share is None else [_prior(share.value)]
        return Z / scaled.root_unit, y / scaled.root_unit**2, *prior

    return _with_proof(program, scaled, weights, proof)


_SCALED_PROGRAMS = {"sdp": _scaled_sdp_program, "socp": _scaled_socp_program, "dual": _scaled_dual_program}

Proof = tuple[Array, ...] | None
"""Z, y and, in the worst case, the prior, in scaled units; None before there is an answer."""


def _with_proof(
    program: cp.Problem, scaled: StrategyUnits, weights: Callable[[], Array | None], proof: Callable[[], Proof]
) -> attempts.ScaledProgram:
    def multipliers() -> LocalDual:
        values = proof()
        return scaled.empty_dual() if values is None else scaled.dual(*values)

    average = scaled.problem.criterion == "average"
    constant = len(scaled.share) * float(scaled.centre @ scaled.centre) / scaled.unit if average else 0.0
    return attempts.ScaledProgram(
        program, scaled, covariance=weights, dual=multipliers, optimum=lambda value: value + constant
    )


def _prior(multipliers: Array | None) -> Array:
    if multipliers is None or not np.any(multipliers > 0):
        raise BackendError("the backend returned no multipliers to judge")
    positive = np.maximum(np.ravel(multipliers), 0.0)
    return np.asarray(positive / positive.sum())


def _patterns(problem: LocalStrategy) -> Array:
    if problem.user_types > MAX_USER_TYPES:
        raise InvalidInputError(
            f"workload must have at most {MAX_USER_TYPES} user types for a program over all patterns, got "
            f"{problem.user_types}: use the fast layer, or `reference.lower_bound` for a bound"
        )
    return local.rows(local.all_sets(problem.user_types), problem.epsilon)


FORMULATIONS = attempts.Formulations(
    lambda problem: CONES_BY_FORMULATION[problem.criterion], _write, _scaled_program, formulas.strategy
)


# A lower bound for problems with too many patterns to list, by a semidefinite relaxation.
#
# A strategy's ``G = Σ_S w_S p_S p_S' / (share'p_S)`` depends on the indicators s of the sets only through the weighted
# sums ``a`` of 1, ``b`` (n,) of s and ``B`` (n, n) of ``s s'``. Linear relations that hold for every set also hold for
# these sums.


MAX_RELAXATION_USER_TYPES = 32  # for the relaxation


def lower_bound(
    problem: LocalStrategy,
    *,
    prior: npt.ArrayLike | None = None,
    backend: str | Solver = "CLARABEL",
    tol: float | None = None,
    time_limit: float | None = None,
    **options: object,
) -> LocalDual:
    """Return dual weights whose bound the judge verifies by one eigenvalue, without listing the patterns.

    Minimise ``tr(R G⁻¹ R')`` over a, b and B with ``G = a 1 1' + c (b 1' + 1 b') + c² B``, ``G share = 1`` and, in
    place of indicators in {0, 1}, ``[[a, b'], [b, B]] ⪰ 0``, ``diag B = b`` and products of valid inequalities:
    McCormick's, ``(|S| - j)(|S| - j - 1) ≥ 0``, and ``1 ≤ |S| ≤ n - 1`` times ``s_u`` and ``1 - s_u``. Their
    multipliers prove the bound of the answer, independently of the backend. Returns a `LocalDual` with a `relaxation`,
    for ``problem.certify`` together with any strategy. Raises `BackendError` for a backend that is not installed, does
    not support the cones, refuses its options, fails, or returns no multipliers; `InvalidInputError` or
    `InputTypeError` for more than 32 user types, a prior for the average case, which has a fixed prior, or arguments
    out of range.

    - `problem`: at most 32 user types;
    - `prior` (n,): for the worst case, the adversary's prior over user types; uniform by default;
    - `backend`: an installed CVXPY backend for semidefinite cones;
    - `tol`: accuracy of the relaxation, as in `dualmech.reference.solve`;
    - `time_limit`: seconds for the backend (CLARABEL and SCS);
    - `**options`: passed to the backend; they override the options determined by `tol`.

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
    outcome = backends.run(program, request.backend, tol=request.tol, deadline=request.deadline, options=options)
    dual_values = {constraint.label: constraint.dual_value for constraint in program.constraints}
    if any(value is None for value in dual_values.values()):
        raise BackendError(
            f"the backend returned no multipliers to judge (backend {request.backend}, status {outcome.status})"
        )
    size = scaled.basis.shape[1]
    unit, _ = _units(average.user_types, average.epsilon)
    weights = scaled.dual(-scaled.basis @ dual_values["schur"][:size, size:], dual_values["columns"])
    prior_used = average.prior if problem.criterion == "worst" else None
    return replace(
        weights, prior=prior_used, relaxation=_multipliers(dual_values, average.user_types, scaled.unit / unit)
    )


def relaxation(root: Array, basis: Array, share: Array, epsilon: float) -> cp.Problem:
    """State the relaxation, with the root and G in a basis (n, r) of the vectors of sum 0.

    The variables are multiples of a, b and B, scaled to be near 1 for equal weights on all sets of the best size.
    """
    size, c = len(share), local.gain(epsilon)
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
            label("columns", unit * (size * a + c * (share @ b)) * ones + unit * c * (size * b + c * (B @ share)) == 1),
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
    """Return the diagonal of B for equal weights on all sets of the best size k, and ``√(k/n)``.

    The best size is that size in the closed-form bound: it maximises the trace of the part of G with sum 0.
    """
    ratios = local.rows(np.tri(size, dtype=bool)[:-1], epsilon)
    count = int(np.argmax(np.square(ratios - 1 / size).sum(axis=1))) + 1
    return count / (size + local.gain(epsilon) * count) ** 2, float(np.sqrt(count / size))


def _multipliers(dual_values: dict[str, Array], size: int, unit: float) -> Relaxation:
    u, v = np.triu_indices(size, 1)
    both_values, one_values, neither = np.zeros((3, size, size))
    both_values[u, v], one_values[u, v], one_values[v, u], neither[u, v] = (
        unit * dual_values[name] for name in ("both", "first", "second", "neither")
    )
    products = np.stack([dual_values[name] for name in ("in_low", "in_high", "out_low", "out_high")])
    return Relaxation.of(
        size,
        -unit * dual_values["squares"],
        both=both_values,
        one=one_values,
        neither=neither,
        sizes=unit * np.ravel(dual_values.get("sizes", [])),
        products=unit * products,
    )


def _average_case(problem: LocalStrategy, prior: npt.ArrayLike | None) -> LocalStrategy:
    if validate.instance(LocalStrategy, problem=problem).user_types > MAX_RELAXATION_USER_TYPES:
        raise InvalidInputError(
            f"workload must have at most {MAX_RELAXATION_USER_TYPES} user types, got {problem.user_types}"
        )
    if problem.criterion == "worst":
        return LocalStrategy(problem.workload, problem.epsilon, prior=prior)
    if prior is not None:
        raise InvalidInputError("prior is for the worst case only: the average case has the prior of the problem")
    return problem
