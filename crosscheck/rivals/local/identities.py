"""Strategies for Laplace noise that are optimised: the cells and some weighted sums of them, each column scaled.

The problem is not convex, and what is found is a local optimum that nothing is proven about.
"""

from __future__ import annotations

import numpy as np

from dualmech import validate
from dualmech.validate import Array

CELLS_PER_SUM = 16  # cells for each weighted sum, as the authors of HDMM have it
STARTS = 2  # random starts, of which the best counts
STEPS = 300  # of the quasi-Newton method, at most
MEMORY = 10  # steps that it remembers


def identity_and_sums(gram: Array, rng: np.random.Generator | int) -> Array:
    """Return a strategy A (d + p, d) with columns of L1 norm 1 and a small total variance ``tr((A'A)⁻¹ W'W)``.

    ``A = [I; Θ] diag(1 + Θ'1)⁻¹`` with Θ (p, d) ≥ 0, p a sixteenth of d (the p-identity strategies of McKenna, Miklau,
    Hay and Machanavajjhala, "Optimizing error of high-dimensional statistical queries under differential privacy",
    PVLDB 11(10), 2018): such an A always has full rank, and no constraint is left but the signs.

    Parameters
    ----------
    gram : (d, d) array
        ``W'W``.
    rng : int or Generator
        Where the random starts come from.
    """
    # Imported here so that rivals load without it.
    from scipy.optimize import minimize

    generator, size = validate.generator(rng=rng), len(gram)
    sums = max(size // CELLS_PER_SUM, 1)
    unit = float(np.linalg.norm(gram)) or 1.0
    found = [
        minimize(
            lambda values: total_variance(values.reshape(sums, size), gram / unit),
            generator.uniform(size=sums * size),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * (sums * size),
            options={"maxiter": STEPS, "maxcor": MEMORY},
        )
        for _ in range(STARTS)
    ]
    weights = min(found, key=lambda each: float(each.fun)).x.reshape(sums, size)
    return np.asarray(np.vstack([np.eye(size), weights]) / (1 + weights.sum(axis=0)))


def total_variance(weights: Array, gram: Array) -> tuple[float, Array]:
    """Return ``tr((A'A)⁻¹ W'W)`` and its derivative in Θ (p, d), raveled.

    ``(A'A)⁻¹ = D (I + Θ'Θ)⁻¹ D`` with ``D = diag(1 + Θ'1)``, and the inverse is of a p x p matrix.
    """
    scale = 1 + weights.sum(axis=0)
    small = np.linalg.inv(np.eye(len(weights)) + weights @ weights.T)
    inverse = np.eye(len(scale)) - weights.T @ small @ weights
    scaled = scale[:, None] * gram * scale
    solved = weights @ inverse
    slopes = 2 * np.einsum("uv,uv,v->u", inverse, gram, scale) - 2 * (solved @ scaled) @ inverse
    return float(np.vdot(inverse, scaled)), slopes.ravel()
