"""Certificates and privacy against exact fractions: intervals hold the optimum, no cost is below the truth."""

import dataclasses
import math
import warnings
from fractions import Fraction
from itertools import combinations
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import scipy.sparse as sp
from elimination import exact_cost, solution
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dualmech as dm
from dualmech import fast, immutable
from dualmech.fast.engine import ascent
from dualmech.solution import judged_solution, retold
from dualmech.validate import Array
from dualmech.verified import exactly_independent


def least_distance(problem: dm.NonnegativeEstimate) -> Fraction:
    """Return the optimum exactly: least squares on every set of independent cells, by normal equations."""
    columns = [[Fraction(entry) for entry in column] for column in problem.workload.dense().T.tolist()]
    answers = [Fraction(entry) for entry in problem.answers.tolist()]
    total = None if problem.total is None else Fraction(problem.total)
    best = None if total is not None else Fraction(sum(each * each for each in answers)) / 2
    for size in range(1, len(columns) + 1):
        for cells in combinations(columns, size):
            gram = [[Fraction(sum(a * b for a, b in zip(u, v, strict=True))) for v in cells] for u in cells]
            right = [Fraction(sum(a * b for a, b in zip(u, answers, strict=True))) for u in cells]
            if total is not None:
                one = Fraction(1)
                gram = [[*row, one] for row in gram] + [[one] * size + [Fraction(0)]]
                right.append(total)
            data = solution(gram, right)
            if data is None or min(data[:size]) < 0:
                continue
            missed = [
                sum(column[query] * value for column, value in zip(cells, data[:size], strict=True)) - answer
                for query, answer in enumerate(answers)
            ]
            distance = Fraction(sum(each * each for each in missed)) / 2
            best = distance if best is None else min(best, distance)
    assert best is not None
    return best


def holds(certificate: dm.Certificate, optimum: Fraction) -> bool:
    low, high = certificate.interval
    return Fraction(low) <= optimum and (high == np.inf or optimum <= Fraction(high))


@pytest.mark.parametrize(
    ("matrix", "answers", "estimate", "multipliers"),
    [
        ([[-2, 1, 1]], [1], [0, 0, 0], [-1]),
        ([[1, 0, 0, 0], [0, -2, 1, 1]], [0, 1], [0, 0, 0, 0], [0, -1]),
        # Two columns that cancel but for the last digit: together they reach what neither nearly does.
        ([[1, -1], [-1 - 2.0**-52, 1]], [-1, -1], [0, 0], [1, 1]),
        ([[1, -1, 0], [-1 - 2.0**-52, 1, 0], [0, 0, 1]], [-1, -1, 2], [0, 0, 2], [1, 1, 0]),
        ([[1, 1e13]], [-8999], [1, -0.9e-9], [1]),
    ],
)
def test_what_no_multipliers_prove_is_not_certified(matrix: Any, answers: Any, estimate: Any, multipliers: Any) -> None:
    problem = dm.NonnegativeEstimate(dm.Workload(matrix), answers)
    judged = problem.certify(estimate, dm.duals.EstimateDual(np.array(multipliers, dtype=float)))
    assert holds(judged, least_distance(problem))


def test_columns_that_cancel_exactly_still_prove_what_is_left() -> None:
    """Orthogonal to both columns of the first pair, (1, 1, 1) sees the answers from √3 away."""
    problem = dm.NonnegativeEstimate(dm.Workload([[1, -1, 0], [-1, 1, 1], [0, 0, -1]]), [1.0, 1.0, 1.0])
    judged = problem.certify([0, 0, 0], dm.duals.EstimateDual(np.full(3, -1.0)))
    assert least_distance(problem) == Fraction(3, 2)
    assert judged.objective == 1.5 and judged.lower_bound == pytest.approx(1.5, rel=1e-12)


SCALES = st.sampled_from([1e-12, 1e-6, 1.0, 1.0, 1.0, 1e6, 1e12])


