"""Methods of `dualmech.fast.solve`: objects that hold their own options and say which problems they solve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.problems.base import Problem


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A method of `dualmech.fast.solve`: its name, the problems that it solves, and its options as fields."""

    name: ClassVar[str]
    problems: ClassVar[tuple[str, ...]] = ("Problem",)  # names of their classes
    on_matrix: ClassVar[bool] = False  # whether it needs a matrix of queries, whatever structure the workload has

    def takes(self, problem: object) -> bool:
        """Whether the method solves a problem, or one of a class derived from it."""
        return any(kind.__name__ in self.problems for kind in type(problem).__mro__)


@dataclass(frozen=True, slots=True, eq=False)
class Auto(Method):
    """The method that the library chooses for a problem, ``"auto"``.

    For fitness for use, privacy first and total variance the fixed point, which finishes with Newton's method where
    that takes fewer operations; Newton's method for soft maxima, weightings and reuse; the closed form for two
    mechanisms, for more the fixed point for the trace, Newton's method for the volume; `Exact` for local strategies of
    up to 20 user types, `Restart` beyond. Projections and non-negative estimates have this method alone.
    """

    name = "auto"


@dataclass(frozen=True, slots=True, eq=False)
class FixedPoint(Method):
    """The multiplicative fixed point of the dual, accelerated; for the trace of `CommonMechanism` one with momentum."""

    name = "fixed_point"
    problems = ("FitnessForUse", "PrivacyFirst", "TotalVariance", "CommonMechanism")


@dataclass(frozen=True, slots=True, eq=False)
class Newton(Method):
    """Newton's method: interior points of the dual, of a weighting, of a common volume; steps on a soft max."""

    name = "newton"
    problems = (
        *("FitnessForUse", "PrivacyFirst", "TotalVariance", "SoftmaxFitness"),
        *("QueryWeighting", "ReuseFitness", "CommonMechanism"),
    )


@dataclass(frozen=True, slots=True, eq=False)
class ClosedForm(Method):
    """The optimum of two mechanisms in closed form."""

    name = "closed_form"
    problems = ("CommonMechanism",)


