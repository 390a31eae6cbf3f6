"""Total variance: closed forms, both layers against each other, lies, options, input, files."""

import itertools
from typing import Any

import nasty
import numpy as np
import pytest
import scipy.sparse as sp
from intervals import contains
from nasty import DEFICIENT, GENTLE, PREFIX, TALL, Nasty, parts

import dualmech as dm
from dualmech import crosscheck, fast, reference
from dualmech.fast.reductions.dense import Reduction
from dualmech.reference.variance import PROGRAMS
from dualmech.validate import Array
from dualmech.watching import without_warnings

METHODS = (("newton", 1e-2), ("fixed_point", 1e-7))


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def changed(array: Array, index: Any, value: float) -> Array:
    copy = np.array(array)
    copy[index] = value
    return copy


class TestKnownOptima:
    @pytest.mark.parametrize(
        ("d", "optimum", "digits"), [(8, 17.866177332774, 12), (16, 45.665356811985, 12), (32, 114.559702825, 9)]
    )
    def test_prefixes(self, d: int, optimum: float, digits: int) -> None:
        """Values that ball arithmetic encloses, half a unit in the last digit allowed."""
        answer = fast.solve(dm.TotalVariance(dm.workloads.prefix(d)), tol=1e-9)
        assert answer.status is dm.Status.CERTIFIED
        assert contains(answer.certificate, optimum, 0.5 * 10.0**-digits / optimum)

    def test_two_prefixes_cost_the_square_of_the_golden_ratio(self) -> None:
        """With X = [[1, x], [x, 1]] the total is ``(3 - 2x) / (1 - x²)``, least at ``x = (3 - √5) / 2``."""
        x, golden = (3 - 5**0.5) / 2, (1 + 5**0.5) / 2
        problem = dm.TotalVariance(dm.workloads.prefix(2))
        shares = np.array([golden**2, 1]) / (1 + golden**2)
        judged = problem.certify(np.linalg.inv([[1, x], [x, 1]]), shares)
        assert judged.gap <= 1e-14 and judged.objective == pytest.approx(golden**2, rel=1e-14)

    @pytest.mark.parametrize(("weight", "cost"), [(0.01, 4.0), (1.0, 1.0), (30.0, 4.0)])
    def test_identity_and_total(self, weight: float, cost: float) -> None:
        """Theorem 6 of Xiao et al. and its weighted form, at squared cost β²: ``Σ = aI + b11'``."""
        for d in (2, 3, 5, 64):
            root = np.sqrt(1 + weight * d)
            a = (d - 1 + root) / (d * cost)
            b = (a / root - a) / d
            problem = dm.TotalVariance(dm.workloads.identity_total(d), np.append(np.ones(d), weight))
            covariance = a * np.eye(d) + b
            judged = problem.certify(cost * covariance, np.ones(d))
            assert judged.feasible and judged.gap <= 1e-11, d
            assert judged.objective / cost == pytest.approx(a * (d - 1 + root), rel=1e-11), d
            mechanism = problem.mechanism(cost * covariance, cost)
            assert mechanism.squared_privacy_cost == pytest.approx(cost, rel=1e-10), d
            assert contains(fast.solve(problem, tol=1e-7).certificate, judged.objective, 1e-12), d

    @pytest.mark.parametrize("d", [2, 3, 8])
    def test_the_identity_where_one_record_is_replaced(self, d: int) -> None:
        """The total is exact, and ``Σ = 2 (I - 11'/d)``: every difference of two cells costs 1."""
        problem = dm.TotalVariance(dm.workloads.identity(d), neighbours=dm.neighbours.replace_one(d))
        answer = fast.solve(problem, tol=1e-10)
        assert contains(answer.certificate, 2 * (d - 1), 1e-12)
        np.testing.assert_allclose(answer.primal, 2 * (np.eye(d) - 1 / d), atol=1e-9)

    def test_a_diagonal_adds_its_squares(self) -> None:
        entries = np.array([0.5, 1, 2, 10])
        answer = fast.solve(dm.TotalVariance(dm.Workload(np.diag(entries))), tol=1e-9)
        assert contains(answer.certificate, float(entries @ entries))
        np.testing.assert_allclose(answer.dual.neighbour_weights, entries**2 / (entries @ entries), rtol=1e-4)

    def test_one_row_costs_its_largest_entry_squared_and_one_column_its_length_squared(self) -> None:
        row, column = dm.Workload([[1.0, -3, 2]]), dm.Workload([[1.0], [-2], [2]])
        for problem, optimum in ((dm.TotalVariance(row, weights=2.0), 18.0), (dm.TotalVariance(column), 9.0)):
            assert contains(fast.solve(problem, tol=1e-9).certificate, optimum, 1e-12)

    def test_a_product_of_workloads_costs_the_product(self) -> None:
        factors = [dm.workloads.prefix(4), dm.workloads.all_range(3)]
        one, two = (fast.solve(dm.TotalVariance(workload), tol=1e-10) for workload in factors)
        product = dm.TotalVariance(dm.Workload(np.kron(*(workload.dense() for workload in factors))))
        judged = product.certify(
            np.kron(one.primal, two.primal), np.kron(one.dual.neighbour_weights, two.dual.neighbour_weights)
        )
        assert judged.gap <= 1e-9 and judged.objective == pytest.approx(one.objective * two.objective)

    def test_symmetric_workloads_need_one_decomposition(self) -> None:
        """No cell differs from another, so the singular value bound is the optimum."""
        for workload in (dm.workloads.marginals((4, 4, 4), ways=(1, 2)), dm.workloads.pl94()):
            answer = fast.solve(dm.TotalVariance(workload), tol=1e-9)
            assert answer.status is dm.Status.CERTIFIED and answer.iterations == 1
            values = np.linalg.svd(workload.dense(), compute_uv=False)
            assert answer.lower_bound == pytest.approx(values.sum() ** 2 / workload.shape[1], rel=1e-11)


