"""Local privacy in the reference layer: exact optima, both sides of them, the relaxation, reading, input."""

import itertools
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from intervals import contains, meet

import dualmech as dm
from dualmech import fast, reference
from dualmech.geometry import local as local_geometry
from dualmech.geometry.local import Relaxation
from dualmech.reference import local
from dualmech.studies import rivals
from dualmech.validate import Array

CASES = [(criterion, name) for criterion, names in local.CONES_BY_FORMULATION.items() for name in names]
CUBE = dm.Domain({"a": 2, "b": 2, "c": 2})


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def parity(size: int) -> Array:
    """The characters of three binary attributes of at most this order, the empty one left out."""
    sets = [s for order in range(1, size + 1) for s in itertools.combinations(range(3), order)]
    cells = np.array(list(itertools.product((0, 1), repeat=3)))
    return np.array([(-1.0) ** cells[:, list(s)].sum(axis=1) for s in sets])


class TestKnownOptima:
    def test_subset_selection_is_the_best_for_histograms(self) -> None:
        for size, epsilon in itertools.product((2, 3, 5, 8), (0.5, 4.0)):
            known = rivals.subset_selection(size, epsilon).objective(dm.workloads.identity(size))
            answer = reference.solve(dm.LocalStrategy(dm.workloads.identity(size), epsilon), tol=1e-6)
            assert answer.status is dm.Status.CERTIFIED and contains(answer.certificate, known, 1e-9), (size, epsilon)

    def test_the_worst_case_of_four_prefixes_and_where_user_types_are_alike(self) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(4), 1.0, "worst")
        for name in local.CONES_BY_FORMULATION["worst"]:
            answer = reference.solve(problem, formulation=name)
            assert answer.status is dm.Status.CERTIFIED and contains(answer.certificate, 6.0759361, 1e-8)
        alike = reference.solve(dm.LocalStrategy(dm.workloads.identity(5), 1.0, "worst"))
        mean = rivals.subset_selection(5, 1.0).objective(dm.workloads.identity(5))
        assert contains(alike.certificate, (mean - 5) / 5, 1e-9)
        two = reference.solve(dm.LocalStrategy(dm.workloads.identity(2), np.log(3)))  # by randomised response
        assert contains(two.certificate, 5.0, 1e-12)


class TestStatements:
    @pytest.mark.parametrize(("criterion", "name"), CASES)
    def test_all_agree(self, criterion: str, name: str) -> None:
        for epsilon in (0.05, 10.0):
            problem = dm.LocalStrategy(dm.Workload(normal(7, 5)), epsilon, criterion)
            first, other = reference.solve(problem), reference.solve(problem, formulation=name)
            assert other.status is dm.Status.CERTIFIED and other.certificate.feasible
            assert meet(first, other)
        problem = dm.LocalStrategy(dm.workloads.prefix(3), 1.0, criterion)
        program = reference.formulate(problem, formulation=name)
        program.solve(solver="CLARABEL")
        assert float(program.value) == pytest.approx(reference.solve(problem).objective, rel=1e-5)

    def test_with_a_prior(self) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(4), 1.0, prior=[0.4, 0.3, 0.3, 0.0])
        uniform = reference.solve(dm.LocalStrategy(dm.workloads.prefix(4), 1.0))
        for name in local.CONES_BY_FORMULATION["average"]:
            answer = reference.solve(problem, formulation=name)
            assert answer.status is dm.Status.CERTIFIED and contains(answer.certificate, 30.0, 1)
            assert problem.certify(uniform.primal, answer.dual).objective >= answer.lower_bound

    @pytest.mark.parametrize(
        "matrix",
        [
            [[1.0, 1, 1]],
            [[1.0, 0, 0]],
            [[1.0, 2, 3], [0, 0, 0], [1, 2, 3]],
            1e6 * np.eye(3),
            1e-6 * np.eye(3),
            normal(12, 3),
            normal(2, 3) + 1e4,
        ],
        ids=["constant", "one cell", "repeated", "large", "small", "tall", "far from centred"],
    )
    def test_any_workload(self, matrix: Any) -> None:
        for criterion in ("average", "worst"):
            answer = reference.solve(dm.LocalStrategy(dm.Workload(matrix), 1.0, criterion))
            assert answer.status is dm.Status.CERTIFIED and answer.certificate.feasible

    def test_the_other_backend_and_a_mechanism_that_can_be_run(self) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(4), 1.0)
        first, second = reference.solve(problem), reference.solve(problem, backend="SCS")
        assert second.status is dm.Status.CERTIFIED and meet(first, second)
        mechanism: Any = first.mechanism
        assert mechanism.worst_ratio <= np.exp(1.0) * (1 + 1e-9)
        assert mechanism.objective == pytest.approx(first.objective, rel=1e-9)


