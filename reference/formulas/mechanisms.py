"""Query weighting, common mechanisms, stages of a refinement, and noise on blocks of tables, in formulas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dualmech.problems.base import AnyProblem
from dualmech.problems.common import CommonMechanism
from dualmech.problems.refinement import RefinementStage
from dualmech.problems.reuse import ReuseFitness
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.reference.formulas.noise import Goal
from dualmech.reference.formulas.writing import Formula, Line, Program, Symbol


def weighting(problem: QueryWeighting) -> Formula:
    """State query weighting, for Gaussian or Laplace noise."""
    symbols = _design(problem)
    count, moves = symbols[-1].shape or (0, 0)
    pure = problem.privacy == "pure"
    power, noise, by = "", "noise of variance $1 / u_i$ on row $i$ of $Q$", "by Cauchy and Schwarz"
    bound = r"(\sum_i c_i^{1/2} g_i^{1/2})^2"
    if pure:
        power, by = "^2", "by Hölder's inequality"
        noise = r"Laplace noise on the rows of $\operatorname{diag}(u) Q$"
        bound = r"(\sum_i c_i^{1/3} g_i^{2/3})^3"
    objective = rf"\sum_i c_i / u_i{power}"
    limit = Line(r"N^{\top} u \le 1", "for all neighbours", "privacy")
    weights = (
        Symbol("y", "non-negative weights on pairs of neighbours", (moves,), part="neighbour_weights"),
        Symbol("g", "$g = N y$", (count,)),
    )
    proof = (
        Line(r"\sum_i g_i u_i = y^{\top} N^{\top} u \le 1", r"since $\sum_j y_j \le 1$"),
        Line(rf"{bound} \le {objective} \cdot (\sum_i g_i u_i){power}", by),
    )
    remark = "The design queries are linearly dependent: least squares gives smaller variances."
    return Formula(
        symbols,
        (Symbol("u", f"weights of the design queries: {noise}", (count,), part="itself"),),
        Program("minimise", objective, "$u > 0$", (limit,)),
        weights,
        Program("maximise", bound, r"$y \ge 0$", (Line(r"\sum_j y_j \le 1"),)),
        proof,
        () if problem.geometry.independent else (remark,),
    )


def _design(problem: QueryWeighting) -> tuple[Symbol, ...]:
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
        Symbol("c_i", "the squared length of column $i$ of $L$", (count,), lambda: problem.costs),
        Symbol("U", "the differences of neighbouring data sets, a column each: $U = I$ for single records"),
        Symbol("N", f"sensitivity of neighbours per unit of each weight, ${rows}$", shape, loads),
    )


def common(problem: CommonMechanism) -> Formula:
    count, size, _ = problem.bounds.shape
    cells = problem.basis.shape[1]
    symbols = (
        Symbol("B", "a basis of the queries that all mechanisms answer", (size, cells), lambda: problem.basis),
        *(
            Symbol(
                f"P_{{{i}}}",
                f"the covariance of the answers of mechanism {i} to $B x$",
                (size, size),
                partial(np.asarray, bound),
            )
            for i, bound in enumerate(problem.bounds)
        ),
    )
    if problem.criterion == "volume":
        symbols = (*symbols, Symbol("r", "the number of rows of $B$"))
    covariance = Symbol(
        r"\Sigma", "the covariance of the answers of the common mechanism to $B x$", (size, size), part="itself"
    )
    bound_line = Line(r"\Sigma \succeq P_i", "for all mechanisms $i$: it can be answered from each", "common")
    weights = Symbol("Y_i", "a matrix weight on mechanism $i$", (size, size), part="weights")
    objective, limit, dual, proof = _volume() if problem.criterion == "volume" else _trace()
    return Formula(
        symbols,
        (covariance,),
        Program("minimise", objective, r"symmetric $\Sigma$", (bound_line,)),
        (weights,),
        Program("maximise", dual, r"$Y_i \succeq 0$", (Line(limit),)),
        proof,
        ("The mechanisms have no common information: the common mechanism releases no query.",)
        if problem.trivial
        else (),
    )


def _trace() -> tuple[str, str, str, tuple[Line, ...]]:
    """Return the objective, the limit on the weights, the dual and its proof."""
    sum_line = r"\sum_i Y_i = I"
    proof = (
        Line(r"\operatorname{tr} \Sigma = \sum_i \operatorname{tr}(\Sigma Y_i)", rf"since ${sum_line}$"),
        Line(
            r"\operatorname{tr}((\Sigma - P_i) Y_i) \ge 0",
            "the trace of a product of two positive semidefinite matrices",
        ),
    )
    return r"\operatorname{tr} \Sigma", sum_line, r"\sum_i \operatorname{tr}(P_i Y_i)", proof


def _volume() -> tuple[str, str, str, tuple[Line, ...]]:
    trace_sum = r"\sum_i \operatorname{tr}(P_i^{-1} Y_i) = r"
    proof = (
        Line(
            r"\sum_i \operatorname{tr}(\Sigma^{-1} Y_i) \le \sum_i \operatorname{tr}(P_i^{-1} Y_i) = r",
            r"since $\Sigma^{-1} \preceq P_i^{-1}$",
        ),
        Line(
            r"(\det \Sigma^{-1} \det \sum_i Y_i)^{1/r} \le \frac{1}{r} \sum_i \operatorname{tr}(\Sigma^{-1} Y_i)",
            "the inequality of means on the eigenvalues of the product",
        ),
    )
    return r"(\det \Sigma)^{1/r}", trace_sum, r"(\det \sum_i Y_i)^{1/r}", proof


def stage(problem: RefinementStage) -> Formula:
    """State one stage of the refined privacy ordering."""
    free_rank, moves = problem.moves.shape
    queries = len(problem.rows)
    norm = r"\lVert \operatorname{diag}(\sqrt{\mu}) \nu \beta \operatorname{diag}(\sqrt{\lambda}) \rVert_*^2"
    paid = r"\lVert M^{-1/2} \beta \operatorname{diag}(\sqrt{\lambda}) \rVert_F^2"
    sum_line = r"\sum_j \mu_j (c_j - a_j) \le 1"
    sought = (
        Symbol("M", "the covariance of the free noise", (free_rank, free_rank)),
        Symbol(r"\alpha", "the maximum cost of open neighbours"),
    )
    limits = (
        Line(r"o_i + \beta_i^{\top} M^{-1} \beta_i \le \alpha", "for all open neighbours $i$", "privacy"),
        Line(r"a_j + \nu_j M \nu_j^{\top} \le c_j", "for all open queries $j$", "accuracy"),
    )
    return Formula(
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
            (Line(r"\sum_i \lambda_i = 1"), Line(sum_line)),
        ),
        (
            Line(rf"\alpha \ge \sum_i \lambda_i o_i + {paid}", r"since $\sum_i \lambda_i = 1$"),
            Line(r"1 \ge \lVert \operatorname{diag}(\sqrt{\mu}) \nu M^{1/2} \rVert_F^2", f"since ${sum_line}$"),
            Line(r"\lVert X Y \rVert_* \le \lVert X \rVert_F \lVert Y \rVert_F", "since M cancels in the product"),
        ),
    )


def _face(problem: RefinementStage) -> tuple[Symbol, ...]:
    """Return the symbols of the fixed part, and of neighbours and queries on the free part."""
    free_rank, moves = problem.moves.shape
    queries, face = len(problem.rows), r"$\Sigma = S S^{\top} + O M O^{\top}$"
    return (
        Symbol("S", "directions with fixed unit noise", tuple(problem.fixed.shape)),
        Symbol("O", f"directions with free noise: {face}", tuple(problem.open.shape)),
        Symbol(
            r"\beta",
            r"differences of neighbours in the free directions, with columns $\beta_i$",
            (free_rank, moves),
            lambda: problem.moves,
        ),
        Symbol("o_i", "the cost of the fixed noise for neighbours $i$", (moves,), lambda: problem.costs),
        Symbol(
            r"\nu", r"the queries on the free directions, with rows $\nu_j$", (queries, free_rank), lambda: problem.rows
        ),
        Symbol("a_j", "the variance of the fixed noise for query $j$", (queries,), lambda: problem.variances),
        Symbol("c_j", "its target", (queries,), lambda: problem.problem.targets),
    )


# Tables on blocks, in formulas: fitness for use, privacy first, total variance and reuse, reduced by symmetry.


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Sums over blocks of one coordinate (noise levels) and of several coordinates (matrices)."""

    levels: bool
    several: bool
    reuse: bool  # whether there is an earlier release

    @classmethod
    def of(cls, problem: AnyProblem) -> _Blocks:
        geometry = problem.geometry
        return cls(geometry.reach.shape[1] > 0, bool(geometry.matrix_blocks), isinstance(problem, ReuseFitness))

    def sum(self, of_levels: str, of_several: str) -> str:
        return " + ".join(term for term, present in ((of_levels, self.levels), (of_several, self.several)) if present)

    @property
    def cost(self) -> str:
        return self.sum(r"\sum_t R_{it} / \tau_t", r"\sum_b (C_b \operatorname{diag}(M_b^{\top} K_b^{-1} M_b))_i")

    @property
    def variance(self) -> str:
        return self.sum(r"\sum_t N_{jt} \tau_t", r"\sum_b (Q_b \operatorname{diag}(V_b K_b V_b^{\top}))_j")

    @property
    def over(self) -> str:
        return " and ".join(
            limit for limit, present in ((r"$\tau_t > 0$", self.levels), (r"$K_b \succ 0$", self.several)) if present
        )

    @property
    def known(self) -> tuple[Line, ...]:
        """The constraints that the release can be computed from all answers."""
        remark = "the release can be computed from all answers"
        level_line, matrix_line = r"f_t^2 \tau_t \le 1", r"F_b K_b F_b^{\top} \preceq I"
        return tuple(
            Line(line, f"for all {letter}: {remark}", "released")
            for line, letter, present in ((level_line, "t", self.levels), (matrix_line, "b", self.several))
            if present and self.reuse
        )

    @property
    def bill(self) -> str:
        released = self.sum(r"\sum_t \omega_t", r"\sum_b \operatorname{tr} \Omega_b")
        return r"\sum_j \mu_j c_j" + (f" + {released}" if self.reuse else "")

    def seen(self, letter: str) -> tuple[str, str]:
        """Return the weight of each level, and the weighted rows of each other block."""
        left = rf"\operatorname{{diag}}(\sqrt{{Q_b^{{\top}} {letter}}}) V_b"
        if self.reuse:
            return rf"((N^{{\top}} {letter})_t + \omega_t f_t^2)", rf"[{left}; \Omega_b^{{1/2}} F_b]"
        return rf"(N^{{\top}} {letter})_t", left

    def norm(self, letter: str) -> str:
        """Return the square of the trace norm, block by block, with a letter for the weights on queries."""
        weight, left = self.seen(letter)
        right = r"\operatorname{diag}(\sqrt{C_b^{\top} \lambda})"
        levels = rf"\sum_t \sqrt{{{weight} (R^{{\top}} \lambda)_t}}"
        several = rf"\sum_b \lVert {left} M_b {right} \rVert_*"
        return f"({self.sum(levels, several)})^2"

    def proof(self, letter: str, sides: tuple[str, str]) -> tuple[Line, ...]:
        """Return the proof that weights bound noise with limits on cost, and on variances or their sum."""
        paid = self.sum(
            r"\sum_t (R^{\top} \lambda)_t / \tau_t",
            r"\sum_b \lVert K_b^{-1/2} M_b \operatorname{diag}(\sqrt{C_b^{\top} \lambda}) \rVert_F^2",
        )
        weight, left = self.seen(letter)
        accuracy_sum = self.sum(rf"\sum_t {weight} \tau_t", rf"\sum_b \lVert {left} K_b^{{1/2}} \rVert_F^2")
        relation, remark = ("=", "the objective") if letter == "w" else (r"\ge", rf"since ${self.bill} \le 1$")
        lines = (
            Line(rf"{sides[0]} \ge {paid}", r"since $\sum_i \lambda_i \le 1$"),
            Line(rf"{sides[1]} {relation} {accuracy_sum}", remark),
            Line(r"(\sum_t a_t b_t)^2 \le \sum_t a_t^2 \sum_t b_t^2", "by Cauchy and Schwarz: the noise cancels"),
        )
        block_line = Line(r"\lVert X Y \rVert_* \le \lVert X \rVert_F \lVert Y \rVert_F", "in each block of several")
        return (*lines, block_line) if self.several else lines


