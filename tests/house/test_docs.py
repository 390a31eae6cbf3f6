"""Everything that the documents show is run: Python examples, and commands with their output."""

from __future__ import annotations

import doctest
import re
import shlex
import shutil
import warnings
from pathlib import Path

import pytest
from commanded import run

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FIRST_PAGES = re.compile(r"README|index|tour|lesson_\d")  # read before others; examples of others run in `make docs`
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CONSOLE = re.compile(r"^```console\n\$ dualmech (.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^dualmech (.*?)(?: +#.*)?$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if FIRST_PAGES.fullmatch(page.stem) else [pytest.mark.slow]) for page in PAGES],
    ids=lambda page: page.name,
)
def test_python_examples_run_as_they_stand(page: Path) -> None:
    blocks = "\n".join(block for block in PYTHON.findall(page.read_text(encoding="utf-8")) if ">>>" in block)
    example = doctest.DocTestParser().get_doctest(blocks, {}, page.name, str(page), 0)
    report: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # Told not to be verbose, or it would be where pytest is, by its reading of the command line.
        flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        doctest.DocTestRunner(verbose=False, optionflags=flags).run(example, out=report.append)
    assert not report, "".join(report)


SHOWING = [page for page in PAGES if CONSOLE.search(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: page.name)
def test_commands_print_what_the_page_shows(page: Path) -> None:
    for command, shown in CONSOLE.findall(page.read_text(encoding="utf-8")):
        printed = run(*shlex.split(command)).output
        assert [line.rstrip() for line in printed.splitlines()] == [line.rstrip() for line in shown.splitlines()]


def test_commands_of_the_readme_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    commands = COMMAND.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(commands) >= 5
    for command in commands:
        done = run(*shlex.split(command))
        assert done.exit_code in (0, 3), f"{command}: {done.output}"  # 3: judged, and not the best


def test_files_that_commands_name_are_among_the_examples() -> None:
    for page in PAGES:
        for command in COMMAND.findall(page.read_text(encoding="utf-8")):
            made = re.findall(r"(?:-o|--output) (\S+)", page.read_text(encoding="utf-8"))
            for name in re.findall(r"\S+\.(?:csv|npy|npz|mtx)\b", command):
                assert name in made or (ROOT / name).exists(), f"{page.name}: {command}"


def test_links_lead_somewhere() -> None:
    links = [(page, target) for page in PAGES for target in LINK.findall(page.read_text(encoding="utf-8"))]
    assert not [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()]
