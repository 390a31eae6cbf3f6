"""Reports on a terminal: answers and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from dualmech.certificate import FEASIBLE, Certificate
from dualmech.command.answers import describe_plan
from dualmech.crosscheck.judging import Judgement
from dualmech.crosscheck.printing import (
    LISTED,
    Terms,
    free_lines,
    gap_percent,
    in_rho,
    interval_text,
    names,
    neighbours_lines,
    steps,
)
from dualmech.crosscheck.proofs.checker import check
from dualmech.crosscheck.proofs.checker.exact import Given, above, below
from dualmech.crosscheck.proofs.prove import Proof
from dualmech.geometry.dense import Dense
from dualmech.geometry.product import Product
from dualmech.geometry.stream import Stream
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.weighting import QueryWeighting
from dualmech.progress import Status
from dualmech.solution import Solution, gap_words

_SINGULAR = "the covariance is singular where neighbours differ"


def solution_report(out: Console, solution: Solution, terms: Terms, tol: float) -> Certificate:
    """Print the certificate of an answer, and what the answer gives and costs; return that certificate.

    Of an answer with hard limits it is that of the factor on the other targets.
    """
    problem, limits = solution.problem, solution.limits
    certificate, status = solution.certificate, solution.status.name
    kind, divisor = in_rho(problem, terms)
    if limits is not None:
        certificate, divisor = limits.certificate(problem, certificate), 1.0
        kind = "factor on the targets that are not hard"
        status = "CERTIFIED" if certificate.certifies(tol) else "NOT CERTIFIED"
    out.print(
        f"{status}: {kind} {certificate.objective / divisor:.9g}{terms.privacy(problem)}, optimum proven to lie in"
    )
    low, high = certificate.interval
    interval = interval_text((low / divisor, high / divisor))
    out.print(f"  {interval}  ({gap_words(certificate, tol)})")
    if limits is None and solution.status is not Status.CERTIFIED:
        out.print(f"  {escape(solution.message or solution.status.value)}")
    out.print(f"  {solution.solver}: {steps(solution)}, {solution.seconds:.3g} s")
    for line in free_lines(getattr(problem, "geometry", None)):
        out.print(line)
    if getattr(problem, "numbers", None):
        out.print(f"  geometry: {problem.geometry.name}")
    for line in neighbours_lines(problem) if solution.asked is None or solution.asked.specification is None else []:
        out.print(f"  {line}")
    if not certificate.feasible:
        out.print(f"  infeasible by {certificate.violation:.1e}: no mechanism")
        _listed(out, problem.exceeded(solution.primal))
        return certificate
    if limits is not None:
        out.print(f"  at rho = {limits.cost / 2:.6g}; below, targets that are not hard are times the factor")
    describe_plan(out, solution, terms)
    if isinstance(problem, FitnessForUse | PrivacyFirst) and not isinstance(problem.geometry, Product):
        for each in solution.prices_in_words()[:DEAREST]:
            out.print(each, markup=False, soft_wrap=True)
    return certificate


def stage_lines(out: Console, answer: Solution, stages: Sequence[Solution]) -> None:
    """Print what every stage of the refined privacy ordering settled, in the units of the answer, and what is left."""
    if not stages or not answer.certificate.feasible:
        return
    mechanism = answer.mechanism
    unit = mechanism.squared_privacy_cost / stages[0].objective
    for count, stage in enumerate(stages, start=1):
        still = len(stage.problem.neighbours)
        out.print(
            f"Stage {count}: {stage.status.name}, worst squared cost of {still} open neighbour{'s'[: still != 1]} "
            f"{unit * stage.objective:.9g} (gap {stage.gap:.1e})"
        )
    budget = mechanism.free_budget()
    left = int((budget > stages[0].tol * mechanism.squared_privacy_cost).sum())
    out.print(
        f"Left for later queries at no further cost: up to {budget.max():.6g} for {left} of {len(budget)} neighbours."
    )


DEAREST = 3  # prices that a report says in words


def proof_line(out: Console, proof: Proof) -> None:
    """Print what a proof in whole numbers shows, and of a problem of targets how private its noise is.

    All of it follows from the kind of the problem and from its numbers: of the family a file could say anything.
    """
    problem = Given(proof.document["problem"])
    kind = problem.get("kind")
    allowed = problem.number("allowed") if kind in check.NOISE + check.SPREAD else Fraction(1)
    at_one = kind == "weighting" or (kind in check.SPREAD and allowed == 1)
    unit = " at a sensitivity of 1" if at_one else ""
    out.print(f"Proven in whole numbers: {below(proof.lower)} <= optimum{unit} <= {above(proof.upper)}.")
    if kind in check.NOISE:
        least, enough = below(proof.lower * allowed / 2), above(proof.upper * allowed / 2)
        out.print(f"Gaussian noise of rho = {enough} (zCDP) meets the targets, and none of less than {least} does.")


def uncertified_line(certificate: Certificate, tol: float) -> str:
    """Return why an answer is not certified and what to do, in a line: what an exit status of 3 means."""
    if not np.isfinite(certificate.violation):
        why = "; ".join(certificate.remarks) or "its noise leaves something that is asked without an answer"
        return f"status 3, not certified: {why}"
    if not certificate.feasible:
        why = f"a constraint is exceeded by {100 * certificate.violation:.3g} %"
        return f"status 3, not certified: {why}; scale the noise until it meets every constraint"
    best = max(certificate.gap, certificate.resolution)
    reach = f"; --tol {_raised(best)} would be met" if np.isfinite(best) else ""
    return f"status 3, not certified: {gap_words(certificate, tol)}{reach}"


def _raised(number: float) -> str:
    """Return a number to two digits, rounded up."""
    scale = 10.0 ** (np.floor(np.log10(number)) - 1)
    return f"{np.ceil(number / scale) * scale:.2g}"


def _listed(out: Console, sentences: Sequence[str]) -> None:
    for each in sentences:
        out.print(f"    {escape(each)}")


def verdict_report(out: Console, problem: Any, verdict: Judgement, terms: Terms) -> None:
    """Print the judge's verdict on an outsider's answer."""
    told, divisor = in_rho(problem, terms)
    for line in neighbours_lines(problem):
        out.print(line)
    if not np.isfinite(verdict.objective):
        weighted = isinstance(problem, QueryWeighting)
        why = "a design query that is needed has no weight" if weighted else _SINGULAR
        out.print(f"NOT A MECHANISM: its {'variance' if weighted else 'privacy cost'} is infinite ({why}).")
        return
    out.print(
        f"{'FEASIBLE' if verdict.feasible else 'INFEASIBLE'}: {told} "
        f"{verdict.objective / divisor:.9g}{terms.privacy(problem)}"
    )
    out.print(f"  optimum at least {verdict.lower_bound / divisor:.9g} (bound found and proven by the judge)")
    if verdict.feasible:
        out.print(f"  certified distance from the optimum: at most {gap_percent(verdict)}")
    else:
        out.print(f"  a constraint is exceeded by {100 * verdict.violation:.3g} %")
        _listed(out, verdict.exceeded)
    if not np.isclose(verdict.scaled.objective, verdict.objective, rtol=FEASIBLE, atol=0.0):
        out.print(
            f"  scaled to meet its constraints exactly: {verdict.scaled.objective / divisor:.9g}, "
            f"at most {gap_percent(verdict.scaled)} above the optimum"
        )
    for remark in verdict.remarks:
        out.print(f"  {escape(remark)}")
    loose, binding = verdict.loose, verdict.binding
    if isinstance(problem, FitnessForUse | PrivacyFirst):
        dense = isinstance(problem.geometry, Dense | Stream)
        shown = f" ({names(problem.workload, loose)})" if len(loose) and dense else ""
        items = problem.workload.shape[0] if dense else len(problem.targets)
        out.print(f"  loose targets: {len(loose)} of {items}{shown}")
    listed = ", ".join(map(str, binding[:LISTED])) + (" …" if len(binding) > LISTED else "")
    neighbours = getattr(problem.geometry, "moves", getattr(problem.geometry, "reach", None))
    count = "" if neighbours is None else f" of {neighbours.shape[0 if hasattr(problem.geometry, 'reach') else 1]}"
    out.print(f"  binding neighbours: {len(binding)}{count} ({listed})")
