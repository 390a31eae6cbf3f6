"""Subset selection with few outputs: the best strategy for workloads that treat all user types equally.

Where ``W'W = a I + b 1 1'`` every strategy whose rows are patterns of k user types with ``G`` of the same form is best,
for the right k. Choosing all sets of k types is subset selection (Ye and Barg, "Optimal schemes for discrete
distribution estimation under locally differential privacy", IEEE Trans. Inf. Theory 64(8), 2018), which has too many
outputs to list. All that G asks of the sets is that pairs of user types occur equally often together: a design. Here
the translates of a few sets on a circle, weighed such that every difference of places occurs equally often.
"""

from __future__ import annotations

import numpy as np

from dualmech.geometry.local import patterns
from dualmech.problems.local.strategy import LocalStrategy
from dualmech.validate import Array

ALIKE = 1e-12  # relative difference of entries of W'W that counts as rounding
BASES = 4  # random sets whose translates are weighed, for each difference of places
LARGEST = 512  # user types up to which all translates fit into memory: there are some n²/2 of them
MET = 1e-10  # largest miss of an equal share of a difference, relative, that counts as none


def treats_all_equally(problem: LocalStrategy) -> bool:
    """Whether ``W'W`` is a multiple of the identity but for a constant, and no prior tells user types apart."""
    gram = problem.root.T @ problem.root
    size = len(gram)
    across = gram[~np.eye(size, dtype=bool)]
    spread = np.ptp(np.diagonal(gram)) + np.ptp(across)
    return bool(spread <= ALIKE * np.abs(gram).max() and np.ptp(problem.prior) <= ALIKE)


def strategy(problem: LocalStrategy, rng: np.random.Generator) -> Array | None:
    """Return such a strategy (m, n), or None where the random sets do not suffice, or would be too many."""
    if problem.user_types > LARGEST:
        return None
    # Imported here so that solvers load without it.
    from scipy.optimize import nnls

    size, excess = problem.user_types, patterns.gain(problem.epsilon)
    counts = np.arange(1, size)
    best = int(counts[np.argmax(counts * (size - counts) / (size + excess * counts) ** 2)])
    differences = size // 2
    random = np.argsort(rng.random((BASES * differences, size)), axis=1) < best
    # Sets with equal steps, for distances that few random sets of few user types hold.
    places = np.outer(np.arange(1, differences + 1), np.arange(best)) % size
    stepped = np.zeros((differences, size), dtype=bool)
    np.put_along_axis(stepped, places, True, axis=1)
    bases = np.vstack([random, stepped[stepped.sum(axis=1) == best]])
    # With the same transform but at 0 for a mean over the sets, all distances occur equally often.
    spectra = np.abs(np.fft.rfft(bases, axis=1)[:, 1:]) ** 2 / (best * (size - best) / (size - 1))
    system = np.vstack([spectra.T, np.ones(len(bases))])
    shares, _ = nnls(system, np.ones(len(system)))
    if np.abs(system @ shares - 1).max() > MET:
        return None
    used = np.flatnonzero(shares > 0)
    translates = (np.arange(size)[:, None] + np.arange(size)) % size
    rows = patterns.rows(np.vstack([bases[each][translates] for each in used]), problem.epsilon)
    return np.asarray(np.repeat(shares[used], size)[:, None] * rows)
