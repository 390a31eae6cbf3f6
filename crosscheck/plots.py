"""Pictures of a user's problem: noise, prices, costs and curves, on axes that can be reused.

Every function takes an answer, or mechanisms, and draws on `axes`, by default new ones, which it returns; matplotlib
(of the extra ``plots``) is loaded when something is drawn. One scale a plot, a title that says what is drawn, units in
the names of the axes, colours that all readers can tell apart.
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
"""Axes of matplotlib, which is loaded only where something is drawn."""

RHOS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Where the curve is evaluated by default."""

LISTED = 20  # most tables that have a column of their own; of more, those of as many ways share one


def curve(
    answer: object,
    workload: Workload | None = None,
    *,
    rhos: npt.ArrayLike | None = None,
    epsilons: npt.ArrayLike | None = None,
    delta: float | None = None,
    z: float | None = None,
) -> list[dict[str, float]]:
    """Return the privacy-accuracy curve: for every privacy the margins of error that it buys, a row each.

    All variances times t cost ``1/t`` of the privacy, for every Gaussian mechanism, and an optimal one stays optimal,
    with the same gap. For a plan, which keeps its ρ, ε is the one that ρ implies, as its release will say; for other
    noise it is the ε of continuous Gaussian noise, exactly. A row has ``rho``, ``epsilon`` at ``delta``, the factor t
    on the ``variances``, and the largest ``margin of`` the queries of each table or group; ``pandas.DataFrame(rows)``
    is a frame of them.
    Raises `InvalidInputError` or `InputTypeError` for no answer or problem, both ρ and ε, a mechanism alone without a
    workload, a privacy that is not positive.

    Parameters
    ----------
    answer : Solution, mechanism or problem
        The answer whose curve is returned; a problem is solved here, to a gap of 1e-6.
    workload : Workload, optional
        The queries; by default those of the problem.
    rhos, epsilons : array, optional
        The values of ρ (zCDP), or of ε at `delta`; by default ρ from 0.01 to 10.
    delta : float, optional
        δ of every ε; by default the plan's own, else 1e-9.
    z : float, optional
        Margins of error in standard deviations; by default the plan's own, else 1.645, of 90 % confidence.

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
    chance = validate.probability(delta=_delta(answer) if delta is None else delta)
    width = validate.positive_number(z=_quantile(answer) if z is None else z)
    implied = plan_rho(answer) is not None
    if epsilons is not None:
        wanted = validate.positive(1, epsilons=epsilons).tolist()
        costs = [
            2 * accounting.zcdp_rho(epsilon, chance) if implied else accounting.privacy_cost(epsilon, chance) ** 2
            for epsilon in wanted
        ]
    else:
        wanted = validate.positive(1, rhos=RHOS if rhos is None else rhos).tolist()
        costs = [accounting.squared_cost_from_rho(rho) for rho in wanted]
    source: Any = answer
    solved = fast.solve(source) if isinstance(answer, Problem) else answer
    mechanism = mechanism_of_answer(solved)
    largest = _largest(mechanism, asked_of(solved, workload))
    unit_cost, rows = positive_cost(mechanism), []
    for epsilon, cost in zip(wanted, costs, strict=True):
        factor = unit_cost / cost
        private = {"rho": epsilon, "epsilon": epsilon_at(cost, chance, implied)}
        if epsilons is not None:
            private = {"rho": cost / 2, "epsilon": epsilon}
        margins = {f"margin of {name}": width * math.sqrt(factor * variance) for name, variance in largest.items()}
        rows.append({**private, "delta": chance, "variances": factor, **margins})
    return rows


def epsilon_at(squared_cost: float, delta: float, implied: bool) -> float:
    """Return the ε at δ that ρ implies, for the discrete noise of a release, or the least one of continuous noise."""
    if implied:
        return accounting.zcdp_epsilon(squared_cost / 2, delta)
    return accounting.epsilon(accounting.mu_from_squared_cost(squared_cost), delta)


def plan_rho(answer: object) -> Fraction | None:
    """Return the ρ of a plan; None where there is no plan: for an answer that keeps no ρ, or a mechanism."""
    if (planned := _release_plan(answer)) is not None:
        return cast(Fraction, planned.rho)
    rho = _metadata(answer).get("rho")
    return None if rho is None else Fraction(rho)


def _metadata(answer: object) -> Mapping[str, Any]:
    """Return the terms of the request that an answer keeps, by name; a mechanism keeps none of them."""
    held = getattr(answer, "answer", answer)  # a judgement's, or a plan's
    return held.metadata if isinstance(held, Solution) else {}


def _quantile(answer: object) -> float:
    return _metadata(answer).get("quantile", accounting.CENSUS_Z)


def _delta(answer: object) -> float:
    return _metadata(answer).get("delta", 1e-9)


def _release_plan(answer: object) -> Any:
    """Return the plan of a release, or its publication; None for anything else."""
    return answer if hasattr(getattr(answer, "drawn", None), "by_table") else None


def mechanism_of_answer(answer: object) -> GaussianPrivacy:
    planned, held = _release_plan(answer), getattr(answer, "answer", answer)  # a judgement's
    made: Any = held.mechanism if isinstance(held, Solution) else held
    made = made if planned is None else planned.drawn.mechanism
    if not hasattr(made, "squared_privacy_cost"):
        raise InputTypeError(f"answer must be a Solution or a mechanism, got {type(answer).__name__}")
    return made


def positive_cost(mechanism: GaussianPrivacy) -> float:
    """Return the squared privacy cost of a mechanism; refuse one that is zero, or infinite."""
    cost = float(mechanism.squared_privacy_cost)
    if not 0 < cost < math.inf:
        raise InvalidInputError(f"answer must have a positive, finite privacy cost, got {cost:g}")
    return cost


def asked_of(answer: object, workload: Workload | None) -> Workload:
    """Return the workload that is given, or that of a solution's problem."""
    if workload is None:
        problem = getattr(getattr(answer, "answer", answer), "problem", None)
        workload = getattr(_release_plan(answer) or problem, "workload", None)
    if workload is None:
        raise InvalidInputError("workload must be given: a mechanism by itself says not what is asked")
    return check_workload(workload)


