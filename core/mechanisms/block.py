"""The mechanism of tables: noise on the blocks that their symmetry leaves, measured from low-order tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np
import scipy.linalg

from dualmech import files, linalg, validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.files import domains
from dualmech.files.archives import Arrays
from dualmech.geometry.block_forms import BlockPoint
from dualmech.geometry.block_neighbours import Moved
from dualmech.geometry.block_rows import MAX_ORBITS, BlockRows, Key, check_key, key_of, symmetries_of
from dualmech.geometry.blocks import Blocks
from dualmech.geometry.choice import relation_of, tabular
from dualmech.mechanisms import components
from dualmech.mechanisms.block_order import OrderedBlocks
from dualmech.mechanisms.block_refinement import same_symmetry
from dualmech.mechanisms.gaussian import LinearGaussianMechanism, check_written
from dualmech.mechanisms.pieces import Piece
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.neighbours import Relation
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain, are_positions, count_text
from dualmech.workloads.lattice import Axes
from dualmech.workloads.marginals import MarginalWorkload
from dualmech.workloads.unions import UnionWorkload

SCHEMA, VERSION = "dualmech.marginal_mechanism", 1

WITH_NEIGHBOURS = 2  # version of a file with a rule of neighbours, which a reader of the first would overlook


class BlockMechanism(OrderedBlocks, GaussianPrivacy):
    """Noise on the blocks of tables, on a domain of any size.

    For every block and each of its copies the mechanism releases ``moves @ s`` with noise of covariance K_b, all
    independent. The entry s_o is the sum of the data times one orthonormal function of each attribute of the block's
    key, over the classes of the other wide attributes that o names and over all values of the rest, times
    ``Π √(n_i / mult_i)``. With these units ``(K_b⁻¹)_oo`` is what the block's copies cost a record in the orbit o,
    together, and ``v K_b v'`` the variance that they give a query (`dualmech.geometry.blocks`).

    Of marginal tables every block is the residual subspace of a set T of attributes and has a level ``τ_T``, mult times
    K_T: the table on T, centred along every axis, is released with noise of covariance ``τ_T / cells_T`` times the
    projector on such tables. Any table whose blocks are all measured is recombined, without bias, and all tables agree.

    Problems on geometry ``blocks`` find such noise; `of_tables` is the plain one, `of_levels` any on marginal tables.
    Raises `InvalidInputError` or `InputTypeError` for noise that is no covariance or does not fit the blocks.
    Neighbours are those of the geometry. Of marginal tables: Xiao, He, Zhang and Kifer, NeurIPS 2023 (ResidualPlanner).

    Parameters
    ----------
    blocks : Blocks
        The geometry of what is to be answered.
    point : BlockPoint
        A level > 0 or a positive definite covariance for every block.

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
    def of_levels(
        cls, domain: Domain, noise: Mapping[Axes, float], neighbours: str | Relation | None = None
    ) -> BlockMechanism:
        """Return the mechanism of marginal tables with these levels.

        Raises `InvalidInputError` or `InputTypeError` for a set with attributes that are not in the domain, a level
        that is not positive, or neighbours that are no rule.

        Parameters
        ----------
        domain : Domain
            The attributes.
        noise : mapping of axes to float
            ``τ_T > 0`` for each measured set T, by the positions of its attributes. Sets with an attribute of one value
            have no residual, and are left out; with no others the mechanism releases nothing.
        neighbours : str or Relation, optional
            Which data sets privacy keeps apart, such as ``replace``; by default those of one record added or removed.

        Examples
        --------
        >>> import dualmech as dm
        >>> mechanism = dm.BlockMechanism.of_levels(dm.Domain({"age": 4, "sex": 2}), {(): 8.0, (1,): 8.0})
        >>> round(mechanism.rho, 9), mechanism.variance(["sex"]), round(mechanism.variance_of({"sex": [1, -1]}), 9)
        (0.125, 4.0, 8.0)
        """
        if not isinstance(domain, Domain):
            raise InputTypeError(f"domain must be a dualmech.Domain, got {type(domain).__name__}")
        if not isinstance(noise, Mapping):
            raise InputTypeError(
                f"noise must map sets of attributes to positive levels, got {type(noise).__name__}"
            )
        count, sizes, levels = len(domain.names), domain.shape, {}
        for axes, level in noise.items():
            if not are_positions(axes, count):
                raise InvalidInputError(
                    f"noise must be given for increasing positions below {count}, got {axes}"
                )
            checked = validate.positive_number(**{f"noise[{axes}]": level})
            if all(sizes[axis] > 1 for axis in axes):
                levels[tuple((axis, 0) for axis in axes)] = checked
        symmetries, found = components.marginal_symmetries(sizes), object.__new__(cls)
        relation = relation_of(neighbours)
        if neighbours is not None and relation is None:
            raise InputTypeError(
                f"neighbours must be a rule such as 'replace', got {type(neighbours).__name__}"
            )
        relation = None if relation == Relation() else relation
        found._hold(
            domain,
            symmetries,
            relation,
            Moved.of(relation, domain, symmetries, BlockRows(symmetries, ()), levels),
            {},
        )
        one = np.ones((1, 1))
        return found.with_pieces(
            {key: Piece.of(symmetries, found.moved, key, one, one * level) for key, level in levels.items()}
        )

    @classmethod
    def of_tables(cls, workload: Workload, variances: Any = 1.0) -> BlockMechanism:
        """Return what independent noise on every query of some tables reveals, the plain Gaussian mechanism.

        Queries v_j of variance σ_j² tell ``Σ_j m_j v_j'v_j / (σ_j² mult)`` about a copy of a block, one of its mult
        copies, with m_j of them in orbit j: the inverse of the noise. So a marginal table S tells ``1 / (σ² cells_S)``
        about every subspace T ⊆ S, in units of ``1/τ_T``. Its variances are those of the consistent estimates.
        Raises `InvalidInputError` or `InputTypeError` as `FitnessForUse`.

        - `workload`: the tables, as geometry ``blocks`` takes them;
        - `variances`: σ² of each table, as the targets of `FitnessForUse`.

        Examples
        --------
        >>> import dualmech as dm
        >>> hours = dm.workloads.union({"hour": 24}, {"runs": {"hour": dm.workloads.circular_ranges(24)}})
        >>> plain = dm.BlockMechanism.of_tables(hours)
        >>> round(plain.squared_privacy_cost, 6)       # a record is in 277 of the 553 runs
        277.0
        """
        asked = tabular(workload)
        blocks = Blocks.of_marginals(asked) if isinstance(asked, MarginalWorkload) else Blocks.of(asked)
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
        times = validate.positive_number(factor=factor)
        return self.with_pieces({key: piece.scaled(times) for key, piece in self.pieces.items()})

    def point_on(self, geometry: Any) -> BlockPoint:
        """Return the noise on blocks that may stand in another order, or on other bases.

        Raises `InvalidInputError` for another domain or another symmetry, noise on more or on fewer blocks.
        """
        if not isinstance(geometry, Blocks):
            raise InvalidInputError("a BlockMechanism answers problems on geometry 'blocks'")
        if geometry.workload.domain != self.domain or not same_symmetry(
            geometry.symmetries or components.marginal_symmetries(self.domain.shape), self.symmetries
        ):
            raise InvalidInputError(
                "mechanism must be on the domain of the problem's workload, with the same symmetry"
            )
        needed = [*geometry.keys, *(block.key for block in geometry.matrix_blocks)]
        missing = next((key for key in needed if key not in self.pieces), None)
        if missing is not None:
            raise InvalidInputError(
                f"mechanism must measure all that the tables need, it does not measure {self._named(missing)}"
            )
        if further := len(self.pieces) - len(needed):
            raise InvalidInputError(
                f"mechanism measures {further} blocks that no table needs, at a cost; leave them out"
            )
        found = []
        for block in geometry.matrix_blocks:
            piece = self.pieces[block.key]
            found.append(block.covariance_from_basis(piece.covariance / piece.copies, piece.moves))
        levels = np.array([self.pieces[key].covariance[0, 0] for key in geometry.keys]) / geometry.copies
        return BlockPoint(levels, tuple(found))

    def dense(self) -> LinearGaussianMechanism:
        """Return the equivalent mechanism on the cells.

        Raises `InvalidInputError` for a query matrix of more than 2^24 entries.

        Examples
        --------
        >>> import dualmech as dm
        >>> small = dm.BlockMechanism.of_levels(dm.Domain({"age": 3, "sex": 2}), {(): 6.0, (1,): 6.0})
        >>> small.dense().query_matrix.shape, abs(small.dense().rho - small.rho) < 1e-12
        ((2, 6), True)
        """
        cells = self.domain.cells
        count = sum(piece.copies * len(piece.moves) for piece in self.pieces.values())
        check_written(
            max(count, 1) * cells, f"a query matrix of {count:.6g} rows and {count_text(cells)} cells"
        )
        rows, covariances = [np.zeros((0, cells))], [np.zeros((0, 0))]
        for key, piece in self.pieces.items():
            rows.append(self._released_rows(key, piece))
            covariances += [piece.covariance] * round(piece.copies)
        moves = None if self.neighbours is None else self.neighbours.matrix(cells, self.domain)
        return LinearGaussianMechanism(np.vstack(rows), scipy.linalg.block_diag(*covariances), moves)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the mechanism to an ``.npz`` file, whole or not at all (``docs/formats.md``).

        Of marginal tables its levels are written, of others the noise on every block and what the tables ask.
        Raises `FileFormatError` where the path cannot be written.
        """
        if self.of_plain_tables:
            version = VERSION if self.neighbours is None else WITH_NEIGHBOURS
            files.write_npz(path, SCHEMA, version, **self._level_arrays())
        else:
            super().save(path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> BlockMechanism:
        """Read a mechanism of marginal tables back; its privacy is computed anew from its noise.

        Raises `FileFormatError` where the file cannot be read, follows another schema, or its arrays do not fit
        together.
        """
        arrays = files.read_npz(path, SCHEMA, (VERSION, WITH_NEIGHBOURS))
        files.require(path, arrays, "levels", *domains.KEYS)
        with files.errors_naming(path):
            return cls._of_level_arrays(arrays)

    @property
    def of_plain_tables(self) -> bool:
        """Whether its tables are marginals that are called by their attributes, so that levels say all about it."""
        if not self._plain:
            return False
        tables = self.workload.tables if isinstance(self.workload, UnionWorkload) else ()
        return all(
            table.name == self._shown(table.axes) and all(asked is None for _, asked in table.queries)
            for table in tables
        )

    def _level_arrays(self) -> Arrays:
        """Return the levels of marginal tables, their sets, and the rule of neighbours, as arrays of a file."""
        arrays = domains.arrays(self.domain, self.noise)
        arrays["levels"] = np.array(list(self.noise.values()), dtype=np.float64)
        if self.neighbours is not None:
            arrays["neighbours"] = np.array(str(self.neighbours))
        return arrays

    @classmethod
    def _of_level_arrays(cls, arrays: Arrays) -> BlockMechanism:
        domain, sets = domains.from_arrays(arrays)
        levels = arrays["levels"]
        if levels.shape != (len(sets),):
            raise InvalidInputError(f"levels must be {len(sets)} numbers, got shape {levels.shape}")
        relation = str(arrays["neighbours"]) if "neighbours" in arrays else None
        return cls.of_levels(domain, dict(zip(sets, levels.tolist(), strict=True)), relation)

    @classmethod
    def _of_pieces(
        cls, workload: UnionWorkload, relation: Relation | None, noise: Mapping[Key, tuple[Array, Array]]
    ) -> BlockMechanism:
        """Return the mechanism of a union's symmetry with noise on blocks by key: a basis of each, and a covariance."""
        domain, (symmetries, looks) = workload.domain, symmetries_of(workload)
        assert domain is not None
        wide = tuple(axis for axis, symmetry in enumerate(symmetries) if len(symmetry.sizes) > 1)
        if math.prod(len(symmetries[axis].sizes) for axis in wide) > MAX_ORBITS:
            raise InvalidInputError(f"workload must have at most {MAX_ORBITS} kinds of records")
        rows = BlockRows(symmetries, wide)
        moved, pieces = Moved.of(relation, domain, symmetries, rows, noise), {}
        for key, (moves, covariance) in noise.items():
            check_key(key, symmetries)
            if moves.shape[1] != len(rows.cells_of(key)):
                raise InvalidInputError(f"moves of {key} must have {len(rows.cells_of(key))} columns")
            pieces[key] = Piece.of(symmetries, moved, key, moves, covariance)
        known = {
            table.name: tuple(looks[axis][key_of(asked)] for axis, asked in table.queries)
            for table in workload.tables
        }
        found = object.__new__(cls)
        found._hold(domain, symmetries, relation, moved, pieces, workload, known)
        return found

    def __repr__(self) -> str:
        return f"BlockMechanism({len(self.pieces)} blocks, rho={self.rho:.6g})"

    def _released_rows(self, key: Key, piece: Piece) -> Array:
        """Return the released rows of every copy of a block, one copy after another."""
        factors, inside = [], dict(key)
        for axis, symmetry in enumerate(self.symmetries):
            classes = symmetry.labels == np.arange(len(symmetry.sizes))[:, None]
            own = symmetry.directions(inside[axis]).T if axis in inside else classes.astype(np.float64)
            factors.append(own)
        extents = [len(each) for each in factors]
        order = [*inside, *(axis for axis in range(len(factors)) if axis not in inside)]
        written = linalg.kronecker(factors).reshape(*extents, -1).transpose(*order, len(order))
        copies = written.reshape(-1, piece.moves.shape[1], written.shape[-1])
        return np.asarray(piece.moves @ copies / piece.weight).reshape(-1, written.shape[-1])
