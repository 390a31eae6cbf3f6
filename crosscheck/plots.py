"""Plots of a user's problem: noise, prices, costs and curves.

Every function draws an answer or mechanisms on `axes`, by default new ones, and returns the axes. It imports matplotlib
(of the extra ``plots``). Titles name the quantity, axis labels have units, and colours suit colour-blind readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from dualmech import accounting, fast, validate
from dualmech.crosscheck.printing import COLOURS, check_installed
from dualmech.display import decimal_above, rounded_up
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.neighbours import Relation
from dualmech.problems.base import Problem
from dualmech.solution import Solution, require_solution
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload
from dualmech.workloads.numbers import ByFactor

Axes: TypeAlias = Any
"""Axes of matplotlib, which is imported only by functions that draw."""

RHOS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Default values of ρ for the curve."""

MAX_COLUMNS = 20  # of a curve, one for each table; for more tables, one for each number of ways


def curve(
    answer: object,
    workload: Workload | None = None,
    *,
    rhos: npt.ArrayLike | None = None,
    epsilons: npt.ArrayLike | None = None,
    delta: float | None = None,
    z: float | None = None,
) -> list[dict[str, float]]:
    """Return the privacy-accuracy curve: one row with margins of error for each privacy level.

    Multiplying all variances of a Gaussian mechanism by t divides its privacy cost by t, and an optimal mechanism stays
    optimal, with the same gap. For a plan with a ρ, ε is implied by ρ, as in its release; for other noise it is the
    exact ε of continuous Gaussian noise. A row has ``rho``, ``epsilon`` at ``delta``, the factor t on the
    ``variances``, and the largest ``margin of`` the queries of each table or group, for ``pandas.DataFrame(rows)``.
    Raises `InvalidInputError` or `InputTypeError` for no answer or problem, both ρ and ε, a mechanism without a
    workload, and a privacy level that is not positive.

    Parameters
    ----------
    answer : Solution, mechanism or problem
        The answer; a problem is solved to a gap of 1e-6.
    workload : Workload, optional
        The queries; by default the problem's workload.
    rhos, epsilons : array, optional
        The values of ρ (zCDP), or of ε at `delta`; by default ρ from 0.01 to 10.
    delta : float, optional
        δ of every ε; by default the plan's, else 1e-9.
    z : float, optional
        Margins of error in standard deviations; by default the plan's, else 1.645, of 90 % confidence.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import crosscheck
    >>> ages = dm.workloads.union({"age": 8}, {"sums": {"age": dm.workloads.prefix(8)}})
    >>> rows = crosscheck.curve(dm.FitnessForUse(ages), rhos=[0.1, 1.0])
    >>> [(row["rho"], round(row["epsilon"], 3), round(row["margin of sums"], 3)) for row in rows]
    [(0.1, 2.583, 5.556), (1.0, 9.093, 1.757)]
    """
    if rhos is not None and epsilons is not None:
        raise InvalidInputError("give either rhos or epsilons, not both")
    delta = validate.probability(delta=_delta(answer) if delta is None else delta)
    width = validate.positive_number(z=_quantile(answer) if z is None else z)
    is_implied = plan_rho(answer) is not None
    if epsilons is not None:
        levels = validate.positive(1, epsilons=epsilons).tolist()
        costs = [
            2 * accounting.zcdp_rho(epsilon, delta) if is_implied else accounting.privacy_cost(epsilon, delta) ** 2
            for epsilon in levels
        ]
    else:
        levels = validate.positive(1, rhos=RHOS if rhos is None else rhos).tolist()
        costs = [accounting.squared_cost_from_rho(rho) for rho in levels]
    source: Any = answer
    solution = fast.solve(source) if isinstance(answer, Problem) else answer
    mechanism = mechanism_of_answer(solution)
    largest = _largest(mechanism, workload_of(solution, workload))
    unit_cost, rows = positive_cost(mechanism), []
    for level, cost in zip(levels, costs, strict=True):
        factor = unit_cost / cost
        privacy = {"rho": level, "epsilon": epsilon_at(cost, delta, is_implied)}
        if epsilons is not None:
            privacy = {"rho": cost / 2, "epsilon": level}
        margins = {f"margin of {name}": width * math.sqrt(factor * variance) for name, variance in largest.items()}
        rows.append({**privacy, "delta": delta, "variances": factor, **margins})
    return rows


def epsilon_at(squared_cost: float, delta: float, is_implied: bool) -> float:
    """Return the ε at δ: implied by ρ, for the discrete noise of a release, or exact, for continuous noise."""
    if is_implied:
        return accounting.zcdp_epsilon(squared_cost / 2, delta)
    return accounting.epsilon(accounting.mu_from_squared_cost(squared_cost), delta)


