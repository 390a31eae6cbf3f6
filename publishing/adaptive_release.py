"""Adaptive releases: run what all branches share, look, and only then choose a branch."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np

from dualmech import validate
from dualmech.adaptive.chain import (
    GO_ON,
    STOP,
    Answers,
    Chain,
    Guarantee,
    Measure,
    Rule,
    apply_rule,
    known_tables,
    simulate_answers,
)
from dualmech.errors import InputTypeError, InvalidInputError, ReleaseOrderError
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.mechanisms.tables import check_tables
from dualmech.workloads.unions import UnionWorkload


@dataclass(frozen=True, slots=True, eq=False)
class ReleasedAnswer:
    """The answer of the mechanism that was chosen.

    Attributes
    ----------
    index : int
        Which of the chain's mechanisms it is.
    mechanism : LinearGaussianMechanism or BlockMechanism
        The mechanism itself, which is the exact distribution of the answer wherever the choice is made beforehand.
        A choice that looks at answers also selects among them: given that it was made, noise is no longer centred.
    values : (m,) array, or dict of names to arrays
        Its noisy answers; of mechanisms of tables, its tables.
    """

    index: int
    mechanism: GaussianPrivacy
    values: Answers


class Uncopied:
    """What keeps account of a release under way: it cannot be copied, since each copy could go on by itself."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        """Refuse copies, deep or not, and pickling: all of them ask here how an object is made again."""
        raise InputTypeError(
            f"{type(self).__name__} must not be copied or pickled: two of one release could both go on, and together "
            f"cost more than it promises; begin another release, whose cost adds up"
        )


class AdaptiveRelease(Uncopied):
    """One release along a chain: advance stage by stage, look at the answers, then choose a branch or stop.

    Nothing runs until `advance` is called. What is promised is `guarantee`, the largest cost over all branches,
    known before anything has run. It does not fall when a cheap branch is chosen: the choice was made by looking
    at the data, through noise, and (ε, δ) or ρ bound what the whole procedure tells, the choice included. To spend
    what a cheap branch has saved needs a *privacy filter*, a theorem for budgets that depend on earlier answers
    (Feldman and Zrnic, "Individual privacy accounting via a Rényi filter", NeurIPS 2021, for Rényi and
    zero-concentrated privacy) with a total that was fixed beforehand; this class does not do so by itself.
    Raises `InvalidInputError` or `InputTypeError` for no chain, data of other cells, NaN or infinity;
    `ReleaseOrderError` from its methods for a branch before its stage or after it, a stage that does not exist,
    anything at all after a branch was chosen or the release was stopped, and in a forked process; `InputTypeError` for
    a copy. Threads may share a release: its steps run one after the other.
    Source: sections 3.4 and 7.5.3 of Xiao, Wang, Zhang and Kifer, PVLDB 16(8), 2023.

    Parameters
    ----------
    chain : Chain
        Made by `dualmech.fast.chain` or `dualmech.reference.chain`.
    x : (d,) array, or tables of counts
        The data; of mechanisms of tables what `dualmech.records.count` returns.
    rng : numpy.random.Generator or int, optional
        Where noise comes from, by default the operating system.
    measure : callable, optional
        Takes a mechanism, the data and the generator, and returns noisy answers; every access to the data goes
        through it. By default a simulation in floating point, for study and NOT a private release.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> rows = dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2))
    >>> cells = dm.LinearGaussianMechanism(np.eye(4), np.eye(4))
    >>> release = dm.AdaptiveRelease(fast.chain([rows, cells]), x=[50, 3, 40, 2], rng=0)
    >>> release.guarantee.rho, release.known.rank
    (0.5, 0)
    >>> answers = release.advance()
    >>> release.known.variances(dm.Workload([[1, 1, 0, 0]])).round(6)
    array([2.])
    >>> answer = release.choose(1)
    >>> answer.index, answer.values.shape, release.finished
    (1, (4,), True)
    """

    __slots__ = (
        *("_answers", "_data", "_finished", "_generator", "_lock", "_measure", "_process"),
        *("chain", "chosen"),
    )

    chain: Chain
    chosen: int | None  # the mechanism that it ended with

    def __init__(
        self, chain: Chain, x: object, rng: np.random.Generator | int | None = None, measure: Measure = simulate_answers
    ) -> None:
        of_tables = validate.instance(Chain, chain=chain).of_tables
        validate.function(measure=measure)
        self.chain = chain
        self._data = check_tables(x=x) if of_tables else validate.vector(chain.cells, "cell", x=x)
        self._generator = validate.generator(rng=rng)
        self._measure = measure
        self.chosen = None
        self._answers: tuple[Answers, ...] = ({} if of_tables else np.zeros(0),)  # before any stage, then after each
        self._finished = ""
        self._process, self._lock = os.getpid(), threading.RLock()

    @property
    def guarantee(self) -> Guarantee:
        """What the whole procedure promises, before anything has run: the maximum over its branches."""
        return self.chain.guarantee

    @property
    def _ran(self) -> int:
        return len(self._answers) - 1

    @property
    def stage(self) -> int | None:
        """The stage that ran last; None before the first."""
        return self._ran - 1 if self._ran else None

    @property
    def finished(self) -> bool:
        """Whether a branch was chosen or the release was stopped."""
        return bool(self._finished)

    @property
    def known(self) -> Any:
        """The mechanism that all stages so far amount to; one that releases nothing before the first."""
        return self._known_after(self._ran)

    @property
    def answers(self) -> Answers:
        """Answers of `known` (k,), in its rows; the residual of a chosen branch is not part of them.

        Of mechanisms of tables a dict of names to arrays: the largest tables that `known` answers, of those that the
        mechanisms were made for and of parts of them.
        """
        answers = self._answers  # read once: another thread may run a stage
        known = self._known_after(len(answers) - 1)
        return self._shown(known, known_tables(known) if self.chain.of_tables else None, answers[-1])

    def advance(self) -> Answers:
        """Run the next stage and return the answers of all that is known then (k,); of tables, as `answers`."""
        with self._open("advance"):
            if self._ran == len(self.chain.stages):
                raise ReleaseOrderError(
                    f"stage {self._ran - 1} was the last: choose mechanism {self._ran - 1} or {self._ran}, or stop"
                )
            stage = self.chain.stages[self._ran]
            # If the measurement fails, it must not run again: its first part may have disclosed something already.
            self._finished = f"stage {self._ran} failed"
            increment = self._draw_answers(stage.increment)
            self._answers = (*self._answers, stage.step.combine(self._answers[-1], increment))
            self._finished = ""
            return self.answers

    def choose(self, index: int) -> ReleasedAnswer:
        """Run the residual of a mechanism and return its answer; the release ends with it.

        Where the mechanism's own rows depend on one another, noise that does not depend on the data is added, so
        that the values have exactly the mechanism's distribution.
        """
        with self._open("choose"):
            count = len(self.chain.mechanisms)
            index = int(validate.index(count, index=index))
            if not self._ran:
                raise ReleaseOrderError("advance before choosing: no stage has run")
            if index < self._ran - 1:
                raise ReleaseOrderError(
                    f"mechanism {index} is out since stage {index + 1} ran: the known answers may tell more than it "
                    f"does"
                )
            parts = self.chain.stages[self._ran - 1].decomposition(index)
            self._finished = f"mechanism {index} was chosen"
            residual = self._draw_answers(parts.residual)
            combined = parts.combine(self._answers[-1], residual, self._generator)
            self.chosen = index
            return ReleasedAnswer(
                index, parts.target, self._shown(parts.target, self.chain.workload_of(index), combined)
            )

    def stop(self) -> Answers:
        """End the release with the known mechanism, and return its answers (k,); of tables, as `answers`."""
        with self._open("stop"):
            self._finished = "the release was stopped"
            return self.answers

    def run(self, rule: Rule) -> ReleasedAnswer | None:
        """Advance as long as a rule says so; return the answer of its choice, or None where it stops.

        Parameters
        ----------
        rule : callable
            Takes a stage and the answers (1, k) known by then, of tables a dict of them; returns one
            decision, the index of a mechanism, `dualmech.decisions.GO_ON` or `dualmech.decisions.STOP`. It may see no
            data.
        """
        validate.function(rule=rule)
        count, decision = len(self.chain.mechanisms), GO_ON
        while decision == GO_ON:
            answers = self.advance()
            stage, seen = self._ran - 1, answers if self.chain.of_tables else answers[None]
            decision = int(apply_rule(rule, stage, seen, count)[0])
        if decision == STOP:
            self.stop()
            return None
        return self.choose(decision)

    def _shown(self, mechanism: GaussianPrivacy, tables: UnionWorkload | None, answers: Answers) -> Answers:
        if not self.chain.of_tables:
            return answers.copy()
        if tables is None:
            return {}
        named = mechanism.answering(tables)
        return {name: named.recombine(answers, name) for name in tables.table_names}

    def _draw_answers(self, mechanism: GaussianPrivacy) -> Answers:
        """Return noisy answers: the one place where data are seen."""
        if self.chain.of_tables:
            return check_tables(measure=self._measure(mechanism, self._data, self._generator))
        count = len(mechanism.query_matrix)
        if not count:
            return np.zeros(0)
        answers = validate.finite(1, measure=self._measure(mechanism, self._data, self._generator))
        if len(answers) != count:
            raise InvalidInputError(f"measure must return {count} answers, one per query, got {len(answers)}")
        return answers

    def _known_after(self, stages: int) -> Any:
        return self.chain.stages[stages - 1].known if stages else self.chain.no_release

    @contextlib.contextmanager
    def _open(self, step: str) -> Iterator[None]:
        """Run a step of an open release: one thread at a time, in the process that began the release."""
        if os.getpid() != self._process:  # before the lock, which another thread may have locked at the fork
            raise ReleaseOrderError(
                f"cannot {step}: process {self._process} began this release, and it could go on there too; "
                f"begin another release in this process, whose cost adds up"
            )
        with self._lock:
            if self._finished:
                raise ReleaseOrderError(f"cannot {step}: {self._finished}, and nothing more may run")
            yield
