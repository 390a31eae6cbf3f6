"""What problems about Gaussian noise share, whatever their geometry: comparison, mechanism, and how they are shown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import numpy as np

from dualmech import linalg, validate
from dualmech.certificate import FEASIBLE, Certificate
from dualmech.display import Displayed, brief
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.base import Geometry, Index
from dualmech.geometry.choice import KINDS
from dualmech.geometry.dense import Dense
from dualmech.geometry.epoch_stream import EpochStream
from dualmech.geometry.epochs import Epochs
from dualmech.geometry.moves import LARGEST_DENSE
from dualmech.geometry.product import ByFactor, Product
from dualmech.geometry.split import Split, SplitPoint
from dualmech.geometry.stream import AnyNoise, CausalPoint, Stream
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.epochs import EpochsMechanism
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.noise import in_few_digits
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.mechanisms.product import ProductMechanism
from dualmech.mechanisms.split import SplitMechanism
from dualmech.mechanisms.stream import CausalMechanism, StreamMechanism
from dualmech.neighbours import Relation
from dualmech.validate import Array, Matrix
from dualmech.workloads.base import Workload, same_content
from dualmech.workloads.domain import count_text

Dual = TypeVar("Dual", covariant=True)
Made = TypeVar("Made", covariant=True)

AnyProblem: TypeAlias = Any
"""A problem of any family: to type checkers no more than a name."""


class Problem(Displayed, Generic[Dual, Made]):
    """What every problem offers besides its judge; type checkers know its dual weights and its mechanism."""

    __slots__ = ()

    arguments: ClassVar[tuple[str, ...]]
    """The parameters that state it, by name."""

    dual_type: ClassVar[Callable[..., Any]]
    """The class of its dual weights."""

    certify: ClassVar[Callable[..., Certificate]]
    """The judge: what a primal point and dual weights prove."""

    feasible: ClassVar[Callable[..., Any]]
    """Makes a point feasible: by scaling it to its limits."""

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

    @property
    def basis(self) -> Array:
        """B (k, d), on whose answers a dense geometry puts the noise."""
        basis: Array = (self.geometry if isinstance(self.geometry, Epochs) else self.dense).basis
        return basis

    @property
    def neighbours(self) -> Matrix | None:
        """U (d, s), differences of neighbouring data sets up to sign; None for a record added or removed."""
        return getattr(self.geometry, "neighbours", None)

    @property
    def dense(self) -> Dense:
        """The geometry, where it is dense, or the matrix of a stream; refused by name where it is another."""
        if isinstance(self.geometry, Stream):
            return self.geometry.written
        if not isinstance(self.geometry, Dense):
            raise InvalidInputError(
                f"problem must be a {type(self).__name__} on geometry 'dense', got {self.geometry.name!r}"
            )
        return self.geometry

    def on_matrix(self) -> Self:
        """Return the same problem on geometry 'dense': itself, or a stream's matrix; others are refused by name."""
        dense = self.dense
        return self if dense is self.geometry else self._on(self.workload, self.per_query(), dense)

    def for_one_record(self) -> Self:
        """Return the same problem where each person has a part in one step; on a matrix it is what it was."""
        dense = self.geometry.steps if isinstance(self.geometry, Epochs) else self.dense
        return self._on(self.workload, self.per_query(), dense)

    @property
    def factors(self) -> tuple[Self, ...]:
        """Of a product, the same problem on each factor, those that come again once made."""
        if not isinstance(self.geometry, Product):
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

    def mechanism(self, primal: object) -> Any:
        """Return the mechanism with this noise, or with slightly more if rounding would put it above `cost_limit`."""
        return self._mechanism_within(self.geometry.point(primal), self.cost_limit)

    def _mechanism_within(self, point: Any, limit: float | None) -> Any:
        """Return the mechanism of a feasible point, scaled so that its privacy cost is at most the limit."""
        if limit is None:
            return mechanism_of(self.geometry, point)
        forms = self.geometry.forms(point)
        cost = np.inf if forms is None else forms.cost * (1 + forms.cost_rounding)
        point = self.geometry.divide(point, limit / cost) if exceeds_by_rounding(cost, limit) else point
        return limited(mechanism_of(self.geometry, point), limit)

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
        return self._on(self.workload, ByFactor(*held), Product(self.geometry.workload, tuple(factors)))

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


def _moves(problem: OnGeometry) -> object:
    """Return the neighbours of a problem as a matrix where there is one, else by their rule."""
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


def mechanism_of(geometry: Geometry, point: object) -> GaussianPrivacy:
    return MECHANISMS[geometry.name](geometry, point)