CASES: dict[str, Nasty] = GENTLE | {
    "rank-deficient, sparse": (sp.csr_array(DEFICIENT),),
    "unequal weights": (TALL, np.linspace(0.2, 9, 8)),
    "weights with zeros": (TALL, [1, 0, 2, 0, 0, 1, 1, 3]),
    "few weights, less rank": (TALL, [1, 0, 2, 0, 0, 0, 0, 3]),
    "one replaced, weights with zeros": (PREFIX, [0, 1, 0, 2, 0, 1], None, dm.neighbours.replace_one(6)),
}
TOO_HARSH = ("Hilbert matrix, itself as basis", "few neighbours, basis in many units")
HARSH: dict[str, Nasty] = {name: case for name, case in nasty.HARSH.items() if name not in TOO_HARSH} | {
    f"rank-deficient, weight times {factor:g}": (DEFICIENT, changed(np.ones(9), 0, factor)) for factor in (1e-6, 1e6)
}


def stated(case: Nasty) -> dm.TotalVariance:
    matrix, weights, basis, moves = parts(case)
    return dm.TotalVariance(dm.Workload(matrix), weights, basis=basis, neighbours=moves)


def check(answer: dm.Solution, tol: float) -> None:
    assert answer.status is dm.Status.CERTIFIED, answer.certificate
    assert answer.certificate.feasible and answer.certificate.certifies(tol)
    assert answer.dual.neighbour_weights.sum() == pytest.approx(1) and answer.dual.neighbour_weights.min() >= 0
    assert answer.prices.sum() == pytest.approx(1) and answer.prices.min() >= 0
    mechanism = answer.mechanism
    assert mechanism.squared_privacy_cost == pytest.approx(1, abs=1e-6)
    problem = answer.problem
    bill = problem.weights[problem.asked] @ mechanism.variances(problem.workload.select(problem.asked))
    assert bill == pytest.approx(answer.objective, rel=1e-6)


