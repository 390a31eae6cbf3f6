"""Validators as vocabulary: `positive(targets=c)` returns clean data or raises an error that names `targets`.

Every validator takes exactly one keyword, the argument's name as its user wrote it, so that the message can
name it. Nothing is repaired in silence: data are converted to read-only float64 or refused.
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
"""A float64 array or a scipy sparse array, two-dimensional; scipy is untyped, so this is no more than a name."""

SMALLEST, LARGEST = 1e-40, 1e40
"""Magnitudes between which a problem's non-zero data must lie: products of seven stay doubles."""

MOST_ITEMS = 2**28  # largest number of items that a single number is spread over (2 GiB)

LONGEST_NUMBER = 10_000  # characters of a text that spells a number: two whole numbers as long as Python writes any

SYMMETRY_TOLERANCE = 1e-6
"""Largest |S - S'| allowed in a covariance, relative to its largest entry: somewhat above single precision.

The symmetric part is taken; a covariance with a larger asymmetry is refused."""


def is_empty(value: object) -> bool:
    """Whether a sequence or an array has no items at all."""
    shape = getattr(value, "shape", None)
    return 0 in shape if isinstance(shape, tuple) else isinstance(value, Sized) and not len(value)


def numeric(ndim: int | None = None, /, **named: object) -> Array:
    """Return a read-only float64 copy of a non-empty numeric array, of `ndim` dimensions if given."""
    name, value = _one(named)
    if value is None or isinstance(value, str | bytes | bool | np.bool):
        kind = "text: " if isinstance(value, str | bytes) else ""
        raise InputTypeError(f"{name} must be a number or an array of numbers, got {kind}{value!r}")
    try:
        raw = np.asarray(value)
        masked = np.ma.is_masked(np.ma.array(value) if isinstance(value, list | tuple) else value)
        if masked or raw.dtype.kind not in "biufO" or (raw.dtype.kind == "O" and _holds_no_numbers(raw)):
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
    """Whether numpy would read None as NaN, or texts as numbers; an empty list has no type."""
    return not raw.size or any(item is None or isinstance(item, str | bytes) for item in raw.flat)


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
    name, number = _number("a positive number", named)
    if number <= 0:
        raise InvalidInputError(f"{name} must be positive, got {number:g}")
    return number