@given(st.integers(0, 2**32 - 1), SCALES, SCALES, st.booleans(), st.booleans())
@example(17859136, 1.0, 1e-12, False, False)
def test_intervals_hold_the_exact_optimum(seed: int, unit: float, noise: float, known: bool, tied: bool) -> None:
    """Nearly consistent answers among them, cells that are the same or cancel, and queries of other units."""
    rng = np.random.default_rng(seed)
    queries, cells = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    matrix = rng.integers(-2, 3, (queries, cells)) * (1 + 1e-9 * rng.standard_normal((queries, 1)))
    if tied:
        matrix = np.column_stack([matrix, rng.choice([-1, 1, 2]) * matrix[:, 0]])
    matrix[0, 0] = matrix[0, 0] or 1.0
    matrix[-1] *= unit
    data = np.maximum(rng.standard_normal(matrix.shape[1]), 0)
    answers = matrix @ data + noise * 1e-9 * rng.standard_normal(queries) * np.abs(matrix).max(axis=1)
    total = float(data.sum()) if known else None
    problem = dm.NonnegativeEstimate(dm.Workload(matrix), answers, total)
    optimum = least_distance(problem)
    with warnings.catch_warnings():  # distances of rounding size need not be certified, but must be enclosed
        warnings.simplefilter("ignore", dm.errors.UncertifiedWarning)
        answer = fast.solve(problem, tol=0.5)
    assert holds(answer.certificate, optimum)
    rough = dm.duals.EstimateDual(answer.dual.residual * (1 + 1e-6 * rng.standard_normal(queries)))
    nudged = answer.primal - 1e-10 * answer.primal.sum() * (rng.random(len(answer.primal)) < 0.5)
    assert holds(problem.certify(nudged, rough), optimum)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-9, 1e-3, 1.0]), st.sampled_from([1e-6, 1e-2, 1.0, 60.0]))
def test_projections_of_equal_columns_are_those_onto_a_simplex(seed: int, noise: float, epsilon: float) -> None:
    rng = np.random.default_rng(seed)
    outputs, size = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    column = rng.dirichlet(np.ones(outputs)) + noise * rng.standard_normal(outputs)
    problem = dm.LocalProjection(np.repeat(column[:, None], size, axis=1), epsilon)
    simplex = dm.NonnegativeEstimate(dm.workloads.identity(outputs), column, total=1)
    optimum = size * least_distance(simplex)
    answer = fast.solve(problem)
    assert holds(answer.certificate, optimum)
    nudged = answer.primal * (1 + 1e-10 * rng.standard_normal(answer.primal.shape))
    assert holds(problem.certify(nudged, answer.dual), optimum)


def test_exact_independence() -> None:
    thirds = np.array([[1.0, 1.0, 2.0], [1.0, 1.0 + 2.0**-52, 2.0], [3.0, 3.0, 6.0]])
    assert exactly_independent(thirds) == [0, 1]
    assert exactly_independent(np.zeros((2, 2))) == []
    assert exactly_independent(np.random.default_rng(0).standard_normal((300, 300))) is None


def exact_moves(rows: Any, neighbours: Any) -> list[list[Fraction]]:
    """Return the columns of ``B U``."""
    first = [[Fraction(entry) for entry in row] for row in np.asarray(rows, dtype=float).tolist()]
    last = [[Fraction(entry) for entry in column] for column in np.asarray(neighbours, dtype=float).T.tolist()]
    return [[sum(a * b for a, b in zip(row, column, strict=True)) or Fraction(0) for row in first] for column in last]


@pytest.mark.parametrize(
    ("rows", "covariance", "neighbours"),
    [
        (np.eye(2), np.ones((2, 2)), [[1 + 1e-7], [1]]),
        (np.eye(2), np.ones((2, 2)), [[1 + 1e-10], [1]]),
        ([[1.0], [1 + 9e-10]], np.ones((2, 2)), [[1.0]]),
        ([[1.0, 1.0], [1.0, 1.0 + 1e-10]], np.ones((2, 2)), np.eye(2)),
        (np.eye(2), np.diag([1.0, 0.0]), [[1e8, 1], [0, 1e-30]]),
        (np.diag([1.0, 1e-8, 1e-8]), [[1, 0, 0], [0, 1e-16, 1e-16], [0, 1e-16, 1e-16]], [[1], [1], [1 + 1e-9]]),
    ],
)
def test_what_leaves_the_range_of_the_noise_costs_infinity(rows: Any, covariance: Any, neighbours: Any) -> None:
    moves = exact_moves(rows, neighbours)
    assert max(exact_cost(covariance, move) for move in moves) == math.inf
    mechanism = dm.LinearGaussianMechanism(rows, covariance, neighbours)
    assert mechanism.rho == mechanism.epsilon(1e-9) == math.inf and mechanism.delta(1.0) == 1
    if len(rows) == len(rows[0]):
        problem = dm.FitnessForUse(dm.workloads.identity(len(rows)), 1.0, neighbours=neighbours)
        weights = np.ones(len(moves)), np.ones(len(rows))
        if np.array_equal(rows, np.eye(len(rows))):
            assert problem.certify(covariance, weights).interval[1] == math.inf


