"""Mechanisms of marginal tables in order: subspace by subspace what matrices say on domains that they can hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.validate import Array

quick = settings(max_examples=15)
seeds = st.integers(0, 10_000)

SUBSETS = [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]


def random_mechanisms(seed: int, count: int) -> list[dm.BlockMechanism]:
    """Mechanisms on one domain of three attributes; all measure the total, so that something is common."""
    rng = np.random.default_rng(seed)
    domain = dm.Domain([(f"a{axis}", int(size)) for axis, size in enumerate(rng.integers(1, 4, 3))])
    return [
        dm.BlockMechanism.of_levels(
            domain, {axes: float(np.exp(rng.normal())) for axes in SUBSETS if not axes or rng.random() < 0.7}
        )
        for _ in range(count)
    ]


def shared(*mechanisms: dm.BlockMechanism) -> dm.BlockMechanism:
    return fast.solve(dm.CommonMechanism(mechanisms)).mechanism


def assert_same(first: dm.LinearGaussianMechanism, second: dm.LinearGaussianMechanism) -> None:
    scale = max(first.squared_privacy_cost, second.squared_privacy_cost, 1e-300)
    np.testing.assert_allclose(first.cost_matrix / scale, second.cost_matrix / scale, atol=1e-7)


class TestAgainstMatrices:
    @quick
    @given(seeds)
    def test_written_out_it_costs_and_answers_the_same(self, seed: int) -> None:
        (mechanism,) = random_mechanisms(seed, 1)
        dense = mechanism.dense()
        np.testing.assert_allclose(dense.profile, mechanism.squared_privacy_cost, rtol=1e-9)
        workload = dm.workloads.marginals(mechanism.domain, ways=0)
        np.testing.assert_allclose(dense.variances(workload), mechanism.variances(workload), rtol=1e-9)
        assert mechanism.epsilon(1e-6) == pytest.approx(dense.epsilon(1e-6), rel=1e-9)

    @quick
    @given(seeds, st.integers(2, 3))
    def test_the_common_mechanism_is_that_of_their_matrices(self, seed: int, count: int) -> None:
        mechanisms = random_mechanisms(seed, count)
        common = shared(*mechanisms)
        problem = dm.CommonMechanism([each.dense() for each in mechanisms])
        answer = fast.solve(problem, tol=1e-6)
        written = common.dense()
        assert written.rank == len(problem.basis)
        covariance = written.covariance(dm.Workload(problem.basis))
        low, high = answer.certificate.interval
        assert low * (1 - 1e-9) <= np.trace(covariance) <= high * (1 + 1e-9)
        assert problem.maximality(covariance)
        for each in mechanisms:
            assert common.is_answerable_from(each)

    @quick
    @given(seeds)
    def test_residuals_sums_and_answerability_are_those_of_their_matrices(self, seed: int) -> None:
        first, second = random_mechanisms(seed, 2)
        common, composed = shared(first, second), first.compose(second)
        for mechanism in (first, second):
            left = dm.residual(mechanism, common)
            assert_same(left.dense(), dm.residual(mechanism.dense(), common.dense()))
            assert_same(common.compose(left).dense(), mechanism.dense())
            cost = common.squared_privacy_cost + left.squared_privacy_cost
            assert cost == pytest.approx(mechanism.squared_privacy_cost, rel=1e-8)
        assert_same(composed.dense(), first.dense().compose(second.dense()))
        for wanted, source in ((first, second), (second, first), (first, composed), (composed, first)):
            ours, theirs = (wanted.is_answerable_from(source), wanted.dense().is_answerable_from(source.dense()))
            assert bool(ours) is bool(theirs)
            assert ours.excess == pytest.approx(theirs.excess, rel=1e-6, abs=1e-9)
            assert (ours.attributes is None) is bool(ours)

    @pytest.mark.parametrize(("sizes", "ways"), [([2] * 4, 2), ([3, 2, 4], (1, 2)), ([5, 3], (0, 2))])
    def test_noise_on_every_cell_is_the_gaussian_mechanism(self, sizes: list[int], ways: int | tuple[int, ...]) -> None:
        workload = dm.workloads.marginals(sizes, ways=ways)
        levels = np.arange(1.0, 1 + len(workload.axes))
        noise = np.diag(np.repeat(levels, workload.table_cells.astype(int)))
        plain = dm.LinearGaussianMechanism(workload.dense(), noise)
        assert_same(dm.BlockMechanism.of_tables(workload, levels).dense(), plain)


class TestAtScale:
    def test_attributes_choose_between_one_way_and_two_way_tables(self) -> None:
        domain = dm.Domain([(f"a{axis}", 10) for axis in range(8)])
        first, second = (
            dm.BlockMechanism.of_tables(workload, float(len(workload.axes)))
            for workload in (dm.workloads.marginals(domain, ways=ways) for ways in (1, 2))
        )
        assert first.squared_privacy_cost == pytest.approx(1) == second.squared_privacy_cost
        common = shared(first, second)
        # 1/τ of the total is 1/10 from one-way tables and 1/100 from two-way ones; of one attribute 1/80 and 1/400.
        assert common.squared_privacy_cost == pytest.approx(1 / 100 + 8 * 9 / 400)
        for each in (first, second):
            left = dm.residual(each, common)
            assert left.squared_privacy_cost == pytest.approx(1 - common.squared_privacy_cost)
            assert each.is_answerable_from(common.compose(left)) and common.compose(left).is_answerable_from(each)

    @pytest.mark.parametrize(
        ("sizes", "ways", "printed"), [([2] * 7, 7, 0.0625), ([2] * 7, 2, 0.75), ([101, 2], 2, 0.505)]
    )
    def test_the_papers_savings(self, sizes: list[int], ways: int, printed: float) -> None:
        """Sections 7.3 and 7.4 of CMN: the share of the budget that is common, which it prints as %PLB saved."""
        first, second = (
            dm.BlockMechanism.of_tables(workload, float(len(workload.axes)))
            for workload in (dm.workloads.marginals(sizes, ways=each) for each in (1, ways))
        )
        # The third is printed with three digits.
        assert shared(first, second).squared_privacy_cost == pytest.approx(printed, rel=1e-3)


class TestParts:
    DOMAIN = dm.Domain({"a": 2, "b": 3, "c": 2})

    def mechanisms(self) -> tuple[dm.BlockMechanism, dm.BlockMechanism]:
        one, two = (dm.BlockMechanism.of_tables(dm.workloads.marginals(self.DOMAIN, ways=ways)) for ways in (1, 2))
        return one, two

    def test_nothing_in_common_and_nothing_left(self) -> None:
        first, second = (dm.BlockMechanism.of_levels(self.DOMAIN, {axes: 1.0}) for axes in ((0,), (1,)))
        nothing = shared(first, second)
        assert nothing.noise == {} and nothing.rho == nothing.epsilon(1e-9) == nothing.delta(1.0) == 0
        assert nothing.dense().rank == 0 and nothing.is_answerable_from(first)
        assert dm.residual(first, nothing).noise == pytest.approx(first.noise)
        assert dm.residual(first, first).noise == {}

    def test_bad_input_is_refused_by_name(self) -> None:
        for message, call in (
            (r"others\[0\] must be a BlockMechanism", lambda one, two: one.compose(one.dense())),
            (
                r"others\[0\] must be on the same attributes",
                lambda one, two: one.compose(dm.BlockMechanism.of_levels(dm.Domain({"z": 2}), {})),
            ),
            (
                r"others\[0\] must be on the same",
                lambda one, _: one.compose(dm.BlockMechanism.of_levels(ELSEWHERE, {})),
            ),
            ("exceeds that of mechanism by a relative inf, on a x b", lambda one, two: dm.residual(one, two)),
            ("measured must hold b, at", lambda one, two: one.combine(silent(one), (two, without_b(two)))),
            ("tol must be positive", lambda one, two: one.is_answerable_from(two, tol=-1)),
        ):
            with pytest.raises(dm.errors.DualmechError, match=message):
                call(*self.mechanisms())

    def test_two_parts_recreate_the_whole(self) -> None:
        workload = dm.workloads.marginals(self.DOMAIN, ways=2)
        one, two = self.mechanisms()
        parts = dm.decomposition(two, shared(one, two))
        common, left = parts.common, parts.residual
        tables = dm.records.count(np.random.default_rng(0).integers(0, [2, 3, 2], (50, 3)), workload)
        rng, runs = np.random.default_rng(1), 400
        drawn = []
        for _ in range(runs):
            known = common.measure(tables, rng)
            whole = parts.combine(known, left.measure(tables, rng))
            drawn.append(parts.target.answering(two.workload or workload).recombine(whole, ["a", "b"]))
        errors = np.array(drawn) - tables[0, 1]
        variance = two.variance(["a", "b"])
        # Five standard errors of a mean and of a variance.
        assert np.abs(errors.mean(axis=0)).max() < 5 * np.sqrt(variance / runs)
        assert np.abs(errors.var(axis=0) / variance - 1).max() < 5 * np.sqrt(2 / runs)

    def test_too_large_to_write_out(self) -> None:
        domain = dm.Domain([(f"a{axis}", 10) for axis in range(60)])
        large = dm.BlockMechanism.of_levels(domain, {(): 1.0})
        with pytest.raises(dm.errors.InvalidInputError, match="1 rows and 1e\\+60 cells is too large"):
            large.dense()


class TestFiles:
    def test_what_is_saved_comes_back(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.npz"
        answer = fast.solve(dm.FitnessForUse(dm.workloads.marginals([10] * 30, ways=(0, 2))))
        empty = dm.BlockMechanism.of_levels(dm.Domain({"a": 2}), {})
        for mechanism in (answer.mechanism, empty):
            dm.save(mechanism, path)
            back = dm.load(path)
            assert back.domain == mechanism.domain and back.noise == mechanism.noise

    def test_broken_files_are_refused(self, tmp_path: Path) -> None:
        for message, changed in (
            ("add up to the 4 entries", {"set_sizes": np.array([0, 1, 1, 1])}),
            ("increasing positions below 2", {"set_axes": np.array([0, 1, 1, 0])}),
            ("increasing positions below 2", {"set_axes": np.array([0, 2, 0, 1])}),
            ("got one twice", {"set_axes": np.array([0, 0, 0, 1])}),
            ("arrays of integers", {"set_axes": np.array([0.0, 1.0, 0.0, 1.0])}),
            ("one of each per attribute", {"domain_sizes": np.array(2)}),
            ("one of each per attribute", {"domain_sizes": np.array([2])}),
            ("levels must be 4 numbers", {"levels": np.ones(3)}),
            ("must be positive", {"levels": -np.ones(4)}),
            ("domain size of 'a'", {"domain_sizes": np.array([0, 2])}),
        ):
            path = tmp_path / "broken.npz"
            arrays = {
                "domain_names": np.array(["a", "b"]),
                "domain_sizes": np.array([2, 2]),
                "set_axes": np.array([0, 1, 0, 1]),
                "set_sizes": np.array([0, 1, 1, 2]),
                "levels": np.ones(4),
            }
            parts = {f"mechanism.{name}": array for name, array in (arrays | changed).items()}
            dm.files.write_npz(path, "dualmech.mechanism", 1, **{"mechanism.kind": "BlockMechanism"}, **parts)
            with pytest.raises(dm.errors.FileFormatError, match=message):
                dm.load(path)


def silent(mechanism: dm.BlockMechanism) -> dict[tuple[int, ...], Array]:
    sizes = mechanism.domain.shape
    return {axes: np.zeros(tuple(sizes[axis] for axis in axes)) for axes in mechanism.noise}


ELSEWHERE = dm.Domain({"z": 2})


def without_b(mechanism: dm.BlockMechanism) -> dict[tuple[int, ...], Array]:
    return {axes: table for axes, table in silent(mechanism).items() if axes != (1,)}
