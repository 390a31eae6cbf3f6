"""Several epochs, in formulas: fitness for use, privacy first and total variance with several participations."""

from __future__ import annotations

import numpy as np

from dualmech.problems.base import AnyProblem
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.variance import TotalVariance
from dualmech.reference.formulas.noise import HOLDER, NORM, VARIANCE, Goal, covariance, query_weights, targets
from dualmech.reference.formulas.writing import Formula, Line, Program, Symbol

COMPLEMENT = Line(
    r"\begin{bmatrix} \Sigma & B \\ B^{\top} & Z \end{bmatrix} \succeq 0",
    r"so that $Z \succeq B^{\top} \Sigma^{-1} B$",
    "schur",
)
LAMBDA = r"\Lambda = \sum_p S_p^{\top} \Lambda_p S_p"
MEANS = r"\Lambda = \sum_p \frac{2 m_p}{\pi} S_p^{\top} \operatorname{arcsin}(\Lambda_p / m_p) S_p"
MASSES = Line(r"\sum_p m_p \le 1", r"$m_p$ the largest diagonal entry of $\Lambda_p$")
PAIRS = r"\Lambda = \Pi \circ G"
PAIRS_OF_SIGNS = r"\Lambda = \Pi \circ \frac{2}{\pi} \operatorname{arcsin}(G)"
PERSONS = Line(r"G \succeq 0, \; G_{ss} = 1", r"$\Pi_{st}$ the share of persons with parts in $s$ and $t$")


def stated(problem: AnyProblem) -> Formula:
    """State a problem with several participations per user."""
    return _variance(problem) if isinstance(problem, TotalVariance) else _fitness(problem)


def _matrices(problem: AnyProblem) -> tuple[Symbol, ...]:
    geometry = problem.geometry
    queries, steps = geometry.workload.shape
    rule = geometry.neighbours
    owner, qualifier = ("person", "at least ") if rule.at_least else ("phase", "")
    return (
        Symbol("W", "the queries, a row each, over the steps", (queries, steps), geometry.workload.dense),
        Symbol(
            "B", "rows to which noise is added; they span the rows of W", geometry.basis.shape, lambda: geometry.basis
        ),
        Symbol("L", "$W = L B$; $v_j$ is row $j$ of $L$", (queries, geometry.rank)),
        Symbol("S_p", f"selects the steps of {owner} $p$, up to {rule.times}, {qualifier}{rule.separation} apart"),
    )


def _all(problem: AnyProblem) -> str:
    return "for all persons $p$" if problem.geometry.neighbours.at_least else "for all phases $p$"


def _masses(problem: AnyProblem) -> tuple[str, Line]:
    """Return the definition of Λ, and the constraint on its weights."""
    if problem.geometry.neighbours.at_least:
        return PAIRS_OF_SIGNS if _of_signs(problem) else PAIRS, PERSONS
    return MEANS if _of_signs(problem) else LAMBDA, MASSES


def _of_signs(problem: AnyProblem) -> bool:
    return bool(problem.geometry.neighbours.parts == "signs")


def _more(problem: AnyProblem) -> tuple[Symbol, ...]:
    steps = problem.geometry.workload.shape[1]
    costs = Symbol("Z", r"the costs of pairs of steps, $B^{\top} \Sigma^{-1} B$", (steps, steps))
    return (costs,) if _of_signs(problem) else (costs, Symbol("d_p", "numbers whose sum bounds what $p$ costs"))


def _paid(problem: AnyProblem, costs: str, limit: str) -> tuple[Line, ...]:
    if _of_signs(problem):
        return (Line(rf"z^{{\top}} {costs} z \le {limit}", f"{_all(problem)} and signs $z$", "phases"),)
    return (
        Line(rf"\operatorname{{diag}}(d_p) \succeq {costs}", _all(problem), "phases"),
        Line(rf"1^{{\top}} d_p \le {limit}", _all(problem), "privacy"),
    )


def _weights(problem: AnyProblem) -> Symbol:
    shape = problem.geometry.phases.shape
    if problem.geometry.neighbours.at_least:
        return Symbol(
            r"\pi, G",
            "weights of a first part on the diagonal and of a next one above it, whose products are the shares of "
            "persons; and correlations of all steps",
            (2, *shape[1:], shape[1]),
            part="neighbour_weights",
        )
    return Symbol(
        r"\Lambda_p",
        "a mass $m_p$ times a correlation matrix, of each phase",
        (*shape, shape[1]),
        part="neighbour_weights",
    )


