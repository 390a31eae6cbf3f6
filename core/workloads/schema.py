"""Schemas: the attributes of records by name, with the labels, numbers and bins that their values are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike

import numpy as np

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError, did_you_mean
from dualmech.workloads.attributes import MISSING, Attribute, Binned, Labelled, WholeNumbers
from dualmech.workloads.domain import Domain

OPTIONS = ("labels", "from", "to", "bins", "size", "column", "missing", "clamp")


@dataclass(frozen=True, slots=True, init=False)
class Schema(Domain):
    """A `Domain` whose values have names: columns of records are read by it, and tables are published with it.

    Wherever a domain is taken, a schema is. Declare it, never read it off the data: what values there are would tell
    about the records. Values that it does not know are refused, with row and column.
    Raises `InvalidInputError` or `InputTypeError` for no attributes, options that are unknown or contradict each other,
    labels that come twice, edges that do not increase, two attributes on one column.

    Parameters
    ----------
    attributes : mapping of names to sizes, ranges, lists of labels, or mappings of options
        A number n stands for the codes 0 … n - 1, a range for whole numbers with a cell each, a list for labels. The
        options are ``labels``, ``from`` and ``to``, ``bins`` (edges: each bin has its left edge, the last both) or
        ``size``; and with any of them ``column``, where the records call it otherwise, and ``missing``, texts that
        stand for a missing value, which then has a cell of its own, the last; of a DataFrame, what is missing is the
        text ``""``. ``clamp`` counts numbers beyond the ends there. Where records hold codes, ``labels`` maps them to
        labels, several to one if that is wanted.

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
    """

    attributes: tuple[Attribute, ...] = field(init=False, repr=False)

    def __init__(self, attributes: Mapping[str, object]) -> None:
        if not isinstance(attributes, Mapping):
            raise InputTypeError(f"attributes must map names to what their values are, got {type(attributes).__name__}")
        found = tuple(attribute_of(validate.text(name=name), spec) for name, spec in attributes.items())
        columns = [each.source for each in found]
        if len(set(columns)) < len(columns):
            raise InvalidInputError(f"attributes must be read from a column each, got the columns {columns}")
        Domain.__init__(self, [(each.name, each.size) for each in found])
        object.__setattr__(self, "attributes", found)

    def attribute(self, axis: int) -> Attribute:
        return self.attributes[validate.index(len(self.attributes), axis=axis)]

    @classmethod
    def joined(cls, domains: Sequence[Domain]) -> Schema:
        """Return the attributes of several domains, one after another."""
        known = [
            validate.instance(Domain, **{f"domains[{index}]": each})
            for index, each in enumerate(validate.sequence(domains=domains))
        ]
        attributes = [each.attribute(axis) for each in known for axis in range(len(each.names))]
        return cls({each.name: each for each in attributes})

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Schema:
        """Read a schema from a TOML file: a table of options an attribute, in order.

        Raises `FileFormatError` for a file that cannot be read or is no TOML, and with its path for what the schema
        itself refuses.

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
        from dualmech.files.reading import (
            errors_naming,  # files hold domains, so they know this module
            read_toml,
        )

        given = read_toml(path)
        with errors_naming(path):
            return cls(given)

    @classmethod
    def of_json(cls, text: str) -> Schema:
        """Return the schema that `to_json` wrote."""
        return cls(validate.decoded("names to what their values are", text=text))

    def to_json(self) -> str:
        """Return the schema as a text, the same for equal schemas: what files keep and digests are taken of."""
        return json.dumps({each.name: each.as_spec() for each in self.attributes}, ensure_ascii=False)


def attribute_of(name: str, spec: object) -> Attribute:
    """Return the attribute that a number, a range, labels or a mapping of options stands for.

    Raises `InvalidInputError` or `InputTypeError` for anything else; the message names the attribute and the option.
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
    if isinstance(spec, tuple) and len(spec) == 2 and all(type(each) is int for each in spec):
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
            near = did_you_mean(str(key), OPTIONS)
            raise InvalidInputError(f"attribute {name!r} takes {', '.join(OPTIONS)}, got {key!r}{near}")
    kinds = [key for key in MAKERS if key in options]
    if len(kinds) != 1 or ("to" in options) != ("from" in options):
        raise InvalidInputError(f"attribute {name!r} must have exactly one of labels, from and to, bins, size")
    clamp = validate.boolean(**{f"clamp of {name!r}": options.get("clamp", False)})
    if clamp and kinds[0] in ("labels", "size"):
        raise InvalidInputError(f"attribute {name!r} has no ends to clamp numbers to")
    missing = options.get("missing", ())
    texts = (missing,) if isinstance(missing, str) else validate.sequence(**{f"missing of {name!r}": missing})
    column = validate.text(**{f"column of {name!r}": options.get("column", "")})
    return MAKERS[kinds[0]](name, options, column, tuple(str(each).strip() for each in texts))


def _labelled(name: str, options: Mapping[str, object], column: str, missing: tuple[str, ...]) -> Attribute:
    given, texts = options["labels"], dict[str, str]()
    if isinstance(given, Mapping):
        texts = {str(text).strip(): str(label).strip() for text, label in given.items()}
        labels, read = tuple(dict.fromkeys(texts.values())), (*texts,)
        distinct = len(texts) == len(given)
    else:
        checked = validate.sequence(**{f"labels of {name!r}": given})
        labels = read = tuple(str(each).strip() for each in checked)
        distinct = True
    if missing and MISSING in labels:
        raise InvalidInputError(f"labels of {name!r} must not have {MISSING!r}, which names missing values")
    if not labels or not distinct or len({*read, *missing}) < len(read) + len(missing):
        raise InvalidInputError(
            f"labels of {name!r} must be one or more, all distinct and none of them a text for missing values"
        )
    return Labelled(name, len(labels) + bool(missing), column, missing, labels, tuple(texts.items()))


def _whole_numbers(name: str, options: Mapping[str, object], column: str, missing: tuple[str, ...]) -> Attribute:
    first, last = (_whole(f"{key} of {name!r}", options[key]) for key in ("from", "to"))
    if last < first:
        raise InvalidInputError(f"to of {name!r} must be at least {first}, got {last}")
    clamp = bool(options.get("clamp", False))
    return WholeNumbers(name, last - first + 1 + bool(missing), column, missing, first, clamp)


def _binned(name: str, options: Mapping[str, object], column: str, missing: tuple[str, ...]) -> Attribute:
    edges = validate.finite(1, **{f"bins of {name!r}": options["bins"]})
    if len(edges) < 2 or np.any(np.diff(edges) <= 0):
        raise InvalidInputError(f"bins of {name!r} must be two or more increasing edges")
    clamp = bool(options.get("clamp", False))
    return Binned(name, len(edges) - 1 + bool(missing), column, missing, tuple(edges.tolist()), clamp)


def _codes(name: str, options: Mapping[str, object], column: str, missing: tuple[str, ...]) -> Attribute:
    size = validate.size(**{f"size of {name!r}": options["size"]})
    return WholeNumbers(name, size + bool(missing), column, missing)


MAKERS = {"labels": _labelled, "from": _whole_numbers, "bins": _binned, "size": _codes}


def _whole(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputTypeError(f"{what} must be a whole number, got {value!r}")
    return int(value)
