"""One block of tables, drawn: its whole rows, and the noise on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dualmech.mechanisms.pieces import Piece
from dualmech.publishing import whole_numbers
from dualmech.publishing.dense import drawn, rounded_factor, solved
from dualmech.publishing.discrete import Noise
from dualmech.publishing.whole_numbers import Exact, Integers
from dualmech.validate import Array


@dataclass(frozen=True, slots=True, eq=False)
class DrawnBlock:
    """A block as it is drawn: ``N s + z`` in every cell of what the attributes of its key leave of a table.

    With n_c values in the class of each attribute of the key, s is ``⊗ (n_c I - 11')`` times the table on those values
    and on the classes of other wide attributes that the block sees: whole numbers, whose parts are ``Π n_c`` times the
    block's own.
    """

    factor: Integers  # (r, r) lower triangular, diag(2^b) F on the grid
    exponents: Integers  # (r,)
    basis: Integers  # (r, b) whole rows on the classes that the block sees
    moves: Array  # (r, r) from the whole rows to the block's own
    cells: int  # Π n_c

    @classmethod
    def of(cls, piece: Piece, moves: Array, sizes: list[int]) -> DrawnBlock:
        """Put the noise of a piece on a grid; `moves` (r, b) are its rows on the classes that it sees."""
        basis = whole_numbers.whole_basis(moves)
        turn = np.linalg.lstsq(moves.T, basis.T.astype(np.float64), rcond=None)[0].T
        cells = math.prod(sizes)
        factor, exponents = rounded_factor(cells * (turn @ piece.covariance @ turn.T))
        return cls(factor, exponents, basis, np.linalg.inv(turn), cells)

    @property
    def whole(self) -> Integers:
        """N (r, b)."""
        return self.factor @ self.basis

    @property
    def covariance(self) -> Array:
        """Noise on the block's own rows, as a `Piece` has it."""
        inverse = self.moves @ solved(self.factor, self.exponents, np.eye(len(self.factor)))
        return np.asarray(inverse @ inverse.T / self.cells)

    def draw(self, residual: Exact, noise: Noise) -> Array:
        """Draw the block's rows (…, r) from its residual (…, b): the one place where tables meet noise."""
        data = residual.reshape(-1, residual.shape[-1]).T
        noisy = whole_numbers.product(self.whole, data)
        noisy = noisy + drawn(noise, np.broadcast_to(self.exponents[:, None], noisy.shape))
        answers = np.ldexp(noisy.astype(np.float64), -self.exponents[:, None]) / self.cells
        found = (self.moves @ solved(self.factor, self.exponents, answers)).T
        return np.asarray(found.reshape(*residual.shape[:-1], -1))
