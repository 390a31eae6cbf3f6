"""Programs as linear matrix inequalities: which points they allow, equations, cones, refusals."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmech import errors
from dualmech.crosscheck import sdpa
from dualmech.reference import conic

S, z = cp.Variable((2, 2), symmetric=True, name="S"), cp.Variable(3, name="z")
LIMITS = [z[0] >= -1, cp.SOC(z[0] + 2, z[1:] - 1), S + np.eye(2) >> 0, S[0, 0] + z[2] == 0]
WRITTEN = conic.matrix_inequalities(cp.Problem(cp.Minimize(cp.trace(S) + cp.sum(z)), LIMITS))


@given(st.integers(0, 2**20))
def test_the_same_points_are_allowed(seed: int) -> None:
    """An equation, a limit, a second-order and a semidefinite cone, each met by some of the points."""
    rng = np.random.default_rng(seed)
    matrix, vector = rng.uniform(-1, 1, (2, 2)), rng.uniform(-1.5, 1.5, 3)
    matrix += matrix.T
    if rng.random() < 0.8:
        vector[2] = -matrix[0, 0]
    x = np.zeros(6)
    x[WRITTEN.variables["S"] - 1], x[WRITTEN.variables["z"] - 1] = matrix, vector
    allowed = (
        abs(matrix[0, 0] + vector[2]) < 1e-12
        and vector[0] >= -1
        and np.linalg.norm(vector[1:] - 1) <= vector[0] + 2
        and np.linalg.eigvalsh(matrix)[0] >= -1
    )
    slacks = sdpa.slack(WRITTEN, x)
    least = min(each.min() if each.ndim == 1 else np.linalg.eigvalsh(each)[0] for each in slacks)
    assert (least >= -1e-9) == allowed or abs(least) < 1e-6
    assert WRITTEN.objective @ x == pytest.approx(np.trace(matrix) + vector.sum())


def test_each_cone_is_a_block() -> None:
    assert WRITTEN.blocks == (-3, 3, 2) and sorted(WRITTEN.objective) == [0, 1, 1, 1, 1, 1]
    assert WRITTEN.entries[0] == (0, 1, 3, 3, -1.0)  # z_1 ≥ -1, after both sides of the equation


@settings(max_examples=15)
@given(st.integers(0, 2**20))
def test_a_written_program_has_the_optimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((3, 3))
    S = cp.Variable((3, 3), name="S", symmetric=True)
    program = cp.Problem(cp.Maximize(-cp.trace(S)), [S >> root @ root.T, S[0, 1] == 0])
    written = conic.matrix_inequalities(program)
    again = conic.program_of(written.objective, written.blocks, written.entries)
    value, optimum = again.solve(solver="CLARABEL"), program.solve(solver="CLARABEL")
    assert written.maximised and -float(value) == pytest.approx(float(optimum), rel=1e-5)
    point: Any = again.var_dict["x"].value
    best: Any = S.value
    assert np.allclose(written.values(point)["S"], best, atol=1e-3 * np.trace(root @ root.T))


def test_other_programs_are_refused() -> None:
    x = cp.Variable(name="x")
    with pytest.raises(errors.InvalidInputError, match="semidefinite cones"):
        conic.matrix_inequalities(cp.Problem(cp.Minimize(cp.exp(x))))
    with pytest.raises(errors.InvalidInputError, match="semidefinite cones"):
        conic.matrix_inequalities(cp.Problem(cp.Minimize(-cp.square(x))))
    with pytest.raises(errors.InvalidInputError, match="no constant in its objective, got 3"):
        conic.matrix_inequalities(cp.Problem(cp.Minimize(x + 3), [x >= 0]))
    written = conic.matrix_inequalities(cp.Problem(cp.Minimize(x), [x >= 0]))
    with pytest.raises(errors.InvalidInputError, match="x must have"):
        written.values([1.0, 2.0])
