"""Local privacy in formulas: the best strategy, the nearest strategy, and non-negative estimates."""

from __future__ import annotations

import numpy as np

from dualmech.problems.local.estimate import NonnegativeEstimate
from dualmech.problems.local.projection import LocalProjection
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.reference.formulas.writing import Formula, Line, Program, Symbol

SQUARED = Line(
    r"(\operatorname{tr} R Z)^2"
    r" \le \sum_S w_S (s^{\top} p_S) \lVert V_S \rVert^2 \cdot \sum_S w_S y^{\top} p_S",
    "by Cauchy and Schwarz",
)


def strategy(problem: LocalStrategy) -> Formula:
    """State the best local strategy for the average or the worst user."""
    queries, users = problem.workload.shape
    worst = problem.criterion == "worst"
    symbols = (
        Symbol("W", "the queries, a row each, over the user types", (queries, users), problem.workload.dense),
        Symbol(
            "R",
            r"a root, $R^{\top} R = W^{\top} W$" + (", up to a constant in each query" if worst else ""),
            tuple(problem.root.shape),
        ),
        Symbol(r"\varepsilon", r"the privacy; $c = e^{\varepsilon} - 1$", (), lambda: np.array(problem.epsilon)),
        Symbol(
            "p_S",
            r"the pattern $(1 + c 1_S) / (n + c \lvert S \rvert)$: "
            r"a report that types in S make $e^{\varepsilon}$ times as often as others",
        ),
    )
    every = "for all sets S of types, not empty and not all"
    columns = Line(r"\sum_S w_S p_S = 1", "columns of a strategy are probabilities", "columns")
    sought = (
        Symbol("w_S", "weights of the patterns", (2**users - 2,)),
        Symbol("Q", "the strategy, with the rows $w_S p_S$", part="strategy" if worst else "itself"),
    )
    state = _worst if worst else _average
    return state(symbols, sought, columns, every, problem)


def _average(
    symbols: tuple[Symbol, ...], sought: tuple[Symbol, ...], columns: Line, every: str, problem: LocalStrategy
) -> Formula:
    size, users = problem.root.shape
    shares = Symbol("s", "n times the prior over types", (users,), lambda: users * problem.prior)
    gram = Symbol("G", r"$G = \sum_S w_S p_S p_S^{\top} / (s^{\top} p_S)$", (users, users))
    return Formula(
        (*symbols, shares),
        (*sought, gram),
        Program("minimise", r"\operatorname{tr}(R G^{-1} R^{\top})", "$w \\ge 0$", (columns,)),
        (
            Symbol("Z", "any matrix", (users, size), part="matrix"),
            Symbol("y", "costs of types", (users,), part="costs"),
        ),
        Program(
            "maximise",
            r"(\operatorname{tr} R Z)^2 / \sum_u y_u",
            "Z and y",
            (Line(r"\lVert Z^{\top} p_S \rVert^2 \le (y^{\top} p_S) (s^{\top} p_S)", every, "patterns"),),
        ),
        (
            Line(
                r"\operatorname{tr} R Z = \sum_S w_S V_S^{\top} Z^{\top} p_S"
                r" \le \sum_S w_S \lVert V_S \rVert \sqrt{(y^{\top} p_S) (s^{\top} p_S)}",
                r"where $\sum_S w_S V_S p_S^{\top} = R$",
            ),
            SQUARED,
            Line(r"\sum_S w_S y^{\top} p_S = \sum_u y_u", "and the first factor is the objective of the best V"),
        ),
    )


def _worst(
    symbols: tuple[Symbol, ...], sought: tuple[Symbol, ...], columns: Line, every: str, problem: LocalStrategy
) -> Formula:
    size, users = problem.root.shape
    second = r"\sum_S w_S (p_S)_u \lVert V_S \rVert^2"
    return Formula(
        symbols,
        (
            *sought,
            Symbol("V_S", "what report S adds to the answers", (size,)),
            Symbol("t", "the largest variance of a user"),
        ),
        Program(
            "minimise",
            "t",
            "$w \\ge 0$ and V",
            (
                columns,
                Line(r"\sum_S w_S V_S p_S^{\top} = R", "answers have no bias", "unbiased"),
                Line(rf"{second} - \lVert R_u \rVert^2 \le t", "for all types $u$", "users"),
            ),
        ),
        (
            Symbol("Z", "any matrix", (users, size), part="matrix"),
            Symbol("y", "costs of types", (users,), part="costs"),
            Symbol("s", "n times a prior over types, which the adversary chooses", (users,)),
        ),
        Program(
            "maximise",
            r"(\operatorname{tr} R Z)^2 / (n \sum_u y_u) - \frac{1}{n} \sum_u s_u \lVert R_u \rVert^2",
            r"Z, y and $s \ge 0$",
            (
                Line(r"\lVert Z^{\top} p_S \rVert^2 \le (y^{\top} p_S) (s^{\top} p_S)", every, "patterns"),
                Line(r"\sum_u s_u = n", "", "prior"),
            ),
        ),
        (
            Line(
                r"n t \ge \sum_S w_S (s^{\top} p_S) \lVert V_S \rVert^2 - \sum_u s_u \lVert R_u \rVert^2",
                "since the s sum to n",
            ),
            SQUARED,
            Line(r"\sum_S w_S y^{\top} p_S = \sum_u y_u"),
        ),
    )


