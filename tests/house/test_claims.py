"""Every decimal number that a page states is printed by an example on it, or by a command that it names.

A line ``<!-- printed by: COMMAND; COMMAND -->`` in a page says which commands of ``dualmech`` print the numbers of what
follows, up to the next such line or heading. A number is found if it is a rounding of one that is printed there, or by
a Python example of the same page. ``<!-- printed by, within 0.5: COMMAND -->`` has numbers that the processor's last
bits decide, where noise is drawn or a descent ends somewhere, and how far they move. ``<!-- measured by: COMMAND -->``
says how seconds, memory and gaps were measured, which no other run repeats to the digit; ``<!-- stated: WHY -->`` has
what no command prints, with the reason.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
ADULT = ROOT.parent / "shared" / "data" / "adult.csv"

SOURCE = re.compile(r"^<!-- (printed by|measured by|stated)(?:, within ([\d.]+))?: (.+?) -->$")
FENCE = re.compile(r"^```.*?^```\n", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?!\w|\.\d)")
DECIMAL = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*\.\d+(?!\w|\.\d)")

PLACES = re.compile(
    r"\b(?:sections?|examples?|theorems?|lemmas?|corollar(?:y|ies)|definitions?|remarks?|problems?|propositions?|version|Python|Acc|NumPy|SciPy|arXiv)"
    r"\s+\d+(?:\.\d+)+(?:(?:,| and| to)\s+\d+(?:\.\d+)+)*",
    re.IGNORECASE,
)
"""Numbers that name a place, or a version."""

PARAMETERS = re.compile(r"(?<=\w) = [\d.,]+")  # numbers that a sentence gives to a letter

MEASURES = re.compile(r"\d[\d.,]*(?:\s+to\s+[\d.,]+)?\s+(?:s|ms|min|MiB|GiB|MB|processor-seconds|seconds|minutes)\b")
"""Numbers of seconds or bytes, which differ from run to run."""

MEASURED_COLUMNS = re.compile(r"seconds|speed|MiB|gap|steps", re.IGNORECASE)


@dataclass
class Section:
    """What stands between two headings or sources of a page."""

    page: Path
    heading: str
    kind: str = ""  # Of its source: "printed by", "measured by", "stated" or none
    source: str = ""
    within: float = 0.0  # how far its numbers may be from those printed, besides their rounding
    lines: list[str] = field(default_factory=list)

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that print its numbers."""
        return tuple(part.strip() for part in self.source.split(";")) if self.kind == "printed by" else ()

    def claimed(self) -> list[str]:
        """Return the decimal numbers that it states, but for names of places and for measures."""
        text = "\n".join(_without_measures(self.lines))
        text = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)
        for named in (PLACES, MEASURES, PARAMETERS):
            text = named.sub(" ", text)
        return DECIMAL.findall(text)


def sections(page: Path) -> list[Section]:
    """Return the sections of a page, without its code."""
    found = [Section(page, "")]
    for line in FENCE.sub("", page.read_text(encoding="utf-8")).splitlines():
        if line.startswith("#"):
            found.append(Section(page, line.lstrip("# ")))
        elif (said := SOURCE.match(line)) is not None:
            found.append(Section(page, found[-1].heading, said[1], said[3], float(said[2] or 0)))
        else:
            found[-1].lines.append(line)
    return found


def shown_numbers(page: Path) -> set[float]:
    """Return the numbers in a page's code and in what it prints."""
    return numbers_in("\n".join(FENCE.findall(page.read_text(encoding="utf-8"))))


def numbers_in(text: str) -> set[float]:
    """Return all numbers of a text."""
    return {float(number.replace(",", "")) for number in NUMBER.findall(text)}


def missing(claimed: Sequence[str], printed: set[float], within: float = 0.0) -> list[str]:
    """Return the numbers that are a rounding of no printed one, be it printed in percent, as a part or as a factor."""
    return [text for text in claimed if not any(_rounds(text, number, within) for number in printed)]


def _rounds(text: str, number: float, within: float) -> bool:
    half = within + 0.5000001 * 10.0 ** -len(text.partition(".")[2])
    stated = float(text.replace(",", ""))
    return any(abs(value - stated) <= half for value in (number, 100 * number, 100 * (number - 1)))


def _without_measures(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines, those of tables without the cells in columns of seconds, memory and gaps."""
    dropped: list[int] = []
    for line in lines:
        if not line.startswith("|"):
            dropped = []
            yield line
            continue
        cells = line.strip("|").split("|")
        if not dropped:
            dropped = [place for place, cell in enumerate(cells) if MEASURED_COLUMNS.search(cell)] or [-1]
        yield " | ".join(cell for place, cell in enumerate(cells) if place not in dropped)


def test_a_number_is_printed_on_its_page_or_has_a_source() -> None:
    for page in PAGES:
        shown = shown_numbers(page)
        for section in sections(page):
            if not section.kind:
                assert not missing(section.claimed(), shown), f"{page.name}: {section.heading}"


def test_a_number_that_nobody_prints_is_missed() -> None:
    assert missing(["1.25", "12.5", "3.14"], {1.2468, 0.125, 3.1}) == ["3.14"]
    assert not missing(["3.14"], {3.1}, within=0.04)
    section = Section(Path("page"), "heading", lines=["Section 6.1 took 2.5 s and found 0.31.", "", "| d | gap |"])
    section.lines += ["|---|---|", "| 1.5 | 2.5e-3 |"]
    assert section.claimed() == ["0.31", "1.5"]


@cache
def printed_by(command: str) -> set[float]:
    """Return the numbers that a command prints; `pytest -s` shows how long it took."""
    words = [word.replace("adult.csv", str(ADULT)) for word in shlex.split(command)]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "dualmech", *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "400"},
    )
    print(f"{command}: {time.perf_counter() - began:.0f} s")
    assert done.returncode in (0, 3), f"{command}: {done.stderr}"
    return numbers_in(done.stdout)


ALL = [section for page in PAGES for section in sections(page)]


Printed = Callable[[Section], set[float]]
"""Returns the numbers that the commands of a section print."""


@pytest.fixture(scope="session")
def printed(request: pytest.FixtureRequest) -> Iterator[Printed]:
    """Run the commands of all chosen sections, each once, as many at a time as there are cores.

    Workers of pytest-xdist know nothing of each other's commands: each runs those that it needs, when it needs them.
    """
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    chosen = [getattr(item, "callspec", None) for item in request.session.items] if alone else []
    asked = [each.params["section"] for each in chosen if each is not None and "section" in each.params]
    ahead = dict.fromkeys(command for each in asked if not lacking(each) for command in each.commands)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = {command: pool.submit(printed_by, command) for command in ahead}

        def found(section: Section) -> set[float]:
            own = [runs[each].result() if each in runs else printed_by(each) for each in section.commands]
            return set[float]().union(*own)

        yield found
        pool.shutdown(cancel_futures=True)


def lacking(section: Section) -> bool:
    """Return whether its commands read a table that is not beside the project."""
    return "adult.csv" in section.source and not ADULT.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "section",
    [section for section in ALL if section.commands],
    ids=lambda section: f"{section.page.name}: {section.heading}",
)
def test_commands_print_what_pages_state(section: Section, printed: Printed) -> None:
    if lacking(section):
        pytest.skip("needs ../shared/data/adult.csv")
    assert not missing(section.claimed(), shown_numbers(section.page) | printed(section), section.within)
