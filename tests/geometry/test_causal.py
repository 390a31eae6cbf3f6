"""Causal strategies of running sums: costs and variances without a matrix, their allowances, and the judge."""

import itertools
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import run
from hypothesis import given
from hypothesis import strategies as st
from participations import steps_apart

import dualmech as dm
from dualmech import crosscheck, fast
from dualmech.geometry.causal import Banded, Buffered, Toeplitz, Tree
from dualmech.studies.papers import streams

S = dm.strategies
DECAYS = st.sampled_from([1.0, 0.9, 0.25])


def by_matrix(strategy: Any, decay: float) -> tuple[Any, Any]:
    matrix, sums = strategy.matrix(), dm.workloads.decayed_sums(strategy.steps, decay).matrix
    noise = np.linalg.solve(matrix.T, sums.T).T
    return np.sum(matrix**2, axis=0), np.sum(noise**2, axis=1)


def exact_variances(matrix: Any, decay: float) -> list[Fraction]:
    """Return the variances in exact arithmetic, of a matrix of doubles."""
    count, beta = len(matrix), Fraction(decay)
    rows: list[list[Fraction]] = []
    for j in range(count):  # of the inverse, by forward substitution
        row = [Fraction(int(i == j)) for i in range(count)]
        for k in range(j):
            factor = Fraction(float(matrix[j, k]))
            row = [each - factor * above for each, above in zip(row, rows[k], strict=True)]
        rows.append([each / Fraction(float(matrix[j, j])) for each in row])
    found, state = [], [Fraction(0)] * count
    for row in rows:
        state = [beta * before + each for before, each in zip(state, row, strict=True)]
        found.append(sum((each**2 for each in state), Fraction(0)))
    return found


def coefficients(seed: int, count: int) -> Any:
    rng = np.random.default_rng(seed)
    return np.r_[1.0, rng.uniform(-0.6, 0.9, count - 1) / np.arange(1, count)] * 10.0 ** rng.uniform(-3, 3)


class TestForms:
    @given(st.integers(0, 10**6), st.integers(1, 110), st.integers(1, 70), DECAYS)
    def test_toeplitz_and_banded(self, seed: int, steps: int, width: int, decay: float) -> None:
        rng, width = np.random.default_rng(seed), min(width, steps)
        bands = rng.uniform(-0.3, 0.5, (width, steps)) / np.arange(1, width + 1)[:, None]
        bands[0] = rng.uniform(0.5, 2, steps)
        banded = Banded(S.banded(bands)._strategy.bands)  # type: ignore[attr-defined]
        for strategy in (Toeplitz(coefficients(seed, width), steps), banded):
            costs, variances = by_matrix(strategy, decay)
            np.testing.assert_allclose(strategy.costs()[0], costs, rtol=1e-12)
            found, off = strategy.variances(decay)
            if np.all(np.isfinite(off)):
                np.testing.assert_allclose(found, variances, rtol=1e-8)

    @pytest.mark.parametrize("steps", [1, 2, 3, 8, 13, 64, 100])
    def test_tree(self, steps: int) -> None:
        """Costs and variances are those of the blocks, written out, and of the decoder that weighs by precision."""
        strategy = Tree(steps)
        blocks = [
            (height, start)
            for height in range(steps.bit_length())
            for start in range(0, steps - (1 << height) + 1, 1 << height)
        ]
        noise = {block: np.eye(len(blocks))[place] for place, block in enumerate(blocks)}
        estimates: dict[tuple[int, int], Any] = {}
        for height, start in blocks:
            own = noise[height, start]
            if height:
                half = estimates[height - 1, start] + estimates[height - 1, start + (1 << height - 1)]
                share = (half @ half) / (1 + half @ half)
                own = share * own + (1 - share) * half
            estimates[height, start] = own
        for end in range(1, steps + 1):
            total, start = np.zeros(len(blocks)), 0
            for height in reversed(range(steps.bit_length())):
                if end >> height & 1:
                    total = total + estimates[height, start]
                    start += 1 << height
            assert strategy.variances(1.0)[0][end - 1] == pytest.approx(total @ total, rel=1e-12)
        inside = [sum(start <= cell < start + (1 << height) for height, start in blocks) for cell in range(steps)]
        assert strategy.costs()[0].tolist() == inside

    @given(st.integers(0, 10**6), st.integers(1, 14), st.integers(1, 5), st.sampled_from([1.0, 0.5, 0.875]))
    def test_allowances_hold_in_exact_arithmetic(self, seed: int, steps: int, count: int, decay: float) -> None:
        series = coefficients(seed, min(count, steps))
        bands = np.repeat(series[:, None], steps, axis=1)
        for strategy in (Toeplitz(series, steps), S.banded(bands)._strategy):
            found, off = strategy.variances(decay)
            for own, more, true in zip(found, off, exact_variances(strategy.matrix(), decay), strict=True):
                assert np.isinf(more) or true <= Fraction(own) * (1 + Fraction(more))

    def test_long_series_by_fast_transforms(self) -> None:
        strategy = Toeplitz(S.root_coefficients(300), 300)
        found, off = strategy.variances(1.0)
        np.testing.assert_allclose(found, by_matrix(strategy, 1.0)[1], rtol=1e-11)
        assert off.max() < 1e-8
        # Of the root the answers are the root once more.
        np.testing.assert_allclose(found, np.cumsum(S.root_coefficients(300) ** 2), rtol=1e-12)

    @pytest.mark.parametrize("kind", [Toeplitz, Banded])
    def test_an_inverse_that_explodes_says_nothing(self, kind: Any) -> None:
        strategy = Toeplitz(np.array([1.0, 2.0]), 3000)
        if kind is Banded:
            strategy = S.banded(np.repeat([[1.0], [2.0]], 3000, axis=1))._strategy  # type: ignore[assignment]
        assert np.isinf(strategy.variances(1.0)[1][-1])
        with pytest.raises(dm.errors.InvalidInputError, match="whose entries stay small enough"):
            dm.CausalMechanism(strategy).variances(dm.workloads.prefix(3000))


