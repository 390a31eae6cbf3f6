"""Write proof files: exact data, derived from an answer, from which the checker computes both bounds."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from dualmech import linalg, validate
from dualmech.crosscheck.proofs import epochs, local, noise, tables
from dualmech.crosscheck.proofs.checker import check
from dualmech.crosscheck.proofs.checker.exact import Refused, Section, above, below
from dualmech.crosscheck.proofs.noise import ItemDual
from dualmech.crosscheck.proofs.texts import Parts, PrimalAndDual, float_above, float_below, written
from dualmech.display import Displayed
from dualmech.errors import CertificateError, InvalidInputError
from dualmech.files import atomic, reading
from dualmech.geometry.weights import FitnessDual, VarianceDual
from dualmech.problems.base import AnyProblem, OnGeometry, Problem
from dualmech.solution import require_solution
from dualmech.threads import blas_threads


class Witness(NamedTuple):
    refuse_large: Callable[[Any, Parts], None]
    """Refuse a problem whose proof needs too many multiplications to check."""
    find: Callable[[Any, Any, Any, Parts], PrimalAndDual]
    """Return the data that prove the upper and the lower bound."""


MATRIX = Witness(noise.refuse_large, noise.witness)
EPOCHS = Witness(epochs.refuse_large, epochs.witness)
TABLES = Witness(tables.refuse_large, tables.witness)


def refuse_large_product(problem: OnGeometry, statement: Parts) -> None:
    """Refuse a product if a factor needs too many multiplications to check."""
    for factor, factor_statement in zip(problem.factors, statement["factors"], strict=True):
        WITNESSES[factor_statement["kind"]].refuse_large(factor, factor_statement)


def product_witness(problem: OnGeometry, primal: Any, dual: ItemDual, statement: Parts) -> PrimalAndDual:
    """Return the data that prove the bounds of every factor."""
    parts = []
    for index, (factor, factor_statement) in enumerate(zip(problem.factors, statement["factors"], strict=True)):
        users = dual.neighbour_weights[index]
        weights = (
            FitnessDual(users, dual.query_weights[index]) if isinstance(dual, FitnessDual) else VarianceDual(users)
        )
        parts.append(WITNESSES[factor_statement["kind"]].find(factor, primal[index], weights, factor_statement))
    upper, lower = ([part[side] for part in parts] for side in (0, 1))
    return {"factors": upper}, {"factors": lower}


PRODUCT = Witness(refuse_large_product, product_witness)

WITNESSES: dict[str, Witness] = {
    "targets": MATRIX,
    "weights": MATRIX,
    "participation targets": EPOCHS,
    "participation weights": EPOCHS,
    "soft maxima": Witness(noise.refuse_large, noise.softmax_witness),
    "weighting": Witness(noise.refuse_large_weighting, noise.weighting_witness),
    "common": Witness(noise.refuse_large_common, noise.common_witness),
    "common volume": Witness(noise.refuse_large_volume, noise.common_witness),
    "reuse": Witness(noise.refuse_large_reuse, noise.reuse_witness),
    "local": Witness(local.refuse_large, local.witness),
    "projection": Witness(local.refuse_large_projection, local.projection_witness),
    "estimate": Witness(local.refuse_large_estimate, local.estimate_witness),
    "table targets": TABLES,
    "table weights": TABLES,
    "product targets": PRODUCT,
    "product weights": PRODUCT,
}
"""The witness of each kind of problem."""

GEOMETRIES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("targets", "weights"), ("dense", "stream")),
    **dict.fromkeys(("participation targets", "participation weights"), ("epochs",)),
    **dict.fromkeys(("table targets", "table weights"), ("blocks", "split")),
    **dict.fromkeys(("product targets", "product weights"), ("product",)),
}
"""For each kind of problem, the geometries on which it can be written in this form."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Proof(Displayed):
    """A proof that an optimum lies between two numbers, checked in exact arithmetic.

    The proof is about a problem, and does not depend on the geometry of the solver: `is_of` recognises the problem on
    any geometry.

    Attributes
    ----------
    lower, upper : Fraction
        The proven interval.
    document : dict
        The contents of the file: the problem, and the data that prove both bounds (for a matrix, a strategy with its
        inverse, and roots of dual weights with an isometry).

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
    document: Parts

    def save(self, path: str | PathLike[str]) -> None:
        """Write the proof as JSON; ``dualmech verify``, or the stand-alone checker, checks the file."""
        atomic.write_text(path, json.dumps(self.document, separators=(",", ":")) + "\n")

    def lines(self) -> list[str]:
        """Return the proven bounds as sentences, and for a problem with targets the privacy cost of the noise.

        The sentences depend only on the kind and the numbers of the problem, not on the declared family.
        """
        problem = Section(self.document["problem"])
        kind = problem.get("kind")
        allowed = problem.number("allowed") if kind in check.TARGET_KINDS + check.WEIGHT_KINDS else Fraction(1)
        at_one = kind == "weighting" or (kind in check.WEIGHT_KINDS and allowed == 1)
        unit = " at a sensitivity of 1" if at_one else ""
        lines = [f"Proven in exact arithmetic: {below(self.lower)} <= optimum{unit} <= {above(self.upper)}."]
        if kind in check.TARGET_KINDS:
            lower_rho, upper_rho = below(self.lower * allowed / 2), above(self.upper * allowed / 2)
            lines += [
                f"Gaussian noise with rho = {upper_rho} (zCDP) meets the targets; with less than {lower_rho} none does."
            ]
        return lines

    def _facts(self) -> dict[str, object]:
        return {"lower": below(self.lower), "upper": above(self.upper), "width": self.width}

    def is_of(self, problem: Problem) -> bool:
        """Return whether the proof is about this problem, with identical numbers, on any geometry."""
        validate.instance(Problem, problem=problem)
        statement = self.document["problem"]
        if statement.get("family") != _family(problem):
            return False
        return bool(statement == _stated(problem, str(statement["kind"])))

    @property
    def width(self) -> float:
        """Relative width ``upper / lower - 1``: 0 if the bounds are equal, else inf if ``lower`` is 0."""
        if self.lower == self.upper:
            return 0.0
        share = self.upper / self.lower - 1 if self.lower > 0 else 0
        return float(share) if 0 < share < sys.float_info.max else inf

    def __repr__(self) -> str:
        return f"Proof({below(self.lower)} <= optimum <= {above(self.upper)})"


def factor_of(proof: Proof, problem: AnyProblem, fixed: Any) -> float | None:
    """Return the factor by which the proven problem scales the numbers of a problem that are not `fixed` (a mask).

    Returns None if the proven problem differs in any other way. Relative differences of 4e-16 between the factors of
    the entries, due to rounding, are accepted, and the largest factor is returned.
    """
    statement = proof.document["problem"]
    restated = _stated(problem, str(statement["kind"]))
    if restated is None or {**restated, "numbers": None} != {**statement, "numbers": None}:
        return None
    numbers, other_numbers = (
        np.array([*map(float.fromhex, statement["numbers"])]) for statement in (restated, statement)
    )
    fixed = np.asarray(fixed, dtype=bool)
    if numbers.shape != other_numbers.shape or fixed.shape != numbers.shape:
        return None
    if np.any((numbers != other_numbers)[fixed]):
        return None
    ratios = (other_numbers / numbers)[~fixed]
    return float(ratios.max()) if np.ptp(ratios) <= 2 * linalg.EPS * ratios.max() else None


def provable(problem: Problem) -> Parts:
    """Return a problem as numbers; refuse one that has no exact proof, or is too large for one."""
    statement = _in_numbers(problem)
    WITNESSES[str(statement["kind"])].refuse_large(problem, statement)
    return statement


@blas_threads()
def prove(answer: Any) -> Proof:
    """Prove bounds on the optimum in exact arithmetic, from the answer of any solver.

    The noise is written as a strategy matrix with an inverse. The dual weights are written as their roots, with the
    polar factor of the matrix whose trace norm bounds the optimum. Each block, factor or attribute has its own
    matrices. All entries are integers times powers of two, and the bounds are computed without rounding; the
    inequalities are in ``crosscheck/proofs/checker``. So the bounds hold regardless of rounding errors in the solver,
    and do not depend on the certificate.

    Parameters
    ----------
    answer : Solution or Judgement
        An answer to any problem of the library, on any geometry; for tables, with add/remove neighbours.

    Raises
    ------
    InvalidInputError
        If the problem has no exact proof (such as tables with replaced records), or is too large for one.
    CertificateError
        If the noise or the weights are too ill-conditioned to prove a bound.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> proof = dm.prove(fast.solve(dm.FitnessForUse(dm.workloads.marginals([10] * 60, ways=1)), tol=1e-9))
    >>> round(float(proof.lower), 6), proof.width < 1e-9
    (50.004274, True)
    """
    solution = require_solution(answer)
    problem = solution.problem
    statement = provable(problem)
    dual = problem.as_dual(solution.dual)
    with np.errstate(all="ignore"), check.garbage_collection_paused():
        if remarks := problem.certify(solution.primal, dual).remarks:
            raise CertificateError(f"the answer proves no bound: {'; '.join(remarks)}")
        upper_part, lower_part = WITNESSES[str(statement["kind"])].find(problem, solution.primal, dual, statement)
    document = {
        "schema": check.SCHEMA,
        "problem": arguments_part(problem, statement),
        "upper": written(upper_part),
        "lower": written(lower_part),
    }
    try:
        lower, upper = check.proven_bounds(document)
    except Refused as error:
        raise CertificateError(f"the answer proves no bound in exact arithmetic: {error}") from error
    claimed = float_below(lower), float_above(upper)
    document["claim"] = {"lower": written(claimed[0]), "upper": written(claimed[1])}
    return Proof(Fraction(claimed[0]), Fraction(claimed[1]), document)


def verify(path: str | PathLike[str]) -> Proof:
    """Read a proof file and check it in exact arithmetic.

    Raises
    ------
    FileFormatError
        If the file cannot be read.
    CertificateError
        If the file does not prove its claim; the message names the inequality that does not hold.

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
        with reading.errors_naming(path):
            document = check.read(str(path))
        lower, upper = check.check(document)
    except Refused as error:
        raise CertificateError(f"{path}: {error}") from error
    return Proof(lower, upper, document)


