"""The commands solve, judge, waste, simulate, verify, plot, explain, sweep, library and leaderboard."""

from __future__ import annotations

import math
import time
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import dualmech as dm
from dualmech.command import options
from dualmech.command.options import UsageError
from dualmech.crosscheck.families import Layer
from dualmech.errors import DualmechError, FileFormatError, InvalidInputError
from dualmech.watching import passing, without_warnings

if TYPE_CHECKING:
    from dualmech.certificate import Certificate
    from dualmech.command.request import Request
    from dualmech.problems.base import AnyProblem
    from dualmech.solution import Solution
    from dualmech.watching import Line

    AnswerAndStages = tuple[Solution, tuple[Solution, ...]]
    from dualmech.crosscheck.leaderboard import Entry, Standing


@options.poses()
def solve(
    context: typer.Context,
    workload: options.Workload,
    layer: Annotated[Layer, typer.Option(help="The library's own solver, or the CVXPY program.")] = Layer.FAST,
    backend: Annotated[
        str | None, typer.Option(help="CVXPY backend of the reference layer. [default: CLARABEL]")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Solver of the fast layer, such as newton or fixed_point; for fitness and softmax also softmax_newton "
            "(SM-II) and softmax_gradient. [default: auto]"
        ),
    ] = None,
    tol: Annotated[
        float | None,
        typer.Option(callback=options.tolerance, help="Gap to prove. [default: 1e-6 fast, by backend otherwise]"),
    ] = None,
    refine: Annotated[
        bool, typer.Option("--refine", help="fitness: minimise the sorted privacy profile lexicographically.")
    ] = False,
    within: Annotated[
        str | None,
        typer.Option(
            help="Steps only: the best strategy of a class with fast noise, banded:BANDS[:equal], "
            "toeplitz:COEFFICIENTS[:scaled] or blt:BUFFERS, and its distance from the optimum; --output stores it."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(help="Start from the solution in this .npz file, of the same or a similar problem."),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(help="Seconds after which the solver stops with its best answer, which is judged and kept."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of linear algebra and backends. [default: $DUALMECH_THREADS, else 1]")
    ] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Write the solution to this .npz file.")] = None,
    prove: Annotated[
        str | None, typer.Option(help="Write a proof in exact arithmetic to this .json file. See verify.")
    ] = None,
    public: options.Public = False,
) -> None:
    """Find the optimal noise for a workload, and prove its distance from the optimum."""
    request = request_of(context)
    request.refuse_foreign(refine=refine)
    for path, suffix in ((output, ".npz"), (prove, ".json")):
        if path is not None:
            dm.files.check_writable(path, suffix)
    if request.searches:
        from dualmech.command import capping

        leave(capping.solve_capped(request, context.params, layer, tol, output, prove))
    if within is not None:
        _solve_within(request, within, tol, output, threads)
    from dualmech.fast.methods import needs_matrix
    from dualmech.publishing.plans import as_plan
    from dualmech.threads import blas_threads

    with without_warnings(), passing("stating the problem") as line, blas_threads(threads):
        problem = _problem(request, refine or needs_matrix(method), prove is not None)
        options = {"method": method, "start": start and _warm_start(start), "time_limit": time_limit}
        options = {name: value for name, value in options.items() if value is not None}
        run = _refine if refine else partial(_solve, options)
        answer, stages = run(problem, layer, backend, tol, line)
        answer = as_plan(answer, request.plan_terms())
        if output is not None:
            line.say("writing")
            dm.save(answer, output)
        if prove is not None:
            line.say("proving")
            proof = dm.prove(answer)
            proof.save(prove)
        from dualmech.command import answers
        from dualmech.crosscheck import printing
    out = printing.console()
    answers.solution_report(out, answer, request.terms, answer.tol)
    answers.stage_lines(out, answer, stages)
    if prove is not None:
        for sentence in proof.lines():
            out.print(sentence)
    leave(*((solution.certificate, solution.tol) for solution in (answer, *stages)))


def _solve_within(
    request: Request, within: str, tol: float | None, output: str | None, threads: int | None
) -> NoReturn:
    from dualmech.command import answers
    from dualmech.crosscheck import printing
    from dualmech.threads import blas_threads

    with passing("stating the problem") as line, blas_threads(threads):
        problem: Any = request.state()
        line.say("solving")
        best = dm.fast.strategy(problem, within, tol=JUDGE_TOL if tol is None else tol)
        if output is not None:
            line.say("writing")
            dm.save(best.mechanism, output)
    answers.solution_report(printing.console(), best.solution, request.terms, best.solution.tol)
    _leave_judged(best.solution.certificate, tol, any_distance=True)


def _problem(request: Request, on_matrix: bool, with_proof: bool) -> AnyProblem:
    """Return the problem, on a matrix if the solver or the proof needs one."""
    problem = request.state("dense" if on_matrix and request.geometry == "auto" else None)
    if with_proof:
        from dualmech.crosscheck.proofs.prove import provable

        rule = getattr(problem, "neighbours", None)
        if request.geometry == "auto" and getattr(rule, "several_cells", False) and problem.geometry.name != "epochs":
            problem = request.state("dense")  # proofs for pairs of cells need a matrix
        provable(problem)  # refuses problems without proofs, before any work
    return problem


@options.poses("cap")
def judge(
    context: typer.Context,
    workload: options.Workload,
    covariance: Annotated[
        str | None,
        typer.Option(
            help="File with the covariance of the noise (on the cells, or on the basis), a mechanism, or a solution."
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="Instead a file with a strategy matrix, or for running sums sqrt, tree or toeplitz:FILE, with unit "
            "noise, scaled if necessary for variance."
        ),
    ] = None,
    query_weights: Annotated[
        str | None, typer.Option(help="weighting: file with the weights of the design queries.")
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="Instead of targets and an answer, a file of a mechanism or of a solution on the same cells: its "
            "waste at the accuracy that it gives this workload."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="With --mechanism: write the better mechanism to this .npz file."),
    ] = None,
    tol: Annotated[
        float | None,
        typer.Option(
            callback=options.tolerance,
            help="Maximum distance from the optimum for exit status 0. [default: 1e-6; for a strategy or a mechanism, "
            "any proven distance]",
        ),
    ] = None,
) -> None:
    """Compute the proven distance of an answer from the optimum: of a user's answer, or of a solution's file."""
    from dualmech.command import answers, inputs
    from dualmech.crosscheck import judging, printing

    options = {"covariance": covariance, "strategy": strategy, "query_weights": query_weights}
    if mechanism is None and not any(options.values()) and (solution := inputs.read_solution(str(workload))):
        _judge_solution(context, solution, JUDGE_TOL if tol is None else tol)
    if mechanism is not None:
        from dualmech.command import capping

        _leave_judged(capping.judge_waste(context, str(workload), mechanism, output), tol, any_distance=True)
    request = request_of(context)
    request.refuse_foreign(**options)
    kinds = [kind for kind, path in options.items() if path is not None]
    if len(kinds) != 1:
        either = "either --covariance FILE or --strategy FILE"
        option = "--query-weights FILE" if request.problem == "weighting" else either
        raise UsageError(f"give {option}: the answer to judge")
    path = str(options[kinds[0]])
    with passing("reading") as line:
        by_name = inputs.names_causal(strategy)
        request = request if by_name else request.under(inputs.read_own_neighbours(path), path)
        answer = inputs.read_mechanism(path) if kinds[0] == "covariance" else None
        on_cells = answer is None and not by_name and request.geometry == "auto"
        problem = request.state("dense" if on_cells else None)
        if by_name:
            answer = inputs.read_causal(problem, str(strategy))
        if answer is None:
            answer = inputs.read_answer(problem, kinds[0], path)
        line.say("computing the judge's bound")
        verdict = judging.judge(problem, answer, callback=line)
        if strategy is not None:
            verdict = judging.meeting(verdict)
    answers.verdict_report(printing.console(), problem, verdict, request.terms)
    _leave_judged(verdict, tol, any_distance=strategy is not None)


