"""Persons with records in several groups, and records replaced within one: their costs against every difference."""

import itertools
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, reference
from dualmech.neighbours import Contributions, Relation, ReplaceWithin, canonical
from dualmech.publishing.tables import DrawnTables

SMALL = dm.Domain({"month": 4, "age": 3, "area": 5})
PAIRS = dm.workloads.marginals(SMALL, ways=(1, 2))
CLASSES = dm.workloads.union(
    {"month": 4, "age": 4, "sex": 2},
    {
        "ages": {"age": dm.workloads.prefix(4)},
        "quarters": {"month": dm.Workload([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0]]), "age": None},
        "sexes": ["month", "sex"],
    },
)
CIRCLES = dm.workloads.union({"hour": 5, "sex": 2}, {"runs": {"hour": dm.workloads.circular_ranges(5), "sex": None}})
MANY = dm.workloads.marginals([12] + [2] * 16, ways=1)

domains = (
    st.lists(st.integers(1, 4), min_size=1, max_size=3)
    .filter(lambda sizes: np.prod(sizes) <= 24)
    .map(lambda sizes: dm.Domain({f"a{place}": size for place, size in enumerate(sizes)}))
)


def most_in_months(cost: Any, domain: dm.Domain, axis: int, records: int, groups: int) -> float:
    """Return the largest cost of a person, by all cells that she can be in."""
    values, largest = domain.codes()[axis], 0.0
    cells_of = [np.flatnonzero(values == value).tolist() for value in range(domain.shape[axis])]
    for count in range(1, min(groups, domain.shape[axis]) + 1):
        for several in itertools.combinations(cells_of, count):
            for cells in itertools.product(*several):
                largest = max(largest, records**2 * float(cost[np.ix_(cells, cells)].sum()))
    return largest


