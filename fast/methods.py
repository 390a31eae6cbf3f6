"""Methods of `dualmech.fast.solve`: a method is a solver, its options are its fields."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from dualmech.errors import InputTypeError
from dualmech.fast.engine.loop import Limits
from dualmech.fast.engine.precision import no_worse_than_looser
from dualmech.solution import Solution


@dataclass(frozen=True, slots=True)
class FamilySolver:
    """The default solver of a family of problems, and its properties."""

    solve: str | Callable[..., Solution]
    """A function, or its import path: of a problem, `Limits` and a method's name; also of `start` and `orbits` if it
    supports them."""

    methods: tuple[str, ...] = ()
    """The names of its methods besides ``"auto"``."""

    follows_tol: bool = False
    """Whether its steps depend on the tolerance, so that a tighter tolerance can give a worse answer."""


ON_GEOMETRY = FamilySolver("dualmech.fast.fitness:solve_on_geometry", ("fixed_point", "newton"), follows_tol=True)
"""The solver of families whose algorithm depends on the geometry."""

FAMILY_SOLVERS = {
    "FitnessForUse": ON_GEOMETRY,
    "PrivacyFirst": ON_GEOMETRY,
    "TotalVariance": ON_GEOMETRY,
    "SoftmaxFitness": FamilySolver("dualmech.fast.softmax.smoothed:solve_softmax", ("newton",)),
    "QueryWeighting": FamilySolver("dualmech.fast.weighting:solve_weighting", ("newton",)),
    "CommonMechanism": FamilySolver("dualmech.fast.common:solve_common", ("fixed_point", "newton")),
    "ReuseFitness": FamilySolver("dualmech.fast.reuse:solve_reuse", ("newton",), follows_tol=True),
    "LocalProjection": FamilySolver("dualmech.fast.local.estimate:solve_projection"),
    "NonnegativeEstimate": FamilySolver("dualmech.fast.local.estimate:solve_estimate"),
    "LocalStrategy": FamilySolver("dualmech.fast.local.strategy:solve_strategy"),
}
"""The default solver of each family of problems, by the name of its class."""


def family_solver(problem: object) -> Callable[..., Solution]:
    """Return the default solver of a problem's family."""
    solver = FAMILY_SOLVERS[type(problem).__name__].solve
    function: Callable[..., Solution] = pkgutil.resolve_name(solver) if isinstance(solver, str) else solver
    return function


def families_with(method: str) -> tuple[str, ...]:
    """Return the class names of the families whose default solver has a method."""
    return tuple(name for name, solver in FAMILY_SOLVERS.items() if method in solver.methods)


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A solver of `dualmech.fast.solve`: its name, the problems that it solves, and its options as fields."""

    name: ClassVar[str]
    problems: ClassVar[tuple[str, ...]] = ("Problem",)  # class names
    on_matrix: ClassVar[bool] = False  # whether it needs a matrix of queries even if the workload has structure

    def takes(self, problem: object) -> bool:
        """Return whether the method solves a problem or a base class of its class."""
        return any(kind.__name__ in self.problems for kind in type(problem).__mro__)

    def check_option(self, problem: object, option: str) -> None:
        """Raise `InputTypeError` for `start` or `orbits` if the solver of the problem's family has no such argument."""
        if option not in inspect.signature(family_solver(problem)).parameters:
            raise InputTypeError(f"option {option!r} is not for {type(problem).__name__}")

    def solve(self, problem: Any, limits: Limits, *args: Any, **options: Any) -> Solution:
        """Solve the problem to a proven gap within the limits; `options` are `start` and `orbits`, if given."""
        raise NotImplementedError(f"{type(self).__name__} must implement solve(problem, limits)")


@dataclass(frozen=True, slots=True, eq=False)
class ByFamily(Method):
    """A method whose algorithm depends on the family: the default solver is called with the method's name."""

    def solve(self, problem: Any, limits: Limits, **options: Any) -> Solution:
        run = partial(family_solver(problem), problem, method=self.name, **options)
        answer = run(limits)
        follows_tol = FAMILY_SOLVERS[type(problem).__name__].follows_tol
        return no_worse_than_looser(answer, run, limits) if follows_tol else answer


@dataclass(frozen=True, slots=True, eq=False)
class Auto(ByFamily):
    """The default method of the library, ``"auto"``.

    It is the fixed point for fitness for use, privacy first and total variance, with a switch to Newton's method if
    that takes fewer operations; Newton's method for soft maxima, weightings and reuse; for two mechanisms the closed
    form, for more the fixed point (trace) or Newton's method (volume); `Exact` for local strategies of up to 20 user
    types, else `Restart`. It is the only method for projections and non-negative estimates.
    """

    name = "auto"


@dataclass(frozen=True, slots=True, eq=False)
class FixedPoint(ByFamily):
    """The accelerated multiplicative fixed point of the dual; a polar one for the trace of `CommonMechanism`."""

    name = "fixed_point"
    problems = families_with("fixed_point")


@dataclass(frozen=True, slots=True, eq=False)
class Newton(ByFamily):
    """Newton's method: interior-point methods for duals, weightings and volumes; minimisation of soft maxima."""

    name = "newton"
    problems = families_with("newton")


METHODS = {
    "auto": "dualmech.fast.methods:Auto",
    "fixed_point": "dualmech.fast.methods:FixedPoint",
    "newton": "dualmech.fast.methods:Newton",
    "closed_form": "dualmech.fast.common:ClosedForm",
    "softmax_newton": "dualmech.fast.softmax.published:SoftmaxNewton",
    "softmax_gradient": "dualmech.fast.softmax.published:SoftmaxGradient",
    "exact": "dualmech.fast.local.strategy:Exact",
    "restart": "dualmech.fast.local.strategy:Restart",
    "gradient": "dualmech.fast.local.gradient:ProjectedGradient",
    "published_gradient": "dualmech.fast.local.gradient:PublishedGradient",
}
"""The import path of each method's class, by name. A name means the method with default options."""

REGISTERED: dict[str, Method] = {}
"""Users' methods by their names."""


def method_class(name: str) -> type[Method]:
    """Return the class of one of the library's methods."""
    kind: type[Method] = pkgutil.resolve_name(METHODS[name])
    return kind


def by_name(name: str) -> Method:
    """Return a method of the library with its default options, or a user's method."""
    return REGISTERED[name] if name in REGISTERED else method_class(name)()


def needs_matrix(name: str | None) -> bool:
    """Return whether a method of the library needs a matrix of queries even if the workload has structure."""
    return name in METHODS and method_class(name).on_matrix