def exact_number(**named: object) -> Fraction:
    """Return one finite number > 0 as an exact fraction, from a number, a `Fraction`, or a text such as ``1/20``."""
    name, value = _one(named)
    try:
        number = (
            rational(value)
            if isinstance(value, str)
            else Fraction(value if isinstance(value, Fraction) else real(**named))
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


def exact_or_zero(**named: object) -> Fraction:
    """Return a text of a number of at least 0 as an exact fraction, as files hold squared costs and ρ."""
    _, value = _one(named)
    return Fraction(0) if value == "0" else exact_number(**named)


def rational(text: str) -> Fraction:
    """Return the number that a text such as ``1/20`` or ``5e-3`` spells, exactly.

    Every text that becomes a fraction comes through here. A text that is too long, or has an exponent of more than
    three digits, is refused before its conversion, which could take for ever.
    Raises `ValueError` or `ZeroDivisionError`.
    """
    _, e, exponent = text.lower().partition("e")
    if len(text) > LONGEST_NUMBER or (e and not re.fullmatch("[-+]?0*[0-9]{1,3}", exponent.strip())):
        raise ValueError(f"a number of at most {LONGEST_NUMBER} characters, and of an exponent below 1000, is wanted")
    return Fraction(text)


def whole(text: str) -> int | None:
    """Return the whole number that up to eighteen digits spell, None for any other text.

    ``int`` also takes signs, underscores and foreign digits, and fails at thousands of them.
    """
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def decoded(what: str, /, **named: object) -> Mapping[Any, Any]:
    """Return the mapping in a JSON text; `what` says what the text maps."""
    (name,), written = named, text(**named)
    try:
        value = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{name} must be JSON: {error}") from error
    return mapping(what, **{name: value})


def nonnegative_number(**named: object) -> float:
    name, number = _number("a number of at least 0", named)
    if number < 0:
        raise InvalidInputError(f"{name} must be at least 0, got {number:g}")
    return number


def probability(**named: object) -> float:
    name, number = _number("a number strictly between 0 and 1", named)
    if not 0 < number < 1:
        raise InvalidInputError(f"{name} must lie strictly between 0 and 1, got {number:g}")
    return number


def choice(known: Sequence[str], /, **named: object) -> str:
    name, value = _one(named)
    if not isinstance(value, str) or value not in known:
        words = f"{shown(value)}{did_you_mean(value, known)}"
        raise InvalidInputError(f"{name} must be one of {', '.join(known)}, got {words}")
    return value


def size(most: int = 2**63 - 1, /, **named: object) -> int:
    name, number = _integer("of at least 1", named)
    if not 1 <= number <= most:
        allowed = "at least 1" if number < 1 else f"at most {most}"
        raise InvalidInputError(f"{name} must be an integer of {allowed}, got {_describe(number)}")
    return number


def boolean(**named: object) -> bool:
    """Return True or False; any other value is refused."""
    name, value = _one(named)
    if not isinstance(value, bool | np.bool):
        raise InputTypeError(f"{name} must be True or False, got {_describe(value)}")
    return bool(value)


def text(**named: object) -> str:
    name, value = _one(named)
    if not isinstance(value, str):
        raise InputTypeError(f"{name} must be a text, got {_describe(value)}")
    return value


def composed(name: str) -> str:
    """Return a name as names are compared: its accents composed with their letters, Unicode's form NFC."""
    return unicodedata.normalize("NFC", name)


def compared(what: str, names: Sequence[str]) -> list[str]:
    """Return names as they are compared; refuse two that differ, but not as they are compared.

    Examples
    --------
    >>> [len(name) for name in compared("columns", ["sex", "pre" + chr(0x301) + "nom"])]
    [3, 6]
    """
    written: dict[str, str] = {}
    for name in names:
        other = written.setdefault(composed(name), name)
        if other != name:
            raise InvalidInputError(
                f"{what} must have names that differ in Unicode's form NFC, got {composed(name)!r} twice, as {other!a} "
                f"and as {name!a}"
            )
    return [composed(name) for name in names]


def composed_within(what: str, value: Any) -> Any:
    """Return a value with all its texts as they are compared, in lists and mappings too; refuse as `compared`."""
    if isinstance(value, str):
        return composed(value)
    if isinstance(value, list | tuple):
        return type(value)([composed_within(what, item) for item in value])
    if not isinstance(value, Mapping):
        return value
    compared(what, [name for name in value if isinstance(name, str)])
    return {composed_within(what, name): composed_within(what, item) for name, item in value.items()}


def function(**named: object) -> Any:
    name, value = _one(named)
    if not callable(value):
        raise InputTypeError(f"{name} must be callable, got {_describe(value)}")
    return value


def instance(kind: type[T], /, **named: object) -> T:
    name, value = _one(named)
    if not isinstance(value, kind):
        raise InputTypeError(f"{name} must be a {kind.__name__} of dualmech, got {type(value).__name__}")
    return value


def sequence(**named: object) -> tuple[Any, ...]:
    """Return the items of something that holds several, in order; a text, a mapping or one number is refused."""
    name, value = _one(named)
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(value, str | bytes | Mapping):
            return tuple(value)
    raise InputTypeError(f"{name} must be a sequence, got {_describe(value)}")


def mapping(what: str, /, **named: object) -> Mapping[Any, Any]:
    """Return a mapping; the text says what it maps, such as "names to numbers"."""
    name, value = _one(named)
    if not isinstance(value, Mapping):
        raise InputTypeError(f"{name} must map {what}, got {_describe(value)}")
    return value


def index(below: int, /, **named: object) -> int:
    """Return one integer from 0 to ``below - 1``."""
    name, number = _integer(allowed := f"from 0 to {below - 1}", named)
    if not 0 <= number < below:
        raise InvalidInputError(f"{name} must be an integer {allowed}, got {_describe(number)}")
    return number


def integers(**named: object) -> npt.NDArray[np.intp]:
    """Return integers, as many as are given (also none)."""
    name, value = _one(named)
    with contextlib.suppress(TypeError, ValueError):
        array = np.asarray(value)
        whole = array.dtype.kind in "iu" and np.can_cast(array.dtype, np.intp)
        if array.ndim == 1 and (whole or not array.size):
            return array.astype(np.intp)
    raise InputTypeError(f"{name} must be a sequence of integers, got {_describe(value)}")


def indices(below: int, /, **named: object) -> npt.NDArray[np.intp]:
    """Return integers from 0 to ``below - 1``, as many as are given (also none)."""
    (name,), array = named, integers(**named)
    for number in array[(array < 0) | (array >= below)]:
        raise InvalidInputError(f"{name} must be integers from 0 to {below - 1}, got {number}")
    return array


def vector(length: int, of: str, /, **named: object) -> Array:
    """Return `length` finite numbers, one per item; the text names the item."""
    (name,), array = named, finite(1, **named)
    if array.shape != (length,):
        raise InvalidInputError(f"{name} must have {length} entries, one per {of}, got {array.shape[0]}")
    return array


def per_item(length: int, /, **named: object) -> Array:
    """Return `length` positive numbers; a single number is repeated for all."""
    name, value = _one(named)
    array = positive(**{name: value})
    if length > MOST_ITEMS:
        raise InvalidInputError(f"{name} of {float(length):.3g} items are too many (limit {MOST_ITEMS})")
    if array.ndim == 0:
        return freeze(np.full(length, float(array)))
    if array.shape != (length,):
        raise InvalidInputError(f"{name} must be one number or {length} numbers, got shape {array.shape}")
    return array


def symmetric(**named: object) -> Array:
    """Return a finite square matrix: a small asymmetry is averaged out, a larger one is refused."""
    (name,), array = named, finite(2, **named)
    if array.shape[0] != array.shape[1]:
        raise InvalidInputError(f"{name} must be square, got shape {array.shape}")
    with np.errstate(over="ignore"):
        asymmetry, scale = float(np.abs(array - array.T).max()), float(np.abs(array).max())
    if asymmetry > SYMMETRY_TOLERANCE * scale:
        raise InvalidInputError(f"{name} must be symmetric, but differs from its transpose by {asymmetry:g}")
    return freeze(array / 2 + array.T / 2)


def matrix(**named: object) -> Matrix:
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
    return freeze(sparse)


def generator(**named: object) -> np.random.Generator:
    """Return a generator: the given one, one from an integer seed >= 0, or for None one that nobody can repeat."""
    name, value = _one(named)
    if value is None:
        return np.random.default_rng()
    if isinstance(value, np.random.Generator):
        return value
    _, seed = _integer("seed, None or a numpy.random.Generator", named)
    if seed < 0:
        raise InvalidInputError(f"{name} must be a seed of at least 0, got {seed}")
    return np.random.default_rng(seed)


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


def _number(allowed: str, named: dict[str, object]) -> tuple[str, float]:
    """Return the name and one finite number; refuse anything else, and name the allowed values."""
    name, value = _one(named)
    try:
        array = np.asarray(value) if isinstance(value, float) else numeric(**named)
    except InputTypeError:
        raise InputTypeError(f"{name} must be {allowed}, got {_describe(value)}") from None
    if array.ndim:
        raise InvalidInputError(f"{name} must be {allowed}, got shape {array.shape}")
    number = float(array)
    if not math.isfinite(number):
        raise InvalidInputError(f"{name} must be finite, got {number:g}")
    return name, number


def _integer(allowed: str, named: dict[str, object]) -> tuple[str, int]:
    name, value = _one(named)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputTypeError(f"{name} must be an integer {allowed}, got {_describe(value)}")
    return name, int(value)


def _entry(name: str, array: Array, index: npt.NDArray[np.intp]) -> str:
    where = f" at {name}[{', '.join(map(str, index))}]" if array.ndim else ""
    return f"{array[tuple(index)]:g}{where}"


def _one(named: dict[str, object]) -> tuple[str, Any]:
    ((name, value),) = named.items()
    return name, value


def _describe(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {shown(value)}"


def shown(value: object) -> str:
    """Return a value in a few words, even a number with so many digits that Python refuses to write it out."""
    with contextlib.suppress(ValueError):
        text = " ".join((str if isinstance(value, Fraction) else repr)(value).split())
        return text if len(text) <= 60 else text[:57] + "..."
    return "too long to show"


def as_mapping(**named: Any) -> Any:
    """Return a pandas Series with names as a mapping, and anything else as it is; a name may come once only.

    A Series whose index only counts from 0, as one that was given no names, is taken by position. So is a DataFrame
    of one column. Lists of different lengths in one another, which are no array, are refused.
    """
    name, values = _one(named)
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
    """Whether the index of a pandas object only counts from 0, as one that was given no names."""
    return type(index).__name__ == "RangeIndex" and (index.start, index.step) == (0, 1)