class TestBothLayers:
    @pytest.mark.parametrize("case", CASES)
    def test_fast_to_1e_9(self, case: str) -> None:
        """Answers of one method never beat bounds of another."""
        problem = stated(CASES[case])
        answers = [fast.solve(problem, tol=1e-9, method=method) for method in ("auto", "newton")]
        for answer in answers:
            check(answer, 1e-9)
        with without_warnings():
            answers += [fast.solve(problem, tol=tol, method=name) for name, tol in METHODS]
        for one, two in itertools.permutations(answers, 2):
            assert problem.certify(one.primal, two.dual).feasible  # CertificateError if one did

    @pytest.mark.parametrize("case", HARSH)
    def test_fast_badly_scaled_to_1e_6(self, case: str) -> None:
        for method in ("auto", "newton"):
            check(fast.solve(stated(HARSH[case]), method=method), 1e-6)

    # Each case has one program by CLARABEL; each third case, another one by SCS, which is slow.
    @pytest.mark.parametrize("number", range(len(CASES) + len(HARSH)), ids=[*CASES, *HARSH])
    def test_reference_agrees(self, number: int) -> None:
        problem = stated([*CASES.values(), *HARSH.values()][number])
        best = fast.solve(problem)
        for backend, every, place in (("CLARABEL", 1, number), ("SCS", 3, number // 3)):
            if number % every:
                continue
            formulation = list(PROGRAMS)[place % len(PROGRAMS)]
            answer = reference.solve(problem, backend=backend, formulation=formulation)
            assert answer.solver == f"reference:{backend}:{formulation}"
            assert answer.dual.neighbour_weights.sum() == pytest.approx(1)
            assert crosscheck.compare([answer, best]).outcome is crosscheck.Agreement.AGREE

    @pytest.mark.parametrize("case", list(CASES)[::6])
    def test_the_central_path_ends_within_the_tolerance(self, case: str) -> None:
        problem = stated(CASES[case])
        answer = reference.solve(problem, formulation="logdet")
        assert answer.certificate.certifies(1e-5) and "(s + k)/t" in answer.message
        assert crosscheck.compare([answer, fast.solve(problem)]).outcome is crosscheck.Agreement.AGREE

    @pytest.mark.parametrize(("case", "sharpness"), [("tall", 1.0), ("rank-deficient", 30.0), ("one replaced", 1000.0)])
    def test_a_centre_has_weights_and_the_gap_that_are_proven(self, case: str, sharpness: float) -> None:
        """The multipliers are ``1 / (t p_i)``, and the bound that they prove is at most ``(s + k)/t`` below."""
        problem = stated(CASES[case])
        program = reference.formulate(problem, "logdet")
        program.param_dict["1/t"].value = 1 / sharpness
        program.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
        values: Any = {name: variable.value for name, variable in program.var_dict.items()}
        slacks = values["p"]
        (*_, privacy) = program.constraints
        np.testing.assert_allclose(privacy.dual_value * slacks, 1 / sharpness, rtol=1e-2)
        total = float(np.trace(values["Y"]))
        bound = problem.certify(fast.solve(problem).primal, problem.as_dual(privacy.dual_value)).lower_bound
        assert bound <= total * (1 + 1e-6)
        assert total - bound <= (len(slacks) + len(values["X"])) / sharpness * (1 + 1e-3) + 1e-5 * total

    @pytest.mark.parametrize("case", ["tall", "rank-deficient", "one replaced"])
    def test_the_program_itself_has_the_same_optimum(self, case: str) -> None:
        problem = stated(CASES[case])
        optimum = fast.solve(problem, tol=1e-8).objective
        for formulation in PROGRAMS:
            program = reference.formulate(problem, formulation=formulation)
            assert [constraint.label for constraint in program.constraints][-1] == "privacy"
            assert program.solve(solver="CLARABEL") == pytest.approx(optimum, rel=1e-6)
            (*_, privacy) = program.constraints
            assert privacy.dual_value.sum() == pytest.approx(optimum, rel=1e-3)

    def test_size_of_the_gram_statement_ignores_the_number_of_queries(self) -> None:
        program = reference.formulate(dm.TotalVariance(dm.workloads.all_range(6)))
        assert {name: variable.shape for name, variable in program.var_dict.items()} == {"X": (6, 6), "Y": (6, 6)}


class TestFast:
    @pytest.mark.parametrize(
        ("workload", "tol", "most"),
        [
            (dm.workloads.prefix(64), 1e-9, 30),
            (dm.workloads.random_range(64, 128, rng=0), 1e-6, 30),
            (dm.workloads.random_range(128, 30, rng=0), 1e-6, 60),
        ],
        ids=["prefixes", "more ranges than cells", "fewer ranges than cells"],
    )
    def test_decompositions(self, workload: dm.Workload, tol: float, most: int) -> None:
        answer = fast.solve(dm.TotalVariance(workload), tol=tol)
        check(answer, tol)
        assert answer.iterations <= most

    def test_solver_and_judge_agree_on_both_sides_of_any_weights(self) -> None:
        for case in CASES.values():
            problem = stated(case)
            reduction = Reduction.of(problem.geometry, problem.row_targets, fixed=True)
            weights = np.random.default_rng(0).uniform(0.1, 1, len(reduction.neighbours))
            spectrum = reduction.program.at(weights)
            primal = problem.feasible(reduction.covariance(spectrum.covariance()))
            judged = problem.certify(primal, reduction.spread(weights)[0])
            assert judged.lower_bound == pytest.approx(spectrum.lower_bound, rel=1e-9)
            assert judged.objective == pytest.approx(spectrum.objective, rel=1e-9)


class TestQueriesOfWeightZero:
    workload = dm.Workload([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]], names=["a", "b", "a or b", "c"])
    problem = dm.TotalVariance(workload, weights=[1, 1, 0, 0])

    def test_the_mechanism_answers_what_it_can_and_refuses_the_rest_by_name(self) -> None:
        answer = fast.solve(self.problem)
        np.testing.assert_allclose(answer.mechanism.variances(self.workload.select([0, 1, 2])), [1, 1, 2], rtol=1e-6)
        with pytest.raises(dm.errors.InvalidInputError, match="'c' lies outside"):
            answer.mechanism.variances(self.workload)
        np.testing.assert_allclose(answer.prices, [0.5, 0.5, 0, 0], atol=1e-6)

    def test_a_basis_spans_the_others_alone(self) -> None:
        assert self.problem.geometry.rank == 2
        with pytest.raises(dm.errors.InvalidInputError, match="basis"):
            dm.TotalVariance(self.workload, weights=[1, 1, 0, 0], basis=np.eye(3))


class TestReading:
    def test_prices_are_shares_of_the_bill(self) -> None:
        workload, weights = dm.workloads.random_range(8, 15, rng=1), np.linspace(1, 4, 15)
        answer = fast.solve(dm.TotalVariance(workload, weights), tol=1e-10)
        bill = weights * answer.mechanism.variances(workload)
        np.testing.assert_allclose(answer.prices, bill / bill.sum(), atol=1e-5)

    def test_binding_neighbours(self) -> None:
        problem = dm.TotalVariance(dm.Workload(np.diag([1.0, 2.0, 3.0])))
        assert list(fast.solve(problem).binding) == [0, 1, 2]
        assert list(problem.binding(np.diag([2.0, 1.0, 1.0]), 1e-6)) == [1, 2]
        assert not len(problem.binding(-np.eye(3), 1e-6))

    def test_outsiders_strategies_are_judged(self) -> None:
        problem = dm.TotalVariance(dm.workloads.prefix(4))
        verdict = crosscheck.judge(problem, crosscheck.covariance_of_strategy(problem, np.eye(4)))
        assert verdict.feasible and verdict.objective == pytest.approx(10) and not len(verdict.loose)
        assert list(verdict.binding) == [0, 1, 2, 3]
        assert contains(fast.solve(problem).certificate, verdict.lower_bound, 1e-9)
