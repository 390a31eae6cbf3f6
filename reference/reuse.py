"""Reuse of a release through CVXPY: fitness for use with one more matrix inequality.

Σ (k, k) is the covariance on B x of the release and the new answers together, the columns of ``BU`` (k, s) are the
differences between neighbouring data sets, the rows v_j of ``L`` (m, k) are the queries on B x, ``K`` (q, k) is the
release, rows with unit noise, and ``c`` (m,) are the targets. On blocks of tables the arrays are as in
`dualmech.reference.blocks`, with a number or a matrix F of the release for each block.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dualmech.errors import BackendError
from dualmech.geometry.blocks import BlockPoint
from dualmech.problems.released import ReleasedBlocks, with_rows
from dualmech.problems.reuse import ReuseDual, ReuseFitness
from dualmech.progress import Status
from dualmech.reference import attempts, backends, blocks, cp, fitness
from dualmech.reference.blocks import BlockArrays, BlockUnits
from dualmech.reference.formulas import ON_GEOMETRY, noise
from dualmech.reference.scaling import Scaled
from dualmech.solution import Solution, judged_solution
from dualmech.validate import Array


def schur(aim: fitness.Aim, moves: Array, queries: Array, release: Array) -> cp.Problem:
    """State Problem 1 with the constraint ``K Σ K' ⪯ I``: the release can be computed from the final answers.

    In formulas: minimise ``max_i (B u_i)' Σ⁻¹ (B u_i)`` over ``Σ ≻ 0`` subject to ``v_j Σ v_j' ≤ c_j`` and ``Σ⁻¹ ⪰
    K'K``, that is, the total cost matrix includes the cost of the release. As a program: the program of `fitness.schur`
    with the equivalent constraint ``I - K Σ K' ⪰ 0``, which is linear in Σ. Its multiplier is the matrix of weights Ω.

    Examples
    --------
    >>> import dualmech as dm
    >>> problem = dm.ReuseFitness(dm.workloads.prefix(2), 1.0, dm.LinearGaussianMechanism([[1, 1]], [[2]]))
    >>> B, L = problem.geometry.moves, problem.geometry.representation
    >>> program = schur(fitness.accuracy_first(problem.targets), B, L[:2], L[2:])
    >>> _, Sigma = program.solve(solver="CLARABEL"), program.var_dict["Sigma"].value
    >>> weights = [constraint.dual_value for constraint in program.constraints[1:]]
    >>> problem.certify(problem.feasible(Sigma), problem.dual_type(*weights)).gap < 1e-6
    True
    """
    program = fitness.schur(aim, moves, queries)
    if not len(release):
        return program
    K, Sigma = cp.Constant(release, name="K"), program.var_dict["Sigma"]
    released = attempts.label("released", np.eye(len(release)) - K @ Sigma @ K.T >> 0)
    return cp.Problem(program.objective, [*program.constraints, released])


def schur_on_blocks(aim: fitness.Aim, arrays: BlockArrays, levels: Array, matrices: list[Array]) -> cp.Problem:
    """State the same problem on blocks: minimum cost within the targets, where the release can be computed.

    In formulas: the program of `blocks.minimum`, with ``f_t² τ_t ≤ 1`` for every block of one coordinate, f_t the
    number of the release there, and ``F_b K_b F_b' ⪯ I`` for every other. Their multipliers are the weights Ω.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> one, two = (dm.workloads.marginals((2, 3), ways=ways) for ways in (1, 2))
    >>> known = fast.solve(dm.FitnessForUse(one, 2.0, geometry="blocks")).mechanism
    >>> problem = dm.ReuseFitness(two, 1.0, known)
    >>> aim = fitness.accuracy_first(problem.targets[problem.geometry.tables])
    >>> program = schur_on_blocks(aim, BlockArrays.of(problem.geometry), problem.known.coordinates.levels, [])
    >>> _, tau = program.solve(solver="CLARABEL"), program.var_dict["tau"].value
    >>> privacy, accuracy, released = [constraint.dual_value for constraint in program.constraints]
    >>> dual = problem.dual_type(privacy, accuracy, BlockPoint(released))
    >>> problem.certify(problem.feasible(BlockPoint(tau)), dual).gap < 1e-6
    True
    """
    program = blocks.minimum(aim, arrays, "schur")
    variables, bounds = program.var_dict, []
    if len(levels):
        f = cp.Constant(levels**2, name="f²")
        bounds.append(attempts.label("released", cp.multiply(f, variables["tau"]) <= 1))
    for index, matrix in enumerate(matrices):
        F, K = cp.Constant(matrix, name=f"F[{index}]"), variables[f"K[{index}]"]
        release_noise = cp.symmetric_wrap(F @ K @ F.T)
        bounds.append(attempts.label(f"released[{index}]", np.eye(len(matrix)) - release_noise >> 0))
    return cp.Problem(program.objective, [*program.constraints, *bounds])


def _write(problem: ReuseFitness, formulation: str) -> cp.Problem:
    if isinstance(problem.known, ReleasedBlocks):
        arrays = BlockArrays.of(problem.geometry)
        aim = fitness.accuracy_first(problem.targets[problem.geometry.tables])
        return schur_on_blocks(aim, arrays, *_sensitive_release(problem.known.coordinates, arrays))
    geometry, count = problem.geometry, len(problem.targets)
    return schur(
        fitness.accuracy_first(problem.targets),
        geometry.moves,
        geometry.representation[:count],
        geometry.representation[count:],
    )


def _scaled_program(
    problem: ReuseFitness, formulation: str, request: attempts.BackendRequest
) -> attempts.ScaledProgram | Solution:
    release_alone = problem.release_alone()
    if release_alone is not None:
        return judged_solution(
            problem, *release_alone, tol=request.tol, otherwise=Status.ROUNDING, solver="reference:released"
        )
    if isinstance(problem.known, ReleasedBlocks):
        return _scaled_on_blocks(problem, problem.known)
    scaled = replace(Scaled.of(problem.rows.together), problem=problem)
    mask = scaled.kept_queries < len(problem.targets)
    aim = fitness.accuracy_first(np.ones(int(mask.sum())))
    program = schur(aim, scaled.moves, scaled.queries[mask], scaled.queries[~mask])
    return attempts.ScaledProgram(
        program,
        scaled,
        covariance=lambda: program.var_dict["Sigma"].value,
        dual=lambda *multipliers: _dual(scaled, *multipliers),
        constraints=("privacy", "accuracy", "released")[: 2 + (not mask.all())],
    )


def _sensitive_release(release: BlockPoint, arrays: BlockArrays) -> tuple[Array, list[Array]]:
    pairs = zip(release.covariances, arrays.sensitive_directions, strict=True)
    return release.levels[arrays.sensitive_levels], [
        rows if moves is None else rows @ moves for rows, moves in pairs if moves is None or moves.size
    ]


def _scaled_on_blocks(problem: ReuseFitness, released: ReleasedBlocks) -> attempts.ScaledProgram:
    """Scale as for fitness for use with the queries and the release, which gives every block a scale."""
    geometry, release = problem.geometry, released.coordinates
    rows = 1 / np.sqrt(problem.targets[geometry.tables])
    extended = with_rows(geometry, release.levels, list(release.covariances))
    units = BlockUnits.balanced(problem, extended, np.concatenate([rows, np.ones(len(extended.tables) - len(rows))]))
    arrays = BlockArrays.of(geometry)
    levels, matrices = _sensitive_release(release, arrays)
    scaled = arrays.scaled(units.cost, rows, units.levels, units.lifts)
    scaled_matrices = [matrix @ lift for matrix, lift in zip(matrices, units.lifts, strict=True)]
    aim = fitness.accuracy_first(np.ones(len(rows)))
    program = schur_on_blocks(aim, scaled, levels * np.sqrt(units.levels), scaled_matrices)
    sensitive_blocks = [index for index, moves in enumerate(arrays.sensitive_directions) if moves is None or moves.size]

    def dual(privacy: Array, accuracy: Array, weights: Array) -> ReuseDual:
        shares, singles = np.maximum(accuracy, 0.0), np.zeros(len(release.levels))
        several = [np.zeros_like(covariance) for covariance in release.covariances]
        sizes = [len(levels), *(several[index].size for index in sensitive_blocks)]
        scalar_weights, *matrix_weights = np.split(weights, np.cumsum(sizes)[:-1])
        singles[arrays.sensitive_levels] = np.maximum(scalar_weights, 0.0)
        for index, matrix in zip(sensitive_blocks, matrix_weights, strict=True):
            several[index] = matrix.reshape(several[index].shape)
        total = float(shares.sum() + singles.sum() + sum(np.trace(matrix) for matrix in several))
        if not (np.isfinite(total) and total > 0):
            raise BackendError("the backend returned no multipliers to judge")
        release_weights = BlockPoint(singles / total, tuple((matrix + matrix.T) / 2 / total for matrix in several))
        neighbour_weights = np.maximum(privacy, 0.0)
        return ReuseDual(
            neighbour_weights / neighbour_weights.sum(),
            shares / total / problem.targets[geometry.tables],
            release_weights,
        )

    return attempts.ScaledProgram(
        program,
        units,
        covariance=lambda: units.noise_vector(program.var_dict),
        dual=dual,
        constraints=("privacy", "accuracy", "released"),
    )


FORMULATIONS = attempts.Formulations(
    lambda _: {"schur": backends.SEMIDEFINITE},
    _write,
    _scaled_program,
    lambda problem: ON_GEOMETRY.get(problem.geometry.name, noise.reuse)(problem),
)


def _dual(scaled: Scaled, privacy: Array, accuracy: Array, released: Array | None = None) -> ReuseDual:
    """Normalise multipliers to weights with ``Σ λ_i = 1`` and ``Σ μ_j c_j + tr Ω = 1``."""
    problem: ReuseFitness = scaled.problem
    mask = scaled.kept_queries < len(problem.targets)
    queries, rows = scaled.kept_queries[mask], scaled.kept_queries[~mask] - len(problem.targets)
    shares = np.maximum(accuracy[: len(queries)], 0.0)
    matrix = np.zeros((len(problem.release), len(problem.release)))
    if released is not None:
        matrix[np.ix_(rows, rows)] = released.reshape(len(rows), len(rows))
    total = float(shares.sum() + np.trace(matrix))
    if not (np.isfinite(total) and total > 0):
        raise BackendError("the backend returned no multipliers to judge")
    weights = np.zeros(len(problem.targets))
    weights[queries] = shares / total / problem.targets[queries]
    return ReuseDual(scaled.neighbour_weights(privacy), weights, matrix / total)