def _largest(mechanism: GaussianPrivacy, workload: Workload) -> dict[str, float]:
    """Return the largest variance of the queries of each table, or of each group where there are no tables."""
    variances = mechanism.as_targets(workload)
    if isinstance(variances, ByFactor):
        return {"all": math.prod(float(np.max(number)) for number in variances.numbers)}
    tables = workload.tabular()
    if tables is None:
        names = [*workload.groups]
    else:
        names = [*tables.table_names]
        if len(names) > LISTED:
            axes = [table.axes for table in tables.tables] if hasattr(tables, "tables") else tables.axes
            names = [f"{len(group)}-way" for group in axes]
        if len(variances) != len(names):
            names = [names[number] for number in workload.table_numbers()]
    largest: dict[str, float] = {}
    for name, variance in zip(names, variances.tolist(), strict=True):
        largest[name] = max(largest.get(name, 0.0), variance)
    return largest


__all__ = ["curve"]

LARGEST_MATRIX = 512  # most queries of a covariance that is drawn
EXACT = 1e-6  # deviation, relative to the largest, below which an answer counts as exact in a picture
NAMED = 24  # most queries that are named along an axis
SLANTED = 8  # most that are written at a slant, and not upright
LONGEST = 24  # most letters of such a name
ROOM = 1.15  # end of an axis that begins at 0, over the largest value
DIVERGING, SEQUENTIAL = "PuOr", "viridis"


