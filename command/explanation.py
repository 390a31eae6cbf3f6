"""The program, its dual, the optimal weights, the prices and the proof, in words: on a terminal, or in LaTeX."""

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
from dualmech.crosscheck.optima.surds import LARGEST_DENOMINATOR, Number, Surd, latex, radicals_of, simplest_between
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

TOLERANCE = 1e-6
"""Gap that is proven where no other is asked for."""

MOST_ENTRIES = 2**22
"""Entries of a workload, queries times cells, up to which a problem about each of its queries is explained."""

IN_WHOLE_NUMBERS = 400  # entries of a workload up to which an interval in fractions is proven


def refuse_large(workload: Workload, by_table: bool) -> None:
    """Refuse what nobody would read: more queries times cells than `MOST_ENTRIES`, where each is looked at by itself.

    Raises `InvalidInputError`, before anything of that size is made.
    """
    factors = getattr(workload, "factors", None) if by_table else None
    for factor in factors or (workload,):
        queries, cells = factor.shape
        if queries * cells > MOST_ENTRIES and not (by_table and factor.tabular() is not None):
            raise InvalidInputError(
                f"workload must have at most {MOST_ENTRIES} entries to be explained, got {queries} queries x {cells} "
                f"cells; `dualmech solve` solves it, and --prove writes a proof that a machine can check"
            )


def refuse_large_problem(problem: object) -> None:
    workload = getattr(problem, "workload", None)
    if isinstance(workload, Workload):
        by_table = getattr(getattr(problem, "geometry", None), "name", "dense") not in ("dense", "epochs", "stream")
        refuse_large(workload, by_table)


def solved(problem: AnyProblem, tol: float = TOLERANCE) -> Solution:
    """Return the fast layer's answer."""
    with without_warnings(), passing("solving") as line:
        return fast.solve(problem, tol=tol, callback=line)


def stated_and_solved(
    problem: AnyProblem, answer: Solution | None, formulation: str | None, tol: float | None = None
) -> tuple[Solution, Formula]:
    """Return the answer of the reference layer, or one that is known, and the program of a formulation."""
    with without_warnings(), passing("loading CVXPY") as line:
        from dualmech.reference import solving as reference_solving

        stated = reference_solving.formula(problem, formulation)
        chosen: dict[str, Any] = {} if formulation is None else {"formulation": formulation}
        if answer is None:
            line.say(reference_solving.program_name(problem, **chosen))
            answer = reference.solve(problem, tol=tol, **chosen)
    return answer, stated


def show_plan(out: Console, answer: Solution) -> None:
    """Print what the release of a plan costs, and how accurate it is."""
    if "specification" in answer.metadata:
        out.print("[bold]The plan.[/]")
        describe_plan(out, answer, Terms(accounting.CENSUS_Z, SHOWN_DELTA, 1.0))


def write_latex(explained: list[Section], path: str) -> None:
    """Write sections as a LaTeX document into a file, or print it where the path is a dash."""
    document = latex_document(explained)
    if path == "-":
        print(document, end="")
        return
    with atomic_write(path) as file:
        file.write(document.encode("utf-8"))
    print(f"{path}: written")


def show(out: Console, explained: list[Section]) -> None:
    for section in explained:
        title, *lines = terminal_lines(section)
        out.print(f"[bold]{escape(title)}[/]")
        for line in lines:
            out.print(line, markup=False)


def sections(answer: Solution, stated: Formula | None = None) -> list[Section]:
    """Return what is said of an answer; `stated` is its statement with another form of the program.

    Raises `InvalidInputError` for a problem that is too large.
    """
    refuse_large_problem(answer.problem)
    exact = None
    if rationals.worth_trying(answer.problem):
        with without_warnings(), passing("looking for a proof in fractions and square roots"):
            answer, exact = _exactly(answer, anywhere=stated is None)
    whole = None if exact is not None else _interval_in_whole_numbers(answer)
    from dualmech.reference.solving import formula_of

    return page(answer, formula_of(answer.problem), exact, whole, stated)


def _exactly(answer: Solution, anywhere: bool) -> tuple[Solution, ExactOptimum | None]:
    """Return an exact proof, and the answer to the problem that it is of: the same `anywhere`, or on its own basis."""
    exact = finding.proven(fast.solve(answer.problem, tol=finding.CLOSE_ENOUGH, start=answer))
    if exact is None and anywhere and (same := rationals.on_own_rows(answer.problem)) is not None:
        sharp = fast.solve(same, tol=finding.CLOSE_ENOUGH)
        exact = finding.proven(sharp)
        answer = answer if exact is None else sharp
    return answer, exact


