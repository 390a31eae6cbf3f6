"""Several ways to solve one problem, at growing sizes and in one run: seconds, and the gap that each proves."""

from __future__ import annotations

import atexit
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

import dualmech as dm
from dualmech import crosscheck, designs, fast, strategies, workloads
from dualmech.crosscheck.printing import TextTable
from dualmech.crosscheck.sheet import Columns, Row, drawn
from dualmech.studies.benchmarks.layers import Measured, in_own_process
from dualmech.validate import Array
from dualmech.watching import without_warnings

BOUND_TOLERANCE = 1e-9  # gap to which the optimum is known, with which answers are compared


def by_reference(problem: Any, **options: Any) -> dm.Solution:
    """Solve by the reference layer, which is loaded only then."""
    from dualmech import reference

    return reference.solve(problem, **options)


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """A strategy of another library as the judge sees it."""

    objective: float
    gap: float
    left_out: tuple[float, float] = (0.0, 0.0)  # seconds and CPU seconds of compiling, where they are not to count


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to solve the problem, and the largest size that it is given, with the reason."""

    name: str
    solve: Callable[[Any], dm.Solution | PeerAnswer]
    largest: float = float("inf")
    skipped: str = ""
    missing: str = ""  # the missing package, without which it is left out


@dataclass(frozen=True, slots=True)
class Contest:
    """A problem, its sizes and its contenders; the others are compared with the first contender."""

    title: str  # Of the table
    sizes: tuple[int, ...]  # Numbers of cells
    # Takes a number of cells to the problem; making it is part of the measurement
    problem: Callable[[int], Any]
    contenders: tuple[Contender, ...]  # In the order of the table
    repeats: int = 5  # How often a solve that is not long is measured
    long: float = 1.0  # seconds above which a solve is measured once

    def measure(self) -> list[Measured]:
        """Solve every size with every contender that is not too slow for it; seconds include the certificate."""
        present = [contender for contender in self.contenders if not contender.missing]
        with without_warnings():
            for contender in present:
                contender.solve(self.problem(self.sizes[0]))  # loading, which happens once, is not measured
            return [
                entry
                for cells in self.sizes
                for entry in self._at_size(cells, [contender for contender in present if cells <= contender.largest])
            ]

    def _at_size(self, cells: int, contenders: list[Contender]) -> list[Measured]:
        bound = optimum(self.problem, cells).lower_bound
        entries: list[Measured] = []
        for contender in contenders:
            walls, processors, left_out = list[float](), list[float](), 0.0
            while len(walls) < self.repeats and (not walls or walls[-1] < self.long):
                begun = time.perf_counter(), time.process_time()
                answer = contender.solve(self.problem(cells))
                wall, spent = getattr(answer, "left_out", (0.0, 0.0))
                walls.append(time.perf_counter() - begun[0] - wall)
                processors.append(time.process_time() - begun[1] - spent)
                left_out = max(left_out, wall)
            middle = float(np.median(processors))
            entries.append(
                {
                    **{"cells": cells, "solver": contender.name, "processor": middle, "left_out": left_out},
                    **{"spread": max(processors) / min(processors), "seconds": float(np.median(walls))},
                    **{"ratio": middle / (entries[0]["processor"] if entries else middle), "proven": answer.gap},
                    **{"above": max(answer.objective / bound - 1, 0.0), "steps": getattr(answer, "iterations", 0)},
                    "status": answer.status.name if isinstance(answer, dm.Solution) else "ended",
                }
            )
        return entries

    def table(self, entries: list[Measured]) -> TextTable:
        """Lay the entries out, one line each, and say which sizes were left out."""
        left_out = [
            f"{contender.name}: up to d = {contender.largest}, {contender.skipped}"
            for contender in self.contenders
            if contender.skipped and not contender.missing
        ]
        left_out += [
            f"{contender.name}: left out, {contender.missing}" for contender in self.contenders if contender.missing
        ]
        title = f"{self.title}: medians of seconds, certificates included"
        return drawn(title, COLUMNS, map(Row, entries), words=("solver", "status"), notes=["; ".join(left_out)])


COLUMNS: Columns = (
    *(("d", "{cells}"), ("solver", "{solver}"), ("CPU s", "{processor:.3g}")),
    *(("spread", "{spread:.2f}"), ("wall s", "{seconds:.3g}"), ("left out s", "{left_out:.3g}")),
    *(("ratio", "{ratio:.3g}"), ("proven gap", "{proven:.1e}"), ("above the optimum", "{above:.1e}")),
    *(("steps", "{steps}"), ("status", "{status}")),
)
"""Seconds of the processor are of all threads, `spread` is the most of them over the least, and `ratio` is to those of
the first contender; seconds that are left out are of compiling."""

# Total variance of prefixes compared with other libraries, where they are installed, and in several epochs.

PROVEN = 1e-6  # gap requested of the fast layer, and of a peer that is to reach the same

EPOCHS = 4  # parts of a person, a quarter of the steps apart

MISSING = "" if find_spec("jax_privacy") else "jax_privacy is not installed"


def _problem(cells: int) -> dm.TotalVariance:
    return dm.TotalVariance(workloads.prefix(cells), geometry="dense")


def _in_epochs(steps: int) -> dm.TotalVariance:
    return dm.TotalVariance(workloads.prefix(steps), neighbours=f"participation:{EPOCHS}:{steps // EPOCHS}")


@cache
def optimum(problem: Callable[[int], Any], cells: int) -> dm.Solution:
    """Return the proven optimum, once: finding it is no part of the measurement."""
    return fast.solve(problem(cells), tol=BOUND_TOLERANCE)


def _on_stream(problem: dm.TotalVariance) -> dm.Solution:
    return fast.solve(dm.TotalVariance(problem.workload, geometry="stream"), tol=PROVEN)


def _best_within(problem: dm.TotalVariance, within: str) -> PeerAnswer:
    """Judge the best strategy of a class, with as many bands or coefficients as a person's parts are apart."""
    steps = problem.workload.shape[1]
    answer = fast.strategy(problem, within.format(steps // EPOCHS), bound=optimum(_in_epochs, steps))
    return PeerAnswer(answer.objective, answer.gap)


def _judged(problem: Any, strategy: Any, bound: dm.Solution, left_out: tuple[float, float] = (0.0, 0.0)) -> PeerAnswer:
    covariance = crosscheck.covariance_of_strategy(problem, np.asarray(strategy, dtype=np.float64))
    verdict = crosscheck.judge(problem, covariance, bound=bound).scaled
    return PeerAnswer(verdict.objective, verdict.gap, left_out)


def _jax_privacy(problem: dm.TotalVariance, to_the_bound: bool = False) -> PeerAnswer:
    """Optimise a strategy by jax_privacy in 64 bits, until its own rule ends it or it is as near as was asked of us.

    In the latter case the seconds until its first step, of compiling, do not count. The average variance is of a
    strategy whose columns have length 1.
    """
    import jax
    from jax_privacy.matrix_factorization import dense

    jax.config.update("jax_enable_x64", True)
    cells = problem.workload.shape[1]
    bound, begun, first = optimum(_problem, cells), (time.perf_counter(), time.process_time()), list[float]()

    def ends(step: Any) -> bool:
        step.loss.block_until_ready()
        if not first:
            first.extend((time.perf_counter() - begun[0], time.process_time() - begun[1]))
        near = cells * float(step.loss) <= (1 + PROVEN) * bound.lower_bound
        return bool(near if to_the_bound else dense.pg_tol_termination_fn(step))

    strategy = dense.optimize(cells, callback=ends)
    return _judged(problem, strategy, bound, (first[0], first[1]) if to_the_bound else (0.0, 0.0))


PEERS_CONTEST = Contest(
    "total variance of prefixes",
    (32, 256, 1024),
    _problem,
    (
        Contender("fast layer", partial(fast.solve, tol=PROVEN)),
        Contender("fast layer, stream", _on_stream),
        Contender("jax_privacy", _jax_privacy, missing=MISSING),
        Contender("jax_privacy to the same gap, compiled", partial(_jax_privacy, to_the_bound=True), missing=MISSING),
        Contender(
            "CVXPY, Clarabel", partial(by_reference, backend="CLARABEL"), largest=32, skipped="d = 64 takes it minutes"
        ),
        Contender("CVXPY, SCS", partial(by_reference, backend="SCS"), largest=32, skipped="likewise"),
    ),
    repeats=3,
    long=200.0,
)
"""A peer's strategy is judged, which is part of its seconds; steps are as each solver counts them."""


@cache
def _keep_compiled() -> None:
    """Let JAX run in 64 bits, and keep all that it compiles as long as this process runs."""
    import jax

    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_compilation_cache_dir", folder.name)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@cache
def _compiled(optimised: Callable[[int], Array], steps: int) -> None:
    """Run it once, so that what JAX compiles of it is there when it runs again."""
    optimised(steps)


def _jax_strategy(problem: dm.TotalVariance, optimised: Callable[[int], Array]) -> PeerAnswer:
    """Judge a strategy of jax_privacy, by its own rule to stop; a first run, which compiles, does not count."""
    _keep_compiled()
    steps, begun = problem.workload.shape[1], (time.perf_counter(), time.process_time())
    _compiled(optimised, steps)
    left_out = time.perf_counter() - begun[0], time.process_time() - begun[1]
    return _judged(problem, optimised(steps), optimum(_in_epochs, steps), left_out)


def _jax_dense(steps: int) -> Array:
    from jax_privacy.matrix_factorization import dense

    return np.asarray(dense.optimize(steps, epochs=EPOCHS))


def _jax_banded(steps: int) -> Array:
    from jax_privacy.matrix_factorization import banded

    return np.asarray(banded.optimize(steps, bands=steps // EPOCHS).materialize())


def _jax_toeplitz(steps: int) -> Array:
    from jax_privacy.matrix_factorization import toeplitz

    coefficients = np.asarray(toeplitz.optimize_banded_toeplitz(steps, bands=steps // EPOCHS))
    return strategies.toeplitz(coefficients, steps).matrix


def _jax_buffered(steps: int) -> Array:
    from jax_privacy.matrix_factorization import buffered_toeplitz

    limits = {"min_sep": steps // EPOCHS, "max_participations": EPOCHS}
    strategy = buffered_toeplitz.optimize(n=steps, error="mean", **limits)
    return strategies.buffered(np.asarray(strategy.output_scale), np.asarray(strategy.buf_decay), steps).matrix


JAX = {"dense": _jax_dense, "banded": _jax_banded, "Toeplitz": _jax_toeplitz, "buffers": _jax_buffered}

EPOCHS_CONTEST = Contest(
    f"total variance of prefixes in {EPOCHS} epochs, without compiling; steps of others are not counted",
    (64, 256, 512),
    _in_epochs,
    (
        Contender("fast layer", partial(fast.solve, tol=PROVEN)),
        *(
            Contender(f"fast.strategy, {within.format('b')}", partial(_best_within, within=within))
            for within in ("banded:{}", "banded:{}:equal", "toeplitz:{}", "blt:2")
        ),
        *(
            Contender(f"jax_privacy, {name}", partial(_jax_strategy, optimised=optimised), missing=MISSING)
            for name, optimised in JAX.items()
        ),
    ),
    repeats=3,
    long=20.0,
)
"""Bands, and the coefficients of a Toeplitz strategy, are as many as there are steps between parts of a person."""

TOLERANCE = 1e-9  # gap requested of the interior-point method; backends have their own


@cache
def _program1_problem(cells: int) -> dm.QueryWeighting:
    """Return Program 1 with its eigenvectors computed: the decomposition is the same for all solvers."""
    ranges = workloads.from_gram(workloads.all_range_gram(cells))
    return dm.QueryWeighting(ranges, designs.eigen_queries(ranges))


PROGRAM1_CONTEST = Contest(
    "Program 1 on the eigen-queries of all ranges",
    (128, 256, 512, 1024, 2048),
    _program1_problem,
    (
        Contender("interior point", partial(fast.solve, tol=TOLERANCE)),
        Contender(
            "Clarabel", partial(by_reference, backend="CLARABEL"), largest=1024, skipped="d = 2048 takes it minutes"
        ),
        Contender(
            "Clarabel, as printed",
            partial(by_reference, backend="CLARABEL", formulation="sdp"),
            largest=1024,
            skipped="likewise",
        ),
        Contender("SCS", partial(by_reference, backend="SCS")),
    ),
)
"""Clarabel and SCS get reciprocals as second-order cones, unless the statement is the paper's."""

LONGEST = 60.0  # seconds after which gradient descent gives up

FIFTY = 50  # conjugate gradients a step instead of the paper's five: enough to see what the Hessian is worth

DUAL = "dual solver"


def _softmax(method: fast.SoftmaxNewton, problem: dm.FitnessForUse) -> dm.Solution:
    return fast.solve(problem, method=method, max_iterations=10**7, time_limit=LONGEST)


def _on_queries(problem: dm.FitnessForUse) -> dm.Solution:
    """Run SM-II on the queries themselves as basis, where conjugate gradients have less to do."""
    stated = dm.FitnessForUse(problem.workload, problem.targets, basis=problem.workload.dense())
    return _softmax(fast.SoftmaxNewton(), stated)


NEWTON: dict[str, dict[str, Any]] = {
    "SM-II": {},
    "SM-II, printed Hessian": {"hessian": "printed"},
    "SM-II, 50 CG": {"conjugate_gradients": FIFTY},
    "SM-II, 50 CG, printed": {"conjugate_gradients": FIFTY, "hessian": "printed"},
}

SOFTMAX_CONTEST = Contest(
    "prefix workloads, targets 1",
    (2, 4, 8, 16, 32, 64),
    lambda cells: dm.FitnessForUse(workloads.prefix(cells), targets=1.0),
    (
        Contender(DUAL, fast.solve),
        *(Contender(name, partial(_softmax, fast.SoftmaxNewton(**options))) for name, options in NEWTON.items()),
        Contender("SM-II, B = W", _on_queries),
        Contender(
            "gradient descent",
            partial(_softmax, fast.SoftmaxGradient()),
            largest=16,
            skipped=f"it uses up its {LONGEST:g} s from d = 8 on",
        ),
        Contender(
            "Clarabel",
            partial(by_reference, backend="CLARABEL", formulation="schur"),
            largest=32,
            skipped="d = 64 takes it minutes; the benchmark of fitness for use has it",
        ),
        Contender("SCS", partial(by_reference, backend="SCS", formulation="sum")),
    ),
)

CONTESTS = {
    "peers": PEERS_CONTEST,
    "epochs": EPOCHS_CONTEST,
    "softmax": SOFTMAX_CONTEST,
    "program1": PROGRAM1_CONTEST,
}
"""Comparisons of solvers, by the name that runs them."""


def measure(name: str) -> list[Measured]:
    return CONTESTS[name].measure()


def report(name: str) -> TextTable:
    return CONTESTS[name].table(in_own_process(measure, name))


REPORTS = {name: partial(report, name) for name in CONTESTS}
