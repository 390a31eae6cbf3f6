"""Common mechanisms: a covariance with roots of what it exceeds the others by, and roots of the dual weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from dualmech.proofs.witnesses import noise
from dualmech.validate import Array

Given = dict[str, Any]


def refuse_large(problem: Any, stated: Given) -> None:
    """Refuse what takes too many multiplications of whole numbers, before any of them."""
    mechanisms = stated["mechanisms"]
    size = len(mechanisms[0]["covariance"])
    noise.limited(2 * len(mechanisms) * size**3, f"{len(mechanisms)} mechanisms and {size} common queries")


def witness(problem: Any, primal: Any, dual: Any, stated: Given) -> tuple[Given, Given]:
    """Return what shows the upper and what shows the lower bound."""
    covariance = (primal + primal.T) / 2
    above = [{"root": root(covariance - each["covariance"])} for each in stated["mechanisms"]]
    below = [{"root": root(each)} for each in dual.weights]
    return {"covariance": covariance, "roots": above}, {"roots": below}


def root(matrix: Array) -> Array:
    """Return H with ``H H'`` the positive semidefinite part of a symmetric matrix."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
