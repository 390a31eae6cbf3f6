"""From a statement to the sections of a page."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dualmech.formulas.records import Line, Program, Statement, Symbol
from dualmech.formulas.writing import Aligned, Entries, Part, Section, Words
from dualmech.validate import Array


def program_section(title: str, statement: Statement) -> Section:
    """Return the section that defines all symbols, and then states the program."""
    defined = symbol_parts((*statement.given, *statement.sought))
    return Section(title, (*defined, program_part(statement.program), *map(Words, statement.notes)))


def dual_section(statement: Statement) -> Section:
    """Return the section of the dual: any weights prove a bound."""
    parts = (*symbol_parts(statement.weights), program_part(statement.dual))
    return Section("Its dual: any such weights prove a bound.", parts)


def symbol_parts(symbols: tuple[Symbol, ...]) -> tuple[Part, ...]:
    """Return what says what symbols stand for, each with its numbers where they are few."""
    parts: list[Part] = []
    for symbol in symbols:
        shape = "" if not symbol.shape else f" ({' x '.join(map(count, symbol.shape))})"
        numbers = symbol.printed
        same = None if numbers is None else listed(numbers)
        parts.append(Words(f"${symbol.name}${shape if same is None else f' $=$ {same}'}: {symbol.meaning}"))
        if numbers is not None and same is None:
            parts.append(Entries(symbol.name, entries(numbers)))
    return tuple(parts)


def program_part(program: Program) -> Aligned:
    """Return a program, its constraints below each other."""
    rows = [(program.sense, program.objective, f"over {program.over}" if program.over else "")]
    for index, line in enumerate(program.constraints):
        rows.append(("" if index else "subject to", line.formula, line.remark))
    return Aligned(tuple(rows))


def proof_part(lines: tuple[Line, ...]) -> Aligned:
    """Return formulas of a proof, below each other."""
    return Aligned(tuple(("", line.formula, line.remark) for line in lines))


def listed(numbers: Array) -> str | None:
    """Return a number or a vector in a line of words, None of a matrix."""
    if numbers.ndim == 0:
        return f"${number(float(numbers))}$"
    return in_line(map(number, numbers.tolist())) if numbers.ndim == 1 else None


def in_line(texts: Iterable[str]) -> str:
    """Return numbers in brackets, as words that a line may break between."""
    return f"({', '.join(f'${text}$' for text in texts)})"


def entries(numbers: Array) -> tuple[tuple[str, ...], ...]:
    """Return the entries of a matrix as text."""
    return tuple(tuple(number(float(entry)) for entry in row) for row in np.atleast_2d(numbers))


def number(value: float) -> str:
    """Return a number as it is printed."""
    return f"{value + 0.0:.6g}"


def count(value: int) -> str:
    """Return a size, that of a domain beyond memory rounded.

    >>> count(4096), count(10**60)
    ('4096', '1e+60')
    """
    return str(value) if value < 10**9 else f"{value:.3g}"
