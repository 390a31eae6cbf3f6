"""Persons whose parts are at least b steps apart: their cost against brute force, a linear program and closed forms."""

import itertools
from fractions import Fraction
from functools import cache
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from participations import steps_apart

import dualmech as dm
from dualmech import crosscheck, fast, reference
from dualmech.fast.engine.apart import WalkProgram
from dualmech.geometry.apart import largest_diagonal, largest_sums, persons_apart, roots_of_walks
from dualmech.validate import Array
from dualmech.watching import without_warnings

S = dm.strategies
Sizes = tuple[int, int, int]
SIZES = st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
"""Steps, times, separation."""


def by_brute_force(costs: Any, times: int, apart: int) -> Fraction:
    """Return the largest ``z' C_P z`` over persons and signs, of whole numbers."""
    numbers = [[Fraction(float(entry)) for entry in row] for row in costs]
    return max(
        sum((a * b * numbers[s][t] for (s, a), (t, b) in itertools.product(person, repeat=2)), Fraction())
        for steps in steps_apart(len(numbers), times, apart)
        for signs in itertools.product((1, -1), repeat=len(steps))
        for person in [[*zip(steps, signs, strict=True)]]
    )


def random_rows(n: int, seed: int, least: int = -4) -> Array:
    return np.random.default_rng(seed).integers(least, 5, (n + 1, n)).astype(float)


