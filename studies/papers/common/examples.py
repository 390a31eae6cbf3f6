"""Worked examples of the common-mechanism paper (CMN: 3.3, 3.8, 3.12; lemma 2.4, section 4), statement by statement.

The converted text has lost a row here and there; a statement is checked as it must have stood, with a note on whether
it holds as printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

import dualmech as dm
from dualmech import accounting, fast
from dualmech.crosscheck.instances.common import CMN
from dualmech.crosscheck.printing import COLOURS, yes_or_no
from dualmech.crosscheck.sheet import Columns, Row, Sheet, one_table
from dualmech.errors import InvalidInputError
from dualmech.validate import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUNDING = 1e-9
"""Largest difference between a statement's two sides, absolute; all numbers are of the size of 1."""


def example(name: str, differences: Mapping[str, float], printed: Mapping[str, float] | None = None) -> Row:
    """Return an example, a part for each statement.

    - `differences`: by statement, between its two sides; 0 or infinity for one that is true or false;
    - `printed`: the same as the converted text prints the statement, where it lost something.
    """
    as_printed = {**differences, **(printed or {})}
    parts = [
        Row(
            {"example": name, "statement": statement, "printed": as_printed[statement] <= ROUNDING},
            difference,
            sound=difference <= ROUNDING,
        )
        for statement, difference in differences.items()
    ]
    return Row({"name": name}, parts=tuple(parts))


def _mechanism(queries: npt.ArrayLike, noise: npt.ArrayLike) -> dm.LinearGaussianMechanism:
    rows = np.asarray(queries, dtype=np.float64)
    array = np.asarray(noise, dtype=np.float64)
    return dm.LinearGaussianMechanism(rows, array if array.ndim == 2 else array * np.eye(len(rows)))


def _distance(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def _truth(holds: object) -> float:
    return 0.0 if holds else float("inf")


def _equation_residual(verdict: Any, wanted: dm.LinearGaussianMechanism, source: dm.LinearGaussianMechanism) -> float:
    """Return how far lemma 3.2's two equations are from holding with the matrices of a verdict."""
    if verdict.transform is None or verdict.noise is None:
        return float("inf")
    return _lemma(wanted, source, verdict.transform, verdict.noise @ verdict.noise.T)


def _lemma(
    wanted: dm.LinearGaussianMechanism, source: dm.LinearGaussianMechanism, transform: Array, added: Array
) -> float:
    if transform.shape != (len(wanted.query_matrix), len(source.query_matrix)):
        return float("inf")
    spread = transform @ source.covariance() @ transform.T + added
    return max(_distance(transform @ source.query_matrix, wanted.query_matrix), _distance(spread, wanted.covariance()))


def personal_privacy() -> Row:
    """Check lemma 2.4 on two cells of different cost: the diagonal of the privacy cost matrix is enough."""
    mechanism = _mechanism([[1, 0], [1, 1], [0, 2]], 2.0)
    costs = np.diag(mechanism.cost_matrix)
    epsilon = 1.0
    roots = np.sqrt(costs)
    deltas = ndtr(roots / 2 - epsilon / roots) - np.exp(epsilon) * ndtr(-roots / 2 - epsilon / roots)
    return example(
        "lemma 2.4",
        {
            "the profile is the c_i, the diagonal of the cost matrix": _distance(mechanism.profile, costs),
            "ρ is the largest c_i / 2": abs(mechanism.rho - costs.max() / 2),
            "δ at ε = 1 is that of the largest c_i": abs(mechanism.delta(epsilon) - deltas.max()),
            "the personal δ_i are those of c_i": _distance([accounting.delta(root, epsilon) for root in roots], deltas),
        },
    )


def equivalence() -> Row:
    """Check example 3.3: three noisy answers about two cells are worth as much as two."""
    rows = [[1, 1], [1, 0], [0, 1]]
    raw = _mechanism(rows, 2.0)
    consistent = _mechanism(np.eye(2), [[4 / 3, -2 / 3], [-2 / 3, 4 / 3]])
    transform = np.array([[1, 2, -1], [1, -1, 2]]) / 3
    printed = np.array([[1, 2, -1], [2, 1, 2], [-1, 2, 1]]) / 3
    missing = np.array([1.0, -1.0, -1.0])
    added = 2 / 3 * np.outer(missing, missing)
    roots = np.sqrt(2) * np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0]])
    back = np.array(rows, dtype=np.float64)
    forth = consistent.is_answerable_from(raw)
    fewer, more = "M_b = A M_a with A = (1 2 -1; 1 -1 2)/3", "M_a = B M_b + √(2/3) (1, -1, -1)' N(0, 1)"
    differences = {
        "both mechanisms have ρ = 1/2": _distance([raw.rho, consistent.rho], 0.5),
        fewer: _lemma(consistent, raw, transform, np.zeros((2, 2))),
        "the library's A and C satisfy lemma 3.2": _equation_residual(forth, consistent, raw),
        more: _lemma(raw, consistent, back, added),
        "the leftover noise of algorithm 4 is the same": _distance(dm.decomposition(raw, consistent).leftover, added),
        "they are equivalent": _truth(raw.is_equivalent_to(consistent)),
    }
    as_printed = {
        fewer: _lemma(consistent, raw, printed, np.zeros((2, 2))),
        more: _lemma(raw, consistent, back, roots @ roots.T),
    }
    return example("3.3", differences, as_printed)


