"""Plans of specifications, and releases with noise of a test's own in place of the sampler's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import dualmech as dm
from dualmech import fast
from dualmech.publishing.publication import Publication
from dualmech.publishing.release import plan

Noise = Callable[[float, int], Any]


def planned(specification: dict[str, Any], tol: float = 1e-6) -> dm.Solution:
    """Return the solution that keeps a specification, as ``dualmech solve`` writes it."""
    asked = dm.Specification.of(specification)
    return asked.planned(fast.solve(asked.problem(), tol=tol))


def no_noise(deviation: float, count: int) -> Any:
    return np.array([0] * count, dtype=object)


def rounded_gaussian(seed: int | np.random.Generator) -> Noise:
    """Return Gaussian noise that can be drawn again, rounded to integers: for tests of accuracy alone."""
    generator = np.random.default_rng(seed)

    def noise(deviation: float, count: int) -> Any:
        return np.array([round(each) for each in (deviation * generator.standard_normal(count)).tolist()], dtype=object)

    return noise


def published(answer: Any, records: Any, noise: Noise, workload: Any = None, allow_empty: bool = False) -> Publication:
    """Return what a release would publish of records, or of counts that a mechanism reads."""
    drawn, asked = plan(answer, workload)
    counts = drawn.read(records, asked.domain, allow_empty)
    return Publication(drawn, drawn.draw(counts, noise), asked, answer if isinstance(answer, dm.Solution) else None)
