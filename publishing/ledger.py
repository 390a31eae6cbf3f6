"""Ledgers: the exact ρ of all releases of one body of records, and the limit on their sum."""

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
ENTRY_HEAD = b"\n[[releases]]\n"
TAIL_BYTES = 4096  # at the end of a file, where an entry is searched
LOCK_SUFFIX = ".lock"  # of the file that one writer at a time locks


@dataclass(frozen=True, slots=True)
class Ledger:
    """The releases of one body of records, in a TOML file.

    A new ledger has only the limit, ``limit = "1/2"``. `record` adds a release, one writer at a time, before the
    release is published. A recorded release counts as spent even if it is not published.

    Attributes
    ----------
    path : Path
        The file.
    limit : Fraction
        The maximum total ρ of all releases.
    releases : tuple of mappings
        Of each release the cost ``rho``, the folder or text ``what``, the time ``when``, the digest of its
        ``workload``, its ``neighbours`` and its ``unit``.
    unit : PrivacyUnit or None
        The unit of privacy that all releases protect; None before the first release, unless the file declares one.
    """

    path: Path
    limit: Fraction
    releases: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    unit: PrivacyUnit | None = None
    total: Fraction | None = field(default=None, repr=False, compare=False)  # `spent`, if computed
    version: tuple[int, ...] = field(default=(), repr=False, compare=False)  # of the file that was read

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Ledger:
        """Read a ledger.

        Raises `FileFormatError` for a file that is no ledger, or cannot be read.
        """
        place = _place(path)
        if not place.exists():
            raise FileFormatError(f'{path}: there is no such ledger; create one with a line such as limit = "1/2"')
        version = _version_of(place)  # before its contents: if the file changes meanwhile, `record` reads it again
        contents = read_toml(place)
        with errors_naming(path):
            if unknown := sorted(contents.keys() - {*KEYS}):
                raise InvalidInputError(f"a ledger holds {', '.join(KEYS)}, got {unknown[0]!r}")
            if "limit" not in contents:
                raise InvalidInputError('a ledger needs limit, the maximum rho of all releases, such as "1/2"')
            limit = validate.exact_number(limit=contents["limit"])
            entries = [_entry(entry) for entry in validate.sequence(releases=contents.get("releases", ()))]
            if entries and not {"neighbours", "unit"} <= contents.keys():
                raise InvalidInputError(
                    "a ledger with releases must state neighbours and unit, the unit of privacy of all its releases"
                )
            unit = None
            if "neighbours" in contents:  # the default unit is one record
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
        """The exact total ρ of all releases: costs in zCDP add up."""
        if self.total is not None:
            return self.total
        return sum((validate.exact_or_zero(rho=release["rho"]) for release in self.releases), Fraction(0))

    def check(self, planned: ReleasePlan) -> None:
        """Refuse a release that would exceed the limit, or that does not protect the unit of privacy."""
        remaining = self.limit - self.spent
        if planned.rho > remaining:
            raise InvalidInputError(
                f"{self.path}: the ledger's limit is rho = {self.limit}, {decimal_above(self.spent)} of it is "
                f"spent, and this release costs {decimal_above(planned.rho)}, more than the remaining "
                f"{decimal_below(remaining)}"
            )
        if self.unit is not None and not planned.unit.protects(self.unit):
            raise InvalidInputError(
                f"{self.path}: the releases of a ledger must protect the same unit of privacy, or more, for their rho "
                f"to add up: {self.unit}; got {planned.unit}; keep a ledger for each unit"
            )

    def outlook(self, planned: ReleasePlan) -> list[str]:
        """Return lines with the recorded ρ, the cost of a plan, and the ρ that would remain, without recording."""
        remaining, count = self.limit - self.spent, len(self.releases)
        after = remaining - planned.rho
        effect = (
            f"would leave {decimal_below(after)}"
            if after >= 0
            else f"does not fit: it costs {decimal_above(-after)} more than the remaining {decimal_below(remaining)}"
        )
        return [
            f"Ledger: {counted(count, 'release')} recorded, rho = {self.spent}, {decimal_above(self.spent)}, of the "
            f"limit {self.limit}; this one, rho = {decimal_above(planned.rho)}, {effect}. The ledger is unchanged."
        ]

    def record(self, planned: ReleasePlan, workload: str, what: str = "") -> Ledger:
        """Add a release to the file, synchronised to disk, and return the extended ledger.

        It sets ``planned.ledger``, so that the plan's statement names the ledger. Publish the release only after this
        returns. `workload` is the digest of the workload, and `what` the folder or text to record.
        Raises `InvalidInputError` as `check`, for the current file; `FileFormatError` if it cannot be written.
        """
        with _locked(self.path):
            is_current = self.version and self.version == _version_of(self.path)
            current = self if is_current else Ledger.read(self.path)
            current.check(planned)
            entry = {
                "rho": str(planned.rho),
                "what": printable(what),
                "when": datetime.now(UTC).isoformat(timespec="seconds"),
                "workload": workload,
                "neighbours": planned.relation,
                "unit": planned.unit,
            }
            releases, unit = (*current.releases, entry), current.unit or planned.unit
            extended = replace(current, releases=releases, unit=unit, total=current.spent + planned.rho)
            extended._write()
            extended = replace(extended, version=_version_of(self.path))
        planned.ledger = extended
        return extended

    def lines(self) -> list[str]:
        return [
            f"Ledger: release {len(self.releases)} of these records; their total cost is rho = {self.spent}, "
            f"{decimal_above(self.spent)}, of the limit {self.limit}; the unit of privacy is {self.unit}."
        ]

    def _write(self) -> None:
        """Write the last release to disk: append it to a file with other releases, else replace the file.

        A release that is not written completely is removed.
        """
        assert self.unit is not None  # set by the first release
        if len(self.releases) > 1 and _appended(self.path, _release_text(self.releases[-1]).encode()):
            return
        head = [f"limit = {_toml(str(self.limit))}", *_unit_lines(self.unit), ""]
        files.atomic.write_text(self.path, "\n".join(head) + "".join(map(_release_text, self.releases)))
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # so that the new name is on disk
        finally:
            os.close(folder)


def _appended(path: Path, entry: bytes) -> bool:
    """Append an entry if the last `TAIL_BYTES` of a file have a ``[[releases]]`` table; return False otherwise.

    A partly written entry is removed. After a power failure it may remain: the file is then refused until the entry,
    whose release was not published, is removed.
    """
    with open(path, "r+b", buffering=0) as handle:
        end = handle.seek(0, os.SEEK_END)
        handle.seek(max(end - TAIL_BYTES, 0))
        if ENTRY_HEAD not in handle.read():
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
    """Return numbers that differ if a file was changed or replaced: inode, size, time of change, hard links."""
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
    """Return the real path of a file; refuse a file with hard links, whose names have different locks."""
    place = Path(os.path.realpath(path))
    with errors_naming(path):
        if place.exists() and (names := place.stat().st_nlink) > 1:
            raise InvalidInputError(f"a ledger must be a file of one name, this one has {names} (hard links)")
    return place


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the ledger against other processes while the block runs; a killed process releases its lock."""
    try:
        import fcntl
    except ImportError as error:
        raise InvalidInputError("ledger needs a system that locks files, which this one does not") from error
    with errors_naming(path), open(f"{path}{LOCK_SUFFIX}", "a+b") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _toml(value: str | int) -> str:
    """Return a text or an integer as TOML: its JSON, with DEL escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
