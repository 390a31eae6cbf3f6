"""What problems about Gaussian noise share, whatever their geometry: comparison, mechanism, and how they are shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import numpy as np

from dualmech import linalg, validate
from dualmech.certificate import FEASIBLE, Certificate
from dualmech.display import Displayed, brief
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.base import KINDS, Geometry, Index, scale_to_limit
from dualmech.geometry.moves import LARGEST_DENSE
from dualmech.geometry.words import costs_over
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.neighbours import Relation
from dualmech.threads import blas_threads
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload, same_content
from dualmech.workloads.domain import count_text
from dualmech.workloads.numbers import ByFactor

if TYPE_CHECKING:
    from dualmech.geometry.dense import Dense

Dual = TypeVar("Dual", covariant=True)
Made = TypeVar("Made", covariant=True)

AnyProblem: TypeAlias = Any
"""A problem of any family: to type checkers no more than a name."""


def _undefined(method: str) -> Callable[..., Any]:
    """Return a method that raises until a family defines its own."""

    def undefined(problem: Problem, *arguments: object, **options: object) -> Any:
        raise NotImplementedError(f"{type(problem).__name__} must define {method}")

    return undefined


LIMITED = "_limited_threads"  # marks a method that runs in as many threads as solves take


class Problem(Displayed, Generic[Dual, Made]):
    """What every problem offers besides its judge; type checkers know its dual weights and its mechanism."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """State and judge every problem in as many threads as solves take: all cores would slow down their users."""
        super().__init_subclass__(**options)
        for name in ("__init__", "certify"):
            function = vars(cls).get(name)
            if function is not None and not hasattr(function, LIMITED):
                limited_function = blas_threads()(function)
                setattr(limited_function, LIMITED, True)
                setattr(cls, name, limited_function)

    arguments: ClassVar[tuple[str, ...]]
    """The parameters that state it, by name."""

    optional_arguments: ClassVar[tuple[str, ...]] = ()
    """Arguments that a file of a solution may lack, because they are None, or because earlier files had no such one."""

    dual_type: ClassVar[Callable[..., Any]]
    """The class of its dual weights; a file of a solution may hold weights of this class."""

    certify: ClassVar[Callable[..., Certificate]] = _undefined("certify(primal, dual): the judge")
    """The judge: what a primal point and dual weights prove."""

    feasible: ClassVar[Callable[..., Any]] = _undefined("feasible(primal): the point scaled to its limits")
    """Makes a point feasible: by scaling it to its limits."""

    mechanism: ClassVar[Callable[..., Any]] = _undefined("mechanism(primal): the mechanism of a feasible point")
    """Makes the mechanism of a feasible point."""

    prices: ClassVar[Callable[..., Array]] = _undefined("prices(dual): the shadow prices, of sum 1")
    """Returns the shadow prices of dual weights, of sum 1."""

    binding: ClassVar[Callable[..., Index]] = _undefined("binding(primal, slack): the neighbours of largest cost")
    """Returns the indices of the neighbours whose cost is the largest, within a relative slack."""

    price_words: ClassVar[tuple[str, str] | None] = None
    """What a price says in words: the change of a target or a weight, and its effect."""

    def argument_values(self) -> dict[str, object]:
        """Return the arguments that make the same problem again."""
        return {name: getattr(self, name) for name in self.arguments}

    def stored(self, primal: object) -> object:
        """Return a primal point as a file holds it; `restored` takes it back."""
        return primal

    def restored(self, primal: object) -> object:
        """Return a primal point from what a file holds."""
        return primal

    def stored_dual(self, dual: Any) -> object:
        """Return dual weights as a file holds them; `restored_dual` takes them back."""
        return dual

    def restored_dual(self, dual: Any) -> object:
        """Return dual weights from what a file holds."""
        return dual

    def as_primal(self, answer: object) -> Any:
        """Return a given answer as a primal point; mechanisms are refused, unless the problem reads them."""
        if hasattr(answer, "squared_privacy_cost"):
            raise InvalidInputError(f"a {type(self).__name__} is judged by its own points, not by mechanisms")
        return answer

    def as_dual(self, dual: object) -> Any:
        """Return given dual weights, an object of their class, the arrays of one in a tuple, or its only array.

        Raises `InputTypeError` for another number of arrays; what they hold is checked where they are judged.
        """
        kind: Any = self.dual_type
        if isinstance(dual, kind):
            return dual
        parts = dual if isinstance(dual, tuple) else (dual,)
        try:
            return kind(*(np.asarray(part, float) if isinstance(part, list) else part for part in parts))
        except (TypeError, ValueError) as error:
            names = ", ".join(field.name for field in fields(kind))
            raise InputTypeError(f"dual must be a {kind.__name__} or a tuple of its arrays ({names})") from error

    def phase_prices(self, dual: object) -> Array:
        """Return what each part of each phase of several epochs counts in the bound; refused for other neighbours."""
        raise InvalidInputError(f"phases are of geometry 'epochs', got {self.headline}")

    def loose(self, primal: Any, slack: float) -> Index:
        """Return no query: none has a target of its own that it could fall short of."""
        validate.nonnegative_number(slack=slack)
        return np.zeros(0, dtype=np.intp)

    def exceeded(self, primal: Any) -> tuple[str, ...]:
        """Say which constraints a point exceeds most, in words; none where it is feasible, or has no words for them."""
        return ()

    def in_numbers(self) -> dict[str, object]:
        """Return the problem's data in numbers alone, as proof files have it; refused where no such proof is known."""
        raise InvalidInputError(f"no proof in whole numbers is known of a {type(self).__name__}")

    def same_as(self, other: object) -> bool:
        """Whether another problem asks the same."""
        if self is other:
            return True
        return type(self) is type(other) and all(
            same_content(getattr(self, name), getattr(other, name)) for name in self.arguments
        )

    @property
    def objective_name(self) -> str:
        """The name of the objective in reports, in words."""
        return "objective"

    @property
    def headline(self) -> str:
        """What is asked, in a few words: the problem, and how many queries and cells."""
        workload = getattr(self, "workload", None)
        size = "" if workload is None else " " + " × ".join(count_text(count, 6) for count in workload.shape)
        return f"{type(self).__name__}{size}"

    def _facts(self) -> dict[str, object]:
        return {name.replace("_", " "): getattr(self, name) for name in self.arguments}

    def __eq__(self, other: object) -> bool:
        """Whether another problem asks the same, as `same_as` says it."""
        return self.same_as(other) if isinstance(other, Problem) else NotImplemented

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        shown = (f"{name}={brief(value)}" for name, value in self._facts().items() if name != "workload")
        arguments = [repr(workload)] if (workload := getattr(self, "workload", None)) is not None else []
        return f"{type(self).__name__}({', '.join([*arguments, *shown])})"


