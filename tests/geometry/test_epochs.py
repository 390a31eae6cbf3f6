"""Several epochs: persons with parts that are vectors or signs, judged, solved, compared with every sign pattern."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import crosscheck, fast, linalg, reference
from dualmech.geometry.apart import roots_of
from dualmech.geometry.epochs import Epochs, largest_costs, phase_costs
from dualmech.validate import Array

Sizes = tuple[int, int, int]
SIZES = st.tuples(st.integers(2, 5), st.integers(1, 4), st.integers(0, 3))
"""Times, separation, and steps that the last epoch lacks."""


def rule_of(sizes: Sizes) -> tuple[int, str]:
    times, separation, lacking = sizes
    return times * separation - min(lacking, separation - 1), f"participation:{times}:{separation}"


def random_covariance(n: int, seed: int) -> Array:
    root = np.random.default_rng(seed).standard_normal((n, 2 * n))
    return np.asarray(root @ root.T)


def correlations(rng: np.random.Generator, times: int, rank: int) -> Array:
    vectors = rng.standard_normal((times, rank))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors @ vectors.T)


class TestRule:
    def test_it_is_a_relation_with_its_text(self) -> None:
        rule = dm.neighbours.participation(62, times=4, separation=16)
        assert dm.neighbours.Relation.of(str(rule)) == rule == dm.neighbours.Participation(4, 16)
        signs = dm.neighbours.participation(62, 4, 16, of="signs")
        assert dm.neighbours.Relation.of(str(signs)) == signs != rule
        assert rule.contains(signs) and not signs.contains(rule) and rule.contains(dm.neighbours.Relation())
        assert rule.contains(dm.neighbours.Participation(3, 16)) and not rule.contains(
            dm.neighbours.Participation(4, 15)
        )
        assert dm.neighbours.Relation(members=4).contains(rule)
        # Once is one record exactly.
        assert dm.neighbours.participation(8, times=1, separation=4) == dm.neighbours.Relation()
        assert dm.neighbours.Relation.of("participation:1:4") == dm.neighbours.Relation()

    @given(SIZES)
    def test_every_step_is_in_one_phase(self, sizes: Sizes) -> None:
        n, rule = rule_of(sizes)
        phases = dm.neighbours.Participation(*sizes[:2]).phases(n)
        assert sorted(phases[phases >= 0].tolist()) == list(range(n))
        assert np.all(np.diff(phases, axis=1)[phases[:, 1:] >= 0] == sizes[1])
        assert np.all(np.count_nonzero(phases >= 0, axis=1) >= sizes[0] - 1)

    def test_bad_numbers_are_refused_by_name(self) -> None:
        for arguments, words in (
            ((64, 5, 16), "must fit n = 64 steps: 16 apart are at most 4"),
            ((64, 4, 22), "must fit n = 64 steps: 22 apart are at most 3"),
            ((64, 4, 15), "must cover all n = 64 steps, they cover 60"),
            ((2**31, 2, 2**30), "too many"),
            ((2**31, 2, 2**30, "vectors", True), "too many"),
            ((64, 65, 1), "must fit n = 64 steps"),
            ((0, 2, 1), "n must be"),
            ((4, 0, 1), "times must be"),
            ((4, 2, 0), "separation must be"),
            ((4, 2, 2, "numbers"), "of must be one of"),
        ):
            with pytest.raises(dm.errors.InvalidInputError, match=words):
                dm.neighbours.participation(*arguments)

    def test_other_geometries_problems_and_mechanisms_refuse_vectors_by_name(self) -> None:
        sums, rule = dm.workloads.prefix(4), "participation:2:2"
        for geometry in ("dense", "blocks", "stream"):
            with pytest.raises(dm.errors.InvalidInputError, match="geometry 'epochs' holds it"):
                dm.TotalVariance(sums, neighbours=rule, geometry=geometry)
        for state in (
            lambda: dm.SoftmaxFitness(sums, 1.0, t1=5.0, t2=5.0, neighbours=rule),
            lambda: dm.LinearGaussianMechanism(np.eye(4), np.eye(4), rule),
            lambda: dm.QueryWeighting(sums, np.eye(4), neighbours=rule),
        ):
            with pytest.raises(dm.errors.DualmechError, match="neighbours"):
                state()
        for text in ("participation:4", "participation:0:64", "particpation:4:16"):
            with pytest.raises(dm.errors.InvalidInputError, match="participation:TIMES:SEPARATION") as refusal:
                dm.TotalVariance(dm.workloads.prefix(64), neighbours=text)
            assert ("did you mean" in str(refusal.value)) == text.startswith("particp"), text


class TestCosts:
    @given(st.integers(2, 10), st.integers(0, 10**6))
    def test_no_sign_costs_more_and_signs_one_by_one_are_exact(self, times: int, seed: int) -> None:
        block = random_covariance(times, seed) - (times if seed % 2 else 0) * np.eye(times)
        block += max(0.0, -np.linalg.eigvalsh(block)[0]) * np.eye(times)
        signs = np.array([*itertools.product((1.0, -1.0), repeat=times)])
        largest = np.einsum("zi,ij,zj->z", signs, block, signs).max()
        nothing = np.zeros((1, times, times))
        found = {parts: float(largest_costs(block[None], nothing, parts)[0]) for parts in ("signs", "vectors")}
        assert largest <= found["signs"] <= largest * (1 + 1e-8) + 1e-12
        assert found["signs"] <= found["vectors"] * (1 + 1e-8) <= np.pi / 2 * largest * (1 + 1e-6)

    @given(st.integers(2, 8), st.integers(1, 4), st.integers(0, 10**6))
    def test_vectors_cost_what_some_correlation_matrix_does(self, times: int, rank: int, seed: int) -> None:
        """For ``C = diag(d) - V`` with V semidefinite and ``V R = 0``, ``1'd`` is what R costs, and no other more."""
        rng = np.random.default_rng(seed)
        correlation = correlations(rng, times, min(rank, times))
        kernel = linalg.row_space(correlation)
        away = np.eye(times) - kernel.T @ kernel
        slack = away @ random_covariance(times, seed + 1) @ away
        diagonal = np.linalg.eigvalsh(slack)[-1] + rng.uniform(0.5, 1.5, times)
        block = np.diag(diagonal) - slack
        cost = largest_costs(block[None], np.zeros((1, times, times)), "vectors")[0]
        # The sweeps end at most 1e-4 above it, as measured; most of them 1e-6.
        assert np.sum(block * correlation) * (1 - 1e-12) <= cost <= diagonal.sum() * (1 + 3e-4)

    @given(SIZES, st.integers(0, 10**6))
    def test_mechanisms_tell_no_less(self, sizes: Sizes, seed: int) -> None:
        n, rule = rule_of(sizes)
        noise = dm.LinearGaussianMechanism(np.eye(n), random_covariance(n, seed))
        signs = noise.cost_matrix, dm.neighbours.sign_patterns(n, *sizes[:2]).toarray()
        largest = np.einsum("is,ij,js->s", signs[1], signs[0], signs[1]).max()
        for parts in ("", ":signs"):
            told = dm.EpochsMechanism(noise, rule + parts).squared_privacy_cost
            assert largest <= told * (1 + 1e-9) and told <= np.pi / 2 * largest * (1 + 1e-6)
        assert dm.EpochsMechanism(noise, rule + ":signs").squared_privacy_cost <= largest * (1 + 1e-6)
        assert noise.participation_cost(*sizes[:2]).squared_cost >= told * (1 - 1e-9)

    def test_rounding_is_in_the_cost_and_no_covariance_costs_infinity(self) -> None:
        """Nearly dependent noise: the cost is never below that in fractions."""
        for apart in (1e-3, 1e-9, 3e-13):
            covariance = np.array([[1.0, 1 - apart], [1 - apart, 1.0]])
            costs = phase_costs(covariance, np.eye(2), np.array([[0, 1]]), dm.neighbours.Participation(2, 1))
            assert costs is not None and Fraction(costs[1][0]) >= 2 / (1 - Fraction(covariance[0, 1]))
        problem = dm.TotalVariance(dm.workloads.prefix(4), neighbours="participation:2:2")
        for covariance in (-np.eye(4), np.full((4, 4), np.nan), np.triu(np.ones((4, 4)))):
            assert not np.isfinite(problem.certify(covariance, np.tile(np.eye(2), (2, 1, 1))).objective)


