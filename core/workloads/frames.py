"""Tables with names on their sides, as pandas has them: known by what they offer, so that pandas is never loaded."""

from __future__ import annotations

from typing import Any

from dualmech.errors import InputTypeError


def counts_from_zero(index: Any) -> bool:
    """Whether the index of a pandas object only counts from 0, as one that was given no names."""
    return type(index).__name__ == "RangeIndex" and (index.start, index.step) == (0, 1)


def frame_sides(frame: Any) -> tuple[list[str] | None, list[str] | None]:
    """Return the names of a DataFrame's rows and of its columns, None where they only count from 0.

    Raises `InputTypeError` for a column that holds no numbers.
    """
    for name, kind in zip(frame.columns, frame.dtypes, strict=True):
        if getattr(kind, "kind", "O") not in "biuf":
            raise InputTypeError(
                f"workload must hold numbers alone, column {name!r} holds others; where it names the queries, make it "
                f"the index: set_index({name!r})"
            )
    rows = None if counts_from_zero(frame.index) else [_text(key) for key in frame.index]
    return rows, column_names(frame)


def column_names(source: Any) -> list[str] | None:
    """Return the names of a DataFrame's columns; None where they only count from 0, and of what has no columns."""
    columns = getattr(source, "columns", None)
    return None if columns is None or counts_from_zero(columns) else [_text(key) for key in columns]


def _text(key: Any) -> str:
    return " x ".join(map(str, key)) if isinstance(key, tuple) else str(key)