def plan_rho(answer: object) -> Fraction | None:
    """Return the ρ of a plan; None for an answer without ρ, or a mechanism."""
    if (planned := _release_plan(answer)) is not None:
        return cast(Fraction, planned.rho)
    rho = _metadata(answer).get("rho")
    return None if rho is None else Fraction(rho)


def _metadata(answer: object) -> Mapping[str, Any]:
    """Return the terms of an answer by name; a mechanism has none."""
    solution = getattr(answer, "answer", answer)  # of a judgement or a plan
    return solution.metadata if isinstance(solution, Solution) else {}


def _quantile(answer: object) -> float:
    return _metadata(answer).get("quantile", accounting.CENSUS_Z)


def _delta(answer: object) -> float:
    return _metadata(answer).get("delta", 1e-9)


def _release_plan(answer: object) -> Any:
    """Return the answer if it is the plan of a release or a publication, else None."""
    return answer if hasattr(getattr(answer, "drawn", None), "by_table") else None


def mechanism_of_answer(answer: object) -> GaussianPrivacy:
    planned, solution = _release_plan(answer), getattr(answer, "answer", answer)  # of a judgement
    mechanism: Any = solution.mechanism if isinstance(solution, Solution) else solution
    mechanism = mechanism if planned is None else planned.drawn.mechanism
    if not hasattr(mechanism, "squared_privacy_cost"):
        raise InputTypeError(f"answer must be a Solution or a mechanism, got {type(answer).__name__}")
    return mechanism


def positive_cost(mechanism: GaussianPrivacy) -> float:
    """Return the squared privacy cost of a mechanism; refuse a cost that is 0 or infinite."""
    cost = float(mechanism.squared_privacy_cost)
    if not 0 < cost < math.inf:
        raise InvalidInputError(f"answer must have a positive, finite privacy cost, got {cost:g}")
    return cost


def workload_of(answer: object, workload: Workload | None) -> Workload:
    """Return the given workload, by default of a plan or of a solution's problem."""
    if workload is None:
        problem = getattr(getattr(answer, "answer", answer), "problem", None)
        workload = getattr(_release_plan(answer) or problem, "workload", None)
    if workload is None:
        raise InvalidInputError("workload must be given: a mechanism has no workload")
    return check_workload(workload)


def _largest(mechanism: GaussianPrivacy, workload: Workload) -> dict[str, float]:
    """Return the largest variance of the queries of each table, or of each group if there are no tables."""
    variances = mechanism.as_targets(workload)
    if isinstance(variances, ByFactor):
        return {"all": math.prod(float(np.max(number)) for number in variances.numbers)}
    tables = workload.tabular()
    if tables is None:
        names = [*workload.groups]
    else:
        names = [*tables.table_names]
        if len(names) > MAX_COLUMNS:
            axes = [table.axes for table in tables.tables] if hasattr(tables, "tables") else tables.axes
            names = [f"{len(group)}-way" for group in axes]
        if len(variances) != len(names):
            names = [names[number] for number in workload.table_numbers()]
    largest: dict[str, float] = {}
    for name, variance in zip(names, variances.tolist(), strict=True):
        largest[name] = max(largest.get(name, 0.0), variance)
    return largest


__all__ = ["curve"]

MAX_MATRIX_SIZE = 512  # queries of a plotted covariance
EXACT_TOL = 1e-6  # standard deviations up to this, relative to the largest, are plotted as 0
MAX_TICK_LABELS = 24  # names of queries on an axis
MAX_SLANTED_LABELS = 8  # more labels are vertical
MAX_LABEL_LENGTH = 24
AXIS_FACTOR = 1.15  # upper end of an axis that starts at 0, relative to the largest value
DIVERGING, SEQUENTIAL = "PuOr", "viridis"


