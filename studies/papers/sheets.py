"""Papers' tables and figures by name, and how their rows are computed; a paper is loaded when a sheet needs it."""

from __future__ import annotations

import hashlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dualmech import watching
from dualmech.crosscheck.processes import computed
from dualmech.errors import DualmechError, InvalidInputError, did_you_mean

if TYPE_CHECKING:
    from dualmech import Solution
    from dualmech.crosscheck.sheet import Row, Sheet

    Task: TypeAlias = Callable[[], Row]

PAPERS: dict[str, list[str]] = {
    "fitness": [*(f"table{number}" for number in range(2, 12)), *(f"figure{number}" for number in (1, 2, 3))],
    "eigen": [
        "alternative",
        "ranges",
        "marginals",
        "designs",
        "completion",
        "reductions",
        "reductions8192",
        "pure",
        "relative",
    ],
    "common": ["examples", "ellipses", "saved", "census", "hisrace", "brazil", "thresholds"],
    "local": [
        "histograms",
        "descent",
        "initialisation",
        "epsilon",
        "epsilon512",
        "size",
        "worst",
        "steps",
        "consistency",
    ],
    "scale": ["dense", "adult", "sixty", "domains", "published", "growth", "census"],
    "backends": ["claims", "files", "scales"],
    "streams": ["known"],
}
"""Names of each paper's sheets, in order: known before it is loaded."""

EVERYTHING = "all"  # the name behind a paper's slash for all of its tables and figures

MODULES = {
    "fitness": ("fitness.ratios", "fitness.figures"),
    "eigen": ("eigen.instances", "eigen.designs", "eigen.relative"),
    "common": ("common.examples", "common.census", "common.decisions"),
    "local": ("local.comparison", "local.descent"),
}
"""The modules of a paper's sheets, where it has several."""


def loaded(paper: str) -> dict[str, Sheet]:
    sheets: dict[str, Sheet] = {}
    for module in MODULES.get(paper, (paper,)):
        sheets |= pkgutil.resolve_name(f"dualmech.studies.papers.{module}:SHEETS")
    return {name: sheets[name] for name in PAPERS[paper]}


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

REFUSALS = {
    "data": "--data takes a file to the tables of real records",
    "grid": "--grid takes settings to the tables that have them",
    "longer": "--all is for the tables that have a longer study",
    "limit": "--time-limit is for the tables whose runs may be stopped",
}
"""The options of sheets, by the names that their tasks know, with what is said where no sheet takes one."""


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


def planned(sheets: Mapping[str, Sheet], quick: bool, options: Mapping[str, Any]) -> dict[str, Sequence[Task]]:
    """Return the tasks of each sheet, with those of the options that it takes.

    A data file that is not for a sheet is left to the others. Raises `InvalidInputError` where no sheet takes an
    option, or the data file is for none; and what tasks raise for another file.
    """
    for name in options:
        if not any(name in sheet.options for sheet in sheets.values()):
            known = ", ".join(known for known, sheet in SHEETS.items() if name in sheet.options)
            raise InvalidInputError(f"{REFUSALS[name]}, {known}; none was named")
    tasks: dict[str, Sequence[Task]] = {}
    refusals: list[InvalidInputError] = []
    for name, sheet in sheets.items():
        taken = {option: value for option, value in options.items() if option in sheet.options}
        try:
            tasks[name] = sheet.tasks(quick, **taken)
        except InvalidInputError as error:
            if taken.pop("data", None) is None:
                raise
            refusals.append(error)
            tasks[name] = sheet.tasks(quick, **taken)
    if refusals and len(refusals) == sum("data" in sheet.options for sheet in sheets.values()):
        raise refusals[0]
    return tasks


def compute(tasks: Mapping[str, Sequence[Task]], jobs: int = 1, proofs: str | None = None) -> Iterator[Iterator[Row]]:
    """Yield the rows of each sheet, in order, computed `jobs` at a time across sheets; no more than rows or cores.

    Several at a time get one BLAS thread each. The rows of a sheet must be taken before those of the next. With
    `proofs`, a folder, each row writes proofs of the optima that it rests on (`proven`).
    """
    rows = computed([partial(_computed, task, name, proofs) for name, batch in tasks.items() for task in batch], jobs)
    for batch in tasks.values():
        yield islice(rows, len(batch))


def _computed(task: Task, name: str, proofs: str | None) -> Row:
    """Compute a row, whose verdict says what is not certified: nothing else warns of it."""
    with watching.without_warnings(), watching.answers() as answers:
        row = task()
    if proofs is not None:
        prove(answers, Path(proofs), name)
    return row


# Proofs of the optima that the rows of tables rest on: a file for each, written as rows are computed.


def prove(answers: Sequence[Solution], folder: Path, sheet: str) -> None:
    """Write a proof of every optimum that a solver certified, the narrowest interval of each, into a folder.

    Each is ``SHEET-PROBLEM-DIGEST.json``, the digest being of the problem's numbers; for a problem that has no proof,
    or is too large for one, the same name with ``.txt`` holds the reason. Files that are there are kept.
    """
    import dualmech as dm
    from dualmech import files

    best: list[Solution] = []
    for answer in sorted(answers, key=lambda item: item.gap):
        if answer.status is dm.Status.CERTIFIED and not any(answer.problem.same_as(other.problem) for other in best):
            best.append(answer)
    for answer in best:
        try:
            proof, reason = dm.prove(answer), ""
            stated = json.dumps(proof.document["problem"], sort_keys=True)
        except DualmechError as error:
            proof, reason, stated = None, f"{error}\n", repr(answer.problem)
        words = re.sub(r"\W+", "-", answer.problem.headline).strip("-")
        digest = hashlib.sha256(stated.encode()).hexdigest()[:12]
        path = folder / f"{sheet.replace('/', '-')}-{words}-{digest}.json"
        if proof is None:
            files.atomic.write_text(path.with_suffix(".txt"), reason)
        elif not path.exists():
            proof.save(path)


def written(folder: str) -> str:
    """Return in words how many proofs a folder has, and of how many problems there is none."""
    proofs, refused = (len([*Path(folder).glob(f"*.{kind}")]) for kind in ("json", "txt"))
    words = f"; {refused} have none, and a file with the reason" if refused else ""
    return f"{folder}: {proofs} optima proven in whole numbers{words}"
