"""Pictures of one's own problem: what is drawn is what was computed, and what cannot be drawn is refused by name."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run

import dualmech as dm
from dualmech import fast

pytest.importorskip("matplotlib")

SUMS = dm.workloads.prefix(12)


@pytest.fixture(scope="module")
def answer() -> Any:
    return fast.solve(dm.FitnessForUse(SUMS, targets=np.r_[np.ones(6), np.full(6, 4.0)]), tol=1e-6)


class TestWhatIsDrawn:
    def test_covariance_and_correlation(self, answer: Any) -> None:
        (image,) = dm.plots.covariance(answer).get_images()
        np.testing.assert_allclose(image.get_array(), answer.mechanism.covariance(SUMS))
        assert image.norm.vmin == -image.norm.vmax
        (image,) = dm.plots.covariance(answer, correlation=True).get_images()
        np.testing.assert_allclose(np.diagonal(image.get_array()), 1.0)

    def test_exact_answers_have_no_correlation(self) -> None:
        exact = fast.solve(dm.FitnessForUse(SUMS, neighbours="replace"), tol=1e-6)
        (image,) = dm.plots.covariance(exact, correlation=True).get_images()
        assert image.get_array()[-1, -1] == 0 and np.all(np.isfinite(image.get_array()))

    def test_variances_prices_profile(self, answer: Any) -> None:
        drawn = dm.plots.variances(answer)
        points = drawn.collections[0]
        np.testing.assert_allclose(points.get_offsets()[:, 1], answer.variances)
        np.testing.assert_allclose(points.get_array(), answer.prices)
        heights = dm.plots.profile(answer).get_lines()[0].get_ydata()
        np.testing.assert_allclose(heights, np.sort(answer.mechanism.profile)[::-1])

    def test_curves(self, answer: Any) -> None:
        curve, point = dm.plots.tradeoff(answer, delta=1e-6).get_lines()
        assert point.get_ydata()[0] == pytest.approx(answer.mechanism.epsilon(1e-6))
        assert np.all(np.diff(curve.get_ydata()) < 0)

    def test_ellipses_hold_95_percent(self, answer: Any) -> None:
        outline = dm.plots.ellipses({"best": answer}, SUMS, (0, 11)).get_lines()[0].get_xydata()
        precision = np.linalg.inv(answer.mechanism.covariance(SUMS.select([0, 11])))
        np.testing.assert_allclose(np.einsum("ni,ij,nj->n", outline, precision, outline), -2 * np.log(0.05))

    def test_comparison_is_at_one_cost(self, answer: Any) -> None:
        drawn = dm.plots.comparison({"a": answer, "b": answer.mechanism.scaled(7.0)}, SUMS)
        first, last = (line.get_ydata() for line in drawn.get_lines())
        np.testing.assert_allclose(first, last)

    def test_a_flat_profile_reads_as_flat(self, answer: Any) -> None:
        for found in (answer, fast.solve(dm.FitnessForUse(dm.workloads.marginals([3, 2], ways=1)))):
            drawn, largest = dm.plots.profile(found), found.mechanism.profile.max()
            low, high = drawn.get_ylim()
            assert low == 0 and 1.1 * largest < high < 1.3 * largest
            assert drawn.get_ylabel() == "squared privacy cost, twice rho"
            assert all(tick == int(tick) for tick in drawn.get_xticks())
        assert drawn.get_xlabel() == "kinds of neighbours, dearest first" and drawn.get_lines()[0].get_marker() == "o"

    def test_what_no_neighbour_changes_has_no_noise(self) -> None:
        tables = dm.workloads.union({"a": 4, "b": 2}, {"all": [], "cells": ["a", "b"], "one": ["a"]})
        exact = fast.solve(dm.FitnessForUse(tables, neighbours="replace", geometry="blocks"))
        for correlation in (False, True):
            (image,) = dm.plots.covariance(exact, correlation=correlation).get_images()
            assert not image.get_array()[0].any() and image.get_array()[1, 1] > 0
        drawn = dm.plots.variances(exact)
        assert drawn.collections[0].get_offsets()[0, 1] == 0 and len(drawn.get_lines()[0].get_xdata()) == 2

    def test_a_picture_says_what_it_shows(self, answer: Any) -> None:
        noise = {"best": answer}
        drawn = {
            "covariance of the noise on the answers": dm.plots.covariance(answer),
            "correlation of the noise on the answers": dm.plots.covariance(answer, correlation=True),
            "variance of each query, and its target": dm.plots.variances(answer),
            "privacy cost of all neighbours": dm.plots.profile(answer),
            "continuous Gaussian noise": dm.plots.tradeoff(answer),
            "95 % of the noise": dm.plots.ellipses(noise, SUMS),
            "standard deviations at the same privacy": dm.plots.comparison(noise, SUMS),
        }
        for title, axes in drawn.items():
            assert axes.get_title() == title and axes.get_xlabel() and axes.get_ylabel()

    @pytest.mark.parametrize("kind", ["covariance", "variances", "profile", "tradeoff", "comparison"])
    def test_nothing_is_cut_or_lies_on_something_else(self, kind: str, answer: Any) -> None:
        axes = dm.plots.comparison({"best": answer}, SUMS) if kind == "comparison" else getattr(dm.plots, kind)(answer)
        figure = axes.figure
        figure.draw_without_rendering()
        inside, renderer = figure.bbox, figure._get_renderer()
        for each in figure.axes:
            box = each.get_tightbbox(renderer)
            assert inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
        for axis in (axes.xaxis, axes.yaxis):
            boxes = [label.get_window_extent(renderer) for label in axis.get_ticklabels() if label.get_text()]
            assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))
        for legend in figure.legends:
            assert legend.get_window_extent(renderer).y1 <= axes.get_tightbbox(renderer).y0 + 1

    def test_a_plan_is_drawn_as_it_says(self, tmp_path: Path) -> None:
        table = {"name": "ages", "ask": {"age": "values"}, "margin": 9}
        asked = dm.Specification.of({"attributes": {"age": {"from": 1, "to": 9}}, "tables": [table]})
        plan = asked.planned(fast.solve(asked.problem()))
        dm.save(plan, tmp_path / "plan.npz")
        released = dm.plan_release(plan)
        for given in (plan, released, dm.load(tmp_path / "plan.npz")):
            drawn = dm.plots.tradeoff(given)
            assert drawn.get_lines()[1].get_ydata()[0] == released.epsilon(1e-9)
            assert drawn.get_title() == "discrete noise of a release: epsilon implied by rho"
            (text,) = drawn.figure.legends[0].get_texts()
            assert text.get_text() == f"this noise: epsilon = {released.epsilon(1e-9):.6g}"
        assert f"epsilon = {released.epsilon(1e-9):.6g} at delta = 1e-09" in "".join(released.lines())
        mechanism = dm.plots.tradeoff(plan.mechanism)
        assert mechanism.get_lines()[1].get_ydata()[0] == plan.mechanism.epsilon(1e-9) < released.epsilon(1e-9)
        assert mechanism.get_title() == "continuous Gaussian noise"
        (row,) = dm.crosscheck.curve(plan, rhos=[float(released.rho)])
        assert row["epsilon"] == pytest.approx(released.epsilon(1e-9))
        assert dm.plots.covariance(released) and dm.plots.profile(released) and dm.plots.variances(released)

    def test_a_plan_is_drawn_in_margins(self) -> None:
        """The margin of 9 is at the level 0.9 here."""
        ages = {"name": "ages", "ask": {"age": "values"}, "margin": 9}
        asked = dm.Specification.of({"attributes": {"age": {"from": 1, "to": 9}}, "tables": [ages], "level": 0.9})
        plan = asked.planned(fast.solve(asked.problem()))
        drawn = dm.plots.variances(plan)
        assert drawn.get_ylabel() == "margin of error, level 0.9"
        np.testing.assert_allclose(drawn.get_lines()[0].get_ydata(), 9, rtol=1e-4)
        (row,) = dm.crosscheck.curve(plan, rhos=[float(dm.plan_release(plan).rho)])
        assert row["margin of ages"] == pytest.approx(9, rel=1e-4)

    def test_given_axes_are_used(self, answer: Any) -> None:
        axes = dm.plots.profile(answer)
        assert dm.plots.profile(answer, axes=axes) is axes


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda a: dm.plots.variances(fast.solve(dm.TotalVariance(SUMS))), "a problem with targets"),
        (lambda a: dm.plots.covariance(a.mechanism), "workload must be given"),
        (lambda a: dm.plots.covariance(a, dm.workloads.all_range(64)), "at most 512 queries"),
        (lambda a: dm.plots.ellipses({}, SUMS), "mechanisms"),
        (lambda a: dm.plots.ellipses({"a": a}, SUMS, (1,)), "queries must be two"),
        (lambda a: dm.plots.comparison({str(k): a for k in range(6)}, SUMS), "mechanisms must be 1 to 5"),
        (lambda a: dm.plots.tradeoff(a, delta=1.0), "delta"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(draw: Any, words: str, answer: Any) -> None:
    with pytest.raises(dm.errors.InvalidInputError, match=words):
        draw(answer)


def test_what_is_no_answer_is_refused(answer: Any) -> None:
    with pytest.raises(dm.errors.InputTypeError, match="answer must be a Solution or a mechanism"):
        dm.plots.profile(np.eye(3))
    with pytest.raises(dm.errors.InputTypeError, match="axes must be axes of matplotlib"):
        dm.plots.profile(answer, axes=3)


def test_the_command_draws_what_a_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, folder = str(tmp_path / "answer.npz"), tmp_path / "pictures"
    dm.save(fast.solve(dm.FitnessForUse(dm.workloads.marginals([3, 2], ways=(1, 2)))), path)
    result = run("plot", path, "-o", folder)
    assert result.exit_code == 0 and result.output.count("drawn: ") == 10
    assert len({each.stem for each in folder.iterdir()}) == 5
    dm.save(fast.solve(dm.TotalVariance(SUMS)), path)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)
    result = run("plot", path, "-o", folder)
    assert result.exit_code == 0 and "not drawn: variances" in result.output
    for given in (["--only", "variances"], ["--only", "cube"]):
        assert isinstance(run("plot", path, "-o", folder, *given).exception, dm.errors.InvalidInputError)