def _dense(geometry: Dense, point: Array) -> LinearGaussianMechanism:
    """Return the mechanism of the covariance that is judged: as it is, or raised where rounding left it singular.

    Rows without noise are written in few digits, so that neighbours who share what they say do so exactly.
    """
    judged = linalg.regularised_covariance(point)
    rows, silent = geometry.basis, np.diagonal(point) == 0
    if np.any(silent):
        rows = rows.copy()
        rows[silent] = in_few_digits(rows[silent])
    return LinearGaussianMechanism(rows, point if judged is None else judged, geometry.neighbours)


def _epochs(geometry: Epochs | EpochStream, point: Any) -> EpochsMechanism:
    noise: Any = _dense(geometry.steps, point) if isinstance(geometry, Epochs) else _stream(geometry, point)
    return EpochsMechanism(noise, geometry.neighbours)


def _product(geometry: Product, point: tuple[Any, ...]) -> ProductMechanism:
    pairs = zip(geometry.factors, point, strict=True)
    return ProductMechanism([mechanism_of(factor, part) for factor, part in pairs])


def _split(geometry: Split, point: SplitPoint) -> SplitMechanism:
    return SplitMechanism(geometry.workload, point.shapes, point.levels)


def _stream(geometry: Stream, point: AnyNoise) -> GaussianPrivacy:
    if isinstance(point, np.ndarray):
        return _dense(geometry.written, point)
    if isinstance(point, CausalPoint):
        return CausalMechanism(point.strategy, point.level)
    return StreamMechanism(geometry.workload, point.neighbour_weights, point.query_weights, point.level)


MECHANISMS: dict[str, Callable[..., GaussianPrivacy]] = {
    "dense": _dense,
    "epochs": _epochs,
    "blocks": BlockMechanism,
    "product": _product,
    "split": _split,
    "stream": _stream,
}


# Prices in sentences: what a looser target saves, a larger weight adds, table by table or query by query.


MOST_SENTENCES = 6  # most items with a sentence of their own, the dearest first


def price_sentences(
    problem: Any, prices: Array, margins: Container[str] = (), most: int = MOST_SENTENCES
) -> tuple[str, ...]:
    """Say what prices mean for a problem, the largest first; of tables in `margins` by their margins of error.

    A target looser by the fraction t lowers the least cost by at most ``p t / (1 + p t)`` of it, as the same dual
    weights prove, and by ``p t`` to first order; weights of total variance likewise.
    Raises `InvalidInputError` for a problem whose prices have no such meaning, or whose items have no names.
    """
    if problem.price_words is None or isinstance(getattr(problem, problem.numbers), tuple):
        raise InvalidInputError(
            f"prices in words need a problem with a target or a weight per item, got {problem.headline}; "
            "its prices are numbers"
        )
    change, effect = problem.price_words
    names, numbers = _names(problem, len(prices)), Counter[str]()
    shares = dict.fromkeys(names, 0.0)
    for name, price in zip(names, np.asarray(prices).tolist(), strict=True):
        shares[name] += price
        numbers[name] += 1

    by_margin = {name for name in shares if name[1:-1] in margins}

    def sentence(items: str, several: bool, share: float, margin: bool) -> str:
        if margin:  # whose square is the variance
            return f"1 % more margin of {items} {effect.format(_percent(2 * share))}."
        return f"{change.format('s' if several else '')} of {items} by 1 % {effect.format(_percent(share))}."

    order = sorted((name for name in shares if shares[name] > 0), key=lambda name: -shares[name])
    lines = [sentence(name, numbers[name] > 1, shares[name], name in by_margin) for name in order[:most]]
    if rest := order[most:]:
        items = "the other one" if len(rest) == 1 else f"all {len(rest)} others"
        lines.append(sentence(items, True, sum(shares[name] for name in rest), by_margin.issuperset(rest)))
    free = [name for name in shares if shares[name] <= 0]
    if free:
        named = ", ".join(free[:MOST_SENTENCES]) + (
            f" and {len(free) - MOST_SENTENCES} more" if len(free) > MOST_SENTENCES else ""
        )
        lines.append(f"At no price: {named}; the others decide the noise.")
    return tuple(lines)


def _names(problem: Any, count: int) -> list[str]:
    """Return what items are called: tables, groups of queries where there are several, or else queries."""
    workload, geometry = problem.workload, problem.geometry
    if geometry.name in ("dense", "epochs", "stream") and count == workload.shape[0]:
        return [*map(repr, workload.groups if len({*workload.groups}) > 1 else workload.names)]
    return [geometry.item_words(index).removeprefix("table ").removeprefix("query ") for index in range(count)]


def _percent(share: float) -> str:
    return f"{share:.2g} %" if not 0.995 <= share < 1.05 else "1 %"
