"""The page that goes with a release, and its tables as CSV files that no spreadsheet misreads."""

from __future__ import annotations

import decimal
import hashlib
import importlib
import importlib.metadata
import io
import itertools
import platform
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dualmech import files, validate
from dualmech.display import counted
from dualmech.errors import BackendError, printable
from dualmech.files.csv import write_lines
from dualmech.neighbours import Relation
from dualmech.progress import Status
from dualmech.solution import gap_words
from dualmech.storage import codec
from dualmech.workloads.domain import Domain
from dualmech.workloads.schema import Schema

DELTAS = (1e-6, 1e-9, 1e-12)

MOST_LISTED = 60  # tables that the page lists

MOST_DIGITS = 60  # of a fraction's numerator that is printed whole

NOT_COVERED = """\
- The number of records, where records are replaced rather than added or removed, is public.
- Bounds on values, labels and bins are part of the schema: they must not have been read off the records.
- Whoever sees a release adds its ρ to that of all others about the same records.
- The guarantee is about one unit, as said above: a person with more records than that is protected less.
- Time, memory and the error messages of the run are not protected; nor are records before they are counted.
- Margins of error are of the noise alone: errors of the records themselves are not in them."""

ADAPTIVE = (
    "- The release was adaptive: ρ is the largest over all branches that could have been chosen, and once covers all "
    "that was published of this release, stage by stage."
)


def statement(released: Any, level: float, simultaneous: bool) -> str:
    """Return the page in Markdown."""
    level = validate.probability(level=level)
    simultaneous = validate.boolean(simultaneous=simultaneous)
    rho, workload, domain = released.rho, released.workload, released.workload.domain
    lines = [
        "# Statement of a differentially private release",
        "",
        "## What was asked",
        "",
        f"Queries asked: {workload.shape[0]}, in {counted(len(released.tables), 'table')}.",
        "",
        *([_attributes(domain), ""] if domain is not None else []),
        "## What is protected",
        "",
        f"Data sets count as neighbours where {neighbours_text(released)}.",
        "",
        f"- ρ of zero-concentrated differential privacy: {_fraction(rho)}, which is at most {decimal_above(rho)}",
        *([ADAPTIVE] if getattr(released.drawn, "adaptive", False) else []),
        *(f"- ε = {released.epsilon(delta):.6g} at δ = {delta:g}, as ρ implies it" for delta in DELTAS),
        "",
        "Whole numbers were answered in exact arithmetic, with discrete Gaussian noise of OpenDP's sampler added; all "
        "else was computed from the sums.",
        "",
        "## Accuracy",
        "",
        f"Margins of error at the level {level:g}{', of all entries at once' if simultaneous else ', of each entry'}.",
        "",
        "| table | entries | largest margin |",
        "|---|---:|---:|",
        *_accuracy(released, level, simultaneous),
        "",
        *_proven(released.answer),
        "## What is not covered",
        "",
        NOT_COVERED,
        "",
        "## To check",
        "",
        f"- workload: SHA-256 `{digest(workload)}`",
        *([f"- schema: SHA-256 `{_sha(domain.to_json().encode())}`"] if isinstance(domain, Schema) else []),
        f"- dualmech {_version('dualmech')}, OpenDP {_version('opendp')}, NumPy {np.__version__}, "
        f"Python {platform.python_version()}",
    ]
    return "\n".join(lines) + "\n"


def neighbours_text(released: Any) -> str:
    """Say in words which data sets privacy keeps apart."""
    given: Any = getattr(released.drawn.mechanism, "neighbours", None)
    relation: Relation | None = Relation()
    if given is not None:
        relation = given if isinstance(given, Relation) else Relation.matching(given)
    if relation is None:
        return f"they differ by one of {given.shape[1]} listed differences"
    return relation.words