class OnGeometry(Problem[Dual, GaussianPrivacy]):
    """A workload with numbers, on a geometry; `numbers` names the attribute that holds them."""

    __slots__ = ()

    workload: Workload
    geometry: Any  # a Geometry, of which a name says which one
    numbers: ClassVar[str]
    sums_variances: ClassVar[bool] = False  # whether variances count by their given weights; else each has a target

    @property
    def row_targets(self) -> Array:
        """The target of each query of the geometry, or on blocks of each orbit of queries; or 1 over its weight."""
        targets: Array = getattr(self, self.numbers)
        return targets[self.geometry.tables] if self.geometry.name == "blocks" else targets

    @property
    def row_weights(self) -> Array:
        """The squared factor on each query of the geometry, or orbit: 1 over its target, or its weight."""
        return 1 / self.row_targets

    @property
    def basis(self) -> Array:
        """B (k, d), on whose answers a dense geometry puts the noise."""
        return self._matrix().basis

    @property
    def neighbours(self) -> Matrix | None:
        """U (d, s), differences of neighbouring data sets up to sign; None for a record added or removed."""
        return getattr(self.geometry, "neighbours", None)

    @property
    def dense(self) -> Dense:
        """The geometry, where it is dense, or the matrix of a stream; refused by name where it is another."""
        return self._matrix(several_parts=False)

    def _matrix(self, several_parts: bool = True) -> Dense:
        """Return the geometry on whose rows the noise stands; refuse one without, or persons of several parts."""
        matrix: Dense | None = getattr(self.geometry, "matrix", None)
        if matrix is None or (self.geometry.name == "epochs" and not several_parts):
            raise InvalidInputError(
                f"problem must be a {type(self).__name__} on geometry 'dense', got {self.geometry.name!r}"
            )
        return matrix

    def on_matrix(self) -> Self:
        """Return the same problem on geometry 'dense': itself, or a stream's matrix; others are refused by name."""
        dense = self.dense
        return self if dense is self.geometry else self._on(self.workload, self.per_query(), dense)

    def for_one_record(self) -> Self:
        """Return the same problem where each person has a part in one step; on a matrix it is what it was."""
        return self._on(self.workload, self.per_query(), self._matrix())

    @property
    def factors(self) -> tuple[Self, ...]:
        """Of a product, the same problem on each factor, those that come again once made."""
        if self.geometry.name != "product":
            raise InvalidInputError(f"factors are of geometry 'product', got {self.geometry.name!r}")
        known: dict[tuple[int, int], Self] = {}
        problems = []
        held = getattr(self, self.numbers)
        for workload, factor, number in zip(self.geometry.workload.factors, self.geometry.factors, held, strict=True):
            key = id(factor), id(number)
            if key not in known:
                known[key] = self._on(workload, number, factor)
            problems.append(known[key])
        return tuple(problems)

    @property
    def cost_limit(self) -> float | None:
        """Squared privacy cost to which a feasible point is limited; None if the objective is that cost.

        Each family states its own: raises `InputTypeError` otherwise.
        """
        raise InputTypeError(
            f"a {type(self).__name__} must define cost_limit: the squared privacy cost to which noise is limited, or "
            f"None if its objective is that cost"
        )

    def feasible(self, primal: object) -> Any:
        """Return the noise scaled so that its squared privacy cost is `cost_limit`; noise of no cost as it is."""
        limit: Any = self.cost_limit

        def excess(noise: object) -> float:
            return float(self.geometry.cost(noise) / limit)

        return scale_to_limit(self.geometry.point(primal), excess, -1, self.geometry.divide, FEASIBLE / 10)

    def exceeded(self, primal: object) -> tuple[str, ...]:
        """Say which neighbours cost more than `cost_limit`, the worst first."""
        forms = self.geometry.forms(self.geometry.point(primal))
        if forms is None or (limit := self.cost_limit) is None:
            return ()
        return costs_over(forms.worst_neighbours(), limit, self.geometry.neighbour_words)

    def mechanism(self, primal: object) -> Any:
        """Return the mechanism with this noise, or with slightly more if rounding would put it above `cost_limit`."""
        return self._mechanism_within(self.geometry.point(primal), self.cost_limit)

    def _mechanism_within(self, point: Any, limit: float | None) -> Any:
        """Return the mechanism of a feasible point, scaled so that its privacy cost is at most the limit."""
        if limit is None:
            return self.geometry.mechanism(point)
        forms = self.geometry.forms(point)
        cost = np.inf if forms is None else forms.cost * (1 + forms.cost_rounding)
        point = self.geometry.divide(point, limit / cost) if exceeds_by_rounding(cost, limit) else point
        return limited(self.geometry.mechanism(point), limit)

    def as_dual(self, dual: object) -> Any:
        """Return given dual weights in the form of this problem's geometry, negative ones of rounding size as 0."""
        kind: Any = self.dual_type
        count = len(fields(kind))
        parts = self.geometry.weights(dual, queries=count > 1)[:count]
        return kind(*(tuple(part) if isinstance(part, list) else part for part in parts))

    def as_primal(self, answer: object) -> Any:
        """Return a given answer, a point or a mechanism, as a point of this problem.

        Raises `InvalidInputError` or `InputTypeError` for what cannot be noise here: another shape, no
        covariance, a mechanism that does not answer the workload.
        """
        return point_on(self.geometry, answer)

    @property
    def headline(self) -> str:
        return f"{super().headline}, {self.geometry.name}"

    def argument_values(self) -> dict[str, object]:
        """Return the arguments that make the same problem on the same geometry, on any machine."""
        return super().argument_values() | {"geometry": self.geometry.name} | self.geometry.argument_values()

    def stored(self, primal: object) -> object:
        return self.geometry.stored(primal)

    def restored(self, primal: object) -> object:
        return self.geometry.restored(primal)

    def binding(self, primal: object, slack: float) -> Index:
        """Return the neighbours, or orbits of them, whose cost is within `slack`, relative, of the largest."""
        within = validate.nonnegative_number(slack=slack)
        forms = self.geometry.forms(self.geometry.point(primal))
        return np.zeros(0, dtype=np.intp) if forms is None else forms.binding(within)

    def phase_prices(self, dual: object) -> Array:
        """Return the share of each part of each phase in the bound (phases, times); 0 for steps that are not there.

        Raises `InvalidInputError` where the problem is not on geometry 'epochs'.
        """
        if not hasattr(self.geometry, "phase_prices"):
            return super().phase_prices(dual)
        targets = self.numbers == "targets"
        phases, queries = self.geometry.weights(dual, queries=targets)
        return self.geometry.phase_prices(phases, queries if targets else self.asked_weights)  # type: ignore[attr-defined]

    def same_as(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or not same_content(_moves(self), _moves(other)):
            return False
        left, right = getattr(self, self.numbers), getattr(other, self.numbers)
        if self.geometry.name != other.geometry.name:
            left, right = self.per_query(), other.per_query()
        others = [name for name in self.arguments if name != self.numbers]
        return same_content(left, right) and all(
            same_content(getattr(self, name), getattr(other, name)) for name in others
        )

    def per_query(self) -> Array:
        """Return the targets, or weights, one per query of the workload (m,); refused where they are too many."""
        values: Array = self.geometry.per_query(self.workload, getattr(self, self.numbers))
        return values

    def _noise_in_numbers(self, allowed: float) -> dict[str, object]:
        """Return the data of a family whose proof is that of targets, or of weights, at a squared privacy cost."""
        stated: dict[str, object] = self.geometry.in_numbers(self.workload, self.numbers, getattr(self, self.numbers))
        return {**stated, "allowed": allowed}

    def on_geometry(self, geometry: str) -> Self:
        """Return the same problem on another geometry, named as its parameter is; itself where it stands there.

        Raises `InvalidInputError` where that does not hold it.
        """
        name = validate.choice(KINDS, geometry=geometry)
        if self.geometry.name == name:
            return self
        numbers, moves = self.per_query(), self.neighbours
        if name != "dense" and moves is not None and not isinstance(moves, Relation):
            moves = Relation.matching(moves) or moves
        if name == "product" and np.ptp(numbers) == 0:
            numbers = numbers[0]
        return self._on(self.workload, numbers, name, neighbours=moves)

    def with_bases(self, bases: Sequence[object]) -> Self:
        """Return the same problem on a product whose dense factors stand on given bases, None for their own."""
        held, checked = getattr(self, self.numbers), validate.sequence(bases=bases)
        if len(checked) != len(held):
            raise InvalidInputError(f"bases must be {len(held)}, one per factor, got {len(checked)}")
        known: dict[tuple[int, int], Geometry] = {}
        factors = []
        for factor, basis, number in zip(self.factors, checked, held, strict=True):
            key = id(factor), id(basis)
            if key not in known:
                moved = factor if basis is None else factor._on(factor.workload, number, None, basis=basis)
                known[key] = moved.geometry
            factors.append(known[key])
        return self._on(self.workload, ByFactor(*held), self.geometry.of_factors(factors))

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {name: getattr(self, name) for name in self.arguments}
        facts["geometry"] = self.geometry.name
        if self.neighbours is not None:
            facts["neighbours"] = self.neighbours
        return facts

    def __repr__(self) -> str:
        options = (name for name in self._facts() if name not in ("workload", self.numbers, "geometry"))
        shown = "".join(f", {name}={brief(getattr(self, name))}" for name in options)
        return f"{type(self).__name__}({self.workload!r}, {self.geometry.name}{shown})"

    def _on(self, workload: Workload, numbers: object, geometry: object, **options: object) -> Self:
        """Return the same problem of another workload, on its own geometry or as the options say."""
        for name in self.arguments:
            if name not in ("workload", self.numbers):
                options[name] = getattr(self, name)
        return type(self)(workload, numbers, geometry=geometry or "dense", **options)  # type: ignore[call-arg]


def dual_of(problem: AnyProblem, neighbour_weights: object, shares: Array) -> Any:
    """Return dual weights of weights on neighbours and each query's share ``μ_j c_j``, unused for given weights."""
    return problem.dual_type(neighbour_weights, *([] if problem.sums_variances else [shares / problem.row_targets]))


def _moves(problem: OnGeometry) -> object:
    rule = problem.neighbours
    small = problem.workload.shape[1] <= LARGEST_DENSE
    if not (isinstance(rule, Relation) and small) or rule.geometries:
        return rule
    return rule.matrix(problem.workload.shape[1], problem.workload.domain)


def point_on(geometry: Geometry, answer: Any) -> Any:
    """Return a given answer as a point of a geometry; a matrix that is no covariance is refused."""
    known = hasattr(answer, "point_on") and not isinstance(answer, type)
    return geometry.checked(answer.point_on(geometry) if known else answer)


def share_of(problem: OnGeometry, tol: float) -> float:
    """Return the gap to prove of each factor of a product, so that theirs make up `tol`."""
    return math.expm1(math.log1p(validate.positive_number(tol=tol)) / len(problem.geometry.factors))


# Mechanisms from noise on a geometry.


def limited(mechanism: Any, limit: float) -> Any:
    """Return a mechanism with enough more noise that no rounding error puts its privacy cost above a limit.

    One that exceeds the limit by more than a feasible point may stays as it is.
    """
    while exceeds_by_rounding(cost := mechanism.squared_privacy_cost, limit):
        mechanism = mechanism.scaled(cost / limit * (1 + 4 * linalg.EPS))
    return mechanism


def exceeds_by_rounding(cost: float, limit: float) -> bool:
    """Return whether a cost is above a limit, by no more than a feasible point may exceed it."""
    return limit < cost <= limit * (1 + FEASIBLE)
