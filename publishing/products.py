"""Mechanisms of products and of query tables on a grid: integer matrices along each axis share the noise's bits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.product import ProductMechanism
from dualmech.mechanisms.split import SplitMechanism
from dualmech.mechanisms.tables import IndexedTables, Tables, marginal_of
from dualmech.publishing import drawing, records
from dualmech.publishing.dense import MIN_EXPONENT, covariance_of, inverse_factor
from dualmech.publishing.drawing import MAX_DEVIATION, Integers, Noise, counted_vector, integer_counts, user_counts
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Axes, Domain
from dualmech.workloads.products import ProductWorkload

MAX_FACTOR_BITS, MIN_FACTOR_BITS = 22, 6
"""Bits of the grid of one factor. The factors of a product share the bits of the noise."""

NOISE_BITS = int(math.log2(MAX_DEVIATION))


@dataclass(frozen=True, slots=True, eq=False)
class DrawnFactor:
    """A lower triangular factor F with ``F'F ⪯ Σ⁻¹``, on one grid: ``2^-exponent integer_rows``."""

    integer_rows: Integers
    exponent: int

    @classmethod
    def of(cls, upper: Array, exact: Array, bits: int) -> DrawnFactor:
        """Round the result of `inverse_factor` to some bits, reduced first by the maximum rounding error."""
        identity, exponent = np.eye(len(exact)), bits - magnitude(exact)
        for accuracy in (2.0**step for step in range(-bits, -1)):
            integers = np.rint(np.ldexp((1 - accuracy) * exact, exponent))
            root = np.ldexp(integers, -exponent) @ upper.T  # of the planned noise, in units of the drawn noise
            if np.linalg.norm(root @ root.T - (1 - accuracy) ** 2 * identity) <= accuracy:
                return cls(integers.astype(np.int64), exponent)
        raise InvalidInputError(
            f"covariance must be better conditioned for a product's noise to be drawn on a grid of {bits} bits"
        )

    def solved(self, answers: Array) -> Array:
        """Return ``F⁻¹`` times answers."""
        scaled = np.ldexp(self.integer_rows.astype(np.float64), -self.exponent)
        return np.asarray(scipy.linalg.solve_triangular(scaled, answers, lower=True, check_finite=False))

    @property
    def covariance(self) -> Array:
        """``(F'F)⁻¹``."""
        return covariance_of(np.ldexp(self.integer_rows.astype(np.float64), -self.exponent))


def magnitude(factor: Array) -> int:
    """Return the exponent of the largest entry."""
    return math.frexp(float(np.abs(factor).max()))[1]


def shared_bits(total_bits: float, factors: int) -> int:
    """Return the number of bits of each factor."""
    bits = min(math.floor(total_bits / max(factors, 1)), MAX_FACTOR_BITS)
    if bits < MIN_FACTOR_BITS:
        raise InvalidInputError(
            f"a product of {factors} grids has only {bits} bits for each in noise of 64 bits (it needs "
            f"{MIN_FACTOR_BITS}); draw tables of fewer attributes, or dense() if that is small"
        )
    return bits


