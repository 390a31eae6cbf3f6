"""A plan says what was asked, and all that read it say the same; an option that nothing would read is refused."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run_wide as run

import dualmech as dm
from dualmech import accounting
from dualmech.command import options
from dualmech.command.options import UsageError
from dualmech.command.request import Request
from dualmech.problems.limits import HardLimits

ASKED = """title = "Ages | sexes"
date = 2026-11-24
level = 0.9
{top}
[attributes.age]
from = 17
to = 24
[attributes.sex]
labels = ["f", "m"]
[attributes.hours]
column = "hours-per-week"
bins = [0, 20, 40]
missing = "?"
[[tables]]
name = "ages"
ask = {{ age = "prefixes" }}
margin = 12
{ages}
[[tables]]
name = "sexes"
ask = {{ sex = "values", hours = ["0..20", "20..40"] }}
variance = 400
"""
RECORDS = "age,sex,hours-per-week\n" + "17,f,3\n24,m,?\n20,f,40\n" * 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "records.csv").write_text(RECORDS)
    return tmp_path


KEPT: dict[tuple[str, ...], tuple[bytes, str]] = {}
"""Plans that several tests read, each solved once, with what was printed."""


def plan(folder: Path, top: str, ages: str = "", *options: str) -> Path:
    (folder / "asked.toml").write_text(ASKED.format(top=top, ages=ages))
    key, path = (top, ages, *options), folder / "plan.npz"
    if key not in KEPT:
        found = run("solve", folder / "asked.toml", *options, "-o", path)
        assert found.exit_code == 0, found.output
        KEPT[key] = path.read_bytes(), found.output
    path.write_bytes(KEPT[key][0])
    (folder / "solved.txt").write_text(KEPT[key][1])
    return path


def figures(text: str) -> dict[str, str]:
    """Return ρ, each ε, and each table's margin, from lines of a report or of a statement."""
    flat = text.replace("ε", "epsilon").replace("δ", "delta").replace("|", " ")
    found = {f"at {delta}": epsilon for epsilon, delta in re.findall(r"epsilon = (\S+) at delta = (\S+)", flat)}
    found["rho"] = re.findall(r"(?:rho = |privacy: )(\d+/\d+), which is at most (\d\S+)", flat)[0]
    found["level"] = re.findall(r"at the level (\d\.\d+)", flat)[0]
    for name in ("ages", "sexes"):
        found[name] = re.findall(rf"^ *{name}:? +(?:\d+ +(?=\d))?([\d.]+)", flat, re.MULTILINE)[0]
    return found


CASES: list[tuple[str, str, tuple[str, ...]]] = [
    ("", "", ()),
    ('rho = "1/10"', "", ()),
    ('rho = "1/10"', "hard = true", ()),
    ('neighbours = "replace"', "", ("--epsilon", "1", "--delta", "1e-6")),
    ("", "", ("--rho", "1/20", "--cap", "ages=33", "--z", "2")),
    ("", "hard = true", ("--rho", "1/3", "--targets", "9")),
]


@pytest.mark.parametrize(("top", "ages", "options"), CASES)
def test_all_that_read_a_plan_print_the_same_figures(
    top: str, ages: str, options: tuple[str, ...], folder: Path
) -> None:
    pytest.importorskip("opendp")
    path, out = plan(folder, top, ages, *options), folder / "out"
    said = {
        "solve": (folder / "solved.txt").read_text(),
        "judge": run("judge", path).output,
        "explain": run("explain", path).output.partition("The plan.")[2],
        "dry": run("release", folder / "records.csv", path, "--dry-run").output,
        "release": run("release", folder / "records.csv", path, "-o", out).output,
        "statement": (out / "STATEMENT.md").read_text(),
    }
    found = {name: figures(text) for name, text in said.items()}
    assert all(each == found["solve"] for each in found.values()), found
    assert all("Canonne, Kamath and Steinke" in text for text in said.values())
    if "--epsilon" in options:
        assert float(found["solve"]["at 1e-06"]) <= 1


