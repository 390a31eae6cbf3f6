"""Reuse of a release: noise as `noise` has it, and rows of the release beside the queries."""

from __future__ import annotations

from typing import Any

import numpy as np

from dualmech.proofs.witnesses import common, noise

Given = dict[str, Any]


def refuse_large(problem: Any, stated: Given) -> None:
    """Refuse what takes too many multiplications of whole numbers, before any of them."""
    rows = [stated["workload"], *([] if stated["release"] is None else [stated["release"]])]
    noise.refuse_large(problem, stated | {"workload": np.vstack(rows)})


def witness(problem: Any, primal: Any, dual: Any, stated: Given) -> tuple[Given, Given]:
    """Return what shows the upper and what shows the lower bound."""
    upper, roots, queries = noise.sides(problem, primal), np.sqrt(dual.query_weights), stated["workload"]
    extra: Given = {}
    if stated["release"] is not None:
        coordinates = problem.release_coordinates
        upper["frame"] = np.linalg.eigh(coordinates @ primal @ coordinates.T)[1]
        extra = {"release_rows": common.root(dual.release_weights).T}
        queries = np.vstack([queries, extra["release_rows"] @ stated["release"]])
        roots = np.append(roots, np.ones(len(stated["release"])))
    lower = noise.trace_norm(roots, np.sqrt(dual.neighbour_weights), stated | {"workload": queries})
    return upper, lower | extra
