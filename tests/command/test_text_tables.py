"""Tables in a terminal: nothing of them is lost at any width, and their words are explained once."""

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from dualmech.command.answers import MEANINGS
from dualmech.command.main import app
from dualmech.crosscheck.printing import TextTable, table_of_lines
from dualmech.studies.papers import sheets

words = st.text(st.sampled_from("abcxyz0189[]/.,% "), min_size=1, max_size=24).filter(str.strip)


def shown(table: TextTable, width: int) -> list[str]:
    out = Console(file=io.StringIO(), width=width, highlight=False, soft_wrap=True)
    out.print(table)
    return out.file.getvalue().splitlines()  # type: ignore[attr-defined]


@given(
    rows=st.integers(1, 8).flatmap(
        lambda count: st.lists(st.lists(words, min_size=count, max_size=count), min_size=2, max_size=4)
    ),
    width=st.integers(40, 200),
)
@settings(max_examples=24)
def test_everything_is_shown_within_any_width(rows: list[list[str]], width: int) -> None:
    headings, *cells = rows
    lines = shown(TextTable("title", headings, cells, notes=["what it means"]), width)
    assert max(map(len, lines)) <= width
    said = "".join("".join(lines).split())
    for text in ("title", "what it means", *headings, *(cell for row in cells for cell in row)):
        assert all(part in said for part in text.split())


def test_a_table_that_does_not_fit_is_broken_then_divided_then_stacked() -> None:
    table = TextTable(
        "t", ("name", "a number", "other"), [("one", "1\n2", ""), ("two", "3", "4")], ("name",), decisive=("other",)
    )
    whole, broken, divided = (shown(table, width) for width in (60, 25, 18))
    for lines, times in ((whole, 1), (broken, 1), (divided, 2)):
        assert "".join(lines).count("one") == times and "name:" not in "".join(lines)
    assert len(broken) == len(whole) + 1, "the heading of two words"
    assert "other" in divided[2], "what decides comes first"
    assert shown(table, 14) == [
        *("t", "", "name: one", "  a number  1 2", "  other", ""),
        *("name: two", "  a number  3", "  other     4", ""),
    ]


def test_every_part_begins_with_what_tells_rows_apart() -> None:
    rows = [(name, size, *"1234") for name in ("one", "two") for size in "89"]
    lines = shown(TextTable("t", ("name", "n", *("first", "second", "third", "fourth")), rows, ("name",)), 30)
    headings = [line.split() for line in lines if "name" in line]
    assert len(headings) > 1 and all(each[:2] == ["name", "n"] for each in headings)


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_an_answer_shows_all_it_has_at_any_width(columns: str) -> None:
    result = CliRunner().invoke(app, ["solve", "pl94"], env={"COLUMNS": columns})
    assert result.exit_code == 0 and "…" not in result.output
    flat = " ".join(result.output.split())
    for shown_once in ("margin: of error at the level 0.9, z = 1.645", *list(MEANINGS.values())[1:4]):
        assert flat.lower().count(shown_once.lower()) == 1
    for heading in ("queries", "target margin", "binding", "loose", "share of bill", "voting-age"):
        assert all(word in flat for word in heading.split())
    assert "group: voting-age" not in result.output, "never row by row"


def test_lines_of_numbers_stand_below_their_columns() -> None:
    lines = {"printed": {"c0": "1", "c2": "3"}, "computed": {"c1": "2.5"}}
    heading, _, printed, computed = shown(table_of_lines("t", ["c0", "c1", "c2"], lines), 60)[2:6]
    places = {name: heading.index(name) + 2 for name in ("c0", "c1", "c2")}
    assert [printed[places["c0"] - 1], printed[places["c2"] - 1]] == ["1", "3"]
    assert computed[: places["c1"]].endswith("2.5") and "printed" in printed


@pytest.mark.parametrize(
    "name", ["fitness/table2", "fitness/table3", "fitness/figure2", "common/saved", "local/histograms", "scale/adult"]
)
def test_numbers_of_a_paper_are_headed_so(name: str) -> None:
    sheet = sheets.SHEETS[name]
    row = next(next(sheets.compute({name: sheet.tasks(True)[:1]})))
    for width in (120, 79):
        out = Console(file=io.StringIO(), width=width, highlight=False, soft_wrap=True)
        sheet.show(out, name, iter([row]))
        text = out.file.getvalue()  # type: ignore[attr-defined]
        assert max(map(len, text.splitlines())) <= width and "─" in text, "a table, and not its rows one by one"
    assert "…" not in text
    headings = [line for line in text.splitlines() if re.match(r" +\S", line)]
    assert ("printed" in text) == (name not in ("fitness/figure2", "scale/adult", "local/histograms"))
    assert headings