class TestBounds:
    @given(SIZES, st.integers(0, 10**6), st.booleans())
    def test_any_weights_prove_no_more_than_any_noise_costs(self, sizes: Sizes, seed: int, signs: bool) -> None:
        n, rule = rule_of(sizes)
        rng, workload = np.random.default_rng(seed), dm.workloads.prefix(n)
        problems = [
            kind(workload, neighbours=rule + ":signs" * signs, geometry="epochs")
            for kind in (dm.TotalVariance, dm.FitnessForUse)
        ]
        shape = problems[0].geometry.phases.shape
        weights = rng.standard_normal((*shape, shape[1]))
        noise = random_covariance(n, seed)
        for problem in problems:
            dual: Any = weights if isinstance(problem, dm.TotalVariance) else (weights, rng.uniform(0, 1, n))
            found = problem.certify(problem.feasible(noise), dual)
            assert found.feasible and found.lower_bound <= found.objective * (1 + found.resolution + 1e-12)
            if signs:
                patterns = dm.neighbours.sign_patterns(n, *sizes[:2])
                best = fast.solve(type(problem)(workload, neighbours=patterns), tol=1e-6)
                assert found.lower_bound <= best.objective * (1 + 1e-12)

    @given(st.integers(2, 6), st.integers(0, 10**6))
    def test_means_over_signs_are_below_what_signs_cost(self, times: int, seed: int) -> None:
        """``⟨C, F F'⟩`` is at most the largest ``z' C z``, for every positive semidefinite C."""
        rng = np.random.default_rng(seed)
        weights = correlations(rng, times, int(rng.integers(1, times + 1)))[None]
        found = roots_of(weights, np.arange(times)[None], "signs")
        assert found is not None
        mean = found[0][0] @ found[0][0].T / found[1]
        signs = np.array([*itertools.product((1.0, -1.0), repeat=times)])
        for _ in range(5):
            vector = rng.standard_normal((times, 2))
            block = vector @ vector.T
            assert np.sum(block * mean) <= np.einsum("zi,ij,zj->z", signs, block, signs).max() * (1 + 1e-12)

    def test_nearly_equal_signs_prove_no_more_than_some_noise_costs(self) -> None:
        """Near 1 the arcsine loses half the digits: an angle of 2e-8 had been none to one row, and one to another."""
        turned = np.array([0.0, 1.5e-8, 2.0])
        for angle in np.linspace(0, 6, 25):
            units = np.stack([np.cos(angle + turned), np.sin(angle + turned)], axis=1)
            proven = roots_of((units @ units.T)[None], np.array([[0, 1, 2]]), "signs")
            assert proven is not None
            means = proven[0][0] @ proven[0][0].T / proven[1]
            for signs in itertools.product((1, -1), repeat=3):
                costs = 3.25 * np.eye(3) - np.outer(signs, signs)
                dearest = max(np.array(z) @ costs @ z for z in itertools.product((1, -1), repeat=3))
                assert np.vdot(costs, means) <= dearest * (1 + 1e-14)

    def test_weights_of_other_shapes_are_refused(self) -> None:
        problem = dm.TotalVariance(dm.workloads.prefix(4), neighbours="participation:2:2")
        for weights in (np.ones(4), np.ones((2, 2)), np.ones((3, 2, 2))):
            with pytest.raises(dm.errors.DualmechError, match="dual weights on neighbours"):
                problem.certify(np.eye(4), weights)


