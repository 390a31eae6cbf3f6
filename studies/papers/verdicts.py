"""The evidence of a row of printed ratios on the privacy cost behind it, and so on the optimum.

A table that compares mechanisms at one squared privacy cost α prints ``value / α`` for each of them, and the
values are known. So every printed ratio implies the α at which it was computed, up to its rounding. Where two
mechanisms that were computed independently imply the same α, that was the paper's: if a smaller one is proven
possible, the paper stopped above the optimum. One column alone says nothing, since the instance may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from dualmech.crosscheck.printing import Interval, overlap, rounded_from


class Finding(Enum):
    """The finding on a row of printed ratios."""

    AGREES = "agrees with the certified optimum, to the digits printed"
    ABOVE = "the paper stopped above the optimum"
    DIFFERS = "the instance may differ"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A printed ratio and the value, at squared cost 1, of the mechanism that it is of."""

    column: str  # Its name in a verdict
    source: str  # Columns of one source are one piece of evidence, such as weightings that coincide
    value: Interval  # Largest variance over target at squared cost 1
    printed: str  # The ratio as printed
    # Weight of the source: 3 where nothing was chosen or optimised, 2 where a tree was chosen, 1
    # where an optimiser may have stopped early
    weight: int = 1

    @property
    def implied(self) -> Interval:
        """The squared costs at which the value's ratio rounds to the printed one."""
        low, high = rounded_from(self.printed)
        return self.value[0] / high, self.value[1] / low if low > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class InstanceVerdict:
    finding: Finding
    implied: Interval  # The squared costs that the fitting columns have in common
    excess: Interval  # How far these lie above the certified optimum, relative
    # Those that imply a common cost, and those that do not
    fitting: tuple[str, ...]
    others: tuple[str, ...]
    sources: int  # Number of independent columns among the fitting ones

    def sentence(self, quantity: str, above: str = "PAPER ABOVE THE OPTIMUM") -> str:
        """Return the verdict in words: which columns imply one `quantity`, and by how much that is `above`."""
        if self.sources < 2 and self.finding is not Finding.AGREES:
            return "THE INSTANCE MAY DIFFER: no two columns imply the same"
        text = {
            Finding.AGREES: f"AGREES{' IN PART' if self.others else ''}",
            Finding.ABOVE: f"{above} by {100 * self.excess[0]:.2f} % to {100 * self.excess[1]:.2f} %",
            Finding.DIFFERS: "THE INSTANCE MAY DIFFER",
        }[self.finding]
        low, high = self.implied
        text += f": {', '.join(self.fitting)} imply {quantity} {low:.5g} to {high:.5g}"
        return text + (f"; not {', '.join(self.others)}" if self.others else "")


def verdict(evidence: Sequence[Evidence], cost: Interval) -> InstanceVerdict:
    """Decide what a row of printed ratios says, given the proven interval of the least squared cost.

    The columns fit together at the costs that sources of the largest total weight imply. If the certified
    optimum is such a cost, the row agrees; if those costs lie above it, so did the paper, provided that two
    sources fit. If they lie below a proven bound, if fewer sources fit, or if several costs fit equally well,
    the instance may differ.
    """
    clusters = _clusters(evidence)
    at_optimum = [cluster for cluster in clusters if overlap(cluster, cost)]
    common = (at_optimum or clusters)[0] if clusters else cost
    fitting = [item for item in evidence if overlap(item.implied, common)]
    sources = len({item.source for item in fitting})
    names = tuple(item.column for item in fitting)
    others = tuple(item.column for item in evidence if item not in fitting)
    if at_optimum:
        finding = Finding.AGREES
    elif len(clusters) == 1 and sources > 1 and common[0] > cost[1]:
        finding = Finding.ABOVE
    else:
        finding = Finding.DIFFERS
    return InstanceVerdict(finding, common, (common[0] / cost[1] - 1, common[1] / cost[0] - 1), names, others, sources)


def _weight(evidence: Sequence[Evidence], piece: Interval) -> int:
    """Return the total weight of the sources that imply every cost of a piece."""
    implying = [item for item in evidence if item.implied[0] <= piece[0] and piece[1] <= item.implied[1]]
    return sum({item.source: item.weight for item in implying}.values())


def _clusters(evidence: Sequence[Evidence]) -> list[Interval]:
    """Return the intervals of costs that sources of the largest total weight imply."""
    ends = sorted({end for item in evidence for end in item.implied})
    pieces = sorted([(end, end) for end in ends] + list(zip(ends[:-1], ends[1:], strict=True)))
    most = max((_weight(evidence, piece) for piece in pieces), default=0)
    clusters: list[Interval] = []
    for low, high in pieces:
        if _weight(evidence, (low, high)) < most:
            continue
        if clusters and low <= clusters[-1][1]:
            clusters[-1] = (clusters[-1][0], max(high, clusters[-1][1]))
        else:
            clusters.append((low, high))
    return clusters
