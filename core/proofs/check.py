"""Check a proof file: exact integer arithmetic, and nothing but Python's standard library.

This file is all that has to be believed. It can be read whole, and run by itself: ``python check.py proof.json``.

A proof file states a problem and shows that its optimum lies between two numbers. It has a workload W (m, d), a query a
row; neighbours U (d, s), differences of neighbouring data sets a column, or none, which is the identity; and numbers c,
one per query. Noise on the data gives query j the variance var_j, and costs neighbours u some squared privacy cost; let
``cost`` be the largest of these. Asked is the least of ``cost · max_j var_j / c_j`` (targets c > 0), or of
``cost · Σ_j c_j var_j`` (weights c ≥ 0), over a positive number ``allowed``.

Upper bound. Measure A x with independent noise of variance 1, A square (d, d). Neighbours u cost ``|A u|²``, and if
A is invertible, query w has the variance ``|A⁻ᵀ w|²``. Given Z, let ``E = A Z - I``. If ``|E| < 1`` (Frobenius), A is
invertible, ``A⁻ᵀ w = (I + E)⁻ᵀ Zᵀ w``, and so ``var_j ≤ |w_j Z|² / (1 - |E|)²``.

Lower bound. Given p and q, for any noise ``Σ_i q_i² cost_i ≤ cost Σ_i q_i²``, and by Cauchy's inequality the left side
times ``Σ_j p_j² var_j`` is at least the square of the trace norm of ``N = diag(p) W U diag(q)``. The trace norm is at
least ``⟨N, Q⟩ / |Q|`` for any matrix Q, and the square of its largest singular value ``|Q|`` is at most the largest
absolute row sum of ``QᵀQ``, or of ``QQᵀ``. With targets ``Σ_j p_j² var_j ≤ max_j (var_j / c_j) Σ_j p_j² c_j``; with
weights ``p_j² ≤ c_j`` is required.

Numbers are texts such as ``-0x1a3p-52``: a whole number in hexadecimal, times a power of two.
"""

from __future__ import annotations

import json
import re
import sys
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from math import isqrt
from typing import Any

SCHEMA = "dualmech.proof/1"
NUMBER = re.compile(r"(-?)0x([0-9a-f]{1,1000})p([+-]?[0-9]{1,4})", re.ASCII)
Rows = list[list[int]]


class Refused(Exception):
    """The file is no proof: what is missing, or the inequality that does not hold."""


class Matrix:
    """Whole numbers by row, all of them times ``2**exponent``."""

    def __init__(self, rows: Rows, exponent: int) -> None:
        self.rows, self.exponent = rows, exponent

    def times(self, other: Matrix) -> Matrix:
        """Return the product."""
        columns = list(zip(*other.rows, strict=True))
        rows = [[sum(map(int.__mul__, row, column)) for column in columns] for row in self.rows]
        return Matrix(rows, self.exponent + other.exponent)

    def transposed(self) -> Matrix:
        """Return the matrix with rows for columns."""
        return Matrix([list(column) for column in zip(*self.rows, strict=True)], self.exponent)

    def squares(self) -> list[Fraction]:
        """Return the sum of squares of every row."""
        return [_power(sum(entry * entry for entry in row), 2 * self.exponent) for row in self.rows]


def check(proof: Any) -> tuple[Fraction, Fraction]:
    """Return the bounds on the optimum that a proof claims; `Refused` where it shows less."""
    lower, upper = shown(proof)
    claim = _part(proof, "claim")
    said = _number(claim.get("lower")), _number(claim.get("upper"))
    _expect(
        said[0] <= lower, f"the lower bound claimed, {below(said[0])}, is above what is shown, {below(lower)}"
    )
    _expect(
        upper <= said[1], f"the upper bound claimed, {above(said[1])}, is below what is shown, {above(upper)}"
    )
    return said


def shown(proof: Any) -> tuple[Fraction, Fraction]:
    """Return the lower and the upper bound that noise and weights of a file show, whatever it claims."""
    _expect(isinstance(proof, dict) and proof.get("schema") == SCHEMA, f"it is no {SCHEMA!r} file")
    problem = _part(proof, "problem")
    workload, neighbours = _matrix(problem, "workload"), _matrix(problem, "neighbours", optional=True)
    kind, numbers, allowed = (
        str(problem.get("kind")),
        _vector(problem, "numbers"),
        _number(problem.get("allowed")),
    )
    _expect(kind in ("targets", "weights"), "kind must be 'targets' or 'weights'")
    _expect(len(numbers) == len(workload.rows), "there must be one of the numbers per query")
    positive = min(numbers) > 0 if kind == "targets" else min(numbers) >= 0
    _expect(positive and allowed > 0, "numbers must be positive (weights may be 0)")
    cells = len(workload.rows[0])
    _expect(neighbours is None or len(neighbours.rows) == cells, "neighbours must have a row per cell")
    upper = _upper(_part(proof, "upper"), workload, neighbours, kind, numbers)
    return _lower(_part(proof, "lower"), workload, neighbours, kind, numbers) / allowed, upper / allowed


def _upper(
    given: dict[str, Any], workload: Matrix, neighbours: Matrix | None, kind: str, numbers: list[Fraction]
) -> Fraction:
    """Return what noise on a strategy achieves."""
    strategy, inverse = _matrix(given, "strategy"), _matrix(given, "inverse")
    cells = len(workload.rows[0])
    for each in (strategy, inverse):
        _expect((len(each.rows), len(each.rows[0])) == (cells, cells), "strategy and inverse must be square")
    missed = _root_above(sum(departure(strategy, inverse).squares()))
    _expect(missed < 1, f"|A Z - I| must be below 1, it is {above(missed)}")
    moved = strategy if neighbours is None else strategy.times(neighbours)
    cost = max(moved.transposed().squares())
    variances = workload.times(inverse).squares()
    pairs = list(zip(variances, numbers, strict=True))
    total = max(v / c for v, c in pairs) if kind == "targets" else sum(v * c for v, c in pairs)
    return cost * total / (1 - missed) ** 2


