"""The command that turns records and a mechanism into files of noisy tables."""

import csv
from functools import partial
from pathlib import Path

import commanded
import numpy as np
import pytest

import dualmech as dm
from dualmech import fast
from dualmech.errors import DualmechError

ADULT = Path(__file__).resolve().parents[3] / "shared" / "data" / "adult.csv"
DOMAIN = dm.Domain({"age": 4, "../sex, or so": 2, "place": 3})
ASKED = dm.workloads.marginals(DOMAIN, ways=(0, 1, 2))


run = partial(commanded.run, "simulate")


def read(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(encoding="utf-8", newline="") as stream:
        header, *rows = csv.reader(stream)
    return header, rows


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def records(tmp_path: Path) -> Path:
    drawn = np.random.default_rng(0).integers(0, DOMAIN.shape, (200, 3))
    lines = ['place,"../sex, or so",age', *(f"{place},{sex},{age}" for age, sex, place in drawn)]
    (tmp_path / "records.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "records.csv"


class TestTables:
    def test_a_solution_gives_its_own_tables(self, records: Path, tmp_path: Path) -> None:
        answer, folder = fast.solve(dm.FitnessForUse(ASKED, {0: 1.0, 1: 4.0, 2: 9.0})), tmp_path / "out"
        dm.save(answer, tmp_path / "answer.npz")
        result = run(records, tmp_path / "answer.npz", "-o", folder, "--rng", 7)
        assert result.exit_code == 0 and "NOT a private release" in result.stderr
        assert result.stdout.startswith("counted: 200 records\n")
        assert f"rho = {answer.mechanism.rho:.6g}" in result.stdout and "written: 7 noisy" in result.stdout
        header, listed = read(folder / "tables.csv")
        assert header == ["file", "table", "variance"]
        assert [row[0] for row in listed[:2]] == ["1_total.csv", "2_age.csv"] and len(contents(folder)) == 9
        np.testing.assert_allclose([float(row[2]) for row in listed], [1, *[4] * 3, *[9] * 3], rtol=1e-6)
        noisy = answer.mechanism.simulate(dm.records.count(records, ASKED), 7)
        for (name, *_), (names, table) in zip(listed, noisy.items(), strict=True):
            header, rows = read(folder / name)
            assert header == [*names, "estimate"]
            for *cell, estimate in rows:
                assert float(estimate) == table[tuple(map(int, cell))]
            assert len(rows) == table.size
        again = run(records, tmp_path / "answer.npz", "-o", tmp_path / "again", "--rng", 7)
        assert again.exit_code == 0 and contents(folder) == contents(tmp_path / "again")

    def test_a_mechanism_gives_the_largest_that_it_answers(self, records: Path, tmp_path: Path) -> None:
        dm.save(dm.BlockMechanism.of_tables(ASKED, 1e-18), tmp_path / "cells.npz")
        assert run(records, tmp_path / "cells.npz", "-o", tmp_path / "out", "--rng", 0).exit_code == 0
        found = sorted(contents(tmp_path / "out"))
        assert found == [
            "1_age_x_sex_or_so.csv",
            "2_age_x_place.csv",
            "3_sex_or_so_x_place.csv",
            "README.txt",
            "tables.csv",
        ]
        _, rows = read(tmp_path / "out" / "2_age_x_place.csv")
        counted = dm.records.count(records, ASKED)[0, 2]
        np.testing.assert_allclose([float(row[2]) for row in rows], counted.ravel(), atol=1e-6)

    def test_queries_are_called_by_their_names(self, records: Path, tmp_path: Path) -> None:
        asked = dm.workloads.query_tables(DOMAIN, {"age": dm.workloads.prefix(4)}, ways=(1, 2))
        answer = fast.solve(dm.FitnessForUse(asked, 1e-14, geometry="split"), tol=1.0)
        dm.save(answer, tmp_path / "answer.npz")
        assert run(records, tmp_path / "answer.npz", "-o", tmp_path / "out", "--rng", 0).exit_code == 0
        header, rows = read(tmp_path / "out" / "5_age_x_place.csv")
        counted = np.cumsum(dm.records.count(records, asked.tables)[0, 2], axis=0)
        assert header == ["age", "place", "estimate"] and [row[0] for row in rows[3:5]] == ["cells 0..1"] * 2
        np.testing.assert_allclose([float(row[2]) for row in rows], counted.ravel(), atol=1e-4)

    def test_unions_give_their_own_tables(self, records: Path, tmp_path: Path) -> None:
        asked = dm.workloads.union(
            DOMAIN,
            {
                "all": [],
                "by age": {"age": dm.workloads.circular_ranges(4), "place": None},
                "again, by age": {"age": None},
                "ends": {"place": dm.Workload([[1, 0, 1], [1, 1, 0.0]], ["ends", "front"])},
            },
        )
        answer = fast.solve(dm.FitnessForUse(asked, 1e-14))
        dm.save(answer, tmp_path / "answer.npz")
        assert run(records, tmp_path / "answer.npz", "-o", tmp_path / "out", "--rng", 0).exit_code == 0
        header, listed = read(tmp_path / "out" / "tables.csv")
        names = ["1_all.csv", "2_by_age.csv", "3_again_by_age.csv", "4_ends.csv"]
        assert [row[0] for row in listed] == names and header == ["file", "table", "variance"]
        np.testing.assert_allclose([float(row[2]) for row in listed], 1e-14, rtol=1e-5)
        counts = dm.records.count(records, dm.workloads.marginals(DOMAIN, ways=3))[0, 1, 2]
        truth, found = asked.matrix @ counts.ravel(), [read(tmp_path / "out" / name) for name in names]
        np.testing.assert_allclose([float(row[-1]) for _, each in found for row in each], truth, atol=1e-4)
        assert found[1][0] == ["age", "place", "estimate"] and found[1][1][3][:2] == ["cell 1", "0"]
        assert [row[0] for row in found[3][1]] == ["ends", "front"]

    def test_the_folder_says_what_it_is_and_noise_is_drawn_anew(self, records: Path, tmp_path: Path) -> None:
        dm.save(dm.BlockMechanism.of_tables(ASKED), tmp_path / "cells.npz")
        once, again = tmp_path / "once", tmp_path / "again"
        for folder in (once, again):
            assert run(records, tmp_path / "cells.npz", "-o", folder).exit_code == 0
            assert "for study only: this is NOT a private release" in (folder / "README.txt").read_text()
        assert (once / "tables.csv").read_bytes() == (again / "tables.csv").read_bytes()
        assert (once / "2_age_x_place.csv").read_bytes() != (again / "2_age_x_place.csv").read_bytes()

    def test_no_name_becomes_a_formula_of_a_spreadsheet(self, tmp_path: Path) -> None:
        tables = dm.workloads.marginals({"=1+1": 2, "-2": 2, "b=": 2}, ways=(1,))
        (tmp_path / "records.csv").write_text("=1+1,-2,b=\n0,1,1\n")
        dm.save(fast.solve(dm.FitnessForUse(tables)), tmp_path / "answer.npz")
        assert run(tmp_path / "records.csv", tmp_path / "answer.npz", "-o", tmp_path / "out").exit_code == 0
        _, listed = read(tmp_path / "out" / "tables.csv")
        assert [row[1] for row in listed] == ["'=1+1", "'-2", "b="]
        assert [read(tmp_path / "out" / row[0])[0][0] for row in listed] == ["'=1+1", "'-2", "b="]
        _, rows = read(tmp_path / "out" / listed[0][0])
        assert all(float(estimate) for *_, estimate in rows), "numbers stay numbers, whatever their sign"

    @pytest.mark.skipif(not ADULT.exists(), reason="the Adult table is not beside the project")
    def test_adult(self, tmp_path: Path) -> None:
        people = dm.workloads.marginals({"race": 5, "sex": 2, "income>50K": 2}, ways=(1, 2))
        dm.save(fast.solve(dm.FitnessForUse(people, 25.0)), tmp_path / "answer.npz")
        where = (ADULT, tmp_path / "answer.npz", "-o", tmp_path / "out", "--rng", 0)
        assert "'fnlwgt' that is no attribute" in str(run(*where).exception)
        assert run(*where, "--ignore", "fnlwgt").exit_code == 0
        _, rows = read(tmp_path / "out" / "1_race.csv")
        truth, estimates = [41762, 1519, 470, 406, 4685], [float(row[1]) for row in rows]
        assert estimates != truth and np.abs(np.subtract(estimates, truth)).max() < 5 * 5


class TestRefused:
    @pytest.fixture
    def mechanism(self, tmp_path: Path) -> Path:
        dm.save(dm.BlockMechanism.of_tables(ASKED), tmp_path / "cells.npz")
        return tmp_path / "cells.npz"

    def refused(self, message: str, *arguments: object) -> None:
        result = run(*arguments)
        assert isinstance(result.exception, DualmechError) and message in str(result.exception)

    def test_nothing_is_left_of_what_fails(self, mechanism: Path, records: Path, tmp_path: Path) -> None:
        bad = tmp_path / "bad.csv"
        bad.write_text(records.read_text(encoding="utf-8") + "3,0,0\n", encoding="utf-8")
        before = sorted(path.name for path in tmp_path.iterdir())
        self.refused(
            "bad.csv: line 202: 'place' must be a whole number from 0 to 2, got '3'",
            bad,
            mechanism,
            "-o",
            tmp_path / "out",
        )
        bad.write_text(records.read_text(encoding="utf-8").replace(",", ";"), encoding="utf-8")
        self.refused("bad.csv: line 1: fields are separated by semicolons", bad, mechanism, "-o", tmp_path / "out")
        self.refused("cannot be read", tmp_path / "missing.csv", mechanism, "-o", tmp_path / "out")
        self.refused("no folder", records, mechanism, "-o", tmp_path / "no" / "out")
        self.refused("exists already", records, mechanism, "-o", tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == before

    def test_files_without_records_are_counted_where_that_is_asked_for(
        self, mechanism: Path, records: Path, tmp_path: Path
    ) -> None:
        nobody, folder = tmp_path / "nobody.csv", tmp_path / "out"
        nobody.write_text(records.read_text(encoding="utf-8").splitlines()[0], encoding="utf-8")
        self.refused(
            "nobody.csv: there are no records; allow_empty=True (--allow-empty)", nobody, mechanism, "-o", folder
        )
        result = run(nobody, mechanism, "-o", folder, "--allow-empty")
        assert result.exit_code == 0 and result.stdout.startswith("counted: 0 records\n")

    def test_mechanisms_of_no_tables(self, records: Path, tmp_path: Path) -> None:
        path, folder = tmp_path / "other.npz", tmp_path / "out"
        dm.save(fast.solve(dm.FitnessForUse(dm.workloads.prefix(3), 1.0)), path)
        self.refused("a solution of marginal or query tables or of a union", records, path, "-o", folder)
        dm.save(dm.LinearGaussianMechanism(np.eye(2), np.eye(2)), path)
        self.refused("must hold a BlockMechanism, got a LinearGaussianMechanism", records, path, "-o", folder)
        dm.save(dm.BlockMechanism.of_levels(DOMAIN, {}), path)
        self.refused("without queries", records, path, "-o", folder)
        dm.save(dm.BlockMechanism.of_levels(DOMAIN, {(0, 1): 1.0}), path)
        self.refused("is not answered", records, path, "-o", folder)
        self.refused("looks like records", records, records, "-o", folder)
        assert not folder.exists()