def test_a_small_move_next_to_large_ones_costs_what_it_costs() -> None:
    neighbours = [[1e8, 0], [-1e8, 0], [0, 1e-8]]
    mechanism = dm.LinearGaussianMechanism(np.ones((1, 3)), [[1e-35]], neighbours)
    assert mechanism.squared_privacy_cost >= 1e19
    problem = dm.FitnessForUse(dm.workloads.total(3), 1.0, neighbours=neighbours)
    assert not len(problem.geometry.free_queries)
    tiny = dm.FitnessForUse(dm.Workload([[1, 1 + 1e-10]]), 1.0, neighbours=[[1.0], [-1.0]])
    assert fast.solve(tiny, tol=1e-3).objective == pytest.approx(1e-20, rel=1e-5)


@given(st.integers(0, 2**32 - 1), SCALES, st.sampled_from([0, 1e-9, 1e-4, 1.0]), st.booleans())
def test_privacy_is_never_below_the_truth(seed: int, unit: float, angle: float, replaced: bool) -> None:
    """Nearly singular noise, rows of other units, records added or replaced."""
    rng = np.random.default_rng(seed)
    size, cells = int(rng.integers(1, 4)), int(rng.integers(2, 4))
    rows = rng.integers(-3, 4, (size, cells)) + rng.choice([0.0, 0.1]) * rng.standard_normal((size, cells))
    rows[:, 0] += 4.0
    rows[-1] *= unit
    root = rng.integers(-2, 3, (size, size)) + np.eye(size)
    root[-1] = root[0] + angle * root[-1]
    units = np.where(np.arange(size) == size - 1, unit, 1.0)
    noise = (root @ root.T + (angle > 0) * angle**2 * np.eye(size)) * units * units[:, None]
    if not np.all(np.linalg.eigvalsh(noise / units / units[:, None]) > 1e-12):
        noise = np.diag(np.diagonal(noise) + units**2)
    moves = dm.neighbours.replace_one(cells).toarray() if replaced else np.eye(cells)
    mechanism = dm.LinearGaussianMechanism(rows, noise, moves)
    exact = [exact_cost(noise, move) for move in exact_moves(rows, moves)]
    assert all(Fraction(own) >= truth for own, truth in zip(mechanism.profile.tolist(), exact, strict=True))
    assert Fraction(mechanism.privacy_cost) ** 2 >= max(exact)
    with mp.workdps(60):
        dearest = Fraction(max(exact))
        cost = mp.sqrt(mp.mpf(dearest.numerator) / dearest.denominator)
        if cost > 0:
            lower, upper = (1 / cost + sign * cost / 2 for sign in (-1, 1))
            delta = (mp.erfc(lower / mp.sqrt(2)) - mp.e * mp.erfc(upper / mp.sqrt(2))) / 2
            assert mechanism.delta(1.0) >= delta
            bound = mechanism.epsilon(1e-9)
            lower, upper = (bound / cost + sign * cost / 2 for sign in (-1, 1))
            kept = (mp.erfc(lower / mp.sqrt(2)) - mp.exp(bound) * mp.erfc(upper / mp.sqrt(2))) / 2
            assert kept <= mp.mpf(1e-9)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-15, 1e-13, 1e-9, 1.0]), st.sampled_from([1, 3, 7, 1e9]))
