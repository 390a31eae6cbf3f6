"""Counting records: marginal tables from a file of codes, in one pass and in the memory of the tables alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dualmech import files, validate
from dualmech.errors import InputTypeError, InvalidInputError, did_you_mean
from dualmech.files import csv
from dualmech.immutable import freeze
from dualmech.validate import Array
from dualmech.workloads.attributes import LARGEST_CODE, Attribute, codes_of, listed
from dualmech.workloads.base import Workload, column_names
from dualmech.workloads.domain import Domain
from dualmech.workloads.marginals import Axes, MarginalWorkload, cells_of, check_marginal
from dualmech.workloads.schema import Schema

__all__ = ["count"]

BATCH = 256  # records that are read at a time: so few that hardly any lives to see a garbage collection
CHUNK = 65536  # records that are counted at a time, and distinct texts that are remembered
LARGEST_TABLE = 2**27  # largest number of cells of a table that is counted (1 GiB)

WEIGHTS = ("weight", "weights")  # columns that would say how often a record counts, which none does

Codes = npt.NDArray[np.int64]

Tables = Mapping[Axes, Array]
"""Marginal tables by the positions of their attributes, each with one axis per attribute."""


def count(
    source: str | PathLike[str] | npt.ArrayLike, workload: MarginalWorkload, *, allow_empty: bool = False
) -> dict[Axes, Array]:
    """Count records into the marginal tables that a workload needs: those that no other table covers.

    Raises `FileFormatError` for a file that is not as `docs/formats.md` says, with the line that is at fault;
    `InvalidInputError` or `InputTypeError` for an array of another width, columns that lack an attribute, anything but
    a whole number below the attribute's size, with the record; no records; a table too large to count.
    Returns a dict of axes to arrays: what the `measure` of a mechanism takes: an axis per attribute, counts as float64.

    Parameters
    ----------
    source : path of a CSV file, DataFrame, or (records, attributes) array of integers
        Codes 0 … n - 1 of every attribute. The header of a file, which is read once, and the columns of a frame name
        all attributes of the domain, in any order and among others, but for weights; an array has them in the domain's
        order.
    workload : MarginalWorkload
        Whose tables are wanted.
    allow_empty : bool
        Whether there may be no records, which then count 0 everywhere.

    Examples
    --------
    >>> import dualmech as dm
    >>> tables = dm.workloads.marginals({"age": 2, "sex": 2}, ways=(0, 2))
    >>> dm.records.count([[0, 1], [1, 1], [0, 1]], tables)[0, 1]
    array([[0., 2.],
           [0., 1.]])
    """
    validate.boolean(allow_empty=allow_empty)
    if isinstance(workload, Workload) and not isinstance(workload, MarginalWorkload):
        raise InputTypeError(
            f"workload must be one of marginal tables, got {type(workload).__name__}; those that a mechanism of a "
            f"union counts are its `needed_tables`, those of query tables are their `tables`"
        )
    domain, tables = check_marginal(workload).domain, maximal_sets(workload.axes)
    assert domain is not None
    shapes = {axes: tuple(domain.shape[axis] for axis in axes) for axes in tables}
    for shape in shapes.values():
        if np.prod(shape, dtype=np.float64) > LARGEST_TABLE:
            raise InvalidInputError(f"a table of shape {shape} has more cells than are counted ({LARGEST_TABLE})")
    counts = {axes: np.zeros(int(np.prod(shape, dtype=np.int64))) for axes, shape in shapes.items()}
    seen = 0
    for codes in _chunks(source, domain):
        seen += codes.shape[1]
        for axes, shape in shapes.items():
            cells = (
                np.ravel_multi_index(tuple(codes[axis] for axis in axes), shape)
                if axes
                else np.zeros(codes.shape[1], int)
            )
            counts[axes] += np.bincount(cells, minlength=len(counts[axes]))
    if not seen and not allow_empty:
        where = f"{source}: " if isinstance(source, str | PathLike) else ""
        raise InvalidInputError(f"{where}there are no records; allow_empty=True (--allow-empty) counts them so")
    return {axes: freeze(table.reshape(shapes[axes])) for axes, table in counts.items()}


class IndexedTables(dict[Axes, Array]):
    """Tables that are asked for many marginals: by attribute, which of them have it."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._holders: dict[int, list[Axes]] = {}
        for given in self:
            for axis in given:
                self._holders.setdefault(axis, []).append(given)

    def covering(self, axes: Axes) -> list[Axes]:
        """Return the tables that have all of some attributes, or the one of just these."""
        if axes in self or not axes:
            return [axes] if axes in self else [*self]
        rarest = min((self._holders.get(axis, []) for axis in axes), key=len)
        return [given for given in rarest if set(axes) <= set(given)]


