"""The paper's figures: closed forms against certified optima, and the pictures drawn of them."""

import functools
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech.command.request import UsageError
from dualmech.crosscheck import printing
from dualmech.crosscheck.agreement import Agreement
from dualmech.studies.papers.fitness import figures
from dualmech.studies.papers.fitness.figures import (
    FIGURE_2,
    FIGURE_3,
    ExchangeableNoise,
    fitness_noise,
    variance_noise,
)
from dualmech.studies.papers.sheets import SHEETS

quick = settings(max_examples=24)

drawn = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="pictures need the extra `plots`")


class TestClosedForms:
    @quick
    @given(st.integers(2, 40), st.floats(-0.9, 0.9), st.floats(0.1, 10))
    def test_the_three_numbers_of_exchangeable_noise(self, cells: int, share: float, own: float) -> None:
        shared = own * (share if share > 0 else share / cells)
        noise = ExchangeableNoise(cells, own, shared)
        covariance = own * np.eye(cells) + shared
        mechanism = dm.LinearGaussianMechanism(np.eye(cells), covariance)
        variances = mechanism.variances(dm.workloads.identity_total(cells))
        assert noise.cell_variance == pytest.approx(variances[0])
        assert noise.total_variance == pytest.approx(variances[-1])
        assert noise.squared_cost == pytest.approx(mechanism.squared_privacy_cost)

    @quick
    @given(st.integers(2, 2000), st.floats(0.01, 5000))
    def test_the_best_fit_meets_its_targets(self, cells: int, target: float) -> None:
        noise = fitness_noise(cells, target)
        assert noise.cell_variance == pytest.approx(1)
        assert noise.total_variance <= target * (1 + 1e-9)
        assert noise.largest_ratio(target) == pytest.approx(1)

    @quick
    @given(st.integers(2, 2000), st.floats(0.01, 100))
    def test_least_total_variance_spends_a_cost_of_one_and_no_other_ratio_is_less(
        self, cells: int, weight: float
    ) -> None:
        noise = variance_noise(cells, weight)
        assert noise.squared_cost == pytest.approx(1)
        total = cells * noise.cell_variance + weight * noise.total_variance
        for factor in (0.99, 1.01):
            other = ExchangeableNoise(
                cells, noise.own, (noise.own / cells) * (factor * (1 + cells * noise.shared / noise.own) - 1)
            )
            moved = cells * other.cell_variance + weight * other.total_variance
            assert moved * other.squared_cost >= total * (1 - 1e-12)

    def test_theorem_7(self) -> None:
        for cells in (2, 3, 10, 256):
            assert fitness_noise(cells, 1.0).squared_cost == pytest.approx(2 * cells / (cells + 1))

    def test_theorem_8_the_ratio_grows_like_the_root_of_the_cells(self) -> None:
        ratios = [figures.point(4**power, 1).curves["CA"] for power in (4, 6, 8)]
        assert ratios[2] / ratios[1] == pytest.approx(4, rel=0.05)
        assert ratios[1] / ratios[0] == pytest.approx(4, rel=0.15)

    def test_bad_input_is_refused_by_name(self) -> None:
        for cells, target in ((1, 1.0), (4, 0.0), (4, -1.0), (4, math.nan)):
            for function in (fitness_noise, variance_noise):
                with pytest.raises(dm.errors.InvalidInputError, match="cells|total_"):
                    function(cells, target)


PICTURED = [name for name, sheet in SHEETS.items() if sheet.picture]


@functools.cache
def rows_of(name: str) -> list[Any]:
    return [task() for task in SHEETS[name].tasks(True)]


def _outlines(rows: list[Any]) -> list[list[float]]:
    """Return how far each ellipse reaches above its centre: the standard deviation of the second query."""
    every = [each for row in rows for each in (row.covariance, row.other, row.volume)]
    return [[float(np.sqrt(each[1, 1])) for each in every]]


SHOWN: dict[str, Callable[[list[Any]], list[list[float]]]] = {
    "fitness/figure1": lambda rows: [list(row.deltas) for row in rows],
    "fitness/figure2": lambda rows: [[row.curves[name] for row in rows] for name in rows[0].curves],
    "fitness/figure3": lambda rows: [[row.curves[name] for row in rows] for name in rows[0].curves],
    "common/ellipses": _outlines,
    "common/thresholds": lambda rows: [
        *([row.chain[margin] for row in rows] for margin in (0.0, 3.0)),
        *([getattr(row, name) for row in rows] for name in ("tuned", "best")),
    ],
    "scale/growth": lambda rows: [[row.best.objective for row in rows], [row.subspaces for row in rows]],
}
"""The numbers of a table's rows that its picture must show."""