def test_queries_that_neighbours_hardly_change_prove_no_more_than_they_change(
    seed: int, left: float, times: float
) -> None:
    """Of one query w and one pair of neighbours u, the optimum is (w'u)², whatever cancels in it."""
    rng = np.random.default_rng(seed)
    query = rng.random(2)
    move = np.array([times, -times * query[0] / query[1] * (1 + left * rng.standard_normal())])
    change = sum(Fraction(a) * Fraction(b) for a, b in zip(query.tolist(), move.tolist(), strict=True))
    problem = dm.FitnessForUse(dm.Workload([query]), 1.0, basis=np.eye(2), neighbours=move[:, None])
    assert Fraction(problem.certify(np.eye(2), ([1], [1])).interval[0]) <= change**2


@pytest.mark.parametrize("released", [False, True])
def test_rows_that_differ_by_rounding_leave_both_sides_at_peace(released: bool) -> None:
    """The rank is taken for 1: what the rows have beyond it is in all directions, not in the rank's alone."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        workload = dm.Workload(1 + 4e-14 * (2 * rng.random((20, 20)) - 1))
        problem: Any = dm.FitnessForUse(workload, 1.0)
        if released:
            problem = dm.ReuseFitness(workload, 1.0, dm.LinearGaussianMechanism(np.ones((1, 20)), [[4.0]]))
        assert fast.solve(problem).status is dm.Status.CERTIFIED


def test_design_queries_that_may_be_needed_have_weights() -> None:
    """Of the nearly parallel two, least squares take the first alone, which doubles hide in units of the other."""
    design = [[2.0**20, 0, 0], [0, 1, 0], [0, 1, 2.0**-25]]
    problem = dm.QueryWeighting(dm.Workload([[2.0**20, 1, 0]]), design)
    assert not problem.certify([9e-13, 0, 0], [1, 0, 0]).feasible
    answer = fast.solve(problem, tol=1e-2)
    assert answer.status is dm.Status.CERTIFIED and holds(answer.certificate, Fraction(2**40 + 1))


@given(st.floats(0, 9e-10), st.sampled_from(["approximate", "pure"]), st.booleans())
def test_weights_above_their_limit_are_charged_what_scaling_costs(excess: float, privacy: str, second: bool) -> None:
    """One design query: the optimum is 1 at weight 1."""
    design = [[1.0, 0.0], [0.0, 1.0]] if second else [[1.0, 0.0]]
    problem = dm.QueryWeighting(dm.Workload([[1.0, 0.0]]), design, privacy=privacy)
    judged = problem.certify([1 + excess, 1.0] if second else [1 + excess], [1, 0])
    low, high = judged.interval
    assert low <= 1 <= high <= 1 + 4e-9


@given(
    st.sampled_from([1e-6, 1e-3, 1.0, 10.0]),
    st.sampled_from([0.0, 1e-16, 1e-15, 1e-13, 1e-10, 9e-10]),
    st.sampled_from([0.0, 1e-15, -5e-10]),
)
def test_ratios_above_their_limit_are_no_better_than_the_optimum(epsilon: float, over: float, off: float) -> None:
    """Of two cells asked one by one, randomised response is the best: ``1 + ((e^ε + 1) / (e^ε - 1))²``."""
    problem = dm.LocalStrategy(dm.workloads.identity(2), epsilon)
    ratio = np.exp(epsilon) * (1 + over)
    strategy = np.array([[ratio, 1.0], [1.0, ratio]]) / (1 + ratio) * (1 + off)
    best = np.array([[np.exp(epsilon), 1.0], [1.0, np.exp(epsilon)]]) / (1 + np.exp(epsilon))
    low, high = problem.certify(strategy, problem.dual_at(best)).interval
    with mp.workdps(60):
        optimum = 1 + ((mp.exp(epsilon) + 1) / mp.expm1(epsilon)) ** 2
        assert low <= optimum <= high
        columns = [mp.mpf(a) / (mp.mpf(a) + mp.mpf(b)) for a, b in (strategy[:, 0], strategy[:, 1])]
        truth = max(abs(mp.log(columns[0] / columns[1])), abs(mp.log((1 - columns[0]) / (1 - columns[1]))))
        try:
            mechanism = dm.LocalMechanism(strategy, epsilon, problem.workload)
        except dm.errors.InvalidInputError:
            assert over + abs(off) > 1e-10 * min(epsilon, 1)
        else:
            assert mechanism.epsilon >= truth * (1 - mp.mpf(1e-14)) - len(strategy) * mp.mpf(2) ** -51


def arrays_in(value: Any, seen: dict[int, Any]) -> list[Array]:
    """Return all arrays that a value holds, however deep; not those of a workload, which are written when asked for."""
    if id(value) in seen or isinstance(value, dm.Workload | type):
        return []
    seen[id(value)] = value
    if isinstance(value, np.ndarray):
        return [value]
    if sp.issparse(value):
        parts: Any = [value.data, value.indices, value.indptr]
    elif isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, tuple | list):
        parts = value
    elif type(value).__module__.startswith("dualmech"):
        names = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
        parts = [getattr(value, name) for name in names | set(getattr(value, "__dict__", ())) if hasattr(value, name)]
    else:
        parts = []
    return [array for each in parts for array in arrays_in(each, seen)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: dm.FitnessForUse(dm.workloads.prefix(3), 1.0, neighbours=dm.neighbours.replace_one(3)),
        lambda: dm.TotalVariance(dm.workloads.marginals(dm.Domain({"a": 2, "b": 3}), ways=1)),
        lambda: dm.FitnessForUse(
            dm.workloads.union({"age": 4}, {"ages": {"age": dm.workloads.prefix(4)}}), 1.0, neighbours="replace"
        ),
        lambda: dm.QueryWeighting(dm.workloads.prefix(3), np.eye(3)),
        lambda: dm.LocalStrategy(dm.workloads.identity(3), 1.0, criterion="worst"),
        lambda: dm.ReuseFitness(dm.workloads.identity(2), 1.0, dm.LinearGaussianMechanism([[1, 1]], [[2]])),
    ],
)
def test_nothing_that_was_judged_can_be_written_to(make: Any) -> None:
    answer = fast.solve(make())
    for part in (answer.problem, answer.primal, answer.dual, answer.mechanism):
        for array in arrays_in(part, {}):
            assert not array.flags.writeable
            if array.size and not array.dtype.hasobject:
                with pytest.raises(ValueError, match="WRITEABLE"):
                    array.setflags(write=True)
    primal: Any = dm.FitnessForUse(dm.workloads.identity(2), 1.0)
    given = np.eye(2)
    judged = judged_solution(primal, given, ([1, 1], [1, 1]), tol=1.0, otherwise=dm.Status.STALLED)
    given *= 99
    np.testing.assert_array_equal(judged.covariance, np.eye(2))


@pytest.mark.parametrize("size", [3, 400])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_is_frozen_keeps_its_numbers_and_their_order(size: int, order: Any) -> None:
    """Small arrays are copied, larger ones seen through a view; what was frozen is not copied again."""
    given = np.asarray(np.random.default_rng(0).standard_normal((size, size)), order=order)
    copied, frozen = immutable.frozen_copy(given), immutable.freeze(given.copy(order="K"))
    for found in (copied, frozen):
        np.testing.assert_array_equal(found, given)
        assert found.flags.f_contiguous == given.flags.f_contiguous and immutable.is_frozen(found[1:])
    assert immutable.frozen_copy(copied) is copied and immutable.freeze(copied) is copied
    given *= 2
    assert not np.array_equal(copied, given)


@pytest.mark.parametrize(
    ("held", "shape"), [(7.0, (10**9,)), ([1.0, 2.0, 3.0], (10**8, 3)), ([[1.0], [2.0]], (2, 10**8))]
)
def test_one_number_in_many_places_stays_one(held: Any, shape: tuple[int, ...]) -> None:
    """The mechanism of a domain with an attribute of 10⁹ values took 8 GB, for a class that is 0 everywhere."""
    given = np.broadcast_to(np.asarray(held), shape)
    for found in (immutable.frozen_copy(given), immutable.freeze(given)):
        assert immutable.is_frozen(found) and found.shape == shape and 0 in found.strides
        corner = (slice(2),) * len(shape)
        assert np.array_equal(found[corner], given[corner])
        with pytest.raises(ValueError, match="WRITEABLE"):
            found.setflags(write=True)


def test_a_custom_method_cannot_change_what_is_asked() -> None:
    """One that raises the targets got a certificate of 1.6e-9, and the problem of whoever asked was spoiled."""

    def cheats(problem: Any) -> Any:
        with pytest.raises(ValueError, match="WRITEABLE"):
            problem.targets.setflags(write=True)
        object.__setattr__(problem, "targets", np.full(3, 1e9))
        object.__setattr__(problem.workload, "decay", 0.5)
        return np.eye(3) * 1e9

    problem = dm.FitnessForUse(dm.workloads.prefix(3), 1.0)
    answer = fast.solve(problem, method=cheats, tol=1.0)
    assert answer.problem is problem and problem.targets.tolist() == [1.0] * 3
    assert problem.workload.decay == 1 and answer.objective >= fast.solve(problem).lower_bound


def test_masks_are_not_dropped() -> None:
    row = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    for given_rows in (np.ma.masked_array([row, row]), [row, np.ones(2)]):
        with pytest.raises(dm.errors.InputTypeError, match="workload must be an array of real numbers"):
            dm.Workload(given_rows)
    with pytest.raises(dm.errors.InputTypeError, match="targets"):
        dm.FitnessForUse(dm.workloads.identity(2), row)
    assert dm.Workload(np.ma.masked_array([[1.0, 2.0]])).shape == (1, 2)


@pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
def test_what_rounding_hides_of_queries_counts_against_their_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nearly parallel queries: one has little in the direction in which the other leaves much noise."""
    monkeypatch.setattr(ascent, "TIGHTENING_FACTORS", ())  # the solver would take that noise back
    workload = dm.Workload(
        [
            [3.4604425394722677e-10, 0.0, 6.920885078944535e-10],
            [1610.4859031623657, 5.644982609646409e-09, 3220.97180635356],
        ]
    )
    targets = np.array([18844.17690958233, 5.8126468629942146e-09])
    answer = fast.solve(dm.FitnessForUse(workload, targets))
    excess = float((answer.mechanism.variances(workload) / targets).max()) - 1
    assert answer.certificate.violation + answer.certificate.resolution >= excess > 1e-9
    hidden = retold(answer, certificate=dataclasses.replace(answer.certificate, resolution=895.0))
    with pytest.raises(dm.errors.InfeasibleAnswerError, match="rounding may hide"):
        _ = hidden.mechanism


