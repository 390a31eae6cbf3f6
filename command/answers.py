"""Output of the command: a problem, its answer and privacy cost, or the verdict on a user's answer."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.markup import escape

from dualmech import accounting
from dualmech.accounting import CONVERSION, UNBOUNDED, level_of, zcdp_epsilon
from dualmech.certificate import FEASIBLE, Certificate
from dualmech.command.inputs import labels
from dualmech.crosscheck.judging import Judgement
from dualmech.crosscheck.printing import (
    MAX_LISTED,
    Terms,
    TextTable,
    free_lines,
    gap_percent,
    in_rho,
    interval_text,
    names,
    neighbours_lines,
    objective_text,
    print_lines,
    range_text,
    steps,
)
from dualmech.display import counted, decimal_above, decimal_below
from dualmech.errors import DualmechError, InvalidInputError
from dualmech.geometry.blocks import Blocks
from dualmech.geometry.dense import Dense
from dualmech.geometry.epochs import Epochs
from dualmech.geometry.product import Product
from dualmech.geometry.stream import RangeStream, Stream
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.problems.base import AnyProblem
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.reuse import ReuseFitness
from dualmech.problems.softmax import SoftmaxFitness
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.progress import Status
from dualmech.publishing.prices import prices_in_words
from dualmech.solution import Solution, gap_words
from dualmech.validate import Array
from dualmech.workloads import census
from dualmech.workloads.base import MAX_DENSE_ENTRIES, Workload
from dualmech.workloads.unions import UnionWorkload

LARGE_RHO_WARNING = (
    f"This protects next to nothing: rho is above {UNBOUNDED}, and is released only if --rho allows it. Ask for larger "
    f"margins."
)

MAX_TABLES = 20  # more tables are grouped


def describe_plan(out: Console, solution: Solution, terms: Terms) -> None:
    """Print the accuracy and the privacy cost of an answer; for a plan with a specification, as of its release."""
    if "specification" not in solution.metadata or isinstance(solution.problem, ReuseFitness):
        describe(solution.problem, out, solution, terms)
        return
    from dualmech.publishing.publication import ReleasePlan
    from dualmech.publishing.release import plan

    try:
        planned = ReleasePlan(*plan(solution), solution)
        lines = [*planned.lines(), *([LARGE_RHO_WARNING] if planned.rho > UNBOUNDED else [])]
    except DualmechError as error:
        describe(solution.problem, out, solution, terms)
        lines = [f"It cannot be released: {error}"]
    print_lines(out, *lines, unwrapped=True)


@singledispatch
def describe(problem: object, out: Console, solution: Solution, terms: Terms) -> None:
    """Print the accuracy and the privacy cost of a feasible answer; for other families, only the privacy cost."""
    with contextlib.suppress(InvalidInputError):  # an estimate has no mechanism
        if isinstance(mechanism := solution.mechanism, GaussianPrivacy):
            out.print(privacy_text(mechanism, terms.delta))


@describe.register(FitnessForUse)
@describe.register(PrivacyFirst)
@describe.register(TotalVariance)
def _on_geometry(
    problem: FitnessForUse | PrivacyFirst | TotalVariance, out: Console, solution: Solution, terms: Terms
) -> None:
    if isinstance(problem.geometry, RangeStream):
        _all_ranges(problem, out, solution, terms)
        return
    if hasattr(type(problem.geometry), "free_queries"):  # a geometry of single queries
        if isinstance(problem, TotalVariance):
            _total_variance(problem, out, solution, terms)
        else:
            out.print(_target_table(problem, solution, terms))
            _privacy(out, solution, solution.mechanism, terms)
        return
    point = problem.geometry.divide(solution.primal, terms.divisor(problem))
    # Total variance is solved at a cost of 1, and scaled to the budget.
    mechanism = problem.geometry.mechanism(point)
    if isinstance(problem.geometry, Product):
        factors = ", ".join(f"{factor.geometry.name} of {factor.workload.shape[0]}" for factor in problem.factors)
        out.print(f"Factors, whose costs and variances multiply: {factors} queries.")
    else:
        _by_table(out, problem, solution.prices, problem.geometry.forms(point), terms)
    out.print(privacy_text(mechanism, terms.delta))
    if not isinstance(problem.geometry, Blocks):
        return
    blocks, binding = problem.geometry, solution.binding
    orbits = blocks.reach.shape[0]
    binding_text = f"{len(binding)} of {orbits} kinds of records bind"
    kinds = "Every record costs the same" if orbits == 1 else binding_text
    count = len(blocks.keys) + len(blocks.matrix_blocks)
    out.print(f"{kinds}; {count} blocks are measured, of rank at most {blocks.rank}.")


@describe.register(ReuseFitness)
def _reuse(problem: ReuseFitness, out: Console, solution: Solution, terms: Terms) -> None:
    if isinstance(problem.geometry, Blocks):
        _by_table(out, problem, solution.prices, problem.geometry.forms(solution.primal), terms)
    else:
        out.print(_target_table(problem.known.wish, solution, terms))
    out.print(privacy_text(solution.mechanism, terms.delta))
    old_rho, new_rho = problem.released.rho, problem.new_mechanism(solution.primal).rho
    out.print(
        f"Earlier release: rho = {decimal_above(old_rho)}; the new release alone: rho = {decimal_above(new_rho)}."
    )


def _all_ranges(problem: AnyProblem, out: Console, solution: Solution, terms: Terms) -> None:
    mechanism, (count, cells) = problem.mechanism(solution.primal, terms.cost), problem.workload.shape
    lengths = [2**power for power in range(cells.bit_length())]
    # Ranges in the middle; ranges are ordered by their first cells, then by their last.
    firsts = [(cells - length) // 2 for length in lengths]
    indices = [
        first * cells - first * (first - 1) // 2 + length - 1 for first, length in zip(firsts, lengths, strict=True)
    ]
    queries = problem.workload.select(indices)
    out.print(_variance_table(queries, None, mechanism.variances(queries), terms.z))
    out.print(
        f"These are in the middle; the mean variance of all {count} ranges is {mechanism.total_variance / count:.6g}."
    )
    _privacy(out, solution, mechanism, terms)


@describe.register
def _softmax(problem: SoftmaxFitness, out: Console, solution: Solution, terms: Terms) -> None:
    released, dual = problem.rescaled(solution.primal), solution.dual
    hard = problem.accuracy_first.certify(released, (dual.neighbour_weights, dual.query_weights / problem.targets))
    out.print(
        f"Scaled to meet the targets: rho (zCDP) {decimal_above(hard.objective / 2, 9)}, proven by the same weights "
        f"to be at most {gap_percent(hard)} above the least."
    )
    out.print(_target_table(problem, solution, terms))
    _privacy(out, solution, solution.mechanism, terms)


def _total_variance(problem: TotalVariance, out: Console, solution: Solution, terms: Terms) -> None:
    mechanism, workload = problem.mechanism(solution.primal, terms.cost), problem.geometry.workload
    variances = mechanism.variances(workload)
    variances[problem.geometry.free_queries] = 0.0  # exact answers; computed variances are rounding errors
    weights = None if np.all(problem.weights == 1) else problem.asked_weights
    out.print(_variance_table(workload, weights, variances, terms.z))
    unweighted = problem.workload.shape[0] - workload.shape[0]
    if unweighted:
        out.print(f"Left out, having weight 0: {unweighted} of {problem.workload.shape[0]} queries.")
    _privacy(out, solution, mechanism, terms)


@describe.register
def _query_weighting(problem: QueryWeighting, out: Console, solution: Solution, terms: Terms) -> None:
    design, weights, prices = problem.geometry, solution.primal, solution.prices
    kinds = {
        "needed": len(design.weighed),
        "released exactly, at no cost": int(np.isinf(weights).sum()),
        "of no use": len(weights) - len(design.needed),
    }
    out.print(
        f"Design queries: {', '.join(f'{count} {kind}' for kind, count in kinds.items() if count)}; weights "
        f"{range_text(weights[design.weighed])}."
    )
    largest = np.argsort(-prices, kind="stable")[:MAX_LISTED]
    shares = ", ".join(f"{i} ({100 * prices[i]:.1f} %)" for i in largest if prices[i] > 0)
    out.print(f"Largest shares of the bill, by design query from 0: {shares}.")
    if not design.independent:
        total = problem.strategy_error(weights) / terms.cost
        out.print(f"They depend on one another: least squares bring the total variance down to {total:.9g}.")
    if design.name == "sines" and math.prod(problem.workload.shape) > MAX_DENSE_ENTRIES:
        out.print(
            f"Noise is independent on each sine, of variance 1 / weight; no matrix of it is made, and no table of "
            f"{problem.workload.shape[0]} ranges.\nPrivacy: rho = {decimal_above(terms.cost / 2)} (zCDP)."
        )
        return
    # Variances are the same for Gaussian and Laplace noise.
    basis, root = design.noise(weights**problem.power)
    noise = LinearGaussianMechanism(basis, root @ root.T / terms.cost, problem.neighbours)
    variances = noise.variances(problem.workload)
    if problem.neighbours is not None:
        geometry = Dense.of(problem.workload, None, problem.neighbours)
        variances[geometry.free_queries] = 0.0  # exact answers; computed variances are rounding errors
        for line in free_lines(geometry):
            out.print(line)
    out.print(_variance_table(problem.workload, None, variances, terms.z))
    if problem.privacy == "approximate":
        _privacy(out, solution, noise, terms)
        return
    epsilon = terms.laplace_epsilon
    out.print(
        f"Privacy: epsilon = {decimal_above(epsilon)}, pure, by Laplace noise of variance {2 / epsilon**2:.6g} on "
        f"every row of the strategy."
    )
    out.print(_binding(solution, len(noise.profile)))


def _by_table(out: Console, problem: AnyProblem, prices: Array, forms: Any, terms: Terms) -> None:
    fitness = problem.numbers == "targets"
    word, values = ("target variance", problem.targets) if fitness else ("weight", problem.weights)
    orbits = getattr(problem.geometry, "tables", np.arange(len(values)))
    headings = ("table", "tables", word, "variance", "margin", "share of bill" if fitness else "share of total")
    rows = []
    for label, indices in _tables_by_name(problem.workload, problem.geometry.workload):
        variances = forms.variances[np.isin(orbits, indices)]
        columns = (values[indices], variances, accounting.margin_from_variance(variances, terms.z))
        shares = f"{100 * prices[indices].sum():.1f} %"
        rows.append((label, str(len(indices)), *(range_text(column) for column in columns), shares))
    out.print(_table("Tables", headings, rows, terms.z))


def privacy_text(mechanism: GaussianPrivacy, delta: float) -> str:
    rho, cost = mechanism.rho, mechanism.privacy_cost
    bound = zcdp_epsilon(rho, delta) if 0 < rho < math.inf else cost
    return (
        f"Privacy: rho = {decimal_above(rho)} (zCDP), epsilon = {decimal_above(bound)} at delta = {delta}, "
        f"{CONVERSION}; of continuous noise mu = {decimal_above(cost)} (Gaussian DP), "
        f"epsilon = {decimal_above(mechanism.epsilon(delta))}."
    )


def _tables_by_name(problem_workload: Workload, workload: Any) -> list[tuple[str, npt.NDArray[np.intp]]]:
    """Return labels with the indices of their tables: one label for each table, or for each group of many tables."""
    names = labels(problem_workload) or labels(workload) or []
    if len(names) > MAX_TABLES:
        names = (
            [census.published(name)[1] for name in names]
            if isinstance(workload, UnionWorkload)
            else [f"{len(axes)}-way" for axes in getattr(workload, "tables", workload).axes]
        )
    return [(name, np.flatnonzero([other == name for other in names])) for name in dict.fromkeys(names)]


def _target_table(
    problem: FitnessForUse | PrivacyFirst | SoftmaxFitness, solution: Solution, terms: Terms
) -> TextTable:
    variances, slack = solution.mechanism.variances(problem.workload), max(1e-6, solution.gap**0.5)
    variances[problem.geometry.free_queries] = 0.0  # exact answers; computed variances are rounding errors
    tight = variances >= (1 - slack) * problem.targets * (variances / problem.targets).max()
    columns = {
        "target variance": problem.targets,
        "target margin": accounting.margin_from_variance(problem.targets, terms.z),
        "achieved variance": variances,
        "achieved margin": accounting.margin_from_variance(variances, terms.z),
    }
    counts = {"binding": tight, "loose": ~tight}
    return _group_table(problem.workload, columns, counts, {"share of bill": solution.prices}, terms.z)


def _variance_table(workload: Workload, weights: Array | None, variances: Array, z: float) -> TextTable:
    bill = variances if weights is None else weights * variances
    columns = {"variance": variances, "margin": accounting.margin_from_variance(variances, z)}
    weighted = columns if weights is None else {"weight": weights} | columns
    return _group_table(workload, weighted, {}, {"share of total": bill / bill.sum()}, z)


def _group_table(
    workload: Workload, columns: Mapping[str, Array], counts: Mapping[str, Array], shares: Mapping[str, Array], z: float
) -> TextTable:
    """Return a table of groups of queries: ranges of the columns, numbers of queries, and the group's share."""
    groups, rows = np.array(workload.groups), []
    for group in dict.fromkeys(workload.groups):
        mask = groups == group
        ranges = [range_text(values[mask]) for values in columns.values()]
        numbers = [str(int(flags[mask].sum())) for flags in counts.values()]
        share = [f"{100 * parts[mask].sum():.1f} %" for parts in shares.values()]
        rows.append((group, str(int(mask.sum())), *ranges, *numbers, *share))
    return _table("Queries by group", ("group", "queries", *columns, *counts, *shares), rows, z)


