"""Chains of common mechanisms: of all mechanisms, then of all but the first, and so on."""

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

# Decisions along a chain, their rules, the guarantee over all branches, and outcomes.


GO_ON, STOP = -1, -2
"""Decisions of a rule besides the index of a mechanism: release the next stage; stop."""

Rule = Callable[[int, Array], npt.ArrayLike]
"""Takes the index of a stage and the answers (n, k) so far, of n data sets; returns n decisions."""


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
    """The answers of one mechanism: indices (b,) of the blocks that chose it, and values (b, m)."""

    blocks: npt.NDArray[np.intp]
    values: Array


@dataclass(frozen=True, slots=True, eq=False)
class ChainOutcome:
    """The outcomes of a chain for many blocks.

    Attributes
    ----------
    choices : (n,) array
        Index of the mechanism that each block chose, or `STOP`.
    stages : (n,) array
        The stage of this decision.
    answers : tuple of ChosenAnswers
        One for each mechanism.
    """

    choices: npt.NDArray[np.intp]
    stages: npt.NDArray[np.intp]
    answers: tuple[ChosenAnswers, ...]


def _decisions(rule: Rule, stage: int, answers: Array, mechanisms: int) -> npt.NDArray[np.intp]:
    """Return a rule's decisions on answers (n, k) after a stage, checked.

    Stage s offers the mechanisms s to ``mechanisms - 1``, `STOP`, and `GO_ON` unless it is the last.
    """
    decisions = validate.integers(**{f"decisions of rule at stage {stage}": rule(stage, answers)})
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
    """One stage of a chain: its increment, the composition of all increments so far, and the residuals after it.

    Attributes
    ----------
    index : int
        s; the remaining mechanisms are s, s + 1, …
    step : Decomposition or TableDecomposition
        The decomposition of `known` into the previous `known` and the increment.
    solution : Solution
        The common mechanism of the residuals of the previous stage, with its certificate.
    decompositions : tuple of Decomposition or TableDecomposition
        The decompositions of mechanisms s, s + 1, … into `known` and a residual.
    """

    index: int
    step: AnyDecomposition
    solution: Solution
    decompositions: tuple[AnyDecomposition, ...]

    @property
    def increment(self) -> Any:
        """The mechanism that this stage releases; without queries if the residuals have none in common."""
        return self.step.residual

    @property
    def known(self) -> Any:
        """The composition of all increments so far; on cells, on independent rows with unit noise."""
        return self.step.target

    @property
    def trivial(self) -> bool:
        """Whether the residuals have no common query, so that the increment has none."""
        return not self.increment.rank

    @property
    def maximality(self) -> Maximality:
        """Whether `known` is a maximal common mechanism of all remaining mechanisms."""
        targets = [decomposition.target for decomposition in self.decompositions]
        return CommonMechanism(targets).maximality(self.known)

    def decomposition(self, mechanism: int) -> AnyDecomposition:
        """Return the decomposition of the mechanism with this index into `known` and its residual."""
        offered = validate.index(self.index + len(self.decompositions), mechanism=mechanism)
        if offered < self.index:
            raise InvalidInputError(f"mechanism must be {self.index} or a later one at this stage, got {offered}")
        return self.decompositions[offered - self.index]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Chain:
    """An adaptive choice between p mechanisms, at the cost of the chosen mechanism.

    Stage 0 releases the common mechanism of all p mechanisms, stage s the additional information that is common to
    mechanisms s, s + 1, …. After a stage, the residual of one of these completes its answer; or the next stage
    follows, after which mechanism s cannot be chosen. There are p - 1 stages. Made by `dualmech.fast.chain` or
    `dualmech.reference.chain`.
    Source: section 7.5.3 of Xiao, Wang, Zhang and Kifer, PVLDB 16(8), 2023, which chooses a common
    mechanism for each set; these need not be answerable from one another. A mechanism of cost ``C + X`` that contains
    the released part, of cost C, is common to a set if and only if X is common to the *residuals* of the set given C,
    and it is maximal if and only if X is. So each stage is a problem of the common mechanism.

    Attributes
    ----------
    mechanisms : tuple of LinearGaussianMechanism, or of BlockMechanism
        In the order in which they are excluded.
    stages : tuple of ChainStage
        Each with its certificate.

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
            raise InvalidInputError("stages must be one fewer than the mechanisms, which must be two or more")
        frame_of(mechanisms)
        for index, stage in enumerate(stages):
            validate.instance(ChainStage, **{f"stages[{index}]": stage})

    def __repr__(self) -> str:
        stages = counted(len(self.stages), "stage")
        return f"Chain({len(self.mechanisms)} mechanisms, {stages}, rho={decimal_above(self.guarantee.rho)})"

    @property
    def of_tables(self) -> bool:
        """Whether the mechanisms are of tables, not on cells."""
        return self.stages[0].step.of_tables

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of a release along the chain: the largest cost over its branches.

        Every branch ends with the cost of one of the mechanisms, or stops at a lower cost. A release may depend on
        earlier answers: zCDP and Gaussian privacy compose adaptively, for each pair of neighbours.
        """
        return Guarantee(
            np.max([decomposition.target.profile for decomposition in self.stages[0].decompositions], axis=0)
        )

    @property
    def certified(self) -> bool:
        """Whether every stage is certified to the tolerance."""
        return all(stage.solution.status is Status.CERTIFIED for stage in self.stages)

    @property
    def gap(self) -> float:
        """The largest gap of all stages."""
        return max(stage.solution.gap for stage in self.stages)

    def simulate(self, blocks: npt.ArrayLike, rule: Rule, rng: np.random.Generator | int | None = None) -> ChainOutcome:
        """Simulate adaptive releases of many data sets, for study. NOT a private release.

        Raises `InvalidInputError` or `InputTypeError` for blocks of other cells, or invalid decisions.

        - `blocks` (n, d): one data vector per row, each released along the chain with independent noise;
        - `rule`: takes the index of a stage and the answers (n, k) so far; returns for each the index of a
          mechanism, `GO_ON` (not after the last stage) or `STOP`;
        - `rng`: the generator of the noise, or its seed; by default a seed of the operating system.
        """
        validate.function(rule=rule)
        if self.of_tables:
            raise InvalidInputError(
                "blocks need mechanisms on cells: build the chain of their dense() forms, or measure stage by stage"
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
                finished_here = np.flatnonzero(decisions == index)
                if finished_here.size:
                    parts = stage.decomposition(index)
                    residual_answers = parts.residual.simulate(data[active[finished_here]], generator)
                    measured[index].append(
                        (active[finished_here], parts.combine(answers[finished_here], residual_answers, generator))
                    )
            finished = decisions != GO_ON
            choices[active[finished]], ends[active[finished]] = decisions[finished], stage.index
            active, answers = active[~finished], answers[~finished]
        return ChainOutcome(choices, ends, tuple(map(_gathered, self.mechanisms, measured)))


# Building chains: each stage is the common mechanism of the remaining residuals.

StageSolver = Callable[[CommonMechanism], Solution]
"""Returns a certified solution of a stage to attainable precision, with a tolerance of at most the requested one."""

MAX_GAP_SHARE = 1e-5
"""Largest share of a direction's information that is attributed to a solver's gap and dropped from the residuals."""


def build(mechanisms: Sequence[GaussianPrivacy], solve: StageSolver, *, tol: float, solver: str) -> Chain:
    """Build the chain of two or more mechanisms with the caller's solver.

    A solver's gap leaves tiny shares of common information in the residuals, in nearly parallel directions. Directions
    with a share that the previous gap can explain are dropped: each stage stays answerable from all remaining
    mechanisms, and is maximal up to this share.

    - `mechanisms`: in the order in which they are excluded;
    - `solve`: solves the problem of a stage to attainable precision, since the next stage inherits its error;
    - `tol`: largest gap of a certified stage;
    - `solver`: name for warnings.
    """
    tol = validate.positive_number(tol=tol)
    problem = CommonMechanism(mechanisms)
    matrices, frame, stages = problem.mechanisms, problem.frame, list[ChainStage]()
    targets = [frame.parts(mechanism) for mechanism in matrices]
    compositions = [_empty_mechanism(target) for target in targets[0]]
    dropped_shares, spans = np.zeros(len(matrices)), [mechanism.query_matrix for mechanism in compositions]
    for index in range(len(matrices) - 1):
        solution = _with_tolerance(solve(problem), tol)
        common, remaining = frame.parts(solution.mechanism), list(zip(*targets[index:], strict=True))
        pairs = zip(spans, common, remaining, strict=True)
        spans = [_extend_span(span, part.query_matrix, mechanisms) for span, part, mechanisms in pairs]
        increments = [_on_span(*pair) for pair in zip(common, spans, strict=True)]
        steps = [_compose(*triple) for triple in zip(compositions, increments, spans, strict=True)]
        compositions = [step.target for step in steps]
        parts = [
            [decomposition(target[block], mechanism) for block, mechanism in enumerate(compositions)]
            for target in targets[index:]
        ]
        step, decompositions = frame.decomposed(steps), tuple(map(frame.decomposed, parts))
        stages.append(ChainStage(index, step, solution, decompositions))
        if index < len(matrices) - 2:
            dropped_shares = np.maximum(dropped_shares, _shares_within_gap(solution))[1:]
            residuals = [
                [_without_negligible(part, share) for part in mechanisms]
                for mechanisms, share in zip(parts[1:], dropped_shares, strict=True)
            ]
            problem = CommonMechanism([frame.joined(parts_) for parts_ in residuals])
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
    """Extend the orthonormal rows of a span by the directions of more rows outside it.

    Directions within `SHARED_TOLERANCE` of the span belong to it, as in the intersection: with a smaller tolerance
    rounding errors would add queries. Entries are 0 for cells on which one of the mechanisms has no query.
    """
    if not len(rows):
        return span
    components = linalg.row_space(rows)
    for _ in range(2):
        components = components - (components @ span.T) @ span
    _, sines, directions = linalg.svd(components)
    new_rows = directions[: len(sines)][sines > SHARED_TOLERANCE]
    missing_cells = [~np.any(mechanism.query_matrix, axis=0) for mechanism in mechanisms if len(mechanism.query_matrix)]
    new_rows = np.where(np.any(missing_cells, axis=0), 0.0, new_rows)
    return np.vstack([span, new_rows])


def _on_span(mechanism: LinearGaussianMechanism, span: Array) -> LinearGaussianMechanism:
    """Project a mechanism's rows onto a span that contains them up to rounding errors."""
    rows = without_tiny_entries((mechanism.query_matrix @ span.T) @ span)
    return LinearGaussianMechanism(rows, mechanism.covariance(), mechanism.neighbours)


def _compose(earlier: LinearGaussianMechanism, increment: LinearGaussianMechanism, span: Array) -> Decomposition:
    """Return the composition of both on independent rows with unit noise, with its decomposition.

    With unit noise on rows ``T Q``, Q the span, and ``T = O R`` a QR factorisation, ``O'`` times the answers is
    R Q x with unit noise. The orthogonal components of the answers are noise alone.
    """
    form, count = increment.standard_form, len(earlier.query_matrix)
    rows = np.vstack([earlier.query_matrix, form.queries])
    orthogonal, triangle = scipy.linalg.qr(rows @ span.T, mode="economic", check_finite=False)
    estimate = scipy.linalg.block_diag(np.eye(count), form.estimate)[: len(rows)]
    update = orthogonal.T @ estimate
    composition = LinearGaussianMechanism(without_tiny_entries(triangle @ span), np.eye(len(span)), earlier.neighbours)
    composition._standing_for(earlier.stack(increment))
    zeros = np.zeros((len(span), len(span)))
    return Decomposition(composition, earlier, increment, update[:, :count], update[:, count:], zeros)


def _without_negligible(parts: Decomposition, max_share: float) -> LinearGaussianMechanism:
    """Return the residual without directions of at most this share of the target's information."""
    rows = parts.residual.query_matrix
    shares = coordinates(rows, parts.target.standard_form.queries)
    large = np.einsum("kl,kl->k", shares, shares) > max_share
    return LinearGaussianMechanism(rows[large], np.eye(int(large.sum())), parts.residual.neighbours)


def _shares_within_gap(solution: Solution) -> Array:
    """Return, for each mechanism, the largest share of a direction in its residual that the gap of Σ can explain.

    Σ minus an optimum has a trace of at most ``gap · tr Σ``: relative to P_i, at most this over its least eigenvalue.
    """
    problem: CommonMechanism = solution.problem
    if problem.trivial:
        return np.zeros(len(problem.mechanisms))
    excess = solution.gap * solution.objective
    min_eigenvalues = np.array([np.linalg.eigvalsh(bound)[0] for bound in problem.bounds])
    return np.minimum(excess / np.maximum(min_eigenvalues, np.finfo(float).tiny), MAX_GAP_SHARE)