DISTANCE = r"\frac{1}{2} \lVert Q - R \rVert_F^2"


def projection(problem: LocalProjection) -> Formula:
    """State the nearest local strategy, with free or fixed minimum probabilities of outputs."""
    shape, fixed = tuple(problem.matrix.shape), problem.floor is not None
    floor = Symbol(
        "z", "the least probability of each output", shape[:1], (lambda: np.asarray(problem.floor)) if fixed else None
    )
    symbols = (
        Symbol("R", "the matrix to project", shape, lambda: problem.matrix),
        Symbol(r"\varepsilon", "the privacy", (), lambda: np.array(problem.epsilon)),
    )
    strategy = Symbol("Q", "the strategy: how often type $u$ reports $o$", shape, part="itself")
    limits = (
        Line(r"\sum_o Q_{ou} = 1", "for all types $u$", "columns"),
        Line(r"Q_{ou} \ge z_o", "for all outputs $o$", "least"),
        Line(r"Q_{ou} \le e^{\varepsilon} z_o", "for all outputs $o$", "most"),
    )
    program = Program("minimise", DISTANCE, "Q" if fixed else r"Q and $z \ge 0$", limits)
    sums = Symbol(r"\lambda", "multipliers of the columns' sums", shape[1:], part="sums")
    more, dual, proof = _column_by_column() if fixed else _by_ratios(shape)
    given_symbols, sought = ((*symbols, floor), (strategy,)) if fixed else (symbols, (strategy, floor))
    return Formula(given_symbols, sought, program, (sums, *more), dual, proof)


def _column_by_column() -> tuple[tuple[Symbol, ...], Program, tuple[Line, ...]]:
    clipped = r"column $u$ of $R + 1 \lambda^{\top}$, clipped to lie between $z$ and $e^{\varepsilon} z$"
    value = r"\sum_u \frac{1}{2} \lVert q_u - R_u \rVert^2 - \lambda_u (1^{\top} q_u - 1)"
    identity = Line(
        rf"{DISTANCE} = {DISTANCE} - \sum_u \lambda_u (\sum_o Q_{{ou}} - 1)",
        "and the right side is least, column by column, at $q_u$",
    )
    return (Symbol("q_u", clipped),), Program("maximise", value, r"$\lambda$"), (identity,)


def _by_ratios(shape: tuple[int, ...]) -> tuple[tuple[Symbol, ...], Program, tuple[Line, ...]]:
    meaning = "multipliers of the ratios: of the lower limits where positive, of the upper ones where negative"
    more = (Symbol(r"\gamma", meaning, shape, part="ratios"), Symbol("D", r"$D = 1 \lambda^{\top} + \gamma$", shape))
    value = r"\sum_u \lambda_u - \frac{1}{2} \lVert D \rVert_F^2 - \langle D, R \rangle"
    rule = Line(r"\sum_u \max(\gamma_{ou}, 0) \ge e^{\varepsilon} \sum_u \max(-\gamma_{ou}, 0)", "for all outputs $o$")
    proof = (
        Line(
            rf"{DISTANCE} \ge {DISTANCE} - \langle D, Q \rangle + \sum_u \lambda_u",
            "for such multipliers and every strategy",
        ),
        Line(
            rf"{DISTANCE} - \langle D, Q \rangle \ge"
            r" - \frac{1}{2} \lVert D \rVert_F^2 - \langle D, R \rangle",
            "with equality at $Q = R + D$",
        ),
    )
    return more, Program("maximise", value, r"$\lambda$ and $\gamma$", (rule,)), proof


def estimate(problem: NonnegativeEstimate) -> Formula:
    """State the non-negative data nearest to noisy answers."""
    queries, cells = problem.workload.shape
    has_total = problem.total is not None
    symbols = [
        Symbol("W", "the queries, a row each, over the cells", (queries, cells), problem.workload.dense),
        Symbol("a", "the noisy answers", (queries,), lambda: problem.answers),
    ]
    constraints = [Line(r"x \ge 0", "no count is negative")]
    if has_total:
        symbols.append(Symbol("n", "the number of records", (), lambda: np.array(problem.total)))
        constraints.append(Line(r"\sum_u x_u = n", "", "total"))
    bound_terms = r"n \min_u (W^{\top} \nu)_u - \nu^{\top} a" if has_total else r"- \nu^{\top} a"
    rule = () if has_total else (Line(r"W^{\top} \nu \ge 0"),)
    return Formula(
        tuple(symbols),
        (Symbol("x", "the data", (cells,), part="itself"),),
        Program("minimise", r"\frac{1}{2} \lVert W x - a \rVert^2", "x", tuple(constraints)),
        (Symbol(r"\nu", "a direction, optimally the residual $W x - a$", (queries,), part="residual"),),
        Program("maximise", rf"\frac{{1}}{{2}} \max(0, {bound_terms})^2 / \lVert \nu \rVert^2", r"$\nu \neq 0$", rule),
        (
            Line(r"\lVert W x - a \rVert \lVert \nu \rVert \ge \nu^{\top} W x - \nu^{\top} a", "by Cauchy and Schwarz"),
            Line(
                r"\nu^{\top} W x \ge n \min_u (W^{\top} \nu)_u" if has_total else r"\nu^{\top} W x \ge 0",
                "since x is not negative",
            ),
        ),
    )