class TestSums:
    @given(SIZES, st.integers(0, 10**6), st.booleans())
    def test_no_person_costs_more_than_stated(self, sizes: Sizes, seed: int, positive: bool) -> None:
        n, times, apart = sizes
        rows = random_rows(n, seed, 0 if positive else -4)
        costs = rows.T @ rows
        true = by_brute_force(costs, times, apart)
        upper, lower = largest_sums(costs, np.zeros((n, n)), times, apart)
        assert Fraction(lower) <= true <= Fraction(upper)
        if times <= 2 and positive:
            assert upper <= float(true) * (1 + 1e-8)

    def test_steps_that_share_with_few_before_them_are_charged_for_those(self) -> None:
        """Ten in a row: nine share 0.1 with the one before, eight with the one before that."""
        costs = np.eye(12) + 0.1 * sum(np.eye(12, k=lag) for lag in (-2, -1, 1, 2))
        upper, lower = largest_sums(costs, np.zeros((12, 12)), 10, 1)
        assert lower <= 13.4 * (1 + 1e-12) and upper * (1 + 1e-12) >= 13.4
        assert lower == pytest.approx(13.4) and upper == pytest.approx(13.4)

    @given(SIZES, st.integers(0, 10**6))
    def test_exact_where_steps_so_far_apart_share_nothing(self, sizes: Sizes, seed: int) -> None:
        n, times, apart = sizes
        rows = np.tril(np.triu(random_rows(n, seed), 1 - apart)[:n])
        np.fill_diagonal(rows, np.abs(rows.diagonal()) + 1)
        costs, true = rows.T @ rows, by_brute_force(rows.T @ rows, times, apart)
        upper, lower = largest_sums(costs, np.zeros((n, n)), times, apart)
        assert Fraction(lower) <= true <= Fraction(upper) and upper <= lower * (1 + 1e-8)
        bands = np.array([np.r_[np.diagonal(rows, -k), np.zeros(k)] for k in range(min(apart, n))])
        for found in (
            S.banded(bands).participation_cost(times, apart, at_least=True),
            dm.LinearGaussianMechanism(rows, np.eye(n)).participation_cost(times, apart, at_least=True),
        ):
            assert found.exact and Fraction(found.lower_bound) <= true <= Fraction(found.squared_cost)

    @given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6))
    def test_the_largest_diagonal_is_a_linear_program(self, n: int, times: int, apart: int, seed: int) -> None:
        """Rows of consecutive ones are totally unimodular: the program's vertices are persons."""
        own = np.random.default_rng(seed).uniform(0, 1, n)
        windows = [(np.arange(n) >= start) & (np.arange(n) < start + apart) for start in range(n)]
        program = scipy.optimize.linprog(
            -own, np.array([*windows, np.ones(n)], dtype=float), [*np.ones(n), times], bounds=(0, 1)
        )
        upper, lower = largest_diagonal(own, times, apart)
        assert lower <= upper <= lower * (1 + 1e-12) and upper == pytest.approx(-program.fun, rel=1e-9)

    @given(st.integers(1, 10), st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6))
    def test_exact_of_toeplitz_strategies_that_decrease(self, n: int, times: int, apart: int, seed: int) -> None:
        series = np.sort(np.random.default_rng(seed).integers(0, 6, n))[::-1].astype(float) + np.r_[1, np.zeros(n - 1)]
        mechanism = S.toeplitz(series, n)
        true = by_brute_force(mechanism.matrix.T @ mechanism.matrix, times, apart)
        for found in (
            mechanism.participation_cost(times, apart, at_least=True),
            mechanism.dense().participation_cost(times, apart, at_least=True),
        ):
            assert found.exact and Fraction(found.squared_cost) >= true
            assert found.squared_cost == pytest.approx(float(true), rel=1e-8)
            assert Fraction(found.lower_bound) <= true

    @given(SIZES, st.integers(0, 10**6))
    def test_of_causal_strategies(self, sizes: Sizes, seed: int) -> None:
        n, times, apart = sizes
        bands = np.random.default_rng(seed).integers(-3, 4, (min(3, n), n)).astype(float)
        bands[0] = np.abs(bands[0]) + 1
        for mechanism in (S.banded(bands), S.toeplitz(bands[:, 0], n)):
            true = by_brute_force(mechanism.matrix.T @ mechanism.matrix, times, apart)
            found = mechanism.participation_cost(times, apart, at_least=True)
            assert Fraction(found.lower_bound) <= true <= Fraction(found.squared_cost)
            fixed = mechanism.participation_cost(times, apart)
            assert fixed.lower_bound <= found.squared_cost and fixed.lower_bound <= fixed.squared_cost
            assert Fraction(fixed.lower_bound) <= true
        blocks = [
            (np.arange(n) >> height == block).astype(float)
            for height in range(n.bit_length())
            for block in range(n >> height)
        ]
        found = S.tree(n).participation_cost(times, apart, at_least=True)
        true = by_brute_force(np.array(blocks).T @ np.array(blocks), times, apart)
        assert Fraction(found.lower_bound) <= true <= Fraction(found.squared_cost)

    def test_rounding_and_levels_are_in_the_cost(self) -> None:
        """Noise that is nearly dependent: never below the cost in fractions."""
        for apart in (1e-3, 1e-9, 3e-13):
            covariance = np.array([[1.0, 1 - apart], [1 - apart, 1.0]])
            told = dm.LinearGaussianMechanism(np.eye(2), covariance).participation_cost(2, 1, at_least=True)
            # Parts of opposite signs cost 2 / (1 - c), both of one sign 2 / (1 + c).
            assert Fraction(told.lower_bound) <= 2 / (1 - Fraction(covariance[0, 1])) <= Fraction(told.squared_cost)
        half = S.sqrt_toeplitz(8).scaled(2.0).participation_cost(2, 3, at_least=True)
        assert half.squared_cost == pytest.approx(S.sqrt_toeplitz(8).participation_cost(2, 3).squared_cost / 2)

    def test_once_is_one_record_and_many_steps_need_no_matrix(self) -> None:
        root = S.sqrt_toeplitz(1_000_000)
        assert root.participation_cost(1, 7, True).squared_cost == pytest.approx(root.squared_privacy_cost)
        bands = S.banded(np.vstack([np.linspace(1, 2, 100_000), np.full(100_000, 0.5)]))
        found = bands.participation_cost(20, 4000, at_least=True)
        assert found.exact and bands.participation_cost(20, 4000).squared_cost <= found.squared_cost
        with pytest.raises(dm.errors.InvalidInputError, match="at_least of 5000 steps needs"):
            S.tree(5000).participation_cost(2, 10, at_least=True)
        with pytest.raises(dm.errors.InputTypeError, match="at_least must be"):
            root.participation_cost(2, 7, 1)  # type: ignore[arg-type]


def by_all_persons(n: int, times: int, apart: int, total: bool) -> float:
    """Return the optimum for prefixes and vectors, each person's inequality written out, as a solver finds it."""
    sums = np.tril(np.ones((n, n)))
    inverse, covariance = cp.Variable((n, n), PSD=True), cp.Variable((n, n), PSD=True)
    constraints = [cp.bmat([[inverse, sums.T], [sums, covariance]]) >> 0]
    cost = 1.0 if total else cp.Variable()
    if not total:
        constraints.append(cp.diag(covariance) <= 1)
    for steps in steps_apart(n, times, apart):
        above = cp.Variable(len(steps))
        block = inverse[list(steps)][:, list(steps)]
        constraints += [cp.diag(above) - (block + block.T) / 2 >> 0, cp.sum(above) <= cost]
    program = cp.Problem(cp.Minimize(cp.trace(covariance) if total else cost), constraints)
    return float(program.solve(solver="CLARABEL"))


