"""Fitness for use with soft maxima, in formulas."""

from __future__ import annotations

import numpy as np

from dualmech.formulas.noise import (
    COST,
    HOLDER,
    VARIANCE,
    counts,
    covariance,
    definite,
    matrices,
    notes,
    targets,
)
from dualmech.formulas.records import Line, Program, Statement, Symbol
from dualmech.problems.softmax import SoftmaxFitness


def softmax(problem: SoftmaxFitness) -> Statement:
    """State fitness for use with soft maxima."""
    moves, queries = counts(problem)
    numbers = (
        Symbol("t_1", "sharpness of the soft maximum of costs", (), lambda: np.array(problem.t1)),
        Symbol("t_2", "sharpness of that of variances", (), lambda: np.array(problem.t2)),
        Symbol(r"\omega", "weight of the total variance", (), lambda: np.array(problem.total_weight)),
    )
    norm = r"\operatorname{diag}(\sqrt{\mu / c + \omega}) W U \operatorname{diag}(\sqrt{\lambda})"
    return Statement(
        (*matrices(problem), targets(problem), *numbers),
        (
            covariance(problem),
            Symbol("g_i", f"the cost ${COST}$ of neighbours i"),
            Symbol("h_j", rf"the variance over its target, ${VARIANCE} / c_j$, of query j"),
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
            Line(
                r"\frac{1}{t} \log \sum_i \exp(t a_i) \ge \sum_i p_i a_i + \frac{1}{t} H(p)",
                "for any shares p",
            ),
            Line(
                rf"\sum_i \lambda_i g_i + \sum_j (\mu_j / c_j + \omega) {VARIANCE} \ge 2 \lVert {norm} \rVert_*",
                "since $a^2 + b^2 \\ge 2 a b$ and",
            ),
            Line(HOLDER.formula, r"for roots of both sums, as matrices: in their product $\Sigma$ cancels"),
        ),
        notes(problem),
    )