def waste(
    context: typer.Context,
    workload: options.Workload,
    practice: Annotated[
        str, typer.Option(help="The split of ρ over the tables: equal, or a .csv file of lines of name,share.")
    ] = "equal",
    rho: options.Rho = None,
    as_drawn: Annotated[
        bool,
        typer.Option("--as-drawn", help="Publish each table with its own noise, without making tables consistent."),
    ] = False,
    neighbours: options.Neighbours = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write the better plan to this .npz file.")
    ] = None,
) -> None:
    """Compute the waste of a practice of splitting a budget over tables: the minimum cost of the same accuracy."""
    from dualmech.command import capping

    capping.judge_practice(request_of(context), practice, as_drawn, output)


def _judge_solution(context: typer.Context, solution: dm.Solution, tol: float) -> None:
    from dualmech.command import answers
    from dualmech.crosscheck import printing
    from dualmech.crosscheck.families import family_of
    from dualmech.publishing.plans import PlanTerms

    family, plan = family_of(solution.problem), PlanTerms.of(solution)
    budget = {} if plan is None else {"rho": plan.rho, "epsilon": plan.epsilon}
    has_budget = any(value is not None for value in budget.values())
    budget_options = ("rho", "epsilon", "delta") if family.at_a_cost and not has_budget else ()
    used_options = ("workload", "tol", *(("z", "delta") if plan is None else ()), *budget_options)
    options.refuse_unused(context, used_options, "a solution, whose file has the problem")
    with passing("reading"):
        settings: dict[str, Any] = {} if plan is None else {"z": plan.quantile, "delta": plan.delta}
        if family.at_a_cost:
            settings |= {"problem": family.name, "privacy": getattr(solution.problem, "privacy", None)}
            settings |= budget if has_budget else {}
        terms = request_of(context, None, **settings).terms
    leave((answers.solution_report(printing.console(), solution, terms, tol), tol))