@given(domains, st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_no_person_costs_more_on_marginal_tables(domain: dm.Domain, records: int, groups: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    axis = int(generator.integers(len(domain.names)))
    sets = [
        axes
        for count in range(len(domain.names) + 1)
        for axes in itertools.combinations(range(len(domain.names)), count)
        if generator.random() < 0.7 and all(domain.shape[each] > 1 for each in axes)
    ]
    assume(sets)
    levels = dict(zip(sets, 10.0 ** generator.uniform(-2, 2, len(sets)), strict=True))
    rule = f"contributions:a{axis}:{records}:{groups}"
    plain = dm.BlockMechanism.of_levels(domain, levels).dense()
    cost = plain.query_matrix.T @ np.linalg.solve(plain.covariance(dm.Workload(plain.query_matrix)), plain.query_matrix)
    try:
        found = dm.BlockMechanism.of_levels(domain, levels, rule)
    except dm.errors.GeometryError as error:
        bounds = re.findall(r"'((?:contributions|add-remove)[^']*)'", str(error))
        assert len(bounds) == 2
        exact = most_in_months(cost, domain, axis, records, groups)
        for bound in bounds:
            assert dm.BlockMechanism.of_levels(domain, levels, bound).squared_privacy_cost >= exact * (1 - 1e-9)
        return
    exact = found.dense().squared_privacy_cost
    assert found.squared_privacy_cost == pytest.approx(exact, rel=1e-9)
    assert most_in_months(cost, domain, axis, records, groups) == pytest.approx(exact, rel=1e-9)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_a_rule_bounds_another_exactly_where_theorem_3a_says(k: int, few: int, more: int, m: int, seed: int) -> None:
    """``K ≥ k max(1, l/m)``: then whatever the noise, in whole numbers; else of one of two it costs less."""
    domain = dm.Domain({"group": 3, "sex": 2})
    factor = np.random.default_rng(seed).integers(-3, 4, (3, 6))
    costs = [factor.T @ factor, np.outer(np.eye(6)[0], np.eye(6)[0]), np.ones((6, 6))]
    bounded = [most_in_months(cost, domain, 0, more, m) >= most_in_months(cost, domain, 0, k, few) for cost in costs]
    assert bounded[0] or more * m < k * few or more < k
    assert all(bounded[1:]) == (more >= k and more * m >= k * few)


@pytest.mark.parametrize("neighbours", ["contributions:month:2:1", "contributions:age:1:2", "contributions:sex:3:9"])
def test_of_tables_with_classes_two_groups_are_exact(neighbours: str) -> None:
    problem = dm.FitnessForUse(CLASSES, neighbours=neighbours, geometry="blocks")
    assert problem.geometry.matrix_blocks
    mechanism = fast.solve(problem, tol=1e-2).mechanism
    assert mechanism.squared_privacy_cost == pytest.approx(mechanism.dense().squared_privacy_cost, rel=1e-9)


@pytest.mark.parametrize("family", [dm.FitnessForUse, dm.TotalVariance])
@pytest.mark.parametrize(
    ("workload", "neighbours"), [(PAIRS, "contributions:month:2:3"), (CLASSES, "contributions:month:1:2")]
)
def test_optima_are_those_of_the_matrix(family: Any, workload: Any, neighbours: str) -> None:
    blocks, dense = (family(workload, neighbours=neighbours, geometry=each) for each in ("blocks", "dense"))
    assert family(workload, neighbours=neighbours).geometry.name == "blocks"
    intervals = [
        layer.solve(problem, tol=1e-5).certificate.interval
        for layer, problem in ((fast, blocks), (fast, dense), (reference, blocks))
        if layer is fast or workload is PAIRS  # of classes there is a smaller case of conformance
    ]
    assert max(low for low, _ in intervals) <= min(high for _, high in intervals)


@pytest.mark.parametrize("records", [1, 3])
def test_two_months_by_hand(records: int) -> None:
    """With ``1/p`` and ``1/q`` the noise of sum and difference, ``max((p + q)/2, 2p)`` is least where q = 3p = 2."""
    months = dm.workloads.marginals({"month": 2}, ways=1)
    for groups in (2, 12):
        rule = Contributions(records, attribute="month", groups=groups)
        low, high = fast.solve(dm.FitnessForUse(months, neighbours=rule, geometry="blocks")).certificate.interval
        assert low <= records**2 * 4 / 3 <= high


def test_where_months_are_not_asked_for_all_records_may_be_in_one_cell() -> None:
    ages = dm.workloads.marginals(dm.Domain({"month": 12, "age": 9, "sex": 2}), sets=[["age", "sex"]])
    few, many = (
        dm.FitnessForUse(ages, neighbours=each, geometry="blocks")
        for each in ("contributions:month:2:2", "add-remove:4")
    )
    intervals = [fast.solve(each).certificate.interval for each in (few, many)]
    assert max(low for low, _ in intervals) <= min(high for _, high in intervals)


def test_large_domains_lose_less_than_with_records_anywhere() -> None:
    sizes = {"month": 12, **{f"a{place}": 10 for place in range(7)}}
    asked = dm.workloads.marginals(sizes, ways=2)
    own = fast.solve(dm.FitnessForUse(asked, neighbours="contributions:month:1:6"))
    anywhere = fast.solve(dm.FitnessForUse(asked, neighbours="add-remove:6"))
    one = fast.solve(dm.FitnessForUse(asked))
    assert own.status is dm.Status.CERTIFIED and own.problem.geometry.reach.shape[0] == 1 + 5 * 2**7
    assert own.certificate.interval[1] < anywhere.certificate.interval[0]
    assert own.certificate.interval[0] > one.certificate.interval[1]


@pytest.mark.parametrize("asked", [PAIRS, CLASSES], ids=["marginals", "classes"])
def test_drawn_costs_are_those_of_the_matrix(asked: Any) -> None:
    rule = "contributions:month:2:3" if asked is PAIRS else "contributions:month:2:2"
    mechanism: Any = fast.solve(dm.FitnessForUse(asked, neighbours=rule, geometry="blocks"), tol=1e-4).mechanism
    drawn = DrawnTables(mechanism)
    cost = drawn.squared_privacy_cost
    assert isinstance(cost, Fraction) and cost <= Fraction(mechanism.squared_privacy_cost)
    assert float(cost) == pytest.approx(drawn.mechanism.dense().squared_privacy_cost, rel=1e-9)
    # Kind by kind, too: those that do not bind are not seen in the largest.
    assert np.allclose(drawn.costs.astype(float), drawn.mechanism.profile, rtol=1e-9, atol=1e-12)
    planned = dm.plan_release(mechanism)
    assert 2 * planned.rho == cost and planned.neighbours == Relation.of(rule).words


def test_composed_costs_add_up() -> None:
    rule = Contributions(2, attribute="month", groups=2)
    ages, months = (dm.workloads.marginals(SMALL, sets=[each]) for each in (["age"], ["month", "area"]))
    one, two = (
        fast.solve(dm.FitnessForUse(each, neighbours=rule, geometry="blocks"), tol=1e-3).mechanism
        for each in (ages, months)
    )
    both = one.compose(two)
    assert both.neighbours == rule
    assert both.squared_privacy_cost == pytest.approx(both.dense().squared_privacy_cost, rel=1e-9)
    assert both.squared_privacy_cost <= (one.squared_privacy_cost + two.squared_privacy_cost) * (1 + 1e-9)


@pytest.mark.parametrize("asked", [PAIRS, CLASSES], ids=["marginals", "classes"])
def test_files_keep_the_rule(asked: Any, tmp_path: Path) -> None:
    answer = fast.solve(dm.FitnessForUse(asked, neighbours="contributions:month:2:2", geometry="blocks"), tol=1e-3)
    dm.save(answer, tmp_path / "answer.npz")
    dm.save(answer.mechanism, tmp_path / "mechanism.npz")
    again = dm.load(tmp_path / "answer.npz")
    assert again.problem == answer.problem and again.problem.neighbours == answer.problem.neighbours
    mechanism = dm.load(tmp_path / "mechanism.npz")
    assert mechanism.same_as(answer.mechanism)
    assert mechanism.squared_privacy_cost == answer.mechanism.squared_privacy_cost


@given(st.integers(1, 99), st.text(min_size=1), st.integers(1, 99))
def test_words_and_rules_are_the_same(members: int, attribute: str, groups: int) -> None:
    rule = Contributions(members, attribute=attribute, groups=groups)
    assert Relation.of(str(rule)) == rule and rule != Relation(members=members)


@pytest.mark.parametrize(
    "text",
    ["contributions", "contributions:month", "contributions:month:2", "contributions:month:2:0", "contributions::2:2",
     "contributions:month:x:2", "contribution:month:2:2"],
)  # fmt: skip
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(dm.errors.InvalidInputError, match="contributions:ATTRIBUTE:RECORDS:GROUPS"):
        dm.FitnessForUse(PAIRS, neighbours=text)


@pytest.mark.parametrize(
    "given", [{"attribute": ""}, {"attribute": 3}, {"groups": 0}, {"groups": 2.5}, {"members": -1}]
)
def test_other_rules_are_refused(given: Any) -> None:
    with pytest.raises((dm.errors.InvalidInputError, dm.errors.InputTypeError), match=f"{next(iter(given))} must"):
        Contributions(**{"members": 1, "attribute": "month", "groups": 2, **given})


@pytest.mark.parametrize(
    ("workload", "geometry", "neighbours", "told"),
    [
        (PAIRS, "auto", "contributions:moth:1:2", "did you mean month"),
        (dm.workloads.prefix(6), "auto", "contributions:month:1:2", "cells without attributes"),
        (CLASSES, "blocks", "contributions:month:2:3", "'contributions:month:3:2' bounds them.*'add-remove:6'"),
        (PAIRS, "blocks", "contributions:month:2:9", "'age' has 3 values.*'contributions:month:3:3'.*'add-remove:8'"),
        (MANY, "auto", "contributions:a0:1:2", "doubles this number.*'add-remove:2'"),
        (dm.workloads.union({"hour": 9}, {"runs": {"hour": dm.workloads.circular_ranges(9)}}), "blocks",
         "contributions:hour:1:2", "cyclic queries of an attribute.*'add-remove:2'"),
        (dm.workloads.kron(dm.workloads.prefix(3), dm.workloads.prefix(4)), "product", "contributions:a:1:2",
         "must name an attribute"),
        (dm.workloads.query_tables({"month": 3, "age": 4}, {"age": dm.workloads.prefix(4)}, ways=1), "split",
         "contributions:month:1:2", "4 times its squared cost"),
        (dm.workloads.marginals([60, 60], ways=2), "dense", "contributions:a0:1:3", "'add-remove:3' bounds"),
    ],
)  # fmt: skip
def test_what_does_not_hold_them_says_so_with_a_bound(workload: Any, geometry: str, neighbours: str, told: str) -> None:
    with pytest.raises(dm.errors.InvalidInputError, match=told):
        dm.FitnessForUse(workload, neighbours=neighbours, geometry=geometry)


def test_small_domains_take_a_matrix_where_blocks_do_not_hold_them() -> None:
    problem: Any = dm.FitnessForUse(CLASSES, neighbours="contributions:month:1:3")
    assert problem.geometry.name == "dense"
    assert problem.neighbours.shape == (32, 32 + 6 * 64 + 4 * 512)
    weighed: Any = dm.QueryWeighting(PAIRS, PAIRS.dense(), neighbours="contributions:month:1:2")
    assert weighed.neighbours.shape[1] == 60 + 6 * 15**2


def test_more_groups_with_fewer_records_in_each_do_not_bound_a_rule() -> None:
    domain, noise = dm.Domain({"group": 3, "sex": 2}), np.eye(6)
    assert (most_in_months(noise, domain, 0, 2, 1), most_in_months(noise, domain, 0, 1, 2)) == (4.0, 2.0)


class TestReplacedWithin:
    """Kinds of pairs on blocks against every difference of the matrix."""

    @given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 3))
    def test_the_matrix_is_all_pairs_of_one_value(self, sizes: list[int], place: int, members: int) -> None:
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

    @pytest.mark.parametrize(
        "asked", [CLASSES, CIRCLES, dm.workloads.marginals({"hour": 3, "sex": 2}, ways=2)], ids=repr
    )
    @pytest.mark.parametrize("family", [dm.FitnessForUse, dm.TotalVariance])
    def test_optima_are_those_of_the_matrix(self, family: Any, asked: Any) -> None:
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

    def test_two_states_by_hand(self) -> None:
        """Of two sexes in a state the difference alone moves, by 2: noise of variance 1 on each count is 4 on it."""
        asked = dm.workloads.marginals({"state": 3, "sex": 2}, ways=2)
        for geometry in ("blocks", "dense"):
            problem: Any = dm.FitnessForUse(asked, neighbours="replace within state", geometry=geometry)
            low, high = fast.solve(problem).certificate.interval
            assert low <= 1.0 <= high

    @given(st.integers(1, 99), st.text(min_size=1))
    def test_words_and_rules_are_the_same(self, members: int, attribute: str) -> None:
        rule = ReplaceWithin(members, attribute=attribute)
        assert Relation.of(str(rule)) == rule and rule != Relation(True, members)
        assert Relation(True, members).contains(rule) and not rule.contains(Relation(True, members))
        assert Relation(False, 2 * members).contains(rule)

    @pytest.mark.parametrize(
        "text", ["replace within ", "replace:0 within a", "replaced within a", "add-remove within a"]
    )
    def test_other_words_are_refused(self, text: str) -> None:
        with pytest.raises(dm.errors.InvalidInputError, match="neighbours must be"):
            Relation.of(text)

    def test_what_it_is_not_for(self) -> None:
        for asked, geometry, told in (
            (CLASSES, "auto", "must name an attribute of the domain"),
            (dm.workloads.prefix(6), "auto", "cells without attributes"),
            (dm.workloads.kron(dm.workloads.prefix(3), dm.workloads.prefix(4)), "product", "cells without attributes"),
        ):
            with pytest.raises(dm.errors.DualmechError, match=told):
                dm.FitnessForUse(asked, neighbours="replace within moth", geometry=geometry)
