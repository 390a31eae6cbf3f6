"""`dualmech.reference.formulate` and `solve`: the program of a problem, and the judged answer of a backend."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any

from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.problems.base import AnyProblem, Dual, Made, Problem
from dualmech.problems.refinement import RefinementStage
from dualmech.reference import backends, cp, geometries
from dualmech.reference.attempts import Formulations
from dualmech.reference.formulas import programs
from dualmech.solution import Solution, warn_if_uncertified
from dualmech.threads import blas_threads
from dualmech.watching import verbosely

if TYPE_CHECKING:
    from cvxpy.reductions.solvers.solver import Solver

    from dualmech.reference.conic import MatrixInequalities

FAMILIES: dict[str, Any] = {
    "FitnessForUse": "dualmech.reference.geometries",
    "PrivacyFirst": "dualmech.reference.geometries",
    "TotalVariance": "dualmech.reference.geometries",
    "SoftmaxFitness": "dualmech.reference.softmax:FORMULATIONS",
    "QueryWeighting": "dualmech.reference.weighting:FORMULATIONS",
    "CommonMechanism": "dualmech.reference.common:FORMULATIONS",
    "RefinementStage": "dualmech.reference.refinement:FORMULATIONS",
    "ReuseFitness": "dualmech.reference.reuse:FORMULATIONS",
    "LocalStrategy": "dualmech.reference.local:FORMULATIONS",
    "LocalProjection": "dualmech.reference.estimate:PROJECTION_FORMULATIONS",
    "NonnegativeEstimate": "dualmech.reference.estimate:FORMULATIONS",
}
"""The import path of each family's programs, by class name.