class TestBothLayers:
    @pytest.mark.parametrize(("epsilon", "criterion"), [(0.5, "average"), (4.0, "average"), (4.0, "worst")])
    def test_their_intervals_meet(self, epsilon: float, criterion: str) -> None:
        workloads: list[dm.Workload] = [dm.workloads.prefix(7), dm.Workload(normal(9, 6)), dm.Workload(parity(2))]
        if criterion == "average":
            workloads += [build(size) for build in (dm.workloads.prefix, dm.workloads.all_range) for size in (3, 6)]
            workloads += [dm.workloads.marginals(CUBE, ways=2), dm.Workload(parity(3))]
        for workload in workloads:
            problem = dm.LocalStrategy(workload, epsilon, criterion)
            stated = reference.solve(problem, tol=1e-6 if criterion == "average" else None)  # the layer's own is looser
            quick = fast.solve(problem)
            assert stated.status is quick.status is dm.Status.CERTIFIED and meet(stated, quick)


class TestHonesty:
    def test_false_weights_and_multipliers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(4), 1.0)
        best, honest = reference.solve(problem), cp.Problem.solve

        def solve(program: cp.Problem, *arguments: Any, **options: Any) -> Any:
            result = honest(program, *arguments, **options)
            weights = np.asarray(program.var_dict["w"].value)
            program.var_dict["w"].save_value(weights[::-1] ** 2)
            for constraint in program.constraints:
                constraint.save_dual_value(3 * constraint.dual_value + 0.1)
            return result

        monkeypatch.setattr(cp.Problem, "solve", solve)
        with pytest.warns(dm.errors.UncertifiedWarning):
            answer = reference.solve(problem)
        assert answer.certificate.feasible and meet(answer, best)


class TestRelaxation:
    def test_its_form_is_the_sum_of_what_it_multiplies(self) -> None:
        for size in (2, 3, 6):
            rng = np.random.default_rng(size)
            parts = {name: rng.random((size, size)) for name in ("both", "one", "neither")}
            sizes, products = rng.random(max(size - 2, 0)), rng.random((4, size))
            form = Relaxation.of(size, normal(size), sizes=sizes, products=products, **parts).matrix()
            for s in local_geometry.all_sets(size).astype(float):
                o, k = 1 - s, s.sum()
                expected = s @ parts["both"] @ s + s @ parts["one"] @ o + o @ parts["neither"] @ o
                expected += sum(sizes[j - 1] * (k - j) * (k - j - 1) for j in range(1, size - 1))
                expected += (k - 1) * (products[0] @ s + products[2] @ o)
                expected += (size - 1 - k) * (products[1] @ s + products[3] @ o)
                lifted = np.append(1.0, s)
                assert lifted @ form @ lifted == pytest.approx(expected, rel=1e-12, abs=1e-12)
                assert expected >= 0

    def test_its_excess_is_none_too_small(self) -> None:
        size = 7
        sets, counts = local_geometry.all_sets(size), np.arange(size + 1.0) + 1
        for seed in range(8):
            epsilon, rng = [0.1, 1.0, 4.0][seed % 3], np.random.default_rng(seed)
            both, sizes = rng.random((size, size)), rng.random(size - 2)
            multipliers = Relaxation.of(size, 3 * normal(size, seed=seed), both=both, sizes=sizes)
            form = normal(size, size, seed=seed)
            form = form + form.T
            vectors = 1 + local_geometry.gain(epsilon) * sets
            true = np.einsum("su,uv,sv->s", vectors, form, vectors) / counts[sets.sum(axis=1)]
            assert true.max() <= multipliers.excess(form, epsilon, counts), seed

    @pytest.mark.parametrize("criterion", ["average", "worst"])
    def test_it_bounds_the_optimum_closely(self, criterion: str) -> None:
        for size, epsilon in ((2, 1.0), (3, 0.05), (3, 20.0), (6, 1.0), (6, 8.0)):
            problem = dm.LocalStrategy(dm.workloads.prefix(size), epsilon, criterion)
            best = reference.solve(problem, tol=1e-4)
            dual = reference.lower_bound(problem)
            judged = problem.certify(best.primal, dual)
            assert dual.relaxation is not None
            assert 0 <= judged.gap <= (0.03 if criterion == "average" else 0.15), (size, epsilon)

    @pytest.mark.parametrize(("size", "share"), [(10, 0.9935), (12, 0.0)])
    def test_prefixes_where_enumeration_agrees(self, size: int, share: float) -> None:
        """Exact pricing of the same Z and y proves at least as much, and hardly more; the closed form, less."""
        problem = dm.LocalStrategy(dm.workloads.prefix(size), 1.0)
        dual = reference.lower_bound(problem)
        anything = np.full((1, size), 1.0)
        relaxed = problem.certify(anything, dual).lower_bound
        exact = problem.certify(anything, dm.duals.LocalDual(dual.matrix, dual.costs)).lower_bound
        assert exact * (1 - 1e-4) <= relaxed <= exact * (1 + 1e-12)
        assert relaxed > 1.02 * local_geometry.trace_bound(problem.root, 1.0)
        assert not share or share <= relaxed / 397.95116 <= 1

    def test_a_prior_for_the_worst_case(self) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(5), 1.0, "worst")
        best = reference.solve(problem)
        prior = best.primal.prior
        dual = reference.lower_bound(problem, prior=prior)
        assert dual.prior is not None
        np.testing.assert_allclose(dual.prior, prior)
        assert problem.certify(best.primal, dual).lower_bound <= best.objective

    def test_multipliers_that_are_too_good_prove_less(self) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(6), 1.0)
        best, dual = reference.solve(problem), reference.lower_bound(problem)
        honest = problem.certify(best.primal, dual).lower_bound
        for factor in (0.0, 0.5, 2.0):
            relaxation = dual.relaxation
            assert relaxation is not None
            lying = replace(relaxation, one=factor * relaxation.one, sizes=factor * relaxation.sizes)
            changed = dm.duals.LocalDual(dual.matrix, dual.costs, dual.prior, lying)
            assert problem.certify(best.primal, changed).lower_bound <= honest * (1 + 1e-6)