def marginal_of(domain: Domain, tables: Tables, axes: Axes) -> Array:
    """Return the marginal on a set of attributes from the smallest given table that covers it.

    Raises `InvalidInputError` or `InputTypeError` for no table that covers it, or one of another shape.
    """
    covering = (tables if isinstance(tables, IndexedTables) else IndexedTables(tables)).covering(axes)
    if not covering:
        shown = " x ".join(domain.names[axis] for axis in axes) or "the total"
        raise InvalidInputError(f"tables must cover {shown}, which is measured; none does")
    best = min(covering, key=lambda given: cells_of(domain, given))
    table = validate.finite(**{f"tables[{best}]": tables[best]})
    shape = tuple(domain.shape[axis] for axis in best)
    if table.shape != shape:
        raise InvalidInputError(f"tables[{best}] must have shape {shape}, got {table.shape}")
    return np.asarray(table.sum(axis=tuple(i for i, axis in enumerate(best) if axis not in axes)))


def check_tables(**named: object) -> Any:
    """Return tables by the positions of their attributes; what maps nothing, or other keys, is refused."""
    ((name, given),) = named.items()
    found = validate.mapping("tuples of attribute positions, such as (0, 2), to arrays", **named)
    if not all(isinstance(key, tuple) for key in found):
        raise InputTypeError(f"{name} must map tuples of attribute positions, such as (0, 2), to arrays")
    for key in found:
        whole = all(isinstance(axis, int | np.integer) and axis >= 0 for axis in key)
        if not whole or any(one >= two for one, two in itertools.pairwise(key)):
            raise InvalidInputError(
                f"{name} must name the attributes of a table by their positions in rising order, such as (0, 2), got "
                f"{key!r}"
            )
    return given


def maximal_sets(chosen: Iterable[Axes]) -> list[Axes]:
    """Return the sets that no other one contains.

    Examples
    --------
    >>> from dualmech.mechanisms.records import maximal_sets
    >>> maximal_sets([(), (0,), (1,), (0, 2)])
    [(0, 2), (1,)]
    """
    kept: list[Axes] = []
    holders: dict[int, list[frozenset[int]]] = {}
    ordered = sorted(set(chosen), key=len, reverse=True)
    for _, alike in itertools.groupby(ordered, key=len):  # of as many attributes, none contains another
        found = [
            axes
            for axes in alike
            if not (any(set(axes) <= other for other in holders.get(axes[0], [])) if axes else kept)
        ]
        kept += found
        for axes in found:
            for axis in axes:
                holders.setdefault(axis, []).append(frozenset(axes))
    return kept


class _Codes(dict[str, int]):
    """What the texts in an attribute's column stand for; each is read once, but for those too many to remember."""

    def __init__(self, attribute: Attribute) -> None:
        self.attribute = attribute

    def __missing__(self, text: str) -> int:
        code = self.attribute.code(text)
        if code is None:
            raise InvalidInputError(self.attribute.refused(text))
        if len(self) == CHUNK:
            self.clear()
        self[text] = code
        return code


