"""The program, its dual, the optimal weights, the prices and the proof, in words."""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.markup import escape

from dualmech import fast, linalg
from dualmech.crosscheck.command import rationals
from dualmech.crosscheck.command.table_inputs import labels
from dualmech.crosscheck.command.wording import (
    free_lines,
    interval_text,
    neighbours_lines,
    range_text,
)
from dualmech.crosscheck.families import family_of
from dualmech.errors import DualmechError, UncertifiedWarning
from dualmech.geometry.blocks import Blocks
from dualmech.geometry.dense import Dense
from dualmech.geometry.product import Product
from dualmech.geometry.split import Split
from dualmech.problems.fitness import FitnessForUse
from dualmech.solution import Solution
from dualmech.watching import passing

LISTED = 12  # most weights that are listed one by one
WRITTEN_OUT = 6  # largest rank for which Σ is written out
TOGETHER = 1e-9  # how far coefficients of a sum may be from each other, relative
CLOSE_ENOUGH = 1e-12  # gap at which a rational proof is looked for


def explain(out: Console, problem: Any) -> Solution:
    """Print what is asked, what proves the answer, and why; return the solution that was explained."""
    with warnings.catch_warnings(), passing("solving") as line:
        warnings.simplefilter("ignore", UncertifiedWarning)
        answer = fast.solve(problem, callback=line)
    return explain_answer(out, answer)


def explain_answer(out: Console, answer: Solution) -> Solution:
    """Explain an answer to any problem; that of fitness for use on a matrix in full, if it can be in fractions."""
    problem = answer.problem
    if not isinstance(problem, FitnessForUse) or not isinstance(problem.geometry, Dense):
        _explain_by_family(out, answer)
        return answer
    exact = None
    if rationals.worth_trying(problem):
        with warnings.catch_warnings(), passing("looking for a proof in fractions"):
            warnings.simplefilter("ignore", UncertifiedWarning)
            exact = rationals.prove(fast.solve(problem, tol=CLOSE_ENOUGH, start=answer))
    _program(out, problem)
    _weights(out, answer, exact)
    _prices(out, answer, exact)
    if exact is None:
        _floating_proof(out, answer)
    else:
        _blackboard_proof(out, exact)
    return answer


def _explain_by_family(out: Console, answer: Solution) -> None:
    """Explain an answer by its family: what is asked, what bounds it, who pays, and what that proves."""
    problem, certificate = answer.problem, answer.certificate
    family, geometry = family_of(problem), getattr(problem, "geometry", None)
    out.print(f"[bold]The program[/], {escape(repr(problem))}:")
    out.print(f"  {family.program}.", markup=False)
    for line in neighbours_lines(problem):
        out.print(f"  {line}")
    out.print("[bold]Its dual.[/] Any such weights prove a bound:")
    out.print(f"  {family.dual}.", markup=False)
    if isinstance(geometry, Blocks):
        out.print(
            f"  Symmetry leaves {len(geometry.keys) + len(geometry.matrix_blocks)} blocks, of rank {geometry.rank} at "
            f"most, and one weight for each of {geometry.reach.shape[0]} kinds of records and "
            f"{len(geometry.tables)} kinds of queries."
        )
    elif isinstance(geometry, Product):
        out.print(f"  Both sides are products over {len(geometry.factors)} factors.")
    elif isinstance(geometry, Split):
        out.print("  Noise is split by attribute: the interval is honest, and not always tight.")
    _shares(out, answer)
    out.print("[bold]The proof.[/]")
    out.print(
        f"  Upper bound: the point is feasible, and its {family.measure(problem)} {certificate.objective:.12g}."
    )
    out.print(f"  Lower bound: at the dual weights the dual is {certificate.lower_bound:.12g}.")
    out.print(f"  So the optimum lies in {interval_text(certificate.interval)}.", markup=False)


def _shares(out: Console, answer: Solution) -> None:
    try:
        prices = answer.prices
    except DualmechError as error:
        out.print(f"[bold]No prices[/]: {escape(str(error))}.")
        return
    names = labels(answer.problem.workload) if hasattr(answer.problem, "workload") else None
    out.print("[bold]The prices.[/] Shares of the bill, the largest first:")
    order = np.argsort(-prices, kind="stable")[:LISTED]
    for j in order:
        out.print(
            f"  {escape(names[j]) if names and len(names) == len(prices) else j}: {100 * prices[j]:.4g} %"
        )
    if len(prices) > LISTED:
        out.print(f"  … and {len(prices) - LISTED} more, together {100 * (1 - prices[order].sum()):.3g} %")


