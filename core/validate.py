"""Validators as vocabulary: `positive(targets=c)` returns clean data or raises an error that names `targets`.

Every validator takes exactly one keyword, the argument's name as its user wrote it, which the message names. Validators
convert data to read-only float64 or refuse it; they never repair data silently.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence, Sized
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech.errors import InputTypeError, InvalidInputError, did_you_mean
from dualmech.immutable import Array as Array
from dualmech.immutable import freeze, frozen_copy

T = TypeVar("T")

Matrix: TypeAlias = Any
"""A two-dimensional float64 array or scipy sparse array; scipy is untyped, so type checkers see `Any`."""

MIN_MAGNITUDE, MAX_MAGNITUDE = 1e-40, 1e40
"""Range of the magnitudes of a problem's non-zero data; products of seven such numbers neither over- nor underflow."""

MAX_ITEMS = 2**28  # items for which a single number may be repeated (2 GiB)

MAX_NUMBER_LENGTH = 10_000  # characters of a number in a text: twice as many digits as Python prints

SYMMETRY_TOLERANCE = 1e-6
"""Maximum of |S - S'| relative to the largest entry of a covariance, somewhat above single precision.

The symmetric part is taken; a matrix with a larger asymmetry is refused."""


def is_empty(value: object) -> bool:
    """Return whether a sequence or an array has no items."""
    shape = getattr(value, "shape", None)
    return 0 in shape if isinstance(shape, tuple) else isinstance(value, Sized) and not len(value)


def numeric(ndim: int | None = None, /, **argument: object) -> Array:
    """Return a read-only float64 copy of a non-empty numeric array, of `ndim` dimensions if given."""
    name, value = _one(argument)
    if value is None or isinstance(value, str | bytes | bool | np.bool):
        kind = "text: " if isinstance(value, str | bytes) else ""
        raise InputTypeError(f"{name} must be a number or an array of numbers, got {kind}{value!r}")
    try:
        raw = np.asarray(value)
        is_masked = np.ma.is_masked(np.ma.array(value) if isinstance(value, list | tuple) else value)
        if is_masked or raw.dtype.kind not in "biufO" or (raw.dtype.kind == "O" and _holds_no_numbers(raw)):
            raise TypeError
        with np.errstate(over="ignore"):  # a longer number may overflow to infinity as a double
            array = frozen_copy(np.asarray(raw, dtype=np.float64))
    except OverflowError as error:
        raise InvalidInputError(f"{name} must be numbers that a double can hold") from error
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"{name} must be an array of real numbers, got {_describe(value)}") from error
    if ndim is not None and array.ndim != ndim:
        raise InvalidInputError(f"{name} must have {ndim} dimension(s), got shape {array.shape}")
    if array.size == 0:
        raise InvalidInputError(f"{name} must not be empty, got shape {array.shape}")
    return array


def _holds_no_numbers(raw: npt.NDArray[Any]) -> bool:
    """Return whether an array of objects is empty, or has None (NumPy reads NaN) or text (NumPy reads numbers)."""
    return not raw.size or any(item is None or isinstance(item, str | bytes) for item in raw.flat)


def finite(ndim: int | None = None, /, **argument: object) -> Array:
    """Return a read-only float64 array without NaN or infinite entries."""
    name, value = _one(argument)
    array = numeric(ndim, **{name: value})
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        raise InvalidInputError(f"{name} must be finite, got {_entry(name, array, bad[0])}")
    return array


def positive(ndim: int | None = None, /, **argument: object) -> Array:
    """Return a read-only float64 array whose entries are all finite and > 0."""
    name, value = _one(argument)
    array = finite(ndim, **{name: value})
    bad = np.argwhere(array <= 0)
    if len(bad):
        raise InvalidInputError(f"{name} must be positive, got {_entry(name, array, bad[0])}")
    return array


def real(**argument: object) -> float:
    """Return one number; it may be NaN or infinite."""
    name, value = _one(argument)
    return value if isinstance(value, float) else float(numeric(0, **{name: value}))


def positive_number(**argument: object) -> float:
    name, number = _number("a positive number", argument)
    if number <= 0:
        raise InvalidInputError(f"{name} must be positive, got {number:g}")
    return number


def exact_number(**argument: object) -> Fraction:
    """Return one finite number > 0 as an exact fraction, from a number, a `Fraction`, or a text such as ``1/20``."""
    name, value = _one(argument)
    try:
        number = (
            rational(value)
            if isinstance(value, str)
            else Fraction(value if isinstance(value, Fraction) else real(**argument))
        )
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(
            f"{name} must be a positive number or a fraction such as '1/2', got {shown(value)}"
        ) from error
    if number <= 0:
        raise InvalidInputError(f"{name} must be positive, got {shown(value)}")
    return number


