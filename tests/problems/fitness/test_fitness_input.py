"""Bad input to the problems is refused before any work, in one line that names the argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dualmech as dm

WORKLOAD = dm.Workload([[1, 0, 0], [1, 1, 0], [2, 1, 0]])
NAN, INF = np.nan, np.inf


def refused(error: pytest.ExceptionInfo[dm.errors.DualmechError], name: str) -> None:
    assert isinstance(error.value, ValueError | TypeError)
    assert name in str(error.value) and "\n" not in str(error.value)


NUMBERS_NO_ONE_MAY_GIVE: dict[str, Any] = {
    "text": "one",
    "list of texts": ["a", "b", "c"],
    "None": None,
    "complex": [1j, 1, 1],
    "ragged": [[1, 2], [3]],
    "object": [Ellipsis, 1, 1],
    "NaN": [1, NAN, 1],
    "infinite": [1, INF, 1],
    "empty": [],
}


@pytest.mark.parametrize(
    "targets",
    [
        *NUMBERS_NO_ONE_MAY_GIVE.values(),
        *(0.0, -1.0, NAN, INF, [1, 0, 1], [1, -1, 1], [1, 1], [1, 1, 1, 1], [[1, 1, 1]], [[1], [1], [1]]),
    ],
    ids=repr,
)
def test_targets(targets: Any) -> None:
    with pytest.raises(dm.errors.DualmechError) as error:
        dm.FitnessForUse(WORKLOAD, targets)
    refused(error, "targets")
    with pytest.raises(dm.errors.DualmechError) as error:
        dm.PrivacyFirst(WORKLOAD, targets, cost=1.0)
    refused(error, "targets")


@pytest.mark.parametrize("workload", [WORKLOAD, dm.workloads.marginals([2, 3], ways=1)], ids=repr)
@pytest.mark.parametrize("targets", [None, "one"])
def test_what_is_no_number_is_answered_with_what_targets_may_be(workload: dm.Workload, targets: Any) -> None:
    said = "targets must be a number or an array of numbers, got (None|text)"
    with pytest.raises(dm.errors.InputTypeError, match=said):
        dm.FitnessForUse(workload, targets)
    with pytest.raises(dm.errors.InputTypeError, match=said):
        dm.SoftmaxFitness(workload, targets, 5.0, 5.0)
    with pytest.raises(dm.errors.InputTypeError, match="targets must be an array of real numbers"):
        dm.FitnessForUse(WORKLOAD, [1.0, None, 1.0])


@pytest.mark.parametrize(
    "cost", [*NUMBERS_NO_ONE_MAY_GIVE.values(), 0, -1, NAN, INF, [1.0], [[1.0]]], ids=repr
)
def test_cost(cost: Any) -> None:
    with pytest.raises(dm.errors.DualmechError) as error:
        dm.PrivacyFirst(WORKLOAD, 1.0, cost=cost)
    refused(error, "cost")


@pytest.mark.parametrize(
    "workload",
    [np.eye(3), [[1, 0]], None, "prefix:3", dm.Workload(np.zeros((2, 3))), dm.Workload(sp.csr_array((2, 3)))],
    ids=["array", "list", "None", "text", "all zero", "all zero, sparse"],
)
def test_workload(workload: Any) -> None:
    for targets in (1.0, [1.0, 1.0, 1.0]):
        if isinstance(workload, dm.Workload) and targets != 1.0:
            continue
        with pytest.raises(dm.errors.DualmechError) as error:
            dm.FitnessForUse(workload, targets)
        refused(error, "workload")


BASES: dict[str, Any] = {
    "one row": [1, 0, 0],
    "wrong number of cells": [[1, 0], [0, 1]],
    "NaN": [[1, 0, NAN], [0, 1, 0]],
    "infinite": [[1, 0, INF], [0, 1, 0]],
    "text": "identity",
    "ragged": [[1, 0, 0], [1]],
    "empty": np.zeros((0, 3)),
    "complex": [[1j, 0, 0], [0, 1, 0]],
    "dependent rows that span": [[1, 0, 0], [0, 1, 0], [1, 1, 0]],
    "dependent rows": [[1, 0, 0], [2, 0, 0]],
    "nearly dependent rows": [[1, 1, 0], [1, 1 + 1e-15, 0]],
    "zero row": [[1, 0, 0], [0, 0, 0]],
    "all zero": np.zeros((2, 3)),
    "another row space": [[1, 0, 0], [0, 0, 1]],
    "fewer rows than the rank": [[1, 0, 0]],
}


@pytest.mark.parametrize("case", BASES)
def test_basis(case: str) -> None:
    with pytest.raises(dm.errors.DualmechError) as error:
        dm.FitnessForUse(WORKLOAD, 1.0, basis=BASES[case])
    refused(error, "basis")


def test_a_basis_that_misses_a_query_names_it() -> None:
    workload = dm.Workload([[1, 0], [1, 0], [0, 1]], names=["left", "left again", "right"])
    with pytest.raises(dm.errors.InvalidInputError, match="'right'"):
        dm.FitnessForUse(workload, 1.0, basis=[[1, 0]])


def test_a_basis_of_fewer_rows_than_the_rank_never_spans() -> None:
    workload = dm.Workload([[1, 0], [1, 1e-10]])
    assert dm.FitnessForUse(workload, 1.0).geometry.rank == 2
    with pytest.raises(dm.errors.InvalidInputError, match="basis"):
        dm.FitnessForUse(workload, 1.0, basis=[[1, 0]])


MOVES: dict[str, Any] = {
    "one column": [1, 0, 0],
    "wrong number of cells": np.eye(2),
    "wrong number of cells, sparse": sp.eye_array(4),
    "NaN": [[NAN], [0], [0]],
    "NaN, sparse": sp.csc_array([[NAN], [0], [0]]),
    "infinite": [[INF], [0], [0]],
    "text": "replace_one",
    "ragged": [[1], [0, 1], [0]],
    "empty": np.zeros((3, 0)),
    "empty, sparse": sp.csc_array((3, 0)),
    "complex": [[1j], [0], [0]],
    "all zero": np.zeros((3, 2)),
    "changes no query": [[0], [0], [1]],
}


@pytest.mark.parametrize("case", MOVES)
def test_neighbours(case: str) -> None:
    with pytest.raises(dm.errors.DualmechError) as error:
        dm.FitnessForUse(WORKLOAD, 1.0, neighbours=MOVES[case])
    refused(error, "neighbours")


def test_the_total_alone_under_replacement_is_refused() -> None:
    with pytest.raises(dm.errors.InvalidInputError, match="released exactly"):
        dm.FitnessForUse(dm.workloads.total(5), 1.0, neighbours=dm.neighbours.replace_one(5))


POINTS: dict[str, Any] = {
    "wrong size": np.eye(3),
    "not square": np.ones((2, 3)),
    "a vector": [1, 1],
    "a number": 1.0,
    "None": None,
    "text": "identity",
    "ragged": [[1], [1, 2]],
    "complex": [[1j, 0], [0, 1]],
    "objects": [[Ellipsis, 0], [0, 1]],
    "sparse": sp.eye_array(2),
}


@pytest.mark.parametrize("case", POINTS)
def test_covariance(case: str) -> None:
    problem = dm.FitnessForUse(WORKLOAD, 1.0)
    with pytest.raises(dm.errors.DualmechError) as error:
        problem.certify(POINTS[case], (np.ones(3), np.ones(3)))
    refused(error, "covariance")


@pytest.mark.parametrize("case", POINTS)
def test_covariance_to_be_scaled(case: str) -> None:
    for problem in (dm.FitnessForUse(WORKLOAD, 1.0), dm.PrivacyFirst(WORKLOAD, 1.0, cost=1.0)):
        with pytest.raises(dm.errors.DualmechError) as error:
            problem.feasible(POINTS[case])
        refused(error, "covariance")


@pytest.mark.parametrize(
    "point", [np.zeros((2, 2)), -np.eye(2), np.full((2, 2), NAN), np.full((2, 2), INF), np.eye(2) * 1e308]
)
def test_what_cannot_be_scaled_is_left_for_the_judge(point: Any) -> None:
    for problem in (dm.FitnessForUse(WORKLOAD, 1.0), dm.PrivacyFirst(WORKLOAD, 1.0, cost=1.0)):
        judged = problem.certify(problem.feasible(point), (np.ones(3), np.ones(3)))
        assert judged.gap == INF or point[0, 0] == 1e308


WEIGHTS: dict[str, Any] = {
    "too few neighbours": (np.ones(2), np.ones(3)),
    "too many queries": (np.ones(3), np.ones(4)),
    "numbers": (1.0, 1.0),
    "column": (np.ones((3, 1)), np.ones(3)),
    "one part": (np.ones(3),),
    "three parts": (np.ones(3), np.ones(3), np.ones(3)),
    "text": ("a", "b"),
    "complex": (np.ones(3) * 1j, np.ones(3)),
    "None": None,
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_dual(case: str) -> None:
    problem = dm.FitnessForUse(WORKLOAD, 1.0)
    with pytest.raises(dm.errors.DualmechError) as error:
        problem.certify(np.eye(2), WEIGHTS[case])
    refused(error, "dual")


def test_problems_cannot_be_changed() -> None:
    matrix, targets = np.eye(3), np.ones(3)
    problem = dm.FitnessForUse(dm.Workload(matrix), targets, basis=np.eye(3))
    matrix[0, 0] = targets[0] = 7
    assert problem.workload.dense()[0, 0] == 1 == problem.targets[0]
    for array in (problem.targets, problem.basis, problem.workload.dense(), problem.geometry.moves):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2
    with pytest.raises(AttributeError):
        problem.targets = targets  # type: ignore[misc]
