"""The judge's arithmetic on blocks whose coordinates and rows orbits tie together: both sides, and the bound.

Throughout, `blocks` is a `dualmech.geometry.blocks.Blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualmech import linalg, validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.base import Index, Judged
from dualmech.geometry.dense_forms import judged_covariance
from dualmech.geometry.naming import Ranked, ranked
from dualmech.linalg import EPS
from dualmech.validate import Array


@dataclass(frozen=True, slots=True, eq=False)
class BlockPoint:
    """Noise on blocks: a level for each of one coordinate (t,), a covariance on its basis (r, r) for each other."""

    levels: Array
    covariances: tuple[Array, ...] = ()

    def scaled(self, factor: float) -> BlockPoint:
        """Return the noise times a number, kept symmetric; by nothing else than a positive one."""
        if not (np.isfinite(validate.real(factor=factor)) and factor > 0):
            return self
        return BlockPoint(
            self.levels * factor, tuple((each + each.T) / 2 * factor for each in self.covariances)
        )


@dataclass(frozen=True, slots=True, eq=False)
class BasedPoint:
    """Noise on blocks with the basis of each, so that it means the same to a machine that would choose another."""

    levels: Any
    covariances: tuple[Any, ...] = ()
    bases: tuple[Any, ...] = ()

    def on(self, blocks: Sequence[Any]) -> BlockPoint:
        """Return the noise on the bases of blocks."""
        for name, own in (("covariances", self.covariances), ("bases", self.bases)):
            if not isinstance(own, tuple) or len(own) != len(blocks):
                given = len(own) if isinstance(own, tuple) else type(own).__name__
                raise InvalidInputError(f"{name} must be {len(blocks)} items, got {given}")
        found = zip(blocks, self.covariances, self.bases, strict=True)
        return BlockPoint(
            self.levels, tuple(block.covariance_from_basis(own, basis) for block, own, basis in found)
        )


@dataclass(frozen=True, slots=True, eq=False)
class BlockForms:
    """Cost of a pair of neighbours of each orbit, variance of a query of each orbit, and their rounding, absolute."""

    blocks: Any
    costs: Array
    variances: Array
    cost_allowance: Array
    variance_allowance: Array

    @property
    def cost(self) -> float:
        """Squared privacy cost, the largest."""
        return float(self.costs.max())

    @property
    def cost_rounding(self) -> float:
        """Allowance for the rounding of the cost, relative."""
        return float((self.costs + self.cost_allowance).max() / self.cost - 1)

    def excess(self, targets: Array) -> Judged:
        """Return the largest ratio of a variance to the target of its table."""
        limits = targets[self.blocks.tables]
        ratios = self.variances / limits
        highest = (ratios + self.variance_allowance / limits).max()
        return float(ratios.max()), float(highest / ratios.max() - 1)

    def total(self, weights: Array) -> Judged:
        """Return the sum of the variances of all queries, weighted by table."""
        bill = weights[self.blocks.tables] * self.blocks.counts
        total = float(bill @ self.variances)
        return total, float(bill @ self.variance_allowance) / total

    def binding(self, slack: float) -> Index:
        """Return the orbits of neighbours whose cost is within `slack`, relative, of the largest."""
        return np.flatnonzero((self.costs >= (1 - slack) * self.cost) & np.isfinite(self.cost))

    def loose(self, targets: Array, slack: float) -> Index:
        """Return the tables all of whose variances are below their target by more than `slack`, relative."""
        return np.flatnonzero(self._by_table(targets) < 1 - slack)

    def worst_items(self, targets: Array) -> Ranked:
        """Return the tables of the largest variances over their targets."""
        return ranked(self._by_table(targets))

    def worst_neighbours(self) -> Ranked:
        """Return the orbits of neighbours of the largest costs."""
        return ranked(self.costs)

    def _by_table(self, targets: Array) -> Array:
        """Return the largest variance of each table over its target."""
        largest = np.zeros(len(targets))
        np.maximum.at(largest, self.blocks.tables, self.variances)
        return np.asarray(largest / targets)


def as_block_point(blocks: Any, primal: Any) -> BlockPoint:
    """Return a primal point of the right shapes, its entries unseen; levels alone where no block has a covariance."""
    if not isinstance(primal, BlockPoint):
        if blocks.matrix_blocks or isinstance(primal, str):
            raise InputTypeError(
                f"primal must be noise on blocks, a dualmech.BlockPoint, got {type(primal).__name__}"
            )
        primal = BlockPoint(primal)
    if not isinstance(primal.covariances, Sequence):
        raise InputTypeError(f"covariances must be a tuple, got {type(primal.covariances).__name__}")
    levels = np.zeros(0) if validate.is_empty(primal.levels) else validate.numeric(1, levels=primal.levels)
    if len(levels) != len(blocks.keys):
        raise InvalidInputError(
            f"levels must be {len(blocks.keys)}, one per block of one coordinate, got {len(levels)}"
        )
    expected = len(blocks.matrix_blocks)
    if len(primal.covariances) != expected:
        raise InvalidInputError(f"covariances must be {expected}, got {len(primal.covariances)}")
    found = []
    for index, (each, block) in enumerate(zip(primal.covariances, blocks.matrix_blocks, strict=True)):
        covariance, size = validate.numeric(2, **{f"covariances[{index}]": each}), len(block.moves)
        if covariance.shape != (size, size):
            raise InvalidInputError(
                f"covariances[{index}] must have shape ({size}, {size}), got {covariance.shape}"
            )
        found.append(covariance)
    return BlockPoint(levels, tuple(found))


def evaluate(blocks: Any, point: BlockPoint) -> BlockForms | None:
    """Evaluate both sides; None for noise that is no covariance, or that some record leaves."""
    levels = point.levels
    if not (np.all(np.isfinite(levels)) and np.all(levels > 0)):
        return None
    costs, variances = np.asarray(blocks.reach @ (1 / levels)), np.asarray(blocks.scalar_blocks @ levels)
    cost_rounding, depth = (len(levels) + 2) * EPS * costs, 2 * blocks.depth
    variance_rounding = (len(levels) + depth) * EPS * variances
    for block, covariance in zip(blocks.matrix_blocks, point.covariances, strict=True):
        judged = judged_covariance(covariance, block.steps)
        if judged is None:
            return None
        regularised, profile, allowance = judged
        rows = block.queries
        own = np.einsum("jk,jk->j", rows @ regularised, rows)
        sizes = np.einsum("jk,jk->j", np.abs(rows) @ np.abs(regularised), np.abs(rows))
        np.add.at(costs, block.orbits, profile)
        np.add.at(cost_rounding, block.orbits, allowance + len(blocks.matrix_blocks) * EPS * profile)
        np.add.at(variances, block.rows, own)
        np.add.at(variance_rounding, block.rows, (2 * len(regularised) + depth) * EPS * sizes)
    # What rounding hides of a query may be a part that it needs, which then meets the noise of its block.
    hidden = (blocks.rounding_threshold * blocks.magnitudes) ** 2 * _all_noise(blocks, point)
    return BlockForms(blocks, costs, variances, cost_rounding, variance_rounding + hidden)


def trace_norm(blocks: Any, neighbour_weights: Array, query_weights: Array) -> Judged:
    """Return ``Σ_b ‖diag(√μ) V_b diag(√λ)‖_*`` for weights of finite, not negative entries, and its rounding, absolute.

    What the entries of V_b may be off, by the rounding of means over classes, is part of the allowance.
    """
    seen = np.asarray(blocks.scalar_blocks.T @ query_weights)
    moved = np.asarray(blocks.reach.T @ neighbour_weights)
    total = float(np.sqrt(moved * seen).sum())
    terms = sum(blocks.reach.shape) + blocks.scalar_blocks.shape[0] + 2 * blocks.depth
    allowance = terms * EPS * total
    reach = np.sqrt(float(query_weights @ blocks.magnitudes**2) * neighbour_weights.sum() * blocks.farthest)
    copies = float(np.sqrt(blocks.copies).sum())
    for block in blocks.matrix_blocks:
        factors = np.sqrt(query_weights[block.rows])
        moves = np.sqrt(neighbour_weights[block.orbits])
        reached = factors[:, None] * (np.abs(block.queries) @ np.abs(block.steps)) * moves
        norm, rounding = linalg.trace_norm(
            factors[:, None] * (block.queries @ block.steps) * moves,
            (len(block.moves) + 2) * EPS * float(np.linalg.norm(reached)),
        )
        total, allowance = total + norm, allowance + rounding
        copies += float(np.sqrt(block.copies * len(block.moves)))
    return total, float(allowance + blocks.rounding_threshold * reach * copies)


def shares(blocks: Any, neighbour_weights: Array, query_weights: Array) -> Array:
    """Return what each orbit of queries adds to `trace_norm`: the diagonals of ``X s X'``, X left singular vectors."""
    seen = np.asarray(blocks.scalar_blocks.T @ query_weights)
    moved = np.asarray(blocks.reach.T @ neighbour_weights)
    values = np.sqrt(np.divide(moved, seen, out=np.zeros_like(seen), where=seen > 0))
    found = np.asarray(blocks.scalar_blocks @ values) * query_weights
    for block in blocks.matrix_blocks:
        factors = np.sqrt(query_weights[block.rows])
        moves = np.sqrt(neighbour_weights[block.orbits])
        left, singular, _ = linalg.svd(factors[:, None] * (block.queries @ block.steps) * moves)
        np.add.at(found, block.rows, left**2 @ singular)
    return found


def _all_noise(blocks: Any, point: BlockPoint) -> float:
    """Return the variances of all coordinates of all copies of all blocks, added up."""
    several = zip(blocks.matrix_blocks, point.covariances, strict=True)
    return float(blocks.copies @ point.levels + sum(each.copies * np.trace(noise) for each, noise in several))
