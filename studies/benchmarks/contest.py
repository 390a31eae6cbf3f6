"""Several ways to solve one problem, at growing sizes and in one run: seconds, and the gap that each proves."""

from __future__ import annotations

import atexit
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg

from dualmech import fast, workloads
from dualmech.crosscheck import printing
from dualmech.crosscheck.judging import covariance_of_strategy, judge
from dualmech.crosscheck.printing import TextTable, table
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.problems import designs, strategies
from dualmech.problems.base import AnyProblem, Problem
from dualmech.problems.common import CommonMechanism
from dualmech.problems.fitness import FitnessForUse
from dualmech.problems.variance import TotalVariance
from dualmech.problems.weighting import QueryWeighting
from dualmech.solution import Solution
from dualmech.studies.benchmarks.layers import load
from dualmech.validate import Array
from dualmech.watching import without_warnings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOUND_TOLERANCE = 1e-9  # gap to which the optimum is known, with which answers are compared
LONG = 1.0  # seconds above which a solve is measured once

REPEATS = 5

HEADINGS = (
    *("d", "solver", "CPU s", "spread", "wall s", "left out s", "ratio", "proven gap", "above the optimum", "steps"),
    "status",
)


def by_reference(problem: Problem, **options: Any) -> Solution:
    """Solve by the reference layer, which is loaded only then."""
    from dualmech import reference

    return reference.solve(problem, **options)


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to solve the problem, how it is drawn, and the largest size that it is given, with the reason."""

    name: str
    solve: Callable[[AnyProblem], Solution | PeerAnswer]
    colour: str = ""
    line: str = "-"
    largest: int | None = None
    skipped: str = ""
    missing: str = ""  # the missing package, without which it is left out


@dataclass(frozen=True, slots=True)
class Timing:
    """One contender at one size; `ratio` is of CPU seconds, to those of the first contender in the same run."""

    cells: int
    solver: str
    processor: float  # CPU seconds, of all threads
    spread: float  # the most of these seconds over the least
    seconds: float  # by the clock
    ratio: float
    gap: float
    above: float
    steps: int
    status: str
    left_out: float = 0.0  # seconds by the clock that do not count, such as those of compiling; the most of a run


@dataclass(frozen=True, slots=True)
class Contest:
    """A problem, its sizes and its contenders; the others are compared with the first contender."""

    title: str  # Of the table
    sizes: tuple[int, ...]  # Numbers of cells
    # Takes a number of cells to the problem; making it is part of the measurement
    problem: Callable[[int], AnyProblem]
    contenders: tuple[Contender, ...]  # In the order of the table
    repeats: int = REPEATS  # How often a solve that is not long is measured
    long: float = LONG

    def measure(self) -> list[dict[str, Any]]:
        """Solve every size with every contender that is not too slow for it; seconds include the certificate."""
        entries: list[Timing] = []
        with without_warnings():
            for contender in self.present:
                contender.solve(self.problem(self.sizes[0]))  # loading, which happens once, is not measured
            for cells in self.sizes:
                entries += self._at_size(cells)
        return [asdict(entry) for entry in entries]

    def _at_size(self, cells: int) -> list[Timing]:
        bound = fast.solve(self.problem(cells), tol=BOUND_TOLERANCE).lower_bound
        entries: list[Timing] = []
        for contender in self.present:
            if contender.largest is not None and cells > contender.largest:
                continue
            seconds: list[float] = []
            processor: list[float] = []
            left_out = 0.0
            while len(seconds) < self.repeats and (not seconds or seconds[-1] < self.long):
                begun = time.perf_counter(), time.process_time()
                answer = contender.solve(self.problem(cells))
                wall, spent = getattr(answer, "left_out", (0.0, 0.0))
                seconds.append(time.perf_counter() - begun[0] - wall)
                left_out = max(left_out, wall)
                processor.append(time.process_time() - begun[1] - spent)
            middle = float(np.median(processor))
            base = entries[0].processor if entries else middle
            entries.append(
                Timing(
                    cells,
                    contender.name,
                    middle,
                    max(processor) / min(processor),
                    float(np.median(seconds)),
                    middle / base,
                    answer.gap,
                    answer.objective / bound - 1,
                    answer.iterations,
                    answer.status.name,
                    left_out,
                )
            )
        return entries

    @property
    def present(self) -> tuple[Contender, ...]:
        return tuple(contender for contender in self.contenders if not contender.missing)

    def table(self, entries: list[Timing]) -> TextTable:
        """Lay the entries out, one line each, and say which sizes were left out."""
        left_out = [
            f"{contender.name}: up to d = {contender.largest}, {contender.skipped}"
            for contender in self.contenders
            if contender.largest is not None and not contender.missing
        ]
        left_out += [
            f"{contender.name}: left out, {contender.missing}" for contender in self.contenders if contender.missing
        ]
        rows = (
            (
                *(str(entry.cells), entry.solver, f"{entry.processor:.3g}"),
                *(f"{entry.spread:.2f}", f"{entry.seconds:.3g}", f"{entry.left_out:.3g}", f"{entry.ratio:.3g}"),
                *(f"{entry.gap:.1e}", f"{max(entry.above, 0.0):.1e}", str(entry.steps), entry.status),
            )
            for entry in entries
        )
        return table(
            f"{self.title}: medians of seconds, certificates included (load {load():.1f})",
            HEADINGS,
            rows,
            words=("solver", "status"),
            notes=["; ".join(left_out)] if left_out else (),
        )


# Total variance of prefixes compared with other libraries, where they are installed: CPU seconds, and proven gaps.


SIZES = (32, 256, 1024)

PROVEN = 1e-6  # gap requested of the fast layer, and of a peer that is to reach the same

MOST_STEPS = 1000  # of a peer that is not to end by its own rule

LONG_OF_PEERS = 200.0  # seconds above which a peer is measured once


class Ended(Enum):
    """What can be said of a peer's run: that it ended."""

    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """A peer's strategy as the judge sees it."""

    objective: float
    gap: float
    iterations: int
    left_out: tuple[float, float] = (0.0, 0.0)  # seconds and CPU seconds of compiling, where they are not to count
    status: Ended = Ended.ENDED