class TestPrices:
    @given(SIZES, st.integers(0, 10**6), st.booleans(), st.booleans())
    def test_they_are_the_derivatives_of_the_bound(self, sizes: Sizes, seed: int, signs: bool, fitness: bool) -> None:
        """A part of size 1 + t at a step is the step's column times 1 + t: the bound grows by 2 t times its price."""
        n, rule = rule_of(sizes)
        rng = np.random.default_rng(seed)
        rows, step, h = rng.standard_normal((n + 2, n)), int(rng.integers(n)), 1e-5
        numbers = rng.uniform(0.5, 2, n + 2)

        def problem_of(factor: float) -> Any:
            kind = dm.FitnessForUse if fitness else dm.TotalVariance
            scaled = rows * np.where(np.arange(n) == step, factor, 1.0)
            return kind(dm.Workload(scaled), numbers, neighbours=rule + ":signs" * signs, geometry="epochs")

        phases = problem_of(1.0).geometry.phases
        times = sizes[0]
        blocks = np.array([correlations(rng, times, times + 1) * rng.uniform(0.2, 1) for _ in phases])
        dual: Any = (blocks, rng.uniform(0.5, 1, n + 2)) if fitness else blocks
        prices = problem_of(1.0).phase_prices(dual)
        assert prices.shape == phases.shape and prices.sum() == pytest.approx(1)
        assert not prices[phases < 0].any()
        upper, lower = (problem_of(np.exp(t)).certify(np.eye(n), dual).lower_bound for t in (h, -h))
        assert np.log(upper / lower) / (2 * h) == pytest.approx(2 * prices[phases == step][0], abs=1e-5)

    @pytest.mark.parametrize("rule", ["participation:2:4", "participation:4:2", "participation:2:4:signs"])
    def test_at_the_optimum_they_are_masses_and_costs(self, rule: str, tmp_path: Any) -> None:
        problem = dm.TotalVariance(dm.workloads.prefix(7), neighbours=rule, geometry="epochs")
        answer = fast.solve(problem, tol=1e-9)
        masses = answer.dual.neighbour_weights.max(axis=(1, 2))
        np.testing.assert_allclose(answer.phase_prices.sum(axis=1), masses, atol=1e-4)
        cost = np.append(np.diagonal(dm.LinearGaussianMechanism(problem.basis, answer.primal).cost_matrix), 0.0)
        np.testing.assert_allclose(answer.phase_prices, masses[:, None] * cost[problem.geometry.phases], atol=1e-4)
        dm.save(answer, tmp_path / "answer.npz")
        np.testing.assert_array_equal(dm.load(tmp_path / "answer.npz").phase_prices, answer.phase_prices)

    def test_weights_for_nothing_have_none_and_other_neighbours_refuse(self) -> None:
        problem: Any = dm.TotalVariance(dm.workloads.prefix(4), neighbours="participation:2:2")
        for nothing in (0.0, np.nan):
            assert not problem.phase_prices(np.full((2, 2, 2), nothing)).any()
        for dual in (np.ones((2, 2)), "one"):
            with pytest.raises(dm.errors.DualmechError, match="dual|weights on neighbours"):
                problem.phase_prices(dual)
        for problem in (dm.TotalVariance(dm.workloads.prefix(4)), dm.QueryWeighting(dm.workloads.prefix(4), np.eye(4))):
            with pytest.raises(dm.errors.InvalidInputError, match="phases are of geometry 'epochs'"):
                fast.solve(problem).phase_prices  # noqa: B018

    def test_steps_that_cost_alike_have_equal_prices(self) -> None:
        answer = fast.solve(dm.TotalVariance(dm.workloads.identity(6), neighbours="participation:3:2"), tol=1e-9)
        np.testing.assert_allclose(answer.phase_prices, 1 / 6, atol=1e-4)
        once = fast.solve(dm.PrivacyFirst(dm.workloads.prefix(4), 1.0, 1.0, neighbours="participation:2:2"))
        assert once.phase_prices.sum() == pytest.approx(1)


