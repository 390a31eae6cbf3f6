"""Conjugate gradients with a preconditioner that may be a projection."""

from __future__ import annotations

from collections.abc import Callable

from dualmech.validate import Array


def conjugate_gradients(
    apply: Callable[[Array], Array],
    invert: Callable[[Array], Array],
    right_side: Array,
    enough: float,
    most: int,
) -> tuple[Array, Array]:
    """Return an approximate solution, from 0, and its residual r; if in time, ``r · invert(r)`` is at most `enough`."""
    unknowns, residual = 0 * right_side, right_side
    direction = step = invert(residual)
    size = float(residual @ step)
    for _ in range(most):
        if not size > enough:
            break
        applied = apply(direction)
        length = size / float(direction @ applied)
        unknowns, residual = unknowns + length * direction, residual - length * applied
        step, last = invert(residual), size
        size = float(residual @ step)
        direction = step + size / last * direction
    return unknowns, residual
