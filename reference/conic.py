"""CVXPY programs as linear matrix inequalities in one vector, as in SDPA files, and the inverse.

CVXPY compiles a program to ``minimise c'x`` with ``A x + b`` in a product of cones. Each cone becomes a block of
``Σ_i x_i F_i − F_0 ⪰ 0``: an equation ``a'x = b`` becomes the pair ``a'x − b ≥ 0``, ``b − a'x ≥ 0``, and the
second-order cone ``‖z‖ ≤ t`` the arrow ``[[t, z'], [z, t I]] ⪰ 0``. Entries are copied from A and b without rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from cvxpy.constraints import PSD, SOC, NonNeg, Zero
from cvxpy.reductions.solvers.conic_solvers.conic_solver import ConicSolver

from dualmech import validate
from dualmech.errors import InvalidInputError, first_line
from dualmech.validate import Array

Entry = tuple[int, int, int, int, float]
"""Index of the matrix F, then block, row and column (from 1, row ≤ column), and the value."""

CONES = frozenset({"SOC", "PSD"})  # cones of a program that become blocks


class _Compiler(ConicSolver):
    """A solver for which CVXPY compiles programs, with unpacked and unscaled matrices; it cannot solve."""

    SUPPORTED_CONSTRAINTS: list[Any] = [Zero, NonNeg, SOC, PSD]

    def name(self) -> str:
        return "SDPA FILE"

    def import_solver(self) -> None:
        """Do nothing: there is no solver."""

    def is_installed(self) -> bool:
        return False  # CVXPY must not choose it

    def cite(self, data: Any) -> str:
        return ""

    def solve_via_data(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("this compiles programs, and solves none")


@dataclass(frozen=True, slots=True, eq=False)
class MatrixInequalities:
    """A program in the form: minimise ``c'x`` subject to ``Σ_i x_i F_i − F_0 ⪰ 0``.

    Attributes
    ----------
    objective : (n,) array
        c.
    blocks : tuple of int
        Sizes of the blocks of all F; a negative size means a diagonal block, which comes first.
    entries : tuple
        Non-zero entries of upper triangles, sorted: matrix, block, row, column, value.
    variables : dict
        For each variable of the program, by name, an array of its shape with the index i of x_i for each entry, in the
        order of the first x_i. Other x_i are auxiliary variables of CVXPY.
    maximised : bool
        Whether the program is a maximisation with value ``−c'x``.
    """

    objective: Array
    blocks: tuple[int, ...]
    entries: tuple[Entry, ...]
    variables: dict[str, npt.NDArray[np.intp]]
    maximised: bool

    def values(self, x: npt.ArrayLike) -> dict[str, Array]:
        """Return the program's variables by name at a point x (n,); raises `InvalidInputError` for another size."""
        point = validate.vector(len(self.objective), "variable", x=x)
        return {name: point[numbers - 1] for name, numbers in self.variables.items()}


def matrix_inequalities(program: cp.Problem) -> MatrixInequalities:
    """Convert a CVXPY program.

    Raises `InvalidInputError` for a program that CVXPY cannot compile to equations, inequalities, second-order and
    semidefinite cones, or with a constant in its objective, which the format does not support.

    Examples
    --------
    >>> S = cp.Variable((2, 2), name="S", symmetric=True)
    >>> written = matrix_inequalities(cp.Problem(cp.Minimize(cp.trace(S)), [S >> np.eye(2)]))
    >>> written.objective, written.blocks, written.entries[:2]
    (array([1., 0., 1.]), (2,), ((0, 1, 1, 1, 1.0), (0, 1, 2, 2, 1.0)))
    >>> written.variables["S"]
    array([[1, 2],
           [2, 3]])
    """
    try:
        data, chain, inverse = program.get_problem_data(_Compiler())
    except (cp.SolverError, cp.DCPError) as error:
        raise InvalidInputError(f"program must have semidefinite cones only, got {first_line(error)}") from error
    dims, objective = data["dims"], np.asarray(data["c"], dtype=float)
    # CVXPY's inverse map of x = (1, 2, …, n) gives the index of each x_i.
    num_variables, rows = len(objective), data["A"].shape[0]
    numbered = {"status": cp.OPTIMAL, "value": 0.0, "primal": np.arange(1.0, num_variables + 1)}
    numbered |= {"eq_dual": np.zeros(rows), "ineq_dual": np.zeros(rows)}
    inverted = chain.invert(numbered, inverse)
    if inverted.opt_val:
        raise InvalidInputError(f"program must have no constant in its objective, got {float(inverted.opt_val):g}")
    variable_indices = {
        variable.name(): np.asarray(np.rint(inverted.primal_vars[variable.id]), dtype=np.intp)
        for variable in program.variables()
    }
    variable_indices = dict(sorted(variable_indices.items(), key=lambda place: place[1].min()))
    blocks, entries = _blocks(sp.csr_array(-data["A"]), np.asarray(data["b"], dtype=float), dims)
    return MatrixInequalities(
        objective, blocks, tuple(sorted(entries)), variable_indices, isinstance(program.objective, cp.Maximize)
    )