def departure(strategy: Matrix, inverse: Matrix) -> Matrix:
    """Return ``E = A Z - I``."""
    error = strategy.times(inverse)
    _expect(error.exponent <= 0, "|A Z - I| must be below 1")
    for index, row in enumerate(error.rows):
        row[index] -= 1 << -error.exponent
    return error


def _lower(
    given: dict[str, Any], workload: Matrix, neighbours: Matrix | None, kind: str, numbers: list[Fraction]
) -> Fraction:
    """Return what no noise goes below."""
    changed = workload if neighbours is None else workload.times(neighbours)
    p, q, other = _vector(given, "query_roots"), _vector(given, "neighbour_roots"), _matrix(given, "isometry")
    shape = len(changed.rows), len(changed.rows[0])
    _expect((len(p), len(q)) == shape, "there must be a root per query and per pair of neighbours")
    _expect((len(other.rows), len(other.rows[0])) == shape, "the isometry must have the shape of W U")
    product = Fraction(0)
    for root, row, matching in zip(p, changed.rows, other.rows, strict=True):
        if root:
            product += root * sum(
                own * (a * b) for own, a, b in zip(q, row, matching, strict=True) if a and b
            )
    product *= _power(1, changed.exponent + other.exponent)
    smaller = other if shape[0] <= shape[1] else other.transposed()
    gram = smaller.times(smaller.transposed())
    largest = _power(max(sum(map(abs, row)) for row in gram.rows), gram.exponent)
    squares = [root * root for root in p]
    if kind == "weights":
        for square, weight in zip(squares, numbers, strict=True):
            _expect(square <= weight, "the square of a query's root must be at most its weight")
    asked = sum(square * c for square, c in zip(squares, numbers, strict=True)) if kind == "targets" else 1
    divisor = largest * sum(root * root for root in q) * asked
    _expect(divisor > 0, "isometry and roots must not all be 0")
    return product**2 / divisor


def below(value: Fraction) -> Decimal:
    """Return a number in decimals, rounded down."""
    return Context(15, ROUND_FLOOR).divide(Decimal(value.numerator), Decimal(value.denominator))


def above(value: Fraction) -> Decimal:
    """Return a number in decimals, rounded up."""
    return Context(15, ROUND_CEILING).divide(Decimal(value.numerator), Decimal(value.denominator))


def _root_above(square: Fraction | int) -> Fraction:
    """Return a number that is at least the square root, and hardly more."""
    scaled = Fraction(square) * 4**200
    return Fraction(isqrt(scaled.numerator // scaled.denominator) + 1, 2**200)


def _power(whole: int, exponent: int) -> Fraction:
    return Fraction(whole << exponent) if exponent >= 0 else Fraction(whole, 1 << -exponent)


def _part(given: dict[str, Any], name: str) -> dict[str, Any]:
    part = given.get(name)
    _expect(isinstance(part, dict), f"it has no {name!r}")
    return dict(part)  # type: ignore[arg-type]


def _parsed(text: Any) -> tuple[int, int]:
    """Return a whole number and the power of two that it is multiplied by."""
    found = NUMBER.fullmatch(text) if isinstance(text, str) else None
    _expect(found is not None, f"{str(text)[:40]!r} is no number such as '-0x1a3p-52'")
    sign, digits, exponent = found.groups()  # type: ignore[union-attr]
    return int(sign + digits, 16), int(exponent)


def _number(text: Any) -> Fraction:
    return _power(*_parsed(text))


def _vector(given: dict[str, Any], name: str) -> list[Fraction]:
    texts = given.get(name)
    _expect(isinstance(texts, list) and len(texts) > 0, f"{name} must be a list of numbers")
    return [_number(text) for text in texts]  # type: ignore[union-attr]


def _matrix(given: dict[str, Any], name: str, optional: bool = False) -> Any:
    """Return a matrix of a file with all entries times one power of two; None where it may be left out."""
    rows = given.get(name)
    if optional and rows is None:
        return None
    words = f"{name} must be rows of equally many numbers"
    if not (isinstance(rows, list) and rows and all(isinstance(row, list) and row for row in rows)):
        raise Refused(words)
    _expect(len({len(row) for row in rows}) == 1, words)
    parsed = [[_parsed(text) for text in row] for row in rows]
    least = min((exponent for row in parsed for whole, exponent in row if whole), default=0)
    return Matrix(
        [[whole << (exponent - least) if whole else 0 for whole, exponent in row] for row in parsed], least
    )


def _expect(holds: bool, words: str) -> None:
    if not holds:
        raise Refused(words)


def read(path: str) -> Any:
    """Return what a file holds; `Refused` where it is no JSON."""
    try:
        with open(path, encoding="utf-8") as handle:
            return json.load(handle)
    except (ValueError, RecursionError) as error:
        raise Refused(f"it is no JSON: {error}") from error


def main(path: str) -> int:
    """Print what a file proves; return 0, or 3 where it proves less than it says."""
    try:
        lower, upper = check(read(path))
    except Refused as error:
        print(f"REFUSED: {error}")
        return 3
    print(f"proven: {below(lower)} <= optimum <= {above(upper)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
