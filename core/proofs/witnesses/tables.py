"""Tables: which form of noise and of weights shows both bounds, by the geometry that the answer is on."""

from __future__ import annotations

from typing import Any

from dualmech.proofs.witnesses import blocks, split

Given = dict[str, Any]

FORMS: dict[str, Any] = {
    "blocks": (blocks.refuse_large, blocks.witness),
    "split": (split.refuse_large, split.witness),
}


def refuse_large(problem: Any, stated: Given) -> None:
    """Refuse what takes too many multiplications of whole numbers, before any of them."""
    refuse, _ = FORMS[problem.geometry.name]
    refuse(problem)


def witness(problem: Any, primal: Any, dual: Any, stated: Given) -> tuple[Given, Given]:
    """Return what shows the upper and what shows the lower bound."""
    _, found = FORMS[problem.geometry.name]
    upper, lower = found(problem, primal, dual, stated)
    form = {"form": problem.geometry.name}
    return {**form, **upper}, {**form, **lower}