def simulate(
    data: Annotated[
        str, typer.Argument(metavar="RECORDS", help="CSV file of codes from 0, with a header of attributes.")
    ],
    source: Annotated[
        str,
        typer.Argument(metavar="MECHANISM", help="File of a mechanism of marginal tables, or of a solution of tables."),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DIRECTORY", help="New folder for the noisy tables.")
    ],
    rng: Annotated[
        int | None, typer.Option(min=0, help="Seed of the noise. [default: from the operating system]")
    ] = None,
    count: options.Count = None,
    ignore: options.Ignore = None,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Count a file without records.")] = False,
) -> None:
    """Count records in one pass, add a mechanism's noise, and write consistent tables. Only for study, not release."""
    from dualmech.command import simulation
    from dualmech.crosscheck import printing
    from dualmech.publishing.records import Records

    with passing("counting and measuring"):
        lines = simulation.simulate(Records(data, count, tuple(ignore or ())), source, output, rng, allow_empty)
    typer.echo(simulation.WARNING, err=True)
    out = printing.console()
    printing.print_lines(out, *lines, unwrapped=True)


def request_of(context: typer.Context, kind: type[Request] | None = None, **options: object) -> Request:
    """Return the request of a command's options, after reading its specification."""
    from dualmech.command.request import Request

    kind = kind or Request
    names = [field.name for field in fields(kind)]
    return kind(**{name: context.params[name] for name in names if name in context.params} | options).specified()


def _warm_start(path: str) -> Solution:
    from dualmech.command import inputs

    start = inputs.read_solution(path)
    if start is None:
        raise UsageError(f"--start takes the file of a solution, which {path} is not")
    return start


def _solve(
    options: dict[str, Any], problem: AnyProblem, layer: Layer, backend: str | None, tol: float | None, line: Line
) -> AnswerAndStages:
    if layer is Layer.FAST:
        line.say("solving")
        return dm.fast.solve(problem, tol=1e-6 if tol is None else tol, callback=line, **options), ()
    line.say("loading CVXPY")
    from dualmech.reference.solving import program_name

    backend = backend or "CLARABEL"
    line.say(program_name(problem, backend=backend))
    return dm.reference.solve(problem, backend=backend, tol=tol), ()


