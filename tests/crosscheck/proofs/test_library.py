"""The library of problems with proven optima: what is on disk is what is stated, and answers are held against it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck import collection, leaderboard, library
from dualmech.crosscheck.proofs.texts import written

NAMES = ["fitness-prefix-4", "variance-prefix-4", "fitness-wide", "variance-prefix-8-replaced"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("library") / "of" / "problems"
    assert [each.name for each in library.build(place, NAMES)] == NAMES
    return place


EVERY = [
    *("privacy-prefix-8", "fitness-tables-shifts", "fitness-split-12x9", "softmax-prefix-2-10"),
    *("variance-product-prefix-8-marginals-4x4", "weighting-prefix-8-wavelet-pure", "common-random-3-seed-0"),
    *("reuse-prefix-8-after-halves", "local-prefix-4-1-worst", "local-parity-8-1-prior"),
    *("projection-6x4-2-floors", "estimate-prefix-16-total"),
]
"""A few problems of every family, and of every kind of proof."""


def test_names_are_many_and_say_the_family() -> None:
    known = library.problems()
    assert len(known) > 290
    assert {name.split("-")[0] for name in known} == set(collection.FAMILIES)
    for name in EVERY:
        assert type(known[name]()).__name__ == collection.FAMILIES[name.split("-")[0]]
    by_class, by_word = library.named(["NonnegativeEstimate"]), library.named(["estimate"])
    assert by_class == by_word and len(by_word) == 10
    assert library.named(["reuse", by_word[0], "reuse"]) == [*library.named(["reuse"]), by_word[0]]


def test_every_family_is_proven_and_stated_in_plain_arrays(tmp_path: Path) -> None:
    for each in library.build(tmp_path, EVERY):
        problem, data = library.problems()[each.name](), library.arrays(tmp_path, each.name)
        assert 0 < each.lower <= each.upper < each.lower * (1 + 2e-9), each.name
        proof = dm.verify(tmp_path / f"{each.name}.json")
        assert proof.is_of(problem) and each.kind == proof.document["problem"]["kind"]
        stated = written(problem.in_numbers())
        for name in ("workload", "design", "matrix", "answers", "prior", "release", "neighbours"):
            if stated.get(name) is not None:
                assert written(data[name]) == stated[name], each.name
    assert [each.name for each in library.read(tmp_path)] == EVERY


def test_tables_are_stated_by_numbers_alone() -> None:
    found = library.of_problem(library.problems()["fitness-tables-shifts"]())
    assert found["sizes"].tolist() == [24, 5, 2]
    assert found["tables"].tolist() == [[1, 0, -1], [-1, 0, 0]]
    assert np.array_equal(found["queries_1"], np.tri(24)) and found["targets"].tolist() == [1, 1]
    product = library.of_problem(library.problems()["fitness-product-prefix-8-marginals-4x4"]())
    assert np.array_equal(product["factor_1_workload"], np.tri(8))
    assert product["factor_2_tables"].tolist() == [[0, -1], [-1, 0]]


ANSWERS: dict[str, Any] = {
    "softmax-prefix-2-10": lambda answer: np.linalg.inv(np.linalg.cholesky(answer.primal)),
    "reuse-prefix-8-after-halves": lambda answer: np.linalg.inv(np.linalg.cholesky(answer.primal)),
    "weighting-prefix-8-wavelet-pure": lambda answer: 3 * answer.primal[:, None],
    "common-random-3-seed-0": lambda answer: answer.primal,
    "local-histogram-4-1-average": lambda answer: answer.primal,
    "projection-6x4-2-floors": lambda answer: answer.primal,
    "estimate-prefix-16-total": lambda answer: answer.primal[None],
}


def test_answers_of_other_families_are_held_against_proven_optima(tmp_path: Path) -> None:
    """Each family takes what it is about: a strategy, weights, a covariance, Q, a point."""
    for _ in library.build(tmp_path / "library", [*ANSWERS]):
        pass
    for name, of in ANSWERS.items():
        np.save(tmp_path / f"{name}.npy", of(fast.solve(library.problems()[name](), tol=1e-9)))
    for scaled in (False, True):
        found = {each.name: each for each in leaderboard.entries(tmp_path / "library", [tmp_path], scaled=scaled)}
        assert found.keys() == ANSWERS.keys()
        for each in found.values():
            wrong = each.name.startswith("weighting") and not scaled
            assert "infeasible" in each.fault if wrong else -1e-9 < each.most < 3e-9, each


def test_noise_on_tables_is_no_one_matrix(tmp_path: Path) -> None:
    for _ in library.build(tmp_path, ["fitness-tables-shifts"]):
        pass
    np.save(tmp_path / "fitness-tables-shifts.npy", np.eye(240))
    (tmp_path / "answers").mkdir()
    (tmp_path / "fitness-tables-shifts.npy").rename(tmp_path / "answers" / "fitness-tables-shifts.npy")
    (found,) = leaderboard.entries(tmp_path, [tmp_path / "answers"])
    assert "geometry 'dense', got 'blocks'" in found.fault


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
    found = {each.name: each for each in leaderboard.entries(folder, [tmp_path], scaled=True)}
    assert found.keys() == {"fitness-prefix-4", "variance-prefix-4"}
    assert found["fitness-prefix-4"].objective == pytest.approx(4)
    assert found["fitness-prefix-4"].most == pytest.approx(4 / 1.7586013265 - 1)
    assert -1e-12 <= found["variance-prefix-4"].most < 3e-9
    result = run("leaderboard", folder, tmp_path, "--scaled", columns=160)
    assert result.exit_code == 3 and "127.5 % above" in result.output and "optimal within" in result.output
    assert run("leaderboard", folder, tmp_path, "--scaled", "--tol", "2").exit_code == 0


def test_solvers_are_ranked_and_no_file_ends_it(folder: Path, tmp_path: Path) -> None:
    best = fast.solve(library.problems()["fitness-prefix-4"](), tol=1e-10).primal
    good, bad = tmp_path / "good", tmp_path / "bad"
    for place in (good, bad):
        place.mkdir()
    np.savez(good / "fitness-prefix-4.npz", covariance=best, seconds=0.5)
    np.savez(bad / "fitness-prefix-4.npz", covariance=1.0001 * best)
    (bad / "fitness-prefix-4.csv").write_text("1\n")
    (bad / "fitnes-prefix-4.csv").write_text("1\n")
    (bad / "variance-prefix-4.csv").write_text("1,nan\n")
    (bad / "notes.txt").write_text("no answer")
    found = [*leaderboard.entries(folder, [bad, good])]
    first, second = leaderboard.standings(found, 1e-6)
    assert (first.solver, first.answers, first.within, first.seconds) == ("good", 1, 1, 0.5)
    assert (second.solver, second.answers, second.feasible, second.within) == ("bad", 4, 0, 0)
    faults = {each.name: each.fault for each in found if each.solver == "bad"}
    assert "another answer" in faults["fitness-prefix-4.npz"] and "4 columns" in faults["fitness-prefix-4"]
    assert "did you mean fitness-prefix-4?" in faults["fitnes-prefix-4.csv"]
    assert "finite" in faults["variance-prefix-4"]
    result = run("leaderboard", folder, bad, good, columns=200)
    assert result.exit_code == 3 and "4 of 5 answers are not within 1e-06" in result.output
    assert run("leaderboard", folder, good).exit_code == 0
    with pytest.raises(dm.errors.FileFormatError, match="no folder of answers"):
        list(leaderboard.entries(folder, [tmp_path / "none"]))


def test_the_command_builds_and_continues(tmp_path: Path) -> None:
    for _ in range(2):
        result = run("library", tmp_path / "here", "--only", "fitness-prefix-2")
        assert result.exit_code == 0 and "1 problems in" in " ".join(result.output.split())
    listed = json.loads((tmp_path / "here" / "index.json").read_text())
    assert [each["name"] for each in listed] == ["fitness-prefix-2"]
    result = run("library", tmp_path / "family", "--only", "NonnegativeEstimate")
    assert result.exit_code == 0 and "10 problems in" in " ".join(result.output.split())


def test_what_is_no_library_or_no_answer_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(dm.errors.FileFormatError):
        library.read(tmp_path)
    with pytest.raises(dm.errors.InvalidInputError, match="of the library"):
        next(library.build(tmp_path, ["nothing"]))
    (tmp_path / "file").write_text("")
    with pytest.raises(dm.errors.FileFormatError, match="cannot be made a folder"):
        next(library.build(tmp_path / "file" / "folder"))
    (tmp_path / "index.json").write_text("[3]")
    with pytest.raises(dm.errors.FileFormatError, match="library"):
        library.read(tmp_path)
    np.save(tmp_path / "fitness-prefix-4.npy", np.ones((1, 4)))
    (found,) = leaderboard.entries(folder, [tmp_path])
    assert "cannot answer the workload" in found.fault


@pytest.mark.slow
def test_every_problem_is_proven_to_nine_digits(tmp_path: Path) -> None:
    for each in library.build(tmp_path):
        assert each.upper / each.lower - 1 < 2e-9, each.name


def test_what_is_infeasible_says_by_how_much(folder: Path, tmp_path: Path) -> None:
    best = fast.solve(library.problems()["fitness-prefix-4"](), tol=1e-10).primal
    np.savez(tmp_path / "fitness-prefix-4.npz", covariance=1.0001 * best)
    (found,) = leaderboard.entries(folder, [tmp_path])
    assert found.fault.startswith("infeasible: ") and "has 0.01 % more than its target" in found.fault
    assert "scaled it would be optimal within" in found.fault and found.most == np.inf


def test_a_covariance_in_a_file_for_strategies_gets_a_hint(folder: Path, tmp_path: Path) -> None:
    best = fast.solve(library.problems()["fitness-prefix-4"](), tol=1e-10).primal
    np.save(tmp_path / "fitness-prefix-4.npy", best)
    (entry,) = leaderboard.entries(folder, [tmp_path])
    assert entry.status(1e-6) != "within" and "save it in an .npz file as the array 'covariance'" in entry.words
    np.save(tmp_path / "fitness-prefix-4.npy", 7 * np.eye(4))
    (entry,) = leaderboard.entries(folder, [tmp_path])
    assert not entry.hint
