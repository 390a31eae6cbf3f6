"""Records that are replaced within an attribute: kinds of pairs on blocks against every difference of the matrix."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, reference
from dualmech.neighbours import Relation, ReplaceWithin, canonical

CLASSES = dm.workloads.union(
    {"month": 4, "age": 4, "sex": 2},
    {
        "ages": {"age": dm.workloads.prefix(4)},
        "quarters": {"month": dm.Workload([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0]]), "age": None},
        "sexes": ["month", "sex"],
    },
)
CIRCLES = dm.workloads.union({"hour": 5, "sex": 2}, {"runs": {"hour": dm.workloads.circular_ranges(5), "sex": None}})


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 3))
def test_the_matrix_is_all_pairs_of_one_value(sizes: list[int], place: int, members: int) -> None:
    assume(place < len(sizes) and np.prod(sizes) <= 48)
    domain = dm.Domain({f"a{axis}": size for axis, size in enumerate(sizes)})
    rule, values = ReplaceWithin(members, attribute=f"a{place}"), domain.codes()[place]
    cells = domain.cells
    pairs = [(u, v) for u in range(cells) for v in range(u + 1, cells) if values[u] == values[v]]
    assert rule.columns(cells, domain) == len(pairs)
    if not pairs:
        with pytest.raises(dm.errors.InvalidInputError, match="two cells or more in one group"):
            rule.matrix(cells, domain)
        return
    written: Any = rule.matrix(cells, domain)
    moves = written.toarray()
    found = {(int(np.argmax(column)), int(np.argmin(column))) for column in moves.T}
    assert found == {*pairs} and np.abs(moves).max() == members
    counts = (values == np.arange(sizes[place])[:, None]).astype(float)
    assert not np.any(counts @ moves)
    assert canonical(moves, domain=domain) == (f"replace:{members}" if sizes[place] == 1 else str(rule))


@pytest.mark.parametrize("asked", [CLASSES, CIRCLES, dm.workloads.marginals({"hour": 3, "sex": 2}, ways=2)], ids=repr)
@pytest.mark.parametrize("family", [dm.FitnessForUse, dm.TotalVariance])
def test_optima_are_those_of_the_matrix(family: Any, asked: Any) -> None:
    for attribute in asked.domain.names:
        rule = f"replace within {attribute}"
        blocks, dense = (family(asked, neighbours=rule, geometry=each) for each in ("blocks", "dense"))
        pairs = (
            (fast, blocks),
            (fast, dense),
            *(() if asked is CLASSES else ((reference, blocks),)),
        )
        answers = [layer.solve(each, tol=1e-4) for layer, each in pairs]
        intervals = [each.certificate.interval for each in answers]
        assert max(low for low, _ in intervals) <= min(high for _, high in intervals)
        mechanism = answers[0].mechanism
        assert mechanism.squared_privacy_cost == pytest.approx(mechanism.dense().squared_privacy_cost, rel=1e-9)
        free = fast.solve(family(asked, neighbours="replace", geometry="blocks"), tol=1e-4).certificate.interval
        assert intervals[0][0] <= free[1]  # who may change less costs no more


def test_two_states_by_hand() -> None:
    """Of two sexes in a state the difference alone moves, by 2: noise of variance 1 on each count is 4 on it."""
    asked = dm.workloads.marginals({"state": 3, "sex": 2}, ways=2)
    for geometry in ("blocks", "dense"):
        problem: Any = dm.FitnessForUse(asked, neighbours="replace within state", geometry=geometry)
        low, high = fast.solve(problem).certificate.interval
        assert low <= 1.0 <= high


@given(st.integers(1, 99), st.text(min_size=1))
def test_words_and_rules_are_the_same(members: int, attribute: str) -> None:
    rule = ReplaceWithin(members, attribute=attribute)
    assert Relation.of(str(rule)) == rule and rule != Relation(True, members)
    assert Relation(True, members).contains(rule) and not rule.contains(Relation(True, members))
    assert Relation(False, 2 * members).contains(rule)


@pytest.mark.parametrize("text", ["replace within ", "replace:0 within a", "replaced within a", "add-remove within a"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(dm.errors.InvalidInputError, match="neighbours must be"):
        Relation.of(text)


def test_what_it_is_not_for() -> None:
    for asked, geometry, told in (
        (CLASSES, "auto", "must name an attribute of the domain"),
        (dm.workloads.prefix(6), "auto", "cells without attributes"),
        (dm.workloads.kron(dm.workloads.prefix(3), dm.workloads.prefix(4)), "product", "cells without attributes"),
    ):
        with pytest.raises(dm.errors.DualmechError, match=told):
            dm.FitnessForUse(asked, neighbours="replace within moth", geometry=geometry)
