"""From an answer to a proof file: noise and weights in whole numbers, for `check` to hold against each other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from math import inf, nextafter
from os import PathLike
from typing import Any

import numpy as np
import scipy.linalg

from dualmech import files, linalg
from dualmech.display import Displayed
from dualmech.errors import CertificateError, InputTypeError, InvalidInputError
from dualmech.problems.base import Problem
from dualmech.proofs import check
from dualmech.proofs.check import Matrix, Refused
from dualmech.solution import Solution
from dualmech.validate import Array

LARGEST = 2**28  # most multiplications of whole numbers that a proof may take to check: some minutes

FAINT = 1e-13
"""Least variance that noise is given, over its largest: where it has none, something is released exactly, which no
strategy measures."""

SIDE = 1e-6
"""What queries that nobody asks are measured with, over the rest: a strategy must be invertible."""

INVERSE_BITS, CLOSE, MOST_STEPS = 106, Fraction(1, 2**50), 6
"""Bits of an inverse's numbers, what may be left of ``A Z - I``, and steps to get there."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Proof(Displayed):
    """A proof that an optimum lies between two numbers, checked in exact arithmetic.

    Attributes
    ----------
    lower, upper : Fraction
        The proven interval.
    document : dict
        What `save` writes: the problem, a strategy with its inverse, roots of weights with an isometry.

    Examples
    --------
    >>> from fractions import Fraction
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> proof = dm.prove(fast.solve(dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0), tol=1e-9))
    >>> proof.lower <= Fraction(4, 3) <= proof.upper, proof.width < 1e-8
    (True, True)
    """

    lower: Fraction
    upper: Fraction
    document: dict[str, Any]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the proof as JSON; ``dualmech verify``, or ``core/proofs/check.py`` by itself, checks the file."""
        with files.atomic.atomic_write(path) as handle:
            handle.write((json.dumps(self.document, separators=(",", ":")) + "\n").encode("ascii"))

    def _facts(self) -> dict[str, object]:
        return {"lower": check.below(self.lower), "upper": check.above(self.upper), "width": self.width}

    def is_of(self, problem: Any) -> bool:
        """Whether it proves the optimum of this very problem, every number of it the same."""
        if not isinstance(problem, Problem):
            raise InputTypeError(f"problem must be a problem, got {type(problem).__name__}")
        return bool(self.document["problem"] == _stated_texts(type(problem).__name__, problem.in_numbers()))

    @property
    def width(self) -> float:
        """Width of the interval over its lower end."""
        return float(self.upper / self.lower - 1) if self.lower > 0 else inf

    def __repr__(self) -> str:
        return f"Proof({check.below(self.lower)} <= optimum <= {check.above(self.upper)})"


def prove(answer: Solution[Any, Any]) -> Proof:
    """Prove where the optimum lies, from the answer of any solver, in exact arithmetic.

    The noise becomes a strategy matrix with an inverse, the dual weights become their roots, with the polar factor of
    the matrix whose trace norm bounds the optimum. All are whole numbers times powers of two, and what they show is
    computed without any rounding (``dualmech.proofs.check`` has the two inequalities). So the interval holds whatever
    was lost on the way here; it owes nothing to the certificate.

    Parameters
    ----------
    answer : Solution
        Of `FitnessForUse`, `PrivacyFirst` or `TotalVariance` on geometry ``dense``.

    Raises
    ------
    InvalidInputError
        For another family or geometry, by name; for more cells and queries than whole numbers can follow.
    CertificateError
        Where noise or weights are too ill-conditioned to show anything.
    """
    if not isinstance(answer, Solution):
        raise InputTypeError(f"answer must be a Solution, got {type(answer).__name__}")
    problem = answer.problem
    stated = problem.in_numbers()
    _refuse_large(stated["workload"], stated["neighbours"])
    with np.errstate(all="ignore"):
        strategy = _strategy(problem, answer.primal)
        inverse = _inverse(strategy)
        document = {
            "schema": check.SCHEMA,
            "problem": _stated_texts(type(problem).__name__, stated),
            "upper": {"strategy": _texts(strategy), "inverse": inverse},
            "lower": _lower(answer.dual, stated),
        }
    try:
        lower, upper = check.shown(document)
    except Refused as error:
        raise CertificateError(f"the answer shows nothing in whole numbers: {error}") from error
    claimed = _float_below(lower), -_float_below(-upper)
    document["claim"] = {"lower": _text(claimed[0]), "upper": _text(claimed[1])}
    return Proof(Fraction(claimed[0]), Fraction(claimed[1]), document)


def verify(path: str | PathLike[str]) -> Proof:
    """Read a proof file and check it in exact arithmetic.

    Raises `FileFormatError` for a file that cannot be read, `CertificateError` where it shows less than it says, with
    the inequality that does not hold.

    Examples
    --------
    >>> import os, tempfile
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(2), targets=1.0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "proof.json")
    ...     dm.prove(answer).save(path)
    ...     checked = dm.verify(path)
    >>> checked.lower <= 4 / 3 <= checked.upper, checked.is_of(answer.problem)
    (True, True)
    """
    try:
        with files.reading.errors_naming(path):
            document = check.read(str(path))
        lower, upper = check.check(document)
    except Refused as error:
        raise CertificateError(f"{path}: {error}") from error
    return Proof(lower, upper, document)


def _stated_texts(family: str, stated: dict[str, Any]) -> dict[str, Any]:
    """Return what is asked as a proof file has it."""
    moves = stated["neighbours"]
    return {
        "family": family,
        "kind": stated["kind"],
        "workload": _texts(stated["workload"]),
        "neighbours": None if moves is None else _texts(moves),
        "numbers": _texts(stated["numbers"]),
        "allowed": _text(stated["allowed"]),
    }


def _refuse_large(workload: Array, neighbours: Array | None) -> None:
    """Refuse what takes too many multiplications of whole numbers, before any of them."""
    queries, cells = workload.shape
    pairs = cells if neighbours is None else neighbours.shape[1]
    least = min(queries, pairs)
    work = cells**3 + queries * cells**2 + queries * pairs * (least + (0 if neighbours is None else cells))
    if work > LARGEST:
        raise InvalidInputError(
            f"a proof in whole numbers of {queries} queries on {cells} cells takes {work:.1e} multiplications, more "
            f"than {LARGEST:.1e}; the certificate in floating point has no such limit"
        )


def _strategy(problem: Any, primal: Array) -> Array:
    """Return a square strategy A (d, d), upper triangular, whose unit noise is that of a covariance on B x.

    Where noise has no variance it gets a `FAINT` one; what B does not see is measured faintly beside it.
    """
    basis, covariance = problem.basis, np.asarray(primal)
    spread = np.sqrt(np.diagonal(covariance))
    spread = np.maximum(spread, FAINT * spread.max())
    if not (np.all(np.isfinite(covariance)) and spread.min() > 0):
        raise CertificateError("the answer shows nothing in whole numbers: its noise is no covariance")
    values, vectors = np.linalg.eigh(covariance / np.outer(spread, spread))
    weights = np.sqrt(np.maximum(values, FAINT * values[-1]))
    measured = (vectors / weights).T @ (basis / spread[:, None])
    moves = problem.dense.neighbours
    unseen = scipy.linalg.null_space(basis).T
    cost, side = (
        np.sqrt(np.square(_moved(rows, moves)).sum(axis=0).max(initial=0)) for rows in (measured, unseen)
    )
    rows = np.vstack([measured, SIDE * cost / (side or 1.0) * unseen])
    triangle: Array = scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: basis.shape[1]]
    return triangle


def _moved(rows: Array, neighbours: Any) -> Array:
    return rows if neighbours is None else linalg.to_dense(rows @ neighbours)


def _inverse(strategy: Array) -> list[list[str]]:
    """Return Z with ``A Z`` next to I: the inverse, improved by Newton's steps ``Z - Z (A Z - I)`` in whole numbers."""
    guess = scipy.linalg.solve_triangular(strategy, np.eye(len(strategy)), check_finite=False)
    if not (np.all(np.isfinite(guess)) and np.all(np.isfinite(strategy))):
        raise CertificateError("the answer shows nothing in whole numbers: its noise has no inverse")
    exact, inverse = _whole(strategy), _whole(guess)
    for _ in range(MOST_STEPS):
        error = check.departure(exact, inverse)
        if sum(error.squares()) <= CLOSE**2:
            break
        step = inverse.times(error)
        shift = inverse.exponent - step.exponent
        rows = [
            [_shortened((old << shift) - new) for old, new in zip(*pair, strict=True)]
            for pair in zip(inverse.rows, step.rows, strict=True)
        ]
        inverse = Matrix(rows, step.exponent)
    return [[_whole_text(entry, inverse.exponent) for entry in row] for row in inverse.rows]