MEANINGS = {
    "margin": "margin: of error at the level {level:.4g}, z = {z:g}",
    "binding": "binding: queries whose variance is at its target",
    "loose": "loose: those below it",
    "share of bill": "share of bill: loosening the targets by 1 % saves that share of 1 % of rho",
    "share of total": "share of total: of the total variance",
}
"""Explanations of the words in the headings of tables."""


def _table(subject: str, headings: Sequence[str], rows: Sequence[Sequence[str]], z: float) -> TextTable:
    meanings = [meaning for word, meaning in MEANINGS.items() if any(word in heading for heading in headings)]
    note = "; ".join(meanings).format(z=z, level=level_of(z))
    return TextTable(subject, headings, rows, headings[:1], [f"{note[0].upper()}{note[1:]}."])


def _privacy(out: Console, solution: Solution, mechanism: LinearGaussianMechanism, terms: Terms) -> None:
    out.print(privacy_text(mechanism, terms.delta))
    out.print(_binding(solution, len(mechanism.profile)))


def _binding(solution: Solution, neighbours: int) -> str:
    return f"{len(solution.binding)} of {neighbours} neighbours bind."


def solution_report(out: Console, solution: Solution, terms: Terms, tol: float) -> Certificate:
    """Print the certificate, the accuracy and the privacy cost of an answer; return the certificate.

    For an answer with hard limits, it is the certificate of the factor on the other targets.
    """
    problem, limits = solution.problem, solution.metadata.get("limits")
    certificate, status = solution.certificate, solution.status.name
    (kind, divisor), planned = in_rho(problem, terms), "specification" in solution.metadata
    if limits is not None:
        certificate, divisor = limits.certificate(problem, certificate), 1.0
        kind = "factor on the targets that are not hard"
        status = "CERTIFIED" if certificate.certifies(tol) else "NOT CERTIFIED"
    achieved = objective_text(certificate.objective / divisor, kind)
    out.print(f"{status}: {kind} {achieved}{terms.privacy(problem)}, optimum proven to lie in")
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
    for line in [] if planned else neighbours_lines(problem):
        out.print(f"  {line}")
    if not certificate.feasible:
        out.print(f"  infeasible by {certificate.violation:.1e}: no mechanism")
        _print_indented(out, problem.exceeded(solution.primal))
        return certificate
    if limits is not None:
        out.print(f"  at rho = {limits.cost / 2:.6g}; the targets below that are not hard are multiplied by the factor")
    describe_plan(out, solution, terms)
    if isinstance(problem, FitnessForUse | PrivacyFirst | ReuseFitness) and not isinstance(problem.geometry, Product):
        print_lines(out, *prices_in_words(solution)[: None if planned else MAX_PRICES], unwrapped=True)
    return certificate


