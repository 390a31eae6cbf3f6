"""A table or figure of a paper: what is computed for it, and how its rows are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console

    from dualmech.crosscheck.agreement import Agreement


class Computed(Protocol):
    """What every computed row tells: whether certified answers agree, and the widest gap among them."""

    @property
    def outcome(self) -> Agreement:
        """How the row's certified answers compare."""

    @property
    def gap(self) -> float:
        """The widest certified gap."""


Tasks = Callable[..., Sequence[Callable[[], Any]]]
"""Takes whether to be quick; returns what to compute, a row each, none depending on another. Those of a `timed` sheet
take `limit` as well, the seconds that each run of a published solver, or for an optimised strategy, gets."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table or figure."""

    source: str  # Paper and number
    tasks: Tasks
    # Prints the rows, as they come where their form allows
    show: Callable[[Console, str, Iterator[Any]], None]
    picture: Callable[[Any, Sequence[Any]], None] | None = None  # Draws the same rows on its panels
    # Takes the path of a data file to what to compute on it, where the sheet is of real records;
    # refuses another
    data: Callable[[str], Tasks] | None = None
    # Takes the path of a file of settings, and what to compute, to the same under these; refuses another
    grid: Callable[[str, Tasks], Tasks] | None = None
    timed: bool = False  # Whether its tasks take a time limit
    apart: bool = False  # Whether it has to be named: it takes too long to be one of all
    panels: int = 1  # Pairs of axes, side by side, of the picture: one scale each
