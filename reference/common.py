"""Common mechanisms through CVXPY: equation 1 as a program, and its repaired and judged answers.

``Sigma`` (r, r) is the covariance of the common mechanism's answers to B x, ``P_i`` (r, r) the covariance of mechanism
i, and ``Y_i`` (r, r) the multiplier of ``Sigma ⪰ P_i``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.adaptive.chain import Chain, build
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.problems.common import TRIVIAL, CommonDual, CommonMechanism
from dualmech.progress import Status
from dualmech.reference import attempts, backends, cp
from dualmech.reference.attempts import label
from dualmech.reference.fitness import symmetric
from dualmech.reference.formulas import mechanisms as formulas
from dualmech.reference.refinement import OTHER_STAGE_TOLERANCE, STAGE_TOLERANCES
from dualmech.reference.scaling import inverse, returned_array
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array
from dualmech.watching import without_warnings

if TYPE_CHECKING:
    from cvxpy.reductions.solvers.solver import Solver


def primal(bounds: Array) -> cp.Problem:
    """State equation 1: the upper bound of all covariances in the Loewner order with minimum trace.

    In formulas, and as a program: minimise tr Σ over Σ subject to ``Σ ⪰ P_i`` for every mechanism i.

    Examples
    --------
    >>> import dualmech as dm
    >>> total, parts = dm.LinearGaussianMechanism([[1, 1]], [[1]]), dm.LinearGaussianMechanism(np.eye(2), np.eye(2))
    >>> problem = dm.CommonMechanism([total, parts])
    >>> program = primal(problem.bounds)
    >>> value, Sigma = program.solve(solver="CLARABEL"), program.var_dict["Sigma"].value
    >>> Y = np.stack([constraint.dual_value for constraint in program.constraints])
    >>> problem.certify(problem.feasible(Sigma), problem.as_dual(Y)).gap < 1e-6, round(value, 6)
    (True, 1.0)
    """
    P = [cp.Constant(bound, name=f"P_{i}") for i, bound in enumerate(bounds)]
    Sigma = symmetric("Sigma", bounds.shape[1])
    return cp.Problem(cp.Minimize(cp.trace(Sigma)), [label(f"common[{i}]", Sigma >> P_i) for i, P_i in enumerate(P)])


def dual(bounds: Array) -> cp.Problem:
    """State the dual: discriminate p quantum states ``P_i`` by a measurement ``Y_1, …, Y_p``.

    ``Sigma`` is the multiplier of the constraint that the operators of the outcomes sum to the identity.
    """
    count, size, _ = bounds.shape
    P = [cp.Constant(bound, name=f"P_{i}") for i, bound in enumerate(bounds)]
    Y = [symmetric(f"Y_{i}", size) for i in range(count)]
    total = sum(Y[1:], start=Y[0])
    return cp.Problem(
        cp.Maximize(sum(cp.sum(cp.multiply(P_i, Y_i)) for P_i, Y_i in zip(P, Y, strict=True))),
        [*[label(f"positive[{i}]", Y_i >> 0) for i, Y_i in enumerate(Y)], label("complete", total == np.eye(size))],
    )


def logdet(bounds: Array, sharpness: float) -> cp.Problem:
    """State the centring problem of an interior-point method, with log determinants in place of the inequalities.

    For the sharpness t > 0 this is, divided by t, with p mechanisms and Σ of size r,

        minimise ``t tr Σ − Σ_i log det(Σ − P_i)`` over Σ ≻ P_i.

    With matrices S_i in place of the differences, the multipliers of the constraints are the dual weights:

        minimise ``tr Σ − (1/t) Σ_i log det S_i`` subject to ``Σ − P_i ⪰ S_i`` for every mechanism i.

    Proof that the two are equivalent: log det increases in the Loewner order, so for fixed Σ the best S_i is ``Σ −
    P_i``. The minimum is unique, since −log det is strictly convex, and it exists: tr Σ has compact level sets above
    P_1.

    Proof that the multipliers are dual weights, and of the bound ``p r / t``. At the minimiser Σ° the derivative in
    S_i says ``Y_i = S_i⁻¹ / t = (Σ° − P_i)⁻¹ / t ≻ 0`` for the multiplier of constraint i, and that in Σ says
    ``I − Σ_i Y_i = 0``. So the Y_i are feasible in the dual, and prove ``Σ_i tr(P_i Y_i)``. The gap to them is
    ``tr Σ° − Σ_i tr(P_i Y_i) = Σ_i tr((Σ° − P_i) Y_i) = Σ_i tr(I)/t = p r / t``, exactly: the number of constraints
    times their size, over t. The parameter 1/t may be changed in place.

    Source: equation 1 of Xiao, Wang, Zhang and Kifer, "Answering private linear queries adaptively using the common
    mechanism", PVLDB 16(8), 2023, on the central path of Nesterov and Nemirovskii, "Interior-point polynomial
    algorithms in convex programming", 1994.

    - `bounds` (p, r, r): the P_i, in the units of the problem;
    - `sharpness`: t, in inverse units.

    Examples
    --------
    >>> import dualmech as dm
    >>> total, parts = dm.LinearGaussianMechanism([[1, 1]], [[1]]), dm.LinearGaussianMechanism(np.eye(2), np.eye(2))
    >>> problem = dm.CommonMechanism([total, parts])
    >>> program = logdet(problem.bounds, sharpness=1e4)
    >>> _, Sigma = program.solve(solver="CLARABEL"), program.var_dict["Sigma"].value
    >>> Y = np.stack([constraint.dual_value for constraint in program.constraints])
    >>> problem.certify(problem.feasible(Sigma), problem.as_dual(Y)).gap < 3e-4
    True
    """
    size = bounds.shape[1]
    P = [cp.Constant(bound, name=f"P_{i}") for i, bound in enumerate(bounds)]
    Sigma, S = symmetric("Sigma", size), [symmetric(f"S_{i}", size) for i in range(len(P))]
    inverse_sharpness = cp.Parameter(nonneg=True, name="1/t", value=1 / sharpness)
    barrier = -cp.sum([cp.log_det(S_i) for S_i in S])
    return cp.Problem(
        cp.Minimize(cp.trace(Sigma) + inverse_sharpness * barrier),
        [label(f"common[{i}]", Sigma - P_i >> S_i) for i, (P_i, S_i) in enumerate(zip(P, S, strict=True))],
    )


def volume(bounds: Array) -> cp.Problem:
    """State another choice among maximal common mechanisms: the minimum volume of the noise, not the minimum trace.

    In formulas: minimise ``(det Σ)^(1/r)`` subject to ``Σ ⪰ P_i``. The program is
    convex in the cost matrix ``X = Σ⁻¹``, since ``Σ ⪰ P_i = L_i L_i'`` exactly if ``X ⪯ P_i⁻¹``:

        maximise log det X over X subject to ``I − L_i' X L_i ⪰ 0`` for every mechanism i.

    The minimum is maximal: for a more informative common mechanism, ``X' ⪰ X`` and X' ≠ X, det X' > det X. It is
    unique, as log det is strictly concave. In another basis, Σ and all P_i become ``T Σ T'`` and ``T P_i T'``, and log
    det Σ changes by a constant: the choice does not depend on the basis, unlike the minimum trace.

    Dual, over ``Y_i ⪰ 0`` with sum Y: minimise ``Σ_i tr(P_i⁻¹ Y_i) − log det Y − r``. Proof: the Lagrangian
    ``log det X + Σ_i tr((P_i⁻¹ − X) Y_i)`` is greatest at ``X = Y⁻¹``. There is strong duality, as X = εI is strictly
    feasible; at the optimum ``Σ = Y``. At the best scale of the weights the bound is
    `dualmech.problems.common.volume_bound`. The program's multipliers W_i are weights ``Y_i = L_i W_i L_i'``, and the
    dual maximises ``log det Σ_i L_i W_i L_i'`` at ``Σ_i tr W_i = r``: the ellipsoid of least volume around given ones
    with one centre.

    Source: F. John, "Extremum problems with inequalities as subsidiary conditions", 1948; log det in a convex program:
    Vandenberghe, Boyd and Wu, "Determinant maximization with linear matrix inequality constraints", SIAM J. Matrix
    Anal. Appl. 19(2), 1998.

    - `bounds` (p, r, r): the P_i, positive definite.

    Examples
    --------
    >>> import dualmech as dm
    >>> P = np.array([[[4, 1.2], [1.2, 1]], [[1, -0.6], [-0.6, 2]], [[1, 1.2], [1.2, 3]]])
    >>> mechanisms = [dm.LinearGaussianMechanism(np.eye(2), each) for each in P]
    >>> problem = dm.CommonMechanism(mechanisms, basis=np.eye(2), criterion="volume")
    >>> program = volume(problem.bounds)
    >>> _ = program.solve(solver="CLARABEL")
    >>> Sigma = problem.feasible(np.linalg.inv(program.var_dict["X"].value))
    >>> L, W = roots(problem.bounds), np.stack([constraint.dual_value for constraint in program.constraints])
    >>> Y = L @ W @ L.swapaxes(1, 2)
    >>> bool(problem.certify(Sigma, problem.as_dual(Y)).gap < 1e-5), bool(problem.maximality(Sigma))
    (True, True)
    """
    size = bounds.shape[1]
    L = [cp.Constant(root, name=f"L_{i}") for i, root in enumerate(roots(bounds))]
    X = symmetric("X", size)
    costs = [cp.symmetric_wrap(L_i.T @ X @ L_i) for L_i in L]
    return cp.Problem(
        cp.Maximize(cp.log_det(X)), [label(f"common[{i}]", np.eye(size) - cost >> 0) for i, cost in enumerate(costs)]
    )


def roots(bounds: Array) -> Array:
    """Return the symmetric square roots L_i of covariances, ``P_i = L_i L_i'``, shape (p, r, r)."""
    values, vectors = np.linalg.eigh(bounds)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]) @ np.swapaxes(vectors, 1, 2))


