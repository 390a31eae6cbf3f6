"""Pages that teach: lessons have exercises whose solutions run, and families' pages mathematics as mathematics."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
LESSONS = sorted(DOCS.glob("lesson_*.md"))

FAMILIES = ("fitness", "variance", "softmax", "weighting", "common", "reuse", "refinement", "local")
"""The page of every family."""

FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)

EXERCISE = re.compile(r"^\*\*Exercise (\d+)\.\*\*(.*?)(?=^\*\*Exercise|\Z)", re.DOTALL | re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SOLUTION = re.compile(r"^<details>\n<summary>Solution</summary>\n\n(.*?)\n\n</details>$", re.DOTALL | re.MULTILINE)


def test_there_are_six_lessons_each_of_which_leads_to_the_next() -> None:
    assert [page.stem for page in LESSONS] == [f"lesson_{number}" for number in range(1, 7)]
    for page, following in zip(LESSONS, LESSONS[1:], strict=False):
        assert "Next: [" in page.read_text(encoding="utf-8")
        assert f"]({following.name})" in page.read_text(encoding="utf-8").splitlines()[-1]


@pytest.mark.parametrize("page", LESSONS, ids=lambda page: page.stem)
def test_every_exercise_has_a_folded_solution_that_runs(page: Path) -> None:
    found = EXERCISE.findall(page.read_text(encoding="utf-8"))
    assert [int(number) for number, _ in found] == list(range(1, len(found) + 1))
    for number, text in found:
        solutions, hints = SOLUTION.findall(text), text.count("<summary>Hint</summary>")
        assert len(solutions) == 1 >= hints and "*Hint" not in text, number
        assert text.count("<details>") == text.count("</details>") == 1 + hints, number
        examples = doctest.DocTestParser().get_examples("\n".join(PYTHON.findall(solutions[0])))
        assert any(each.want or "assert " in each.source for each in examples), number


@pytest.mark.parametrize("family", FAMILIES)
def test_formulas_of_families_are_mathematics(family: str) -> None:
    text = FENCE.sub("", (DOCS / f"{family}.md").read_text(encoding="utf-8"))
    assert not re.findall(r"^ {4}\S.*$", text, re.MULTILINE), "an indented formula"
    assert not [code for code in re.findall(r"`([^`\n]+)`", text) if set(code) & set("Σλμ‖⪯⪰")]