def covariance(
    answer: object, workload: Workload | None = None, axes: Axes = None, *, correlation: bool = False
) -> Axes:
    """Draw the covariance of the noise on the answers to a workload, W Σ W', or with `correlation` their correlation.

    Answers that no neighbour changes have no noise.
    Raises `InvalidInputError` or `InputTypeError` for an answer without a covariance, more than 512 queries, and a
    workload that the mechanism does not answer.

    Parameters
    ----------
    answer : Solution or mechanism
        The answer, whose noise is plotted.
    workload : Workload, optional
        The queries, by default the problem's.
    axes : matplotlib Axes, optional
        The axes, by default new ones.
    correlation : bool
        Whether to divide each entry by both standard deviations.

    Examples
    --------
    >>> import dualmech as dm
    >>> answer = dm.fast.solve(dm.FitnessForUse(dm.workloads.prefix(8)))
    >>> dm.plots.covariance(answer, correlation=True).get_title()
    'correlation of the noise on the answers'
    """
    queries, is_correlation = workload_of(answer, workload), validate.boolean(correlation=correlation)
    if queries.shape[0] > MAX_MATRIX_SIZE:
        raise InvalidInputError(
            f"workload must have at most {MAX_MATRIX_SIZE} queries to be drawn, got {queries.shape[0]}"
        )
    mechanism = mechanism_of_answer(answer)
    dense = mechanism if hasattr(mechanism, "covariance") else mechanism.dense()
    matrix = dense.covariance(queries)
    exact = _unmoved(mechanism, queries, len(matrix))
    matrix[exact], matrix[:, exact] = 0.0, 0.0
    if is_correlation:
        scale = np.sqrt(np.maximum(np.diagonal(matrix), 0.0))
        scale[scale <= EXACT_TOL * scale.max()] = 0.0
        products = np.outer(scale, scale)
        matrix = np.divide(matrix, products, out=np.zeros_like(matrix), where=products > 0)
    axes = _axes(axes)
    limit = 1.0 if is_correlation else float(np.abs(matrix).max()) or 1.0
    image = axes.imshow(matrix, cmap=DIVERGING, vmin=-limit, vmax=limit)
    axes.figure.colorbar(image, ax=axes, label="correlation" if is_correlation else "squared counts")
    axes.set(xlabel="query", ylabel="query")
    _label_queries(axes, queries, on_y=True)
    _title(axes, f"{'correlation' if is_correlation else 'covariance'} of the noise on the answers")
    return axes


def variances(answer: object, axes: Axes = None) -> Axes:
    """Draw the variance and the target of every query, or the largest variance of each table, coloured by price.

    For a plan, margins of error are plotted instead of variances.
    Raises `InvalidInputError` or `InputTypeError` for an answer whose problem has no targets by query or table.

    Examples
    --------
    >>> import dualmech as dm
    >>> answer = dm.fast.solve(dm.FitnessForUse(dm.workloads.prefix(8), targets=[1, 1, 1, 1, 2, 2, 2, 9]))
    >>> dm.plots.variances(answer).get_ylabel()
    'variance, squared counts'
    """
    solution = require_solution(answer, "answer")
    targets = getattr(solution.problem, "targets", None)
    if not isinstance(targets, np.ndarray):
        raise InvalidInputError(f"answer must be to a problem with targets, got {type(solution.problem).__name__}")
    workload = solution.problem.workload
    exact = _unmoved(solution.mechanism, workload, len(targets))
    values, prices = np.where(exact, 0.0, solution.variances), np.asarray(solution.prices)
    word, label = "variance", "variance, squared counts"
    if "quantile" in solution.metadata:
        z = _quantile(solution)
        targets, values = (accounting.margin_from_variance(variance, z) for variance in (targets, values))
        word, label = "margin", f"margin of error, level {accounting.level_of(z):.4g}"
    axes, places = _axes(axes), np.arange(len(targets))
    axes.plot(places[~exact], targets[~exact], "_", color=COLOURS[0], ms=9, label="target")
    image = axes.scatter(places, values, c=prices, cmap=SEQUENTIAL, vmin=0, s=18, label=word, zorder=3)
    axes.figure.colorbar(image, ax=axes, label="price: share of the whole cost")
    axes.set(xlabel="query", ylabel=label)
    if np.ptp(np.log(targets)) > np.log(20):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, AXIS_FACTOR * max(targets.max(), values.max()))
    by_table = _label_queries(axes, workload, len(targets))
    _title(axes, f"{f'largest {word} of each table' if by_table else f'{word} of each query'}, and its target")
    _legend(axes)
    return axes


def profile(answer: object, axes: Axes = None) -> Axes:
    """Draw the squared privacy cost of every pair of neighbours, or orbit of pairs, in decreasing order.

    Raises `InputTypeError` for an object that is no solution or mechanism of Gaussian noise.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.plots.profile(dm.strategies.sqrt_toeplitz(16)).get_xlabel()
    'neighbours, dearest first'
    """
    mechanism = mechanism_of_answer(answer)
    costs = np.sort(np.asarray(mechanism.profile))[::-1]
    axes, has_markers = _axes(axes), len(costs) <= MAX_TICK_LABELS
    axes.step(np.arange(1, len(costs) + 1), costs, "o-" if has_markers else "-", ms=4, where="mid", color=COLOURS[1])
    kinds = "kinds of neighbours" if isinstance(mechanism, BlockMechanism) else "neighbours"
    axes.set(xlabel=f"{kinds}, dearest first", ylabel="squared privacy cost, twice rho")
    axes.set(xlim=(0.5, len(costs) + 0.5), ylim=(0, AXIS_FACTOR * costs.max(initial=0.0) or 1.0))
    if has_markers:
        axes.set_xticks(range(1, len(costs) + 1))
    _title(axes, f"privacy cost of all {kinds}")
    return axes