class TestWalks:
    @given(SIZES, st.sampled_from(["vectors", "signs"]), st.integers(0, 10**6))
    def test_their_roots_are_at_most_the_sum_over_persons(self, sizes: Sizes, of: str, seed: int) -> None:
        """``F F'`` is at most the weighted sum of the correlations of each person's steps, and hardly less."""
        n, times, apart = sizes
        rng = np.random.default_rng(seed)
        chain = rng.uniform(0, 1, (n, n)) ** 3 * (rng.uniform(size=(n, n)) < 0.8)
        rows = rng.standard_normal((n, n + 1))
        found = roots_of_walks(np.array([chain, rows @ rows.T]), times, apart, of)
        if found is None:
            assert not np.any(np.diagonal(chain))
            return
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        means = rows @ rows.T if of == "vectors" else 2 / np.pi * np.arcsin(np.clip(rows @ rows.T, -1, 1))
        np.fill_diagonal(means, 1.0)
        both, total = np.zeros((n, n)), 0.0
        for steps in steps_apart(n, times, apart):
            links = [chain[pair] for pair in itertools.pairwise(steps)]
            weight = chain[steps[0], steps[0]] / np.diagonal(chain).max() * float(np.prod(links))
            both[np.ix_(steps, steps)] += weight * means[np.ix_(steps, steps)]
            total += weight
        root, mass = found
        left = np.linalg.eigvalsh(both - root @ root.T)
        assert left[0] >= -1e-12 * total and left[-1] <= 1e-9 * total and mass == pytest.approx(total, rel=1e-9)

    @given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
    def test_persons_who_may_have_no_more_parts(self, n: int, times: int, apart: int) -> None:
        every = {frozenset(steps) for steps in steps_apart(n, times, apart)}
        largest = {steps for steps in every if not any(steps < other for other in every)}
        persons = persons_apart(n, times, apart, 1000)
        assert len(persons) == len(largest) and {frozenset(steps.tolist()) for steps in persons} == largest
        assert len(persons_apart(n, times, apart, 2)) <= 3

    @given(st.sampled_from([":signs", ""]), st.sampled_from([(5, 2, 3), (7, 3, 2), (6, 2, 1)]))
    @settings(max_examples=6)
    def test_the_weights_of_a_program_become_walks(self, parts: str, sizes: Sizes) -> None:
        """Not all of the program's bound is kept: walks forget all parts but the last."""
        n, times, apart = sizes
        problem = dm.TotalVariance(dm.workloads.prefix(n), neighbours=f"participation:{times}:{apart}{parts}:at-least")
        with without_warnings():
            answer = reference.solve(problem)
        optimum = by_all_persons(n, times, apart, total=True)
        assert 0.6 * optimum < answer.lower_bound < optimum * (1 + 1e-5)
        assert answer.objective > optimum * (0.99 if parts else 1 - 1e-5)

    @given(SIZES, st.sampled_from(["vectors", "signs"]), st.booleans(), st.integers(0, 10**6))
    def test_the_gradient_of_the_bound(self, sizes: Sizes, of: str, fixed: bool, seed: int) -> None:
        n, times, apart = sizes
        rng = np.random.default_rng(seed)
        program = WalkProgram(rng.standard_normal((3, n)), times, apart, of, fixed)
        strategy = np.tril(rng.uniform(0.1, 0.3, (n, n))) + np.eye(n)
        unknowns = program.begin(strategy)
        unknowns = unknowns + 0.1 * rng.standard_normal(len(unknowns))
        slope = program.at(unknowns).gradient(0.3)
        numeric = scipy.optimize.approx_fprime(unknowns, lambda x: program.at(x).merit(0.3), 1e-7)
        assert slope == pytest.approx(numeric, rel=1e-3, abs=2e-5)

    def test_weights_for_nothing_bound_nothing(self) -> None:
        problem = dm.TotalVariance(dm.workloads.prefix(4), neighbours="participation:2:2:at-least")
        for chain in (np.zeros((4, 4)), -np.eye(4), np.triu(np.ones((4, 4)), 1)):
            assert problem.certify(np.eye(4), np.array([chain, np.eye(4)])).lower_bound == 0
        # Faint and huge weights prove no more than what they say.
        for size in (1e-300, 1e-150, 1e150, 1e300):
            chain = np.triu(np.full((4, 4), size)) + np.eye(4)
            assert 0 <= problem.certify(np.eye(4), np.array([chain, np.eye(4)])).lower_bound < 60