def _notes(problem: AnyProblem) -> tuple[str, ...]:
    at_least = problem.geometry.neighbours.at_least
    return _notes_of_costs(problem) + (
        ("Shares of persons and one $G$ for all need not reach the optimum.",) if at_least else ()
    )


def _notes_of_costs(problem: AnyProblem) -> tuple[str, ...]:
    if _of_signs(problem):
        return (
            NORM,
            r"The signs $z$ are all vectors of entries $\pm 1$.",
            r"$\frac{2}{\pi} \operatorname{arcsin}(G)$, entry by entry, is the mean of $z z^{\top}$ over signs of "
            r"normal numbers of covariance $G$.",
            "The dual may be less than the optimum.",
        )
    return (
        NORM,
        r"$\sum_i d_i$ with $\operatorname{diag}(d) \succeq C$ is at least $\langle C, R \rangle$ for every "
        r"correlation matrix $R$, and its minimum equals the maximum.",
    )


def _proof(cost: str, limit: str, remark: str) -> tuple[Line, ...]:
    square = r"\lVert \operatorname{diag}(\sqrt{\mu}) L \Sigma^{1/2} \rVert_F^2"
    return (
        Line(
            rf"{cost} \ge \langle B^{{\top}} \Sigma^{{-1}} B, \Lambda \rangle = "
            r"\lVert \Sigma^{-1/2} B \Lambda^{1/2} \rVert_F^2",
            r"since Λ is a mean over $p$",
        ),
        Line(rf"{limit} \ge \sum_j \mu_j {VARIANCE} = {square}", remark),
        HOLDER,
    )


def _fitness(problem: FitnessForUse | PrivacyFirst) -> Formula:
    aim = Goal.of(problem)
    norm = r"\lVert \operatorname{diag}(\sqrt{\mu}) W \Lambda^{1/2} \rVert_*^2"
    return Formula(
        (*_matrices(problem), targets(problem), *aim.given),
        (covariance(problem), aim.sought, *_more(problem)),
        Program(
            "minimise",
            aim.sought.name,
            r"$\Sigma \succ 0$ and Z" if _of_signs(problem) else r"$\Sigma \succ 0$, Z and d",
            (
                COMPLEMENT,
                *_paid(problem, r"S_p Z S_p^{\top}", aim.cost),
                Line(rf"{VARIANCE} \le {aim.factor}c_j", "for all queries $j$", "accuracy"),
            ),
        ),
        (_weights(problem), query_weights(problem.geometry.workload.shape[0])),
        Program(
            "maximise",
            aim.bound(norm),
            rf"${_masses(problem)[0]}$, $\mu \ge 0$",
            (_masses(problem)[1], Line(r"\sum_j \mu_j c_j \le 1")),
        ),
        _proof(aim.cost, aim.limit, r"since $\sum_j \mu_j c_j \le 1$"),
        _notes(problem),
    )


def _variance(problem: TotalVariance) -> Formula:
    count = problem.geometry.workload.shape[0]
    weights = Symbol(
        "w", "the weight of the variance of each query", (count,), lambda: np.asarray(problem.asked_weights)
    )
    total = rf"\sum_j w_j {VARIANCE}"
    square = r"\lVert \operatorname{diag}(\sqrt{w}) L \Sigma^{1/2} \rVert_F^2"
    first, *_, last = _proof("1", "1", "")
    inequality = Line(
        r"\begin{bmatrix} X & V^{\top} \\ V & Y \end{bmatrix} \succeq 0",
        r"so that $Y \succeq V X^{-1} V^{\top}$",
        "schur",
    )
    return Formula(
        (*_matrices(problem), weights),
        (
            covariance(problem),
            Symbol("X", r"$\Sigma^{-1}$, the inverse of the covariance", (problem.geometry.rank,) * 2),
            Symbol("V", r"$\operatorname{diag}(\sqrt{w}) L$"),
            Symbol("Y", "the total variance is its trace"),
            *_more(problem),
        ),
        Program(
            "minimise",
            r"\operatorname{tr} Y",
            "symmetric X and Y" if _of_signs(problem) else "symmetric X and Y, and d",
            (inequality, *_paid(problem, r"S_p B^{\top} X B S_p^{\top}", "1")),
        ),
        (_weights(problem),),
        Program(
            "maximise",
            r"\lVert \operatorname{diag}(\sqrt{w}) W \Lambda^{1/2} \rVert_*^2",
            rf"${_masses(problem)[0]}$",
            (_masses(problem)[1],),
        ),
        (first, Line(rf"{total} = {square}", "the objective"), last),
        _notes(problem),
    )
