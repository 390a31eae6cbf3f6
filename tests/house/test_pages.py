"""Pages and docstrings: solutions run, formulas are mathematics, quoted names exist, what users reach is described."""

from __future__ import annotations

import doctest
import functools
import importlib.util
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import typer
from conformance import ConformanceCase
from hostile import public_functions

import dualmech as dm
from dualmech import reference
from dualmech.command import sweep
from dualmech.command.main import app
from dualmech.crosscheck.families import family_of
from dualmech.fast import eigen, methods
from dualmech.publishing import specification
from dualmech.reference import solving as reference_solving

DOCS = Path(__file__).resolve().parents[2] / "docs"
LESSONS = sorted(DOCS.glob("lesson_*.md"))

PROBLEMS = (DOCS / "index.md").read_text(encoding="utf-8").partition("\n## Problems\n")[2].partition("\n## ")[0]
FAMILIES = re.findall(r"^- \[[^]]+\]\((\w+)\.md\)", PROBLEMS, re.MULTILINE)
"""The pages of problems, which docs/index.md lists."""

FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)

EXERCISE = re.compile(r"^\*\*Exercise (\d+)\.\*\*(.*?)(?=^\*\*Exercise|\Z)", re.DOTALL | re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SOLUTION = re.compile(r"^<details>\n<summary>Solution</summary>\n\n(.*?)\n\n</details>$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", LESSONS, ids=lambda page: page.stem)
def test_exercises_have_folded_solutions_that_run_and_one_is_judged_by_the_library(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert any("testing.check(known" in solution for solution in SOLUTION.findall(text)) and "running example" in text
    exercises = EXERCISE.findall(text)
    assert [int(number) for number, _ in exercises] == list(range(1, len(exercises) + 1))
    for number, exercise in exercises:
        solutions, hints = SOLUTION.findall(exercise), exercise.count("<summary>Hint</summary>")
        assert len(solutions) == 1 >= hints and "*Hint" not in exercise, number
        assert exercise.count("<details>") == exercise.count("</details>") == 1 + hints, number
        examples = doctest.DocTestParser().get_examples("\n".join(PYTHON.findall(solutions[0])))
        assert any(example.want or "assert " in example.source for example in examples), number


@pytest.mark.parametrize("family", FAMILIES)
def test_formulas_of_families_are_mathematics(family: str) -> None:
    text = FENCE.sub("", (DOCS / f"{family}.md").read_text(encoding="utf-8"))
    assert not re.findall(r"^ {4}\S.*$", text, re.MULTILINE), "an indented formula"
    assert not [code for code in re.findall(r"`([^`\n]+)`", text) if set(code) & set("Σλμ‖⪯⪰")]


ROOT = DOCS.parent
ROOMS = ("core", "reference", "fast", "crosscheck", "studies", "publishing", "command", "tests", "docs", "examples")
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
PROSE = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*PAGES, *(path for room in ROOMS[:7] for path in (ROOT / room).rglob("*.py")))
}
"""Texts of pages and modules, by their place."""
MARKDOWN = {place: text for place, text in PROSE.items() if place.endswith(".md")}
SCHEMAS = ("workload", "solution", "proof", "mechanism", "publication")
"""What files say of themselves, which is no name of Python's."""


def exists(name: str) -> bool:
    """Whether a name after `dualmech.` is that of a module, or of what one holds."""
    found: Any = dm
    for count, part in enumerate(parts := name.split("."), 1):
        try:
            found = getattr(found, part)
        except AttributeError:
            if importlib.util.find_spec(f"dualmech.{'.'.join(parts[:count])}") is None:
                return False
            found = importlib.import_module(f"dualmech.{'.'.join(parts[:count])}")
    return True


