"""The commands ``solve``, ``judge`` and ``simulate``: their options; the work is loaded when one runs."""

from __future__ import annotations

import warnings
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dualmech as dm
from dualmech.crosscheck.command import options
from dualmech.crosscheck.command.options import Layer, UsageError
from dualmech.errors import UncertifiedWarning
from dualmech.watching import passing

if TYPE_CHECKING:
    from dualmech.certificate import Certificate
    from dualmech.crosscheck.command.request import Request
    from dualmech.solution import Solution
    from dualmech.watching import Line

    Solved = tuple[Solution, tuple[Solution, ...]]


def solve(
    context: typer.Context,
    workload: options.Workload,
    problem: options.Problem = options.FITNESS,
    targets: options.Targets = None,
    moe: options.Margins = None,
    z: options.Quantile = None,
    weights: options.Weights = None,
    design: options.Design = None,
    privacy: options.Kind = None,
    t1: options.CostSharpness = None,
    t2: options.VarianceSharpness = None,
    total_weight: options.TotalWeight = None,
    rho: options.Rho = None,
    cap: options.Caps = None,
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
    method: Annotated[
        str | None,
        typer.Option(
            help="Solver of the fast layer, such as newton or fixed_point; of fitness and softmax also softmax_newton "
            "(SM-II) and softmax_gradient. [default: auto]"
        ),
    ] = None,
    tol: Annotated[
        float | None,
        typer.Option(
            callback=options.tolerance, help="Gap to prove. [default: 1e-6 fast, by backend otherwise]"
        ),
    ] = None,
    refine: Annotated[
        bool,
        typer.Option("--refine", help="fitness: break ties, for the least sorted privacy profile."),
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            help="Begin where the solution in this .npz file ended, one that ran out of time or near by."
        ),
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds after which the best answer so far is judged and kept.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write the solution to this .npz file.")
    ] = None,
    prove: Annotated[
        str | None,
        typer.Option(help="Write a proof in whole numbers to this .json file. See verify."),
    ] = None,
) -> None:
    """Find the best noise for a workload and prove how good it is."""
    request = request_of(context)
    request.refuse_foreign(refine=refine)
    if backend is not None and layer is Layer.FAST:
        raise UsageError("--backend belongs to --layer reference; the fast layer has none")
    if method is not None and (refine or layer is not Layer.FAST):
        raise UsageError("--method belongs to --layer fast without --refine")
    if (start is not None or time_limit is not None) and (refine or layer is not Layer.FAST):
        raise UsageError("--start and --time-limit belong to --layer fast without --refine")
    for path, suffix in ((output, ".npz"), (prove, ".json")):
        if path is not None:
            dm.files.check_writable(path, suffix)
    if request.searches:
        from dualmech.crosscheck.command import capping

        leave(capping.solve_capped(request, context.params, layer, tol, output))
    with warnings.catch_warnings(), passing("stating the problem") as line:
        warnings.simplefilter("ignore", UncertifiedWarning)
        posed = _posed(request, refine or method in dm.fast.MATRIX_METHODS, prove is not None)
        options = {"method": method, "start": start and _started(start), "time_limit": time_limit}
        run = (
            _refine
            if refine
            else partial(_solve, {name: own for name, own in options.items() if own is not None})
        )
        answer, stages = run(posed, layer, backend, tol, line)
        if output is not None:
            line.say("writing")
            answer.save(output)
        if prove is not None:
            line.say("proving")
            proof = dm.prove(answer)
            proof.save(prove)
        from dualmech.crosscheck.command import report
    out = report.console()
    report.solution_report(out, answer, request.terms)
    report.stage_lines(out, answer, stages)
    if prove is not None:
        report.proof_line(out, proof)
    leave(*((each.certificate, each.tol) for each in (answer, *stages)))


def _posed(request: Request, on_matrix: bool, proved: bool) -> Any:
    """State the problem, on a matrix where the solver or the proof needs one."""
    posed = request.state("dense" if on_matrix and request.geometry == "auto" else None)
    if proved:
        from dualmech.proofs.prove import provable

        if request.geometry == "auto" and getattr(getattr(posed, "neighbours", None), "several_cells", False):
            posed = request.state("dense")  # of pairs of cells there are proofs on a matrix alone
        provable(posed)  # refuses what has no such proof, before any work
    return posed


