"""The lists of the census: every published line of the redistricting tables, and of sex by age and race.

A published table is one product of query sets, or two: its own name stands for the lines that are totals, and
``P2 by race``, ``P12 by age`` and the like for the detail below them. A line is a query. `per_table` gives both parts
of a table the same number.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.workloads.base import Workload
from dualmech.workloads.tabulations import ADULT_AGE, RACE_SETS, RACES
from dualmech.workloads.unions import UnionWorkload, union

NUMBERED = re.compile(r"[A-Z]+[0-9]+[A-Z]*")
"""What tables of the census are called."""

INSTITUTIONS = (
    "correctional facilities for adults",
    "juvenile facilities",
    "nursing facilities",
    "other institutional facilities",
)
"""Kinds of institutional group quarters."""

NONINSTITUTIONS = ("college or university student housing", "military quarters", "other noninstitutional facilities")
"""Kinds of other group quarters."""

AGE_GROUPS = (0, 5, 10, 15, 18, 20, 21, 22, 25, 30, 35, 40, 45, 50, 55, 60, 62, 65, 67, 70, 75, 80, 85)
"""The first year of each of the 23 age groups of P12."""

SINGLE_YEARS = (*range(100), 100, 105, 110)
"""The first year of each of the 103 ages of PCT12: single years below 100."""

OLDEST = 115

NUMBERS = ("two", "three", "four", "five", "six")

Index = npt.NDArray[np.intp]
Tables = dict[str, dict[str, Workload]]


def census_redistricting() -> UnionWorkload:
    """Ask the tables P1 to P5 of the 2020 redistricting file, all their 298 lines.

    Cells are voting age (17 or under, 18 or over) x hispanic (not, Hispanic or Latino) x race (the 63 of `pl94`) x
    quarters (household, four kinds of institutional and three of other group quarters). P1 is race: the total, one race
    and each of six, two or more races, two races and each pair, and so on. P2 is Hispanic origin, with race of those
    who are not Hispanic; P3 and P4 are the same of those aged 18 or over, and P5 is the kind of group quarters.
    Source: "2020 Census State Redistricting Data (Public Law 94-171) Summary File", technical documentation, 2021.

    Examples
    --------
    >>> import dualmech as dm
    >>> asked = dm.workloads.census_redistricting()
    >>> asked, asked.domain.shape
    (UnionWorkload(7 tables, 298 queries x 2016 cells), (2, 2, 63, 8))
    >>> asked.table_names
    ('P1', 'P2', 'P2 by race', 'P3', 'P4', 'P4 by race', 'P5')
    >>> asked.names[0], asked.names[12], asked.names[85]
    ('P1: total', 'P1: White + Asian', 'P2 by race: not Hispanic or Latino, White + Asian')
    """
    sizes = {"voting-age": 2, "hispanic": 2, "race": len(RACE_SETS), "quarters": len(_quarters())}
    return union(sizes, _redistricting_tables("voting-age", _group_counts(2, {f"{ADULT_AGE} or over": [1]})))


def sex_by_age(iterations: bool = True, single_years: bool = True, ages: int = 103) -> UnionWorkload:
    """Ask sex by age: the tables P12 and PCT12 of the census, and their iterations by race and Hispanic origin.

    P12 has 49 lines: the total, and by sex a total and 23 age groups; PCT12 has 209: the same with 103 ages, single
    years below 100, then 100 to 104, 105 to 109, and 110 or more. P12A to P12F count people of one race each, P12G
    people of two or more, P12H people of Hispanic origin, P12I people who are White alone and not Hispanic. PCT12A to
    PCT12H are like these, and PCT12I to PCT12O count those who are not Hispanic, of one race each and of two or more.
    Raises `InvalidInputError` or `InputTypeError` for another number of `ages`.
    Source: "2010 Census Summary File 1", technical documentation, 2012; P12 and PCT12 are also in the "Demographic and
    Housing Characteristics File" of 2020.

    Parameters
    ----------
    iterations : bool
        Whether the tables by race and Hispanic origin are asked for too. Cells are then sex (male, female) x age x
        hispanic x race, with the 63 races of `census_redistricting`; else sex x age.
    single_years : bool
        Whether PCT12 and its iterations are asked for.
    ages : int
        103, the ages of PCT12, or 116, the years from 0 to 115.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.sex_by_age()
    UnionWorkload(52 tables, 3834 queries x 25956 cells)
    >>> asked = dm.workloads.sex_by_age(iterations=False)
    >>> asked.table_names, asked.names[1:3]
    (('P12', 'P12 by age', 'PCT12', 'PCT12 by age'), ('P12 by age: male, total', 'P12 by age: male, under 5 years'))
    """
    validate.boolean(single_years=single_years)
    sizes = {"sex": 2, "age": len(_first_years(ages))}
    if validate.boolean(iterations=iterations):
        sizes |= {"hispanic": 2, "race": len(RACE_SETS)}
    return union(sizes, _sexes_by_age(ages, iterations, single_years))


def census_tables(ages: int = 103) -> UnionWorkload:
    """Ask the redistricting tables and all of sex by age together: 4132 lines.

    Cells are sex x age x hispanic x race x quarters; the voting age is at 18 years. See `census_redistricting` and
    `sex_by_age`.
    Raises `InvalidInputError` or `InputTypeError` for a number of `ages` other than 103 and 116.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.workloads.census_tables()
    UnionWorkload(59 tables, 4132 queries x 207648 cells)
    """
    first = _first_years(ages)
    sizes = {"sex": 2, "age": len(first), "hispanic": 2, "race": len(RACE_SETS), "quarters": len(_quarters())}
    grown = _group_counts(len(first), {f"{ADULT_AGE} or over": np.flatnonzero(first >= ADULT_AGE)})
    return union(sizes, _redistricting_tables("age", grown) | _sexes_by_age(ages, True, True))


def per_table(workload: UnionWorkload, numbers: Mapping[str, float]) -> dict[str, float]:
    """Return one number for every part of a table, from one per published table.

    ``P12A`` stands for that table, ``P12`` for it and for its iterations that are not named themselves; a part such as
    ``P2 by race`` may have a number of its own.

    Raises
    ------
    InvalidInputError, InputTypeError
        A name that belongs to no table, or a table without a number. What the numbers may be, a problem says.

    Examples
    --------
    >>> import dualmech as dm
    >>> asked = dm.workloads.sex_by_age(iterations=False)
    >>> dm.census.per_table(asked, {"P12": 1.0, "PCT12": 25.0})
    {'P12': 1.0, 'P12 by age': 1.0, 'PCT12': 25.0, 'PCT12 by age': 25.0}
    """
    validate.instance(UnionWorkload, workload=workload)
    validate.mapping("tables to numbers", numbers=numbers)
    table_codes = {name: (name, *published(name)) for name in workload.table_names}
    for key in numbers:
        if not any(key in value for value in table_codes.values()):
            raise InvalidInputError(f"numbers must name published tables of the workload, {key!r} is not one")
    values = {}
    for name, names in table_codes.items():
        if not (held := [numbers[name] for name in names if name in numbers]):
            raise InvalidInputError(f"numbers must name every published table, {names[1]!r} is not")
        values[name] = held[0]
    return values


def published(name: str) -> tuple[str, str]:
    """Return the published table that a part belongs to, and the one that this is an iteration of, or itself.

    Names that are not those of the census, letters and a number, are their own.

    Examples
    --------
    >>> from dualmech.workloads.census import published
    >>> published("PCT12A by age"), published("P1")
    (('PCT12A', 'PCT12'), ('P1', 'P1'))
    >>> published("ages by sex")
    ('ages by sex', 'ages by sex')
    """
    table = validate.text(name=name).partition(" ")[0]
    if not NUMBERED.fullmatch(table):
        return name, name
    return table, table.rstrip(string.ascii_uppercase)


def _redistricting_tables(age: str, adults: Workload) -> Tables:
    races = _race_lines()
    origin = _group_counts(2, {"total": [0, 1], "Hispanic or Latino": [1]})
    other = _group_counts(2, {"not Hispanic or Latino": [0]})
    return {
        "P1": {"race": races},
        "P2": {"hispanic": origin},
        "P2 by race": {"hispanic": other, "race": races},
        "P3": {age: adults, "race": races},
        "P4": {age: adults, "hispanic": origin},
        "P4 by race": {age: adults, "hispanic": other, "race": races},
        "P5": {"quarters": _quarter_lines()},
    }


def _sexes_by_age(ages: int, iterations: bool, single_years: bool) -> Tables:
    everybody, sexes = _group_counts(2, {"total": [0, 1]}), _group_counts(2, {"male": [0], "female": [1]})
    people: dict[str, dict[str, Workload]] = {"": {}} | (_iterations() if iterations else {})
    kinds = [("P12", AGE_GROUPS, [*people][:10])] + ([("PCT12", SINGLE_YEARS, [*people])] if single_years else [])
    tables: Tables = {}
    for table, groups, letters in kinds:
        lines = _age_lines(_first_years(ages), groups)
        for letter in letters:
            tables[f"{table}{letter}"] = {"sex": everybody, **people[letter]}
            tables[f"{table}{letter} by age"] = {"sex": sexes, "age": lines, **people[letter]}
    return tables


def _iterations() -> dict[str, dict[str, Workload]]:
    """Return whom the tables count that have a letter: A to G by race, H Hispanics, I to O others by race."""
    singles = {f"{race} alone": [code] for code, race in enumerate(RACES)}
    races = singles | {"two or more races": range(len(RACES), len(RACE_SETS))}
    lines = [_group_counts(len(RACE_SETS), {name: codes}) for name, codes in races.items()]
    hispanic, other = (_group_counts(2, {"Hispanic or Latino": [1]}), _group_counts(2, {"not Hispanic or Latino": [0]}))
    people: list[dict[str, Workload]] = [{"race": line} for line in lines]
    people += [{"hispanic": hispanic}, *({"hispanic": other, "race": line} for line in lines)]
    return dict(zip(string.ascii_uppercase, people, strict=False))


def _race_lines() -> Workload:
    counts = np.array([len(race_set) for race_set in RACE_SETS])
    lines: dict[str, Iterable[int]] = {"total": range(len(counts)), "one race": np.flatnonzero(counts == 1)}
    lines |= {race: [code] for code, race in enumerate(RACES)}
    lines["two or more races"] = np.flatnonzero(counts > 1)
    for several, number in enumerate(NUMBERS, start=2):
        codes = [code for code, race_set in enumerate(RACE_SETS) if len(race_set) == several]
        lines[f"{number} races"] = codes
        lines |= {" + ".join(RACE_SETS[code]): [code] for code in codes}
    return _group_counts(len(counts), lines)


def _quarters() -> tuple[str, ...]:
    return ("household", *INSTITUTIONS, *NONINSTITUTIONS)


def _quarter_lines() -> Workload:
    codes = {name: code for code, name in enumerate(_quarters())}
    lines: dict[str, Iterable[int]] = {"total": [*codes.values()][1:]}
    for kind, names in (("institutional", INSTITUTIONS), ("noninstitutional", NONINSTITUTIONS)):
        lines[kind] = [codes[name] for name in names]
        lines |= {name: [codes[name]] for name in names}
    return _group_counts(len(codes), lines)


def _first_years(ages: int) -> Index:
    """Return the first year of each value of age."""
    count = validate.size(ages=ages)
    if count not in (len(SINGLE_YEARS), OLDEST + 1):
        raise InvalidInputError(f"ages must be {len(SINGLE_YEARS)} or {OLDEST + 1}, got {count}")
    return np.array(SINGLE_YEARS) if count == len(SINGLE_YEARS) else np.arange(count)


def _age_lines(years: Index, groups: tuple[int, ...]) -> Workload:
    lines: dict[str, Iterable[int]] = {"total": range(len(years))}
    for first, after in zip(groups, (*groups[1:], None), strict=True):
        lines[_age_name(first, after)] = np.flatnonzero((years >= first) & (years < (after or np.inf)))
    return _group_counts(len(years), lines)


def _age_name(first: int, after: int | None) -> str:
    """Return how the tables call an age group that ends before another, or does not."""
    if after is None:
        return f"{first} years and over"
    if first == 0:
        return f"under {after} year{'s' if after > 1 else ''}"
    if after == first + 1:
        return f"{first} year{'s' if first > 1 else ''}"
    return f"{first} {'and' if after == first + 2 else 'to'} {after - 1} years"


def _group_counts(size: int, lines: Mapping[str, Iterable[int]]) -> Workload:
    """Return a query set of counts of the values listed under each name."""
    groups = [[*values] for values in lines.values()]
    entries = np.ones(sum(map(len, groups))), np.concatenate(groups), np.cumsum([0, *map(len, groups)])
    return Workload(sp.csr_array(entries, shape=(len(lines), size)), [*lines])