def exact_or_zero(**argument: object) -> Fraction:
    """Return the exact fraction in a text, at least 0: the form of squared costs and ρ in files."""
    _, value = _one(argument)
    return Fraction(0) if value == "0" else exact_number(**argument)


def rational(text: str) -> Fraction:
    """Return the exact value of a text such as ``1/20`` or ``5e-3``.

    A text that is too long, or has an exponent of more than three digits, is refused before its conversion, which could
    take unlimited time: every text that becomes a fraction is converted here.
    Raises `ValueError` or `ZeroDivisionError`.
    """
    _, e, exponent = text.lower().partition("e")
    if len(text) > MAX_NUMBER_LENGTH or (e and not re.fullmatch("[-+]?0*[0-9]{1,3}", exponent.strip())):
        raise ValueError(f"a number must have at most {MAX_NUMBER_LENGTH} characters and an exponent below 1000")
    return Fraction(text)


def whole(text: str) -> int | None:
    """Return the integer in a text of up to eighteen ASCII digits, None for any other text.

    ``int`` also accepts signs, underscores and other alphabets' digits, and raises for thousands of digits.
    """
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def decoded(contents: str, /, **argument: object) -> Mapping[Any, Any]:
    """Return the mapping in a JSON text; `contents` describes it, such as "names to numbers"."""
    (name,), document = argument, text(**argument)
    try:
        value = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{name} must be JSON: {error}") from error
    return mapping(contents, **{name: value})


def nonnegative_number(**argument: object) -> float:
    name, number = _number("a number of at least 0", argument)
    if number < 0:
        raise InvalidInputError(f"{name} must be at least 0, got {number:g}")
    return number


def probability(**argument: object) -> float:
    name, number = _number("a number strictly between 0 and 1", argument)
    if not 0 < number < 1:
        raise InvalidInputError(f"{name} must lie strictly between 0 and 1, got {number:g}")
    return number


def choice(options: Sequence[str], /, **argument: object) -> str:
    name, value = _one(argument)
    if not isinstance(value, str) or value not in options:
        hint = did_you_mean(value, options)
        raise InvalidInputError(f"{name} must be one of {', '.join(options)}, got {shown(value)}{hint}")
    return value


def size(maximum: int = 2**63 - 1, /, **argument: object) -> int:
    name, number = _integer("of at least 1", argument)
    if not 1 <= number <= maximum:
        limit = "at least 1" if number < 1 else f"at most {maximum}"
        raise InvalidInputError(f"{name} must be an integer of {limit}, got {_describe(number)}")
    return number


def boolean(**argument: object) -> bool:
    """Return True or False; refuse any other value."""
    name, value = _one(argument)
    if not isinstance(value, bool | np.bool):
        raise InputTypeError(f"{name} must be True or False, got {_describe(value)}")
    return bool(value)


def text(**argument: object) -> str:
    name, value = _one(argument)
    if not isinstance(value, str):
        raise InputTypeError(f"{name} must be a text, got {_describe(value)}")
    return value


def composed(name: str) -> str:
    """Return a name in Unicode's form NFC (accents composed with their letters), in which names are compared."""
    return unicodedata.normalize("NFC", name)


def compared(label: str, names: Sequence[str]) -> list[str]:
    """Return names in form NFC; refuse two different names with the same form NFC.

    Examples
    --------
    >>> [len(name) for name in compared("columns", ["sex", "pre" + chr(0x301) + "nom"])]
    [3, 6]
    """
    original: dict[str, str] = {}
    for name in names:
        other = original.setdefault(composed(name), name)
        if other != name:
            raise InvalidInputError(
                f"{label} must have names that differ in Unicode's form NFC, got {composed(name)!r} twice, as "
                f"{other!a} and as {name!a}"
            )
    return [composed(name) for name in names]


def composed_within(label: str, value: Any) -> Any:
    """Return a value with all texts in its lists and mappings in form NFC; refuse names as `compared` does."""
    if isinstance(value, str):
        return composed(value)
    if isinstance(value, list | tuple):
        return type(value)([composed_within(label, item) for item in value])
    if not isinstance(value, Mapping):
        return value
    compared(label, [name for name in value if isinstance(name, str)])
    return {composed_within(label, name): composed_within(label, item) for name, item in value.items()}


