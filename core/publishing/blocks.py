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
    def of(cls, piece: Piece, moves: Array, sizes: list[int], still: bool = False) -> DrawnBlock:
        """Put the noise of a piece on a grid; `moves` (r, b) are its rows on the classes that it sees.

        Where the total stands `still` whatever neighbours do, it has next to no noise: it is the first of the rows,
        since on others the covariance would be ill-conditioned.
        """
        basis = whole_numbers.whole_basis(moves)
        if still:
            basis = _with_total_first(basis)
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


def _with_total_first(basis: Integers) -> Integers:
    """Return whole rows of the same span that begin with the sum of all, where that is in it."""
    total = np.ones((1, basis.shape[1]), dtype=np.int64)
    shares = np.linalg.lstsq(basis.T.astype(np.float64), total[0].astype(np.float64), rcond=None)[0]
    if np.abs(shares @ basis - total[0]).max() > whole_numbers.AGREEMENT:
        return basis
    return np.vstack([total, np.delete(basis, int(np.argmax(np.abs(shares))), axis=0)])