CONES_BY_FORMULATION = {
    "trace": {
        **dict.fromkeys(("primal", "dual"), backends.SEMIDEFINITE),
        "logdet": backends.SEMIDEFINITE | {"ExpCone"},
    },
    "volume": {"volume": backends.SEMIDEFINITE | {"ExpCone"}},
}
"""The formulations by criterion and name, with the cones that they need besides linear ones."""

PROGRAMS = {"primal": primal, "dual": dual, "volume": volume}


def _state(bounds: Array, formulation: str, sharpness: float = attempts.DEFAULT_SHARPNESS) -> cp.Problem:
    return logdet(bounds, sharpness) if formulation == "logdet" else PROGRAMS[formulation](bounds)


def _write(problem: CommonMechanism, formulation: str, *, sharpness: float | None = None) -> cp.Problem:
    valid_sharpness = attempts.sharpness_of(formulation, sharpness)
    if problem.trivial:
        raise InvalidInputError(f"problem must not be trivial: {TRIVIAL}")
    return _state(problem.bounds, formulation, valid_sharpness)


def _scaled_program(
    problem: CommonMechanism, formulation: str, request: attempts.BackendRequest
) -> attempts.ScaledProgram | Solution:
    if problem.trivial:
        zeros = np.zeros(problem.bounds.shape)
        solver = f"reference:{request.backend}:{formulation}"
        return judged_solution(
            problem,
            zeros[0],
            CommonDual(zeros),
            tol=request.tol,
            otherwise=Status.BACKEND,
            message=TRIVIAL,
            solver=solver,
        )
    scaled = _CommonUnits.of(problem)
    program = _state(scaled.bounds, formulation)
    count, size, _ = scaled.bounds.shape
    if formulation == "volume":
        return attempts.ScaledProgram(
            program,
            scaled,
            lambda: inverse(program.var_dict["X"].value),
            scaled.dual,
            constraints=("common",),
            optimum=lambda value: math.exp(-value / size),
        )
    if formulation != "dual":
        path = attempts.central_path(
            program, request.tol, count * size, "p r/t", optimum=size, unit=scaled.objective_unit
        )
        return attempts.ScaledProgram(
            program,
            scaled,
            lambda: program.var_dict["Sigma"].value,
            scaled.dual,
            constraints=("common",),
            optimum=lambda value: value if formulation == "primal" else attempts.trace_of(program, "Sigma"),
            steps=path if formulation == "logdet" else None,
        )

    def weights() -> CommonDual:
        values = [program.var_dict[f"Y_{i}"].value for i in range(count)]
        # Equal weights before there is an answer.
        equal = np.eye(size) / count
        return CommonDual(np.stack([equal if weights is None else weights for weights in values]))

    return attempts.ScaledProgram(program, scaled, lambda: program.constraints[-1].dual_value, weights)


