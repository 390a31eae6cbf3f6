"""Papers' tables and figures by name; a paper is loaded when one of its sheets is needed."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from dualmech.crosscheck.processes import computed
from dualmech.errors import InvalidInputError, did_you_mean

if TYPE_CHECKING:
    from dualmech.crosscheck.sheet import Row, Sheet, Tasks

PAPERS: dict[str, tuple[str, ...]] = {
    "fitness": (*(f"table{number}" for number in range(2, 12)), *(f"figure{number}" for number in (1, 2, 3))),
    "eigen": (
        "alternative",
        "ranges",
        "marginals",
        "designs",
        "completion",
        "reductions",
        "reductions8192",
        "pure",
        "relative",
    ),
    "common": ("examples", "ellipses", "saved", "census", "hisrace", "brazil", "thresholds"),
    "local": (
        "histograms",
        "descent",
        "initialisation",
        "epsilon",
        "epsilon512",
        "size",
        "worst",
        "steps",
        "consistency",
    ),
    "scale": ("dense", "adult", "sixty", "domains", "published", "growth", "census"),
    "backends": ("claims", "files", "scales"),
    "streams": ("known",),
}
"""Names of each paper's sheets, in order: known before it is loaded."""

EVERYTHING = "all"  # the name behind a paper's slash for all of its tables and figures


REPORTS = {
    **{paper: f"dualmech.studies.papers.{paper}.report" for paper in ("fitness", "eigen", "common", "local")},
    **{paper: f"dualmech.studies.papers.{paper}" for paper in ("scale", "backends", "streams")},
}
"""The module with each paper's sheets."""


def loaded(paper: str) -> dict[str, Sheet]:
    sheets: dict[str, Sheet] = pkgutil.resolve_name(f"{REPORTS[paper]}:SHEETS")
    return sheets


class _Registry(Mapping[str, "Sheet"]):
    """All sheets by paper and name; names are known before any paper is loaded."""

    def __getitem__(self, name: str) -> Sheet:
        paper, _, sheet = name.partition("/")
        if sheet not in PAPERS[paper]:
            raise KeyError(name)
        return loaded(paper)[sheet]

    def __iter__(self) -> Iterator[str]:
        return (f"{paper}/{name}" for paper, names in PAPERS.items() for name in names)

    def __len__(self) -> int:
        return sum(map(len, PAPERS.values()))


SHEETS: Mapping[str, Sheet] = _Registry()  # tables and figures by name; the first is the default


def sheet_names() -> str:
    """Return the names of all sheets in words, each paper's with the name for all of them."""
    return "; ".join(", ".join(f"{paper}/{name}" for name in (*names, EVERYTHING)) for paper, names in PAPERS.items())


def select_sheets(names: Sequence[str]) -> dict[str, Sheet]:
    """Return sheets by name, for ``fitness/all`` a paper's but those `apart`, the first where none is named.

    Raises `InvalidInputError` for an unknown name.
    """
    wanted: dict[str, Sheet] = {}
    whole = {f"{paper}/{EVERYTHING}": f"{paper}/" for paper in PAPERS}
    for name in names or [next(iter(SHEETS))]:
        if name in whole:
            members = [sheet for sheet in SHEETS if sheet.startswith(whole[name]) and not SHEETS[sheet].apart]
        elif name in SHEETS:
            members = [name]
        else:
            known = [*SHEETS, *whole]
            meant = did_you_mean(name, known)
            raise InvalidInputError(f"unknown table {name!r}{meant}; known are {', '.join(known)}")
        wanted |= {member: SHEETS[member] for member in members}
    return wanted


def with_data(sheets: Mapping[str, Sheet], path: str) -> dict[str, Sheet]:
    """Return the sheets with those that are of real records put on a data file, as far as it fits them.

    Raises `InvalidInputError` where none of them is, or the file is for none of those that are.
    """
    if not any(sheet.data for sheet in sheets.values()):
        known = ", ".join(name for name, sheet in SHEETS.items() if sheet.data)
        raise InvalidInputError(f"--data takes a file to the tables of real records, {known}; none was named")
    placed: dict[str, Sheet] = {}
    refusals: list[InvalidInputError] = []
    for name, sheet in sheets.items():
        try:
            if sheet.data:
                placed[name] = replace(sheet, tasks=sheet.data(path), data=None)
        except InvalidInputError as error:
            refusals.append(error)
    if not placed:
        raise refusals[0]
    return {**sheets, **placed}


def with_grid(sheets: Mapping[str, Sheet], path: str) -> dict[str, Sheet]:
    """Return the sheets with those that have settings under the ones in a file.

    Raises `InvalidInputError` where none of them has, or `FileFormatError` for another file.
    """
    placed = {name: sheet.grid(path, sheet.tasks) for name, sheet in sheets.items() if sheet.grid}
    takers = [name for name, sheet in SHEETS.items() if sheet.grid]
    return _placed(sheets, placed, takers, "--grid takes settings to the tables that have them")


def with_longer(sheets: Mapping[str, Sheet]) -> dict[str, Sheet]:
    """Return the sheets with the longer study of those that have one.

    Raises `InvalidInputError` where none of them has.
    """
    placed = {name: sheet.longer for name, sheet in sheets.items() if sheet.longer}
    takers = [name for name, sheet in SHEETS.items() if sheet.longer]
    return _placed(sheets, placed, takers, "--all is for the tables that have a longer study")


def with_time_limit(sheets: Mapping[str, Sheet], seconds: float) -> dict[str, Sheet]:
    """Return the sheets with so many seconds for each run of a solver in those that have such runs.

    Raises `InvalidInputError` where none of them has.
    """
    placed = {name: partial(sheet.tasks, limit=seconds) for name, sheet in sheets.items() if sheet.timed}
    takers = [name for name, sheet in SHEETS.items() if sheet.timed]
    return _placed(sheets, placed, takers, "--time-limit is for the tables whose runs may be stopped")


def _placed(
    sheets: Mapping[str, Sheet], tasks: Mapping[str, Tasks], takers: Sequence[str], option: str
) -> dict[str, Sheet]:
    """Return the sheets with other tasks for some; refuse an option that none of them takes, naming those that do."""
    if not tasks:
        raise InvalidInputError(f"{option}, {', '.join(takers)}; none was named")
    return {name: replace(sheet, tasks=tasks.get(name, sheet.tasks)) for name, sheet in sheets.items()}


def compute(sheets: Sequence[Sheet], quick: bool = False, jobs: int = 1) -> Iterator[Iterator[Row]]:
    """Yield the rows of each sheet, in order, computed `jobs` at a time across sheets; no more than rows or cores.

    Several at a time get one BLAS thread each. The rows of a sheet must be taken before those of the next.
    """
    batches = [sheet.tasks(quick) for sheet in sheets]
    rows = computed([task for batch in batches for task in batch], jobs)
    for batch in batches:
        yield islice(rows, len(batch))
