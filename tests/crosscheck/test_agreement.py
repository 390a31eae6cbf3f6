"""Agreement of certified intervals, the judge for outsiders, printed numbers, and blackboard proofs."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

import dualmech as dm
from dualmech import crosscheck, fast
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.instances.fitness import TABLE_2, PrintedCase
from dualmech.crosscheck.optima import finding
from dualmech.crosscheck.optima.rationals import ExactOptimum
from dualmech.solution import retold


def prefix(d: int) -> dm.FitnessForUse:
    return dm.FitnessForUse(dm.workloads.prefix(d), targets=1.0)


class TestAgreement:
    def test_narrow_intervals_that_meet_agree(self) -> None:
        answers = [fast.solve(prefix(8), method=method) for method in ("newton", "fixed_point")]
        comparison = crosscheck.compare(answers)
        assert comparison.outcome is Agreement.AGREE
        assert comparison.lower_bound <= comparison.objective * (1 + 1e-12)

    def test_meeting_alone_is_not_agreement(self) -> None:
        with pytest.warns(dm.errors.UncertifiedWarning):
            loose = fast.solve(prefix(8), max_iterations=1)
        assert crosscheck.compare([fast.solve(prefix(8)), loose]).outcome is Agreement.WIDE

    def test_disjoint_intervals_disagree(self) -> None:
        answer = fast.solve(prefix(8))
        certificate = dataclasses.replace(answer.certificate, objective=2.0, lower_bound=2.0)
        liar = retold(answer, certificate=certificate)
        assert crosscheck.compare([answer, liar]).outcome is Agreement.DISAGREE

    def test_a_certificate_of_another_point_proves_nothing(self) -> None:
        answer = fast.solve(dm.FitnessForUse(dm.workloads.prefix(8)))
        forged = retold(answer, primal=3 * answer.primal)
        assert forged.status is dm.Status.CERTIFIED
        assert crosscheck.compare([answer, forged]).outcome is Agreement.WIDE

    def test_different_problems_are_refused(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="same problem"):
            crosscheck.compare([fast.solve(prefix(4)), fast.solve(prefix(5))])

    def test_nothing_to_compare_is_refused(self) -> None:
        with pytest.raises(ValueError, match="answers"):
            crosscheck.compare([])


class TestJudge:
    @pytest.mark.parametrize("factor", [0.5, 2.0])
    def test_scaling_is_told_apart_from_shape(self, factor: float) -> None:
        best = fast.solve(prefix(8), tol=1e-9)
        verdict = crosscheck.judge(prefix(8), factor * best.primal)
        assert verdict.feasible is (factor < 1)
        assert verdict.scaled.gap < 1e-8
        assert verdict.violation == pytest.approx(max(factor - 1, 0))

    def test_the_bound_is_the_judges_own(self) -> None:
        """However bad the covariance, the bound is the optimum's."""
        verdict = crosscheck.judge(prefix(16), np.eye(16) / 16)
        assert verdict.lower_bound == pytest.approx(2.9052529, rel=1e-7)
        assert verdict.objective == pytest.approx(16)

    def test_a_singular_covariance_costs_infinity(self) -> None:
        verdict = crosscheck.judge(prefix(2), np.zeros((2, 2)) + np.diag([1.0, 0.0]))
        assert verdict.objective == np.inf
        assert not verdict.certifies(1.0)

    @pytest.mark.parametrize(
        "covariance", [np.eye(3), [[1, 2], [2, 1]], [[1, 0], [0.5, 1]], [[np.nan, 0], [0, 1]], [["a", "b"], ["c", "d"]]]
    )
    def test_what_is_no_covariance_is_refused_by_name(self, covariance: object) -> None:
        with pytest.raises(dm.errors.DualmechError, match="covariance"):
            crosscheck.judge(prefix(2), covariance)

    def test_privacy_first_is_judged_too(self) -> None:
        problem = dm.PrivacyFirst(dm.workloads.prefix(8), targets=1.0, cost=1.0)
        verdict = crosscheck.judge(problem, problem.feasible(np.eye(8)))
        assert verdict.feasible
        assert verdict.objective == pytest.approx(8)
        assert list(verdict.loose) == list(range(7))

    def test_a_strategy_is_a_covariance(self) -> None:
        problem = prefix(4)
        tree = np.vstack([np.eye(4), np.kron(np.eye(2), np.ones((1, 2))), np.ones((1, 4))])
        covariance = crosscheck.covariance_of_strategy(problem, tree)
        np.testing.assert_allclose(np.linalg.inv(covariance), tree.T @ tree, rtol=1e-12, atol=1e-12)

    def test_a_strategy_that_cannot_answer_is_refused(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="cannot answer"):
            crosscheck.covariance_of_strategy(prefix(4), np.eye(4)[:3])
        with pytest.raises(dm.errors.InvalidInputError, match="4 columns"):
            crosscheck.covariance_of_strategy(prefix(4), np.eye(3))