def covariance(
    answer: object, workload: Workload | None = None, axes: Axes = None, *, correlation: bool = False
) -> Axes:
    """Draw the covariance of the noise on the answers to a workload, W Σ W', or with `correlation` their correlation.

    Answers that no neighbour changes have no noise.
    Raises `InvalidInputError` or `InputTypeError` for an answer without a covariance, more queries than can be seen, a
    workload that is not answered.

    Parameters
    ----------
    answer : Solution or mechanism
        The answer whose noise is drawn.
    workload : Workload, optional
        The queries, by default the problem's.
    axes : matplotlib Axes, optional
        Where to draw.
    correlation : bool
        Whether each entry is divided by both deviations.

    Examples
    --------
    >>> import dualmech as dm
    >>> answer = dm.fast.solve(dm.FitnessForUse(dm.workloads.prefix(8)))
    >>> dm.plots.covariance(answer, correlation=True).get_title()
    'correlation of the noise on the answers'
    """
    queries, is_correlation = asked_of(answer, workload), validate.boolean(correlation=correlation)
    if queries.shape[0] > LARGEST_MATRIX:
        raise InvalidInputError(
            f"workload must have at most {LARGEST_MATRIX} queries to be drawn, got {queries.shape[0]}"
        )
    mechanism = mechanism_of_answer(answer)
    written = mechanism if hasattr(mechanism, "covariance") else mechanism.dense()
    matrix = written.covariance(queries)
    exact = _unmoved(mechanism, queries, len(matrix))
    matrix[exact], matrix[:, exact] = 0.0, 0.0
    if is_correlation:
        scale = np.sqrt(np.maximum(np.diagonal(matrix), 0.0))
        scale[scale <= EXACT * scale.max()] = 0.0
        both = np.outer(scale, scale)
        matrix = np.divide(matrix, both, out=np.zeros_like(matrix), where=both > 0)
    drawn = _axes(axes)
    limit = 1.0 if is_correlation else float(np.abs(matrix).max()) or 1.0
    image = drawn.imshow(matrix, cmap=DIVERGING, vmin=-limit, vmax=limit)
    drawn.figure.colorbar(image, ax=drawn, label="correlation" if is_correlation else "squared counts")
    drawn.set(xlabel="query", ylabel="query")
    _name_queries(drawn, queries, both=True)
    _title(drawn, f"{'correlation' if is_correlation else 'covariance'} of the noise on the answers")
    return drawn


