"""Parities, built a second way: by counting the ones of every cell among the attributes in a query's name."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmech import workloads
from dualmech.errors import InputTypeError, InvalidInputError

quick = settings(max_examples=24)


@quick
@given(st.integers(1, 6), st.data())
def test_counts_even_less_odd(attributes: int, data: st.DataObject) -> None:
    sizes = st.lists(st.integers(0, attributes), min_size=1, max_size=attributes + 1, unique=True)
    order = data.draw(st.one_of(st.none(), st.integers(0, attributes), sizes))
    workload = workloads.parity(attributes, order)
    cells = list(itertools.product((0, 1), repeat=attributes))
    wanted = range(attributes + 1) if order is None else [order] if isinstance(order, int) else order
    assert workload.shape == (sum(math.comb(attributes, size) for size in wanted), len(cells))
    assert len(set(workload.names)) == len(workload.names)
    for row, name, group in zip(workload.dense(), workload.names, workload.groups, strict=True):
        chosen = [int(digits) for digits in re.findall(r"a(\d+)", name)]
        assert group == f"order {len(chosen)}" and (name == "total") == (not chosen)
        np.testing.assert_array_equal(
            row, [(-1.0) ** sum(cell[axis] for axis in chosen) for cell in cells], err_msg=name
        )


def test_are_a_hadamard_matrix_and_span_marginals() -> None:
    everything = workloads.parity(5)
    np.testing.assert_array_equal(everything.gram(), 32 * np.eye(32))
    rows = {tuple(row) for row in scipy.linalg.hadamard(32)}
    assert {tuple(row) for row in everything.dense()} == rows
    assert everything.domain is not None and everything.domain.shape == (2,) * 5
    # Parities of at most k attributes span what all marginals on k of them do.
    parities, tables = workloads.parity(4, (0, 1, 2)).dense(), workloads.marginals([2] * 4, ways=2).dense()
    assert np.linalg.matrix_rank(np.vstack([parities, tables])) == len(parities) == 11


def test_refuses() -> None:
    for attributes, order, said in (
        (0, None, "attributes"),
        (25, 1, "attributes must be at most 24"),
        (24, None, "too large for a dense matrix"),
        (3, 4, "order must be an integer from 0 to 3"),
        (3, -1, "order must be an integer"),
        (3, (1, 1), "distinct"),
        (3, (), "one or more"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            workloads.parity(attributes, order)


@pytest.mark.parametrize(("attributes", "order"), [(True, None), (2.0, None), (3, 1.5), (3, "1"), (3, [True])])
def test_refuses_what_is_no_number(attributes: object, order: object) -> None:
    with pytest.raises(InputTypeError, match="attributes" if order is None else "order"):
        workloads.parity(attributes, order)  # type: ignore[arg-type]
