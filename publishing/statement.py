"""The page that goes with a release, and the names of its files."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import math
import platform
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from dualmech import validate
from dualmech.accounting import CONVERSION, level_of
from dualmech.certificate import Certificate
from dualmech.display import counted, decimal_above
from dualmech.errors import printable
from dualmech.neighbours import DIFFERENCES, Relation
from dualmech.problems.fitness import PrivacyFirst
from dualmech.progress import Status
from dualmech.publishing.attributes import Attribute, Grouping, Numbers
from dualmech.publishing.derived import MEAN, SHARE, farthest
from dualmech.publishing.markdown import Page
from dualmech.publishing.records import Records
from dualmech.publishing.schema import Schema, attribute_at
from dualmech.publishing.specification import ROOM_FOR_GRID, Specification
from dualmech.solution import Solution, gap_words
from dualmech.storage import codec
from dualmech.workloads.domain import Domain

MOST_LISTED = 60  # tables that the page lists

FIRST = 8  # values of an attribute that it lists, besides the last

MOST_DIGITS = 60  # of a fraction's numerator that is printed whole

NOT_COVERED = (
    "What no neighbour changes is public: the number of records where records are replaced rather than added or "
    "removed, and their number by each value of an attribute that stays the same.",
    "Bounds on values, labels and bins are part of the schema: they must not have been read off the records.",
    "Whoever sees a release adds its ρ to that of all others about the same records.",
    "Time, memory and the error messages of the run are not protected; nor are records before they are counted.",
    "Margins of error are of the noise alone: errors of the records themselves are not in them.",
)

UNIT = "The guarantee is about one unit, as said above: a person with more records than that is protected less."


Planned: TypeAlias = Any
"""A `ReleasePlan`, or a `Publication` of what it asked; their modules import this one."""


def plan_lines(planned: Planned, level: float | None, simultaneous: bool) -> list[str]:
    """Return who is protected, the exact privacy, and the largest margin of error of each table, in lines."""
    names = planned.tables[:MOST_LISTED]
    lines = [
        f"Neighbours: {planned.neighbours}{_asked_neighbours(planned)}.",
        *promises(planned),
        f"Privacy: rho = {_fraction(planned.rho)}, which is at most {planned.rho_text} (zCDP).",
        *(f"  epsilon = {epsilon} at delta = {delta}" for delta, epsilon in planned.epsilons.items()),
        f"  epsilon is {CONVERSION}",
        *goodness(planned.answer),
        f"Largest margins of error {_level_words(planned, level, simultaneous)}:",
    ]
    for name in names:
        rows, most = planned.published[name].entries, _most_words(planned, name, level, simultaneous)
        lines.append(f"  {name}: {most} ({counted(rows, 'row')}{_asked_words(planned, name, ', asked ')})")
        lines += [f"    {words}" for words in _expected(planned, name, level)]
    left = len(planned.tables) - len(names)
    return lines if left <= 0 else [*lines, f"  and {counted(left, 'table')} more"]


def promises(planned: Any) -> list[str]:
    """Return what a plan or a release promises about its records; of a combination, what each part promised.

    Plans, statements and the ledger print the same sentences.
    """
    parts = getattr(planned, "combined", ())
    several = [_of_columns(part.declared) for part in parts] or [_of_columns(planned.declared)]
    if all(sentences == several[0] for sentences in several):
        return several[0]
    return [f"Release {number}: {text}" for number, texts in enumerate(several, start=1) for text in texts]


def _of_columns(declared: Records) -> list[str]:
    sentences = _of_persons(declared)
    if declared.count is not None:
        sentences.append(f"A row counts as many records as its column {printable(declared.count)!r} says.")
    if declared.ignore:
        one = "" if declared.count is not None else ": each row counts as one record"
        ignored = ", ".join(repr(printable(name)) for name in declared.ignore)
        sentences.append(f"Not read, though its name is that of a count: {ignored}{one}.")
    return sentences


def _of_persons(declared: Records) -> list[str]:
    bound = declared.persons
    if bound is None:
        return []
    person, per = printable(bound.person), f" in each value of {printable(bound.per)!r}" if bound.per else ""
    rows = f"{counted(bound.at_most, 'record')}{per}"
    if bound.check:
        return [f"Records in which a {person!r} has more than {rows} were to be refused."]
    return [
        f"Of each {person!r} at most {rows} {'is' if bound.at_most == 1 else 'are'} counted, chosen by its own records "
        f"alone: tables, sums, shares and means are of the records that are counted.",
        f"All records of a {person!r}{' in one value' if bound.per else ''} are protected together, however many there "
        f"are. Nothing is promised about one record alone: without it, another of the same {person!r} may be counted.",
    ]


def goodness(answer: Solution) -> list[str]:
    """Say which limits are kept, and by how much all other variances are what was asked, as far as it is proven."""
    limits = None if answer is None else answer.metadata.get("limits")
    if limits is not None:
        certificate = limits.certificate(answer.problem, answer.certificate)
        kept, rho = ", ".join(map(printable, limits.names)), limits.cost / 2
        return [
            f"Hard limits are kept: {kept}. The rest is as good as possible at rho = {rho:.6g}: its variances are "
            f"{certificate.objective:.4g} times what was asked, {_proven_words(certificate)}."
        ]
    if answer is not None and isinstance(answer.problem, PrivacyFirst):
        certificate, rho = answer.certificate, answer.problem.cost / 2
        return [
            f"All variances are {certificate.objective:.4g} times what was asked, the least factor at rho = {rho:.6g}, "
            f"{_proven_words(certificate)}."
        ]
    return []


def _proven_words(certificate: Certificate) -> str:
    low = certificate.interval[0]
    return f"and none below {low:.9g} can be (proven)" if certificate.feasible and low > 0 else "which is not proven"


def _level_words(planned: Planned, level: float | None, simultaneous: bool) -> str:
    chosen = level_of(planned.quantile) if level is None else validate.probability(level=level)
    simultaneous = validate.boolean(simultaneous=simultaneous)
    return f"at the level {chosen:.4g}{', of all entries at once' if simultaneous else ''}"


def _most_words(planned: Planned, name: str, level: float | None, simultaneous: bool) -> str:
    return "exact" if planned.unmoved(name).all() else f"{planned.margins(name, level, simultaneous).max():.6g}"


def _asked_words(planned: Planned, name: str, before: str = "") -> str:
    specification = planned.specification
    if specification is None or name not in specification.targets | specification.caps:
        return ""
    if name in specification.exact:
        return f"{before}0"
    hard, limits = name in specification.caps, specification.targets | specification.caps
    margin = planned.quantile * math.sqrt(limits[name] / (1 - ROOM_FOR_GRID))
    ratio = specification.rho is not None and not hard
    return (
        f"{before}{margin:.6g}{' as a ratio' if ratio else ', hard' if hard and specification.rho is not None else ''}"
    )


def statement(released: Planned, level: float | None, simultaneous: bool) -> str:
    """Return the page in Markdown."""
    workload, domain = released.workload, released.workload.domain
    title, date = (
        ("", "") if released.specification is None else (released.specification.title, released.specification.date)
    )
    kind = f"Statement of a differentially private release{date and f', {date}'}"
    page = Page(title or kind)
    page.paragraphs(*([f"{kind}."] if title else []))
    page.section("What was asked")
    page.paragraphs(f"Queries asked: {workload.shape[0]}, in {counted(len(released.tables), 'table')}.")
    if domain is not None:
        page.paragraphs("Attributes:")
        page.items([*_attributes(domain), *_never(domain)])
    page.section("What is protected")
    page.paragraphs(f"Data sets count as neighbours where {released.neighbours}{_asked_neighbours(released)}.")
    page.items(_protection(released))
    _combined(page, released)
    page.paragraphs(
        *([] if released.ledger is None else released.ledger.lines()),
        "Whole numbers were answered in exact arithmetic, with discrete Gaussian noise of OpenDP's sampler added; all "
        "else was computed from the sums.",
    )
    page.section("Accuracy")
    page.paragraphs(
        f"Margins of error {_level_words(released, level, simultaneous)}{'' if simultaneous else ', of each entry'}."
    )
    page.table(*_accuracy(released, level, simultaneous))
    _derived(page, released, level)
    _proven(page, released.answer)
    page.section("What is not covered")
    page.items([*NOT_COVERED, *([] if released.unit.person and not released.unit.per else [UNIT])])
    page.section("To check")
    page.items(
        [
            f"workload: SHA-256 {digest(workload)}",
            f"neighbours, of the records that are counted: {released.relation}",
            *(
                [f"schema: SHA-256 {hashlib.sha256(domain.to_json().encode()).hexdigest()}"]
                if isinstance(domain, Schema)
                else []
            ),
            f"dualmech {_version('dualmech')}, OpenDP {_version('opendp')}, NumPy {np.__version__}, "
            f"Python {platform.python_version()}",
        ]
    )
    return str(page)


def _protection(released: Planned) -> list[str]:
    return [
        f"ρ of zero-concentrated differential privacy: {_fraction(released.rho)}, which is at most {released.rho_text}",
        *promises(released),
        *(f"ε = {epsilon} at δ = {delta}" for delta, epsilon in released.epsilons.items()),
        f"ε is {CONVERSION.replace('rho', 'ρ')}",
    ]


def neighbours_text(released: Planned) -> str:
    """Say in words by what neighbouring sets of records differ."""
    unit = released.unit
    known: Any = getattr(released.drawn.mechanism, "neighbours", None)
    if unit.neighbours.startswith(DIFFERENCES):
        return f"they differ by one of {known.shape[1]} listed differences"
    return str(unit.words)


def _asked_neighbours(planned: Planned) -> str:
    """Say which neighbours were asked for, where these tables take none but others that protect them too."""
    specification, used = planned.specification, getattr(planned.drawn.mechanism, "neighbours", None)
    if specification is None or not isinstance(used, Relation) or used == specification.neighbours:
        return ""
    return f", which protects all who were asked for: {specification.neighbours} came to {used} on these tables"


def _combined(page: Page, released: Planned) -> None:
    if not released.combined:
        return
    page.paragraphs(
        f"These tables combine {counted(len(released.parts), 'release')} of the same records by generalised least "
        f"squares. Their noise is independent, their costs add up for each pair of neighbours, and nothing further was "
        f"drawn. A release that was chosen after another was seen counts with the largest ρ over all choices:"
    )
    lines = []
    for number, part in enumerate(released.parts, start=1):
        specification = None if part.terms is None or part.terms.specification is None else part.terms.specification
        title = "" if specification is None else Specification.of_json(specification).title
        names, left = ", ".join(part.tables[:FIRST]), len(part.tables) - FIRST
        lines.append(
            f"release {number}{title and f', {title}'}: ρ = {_fraction(part.rho)}, which is at most "
            f"{decimal_above(part.rho, 10)}; {names}{f' and {left} more' if left > 0 else ''}; SHA-256 of its noisy "
            f"answers {part.digest}"
        )
    page.items(lines)


def digest(workload: object) -> str:
    """Return the SHA-256 of what a workload asks, as its file would hold it."""
    hashed = hashlib.sha256()
    packed = codec.pack("workload", workload)
    for key in sorted(packed):
        array = np.asarray(packed[key])
        hashed.update(f"{key}:{array.dtype.str}:{array.shape}:".encode())
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def _attributes(domain: Domain) -> list[tuple[str, Sequence[str]]]:
    lines: list[tuple[str, Sequence[str]]] = []
    for axis, (name, size) in enumerate(domain.sizes[:MOST_LISTED]):
        known = attribute_at(domain, axis)
        shown = _listed([known.label(code) for code in range(min(size, FIRST))], size, known.label(size - 1))
        column = f"; column {known.source}" if known.source != name else ""
        absent = f"; missing where records hold {' or '.join(map(repr, known.missing))}" if known.missing else ""
        ends = "; numbers beyond the ends count at the ends" if getattr(known, "clamp", False) else ""
        others = f"; every other value counts as {rest!r}" if (rest := getattr(known, "rest", "")) else ""
        groups = [f"{word}: {_grouping(known, grouping)}" for word, grouping in known.groups.items()]
        lines.append((f"{name} ({size} values): {shown}{column}{others}{absent}{ends}", [*_read_as(known), *groups]))
    left = len(domain.names) - MOST_LISTED
    return [*lines, (f"and {left} more", ())] if left > 0 else lines


def _listed(first: list[str], count: int, last: str) -> str:
    left = count - len(first)
    return ", ".join([*first, *(["…"] if left > 1 else []), *([last] if left else [])])


def _read_as(attribute: Attribute) -> list[str]:
    lines = []
    if texts := getattr(attribute, "texts", ()):
        pairs = [f"{text} as {label}" for text, label in texts]
        lines.append(f"records are read so: {_listed(pairs[:FIRST], len(pairs), pairs[-1])}")
    if isinstance(attribute, Numbers) and attribute.step is not None:
        lines.append("numbers are rounded to the nearest of these values, from the middle of two to the larger one")
    if zone := getattr(attribute, "timezone", ""):
        lines.append(f"times that name their zone count on their day in {zone}, others as they are written")
    if worth := getattr(attribute, "counts_for", ()):
        pairs = [f"{attribute.label(code)} counts {value:g}" for code, value in enumerate(worth)]
        lines.append(f"in sums and means: {_listed(pairs[:FIRST], len(pairs), pairs[-1])}")
    return lines


def _never(domain: Domain) -> list[str]:
    lines = []
    for together in [*getattr(domain, "never", ())][:MOST_LISTED]:
        values = " with ".join(f"{name} = {' or '.join(texts)}" for name, texts in together)
        lines.append(f"no record has {values}: what counts such records alone is 0, and noise need not protect them")
    return lines


def _grouping(attribute: Attribute, groups: Grouping) -> str:
    lines = []
    for name, codes in [*groups.items()][:MOST_LISTED]:
        labels = ", ".join(attribute.label(code) for code in codes[:FIRST])
        more = f" and {len(codes) - FIRST} more" if len(codes) > FIRST else ""
        lines.append(f"{name} = {labels}{more}")
    left = len(groups) - MOST_LISTED
    return "; ".join(lines) + (f"; and {left} more" if left > 0 else "")


def _proven(page: Page, answer: Solution | None) -> None:
    if answer is None:
        return
    low, high = answer.certificate.interval
    page.section("How good the noise is")
    page.paragraphs(
        f"The planned noise solves {answer.problem.headline}: its objective is {high:.9g}, and no noise of its kind "
        f"has one below {low:.9g}, as a certificate proves that was computed from what was asked "
        f"({answer.status.name}).",
        *goodness(answer),
    )
    if (words := uncertified(answer)) is not None:
        page.paragraphs(f"It is not certified: {words}.")


def uncertified(answer: Solution | None) -> str | None:
    """Say how far a plan may be from the best, None of one that is certified, or of none."""
    if answer is None or answer.status is Status.CERTIFIED:
        return None
    return gap_words(answer.certificate, answer.tol)


ASKED = {
    "values": "{}",
    "prefixes": "{}, cumulative",
    "ranges": "all ranges of {}",
    "total": "total of {}",
    "sum": "sum of {}",
}
"""What words for queries on an attribute are called; groupings have names of their own."""


def _definition(released: Planned, name: str) -> str:
    asks, table = released.asks, released.published[name]
    if name in asks:
        return " x ".join(_question(attribute, ask) for attribute, ask in asks[name].items()) or "all records"
    sides = [
        side if len(entries) == 1 else f"{side}: {entries[0]}, …, {entries[-1]}"
        for side, entries in table.sides.items()
    ]
    return "; ".join(sides)


def _question(attribute: str, ask: Any) -> str:
    if isinstance(ask, str):
        return ASKED.get(ask, f"{{}} by {ask}").format(attribute)
    parts = [f"{name} ({_part(group)})" for name, group in ask.items()] if isinstance(ask, Mapping) else map(_part, ask)
    return f"{attribute}: {', '.join(parts)}"


def _part(item: object) -> str:
    return " or ".join(map(str, item)) if isinstance(item, list | tuple) else str(item)


def _accuracy(released: Planned, level: float | None, simultaneous: bool) -> tuple[list[str], list[list[str]]]:
    shown = released.tables[:MOST_LISTED]
    wanted = [_asked_words(released, name) for name in shown]
    stated = any(wanted)
    columns = ["table", "entries", "largest margin", *(["margin asked"] if stated else []), "what it counts"]
    rows = []
    for name, words in zip(shown, wanted, strict=True):
        most, margin = _most_words(released, name, level, simultaneous), [words] if stated else []
        rows.append([name, str(released.published[name].entries), most, *margin, _definition(released, name)])
    left = len(released.tables) - MOST_LISTED
    rows += [] if left <= 0 else [[f"and {left} more, in the list of tables", *[""] * (len(columns) - 1)]]
    return columns, rows


def _derived(page: Page, released: Planned, level: float | None) -> None:
    kinds = [(name, kind) for name, kinds in released.derivations.items() for kind in kinds]
    if not kinds:
        return
    shown = ", ".join(f"the {kind} of {name!r}" for name, kind in kinds[:MOST_LISTED])
    page.paragraphs(
        f"Derived from the tables, at no further privacy: {shown}. Each interval holds at the same level: of shares "
        f"and means by Fieller's theorem, without an end where the number of records cannot be told from 0; of medians "
        f"and other quantiles from a band that holds for all running sums at once."
    )
    page.items(f"{name}: {words}" for name in released.tables for words in _expected(released, name, level))


def _expected(planned: Planned, name: str, level: float | None) -> list[str]:
    specification = planned.specification
    if specification is None or name not in specification.expected:
        return []
    count, kinds = specification.expected[name], [kind for kind in planned.derivations[name] if kind in (SHARE, MEAN)]
    return [
        f"the {kind} is within {farthest(planned, name, kind, count, level):.4g} where it is of {count:g} records or "
        f"more, as expected; of fewer its interval is wider"
        for kind in kinds
    ]


def _fraction(number: Fraction) -> str:
    shown = f"{number.numerator}/{number.denominator}"
    return shown if len(shown) <= MOST_DIGITS else f"a fraction of {len(shown) - 1} digits"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