class TestPrintedNumbers:
    @pytest.mark.parametrize("printed", TABLE_2, ids=lambda case: case.name)
    def test_table_2_is_confirmed(self, printed: PrintedCase) -> None:
        interval = fast.solve(printed.problem()).certificate.interval
        assert all(printed.confirms(column, interval) for column in printed.printed)

    def test_digits_decide(self) -> None:
        case = PrintedCase("x", lambda: prefix(2), {"a": "4.46"}, "nowhere")
        assert case.confirms("a", (4.4551, 4.4552))
        assert case.confirms("a", (4.4, 4.5))
        assert not case.confirms("a", (4.4651, 4.4652))
        assert not case.confirms("a", (4.45, 4.4549))


class TestBlackboard:
    def solve(self, workload: dm.Workload) -> ExactOptimum | None:
        return finding.proven(fast.solve(dm.FitnessForUse(workload, targets=1.0), tol=1e-11))

    def test_prefix_2_is_four_thirds(self) -> None:
        proof = self.solve(dm.workloads.prefix(2))
        assert proof is not None
        assert proof.optimum == Fraction(4, 3)
        assert proof.neighbour_weights == (Fraction(2, 3), Fraction(1, 3))
        assert proof.query_weights == (Fraction(1, 3), Fraction(2, 3))
        assert [*map(list, proof.covariance)] == [[1, Fraction(-1, 2)], [Fraction(-1, 2), 1]]

    @pytest.mark.parametrize("d", [2, 3, 5, 10])
    def test_identity_and_total_follow_theorem_7(self, d: int) -> None:
        proof = self.solve(dm.workloads.identity_total(d))
        assert proof is not None
        assert proof.optimum == Fraction(2 * d, d + 1)

    def test_an_optimum_of_no_field_of_square_roots_has_no_blackboard_proof(self) -> None:
        assert self.solve(dm.workloads.prefix(4)) is None

    def test_noise_follows_from_the_weights_and_not_from_a_point_nearby(self) -> None:
        answer = fast.solve(prefix(2), tol=1e-11)
        shifted = retold(answer, primal=np.array([[0.998, -0.5], [-0.5, 1.0]]))
        first, second = finding.proven(shifted), finding.proven(answer)
        assert first is not None and second is not None and first.covariance == second.covariance

    @pytest.mark.parametrize("last", [(1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1), (0, 0, 1)])
    def test_weights_that_are_nearly_zero_are_zero(self, last: tuple[int, int, int]) -> None:
        """Four queries on three cells, of targets 1, 2, 4, 1: the third cell may have noise in a whole interval."""
        rows = [[1, 0, 0], [0, 0, 1] if last != (0, 0, 1) else [0, 1, 1], list(last), [0, 1, 0]]
        problem = dm.FitnessForUse(dm.Workload(rows), [1, 2, 4, 1])
        proof = finding.proven(fast.solve(problem, tol=1e-12))
        assert proof is not None and proof.optimum == 1
        assert proof.neighbour_weights[2] == 0 and [*proof.query_weights[1:3]] == [0, 0]
        covariance = np.array([[float(entry) for entry in row] for row in proof.covariance])
        judged = problem.certify(
            covariance, [[*map(float, each)] for each in (proof.neighbour_weights, proof.query_weights)]
        )
        assert judged.feasible and judged.gap < 1e-12

    def test_privacy_first_and_total_variance_have_fractions_too(self) -> None:
        first = finding.proven(fast.solve(dm.PrivacyFirst(dm.workloads.prefix(2), 1.0, cost=0.5), tol=1e-12))
        assert first is not None and first.optimum == Fraction(8, 3)
        total = dm.TotalVariance(dm.workloads.identity_total(3))  # (2 + √4)² / 3
        found = finding.proven(fast.solve(total, tol=1e-12))
        assert found is not None and found.optimum == Fraction(16, 3)

    def test_numbers_that_are_no_small_fractions_are_not_taken_for_some(self) -> None:
        """A third to five digits is no third, and a number without an end is no fraction."""
        for target, optimum in ((0.33333, Fraction(100000, 33333)), (np.cos(1), None)):
            proof = finding.proven(fast.solve(dm.FitnessForUse(dm.workloads.identity(2), [target, 1.0]), tol=1e-12))
            assert (proof and proof.optimum) == optimum
