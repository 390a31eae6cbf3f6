"""Every CVXPY program in LaTeX: a formulation with its symbols and labelled constraints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.problems.base import AnyProblem
from dualmech.reference import formulas
from dualmech.reference.attempts import Formulations
from dualmech.reference.formulas import writing
from dualmech.reference.formulas.noise import COST, VARIANCE
from dualmech.reference.formulas.writing import Formula, Line, Program, Symbol

Form = tuple[tuple[Symbol, ...], Program]
"""The additional variables of a formulation, and its program."""


def latex(problem: object, formula: Formula, formulations: Formulations | None, formulation: str | None) -> str:
    """Return the program of a formulation in LaTeX; see `dualmech.reference.latex`."""
    program = stated(problem, formula, formulations, formulation)
    name = "" if formulations is None else f": {formulations.formulation_name(problem, formulation)}"
    title = writing.literal(f"{getattr(problem, 'headline', type(problem).__name__)}{name}")
    return writing.latex_section(writing.program_section(title, program)) + "\n"


def stated(problem: object, formula: Formula, formulations: Formulations | None, formulation: str | None) -> Formula:
    """Return a formula with the program of a formulation.

    Raises `InvalidInputError` for an unknown formulation.
    """
    if formulations is None:  # a product, or split noise
        if formulation is not None:
            shown_text = validate.shown(formulation)
            raise InvalidInputError(
                f"formulation must be omitted for a problem without a single program, got {shown_text}"
            )
        return formula
    name = formulations.formulation_name(problem, formulation)
    form = formulations.forms.get(name) or FORMS.get((_kind(problem), name))
    if form is None:
        return formula
    more, program = form(problem, formula)
    return replace(formula, sought=(*formula.sought, *more), program=program)


def _kind(problem: AnyProblem) -> str:
    name = type(problem).__name__
    if name in formulas.FAMILIES_ON_GEOMETRY and problem.geometry.name in formulas.ON_GEOMETRY:
        return str(problem.geometry.name)
    return f"{name} {problem.criterion}" if name == "LocalStrategy" else name


def _schur(left: str, corner: str, last: str) -> str:
    return rf"\begin{{bmatrix}} {left} & {corner} \\ ({corner})^{{\top}} & {last} \end{{bmatrix}} \succeq 0"


COMPLEMENT = Line(_schur(r"\Sigma", "B U", "Z"), r"so that $Z \succeq (B U)^{\top} \Sigma^{-1} (B U)$", "schur")


def _corner(problem: AnyProblem) -> Symbol:
    moves = getattr(problem, "moves", getattr(getattr(problem, "geometry", None), "moves", None))
    size = problem.workload.shape[1] if moves is None else moves.shape[1]
    return Symbol("Z", "its diagonal contains the costs", (size, size))


def _limits(formula: Formula) -> tuple[Line, ...]:
    first, *more = formula.program.constraints
    return COMPLEMENT, replace(first, formula=first.formula.replace(COST, "Z_{ii}")), *more


def schur(problem: object, formula: Formula) -> Form:
    """State one linear matrix inequality in place of the costs."""
    return (_corner(problem),), replace(formula.program, constraints=_limits(formula))


def as_stated(problem: object, formula: Formula) -> Form:
    """Return the program of the formula."""
    return (), formula.program


def logdet(problem: object, formula: Formula) -> Form:
    """State the centring problem, with slacks p and q in logarithms."""
    complement, cost, variance = _limits(formula)
    more = (
        _corner(problem),
        Symbol("p", "slacks of the costs"),
        Symbol("q", "slacks of the variances"),
        Symbol("t", "sharpness"),
    )
    barrier = r"\frac{1}{t} (\sum_i \log p_i + \sum_j \log q_j + \log \det \Sigma)"
    program = replace(
        formula.program,
        objective=f"{formula.program.objective} - {barrier}",
        constraints=(
            complement,
            replace(cost, formula=cost.formula.replace("Z_{ii}", "Z_{ii} + p_i")),
            replace(variance, formula=variance.formula.replace(VARIANCE, f"{VARIANCE} + q_j")),
        ),
    )
    return more, program


def sum_of_both(problem: object, formula: Formula) -> Form:
    """State Problem 3, the sum of the worst cost and the worst ratio."""
    known_names = [symbol.name for symbol in formula.sought]
    symbols = (Symbol(r"\alpha", "the worst cost"), Symbol(r"\kappa", "the worst variance over its target"))
    program = Program(
        "minimise",
        r"\alpha + \kappa",
        formula.program.over,
        (
            COMPLEMENT,
            Line(r"Z_{ii} \le \alpha", "for all neighbours $i$", "privacy"),
            Line(rf"{VARIANCE} \le \kappa c_j", "for all queries $j$", "accuracy"),
        ),
    )
    return (*(symbol for symbol in symbols if symbol.name not in known_names), _corner(problem)), program


PAID_BY_INVERSE = Line(r"(B u_i)^{\top} X (B u_i) \le 1", "for all neighbours $i$", "privacy")


def _inverse(size: int) -> Symbol:
    return Symbol("X", r"$\Sigma^{-1}$, the inverse of the covariance", (size, size))


def _inverse_form(rows: str, meaning: str) -> Callable[[Any, Formula], Form]:
    def form(problem: AnyProblem, formula: Formula) -> Form:
        more = (
            _inverse(problem.geometry.rank),
            Symbol(rows, meaning),
            Symbol("Y", "the total variance is its trace"),
        )
        inequality = rf"\begin{{bmatrix}} X & {rows}^{{\top}} \\ {rows} & Y \end{{bmatrix}} \succeq 0"
        lines = (Line(inequality, rf"so that $Y \succeq {rows} X^{{-1}} {rows}^{{\top}}$", "schur"), PAID_BY_INVERSE)
        return more, Program("minimise", r"\operatorname{tr} Y", r"symmetric X and Y", lines)

    return form


def variance_frac(problem: AnyProblem, formula: Formula) -> Form:
    """State total variance on the inverse of Σ, as a matrix fraction."""
    more = (_inverse(problem.geometry.rank), Symbol("V", r"$\operatorname{diag}(\sqrt{w}) L$"))
    return more, Program("minimise", r"\operatorname{tr}(V X^{-1} V^{\top})", r"$X \succ 0$", (PAID_BY_INVERSE,))


def variance_logdet(problem: object, formula: Formula) -> Form:
    """State the centring problem, with slacks p in logarithms."""
    symbols, program = FORMS["TotalVariance", "gram"](problem, formula)
    schur_line, paid = program.constraints
    more = (*symbols, Symbol("p", "slacks of the costs"), Symbol("t", "sharpness"))
    limits = (schur_line, replace(paid, formula=paid.formula.replace(r"\le 1", r"+ p_i \le 1")))
    objective = rf"{program.objective} - \frac{{1}}{{t}} (\sum_i \log p_i + \log \det X)"
    return more, replace(program, objective=objective, constraints=limits)


def softmax(problem: object, formula: Formula) -> Form:
    """State the soft maxima over limits on costs and variances, with one linear matrix inequality."""
    more, program = softmax_frac(problem, formula)
    limits = (COMPLEMENT, replace(program.constraints[0], formula=r"Z_{ii} \le g_i"), *program.constraints[1:])
    return (*more, _corner(problem)), replace(program, constraints=limits)


def softmax_frac(problem: object, formula: Formula) -> Form:
    """State the soft maxima over limits on costs and variances."""
    limits = (
        Line(rf"{COST} \le g_i", "for all neighbours $i$", "privacy"),
        Line(rf"{VARIANCE} / c_j \le h_j", "for all queries $j$", "accuracy"),
    )
    return (), replace(formula.program, constraints=limits)


def _weighting(objective: str, *more: Line) -> Callable[[Any, Formula], Form]:
    def form(problem: object, formula: Formula) -> Form:
        extra = (Symbol("v", "the factor of each cost in the objective"),) if more else ()
        program = replace(formula.program, objective=objective, constraints=(*more, *formula.program.constraints))
        return extra, program

    return form


def common_dual(problem: object, formula: Formula) -> Form:
    """State the dual: a measurement that discriminates the covariances."""
    lines = (Line(r"Y_i \succeq 0", "for all mechanisms $i$", "positive"), Line(r"\sum_i Y_i = I", "", "complete"))
    return formula.weights, replace(formula.dual, over="symmetric $Y_i$", constraints=lines)


def common_logdet(problem: object, formula: Formula) -> Form:
    """State the centring problem, with a slack in a log determinant for each mechanism."""
    (line,) = formula.program.constraints
    slack = replace(line, formula=r"\Sigma - P_i \succeq S_i", remark="for all mechanisms $i$")
    barrier = r"\frac{1}{t} \sum_i \log \det S_i"
    more = (Symbol("S_i", "the slack of mechanism $i$"), Symbol("t", "sharpness"))
    return more, replace(formula.program, objective=f"{formula.program.objective} - {barrier}", constraints=(slack,))


def common_volume(problem: AnyProblem, formula: Formula) -> Form:
    """State the volume in the cost matrix, which makes it convex."""
    size = problem.bounds.shape[1]
    more = (_inverse(size), Symbol("L_i", r"$P_i = L_i L_i^{\top}$", (size, size)))
    (line,) = formula.program.constraints
    lines = (replace(line, formula=r"I - L_i^{\top} X L_i \succeq 0"),)
    return more, Program("maximise", r"\log \det X", r"$X \succ 0$", lines)


def strategy_sdp(problem: object, formula: Formula) -> Form:
    """State the average case with one linear matrix inequality."""
    inequality = r"\begin{bmatrix} G & R^{\top} \\ R & T \end{bmatrix} \succeq 0"
    schur_line = Line(inequality, r"so that $T \succeq R G^{-1} R^{\top}$", "schur")
    program = Program(
        "minimise", r"\operatorname{tr} T", r"$w \ge 0$ and symmetric T", (schur_line, *formula.program.constraints)
    )
    return (Symbol("T", "the objective is its trace"),), program


def _moments(worst: bool) -> Callable[[Any, Formula], Form]:
    def form(problem: object, formula: Formula) -> Form:
        more = (
            Symbol("U_S", "$w_S V_S$, the contribution of report S to the answers times its weight"),
            Symbol("m_S", "a limit on the second moment of report S"),
        )
        lines = (
            Line(r"\sum_S U_S p_S^{\top} = R", "answers have no bias", "unbiased"),
            Line(r"\sum_S w_S p_S = 1", "columns of a strategy are probabilities", "columns"),
            Line(r"\lVert U_S \rVert^2 \le w_S m_S", "second-order cones, for all $S$", "moments"),
        )
        if not worst:
            return more, Program("minimise", r"\sum_S (s^{\top} p_S) m_S", "w, m and U", lines)
        users = Line(r"\sum_S (p_S)_u m_S - \lVert R_u \rVert^2 \le t", "for all types $u$", "users")
        return more, Program("minimise", "t", "w, m, U and t", (*lines, users))

    return form


def strategy_dual(problem: AnyProblem, formula: Formula) -> Form:
    """State the dual of a local strategy without a quotient, since its scale is free."""
    less = "" if problem.criterion == "average" else r" - \sum_u s_u \lVert R_u \rVert^2"
    objective = rf"2 \operatorname{{tr}}(R Z) - \sum_u y_u{less}"
    if less:
        objective = rf"\frac{{1}}{{n}} ({objective})"
    return formula.weights, replace(formula.dual, objective=objective)


def stage(problem: object, formula: Formula) -> Form:
    """State one stage of a refinement with one linear matrix inequality."""
    first, *more = formula.program.constraints
    inequality = Line(_schur("M", r"\beta", "Z"), r"so that $Z \succeq \beta^{\top} M^{-1} \beta$", "schur")
    paid = replace(first, formula=r"o_i + Z_{ii} \le \alpha")
    return (_corner(problem),), replace(formula.program, constraints=(inequality, paid, *more))


def estimate(problem: AnyProblem, formula: Formula) -> Form:
    """State the estimate with its residual as a variable, whose multiplier proves the bound."""
    residual = Line("W x - a = r", "", "residual")
    total_lines = tuple(line for line in formula.program.constraints if line.label == "total")
    more = (Symbol("r", "the residual", tuple(problem.answers.shape)),)
    return more, Program("minimise", r"\frac{1}{2} \lVert r \rVert^2", r"$x \ge 0$ and r", (residual, *total_lines))


def blocks_schur(problem: AnyProblem, formula: Formula) -> Form:
    """State problems on blocks with a linear matrix inequality for each block of several coordinates."""
    if not problem.geometry.matrix_blocks:
        return (), formula.program
    inequality = Line(_schur("K_b", "M_b", "Z_b"), "for all blocks b of several coordinates", "schur")
    lines = tuple(
        replace(line, formula=line.formula.replace(r"M_b^{\top} K_b^{-1} M_b", "Z_b"))
        for line in formula.program.constraints
    )
    more = (Symbol("Z_b", "its diagonal contains the costs on block b"),)
    return more, replace(formula.program, constraints=(inequality, *lines))


def blocks_dual(problem: AnyProblem, formula: Formula) -> Form:
    """State the best bound for blocks of one coordinate, if all neighbours belong to one orbit."""
    bound = Program(
        "maximise", r"\sum_t \sqrt{(N^{\top} m)_t}", r"$m \ge 0$", (Line(r"\sum_j m_j \le 1", "", "spent"),)
    )
    meaning = "normalised shadow prices of kinds of queries; N over targets, times the cost of each level"
    return (Symbol("m", meaning, (len(problem.geometry.tables),)),), bound


RECIPROCAL = Line(
    r"\begin{bmatrix} u_i & 1 \\ 1 & v_i \end{bmatrix} \succeq 0", r"so that $v_i \ge 1 / u_i$", "reciprocal"
)
POWER = Line(r"v_i^{1/3} u_i^{2/3} \ge 1", r"so that $v_i \ge 1 / u_i^2$", "inverse_square")

FORMS: dict[tuple[str, str], Callable[[Any, Formula], Form]] = {
    **{(kind, "schur"): schur for kind in ("FitnessForUse", "PrivacyFirst", "ReuseFitness")},
    **{(kind, "matrix_frac"): as_stated for kind in ("FitnessForUse", "PrivacyFirst", "blocks")},
    **{(kind, "logdet"): logdet for kind in ("FitnessForUse", "PrivacyFirst")},
    **{(kind, "sum"): sum_of_both for kind in ("FitnessForUse", "PrivacyFirst")},
    ("TotalVariance", "gram"): _inverse_form("R", r"a triangle with $R^{\top} R = L^{\top} \operatorname{diag}(w) L$"),
    ("TotalVariance", "schur"): _inverse_form("V", r"$\operatorname{diag}(\sqrt{w}) L$"),
    ("TotalVariance", "matrix_frac"): variance_frac,
    ("TotalVariance", "logdet"): variance_logdet,
    ("SoftmaxFitness", "schur"): softmax,
    ("SoftmaxFitness", "matrix_frac"): softmax_frac,
    ("QueryWeighting", "inv_pos"): _weighting(r"\sum_i c_i / u_i"),
    ("QueryWeighting", "sdp"): _weighting(r"\sum_i c_i v_i", RECIPROCAL),
    ("QueryWeighting", "power"): _weighting(r"\sum_i c_i / u_i^2"),
    ("QueryWeighting", "power_cone"): _weighting(r"\sum_i c_i v_i", POWER),
    ("CommonMechanism", "primal"): as_stated,
    ("CommonMechanism", "dual"): common_dual,
    ("CommonMechanism", "logdet"): common_logdet,
    ("CommonMechanism", "volume"): common_volume,
    ("RefinementStage", "schur"): stage,
    ("LocalStrategy average", "sdp"): strategy_sdp,
    ("LocalStrategy average", "socp"): _moments(worst=False),
    ("LocalStrategy average", "dual"): strategy_dual,
    ("LocalStrategy worst", "socp"): _moments(worst=True),
    ("LocalStrategy worst", "dual"): strategy_dual,
    ("LocalProjection", "qp"): as_stated,
    ("NonnegativeEstimate", "qp"): estimate,
    ("blocks", "schur"): blocks_schur,
    ("blocks", "dual"): blocks_dual,
}
"""The function that states a formulation, by problem and name."""
