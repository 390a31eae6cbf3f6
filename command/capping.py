"""Hard limits and waste on the command line: the searches, and their reports."""

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
from dualmech.crosscheck.caps import LISTED, Capped, TightLimitsError, capped, posed
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
"""Width of the interval that is aimed at, by layer."""

OF_ONE_PROBLEM = ("backend", "method", "refine", "start", "time_limit", "threads")
"""Options of ``solve`` that a search over problems does not take."""


def solve_capped(
    request: Request,
    options: Mapping[str, object],
    layer: Layer,
    tol: float | None,
    output: str | None,
    prove: str | None,
) -> tuple[Certificate, float]:
    """Find, print and write the least factor that hard limits leave; return its certificate and the width asked for."""
    for name in OF_ONE_PROBLEM:
        if options[name] not in (None, False):
            raise UsageError(
                f"--{name.replace('_', '-')} is not for hard limits at a given privacy: they are a search over problems"
            )
    width = TOLERANCES[layer] if tol is None else tol
    with passing("searching for the least factor") as line:
        search = request.search()
        capped = _searched(search, width, layer, request.terms.z)
        answer = retold(capped.answer, metadata=replace(request.plan_terms(), limits=capped.limits).metadata)
        if output is not None:
            line.say("writing")
            dm.save(answer, output)
        proofs = [] if prove is None else _proofs(answer, capped.limits, prove, line)
    out = printing.console()
    certificate = answers.solution_report(out, answer, request.terms, width)
    for proof in proofs:
        out.print(proof, soft_wrap=True)
    return certificate, width


def _searched(search: Search, width: float, layer: Layer, z: float) -> Capped:
    """Return what the search finds; of limits that are too tight, say which margins this privacy allows."""
    try:
        return capped(**search._asdict(), tol=width, layer=layer.value)
    except TightLimitsError as error:
        margins = {name: accounting.margin_from_variance(variance, z) for name, variance in error.allowed.items()}
        shown = ", ".join(f"{name} {margin:.4g}" for name, margin in [*margins.items()][:LISTED])
        raise InvalidInputError(
            f"hard limits take rho = {decimal_above(error.least / 2)} by themselves, and {search.cost / 2:.6g} may be "
            f"spent: the tightest margins of their kind are then a little more than {shown} "
            f"(level {accounting.level_of(z):.4g})"
        ) from error


def _proofs(answer: dm.Solution, limits: HardLimits, path: str, line: Line) -> list[str]:
    """Write two proofs in whole numbers, of the factor from above and from below, and say what they show."""
    line.say("proving")
    lower = limits.below(answer.problem)
    tight = judged_solution(lower, lower.feasible(answer.primal), limits.dual, tol=answer.tol, otherwise=Status.GIVEN)
    above, below = dm.prove(answer), dm.prove(tight)
    second = str(Path(path).with_suffix(".below.json"))
    above.save(path)
    below.save(second)
    return [
        f"{path}: in whole numbers, noise of rho = {exact.above(above.upper / 2)} keeps all limits at the factor "
        f"{limits.high:.9g}",
        f"{second}: none of less than rho = {exact.below(below.lower / 2)} does at the factor {limits.low:.9g}",
    ]


def proven_factor(request: Request, proof: dm.Proof) -> str | None:
    """Say what a proof shows of the least factor on the targets that are not hard; None if it is of other tables."""
    search = request.search()
    problem, held = posed(search.workload, search.targets, search.caps, search.neighbours, search.geometry)
    factor = factor_of(proof, problem, held)
    side = "at most" if proof.upper <= search.cost else "at least" if proof.lower >= search.cost else None
    if factor is None or side is None:
        return None
    return f"At rho = {search.cost / 2:.6g} the least factor on the targets that are not hard is {side} {factor:.9g}."


TAKEN = ("workload", "mechanism", "output", "tol")
"""The options of ``judge`` that a mechanism leaves room for: targets and neighbours are its own."""


def judge_waste(context: typer.Context, workload: str, path: str, output: str | None) -> Certificate:
    """Print how much of its cost the mechanism in a file wastes on a workload, and return its certificate."""
    refuse_unused(context, TAKEN, "--mechanism, which brings its own accuracy and neighbours")
    if output is not None:
        check_suffix(output, ".npz")
    with passing("reading") as line:
        queries, mechanism = inputs.read_workload(workload), inputs.mechanism_in(path)
        line.say("finding the least cost")
        wasted = waste(mechanism, queries, callback=line)
    lines = [*wasted.words]
    if wasted.better is not wasted.mechanism:
        lines.append(f"The better one: {privacy_text(wasted.better, SHOWN_DELTA)}")
    printing.print_lines(printing.console(), *lines, whole=True)
    if output is not None:
        dm.save(wasted.better, output)
    return wasted.certificate


def judge_practice(request: Request, practice: str, as_drawn: bool, output: str | None) -> None:
    """Print what a practice of splitting a budget over tables wastes, and write the better plan if that is wanted."""
    if request.rho is None:
        raise UsageError("give --rho, what the practice spends, or rho in the specification")
    if output is not None:
        check_suffix(output, ".npz")
    stated, shares = request.workload, None
    with passing("reading") as line:
        queries = stated.workload if isinstance(stated, Specification) else inputs.read_workload(str(stated))
        if practice != "equal":
            by_name = inputs.read_numbers(practice, "practice", queries) if practice.lower().endswith(".csv") else None
            if not isinstance(by_name, dict):
                raise InvalidInputError(
                    f"--practice takes equal, or a .csv file of lines of name,share, got {practice!r}"
                )
            shares = by_name
        rule = stated.neighbours if isinstance(stated, Specification) else None
        if request.neighbours is not None:
            rule = Relation.of(validate.text(neighbours=request.neighbours))
        line.say("finding the least cost")
        wasted = waste(queries, rho=request.rho, shares=shares, as_drawn=as_drawn, neighbours=rule, callback=line)
        better = wasted.answer
        if isinstance(stated, Specification):
            targets = {**wasted.variances, **dict.fromkeys(stated.exact, 0.0)}
            kept = stated.changed(neighbours=None if rule is None else str(rule), targets=targets)
            better = kept.planned(better)
        if output is not None:
            line.say("writing")
            dm.save(better, output)
    printing.print_lines(printing.console(), *wasted.words, whole=True)
