"""The statement of a release: one page on the request, the protection, the accuracy and the limits."""

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
from dualmech.publishing.attributes import Attribute, Grouping
from dualmech.publishing.derived import MEAN, SHARE, farthest
from dualmech.publishing.markdown import Page
from dualmech.publishing.records import Records
from dualmech.publishing.schema import Schema, attribute_at
from dualmech.publishing.specification import GRID_MARGIN, Specification
from dualmech.solution import Solution, gap_words
from dualmech.storage import codec
from dualmech.workloads.domain import Domain

MAX_ITEMS = 60  # tables, attributes or groups in a list

NUM_FIRST = 8  # values that a list begins with, before the last

MAX_FRACTION_LENGTH = 60  # characters of a printed fraction

NOT_COVERED = (
    "Counts that no neighbour changes are public: the number of records if records are replaced rather than added or "
    "removed, and their number by each value of an attribute that stays the same.",
    "Bounds on values, labels and bins are part of the schema: they must not have been read off the records.",
    "The ρ of all releases about the same records add up.",
    "Time, memory and the error messages of the run are not protected; nor are records before they are counted.",
    "Margins of error are of the noise only, without errors of the records themselves.",
)

UNIT = "The guarantee is for one unit, as defined above: a person with more records has less protection."


Planned: TypeAlias = Any
"""A `ReleasePlan` or `Publication`, whose modules import this one."""


def plan_lines(planned: Planned, level: float | None, simultaneous: bool) -> list[str]:
    """Return lines with the protected unit, the exact privacy cost, and each table's largest margin of error."""
    names = planned.tables[:MAX_ITEMS]
    lines = [
        f"Neighbours: {planned.neighbours}{_requested_neighbours(planned)}.",
        *promises(planned),
        f"Privacy: rho = {_fraction(planned.rho)}, which is at most {planned.rho_text} (zCDP).",
        *(f"  epsilon = {epsilon} at delta = {delta}" for delta, epsilon in planned.epsilons.items()),
        f"  epsilon is {CONVERSION}",
        *goodness(planned.answer),
        f"Largest margins of error {_level_words(planned, level, simultaneous)}:",
    ]
    for name in names:
        rows, margin = planned.published[name].entries, _margin_text(planned, name, level, simultaneous)
        lines.append(f"  {name}: {margin} ({counted(rows, 'row')}{_requested_text(planned, name, ', asked ')})")
        lines += [f"    {words}" for words in _expected(planned, name, level)]
    left = len(planned.tables) - len(names)
    return lines if left <= 0 else [*lines, f"  and {counted(left, 'table')} more"]


def promises(planned: Any) -> list[str]:
    """Return sentences on the records that a plan, a release, or each release of a combination counts.

    Plans, statements and the ledger print the same sentences.
    """
    parts = getattr(planned, "combined", ())
    by_release = [_column_sentences(part.declared) for part in parts] or [_column_sentences(planned.declared)]
    if all(sentences == by_release[0] for sentences in by_release):
        return by_release[0]
    return [f"Release {number}: {text}" for number, texts in enumerate(by_release, start=1) for text in texts]


def _column_sentences(declared: Records) -> list[str]:
    sentences = _person_sentences(declared)
    if declared.count is not None:
        sentences.append(f"The column {printable(declared.count)!r} holds the number of records of each row.")
    if declared.ignore:
        counting = "" if declared.count is not None else ": each row counts as one record"
        ignored = ", ".join(repr(printable(name)) for name in declared.ignore)
        sentences.append(f"Not read, although named like a count: {ignored}{counting}.")
    return sentences


def _person_sentences(declared: Records) -> list[str]:
    bound = declared.persons
    if bound is None:
        return []
    person, per = printable(bound.person), f" in each value of {printable(bound.per)!r}" if bound.per else ""
    rows = f"{counted(bound.at_most, 'record')}{per}"
    if bound.check:
        return [f"Records are refused if some {person!r} has more than {rows}."]
    return [
        f"Of each {person!r} at most {rows} {'is' if bound.at_most == 1 else 'are'} counted. The choice depends only "
        f"on its own records. Tables, sums, shares and means are of the counted records.",
        f"All records of a {person!r}{' in one value' if bound.per else ''} are protected together, for any number of "
        f"records. There is no guarantee for one record: without it, another of the same {person!r} may be counted.",
    ]


