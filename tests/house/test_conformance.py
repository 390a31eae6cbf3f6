"""Every family on every geometry that it has, through all that a user can do with a problem."""

from __future__ import annotations

from functools import cache

import pytest
from conformance import FEW_LIES, LIES, ConformanceCase, conform

from dualmech.crosscheck.families import family_of


@cache
def judged_by(case: ConformanceCase) -> str:
    """Return the geometry of a case's problem, or its family where it has none."""
    problem = case.make()
    return problem.geometry.name if hasattr(problem, "geometry") else family_of(problem).name


def test_conforms(case: ConformanceCase, cases: list[ConformanceCase]) -> None:
    first = next(each for each in cases if judged_by(each) == judged_by(case))
    conform(case, LIES if case is first else FEW_LIES)


@pytest.mark.slow
def test_conforms_to_all_lies(case: ConformanceCase) -> None:
    conform(case, LIES)
