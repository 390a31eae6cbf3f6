"""Conformance cases and random problems that a family brings: ``tests/problems/<family>/*_cases.py``."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent / "problems"


@functools.cache
def family_files() -> dict[str, ModuleType]:
    """Return the modules of families, by the names of their folders.

    Each has ``CASES``, a list of `conformance.ConformanceCase`, and ``draw(rng, label)``, which returns a
    `random_problems.RandomProblem`.
    """
    modules = {}
    for path in sorted(FOLDER.glob("*/*_cases.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        modules[path.parent.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return modules