def _chunks(source: str | PathLike[str] | npt.ArrayLike, domain: Domain) -> Iterator[Codes]:
    """Yield the codes of some records at a time (attributes, records), all of them checked."""
    if isinstance(source, str | PathLike):
        batches = _batches(source, domain)
        while parts := [*itertools.islice(batches, CHUNK // BATCH)]:
            yield np.concatenate(parts, axis=1)
        return
    given: Any = source
    names = column_names(given)
    columns = None if names is None else [given.columns[each] for each in _positions(names, domain)]
    if _is_empty(given):
        return
    if columns is not None:
        named = zip(_attributes(domain), columns, strict=True)
        yield _possible(np.stack([_column(each, np.asarray(given[key])) for each, key in named]), domain, "records: ")
    elif isinstance(domain, Schema):
        raise InputTypeError(
            f"records of a schema are matched by the names of columns: give a CSV file, a DataFrame, or a mapping of "
            f"attributes' positions to tables of counts, such as {{(0, 2): counts}}, got {type(source).__name__}"
        )
    else:
        yield _checked(validate.finite(2, records=given).T, domain)


def _column(attribute: Attribute, values: npt.NDArray[np.generic]) -> Codes:
    """Return the codes of a column of a frame; the first value that is not allowed is refused, with its record."""
    codes = codes_of(attribute, values)
    wrong = np.flatnonzero(codes < 0)
    if len(wrong):
        raise InvalidInputError(f"records: record {wrong[0] + 1}: {attribute.refused(listed(values)[wrong[0]])}")
    return codes


def _attributes(domain: Domain) -> list[Attribute]:
    return [domain.attribute(axis) for axis in range(len(domain.names))]


def _is_empty(source: Any) -> bool:
    try:
        return len(source) == 0
    except TypeError:  # which has no length
        return False


def _checked(numbers: Array, domain: Domain) -> Codes:
    """Return numbers (attributes, records) as codes; the first record that holds anything else is refused."""
    if len(numbers) != len(domain.names):
        raise InvalidInputError(
            f"records must hold {len(domain.names)} whole numbers each, one per attribute, got shape {numbers.T.shape}"
        )
    largest = np.array([min(size - 1, LARGEST_CODE) for size in domain.shape], dtype=np.float64)[:, None]
    wrong = np.argwhere(((numbers < 0) | (numbers > largest) | (numbers != np.floor(numbers))).T)
    if len(wrong):
        record, axis = wrong[0]
        told = domain.attribute(int(axis)).refused(float(numbers[axis, record]))
        raise InvalidInputError(f"records: record {record + 1}: {told}")
    return numbers.astype(np.int64)


def _batches(path: str | PathLike[str], domain: Domain) -> Iterator[Codes]:
    """Yield the codes of a few records of a file at a time (attributes, records)."""
    with files.errors_naming(path):
        rows, codes = csv.lines(path), [_Codes(each) for each in _attributes(domain)]
        header, columns = _header(path, rows, domain)
        while batch := [*itertools.islice(rows, BATCH)]:
            try:
                yield _possible(_parse([row for _, row in batch], codes, columns, len(header)), domain)
            except InvalidInputError:
                for line, row in batch:  # which one it is
                    with csv.line_named(path, line):
                        _possible(_parse([row], codes, columns, len(header)), domain)
                raise


def _possible(codes: Codes, domain: Domain, where: str = "") -> Codes:
    """Return codes (attributes, records); the first record that has what no record has together is refused."""
    for together in domain.impossible:
        wrong = np.flatnonzero(np.all([np.isin(codes[axis], chosen) for axis, chosen in together.items()], axis=0))
        if len(wrong):
            first = codes[:, wrong[0]]
            told = " and ".join(
                f"{domain.names[axis]!r} = {domain.attribute(axis).label(first[axis])}" for axis in together
            )
            named = f"{where}record {wrong[0] + 1}: " if where else ""
            raise InvalidInputError(f"{named}no record has {told} together, as the schema says (never)")
    return codes


def check_columns(source: object, domain: Domain) -> None:
    """Refuse a file or a frame whose columns lack an attribute; of a file the header is read, and nothing else.

    Raises `FileFormatError` or `InvalidInputError` with the attribute.
    """
    if isinstance(source, str | PathLike):
        with files.errors_naming(source):
            _header(source, csv.lines(source), domain)
    elif (names := column_names(source)) is not None:
        _positions(names, domain)


def _header(
    path: str | PathLike[str], rows: Iterator[tuple[int, list[str]]], domain: Domain
) -> tuple[list[str], list[int]]:
    """Return the first line of a file, and where the attributes stand in it."""
    line, header = next(rows, (1, []))
    if not header:
        raise InvalidInputError("is empty: its first line must name the columns")
    with csv.line_named(path, line):
        sought = {each.source for each in _attributes(domain)}
        return header, _positions([name if name in sought else name.strip() for name in header], domain)


def _parse(rows: Sequence[Sequence[str]], codes: list[_Codes], columns: list[int], width: int) -> Codes:
    if wrong := {*map(len, rows)} - {width}:
        raise InvalidInputError(f"has {min(wrong)} fields where the first line has {width}")
    texts = [*zip(*rows, strict=True)]
    known = zip(codes, columns, strict=True)
    return np.stack([np.fromiter(map(code.__getitem__, texts[column]), np.int64, len(rows)) for code, column in known])


def _positions(labels: list[str], domain: Domain) -> list[int]:
    """Return where the attributes stand among the labels of columns; weights that are no attribute are refused."""
    unknown = {*labels} - {each.source for each in _attributes(domain)}
    for label in sorted(unknown):
        if label.strip().casefold() in WEIGHTS:
            raise InvalidInputError(
                f"columns of records must not name a {label!r} that is no attribute: every record counts once, "
                f"whatever its weight; take the column out, or make it an attribute"
            )
    for attribute in _attributes(domain):
        name = attribute.source
        if name not in labels:
            near = did_you_mean(name, labels)
            raise InvalidInputError(f"columns of records must name the attribute {name!r}, got {labels}{near}")
        if labels.count(name) > 1:
            raise InvalidInputError(f"columns of records must name the attribute {name!r} once, got {labels}")
    return [labels.index(each.source) for each in _attributes(domain)]


# Where noise is drawn: the one kind of function that hands random numbers to measurements of tables.


class Sampler(Protocol):
    """Independent noise of mean 0 and a given standard deviation, as many draws as an array has entries.

    Of marginal tables `BlockMechanism.measure` adds the draws to whole numbers: n times each count less the counts
    along its line, for every attribute of n values. Everything after that uses the sum alone. So where counts
    are whole, and all numbers below 2^53, the release has the privacy that the sampler's noise gives to integers.
    Discrete Gaussian noise gives them ``½ ‖differences‖² / deviation²`` zCDP (Canonne, Kamath and Steinke, "The
    discrete Gaussian for differential privacy", NeurIPS 2020, section 2), which makes the mechanism's own ``rho``.
    """

    def __call__(self, deviation: float, shape: tuple[int, ...], /) -> Array:
        """Return independent draws of the standard deviation `deviation` in an array of this shape."""


def gaussian(rng: np.random.Generator | int | None = None) -> Sampler:
    """Return the sampler of Gaussian noise in floating point: for study, since its rounding can reveal the data.

    Examples
    --------
    >>> from dualmech.mechanisms.records import gaussian
    >>> gaussian(0)(2.0, (3,)).round(2)
    array([ 0.25, -0.26,  1.28])
    """
    generator = validate.generator(rng=rng)
    return lambda deviation, shape: np.asarray(deviation * generator.standard_normal(shape))


def draw_noise(sampler: Sampler, deviation: float, shape: tuple[int, ...]) -> Array:
    """Return what a sampler draws, once it has the shape that was asked for and is finite.

    Raises `InvalidInputError` or `InputTypeError` for something that cannot be called; draws of another shape, NaN
    or infinity.
    """
    if not callable(sampler):
        raise InputTypeError(f"sampler must be a function of a deviation and a shape, got {type(sampler).__name__}")
    draws = validate.finite(sampler=sampler(deviation, shape))
    if draws.shape != shape:
        raise InvalidInputError(f"sampler must return draws of shape {shape}, got {draws.shape}")
    return draws