STEPS = 5


def cancelling(seed: int, size: float) -> Buffered:
    """Return two or three buffers of such scales and nearly the same decay, which nearly cancel."""
    rng = np.random.default_rng(seed)
    first = size * rng.uniform(0.5, 2.0)
    scales = [first, -first * (1 + rng.uniform(-1, 1) * 0.1 / size), *rng.uniform(0, 0.3, seed % 2)]
    decays = rng.uniform(0.2, 0.9) + rng.uniform(0, 0.1 / size, len(scales))
    return Buffered(steps=STEPS, scales=np.array(scales), decays=decays)


class TestBuffers:
    @pytest.mark.parametrize(("size", "seed"), [(1.0, 0), (1.0, 1), (1e6, 2), (1e6, 3), (1e12, 4), (1e12, 5)])
    def test_what_the_sums_lose_is_in_costs_and_variances(self, seed: int, size: float) -> None:
        strategy = cancelling(seed, size)
        series = [Fraction(1)] + [
            sum(
                (Fraction(a) * Fraction(b) ** k for a, b in zip(strategy.scales, strategy.decays, strict=True)),
                Fraction(),
            )
            for k in range(STEPS - 1)
        ]
        columns = [[Fraction(0)] * start + series[: STEPS - start] for start in range(STEPS)]
        told = np.add(*strategy.costs()).tolist()
        assert all(sum(c * c for c in column) <= Fraction(own) for column, own in zip(columns, told, strict=True))
        for sizes, at_least in itertools.product([(2, 2), (3, 2), (2, 3), (STEPS, 1)], (False, True)):
            persons = [
                steps
                for steps in steps_apart(STEPS, *sizes)
                if at_least or all(b - a == sizes[1] for a, b in itertools.pairwise(steps))
            ]
            true = max(
                sum(
                    sum(sign * columns[step][row] for sign, step in zip(signs, steps, strict=True)) ** 2
                    for row in range(STEPS)
                )
                for steps in persons
                for signs in itertools.product((1, -1), repeat=len(steps))
            )
            cost = dm.CausalMechanism(strategy).participation_cost(*sizes, at_least)
            assert Fraction(cost.lower_bound) <= true <= Fraction(cost.squared_cost)
        inverse = list[Fraction]()
        for k in range(STEPS):  # of the sums' noise: the inverse series, then added up
            inverse.append(int(k == 0) - sum((series[k - i] * inverse[i] for i in range(k)), Fraction()))
        sums = list(itertools.accumulate(inverse))
        variances, off = strategy.variances(1.0)
        truth = itertools.accumulate(value**2 for value in sums)
        for true, own, more in zip(truth, variances.tolist(), off.tolist(), strict=True):
            assert more == np.inf or true <= Fraction(own) * (1 + Fraction(more))

    def test_buffers_that_do_not_cancel_keep_their_digits(self) -> None:
        for scales, decays in (([0.4, 0.1], [0.5, 0.9]), ([1.0], [1.0]), ([0.5, 0.5], [1.0, 0.3])):
            strategy = Buffered(steps=100, scales=np.array(scales), decays=np.array(decays))
            plain = Toeplitz(strategy.coefficients, 100)
            assert strategy.decreasing and strategy.nonnegative
            np.testing.assert_allclose(np.add(*strategy.costs()), np.add(*plain.costs()), rtol=1e-12)
            np.testing.assert_allclose(strategy.variances(1.0)[1], plain.variances(1.0)[1], atol=1e-11)
            assert sum(strategy.participation(4, 25)) == pytest.approx(sum(plain.participation(4, 25)), rel=1e-12)


