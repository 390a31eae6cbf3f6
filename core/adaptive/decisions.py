"""Which analysis is accurate enough on the data: decided by signal-to-noise ratio from a common mechanism's answers.

A choice between analyses one of which is nested in the other; for the general case, see `dualmech.uncertainty`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import linalg, validate
from dualmech.adaptive.chain import GO_ON, STOP, Chain
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.noise import as_matrix
from dualmech.validate import Array
from dualmech.workloads.base import Workload

ROUNDING = 1e-9
"""Relative shortfall of a count, and shortfall of a share, that is taken for rounding: levels are often met exactly."""


class Verdict(IntEnum):
    """The decision between two nested analyses, from the answer of a common mechanism."""

    PRIMARY = 0
    """The secondary mechanism is surely too noisy for the primary analysis, the primary one perhaps not."""
    SECONDARY = 1
    """The secondary mechanism is accurate enough for the primary analysis, and also allows its own."""
    UNDECIDED = 2
    """The level lies between the bounds of too many queries to say; the primary mechanism is the safe choice."""
    INFEASIBLE = 3
    """Not even the primary mechanism can be accurate enough: stop, and spend nothing more."""


@dataclass(frozen=True, slots=True, eq=False)
class SignalBounds:
    """Bounds on the signal-to-noise ratio of the primary queries under either mechanism, each (m,) or (n, m)."""

    primary_lower: Array
    primary_upper: Array
    secondary_lower: Array
    secondary_upper: Array


@dataclass(frozen=True, slots=True, eq=False)
class SignalToNoise:
    """Decide between a primary analysis and a secondary one that contains it, from what both have in common.

    Let ``B_1 = A B_2`` be the queries of the primary analysis and ``A_*`` estimate them from the common mechanism.
    With an answer ω of that, the true answer to query i lies in

        ``[L_i, U_i] = (A_* ω)_i ± confidence · √(A_* Σ_* A_*')_ii`` ,

    so its signal-to-noise ratio lies between ``L_i/σ_i`` and ``U_i/σ_i``, with ``σ_i² = (Σ_1)_ii`` under the primary
    mechanism and ``(A Σ_2 A')_ii`` under the secondary one. An analysis is good enough where at least the share x
    of the queries has a ratio of y or more.

    - SECONDARY: the lower bounds say that the secondary mechanism is good enough;
    - INFEASIBLE: the upper bounds say that neither mechanism is;
    - PRIMARY: they say that the secondary one is not;
    - UNDECIDED: neither.

    Raises `InvalidInputError` or `InputTypeError` for analyses that are not nested (the first query that the secondary
    or the common mechanism does not answer is named); mechanisms on other cells; numbers out of range.
    Source: section 6.1 of Xiao, Wang, Zhang and Kifer, "Answering private linear queries adaptively using the common
    mechanism", PVLDB 16(8), 2023. Where rows of the secondary or the common mechanism depend on one another, A and A_*
    are those of generalised least squares; the primary mechanism's variances are those of its own answers. The
    confidence is each query's own, given the truth: it does not say how often the verdict is right.

    - `primary`, `secondary`, `common`: M_1, M_2, and what has been released: the common mechanism, or any other whose
      answers are known;
    - `share`: x, more than 0 and at most 1;
    - `level`: y > 0, a pure number: counts per standard deviation of the noise;
    - `confidence`: standard deviations on either side; 3 for 99.7 % per query.

    Examples
    --------
    >>> import dualmech as dm
    >>> rows = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
    >>> cells = dm.LinearGaussianMechanism(np.eye(4), np.eye(4))
    >>> common = dm.LinearGaussianMechanism(rows.query_matrix, 2 * np.eye(2))
    >>> rule = SignalToNoise(rows, cells, common, share=0.5, level=20)
    >>> [rule.choose(answer).name for answer in ([40, 5], [22, 25], [22, 15], [3, 8])]
    ['SECONDARY', 'UNDECIDED', 'PRIMARY', 'INFEASIBLE']
    >>> rule.choose([[40, 5], [3, 8]])
    array([1, 3])
    """

    primary: LinearGaussianMechanism
    secondary: LinearGaussianMechanism
    common: LinearGaussianMechanism
    share: float
    level: float
    confidence: float
    estimator: Array = field(repr=False)
    deviations: Array = field(repr=False)
    primary_noise: Array = field(repr=False)
    secondary_noise: Array = field(repr=False)

    def __init__(
        self,
        primary: LinearGaussianMechanism,
        secondary: LinearGaussianMechanism,
        common: LinearGaussianMechanism,
        share: float,
        level: float,
        confidence: float = 3.0,
    ) -> None:
        fraction = validate.positive_number(share=share)
        if fraction > 1:
            raise InvalidInputError(f"share must be more than 0 and at most 1, got {fraction:g}")
        primary, secondary, common = map(as_matrix, (primary, secondary, common))
        for name, number in {"primary": primary, "secondary": secondary, "common": common}.items():
            validate.instance(LinearGaussianMechanism, **{name: number})
        queries = Workload(primary.query_matrix)
        nested = _estimation_matrix("secondary", secondary, queries)
        estimator = _estimation_matrix("common", common, queries)
        fields = (
            *(primary, secondary, common, fraction),
            validate.positive_number(level=level),
            validate.nonnegative_number(confidence=confidence),
            estimator,
            _deviations(estimator, common),
            np.sqrt(np.diagonal(primary.covariance())),
            _deviations(nested, secondary),
        )
        for name, value in zip(self.__dataclass_fields__, fields, strict=True):
            object.__setattr__(self, name, value)

    def intervals(self, answers: npt.ArrayLike) -> tuple[Array, Array]:
        """Return the lower and upper ends of the primary queries' intervals, (m,) or (n, m), in counts."""
        vector, size = validate.finite(answers=answers), self.estimator.shape[1]
        if vector.ndim not in (1, 2) or vector.shape[-1] != size:
            raise InvalidInputError(f"answers must have {size} entries in each row, got shape {vector.shape}")
        estimates, reach = vector @ self.estimator.T, self.confidence * self.deviations
        return estimates - reach, estimates + reach

    def bounds(self, answers: npt.ArrayLike) -> SignalBounds:
        """Return the bounds on each primary query's signal-to-noise ratio; a query without noise has an infinite one.

        With `answers` (k,) or (n, k), of the common mechanism, to one data set or to n.
        """
        lower, upper = self.intervals(answers)
        with np.errstate(divide="ignore", invalid="ignore"):
            return SignalBounds(
                *(end / noise for noise in (self.primary_noise, self.secondary_noise) for end in (lower, upper))
            )

    def choose(self, answers: npt.ArrayLike) -> Any:
        """Return the verdict, or an array of n.

        Returns `Verdict`, or (n,) array of its values.

        With `answers` (k,) or (n, k), of the common mechanism, to one data set or to n.
        """
        lower, upper = self.intervals(answers)
        sure = self._enough(lower, self.secondary_noise)
        secondary = self._enough(upper, self.secondary_noise)
        primary = self._enough(upper, self.primary_noise)
        otherwise = np.where(primary, Verdict.PRIMARY, Verdict.INFEASIBLE)
        verdicts = np.where(sure, Verdict.SECONDARY, np.where(secondary, Verdict.UNDECIDED, otherwise))
        return verdicts if verdicts.ndim else Verdict(int(verdicts))

    def true_verdict(self, x: npt.ArrayLike) -> Any:
        """Return the verdict on true data (d,) or (n, d), for study: its bounds are exact, so it is never UNDECIDED."""
        data, cells = validate.finite(x=x), self.primary.query_matrix.shape[1]
        if data.ndim not in (1, 2) or data.shape[-1] != cells:
            raise InvalidInputError(f"x must have {cells} entries in each row, one per cell, got shape {data.shape}")
        counts = data @ self.primary.query_matrix.T
        secondary = self._enough(counts, self.secondary_noise)
        primary = self._enough(counts, self.primary_noise)
        verdicts = np.where(secondary, Verdict.SECONDARY, np.where(primary, Verdict.PRIMARY, Verdict.INFEASIBLE))
        return verdicts if verdicts.ndim else Verdict(int(verdicts))

    def _enough(self, counts: Array, noise: Array) -> npt.NDArray[np.bool_]:
        reached = counts >= self.level * noise * (1 - ROUNDING)
        return np.asarray(np.mean(reached, axis=-1) >= self.share - ROUNDING)


@dataclass(frozen=True, slots=True, eq=False)
class SignalToNoiseRule:
    """The rule of `SignalToNoise` along a chain of nested analyses, the coarsest first.

    After stage s, mechanism s is the primary analysis and s + 1 the secondary one. Where that is good enough, the
    rule goes on, and after the last stage it chooses the last mechanism; else it chooses s. Where even the first
    mechanism is INFEASIBLE it can stop.
    Raises `InvalidInputError` or `InputTypeError` for what `SignalToNoise` refuses, of the stage that is named.
    Source: section 7.5.3 of Xiao, Wang, Zhang and Kifer, PVLDB 16(8), 2023.

    - `chain`: its mechanisms are nested, each in the next;
    - `share`, `level`, `confidence`: as for `SignalToNoise`;
    - `stop`: whether to stop after the first stage where its verdict is INFEASIBLE.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> total = dm.LinearGaussianMechanism([[1, 1, 1, 1]], [[1]])
    >>> halves = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
    >>> cells = dm.LinearGaussianMechanism(np.eye(4), np.eye(4))
    >>> chain = fast.chain([total, halves, cells])
    >>> rule = SignalToNoiseRule(chain, share=1, level=20)
    >>> chain.simulate([[5, 5, 0, 5], [20, 20, 1, 1], [90, 80, 70, 60]], rule, rng=0).choices
    array([0, 1, 2])
    """

    chain: Chain
    share: float
    level: float
    confidence: float
    stop: bool
    stages: tuple[SignalToNoise, ...] = field(repr=False)

    def __init__(self, chain: Chain, share: float, level: float, confidence: float = 3.0, stop: bool = False) -> None:
        validate.instance(Chain, chain=chain)
        validate.boolean(stop=stop)
        stages = tuple(
            SignalToNoise(primary, secondary, stage.known, share, level, confidence)
            for primary, secondary, stage in zip(chain.mechanisms, chain.mechanisms[1:], chain.stages, strict=False)
        )
        fields = (chain, stages[0].share, stages[0].level, stages[0].confidence, stop, stages)
        for name, value in zip(self.__dataclass_fields__, fields, strict=True):
            object.__setattr__(self, name, value)

    def __call__(self, stage: int, answers: Array) -> npt.NDArray[np.intp]:
        """Return the decisions after a stage, from the answers (n, k) known by then."""
        validate.index(len(self.stages), stage=stage)
        verdicts = self.stages[stage].choose(answers)
        further = GO_ON if stage < len(self.stages) - 1 else stage + 1
        decisions = np.where(verdicts == Verdict.SECONDARY, further, stage)
        if self.stop and stage == 0:
            decisions = np.where(verdicts == Verdict.INFEASIBLE, STOP, decisions)
        return decisions.astype(np.intp)


def _estimation_matrix(name: str, mechanism: LinearGaussianMechanism, queries: Workload) -> Array:
    """Return the matrix that estimates queries from a mechanism's answers; refused by name where it cannot."""
    cells = mechanism.query_matrix.shape[1]
    if queries.shape[1] != cells:
        raise InvalidInputError(f"{name} must have {queries.shape[1]} cells, as primary, got {cells}")
    if not mechanism.rank:
        raise InvalidInputError(f"{name} must answer the primary queries, but it releases nothing")
    where = f"{name} must answer the primary queries (nested analyses)"
    if mechanism.independent:
        return linalg.represent(queries.dense(), mechanism.query_matrix, queries.names, where)
    form = mechanism.standard_form
    return np.asarray(linalg.represent(queries.dense(), form.queries, queries.names, where) @ form.estimate)


def _deviations(estimator: Array, mechanism: LinearGaussianMechanism) -> Array:
    return np.asarray(np.sqrt(np.einsum("jk,jk->j", estimator @ mechanism.covariance(), estimator)))