HESSIANS = ("exact", "printed")


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxNewton(Method):
    """SM-II, the algorithm of the fitness-for-use paper, with the paper's letters for its options.

    Where the paper gives no value (TOL, NTTOL) or a choice (MU from 2, 5, 10), the default comes from its authors'
    published code. MAXITER is `max_iterations` of `fast.solve`. Raises `InvalidInputError` or `InputTypeError` for a
    value out of range.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> problem = dm.FitnessForUse(dm.workloads.prefix(4), targets=1.0)
    >>> method = fast.SoftmaxNewton(path_tolerance=1e-5, newton_tolerance=1e-7)
    >>> answer = fast.solve(problem, method=method, tol=1e-4)
    >>> answer.status.name, round(answer.objective, 4)
    ('CERTIFIED', 1.7586)
    """

    name = "softmax_newton"
    problems = ("FitnessForUse", "PrivacyFirst", "SoftmaxFitness")
    on_matrix = True

    conjugate_gradients: int = 5  # MAXCG, the most steps of Algorithm 2
    residual: float = 1e-10  # TOL2, the squared residual of t₁F at which Algorithm 2 stops
    decrease: float = 0.01  # σ of Algorithm 3, between 0 and 1
    shrink: float = 0.5  # β of Algorithm 3, between 0 and 1
    growth: float = 2.0  # MU > 1, the factor on t₁ and t₂
    sharpness: float = 1.0  # t₁ = t₂ at the start
    path_tolerance: float = 1e-3  # TOL: the algorithm ends where ``(s + m)/t₁`` is less
    newton_tolerance: float = 1e-3  # NTTOL: a sub-problem ends where ``t₁ |⟨s, ∇F⟩|`` is less
    hessian: str = "exact"  # the Hessian of Equation 8, or Equation 14 as printed
    first_share: float = 0.99  # times the targets: the largest variances of the first covariance
    # factor on variances over targets in F from the second sub-problem on; t₁ and t₂ stay the same
    variance_factor: float = 1.0
    # (p, d) Q of section 6.3: rows to which independent noise would be added, as a first approximation. By default I
    strategy: npt.ArrayLike | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        validate.size(conjugate_gradients=self.conjugate_gradients)
        for name in ("residual", "sharpness", "path_tolerance", "newton_tolerance"):
            validate.positive_number(**{name: getattr(self, name)})
        for name in ("first_share", "variance_factor"):
            validate.positive_number(**{name: getattr(self, name)})
        validate.probability(decrease=self.decrease)
        validate.probability(shrink=self.shrink)
        if not (growth := validate.positive_number(growth=self.growth)) > 1:
            raise InvalidInputError(f"growth must be above 1, got {growth:g}")
        validate.choice(HESSIANS, hessian=self.hessian)
        if self.strategy is not None:
            object.__setattr__(self, "strategy", validate.finite(2, strategy=self.strategy))
            validate.moderate(strategy=self.strategy)

    @classmethod
    def of_published_code(cls, basis: npt.ArrayLike) -> SoftmaxNewton:
        """Return the method with the settings of the authors' published code on a basis B of k rows.

        The code uses Equation 14 as printed, begins with noise ``k σ² I`` on B x itself, and sets t₂ to twice the t₁
        that it has just doubled. Its objective is ``log Σ exp(t₁ g_i) + log Σ exp(t₂ h_j)``, which is t₁F where t₁ =
        t₂; so it counts ``2 h_j`` for ``h_j``. Its line search ends differently, so answers differ in their last
        digits.
        """
        rows = validate.finite(2, basis=basis)
        return cls(hessian="printed", strategy=rows, first_share=float(len(rows)), variance_factor=2.0)


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxGradient(SoftmaxNewton):
    """The gradient descent with which the fitness-for-use paper compares SM-II: its steps in place of Newton's."""

    name = "softmax_gradient"


@dataclass(frozen=True, slots=True, eq=False)
class Exact(Method):
    """Column generation that prices all 2^n patterns of n user types, of which it takes at most 24."""

    name = "exact"
    problems = ("LocalStrategy",)


@dataclass(frozen=True, slots=True, eq=False)
class Restart(Method):
    """A search for patterns from random starts, which proves less than `Exact`.

    `rng` is a `numpy.random.Generator`, or a seed.
    """

    name = "restart"
    problems = ("LocalStrategy",)

    rng: np.random.Generator | int = 0

    def __post_init__(self) -> None:
        validate.generator(rng=self.rng)


@dataclass(frozen=True, slots=True, eq=False)
class ProjectedGradient(Method):
    """The projected gradient descent of the paper on local strategies, from a random strategy or from a `start`.

    Raises `InvalidInputError` or `InputTypeError` for an option out of range.

    Attributes
    ----------
    outputs : int, optional
        Outputs of the random strategy, at least the number of user types; four times that number by default.
    step_size : float, optional
        Length of the steps, halved after every 50, in units in which ``W'W`` has trace n (`PublishedGradient`: in
        units of the average variance); found by trial by default.
    iterations : int, default 250
        Number of steps once their length is known.
    rng : numpy.random.Generator or int, default 0
        The source of the random strategy.
    """

    name = "gradient"
    problems = ("LocalStrategy",)
    published: ClassVar[bool] = False  # whether it goes step by step as the authors' code does

    outputs: int | None = None
    step_size: float | None = None
    iterations: int = 250
    rng: np.random.Generator | int = 0

    def __post_init__(self) -> None:
        if self.outputs is not None:
            validate.size(outputs=self.outputs)
        if self.step_size is not None:
            validate.positive_number(step_size=self.step_size)
        validate.size(iterations=self.iterations)
        validate.generator(rng=self.rng)


@dataclass(frozen=True, slots=True, eq=False)
class PublishedGradient(ProjectedGradient):
    """The gradient descent of the authors' code, whose derivative omits a term."""

    name = "published_gradient"
    published = True


