"""Tables on blocks, in formulas: what symmetry leaves of fitness for use, privacy first and total variance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dualmech.formulas.records import Line, Program, Statement, Symbol
from dualmech.problems.fitness import PrivacyFirst
from dualmech.problems.variance import TotalVariance

COST = r"\sum_t R_{it} / \tau_t + \sum_b (C_b \operatorname{diag}(M_b^{\top} K_b^{-1} M_b))_i"
VARIANCE = r"\sum_t N_{jt} \tau_t + \sum_b (Q_b \operatorname{diag}(V_b K_b V_b^{\top}))_j"
COST_OF_LEVELS, VARIANCE_OF_LEVELS = r"\sum_t R_{it} / \tau_t", r"\sum_t N_{jt} \tau_t"


def on_blocks(problem: Any) -> Statement:
    """State a problem about tables on the blocks that symmetry leaves."""
    blocks = problem.geometry
    several = len(blocks.matrix_blocks) > 0
    cost, variance = (COST, VARIANCE) if several else (COST_OF_LEVELS, VARIANCE_OF_LEVELS)
    over = r"$\tau_t > 0$ and $K_b \succ 0$" if several else r"$\tau_t > 0$"
    paid = Line(rf"{cost} \le \alpha", "for all kinds i of neighbours", "privacy")
    met = Line(rf"{variance} \le c_j", "for all kinds j of queries", "accuracy")
    letter = "w" if isinstance(problem, TotalVariance) else r"\mu"
    norm = _norm(letter, several)
    spent = (Line(r"\sum_i \lambda_i \le 1"), Line(r"\sum_j \mu_j c_j \le 1"))
    weights = _weights(problem)
    if isinstance(problem, TotalVariance):
        total = rf"\sum_j w_j ({variance})"
        program = Program("minimise", total, over, (replace(paid, formula=rf"{cost} \le 1"),))
        dual = Program("maximise", norm, r"$\lambda \ge 0$", spent[:1])
        return _statement(problem, program, weights[:1], dual, ("1", total))
    if isinstance(problem, PrivacyFirst):
        limits = (
            replace(paid, formula=rf"{cost} \le \gamma"),
            replace(met, formula=rf"{variance} \le \kappa c_j"),
        )
        dual = Program("maximise", rf"\frac{{1}}{{\gamma}} {norm}", r"$\lambda, \mu \ge 0$", spent)
        return _statement(
            problem, Program("minimise", r"\kappa", over, limits), weights, dual, (r"\gamma", r"\kappa")
        )
    dual = Program("maximise", norm, r"$\lambda, \mu \ge 0$", spent)
    return _statement(
        problem, Program("minimise", r"\alpha", over, (paid, met)), weights, dual, (r"\alpha", "1")
    )


def _norm(letter: str, several: bool) -> str:
    """Return the square of the trace norm, block by block."""
    levels = rf"\sum_t \sqrt{{(N^{{\top}} {letter})_t (R^{{\top}} \lambda)_t}}"
    if not several:
        return rf"({levels})^2"
    left = rf"\operatorname{{diag}}(\sqrt{{Q_b^{{\top}} {letter}}})"
    right = r"\operatorname{diag}(\sqrt{C_b^{\top} \lambda})"
    return rf"({levels} + \sum_b \lVert {left} V_b M_b {right} \rVert_*)^2"


def _statement(
    problem: Any, program: Program, weights: tuple[Symbol, ...], dual: Program, sides: tuple[str, str]
) -> Statement:
    several, letter = bool(problem.geometry.matrix_blocks), "w" if len(weights) == 1 else r"\mu"
    first = r"\sum_t (R^{\top} \lambda)_t / \tau_t"
    second = rf"\sum_t (N^{{\top}} {letter})_t \tau_t"
    if several:
        left = rf"\operatorname{{diag}}(\sqrt{{Q_b^{{\top}} {letter}}}) V_b K_b^{{1/2}}"
        first += r" + \sum_b \lVert K_b^{-1/2} M_b \operatorname{diag}(\sqrt{C_b^{\top} \lambda}) \rVert_F^2"
        second += rf" + \sum_b \lVert {left} \rVert_F^2"
    equal = "=" if letter == "w" else r"\ge"
    proof = (
        Line(rf"{sides[0]} \ge {first}", r"since $\sum_i \lambda_i \le 1$"),
        Line(
            rf"{sides[1]} {equal} {second}",
            "the objective" if letter == "w" else r"since $\sum_j \mu_j c_j \le 1$",
        ),
        Line(r"(\sum_t a_t b_t)^2 \le \sum_t a_t^2 \sum_t b_t^2", "by Cauchy and Schwarz: the noise cancels"),
    )
    if several:
        proof += (
            Line(r"\lVert X Y \rVert_* \le \lVert X \rVert_F \lVert Y \rVert_F", "in each block of several"),
        )
    return Statement(_given(problem), _sought(problem), program, weights, dual, proof, _notes(problem))


def _given(problem: Any) -> tuple[Symbol, ...]:
    blocks = problem.geometry
    kinds, levels, queries = blocks.reach.shape[0], blocks.reach.shape[1], len(blocks.tables)
    found = [
        Symbol("W", "the queries, a row each, over the cells", problem.workload.shape),
        Symbol(
            "R",
            "what each kind of neighbours pays for each noise level",
            (kinds, levels),
            lambda: _dense(blocks.reach),
        ),
        Symbol(
            "N",
            "what each noise level adds to the variance of each kind of queries",
            (queries, levels),
            lambda: _dense(blocks.scalar_blocks),
        ),
    ]
    if blocks.matrix_blocks:
        found += [
            Symbol("M_b", "how neighbours move block b, a column each"),
            Symbol("V_b", "the queries on block b, a row each"),
            Symbol(
                "C_b, Q_b",
                "zeros and ones that take its columns to kinds of neighbours, its rows to kinds of queries",
            ),
        ]
    if isinstance(problem, TotalVariance):
        weights = blocks.orbit_weights(problem.weights)
        return *found, Symbol(
            "w", "what the variances of each kind of queries count", (queries,), lambda: weights
        )
    targets = Symbol(
        "c", "the variance targets", (queries,), lambda: np.asarray(problem.targets[blocks.tables])
    )
    if isinstance(problem, PrivacyFirst):
        cost = Symbol(
            r"\gamma", "the squared privacy cost that may be spent", (), lambda: np.array(problem.cost)
        )
        return *found, targets, cost
    return *found, targets


def _sought(problem: Any) -> tuple[Symbol, ...]:
    blocks = problem.geometry
    found = [Symbol(r"\tau", "the noise levels of the blocks of one coordinate", (blocks.reach.shape[1],))]
    if blocks.matrix_blocks:
        found.append(Symbol("K_b", "the covariance of the noise on block b"))
    if isinstance(problem, PrivacyFirst):
        found.append(Symbol(r"\kappa", "the factor on the targets"))
    elif not isinstance(problem, TotalVariance):
        found.append(Symbol(r"\alpha", "the squared privacy cost"))
    return tuple(found)


def _weights(problem: Any) -> tuple[Symbol, ...]:
    blocks = problem.geometry
    return (
        Symbol(
            r"\lambda",
            "weights on kinds of neighbours, none negative",
            (blocks.reach.shape[0],),
            part="neighbour_weights",
        ),
        Symbol(
            r"\mu", "weights on kinds of queries, none negative", (len(blocks.tables),), part="query_weights"
        ),
    )


def _notes(problem: Any) -> tuple[str, ...]:
    blocks = problem.geometry
    count = len(blocks.keys) + len(blocks.matrix_blocks)
    norm = r"$\lVert X \rVert_*$ is the sum of the singular values of $X$."
    said = (
        f"Symmetry leaves {count} blocks, of rank {blocks.rank} at most, and one weight for each of "
        f"{blocks.reach.shape[0]} kinds of records and {len(blocks.tables)} kinds of queries: nothing is lost, since "
        "the mean of noise over all symmetries costs no more and is as accurate.",
    )
    return (*said, norm) if blocks.matrix_blocks else said


def _dense(matrix: Any) -> Any:
    return matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix)
