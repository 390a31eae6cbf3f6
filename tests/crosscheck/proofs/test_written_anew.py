"""The lines of docs/appendix/newton.md, implemented from their words alone, meet the proven optima."""

from typing import Any

import numpy as np
import pytest

from dualmech.crosscheck import testing
from dualmech.validate import Array


def evaluated(moves: Array, rows: Array, weights: Array, tau: float) -> tuple[Array, Array, Array, Array, float]:
    """Return the gradient of G, the rows t_i and u_j, n, Σ, and F."""
    count = moves.shape[1]
    root = np.linalg.cholesky((moves * weights[:count]) @ moves.T)
    squares, turn = np.linalg.eigh(root.T @ (rows.T * weights[count:]) @ rows @ root)
    s = np.sqrt(np.maximum(squares, 0))
    n = 2 * s**2 / (tau + np.sqrt(tau**2 + 4 * s**2))
    first, last = np.linalg.solve(root @ turn, moves).T, rows @ root @ turn
    gradient = np.concatenate([first**2 @ (n + tau), last**2 @ (1 / n)])
    factors = np.sqrt(weights)[:, None] * np.vstack([first, last / n])
    half = root @ turn / np.sqrt(n)
    return gradient, factors, n, half @ half.T, float(s.sum())


def hessian(factors: Array, n: Array, tau: float, count: int) -> Array:
    """Return -∇²G in relative changes of the weights."""
    kernel = n[:, None] * n / (n[:, None] + n + tau)
    pairs = np.einsum("ia,ib->iab", factors, factors).reshape(len(factors), -1)
    signs = np.where(np.arange(len(factors)) < count, -1.0, 1.0)
    found = np.asarray((pairs * kernel.ravel()) @ pairs.T * np.outer(signs, signs))
    found[:count, :count] += tau * (factors[:count] @ factors[:count].T) ** 2
    return found


def length(change: Array) -> float:
    """Return how far a step goes: 0.995 of the way to the boundary, 1 at most."""
    return min(1.0, 0.995 / max(-float(change.min()), 1e-300))


def solve(moves: Array, rows: Array, tol: float) -> tuple[Array, Array, Array]:
    """Return Σ for largest variances of 1, λ and μ, by the page; rows are those of queries over √c."""
    rows, unit = np.linalg.qr(rows)
    moves = unit @ moves
    count, total = moves.shape[1], moves.shape[1] + len(rows)
    sides = np.stack([np.arange(total) < count, np.arange(total) >= count], axis=1).astype(float)
    weights = 1 / (sides @ sides.sum(axis=0))
    gradient, *_, fidelity = evaluated(moves, rows, weights, 0.0)
    multipliers = sides.T @ (weights * gradient)
    slack = sides @ multipliers - gradient
    slack = np.maximum(slack, np.minimum(0.3 * fidelity, np.mean(weights * np.abs(slack)) / weights))
    best, bound, reach = (np.inf, np.zeros((0, 0))), (0.0, weights), 1.0
    for _ in range(100):
        products = weights * slack
        mean = float(products.mean())
        central = products.min() > 3e-3 * mean and reach > 0.5
        tau = max((0.1 if central else 1.0) * mean, 0.2 * tol * fidelity / (total + len(moves)))
        gradient, factors, n, noise, fidelity = evaluated(moves, rows, weights, tau)
        costs = np.einsum("ki,kl,li->i", moves, np.linalg.inv(noise), moves)
        variances = np.einsum("jk,kl,jl->j", rows, noise, rows)
        best = min(best, (float(costs.max() * variances.max()), noise / variances.max()), key=lambda each: each[0])
        proven = fidelity**2 / float(np.prod(weights @ sides))
        bound = max(bound, (proven, weights), key=lambda each: each[0])
        if best[0] <= bound[0] * (1 + tol):
            break
        matrix = hessian(factors, n, tau, count) + np.diag(products)
        border = sides * weights[:, None]
        whole = np.block([[matrix, border], [border.T, np.zeros((2, 2))]])
        right = np.concatenate([weights * (gradient - sides @ multipliers) + tau, 1 - weights @ sides])
        found = np.linalg.solve(whole, right)
        change, shift = found[:total], found[total:]
        slack_change = tau / products - 1 - change
        reach, slack_reach = length(change), length(slack_change)
        weights, slack = weights * (1 + reach * change), slack * (1 + slack_reach * slack_change)
        multipliers = multipliers + slack_reach * shift
    back = np.linalg.inv(unit)
    return back @ best[1] @ back.T, bound[1][:count], bound[1][count:]


@pytest.mark.parametrize("known", testing.problems(["fitness"], most_cells=16, matrix=True), ids=str)
def test_the_page_is_enough(known: Any) -> None:
    basis, cells = known.basis, known.workload.shape[1]
    moves = basis @ (np.eye(cells) if known.neighbours is None else known.neighbours)
    rows = known.workload @ np.linalg.pinv(basis)
    if np.linalg.matrix_rank(moves) < len(basis):
        pytest.skip("neighbours leave directions unchanged: the page is about those that they change")
    if known.name.endswith("of-all-sizes"):
        pytest.skip("lengths that differ by 10^12: what is squared there is not in the library")
    noise, first, last = solve(moves, rows / np.sqrt(known.targets)[:, None], 1e-7)
    testing.check(known, noise, (first, last / known.targets), tol=1e-6)
