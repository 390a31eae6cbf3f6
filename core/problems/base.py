"""Base classes of problems: interface, comparison, representation, and the shared code of problems on geometries."""

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
Made = TypeVar("Made", covariant=True)  # the mechanism

AnyProblem: TypeAlias = Any
"""A problem of any family; type checkers see `Any`."""


def _undefined(method: str) -> Callable[..., Any]:
    """Return a method that raises until a family defines its own."""

    def undefined(problem: Problem, *arguments: object, **options: object) -> Any:
        raise NotImplementedError(f"{type(problem).__name__} must define {method}")

    return undefined


LIMITED = "_limited_threads"  # marks a method that runs in the threads of a solve


class Problem(Displayed, Generic[Dual, Made]):
    """A problem with its judge, generic in its dual weights and its mechanism."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Limit constructors and judges to the threads of a solve; with all cores they would delay other processes."""
        super().__init_subclass__(**options)
        for name in ("__init__", "certify"):
            function = vars(cls).get(name)
            if function is not None and not hasattr(function, LIMITED):
                limited_function = blas_threads()(function)
                setattr(limited_function, LIMITED, True)
                setattr(cls, name, limited_function)

    arguments: ClassVar[tuple[str, ...]]
    """Names of the parameters that define it."""

    optional_arguments: ClassVar[tuple[str, ...]] = ()
    """Arguments that a file may lack, because they are None or because earlier versions did not have them."""

    dual_type: ClassVar[Callable[..., Any]]
    """The class of its dual weights."""

    certify: ClassVar[Callable[..., Certificate]] = _undefined("certify(primal, dual): the judge")
    """The judge: the certificate of a primal point and dual weights."""

    feasible: ClassVar[Callable[..., Any]] = _undefined("feasible(primal): the point scaled to its limits")
    """Return a point scaled to be feasible."""

    mechanism: ClassVar[Callable[..., Any]] = _undefined("mechanism(primal): the mechanism of a feasible point")
    """Return the mechanism of a feasible point."""

    prices: ClassVar[Callable[..., Array]] = _undefined("prices(dual): the shadow prices, of sum 1")
    """Return the shadow prices of dual weights, of sum 1."""

    binding: ClassVar[Callable[..., Index]] = _undefined("binding(primal, slack): the neighbours of largest cost")
    """Return the indices of the neighbours with costs within a relative slack of the largest."""

    price_words: ClassVar[tuple[str, str] | None] = None
    """A price in words: the change of a target or a weight, and its effect."""

    def argument_values(self) -> dict[str, object]:
        """Return the constructor's arguments."""
        return {name: getattr(self, name) for name in self.arguments}

    def stored(self, primal: object) -> object:
        """Return a primal point in the form for files."""
        return primal

    def restored(self, primal: object) -> object:
        """Return a primal point from the form for files."""
        return primal

    def stored_dual(self, dual: Any) -> object:
        """Return dual weights in the form for files."""
        return dual

    def restored_dual(self, dual: Any) -> object:
        """Return dual weights from the form for files."""
        return dual

    def as_primal(self, answer: object) -> Any:
        """Return a user's answer as a primal point; mechanisms are refused unless the problem supports them."""
        if hasattr(answer, "squared_privacy_cost"):
            raise InvalidInputError(f"a {type(self).__name__} is judged by its own points, not by mechanisms")
        return answer

    def as_dual(self, dual: object) -> Any:
        """Return dual weights from an object of their class, a tuple of its arrays, or its only array.

        Raises `InputTypeError` for another number of arrays; the judge checks their contents.
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
        """Return the share of each step of each phase in the bound; refused except on geometry ``epochs``."""
        raise InvalidInputError(f"phases are of geometry 'epochs', got {self.headline}")

    def loose(self, primal: Any, slack: float) -> Index:
        """Return no query: this problem has no targets."""
        validate.nonnegative_number(slack=slack)
        return np.zeros(0, dtype=np.intp)

    def exceeded(self, primal: Any) -> tuple[str, ...]:
        """Describe the constraints that a point exceeds most; () for a feasible point."""
        return ()

    def in_numbers(self) -> dict[str, object]:
        """Return the problem's data as numbers, for proof files; refused for families without exact proofs."""
        raise InvalidInputError(f"no proof in whole numbers is known of a {type(self).__name__}")

    def same_as(self, other: object) -> bool:
        """Return whether another problem has equal arguments."""
        if self is other:
            return True
        return type(self) is type(other) and all(
            same_content(getattr(self, name), getattr(other, name)) for name in self.arguments
        )

    @property
    def objective_name(self) -> str:
        """The name of the objective, for reports."""
        return "objective"

    @property
    def headline(self) -> str:
        """The family and the numbers of queries and cells."""
        workload = getattr(self, "workload", None)
        size = "" if workload is None else " " + " × ".join(count_text(count, 6) for count in workload.shape)
        return f"{type(self).__name__}{size}"

    def _facts(self) -> dict[str, object]:
        return {name.replace("_", " "): getattr(self, name) for name in self.arguments}

    def __eq__(self, other: object) -> bool:
        """Return `same_as`."""
        return self.same_as(other) if isinstance(other, Problem) else NotImplemented

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        options = (f"{name}={brief(value)}" for name, value in self._facts().items() if name != "workload")
        arguments = [repr(workload)] if (workload := getattr(self, "workload", None)) is not None else []
        return f"{type(self).__name__}({', '.join([*arguments, *options])})"


