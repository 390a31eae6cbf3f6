"""The command line's names of workloads: what they build, and how a mistake in one is answered."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from dualmech import workloads
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.workloads import names


def test_builds() -> None:
    for text, expected in (
        ("identity:4", lambda: workloads.identity(4)),
        ("total:4", lambda: workloads.total(4)),
        ("identity_total:10", lambda: workloads.identity_total(10)),
        (" prefix:64 ", lambda: workloads.prefix(64)),
        ("cdf:6", lambda: workloads.cdf(6)),
        ("all_range:16", lambda: workloads.all_range(16)),
        ("random_range:16,32,0", lambda: workloads.random_range(16, 32, 0)),
        ("range_marginals:2x3x4:1,2", lambda: workloads.range_marginals([2, 3, 4], ways=(1, 2))),
        ("random_marginals:2x3x4,3,7", lambda: workloads.random_marginals([2, 3, 4], 3, 7)),
        ("predicates:6,12,0,0.1", lambda: workloads.predicates(6, 12, 0, 0.1)),
        ("marginals:2x2x63:1,2", lambda: workloads.marginals([2, 2, 63], ways=(1, 2))),
        ("marginals:5:0", lambda: workloads.marginals([5], ways=0)),
        ("parity:4:0, 2", lambda: workloads.parity(4, order=(0, 2))),
        ("circular_ranges:5:2, 3", lambda: workloads.circular_ranges(5, lengths=(2, 3))),
        ("differences:4", lambda: workloads.differences(4)),
        ("affine:7:0,1,3", lambda: workloads.affine(7, [0, 1, 3])),
        ("pl94", workloads.pl94),
        ("census_redistricting", workloads.census_redistricting),
        ("sex_by_age:0, 0, 116", lambda: workloads.sex_by_age(False, False, 116)),
        ("age_pyramid", workloads.age_pyramid),
        ("age_pyramid:20, 0", lambda: workloads.age_pyramid(20, adults=False)),
        ("random_signs:6,12,0,0.7", lambda: workloads.random_signs(6, 12, 0, 0.7)),
        ("related:8,4,2,5", lambda: workloads.related(8, 4, 2, 5)),
        ("random_range:4x2x3, 5, 0", lambda: workloads.random_range([4, 2, 3], 5, 0)),
        ("predicates:6,12,0", lambda: workloads.predicates(6, 12, 0)),
        ("parity:3", lambda: workloads.parity(3)),
        ("circular_ranges:5", lambda: workloads.circular_ranges(5)),
        ("sex_by_age:0", lambda: workloads.sex_by_age(iterations=False)),
        ("age_pyramid:20", lambda: workloads.age_pyramid(20)),
        ("random_signs:6,12,0", lambda: workloads.random_signs(6, 12, 0)),
    ):
        built, other = names.builtin_workload(text), expected()
        np.testing.assert_array_equal(built.dense(), other.dense())
        assert (built.names, built.groups, built.domain) == (other.names, other.groups, other.domain)
        assert names.is_named(text)


def test_every_builder_has_a_name() -> None:
    builders = {name for name in dir(workloads) if inspect.isfunction(getattr(workloads, name))}
    of_others = {"stack", "permuted", "kron", "query_tables", "circular", "union"} | {
        name for name in builders if name.endswith("_gram")
    }
    assert set(names.BUILT_IN) == builders - of_others
    assert all(usage.startswith(name) for name, usage in zip(names.BUILT_IN, names.usages(), strict=True))


def test_unknown_names_list_the_known() -> None:
    for text in ("", "prefixes:3", "stack:1", "Prefix:3", ":3", "mine.csv"):
        with pytest.raises(InvalidInputError, match=r"unknown workload .*prefix:D.*pl94"):
            names.builtin_workload(text)
        assert not names.is_named(text)
    with pytest.raises(InputTypeError, match="int"):
        names.builtin_workload(64)  # type: ignore[arg-type]


MALFORMED = """
prefix|prefix:|prefix:x|prefix:1,2|prefix:-1|prefix:1_0|prefix:1.0|prefix:٣|prefix:9999999999999999999999999999999999999999
pl94:|pl94:1|marginals:2x2|marginals:2x2:|marginals:2,2:1|marginals:2x2:1:2|range_marginals:2x2,1|random_marginals:2x2:1:0
parity|parity:3,1|parity:3:|random_range:4,4|random_range:4x,4,0|predicates:4,4|random_signs:4,4,0,half|age_pyramid:20,2
related:4,4,2|circular_ranges:24,6|affine:7|census_redistricting:1|sex_by_age:2
"""


@pytest.mark.parametrize("text", MALFORMED.replace("|", "\n").split())
def test_malformed_parameters_show_the_usage(text: str) -> None:
    with pytest.raises(InvalidInputError, match="must be written " + text.partition(":")[0]):
        names.builtin_workload(text)


REFUSED = """
prefix:0|marginals:2x0:1|marginals:2x2:3|parity:3:4|parity:25|related:4,4,5,0|circular_ranges:4:5|differences:1|affine:7:7
census_tables:100|age_pyramid:18|prefix:9999999|decayed_sums:3,2|random_signs:2,2,0,nan
"""


@pytest.mark.parametrize("text", REFUSED.replace("|", "\n").split())
def test_builders_still_refuse(text: str) -> None:
    with pytest.raises(InvalidInputError):
        names.builtin_workload(text)