def test_files_and_names_that_prose_quotes_exist() -> None:
    files, names = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w/.-]+)`"), re.compile(r"`dualmech\.([A-Za-z_][\w.]*)`")
    for place, text in PROSE.items():
        assert not [file for file in files.findall(text) if not (ROOT / file).exists()], place
        quoted = {name.rstrip(".") for name in names.findall(text)} - {*SCHEMAS}
        assert not [name for name in sorted(quoted) if not exists(name)], place


def offered() -> Iterator[tuple[str, Any]]:
    """Yield what users reach: names that `dualmech` and its modules offer, and the public members of classes."""
    for module in [dm, *filter(inspect.ismodule, (getattr(dm, name) for name in dir(dm)))]:
        for label, value in public_functions(module, f"{module.__name__}."):
            yield label, value
            for name, member in inspect.getmembers_static(value) if inspect.isclass(value) else ():
                if not name.startswith("_") and isinstance(member, FunctionType | property | functools.cached_property):
                    yield f"{label}.{name}", getattr(value, name)


def test_what_users_reach_is_described() -> None:
    """By its own docstring, or by that of what it overrides; inside, a name that says it all needs no more."""
    assert not [label for label, value in offered() if not inspect.getdoc(value)]


PLAIN_WORDS = {
    *("above", "all", "blocks", "case", "coordinate", "first", "for", "have", "in", "of", "on", "one", "privacy"),
    *("pure", "the", "two", "where", "worst", "if"),
}
"""Of the table of formulations, those that are none."""

COMMANDS: Any = typer.main.get_command(app)


def options_of(name: str) -> set[str]:
    """Return the options of a command."""
    return {each for option in COMMANDS.commands[name].params for each in (*option.opts, *option.secondary_opts)} | {
        "--help"
    }


def test_commands_and_options_that_prose_quotes_exist() -> None:
    for place, text in PROSE.items():
        quoted = re.findall(r"`dualmech ([a-z]\w*)([^`\n]*)", text)
        fenced = re.findall(r"^(?:\$ )?dualmech ([a-z]\w*)(.*)", "\n".join(FENCE.findall(text)), re.MULTILINE)
        for name, rest in quoted + fenced:
            assert name in COMMANDS.commands, f"{place}: {name}"
            assert {*re.findall(r"(?<!\S)--?[a-z][\w-]*", rest)} <= options_of(name), f"{place}: {name}{rest}"


def test_methods_and_options_that_pages_quote_exist() -> None:
    known = set().union(*map(options_of, COMMANDS.commands)) | {"--version"}
    for place, text in MARKDOWN.items():
        assert {*re.findall(r"`(--[a-z][\w-]*)", text)} <= known, place
        assert {*re.findall(r'method="(\w+)"', text)} <= {*methods.METHODS, *eigen.METHODS}, place


def test_formulations_that_prose_quotes_exist(cases: list[ConformanceCase]) -> None:
    """Those of one family on its page; each of `reference.formulate`'s table, or of a page, and no others there."""
    by_family: dict[str, set[str]] = {}
    for case in cases:
        problem = case.make()
        by_family.setdefault(family_of(problem).name, set()).update(reference_solving.formulations(problem))
    by_family["weighting"] |= {
        *reference_solving.formulations(dm.QueryWeighting(dm.workloads.identity(2), np.eye(2), privacy="pure"))
    }
    known, quoted = set().union(*by_family.values()), set()
    for place, text in MARKDOWN.items():
        assert {*re.findall(r'formulation="(\w+)"', text)} <= known, place
        for stated in re.findall(r"`reference` states ((?:`\w+`(?:, | and )?)+)", text):
            names = {*re.findall(r"\w+", stated)} - {"and"}
            assert names <= by_family.get(Path(place).stem, known), place
            quoted |= names
    table = str(inspect.getdoc(reference.formulate)).split("=\n")[2]
    listed = {word for line in table.splitlines() for word in re.findall(r"\b[a-z_]+\b", line[37:72])}
    assert listed - PLAIN_WORDS <= known
    assert known <= listed | quoted, "a family's page must say: `reference` states `…`, with all its formulations"


def test_keys_of_files_that_pages_show_exist() -> None:
    for place, text in MARKDOWN.items():
        for block in re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            shown = tomllib.loads(block)
            assert {*shown} <= {*sweep.KEYS} or {*shown} <= {*specification.KEYS}, place
            assert {key for table in shown.get("tables", []) for key in table} <= {*specification.TABLE_KEYS}, place


def test_all_keys_of_a_specification_are_described() -> None:
    text = (DOCS / "formats.md").read_text(encoding="utf-8")
    section = text.partition("## Specification")[2].partition("\n## ")[0]
    named = {word for quoted in re.findall(r"`([^`]+)`", section) for word in re.findall(r"[a-z]+", quoted)}
    assert {*specification.KEYS, *specification.TABLE_KEYS} <= named
