"""Validators as vocabulary: `positive(targets=c)` returns clean data or raises an error that names `targets`.

Every validator takes exactly one keyword, the argument's name as its user wrote it, so that the message can
name it. Nothing is repaired in silence: data are converted to read-only float64 or refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech.errors import InputTypeError, InvalidInputError, did_you_mean

Array = npt.NDArray[np.float64]
T = TypeVar("T")

Matrix: TypeAlias = Any
"""A float64 array or a scipy sparse array, two-dimensional; scipy is untyped, so this is no more than a name."""

SMALLEST, LARGEST = 1e-40, 1e40
"""Magnitudes between which a problem's non-zero data must lie: products of seven stay doubles."""

MOST_ITEMS = 2**28  # largest number of items that a single number is spread over (2 GiB)

SYMMETRY_TOLERANCE = 1e-9
"""Largest |S - S'| allowed in a covariance, relative to its largest entry; beyond it the input is refused."""


def is_empty(value: Any) -> bool:
    """Whether a sequence or an array has no items at all."""
    shape = getattr(value, "shape", None)
    return 0 in shape if isinstance(shape, tuple) else isinstance(value, Sized) and not len(value)


def read_only(array: Array) -> Array:
    """Return the same array, marked read-only, so that a frozen dataclass cannot change under its user."""
    array.flags.writeable = False
    return array


def numeric(ndim: int | None = None, /, **named: object) -> Array:
    """Return a read-only float64 copy of a non-empty numeric array, of `ndim` dimensions if given."""
    name, value = _one(named)
    if value is None or isinstance(value, str | bytes | bool | np.bool):
        shown = f"text: {value!r}" if isinstance(value, str | bytes) else repr(value)
        raise InputTypeError(f"{name} must be a number or an array of numbers, got {shown}")
    try:
        raw = np.asarray(value)
        if raw.dtype.kind not in "biuf" and not (raw.dtype.kind == "O" and raw.size):
            raise TypeError
        if raw.dtype.kind == "O" and any(each is None or isinstance(each, str | bytes) for each in raw.flat):
            raise TypeError  # which numpy would take for NaN, or for the number that it spells
        array = np.array(raw, dtype=np.float64)
    except OverflowError as error:
        raise InvalidInputError(f"{name} must be numbers that a double can hold") from error
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"{name} must be an array of real numbers, got {_describe(value)}") from error
    if ndim is not None and array.ndim != ndim:
        raise InvalidInputError(f"{name} must have {ndim} dimension(s), got shape {array.shape}")
    if array.size == 0:
        raise InvalidInputError(f"{name} must not be empty, got shape {array.shape}")
    return read_only(array)


def finite(ndim: int | None = None, /, **named: object) -> Array:
    """Return a read-only float64 array without NaN or infinite entries."""
    name, value = _one(named)
    array = numeric(ndim, **{name: value})
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        raise InvalidInputError(f"{name} must be finite, got {_entry(name, array, bad[0])}")
    return array


def positive(ndim: int | None = None, /, **named: object) -> Array:
    """Return a read-only float64 array whose entries are all finite and > 0."""
    name, value = _one(named)
    array = finite(ndim, **{name: value})
    bad = np.argwhere(array <= 0)
    if len(bad):
        raise InvalidInputError(f"{name} must be positive, got {_entry(name, array, bad[0])}")
    return array


def real(**named: object) -> float:
    """Return one number; it may be NaN or infinite."""
    name, value = _one(named)
    return value if isinstance(value, float) else float(numeric(0, **{name: value}))


def positive_number(**named: object) -> float:
    """Return one finite number > 0."""
    name, number = _number("a positive number", named)
    if number <= 0:
        raise InvalidInputError(f"{name} must be positive, got {number:g}")
    return number


def nonnegative_number(**named: object) -> float:
    """Return one finite number >= 0."""
    name, number = _number("a number of at least 0", named)
    if number < 0:
        raise InvalidInputError(f"{name} must be at least 0, got {number:g}")
    return number


