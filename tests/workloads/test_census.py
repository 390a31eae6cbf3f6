"""The census's lists are built a second way, from what their lines are called, and held against the dense solver."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
import pytest
from commanded import run

import dualmech as dm
from dualmech import fast, workloads
from dualmech.crosscheck.agreement import Agreement, meet
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.studies.papers import scale as scale_census
from dualmech.validate import Array
from dualmech.workloads import census
from dualmech.workloads.tabulations import RACES
from dualmech.workloads.unions import UnionWorkload

LETTERS = dict(zip("ABCDEF", (f"{race} alone" for race in RACES), strict=True))
LETTERS |= {"G": "two or more races", "H": "Hispanic or Latino"}
LETTERS |= {other: f"not Hispanic or Latino, {LETTERS[one]}" for one, other in zip("ABCDEFG", "IJKLMNO", strict=True)}
"""What the tables of each letter count."""

PEOPLE = sorted(
    (frozenset(np.flatnonzero(np.array([code >> bit & 1 for bit in range(6)]))) for code in range(1, 64)),
    key=lambda chosen: (len(chosen), sorted(chosen)),
)
"""The races that each value of race reports."""

WORDS = {"one race": 1, "two races": 2, "three races": 3, "four races": 4, "five races": 5, "six races": 6}


def counts_race(line: str) -> Callable[[frozenset[int]], bool] | None:
    if line == "two or more races":
        return lambda own: len(own) > 1
    if line in WORDS:
        return lambda own: len(own) == WORDS[line]
    named = line.removesuffix(" alone").split(" + ")
    if all(each in RACES for each in named):
        return lambda own: own == {RACES.index(each) for each in named}
    return None


def counts_age(line: str) -> Callable[[int], bool] | None:
    numbers = [int(each) for each in re.findall(r"\d+", line)]
    if not re.fullmatch(r"(under )?\d+( (to|and) \d+)? years?( and over)?|18 or over", line):
        return None
    if line.startswith("under"):
        return lambda year: year < numbers[0]
    if "over" in line:
        return lambda year: year >= numbers[0]
    return lambda year: numbers[0] <= year <= numbers[-1]


def counts_quarters(line: str) -> Callable[[str], bool] | None:
    if line in ("institutional", "noninstitutional"):
        members = census.INSTITUTIONS if line == "institutional" else census.NONINSTITUTIONS
        return lambda own: own in members
    known = (*census.INSTITUTIONS, *census.NONINSTITUTIONS)
    return (lambda own: own == line) if line in known else None


def counts_word(line: str, known: tuple[str, ...]) -> Callable[[str], bool] | None:
    return (lambda own: own == line) if line in known else None


def counted(workload: UnionWorkload, values: dict[str, list[Any]], x: Array) -> Array:
    """Answer every query by its name: an array of the domain's shape, summed over cells that the words count."""
    assert workload.domain is not None
    readers: dict[str, Any] = {"race": counts_race, "quarters": counts_quarters}
    readers |= dict.fromkeys(("age", "voting-age"), counts_age)
    readers["sex"] = partial(counts_word, known=("male", "female"))
    readers["hispanic"] = partial(counts_word, known=("not Hispanic or Latino", "Hispanic or Latino"))
    found = []
    for name in workload.names:
        table, _, words = name.partition(": ")
        kept = {attribute: np.ones(size) for attribute, size in workload.domain.sizes}
        if table == "P5":
            kept["quarters"] = np.array([float(each != "household") for each in values["quarters"]])
        for word in (each for each in words.split(", ") if each != "total"):
            fits = {attribute: reader for attribute in kept if (reader := readers[attribute](word)) is not None}
            ((attribute, counts),) = fits.items()
            kept[attribute] = np.array([float(counts(each)) for each in values[attribute]])
        found.append(reduce(lambda left, own: np.tensordot(own, left, (0, 0)), kept.values(), x))
    return np.array(found)