class TestFigures:
    def test_closed_forms_lie_in_certified_intervals(self) -> None:
        for cells, target in ((2, 1), (5, 4), (8, 4), (64, 4), (64, 63), (64, 64), (64, 200)):
            here = figures.point(cells, target, solved=True)
            assert here.outcome is Agreement.AGREE and here.gap <= 1e-6, (cells, target)

    def test_a_wrong_closed_form_is_found_out(self) -> None:
        here = figures.point(8, 4, solved=True)
        for changes in ({"squared_cost": here.squared_cost * 1.001}, {"curves": here.curves | {"wCA-I": 1.5}}):
            assert figures.held_point({**here.values, **changes}).outcome is Agreement.DISAGREE

    def test_solved_points_are_among_those_shown(self) -> None:
        for figure in (FIGURE_2, FIGURE_3):
            assert set(figure.quick) <= set(figure.solved) <= set(figure.points)
            assert [task.keywords for task in figure.tasks(True)] == [{}] * len(figure.points)  # type: ignore[attr-defined]

    def test_weighting_by_the_targets_makes_things_worse(self) -> None:
        """What section 7.2 calls surprising; it ends where the total's target nears the number of cells."""
        for cells in (8, 64, 1024):
            curves = figures.point(cells, 4).curves
            assert curves["wCA-I"] > curves["wCA-II"] > curves["CA"] > 1
        assert figures.point(256, 256).curves["wCA-I"] < figures.point(256, 256).curves["CA"]

    def test_curves_of_figure_1_are_found_again(self) -> None:
        for cost in figures.COSTS:
            assert figures.curve(cost).outcome is Agreement.AGREE
        shifted = figures.held_curve(0.21, figures.curve(0.2).deltas)
        assert shifted.outcome is Agreement.DISAGREE


class TestPictures:
    @drawn
    @pytest.mark.parametrize("name", PICTURED)
    def test_show_the_rows_of_their_table_on_one_scale_a_panel(self, name: str) -> None:
        from matplotlib.figure import Figure as Canvas

        sheet, rows, canvas = SHEETS[name], rows_of(name), Canvas()
        assert sheet.picture is not None
        sheet.picture(canvas.subplots(ncols=sheet.panels), rows)
        assert len(canvas.axes) == sheet.panels
        assert all(axes.get_xlabel() and axes.get_ylabel() for axes in canvas.axes)
        curves = [np.asarray(line.get_ydata()) for axes in canvas.axes for line in axes.get_lines()]
        count = len(curves)
        if name == "common/ellipses":
            curves = [np.array([curve.max() for curve in curves])]
        for expected in SHOWN[name](rows):
            assert any(len(curve) == len(expected) and np.allclose(curve, expected, rtol=1e-3) for curve in curves)
        other = Canvas()
        sheet.picture(other.subplots(ncols=sheet.panels), rows[:1])
        left = [line for axes in other.axes for line in axes.get_lines()]
        assert len(left) < count or len(np.asarray(left[0].get_ydata())) < len(curves[0]), "rows alone are drawn"

    @drawn
    @pytest.mark.parametrize(
        "name", [PICTURED[0], *(pytest.param(name, marks=pytest.mark.slow) for name in PICTURED[1:])]
    )
    def test_are_written_whole_and_alike_every_time(self, name: str, tmp_path: Path) -> None:
        sheet, written = SHEETS[name], []
        assert sheet.picture is not None
        for folder in (tmp_path / "made" / "here", tmp_path / "again"):
            paths = printing.save_picture("picture", str(folder), sheet.picture, rows_of(name), sheet.panels)
            assert [path.name for path in paths] == ["picture.svg", "picture.png"]
            assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in paths)
            written.append([path.read_bytes() for path in paths])
        vector, raster = written[0]
        assert b"<svg" in vector and raster.startswith(b"\x89PNG")
        assert written[0] == written[1]

    @drawn
    def test_the_command_draws_where_it_is_told(self, tmp_path: Path) -> None:
        result = run("crosscheck", "fitness/figure2", "--quick", "-o", tmp_path)
        assert result.exit_code == 0
        assert "fitness-figure2.svg" in result.output
        assert sorted(path.name for path in tmp_path.iterdir()) == ["fitness-figure2.png", "fitness-figure2.svg"]

    def test_without_matplotlib_the_extra_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(dm.errors.BackendError, match=r"dualmech\[plots\]"):
            printing.check_drawable(str(tmp_path))

    @drawn
    def test_a_folder_that_cannot_be_and_a_table_without_picture_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(dm.errors.FileFormatError, match="file"):
            printing.check_drawable(str(tmp_path / "file"))
        result = run("crosscheck", "fitness/table4", "-o", tmp_path)
        assert isinstance(result.exception, UsageError)
        assert "--output" in str(result.exception)
