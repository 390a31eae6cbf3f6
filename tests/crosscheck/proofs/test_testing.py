"""What a solver's author puts into tests: problems in plain arrays, and checks that fail with both bounds."""

import contextlib
import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import pytest

import dualmech as dm
from dualmech import fast
from dualmech.crosscheck import collection, library, testing

NAMES = ["fitness-prefix-4", "variance-prefix-4", "fitness-rank-deficient", "variance-prefix-8-household"]

MY_SOLVER = """
import numpy as np

STEPS, SCALE, VALUE, SIGN = {steps}, {scale}, {value}, {sign}

def my_solver(workload, targets):
    '''Problem 1 of full column rank by its fixed point: a covariance of the cells, weights, the squared cost.'''
    queries, cells = workload.shape
    users, shares = np.full(cells, 1 / cells), np.full(queries, 1 / queries)
    for _ in range(STEPS):
        left, values, right = np.linalg.svd(
            np.sqrt(shares / targets)[:, None] * workload * np.sqrt(users), full_matrices=False
        )
        users, shares = users * (np.einsum("ki,k,ki->i", right, values, right) / users) ** 2, shares * (
            np.einsum("jk,k,jk->j", left, values, left) / shares
        ) ** 2
        users, shares = users / users.sum(), shares / shares.sum()
    root = np.sqrt(np.maximum(users, 1e-300))
    left, values, right = np.linalg.svd(np.sqrt(shares / targets)[:, None] * workload * root, full_matrices=False)
    noise = root[:, None] * (right.T / values @ right) * root
    noise /= np.max(np.einsum("jk,kl,jl->j", workload, noise, workload) / targets)
    noise = (noise + noise.T) / 2
    cost = np.linalg.inv(noise).diagonal().max()
    return SCALE * noise, (users, SIGN * shares / targets), cost**VALUE
"""

RIGHT = {"steps": 400, "scale": 1.0, "value": 1.0, "sign": 1.0}

WRONG: dict[str, tuple[dict[str, float], str]] = {
    "stops early": ({"steps": 3}, "above the optimum"),
    "infeasible by 1e-4": ({"scale": 1.0001}, "has 0.01 % more than its target"),
    "of the wrong scale": ({"scale": 2.0}, "has 2 times its target"),
    "with negative multipliers": ({"sign": -1.0}, "prove nothing: one is negative"),
    "without the square of the cost": ({"value": 0.5}, "its square is the optimum"),
}


def found(known: testing.KnownProblem) -> dm.Solution:
    return fast.solve(known.problem, tol=1e-9)


@pytest.mark.parametrize("known", testing.problems(NAMES), ids=str)
def test_what_is_optimal_passes_as_it_is(known: testing.KnownProblem) -> None:
    answer = found(known)
    certificate = testing.check(known, answer.covariance, answer.dual, answer.objective)
    assert certificate is not None and certificate.feasible
    assert testing.check(known, value=answer.objective) is None
    assert known.lower <= known.upper <= known.lower * (1 + 2e-9)
    with pytest.raises(AssertionError, match="infeasible: .*; scaled it would be optimal"):
        testing.check(known, (7 if "targets" in known.arrays else 1 / 7) * answer.covariance)
    assert testing.check(known, 7 * answer.covariance, scaled=True)


@pytest.mark.parametrize("known", testing.problems(most_cells=4), ids=str)
def test_every_family_is_checked_as_it_is(known: testing.KnownProblem) -> None:
    answer = found(known)
    testing.check(known, answer.primal, answer.dual, answer.objective)
    with pytest.raises(AssertionError, match="the value is nan, where the optimum is"):
        testing.check(known, value=float("nan"))
    for wrong in (1.01 * known.upper, 0.99 * known.lower):
        with pytest.raises(AssertionError, match=r"fewer|the value .* 1 % (above|below)"):
            testing.check(known, value=wrong)


@pytest.mark.parametrize("known", testing.problems(NAMES), ids=str)
def test_what_is_not_fails_with_both_bounds(known: testing.KnownProblem) -> None:
    rows = np.eye(len(known.basis))
    checks: list[tuple[dict[str, Any], str]] = [
        ({"primal": rows, "scaled": True}, "the answer achieves"),
        ({"value": 1.01 * known.upper}, "1 % above the optimum"),
        ({"value": 0.99 * known.lower}, "1 % below what is possible"),
    ]
    for given, words in checks:
        with pytest.raises(AssertionError) as raised:
            testing.check(known, **given)
        said = str(raised.value)
        assert words in said and said.startswith(f"{known.name}: ")
        assert f"{known.lower:.15g}" in said and f"{known.upper:.15g}" in said
        assert "at most 0.0001 % is allowed" in said


