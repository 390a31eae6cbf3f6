"""The mechanism of a union of tables: noise on the blocks that its symmetry leaves, measured from low-order tables."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import scipy.linalg

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.block_forms import BlockPoint
from dualmech.geometry.block_rows import Key
from dualmech.geometry.blocks import Blocks
from dualmech.geometry.choice import tabular
from dualmech.mechanisms.block_noise import Piece
from dualmech.mechanisms.block_tables import BlockTables
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import rounded
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.stacking import structured

MAX_WRITTEN = 2**24
"""Largest number of entries of a query matrix that is written out."""


class BlockMechanism(BlockTables, GaussianPrivacy):
    """Noise on the blocks of a union of tables, on a domain that no vector need hold.

    For every block and each of its copies the mechanism releases ``moves @ s`` with noise of covariance K_b, all
    independent. The entry s_o is the sum of the data times one orthonormal function of each attribute of the block's
    key, over the classes of the other wide attributes that o names and over all values of the rest, times
    ``Π √(n_i / mult_i)``. With these units ``(K_b⁻¹)_oo`` is what the block's copies cost a record in the orbit o,
    together, and ``v K_b v'`` the variance that they give a query (`dualmech.geometry.blocks`).

    Problems on geometry ``blocks`` find such noise; `of_tables` is the plain one.

    Parameters
    ----------
    blocks : Blocks
        The geometry of what is to be answered.
    point : BlockPoint
        A level > 0 or a positive definite covariance for every block.

    Raises
    ------
    InvalidInputError, InputTypeError
        Noise that is no covariance or does not fit the blocks.

    Notes
    -----
    One record added or removed.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> asked = dm.workloads.union(
    ...     {"age": 8, "sex": 2}, {"ages": {"age": dm.workloads.prefix(8)}, "cells": ["age", "sex"]}
    ... )
    >>> mechanism = fast.solve(dm.FitnessForUse(asked, {"ages": 1.0, "cells": 4.0}), tol=1e-9).mechanism
    >>> float(mechanism.variances("ages").max().round(6)), mechanism.variances("cells").shape
    (1.0, (8, 2))
    >>> round(mechanism.variance_of({"age": [1] * 4 + [0] * 4}), 6)
    1.0
    """

    __slots__ = ()

    @classmethod
    def of_tables(cls, workload: Workload, variances: Any = 1.0) -> BlockMechanism:
        """Return what independent noise on every query of some tables reveals, the plain Gaussian mechanism.

        Queries v_j of variance σ_j² tell ``Σ_j m_j v_j'v_j / (σ_j² mult)`` about a copy of a block, one of its mult
        copies, with m_j of them in orbit j: the inverse of the noise. Its variances are those of the consistent
        estimates.

        Parameters
        ----------
        workload : Workload
            The tables, as geometry ``blocks`` takes them.
        variances : float, array or mapping
            σ² of each table, as the targets of `FitnessForUse`.

        Raises
        ------
        InvalidInputError, InputTypeError
            As `FitnessForUse`.

        Examples
        --------
        >>> import dualmech as dm
        >>> hours = dm.workloads.union({"hour": 24}, {"runs": {"hour": dm.workloads.circular_ranges(24)}})
        >>> plain = dm.BlockMechanism.of_tables(hours)
        >>> round(plain.squared_privacy_cost, 6)       # a record is in 277 of the 553 runs
        277.0
        """
        tables = tabular(workload)
        asked = structured([tables]) if isinstance(tables, MarginalWorkload) else tables
        assert asked is not None
        blocks = Blocks.of(asked)
        told = blocks.counts / asked.per_table(variances, "variances")[blocks.tables]
        covariances = []
        for block in blocks.matrix_blocks:
            rows = np.sqrt(told[block.rows] / block.copies)[:, None] * block.queries
            triangle = scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]]
            inverse = scipy.linalg.solve_triangular(triangle, np.eye(len(triangle)), check_finite=False)
            covariances.append(inverse @ inverse.T)
        point = BlockPoint(blocks.copies / (blocks.scalar_blocks.T @ told), tuple(covariances))
        return cls(blocks, point)

    def scaled(self, factor: float) -> BlockMechanism:
        """Return the mechanism with the covariance of all noise times a factor > 0: its cost is divided by that."""
        return BlockMechanism(self.blocks, self.point.scaled(validate.positive_number(factor=factor)))

    def point_on(self, geometry: Any) -> BlockPoint:
        """Return the noise on blocks that may stand in another order, or on other bases.

        Raises
        ------
        InvalidInputError
            Another domain or another symmetry, noise on more or on fewer blocks.
        """
        if not isinstance(geometry, Blocks) or not geometry.frames:
            raise InvalidInputError(
                "a BlockMechanism answers problems on geometry 'blocks', not of marginals"
            )
        same = geometry.workload.domain == self.workload.domain and all(
            one.turning == two.turning and np.array_equal(one.labels, two.labels)
            for one, two in zip(geometry.frames, self.blocks.frames, strict=True)
        )
        if not same:
            raise InvalidInputError("mechanism must be on the problem's domain, with the same symmetry")
        if {*geometry.keys, *(block.key for block in geometry.matrix_blocks)} != {*self.pieces}:
            raise InvalidInputError(
                "mechanism must have noise on the blocks that the problem's tables need, and no other"
            )
        found = [
            block.restated(self.pieces[block.key].covariance, self.pieces[block.key].moves)
            for block in geometry.matrix_blocks
        ]
        levels = np.array([self.pieces[key].covariance[0, 0] for key in geometry.keys])
        return BlockPoint(levels, tuple(found))

    def dense(self) -> LinearGaussianMechanism:
        """Return the equivalent mechanism on the cells.

        Raises
        ------
        InvalidInputError
            More than 2^24 entries of a matrix on the cells.

        Examples
        --------
        >>> import dualmech as dm
        >>> asked = dm.workloads.union({"age": 3, "sex": 2}, {"ages": ["age"], "sexes": ["sex"]})
        >>> dm.BlockMechanism.of_tables(asked).dense().query_matrix.shape
        (4, 6)
        """
        assert self.workload.domain is not None
        cells = self.workload.domain.cells
        if cells**2 > MAX_WRITTEN:
            raise InvalidInputError(
                f"a query matrix of {rounded(cells)} cells is too large to write out (limit {MAX_WRITTEN} entries)"
            )
        rows, covariances = [], []
        for key, piece in self.pieces.items():
            written = self._written(key, piece)
            rows += written
            covariances += [piece.covariance] * len(written)
        return LinearGaussianMechanism(np.vstack(rows), scipy.linalg.block_diag(*covariances))

    def __repr__(self) -> str:
        return f"BlockMechanism({len(self.pieces)} blocks, rho={self.rho:.6g})"

    def _written(self, key: Key, piece: Piece) -> list[Array]:
        """Return the released rows of every copy of a block."""
        frames, inside = self.blocks.frames, dict(key)
        directions = {axis: frames[axis].directions(component).T for axis, component in key}
        summed = {
            axis: (frame.labels == np.arange(len(frame.sizes))[:, None]).astype(np.float64)
            for axis, frame in enumerate(frames)
            if axis not in inside
        }
        found = []
        for copy in itertools.product(*(range(len(each)) for each in directions.values())):
            chosen = {axis: directions[axis][[index]] for axis, index in zip(directions, copy, strict=True)}
            factors = [chosen[axis] if axis in chosen else summed[axis] for axis in range(len(frames))]
            found.append(piece.moves @ linalg.kronecker(factors) / piece.weight)
        return found