def on_blocks(problem: object) -> Formula:
    """State a problem about tables on blocks."""
    blocks, weights = _Blocks.of(problem), _weights(problem)
    aim = Goal.of(problem)
    privacy = Line(rf"{blocks.cost} \le {aim.cost}", "for all kinds i of neighbours", "privacy")
    accuracy = Line(rf"{blocks.variance} \le {aim.factor}c_j", "for all kinds j of queries", "accuracy")
    sums = (Line(r"\sum_i \lambda_i \le 1"), Line(rf"{blocks.bill} \le 1"))
    norm, domain = blocks.norm(r"\mu"), r"$\lambda, \mu \ge 0$"
    if blocks.reuse:
        domain += blocks.sum(r", $\omega \ge 0$", r", $\Omega_b \succeq 0$").replace(" + ", "")
    if isinstance(problem, TotalVariance):
        total = rf"\sum_j w_j ({blocks.variance})"
        weights, letter, sides = weights[:1], "w", ("1", total)
        program = Program("minimise", total, blocks.over, (replace(privacy, formula=rf"{blocks.cost} \le 1"),))
        dual = Program("maximise", blocks.norm("w"), r"$\lambda \ge 0$", sums[:1])
    else:
        letter, sides = r"\mu", (aim.cost, aim.limit)
        program = Program("minimise", aim.sought.name, blocks.over, (privacy, accuracy, *blocks.known))
        dual = Program("maximise", aim.bound(norm), domain, sums)
    proof = blocks.proof(letter, sides)
    return Formula(_given(problem), _sought(problem), program, weights, dual, proof, _notes(problem))


