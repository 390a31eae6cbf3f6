"""Closed forms as oracles: the identity-and-sum workload, equivalences and floors that the paper proves.

Theorems are those of Xiao, Ding, Wang, Zhang and Kifer, PVLDB 14(10), 2021. By symmetry their covariances have
the form ``a I + b 1 1'``.
"""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import dualmech as dm
from dualmech import fast, reference
from dualmech.studies import rivals
from dualmech.validate import Array

quick = settings(max_examples=15)


def symmetric(cells: int, a: float, b: float) -> Array:
    return a * np.eye(cells) + b * np.ones((cells, cells))


def largest_ratio(cells: int) -> float:
    """Theorem 8: variance of the sum over its target under least squares, at the cost of the best fit."""
    return float((cells + 1 + (cells - 1) * np.sqrt(cells + 1)) / (2 * cells))


class TestEqualTargets:
    def test_theorem_7_is_the_gaussian_mechanism_with_least_squares(self) -> None:
        mechanism = rivals.gaussian_mechanism(dm.workloads.identity_total(12), cost=2 * 12 / 13)
        np.testing.assert_allclose(mechanism.covariance(), symmetric(12, 13 / 12, -1 / 12), atol=1e-12)


class TestTheorem5:
    """Problem 2 is Problem 1 rescaled: the factor times the cost allowed is the cost of unit targets."""

    @pytest.mark.parametrize("layer", [fast.solve, reference.solve], ids=["fast", "reference"])
    def test_on_prefixes_and_back(self, layer: object) -> None:
        workload, targets, cost = dm.workloads.prefix(6), [1, 2, 3, 1, 2, 3], 0.7
        one = layer(dm.FitnessForUse(workload, targets))  # type: ignore[operator]
        two = layer(dm.PrivacyFirst(workload, targets, cost))  # type: ignore[operator]
        (low, high), (least, most) = one.certificate.interval, two.certificate.interval
        assert max(low, cost * least) <= min(high, cost * most)
        # A solution of either is one of the other, by one number.
        there = two.problem.certify(one.objective / cost * one.primal, two.dual)
        back = one.problem.certify(two.primal / two.objective, one.dual)
        assert there.feasible and there.gap <= 2e-5 and back.feasible and back.gap <= 2e-5


class TestTheorem8:
    def test_ratio_at_equal_cost(self) -> None:
        for cells, gamma in ((2, 1e3), (3, 1.0), (5, 1e3), (64, 1.0)):
            workload, cost = dm.workloads.identity_total(cells), 2 * cells / (1 + cells) / gamma
            unit = fast.solve(dm.TotalVariance(workload, geometry="dense"), tol=1e-9).mechanism
            ratios = unit.variances(workload) / cost / gamma
            assert ratios.max() == pytest.approx(largest_ratio(cells), rel=1e-4)
            fit = symmetric(cells, gamma * (cells + 1) / cells, -gamma / cells)
            best = dm.LinearGaussianMechanism(np.eye(cells), fit)
            assert best.squared_privacy_cost == pytest.approx(cost, rel=1e-9)
            np.testing.assert_allclose(best.variances(workload), gamma, rtol=1e-9)


@st.composite
def problems(draw: st.DrawFn) -> dm.FitnessForUse:
    """Random problems, of any rank, on the default basis or on a mixed one."""
    shape = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    matrix = draw(arrays(np.float64, shape, elements=st.integers(-3, 3).map(float)))
    assume(np.any(matrix))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    plain = dm.FitnessForUse(dm.Workload(matrix), 10 ** rng.uniform(-2, 2, shape[0]))
    if draw(st.booleans()):
        return plain
    rank = plain.geometry.rank
    mix = np.linalg.qr(rng.standard_normal((rank, rank)))[0] * rng.uniform(0.3, 3, rank)
    return dm.FitnessForUse(plain.workload, plain.targets, basis=mix @ plain.basis)


def eigenvalue_floor(problem: dm.FitnessForUse) -> float:
    """The χ of Theorem 10's proof, ``(χ_B / d) min_j(c_j / ‖ℓ_j‖²) / max_i ‖b_i‖²``.

    χ_B is the least eigenvalue of ``B B'``, the ℓ_j are the rows of L and the b_i the columns of B. The proof
    shows it of every covariance that costs no more than the best feasible multiple of the identity.
    """
    basis, norms = problem.basis, (problem.geometry.representation**2).sum(axis=1)
    asked = norms > 0
    multiple = (problem.targets[asked] / norms[asked]).min()
    least = np.linalg.eigvalsh(basis @ basis.T)[0]
    return float(least / basis.shape[1] * multiple / (basis**2).sum(axis=0).max())


class TestTheorem10:
    @quick
    @given(problems())
    def test_optimal_covariances_keep_above_a_floor_that_their_cost_raises(self, problem: dm.FitnessForUse) -> None:
        answer, basis = fast.solve(problem), problem.basis
        by_cost = np.linalg.eigvalsh(basis @ basis.T)[0] / basis.shape[1] / answer.objective
        assert by_cost >= eigenvalue_floor(problem) * (1 - 1e-9)
        assert np.linalg.eigvalsh(answer.primal)[0] >= by_cost * (1 - 1e-9)

    def test_one_cell_attains_it(self) -> None:
        problem = dm.FitnessForUse(dm.Workload([[2.0]]), 3.0)
        assert eigenvalue_floor(problem) == pytest.approx(0.75)
        assert fast.solve(problem).primal[0, 0] == pytest.approx(0.75)
