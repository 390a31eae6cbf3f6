"""Hard limits and waste on the command line: searches and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import typer

import dualmech as dm
from dualmech import accounting, validate
from dualmech.certificate import Certificate
from dualmech.command import answers, inputs
from dualmech.command.answers import privacy_text
from dualmech.command.options import UsageError, refuse_unused
from dualmech.command.request import Request, Search
from dualmech.crosscheck import printing
from dualmech.crosscheck.caps import MAX_LISTED, Capped, TightLimitsError, capped, posed
from dualmech.crosscheck.families import Layer
from dualmech.crosscheck.proofs.checker import exact
from dualmech.crosscheck.proofs.prove import factor_of
from dualmech.crosscheck.wasting import waste
from dualmech.display import decimal_above
from dualmech.errors import InvalidInputError
from dualmech.files.atomic import check_suffix
from dualmech.mechanisms.privacy import SHOWN_DELTA
from dualmech.neighbours import Relation
from dualmech.problems.limits import HardLimits
from dualmech.progress import Status
from dualmech.publishing.specification import Specification
from dualmech.solution import judged_solution, retold
from dualmech.watching import Line, passing

TOLERANCES = {Layer.FAST: 1e-6, Layer.REFERENCE: 1e-4}
"""Relative width of the interval for the factor, by layer."""

SINGLE_PROBLEM_OPTIONS = ("backend", "method", "refine", "start", "time_limit", "threads")
"""Options of ``solve`` that a search over problems does not use."""


def solve_capped(
    request: Request,
    options: Mapping[str, object],
    layer: Layer,
    tol: float | None,
    output: str | None,
    prove: str | None,
) -> tuple[Certificate, float]:
    """Find, print and write the least common factor on the other targets under hard limits and the budget.

    Returns its certificate and the tolerance.
    """
    for name in SINGLE_PROBLEM_OPTIONS:
        if options[name] not in (None, False):
            raise UsageError(
                f"--{name.replace('_', '-')} cannot be used with hard limits at a given privacy, which need a search"
            )
    width = TOLERANCES[layer] if tol is None else tol
    with passing("searching for the least factor") as line:
        search = request.search()
        result = _search(search, width, layer, request.terms.z)
        answer = retold(result.answer, metadata=replace(request.plan_terms(), limits=result.limits).metadata)
        if output is not None:
            line.say("writing")
            dm.save(answer, output)
        proofs = [] if prove is None else _proofs(answer, result.limits, prove, line)
    out = printing.console()
    certificate = answers.solution_report(out, answer, request.terms, width)
    for proof in proofs:
        out.print(proof, soft_wrap=True)
    return certificate, width


def _search(search: Search, width: float, layer: Layer, z: float) -> Capped:
    """Return the result of the search; for too tight limits, raise an error with the possible margins."""
    try:
        return capped(**search._asdict(), tol=width, layer=layer.value)
    except TightLimitsError as error:
        margins = {name: accounting.margin_from_variance(variance, z) for name, variance in error.allowed.items()}
        text = ", ".join(f"{name} {margin:.4g}" for name, margin in [*margins.items()][:MAX_LISTED])
        raise InvalidInputError(
            f"hard limits alone cost rho = {decimal_above(error.least / 2)}, and the budget is {search.cost / 2:.6g}: "
            f"in the same proportions, the tightest possible margins are a little more than {text} "
            f"(level {accounting.level_of(z):.4g})"
        ) from error


def _proofs(answer: dm.Solution, limits: HardLimits, path: str, line: Line) -> list[str]:
    line.say("proving")
    lower = limits.below(answer.problem)
    tight = judged_solution(lower, lower.feasible(answer.primal), limits.dual, tol=answer.tol, otherwise=Status.GIVEN)
    upper_proof, lower_proof = dm.prove(answer), dm.prove(tight)
    lower_path = str(Path(path).with_suffix(".below.json"))
    upper_proof.save(path)
    lower_proof.save(lower_path)
    return [
        f"{path}: in exact arithmetic, noise of rho = {exact.above(upper_proof.upper / 2)} meets the hard limits and "
        f"{limits.high:.9g} times the other targets",
        f"{lower_path}: no noise of less than rho = {exact.below(lower_proof.lower / 2)} meets the hard limits and "
        f"{limits.low:.9g} times the other targets",
    ]


def proven_factor(request: Request, proof: dm.Proof) -> str | None:
    """Return the proven bound on the factor on the targets that are not hard, in words.

    Returns None if the proof is of other tables, or bounds neither side at this budget.
    """
    search = request.search()
    problem, capped_queries = posed(search.workload, search.targets, search.caps, search.neighbours, search.geometry)
    factor = factor_of(proof, problem, capped_queries)
    side = "at most" if proof.upper <= search.cost else "at least" if proof.lower >= search.cost else None
    if factor is None or side is None:
        return None
    return f"At rho = {search.cost / 2:.6g} the least factor on the targets that are not hard is {side} {factor:.9g}."


WASTE_OPTIONS = ("workload", "mechanism", "output", "tol")
"""The options of ``judge --mechanism``: the mechanism has its own accuracy and neighbours."""


def judge_waste(context: typer.Context, workload: str, path: str, output: str | None) -> Certificate:
    """Print the share of its cost that the mechanism in a file wastes on a workload; return its certificate."""
    refuse_unused(context, WASTE_OPTIONS, "--mechanism, which has its own accuracy and neighbours")
    if output is not None:
        check_suffix(output, ".npz")
    with passing("reading") as line:
        queries, mechanism = inputs.read_workload(workload), inputs.mechanism_in(path)
        line.say("minimising the cost")
        wasted = waste(mechanism, queries, callback=line)
    lines = [*wasted.words]
    if wasted.better is not wasted.mechanism:
        lines.append(f"The better mechanism: {privacy_text(wasted.better, SHOWN_DELTA)}")
    printing.print_lines(printing.console(), *lines, unwrapped=True)
    if output is not None:
        dm.save(wasted.better, output)
    return wasted.certificate


def judge_practice(request: Request, practice: str, as_drawn: bool, output: str | None) -> None:
    """Print the waste of a practice of splitting a budget over tables; write the better plan to `output`."""
    if request.rho is None:
        raise UsageError("give --rho, the budget of the practice, or rho in the specification")
    if output is not None:
        check_suffix(output, ".npz")
    source, shares = request.workload, None
    with passing("reading") as line:
        queries = source.workload if isinstance(source, Specification) else inputs.read_workload(str(source))
        if practice != "equal":
            by_name = inputs.read_numbers(practice, "practice", queries) if practice.lower().endswith(".csv") else None
            if not isinstance(by_name, dict):
                raise InvalidInputError(
                    f"--practice takes equal, or a .csv file of lines of name,share, got {practice!r}"
                )
            shares = by_name
        rule = source.neighbours if isinstance(source, Specification) else None
        if request.neighbours is not None:
            rule = Relation.of(validate.text(neighbours=request.neighbours))
        line.say("minimising the cost")
        wasted = waste(queries, rho=request.rho, shares=shares, as_drawn=as_drawn, neighbours=rule, callback=line)
        better = wasted.answer
        if isinstance(source, Specification):
            targets = {**wasted.variances, **dict.fromkeys(source.exact, 0.0)}
            specification = source.changed(neighbours=None if rule is None else str(rule), targets=targets)
            better = specification.planned(better)
        if output is not None:
            line.say("writing")
            dm.save(better, output)
    printing.print_lines(printing.console(), *wasted.words, unwrapped=True)
