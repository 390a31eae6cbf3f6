"""Proofs of the optima that tables rest on: a file for each, or a file with the reason why there is none."""

from fractions import Fraction
from pathlib import Path

from commanded import run

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck.sheet import Row
from dualmech.studies.papers import sheets
from dualmech.watching import answers


def test_a_tables_optima_are_proven(tmp_path: Path) -> None:
    folder = tmp_path / "proofs"
    done = run("crosscheck", "fitness/table2", "--quick", "--prove", folder)
    assert done.exit_code == 0 and f"{folder}: 4 optima proven" in done.output.replace("\n", "")
    found = [dm.verify(path) for path in sorted(folder.iterdir())]
    assert any(proof.lower <= Fraction(4, 3) <= proof.upper for proof in found)
    assert all(proof.width < 1e-6 for proof in found)


def test_what_has_no_proof_has_a_file_with_the_reason(tmp_path: Path) -> None:
    def computed() -> str:
        (rows,) = sheets.compute({"a/b": [_row]}, proofs=str(tmp_path))
        return str(next(rows).name)

    assert computed() == "row"
    (proof,) = tmp_path.glob("*.json")
    proof.write_text("mine")
    assert computed() == "row" and proof.read_text() == "mine", "what is there already is kept"
    assert sheets.written(str(tmp_path)).endswith(
        ": 1 optima proven in whole numbers; 1 have none, and a file with the reason"
    )
    (refused,) = tmp_path.glob("*.txt")
    assert refused.name.startswith("a-b-LocalStrategy-21-21") and "at most 20 user types" in refused.read_text()


def _row() -> Row:
    for problem in (dm.FitnessForUse(dm.workloads.prefix(2)), dm.LocalStrategy(dm.workloads.identity(21), 1.0)):
        fast.solve(problem, tol=1e-3)
    fast.solve(dm.FitnessForUse(dm.workloads.prefix(8)), tol=1e-9, max_iterations=1)  # proves no optimum, has no file
    return Row({"name": "row"})


def test_a_folder_that_cannot_be_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        assert isinstance(run("crosscheck", "--quick", "--prove", folder).exception, dm.errors.FileFormatError)


def test_answers_are_collected_while_they_are_asked_for() -> None:
    with answers() as found:
        answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(2)))
    fast.solve(dm.FitnessForUse(dm.workloads.prefix(3)))
    assert found == [answer]
