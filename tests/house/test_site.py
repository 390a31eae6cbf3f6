"""The site is built with every example run, its links lead somewhere, and it fetches nothing when it is opened.

What builds it is the extra ``site``. A browser is used where one is on the PATH.
"""

from __future__ import annotations

import doctest
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from browser import looked_at, needs_browser, opened

REASON = "the site needs its extra: pip install '.[site]'"
pytest.importorskip("sphinx", reason=REASON)
pytest.importorskip("myst_nb", reason=REASON)
pytest.importorskip("furo", reason=REASON)
pytest.importorskip("latex2mathml", reason=REASON)

ROOT = Path(__file__).resolve().parents[2]
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
"""By element, the attribute that names what a browser loads with the page."""

LOADING = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "shortcut icon"}
OUTSIDE = re.compile(r"^(?:\w+:)?//")
STYLE_URL = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])((?:https?:)?//[^"')]+)""")

"""Clicks on a heading of a page's last table, some times."""

SHOWN = (
    "index",
    "theorems",
    "lesson_1",
    "lesson_2",
    "lesson_5",
    "fitness",
    "scale",
    "reference/names/dualmech.FitnessForUse",
)


class Page(HTMLParser):
    """What a built page holds: anchors, links, what is loaded with it, and formulas."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.formulas = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        self.formulas += tag == "math"
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in FETCHED and FETCHED[tag] in given and (tag != "link" or given.get("rel") in LOADING):
            self.loaded.append(given[FETCHED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make site` does; return its folder."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "pages").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--jobs", "2"]
        + ["-c", str(ROOT / "docs"), str(folder / "pages"), str(folder / "site")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def broken(found: dict[Path, Page]) -> Iterator[str]:
    """Yield links inside the site that lead to no file, or to no anchor of a page."""
    for path, page in found.items():
        for link in (*page.links, *page.loaded):
            if re.match(r"^\w+:|^//", link):
                continue
            name, _, anchor = link.partition("#")
            name = unquote(name.partition("?")[0])
            target = Path(os.path.normpath(path.parent / name)) if name else path
            if not target.is_file() or anchor and target in found and unquote(anchor) not in found[target].anchors:
                yield f"{path.name}: {link}"


def from_outside(site: Path, found: dict[Path, Page]) -> Iterator[str]:
    """Yield what pages and styles load from elsewhere."""
    for path, page in found.items():
        yield from (f"{path.name}: {each}" for each in page.loaded if OUTSIDE.match(each))
    for path in (*site.rglob("*.css"), *found):
        text = path.read_text(encoding="utf-8")
        yield from (f"{path.name}: {each}" for each in STYLE_URL.findall(text))


@pytest.mark.slow
def test_the_site_holds_together(site: Path) -> None:
    found = pages(site)
    assert {"index.html", "theorems.html", "readme.html", "contributing.html"} <= {each.name for each in found}
    assert (site / "reference" / "names" / "dualmech.FitnessForUse.html") in found
    assert not list(broken(found))
    assert not list(from_outside(site, found))
    assert found[site / "theorems.html"].formulas > 100


@pytest.mark.slow
def test_cells_print_what_pages_show(site: Path) -> None:
    notebooks = extension("page_notebooks")
    for page, name in notebooks.PAGES.items():
        groups = [part for part in notebooks.cells(page.read_text(encoding="utf-8")) if isinstance(part, list)]
        made = json.loads((site / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
        code = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
        code = [cell for cell in code if "".join(cell["source"]) != notebooks.FIGURES]
        assert len(code) == len(groups), name
        for cell, group in zip(code, groups, strict=True):
            assert agrees(group[-1], cell["outputs"]), "".join(cell["source"])
            drawn = group[-1].want.startswith("<Figure")
            assert not drawn or any("image/svg+xml" in each.get("data", {}) for each in cell["outputs"])
        assert str(ROOT) not in json.dumps(made)


def agrees(example: doctest.Example, outputs: list[dict[str, Any]]) -> bool:
    """Return whether a cell printed what its last example shows."""
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    if example.exc_msg is not None:
        raised = "".join(each["evalue"] for each in outputs if each["output_type"] == "error")
        return doctest.OutputChecker().check_output(example.exc_msg.partition(": ")[2], raised + "\n", flags)
    printed = ["".join(each["text"]) for each in outputs if each.get("name") == "stdout"]
    printed += ["".join(each["data"]["text/plain"]) + "\n" for each in outputs if "data" in each]
    return doctest.OutputChecker().check_output(example.want, "".join(printed), flags)


@pytest.mark.slow
@needs_browser
def test_a_browser_opens_pages_without_an_error(site: Path, tmp_path: Path) -> None:
    for name in SHOWN:
        said, text = opened(site / f"{name}.html", tmp_path)
        assert "</html>" in text
        assert not said
    assert opened(site / "theorems.html", tmp_path)[1].count("<math") > 100


@pytest.mark.slow
@needs_browser
def test_pages_fit_their_windows(site: Path, tmp_path: Path) -> None:
    names = [path.name for path in sorted(site.glob("*.html")) if path.name != "genindex.html"]
    assert looked_at(site, names, tmp_path) == f"looked at {len(names)} pages: ."
    assert not opened(site / "search.html", tmp_path, "?q=workload")[0]


@needs_browser
def test_a_page_that_does_not_fit_is_seen(tmp_path: Path) -> None:
    table = '<table style="width: 3em; overflow-wrap: anywhere; table-layout: fixed"><td>circumstances</td></table>'
    wide = '<div style="width: 900px">wide</div><div class="math" style="height: 9px; overflow: hidden">x<br>y</div>'
    wide = f"<article>{wide}{table}</article>"
    (tmp_path / "page.html").write_text(f"<!doctype html><body>{wide}</body>", encoding="utf-8")
    said = looked_at(tmp_path, ["page.html"], tmp_path / "profile")
    assert "page.html, 375 px, light: 9" in said and "1440 px, dark: a formula is cropped" in said
    assert "1440 px, light: 9" not in said
    assert "375 px, light: DIV reaches beyond the page" in said and '"circumstances" is broken in a table' in said


@needs_browser
def test_an_error_in_a_browser_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<html><script>missing();</script></html>", encoding="utf-8")
    assert "missing is not defined" in opened(page, tmp_path)[0][0]


def extension(name: str) -> Any:
    """Return a module of `docs/_extensions`."""
    folder = str(ROOT / "docs" / "_extensions")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def test_a_cell_ends_where_an_example_prints() -> None:
    text = "before\n```python\n>>> a = 1\n>>> a\n1\n>>> for _ in range(a):\n...     pass\n```\nafter\n"
    first, *groups, last = extension("page_notebooks").cells(text)
    assert (first, last) == ("before\n", "after\n")
    assert [[each.source for each in group] for group in groups] == [
        ["a = 1\n", "a\n"],
        ["for _ in range(a):\n    pass\n"],
    ]


def test_the_navigation_is_five_groups() -> None:
    notebooks = extension("page_notebooks")
    groups = notebooks.groups(notebooks.INDEX)
    listed = [path for _, _, pages in groups for path in pages]
    assert [heading for heading, _, _ in groups] == ["Begin", "Lessons", "Problems", "Use", "Trust"]
    assert len(set(listed)) == len(listed)
    outside = set(notebooks.PAGES) - {notebooks.INDEX, *listed}
    text = notebooks.INDEX.read_text(encoding="utf-8")
    folder = notebooks.INDEX.parent
    assert not [path for path in outside if f"]({path.relative_to(folder).as_posix()})" not in text]


def test_what_is_not_known_of_a_formula_is_refused() -> None:
    mathml = extension("mathml")
    assert mathml.typeset(r"\gamma_2(A) \le \lVert A \rVert_{\ast}", "inline").startswith("<math")
    assert "<mo lspace" in mathml.typeset(r"A \succeq B", "inline")
    assert "<mo lspace" in mathml.typeset(r"z \sim N", "inline")
    signs = [mathml.typeset(each, "inline").count('form="prefix"') for each in ("N(-p, -1)", "(a) - b", "|x| - 1")]
    assert signs == [2, 0, 0]
    assert "<mspace" in mathml.typeset(r"\mathrm{tr} A + \log x", "inline")
    assert '<msqrt><mrow><mspace width="0" height' in mathml.typeset(r"\sqrt{\alpha}", "inline")
    assert "<mspace" not in mathml.typeset(r"\mathrm{tr}(A) + \mathrm{tr}_A", "inline")
    for unknown in (r"\unheardof{x}", r"\begin{aligned} a &= b \end{aligned}"):
        with pytest.raises(Exception, match="no MathML"):
            mathml.typeset(unknown, "inline")


def test_solutions_are_folded_in_notebooks(tmp_path: Path) -> None:
    notebooks = extension("page_notebooks")
    page = tmp_path / "page.md"
    shown, folded = "```python\n>>> 1\n1\n```\n", "<details>\n<summary>Solution</summary>\n\ntext\n\n"
    page.write_text(f"{shown}{folded}{shown}\n</details>\n\n{shown}", encoding="utf-8")
    notebooks.PAGES[page] = "page"
    try:
        made = notebooks.notebook(page, tmp_path)
    finally:
        del notebooks.PAGES[page]
    code = [cell for cell in made.cells if cell.source == "1"]
    assert ["jupyter" in cell.metadata for cell in code] == [False, True, False]


def test_broken_links_and_outside_resources_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        '<a href="#here" id="here"></a><a href="#there"></a><a href="none.html"></a><img src="//x.org/y.png">'
        "<style>@import 'https://x.org/z.css';</style>",
        encoding="utf-8",
    )
    found = pages(tmp_path)
    assert list(broken(found)) == ["page.html: #there", "page.html: none.html"]
    assert list(from_outside(tmp_path, found)) == ["page.html: //x.org/y.png", "page.html: https://x.org/z.css"]
