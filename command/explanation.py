"""The program, its dual, the optimal weights, the prices and the proof, in words: on a terminal, or in LaTeX."""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar

from rich.console import Console
from rich.markup import escape

from dualmech import accounting, fast, files, reference
from dualmech.command import inputs, proof_page
from dualmech.command.answers import describe_plan
from dualmech.command.options import UsageError
from dualmech.command.request import LOCAL, Request
from dualmech.crosscheck.families import FAMILIES, Family
from dualmech.crosscheck.optima import finding, rationals
from dualmech.crosscheck.optima.rationals import ExactOptimum
from dualmech.crosscheck.printing import Terms
from dualmech.crosscheck.proofs.prove import prove
from dualmech.errors import DualmechError, InvalidInputError
from dualmech.files.atomic import atomic_write
from dualmech.mechanisms.privacy import SHOWN_DELTA
from dualmech.neighbours import Relation
from dualmech.problems.base import AnyProblem
from dualmech.problems.common import CommonMechanism
from dualmech.problems.local.estimate import NonnegativeEstimate
from dualmech.problems.local.projection import LocalProjection
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.publishing.specification import Specification
from dualmech.reference.formulas.writing import Formula, Section, latex_document, terminal_lines
from dualmech.solution import Solution
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
    for section in page:
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

    return proof_page.page(answer, formula_of(answer.problem), exact, whole, stated)


def _exactly(answer: Solution, anywhere: bool) -> tuple[Solution, ExactOptimum | None]:
    """Return an exact proof, and the answer to the problem that it is of: the same `anywhere`, or on its own basis."""
    exact = finding.proven(fast.solve(answer.problem, tol=finding.CLOSE_ENOUGH, start=answer))
    if exact is None and anywhere and (same := rationals.on_own_rows(answer.problem)) is not None:
        sharp = fast.solve(same, tol=finding.CLOSE_ENOUGH)
        exact = finding.proven(sharp)
        answer = answer if exact is None else sharp
    return answer, exact


def _interval_in_whole_numbers(answer: Solution) -> tuple[Fraction, Fraction] | None:
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