class TestOptima:
    @settings(max_examples=15)
    @given(SIZES, st.integers(0, 10**6))
    def test_signs_are_an_independent_check(self, sizes: Sizes, seed: int) -> None:
        """No optimum under vectors is below that under signs, nor above π/2 of it."""
        n, rule = rule_of(sizes)
        workload = dm.Workload(np.random.default_rng(seed).standard_normal((n + 1, n)))
        patterns = dm.neighbours.sign_patterns(n, *sizes[:2])
        for kind in (dm.TotalVariance, dm.FitnessForUse):
            vectors = fast.solve(kind(workload, neighbours=rule), tol=1e-5)
            signs = fast.solve(kind(workload, neighbours=patterns), tol=1e-5)
            assert vectors.status.name == "CERTIFIED" and isinstance(vectors.problem.geometry, Epochs)
            assert signs.lower_bound <= vectors.objective
            assert vectors.lower_bound <= np.pi / 2 * signs.objective

    @pytest.mark.parametrize(("n", "times", "separation"), [(11, 3, 4), (12, 6, 2)])
    def test_prefixes_cost_the_same_under_both(self, n: int, times: int, separation: int) -> None:
        """Total variance of prefixes: noise is uncorrelated along a phase, and the arcsine proves it for signs."""
        sums = dm.workloads.prefix(n)
        rule = dm.neighbours.Participation(times, separation)
        every = dm.TotalVariance(sums, neighbours=dm.neighbours.sign_patterns(n, times, separation))
        intervals = [fast.solve(every, tol=1e-7)]
        for parts in ("", ":signs"):
            intervals.append(
                fast.solve(dm.TotalVariance(sums, neighbours=f"{rule}{parts}", geometry="epochs"), tol=1e-7)
            )
        assert all(each.status.name == "CERTIFIED" for each in intervals)
        assert max(each.lower_bound for each in intervals) <= min(each.objective for each in intervals)
        cost = dm.LinearGaussianMechanism(np.eye(n), intervals[1].primal).cost_matrix
        for steps in rule.phases(n):
            own = cost[np.ix_(steps[steps >= 0], steps[steps >= 0])]
            assert np.abs(own - np.diag(np.diagonal(own))).max() < 1e-3 * np.abs(own).max()

    @pytest.mark.parametrize(("n", "times"), [(4, 4), (9, 3)])
    def test_the_identity_in_closed_form(self, n: int, times: int) -> None:
        """Queries on single steps: noise of variance `times` on each, and no less."""
        rule = f"participation:{times}:{n // times}"
        for problem, optimum in (
            (dm.TotalVariance(dm.workloads.identity(n), neighbours=rule), n * times),
            (dm.FitnessForUse(dm.workloads.identity(n), neighbours=rule), times),
            (dm.FitnessForUse(dm.workloads.total(n), neighbours=rule), times**2),
            (dm.TotalVariance(dm.workloads.total(n), neighbours=rule), times**2),
        ):
            answer = fast.solve(problem, tol=1e-6)
            assert answer.lower_bound <= optimum * (1 + 1e-12) and optimum <= answer.objective * (1 + 1e-12)
            assert answer.status.name == "CERTIFIED"

    @pytest.mark.parametrize("kind", [dm.TotalVariance, dm.FitnessForUse])
    def test_both_layers_agree(self, kind: Any) -> None:
        problem = kind(dm.workloads.prefix(7), neighbours="participation:3:3")
        answers = [fast.solve(problem, tol=1e-6), reference.solve(problem, tol=1e-4)]
        assert crosscheck.compare(answers).outcome.name == "AGREE"
        np.testing.assert_allclose(answers[0].phase_prices, answers[1].phase_prices, atol=1e-2)

    @pytest.mark.parametrize(
        ("kind", "n", "times"), [(dm.TotalVariance, 7, 3), (dm.FitnessForUse, 6, 2), (dm.FitnessForUse, 8, 8)]
    )
    def test_the_reference_states_signs_one_by_one(self, kind: Any, n: int, times: int) -> None:
        """Its interval meets those of every sign pattern and of the fast layer."""
        sums, apart = dm.workloads.prefix(n), -(-n // times)
        problem = kind(sums, neighbours=f"participation:{times}:{apart}:signs", geometry="epochs")
        every = kind(sums, neighbours=dm.neighbours.sign_patterns(n, times, apart))
        answers = fast.solve(every, tol=1e-6), fast.solve(problem, tol=1e-2), reference.solve(problem, tol=1e-3)
        assert all(answer.status.name == "CERTIFIED" for answer in answers)
        assert max(answer.lower_bound for answer in answers) <= min(answer.objective for answer in answers)
        rows = [held for held in reference.formulate(problem).constraints if held.label.startswith("phases")]
        assert [held.shape for held in rows] == [
            (2 ** (np.count_nonzero(p >= 0) - 1),) for p in problem.geometry.phases
        ]

    def test_too_many_signs_and_unknowns_are_refused_before_any_work(self) -> None:
        for kind in (dm.TotalVariance, dm.FitnessForUse, dm.PrivacyFirst):
            cost = {"targets": 1.0, "cost": 1.0} if kind is dm.PrivacyFirst else {}
            problem = kind(dm.workloads.prefix(18), **cost, neighbours="participation:9:2:signs", geometry="epochs")
            for state in (reference.solve, reference.formulate):
                with pytest.raises(dm.errors.InvalidInputError, match="must have at most 8 participations"):
                    state(problem)
        many = dm.Workload(np.tril(np.ones((400, 400))))
        problem = dm.TotalVariance(many, neighbours="participation:200:2")
        with pytest.raises(
            dm.errors.InvalidInputError, match=r"limit 16384\): with 200 epochs and 0 query weights, at most 0 steps"
        ):
            fast.solve(problem)

    def test_an_interval_of_signs_is_explained(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(16), neighbours="participation:4:4:signs", geometry="epochs")
        with pytest.warns(dm.errors.UncertifiedWarning, match="means over the signs"):
            assert fast.solve(problem, tol=1e-6).status.name == "STALLED"

    @settings(max_examples=10)
    @given(st.integers(0, 10**6), st.integers(1, 2), st.booleans())
    def test_steps_without_persons_may_be_left_out(self, seed: int, first: int, short: bool) -> None:
        """Persons begin within the first steps of an epoch alone: the other steps cost nothing, and have no price."""
        rows = dm.workloads.prefix(9 - short).dense() * np.random.default_rng(seed).uniform(0.5, 2, 9 - short)
        begun = np.arange(rows.shape[1]) % 3 < first
        for kind in (dm.TotalVariance, dm.FitnessForUse):
            zeros = fast.solve(kind(dm.Workload(rows * begun), neighbours="participation:3:3"), tol=1e-5)
            fewer = fast.solve(kind(dm.Workload(rows[:, begun]), neighbours=f"participation:3:{first}"), tol=1e-5)
            assert max(zeros.lower_bound, fewer.lower_bound) <= min(zeros.objective, fewer.objective)
            assert np.abs(zeros.phase_prices[first:]).max() < 1e-12

    def test_a_warm_start_and_other_methods(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(12), neighbours="participation:3:4")
        first = fast.solve(problem, tol=1e-3)
        assert fast.solve(problem, start=first, tol=1e-6).status.name == "CERTIFIED"
        with pytest.raises(dm.errors.InvalidInputError, match="method must be one of auto, newton"):
            fast.solve(problem, method="fixed_point")
        other = fast.solve(dm.FitnessForUse(dm.workloads.prefix(12), neighbours="participation:4:3"), tol=1e-3)
        with pytest.raises(dm.errors.InvalidInputError, match="start must be a solution over 4 phases of 3 steps"):
            fast.solve(problem, start=other)

    @pytest.mark.parametrize("seed", [18068, 1123, 1231, 1311])
    def test_queries_whose_weights_vanish(self, seed: int) -> None:
        """A barrier that fell faster left the weights next to the boundary: 0.2 % stayed open."""
        rng = np.random.default_rng(seed)
        if seed == 18068:
            rows, rule = rng.standard_normal((7, 9))[:, np.arange(9) % 3 < 2], "participation:3:2"
        else:
            queries, times, separation = (int(rng.integers(*ends)) for ends in ((1, 12), (2, 5), (1, 5)))
            rows, rule = rng.standard_normal((queries, times * separation)), f"participation:{times}:{separation}"
        assert fast.solve(dm.FitnessForUse(dm.Workload(rows), neighbours=rule), tol=1e-5).status is dm.Status.CERTIFIED

    def test_a_mechanism_is_judged_and_read_back(self, tmp_path: Any) -> None:
        problem = dm.TotalVariance(dm.workloads.prefix(8), neighbours="participation:2:4")
        answer = fast.solve(problem, tol=1e-6)
        mechanism = answer.mechanism
        assert mechanism.squared_privacy_cost <= 1 and "participation:2:4" in repr(mechanism)
        dm.save(mechanism, tmp_path / "noise.npz")
        again = dm.load(tmp_path / "noise.npz")
        assert again == mechanism and again.rho == mechanism.rho
        assert crosscheck.judge(problem, again, tol=1e-6).feasible
        root = dm.strategies.sqrt_toeplitz(8)
        verdicts = [
            crosscheck.judge(problem, each) for each in (root, crosscheck.covariance_of_strategy(problem, root.matrix))
        ]
        assert verdicts[0].scaled.gap == pytest.approx(verdicts[1].scaled.gap, rel=1e-6) and verdicts[0].gap > 0.01

    @pytest.mark.parametrize(("n", "times", "width"), [(16, 2, 1e-6), (15, 4, 1e-3), (32, 4, 3e-4), (32, 8, 2e-3)])
    def test_fitness_for_signs_is_in_a_narrow_interval(self, n: int, times: int, width: float) -> None:
        """The interval holds the optimum over every sign pattern."""
        sums, apart = dm.workloads.prefix(n), -(-n // times)
        rule = f"participation:{times}:{apart}:signs"
        answer = fast.solve(dm.FitnessForUse(sums, neighbours=rule, geometry="epochs"), tol=width)
        every = fast.solve(dm.FitnessForUse(sums, neighbours=dm.neighbours.sign_patterns(n, times, apart)), tol=1e-6)
        assert answer.status.name == "CERTIFIED"
        assert max(answer.lower_bound, every.lower_bound) <= min(answer.objective, every.objective)

    @settings(max_examples=12)
    @given(st.integers(0, 10**6))
    def test_phases_may_be_permuted(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((6, 6))
        moved = rows.reshape(6, 2, 3)[:, :, rng.permutation(3)].reshape(6, 6)  # two epochs of three phases
        for kind in (dm.TotalVariance, dm.FitnessForUse):
            one, other = (
                fast.solve(kind(dm.Workload(each), neighbours="participation:2:3"), tol=1e-6) for each in (rows, moved)
            )
            assert max(one.lower_bound, other.lower_bound) <= min(one.objective, other.objective)

    @given(st.integers(0, 10**6), st.integers(2, 4))
    def test_scaling_laws(self, seed: int, factor: int) -> None:
        """A step doubled with its phase costs its square; a query that comes twice counts twice in the total."""
        rows = np.random.default_rng(seed).standard_normal((5, 4))
        one, scaled, twice = (
            fast.solve(dm.TotalVariance(dm.Workload(each), neighbours="participation:2:2"), tol=1e-6)
            for each in (rows, factor * rows, np.vstack([rows, rows]))
        )
        for answer, expected in ((scaled, factor**2), (twice, 2)):
            assert answer.lower_bound <= expected * one.objective * (1 + 1e-12)
            assert expected * one.lower_bound <= answer.objective * (1 + 1e-12)
