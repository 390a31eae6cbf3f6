"""dualmech.reference: every problem as a CVXPY program. This folder, `reference/`, imports as `dualmech.reference`.

The programs stand in `statements.py` in the order of the paper's formulas; a backend's answer is repaired to
exact feasibility and judged by the problem, like anybody else's.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp

from dualmech.errors import InputTypeError
from dualmech.problems.common import CommonMechanism
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.local.estimate import NonnegativeEstimate
from dualmech.problems.local.projection import LocalProjection
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.problems.reuse import ReuseFitness
from dualmech.problems.softmax import SoftmaxFitness
from dualmech.problems.stages import RefinementStage
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.reference import common, geometries, refinement, reuse, softmax, weighting
from dualmech.reference.chain import chain
from dualmech.reference.engine import backends
from dualmech.reference.local import estimate, projection, strategy
from dualmech.reference.local.bound import lower_bound
from dualmech.reference.local.reconstruction import reconstruct
from dualmech.reference.refinement import refine
from dualmech.solution import Solution, warned

__all__ = ["backends", "chain", "formulate", "lower_bound", "reconstruct", "refine", "solve"]

STATEMENTS: dict[type, tuple[Any, Any]] = {
    FitnessForUse: (geometries.formulate, geometries.solve),
    PrivacyFirst: (geometries.formulate, geometries.solve),
    TotalVariance: (geometries.formulate, geometries.solve),
    SoftmaxFitness: (softmax.formulate, softmax.solve),
    QueryWeighting: (weighting.formulate, weighting.solve),
    CommonMechanism: (common.formulate, common.solve),
    RefinementStage: (refinement.formulate, None),
    ReuseFitness: (reuse.formulate, reuse.solve),
    LocalStrategy: (strategy.formulate, strategy.solve),
    LocalProjection: (projection.formulate, projection.solve),
    NonnegativeEstimate: (estimate.formulate, estimate.solve),
}
"""By problem, what states it as a program, and what solves that."""


def formulate(problem: Any, formulation: str | None = None, **options: Any) -> cp.Problem:
    """State a problem as a CVXPY program, over the problem's own arrays: to read, print, change or solve.

    For `FitnessForUse`, with L the queries on B x and c the targets (Problem 1),

    - ``schur``: minimise α subject to ``[[Σ, BU], [(BU)', Z]] ⪰ 0``, ``diag(Z) ≤ α``, ``diag(L Σ L') ≤ c``;
    - ``matrix_frac``: the same with ``(B u_i)' Σ⁻¹ (B u_i) ≤ α`` for each pair of neighbours;
    - ``logdet``: the centring problem of sharpness t on the way to it, whose minimiser is at most
      ``(s + m + k)/t`` above the optimum;
    - ``sum``: minimise the sum of both maxima instead (Problem 3), which Σ solves together with Problem 1 up
      to a factor.

    `PrivacyFirst` has the same four, with κ to minimise, ``cost`` for α and κ c for c (Problem 2); its ``sum``
    is Problem 3 as well, which knows no budget.

    For `TotalVariance`, with V the queries on B x times √w and ``X = Σ⁻¹``,

    - ``schur``: minimise ``tr Y`` subject to ``[[X, V'], [V, Y]] ⪰ 0``, ``diag((BU)' X BU) ≤ 1``;
    - ``gram``, its default: the same with a triangle R for V, ``R'R = V'V``, whose size is the rank;
    - ``matrix_frac``: minimise ``tr(V X⁻¹ V')`` under the second constraint.

    Directions that no neighbour moves are left out of X, where they would be infinite.

    For `SoftmaxFitness` (Problem 4), with limits g on the costs and h on the variances over their targets,

    - ``schur``: minimise ``(1/t₁) log Σ exp(t₁ g_i) + (1/t₂) log Σ exp(t₂ h_j) + w Σ v_j Σ v_j'`` subject to
      ``[[Σ, BU], [(BU)', Z]] ⪰ 0``, ``diag(Z) ≤ g``, ``diag(L Σ L')/c ≤ h``;
    - ``matrix_frac``: the same with ``(B u_i)' Σ⁻¹ (B u_i) ≤ g_i``.

    For `QueryWeighting`, with c the costs of the design queries that are needed and N their sensitivities,

    - ``inv_pos``, its default: minimise ``Σ c_i / u_i`` subject to ``N'u ≤ 1``, in second-order cones;
    - ``sdp``: minimise ``c'v`` with ``[[u_i, 1], [1, v_i]] ⪰ 0``, as the paper does;
    - ``power``, the default for pure privacy, and ``power_cone``: minimise ``Σ c_i / u_i²``, in the cones named.

    For `CommonMechanism`, with P_i the covariance with which mechanism i answers the common rows,

    - ``primal``, its default: minimise ``tr Σ`` subject to ``Σ ⪰ P_i`` for each i (equation 1);
    - ``dual``: maximise ``Σ tr(P_i Y_i)`` subject to ``Y_i ⪰ 0``, ``Σ Y_i = I``, whose multiplier is Σ.

    On geometry ``blocks``, with τ the noise of blocks of one coordinate and K_b that of the others, whose coordinates
    are the columns of M_b, for `FitnessForUse` and `PrivacyFirst`

    - ``schur``, its default: minimise α subject to ``[[K_b, M_b], [M_b', Z_b]] ⪰ 0``, ``Σ 1/τ_t + Σ_b (Z_b)_oo ≤ α``
      for every orbit o of cells, ``Σ v_t² τ_t + Σ_b v_b K_b v_b' ≤ c`` for every orbit of queries;
    - ``matrix_frac``: the same with ``m' K_b⁻¹ m`` of the columns of M_b for the diagonal of Z_b;
    - ``dual``, where all blocks have one coordinate and all records cost the same, as of marginals: maximise
      ``Σ_t √(N'm)_t`` over ``m ≥ 0, Σ m_S ≤ 1``, the root of the optimum of `FitnessForUse`.

    For `TotalVariance` the first two minimise the total of the variances, with 1 for α. A product is stated factor by
    factor (``problem.factors``), and split noise has no one program.

    For `ReuseFitness` ``schur`` is that of `FitnessForUse` with ``K Σ K' ⪯ I`` beside it, labelled ``released``, whose
    multiplier is Ω.

    For `LocalStrategy` of at most ten user types, with the patterns p_S in the rows of P, ``R'R = W'W`` and share the
    prior times n,

    - ``sdp``, the default of the average case: minimise ``tr T`` over weights w with ``[[G, R'], [R, T]] ⪰ 0``,
      ``G = Σ_S w_S p_S p_S' / (share'p_S)``, ``P'w = 1``;
    - ``socp``: minimise ``Σ_S s_S (share'p_S)``, or the largest variance t of a user type, with ``U P = R``,
      ``P'w = 1`` and ``‖U_S‖² ≤ w_S s_S``;
    - ``dual``, the default of the worst case: maximise ``2 tr(R Z) - 1'y`` with ``‖Z'p_S‖² ≤ (y'p_S)(share'p_S)``.

    For `LocalProjection` and `NonnegativeEstimate` there is one, ``qp``, as their docstrings have it.

    Parameters
    ----------
    problem : FitnessForUse, PrivacyFirst, TotalVariance, LocalStrategy or any other of the library's problems
        What is asked.
    formulation : str
        Which statement; by default ``schur``, for `TotalVariance` ``gram``, for `QueryWeighting`,
        `CommonMechanism` and the three of local privacy as said.
    orbits : iterable of (d,) arrays, or Orbits, optional
        Symmetries, as for `dualmech.fast.solve`: one constraint an orbit. `FitnessForUse` and `PrivacyFirst` in
        formulation ``schur``.
    sharpness : float, default 1
        t > 0 of ``logdet``; the parameter 1/t of the program can be changed later.

    Returns
    -------
    cvxpy.Problem
        Variables ``Sigma`` (k, k), ``alpha`` or ``kappa`` and, in ``schur``, ``Z`` (s, s), or ``X`` (k, k)
        and ``Y``, or ``u`` (k,) and ``v``; constraints with the labels ``schur``, ``privacy`` and ``accuracy``,
        whose multipliers are the weights λ and μ. For `CommonMechanism` ``Sigma`` (r, r) and the labels
        ``common[i]``, whose multipliers are the Y_i, or ``Y_i`` and the label ``complete``.

    Raises
    ------
    InvalidInputError, InputTypeError
        A problem that has no statement, an unknown formulation, a sharpness that is not positive.

    Notes
    -----
    Problems 1 to 4 of Xiao, Ding, Wang, Zhang and Kifer, "Optimizing fitness-for-use of differentially
    private linear queries", PVLDB 14(10), 2021. Equation 1 of Xiao, Wang, Zhang and Kifer, "Answering private linear
    queries adaptively using the common mechanism", PVLDB 16(8), 2023.

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
    stated = STATEMENTS.get(type(problem))
    if stated is None:
        raise _unknown(problem, "states")
    given = {} if formulation is None else {"formulation": formulation}
    program: cp.Problem = stated[0](problem, **given, **options)
    return program


def solve(problem: Any, **options: Any) -> Solution:
    """Solve a problem with a backend of CVXPY and let the problem judge the answer.

    The program of `formulate` is solved in units of order one (targets 1, a balanced basis). The covariance
    is then symmetrised, made positive definite if it is not, and scaled to meet its constraints exactly; the
    multipliers become the dual weights. What the backend reports of itself only enters `Solution.message`. It
    is asked again, more accurately, up to twice while the judge is not satisfied.

    Parameters
    ----------
    problem : FitnessForUse, PrivacyFirst, TotalVariance, LocalStrategy or any other of the library's problems
        What is asked.
    backend : str, default "CLARABEL"
        An installed CVXPY backend that can do the cones (`backends.installed` lists them).
    formulation : str
        Which statement of `formulate`. For fitness for use ``logdet`` follows the central path, for small
        sizes, and ``sum`` is the quickest: on prefix 64 SCS needs a fifteenth of its time for ``schur``.
    tol : float, optional
        Gap to prove, relative to the lower bound: by default 1e-5 with CLARABEL, 1e-3 with SCS, 1e-4 with
        others. CLARABEL's and SCS's own tolerances follow from it.
    time_limit : float, optional
        Seconds for the backend (CLARABEL and SCS).
    orbits : iterable of (d,) arrays, or Orbits, optional
        Symmetries, as for `formulate`: `FitnessForUse` and `PrivacyFirst` alone.
    **options
        Passed to the backend as they are, over what `tol` chose.

    Returns
    -------
    Solution
        With ``status`` CERTIFIED where the judge proved the gap; otherwise the answer, the gap that was
        proven, the backend's own words, and an `UncertifiedWarning`.

    Raises
    ------
    BackendError
        A backend that is not installed, cannot do the cones, refuses its options, fails, or returns nothing
        to judge.
    InvalidInputError, InputTypeError
        A problem that has no statement, or arguments out of range.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import reference
    >>> answer = reference.solve(dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0))
    >>> answer.status.name, round(answer.objective, 5), answer.solver
    ('CERTIFIED', 1.33333, 'reference:CLARABEL:schur')
    """
    stated = STATEMENTS.get(type(problem))
    if stated is None or stated[1] is None:
        raise _unknown(problem, "solves")
    return warned(stated[1](problem, **options))


def _unknown(problem: Any, verb: str) -> InputTypeError:
    known = ", ".join(kind.__name__ for kind, (_, solver) in STATEMENTS.items() if verb == "states" or solver)
    return InputTypeError(
        f"problem must be one that the reference layer {verb} ({known}), got {type(problem).__name__}"
    )
