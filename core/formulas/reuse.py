"""Fitness for use beside an earlier release, in formulas."""

from __future__ import annotations

from dualmech.formulas.noise import (
    HOLDER,
    PAID,
    VARIANCE,
    definite,
    fitness,
    matrices,
    neighbour_weights,
    notes,
    query_weights,
    targets,
)
from dualmech.formulas.records import Line, Program, Statement, Symbol
from dualmech.problems.reuse import ReuseFitness


def reuse(problem: ReuseFitness) -> Statement:
    """State fitness for use beside an earlier release."""
    plain, count = fitness(problem.row_by_row), len(problem.targets)
    geometry, (size, cells) = problem.geometry, problem.release.shape
    release = (
        Symbol("F", "what is released, rows with unit noise", (size, cells), lambda: problem.release),
        Symbol("K", "$F = K B$", (size, geometry.rank), lambda: geometry.representation[count:]),
    )
    asked = Symbol("W", "the queries of the wish, a row each", problem.workload.shape, problem.workload.dense)
    given = (asked, *matrices(problem)[1:], targets(problem), *release)
    rows = r"[\operatorname{diag}(\sqrt{\mu}) W; \Omega^{1/2} F]"
    norm = rf"\lVert {rows} U \operatorname{{diag}}(\sqrt{{\lambda}}) \rVert_*^2"
    kept = Line(r"K \Sigma K^{\top} \preceq I", "the release can be answered from what is known", "released")
    program = Program("minimise", r"\alpha", definite(problem), (*plain.program.constraints, kept))
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
        Line(
            HOLDER.formula,
            r"for $X = [\operatorname{diag}(\sqrt{\mu}) L; \Omega^{1/2} K] \Sigma^{1/2}$",
        ),
    )
    return Statement(given, plain.sought, program, weights, dual, proof, notes(problem))