def arguments_part(problem: Problem, statement: Parts) -> Parts:
    """Return the section of a proof file for a problem that is already written as numbers."""
    return {"family": _family(problem), **written(statement)}


def _in_numbers(problem: Problem) -> Parts:
    """Return a problem as numbers; refuse a subclass that replaces `certify` but inherits `in_numbers`."""
    families = type(problem).__mro__
    judge, form = (next(kind for kind in families if name in vars(kind)) for name in ("certify", "in_numbers"))
    if not issubclass(form, judge):
        raise InvalidInputError(
            f"no exact proof is known for a {judge.__name__}: it defines its own certify, but inherits in_numbers "
            f"from {form.__name__}"
        )
    return problem.in_numbers()


def _family(problem: Problem) -> str:
    """Return the name of the library's class of a problem, or of the library's class that a user's class extends."""
    names = [base.__name__ for base in type(problem).__mro__]
    return next((name for name in names if name in check.FAMILIES), names[0])


def _stated(problem: AnyProblem, kind: str) -> Parts | None:
    """Return the problem section for a kind, on a geometry with this form; None if no geometry supports the problem."""
    names = GEOMETRIES.get(kind)
    if names is None or problem.geometry.name in names:
        names = ("",)  # the current geometry
    for name in names:
        with contextlib.suppress(InvalidInputError):
            converted = problem.on_geometry(name) if name else problem
            return arguments_part(converted, _in_numbers(converted))
    return None