def function(**argument: object) -> Any:
    name, value = _one(argument)
    if not callable(value):
        raise InputTypeError(f"{name} must be callable, got {_describe(value)}")
    return value


def instance(kind: type[T], /, **argument: object) -> T:
    name, value = _one(argument)
    if not isinstance(value, kind):
        raise InputTypeError(f"{name} must be a {kind.__name__} of dualmech, got {type(value).__name__}")
    return value


def sequence(**argument: object) -> tuple[Any, ...]:
    """Return the items of an iterable, in order; refuse a text, a mapping or a number."""
    name, value = _one(argument)
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(value, str | bytes | Mapping):
            return tuple(value)
    raise InputTypeError(f"{name} must be a sequence, got {_describe(value)}")


def mapping(contents: str, /, **argument: object) -> Mapping[Any, Any]:
    """Return a mapping; `contents` describes it in the message, such as "names to numbers"."""
    name, value = _one(argument)
    if not isinstance(value, Mapping):
        raise InputTypeError(f"{name} must map {contents}, got {_describe(value)}")
    return value


def index(length: int, /, **argument: object) -> int:
    """Return one integer from 0 to ``length - 1``."""
    name, number = _integer(bounds := f"from 0 to {length - 1}", argument)
    if not 0 <= number < length:
        raise InvalidInputError(f"{name} must be an integer {bounds}, got {_describe(number)}")
    return number


def integers(**argument: object) -> npt.NDArray[np.intp]:
    """Return an array of any number of integers, also none."""
    name, value = _one(argument)
    with contextlib.suppress(TypeError, ValueError):
        array = np.asarray(value)
        has_integers = array.dtype.kind in "iu" and np.can_cast(array.dtype, np.intp)
        if array.ndim == 1 and (has_integers or not array.size):
            return array.astype(np.intp)
    raise InputTypeError(f"{name} must be a sequence of integers, got {_describe(value)}")


def indices(length: int, /, **argument: object) -> npt.NDArray[np.intp]:
    """Return an array of any number of integers from 0 to ``length - 1``."""
    (name,), array = argument, integers(**argument)
    for number in array[(array < 0) | (array >= length)]:
        raise InvalidInputError(f"{name} must be integers from 0 to {length - 1}, got {number}")
    return array


def vector(length: int, item: str, /, **argument: object) -> Array:
    """Return `length` finite numbers; `item` is the noun of the message, one per item."""
    (name,), array = argument, finite(1, **argument)
    if array.shape != (length,):
        raise InvalidInputError(f"{name} must have {length} entries, one per {item}, got {array.shape[0]}")
    return array


def per_item(length: int, /, **argument: object) -> Array:
    """Return `length` positive numbers; a single number is repeated for all."""
    name, value = _one(argument)
    array = positive(**{name: value})
    if length > MAX_ITEMS:
        raise InvalidInputError(f"{name} of {float(length):.3g} items are too many (limit {MAX_ITEMS})")
    if array.ndim == 0:
        return freeze(np.full(length, float(array)))
    if array.shape != (length,):
        raise InvalidInputError(f"{name} must be one number or {length} numbers, got shape {array.shape}")
    return array


def symmetric(**argument: object) -> Array:
    """Return the symmetric part of a finite square matrix; refuse an asymmetry above `SYMMETRY_TOLERANCE`."""
    (name,), array = argument, finite(2, **argument)
    if array.shape[0] != array.shape[1]:
        raise InvalidInputError(f"{name} must be square, got shape {array.shape}")
    with np.errstate(over="ignore"):
        asymmetry, scale = float(np.abs(array - array.T).max()), float(np.abs(array).max())
    if asymmetry > SYMMETRY_TOLERANCE * scale:
        raise InvalidInputError(f"{name} must be symmetric, but differs from its transpose by {asymmetry:g}")
    return freeze(array / 2 + array.T / 2)


def matrix(**argument: object) -> Matrix:
    """Return a finite, non-empty matrix: CSR for a scipy sparse matrix, else a float64 array."""
    name, value = _one(argument)
    if not sp.issparse(value):
        return finite(2, **argument)
    if value.ndim != 2 or 0 in value.shape:
        raise InvalidInputError(f"{name} must be a non-empty matrix, got shape {value.shape}")
    if value.dtype.kind not in "biuf":
        raise InputTypeError(f"{name} must hold real numbers, got a sparse matrix of dtype {value.dtype}")
    sparse = sp.csr_array(value, dtype=np.float64, copy=True)
    sparse.sum_duplicates()
    if not np.all(np.isfinite(sparse.data)):
        raise InvalidInputError(f"{name} must be finite, got NaN or infinite entries")
    return freeze(sparse)


