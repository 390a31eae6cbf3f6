"""A CVXPY program as matrix inequalities that are linear in one vector, as SDPA files state them, and the way back.

CVXPY compiles a program to ``minimise c'x`` with ``A x + b`` in a product of cones. Each cone becomes a block of
``Σ_i x_i F_i − F_0 ⪰ 0``: an equation ``a'x = b`` the pair ``a'x − b ≥ 0``, ``b − a'x ≥ 0``, and the second-order
cone ``‖z‖ ≤ t`` the arrow ``[[t, z'], [z, t I]] ⪰ 0``. Entries are those of A and b, no number is rounded again.
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
"""Number of the matrix F, block, row and column, all counted from 1 but F_0, and the number there, row ≤ column."""

CONES = frozenset({"SOC", "PSD"})  # cones of a program that become blocks


class _Compiler(ConicSolver):
    """The solver for which CVXPY compiles: it takes matrices neither packed nor scaled, and solves nothing."""

    SUPPORTED_CONSTRAINTS: list[Any] = [Zero, NonNeg, SOC, PSD]

    def name(self) -> str:
        return "SDPA FILE"

    def import_solver(self) -> None:
        """Import nothing: there is no solver."""

    def is_installed(self) -> bool:
        return False  # so that it is never chosen

    def cite(self, data: Any) -> str:
        return ""

    def solve_via_data(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("this compiles programs, and solves none")


@dataclass(frozen=True, slots=True, eq=False)
class MatrixInequalities:
    """Minimise ``c'x`` subject to ``Σ_i x_i F_i − F_0 ⪰ 0``: a CVXPY program, written out.

    Attributes
    ----------
    objective : (n,) array
        c.
    blocks : tuple of int
        Sizes of the blocks of all F; negative for a diagonal block, which is the first where there is one.
    entries : tuple
        Entries of upper triangles that are not zero, sorted: matrix, block, row, column, number.
    variables : dict
        For each of the program's variables, by its name, an array of its shape: the number i of the x_i that each entry
        is. They are in the order of their first x_i; the x_i that are in none are CVXPY's own.
    maximised : bool
        Whether the program maximises: its value is then ``−c'x``.
    """

    objective: Array
    blocks: tuple[int, ...]
    entries: tuple[Entry, ...]
    variables: dict[str, npt.NDArray[np.intp]]
    maximised: bool

    def values(self, x: npt.ArrayLike) -> dict[str, Array]:
        """Return the program's variables by name at a point x (n,); `InvalidInputError` for another size."""
        point = validate.vector(len(self.objective), "variable", x=x)
        return {name: point[numbers - 1] for name, numbers in self.variables.items()}


