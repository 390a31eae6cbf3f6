"""Semidefinite programs of the problems as SDPA sparse files, which solvers in any language read.

A file states ``minimise c'x`` over x (n,) subject to ``Σ_i x_i F_i − F_0 ⪰ 0``, block by block. Any formulation of
`dualmech.reference.formulate` in semidefinite and second-order cones is written from CVXPY's own compilation
(`dualmech.reference.conic`). Three families on a matrix have a form of their own, written from exact numbers. On a
basis B (k, d) of rank k, with ``W = L B``, neighbours U (d, s) and the covariance Σ (k, k) of the noise on B x, they
are one program. With t the value, which is x_1, and Z (s, s),

    ``[[Σ, B U], [(B U)', Z]] ⪰ 0``,

so that ``Z ⪰ (B U)' Σ⁻¹ (B U)`` has the squared costs of neighbours on its diagonal, and in a diagonal block

- `FitnessForUse`, minimise t:  ``t − Z_ii ≥ 0``,  ``c_j − v_j Σ v_j' ≥ 0``;
- `PrivacyFirst`, minimise t:   ``cost − Z_ii ≥ 0``,  ``t c_j − v_j Σ v_j' ≥ 0``;
- `TotalVariance`, minimise t:  ``1 − Z_ii ≥ 0``,  ``t − Σ_j w_j v_j Σ v_j' ≥ 0``.

That form has no equations. The multipliers of the diagonal block, in its order, are weights that prove a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from os import PathLike
from typing import Any

import numpy as np

from dualmech import reference, validate
from dualmech.errors import DualmechError, FileFormatError, InputTypeError
from dualmech.files import atomic, reading
from dualmech.files.reading import FilePath
from dualmech.problems.base import AnyProblem, Problem
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.variance import TotalVariance
from dualmech.reference.conic import Entry, MatrixInequalities
from dualmech.validate import Array

VALUE = 1  # variable that is the objective
MOST_NAMED = 8  # variables that a file's first line names
PUNCTUATION = str.maketrans("{}(),", "     ")  # characters that SDPA's own files put around numbers


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
    """Return a semidefinite program of a problem.

    By default `FitnessForUse`, `PrivacyFirst` and `TotalVariance` on geometry ``dense`` are written in the form of this
    module, with the variables, in this order, t; the upper triangle of Σ by rows, ``Σ_11, Σ_12, …``; the upper triangle
    of Z by rows. Any other problem, and those three with a `formulation`, is the program of `reference.formulate`: the
    remark names its variables, `values` reads them, and a program that maximises has the value ``−c'x``.
    Raises `InputTypeError` for what the reference layer does not state, `InvalidInputError` for an unknown formulation,
    or one with cones other than semidefinite and second-order ones.

    - `problem`: a problem of the library, or a `RefinementStage`;
    - `formulation`: its name, as for `reference.formulate`; by default the first with a semidefinite cone.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import sdpa
    >>> print(sdpa.sparse_program(dm.FitnessForUse(dm.workloads.identity(1), targets=4.0)).text(), end="")
    "FitnessForUse, 1 queries, 1 cells: x = (t, Sigma (1, 1), Z (1, 1))
    3
    2
    2 -2
    1 0 0
    0 1 1 2 -1
    0 2 2 2 -4
    1 2 1 1 1
    2 1 1 1 1
    2 2 2 2 -1
    3 1 2 2 1
    3 2 1 1 -1
    >>> print(sdpa.sparse_program(dm.QueryWeighting(dm.workloads.prefix(2), [[1, 0], [0, 1]])).remark)
    QueryWeighting: minimise c'x, v (2) = x_1..x_2, u (2) = x_3..x_4
    """
    if formulation is None and _has_own_form(problem):
        return _own_program(problem)
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
    if formulation is None and _has_own_form(problem):
        rank, pairs = _on_matrix(problem).geometry.moves.shape
        noise, costs = _Triangle(VALUE, rank), _Triangle(VALUE + rank * (rank + 1) // 2, pairs)
        point = validate.vector(VALUE + noise.count + costs.count, "variable", x=x)
        return {"t": point[0], "Sigma": noise.of(point), "Z": costs.of(point)}
    return reference.matrix_inequalities(problem, formulation).values(x)


def _own_program(problem: Any) -> SparseProgram:
    """Return the program of one of the three families in the form of this module."""
    problem = _on_matrix(problem)
    geometry = problem.geometry
    rank, pairs = geometry.moves.shape
    noise, costs = _Triangle(VALUE, rank), _Triangle(VALUE + rank * (rank + 1) // 2, pairs)
    limits = [*_limits_of_costs(problem, costs), *_limits_of_variances(problem, noise)]
    entries = [*_schur(geometry.moves, noise, costs)]
    entries += (
        (number, 2, place, place, value)
        for place, limit in enumerate(limits, start=1)
        for number, value in limit
        if value
    )
    objective = np.zeros(VALUE + noise.count + costs.count)
    objective[0] = 1.0
    queries, cells = problem.workload.shape
    remark = (
        f"{type(problem).__name__}, {queries} queries, {cells} cells: x = (t, Sigma ({rank}, {rank}), "
        f"Z ({pairs}, {pairs}))"
    )
    return SparseProgram(objective, (rank + pairs, -len(limits)), tuple(sorted(entries)), remark)


def covariance(problem: AnyProblem, x: Array) -> Array:
    """Return Σ (k, k) of a solution x, as a solver left it; ``problem.feasible`` makes it feasible.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech.crosscheck import sdpa
    >>> problem = dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0)
    >>> sdpa.covariance(problem, [4 / 3, 1, -1 / 2, 1, 0, 0, 0])
    array([[ 1. , -0.5],
           [-0.5,  1. ]])
    """
    _on_matrix(problem)
    return values(problem, x)["Sigma"]


def variables(problem: Problem) -> float:
    """Return how many variables the program of a problem has; infinitely many where it has no such program."""
    try:
        if _has_own_form(problem):
            rank, pairs = _on_matrix(problem).geometry.moves.shape
            return float(VALUE + rank * (rank + 1) // 2 + pairs * (pairs + 1) // 2)
        return float(len(reference.matrix_inequalities(problem).objective))
    except DualmechError:
        return inf


def write(program: SparseProgram, path: str | PathLike[str]) -> None:
    """Write a program as an SDPA sparse file; the same program gives the same bytes."""
    atomic.write_text(path, validate.instance(SparseProgram, program=program).text())


def read(path: str | PathLike[str]) -> SparseProgram:
    """Read an SDPA sparse file.

    Raises `FileFormatError` for another file: with the line, where an entry is wrong.
    """
    with reading.errors_naming(path), reading.decoding_errors(path, "SDPA"), reading.opened_lines(path) as text_lines:
        lines = enumerate(text_lines, start=1)
        remarks, head = [], []
        for _, line in lines:
            if line[:1] in ('"', "*"):
                remarks.append(line[1:].strip())
            elif line.strip():
                head.append(_words(line))
            if len(head) == 4:
                break
        if len(head) < 4:
            raise FileFormatError(f"{path}: ends before the objective")
        count, blocks = int(head[0][0]), tuple(int(size) for size in head[2][: int(head[1][0])])
        objective = np.array([float(number) for number in head[3]])
        _expect(len(objective) == count, path, f"states {count} variables and {len(objective)} numbers of c")
        _expect(len(blocks) == int(head[1][0]) and 0 not in blocks, path, "states other blocks than it lists")
        entries = tuple(_entry(line, number, path, count, blocks) for number, line in lines if line.strip())
    _expect(bool(np.all(np.isfinite(objective))), path, "has an objective that is not finite")
    return SparseProgram(objective, blocks, entries, remarks[0] if remarks else "")


FAMILIES = FitnessForUse, PrivacyFirst, TotalVariance
"""Families with a form of their own, on a matrix."""


class _Triangle:
    """Numbers of the variables that are a symmetric matrix, by its rows."""

    def __init__(self, before: int, size: int) -> None:
        self.size, self.count = size, size * (size + 1) // 2
        places = np.triu_indices(size)
        self.numbers = np.zeros((size, size), dtype=int)
        self.numbers[places] = before + 1 + np.arange(self.count)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield row, column and number of every variable."""
        rows, columns = np.triu_indices(self.size)
        yield from zip(rows.tolist(), columns.tolist(), self.numbers[rows, columns].tolist(), strict=True)

    def of(self, x: Array) -> Array:
        """Return the matrix at a point x."""
        upper = np.where(self.numbers > 0, x[self.numbers - 1], 0.0)
        return np.asarray(upper + np.triu(upper, 1).T)

    def form(self, matrix: Any) -> Iterator[tuple[int, float]]:
        """Yield the coefficients of ``⟨matrix, X⟩`` for a symmetric matrix, by the numbers of variables, negative."""
        for row, column, number in self:
            yield number, -float(matrix[row][column]) * (1 if row == column else 2)