def variances(answer: object, axes: Axes = None) -> Axes:
    """Draw every query's variance against its target, or the largest of each table, each coloured by its price.

    For a plan, margins of error are drawn in place of variances.
    Raises `InvalidInputError` or `InputTypeError` for an answer whose problem has no targets, one per query.

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
    reached, prices = np.where(exact, 0.0, solution.variances), np.asarray(solution.prices)
    word, label = "variance", "variance, squared counts"
    if "quantile" in solution.metadata:
        z = _quantile(solution)
        targets, reached = (accounting.margin_from_variance(values, z) for values in (targets, reached))
        word, label = "margin", f"margin of error, level {accounting.level_of(z):.4g}"
    drawn, places = _axes(axes), np.arange(len(targets))
    drawn.plot(places[~exact], targets[~exact], "_", color=COLOURS[0], ms=9, label="target")
    image = drawn.scatter(places, reached, c=prices, cmap=SEQUENTIAL, vmin=0, s=18, label=word, zorder=3)
    drawn.figure.colorbar(image, ax=drawn, label="price: share of the whole cost")
    drawn.set(xlabel="query", ylabel=label)
    if np.ptp(np.log(targets)) > np.log(20):
        drawn.set_yscale("log")
    else:
        drawn.set_ylim(0, ROOM * max(targets.max(), reached.max()))
    by_table = _name_queries(drawn, workload, len(targets))
    _title(drawn, f"{f'largest {word} of each table' if by_table else f'{word} of each query'}, and its target")
    _legend(drawn)
    return drawn


def profile(answer: object, axes: Axes = None) -> Axes:
    """Draw the squared privacy cost of every neighbour, or kind of them, from the dearest to the cheapest.

    Raises `InputTypeError` for an object that is no solution or mechanism of Gaussian noise.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.plots.profile(dm.strategies.sqrt_toeplitz(16)).get_xlabel()
    'neighbours, dearest first'
    """
    mechanism = mechanism_of_answer(answer)
    costs = np.sort(np.asarray(mechanism.profile))[::-1]
    drawn, few = _axes(axes), len(costs) <= NAMED
    drawn.step(np.arange(1, len(costs) + 1), costs, "o-" if few else "-", ms=4, where="mid", color=COLOURS[1])
    kinds = "kinds of neighbours" if isinstance(mechanism, BlockMechanism) else "neighbours"
    drawn.set(xlabel=f"{kinds}, dearest first", ylabel="squared privacy cost, twice rho")
    drawn.set(xlim=(0.5, len(costs) + 0.5), ylim=(0, ROOM * costs.max(initial=0.0) or 1.0))
    if few:
        drawn.set_xticks(range(1, len(costs) + 1))
    _title(drawn, f"privacy cost of all {kinds}")
    return drawn


def tradeoff(answer: object, delta: float | None = None, axes: Axes = None) -> Axes:
    """Draw the privacy-accuracy curve: ε at δ when all standard deviations change by one factor.

    A factor t divides the squared privacy cost by ``t²``, for every Gaussian mechanism; optimal answers stay optimal.
    For a plan, which keeps its ρ, ε is the one that ρ implies, as its release will say; for other noise it is the ε of
    continuous Gaussian noise, exactly. δ is by default the plan's own, else 1e-9. `dualmech.crosscheck.curve` has the
    numbers.
    Raises `InvalidInputError` or `InputTypeError` for an object that is no solution or mechanism, δ outside (0, 1).

    Examples
    --------
    >>> import dualmech as dm
    >>> answer = dm.fast.solve(dm.FitnessForUse(dm.workloads.prefix(8)))
    >>> dm.plots.tradeoff(answer).get_ylabel()
    'epsilon at delta = 1e-09'
    """
    rho, chance = plan_rho(answer), validate.probability(delta=_delta(answer) if delta is None else delta)
    cost = positive_cost(mechanism_of_answer(answer)) if rho is None else 2 * rounded_up(rho)
    factors = np.geomspace(0.1, 10, 61)
    epsilons = [epsilon_at(cost / factor**2, chance, rho is not None) for factor in factors]
    drawn, here = _axes(axes), epsilon_at(cost, chance, rho is not None)
    drawn.plot(factors, epsilons, color=COLOURS[1])
    drawn.plot([1], [here], "o", color=COLOURS[2], label=f"as it is: epsilon = {decimal_above(here)}")
    drawn.set_xscale("log")
    drawn.set_yscale("log")
    drawn.xaxis.set_major_formatter("{x:g}")
    drawn.yaxis.set_major_formatter("{x:g}")
    drawn.set(xlabel="factor on the standard deviations of all answers", ylabel=f"epsilon at delta = {chance}")
    _title(
        drawn,
        "a release's discrete noise: what rho implies" if rho is not None else "continuous Gaussian noise, exactly",
    )
    _legend(drawn)
    return drawn


def ellipses(
    mechanisms: Mapping[str, GaussianPrivacy], workload: Workload, queries: Sequence[int] = (0, 1), axes: Axes = None
) -> Axes:
    """Draw where the noise on two queries lies with probability 95 %, an ellipse for each mechanism.

    Raises `InvalidInputError` or `InputTypeError` for no mechanisms by name, other than two queries, a workload that
    one of them does not answer.

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
    drawn = _axes(axes)
    for name, mechanism, colour in _coloured(mechanisms):
        values, vectors = np.linalg.eigh(mechanism_of_answer(mechanism).dense().covariance(pair))
        drawn.plot(*(vectors * np.sqrt(np.maximum(values, 0)) @ circle), color=colour, label=name)
    drawn.set_aspect("equal", adjustable="datalim")
    drawn.set(xlabel=f"noise on {pair.names[0]!r}, counts", ylabel=f"noise on {pair.names[1]!r}, counts")
    _title(drawn, "where 95 % of the noise lies")
    _legend(drawn)
    return drawn


def comparison(mechanisms: Mapping[str, GaussianPrivacy], workload: Workload, axes: Axes = None) -> Axes:
    """Draw the standard deviations of all queries, sorted, each mechanism scaled to squared privacy cost 1.

    Raises `InvalidInputError` or `InputTypeError` for no mechanisms by name, a workload that one of them does not
    answer.

    Examples
    --------
    >>> import dualmech as dm
    >>> sums = dm.workloads.prefix(32)
    >>> best = dm.fast.solve(dm.TotalVariance(sums)).mechanism
    >>> named = {"least total variance": best, "square root": dm.strategies.sqrt_toeplitz(32)}
    >>> dm.plots.comparison(named, sums).get_ylabel()
    'deviation at squared cost 1, counts'
    """
    check_workload(workload)
    drawn = _axes(axes)
    for name, mechanism, colour in _coloured(mechanisms):
        made = mechanism_of_answer(mechanism)
        spread = np.sqrt(np.sort(np.asarray(made.variances(workload))) * made.squared_privacy_cost)
        drawn.plot(np.arange(1, len(spread) + 1), spread, color=colour, label=name)
    drawn.set(xlabel="queries, most accurate first", ylabel="deviation at squared cost 1, counts")
    drawn.set_ylim(0, ROOM * drawn.dataLim.y1)
    _title(drawn, "standard deviations at the same privacy")
    _legend(drawn)
    return drawn


