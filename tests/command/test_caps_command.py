"""Hard limits and specifications on the command line: options, files, what is printed and what is written."""

from functools import partial
from pathlib import Path
from typing import Any

import commanded
import numpy as np
import pytest
from printed import is_close_above, number_after

import dualmech as dm
from dualmech import accounting, crosscheck
from dualmech.command.inputs import read_caps
from dualmech.command.request import Request

FILE = """level = 0.9
{top}
[attributes.age]
from = 17
to = 24
[attributes.sex]
labels = ["f", "m"]
[[tables]]
name = "ages"
ask = {{ age = "prefixes" }}
margin = 12
{ages}
[[tables]]
name = "sexes"
ask = ["sex"]
variance = 4
"""


run = partial(commanded.run, "solve", columns=160)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(top: str = "", ages: str = "") -> Path:
        path = tmp_path / "asked.toml"
        path.write_text(FILE.format(top=top, ages=ages))
        return path

    return written


class TestSpecifications:
    def test_rho_and_a_hard_table(self, write: Any, tmp_path: Path) -> None:
        path, plan = write('rho = "1/2"', "hard = true"), tmp_path / "plan.npz"
        found = run(path, "-o", plan)
        assert found.exit_code == 0, found.output
        asked = dm.Specification.read(path)
        best = crosscheck.capped(asked.workload, asked.targets, asked.caps, asked.cost or 0.0)
        assert f"CERTIFIED: factor on the targets that are not hard {best.high:.9g}" in found.output
        assert "at rho = 0.5;" in found.output and "at the level 0.9:" in found.output
        assert dm.load(plan) == best.answer
        assert "ages: 12 (8 rows, asked 12, hard)" in found.output

    def test_rho_alone_is_privacy_first(self, write: Any) -> None:
        by_file, by_option = run(write('rho = "1/2"')), run(write(), "--rho", "1/2")
        first, second = (each.output.splitlines()[:2] for each in (by_file, by_option))
        assert by_file.exit_code == 0 and first == second and "factor on the targets" in first[0]
        other = run(write('rho = "1/2"'), "--rho", "1")
        assert other.exit_code == 0 and "at rho = 1," in other.output

    def test_hard_tables_wait_for_a_privacy(self, write: Any) -> None:
        kept = run(write(ages="hard = true"))
        assert kept.exit_code == 0 and "rho (zCDP)" in kept.output.splitlines()[0]
        searched = run(write(ages="hard = true"), "--rho", "1/2")
        assert "that are not hard" in searched.output.splitlines()[0]

    def test_a_privacy_counts_for_other_problems_too(self, write: Any) -> None:
        found = run(write('rho = "1/8"'), "--problem", "variance")
        assert found.exit_code == 0 and "at rho = 0.125" in found.output
        pure = run(write('rho = "1/8"'), "--problem", "weighting", "--privacy", "pure", "--design", "identity")
        assert pure.exit_code == 0 and "epsilon = 1, pure" in pure.output
        explained = commanded.run("explain", str(write('rho = "1/8"')))
        assert explained.exit_code == 0 and "least factor on the targets" in explained.output

    @pytest.mark.parametrize(("given", "hard"), [("sexes=3", "sexes"), ("ages=10", "ages")])
    def test_an_option_makes_a_table_hard(self, write: Any, given: str, hard: str) -> None:
        """A cap of a table with a margin is a margin."""
        found, asked = run(write('rho = "1/2"'), "--cap", given), dm.Specification.read(write())
        caps = {"sexes": 3.0, "ages": accounting.variance_from_margin(10, asked.quantile)}
        targets = {name: target for name, target in asked.targets.items() if name != hard}
        best = crosscheck.capped(asked.workload, targets, {hard: caps[hard] * (1 - 4e-6)}, cost=1.0)
        assert f"not hard {best.high:.9g}" in found.output
        assert hard == "sexes" or "(8 rows, asked 10, hard)" in found.output

    def test_targets_of_options_take_the_place_of_the_files(self, write: Any) -> None:
        found = run(write('rho = "1/2"', "hard = true"), "--targets", "1")
        assert found.exit_code == 0 and "factor on the targets " in found.output and "not hard" not in found.output

    def test_the_file_is_read_once(self, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        path, read, times = write('rho = "1/2"', "hard = true"), dm.Specification.read, []

        def counted(given: Any) -> dm.Specification:
            times.append(given)
            return read(given)

        monkeypatch.setattr(dm.Specification, "read", counted)
        assert run(path).exit_code == 0 and len(times) == 1
        times.clear()
        assert run(write()).exit_code == 0 and len(times) == 1

    def test_margins_are_at_the_files_level(self, write: Any) -> None:
        assert "at the level 0.9:" in run(write()).output
        assert "at the level 0.9545:" in run(write(), "--z", "2").output

    def test_a_search_is_no_problem_to_judge_or_explain(self, write: Any, tmp_path: Path) -> None:
        path = write('rho = "1/2"', "hard = true")
        np.save(tmp_path / "noise.npy", np.eye(16))
        for line in (["explain", str(path)], ["judge", str(path), "--covariance", str(tmp_path / "noise.npy")]):
            found = commanded.run(*line)
            assert found.exit_code != 0 and "belong to solve" in str(found.exception), line


class TestCaps:
    def test_of_tables_by_name_by_ways_and_by_file(self, tmp_path: Path) -> None:
        (tmp_path / "caps.csv").write_text("table,cap\na1 x a0,10\n")
        outputs = [
            run("marginals:6x3:1,2", "--rho", "1/4", "--cap", given).output.splitlines()[0]
            for given in ("a0 x a1=10", "2=10", "2-way=10", tmp_path / "caps.csv")
        ]
        assert len(set(outputs)) == 1 and outputs[0].startswith("CERTIFIED: factor on the targets that are")

    def test_of_queries_with_one_number_for_the_others(self) -> None:
        found = run("prefix:6", "--rho", 10, "--cap", "cell 0=0.1", "--cap", "cells 0..5=0.2", "--targets", 2)
        best = crosscheck.capped(dm.workloads.prefix(6), 2.0, {"cell 0": 0.1, "cells 0..5": 0.2}, cost=20.0)
        assert found.exit_code == 0 and f"not hard {best.high:.9g}" in found.output

    def test_margins_for_margins(self) -> None:
        by_margin = run("prefix:4", "--rho", 2, "--moe", 3, "--cap", "cell 0=1")
        limit, others = (float(accounting.variance_from_margin(each)) for each in (1.0, 3.0))
        best = crosscheck.capped(dm.workloads.prefix(4), others, {"cell 0": limit}, cost=4.0)
        assert f"not hard {best.high:.9g}" in by_margin.output

    def test_on_a_geometry_of_ones_own(self) -> None:
        for geometry in ("dense", "stream"):
            found = run("prefix:6", "--rho", 2, "--cap", "cell 0=1", "--geometry", geometry)
            assert found.exit_code == 0 and f"geometry: {geometry}" in found.output

    def test_a_name_is_that_of_one_table_alone(self) -> None:
        """Only tables of the census have parts that go by their first word."""
        people = {"age": 4, "sex": 2}
        asked = dm.workloads.union(people, {"ages": {"age": dm.workloads.prefix(4)}, "ages by sex": ["age", "sex"]})
        assert read_caps(["ages=3"], asked) == {"ages": 3.0}
        assert read_caps(["ages=3", "ages by sex=4"], asked) == {"ages": 3.0, "ages by sex": 4.0}
        equal = dm.Workload(np.eye(2), ["age = 1", "age = 2"])
        assert read_caps(["age = 1=3"], equal) == {"age = 1": 3.0}
        with pytest.raises(dm.errors.FileFormatError, match="must name a table"):
            read_caps(["hours=3"], dm.workloads.union(people, {"hours by sex": ["sex"], "age": ["age"]}))

    def test_refusals(self) -> None:
        for options, told in (
            (("--cap", "cell 0=1"), "--cap needs --rho"),
            (("--rho", "1", "--cap", "cell 0"), "NAME=NUMBER"),
            (("--rho", "1", "--cap", "cell 0=x"), "NAME=NUMBER"),
            (("--rho", "1", "--cap", "=1"), "NAME=NUMBER"),
            (("--rho", "1", "--cap", "cell 9=1"), "--cap must name a query such as 'cell 0'"),
            (("--rho", "1", "--cap", "cell 0=1", "--cap", "cell 0=2"), "once"),
            (("--rho", "1", "--cap", "cell 0=0"), "positive"),
            (("--rho", "1", "--cap", "prefixes=1"), "both have names"),
            (("--rho", "1", "--cap", "cell 0=1e-9"), "are a little more than cell 0 1.163 (level 0.9)"),
            (("--rho", "1", "--cap", "cell 0=1", "--refine"), "--refine cannot be used with hard limits"),
            (("--rho", "1", "--cap", "cell 0=1", "--time-limit", "9"), "--time-limit cannot be used with"),
            (("--problem", "variance", "--rho", "1", "--cap", "cell 0=1"), "belongs to --problem fitness"),
        ):
            found = run("prefix:4", *options)
            assert found.exit_code != 0 and told in str(found.exception), (options, found.output)

    def test_a_gap_that_is_not_reached_is_said(self) -> None:
        found = run("prefix:2", "--rho", 2, "--cap", "cell 0=1", "--tol", "3e-14")
        assert found.exit_code == 3 and found.output.startswith("NOT CERTIFIED")


def test_fractions_of_rho_are_never_rounded_up() -> None:
    found = run("prefix:2", "--rho", "1/3")
    assert found.exit_code == 0 and is_close_above(number_after("Privacy: rho = ", found.output), "1/3")
    assert run("prefix:2", "--rho", "1/0").exit_code == 2
    assert Request("prefix:2", rho=0.5).cost == 1.0