def _refine(problem: AnyProblem, layer: Layer, backend: str | None, tol: float | None, line: Line) -> AnswerAndStages:
    if layer is Layer.FAST:
        line.say("refining")
        refinement = dm.fast.refine(problem, tol=1e-9 if tol is None else tol, callback=line)
    else:
        line.say(f"{backend or 'CLARABEL'}: refining")
        refinement = dm.reference.refine(problem, backend=backend or "CLARABEL", tol=tol)
    return refinement.solution, refinement.stages


JUDGE_TOL = 1e-6  # distance from the optimum for exit status 0


def _leave_judged(certificate: Certificate, tol: float | None, any_distance: bool) -> NoReturn:
    """Exit as `leave`; with `any_distance` and without a tolerance, every proven distance has status 0."""
    if tol is None and any_distance and math.isfinite(certificate.gap) and math.isfinite(certificate.resolution):
        raise typer.Exit(0)
    leave((certificate, JUDGE_TOL if tol is None else tol))


def leave(*certificates: tuple[Certificate, float]) -> NoReturn:
    """Exit with status 0 if every certificate is within its tolerance, else with status 3 and the reason."""
    from dualmech.command import answers

    for certificate, tol in certificates:
        if not certificate.certifies(tol):
            typer.echo(f"dualmech: {answers.uncertified_line(certificate, tol)}", err=True)
            raise typer.Exit(3)
    raise typer.Exit(0)


# The command ``verify``: check a proof, and the problem that it is of.


@options.poses("geometry")
def verify(
    context: typer.Context,
    proof: Annotated[str, typer.Argument(metavar="PROOF", help="File that solve --prove wrote.")],
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="[WORKLOAD]", help="Check also that the proof is of this workload, with the options below."
        ),
    ] = None,
) -> None:
    """Check a proof in exact arithmetic, with only Python's own integers and fractions."""
    with passing("checking") as line:
        from dualmech.crosscheck import printing

        try:
            checked = dm.verify(proof)
        except dm.errors.CertificateError as error:
            typer.echo(f"dualmech: REFUSED: {error}", err=True)
            raise typer.Exit(3) from error
        line.say("reading")
        is_same_problem, factor_line = True, None
        if workload is not None and (request := request_of(context)).searches:
            from dualmech.command import capping

            is_same_problem = (factor_line := capping.proven_factor(request, checked)) is not None
        elif workload is not None:
            is_same_problem = checked.is_of(request.state())
    if not is_same_problem:
        typer.echo(f"dualmech: REFUSED: {proof}: it is of another problem than {workload} with these options", err=True)
        raise typer.Exit(3)
    for sentence in checked.lines():
        printing.console().print(sentence)
    if factor_line is not None:
        printing.console().print(factor_line)


# The command ``plot``: pictures of a solution.


KINDS = ("covariance", "correlation", "variances", "profile", "tradeoff")
"""The plots of a solution in a file, which does not contain the steps of the solver."""


def plot(
    solution: Annotated[str, typer.Argument(metavar="SOLUTION", help="File of a solution, as solve -o writes it.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DIRECTORY", help="Folder for the pictures, as SVG and PNG.")
    ],
    only: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(KINDS)}; may be repeated. [default: all]")
    ] = None,
) -> None:
    """Draw an answer: its noise, prices, profile of neighbours, privacy against accuracy."""
    from dualmech import plots, validate
    from dualmech.command import inputs
    from dualmech.crosscheck import printing
    from dualmech.crosscheck.printing import check_drawable, save_picture

    kinds = [validate.choice(KINDS, only=kind) for kind in only or KINDS]
    check_drawable(output)
    answer = inputs.read_solution(solution)
    if answer is None:
        raise InvalidInputError(f"{solution}: holds no solution; solve -o writes one")
    out = printing.console()
    for kind in kinds:
        draw = partial(plots.covariance, correlation=True) if kind == "correlation" else getattr(plots, kind)
        try:
            with passing(f"drawing {kind}"):
                paths = save_picture(kind, output, lambda axes, rows: draw(rows, axes=axes), answer)  # noqa: B023
        except DualmechError as error:
            if only or isinstance(error, FileFormatError):  # an error of the disk, not of the picture
                raise
            out.print(f"not drawn: {kind}: {error}", markup=False)
            continue
        for path in paths:
            out.print(f"drawn: {path}", markup=False)