def tradeoff(answer: object, delta: float | None = None, axes: Axes = None) -> Axes:
    """Draw the privacy-accuracy curve: ε at δ when all standard deviations change by one factor.

    A factor t divides the squared privacy cost of a Gaussian mechanism by ``t²``; optimal answers stay optimal. For a
    plan with a ρ, ε is implied by ρ, as in its release; for other noise it is the exact ε of continuous Gaussian noise.
    δ is by default the plan's, else 1e-9. `dualmech.crosscheck.curve` returns the numbers.
    Raises `InvalidInputError` or `InputTypeError` for an object that is no solution or mechanism, and δ outside (0, 1).

    Examples
    --------
    >>> import dualmech as dm
    >>> answer = dm.fast.solve(dm.FitnessForUse(dm.workloads.prefix(8)))
    >>> dm.plots.tradeoff(answer).get_ylabel()
    'epsilon at delta = 1e-09'
    """
    rho, delta = plan_rho(answer), validate.probability(delta=_delta(answer) if delta is None else delta)
    cost = positive_cost(mechanism_of_answer(answer)) if rho is None else 2 * rounded_up(rho)
    factors = np.geomspace(0.1, 10, 61)
    epsilons = [epsilon_at(cost / factor**2, delta, rho is not None) for factor in factors]
    axes, epsilon = _axes(axes), epsilon_at(cost, delta, rho is not None)
    axes.plot(factors, epsilons, color=COLOURS[1])
    axes.plot([1], [epsilon], "o", color=COLOURS[2], label=f"this noise: epsilon = {decimal_above(epsilon)}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="factor on the standard deviations of all answers", ylabel=f"epsilon at delta = {delta}")
    _title(
        axes, "discrete noise of a release: epsilon implied by rho" if rho is not None else "continuous Gaussian noise"
    )
    _legend(axes)
    return axes


def ellipses(
    mechanisms: Mapping[str, GaussianPrivacy], workload: Workload, queries: Sequence[int] = (0, 1), axes: Axes = None
) -> Axes:
    """Draw the ellipse that contains the noise on two queries with probability 95 %, for each mechanism.

    Raises `InvalidInputError` or `InputTypeError` for no mechanisms by name, other than two queries, and a workload
    that some mechanism does not answer.

    Examples
    --------
    >>> import numpy as np
    >>> import dualmech as dm
    >>> sums = dm.workloads.prefix(2)
    >>> noise = {"cells": dm.LinearGaussianMechanism(np.eye(2), np.eye(2))}
    >>> dm.plots.ellipses(noise, sums).get_xlabel()
    "noise on 'cell 0', counts"
    """
    check_workload(workload)
    index = validate.indices(workload.shape[0], queries=queries)
    if len(index) != 2:
        raise InvalidInputError(f"queries must be two, got {len(index)}")
    pair = workload.select(index)
    angles = np.linspace(0, 2 * np.pi, 181)
    circle = np.sqrt(-2 * np.log(0.05)) * np.array([np.cos(angles), np.sin(angles)])
    axes = _axes(axes)
    for name, mechanism, colour in _coloured(mechanisms):
        values, vectors = np.linalg.eigh(mechanism_of_answer(mechanism).dense().covariance(pair))
        axes.plot(*(vectors * np.sqrt(np.maximum(values, 0)) @ circle), color=colour, label=name)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xlabel=f"noise on {pair.names[0]!r}, counts", ylabel=f"noise on {pair.names[1]!r}, counts")
    _title(axes, "95 % of the noise")
    _legend(axes)
    return axes


