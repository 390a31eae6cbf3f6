"""Documents of proofs: the places of their numbers, and copies with one part changed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Place = tuple[Any, ...]


def places(node: Any, path: Place = ()) -> Iterator[Place]:
    """Yield the place of every number of a document."""
    if isinstance(node, dict | list):
        for key, each in node.items() if isinstance(node, dict) else enumerate(node):
            yield from places(each, (*path, key))
    elif isinstance(node, str) and "0x" in node:
        yield path


def changed(document: Any, place: Place, value: Any) -> Any:
    """Return a copy of a document with another value at a place."""
    found = copy.deepcopy(document)
    part = found
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return found