def test_a_hard_limit_plan_stays_one(folder: Path) -> None:
    path = plan(folder, 'rho = "1/10"', "hard = true", "--prove", str(folder / "proof.json"))
    asked, answer = dm.Specification.read(folder / "asked.toml"), dm.load(path)
    limits = answer.metadata["limits"]
    certificate = limits.certificate(answer.problem, answer.certificate)
    assert certificate.certifies(1e-6)
    assert (certificate.lower_bound, certificate.objective) == pytest.approx((limits.low, limits.high))
    for command in ("judge", "explain"):
        text = run(command, path).output
        assert "Hard limits are met: ages. The other variances are as small as possible at rho = 0.1" in text
    assert "CERTIFIED: factor on the targets that are not hard" in run("judge", path).output
    above, below = (dm.verify(folder / name) for name in ("proof.json", "proof.below.json"))
    assert above.is_of(answer.problem) and above.upper <= 2 * accounting.squared_cost_from_rho("1/10")
    assert (
        asked.cost is not None
        and below.is_of(answer.metadata["limits"].below(answer.problem))
        and float(below.lower) >= asked.cost * (1 - 1e-9)
    )
    limits = answer.metadata["limits"]
    for name, words in (("proof", f"at most {limits.high:.9g}."), ("proof.below", f"at least {limits.low:.9g}.")):
        said = run("verify", folder / f"{name}.json", folder / "asked.toml")
        assert said.exit_code == 0 and f"targets that are not hard is {words}" in said.output
    other = folder / "other.toml"
    other.write_text((folder / "asked.toml").read_text().replace("margin = 12", "margin = 13"))
    assert run("verify", folder / "proof.json", other).exit_code == 3


def test_a_file_that_claims_another_factor_is_found_out(folder: Path) -> None:
    answer = dm.load(plan(folder, 'rho = "1/10"', "hard = true"))
    limits: HardLimits = answer.metadata["limits"]
    for low, cost in ((limits.low * 1.01, limits.cost), (limits.low, limits.cost * 0.9), (limits.low, limits.cost * 2)):
        claimed = HardLimits(limits.names, limits.held, cost, low, limits.high * 1.1, limits.dual)
        assert not claimed.certificate(answer.problem, answer.certificate).certifies(1e-2)
    with pytest.raises(dm.errors.InvalidInputError, match="an entry per target"):
        HardLimits(("ages",), [1], 1.0, 1.0, 1.0, limits.dual).below(answer.problem)


def test_a_plan_keeps_the_specification_whole(folder: Path) -> None:
    changed = ("--rho", "1/20", "--cap", "ages=33", "--neighbours", "add-remove:2", "--delta", "1e-7")
    asked = dm.Specification.of_json(dm.load(plan(folder, "", "", *changed)).metadata["specification"])
    assert (str(asked.rho), str(asked.neighbours), asked.level) == ("1/20", "add-remove:2", 0.9)
    assert (asked.title, asked.date, set(asked.caps)) == ("Ages | sexes", "2026-11-24", {"ages"})
    assert dm.Specification.of_json(asked.to_json()).workload == dm.Specification.read(folder / "asked.toml").workload
    kept = dm.Specification.read(folder / "asked.toml")
    planned = kept.planned(dm.fast.solve(kept.problem()))
    assert dm.plan_release(planned).specification.to_json() == kept.to_json()  # type: ignore[union-attr]
    with pytest.raises(dm.errors.InvalidInputError, match="tables of this specification"):
        kept.planned(dm.fast.solve(dm.FitnessForUse(dm.workloads.prefix(3))))


def test_a_specification_in_python_keeps_its_ranges() -> None:
    given: dict[str, Any] = {
        "attributes": {"age": range(17, 25)},
        "tables": [{"name": "a", "ask": ["age"], "variance": 1}],
    }
    asked = dm.Specification.of(given)
    assert dm.Specification.of_json(asked.to_json()).schema == asked.schema


