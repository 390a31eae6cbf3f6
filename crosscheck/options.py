"""Arguments and options that several commands share: how a problem is asked for on the command line."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Layer(StrEnum):
    """Which solver answers."""

    FAST = "fast"
    REFERENCE = "reference"


Workload = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD", help="A built-in such as prefix:64 or marginals:2x2x63:1,2, or a file."
    ),
]
Targets = Annotated[
    str | None, typer.Option(help="Variance targets: one number, or a file of one a query. [default: 1]")
]
Margins = Annotated[
    str | None, typer.Option("--moe", help="Targets as margins of error instead: a number or a file.")
]
Quantile = Annotated[float, typer.Option("--z", help="Margin of error in standard deviations.")]
Rho = Annotated[
    float | None, typer.Option(help="Privacy first: spend this ρ (zCDP) and minimise the factor on targets.")
]
Epsilon = Annotated[float | None, typer.Option(help="Privacy first: spend (ε, δ), with --delta.")]
Delta = Annotated[
    float | None, typer.Option(help="δ at which ε is spent or reported. [default for reports: 1e-9]")
]
Neighbours = Annotated[
    str, typer.Option(help="add-remove, replace, either with :RECORDS a person, or a file of differences.")
]
