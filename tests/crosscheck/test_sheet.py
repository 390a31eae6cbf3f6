"""Rows of sheets: as good as the worst of their parts, and told by what they hold."""

import pickle

import pytest

from dualmech.crosscheck.agreement import Agreement
from dualmech.crosscheck.sheet import Row


def test_a_row_is_as_good_as_the_worst_of_its_parts() -> None:
    sure, wide, wrong = Row({}, 1e-9), Row({}, 1e-3, certified=False), Row({}, certified=False, sound=False)
    for parts, outcome, gap in (
        ((sure,), Agreement.AGREE, 1e-9),
        ((sure, wide), Agreement.WIDE, 1e-3),
        ((wide, wrong), Agreement.DISAGREE, 1e-3),
    ):
        row = Row({}, parts=parts)
        assert (row.outcome, row.gap) == (outcome, gap)
    assert [Row.compared({}, 0.0, each).outcome for each in Agreement] == list(Agreement)


def test_values_are_told_by_name() -> None:
    row = Row({"size": 4, "ends": (1.0, 2.5)}, 1e-9, certified=False)
    assert row.text("{size}: {ends[1]:.1f}, {gap:.0e}, {verdict}{mark}") == "4: 2.5, 1e-09, wide WIDE"
    assert row.text(lambda each: str(each.size + 1)) == "5"
    assert pickle.loads(pickle.dumps(row)).ends == row.ends
    with pytest.raises(AttributeError, match="cells"):
        _ = row.cells