# The command ``explain``.


@options.poses("z", "cap")
def explain(
    context: typer.Context,
    workload: options.Workloads,
    problem: options.ExplainedProblem = "fitness",
    epsilon: options.AnyEpsilon = None,
    delta: options.AnyDelta = None,
    criterion: options.Criterion = None,
    prior: options.Prior = None,
    answers: options.Answers = None,
    total: options.Total = None,
    layer: Annotated[Layer, typer.Option(help="The layer that solves; with reference also its program.")] = Layer.FAST,
    formulation: Annotated[
        str | None, typer.Option(help="Program of the reference layer. [default: its first]")
    ] = None,
    tol: Annotated[
        float | None,
        typer.Option(
            callback=options.tolerance,
            help="Gap to prove, also in exact arithmetic. [default: 1e-6 fast, by backend otherwise]",
        ),
    ] = None,
    latex: Annotated[
        str | None, typer.Option(help="Write LaTeX to this .tex file instead; without a file, or with -, print LaTeX.")
    ] = None,
) -> None:
    """Print the program, its dual, the optimal weights, the prices and the proof in words."""
    if latex not in (None, "-"):
        dm.files.check_writable(str(latex), ".tex")
    with passing("reading"):
        from dualmech.command import explanation, inputs
        from dualmech.command.explanation import AnyRequest
        from dualmech.crosscheck import printing

        answer = stored = inputs.read_solution(workload[0]) if len(workload) == 1 else None
        posed = (
            request_of(context, AnyRequest, workload=workload[0], more_files=tuple(workload[1:])).state()
            if answer is None
            else answer.problem
        )
    if stored is not None:
        used_options = ("workload", "layer", "formulation", "latex", "tol")
        options.refuse_unused(context, used_options, "a solution, whose file has the problem")
    formula = None
    if answer is not None and tol is not None and not answer.certificate.certifies(tol):
        answer = None  # solve again, to the requested gap
    if layer is Layer.REFERENCE:
        answer, formula = explanation.reference_answer(posed, answer, formulation, tol)
    answer = explanation.solved(posed, tol or explanation.DEFAULT_TOL) if answer is None else answer
    page = explanation.sections(answer, formula)
    if latex is None:
        explanation.show(printing.console(), page)
        explanation.show_plan(printing.console(), stored or answer)
        if layer is Layer.REFERENCE:
            from dualmech.reference.solving import formulations

            names = ", ".join(formulations(posed))
            printing.print_lines(printing.console(), f"Formulations of this problem (--formulation): {names}.")
    else:
        explanation.write_latex(page, latex)
    leave((answer.certificate, answer.tol))


# The command ``sweep``: a grid of problems.


