"""Adaptive releases: run what all branches share, look, and only then choose; simulated, or with exact noise."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, SupportsIndex

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
from dualmech.display import decimal_above
from dualmech.errors import InputTypeError, InvalidInputError, ReleaseOrderError
from dualmech.mechanisms.decomposition import residual
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.mechanisms.tables import check_tables, maximal_sets
from dualmech.neighbours import canonical
from dualmech.publishing.dense import ACCURACY, DrawnRows
from dualmech.publishing.drawing import Drawn, counted_vector, discrete_gaussian, given_counts, require_sampler
from dualmech.publishing.publication import (
    Publication,
    columns_of,
    require_no_seed,
    require_within,
)
from dualmech.publishing.records import Records, count
from dualmech.publishing.release import require_answered
from dualmech.publishing.tables import DrawnTables
from dualmech.publishing.unit import PrivacyUnit
from dualmech.threads import blas_threads
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.marginal import MarginalWorkload
from dualmech.workloads.unions import UnionWorkload

KEPT_BACK = 4 * ACCURACY  # share of a stage's information that is kept back for each later step


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


class ExactAdaptiveRelease(AdaptiveRelease):
    """An `AdaptiveRelease` whose noise is exact; `dualmech.release_chain` makes it.

    Attributes
    ----------
    rho : Fraction
        The ρ of zero-concentrated differential privacy of the whole procedure, exactly: the largest over its branches,
        known before anything has run.
    """

    __slots__ = ("_declared", "_drawn", "domain", "rho")

    rho: Fraction
    domain: Domain | None

    def __init__(self, chain: Chain, data: object, drawn: DrawnChain, domain: Domain | None, declared: Records) -> None:
        super().__init__(chain, data, measure=drawn)
        self.rho, self.domain, self._drawn = drawn.squared_privacy_cost / 2, domain, drawn
        self._declared = declared  # of the columns of the records

    def __repr__(self) -> str:
        chosen = "" if self.chosen is None else f", mechanism {self.chosen} chosen"
        return f"ExactAdaptiveRelease({len(self._drawn.ran)} steps run{chosen}, rho={decimal_above(self.rho)})"

    def publication(self, workload: Workload | None = None) -> Publication:
        """Return the answers so far as tables, with margins of error, names, CSV files and a statement.

        All that has run counts, the residual of a mechanism that was chosen too. The ρ is of the whole procedure.
        Raises `ReleaseOrderError` before anything has run; `InvalidInputError` or `InputTypeError` for no workload
        where mechanisms are on cells, a workload that is not answered.

        Parameters
        ----------
        workload : Workload, optional
            What to publish. Of mechanisms of tables by default those of the mechanism that was chosen; before that the
            largest that are known, of all that were asked for and of parts of them.
        """
        if not self._drawn.ran:
            raise ReleaseOrderError("advance before anything is published: no stage has run")
        stated = workload if workload is not None else self._default_workload()
        gathered = CombinedRelease.of(self._drawn, self.chain.of_tables, check_workload(stated))
        require_answered(gathered, stated)
        publication = Publication(gathered, gathered.measured, stated)
        publication._declared = self._declared
        return publication

    def _shown(self, mechanism: GaussianPrivacy, tables: UnionWorkload | None, answers: Answers) -> Answers:
        """Return the best estimates, by the noise that was drawn and not the one that was planned; they are consistent.

        No noise is added where a mechanism's own rows would contradict one another.
        """
        rows = None if self.chain.of_tables else mechanism.query_matrix
        shown = tables if rows is None else Workload(rows) if len(rows) else None
        if shown is None:
            return super()._shown(mechanism, tables, answers)
        gathered = CombinedRelease.of(self._drawn, self.chain.of_tables, shown)
        if tables is None:
            return gathered.estimate(gathered.measured, shown)
        return {name: gathered.estimate(gathered.measured, name) for name in tables.table_names}

    def _default_workload(self) -> Workload:
        if not self.chain.of_tables:
            raise InputTypeError("workload must say what to publish: mechanisms on cells do not know it")
        chosen = self.chosen
        workload = known_tables(self.known) if chosen is None else self.chain.workload_of(chosen)
        if workload is None:
            raise InvalidInputError("workload must say what to publish: no table is known as a whole")
        return workload


@dataclass(frozen=True, slots=True)
class CombinedRelease:
    """All that has been drawn so far, as a publication reads it: the mechanism that it amounts to, and estimates."""

    mechanism: GaussianPrivacy
    measured: Any
    squared_privacy_cost: Fraction
    by_table: bool

    adaptive: ClassVar[bool] = True

    @classmethod
    def of(cls, drawn: DrawnChain, by_table: bool, workload: Workload) -> CombinedRelease:
        """Return what was drawn as it answers a workload."""
        together, measured = drawn.together()
        tabular = workload.tabular() if by_table else None
        if isinstance(tabular, UnionWorkload):
            together = together.answering(tabular)
        return cls(together, measured, drawn.squared_privacy_cost, by_table)

    def estimate(self, measured: object, queries: object) -> Array:
        """Return unbiased estimates of a table or a workload."""
        if self.by_table:
            return np.asarray(self.mechanism.recombine(measured, queries))
        return np.asarray(self.mechanism.estimates(queries, measured))


@blas_threads()
def release_chain(
    chain: Chain,
    records: object,
    *,
    domain: Domain | None = None,
    rho: float | str | Fraction | None = None,
    allow_empty: bool = False,
    **refused: object,
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
        Made by `dualmech.fast.common` or `dualmech.reference.common`.
    records : path of a CSV file, DataFrame, or counts
        Counts are a data vector (d,), or tables as `dualmech.records.count` returns them where the mechanisms are of
        tables.
    domain : Domain, optional
        What the cells of mechanisms on matrices are, such as a `dualmech.Schema`; needed to count records. Mechanisms
        of tables know theirs.
    rho : number or text such as "1/2", optional
        The most that the release may cost on any branch; 100 unless it says more.
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

    Of tables, with the names of a schema:

    >>> people = dm.Schema({"age": range(17, 91), "sex": ["female", "male"], "region": ["north", "south"]})
    >>> by = [dm.workloads.marginals(people, sets=[("age", other)]) for other in ("sex", "region")]
    >>> chain = fast.chain([fast.solve(dm.FitnessForUse(each, 9.0)).mechanism for each in by])
    >>> counts = dm.records.count([[3, 0, 1]] * 50, dm.workloads.marginals([74, 2, 2], ways=3))
    >>> release = dm.release_chain(chain, counts, rho="1/10")
    >>> release.advance().keys(), release.choose(1).values.keys()
    (dict_keys(['age']), dict_keys(['age x region']))
    >>> release.publication().rows("age x region")[0]
    ('age', 'region', 'estimate', 'margin', 'low', 'high')
    """
    require_no_seed(refused)
    measure = DrawnChain(validate.instance(Chain, chain=chain))
    require_within(measure.squared_privacy_cost, rho)
    require_sampler()
    if domain is not None:
        validate.instance(Domain, domain=domain)
    declared, known = columns_of(records), chain.no_release.domain if chain.of_tables else domain
    PrivacyUnit.of(canonical(chain.no_release.neighbours, known), declared, known, None)  # refused before any work
    data = measure.read(records, domain, validate.boolean(allow_empty=allow_empty))
    return ExactAdaptiveRelease(chain, data, measure, domain, declared)


