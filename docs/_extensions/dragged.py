"""Drawings that one can drag: a page with a place for one loads its scripts, and no other page does.

A place is `<div class="dragged" id="two-cells">…</div>`, in which `two_cells.js` draws; where no script runs, its text
stays.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

PLACE = re.compile(r'<div class="dragged" id="([a-z-]+)">')
SHARED = ("jsxgraph/jsxgraphcore.js", "lessons/arithmetic.js", "lessons/drawing.js")


def _load(app: Sphinx, _page: str, _template: str, context: dict[str, Any], _tree: Any) -> None:
    names = [f"lessons/{place.replace('-', '_')}.js" for place in PLACE.findall(context.get("body") or "")]
    if names:
        app.add_css_file("lessons/lessons.css")
        for name in (*SHARED, *names):
            app.add_js_file(name, loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    """Look at every page before it is written."""
    app.connect("html-page-context", _load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
