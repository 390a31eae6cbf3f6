"""Arguments and options that several commands share: how a problem is asked for on the command line."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from dualmech.crosscheck.families import FAMILIES, POSED, Family
from dualmech.errors import DualmechError, InvalidInputError, did_you_mean


class UsageError(DualmechError):
    """Options that do not go together, whatever their values."""


ON_GEOMETRY = ("fitness", "variance")
"""Problems whose noise is evaluated on a geometry that may be chosen."""


def problem_option(families: Collection[Family], help: str) -> Any:
    """Return the option that names a problem; another name is a fault of usage, answered with the nearest one."""
    known = [family.name for family in families]

    def parsed(text: str) -> str:
        if text not in known:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(known)}{did_you_mean(text, known)}")
        return text

    return typer.Option("--problem", parser=parsed, metavar=f"[{'|'.join(known)}]", help=help)


def given(context: typer.Context) -> list[str]:
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def spelt(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def refuse_unused(context: typer.Context, used: Collection[str], whose: str) -> None:
    """Raise `UsageError` for an option that was given although nothing would read it; `whose` says why."""
    for name in given(context):
        if name not in used:
            raise UsageError(f"{spelt(name)} is not for {whose}")


def fraction(text: str) -> Fraction:
    from dualmech import validate  # which loads NumPy, and help needs none

    try:
        return validate.rational(text)
    except (ValueError, ZeroDivisionError) as error:
        raise typer.BadParameter(f"{validate.shown(text)} is no number, nor a fraction such as 1/10") from error


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
AnyEpsilon = Annotated[
    float | None,
    typer.Option("--epsilon", help="fitness: the same of (ε, δ), with --delta. local, projection: the privacy."),
]
AnyDelta = Annotated[float | None, typer.Option("--delta", help="fitness: δ at which ε is spent.")]
Criterion = Annotated[
    str | None,
    typer.Option(
        help="local: average or worst, the user's variance. common: trace or volume of the noise. "
        "[default: average, trace]"
    ),
]
Prior = Annotated[str | None, typer.Option(help="local: file with how likely each user type is.")]
Answers = Annotated[str | None, typer.Option(help="estimate: file of the noisy answers.")]
Total = Annotated[float | None, typer.Option(help="estimate: the number of records, where it is known.")]
ExplainedProblem = Annotated[
    str, problem_option(FAMILIES, " ".join(f"{family.name}: {family.help or family.explained}." for family in FAMILIES))
]
Public = Annotated[
    bool, typer.Option("--public", help="Let others on this machine read what is written; else its owner alone does.")
]
Rho = Annotated[
    Fraction | None,
    typer.Option(
        parser=fraction,
        metavar="NUMBER",
        help="Spend this ρ (zCDP): fitness then minimises the factor on targets. [default of variance, weighting: 0.5]",
    ),
]
Neighbours = Annotated[
    str | None,
    typer.Option(
        help="add-remove, replace, either with :RECORDS a person, replace within ATTRIBUTE, "
        "contributions:ATTRIBUTE:RECORDS:GROUPS, participation:TIMES:SEPARATION (with :signs, :at-least), "
        "or a file of differences. "
        "[default: add-remove; of an answer in a file, its own]"
    ),
]


class Posing:
    """The options that pose a problem, with their defaults: what `Request` holds besides the workload."""

    problem: Annotated[str, problem_option(POSED, " ".join(f"{family.name}: {family.help}." for family in POSED))] = (
        "fitness"
    )
    targets: Annotated[
        str | None,
        typer.Option(
            help="Variance targets: one number, or a file of one per query or one per table, or of lines of "
            "name,target that name queries, their groups or tables. [default: 1]"
        ),
    ] = None
    moe: Annotated[
        str | None, typer.Option("--moe", help="Targets as margins of error instead: a number or a file.")
    ] = None
    after: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="What is released already, a folder of a release or the file of a plan or mechanism: what costs "
            "least together with it?",
        ),
    ] = None
    z: Annotated[
        float | None,
        typer.Option(
            "--z",
            help="Margin of error in standard deviations. [default: 1.645; of a specification, that of its level]",
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(help="variance: what each query's variance counts, in the forms of --targets. [default: 1]"),
    ] = None
    design: Annotated[
        str | None,
        typer.Option(
            help="weighting: eigen, haar, fourier, tree, identity, queries, or a file of design queries. "
            "[default: eigen]"
        ),
    ] = None
    privacy: Annotated[
        Privacy | None, typer.Option(help="weighting: Gaussian noise, or Laplace noise. [default: approximate]")
    ] = None
    t1: Annotated[float | None, typer.Option("--t1", help="softmax: sharpness of the soft maximum of costs.")] = None
    t2: Annotated[
        float | None, typer.Option("--t2", help="softmax: the same of variances over targets. [default: t1]")
    ] = None
    total_weight: Annotated[
        float | None, typer.Option(help="softmax: weight of the total variance added to them. [default: 0]")
    ] = None
    rho: Rho = None
    cap: Annotated[
        list[str] | None,
        typer.Option(
            "--cap",
            metavar="NAME=NUMBER",
            help="With --rho or --epsilon: a variance (with --moe a margin) that this table, group or query must "
            "keep, while the factor on the other targets is minimised; or a .csv file of lines of name,number. May be "
            "repeated.",
        ),
    ] = None
    epsilon: Annotated[
        float | None, typer.Option(help="Spend (ε, δ) instead, with --delta; with pure privacy, ε alone.")
    ] = None
    delta: Annotated[
        float | None, typer.Option(help="δ at which ε is spent or reported. [default for reports: 1e-9]")
    ] = None
    neighbours: Neighbours = None
    geometry: Annotated[
        str,
        typer.Option(
            "--geometry",
            help="fitness, variance: how noise is evaluated, auto, dense, blocks, product, split or stream.",
        ),
    ] = "auto"


POSING = {name: (kind, getattr(Posing, name)) for name, kind in get_type_hints(Posing, include_extras=True).items()}


def poses(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command, after its workload, the options of `POSING` but those named, or its own in their place.

    Their values are in its context: `request_of` reads them there.
    """

    def widened(command: Callable[..., None]) -> Callable[..., None]:
        declared = dict(inspect.signature(command, eval_str=True).parameters)

        @functools.wraps(command)
        def run(**values: Any) -> None:
            command(**{name: values[name] for name in declared})

        parameters: dict[str, inspect.Parameter] = {}
        for name, parameter in declared.items():
            parameters.setdefault(name, parameter)
            if name == "workload":
                for posed, (kind, default) in POSING.items():
                    fresh = inspect.Parameter(posed, parameter.kind, default=default, annotation=kind)
                    parameters |= {} if posed in without else {posed: declared.get(posed, fresh)}
        vars(run)["__signature__"] = inspect.Signature([*parameters.values()])
        run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
        return run

    return widened