def values_of(workload: UnionWorkload) -> dict[str, list[Any]]:
    assert workload.domain is not None
    known: dict[str, list[Any]] = {
        "voting-age": [0, 18],
        "sex": ["male", "female"],
        "age": [*range(100), 100, 105, 110],
        "hispanic": ["not Hispanic or Latino", "Hispanic or Latino"],
        "race": PEOPLE,
        "quarters": ["household", *census.INSTITUTIONS, *census.NONINSTITUTIONS],
    }
    known["age"] = known["age"] if dict(workload.domain.sizes).get("age") == 103 else [*range(116)]
    return {name: known[name] for name in workload.domain.names}


def lines(workload: UnionWorkload) -> Counter[str]:
    counts: Counter[str] = Counter()
    for table in workload.tables:
        counts[census.published(table.name)[0]] += math.prod(workload.table_shape(table))
    return counts


def some(workload: UnionWorkload, first: int, last: int) -> UnionWorkload:
    assert workload.domain is not None
    return UnionWorkload(workload.domain, workload.tables[first:last])


class TestLines:
    def test_are_as_many_as_published(self) -> None:
        redistricting = {"P1": 71, "P2": 73, "P3": 71, "P4": 73, "P5": 10}
        assert lines(workloads.census_redistricting()) == redistricting
        ages = {f"P12{letter}": 49 for letter in ("", *"ABCDEFGHI")}
        assert lines(workloads.sex_by_age(single_years=False)) == ages
        ages |= {f"PCT12{letter}": 209 for letter in ("", *LETTERS)}
        assert lines(workloads.sex_by_age()) == ages
        assert lines(workloads.census_tables()) == redistricting | ages

    @pytest.mark.parametrize(
        "workload",
        [
            workloads.census_redistricting(),
            workloads.sex_by_age(iterations=False),
            workloads.sex_by_age(iterations=False, ages=116),
            workloads.sex_by_age(single_years=False),
        ],
        ids=repr,
    )
    def test_count_what_they_are_called(self, workload: UnionWorkload) -> None:
        assert workload.domain is not None
        x = np.random.default_rng(0).integers(0, 100, workload.domain.shape).astype(float)
        assert set(workload.matrix.data) == {1.0}
        np.testing.assert_array_equal(workload.matrix @ x.ravel(), counted(workload, values_of(workload), x))

    def test_are_in_the_order_of_the_publication(self) -> None:
        names = workloads.census_redistricting().names
        assert [name.partition(": ")[2] for name in names[:10]] == [
            "total",
            "one race",
            *RACES,
            "two or more races",
            "two races",
        ]
        assert names[71:74] == ("P2: total", "P2: Hispanic or Latino", "P2 by race: not Hispanic or Latino, total")
        assert names[-10:-7] == ("P5: total", "P5: institutional", "P5: correctional facilities for adults")
        pairs = [" + ".join(pair) for pair in itertools.combinations(RACES, 2)]
        assert names[10:25] == tuple(f"P1: {pair}" for pair in pairs)

    def test_letters_races_and_both_lists_together(self) -> None:
        names = workloads.sex_by_age().names
        for letter, whom in LETTERS.items():
            for table in (f"P12{letter}", f"PCT12{letter}")[letter > "I" :]:
                own = [name for name in names if name.startswith((f"{table}: ", f"{table} by age: "))]
                assert own[0] == f"{table}: total, {whom}" and own[1] == f"{table} by age: male, total, {whom}"
                assert all(name.endswith(f", {whom}") for name in own)
        labels = [" + ".join(RACES[code] for code in sorted(each)) for each in PEOPLE]
        assert tuple(labels) == workloads.pl94().names[4:67]
        everything, ages = workloads.census_tables(), workloads.sex_by_age()
        assert everything.table_names == (*workloads.census_redistricting().table_names, *ages.table_names)
        assert (
            everything.names[298:] == ages.names
            and everything.names[:144] == workloads.census_redistricting().names[:144]
        )

    @pytest.mark.parametrize(
        ("ages", "error"), [(100, InvalidInputError), (0, InvalidInputError), (1.5, InputTypeError)]
    )
    def test_ages_are_years_or_those_of_the_tables(self, ages: Any, error: type[Exception]) -> None:
        for build in (workloads.sex_by_age, workloads.census_tables):
            with pytest.raises(error, match="ages"):
                build(ages=ages)