def sweep(
    grid: Annotated[
        str, typer.Argument(metavar="GRID", help="A TOML file of workloads, sizes, layers; see docs/sweeps.md.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="File of results, .csv, one row for each run.")],
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
) -> None:
    """Solve every combination in a file, and compare the proven intervals."""
    dm.files.check_writable(output, ".csv")
    with passing("reading the grid"):
        from dualmech.command.sweep import read_grid, run
        from dualmech.crosscheck import printing
        from dualmech.files.csv import write_rows
        from dualmech.studies.sweep import disagreements, rows

        runs = read_grid(grid)
    out, table = printing.console(), []
    for row in rows(run, runs, jobs):
        table.append(row)
        gap = "" if row["gap"] is None else f", gap {row['gap']:.1e}, {row['seconds']:.2g} s"
        options_text = ", ".join(f"{name} {row[name]}" for name in runs[0] if row[name] is not None)
        out.print(
            f"{len(table)}: {options_text}: {row['status']}{gap} {row['message'] or ''}", markup=False, soft_wrap=True
        )
    write_rows(output, [*table[0]], ([*row.values()] for row in table))
    pairs = disagreements(table)
    for pair in pairs:
        for row in pair:
            out.print(f"DISAGREE: {row}", markup=False, soft_wrap=True)
    raise typer.Exit(4 if pairs else 0 if all(row["status"] == "CERTIFIED" for row in table) else 3)


# The commands ``library`` and ``leaderboard``: problems with proven optima, and distances of answers from them.


Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of the library.")]


def library(
    folder: Folder,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="A problem's name, or a family's; may be repeated.")
    ] = None,
) -> None:
    """Write problems with data, proven optima and proofs, for testing a solver; keep existing files."""
    with passing("loading"):
        from dualmech.crosscheck import library as proven
        from dualmech.crosscheck import printing
    out = printing.console()
    widest, count, start = (0.0, ""), 0, time.perf_counter()
    rows = proven.build(folder, only)
    while True:
        with passing(f"{count} proven"):
            row = next(rows, None)
        if row is None:
            break
        count, widest = count + 1, max(widest, (row.upper / row.lower - 1, row.name))
    out.print(
        f"{count} problems in {folder}, each optimum proven within {widest[0]:.1e} of itself, "
        f"in {time.perf_counter() - start:.1f} s; {widest[1]} has the widest interval.",
        soft_wrap=True,
    )


def leaderboard(
    folder: Folder,
    answers: Annotated[
        list[str],
        typer.Argument(
            metavar="ANSWERS...",
            help="Folders of answers, one for each solver: NAME.npz, .csv, .npy or .mtx, by problem.",
        ),
    ],
    tol: Annotated[
        float,
        typer.Option(callback=options.tolerance, help="Maximum distance from the optimum for exit status 0."),
    ] = 1e-6,
    scaled: Annotated[
        bool, typer.Option("--scaled", help="Scale or correct answers to be feasible before they are judged.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Show every answer, not only answers outside the tolerance.")
    ] = False,
) -> None:
    """Rank solvers by the distances of their answers from the proven optima of a library."""
    with passing("judging"):
        from dualmech.crosscheck import leaderboard as board
        from dualmech.crosscheck import printing
        from dualmech.crosscheck.printing import table
        from dualmech.display import counted

        entries = [*board.entries(folder, answers, scaled=scaled)]
    out, ranking = printing.console(), board.standings(entries, tol)
    headings = "solver", "answers", "feasible", f"within {tol:g}", "median", "worst", "seconds"
    out.print(table(counted(len(ranking), "solver"), headings, map(_standing_row, ranking)))
    uncertified = [entry for entry in entries if not entry.most <= tol]
    shown_entries = entries if every or len(answers) == 1 else uncertified
    if shown_entries:
        columns = "solver", "problem", "achieved", "from the optimum", "seconds"
        words = "solver", "problem", "from the optimum"
        out.print(table(counted(len(shown_entries), "answer"), columns, map(_answer_row, shown_entries), words))
    if uncertified or not entries:
        verdict = f"{len(uncertified)} of {len(entries)} answers are not within {tol:g} of the optimum"
        typer.echo(f"dualmech: {verdict}", err=True)
        raise typer.Exit(3)


def _answer_row(entry: Entry) -> tuple[str, ...]:
    return entry.solver, entry.name, _number(entry.objective, ".9g"), entry.words, _number(entry.seconds)


def _standing_row(solver: Standing) -> tuple[str, ...]:
    distances = (_number(value, ".2g") for value in (solver.median, solver.worst))
    counts = map(str, (solver.answers, solver.feasible, solver.within))
    return solver.solver, *counts, *distances, _number(solver.seconds)


def _number(value: float, form: str = ".3g") -> str:
    return "" if math.isnan(value) else f"{value:{form}}"