def maximal() -> Row:
    """Check example 3.8: of two common mechanisms the one with less noise is maximal."""
    total = [[1, 1, 1]]
    first, common, best = (_mechanism(total, variance) for variance in (1.0, 2.0, 1.5))
    second = _mechanism([[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]], 2.0)
    weights = np.array([[0.75, 0.25, 0.25, 0.25]])
    problem = dm.CommonMechanism([first, second])
    solution = fast.solve(problem)
    mechanism = solution.mechanism
    four_rows = "M_4 = (3/4, 1/4, 1/4, 1/4) M_2, M_2 of four rows"
    differences = {
        "M_3 is common to M_1 and M_2": _truth(common.is_answerable_from(first) and common.is_answerable_from(second)),
        "M_4 = M_1 + N(0, 1/2)": _lemma(best, first, np.eye(1), np.full((1, 1), 0.5)),
        four_rows: _lemma(best, second, weights, np.zeros((1, 1))),
        "M_3 is not maximal": _truth(not problem.maximality(common)),
        "M_4 is maximal": _truth(problem.maximality(best)),
        "the certified common mechanism is M_4": _distance(mechanism.cost_matrix, best.cost_matrix),
        "its certified gap": solution.gap,
    }
    return example("3.8", differences, {four_rows: np.inf})


def decomposition() -> Row:
    """Check example 3.12: two one-way marginals have a noisy total in common, and what is left of each."""
    ones, cells = np.ones((1, 3)), np.eye(3)
    mechanisms = [_mechanism(np.kron(cells, ones), 1.0), _mechanism(np.kron(ones, cells), 1.0)]
    contrasts = np.array([[0.0, 1.0, -1.0], [-1.0, 1.0, 0.0]])
    noise = np.array([[2.0, 1.0], [1.0, 2.0]])
    printed = [_mechanism(np.kron(contrasts, ones), noise), _mechanism(np.kron(ones, contrasts), noise)]
    from_residual = np.array([[1, -2], [1, 1], [-2, 1]]) / 3
    total = _mechanism(np.ones((1, 9)), 3.0)
    solution = fast.solve(dm.CommonMechanism(mechanisms))
    common = solution.mechanism
    facts = {
        "M_* is the total with variance 3": _distance(common.cost_matrix, total.cost_matrix),
        "its certified gap": solution.gap,
    }
    for index, (mechanism, left) in enumerate(zip(mechanisms, printed, strict=True), start=1):
        parts = dm.decomposition(mechanism, common)
        sums = parts.from_common @ common.query_matrix + parts.from_residual @ parts.residual.query_matrix
        summed = _distance(total.cost_matrix + left.cost_matrix, mechanism.cost_matrix)
        recreated = max(_distance(sums, mechanism.query_matrix), float(np.abs(parts.leftover).max()))
        residual = _distance(parts.residual.cost_matrix, left.cost_matrix)
        facts |= {
            f"C_* + C'_{index} = C_{index} with the printed residual (lemma 3.11)": summed,
            f"the residual M'_{index} is equivalent to the printed one": residual,
            f"M_{index} is recreated from both, without leftover noise": recreated,
        }
    both = printed[0].stack(total)
    transform = np.hstack([from_residual, np.full((3, 1), 1 / 3)])
    again = _lemma(mechanisms[0], both, transform, np.zeros((3, 3)))
    facts["M_1 = A' M'_1 + (1/3, 1/3, 1/3)' M_* with the printed A'"] = again
    return example("3.12", facts)


