"""ρ as an axis of sweeps: fractions, kept exactly."""

from pathlib import Path

import pytest

import dualmech as dm
from dualmech.command.runs import PosedRun
from dualmech.studies.sweeps.grid import read_grid

GRID = 'families = ["fitness", "variance", "softmax"]\nworkloads = "prefix:4"\nt1 = 9\nrho = ["1/20", 0.25]\n'


def test_every_family_that_spends_takes_it(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    runs = read_grid(tmp_path / "grid.toml", PosedRun)
    assert [(run.family, run.rho) for run in runs] == [
        *(("fitness", "1/20"), ("fitness", "1/4"), ("variance", "1/20"), ("variance", "1/4")),
        ("softmax", None),
    ]
    problem, divisor = runs[0].state(runs[0].read())
    assert problem.cost == dm.accounting.squared_cost_from_rho("1/20") and divisor == 1
    assert runs[3].state(runs[3].read())[1] == 0.5


def test_it_is_part_of_what_is_asked() -> None:
    plain, other = PosedRun("fitness", "prefix:4", "prefix:4"), PosedRun("fitness", "prefix:4", "prefix:4", rho="1/20")
    assert plain.problem != other.problem and PosedRun.of(other.row()) == other


def test_refusals(tmp_path: Path) -> None:
    for lines, told in (
        ("rho = 1\nepsilon = 1", "either rho or epsilon"),
        ("rho = 0", "rho must be positive"),
        ('rho = "1/0"', "rho must be"),
    ):
        (tmp_path / "grid.toml").write_text(f'workloads = "prefix:4"\n{lines}\n')
        with pytest.raises(dm.errors.FileFormatError, match=told):
            read_grid(tmp_path / "grid.toml", PosedRun)