class Use(NamedTuple):
    """When a command reads some of its options: what must hold of all of them, and what to say where it does not."""

    options: tuple[str, ...]
    when: Callable[[Mapping[str, object]], bool]
    words: str  # after the name of the option
    commands: tuple[str, ...] = ()  # all that have the options, if none is named


def _judges_a_file(values: Mapping[str, object]) -> bool:
    return not any(values[name] for name in ("covariance", "strategy", "query_weights"))


APART_FROM_CLASSES = ("method", "start", "time_limit", "prove", "rho", "epsilon")
"""Options of solve that the search within a class of strategies does not read."""

USES = (
    Use(
        ("backend", "formulation"),
        lambda options: options["layer"] == "reference",
        "belongs to --layer reference; the fast layer has none",
    ),
    Use(
        ("method", "start", "time_limit"),
        lambda options: options["layer"] == "fast" and not options["refine"],
        "belongs to --layer fast without --refine",
        ("solve",),
    ),
    Use(
        ("within",),
        lambda options: (
            options["layer"] == "fast"
            and not (options["refine"] or any(options[name] is not None for name in APART_FROM_CLASSES))
        ),
        "belongs to --layer fast without --refine, --method, --start, --time-limit, --prove, --rho and --epsilon",
        ("solve",),
    ),
    Use(
        tuple(POSING),
        lambda options: options["workload"] is not None,
        "poses a problem, and such options need a WORKLOAD, which the proof is to be of",
        ("verify",),
    ),
    Use(
        ("geometry",),
        lambda options: options["problem"] in ON_GEOMETRY,
        f"belongs to --problem {' or '.join(ON_GEOMETRY)}",
    ),
    Use(("z",), lambda options: options["moe"] is not None, "is for --moe", ("verify",)),
    Use(
        ("z",),
        lambda options: options["moe"] is not None or _judges_a_file(options),
        "is for --moe: the verdict on an answer has no margins",
        ("judge",),
    ),
    Use(("delta",), lambda options: options["epsilon"] is not None, "is for --epsilon", ("verify", "explain")),
    Use(
        ("delta",),
        lambda options: options["epsilon"] is not None or _judges_a_file(options),
        "is for --epsilon: the verdict on an answer has no other",
        ("judge",),
    ),
    Use(
        ("rho", "epsilon"),
        lambda options: options["problem"] == "fitness" or _judges_a_file(options),
        "belongs to solve; but for fitness, judge takes an answer at sensitivity 1, and reports another scaled to it",
        ("judge",),
    ),
    Use(
        ("output",),
        lambda options: options["mechanism"] is not None,
        "belongs to --mechanism: it writes the better one",
        ("judge",),
    ),
    Use(
        ("output", "allow_empty"),
        lambda options: not options["dry_run"],
        "is not for --dry-run, which reads no record and writes nothing",
        ("release",),
    ),
)
"""Every option that some way of calling a command does not read; a family's own options are in its record."""


