"""Gram matrices in closed form against those of the workloads written out, and workloads made of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import dualmech as dm
from dualmech import fast, workloads
from dualmech.validate import Array

quick = settings(max_examples=24)
shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@st.composite
def matrices(draw: st.DrawFn) -> Array:
    """Tall, wide, rank-deficient, with zero rows and columns, in units of any size, one per column or for all."""
    shape = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    matrix = draw(arrays(np.float64, shape, elements=st.integers(-2, 2).map(float)))
    matrix[0, 0] = 1.0
    units = draw(arrays(np.float64, shape[1], elements=st.sampled_from([1.0, 1e-6, 1e6])))
    return np.asarray(matrix * units)


class TestClosedForms:
    @pytest.mark.parametrize("d", [1, 2, 3, 8, 13])
    def test_ranges_and_prefixes(self, d: int) -> None:
        np.testing.assert_array_equal(workloads.all_range_gram(d), workloads.all_range(d).gram())
        np.testing.assert_array_equal(workloads.prefix_gram(d), workloads.prefix(d).gram())

    @quick
    @given(shapes, st.data())
    def test_tables(self, shape: list[int], data: st.DataObject) -> None:
        ways = data.draw(st.lists(st.integers(0, len(shape)), min_size=1, unique=True))
        for gram, builder in (
            (workloads.marginals_gram, workloads.marginals),
            (workloads.range_marginals_gram, workloads.range_marginals),
        ):
            np.testing.assert_array_equal(gram(shape, ways=ways), builder(shape, ways=ways).gram())

    def test_sizes_that_are_too_large_or_refused(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="too large"):
            workloads.all_range(2048).dense()
        gram = workloads.all_range_gram(2048)
        assert gram[0, 0] == 2048 and gram[1023, 1024] == 1024 * 1024
        for builder in (workloads.all_range_gram, workloads.prefix_gram):
            for wrong in (0, -1, 2.0, "4", None, True):
                with pytest.raises(dm.errors.DualmechError, match="d must"):
                    builder(wrong)  # type: ignore[arg-type]
            with pytest.raises(dm.errors.InvalidInputError, match="too large"):
                builder(10**9)
        with pytest.raises(dm.errors.InvalidInputError, match="exactly one"):
            workloads.marginals_gram([2, 2])
        with pytest.raises(dm.errors.InvalidInputError, match="too large"):
            workloads.range_marginals_gram([2] * 40, ways=1)

    def test_sets_by_name(self) -> None:
        domain, sets = {"age": 3, "sex": 2, "race": 2}, ["sex", ("age", "race"), ()]
        np.testing.assert_array_equal(
            workloads.marginals_gram(domain, sets=sets), workloads.marginals(domain, sets=sets).gram()
        )

    def test_all_range_inverts_the_second_difference(self) -> None:
        d = 200
        difference = 2 * np.eye(d) - np.eye(d, k=1) - np.eye(d, k=-1)
        np.testing.assert_allclose(workloads.all_range_gram(d) @ difference, (d + 1) * np.eye(d), atol=1e-9 * d)
        waves = (d + 1) / (4 * np.sin(np.arange(1, d + 1) * np.pi / (2 * (d + 1))) ** 2)
        np.testing.assert_allclose(np.linalg.eigvalsh(workloads.all_range_gram(d)), np.sort(waves), rtol=1e-9)

    def test_all_ranges_of_a_domain_are_a_product(self) -> None:
        product = np.kron(workloads.all_range_gram(3), workloads.all_range_gram(4))
        np.testing.assert_array_equal(workloads.range_marginals_gram([3, 4], ways=2), product)


class TestFromGram:
    @quick
    @given(matrices())
    def test_has_the_gram_matrix_and_the_rank(self, matrix: Array) -> None:
        gram = matrix.T @ matrix
        workload = workloads.from_gram(gram)
        units = np.sqrt(np.outer(np.diag(gram), np.diag(gram)))
        assert np.all(np.abs(workload.gram() - gram) <= 1e-13 * units)
        scaled = matrix / np.where(np.any(matrix, axis=0), np.abs(matrix).max(axis=0), 1.0)
        assert len(workload) == np.linalg.matrix_rank(scaled)

    @quick
    @given(matrices(), st.integers(0, 99))
    def test_every_noise_has_the_same_total(self, matrix: Array, seed: int) -> None:
        factor = np.random.default_rng(seed).normal(size=(matrix.shape[1],) * 2)
        mechanism = dm.LinearGaussianMechanism(np.eye(len(factor)), factor @ factor.T + np.eye(len(factor)))
        asked, made = dm.Workload(matrix), workloads.from_gram(matrix.T @ matrix)
        assert mechanism.variances(made).sum() == pytest.approx(mechanism.variances(asked).sum(), rel=1e-10)

    def test_domains_and_refusals(self) -> None:
        workload = workloads.from_gram(workloads.marginals_gram([2, 3], ways=1), domain=[2, 3])
        assert workload.domain == dm.Domain({"a0": 2, "a1": 3})
        with pytest.raises(dm.errors.InvalidInputError, match="domain must have 2 cells"):
            workloads.from_gram(np.eye(2), domain=[3])
        for gram, match in (
            ([[1, 2], [2, 1]], "semidefinite"),
            ([[1, 1], [1, 0]], "semidefinite"),
            ([[-1, 0], [0, 1]], "semidefinite"),
            ([[1, 1, 1], [1, 1, 1.001], [1, 1.001, 1]], "semidefinite"),
            ([[1, 2], [0, 1]], "symmetric"),
            ([[1, 2, 3], [2, 1, 0]], "square"),
            ([[0, 0], [0, 0]], "zero"),
            ([[np.nan]], "finite"),
            ([[1e300]], "magnitude"),
            ([1, 2], "dimension"),
            ("identity", "text"),
        ):
            with pytest.raises(dm.errors.DualmechError, match=match):
                workloads.from_gram(gram)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "workload",
        [
            workloads.all_range(12),
            workloads.marginals([2, 3, 2], ways=2),
            workloads.random_range(10, 4, 0),
            workloads.total(5),
        ],
        ids=["full rank", "tables", "wide", "one query"],
    )
    def test_total_variance_is_that_of_the_workload(self, workload: dm.Workload) -> None:
        other = workloads.from_gram(workload.gram())
        one, two = (fast.solve(dm.TotalVariance(asked), tol=1e-9) for asked in (workload, other))
        assert one.status is two.status is dm.Status.CERTIFIED
        assert max(one.lower_bound, two.lower_bound) <= min(one.objective, two.objective) * (1 + 1e-11)
        total = two.mechanism.variances(workload).sum()
        assert total == pytest.approx(two.objective, rel=1e-10)

    def test_large_and_far_from_full_rank(self) -> None:
        workload = workloads.from_gram(workloads.marginals_gram([8, 8, 8], ways=2))
        assert len(workload) == 1 + 3 * 7 + 3 * 49
