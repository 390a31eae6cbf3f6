"""Programs in LaTeX: they compile, say the same as CVXPY's programs, and are text of the same vocabulary."""

import itertools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_problems
from conformance import unbalanced

import dualmech as dm
from dualmech import reference
from dualmech.command import explanation
from dualmech.errors import DualmechError, InvalidInputError
from dualmech.reference import solving as reference_solving
from dualmech.reference.blocks import BlockArrays
from dualmech.reference.formulas import writing
from dualmech.reference.formulas.writing import Formula
from dualmech.validate import Array

SMALL = dm.workloads.prefix(4)
SEEDS = range(60)

ENGINES = ("pdflatex", "tectonic", "xelatex", "lualatex")
COMPILE = {"tectonic": ["tectonic", "--untrusted"]}

DIRECT: dict[str, Any] = {
    "stage": lambda: dm.results.RefinementStage(dm.FitnessForUse(SMALL), np.zeros((4, 0)), np.eye(4)),
    "pure": lambda: dm.QueryWeighting(SMALL, np.eye(4), privacy="pure"),
    "floor": lambda: dm.LocalProjection([[0.9, 0.1], [0.3, 0.5]], 1.0, floor=[0.3, 0.3]),
    "total": lambda: dm.NonnegativeEstimate(SMALL, [3.0, 2.0, 5.0, 4.0], total=4.0),
    "prior": lambda: dm.LocalStrategy(SMALL, 1.0, prior=[0.1, 0.2, 0.3, 0.4]),
    "hybrid": lambda: dm.SoftmaxFitness(SMALL, 1.0, t1=5.0, t2=5.0, total_weight=1e-5),
    "household": lambda: dm.FitnessForUse(SMALL, neighbours="add-remove:3"),
    "rank": lambda: dm.FitnessForUse(dm.Workload([[1.0, 1, 0], [0, 0, 1], [1, 1, 1]])),
}
"""Problems that the conformance suite has not."""

VARIABLES = {"s": "m_S", "share": "s", "w": "w_S", "U": "U_S", "Sigma": r"\Sigma", "tau": r"\tau"} | {
    **{"alpha": r"\alpha", "kappa": r"\kappa", "g": "g_i", "h": "h_j", "u": "u", "m": "m"},
    **{"K": "K_b", "Z": "Z", "Y": "Y_i"},
}
"""What CVXPY's variables are called in formulas, where it is not the same."""


def drawn(seed: int) -> Any:
    """Return a random problem, None where its numbers are refused."""
    try:
        return random_problems.asked(seed).state()
    except DualmechError:
        return None


def sections(problem: Any) -> list[writing.Section]:
    statement = reference_solving.formula_of(problem)
    why = writing.Section("Why.", (writing.proof_part(statement.proof),))
    return [writing.program_section("The program.", statement), writing.dual_section(statement), why]


def formulas_of(statement: Formula) -> list[str]:
    lines = (*statement.program.constraints, *statement.dual.constraints, *statement.proof)
    symbols = (*statement.given, *statement.sought, *statement.weights)
    names = [symbol.name for symbol in symbols]
    return [statement.program.objective, statement.dual.objective, *(line.formula for line in lines), *names]


def test_labels_are_those_of_the_program() -> None:
    for name, state in DIRECT.items():
        problem = state()
        for formulation in reference_solving.formulations(problem):
            stated = reference_solving.formula(problem, formulation)
            labels = {line.label for line in stated.program.constraints} - {""}
            program = reference.formulate(problem, formulation)
            assert labels == {each.label.partition("[")[0] for each in program.constraints if each.label}, name
            assert not unbalanced(reference.latex(problem, formulation)), name


def test_variables_of_the_program_are_defined() -> None:
    for problem in (dm.FitnessForUse(SMALL), dm.LocalStrategy(SMALL, 1.0, "worst")):
        for formulation in reference_solving.formulations(problem):
            stated = reference_solving.formula(problem, formulation)
            known = {symbol.name for symbol in (*stated.sought, *stated.weights)}
            for name in reference.formulate(problem, formulation).var_dict:
                own = {name, VARIABLES.get(name.partition("[")[0], name), f"{name}_S", f"{name}_b"}
                assert own & known, (formulation, name, known)


def test_random_problems_are_stated_in_text_and_in_latex() -> None:
    for seed, problem in ((seed, drawn(seed)) for seed in SEEDS):
        if problem is None:
            continue
        for formula in formulas_of(reference_solving.formula_of(problem)):
            assert not set("\\{}") & set(writing.plain_formula(formula)), seed
        assert not unbalanced(writing.latex_document(sections(problem))), seed
        for section in sections(problem):
            assert all("$" not in line for line in writing.terminal_lines(section)), seed