The object there is a `Formulations`, or a module with `formulate`, `solve` and `formula`.
"""


def formulate(problem: object, formulation: str | None = None, **options: object) -> cp.Problem:
    """Return a problem as a CVXPY program over the problem's arrays, to read, print, change or solve.

    The default formulation comes first; the function of the same name explains the mathematics.

    ==================================== =================================== ==========================================
    problem                              formulations                        in `dualmech.reference`
    ==================================== =================================== ==========================================
    `FitnessForUse`, `PrivacyFirst`      schur, matrix_frac, logdet, sum     `fitness` (Problems 1, 2 and 3)
    the same on geometry ``blocks``      schur, matrix_frac; dual if all     `blocks`
                                         blocks have one coordinate
    `TotalVariance`                      gram, schur, matrix_frac, logdet    `variance`; on blocks the first two above
    `SoftmaxFitness`                     schur, matrix_frac                  `softmax` (Problem 4)
    `QueryWeighting`                     inv_pos, sdp; for pure privacy      `weighting` (Program 1)
                                         power, power_cone
    `CommonMechanism`                    primal, dual, logdet; of the        `common` (equation 1)
                                         volume: volume
    `ReuseFitness`, `RefinementStage`    schur                               `reuse`, `refinement`
    `LocalStrategy`                      sdp, socp, dual; in the worst case  `local`, for at most ten user
                                         dual, socp                          types
    `LocalProjection`,                   qp                                  `estimate`
    `NonnegativeEstimate`
    ==================================== =================================== ==========================================

    ``logdet`` is the centring problem of sharpness t for Problem 1, total variance or equation 1; ``sum`` is Problem 3,
    which has no budget. A product has a program for each factor (``problem.factors``), and split noise has no single
    program.
    Raises `InvalidInputError` or `InputTypeError` for a problem that has no formulation, an unknown formulation, a
    sharpness that is not positive.
    Source: Problems 1 to 4 of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of differentially private
    linear queries", PVLDB 14(10), 2021. Equation 1 of Xiao, Wang, Zhang and Kifer, "Answering private linear queries
    adaptively using the common mechanism", PVLDB 16(8), 2023.

    - `problem`: any of the library's, see the table;
    - `formulation`: its name; by default the first of the table, ``schur`` for most;
    - `orbits`: symmetries, as for `dualmech.fast.solve`: one constraint per orbit, for `FitnessForUse` and
      `PrivacyFirst` in formulation ``schur``;
    - `sharpness`: t > 0 of ``logdet``, 1 by default; the parameter 1/t of the program can be changed later.

    Returns `cvxpy.Problem`: with variables ``Sigma`` (k, k), ``alpha`` or ``kappa`` and, in ``schur``, ``Z`` (s, s), or
    ``X`` (k, k) and ``Y``, or ``u`` (k,) and ``v``, and constraints with labels: the multipliers of ``privacy`` and
    ``accuracy`` are the weights λ and μ. For `CommonMechanism` ``Sigma`` (r, r) and the labels ``common[i]``, whose
    multipliers are the Y_i, with ``S_i`` in ``logdet`` and ``X`` (r, r) in ``volume``; or ``Y_i`` and the label
    ``complete``.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import reference
    >>> program = reference.formulate(dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0))
    >>> sorted(program.var_dict), [constraint.label for constraint in program.constraints]
    (['Sigma', 'Z', 'alpha'], ['schur', 'privacy', 'accuracy'])
    >>> round(float(program.solve(solver="CLARABEL")), 6)
    1.333333
    """
    settings = {} if formulation is None else {"formulation": formulation}
    program: cp.Problem = _programs(problem).formulate(problem, **settings, **options)
    return program


def latex(problem: object, formulation: str | None = None) -> str:
    r"""Return the program of `formulate` in LaTeX: every symbol with its size and, for small arrays, its numbers.

    The letters are the names of the program's variables and arrays; each constraint with a label is a line. A document
    only needs ``\usepackage{amsmath}``; ``dualmech explain --latex`` writes a complete document, with the dual and the
    proof. Raises `InvalidInputError` or `InputTypeError` for a problem that has no formulation, an unknown formulation.

    - `problem`: the problem; for a product or split noise, which have no single program, the result is the formula;
    - `formulation`: its name, as for `formulate`.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import reference
    >>> written = reference.latex(dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0), "matrix_frac")
    >>> print(written[written.index(r"\begin{align*}"):].strip())
    \begin{align*}
    \text{minimise}\quad & \alpha \quad \text{over $\Sigma \succ 0$} \\
    \text{subject to}\quad & (B u_i)^{\top} \Sigma^{-1} (B u_i) \le \alpha \quad \text{for all neighbours $i$} \\
    & v_j \Sigma v_j^{\top} \le c_j \quad \text{for all queries $j$}
    \end{align*}
    $\lVert X \rVert_*$ is the sum of the singular values of $X$, $\lVert X \rVert_F^2$ the sum of squared entries.\par
    """
    return programs.latex(problem, formula_of(problem), _formulations(problem), formulation)


def formulations(problem: object) -> tuple[str, ...]:
    """Return the names of a problem's formulations, the default first; empty without a single program."""
    offered = _formulations(problem)
    return () if offered is None else (*offered.cones(problem),)


def matrix_inequalities(problem: object, formulation: str | None = None) -> MatrixInequalities:
    """Return the program of `formulate` as linear matrix inequalities, as `dualmech.crosscheck.sdpa` writes them.

    The default is the first formulation with a semidefinite cone, else the first with second-order cones. Raises
    `InvalidInputError` or `InputTypeError` as `formulate`, and if a formulation has other cones.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import reference
    >>> written = reference.matrix_inequalities(dm.QueryWeighting(dm.workloads.prefix(2), [[1, 0], [0, 1]]))
    >>> written.blocks, written.variables["u"]
    ((-2, 2, 2), array([3, 4]))
    """
    from dualmech.reference import conic  # which loads CVXPY

    offered = _formulations(problem)
    able = {name: cones for name, cones in (offered.cones(problem).items() if offered else ()) if cones <= conic.CONES}
    if offered is not None and not able:
        raise InvalidInputError(f"problem must have a program in semidefinite cones, got {type(problem).__name__}")
    if offered is not None and formulation is None:
        formulation = next((name for name, cones in able.items() if "PSD" in cones), next(iter(able)))
    return conic.matrix_inequalities(formulate(problem, formulation))


def formula(problem: object, formulation: str | None = None) -> programs.Formula:
    """Return the content of `latex` as objects: the symbols, and the program of a formulation."""
    return programs.stated(problem, formula_of(problem), _formulations(problem), formulation)


def formula_of(problem: object) -> programs.Formula:
    """Return a problem in formulas, with its sizes and, for small arrays, its numbers.

    Raises `InputTypeError` for an object that is not a problem of the library.
    """
    formula: programs.Formula = _programs(problem).formula(problem)
    return formula


