"""Tables on blocks, in formulas: what symmetry leaves of fitness for use, privacy first and total variance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dualmech.formulas.records import Line, Program, Statement, Symbol
from dualmech.problems.fitness import PrivacyFirst
from dualmech.problems.variance import TotalVariance


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Sums over the blocks that there are: of one coordinate, each a noise level, and of several."""

    levels: bool
    several: bool

    @classmethod
    def of(cls, problem: Any) -> _Blocks:
        return cls(problem.geometry.reach.shape[1] > 0, bool(problem.geometry.matrix_blocks))

    def sum(self, of_levels: str, of_several: str) -> str:
        """Return a sum over levels and one over the other blocks, of those that there are."""
        return " + ".join(
            each for each, there in ((of_levels, self.levels), (of_several, self.several)) if there
        )

    @property
    def cost(self) -> str:
        """What neighbours of kind i cost."""
        return self.sum(
            r"\sum_t R_{it} / \tau_t", r"\sum_b (C_b \operatorname{diag}(M_b^{\top} K_b^{-1} M_b))_i"
        )

    @property
    def variance(self) -> str:
        """The variance of queries of kind j."""
        return self.sum(r"\sum_t N_{jt} \tau_t", r"\sum_b (Q_b \operatorname{diag}(V_b K_b V_b^{\top}))_j")

    @property
    def over(self) -> str:
        """What the noise ranges over, in words."""
        return " and ".join(
            each
            for each, there in ((r"$\tau_t > 0$", self.levels), (r"$K_b \succ 0$", self.several))
            if there
        )

    def norm(self, letter: str) -> str:
        """Return the square of the trace norm, block by block, with weights of a letter on queries."""
        left = rf"\operatorname{{diag}}(\sqrt{{Q_b^{{\top}} {letter}}})"
        right = r"\operatorname{diag}(\sqrt{C_b^{\top} \lambda})"
        levels = rf"\sum_t \sqrt{{(N^{{\top}} {letter})_t (R^{{\top}} \lambda)_t}}"
        several = rf"\sum_b \lVert {left} V_b M_b {right} \rVert_*"
        return f"({self.sum(levels, several)})^2"

    def proof(self, letter: str, sides: tuple[str, str]) -> tuple[Line, ...]:
        """Return why weights bound noise that costs at most one thing and adds, or adds at most, another."""
        paid = self.sum(
            r"\sum_t (R^{\top} \lambda)_t / \tau_t",
            r"\sum_b \lVert K_b^{-1/2} M_b \operatorname{diag}(\sqrt{C_b^{\top} \lambda}) \rVert_F^2",
        )
        left = rf"\operatorname{{diag}}(\sqrt{{Q_b^{{\top}} {letter}}}) V_b K_b^{{1/2}}"
        met = self.sum(rf"\sum_t (N^{{\top}} {letter})_t \tau_t", rf"\sum_b \lVert {left} \rVert_F^2")
        relation, why = (
            ("=", "the objective") if letter == "w" else (r"\ge", r"since $\sum_j \mu_j c_j \le 1$")
        )
        lines = (
            Line(rf"{sides[0]} \ge {paid}", r"since $\sum_i \lambda_i \le 1$"),
            Line(rf"{sides[1]} {relation} {met}", why),
            Line(
                r"(\sum_t a_t b_t)^2 \le \sum_t a_t^2 \sum_t b_t^2",
                "by Cauchy and Schwarz: the noise cancels",
            ),
        )
        inside = Line(
            r"\lVert X Y \rVert_* \le \lVert X \rVert_F \lVert Y \rVert_F", "in each block of several"
        )
        return (*lines, inside) if self.several else lines


def on_blocks(problem: Any) -> Statement:
    """State a problem about tables on the blocks that symmetry leaves."""
    blocks, weights = _Blocks.of(problem), _weights(problem)
    paid = Line(rf"{blocks.cost} \le \alpha", "for all kinds i of neighbours", "privacy")
    met = Line(rf"{blocks.variance} \le c_j", "for all kinds j of queries", "accuracy")
    spent = (Line(r"\sum_i \lambda_i \le 1"), Line(r"\sum_j \mu_j c_j \le 1"))
    norm, both = blocks.norm(r"\mu"), r"$\lambda, \mu \ge 0$"
    if isinstance(problem, TotalVariance):
        total = rf"\sum_j w_j ({blocks.variance})"
        weights, letter, sides = weights[:1], "w", ("1", total)
        program = Program("minimise", total, blocks.over, (replace(paid, formula=rf"{blocks.cost} \le 1"),))
        dual = Program("maximise", blocks.norm("w"), r"$\lambda \ge 0$", spent[:1])
    elif isinstance(problem, PrivacyFirst):
        letter, sides = r"\mu", (r"\gamma", r"\kappa")
        within = replace(paid, formula=rf"{blocks.cost} \le \gamma")
        scaled = replace(met, formula=rf"{blocks.variance} \le \kappa c_j")
        program = Program("minimise", r"\kappa", blocks.over, (within, scaled))
        dual = Program("maximise", rf"\frac{{1}}{{\gamma}} {norm}", both, spent)
    else:
        letter, sides = r"\mu", (r"\alpha", "1")
        program = Program("minimise", r"\alpha", blocks.over, (paid, met))
        dual = Program("maximise", norm, both, spent)
    proof = blocks.proof(letter, sides)
    return Statement(_given(problem), _sought(problem), program, weights, dual, proof, _notes(problem))


def _given(problem: Any) -> tuple[Symbol, ...]:
    blocks = problem.geometry
    kinds, levels, queries = blocks.reach.shape[0], blocks.reach.shape[1], len(blocks.tables)
    found = [Symbol("W", "the queries, a row each, over the cells", problem.workload.shape)]
    if levels:
        paid, added = "what each kind of neighbours pays for each level", "of each kind of queries"
        found += [
            Symbol("R", f"{paid} of noise", (kinds, levels), lambda: _dense(blocks.reach)),
            Symbol(
                "N",
                f"what each level adds to the variance {added}",
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
    found, levels = [], blocks.reach.shape[1]
    if levels:
        found.append(
            Symbol(r"\tau", "the noise levels of the blocks of one coordinate", (levels,), part="levels")
        )
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
    still = bool(np.any(np.asarray(blocks.reach.sum(axis=0)) == 0)) or any(
        block.moved() is not None for block in blocks.matrix_blocks
    )
    exact = ("What no neighbour moves is released exactly, at no cost, and has no noise in these sums.",)
    return (*said, *(exact if still else ()), *((norm,) if blocks.matrix_blocks else ()))


def _dense(matrix: Any) -> Any:
    return matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix)