def stage_lines(out: Console, answer: Solution, stages: Sequence[Solution]) -> None:
    """Print the result of every stage of the refined privacy ordering, in the units of the answer."""
    if not stages or not answer.certificate.feasible:
        return
    mechanism = answer.mechanism
    unit = mechanism.squared_privacy_cost / stages[0].objective
    for count, stage in enumerate(stages, start=1):
        neighbours = counted(len(stage.problem.neighbours), "open neighbour")
        out.print(
            f"Stage {count}: {stage.status.name}, worst squared cost of {neighbours} "
            f"{decimal_above(unit * stage.objective, 9)} (gap {stage.gap:.1e})"
        )
    budget = mechanism.free_budget()
    num_free = int((budget > stages[0].tol * mechanism.squared_privacy_cost).sum())
    out.print(
        f"Left for later queries at no further cost: up to {decimal_below(float(budget.max()))} for {num_free} of "
        f"{len(budget)} neighbours."
    )


MAX_PRICES = 3  # sentences on prices in a report


def uncertified_line(certificate: Certificate, tol: float) -> str:
    """Return a line for exit status 3: the reason why an answer is not certified, and a remedy."""
    if not np.isfinite(certificate.violation):
        reason = "; ".join(certificate.remarks) or "its noise leaves some requested query without an answer"
        return f"status 3, not certified: {reason}"
    if not certificate.feasible:
        reason = f"a constraint is exceeded by {100 * certificate.violation:.3g} %"
        return f"status 3, not certified: {reason}; scale the noise until it meets every constraint"
    best_tol = max(certificate.gap, certificate.resolution)
    hint = f"; --tol {_rounded_up(best_tol)} would be met" if np.isfinite(best_tol) else ""
    return f"status 3, not certified: {gap_words(certificate, tol)}{hint}"