def _program(out: Console, problem: FitnessForUse) -> None:
    queries, cells = problem.workload.shape
    neighbours, rank = problem.geometry.moves.shape[1], problem.geometry.rank
    basis = (
        "the cells themselves (B = I)" if rank == cells else f"{rank} rows that span the workload (W = L B)"
    )
    out.print(
        f"[bold]The program.[/] {queries} queries over {cells} cells, variance targets {range_text(problem.targets)}."
    )
    out.print(f"  Noise of covariance Σ ({rank} x {rank}) is added to {basis}; u_1 … u_{neighbours}, the")
    out.print(
        "  columns of U, are the differences of neighbouring data sets, v_j the rows of L and c_j the targets."
    )
    for line in neighbours_lines(problem):
        out.print(f"  {line}")
    still = len(problem.geometry.unmoved)
    out.print(f"    minimise    α   over {'Σ ⪰ 0 whose range holds every B u_i' if still else 'Σ ≻ 0'}")
    out.print("    subject to  (B u_i)' Σ⁻¹ (B u_i) ≤ α    privacy, i = 1 … " + str(neighbours))
    out.print("                v_j Σ v_j' ≤ c_j            accuracy, j = 1 … " + str(queries))
    if still:
        out.print(
            f"  No neighbour moves {_unmoved_words(problem)}: released exactly, at no cost. Σ⁻¹ is Σ's inverse on"
        )
        out.print("  its range, the pseudo-inverse.")
    out.print("[bold]Its dual.[/] Weights λ on neighbours and μ on queries, none negative:")
    out.print("    maximise    ‖ diag(√μ) W U diag(√λ) ‖²   (‖·‖ sums the singular values)")
    out.print("    subject to  Σ λ_i ≤ 1,  Σ μ_j c_j ≤ 1")
    for line in free_lines(problem.geometry):
        out.print(line)


def _unmoved_words(problem: FitnessForUse) -> str:
    """Return what combination of the rows of B no neighbour changes, or how many there are."""
    rows = problem.geometry.unmoved
    if len(rows) == 1 and np.ptp(rows[0]) <= TOGETHER * np.abs(rows[0]).max():
        return "the sum of all cells" if linalg.is_identity(problem.basis) else "the sum of all rows of B"
    return f"a space of dimension {len(rows)} of combinations of the rows of B"


def _weights(out: Console, answer: Solution, exact: rationals.RationalProof | None) -> None:
    problem = answer.problem
    lam, mu = answer.dual
    out.print("[bold]The optimal weights.[/]")
    out.print(f"  λ = {_listing(lam, None if exact is None else exact.neighbour_weights)}")
    out.print(f"  μ = {_listing(mu, None if exact is None else exact.query_weights)}")
    if problem.geometry.rank <= WRITTEN_OUT:
        rows = np.asarray(answer.primal) if exact is None else exact.covariance
        out.print(
            "  Σ = "
            + "\n      ".join("[ " + "  ".join(f"{_number(x):>9}" for x in row) + " ]" for row in rows),
            markup=False,
        )


def _prices(out: Console, answer: Solution, exact: rationals.RationalProof | None) -> None:
    prices = answer.prices
    order = np.argsort(-prices, kind="stable")[:LISTED]
    out.print("[bold]The prices.[/] Loosening target j by 1 % lowers α by about price_j percent:")
    for j in order:
        share = (
            f"{100 * prices[j]:.4g} %"
            if exact is None
            else str(exact.query_weights[j] * Fraction(answer.problem.targets[j]))
        )
        out.print(f"  {escape(answer.problem.workload.names[j])}: {share}")
    if len(prices) > LISTED:
        out.print(f"  … and {len(prices) - LISTED} more, together {100 * (1 - prices[order].sum()):.3g} %")


def _floating_proof(out: Console, answer: Solution) -> None:
    certificate = answer.certificate
    out.print("[bold]The proof.[/]")
    out.print(
        f"  Upper bound: Σ meets every target and costs {certificate.objective:.12g}; the judge factored Σ to see it."
    )
    out.print(
        f"  Lower bound: at these weights the dual is {certificate.lower_bound:.12g}, and no Σ can cost less, since"
    )
    out.print("    α ≥ Σ_i λ_i (B u_i)'Σ⁻¹(B u_i) = ‖Σ^-½ B U diag(√λ)‖_F²   because Σ λ_i = 1,")
    out.print("    1 ≥ Σ_j μ_j v_j Σ v_j'        = ‖diag(√μ) L Σ^½‖_F²      because Σ μ_j c_j = 1,")
    out.print("    and ‖XY‖ ≤ ‖X‖_F ‖Y‖_F for the product X Y = diag(√μ) W U diag(√λ).")
    out.print(f"  So the optimum lies in {interval_text(certificate.interval)}.", markup=False)


def _blackboard_proof(out: Console, exact: rationals.RationalProof) -> None:
    alpha = exact.optimum
    out.print("[bold]The proof[/], in exact fractions.")
    out.print(
        f"  Upper bound: Σ meets every target, and (B u_i)'Σ⁻¹(B u_i) is at most {alpha}. So α ≤ {alpha}."
    )
    out.print(
        "  Lower bound: let P = B U diag(λ) U' B' and Q = L' diag(μ) L. For any covariance S that meets"
    )
    out.print(
        "    the targets at cost α,  α ≥ tr(P S⁻¹)  because Σ λ_i = 1,  and  1 ≥ tr(Q S)  because Σ μ_j c_j = 1."
    )
    out.print("    Multiply: α ≥ tr(P S⁻¹) tr(Q S), which is least where S Q S is a multiple of P.")
    out.print(
        f"    Σ Q Σ = {exact.scale} P, so the least value is tr(Q Σ)² / ({exact.scale}) = {alpha}. So α ≥ {alpha}."
    )
    out.print(f"  Both sides meet: the squared privacy cost is exactly {alpha}.")


def _listing(values: npt.NDArray[np.float64], fractions: list[Fraction] | None) -> str:
    shown = [_number(x) for x in (values if fractions is None else fractions)[:LISTED]]
    more = f", … ({len(values)} in all, {int(np.sum(values > 0))} positive)" if len(values) > LISTED else ""
    return f"({', '.join(shown)}{more})"


def _number(value: float | Fraction) -> str:
    return str(value) if isinstance(value, Fraction) else f"{value:.6g}"
