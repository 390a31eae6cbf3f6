"""Programs over blocks: what they state, whoever is a neighbour, is the problem that is judged."""

from typing import Any

import numpy as np
import pytest

import dualmech as dm
from dualmech import crosscheck, fast, reference
from dualmech.crosscheck.agreement import Agreement

AGES = {"age": dm.workloads.prefix(4), "sex": None}
GROUPS = {"age": dm.Workload(np.repeat(np.eye(2), 2, axis=1)), "sex": None}
WORKLOADS = {
    "marginals": dm.workloads.marginals({"age": 3, "sex": 2}, ways=(0, 1, 2)),
    "circle": dm.workloads.circular_ranges(5),
    "ages": dm.workloads.union({"age": 4, "sex": 2}, {"ages": AGES, "sexes": ["sex"]}),
    "groups": dm.workloads.union({"age": 4, "sex": 3}, {"groups": GROUPS, "ages": ["age"]}),
    "total": dm.workloads.union({"age": 4}, {"all": {"age": dm.workloads.total(4)}, "ages": ["age"]}),
}
KINDS = (dm.FitnessForUse, dm.TotalVariance)


@pytest.mark.parametrize(("kind", "relation"), [(0, "add-remove:3"), (1, "replace")])
@pytest.mark.parametrize("name", WORKLOADS)
def test_statements_and_answers_agree_with_the_judge(name: str, kind: int, relation: str) -> None:
    family: Any = KINDS[(kind + list(WORKLOADS).index(name)) % 2]  # each rule with both families, in turn
    problem = family(WORKLOADS[name], 2.0, geometry="blocks", neighbours=relation)
    best = fast.solve(problem, tol=1e-6)
    for formulation in reference.blocks.FORMULATION_NAMES:
        answer = reference.solve(problem, formulation=formulation)
        assert answer.gap <= 1e-5, formulation
        assert crosscheck.compare([best, answer]).outcome is Agreement.AGREE
        program = reference.formulate(problem, formulation=formulation)
        program.solve(solver="CLARABEL")
        assert program.value == pytest.approx(best.objective, rel=1e-4)


@pytest.mark.parametrize("relation", ["add-remove:3", "replace"])
def test_the_bound_alone_is_stated_where_every_block_has_one_coordinate(relation: str) -> None:
    tables = dm.workloads.marginals({"age": 3}, ways=(0, 1))
    problem = dm.FitnessForUse(tables, {0: 1.0, 1: 2.0}, geometry="blocks", neighbours=relation)
    best = fast.solve(problem, tol=1e-6)
    answer = reference.solve(problem, formulation="dual")
    program = reference.formulate(problem, formulation="dual")
    program.solve(solver="CLARABEL")
    assert answer.gap <= 1e-5 and crosscheck.compare([best, answer]).outcome is Agreement.AGREE
    assert program.value**2 == pytest.approx(best.objective, rel=1e-4)