def _schur(moves: Array, noise: _Triangle, costs: _Triangle) -> Iterator[Entry]:
    """Yield the entries of ``[[Σ, B U], [(B U)', Z]]``; entries without a variable are those of −F_0."""
    for row, column, number in noise:
        yield number, 1, row + 1, column + 1, 1.0
    for row, column, number in costs:
        yield number, 1, noise.size + row + 1, noise.size + column + 1, 1.0
    for row, column in np.argwhere(moves).tolist():
        yield 0, 1, row + 1, noise.size + column + 1, -float(moves[row, column])


def _limits_of_costs(problem: Problem, costs: _Triangle) -> Iterator[list[tuple[int, float]]]:
    """Yield ``t − Z_ii``, or the budget less Z_ii, as coefficients by variable; F_0's are negative."""
    free = isinstance(problem, FitnessForUse)
    first = (VALUE, 1.0) if free else (0, -float(getattr(problem, "cost", 1.0)))
    for index in range(costs.size):
        yield [first, (int(costs.numbers[index, index]), -1.0)]


def _limits_of_variances(problem: AnyProblem, noise: _Triangle) -> Iterator[list[tuple[int, float]]]:
    """Yield limits less their variances, as coefficients by variable."""
    rows = problem.geometry.representation
    if isinstance(problem, TotalVariance):
        yield [(VALUE, 1.0), *noise.form(_gram(rows, problem.asked_weights))]
        return
    for row, target in zip(rows, problem.targets.tolist(), strict=True):
        limit = (0, -target) if isinstance(problem, FitnessForUse) else (VALUE, target)
        yield [limit, *noise.form(np.outer(row, row))]