class TestMechanism:
    @pytest.mark.parametrize("name", ["toeplitz", "sqrt_toeplitz", "buffered", "banded"])
    def test_it_is_the_dense_one(self, name: str) -> None:
        made = {
            "toeplitz": lambda: S.toeplitz([2.0, -0.5, 0.25], 9),
            "sqrt_toeplitz": lambda: S.sqrt_toeplitz(9, decay=0.8),
            "buffered": lambda: S.buffered([0.4, 0.1], [0.5, 0.9], 9),
            "banded": lambda: S.banded(np.random.default_rng(0).uniform(0.5, 1, (3, 9))),
        }[name]()
        mechanism, dense = made.scaled(3.0), made.scaled(3.0).dense()
        np.testing.assert_allclose(mechanism.profile, dense.profile, rtol=1e-12)
        for asked in (dm.workloads.prefix(9), dm.workloads.decayed_sums(9, 0.8), dm.workloads.identity(9)):
            np.testing.assert_allclose(mechanism.variances(asked), dense.variances(asked), rtol=1e-10)
        assert mechanism.rho == pytest.approx(dense.rho) and mechanism.epsilon(1e-6) > 0
        again = pickle.loads(pickle.dumps(mechanism))
        assert np.array_equal(again.profile, mechanism.profile)
        assert "9 steps" in repr(mechanism)

    @pytest.mark.parametrize(
        "mechanism", [S.sqrt_toeplitz(6), S.banded([[1.0] * 6, [0.5] * 6]), S.tree(6)], ids=lambda each: repr(each)
    )
    def test_noise_has_the_variances_that_are_said(self, mechanism: Any) -> None:
        asked, rng = dm.workloads.prefix(6), np.random.default_rng(5)
        drawn = np.array([mechanism.scaled(4.0).simulate(np.ones(6), asked, rng) for _ in range(1500)])
        np.testing.assert_allclose(drawn.mean(axis=0), np.arange(1, 7), atol=0.4)
        np.testing.assert_allclose(drawn.var(axis=0), mechanism.scaled(4.0).variances(asked), rtol=0.2)

    def test_what_has_no_matrix(self) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="not least squares"):
            S.tree(8).dense()
        with pytest.raises(dm.errors.InvalidInputError, match="got decay 0.5"):
            S.tree(8).variances(dm.workloads.decayed_sums(8, 0.5))
        with pytest.raises(dm.errors.InvalidInputError, match="100000 steps is too large for a matrix"):
            S.sqrt_toeplitz(100_000).dense()

    def test_bad_input_is_refused_by_name(self) -> None:
        for name, arguments, words in (
            ("toeplitz", ([], 3), "coefficients must not be empty"),
            ("toeplitz", ([1.0] * 4, 3), "coefficients must be 1 to 3 numbers"),
            ("toeplitz", ([-1.0], 3), "the first of them positive"),
            ("toeplitz", ([1.0], 2**22 + 1), "steps"),
            ("sqrt_toeplitz", (3, 1.5), "decay must be at most 1"),
            ("buffered", ([0.5], [1.5], 3), "decays must lie from 0 to 1"),
            ("buffered", ([0.5, 0.1], [0.5], 3), "scales"),
            ("banded", ([[1.0], [1.0]],), "bands must be 1 to 1 rows"),
            ("banded", ([[1.0, 0.0]],), "main diagonal, must be positive"),
            ("tree", (0,), "steps must be"),
        ):
            with pytest.raises(dm.errors.InvalidInputError, match=words):
                getattr(S, name)(*arguments)
            with pytest.raises(dm.errors.InputTypeError):
                dm.CausalMechanism(np.eye(3))  # type: ignore[arg-type]


