"""Bad input to the problems is refused before any work, in one line that names the argument: a table by argument."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dualmech as dm
from dualmech import reference

ASKED = dm.Workload([[1, 0, 0], [1, 1, 0], [2, 1, 0]])
CELLS = np.eye(3)
NAN, INF = np.nan, np.inf

Made = Callable[..., Any]
FAMILIES: dict[str, Made] = {
    "fitness": lambda workload=ASKED, targets=1.0, **given: dm.FitnessForUse(workload, targets, **given),
    "privacy first": lambda workload=ASKED, targets=1.0, cost=1.0, **given: dm.PrivacyFirst(
        workload, targets, cost, **given
    ),
    "variance": lambda workload=ASKED, weights=1.0, **given: dm.TotalVariance(workload, weights, **given),
    "softmax": lambda workload=ASKED, targets=1.0, t1=5.0, t2=5.0, **given: dm.SoftmaxFitness(
        workload, targets, t1, t2, **given
    ),
    "weighting": lambda workload=ASKED, design=CELLS, **given: dm.QueryWeighting(workload, design, **given),
}
COVARIANCES = ("fitness", "privacy first", "variance", "softmax")
IN_TARGETS = ("fitness", "privacy first", "softmax")

NOT_NUMBERS: dict[str, Any] = {
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
NUMBERS = [*NOT_NUMBERS.values(), -1.0, NAN, INF, 1e50, [1, -1, 1], [1, 1], [1, 1, 1, 1], [[1, 1, 1]], [[1], [1], [1]]]
POINTS: dict[str, Any] = {
    "wrong size": np.eye(4),
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
DUALS: dict[str, Any] = {
    "too few neighbours": (np.ones(2), np.ones(3)),
    "too many queries": (np.ones(3), np.ones(4)),
    "numbers": (1.0, 1.0),
    "column": (np.ones((3, 1)), np.ones(3)),
    "one part": (np.ones(3),),
    "three parts": (np.ones(3), np.ones(3), np.ones(3)),
    "text": ("a", "b"),
    "complex": (np.ones(3) * 1j, np.ones(3)),
    "None": None,
    "a number": 3,
}
SINGLE_DUALS = [np.ones(2), np.ones((3, 1)), "uniform", np.ones(4), []]

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
WORKLOADS = [np.eye(3), [[1, 0]], None, "prefix:3", dm.Workload(np.zeros((2, 3))), dm.Workload(sp.csr_array((2, 3)))]
DESIGNS = [np.eye(2), np.ones(3), np.zeros((2, 3)), [], "I", None, [[1, NAN, 0]], 1e50 * np.eye(3), 1j]
COSTS = [*NOT_NUMBERS.values(), 0, -1, NAN, INF, [1.0], [[1.0]]]

STATED: list[tuple[str, tuple[str, ...], list[Any]]] = [
    ("targets", IN_TARGETS, [*NUMBERS, 0.0, [1, 0, 1]]),
    ("weights", ("variance",), [each for each in NUMBERS if each is not None] + [0.0, [0, 0, 0]]),
    ("workload", tuple(FAMILIES), WORKLOADS),
    ("basis", ("fitness",), [*BASES.values()]),
    ("neighbours", ("fitness",), [*MOVES.values()]),
    ("neighbours", ("weighting",), [np.eye(2), np.zeros((3, 2)), "all"]),
    ("cost", ("privacy first",), COSTS),
    ("design", ("weighting",), DESIGNS),
    ("privacy", ("weighting",), ["gaussian", "", None, 1]),
    *((name, ("softmax",), [-1.0, NAN, INF, "5", None, [1, 2], 1e50]) for name in ("t1", "t2", "total_weight")),
    ("t2", ("softmax",), [0]),
]
"""What a problem is stated with: the argument, the families, and what it may not be."""

JUDGED: list[tuple[str, tuple[str, ...], str, list[Any]]] = [
    ("covariance", COVARIANCES, "primal", [*POINTS.values()]),
    ("weights", ("weighting",), "primal", [np.ones(2), np.ones((3, 1)), "equal", []]),
    ("dual", IN_TARGETS, "dual", [*DUALS.values()]),
    ("dual", ("variance",), "dual", [*SINGLE_DUALS, dm.duals.VarianceDual(np.ones(4))]),
    ("dual", ("weighting",), "dual", [*SINGLE_DUALS[:4], dm.duals.WeightingDual(np.ones(4))]),
]
"""What the judge is given: how it is called, the families, which side it is, and what it may not be."""


def one_line(error: pytest.ExceptionInfo[dm.errors.DualmechError], name: str) -> None:
    assert isinstance(error.value, ValueError | TypeError)
    assert name in str(error.value) and "\n" not in str(error.value)


def good(family: str) -> dict[str, Any]:
    if family == "weighting":
        return {"primal": np.ones(3), "dual": np.ones(3)}
    return {"primal": np.eye(2), "dual": np.ones(3) if family == "variance" else (np.ones(3), np.ones(3))}


@pytest.mark.parametrize(("argument", "families", "values"), STATED, ids=lambda part: str(part)[:24])
def test_what_a_problem_cannot_be_stated_with(argument: str, families: tuple[str, ...], values: list[Any]) -> None:
    for family, value in itertools.product(families, values):
        with pytest.raises(dm.errors.DualmechError) as error:
            pytest.fail(f"{family} takes {argument} {value!r}: {FAMILIES[family](**{argument: value})}")
        one_line(error, argument)


@pytest.mark.parametrize(("name", "families", "side", "values"), JUDGED, ids=lambda part: str(part)[:24])
def test_what_cannot_be_judged(name: str, families: tuple[str, ...], side: str, values: list[Any]) -> None:
    for family in families:
        problem = FAMILIES[family]()
        assert problem.certify(**good(family)).objective > 0
        for value in values:
            with pytest.raises(dm.errors.DualmechError) as error:
                pytest.fail(f"{family} judges {value!r}: {problem.certify(**{**good(family), side: value})}")
            one_line(error, name)
            if side == "primal" and hasattr(problem, "feasible") and family != "softmax":
                with pytest.raises(dm.errors.DualmechError) as error:
                    pytest.fail(f"{family} scales {value!r}: {problem.feasible(value)}")
                one_line(error, name)


@pytest.mark.parametrize("family", ["variance", "weighting"])
def test_a_mechanism_at_no_cost(family: str) -> None:
    for cost in (0, -1.0, NAN, INF, "low"):
        with pytest.raises(dm.errors.DualmechError, match="cost"):
            FAMILIES[family]().mechanism(good(family)["primal"], cost)


def test_a_formulation_that_is_none() -> None:
    for family, words, formulations in (
        ("variance", "formulation must be one of gram", ["volume", "sum", "", 3]),
        ("weighting", "formulation must be one of inv_pos, sdp", ["schur", "power", "", 1]),
        ("softmax", "formulation", ["sum"]),
    ):
        for formulation, function in itertools.product(formulations, (reference.formulate, reference.solve)):
            with pytest.raises(dm.errors.InvalidInputError, match=words):
                function(FAMILIES[family](), formulation=formulation)


def test_what_is_no_number_is_answered_with_what_targets_may_be() -> None:
    said = "targets must be a number or an array of numbers, got (None|text)"
    workloads = (ASKED, dm.workloads.marginals([2, 3], ways=1))
    for workload, targets, family in itertools.product(workloads, (None, "one"), ("fitness", "softmax")):
        with pytest.raises(dm.errors.InputTypeError, match=said):
            FAMILIES[family](workload, targets)
    with pytest.raises(dm.errors.InputTypeError, match="targets must be an array of real numbers"):
        dm.FitnessForUse(ASKED, [1.0, None, 1.0])


def test_what_lies_outside_is_named() -> None:
    sides = dm.Workload([[1, 0], [1, 0], [0, 1]], names=["left", "left again", "right"])
    with pytest.raises(dm.errors.InvalidInputError, match="'right'"):
        dm.FitnessForUse(sides, 1.0, basis=[[1, 0]])
    pair = dm.Workload([[1, 1, 0], [0, 1, 1]], names=["left", "right"])
    for design in ([[1, 1, 0], [0, 0, 1]], [[1, 1, 0], [0, 0, 1], [1, 1, 1]]):
        with pytest.raises(dm.errors.InvalidInputError, match="'right' lies outside the row space of the design"):
            dm.QueryWeighting(pair, design)


def test_a_basis_of_fewer_rows_than_the_rank_never_spans() -> None:
    workload = dm.Workload([[1, 0], [1, 1e-10]])
    assert dm.FitnessForUse(workload, 1.0).geometry.rank == 2
    with pytest.raises(dm.errors.InvalidInputError, match="basis"):
        dm.FitnessForUse(workload, 1.0, basis=[[1, 0]])


def test_what_asks_nothing_is_refused() -> None:
    with pytest.raises(dm.errors.InvalidInputError, match="released exactly"):
        dm.FitnessForUse(dm.workloads.total(5), 1.0, neighbours=dm.neighbours.replace_one(5))
    with pytest.raises(dm.errors.InvalidInputError, match="weights must be positive on at least one query"):
        dm.TotalVariance(dm.Workload([[0, 0], [1, 1]]), [1, 0])


@pytest.mark.parametrize("family", ["fitness", "privacy first"])
def test_what_cannot_be_scaled_is_left_for_the_judge(family: str) -> None:
    problem = FAMILIES[family]()
    for point in (np.zeros((2, 2)), -np.eye(2), np.full((2, 2), NAN), np.full((2, 2), INF), np.eye(2) * 1e308):
        judged = problem.certify(problem.feasible(point), (np.ones(3), np.ones(3)))
        assert judged.gap == INF or point[0, 0] == 1e308


def test_weights_of_design_queries_that_are_no_solution() -> None:
    problem = dm.QueryWeighting(dm.Workload([[1, 1, 0], [0, 1, 1]]), CELLS)
    for weights in ([1, -1, 1], [0, 1, 1], [1, NAN, 1], [INF, 1, 1]):
        for method in (problem.strategy, problem.strategy_error, problem.mechanism):
            with pytest.raises(dm.errors.InvalidInputError, match="weights must"):
                method(weights)


def test_problems_cannot_be_changed() -> None:
    matrix, targets = np.eye(3), np.ones(3)
    problem = dm.FitnessForUse(dm.Workload(matrix), targets, basis=np.eye(3))
    matrix[0, 0] = targets[0] = 7
    assert problem.workload.dense()[0, 0] == 1 == problem.targets[0]
    variance, weighting = FAMILIES["variance"](), FAMILIES["weighting"]()
    own = (problem.targets, problem.basis, problem.workload.dense(), problem.geometry.moves)
    for array in (*own, variance.weights, weighting.design):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2
    for each, name in ((problem, "targets"), (variance, "weights"), (weighting, "privacy")):
        with pytest.raises((AttributeError, dataclasses.FrozenInstanceError)):
            setattr(each, name, 1)


def test_what_differs_in_one_argument_is_another_problem() -> None:
    workload = dm.workloads.prefix(3)
    same = dm.TotalVariance(workload, 1.0)
    assert same.same_as(dm.TotalVariance(workload, [1, 1, 1])) and not same.same_as(
        dm.TotalVariance(workload, [1, 1, 2])
    )
    weighting = dm.QueryWeighting(workload, np.tri(3))
    for design in (dm.QueryWeighting(workload, np.eye(3)), dm.QueryWeighting(workload, np.tri(3), "pure")):
        assert not weighting.same_as(design)
    soft = dm.SoftmaxFitness(workload, 1.0, 5, 5)
    assert not soft.same_as(dm.SoftmaxFitness(workload, 1.0, 5, 6))
