"""From an answer to a proof file: numbers that show both bounds, whole ones, for the checker to compute them from."""

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
    """Refuse a problem of too many multiplications of whole numbers, before any of them."""
    find: Callable[[Any, Any, Any, Parts], PrimalAndDual]
    """Return the numbers that show the upper and those that show the lower bound."""


NOISE = Witness(noise.refuse_large, noise.witness)
EPOCHS = Witness(epochs.refuse_large, epochs.witness)
TABLES = Witness(tables.refuse_large, tables.witness)


def refuse_large_product(problem: OnGeometry, stated: Parts) -> None:
    """Refuse a factor that takes too many multiplications of whole numbers, before any of them."""
    for factor, stated_factor in zip(problem.factors, stated["factors"], strict=True):
        WITNESSES[stated_factor["kind"]].refuse_large(factor, stated_factor)


def product_witness(problem: OnGeometry, primal: Any, dual: ItemDual, stated: Parts) -> PrimalAndDual:
    """Return the numbers that show the bounds of every factor."""
    parts = []
    for index, (factor, stated_factor) in enumerate(zip(problem.factors, stated["factors"], strict=True)):
        users = dual.neighbour_weights[index]
        weights = (
            FitnessDual(users, dual.query_weights[index]) if isinstance(dual, FitnessDual) else VarianceDual(users)
        )
        parts.append(WITNESSES[stated_factor["kind"]].find(factor, primal[index], weights, stated_factor))
    upper, lower = ([part[side] for part in parts] for side in (0, 1))
    return {"factors": upper}, {"factors": lower}


PRODUCT = Witness(refuse_large_product, product_witness)

WITNESSES: dict[str, Witness] = {
    "targets": NOISE,
    "weights": NOISE,
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
"""By kind of problem."""

GEOMETRIES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("targets", "weights"), ("dense", "stream")),
    **dict.fromkeys(("participation targets", "participation weights"), ("epochs",)),
    **dict.fromkeys(("table targets", "table weights"), ("blocks", "split")),
    **dict.fromkeys(("product targets", "product weights"), ("product",)),
}
"""By kind of problem, the geometries that state it so."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Proof(Displayed):
    """A proof that an optimum lies between two numbers, checked in exact arithmetic.

    It is of a problem, not of the geometry that this was solved on: `is_of` knows the problem on any other.

    Attributes
    ----------
    lower, upper : Fraction
        The proven interval.
    document : dict
        The contents of the file: the problem, and the numbers that show both bounds; on a matrix a strategy with its
        inverse, and roots of weights with an isometry.

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
        """Write the proof as JSON; ``dualmech verify``, or the checker by itself, checks the file."""
        atomic.write_text(path, json.dumps(self.document, separators=(",", ":")) + "\n")

    def lines(self) -> list[str]:
        """Return what it shows, and of a problem of targets how private its noise is.

        All of it follows from the kind of the problem and from its numbers: of the family a file could say anything.
        """
        problem = Section(self.document["problem"])
        kind = problem.get("kind")
        allowed = problem.number("allowed") if kind in check.TARGET_KINDS + check.WEIGHT_KINDS else Fraction(1)
        at_one = kind == "weighting" or (kind in check.WEIGHT_KINDS and allowed == 1)
        unit = " at a sensitivity of 1" if at_one else ""
        lines = [f"Proven in whole numbers: {below(self.lower)} <= optimum{unit} <= {above(self.upper)}."]
        if kind in check.TARGET_KINDS:
            least, enough = below(self.lower * allowed / 2), above(self.upper * allowed / 2)
            lines += [f"Gaussian noise of rho = {enough} (zCDP) meets the targets, and none of less than {least} does."]
        return lines

    def _facts(self) -> dict[str, object]:
        return {"lower": below(self.lower), "upper": above(self.upper), "width": self.width}

    def is_of(self, problem: Problem) -> bool:
        """Whether it proves the optimum of this very problem, every number of it the same, on whatever geometry."""
        validate.instance(Problem, problem=problem)
        stated = self.document["problem"]
        if stated.get("family") != _family(problem):
            return False
        return bool(stated == _stated(problem, str(stated["kind"])))

    @property
    def width(self) -> float:
        """Width of the interval over its lower end; infinite where that is 0, unless both are."""
        if self.lower == self.upper:
            return 0.0
        share = self.upper / self.lower - 1 if self.lower > 0 else 0
        return float(share) if 0 < share < sys.float_info.max else inf

    def __repr__(self) -> str:
        return f"Proof({below(self.lower)} <= optimum <= {above(self.upper)})"


