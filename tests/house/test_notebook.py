"""The notebook of lesson 1 runs from its first cell to its last, and closes the gap."""

from __future__ import annotations

from pathlib import Path

import pytest

REASON = "a notebook is run by the extra of the site: pip install '.[site]'"
nbformat = pytest.importorskip("nbformat", reason=REASON)
nbclient = pytest.importorskip("nbclient", reason=REASON)
pytest.importorskip("ipykernel", reason=REASON)

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "lesson_1.ipynb"


def test_the_notebook_of_lesson_1_closes_the_gap() -> None:
    held = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in held.cells), "kept without what its cells print"
    done = nbclient.NotebookClient(held, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in each.get("data", {}) for each in outputs) >= 2
    printed = "".join(each.text for each in outputs if each.output_type == "stream" and each.name == "stdout")
    assert printed.splitlines()[-1] == "after 30 steps: at least 1.333333, at most 1.333333"
    assert outputs[-1].data["text/plain"] == "True"