def _blocks(matrix: sp.csr_array, offset: Array, dims: Any) -> tuple[tuple[int, ...], list[Entry]]:
    """Return the blocks for ``matrix x + offset`` in the cones, with rows in CVXPY's order."""
    linear = [*range(dims.zero), *range(dims.zero), *range(dims.zero, dims.zero + dims.nonneg)]
    signs = [1.0] * dims.zero + [-1.0] * dims.zero + [1.0] * dims.nonneg
    start, sizes, entries = dims.zero + dims.nonneg, list[int](), list[Entry]()
    augmented = sp.hstack([sp.csr_array(-offset[:, None]), matrix]).tocsr()  # F_0 in column 0

    def put(row: int, positions: Iterable[tuple[int, int]], sign: float = 1.0) -> None:
        span = slice(augmented.indptr[row], augmented.indptr[row + 1])
        for number, value in zip(augmented.indices[span].tolist(), augmented.data[span].tolist(), strict=True):
            entries.extend((number, len(sizes), a, b, sign * value) for a, b in positions if value)

    if linear:
        sizes.append(-len(linear))
        for place, (row, sign) in enumerate(zip(linear, signs, strict=True), start=1):
            put(row, [(place, place)], sign)
    for size in dims.soc:
        sizes.append(size)
        put(start, [(place, place) for place in range(1, size + 1)])
        for place in range(1, size):
            put(start + place, [(1, place + 1)])
        start += size
    for size in dims.psd:
        sizes.append(size)
        for row, column in itertools.combinations_with_replacement(range(size), 2):
            put(start + column * size + row, [(row + 1, column + 1)])
        start += size**2
    return tuple(sizes), entries


def program_of(objective: Array, blocks: tuple[int, ...], entries: Iterable[Entry]) -> cp.Problem:
    """State ``minimise c'x`` subject to ``Σ_i x_i F_i − F_0 ⪰ 0`` as a CVXPY program over ``x`` (n,).

    Its constraints are the blocks, in order.

    Examples
    --------
    >>> entries = ((0, 1, 1, 2, 2.0), (0, 1, 2, 2, -1.0), (1, 1, 1, 1, 1.0))       # [[x, -2], [-2, 1]]
    >>> round(float(program_of(np.ones(1), (2,), entries).solve(solver="CLARABEL")), 6)
    4.0
    """
    x = cp.Variable(len(objective), name="x")
    block_entries: list[list[Entry]] = [[] for _ in blocks]
    for entry in entries:
        block_entries[entry[1] - 1].append(entry)
    slacks = [_slack(x, size, part) for size, part in zip(blocks, block_entries, strict=True)]
    inequalities = [slack >> 0 if size > 0 else slack >= 0 for slack, size in zip(slacks, blocks, strict=True)]
    return cp.Problem(cp.Minimize(objective @ x), inequalities)


def _slack(x: cp.Variable, size: int, entries: list[Entry]) -> cp.Expression:
    """Return one block of ``Σ_i x_i F_i − F_0``; a diagonal block is a vector."""
    side = abs(size)
    numbers, _, rows, columns, values = (np.array(column) for column in zip(*entries, strict=True))
    rows, columns = rows.astype(int) - 1, columns.astype(int) - 1
    if size < 0:
        positions, num_rows = rows, side
    else:
        mirrored = rows != columns
        positions = np.concatenate([rows * side + columns, (columns * side + rows)[mirrored]])
        numbers, values = (np.concatenate([part, part[mirrored]]) for part in (numbers, values))
        num_rows = side**2
    stacked = sp.coo_array((values, (positions, numbers.astype(int))), shape=(num_rows, x.size + 1)).tocsc()
    slack = stacked[:, 1:] @ x - stacked[:, [0]].toarray()[:, 0]
    return slack if size < 0 else cp.reshape(slack, (side, side), order="C")
