"""Pages in Markdown become notebooks: prompts and expected output go, and the site shows what cells really print.

The pages themselves stay what the test suite runs. One cell ends where an example prints something. Links between
pages lead to the notebooks, links to other files of the repository to copies of them.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat import v4
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    **{path: path.stem for path in sorted((ROOT / "docs").rglob("*.md"))},
    **{ROOT / f"{name}.md": name.lower() for name in ("README", "CONTRIBUTING", "CHANGELOG")},
}
"""By file, the name of its page."""

INDEX = ROOT / "docs" / "index.md"
"""Its lists are the navigation, a group a heading; a page in none is reached by links alone."""

FENCE = re.compile(r"^(```(\w*)\n(.*?)^```)$\n?", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"^<!--.*?-->\n", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)")
GROUP = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
ITEM = re.compile(r"^- \[([^\]]+)\]\(([^)#]+)\)", re.MULTILINE)

FOLD = re.compile(r"</?details>")  # what begins with <details> is folded up to </details>

ONLY_HERE = "only-here"
"""Tag of cells that the notebooks for download do without."""

PREPARE = f"""\
import os
os.chdir({str(ROOT)!r})
get_ipython().display_formatter.formatters["text/plain"].pprint = False
get_ipython().run_line_magic("xmode", "Minimal")
get_ipython().run_line_magic("colors", "nocolor")
del os
"""

FIGURES = "%matplotlib inline\n%config InlineBackend.figure_formats = ['svg']"
"""What shows figures, in notebooks that have some."""


def cells(text: str) -> Iterator[list[doctest.Example] | str]:
    """Yield a page's parts: Markdown as text, and examples up to one that prints as a list."""
    place = 0
    for fence in FENCE.finditer(text):
        if fence[2] != "python" or ">>>" not in fence[3]:
            continue
        yield text[place : fence.start()]
        place = fence.end()
        group: list[doctest.Example] = []
        for example in doctest.DocTestParser().get_examples(fence[3]):
            group.append(example)
            if example.want:
                yield group
                group = []
        if group:
            yield group
    yield text[place:]


def notebook(page: Path, folder: Path) -> Any:
    """Return a page as a notebook that has not been run; copy the files that it links to into a folder."""
    made = [v4.new_code_cell(PREPARE, metadata={"tags": ["remove-cell", ONLY_HERE]})]
    text = page.read_text(encoding="utf-8")
    if "<Figure size" in text:
        made.append(v4.new_code_cell(FIGURES, metadata={"tags": ["remove-cell"]}))
    folded = False
    for part in cells(text):
        if isinstance(part, str):
            folded = FOLD.findall(part)[-1] == "<details>" if FOLD.search(part) else folded
            said = _relinked(COMMENT.sub("", part), page, folder).strip("\n")
            made += [v4.new_markdown_cell(said)] if said.strip() else []
        else:
            fails = ["raises-exception"] if part[-1].exc_msg else []
            source = "".join(example.source for example in part).rstrip("\n")
            hidden = {"jupyter": {"source_hidden": True, "outputs_hidden": True}} if folded else {}
            made.append(v4.new_code_cell(source, metadata={"tags": fails, **hidden}))
    if len([cell for cell in made if cell.cell_type == "code"]) == 1:
        del made[0]
    if PAGES[page] == "index":
        made.append(v4.new_markdown_cell(_contents(), metadata={"tags": [ONLY_HERE]}))
    for number, cell in enumerate(made):
        cell["id"] = f"cell-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    about: dict[str, Any] = {"kernelspec": kernel, "language_info": {"name": "python"}}
    if page != INDEX and not any(page in pages for _, _, pages in groups(INDEX)):
        about["orphan"] = True
    return v4.new_notebook(cells=made, metadata=about)


def _relinked(text: str, page: Path, folder: Path) -> str:
    def target(link: re.Match[str]) -> str:
        path = Path(os.path.normpath(page.parent / link[1]))
        if path in PAGES:
            return f"{PAGES[path]}.ipynb"
        if not path.is_file():
            raise ExtensionError(f"{page.name}: no file {link[1]}")
        copy = folder / "files" / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        return copy.relative_to(folder).as_posix()

    parts = re.split(r"(^```.*?^```$|`[^`\n]*`)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if number % 2 else LINK.sub(target, part) for number, part in enumerate(parts))


def groups(index: Path) -> list[tuple[str, str, list[Path]]]:
    """Return the parts of the index with a list of pages: heading, text, pages."""
    found = []
    for heading, body in GROUP.findall(index.read_text(encoding="utf-8")):
        pages = [Path(os.path.normpath(index.parent / link)) for _, link in ITEM.findall(body)]
        if pages:
            found.append((heading, body, pages))
    return found


def _contents() -> str:
    """Return the site's table of contents: a page for each group of the index, and the reference."""
    listed = "\n".join(f"group_{heading.lower()}" for heading, _, _ in groups(INDEX))
    return f"```{{toctree}}\n:hidden:\n\n{listed}\nreference\n```"


def _group(heading: str, body: str, pages: list[Path], folder: Path) -> Any:
    """Return the page of a group, under which its pages stand."""
    listed = "\n".join(PAGES[path] for path in pages)
    text = f"# {heading}\n{_relinked(body, INDEX, folder)}\n```{{toctree}}\n:hidden:\n\n{listed}\n```"
    return v4.new_notebook(cells=[v4.new_markdown_cell(text, id="cell-0")])


def write_if_new(path: Path, text: str) -> None:
    """Write a file unless it has that text already, so that what did not change is not built again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _write_pages(app: Sphinx, _: Any) -> None:
    folder = Path(app.srcdir)
    for page, name in PAGES.items():
        write_if_new(folder / f"{name}.ipynb", nbformat.writes(notebook(page, folder)) + "\n")
    for heading, body, pages in groups(INDEX):
        made = _group(heading, body, pages, folder)
        write_if_new(folder / f"group_{heading.lower()}.ipynb", nbformat.writes(made) + "\n")


def _name_notebooks(app: Sphinx, _page: str, _template: str, context: dict[str, Any], _tree: Any) -> None:
    context["notebook_pages"] = set(PAGES.values())


def _offer_notebooks(app: Sphinx, failed: Exception | None) -> None:
    """Copy the notebooks, with what their cells printed, to where pages link to them."""
    if failed is not None:
        return
    run = Path(app.outdir).parent / "jupyter_execute"
    for name in PAGES.values():
        path = run / f"{name}.ipynb"
        made = nbformat.read(path if path.exists() else Path(app.srcdir) / path.name, as_version=4)
        made.cells = [cell for cell in made.cells if ONLY_HERE not in cell.metadata.get("tags", [])]
        write_if_new(Path(app.outdir) / "notebooks" / path.name, nbformat.writes(made) + "\n")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the notebooks before Sphinx looks for pages, and offer them when they have run."""
    app.connect("config-inited", _write_pages)
    app.connect("html-page-context", _name_notebooks)
    app.connect("build-finished", _offer_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
