"""What every mechanism offers once it is on a grid, whatever its noise lies on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from fractions import Fraction
from os import PathLike
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.mechanisms import records
from dualmech.publishing.discrete import Noise
from dualmech.workloads.domain import Domain
from dualmech.workloads.marginals import Axes, MarginalWorkload

Counts = npt.NDArray[np.int64]


class Measured(Protocol):
    """What a publication reads: noise that was drawn, its exact cost, and estimates from what was measured."""

    @property
    def by_table(self) -> bool:
        """Whether estimates are asked for table by table; else those of all queries of a workload."""

    @property
    def mechanism(self) -> Any:
        """The Gaussian mechanism with the noise that is drawn: what accuracy is computed from."""

    @property
    def squared_privacy_cost(self) -> Fraction:
        """The largest squared distance between neighbours in units of the noise: twice ρ."""

    def estimate(self, measured: Any, asked: Any) -> Any:
        """Return unbiased estimates of a table or a workload."""


class Drawn(Measured, Protocol):
    """A mechanism in whole numbers with discrete Gaussian noise: its exact cost, and how it is drawn."""

    def read(self, source: Any, domain: Domain | None, allow_empty: bool) -> Any:
        """Return the counts that are needed of records."""

    def draw(self, data: Any, noise: Noise) -> Any:
        """Draw what everything is estimated from: the one place where data meet noise."""


def whole_counts(**named: object) -> Counts:
    """Return counts as 64-bit integers; anything but whole numbers from 0 to 2^53 is refused by its name."""
    ((name, _),) = named.items()
    counts = validate.finite(**named)
    if np.any(counts != np.rint(counts)) or np.abs(counts).max(initial=0.0) > 2**53:
        raise InvalidInputError(f"{name} must hold whole numbers of at most 2^53: counts of records")
    if np.any(counts < 0):
        raise InvalidInputError(
            f"{name} must hold counts of records, none of them negative, got {counts.min():g}"
        )
    return counts.astype(np.int64)


def is_records(source: Any) -> bool:
    """Whether a source is records, to be counted: a file or a frame with named columns."""
    return isinstance(source, str | PathLike) or hasattr(source, "columns")


def counted_vector(source: Any, domain: Domain | None, allow_empty: bool) -> Any:
    """Return the data vector (d,) of records over all cells of a domain; what is no records, as it is."""
    if not is_records(source):
        whole_counts(records=source)
        return validate.finite(records=source)
    known = require_domain(domain)
    whole = tuple(range(len(known.names)))
    if known.cells > records.LARGEST_TABLE:
        raise InvalidInputError(f"a domain of {known.cells} cells is too large to count in one table")
    tables = records.count(source, MarginalWorkload(known, [whole]), allow_empty=allow_empty)
    return np.asarray(tables[whole]).ravel()


def require_domain(domain: Domain | None) -> Domain:
    """Return a domain; refuse records where there is none that says which columns to count."""
    if domain is None:
        raise InputTypeError(
            "records must be counts, a data vector: the workload has no domain that says which columns to count; give "
            "it one (domain=), such as a dualmech.Schema"
        )
    return domain


def given_tables(source: Any, domain: Domain) -> Any:
    """Return tables of counts that were given in place of records; refuse by its table what no records have.

    These are anything but counts, a table of another shape, and two tables that differ on what both of them tell.
    """
    counts: dict[Axes, Counts] = {}
    for axes, table in records.check_tables(records=source).items():
        if any(axis >= len(domain.names) for axis in axes):
            raise InvalidInputError(f"records[{axes}] must be of attributes 0 … {len(domain.names) - 1}")
        counts[axes] = whole_counts(**{f"records[{axes}]": table})
        shape = tuple(domain.shape[axis] for axis in axes)
        if counts[axes].shape != shape:
            raise InvalidInputError(f"records[{axes}] must have shape {shape}, got {counts[axes].shape}")
    _require_agreement(counts, domain)
    return source


def _require_agreement(counts: Mapping[Axes, Counts], domain: Domain) -> None:
    """Refuse two tables whose marginals on the attributes that they share are not the same."""
    known: dict[Axes, tuple[Axes, Counts]] = {}
    for axes, table in counts.items():
        for shared in _possibly_shared(axes, counts):
            own = table.sum(axis=tuple(at for at, axis in enumerate(axes) if axis not in shared))
            other, theirs = known.setdefault(shared, (axes, own))
            if not np.array_equal(own, theirs):
                told = " x ".join(domain.names[axis] for axis in shared) or "the number of records"
                raise InvalidInputError(
                    f"records[{other}] and records[{axes}] must be of the same records: they differ on {told}"
                )


def _possibly_shared(axes: Axes, tables: Iterable[Axes]) -> set[Axes]:
    """Return sets of a table's attributes that hold all it has in common with any other: all, or those, if fewer."""
    others = [frozenset(each) for each in tables]
    if 2 ** len(axes) <= len(others):
        return {each for size in range(len(axes) + 1) for each in itertools.combinations(axes, size)}
    return {tuple(axis for axis in axes if axis in other) for other in others}
