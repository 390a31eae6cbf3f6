"""The best strategies of a class with cheap noise (bands, Toeplitz coefficients or buffers), and their suboptimality.

The descent is in `fast.engine.classes`; the result is judged like any other noise.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from dualmech import validate
from dualmech.display import Displayed, decimal_above
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.fast import fitness
from dualmech.fast.engine.classes import Bands, BufferedSums, Coefficients, Family
from dualmech.fast.engine.loop import Limits
from dualmech.fast.reductions.classes import best_mechanism
from dualmech.geometry.moves import LARGEST_DENSE
from dualmech.geometry.stream import Stream
from dualmech.mechanisms.epochs import EpochsMechanism
from dualmech.mechanisms.stream import CausalMechanism
from dualmech.neighbours import ADD_REMOVE, Participation, relation_of
from dualmech.problems.fitness import FitnessForUse, PrivacyFirst
from dualmech.problems.variance import TotalVariance
from dualmech.progress import Status
from dualmech.solution import Solution, judged_solution
from dualmech.threads import blas_threads

CLASSES = {"banded": "bands", "toeplitz": "coefficients", "blt": "buffers"}
"""The classes, and the meaning of their number."""

FORMS = {"banded": "equal", "toeplitz": "scaled"}
"""The option after the number: columns of equal norm; factors on rows and columns."""

MAX_BUFFERS = 16


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ClassOptimum(Displayed):
    """The best noise found within a class of strategies, and its distance from the optimum over all noise.

    Attributes
    ----------
    mechanism : CausalMechanism or EpochsMechanism
        The strategy with the problem's neighbours: its ``noise`` needs memory for few rows.
    solution : Solution
        The same noise, judged: its `gap` is relative to the bound on the unrestricted optimum.
    within : str
        The class.
    """

    mechanism: CausalMechanism | EpochsMechanism
    solution: Solution
    within: str

    @property
    def gap(self) -> float:
        """Certified relative distance from the unrestricted optimum."""
        return self.solution.gap

    @property
    def objective(self) -> float:
        """Objective of the problem at this noise."""
        return self.solution.objective

    def _facts(self) -> dict[str, object]:
        return {"class": self.within, "objective": self.objective, "above the optimum at most": self.gap}

    def __repr__(self) -> str:
        return f"ClassOptimum({self.within}, {self.objective:.6g}, at most {decimal_above(self.gap)} above the optimum)"


@blas_threads()
def strategy(
    problem: FitnessForUse | PrivacyFirst | TotalVariance,
    within: str,
    *,
    tol: float = 1e-6,
    bound: Solution | None = None,
) -> ClassOptimum:
    """Return a locally optimal causal strategy of a class, with its distance from the unrestricted optimum.

    - ``banded:B``: lower-triangular C with B bands, whose noise needs memory for B - 1 rows; ``banded:B:equal`` with
      columns of equal norm;
    - ``toeplitz:B``: ``C_ij = c_{i-j}`` with B coefficients, whose noise needs memory for B - 1 rows;
      ``toeplitz:B:scaled`` with factors on rows and columns (`dualmech.strategies.scaled_toeplitz`), for the same
      memory;
    - ``blt:K``: buffered Toeplitz strategies, ``c_0 = 1`` and ``c_k = Σ_j a_j θ_j^(k-1)`` with ``a_j > 0`` and
      ``0 < θ_j < 1``, whose noise needs memory for K rows.

    Descent is local: the strategy may not be the best of its class, but its distance from the optimum over all noise is
    certified. Users may have one or several participations (`dualmech.neighbours.participation`, with a fixed or a
    minimum separation). Then B is at most the separation, so that the participations of a user share no noise.
    Raises `InvalidInputError` or `InputTypeError` for another problem, class or number, other neighbours than one
    record or participations, more than 4,096 steps (except Toeplitz and buffered strategies on running sums), or a
    bound of another problem.

    Parameters
    ----------
    problem : FitnessForUse, PrivacyFirst or TotalVariance
        Its queries are on the steps of a stream, in order.
    within : str
        The class.
    tol : float, default 1e-6
        Gap for the bound.
    bound : Solution, optional
        A solution of the same problem, whose dual weights give the bound. By default a bound is computed.

    Examples
    --------
    >>> import dualmech as dm
    >>> from dualmech import fast
    >>> problem = dm.TotalVariance(dm.workloads.prefix(64), neighbours="participation:4:16")
    >>> found = fast.strategy(problem, within="banded:16")
    >>> round(found.gap, 3), found.mechanism.noise(10).recurrence.rows_kept(64), round(found.mechanism.rho, 3)
    (0.031, 15, 0.5)
    """
    if not isinstance(problem, FitnessForUse | PrivacyFirst | TotalVariance):
        raise InputTypeError(
            f"problem must be FitnessForUse, PrivacyFirst or TotalVariance, got {type(problem).__name__}"
        )
    rule = _rule(problem)
    steps = problem.workload.shape[1]
    family = _family(within, steps, rule, float(getattr(problem.workload, "decay", 1.0)))
    if steps > LARGEST_DENSE and not (family.by_series and isinstance(problem.geometry, Stream)):
        raise InvalidInputError(
            f"problem must have at most {LARGEST_DENSE} steps, got {steps}: more steps are supported for running sums "
            "with within='toeplitz:…' or 'blt:…'"
        )
    limits = Limits.validated(tol, None, None, None)
    if bound is not None and not validate.instance(Solution, bound=bound).problem.same_as(problem):
        raise InvalidInputError(f"bound must be a solution of the same problem, got one of {bound.problem!r}")
    start_time = time.perf_counter()
    _, best = best_mechanism(problem, family, rule)
    mechanism = best if rule is None else EpochsMechanism(best, rule)
    seconds = time.perf_counter() - start_time
    solution = judged_solution(
        problem,
        problem.as_primal(mechanism),
        _weights(problem, limits) if bound is None else bound.dual,
        tol=tol,
        otherwise=Status.GIVEN,
        message=f"the best strategy found within {within}",
        seconds=seconds,
        solver=f"fast:{within}",
    )
    return ClassOptimum(mechanism, solution, within)


def _weights(problem: Any, limits: Limits) -> Any:
    from dualmech.fast.reductions.epoch_stream import prolonged_weights  # few problems have that many steps
    from dualmech.geometry.epoch_stream import EpochStream

    accuracy_first = problem.accuracy_first if isinstance(problem, PrivacyFirst) else problem
    if isinstance(problem.geometry, EpochStream):
        return prolonged_weights(accuracy_first, limits)[0]
    return fitness.solve_on_geometry(accuracy_first, limits).dual


def _rule(problem: Any) -> Participation | None:
    """Return the rule of participations, or None for one record; raise `InvalidInputError` for other neighbours."""
    geometry = problem.geometry
    if geometry.name not in ("dense", "stream", "epochs"):
        raise InvalidInputError(
            f"problem must have geometry 'dense', 'stream' or 'epochs', over steps, got {geometry.name!r}"
        )
    neighbours = getattr(geometry, "neighbours", None)
    rule = relation_of(neighbours)
    if isinstance(rule, Participation):
        return rule
    if neighbours is not None and rule != ADD_REMOVE:
        raise InvalidInputError(
            "problem must have neighbours that differ by one record, or participations on geometry 'epochs'"
        )
    return None


def _family(within: str, steps: int, rule: Participation | None, decay: float) -> Family:
    name, _, arguments = validate.text(within=within).partition(":")
    number, _, form = arguments.partition(":")
    size = validate.whole(number) or 0
    if name not in CLASSES or size < 1 or form not in ("", FORMS.get(name, "")):
        raise InvalidInputError(
            "within must be banded:BANDS, banded:BANDS:equal, toeplitz:COEFFICIENTS, toeplitz:COEFFICIENTS:scaled or "
            f"blt:BUFFERS, got {within!r}"
        )
    max_size = MAX_BUFFERS if name == "blt" else min(steps, steps if rule is None else rule.separation)
    if size > max_size:
        reason = "" if name == "blt" or rule is None else f", the separation of the neighbours ({rule})"
        raise InvalidInputError(f"within must have at most {max_size} {CLASSES[name]}{reason}, got {within!r}")
    if name == "banded":
        return Bands(steps, size, rule, form == "equal")
    if form == "scaled":
        from dualmech.fast.engine.scaled import ScaledCoefficients  # rarely used

        return ScaledCoefficients(steps, size, rule, decay)
    times, separation = (1, steps) if rule is None else (rule.times, rule.separation)
    shared = np.arange(0, min(times * separation, steps), separation)
    return (Coefficients if name == "toeplitz" else BufferedSums)(steps, size, shared, decay)
