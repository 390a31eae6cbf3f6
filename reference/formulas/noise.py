"""Gaussian noise, in formulas: fitness for use, privacy first, total variance, soft maxima, and reuse of a release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dualmech.geometry.dense import Dense
from dualmech.linalg import is_identity, to_dense
from dualmech.neighbours import Relation
from dualmech.problems.base import AnyProblem
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.softmax import SoftmaxFitness
from dualmech.problems.variance import TotalVariance
from dualmech.reference.formulas.writing import Formula, Line, Program, Symbol
from dualmech.validate import Array

if TYPE_CHECKING:
    from dualmech.problems.reuse import ReuseFitness

COST = r"(B u_i)^{\top} \Sigma^{-1} (B u_i)"
VARIANCE = r"v_j \Sigma v_j^{\top}"
PAID = Line(rf"\sum_i \lambda_i {COST} = \lVert \Sigma^{{-1/2}} B U \operatorname{{diag}}(\sqrt{{\lambda}}) \rVert_F^2")
TRACE_NORM = r"\lVert \operatorname{diag}(\sqrt{\mu}) W U \operatorname{diag}(\sqrt{\lambda}) \rVert_*^2"
HOLDER = Line(
    r"\lVert X Y \rVert_* \le \lVert X \rVert_F \lVert Y \rVert_F",
    r"for the two matrices above: in their product $\Sigma$ cancels",
)
NORM = (
    r"$\lVert X \rVert_*$ is the sum of the singular values of $X$, "
    r"$\lVert X \rVert_F^2$ the sum of squared entries."
)


def matrices(problem: AnyProblem) -> tuple[Symbol, ...]:
    """Return the symbols W, B, L and U of a problem about Gaussian noise."""
    geometry = problem.geometry
    workload = getattr(geometry, "workload", problem.workload)
    queries, cells = workload.shape
    W = Symbol("W", "the queries, a row each, over the cells", (queries, cells), workload.dense)
    if geometry.name != "dense":
        identity = Symbol("B = I, L = W", "noise is added to the cells; $v_j$ is row $j$ of $W$")
        return W, identity, *_moves(problem, cells)
    rank = geometry.rank
    if is_identity(geometry.basis):
        identity = Symbol("B = I, L = W", "noise is added to the cells themselves; $v_j$ is row $j$ of $W$")
        return W, identity, *_moves(problem, cells)
    basis = Symbol("B", "rows to which noise is added; they span the rows of W", (rank, cells), lambda: geometry.basis)
    factor = Symbol(
        "L", "$W = L B$; $v_j$ is row $j$ of $L$", (queries, rank), lambda: _coordinates(geometry)[:queries]
    )
    return W, basis, factor, *_moves(problem, cells)


def _coordinates(geometry: Dense) -> Array:
    rows = np.asarray(geometry.representation)
    return np.where(np.abs(rows) > 1e-14 * np.abs(rows).max(), rows, 0.0)


def _moves(problem: AnyProblem, cells: int) -> tuple[Symbol, ...]:
    neighbours = getattr(problem, "neighbours", None)
    if neighbours is None:
        return (Symbol("U = I", "neighbours differ by one record; $u_i$ is column $i$ of $U$"),)
    differences = getattr(problem.geometry, "neighbours", None)
    meaning = "the differences of neighbouring data sets, a column $u_i$ each"
    if isinstance(neighbours, Relation):
        meaning += f" ({neighbours})"
    if differences is None or isinstance(differences, Relation) or not hasattr(differences, "shape"):
        return (Symbol("U", meaning),)
    return (Symbol("U", meaning, tuple(differences.shape), lambda: to_dense(differences)),)


def covariance(problem: AnyProblem) -> Symbol:
    geometry = problem.geometry
    rank = geometry.rank if geometry.name == "dense" else problem.workload.shape[1]
    return Symbol(r"\Sigma", "the covariance of the noise on $B x$", (rank, rank), part="itself")


def definite(problem: AnyProblem) -> str:
    num_insensitive = len(getattr(problem.geometry, "unmoved", ()))
    return r"$\Sigma \succeq 0$ whose range holds every $B u_i$" if num_insensitive else r"$\Sigma \succ 0$"


def notes(problem: AnyProblem) -> tuple[str, ...]:
    """Return notes about the exactly released part and the structure of the problem."""
    geometry = problem.geometry
    lines = [NORM]
    if len(getattr(geometry, "unmoved", ())):
        lines.append(f"No neighbour moves {unmoved_words(problem)}: released exactly, at no cost.")
        lines.append(r"$\Sigma^{-1}$ is the inverse of $\Sigma$ on its range, the pseudo-inverse.")
    if geometry.name == "product":
        lines.append(
            rf"$W = W_1 \otimes \dots \otimes W_{{{len(geometry.factors)}}}$: both sides are products over the "
            "factors, each a problem of this form."
        )
    elif geometry.name == "split":
        lines.append("Noise is split by attribute: the interval is honest, and not always tight.")
    elif geometry.name == "stream":
        lines.append("The rows of W follow a rule: both sides are computed from it, without a matrix.")
    return tuple(lines)


def unmoved_words(problem: AnyProblem) -> str:
    """Describe the insensitive combinations of the rows of B."""
    rows = problem.geometry.unmoved
    if len(rows) == 1 and np.ptp(rows[0]) <= 1e-9 * np.abs(rows[0]).max():
        return "the sum of all cells" if is_identity(problem.geometry.basis) else "the sum of all rows of B"
    return f"a space of dimension {len(rows)} of combinations of the rows of B"


def targets(problem: AnyProblem) -> Symbol:
    values = problem.targets
    if isinstance(values, tuple):
        return Symbol("c_j", "variance targets, products of the targets of the factors")
    return Symbol("c", "the variance targets", (len(values),), lambda: np.asarray(values))


def neighbour_weights(count: int | None) -> Symbol:
    shape = None if count is None else (count,)
    return Symbol(r"\lambda", "non-negative weights on pairs of neighbours", shape, part="neighbour_weights")


def query_weights(count: int | None) -> Symbol:
    shape = None if count is None else (count,)
    return Symbol(r"\mu", "non-negative weights on queries", shape, part="query_weights")


def counts(problem: AnyProblem) -> tuple[int | None, int | None]:
    """Return the numbers of weights on neighbours and on queries, or None for products."""
    if problem.geometry.name == "dense":
        return problem.geometry.moves.shape[1], problem.geometry.workload.shape[0]
    return (None, None) if problem.geometry.name in ("product", "split") else problem.workload.shape[::-1]


@dataclass(frozen=True, slots=True, eq=False)
class Goal:
    """The symbols of fitness for use, or of privacy first."""

    sought: Symbol  # the objective
    cost: str  # the limit on the privacy cost
    limit: str = "1"  # the limit on the variances over their targets
    given: tuple[Symbol, ...] = ()

    @classmethod
    def of(cls, problem: AnyProblem) -> Goal:
        if not isinstance(problem, PrivacyFirst):
            return cls(Symbol(r"\alpha", "the squared privacy cost"), r"\alpha")
        budget = Symbol(r"\gamma", "the squared privacy cost that may be spent", (), lambda: np.array(problem.cost))
        return cls(Symbol(r"\kappa", "the factor on the targets"), r"\gamma", r"\kappa", (budget,))

    @property
    def factor(self) -> str:
        return "" if self.limit == "1" else f"{self.limit} "

    def bound(self, norm: str) -> str:
        return rf"\frac{{1}}{{{self.cost}}} {norm}" if self.given else norm


def bound_lines(cost: str, limit: str, remark: str) -> tuple[Line, ...]:
    """Return the proof that weights bound noise with limits on cost and variances."""
    accuracy = rf"{limit} \ge \sum_j \mu_j {VARIANCE}"
    square = r"\lVert \operatorname{diag}(\sqrt{\mu}) L \Sigma^{1/2} \rVert_F^2"
    return (
        Line(rf"{cost} \ge {PAID.formula}", r"since $\sum_i \lambda_i \le 1$"),
        Line(rf"{accuracy} = {square}", remark),
        HOLDER,
    )


def fitness(problem: FitnessForUse | PrivacyFirst) -> Formula:
    """State fitness for use, or privacy first: the minimum common target scaling at a given cost."""
    moves, queries = counts(problem)
    aim = Goal.of(problem)
    return Formula(
        (*matrices(problem), targets(problem), *aim.given),
        (covariance(problem), aim.sought),
        Program(
            "minimise",
            aim.sought.name,
            definite(problem),
            (
                Line(rf"{COST} \le {aim.cost}", "for all neighbours $i$", "privacy"),
                Line(rf"{VARIANCE} \le {aim.factor}c_j", "for all queries $j$", "accuracy"),
            ),
        ),
        (neighbour_weights(moves), query_weights(queries)),
        Program(
            "maximise",
            aim.bound(TRACE_NORM),
            r"$\lambda, \mu \ge 0$",
            (Line(r"\sum_i \lambda_i \le 1"), Line(r"\sum_j \mu_j c_j \le 1")),
        ),
        bound_lines(aim.cost, aim.limit, r"since $\sum_j \mu_j c_j \le 1$"),
        notes(problem),
    )


def variance(problem: TotalVariance) -> Formula:
    moves, _ = counts(problem)
    dense = problem.geometry.name == "dense"
    count = problem.geometry.workload.shape[0] if dense else 0
    weights = Symbol(
        "w",
        "the weight of the variance of each query",
        (count,) if dense else None,
        (lambda: np.asarray(problem.asked_weights)) if dense else None,
    )
    norm = r"\lVert \operatorname{diag}(\sqrt{w}) W U \operatorname{diag}(\sqrt{\lambda}) \rVert_*^2"
    total = rf"\sum_j w_j {VARIANCE}"
    square = r"\lVert \operatorname{diag}(\sqrt{w}) L \Sigma^{1/2} \rVert_F^2"
    return Formula(
        (*matrices(problem), weights),
        (covariance(problem),),
        Program("minimise", total, definite(problem), (Line(rf"{COST} \le 1", "for all neighbours $i$", "privacy"),)),
        (neighbour_weights(moves),),
        Program("maximise", norm, r"$\lambda \ge 0$", (Line(r"\sum_i \lambda_i \le 1"),)),
        (
            Line(rf"1 \ge {PAID.formula}", r"since $\sum_i \lambda_i \le 1$"),
            Line(rf"{total} = {square}", "the objective"),
            HOLDER,
        ),
        notes(problem),
    )


# Fitness for use with soft maxima, in formulas.


def softmax(problem: SoftmaxFitness) -> Formula:
    """State fitness for use with soft maxima."""
    moves, queries = counts(problem)
    numbers = (
        Symbol("t_1", "sharpness of the soft maximum of costs", (), lambda: np.array(problem.t1)),
        Symbol("t_2", "sharpness of the soft maximum of variances", (), lambda: np.array(problem.t2)),
        Symbol(r"\omega", "weight of the total variance", (), lambda: np.array(problem.total_weight)),
    )
    norm = r"\operatorname{diag}(\sqrt{\mu / c + \omega}) W U \operatorname{diag}(\sqrt{\lambda})"
    return Formula(
        (*matrices(problem), targets(problem), *numbers),
        (
            covariance(problem),
            Symbol("g_i", f"the cost ${COST}$ of neighbours $i$"),
            Symbol("h_j", rf"the variance over its target, ${VARIANCE} / c_j$, of query $j$"),
        ),
        Program(
            "minimise",
            r"\frac{1}{t_1} \log \sum_i \exp(t_1 g_i) + \frac{1}{t_2} \log \sum_j \exp(t_2 h_j)"
            rf" + \omega \sum_j {VARIANCE}",
            definite(problem),
        ),
        (
            Symbol(r"\lambda", "shares of the neighbours", (moves or 0,), part="neighbour_weights"),
            Symbol(r"\mu", "shares of the queries", (queries or 0,), part="query_weights"),
            Symbol("H(p)", r"the entropy $- \sum_i p_i \log p_i$ of shares"),
        ),
        Program(
            "maximise",
            rf"2 \lVert {norm} \rVert_* + \frac{{1}}{{t_1}} H(\lambda) + \frac{{1}}{{t_2}} H(\mu)",
            r"$\lambda, \mu \ge 0$",
            (Line(r"\sum_i \lambda_i = 1"), Line(r"\sum_j \mu_j = 1")),
        ),
        (
            Line(r"\frac{1}{t} \log \sum_i \exp(t a_i) \ge \sum_i p_i a_i + \frac{1}{t} H(p)", "for any shares p"),
            Line(
                rf"\sum_i \lambda_i g_i + \sum_j (\mu_j / c_j + \omega) {VARIANCE} \ge 2 \lVert {norm} \rVert_*",
                "since $a^2 + b^2 \\ge 2 a b$ and",
            ),
            Line(HOLDER.formula, r"for roots of both sums, as matrices: in their product $\Sigma$ cancels"),
        ),
        notes(problem),
    )


# Fitness for use given an earlier release, in formulas.


def reuse(problem: ReuseFitness) -> Formula:
    """State fitness for use given an earlier release."""
    plain, count = fitness(problem.rows.together), len(problem.targets)
    geometry, (size, cells) = problem.geometry, problem.release.shape
    release = (
        Symbol("F", "the release, rows with unit noise", (size, cells), lambda: problem.release),
        Symbol("K", "$F = K B$", (size, geometry.rank), lambda: geometry.representation[count:]),
    )
    W = Symbol("W", "the requested queries, a row each", problem.workload.shape, problem.workload.dense)
    symbols = (W, *matrices(problem)[1:], targets(problem), *release)
    rows = r"[\operatorname{diag}(\sqrt{\mu}) W; \Omega^{1/2} F]"
    norm = rf"\lVert {rows} U \operatorname{{diag}}(\sqrt{{\lambda}}) \rVert_*^2"
    release_line = Line(r"K \Sigma K^{\top} \preceq I", "the release can be computed from all answers", "released")
    program = Program("minimise", r"\alpha", definite(problem), (*plain.program.constraints, release_line))
    dual = Program(
        "maximise",
        norm,
        r"$\lambda, \mu \ge 0$ and $\Omega \succeq 0$",
        (Line(r"\sum_i \lambda_i \le 1"), Line(r"\sum_j \mu_j c_j + \operatorname{tr} \Omega \le 1")),
    )
    weights = (
        neighbour_weights(geometry.moves.shape[1]),
        query_weights(count),
        Symbol(r"\Omega", "weights on the release, a matrix", (size, size), part="release_weights"),
    )
    proof = (
        Line(rf"\alpha \ge {PAID.formula}", r"since $\sum_i \lambda_i \le 1$"),
        Line(
            rf"1 \ge \sum_j \mu_j {VARIANCE} + \operatorname{{tr}}(\Omega K \Sigma K^{{\top}})",
            r"since $K \Sigma K^{\top} \preceq I$",
        ),
        Line(HOLDER.formula, r"for $X = [\operatorname{diag}(\sqrt{\mu}) L; \Omega^{1/2} K] \Sigma^{1/2}$"),
    )
    return Formula(symbols, plain.sought, program, weights, dual, proof, notes(problem))
