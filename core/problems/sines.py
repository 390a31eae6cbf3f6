"""All ranges over their eigen-queries, the sines: every cost in closed form, every product a fast transform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dualmech import linalg
from dualmech.neighbours import Relation
from dualmech.problems.loads import SineLoads
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.intervals import RangeWorkload, SineWorkload


@dataclass(frozen=True, slots=True, eq=False)
class SineDesign:
    """``W = L Q`` for all ranges and the sines Q, which are orthonormal: what `DesignGeometry` is, without a matrix."""

    workload: Workload
    design: SineWorkload

    name: ClassVar[str] = "sines"
    neighbours: ClassVar[None] = None
    independent: ClassVar[bool] = True

    @classmethod
    def of(cls, workload: Any, design: Any, neighbours: Any, privacy: str) -> SineDesign | None:
        """Return the geometry of all ranges and the sines over them; None for any other question."""
        both = isinstance(workload, RangeWorkload) and isinstance(design, SineWorkload)
        given = Relation.of(neighbours) if isinstance(neighbours, str) else neighbours
        plain = given is None or (isinstance(given, Relation) and given == Relation())
        if not both or not plain or privacy != "approximate" or workload.shape[1] != len(design):
            return None
        return cls(workload, design)

    def loads(self, power: int) -> SineLoads:
        """Return the sensitivities: squared sines."""
        return SineLoads(len(self.design))

    @property
    def roots(self) -> Array:
        """Norms of the columns of L (k,): roots of the eigenvalues ``N / (4 sin²(π k / 2N))``, ``N = d + 1``."""
        period = len(self.design) + 1
        return np.asarray(np.sqrt(period) / 2 / np.sin(np.pi / (2 * period) * np.arange(1, period)))

    @property
    def root_rounding(self) -> Array:
        """Allowance for the rounding of `roots` (k,), absolute."""
        return 8 * linalg.EPS * self.roots

    @property
    def needed(self) -> npt.NDArray[np.intp]:
        """Indices of the sines that serve the workload: all."""
        return np.arange(len(self.design))

    @property
    def unmoved(self) -> npt.NDArray[np.intp]:
        """Indices of the sines that no neighbour changes: none."""
        return np.zeros(0, dtype=np.intp)

    @property
    def weighed(self) -> npt.NDArray[np.intp]:
        """Indices of the sines whose weights are to be found: all."""
        return self.needed

    def spread(self, weights: Array) -> Array:
        """Return the weights of all sines from those of the `weighed`."""
        return weights

    def left_out(self, weights: Array, reach: Array, power: int, total: float) -> float:
        """Return what sines that are not needed may add to a total: nothing."""
        return 0.0

    def noise(self, precisions: Array) -> tuple[Array, Array]:
        """Return the sines written out and a root of the covariance of the noise on them; refused where too large."""
        return self.design.matrix, np.diag(1 / np.sqrt(precisions))
