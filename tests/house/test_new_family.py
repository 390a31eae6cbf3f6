"""Adding a family, in one file: its problem, two solvers and a record, and the conformance suite does the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import cvxpy as cp
import numpy as np
import pytest
from conformance import CHECKS, ConformanceCase, Run

import dualmech as dm
from dualmech import fast, reference, validate
from dualmech.certificate import with_reasons
from dualmech.crosscheck import families
from dualmech.geometry.weights import shares, valid_weights
from dualmech.problems.base import Problem
from dualmech.progress import Status
from dualmech.reference import attempts, formulas
from dualmech.reference.formulas.writing import Formula, Line, Program, Symbol
from dualmech.solution import Solution, judged_solution
from dualmech.storage import store
from dualmech.validate import Array


@dataclass(frozen=True, slots=True, eq=False)
class PlainDual:
    """Weights on queries (m,), none negative."""

    query_weights: Array


@dataclass(frozen=True, slots=True, eq=False)
class PlainNoise(Problem):
    """Equal noise s on every cell: minimise ``1/s`` subject to ``s ‖w_j‖² ≤ c_j``.

    For any μ ≥ 0, ``Σ μ_j c_j ≥ s Σ μ_j ‖w_j‖²``, so that the cost 1/s is at least ``Σ μ_j ‖w_j‖² / Σ μ_j c_j``.
    """

    workload: dm.Workload
    targets: Array

    dual_type: ClassVar[type] = PlainDual
    arguments: ClassVar[tuple[str, ...]] = ("workload", "targets")

    @with_reasons
    def certify(self, primal: Any, dual: PlainDual) -> dm.Certificate:
        (level,), squares = np.atleast_1d(primal), self.workload.row_norms() ** 2
        weights = np.asarray(dual.query_weights)
        bound = float(weights @ squares / (weights @ self.targets)) if valid_weights(weights) else 0.0
        rounding = 4 * len(squares) * np.finfo(float).eps
        if not (np.isfinite(level) and level > 0):
            return dm.Certificate.of(math.inf, bound, math.inf, rounding)
        excess = float((level * squares / self.targets).max()) - 1
        return dm.Certificate.of(1 / level, bound, max(excess, 0.0), rounding)

    def feasible(self, primal: Any) -> Array:
        (level,) = np.atleast_1d(primal)
        return np.array([level / (level * self.workload.row_norms() ** 2 / self.targets).max()])

    def mechanism(self, primal: Any) -> dm.LinearGaussianMechanism:
        cells = np.eye(self.workload.shape[1])
        return dm.LinearGaussianMechanism(cells, float(primal[0]) * cells)

    def prices(self, dual: PlainDual) -> Array:
        return shares(np.asarray(dual.query_weights) * self.targets)

    def binding(self, primal: Any, slack: float) -> np.ndarray:
        return np.arange(self.workload.shape[1])


def solve_fast(problem: PlainNoise, limits: Any) -> Solution:
    needs = problem.workload.row_norms() ** 2 / problem.targets
    point, dual = problem.feasible([1.0]), PlainDual(np.eye(len(needs))[np.argmax(needs)])
    return judged_solution(problem, point, dual, tol=limits.tol, otherwise=Status.ROUNDING, solver="fast:closed_form")


def formulate(problem: PlainNoise) -> cp.Problem:
    s = cp.Variable(name="s")
    limits = s * problem.workload.row_norms() ** 2 <= problem.targets
    return cp.Problem(cp.Minimize(cp.inv_pos(s)), [limits])


def solve_reference(
    problem: PlainNoise,
    *,
    backend: str = "CLARABEL",
    formulation: str = "own",
    tol: float | None = None,
    **options: Any,
) -> Solution:
    validate.choice(("own",), formulation=formulation)
    request = attempts.BackendRequest.of(backend, frozenset({"SOC"}), tol, None, options)
    program = formulate(problem)
    program.solve(solver=backend)
    dual = PlainDual(np.maximum(program.constraints[0].dual_value, 0.0))
    point = problem.feasible([program.var_dict["s"].value])
    return judged_solution(problem, point, dual, tol=request.tol, otherwise=Status.BACKEND, solver="reference:plain")


PLAIN = families.Family("plain", ("PlainNoise",), lambda problem: "squared privacy cost of equal noise")


def plain_statement(problem: PlainNoise) -> Formula:
    queries, cells = problem.workload.shape
    return Formula(
        (
            Symbol("W", "the queries, with the rows $w_j$", (queries, cells), problem.workload.dense),
            Symbol("c", "the variance targets", (queries,), lambda: problem.targets),
        ),
        (Symbol("s", "the variance of the noise on every cell"),),
        Program("minimise", "1 / s", "$s > 0$", (Line(r"s \lVert w_j \rVert^2 \le c_j", "for all queries j"),)),
        (Symbol(r"\mu", "weights on queries, none negative", (queries,), part="query_weights"),),
        Program("maximise", r"\sum_j \mu_j \lVert w_j \rVert^2", r"$\mu \ge 0$", (Line(r"\sum_j \mu_j c_j \le 1"),)),
        (Line(r"1 \ge \sum_j \mu_j c_j \ge s \sum_j \mu_j \lVert w_j \rVert^2"),),
    )


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConformanceCase]:
    """The family, for as long as a test lasts."""
    monkeypatch.setitem(fast.SOLVERS, PlainNoise, fast.Solver(solve_fast))
    monkeypatch.setitem(reference.FAMILIES, PlainNoise, (formulate, solve_reference))
    monkeypatch.setitem(formulas.FORMULAS, PlainNoise, plain_statement)
    monkeypatch.setitem(store.PROBLEMS, "PlainNoise", PlainNoise)
    monkeypatch.setitem(store.KINDS, "PlainDual", PlainDual)
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, PLAIN))
    workload, targets = dm.workloads.prefix(4), np.array([1.0, 2.0, 3.0, 5.0])
    yield ConformanceCase("plain", lambda: PlainNoise(workload, targets), lambda: PlainNoise(workload, 2 * targets))


@pytest.mark.parametrize("check", CHECKS.values(), ids=[*CHECKS])
def test_a_family_in_one_file_conforms(plain: ConformanceCase, check: Callable[[Run], None]) -> None:
    check(Run(plain))