class TestJudge:
    @pytest.mark.parametrize("family", [dm.FitnessForUse, dm.TotalVariance])
    def test_as_the_matrix_says(self, family: Any) -> None:
        asked = dm.workloads.decayed_sums(20, 0.9)
        problem, mechanism = family(asked, np.linspace(1, 2, 20)), S.sqrt_toeplitz(20, decay=0.9)
        assert problem.geometry.name == "dense"
        verdict, dense = crosscheck.judge(problem, mechanism), crosscheck.judge(problem, mechanism.dense())
        for name in ("objective", "lower_bound"):
            assert getattr(verdict.scaled, name) == pytest.approx(getattr(dense.scaled, name), rel=1e-5)
        assert verdict.binding.tolist() == dense.binding.tolist()
        point = problem.on_geometry("stream").as_primal(mechanism)
        made = problem.on_geometry("stream").mechanism(point)
        assert isinstance(made, dm.CausalMechanism)
        np.testing.assert_allclose(made.variances(asked), mechanism.dense().variances(asked), rtol=1e-10)
        geometry = problem.on_geometry("stream").geometry
        np.testing.assert_allclose(
            geometry.covariance(point), mechanism.dense().covariance(dm.workloads.identity(20)), rtol=1e-10
        )

    def test_other_neighbours_and_all_ranges_by_the_matrix(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.identity(8), neighbours="replace")
        verdict = crosscheck.judge(problem, S.toeplitz([1.0], 8))
        assert verdict.feasible and verdict.interval == pytest.approx((1.75, 2.0))
        asked = dm.workloads.all_range(140)
        ranges = dm.TotalVariance(asked)
        assert ranges.geometry.name == "stream"
        verdict = crosscheck.judge(ranges, S.sqrt_toeplitz(140))
        own = S.sqrt_toeplitz(140).dense()
        true = own.variances(asked).sum() * own.squared_privacy_cost
        assert verdict.scaled.objective == pytest.approx(true, rel=1e-6)

    def test_a_bound_from_a_solution(self) -> None:
        problem = dm.FitnessForUse(dm.workloads.prefix(300))
        bound = fast.solve(problem, tol=1e-3)
        verdict = crosscheck.judge(problem, S.sqrt_toeplitz(300), bound=bound)
        assert verdict.lower_bound == bound.lower_bound and 0.2 < verdict.scaled.gap < 0.3
        with pytest.raises(dm.errors.InvalidInputError, match="a solution of the same problem"):
            crosscheck.judge(dm.FitnessForUse(dm.workloads.prefix(300), 2.0), S.tree(300), bound=bound)
        with pytest.raises(dm.errors.InvalidInputError, match="answers as many running sums"):
            crosscheck.judge(problem, S.tree(150), bound=bound)

    def test_published_figures(self) -> None:
        """At 1,024 steps: 22.1 % and 10.7 % for the root, 7.1 % for three buffers tuned to the total."""
        row = streams.judged(1024)
        *_, root, buffers = row.parts
        found = [root.largest.gap, root.total.gap, buffers.total.gap]
        assert found == pytest.approx([0.221, 0.107, 0.071], abs=5e-4)
        assert row.outcome.name == "AGREE" and row.gap <= streams.TOLERANCE


def test_strategies_by_name(tmp_path: Path) -> None:
    result = run("judge", "prefix:2000", "--strategy", "sqrt")
    assert result.exit_code == 0 and "at most 20.9 %" in " ".join(result.output.split())
    path = tmp_path / "c.csv"
    path.write_text("1\n0.5\n0.375\n")
    for name in ("tree", f"toeplitz:{path}"):
        result = run("judge", "prefix:64", "--problem", "variance", "--strategy", name)
        assert result.exit_code == 0 and "FEASIBLE: total variance" in result.output
    assert "not least squares" in str(run("judge", "identity:4", "--strategy", "tree").exception)
