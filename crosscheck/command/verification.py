"""The command ``verify``: whether a proof file shows what it says, and of which problem."""

from __future__ import annotations

from typing import Annotated

import typer

import dualmech as dm
from dualmech.crosscheck.command import options
from dualmech.crosscheck.command.commands import request_of
from dualmech.crosscheck.command.options import UsageError
from dualmech.watching import passing


def verify(
    context: typer.Context,
    proof: Annotated[str, typer.Argument(metavar="PROOF", help="File that solve --prove wrote.")],
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="[WORKLOAD]", help="Whether the proof is of this workload, with the options below."
        ),
    ] = None,
    problem: options.Problem = options.FITNESS,
    targets: options.Targets = None,
    moe: options.Margins = None,
    z: options.Quantile = None,
    weights: options.Weights = None,
    rho: options.Rho = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    neighbours: options.Neighbours = None,
) -> None:
    """Check a proof in whole numbers, with nothing but Python's own arithmetic."""
    posing = (targets, moe, weights, rho, epsilon, delta, neighbours)
    if workload is None and any(given is not None for given in posing):
        raise UsageError("options that pose a problem need a WORKLOAD, which the proof is to be of")
    with passing("checking") as line:
        from dualmech.crosscheck.command import report

        try:
            checked = dm.verify(proof)
        except dm.CertificateError as error:
            typer.echo(f"dualmech: REFUSED: {error}", err=True)
            raise typer.Exit(3) from error
        line.say("reading")
        other = workload is not None and not checked.is_of(request_of(context).state())
    if other:
        typer.echo(
            f"dualmech: REFUSED: {proof}: it is of another problem than {workload} with these options",
            err=True,
        )
        raise typer.Exit(3)
    report.proof_line(report.console(), checked)