@dataclass(frozen=True, slots=True, eq=False)
class _CommonUnits:
    """A problem with covariances of order one."""

    problem: CommonMechanism
    bounds: Array  # (p, r, r) the P_i, in scaled units
    objective_unit: float  # the unit of the objective
    frame: Array  # (r, r) a matrix T of determinant 1: ``Σ = unit T Σ' T'`` for a scaled Σ'

    @classmethod
    def of(cls, problem: CommonMechanism) -> _CommonUnits:
        """Scale by the mean variance; for the volume, which is basis-invariant, transform the sum to I."""
        size = len(problem.basis)
        if problem.criterion == "trace":
            unit = float(np.mean(np.diagonal(problem.bounds, axis1=1, axis2=2)))
            return cls(problem, problem.bounds / unit, unit, np.eye(size))
        factor = np.linalg.cholesky(problem.bounds.sum(axis=0))
        inner = np.linalg.solve(factor, np.swapaxes(np.linalg.solve(factor, problem.bounds), 1, 2))
        root = math.exp(float(np.log(np.diagonal(factor)).mean()))
        return cls(problem, (inner + np.swapaxes(inner, 1, 2)) / 2, root**2, factor / root)

    @property
    def sizes(self) -> tuple[int, int]:
        return self.bounds.size, self.bounds.shape[1]

    def covariance(self, inner: npt.ArrayLike | None, extra_cost: float = 0.0) -> Array:
        """Return a backend's Σ, symmetrised and raised above every P_i by a multiple of the identity.

        `extra_cost` is an additional variance in scaled units, in case rounding errors hide whether ``Σ ⪰ P_i``.
        """
        matrix = returned_array(inner)
        noise = (matrix + matrix.T) / 2
        violation = max(float(np.linalg.eigvalsh(bound - noise)[-1]) for bound in self.bounds)
        feasible_noise = noise + (max(violation, 0.0) + extra_cost) * np.eye(len(noise))
        return self.problem.feasible(self.objective_unit * (self.frame @ feasible_noise @ self.frame.T))

    def dual(self, multipliers: Array) -> CommonDual:
        """Return the multipliers as weights; the judge repairs rounding errors."""
        weights = multipliers.reshape(self.bounds.shape)
        if self.problem.criterion == "volume":
            factors = self.frame @ roots(self.bounds)
            weights = self.objective_unit * factors @ weights @ np.swapaxes(factors, 1, 2)
        return CommonDual(weights)