def comparison(mechanisms: Mapping[str, GaussianPrivacy], workload: Workload, axes: Axes = None) -> Axes:
    """Draw the standard deviations of all queries, sorted, each mechanism scaled to squared privacy cost 1.

    Raises `InvalidInputError` or `InputTypeError` for no mechanisms by name, and a workload that some mechanism does
    not answer.

    Examples
    --------
    >>> import dualmech as dm
    >>> sums = dm.workloads.prefix(32)
    >>> best = dm.fast.solve(dm.TotalVariance(sums)).mechanism
    >>> mechanisms = {"least total variance": best, "square root": dm.strategies.sqrt_toeplitz(32)}
    >>> dm.plots.comparison(mechanisms, sums).get_ylabel()
    'deviation at squared cost 1, counts'
    """
    check_workload(workload)
    axes = _axes(axes)
    for name, answer, colour in _coloured(mechanisms):
        mechanism = mechanism_of_answer(answer)
        deviations = np.sqrt(np.sort(np.asarray(mechanism.variances(workload))) * mechanism.squared_privacy_cost)
        axes.plot(np.arange(1, len(deviations) + 1), deviations, color=colour, label=name)
    axes.set(xlabel="queries, most accurate first", ylabel="deviation at squared cost 1, counts")
    axes.set_ylim(0, AXIS_FACTOR * axes.dataLim.y1)
    _title(axes, "standard deviations at the same privacy")
    _legend(axes)
    return axes


def _axes(axes: Axes) -> Axes:
    """Return the given axes, or new ones on a new figure."""
    if axes is not None:
        if not hasattr(axes, "imshow"):
            raise InputTypeError(f"axes must be axes of matplotlib, got {type(axes).__name__}")
        return axes
    check_installed()
    from matplotlib.figure import Figure

    axes = Figure(figsize=(5.6, 3.8), layout="constrained").subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _coloured(mechanisms: Mapping[str, GaussianPrivacy]) -> Iterator[tuple[str, GaussianPrivacy, str]]:
    """Return names, mechanisms and colours."""
    by_name = validate.mapping("mechanisms by name", mechanisms=mechanisms)
    if not 0 < len(by_name) < len(COLOURS) + 1:
        raise InvalidInputError(f"mechanisms must be 1 to {len(COLOURS)}, by name, got {len(by_name)}")
    colours = (*COLOURS[1:], COLOURS[0])
    return ((*item, colour) for item, colour in zip(by_name.items(), colours, strict=False))


def _title(axes: Any, words: str) -> None:
    axes.set_title(words, fontsize="medium")


def _legend(axes: Any) -> None:
    """Place the legend below single axes, outside the plot, else inside."""
    figure, place = axes.figure, axes.get_subplotspec()
    is_single = place is not None and place.get_gridspec().get_geometry() == (1, 1)
    if is_single and figure.get_layout_engine() is not None:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    else:
        axes.legend()


def _unmoved(mechanism: Any, workload: Workload, count: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the queries, or tables, that no neighbour changes."""
    relation, tables = getattr(mechanism, "neighbours", None), workload.tabular()
    if not isinstance(relation, Relation) or relation.fixed is None:
        return np.zeros(count, dtype=bool)
    if tables is None or len(tables.product_tables) != count:
        return np.asarray(np.ptp(workload.dense(), axis=1) == 0)
    names, shape = tables.domain.names, tables.domain.shape
    masks = [
        [relation.leaves(names[axis], query, shape[axis]) for axis, query in table.queries]
        for table in tables.product_tables
    ]
    return np.array([all(map(np.all, flags)) for flags in masks])


def _label_queries(axes: Any, workload: Workload, count: int | None = None, on_y: bool = False) -> bool:
    """Label few queries or tables on the axes by name, and many by number; return whether these are tables."""
    names: Array | Sequence[str] = workload.names if workload.shape[0] <= MAX_TICK_LABELS else ()
    count = workload.shape[0] if count is None else count
    tables = None if len(names) == count else workload.tabular()
    if tables is not None and len(tables.product_tables) == count <= MAX_TICK_LABELS:
        names = tables.table_names
        axes.set_xlabel("table")
    by_table = tables is not None and len(tables.product_tables) == count
    if len(names) != count:
        axes.set_xlabel("table, by its number from 0" if by_table else "query, by its number from 0")
        axes.xaxis.get_major_locator().set_params(integer=True)
        if on_y:
            axes.set_ylabel(axes.get_xlabel())
        return by_table
    labels = [name if len(name) <= MAX_LABEL_LENGTH else f"{name[: MAX_LABEL_LENGTH - 1]}…" for name in names]
    size = "small" if len(names) <= MAX_TICK_LABELS // 2 else "x-small"
    is_slanted = len(names) <= MAX_SLANTED_LABELS
    style = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if is_slanted else {"rotation": 90}
    axes.set_xticks(range(len(names)), labels, fontsize=size, **style)
    if on_y:
        axes.set_yticks(range(len(names)), labels, fontsize=size)
    return by_table