TILTED = np.eye(4) - np.full((4, 4), 0.25)  # without noise along (1, 1, 1, 1)
WRONG_ANSWERS: list[tuple[dict[str, Any], str]] = [
    ({"primal": np.zeros((4, 4))}, "without noise in a direction that neighbours change"),
    ({"primal": np.diag([1.0, 1.0, 1.0, 0.0])}, r"\(1 on row 3\): the least eigenvalue of its covariance is 0 times"),
    ({"primal": TILTED}, r"\(0.5 on row \d, 0.5 on row \d, 0.5 on row \d\): the least eigenvalue"),
    ({"primal": -np.eye(4)}, "must be positive semidefinite, its least eigenvalue is -1"),
    ({"primal": np.full((4, 4), np.nan)}, "must be finite, got nan"),
    ({"primal": np.eye(3)}, r"must have shape \(4, 4\)"),
    ({"primal": np.tri(4)}, "must be symmetric"),
    ({"primal": "covariance"}, "covariance"),
    ({"dual": (None, None)}, "dual proves nothing: dual weights on neighbours"),
    ({"dual": (np.full(4, np.nan), np.ones(4))}, "some are not finite"),
    ({"dual": (np.ones(3), np.ones(4))}, "must be 4, one per pair of neighbours, got 3"),
    ({"value": "much"}, "value must be"),
]


@pytest.mark.parametrize(("answer", "words"), WRONG_ANSWERS)
def test_every_fault_of_an_answer_is_a_wrong_answer(answer: dict[str, Any], words: str) -> None:
    (known,) = testing.problems(["fitness-prefix-4"])
    with pytest.raises(dm.errors.WrongAnswerError, match=f"^fitness-prefix-4: .*{words}"):
        testing.check(known, **answer)


def test_an_indefinite_common_mechanism_says_its_eigenvalue() -> None:
    (known,) = testing.problems(["common-example-38"])
    best = found(known).primal
    with pytest.raises(dm.errors.WrongAnswerError, match="infeasible: it is not positive semidefinite, .* is -0.5;"):
        testing.check(known, -best)
    with pytest.raises(dm.errors.WrongAnswerError, match="infeasible: it exceeds a constraint by 1 of"):
        testing.check(known, best / 2)


def test_dual_weights_of_one_array_come_alone_or_in_a_tuple() -> None:
    (known,) = testing.problems(["variance-prefix-4"])
    weights = found(known).dual.neighbour_weights
    testing.check(known, dual=(weights,))
    testing.check(known, dual=weights)


def test_distances_are_proven_and_infinite_without_feasibility() -> None:
    for known in testing.problems(NAMES):
        best = found(known).covariance
        assert 0 <= testing.distance(known, best) < 1e-8
        worse = known.problem.feasible(best + np.diag(np.diagonal(best)))
        certificate = testing.check(known, worse, tol=1e9)
        assert certificate is not None
        apart = certificate.objective / known.lower - 1
        assert apart <= testing.distance(known, worse) <= apart + 1e-8 * (1 + apart)
    (known,) = testing.problems(["fitness-prefix-4"])
    assert testing.distance(known, 2 * found(known).covariance) == np.inf
    assert testing.distance(known, 2 * found(known).covariance, scaled=True) < 1e-8
    with pytest.raises(dm.errors.WrongAnswerError, match="primal is no answer"):
        testing.distance(known, np.eye(3))