def probability(**named: object) -> float:
    """Return one number strictly between 0 and 1."""
    name, number = _number("a number strictly between 0 and 1", named)
    if not 0 < number < 1:
        raise InvalidInputError(f"{name} must lie strictly between 0 and 1, got {number:g}")
    return number


def choice(known: Sequence[str], /, **named: object) -> str:
    """Return one of the known texts."""
    name, value = _one(named)
    if not isinstance(value, str) or value not in known:
        raise InvalidInputError(
            f"{name} must be one of {', '.join(known)}, got {value!r}{did_you_mean(value, known)}"
        )
    return value


def size(most: int | None = None, /, **named: object) -> int:
    """Return one integer >= 1, and of `most` at most."""
    name, value = _one(named)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputTypeError(f"{name} must be an integer of at least 1, got {_describe(value)}")
    if value < 1:
        raise InvalidInputError(f"{name} must be an integer of at least 1, got {value}")
    if most is not None and value > most:
        raise InvalidInputError(f"{name} must be an integer of at most {most}, got {_describe(value)}")
    return int(value)


def boolean(**named: object) -> bool:
    """Return True or False; nothing else is taken for either."""
    name, value = _one(named)
    if not isinstance(value, bool | np.bool):
        raise InputTypeError(f"{name} must be True or False, got {_describe(value)}")
    return bool(value)


def text(**named: object) -> str:
    """Return one text."""
    name, value = _one(named)
    if not isinstance(value, str):
        raise InputTypeError(f"{name} must be a text, got {_describe(value)}")
    return value


def function(**named: object) -> Any:
    """Return something that can be called."""
    name, value = _one(named)
    if not callable(value):
        raise InputTypeError(f"{name} must be callable, got {_describe(value)}")
    return value


def instance(kind: type[T], /, **named: object) -> T:
    """Return an object of a public class."""
    name, value = _one(named)
    if not isinstance(value, kind):
        raise InputTypeError(f"{name} must be a dualmech.{kind.__name__}, got {type(value).__name__}")
    return value


def sequence(**named: Any) -> tuple[Any, ...]:
    """Return the items of something that holds several, in order; a text, a mapping or one number is refused."""
    name, value = _one(named)
    try:
        if isinstance(value, str | bytes | Mapping):
            raise TypeError
        return tuple(value)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"{name} must be a sequence, got {_describe(value)}") from error


def mapping(what: str, /, **named: Any) -> Mapping[Any, Any]:
    """Return a mapping; the text says of what, such as "names to numbers"."""
    name, value = _one(named)
    if not isinstance(value, Mapping):
        raise InputTypeError(f"{name} must map {what}, got {_describe(value)}")
    return value


def index(below: int, /, **named: object) -> int:
    """Return one integer from 0 to ``below - 1``."""
    name, value = _one(named)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputTypeError(f"{name} must be an integer from 0 to {below - 1}, got {_describe(value)}")
    if not 0 <= value < below:
        raise InvalidInputError(f"{name} must be an integer from 0 to {below - 1}, got {value}")
    return int(value)


def indices(below: int, /, **named: Any) -> npt.NDArray[np.intp]:
    """Return integers from 0 to ``below - 1``, as many as are given (also none)."""
    name, value = _one(named)
    try:
        found = np.asarray(value)
        known = found.ndim == 1 and (found.dtype.kind in "iu" or not found.size)
    except (TypeError, ValueError):
        known = False
    if not known:
        raise InputTypeError(f"{name} must be a sequence of integers, got {_describe(value)}")
    if found.size and not (found.min() >= 0 and found.max() < below):
        raise InvalidInputError(
            f"{name} must be integers from 0 to {below - 1}, got {found.min()} to {found.max()}"
        )
    return found.astype(np.intp)


def vector(length: int, of: str, /, **named: object) -> Array:
    """Return `length` finite numbers, one per what the text says."""
    name, _ = _one(named)
    array = finite(1, **named)
    if array.shape != (length,):
        raise InvalidInputError(f"{name} must have {length} entries, one per {of}, got {array.shape[0]}")
    return array


