"""Common mechanisms beside general backends: seconds and proven gaps for three and four covariances, in one run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import scipy.linalg

from dualmech import fast
from dualmech.crosscheck.benchmarks.contest import Contender, Contest, by_reference
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.problems.common import CommonMechanism
from dualmech.validate import Array

SIZES = (32, 64, 128, 256)

COUNTS = (3, 4)  # numbers of mechanisms
NEAR = 1e-4  # size of what tells near-equal covariances apart
CONDITION = 1e12  # condition number of the ill-conditioned covariances

TOO_LONG = "r = 64 takes it up to minutes, and 1 GiB"


def random(rng: np.random.Generator, size: int, count: int) -> list[Array]:
    """Return Wishart matrices with twice as many degrees of freedom as rows, at different scales."""
    return [rng.uniform(0.5, 2) * _wishart(rng, size, 2 * size) for _ in range(count)]


def near_equal(rng: np.random.Generator, size: int, count: int) -> list[Array]:
    """Return one covariance plus something small and different each time."""
    common = _wishart(rng, size, size) + np.eye(size)
    return [common + NEAR * _wishart(rng, size, size) for _ in range(count)]


def ill_conditioned(rng: np.random.Generator, size: int, count: int) -> list[Array]:
    """Return covariances with eigenvalues from 1 down to the reciprocal of `CONDITION`, each in axes of its own."""
    return [_rotate(rng, np.geomspace(1, 1 / CONDITION, size)) for _ in range(count)]


def _wishart(rng: np.random.Generator, size: int, degrees: int) -> Array:
    factor = rng.standard_normal((size, degrees))
    return np.asarray(factor @ factor.T / size)


def _rotate(rng: np.random.Generator, values: Array) -> Array:
    axes = scipy.linalg.qr(rng.standard_normal((len(values), len(values))))[0]
    turned = (axes * values) @ axes.T
    return np.asarray((turned + turned.T) / 2)


@cache
def _problem(
    covariances: Callable[[np.random.Generator, int, int], list[Array]], count: int, size: int
) -> CommonMechanism:
    """Return mechanisms that answer the same cells, with these covariances: their row spaces meet in everything."""
    drawn = covariances(np.random.default_rng(0), size, count)
    return CommonMechanism([LinearGaussianMechanism(np.eye(size), each) for each in drawn])


CONTENDERS = (
    Contender("fixed point", fast.solve),
    Contender("Clarabel", partial(by_reference, backend="CLARABEL"), largest=32, skipped=TOO_LONG),
    Contender(
        "SCS", partial(by_reference, backend="SCS"), largest=128, skipped="r = 256 takes it up to minutes"
    ),
)

KINDS = {"random": random, "near-equal": near_equal, "ill-conditioned": ill_conditioned}

CONTESTS = {
    f"common {count} {kind}": Contest(
        f"{count} mechanisms, {kind} covariances", SIZES, partial(_problem, drawn, count), CONTENDERS
    )
    for count in COUNTS
    for kind, drawn in KINDS.items()
}
"""By name; a size is the number of rows that all mechanisms have in common."""