@cache
def _bound(cells: int) -> Solution:
    """Return the proven optimum, once: finding it is no part of the measurement."""
    return fast.solve(_problem(cells), tol=BOUND_TOLERANCE)


@cache
def _problem(cells: int) -> TotalVariance:
    return TotalVariance(workloads.prefix(cells), geometry="dense")


def _on_stream(problem: TotalVariance, **options: Any) -> Solution:
    return fast.solve(TotalVariance(problem.workload, geometry="stream"), **options)


def _jax_privacy(problem: TotalVariance, ends: Callable[[Any, int], bool], compiled: bool = False) -> PeerAnswer:
    """Optimise a strategy by jax_privacy in 64 bits; where `compiled`, seconds until its first step do not count."""
    import jax
    from jax_privacy.matrix_factorization import dense

    jax.config.update("jax_enable_x64", True)
    begun, left_out, steps = (time.perf_counter(), time.process_time()), (0.0, 0.0), 0

    def counted(step: Any) -> bool:
        nonlocal left_out, steps
        step.loss.block_until_ready()
        if compiled and not steps:
            left_out = time.perf_counter() - begun[0], time.process_time() - begun[1]
        steps += 1
        return ends(step, steps)

    cells = problem.workload.shape[1]
    strategy = np.asarray(dense.optimize(cells, callback=counted), dtype=np.float64)
    verdict = judge(problem, covariance_of_strategy(problem, strategy), bound=_bound(cells)).scaled
    return PeerAnswer(verdict.objective, verdict.gap, steps, left_out)


def _by_its_own_rule(step: Any, steps: int) -> bool:
    from jax_privacy.matrix_factorization import dense

    return bool(dense.pg_tol_termination_fn(step))


def _near_the_bound(step: Any, steps: int) -> bool:
    """Whether the average variance, of a strategy whose columns have length 1, is as near the bound as is asked."""
    cells = len(step.params)
    return bool(cells * float(step.loss) <= (1 + PROVEN) * _bound(cells).lower_bound)


MISSING = "" if find_spec("jax_privacy") else "jax_privacy is not installed"