def _gram(rows: Array, weights: Array) -> list[list[float]]:
    """Return ``L' diag(w) L``, each entry the double that is nearest to the exact sum."""
    exact = [[Fraction(entry) for entry in row] for row in rows.tolist()]
    scaled = [[Fraction(w) * entry for entry in row] for w, row in zip(weights.tolist(), exact, strict=True)]
    left, right = (list(zip(*triples, strict=True)) for triples in (scaled, exact))
    return [[float(_product(one, other)) for other in right] for one in left]


def _product(one: Iterable[Fraction], other: Iterable[Fraction]) -> Fraction:
    return sum((a * b for a, b in zip(one, other, strict=True) if a and b), Fraction(0))


def _entry(line: str, number: int, path: FilePath, count: int, blocks: tuple[int, ...]) -> Entry:
    words = _words(line)
    where = f"line {number}: "
    _expect(len(words) == 5, path, f"{where}must be a matrix, a block, a row, a column and a number")
    matrix, block, row, column = (int(word) for word in words[:4])
    value = float(words[4])
    _expect(0 <= matrix <= count and 1 <= block <= len(blocks), path, f"{where}there is no such matrix or block")
    size = abs(blocks[block - 1])
    _expect(1 <= row <= column <= size, path, f"{where}must be of the upper triangle of a block of {size} rows")
    _expect(blocks[block - 1] > 0 or row == column, path, f"{where}must be on the diagonal")
    _expect(abs(value) < inf, path, f"{where}the number must be finite")
    return matrix, block, row, column, value


def _words(line: str) -> list[str]:
    """Return the words of a line; refuse texts that Python takes for numbers and no other reader does."""
    if not line.isascii() or "_" in line:
        raise ValueError(f"{line[:40].rstrip()!r} is no line of numbers")
    return line.translate(PUNCTUATION).split()


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")


def _expect(holds: bool, path: FilePath, words: str) -> None:
    if not holds:
        raise FileFormatError(f"{path}: {words}")


def _has_own_form(problem: Any) -> bool:
    return isinstance(problem, FAMILIES) and problem.geometry.name in ("dense", "stream")


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


def _on_matrix(problem: Problem) -> Any:
    if not isinstance(problem, FAMILIES):
        known = ", ".join(family.__name__ for family in FAMILIES)
        raise InputTypeError(f"problem must be one of {known}, got {type(problem).__name__}")
    return problem.on_matrix()
