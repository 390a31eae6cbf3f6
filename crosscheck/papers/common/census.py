"""The census application of the common-mechanism paper (CMN, section 7.5): its chain, and what it saves (Table 7).

Four histograms of ages by gender, each a refinement of the one before; the choice goes from the coarsest to the finest.
The alternate approach buys, for each decision, answers as accurate as what the chain knows by then. A tract that ends
with the first histogram has paid for the first decision, one that ends with the second for the second, and all others
for the third; so %PLB saved of a population is the mean of the three costs over the shares of the tracts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from dualmech import fast
from dualmech.adaptive.chain import Chain
from dualmech.crosscheck.agreement import TOLERANCES, Agreement
from dualmech.crosscheck.papers.common import instances
from dualmech.crosscheck.papers.common.printed import TABLE_7, CensusRow
from dualmech.crosscheck.papers.common.saved import layers, least_cost_as_accurate
from dualmech.crosscheck.papers.printed import Interval, is_rounding, rounded_from, with_allowance
from dualmech.crosscheck.papers.solving import certified_outcome
from dualmech.workloads.base import Workload

ROUNDING = 1e-9
"""Share of the budget up to which a cell costs nothing, and relative allowance where nothing was optimised for."""

TEXT, CODE = "Total by gender", "Total alone"
"""The first histogram, as the text says and as the published code has it."""

UNSHARED = ", shared buckets left out"
"""What a reading adds that counts only cells which the mechanism about to be left treats otherwise than the chain."""


@dataclass(frozen=True, slots=True)
class Stages:
    """The chain and what each decision would cost the alternate approach, in shares of the whole budget."""

    name: str  # Which Total it starts with
    costs: tuple[Interval, ...]  # Proven intervals, a decision each
    own: tuple[float, ...]  # Squared privacy cost of what the chain knows by then
    # The same, over the cells only that the mechanism about to be left treats otherwise than the chain
    # did so far
    unshared: tuple[float, ...]
    gap: float  # The widest certified gap, of the chain and of the alternate approach
    certified: bool  # Whether all were proven to their tolerance
    layers: Agreement  # The worst outcome of comparing a stage with the CVXPY program's answer
    maximal: bool  # Whether what is known was proven maximal at every stage
    seconds: float  # To build the chain


@dataclass(frozen=True, slots=True)
class SavedRow:
    """A row of Table 7: what its own shares make of %PLB saved, by each reading of the costs."""

    rho: str  # As printed
    printed: CensusRow
    readings: dict[str, Interval]  # By reading: %PLB saved, as the shares can be before they were rounded

    def fits(self, reading: str) -> bool:
        """Whether the printed number is a rounding of something in a reading's interval."""
        return is_rounding(self.printed.saved, self.readings[reading])

    def misprint(self, reading: str) -> str:
        """Return the number that fits and differs from the printed one in a single digit; empty where none does."""
        found = [
            text for text in _one_digit_apart(self.printed.saved) if is_rounding(text, self.readings[reading])
        ]
        return found[0] if found and not self.fits(reading) else ""


@dataclass(frozen=True, slots=True)
class Census:
    """Table 7's %PLB saved, with the chains behind it."""

    stages: tuple[Stages, ...]
    rows: tuple[SavedRow, ...]

    @property
    def outcome(self) -> Agreement:
        """Whether every chain and every cost was certified, and the layers agree; the paper does not enter."""
        certified = all(each.certified and each.maximal for each in self.stages)
        return _worst([certified_outcome(certified), *(each.layers for each in self.stages)])

    @property
    def gap(self) -> float:
        """The widest certified gap."""
        return max(each.gap for each in self.stages)


def stages(by_gender: bool) -> tuple[Chain, Stages]:
    """Build the chain and solve for what its decisions would cost otherwise.

    Examples
    --------
    >>> _, found = stages(by_gender=False)
    >>> [round(high, 6) for _, high in found.costs], round(found.unshared[2], 6)
    ([0.021739, 0.25, 1.0], 0.5)
    """
    mechanisms = instances.census(by_gender)
    begun = time.perf_counter()
    chain = fast.chain(mechanisms)
    seconds = time.perf_counter() - begun
    budget = mechanisms[0].squared_privacy_cost
    answers = [
        least_cost_as_accurate(stage.known, Workload(mechanism.query_matrix))
        for stage, mechanism in zip(chain.stages, mechanisms[:-1], strict=True)
    ]
    own = [stage.known.profile / budget for stage in chain.stages]
    other = [stage.decomposition(stage.index).residual.profile > ROUNDING * budget for stage in chain.stages]
    return chain, Stages(
        TEXT if by_gender else CODE,
        tuple((low / budget, high / budget) for low, high in (each.certificate.interval for each in answers)),
        tuple(float(profile.max()) for profile in own),
        tuple(float(profile[cells].max()) for profile, cells in zip(own, other, strict=True)),
        max(chain.gap, *(answer.gap for answer in answers)),
        chain.certified and all(each.certificate.certifies(TOLERANCES["fast"]) for each in answers),
        _worst([layers(stage.solution) for stage in chain.stages]),
        all(stage.maximality for stage in chain.stages),
        seconds,
    )


def saved(shares: Sequence[str], costs: Sequence[Interval]) -> Interval:
    """Return %PLB saved from printed shares in percent, as these can be before they were rounded.

    The shares before rounding add up to 100, so a bound on ``Σ w_i c_i`` is ``100 t + Σ max over w_i of w_i (c_i - t)``
    for any t; the best t is one of the costs.

    Examples
    --------
    >>> low, high = saved(("0.34", "0.68", "1.64", "97.34"), [(1 / 46, 1 / 46), (0.25, 0.25), (0.5, 0.5)])
    >>> round(low, 3), round(high, 3)
    (49.664, 49.671)
    """
    weights = [rounded_from(text) for text in shares]
    each = [*costs, *[costs[-1]] * (len(weights) - len(costs))]
    low = max(_bound(weights, [cost for cost, _ in each], t, min) for t, _ in each)
    high = min(_bound(weights, [cost for _, cost in each], t, max) for _, t in each)
    return low, high


def _bound(
    weights: Sequence[Interval], costs: Sequence[float], t: float, worst: Callable[[Iterator[float]], float]
) -> float:
    return 100 * t + sum(
        worst(weight * (cost - t) for weight in pair) for pair, cost in zip(weights, costs, strict=True)
    )


def solve() -> Census:
    """Compute Table 7's last column by each reading of the costs."""
    found = [stages(by_gender)[1] for by_gender in (True, False)]
    readings: dict[str, Sequence[Interval]] = {each.name: each.costs for each in found}
    for each in found:
        allowed = [with_allowance(cost, ROUNDING) for cost in each.unshared]
        readings[each.name + UNSHARED] = allowed
    rows = tuple(
        SavedRow(rho, row, {name: saved(row.shares, costs) for name, costs in readings.items()})
        for rho, row in TABLE_7.items()
    )
    return Census(tuple(found), rows)


def census(quick: bool) -> list[Callable[[], Census]]:
    """Return what to compute; a quick run computes all of it."""
    return [partial(solve)]


def _worst(outcomes: Sequence[Agreement]) -> Agreement:
    return max(outcomes, key=list(Agreement).index)


def _one_digit_apart(text: str) -> Iterator[str]:
    for place, digit in itertools.product(range(len(text)), "0123456789"):
        if text[place].isdecimal() and text[place] != digit:
            yield text[:place] + digit + text[place + 1 :]
