"""The commands that pose a problem: ``solve``, ``judge`` and ``explain``."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Annotated, Any

import typer

from dualmech import fast, files
from dualmech.crosscheck import judging
from dualmech.crosscheck.command import inputs, options, table_inputs
from dualmech.crosscheck.command.options import Family, Layer
from dualmech.crosscheck.command.request import Request, UsageError, requested
from dualmech.crosscheck.command.wording import BY_TABLE, Judged, Posed
from dualmech.errors import InvalidInputError, UncertifiedWarning
from dualmech.problems.marginals import MarginalFitness
from dualmech.problems.refinement import Refinement
from dualmech.problems.unions import UnionFitness
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.solution import Callback, Solution
from dualmech.storage import solutions
from dualmech.validate import Array
from dualmech.workloads.domain import rounded

_EITHER = "either --covariance FILE or --strategy FILE"


@requested
def solve(
    request: Request,
    layer: Annotated[
        Layer, typer.Option(help="The library's own solver, or the CVXPY program.")
    ] = Layer.FAST,
    backend: Annotated[
        str | None, typer.Option(help="CVXPY backend of the reference layer. [default: CLARABEL]")
    ] = None,
    tol: Annotated[
        float | None, typer.Option(help="Gap to prove. [default: 1e-6 fast, by backend otherwise]")
    ] = None,
    refine: Annotated[
        bool,
        typer.Option("--refine", help="fitness: break ties, for the least sorted privacy profile."),
    ] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write the solution to this .npz file.")
    ] = None,
) -> None:
    """Find the best noise for a workload and prove how good it is."""
    from dualmech.crosscheck.command import report

    request.refuse_foreign(refine=refine)
    if backend is not None and layer is Layer.FAST:
        raise UsageError("--backend belongs to --layer reference; the fast layer has none")
    if output is not None:
        if not output.lower().endswith(".npz"):
            raise InvalidInputError(f"output must be a path that ends in .npz, got {output!r}")
        files.check_writable(output)
    problem = request.problem()
    with warnings.catch_warnings(), report.progress("steps") as callback:
        warnings.simplefilter("ignore", UncertifiedWarning)
        if refine:
            if isinstance(problem, MarginalFitness):
                raise UsageError(
                    "--refine has nothing to do here: on marginals every record costs the same anyway"
                )
            if isinstance(problem, BY_TABLE):
                raise UsageError("--refine takes workloads that are solved query by query, not by table")
            found = _refined(problem, layer, backend, tol)
            answer, stages = found.solution, found.stages
        else:
            answer, stages = _solved(problem, layer, backend, tol, callback), ()
    terms = request.terms
    if isinstance(problem, MarginalFitness | UnionFitness) and request.cost is not None:
        answer = problem.spending(answer, request.cost)
        terms = replace(terms, factor=float(answer.problem.targets[0] / problem.targets[0]))
    if output is not None:
        solutions.save_solution(answer, output)
    out = report.console()
    report.solution_report(out, answer, terms)
    report.stage_lines(out, answer, stages)
    _leave(answer, *stages)


@requested
def judge(
    request: Request,
    covariance: Annotated[
        str | None,
        typer.Option(help="File with the covariance of the noise (on the cells, or on the basis)."),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="File with a strategy matrix instead: unit noise, or for variance as much as it takes."
        ),
    ] = None,
    query_weights: Annotated[
        str | None, typer.Option(help="weighting: file with the weights of the design queries.")
    ] = None,
    tol: Annotated[
        float, typer.Option(help="Distance from the optimum up to which the exit status is 0.")
    ] = 1e-6,
) -> None:
    """Say how far anybody's answer is from the optimum."""
    from dualmech.crosscheck.command import report

    if request.family is not Family.FITNESS and (request.rho is not None or request.epsilon is not None):
        raise UsageError(
            f"--rho and --epsilon belong to solve; judge takes an answer to --problem {request.family} at "
            f"sensitivity 1, and says what another is worth once scaled to it"
        )
    given = {"covariance": covariance, "strategy": strategy, "query_weights": query_weights}
    request.refuse_foreign(**given)
    kinds = [kind for kind, path in given.items() if path is not None]
    if len(kinds) != 1:
        wanted = "--query-weights FILE" if request.family is Family.WEIGHTING else _EITHER
        raise UsageError(f"give {wanted}: the answer to judge")
    tables = table_inputs.tables_of(request.workload)
    if tables is not None and tables.shape[1] > table_inputs.LARGE:
        raise InvalidInputError(
            f"judge takes tables of at most {table_inputs.LARGE} cells, got {rounded(tables.shape[1])}"
        )
    problem = request.of_queries()
    verdict = judging.judge(problem, _read_answer(problem, kinds[0], str(given[kinds[0]])))
    report.verdict_report(report.console(), problem, verdict, request.terms)
    raise typer.Exit(0 if verdict.certifies(tol) else 3)


def explain(
    workload: options.Workload,
    targets: options.Targets = None,
    neighbours: options.Neighbours = "add-remove",
) -> None:
    """Print the program, its dual, the optimal weights, the prices and the proof in words."""
    from dualmech.crosscheck.command import explanation, report

    problem = Request(workload, targets=targets, neighbours=neighbours).accuracy_first()
    _leave(explanation.explain(report.console(), problem))


def _solved(
    problem: Posed, layer: Layer, backend: str | None, tol: float | None, callback: Callback
) -> Solution:
    if layer is Layer.FAST:
        return fast.solve(problem, tol=1e-6 if tol is None else tol, callback=callback)
    from dualmech import reference

    return reference.solve(problem, backend=backend or "CLARABEL", tol=tol)


def _refined(problem: Any, layer: Layer, backend: str | None, tol: float | None) -> Refinement:
    if layer is Layer.FAST:
        return fast.refine(problem, tol=1e-9 if tol is None else tol)
    from dualmech import reference

    return reference.refine(problem, backend=backend or "CLARABEL", tol=tol)


def _read_answer(problem: Judged, kind: str, path: str) -> Array:
    if isinstance(problem, QueryWeighting):
        return inputs.read_query_weights(problem, path)
    if kind == "covariance":
        return inputs.read_covariance(problem, path)
    covariance = judging.covariance_of_strategy(problem, inputs.read_strategy(path))
    # Of total variance, a strategy is an answer in any units: the noise follows from its sensitivity.
    return problem.feasible(covariance) if isinstance(problem, TotalVariance) else covariance


def _leave(*answers: Solution) -> None:
    raise typer.Exit(0 if all(each.certificate.certifies(each.tol) for each in answers) else 3)
