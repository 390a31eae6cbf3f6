"""Units of privacy: the difference between neighbouring sets of records. Costs add up within one unit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dualmech import validate
from dualmech.display import counted
from dualmech.errors import InvalidInputError, printable
from dualmech.neighbours import ADD_REMOVE, COUNT_LIMIT, DIFFERENCES, Contributions, Relation
from dualmech.publishing.persons import Bound
from dualmech.publishing.records import Records
from dualmech.publishing.schema import attribute_at
from dualmech.workloads.domain import Domain

RECORD, PERSON = "record", "person"
KEYS = {RECORD: ("count", "binning"), PERSON: ("person", "at_most", "per", "values", "binning")}
"""Options of the spec of each kind of unit."""


@dataclass(frozen=True, slots=True)
class PrivacyUnit:
    """The difference between neighbouring sets of records.

    The unit is records, or all records of one person if these were truncated before counting (Theorem 3b of
    ``docs/theorems.md``). Truncation selects among all records of a person, so without one of them another may be
    counted: a release with truncation guarantees nothing about single records.

    Attributes
    ----------
    neighbours : str
        The relation between the counted data sets, in the form of `dualmech.neighbours.canonical`.
    person : str
        The column of persons, empty if the unit is records.
    at_most : int
        The maximum number of counted records of a person, in each value of `per` if there is one.
    per : str
        The attribute whose values are truncated separately; empty to truncate all records of a person together.
    values : int
        The number of values of `per` whose records of a person are protected together.
    count : str
        The column with the number of records of each row, if the unit is records; empty if each row is one record.
    binning : str
        SHA-256 of the values of the attribute in `per` or in the relation: other values are another unit.

    Examples
    --------
    >>> record, person = PrivacyUnit("add-remove:1"), PrivacyUnit("add-remove:1", "id", 1)
    >>> print(record, person, sep="; ")
    records (add-remove:1); all records of one 'id', at most 1 counted (add-remove:1)
    >>> record.protects(person), person.protects(PrivacyUnit("add-remove:3", "id", 3))
    (False, True)
    """

    neighbours: str
    person: str = ""
    at_most: int = 0
    per: str = ""
    values: int = 0
    count: str = ""
    binning: str = ""

    def __post_init__(self) -> None:
        """Refuse a relation that does not protect all counted records of a person."""
        if self.person:
            bound, relation = Bound(self.person, self.at_most, self.per), self._relation
            _require_protected(bound, self.values, None if relation is None or relation.replace else relation, self)

    @classmethod
    def of(cls, neighbours: str, records: Records, domain: Domain | None, declared: Relation | None) -> PrivacyUnit:
        """Return the unit of a release, from its relation, the roles of its columns, and the declared relation.

        Raises `InvalidInputError` for a relation that does not protect all counted records of a person.
        """
        bound = records.persons
        size = domain.shape[domain.axes([bound.per])[0]] if bound is not None and bound.per and domain else COUNT_LIMIT
        if bound is None or bound.check:
            unit = cls(neighbours, count=records.count or "")
            if bound is not None:
                _require_protected(bound, min(bound.groups or size, size), unit._relation, unit)
            return replace(unit, binning=_binning(domain, getattr(unit._relation, "attribute", "")))
        if not bound.per:
            return cls(neighbours, bound.person, bound.at_most)
        one_value = cls(neighbours, bound.person, bound.at_most, bound.per, 1, binning=_binning(domain, bound.per))
        rule = one_value._relation if declared is None else declared
        values = rule.groups if isinstance(rule, Contributions) else getattr(rule, "members", 1) // bound.at_most
        return replace(one_value, values=min(values, size))

    @classmethod
    def of_spec(cls, neighbours: object, spec: object) -> PrivacyUnit:
        """Return the unit of a relation and a `spec`.

        Raises `InvalidInputError` or `InputTypeError` for other keys, values of another type, and a unit that has an
        attribute without its values, or values without an attribute.
        """
        relation = validate.text(neighbours=neighbours)
        relation = relation if relation.startswith(DIFFERENCES) else str(Relation.of(relation))
        entries = {**validate.mapping('of = "record" or "person", and its options', unit=spec)}
        kind = validate.choice([*KEYS], **{"unit.of": entries.pop("of", None)})
        unknown = entries.keys() - {*KEYS[kind]}
        if unknown or (kind == PERSON and not {"person", "at_most"} <= entries.keys()):
            person = "needs person and at_most, and takes per, values and binning"
            takes = "takes count and binning" if kind == RECORD else person
            raise InvalidInputError(f"unit of {kind!r} {takes}, got {sorted(entries)}")
        texts = {key: validate.text(**{f"unit.{key}": entries[key]}) for key in entries if key in TEXTS}
        sizes = {key: validate.size(**{f"unit.{key}": entries[key]}) for key in entries if key not in TEXTS}
        if "" in texts.values():
            raise InvalidInputError(f"unit of {kind!r} must have no empty text, got {entries}")
        unit = cls(relation, **texts, **sizes)  # type: ignore[arg-type]
        attribute = unit.per if unit.person else getattr(unit._relation, "attribute", "")
        if bool(attribute) != bool(unit.binning) or bool(unit.per) != bool(unit.values):
            raise InvalidInputError(
                f"unit of {kind!r} must have binning if it names an attribute, and per together with values, "
                f"got {sorted(entries)} of {relation}"
            )
        return unit

    @property
    def spec(self) -> Mapping[str, str | int]:
        """The options of the unit, without its relation, for files."""
        kind = PERSON if self.person else RECORD
        options = {key: getattr(self, key) for key in KEYS[kind]}
        return {"of": kind} | {key: value for key, value in options.items() if value}

    def protects(self, other: PrivacyUnit) -> bool:
        """Return whether the ρ of a release for this unit also bounds its ρ for another unit.

        A unit of records protects the units of all relations that its relation contains. A unit of persons protects
        all records of a person, for any number of counted records, and protection in several values of an attribute
        includes protection in fewer values. Added or removed rows protect the records that a column counts in them: one
        record less is at most one row less.
        """
        if (self.person, self.per) != (other.person, other.per) or self.binning not in ("", other.binning):
            return False
        if self.person:
            return self.values >= other.values
        relation, contained = self._relation, other._relation
        if relation is None or contained is None:
            return (self.neighbours, self.count) == (other.neighbours, other.count)
        if self.count != other.count and (self.count or relation.replace):
            return False
        return relation.contains(contained)

    @property
    def _relation(self) -> Relation | None:
        return None if self.neighbours.startswith(DIFFERENCES) else Relation.of(self.neighbours)

    @property
    def words(self) -> str:
        """The difference between neighbouring sets of records, in words."""
        if not self.person:
            relation = self._relation
            return "they differ by one of the listed differences" if relation is None else relation.words
        counted_rows = f"{'is' if self.at_most == 1 else 'are'} counted{' in each' if self.per else ''}"
        return f"{self._records} are added or removed, and at most {self.at_most} of them {counted_rows}"

    @property
    def _records(self) -> str:
        values = "one value" if self.values == 1 else f"up to {counted(self.values, 'value')}"
        where = f" in {values} of {printable(self.per)!r}" if self.per else ""
        return f"all records of one {printable(self.person)!r}{where}"

    def __str__(self) -> str:
        if not self.person:
            by = f", as the column {printable(self.count)!r} counts them" if self.count else ""
            return f"records{by} ({self.neighbours})"
        return f"{self._records}, at most {self.at_most} counted{' in each' if self.per else ''} ({self.neighbours})"


TEXTS = ("person", "per", "count", "binning")

SINGLE = PrivacyUnit(str(ADD_REMOVE))  # one record added or removed


def _require_protected(bound: Bound, values: int, relation: Relation | None, unit: PrivacyUnit) -> None:
    """Refuse a relation that does not protect the counted records of a person in all their values of `bound.per`.

    All these records must be within the relation's reach: records cost most if they are in few values.
    """
    values = values if bound.per else 1
    one_value = Contributions(bound.at_most, bound.per, 1) if bound.per else Relation(members=bound.at_most)
    if relation is not None and relation.replace and relation.members >= bound.at_most * values:
        return  # it replaces at least as many records
    if relation is not None and relation.contains(one_value) and relation.reach >= bound.at_most * values:
        return
    raise InvalidInputError(
        f"neighbours must protect the counted records of a {bound.person!r}, {one_value}"
        f"{f' in each of {values} values' if values > 1 else ''}, got {unit.neighbours}"
    )


def _binning(domain: Domain | None, name: str) -> str:
    """Return the SHA-256 of an attribute's column and values, without groupings; empty without an attribute."""
    if domain is None or not name:
        return ""
    (axis,) = domain.axes([name])
    attribute = attribute_at(domain, axis)
    values = {key: value for key, value in attribute.as_spec().items() if key != "groups"} | {
        "column": attribute.source
    }
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
