"""The command ``explain``: the program, its dual, the optimal weights, the prices and the proof in words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from rich.console import Console
from rich.markup import escape

from dualmech import accounting, fast, files, reference
from dualmech.command import inputs
from dualmech.command.answers import describe_plan
from dualmech.command.options import UsageError
from dualmech.command.request import LOCAL, Request
from dualmech.crosscheck.families import FAMILIES, Family, family_of
from dualmech.crosscheck.optima import finding, rationals
from dualmech.crosscheck.optima.rationals import ExactOptimum
from dualmech.crosscheck.optima.surds import MAX_DENOMINATOR, Number, Surd, latex, radicals_of, simplest_between
from dualmech.crosscheck.printing import Terms, free_lines, interval_text, neighbours_lines
from dualmech.crosscheck.proofs.prove import prove
from dualmech.errors import DualmechError, InvalidInputError
from dualmech.files.atomic import atomic_write
from dualmech.mechanisms.privacy import SHOWN_DELTA
from dualmech.neighbours import Relation
from dualmech.problems.base import AnyProblem, Problem
from dualmech.problems.common import CommonMechanism
from dualmech.problems.fitness import PrivacyFirst
from dualmech.problems.local.estimate import NonnegativeEstimate
from dualmech.problems.local.projection import LocalProjection
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.problems.variance import TotalVariance
from dualmech.publishing.specification import Specification
from dualmech.reference.formulas.writing import (
    Aligned,
    Entries,
    Formula,
    Part,
    Section,
    Symbol,
    Words,
    dual_section,
    entries,
    in_line,
    latex_document,
    literal,
    number,
    program_section,
    proof_part,
    terminal_lines,
)
from dualmech.solution import Solution
from dualmech.validate import Array
from dualmech.watching import passing, without_warnings
from dualmech.workloads.base import Workload

DEFAULT_TOL = 1e-6  # gap to prove

MAX_ENTRIES = 2**22
"""Maximum size of a workload, queries times cells, in problems about single queries."""

MAX_EXACT_ENTRIES = 400  # of a workload whose optimum is enclosed in exact arithmetic


def refuse_large(workload: Workload, by_table: bool) -> None:
    """Raise `InvalidInputError` for a workload of more than `MAX_ENTRIES` entries that is needed as a matrix."""
    factors = getattr(workload, "factors", None) if by_table else None
    for factor in factors or (workload,):
        queries, cells = factor.shape
        if queries * cells > MAX_ENTRIES and not (by_table and factor.tabular() is not None):
            raise InvalidInputError(
                f"workload must have at most {MAX_ENTRIES} entries to be explained, got {queries} queries x {cells} "
                f"cells; `dualmech solve` solves it, and --prove writes a proof that a machine can check"
            )


def refuse_large_problem(problem: object) -> None:
    workload = getattr(problem, "workload", None)
    if isinstance(workload, Workload):
        by_table = getattr(getattr(problem, "geometry", None), "name", "dense") not in ("dense", "epochs", "stream")
        refuse_large(workload, by_table)


def solved(problem: AnyProblem, tol: float = DEFAULT_TOL) -> Solution:
    with without_warnings(), passing("solving") as line:
        return fast.solve(problem, tol=tol, callback=line)


def reference_answer(
    problem: AnyProblem, answer: Solution | None, formulation: str | None, tol: float | None = None
) -> tuple[Solution, Formula]:
    """Return the answer, by the reference layer if it is None, and the formula of a formulation's program."""
    with without_warnings(), passing("loading CVXPY") as line:
        from dualmech.reference import solving as reference_solving

        formula = reference_solving.formula(problem, formulation)
        options: dict[str, Any] = {} if formulation is None else {"formulation": formulation}
        if answer is None:
            line.say(reference_solving.program_name(problem, **options))
            answer = reference.solve(problem, tol=tol, **options)
    return answer, formula


def show_plan(out: Console, answer: Solution) -> None:
    """Print the privacy cost and the accuracy of the release of a plan."""
    if "specification" in answer.metadata:
        out.print("[bold]The plan.[/]")
        describe_plan(out, answer, Terms(accounting.CENSUS_Z, SHOWN_DELTA, 1.0))


def write_latex(page: list[Section], path: str) -> None:
    """Write sections as a LaTeX document to a file, or print it if the path is ``-``."""
    document = latex_document(page)
    if path == "-":
        print(document, end="")
        return
    with atomic_write(path) as file:
        file.write(document.encode("utf-8"))
    print(f"{path}: written")