STUDIES = "For studies"
"""Under what the help lists the commands that an office has no use for."""

OTHERS = "For other problems"

PANELS: dict[str, tuple[str, ...]] = {
    "What is asked": ("targets", "moe", "cap", "after", "z", "neighbours", "level", "simultaneous", "problem"),
    "Privacy": ("rho", "epsilon", "delta", "ledger"),
    "What is written": ("output", "prove", "latex", "public", "dry_run"),
    OTHERS: (
        *("weights", "design", "privacy", "query_weights", "criterion", "prior", "answers", "total"),
        *("t1", "t2", "total_weight"),
    ),
    "For experts": (
        *("tol", "refine", "within", "layer", "backend", "method", "formulation", "geometry", "start", "time_limit"),
        "threads",
        *("allow_empty", "help"),
    ),
}
"""By group, the options of commands that have many, in the order of their help."""

WRITTEN = "dualmech.written"  # under which a command keeps the arguments that it was given

MANY = 8  # options from which a command's are grouped


def _printing_latex(args: list[str]) -> list[str]:
    """Return what was written with ``-``, for printing, behind a ``--latex`` that has no file."""
    last = len(args) - 1
    bare = (word == "--latex" and (place == last or args[place + 1][:2] == "--") for place, word in enumerate(args))
    return [part for word, alone in zip(args, bare, strict=True) for part in ([word, "-"] if alone else [word])]


class Checked(TyperCommand):
    """A command that refuses, by name and before any work, an option that was given and that nothing would read.

    Its help shows many options by groups, experts' options last, and where a problem is named only its own.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep what was written, for the help, which is shown before anything is read."""
        ctx.meta[WRITTEN] = [*args]
        return super().parse_args(ctx, _printing_latex(args))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options by group."""
        named = _problem_named(ctx.meta.get(WRITTEN, []))
        panels = {name: title for title, names in PANELS.items() for name in names}
        options = [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        titles: dict[str, list[Any]] = {"Arguments": [], "Options": [], **{title: [] for title in PANELS}}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or named not in (None, *owners_of(str(param.name), named)):
                continue
            grouped = panels.get(str(param.name), "Options") if len(options) > MANY else "Options"
            titles["Arguments" if param not in options else grouped].append(record)
        for title, records in titles.items():
            if records:
                panel = f"For {named}" if named is not None and title == OTHERS else title
                with formatter.section(panel):
                    formatter.write_dl(records)

    def invoke(self, ctx: Any) -> object:
        """Refuse such options, then run the command."""
        values = given(ctx)
        for use in USES:
            concerned = not use.commands or self.name in use.commands
            for name in use.options:
                if concerned and name in values and not use.when(ctx.params):
                    raise UsageError(f"{spelt(name)} {use.words}")
        if ctx.params.get("public", True):
            return super().invoke(ctx)
        from dualmech.files.atomic import owner_only  # which loads NumPy, and help needs none

        with owner_only():
            return super().invoke(ctx)


def owners_of(option: str, otherwise: str | None = None) -> list[str | None]:
    return [family.name for family in FAMILIES if option in family.options] or [otherwise]


def _problem_named(written: list[str]) -> str | None:
    line = " ".join(written).replace("--problem=", "--problem ").split()
    named = [after for word, after in pairwise(line) if word == "--problem"]
    return named[-1] if named and named[-1] in [family.name for family in FAMILIES] else None


class Grouped(TyperGroup):
    """The command itself; its help lists commands for an office and a researcher first, then commands for studies."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by group, in the order in which they were added."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            title = command.rich_help_panel if isinstance(command.rich_help_panel, str) else "Commands"
            groups.setdefault(title, []).append((name, command.get_short_help_str(formatter.width)))
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def tolerance(value: float | None) -> float | None:
    """Return a gap to prove; one that every answer meets, or none, is refused."""
    if value is not None and not 0 < value < math.inf:
        raise InvalidInputError(f"tol must be positive and finite, got {value:g}")
    return value


# What columns of records mean.


Count = Annotated[
    str | None,
    typer.Option("--count", metavar="COLUMN", help="The column that says how many records a row stands for."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="COLUMN", help="A column that seems to be counts, and is not read; repeat it."),
]