class DrawnChain(Uncopied):
    """All stages and residuals of a chain as they are drawn: what an adaptive release measures with.

    Attributes
    ----------
    squared_privacy_cost : Fraction
        The largest over all branches.
    ran : list of pairs
        Mechanisms with the noise that was drawn, and what they measured, in the order in which they ran.
    """

    __slots__ = ("_chain", "_drawn", "_together", "ran", "squared_privacy_cost")

    squared_privacy_cost: Fraction
    ran: list[tuple[Any, Any]]
    _together: tuple[Any, Any] | None

    def __init__(self, chain: Chain) -> None:
        self._chain, self.ran, self._together = chain, [], None
        self._drawn: dict[int, Drawn] = {}  # by the identity of the planned mechanism, which the chain keeps
        most, known, cost = Fraction(0), chain.no_release, Fraction(0)
        for left, stage in zip(range(len(chain.stages), 0, -1), chain.stages, strict=True):
            step = self._draw_rest(stage.increment, stage.known.scaled(1 + left * KEPT_BACK), known)
            known, cost = known.compose(step.mechanism), cost + step.costs
            for parts in stage.decompositions:
                most = max(most, max(cost + self._draw_rest(parts.residual, parts.target, known).costs))
        self.squared_privacy_cost = most

    def _draw_rest(self, planned: object, whole: object, known: object) -> Any:
        """Put on a grid what is left of a mechanism beyond what is drawn before, in the place of a planned mechanism.

        Of a stage a little less is drawn than was planned, so that of what follows a little is left everywhere, and
        there are whole rows for it: those of the whole mechanism. The planned residual asks nothing where the planned
        part tells all, which is on no whole rows in general.
        """
        rest = residual(whole, known)
        drawn = DrawnTables(rest) if self._chain.of_tables else DrawnRows(rest)
        self._drawn[id(planned)] = drawn
        return drawn

    def read(self, records: Any, domain: Domain | None, allow_empty: bool) -> Any:
        """Return the counts that any branch needs."""
        if not self._chain.of_tables:
            cells = self._chain.cells
            if domain is not None and validate.instance(Domain, domain=domain).cells != cells:
                raise InputTypeError(f"domain must have {cells} cells, as the chain, got {domain.cells}")
            x = counted_vector(records, domain, allow_empty)
            return validate.vector(cells, "cell", records=x)
        known = self._chain.no_release.domain
        if domain is not None and domain != known:
            raise InvalidInputError("domain must be that of the chain's tables, which know it: leave it out")
        if (counts := given_counts(records, known)) is not None:
            return counts
        needed = [parts.target.needed_tables.axes for parts in self._chain.stages[0].decompositions]
        every = maximal_sets({axes for group in needed for axes in group})
        return count(records, MarginalWorkload(known, every), allow_empty=allow_empty)

    def together(self) -> tuple[Any, Any]:
        """Return what has run as one mechanism, and its answers, put together by their accuracy."""
        if self._together is None:
            (first, *rest), answers = [drawn for drawn, _ in self.ran], [measured for _, measured in self.ran]
            if self._chain.of_tables:
                known = first.compose(*rest)
                self._together = known, known.recreate(self.ran)
            else:
                self._together = first.stack(*rest), np.concatenate(answers)
        return self._together

    def __call__(self, mechanism: GaussianPrivacy, data: Any, rng: np.random.Generator) -> Answers:
        """Return noisy answers to a mechanism's own rows, or what it measures of tables; the generator is not used."""
        drawn = self._drawn[id(mechanism)]
        measured = drawn.draw(data, discrete_gaussian)
        self.ran.append((drawn.mechanism, measured))
        self._together = None
        if self._chain.of_tables:
            return measured
        return drawn.estimate(measured, Workload(mechanism.query_matrix))
