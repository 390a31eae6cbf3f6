"""Mechanisms of products and of query tables, drawn: whole matrices along each axis share the bits of the noise."""

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
from dualmech.publishing.dense import LEAST_EXPONENT, covariance_of, inverse_factor
from dualmech.publishing.drawing import LARGEST_DEVIATION, Integers, Noise, counted_vector, given_counts, whole_counts
from dualmech.validate import Array
from dualmech.workloads.base import Workload
from dualmech.workloads.domain import Axes, Domain
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


SHARE_OF_BITS, MOST_SHARE_BITS = 0.4, 14  # of the bits of an attribute, for the shares of its total


class DrawnSplit:
    """A `SplitMechanism` as it is drawn.

    The shares θ of the totals are whole numbers over ``2^s``, so that the rows R_i, ``2^s (e_j - θ_j 1')`` of all
    values but the last, are whole; and each measured set T asks ``⊗_{i in T} F_i R_i`` with F_i, of ``F_i'F_i ⪯ K_i⁻¹``
    there, on a grid. What that costs the worst record is exact. The bits of the noise are shared: tables of two
    attributes leave 14 for each of these, of three 9, and their noise is larger by as much; `mechanism` has it.
    """

    __slots__ = ("factors", "mechanism", "rows", "share_bits")

    factors: dict[int, DrawnFactor]  # F_i of each attribute that is measured
    rows: dict[int, Integers]  # R_i (n_i - 1, n_i)
    share_bits: int  # s
    mechanism: SplitMechanism

    def __init__(self, mechanism: SplitMechanism) -> None:
        parts = {axis: part for axis, part in enumerate(mechanism.parts) if len(part.means) > 1}
        halves = {axis: inverse_factor((part.root @ part.root.T)[:-1, :-1]) for axis, part in parts.items()}
        sizes = {axis: magnitude(exact) for axis, (_, exact) in halves.items()}
        rooms = [
            (ROOM - math.log2(level) / 2 + sum(sizes[axis] for axis in axes)) / len(axes)
            for axes, level in mechanism.noise.items()
            if axes
        ]
        self.share_bits = min(math.floor(SHARE_OF_BITS * min(rooms, default=ROOM)), MOST_SHARE_BITS)
        bits = shared_bits(min(rooms, default=ROOM) - self.share_bits, 1)
        self.factors = {axis: DrawnFactor.of(*pair, bits) for axis, pair in halves.items()}
        self.rows, shapes = {}, list(mechanism.point.shapes)
        for axis, factor in self.factors.items():
            shares = _whole_shares(parts[axis].means, self.share_bits)
            self.rows[axis] = 2**self.share_bits * np.eye(len(shares), dtype=np.int64)[:-1] - shares[:-1, None]
            theta, lift = (
                np.ldexp(shares, -self.share_bits),
                np.vstack([np.eye(len(shares) - 1), -np.ones(len(shares) - 1)]),
            )
            shape = shapes[axis].sum() * np.outer(theta, theta) + lift @ factor.covariance @ lift.T
            shapes[axis] = (shape + shape.T) / 2
        self.mechanism = SplitMechanism(mechanism.workload, shapes, [*mechanism.noise.values()])
        # Other shares of the total may cost a little more than those given: then all noise grows by as much.
        excess = float(self.squared_privacy_cost / Fraction(mechanism.squared_privacy_cost))
        if excess > 1:
            self.mechanism = self.mechanism.scaled(excess * (1 + 1e-9))

    @property
    def squared_privacy_cost(self) -> Fraction:
        """That of the record whose values are the worst in every attribute, exactly."""
        worst = {axis: int(max(drawing.column_squares(array))) for axis, array in self._whole.items()}
        total = Fraction(0)
        for axes, level in self.mechanism.noise.items():
            extra, deviation = self._grid(axes, level)
            total += Fraction(4**extra * math.prod(worst[axis] for axis in axes)) / Fraction(deviation) ** 2
        return total

    by_table = True

    def read(self, source: Any, domain: Domain | None, allow_empty: bool) -> Tables:
        """Return the tables of counts that are needed of records, or those that were given."""
        tables = self.mechanism.workload.tables
        assert tables.domain is not None
        counts = given_counts(source, tables.domain)
        return records.count(source, tables, allow_empty=allow_empty) if counts is None else counts

    def draw(self, tables: Tables, noise: Noise) -> dict[Axes, Array]:
        """Draw the noisy residuals of all measured sets from tables of counts: the one place where they meet noise."""
        domain, measured = self.mechanism.workload.tables.domain, dict[Axes, Array]()
        assert domain is not None
        whole, tables = self._whole, IndexedTables(tables)
        for axes, level in self.mechanism.noise.items():
            table = marginal_of(domain, tables, axes)
            counts = whole_counts(tables=table)
            extra, deviation = self._grid(axes, level)
            exact = drawing.along_axes([whole[axis] for axis in axes], counts)
            noisy = exact.ravel() * 2**extra + noise(deviation, exact.size)
            answers = np.ldexp(noisy.astype(np.float64), -extra - self._exponent(axes)).reshape(exact.shape)
            for position, axis in enumerate(axes):
                moved = np.moveaxis(answers, position, 0)
                left = self.factors[axis].solved(moved.reshape(len(moved), -1))
                left = np.vstack([left, -left.sum(axis=0)]).reshape(-1, *moved.shape[1:])
                answers = np.moveaxis(left, 0, position)
            measured[axes] = answers
        return measured

    def estimate(self, measured: Tables, attributes: Iterable[str]) -> Array:
        """Return the unbiased estimate of a query table from what was drawn."""
        return self.mechanism.recombine(measured, attributes)

    @property
    def _whole(self) -> dict[int, Integers]:
        """``2^b F_i R_i`` of each attribute."""
        return {axis: factor.whole @ self.rows[axis] for axis, factor in self.factors.items()}

    def _exponent(self, axes: Axes) -> int:
        """Return by how many bits the queries on a set are above its residual."""
        return sum(self.factors[axis].exponent + self.share_bits for axis in axes)

    def _grid(self, axes: Axes, level: float) -> tuple[int, float]:
        """Return by how many bits more a set is asked, so that noise is many grid steps, and the noise's deviation."""
        exponent = self._exponent(axes)
        extra = max(math.ceil(LEAST_EXPONENT - exponent - math.log2(level) / 2), 0)
        return extra, math.sqrt(level) * 2.0 ** (exponent + extra)


def _whole_shares(shares: Array, bits: int) -> npt.NDArray[np.int64]:
    """Return whole numbers that add up to ``2^bits``, with running sums nearest to those of shares that add up to 1."""
    sums = np.rint(np.ldexp(np.cumsum(shares), bits)).astype(np.int64)
    sums[-1] = 2**bits
    return np.diff(sums, prepend=0)
