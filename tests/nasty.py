"""Problems on a matrix that solvers find hard: nearly singular, redundant, in units worlds apart."""

from __future__ import annotations

from typing import Any

import numpy as np

import dualmech as dm
from dualmech.validate import Array


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


TALL = normal(8, 5)
DEFICIENT = normal(9, 3) @ normal(3, 7, seed=1)
ZEROS = TALL * np.array([1, 1, 0, 1, 1, 1, 1, 1])[:, None] * np.array([1, 0, 1, 1, 1])
GRADED = dm.workloads.prefix(8).dense() * 10.0 ** np.linspace(0, 6, 8)[:, None]
PREFIX = dm.workloads.prefix(6).dense()
UNITS = np.array([1e-6, 1e5, 1e2, 1.0, 1e-3, 1e6])
HILBERT = 1 / (np.arange(8)[:, None] + np.arange(8) + 1)


def scaled(matrix: Array, index: Any, factor: float) -> Array:
    copy = matrix.copy()
    copy[index] *= factor
    return copy


Nasty = tuple[Any, ...]
"""A matrix, and numbers, a basis and a matrix of neighbours where they are not the usual ones."""

GENTLE: dict[str, Nasty] = {
    "tall": (TALL,),
    "wide": (TALL.T,),
    "rank-deficient": (DEFICIENT,),
    "rank-deficient, own rows as basis": (DEFICIENT, 1.0, DEFICIENT[:3]),
    "one row": (TALL[:1],),
    "one column": (TALL[:, :1],),
    "one number": (np.array([[3.0]]), 2.0),
    "rank one": (np.ones((4, 6)),),
    "rows asked twice": (np.vstack([TALL, TALL[:3], -TALL[:1]]),),
    "columns twice": (np.hstack([TALL, TALL[:, :2], -TALL[:, :1]]),),
    "zero row and column": (ZEROS,),
    "orthogonal": (np.kron(np.kron([[1, 1], [1, -1]], [[1, 1], [1, -1]]), [[1, 1], [1, -1]]).astype(float),),
    "unequal targets": (TALL, np.linspace(1, 9, 8)),
    "another basis": (TALL, 1.0, normal(5, 5, seed=3)),
    "signs": (dm.workloads.random_signs(10, 30, rng=0).dense(),),
    "ranges": (dm.workloads.random_range(12, 40, rng=0).dense(),),
    "marginals": (dm.workloads.marginals(dm.Domain({"a": 2, "b": 3, "c": 2}), ways=(1, 2)).dense(),),
    "one replaced": (PREFIX, 1.0, None, dm.neighbours.replace_one(6)),
    "one replaced, identity and total": (
        dm.workloads.identity_total(6).dense(),
        np.arange(1.0, 8.0),
        None,
        dm.neighbours.replace_one(6),
    ),
    "one replaced, another basis": (
        dm.workloads.prefix(6).dense(),
        1.0,
        normal(6, 6, seed=4),
        dm.neighbours.replace_one(6),
    ),
    "one replaced, rank-deficient": (DEFICIENT, 1.0, None, dm.neighbours.replace_one(7)),
    "one replaced, marginals": (
        dm.workloads.marginals((2, 3, 2), ways=2).dense(),
        1.0,
        None,
        dm.neighbours.replace_one(12),
    ),
    "one replaced, cells alike": (np.hstack([TALL, TALL[:, :2]]), 1.0, None, dm.neighbours.replace_one(7)),
    "one replaced, cells alike, ranges": (
        np.repeat(dm.workloads.random_range(6, 20, rng=0).dense(), 2, axis=1),
        1.0,
        None,
        dm.neighbours.replace_one(12),
    ),
    "household": (DEFICIENT, 1.0, None, dm.neighbours.household(7, 3)),
    "compositions": (TALL, 1.0, None, dm.neighbours.compositions(5, [(0, 1), (2,), (3, 4, 4)])),
    "any neighbours": (PREFIX, 1.0, None, normal(6, 9, seed=5)),
    "few neighbours": (PREFIX, 1.0, None, normal(6, 3, seed=6)),
}

HARSH: dict[str, Nasty] = {
    "graded rows, themselves as basis": (GRADED, 1.0, GRADED),
    "graded columns": (GRADED.T,),
    "Hilbert matrix, itself as basis": (HILBERT, 1.0, HILBERT),
    "Vandermonde matrix": (np.vander(np.linspace(0.1, 1, 8)),),
    "basis in many units": (TALL, 1.0, np.diag(UNITS[:5])),
    "one replaced, basis in many units": (PREFIX, 1.0, np.diag(UNITS), dm.neighbours.replace_one(6)),
    "few neighbours, basis in many units": (PREFIX, 1.0, np.diag(UNITS), normal(6, 3, seed=6)),
    "one replaced, on top of a large total": (PREFIX + 100, 1.0, None, dm.neighbours.replace_one(6)),
}
for _factor in (1e-6, 1e6):
    HARSH |= {
        f"row times {_factor:g}": (scaled(TALL, 0, _factor),),
        f"column times {_factor:g}": (scaled(TALL, (slice(None), 0), _factor),),
        f"target times {_factor:g}": (TALL, scaled(np.ones(8), 0, _factor)),
        f"all targets times {_factor:g}": (TALL, _factor),
        f"workload times {_factor:g}": (_factor * TALL,),
        f"rank-deficient, row times {_factor:g}": (scaled(DEFICIENT, 0, _factor),),
        f"basis row times {_factor:g}": (TALL, 1.0, scaled(normal(5, 5, seed=3), 0, _factor)),
        f"neighbour times {_factor:g}": (TALL, 1.0, None, scaled(normal(5, 7), (slice(None), 0), _factor)),
    }


def parts(case: Nasty) -> Nasty:
    """Return matrix, numbers, basis and neighbours of a case."""
    return (*case, *(1.0, None, None)[len(case) - 1 :])