def factor_of(proof: Proof, problem: AnyProblem, held: Any) -> float | None:
    """Return the factor on the problem's numbers that are not `held`, an entry each, in the proven problem.

    None where that is another problem, however its numbers are multiplied. Differences of 4e-16 between factors,
    relative, which rounding leaves, are overlooked, and the largest is returned.
    """
    stated = proof.document["problem"]
    restated = _stated(problem, str(stated["kind"]))
    if restated is None or {**restated, "numbers": None} != {**stated, "numbers": None}:
        return None
    numbers, other_numbers = (np.array([*map(float.fromhex, statement["numbers"])]) for statement in (restated, stated))
    held = np.asarray(held, dtype=bool)
    if numbers.shape != other_numbers.shape or held.shape != numbers.shape or np.any((numbers != other_numbers)[held]):
        return None
    ratios = (other_numbers / numbers)[~held]
    return float(ratios.max()) if np.ptp(ratios) <= 2 * linalg.EPS * ratios.max() else None


def provable(problem: Problem) -> Parts:
    """Return a problem in numbers alone; refused where no proof is known, or it is too large for one."""
    stated = _in_numbers(problem)
    WITNESSES[str(stated["kind"])].refuse_large(problem, stated)
    return stated


@blas_threads()
def prove(answer: Any) -> Proof:
    """Prove where the optimum lies, from the answer of any solver, in exact arithmetic.

    The noise becomes a strategy matrix with an inverse, the dual weights become their roots, with the polar factor of
    the matrix whose trace norm bounds the optimum; each block, factor or attribute has its own. All are whole
    numbers times powers of two, and their bounds are computed without any rounding: the inequalities are in
    ``crosscheck/proofs/checker``. So the interval holds whatever was lost on the way here; it owes nothing to the
    certificate.

    Parameters
    ----------
    answer : Solution or Judgement
        To any of the library's problems, on any geometry; for tables, under records added or removed.

    Raises
    ------
    InvalidInputError
        For a problem without a proof, such as replaced records of tables, by name; for one too large for whole numbers.
    CertificateError
        Where noise or weights are too ill-conditioned to show anything.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> proof = dm.prove(fast.solve(dm.FitnessForUse(dm.workloads.marginals([10] * 60, ways=1)), tol=1e-9))
    >>> round(float(proof.lower), 6), proof.width < 1e-9
    (50.004274, True)
    """
    held = require_solution(answer)
    problem = held.problem
    stated = provable(problem)
    dual = problem.as_dual(held.dual)
    with np.errstate(all="ignore"), check.garbage_collection_paused():
        if remarks := problem.certify(held.primal, dual).remarks:
            raise CertificateError(f"the answer shows nothing: {'; '.join(remarks)}")
        upper_part, lower_part = WITNESSES[str(stated["kind"])].find(problem, held.primal, dual, stated)
    document = {
        "schema": check.SCHEMA,
        "problem": arguments_part(problem, stated),
        "upper": written(upper_part),
        "lower": written(lower_part),
    }
    try:
        lower, upper = check.proven_bounds(document)
    except Refused as error:
        raise CertificateError(f"the answer shows nothing in whole numbers: {error}") from error
    claimed = float_below(lower), float_above(upper)
    document["claim"] = {"lower": written(claimed[0]), "upper": written(claimed[1])}
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
        with reading.errors_naming(path):
            document = check.read(str(path))
        lower, upper = check.check(document)
    except Refused as error:
        raise CertificateError(f"{path}: {error}") from error
    return Proof(lower, upper, document)


def arguments_part(problem: Problem, stated: Parts) -> Parts:
    """Return the problem, in numbers already, as a proof file has it."""
    return {"family": _family(problem), **written(stated)}


def _in_numbers(problem: Problem) -> Parts:
    """Return a problem in numbers alone; refuse the form of another family, whose judge the problem has replaced."""
    families = type(problem).__mro__
    judge, form = (next(kind for kind in families if name in vars(kind)) for name in ("certify", "in_numbers"))
    if not issubclass(form, judge):
        raise InvalidInputError(
            f"no proof in whole numbers is known of a {judge.__name__}: its judge is its own, in_numbers is that of a "
            f"{form.__name__}"
        )
    return problem.in_numbers()


def _family(problem: Problem) -> str:
    """Return the name of the library's own class that a problem is of, which one of a user's may extend."""
    names = [base.__name__ for base in type(problem).__mro__]
    return next((name for name in names if name in check.FAMILIES), names[0])


def _stated(problem: AnyProblem, kind: str) -> Parts | None:
    """Return the problem as a file of a kind has it, on a geometry that states it so; None where none holds it."""
    names = GEOMETRIES.get(kind)
    if names is None or problem.geometry.name in names:
        names = ("",)  # where it stands
    for name in names:
        with contextlib.suppress(InvalidInputError):
            same = problem.on_geometry(name) if name else problem
            return arguments_part(same, _in_numbers(same))
    return None
