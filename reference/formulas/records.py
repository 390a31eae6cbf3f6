"""What is said of a family of problems: its symbols, its program, its dual, and why that bounds it.

Formulas are LaTeX of the small vocabulary that `dualmech.reference.formulas.writing` turns into text; words hold
formulas between dollar signs. Each is written once, for a terminal and for a page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dualmech.validate import Array

PRINTED_SIDE = 8
"""Largest number of rows, and of columns, of an array that is printed."""


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """A letter, what it stands for, and its numbers where they are few."""

    name: str  # a formula
    meaning: str  # words
    shape: tuple[int, ...] | None = None  # of its array, () of a number; None where it is no array
    numbers: Callable[[], Array] | None = None  # makes the array, which is only done where it is small
    # where an answer holds it: the name of a part of its point, or of its dual weights; ``itself`` for the point
    part: str = ""

    @property
    def printed(self) -> Array | None:
        """The numbers, where they are few enough to be read."""
        if self.numbers is None or not all(0 < side <= PRINTED_SIDE for side in self.shape or ()):
            return None
        return np.asarray(self.numbers(), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A formula that has a line of its own, and what is said of it."""

    formula: str
    remark: str = ""  # words
    label: str = ""  # of a constraint, what the CVXPY program calls it


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """An optimisation problem."""

    sense: str  # minimise or maximise
    objective: str  # a formula
    over: str  # words
    constraints: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A problem in formulas: every symbol is among `given`, `sought` or `weights`, and stands before it is used."""

    given: tuple[Symbol, ...]
    sought: tuple[Symbol, ...]
    program: Program
    weights: tuple[Symbol, ...]  # the dual variables
    dual: Program
    proof: tuple[Line, ...]  # that the dual bounds the program, whatever the weights
    notes: tuple[str, ...] = ()  # words: what structure there is, and what is special about this problem