def solve(
    problem: Problem[Dual, Made], *, verbose: bool = False, threads: int | None = None, **options: Any
) -> Solution[Dual, Made]:
    """Solve a problem with a backend of CVXPY, and judge the answer.

    The program of `formulate` is solved in units of order one (targets 1, a balanced basis). The covariance is then
    symmetrised, made positive definite, and scaled to meet its constraints exactly; the multipliers give the dual
    weights. The backend's report is only in `Solution.message`. If the judge does not certify the tolerance, the
    backend runs again with more accuracy, at most twice. Raises `BackendError` for a backend that is not installed,
    does not support the cones, refuses its options, fails, or returns no answer; `InvalidInputError` or
    `InputTypeError` for a problem that has no formulation, or arguments out of range.

    - `problem`: any of the library's problems;
    - `backend`: an installed CVXPY backend for the cones (`backends.installed` lists them), ``"CLARABEL"`` by default,
      or a solver object as for ``cvxpy.Problem.solve``;
    - `formulation`: a name, as for `formulate`. For fitness for use, ``logdet`` follows the central path, for small
      sizes, and ``sum`` is fastest: on prefix 64 SCS needs a fifteenth of its time for ``schur``;
    - `tol`: gap to prove, relative to the lower bound, by default 1e-5 with CLARABEL, 1e-3 with SCS, 1e-4 with others;
      it determines the tolerances of CLARABEL, SCS, SDPA, CVXOPT and COPT;
    - `time_limit`: seconds for all parts and attempts, including CVXPY's compilation (CLARABEL, SCS and COPT, which
      check the time between iterations);
    - `orbits`: symmetries, as for `formulate`, only for `FitnessForUse` and `PrivacyFirst`;
    - `verbose`: whether to show the current run, and its seconds, in a line on standard error;
    - `threads`: threads of linear algebra and of the backend; by default the environment variable ``DUALMECH_THREADS``,
      else one. After a solve with one thread, a process can be forked. After a solve with more threads, forked children
      can use one thread only; spawned children, and children of a fork server, have no such limit;
    - `**options`: passed to the backend; they override the options determined by `tol`.

    Returns a `Solution` with ``status`` CERTIFIED if the judge proved the gap; otherwise with the answer, its certified
    gap and the backend's status, and an `UncertifiedWarning` is issued.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import reference
    >>> answer = reference.solve(dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0))
    >>> answer.status.name, round(answer.objective, 5), answer.solver
    ('CERTIFIED', 1.33333, 'reference:CLARABEL:schur')
    """
    family = _programs(problem, "solves")
    with blas_threads(threads), verbosely(verbose, program_name(problem, **options)):
        answer = family.solve(problem, **options)
    return warn_if_uncertified(answer)


def program_name(
    problem: AnyProblem, *, backend: str | Solver = "CLARABEL", formulation: str | None = None, **_: Any
) -> str:
    """Return the backend and, for a single program, the formulation that `solve` uses.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.reference.solving import program_name
    >>> program_name(dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0))
    'CLARABEL: schur'
    """
    name = backends.name_of(backend)
    family = _formulations(problem, streams=False)
    if family is not None:
        return f"{name}: {family.formulation_name(problem, formulation)}"
    return name


def _programs(problem: object, verb: str = "states") -> Any:
    """Return the programs of a problem's family.

    Raises `InputTypeError` for a problem that the layer does not state, or, with `verb` "solves", does not solve.
    """
    place = FAMILIES.get(type(problem).__name__) if isinstance(problem, Problem | RefinementStage) else None
    family = pkgutil.resolve_name(place) if isinstance(place, str) else place
    if family is None or verb == "solves" and isinstance(family, Formulations) and family.scale is None:
        names = ", ".join(name for name in FAMILIES if verb == "states" or name != "RefinementStage")
        raise InputTypeError(
            f"problem must be one that the reference layer {verb} ({names}), got {type(problem).__name__}"
        )
    return family


def _formulations(problem: object, streams: bool = True) -> Formulations | None:
    family = _programs(problem)
    if family is geometries:
        return geometries.formulations(problem, streams)
    return family if isinstance(family, Formulations) else None
