"""Every family on every geometry that it has, through all that a user can do with a problem."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from conformance import CHECKS, ConformanceCase, Run

from dualmech.crosscheck.families import FAMILIES, family_of

run_of = cache(Run)


def test_every_family_is_here(cases: list[ConformanceCase]) -> None:
    assert {family_of(case.make()).name for case in cases} == {family.name for family in FAMILIES}


@pytest.mark.parametrize("check", CHECKS.values(), ids=[*CHECKS])
def test_conforms(case: ConformanceCase, check: Callable[[Run], None]) -> None:
    check(run_of(case))