def test_formulas_are_mathematics_on_the_site() -> None:
    converter = pytest.importorskip("latex2mathml.converter", reason="needs the extra site")
    for problem in filter(None, [drawn(seed) for seed in SEEDS] + [state() for state in DIRECT.values()]):
        for formula in formulas_of(reference_solving.formula_of(problem)):
            assert "<math" in converter.convert(formula)


def dual_on_blocks(problem: Any, neighbours: Array, queries: Array) -> float:
    """Return the dual of problems on blocks at weights, as it is stated."""
    stated = BlockArrays.of(problem.geometry)
    value = float(np.sqrt((stated.N.T @ queries) * (stated.R.T @ neighbours)).sum())
    for M, V, C, Q in zip(stated.M, stated.V, stated.C, stated.Q, strict=True):
        between = np.sqrt(Q.T @ queries)[:, None] * (V @ M) * np.sqrt(C.T @ neighbours)
        value += float(np.linalg.norm(between, "nuc"))
    return value**2


BLOCKS = {
    "marginals": dm.workloads.marginals([3, 4], ways=(1, 2)),
    "union": dm.workloads.union(
        {"age": 4, "sex": 2}, {"ages": {"age": dm.workloads.prefix(4)}, "cells": ["age", "sex"]}
    ),
    "circle": dm.workloads.circular_ranges(5),
}


def test_the_dual_on_blocks_is_what_the_judge_evaluates() -> None:
    for (name, asked), neighbours in itertools.product(BLOCKS.items(), (None, "replace")):
        problem = dm.FitnessForUse(asked, neighbours=neighbours, geometry="blocks")
        kinds, queries = problem.geometry.reach.shape[0], len(problem.geometry.tables)
        rng = np.random.default_rng(0)
        lam, mu = rng.random(kinds), rng.random(queries)
        lam, mu = lam / lam.sum(), mu / (mu @ problem.targets[problem.geometry.tables])
        answer = dm.fast.solve(problem, tol=1e-4)
        judged = problem.certify(answer.primal, dm.duals.FitnessDual(lam, mu))
        assert np.isclose(judged.lower_bound, dual_on_blocks(problem, lam, mu), rtol=1e-9), (name, neighbours)


def test_names_of_others_are_escaped() -> None:
    hostile = "a_1 & b%, $5 #1 {x} \\ ^~ <|> Münster ß ž 东京 \x1b[2J"
    written = writing.latex_words(writing.literal(hostile))
    assert not unbalanced(written)
    assert written.isascii() and r"M\"{u}nster" in written and "[U+4E1C]" in written and "\x1b" not in written


def test_a_formulation_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="formulation"):
        reference.latex(dm.FitnessForUse(SMALL), "schurr")
    product = dm.FitnessForUse(dm.workloads.kron(dm.workloads.prefix(3), dm.workloads.prefix(3)))
    assert not unbalanced(reference.latex(product))
    with pytest.raises(InvalidInputError, match="formulation must be omitted"):
        reference.latex(product, "schur")


def test_what_is_not_in_the_vocabulary_is_refused_and_what_is_not_closed_is_seen() -> None:
    for formula in (r"\unknown", r"\sqrt{x", r"\begin{bmatrix} a"):
        with pytest.raises((ValueError, StopIteration)):
            writing.plain_formula(formula)
    assert unbalanced(r"\begin{align*} \frac{1}{2} \end{align*}") == ""
    assert unbalanced(r"\begin{align*} $x") == "align*"


def test_documents_compile(tmp_path: Path) -> None:
    engine = next((name for name in ENGINES if shutil.which(name)), None)
    if engine is None:
        pytest.skip(f"needs one of {', '.join(ENGINES)}")
    problems = [each for seed in SEEDS[:30] if (each := drawn(seed)) is not None]
    problems += [state() for state in DIRECT.values()]
    parts = [section for problem in problems for section in sections(problem)]
    solved: list[Any] = [
        dm.FitnessForUse(dm.workloads.prefix(2)),
        dm.PrivacyFirst(dm.workloads.prefix(2), 1.0, cost=0.5),
    ]
    solved += [dm.TotalVariance(dm.workloads.identity_total(3)), dm.LocalStrategy(SMALL, 1.0)]
    parts += [section for each in solved for section in explanation.sections(dm.fast.solve(each))]
    name = writing.Words(writing.literal("a_1 & b%, $5 #1 {x} \\ ^~ <|> Münster ß ž 东京"))
    document = writing.latex_document([*parts, writing.Section("Names.", (name,))])
    fragments = [
        reference.latex(problem, each) for problem in problems for each in reference_solving.formulations(problem)
    ]
    document = document.replace(r"\end{document}", "\n".join(fragments) + r"\end{document}")
    (tmp_path / "page.tex").write_text(document, encoding="utf-8")
    options = [] if engine == "tectonic" else ["-interaction=nonstopmode", "-halt-on-error"]
    done = subprocess.run(
        [*COMPILE.get(engine, [engine]), *options, "page.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=os.environ | {"max_print_line": "1000"},
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "page.pdf").stat().st_size > 10_000