class OnGeometry(Problem[Dual, GaussianPrivacy]):
    """A workload with targets or weights on a geometry; `numbers` is the name of that attribute."""

    __slots__ = ()

    workload: Workload
    geometry: Any  # a Geometry
    numbers: ClassVar[str]
    sums_variances: ClassVar[bool] = False  # whether variances are summed with weights; otherwise each has a target

    @property
    def row_targets(self) -> Array:
        """The target, or 1 over the weight, of each query of the geometry (on blocks of each orbit of queries)."""
        targets: Array = getattr(self, self.numbers)
        return targets[self.geometry.tables] if self.geometry.name == "blocks" else targets

    @property
    def row_weights(self) -> Array:
        """The weight, or 1 over the target, of each query of the geometry (on blocks of each orbit of queries)."""
        return 1 / self.row_targets

    @property
    def basis(self) -> Array:
        """B (k, d): a dense geometry adds noise to B x."""
        return self._matrix().basis

    @property
    def neighbours(self) -> Matrix | None:
        """U (d, s), differences of neighbouring data sets up to sign; None for a record added or removed."""
        return getattr(self.geometry, "neighbours", None)

    @property
    def dense(self) -> Dense:
        """The dense geometry of this problem or of its stream; refused for other geometries."""
        return self._matrix(several_parts=False)

    def _matrix(self, several_parts: bool = True) -> Dense:
        """Return the dense geometry of the noise; refuse other geometries, and epochs unless allowed."""
        matrix: Dense | None = getattr(self.geometry, "matrix", None)
        if matrix is None or (self.geometry.name == "epochs" and not several_parts):
            raise InvalidInputError(
                f"problem must be a {type(self).__name__} on geometry 'dense', got {self.geometry.name!r}"
            )
        return matrix

    def on_matrix(self) -> Self:
        """Return the same problem on geometry 'dense': itself, or a stream's matrix; others are refused."""
        dense = self.dense
        return self if dense is self.geometry else self._on(self.workload, self.per_query(), dense)

    def for_one_record(self) -> Self:
        """Return the same problem for single records in place of participations, on a matrix."""
        return self._on(self.workload, self.per_query(), self._matrix())

    @property
    def factors(self) -> tuple[Self, ...]:
        """The same problem on each factor of a product; equal factors share one problem."""
        if self.geometry.name != "product":
            raise InvalidInputError(f"factors are of geometry 'product', got {self.geometry.name!r}")
        by_factor: dict[tuple[int, int], Self] = {}
        problems = []
        numbers = getattr(self, self.numbers)
        for workload, factor, number in zip(
            self.geometry.workload.factors, self.geometry.factors, numbers, strict=True
        ):
            key = id(factor), id(number)
            if key not in by_factor:
                by_factor[key] = self._on(workload, number, factor)
            problems.append(by_factor[key])
        return tuple(problems)

    @property
    def cost_limit(self) -> float | None:
        """Squared privacy cost of a feasible point; None if the objective is that cost.

        Raises `InputTypeError` for a family that does not define it.
        """
        raise InputTypeError(
            f"a {type(self).__name__} must define cost_limit: the squared privacy cost to which noise is limited, or "
            f"None if its objective is that cost"
        )

    def feasible(self, primal: object) -> Any:
        """Return the noise scaled to the squared privacy cost `cost_limit`; noise of cost 0 stays unchanged."""
        limit: Any = self.cost_limit

        def excess(noise: object) -> float:
            return float(self.geometry.cost(noise) / limit)

        return scale_to_limit(self.geometry.point(primal), excess, -1, self.geometry.divide, FEASIBLE / 10)

    def exceeded(self, primal: object) -> tuple[str, ...]:
        """Describe the neighbours that cost more than `cost_limit`, in decreasing order."""
        forms = self.geometry.forms(self.geometry.point(primal))
        if forms is None or (limit := self.cost_limit) is None:
            return ()
        return costs_over(forms.worst_neighbours(), limit, self.geometry.neighbour_words)

    def mechanism(self, primal: object) -> Any:
        """Return the mechanism of a point, with slightly more noise if rounding puts its cost above `cost_limit`."""
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
        """Return dual weights in the form of the geometry, with negative weights of rounding size set to 0."""
        kind: Any = self.dual_type
        count = len(fields(kind))
        parts = self.geometry.weights(dual, queries=count > 1)[:count]
        return kind(*(tuple(part) if isinstance(part, list) else part for part in parts))

    def as_primal(self, answer: object) -> Any:
        """Return a user's answer, a point or a mechanism, as a point of this problem.

        Raises `InvalidInputError` or `InputTypeError` for another shape, a matrix that is no covariance, and a
        mechanism that does not answer the workload.
        """
        return point_on(self.geometry, answer)

    @property
    def headline(self) -> str:
        return f"{super().headline}, {self.geometry.name}"

    def argument_values(self) -> dict[str, object]:
        """Return the constructor's arguments, the geometry included."""
        return super().argument_values() | {"geometry": self.geometry.name} | self.geometry.argument_values()

    def stored(self, primal: object) -> object:
        return self.geometry.stored(primal)

    def restored(self, primal: object) -> object:
        return self.geometry.restored(primal)

    def binding(self, primal: object, slack: float) -> Index:
        """Return the neighbours, or orbits of them, with costs within a relative `slack` of the largest."""
        rel_slack = validate.nonnegative_number(slack=slack)
        forms = self.geometry.forms(self.geometry.point(primal))
        return np.zeros(0, dtype=np.intp) if forms is None else forms.binding(rel_slack)

    def phase_prices(self, dual: object) -> Array:
        """Return the share of each step of each phase in the bound (phases, times); 0 for missing steps.

        Raises `InvalidInputError` for other geometries than 'epochs'.
        """
        if not hasattr(self.geometry, "phase_prices"):
            return super().phase_prices(dual)
        targets = self.numbers == "targets"
        phases, queries = self.geometry.weights(dual, queries=targets)
        return self.geometry.phase_prices(phases, queries if targets else self.asked_weights)  # type: ignore[attr-defined]

    def same_as(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or not same_content(_differences(self), _differences(other)):
            return False
        left, right = getattr(self, self.numbers), getattr(other, self.numbers)
        if self.geometry.name != other.geometry.name:
            left, right = self.per_query(), other.per_query()
        others = [name for name in self.arguments if name != self.numbers]
        return same_content(left, right) and all(
            same_content(getattr(self, name), getattr(other, name)) for name in others
        )

    def per_query(self) -> Array:
        """Return one target or weight per query of the workload (m,); refused for too many queries."""
        values: Array = self.geometry.per_query(self.workload, getattr(self, self.numbers))
        return values

    def _noise_in_numbers(self, allowed: float) -> dict[str, object]:
        """Return the data of fitness for use, or of total variance, at a squared privacy cost."""
        data: dict[str, object] = self.geometry.in_numbers(self.workload, self.numbers, getattr(self, self.numbers))
        return {**data, "allowed": allowed}

    def on_geometry(self, geometry: str) -> Self:
        """Return the same problem on the geometry of a name, itself if it is on it already.

        Raises `InvalidInputError` for an unsupported geometry.
        """
        name = validate.choice(KINDS, geometry=geometry)
        if self.geometry.name == name:
            return self
        numbers, neighbours = self.per_query(), self.neighbours
        if name != "dense" and neighbours is not None and not isinstance(neighbours, Relation):
            neighbours = Relation.matching(neighbours) or neighbours
        if name == "product" and np.ptp(numbers) == 0:
            numbers = numbers[0]
        return self._on(self.workload, numbers, name, neighbours=neighbours)

    def with_bases(self, bases: Sequence[object]) -> Self:
        """Return the same product problem with other bases of its dense factors, None for unchanged bases."""
        numbers, checked = getattr(self, self.numbers), validate.sequence(bases=bases)
        if len(checked) != len(numbers):
            raise InvalidInputError(f"bases must be {len(numbers)}, one per factor, got {len(checked)}")
        geometries: dict[tuple[int, int], Geometry] = {}
        factors = []
        for factor, basis, number in zip(self.factors, checked, numbers, strict=True):
            key = id(factor), id(basis)
            if key not in geometries:
                rebased = factor if basis is None else factor._on(factor.workload, number, None, basis=basis)
                geometries[key] = rebased.geometry
            factors.append(geometries[key])
        return self._on(self.workload, ByFactor(*numbers), self.geometry.of_factors(factors))

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {name: getattr(self, name) for name in self.arguments}
        facts["geometry"] = self.geometry.name
        if self.neighbours is not None:
            facts["neighbours"] = self.neighbours
        return facts

    def __repr__(self) -> str:
        options = (name for name in self._facts() if name not in ("workload", self.numbers, "geometry"))
        suffix = "".join(f", {name}={brief(getattr(self, name))}" for name in options)
        return f"{type(self).__name__}({self.workload!r}, {self.geometry.name}{suffix})"

    def _on(self, workload: Workload, numbers: object, geometry: object, **options: object) -> Self:
        """Return a problem of this family on another workload, with these numbers, geometry and options."""
        for name in self.arguments:
            if name not in ("workload", self.numbers):
                options[name] = getattr(self, name)
        return type(self)(workload, numbers, geometry=geometry or "dense", **options)  # type: ignore[call-arg]


def dual_of(problem: AnyProblem, neighbour_weights: object, shares: Array) -> Any:
    """Return dual weights from weights on neighbours and the shares ``μ_j c_j`` (unused for sums of variances)."""
    return problem.dual_type(neighbour_weights, *([] if problem.sums_variances else [shares / problem.row_targets]))


def _differences(problem: OnGeometry) -> object:
    """Return the neighbours for comparison: a matrix if there are few cells, else the rule."""
    rule = problem.neighbours
    has_matrix = problem.workload.shape[1] <= LARGEST_DENSE
    if not (isinstance(rule, Relation) and has_matrix) or rule.geometries:
        return rule
    return rule.matrix(problem.workload.shape[1], problem.workload.domain)


def point_on(geometry: Geometry, answer: Any) -> Any:
    """Return a user's answer as a point of a geometry; refuse a matrix that is no covariance."""
    has_noise = hasattr(answer, "point_on") and not isinstance(answer, type)
    return geometry.checked(answer.point_on(geometry) if has_noise else answer)


def share_of(problem: OnGeometry, tol: float) -> float:
    """Return the tolerance of each factor of a product for which the gap of the product is `tol`."""
    return math.expm1(math.log1p(validate.positive_number(tol=tol)) / len(problem.geometry.factors))


# Mechanisms from noise on a geometry.


def limited(mechanism: Any, limit: float) -> Any:
    """Return a mechanism with slightly more noise, if rounding puts its privacy cost above a limit.

    A mechanism beyond the tolerance of feasible points stays unchanged.
    """
    while exceeds_by_rounding(cost := mechanism.squared_privacy_cost, limit):
        mechanism = mechanism.scaled(cost / limit * (1 + 4 * linalg.EPS))
    return mechanism


def exceeds_by_rounding(cost: float, limit: float) -> bool:
    """Return whether a cost exceeds a limit within the tolerance of feasible points."""
    return limit < cost <= limit * (1 + FEASIBLE)
