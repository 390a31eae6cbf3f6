"""Problem 4 and its hybrid: the judge on any point and weights, and both layers inside certified intervals."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from nasty import GENTLE, PREFIX, TALL, Nasty, parts

import dualmech as dm
from dualmech import fast, reference
from dualmech.crosscheck import compare


class TestJudge:
    def test_exponents_that_would_overflow(self) -> None:
        problem = dm.SoftmaxFitness(dm.workloads.prefix(3), 1e-30, 1e30, 1e-30)
        judged = problem.certify(1e-20 * np.eye(3), problem.dual_at(1e-20 * np.eye(3)))
        assert judged.objective == pytest.approx(3e30 * math.log(3) / 3 + 1e20, rel=1e-6)
        assert math.isfinite(judged.lower_bound)

    def test_a_query_asked_twice_counts_twice(self) -> None:
        matrix = dm.workloads.prefix(3).dense()
        one, two = (
            fast.solve(dm.SoftmaxFitness(dm.Workload(rows), 1.0, 3, 3), tol=1e-9).certificate.interval
            for rows in (matrix, np.vstack([matrix, matrix[:1]]))
        )
        assert one[1] < two[0]


class TestClosedForms:
    def test_identity(self) -> None:
        """At ``Σ = a I`` F is ``1/a + a (1 + w d)`` and the logarithms; by symmetry the optimum is such."""
        for d, w in ((1, 0.0), (4, 0.0), (4, 0.25), (7, 2.0)):
            problem = dm.SoftmaxFitness(dm.workloads.identity(d), 1.0, 4, 9, total_weight=w)
            a = 1 / math.sqrt(1 + w * d)
            judged = problem.certify(a * np.eye(d), (np.ones(d), np.ones(d)))
            assert judged.objective == pytest.approx(2 / a + math.log(d) * (1 / 4 + 1 / 9), rel=1e-13), (d, w)
            assert judged.gap <= 1e-13, (d, w)
            assert fast.solve(problem, tol=1e-10).objective == pytest.approx(judged.objective, rel=1e-10), (d, w)

    def test_one_number_needs_no_smoothing(self) -> None:
        for t in (1e-3, 1.0, 1e6):
            answer = fast.solve(dm.SoftmaxFitness(dm.Workload([[3.0]]), 2.0, t, t))
            assert answer.objective == pytest.approx(2 * math.sqrt(4.5), rel=1e-6)

    def test_problem_3_is_within_the_smoothing_gap(self) -> None:
        workload = dm.workloads.prefix(12)
        low, high = fast.solve(dm.FitnessForUse(workload, 1.0), tol=1e-10).certificate.interval
        for t in (3.0, 30.0, 1e3, 1e5):
            problem = dm.SoftmaxFitness(workload, 1.0, t, t)
            lowest, highest = fast.solve(problem, tol=1e-8).certificate.interval
            assert 2 * math.sqrt(low) <= highest and lowest <= 2 * math.sqrt(high) + problem.smoothing_gap, t

    def test_a_heavy_total_weight_is_the_matrix_mechanism(self) -> None:
        """With t₁ and w large F is near ``max_i cost_i + w · total variance``: 2 √(w · total at cost 1) at least."""
        workload, w = dm.workloads.prefix(8), 1e8
        low, high = fast.solve(dm.TotalVariance(workload), tol=1e-9).certificate.interval
        problem = dm.SoftmaxFitness(workload, 1.0, 1e3, 1e3, total_weight=w)
        answer = fast.solve(problem, tol=1e-8)
        assert 2 * math.sqrt(low) * (1 - 1e-8) <= answer.objective / math.sqrt(w)
        assert answer.objective / math.sqrt(w) <= 2 * math.sqrt(high) * (1 + 1e-3)


CASES = {name: case for name, case in GENTLE.items() if name != "one number"}


def stated(case: Nasty, t1: float, t2: float, total_weight: float, sparse: bool = False) -> dm.SoftmaxFitness:
    matrix, targets, basis, moves = parts(case)
    workload = dm.Workload(sp.csr_array(matrix) if sparse else matrix)
    return dm.SoftmaxFitness(workload, targets, t1, t2, total_weight, basis, moves)


def check(answer: dm.Solution, tol: float) -> None:
    assert answer.status is dm.Status.CERTIFIED, answer.certificate
    assert answer.certificate.certifies(tol)
    again = answer.problem.certify(answer.primal, answer.dual)  # on other threads than the solver's, perhaps
    assert again.interval == pytest.approx(answer.certificate.interval, rel=1e-12)
    np.testing.assert_array_equal(answer.primal, answer.primal.T)
    for weights in answer.dual:
        assert weights.min() >= 0 and weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(answer.prices, answer.dual.query_weights)


class TestFastLayer:
    @pytest.mark.parametrize("case", CASES)
    def test_strong_duality(self, case: str) -> None:
        for t1, t2, w, sparse in ((3, 3, 0, False), (20, 5, 0, True), (8, 20, 0.3, False), (1e-4, 1e-4, 0.3, True)):
            check(fast.solve(stated(CASES[case], t1, t2, w, sparse), tol=1e-8), 1e-8)
        check(fast.solve(stated(CASES[case], 1e4, 1e4, 0)), 1e-6)

    @pytest.mark.parametrize("factor", [1e-6, 1e6])
    def test_everything_in_other_units(self, factor: float) -> None:
        """The same sharpness is another problem; the sharpness that the units ask for is the same one."""
        one = fast.solve(dm.SoftmaxFitness(dm.Workload(TALL), 1.0, 10, 10, 0.1), tol=1e-8)
        root = math.sqrt(factor)
        two = fast.solve(dm.SoftmaxFitness(dm.Workload(TALL), factor, 10 * root, 10 * root, 0.1 / factor), tol=1e-8)
        low, high = (root * end for end in two.certificate.interval)
        assert max(low, one.lower_bound) <= min(high, one.objective) * (1 + 1e-12)
        check(fast.solve(dm.SoftmaxFitness(dm.Workload(factor * TALL), 1.0, 10, 10, 0.1)), 1e-6)

    @pytest.mark.parametrize(
        ("workload", "t", "tol", "most"),
        [
            pytest.param(dm.workloads.prefix(32), 3, 1e-6, 10, id="prefix 32, t 3"),
            pytest.param(dm.workloads.prefix(32), 1e5, 1e-8, 60, id="prefix 32, t 100000"),
            pytest.param(dm.workloads.random_range(32, 64, rng=0), 20, 1e-8, 20, id="ranges"),
            pytest.param(dm.workloads.marginals((4, 4, 4), ways=(1, 2)), 20, 1e-8, 15, id="marginals"),
            pytest.param(dm.workloads.pl94(), 20, 1e-6, 20, id="PL-94"),
        ],
    )
    def test_budgets(self, workload: dm.Workload, t: float, tol: float, most: int) -> None:
        answer = fast.solve(dm.SoftmaxFitness(workload, 1.0, t, t), tol=tol)
        check(answer, tol)
        assert answer.iterations <= most

    @pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
    def test_targets_worlds_apart_and_any_sharpness_end_with_an_honest_status(self) -> None:
        two = dm.workloads.prefix(2)
        problems = [dm.SoftmaxFitness(two, [ratio, 1 / ratio], 5, 5) for ratio in (1e12, 1e20, 1e40)]
        for workload in (dm.workloads.identity(3), dm.workloads.prefix(3)):
            problems += [dm.SoftmaxFitness(workload, 1.0, t, t) for t in (1e-30, 1e30)]
        for problem in problems:
            answer = fast.solve(problem)
            assert answer.certificate.certifies(1e-6) is (answer.status is dm.Status.CERTIFIED), problem

    def test_the_mechanism_meets_the_targets(self) -> None:
        workload = dm.workloads.prefix(6)
        answer = fast.solve(dm.SoftmaxFitness(workload, 2.0, 10, 10))
        assert answer.mechanism.variances(workload).max() == pytest.approx(2.0)
        best = fast.solve(dm.FitnessForUse(workload, 2.0))
        assert best.lower_bound <= answer.mechanism.squared_privacy_cost <= 1.1 * best.objective
        assert len(answer.binding) > 0


class TestReferenceLayer:
    # Each case has one statement by CLARABEL, in turn; each third case has the other one by SCS, which is slow.
    @pytest.mark.parametrize("number", range(len(CASES)), ids=list(CASES))
    def test_both_layers_agree(self, number: int) -> None:
        case, statements = list(CASES)[number], ["schur", "matrix_frac"]
        if case.startswith("one replaced, "):
            statements = ["matrix_frac"]  # the other one takes many seconds
        problem = stated(CASES[case], 8, 16, 0.3)
        best = fast.solve(problem)
        for backend, every, place, tol in (("CLARABEL", 1, number, 1e-5), ("SCS", 3, number // 3 + 1, 1e-3)):
            if number % every:
                continue
            formulation = statements[place % len(statements)]
            answer = reference.solve(problem, backend=backend, formulation=formulation)
            check(answer, tol)
            assert answer.solver == f"reference:{backend}:{formulation}"
            assert compare([answer, best]).outcome.name == "AGREE"

    @pytest.mark.parametrize(("factor", "t"), [(1e-6, 3), (1e-6, 20), (1e6, 3), (1e6, 20)])
    def test_units_that_make_the_soft_max_sharp_or_dull(self, factor: float, t: float) -> None:
        check(reference.solve(dm.SoftmaxFitness(dm.Workload(factor * PREFIX), 1.0, t, t)), 1e-5)

    def test_the_program_reads_like_the_paper(self) -> None:
        problem = dm.SoftmaxFitness(dm.workloads.prefix(3), [1.0, 2, 3], 5, 7, total_weight=0.5)
        known = fast.solve(problem, tol=1e-9)
        for formulation, names in (
            ("schur", ["schur", "privacy", "accuracy"]),
            ("matrix_frac", ["privacy", "accuracy"]),
        ):
            program = reference.formulate(problem, formulation)
            assert [constraint.label for constraint in program.constraints] == names
            assert program.is_dcp()
            value = float(program.solve(solver="CLARABEL"))
            assert value == pytest.approx(known.objective, rel=1e-6)
            privacy, accuracy = (constraint.dual_value for constraint in program.constraints[-2:])
            np.testing.assert_allclose(privacy, known.dual.neighbour_weights, atol=1e-3)
            np.testing.assert_allclose(accuracy, known.dual.query_weights, atol=1e-3)
