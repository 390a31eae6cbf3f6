"""The command ``explain``: its options, and where the explanation goes."""

from __future__ import annotations

from typing import Annotated

import typer

import dualmech as dm
from dualmech.crosscheck.command import options
from dualmech.crosscheck.command.commands import leave, request_of
from dualmech.crosscheck.command.options import Layer, UsageError
from dualmech.watching import passing


def explain(
    context: typer.Context,
    workload: options.Asked,
    problem: options.AnyProblem = options.FITNESS_EXPLAINED,
    targets: options.Targets = None,
    moe: options.Margins = None,
    weights: options.Weights = None,
    design: options.Design = None,
    privacy: options.Kind = None,
    t1: options.CostSharpness = None,
    t2: options.VarianceSharpness = None,
    total_weight: options.TotalWeight = None,
    rho: options.AnyRho = None,
    epsilon: options.AnyEpsilon = None,
    delta: options.AnyDelta = None,
    criterion: options.Criterion = None,
    prior: options.Prior = None,
    released: options.Released = None,
    answers: options.Answers = None,
    total: options.Total = None,
    neighbours: options.Neighbours = None,
    geometry: options.Geometry = "auto",
    layer: Annotated[
        Layer, typer.Option(help="Whose answer, and of the reference layer whose program.")
    ] = Layer.FAST,
    formulation: Annotated[
        str | None, typer.Option(help="Which program of the reference layer. [default: its first]")
    ] = None,
    tol: Annotated[
        float | None,
        typer.Option(
            callback=options.tolerance,
            help="Gap to prove, of the interval as well. [default: 1e-6 fast, by backend otherwise]",
        ),
    ] = None,
    latex: Annotated[
        str | None, typer.Option(help="Write it as LaTeX to this .tex file instead, or - to print that.")
    ] = None,
) -> None:
    """Print the program, its dual, the optimal weights, the prices and the proof in words."""
    if formulation is not None and layer is Layer.FAST:
        raise UsageError("--formulation belongs to --layer reference; the fast layer has none")
    if latex not in (None, "-"):
        dm.files.check_writable(str(latex), ".tex")
    with passing("reading"):
        from dualmech.crosscheck.command import explanation, inputs, report
        from dualmech.crosscheck.command.posing import AnyRequest

        answer = held = inputs.read_solution(workload[0]) if len(workload) == 1 else None
        posed = (
            request_of(context, AnyRequest, workload=workload[0], others=tuple(workload[1:])).state()
            if answer is None
            else answer.problem
        )
    if held is not None:
        used = ("workload", "layer", "formulation", "latex", "tol")
        options.refuse_unused(context, used, "a solution, whose file says what was asked")
    stated = None
    if answer is not None and tol is not None and not answer.certificate.certifies(tol):
        answer = None  # of which more is asked than its file holds
    if layer is Layer.REFERENCE:
        answer, stated = explanation.stated_and_solved(posed, answer, formulation, tol)
    answer = explanation.solved(posed, tol or explanation.TOLERANCE) if answer is None else answer
    page = explanation.sections(answer, stated)
    if latex is None:
        explanation.show(report.console(), page)
    else:
        explanation.write_latex(page, latex)
    leave((answer.certificate, answer.tol))
