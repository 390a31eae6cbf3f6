"""Semidefinite programs of the problems as SDPA sparse files, which solvers in any language read.

A file states ``minimise c'x`` over x (n,) subject to ``Σ_i x_i F_i − F_0 ⪰ 0``, block by block: any formulation of
`dualmech.reference.formulate` in semidefinite and second-order cones, as `dualmech.reference.matrix_inequalities`
returns it.
"""

from __future__ import annotations

import numpy as np

from dualmech.reference.conic import MatrixInequalities
from dualmech.validate import Array

MAX_NAMED = 8  # variables in a file's first line


def text(problem: object, program: MatrixInequalities) -> str:
    """Return the contents of a file, with all digits of numbers.

    Its first line names the variables, and says whether the program maximises: its value is then ``−c'x``.

    - `problem`: a problem of the library, or a `RefinementStage`;
    - `program`: its program, from `reference.matrix_inequalities`, whose `values` reads a solution by name.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import reference
    >>> from dualmech.crosscheck import sdpa
    >>> problem = dm.FitnessForUse(dm.workloads.identity(1), targets=4.0)
    >>> print(sdpa.text(problem, reference.matrix_inequalities(problem)), end="")
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
    """
    lines = [f'"{_remark(problem, program)}', str(len(program.objective)), str(len(program.blocks))]
    lines += [" ".join(map(str, program.blocks)), " ".join(map(_number, program.objective.tolist()))]
    lines += (f"{a} {b} {i} {j} {_number(value)}" for a, b, i, j, value in program.entries)
    return "\n".join(lines) + "\n"


def slack(program: MatrixInequalities, x: Array) -> list[Array]:
    """Return ``Σ_i x_i F_i − F_0`` at a point: one matrix for each block, a vector for a diagonal block."""
    matrices = [np.zeros((size, size)) if size > 0 else np.zeros(-size) for size in program.blocks]
    factors = [-1.0, *np.asarray(x, dtype=float).tolist()]
    for number, block, row, column, value in program.entries:
        place = matrices[block - 1]
        if place.ndim == 1:
            place[row - 1] += factors[number] * value
        else:
            place[row - 1, column - 1] += factors[number] * value
            place[column - 1, row - 1] = place[row - 1, column - 1]
    return matrices


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")


def _remark(problem: object, program: MatrixInequalities) -> str:
    """Return a file's first line: the family, and the x_i of its variables (of the upper triangle, by rows)."""
    variables = []
    for name, numbers in list(program.variables.items())[:MAX_NAMED]:
        first, last = int(numbers.min()), int(numbers.max())
        size = f" ({', '.join(map(str, numbers.shape))})" if numbers.ndim else ""
        variables.append(f"{name}{size} = x_{first}" + (f"..x_{last}" if last > first else ""))
    more = len(program.variables) - len(variables)
    aim = "maximise -c'x" if program.maximised else "minimise c'x"
    names = ", ".join([*variables, *([f"and {more} more"] if more else [])])
    return f"{type(problem).__name__}: {aim}, {names}".encode("ascii", "replace").decode("ascii")
