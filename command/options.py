"""Arguments and options of several commands, which pose a problem, and checks that a command uses its options."""

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
    """An invalid combination of options."""


ON_GEOMETRY = ("fitness", "variance")
"""Problems with an option for the geometry."""


def problem_option(families: Collection[Family], help: str) -> Any:
    """Return the option that names a problem; an unknown name is refused with a hint."""
    names = [family.name for family in families]

    def parsed(text: str) -> str:
        if text not in names:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(names)}{did_you_mean(text, names)}")
        return text

    return typer.Option("--problem", parser=parsed, metavar=f"[{'|'.join(names)}]", help=help)


def command_line_options(context: typer.Context) -> list[str]:
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def option_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def refuse_unused(context: typer.Context, used_options: Collection[str], case: str) -> None:
    """Raise `UsageError` for an option on the command line that is not used in this case."""
    for name in command_line_options(context):
        if name not in used_options:
            raise UsageError(f"{option_name(name)} is not for {case}")


def fraction(text: str) -> Fraction:
    from dualmech import validate  # imports NumPy, which help does not need

    try:
        return validate.rational(text)
    except (ValueError, ZeroDivisionError) as error:
        raise typer.BadParameter(f"{validate.shown(text)} is no number, nor a fraction such as 1/10") from error


class Privacy(StrEnum):
    """Noise of the weighted design queries: Gaussian or Laplace."""

    APPROXIMATE = "approximate"
    PURE = "pure"


Workload = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A built-in such as prefix:64, marginals:2x2x63:1,2 or census_redistricting, or a file.",
    ),
]
Workloads = Annotated[
    list[str],
    typer.Argument(
        metavar="WORKLOAD",
        help="A built-in such as prefix:64, a file, or a solution's file; for common, the files of mechanisms.",
    ),
]
AnyEpsilon = Annotated[
    float | None,
    typer.Option("--epsilon", help="fitness: ε of a budget (ε, δ), with --delta. local, projection: the privacy."),
]
AnyDelta = Annotated[float | None, typer.Option("--delta", help="fitness: δ of the budget (ε, δ).")]
Criterion = Annotated[
    str | None,
    typer.Option(
        help="local: average or worst, the user's variance. common: trace or volume of the noise. "
        "[default: average, trace]"
    ),
]
Prior = Annotated[str | None, typer.Option(help="local: file with the probability of each user type.")]
Answers = Annotated[str | None, typer.Option(help="estimate: file of the noisy answers.")]
Total = Annotated[float | None, typer.Option(help="estimate: the number of records, if known.")]
ExplainedProblem = Annotated[
    str, problem_option(FAMILIES, " ".join(f"{family.name}: {family.help or family.explained}." for family in FAMILIES))
]
Public = Annotated[
    bool,
    typer.Option(
        "--public", help="Let other users of this machine read the written files; by default only their owner can."
    ),
]
Rho = Annotated[
    Fraction | None,
    typer.Option(
        parser=fraction,
        metavar="NUMBER",
        help="Budget ρ (zCDP): fitness then minimises the factor on targets. [default of variance, weighting: 0.5]",
    ),
]
Neighbours = Annotated[
    str | None,
    typer.Option(
        help="add-remove or replace, with :RECORDS of a person, replace within ATTRIBUTE, "
        "contributions:ATTRIBUTE:RECORDS:GROUPS, participation:TIMES:SEPARATION (with :signs, :at-least), "
        "or a file of differences. "
        "[default: add-remove, or the neighbours of an answer in a file]"
    ),
]