def _interval_in_whole_numbers(answer: Solution) -> tuple[Fraction, Fraction] | None:
    """Return fractions between which the optimum is proven to lie in whole numbers, None where it is not."""
    workload = getattr(answer.problem, "workload", None)
    if isinstance(workload, Workload) and workload.shape[0] * workload.shape[1] > IN_WHOLE_NUMBERS:
        return None
    try:
        with passing("proving in whole numbers"):
            proof = prove(answer)
    except DualmechError:
        return None
    return Fraction(proof.lower), Fraction(proof.upper)


# What ``explain`` is asked for: any problem of the library, also those that no other command poses.


@dataclass(frozen=True, slots=True)
class AnyRequest(Request):
    """The options of ``explain``; where the problem is about mechanisms, files of them are the workload and the others.

    Raises `UsageError` for options that exclude each other, need each other, or belong to another problem.
    """

    others: tuple[str, ...] = ()
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
        if self.problem != "common" and self.others:
            raise UsageError("give one WORKLOAD; several files are for --problem common")

    def state(self, geometry: str | None = None) -> AnyProblem:
        """Read everything and state the problem, unless it is too large to be explained."""
        if self.problem == "common":
            mechanisms = [inputs.mechanism_in(path) for path in (str(self.workload), *self.others)]
            return CommonMechanism(mechanisms, criterion="trace" if self.criterion is None else self.criterion)
        if self.problem == "projection":
            return LocalProjection(files.read_matrix(str(self.workload), "matrix"), self._needed("epsilon"))
        if self.problem == "local":
            epsilon, prior = (
                self._needed("epsilon"),
                None if self.prior is None else files.read_vector(self.prior, "prior"),
            )
            criterion = "average" if self.criterion is None else self.criterion
            return LocalStrategy(self._asked(), epsilon, criterion, prior=prior)
        if self.problem == "estimate":
            answers = files.read_vector(self._needed("answers"), "answers")
            return NonnegativeEstimate(self._asked(), answers, self.total)
        request = self.specified()
        asked_workload = request._asked()
        if self.problem == "reuse":
            return self._reuse()
        plain = {field.name: getattr(request, field.name) for field in fields(Request)}
        if not isinstance(request.workload, Specification):
            plain["workload"] = asked_workload
        return Request(**plain).state(geometry)

    @property
    def spends(self) -> bool:
        """Whether a privacy can be named: other problems than fitness for use are explained at a squared cost of 1."""
        return self.problem == "fitness"

    def _asked(self) -> Workload:
        workload = self._read()
        by_rule = isinstance(self._moves(), Relation)
        by_table = self.problem in ("fitness", "variance") and self.geometry != "dense" and by_rule
        refuse_large(workload, by_table)
        return workload

    def _needed(self, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            raise UsageError(f"--problem {self.problem} needs --{name}")
        return value


# The page: an answer and its proof, section by section, in fractions where there are some.


LISTED = 12  # most weights that are listed one by one
ROUNDING = 1e-14  # size of an entry, over the largest, up to which it is printed as 0
WRITTEN_OUT = 6  # largest side of a matrix of an answer that is written out
SHORT = 1000  # largest whole number in a fraction that says where an optimum lies


def page(
    answer: Solution,
    formula: Formula,
    proven: ExactOptimum | None,
    whole: tuple[Fraction, Fraction] | None = None,
    stated: Formula | None = None,
) -> list[Section]:
    """Return the sections of an answer.

    Parameters
    ----------
    proven : ExactOptimum, optional
        The optimum in fractions and square roots.
    whole : two fractions, optional
        Between them the optimum was proven to lie in whole numbers.
    stated : Formula, optional
        The formula with another form of the program.
    """
    sizes = answer.problem.headline.partition(" ")[2]
    title = f"The program: least {answer.problem.objective_name}"
    program = program_section(f"{title}{f' ({sizes})' if sizes else ''}.", stated or formula)
    lines = tuple(Words(literal(line)) for line in neighbours_lines(answer.problem))
    free = tuple(Words(literal(line)) for line in free_lines(getattr(answer.problem, "geometry", None)))
    return [
        replace(program, parts=(*program.parts, *lines, *free)),
        dual_section(formula),
        _weights(answer, formula, proven),
        _prices(answer, proven),
        _floating_proof(answer, formula, whole) if proven is None else _blackboard_proof(answer, proven),
    ]


def _weights(answer: Solution, formula: Formula, proven: ExactOptimum | None) -> Section:
    exact: dict[str, object] = {}
    if proven is not None:
        exact = {"neighbour_weights": [*proven.neighbour_weights], "query_weights": [*proven.query_weights]}
    parts: list[Part] = []
    for symbol in formula.weights:
        held = getattr(answer.dual, symbol.part, None) if symbol.part else None
        parts += _values(symbol, exact.get(symbol.part, held))
    for symbol in formula.sought:
        value = answer.primal if symbol.part == "itself" else getattr(answer.primal, symbol.part or "-", None)
        parts += _values(symbol, value if proven is None else [*proven.covariance])
    note = Words("They are not written out: numbers of products are those of the factors, and matrices are large.")
    return Section("The optimal weights.", tuple(parts) or (note,))


def _values(symbol: Symbol, held: Any) -> list[Part]:
    if not symbol.part or not isinstance(held, np.ndarray | list):
        return []
    if np.ndim(held) == 1:
        return [Words(f"${symbol.name} =$ {_listing(held)}")]
    if np.ndim(held) == 3:  # one for each item i
        values = [
            _values(replace(symbol, name=re.sub("_[ip]$", f"_{{{i}}}", symbol.name)), one) for i, one in enumerate(held)
        ]
        return [part for parts in values[:LISTED] for part in parts]
    if np.ndim(held) == 2 and 0 < max(np.shape(held)) <= WRITTEN_OUT:
        if isinstance(held, np.ndarray):
            return [Entries(symbol.name, entries(_without_rounding(held)))]
        return [Entries(symbol.name, tuple(tuple(map(latex, row)) for row in held))]
    return []


def _listing(values: Array | Sequence[Number]) -> str:
    if isinstance(values, np.ndarray):
        values = _without_rounding(values)
    shown = [_number(value) for value in values[:LISTED]]
    if len(values) <= LISTED:
        return in_line(shown)
    positive = sum(1 for value in values if value > 0)
    return f"{in_line(shown)[:-1]}, …; {len(values)} in all, {positive} positive)"


def _without_rounding(values: Array) -> Array:
    """Return values with those that are nothing but rounding compared with the largest set to 0."""
    return np.where(np.abs(values) > ROUNDING * np.abs(values).max(initial=0.0), values, 0.0)


def _number(value: float | Number) -> str:
    return latex(value) if isinstance(value, Fraction | Surd) else number(float(value))


def _prices(answer: Solution, proven: ExactOptimum | None) -> Section:
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
        title = "The prices: shares of user types in the bound, y over its sum, negative ones as 0."
    order = np.argsort(-prices, kind="stable")[:LISTED]
    parts = [Words(f"{_name(problem, len(prices), j)}: {_price(prices, j, answer, proven)}") for j in order]
    if len(prices) > LISTED:
        left = 100 * max(1 - prices[order].sum(), 0.0)
        parts.append(Words(f"… and {len(prices) - LISTED} more, together {left:.3g} %"))
    return Section(title, (*parts, *_phase_prices(answer)))


def _phase_prices(answer: Solution) -> list[Words]:
    geometry: Any = getattr(answer.problem, "geometry", None)
    if not hasattr(geometry, "phase_prices"):
        return []
    prices = answer.phase_prices
    totals = prices.sum(axis=1)
    order = np.argsort(-totals, kind="stable")[:LISTED]
    parts = [Words("Of phases, and of their steps: parts larger by 1 % raise the bound by about twice their price.")]
    for phase in order:
        steps = prices[phase][geometry.phases[phase] >= 0]
        listed = ", ".join(f"{100 * price:.4g} %" for price in steps[:LISTED]) + (", …" if len(steps) > LISTED else "")
        parts.append(Words(f"{geometry.phase_words(phase)}: {100 * totals[phase]:.4g} % ({listed})"))
    if len(prices) > LISTED:
        left = 100 * max(1 - totals[order].sum(), 0.0)
        parts.append(Words(f"… and {len(prices) - LISTED} more, together {left:.3g} %"))
    return parts


def _price(prices: Array, j: int, answer: Solution, proven: ExactOptimum | None) -> str:
    if proven is None or isinstance(answer.problem, TotalVariance):
        return f"{100 * prices[j]:.4g} %"
    target = Fraction(float(answer.problem.targets[j])).limit_denominator(LARGEST_DENOMINATOR)
    return f"${latex(proven.query_weights[j] * target)}$"


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


def _floating_proof(answer: Solution, formula: Formula, whole: tuple[Fraction, Fraction] | None) -> Section:
    certificate, measure = answer.certificate, answer.problem.objective_name
    upper = (
        f"Upper bound: the answer meets every constraint, and its objective ({measure}) is "
        f"{certificate.objective:.12g}, as the judge recomputed from the problem's data."
        if certificate.feasible
        else f"No upper bound: the answer exceeds a constraint by {100 * certificate.violation:.3g} %."
    )
    parts: list[Part] = [
        Words(upper),
        Words(f"Lower bound: at these weights the dual is {certificate.lower_bound:.12g}, and nothing is below, since"),
        proof_part(formula.proof),
    ]
    if whole is None:
        parts.append(Words(f"So the optimum lies in {interval_text(certificate.interval)}."))
    else:
        words = where_it_lies(*whole, Fraction(answer.tol))
        parts.append(Words(f"So the optimum {words}: proven in whole numbers, without any rounding."))
    return Section("The proof.", tuple(parts))


def where_it_lies(low: Fraction, high: Fraction, tol: Fraction) -> str:
    """Return in words that a number lies between two, no longer than an interval of relative width `tol` has to be.

    >>> where_it_lies(Fraction(2) - Fraction(1, 10**15), Fraction(2), Fraction(1, 10**6))
    'is $2$ to within $1e-15$'
    >>> where_it_lies(Fraction("0.12345678"), Fraction("0.12345679"), Fraction(1, 10**6))
    'lies between $0.12345678$ and $0.12345679$'
    """
    if low == high:
        return f"is exactly ${low}$"
    near, width = simplest_between(low, high), high - low
    by_chance = width * near.denominator**2  # how often, about, an interval so wide holds a fraction so simple
    if max(abs(near.numerator), near.denominator) <= SHORT and by_chance <= 1 / SHORT:
        return f"is ${near}$ to within ${_rounded_up(max(high - near, near - low))}$"
    room = max(width, (tol * abs(low) - width) / 2) / 4
    digits = -math.floor(math.log10(room))
    shift = Fraction(10) ** digits
    first, last = (
        format(Decimal(end).scaleb(-digits), "f") for end in (math.floor(low * shift), math.ceil(high * shift))
    )
    return f"lies between ${first}$ and ${last}$"


def _rounded_up(value: Fraction) -> str:
    """Return one digit and a power of ten that are not below a number."""
    power = math.floor(math.log10(value))
    return number(math.ceil(value / Fraction(10) ** power) * 10.0**power)


def _blackboard_proof(answer: Solution, exact: ExactOptimum) -> Section:
    problem, best, scale = answer.problem, latex(exact.optimum), latex(exact.scale)
    rooted = bool(radicals_of([exact.optimum, exact.scale, *exact.neighbour_weights, *exact.query_weights]))
    variance, first = isinstance(problem, TotalVariance), isinstance(problem, PrivacyFirst)
    sought = "the total variance" if variance else r"$\kappa$" if first else r"$\alpha$"
    weights = "w" if variance else r"\mu"
    named = Aligned(
        (
            ("", r"P = B U \operatorname{diag}(\lambda) U^{\top} B^{\top}", ""),
            ("", rf"Q = L^{{\top}} \operatorname{{diag}}({weights}) L", ""),
            ("", rf"\Sigma Q \Sigma = ({scale}) P", "for the noise above"),
            ("", rf"\operatorname{{tr}}(Q \Sigma) = {best if variance or first else 1}", ""),
        )
    )
    nearly = f", about {float(exact.optimum):.12g}" if rooted else ""
    measure = problem.objective_name
    closing = f"So {sought} is at least ${best}$: both sides meet, and the {measure} is exactly ${best}${nearly}."
    return Section(
        "The proof, in exact fractions and square roots." if rooted else "The proof, in exact fractions.",
        (
            Words(f"Upper bound: {_attained(variance, first, best)} So {sought} is at most ${best}$."),
            Words("Lower bound: let"),
            named,
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
    met = r"\operatorname{tr}(Q \Sigma)" if variance else r"\kappa" if first else "1"
    product = rf"\operatorname{{tr}}(Q \Sigma)^2 / ({scale})"
    spent = r"the total variance is $\operatorname{tr}(Q S)$" if variance else r"since $\sum_j \mu_j c_j = 1$"
    return Aligned(
        (
            ("", rf"{cost} \ge \operatorname{{tr}}(P S^{{-1}})", r"since $\sum_i \lambda_i = 1$"),
            *(() if variance else (("", rf"{met} \ge \operatorname{{tr}}(Q S)", spent),)),
            (
                "",
                rf"\operatorname{{tr}}(P S^{{-1}}) \operatorname{{tr}}(Q S) \ge {product}",
                r"the product is least where $S Q S$ is a multiple of P, as at $\Sigma$",
            ),
        )
    )