Function: TypeAlias = Callable[[Any], Any]
"""It takes a problem and returns a point, or a pair of a point and dual weights, or yields such items."""


@dataclass(frozen=True, slots=True, eq=False)
class Custom(Method):
    """A function that solves problems, under a name of its own."""

    name: str  # type: ignore[misc]
    classes: tuple[type, ...]
    function: Function

    def takes(self, problem: object) -> bool:
        return isinstance(problem, self.classes)


AUTO = Auto()

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        *(AUTO, FixedPoint(), Newton(), ClosedForm(), SoftmaxNewton(), SoftmaxGradient()),
        *(Exact(), Restart(), ProjectedGradient(), PublishedGradient()),
    )
}
"""The library's methods by their names, which stand for them with the default options."""

REGISTERED: dict[str, Custom] = {}


def register(name: str, method: Function, problems: object = Problem) -> None:
    """Give a function a name, by which ``fast.solve(problem, method=name)`` calls it in this process.

    Raises `InvalidInputError` or `InputTypeError` for the name of one of the library's methods, an object that cannot
    be called, or problems that are no classes of problems. A function that had the name before is replaced.

    Parameters
    ----------
    name : str
        The method's name.
    method : callable
        Takes a problem and returns a point, as `problem.as_primal` takes it (for noise on a dense geometry its
        covariance on the basis), or a pair of a point and dual weights, or of a point and None; for a product always a
        pair. A generator function yields them one after another: the best point and the best weights are kept, and the
        generator is closed once they are proven within the tolerance or a limit is reached.
    problems : class of problems, or tuple of them, default any
        The problems that the method solves.

    Examples
    --------
    >>> import numpy as np
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> def independent(problem):
    ...     return np.eye(len(problem.basis))
    >>> fast.register("independent", independent, problems=dm.FitnessForUse)
    >>> answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(2)), method="independent", tol=0.6)
    >>> answer.status.name, round(answer.objective, 6), answer.solver
    ('CERTIFIED', 2.0, 'own:independent')
    """
    called = validate.text(name=name)
    if not called.isidentifier() or called in METHODS:
        raise InvalidInputError(f"name must be an identifier and none of {', '.join(METHODS)}, got {name!r}")
    classes = problems if isinstance(problems, tuple) else (problems,)
    if not classes or not all(isinstance(kind, type) and issubclass(kind, Problem) for kind in classes):
        raise InputTypeError(
            f"problems must be a class of problems, or a tuple of them, got {validate.shown(problems)}"
        )
    REGISTERED[called] = Custom(called, classes, validate.function(method=method))


def method_for(problem: object, method: object) -> Method:
    """Return the method of a name, or a method or a function as it is given; refuse one that is for other problems."""
    if isinstance(method, str):
        known = {name: method for name, method in (METHODS | REGISTERED).items() if method.takes(problem)}
        if method in REGISTERED and method not in known:
            names = ", ".join(kind.__name__ for kind in REGISTERED[method].classes)
            raise InputTypeError(f"method {method!r} is registered for {names}, got a {type(problem).__name__}")
        return known[validate.choice([*known], method=method)]
    if not isinstance(method, Method):
        if not callable(method):
            raise InputTypeError(
                f"method must be a name, a method of dualmech.fast or a function of the problem, "
                f"got {type(method).__name__}"
            )
        return Custom(str(getattr(method, "__name__", type(method).__name__)), (Problem,), method)
    if not method.takes(problem):
        raise InputTypeError(
            f"method {method.name!r} is for {', '.join(method.problems)}, got a {type(problem).__name__}"
        )
    return method


def needs_matrix(name: str | None) -> bool:
    """Say whether a method of the library needs a matrix of queries, whatever structure the workload has."""
    return name in METHODS and METHODS[name].on_matrix


def owners(option: str) -> Iterator[str]:
    """Yield the methods that have an option, as they are called."""
    for method in METHODS.values():
        if option in {field.name for field in fields(method)}:
            yield type(method).__name__
