"""The program, its dual, the optimal weights, the prices and the proof, in words: on a terminal, or in LaTeX."""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import Any

from rich.console import Console
from rich.markup import escape

from dualmech import fast
from dualmech.crosscheck.command import proof_page
from dualmech.crosscheck.optima import finding, rationals
from dualmech.crosscheck.optima.matrices import simplest_between
from dualmech.crosscheck.optima.rationals import ExactProof
from dualmech.errors import DualmechError, InvalidInputError, UncertifiedWarning
from dualmech.files.atomic import atomic_write
from dualmech.formulas.choice import statement
from dualmech.formulas.records import Statement
from dualmech.formulas.writing import Section, latex_document, terminal_lines
from dualmech.proofs.prove import prove
from dualmech.solution import Solution, require_solution
from dualmech.watching import passing
from dualmech.workloads.base import Workload

TOLERANCE = 1e-6
"""Gap that is proven where no other is asked for."""

MOST_ENTRIES = 2**22
"""Entries of a workload, queries times cells, up to which a problem about each of its queries is explained."""

IN_WHOLE_NUMBERS = 400  # entries of a workload up to which an interval in fractions is proven

SIMPLER = Fraction(1, 4)
"""By how much of the width of an interval each end may be moved to a simpler fraction."""


def refuse_large(workload: Workload, by_table: bool) -> None:
    """Refuse what nobody would read: more queries times cells than `MOST_ENTRIES`, where each is looked at by itself.

    Raises `InvalidInputError`, before anything of that size is made.
    """
    factors = getattr(workload, "factors", None) if by_table else None
    for each in factors or (workload,):
        queries, cells = each.shape
        if queries * cells > MOST_ENTRIES and not (by_table and each.tabular() is not None):
            raise InvalidInputError(
                f"workload must have at most {MOST_ENTRIES} entries to be explained, got {queries} queries x {cells} "
                f"cells; `dualmech solve` solves it, and --prove writes a proof that a machine can check"
            )


def refuse_large_problem(problem: Any) -> None:
    """Refuse a problem by the size of its workload, as `refuse_large` does."""
    workload = getattr(problem, "workload", None)
    if isinstance(workload, Workload):
        by_table = getattr(getattr(problem, "geometry", None), "name", "dense") not in ("dense", "stream")
        refuse_large(workload, by_table)


def explain(out: Console, problem: Any) -> Solution:
    """Print what is asked, what proves the answer, and why; return the solution that was explained."""
    return explain_answer(out, solved(problem))


def solved(problem: Any, tol: float = TOLERANCE) -> Solution:
    """Return the fast layer's answer."""
    with warnings.catch_warnings(), passing("solving") as line:
        warnings.simplefilter("ignore", UncertifiedWarning)
        return fast.solve(problem, tol=tol, callback=line)


def explain_answer(out: Console, answer: Any) -> Solution:
    """Print an answer with its proof, in fractions if there are some that anybody would put on a blackboard."""
    held = require_solution(answer)
    show(out, sections(held))
    return held


def stated_and_solved(
    problem: Any, answer: Solution | None, formulation: str | None, tol: float | None = None
) -> tuple[Solution, Statement]:
    """Return the answer of the reference layer, or one that is known, and the program of a formulation."""
    with warnings.catch_warnings(), passing("loading CVXPY") as line:
        warnings.simplefilter("ignore", UncertifiedWarning)
        from dualmech import reference

        stated = reference.statement(problem, formulation)
        chosen: dict[str, Any] = {} if formulation is None else {"formulation": formulation}
        if answer is None:
            line.say(reference.program_name(problem, **chosen))
            answer = reference.solve(problem, tol=tol, **chosen)
    return answer, stated


def write_latex(page: list[Section], path: str) -> None:
    """Write sections as a LaTeX document into a file, or print it where the path is a dash."""
    document = latex_document(page)
    if path == "-":
        print(document, end="")
        return
    with atomic_write(path) as file:
        file.write(document.encode("utf-8"))
    print(f"{path}: written")


def show(out: Console, page: list[Section]) -> None:
    """Print the sections of a page."""
    for section in page:
        title, *lines = terminal_lines(section)
        out.print(f"[bold]{escape(title)}[/]")
        for line in lines:
            out.print(line, markup=False)


def sections(answer: Solution, stated: Statement | None = None) -> list[Section]:
    """Return what is said of an answer; `stated` is its statement with another form of the program.

    Raises `InvalidInputError` for a problem that is too large.
    """
    refuse_large_problem(answer.problem)
    exact = None
    if rationals.worth_trying(answer.problem):
        with warnings.catch_warnings(), passing("looking for a proof in fractions and square roots"):
            warnings.simplefilter("ignore", UncertifiedWarning)
            answer, exact = _exactly(answer, anywhere=stated is None)
    simple = None if exact is not None else _simple_interval(answer)
    return proof_page.page(answer, statement(answer.problem), exact, simple, stated)


def _exactly(answer: Solution, anywhere: bool) -> tuple[Solution, ExactProof | None]:
    """Return an exact proof, and the answer to the problem that it is of: the same `anywhere`, or on its own basis."""
    exact = finding.proven(fast.solve(answer.problem, tol=finding.CLOSE_ENOUGH, start=answer))
    if exact is None and anywhere and (same := rationals.on_own_rows(answer.problem)) is not None:
        sharp = fast.solve(same, tol=finding.CLOSE_ENOUGH)
        exact = finding.proven(sharp)
        answer = answer if exact is None else sharp
    return answer, exact


def _simple_interval(answer: Solution) -> tuple[Fraction, Fraction] | None:
    """Return simple fractions between which the optimum is proven to lie in whole numbers, None where it is not."""
    workload = getattr(answer.problem, "workload", None)
    if isinstance(workload, Workload) and workload.shape[0] * workload.shape[1] > IN_WHOLE_NUMBERS:
        return None
    try:
        with passing("proving in whole numbers"):
            proof = prove(answer)
    except DualmechError:
        return None
    low, high = Fraction(proof.lower), Fraction(proof.upper)
    room = SIMPLER * (high - low)
    first = simplest_between(max(low - room, Fraction(0)) if low >= 0 else low - room, low)
    return first, simplest_between(high, high + room)