@pytest.mark.filterwarnings("ignore::dualmech.errors.UncertifiedWarning")
@pytest.mark.parametrize("released", [[[1e-20, 1e-20]], [[1e-20, 0.0], [1e-20, 1e-20]]])
def test_reuse_answers_on_any_scale(released: Any) -> None:
    for workload in ([[1e39, 2e39], [1e39, -1e39]], [[1e39, 0.0]], [[1e39, 2e39], [1e39, 2e39], [1e39, 1e39]]):
        for target in (1e-20, 1.0, 1e30):
            mechanism = dm.LinearGaussianMechanism(released, np.eye(len(released)))
            answer = fast.solve(dm.ReuseFitness(dm.Workload(workload), target, mechanism), time_limit=5)
            assert answer.certificate.objective > 0


def attacked(seed: int) -> tuple[Array, Array, Array, Array]:
    """Return queries in many units, nearly dependent or doubled, cells that are zero or the same, Σ, λ and μ."""
    rng = np.random.default_rng(seed)
    queries, cells = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    matrix = rng.integers(-2, 3, (queries, cells)) * (
        1 + rng.choice([0, 1e-15, 1e-9, 0.1]) * rng.random((queries, cells))
    )
    matrix[0, 0] = 1.0
    if queries > 1:
        matrix[-1] = matrix[0] * rng.choice([1.0, 3.0]) + rng.choice([0, 1e-14, 1e-10, 1e-5]) * rng.standard_normal(
            cells
        )
    if cells > 1:
        matrix[:, -1] = rng.choice([0.0, 1.0, -1.0]) * matrix[:, 0] if rng.random() < 0.3 else matrix[:, -1]
    matrix = matrix * 10.0 ** rng.uniform(-12, 12, (queries, 1)) ** rng.integers(0, 2)
    units = 10.0 ** (rng.uniform(-12, 12, cells) * rng.integers(0, 2))
    root = rng.standard_normal((cells, cells)) + 3 * np.eye(cells)
    noise = (root @ root.T) / units / units[:, None]
    return matrix * units, (noise + noise.T) / 2, rng.random(cells) ** 4, rng.random(queries) ** 4


