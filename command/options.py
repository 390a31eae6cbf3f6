"""Arguments and options that several commands share: how a problem is asked for on the command line."""

from __future__ import annotations

import math
from enum import StrEnum
from fractions import Fraction
from typing import Annotated

import typer

from dualmech.crosscheck.families import FAMILIES, POSED
from dualmech.errors import DualmechError, InvalidInputError, did_you_mean


class UsageError(DualmechError):
    """Options that do not go together, whatever their values."""


class Layer(StrEnum):
    """Which solver answers."""

    FAST = "fast"
    REFERENCE = "reference"


Family = StrEnum("Family", {family.name.upper(): family.name for family in POSED})  # type: ignore[misc]
"""Which problem is asked."""

Explained = StrEnum("Explained", {family.name.upper(): family.name for family in FAMILIES})  # type: ignore[misc]
"""Which problem is explained: any that there is."""

FITNESS = Family("fitness")
FITNESS_EXPLAINED = Explained("fitness")


def family(text: str) -> Family:
    """Return the problem of a name; another is a fault of usage, answered with the name that is nearest."""
    return Family(_known(text, [each.value for each in Family]))


def explained(text: str) -> Explained:
    """Return the problem of a name, of all that there are."""
    return Explained(_known(text, [each.value for each in Explained]))


def _known(text: str, known: list[str]) -> str:
    if text not in known:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(known)}{did_you_mean(text, known)}")
    return text


def refuse_unused(context: typer.Context, used: tuple[str, ...], whose: str) -> None:
    """Raise `UsageError` for an option that was given although nothing would read it; `whose` says why."""
    for name in context.params:
        stated = context.get_parameter_source(name)
        if name not in used and stated is not None and stated.name == "COMMANDLINE":
            raise UsageError(f"--{name.replace('_', '-')} is not for {whose}")


def tolerance(given: float | None) -> float | None:
    """Return a gap to prove; one that every answer meets, or none, is refused."""
    if given is not None and not 0 < given < math.inf:
        raise InvalidInputError(f"tol must be positive and finite, got {given:g}")
    return given


def fraction(text: str) -> float:
    """Return a number, or a fraction such as 1/10, as the nearest one that is not above it."""
    try:
        found = Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise typer.BadParameter(f"{text!r} is no number, nor a fraction such as 1/10") from error
    near = float(found)
    return near if Fraction(near) <= found else math.nextafter(near, -math.inf)


class Privacy(StrEnum):
    """Which noise the weighted design queries get."""

    APPROXIMATE = "approximate"
    PURE = "pure"


Workload = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A built-in such as prefix:64, marginals:2x2x63:1,2 or census_redistricting, or a file.",
    ),
]
Asked = Annotated[
    list[str],
    typer.Argument(
        metavar="WORKLOAD",
        help="A built-in such as prefix:64, a file, or a solution's file; of common, the files of mechanisms.",
    ),
]
AnyRho = Annotated[
    float | None,
    typer.Option(
        "--rho",
        parser=fraction,
        metavar="NUMBER",
        help="fitness: spend this ρ (zCDP), and minimise the factor on targets.",
    ),
]
AnyEpsilon = Annotated[
    float | None,
    typer.Option(
        "--epsilon", help="fitness: the same of (ε, δ), with --delta. local, projection: the privacy."
    ),
]
AnyDelta = Annotated[float | None, typer.Option("--delta", help="fitness: δ at which ε is spent.")]
Criterion = Annotated[
    str | None,
    typer.Option(help="local: the average user's variance or the worst one's. [default: average]"),
]
Prior = Annotated[str | None, typer.Option(help="local: file with how likely each user type is.")]
Released = Annotated[str | None, typer.Option(help="reuse: file of the mechanism that is out already.")]
Answers = Annotated[str | None, typer.Option(help="estimate: file of the noisy answers.")]
Total = Annotated[float | None, typer.Option(help="estimate: the number of records, where it is known.")]
AnyProblem = Annotated[
    Explained,
    typer.Option(
        "--problem",
        parser=explained,
        metavar=f"[{'|'.join(Explained)}]",
        help=" ".join(f"{family.name}: {family.help or family.explained}." for family in FAMILIES),
    ),
]
Problem = Annotated[
    Family,
    typer.Option(
        "--problem",
        parser=family,
        metavar=f"[{'|'.join(Family)}]",
        help=" ".join(f"{family.name}: {family.help}." for family in POSED),
    ),
]
Targets = Annotated[
    str | None,
    typer.Option(
        help="Variance targets: one number, or a file of one per query or one per table, or of lines of name,target "
        "that name queries, their groups or tables. [default: 1]"
    ),
]
Margins = Annotated[
    str | None, typer.Option("--moe", help="Targets as margins of error instead: a number or a file.")
]
Caps = Annotated[
    list[str] | None,
    typer.Option(
        "--cap",
        metavar="NAME=NUMBER",
        help="With --rho or --epsilon: a variance (with --moe a margin) that this table, group or query must keep, "
        "while the factor on the other targets is minimised; or a .csv file of lines of name,number. May be repeated.",
    ),
]
Quantile = Annotated[
    float | None,
    typer.Option(
        "--z",
        help="Margin of error in standard deviations. [default: 1.645; of a specification, that of its level]",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(help="variance: what each query's variance counts, in the forms of --targets. [default: 1]"),
]
Design = Annotated[
    str | None,
    typer.Option(
        help="weighting: eigen, haar, fourier, tree, identity, queries, or a file of design queries. "
        "[default: eigen]"
    ),
]
Kind = Annotated[
    Privacy | None,
    typer.Option(help="weighting: Gaussian noise, or Laplace noise. [default: approximate]"),
]
CostSharpness = Annotated[
    float | None, typer.Option("--t1", help="softmax: sharpness of the soft maximum of costs.")
]
VarianceSharpness = Annotated[
    float | None, typer.Option("--t2", help="softmax: the same of variances over targets. [default: t1]")
]
TotalWeight = Annotated[
    float | None, typer.Option(help="softmax: weight of the total variance beside them. [default: 0]")
]
Rho = Annotated[
    float | None,
    typer.Option(
        parser=fraction,
        metavar="NUMBER",
        help="Spend this ρ (zCDP): fitness then minimises the factor on targets. [default of variance, "
        "weighting: 0.5]",
    ),
]
Epsilon = Annotated[
    float | None, typer.Option(help="Spend (ε, δ) instead, with --delta; with pure privacy, ε alone.")
]
Delta = Annotated[
    float | None, typer.Option(help="δ at which ε is spent or reported. [default for reports: 1e-9]")
]
Neighbours = Annotated[
    str | None,
    typer.Option(
        help="add-remove, replace, either with :RECORDS a person, contributions:ATTRIBUTE:RECORDS:GROUPS, or a file of "
        "differences. [default: add-remove; of an answer in a file, its own]"
    ),
]
Geometry = Annotated[
    str,
    typer.Option(
        "--geometry",
        help="fitness, variance: how noise is evaluated, auto, dense, blocks, product, split or stream.",
    ),
]