def test_iterations_follow_their_table_and_every_table_needs_a_number() -> None:
    asked = workloads.sex_by_age(single_years=False)
    found = census.per_table(asked, {"P12": 1.0, "P12H": 3.0})
    assert found == {name: 3.0 if name.startswith("P12H") else 1.0 for name in asked.table_names}
    np.testing.assert_array_equal(dm.FitnessForUse(asked, found).targets, [*found.values()])
    asked = workloads.sex_by_age(single_years=False)
    with pytest.raises(InvalidInputError, match="'P12' is not"):
        census.per_table(asked, {f"P12{letter}": 1.0 for letter in "ABCDEFGHI"})
    with pytest.raises(InvalidInputError, match="'PCT12' is not one"):
        census.per_table(asked, {"P12": 1.0, "PCT12": 2.0})
    with pytest.raises(InputTypeError, match="numbers must map"):
        census.per_table(asked, 1.0)  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match="UnionWorkload"):
        census.per_table(workloads.pl94(), {"P1": 1.0})  # type: ignore[arg-type]


class TestOptima:
    @pytest.mark.parametrize(
        "pair",
        [
            (workloads.sex_by_age(iterations=False), workloads.sex_by_age(iterations=False, ages=116)),
            (workloads.census_redistricting(), some(workloads.census_tables(), 0, 7)),
            (workloads.census_redistricting(), some(workloads.census_tables(116), 0, 7)),
            (workloads.sex_by_age(iterations=False, single_years=False), some(workloads.census_tables(), 7, 9)),
        ],
        ids=repr,
    )
    def test_do_not_depend_on_cells_that_no_line_tells_apart(self, pair: tuple[UnionWorkload, UnionWorkload]) -> None:
        answers = [fast.solve(dm.FitnessForUse(each, 2.0), tol=1e-8) for each in pair]
        assert meet(answers).outcome is Agreement.AGREE and all(each.gap <= 1e-8 for each in answers)

    @pytest.mark.parametrize("case", scale_census.CENSUS_SMALL[1:], ids=lambda case: case.label)
    def test_plain_noise_is_that_of_the_matrix(self, case: scale_census.TablesCase) -> None:
        row = scale_census.solve_census(case)
        assert row.outcome is Agreement.AGREE and row.gap <= scale_census.CENSUS_TOLERANCE
        assert row.best.lower_bound < row.consistent < row.plain
        dense = scale_census.on_matrix(case.problem())
        matrix, targets = dense.workload.matrix, dense.targets
        precision = matrix.T @ (matrix / targets[:, None])
        variances = np.einsum("ij,jk,ik->i", matrix, np.linalg.pinv(precision), matrix)
        assert row.plain == pytest.approx(np.diag(precision).max(), rel=1e-10)
        assert row.consistent == pytest.approx(row.plain * (variances / targets).max(), rel=1e-9)


def test_the_command_prints_them() -> None:
    result = run("crosscheck", "scale/census", "--quick", columns=150)
    assert result.exit_code == 0
    for printed in ("P1 to P4", "4.7193", "17.1343", "46 up to 22", "0.87"):
        assert printed in result.output
    assert result.output.count("yes") == len(scale_census.CENSUS_SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("case", scale_census.LARGE, ids=lambda case: f"{case.label} {[*case.targets.values()]}")
def test_long_lists_are_certified_too(case: scale_census.TablesCase) -> None:
    row = scale_census.solve_census(case)
    assert row.outcome is Agreement.AGREE and row.gap <= scale_census.CENSUS_TOLERANCE
    assert row.best.lower_bound < row.consistent < row.plain