class TestRule:
    def test_it_is_a_relation_with_its_text(self) -> None:
        rule = dm.neighbours.participation(64, 4, 16, at_least=True)
        signs = dm.neighbours.participation(64, 4, 16, of="signs", at_least=True)
        assert str(rule) == "participation:4:16:at-least" and str(signs) == "participation:4:16:signs:at-least"
        assert all(dm.neighbours.Relation.of(str(each)) == each for each in (rule, signs))
        fixed = dm.neighbours.participation(64, 4, 16)
        assert rule.contains(fixed) and rule.contains(signs) and not fixed.contains(rule)
        assert rule.contains(dm.neighbours.Participation(3, 20, at_least=True))
        assert rule.contains(dm.neighbours.Participation(3, 20)) and not fixed.contains(
            dm.neighbours.Participation(3, 20)
        )
        assert not rule.contains(dm.neighbours.Participation(4, 15, at_least=True))
        assert dm.neighbours.Relation.of("participation:1:4:at-least") == dm.neighbours.Relation()

        for text in ("participation:4:16:at-most", "participation:4:at-least", "participation:4:16:at-least:signs"):
            with pytest.raises(dm.errors.InvalidInputError, match="neighbours must be"):
                dm.neighbours.Relation.of(text)

    def test_what_needs_every_person_is_refused_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rule = dm.neighbours.participation(8, 2, 4, of="signs", at_least=True)
        with pytest.raises(dm.errors.InvalidInputError, match="have no matrix of differences"):
            rule.matrix(8)
        with pytest.raises(dm.errors.InvalidInputError, match="geometry 'epochs' holds it"):
            dm.TotalVariance(dm.workloads.prefix(8), neighbours=rule, geometry="dense")
        for kind in (dm.TotalVariance, dm.FitnessForUse):
            with pytest.raises(dm.errors.InvalidInputError, match="must have at most 200 sets"):
                reference.solve(kind(dm.workloads.prefix(40), neighbours="participation:3:9:at-least"))
        problem = dm.TotalVariance(dm.workloads.prefix(8), neighbours="participation:2:4:at-least")
        with pytest.raises(dm.errors.InvalidInputError, match="solve without it"):
            fast.solve(problem, start=_interval())
        with pytest.raises(dm.errors.InvalidInputError, match=r"must have shape \(2, 8, 8\), a matrix of persons"):
            problem.certify(np.eye(8), np.zeros((4, 2, 2)))
        monkeypatch.setattr("dualmech.fast.reductions.epochs.MAX_WALK_WEIGHTS", 127)
        with pytest.raises(dm.errors.InvalidInputError, match="weights of walks"):
            fast.solve(problem)
        assert dm.neighbours.participation(9, 2, 4, at_least=True)  # more steps than parts fill


@cache
def _interval() -> Any:
    with pytest.warns(dm.errors.UncertifiedWarning, match="minimum separation"):
        return fast.solve(dm.TotalVariance(dm.workloads.prefix(8), neighbours="participation:2:4:at-least"))


