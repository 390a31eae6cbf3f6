"""What Python users expect of a list of queries: numbers, slices, products, comparison."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import workloads

KINDS: dict[str, dm.Workload] = {
    "dense": workloads.prefix(4),
    "sparse": workloads.marginals({"age": 2, "sex": 2}, ways=(1, 2)).select(range(6)),
    "marginals": workloads.marginals({"age": 2, "sex": 2}, ways=(1, 2)),
    "union": workloads.union({"age": 4}, {"ages": {"age": workloads.prefix(4)}}),
    "circle": workloads.circular_ranges(4),
    "product": workloads.kron(workloads.prefix(2), workloads.identity(2)),
    "tables": workloads.query_tables({"age": 2, "sex": 2}, {"age": workloads.prefix(2)}, ways=1),
}


@pytest.fixture(params=KINDS)
def asked(request: pytest.FixtureRequest) -> dm.Workload:
    return KINDS[request.param]


def test_answers_are_a_product(asked: dm.Workload) -> None:
    x = np.arange(1.0, 5.0)
    np.testing.assert_allclose(asked @ x, asked.dense() @ x)
    np.testing.assert_allclose(asked @ np.eye(4), asked.dense(), atol=1e-15)
    np.testing.assert_array_equal(np.asarray(asked), asked.dense())
    with pytest.raises(dm.errors.InvalidInputError, match="x must have 4 entries"):
        asked @ np.ones(3)


def test_queries_are_numbered_and_sliced(asked: dm.Workload) -> None:
    count = len(asked)
    for chosen in (0, -1, slice(1, 3), slice(None, None, 2), [1, 0], np.arange(count) == 1):
        found = asked[chosen]
        rows = np.atleast_1d(np.arange(count)[chosen])
        np.testing.assert_array_equal(found.dense(), asked.dense()[rows])
        assert found.names == tuple(asked.names[row] for row in rows)
    assert [each.names for each in asked] == [(name,) for name in asked.names]
    for wrong in (count, "a", 1.5, [count]):
        given: Any = wrong
        with pytest.raises(dm.errors.InvalidInputError, match="queries must be numbers from 0"):
            asked[given]


def test_equal_content_is_equal(asked: dm.Workload) -> None:
    for again in (copy.copy(asked), copy.deepcopy(asked), pickle.loads(pickle.dumps(asked)), asked[:]):
        assert again == asked and hash(again) == hash(asked)
    assert asked != dm.Workload(2 * asked.dense()) and asked != dm.Workload(asked.dense()[:-1])
    assert asked != "workload" and len({asked, copy.deepcopy(asked)}) == 1


def test_a_notebook_shows_a_table(asked: dm.Workload) -> None:
    assert "<table>" in asked._repr_html_() and "queries" in asked._repr_html_()


def test_texts_of_users_are_escaped() -> None:
    asked = dm.Workload(np.eye(2), domain=dm.Domain({"<b>": 2}))
    assert "<b>" not in asked._repr_html_() and "&lt;b&gt;" in asked._repr_html_()
