"""Query weighting: known optima, both layers against each other, lies, reading, input, files."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from intervals import contains

import dualmech as dm
from dualmech import crosscheck, fast, reference
from dualmech.reference.weighting import CONES_BY_FORMULATION
from dualmech.studies import rivals
from dualmech.validate import Array

KINDS = ("approximate", "pure")
FORMULATIONS = [(kind, name) for kind, names in CONES_BY_FORMULATION.items() for name in names]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def changed(array: Array, index: Any, value: float) -> Array:
    copy = np.array(array)
    copy[index] = value
    return copy


class TestKnownOptima:
    def test_wavelets_under_pure_privacy(self) -> None:
        """All intervals of 8 cells by the Haar wavelet: 374 with equal weights, 345.1986 with the best."""
        problem = dm.QueryWeighting(dm.workloads.all_range(8), rivals.haar_matrix(8), privacy="pure")
        equal = problem.certify(np.full(8, 1 / 4), np.ones(8))
        assert equal.objective == pytest.approx(374, rel=1e-12)
        answer = fast.solve(problem, tol=1e-10)
        assert contains(answer.certificate, 345.1986, 0.5e-4 / 345)

    def test_a_tree_of_wavelets_is_symmetric_enough_for_uniform_dual_weights(self) -> None:
        """Swapping the halves of a node changes no square of the design: y is uniform, u = (c/g)^(1/(p+1))."""
        for privacy, d in itertools.product(KINDS, (2, 4, 16, 64)):
            problem = dm.QueryWeighting(dm.workloads.all_range(d), rivals.haar_matrix(d), privacy)
            answer = fast.solve(problem, tol=1e-12)
            assert answer.iterations == 0 and answer.gap <= 1e-12, (privacy, d)

    def test_uniform_dual_weights_on_eigen_queries_prove_the_singular_value_bound(self) -> None:
        workload = dm.workloads.random_range(12, 30, rng=0)
        problem = dm.QueryWeighting(workload, dm.designs.eigen_queries(workload))
        eigenvalues = np.linalg.eigvalsh(workload.gram())
        np.testing.assert_allclose(problem.costs, eigenvalues[::-1], rtol=1e-9)
        judged = problem.certify(np.full(12, 0.01), np.ones(12))
        assert judged.lower_bound == pytest.approx(np.sqrt(eigenvalues).sum() ** 2 / 12, rel=1e-12)

    def test_the_cells_by_themselves(self) -> None:
        """Each cell has weight 1, whatever the workload: the objective is the squared norm of W."""
        for d, privacy in itertools.product((1, 2, 7), KINDS):
            workload = dm.Workload(normal(5, d))
            answer = fast.solve(dm.QueryWeighting(workload, np.eye(d), privacy), tol=1e-10)
            assert contains(answer.certificate, float((workload.matrix**2).sum()), 1e-12), (d, privacy)
            np.testing.assert_allclose(answer.primal, 1, rtol=1e-4)

    def test_two_queries_of_one_cell(self) -> None:
        """Costs 1 and 4 (pure: 1 and 8) compete for one budget: ``(1 + 2)²`` and ``(1 + 2)³``."""
        for privacy, own, optimum in (("approximate", 2, 9.0), ("pure", 8**0.5, 27.0)):
            workload = dm.Workload([[1, 0], [0, own]])
            problem = dm.QueryWeighting(workload, np.eye(2), privacy, neighbours=np.ones((2, 1)))
            answer = fast.solve(problem, tol=1e-10)
            assert contains(answer.certificate, optimum, 1e-12), privacy
            np.testing.assert_allclose(answer.primal, [1 / 3, 2 / 3], rtol=1e-4)
            np.testing.assert_allclose(answer.prices, [1 / 3, 2 / 3], rtol=1e-4)

    def test_a_total_that_no_neighbour_changes_is_free(self) -> None:
        """Where one record is replaced, n cells cost ``2 (n - 1)`` by least squares, ``2 n (1 - 1/n)``."""
        design = np.vstack([np.ones(5), np.eye(5)])
        problem = dm.QueryWeighting(dm.workloads.identity_total(5), design, neighbours=dm.neighbours.replace_one(5))
        answer = fast.solve(problem, tol=1e-9)
        assert answer.primal[0] == np.inf and list(problem.geometry.unmoved) == [0]
        assert problem.strategy_error(answer.primal) == pytest.approx(8, rel=1e-9)
        mechanism = answer.mechanism
        assert mechanism.squared_privacy_cost == pytest.approx(1, rel=1e-9)
        np.testing.assert_allclose(mechanism.variances(problem.workload), [1.6] * 5 + [0], atol=1e-12)
        with pytest.raises(dm.errors.InvalidInputError, match="finite for a strategy"):
            problem.strategy(answer.primal)


TALL = normal(8, 5)
PREFIX = dm.workloads.prefix(6).dense()
# In whole numbers, so that what depends on one another does so exactly.
SINGULAR = np.rint(9 * normal(9, 3)) @ np.rint(9 * normal(3, 7, seed=1))

CASES: dict[str, dict[str, Any]] = {
    "eigen-queries of prefixes": {"matrix": PREFIX, "design": dm.designs.eigen_queries(dm.workloads.prefix(6))},
    "wavelet": {"matrix": dm.workloads.all_range(8).matrix, "design": rivals.haar_matrix(8)},
    "tree, dependent": {"matrix": dm.workloads.prefix(8).matrix, "design": rivals.hierarchical_matrix(8)},
    "more queries than cells": {"matrix": TALL, "design": normal(9, 5, seed=2)},
    "its own design": {"matrix": TALL, "design": TALL},
    "few rows": {"matrix": SINGULAR, "design": SINGULAR[:3]},
    "few rows, dependent": {"matrix": SINGULAR, "design": SINGULAR[:5]},
    "rows that serve nothing": {"matrix": PREFIX[:, :6] * [1, 1, 1, 0, 0, 0], "design": np.eye(6)},
    "rows of zeros": {"matrix": TALL, "design": np.vstack([np.zeros(5), np.eye(5), np.zeros(5)])},
    "rows twice": {"matrix": PREFIX, "design": np.vstack([PREFIX, PREFIX[:2], -PREFIX[:1]])},
    "columns twice": {"matrix": np.hstack([TALL, TALL[:, :2]]), "design": np.hstack([TALL, TALL[:, :2]])},
    "one row": {"matrix": TALL[:1], "design": TALL[:1]},
    "one column": {"matrix": TALL[:, :1], "design": [[2.0], [-1.0]]},
    "one number": {"matrix": [[3.0]], "design": [[0.5]]},
    "sparse": {"matrix": sp.csr_array(PREFIX), "design": sp.csr_array(PREFIX)},
    "one replaced": {"matrix": PREFIX, "design": PREFIX, "neighbours": dm.neighbours.replace_one(6)},
    "one replaced, total asked": {
        "matrix": dm.workloads.identity_total(5).matrix,
        "design": np.vstack([np.ones(5), np.eye(5)]),
        "neighbours": dm.neighbours.replace_one(5),
    },
    "household": {"matrix": PREFIX, "design": PREFIX, "neighbours": dm.neighbours.household(6, 3)},
}
HARSH: dict[str, dict[str, Any]] = {
    f"{what} times {factor:g}": case
    for factor in (1e-6, 1e6)
    for what, case in {
        "row": {"matrix": TALL * changed(np.ones(8), 0, factor)[:, None], "design": normal(5, 5, seed=3)},
        "column": {"matrix": TALL * changed(np.ones(5), 0, factor), "design": np.eye(5)},
        "design query": {"matrix": TALL, "design": np.diag(changed(np.ones(5), 0, factor)) @ np.tri(5)},
        "dependent design query": {"matrix": TALL, "design": TALL * changed(np.ones(8), 0, factor)[:, None]},
        "all": {"matrix": factor * TALL, "design": TALL[:5] / factor},
    }.items()
}


def stated(case: dict[str, Any], privacy: str) -> dm.QueryWeighting:
    workload = dm.Workload(case["matrix"])
    return dm.QueryWeighting(workload, case["design"], privacy, neighbours=case.get("neighbours"))


def check(answer: dm.Solution, tol: float) -> None:
    assert answer.status is dm.Status.CERTIFIED, answer.certificate
    assert answer.certificate.feasible and answer.certificate.certifies(tol)
    assert answer.dual.neighbour_weights.sum() == pytest.approx(1)
    assert answer.prices.sum() == pytest.approx(1) and answer.prices.min() >= 0
    problem = answer.problem
    error = problem.strategy_error(answer.primal)
    assert error <= answer.objective * (1 + 1e-9)
    if problem.geometry.independent:
        assert error == pytest.approx(answer.objective, rel=1e-12)
    if problem.privacy == "approximate":
        mechanism = answer.mechanism
        assert mechanism.squared_privacy_cost == pytest.approx(1, rel=1e-6)
        assert mechanism.variances(problem.workload).sum() == pytest.approx(error, rel=1e-6)


class TestBothLayers:
    @pytest.mark.parametrize("case", CASES)
    def test_fast_to_1e_9(self, case: str) -> None:
        for privacy in KINDS:
            # Of a cost that may be the square of rounding, pure privacy knows the cube root.
            tol = 1e-8 if (case, privacy) == ("rows that serve nothing", "pure") else 1e-9
            answer = fast.solve(stated(CASES[case], privacy), tol=tol)
            check(answer, tol)
            assert answer.iterations <= 20

    @pytest.mark.parametrize("case", HARSH)
    def test_fast_badly_scaled(self, case: str) -> None:
        for privacy in KINDS:
            check(fast.solve(stated(HARSH[case], privacy), tol=1e-7), 1e-7)

    # Each case has a statement of each kind of privacy by CLARABEL; each third case, another one by SCS, which is slow.
    @pytest.mark.parametrize("number", range(len(CASES) + len(HARSH)), ids=[*CASES, *HARSH])
    def test_reference_agrees(self, number: int) -> None:
        case = [*CASES.values(), *HARSH.values()][number]
        runs = [(kind, tuple(names)[number % len(names)], "CLARABEL") for kind, names in CONES_BY_FORMULATION.items()]
        if number % 3 == 0:
            runs.append((*FORMULATIONS[number // 3 % len(FORMULATIONS)], "SCS"))
        for privacy, formulation, backend in runs:
            problem = stated(case, privacy)
            answer = reference.solve(problem, backend=backend, formulation=formulation)
            assert answer.solver == f"reference:{backend}:{formulation}"
            assert crosscheck.compare([answer, fast.solve(problem)]).outcome is crosscheck.Agreement.AGREE

    @pytest.mark.parametrize(("privacy", "formulation"), FORMULATIONS)
    def test_the_program_itself_has_the_same_optimum(self, privacy: str, formulation: str) -> None:
        problem = stated(CASES["wavelet"], privacy)
        answer, p = fast.solve(problem, tol=1e-9), problem.power
        program = reference.formulate(problem, formulation=formulation)
        assert program.solve(solver="CLARABEL") == pytest.approx(answer.objective, rel=1e-6)
        privacy_constraint = program.constraints[-1]
        assert privacy_constraint.label == "privacy"
        assert privacy_constraint.dual_value.sum() == pytest.approx(p * answer.objective, rel=1e-4)


class TestFast:
    @pytest.mark.parametrize("privacy", KINDS)
    def test_factorisations_on_ranges(self, privacy: str) -> None:
        workload = dm.workloads.random_range(64, 128, rng=0)
        problem = dm.QueryWeighting(workload, dm.designs.eigen_queries(workload), privacy)
        answer = fast.solve(problem, tol=1e-10)
        check(answer, 1e-10)
        assert answer.iterations <= 20

    def test_random_problems_of_any_shape(self) -> None:
        rng, p = np.random.default_rng(5), ("approximate", "pure")
        for count in range(80):
            queries, cells = rng.integers(1, 12), rng.integers(1, 8)
            design = rng.integers(-1, 2, (queries, cells)) * 10 ** rng.uniform(-3, 3, (queries, 1))
            workload = rng.standard_normal((rng.integers(1, 9), queries)) @ np.sign(design)
            if np.any(np.abs(workload) > 1e-9):
                clean = np.where(np.abs(workload) > 1e-9, workload, 0.0)
                check(fast.solve(dm.QueryWeighting(dm.Workload(clean), design, p[count % 2]), tol=1e-9), 1e-9)


@pytest.fixture(scope="module", params=["wavelet", "tree, dependent", "one replaced, total asked"])
def answer(request: pytest.FixtureRequest) -> dm.Solution:
    return fast.solve(stated(CASES[request.param], "approximate"), tol=1e-9)


class TestLies:
    def test_what_cannot_be_scaled_is_left_alone(self, answer: dm.Solution) -> None:
        np.testing.assert_array_equal(answer.problem.feasible(-answer.primal), -answer.primal)
        assert not len(answer.problem.binding(-answer.primal, 1e-6))


class TestReading:
    def test_prices_are_shares_of_the_objective(self) -> None:
        for privacy in KINDS:
            problem = stated(CASES["eigen-queries of prefixes"], privacy)
            answer = fast.solve(problem, tol=1e-10)
            bill = problem.costs / answer.primal**problem.power
            np.testing.assert_allclose(answer.prices, bill / bill.sum(), atol=1e-4)

    def test_the_strategy_has_sensitivity_one(self) -> None:
        for privacy, order in (("approximate", 2), ("pure", 1)):
            problem = stated(CASES["tree, dependent"], privacy)
            strategy = problem.strategy(fast.solve(problem).primal)
            assert np.linalg.norm(strategy, order, axis=0).max() == pytest.approx(1, rel=1e-12)

    def test_pure_privacy_has_no_gaussian_mechanism(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="Gaussian mechanism, got 'pure'.*Laplace"):
            _ = fast.solve(stated(CASES["wavelet"], "pure")).mechanism

    def test_binding_cells_and_dual_weights_bare_or_wrapped(self) -> None:
        problem = dm.QueryWeighting(dm.workloads.identity(3), np.eye(3))
        assert list(problem.binding([1, 0.5, 1], 1e-6)) == [0, 2] and not len(problem.loose([1, 1, 1], 0.1))
        for dual in (np.ones(3), dm.duals.WeightingDual(np.ones(3)), [1, 1, 1]):
            assert problem.certify(np.ones(3), dual).gap <= 1e-14


def test_designs_that_nearly_depend_are_known_exactly() -> None:
    """The columns of W Q⁺ grow like 1/angle, and what is known of them does not get worse."""
    for privacy, angle in itertools.product(KINDS, (1e-5, 1e-8, 1e-10, 1e-12)):
        slope = 1 + angle
        design = [[1, 1, 0, 0], [1, slope, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
        problem = dm.QueryWeighting(dm.workloads.prefix(4), design, privacy)
        judged = problem.certify(problem.feasible(np.ones(4)), np.ones(4))
        # (1, 0) is (slope · first - second) / (slope - 1), and (1, 1) is the first.
        along = Fraction(slope) / (Fraction(slope) - 1)
        costs: list[Fraction | int] = [along**2 + 3, (along / Fraction(slope)) ** 2, 2, 1]
        for cost, own in zip(costs, problem.costs, strict=True):
            assert abs(Fraction(float(own)) / Fraction(cost) - 1) < Fraction(1, 10**15), (privacy, angle)
        assert judged.resolution < 1e-12, (privacy, angle)


def test_designs_that_depend_up_to_rounding_alone_are_not_certified() -> None:
    """What the pseudoinverse is of such a design hangs on digits that rounding made."""
    design = normal(5, 3) @ normal(3, 7, seed=1)
    problem = dm.QueryWeighting(dm.Workload(design), design)
    judged = problem.certify(problem.feasible(np.ones(5)), np.ones(7))
    assert judged.resolution == np.inf and judged.interval == (0, np.inf)
