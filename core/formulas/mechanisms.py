"""Query weighting, common mechanisms and the stages of a refinement, in formulas."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dualmech.formulas.records import Line, Program, Statement, Symbol
from dualmech.problems.common import CommonMechanism
from dualmech.problems.stages import RefinementStage
from dualmech.problems.weighting import QueryWeighting


def weighting(problem: QueryWeighting) -> Statement:
    """State query weighting, for Gaussian or for Laplace noise."""
    given = _design(problem)
    count, moves = given[-1].shape or (0, 0)
    pure = problem.privacy == "pure"
    power, noise, by = "", "noise of variance $1 / u_i$ on row i of Q", "by Cauchy and Schwarz"
    bound = r"(\sum_i c_i^{1/2} g_i^{1/2})^2"
    if pure:
        power, by = "^2", "by Hölder's inequality"
        noise = r"Laplace noise on the rows of $\operatorname{diag}(u) Q$"
        bound = r"(\sum_i c_i^{1/3} g_i^{2/3})^3"
    objective = rf"\sum_i c_i / u_i{power}"
    allowed = Line(r"N^{\top} u \le 1", "for all neighbours", "privacy")
    weights = (
        Symbol("y", "weights on pairs of neighbours, none negative", (moves,), part="neighbour_weights"),
        Symbol("g", "$g = N y$", (count,)),
    )
    proof = (
        Line(r"\sum_i g_i u_i = y^{\top} N^{\top} u \le 1", r"since $\sum_j y_j \le 1$"),
        Line(rf"{bound} \le {objective} \cdot (\sum_i g_i u_i){power}", by),
    )
    said = "The design queries depend on each other: least squares does better."
    return Statement(
        given,
        (Symbol("u", f"weights of the design queries: {noise}", (count,), part="itself"),),
        Program("minimise", objective, "$u > 0$", (allowed,)),
        weights,
        Program("maximise", bound, r"$y \ge 0$", (Line(r"\sum_j y_j \le 1"),)),
        proof,
        () if problem.geometry.independent else (said,),
    )


def _design(problem: QueryWeighting) -> tuple[Symbol, ...]:
    """Return the queries, the design, and what they cost."""
    (queries, cells), design = problem.workload.shape, problem.design
    count = design.shape[0]
    rows = r"\lvert Q U \rvert" if problem.privacy == "pure" else r"(Q U) \circ (Q U)"
    dense = design.dense if hasattr(design, "dense") else lambda: np.asarray(design)
    loads: Any = None if problem.geometry.name == "sines" else lambda: problem.sensitivities
    shape = (count, cells if problem.neighbours is None else problem.neighbours.shape[1])
    return (
        Symbol("W", "the queries, a row each, over the cells", (queries, cells), problem.workload.dense),
        Symbol("Q", "the design queries, a row each", (count, cells), dense),
        Symbol("L", r"$W = L Q$, by least squares", (queries, count)),
        Symbol("c_i", "the squared length of column i of L", (count,), lambda: problem.costs),
        Symbol("U", "the differences of neighbouring data sets, a column each: $U = I$ for single records"),
        Symbol("N", f"what a unit of each weight costs neighbours, ${rows}$", shape, loads),
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
                partial(np.asarray, bound),
            )
            for i, bound in enumerate(problem.bounds)
        ),
    )
    return Statement(
        given,
        (
            Symbol(
                r"\Sigma",
                "the covariance with which the common mechanism answers $B x$",
                (size, size),
                part="itself",
            ),
        ),
        Program(
            "minimise",
            r"\operatorname{tr} \Sigma",
            r"symmetric $\Sigma$",
            (Line(r"\Sigma \succeq P_i", "for all mechanisms i: it can be answered from each", "common"),),
        ),
        (Symbol("Y_i", "a matrix weight on mechanism i", (size, size), part="weights"),),
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
    free, moves = problem.moves.shape
    queries = len(problem.rows)
    norm = r"\lVert \operatorname{diag}(\sqrt{\mu}) \nu \beta \operatorname{diag}(\sqrt{\lambda}) \rVert_*^2"
    paid = r"\lVert M^{-1/2} \beta \operatorname{diag}(\sqrt{\lambda}) \rVert_F^2"
    spent = r"\sum_j \mu_j (c_j - a_j) \le 1"
    sought = (
        Symbol("M", "the covariance of the noise that is free", (free, free)),
        Symbol(r"\alpha", "the worst cost of neighbours that are open"),
    )
    limits = (
        Line(r"o_i + \beta_i^{\top} M^{-1} \beta_i \le \alpha", "for all open neighbours i", "privacy"),
        Line(r"a_j + \nu_j M \nu_j^{\top} \le c_j", "for all open queries j", "accuracy"),
    )
    return Statement(
        _face(problem),
        sought,
        Program("minimise", r"\alpha", r"$M \succ 0$", limits),
        (
            Symbol(r"\lambda", "weights on open neighbours", (moves,)),
            Symbol(r"\mu", "weights on open queries", (queries,)),
        ),
        Program(
            "maximise",
            rf"\sum_i \lambda_i o_i + {norm}",
            r"$\lambda, \mu \ge 0$",
            (Line(r"\sum_i \lambda_i = 1"), Line(spent)),
        ),
        (
            Line(rf"\alpha \ge \sum_i \lambda_i o_i + {paid}", r"since $\sum_i \lambda_i = 1$"),
            Line(r"1 \ge \lVert \operatorname{diag}(\sqrt{\mu}) \nu M^{1/2} \rVert_F^2", f"since ${spent}$"),
            Line(
                r"\lVert X Y \rVert_* \le \lVert X \rVert_F \lVert Y \rVert_F", "in whose product M cancels"
            ),
        ),
    )


def _face(problem: RefinementStage) -> tuple[Symbol, ...]:
    """Return what is settled, and what neighbours and queries have to do with what is free."""
    free, moves = problem.moves.shape
    queries, face = len(problem.rows), r"$\Sigma = S S^{\top} + O M O^{\top}$"
    return (
        Symbol("S", "directions whose noise is settled, unit noise in each", tuple(problem.settled.shape)),
        Symbol("O", f"directions whose noise is still free: {face}", tuple(problem.open.shape)),
        Symbol(
            r"\beta",
            r"how far neighbours move what is free, a column $\beta_i$ each",
            (free, moves),
            lambda: problem.moves,
        ),
        Symbol("o_i", "what neighbours i have paid already", (moves,), lambda: problem.costs),
        Symbol(
            r"\nu", r"the queries on what is free, a row $\nu_j$ each", (queries, free), lambda: problem.rows
        ),
        Symbol("a_j", "the variance that query j has already", (queries,), lambda: problem.variances),
        Symbol("c_j", "its target", (queries,), lambda: problem.problem.targets),
    )
