"""Mechanisms of any tables in order: on the blocks that their tables leave together, what matrices say on the cells."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import crosscheck, fast, reference
from dualmech.mechanisms.frames import TableBlocks

quick = settings(max_examples=12)
seeds = st.integers(0, 10_000)


def random_tables(seed: int, neighbours: str | None = None) -> dm.BlockMechanism:
    """Plain noise of random sizes on random tables of one domain: values, prefixes, groups, one attribute or all."""
    rng = np.random.default_rng(seed)
    sizes = {"age": 5, "sex": 2, "region": 3}

    def queries(size: int) -> dm.Workload | None:
        kind = int(rng.integers(4))
        if kind == 0:
            return None
        if kind == 1:
            return dm.workloads.prefix(size)
        groups = rng.integers(0, 2, size)
        rows = np.array([groups, 1 - groups])
        return dm.Workload(rows[np.any(rows, axis=1)])

    tables = {}
    for number in range(int(rng.integers(1, 4))):
        chosen = [name for name in sizes if rng.random() < 0.6] or ["age"]
        tables[f"t{number}"] = {name: queries(sizes[name]) for name in chosen}
    asked = dm.workloads.union(sizes, tables)
    variances = np.exp(rng.normal(size=len(tables)))
    plain = dm.BlockMechanism.of_tables(asked, variances)
    if neighbours is None:
        return plain
    targets = dict(zip(tables, variances.tolist(), strict=True))
    made: dm.BlockMechanism = fast.solve(dm.FitnessForUse(asked, targets, neighbours=neighbours)).mechanism  # type: ignore[assignment]
    return made


def assert_same(first: dm.LinearGaussianMechanism, second: dm.LinearGaussianMechanism, rtol: float = 1e-7) -> None:
    scale = max(np.abs(first.cost_matrix).max(initial=0.0), np.abs(second.cost_matrix).max(initial=0.0), 1e-300)
    np.testing.assert_allclose(first.cost_matrix / scale, second.cost_matrix / scale, atol=rtol)


@quick
@given(seeds, seeds, st.integers(2, 3))
def test_what_is_common_is_that_of_their_matrices(one: int, two: int, count: int) -> None:
    mechanisms = [random_tables(seed) for seed in (one, two, one + two)][:count]
    problem = dm.CommonMechanism(mechanisms)
    answer = fast.solve(problem)
    written = dm.CommonMechanism([each.dense() for each in mechanisms])
    assert len(problem.basis) <= len(written.basis) and bool(problem.trivial) is bool(written.trivial)
    if problem.trivial:
        return
    assert answer.status.name == "CERTIFIED" and answer.mechanism.rank == len(written.basis)
    covariance = written.covariance_from(answer.mechanism.dense())
    assert covariance is not None
    verdict = written.certify(covariance, fast.solve(written).dual)
    assert verdict.feasible and verdict.gap < 1e-5
    assert problem.maximality(answer.primal) and all(answer.mechanism.is_answerable_from(each) for each in mechanisms)


@quick
@given(seeds, seeds)
@example(0, 1292)
def test_blocks_residuals_and_sums_are_those_of_their_matrices(one: int, two: int) -> None:
    first, second = (random_tables(seed) for seed in (one, two))
    frame, common = TableBlocks([first, second]), fast.solve(dm.CommonMechanism([first, second])).mechanism
    for each in (first, second):
        moved, parts = frame.refined(each), dm.decomposition(each, common)
        assert_same(moved.dense(), each.dense(), 1e-9)
        assert moved.squared_privacy_cost == pytest.approx(each.squared_privacy_cost, rel=1e-9)
        assert each.is_answerable_from(moved) and moved.is_answerable_from(each)
        assert_same(parts.common.compose(parts.residual).dense(), each.dense())
        if common.rank:
            assert_same(parts.residual.dense(), dm.residual(each.dense(), common.dense()), 1e-6)
    assert_same(first.compose(second).dense(), first.dense().compose(second.dense()))
    ours, theirs = first.is_answerable_from(second), first.dense().is_answerable_from(second.dense())
    assert bool(ours) is bool(theirs)
    assert ours.excess == pytest.approx(theirs.excess, rel=1e-6, abs=1e-9)


def test_both_layers_the_judge_and_a_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    problem = dm.CommonMechanism([random_tables(seed) for seed in (1, 2, 8)])
    found, same = fast.solve(problem), reference.solve(problem, backend="CLARABEL")
    assert crosscheck.compare([found, same]).outcome.name == "AGREE"
    dm.save(found, tmp_path / "common.npz")
    again = dm.load(tmp_path / "common.npz")
    assert again.problem.same_as(problem) and again.gap == pytest.approx(found.gap, abs=1e-12)
    dm.save(found.mechanism, tmp_path / "mechanism.npz")
    verdict = crosscheck.judge(problem, dm.load(tmp_path / "mechanism.npz"))
    assert verdict.feasible and verdict.maximality and verdict.gap < 1e-6


def test_noise_between_blocks_counts_for_nothing() -> None:
    problem = dm.CommonMechanism([random_tables(1), random_tables(8)])
    answer = fast.solve(problem)
    blurred = answer.primal + 1e-3 * np.ones_like(answer.primal)
    for block in problem.slices:
        blurred[block, block] = answer.primal[block, block]
    assert problem.certify(blurred, answer.dual).gap == pytest.approx(answer.gap, abs=1e-12)
    assert problem.mechanism(blurred).same_as(answer.mechanism)


def test_circles_meet_whole_attributes_and_nothing_else() -> None:
    sizes = {"hour": 8, "day": 3}
    circle = dm.BlockMechanism.of_tables(dm.workloads.union(sizes, {"runs": {"hour": dm.workloads.circular_ranges(8)}}))
    values = dm.BlockMechanism.of_tables(dm.workloads.marginals(sizes, ways=2))
    problem = dm.CommonMechanism([circle, values])
    written = dm.CommonMechanism([circle.dense(), values.dense()])
    covariance = written.covariance_from(fast.solve(problem).mechanism.dense())
    assert covariance is not None
    assert written.certify(covariance, fast.solve(written).dual).gap < 1e-6
    halves = dm.workloads.union(sizes, {"halves": {"hour": dm.Workload(np.kron(np.eye(2), np.ones(4)))}})
    with pytest.raises(dm.errors.InvalidInputError, match="cyclic queries of 'hour'"):
        dm.CommonMechanism([circle, dm.BlockMechanism.of_tables(halves)])


def test_replaced_records() -> None:
    pair = [random_tables(seed, "replace") for seed in (3, 5)]
    common = fast.solve(dm.CommonMechanism(pair)).mechanism
    rest = dm.residual(pair[0], common)
    assert common.neighbours == pair[0].neighbours
    assert common.squared_privacy_cost <= min(each.squared_privacy_cost for each in pair) * (1 + 1e-6)
    assert common.compose(rest).squared_privacy_cost == pytest.approx(pair[0].squared_privacy_cost, rel=1e-6)


def test_bad_input_is_refused_by_name() -> None:
    for message, call in (
        (
            r"mechanisms\[1\] must be a BlockMechanism as the others, got Linear",
            lambda one: dm.CommonMechanism([one, one.dense()]),
        ),
        (r"mechanisms\[1\] must be a LinearGaussianMechanism", lambda one: dm.CommonMechanism([one.dense(), one])),
        ("basis and decisions are of mechanisms on cells", lambda one: dm.CommonMechanism([one, one], np.eye(2))),
        ("two or more", lambda one: dm.CommonMechanism([one])),
        ("sequence of two or more", lambda one: dm.CommonMechanism(one)),
        (
            "distinguishes values of 'age' that the others do not",
            lambda one: dm.CommonMechanism([one, one]).covariance_from(random_tables(2)),
        ),
        ("on other blocks|same blocks", lambda one: one.combine({}, (random_tables(2), {}))),
    ):
        with pytest.raises(dm.errors.DualmechError, match=message):
            call(dm.BlockMechanism.of_tables(dm.workloads.union({"age": 5, "sex": 2, "region": 3}, {"a": ["sex"]})))