class TestReconstruction:
    @pytest.mark.parametrize("prior", [None, [0.5, 0.25, 0.15, 0.1]])
    def test_the_closed_form_is_the_best(self, prior: list[float] | None) -> None:
        workload = dm.workloads.prefix(4)
        answer = reference.solve(dm.LocalStrategy(workload, 1.0), tol=1e-4)
        strategy = answer.primal.strategy
        found = reference.reconstruct(workload, strategy, prior=prior)
        chosen = np.full(4, 0.25) if prior is None else np.array(prior)
        closed = local_geometry.best_reconstruction(workload.dense(), strategy, chosen)
        assert closed is not None
        np.testing.assert_allclose(found, closed, atol=1e-4 * np.abs(closed).max())
        variances = [float((strategy @ chosen) @ np.square(V).sum(axis=0)) for V in (found, closed)]
        assert variances[0] == pytest.approx(variances[1], rel=1e-7)

    def test_what_is_no_strategy_or_no_workload(self) -> None:
        identity = dm.workloads.identity(2)
        for strategy, named in (
            ([[1.0, 1.0, 1.0]], "2 columns"),
            ([[-1.0, 1.0]], "no negative entry"),
            ([[np.nan, 1.0]], "finite"),
        ):
            with pytest.raises(dm.errors.InvalidInputError, match=named):
                reference.reconstruct(identity, strategy)
        with pytest.raises(dm.errors.BackendError, match="no reconstruction"):
            reference.reconstruct(identity, [[0.5, 0.5], [0.5, 0.5]])
        with pytest.raises(dm.errors.InputTypeError, match="workload"):
            reference.reconstruct(np.eye(2), np.eye(2))  # type: ignore[arg-type]


class TestInput:
    def test_more_user_types_than_are_listed_or_relaxed(self) -> None:
        for function in (reference.solve, reference.formulate):
            with pytest.raises(dm.errors.InvalidInputError, match="at most 10 user types.*got 11"):
                function(dm.LocalStrategy(dm.workloads.prefix(11), 1.0))
        with pytest.raises(dm.errors.InvalidInputError, match="at most 32 user types, got 33"):
            reference.lower_bound(dm.LocalStrategy(dm.workloads.prefix(33), 1.0))

    def test_a_statement_that_is_none(self) -> None:
        statements: tuple[tuple[str, Any], ...] = (("worst", "sdp"), ("average", "qp"), ("average", 3))
        for criterion, name in statements:
            with pytest.raises(dm.errors.InvalidInputError, match="formulation must be one of .*dual"):
                reference.solve(dm.LocalStrategy(dm.workloads.prefix(3), 1.0, criterion), formulation=name)

    def test_what_is_refused_of_a_bound(self) -> None:
        problem = dm.LocalStrategy(dm.workloads.prefix(3), 1.0)
        with pytest.raises(dm.errors.InvalidInputError, match="prior is for the worst case"):
            reference.lower_bound(problem, prior=np.ones(3) / 3)
        with pytest.raises(dm.errors.InputTypeError, match="problem must be a LocalStrategy"):
            reference.lower_bound(dm.workloads.prefix(3))  # type: ignore[arg-type]
        with pytest.raises(dm.errors.BackendError, match="does not support the cones"):
            reference.lower_bound(problem, backend="SCIPY")