def generator(**argument: object) -> np.random.Generator:
    """Return a generator: the given one, one from an integer seed >= 0, or for None one from fresh entropy."""
    name, value = _one(argument)
    if value is None:
        return np.random.default_rng()
    if isinstance(value, np.random.Generator):
        return value
    _, seed = _integer("seed, None or a numpy.random.Generator", argument)
    if seed < 0:
        raise InvalidInputError(f"{name} must be a seed of at least 0, got {seed}")
    return np.random.default_rng(seed)


def moderate(**argument: Matrix) -> None:
    """Refuse non-zero entries outside `MIN_MAGNITUDE` to `MAX_MAGNITUDE`."""
    name, value = _one(argument)
    entries = np.abs(value.data if sp.issparse(value) else np.asarray(value))
    entries = entries[entries > 0]
    if entries.size and not (entries.min() >= MIN_MAGNITUDE and entries.max() <= MAX_MAGNITUDE):
        worst = entries.max() if entries.max() > MAX_MAGNITUDE else entries.min()
        raise InvalidInputError(
            f"{name} must have non-zero entries of magnitude {MIN_MAGNITUDE:g} to {MAX_MAGNITUDE:g}, got {worst:g}"
        )


def _number(requirement: str, argument: dict[str, object]) -> tuple[str, float]:
    """Return the argument's name and its value, one finite number; `requirement` is for the message."""
    name, value = _one(argument)
    try:
        array = np.asarray(value) if isinstance(value, float) else numeric(**argument)
    except InputTypeError:
        raise InputTypeError(f"{name} must be {requirement}, got {_describe(value)}") from None
    if array.ndim:
        raise InvalidInputError(f"{name} must be {requirement}, got shape {array.shape}")
    number = float(array)
    if not math.isfinite(number):
        raise InvalidInputError(f"{name} must be finite, got {number:g}")
    return name, number


def _integer(bounds: str, argument: dict[str, object]) -> tuple[str, int]:
    name, value = _one(argument)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputTypeError(f"{name} must be an integer {bounds}, got {_describe(value)}")
    return name, int(value)


def _entry(name: str, array: Array, index: npt.NDArray[np.intp]) -> str:
    where = f" at {name}[{', '.join(map(str, index))}]" if array.ndim else ""
    return f"{array[tuple(index)]:g}{where}"


def _one(argument: dict[str, object]) -> tuple[str, Any]:
    ((name, value),) = argument.items()
    return name, value


def _describe(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {shown(value)}"


def shown(value: object) -> str:
    """Return a value in at most 60 characters, also an integer with more digits than Python prints."""
    with contextlib.suppress(ValueError):
        text = " ".join((str if isinstance(value, Fraction) else repr)(value).split())
        return text if len(text) <= 60 else text[:57] + "..."
    return "too long to show"


def as_mapping(**argument: Any) -> Any:
    """Return a pandas Series with an index of names as a mapping, and other values unchanged.

    A Series with the default index 0, 1, … is returned as an array, and a DataFrame of one column is taken as its
    column. Duplicate names and nested lists of different lengths are refused.
    """
    name, values = _one(argument)
    if isinstance(values, list | tuple):
        try:
            np.ndim(values)
        except ValueError:
            raise InvalidInputError(
                f"{name} must be a number or an array of numbers, got lists of different lengths"
            ) from None
    if hasattr(values, "columns") and hasattr(values, "dtypes"):
        if len(values.columns) != 1:
            raise InvalidInputError(f"{name} must be one column of numbers, got {len(values.columns)} columns")
        values = values[values.columns[0]]
    index = getattr(values, "index", None)
    if index is None or callable(index) or not hasattr(values, "to_numpy"):
        return values
    if not hasattr(index, "is_unique") or counts_from_zero(index):
        return values.to_numpy()
    if not index.is_unique:
        raise InvalidInputError(f"{name} must name each item once, {index[index.duplicated()][0]!r} is double")
    # Sets of attributes of different sizes are padded with NaN, which no name equals.
    keys = [tuple(part for part in key if part == part) if isinstance(key, tuple) else key for key in index]
    return dict(zip(keys, values.to_numpy().tolist(), strict=True))


def counts_from_zero(index: Any) -> bool:
    """Return whether the index of a pandas object is the default index, which counts from 0."""
    return type(index).__name__ == "RangeIndex" and (index.start, index.step) == (0, 1)