def _rounded_up(number: float) -> str:
    """Return a number to two digits, rounded up."""
    scale = 10.0 ** (np.floor(np.log10(number)) - 1)
    return f"{np.ceil(number / scale) * scale:.2g}"


def _print_indented(out: Console, sentences: Sequence[str]) -> None:
    for sentence in sentences:
        out.print(f"    {escape(sentence)}")


def verdict_report(out: Console, problem: AnyProblem, verdict: Judgement, terms: Terms) -> None:
    """Print the judge's verdict on a user's answer."""
    value, divisor = in_rho(problem, terms)
    for line in neighbours_lines(problem):
        out.print(line)
    if not np.isfinite(verdict.objective):
        weighted = isinstance(problem, QueryWeighting)
        reason = (
            "a needed design query has no weight" if weighted else "the covariance is singular where neighbours differ"
        )
        out.print(f"NOT A MECHANISM: its {'variance' if weighted else 'privacy cost'} is infinite ({reason}).")
        return
    out.print(
        f"{'FEASIBLE' if verdict.feasible else 'INFEASIBLE'}: {value} "
        f"{objective_text(verdict.objective / divisor, value)}{terms.privacy(problem)}"
    )
    out.print(f"  optimum at least {verdict.lower_bound / divisor:.9g} (proven by the judge)")
    if verdict.feasible:
        out.print(f"  certified distance from the optimum: at most {gap_percent(verdict)}")
    else:
        out.print(f"  a constraint is exceeded by {100 * verdict.violation:.3g} %")
        _print_indented(out, verdict.exceeded)
    if not np.isclose(verdict.scaled.objective, verdict.objective, rtol=FEASIBLE, atol=0.0):
        out.print(
            f"  scaled to meet its constraints exactly: {objective_text(verdict.scaled.objective / divisor, value)}, "
            f"at most {gap_percent(verdict.scaled)} above the optimum"
        )
    for remark in verdict.remarks:
        out.print(f"  {escape(remark)}")
    loose, binding = verdict.loose, verdict.binding
    if isinstance(problem, FitnessForUse | PrivacyFirst):
        dense = isinstance(problem.geometry, Dense | Epochs | Stream)
        loose_names = f" ({names(problem.workload, loose)})" if len(loose) and dense else ""
        items = problem.workload.shape[0] if dense else len(problem.targets)
        out.print(f"  loose targets: {len(loose)} of {items}{loose_names}")
    indices = ", ".join(map(str, binding[:MAX_LISTED])) + (" …" if len(binding) > MAX_LISTED else "")
    neighbours = getattr(problem.geometry, "moves", getattr(problem.geometry, "reach", None))
    count = "" if neighbours is None else f" of {neighbours.shape[0 if hasattr(problem.geometry, 'reach') else 1]}"
    out.print(f"  binding neighbours: {len(binding)}{count} ({indices})")
