"""The mechanism of a union of tables: noise on the blocks that its symmetry leaves, measured from low-order tables."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import scipy.linalg

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.block_forms import UnionPoint
from dualmech.geometry.block_rows import Key
from dualmech.mechanisms.block_noise import Piece
from dualmech.mechanisms.block_tables import BlockTables
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.problems.unions import UnionVariance
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import rounded

MAX_WRITTEN = 2**24
"""Largest number of entries of a query matrix that is written out."""


class UnionMechanism(BlockTables, GaussianPrivacy):
    """Noise on the blocks of a union of tables, on a domain that no vector need hold.

    For every block and each of its copies the mechanism releases ``moves @ s`` with noise of covariance K_b, all
    independent. The entry s_o is the sum of the data times one orthonormal function of each attribute of the block's
    key, over the classes of the other wide attributes that o names and over all values of the rest, times
    ``Π √(n_i / mult_i)``. With these units ``(K_b⁻¹)_oo`` is what the block's copies cost a record in the orbit o,
    together, and ``v K_b v'`` the variance that they give a query (`dualmech.geometry.blocks`).

    `UnionFitness` and `UnionVariance` find such noise; `of_tables` is the plain one.

    Parameters
    ----------
    workload : UnionWorkload
        What is to be answered.
    blocks : Blocks
        Its own.
    point : UnionPoint
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
    >>> mechanism = fast.solve(dm.UnionFitness(asked, {"ages": 1.0, "cells": 4.0}), tol=1e-9).mechanism
    >>> float(mechanism.variances("ages").max().round(6)), mechanism.variances("cells").shape
    (1.0, (8, 2))
    >>> round(mechanism.variance_of({"age": [1] * 4 + [0] * 4}), 6)
    1.0
    """

    __slots__ = ()

    @classmethod
    def of_tables(cls, workload: Workload, variances: Any = 1.0) -> UnionMechanism:
        """Return what independent noise on every query of some tables reveals, the plain Gaussian mechanism.

        Queries v_j of variance σ_j² tell ``Σ_j m_j v_j'v_j / (σ_j² mult)`` about a copy of a block, one of its mult
        copies, with m_j of them in orbit j: the inverse of the noise. Its variances are those of the consistent
        estimates.

        Parameters
        ----------
        workload : Workload
            The tables, as `UnionFitness` takes them.
        variances : float, array or mapping
            σ² of each table, as the targets of `UnionFitness`.

        Raises
        ------
        InvalidInputError, InputTypeError
            As `UnionFitness`.

        Examples
        --------
        >>> import dualmech as dm
        >>> hours = dm.workloads.union({"hour": 24}, {"runs": {"hour": dm.workloads.circular_ranges(24)}})
        >>> plain = dm.UnionMechanism.of_tables(hours)
        >>> round(plain.squared_privacy_cost, 6)       # a record is in 277 of the 553 runs
        277.0
        """
        problem = UnionVariance(workload)
        blocks = problem.blocks
        told = blocks.counts / problem.workload.per_table(variances, "variances")[blocks.tables]
        covariances = []
        for block in blocks.several:
            rows = np.sqrt(told[block.rows] / block.copies)[:, None] * block.queries
            triangle = scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]]
            inverse = scipy.linalg.solve_triangular(triangle, np.eye(len(triangle)), check_finite=False)
            covariances.append(inverse @ inverse.T)
        point = UnionPoint(blocks.copies / (blocks.squares.T @ told), tuple(covariances))
        return cls(problem.workload, blocks, point)

    def scaled(self, factor: float) -> UnionMechanism:
        """Return the mechanism with the covariance of all noise times a factor > 0: its cost is divided by that."""
        return UnionMechanism(
            self.workload, self.blocks, self.point.scaled(validate.positive_number(factor=factor))
        )

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
        >>> dm.UnionMechanism.of_tables(asked).dense().query_matrix.shape
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
        return f"UnionMechanism({len(self.pieces)} blocks, rho={self.rho:.6g})"

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
