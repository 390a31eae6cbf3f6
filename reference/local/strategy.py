"""Local privacy through CVXPY: the convex program over all extremal patterns, handed to a backend, repaired, judged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg
from dualmech.errors import BackendError, InvalidInputError
from dualmech.geometry.local import patterns
from dualmech.problems.local.strategy import LocalDual, LocalPoint, LocalStrategy
from dualmech.reference.engine import attempts
from dualmech.reference.engine.scaling import entries
from dualmech.reference.local.statements import STATEMENTS, sdp
from dualmech.validate import Array

FORMULATIONS = {
    "average": {"sdp": frozenset({"PSD"}), "socp": frozenset({"SOC"}), "dual": frozenset({"SOC"})},
    "worst": {"dual": frozenset({"SOC"}), "socp": frozenset({"SOC"})},
}
"""The statements by criterion and name, the default first, with the cones that they need."""

MOST_USER_TYPES = 10  # user types up to which a program over all 2^n - 2 patterns is written down

WORST_ACCURACIES = (1e-2, 1e-3, 1e-4)
"""How much more accurately the worst case is solved: its largest variance grows at once with an error of the prior."""

NEGLIGIBLE = 1e-9  # weight of a pattern, relative to the largest, below which it is left out of a strategy


def _write(problem: LocalStrategy, name: str) -> cp.Problem:
    rows, share = _patterns(problem), problem.user_types * problem.prior
    if name == "sdp":
        return sdp(rows, rows / np.sqrt(rows @ share)[:, None], problem.root)
    return STATEMENTS[problem.criterion, name](rows, problem.root, share)


def _read(problem: LocalStrategy, formulation: str, request: attempts.BackendRequest) -> attempts.Readout:
    reading = _READINGS[problem.criterion, formulation](StrategyUnits.of(problem, _patterns(problem)))
    if problem.criterion == "average":
        return reading
    return replace(reading, steps=[(accuracy * request.tol, "") for accuracy in WORST_ACCURACIES])


@dataclass(frozen=True, slots=True, eq=False)
class StrategyUnits:
    """A problem with a root that is centred, which costs a constant, and scaled so that the optimum is near 1."""

    problem: LocalStrategy
    patterns: Array  # (s, n) P
    root: Array  # (k, n) ``(R - a 1') / √unit``
    centre: Array  # (k,) a, the mean of the columns of R under the prior; their plain mean in the worst case
    basis: Array  # (n, n - 1) orthogonal directions, with sum 0, in which the G of a good strategy is near the identity
    unit: float  # the objective of the average case that is called 1

    @classmethod
    def of(cls, problem: LocalStrategy, rows: Array) -> StrategyUnits:
        """Scale by the closed-form bound on the objective; `rows` are the patterns that are listed, if any."""
        size, root = problem.user_types, problem.root
        prior = problem.prior if problem.criterion == "average" else np.full(size, 1 / size)
        centre = root @ prior
        centred = root - centre[:, None]
        # One pattern of each size tells the largest trace that the part of G with sum 0 can have.
        each = patterns.rows(np.tri(size, dtype=bool)[:-1], problem.epsilon)
        trace = size * float(np.square(each - 1 / size).sum(axis=1).max())
        nuclear = float(linalg.singular_values(centred - centred.mean(axis=1)[:, None]).sum())
        # A workload that is constant up to rounding leaves nothing to decide.
        unit = max(nuclear, 8 * size * linalg.EPS * float(np.linalg.norm(root))) ** 2 / trace
        basis = scipy.linalg.helmert(size).T / math.sqrt(trace / (size - 1))
        return cls(problem, rows, centred / math.sqrt(unit), centre, basis, unit)

    @property
    def share(self) -> Array:
        """The prior times the number of user types."""
        return np.asarray(self.problem.user_types * self.problem.prior)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of weights, and in the worst case of probabilities after them."""
        users = self.problem.user_types if self.problem.criterion == "worst" else 0
        return (len(self.patterns) + users,)

    @property
    def objective_unit(self) -> float:
        """The program's objective that is called 1; of the worst case it is one user's variance."""
        return self.unit / (1 if self.problem.criterion == "average" else self.problem.user_types)

    @property
    def program_root(self) -> Array:
        """The root in the units of `objective_unit`."""
        return np.asarray(self.root * math.sqrt(self.unit / self.objective_unit))

    def covariance(self, inner: npt.ArrayLike | None, spare: float = 0.0) -> LocalPoint:
        """Return the strategy of weights w (s,), in the worst case followed by a prior, exactly feasible.

        A matrix stands for its diagonal: the identity for equal weights. `spare` is the share of all reports that goes
        to equal weights, should rounding hide what a strategy that is all but singular can answer.
        """
        given = np.maximum(entries(inner, "weights"), 0.0)
        weights, prior = given[: len(self.patterns)], given[len(self.patterns) :]
        if not weights.any() or (prior.size and not prior.any()):
            raise BackendError("the backend returned no weights to judge: none is positive")
        weights = (1 - spare) * weights + spare * weights.mean()
        kept = weights > NEGLIGIBLE * weights.max()
        strategy = self.patterns[kept] * weights[kept, None] * (len(self.share) / weights[kept].sum())
        chosen = prior / prior.sum() if prior.size else self.problem.prior
        return self.problem.feasible(LocalPoint(strategy, chosen))

    def dual(self, matrix: Array, costs: Array, prior: Array | None = None) -> LocalDual:
        """Return Z and y of the centred and scaled root as those of the problem's own.

        With ``R = R₀ + a 1'``, what proves a bound for R₀ proves one that is higher by the constant for R as
        ``Z₀ + share a'`` and ``y₀ + ‖a‖² share + 2 Z₀ a``, since ``‖Z'p‖² ≤ (y'p)(share'p)`` stays the same condition.
        """
        share = self.share if prior is None else len(self.share) * prior
        inner = math.sqrt(self.unit) * matrix
        raised = self.unit * costs + (self.centre @ self.centre) * share + 2 * inner @ self.centre
        return LocalDual(inner + np.outer(share, self.centre), raised, prior)

    def empty_dual(self) -> LocalDual:
        """Return what is known before there is an answer."""
        return self.dual(np.zeros(self.root.T.shape), np.zeros(len(self.share)))


