"""A good strategy for many user types: random sets fitted to the workload, weighted and replaced by local search.

The sets are the largest entries of Gaussian vectors. A multiplicative rule weights them. The sets of smallest weight
are replaced by sets that violate a dual constraint, found by local search that moves one user type at a time. If the
sets are few, `dualmech.fast.local.columns` then finds optimal weights, and local search finds more patterns. For many
user types, all 2^n patterns cannot be priced: the strategy is good, and the bound is valid but not tight.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import scipy  # it loads special when that is used
import scipy.linalg

from dualmech.fast.engine import loop
from dualmech.fast.local import columns, points
from dualmech.fast.local.columns import Columns
from dualmech.fast.local.gradient import ProjectedGradient
from dualmech.fast.local.points import EQUALITY_TOL, MIN_VALUE, Frame, PatternPoint, View
from dualmech.geometry import local
from dualmech.geometry.local import Sets
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.progress import NO_DEADLINE, Deadline
from dualmech.validate import Array

# Random sets of user types whose pairs occur together about as often as in the best strategy.
#
# If every set has k members and the prior is uniform, G depends on how often pairs of types occur together: on the
# complement of the ones vector it is a multiple of the covariance of the indicators. If all covariances were possible,
# the best for a workload would be ``D^(-1/2) (D^(1/2) Π W'W Π D^(1/2))^(1/2) D^(-1/2)``, with D such that its diagonal
# is constant. The indicators of the k largest entries of a Gaussian vector have nearly any covariance, for a suitable
# covariance of the vector: the covariance of thresholded Gaussian variables is known (Sheppard). Weights correct the
# sampling error.


GRAM_RIDGE = 1e-6  # added to W'W on the complement of the ones, relative to its mean, so that all user types occur
MAX_SWEEPS, DIAGONAL_TOL = 15, 0.01  # of the iteration for a constant diagonal; relative
NUM_ANGLES = 4001  # number of correlations ``sin θ`` in the table of covariances of thresholded variables


@dataclass(frozen=True, slots=True, eq=False)
class Thresholds:
    """A factor (n, n) of the covariance of a Gaussian vector, and the number of its largest entries that form a set."""

    factor: Array
    members: int

    @classmethod
    def of(cls, root: Array, set_size: int) -> Thresholds:
        """Return the thresholds for a root R, shape (k, n), and sets of `set_size` user types."""
        latent = gaussian_correlations(best_correlations(root), set_size / root.shape[1])
        values, vectors = np.linalg.eigh(latent)
        return cls(vectors * np.sqrt(np.maximum(values, 0.0)), set_size)

    def draw(self, count: int, rng: np.random.Generator) -> Sets:
        """Draw sets, shape (count, n), from pairs of opposite vectors."""
        size = len(self.factor)
        half_vectors = rng.standard_normal(((count + 1) // 2, size)) @ self.factor.T
        vectors = np.vstack([half_vectors, -half_vectors])[:count]
        sets = np.zeros((count, size), dtype=bool)
        np.put_along_axis(sets, np.argpartition(-vectors, self.members - 1, axis=1)[:, : self.members], True, axis=1)
        return sets


def best_correlations(root: Array) -> Array:
    """Return the correlation matrix C, shape (n, n), that nearly minimises ``tr(R C⁻¹ R')``, by diagonal scaling.

    Only the complement of the ones vector counts.
    """
    size = root.shape[1]
    centred_root = root - root.mean(axis=1, keepdims=True)
    gram = centred_root.T @ centred_root
    mean = float(np.trace(gram)) / size
    gram = gram / mean if mean > GRAM_RIDGE * np.vdot(root, root) / size else np.zeros_like(gram)
    gram = gram + GRAM_RIDGE * np.eye(size)
    scale = np.ones(size)
    for _ in range(MAX_SWEEPS):
        values, vectors = np.linalg.eigh(scale[:, None] * gram * scale)
        correlations = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T / scale[:, None] / scale
        diagonal = np.diagonal(correlations) / np.diagonal(correlations).mean()
        if np.abs(diagonal - 1).max() < DIAGONAL_TOL:
            break
        scale = scale * np.sqrt(diagonal)
    deviations = np.sqrt(np.diagonal(correlations))
    return np.asarray(correlations / deviations[:, None] / deviations)


def gaussian_correlations(target_correlations: Array, fraction: float) -> Array:
    """Return correlations of Gaussian variables whose upper-tail indicators have approximately the target correlations.

    The indicators are 1 for a fraction of the distribution, above a threshold t. Their covariance is
    ``∫ exp(-t² / (1 + sin θ)) dθ / 2π`` from 0 to the arc sine of the Gaussian correlation.
    """
    threshold = float(scipy.special.ndtri(1 - fraction))
    angles = np.linspace(-np.pi / 2, np.pi / 2, NUM_ANGLES)[1:-1]
    density = np.exp(-(threshold**2) / (1 + np.sin(angles))) / (2 * np.pi)
    increments = (density[1:] + density[:-1]) / 2 * np.diff(angles)
    observed = np.concatenate([[0.0], np.cumsum(increments)])
    observed = (observed - np.interp(0.0, angles, observed)) / (fraction * (1 - fraction))
    latent = np.sin(np.interp(target_correlations, observed, angles))
    np.fill_diagonal(latent, 1.0)
    return np.asarray(latent)


# Weights on many patterns by a multiplicative rule, which is faster than the Newton steps of
# `dualmech.fast.local.columns`.
#
# With costs y that maximise ``2 Σ_S a_S √(y'p_S) - 1'y``, ``a_S = w_S ‖Z'p_S‖ / √(n π'p_S)``, the next weights are
# ``a_S / √(y'p_S)``: the problem is jointly convex in weights and reconstruction, and each is minimised in turn. The
# objective never increases, and columns sum to 1. For constant y this is the classical rule for A-optimal designs.


COLUMN_SUM_TOL = 1e-6  # absolute tolerance on the column sums when computing costs
MAX_COST_STEPS, MAX_HALVINGS = 20, 30  # of Newton's method for the costs; of one step


def reweigh(
    frame: Frame, point: PatternPoint, tol: float, max_steps: int, deadline: Deadline = NO_DEADLINE
) -> tuple[PatternPoint, View, int]:
    """Repeat the rule until its relative gain is at most `tol` or rounding ends it; return point, view and steps."""
    coordinates, rows = frame.coordinates(point.sets), frame.rows(point.sets)
    mass, weights, costs = rows @ point.share, point.weights, point.costs
    last_objective, num_steps = np.inf, 0
    while num_steps < max_steps:
        try:
            objective, lengths = _evaluate(frame, coordinates, weights / mass)
            amounts = weights * np.sqrt(lengths / mass)
            first_costs = costs if num_steps else np.full(len(costs), objective / len(costs))
            costs = _best_costs(frame, amounts, rows, first_costs)
        except np.linalg.LinAlgError:
            break
        weights, num_steps = np.maximum(amounts / np.sqrt(rows @ costs), MIN_VALUE), num_steps + 1
        if deadline.passed or (num_steps > 2 and last_objective - objective <= tol * last_objective):
            break
        last_objective = objective
    point = replace(point, weights=weights, slacks=np.full(len(weights), MIN_VALUE), costs=costs)
    return point, View.of(frame, point), num_steps


def _evaluate(frame: Frame, coordinates: Array, densities: Array) -> tuple[float, Array]:
    """Return ``tr(R G⁻¹ R')``, and ``‖Z'p_S‖²`` for all patterns."""
    objective, lengths = 0.0, np.zeros(len(coordinates))
    for part, root in zip(frame.parts, frame.roots, strict=True):
        part_coordinates = coordinates[:, part]
        scaled = part_coordinates * np.sqrt(densities)[:, None]
        matrix = scipy.linalg.cho_solve(
            scipy.linalg.cho_factor(scaled.T @ scaled, check_finite=False), root.T, check_finite=False
        )
        reconstruction = part_coordinates @ matrix
        objective += float(np.vdot(matrix, root.T))
        lengths += np.einsum("sk,sk->s", reconstruction, reconstruction)
    return objective, lengths


def _best_costs(frame: Frame, amounts: Array, rows: Array, costs: Array) -> Array:
    """Return the costs y that maximise ``2 Σ_S a_S √(y'p_S) - 1'y`` for amounts a, by Newton's method."""

    def value(trial: Array) -> float:
        prices = rows @ trial
        return float(2 * amounts @ np.sqrt(prices) - trial.sum()) if np.all(prices > 0) else -np.inf

    best_value = value(costs)
    for _ in range(MAX_COST_STEPS):
        roots = np.sqrt(rows @ costs)
        slopes = (amounts / roots) @ rows - 1
        if np.abs(slopes).max() <= COLUMN_SUM_TOL:
            break
        scaled = rows @ frame.symmetric_rows.T * np.sqrt(amounts / (2 * roots**3))[:, None]
        change = frame.symmetric_rows.T @ np.linalg.solve(scaled.T @ scaled, frame.symmetric_rows @ slopes)
        for _ in range(MAX_HALVINGS):
            new_value = value(costs + change)
            if new_value >= best_value:
                costs, best_value = costs + change, new_value
                break
            change = change / 2
        else:
            break
    return costs


SETS_PER_USER_TYPE = 16  # number of random sets, which stays constant
MAX_WEIGHING_STEPS, WEIGHING_TOL = 25, 2e-4
"""Limit on the weighting steps for one collection of sets, and the relative gain of the last step."""

MAX_ROUNDS, MAX_STALLED_ROUNDS = 30, 6
"""Limits on the replacements of sets before Newton steps: in total, and in succession without a smaller gap."""

TRIAL_SETS, TRIAL_STEPS = 4, 12  # to find the best set size: sets per user type, and weighting steps

DRAWN_WEIGHT = 0.01  # weight of random sets added to the patterns of a descent, relative to the mean weight of these
TIME_SHARE = 0.3  # fraction of the time limit for sampling, and for a descent

FOLLOWING = 3  # time reserved after a search with many user types, in units of the time to draw sets

MAX_EXACT, MAX_SPARSE_EXACT = 64, 256
"""Maximum numbers of user types for Newton's method: in general, and if few pairs of types are frequent. A step for
more user types takes seconds."""

MIN_PAIR_FREQUENCY, MAX_PAIR_FRACTION = 0.05, 1 / 3
"""A pair is frequent if its moment is at least this fraction of a user type's mean moment; pairs are few if at most
this fraction of all pairs is frequent."""

START_SETS = 6  # random sets per user type at the start of Newton's method

CLIMBERS_PER_USER_TYPE, MIN_CLIMBERS = 1, 100
"""Starting points of local search: this number of current patterns, and of random sets."""

ADDED = 2  # maximum number of patterns added at a time, per user type

MIN_PATTERN_LIMIT, PATTERNS_PER_USER_TYPE = 1500, 8
"""The number of patterns is limited by the larger of 1,500 and 8 per user type."""

GAP_FACTOR = 0.2  # more are added if the gap on the current patterns is this fraction of the estimated gap

MAX_STEPS = 12  # Newton steps on one set of patterns
FIRST_TOL, MIN_TOL = 0.1, 1e-12  # relative tolerances of the first weighting, and of the last
MIN_CLIMB_GAIN = 1e-9  # relative, for one move of the local search
PERTURBATION_SIZE = 2  # expected number of user types flipped in a pattern before local search


def search(
    problem: LocalStrategy,
    frame: Frame,
    limits: loop.Limits,
    rng: np.random.Generator,
    bound: float,
    max_gap: float = np.inf,
) -> tuple[loop.Outcome[Columns], Columns]:
    """Search until the gap is reached or stops decreasing.

    The gap is to a valid `bound`, if that is positive and the relative gap is at most `max_gap`. Otherwise it is to an
    estimate of the bound by local search, which proves nothing. Return the outcome, and the best random sets before
    Newton's method.
    """
    size = len(frame.share)
    use_newton = size <= MAX_EXACT or frame.adversary
    thresholds = _best_thresholds(problem, frame, rng, limits.deadline)
    start_time = time.perf_counter()
    start_point = _random_point(frame, thresholds, SETS_PER_USER_TYPE, rng)
    reserved = 0.0 if use_newton else FOLLOWING * (time.perf_counter() - start_time)
    limits = replace(limits, deadline=limits.deadline.before(reserved))
    if np.linalg.matrix_rank(problem.root) < size - 1:
        start_point = _with_descent(problem, frame, start_point, replace(limits, callback=None), rng)
    seeker = Seeker(frame, thresholds, bound / frame.unit**2, max_gap, rng, limits.deadline)
    weighed = seeker.weigh(start_point)
    if not use_newton and not (size <= MAX_SPARSE_EXACT and _has_few_pairs(frame, weighed.point)):
        outcome = loop.run(weighed, seeker.exchange, limits, margin=1.0)
        return outcome, outcome.best_primal
    early_deadline = limits.deadline.after(TIME_SHARE)
    sampling = replace(limits, callback=None, max_iterations=MAX_ROUNDS * MAX_WEIGHING_STEPS, deadline=early_deadline)
    sampler = replace(seeker, deadline=early_deadline)
    best_random = loop.run(weighed, sampler.exchange, sampling, margin=1.0, patience=MAX_STALLED_ROUNDS).best_primal
    first_state = seeker.solve(heaviest_sets_point(frame, best_random.point), FIRST_TOL, np.inf, 0)
    return loop.run(first_state, seeker.step, limits, margin=1.0), best_random


def _has_few_pairs(frame: Frame, point: PatternPoint) -> bool:
    """Return whether few pairs of user types are frequent: then few patterns suffice."""
    user_moments = points.moments(frame, point)[1:, 1:]
    frequent_pairs = np.triu(user_moments > MIN_PAIR_FREQUENCY * np.diagonal(user_moments).mean(), 1)
    return bool(frequent_pairs.sum() <= MAX_PAIR_FRACTION * len(user_moments) * (len(user_moments) - 1) / 2)


def _best_thresholds(problem: LocalStrategy, frame: Frame, rng: np.random.Generator, deadline: Deadline) -> Thresholds:
    """Return the thresholds with the best set size, judged by a few sets after a few weighting steps.

    The set size of subset selection is best for workloads without structure. If neighbouring user types belong
    together, larger sets may be much better: the size is multiplied by 1.5 as long as that helps.
    """
    size = len(frame.share)
    set_size, best, best_objective = local.selected_size(size, problem.epsilon), None, np.inf
    while True:
        thresholds = Thresholds.of(problem.root, set_size)
        start_point = _random_point(frame, thresholds, TRIAL_SETS, rng)
        objective = reweigh(frame, start_point, WEIGHING_TOL, TRIAL_STEPS, deadline)[1].objective
        if best is not None and not objective < best_objective:
            return best
        best, best_objective, set_size = thresholds, objective, -(-3 * set_size // 2)
        if set_size >= size or deadline.passed:
            return best


def _random_point(
    frame: Frame, thresholds: Thresholds, sets_per_user_type: int, rng: np.random.Generator
) -> PatternPoint:
    size = len(frame.share)
    random_sets = thresholds.draw(sets_per_user_type * size, rng)
    return points.start(frame, np.unique(np.vstack([np.eye(size, dtype=bool), random_sets]), axis=0))


def resume(
    problem: LocalStrategy, frame: Frame, state: Columns, limits: loop.Limits, rng: np.random.Generator, bound: float
) -> loop.Outcome[Columns]:
    """Continue an interrupted search, towards a valid bound or, if that is 0, an estimated one."""
    sizes, weights = state.point.sets.sum(axis=1), state.point.weights
    thresholds = Thresholds.of(problem.root, max(round(float(sizes @ weights / weights.sum())), 1))
    seeker = Seeker(frame, thresholds, bound / frame.unit**2, np.inf, rng, limits.deadline)
    begin = replace(state, lower_bound=seeker.bound or state.lower_bound, steps=0)
    return loop.run(begin, seeker.step, limits, margin=1.0)


def _with_descent(
    problem: LocalStrategy, frame: Frame, drawn_point: PatternPoint, limits: loop.Limits, rng: np.random.Generator
) -> PatternPoint:
    """Add the patterns of largest weight from gradient descent, for a rank-deficient W, unlike random sets."""
    descent_limits, size = replace(limits, deadline=limits.deadline.after(TIME_SHARE)), len(frame.share)
    strategy, _ = ProjectedGradient(rng=rng).descend(problem, descent_limits)
    weights, sets = heaviest_patterns(strategy, problem.epsilon, SETS_PER_USER_TYPE * size // 2)
    sets, place = np.unique(np.vstack([sets, drawn_point.sets]), axis=0, return_index=True)
    weights = np.append(weights, np.full(len(drawn_point.sets), DRAWN_WEIGHT * weights.mean()))[place]
    weights = points.balance_columns(size * weights / weights.sum(), frame.rows(sets))
    return points.start(frame, sets, weights)


def heaviest_patterns(strategy: Array, epsilon: float, max_patterns: int) -> tuple[Array, Sets]:
    """Decompose the rows of a strategy into patterns; return weights and sets of the heaviest non-constant ones."""
    minimum, size = strategy.min(axis=1, keepdims=True), strategy.shape[1]
    excess = local.gain(epsilon)
    levels = (strategy / minimum - 1) / excess
    sorted_levels = np.sort(levels, axis=1)
    weights = minimum * np.diff(sorted_levels, axis=1) * (size + excess * np.arange(size - 1, 0, -1))
    selected = np.argsort(-weights, axis=None, kind="stable")[:max_patterns]
    selected = selected[weights.ravel()[selected] > 0]
    output, place = np.unravel_index(selected, weights.shape)
    return weights.ravel()[selected], levels[output] >= sorted_levels[output, place + 1][:, None]


def heaviest_sets_point(frame: Frame, point: PatternPoint) -> PatternPoint:
    """Return a start for Newton's method: the heaviest sets of a point, and single user types."""
    size = len(frame.share)
    singletons = np.eye(size, dtype=bool)
    selected = np.argsort(-point.weights, kind="stable")[: START_SETS * size]
    sets, place = np.unique(np.vstack([point.sets[selected], singletons]), axis=0, return_index=True)
    weights = np.append(point.weights[selected], np.full(size, point.weights[selected].min()))[place]
    weights = points.balance_columns(size * weights / weights.sum(), frame.rows(sets))
    return points.start(frame, sets, weights)


def climb(
    form: Array, share: Array, epsilon: float, sets: Sets, deadline: Deadline = NO_DEADLINE
) -> tuple[Array, Sets]:
    """Maximise ``v'Kv / (1'v · b'v)`` by local search that flips one user type at a time; return values and sets.

    After the deadline, the current sets are returned.
    """
    size, excess = len(form), local.gain(epsilon)
    members = sets.astype(np.float64)
    products = (1 + excess * members) @ form
    values = np.einsum("su,su->s", 1 + excess * members, products)
    counts, masses = members.sum(axis=1), size + excess * members @ share
    diagonal = np.diagonal(form)
    while True:
        signs = 1 - 2 * members
        new_values = values[:, None] + 2 * excess * signs * products + excess**2 * diagonal
        new_counts = counts[:, None] + signs
        scores = new_values / ((size + excess * new_counts) * (masses[:, None] + excess * signs * share))
        scores[(new_counts < 1) | (new_counts > size - 1)] = -np.inf
        best = scores.argmax(axis=1)
        best_scores = scores[np.arange(len(sets)), best]
        scores_now = values / ((size + excess * counts) * masses)
        improving = np.flatnonzero(best_scores > scores_now + MIN_CLIMB_GAIN * np.abs(scores_now))
        if not improving.size or deadline.passed:
            return scores_now, members > 0.5
        flipped = best[improving]
        sign = signs[improving, flipped]
        values[improving] = new_values[improving, flipped]
        counts[improving] += sign
        masses[improving] += excess * sign * share[flipped]
        members[improving, flipped] += sign
        products[improving] += excess * sign[:, None] * form[flipped]


@dataclass(frozen=True, slots=True, eq=False)
class Seeker:
    frame: Frame
    thresholds: Thresholds
    bound: float
    max_gap: float  # the bound is used if the relative gap to it is at most this; else the estimate of local search
    rng: np.random.Generator
    deadline: Deadline

    def weigh(self, point: PatternPoint, least_gap: float = np.inf, steps: int = 0) -> Columns:
        point, view, num_steps = reweigh(self.frame, point, WEIGHING_TOL, MAX_WEIGHING_STEPS, self.deadline)
        return self._columns(point, view, least_gap, steps + num_steps)

    def exchange(self, columns: Columns) -> Columns:
        """Replace the lightest sets by the violated ones, and weight the sets again."""
        point, new_sets = columns.point, columns.new_sets
        size = len(self.frame.share)
        kept_mask = point.sets.sum(axis=1) == 1
        kept_mask[np.argsort(-point.weights, kind="stable")[: (SETS_PER_USER_TYPE + 1) * size - len(new_sets)]] = True
        sets = np.vstack([point.sets[kept_mask], new_sets])
        weights = np.append(point.weights[kept_mask], np.full(len(new_sets), np.median(point.weights[kept_mask])))
        weights *= size / weights.sum()
        return self.weigh(replace(point, sets=sets, weights=weights), columns.least_gap, columns.steps)

    def solve(self, point: PatternPoint, aim: float, least_gap: float, steps: int) -> Columns:
        point, view, num_steps = columns.follow_path(self.frame, point, aim, MAX_STEPS, self.deadline)
        return self._columns(point, view, least_gap, steps + num_steps)

    def step(self, state: Columns) -> Columns:
        """Keep the patterns of largest ratio of weight to slack, add the violated ones, and solve again."""
        point, new_sets, size = state.point, state.new_sets, len(self.frame.share)
        kept_mask = point.sets.sum(axis=1) == 1  # single user types guarantee that G is non-singular
        order = np.argsort(-point.weights / point.slacks, kind="stable")
        kept_mask[order[: max(MIN_PATTERN_LIMIT, PATTERNS_PER_USER_TYPE * size) - len(new_sets)]] = True
        aim = GAP_FACTOR * min(state.least_gap, 1.0)
        if not len(new_sets):
            aim = GAP_FACTOR * min(aim, columns.progress(self.frame, point, state.view))
        product = aim * state.view.objective / len(point.sets)
        point = points.replace_patterns(self.frame, point, kept_mask, new_sets, product)
        return self.solve(point, max(aim, MIN_TOL), state.least_gap, state.steps)

    def _columns(self, point: PatternPoint, view: View, least_gap: float, steps: int) -> Columns:
        """Search for violated patterns at a point; after the deadline, the estimated bound is 0."""
        rise, violated = self._violated_patterns(point, view)
        objective, suggested = columns.objective_and_bound(
            self.frame, point, view, np.inf if self.deadline.passed else rise
        )
        gap = (objective - suggested) / suggested if suggested > 0 else np.inf
        use_bound = self.bound > 0 and objective <= (1 + self.max_gap) * self.bound
        lower_bound = self.bound if use_bound else suggested
        return Columns(point, view, objective, lower_bound, violated, steps, min(gap, least_gap))

    def _violated_patterns(self, point: PatternPoint, view: View) -> tuple[float, Sets]:
        """Search from perturbed current patterns and from random sets; return the rise of costs and violated sets."""
        size, rng = len(self.frame.share), self.rng
        climbers = max(CLIMBERS_PER_USER_TYPE * size, MIN_CLIMBERS)
        perturbed = point.sets[np.argsort(-point.weights, kind="stable")[:climbers]]
        perturbed = perturbed ^ (rng.random(perturbed.shape) < PERTURBATION_SIZE / size)
        random_sets = self.thresholds.draw(climbers, rng)
        costs_by_share = np.outer(point.costs, point.share)
        form = view.matrix @ view.matrix.T - (costs_by_share + costs_by_share.T) / 2
        scores, sets = climb(form, point.share, self.frame.epsilon, np.vstack([perturbed, random_sets]), self.deadline)
        violated = np.flatnonzero((scores > 0) & sets.any(axis=1) & ~sets.all(axis=1))
        if not violated.size:
            return 0.0, sets[:0]
        order = violated[np.argsort(-scores[violated], kind="stable")]
        return float(scores[order[0]]), columns.distinct(self.frame, sets[order])[: ADDED * size]


# Subset selection with few outputs: the best strategy for workloads that treat all user types equally.
#
# If ``W'W = a I + b 1 1'``, every strategy with patterns of k user types and ``G`` of the same form is optimal, for
# the right k. Choosing all sets of k types is subset selection (Ye and Barg, "Optimal schemes for discrete
# distribution estimation under locally differential privacy", IEEE Trans. Inf. Theory 64(8), 2018), which has too many
# outputs to list. G only requires a design: pairs of user types occur equally often together. Here the design consists
# of all rotations of a few sets on a circle, weighted such that all distances occur equally often.


BASE_SETS = 4  # random sets per distance
MAX_USER_TYPES = 512  # all rotations fit into memory up to here: there are about n²/2
BALANCE_TOL = 1e-10  # relative tolerance on the frequencies of the distances


def treats_all_equally(problem: LocalStrategy) -> bool:
    """Return whether ``W'W = a I + b 1 1'`` and the prior is uniform."""
    gram = problem.root.T @ problem.root
    size = len(gram)
    off_diagonal = gram[~np.eye(size, dtype=bool)]
    variation = np.ptp(np.diagonal(gram)) + np.ptp(off_diagonal)
    return bool(variation <= EQUALITY_TOL * np.abs(gram).max() and np.ptp(problem.prior) <= EQUALITY_TOL)


def strategy(problem: LocalStrategy, rng: np.random.Generator) -> Array | None:
    """Return a strategy from a design, shape (m, n), or None if the random sets do not suffice or would be too many."""
    if problem.user_types > MAX_USER_TYPES:
        return None
    # Imported here so that solvers load without it.
    from scipy.optimize import nnls

    size, set_size = problem.user_types, local.selected_size(problem.user_types, problem.epsilon)
    differences = size // 2
    random_sets = np.argsort(rng.random((BASE_SETS * differences, size)), axis=1) < set_size
    # Arithmetic progressions, for distances that few random sets contain if there are few user types.
    members = np.outer(np.arange(1, differences + 1), np.arange(set_size)) % size
    arithmetic_sets = np.zeros((differences, size), dtype=bool)
    np.put_along_axis(arithmetic_sets, members, True, axis=1)
    base_sets = np.vstack([random_sets, arithmetic_sets[arithmetic_sets.sum(axis=1) == set_size]])
    # If the mean spectrum of the sets is constant except at 0, all distances occur equally often.
    spectra = np.abs(np.fft.rfft(base_sets, axis=1)[:, 1:]) ** 2 / (set_size * (size - set_size) / (size - 1))
    system = np.vstack([spectra.T, np.ones(len(base_sets))])
    shares, _ = nnls(system, np.ones(len(system)))
    if np.abs(system @ shares - 1).max() > BALANCE_TOL:
        return None
    positive = np.flatnonzero(shares > 0)
    translates = (np.arange(size)[:, None] + np.arange(size)) % size
    rows = local.rows(np.vstack([base_sets[index][translates] for index in positive]), problem.epsilon)
    return np.asarray(np.repeat(shares[positive], size)[:, None] * rows)
