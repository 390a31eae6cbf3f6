"""Markdown pages that escape every text: no name or label of a user becomes markup or HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dualmech.errors import printable

MARKUP = re.compile(
    r"[\\`*\[~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?:^|(?<= ))#"
    r"|^ *(?:[-+](?=\s|$)|[-=](?=[-=\s]*$)|\d+[.)](?=\s|$))"
)
"""Possible markup: special characters anywhere, others at the start of a line."""

ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def escaped(text: str) -> str:
    r"""Return a text on one line with its markup escaped, so that Markdown readers show the text itself.

    Examples
    --------
    >>> print(escaped("<b> [x](javascript:1), native_country"))
    &lt;b&gt; \[x](javascript:1), native_country
    """
    html = "".join(ENTITIES.get(letter, letter) for letter in printable(text).strip())
    return MARKUP.sub(lambda match: match[0][:-1] + "\\" + match[0][-1], html)


class Page:
    """A page, written from start to end; every method escapes its texts."""

    def __init__(self, title: str) -> None:
        self._lines = [f"# {escaped(title)}", ""]

    def section(self, title: str) -> None:
        self._lines += [f"## {escaped(title)}", ""]

    def paragraphs(self, *texts: str) -> None:
        for text in texts:
            self._lines += [escaped(text), ""]

    def items(self, items: Iterable[str | tuple[str, Sequence[str]]]) -> None:
        """Write a list; a pair is an item with an inner list."""
        for item in items:
            text, inner = (item, ()) if isinstance(item, str) else item
            self._lines += [f"- {escaped(text)}", *(f"  - {escaped(line)}" for line in inner)]
        if self._lines[-1]:
            self._lines.append("")

    def table(self, heading: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Write a table whose first and last columns are texts, and the others numbers."""
        rule = ["---", *["---:"] * (len(heading) - 2), "---"]
        texts = ([escaped(cell).replace("|", "\\|") for cell in cells] for cells in (heading, *rows))
        lines = [f"| {' | '.join(cells)} |" for cells in (next(texts), rule, *texts)]
        self._lines += [*lines, ""]

    def __str__(self) -> str:
        return "\n".join(self._lines).rstrip("\n") + "\n"
