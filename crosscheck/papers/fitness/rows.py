"""Rows of the fitness-for-use paper's tables, solved: privacy costs, ratios, and seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dualmech import fast, reference, workloads
from dualmech.crosscheck.agreement import TOLERANCES, Agreement, Comparison, compare
from dualmech.crosscheck.papers.fitness import instances, published_runs, ratios
from dualmech.crosscheck.papers.fitness.cases import PrintedCase
from dualmech.crosscheck.papers.fitness.instances import FitnessInstance
from dualmech.crosscheck.papers.fitness.printed import CONVERGENCE, MECHANISMS, RatioTable
from dualmech.crosscheck.papers.fitness.published_runs import MOST_STEPS, PublishedRun
from dualmech.crosscheck.papers.fitness.ratios import SolvedRatios
from dualmech.crosscheck.papers.printed import Interval, is_rounding
from dualmech.crosscheck.papers.solving import certified_outcome, without_warnings
from dualmech.crosscheck.papers.verdicts import Evidence, Finding, InstanceVerdict, verdict
from dualmech.problems.fitness import FitnessForUse
from dualmech.solution import Solution

BACKENDS = ("CLARABEL", "SCS")

RIVALS = MECHANISMS[:-1]

WEIGHTS = {"IP": 3, "HM": 2}  # what a column's evidence weighs (`Evidence`); 1 for the others
AS_CODED = " as coded"  # what a verdict adds to the name of a mechanism with the ridge of the published code

SEEDS = {64: 5, 128: 5, 256: 3, 512: 2}
"""Number of random instances of the text's description, by number of cells; none above."""


@dataclass(frozen=True, slots=True)
class LayerAnswer:
    """One answer in a table: its certified interval and what it took."""

    layer: str
    interval: tuple[float, float]
    gap: float
    certified: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class OptimumRow:
    """One problem of a table: printed numbers, answers of all layers, and whether they agree."""

    case: PrintedCase
    size: int
    entries: tuple[LayerAnswer, ...]
    comparison: Comparison
    runs: tuple[PublishedRun, ...]  # SM-II, by basis and Hessian

    @property
    def outcome(self) -> Agreement:
        """Whether the layers' certified answers agree."""
        return self.comparison.outcome

    @property
    def gap(self) -> float:
        """The widest certified gap."""
        return max(entry.gap for entry in self.entries)

    def confirmed(self, column: str) -> bool:
        """Whether a printed number rounds something in the interval that all answers share."""
        return self.case.confirms(column, self.optimum)

    @property
    def optimum(self) -> Interval:
        """The interval that all answers share."""
        return self.comparison.lower_bound, self.comparison.objective


def solve_case(case: PrintedCase, limit: float) -> OptimumRow:
    """Solve one case with every backend of the reference layer, with the fast layer, and by SM-II in every basis.

    A run of SM-II that does not end by its own rule is stopped after `limit` seconds.
    """
    problem = case.problem()
    answers: dict[str, Solution] = {}
    with without_warnings():
        for backend in BACKENDS:
            answers[backend] = reference.solve(problem, backend=backend, tol=TOLERANCES[backend])
        answers["fast"] = fast.solve(problem, tol=TOLERANCES["fast"])
    runs = tuple(
        published_runs.run(problem.workload, problem.targets, basis, limit, hessian=hessian)
        for basis in published_runs.BASES
        for hessian in ("exact", "printed")
    )
    return OptimumRow(
        case, problem.workload.shape[1], _entries(answers), compare(list(answers.values())), runs
    )


def _entries(answers: dict[str, Solution]) -> tuple[LayerAnswer, ...]:
    return tuple(
        LayerAnswer(
            name,
            answer.certificate.interval,
            answer.gap,
            answer.certificate.certifies(answer.tol),
            answer.seconds,
        )
        for name, answer in answers.items()
    )


@dataclass(frozen=True, slots=True)
class RaceRow:
    """A row of Table 3: what gradient descent, SM-II and the certified dual solver reach on d prefixes, and when.

    The first two end by the paper's own rule, which proves nothing, or at `limit` seconds.
    """

    size: int
    printed: tuple[str, ...]
    limit: float
    entries: tuple[LayerAnswer, ...]

    @property
    def outcome(self) -> Agreement:
        """Whether the certified intervals meet, and the dual solver's is as narrow as promised."""
        if max(entry.interval[0] for entry in self.entries) > min(
            entry.interval[1] for entry in self.entries
        ):
            return Agreement.DISAGREE
        return certified_outcome(self.entries[-1].certified)

    @property
    def gap(self) -> float:
        """Gap of the dual solver."""
        return self.entries[-1].gap


