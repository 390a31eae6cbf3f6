"""Chains of common mechanisms: what several mechanisms share, then what all but the first share, and so on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.adaptive.branching import (
    GO_ON,
    STOP,
    ChainOutcome,
    Guarantee,
    Rule,
    apply_rule,
    gather_answers,
    simulate_answers,
)
from dualmech.adaptive.known_tables import own_tables
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.frames import frame_of
from dualmech.problems.common import CommonMechanism
from dualmech.problems.loewner import Maximality
from dualmech.progress import Status
from dualmech.solution import Solution
from dualmech.validate import Array
from dualmech.workloads.unions import UnionWorkload


@dataclass(frozen=True, slots=True, eq=False)
class ChainStage:
    """One stage of a chain: what is run, what is known afterwards, and how every branch goes on from there.

    Attributes
    ----------
    index : int
        s; the mechanisms still to choose from are s, s + 1, …
    step : Decomposition or TableDecomposition
        How `known` is made up of what was known before and the increment.
    solution : Solution
        Of the common mechanism of the residuals that the stage before leaves, with its certificate.
    decompositions : tuple of Decomposition or TableDecomposition
        How mechanism s, s + 1, … is made up of `known` and its residual.
    """

    index: int
    step: Any
    solution: Solution
    decompositions: tuple[Any, ...]

    @property
    def increment(self) -> Any:
        """What this stage runs; without any queries where nothing more is common."""
        return self.step.residual

    @property
    def known(self) -> Any:
        """All that has been released by then; of mechanisms on cells, on independent rows with unit noise."""
        return self.step.target

    @property
    def trivial(self) -> bool:
        """Whether nothing more is common, so that the stage releases nothing."""
        return not self.increment.rank

    @property
    def maximality(self) -> Maximality:
        """Whether what is known is a maximal common mechanism of all that are still to choose from."""
        targets = [each.target for each in self.decompositions]
        return CommonMechanism(targets).maximality(self.known)

    def decomposition(self, mechanism: int) -> Any:
        """Return how the mechanism of this index in the chain is made up of what is known here and its residual."""
        offered = validate.index(self.index + len(self.decompositions), mechanism=mechanism)
        if offered < self.index:
            raise InvalidInputError(
                f"mechanism must be {self.index} or a later one at this stage, got {offered}"
            )
        return self.decompositions[offered - self.index]


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Mechanisms to choose from, one after the other, without paying for the choice.

    Stage 0 releases what is common to all p mechanisms, stage s what is common to mechanisms s, s + 1, … beyond
    that. After any stage, the residual of one of these turns what is known into exactly its answer; or the next
    stage follows, after which mechanism s is out. There are p - 1 stages. Made by `dualmech.fast.chain` or
    `dualmech.reference.chain`.
    Source: section 7.5.3 of Xiao, Wang, Zhang and Kifer, PVLDB 16(8), 2023, whose common mechanisms are chosen one by
    one; those need not be answerable from one another. Here a mechanism of cost ``C + X`` is common to a set and keeps
    what was released, of cost C, if and only if X is common to the *residuals* of the set given C; and it is maximal if
    and only if X is. So every stage is the problem of the common mechanism again.

    Attributes
    ----------
    mechanisms : tuple of LinearGaussianMechanism, or of BlockMechanism
        In the order in which they drop out.
    stages : tuple of ChainStage
        With the certificate of each.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> total = dm.LinearGaussianMechanism([[1, 1, 1, 1]], [[1]])
    >>> halves = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
    >>> cells = dm.LinearGaussianMechanism(np.eye(4), np.eye(4))
    >>> chain = fast.chain([total, halves, cells])
    >>> [stage.known.rank for stage in chain.stages], chain.certified, chain.guarantee.rho
    ([1, 2], True, 0.5)
    >>> float(chain.stages[0].known.variances(dm.workloads.total(4))[0].round(6))
    4.0
    """

    mechanisms: tuple[Any, ...]
    stages: tuple[ChainStage, ...]

    def __post_init__(self) -> None:
        given, stages = validate.sequence(mechanisms=self.mechanisms), validate.sequence(stages=self.stages)
        frame_of(given)
        if not len(stages) == len(given) - 1 > 0:
            raise InvalidInputError(
                "stages must be one fewer than the mechanisms, of which there are two or more"
            )
        for index, stage in enumerate(stages):
            validate.instance(ChainStage, **{f"stages[{index}]": stage})

    @property
    def no_release(self) -> Any:
        """What is known before the first stage: the mechanism that releases nothing."""
        return self.stages[0].step.common

    @property
    def cells(self) -> int:
        """Number of cells of a data vector."""
        count: int = self.no_release.query_matrix.shape[1]
        return count

    def workload_of(self, index: int) -> UnionWorkload | None:
        """Return the tables that a mechanism of tables was made for, by the names that the chain knows them by.

        None where mechanisms are on cells. Raises `InvalidInputError` or `InputTypeError` for no index of a mechanism.
        """
        mechanism = self.mechanisms[validate.index(len(self.mechanisms), index=index)]
        if not self.of_tables:
            return None
        return own_tables(self.no_release, mechanism.workload or mechanism.needed_tables)

    @property
    def of_tables(self) -> bool:
        """Whether its mechanisms are of tables, and not on cells."""
        return self.stages[0].step.of_tables

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of a release along the chain: the largest cost over its branches.

        Every branch ends with the cost of one of the mechanisms, or stops with less; what is released next may
        depend on what came before, and zCDP and Gaussian privacy compose under that, neighbour by neighbour.
        """
        return Guarantee(np.max([each.target.profile for each in self.stages[0].decompositions], axis=0))

    @property
    def certified(self) -> bool:
        """Whether every stage is proven to the tolerance."""
        return all(stage.solution.status is Status.CERTIFIED for stage in self.stages)

    @property
    def gap(self) -> float:
        """The largest gap of all stages."""
        return max(stage.solution.gap for stage in self.stages)

    def simulate(
        self, blocks: npt.ArrayLike, rule: Rule, rng: np.random.Generator | int | None = None
    ) -> ChainOutcome:
        """Simulate adaptive releases of many data sets, for study. NOT a private release.

        Raises `InvalidInputError` or `InputTypeError` for blocks of other cells, decisions that the stage does
        not offer.

        - `blocks` (n, d): one data vector per row; each is released along the chain with noise of its own;
        - `rule`: takes a stage and the answers (n, k) of what is known by then; returns for each the index of a
          mechanism to end with, `GO_ON` (not after the last stage) or `STOP`;
        - `rng`: a generator or a seed that the noise comes from, by default the operating system's.
        """
        validate.function(rule=rule)
        if self.of_tables:
            raise InvalidInputError(
                "blocks are of mechanisms on cells; release tables with AdaptiveRelease, one by one"
            )
        data, generator = validate.finite(2, blocks=blocks), validate.generator(rng=rng)
        count, cells = len(self.mechanisms), self.cells
        if data.shape[1] != cells:
            raise InvalidInputError(f"blocks must have {cells} cells, one per column, got {data.shape[1]}")
        choices, ends = np.full((2, len(data)), STOP, dtype=np.intp)
        found: list[list[tuple[npt.NDArray[np.intp], Array]]] = [[] for _ in self.mechanisms]
        active, answers = np.arange(len(data)), np.zeros((len(data), 0))
        for stage in self.stages:
            if not active.size:
                break
            further = simulate_answers(stage.increment, data[active], generator)
            answers = stage.step.combine(answers, further)
            decisions = apply_rule(rule, stage.index, answers, count)
            for index in range(stage.index, count):
                mine = np.flatnonzero(decisions == index)
                if mine.size:
                    parts = stage.decomposition(index)
                    left = simulate_answers(parts.residual, data[active[mine]], generator)
                    found[index].append((active[mine], parts.combine(answers[mine], left, generator)))
            ended = decisions != GO_ON
            choices[active[ended]], ends[active[ended]] = decisions[ended], stage.index
            active, answers = active[~ended], answers[~ended]
        return ChainOutcome(choices, ends, tuple(map(gather_answers, self.mechanisms, found)))