class DrawnProduct:
    """A `ProductMechanism` on the grid: ``(⊗ N_i) x + z``, with an integer matrix N_i for each factor.

    The factors share the bits of the noise: two have 22 each, three have 18. The drawn noise costs no direction more
    than the mechanism, and exceeds its noise by a few of the last bits.
    """

    __slots__ = ("_dense_factors", "bases", "factors", "mechanism")

    bases: tuple[Integers, ...]  # B_i (k_i, d_i)
    factors: tuple[DrawnFactor, ...]
    mechanism: ProductMechanism
    _dense_factors: list[LinearGaussianMechanism]  # of the drawn mechanism

    def __init__(self, mechanism: ProductMechanism) -> None:
        planned: list[LinearGaussianMechanism] = [factor.dense() for factor in mechanism.factors]
        self.bases = tuple(drawing.integer_basis(factor.independent_rows) for factor in planned)
        pairs = zip(planned, self.bases, strict=True)
        halves = [inverse_factor(factor.covariance(Workload(basis.astype(np.float64)))) for factor, basis in pairs]
        bits = shared_bits(NOISE_BITS + sum(magnitude(exact) for _, exact in halves), len(halves))
        self.factors = tuple(DrawnFactor.of(*half, bits) for half in halves)
        self._dense_factors = [
            LinearGaussianMechanism(basis, factor.covariance)
            for basis, factor in zip(self.bases, self.factors, strict=True)
        ]
        self.mechanism = ProductMechanism(self._dense_factors)

    @property
    def integer_rows(self) -> list[Integers]:
        """N_i (k_i, d_i)."""
        return [factor.integer_rows @ basis for factor, basis in zip(self.factors, self.bases, strict=True)]

    @property
    def exponent(self) -> int:
        """The binary logarithm of the noise's standard deviation."""
        return sum(factor.exponent for factor in self.factors)

    @property
    def squared_privacy_cost(self) -> Fraction:
        """The exact product of the factors' squared privacy costs."""
        max_square = math.prod(int(max(drawing.column_squares(matrix))) for matrix in self.integer_rows)
        return Fraction(max_square) / Fraction(4) ** self.exponent

    by_table = False

    def read(self, source: object, domain: Domain | None, allow_empty: bool) -> object:
        """Return the data vector of records or of the user's counts."""
        return counted_vector(source, domain, allow_empty)

    def draw(self, x: object, noise: Noise) -> Array:
        """Draw estimates of ``(⊗ B_i) x`` from counts on the factors' axes. Noise is added to data only here."""
        shape = tuple(basis.shape[1] for basis in self.bases)
        vector = validate.vector(math.prod(shape), "cell", records=np.asarray(x).ravel())
        counts = integer_counts(records=vector).reshape(shape)
        extra = max(MIN_EXPONENT - self.exponent, 0)  # so that small noise is also many grid steps
        exact = drawing.along_axes(self.integer_rows, counts) * 2**extra
        noisy = exact + noise(2.0 ** (self.exponent + extra), exact.size).reshape(exact.shape)
        answers = np.ldexp(noisy.astype(np.float64), -self.exponent - extra)
        for axis, factor in enumerate(self.factors):
            array = np.moveaxis(answers, axis, 0)
            answers = np.moveaxis(factor.solved(array.reshape(len(array), -1)).reshape(array.shape), 0, axis)
        return answers

    def estimate(self, measured: Array, workload: ProductWorkload) -> Array:
        """Return the unbiased estimates (m,) of a product workload from noisy answers."""
        pairs = zip(self._dense_factors, workload.factors, strict=True)
        matrices = [linalg.to_dense(factor.represent(part)) for factor, part in pairs]
        return linalg.apply_along_axes(matrices, measured).ravel()


MEAN_BITS_FRACTION, MAX_MEAN_BITS = 0.4, 14  # of an attribute's bits, for the shares θ of its total