def two_copies() -> Row:
    """Check section 4's statement on two mechanisms that are run side by side, on the marginals of example 3.12."""
    ones, cells = np.ones((1, 3)), np.eye(3)
    first, second = _mechanism(np.kron(cells, ones), 1.0), _mechanism(np.kron(ones, cells), 2.0)
    common = fast.solve(dm.CommonMechanism([first, second])).mechanism
    left = [dm.decomposition(mechanism, common).residual for mechanism in (first, second)]
    # Two independent answers to the same rows, averaged, are one of half the variance.
    averaged = dm.LinearGaussianMechanism(common.query_matrix, common.covariance() / 2)
    together = first.stack(second)
    consistent = left[0].stack(left[1]).stack(averaged)
    costs = left[0].cost_matrix + left[1].cost_matrix + 2 * common.cost_matrix
    same = _truth(together.is_equivalent_to(consistent))
    differences = {
        "M_1 and M_2 are worth M'_1, M'_2 and two runs of M_*": _distance(together.cost_matrix, costs),
        "consistent answers are those of the residuals and of both copies' average": same,
    }
    return example("section 4", differences)


def examples(quick: bool) -> list[Callable[[], Row]]:
    return [personal_privacy, equivalence, maximal, decomposition, two_copies]


# Ellipses of two and of three covariances and of their common mechanisms: what a minimal upper bound looks like.

TOLERANCE = 1e-9  # requested gap; in two dimensions it costs nothing

FAMILIES: dict[str, tuple[Array, ...]] = {
    "two": (np.array([[4.0, 1.2], [1.2, 1.0]]), np.array([[1.0, -0.6], [-0.6, 2.0]])),
    "three": (
        np.array([[4.0, 1.2], [1.2, 1.0]]),
        np.array([[1.0, -0.6], [-0.6, 2.0]]),
        np.array([[1.0, 1.2], [1.2, 3.0]]),
    ),
    "thin": (
        np.array([[5.0, 0.0], [0.0, 0.2]]),
        np.array([[1.55, 0.78], [0.78, 0.65]]),
        np.array([[0.2, 0.0], [0.0, 0.5]]),
    ),
}
"""Covariances with which mechanisms answer the same two queries, variances in squared counts."""

UNEVEN = np.diag([1.0, 3.0])  # rows of another basis: on it the second query's variance counts nine times

GAP = 5.6  # distance between the centres of two families in the picture, in counts


def family_with_bounds(name: str) -> Row:
    """Return a family of `FAMILIES` with three of its minimal upper bounds.

    They are the bound of least trace ('covariance'), the bound that another basis picks ('other'), and the bound of
    least volume ('volume').
    """
    mechanisms = [dm.LinearGaussianMechanism(np.eye(2), bound) for bound in FAMILIES[name]]
    problem, uneven = (dm.CommonMechanism(mechanisms, basis=rows) for rows in (np.eye(2), UNEVEN))
    least = dm.CommonMechanism(mechanisms, basis=np.eye(2), criterion="volume")
    best, other, volume = (fast.solve(stated, tol=TOLERANCE) for stated in (problem, uneven, least))
    back = np.linalg.inv(UNEVEN)
    minimal = max(
        problem.maximality(best.primal).improvement,
        uneven.maximality(other.primal).improvement,
        problem.maximality(volume.primal).improvement,
    )
    values = {
        "name": name,
        "bounds": FAMILIES[name],
        "covariance": np.asarray(best.primal),
        "other": back @ other.primal @ back.T,
        "volume": np.asarray(volume.primal),
    }
    answers = (best, other, volume)
    certified = all(answer.certificate.certifies(TOLERANCE) for answer in answers)
    return Row(values, max(answer.gap for answer in answers), certified and minimal <= TOLERANCE**0.5)


def tasks(quick: bool) -> list[Callable[[], Row]]:
    return [partial(family_with_bounds, name) for name in FAMILIES]