def digest(workload: object) -> str:
    """Return the SHA-256 of what a workload asks, as its file would hold it."""
    codec.known_problems()  # which enters all kinds of workloads
    found = hashlib.sha256()
    packed = codec.pack("workload", workload)
    for key in sorted(packed):
        array = np.asarray(packed[key])
        found.update(f"{key}:{array.dtype.str}:{array.shape}:".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _attributes(domain: Domain) -> str:
    shown = [f"{printable(name)} ({size} values)" for name, size in domain.sizes[:MOST_LISTED]]
    more = "" if len(domain.names) <= MOST_LISTED else f", and {len(domain.names) - MOST_LISTED} more"
    return f"Attributes: {', '.join(shown)}{more}."


def _proven(answer: Any) -> list[str]:
    """Say how good the planned noise is, as the judge proved it."""
    if answer is None:
        return []
    low, high = answer.certificate.interval
    lines = [
        "## How good the noise is",
        "",
        f"The planned noise solves {printable(answer.problem.headline)}: its objective is {high:.9g}, and no noise of "
        f"its kind has one below {low:.9g}, as a certificate proves that was computed from what was asked "
        f"({answer.status.name}).",
        "",
    ]
    if (words := uncertified(answer)) is not None:
        lines += [f"**It is not certified:** {words}.", ""]
    return lines


def uncertified(answer: Any) -> str | None:
    """Say how far a plan may be from the best, None of one that is certified, or of none."""
    if answer is None or answer.status is Status.CERTIFIED:
        return None
    return gap_words(answer.certificate, answer.tol)


def _accuracy(released: Any, level: float, simultaneous: bool) -> list[str]:
    found = [
        f"| {printable(name).replace('|', '/')} | {released.published[name].entries} | "
        f"{released.margins(name, level, simultaneous).max():.6g} |"
        for name in released.tables[:MOST_LISTED]
    ]
    left = len(released.tables) - MOST_LISTED
    return found if left <= 0 else [*found, f"| and {left} more, in the list of tables | | |"]


def _fraction(number: Fraction) -> str:
    shown = f"{number.numerator}/{number.denominator}"
    return shown if len(shown) <= MOST_DIGITS else f"a fraction of {len(shown) - 1} digits"


def decimal_above(number: Fraction) -> str:
    """Return a decimal of ten digits that is not below a fraction."""
    upwards = decimal.Context(prec=10, rounding=decimal.ROUND_CEILING)
    return str(upwards.divide(decimal.Decimal(number.numerator), decimal.Decimal(number.denominator)))


def _sha(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


FORMULA = tuple(
    "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
)  # First characters by which a spreadsheet tells a formula, wide ones too

LONGEST = 60  # most letters of a table's name that the name of its file holds


def file_name(number: int, label: str, count: int) -> str:
    """Return a name that any file system takes, whatever the attributes are called."""
    letters = re.sub("[^0-9A-Za-z]+", "_", label).strip("_")[:LONGEST]
    return f"{number:0{len(str(count))}d}_{letters}.csv"


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file, whole or not at all; no text of it is one of which a spreadsheet makes a formula."""
    with files.atomic_write(path) as handle:
        text = io.TextIOWrapper(handle, encoding="utf-8", newline="", write_through=True)
        write_lines(text, (map(_shown, row) for row in itertools.chain([header], rows)))
        text.flush()
        text.detach()


def as_frame(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> Any:
    """Return rows as a pandas DataFrame.

    Raises `BackendError` where pandas is not installed.
    """
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError as error:
        raise BackendError("a frame needs pandas: pip install pandas; write() does without") from error
    return pandas.DataFrame(list(rows), columns=list(heading))


def _shown(cell: object) -> object:
    """Return a cell of which a spreadsheet makes no formula: a text that would begin one gets an apostrophe."""
    begins = cell.lstrip("\ufeff")[:1] if isinstance(cell, str) else ""  # A byte order mark is read over.
    return f"'{cell}" if begins in FORMULA else cell
