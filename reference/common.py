"""Common mechanisms through CVXPY: equation 1 stated, handed to a backend, repaired and judged.

Throughout, ``Sigma`` (r, r) is the covariance with which the common mechanism answers B x, ``P_i`` (r, r) the
covariance of mechanism i, and ``Y_i`` (r, r) the multiplier of ``Sigma ⪰ P_i``.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import numpy.typing as npt
from cvxpy.reductions.solvers.solver import Solver

from dualmech import validate
from dualmech.adaptive.chain import Chain, build
from dualmech.errors import InvalidInputError, UncertifiedWarning
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.problems.common import CommonDual, CommonMechanism
from dualmech.progress import Status
from dualmech.reference import attempts, backends
from dualmech.reference.attempts import label
from dualmech.reference.fitness import symmetric
from dualmech.reference.refinement import OTHER_STAGE_TOLERANCE, STAGE_TOLERANCES
from dualmech.reference.scaling import returned_array
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array

TRIVIAL = "the row spaces meet in 0 alone: the common mechanism is trivial and releases nothing"


def primal(bounds: Array) -> cp.Problem:
    """State equation 1: the least trace above every mechanism's covariance, in the Loewner order.

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
    """State the dual: tell p quantum states apart, which arrive as the ``P_i``, by a measurement ``Y_1, …, Y_p``.

    ``Sigma`` is the multiplier of the constraint that the outcomes' operators sum to the identity.
    """
    count, size, _ = bounds.shape
    P = [cp.Constant(bound, name=f"P_{i}") for i, bound in enumerate(bounds)]
    Y = [symmetric(f"Y_{i}", size) for i in range(count)]
    total = sum(Y[1:], start=Y[0])
    return cp.Problem(
        cp.Maximize(sum(cp.trace(P_i @ Y_i) for P_i, Y_i in zip(P, Y, strict=True))),
        [*[label(f"positive[{i}]", Y_i >> 0) for i, Y_i in enumerate(Y)], label("complete", total == np.eye(size))],
    )


PROGRAMS = {"primal": primal, "dual": dual}


def _write(problem: CommonMechanism, formulation: str) -> cp.Problem:
    if problem.trivial:
        raise InvalidInputError(f"problem must have something to state: {TRIVIAL}")
    return PROGRAMS[formulation](problem.bounds)


def _scaled_program(
    problem: CommonMechanism, formulation: str, request: attempts.BackendRequest
) -> attempts.ScaledProgram | Solution:
    if problem.trivial:
        nothing = np.zeros(problem.bounds.shape)
        solver = f"reference:{request.backend}:{formulation}"
        return judged_solution(
            problem,
            nothing[0],
            CommonDual(nothing),
            tol=request.tol,
            otherwise=Status.BACKEND,
            message=TRIVIAL,
            solver=solver,
        )
    scaled = _CommonUnits.of(problem)
    program = PROGRAMS[formulation](scaled.bounds)
    if formulation == "primal":
        return attempts.ScaledProgram(
            program, scaled, lambda: program.var_dict["Sigma"].value, scaled.dual, constraints=("common",)
        )

    def weights() -> CommonDual:
        known = [program.var_dict[f"Y_{i}"].value for i in range(len(scaled.bounds))]
        # Before there is an answer: equal weights, which prove some bound.
        even = np.eye(scaled.sizes[1]) / len(known)
        return CommonDual(np.stack([even if each is None else each for each in known]))

    return attempts.ScaledProgram(program, scaled, lambda: program.constraints[-1].dual_value, weights)


@dataclass(frozen=True, slots=True, eq=False)
class _CommonUnits:
    """A problem with its covariances in units of their mean variance."""

    problem: CommonMechanism
    bounds: Array  # (p, r, r) the P_i, in scaled units
    objective_unit: float  # the variance that is called 1

    @classmethod
    def of(cls, problem: CommonMechanism) -> _CommonUnits:
        """Scale by the mean variance."""
        unit = float(np.mean(np.diagonal(problem.bounds, axis1=1, axis2=2)))
        return cls(problem, problem.bounds / unit, unit)

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of entries of all multipliers, and of rows of Σ."""
        return self.bounds.size, self.bounds.shape[1]

    def covariance(self, inner: npt.ArrayLike | None, spare: float = 0.0) -> Array:
        """Return a backend's Σ, symmetrised, and raised above every P_i by a multiple of the identity.

        `spare` is a variance, in scaled units, to add beyond that, should rounding hide whether Σ is above.
        """
        given = returned_array(inner)
        noise = (given + given.T) / 2
        missing = max(float(np.linalg.eigvalsh(bound - noise)[-1]) for bound in self.bounds)
        raised = noise + (max(missing, 0.0) + spare) * np.eye(len(noise))
        return self.problem.feasible(self.objective_unit * raised)

    def dual(self, multipliers: Array) -> CommonDual:
        """Return the multipliers, one matrix after the other, as weights; the judge repairs rounding errors."""
        return CommonDual(multipliers.reshape(self.bounds.shape))


FORMULATIONS = attempts.Formulations(lambda _: dict.fromkeys(PROGRAMS, backends.SEMIDEFINITE), _write, _scaled_program)


def chain(
    mechanisms: Sequence[GaussianPrivacy],
    *,
    backend: str | Solver = "CLARABEL",
    tol: float | None = None,
    **options: Any,
) -> Chain:
    """Return the chain of common mechanisms of two or more, in the order in which they drop out.

    Raises `BackendError` for a backend that is not installed, cannot do the cones, fails, or returns nothing to
    judge; `InvalidInputError` or `InputTypeError` for arguments that `dualmech.CommonMechanism` refuses, or a tolerance
    that is not positive.

    - `mechanisms`: two or more, on the same cells and with the same neighbours, none releasing anything exactly;
    - `backend`: an installed CVXPY backend that can do semidefinite cones;
    - `tol`: gap to prove in every stage, by default the backend's; stages are solved more accurately;
    - `**options`: passed to the backend as they are.

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
    asked = backends.tolerance(name) if tol is None else validate.positive_number(tol=tol)
    accuracy = min(asked, STAGE_TOLERANCES.get(name, OTHER_STAGE_TOLERANCE))

    def solve(problem: CommonMechanism) -> Solution:
        with warnings.catch_warnings():
            # The chain, not this stage, reports that the requested tolerance was missed.
            warnings.simplefilter("ignore", UncertifiedWarning)
            return FORMULATIONS.solve(problem, backend=name, tol=accuracy, **options)

    return build(mechanisms, solve, tol=asked, solver=f"reference:{name}:chain")