def _given(problem: AnyProblem) -> tuple[Symbol, ...]:
    blocks = problem.geometry
    kinds, levels, queries = blocks.reach.shape[0], blocks.reach.shape[1], len(blocks.tables)
    symbols = [Symbol("W", "the queries, a row each, over the cells", problem.workload.shape)]
    if levels:
        paid, added = "the cost of each kind of neighbours per level", "of each kind of queries"
        symbols += [
            Symbol("R", f"{paid} of noise", (kinds, levels), blocks.reach.toarray),
            Symbol(
                "N",
                f"the contribution of each level to the variance {added}",
                (queries, levels),
                blocks.scalar_blocks.toarray,
            ),
        ]
    if blocks.matrix_blocks:
        symbols += [
            Symbol("M_b", "the differences of neighbours on block b, a column each"),
            Symbol("V_b", "the queries on block b, a row each"),
            Symbol(
                "C_b, Q_b", "0-1 matrices that map its columns to kinds of neighbours, and its rows to kinds of queries"
            ),
        ]
    if isinstance(problem, TotalVariance):
        meaning = "weights of the variances of each kind of queries"
        return *symbols, Symbol("w", meaning, (queries,), lambda: problem.row_weights)
    targets = Symbol("c", "the variance targets", (queries,), lambda: np.asarray(problem.targets[blocks.tables]))
    if _Blocks.of(problem).reuse:
        if levels:
            symbols.append(
                Symbol(
                    "f",
                    "the release on each level, with unit noise",
                    (levels,),
                    lambda: problem.known.coordinates.levels,
                )
            )
        if blocks.matrix_blocks:
            symbols.append(Symbol("F_b", "the release on block b, rows with unit noise"))
    return *symbols, targets, *Goal.of(problem).given