def exact_sides(matrix: Array, noise: Array) -> tuple[Fraction | float, list[Fraction]]:
    """Return the largest cost of a record, and the variance of each query."""
    rows = [[Fraction(entry) for entry in row] for row in matrix.tolist()]
    sigma = [[Fraction(entry) for entry in row] for row in noise.tolist()]
    cells = range(len(sigma))
    cost = max(exact_cost(noise, [float(cell == own) for own in cells]) for cell in cells)
    return cost, [sum(row[a] * sigma[a][b] * row[b] for a in cells for b in cells) or Fraction(0) for row in rows]


def check_one(seed: int) -> None:
    matrix, noise, first, last = attacked(seed)
    cost, variances = exact_sides(matrix, noise)
    workload, targets = dm.Workload(matrix), np.array([max(float(own), 1e-30) for own in variances])
    ratio = max(own / Fraction(target) for own, target in zip(variances, targets.tolist(), strict=True))
    own = last / targets if last.any() else last
    fitness = dm.FitnessForUse(workload, targets)
    weights = first, own / own.max()
    guesses = [weights]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = fast.solve(fitness, tol=1e-3)
        total = fast.solve(dm.TotalVariance(workload), tol=1e-3)
    guesses.append((answer.dual.neighbour_weights, answer.dual.query_weights))
    for guess in guesses:
        assert Fraction(fitness.certify(answer.primal, guess).interval[0]) <= cost * ratio
    for shares in (first, total.dual.neighbour_weights):
        assert Fraction(total.problem.certify(total.primal, shares).interval[0]) <= cost * sum(variances)
    whole = dm.FitnessForUse(workload, targets, basis=np.eye(len(noise)))
    judged = whole.certify(noise, weights)
    if math.isfinite(judged.objective) and math.isfinite(judged.resolution):
        allowed = 1 + Fraction(judged.resolution)
        assert Fraction(judged.objective) * allowed >= cost
        assert (1 + Fraction(judged.violation)) * allowed >= ratio
    assert Fraction(dm.LinearGaussianMechanism(np.eye(len(noise)), noise).squared_privacy_cost) >= cost


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_no_bound_is_above_what_noise_reaches_exactly(seed: int) -> None:
    check_one(seed)


