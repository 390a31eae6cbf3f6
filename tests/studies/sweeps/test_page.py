"""The page of a sweep: it needs nothing from outside, and shows the same rows in tables and figures."""

import base64
import importlib.util
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from commanded import run
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmech.command.runs import PosedRun
from dualmech.errors import printable
from dualmech.studies.sweeps import page as figures
from dualmech.studies.sweeps import running
from dualmech.studies.sweeps.grid import read_grid
from dualmech.studies.sweeps.page import page
from dualmech.studies.sweeps.running import Row

drawn = pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="figures need the extra `plots`")


class Reader(HTMLParser):
    """Collects the cells of every table, and what the page would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.tags: list[str] = []
        self.sources: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        self._inside = tag in ("td", "th")
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif self._inside:
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "few.csv").write_text("1\n2\n")
    text = 'workloads = ["prefix:2", "prefix:3", "total:2"]\ntargets = [1, "few.csv"]'
    (folder / "grid.toml").write_text(text)
    return list(running.sweep(read_grid(folder / "grid.toml", PosedRun), folder / "results.jsonl", grid="grid.toml"))


@pytest.fixture(scope="module")
def said(rows: list[Row]) -> str:
    return page(rows, "title", ["dualmech report results.jsonl"])


def test_the_tables_hold_every_row_and_every_problem(rows: list[Row], said: str) -> None:
    problems, runs = Reader(said).tables
    assert len(runs) == 1 + len(rows)
    assert len(problems) == 1 + len({row["problem"] for row in rows})
    place = runs[0].index("status")
    assert [each[place] for each in runs[1:]] == [row["status"] for row in rows]
    assert {each[-1] for each in problems[1:]} == {"yes", "none"}


@drawn
def test_every_row_with_an_answer_is_a_point(rows: list[Row], said: str) -> None:
    assert said.count("dualmech report results.jsonl</pre></figcaption>") == len(figures.FIGURES)
    for figure in figures.FIGURES:
        points = [figure.point(row) for row in rows]
        assert [point is None for point in points] == [row["lower"] is None for row in rows]
        picture = figures.svg(figure, rows)
        (series,) = re.findall(r'<g id="series 0">(.*?)</g>\s*</g>', picture, re.DOTALL)
        assert series.count("<use ") == sum(point is not None for point in points), figure.title
        assert base64.b64encode(picture.encode()).decode() in said, figure.title


@drawn
def test_dollars_are_those_of_names_and_powers_of_ten_are_drawn_as_such(
    rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "STYLE", {**figures.STYLE, "svg.fonttype": "none"})
    for family, count in (("fitness", 0), ("$\\frac{$", 2)):
        picture = figures.svg(figures.FIGURES[0], [{**row, "family": family} for row in rows])
        texts = re.sub(r"<!--.*?-->", "", picture, flags=re.DOTALL)
        assert texts.count("$") == count


def test_nothing_comes_from_outside(said: str) -> None:
    found = Reader(said)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in found.sources)
    assert "link" not in found.tags and "default-src 'none'" in said and "://" not in said


KNOWN = {*("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "br", "pre", "script", "figure", "img")}
KNOWN |= {"figcaption", "table", "thead", "tbody", "tr", "th", "td"}

HOSTILE = st.text(st.sampled_from("<>&\"'$_\\{}/-![]ab\n\x1b\u202e\ud7ff"), max_size=12) | st.sampled_from(
    ["</td><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "$\\frac{$", "]]>--><b>", "_hidden"]
)


@settings(max_examples=2)
@given(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
def test_names_are_shown_and_not_obeyed(rows: list[Row], one: str, two: str, three: str, four: str) -> None:
    odd = [{**rows[0], "workload": one, "family": two, "message": three, "backend": four}]
    found = Reader(page(odd, one, [two]))
    assert found.tags.count("script") == found.tags.count("h1") == 1
    assert {*found.tags} <= KNOWN
    assert len(found.sources) in (0, len(figures.FIGURES))
    shown = "\n".join(map(printable, one.split("\n")))
    assert not one or shown in found.tables[0][1]


def test_the_command_writes_it_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text('workloads = "total:2"')
    results, target = tmp_path / "results.jsonl", tmp_path / "page.html"
    run("sweep", tmp_path / "grid.toml", "-o", results)
    done = run("report", results, "--html", target)
    assert done.exit_code == 0
    assert "Problems" in (before := target.read_text())
    results.write_text("no rows\n")
    failed = run("report", results, "--html", target)
    assert failed.exit_code == 1
    assert target.read_text() == before
    assert not (tmp_path / "page.txt").exists()


def test_without_matplotlib_there_are_tables_and_that_is_said(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "drawable", lambda: False)
    text = page(rows, "title", [])
    assert len(Reader(text).tables) == 2
    assert "dualmech[plots]" in text
    assert "<img" not in text
