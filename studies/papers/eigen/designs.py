"""Design queries compared: the loss from weighing others than the eigen-queries.

EIG, section 5.3, weighs the rows of other bases by Program 1 and compares the strategies with the strategy of the
eigen-queries, on two workloads and on the same with their cells permuted. All errors are root mean squares, over the
certified optimum of any strategy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import scipy.linalg
from rich.console import Console

import dualmech as dm
from dualmech import designs, fast, strategies, workloads
from dualmech.crosscheck.printing import Interval, table, yes_or_no
from dualmech.crosscheck.sheet import Columns, Row, Sheet, one_table, table_each
from dualmech.studies import rivals
from dualmech.studies.papers.eigen import instances as eig
from dualmech.validate import Array, Matrix

EIGEN_QUERIES = "eigen-queries"

Design = Callable[[dm.Workload, eig.Shape], Array]

DESIGNS: dict[str, Design] = {
    EIGEN_QUERIES: lambda workload, shape: designs.eigen_queries(workload),
    eig.WAVELET: lambda workload, shape: rivals.haar_matrix(shape).toarray(),
    eig.FOURIER: lambda workload, shape: rivals.fourier_matrix(shape),
    eig.IDENTITY: lambda workload, shape: np.eye(math.prod(shape)),
}

MORE_DESIGNS: dict[str, Design] = {
    "tree": lambda workload, shape: rivals.hierarchical_matrix(shape).toarray(),
    "queries": lambda workload, shape: workload.dense(),
    "root": lambda workload, shape: prefix_root(math.prod(shape)),
}
"""Candidates for prefixes besides: a binary tree, the prefixes themselves, and their square root."""


def compare(name: str, build: Callable[[], dm.Workload], shape: eig.Shape, every: bool = False) -> Row:
    """Weigh each design's queries for a workload by Program 1; `every` adds `MORE_DESIGNS`.

    Of each design, 'program' is the root of the optimum of Program 1, proven from both sides (the error of the
    strategy, or above it where design queries depend on one another), 'completed' the error of the strategy with its
    columns completed.
    """
    workload = build()
    best = fast.solve(dm.TotalVariance(workload), tol=eig.OPTIMUM_TOLERANCE)
    interval = best.certificate.interval
    makers = DESIGNS | (MORE_DESIGNS if every else {})
    entries = tuple(_weigh_design(design, workload, make(workload, shape), interval) for design, make in makers.items())
    named = {
        "eigen_queries": next(entry for entry in entries if entry.name == EIGEN_QUERIES),
        "best": min(entries, key=lambda entry: entry.completed),
    }
    return Row({"name": name, **named}, best.gap, best.gap <= eig.OPTIMUM_TOLERANCE, parts=entries)


def _weigh_design(name: str, workload: dm.Workload, design: Array, optimum: Interval) -> Row:
    answer = fast.solve(dm.QueryWeighting(workload, design), tol=eig.DESIGN_TOLERANCE)
    program = eig.root_errors(answer.certificate.interval, optimum)
    values = {"name": name, "program": program, "completed": eig.root_errors((completed_total(answer),) * 2, optimum)}
    return Row(values, certified=answer.certificate.certifies(eig.DESIGN_TOLERANCE))


def completed_total(answer: dm.Solution) -> float:
    """Return the total variance of weighted design queries, columns completed, at squared cost 1.

    To complete the columns of A is to raise the diagonal of ``A'A`` to its largest entry. With a Cholesky factor R
    of the result, ``tr(W (A'A)⁻¹ W') = ‖R'⁻¹ W'‖²``, which takes a quarter of the time of least squares
    (`strategies.total_variance`); these take its place where the factor would lose digits.
    """
    workload: dm.Workload = answer.problem.workload
    strategy = answer.problem.strategy(answer.primal)
    cost = strategy.T @ strategy
    largest = np.diagonal(cost).max()
    slack = 1 - np.diagonal(cost) / largest
    slack[slack < 1e-6] = 0.0  # hardly more than a solver leaves
    try:
        factor = np.linalg.cholesky(cost / largest + np.diag(slack)).T
    except np.linalg.LinAlgError:
        factor = np.zeros((1, 1))
    if np.diagonal(factor).min() < 1e-4:  # the factor is of a matrix of unit diagonal
        cells = np.diag(np.sqrt(largest * slack))[slack > 0]
        return strategies.total_variance(np.vstack([strategy[np.any(strategy, axis=1)], cells]), workload)
    half = scipy.linalg.solve_triangular(factor, workload.dense().T, trans="T", check_finite=False)
    return float(np.vdot(half, half))


def comparisons(quick: bool) -> list[Callable[[], Row]]:
    cells = 128 if quick else 1024
    shape = (4, 4, 8) if quick else (8, 8, 16)
    ranges, tables = partial(ranges_design, cells), partial(two_way_marginals, shape)
    named = f"2-way marginals, {eig.shape_text(shape)}"
    return [
        partial(compare, f"all ranges, {cells}", ranges, (cells,)),
        partial(compare, f"all ranges, {cells}, permuted", partial(_permuted_workload, ranges), (cells,)),
        partial(compare, named, tables, shape),
        partial(compare, f"{named}, permuted", partial(_permuted_workload, tables), shape),
        partial(compare, f"prefixes, {cells}", partial(workloads.prefix, cells), (cells,), every=True),
    ]


def prefix_root(cells: int) -> Array:
    """Return the lower triangle whose square is `workloads.prefix`: a Toeplitz matrix of ``C(2k, k) / 4^k``."""
    return np.asarray(np.tril(scipy.linalg.toeplitz(strategies.root_coefficients(cells))))


def ranges_design(cells: int) -> dm.Workload:
    return workloads.from_gram(workloads.all_range_gram(cells))


def two_way_marginals(shape: eig.Shape) -> dm.Workload:
    return workloads.from_gram(workloads.marginals_gram(shape, ways=2), shape)


def _permuted_workload(build: Callable[[], dm.Workload]) -> dm.Workload:
    return workloads.permuted(build(), eig.SEED)


# The effect of completing the columns of the Eigen-Design, by how exactly its Program 1 was solved.
#
# Program 1 of EIG knows nothing of the columns that Program 2 completes afterwards. Weights that solve it a little
# worse can leave more room to complete, and end as the better strategy.

TOLERANCES = (1e-2, 1e-5, 3e-6, 1e-7, 1e-9)
"""Gaps to which Program 1 is solved, relative, one after the other."""


def solve_completion(name: str, build: Callable[[], dm.Workload]) -> Row:
    """Weigh the eigen-queries of a workload ever more exactly, and complete the columns each time.

    The first weights are those of Theorem 2, ``u_i`` proportional to ``√σ_i``. Errors are over the singular value
    bound; the gap of the row is the gap of the last weights, which are solved most exactly.

    Examples
    --------
    >>> import dualmech as dm
    >>> row = solve_completion("prefixes", lambda: dm.workloads.prefix(128))
    >>> unsolved, *_, exact = row.parts
    >>> unsolved.program > exact.program, unsolved.completed < exact.completed
    (True, True)
    """
    workload = build()
    program = dm.QueryWeighting(workload, designs.eigen_queries(workload))
    uniform = np.ones(workload.shape[1])
    unit = dm.TotalVariance(workload, geometry="dense").certify(np.eye(workload.shape[1]), uniform).lower_bound
    weights = program.feasible(np.sqrt(program.costs))
    gap = program.certify(weights, uniform).gap
    entries = [_completed(program, weights, unit, math.inf, gap)]
    for tol in TOLERANCES:
        answer = fast.solve(program, tol=tol)
        entries.append(_completed(program, answer.primal, unit, tol, answer.gap))
    return Row({"name": name}, entries[-1].proven, parts=tuple(entries))


def _completed(program: dm.QueryWeighting, weights: Array, unit: float, target: float, proven: float) -> Row:
    """Return the root errors of weighted eigen-queries, alone ('program') and completed."""
    completed = strategies.total_variance(strategies.completed(program.strategy(weights)), program.workload)
    values = {"asked": target, "proven": proven, "program": math.sqrt(program.strategy_error(weights) / unit)}
    return Row({**values, "completed": math.sqrt(completed / unit)}, certified=proven <= target)


def completion_rows(quick: bool) -> list[Callable[[], Row]]:
    """Return the workloads to try: prefixes and all ranges over 2048 cells, or 256."""
    cells = 256 if quick else eig.CELLS
    return [
        partial(solve_completion, f"prefixes, {cells}", partial(eig.prefixes, cells)),
        partial(solve_completion, f"all ranges, {cells}", partial(ranges_design, cells)),
    ]


# Weights of known strategies under pure ε-differential privacy (EIG, section 3.5): the gain from optimising them.
#
# The text finds that weighting improves the wavelet on ranges and the Fourier basis on marginals, by factors that the
# conversion has lost, and that no basis is best for all workloads. Noise is Laplace noise and the budget of a cell a
# sum of magnitudes, so every basis is weighted by its own Program 1, certified, and by equal weights.

WEIGHT_TOLERANCE = 1e-6  # gap to which weights are solved

Basis = Callable[[dm.Workload], Matrix]

RANGE_BASES: dict[str, Basis] = {
    "wavelet": lambda workload: designs.haar_matrix((workload.shape[1],)),
    "eigen-queries": designs.eigen_queries,
}
MARGINAL_BASES: dict[str, Basis] = {
    "Fourier": lambda workload: designs.fourier_matrix(designs.domain_of(workload, None), workload),
    "eigen-queries": designs.eigen_queries,
}


def pure_rows(quick: bool) -> list[Callable[[], Row]]:
    """Return the tasks: ranges of 1024 cells and two-way marginals of 8 x 8 x 16, or of 256 and 4 x 8 x 8."""
    cells, shape = (256, (4, 8, 8)) if quick else (1024, (8, 8, 16))
    ranges, random_ranges = partial(eig.all_ranges, (cells,)), partial(workloads.random_range, cells, cells, eig.SEED)
    tables = partial(workloads.marginals, shape, ways=2)
    return [
        partial(solve_pure, f"all ranges, {cells}", ranges, RANGE_BASES),
        partial(solve_pure, f"{cells} random ranges, {cells}", random_ranges, RANGE_BASES),
        partial(solve_pure, f"2-way marginals, {eig.shape_text(shape)}", tables, MARGINAL_BASES),
    ]


def solve_pure(name: str, build: Callable[[], dm.Workload], bases: dict[str, Basis]) -> Row:
    """Weight every basis for a workload.

    Of each, 'gain' is the root error at equal weights over that at the best, 'total' the least weighted sum of squares
    at sensitivity 1 (total variance times ε²/2), and 'over_best' its root error over that of the best basis here.

    Examples
    --------
    >>> row = solve_pure("all ranges", partial(eig.all_ranges, (64,)), RANGE_BASES)
    >>> row.outcome.name, [round(end, 3) for end in row.parts[0].gain]
    ('AGREE', [1.034, 1.034])
    """
    begun, workload = time.perf_counter(), build()
    answers = {label: _weighted(workload, basis(workload)) for label, basis in bases.items()}
    least = min(answer.objective for answer, _ in answers.values())
    parts = []
    for label, (answer, gain) in answers.items():
        over_best = float(np.sqrt(answer.objective / least))
        values = {"name": label, "gain": gain, "total": answer.certificate.interval, "over_best": over_best}
        parts.append(Row(values, answer.gap, answer.certificate.certifies(WEIGHT_TOLERANCE)))
    return Row({"name": name, "seconds": time.perf_counter() - begun}, parts=tuple(parts))


def _weighted(workload: dm.Workload, design: Matrix) -> tuple[dm.Solution, Interval]:
    """Return the best weights of a basis, and their gain over equal ones."""
    problem = dm.QueryWeighting(workload, design, privacy="pure")
    answer = fast.solve(problem, tol=WEIGHT_TOLERANCE)
    equal = problem.feasible(np.ones(len(answer.primal)))
    plain = problem.certify(equal, answer.dual).objective
    low, high = answer.certificate.interval
    return answer, (float(np.sqrt(plain / high)), float(np.sqrt(plain / low)))


# Reductions of the Eigen-Design: the loss and the time saved by weighing the eigen-queries in parts.
#
# EIG, section 4, cuts the cost of Program 1 in two ways, and section 5 measures both on 8192 cells. One
# eigendecomposition of the Gram matrix serves all of them here. Errors are root mean squares, columns completed, over
# the certified optimum of any strategy.

Way = tuple[str, dict[str, float]]

WAYS: tuple[Way, ...] = (
    ("newton", {}),
    ("separation", {"group_size": 4}),
    ("separation", {"group_size": 16}),
    ("separation", {"group_size": 64}),
    ("principal", {"share": 0.02}),
    ("principal", {"share": 0.05}),
    ("principal", {"share": 0.1}),
    ("principal", {"share": 0.25}),
)
"""Methods of `fast.eigen_weights` with their options; the first solves Program 1 whole."""

FEWER_WAYS = (WAYS[0], WAYS[2], WAYS[3], WAYS[4], WAYS[6])  # those for the paper's own size


def solve_reductions(
    name: str,
    build: Callable[[], dm.Workload],
    rival: tuple[str, Callable[[], dm.LinearGaussianMechanism]],
    ways: tuple[Way, ...] = WAYS,
    tol: float = eig.OPTIMUM_TOLERANCE,
) -> Row:
    """Weigh the eigen-queries whole and in every reduced way; `rival` names and builds one at squared cost 1.

    For each way, 'error' is the error of the strategy, columns completed, over the optimum, and 'excess' is by how much
    its weights may be worse than the best, relative, as root error: proven by Program 1's judge. Seconds are of the
    weights, the eigenvectors given. Where `tol` is infinite, the optimum is not solved for: `bound` is used, the best
    strategy here is the other side, and errors may be less than they are said to be.

    Examples
    --------
    >>> row = rows_of(64, (2, 4, 8))[0]()
    >>> whole, *reduced = row.parts
    >>> row.name, round(whole.error[1], 3), min(round(entry.error[1], 3) for entry in reduced) > 1
    ('all ranges, 64', 1.009, True)
    """
    workload = build()
    program = dm.QueryWeighting(workload, designs.eigen_queries(workload))
    lower_only = math.isinf(tol)
    if lower_only:
        least = bound(program)
        optimum = least, least
    else:
        optimum = fast.solve(dm.TotalVariance(workload), tol=tol).certificate.interval
    entries = tuple(_weigh_reduced(program, optimum, *way) for way in ways)
    spent = float(rival[1]().variances(workload).sum())
    best = (rival[0], eig.root_errors((spent, spent), optimum))
    gap = min(entry.error[1] for entry in entries) ** 2 if lower_only else optimum[1] / optimum[0]
    return Row({"name": name, "rival": best, "asked": tol}, gap - 1, gap - 1 <= tol, parts=entries)


def bound(program: dm.QueryWeighting) -> float:
    """Return a lower bound on the total variance of every strategy, from the eigen-queries of its workload.

    It is the judge's at the weights λ that a step of the fixed point of `TotalVariance` makes of equal ones: ``λ_i``
    proportional to a power of ``Σ_k √σ_k q_ki²``, eigenvalues σ and eigenvectors q being known. No solver is run.
    """
    gains = program.sensitivities.T @ program.geometry.roots
    problem = dm.TotalVariance(program.workload, geometry="dense")
    weights = (gains / gains.max()) ** 1.8  # a power near the best of all
    return problem.certify(np.eye(problem.geometry.rank), weights).lower_bound


def _weigh_reduced(program: dm.QueryWeighting, optimum: Interval, method: str, options: dict[str, float]) -> Row:
    shown = {"group_size": "groups of {:g}", "share": "{:.0%} of the cells"}
    option = ", ".join(shown[key].format(value) for key, value in options.items())
    if "share" in options:
        # The paper counts eigenvectors by the cells, of which a workload of low rank needs few.
        queries, cells = program.design.shape
        options = {"share": min(1.0, options["share"] * cells / queries)}
    solution = fast.eigen_weights(program, method=method, tol=eig.DESIGN_TOLERANCE, **options)  # type: ignore[arg-type]
    values = {
        "label": f"{method}, {option}" if option else "all eigen-queries",
        "error": eig.root_errors((completed_total(solution),) * 2, optimum),
        "excess": math.sqrt(1 + solution.gap) - 1,
        "seconds": solution.seconds,
    }
    return Row(values)


def reductions_rows(quick: bool) -> list[Callable[[], Row]]:
    return rows_of(256 if quick else 1024, (4, 8, 8) if quick else (8, 8, 16))


def large_rows(quick: bool) -> list[Callable[[], Row]]:
    """Return fewer at the paper's own size, 8192 cells, the optimum only bounded; a quick run has 256 cells."""
    return rows_of(256 if quick else 8192, (4, 8, 8) if quick else (16, 16, 32), FEWER_WAYS, math.inf)


def rows_of(
    cells: int, shape: eig.Shape, ways: tuple[Way, ...] = WAYS, tol: float = eig.OPTIMUM_TOLERANCE
) -> list[Callable[[], Row]]:
    """Return the reductions to compare on all ranges of ordered cells and on two-way marginals of a shape."""
    total, tables = workloads.total(cells), workloads.marginals(shape, ways=2)
    wavelet = (eig.WAVELET, partial(rivals.wavelet, total, 1.0))
    datacube = (eig.DATACUBE, partial(rivals.datacube, tables, 1.0))
    return [
        partial(solve_reductions, f"all ranges, {cells}", partial(ranges_design, cells), wavelet, ways, tol),
        partial(
            solve_reductions,
            f"2-way marginals, {eig.shape_text(shape)}",
            partial(two_way_marginals, shape),
            datacube,
            ways,
            tol,
        ),
    ]


# The sheets of design queries.


def _design_columns(rows: Sequence[Row]) -> Columns:
    names = dict.fromkeys(entry.name for row in rows for entry in row.parts)
    return (
        ("workload", "{name}{mark}"),
        *((name, partial(_both_errors, name)) for name in names),
        ("best", "{best.name}"),
        ("others / eigen-queries", _others),
    )


def _both_errors(name: str, row: Row) -> str:
    entries = [entry for entry in row.parts if entry.name == name]
    return "".join(f"{eig.three_decimals(entry.program)}\n{eig.three_decimals(entry.completed)}" for entry in entries)


def _others(row: Row) -> str:
    reference, entries = row.eigen_queries, {entry.name: entry for entry in row.parts}
    others = [entries[name] for name in (eig.WAVELET, eig.FOURIER)]
    program = [eig.three_decimals(eig.ratio(entry.program, reference.program)) for entry in others]
    completed = [eig.three_decimals(eig.ratio(entry.completed, reference.completed)) for entry in others]
    return f"{', '.join(program)}\n{', '.join(completed)}"


def _show_reductions(out: Console, title: str, rows: Iterator[Row]) -> None:
    for row in rows:
        most, known = (", at most", "") if math.isinf(row.asked) else ("", f", optimum to {row.gap:.0e}")
        whole, (name, error) = row.parts[0].seconds, row.rival
        lines = [
            (
                *(entry.label, eig.three_decimals(entry.error), f"{100 * entry.excess:.2g} %"),
                *(f"{entry.seconds:.2g}", f"{whole / entry.seconds:.1f}"),
            )
            for entry in row.parts
        ]
        headings = (
            *("eigen-queries weighed", f"error / optimum{most}", "Program 1, above its optimum"),
            *("seconds for weights", "speed"),
        )
        lines.append((f"best rival: {name}", eig.three_decimals(error), "", "", ""))
        out.print(table(row.text(f"{title}: {{name}}{known}{{mark}}"), headings, lines))


COMPLETION: Columns = (
    (
        "weights",
        lambda row: row.text("Program 1 to {asked:.0e}" if math.isfinite(row.asked) else "Theorem 2's, nothing solved"),
    ),
    ("gap of Program 1", "{proven:.0e}"),
    ("eigen-queries / bound", "{program:.4f}"),
    ("columns completed / bound", "{completed:.4f}"),
)

PURE: Columns = (
    ("basis", "{name}"),
    ("equal weights over best", "{gain[0]:.4f}"),
    ("best weights over best basis", "{over_best:.4f}"),
    ("gap", "{gap:.0e}"),
    ("certified", lambda row: yes_or_no(row.certified)),
)

SHEETS = {
    "designs": Sheet(
        f"{eig.EIG}, design queries",
        comparisons,
        one_table(
            _design_columns,
            "Above: Program 1 alone. Below: columns completed. Last column, wavelet and Fourier over eigen-queries: "
            f"the text says above {eig.PERMUTED_DESIGNS:g} on permuted ranges, more than 1 on ranges, 1 on marginals.",
            heading=": root errors over the optimum",
        ),
    ),
    "completion": Sheet(f"{eig.EIG}, columns completed", completion_rows, table_each(COMPLETION, "{name}")),
    "reductions": Sheet(f"{eig.EIG}, reductions", reductions_rows, _show_reductions),
    "reductions8192": Sheet(f"{eig.EIG}, reductions", large_rows, _show_reductions, apart=True),
    "pure": Sheet(f"{eig.EIG}, pure privacy", pure_rows, table_each(PURE, "{name}, root errors, {seconds:.2g} s")),
}
