"""Mechanisms of products, drawn: whole matrices along each factor's axis, and discrete noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy.linalg

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.product import ProductMechanism
from dualmech.publishing import drawing
from dualmech.publishing.dense import LEAST_EXPONENT, covariance_of, inverse_factor
from dualmech.publishing.drawing import LARGEST_DEVIATION, Integers, Noise, counted_vector, whole_counts
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Domain
from dualmech.workloads.products import ProductWorkload

MOST_BITS, FEWEST_BITS = 22, 6
"""Bits of the grid of one factor; noise has at most 56 in all, which the factors of a product share."""

ROOM = int(math.log2(LARGEST_DEVIATION))


@dataclass(frozen=True, slots=True, eq=False)
class DrawnFactor:
    """The factor F of an inverse covariance, ``F'F ⪯ Σ⁻¹``, on one grid: lower triangular, ``2^-exponent whole``."""

    whole: Integers
    exponent: int

    @classmethod
    def of(cls, upper: Array, exact: Array, bits: int) -> DrawnFactor:
        """Round the result of `inverse_factor` to some bits, made smaller by as much as rounding may add."""
        identity, exponent = np.eye(len(exact)), bits - magnitude(exact)
        for accuracy in (2.0**step for step in range(-bits, -1)):
            whole = np.rint(np.ldexp((1 - accuracy) * exact, exponent))
            turned = np.ldexp(whole, -exponent) @ upper.T
            if np.linalg.norm(turned @ turned.T - (1 - accuracy) ** 2 * identity) <= accuracy:
                return cls(whole.astype(np.int64), exponent)
        raise InvalidInputError(
            f"covariance must be better conditioned for a product's noise to be drawn on a grid of {bits} bits"
        )

    def solved(self, answers: Array) -> Array:
        """Return ``F⁻¹`` times answers."""
        scaled = np.ldexp(self.whole.astype(np.float64), -self.exponent)
        return np.asarray(scipy.linalg.solve_triangular(scaled, answers, lower=True, check_finite=False))

    @property
    def covariance(self) -> Array:
        """``(F'F)⁻¹``."""
        return covariance_of(np.ldexp(self.whole.astype(np.float64), -self.exponent))


def magnitude(factor: Array) -> int:
    """Return the exponent of the largest entry."""
    return math.frexp(float(np.abs(factor).max()))[1]


def shared_bits(room: float, factors: int) -> int:
    """Return how many bits each of some factors gets of those that there is room for."""
    bits = min(math.floor(room / max(factors, 1)), MOST_BITS)
    if bits < FEWEST_BITS:
        raise InvalidInputError(
            f"a product of {factors} grids has only {bits} bits for each in noise of 64 bits (it takes "
            f"{FEWEST_BITS}); draw tables of fewer attributes, or dense() where that is small"
        )
    return bits


class DrawnProduct:
    """A `ProductMechanism` as it is drawn: ``(⊗ N_i) x + z``, the factors' own whole matrices on the data's axes.

    The factors share the bits of the noise: two have 22 each, three 18, and drawn noise costs no direction more than
    the mechanism, whose noise it exceeds by a few of the last bits.
    """

    __slots__ = ("_written", "bases", "factors", "mechanism")

    bases: tuple[Integers, ...]  # B_i (k_i, d_i)
    factors: tuple[DrawnFactor, ...]
    mechanism: ProductMechanism
    _written: list[LinearGaussianMechanism]  # its factors

    def __init__(self, mechanism: ProductMechanism) -> None:
        written: list[LinearGaussianMechanism] = [factor.dense() for factor in mechanism.factors]
        self.bases = tuple(drawing.whole_basis(factor.independent_rows) for factor in written)
        pairs = zip(written, self.bases, strict=True)
        halves = [inverse_factor(factor.covariance(Workload(basis.astype(np.float64)))) for factor, basis in pairs]
        bits = shared_bits(ROOM + sum(magnitude(exact) for _, exact in halves), len(halves))
        self.factors = tuple(DrawnFactor.of(*half, bits) for half in halves)
        self._written = [
            LinearGaussianMechanism(basis, factor.covariance)
            for basis, factor in zip(self.bases, self.factors, strict=True)
        ]
        self.mechanism = ProductMechanism(self._written)

    @property
    def whole(self) -> list[Integers]:
        """N_i (k_i, d_i)."""
        return [factor.whole @ basis for factor, basis in zip(self.factors, self.bases, strict=True)]

    @property
    def exponent(self) -> int:
        """The noise has the deviation 2 to this."""
        return sum(factor.exponent for factor in self.factors)

    @property
    def squared_privacy_cost(self) -> Fraction:
        """The product of the factors', exactly."""
        most = math.prod(int(max(drawing.column_squares(matrix))) for matrix in self.whole)
        return Fraction(most) / Fraction(4) ** self.exponent

    by_table = False

    def read(self, source: object, domain: Domain | None, allow_empty: bool) -> object:
        """Return the data by the factors' cells, of records or of the counts that were given."""
        return counted_vector(source, domain, allow_empty)

    def draw(self, x: object, noise: Noise) -> Array:
        """Draw estimates of ``(⊗ B_i) x`` from counts on the factors' axes: the one place where data meet noise."""
        shape = tuple(basis.shape[1] for basis in self.bases)
        vector = validate.vector(math.prod(shape), "cell", records=np.asarray(x).ravel())
        counts = whole_counts(records=vector).reshape(shape)
        extra = max(LEAST_EXPONENT - self.exponent, 0)  # so that tiny noise, too, is many grid steps
        whole = drawing.along_axes(self.whole, counts) * 2**extra
        noisy = whole + noise(2.0 ** (self.exponent + extra), whole.size).reshape(whole.shape)
        answers = np.ldexp(noisy.astype(np.float64), -self.exponent - extra)
        for axis, factor in enumerate(self.factors):
            moved = np.moveaxis(answers, axis, 0)
            answers = np.moveaxis(factor.solved(moved.reshape(len(moved), -1)).reshape(moved.shape), 0, axis)
        return answers

    def estimate(self, measured: Array, workload: ProductWorkload) -> Array:
        """Return the unbiased estimates (m,) of a product workload from what was drawn."""
        pairs = zip(self._written, workload.factors, strict=True)
        matrices = [linalg.to_dense(factor.represent(part)) for factor, part in pairs]
        return linalg.apply_along_axes(matrices, measured).ravel()
