"""What a user asked for on the command line: the options that pose a problem, checked against each other."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from dualmech import accounting, validate
from dualmech.crosscheck.command import inputs, options, table_inputs
from dualmech.crosscheck.command.options import Family, Privacy
from dualmech.crosscheck.command.table_inputs import PerTable, Tables
from dualmech.crosscheck.command.wording import Judged, Posed, Terms
from dualmech.errors import DualmechError, InvalidInputError
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.marginals import MarginalFitness, MarginalVariance
from dualmech.problems.softmax import SoftmaxFitness
from dualmech.problems.unions import UnionFitness, UnionVariance
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.unions import UnionWorkload

REPORTED_DELTA = 1e-9
"""δ at which ε is reported where none is named."""

BELONGS = {
    "targets": (Family.FITNESS, Family.SOFTMAX),
    "moe": (Family.FITNESS, Family.SOFTMAX),
    "weights": (Family.VARIANCE,),
    "design": (Family.WEIGHTING,),
    "privacy": (Family.WEIGHTING,),
    "t1": (Family.SOFTMAX,),
    "t2": (Family.SOFTMAX,),
    "total_weight": (Family.SOFTMAX,),
    "rho": (Family.FITNESS, Family.VARIANCE, Family.WEIGHTING),
    "epsilon": (Family.FITNESS, Family.VARIANCE, Family.WEIGHTING),
    "refine": (Family.FITNESS,),
    "covariance": (Family.FITNESS, Family.VARIANCE, Family.SOFTMAX),
    "strategy": (Family.FITNESS, Family.VARIANCE, Family.SOFTMAX),
    "query_weights": (Family.WEIGHTING,),
}
"""The problems that know an option; those that are not listed belong to all."""


class UsageError(DualmechError):
    """Options that do not go together, whatever their values."""


@dataclass(frozen=True, slots=True)
class Request:
    """The options of a command that pose a problem, as texts and numbers, before anything is read.

    Raises
    ------
    UsageError
        Options that exclude each other, need each other, or belong to another problem.
    """

    workload: options.Workload
    family: options.Problem = Family.FITNESS
    targets: options.Targets = None
    moe: options.Margins = None
    z: options.Quantile = 1.645
    weights: options.Weights = None
    design: options.Design = None
    privacy: options.Kind = None
    t1: options.CostSharpness = None
    t2: options.VarianceSharpness = None
    total_weight: options.TotalWeight = None
    rho: options.Rho = None
    epsilon: options.Epsilon = None
    delta: options.Delta = None
    neighbours: options.Neighbours = "add-remove"

    def __post_init__(self) -> None:
        self.refuse_foreign(**{each.name: getattr(self, each.name) for each in fields(self)})
        if self.targets is not None and self.moe is not None:
            raise UsageError("give either --targets (variances) or --moe (margins of error), not both")
        if self.rho is not None and self.epsilon is not None:
            raise UsageError("give either --rho or --epsilon, not both")
        if self.pure and (self.rho is not None or self.delta is not None):
            raise UsageError("--privacy pure is spent by --epsilon alone; it has no --rho and no --delta")
        if self.epsilon is not None and self.delta is None and not self.pure:
            raise UsageError("--epsilon needs --delta, the other half of (ε, δ)")

    def refuse_foreign(self, **given: object) -> None:
        """Raise `UsageError` if an option was given, neither None nor False, that belongs to other problems."""
        for name, value in given.items():
            owners = BELONGS.get(name, tuple(Family))
            if value is not None and value is not False and self.family not in owners:
                listed = " or ".join(filter(None, [", ".join(owners[:-1]), owners[-1]]))
                raise UsageError(
                    f"--{name.replace('_', '-')} belongs to --problem {listed}, not to {self.family}"
                )

    @property
    def pure(self) -> bool:
        """Whether the noise is Laplace noise."""
        return self.privacy is Privacy.PURE

    @property
    def cost(self) -> float | None:
        """Squared privacy cost to spend, if any was named; for pure privacy, what divides a variance just so."""
        if self.epsilon is not None and self.pure:
            # Laplace noise of privacy ε has the variance 2/ε².
            return validate.positive_number(epsilon=self.epsilon) ** 2 / 2
        if self.epsilon is not None and self.delta is not None:
            return accounting.privacy_cost(self.epsilon, self.delta) ** 2
        return None if self.rho is None else accounting.squared_cost_from_rho(self.rho)

    @property
    def terms(self) -> Terms:
        """How the answer is to be reported; what is not named is spent at squared cost 1, or at ε = 1 if pure."""
        spent = 0.5 if self.pure else 1.0
        return Terms(
            self.z,
            REPORTED_DELTA if self.delta is None else self.delta,
            spent if self.cost is None else self.cost,
        )

    def problem(self) -> Posed:
        """Read everything and state the problem: of tables, where the workload has any, one number for each."""
        self._checked_cost()
        by_table = self.family in (Family.FITNESS, Family.VARIANCE) and self.neighbours == "add-remove"
        tables = table_inputs.tables_of(self.workload) if by_table else None
        return self.of_queries() if tables is None else self._of_tables(tables)

    def of_queries(self) -> Judged:
        """Read everything and state the problem, with a number for each query."""
        cost = self._checked_cost()
        if self.family is Family.VARIANCE:
            return self._total_variance()
        if self.family is Family.WEIGHTING:
            return self._query_weighting()
        if self.family is Family.SOFTMAX:
            return self._softmax()
        if cost is None:
            return self.accuracy_first()
        targets, (workload, changes) = self._variances(), self._data()
        return PrivacyFirst(workload, targets, cost, neighbours=changes)

    def accuracy_first(self) -> FitnessForUse:
        """Read workload, targets and neighbours, and state Problem 1."""
        targets, (workload, changes) = self._variances(), self._data()
        return FitnessForUse(workload, targets, neighbours=changes)

    def _checked_cost(self) -> float | None:
        validate.positive_number(z=self.z)
        if self.delta is not None:
            validate.probability(delta=self.delta)
        return self.cost

    def _of_tables(self, tables: Tables) -> MarginalFitness | MarginalVariance | UnionFitness | UnionVariance:
        if self.family is Family.VARIANCE:
            given = "1" if self.weights is None else self.weights
            weights = table_inputs.read_per_table(given, "weights", tables)
            if isinstance(tables, MarginalWorkload):
                return MarginalVariance(tables, weights)
            return UnionVariance(tables, weights)
        targets = self._table_targets(tables)
        if isinstance(tables, MarginalWorkload):
            return MarginalFitness(tables, targets)
        return UnionFitness(tables, targets)

    def _table_targets(self, tables: Tables) -> PerTable:
        if self.moe is None:
            return table_inputs.read_per_table(
                "1" if self.targets is None else self.targets, "targets", tables
            )
        margins = table_inputs.read_per_table(self.moe, "moe", tables)
        if isinstance(margins, dict):
            return {
                key: float(accounting.variance_from_margin(each, self.z)) for key, each in margins.items()
            }
        return accounting.variance_from_margin(margins, self.z)

    def _total_variance(self) -> TotalVariance:
        weights = inputs.read_numbers("1" if self.weights is None else self.weights, "weights")
        workload, changes = self._data()
        return TotalVariance(workload, weights, neighbours=changes)

    def _query_weighting(self) -> QueryWeighting:
        workload, changes = self._data()
        design = inputs.read_design("eigen" if self.design is None else self.design, workload)
        privacy = Privacy.PURE if self.pure else Privacy.APPROXIMATE
        return QueryWeighting(workload, design, privacy.value, neighbours=changes)

    def _softmax(self) -> SoftmaxFitness:
        if self.t1 is None:
            raise UsageError("--problem softmax needs --t1, the sharpness of its soft maxima")
        t2 = self.t1 if self.t2 is None else self.t2
        weight = 0.0 if self.total_weight is None else self.total_weight
        targets, (workload, changes) = self._variances(), self._data()
        return SoftmaxFitness(workload, targets, self.t1, t2, weight, neighbours=changes)

    def _data(self) -> tuple[Workload, Matrix | None]:
        workload = inputs.read_workload(self.workload)
        if isinstance(workload, UnionWorkload) and workload.shape[1] > table_inputs.LARGE:
            raise InvalidInputError(
                f"{self.workload} has {workload.shape[1]} cells, more than are taken query by query (limit "
                f"{table_inputs.LARGE}): fitness and variance, for a record added or removed, are solved by table"
            )
        return workload, inputs.read_neighbours(self.neighbours, workload.shape[1])

    def _variances(self) -> Array | float:
        if self.moe is not None:
            return accounting.variance_from_margin(inputs.read_numbers(self.moe, "moe"), self.z)
        return inputs.read_numbers("1" if self.targets is None else self.targets, "targets")


def requested(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Request` in the place of its first parameter, which is one.

    Typer reads options off a signature, where every command would have to repeat them.
    """
    posing, own = _parameters(Request), _parameters(command)[1:]

    def with_options(**given: Any) -> None:
        asked = {each.name: given.pop(each.name) for each in posing}
        command(Request(**asked), **given)

    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__signature__ = inspect.Signature([*posing, *own])  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in (*posing, *own)}
    return with_options


def _parameters(described: Callable[..., Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(described, include_extras=True)
    return [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[each.name])
        for each in inspect.signature(described).parameters.values()
    ]
