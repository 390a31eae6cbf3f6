"""Schemas: the attributes of records by name, with their labels, numbers or bins."""

from __future__ import annotations

import datetime
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from os import PathLike
from zoneinfo import ZoneInfo, available_timezones

import numpy as np

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError, did_you_mean
from dualmech.publishing.asking import queries_on
from dualmech.publishing.attributes import (
    EXACT,
    MAX_LABELS_IN_NAME,
    MISSING,
    WORDS,
    Attribute,
    Binned,
    Grouping,
    Labelled,
    Numbers,
    as_label,
    decimal_text,
)
from dualmech.publishing.dates import CODE, CODES, DAY, EXCEL, STEPS, Dated
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain

KINDS = {
    "labels": ("rest", "ordered"),
    "from": ("to", "step", "clamp", "decimal", "format", "timezone"),
    "bins": ("worth", "clamp"),
    "size": ("decimal",),
}
"""Kinds of attributes, with the options of each kind only."""

OPTIONS = tuple(dict.fromkeys([*KINDS, *itertools.chain(*KINDS.values()), "column", "missing", "groups"]))


@dataclass(frozen=True, slots=True, init=False)
class Schema(Domain):
    """A `Domain` whose values have names, for reading columns of records and for labels of tables.

    A schema is accepted wherever a domain is. Declare it; never derive it from the data, since the set of values would
    disclose information about the records. Unknown values of records are refused, with row and column.
    Raises `InvalidInputError` or `InputTypeError` for no attributes, unknown or contradictory options, duplicate
    labels, edges that do not increase, and groups that overlap or omit a value.

    Parameters
    ----------
    attributes : mapping of names to sizes, ranges, lists of labels, or mappings of options
        A number n means the codes 0 … n - 1, a range means integers with one cell each, a list means labels. A mapping
        of options has one of

        - ``labels``: a list, or a mapping of the codes in records to labels (several codes may have one label).
          ``rest`` is the label of an "other" category, which counts every other value; ``ordered`` is true if the
          labels are in order;
        - ``from`` and ``to``: two integers, or two numbers with the ``step`` of a grid, such as 0.1; numbers of
          records are rounded to the grid. ``decimal = "."`` means that 1.000 is 1, not a thousand. Or two dates with
          one cell for each ``step``: day, week, month, quarter or year. ``format`` is the format of the dates in
          records, such as ``%d.%m.%Y``; ``timezone`` is the zone for the days of times that have a time zone;
        - ``bins``: edges. Bins contain their left edge, the last one also its right edge. ``worth`` is the number of
          each bin in sums;
        - ``size``: the number of codes.

        Any of these can have ``column``, the name of the column if it is not the attribute's (several attributes may
        read one column); ``missing``, the texts of a missing value (``""`` in a DataFrame), which is counted in a
        separate last cell; and ``groups``, a mapping of groupings to mappings of groups to values, such that each value
        is in one group. With ``clamp``, the first and last cell count numbers and dates beyond them.
    never : sequence of mappings of names to values, optional
        Impossible cells: combinations of values, ranges, or lists of these. Records in them are refused. Mechanisms on
        matrices do not protect such records; other mechanisms protect them like all others. Queries of impossible cells
        only are published as exactly 0.

    Examples
    --------
    >>> import dualmech as dm
    >>> schema = dm.Schema(
    ...     {"age": range(17, 91), "sex": ["female", "male"], "hours": {"bins": [0, 20, 35, 60], "missing": "?"}}
    ... )
    >>> schema.shape
    (74, 2, 4)
    >>> schema.attribute(2).label(0), schema.attribute(2).label(3)
    ('[0, 20)', 'missing')
    >>> coded = dm.Schema({"schooling": {"labels": {"1": "school", "2": "school", "3": "college"}}})
    >>> coded.attribute(0).labels, coded.attribute(0).code("2")
    (('school', 'college'), 0)
    >>> days = dm.Schema({"day": {"from": "2013-01-01", "to": "2014-12-31"}}).attribute(0)
    >>> days.size, days.code("2013-02-01 05:15:00"), [*days.groupings], [*days.groupings["quarters"]][:2]
    (730, 31, ['months', 'quarters', 'years', 'weekdays'], ['2013-Q1', '2013-Q2'])
    >>> attributes = {"sex": ["female", "male"], "pregnant": ["no", "yes"]}
    >>> dm.Schema(attributes, never=[{"sex": "male", "pregnant": "yes"}]).possible()
    array([ True,  True,  True, False])
    """

    attributes: tuple[Attribute, ...] = field(init=False, repr=False)
    never: tuple[tuple[tuple[str, tuple[str, ...]], ...], ...] = field(init=False, repr=False)
    _json: str | None = field(init=False, repr=False, compare=False)  # cache of `to_json`

    def __init__(self, attributes: Mapping[str, object], never: Sequence[Mapping[str, object]] = ()) -> None:
        validate.mapping("names to sizes, labels or options", attributes=attributes)
        checked = tuple(
            attribute_of(validate.composed(validate.text(name=name)), spec) for name, spec in attributes.items()
        )
        Domain.__init__(self, [(attribute.name, attribute.size) for attribute in checked])
        object.__setattr__(self, "attributes", checked)
        object.__setattr__(self, "sources", tuple(attribute.source for attribute in checked))
        object.__setattr__(self, "_json", None)
        object.__setattr__(
            self, "never", tuple(self._together(combination) for combination in validate.sequence(never=never))
        )

    def _together(self, combination: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return an impossible combination as texts; refuse unknown values, and a combination of all cells."""
        pairs = []
        for name, items in validate.mapping("attributes to values of impossible cells", never=combination).items():
            (axis,) = self.axes([name])
            texts = tuple(map(str, items)) if isinstance(items, list | tuple) else (str(items),)
            try:
                self.attributes[axis].chosen(texts)
            except InvalidInputError as error:
                raise InvalidInputError(f"never: {error}") from None
            pairs.append((name, texts))
        is_whole_domain = all(
            len(self.attributes[axis].chosen(texts)) == self.shape[axis]
            for name, texts in pairs
            for axis in self.axes([name])
        )
        if is_whole_domain:
            raise InvalidInputError(f"never must not exclude all records, got {validate.shown(combination)}")
        return tuple(pairs)

    @property
    def impossible(self) -> tuple[Mapping[int, Sequence[int]], ...]:
        return tuple(
            {axis: self.attributes[axis].chosen(texts) for name, texts in together for axis in self.axes([name])}
            for together in self.never
        )

    @property
    def canonical(self) -> str:
        return self.to_json()

    @property
    def schema_text(self) -> str:
        return self.to_json()

    def attribute(self, axis: int) -> Attribute:
        """Return an attribute by its position."""
        return self.attributes[validate.index(len(self.attributes), axis=axis)]

    def query_set(self, axis: int, ask: object, alone: bool = False) -> Workload | None:
        return queries_on(self.attribute(axis), ask, validate.boolean(alone=alone))

    @classmethod
    def joined(cls, domains: Sequence[Domain]) -> Schema:
        """Return the attributes of several domains, one after another."""
        domains = validate.sequence(domains=domains)
        for index, domain in enumerate(domains):
            validate.instance(Domain, **{f"domains[{index}]": domain})
        attributes = [attribute for domain in domains for attribute in attributes_of(domain)]
        impossible = [dict(together) for domain in domains if isinstance(domain, Schema) for together in domain.never]
        return cls({attribute.name: attribute for attribute in attributes}, impossible)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Schema:
        """Read a schema from a TOML file with one table of options for each attribute, in order.

        Raises `FileFormatError` for a file that cannot be read, that is no TOML, or that has an invalid schema.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import dualmech as dm
        >>> text = '''
        ... [age]
        ... from = 17
        ... to = 90
        ... [sex]
        ... labels = ["female", "male"]
        ... '''
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "people.toml"
        ...     _ = path.write_text(text)
        ...     dm.Schema.read(path).names
        ('age', 'sex')
        """
        from dualmech.files.reading import errors_naming, read_toml  # a cyclic import: files hold domains

        spec = read_toml(path)
        with errors_naming(path):
            return cls(spec)

    @classmethod
    def of_json(cls, text: str) -> Schema:
        """Return the schema that `to_json` wrote."""
        spec = validate.decoded("names to sizes, labels or options", text=text)
        if {*spec} == {"attributes", "never"} and isinstance(spec["never"], list):  # attributes are never lists here
            return cls(spec["attributes"], spec["never"])
        return cls(spec)

    def to_json(self) -> str:
        """Return the schema as JSON, equal for equal schemas, for files and digests."""
        if self._json is None:
            attributes = {attribute.name: attribute.as_spec() for attribute in self.attributes}
            spec = (
                {"attributes": attributes, "never": [dict(combination) for combination in self.never]}
                if self.never
                else attributes
            )
            object.__setattr__(self, "_json", json.dumps(spec, ensure_ascii=False))
        assert self._json is not None
        return self._json


def attributes_of(domain: Domain) -> tuple[Attribute, ...]:
    """Return the attributes of a domain; without a schema, attributes of codes."""
    return tuple(attribute_at(domain, axis) for axis in range(len(domain.names)))


def attribute_at(domain: Domain, axis: int) -> Attribute:
    return domain.attributes[axis] if isinstance(domain, Schema) else Attribute(*domain.sizes[axis])


def attribute_of(name: str, spec: object) -> Attribute:
    """Return the attribute of a size, a range, labels or a mapping of options.

    Raises `InvalidInputError` or `InputTypeError` for other specifications, with the attribute and the option.
    """
    if isinstance(spec, Attribute):
        return spec
    if isinstance(spec, bool):
        raise InputTypeError(f"attribute {name!r} must be a size, a range, labels or a mapping, got {spec}")
    if isinstance(spec, int | np.integer):
        return _of_options(name, {"size": spec})
    if isinstance(spec, range):
        if spec.step != 1 or not len(spec):
            raise InvalidInputError(f"attribute {name!r} must be a range of step 1 that is not empty, got {spec}")
        return _of_options(name, {"from": spec.start, "to": spec.stop - 1})
    if isinstance(spec, Mapping):
        return _of_options(name, spec)
    if isinstance(spec, tuple) and len(spec) == 2 and all(type(value) is int for value in spec):
        first, last = spec
        raise InvalidInputError(
            f"attribute {name!r} must be range({first}, {last + 1}) for the whole numbers from {first} to {last}, or a "
            f"list for two labels, got {spec}"
        )
    if isinstance(spec, list | tuple):
        return _of_options(name, {"labels": spec})
    raise InputTypeError(
        f"attribute {name!r} must be a size, a range, a list of labels or a mapping of options, "
        f"got {type(spec).__name__}"
    )


def _of_options(name: str, options: Mapping[str, object]) -> Attribute:
    for key in options:
        if key not in OPTIONS:
            hint = did_you_mean(str(key), OPTIONS)
            raise InvalidInputError(f"attribute {name!r} takes {', '.join(OPTIONS)}, got {key!r}{hint}")
    kinds = [key for key in KINDS if key in options]
    if len(kinds) != 1 or ("to" in options) != ("from" in options):
        raise InvalidInputError(f"attribute {name!r} must have exactly one of labels, from and to, bins, size")
    foreign = {*itertools.chain(*KINDS.values())}.difference(KINDS[kinds[0]])
    for key in options:
        if key in foreign:
            raise InvalidInputError(f"attribute {name!r} has {kinds[0]}, which the option {key} is not for")
    texts: tuple[object, ...] = ()
    if "missing" in options:
        spec = options["missing"]
        texts = (spec,) if isinstance(spec, str) else validate.sequence(**{f"missing of {name!r}": spec})
    attribute = MAKERS[kinds[0]](name, options, tuple(as_label(text) for text in texts))
    if "column" in options:
        column = validate.composed(validate.text(**{f"column of {name!r}": options["column"]}))
        attribute = replace(attribute, column=column)
    return replace(attribute, groups=_groups(attribute, options["groups"])) if "groups" in options else attribute


def _groups(attribute: Attribute, spec: object) -> dict[str, Grouping]:
    place = f"groups of {attribute.name!r}"
    groupings: dict[str, Grouping] = {}
    for word, parts in validate.mapping("names of groupings to groups", **{place: spec}).items():
        if word in (*WORDS, *attribute.groupings) or attribute.named_code(word) is not None:
            raise InvalidInputError(
                f"{place} must have other names than values, groupings and words for queries, got {word!r}"
            )
        groups: dict[str, list[int]] = {}
        owner: dict[int, str] = {}
        for name, items in validate.mapping("names of groups to values", **{f"{word!r} of {place}": parts}).items():
            try:
                codes = groups[as_label(name)] = attribute.chosen(items)
            except InvalidInputError as error:
                raise InvalidInputError(f"{word!r} of {place}: {name!r}: {error}") from None
            for code in codes:
                if code in owner:
                    raise InvalidInputError(
                        f"{word!r} of {place} must have each value in one group, got {attribute.label(code)!r} in "
                        f"{owner[code]!r} and {name!r}; ask = {{ {attribute.name} = {{ name = [values] }} }} allows "
                        f"overlapping rows"
                    )
                owner[code] = name
        omitted = [attribute.label(code) for code in range(attribute.values) if code not in owner]
        if omitted:
            more = f" and {len(omitted) - MAX_LABELS_IN_NAME} more" if len(omitted) > MAX_LABELS_IN_NAME else ""
            raise InvalidInputError(
                f"{word!r} of {place} must have every value in a group, got none for "
                f"{', '.join(map(repr, omitted[:MAX_LABELS_IN_NAME]))}{more}: its rows would not add up to all records"
            )
        groupings[word] = groups
    return groupings


def _labelled(name: str, options: Mapping[str, object], missing_texts: tuple[str, ...]) -> Attribute:
    spec, texts = options["labels"], dict[str, str]()
    if isinstance(spec, Mapping):
        texts = {as_label(text): as_label(label) for text, label in spec.items()}
        labels, codes = tuple(dict.fromkeys(texts.values())), (*texts,)
        num_duplicates = len(spec) - len(texts)
    else:
        labels = codes = tuple(map(as_label, validate.sequence(**{f"labels of {name!r}": spec})))
        num_duplicates = 0
    if MISSING in labels and missing_texts:
        raise InvalidInputError(f"labels of {name!r} must not have {MISSING!r}, which names missing values")
    repeated = [label for label, count in Counter([*codes, *missing_texts]).items() if count > 1]
    if not labels or repeated or num_duplicates:
        culprit = f", got {repeated[0]!r} twice" if repeated else ""
        raise InvalidInputError(
            f"labels of {name!r} must be one or more, all distinct and none of them a text for missing values{culprit}"
        )
    other = ""
    if "rest" in options:
        other = as_label(validate.text(**{f"rest of {name!r}": options["rest"]}))
        if not other or other in (*labels, *missing_texts, MISSING):
            raise InvalidInputError(f"rest of {name!r} must be a label of its own, got {other!r}")
    ordered = _flag(name, options, "ordered")
    size = len(labels) + bool(other) + bool(missing_texts)
    pairs = tuple(texts.items())
    return Labelled(name, size, missing=missing_texts, labels=labels, texts=pairs, rest=other, in_order=ordered)


def _from_to(name: str, options: Mapping[str, object], missing_texts: tuple[str, ...]) -> Attribute:
    are_dates = any(isinstance(options[key], str | datetime.date) for key in ("from", "to"))
    for key in ("decimal",) if are_dates else ("format", "timezone"):
        if key in options:
            needs = "numbers" if are_dates else "dates: from and to must be dates, as 2013-01-01"
            raise InvalidInputError(f"{key} of {name!r} is for {needs}")
    return (_dates if are_dates else _numbers)(name, options, missing_texts)


def _dates(name: str, options: Mapping[str, object], missing_texts: tuple[str, ...]) -> Attribute:
    start, end = (_date(f"{key} of {name!r}", options[key]) for key in ("from", "to"))
    step = validate.choice(STEPS, **{f"step of {name!r}": options.get("step", DAY)})
    if end < start:
        raise InvalidInputError(f"to of {name!r} must be at least {start}, got {end}")
    clamp = _flag(name, options, "clamp")
    form, zone = (validate.text(**{f"{key} of {name!r}": options.get(key, "")}) for key in ("format", "timezone"))
    if "timezone" in options:
        _check_timezone(name, zone)
    dates = Dated(
        name, 0, missing=missing_texts, first=start, last=end, step=step, clamp=clamp, format=form, timezone=zone
    )
    if "format" in options:
        _check_format(dates)
    return replace(dates, size=dates.place(end) + 1 + bool(missing_texts))


def _check_timezone(name: str, zone: str) -> None:
    try:
        if zone == "localtime":
            raise ValueError("which differs from machine to machine")
        ZoneInfo(zone)
    except (ValueError, OSError, LookupError):
        hint = did_you_mean(zone, available_timezones() - {"localtime"})
        raise InvalidInputError(
            f"timezone of {name!r} must be a name of the IANA database, such as 'America/Chicago' or 'UTC', got "
            f"{zone!r}{hint}; pip install tzdata installs the database"
        ) from None


def _check_format(attribute: Dated) -> None:
    """Refuse a format that depends on a machine's language or zone, or that does not read the days it writes."""
    form, days = attribute.format, (attribute.first, attribute.last, datetime.date(2001, 2, 3))
    codes = CODE.findall(form)
    unknown = [] if form == EXCEL else [code for code in codes if code not in CODES]
    has_year = form == EXCEL or not {"%Y", "%y"}.isdisjoint(codes)
    wide = replace(attribute, first=min(days), last=max(days))
    if unknown or not has_year or any(wide.code(wide.written(day)) != wide.place(day) for day in days):
        reason = f"has {unknown[0]}" if unknown else "does not determine day, month and year"
        raise InvalidInputError(
            f'format of {attribute.name!r} must be codes for dates, such as "%d.%m.%Y" or "%m/%d/%Y", or "excel" for '
            f"days as Excel counts them, got {form!r}, which {reason}"
        )


def _numbers(name: str, options: Mapping[str, object], missing_texts: tuple[str, ...]) -> Attribute:
    clamp = _flag(name, options, "clamp")
    first: Decimal | int
    last: Decimal | int
    step = None
    if "step" not in options:
        first, last = (_integer(f"{key} of {name!r}", options[key]) for key in ("from", "to"))
        steps = last - first
    else:
        first, last, step = (_decimal(f"{key} of {name!r}", options[key]) for key in ("from", "to", "step"))
        width = EXACT.subtract(last, first)
        if step <= 0 or EXACT.remainder(width, step) != 0:
            raise InvalidInputError(
                f"step of {name!r} must be positive, and to must be from plus a whole number of steps, got from "
                f"{options['from']} to {options['to']} by {options['step']}"
            )
        steps = int(EXACT.divide_int(width, step))
    if last < first:
        raise InvalidInputError(f"to of {name!r} must be at least {decimal_text(first)}, got {decimal_text(last)}")
    size = steps + 1 + bool(missing_texts)
    has_points = _has_points(name, options)
    return Numbers(name, size, missing=missing_texts, first=first, step=step, clamp=clamp, has_points=has_points)


def _flag(name: str, options: Mapping[str, object], key: str) -> bool:
    return validate.boolean(**{f"{key} of {name!r}": options.get(key, False)})


def _has_points(name: str, options: Mapping[str, object]) -> bool:
    return "decimal" in options and validate.choice((".",), **{f"decimal of {name!r}": options["decimal"]}) == "."


def _decimal(option: str, value: object) -> Decimal:
    """Return the exact decimal value of a number's shortest text, so that 0.1 is a tenth."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputTypeError(f"{option} must be a number, got {value!r}")
    return Decimal(repr(float(validate.finite(0, **{option: value}))))


def _binned(name: str, options: Mapping[str, object], missing_texts: tuple[str, ...]) -> Attribute:
    edges = validate.finite(1, **{f"bins of {name!r}": options["bins"]})
    places = np.flatnonzero(np.diff(edges) <= 0)
    if len(edges) < 2 or len(places):
        culprit = f", got {edges[places[0]]:g} before {edges[places[0] + 1]:g}" if len(places) else ""
        raise InvalidInputError(f"bins of {name!r} must be two or more increasing edges{culprit}")
    clamp = _flag(name, options, "clamp")
    worth = validate.finite(1, **{f"worth of {name!r}": options["worth"]}) if "worth" in options else np.zeros(0)
    if "worth" in options and len(worth) != len(edges) - 1:
        raise InvalidInputError(f"worth of {name!r} must be a number for each of its {len(edges) - 1} bins")
    size = len(edges) - 1 + bool(missing_texts)
    numbers, counts = tuple(edges.tolist()), tuple(worth.tolist())
    return Binned(name, size, missing=missing_texts, edges=numbers, clamp=clamp, counts_for=counts)


def _codes(name: str, options: Mapping[str, object], missing_texts: tuple[str, ...]) -> Attribute:
    size = validate.size(**{f"size of {name!r}": options["size"]})
    return Numbers(name, size + bool(missing_texts), missing=missing_texts, has_points=_has_points(name, options))


MAKERS = {"labels": _labelled, "from": _from_to, "bins": _binned, "size": _codes}


def _integer(option: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        hint = ", or the attribute must have a step, such as step = 0.1" if isinstance(value, float) else ""
        raise InputTypeError(f"{option} must be a whole number{hint}, got {value!r}")
    return int(value)


def _date(option: str, value: object) -> datetime.date:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    try:
        return datetime.date.fromisoformat(value if isinstance(value, str) and len(value) == 10 else "")
    except ValueError:
        raise InvalidInputError(f"{option} must be a date, such as 2013-01-01, got {value!r}") from None
