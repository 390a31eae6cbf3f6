"""The judge's arithmetic on blocks whose coordinates and rows orbits tie together: both sides, and the bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import linalg, validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.blocks import Blocks
from dualmech.geometry.dense_forms import scaled_until
from dualmech.linalg import EPS
from dualmech.validate import Array


@dataclass(frozen=True, slots=True, eq=False)
class UnionPoint:
    """Noise on blocks: a level for each of one coordinate (t,), a covariance on its basis (r, r) for each other."""

    levels: Array
    covariances: tuple[Array, ...]

    def scaled(self, factor: float) -> UnionPoint:
        """Return the noise times a number, kept symmetric; by nothing else than a positive one."""
        if not (np.isfinite(factor) and factor > 0):
            return self
        return UnionPoint(
            self.levels * factor, tuple((each + each.T) / 2 * factor for each in self.covariances)
        )


@dataclass(frozen=True, slots=True, eq=False)
class UnionForms:
    """Cost of a record in each orbit of cells, variance of a query of each orbit, and their rounding, absolute."""

    costs: Array
    variances: Array
    cost_rounding: Array
    variance_rounding: Array

    @property
    def cost(self) -> float:
        """Squared privacy cost, the largest."""
        return float(self.costs.max())

    @property
    def relative_cost_rounding(self) -> float:
        """Allowance for the rounding of the cost, relative."""
        return float((self.costs + self.cost_rounding).max() / self.cost - 1)


def checked_point(blocks: Blocks, primal: Any) -> UnionPoint:
    """Return a primal point of the right shapes, its entries unseen."""
    if not isinstance(primal, UnionPoint) or not isinstance(primal.covariances, Sequence):
        raise InputTypeError(
            f"primal must be noise on blocks, a dualmech.UnionPoint, got {type(primal).__name__}"
        )
    none = not np.size(primal.levels)
    levels = np.zeros(0) if none else validate.numeric(1, levels=primal.levels)
    if len(levels) != len(blocks.columns):
        raise InvalidInputError(f"levels must be {len(blocks.columns)}, got {len(levels)}")
    if len(primal.covariances) != len(blocks.several):
        raise InvalidInputError(f"covariances must be {len(blocks.several)}, got {len(primal.covariances)}")
    found = []
    for index, (each, block) in enumerate(zip(primal.covariances, blocks.several, strict=True)):
        covariance, size = validate.numeric(2, **{f"covariances[{index}]": each}), len(block.moves)
        if covariance.shape != (size, size):
            raise InvalidInputError(
                f"covariances[{index}] must have shape ({size}, {size}), got {covariance.shape}"
            )
        found.append(covariance)
    return UnionPoint(levels, tuple(found))


def checked_weights(name: str, given: Any, count: int) -> Array:
    """Return dual weights of the right number, their entries unseen."""
    weights = validate.numeric(1, **{name: given})
    if len(weights) != count:
        raise InvalidInputError(f"{name} must be {count}, one an orbit, got {len(weights)}")
    return weights


def evaluate(blocks: Blocks, point: UnionPoint) -> UnionForms | None:
    """Evaluate both sides; None for noise that is no covariance, or that some record leaves."""
    levels = point.levels
    if not (np.all(np.isfinite(levels)) and np.all(levels > 0)):
        return None
    costs = np.zeros(blocks.cells)
    np.add.at(costs, blocks.columns, 1 / levels)
    variances = np.asarray(blocks.squares @ levels)
    cost_rounding, depth = (len(levels) + 2) * EPS * costs, 2 * _depth(blocks)
    variance_rounding = (len(levels) + depth) * EPS * variances
    for block, covariance in zip(blocks.several, point.covariances, strict=True):
        if not np.all(np.isfinite(covariance)):
            return None
        asymmetry = np.abs(covariance - covariance.T).max()
        if not asymmetry <= validate.SYMMETRY_TOLERANCE * np.abs(covariance).max():
            return None
        judged = linalg.inverse_forms((covariance + covariance.T) / 2, block.moves)
        if judged is None or not np.all(np.isfinite(judged[1])):
            return None
        settled, profile, allowance = judged
        rows = block.queries
        own = np.einsum("jk,jk->j", rows @ settled, rows)
        sizes = np.einsum("jk,jk->j", np.abs(rows) @ np.abs(settled), np.abs(rows))
        np.add.at(costs, block.cells, profile)
        np.add.at(cost_rounding, block.cells, allowance + len(blocks.several) * EPS * profile)
        np.add.at(variances, block.rows, own)
        np.add.at(variance_rounding, block.rows, (2 * len(settled) + depth) * EPS * sizes)
    # What frames take for rounding of zero may be a part of a query, which then meets the noise of its block.
    hidden = (depth / 2 * EPS * blocks.magnitudes) ** 2 * _all_noise(blocks, point)
    return UnionForms(costs, variances, cost_rounding, variance_rounding + hidden)


def trace_norm(blocks: Blocks, cell_weights: Array, query_weights: Array) -> tuple[float, float]:
    """Return ``Σ_b ‖diag(√μ) V_b diag(√λ)‖_*`` for weights of finite, not negative entries, and its rounding, absolute.

    What the entries of V_b may be off, by the rounding of means over classes, is part of the allowance.
    """
    seen = np.asarray(blocks.squares.T @ query_weights)
    total = float(np.sqrt(cell_weights[blocks.columns] * seen).sum())
    allowance = (len(blocks.columns) + blocks.squares.shape[0]) * EPS * total
    reach = np.sqrt(float(query_weights @ blocks.magnitudes**2) * cell_weights.sum())
    copies = float(np.sqrt(blocks.copies).sum())
    for block in blocks.several:
        factors, shares = np.sqrt(query_weights[block.rows]), np.sqrt(cell_weights[block.cells])
        norm, rounding = linalg.trace_norm(factors[:, None] * (block.queries @ block.moves) * shares)
        total, allowance = total + norm, allowance + rounding
        copies += float(np.sqrt(block.copies * len(block.moves)))
    return total, float(allowance + _depth(blocks) * EPS * reach * copies)


def bound(blocks: Blocks, cell_weights: Array, query_weights: Array) -> tuple[float, float]:
    """Return the square of `trace_norm`, and its rounding, relative."""
    norm, rounding = trace_norm(blocks, cell_weights, query_weights)
    return norm**2, 2 * rounding / norm if norm > 0 else 0.0


def binding(blocks: Blocks, primal: Any, slack: float) -> npt.NDArray[np.intp]:
    """Return the orbits of cells whose cost is within `slack`, relative, of the largest; none of no covariance."""
    forms = evaluate(blocks, checked_point(blocks, primal))
    if forms is None:
        return np.zeros(0, dtype=np.intp)
    return np.flatnonzero(forms.costs >= (1 - slack) * forms.cost)


def shares(blocks: Blocks, cell_weights: Array, query_weights: Array) -> Array:
    """Return what each orbit of queries adds to `trace_norm`: the diagonals of ``X s X'``, X left singular vectors."""
    seen = np.asarray(blocks.squares.T @ query_weights)
    cells = cell_weights[blocks.columns]
    values = np.sqrt(np.divide(cells, seen, out=np.zeros_like(seen), where=seen > 0))
    found = np.asarray(blocks.squares @ values) * query_weights
    for block in blocks.several:
        factors, own = np.sqrt(query_weights[block.rows]), np.sqrt(cell_weights[block.cells])
        left, singular, _ = linalg.svd(factors[:, None] * (block.queries @ block.moves) * own)
        np.add.at(found, block.rows, left**2 @ singular)
    return found


def meeting(point: UnionPoint, excess: Callable[[UnionPoint], float], power: int) -> UnionPoint:
    """Return the point scaled until `excess`, proportional to a power of its scale, is 1 at most."""
    return scaled_until(point, excess, power, lambda noise, divisor: noise.scaled(1 / divisor), 4 * EPS)


def _depth(blocks: Blocks) -> int:
    """Return how many roundings an entry of a row may have seen: sums over classes or waves, and their products."""
    longest = max(frame.roundings for frame in blocks.frames)
    return 4 * longest * (1 + max(len(own) for own in blocks.parts))


def _all_noise(blocks: Blocks, point: UnionPoint) -> float:
    """Return the variances of all coordinates of all copies of all blocks, added up."""
    several = zip(blocks.several, point.covariances, strict=True)
    return float(blocks.copies @ point.levels + sum(each.copies * np.trace(noise) for each, noise in several))
