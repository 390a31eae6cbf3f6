"""Data that prove both bounds for streams in which a person participates several times."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dualmech.crosscheck.proofs import noise
from dualmech.crosscheck.proofs.checker.epochs import MAX_ENUMERATED_SIGNS
from dualmech.crosscheck.proofs.texts import Parts, PrimalAndDual
from dualmech.errors import CertificateError
from dualmech.geometry.apart import Walks, mean_products, unit_rows
from dualmech.geometry.epochs import Epochs, diagonals_above
from dualmech.linalg import EPS
from dualmech.neighbours import Participation
from dualmech.problems.base import OnGeometry, Problem
from dualmech.validate import Array

MIN_WEIGHT_FACTOR = 1e-12  # smaller weights, relative to the largest, are set to 0


def refuse_large(problem: Problem, statement: Parts) -> None:
    """Refuse a problem whose proof needs too many multiplications to check."""
    noise.refuse_large(problem, statement | {"neighbours": None})


def witness(problem: OnGeometry, primal: Array, dual: noise.ItemDual, statement: Parts) -> PrimalAndDual:
    """Return the data that prove the upper and the lower bound."""
    geometry = problem.geometry
    assert isinstance(geometry, Epochs)
    rule, upper = geometry.neighbours, noise.measured(geometry.basis, primal, None)
    if not rule.at_least and not (rule.parts == "signs" and rule.times <= MAX_ENUMERATED_SIGNS):
        upper["phases"] = _cost_parts(upper["strategy"], geometry.phases)
    p, rows = noise.roots_of_queries(dual, statement), statement["workload"]
    if rule.at_least:
        weights = _of_walks(dual.neighbour_weights, rule)
        changes = rows @ weights["root"]
    else:
        present = [steps[steps >= 0] for steps in geometry.phases]
        blocks = [
            block[: len(steps), : len(steps)] for block, steps in zip(dual.neighbour_weights, present, strict=True)
        ]
        parts = [_of_signs(block) if rule.parts == "signs" else {"root": noise.root(block)} for block in blocks]
        changes = np.hstack([rows[:, steps] @ part["root"] for steps, part in zip(present, parts, strict=True)])
        weights = {"phases": parts}
    return upper, {"query_roots": p, "isometry": noise.polar_factor(p[:, None] * changes), **weights}


def _of_walks(weights: Array, rule: Participation) -> Parts:
    """Return a chain with total weight 1, normal vectors, and a root of the product of their matrices."""
    with np.errstate(all="ignore"):
        chain = np.maximum(weights[0], 0.0)
        first, following = np.diagonal(chain), np.triu(chain, rule.separation)
        num_participations = min(rule.times, -(-len(chain) // rule.separation))
        first = _in_few_digits(first / Walks.of(first, following, num_participations).total)
        following = _in_few_digits(following)
        walks = Walks.of(first, following, num_participations)
        pairs = walks.pairs
    if not np.all(np.isfinite(pairs)):
        raise CertificateError("the answer proves no bound in exact arithmetic: its dual weights are not finite")
    normal = unit_rows(weights[1]) / (1 + 8 * len(chain) * EPS)
    means, _ = mean_products(normal, rule.parts)
    root = noise.root(pairs * means)
    return {"chain": np.diag(first) + following, "normal": normal, "root": root}


def _in_few_digits(weights: Array) -> Array:
    """Return weights in single precision, so that their products have few digits; any weights prove a bound."""
    return np.where(weights > MIN_WEIGHT_FACTOR * weights.max(), weights, 0.0).astype(np.float32).astype(np.float64)


def _cost_parts(strategy: Array, phases: npt.NDArray[np.intp]) -> list[Parts]:
    """Return for each phase a diagonal matrix that dominates the cost matrix, and a root of the difference."""
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
    mass = float(np.square(noise.root(block)).sum(axis=1).max())
    normal = unit_rows(block) / (1 + 8 * len(block) * EPS)
    means, _ = mean_products(normal, "signs")
    return {"mass": mass, "normal": normal, "root": np.sqrt(mass) * noise.root(means)}