def judge(
    context: typer.Context,
    workload: options.Workload,
    problem: options.Problem = options.FITNESS,
    targets: options.Targets = None,
    moe: options.Margins = None,
    z: options.Quantile = None,
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
            help="Instead a file with a strategy matrix, or of running sums sqrt, tree or toeplitz:FILE: unit noise, "
            "or for variance as much as it takes."
        ),
    ] = None,
    query_weights: Annotated[
        str | None, typer.Option(help="weighting: file with the weights of the design queries.")
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="Instead of targets and an answer, a file of a mechanism or of a solution on the same cells: how much "
            "it wastes, at the accuracy that it gives this workload."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="With --mechanism: write the better mechanism to this .npz file."
        ),
    ] = None,
    tol: Annotated[
        float,
        typer.Option(
            callback=options.tolerance, help="Distance from the optimum up to which the exit status is 0."
        ),
    ] = 1e-6,
) -> None:
    """Say how far a given answer is from the optimum; of a solution's file, its own answer, judged anew."""
    from dualmech.crosscheck import judging
    from dualmech.crosscheck.command import inputs, report

    given = {"covariance": covariance, "strategy": strategy, "query_weights": query_weights}
    if mechanism is None and not any(given.values()) and (own := inputs.read_solution(str(workload))):
        _judge_solution(context, own, tol)
    if mechanism is not None:
        from dualmech.crosscheck.command import wasting

        leave((wasting.judge_waste(context, str(workload), mechanism, output), tol))
    if output is not None:
        raise UsageError("--output of judge belongs to --mechanism: it writes the better one")
    request = request_of(context)
    if problem != "fitness" and (rho is not None or epsilon is not None):
        raise UsageError(
            f"--rho and --epsilon belong to solve; judge takes an answer to --problem {problem} at "
            f"sensitivity 1, and reports another one scaled to it"
        )
    request.refuse_foreign(**given)
    kinds = [kind for kind, path in given.items() if path is not None]
    if len(kinds) != 1:
        either = "either --covariance FILE or --strategy FILE"
        wanted = "--query-weights FILE" if problem == "weighting" else either
        raise UsageError(f"give {wanted}: the answer to judge")
    path = str(given[kinds[0]])
    with passing("reading") as line:
        request = request.under(inputs.read_own_neighbours(path), path)
        answer = inputs.read_mechanism(path) if kinds[0] == "covariance" else None
        by_name = inputs.names_causal(strategy)
        on_cells = answer is None and not by_name and request.geometry == "auto"
        posed = request.state("dense" if on_cells else None)
        if by_name:
            answer = inputs.read_causal(posed, str(strategy))
        if answer is None:
            answer = inputs.read_answer(posed, kinds[0], path)
        line.say("finding the judge's bound")
        verdict = judging.judge(posed, answer, callback=line)
    report.verdict_report(report.console(), posed, verdict, request.terms)
    leave((verdict, tol))


def _judge_solution(context: typer.Context, own: dm.Solution, tol: float) -> None:
    """Report a solution from a file, which was judged anew when it was read, and leave."""
    from dualmech.crosscheck.command import report
    from dualmech.crosscheck.families import family_of

    family = family_of(own.problem)
    spent = ("rho", "epsilon") if family.at_a_cost else ()
    used = ("workload", "tol", "z", "delta", *spent)
    options.refuse_unused(context, used, "a solution, whose file says what was asked")
    with passing("reading"):
        posed: dict[str, Any] = {
            "problem": family.name,
            "privacy": getattr(own.problem, "privacy", None),
        }
        request = request_of(context, None, **posed if family.at_a_cost else {})
    report.solution_report(report.console(), own, request.terms)
    leave((own.certificate, tol))


def simulate(
    data: Annotated[
        str, typer.Argument(metavar="RECORDS", help="CSV file of codes from 0, with a header of attributes.")
    ],
    source: Annotated[
        str,
        typer.Argument(
            metavar="MECHANISM",
            help="File of a marginal mechanism, or of a solution of tables, of their attributes.",
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DIRECTORY", help="New folder for the noisy tables.")
    ],
    rng: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the noise, to repeat it. [default: from the operating system]"),
    ] = None,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Count a file without records.")] = False,
) -> None:
    """Count records in one pass, add a mechanism's noise, and write consistent tables. For study, not for release."""
    from dualmech.crosscheck.command import report, simulation

    with passing("counting and measuring"):
        done = simulation.simulate(data, source, output, rng, allow_empty)
    typer.echo(simulation.WARNING, err=True)
    out = report.console()
    for line in done:
        out.print(line, markup=False, soft_wrap=True)


def request_of(context: typer.Context, kind: type[Request] | None = None, **given: Any) -> Request:
    """Return what a command's options pose, those of `Request` by the same name, or another kind; the file is read."""
    from dualmech.crosscheck.command.request import Request

    chosen = kind or Request
    known = [each.name for each in fields(chosen)]
    return chosen(
        **{name: context.params[name] for name in known if name in context.params} | given
    ).specified()


def _started(path: str) -> Any:
    from dualmech.crosscheck.command import inputs

    found = inputs.read_solution(path)
    if found is None:
        raise UsageError(f"--start takes the file of a solution, which {path} is not")
    return found


def _solve(
    options: dict[str, Any], problem: Any, layer: Layer, backend: str | None, tol: float | None, line: Line
) -> Solved:
    if layer is Layer.FAST:
        line.say("solving")
        return dm.fast.solve(problem, tol=1e-6 if tol is None else tol, callback=line, **options), ()
    line.say("loading CVXPY")
    chosen = backend or "CLARABEL"
    line.say(dm.reference.program_name(problem, backend=chosen))
    return dm.reference.solve(problem, backend=chosen, tol=tol), ()


def _refine(problem: Any, layer: Layer, backend: str | None, tol: float | None, line: Line) -> Solved:
    if layer is Layer.FAST:
        line.say("refining")
        found = dm.fast.refine(problem, tol=1e-9 if tol is None else tol, callback=line)
    else:
        line.say(f"{backend or 'CLARABEL'}: refining")
        found = dm.reference.refine(problem, backend=backend or "CLARABEL", tol=tol)
    return found.solution, found.stages


def leave(*judged: tuple[Certificate, float]) -> None:
    """Leave with status 0 if every certificate is within its tolerance, else with 3 and a line that says why."""
    from dualmech.crosscheck.command import report

    for certificate, tol in judged:
        if not certificate.certifies(tol):
            typer.echo(f"dualmech: {report.uncertified_line(certificate, tol)}", err=True)
            raise typer.Exit(3)
    raise typer.Exit(0)