def show(out: Console, page: list[Section]) -> None:
    for section in page:
        title, *lines = terminal_lines(section)
        out.print(f"[bold]{escape(title)}[/]")
        for line in lines:
            out.print(line, markup=False)


def sections(answer: Solution, other_formula: Formula | None = None) -> list[Section]:
    """Return the sections of the explanation of an answer, with the program of `other_formula` if it is given.

    Raises `InvalidInputError` for a problem that is too large.
    """
    refuse_large_problem(answer.problem)
    exact = None
    if rationals.worth_trying(answer.problem):
        with without_warnings(), passing("looking for a proof in fractions and square roots"):
            answer, exact = _with_exact_proof(answer, any_basis=other_formula is None)
    interval = None if exact is not None else _exact_interval(answer)
    from dualmech.reference.solving import formula_of

    return page(answer, formula_of(answer.problem), exact, interval, other_formula)


def _with_exact_proof(answer: Solution, any_basis: bool) -> tuple[Solution, ExactOptimum | None]:
    """Return the answer and an exact proof; with `any_basis`, possibly of the same problem on the basis of its rows."""
    exact = finding.proven(fast.solve(answer.problem, tol=finding.START_TOL, start=answer))
    if exact is None and any_basis and (equivalent := rationals.on_own_rows(answer.problem)) is not None:
        accurate = fast.solve(equivalent, tol=finding.START_TOL)
        exact = finding.proven(accurate)
        answer = answer if exact is None else accurate
    return answer, exact


def _exact_interval(answer: Solution) -> tuple[Fraction, Fraction] | None:
    workload = getattr(answer.problem, "workload", None)
    if isinstance(workload, Workload) and workload.shape[0] * workload.shape[1] > MAX_EXACT_ENTRIES:
        return None
    try:
        with passing("proving in whole numbers"):
            proof = prove(answer)
    except DualmechError:
        return None
    return Fraction(proof.lower), Fraction(proof.upper)


# The options of ``explain``, which also accepts problems of the library that other commands do not.