def _sought(problem: AnyProblem) -> tuple[Symbol, ...]:
    blocks = problem.geometry
    symbols, levels = [], blocks.reach.shape[1]
    if levels:
        symbols.append(Symbol(r"\tau", "the noise levels of the blocks of one coordinate", (levels,), part="levels"))
    if blocks.matrix_blocks:
        symbols.append(Symbol("K_b", "the covariance of the noise on block b"))
    return (*symbols,) if isinstance(problem, TotalVariance) else (*symbols, Goal.of(problem).sought)


def _weights(problem: AnyProblem) -> tuple[Symbol, ...]:
    blocks, sums = problem.geometry, _Blocks.of(problem)
    levels = (Symbol(r"\omega", "non-negative weights on the release on each level"),)
    several = (Symbol(r"\Omega_b", "a matrix of weights on the release on block b"),)
    return (
        Symbol(
            r"\lambda",
            "non-negative weights on kinds of neighbours",
            (blocks.reach.shape[0],),
            part="neighbour_weights",
        ),
        Symbol(r"\mu", "non-negative weights on kinds of queries", (len(blocks.tables),), part="query_weights"),
        *(levels if sums.reuse and sums.levels else ()),
        *(several if sums.reuse and sums.several else ()),
    )


def _notes(problem: AnyProblem) -> tuple[str, ...]:
    blocks = problem.geometry
    count = len(blocks.keys) + len(blocks.matrix_blocks)
    norm = r"$\lVert X \rVert_*$ is the sum of the singular values of $X$."
    lines = (
        f"Symmetry reduces the problem to {count} blocks of rank at most {blocks.rank}, with one weight for each of "
        f"{blocks.reach.shape[0]} kinds of records and {len(blocks.tables)} kinds of queries. This is exact, since "
        "the mean of the noise over all symmetries costs no more and is as accurate.",
    )
    has_insensitive = bool(np.any(np.asarray(blocks.reach.sum(axis=0)) == 0)) or any(
        block.moved() is not None for block in blocks.matrix_blocks
    )
    exact = ("Insensitive directions are released exactly, at no cost, and have no noise in these sums.",)
    return (*lines, *(exact if has_insensitive else ()), *((norm,) if blocks.matrix_blocks else ()))
