"""How much privacy the common mechanism saves (CMN, "%PLB saved"): what it would cost to learn as much otherwise.

The alternate approach decides by a mechanism of its own before it runs the chosen one. It is the best Gaussian
mechanism, that of fitness for use, which answers certain queries as accurately as the common mechanism does; %PLB saved
is its privacy cost over that of the mechanisms to choose from. Which queries those are makes a difference:

- all that the common mechanism answers with independent noise (its rows by algorithm 2, eigenvectors of its cost
  matrix): that costs at least the mean of its privacy profile, so nothing is gained where the profile is even;
- the primary analysis, on which alone the decision rests (section 6.1).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dualmech import fast, reference
from dualmech.crosscheck.agreement import TOLERANCES, Agreement, compare
from dualmech.crosscheck.papers.common.instances import CHOICES, Choice
from dualmech.crosscheck.papers.common.printed import SAVED
from dualmech.crosscheck.papers.printed import Interval, is_rounding, with_allowance
from dualmech.crosscheck.papers.solving import certified_outcome, without_warnings
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.problems.common import CommonMechanism
from dualmech.problems.fitness import FitnessForUse
from dualmech.solution import Solution
from dualmech.workloads.base import Workload

ROUNDING = 1e-9  # relative allowance for rounding in a privacy cost that nothing was optimised for

QUICK_SIZE = 32
"""Number of common queries up to which the CVXPY program takes no more than a second; at 102 it takes a minute."""

OWN, BASIS, PRIMARY = (
    "the common mechanism itself",
    "a mechanism as good on its queries",
    "one as good on the primary",
)
"""What a reading of %PLB saved takes the cost of."""


@dataclass(frozen=True, slots=True)
class Saving:
    """%PLB saved in one choice, by each reading, in percent of the mechanisms' own budget."""

    choice: str  # Between which mechanisms
    printed: str  # As the paper prints it
    readings: dict[str, Interval]  # By reading: proven intervals, in percent
    gap: float  # The widest certified gap, of the common mechanism and of both problems of fitness for use
    certified: bool  # Whether all three were proven to their tolerance
    # Whether the CVXPY program has the same common mechanism; None where it was left out
    layers: Agreement | None
    maximal: bool  # Whether the common mechanism was proven maximal
    seconds: float  # For all of it

    @property
    def outcome(self) -> Agreement:
        """Whether all was certified and the layers agree; which reading the paper's number fits does not enter."""
        if self.layers not in (None, Agreement.AGREE):
            return self.layers
        return certified_outcome(self.certified and self.maximal)

    def fits(self, reading: str) -> bool:
        """Whether the printed number is a rounding of something in a reading's interval."""
        return is_rounding(self.printed, self.readings[reading])


def solve(choice: Choice, largest: float = QUICK_SIZE) -> Saving:
    """Solve a choice: the common mechanism, and the alternate approach by both readings.

    - `choice`: between which mechanisms;
    - `largest`: number of common queries up to which the CVXPY program is solved, too.

    Examples
    --------
    >>> from dualmech.crosscheck.papers.common.instances import CHOICES
    >>> found = solve(CHOICES["hisrace, identity"])
    >>> {name: round(high, 4) for name, (_, high) in found.readings.items()} # doctest: +NORMALIZE_WHITESPACE
    {'the common mechanism itself': 6.25, 'a mechanism as good on its queries': 6.25,
     'one as good on the primary': 5.192}
    """
    begun = time.perf_counter()
    mechanisms = choice.mechanisms
    problem = CommonMechanism(mechanisms)
    solution = fast.solve(problem)
    common = solution.mechanism
    budget = mechanisms[0].squared_privacy_cost
    own = common.squared_privacy_cost
    answers = {
        BASIS: least_cost_as_accurate(common, principal_queries(common)),
        PRIMARY: least_cost_as_accurate(common, choice.workloads[0]),
    }
    readings = {OWN: with_allowance(own, ROUNDING)}
    readings |= {name: answer.certificate.interval for name, answer in answers.items()}
    return Saving(
        choice.name,
        SAVED[choice.name],
        {name: (100 * low / budget, 100 * high / budget) for name, (low, high) in readings.items()},
        max(solution.gap, *(answer.gap for answer in answers.values())),
        all(each.certificate.certifies(TOLERANCES["fast"]) for each in (solution, *answers.values())),
        layers(solution) if len(problem.basis) <= largest else None,
        bool(problem.maximality(solution.primal)),
        time.perf_counter() - begun,
    )


def principal_queries(mechanism: LinearGaussianMechanism) -> Workload:
    """Return queries that a mechanism answers with independent noise: eigenvectors of its cost (algorithm 2)."""
    return Workload(np.linalg.eigh(mechanism.cost_matrix)[1].T[-mechanism.rank :])


def layers(solution: Solution) -> Agreement:
    """Return whether the reference layer's answer to the same problem agrees with the fast layer's."""
    backend = "CLARABEL"
    with without_warnings():
        same = reference.solve(solution.problem, backend=backend, tol=TOLERANCES[backend])
    return compare([solution, same]).outcome


def least_cost_as_accurate(mechanism: LinearGaussianMechanism, queries: Workload) -> Solution:
    """Solve for the least privacy cost at which some queries have the variances that a mechanism gives them."""
    return fast.solve(FitnessForUse(queries, mechanism.variances(queries)), tol=TOLERANCES["fast"])


def savings(quick: bool) -> list[Callable[[], Saving]]:
    """Return what to compute; a quick run leaves out the CVXPY program of the largest choice."""
    return [partial(solve, choice, QUICK_SIZE if quick else math.inf) for choice in CHOICES.values()]
