"""The reference: a page for each public module, and one for each name that it offers."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from page_notebooks import write_if_new
from sphinx.application import Sphinx

LAYERS = ("dualmech", "dualmech.fast", "dualmech.reference", "dualmech.crosscheck")


def public(module: ModuleType) -> list[str]:
    """Return the names of what a module offers: what it lists, or else what it defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )


def modules() -> dict[str, str]:
    """Return by the name under which a user meets it each public module's own name: the layers, and what they offer."""
    found = {name: name for name in LAYERS}
    for layer in LAYERS:
        offered = importlib.import_module(layer)
        for name in public(offered):
            value = getattr(offered, name)
            if inspect.ismodule(value) and value.__name__ not in found.values():
                found[f"{layer}.{name}"] = value.__name__
    return found


def page(shown: str, name: str) -> str:
    """Return the page of a module in reStructuredText."""
    module = importlib.import_module(name)
    names = [each for each in public(module) if not inspect.ismodule(getattr(module, each))]
    listed = "\n".join(f"   {each}" for each in names if callable(getattr(module, each)))
    return "\n".join(
        [
            shown,
            "=" * len(shown),
            "",
            f".. automodule:: {name}",
            "   :no-members:",
            "",
            f".. currentmodule:: {name}",
            "",
            ".. autosummary::",
            "   :toctree: names",
            "   :nosignatures:",
            "",
            listed,
            "",
        ]
    )


def _write_pages(app: Sphinx, _: Any) -> None:
    folder = Path(app.srcdir)
    found = modules()
    listed = "\n".join(f"   reference/{shown}" for shown in found)
    title = "API reference\n=============\n\nFrom the docstrings; the examples are run by the test suite."
    write_if_new(folder / "reference.rst", f"{title}\n\n.. toctree::\n   :maxdepth: 1\n\n{listed}\n")
    for shown, name in found.items():
        write_if_new(folder / "reference" / f"{shown}.rst", page(shown, name))


def _resolve(app: Sphinx, env: Any, node: Any, contents: nodes.Element) -> nodes.Element | None:
    """Find a name that a docstring gives without its module among the public ones of `dualmech`."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or target.startswith("dualmech."):
        return None
    domain = env.get_domain("py")
    found: nodes.Element | None = domain.resolve_xref(
        env, node["refdoc"], app.builder, "obj", f"dualmech.{target}", node, contents
    )
    return found


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before Sphinx looks for them."""
    app.connect("config-inited", _write_pages)
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