def _axes(axes: Axes) -> Axes:
    """Return axes to draw on: those given, or new ones on a figure of their own."""
    if axes is not None:
        if not hasattr(axes, "imshow"):
            raise InputTypeError(f"axes must be those of matplotlib, got {type(axes).__name__}")
        return axes
    check_installed()
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(5.6, 3.8), layout="constrained").subplots()
    drawn.spines[["top", "right"]].set_visible(False)
    return drawn


def _coloured(mechanisms: Mapping[str, GaussianPrivacy]) -> Iterator[tuple[str, GaussianPrivacy, str]]:
    """Return mechanisms by name, each with its colour."""
    by_name = validate.mapping("mechanisms by name", mechanisms=mechanisms)
    if not 0 < len(by_name) < len(COLOURS) + 1:
        raise InvalidInputError(f"mechanisms must be 1 to {len(COLOURS)}, by name, got {len(by_name)}")
    colours = (*COLOURS[1:], COLOURS[0])
    return ((*item, colour) for item, colour in zip(by_name.items(), colours, strict=False))


def _title(drawn: Any, words: str) -> None:
    drawn.set_title(words, fontsize="medium")


def _legend(drawn: Any) -> None:
    """Place the legend below axes that are alone on a figure, where it covers nothing, else where there is room."""
    figure, place = drawn.figure, drawn.get_subplotspec()
    alone = place is not None and place.get_gridspec().get_geometry() == (1, 1)
    if alone and figure.get_layout_engine() is not None:
        figure.legend(*drawn.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    else:
        drawn.legend()


def _unmoved(mechanism: Any, workload: Workload, count: int) -> npt.NDArray[np.bool_]:
    """Return which queries, or tables, no neighbour changes where records are replaced."""
    relation, tables = getattr(mechanism, "neighbours", None), workload.tabular()
    if not isinstance(relation, Relation) or relation.fixed is None:
        return np.zeros(count, dtype=bool)
    if tables is None or len(tables.product_tables) != count:
        return np.asarray(np.ptp(workload.dense(), axis=1) == 0)
    names, shape = tables.domain.names, tables.domain.shape
    left = [
        [relation.leaves(names[axis], query, shape[axis]) for axis, query in table.queries]
        for table in tables.product_tables
    ]
    return np.array([all(map(np.all, flags)) for flags in left])


def _name_queries(drawn: Any, workload: Workload, count: int | None = None, both: bool = False) -> bool:
    """Name queries along the axes where they are few; number them otherwise. Return whether the names are of tables."""
    names: Array | Sequence[str] = workload.names if workload.shape[0] <= NAMED else ()
    wanted = workload.shape[0] if count is None else count
    tables = None if len(names) == wanted else workload.tabular()
    if tables is not None and len(tables.product_tables) == wanted <= NAMED:
        names = tables.table_names
        drawn.set_xlabel("table")
    by_table = tables is not None and len(tables.product_tables) == wanted
    if len(names) != wanted:
        drawn.set_xlabel("table, by its number from 0" if by_table else "query, by its number from 0")
        drawn.xaxis.get_major_locator().set_params(integer=True)
        if both:
            drawn.set_ylabel(drawn.get_xlabel())
        return by_table
    shown = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names]
    size = "small" if len(names) <= NAMED // 2 else "x-small"
    # Few names are read without turning the head, and leave the axes their height.
    slant = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if len(names) <= SLANTED else {"rotation": 90}
    drawn.set_xticks(range(len(names)), shown, fontsize=size, **slant)
    if both:
        drawn.set_yticks(range(len(names)), shown, fontsize=size)
    return by_table
