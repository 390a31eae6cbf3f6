"""The library of problems with proven optima: what is on disk is what is stated, and answers are held against it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck import library
from dualmech.crosscheck.command.main import app

NAMES = ["fitness-prefix-4", "variance-prefix-4", "fitness-wide", "variance-prefix-8-replaced"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("library") / "of" / "problems"
    assert [each.name for each in library.build(place, NAMES)] == NAMES
    return place


def test_names_are_many_and_say_the_family() -> None:
    known = library.problems()
    assert len(known) > 70
    assert {name.split("-")[0] for name in known} == {"fitness", "variance"}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_on_disk_is_enough_to_pose_and_to_judge(folder: Path, name: str) -> None:
    """As the author of another solver would: from the arrays alone."""
    data = library.arrays(folder, name)
    (each,) = (each for each in library.read(folder) if each.name == name)
    assert data["workload"].shape == (each.queries, each.cells)
    family = dm.FitnessForUse if each.family == "FitnessForUse" else dm.TotalVariance
    numbers = data["targets"] if family is dm.FitnessForUse else data["weights"]
    problem = family(dm.Workload(data["workload"]), numbers, neighbours=data.get("neighbours"))
    low, high = fast.solve(problem, tol=1e-8).certificate.interval
    assert low <= each.upper and each.lower <= high
    assert dm.verify(folder / f"{name}.json").is_of(library.problems()[name]())


def test_what_is_there_is_kept_and_what_was_changed_is_made_again(folder: Path) -> None:
    kept, changed = (folder / f"{name}.json" for name in NAMES[:2])
    before = kept.stat().st_mtime_ns
    changed.write_text(changed.read_text().replace("0x1", "0x3", 1))
    again = [*library.build(folder, NAMES)]
    assert kept.stat().st_mtime_ns == before
    assert dm.verify(changed).lower == again[1].lower
    assert len(library.read(folder)) == len(NAMES)


def test_answers_are_held_against_proven_optima(folder: Path, tmp_path: Path) -> None:
    identity, best = np.eye(4), fast.solve(library.problems()["variance-prefix-4"](), tol=1e-9)
    np.save(tmp_path / "fitness-prefix-4.npy", 7 * identity)
    np.save(tmp_path / "variance-prefix-4.npy", best.mechanism.causal_strategy())
    found = {each.name: each for each in library.leaderboard(folder, tmp_path)}
    assert found.keys() == {"fitness-prefix-4", "variance-prefix-4"}
    assert found["fitness-prefix-4"].objective == pytest.approx(4)
    assert found["fitness-prefix-4"].most_excess == pytest.approx(4 / 1.7586013265 - 1)
    assert -1e-12 <= found["variance-prefix-4"].most_excess < 2e-9
    result = CliRunner().invoke(app, ["leaderboard", str(folder), str(tmp_path)])
    assert result.exit_code == 0 and "127.5 %" in result.output


def test_the_command_builds_and_continues(tmp_path: Path) -> None:
    for _ in range(2):
        result = CliRunner().invoke(app, ["library", str(tmp_path / "here"), "--only", "fitness-prefix-2"])
        assert result.exit_code == 0 and "1 problems in" in " ".join(result.output.split())
    written = json.loads((tmp_path / "here" / "index.json").read_text())
    assert [each["name"] for each in written] == ["fitness-prefix-2"]


def test_what_is_no_library_or_no_answer_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(dm.FileFormatError):
        library.read(tmp_path)
    with pytest.raises(dm.InvalidInputError, match="of the library"):
        next(library.build(tmp_path, ["nothing"]))
    (tmp_path / "file").write_text("")
    with pytest.raises(dm.FileFormatError, match="cannot be written"):
        next(library.build(tmp_path / "file" / "folder"))
    (tmp_path / "index.json").write_text("[3]")
    with pytest.raises(dm.FileFormatError, match="library"):
        library.read(tmp_path)
    np.save(tmp_path / "fitness-prefix-4.npy", np.ones((1, 4)))
    with pytest.raises(dm.InvalidInputError, match=r"fitness-prefix-4\.npy"):
        list(library.leaderboard(folder, tmp_path))


@pytest.mark.slow
def test_every_problem_is_proven_to_nine_digits(tmp_path: Path) -> None:
    for each in library.build(tmp_path):
        assert each.upper / each.lower - 1 < 2e-9, each.name
