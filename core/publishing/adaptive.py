"""Adaptive releases with exact noise: every stage and every residual of a chain on a grid, before anything is drawn."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from dualmech import validate
from dualmech.adaptive.chain import Chain
from dualmech.adaptive.release import AdaptiveRelease
from dualmech.errors import InputTypeError
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.publishing.dense import DrawnRows
from dualmech.publishing.discrete import discrete_gaussian, require_sampler
from dualmech.publishing.drawing import counted_vector
from dualmech.publishing.limits import as_fraction, require_no_seed, require_within
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain


class ExactAdaptiveRelease(AdaptiveRelease):
    """An `AdaptiveRelease` whose noise is exact; `dualmech.release_chain` makes it.

    Attributes
    ----------
    rho : Fraction
        The ρ of zero-concentrated differential privacy of the whole procedure, exactly: the largest over its branches,
        known before anything has run.
    """

    __slots__ = ("rho",)

    rho: Fraction

    def __init__(self, chain: Chain, x: Any, measure: DrawnChain) -> None:
        super().__init__(chain, x, measure=measure)
        self.rho = measure.squared_privacy_cost / 2


def release_chain(
    chain: Chain,
    records: Any,
    *,
    domain: Domain | None = None,
    rho: float | str | Fraction | None = None,
    allow_empty: bool = False,
    **refused: Any,
) -> ExactAdaptiveRelease:
    """Begin an adaptive release of records along a chain of common mechanisms, with exact noise.

    Nothing runs until `advance` is called; each stage, and the residual of the mechanism that is chosen, is drawn as
    `dualmech.release` draws mechanisms.
    Raises `BackendError` where OpenDP, of the extra ``release``, is not installed; `InvalidInputError` or
    `InputTypeError`, before records are read, for no chain, a stage that has no whole rows, a chain that costs more
    than `rho`, a seed or any other argument; and what `dualmech.records.count` refuses of records.

    Parameters
    ----------
    chain : Chain
        Made by `dualmech.fast.chain` or `dualmech.reference.chain`.
    records : path of a CSV file, DataFrame, or (d,) counts
        Files and frames are counted over all cells of `domain`.
    domain : Domain, optional
        What the chain's cells are, such as a `dualmech.Schema`; needed to count records.
    rho : number or text such as "1/2", optional
        The most that the release may cost on any branch.
    allow_empty : bool
        Whether there may be no records.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> rows = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], 100 * np.eye(2))
    >>> cells = dm.LinearGaussianMechanism(np.eye(4), 100 * np.eye(4))
    >>> release = dm.release_chain(fast.chain([rows, cells]), [50, 3, 40, 2], rho="1/200")
    >>> release.advance().shape, release.choose(1).values.shape, release.rho <= 1 / 200
    ((2,), (4,), True)
    """
    require_no_seed(refused)
    measure = DrawnChain(validate.instance(Chain, chain=chain))
    require_within(measure.squared_privacy_cost, as_fraction(rho))
    require_sampler()
    cells = chain.mechanisms[0].query_matrix.shape[1]
    if domain is not None and validate.instance(Domain, domain=domain).cells != cells:
        raise InputTypeError(f"domain must have {cells} cells, as the chain, got {domain.cells}")
    x = counted_vector(records, domain, validate.boolean(allow_empty=allow_empty))
    return ExactAdaptiveRelease(chain, validate.vector(cells, "cell", records=x), measure)


class DrawnChain:
    """All stages and residuals of a chain as they are drawn: what an adaptive release measures with."""

    __slots__ = ("_drawn", "squared_privacy_cost")

    squared_privacy_cost: Fraction
    _drawn: dict[int, DrawnRows]  # by the identity of the mechanism, which the chain keeps

    def __init__(self, chain: Chain) -> None:
        self._drawn, most, known = {}, Fraction(0), None
        for stage in chain.stages:
            step = self._costs(stage.increment)
            known = step if known is None else known + step
            for parts in stage.decompositions:
                most = max(most, max(known + self._costs(parts.residual)))
        self.squared_privacy_cost = most

    def _costs(self, mechanism: LinearGaussianMechanism) -> Any:
        """Return the exact cost of every pair of neighbours (s,)."""
        self._drawn[id(mechanism)] = drawn = DrawnRows(mechanism)
        return drawn.costs

    def __call__(self, mechanism: LinearGaussianMechanism, x: Array, rng: np.random.Generator) -> Array:
        """Return noisy answers to a mechanism's own rows; the generator is not used."""
        drawn = self._drawn[id(mechanism)]
        return drawn.estimate(drawn.draw(x, discrete_gaussian), Workload(mechanism.query_matrix))
