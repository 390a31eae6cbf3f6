"""Local privacy: column generation, search and the paper's gradient descent at growing numbers of user types."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dualmech import fast, workloads
from dualmech.crosscheck.printing import TextTable, table
from dualmech.fast.local import gradient
from dualmech.fast.local.gradient import ProjectedGradient, PublishedGradient
from dualmech.fast.local.strategy import Exact, Restart
from dualmech.fast.methods import Method
from dualmech.geometry.local import trace_bound
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.watching import without_warnings
from dualmech.workloads.base import Workload

EPSILON = 1.0

EXACT_SIZES, SEARCHED_SIZES = (8, 12, 16, 20), (32, 64, 128)
"""User types up to which the optimum is proven, and with which one searches."""

TIMED_SIZES = (64, 128, 256, 512)  # user types at which one step of gradient descent is timed
TIMED_STEPS, SHORT_STEP = 5, 1e-10  # how many steps are timed, so short that they always succeed

SEEDS = 3

LIMITED, LIMIT = ((32, 1.0, 1e-5), (64, 1.0, 1e-4), (64, 4.0, 1e-4), (128, 4.0, 1e-3), (256, 4.0, 1e-2)), 60.0
"""Running sums for many user types, their ε and tolerances, and the seconds that each may take."""

WORKLOADS: dict[str, Callable[[int], Workload]] = {
    "prefix": workloads.prefix,
    "histogram": workloads.identity,
    "all range": workloads.all_range,
}

HEADINGS = (*("workload", "n", "method", "seconds", "CPU", "objective", "gap", "/ trace bound"), *("outputs", "status"))

LIMITED_HEADINGS = ("n", "ε", "tolerance", "seconds", "CPU", "objective", "bound", "gap", "status")
STEP_HEADINGS = ("n", "outputs", "seconds a step", "CPU", "growth")


@dataclass(frozen=True, slots=True)
class LocalTiming:
    """One workload and method: medians over seeds, and the objective over the closed-form bound."""

    workload: str
    users: int
    method: str
    seconds: float
    processor: float
    objective: float
    gap: float
    ratio: float
    outputs: int
    status: str


def entry(name: str, users: int, methods: Sequence[Method]) -> LocalTiming:
    problem = LocalStrategy(WORKLOADS[name](users), EPSILON)
    answers, clocks = [], []
    for method in methods:
        begun = time.perf_counter(), time.process_time()
        answers.append(fast.solve(problem, method=method))
        clocks.append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
    objectives = [answer.objective for answer in answers]
    middle = answers[int(np.argsort(objectives, kind="stable")[len(objectives) // 2])]
    wall, processor = np.median(clocks, axis=0)
    return LocalTiming(
        name,
        users,
        methods[0].name,
        float(wall),
        float(processor),
        middle.objective,
        middle.gap,
        middle.objective / trace_bound(problem.root, EPSILON),
        len(middle.primal),
        middle.status.name,
    )


def measure() -> dict[str, Any]:
    """Measure every instance, and one step of gradient descent."""
    entries = []
    with without_warnings():
        for name in WORKLOADS:
            for users in EXACT_SIZES:
                entries += [entry(name, users, [Exact()])]
                for method in (ProjectedGradient, PublishedGradient):
                    entries.append(entry(name, users, [method(rng=seed) for seed in range(SEEDS)]))
            if name != "all range":
                entries += [entry(name, users, [Restart()]) for users in SEARCHED_SIZES]
        limited = [within_a_minute(*case) for case in LIMITED]
    steps = [step(users) for users in TIMED_SIZES]
    return {"entries": [asdict(entry) for entry in entries], "limited": limited, "steps": steps}


def within_a_minute(users: int, epsilon: float, tol: float) -> tuple[float | str, ...]:
    """Solve running sums within a limit of time, by one thread, and return the row of a table."""
    problem = LocalStrategy(workloads.prefix(users), epsilon)
    begun = time.perf_counter(), time.process_time()
    answer = fast.solve(problem, tol=tol, time_limit=LIMIT, threads=1)
    clocks = time.perf_counter() - begun[0], time.process_time() - begun[1]
    return (users, epsilon, tol, *clocks, answer.objective, answer.lower_bound, answer.gap, answer.status.name)


def step(users: int) -> dict[str, float]:
    """Time one step of gradient descent, projection and gradients included."""
    problem = LocalStrategy(workloads.identity(users), EPSILON)
    gram = problem.root.T @ problem.root
    task = gradient.DescentObjective(gram, np.ones(users), float(np.exp(EPSILON)))
    outputs = gradient.OUTPUTS * users
    first = gradient.random_start(task, outputs, np.random.default_rng(0))
    begun = time.perf_counter(), time.process_time()
    taken = sum(1 for _ in gradient.descent_steps(task, first, SHORT_STEP, TIMED_STEPS, strict=False))
    return {
        "users": users,
        "outputs": outputs,
        "seconds": (time.perf_counter() - begun[0]) / max(taken, 1),
        "processor": (time.process_time() - begun[1]) / max(taken, 1),
    }


def tables(measured: dict[str, Any]) -> list[TextTable]:
    solved = (
        (
            *(entry.workload, str(entry.users), entry.method, f"{entry.seconds:.3g}", f"{entry.processor:.3g}"),
            *(f"{entry.objective:.7g}", f"{entry.gap:.1e}", f"{entry.ratio:.4f}", str(entry.outputs), entry.status),
        )
        for entry in (LocalTiming(**entry) for entry in measured["entries"])
    )
    limited = (
        (
            *(f"{users}", f"{epsilon:g}", f"{tol:g}", f"{seconds:.3g}", f"{processor:.3g}"),
            *(f"{objective:.8g}", f"{bound:.8g}", f"{gap:.1e}", status),
        )
        for users, epsilon, tol, seconds, processor, objective, bound, gap, status in measured["limited"]
    )
    steps, before = [], None
    for line in measured["steps"]:
        growth = "" if before is None else f"{line['processor'] / before:.1f} x"
        before = line["processor"]
        numbers = (f"{line['users']}", f"{line['outputs']}", f"{line['seconds']:.3g}", f"{before:.3g}")
        steps.append((*numbers, growth))
    return [
        table(f"local privacy at ε = {EPSILON:g}", HEADINGS, solved, ("workload", "method", "status")),
        table(f"running sums, {LIMIT:g} s at most, one thread", LIMITED_HEADINGS, limited, ("status",)),
        table("one step of gradient descent, on a histogram", STEP_HEADINGS, steps, ()),
    ]