def goodness(answer: Solution) -> list[str]:
    """Return sentences on the hard limits, and on the common factor of the other variances with its proven bound."""
    limits = None if answer is None else answer.metadata.get("limits")
    if limits is not None:
        certificate = limits.certificate(answer.problem, answer.certificate)
        names, rho = ", ".join(map(printable, limits.names)), limits.cost / 2
        return [
            f"Hard limits are met: {names}. The other variances are as small as possible at rho = {rho:.6g}: "
            f"{certificate.objective:.4g} times the requested ones, {_proven_words(certificate)}."
        ]
    if answer is not None and isinstance(answer.problem, PrivacyFirst):
        certificate, rho = answer.certificate, answer.problem.cost / 2
        return [
            f"All variances are {certificate.objective:.4g} times the requested ones, the least factor at "
            f"rho = {rho:.6g}, {_proven_words(certificate)}."
        ]
    return []


def _proven_words(certificate: Certificate) -> str:
    low = certificate.interval[0]
    return f"with the proven lower bound {low:.9g}" if certificate.feasible and low > 0 else "which is not proven"


def _level_words(planned: Planned, level: float | None, simultaneous: bool) -> str:
    level = level_of(planned.quantile) if level is None else validate.probability(level=level)
    simultaneous = validate.boolean(simultaneous=simultaneous)
    return f"at the level {level:.4g}{', of all entries at once' if simultaneous else ''}"


def _margin_text(planned: Planned, name: str, level: float | None, simultaneous: bool) -> str:
    return "exact" if planned.unmoved(name).all() else f"{planned.margins(name, level, simultaneous).max():.6g}"


def _requested_text(planned: Planned, name: str, before: str = "") -> str:
    specification = planned.specification
    if specification is None or name not in specification.targets | specification.caps:
        return ""
    if name in specification.exact:
        return f"{before}0"
    hard, limits = name in specification.caps, specification.targets | specification.caps
    margin = planned.quantile * math.sqrt(limits[name] / (1 - GRID_MARGIN))
    ratio = specification.rho is not None and not hard
    return (
        f"{before}{margin:.6g}{' as a ratio' if ratio else ', hard' if hard and specification.rho is not None else ''}"
    )


