"""Pages in Markdown: any text is shown as it is."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from dualmech.errors import printable
from dualmech.publishing.markdown import Page

TEXTS = st.text(st.sampled_from("ab1_ *`~[]()<>!#&;:|\\-+=.\n\t'\"$@/") | st.characters(codec="utf-8"), max_size=20)
READER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def shown(page: str) -> list[str]:
    """Return the texts of the blocks of a page; fail where one holds anything but text."""
    texts = []
    for block in READER.parse(page):
        if block.type in ("code_block", "fence", "html_block", "hr", "blockquote_open"):
            raise AssertionError(f"{block.type} in {page!r}")
        if block.type == "inline":
            parts: list[Token] = block.children or []
            assert {part.type for part in parts} <= {"text", "text_special"}, (parts, page)
            texts.append("".join(part.content for part in parts))
    return texts


@example("<script>alert(1)</script>")
@example("[x](javascript:1)")
@example("![x](y)")
@example("    code")
@example("1. one")
@example("--")
@example("&lt;")
@given(TEXTS)
def test_texts_are_shown_as_they_are(text: str) -> None:
    page = Page(f"a{text}")
    page.section(f"b{text}")
    page.paragraphs(f"c{text}", text)
    page.items([text, (f"d{text}", [text])])
    page.table([f"e{text}", "n", "f"], [[f"g{text}", text, "h"]])
    plain = printable(text).strip()
    inner = [plain] if plain else []
    ends = [f"{letter}{printable(text)}".strip() for letter in "abcdeg"]
    expected = [ends[0], ends[1], ends[2], *inner, *inner, ends[3], *inner, ends[4], "n", "f", ends[5], plain, "h"]
    found = [text for text in shown(str(page)) if text or plain == ""]
    assert [" ".join(each.split()) for each in found] == [" ".join(each.split()) for each in expected]
