"""The commands that pose a problem: ``solve``, ``judge`` and ``explain``."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer

from dualmech import fast, files
from dualmech.certificate import Certificate
from dualmech.crosscheck import judging
from dualmech.crosscheck.command import inputs, options
from dualmech.crosscheck.command.options import Layer
from dualmech.crosscheck.command.request import Request, UsageError
from dualmech.errors import InvalidInputError, UncertifiedWarning
from dualmech.problems.refinement import Refinement
from dualmech.progress import Callback
from dualmech.solution import Solution


def solve(
    context: typer.Context,
    workload: options.Workload,
    problem: options.Problem = options.FITNESS,
    targets: options.Targets = None,
    moe: options.Margins = None,
    z: options.Quantile = 1.645,
    weights: options.Weights = None,
    design: options.Design = None,
    privacy: options.Kind = None,
    t1: options.CostSharpness = None,
    t2: options.VarianceSharpness = None,
    total_weight: options.TotalWeight = None,
    rho: options.Rho = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    neighbours: options.Neighbours = None,
    geometry: options.Geometry = "auto",
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

    request = _request(context)
    request.refuse_foreign(refine=refine)
    if backend is not None and layer is Layer.FAST:
        raise UsageError("--backend belongs to --layer reference; the fast layer has none")
    if output is not None:
        if not output.lower().endswith(".npz"):
            raise InvalidInputError(f"output must be a path that ends in .npz, got {output!r}")
        files.check_writable(output)
    posed = request.state("dense" if refine and request.geometry == "auto" else None)
    with warnings.catch_warnings(), report.progress("steps") as callback:
        warnings.simplefilter("ignore", UncertifiedWarning)
        if refine:
            found = _refine(posed, layer, backend, tol)
            answer, stages = found.solution, found.stages
        else:
            answer, stages = _solve(posed, layer, backend, tol, callback), ()
    if output is not None:
        answer.save(output)
    out = report.console()
    report.solution_report(out, answer, request.terms)
    report.stage_lines(out, answer, stages)
    _leave(*((each.certificate, each.tol) for each in (answer, *stages)))


def judge(
    context: typer.Context,
    workload: options.Workload,
    problem: options.Problem = options.FITNESS,
    targets: options.Targets = None,
    moe: options.Margins = None,
    z: options.Quantile = 1.645,
    weights: options.Weights = None,
    design: options.Design = None,
    privacy: options.Kind = None,
    t1: options.CostSharpness = None,
    t2: options.VarianceSharpness = None,
    total_weight: options.TotalWeight = None,
    rho: options.Rho = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    neighbours: options.Neighbours = None,
    geometry: options.Geometry = "auto",
    covariance: Annotated[
        str | None,
        typer.Option(
            help="File with the covariance of the noise (on the cells, or on the basis), a mechanism, or a solution."
        ),
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
    """Say how far a given answer is from the optimum."""
    from dualmech.crosscheck.command import report

    request = _request(context)
    if problem != "fitness" and (rho is not None or epsilon is not None):
        raise UsageError(
            f"--rho and --epsilon belong to solve; judge takes an answer to --problem {problem} at "
            f"sensitivity 1, and reports another one scaled to it"
        )
    given = {"covariance": covariance, "strategy": strategy, "query_weights": query_weights}
    request.refuse_foreign(**given)
    kinds = [kind for kind, path in given.items() if path is not None]
    if len(kinds) != 1:
        either = "either --covariance FILE or --strategy FILE"
        wanted = "--query-weights FILE" if problem == "weighting" else either
        raise UsageError(f"give {wanted}: the answer to judge")
    path = str(given[kinds[0]])
    request = request.under(inputs.read_own_neighbours(path), path)
    answer = inputs.read_mechanism(path) if kinds[0] == "covariance" else None
    on_cells = answer is None and request.geometry == "auto"
    posed = request.state("dense" if on_cells else None)
    if answer is None:
        answer = inputs.read_answer(posed, kinds[0], path)
    verdict = judging.judge(posed, answer)
    report.verdict_report(report.console(), posed, verdict, request.terms)
    _leave((verdict, tol))


def explain(
    context: typer.Context,
    workload: options.Asked,
    problem: options.Problem = options.FITNESS,
    targets: options.Targets = None,
    moe: options.Margins = None,
    weights: options.Weights = None,
    design: options.Design = None,
    privacy: options.Kind = None,
    t1: options.CostSharpness = None,
    t2: options.VarianceSharpness = None,
    total_weight: options.TotalWeight = None,
    neighbours: options.Neighbours = None,
    geometry: options.Geometry = "auto",
) -> None:
    """Print the program, its dual, the optimal weights, the prices and the proof in words."""
    from dualmech.crosscheck.command import explanation, report

    answer = inputs.read_solution(workload)
    if answer is not None:
        found = explanation.explain_answer(report.console(), answer)
    else:
        found = explanation.explain(report.console(), _request(context).state())
    _leave((found.certificate, found.tol))


def _request(context: typer.Context) -> Request:
    """Return what a command's options pose, those of `Request` by the same name."""
    return Request(**{name: context.params[name] for name in Request.__slots__ if name in context.params})


def _solve(
    problem: Any, layer: Layer, backend: str | None, tol: float | None, callback: Callback
) -> Solution:
    if layer is Layer.FAST:
        return fast.solve(problem, tol=1e-6 if tol is None else tol, callback=callback)
    from dualmech import reference

    return reference.solve(problem, backend=backend or "CLARABEL", tol=tol)


def _refine(problem: Any, layer: Layer, backend: str | None, tol: float | None) -> Refinement:
    if layer is Layer.FAST:
        return fast.refine(problem, tol=1e-9 if tol is None else tol)
    from dualmech import reference

    return reference.refine(problem, backend=backend or "CLARABEL", tol=tol)


def _leave(*judged: tuple[Certificate, float]) -> None:
    """Leave with status 0 if every certificate is within its tolerance, else with 3 and a line that says why."""
    from dualmech.crosscheck.command import report

    for certificate, tol in judged:
        if not certificate.certifies(tol):
            typer.echo(f"dualmech: {report.uncertified_line(certificate, tol)}", err=True)
            raise typer.Exit(3)
    raise typer.Exit(0)
