"""Chains and adaptive releases of tables: what they are on the cells, block by block, and with tables by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, reference
from dualmech.adaptive.chain import known_tables
from dualmech.mechanisms.frames import TableDecomposition

PEOPLE = {"age": 12, "sex": 2, "region": 3}
FOURS = dm.Workload(np.kron(np.eye(3), np.ones(4)))


def mechanisms() -> list[Any]:
    """Ages in detail and by sex; ages in three groups by region; all of it without ages."""
    asked = [
        dm.workloads.union(PEOPLE, {"ages": {"age": dm.workloads.prefix(12)}, "by sex": ["age", "sex"]}),
        dm.workloads.union(PEOPLE, {"groups": {"age": FOURS, "region": None}}),
        dm.workloads.union(PEOPLE, {"groups": {"age": FOURS, "region": None}, "sexes": ["sex", "region"]}),
    ]
    return [fast.solve(dm.FitnessForUse(each, 25.0)).mechanism for each in asked]


MECHANISMS = mechanisms()
CHAIN = fast.chain(MECHANISMS)
COUNTS = dm.records.count(
    np.random.default_rng(0).integers(0, [12, 2, 3], (300, 3)), dm.workloads.marginals(PEOPLE, ways=3)
)


def silent(mechanism: dm.BlockMechanism, x: object, rng: np.random.Generator) -> object:
    return mechanism.measure(x, sampler=lambda deviation, shape: np.zeros(shape))  # type: ignore[arg-type]


def test_it_is_that_of_the_cells() -> None:
    written = fast.chain([each.dense() for each in MECHANISMS])
    assert CHAIN.certified and CHAIN.of_tables and not written.of_tables
    for ours, theirs in zip(CHAIN.stages, written.stages, strict=True):
        assert ours.known.rank == theirs.known.rank and ours.maximality
        assert ours.known.dense().is_equivalent_to(theirs.known, tol=1e-5)
        for parts in ours.decompositions:
            assert isinstance(parts, TableDecomposition)
            both = parts.common.compose(parts.residual)
            assert both.is_answerable_from(parts.target) and parts.target.is_answerable_from(both, tol=1e-7)
    assert CHAIN.guarantee.rho == pytest.approx(max(each.rho for each in MECHANISMS), rel=1e-9)
    with pytest.raises(dm.errors.InvalidInputError, match="AdaptiveRelease, one by one"):
        CHAIN.simulate(np.zeros((2, 72)), lambda stage, answers: np.zeros(2))


class TestRelease:
    @pytest.mark.parametrize("choice", [0, 1, 2])
    def test_without_noise_every_branch_gives_the_tables(self, choice: int) -> None:
        release = dm.AdaptiveRelease(CHAIN, COUNTS, measure=silent)
        whole = COUNTS[0, 1, 2]
        known = release.advance()
        np.testing.assert_allclose(known["age"], FOURS.matrix @ whole.sum(axis=(1, 2)), atol=1e-6)
        if choice == 2:
            known = release.advance()
            np.testing.assert_allclose(known["groups"], FOURS.matrix @ whole.sum(axis=1), atol=1e-6)
        answer = release.choose(choice)
        expected = {
            "ages": np.cumsum(whole.sum(axis=(1, 2))),
            "by sex": whole.sum(axis=2),
            "groups": FOURS.matrix @ whole.sum(axis=1),
            "sexes": whole.sum(axis=0),
        }
        assert answer.index == release.chosen == choice
        assert [*answer.values] == [table.name for table in MECHANISMS[choice].workload.tables]
        for name, values in answer.values.items():
            np.testing.assert_allclose(values, expected[name], atol=1e-6)

    def test_the_answer_has_the_accuracy_of_the_mechanism(self) -> None:
        rng, errors = np.random.default_rng(3), []
        truth = FOURS.matrix @ COUNTS[0, 1, 2].sum(axis=1)
        for _ in range(120):
            release = dm.AdaptiveRelease(CHAIN, COUNTS, rng=rng)
            release.advance()
            errors.append(release.choose(1).values["groups"] - truth)
        spread = np.var(errors, axis=0) / MECHANISMS[1].variances("groups") - 1
        assert np.abs(spread).max() < 5.5 * np.sqrt(2 / 120)  # nine variances, each to its own error

    def test_rules_see_tables_and_other_data_are_refused(self) -> None:
        seen = []

        def rule(stage: int, answers: dict[str, np.ndarray]) -> int:
            seen.append([*answers])
            return dm.decisions.GO_ON if stage == 0 else 2

        answer = dm.AdaptiveRelease(CHAIN, COUNTS, rng=0).run(rule)
        assert answer is not None and answer.index == 2 and seen == [["age"], ["groups"]]
        with pytest.raises(dm.errors.InputTypeError, match="x must"):
            dm.AdaptiveRelease(CHAIN, [1.0, 2.0])

    def test_order_is_kept(self) -> None:
        release = dm.AdaptiveRelease(CHAIN, COUNTS, rng=0)
        with pytest.raises(dm.errors.ReleaseOrderError, match="advance before choosing"):
            release.choose(0)
        release.advance()
        assert [*release.stop()] == ["age"]
        with pytest.raises(dm.errors.ReleaseOrderError, match="stopped"):
            release.advance()


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_known_tables_are_the_largest_that_are_answered(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ["a", "b", "c", "d"]
    sets = [
        [tuple(sorted(rng.choice(names, int(rng.integers(1, 4)), replace=False))) for _ in range(2)] for _ in range(2)
    ]
    domain = dm.Domain(dict.fromkeys(names, 3))
    pair = [dm.BlockMechanism.of_tables(dm.workloads.marginals(domain, sets=[*{*each}])) for each in sets]
    shown = known_tables(fast.chain(pair).stages[0].known)
    shared = {tuple(sorted({*one} & {*two})) for one in sets[0] for two in sets[1]}
    largest = {each for each in shared if not any({*each} < {*other} for other in shared)}
    assert shown is not None
    assert {tuple(domain.names[axis] for axis in table.axes) for table in shown.tables} == largest


class TestChain:
    def test_both_layers_agree(self) -> None:
        same = reference.chain(MECHANISMS[:2], backend="CLARABEL")
        ours = fast.chain(MECHANISMS[:2])
        assert same.certified and same.stages[0].solution.objective == pytest.approx(
            ours.stages[0].solution.objective, rel=1e-5
        )
