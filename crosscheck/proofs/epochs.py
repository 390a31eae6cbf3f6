"""The numbers that show both bounds of problems whose persons take part in several steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dualmech.crosscheck.proofs import noise
from dualmech.crosscheck.proofs.checker.epochs import MOST_ENUMERATED
from dualmech.crosscheck.proofs.texts import Parts, PrimalAndDual
from dualmech.geometry.epochs import Epochs, diagonals_above
from dualmech.linalg import EPS
from dualmech.problems.base import OnGeometry, Problem
from dualmech.validate import Array


def refuse_large(problem: Problem, stated: Parts) -> None:
    """Refuse a problem of too many multiplications of whole numbers, before any of them."""
    noise.refuse_large(problem, stated | {"neighbours": None})


def witness(problem: OnGeometry, primal: Array, dual: noise.ItemDual, stated: Parts) -> PrimalAndDual:
    """Return the parts that show the upper and the lower bound."""
    geometry, signs = problem.geometry, stated["parts"] == "signs"
    assert isinstance(geometry, Epochs)
    present = [steps[steps >= 0] for steps in geometry.phases]
    upper = noise.measured(geometry.basis, primal, None)
    if not (signs and geometry.neighbours.times <= MOST_ENUMERATED):
        upper["phases"] = _cost_parts(upper["strategy"], geometry.phases)
    p, rows = noise.roots_of_queries(dual, stated), stated["workload"]
    blocks = [block[: len(steps), : len(steps)] for block, steps in zip(dual.neighbour_weights, present, strict=True)]
    weights = [_of_signs(block) if signs else {"root": noise.root(block)} for block in blocks]
    changes = np.hstack([rows[:, steps] @ part["root"] for steps, part in zip(present, weights, strict=True)])
    return upper, {"query_roots": p, "isometry": noise.polar_factor(p[:, None] * changes), "phases": weights}


def _cost_parts(strategy: Array, phases: npt.NDArray[np.intp]) -> list[Parts]:
    """Return a diagonal above the cost matrix of each phase, and a root of what it is above."""
    columns = np.append(strategy, np.zeros((len(strategy), 1)), axis=1)[:, phases].swapaxes(0, 1)
    blocks = np.swapaxes(columns, 1, 2) @ columns
    _, diagonals = diagonals_above(blocks, np.zeros_like(blocks))
    parts = []
    for steps, block, diagonal in zip(phases, blocks, diagonals, strict=True):
        count = int(np.count_nonzero(steps >= 0))
        excess = np.diag(diagonal) - block
        parts.append({"diagonal": diagonal[None, :count], "root": noise.root(excess[:count, :count])})
    return parts


def _of_signs(block: Array) -> Parts:
    """Return normal numbers, a mass, and a root of the mean of ``z z'`` over the signs z of these numbers."""
    normal = noise.root(block)
    lengths = np.linalg.norm(normal, axis=1)
    mass = float(lengths.max() ** 2)
    normal = normal / (np.where(lengths > 0, lengths, 1.0)[:, None] * (1 + 8 * len(block) * EPS))
    means = 2 / np.pi * np.arcsin(np.clip(normal @ normal.T, -1.0, 1.0))
    np.fill_diagonal(means, 1.0)
    return {"mass": mass, "normal": normal, "root": np.sqrt(mass) * noise.root(means)}
