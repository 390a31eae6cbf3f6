"""A good strategy for many user types: sets that are drawn for the workload, weighed, and replaced by local search.

The sets are the largest entries of Gaussian vectors. A multiplicative rule weighs them, and the lightest leave. Their
place is taken by sets that climb, one user type in or out at a time, to where a dual constraint is violated. Where the
sets are few enough, weights are then found exactly, by `dualmech.fast.local.columns`, with local search for more
patterns. For many user types, all 2^n patterns cannot be priced. The answer is good; the bound is valid, and not tight.
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
from dualmech.fast.local.points import ALIKE, SMALLEST, Frame, PatternPoint, View
from dualmech.geometry import local
from dualmech.geometry.local import Sets
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.progress import NO_DEADLINE, Deadline
from dualmech.validate import Array

# Sets of user types drawn such that pairs occur together about as often as in the best strategy: for many user types.
#
# Where every set has k members and no user type is preferred, G depends on how often pairs of types occur together: off
# the ones it is a multiple of the covariance of the indicators. Were all covariances allowed, the best for a workload
# would be ``D^(-1/2) (D^(1/2) Π W'W Π D^(1/2))^(1/2) D^(-1/2)``, with D such that its diagonal is constant. The
# indicators of the k largest entries of a Gaussian vector have nearly any covariance, if the covariance of the vector
# is chosen for it: the covariance of thresholded Gaussian variables is known (Sheppard). Weights mend the error that
# sampling leaves.


FLOOR = 1e-6  # addition to W'W off the ones, relative to its mean, so that all user types occur
SWEEPS, EVEN = 15, 0.01  # steps towards a constant diagonal, at most, and the deviation that counts as none
ANGLES = 4001  # correlations ``sin θ`` at which the covariance of thresholded variables is tabulated


@dataclass(frozen=True, slots=True, eq=False)
class Thresholds:
    """A Gaussian vector, by a factor (n, n) of its covariance, and how many of its largest entries are in a set."""

    factor: Array
    members: int

    @classmethod
    def of(cls, root: Array, members: int) -> Thresholds:
        """Return those for a root R (k, n) and sets of so many members."""
        latent = gaussian_correlations(best_correlations(root), members / root.shape[1])
        values, vectors = np.linalg.eigh(latent)
        return cls(vectors * np.sqrt(np.maximum(values, 0.0)), members)

    def draw(self, count: int, rng: np.random.Generator) -> Sets:
        """Draw sets (count, n), in pairs of opposite vectors."""
        size = len(self.factor)
        half = rng.standard_normal(((count + 1) // 2, size)) @ self.factor.T
        vectors = np.vstack([half, -half])[:count]
        sets = np.zeros((count, size), dtype=bool)
        np.put_along_axis(sets, np.argpartition(-vectors, self.members - 1, axis=1)[:, : self.members], True, axis=1)
        return sets


def best_correlations(root: Array) -> Array:
    """Return the correlations C (n, n) of least ``tr(R C⁻¹ R')`` off the ones, nearly, by scaling of the diagonal."""
    size = root.shape[1]
    centred = root - root.mean(axis=1, keepdims=True)
    gram = centred.T @ centred
    mean = float(np.trace(gram)) / size
    gram = (gram / mean if mean > FLOOR * np.vdot(root, root) / size else np.zeros_like(gram)) + FLOOR * np.eye(size)
    scale = np.ones(size)
    for _ in range(SWEEPS):
        values, vectors = np.linalg.eigh(scale[:, None] * gram * scale)
        correlations = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T / scale[:, None] / scale
        diagonal = np.diagonal(correlations) / np.diagonal(correlations).mean()
        if np.abs(diagonal - 1).max() < EVEN:
            break
        scale = scale * np.sqrt(diagonal)
    deviations = np.sqrt(np.diagonal(correlations))
    return np.asarray(correlations / deviations[:, None] / deviations)


def gaussian_correlations(wanted: Array, share: float) -> Array:
    """Return correlations of Gaussian variables whose indicators of the largest `share` have those wanted, or nearly.

    Their covariance is ``∫ exp(-t² / (1 + sin θ)) dθ / 2π`` up to the angle of the correlation, t the threshold.
    """
    threshold = float(scipy.special.ndtri(1 - share))
    angles = np.linspace(-np.pi / 2, np.pi / 2, ANGLES)[1:-1]
    density = np.exp(-(threshold**2) / (1 + np.sin(angles))) / (2 * np.pi)
    steps = (density[1:] + density[:-1]) / 2 * np.diff(angles)
    reached = np.concatenate([[0.0], np.cumsum(steps)])
    reached = (reached - np.interp(0.0, angles, reached)) / (share * (1 - share))
    latent = np.sin(np.interp(wanted, reached, angles))
    np.fill_diagonal(latent, 1.0)
    return np.asarray(latent)


# Weights on many patterns by a multiplicative rule: the exact ones of `dualmech.fast.local.columns` take longer.
#
# With costs y that maximise ``2 Σ_S a_S √(y'p_S) - 1'y``, ``a_S = w_S ‖Z'p_S‖ / √(n π'p_S)``, the next weights are
# ``a_S / √(y'p_S)``: the problem is jointly convex in weights and reconstruction, and each is minimised in turn. The
# objective never rises, and columns sum to 1. Where y is constant this is the classical rule of A-optimal designs.


SUMS = 1e-6  # how far the columns' sums may be from 1 when the costs are found
COST_STEPS, MOST_HALVINGS = 20, 30  # Newton steps for the costs, and halvings of one, at most
FIRST = 2  # steps after which the gain of one says something: the first makes columns sum to 1


def reweigh(
    frame: Frame, point: PatternPoint, tol: float, most: int, deadline: Deadline = NO_DEADLINE
) -> tuple[PatternPoint, View, int]:
    """Step until a step gains less than `tol`, relative, or rounding ends it; return point, view and steps."""
    coordinates, rows = frame.coordinates(point.sets), frame.rows(point.sets)
    mass, weights, costs = rows @ point.share, point.weights, point.costs
    before, count = np.inf, 0
    while count < most:
        try:
            objective, lengths = _evaluate(frame, coordinates, weights / mass)
            amounts = weights * np.sqrt(lengths / mass)
            costs = _best_costs(frame, amounts, rows, costs if count else np.full(len(costs), objective / len(costs)))
        except np.linalg.LinAlgError:
            break
        weights, count = np.maximum(amounts / np.sqrt(rows @ costs), SMALLEST), count + 1
        if deadline.passed or (count > FIRST and before - objective <= tol * before):
            break
        before = objective
    point = replace(point, weights=weights, slacks=np.full(len(weights), SMALLEST), costs=costs)
    return point, View.of(frame, point), count


def _evaluate(frame: Frame, coordinates: Array, densities: Array) -> tuple[float, Array]:
    """Return ``tr(R G⁻¹ R')`` and the ``‖Z'p_S‖²`` of all patterns."""
    objective, lengths = 0.0, np.zeros(len(coordinates))
    for part, root in zip(frame.parts, frame.roots, strict=True):
        seen = coordinates[:, part]
        scaled = seen * np.sqrt(densities)[:, None]
        matrix = scipy.linalg.cho_solve(
            scipy.linalg.cho_factor(scaled.T @ scaled, check_finite=False), root.T, check_finite=False
        )
        pulled = seen @ matrix
        objective += float(np.vdot(matrix, root.T))
        lengths += np.einsum("sk,sk->s", pulled, pulled)
    return objective, lengths


def _best_costs(frame: Frame, amounts: Array, rows: Array, costs: Array) -> Array:
    """Return the costs that are the best for some amounts, by Newton's method from others."""

    def value(trial: Array) -> float:
        prices = rows @ trial
        return float(2 * amounts @ np.sqrt(prices) - trial.sum()) if np.all(prices > 0) else -np.inf

    reached = value(costs)
    for _ in range(COST_STEPS):
        roots = np.sqrt(rows @ costs)
        slopes = (amounts / roots) @ rows - 1
        if np.abs(slopes).max() <= SUMS:
            break
        scaled = rows @ frame.same.T * np.sqrt(amounts / (2 * roots**3))[:, None]
        change = frame.same.T @ np.linalg.solve(scaled.T @ scaled, frame.same @ slopes)
        for _ in range(MOST_HALVINGS):
            best_value = value(costs + change)
            if best_value >= reached:
                costs, reached = costs + change, best_value
                break
            change = change / 2
        else:
            break
    return costs


DRAWN = 16  # sets that are drawn, and stay as many, for each user type
WEIGHING, LAST_GAIN = 25, 2e-4
"""Steps that weigh one collection of sets, at most, and the relative gain below which they end."""

ROUNDS, IDLE = 30, 6
"""How often sets are replaced before exact weights, at most, and rounds without a smaller gap."""

TRIED, TRIAL_STEPS = 4, 12  # sets for each user type, and steps that weigh them, to find the best size of sets

LIGHT = 0.01  # weight of drawn sets next to patterns of a descent, relative to the mean of these
SHORT = 0.3  # share of the time allowed until then

FOLLOWING = 3  # time kept for the rest after a search of many user types, in units of the time to draw sets

FEW, MANY = 64, 256
"""User types up to which weights are found exactly, and up to which they are where few pairs of types meet in a set. A
step for more takes seconds."""

MET_SHARE, MET_PAIRS = 0.05, 1 / 3
"""How often a pair is in a set together, relative to a user type, that counts as a meeting, and the share of all pairs
that counts as few."""

HEAVIEST = 6  # drawn sets that are then kept, for each user type

CLIMBERS, LEAST = 1, 100
"""Sets that climb from patterns in use, and as many drawn ones, for each user type, and at least."""

ADDED = 2  # patterns that are added at a time, at most, for each user type

MOST, ROOM = 1500, 8
"""Patterns that are weighed together, at most: so many, or so many for each user type if that is more."""

CLOSER = 0.2  # remaining gap on the current patterns, relative to the suggested gap, at which more are added

STEPS = 12  # Newton steps on one set of patterns, at most
COARSE, FINEST = 0.1, 1e-12  # aims of the first weighing, relative, and the least one
CLIMB = 1e-9  # least relative gain of a step up
PERTURBATION_SIZE = 2  # user types that are moved in or out of a pattern before it climbs


def search(
    problem: LocalStrategy,
    frame: Frame,
    limits: loop.Limits,
    rng: np.random.Generator,
    bound: float,
    enough: float = np.inf,
) -> tuple[loop.Outcome[Columns], Columns]:
    """Search until the gap is reached or stops shrinking: the gap to a bound, if that is positive and gets so close.

    Elsewhere the gap is to a bound that local search suggests, which proves nothing. Return the outcome, and the best
    of the drawn sets, with which the search began.
    """
    size = len(frame.share)
    exact = size <= FEW or frame.adversary
    thresholds = _best_thresholds(problem, frame, rng, limits.deadline)
    began = time.perf_counter()
    first = _drawn_point(frame, thresholds, DRAWN, rng)
    following = 0.0 if exact else FOLLOWING * (time.perf_counter() - began)
    limits = replace(limits, deadline=limits.deadline.before(following))
    if np.linalg.matrix_rank(problem.root) < size - 1:
        first = _with_descent(problem, frame, first, replace(limits, callback=None), rng)
    seeker = Seeker(frame, thresholds, bound / frame.unit**2, enough, rng, limits.deadline)
    weighed = seeker.weigh(first)
    if not exact and not (size <= MANY and _few_meet(frame, weighed.point)):
        outcome = loop.run(weighed, seeker.exchange, limits, margin=1.0)
        return outcome, outcome.best_primal
    soon = limits.deadline.after(SHORT)
    early = replace(limits, callback=None, max_iterations=ROUNDS * WEIGHING, deadline=soon)
    hasty = replace(seeker, deadline=soon)
    drawn = loop.run(weighed, hasty.exchange, early, margin=1.0, patience=IDLE).best_primal
    begin = seeker.generated(heaviest(frame, drawn.point), COARSE, np.inf, 0)
    return loop.run(begin, seeker.step, limits, margin=1.0), drawn


def _few_meet(frame: Frame, point: PatternPoint) -> bool:
    """Whether few pairs of user types are in a set together by more than a little: then few patterns suffice."""
    users = points.moments(frame, point)[1:, 1:]
    together = np.triu(users > MET_SHARE * np.diagonal(users).mean(), 1)
    return bool(together.sum() <= MET_PAIRS * len(users) * (len(users) - 1) / 2)


def _best_thresholds(problem: LocalStrategy, frame: Frame, rng: np.random.Generator, deadline: Deadline) -> Thresholds:
    """Return the thresholds whose sets, a few of them weighed for a few steps, are the best.

    Subset selection has the best size for workloads without structure. Where neighbouring user types belong together,
    larger sets may be far better: they are tried, half as large again at a time, as long as that helps.
    """
    size = len(frame.share)
    members, best, least = local.selected_size(size, problem.epsilon), None, np.inf
    while True:
        thresholds = Thresholds.of(problem.root, members)
        first = _drawn_point(frame, thresholds, TRIED, rng)
        objective = reweigh(frame, first, LAST_GAIN, TRIAL_STEPS, deadline)[1].objective
        if best is not None and not objective < least:
            return best
        best, least, members = thresholds, objective, -(-3 * members // 2)
        if members >= size or deadline.passed:
            return best


def _drawn_point(frame: Frame, thresholds: Thresholds, count: int, rng: np.random.Generator) -> PatternPoint:
    """Return equal weights on single user types and on drawn sets, so many for each user type."""
    size = len(frame.share)
    drawn = thresholds.draw(count * size, rng)
    return points.start(frame, np.unique(np.vstack([np.eye(size, dtype=bool), drawn]), axis=0))


def resume(
    problem: LocalStrategy, frame: Frame, state: Columns, limits: loop.Limits, rng: np.random.Generator, bound: float
) -> loop.Outcome[Columns]:
    """Search on from where an exact search was cut, towards a proven bound, or, where that is 0, a suggested one."""
    sizes, weights = state.point.sets.sum(axis=1), state.point.weights
    thresholds = Thresholds.of(problem.root, max(round(float(sizes @ weights / weights.sum())), 1))
    seeker = Seeker(frame, thresholds, bound / frame.unit**2, np.inf, rng, limits.deadline)
    begin = replace(state, lower_bound=seeker.bound or state.lower_bound, steps=0)
    return loop.run(begin, seeker.step, limits, margin=1.0)


def _with_descent(
    problem: LocalStrategy, frame: Frame, drawn: PatternPoint, limits: loop.Limits, rng: np.random.Generator
) -> PatternPoint:
    """Add the heaviest patterns that gradient descent finds, where W leaves directions out that drawn sets do not."""
    share, size = replace(limits, deadline=limits.deadline.after(SHORT)), len(frame.share)
    strategy, _ = ProjectedGradient(rng=rng).descend(problem, share)
    weights, sets = heaviest_patterns(strategy, problem.epsilon, DRAWN * size // 2)
    sets, first = np.unique(np.vstack([sets, drawn.sets]), axis=0, return_index=True)
    weights = np.append(weights, np.full(len(drawn.sets), LIGHT * weights.mean()))[first]
    weights = points.balance_columns(size * weights / weights.sum(), frame.rows(sets))
    return points.start(frame, sets, weights)


def heaviest_patterns(strategy: Array, epsilon: float, most: int) -> tuple[Array, Sets]:
    """Return weights and sets of the heaviest patterns that the rows of a strategy split into, constants left out."""
    least, size = strategy.min(axis=1, keepdims=True), strategy.shape[1]
    excess = local.gain(epsilon)
    levels = (strategy / least - 1) / excess
    order = np.sort(levels, axis=1)
    weights = least * np.diff(order, axis=1) * (size + excess * np.arange(size - 1, 0, -1))
    chosen = np.argsort(-weights, axis=None, kind="stable")[:most]
    chosen = chosen[weights.ravel()[chosen] > 0]
    output, place = np.unravel_index(chosen, weights.shape)
    return weights.ravel()[chosen], levels[output] >= order[output, place + 1][:, None]


def heaviest(frame: Frame, point: PatternPoint) -> PatternPoint:
    """Return a point to begin exact weighing with: the heaviest sets of another, and single user types."""
    size = len(frame.share)
    singles = np.eye(size, dtype=bool)
    chosen = np.argsort(-point.weights, kind="stable")[: HEAVIEST * size]
    sets, first = np.unique(np.vstack([point.sets[chosen], singles]), axis=0, return_index=True)
    weights = np.append(point.weights[chosen], np.full(size, point.weights[chosen].min()))[first]
    weights = points.balance_columns(size * weights / weights.sum(), frame.rows(sets))
    return points.start(frame, sets, weights)


def climb(
    form: Array, share: Array, epsilon: float, sets: Sets, deadline: Deadline = NO_DEADLINE
) -> tuple[Array, Sets]:
    """Let sets climb to where no single user type in or out makes ``v'Kv / (1'v · b'v)`` larger; return both.

    When time is up, the sets are returned as they stand.
    """
    size, excess = len(form), local.gain(epsilon)
    members = sets.astype(np.float64)
    pulls = (1 + excess * members) @ form
    values = np.einsum("su,su->s", 1 + excess * members, pulls)
    counts, masses = members.sum(axis=1), size + excess * members @ share
    diagonal = np.diagonal(form)
    while True:
        signs = 1 - 2 * members
        raised = values[:, None] + 2 * excess * signs * pulls + excess**2 * diagonal
        moved = counts[:, None] + signs
        scores = raised / ((size + excess * moved) * (masses[:, None] + excess * signs * share))
        scores[(moved < 1) | (moved > size - 1)] = -np.inf
        best = scores.argmax(axis=1)
        reached = scores[np.arange(len(sets)), best]
        present = values / ((size + excess * counts) * masses)
        going = np.flatnonzero(reached > present + CLIMB * np.abs(present))
        if not going.size or deadline.passed:
            return present, members > 0.5
        chosen = best[going]
        sign = signs[going, chosen]
        values[going] = raised[going, chosen]
        counts[going] += sign
        masses[going] += excess * sign * share[chosen]
        members[going, chosen] += sign
        pulls[going] += excess * sign[:, None] * form[chosen]


@dataclass(frozen=True, slots=True, eq=False)
class Seeker:
    """A search for sets and their weights: a problem's frame, the way to draw sets, a bound, and a deadline."""

    frame: Frame
    thresholds: Thresholds
    bound: float
    enough: float  # the gap to the bound, relative, up to which it counts; beyond, what local search suggests
    rng: np.random.Generator
    deadline: Deadline

    def weigh(self, point: PatternPoint, least_gap: float = np.inf, steps: int = 0) -> Columns:
        point, view, count = reweigh(self.frame, point, LAST_GAIN, WEIGHING, self.deadline)
        return self._columns(point, view, least_gap, steps + count)

    def exchange(self, columns: Columns) -> Columns:
        """Let the sets that were found take the place of the lightest, and weigh again."""
        point, further = columns.point, columns.unknown
        size = len(self.frame.share)
        playing = point.sets.sum(axis=1) == 1
        playing[np.argsort(-point.weights, kind="stable")[: (DRAWN + 1) * size - len(further)]] = True
        sets = np.vstack([point.sets[playing], further])
        weights = np.append(point.weights[playing], np.full(len(further), np.median(point.weights[playing])))
        weights *= size / weights.sum()
        return self.weigh(replace(point, sets=sets, weights=weights), columns.least_gap, columns.steps)

    def generated(self, point: PatternPoint, aim: float, least_gap: float, steps: int) -> Columns:
        point, view, count = columns.follow_path(self.frame, point, aim, STEPS, self.deadline)
        return self._columns(point, view, least_gap, steps + count)

    def step(self, state: Columns) -> Columns:
        """Keep the patterns of largest weight for their slack, add those found, and solve again."""
        point, further, size = state.point, state.unknown, len(self.frame.share)
        playing = point.sets.sum(axis=1) == 1  # these alone make sure that G is regular
        order = np.argsort(-point.weights / point.slacks, kind="stable")
        playing[order[: max(MOST, ROOM * size) - len(further)]] = True
        aim = CLOSER * min(state.least_gap, 1.0)
        if not len(further):
            aim = CLOSER * min(aim, columns.progress(self.frame, point, state.view))
        product = aim * state.view.objective / len(point.sets)
        point = points.replace_patterns(self.frame, point, playing, further, product)
        return self.generated(point, max(aim, FINEST), state.least_gap, state.steps)

    def _columns(self, point: PatternPoint, view: View, least_gap: float, steps: int) -> Columns:
        """Look for patterns at a point; without time left, suggest no bound."""
        rise, further = self._violated_patterns(point, view)
        objective, suggested = columns.objective_and_bound(
            self.frame, point, view, np.inf if self.deadline.passed else rise
        )
        gap = (objective - suggested) / suggested if suggested > 0 else np.inf
        proven = self.bound > 0 and objective <= (1 + self.enough) * self.bound
        lower = self.bound if proven else suggested
        return Columns(point, view, objective, lower, further, steps, min(gap, least_gap))

    def _violated_patterns(self, point: PatternPoint, view: View) -> tuple[float, Sets]:
        """Climb from patterns in use, moved a little, and from drawn ones; return the rise and those violated."""
        size, rng = len(self.frame.share), self.rng
        climbers = max(CLIMBERS * size, LEAST)
        used = point.sets[np.argsort(-point.weights, kind="stable")[:climbers]]
        used = used ^ (rng.random(used.shape) < PERTURBATION_SIZE / size)
        random = self.thresholds.draw(climbers, rng)
        mixed = np.outer(point.costs, point.share)
        form = view.matrix @ view.matrix.T - (mixed + mixed.T) / 2
        scores, sets = climb(form, point.share, self.frame.epsilon, np.vstack([used, random]), self.deadline)
        proper = np.flatnonzero((scores > 0) & sets.any(axis=1) & ~sets.all(axis=1))
        if not proper.size:
            return 0.0, sets[:0]
        order = proper[np.argsort(-scores[proper], kind="stable")]
        return float(scores[order[0]]), columns.distinct(self.frame, sets[order])[: ADDED * size]


# Subset selection with few outputs: the best strategy for workloads that treat all user types equally.
#
# Where ``W'W = a I + b 1 1'`` every strategy whose rows are patterns of k user types with ``G`` of the same form is
# best, for the right k. Choosing all sets of k types is subset selection (Ye and Barg, "Optimal schemes for discrete
# distribution estimation under locally differential privacy", IEEE Trans. Inf. Theory 64(8), 2018), which has too many
# outputs to list. G only requires that pairs of user types occur equally often together: a design. Here the translates
# of a few sets on a circle, weighed such that every difference of places occurs equally often.


BASES = 4  # random sets whose translates are weighed, for each difference of places
LARGEST = 512  # user types up to which all translates fit into memory: there are some n²/2 of them
MET = 1e-10  # largest miss of an equal share of a difference, relative, that counts as none


def treats_all_equally(problem: LocalStrategy) -> bool:
    """Whether ``W'W`` is a multiple of the identity but for a constant, and no prior tells user types apart."""
    gram = problem.root.T @ problem.root
    size = len(gram)
    across = gram[~np.eye(size, dtype=bool)]
    spread = np.ptp(np.diagonal(gram)) + np.ptp(across)
    return bool(spread <= ALIKE * np.abs(gram).max() and np.ptp(problem.prior) <= ALIKE)


def strategy(problem: LocalStrategy, rng: np.random.Generator) -> Array | None:
    """Return such a strategy (m, n), or None where the random sets do not suffice, or would be too many."""
    if problem.user_types > LARGEST:
        return None
    # Imported here so that solvers load without it.
    from scipy.optimize import nnls

    size, best = problem.user_types, local.selected_size(problem.user_types, problem.epsilon)
    differences = size // 2
    random = np.argsort(rng.random((BASES * differences, size)), axis=1) < best
    # Sets with equal steps, for distances that few random sets of few user types hold.
    places = np.outer(np.arange(1, differences + 1), np.arange(best)) % size
    stepped = np.zeros((differences, size), dtype=bool)
    np.put_along_axis(stepped, places, True, axis=1)
    bases = np.vstack([random, stepped[stepped.sum(axis=1) == best]])
    # With the same transform but at 0 for a mean over the sets, all distances occur equally often.
    spectra = np.abs(np.fft.rfft(bases, axis=1)[:, 1:]) ** 2 / (best * (size - best) / (size - 1))
    system = np.vstack([spectra.T, np.ones(len(bases))])
    shares, _ = nnls(system, np.ones(len(system)))
    if np.abs(system @ shares - 1).max() > MET:
        return None
    used = np.flatnonzero(shares > 0)
    translates = (np.arange(size)[:, None] + np.arange(size)) % size
    rows = local.rows(np.vstack([bases[index][translates] for index in used]), problem.epsilon)
    return np.asarray(np.repeat(shares[used], size)[:, None] * rows)