CONTEST = Contest(
    "total variance of prefixes",
    SIZES,
    _problem,
    (
        Contender("fast layer", partial(fast.solve, tol=PROVEN)),
        Contender("fast layer, stream", partial(_on_stream, tol=PROVEN)),
        Contender("jax_privacy", partial(_jax_privacy, ends=_by_its_own_rule), missing=MISSING),
        Contender(
            "jax_privacy to the same gap, compiled",
            partial(_jax_privacy, ends=_near_the_bound, compiled=True),
            missing=MISSING,
        ),
        Contender(
            f"jax_privacy, {MOST_STEPS} steps",
            partial(_jax_privacy, ends=lambda _, steps: steps >= MOST_STEPS),
            largest=256,
            skipped="d = 1024 takes it minutes",
            missing=MISSING,
        ),
        Contender(
            "CVXPY, Clarabel", partial(by_reference, backend="CLARABEL"), largest=32, skipped="d = 64 takes it minutes"
        ),
        Contender("CVXPY, SCS", partial(by_reference, backend="SCS"), largest=32, skipped="likewise"),
    ),
    repeats=3,
    long=LONG_OF_PEERS,
)
"""A peer's strategy is judged, which is part of its seconds; steps are as each solver counts them."""

# Total variance of prefixes in several epochs, compared with strategies of jax_privacy, in classes of four sizes.


EPOCHS = 4  # parts of a person, a quarter of the steps apart

EPOCH_SIZES = (64, 256, 512)


def _in_epochs(steps: int) -> TotalVariance:
    rule = f"participation:{EPOCHS}:{steps // EPOCHS}"
    return TotalVariance(workloads.prefix(steps), neighbours=rule)


@cache
def _compiled(optimised: Callable[[int], Array], steps: int) -> None:
    """Run it once, so that what JAX compiles of it is there when it runs again."""
    optimised(steps)


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


def _jax_strategy(problem: TotalVariance, optimised: Callable[[int], Array]) -> PeerAnswer:
    """Judge a strategy of jax_privacy, by its own rule to stop; a first run, which compiles, does not count."""
    _keep_compiled()
    steps, begun = problem.workload.shape[1], (time.perf_counter(), time.process_time())
    bound = _bound_in_epochs(steps)
    _compiled(optimised, steps)
    left_out = time.perf_counter() - begun[0], time.process_time() - begun[1]
    strategy = np.asarray(optimised(steps), dtype=np.float64)
    verdict = judge(problem, covariance_of_strategy(problem, strategy), bound=bound).scaled
    return PeerAnswer(verdict.objective, verdict.gap, 0, left_out)