class TestProblems:
    def test_an_honest_interval(self) -> None:
        answer = _interval()
        assert answer.status is not dm.Status.CERTIFIED and 0 < answer.gap < 0.002
        fixed = fast.solve(dm.TotalVariance(dm.workloads.prefix(8), neighbours="participation:2:4"))
        assert answer.lower_bound > fixed.objective * 1.001  # these persons are more
        assert answer.mechanism.squared_privacy_cost == pytest.approx(1.0, rel=1e-6)
        assert answer.problem.geometry.neighbour_words(0) == "a person with participations at least 4 steps apart"
        assert answer.phase_prices.shape == (1, 8) and answer.phase_prices.sum() == pytest.approx(1.0)

    @pytest.mark.parametrize(
        ("kind", "n", "times", "apart"),
        [(dm.TotalVariance, 7, 3, 2), (dm.FitnessForUse, 7, 2, 3), (dm.FitnessForUse, 6, 2, 1)],
    )
    def test_the_optimum_over_all_persons_is_in_the_interval(self, kind: Any, n: int, times: int, apart: int) -> None:
        problem = kind(dm.workloads.prefix(n), neighbours=f"participation:{times}:{apart}:at-least")
        with without_warnings():
            answer = fast.solve(problem, tol=1e-6)
        optimum = by_all_persons(n, times, apart, kind is dm.TotalVariance)
        assert answer.lower_bound <= optimum * (1 + 1e-5) and optimum <= answer.objective * (1 + 1e-5)
        assert answer.lower_bound >= 0.95 * optimum

    @pytest.mark.parametrize(
        ("kind", "rows"),
        [
            (dm.TotalVariance, np.ones((1, 6))),
            (dm.FitnessForUse, np.outer([1.0, 2.0], np.arange(6.0))),
            (dm.FitnessForUse, np.repeat(np.eye(6), 3, axis=0)),
            (dm.TotalVariance, np.vstack([np.zeros(6), 10.0 ** np.arange(-3.0, 3.0)])),
            (dm.FitnessForUse, np.eye(6)[5:]),
        ],
    )
    def test_workloads_of_any_shape(self, kind: Any, rows: Array) -> None:
        problem = kind(dm.Workload(rows), neighbours="participation:2:3:at-least")
        answer = fast.solve(problem, tol=0.5)
        assert answer.status is dm.Status.CERTIFIED and 0 < answer.lower_bound <= answer.objective

    def test_limits_are_kept(self) -> None:
        problem = dm.TotalVariance(dm.workloads.prefix(16), neighbours="participation:4:4:at-least")
        with pytest.warns(dm.errors.UncertifiedWarning, match="STEPS_EXHAUSTED"):
            answer = fast.solve(problem, tol=1e-6, max_iterations=5)
        assert answer.status.name == "STEPS_EXHAUSTED" and answer.iterations >= 5 and answer.gap < 0.5
        seen: list[float] = []
        fast.solve(problem, tol=0.1, callback=lambda progress: seen.append(progress.gap))
        assert seen == sorted(seen, reverse=True) and seen[-1] <= 0.05

    @given(st.integers(2, 3), st.integers(1, 3), st.integers(0, 10**6), st.sampled_from(["", ":signs"]))
    def test_no_noise_costs_less_than_any_bound(self, times: int, apart: int, seed: int, parts: str) -> None:
        n, rng = times * apart, np.random.default_rng(seed)
        rule = f"participation:{times}:{apart}{parts}:at-least"
        root = rng.integers(-3, 4, (n, n)) + 8.0 * np.eye(n)
        costs = root.T @ root
        noise = dm.LinearGaussianMechanism(root, np.eye(n))
        told = dm.EpochsMechanism(noise, rule).squared_privacy_cost
        assert Fraction(told) >= by_brute_force(costs, times, apart)
        for kind in (dm.TotalVariance, dm.FitnessForUse):
            problem = kind(dm.workloads.prefix(n), neighbours=rule)
            weights = rng.standard_normal((2, n, n))
            dual: Any = weights if kind is dm.TotalVariance else (weights, rng.uniform(0, 1, n))
            found = problem.certify(problem.feasible(problem.as_primal(noise)), dual)
            assert found.feasible and found.lower_bound <= found.objective * (1 + 1e-9)

    def test_the_judge_says_the_distance_of_strategies(self) -> None:
        problem = dm.TotalVariance(dm.workloads.prefix(64), neighbours="participation:4:16:at-least")
        bands = S.toeplitz(S.root_coefficients(16), 64)
        verdict = crosscheck.judge(problem, bands)
        assert 0.1 < verdict.scaled.gap < 0.125
        cost = bands.participation_cost(4, 16, at_least=True).squared_cost
        assert verdict.scaled.objective == pytest.approx(
            cost * bands.variances(dm.workloads.prefix(64)).sum(), rel=1e-6
        )

    def test_files_keep_it(self, tmp_path: Any) -> None:
        mechanism = dm.EpochsMechanism(dm.LinearGaussianMechanism(np.eye(4), np.eye(4)), "participation:2:2:at-least")
        dm.save(mechanism, tmp_path / "apart.npz")
        assert dm.load(tmp_path / "apart.npz") == mechanism
        assert "at-least" in repr(mechanism) and mechanism.participation_cost(2, 2, at_least=True).exact