def test_scores_of_all_families_stay_one_table_of_80_columns() -> None:
    """A row a problem, whatever the solver does: exact answers, a crash, NaN, infeasible and poor points."""

    def solver(known: testing.KnownProblem) -> object:
        answer = fast.solve(known.problem, tol=1e-8)
        return answer.primal, answer.dual, answer.objective

    table = testing.scores(solver, most_cells=4)
    lines = str(table).splitlines()
    assert table.within == len(table.entries) == len(testing.problems(most_cells=4)), table
    assert len(lines) == len(table.entries) + 2 and max(map(len, lines)) <= 80
    assert {entry.solver for entry in table.entries} == {"solver"}

    def unreliable(known: testing.KnownProblem) -> object:
        best = found(known).covariance
        return {
            "fitness-prefix-2": lambda: np.eye(2) / 2,
            "fitness-prefix-4": lambda: 2 * best,
            "fitness-prefix-8": lambda: np.full((8, 8), np.nan),
            "fitness-ranges-4": lambda: np.linalg.inv(np.zeros((4, 4))),
            "fitness-ranges-8": lambda: (best, None, 1.0),
        }[known.name]()

    names = ["fitness-prefix-2", "fitness-prefix-4", "fitness-prefix-8", "fitness-ranges-4", "fitness-ranges-8"]
    table = testing.scores(unreliable, names)
    assert [entry.status(1e-6) for entry in table.entries] == ["above", "breaks", "failed", "failed", "failed"]
    assert [table.entries[row].most for row in (1, 2, 3)] == [np.inf] * 3
    words = {1: "has 2 times its target", 2: "nan", 3: "Singular matrix", 4: "below what is possible"}
    assert all(text in table.entries[row].fault for row, text in words.items())
    widest = testing.scores(lambda known: None, ["weighting-marginals-2x4x2-eigen-queries-approximate"])
    assert max(map(len, str(widest).splitlines())) <= 80


def test_arrays_pose_the_problem() -> None:
    """A covariance on the cells and one on the basis are the same noise; arrays are what the problem has."""
    for known in testing.problems(NAMES):
        family: Any = {"FitnessForUse": dm.FitnessForUse, "TotalVariance": dm.TotalVariance}[known.family]
        again = family(
            dm.Workload(known.workload),
            known.targets if known.family == "FitnessForUse" else known.weights,
            neighbours=known.neighbours,
            geometry="dense",
        )
        assert again.same_as(known.problem) and str(known) == known.name in repr(known)
    (known,) = testing.problems(["fitness-rank-deficient"])
    noise, basis = found(known).covariance, known.basis
    on_cells = np.linalg.pinv(basis) @ noise @ np.linalg.pinv(basis).T
    one, other = (testing.check(known, each, scaled=True) for each in (on_cells, noise))
    assert one is not None and other is not None and one.objective == pytest.approx(other.objective)


def test_bad_arguments_and_other_families_are_refused_by_name() -> None:
    (known,) = testing.problems(["fitness-prefix-4"])
    with pytest.raises(dm.errors.InvalidInputError, match="did you mean fitness-prefix-4"):
        testing.problems(["fitness-prefix4"])
    with pytest.raises(dm.errors.InvalidInputError, match="most_cells"):
        testing.problems(most_cells=0)
    with pytest.raises(dm.errors.InvalidInputError, match="primal, dual or value must be given"):
        testing.check(known)
    with pytest.raises(dm.errors.InvalidInputError, match="tol"):
        testing.check(known, value=2.0, tol=-1.0)
    with pytest.raises(dm.errors.DualmechError, match="known"):
        testing.check("fitness-prefix-4", value=2.0)  # type: ignore[arg-type]
    others = {name: testing.problems([name])[0] for name in ("estimate-prefix-16", "fitness-tables-sixty")}
    with pytest.raises(dm.errors.InvalidInputError, match="it has no workload"):
        _ = others["fitness-tables-sixty"].workload
    with pytest.raises(
        dm.errors.InvalidInputError, match="fitness-tables-sixty, a FitnessForUse, .* it has no weights"
    ):
        _ = others["fitness-tables-sixty"].weights
    assert [each.name for each in testing.problems([*others], matrix=True)] == ["estimate-prefix-16"]
    with pytest.raises(dm.errors.InvalidInputError, match="it has no basis"):
        _ = others["estimate-prefix-16"].basis
    with pytest.raises(AssertionError, match="the answer achieves"):
        testing.check(others["estimate-prefix-16"], np.ones(16), scaled=True)
    testing.check(others["fitness-tables-sixty"], value=1234.8186524)


