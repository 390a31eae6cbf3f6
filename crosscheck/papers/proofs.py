"""Proofs of the optima that the rows of tables rest on: a file for each, written as rows are computed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dualmech import files, watching
from dualmech.crosscheck.papers.sheet import Sheet, Tasks
from dualmech.errors import DualmechError
from dualmech.progress import Status
from dualmech.proofs.prove import provable, prove, statement
from dualmech.solution import Solution

Task = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Written:
    """What a folder holds: how many proofs there are, and of what there is none, with the reason."""

    proofs: int
    refused: dict[str, str]


def with_proofs(sheets: Mapping[str, Sheet], folder: str) -> dict[str, Sheet]:
    """Return the sheets with rows that write a proof of every optimum which a solver certified for them.

    Each is ``SHEET-PROBLEM-DIGEST.json``, the digest being of the problem's numbers; of what has no proof, or is too
    large for one, the same name with ``.txt`` holds the reason. Raises `FileFormatError` where the folder cannot be
    made or written to.
    """
    place = files.atomic.make_folder(folder)
    return {
        name: replace(sheet, tasks=partial(_proving, sheet.tasks, place, name))
        for name, sheet in sheets.items()
    }


def written(folder: str) -> Written:
    """Return what rows have written into a folder."""
    reasons = {
        path.stem: path.read_text(encoding="utf-8").strip() for path in sorted(Path(folder).glob("*.txt"))
    }
    return Written(len([*Path(folder).glob("*.json")]), reasons)


def _proving(tasks: Tasks, folder: Path, name: str, quick: bool) -> Sequence[Task]:
    return [partial(_proven, task, folder, name) for task in tasks(quick)]


def _proven(task: Task, folder: Path, name: str) -> Any:
    """Compute a row, and write a proof of each optimum that was certified for it, the narrowest interval of each."""
    with watching.answers() as found:
        row = task()
    best: dict[str, Solution] = {}
    for answer in sorted(found, key=lambda each: -each.gap):
        if answer.status is Status.CERTIFIED:
            best[_digest(answer.problem)] = answer
    for digest, answer in best.items():
        words = re.sub(r"\W+", "-", answer.problem.headline).strip("-")
        path = folder / f"{name.replace('/', '-')}-{words}-{digest}.json"
        if path.exists():
            continue
        try:
            prove(answer).save(path)
        except DualmechError as error:
            with files.atomic_write(path.with_suffix(".txt")) as handle:
                handle.write(f"{error}\n".encode())
    return row


def _digest(problem: Any) -> str:
    """Return a short name of a problem's numbers, or of what it is where it has no proof."""
    try:
        stated = json.dumps(statement(problem, provable(problem)), sort_keys=True)
    except DualmechError:
        stated = repr(problem)
    return hashlib.sha256(stated.encode()).hexdigest()[:12]
