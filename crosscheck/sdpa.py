"""Semidefinite programs of the problems as SDPA sparse files, which solvers in any language read.

A file states ``minimise c'x`` over x (n,) subject to ``Σ_i x_i F_i − F_0 ⪰ 0``, block by block. Any formulation of
`dualmech.reference.formulate` in semidefinite and second-order cones is written from CVXPY's own compilation
(`dualmech.reference.conic`).
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from dualmech import reference, validate
from dualmech.files import atomic
from dualmech.reference.conic import Entry, MatrixInequalities
from dualmech.validate import Array

MOST_NAMED = 8  # variables that a file's first line names


@dataclass(frozen=True, slots=True, eq=False)
class SparseProgram:
    """Minimise ``c'x`` subject to ``Σ_i x_i F_i − F_0 ⪰ 0``.

    Attributes
    ----------
    objective : (n,) array
        c.
    blocks : tuple of int
        Sizes of the blocks of all F; negative for a diagonal block.
    entries : tuple
        The entries of upper triangles that are not zero: matrix, block, row, column, number.
    remark : str
        The file's first line.
    """

    objective: Array
    blocks: tuple[int, ...]
    entries: tuple[Entry, ...]
    remark: str = ""

    def slack(self, x: Array) -> list[Array]:
        """Return ``Σ_i x_i F_i − F_0`` at a point, a matrix a block; a diagonal block as a vector."""
        matrices = [np.zeros((size, size)) if size > 0 else np.zeros(-size) for size in self.blocks]
        factors = [-1.0, *np.asarray(x, dtype=float).tolist()]
        for number, block, row, column, value in self.entries:
            place = matrices[block - 1]
            if place.ndim == 1:
                place[row - 1] += factors[number] * value
            else:
                place[row - 1, column - 1] += factors[number] * value
                place[column - 1, row - 1] = place[row - 1, column - 1]
        return matrices

    def text(self) -> str:
        """Return the file's contents; numbers have as many digits as a double needs."""
        lines = [f'"{self.remark}'] if self.remark else []
        lines += [str(len(self.objective)), str(len(self.blocks)), " ".join(map(str, self.blocks))]
        lines.append(" ".join(map(_number, self.objective.tolist())))
        lines += (f"{a} {b} {i} {j} {_number(value)}" for a, b, i, j, value in self.entries)
        return "\n".join(lines) + "\n"


def sparse_program(problem: object, formulation: str | None = None) -> SparseProgram:
    """Return a semidefinite program of a problem, that of `reference.formulate`.

    The remark names its variables, `values` reads them, and a program that maximises has the value ``−c'x``.
    Raises `InputTypeError` for what the reference layer does not state, `InvalidInputError` for an unknown formulation,
    or one with cones other than semidefinite and second-order ones.

    - `problem`: a problem of the library, or a `RefinementStage`;
    - `formulation`: its name, as for `reference.formulate`; by default the first with a semidefinite cone.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import sdpa
    >>> print(sdpa.sparse_program(dm.FitnessForUse(dm.workloads.identity(1), targets=4.0)).text(), end="")
    "FitnessForUse: minimise c'x, alpha = x_1, Sigma (1, 1) = x_2, Z (1, 1) = x_3
    3
    2
    -2 2
    1 0 0
    0 1 2 2 -4
    0 2 1 2 -1
    1 1 1 1 1
    2 1 2 2 -1
    2 2 1 1 1
    3 1 1 1 -1
    3 2 2 2 1
    >>> print(sdpa.sparse_program(dm.QueryWeighting(dm.workloads.prefix(2), [[1, 0], [0, 1]])).remark)
    QueryWeighting: minimise c'x, v (2) = x_1..x_2, u (2) = x_3..x_4
    """
    written = reference.matrix_inequalities(problem, formulation)
    return SparseProgram(written.objective, written.blocks, written.entries, _remark(problem, written))


def values(problem: Any, x: Array, formulation: str | None = None) -> dict[str, Array]:
    """Return the variables of a solution x (n,) by name, as a solver left them, of the program of `sparse_program`.

    Raises as `sparse_program`, and `InvalidInputError` for a vector of another size.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import sdpa
    >>> sdpa.values(dm.QueryWeighting(dm.workloads.prefix(2), [[1, 0], [0, 1]]), [4.0, 3.0, 2.0, 1.0])
    {'v': array([4., 3.]), 'u': array([2., 1.])}
    """
    return reference.matrix_inequalities(problem, formulation).values(x)


def write(program: SparseProgram, path: str | PathLike[str]) -> None:
    """Write a program as an SDPA sparse file; the same program gives the same bytes."""
    atomic.write_text(path, validate.instance(SparseProgram, program=program).text())


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")


def _remark(problem: object, written: MatrixInequalities) -> str:
    """Return a file's first line: the family, and the x_i of its variables, an upper triangle by rows."""
    named = []
    for name, numbers in list(written.variables.items())[:MOST_NAMED]:
        first, last = int(numbers.min()), int(numbers.max())
        size = f" ({', '.join(map(str, numbers.shape))})" if numbers.ndim else ""
        named.append(f"{name}{size} = x_{first}" + (f"..x_{last}" if last > first else ""))
    more = len(written.variables) - len(named)
    aim = "maximise -c'x" if written.maximised else "minimise c'x"
    listed = ", ".join([*named, *([f"and {more} more"] if more else [])])
    return f"{type(problem).__name__}: {aim}, {listed}".encode("ascii", "replace").decode("ascii")
