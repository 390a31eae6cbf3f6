"""Multipliers that bound a quadratic form over all proper subsets, where these are too many to list."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.local import patterns
from dualmech.linalg import EPS
from dualmech.validate import Array


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """Multipliers of what holds for the indicator s of every proper subset that is not empty."""

    squares: Array  # (n,) of ``s_u² = s_u``; of any sign. All others are taken for 0 where negative
    # both, one, neither: (n, n) of ``s_u s_v ≥ 0``, ``s_u (1 - s_v) ≥ 0`` and ``(1 - s_u)(1 - s_v) ≥ 0`` (McCormick)
    both: Array
    one: Array
    neither: Array
    sizes: Array  # (n - 2,) of ``(|s| - j)(|s| - j - 1) ≥ 0``, j = 1 … n - 2
    # (4, n) of ``(|s| - 1) s_u``, ``(n - 1 - |s|) s_u``, ``(|s| - 1)(1 - s_u)`` and ``(n - 1 - |s|)(1 - s_u)``, all
    # of them at least 0
    products: Array

    @classmethod
    def of(cls, size: int, squares: Array | None = None, **given: Array) -> Relaxation:
        """Build multipliers, 0 where not given, and check their shapes.

        Raises `InvalidInputError` or `InputTypeError` for multipliers of another shape, NaN or infinity.
        """
        shapes = {
            "squares": (size,),
            "both": (size, size),
            "one": (size, size),
            "neither": (size, size),
            "sizes": (max(size - 2, 0),),
            "products": (4, size),
        }
        parts = {}
        for name, shape in shapes.items():
            array = squares if name == "squares" else given.get(name)
            part = (
                np.zeros(shape) if array is None or not np.size(array) else validate.finite(**{name: array})
            )
            if part.shape != shape:
                raise InvalidInputError(f"{name} must have shape {shape}, got {part.shape}")
            parts[name] = part if name == "squares" else np.maximum(part, 0.0)
        return cls(**parts)

    def matrix(self) -> Array:
        """Return A (n + 1, n + 1) with ``[1; s]' A [1; s] ≥ 0`` for every proper subset that is not empty."""
        size = len(self.squares)
        matrix = np.zeros((size + 1, size + 1))
        linear = -self.squares + self.one.sum(axis=1) - 2 * _mean(self.neither).sum(axis=1)
        quadratic = np.diag(self.squares) + _mean(self.both) - _mean(self.one) + _mean(self.neither)
        constant = float(self.neither.sum())
        counts = np.arange(1, size - 1)
        quadratic += float(self.sizes.sum())
        linear = linear - float((2 * counts + 1) @ self.sizes)
        constant += float((counts * (counts + 1)) @ self.sizes)
        inside_low, inside_high, outside_low, outside_high = self.products
        ones = np.ones(size)
        slopes = inside_low - inside_high - outside_low + outside_high
        quadratic += (np.outer(slopes, ones) + np.outer(ones, slopes)) / 2
        linear = linear + (-inside_low + (size - 1) * inside_high + outside_low - (size - 1) * outside_high)
        linear = linear + outside_low.sum() - outside_high.sum()
        constant += float(-outside_low.sum() + (size - 1) * outside_high.sum())
        matrix[0, 0] = constant
        matrix[0, 1:] = matrix[1:, 0] = linear / 2
        matrix[1:, 1:] = quadratic
        return matrix

    def excess(self, form: Array, epsilon: float, divisors: Array) -> float:
        """Return δ ≥ 0 with ``v_S' K v_S ≤ δ · divisors[|S|]`` for all S, by one eigenvalue.

        ``v = T [1; s]`` with ``T = [1, c I]``. Where ``-T'KT - A`` has no eigenvalue below -η, the form is at most
        ``η (1 + |S|)``, since ``[1; s]' A [1; s] ≥ 0``.
        """
        size = len(form)
        lift = np.hstack([np.ones((size, 1)), patterns.gain(epsilon) * np.eye(size)])
        negated = -(lift.T @ form @ lift)
        certified = negated - self.matrix()
        magnitude = float(
            np.linalg.norm(np.abs(lift.T) @ np.abs(form) @ np.abs(lift)) + np.linalg.norm(self.matrix())
        )
        least = float(np.linalg.eigvalsh((certified + certified.T) / 2)[0]) - 8 * (size + 1) * EPS * magnitude
        counts = np.arange(size + 1)
        return float((max(-least, 0.0) * (1 + counts) / divisors)[1:-1].max())


def _mean(matrix: Array) -> Array:
    return np.asarray((matrix + matrix.T) / 2)