FORMULATIONS = attempts.Formulations(
    lambda problem: CONES_BY_FORMULATION[problem.criterion], _write, _scaled_program, formulas.common
)


def chain(
    mechanisms: Sequence[GaussianPrivacy],
    *,
    backend: str | Solver = "CLARABEL",
    tol: float | None = None,
    **options: Any,
) -> Chain:
    """Return the chain of common mechanisms of two or more mechanisms, in order of elimination.

    Raises `BackendError` for a backend that is not installed, does not support the cones, fails, or returns no answer;
    `InvalidInputError` or `InputTypeError` for arguments that `dualmech.CommonMechanism` refuses, or a tolerance
    that is not positive.

    - `mechanisms`: two or more, on the same cells and with the same neighbours; none may release a query exactly;
    - `backend`: an installed CVXPY backend for semidefinite cones;
    - `tol`: gap to prove in every stage, by default the backend's; stages are solved more accurately;
    - `**options`: passed to the backend.

    Examples
    --------
    >>> import numpy as np
    >>> import dualmech as dm
    >>> from dualmech import reference
    >>> total = dm.LinearGaussianMechanism([[1, 1, 1, 1]], [[1]])
    >>> halves = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
    >>> cells = dm.LinearGaussianMechanism(np.eye(4), np.eye(4))
    >>> chain = reference.chain([total, halves, cells])
    >>> chain.certified, [stage.known.rank for stage in chain.stages]
    (True, [1, 2])
    """
    name = backends.backend_name(backend, backends.SEMIDEFINITE)
    tolerance = backends.tolerance(name) if tol is None else validate.positive_number(tol=tol)
    accuracy = min(tolerance, STAGE_TOLERANCES.get(name, OTHER_STAGE_TOLERANCE))

    def solve(problem: CommonMechanism) -> Solution:
        with without_warnings():
            # The chain reports a missed tolerance, not this stage.
            return FORMULATIONS.solve(problem, backend=name, tol=accuracy, **options)

    return build(mechanisms, solve, tol=tolerance, solver=f"reference:{name}:chain")
