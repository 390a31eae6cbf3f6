"""CVXPY, loaded on first use, because names of formulations and formulas do not need it."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("cvxpy"), name)
