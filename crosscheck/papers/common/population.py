"""Populations to decide on: blocks of counts, drawn from a seed, or read from a file.

The paper's data are not at hand, so these are made to be like them in what a decision depends on: how sizes of blocks
are spread, how counts within a block are, and how blocks differ from each other. In short, for block b:

- its size is log-normal, with a median and a spread of its own kind, rounded, at least 1; a few blocks are small
  instead, of any order of magnitude up to the median;
- its composition is Dirichlet around that of the whole population, its concentration says how similar blocks are;
- its counts are multinomial.

Sizes are like those of the paper's kinds of blocks; spreads and concentrations were moved by hand, in a few steps,
until exact counts led to the choices about as often as the paper prints, and head counts of tracts said about as little
of them. So these are no findings; how accurate decisions from noisy answers are, was not aimed at.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from dualmech import files, validate
from dualmech.errors import InvalidInputError
from dualmech.validate import Array

BLOCKS, SEED = 10_000, 0

NOISE_SEED = 1  # another than of the blocks: sizes and noise would else be made of the very same numbers


@dataclass(frozen=True, slots=True)
class Population:
    """How blocks of one kind are drawn."""

    name: str  # The data set in whose place it stands
    # Of the log-normal sizes: median, and standard deviation of the logarithm
    median: float
    spread: float
    concentration: float  # Of the Dirichlet compositions: the larger, the more similar blocks are
    small: float = 0.0  # Share of blocks whose sizes are log-uniform from 1 to the median

    @property
    def mean(self) -> Array:
        """The composition of the whole population, row-major over the cells; sums to 1."""
        return COMPOSITIONS[self.name]()

    def draw(self, blocks: int = BLOCKS, seed: int = SEED) -> Array:
        """Return counts (blocks, cells), the same for the same seed.

        Raises `InvalidInputError` or `InputTypeError` for a number of blocks below 1, something that is not a seed.
        """
        rng, rows = validate.generator(seed=seed), validate.size(blocks=blocks)
        sizes = rng.lognormal(np.log(self.median), self.spread, rows)
        sizes = np.where(rng.random(rows) < self.small, self.median ** rng.random(rows), sizes)
        sizes = np.maximum(np.rint(sizes), 1.0)
        weights = rng.gamma(self.concentration * self.mean, size=(rows, len(self.mean)))
        # With little concentration all of a block's weights may be too small for a float; it is then like the mean.
        empty = weights.sum(axis=1) == 0
        weights[empty] = self.mean
        shares = weights / weights.sum(axis=1, keepdims=True)
        return rng.multinomial(sizes.astype(np.int64), shares).astype(np.float64)


def _races() -> Array:
    """Return shares of the 2^7 answers: one of them at most times, independent of each other but for the first."""
    yes = (0.16, 0.72, 0.13, 0.012, 0.05, 0.003, 0.06)
    shares = np.ones(1)
    for share in yes:
        shares = np.kron(shares, np.array([1 - share, share]))
    races = np.array([bin(cell % 64).count("1") for cell in range(128)])
    # Nobody answers none, one race is the rule, and each further one a sixth as likely as if answers were independent.
    shares = shares * np.where(races == 0, 0.0, (1 / 6.0) ** np.maximum(races - 1, 0))
    return shares / shares.sum()


def _ages(ages: int, level: float, until: float, decay: float) -> Array:
    """Return shares of single years of age: even until an age, then falling off; `level` is the first year's share."""
    years = np.arange(ages)
    young = level + (1 - level) * np.minimum(years / 20.0, 1.0)
    return young * np.exp(-(np.maximum(years - until, 0.0) ** 1.5) / decay)


def _age_gender() -> Array:
    shares = np.concatenate([_ages(103, 1.0, 50, 140), _ages(103, 1.0, 54, 160)])
    return shares / shares.sum()


def _workers() -> Array:
    """Return shares of 101 x 2 cells, gender fastest: people at work, few of them children or old."""
    years = np.arange(101)
    rising = 1 / (1 + np.exp(-(years - 16) / 2.5))
    falling = 1 / (1 + np.exp((years - 54) / 9.0))
    shares = np.outer(rising * falling + 1e-4, [0.6, 0.4]).ravel()
    return shares / shares.sum()


COMPOSITIONS = {"HisRace": cache(_races), "AgeGender": cache(_age_gender), "Brazil": cache(_workers)}

POPULATIONS = {
    "HisRace": Population("HisRace", median=25.0, spread=1.3, concentration=8.0),
    "AgeGender": Population("AgeGender", median=3900.0, spread=0.5, concentration=50.0, small=0.01),
    "Brazil": Population("Brazil", median=45.0, spread=2.7, concentration=100.0),
}
"""Census blocks (some 50 people in the mean, half as many in the median), tracts (some 4,000, a few with hardly
anybody), and states by occupation (some 1,900 in the mean, few in most)."""


def read_counts(path: str, cells: int) -> Array:
    """Read the counts of blocks (blocks, cells) from a ``.npy``, ``.npz`` (key ``data``), ``.csv`` or ``.mtx`` file.

    Raises `FileFormatError` or `InvalidInputError` for a file that cannot be read, another number of cells, or
    counts below 0.
    """
    counts = _matrix(path)
    if counts.shape[1] != cells:
        raise InvalidInputError(f"data must have {cells} cells per block, {path} has {counts.shape[1]}")
    if counts.min() < 0:
        raise InvalidInputError(f"data must be counts, {path} has {counts.min():g}")
    return counts


@lru_cache(maxsize=1)
def _matrix(path: str) -> Array:
    """Return the matrix in a file, read once for all the tables that it is for."""
    return files.read_matrix(path, "data")
