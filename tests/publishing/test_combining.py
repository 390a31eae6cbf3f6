"""Several releases combined: dense least squares, margins, exact answers, one data set behind all tables, refusals."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import planned, published, rounded_gaussian

import dualmech as dm
from dualmech import fast
from dualmech.publishing.publication import Publication
from dualmech.publishing.release import plan

PEOPLE = dm.Schema({"age": range(5), "sex": ["f", "m"], "hours": range(3)})


def union(**tables: Any) -> dm.Workload:
    return dm.workloads.union(PEOPLE, tables)


BLOCKS = {
    "cells": lambda: union(cells=["age", "sex"]),
    "prefixes": lambda: union(ages={"age": dm.workloads.prefix(5)}),
    "classes": lambda: union(old={"age": dm.Workload([[0, 0, 0, 1, 1]], names=["old"])}, sexes=["sex", "hours"]),
    "mixed": lambda: union(
        upto={"hours": dm.workloads.prefix(3), "sex": None},
        groups={"age": dm.Workload([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]])},
    ),
    "marginals": lambda: dm.workloads.marginals(PEOPLE, ways=(1, 2)),
}
RELATIONS = ("add-remove", "replace", "replace within sex")


@functools.cache
def best(name: str, relation: str) -> Any:
    return fast.solve(dm.FitnessForUse(BLOCKS[name](), 1.0, neighbours=relation, geometry="blocks")).mechanism


def released(name: str, relation: str, x: Any, generator: np.random.Generator) -> Publication:
    mechanism = best(name, relation).scaled(float(generator.uniform(1, 30)))
    return published(mechanism, {(0, 1, 2): x}, rounded_gaussian(generator))


def dense_parts(published: Publication) -> tuple[Any, Any, Any]:
    """Return queries of all tables of a release on the cells, their estimates, and their joint covariance."""
    mechanism = published.drawn.mechanism.dense()
    tables, asked = published.tables, published.workload
    rows = asked.dense()
    answers = np.concatenate([published.estimates(name).ravel() for name in tables])
    order = np.concatenate([published.published[name].rows for name in tables])
    shares = np.asarray(rows[order] @ np.linalg.pinv(mechanism.query_matrix))
    return rows[order], answers, shares @ mechanism.covariance() @ shares.T


def least_squares(parts: Any, queries: Any) -> tuple[Any, Any]:
    """Return estimates and variances of queries by generalised least squares from answers with their covariance.

    Directions with hardly any noise are conditions; the rest is fitted on what they leave.
    """
    rows, answers, noise = [], [], []
    for own, given_answers, covariance in parts:
        values, vectors = np.linalg.eigh(covariance)
        turned = vectors.T @ own
        kept = (values > 1e-7 * values[-1]) | (np.linalg.norm(turned, axis=1) > 1e-6)
        rows.append(turned[kept])
        answers.append(vectors[:, kept].T @ given_answers)
        noise.append(np.maximum(values[kept], 1e-7 * values[-1]))
    whiten = 1 / np.sqrt(np.concatenate(noise))
    stacked = np.vstack(rows) * whiten[:, None]
    inverse = np.linalg.pinv(stacked, rcond=1e-11)
    fit = queries @ inverse
    return fit @ (np.concatenate(answers) * whiten), np.sum(fit**2, axis=1)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from([*BLOCKS]), min_size=2, max_size=3, unique=True),
    st.sampled_from(RELATIONS),
    st.integers(0, 2**32 - 1),
)
def test_blocks_combine_as_dense_least_squares_does(names: list[str], relation: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x = generator.integers(20, 200, PEOPLE.shape)
    every = [released(name, relation, x, generator) for name in names]
    both = dm.combine(*every)
    parts = [dense_parts(each) for each in every]
    queries = both.workload.dense()
    estimates, variances = least_squares(parts, queries)
    scale = np.sqrt(variances.max()) + 1
    for name in both.tables:
        rows = both.published[name].rows
        assert np.abs(both.estimates(name).ravel() - estimates[rows]).max() <= 1e-3 * scale
        noisy = ~both.unmoved(name).ravel()
        assert np.allclose(both.variances(name).ravel()[noisy], variances[rows][noisy], rtol=1e-4)
        for each in every:
            if name in each.tables:
                assert np.all(both.margins(name) <= each.margins(name) * (1 + 1e-9))
                still = each.unmoved(name)
                assert np.array_equal(both.estimates(name)[still], each.estimates(name)[still])
    assert both.drawn.mechanism.rho * (1 - 1e-8) <= both.rho <= sum(each.rho for each in every)
    together = np.concatenate([both.estimates(name).ravel() for name in both.tables])
    order = np.concatenate([both.published[name].rows for name in both.tables])
    fitted = np.linalg.lstsq(queries[order], together, rcond=None)[0]
    assert np.allclose(queries[order] @ fitted, together, atol=1e-6 * scale)  # of one data vector


MATRICES = {
    "prefixes": lambda: dm.workloads.prefix(6),
    "cells": lambda: dm.workloads.identity(6),
    "sums": lambda: dm.Workload([[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]], ["a", "b"], ["sums"] * 2),
    "all": lambda: dm.Workload([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]], ["a", "b"], ["all"] * 2),
}


def on_matrix(name: str, relation: str, x: Any, generator: np.random.Generator) -> Publication:
    asked = MATRICES[name]()
    asked = dm.Workload(asked.dense(), asked.names, [name] * asked.shape[0])
    mechanism = best_on_matrix(name, relation).scaled(float(generator.uniform(1, 30)))
    return published(mechanism, x, rounded_gaussian(generator), asked)


@functools.cache
def best_on_matrix(name: str, relation: str) -> Any:
    return fast.solve(dm.FitnessForUse(MATRICES[name](), 1.0, neighbours=relation, geometry="dense")).mechanism


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from([*MATRICES]), min_size=2, max_size=3, unique=True),
    st.sampled_from(RELATIONS[:2]),
    st.integers(0, 2**32 - 1),
)
def test_matrices_combine_as_dense_least_squares_does(names: list[str], relation: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x = generator.integers(20, 200, 6)
    every = [on_matrix(name, relation, x, generator) for name in names]
    both, queries = dm.combine(*every), np.vstack([MATRICES[name]().dense() for name in names])
    parts = [(each.drawn.mechanism.query_matrix, each.measured, each.drawn.mechanism.covariance()) for each in every]
    estimates, variances = least_squares(parts, queries)
    rows = both.workload.dense()
    assert np.array_equal(rows, queries)
    scale, told = np.sqrt(variances.max()) + 1, np.concatenate([both.estimates(name).ravel() for name in both.tables])
    assert np.abs(told - estimates).max() <= 1e-3 * scale
    noisy = ~np.concatenate([both.unmoved(name).ravel() for name in both.tables])
    spread = np.concatenate([both.variances(name).ravel() for name in both.tables])
    assert np.allclose(spread[noisy], variances[noisy], rtol=1e-4)
    for each in every:
        for name in each.tables:
            assert np.all(both.margins(name) <= each.margins(name) * (1 + 1e-9))
            still = each.unmoved(name)
            assert np.array_equal(both.estimates(name)[still], each.estimates(name)[still])
    costs = sum(each.drawn.costs for each in every)  # of each pair of neighbours
    assert both.rho == max(costs) / 2 <= sum(each.rho for each in every)
    assert float(both.rho) == pytest.approx(both.drawn.mechanism.rho, rel=1e-8)


DRAWS = 100


def test_combined_estimates_are_unbiased_and_margins_cover() -> None:
    noise, x = rounded_gaussian(1), np.full(PEOPLE.shape, 50)
    plans = [plan(best(name, "replace").scaled(factor)) for name, factor in (("prefixes", 20.0), ("cells", 5.0))]
    truth, missed, inside = np.cumsum(np.full(5, 300.0)), [], []
    for _ in range(DRAWS):
        both = dm.combine(
            *(Publication(on_grid, on_grid.draw({(0, 1, 2): x}, noise), asked) for on_grid, asked in plans)
        )
        off, margins = both.estimates("ages") - truth, both.margins("ages", 0.9)
        missed.append(off[:4] / np.sqrt(both.variances("ages"))[:4])
        inside.append(np.abs(off[:4]) <= margins[:4])
    assert np.abs(np.mean(missed, axis=0)).max() < 4 / np.sqrt(DRAWS)
    assert abs(np.mean(inside) - 0.9) < 4 * np.sqrt(0.09 / DRAWS)


class TestFiles:
    """A file keeps a publication to the last bit, a combination too, which combines further."""

    @pytest.mark.parametrize("relation", RELATIONS)
    def test_of_tables(self, relation: str, tmp_path: Path) -> None:
        generator, x = np.random.default_rng(2), np.full(PEOPLE.shape, 20)
        first, second, third = (released(name, relation, x, generator) for name in ("mixed", "marginals", "classes"))
        both = dm.combine(first, second)
        for name, each in (("first", first), ("second", second), ("both", both)):
            dm.save_publication(each, tmp_path / f"{name}.npz")
            self.same(dm.load_publication(tmp_path / f"{name}.npz"), each)
        again = dm.combine(dm.load_publication(tmp_path / "first.npz"), dm.load_publication(tmp_path / "second.npz"))
        self.same(again, both)
        further = dm.combine(dm.load_publication(tmp_path / "both.npz"), third)
        at_once = dm.combine(first, second, third)
        for name in at_once.tables:
            assert np.allclose(further.estimates(name), at_once.estimates(name), rtol=1e-6)
            assert np.allclose(further.margins(name), at_once.margins(name), rtol=1e-6)
        assert further.rho == at_once.rho and further.parts == at_once.parts

    @pytest.mark.parametrize("relation", RELATIONS[:2])
    def test_on_matrices(self, relation: str, tmp_path: Path) -> None:
        generator, x = np.random.default_rng(3), np.arange(6)
        first, second = (on_matrix(name, relation, x, generator) for name in ("cells", "all"))
        for each in (first, second, dm.combine(first, second)):
            dm.save_publication(each, tmp_path / "kept.npz")
            self.same(dm.load_publication(tmp_path / "kept.npz"), each)

    def same(self, found: Publication, kept: Publication) -> None:
        assert found.rho == kept.rho and found.tables == kept.tables and found.relation == kept.relation
        assert [part.digest for part in found.parts] == [part.digest for part in kept.parts]
        for name in kept.tables:
            assert np.array_equal(found.estimates(name), kept.estimates(name))
            assert np.allclose(found.margins(name), kept.margins(name), rtol=1e-9)
            assert np.array_equal(found.unmoved(name), kept.unmoved(name))
        assert found.statement() == kept.statement()

    def test_with_a_plan(self, tmp_path: Path) -> None:
        table = {"name": "up to", "ask": {"hours": "prefixes"}, "margin": 20, "derive": ["median"]}
        attributes = {"sex": ["f", "m"], "hours": {"from": 0, "to": 3}}
        plan_of = planned({"title": "Hours", "attributes": attributes, "tables": [table]})
        data = {(0, 1): np.full((2, 4), 500)}
        first, second = (published(plan_of, data, rounded_gaussian(seed)) for seed in (4, 5))
        dm.save_publication(first, tmp_path / "first.npz")
        found = dm.load_publication(tmp_path / "first.npz")
        assert found.answer == first.answer is not None
        assert found.derived("up to", "median") == first.derived("up to", "median")
        both = dm.combine(found, second)
        assert both.quantile == first.quantile and both.derivations == {"up to": ("median",)}
        assert np.allclose(both.variances("up to"), first.variances("up to") / 2, rtol=1e-6)
        assert "combine 2 releases" in both.statement() and "release 1, Hours" in both.statement()


@pytest.mark.parametrize("ratio", [1e6, 1e18])
def test_a_total_told_well_beside_noisy_cells(ratio: float) -> None:
    """Rounding of the joint covariance of the cells hid the total, of which variances of 0 and 12 were stated."""
    total = dm.Workload(np.ones((1, 4)), names=["all"], groups=["total"])
    cells = dm.Workload(np.eye(4), names=["a", "b", "c", "d"], groups=["cells"] * 4)
    first, second = (
        dm.release(fast.solve(dm.FitnessForUse(asked, variance)), np.full(4, 100))
        for asked, variance in ((total, 4.0), (cells, 4.0 * ratio))
    )
    both = dm.combine(first, second)
    (told,), each = first.variances("total"), second.variances("cells")
    assert both.variances("total") == pytest.approx(1 / (1 / told + 1 / each.sum()), rel=1e-6)
    assert both.variances("cells") == pytest.approx(each - each**2 / (each.sum() + told), rel=1e-6)


class TestRefused:
    """Everything by the argument's name, before any work."""

    def refuse(self, told: str, *every: Any) -> None:
        with pytest.raises(dm.errors.DualmechError, match=told):
            dm.combine(*every)

    def test_by_name(self) -> None:
        generator, x = np.random.default_rng(6), np.full(PEOPLE.shape, 20)
        first, second = (released(name, "add-remove", x, generator) for name in ("cells", "prefixes"))
        self.refuse("second must be a Publication, got int", first, 3)
        self.refuse("second must have noise of its own: it and first contain one release", first, first)
        self.refuse(r"others\[0\] must have noise of its own", first, second, dm.combine(first, second))
        self.refuse("second must have the unit of privacy of first", first, released("cells", "replace", x, generator))
        matrix = on_matrix("cells", "add-remove", np.ones(6), generator)
        self.refuse("second must be of the kind of first", first, matrix)
        noise = rounded_gaussian(generator)
        asked = dm.workloads.union({"age": 5}, {"ages": ["age"]})
        elsewhere = published(dm.BlockMechanism.of_tables(asked, 9.0), {(0,): np.ones(5)}, noise)
        self.refuse("second must be of the same attributes", first, elsewhere)
        others = published(dm.BlockMechanism.of_tables(union(cells=["age", "hours"]), 9.0), {(0, 1, 2): x}, noise)
        self.refuse("second has a table 'cells' with other queries than in first", first, others)

    def test_groups_of_other_queries_and_cells_of_other_names(self) -> None:
        pair, noise = dm.LinearGaussianMechanism(np.eye(2), 9 * np.eye(2)), rounded_gaussian(7)
        asked = [dm.Workload(rows) for rows in ([[1.0, 0.0]], [[1.0, 1.0]])]
        asked += [
            dm.Workload(np.eye(2), ["u", "v"], ["g", "g"], cell_names=cells) for cells in (None, ["a", "b"], ["b", "a"])
        ]
        left, both, unnamed, one, two = (published(pair, np.ones(2), noise, each) for each in asked)
        self.refuse("second has a table 'queries' with other queries", left, both)
        self.refuse("second must be of the same attributes, values and cells", one, two)
        self.refuse(r"others\[0\] must be of the same attributes, values and cells", unnamed, one, two)
        assert dm.combine(unnamed, one).workload.cell_names == ("a", "b")

    def test_other_structures(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(32), 1.0, geometry="stream")
        stream = published(fast.solve(problem), np.ones(32), rounded_gaussian(8))
        told = "first must be a release on a matrix or of tables by blocks, got "
        self.refuse(f"{told}one by a StreamMechanism", stream, stream)
        with pytest.raises(dm.errors.InvalidInputError, match="released must be a release on a matrix"):
            dm.save_publication(stream, "stream.npz")

    @pytest.mark.parametrize("relation", RELATIONS[1:])
    def test_of_other_records(self, relation: str) -> None:
        generator, x = np.random.default_rng(9), np.full(PEOPLE.shape, 20)
        more = x + (np.arange(2) == 0)[None, :, None]
        one, two = released("marginals", relation, x, generator), released("cells", relation, more, generator)
        self.refuse("first and second must be of the same records", one, two)
        rows = (on_matrix(name, "replace", np.full(6, n), generator) for name, n in (("cells", 3), ("all", 4)))
        self.refuse("first and second must be of the same records", *rows)

    def test_files_that_say_what_cannot_be(self, tmp_path: Path) -> None:
        kept = on_matrix("cells", "add-remove", np.ones(6), np.random.default_rng(10))
        dm.save_publication(kept, tmp_path / "kept.npz")
        arrays = dict(np.load(tmp_path / "kept.npz"))
        del arrays["digest"]
        wrong = {"squared_privacy_cost": "1/1000000", "exact": 9, "measured": np.ones(5), "combined": "[3]"}
        for change, value in wrong.items():
            np.savez(tmp_path / "wrong.npz", **(arrays | {change: np.array(value)}))
            with pytest.raises(dm.errors.FileFormatError, match=change):
                dm.load_publication(tmp_path / "wrong.npz")