class Posing:
    """The options that pose a problem, with their defaults: the fields of `Request` besides the workload."""

    problem: Annotated[str, problem_option(POSED, " ".join(f"{family.name}: {family.help}." for family in POSED))] = (
        "fitness"
    )
    targets: Annotated[
        str | None,
        typer.Option(
            help="Variance targets: one number, or a file with one number for each query or table, or with lines "
            "name,target of queries, their groups or tables. [default: 1]"
        ),
    ] = None
    moe: Annotated[
        str | None, typer.Option("--moe", help="Targets as margins of error instead: a number or a file.")
    ] = None
    after: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Earlier release, a folder of a release or the file of a plan or mechanism: minimise the cost "
            "together with it.",
        ),
    ] = None
    z: Annotated[
        float | None,
        typer.Option(
            "--z",
            help="Margin of error in standard deviations. [default: 1.645, or by the level of a specification]",
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(help="variance: weight of each query's variance, in the forms of --targets. [default: 1]"),
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
    t1: Annotated[
        float | None, typer.Option("--t1", help="softmax: inverse temperature of the soft maximum of costs.")
    ] = None
    t2: Annotated[
        float | None, typer.Option("--t2", help="softmax: the same for variances divided by targets. [default: t1]")
    ] = None
    total_weight: Annotated[
        float | None, typer.Option(help="softmax: weight of the total variance, which is added. [default: 0]")
    ] = None
    rho: Rho = None
    cap: Annotated[
        list[str] | None,
        typer.Option(
            "--cap",
            metavar="NAME=NUMBER",
            help="With --rho or --epsilon: the maximum variance (with --moe, margin) of this table, group or query, "
            "while the factor on the other targets is minimised; or a .csv file of lines of name,number. May be "
            "repeated.",
        ),
    ] = None
    epsilon: Annotated[
        float | None, typer.Option(help="Budget (ε, δ) instead, with --delta; with pure privacy, only ε.")
    ] = None
    delta: Annotated[
        float | None, typer.Option(help="δ of the budget or the reported (ε, δ). [default for reports: 1e-9]")
    ] = None
    neighbours: Neighbours = None
    geometry: Annotated[
        str,
        typer.Option(
            "--geometry",
            help="fitness, variance: representation of the noise, auto, dense, blocks, product, split or stream.",
        ),
    ] = "auto"


POSING = {name: (kind, getattr(Posing, name)) for name, kind in get_type_hints(Posing, include_extras=True).items()}


def poses(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of `POSING`, except `without`, to a command after its workload.

    An option that the command declares itself is kept. `request_of` reads the values from the command's context.
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
                for option, (kind, default) in POSING.items():
                    added = inspect.Parameter(option, parameter.kind, default=default, annotation=kind)
                    parameters |= {} if option in without else {option: declared.get(option, added)}
        vars(run)["__signature__"] = inspect.Signature([*parameters.values()])
        run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
        return run

    return widened


class Use(NamedTuple):
    """A condition under which a command uses some of its options, and the message if it does not hold."""

    options: tuple[str, ...]
    condition: Callable[[Mapping[str, object]], bool]  # on the values of all options
    message: str  # follows the name of the option
    commands: tuple[str, ...] = ()  # by default all commands with these options


def _judges_a_file(values: Mapping[str, object]) -> bool:
    return not any(values[name] for name in ("covariance", "strategy", "query_weights"))


OPTIONS_WITHOUT_WITHIN = ("method", "start", "time_limit", "prove", "rho", "epsilon")
"""Options of solve that the search within a class of strategies does not use."""

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
            and not (options["refine"] or any(options[name] is not None for name in OPTIONS_WITHOUT_WITHIN))
        ),
        "belongs to --layer fast without --refine, --method, --start, --time-limit, --prove, --rho and --epsilon",
        ("solve",),
    ),
    Use(
        tuple(POSING),
        lambda options: options["workload"] is not None,
        "poses a problem, and needs the WORKLOAD of the proof",
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
        "is for --epsilon: the verdict on an answer has no other δ",
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
"""Conditions on the options of commands; conditions on a family's options are in its record."""


STUDIES = "For studies"
"""Heading in the help of commands that offices do not need."""

OTHER_PROBLEMS = "For other problems"

PANELS: dict[str, tuple[str, ...]] = {
    "Problem": ("targets", "moe", "cap", "after", "z", "neighbours", "level", "simultaneous", "problem"),
    "Privacy": ("rho", "epsilon", "delta", "ledger"),
    "Output": ("output", "prove", "latex", "public", "dry_run"),
    OTHER_PROBLEMS: (
        *("weights", "design", "privacy", "query_weights", "criterion", "prior", "answers", "total"),
        *("t1", "t2", "total_weight"),
    ),
    "For experts": (
        *("tol", "refine", "within", "layer", "backend", "method", "formulation", "geometry", "start", "time_limit"),
        "threads",
        *("allow_empty", "help"),
    ),
}
"""Groups of options in the help of commands with many options, in this order."""

ARGUMENTS = "dualmech.written"  # key of a command's arguments in its context

MAX_UNGROUPED = 8  # options of a command in one group


def _printing_latex(args: list[str]) -> list[str]:
    """Return the arguments, with ``-`` (print) inserted after a ``--latex`` without a file."""
    last = len(args) - 1
    no_file = (word == "--latex" and (place == last or args[place + 1][:2] == "--") for place, word in enumerate(args))
    return [part for word, is_bare in zip(args, no_file, strict=True) for part in ([word, "-"] if is_bare else [word])]


class Checked(TyperCommand):
    """A command that refuses unused options on the command line, before any work.

    Its help groups many options, with experts' options last. If a problem is named, it shows only the options of that
    problem.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Store the arguments for the help, which is shown before they are parsed."""
        ctx.meta[ARGUMENTS] = [*args]
        return super().parse_args(ctx, _printing_latex(args))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options by group."""
        problem = _named_problem(ctx.meta.get(ARGUMENTS, []))
        panels = {name: title for title, names in PANELS.items() for name in names}
        options = [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        titles: dict[str, list[Any]] = {"Arguments": [], "Options": [], **{title: [] for title in PANELS}}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or problem not in (None, *families_of(str(param.name), problem)):
                continue
            group = panels.get(str(param.name), "Options") if len(options) > MAX_UNGROUPED else "Options"
            titles["Arguments" if param not in options else group].append(record)
        for title, records in titles.items():
            if records:
                panel = f"For {problem}" if problem is not None and title == OTHER_PROBLEMS else title
                with formatter.section(panel):
                    formatter.write_dl(records)

    def invoke(self, ctx: Any) -> object:
        """Refuse unused options, then run the command."""
        names = command_line_options(ctx)
        for use in USES:
            applies = not use.commands or self.name in use.commands
            for name in use.options:
                if applies and name in names and not use.condition(ctx.params):
                    raise UsageError(f"{option_name(name)} {use.message}")
        if ctx.params.get("public", True):
            return super().invoke(ctx)
        from dualmech.files.atomic import owner_only  # imports NumPy, which help does not need

        with owner_only():
            return super().invoke(ctx)


def families_of(option: str, default: str | None = None) -> list[str | None]:
    return [family.name for family in FAMILIES if option in family.options] or [default]


def _named_problem(arguments: list[str]) -> str | None:
    words = " ".join(arguments).replace("--problem=", "--problem ").split()
    names = [value for word, value in pairwise(words) if word == "--problem"]
    return names[-1] if names and names[-1] in [family.name for family in FAMILIES] else None


class Grouped(TyperGroup):
    """The main command; its help lists commands for offices and researchers first, then commands for studies."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by group, in the order of their definition."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            title = command.rich_help_panel if isinstance(command.rich_help_panel, str) else "Commands"
            groups.setdefault(title, []).append((name, command.get_short_help_str(formatter.width)))
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def tolerance(value: float | None) -> float | None:
    """Return a gap to prove; raise `InvalidInputError` if it is not positive and finite."""
    if value is not None and not 0 < value < math.inf:
        raise InvalidInputError(f"tol must be positive and finite, got {value:g}")
    return value


# Roles of the columns of records.


Count = Annotated[
    str | None,
    typer.Option("--count", metavar="COLUMN", help="The column with the number of records of each row."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore", metavar="COLUMN", help="A column to leave unread although it seems to hold counts; may be repeated."
    ),
]
