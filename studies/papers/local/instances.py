"""The local privacy paper's experiments: six workloads, fixed mechanisms and the optimised one.

The converted text has lost the numbers of its figures, so the tables are held against its words. Where all
parities are asked, ``W'W`` is n times that of histograms: the two are one problem, up to that factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dualmech as dm
from dualmech import workloads
from dualmech.studies import rivals
from dualmech.studies.rivals import LocalRival

LDP = "McKenna, Maity, Mazumdar and Miklau, PVLDB 13(11), 2020"

HISTOGRAM, PREFIX, ALL_RANGE = "Histogram", "Prefix", "All Range"
ALL_MARGINALS, THREE_WAY, PARITY = "All Marginals", "3-Way Marginals", "Parity"

RESPONSE = "randomised response"
HADAMARD, ONE_BLOCK, BEST_HADAMARD = "Hadamard", "Hadamard, one block", "Hadamard, best"
SUBSETS, RAPPOR = "subset selection", "RAPPOR"
TREE, TREE_OF_SUBSETS, FOURIER = "hierarchical", "hierarchical, subsets", "Fourier"
LAPLACE, GAUSS = "matrix, L1", "matrix, L2"

COMPARED = (RESPONSE, HADAMARD, TREE, FOURIER, LAPLACE, GAUSS)
"""The paper's rivals; it leaves out the two whose strategy matrix is exponential."""

DELTA = 1e-9
"""δ of the L2 matrix mechanism, whose noise is Gaussian: it alone is not private in the pure sense."""

BRANCHING = 4  # branching factor of the hierarchical mechanism, as in the authors' code


@dataclass(frozen=True, slots=True)
class LocalInstance:
    """A workload over n user types, n a power of two."""

    name: str  # Which of the six
    size: int  # n

    @property
    def attributes(self) -> int:
        """Number of binary attributes behind the user types."""
        return self.size.bit_length() - 1

    @property
    def queries(self) -> int:
        bits = self.attributes
        three_way = 8 * math.comb(bits, 3)
        counts = {ALL_RANGE: self.size * (self.size + 1) // 2, ALL_MARGINALS: 3**bits, THREE_WAY: three_way}
        return counts.get(self.name, self.size)

    def build(self) -> dm.Workload:
        """Return the workload, or one with the same Gram matrix.

        Examples
        --------
        >>> [LocalInstance(name, 16).build().shape[0] for name in WORKLOADS]
        [16, 16, 16, 81, 32, 16]
        """
        return WORKLOADS[self.name](self.size)

    def rival(self, name: str, epsilon: float) -> LocalRival:
        """Return a fixed mechanism for these user types."""
        return RIVALS[name](self, epsilon)


def _binary(size: int) -> list[int]:
    return [2] * (size.bit_length() - 1)


def _all_marginals(size: int) -> dm.Workload:
    shape = _binary(size)
    return workloads.marginals(shape, ways=range(len(shape) + 1))


WORKLOADS: dict[str, Callable[[int], dm.Workload]] = {
    HISTOGRAM: workloads.identity,
    PREFIX: workloads.prefix,
    ALL_RANGE: lambda size: workloads.from_gram(workloads.all_range_gram(size)),
    ALL_MARGINALS: _all_marginals,
    THREE_WAY: lambda size: workloads.marginals(_binary(size), ways=3),
    PARITY: lambda size: workloads.parity(size.bit_length() - 1),
}
"""The six workloads of section 6.1; marginals and parities are over binary attributes."""


Maker = Callable[[LocalInstance, float], LocalRival]


def _of_size(build: Callable[[int, float], LocalRival], **options: Any) -> Maker:
    """Return the maker of a mechanism that depends on nothing but n and ε."""
    return lambda instance, epsilon: build(instance.size, epsilon, **options)


def _best_hadamard(instance: LocalInstance, epsilon: float) -> LocalRival:
    workload, size = instance.build(), instance.size
    tried = [rivals.hadamard_response(size, epsilon, 1 << power) for power in range(size.bit_length())]
    return min(tried, key=lambda rival: float(rival.user_variances(workload).max()))


def _fourier(instance: LocalInstance, epsilon: float) -> LocalRival:
    return rivals.fourier_response(instance.attributes, epsilon, 3 if instance.name == THREE_WAY else None)


RIVALS: dict[str, Maker] = {
    RESPONSE: _of_size(rivals.randomised_response),
    HADAMARD: _of_size(rivals.hadamard_response),
    ONE_BLOCK: _of_size(rivals.hadamard_response, blocks=1),
    BEST_HADAMARD: _best_hadamard,
    SUBSETS: _of_size(rivals.subset_selection),
    RAPPOR: _of_size(rivals.rappor),
    TREE: _of_size(rivals.hierarchical_response, branching=BRANCHING),
    TREE_OF_SUBSETS: _of_size(rivals.hierarchical_response, branching=BRANCHING, oracle=rivals.subset_selection),
    FOURIER: _fourier,
    LAPLACE: lambda instance, epsilon: rivals.matrix_mechanism(instance.build(), epsilon),
    GAUSS: lambda instance, epsilon: rivals.matrix_mechanism(instance.build(), epsilon, "l2", DELTA),
}
"""All mechanisms that are compared, in the order of their columns."""

ALL_RIVALS = tuple(RIVALS)
