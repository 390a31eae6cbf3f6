"""Banded strategies of running sums: covariances block by block, and what their rounding may hide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from dualmech.linalg import EPS
from dualmech.neighbours import participation
from dualmech.validate import Array
from dualmech.workloads.streams import running_sums

LEAST_BLOCK = 32  # steps that a banded strategy is followed by at a time, at least

USABLE = 0.5  # factor by which a covariance may be too small, above which anything is said of it


@dataclass(frozen=True, slots=True, eq=False)
class Banded:
    """``C_{i+k, i} = bands[k, i]``, lower-triangular with b bands, of which the first has no zero.

    ``K = C W⁻¹`` is banded as well. In blocks of steps, D on its diagonal and E to the left of it, the covariance P of
    the answers of a block follows from that of the block before as ``D P D' = G = I + E P₋ E'``. A computed P with
    ``‖D P D' - G‖ ≤ ε < 1`` satisfies ``D P D' ⪰ (1 - ε) G``, for ``G ⪰ I``; and what is too small before is so by at
    most the same factor after. So the true covariance is at most P over the product of all ``1 - ε`` so far.
    """

    bands: Array  # (b, n)

    @property
    def steps(self) -> int:
        """Number of steps n."""
        return int(self.bands.shape[1])

    def costs(self) -> Array:
        """Return the squared norm of each column (n,)."""
        return np.einsum("ki,ki->i", self.bands, self.bands)

    def variances(self, decay: float) -> tuple[Array, Array]:
        """Return the variance of each sum (n,), and what it may be higher by, relative."""
        found, off = np.zeros(self.steps), np.full(self.steps, np.inf)
        before, factor = np.zeros((0, 0)), 1.0
        with np.errstate(all="ignore"):
            for start, own, left in _in_blocks(*self._shifted(decay)):
                target = np.eye(len(own[0])) + left[0] @ before @ left[0].T
                half = scipy.linalg.solve_triangular(own[0], target, lower=True, check_finite=False)
                noise = scipy.linalg.solve_triangular(own[0], half.T, lower=True, check_finite=False)
                noise = (noise + noise.T) / 2
                magnitude = _spread(own[1], noise) + _spread(left[1], before) + np.sqrt(len(noise))
                missed = np.linalg.norm(own[0] @ noise @ own[0].T - target)
                missed += 4 * (len(noise) + 2) * EPS * magnitude
                factor *= max(1 - missed, 0.0)
                if not (factor > USABLE and np.all(np.isfinite(noise))):
                    break
                block = slice(start, start + len(noise))
                found[block], off[block] = np.diagonal(noise), 1 / factor - 1
                before = noise
        found[np.isinf(off)] = np.inf
        return found, off

    @property
    def nonnegative(self) -> bool:
        """Whether C has no negative entry."""
        return bool(np.all(self.bands >= 0))

    def participation(self, times: int, apart: int) -> float:
        """Return the largest squared norm of a sum of columns of ``|C|``, so many steps apart."""
        offsets = -np.arange(len(self.bands))
        sizes = sp.dia_array((np.abs(self.bands), offsets), shape=(self.steps, self.steps))
        sums = sp.csc_array(sizes @ participation(self.steps, times, apart, np.ones((1, times))))
        return float((sums**2).sum(axis=0).max())

    def noise(self, generator: np.random.Generator, decay: float) -> Array:
        """Draw the noise of the sums (n,)."""
        drawn = generator.standard_normal(self.steps)
        solved = scipy.linalg.solve_banded((len(self.bands) - 1, 0), self.bands, drawn, check_finite=False)
        return running_sums(solved, decay)

    def matrix(self) -> Array:
        """Return C (n, n)."""
        return np.asarray(sum(np.diag(band[: self.steps - k], -k) for k, band in enumerate(self.bands)))

    def _shifted(self, decay: float) -> tuple[Array, Array]:
        """Return the bands of ``C W⁻¹``, and what they are differences of, in magnitude."""
        # Column i of C W⁻¹ is column i of C less β times the next one.
        both = np.zeros((2, len(self.bands) + 1, self.steps))
        both[0, :-1], both[1, :-1] = self.bands, np.abs(self.bands)
        both[0, 1:, :-1] -= decay * self.bands[:, 1:]
        both[1, 1:, :-1] += decay * np.abs(self.bands[:, 1:])
        return both[0], both[1]


def _in_blocks(*given: Array) -> Iterator[tuple[int, list[Array], list[Array]]]:
    """Yield blocks of steps of banded matrices: where one begins, what is on its diagonal and what is to the left."""
    width, count = len(given[0]) - 1, given[0].shape[1]
    size = max(LEAST_BLOCK, width)
    for start in range(0, count, size):
        rows = np.arange(start, min(start + size, count))[:, None]
        columns = np.arange(max(start - size, 0), rows[-1, 0] + 1)
        below = rows - columns
        inside, earlier = (below >= 0) & (below <= width), start - int(columns[0])
        whole = [np.where(inside, bands[np.clip(below, 0, width), columns], 0.0) for bands in given]
        yield start, [each[:, earlier:] for each in whole], [each[:, :earlier] for each in whole]


def _spread(rows: Array, noise: Array) -> float:
    """Return the norm of ``|A| |P| |A|'``."""
    return float(np.linalg.norm(rows @ np.abs(noise) @ rows.T))
