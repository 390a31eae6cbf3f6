"""Query weighting, common mechanisms and the stages of a refinement, in formulas."""

from __future__ import annotations

from typing import Any

import numpy as np

from dualmech.formulas.records import Line, Program, Statement, Symbol
from dualmech.problems.common import CommonMechanism
from dualmech.problems.stages import RefinementStage
from dualmech.problems.weighting import QueryWeighting


def weighting(problem: QueryWeighting) -> Statement:
    """State query weighting, for Gaussian or for Laplace noise."""
    pure = problem.privacy == "pure"
    (queries, cells), design = problem.workload.shape, problem.design
    count = design.shape[0]
    rows = r"\lvert Q U \rvert" if pure else r"(Q U) \circ (Q U)"
    dense = design.dense if hasattr(design, "dense") else lambda: np.asarray(design)
    sines = problem.geometry.name == "sines"
    loads: Any = None if sines else lambda: problem.sensitivities
    shape = (count, cells if problem.neighbours is None else problem.neighbours.shape[1])
    given = (
        Symbol("W", "the queries, a row each, over the cells", (queries, cells), problem.workload.dense),
        Symbol("Q", "the design queries, a row each", tuple(design.shape), dense),
        Symbol("L", r"$W = L Q$, by least squares", (queries, count)),
        Symbol("c_i", "the squared length of column i of L", (count,), lambda: problem.costs),
        Symbol("U", "the differences of neighbouring data sets, a column each: $U = I$ for single records"),
        Symbol("N", f"what a unit of each weight costs neighbours, ${rows}$", shape, loads),
    )
    exponents = (r"^{1/3}", r"^{2/3}", "^3") if pure else (r"^{1/2}", r"^{1/2}", "^2")
    power = "^2" if pure else ""
    objective = rf"\sum_i c_i / u_i{power}"
    term = rf"c_i{exponents[0]} g_i{exponents[1]}"
    bound = rf"(\sum_i {term}){exponents[2]}"
    noise = (
        r"Laplace noise on the rows of $\operatorname{diag}(u) Q$"
        if pure
        else "noise of variance $1 / u_i$ on row i of Q"
    )
    return Statement(
        given,
        (Symbol("u", f"weights of the design queries: {noise}", (count,), part="itself"),),
        Program(
            "minimise", objective, "$u > 0$", (Line(r"N^{\top} u \le 1", "for all neighbours", "privacy"),)
        ),
        (
            Symbol("y", "weights on pairs of neighbours, none negative", shape[1:], part="neighbour_weights"),
            Symbol("g", "$g = N y$", (count,)),
        ),
        Program("maximise", bound, r"$y \ge 0$", (Line(r"\sum_j y_j \le 1"),)),
        (
            Line(r"\sum_i g_i u_i = y^{\top} N^{\top} u \le 1", r"since $\sum_j y_j \le 1$"),
            Line(
                rf"{bound} \le {objective} \cdot (\sum_i g_i u_i){power}",
                "by Hölder's inequality" if pure else "by Cauchy and Schwarz",
            ),
        ),
        ()
        if problem.geometry.independent
        else ("The design queries depend on each other: least squares does better.",),
    )


def common(problem: CommonMechanism) -> Statement:
    """State the common mechanism."""
    count, size, _ = problem.bounds.shape
    cells = problem.basis.shape[1]
    given = (
        Symbol("B", "rows that span what all mechanisms answer", (size, cells), lambda: problem.basis),
        *(
            Symbol(
                f"P_{{{i}}}",
                f"the covariance with which mechanism {i} answers $B x$",
                (size, size),
                lambda i=i: problem.bounds[i],
            )  # type: ignore[misc]
            for i in range(count)
        ),
    )
    return Statement(
        given,
        (Symbol(r"\Sigma", "the covariance with which the common mechanism answers $B x$", (size, size)),),
        Program(
            "minimise",
            r"\operatorname{tr} \Sigma",
            r"symmetric $\Sigma$",
            (Line(r"\Sigma \succeq P_i", "for all mechanisms i: it can be answered from each", "common"),),
        ),
        (Symbol("Y_i", "a matrix weight on mechanism i", (size, size)),),
        Program(
            "maximise", r"\sum_i \operatorname{tr}(P_i Y_i)", r"$Y_i \succeq 0$", (Line(r"\sum_i Y_i = I"),)
        ),
        (
            Line(
                r"\operatorname{tr} \Sigma = \sum_i \operatorname{tr}(\Sigma Y_i)", r"since $\sum_i Y_i = I$"
            ),
            Line(
                r"\operatorname{tr}((\Sigma - P_i) Y_i) \ge 0",
                "the trace of a product of two positive semidefinite matrices",
            ),
        ),
        ("Nothing is common to all: the mechanism releases nothing.",) if problem.trivial else (),
    )


def stage(problem: RefinementStage) -> Statement:
    """State one stage of the refined privacy ordering."""
    free = problem.open.shape[1]
    moves, queries = problem.moves.shape[1], len(problem.rows)
    given = (
        Symbol("S", "directions whose noise is settled, unit noise in each", tuple(problem.settled.shape)),
        Symbol(
            "O",
            r"directions whose noise is still free: $\Sigma = S S^{\top} + O M O^{\top}$",
            tuple(problem.open.shape),
        ),
        Symbol(r"\beta_i", "how far neighbours i move what is free", (free, moves), lambda: problem.moves),
        Symbol("o_i", "what neighbours i have paid already", (moves,), lambda: problem.costs),
        Symbol(r"\nu_j", "query j on what is free", (queries, free), lambda: problem.rows),
        Symbol("a_j", "the variance that query j has already", (queries,), lambda: problem.variances),
        Symbol("c_j", "its target", (queries,), lambda: problem.problem.targets),
    )
    norm = r"\lVert \operatorname{diag}(\sqrt{\mu}) \nu \beta \operatorname{diag}(\sqrt{\lambda}) \rVert_*^2"
    return Statement(
        given,
        (
            Symbol("M", "the covariance of the noise that is free", (free, free)),
            Symbol(r"\alpha", "the worst cost of neighbours that are open"),
        ),
        Program(
            "minimise",
            r"\alpha",
            r"$M \succ 0$",
            (
                Line(
                    r"o_i + \beta_i^{\top} M^{-1} \beta_i \le \alpha", "for all open neighbours i", "privacy"
                ),
                Line(r"a_j + \nu_j M \nu_j^{\top} \le c_j", "for all open queries j", "accuracy"),
            ),
        ),
        (
            Symbol(r"\lambda", "weights on open neighbours", (moves,)),
            Symbol(r"\mu", "weights on open queries", (queries,)),
        ),
        Program(
            "maximise",
            rf"\sum_i \lambda_i o_i + {norm}",
            r"$\lambda, \mu \ge 0$",
            (Line(r"\sum_i \lambda_i = 1"), Line(r"\sum_j \mu_j (c_j - a_j) \le 1")),
        ),
        (
            Line(
                r"\alpha \ge \sum_i \lambda_i o_i"
                r" + \lVert M^{-1/2} \beta \operatorname{diag}(\sqrt{\lambda}) \rVert_F^2",
                r"since $\sum_i \lambda_i = 1$",
            ),
            Line(
                r"1 \ge \lVert \operatorname{diag}(\sqrt{\mu}) \nu M^{1/2} \rVert_F^2",
                r"since $\sum_j \mu_j (c_j - a_j) \le 1$",
            ),
            Line(
                r"\lVert X Y \rVert_* \le \lVert X \rVert_F \lVert Y \rVert_F", "in whose product M cancels"
            ),
        ),
    )
