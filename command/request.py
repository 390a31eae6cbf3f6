"""Requests of the command line: the options that pose a problem, checked against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from dualmech import accounting, validate
from dualmech.command import inputs
from dualmech.command.options import Privacy, UsageError
from dualmech.crosscheck.families import POSED, Family
from dualmech.crosscheck.printing import REPORTED_DELTA, Terms, neighbours_name
from dualmech.errors import InvalidInputError
from dualmech.neighbours import ADD_REMOVE, NeighboursLike, Relation
from dualmech.problems.base import AnyProblem
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.protection import reachable
from dualmech.problems.reuse import ReuseFitness
from dualmech.problems.softmax import SoftmaxFitness
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.publishing.plans import PlanTerms
from dualmech.validate import Array
from dualmech.workloads.base import Workload, same_content

if TYPE_CHECKING:
    from dualmech.publishing.specification import Specification

MAX_CELLS = 2**12  # of a problem whose noise needs a matrix

LOCAL = ("local", "projection")
"""Problems of ``explain`` with local privacy, which has no δ."""


class Search(NamedTuple):
    """The arguments of `dualmech.crosscheck.capped`."""

    workload: Workload
    targets: Any
    caps: Any
    cost: float
    neighbours: NeighboursLike
    geometry: str


@dataclass(frozen=True, slots=True)
class Request:
    """The options of a command that pose a problem, as texts and numbers, before files are read.

    The workload, the specification and targets may also be objects; `specified` reads the file of a specification.
    Raises `UsageError` for options that exclude each other, need each other, or belong to another problem.
    """

    workload: str | Workload | Specification
    problem: str = "fitness"
    targets: str | Array | None = None
    moe: str | None = None
    after: str | None = None
    z: float | None = None
    weights: str | None = None
    design: str | None = None
    privacy: Privacy | None = None
    t1: float | None = None
    t2: float | None = None
    total_weight: float | None = None
    rho: Fraction | float | None = None
    cap: Sequence[str] | None = None
    epsilon: float | None = None
    delta: float | None = None
    neighbours: str | Relation | Array | None = None
    geometry: str = "auto"

    families: ClassVar[tuple[Family, ...]] = POSED

    def __post_init__(self) -> None:
        object.__setattr__(self, "cap", self.cap or None)
        if self.after is not None and self.problem == "fitness":
            object.__setattr__(self, "problem", "reuse")
        self.refuse_foreign(**{field.name: getattr(self, field.name) for field in fields(self)})
        if self.problem == "reuse" and self.after is None:
            raise UsageError("--problem reuse needs --after, the file of the earlier release")
        if self.targets is not None and self.moe is not None:
            raise UsageError("give either --targets (variances) or --moe (margins of error), not both")
        if self.rho is not None and self.epsilon is not None:
            raise UsageError("give either --rho or --epsilon, not both")
        if self.pure and (self.rho is not None or self.delta is not None):
            raise UsageError("--privacy pure has a budget --epsilon, no --rho and no --delta")
        if self.epsilon is not None and self.delta is None and not (self.pure or self.problem in LOCAL):
            raise UsageError("--epsilon needs --delta, the other half of (ε, δ)")

    def specified(self) -> Self:
        """Return the request with its specification read, and the options that change it moved into it.

        Other workloads than the file of a specification leave the request unchanged.

        The file's ρ and level are the defaults of the options.
        """
        workload = self.workload
        if isinstance(workload, str):
            read = inputs.read_specification(workload)
            if read is None:
                return self
            workload = read
        if isinstance(workload, Workload):
            return self
        if self.problem == "reuse" and workload.rho is not None:
            raise UsageError("--after minimises the total cost at the margins of all tables: leave out rho")
        use_options = self.rho is not None or self.epsilon is not None or not self.takes_budget
        rho = self.rho if use_options else workload.rho
        request = replace(self, workload=workload, rho=rho, z=workload.quantile if self.z is None else self.z)
        changed = (self.rho, self.epsilon, self.targets, self.moe, self.neighbours)
        if self.problem != "fitness" or not (request.searches or any(value is not None for value in changed)):
            return request
        return request._folded(workload)

    @property
    def specification(self) -> Specification | None:
        """The specification, or None if the request has none."""
        return None if isinstance(self.workload, str | Workload) else self.workload

    @property
    def takes_budget(self) -> bool:
        """Whether a budget ρ applies: the problem has this option, and privacy is not pure."""
        has_rho = any(family.name == self.problem and "rho" in family.options for family in self.families)
        return has_rho and not self.pure

    @property
    def searches(self) -> bool:
        """Whether hard limits at a given budget need a search; raises `UsageError` for --cap without a budget."""
        if self.cap and self.cost is None:
            raise UsageError("--cap needs --rho, or --epsilon with --delta: without them every target is a hard limit")
        hard = self.targets is None and self.moe is None
        caps = hard and self.specification is not None and self.specification.caps
        return bool((self.cap or caps) and self.cost is not None and self.problem == "fitness")

    def search(self) -> Search:
        """Read the files and return the search for the minimum factor under hard limits and a budget."""
        z, cost = validate.positive_number(z=self.terms.z), self.cost
        assert cost is not None
        workload, neighbours = self._data(matrix=self.geometry == "dense")
        if self.specification is not None:
            targets, caps = self.specification.targets, self.specification.caps
            return Search(workload, targets, caps, cost, neighbours, self.geometry)
        caps, targets = inputs.read_caps(self.cap or (), workload), self._option_targets(workload)
        if self.moe is not None:
            caps = accounting.variance_from_margin(caps, z)
        return Search(workload, targets, caps, cost, neighbours, self.geometry)

    def refuse_foreign(self, **options: object) -> None:
        """Raise `UsageError` for an option of other problems whose value is neither None nor False."""
        for name, value in options.items():
            owners = [family.name for family in self.families if name in family.options]
            if value is not None and value is not False and owners and self.problem not in owners:
                problems = " or ".join(filter(None, [", ".join(owners[:-1]), owners[-1]]))
                raise UsageError(f"--{name.replace('_', '-')} belongs to --problem {problems}, not to {self.problem}")

    @property
    def pure(self) -> bool:
        return self.privacy == Privacy.PURE

    @property
    def cost(self) -> float | None:
        """The budget as a squared privacy cost, or None; for pure privacy ε²/2, by which variances are divided."""
        if self.epsilon is not None and self.pure:
            # Laplace noise of privacy ε has the variance 2/ε².
            return validate.positive_number(epsilon=self.epsilon) ** 2 / 2
        if self.epsilon is not None and self.delta is not None:
            return accounting.squared_cost_from_rho(accounting.zcdp_rho(self.epsilon, self.delta))
        return None if self.rho is None else accounting.squared_cost_from_rho(self.rho)

    @property
    def terms(self) -> Terms:
        """The terms of reports; the default budget is a squared cost of 1, or ε = 1 for pure privacy."""
        default_cost = 0.5 if self.pure else 1.0
        return Terms(
            accounting.CENSUS_Z if self.z is None else self.z,
            REPORTED_DELTA if self.delta is None else self.delta,
            default_cost if self.cost is None else self.cost,
        )

    def plan_terms(self) -> PlanTerms:
        """Return the terms of a plan besides its problem."""
        rho = None if self._rho is None else str(self._rho)
        specification = self.specification if self.problem in ("fitness", "reuse") else None
        text = None if specification is None else specification.to_json()
        return PlanTerms(self.terms.z, self.delta, rho, self.epsilon if self.pure else None, text)

    @property
    def _rho(self) -> Fraction | None:
        """The exact budget ρ; None without a budget, or for Laplace noise."""
        if self.pure or self.cost is None:
            return None
        if self.epsilon is not None and self.delta is not None:
            return Fraction(accounting.zcdp_rho(self.epsilon, self.delta))
        return validate.exact_number(rho=self.rho)

    def _folded(self, specification: Specification) -> Self:
        workload, rule, targets = specification.workload, None, None
        if self.neighbours is not None and isinstance(neighbours := self._neighbours(), Relation):
            rule = str(neighbours)
        caps = _by_table(workload, inputs.read_caps(self.cap or (), workload))
        if self.targets is not None or self.moe is not None:
            targets = _by_table(workload, self._option_targets(workload))
            if self.moe is not None:
                caps = accounting.variance_from_margin(caps, self.terms.z) if caps else caps
        rho = None if self._rho is None else str(self._rho)
        changed = specification.changed(rho=rho, neighbours=rule, targets=targets, caps=caps)
        matrix = self.neighbours if rule is None else None
        return replace(self, workload=changed, targets=None, moe=None, cap=None, neighbours=matrix)

    def under(self, relation: Relation | Array | None, path: str) -> Request:
        """Return the request with the neighbours of an answer; None keeps the request's own.

        Raises `InvalidInputError` if the options name other neighbours.
        """
        neighbours = self._neighbours()
        if self.neighbours is not None and relation is not None and not same_content(neighbours, relation):
            raise InvalidInputError(
                f"neighbours must be {neighbours_name(relation)} as for the answer in {path}, or left out, got "
                f"{neighbours_name(neighbours)}"
            )
        return replace(self, neighbours=neighbours if relation is None else relation)

    def state(self, geometry: str | None = None) -> AnyProblem:
        """Read the files and return the problem, on the given geometry or the request's own.

        Raises `UsageError` if hard limits need a search for a factor; see `search`.
        """
        request = self.specified()
        if request.searches:
            raise UsageError("hard limits at a given privacy belong to solve: they need a search over problems")
        return request._problem(geometry or self.geometry)

    def _problem(self, geometry: str) -> AnyProblem:
        validate.positive_number(z=self.terms.z)  # `terms` also refuses an invalid budget
        if self.delta is not None:
            validate.probability(delta=self.delta)
        if self.problem == "variance":
            return self._total_variance(geometry)
        if self.problem == "weighting":
            return self._query_weighting()
        if self.problem == "softmax":
            return self._softmax()
        if self.problem == "reuse":
            return self._reuse()
        return self._fitness(geometry)

    def _fitness(self, geometry: str) -> FitnessForUse | PrivacyFirst:
        cost = self.cost
        workload, neighbours = self._data(matrix=geometry == "dense")
        targets = self._variances(workload)
        if cost is None:
            return FitnessForUse(workload, targets, neighbours=neighbours, geometry=geometry)
        return PrivacyFirst(workload, targets, cost, neighbours=neighbours, geometry=geometry)

    def _reuse(self) -> ReuseFitness:
        """Return the problem with the earlier mechanism, by default under its neighbours."""
        released, workload = inputs.mechanism_in(str(self.after)), self._read()
        has_neighbours = self.neighbours is not None or self.specification is not None
        neighbours = reachable(workload, self._neighbours()) if has_neighbours else None
        return ReuseFitness(workload, self._variances(workload), released, neighbours=neighbours)

    def _total_variance(self, geometry: str) -> TotalVariance:
        workload, neighbours = self._data(matrix=geometry == "dense")
        weights = inputs.read_numbers(self.weights or "1", "weights", workload)
        return TotalVariance(workload, weights, neighbours=neighbours, geometry=geometry)

    def _query_weighting(self) -> QueryWeighting:
        workload, neighbours = self._data(matrix=True)
        design = inputs.read_design("eigen" if self.design is None else self.design, workload)
        privacy = Privacy.PURE if self.pure else Privacy.APPROXIMATE
        return QueryWeighting(workload, design, privacy.value, neighbours=neighbours)

    def _softmax(self) -> SoftmaxFitness:
        if self.t1 is None:
            raise UsageError("--problem softmax needs --t1, the inverse temperature of its soft maxima")
        t2 = self.t1 if self.t2 is None else self.t2
        weight = 0.0 if self.total_weight is None else self.total_weight
        workload, neighbours = self._data(matrix=True)
        return SoftmaxFitness(workload, self._variances(workload), self.t1, t2, weight, neighbours=neighbours)

    def _data(self, matrix: bool = False) -> tuple[Workload, NeighboursLike]:
        """Return the workload and the neighbours; refuse a too large matrix for workloads with a domain."""
        workload = self._read()
        relation = reachable(workload, self._neighbours())
        needs_matrix = matrix or not isinstance(relation, Relation)
        if needs_matrix and workload.domain is not None and workload.shape[1] > MAX_CELLS:
            name = self.workload if isinstance(self.workload, str) else "workload"
            raise InvalidInputError(
                f"{name} has {workload.shape[1]} cells, at most {MAX_CELLS} are supported query by query: fitness and "
                f"variance, with neighbours by a rule, are solved by table"
            )
        return workload, relation

    def _read(self) -> Workload:
        if isinstance(self.workload, str):
            return inputs.read_workload(self.workload)
        return self.workload if isinstance(self.workload, Workload) else self.workload.workload

    def _neighbours(self) -> Relation | Array:
        if self.neighbours is None:
            return ADD_REMOVE if self.specification is None else self.specification.neighbours
        return inputs.read_neighbours(self.neighbours) if isinstance(self.neighbours, str) else self.neighbours

    def _variances(self, workload: Workload) -> Any:
        if self.specification is not None and self.targets is None and self.moe is None:
            return self.specification.targets | self.specification.caps
        return self._option_targets(workload)

    def _option_targets(self, workload: Workload) -> Any:
        if self.targets is not None and not isinstance(self.targets, str):
            return self.targets
        if self.moe is None:
            return inputs.read_numbers(self.targets or "1", "targets", workload)
        margins = inputs.read_numbers(self.moe, "moe", workload)
        return accounting.variance_from_margin(margins, self.terms.z)


def _by_table(workload: Workload, numbers: Any) -> dict[str, float]:
    """Return numbers by table name; a key may also be the number of a table's attributes."""
    tables: Any = workload.tabular()
    ways = {table.name: len(table.axes) for table in tables.product_tables}
    if isinstance(numbers, dict):
        return {
            name: numbers[name] if name in numbers else numbers[way]
            for name, way in ways.items()
            if {name, way} & {*numbers}
        }
    if np.size(numbers) not in (1, len(ways)):
        raise InvalidInputError(
            f"targets must be one for all or one for each of {len(ways)} tables, got {np.size(numbers)}"
        )
    return dict(zip(ways, np.broadcast_to(numbers, len(ways)).tolist(), strict=True))