def matrix_inequalities(program: cp.Problem) -> MatrixInequalities:
    """Write out a program.

    Raises `InvalidInputError` for a program that CVXPY cannot compile to equations, inequalities, second-order and
    semidefinite cones, or with a constant in its objective, for which there is no place.

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
        raise InvalidInputError(f"program must be one of semidefinite cones, got {first_line(error)}") from error
    dims, objective = data["dims"], np.asarray(data["c"], dtype=float)
    # The way back from x = (1, 2, …, n) says which x_i is where.
    count, rows = len(objective), data["A"].shape[0]
    numbered = {"status": cp.OPTIMAL, "value": 0.0, "primal": np.arange(1.0, count + 1)}
    numbered |= {"eq_dual": np.zeros(rows), "ineq_dual": np.zeros(rows)}
    known = chain.invert(numbered, inverse)
    if known.opt_val:
        raise InvalidInputError(f"program must have no constant in its objective, got {float(known.opt_val):g}")
    places = {
        variable.name(): np.asarray(np.rint(known.primal_vars[variable.id]), dtype=np.intp)
        for variable in program.variables()
    }
    places = dict(sorted(places.items(), key=lambda place: place[1].min()))
    blocks, entries = _blocks(sp.csr_array(-data["A"]), np.asarray(data["b"], dtype=float), dims)
    return MatrixInequalities(
        objective, blocks, tuple(sorted(entries)), places, isinstance(program.objective, cp.Maximize)
    )


def _blocks(matrix: sp.csr_array, offset: Array, dims: Any) -> tuple[tuple[int, ...], list[Entry]]:
    """Return the blocks of ``matrix x + offset`` in the cones, whose rows are in CVXPY's order."""
    linear = [*range(dims.zero), *range(dims.zero), *range(dims.zero, dims.zero + dims.nonneg)]
    signs = [1.0] * dims.zero + [-1.0] * dims.zero + [1.0] * dims.nonneg
    begin, sizes, entries = dims.zero + dims.nonneg, list[int](), list[Entry]()
    whole = sp.hstack([sp.csr_array(-offset[:, None]), matrix]).tocsr()  # F_0 in column 0

    def put(row: int, places: Iterable[tuple[int, int]], sign: float = 1.0) -> None:
        part = slice(whole.indptr[row], whole.indptr[row + 1])
        for number, value in zip(whole.indices[part].tolist(), whole.data[part].tolist(), strict=True):
            entries.extend((number, len(sizes), a, b, sign * value) for a, b in places if value)

    if linear:
        sizes.append(-len(linear))
        for place, (row, sign) in enumerate(zip(linear, signs, strict=True), start=1):
            put(row, [(place, place)], sign)
    for size in dims.soc:
        sizes.append(size)
        put(begin, [(place, place) for place in range(1, size + 1)])
        for place in range(1, size):
            put(begin + place, [(1, place + 1)])
        begin += size
    for size in dims.psd:
        sizes.append(size)
        for row, column in itertools.combinations_with_replacement(range(size), 2):
            put(begin + column * size + row, [(row + 1, column + 1)])
        begin += size**2
    return tuple(sizes), entries


def program_of(objective: Array, blocks: tuple[int, ...], entries: Iterable[Entry]) -> cp.Problem:
    """State ``minimise c'x`` subject to ``Σ_i x_i F_i − F_0 ⪰ 0`` as a CVXPY program over ``x`` (n,).

    Its constraints are the blocks, in their order.

    Examples
    --------
    >>> entries = ((0, 1, 1, 2, 2.0), (0, 1, 2, 2, -1.0), (1, 1, 1, 1, 1.0))       # [[x, -2], [-2, 1]]
    >>> round(float(program_of(np.ones(1), (2,), entries).solve(solver="CLARABEL")), 6)
    4.0
    """
    x = cp.Variable(len(objective), name="x")
    listed: list[list[Entry]] = [[] for _ in blocks]
    for entry in entries:
        listed[entry[1] - 1].append(entry)
    slacks = [_slack(x, size, part) for size, part in zip(blocks, listed, strict=True)]
    inequalities = [slack >> 0 if size > 0 else slack >= 0 for slack, size in zip(slacks, blocks, strict=True)]
    return cp.Problem(cp.Minimize(objective @ x), inequalities)


def _slack(x: cp.Variable, size: int, entries: list[Entry]) -> cp.Expression:
    """Return one block of ``Σ_i x_i F_i − F_0``, a diagonal one as a vector."""
    side = abs(size)
    numbers, _, rows, columns, values = (np.array(column) for column in zip(*entries, strict=True))
    rows, columns = rows.astype(int) - 1, columns.astype(int) - 1
    if size < 0:
        places, total = rows, side
    else:
        mirrored = rows != columns
        places = np.concatenate([rows * side + columns, (columns * side + rows)[mirrored]])
        numbers, values = (np.concatenate([part, part[mirrored]]) for part in (numbers, values))
        total = side**2
    whole = sp.coo_array((values, (places, numbers.astype(int))), shape=(total, x.size + 1)).tocsc()
    slack = whole[:, 1:] @ x - whole[:, [0]].toarray()[:, 0]
    return slack if size < 0 else cp.reshape(slack, (side, side), order="C")
