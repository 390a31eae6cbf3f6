"""Noise by step: correlated rows for private training, with the memory of the strategy's recurrence."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from dualmech import validate
from dualmech.errors import BackendError, InputTypeError, InvalidInputError
from dualmech.geometry.causal import Recurrence
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.validate import Array

Source: TypeAlias = "np.random.Generator | int | Callable[[int], Any] | None"
"""The source of independent normal numbers: a generator, its seed, or a function of the step."""

DTYPES = ("float64", "float32")

EXTRA = "this environment has no {name}: install dualmech[training]"


class NoiseByStep(GaussianPrivacy):
    """The base of mechanisms on the steps of a stream, with noise that is sampled step by step."""

    __slots__ = ()

    def recurrence(self) -> Recurrence:
        """Return the recurrence of noise rows, from a row of independent numbers and the stored rows."""
        raise NotImplementedError

    def noise(
        self, dimension: int, dtype: Literal["float64", "float32"] | None = None, rng: Source = None
    ) -> StepNoise:
        """Return an iterator over the rows of ``C⁻¹ Z``: noise on each step's x, for training. NOT a private release.

        C is the lower-triangular strategy with ``C'C = Σ⁻¹``, Z (n, dimension) has independent standard normal entries,
        and row t is sampled at step t. So each coordinate of the rows has the covariance Σ (n, n), and sums of the
        first rows have the variances of prefixes. `profile` and `participation_cost` are for steps whose x has norm at
        most 1; for norm at most c, multiply the rows by c. The x of a step may depend on earlier noisy answers: ``C x +
        Z`` is released row by row, and the noisy answers are a function of it (S. Denisov, H. B. McMahan, K. Rush, A.
        Smith and A. Guha Thakurta, Improved differential privacy for SGD via optimal private linear operators on
        adaptive streams, NeurIPS 2022, Theorem 2.1).

        The stored rows, of `dimension` numbers each: all earlier rows for a dense matrix, b - 1 for b bands, one for
        each buffer, and one for each pole of a `StreamMechanism`, whose covariance is between Σ and ``(1 + 3e-6) Σ``.
        This is for real numbers: samples are floating-point numbers, and no exact guarantee covers their last digits.
        Raises `InvalidInputError` or `InputTypeError` for a dimension below 1, another dtype, a function together with
        a dtype, a negative seed, fewer independent queries than steps, queries released exactly, a binary tree, a
        mechanism that is too large for a dense matrix.

        Parameters
        ----------
        dimension : int
            Number of coordinates of a step's x.
        dtype : str, optional
            ``float64``, the default, or ``float32``.
        rng : Generator, int or callable, optional
            A NumPy generator or its seed; or a function of the step, 0, 1, …, that returns the row of Z
            (dimension,): NumPy's, or of JAX, PyTorch and other arrays of the array API standard (extra `training`),
            whose dtype and device the noise has.

        Examples
        --------
        >>> import dualmech as dm
        >>> mechanism = dm.strategies.toeplitz([1.0, 0.5], steps=3)
        >>> rows = [*mechanism.noise(2, rng=lambda step: np.ones(2))]
        >>> np.stack(rows)
        array([[1.  , 1.  ],
               [0.5 , 0.5 ],
               [0.75, 0.75]])
        """
        checked = validate.size(dimension=dimension), *_source(dtype, rng)
        return StepNoise(self.recurrence(), *checked)

    def to_jax_privacy(self) -> Any:
        """Return the same linear map ``C⁻¹`` as a `StreamingMatrix` of jax_privacy (extra `training`).

        It supports arrays, or trees of arrays, of any shape, under ``jax.jit``. Its state has the stored rows of
        `noise`, with n - 1 rows from the first step on for a dense matrix.
        Raises `BackendError` if jax_privacy is not installed, otherwise as `noise` does.
        """
        if importlib.util.find_spec("jax_privacy") is None:
            raise BackendError(EXTRA.format(name="jax_privacy"))
        return _streaming_matrix(self.recurrence())


@dataclass(slots=True, eq=False, repr=False)
class StepNoise(Iterator[Any]):
    """An iterator over rows of noise, one for each step; returned by ``noise`` of a mechanism.

    Threads may share it: each row is returned once.

    Attributes
    ----------
    recurrence : Recurrence
        The recurrence of the rows.
    dimension : int
        Number of coordinates.
    dtype : str
        The type of the generator's numbers.
    generator, draw : Generator or None, callable or None
        The source of independent numbers; one of the two is None.
    kept : array (k, dimension) or None
        The stored rows; None before the first step.
    step : int
        Number of rows returned so far.
    """

    recurrence: Recurrence
    dimension: int
    dtype: str
    generator: np.random.Generator | None
    draw: Callable[[int], Any] | None
    kept: Any = field(default=None, init=False)
    step: int = field(default=0, init=False)
    _lock: Any = field(default_factory=threading.RLock, init=False)

    @property
    def steps(self) -> int:
        """Total number of rows, n."""
        return self.recurrence.steps

    def __next__(self) -> Any:
        """Return the noise of the next step (dimension,)."""
        with self._lock:
            if self.step == self.steps:
                raise StopIteration
            row, xp, options = self._independent()
            if self.kept is None:
                self.kept = xp.zeros((self.recurrence.rows_kept(0), self.dimension), **options)
            parts = [xp.asarray(np.array(table[self.step]), **options) for table in self.recurrence.tables]
            noise, self.kept = self.recurrence.follow(parts, row, self.kept, xp)
            self.step += 1
            return noise

    def _independent(self) -> tuple[Any, Any, dict[str, Any]]:
        """Return the step's row of Z, its array namespace, dtype and device."""
        if self.draw is None:
            assert self.generator is not None
            kind: Any = np.dtype(self.dtype)
            return self.generator.standard_normal(self.dimension, dtype=kind), np, {"dtype": kind}
        row = self.draw(self.step)
        xp, options = _namespace(row)
        if tuple(row.shape) != (self.dimension,) or not xp.isdtype(row.dtype, "real floating"):
            raise InvalidInputError(
                f"rng must return {self.dimension} floating-point numbers, got {row.dtype} of shape {tuple(row.shape)}"
            )
        return row, xp, options

    @property
    def state(self) -> dict[str, Any]:
        """The state of the iterator: `step`, the stored rows `kept`, and the state of the generator.

        ``numpy.savez(path, **noise.state)`` writes it. ``kept`` is an array (k, dimension), of the type that a function
        `rng` returns, and ``rng`` is JSON. It is empty for a function, whose state belongs to the caller.
        """
        stored = (
            np.zeros((self.recurrence.rows_kept(0), self.dimension), self.dtype) if self.kept is None else self.kept
        )
        rng_state = "" if self.generator is None else json.dumps(self.generator.bit_generator.state, default=_as_list)
        return {
            "step": self.step,
            "kept": stored.copy() if isinstance(stored, np.ndarray) else stored,
            "rng": rng_state,
        }

    def resume(self, state: Mapping[str, Any]) -> StepNoise:
        """Set the state of another iterator of the same mechanism, and return this one: its rows are equal bit for bit.

        This holds for NumPy's generator on a machine of the same type with as many threads, and for a function `rng`
        that returns the same rows. A generator that was passed to ``noise`` is set to the state.
        Raises `InvalidInputError` or `InputTypeError` for a state of another dimension, number of steps, dtype or type
        of generator, or anything else.

        Parameters
        ----------
        state : mapping
            The property `state`, or the result of ``numpy.load``.

        Examples
        --------
        >>> import dualmech as dm
        >>> mechanism = dm.strategies.sqrt_toeplitz(4)
        >>> first = mechanism.noise(1, rng=0)
        >>> _ = next(first)
        >>> later = mechanism.noise(1).resume(first.state)
        >>> bool(next(later) == next(first))
        True
        """
        step, stored, rng_state = _parts_of(state, self.steps)
        rows = self.recurrence.rows_kept(step)
        if stored.shape != (rows, self.dimension):
            raise InvalidInputError(
                f"state must have {rows} rows of {self.dimension} numbers at step {step}, got {tuple(stored.shape)}"
            )
        if self.generator is not None:
            stored = _checked_rows(stored, self.dtype)
            _restore(self.generator, rng_state)
        self.kept, self.step = (stored if step else None), step
        return self

    def __repr__(self) -> str:
        return f"StepNoise(step {self.step} of {self.steps}, dimension {self.dimension})"