def _shortened(whole: int) -> int:
    """Return a whole number with its first `INVERSE_BITS` bits."""
    dropped = max(whole.bit_length() - INVERSE_BITS, 0)
    return (whole >> dropped) << dropped


def _lower(dual: Any, stated: dict[str, Any]) -> dict[str, Any]:
    """Return roots of dual weights, and the polar factor of the matrix whose trace norm they bound the optimum by."""
    weighed = stated["kind"] == "weights"
    given = stated["numbers"] if weighed else np.asarray(dual.query_weights)
    p = np.array([_root_below(weight) if weighed else weight**0.5 for weight in given.tolist()])
    q = np.sqrt(np.asarray(dual.neighbour_weights))
    changes = p[:, None] * _moved(stated["workload"], stated["neighbours"]) * q
    left, _, right = linalg.svd(changes)
    return {"query_roots": _texts(p), "neighbour_roots": _texts(q), "isometry": _texts(left @ right)}


def _root_below(weight: float) -> float:
    """Return a number whose square is at most what is given, exactly."""
    root = weight**0.5
    while Fraction(root) ** 2 > Fraction(weight):
        root = nextafter(root, 0.0)
    return root


def _float_below(value: Fraction) -> float:
    """Return the largest double that is at most what is given."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else nextafter(nearest, -inf)


def _whole(matrix: Array) -> Matrix:
    pairs = [[entry.as_integer_ratio() for entry in row] for row in matrix.tolist()]
    longest = max(bottom for row in pairs for _, bottom in row)
    return Matrix(
        [[top * (longest // bottom) for top, bottom in row] for row in pairs], 1 - longest.bit_length()
    )


def _texts(numbers: Array) -> Any:
    return [_text(each) if np.ndim(each) == 0 else _texts(each) for each in numbers]


def _text(number: float) -> str:
    top, bottom = float(number).as_integer_ratio()
    return _whole_text(top, 1 - bottom.bit_length())


def _whole_text(whole: int, exponent: int) -> str:
    if whole and (zeros := (whole & -whole).bit_length() - 1):
        whole, exponent = whole >> zeros, exponent + zeros
    return f"{'-' if whole < 0 else ''}0x{abs(whole):x}p{exponent}"
