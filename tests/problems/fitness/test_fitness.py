"""Fitness for use and privacy first: worked examples, closed forms, printed numbers, prices, neighbours."""

import itertools
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from intervals import contains

import dualmech as dm
from dualmech import fast, reference
from dualmech.validate import Array


class TestWorkedExamplePrefix2:
    """The blackboard proof: 4/3 on both sides, in rationals."""

    covariance = ((Fraction(1), Fraction(-1, 2)), (Fraction(-1, 2), Fraction(1)))
    neighbours, queries = (Fraction(2, 3), Fraction(1, 3)), (Fraction(1, 3), Fraction(2, 3))

    def test_the_judge_agrees(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(2), 1.0)
        dual = np.array(self.neighbours, dtype=float), np.array(self.queries, dtype=float)
        judged = problem.certify(np.array(self.covariance, dtype=float), dual)
        assert judged.objective == pytest.approx(4 / 3, rel=1e-14)
        assert judged.lower_bound == pytest.approx(4 / 3, rel=1e-14)
        assert judged.gap <= 1e-14 and judged.certifies(1e-13)
        np.testing.assert_allclose(problem.prices(dm.duals.FitnessDual(*dual)), [1 / 3, 2 / 3])


class TestTheorem7IdentityAndTotal:
    """Targets γ for the cells and kγ for their total, any d; k = 1 is Theorem 7."""

    @staticmethod
    def closed_form(d: int, k: float, gamma: float) -> tuple[float, Array, tuple[Array, Array]]:
        """Return cost, covariance and weights.

        With λ uniform and a share q of the bill on the cells, ``S'S`` has the eigenvalue ``q/d²`` but for the
        total, where it has ``q/d² + (1 - q)/k``, all over γ; q makes their roots as 1/a to 1/(a + bd).
        """
        if k >= d:
            cost, covariance, share = 1 / gamma, gamma * np.eye(d), 1.0
        else:
            cost = (2 * k * d - d**2 - k * d**2) / (k * (k - d**2)) / gamma
            a, b = gamma * (d**2 - k) / ((d - 1) * d), gamma * (k - d) / ((d - 1) * d)
            covariance = a * np.eye(d) + b
            share = 1 / (1 + k * ((a / (a + b * d)) ** 2 - 1) / d**2)
        queries = np.append(np.full(d, share / d / gamma), (1 - share) / (k * gamma))
        return cost, covariance, (np.full(d, 1 / d), queries)

    @staticmethod
    def problem(d: int, k: float, gamma: float) -> dm.FitnessForUse:
        return dm.FitnessForUse(dm.workloads.identity_total(d), np.append(np.full(d, gamma), k * gamma))

    def test_closed_form_is_certified(self) -> None:
        for d, gamma in itertools.product((2, 3, 4, 5, 7, 16, 33, 60), (1.0, 0.37)):
            for k in (0.01, 0.5, 1.0, d / 2, 0.99 * d, d, 1.5 * d, 2 * d**2):
                cost, covariance, dual = self.closed_form(d, k, gamma)
                judged = self.problem(d, k, gamma).certify(covariance, dual)
                assert judged.objective == pytest.approx(cost, rel=max(1e-12, judged.resolution)), (d, k)
                assert judged.gap <= 1e-11 and judged.certifies(1e-8), (d, k, judged)

    def test_both_layers_find_it(self) -> None:
        for d, k in ((2, 1), (3, 1), (3, 2.5), (5, 1), (7, 0.007), (17, 4), (17, 17), (60, 1), (60, 70)):
            problem = self.problem(d, k, 1.5)
            answer = fast.solve(problem, tol=1e-9)
            cost, covariance, _ = self.closed_form(d, k, 1.5)
            assert answer.status is dm.Status.CERTIFIED and contains(answer.certificate, cost, 1e-12), (d, k)
            if k < d:
                np.testing.assert_allclose(answer.primal, covariance, atol=1e-3)
            assert problem.certify(covariance, answer.dual).gap <= 1e-7
            assert d > 5 or contains(reference.solve(problem).certificate, cost, 1e-12)


class TestTheorem5PrivacyFirst:
    def test_spending_too_much_is_infeasible(self) -> None:
        problem = dm.PrivacyFirst(dm.workloads.prefix(2), 1.0, cost=1.0)
        judged = problem.certify(np.eye(2) / 2, ([1, 1], [1, 1]))
        assert judged.violation == pytest.approx(1.0) and judged.gap == np.inf

    def test_solved(self) -> None:
        workload, targets = dm.workloads.random_range(8, 12, rng=0), np.linspace(1, 3, 12)
        first = fast.solve(dm.FitnessForUse(workload, targets), tol=1e-8)
        for cost in (1e-4, 1.0, 50.0):
            answer = fast.solve(dm.PrivacyFirst(workload, targets, cost), tol=1e-8)
            assert answer.status is dm.Status.CERTIFIED
            assert answer.objective * cost == pytest.approx(first.objective, rel=2e-8)
            assert answer.mechanism.squared_privacy_cost == pytest.approx(cost, rel=1e-12)
            np.testing.assert_allclose(answer.prices, first.prices, atol=1e-3)
            loose = first.problem.loose(first.primal, 1e-4)
            np.testing.assert_array_equal(answer.problem.loose(answer.primal, 1e-4), loose)


class TestPrices:
    """``∂ log α / ∂ log c_j = -μ_j c_j``."""

    def test_against_differences(self) -> None:
        rng = np.random.default_rng(0)
        workload, targets = dm.Workload(rng.standard_normal((6, 4))), rng.uniform(1, 2, 6)

        def log_optimum(exponents: npt.ArrayLike) -> float:
            problem = dm.FitnessForUse(workload, targets * np.exp(exponents))
            return float(np.log(fast.solve(problem, tol=1e-9).objective))

        h = 1e-4
        slopes = [(log_optimum(h * unit) - log_optimum(-h * unit)) / (2 * h) for unit in np.eye(6)]
        answer = fast.solve(dm.FitnessForUse(workload, targets), tol=1e-9)
        np.testing.assert_allclose(slopes, -answer.prices, atol=1e-4)
        assert answer.prices.sum() == pytest.approx(1)

    def test_loose_and_binding(self) -> None:
        answer = fast.solve(dm.FitnessForUse(dm.workloads.identity_total(4), [1, 1, 1, 1, 100.0]), tol=1e-9)
        np.testing.assert_array_equal(answer.problem.loose(answer.primal, 1e-4), [4])
        np.testing.assert_array_equal(answer.binding, [0, 1, 2, 3])
        assert answer.prices[4] <= 1e-8