def _source(dtype: object, rng: object) -> tuple[str, np.random.Generator | None, Callable[[int], Any] | None]:
    if callable(rng):
        if dtype is not None:
            raise InvalidInputError("dtype must be None if rng is a function: the noise has the dtype of its rows")
        return DTYPES[0], None, rng
    kind = DTYPES[0] if dtype is None else validate.choice(DTYPES, dtype=dtype)
    return kind, validate.generator(rng=rng), None


def _namespace(row: Any) -> tuple[Any, dict[str, Any]]:
    """Return the namespace of an array, and its dtype and device."""
    if isinstance(row, np.ndarray):
        return np, {"dtype": row.dtype}
    if not hasattr(row, "shape"):
        raise InputTypeError(f"rng must return an array, got {validate.shown(row)}")
    if importlib.util.find_spec("array_api_compat") is None:
        raise BackendError(EXTRA.format(name="array_api_compat"))
    import array_api_compat

    try:
        xp = array_api_compat.array_namespace(row)
    except TypeError as error:
        raise InputTypeError(f"rng must return an array of the array API, got {type(row).__name__}") from error
    return xp, {"dtype": row.dtype, "device": array_api_compat.device(row)}


def _as_list(value: object) -> object:
    """Return arrays in the state of a generator as lists, for JSON."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(value)


def _parts_of(state: object, steps: int) -> tuple[int, Any, str]:
    values = validate.mapping("step, kept and rng to their values", state=state)
    try:
        step, stored, rng_state = (values[name] for name in ("step", "kept", "rng"))
    except KeyError as error:
        raise InvalidInputError("state must have the names step, kept and rng") from error
    step, rng_state = (row[()] if isinstance(row, np.ndarray) and not row.ndim else row for row in (step, rng_state))
    if not isinstance(getattr(stored, "shape", None), tuple):
        raise InputTypeError(f"kept of state must be an array, got {validate.shown(stored)}")
    return validate.index(steps + 1, **{"step of state": step}), stored, validate.text(**{"rng of state": rng_state})


def _checked_rows(stored: Any, dtype: str) -> Array:
    if not (isinstance(stored, np.ndarray) and stored.dtype == dtype and np.all(np.isfinite(stored))):
        raise InvalidInputError(f"state must keep finite numbers of dtype {dtype}")
    return stored.copy()


def _restore(generator: np.random.Generator, rng_state: str) -> None:
    """Set the generator to a state; refuse a state of another type of generator."""
    try:
        generator.bit_generator.state = json.loads(rng_state)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError) as error:
        name = type(generator.bit_generator).__name__
        raise InvalidInputError(f"state must have the state of a {name} generator as rng") from error


def _streaming_matrix(recurrence: Recurrence) -> Any:
    from jax import numpy as jnp
    from jax_privacy.matrix_factorization.streaming_matrix import StreamingMatrix

    rows = recurrence.rows_kept(recurrence.steps)

    def begin(value: Any) -> Any:
        size = int(np.prod(value.shape, dtype=np.int64))
        return jnp.asarray(0), jnp.zeros((rows, size), value.dtype)

    def follow(value: Any, state: Any) -> Any:
        step, stored = state
        parts = [jnp.asarray(table, value.dtype)[step] for table in recurrence.tables]
        noise, stored = recurrence.follow(parts, value.reshape(-1), stored, jnp)
        return noise.reshape(value.shape), (step + 1, stored)

    return StreamingMatrix.from_array_implementation(begin, follow)
