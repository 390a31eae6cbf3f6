"""CVXPY, loaded when a program is first stated: names of formulations, and formulas, do without its second."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("cvxpy"), name)
