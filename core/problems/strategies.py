"""Strategies of the matrix mechanism: their errors, completion, weights for relative errors, and causal ones.

A strategy A (p, d) asks the queries in its rows with equal Gaussian noise, and answers the workload by least squares.
The measures follow Li and Miklau, "An adaptive mechanism for accurate query answering under differential
privacy", PVLDB 5(6), 2012 ("EIG"). Causal strategies of running sums are mechanisms at once, which need no matrix.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.geometry.causal import Banded, Buffered, Toeplitz, Tree
from dualmech.linalg import to_dense
from dualmech.mechanisms.stream import CausalMechanism
from dualmech.problems.design import answer_rows, least_squares
from dualmech.validate import Array
from dualmech.workloads.base import Workload, check_workload
from dualmech.workloads.streams import MAX_STEPS

__all__ = [
    "banded",
    "buffered",
    "completed",
    "noise_factor",
    "relative_weights",
    "root_coefficients",
    "root_mean_square_error",
    "scaled_toeplitz",
    "sqrt_toeplitz",
    "toeplitz",
    "total_variance",
    "tree",
]

MOST_QUERIES = 2**53  # queries whose number a double still holds

LEAST_KNOWN = 1e-9  # what a divisor of a column may be off by, relative

COMPLETE = 1e-12
"""Slack of a squared column norm, relative to the largest, below which a column counts as complete."""


def noise_factor(epsilon: float, delta: float) -> float:
    """Return ``P = 2 ln(2/δ) / ε²``: at squared cost Δ², EIG gives each answer the variance ``P Δ²``.

    It is sufficient for (ε, δ)-differential privacy at ε ≤ 1, not necessary: `dualmech.accounting` is exact.
    Raises `InvalidInputError` or `InputTypeError` for ε that is not positive, δ outside (0, 1).

    Examples
    --------
    >>> import dualmech as dm
    >>> round(dm.strategies.noise_factor(0.5, 1e-4), 3)
    79.228
    """
    spread, value = math.log(2 / validate.probability(delta=delta)), validate.positive_number(epsilon=epsilon)
    validate.moderate(epsilon=value)
    return 2 * spread / value**2


def total_variance(strategy: npt.ArrayLike, workload: Workload) -> float:
    """Return ``‖A‖₂² tr(W (A'A)⁺ W')``, ``‖A‖₂`` the largest column norm: the total variance at squared cost 1.

    Raises `InvalidInputError` or `InputTypeError` for an object that is no matrix of finite numbers with the workload's
    cells, or a query outside its row space, which is named.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.strategies.total_variance([[1, 0], [0, 1]], dm.workloads.prefix(2))
    3.0
    """
    rows = _strategy(strategy, workload)
    basis, root = least_squares(rows)
    spread = sum(float(np.vdot(part, part)) for _, part in answer_rows(workload, basis, basis.T @ root, "strategy"))
    return spread * float(np.einsum("pi,pi->i", rows, rows).max())


def root_mean_square_error(
    strategy: npt.ArrayLike, workload: Workload, epsilon: float, delta: float, queries: int | None = None
) -> float:
    """Return ``‖A‖₂ √(P(ε, δ) tr(W (A'A)⁺ W') / m)``, the workload error of EIG (Definition 5, Proposition 4).

    Raises `InvalidInputError` or `InputTypeError` as for `total_variance` and `noise_factor`.

    Parameters
    ----------
    strategy : (p, d) array
        A.
    workload : Workload
        W.
    epsilon, delta : float
        As for `noise_factor`.
    queries : int, optional
        m, the number of queries that the error is averaged over; by default the workload's. For a workload that
        stands for a larger one (`dualmech.workloads.from_gram`), the larger one's.

    Examples
    --------
    >>> import dualmech as dm
    >>> round(dm.strategies.root_mean_square_error([[1, 0], [0, 1]], dm.workloads.prefix(2), 0.5, 1e-4), 3)
    10.901
    """
    total, factor = total_variance(strategy, workload), noise_factor(epsilon, delta)
    count = workload.shape[0] if queries is None else validate.size(MOST_QUERIES, queries=queries)
    return math.sqrt(factor * total / count)


def completed(strategy: npt.ArrayLike) -> Array:
    """Return A with rows appended that raise every column to the largest norm, at no cost to privacy.

    With n_i the squared column norms, these are the rows of ``diag(√(max n - n_i))`` that are not zero: queries
    of single cells. They can only help (EIG, Program 2, steps 4 and 5).
    Raises `InvalidInputError` or `InputTypeError` for an object that is no matrix of finite numbers.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.strategies.completed([[1, 1], [1, 0]])
    array([[1., 1.],
           [1., 0.],
           [0., 1.]])
    """
    rows = to_dense(validate.matrix(strategy=strategy))
    validate.moderate(strategy=rows)
    norms = np.einsum("pi,pi->i", rows, rows)
    slack = norms.max() - norms
    return np.vstack([rows, np.diag(np.sqrt(slack))[slack > COMPLETE * norms.max()]])


def relative_weights(workload: Workload, distribution: npt.ArrayLike | None = None) -> Array:
    """Return weights (m,) under which total variance stands for relative error: ``1 / (d Σ_i p_i w_ji²)``.

    A variance relative to the square of its answer needs the data. With p the share of the records in each cell,
    ``√(Σ_i p_i w_ji²)`` is how large query j is where the records are; at the uniform p, the default, the weights
    are ``1 / ‖w_j‖²``, as if every query had norm 1, the heuristic of EIG, section 3.4. (Its words for a known
    distribution, weights on the cells that are the inverse of p, would make rare queries count less: here they count
    more, as relative errors do.)
    Raises `InvalidInputError` or `InputTypeError` for a distribution of the wrong length, negative, or 0 wherever
    some query is not; the query is named.
    Returns an array (m,): for `TotalVariance` and `fast.eigen_design`; 0 for an all-zero query.

    - `workload`: W;
    - `distribution` (d,): p ≥ 0, whatever its sum.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.strategies.relative_weights(dm.workloads.identity_total(2))
    array([1. , 1. , 0.5])
    """
    check_workload(workload)
    cells = workload.shape[1]
    shares = np.full(cells, 1.0) if distribution is None else validate.finite(1, distribution=distribution)
    if len(shares) != cells or np.any(shares < 0) or not np.any(shares):
        raise InvalidInputError(f"distribution must be {cells} numbers of at least 0, one per cell, not all 0")
    squares = np.asarray(abs(workload.matrix) ** 2 @ (shares * (cells / shares.sum())))
    norms = workload.row_norms()
    unseen = np.flatnonzero((squares == 0) & (norms > 0))
    if unseen.size:
        raise InvalidInputError(
            f"distribution must not be 0 wherever a query is not: query {workload.names[unseen[0]]!r} meets no record"
        )
    return np.where(norms > 0, 1 / np.where(norms > 0, squares, 1.0), 0.0)


def toeplitz(coefficients: npt.ArrayLike, steps: int) -> CausalMechanism:
    """Return the causal strategy ``C_ij = c_{i-j}`` over so many steps, with unit noise; few c make it banded.

    Raises `InvalidInputError` or `InputTypeError` for no coefficient, a first one that is not positive, one that is
    not finite, more than there are steps, more than 4,194,304 steps.

    Examples
    --------
    >>> import dualmech as dm
    >>> mechanism = dm.strategies.toeplitz([1.0, 0.5], 3)
    >>> mechanism.matrix
    array([[1. , 0. , 0. ],
           [0.5, 1. , 0. ],
           [0. , 0.5, 1. ]])
    >>> mechanism.profile.round(6), mechanism.variances(dm.workloads.prefix(3)).round(6)
    (array([1.25, 1.25, 1.  ]), array([1.    , 1.25  , 1.8125]))
    """
    count = validate.size(MAX_STEPS, steps=steps)
    return _toeplitz(_series(coefficients, count), count)


def sqrt_toeplitz(steps: int, decay: float = 1.0) -> CausalMechanism:
    """Return the square root of running sums, ``C C = W``: coefficients ``binom(2k, k) / 4^k β^k``.

    Fichtenberger, Henzinger and Upadhyay, "Constant matters: fine-grained error bound on differentially private
    continual observation", ICML 2023; of `decayed_sums` with the decay β in (0, 1].
    Raises `InvalidInputError` or `InputTypeError` for another decay, more than 4,194,304 steps.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.strategies.sqrt_toeplitz(4).matrix[-1]
    array([0.3125, 0.375 , 0.5   , 1.    ])
    """
    return _toeplitz(root_coefficients(steps, decay), steps)


def root_coefficients(steps: int, decay: float = 1.0) -> Array:
    """Return the coefficients of `sqrt_toeplitz` (steps,), fewer of which make a banded strategy.

    Raises `InvalidInputError` or `InputTypeError` as that does.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.strategies.toeplitz(dm.strategies.root_coefficients(2), 3).matrix
    array([[1. , 0. , 0. ],
           [0.5, 1. , 0. ],
           [0. , 0.5, 1. ]])
    """
    count, factor = validate.size(MAX_STEPS, steps=steps), validate.positive_number(decay=decay)
    if factor > 1:
        raise InvalidInputError(f"decay must be at most 1, got {factor:g}")
    with np.errstate(under="ignore"):
        return np.asarray(np.cumprod(np.r_[1.0, factor * (1 - 0.5 / np.arange(1, count))]))


def buffered(scales: npt.ArrayLike, decays: npt.ArrayLike, steps: int) -> CausalMechanism:
    """Return a buffered linear Toeplitz strategy (BLT): ``c_0 = 1``, ``c_k = Σ_j scale_j · decay_j^(k-1)``.

    Noise with as many buffers as there are scales: McMahan, Pillutla, Steinke, Thakurta and Dvijotham, "Efficient and
    near-optimal noise generation for streaming differential privacy", FOCS 2024.
    Raises `InvalidInputError` or `InputTypeError` for scales and decays of different number, decays outside [0, 1],
    more than 4,194,304 steps.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.strategies.buffered([0.5], [0.5], 4).matrix[:, 0]
    array([1.   , 0.5  , 0.25 , 0.125])
    """
    count, factors = validate.size(MAX_STEPS, steps=steps), validate.finite(1, decays=decays)
    if np.any(factors < 0) or np.any(factors > 1):
        raise InvalidInputError(f"decays must lie from 0 to 1, got {validate.shown(factors)}")
    return CausalMechanism(
        Buffered(steps=count, scales=validate.vector(len(factors), "decay", scales=scales), decays=factors.copy())
    )


def scaled_toeplitz(
    coefficients: npt.ArrayLike, rows: npt.ArrayLike, scales: npt.ArrayLike, decays: npt.ArrayLike
) -> CausalMechanism:
    """Return ``C_ki = r_k c_{k-i} / y_i``, a Toeplitz strategy with factors r on rows and divisors y of columns.

    The noise of step i is y_i times that of the Toeplitz strategy, drawn from numbers over r_k: it keeps as few rows.
    ``y_i = Σ_m scales_m decays_m^i``, where a decay above 1 begins at the last step, ``decays_m^(i - n + 1)``.
    Raises `InvalidInputError` or `InputTypeError` for scales and decays of different number, decays, rows or y that are
    not positive, coefficients that `toeplitz` refuses, more than 4,194,304 steps.

    Parameters
    ----------
    coefficients : array_like
        c (b,), at most n.
    rows : array_like
        r (n,), a factor for each step.
    scales, decays : array_like
        Of the exponentials (m,).

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.strategies.scaled_toeplitz([1.0, 0.5], [1.0, 2.0, 3.0], scales=[1.0], decays=[0.5]).matrix
    array([[ 1.,  0.,  0.],
           [ 1.,  4.,  0.],
           [ 0.,  3., 12.]])
    """
    from dualmech.geometry.scaled import Exponentials, ScaledToeplitz  # a module that few strategies need

    factors, rates = validate.positive(1, rows=rows).copy(), validate.positive(1, decays=decays).copy()
    parts = validate.vector(len(rates), "decay", scales=scales).copy()
    validate.moderate(rows=factors[None, :])
    series = _series(coefficients, validate.size(MAX_STEPS, rows=len(factors)))
    divisors = Exponentials(parts, rates, len(factors))
    if not (divisors.values.min() > 0 and divisors.rounding.max() < LEAST_KNOWN):
        raise InvalidInputError("scales and decays must make every divisor of a column positive, and not by rounding")
    return CausalMechanism(ScaledToeplitz(np.trim_zeros(series, "b"), factors, parts, rates))


def banded(bands: npt.ArrayLike) -> CausalMechanism:
    """Return the causal strategy ``C_{i+k, i} = bands[k, i]`` (b, n): its diagonals from the main one downwards.

    What reaches below the last row is not read. Time grows as ``n b²``.
    Raises `InvalidInputError` or `InputTypeError` for no matrix of finite numbers, a main diagonal that is
    not positive, more bands than steps, more than 4,194,304 steps.

    Examples
    --------
    >>> import dualmech as dm
    >>> dm.strategies.banded([[1, 2, 3], [0.5, 0.5, 0]]).matrix
    array([[1. , 0. , 0. ],
           [0.5, 2. , 0. ],
           [0. , 0.5, 3. ]])
    """
    rows = validate.finite(2, bands=bands).copy()
    validate.moderate(bands=rows)
    number, count = rows.shape
    if not 0 < number <= count <= MAX_STEPS:
        raise InvalidInputError(f"bands must be 1 to {count} rows of at most {MAX_STEPS} steps, got {number}")
    if np.any(rows[0] <= 0):
        raise InvalidInputError(f"bands[0], the main diagonal, must be positive, got {validate.shown(rows[0])}")
    rows[np.arange(number)[:, None] + np.arange(count) >= count] = 0.0
    return CausalMechanism(Banded(rows))


def tree(steps: int) -> CausalMechanism:
    """Return the binary tree of running sums, decoded as it grows: a noisy count for each block of ``2^h`` steps.

    Dwork, Naor, Pitassi and Rothblum (STOC 2010) and Chan, Shi and Song (ICALP 2010) have the tree; that a block is
    estimated from itself and all inside of it, by precision, is J. Honaker's (TPDP 2015). Each record is in one
    block of every height that is complete, and costs as many, although less could be said of the sums alone.
    Raises `InvalidInputError` or `InputTypeError` for more than 4,194,304 steps.

    Examples
    --------
    >>> import dualmech as dm
    >>> mechanism = dm.strategies.tree(4)
    >>> mechanism.profile.round(6), mechanism.variances(dm.workloads.prefix(4)).round(6)
    (array([3., 3., 3., 3.]), array([1.      , 0.666667, 1.666667, 0.571429]))
    """
    return CausalMechanism(Tree(validate.size(MAX_STEPS, steps=steps)))


def _series(coefficients: npt.ArrayLike, count: int) -> Array:
    series = validate.finite(1, coefficients=coefficients).copy()
    validate.moderate(coefficients=series[None, :])
    if not 0 < len(series) <= count or series[0] <= 0:
        raise InvalidInputError(
            f"coefficients must be 1 to {count} numbers, the first of them positive, got {validate.shown(series)}"
        )
    return series


def _toeplitz(series: Array, steps: int) -> CausalMechanism:
    return CausalMechanism(Toeplitz(np.trim_zeros(series, "b"), steps))


def _strategy(strategy: npt.ArrayLike, workload: Workload) -> Array:
    check_workload(workload)
    rows = to_dense(validate.matrix(strategy=strategy))
    if rows.shape[1] != workload.shape[1]:
        raise InvalidInputError(f"strategy must have {workload.shape[1]} columns, one per cell, got {rows.shape[1]}")
    validate.moderate(strategy=rows)
    if not np.any(rows):
        raise InvalidInputError("strategy must have at least one row that is not all zero")
    return rows