@pytest.mark.slow
def test_no_bound_is_above_what_noise_reaches_exactly_in_many_cases() -> None:
    for seed in range(1000):
        check_one(seed)


@given(st.integers(0, 2**32 - 1), SCALES, SCALES, st.sampled_from(["approximate", "pure"]))
def test_no_bound_is_above_what_weights_reach_exactly(seed: int, unit: float, angle: float, privacy: str) -> None:
    """Designs of two rows, nearly parallel among them, whose inverse is known exactly."""
    rng = np.random.default_rng(seed)
    design = rng.integers(-3, 4, (2, 2)) + np.diag([7.0, 7.0])
    design[1] = design[0] + min(angle, 1.0) * design[1]
    design[1] *= unit
    (a, b), (c, d) = [[Fraction(entry) for entry in row] for row in design.tolist()]
    if not a * d - b * c:
        return
    matrix = rng.integers(-2, 3, (2, 2)) @ design + np.eye(2) * design[0, 0]
    costs = [Fraction(0), Fraction(0)]
    for first, second in matrix.tolist():
        one, two = Fraction(first), Fraction(second)
        costs[0] += ((one * d - two * c) / (a * d - b * c)) ** 2
        costs[1] += ((two * a - one * b) / (a * d - b * c)) ** 2
    power = 1 if privacy == "approximate" else 2
    problem = dm.QueryWeighting(dm.Workload(matrix), design, privacy=privacy)
    weights = rng.random(2) / (design**2).max(axis=1) ** (1 / power)
    sizes = [[abs(each) ** (3 - power) for each in row] for row in ((a, b), (c, d))]
    spent = max(sum(Fraction(w) * row[cell] for w, row in zip(weights.tolist(), sizes, strict=True)) for cell in (0, 1))
    reached = sum(cost / Fraction(w) ** power for cost, w in zip(costs, weights.tolist(), strict=True)) * spent**power
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = fast.solve(problem, tol=1e-3)
    for dual in (rng.random(2), answer.dual):
        assert Fraction(problem.certify(answer.primal, dual).interval[0]) <= reached