def race(size: int, limit: float) -> RaceRow:
    """Run the paper's two optimisers of Problem 4, with its published settings, and the dual solver."""
    problem = FitnessForUse(workloads.prefix(size), targets=1.0)
    answers = {}
    with without_warnings():
        for method in ("softmax_gradient", "softmax_newton"):
            answers[method] = fast.solve(problem, method=method, time_limit=limit, max_iterations=MOST_STEPS)
        answers["dual"] = fast.solve(problem, tol=TOLERANCES["fast"])
    return RaceRow(size, CONVERGENCE[size], limit, _entries(answers))


@dataclass(frozen=True, slots=True)
class RatioRow:
    """A row of Tables 4 to 11: printed ratios, the instances that they may be of, and what follows."""

    table: RatioTable
    row: int
    printed: dict[str, str]  # By mechanism: the row as printed
    # Definite instances, solved, and the verdict on each: an instance that fewer columns fit than fit
    # another reading of the same row is none that the row is held against
    readings: tuple[SolvedRatios, ...]
    random: tuple[
        SolvedRatios, ...
    ]  # Random instances as the text describes them; empty where nothing is random
    # SM-II as its code has it, by reading; None where it would take too long
    runs: tuple[PublishedRun | None, ...]
    verdicts: tuple[InstanceVerdict, ...] = field(init=False)

    def __post_init__(self) -> None:
        found = [verdict(evidence(reading, self.printed), reading.cost) for reading in self.readings]
        most = max(each.sources for each in found)
        object.__setattr__(
            self, "verdicts", tuple(each if each.sources == most else _as_differing(each) for each in found)
        )

    @property
    def outcome(self) -> Agreement:
        """Whether every optimum was certified; a verdict on the paper does not enter."""
        certified = all(reading.certified for reading in self.readings + self.random)
        return certified_outcome(certified)

    @property
    def gap(self) -> float:
        """The widest certified gap of an optimum of fitness for use."""
        return max(reading.gap for reading in self.readings + self.random)

    def spread(self, mechanism: str) -> Interval:
        """Return the least and the largest ratio of a mechanism over the random instances."""
        seen = [reading.ratio(mechanism) for reading in self.random]
        return min(low for low, _ in seen), max(high for _, high in seen)

    def within_spread(self, mechanism: str) -> bool:
        """Whether a printed ratio can be a rounding of one in the spread."""
        return is_rounding(self.printed[mechanism], self.spread(mechanism))


def _as_differing(found: InstanceVerdict) -> InstanceVerdict:
    return InstanceVerdict(
        Finding.DIFFERS, found.implied, found.excess, found.fitting, found.others, found.sources
    )


def evidence(reading: SolvedRatios, printed: dict[str, str]) -> list[Evidence]:
    """Return what each printed ratio implies on one instance; CA as optimal, and as it was coded."""
    found = []
    for name in RIVALS:
        if reading.uniform and name != "CA" and name in ratios.CA_WEIGHTINGS:
            continue  # equal targets: a copy of CA, no evidence of its own
        weight = WEIGHTS.get(name, 1)
        found.append(Evidence(name, name, reading.values[name], printed[name], weight))
        if name in reading.coded:
            found.append(Evidence(name + AS_CODED, name, reading.coded[name], printed[name], weight))
    return found


def solve_row(
    table: RatioTable, row: int, seeds: int | None = None, runs: tuple[float, float] = (0, 0.0)
) -> RatioRow:
    """Solve a row of a ratio table on every reading of it, and on `seeds` random instances (by default `SEEDS`).

    SM-II is run on every reading of no more cells than the first of `runs`, for the seconds that are its second.

    Examples
    --------
    >>> from dualmech.crosscheck.papers.fitness.printed import RATIO_TABLES
    >>> table_10 = RATIO_TABLES[6]
    >>> found = solve_row(table_10, 4).verdicts[0]
    >>> found.finding.name, found.fitting
    ('ABOVE', ('IP', 'HM', 'CA as coded'))
    """
    number, drawn = table.number, 0
    if number in instances.RANDOM_TABLES:
        drawn = SEEDS.get(row, 0) if seeds is None else seeds
    readings = instances.readings(number, row)
    return RatioRow(
        table,
        row,
        table.printed(row),
        tuple(ratios.solve(instance) for instance in readings),
        tuple(
            ratios.solve(instances.random_instance(number, row, seed), variants=False)
            for seed in range(drawn)
        ),
        tuple(_published_runs(number, readings, *runs)),
    )


def _published_runs(
    number: int, readings: Sequence[FitnessInstance], most: float, limit: float
) -> Iterator[PublishedRun | None]:
    """Yield SM-II's run on each reading, as its published code has it, in the basis that the text states."""
    for workload, targets in (reading.build() for reading in readings):
        basis = published_runs.STATED[number]
        small = workload.shape[1] <= most
        yield published_runs.run(workload, targets, basis, limit, as_coded=True) if small else None