class DrawnSplit:
    """A `SplitMechanism` on the grid.

    The shares θ of the totals are integers divided by ``2^s``, so that the rows R_i, ``2^s (e_j - θ_j 1')`` for all
    values j but the last, are integers. Each measured set T asks ``⊗_{i in T} F_i R_i``, with F_i on a grid and
    ``F_i'F_i ⪯ K_i⁻¹``. The privacy cost is exact. The factors share the bits of the noise: 14 for each in tables of
    two attributes, 9 in tables of three. Coarser grids make the noise larger; `mechanism` has this noise.
    """

    __slots__ = ("factors", "mechanism", "rows", "share_bits")

    factors: dict[int, DrawnFactor]  # F_i of each measured attribute
    rows: dict[int, Integers]  # R_i (n_i - 1, n_i)
    share_bits: int  # s
    mechanism: SplitMechanism

    def __init__(self, mechanism: SplitMechanism) -> None:
        parts = {axis: part for axis, part in enumerate(mechanism.parts) if len(part.means) > 1}
        halves = {axis: inverse_factor((part.root @ part.root.T)[:-1, :-1]) for axis, part in parts.items()}
        sizes = {axis: magnitude(exact) for axis, (_, exact) in halves.items()}
        bits_by_set = [
            (NOISE_BITS - math.log2(level) / 2 + sum(sizes[axis] for axis in axes)) / len(axes)
            for axes, level in mechanism.noise.items()
            if axes
        ]
        self.share_bits = min(math.floor(MEAN_BITS_FRACTION * min(bits_by_set, default=NOISE_BITS)), MAX_MEAN_BITS)
        bits = shared_bits(min(bits_by_set, default=NOISE_BITS) - self.share_bits, 1)
        self.factors = {axis: DrawnFactor.of(*pair, bits) for axis, pair in halves.items()}
        self.rows, shapes = {}, list(mechanism.point.shapes)
        for axis, factor in self.factors.items():
            shares = _integer_shares(parts[axis].means, self.share_bits)
            self.rows[axis] = 2**self.share_bits * np.eye(len(shares), dtype=np.int64)[:-1] - shares[:-1, None]
            theta, lift = (
                np.ldexp(shares, -self.share_bits),
                np.vstack([np.eye(len(shares) - 1), -np.ones(len(shares) - 1)]),
            )
            shape = shapes[axis].sum() * np.outer(theta, theta) + lift @ factor.covariance @ lift.T
            shapes[axis] = (shape + shape.T) / 2
        self.mechanism = SplitMechanism(mechanism.workload, shapes, [*mechanism.noise.values()])
        # Rounded shares of the total may cost slightly more than the planned ones: then all noise grows accordingly.
        excess = float(self.squared_privacy_cost / Fraction(mechanism.squared_privacy_cost))
        if excess > 1:
            self.mechanism = self.mechanism.scaled(excess * (1 + 1e-9))

    @property
    def squared_privacy_cost(self) -> Fraction:
        """The exact cost of a record with the most costly value of every attribute."""
        worst = {axis: int(max(drawing.column_squares(array))) for axis, array in self._matrices.items()}
        total = Fraction(0)
        for axes, level in self.mechanism.noise.items():
            extra, deviation = self._grid(axes, level)
            total += Fraction(4**extra * math.prod(worst[axis] for axis in axes)) / Fraction(deviation) ** 2
        return total

    by_table = True

    def read(self, source: Any, domain: Domain | None, allow_empty: bool) -> Tables:
        """Return the needed tables of counts of records, or the user's tables of counts."""
        tables = self.mechanism.workload.tables
        assert tables.domain is not None
        counts = user_counts(source, tables.domain)
        return records.count(source, tables, allow_empty=allow_empty) if counts is None else counts

    def draw(self, tables: Tables, noise: Noise) -> dict[Axes, Array]:
        """Draw the noisy residuals of all measured sets from tables of counts. Noise is added to data only here."""
        domain, measured = self.mechanism.workload.tables.domain, dict[Axes, Array]()
        assert domain is not None
        matrices, tables = self._matrices, IndexedTables(tables)
        for axes, level in self.mechanism.noise.items():
            table = marginal_of(domain, tables, axes)
            counts = integer_counts(tables=table)
            extra, deviation = self._grid(axes, level)
            exact = drawing.along_axes([matrices[axis] for axis in axes], counts)
            noisy = exact.ravel() * 2**extra + noise(deviation, exact.size)
            answers = np.ldexp(noisy.astype(np.float64), -extra - self._exponent(axes)).reshape(exact.shape)
            for position, axis in enumerate(axes):
                array = np.moveaxis(answers, position, 0)
                residual = self.factors[axis].solved(array.reshape(len(array), -1))
                residual = np.vstack([residual, -residual.sum(axis=0)]).reshape(-1, *array.shape[1:])
                answers = np.moveaxis(residual, 0, position)
            measured[axes] = answers
        return measured

    def estimate(self, measured: Tables, attributes: Iterable[str]) -> Array:
        """Return the unbiased estimates of a query table from noisy residuals."""
        return self.mechanism.recombine(measured, attributes)

    @property
    def _matrices(self) -> dict[int, Integers]:
        return {axis: factor.integer_rows @ self.rows[axis] for axis, factor in self.factors.items()}

    def _exponent(self, axes: Axes) -> int:
        """Return the binary exponent of the integer queries on a set, relative to its residual."""
        return sum(self.factors[axis].exponent + self.share_bits for axis in axes)

    def _grid(self, axes: Axes, level: float) -> tuple[int, float]:
        """Return the extra bits of a set, so that noise is many grid steps, and the noise's standard deviation."""
        exponent = self._exponent(axes)
        extra = max(math.ceil(MIN_EXPONENT - exponent - math.log2(level) / 2), 0)
        return extra, math.sqrt(level) * 2.0 ** (exponent + extra)


def _integer_shares(shares: Array, bits: int) -> npt.NDArray[np.int64]:
    """Return integers with the sum ``2^bits`` and rounded running sums of the scaled shares."""
    sums = np.rint(np.ldexp(np.cumsum(shares), bits)).astype(np.int64)
    sums[-1] = 2**bits
    return np.diff(sums, prepend=0)