class TestCommand:
    def test_from_records_to_combined_tables(self, tmp_path: Path) -> None:
        pytest.importorskip("opendp")
        people = dm.Schema({"age": range(17, 21), "sex": ["f", "m"]})
        (tmp_path / "r.csv").write_text("age,sex\n" + "17,f\n18,m\n20,m\n" * 50)
        for name, asked in (
            ("first", dm.workloads.union(people, {"ages": {"age": dm.workloads.prefix(4)}})),
            ("second", dm.workloads.union(people, {"ages": {"age": dm.workloads.prefix(4)}, "cells": ["age", "sex"]})),
        ):
            dm.save(fast.solve(dm.FitnessForUse(asked, 9.0)), tmp_path / "plan.npz")
            found = run("release", tmp_path / "r.csv", tmp_path / "plan.npz", "-o", tmp_path / name)
            assert found.exit_code == 0, found.exception
        first, second = tmp_path / "first", tmp_path / "second"
        found = run("combine", first, second, "-o", tmp_path / "both")
        assert found.exit_code == 0, found.exception
        assert sorted(path.name for path in (tmp_path / "both").iterdir()) == [
            *("1_ages.csv", "2_cells.csv", "STATEMENT.md", "release.npz", "tables.csv")
        ]
        one, two, both = (dm.load_publication(tmp_path / name) for name in ("first", "second", "both"))
        assert both.rho == one.rho + two.rho and both.margins("ages").max() < one.margins("ages").max()
        told = (tmp_path / "both" / "STATEMENT.md").read_text()
        assert told == both.statement()
        assert all(part.digest in told and f"{part.rho.numerator}/" in told for part in (*one.parts, *two.parts))
        refused = run("combine", first, tmp_path / "both", "-o", tmp_path / "twice")
        assert refused.exit_code != 0 and f"{tmp_path / 'both'} must have noise of its own" in str(refused.exception)
        assert not (tmp_path / "twice").exists()

    def test_what_is_no_publication(self, tmp_path: Path) -> None:
        answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(4), 9.0))
        dm.save(answer, tmp_path / "plan.npz")
        refused = run("combine", tmp_path / "plan.npz", tmp_path / "none.npz", "-o", tmp_path / "both")
        assert refused.exit_code != 0 and "dualmech.publication" in str(refused.exception)
        assert run("combine", tmp_path / "plan.npz", "-o", tmp_path / "both").exit_code == 2

    def test_a_stream_has_no_file(self, tmp_path: Path) -> None:
        pytest.importorskip("opendp")
        (tmp_path / "r.csv").write_text("day\n" + "3\n5\n" * 20)
        table = {"name": "up to", "ask": {"day": "prefixes"}, "variance": 9}
        dm.save(planned({"attributes": {"day": {"from": 1, "to": 600}}, "tables": [table]}), tmp_path / "plan.npz")
        found = run("release", tmp_path / "r.csv", tmp_path / "plan.npz", "-o", tmp_path / "out")
        assert found.exit_code == 0, found.exception
        assert not (tmp_path / "out" / "release.npz").exists()
        refused = run("combine", tmp_path / "out", tmp_path / "out", "-o", tmp_path / "both")
        assert "out: holds no release.npz" in str(refused.exception)


def test_what_an_earlier_release_is_part_of_is_not_drawn_again() -> None:
    """The mechanism to run now is, and both together keep the targets at the privacy of the answer."""
    wish, counts = dm.workloads.identity(2), [30, 10]
    earlier = dm.LinearGaussianMechanism(np.ones((1, 2)), [[16.0]])
    problem = dm.ReuseFitness(wish, 16.0, earlier)
    answer = fast.solve(problem)
    with pytest.raises(dm.errors.InvalidInputError, match="after must be the earlier release"):
        dm.plan_release(answer)
    pytest.importorskip("opendp")
    now = problem.new_mechanism(answer.primal)
    first, second = (
        dm.release(each, counts, workload=dm.Workload(each.query_matrix, groups=[name] * len(each.query_matrix)))
        for name, each in (("total", earlier), ("beyond", now))
    )
    both = dm.combine(first, second)
    assert np.all(both.drawn.mechanism.variances(wish) <= 16.0 * (1 + 1e-4))
    assert float(2 * both.rho) <= answer.objective * (1 + 1e-6)