def picture(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw every family with its bounds, side by side on one pair of axes."""
    largest = max(rows, key=lambda row: len(row.bounds), default=None)
    for place, example in enumerate(rows):
        centre = GAP * place
        for index, (bound, colour) in enumerate(zip(example.bounds, COLOURS[1:], strict=False)):
            label = f"mechanism {index + 1}" if example is largest else None
            axes.fill(*_outline(bound, centre), color=colour, alpha=0.25, label=label)
        named = ("common, least trace", "common, other basis", "common, least volume")
        first_label, second_label, least = named if place == 0 else (None, None, None)
        axes.plot(*_outline(example.covariance, centre), color=COLOURS[0], label=first_label)
        axes.plot(*_outline(example.other, centre), color=COLOURS[0], lw=0.8, ls="--", label=second_label)
        axes.plot(*_outline(example.volume, centre), color=COLOURS[0], lw=1.2, ls=":", label=least)
    axes.set(aspect="equal", xlabel="first query", ylabel="second query", xticks=[], yticks=[], ylim=(-2.2, 3.6))
    axes.set_title("Noise of two and of three mechanisms, one standard deviation", loc="left", fontsize=10)
    axes.legend(loc="upper center", ncols=2, fontsize=8)


def _outline(covariance: Array, centre: float) -> Array:
    """Return the ellipse ``{u : u' Σ⁻¹ u = 1}`` as points (2, n), moved to the right."""
    turns = np.linspace(0, 2 * np.pi, 181)
    circle = np.vstack([np.cos(turns), np.sin(turns)])
    return np.asarray(np.linalg.cholesky(covariance) @ circle + np.array([[centre], [0.0]]))


# Three ways to meet a new wish after an earlier release, with their costs together with it.


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    name: str  # ``naive``, ``residual`` or ``joint``
    further: dm.LinearGaussianMechanism  # The mechanism that it runs now, on top of the release
    total: float  # Squared privacy cost of the release and of that together
    bound: float  # Proven lower bound for every way

    @property
    def excess(self) -> float:
        """How far above the proven bound the total is, relative."""
        return self.total / self.bound - 1


def compare_reuse(
    workload: dm.Workload, targets: npt.ArrayLike, released: dm.LinearGaussianMechanism, tol: float = 1e-6
) -> tuple[Route, Route, Route]:
    """Meet a wish in three ways, each accurate enough, and say the total cost of each.

    - ``naive`` runs the wish's own optimal mechanism as if nothing had been released;
    - ``residual`` takes the common part of that mechanism and the release from the release, and runs the residual alone
      (introduction of CMN);
    - ``joint`` runs the part that the best total mechanism, which contains the release, still lacks (`ReuseFitness`).

    Raises `InvalidInputError` or `InputTypeError` for arguments that `ReuseFitness` and `CommonMechanism` refuse.

    - `workload`, `targets`, `released`: as for `ReuseFitness`; nothing may be released exactly;
    - `tol`: gap to which all optima are proven.

    The optimum of the wish alone may be reached by several mechanisms; the first two ways use the one that the fast
    layer returns.
    """
    problem = dm.ReuseFitness(workload, targets, released)
    answer = fast.solve(problem, tol=tol)
    wish_alone = dm.FitnessForUse(workload, targets, neighbours=problem.neighbours, geometry="dense")
    wish = fast.solve(wish_alone, tol=tol).mechanism.dense()
    if wish.releases_exactly or problem.released.releases_exactly:
        raise InvalidInputError(
            "neighbours leave some queries unchanged, which are released exactly: the residual's way has no finite "
            "cost matrix to compare; ReuseFitness solves the problem all the same"
        )
    common = fast.solve(dm.CommonMechanism([released, wish]), tol=tol).mechanism
    ways: dict[str, dm.LinearGaussianMechanism] = {
        "naive": wish,
        "residual": dm.residual(wish, common),
        "joint": problem.new_mechanism(answer.primal),
    }
    naive, residual, joint = (
        Route(name, further, float((released.profile + further.profile).max()), answer.lower_bound)
        for name, further in ways.items()
    )
    return naive, residual, joint


# The sheets of the examples and of the ellipses.

EXAMPLES: Columns = (
    ("example", "{example}"),
    ("statement", "{statement}"),
    ("off by", "{gap:.0e}"),
    ("holds", lambda row: yes_or_no(row.sound)),
    ("as printed", lambda row: yes_or_no(row.sound and row.printed)),
)

ELLIPSES: Columns = (
    ("covariances", "{name}"),
    ("least trace", lambda row: f"{row.covariance.trace():.6f}"),
    ("of the other basis", lambda row: f"{row.other.trace():.6f}"),
    ("of the least volume", lambda row: f"{row.volume.trace():.6f}"),
    ("area over the trace's", lambda row: f"{(np.linalg.det(row.volume) / np.linalg.det(row.covariance)) ** 0.5:.6f}"),
    ("gap", "{gap:.0e}"),
    ("all minimal", lambda row: yes_or_no(row.certified)),
)

SHEETS = {
    "examples": Sheet(
        f"{CMN}, examples 3.3, 3.8 and 3.12",
        examples,
        one_table(
            EXAMPLES,
            "Last column: whether the statement holds as the converted text has it, which lost rows of some matrices.",
            parts=True,
            words=("example", "statement"),
        ),
    ),
    "ellipses": Sheet("Ellipses and their minimal upper bounds", tasks, one_table(ELLIPSES, words=()), picture),
}
