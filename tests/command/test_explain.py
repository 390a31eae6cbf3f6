"""Every family explained on the command line: its formulas, its proof, as LaTeX, or refused by its size."""

import re
import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from commanded import run
from conformance import unbalanced
from typer.testing import Result

import dualmech as dm
from dualmech.command import explanation
from dualmech.crosscheck.families import FAMILIES
from dualmech.crosscheck.optima.surds import simplest_between
from dualmech.reference.formulas.writing import plain_formula

SECTIONS = ("The program", "Its dual", "The optimal weights", "rices", "The proof")

MATHEMATICS = re.compile(r"\\\[(.+?)\\\]|\\begin\{align\*\}(.+?)\\end\{align\*\}|\$(.+?)\$", re.DOTALL)

BETWEEN = re.compile(r"optimum lies between (\S+) and (\S+?):")

POSED = {
    "fitness": "prefix:3",
    "variance": "prefix:3 --problem variance",
    "weighting": "prefix:3 --problem weighting --design haar",
    "softmax": "prefix:3 --problem softmax --t1 5",
    "common": "rows.npz columns.npz --problem common",
    "reuse": "identity:4 --after rows.npz --targets 2",
    "local": "prefix:3 --problem local --epsilon 1",
    "projection": "matrix.csv --problem projection --epsilon 1",
    "estimate": "identity:3 --problem estimate --answers answers.csv",
    "privacy first": "prefix:2 --rho 0.5",
    "pure": "identity:3 --problem weighting --privacy pure",
    "volume": "rows.npz columns.npz --problem common --criterion volume",
    "worst": "prefix:3 --problem local --epsilon 1 --criterion worst",
    "prior": "prefix:3 --problem local --epsilon 1 --prior prior.csv",
    "total": "identity:3 --problem estimate --answers answers.csv --total 9",
    "tables": "marginals:3x2:1,2 --neighbours replace",
    "epochs": "prefix:26 --problem variance --neighbours participation:2:13",
    "split": "marginals:3x2:1,2 --geometry dense",
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dm.save(dm.LinearGaussianMechanism([[1, 1, 0, 0], [0, 0, 1, 1]], np.eye(2)), "rows.npz")
    dm.save(dm.LinearGaussianMechanism([[1, 0, 1, 0], [0, 1, 0, 1]], 2 * np.eye(2)), "columns.npz")
    Path("matrix.csv").write_text("0.9,0.1\n0.3,0.5\n")
    Path("answers.csv").write_text("5\n3\n-2\n")
    Path("prior.csv").write_text("0.25\n0.5\n0.25\n")


def explained(line: str) -> Result:
    return run("explain", *line.split())


def test_every_family_is_here() -> None:
    assert {family.name for family in FAMILIES} <= {*POSED}


@pytest.mark.parametrize("name", POSED)
def test_symbols_stand_before_they_are_used_and_the_proof_at_the_end(name: str) -> None:
    result = explained(POSED[name])
    assert result.exit_code == 0, result.exception
    places = [result.output.index(words) for words in SECTIONS]
    assert places == sorted(places)
    assert "$" not in result.output and "\\" not in result.output
    assert re.search("optimum lies in|optimum lies between|is exactly|to within", result.output)


@pytest.mark.parametrize("name", ["fitness", "weighting", "common", "worst", "total", "tables", "epochs"])
def test_latex_is_printed(name: str) -> None:
    """Of every family, on every geometry, it is by `CHECKS` of `conformance.py`."""
    result = explained(f"{POSED[name]} --latex -")
    assert result.exit_code == 0, result.exception
    assert result.output.startswith(r"\documentclass") and not unbalanced(result.output)
    for parts in MATHEMATICS.findall(result.output.partition(r"\begin{document}")[2]):
        # `ValueError` for what is not in the vocabulary
        assert plain_formula("".join(parts).replace(r"H\"{o}lder", ""))
    assert not re.search(r"[A-Z]\w+\(|<|\bNone\b", result.output)  # nor is a title what Python prints


def test_latex_is_written_whole_and_the_suffix_is_asked_for() -> None:
    assert explained("prefix:2 --latex page.tex").output == "page.tex: written\n"
    printed = [explained(f"prefix:2 {end}").output for end in ("--latex -", "--latex", "--latex --tol 1e-6")]
    assert printed[0].startswith("\\documentclass") and printed == 3 * printed[:1]
    assert Path("page.tex").read_text(encoding="utf-8").endswith("\\end{document}\n")
    assert ".tex" in str(explained("prefix:2 --latex page.pdf").exception)


def test_a_layer_and_a_formulation() -> None:
    result = explained("prefix:3 --layer reference")
    assert "[Σ, B U; (B U)', Z] ⪰ 0" in result.output and "Z_ii ≤ α" in result.output
    result = explained("prefix:3 --layer reference --formulation logdet")
    assert "log det Σ" in result.output
    assert "formulation" in str(explained("prefix:3 --layer reference --formulation nope").exception)


@pytest.mark.parametrize("tol", [1e-3, 1e-9])
def test_the_interval_is_as_narrow_as_is_asked_for(tol: float) -> None:
    output = explained(f"prefix:5 --tol {tol:g}").output
    low, high = map(Fraction, BETWEEN.findall(output)[0])
    certified = dm.fast.solve(dm.FitnessForUse(dm.workloads.prefix(5)), tol=tol).certificate
    assert low <= certified.lower_bound * (1 + 1e-14) and certified.objective * (1 - 1e-14) <= high
    assert 0 < high / low - 1 <= tol
    assert high.denominator <= 100 / (high - low)  # no longer than it has to be


def test_a_gap_is_positive_and_of_either_layer() -> None:
    assert "tol must be positive" in str(explained("prefix:3 --tol 0").exception)
    result = explained("prefix:5 --layer reference --tol 1e-5")
    assert result.exit_code == 0 and "CVXPY" not in result.output


def test_a_file_that_holds_less_than_is_asked_for_is_solved_again() -> None:
    dm.save(dm.fast.solve(dm.FitnessForUse(dm.workloads.prefix(5)), tol=1e-2), "rough.npz")

    def width(line: str) -> float:
        low, high = BETWEEN.findall(explained(line).output)[0]
        return float(high) - float(low)

    assert width("rough.npz") > 1e-4 and width("rough.npz --tol 1e-9") < 1e-8


def test_square_roots_are_shown_and_written() -> None:
    output = explained("prefix:3").output
    assert "exactly (59 + 24 √6)/75, about 1.57050338436." in output and "40 - 16 √6 ]" in output
    assert "fractions and square roots" in output and "lies between" not in output
    latex = explained("prefix:3 --latex -").output
    assert r"(59 + 24 \sqrt{6})/75" in latex and r"-3 + \sqrt{6} &" in latex and not unbalanced(latex)
    assert "(3 + √5)/2" in explained("prefix:2 --problem variance").output
    assert "(118 + 48 √6)/75" in explained("prefix:3 --rho 0.25").output


def test_a_solution_is_explained_from_its_file() -> None:
    dm.save(dm.fast.solve(dm.LocalStrategy(dm.workloads.prefix(3), 1.0)), "local.npz")
    assert "ε = 1" in explained("local.npz").output
    assert "T" in explained("local.npz --layer reference").output


def test_what_does_not_go_together_is_refused_by_name() -> None:
    for line, words in {
        "prefix:3 --problem local": "needs --epsilon",
        "prefix:3 --problem local --epsilon 1 --delta 1e-9": "--delta",
        "prefix:3 --problem local --epsilon 1 --neighbours replace": "--neighbours",
        "prefix:3 --problem local --epsilon 1 --criterion mean": "criterion",
        "prefix:3 --problem variance --rho 1": "belong to solve",
        "prefix:3 --problem variance --criterion worst": "--criterion belongs to --problem common or local",
        "rows.npz columns.npz --problem common --criterion worst": "criterion must be one of trace, volume",
        "prefix:3 --problem estimate": "needs --answers",
        "prefix:3 --problem reuse": "needs --after",
        "prefix:3 --epsilon 1": "--delta",
        "prefix:3 prefix:4": "one WORKLOAD",
        "rows.npz --problem common": "two",
        "rows.npz prior.csv --problem common": "mechanisms[1]",
        "prefix:3 --formulation schur": "--layer reference",
    }.items():
        result = explained(line)
        assert result.exit_code == 1 and isinstance(result.exception, dm.errors.DualmechError), line
        assert words in str(result.exception), line


def test_what_nobody_would_read_is_refused_before_it_is_made() -> None:
    for line in ("prefix:100000", "decayed_sums:100000,0.9", "prefix:100000 --problem weighting", "all_range:1500"):
        result = explained(line)
        assert "dualmech solve" in str(result.exception) or "too many to write out" in str(result.exception), line


def test_tables_of_any_size_are_explained() -> None:
    asked = dm.FitnessForUse(dm.workloads.marginals([10] * 12, ways=(1, 2)))
    explanation.refuse_large_problem(asked)
    with pytest.raises(dm.errors.InvalidInputError, match="dualmech solve"):
        explanation.refuse_large_problem(dm.FitnessForUse(dm.workloads.prefix(4096)))


def test_a_refusal_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        refused = explained("prefix:100000")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.exit_code == 1 and "dualmech solve" in str(refused.exception)
    assert peak < 2**27  # bytes; the matrix alone has 80 GB


def test_parts_at_least_so_far_apart() -> None:
    page = explained("prefix:5 --problem variance --neighbours participation:2:3:at-least --tol 0.2").output
    assert "all persons, by step: 100 %" in page and "over Λ = Π ∘ G" in page
    assert "selects the steps of person p, up to 2, at least 3 apart" in page


def test_prices_of_phases_and_of_steps_are_listed() -> None:
    page = explained("prefix:7 --problem variance --neighbours participation:2:4").output
    listed = page.partition("Phases and their steps")[2].partition("The proof")[0]
    assert "the person in cell 0, cell 4: 53.33 % (32.35 %, 20.98 %)" in listed
    assert "the person in cell 3: 3.313 % (3.313 %)" in listed
    assert r"Λ_3 = " in page and "Of phases" not in explained("prefix:3").output


def test_a_number_near_to_which_an_optimum_is_proven_is_said_as_such() -> None:
    output = explained(POSED["common"]).output
    assert re.search(r"the optimum is 1 to within [1-9]e-1\d: proven in exact arithmetic", output)
    for low, high in (("0.12345678", "0.12345679"), ("-2.5", "-2.4"), ("0", "1e-9"), ("12345.6", "12399")):
        least, most = Fraction(low), Fraction(high)
        first, last = map(
            Fraction, re.findall(r"\$(.+?)\$", explanation.where_it_lies(least, most, Fraction(1, 10**6)))
        )
        assert first <= least and most <= last
        assert least <= simplest_between(least, most) <= most
