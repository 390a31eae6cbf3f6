"""The unit of privacy: by what neighbouring sets of records differ, so that costs of releases can be added."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from dualmech import validate
from dualmech.display import counted
from dualmech.errors import InvalidInputError, printable
from dualmech.mechanisms.persons import Bound
from dualmech.neighbours import ADD_REMOVE, DIFFERENCES, Contributions, Relation
from dualmech.workloads.domain import Domain

RECORD, PERSON = "record", "person"
KEYS = {RECORD: ("binning",), PERSON: ("person", "at_most", "per", "values", "binning")}
"""What the spec of each kind of unit may hold besides ``of``."""


@dataclass(frozen=True, slots=True)
class PrivacyUnit:
    """What two neighbouring sets of records differ by.

    The unit is records, or all records of one person where the person's records were truncated before they were
    counted (Theorem 3b of ``docs/theorems.md``). Truncation chooses among all records of a person, so that without one
    of them another one may be counted: such a release states nothing about single records.

    Attributes
    ----------
    neighbours : str
        The relation between the data sets that are counted, as `dualmech.neighbours.canonical` writes it.
    person : str
        The column of persons, empty where the unit is records.
    at_most : int
        Records of a person that are counted, in each value of `per` if there is one.
    per : str
        The attribute in whose values a person is truncated separately, empty for all records of the person together.
    values : int
        Values of `per` in which a person's records are protected together.
    binning : str
        SHA-256 of the values of the attribute that `per` or the relation names: other values are other units.

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
    binning: str = ""

    @classmethod
    def of(cls, neighbours: str, bound: Bound | None, domain: Domain | None, declared: Relation | None) -> PrivacyUnit:
        """Return the unit of a release with a relation, a bound on persons, and the relation that was declared.

        Raises `InvalidInputError` for a relation that does not protect all records that the bound leaves of a person.
        """
        relation = None if neighbours.startswith(DIFFERENCES) else Relation.of(neighbours)
        if bound is None or bound.check:
            return cls(neighbours, binning=_binning(domain, getattr(relation, "attribute", "")))
        kept = Contributions(bound.at_most, bound.per, 1) if bound.per else Relation(members=bound.at_most)
        if relation is None or not relation.contains(kept):
            raise InvalidInputError(
                f"neighbours must protect the records that are counted of a {bound.person!r}, {kept}, got {neighbours}"
            )
        if not bound.per:
            return cls(neighbours, bound.person, bound.at_most)
        rule = relation if declared is None else declared
        values = rule.groups if isinstance(rule, Contributions) else rule.members // bound.at_most
        return cls(neighbours, bound.person, bound.at_most, bound.per, values, _binning(domain, bound.per))

    @classmethod
    def of_spec(cls, neighbours: object, spec: object) -> PrivacyUnit:
        """Return the unit that `spec` wrote, of a relation by its canonical text.

        Raises `InvalidInputError` or `InputTypeError` for other keys, or values of another type.
        """
        relation = validate.text(neighbours=neighbours)
        relation = relation if relation.startswith(DIFFERENCES) else str(Relation.of(relation))
        entries = {**validate.mapping('of = "record" or "person", and its options', unit=spec)}
        kind = validate.choice([*KEYS], **{"unit.of": entries.pop("of", None)})
        unknown = entries.keys() - {*KEYS[kind]}
        if unknown or (kind == PERSON and not {"person", "at_most"} <= entries.keys()):
            takes = "takes binning" if kind == RECORD else "needs person and at_most, and takes per, values and binning"
            raise InvalidInputError(f"unit of {kind!r} {takes}, got {sorted(entries)}")
        texts = {key: validate.text(**{f"unit.{key}": entries[key]}) for key in entries if key in TEXTS}
        sizes = {key: validate.size(**{f"unit.{key}": entries[key]}) for key in entries if key not in TEXTS}
        return cls(relation, **texts, **sizes)  # type: ignore[arg-type]

    @property
    def spec(self) -> Mapping[str, str | int]:
        """The unit without its relation, as files hold it."""
        options = {key: getattr(self, key) for key in KEYS[PERSON]}
        return {"of": PERSON if self.person else RECORD} | {key: value for key, value in options.items() if value}

    def protects(self, other: PrivacyUnit) -> bool:
        """Whether a release for this unit costs another unit no more.

        Records protect the records of every relation that theirs contains. All records of a person are protected
        whatever number of them each release counts; in values of one attribute, also together with those in fewer.
        """
        if (self.person, self.per) != (other.person, other.per) or self.binning not in ("", other.binning):
            return False
        if self.person:
            return self.values >= other.values
        if any(unit.neighbours.startswith(DIFFERENCES) for unit in (self, other)):
            return self.neighbours == other.neighbours
        return Relation.of(self.neighbours).contains(Relation.of(other.neighbours))

    @property
    def words(self) -> str:
        """What neighbouring sets of records differ by, for a unit of persons or a relation by a rule."""
        if not self.person:
            known = not self.neighbours.startswith(DIFFERENCES)
            return Relation.of(self.neighbours).words if known else "they differ by one of the listed differences"
        return f"{self._records} are added or removed, of which at most {self.at_most} {self._counted}"

    @property
    def _records(self) -> str:
        values = "one value" if self.values == 1 else f"up to {counted(self.values, 'value')}"
        where = f" in {values} of {printable(self.per)!r}" if self.per else ""
        return f"all records of one {printable(self.person)!r}{where}"

    @property
    def _counted(self) -> str:
        return f"{'is' if self.at_most == 1 else 'are'} counted{' in each' if self.per else ''}"

    def __str__(self) -> str:
        if not self.person:
            return f"records ({self.neighbours})"
        return f"{self._records}, at most {self.at_most} counted{' in each' if self.per else ''} ({self.neighbours})"


TEXTS = ("person", "per", "binning")

SINGLE = PrivacyUnit(str(ADD_REMOVE))  # one record added or removed


def _binning(domain: Domain | None, name: str) -> str:
    """Return the SHA-256 of an attribute's column and values, whatever their groupings; empty without an attribute."""
    if domain is None or not name:
        return ""
    (axis,) = domain.axes([name])
    attribute = domain.attribute(axis)
    values = {key: value for key, value in attribute.as_spec().items() if key != "groups"} | {
        "column": attribute.source
    }
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
