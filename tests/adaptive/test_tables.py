"""Chains of mechanisms of tables: what they are on the cells, block by block, and with tables by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, reference
from dualmech.mechanisms.frames import TableDecomposition
from dualmech.publishing.release import answered_tables

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


def silent(mechanism: dm.BlockMechanism) -> Any:
    return mechanism.measure(COUNTS, sampler=lambda deviation, shape: np.zeros(shape))


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
    with pytest.raises(dm.errors.InvalidInputError, match="blocks need mechanisms on cells"):
        CHAIN.simulate(np.zeros((2, 72)), lambda stage, answers: np.zeros(2))


@pytest.mark.parametrize("choice", [0, 1, 2])
def test_without_noise_every_branch_gives_the_tables(choice: int) -> None:
    whole, stages = COUNTS[0, 1, 2], CHAIN.stages[: 2 if choice == 2 else 1]
    answers: Any = {}
    for stage in stages:
        answers = stage.step.combine(answers, silent(stage.increment))
    parts = stages[-1].decomposition(choice)
    values = parts.combine(answers, silent(parts.residual))
    expected = {
        "ages": np.cumsum(whole.sum(axis=(1, 2))),
        "by sex": whole.sum(axis=2),
        "groups": FOURS.matrix @ whole.sum(axis=1),
        "sexes": whole.sum(axis=0),
    }
    for table in MECHANISMS[choice].workload.tables:
        np.testing.assert_allclose(parts.target.recombine(values, table.name), expected[table.name], atol=1e-6)


def test_the_answer_has_the_accuracy_of_the_mechanism() -> None:
    rng, stage = np.random.default_rng(3), CHAIN.stages[0]
    truth, parts = FOURS.matrix @ COUNTS[0, 1, 2].sum(axis=1), stage.decomposition(1)
    errors = []
    for _ in range(120):
        answers = stage.step.combine({}, stage.increment.measure(COUNTS, rng))
        values = parts.combine(answers, parts.residual.measure(COUNTS, rng))
        errors.append(parts.target.recombine(values, "groups") - truth)
    spread = np.var(errors, axis=0) / MECHANISMS[1].variances("groups") - 1
    assert np.abs(spread).max() < 5.5 * np.sqrt(2 / 120)  # nine variances, each to its own error


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_tables_by_name_are_the_largest_that_are_answered(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ["a", "b", "c", "d"]
    sets = [
        [tuple(sorted(rng.choice(names, int(rng.integers(1, 4)), replace=False))) for _ in range(2)] for _ in range(2)
    ]
    domain = dm.Domain(dict.fromkeys(names, 3))
    pair = [dm.BlockMechanism.of_tables(dm.workloads.marginals(domain, sets=[*{*each}])) for each in sets]
    shown = answered_tables(fast.chain(pair).stages[0].known)
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
