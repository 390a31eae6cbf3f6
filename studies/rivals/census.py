"""The threshold rule of the 2020 Census's detailed tables: the coarser the histogram, the fewer people were counted.

Which of several nested analyses a block gets depends on its head count alone, against fixed thresholds. Haney, Sexton,
Machanavajjhala, Hay and Miklau, "Differentially private algorithms for 2020 Census detailed DHC race and ethnicity"
(arXiv 2107.10659), give the rule and leave the thresholds open; Xiao, Wang, Zhang and Kifer (PVLDB 16(8), 2023,
section 7.5.5, "CMN") tune them by logistic regression on the right choices and hand the rule exact counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.special

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.validate import Array

Choices = npt.NDArray[np.intp]

RIDGE = 1e-6
"""Weight of the squared slopes next to the mean log-likelihood: keeps them finite where counts separate the choices."""


@dataclass(frozen=True, slots=True, eq=False)
class Thresholds:
    """Choose by head count: choice i where the i-th threshold is reached, and the next one is not.

    Examples
    --------
    >>> from dualmech.studies.rivals.census import Thresholds
    >>> Thresholds([10, 100]).choose([3, 10, 99, 5000])
    array([0, 1, 1, 2])
    """

    values: Array  # (p - 1,) in increasing order; equal ones leave a choice out

    def __init__(self, values: npt.ArrayLike) -> None:
        checked = validate.numeric(1, values=values)
        if np.any(np.isnan(checked)) or np.any(checked[1:] < checked[:-1]):
            raise InvalidInputError(f"values must be numbers in increasing order, got {checked}")
        object.__setattr__(self, "values", checked)

    def choose(self, counts: npt.ArrayLike) -> Choices:
        """Return the choice for each head count (n,), exact or noisy."""
        return np.searchsorted(self.values, validate.finite(1, counts=counts), side="right")


def logistic_thresholds(counts: npt.ArrayLike, choices: npt.ArrayLike, options: int) -> Thresholds:
    """Return the thresholds at which the likeliest choice changes, by multinomial logistic regression on the count.

    The log-odds of a choice are linear in the head count, so each is the likeliest on an interval, perhaps an empty
    one. Where a coarser choice becomes the likeliest of larger counts, thresholds cannot follow, and stay.
    Source: CMN, section 7.5.5. Fitted on the standardised count.

    - `counts` (n,): head counts;
    - `choices` (n,): the right choices, from 0 to options - 1;
    - `options`: number of choices.

    Examples
    --------
    >>> import numpy as np
    >>> from dualmech.studies.rivals import census
    >>> counts = np.arange(100.0)
    >>> found = census.logistic_thresholds(counts, (counts >= 40).astype(int), options=2)
    >>> bool(39 < found.values[0] <= 40)
    True
    """
    people, right = _as_choices(counts, choices, options)
    centre, scale = people.mean(), people.std() or 1.0
    features = np.stack([np.ones(len(people)), (people - centre) / scale], axis=1)
    scores = _fit(features, np.eye(options)[right])
    # The likeliest choice changes only where two lines of log-odds cross.
    intercepts, slopes = scores
    first, second = np.triu_indices(options, 1)
    apart = slopes[first] != slopes[second]
    first, second = first[apart], second[apart]
    crossings = np.unique((intercepts[second] - intercepts[first]) / (slopes[first] - slopes[second]))
    between = (crossings[1:] + crossings[:-1]) / 2
    inside = np.concatenate([crossings[:1] - 1, between, crossings[-1:] + 1]) if len(crossings) else np.zeros(1)
    likeliest = np.maximum.accumulate(np.argmax(intercepts + np.outer(inside, slopes), axis=1))
    edges = np.concatenate([[-np.inf], crossings, [np.inf]])
    return Thresholds(centre + scale * edges[np.searchsorted(likeliest, np.arange(1, options))])


def best_thresholds(counts: npt.ArrayLike, choices: npt.ArrayLike, options: int) -> Thresholds:
    """Return the thresholds that are right most often on these very counts: no tuning can beat them there.

    Dynamic programming over the distinct counts in increasing order: the most right choices among the first k of
    them with the last one given choice i is a running maximum over choices up to i.
    Parameters are as for `logistic_thresholds`.

    Examples
    --------
    >>> from dualmech.studies.rivals import census
    >>> found = census.best_thresholds([1, 2, 3, 4, 5], [0, 0, 1, 1, 0], options=2)
    >>> found.choose([1, 2, 3, 4, 5])
    array([0, 0, 1, 1, 1])
    """
    people, right = _as_choices(counts, choices, options)
    levels, place = np.unique(people, return_inverse=True)
    hits = np.zeros((len(levels), options))
    np.add.at(hits, (place, right), 1.0)
    before = np.vstack([np.zeros(options), np.cumsum(hits, axis=0)])
    # most[k]: right choices among the first k levels if the choices so far end there; start[i]: where choice i begins.
    most, starts = before[:, 0], []
    for choice in range(1, options):
        lead = most - before[:, choice]
        reached = np.maximum.accumulate(lead)
        first = np.where(lead == reached, np.arange(len(lead)), 0)
        starts.append(np.maximum.accumulate(first))
        most = reached + before[:, choice]
    place_of, end = [], len(levels)
    for start in reversed(starts):
        end = int(start[end])
        place_of.append(end)
    edges = np.append(levels, np.inf)
    return Thresholds(edges[place_of[::-1]])


def _as_choices(counts: npt.ArrayLike, choices: npt.ArrayLike, options: int) -> tuple[Array, Choices]:
    people, kinds = validate.finite(1, counts=counts), validate.size(options=options)
    right = np.asarray(validate.finite(1, choices=choices)).astype(np.intp)
    if kinds < 2:
        raise InvalidInputError(f"options must be at least 2, got {kinds}")
    if right.shape != people.shape or np.any(right != np.asarray(choices)):
        raise InvalidInputError(f"choices must be {len(people)} integers, one per count")
    if right.min() < 0 or right.max() >= kinds:
        raise InvalidInputError(f"choices must lie between 0 and {kinds - 1}, got {right.min()} to {right.max()}")
    return people, right


def _fit(features: Array, right: Array) -> Array:
    """Return the (2, p) scores of least regularised mean loss."""
    # Imported here so that rivals load without it.
    from scipy.optimize import minimize

    def loss(values: Array) -> tuple[float, Array]:
        scores = values.reshape(features.shape[1], -1)
        logs = scipy.special.log_softmax(features @ scores, axis=1)
        slope = features.T @ (np.exp(logs) - right) / len(features) + 2 * RIDGE * scores
        return float(-(right * logs).sum() / len(features) + RIDGE * (scores * scores).sum()), slope.ravel()

    start = np.zeros(features.shape[1] * right.shape[1])
    best = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 10_000})
    return np.asarray(best.x.reshape(features.shape[1], -1))
