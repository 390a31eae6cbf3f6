"""Noise, step by step: its law by unit vectors, what is kept of it, and iterators that go on to the bit."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast
from dualmech.errors import BackendError, InputTypeError, InvalidInputError
from dualmech.mechanisms.stream import DRAWN
from dualmech.validate import Array

S = dm.strategies
SEEDS = st.integers(0, 10**6)


def _dense(seed: int) -> Any:
    root = np.random.default_rng(seed).standard_normal((6, 12))
    return dm.LinearGaussianMechanism(np.eye(6), root @ root.T)


def _stream(workload: Callable[..., Any], *given: Any) -> Callable[[int], Any]:
    def made(seed: int) -> Any:
        rng = np.random.default_rng(seed)
        steps, spread = int(rng.integers(1, 40)), rng.uniform(0, 2)
        weights = 10 ** rng.uniform(-spread, spread, (2, steps))
        return dm.StreamMechanism(workload(steps, *given), weights[0], weights[1], 10 ** rng.uniform(-3, 3))

    return made


def _banded(seed: int) -> Any:
    bands = np.random.default_rng(seed).uniform(-0.3, 0.5, (1 + seed % 5, 9))
    bands[0] = 1 + bands[0] ** 2
    return S.banded(bands).scaled(2.5)


def _toeplitz(seed: int) -> Any:
    return S.toeplitz(np.r_[1.0, np.random.default_rng(seed).uniform(-0.4, 0.6, seed % 7)], 11).scaled(0.3)


def _buffered(seed: int) -> Any:
    scales, decays = np.random.default_rng(seed).uniform(0, 1, (2, 1 + seed % 3))
    return S.buffered(scales / 3, decays, 12).scaled(4.0)


MADE: dict[str, Callable[[int], Any]] = {
    "dense": _dense,
    "toeplitz": _toeplitz,
    "root": lambda seed: S.sqrt_toeplitz(1 + seed % 20, decay=0.9),
    "buffered": _buffered,
    "banded": _banded,
    "epochs": lambda seed: dm.EpochsMechanism(_dense(seed), "participation:2:3"),
    "prefix": _stream(dm.workloads.prefix),
    "decayed": _stream(dm.workloads.decayed_sums, 0.7),
    "ranges": _stream(dm.workloads.all_range),
}
"""A mechanism on steps for each form of noise, by a seed."""

kinds = pytest.mark.parametrize("kind", MADE)


def steps_of(mechanism: Any) -> int:
    return int(mechanism.noise(1, rng=0).steps)


def rows_of(mechanism: Any) -> Array:
    """Return the matrix L with rows ``L Z``: the noise, where Z is the identity."""
    unit = np.eye(steps_of(mechanism))
    return np.stack([*mechanism.noise(len(unit), rng=lambda step: unit[step])])


def covariance_of(mechanism: Any) -> Array:
    return np.asarray(mechanism.covariance(dm.workloads.identity(steps_of(mechanism))))


class TestLaw:
    @kinds
    @given(SEEDS)
    @settings(max_examples=15)
    def test_each_coordinate_has_the_covariance_of_the_mechanism(self, kind: str, seed: int) -> None:
        """Between Σ and ``(1 + 3e-6) Σ``: never less noise than the mechanism has, but for rounding."""
        mechanism = MADE[kind](seed)
        drawn, wanted = rows_of(mechanism), covariance_of(mechanism)
        whitened = np.linalg.solve(np.linalg.cholesky(wanted), drawn)
        ratios = np.linalg.eigvalsh(whitened @ whitened.T)
        rounding = 1e-12 * np.linalg.cond(wanted)
        assert ratios.min() >= 1 - rounding and ratios.max() <= 1 + rounding + 3 * DRAWN * (
            kind in "prefix decayed ranges"
        )

    @kinds
    @given(SEEDS)
    @settings(max_examples=5)
    def test_each_row_needs_the_numbers_drawn_so_far(self, kind: str, seed: int) -> None:
        drawn = rows_of(MADE[kind](seed))
        assert not np.triu(drawn, 1).any() and np.all(np.diagonal(drawn) > 0)

    @pytest.mark.parametrize("parts", ["", ":signs"])
    def test_of_an_optimum_for_several_epochs(self, parts: str) -> None:
        asked = dm.TotalVariance(dm.workloads.prefix(12), neighbours=f"participation:3:4{parts}", geometry="epochs")
        mechanism = fast.solve(asked, tol=1e-6).mechanism
        sums = np.cumsum(rows_of(mechanism), axis=0)
        np.testing.assert_allclose((sums**2).sum(axis=1), mechanism.variances(asked.workload), rtol=1e-9)

    def test_of_many_steps_and_weights_far_apart(self) -> None:
        """Sums of the rows have the variances of the mechanism."""
        steps = 1000
        weights = 10 ** np.random.default_rng(0).uniform(-3, 3, (2, steps))
        mechanism = dm.StreamMechanism(dm.workloads.prefix(steps), *weights)
        noise = mechanism.noise(steps, rng=lambda step: np.eye(1, steps, step)[0])
        sums, total = np.zeros(steps), []
        for row in noise:
            sums += row
            total.append(sums @ sums)
        np.testing.assert_allclose(total, mechanism.variances(), rtol=4 * DRAWN)


class TestKept:
    def test_rows_that_each_strategy_needs_up_to_the_last_step(self) -> None:
        stream = dm.StreamMechanism(dm.workloads.prefix(4096), np.ones(4096), np.ones(4096))
        for mechanism, most in (
            (S.toeplitz([1.0, 0.5, 0.2], 100), 2),
            (S.toeplitz([1.0], 100), 0),
            (S.banded(np.ones((4, 50)) / [[1], [2], [4], [8]]), 3),
            (S.buffered([0.3, 0.1], [0.5, 0.9], 100), 2),
            (_dense(0), 5),
            (stream, 24),
        ):
            noise = mechanism.noise(2, rng=0)
            for _ in range(10):
                next(noise, None)
            assert len(noise.state["kept"]) <= most
        noise = S.sqrt_toeplitz(3).noise(2, rng=0)
        assert len([*noise]) == 3 == noise.step and next(noise, None) is None
        assert repr(noise) == "StepNoise(step 3 of 3, dimension 2)"

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_the_numbers_are_of_the_dtype_and_the_seed(self, dtype: Any) -> None:
        one, other = (S.buffered([0.3], [0.5], 6).noise(3, dtype, rng=seed) for seed in (7, np.random.default_rng(7)))
        first = [*one]
        assert first[0].dtype == dtype == one.state["kept"].dtype
        np.testing.assert_array_equal(first, [*other])
        np.testing.assert_array_equal(first[0], np.random.default_rng(7).standard_normal(3, dtype=dtype))


def _by_npz(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    return np.load(file)


def _by_json(state: dict[str, Any]) -> Any:
    read = json.loads(json.dumps(state | {"kept": state["kept"].tolist()}))
    return read | {"kept": np.array(read["kept"], dtype=state["kept"].dtype).reshape(state["kept"].shape)}


class TestResumed:
    @kinds
    def test_to_the_bit(self, kind: str) -> None:
        mechanism = MADE[kind](5)
        for dtype, stored in (("float64", _by_npz), ("float32", _by_json)):
            whole = [*mechanism.noise(3, dtype, rng=11)]
            for stop in {0, 1, len(whole) // 2, len(whole)}:
                begun = mechanism.noise(3, dtype, rng=11)
                for _ in range(stop):
                    next(begun)
                rest = [*mechanism.noise(3, dtype).resume(stored(begun.state))]
                np.testing.assert_array_equal(np.reshape(rest, (-1, 3)), np.reshape(whole[stop:], (-1, 3)))

    @pytest.mark.parametrize(
        ("kind", "dtype"), [("dense", "float64"), ("banded", "float32"), ("prefix", "float64"), ("prefix", "float32")]
    )
    def test_to_the_bit_in_many_dimensions(self, kind: str, dtype: Any) -> None:
        """Sums of products do not depend on where in memory the rows stand."""
        begun = MADE[kind](5).noise(40_001, dtype, rng=11)
        for _ in range(3):
            next(begun)
        state = begun.state
        shifted = np.zeros(state["kept"].size + 1, dtype)[1:].reshape(state["kept"].shape)
        shifted[:] = state["kept"]
        later = MADE[kind](5).noise(40_001, dtype).resume(state | {"kept": shifted})
        later.kept = shifted
        for _ in range(3):
            np.testing.assert_array_equal(next(later), next(begun))

    @pytest.mark.parametrize("generator", ["PCG64DXSM", "MT19937", "Philox", "SFC64"])
    def test_with_other_generators(self, generator: str) -> None:
        made, mechanism = getattr(np.random, generator), S.buffered([0.3], [0.5], 6)
        begun = mechanism.noise(2, rng=np.random.Generator(made(1)))
        next(begun)
        later = mechanism.noise(2, rng=np.random.Generator(made(2))).resume(_by_npz(begun.state))
        np.testing.assert_array_equal([*later], [*begun])

    def test_a_state_is_of_its_own_and_others_are_refused(self) -> None:
        noise = S.buffered([0.3], [0.5], 6).noise(2, rng=0)
        next(noise)
        state = noise.state
        state["kept"][:] = 9.0
        assert not np.any(noise.state["kept"] == 9.0)
        noise = S.toeplitz([1.0, 0.5], 6).noise(2, rng=0)
        next(noise)
        state = noise.state
        for other, words in (
            ({}, "state must have the names"),
            (state | {"step": 7}, "step of state must be an integer from 0 to 6"),
            (state | {"step": -1}, "step of state must be an integer"),
            (state | {"kept": np.zeros((1, 3))}, "state must have 1 rows of 2 numbers at step 1"),
            (state | {"kept": np.zeros((1, 2), "float32")}, "finite numbers of dtype float64"),
            (state | {"kept": np.full((1, 2), np.nan)}, "finite numbers"),
            (state | {"rng": "{"}, "of a PCG64 generator"),
            (state | {"rng": json.dumps({"bit_generator": "SFC64"})}, "of a PCG64 generator"),
        ):
            with pytest.raises(InvalidInputError, match=words):
                noise.resume(other)
        foreign: Any
        for foreign, words in (
            (None, "state must map"),
            (state | {"step": "x"}, "step of state"),
            (state | {"kept": [[0.0, 0.0]]}, "kept of state must be an array"),
            (state | {"rng": 1}, "rng of state must be a text"),
        ):
            with pytest.raises(InputTypeError, match=words):
                noise.resume(foreign)


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"dimension": 0}, "dimension must be"),
            ({"dtype": "float16"}, "dtype must be"),
            ({"rng": -1}, "rng must be"),
            ({"rng": lambda step: np.zeros(2), "dtype": "float64"}, "dtype must be None if rng is a function"),
        ],
    )
    def test_arguments_by_name(self, arguments: dict[str, Any], words: str) -> None:
        with pytest.raises(InvalidInputError, match=words):
            S.sqrt_toeplitz(3).noise(**({"dimension": 2} | arguments))

    @pytest.mark.parametrize("row", [[1.0, 2.0], None, np.zeros(3), np.zeros((2, 1)), np.zeros(2, int)])
    def test_rows_that_are_none(self, row: Any) -> None:
        with pytest.raises((InvalidInputError, InputTypeError), match="rng must return"):
            next(S.sqrt_toeplitz(3).noise(2, rng=lambda step: row))

    def test_mechanisms_without_such_a_strategy(self) -> None:
        few = dm.LinearGaussianMechanism([[1, 1, 1]], [[1]])
        exact = dm.LinearGaussianMechanism(np.eye(3), np.diag([1.0, 1.0, 0.0]))
        for mechanism, words in (
            (S.tree(5), "binary tree has no noise"),
            (few, "as many independent queries"),
            (exact, "exactly"),
        ):
            with pytest.raises(InvalidInputError, match=words):
                mechanism.noise(2)


class TestOtherArrays:
    @staticmethod
    def check(made: Callable[[Array], Any]) -> None:
        pytest.importorskip("array_api_compat")
        drawn = np.random.default_rng(0).standard_normal((12, 3))
        for mechanism in (_buffered(3), _banded(3), _dense(3), MADE["prefix"](1), MADE["epochs"](2)):
            ours = mechanism.noise(3, rng=lambda step: drawn[step % 12])
            theirs = mechanism.noise(3, rng=lambda step: made(drawn[step % 12]))
            for own, row in zip(ours, theirs, strict=True):
                assert type(row) is type(made(own))
                np.testing.assert_allclose(np.asarray(row), own, rtol=1e-4, atol=1e-4 * np.abs(own).max())
            later = mechanism.noise(3, rng=lambda step: made(drawn[step % 12])).resume(theirs.state)
            assert later.step == theirs.steps

    def test_of_torch(self) -> None:
        torch = pytest.importorskip("torch")
        self.check(torch.tensor)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_of_jax(self, dtype: str) -> None:
        self.check(partial(pytest.importorskip("jax.numpy").asarray, dtype=dtype))

    def test_as_a_streaming_matrix(self) -> None:
        pytest.importorskip("jax_privacy")
        from jax import numpy as jnp

        for kind in MADE:
            mechanism = MADE[kind](3)
            wanted = rows_of(mechanism)
            found = np.asarray(mechanism.to_jax_privacy().materialize(len(wanted)))
            np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
        matrix = _banded(3).to_jax_privacy()
        tree = {"weights": jnp.ones((2, 3)), "bias": jnp.ones(2)}
        row, _ = matrix.multiply_next(tree, matrix.init_multiply(tree))
        assert row["weights"].shape == (2, 3) and row["bias"].shape == (2,)

    def test_what_is_not_installed_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        mechanism = S.sqrt_toeplitz(3)
        with pytest.raises(BackendError, match="no jax_privacy"):
            mechanism.to_jax_privacy()
        with pytest.raises(BackendError, match="no array_api_compat"):
            next(mechanism.noise(2, rng=lambda step: SimpleNamespace(shape=(2,))))


def test_no_row_is_drawn_twice_by_two_threads() -> None:
    """A second thread asks for a row while the first row is drawn: it waits, and gets the second."""
    steps: list[int] = []
    threads: list[threading.Thread] = []

    def draw(step: int) -> Any:
        steps.append(step)
        if not threads:
            threads.append(threading.Thread(target=lambda: next(rows)))
            threads[0].start()
            threads[0].join(0.05)  # without a lock the second row ends here
        return np.ones(2)

    rows = dm.strategies.sqrt_toeplitz(4).noise(2, rng=draw)
    next(rows)
    threads[0].join()
    assert steps == [0, 1] and rows.step == 2