def _sdp_readout(scaled: StrategyUnits) -> attempts.Readout:
    rows, basis = scaled.patterns, scaled.basis
    program = sdp(rows, rows @ basis / np.sqrt(rows @ scaled.share)[:, None], scaled.root @ basis)

    def multipliers() -> LocalDual:
        schur, columns = (constraint.dual_value for constraint in program.constraints)
        if schur is None or columns is None:
            return scaled.empty_dual()
        size = basis.shape[1]
        return scaled.dual(-basis @ schur[:size, size:], columns)

    return _readout(program, scaled, lambda: program.var_dict["w"].value, multipliers)


def _socp_readout(scaled: StrategyUnits) -> attempts.Readout:
    worst, size = scaled.problem.criterion == "worst", len(scaled.share)
    statement = STATEMENTS[scaled.problem.criterion, "socp"]
    program = statement(scaled.patterns, scaled.program_root, scaled.share)
    known = {constraint.label: constraint for constraint in program.constraints}

    def weights() -> Array | None:
        found = [program.var_dict["w"].value, *([known["users"].dual_value] if worst else [])]
        return None if any(part is None for part in found) else np.concatenate(found)

    def multipliers() -> LocalDual:
        Z, y = known["unbiased"].dual_value, known["columns"].dual_value
        if Z is None or y is None:
            return scaled.empty_dual()
        if not worst:
            return scaled.dual(-Z.T / 2, y)
        # One user's variance is what the program minimises: √n and n undo the units of its root and objective.
        return scaled.dual(-Z.T / 2 * math.sqrt(size), y, _prior(known["users"].dual_value))

    return _readout(program, scaled, weights, multipliers)


def _dual_readout(scaled: StrategyUnits) -> attempts.Readout:
    worst, size = scaled.problem.criterion == "worst", len(scaled.share)
    statement = STATEMENTS[scaled.problem.criterion, "dual"]
    program = statement(scaled.patterns, scaled.program_root, scaled.share)

    def weights() -> Array | None:
        sums, parts = program.constraints[0].dual_value
        if sums is None or parts is None:
            return None
        found = np.ravel(sums) + np.reshape(parts, (-1, len(scaled.patterns)))[-1]
        return np.concatenate([found, program.var_dict["share"].value]) if worst else found

    def multipliers() -> LocalDual:
        Z, y = program.var_dict["Z"].value, program.var_dict["y"].value
        if Z is None or y is None:
            return scaled.empty_dual()
        if not worst:
            return scaled.dual(Z, y)
        return scaled.dual(Z / math.sqrt(size), y / size, _prior(program.var_dict["share"].value))

    return _readout(program, scaled, weights, multipliers)


_READINGS = {
    ("average", "sdp"): _sdp_readout,
    ("average", "socp"): _socp_readout,
    ("average", "dual"): _dual_readout,
    ("worst", "socp"): _socp_readout,
    ("worst", "dual"): _dual_readout,
}


def _readout(
    program: cp.Problem,
    scaled: StrategyUnits,
    weights: Callable[[], Array | None],
    multipliers: Callable[[], LocalDual],
) -> attempts.Readout:
    average = scaled.problem.criterion == "average"
    constant = len(scaled.share) * float(scaled.centre @ scaled.centre) / scaled.unit if average else 0.0
    return attempts.Readout(
        program, scaled, covariance=weights, dual=multipliers, optimum=lambda value: value + constant
    )


def _prior(multipliers: Array | None) -> Array:
    """Return multipliers of the user types as a probability."""
    if multipliers is None or not np.any(multipliers > 0):
        raise BackendError("the backend returned no multipliers to judge")
    positive = np.maximum(np.ravel(multipliers), 0.0)
    return np.asarray(positive / positive.sum())


def _patterns(problem: LocalStrategy) -> Array:
    if problem.user_types > MOST_USER_TYPES:
        raise InvalidInputError(
            f"workload must have at most {MOST_USER_TYPES} user types for a program over all patterns, got "
            f"{problem.user_types}; the fast layer has no such limit, nor has `reference.lower_bound`"
        )
    return patterns.rows(patterns.all_sets(problem.user_types), problem.epsilon)


STATEMENT = attempts.Statement(lambda problem: FORMULATIONS[problem.criterion], _write, _read)
