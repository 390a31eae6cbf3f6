"""An answer and its proof, section by section, in fractions where there are some."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from dualmech.command.inputs import labels
from dualmech.crosscheck.families import family_of
from dualmech.crosscheck.optima.rationals import ExactOptimum
from dualmech.crosscheck.optima.surds import LARGEST_DENOMINATOR, Number, Surd, latex, radicals_of, simplest_between
from dualmech.crosscheck.printing import free_lines, interval_text, neighbours_lines
from dualmech.errors import DualmechError
from dualmech.problems.base import Problem
from dualmech.problems.fitness import PrivacyFirst
from dualmech.problems.variance import TotalVariance
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
    literal,
    number,
    program_section,
    proof_part,
)
from dualmech.solution import Solution
from dualmech.validate import Array

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
        return [Entries(symbol.name, _matrix(held))]
    return []


def _matrix(held: Any) -> tuple[tuple[str, ...], ...]:
    if isinstance(held, np.ndarray):
        return entries(_without_rounding(held))
    return tuple(tuple(map(latex, row)) for row in held)


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
    names = None if workload is None else labels(workload)
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
