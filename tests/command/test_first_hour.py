"""What an office meets in its first hour: nothing is silently something else, and a message says what can be done."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run_wide as run

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck import leaderboard, library
from dualmech.problems.protection import reachable
from dualmech.publishing.published import published_tables

PEOPLE = {"age": {"from": 17, "to": 21}, "sex": ["f", "m"], "hours": {"bins": [0, 20, 40, 60], "missing": "?"}}


class TestSilentlySomethingElse:
    def test_records_are_no_queries(self, tmp_path: Path) -> None:
        (tmp_path / "adult.csv").write_text("age,sex\n" + "23,0\n34,1\n23,0\n" * 3)
        refused = run("solve", tmp_path / "adult.csv")
        assert "looks like records, 9 of age, sex: " in str(refused.exception)
        (tmp_path / "queries.csv").write_text("query,age,sex\n" + "".join(f"q{j},{j},1\n" for j in range(4)))
        (tmp_path / "cells.csv").write_text("a,b\n1,0\n1,1\n0,1\n")
        for name in ("queries.csv", "cells.csv"):
            assert run("solve", tmp_path / name).exit_code == 0

    def test_an_attribute_is_asked_once(self) -> None:
        given = {"attributes": PEOPLE, "tables": [{"ask": ["age", "sex", "age"], "variance": 1}]}
        with pytest.raises(dm.errors.InvalidInputError, match="ask each attribute once"):
            dm.Specification.of(given)

    def test_two_numbers_are_no_range_and_no_labels(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match=r"must be range\(17, 91\) for the whole numbers"):
            dm.Schema({"age": (17, 90)})
        assert dm.Schema({"age": [17, 90]}).shape == (2,)

    def test_a_plot_that_cannot_be_written_is_a_fault(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("matplotlib")
        dm.save(fast.solve(dm.FitnessForUse(dm.workloads.prefix(3))), tmp_path / "plan.npz")

        def full(*_: object, **__: object) -> Any:
            raise dm.errors.FileFormatError("no space left on device")

        monkeypatch.setattr("dualmech.crosscheck.printing.save_picture", full)
        assert isinstance(run("plot", tmp_path / "plan.npz", "-o", tmp_path).exception, dm.errors.FileFormatError)

    @pytest.mark.parametrize("asked", ["values", "prefixes", "ranges", "total", ["0..20", ["20..60", "missing"]]])
    def test_words_ask_the_same_in_python_and_in_a_file(self, asked: Any) -> None:
        schema = dm.Schema(PEOPLE)
        in_file = dm.Specification.of(
            {"attributes": PEOPLE, "tables": [{"name": "t", "ask": {"hours": asked}, "variance": 1}]}
        )
        assert dm.workloads.union(schema, {"t": {"hours": asked}}) == in_file.workload


class TestMessagesAndTables:
    @pytest.mark.parametrize("name", ["sqrt", "file"])
    def test_a_strategy_is_scaled_first(self, name: str, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.eye(16))
        strategy = tmp_path / "a.npy" if name == "file" else name
        found = run("judge", "prefix:16", "--strategy", strategy)
        assert found.exit_code == 0 and found.output.startswith("FEASIBLE: ")
        assert "scaled to meet the targets exactly" in found.output and "certified distance" in found.output
        assert run("judge", "prefix:16", "--strategy", strategy, "--tol", "1e-6").exit_code == 3

    def test_what_no_scale_mends_is_not_to_be_scaled(self, tmp_path: Path) -> None:
        np.save(tmp_path / "c.npy", np.diag([1.0, -1.0]))
        refused = run("judge", "prefix:2", "--covariance", tmp_path / "c.npy")
        assert refused.exit_code != 0 and "inf %" not in f"{refused.output}{refused.exception}"

    def test_a_limit_is_named_by_its_table(self) -> None:
        tables: dict[str, Any] = {"ages": ["age"], "hours cumulative": {"hours": "prefixes"}}
        asked = dm.workloads.union(dm.Schema(PEOPLE), tables)
        from dualmech.command.inputs import read_caps

        with pytest.raises(dm.errors.FileFormatError, match="did you mean hours cumulative"):
            read_caps(["hours=10"], asked)

    def test_a_plan_is_not_asked(self, tmp_path: Path) -> None:
        dm.save(fast.solve(dm.FitnessForUse(dm.workloads.prefix(3))), tmp_path / "plan.npz")
        assert "is a plan" in str(run("solve", tmp_path / "plan.npz").exception)

    def test_prefixes_have_labels_of_one_form(self) -> None:
        tables: dict[str, Any] = {
            "ages": {"age": "prefixes"},
            "hours": {"hours": "prefixes"},
            "far": {"age": dm.workloads.prefix(5)},
        }
        asked = dm.workloads.union(dm.Schema(PEOPLE), tables)
        sides = {table.name: [*table.sides.values()][0] for table in published_tables(asked)}
        assert sides["ages"] == sides["far"] == [f"age ≤ {age}" for age in range(17, 22)]
        assert sides["hours"] == ["hours < 20", "hours < 40", "hours ≤ 60"]

    def test_tables_have_the_digits_that_noise_leaves_in_the_order_asked_for(self, tmp_path: Path) -> None:
        pytest.importorskip("opendp")
        asked = dm.Specification.of(
            {"attributes": PEOPLE, "tables": [{"name": "t", "ask": ["sex", "age"], "margin": 20}]}
        )
        (tmp_path / "r.csv").write_text("age,sex,hours\n17,f,3\n20,m,?\n")
        dm.save(asked.planned(fast.solve(asked.problem())), tmp_path / "plan.npz")
        assert run("release", tmp_path / "r.csv", tmp_path / "plan.npz", "-o", tmp_path / "out").exit_code == 0
        heading, *rows = (tmp_path / "out" / "1_t.csv").read_text().split()
        assert heading == "sex,age,estimate,margin,low,high"
        assert [row.split(",")[:2] for row in rows][4:7] == [["f", "21"], ["m", "17"], ["m", "18"]]
        assert all(len(cell.partition(".")[2]) <= 2 for row in rows for cell in row.split(",")[2:])

    def test_plots_name_tables(self) -> None:
        pytest.importorskip("matplotlib")
        asked = dm.workloads.marginals({"a": 30, "b": 20}, ways=(1, 2))
        drawn = dm.plots.variances(fast.solve(dm.FitnessForUse(asked)))
        assert [each.get_text() for each in drawn.get_xticklabels()] == ["a", "b", "a x b"]
        assert drawn.get_xlabel() == "table"

    def test_one_bad_file_does_not_stop_a_leaderboard(self, tmp_path: Path) -> None:
        [*library.build(tmp_path / "problems", ["fitness-prefix-2"])]
        (tmp_path / "mine").mkdir()
        np.savez(tmp_path / "mine" / "fitness-prefix-2.npz", covariance=np.eye(2), seconds=[1.0, 2.0])
        (found,) = leaderboard.entries(tmp_path / "problems", [tmp_path / "mine"])
        assert found.fault

    def test_a_chain_is_one_line(self) -> None:
        parts = [dm.LinearGaussianMechanism(rows, np.eye(len(rows))) for rows in ([[1, 1]], np.eye(2))]
        assert repr(fast.chain(parts)) == "Chain(2 mechanisms, 1 stage, rho=0.5)"


class TestFilesAsOfficesHaveThem:
    ASKED = """
    attributes.day = { from = 2024-01-01, to = 2024-01-31, format = "%d.%m.%Y", timezone = "America/Chicago" }
    attributes.hours = { from = 0, to = 20, step = 0.1 }
    [[tables]]
    ask = { day = "values" }
    margin = 40
    [[tables]]
    ask = { hours = ["sum", "total"] }
    margin = 100
    derive = ["mean"]
    """

    def test_dates_and_real_numbers_from_file_to_tables(self, tmp_path: Path) -> None:
        (tmp_path / "asked.toml").write_text(self.ASKED)
        assert run("solve", tmp_path / "asked.toml", "-o", tmp_path / "plan.npz").exit_code == 0
        (tmp_path / "visits.csv").write_text("day,hours\n" + "05.01.2024,3.34\n2024-01-06T02:30:00Z,7\n" * 1000)
        done = run("release", tmp_path / "visits.csv", tmp_path / "plan.npz", "-o", tmp_path / "out")
        assert done.exit_code == 0
        released = dm.load_publication(tmp_path / "out" / "release.npz")
        assert abs(released.estimates("day")[4] - 2000) < 200
        assert abs(released.estimates("hours").ravel()[0] - 1000 * (3.3 + 7)) < 500
        mean = (tmp_path / "out" / "2_hours_mean.csv").read_text().splitlines()[1].split(",")
        assert float(mean[0]) == pytest.approx(5.15, abs=0.3)

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            (b"PK\x03\x04\x14", "an Excel workbook, or another zip archive: save the sheet as CSV UTF-8"),
            (b"day|hours\n05.01.2024|3\n", "fields are separated by pipes: write commas between them"),
            (b"day,hours,n_persons\n05.01.2024,3,2\n", "for a command --count or --ignore"),
            ("day,hours\n05.01.2024,3\nm\u00e4rz,3\n".encode("cp1252"), "line 3: is not UTF-8 text: byte 2 of"),
            (b"day,hours\n1/25/2024,3\n", 'the option format = "%m/%d/%Y" reads it as 2024-01-25'),
            (b'day,hours\n05.01.2024,"3,5"\n', "write 3.5, as pandas.read_csv(\u2026, decimal=',') reads it"),
            (b"day,hours\n05.01.2024,3\n,\n", "lines that spreadsheets leave below records: delete them"),
        ],
    )  # fmt: skip
    def test_a_release_says_what_to_change(self, content: bytes, told: str, tmp_path: Path) -> None:
        (tmp_path / "asked.toml").write_text(self.ASKED)
        run("solve", tmp_path / "asked.toml", "-o", tmp_path / "plan.npz")
        (tmp_path / "visits.csv").write_bytes(content)
        done = run("release", tmp_path / "visits.csv", tmp_path / "plan.npz", "-o", tmp_path / "out")
        assert done.exit_code == 1 and told in str(done.exception) and "\n" not in str(done.exception)
        assert not (tmp_path / "out").exists()


class TestNeighboursAsTheyAreMeant:
    @pytest.mark.parametrize("asked", ["contributions:month:2:3", "contributions:month:1:3", "contributions:month:1:9"])
    def test_what_is_reached_protects_all_who_were_asked_for(self, asked: str) -> None:
        domain, rule = dm.Domain({"month": 4, "sex": 2}), dm.neighbours.Relation.of(asked)
        big = dm.workloads.marginals({"month": 12, "sex": 2, "age": 90}, ways=(1, 2))
        used = reachable(big, rule)
        assert used != rule
        small = dm.workloads.marginals(domain, ways=(1, 2))
        noise = fast.solve(dm.FitnessForUse(small, neighbours=used, geometry="dense")).mechanism
        meant = dm.LinearGaussianMechanism(noise.query_matrix, noise.covariance(), rule.matrix(8, domain))
        assert meant.squared_privacy_cost <= noise.squared_privacy_cost * (1 + 1e-9)

    def test_the_statement_says_both(self) -> None:
        attributes = {"month": {"size": 12}, "sex": ["f", "m"], "age": {"size": 90}}
        tables = [{"ask": ["month", "sex"], "variance": 9}, {"ask": ["age", "sex"], "variance": 9}]
        given = {"attributes": attributes, "tables": tables, "neighbours": "contributions:month:2:3"}
        asked = dm.Specification.of(given)
        planned = dm.plan_release(asked.planned(fast.solve(asked.problem())), rho=1000)
        assert "contributions:month:2:3 became contributions:month:3:2 on these tables" in planned.lines()[0]
        assert reachable(asked.workload, dm.neighbours.Relation.of("replace")) == dm.neighbours.Relation.of("replace")


class TestLessToLookAt:
    def test_the_help_lists_what_an_office_uses_first(self) -> None:
        office, studies = run("--help").output.split("Commands:")[1].split("For studies:")
        first = [line.split()[0] for line in office.splitlines() if line[:3] != "   " and line.strip()]
        assert first == ["solve", "judge", "waste", "verify", "explain", "release", "combine", "plot"]
        for name in ("crosscheck", "library", "leaderboard", "sweep", "simulate", "info"):
            assert f"\n  {name} " in studies

    @pytest.mark.parametrize("command", ["solve", "judge", "explain"])
    def test_options_stand_by_groups_and_those_for_experts_last(self, command: str) -> None:
        text = run(command, "--help").output
        titles = ["Arguments:", "Problem:", "Privacy:", "Output:", "For other problems:", "For experts:"]
        places = [text.index(f"\n{title}\n") for title in titles]
        assert places == sorted(places) and text.index("--geometry") > places[-1]
        weighting = run(command, "--problem", "weighting", "--help").output
        assert "\nFor weighting:\n" in weighting and "--design" in weighting and "--targets" not in weighting
        assert "Options:" not in text or command == "judge"


class TestWhatIsTooLarge:
    def test_long_prefixes_are_refused_before_any_work(self) -> None:
        given = {
            "attributes": {"day": {"size": 4096}, "sex": {"size": 2}},
            "tables": [{"ask": {"day": "prefixes"}, "margin": 20}],
        }
        with pytest.raises(dm.errors.InvalidInputError, match="of at most 2048 values"):
            dm.Specification.of(given)

    @pytest.mark.parametrize(
        ("made", "most"), [(dm.strategies.sqrt_toeplitz, "2048 rows"), (lambda steps: stream(steps), "100000 steps")]
    )
    def test_what_cannot_be_drawn_is_refused_by_size(self, made: Any, most: str) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match=f"at most {most} .* got 100001"):
            dm.plan_release(made(100_001), workload=dm.workloads.prefix(100_001))

    def test_records_need_a_domain(self) -> None:
        with pytest.raises(dm.errors.InputTypeError, match="no domain"):
            dm.release(stream(8), "no such file.csv", workload=dm.workloads.prefix(8))


def stream(steps: int) -> dm.StreamMechanism:
    return dm.StreamMechanism(dm.workloads.prefix(steps), np.ones(steps), np.ones(steps))