def test_the_statement_defines_its_tables(folder: Path) -> None:
    pytest.importorskip("opendp")
    path = plan(folder, 'rho = "1/10"', "hard = true")
    assert run("release", folder / "records.csv", path, "-o", folder / "out").exit_code == 0
    text = (folder / "out" / "STATEMENT.md").read_text()
    for words in (
        "# Ages | sexes\n\nStatement of a differentially private release, 2026-11-24.",
        "- age (8 values): 17, 18, 19, 20, 21, 22, 23, 24\n",
        "- hours (3 values): \\[0, 20), \\[20, 40], missing; column hours-per-week; missing if records hold '?'",
        "| 12, hard | age, cumulative |",
        "as a ratio | sex x hours: 0..20, 20..40 |",
        "Hard limits are met: ages. The other variances are as small as possible at rho = 0.1:",
    ):
        assert words in text, text


def test_what_is_spent_is_what_a_release_draws(folder: Path) -> None:
    """Total variance is solved at a cost of 1, and drawn at the ρ that was asked."""
    (folder / "asked.toml").write_text(ASKED.format(top='rho = "1/8"', ages=""))
    path = folder / "plan.npz"
    assert run("solve", folder / "asked.toml", "--problem", "variance", "-o", path).exit_code == 0
    planned = dm.plan_release(dm.load(path))
    assert 0.999 / 8 < planned.rho <= 1 / 8
    assert "at rho = 0.125" in run("judge", path).output
    refused = run("judge", path, "--rho", "1")
    assert isinstance(refused.exception, UsageError)


def test_a_plan_costs_no_more_than_was_asked(folder: Path) -> None:
    answer = dm.load(plan(folder, 'rho = "1/10"'))
    dear = dm.solution.retold(answer, metadata={"rho": "1/100"})
    with pytest.raises(dm.errors.InvalidInputError, match="more than the 0.01 allowed"):
        dm.plan_release(dear)
    assert dm.plan_release(dear, rho=1).rho > 1 / 100


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("solve prefix:4 --backend SCS", "--backend belongs to --layer reference"),
        ("solve prefix:4 --problem weighting --geometry blocks", "--geometry belongs to --problem fitness or"),
        ("solve prefix:4 --problem softmax --t1 9 --geometry dense", "--geometry belongs to --problem"),
        ("solve prefix:4 --weights 2", "--weights belongs to --problem variance"),
        ("judge prefix:4 --covariance c.npy --z 2", "--z is for --moe"),
        ("judge prefix:4 --covariance c.npy --delta 1e-6", "--delta is for --epsilon"),
        ("judge prefix:4 --problem variance --rho 1 --covariance c.npy", "--rho belongs to solve"),
        ("judge prefix:4 --covariance c.npy -o b.npz", "--output belongs to --mechanism"),
        ("judge prefix:4 --mechanism c.npy --targets 3", "--targets is not for --mechanism"),
        ("verify p.json --problem variance", "--problem poses a problem"),
        ("verify p.json --design haar", "--design poses a problem"),
        ("verify p.json prefix:4 --delta 1e-6", "--delta is for --epsilon"),
        ("explain prefix:2 --delta 1e-6", "--delta is for --epsilon"),
        ("explain prefix:2 --formulation schur", "--formulation belongs to --layer reference"),
        ("release r.csv p.npz --dry-run -o out", "--output is not for --dry-run"),
        ("release r.csv p.npz --dry-run --allow-empty", "--allow-empty is not for --dry-run"),
    ],
)
def test_options_that_nothing_reads(line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("c.npy", np.eye(4))
    found = run(*line.split())
    assert isinstance(found.exception, UsageError) and str(found.exception).startswith(told), found.exception


def test_every_option_that_poses_a_problem_is_part_of_the_request() -> None:
    assert ["workload", *options.POSING] == [each.name for each in dataclasses.fields(Request)]
