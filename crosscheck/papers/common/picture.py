"""Ellipses of two and of three covariances and of their common mechanisms: what a minimal upper bound looks like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dualmech import fast
from dualmech.certificate import Certificate
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.plots import COLOURS
from dualmech.crosscheck.papers.solving import certified_outcome
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.problems.common import CommonMechanism
from dualmech.validate import Array

TOLERANCE = 1e-9  # gap that is asked for; in two dimensions it costs nothing

FAMILIES: dict[str, tuple[Array, ...]] = {
    "two": (np.array([[4.0, 1.2], [1.2, 1.0]]), np.array([[1.0, -0.6], [-0.6, 2.0]])),
    "three": (
        np.array([[4.0, 1.2], [1.2, 1.0]]),
        np.array([[1.0, -0.6], [-0.6, 2.0]]),
        np.array([[1.0, 1.2], [1.2, 3.0]]),
    ),
}
"""Covariances with which mechanisms answer the same two queries, variances in squared counts."""

UNEVEN = np.diag([1.0, 3.0])  # rows of another basis: on it the second query's variance counts nine times

STEPS = 181

GAP = 5.6  # distance between the centres of two families in the picture, in counts


@dataclass(frozen=True, slots=True, eq=False)
class Ellipses:
    """A family of covariances and two of its minimal upper bounds."""

    name: str  # Of the family
    bounds: tuple[Array, ...]  # tuple of (2, 2) arrays: The covariances P_i
    # (2, 2) arrays: The upper bound of the least trace, and the one that another basis picks
    covariance: Array
    other: Array
    improvements: tuple[float, float]  # By how much each of the two could be bettered, as the judge proves
    certificates: tuple[Certificate, Certificate]  # Of the two

    @property
    def gap(self) -> float:
        """The wider gap."""
        return max(each.gap for each in self.certificates)

    @property
    def outcome(self) -> Agreement:
        """Whether both bounds are proven and minimal."""
        certified = all(each.certifies(TOLERANCE) for each in self.certificates)
        return certified_outcome(certified and max(self.improvements) <= TOLERANCE**0.5)


def family_with_bounds(name: str) -> Ellipses:
    """Return a family of `FAMILIES` with its bounds."""
    mechanisms = [LinearGaussianMechanism(np.eye(2), bound) for bound in FAMILIES[name]]
    problem, uneven = (CommonMechanism(mechanisms, basis=rows) for rows in (np.eye(2), UNEVEN))
    best, other = (fast.solve(each, tol=TOLERANCE) for each in (problem, uneven))
    back = np.linalg.inv(UNEVEN)
    return Ellipses(
        name,
        FAMILIES[name],
        np.asarray(best.primal),
        back @ other.primal @ back.T,
        (problem.maximality(best.primal).improvement, uneven.maximality(other.primal).improvement),
        (best.certificate, other.certificate),
    )


def tasks(quick: bool) -> list[Callable[[], Ellipses]]:
    """Return what to compute, a family each."""
    return [partial(family_with_bounds, name) for name in FAMILIES]


def picture(axes: Any, rows: Sequence[Ellipses]) -> None:
    """Draw every family with its bounds, side by side on one pair of axes."""
    most = max((len(row.bounds) for row in rows), default=0)
    for place, found in enumerate(rows):
        centre = GAP * place
        for index, (bound, colour) in enumerate(zip(found.bounds, COLOURS[1:], strict=False)):
            label = f"mechanism {index + 1}" if len(found.bounds) == most else None
            axes.fill(*_outline(bound, centre), color=colour, alpha=0.25, label=label)
        ours, theirs = ("common, least trace", "common, other basis") if place == 0 else (None, None)
        axes.plot(*_outline(found.covariance, centre), color=COLOURS[0], label=ours)
        axes.plot(*_outline(found.other, centre), color=COLOURS[0], lw=0.8, ls="--", label=theirs)
    axes.set(
        aspect="equal", xlabel="first query", ylabel="second query", xticks=[], yticks=[], ylim=(-2.2, 3.6)
    )
    axes.set_title("Noise of two and of three mechanisms, one standard deviation", loc="left", fontsize=10)
    axes.legend(loc="upper center", ncols=2, fontsize=8)


def _outline(covariance: Array, centre: float) -> Array:
    """Return the ellipse ``{u : u' Σ⁻¹ u = 1}`` as points (2, n), moved to the right."""
    turns = np.linspace(0, 2 * np.pi, STEPS)
    circle = np.vstack([np.cos(turns), np.sin(turns)])
    return np.asarray(np.linalg.cholesky(covariance) @ circle + np.array([[centre], [0.0]]))
