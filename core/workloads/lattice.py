"""The residual subspaces of a domain: what its marginal tables are made of."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from dualmech.errors import InvalidInputError
from dualmech.validate import Array
from dualmech.workloads.domain import Domain

Axes = tuple[int, ...]  # positions of a set of attributes in their domain, in increasing order

MAX_SUBSPACES = 2**22
"""Largest number of residual subspaces, counted once for every table that they lie under."""


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """The residual subspaces of some tables, and which lies under which table.

    The functions of the cells that depend on the attributes T alone, and add up to 0 over each of them, form the
    residual subspace of T, of dimension ``Π_{i in T} (n_i - 1)``. They are orthogonal, and the queries of the table S
    span those of all ``T ⊆ S``.
    """

    axes: tuple[Axes, ...]  # the attributes T of each subspace, those of dimension 0 left out
    dimensions: Array  # (t,) mult_T
    incidence: sp.csr_array  # (t, tables) 1 where ``T ⊆ S``

    @classmethod
    def under(cls, domain: Domain, tables: Iterable[Axes]) -> Lattice:
        """List the subspaces under tables; attributes of one value have none of their own.

        Raises `InvalidInputError` for more than `MAX_SUBSPACES`, counted once per table.
        """
        sizes = domain.shape
        chosen = [tuple(axis for axis in axes if sizes[axis] > 1) for axes in tables]
        if sum(2 ** len(axes) for axes in chosen) > MAX_SUBSPACES:
            raise InvalidInputError(
                f"tables have more than {MAX_SUBSPACES} residual subspaces in all, too many to list"
            )
        found: dict[Axes, int] = {}
        rows, columns = [], []
        for column, axes in enumerate(chosen):
            for count in range(len(axes) + 1):
                for subset in itertools.combinations(axes, count):
                    rows.append(found.setdefault(subset, len(found)))
                    columns.append(column)
        own = np.array(sizes, dtype=np.float64) - 1
        dimensions = np.array([own[list(each)].prod() for each in found])
        incidence = sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(found), len(chosen)))
        return cls(tuple(found), dimensions, incidence)
