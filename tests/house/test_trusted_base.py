"""What a certificate rests on: the modules that run while a problem is stated and an answer judged, and no others."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from conformance import ConformanceCase

from dualmech import fast

ROOT = Path(__file__).resolve().parents[2]


def executed(case: ConformanceCase, primal: Any, dual: Any) -> set[str]:
    """Return the modules of ours whose functions are called from the data to the certificate."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            found.add(frame.f_globals.get("__name__", ""))

    sys.setprofile(note)
    try:
        case.make().certify(primal, dual)
    finally:
        sys.setprofile(None)
    return {name.removeprefix("dualmech.") for name in found if name.startswith("dualmech.")}


def listed() -> dict[str, set[str]]:
    """Return the modules that docs/appendix/trusted_modules.md and pages list, by case, with those that all share."""
    pages = [ROOT / "docs" / "appendix" / "trusted_modules.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    rows = {
        case: {name.replace("/", ".") for name in re.findall(r"`core/([a-z_/]+)\.py`", row[2])}
        for row in (line.split("|") for line in text.splitlines() if line.startswith("|"))
        if len(row) > 3 and row[2].strip().startswith("`core/")
        for case in row[1].strip().split("; ")
    }
    return {case: modules | rows["all"] for case, modules in rows.items()}


def test_a_certificate_rests_on_what_the_page_lists(cases: list[ConformanceCase]) -> None:
    rows, missing = listed(), []
    for case in cases:
        answer = fast.solve(case.make(), tol=case.tol)
        modules = executed(case, answer.primal, answer.dual)
        assert not {name for name in modules if name.startswith(("fast", "reference", "crosscheck"))}
        if modules != rows.get(case.label):
            own = ", ".join(f"`core/{name.replace('.', '/')}.py`" for name in sorted(modules - rows["all"]))
            missing.append(f"| {case.label} | {own} |")
    where = "docs/appendix/trusted_modules.md, or a table of this head on the family's page, must say:"
    assert not missing, "\n".join([where, "| case | modules |", *missing])