def _best_within(problem: TotalVariance, within: str) -> PeerAnswer:
    """Judge the best strategy of a class, with as many bands or coefficients as a person's parts are apart."""
    steps, begun = problem.workload.shape[1], (time.perf_counter(), time.process_time())
    bound = _bound_in_epochs(steps)
    left_out = time.perf_counter() - begun[0], time.process_time() - begun[1]
    answer = fast.strategy(problem, within.format(steps // EPOCHS), bound=bound)
    return PeerAnswer(answer.objective, answer.gap, 0, left_out)


@cache
def _bound_in_epochs(steps: int) -> Solution:
    return fast.solve(_in_epochs(steps), tol=BOUND_TOLERANCE)


def _jax_dense(steps: int) -> Array:
    from jax_privacy.matrix_factorization import dense

    return np.asarray(dense.optimize(steps, epochs=EPOCHS))


def _jax_banded(steps: int) -> Array:
    from jax_privacy.matrix_factorization import banded

    return np.asarray(banded.optimize(steps, bands=steps // EPOCHS).materialize())


def _jax_toeplitz(steps: int) -> Array:
    from jax_privacy.matrix_factorization import toeplitz

    return strategies.toeplitz(
        np.asarray(toeplitz.optimize_banded_toeplitz(steps, bands=steps // EPOCHS)), steps
    ).matrix


def _jax_buffered(steps: int) -> Array:
    from jax_privacy.matrix_factorization import buffered_toeplitz

    limits = {"min_sep": steps // EPOCHS, "max_participations": EPOCHS}
    strategy = buffered_toeplitz.optimize(n=steps, error="mean", **limits)
    return strategies.buffered(np.asarray(strategy.output_scale), np.asarray(strategy.buf_decay), steps).matrix


EPOCHS_CONTEST = Contest(
    f"total variance of prefixes in {EPOCHS} epochs, without compiling; steps of others are not counted",
    EPOCH_SIZES,
    _in_epochs,
    (
        Contender("fast layer", partial(fast.solve, tol=PROVEN)),
        *(
            Contender(f"fast.strategy, {within.format('b')}", partial(_best_within, within=within))
            for within in ("banded:{}", "banded:{}:equal", "toeplitz:{}", "blt:2")
        ),
        *(
            Contender(f"jax_privacy, {name}", partial(_jax_strategy, optimised=optimised), missing=MISSING)
            for name, optimised in (
                ("dense", _jax_dense),
                ("banded", _jax_banded),
                ("Toeplitz", _jax_toeplitz),
                ("buffers", _jax_buffered),
            )
        ),
    ),
    repeats=3,
    long=20.0,
)
"""Bands, and the coefficients of a Toeplitz strategy, are as many as there are steps between parts of a person."""

COMMON_SIZES = (32, 64, 128, 256)

COUNTS = (3, 4)  # numbers of mechanisms

NEAR = 1e-4  # size of the differences of near-equal covariances

CONDITION = 1e12  # condition number of the ill-conditioned covariances

TOO_LONG = "r = 64 takes it up to minutes, and 1 GiB"


def random(rng: np.random.Generator, size: int, count: int) -> list[Array]:
    """Return Wishart matrices with twice as many degrees of freedom as rows, at different scales."""
    return [rng.uniform(0.5, 2) * _wishart(rng, size, 2 * size) for _ in range(count)]


def near_equal(rng: np.random.Generator, size: int, count: int) -> list[Array]:
    """Return one covariance plus something small and different each time."""
    common = _wishart(rng, size, size) + np.eye(size)
    return [common + NEAR * _wishart(rng, size, size) for _ in range(count)]


def ill_conditioned(rng: np.random.Generator, size: int, count: int) -> list[Array]:
    """Return covariances with eigenvalues from 1 down to the reciprocal of `CONDITION`, each in axes of its own."""
    return [_rotate(rng, np.geomspace(1, 1 / CONDITION, size)) for _ in range(count)]


def _wishart(rng: np.random.Generator, size: int, degrees: int) -> Array:
    factor = rng.standard_normal((size, degrees))
    return np.asarray(factor @ factor.T / size)


def _rotate(rng: np.random.Generator, values: Array) -> Array:
    axes = scipy.linalg.qr(rng.standard_normal((len(values), len(values))))[0]
    turned = (axes * values) @ axes.T
    return np.asarray((turned + turned.T) / 2)


@cache
def _common_problem(
    covariances: Callable[[np.random.Generator, int, int], list[Array]], count: int, size: int
) -> CommonMechanism:
    """Return mechanisms that answer the same cells, with these covariances: their row spaces meet in everything."""
    drawn = covariances(np.random.default_rng(0), size, count)
    return CommonMechanism([LinearGaussianMechanism(np.eye(size), covariance) for covariance in drawn])


COMMON_CONTENDERS = (
    Contender("fixed point", fast.solve),
    Contender("Clarabel", partial(by_reference, backend="CLARABEL"), largest=32, skipped=TOO_LONG),
    Contender("SCS", partial(by_reference, backend="SCS"), largest=128, skipped="r = 256 takes it up to minutes"),
)

KINDS = {"random": random, "near-equal": near_equal, "ill-conditioned": ill_conditioned}

CONTESTS = {
    f"common {count} {kind}": Contest(
        f"{count} mechanisms, {kind} covariances",
        COMMON_SIZES,
        partial(_common_problem, drawn, count),
        COMMON_CONTENDERS,
    )
    for count in COUNTS
    for kind, drawn in KINDS.items()
}
"""By name; a size is the number of rows that all mechanisms have in common."""

PROGRAM1_SIZES = (128, 256, 512, 1024, 2048)

TOLERANCE = 1e-9  # gap requested of the interior-point method; backends have their own


@cache
def _program1_problem(cells: int) -> QueryWeighting:
    """Return Program 1 with its eigenvectors computed: the decomposition is the same for all solvers."""
    ranges = workloads.from_gram(workloads.all_range_gram(cells))
    return QueryWeighting(ranges, designs.eigen_queries(ranges))


PROGRAM1_CONTEST = Contest(
    "Program 1 on the eigen-queries of all ranges",
    PROGRAM1_SIZES,
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

SOFTMAX_SIZES = (2, 4, 8, 16, 32, 64)

LONGEST = 60.0  # seconds after which gradient descent gives up

FIFTY = 50  # conjugate gradients a step instead of the paper's five: enough to see what the Hessian is worth

DUAL = "dual solver"


def _softmax(method: fast.SoftmaxNewton, problem: FitnessForUse) -> Solution:
    return fast.solve(problem, method=method, max_iterations=10**7, time_limit=LONGEST)


def _on_queries(problem: FitnessForUse) -> Solution:
    """Run SM-II on the queries themselves as basis, where conjugate gradients have less to do."""
    stated = FitnessForUse(problem.workload, problem.targets, basis=problem.workload.dense())
    return _softmax(fast.SoftmaxNewton(), stated)


SOFTMAX_CONTENDERS = (
    Contender(DUAL, fast.solve, "#1b1b1b"),
    Contender("SM-II", partial(_softmax, fast.SoftmaxNewton()), "#0072b2"),
    Contender("SM-II, printed Hessian", partial(_softmax, fast.SoftmaxNewton(hessian="printed")), "#0072b2", "--"),
    Contender("SM-II, 50 CG", partial(_softmax, fast.SoftmaxNewton(conjugate_gradients=FIFTY)), "#56b4e9"),
    Contender(
        "SM-II, 50 CG, printed",
        partial(_softmax, fast.SoftmaxNewton(conjugate_gradients=FIFTY, hessian="printed")),
        "#56b4e9",
        "--",
    ),
    Contender("SM-II, B = W", _on_queries, "#009e73"),
    Contender(
        "gradient descent",
        partial(_softmax, fast.SoftmaxGradient()),
        "#cc79a7",
        largest=16,
        skipped=f"it uses up its {LONGEST:g} s from d = 8 on",
    ),
    Contender(
        "Clarabel",
        partial(by_reference, backend="CLARABEL", formulation="schur"),
        "#d55e00",
        largest=32,
        skipped="d = 64 takes it minutes; the benchmark of fitness for use has it",
    ),
    Contender("SCS", partial(by_reference, backend="SCS", formulation="sum"), "#e69f00"),
)


def _softmax_problem(cells: int) -> FitnessForUse:
    return FitnessForUse(workloads.prefix(cells), targets=1.0)


SOFTMAX_CONTEST = Contest("prefix workloads, targets 1", SOFTMAX_SIZES, _softmax_problem, SOFTMAX_CONTENDERS)


def draw(entries: list[Timing], folder: str) -> list[Path]:
    """Draw seconds and proven gaps over d into a folder, as SVG and PNG.

    Raises `BackendError` or `FileFormatError` as `plots.check_drawable`.
    """
    return printing.save_picture("softmax-prefix", folder, _panels, entries, columns=2)


def _panels(axes: Sequence[Axes], entries: list[Timing]) -> None:
    for contender in SOFTMAX_CONTENDERS:
        solver_entries = [entry for entry in entries if entry.solver == contender.name]
        cells = [entry.cells for entry in solver_entries]
        for panel, values in zip(
            axes, ([entry.seconds for entry in solver_entries], [entry.gap for entry in solver_entries]), strict=True
        ):
            panel.plot(cells, values, "o" + contender.line, ms=3.5, color=contender.colour, label=contender.name)
    for panel, what in zip(axes, ("seconds, one thread", "proven gap, relative"), strict=True):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(SOFTMAX_SIZES, [str(size) for size in SOFTMAX_SIZES])
        panel.set(xlabel="cells d", ylabel=what)
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
