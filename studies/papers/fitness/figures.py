"""FFU's figures: the curves from closed forms, held against certified optima at a few points.

Figure 1 shows the (ε, δ) curves of a few privacy costs. Figures 2 and 3 are of the counts of d cells and their
total, cell targets 1 and the total's target k: least total variance (CA), also with queries weighted by
their targets, at the privacy cost of the best fit, whose own ratio is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import dualmech as dm
from dualmech import accounting, validate, workloads
from dualmech.crosscheck.instances.fitness import FFU, FitnessInstance
from dualmech.crosscheck.printing import COLOURS, interval_text
from dualmech.crosscheck.sheet import Columns, Row, Sheet, one_table
from dualmech.errors import InvalidInputError
from dualmech.studies.papers.fitness import ratios
from dualmech.studies.papers.fitness.ratios import CA_WEIGHTINGS, agreed_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Closed forms for the counts of d cells and their total, with weights and targets: FFU derives them in section 5.1.
#
# Cells are interchangeable, so optimal noise on them has covariance ``Σ = a I + b 1 1'``; with d cells,
#
# - a cell's variance is ``a + b``, the total's is ``d (a + d b)``,
# - the squared privacy cost is ``(a + (d - 1) b) / (a (a + d b))``.


@dataclass(frozen=True, slots=True)
class ExchangeableNoise:
    """Noise of covariance ``Σ = a I + b 1 1'`` on d cells; `own` is a, `shared` is b.

    Examples
    --------
    >>> noise = ExchangeableNoise(cells=3, own=4 / 3, shared=-1 / 3)
    >>> round(noise.cell_variance, 12), round(noise.total_variance, 12), round(noise.squared_cost, 12)
    (1.0, 1.0, 1.5)
    """

    cells: int
    own: float
    shared: float

    @property
    def cell_variance(self) -> float:
        return self.own + self.shared

    @property
    def total_variance(self) -> float:
        return self.cells * (self.own + self.cells * self.shared)

    @property
    def squared_cost(self) -> float:
        """Squared privacy cost, one record added or removed."""
        common = self.own + self.cells * self.shared
        return (common - self.shared) / (self.own * common)

    def largest_ratio(self, total_target: float) -> float:
        """Return the largest variance over target, with targets 1 for the cells and `total_target` for their sum."""
        return max(self.cell_variance, self.total_variance / total_target)


def fitness_noise(cells: int, total_target: float) -> ExchangeableNoise:
    """Return the noise of least privacy cost with variances of at most 1 per cell and `total_target` for their sum.

    ``a = (d² - k) / (d (d - 1))``, ``b = (k - d) / (d (d - 1))`` where the sum's target k is below d; from there
    on, the cells' own noise meets it.
    Raises `InvalidInputError` for fewer than two cells, a target that is not positive.
    Theorem 7 of FFU is k = 1: a squared cost of ``2d / (d + 1)``.

    - `cells`: number of cells d, at least 2;
    - `total_target`: k > 0.
    """
    count, target = _cells(cells), validate.positive_number(total_target=total_target)
    if target >= count:
        return ExchangeableNoise(count, 1.0, 0.0)
    pairs = count * (count - 1)
    return ExchangeableNoise(count, (count**2 - target) / pairs, (target - count) / pairs)


def variance_noise(cells: int, total_weight: float) -> ExchangeableNoise:
    """Return the noise of squared cost 1 with the least sum of cell variances plus `total_weight` times the total's.

    With ω the weight and ``r = √(1 + ω d)``: ``a = (d - 1 + r) / d`` and ``a + d b = a / r``.
    Raises `InvalidInputError` for fewer than two cells, a weight that is not positive.
    Theorem 6 of FFU is ω = 1 (stated for d ≥ 5; the formula is 0/0 at d = 3); the weighted form stands before its
    Theorem 8 in the full version.

    - `cells`: number of cells d, at least 2;
    - `total_weight`: ω > 0.
    """
    count, weight = _cells(cells), validate.positive_number(total_weight=total_weight)
    root = math.sqrt(1 + weight * count)
    diagonal = (count - 1 + root) / count
    return ExchangeableNoise(count, diagonal, (diagonal / root - diagonal) / count)


def _cells(cells: int) -> int:
    count = validate.size(cells=cells)
    if count < 2:
        raise InvalidInputError(f"cells must be an integer of at least 2, got {count}")
    return count


COSTS = (0.1, 0.2, 0.3, 0.4)  # privacy costs of Figure 1; of the paper's, only 0.2 is named in its text

EPSILONS = (0.1, 0.25, 0.5, 1.0)

LARGEST_EPSILON, STEPS = 1.0, 201  # of the curves as drawn
ROUNDING = 1e-9  # relative allowance when a closed form is held against a certified interval


@dataclass(frozen=True, slots=True)
class Figure:
    """Figure 2 or 3: which (d, k) it shows, and which of them are also solved."""

    number: int
    subject: str
    varied: str
    points: tuple[tuple[int, int], ...]
    solved: tuple[tuple[int, int], ...]
    quick: tuple[tuple[int, int], ...]

    def tasks(self, quick: bool) -> list[Callable[[], Row]]:
        solved = self.quick if quick else self.solved
        return [partial(point, cells, target, (cells, target) in solved) for cells, target in self.points]

    def x(self, row: Row) -> int:
        return int(row.cells if self.varied == "d" else row.total_target)


FIGURE_2 = Figure(
    2,
    "counts of d cells and their total, whose target is k = 4",
    "d",
    tuple((d, 4) for d in (8, 16, 32, 64, 128, 256, 512, 1024)),
    ((8, 4), (64, 4), (256, 4)),
    ((8, 4), (64, 4)),
)

FIGURE_3 = Figure(
    3,
    "counts of d = 256 cells and their total, whose target is k",
    "k",
    tuple((256, k) for k in (1, 2, 4, 8, 16, 32, 64, 128, 256)),
    ((256, 1), (256, 16), (256, 256)),
    ((256, 16),),
)


def point(cells: int, total_target: int, solved: bool = False) -> Row:
    """Return a point of Figure 2 or 3 by closed form, and solved too where asked.

    Its `curves` are the largest ratios of variance to target at equal privacy cost, by mechanism.
    """
    best = fitness_noise(cells, total_target)
    curves = {
        name: variance_noise(cells, total_target**-power).largest_ratio(total_target) / best.squared_cost
        for name, power in CA_WEIGHTINGS.items()
    }
    values = {"cells": cells, "total_target": total_target, "curves": curves, "squared_cost": best.squared_cost}
    if not solved:
        return Row({**values, "reading": None})
    instance = FitnessInstance("", partial(_with_total, cells, total_target))
    return held_point({**values, "reading": ratios.solve(instance, variants=False)})


def held_point(values: Mapping[str, Any]) -> Row:
    """Return a point whose closed forms are held against the certified intervals of the same instance."""
    reading, curves = values["reading"], values["curves"]
    pairs = [(values["squared_cost"], reading.cost), *((curves[name], reading.ratio(name)) for name in CA_WEIGHTINGS)]
    inside = all(low * (1 - ROUNDING) <= value <= high * (1 + ROUNDING) for value, (low, high) in pairs)
    return Row(values, reading.gap, reading.certified, sound=inside)


def _with_total(cells: int, total_target: int) -> tuple[dm.Workload, np.ndarray]:
    return workloads.identity_total(cells), np.append(np.ones(cells), total_target)


def curve(privacy_cost: float) -> Row:
    """Return a curve of Figure 1: δ at each of `EPSILONS`."""
    return held_curve(privacy_cost, tuple(accounting.delta(privacy_cost, epsilon) for epsilon in EPSILONS))


def held_curve(privacy_cost: float, deltas: tuple[float, ...]) -> Row:
    again = all(
        delta <= 0 or abs(accounting.epsilon(privacy_cost, delta) / epsilon - 1) <= ROUNDING
        for epsilon, delta in zip(EPSILONS, deltas, strict=True)
    )
    return Row({"privacy_cost": privacy_cost, "deltas": deltas}, sound=again)


def draw_curves(axes: Axes, rows: Sequence[Row]) -> None:
    epsilons = np.linspace(0.0, LARGEST_EPSILON, STEPS)
    for row, colour in zip(rows, COLOURS, strict=False):
        deltas = [accounting.delta(row.privacy_cost, float(epsilon)) for epsilon in epsilons]
        axes.plot(epsilons, deltas, color=colour, label=f"Δ = {row.privacy_cost:g}")
        axes.plot(EPSILONS, row.deltas, "o", ms=3.5, color=colour)
    axes.set(xlabel="ε", ylabel="δ", xlim=(0, LARGEST_EPSILON), ylim=(0, None))
    axes.set_title("Least δ at every ε, by privacy cost Δ", loc="left", fontsize=10)
    axes.legend()


def draw_points(figure: Figure, axes: Axes, rows: Sequence[Row]) -> None:
    xs = [figure.x(row) for row in rows]
    for name, colour in zip(CA_WEIGHTINGS, COLOURS[1:], strict=False):
        axes.plot(xs, [row.curves[name] for row in rows], "o-", ms=3.5, color=colour, label=name)
    axes.plot(xs, np.ones(len(xs)), "s-", ms=3.5, color=COLOURS[0], label="fitness for use")
    axes.set_xscale("log", base=2)
    axes.set_xticks(xs, [str(x) for x in xs])
    axes.set(xlabel=figure.varied, ylabel="largest variance / target", ylim=(0, None))
    axes.set_title(figure.subject.capitalize(), loc="left", fontsize=10)
    axes.legend()


CURVES: Columns = (
    ("Δ", "{privacy_cost:g}"),
    *((f"ε = {epsilon:g}", f"{{deltas[{place}]:.4e}}") for place, epsilon in enumerate(EPSILONS)),
    ("ε found again", "{verdict}"),
)


def _points(figure: Figure) -> Sheet:
    columns: Columns = (
        (figure.varied, lambda row: str(figure.x(row))),
        ("squared cost", "{squared_cost:.6f}"),
        *((name, f"{{curves[{name}]:.6f}}") for name in CA_WEIGHTINGS),
        ("certified squared cost", lambda row: interval_text(row.reading.cost) if row.reading else ""),
        ("certified", _certified),
    )
    show = one_table(columns, heading=f": {figure.subject}", words=())
    return Sheet(f"{FFU}, Figure {figure.number}", figure.tasks, show, partial(draw_points, figure))


def _certified(row: Row) -> str:
    if row.reading is None:
        return ""
    return row.text(f"{', '.join(agreed_digits(row.reading.ratio(name)) for name in CA_WEIGHTINGS)}: {{verdict}}")


SHEETS = {
    "figure1": Sheet(
        f"{FFU}, Figure 1",
        lambda quick: [partial(curve, cost) for cost in COSTS],
        one_table(CURVES, heading=": δ by ε", words=()),
        draw_curves,
    ),
    **{f"figure{figure.number}": _points(figure) for figure in (FIGURE_2, FIGURE_3)},
}
