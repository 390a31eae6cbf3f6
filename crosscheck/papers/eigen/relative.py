"""Relative errors of the Eigen-Design and its rivals on real records (EIG, section 5; here, the Adult table).

Whatever ε and δ are, noise of standard deviation s on an answer a has the expected relative error ``√(2/π) s / a``,
so the ratio of two mechanisms' means over all queries needs neither samples nor a privacy budget. Answers below
`SANITY` of all records count as that many, as Xiao, Wang and Gehrke (ICDE 2010) do; the text at hand does not say.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dualmech import fast, workloads
from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.papers.eigen.experiments import DESIGN_TOLERANCE, OPTIMUM_TOLERANCE
from dualmech.crosscheck.papers.eigen.instances import FOUR, SEED, EigenInstance, marginals, shape_text
from dualmech.crosscheck.papers.eigen.printed import DATACUBE, FOURIER, HIERARCHICAL, WAVELET
from dualmech.crosscheck.papers.solving import certified_outcome, without_warnings
from dualmech.errors import InvalidInputError
from dualmech.files.csv import check_separator, number
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.problems import strategies
from dualmech.validate import Array
from dualmech.workloads.base import Workload

FIELDS = {"age": 75, "workclass": 9, "education-num": 16, "income>50K": 2}
"""Fields of the Adult table that are counted, and the number of their codes, which start at 0."""

WEIGHT = "weight"  # the field that says for how many people a record stands, if there is one

SANITY = 0.001  # least answer that an error is taken relative to, as a share of all records
RANGES = 2048  # number of random ranges


@dataclass(frozen=True, slots=True)
class RelativeRow:
    """Mean relative errors on one workload, over that of the Eigen-Design for relative error."""

    name: str  # The workload
    plain: float  # Of the Eigen-Design for absolute error
    rivals: dict[str, float]  # By name: of the rivals
    # How far, at most, the design is above the least total variance of the scaled queries, relative
    gap: float
    certified: bool  # Whether its Program 1 was solved to its tolerance
    printed: dict[str, str] = field(default_factory=dict)  # By name: of rivals, as the paper prints them

    @property
    def outcome(self) -> Agreement:
        """Whether Program 1 was certified; a mean relative error has no bound here."""
        return certified_outcome(self.certified)


def histogram(path: str) -> Array:
    """Count the records of a table of codes in the cells of `FOUR`: each field is cut into bins of equal width.

    Where there is a field `WEIGHT`, a record counts as many as it says, as the paper aggregates the Adult table.
    Raises `InvalidInputError` for a file without records, a field that is missing, a code or weight out of
    range; line and field are named.
    """
    counts = np.zeros(FOUR)
    with open(path, newline="", encoding="utf-8") as handle:
        reader = csv.DictReader(handle)
        check_separator(reader.fieldnames or ())
        missing = [name for name in FIELDS if name not in (reader.fieldnames or ())]
        if missing:
            raise InvalidInputError(
                f"data must have the columns {', '.join(FIELDS)}, {path} lacks {missing[0]!r}"
            )
        for record in reader:
            cell = (
                _code(record[name], name, reader.line_num) * bins // codes
                for (name, codes), bins in zip(FIELDS.items(), FOUR, strict=True)
            )
            counts[tuple(cell)] += _weight(record[WEIGHT], reader.line_num) if WEIGHT in record else 1.0
    if not counts.any():
        raise InvalidInputError(f"data must have at least one record, {path} has none")
    return counts.ravel()


def _code(text: str | None, name: str, line: int) -> int:
    if text is None or not text.isdecimal() or int(text) >= FIELDS[name]:
        raise InvalidInputError(
            f"data: {name} must be a code from 0 to {FIELDS[name] - 1}, got {text!r} in line {line}"
        )
    return int(text)


def _weight(text: str | None, line: int) -> float:
    weight = number(text or "")
    if weight is None or not 0 <= weight < np.inf:
        raise InvalidInputError(f"data: {WEIGHT} must be a number from 0, got {text!r} in line {line}")
    return weight


def rows(counts: Array) -> list[Callable[[], RelativeRow]]:
    """Return what to compute on the counts of all cells: two-way and random marginals, and random ranges."""
    tables = workloads.marginals(FOUR, ways=2)
    ranges = partial(workloads.random_range, FOUR, RANGES, SEED)
    sets = tuple(tuple(group.split(" x ")) for group in dict.fromkeys(tables.groups))
    shape = shape_text(FOUR)
    instances = (
        EigenInstance(
            f"2-way marginals, {shape}",
            FOUR,
            partial(workloads.marginals, FOUR, ways=2),
            (FOURIER, DATACUBE),
            sets,
        ),
        EigenInstance(f"{RANGES} random ranges, {shape}", FOUR, ranges, (WAVELET, HIERARCHICAL)),
    )
    drawn = next(each for each in marginals(quick=False) if each.shape == FOUR and "random" in each.label)
    return [partial(solve, instance, counts) for instance in (*instances, drawn)]


def solve(instance: EigenInstance, counts: Array) -> RelativeRow:
    """Compare mean relative errors on a workload, given the counts of all cells."""
    workload = instance.build()
    with without_warnings():
        design = partial(fast.eigen_design, workload, tol=DESIGN_TOLERANCE)
        scaled = design(weights=strategies.relative_weights(workload), bound_tol=OPTIMUM_TOLERANCE)
        plain = design(bound_tol=None)
    error = partial(relative_error, workload, counts)
    return compared(instance, scaled, plain, error, error)


def compared(
    instance: EigenInstance,
    scaled: fast.EigenDesign,
    plain: fast.EigenDesign,
    own_error: Callable[[LinearGaussianMechanism], float],
    rival_error: Callable[[LinearGaussianMechanism], float],
) -> RelativeRow:
    """Return the mean relative errors of the designs, made for it and for absolute error, and of the rivals."""
    unit = own_error(scaled.mechanism)
    return RelativeRow(
        instance.label,
        own_error(plain.mechanism) / unit,
        {name: rival_error(instance.rival(name)) / unit for name in instance.rivals},
        scaled.certificate.gap,
        max(scaled.weighting.gap, plain.weighting.gap) <= DESIGN_TOLERANCE,
        instance.printed,
    )


def relative_error(workload: Workload, counts: Array, mechanism: LinearGaussianMechanism) -> float:
    """Return the mean over queries of the expected relative error, ``√(2/π) s / max(answer, SANITY · records)``."""
    answers = np.maximum(np.abs(workload.apply(counts)), SANITY * counts.sum())
    return float(np.mean(np.sqrt(2 / np.pi * mechanism.variances(workload)) / answers))
