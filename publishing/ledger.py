"""A ledger: the exact ρ of all releases of one body of records, and the limit that their sum must keep."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any

from dualmech import files, validate
from dualmech.display import counted, decimal_above, decimal_below
from dualmech.errors import FileFormatError, InvalidInputError, printable
from dualmech.files.reading import errors_naming, read_toml
from dualmech.publishing.publication import ReleasePlan
from dualmech.publishing.unit import RECORD, PrivacyUnit

KEYS = ("limit", "neighbours", "unit", "releases")
ENTRY = ("rho", "what", "when", "workload", "neighbours")  # texts of a release, besides its unit
LISTED, TAIL = b"\n[[releases]]\n", 4096  # how an entry begins, and the bytes at the end in which one is looked for
LOCK = ".lock"  # what the name of the file that one writer at a time holds ends in


@dataclass(frozen=True, slots=True)
class Ledger:
    """The releases of one body of records so far, as a TOML file keeps them.

    Whoever begins one writes its limit, ``limit = "1/2"``; releases are added by `record`, one writer at a time, each
    before anything of it is published: what was recorded counts as spent, whatever became of it.

    Attributes
    ----------
    path : Path
        The file.
    limit : Fraction
        The ρ that all of them may cost together.
    releases : tuple of mappings
        Of each release the cost ``rho``, the folder or text ``what``, the time ``when``, the digest of its
        ``workload``, its ``neighbours`` and its ``unit``.
    unit : PrivacyUnit or None
        The unit of privacy that all releases protect; None before the first release, unless the file states one.
    """

    path: Path
    limit: Fraction
    releases: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    unit: PrivacyUnit | None = None
    total: Fraction | None = field(default=None, repr=False, compare=False)  # what is `spent`, if it is known
    version: tuple[int, ...] = field(default=(), repr=False, compare=False)  # of the file that holds these releases

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Ledger:
        """Read a ledger.

        Raises `FileFormatError` for a file that is none, or cannot be read.
        """
        place = _place(path)
        if not place.exists():
            raise FileFormatError(f'{path}: there is no such ledger; begin one with a line such as limit = "1/2"')
        version = _version_of(place)  # before its contents: of an older version the file would be read again
        contents = read_toml(place)
        with errors_naming(path):
            if unknown := sorted(contents.keys() - {*KEYS}):
                raise InvalidInputError(f"a ledger holds {', '.join(KEYS)}, got {unknown[0]!r}")
            if "limit" not in contents:
                raise InvalidInputError('a ledger needs limit, the rho that all releases may cost, such as "1/2"')
            limit = validate.exact_number(limit=contents["limit"])
            entries = [_entry(entry) for entry in validate.sequence(releases=contents.get("releases", ()))]
            if entries and not {"neighbours", "unit"} <= contents.keys():
                raise InvalidInputError(
                    "a ledger with releases must have neighbours and unit, which all of them protect"
                )
            unit = None
            if "neighbours" in contents:  # without a unit they are of records
                unit = PrivacyUnit.of_spec(contents["neighbours"], contents.get("unit", {"of": RECORD}))
            for entry in entries:
                if unit is not None and not entry["unit"].protects(unit):
                    raise InvalidInputError(
                        "the releases of a ledger must protect its unit of privacy, for their rho to add up: "
                        f"{unit}; one protects {entry['unit']}"
                    )
            ledger = cls(place, limit, tuple(entries), unit, version=version)
            return replace(ledger, total=ledger.spent)

    @property
    def spent(self) -> Fraction:
        """The ρ of all releases together, exactly: zCDP adds."""
        if self.total is not None:
            return self.total
        return sum((validate.exact_or_zero(rho=release["rho"]) for release in self.releases), Fraction(0))

    def check(self, planned: ReleasePlan) -> None:
        """Refuse a release that would exceed the limit, or whose unit of privacy is another."""
        left = self.limit - self.spent
        if planned.rho > left:
            raise InvalidInputError(
                f"{self.path}: the ledger's limit is rho = {self.limit}, {decimal_above(self.spent)} of it is "
                f"spent, and this release costs {decimal_above(planned.rho)}, more than the "
                f"{decimal_below(left)} that are left"
            )
        if self.unit is not None and not planned.unit.protects(self.unit):
            raise InvalidInputError(
                f"{self.path}: the releases of a ledger must protect the same unit of privacy, or more, for their rho "
                f"to add up: {self.unit}; got {planned.unit}; keep a ledger for each unit"
            )

    def outlook(self, planned: ReleasePlan) -> list[str]:
        """Say in lines what is recorded, what a plan costs, and what it would leave of the limit; record nothing."""
        left, count = self.limit - self.spent, len(self.releases)
        after = left - planned.rho
        would = (
            f"would leave {decimal_below(after)}"
            if after >= 0
            else f"does not fit: it costs {decimal_above(-after)} more than the {decimal_below(left)} that are left"
        )
        return [
            f"Ledger: {counted(count, 'release')} recorded, rho = {self.spent}, {decimal_above(self.spent)}, of the "
            f"limit {self.limit}; this one, rho = {decimal_above(planned.rho)}, {would}. Nothing was recorded."
        ]

    def record(self, planned: ReleasePlan, workload: str, what: str = "") -> Ledger:
        """Add a release, on the disk when this returns, and return the ledger with it; its statement will tell of it.

        Raises `InvalidInputError` as `check` does, of the ledger as it is now; `FileFormatError` where it cannot be
        written. Nothing of the release may be published before.
        """
        with _alone(self.path):
            unchanged = self.version and self.version == _version_of(self.path)
            now = self if unchanged else Ledger.read(self.path)
            now.check(planned)
            entry = {
                "rho": str(planned.rho),
                "what": printable(what),
                "when": datetime.now(UTC).isoformat(timespec="seconds"),
                "workload": workload,
                "neighbours": planned.relation,
                "unit": planned.unit,
            }
            releases, unit = (*now.releases, entry), now.unit or planned.unit
            extended = replace(now, releases=releases, unit=unit, total=now.spent + planned.rho)
            extended._write()
            extended = replace(extended, version=_version_of(self.path))
        planned.ledger = extended
        return extended

    def lines(self) -> list[str]:
        return [
            f"Ledger: release {len(self.releases)} of these records; all together cost rho = {self.spent}, "
            f"{decimal_above(self.spent)}, of the {self.limit} that is the limit; the unit of privacy is {self.unit}."
        ]

    def _write(self) -> None:
        """Put the last release on the disk: at the end of a file that holds others, else in a file that is made anew.

        A release that is not wholly written is taken back.
        """
        assert self.unit is not None  # that of the first release
        if len(self.releases) > 1 and _appended(self.path, _release_text(self.releases[-1]).encode()):
            return
        head = [f"limit = {_toml(str(self.limit))}", *_unit_lines(self.unit), ""]
        files.atomic.write_text(self.path, "\n".join(head) + "".join(map(_release_text, self.releases)))
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # so that the new name is on the disk as well
        finally:
            os.close(folder)


def _appended(path: Path, entry: bytes) -> bool:
    """Add an entry at the end of a file whose last entries are tables of their own; return whether they are.

    What was written of an entry is taken back if the rest cannot be written. After a failure of power it may be there:
    the file is then refused until its last entry is removed, of which nothing was published.
    """
    with open(path, "r+b", buffering=0) as handle:
        end = handle.seek(0, os.SEEK_END)
        handle.seek(max(end - TAIL, 0))
        if LISTED not in handle.read():
            return False
        try:
            if handle.write(entry) < len(entry):
                raise FileFormatError(f"{path}: cannot be written: the disk is full")
            os.fsync(handle.fileno())
        except BaseException:
            handle.truncate(end)
            raise
    return True


def _version_of(path: Path) -> tuple[int, ...]:
    """Return numbers that change with a file's contents, and with its names."""
    if not path.exists():
        return ()
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_nlink


