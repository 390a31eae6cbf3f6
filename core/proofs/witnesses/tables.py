"""Tables: which form of noise and of weights shows both bounds, by the geometry that the answer is on."""

from __future__ import annotations

from typing import Any

from dualmech.proofs.witnesses import blocks, split

Given = dict[str, Any]

FORMS: dict[str, Any] = {"blocks": blocks, "split": split}


def refuse_large(problem: Any, stated: Given) -> None:
    """Refuse what takes too many multiplications of whole numbers, before any of them."""
    FORMS[problem.geometry.name].refuse_large(problem)


def witness(problem: Any, primal: Any, dual: Any, stated: Given) -> tuple[Given, Given]:
    """Return what shows the upper and what shows the lower bound."""
    upper, lower = FORMS[problem.geometry.name].witness(problem, primal, dual, stated)
    form = {"form": problem.geometry.name}
    return {**form, **upper}, {**form, **lower}