@dataclass(frozen=True, slots=True)
class AnyRequest(Request):
    """The options of ``explain``. For ``common``, the workload and `more_files` are files of mechanisms.

    Raises `UsageError` for options that exclude each other, need each other, or belong to another problem.
    """

    more_files: tuple[str, ...] = ()
    criterion: str | None = None
    prior: str | None = None
    answers: str | None = None
    total: float | None = None

    families: ClassVar[tuple[Family, ...]] = FAMILIES

    def __post_init__(self) -> None:
        Request.__post_init__(self)
        if self.problem in ("variance", "weighting") and (self.rho is not None or self.epsilon is not None):
            raise UsageError("--rho and --epsilon belong to solve; explain takes a squared privacy cost of 1")
        if self.problem in ("common", "local", "projection", "estimate") and self.neighbours is not None:
            raise UsageError(f"--neighbours belongs to problems about Gaussian noise, not to {self.problem}")
        if self.problem in LOCAL and self.delta is not None:
            raise UsageError(f"--delta does not belong to --problem {self.problem}: local privacy is pure")
        if self.problem != "common" and self.more_files:
            raise UsageError("give one WORKLOAD; several files are for --problem common")

    def state(self, geometry: str | None = None) -> AnyProblem:
        """Read the files and return the problem; refuse one that is too large to explain."""
        if self.problem == "common":
            mechanisms = [inputs.mechanism_in(path) for path in (str(self.workload), *self.more_files)]
            return CommonMechanism(mechanisms, criterion="trace" if self.criterion is None else self.criterion)
        if self.problem == "projection":
            return LocalProjection(files.read_matrix(str(self.workload), "matrix"), self._needed("epsilon"))
        if self.problem == "local":
            epsilon = self._needed("epsilon")
            prior = None if self.prior is None else files.read_vector(self.prior, "prior")
            criterion = "average" if self.criterion is None else self.criterion
            return LocalStrategy(self._small_workload(), epsilon, criterion, prior=prior)
        if self.problem == "estimate":
            answers = files.read_vector(self._needed("answers"), "answers")
            return NonnegativeEstimate(self._small_workload(), answers, self.total)
        request = self.specified()
        workload = request._small_workload()
        if self.problem == "reuse":
            return self._reuse()
        options = {field.name: getattr(request, field.name) for field in fields(Request)}
        if not isinstance(request.workload, Specification):
            options["workload"] = workload
        return Request(**options).state(geometry)

    @property
    def takes_budget(self) -> bool:
        """Whether a budget can be set: problems other than fitness for use are explained at a squared cost of 1."""
        return self.problem == "fitness"

    def _small_workload(self) -> Workload:
        workload = self._read()
        by_rule = isinstance(self._neighbours(), Relation)
        by_table = self.problem in ("fitness", "variance") and self.geometry != "dense" and by_rule
        refuse_large(workload, by_table)
        return workload

    def _needed(self, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            raise UsageError(f"--problem {self.problem} needs --{name}")
        return value


# The sections of the page.


MAX_LISTED = 12  # weights in a list
ZERO_TOL = 1e-14  # entries up to this, relative to the largest, are printed as 0
MAX_PRINTED_SIZE = 6  # rows or columns of a matrix
MAX_SIMPLE = 1000  # numerator and denominator of a fraction that is printed as the optimum


def page(
    answer: Solution,
    formula: Formula,
    exact: ExactOptimum | None,
    interval: tuple[Fraction, Fraction] | None = None,
    other_formula: Formula | None = None,
) -> list[Section]:
    """Return the sections of an answer.

    Parameters
    ----------
    exact : ExactOptimum, optional
        The optimum in fractions and square roots.
    interval : two fractions, optional
        Bounds on the optimum, proven in exact arithmetic.
    other_formula : Formula, optional
        The formula with another form of the program.
    """
    sizes = answer.problem.headline.partition(" ")[2]
    title = f"The program: least {answer.problem.objective_name}"
    program = program_section(f"{title}{f' ({sizes})' if sizes else ''}.", other_formula or formula)
    lines = tuple(Words(literal(line)) for line in neighbours_lines(answer.problem))
    exact_lines = tuple(Words(literal(line)) for line in free_lines(getattr(answer.problem, "geometry", None)))
    return [
        replace(program, parts=(*program.parts, *lines, *exact_lines)),
        dual_section(formula),
        _weights(answer, formula, exact),
        _prices(answer, exact),
        _floating_proof(answer, formula, interval) if exact is None else _blackboard_proof(answer, exact),
    ]


def _weights(answer: Solution, formula: Formula, exact: ExactOptimum | None) -> Section:
    exact_weights: dict[str, object] = {}
    if exact is not None:
        exact_weights = {"neighbour_weights": [*exact.neighbour_weights], "query_weights": [*exact.query_weights]}
    parts: list[Part] = []
    for symbol in formula.weights:
        weights = getattr(answer.dual, symbol.part, None) if symbol.part else None
        parts += _values(symbol, exact_weights.get(symbol.part, weights))
    for symbol in formula.sought:
        value = answer.primal if symbol.part == "itself" else getattr(answer.primal, symbol.part or "-", None)
        parts += _values(symbol, value if exact is None else [*exact.covariance])
    note = Words("They are not printed: they are large matrices, or belong to the factors of a product.")
    return Section("The optimal weights.", tuple(parts) or (note,))


def _values(symbol: Symbol, values: Any) -> list[Part]:
    if not symbol.part or not isinstance(values, np.ndarray | list):
        return []
    if np.ndim(values) == 1:
        return [Words(f"${symbol.name} =$ {_listing(values)}")]
    if np.ndim(values) == 3:  # one matrix for each item i
        names = [re.sub("_[ip]$", f"_{{{i}}}", symbol.name) for i in range(len(values[:MAX_LISTED]))]
        matrices = zip(names, values[:MAX_LISTED], strict=True)
        return [part for name, matrix in matrices for part in _values(replace(symbol, name=name), matrix)]
    if np.ndim(values) == 2 and 0 < max(np.shape(values)) <= MAX_PRINTED_SIZE:
        if isinstance(values, np.ndarray):
            return [Entries(symbol.name, entries(_without_rounding(values)))]
        return [Entries(symbol.name, tuple(tuple(map(latex, row)) for row in values))]
    return []


def _listing(values: Array | Sequence[Number]) -> str:
    if isinstance(values, np.ndarray):
        values = _without_rounding(values)
    numbers = [_number(value) for value in values[:MAX_LISTED]]
    if len(values) <= MAX_LISTED:
        return in_line(numbers)
    positive = sum(1 for value in values if value > 0)
    return f"{in_line(numbers)[:-1]}, …; {len(values)} in all, {positive} positive)"


def _without_rounding(values: Array) -> Array:
    """Return the values, with 0 for values of the size of rounding errors."""
    return np.where(np.abs(values) > ZERO_TOL * np.abs(values).max(initial=0.0), values, 0.0)


def _number(value: float | Number) -> str:
    return latex(value) if isinstance(value, Fraction | Surd) else number(float(value))


def _prices(answer: Solution, exact: ExactOptimum | None) -> Section:
    try:
        prices = answer.prices
    except DualmechError as error:
        return Section("No prices.", (Words(f"{literal(str(error))}."),))
    problem = answer.problem
    targets = hasattr(problem, "targets") and family_of(problem).name == "fitness"
    title = "The prices: shares of the bill, the largest first."
    if targets:
        title = "The prices: loosening a target by 1 % lowers the optimum by about its price in percent."
    if hasattr(problem, "user_types"):
        title = "The prices: shares of user types in the bound, y divided by its sum, with 0 for negative entries."
    order = np.argsort(-prices, kind="stable")[:MAX_LISTED]
    parts = [Words(f"{_name(problem, len(prices), j)}: {_price(prices, j, answer, exact)}") for j in order]
    if len(prices) > MAX_LISTED:
        remainder = 100 * max(1 - prices[order].sum(), 0.0)
        parts.append(Words(f"… and {len(prices) - MAX_LISTED} more, together {remainder:.3g} %"))
    return Section(title, (*parts, *_phase_prices(answer)))


def _phase_prices(answer: Solution) -> list[Words]:
    geometry: Any = getattr(answer.problem, "geometry", None)
    if not hasattr(geometry, "phase_prices"):
        return []
    prices = answer.phase_prices
    totals = prices.sum(axis=1)
    order = np.argsort(-totals, kind="stable")[:MAX_LISTED]
    parts = [Words("Phases and their steps: contributions larger by 1 % raise the bound by about twice their price.")]
    for phase in order:
        steps = prices[phase][geometry.phases[phase] >= 0]
        text = ", ".join(f"{100 * price:.4g} %" for price in steps[:MAX_LISTED]) + (
            ", …" if len(steps) > MAX_LISTED else ""
        )
        parts.append(Words(f"{geometry.phase_words(phase)}: {100 * totals[phase]:.4g} % ({text})"))
    if len(prices) > MAX_LISTED:
        remainder = 100 * max(1 - totals[order].sum(), 0.0)
        parts.append(Words(f"… and {len(prices) - MAX_LISTED} more, together {remainder:.3g} %"))
    return parts


def _price(prices: Array, j: int, answer: Solution, exact: ExactOptimum | None) -> str:
    if exact is None or isinstance(answer.problem, TotalVariance):
        return f"{100 * prices[j]:.4g} %"
    target = Fraction(float(answer.problem.targets[j])).limit_denominator(MAX_DENOMINATOR)
    return f"${latex(exact.query_weights[j] * target)}$"


def _name(problem: Problem, count: int, j: int) -> str:
    if hasattr(problem, "user_types"):
        return f"user type {j}"
    if hasattr(problem, "mechanisms"):
        return f"mechanism {j}"
    workload = getattr(problem, "workload", None)
    names = None if workload is None else inputs.labels(workload)
    if names and len(names) == count:
        return literal(names[j])
    if workload is not None and family_of(problem).name != "weighting" and workload.shape[0] == count:
        return literal(workload.names[j])
    return f"design query {j}" if family_of(problem).name == "weighting" else str(j)


def _floating_proof(answer: Solution, formula: Formula, interval: tuple[Fraction, Fraction] | None) -> Section:
    certificate, measure = answer.certificate, answer.problem.objective_name
    upper = (
        f"Upper bound: the answer meets every constraint, and its objective ({measure}) is "
        f"{certificate.objective:.12g}, recomputed from the problem's data."
        if certificate.feasible
        else f"No upper bound: the answer exceeds a constraint by {100 * certificate.violation:.3g} %."
    )
    parts: list[Part] = [
        Words(upper),
        Words(
            f"Lower bound: at these weights the dual is {certificate.lower_bound:.12g}, and no answer is below, since"
        ),
        proof_part(formula.proof),
    ]
    if interval is None:
        parts.append(Words(f"So the optimum lies in {interval_text(certificate.interval)}."))
    else:
        words = where_it_lies(*interval, Fraction(answer.tol))
        parts.append(Words(f"So the optimum {words}: proven in exact arithmetic."))
    return Section("The proof.", tuple(parts))


def where_it_lies(low: Fraction, high: Fraction, tol: Fraction) -> str:
    """Return bounds on a number in words, with as few digits as relative width `tol` allows.

    >>> where_it_lies(Fraction(2) - Fraction(1, 10**15), Fraction(2), Fraction(1, 10**6))
    'is $2$ to within $1e-15$'
    >>> where_it_lies(Fraction("0.12345678"), Fraction("0.12345679"), Fraction(1, 10**6))
    'lies between $0.12345678$ and $0.12345679$'
    """
    if low == high:
        return f"is exactly ${low}$"
    simplest, width = simplest_between(low, high), high - low
    chance = width * simplest.denominator**2  # approximate probability that the interval contains so simple a fraction
    if max(abs(simplest.numerator), simplest.denominator) <= MAX_SIMPLE and chance <= 1 / MAX_SIMPLE:
        return f"is ${simplest}$ to within ${_rounded_up(max(high - simplest, simplest - low))}$"
    unit = max(width, (tol * abs(low) - width) / 2) / 4
    digits = -math.floor(math.log10(unit))
    shift = Fraction(10) ** digits
    first, last = (
        format(Decimal(end).scaleb(-digits), "f") for end in (math.floor(low * shift), math.ceil(high * shift))
    )
    return f"lies between ${first}$ and ${last}$"


def _rounded_up(value: Fraction) -> str:
    """Return a number rounded up to one digit."""
    power = math.floor(math.log10(value))
    return number(math.ceil(value / Fraction(10) ** power) * 10.0**power)


def _blackboard_proof(answer: Solution, exact: ExactOptimum) -> Section:
    problem, best, scale = answer.problem, latex(exact.optimum), latex(exact.scale)
    rooted = bool(radicals_of([exact.optimum, exact.scale, *exact.neighbour_weights, *exact.query_weights]))
    variance, first = isinstance(problem, TotalVariance), isinstance(problem, PrivacyFirst)
    sought = "the total variance" if variance else r"$\kappa$" if first else r"$\alpha$"
    weights = "w" if variance else r"\mu"
    definitions = Aligned(
        (
            ("", r"P = B U \operatorname{diag}(\lambda) U^{\top} B^{\top}", ""),
            ("", rf"Q = L^{{\top}} \operatorname{{diag}}({weights}) L", ""),
            ("", rf"\Sigma Q \Sigma = ({scale}) P", "for the noise above"),
            ("", rf"\operatorname{{tr}}(Q \Sigma) = {best if variance or first else 1}", ""),
        )
    )
    approximation = f", about {float(exact.optimum):.12g}" if rooted else ""
    measure = problem.objective_name
    closing = (
        f"So {sought} is at least ${best}$: both sides meet, and the {measure} is exactly ${best}${approximation}."
    )
    return Section(
        "The proof, in exact fractions and square roots." if rooted else "The proof, in exact fractions.",
        (
            Words(f"Upper bound: {_attained(variance, first, best)} So {sought} is at most ${best}$."),
            Words("Lower bound: let"),
            definitions,
            Words("For any covariance $S$ that meets the constraints"),
            _weak_duality(variance, first, scale),
            Words(closing),
        ),
    )


def _attained(variance: bool, first: bool, best: str) -> str:
    dearest = r"$(B u_i)^{\top} \Sigma^{-1} (B u_i)$"
    return {
        (True, False): f"{dearest} is at most 1, and the total variance is ${best}$.",
        (False, True): rf"{dearest} is at most $\gamma$, and no variance exceeds ${best}$ times its target.",
        (False, False): rf"$\Sigma$ meets every target, and {dearest} is at most ${best}$.",
    }[variance, first]


def _weak_duality(variance: bool, first: bool, scale: str) -> Aligned:
    cost = "1" if variance else r"\gamma" if first else r"\alpha"
    objective = r"\operatorname{tr}(Q \Sigma)" if variance else r"\kappa" if first else "1"
    product = rf"\operatorname{{tr}}(Q \Sigma)^2 / ({scale})"
    reason = r"the total variance is $\operatorname{tr}(Q S)$" if variance else r"since $\sum_j \mu_j c_j = 1$"
    return Aligned(
        (
            ("", rf"{cost} \ge \operatorname{{tr}}(P S^{{-1}})", r"since $\sum_i \lambda_i = 1$"),
            *(() if variance else (("", rf"{objective} \ge \operatorname{{tr}}(Q S)", reason),)),
            (
                "",
                rf"\operatorname{{tr}}(P S^{{-1}}) \operatorname{{tr}}(Q S) \ge {product}",
                r"the product is least where $S Q S$ is a multiple of P, as at $\Sigma$",
            ),
        )
    )