def per_item(length: int, /, **named: object) -> Array:
    """Return `length` positive numbers, spreading a single number over all of them."""
    name, value = _one(named)
    array = positive(**{name: value})
    if length > MOST_ITEMS:
        raise InvalidInputError(
            f"{name} of {float(length):.3g} items are too many to write out (limit {MOST_ITEMS})"
        )
    if array.ndim == 0:
        return read_only(np.full(length, float(array)))
    if array.shape != (length,):
        raise InvalidInputError(f"{name} must be one number or {length} numbers, got shape {array.shape}")
    return array


def symmetric(**named: object) -> Array:
    """Return a finite square matrix, symmetrised when its asymmetry is rounding, refused when it is more."""
    name, _ = _one(named)
    array = finite(2, **named)
    if array.shape[0] != array.shape[1]:
        raise InvalidInputError(f"{name} must be square, got shape {array.shape}")
    asymmetry, scale = float(np.abs(array - array.T).max()), float(np.abs(array).max())
    if asymmetry > SYMMETRY_TOLERANCE * scale:
        raise InvalidInputError(f"{name} must be symmetric, but differs from its transpose by {asymmetry:g}")
    return read_only((array + array.T) / 2)


def matrix(**named: Any) -> Matrix:
    """Return a finite, non-empty matrix: scipy sparse stays sparse (CSR), anything else becomes float64."""
    name, value = _one(named)
    if not sp.issparse(value):
        return finite(2, **named)
    if value.ndim != 2 or 0 in value.shape:
        raise InvalidInputError(f"{name} must be a non-empty matrix, got shape {value.shape}")
    if value.dtype.kind not in "biuf":
        raise InputTypeError(f"{name} must hold real numbers, got a sparse matrix of dtype {value.dtype}")
    sparse = sp.csr_array(value, dtype=np.float64, copy=True)
    sparse.sum_duplicates()
    if not np.all(np.isfinite(sparse.data)):
        raise InvalidInputError(f"{name} must be finite, got NaN or infinite entries")
    for part in (sparse.data, sparse.indices, sparse.indptr):
        part.flags.writeable = False
    return sparse


def generator(**named: Any) -> np.random.Generator:
    """Return a generator: the one given, one of an integer seed >= 0, or for None one that nobody can repeat."""
    name, value = _one(named)
    if value is None:
        return np.random.default_rng()
    if isinstance(value, np.random.Generator):
        return value
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputTypeError(
            f"{name} must be a numpy.random.Generator, an integer seed or None, got {_describe(value)}"
        )
    if value < 0:
        raise InvalidInputError(f"{name} must be a seed of at least 0, got {value}")
    return np.random.default_rng(int(value))


def moderate(**named: Matrix) -> None:
    """Refuse non-zero entries so large or small that their squares and products would over- or underflow."""
    name, value = _one(named)
    entries = np.abs(value.data if sp.issparse(value) else np.asarray(value))
    entries = entries[entries > 0]
    if entries.size and not (entries.min() >= SMALLEST and entries.max() <= LARGEST):
        worst = entries.max() if entries.max() > LARGEST else entries.min()
        raise InvalidInputError(
            f"{name} must have non-zero entries of magnitude {SMALLEST:g} to {LARGEST:g}, got {worst:g}"
        )


def _number(allowed: str, named: dict[str, Any]) -> tuple[str, float]:
    """Return the name and one finite number; anything else is refused with what is allowed."""
    name, value = _one(named)
    try:
        array = numeric(**named)
    except InputTypeError:
        raise InputTypeError(f"{name} must be {allowed}, got {_describe(value)}") from None
    if array.ndim:
        raise InvalidInputError(f"{name} must be {allowed}, got shape {array.shape}")
    return name, float(finite(0, **named))


def _entry(name: str, array: Array, index: npt.NDArray[np.intp]) -> str:
    where = f" at {name}[{', '.join(map(str, index))}]" if array.ndim else ""
    return f"{array[tuple(index)]:g}{where}"


def _one(named: dict[str, Any]) -> tuple[str, Any]:
    ((name, value),) = named.items()
    return name, value


def _describe(value: object) -> str:
    if value is None:
        return "None"
    text = " ".join(repr(value).split())
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