def test_hostile_arguments_are_refused_by_name() -> None:
    (known,) = testing.problems(["fitness-prefix-4"])
    allowed = {"known": known, "tol": 9.0}
    for function, arguments in (
        (testing.problems, {"names": NAMES, "most_cells": 2, "matrix": True}),
        (testing.check, allowed | {"value": 2.0}),
        (testing.check, allowed | {"primal": np.eye(4) / 4, "scaled": True}),
        (testing.distance, {"known": known, "primal": np.eye(4) / 4, "scaled": True}),
        (testing.scores, {"solver": lambda known: None, "names": NAMES, "most_cells": 2, "matrix": True, "tol": 1.0}),
    ):
        call = hostile.Call(function.__name__, function, arguments)
        for argument in arguments:
            for label, make in hostile.VALUES.items():
                if (argument, label) != ("names", "None"):  # which asks for all problems
                    fault = hostile.fault_of(call, {argument: make()})
                    accepted = not fault or "fitness-prefix-4: " in fault
                    assert accepted, (call.place, argument, label)


def test_all_small_problems_are_there_and_none_is_proven_before_it_is_asked() -> None:
    library.interval.cache_clear()
    listed = testing.problems(["FitnessForUse", "variance", "fitness-prefix-8"], most_cells=4)
    assert {each.family for each in listed} == {"FitnessForUse", "TotalVariance"}
    assert all(each.workload.shape[1] <= 4 for each in listed if each.name != "fitness-prefix-8")
    assert {each.family for each in testing.problems()} == {*collection.FAMILIES.values()}
    assert library.interval.cache_info().currsize == 0


@pytest.mark.parametrize("changed", ["nothing", *WRONG])
def test_a_wrong_solver_fails_for_its_own_reason(changed: str) -> None:
    change, words = WRONG.get(changed, ({}, ""))
    module: dict[str, Any] = {}
    exec(MY_SOLVER.format(**RIGHT | change), module)
    for known in testing.problems(["fitness-prefix-2", "fitness-prefix-8", "fitness-prefix-16"]):
        answer = module["my_solver"](known.workload, known.targets)
        with pytest.raises(AssertionError, match=words) if words else contextlib.nullcontext():
            testing.check(known, *answer, tol=1e-6)


def test_the_pages_table_of_shapes_is_what_problems_give() -> None:
    """Every array, point and multiplier of the page has its shape in every problem on a matrix, letter by letter."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "solver.md").read_text(encoding="utf-8")
    shape = re.compile(r"(?:`(\w+)`|\w+)? ?\(([a-z, ]*)\)")
    table = {
        row[0].strip("` "): [shape.findall(cell) for cell in row[1:]]
        for row in (line.strip("| \n").split(" |") for line in page.splitlines() if re.match(r"\| `[A-Z]", line))
        if len(row) == 5
    }
    assert set(table) == {*collection.FAMILIES.values()}
    seen_kinds: Counter[tuple[str, ...]] = Counter()
    for known in testing.problems(matrix=False, most_cells=8):
        if known.family == "FitnessForUse" and "basis" not in known.arrays or "sizes" in known.arrays:
            continue
        seen_kinds[known.family, *known.arrays] += 1
        if seen_kinds[known.family, *known.arrays] > 5:  # of a family with the same arrays some sizes are enough
            continue
        always, optional, point, dual = table[known.family]
        stated = known.arrays
        assert {name for name, _ in always} <= {*stated} | {""}, known
        named = {name for name, _ in (*always, *optional)}
        assert all(name in named or name.startswith("covariance_") for name in stated), known
        answer = fast.solve(known.problem, tol=1e-2)
        held = [getattr(answer.dual, field.name) for field in dataclasses.fields(answer.dual)]
        parts = [np.asarray(each) for each in held if isinstance(each, np.ndarray | tuple)]
        shapes = [(stated[name].shape, text) for name, text in (*always, *optional) if name in stated]
        if isinstance(answer.primal, np.ndarray):
            shapes.append((answer.primal.shape, point[0][1]))
        shapes += [(part.shape, text) for part, (_, text) in zip(parts, dual, strict=False)]
        sizes: dict[str, int] = {}
        for seen, text in shapes:
            letters = [letter.strip() for letter in text.split(",") if letter.strip()]
            assert len(letters) == len(seen), (known, text, seen)
            for letter, size in zip(letters, seen, strict=True):
                if letter not in "op":
                    assert sizes.setdefault(letter, size) == size, (known, text, seen)
