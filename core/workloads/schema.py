"""Schemas: the attributes of records by name, with the labels, numbers and bins that their values are."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from dualmech import validate
from dualmech.errors import FileFormatError, InputTypeError, InvalidInputError
from dualmech.workloads.attributes import Attribute, attribute_of
from dualmech.workloads.domain import Domain


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
        ``size``; and with any of them ``column``, where the records call it otherwise, and ``missing``, texts that stand
        for a missing value, which then has a cell of its own, the last. ``clamp`` counts numbers beyond the ends there.

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
    """

    attributes: tuple[Attribute, ...] = field(init=False, repr=False)

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        if not isinstance(attributes, Mapping):
            raise InputTypeError(f"attributes must map names to what their values are, got {type(attributes).__name__}")
        found = tuple(attribute_of(validate.text(name=name), spec) for name, spec in attributes.items())
        columns = [each.source for each in found]
        if len(set(columns)) < len(columns):
            raise InvalidInputError(f"attributes must be read from a column each, got the columns {columns}")
        Domain.__init__(self, [(each.name, each.size) for each in found])
        object.__setattr__(self, "attributes", found)

    def attribute(self, axis: int) -> Attribute:
        """Return what the values of an attribute are, by its position."""
        return self.attributes[axis]

    @classmethod
    def joined(cls, domains: Sequence[Domain]) -> Schema:
        """Return the attributes of several domains, one after another."""
        attributes = [each.attribute(axis) for each in domains for axis in range(len(each.names))]
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
        try:
            with open(path, "rb") as handle:
                given = tomllib.load(handle)
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FileFormatError(f"{path}: is no schema in TOML: {error}") from error
        try:
            return cls(given)
        except (InvalidInputError, InputTypeError) as error:
            raise FileFormatError(f"{path}: {error}") from error

    @classmethod
    def of_json(cls, text: str) -> Schema:
        """Return the schema that `to_json` wrote."""
        try:
            return cls(json.loads(text))
        except (json.JSONDecodeError, AttributeError) as error:
            raise InvalidInputError(f"a schema must be written in JSON: {error}") from error

    def to_json(self) -> str:
        """Return the schema as a text, the same for equal schemas: what files keep and digests are taken of."""
        return json.dumps({each.name: each.as_spec() for each in self.attributes}, ensure_ascii=False)
