"""Chains of common mechanisms: what several mechanisms share, then what all but the first share, and so on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.display import counted, decimal_above
from dualmech.errors import InvalidInputError, UncertifiedWarning
from dualmech.mechanisms.decomposition import SHARED_TOLERANCE, decomposition
from dualmech.mechanisms.frames import AnyDecomposition, Decomposition, frame_of
from dualmech.mechanisms.gaussian import LinearGaussianMechanism, coordinates, without_tiny_entries
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.problems.common import CommonMechanism, Maximality
from dualmech.progress import Status
from dualmech.solution import Solution, retold
from dualmech.validate import Array

# Branches of a chain: decisions, the rules that make them, the guarantee over all branches, and outcomes.


GO_ON, STOP = -1, -2
"""What a rule may say instead of the index of a mechanism: release the next stage; release nothing more."""

Rule = Callable[[int, Array], npt.ArrayLike]
"""Takes a stage and the answers (n, k) known by then, of n data sets; returns n decisions."""


@dataclass(frozen=True, slots=True, eq=False)
class Guarantee(GaussianPrivacy):
    """The guarantee of an adaptive release before any answer is seen: the maximum over its branches.

    Attributes
    ----------
    profile : (s,) array
        Squared privacy cost of each pair of neighbours, the largest over all branches.
    """

    profile: Array = field()

    def __post_init__(self) -> None:
        validate.numeric(1, profile=self.profile)


@dataclass(frozen=True, slots=True, eq=False)
class ChosenAnswers:
    """The answers of one mechanism, for the blocks that chose it: their indices (b,), and the values (b, m)."""

    blocks: npt.NDArray[np.intp]
    values: Array


@dataclass(frozen=True, slots=True, eq=False)
class ChainOutcome:
    """The outcomes of a chain for many blocks.

    Attributes
    ----------
    choices : (n,) array
        Index of the mechanism each block ended with, or `STOP`.
    stages : (n,) array
        The stage at which that was decided.
    answers : tuple of ChosenAnswers
        By mechanism.
    """

    choices: npt.NDArray[np.intp]
    stages: npt.NDArray[np.intp]
    answers: tuple[ChosenAnswers, ...]


def _decisions(rule: Rule, stage: int, answers: Array, mechanisms: int) -> npt.NDArray[np.intp]:
    """Return a rule's decisions on answers (n, k) after a stage; refuse those that the stage does not offer.

    Stage s offers the mechanisms s to ``mechanisms - 1``, `STOP`, and `GO_ON` unless it is the last.
    """
    decisions = validate.integers(**{f"what rule returns at stage {stage}": rule(stage, answers)})
    if len(decisions) != len(answers):
        raise InvalidInputError(f"rule must return {len(answers)} integers at stage {stage}, got {len(decisions)}")
    last = stage == mechanisms - 2
    offered = (decisions >= stage) & (decisions < mechanisms) | (decisions == STOP)
    refused = decisions[~(offered if last else offered | (decisions == GO_ON))]
    if refused.size:
        raise InvalidInputError(
            f"rule must choose a mechanism from {stage} to {mechanisms - 1}{'' if last else ', GO_ON'} or STOP "
            f"at stage {stage}, got {refused[0]}"
        )
    return decisions


def _gathered(mechanism: LinearGaussianMechanism, parts: list[tuple[npt.NDArray[np.intp], Array]]) -> ChosenAnswers:
    if not parts:
        return ChosenAnswers(np.zeros(0, dtype=np.intp), np.zeros((0, len(mechanism.query_matrix))))
    blocks = np.concatenate([block for block, _ in parts])
    order = np.argsort(blocks)
    return ChosenAnswers(blocks[order], np.vstack([values for _, values in parts])[order])


@dataclass(frozen=True, slots=True, eq=False)
class ChainStage:
    """One stage of a chain: the mechanism run, the mechanism known afterwards, and the stages that may follow.

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
    step: AnyDecomposition
    solution: Solution
    decompositions: tuple[AnyDecomposition, ...]

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
        """Whether the known mechanism is a maximal common mechanism of all that remain to choose from."""
        targets = [decomposition.target for decomposition in self.decompositions]
        return CommonMechanism(targets).maximality(self.known)

    def decomposition(self, mechanism: int) -> AnyDecomposition:
        """Return the decomposition of the mechanism of this index into the mechanism known here and its residual."""
        offered = validate.index(self.index + len(self.decompositions), mechanism=mechanism)
        if offered < self.index:
            raise InvalidInputError(f"mechanism must be {self.index} or a later one at this stage, got {offered}")
        return self.decompositions[offered - self.index]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Chain:
    """Mechanisms to choose from, one after the other, without paying for the choice.

    Stage 0 releases the information common to all p mechanisms, stage s that common to mechanisms s, s + 1, … beyond
    that. After any stage, the residual of one of these turns the known answers into exactly its answer; or the next
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
        mechanisms, stages = validate.sequence(mechanisms=self.mechanisms), validate.sequence(stages=self.stages)
        if not len(stages) == len(mechanisms) - 1 > 0:
            raise InvalidInputError("stages must be one fewer than the mechanisms, of which there are two or more")
        frame_of(mechanisms)
        for index, stage in enumerate(stages):
            validate.instance(ChainStage, **{f"stages[{index}]": stage})

    def __repr__(self) -> str:
        stages = counted(len(self.stages), "stage")
        return f"Chain({len(self.mechanisms)} mechanisms, {stages}, rho={decimal_above(self.guarantee.rho)})"

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
        return Guarantee(
            np.max([decomposition.target.profile for decomposition in self.stages[0].decompositions], axis=0)
        )

    @property
    def certified(self) -> bool:
        """Whether every stage is proven to the tolerance."""
        return all(stage.solution.status is Status.CERTIFIED for stage in self.stages)

    @property
    def gap(self) -> float:
        """The largest gap of all stages."""
        return max(stage.solution.gap for stage in self.stages)

    def simulate(self, blocks: npt.ArrayLike, rule: Rule, rng: np.random.Generator | int | None = None) -> ChainOutcome:
        """Simulate adaptive releases of many data sets, for study. NOT a private release.

        Raises `InvalidInputError` or `InputTypeError` for blocks of other cells, decisions that the stage does
        not offer.

        - `blocks` (n, d): one data vector per row; each is released along the chain with noise of its own;
        - `rule`: takes a stage and the answers (n, k) known by then; returns for each the index of a
          mechanism to end with, `GO_ON` (not after the last stage) or `STOP`;
        - `rng`: a generator or a seed that the noise comes from, by default the operating system's.
        """
        validate.function(rule=rule)
        if self.of_tables:
            raise InvalidInputError(
                "blocks are of mechanisms on cells: build the chain of the dense() of each, or measure stage by stage"
            )
        data, generator = validate.finite(2, blocks=blocks), validate.generator(rng=rng)
        count, cells = len(self.mechanisms), self.mechanisms[0].query_matrix.shape[1]
        if data.shape[1] != cells:
            raise InvalidInputError(f"blocks must have {cells} cells, one per column, got {data.shape[1]}")
        choices, ends = np.full((2, len(data)), STOP, dtype=np.intp)
        measured: list[list[tuple[npt.NDArray[np.intp], Array]]] = [[] for _ in self.mechanisms]
        active, answers = np.arange(len(data)), np.zeros((len(data), 0))
        for stage in self.stages:
            if not active.size:
                break
            answers = stage.step.combine(answers, stage.increment.simulate(data[active], generator))
            decisions = _decisions(rule, stage.index, answers, count)
            for index in range(stage.index, count):
                ended_here = np.flatnonzero(decisions == index)
                if ended_here.size:
                    parts = stage.decomposition(index)
                    left = parts.residual.simulate(data[active[ended_here]], generator)
                    measured[index].append((active[ended_here], parts.combine(answers[ended_here], left, generator)))
            ended = decisions != GO_ON
            choices[active[ended]], ends[active[ended]] = decisions[ended], stage.index
            active, answers = active[~ended], answers[~ended]
        return ChainOutcome(choices, ends, tuple(map(_gathered, self.mechanisms, measured)))


# Building chains stage by stage: the mechanism common to the remaining residuals, block by block.


StageSolver = Callable[[CommonMechanism], Solution]
"""Returns a judged solution of a stage, as accurate as can be and judged at no larger a tolerance than is promised."""

WORTH_ASKING = 1e-5
"""Largest share of a direction's information that a stage may leave to the residuals because of a solver's gap."""


def build(mechanisms: Sequence[GaussianPrivacy], solve: StageSolver, *, tol: float, solver: str) -> Chain:
    """Build the chain of two or more mechanisms, stage by stage; the caller supplies the solver.

    A solver's gap leaves tiny shares of exactly common information in the residuals, all but parallel to one another.
    No stage asks for a direction of which no more is left than the gap of the stage before may explain: what is
    released stays answerable from all, and is maximal up to that share.

    - `mechanisms`: in the order in which they drop out;
    - `solve`: solves the problem of a stage as accurately as it can: the next stage inherits its error;
    - `tol`: gap to prove in every stage;
    - `solver`: name for the warning where one is not proven.
    """
    tol = validate.positive_number(tol=tol)
    problem = CommonMechanism(mechanisms)
    matrices, frame, stages = problem.mechanisms, problem.frame, list[ChainStage]()
    targets = [frame.parts(mechanism) for mechanism in matrices]
    known = [_empty_mechanism(target) for target in targets[0]]
    explained, spans = np.zeros(len(matrices)), [mechanism.query_matrix for mechanism in known]
    for index in range(len(matrices) - 1):
        solution = _with_tolerance(solve(problem), tol)
        common, left = frame.parts(solution.mechanism), list(zip(*targets[index:], strict=True))
        pairs = zip(spans, common, left, strict=True)
        spans = [_extend_span(span, part.query_matrix, mechanisms) for span, part, mechanisms in pairs]
        increments = [_on_span(*pair) for pair in zip(common, spans, strict=True)]
        steps = [_compose(*triple) for triple in zip(known, increments, spans, strict=True)]
        known = [step.target for step in steps]
        parts = [
            [decomposition(target[block], mechanism) for block, mechanism in enumerate(known)]
            for target in targets[index:]
        ]
        step, decompositions = frame.decomposed(steps), tuple(map(frame.decomposed, parts))
        stages.append(ChainStage(index, step, solution, decompositions))
        if index < len(matrices) - 2:
            explained = np.maximum(explained, _shares_within_gap(solution))[1:]
            left_over = [
                [_without_negligible(part, share) for part in mechanisms]
                for mechanisms, share in zip(parts[1:], explained, strict=True)
            ]
            problem = CommonMechanism([frame.joined(rest) for rest in left_over])
    chain = Chain(matrices, tuple(stages))
    if not chain.certified:
        warnings.warn(
            f"{solver}: a stage is proven to {chain.gap:.1e} where {tol:.1e} was asked",
            UncertifiedWarning,
            stacklevel=3,
        )
    return chain


def _with_tolerance(solution: Solution, tol: float) -> Solution:
    """Return a solution with the tolerance that was asked for in place of the stricter one that was tried."""
    status = Status.CERTIFIED if solution.certificate.certifies(tol) else solution.status
    return retold(solution, tol=tol, status=status)


def _empty_mechanism(like: LinearGaussianMechanism) -> LinearGaussianMechanism:
    """Return the mechanism that releases nothing, on the same cells and neighbours."""
    return LinearGaussianMechanism(np.zeros((0, like.query_matrix.shape[1])), np.zeros((0, 0)), like.neighbours)


def _extend_span(span: Array, rows: Array, mechanisms: tuple[LinearGaussianMechanism, ...]) -> Array:
    """Extend the orthonormal rows of a span by the directions of more rows that lie clearly outside it.

    What lies within `SHARED_TOLERANCE` of the span belongs to it, as in the intersection from which the rows came: a
    rank decided to the last digit would take their rounding for new queries. Cells that one of the mechanisms does not
    see, no common mechanism sees.
    """
    if not len(rows):
        return span
    outside = linalg.row_space(rows)
    for _ in range(2):
        outside = outside - (outside @ span.T) @ span
    _, sines, directions = linalg.svd(outside)
    further = directions[: len(sines)][sines > SHARED_TOLERANCE]
    unseen = [~np.any(mechanism.query_matrix, axis=0) for mechanism in mechanisms if len(mechanism.query_matrix)]
    further = np.where(np.any(unseen, axis=0), 0.0, further)
    return np.vstack([span, further])


def _on_span(mechanism: LinearGaussianMechanism, span: Array) -> LinearGaussianMechanism:
    """Project a mechanism's rows onto a span that contains them up to rounding."""
    rows = without_tiny_entries((mechanism.query_matrix @ span.T) @ span)
    return LinearGaussianMechanism(rows, mechanism.covariance(), mechanism.neighbours)


