"""Families of problems: what the command line asks of each, in one record per family.

To add one, write its problem and its two solvers, and a record here; the conformance suite runs every record through
all that a user can do with a problem. Problems are known by the names of their classes, so that nothing is loaded
until one is at hand: the help of a command shows every family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dualmech.errors import InputTypeError

if TYPE_CHECKING:
    from dualmech.problems.softmax import SoftmaxFitness
    from dualmech.problems.weighting import QueryWeighting

Measure = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Family:
    """A family of problems, as the command line and reports speak of it."""

    name: str  # what ``--problem`` calls it
    problems: tuple[str, ...]  # the classes that belong to it
    measure: Measure  # says what the objective of one of them is
    program: str  # program, dual: what is asked, and what proves an answer, in the words of a paper
    dual: str
    options: tuple[str, ...] = ()  # those of the command line that do not belong to all
    help: str = ""  # what ``--help`` says of it; empty where the command line does not pose it
    steps: str = "decompositions"  # what its fast solver counts
    at_a_cost: bool = False  # whether it is solved at a squared privacy cost of 1, to be spent otherwise


def _fitness_measure(problem: Any) -> str:
    return "factor on the targets" if type(problem).__name__ == "PrivacyFirst" else "squared privacy cost"


def _variance_measure(problem: Any) -> str:
    plain = not isinstance(problem.weights, tuple) and (problem.weights == 1).all()
    return "total variance" if plain else "weighted total variance"


def _weighting_measure(problem: QueryWeighting) -> str:
    return "total variance" if problem.geometry.independent else "bound on the total variance"


def _softmax_measure(problem: SoftmaxFitness) -> str:
    return "sum of the soft maxima" + (" and the weighted total variance" if problem.total_weight else "")


_COVARIANCE = ("covariance", "strategy")

FAMILIES = (
    Family(
        "fitness",
        ("FitnessForUse", "PrivacyFirst"),
        _fitness_measure,
        "minimise α over noise with (B u_i)' Σ⁻¹ (B u_i) ≤ α for all neighbours and v_j Σ v_j' ≤ c_j for all queries",
        "maximise ‖diag(√μ) W U diag(√λ)‖_*² over λ, μ ≥ 0 with Σ λ_i ≤ 1, Σ μ_j c_j ≤ 1",
        ("targets", "moe", "rho", "epsilon", "refine", *_COVARIANCE),
        "a variance target for every query at the least privacy cost",
    ),
    Family(
        "variance",
        ("TotalVariance",),
        _variance_measure,
        "minimise Σ w_j v_j Σ v_j' over noise with (B u_i)' Σ⁻¹ (B u_i) ≤ 1 for all neighbours",
        "maximise ‖diag(√w) W U diag(√λ)‖_*² over λ ≥ 0 with Σ λ_i ≤ 1",
        ("weights", "rho", "epsilon", *_COVARIANCE),
        "the least total variance",
        at_a_cost=True,
    ),
    Family(
        "weighting",
        ("QueryWeighting",),
        _weighting_measure,
        "minimise Σ c_i / u_i over weights u > 0 of the design queries with N'u ≤ 1, N their squared entries",
        "maximise (Σ √(c_i (N y)_i))² over y ≥ 0 with Σ y_i ≤ 1",
        ("design", "privacy", "rho", "epsilon", "query_weights"),
        "the best weights of given design queries",
        "factorisations",
        at_a_cost=True,
    ),
    Family(
        "softmax",
        ("SoftmaxFitness",),
        _softmax_measure,
        "minimise (1/t1) log Σ exp(t1 · costs) + (1/t2) log Σ exp(t2 · variances over targets) over noise",
        "maximise 2 ‖diag(√(μ/c + w)) W U diag(√λ)‖_* + H(λ)/t1 + H(μ)/t2 over shares λ, μ",
        ("targets", "moe", "t1", "t2", "total_weight", *_COVARIANCE),
        "fitness with soft maxima",
        "Newton steps",
    ),
    Family(
        "common",
        ("CommonMechanism",),
        lambda problem: "trace of the common covariance",
        "minimise tr Σ over Σ ⪰ P_i, the covariance with which mechanism i answers what all have in common",
        "maximise Σ tr(P_i Y_i) over Y_i ⪰ 0 with Σ Y_i = I",
    ),
    Family(
        "reuse",
        ("ReuseFitness",),
        lambda problem: "squared privacy cost with the release",
        "minimise α over noise that meets the targets and keeps what is released, K Σ K' ⪯ I",
        "maximise a trace norm over weights λ on neighbours, μ on queries and Ω ⪰ 0 on the release",
    ),
    Family(
        "local",
        ("LocalStrategy",),
        lambda problem: f"variance of the {problem.criterion} user",
        "minimise tr(W G⁺ W') over ε-LDP strategies Q, G = Q' diag(Q1)⁻¹ Q",
        "maximise (tr W Z)² / 1'y subject to ‖Z'p_S‖² ≤ y'p_S for all extremal patterns p_S",
        steps="Newton steps",
    ),
    Family(
        "projection",
        ("LocalProjection",),
        lambda problem: "half the squared distance",
        "minimise ½ ‖Q - R‖² over ε-LDP strategies Q",
        "maximise the Lagrangian over multipliers of the columns' sums and of the ratios",
        steps="Newton steps",
    ),
    Family(
        "estimate",
        ("NonnegativeEstimate",),
        lambda problem: "half the squared distance",
        "minimise ½ ‖W x - y‖² over x ≥ 0, with the total if it is known",
        "maximise the Lagrangian at the residual W x - y",
        steps="updates of the factors",
    ),
)

POSED = tuple(family for family in FAMILIES if family.help)  # the families that the command line poses


def family_of(problem: Any) -> Family:
    """Return the family that a problem belongs to.

    Raises `InputTypeError` for no problem of the library.
    """
    kinds = {kind.__name__ for kind in type(problem).__mro__}
    for family in FAMILIES:
        if not kinds.isdisjoint(family.problems):
            return family
    raise InputTypeError(f"problem must be one of the library's, got {type(problem).__name__}")
