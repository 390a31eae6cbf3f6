"""Weights of design queries, and the inverse that their costs are known by."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from dualmech.errors import CertificateError
from dualmech.proofs.checker import exact
from dualmech.proofs.texts import exactly
from dualmech.proofs.witnesses import noise
from dualmech.validate import Array

FAINT = 1e-13
"""Least weight of a design query, over the largest: one that is not needed has a cost that cannot be told from 0."""

CLOSE, BITS = Fraction(1, 2**80), 200
"""What may be left of ``A Z - I``, and bits of the inverse's numbers: costs of all sizes are to be known."""

Given = dict[str, Any]


def refuse_large(problem: Any, stated: Given) -> None:
    """Refuse what takes too many multiplications of whole numbers, before any of them."""
    (queries, cells), rows = stated["workload"].shape, len(stated["design"])
    least, moves = min(rows, cells), stated["neighbours"]
    pairs = 0 if moves is None else moves.shape[1]
    work = rows * cells * (least + pairs) + queries * least * (least + cells) + 8 * least**3
    noise.limited(work, f"{queries} queries on {rows} design queries over {cells} cells")


def witness(problem: Any, primal: Any, dual: Any, stated: Given) -> tuple[Given, Given]:
    """Return what shows the upper and what shows the lower bound."""
    design = stated["design"]
    kept = np.any(design, axis=1)
    weights = np.where(np.isfinite(primal), primal, 0.0)[kept]
    upper = {
        "weights": np.maximum(weights, FAINT * weights.max()),
        "inverse": _inverse_of_gram(design[kept]),
    }
    return upper, {"neighbour_weights": dual.neighbour_weights}


def _inverse_of_gram(design: Array) -> exact.Matrix:
    """Return the inverse of ``Q Q'`` or, where rows are more than columns, of ``Q' Q``."""
    rows = design if len(design) <= design.shape[1] else design.T
    units = np.linalg.norm(rows, axis=1)
    if not np.all(units > 0):
        raise CertificateError("the answer shows nothing in whole numbers: a column of the design is all 0")
    scaled = rows / units[:, None]
    guess = np.linalg.pinv(scaled @ scaled.T, hermitian=True) / np.outer(units, units)
    whole = exactly(rows)
    gram = whole.times(whole.transposed())
    found = noise.improved(gram, exactly(guess), CLOSE, BITS)
    if sum(exact.departure(gram, found).squares()) >= 1:
        raise CertificateError(
            "the answer shows nothing in whole numbers: neither rows nor columns of the design are independent"
        )
    return found