def statement(released: Planned, level: float | None, simultaneous: bool) -> str:
    """Return the page in Markdown."""
    workload, domain = released.workload, released.workload.domain
    plan = released.specification
    title, date = ("", "") if plan is None else (plan.title, plan.date)
    kind = f"Statement of a differentially private release{date and f', {date}'}"
    page = Page(title or kind)
    page.paragraphs(*([f"{kind}."] if title else []))
    page.section("Request")
    page.paragraphs(f"Queries: {workload.shape[0]}, in {counted(len(released.tables), 'table')}.")
    if domain is not None:
        page.paragraphs("Attributes:")
        page.items([*_attributes(domain), *_impossible(domain)])
    page.section("Protection")
    page.paragraphs(f"Data sets are neighbours if {released.neighbours}{_requested_neighbours(released)}.")
    page.items(_protection(released))
    _combined(page, released)
    page.paragraphs(
        *([] if released.ledger is None else released.ledger.lines()),
        "Integer queries were answered in exact arithmetic, and discrete Gaussian noise of OpenDP's sampler was added. "
        "All tables were computed from these noisy answers.",
    )
    page.section("Accuracy")
    page.paragraphs(
        f"Margins of error {_level_words(released, level, simultaneous)}{'' if simultaneous else ', of each entry'}."
    )
    page.table(*_accuracy(released, level, simultaneous))
    _derived(page, released, level)
    _proven(page, released.answer)
    page.section("Limits of the guarantee")
    page.items([*NOT_COVERED, *([] if released.unit.person and not released.unit.per else [UNIT])])
    page.section("Verification")
    page.items(
        [
            f"workload: SHA-256 {digest(workload)}",
            f"neighbours, for the counted records: {released.relation}",
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
    """Return the difference between neighbouring sets of records, in words."""
    unit = released.unit
    if unit.neighbours.startswith(DIFFERENCES):
        return f"they differ by one of {released.drawn.mechanism.neighbours.shape[1]} listed differences"
    return str(unit.words)


def _requested_neighbours(planned: Planned) -> str:
    """Return a clause on the requested neighbours, if the mechanism uses a wider relation; else an empty text."""
    specification, relation = planned.specification, getattr(planned.drawn.mechanism, "neighbours", None)
    if specification is None or not isinstance(relation, Relation) or relation == specification.neighbours:
        return ""
    return f", which includes the requested neighbours: {specification.neighbours} became {relation} on these tables"


def _combined(page: Page, released: Planned) -> None:
    if not released.combined:
        return
    page.paragraphs(
        f"These tables combine {counted(len(released.parts), 'release')} of the same records by generalised least "
        f"squares. Their noise is independent, their costs add up for each pair of neighbours, and no further noise "
        f"was drawn. A release that was chosen after an earlier one was seen counts with the largest ρ over all "
        f"choices:"
    )
    lines = []
    for number, part in enumerate(released.parts, start=1):
        specification = None if part.terms is None or part.terms.specification is None else part.terms.specification
        title = "" if specification is None else Specification.of_json(specification).title
        names, left = ", ".join(part.tables[:NUM_FIRST]), len(part.tables) - NUM_FIRST
        lines.append(
            f"release {number}{title and f', {title}'}: ρ = {_fraction(part.rho)}, which is at most "
            f"{decimal_above(part.rho, 10)}; {names}{f' and {left} more' if left > 0 else ''}; SHA-256 of its noisy "
            f"answers {part.digest}"
        )
    page.items(lines)


def digest(workload: object) -> str:
    """Return the SHA-256 of a workload in its stored form."""
    hashed = hashlib.sha256()
    packed = codec.pack("workload", workload)
    for key in sorted(packed):
        array = np.asarray(packed[key])
        hashed.update(f"{key}:{array.dtype.str}:{array.shape}:".encode())
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def _attributes(domain: Domain) -> list[tuple[str, Sequence[str]]]:
    lines: list[tuple[str, Sequence[str]]] = []
    for axis, (name, size) in enumerate(domain.sizes[:MAX_ITEMS]):
        attribute = attribute_at(domain, axis)
        first = [attribute.label(code) for code in range(min(size, NUM_FIRST))]
        options = [f"column {attribute.source}"] if attribute.source != name else []
        if other := getattr(attribute, "rest", ""):
            options.append(f"every other value counts as {other!r}")
        if attribute.missing:
            options.append(f"missing if records hold {' or '.join(map(repr, attribute.missing))}")
        if getattr(attribute, "clamp", False):
            options.append("numbers beyond the ends count at the ends")
        groups = [f"{word}: {_grouping(attribute, grouping)}" for word, grouping in attribute.groups.items()]
        text = "; ".join([_listed(first, size, attribute.label(size - 1)), *options])
        lines.append((f"{name} ({size} values): {text}", [*_read_as(attribute), *groups]))
    left = len(domain.names) - MAX_ITEMS
    return [*lines, (f"and {left} more", ())] if left > 0 else lines


def _listed(first: list[str], count: int, last: str) -> str:
    left = count - len(first)
    return ", ".join([*first, *(["…"] if left > 1 else []), *([last] if left else [])])


def _read_as(attribute: Attribute) -> list[str]:
    return [
        words + (_listed(items[:NUM_FIRST], len(items), items[-1]) if items else "")
        for words, items in attribute.reading
    ]


def _impossible(domain: Domain) -> list[str]:
    lines = []
    for together in [*getattr(domain, "never", ())][:MAX_ITEMS]:
        values = " with ".join(f"{name} = {' or '.join(texts)}" for name, texts in together)
        lines.append(f"no record has {values}: counts of these records only are 0, and noise need not protect them")
    return lines


def _grouping(attribute: Attribute, groups: Grouping) -> str:
    lines = []
    for name, codes in [*groups.items()][:MAX_ITEMS]:
        labels = ", ".join(attribute.label(code) for code in codes[:NUM_FIRST])
        more = f" and {len(codes) - NUM_FIRST} more" if len(codes) > NUM_FIRST else ""
        lines.append(f"{name} = {labels}{more}")
    left = len(groups) - MAX_ITEMS
    return "; ".join(lines) + (f"; and {left} more" if left > 0 else "")


def _proven(page: Page, answer: Solution | None) -> None:
    if answer is None:
        return
    low, high = answer.certificate.interval
    page.section("Optimality")
    page.paragraphs(
        f"The planned noise solves {answer.problem.headline}: its objective is {high:.9g}, and no noise of its kind "
        f"has an objective below {low:.9g}. A certificate computed from the problem proves this "
        f"({answer.status.name}).",
        *goodness(answer),
    )
    if (words := uncertified(answer)) is not None:
        page.paragraphs(f"It is not certified: {words}.")


def uncertified(answer: Solution | None) -> str | None:
    """Return the optimality gap of an uncertified plan in words; None if it is certified."""
    if answer is None or answer.status is Status.CERTIFIED:
        return None
    return gap_words(answer.certificate, answer.tol)


QUERY_NAMES = {
    "values": "{}",
    "prefixes": "{}, cumulative",
    "ranges": "all ranges of {}",
    "total": "total of {}",
    "sum": "sum of {}",
}
"""Names of the queries of an attribute, for each word of a specification; groupings have their own names."""


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
        return QUERY_NAMES.get(ask, f"{{}} by {ask}").format(attribute)
    parts = [f"{name} ({_part(group)})" for name, group in ask.items()] if isinstance(ask, Mapping) else map(_part, ask)
    return f"{attribute}: {', '.join(parts)}"


def _part(item: object) -> str:
    return " or ".join(map(str, item)) if isinstance(item, list | tuple) else str(item)


def _accuracy(released: Planned, level: float | None, simultaneous: bool) -> tuple[list[str], list[list[str]]]:
    names = released.tables[:MAX_ITEMS]
    requests = [_requested_text(released, name) for name in names]
    has_requests = any(requests)
    columns = ["table", "entries", "largest margin", *(["requested"] if has_requests else []), "queries"]
    rows = []
    for name, text in zip(names, requests, strict=True):
        margin, request = _margin_text(released, name, level, simultaneous), [text] if has_requests else []
        rows.append([name, str(released.published[name].entries), margin, *request, _definition(released, name)])
    left = len(released.tables) - MAX_ITEMS
    rows += [] if left <= 0 else [[f"and {left} more, in the list of tables", *[""] * (len(columns) - 1)]]
    return columns, rows


def _derived(page: Page, released: Planned, level: float | None) -> None:
    kinds = [(name, kind) for name, kinds in released.derivations.items() for kind in kinds]
    if not kinds:
        return
    names = ", ".join(f"the {kind} of {name!r}" for name, kind in kinds[:MAX_ITEMS])
    page.paragraphs(
        f"Derived from the tables, at no further privacy cost: {names}. Each interval holds at the same level. "
        f"Intervals of shares and means are by Fieller's theorem, and unbounded if the number of records cannot be "
        f"distinguished from 0. Intervals of quantiles follow from a band that holds for all running sums at once."
    )
    page.items(f"{name}: {words}" for name in released.tables for words in _expected(released, name, level))


def _expected(planned: Planned, name: str, level: float | None) -> list[str]:
    specification = planned.specification
    if specification is None or name not in specification.expected:
        return []
    count, kinds = specification.expected[name], [kind for kind in planned.derivations[name] if kind in (SHARE, MEAN)]
    return [
        f"the {kind} is within {farthest(planned, name, kind, count, level):.4g} for the expected {count:g} records or "
        f"more; for fewer records its interval is wider"
        for kind in kinds
    ]


def _fraction(number: Fraction) -> str:
    text = f"{number.numerator}/{number.denominator}"
    return text if len(text) <= MAX_FRACTION_LENGTH else f"a fraction of {len(text) - 1} digits"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