def _compose(known: LinearGaussianMechanism, increment: LinearGaussianMechanism, span: Array) -> Decomposition:
    """Return what both reveal together on independent rows with unit noise, made up of them.

    With unit noise on rows ``T Q``, Q the span, and ``T = O R`` a QR factorisation, ``O'`` times the answers is
    R Q x with unit noise, and the rest of them is noise alone.
    """
    form, count = increment.standard_form, len(known.query_matrix)
    rows = np.vstack([known.query_matrix, form.queries])
    orthogonal, triangle = scipy.linalg.qr(rows @ span.T, mode="economic", check_finite=False)
    estimate = scipy.linalg.block_diag(np.eye(count), form.estimate)[: len(rows)]
    update = orthogonal.T @ estimate
    together = LinearGaussianMechanism(without_tiny_entries(triangle @ span), np.eye(len(span)), known.neighbours)
    together._standing_for(known.stack(increment))
    nothing = np.zeros((len(span), len(span)))
    return Decomposition(together, known, increment, update[:, :count], update[:, count:], nothing)


def _without_negligible(parts: Decomposition, allowed: float) -> LinearGaussianMechanism:
    """Return the residual without the directions of which at most this share is left."""
    rows = parts.residual.query_matrix
    shares = coordinates(rows, parts.target.standard_form.queries)
    kept = np.einsum("kl,kl->k", shares, shares) > allowed
    return LinearGaussianMechanism(rows[kept], np.eye(int(kept.sum())), parts.residual.neighbours)


def _shares_within_gap(solution: Solution) -> Array:
    """Return, of each mechanism, what share of a direction it may keep because Σ is not exactly optimal.

    Σ exceeds an optimum by a matrix of trace ``gap · tr Σ`` at most, so no more, relative, than that over the
    least eigenvalue of P_i.
    """
    problem: CommonMechanism = solution.problem
    if problem.trivial:
        return np.zeros(len(problem.mechanisms))
    excess = solution.gap * solution.objective
    least = np.array([np.linalg.eigvalsh(bound)[0] for bound in problem.bounds])
    return np.minimum(excess / np.maximum(least, np.finfo(float).tiny), WORTH_ASKING)