def _release_text(release: dict[str, Any]) -> str:
    texts = (f"{key} = {_toml(release[key])}" for key in ENTRY if key != "neighbours")
    return "\n".join(["", "[[releases]]", *texts, *_unit_lines(release["unit"]), ""])


def _entry(entry: object) -> dict[str, Any]:
    texts = validate.mapping("rho, what, when, workload, neighbours and unit", releases=entry)
    if {*texts} != {*ENTRY, "unit"} or not all(isinstance(texts[key], str) for key in ENTRY):
        raise InvalidInputError(f"a release in a ledger must have the texts {', '.join(ENTRY)} and unit, got {texts}")
    validate.exact_or_zero(rho=texts["rho"])
    unit = PrivacyUnit.of_spec(texts["neighbours"], texts["unit"])
    return {key: texts[key] for key in ENTRY} | {"neighbours": unit.neighbours, "unit": unit}


def _unit_lines(unit: PrivacyUnit) -> list[str]:
    options = ", ".join(f"{key} = {_toml(value)}" for key, value in unit.spec.items())
    return [f"neighbours = {_toml(unit.neighbours)}", f"unit = {{ {options} }}"]


def _place(path: str | PathLike[str]) -> Path:
    """Return the one name of a file; refuse one that has several, which two writers could lock apart."""
    place = Path(os.path.realpath(path))
    with errors_naming(path):
        if place.exists() and (names := place.stat().st_nlink) > 1:
            raise InvalidInputError(f"a ledger must be a file of one name, this one has {names} (hard links)")
    return place


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process writes the ledger, and keep others waiting; a killed one waits for nobody."""
    try:
        import fcntl
    except ImportError as error:
        raise InvalidInputError("ledger needs a system that locks files, which this one does not") from error
    with errors_naming(path), open(f"{path}{LOCK}", "a+b") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _toml(value: str | int) -> str:
    """Return a text or an integer as TOML, which takes what JSON does of it but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
