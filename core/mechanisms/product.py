"""Mechanisms on products of domains: noise whose covariance is the Kronecker product of the factors'."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dualmech import linalg, validate
from dualmech.display import decimal_above
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.product import Product
from dualmech.mechanisms.block import BlockMechanism
from dualmech.mechanisms.gaussian import LinearGaussianMechanism, check_written
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.validate import Array
from dualmech.workloads import products
from dualmech.workloads.base import Workload, check_workload
from dualmech.workloads.domain import count_text
from dualmech.workloads.numbers import ByFactor
from dualmech.workloads.products import ProductWorkload

FactorMechanism: TypeAlias = LinearGaussianMechanism | BlockMechanism | GaussianPrivacy


class ProductMechanism(GaussianPrivacy):
    """The mechanism ``x ↦ (⊗ B_i) x + N(0, ⊗ Σ_i)``, held by its factors alone.

    Its cost matrix is ``⊗ C_i``: the squared privacy cost is the product of theirs, and so is the variance of a query
    that is a product of theirs.
    Raises `InvalidInputError` or `InputTypeError` for fewer than two, another kind, other neighbours, exact
    answers.

    Parameters
    ----------
    factors : sequence of LinearGaussianMechanism or BlockMechanism
        Two or more, with the default neighbours, none releasing anything exactly.

    Examples
    --------
    >>> import dualmech as dm
    >>> ages = dm.LinearGaussianMechanism(np.eye(2), [[1, -0.5], [-0.5, 1]])
    >>> both = dm.ProductMechanism([ages, ages])
    >>> round(both.squared_privacy_cost, 6)
    1.777778
    >>> both.variance_of([1, 1], [1, -1])      # 1 times 3
    3.0
    """

    __slots__ = ("factors",)

    factors: tuple[FactorMechanism, ...]

    def __init__(self, factors: Sequence[FactorMechanism]) -> None:
        if not isinstance(factors, Sequence):
            raise InputTypeError(f"factors must be a sequence of mechanisms, got {type(factors).__name__}")
        if len(factors) < 2:
            raise InvalidInputError(f"factors must be two or more mechanisms, got {len(factors)}")
        for index, factor in enumerate(factors):
            if not isinstance(factor, LinearGaussianMechanism | BlockMechanism):
                raise InputTypeError(
                    f"factors[{index}] must be a LinearGaussianMechanism or a BlockMechanism, "
                    f"got {type(factor).__name__}"
                )
            if factor.neighbours is not None or np.isinf(factor.squared_privacy_cost):
                raise InvalidInputError(
                    f"factors[{index}] must have the default neighbours and release nothing exactly"
                )
        self.factors = tuple(factors)

    def point_on(self, geometry: object) -> tuple[Any, ...]:
        """Return the noise on a product of geometries, one of each factor.

        Raises `InvalidInputError` for another geometry, or another number of factors.
        """
        if not isinstance(geometry, Product) or len(geometry.factors) != len(self.factors):
            raise InvalidInputError("a ProductMechanism answers products of as many factors, on geometry 'product'")
        return tuple(
            mechanism.point_on(factor) for mechanism, factor in zip(self.factors, geometry.factors, strict=True)
        )

    @property
    def squared_privacy_cost(self) -> float:
        costs = [factor.squared_privacy_cost for factor in self.factors]
        cost = products.product(costs)
        short = Fraction(cost) < math.prod(map(Fraction, costs))
        return math.nextafter(cost, math.inf) if short else cost

    @property
    def profile(self) -> Array:
        """Squared privacy cost of each combination of the factors' entries (s,), the last factor fastest.

        Of dense factors those are the cells, of one on blocks the orbits of its own profile.
        Raises `InvalidInputError` for more than 2^22.
        """
        raised = [factor.profile * (1 + linalg.EPS) for factor in self.factors]
        return np.minimum(products.outer(raised), self.squared_privacy_cost)

    def scaled(self, factor: float) -> ProductMechanism:
        """Return the mechanism with all variances times a factor > 0, by scaling its first factor."""
        first, *others = self.factors
        return ProductMechanism([first.scaled(factor), *others])

    def variance_of(self, *queries: npt.ArrayLike | Mapping[str, npt.ArrayLike]) -> float:
        """Return the variance of a product query, one query of each factor.

        Raises `InvalidInputError` or `InputTypeError` for another number of queries than factors, or what the
        factors refuse.

        With `queries` (d_i,), as `Workload` rows, or as `BlockMechanism.variance_of` takes them.
        """
        pairs = zip(self.factors, self._each("queries", queries), strict=True)
        return products.product(_variance(factor, query) for factor, query in pairs)

    def variances(self, workload: ProductWorkload) -> tuple[Array, ...]:
        """Return the factors' variances, (m_i,) each: a query's variance is the product of one of each.

        Of a factor on blocks there is one per table.
        """
        parts = self._parts(workload)
        return tuple(factor.variances(part) for factor, part in zip(self.factors, parts, strict=True))

    def as_targets(self, workload: Workload) -> Any:
        checked = check_workload(workload)
        parts = checked.factors if isinstance(checked, ProductWorkload) else ()
        if [part.shape[1] for part in parts] != [_cells(factor) for factor in self.factors]:
            return super().as_targets(checked)
        pairs = zip(self.factors, parts, strict=True)
        return ByFactor(*(factor.as_targets(part) for factor, part in pairs))

    def simulate(
        self, x: npt.ArrayLike, workload: ProductWorkload, rng: np.random.Generator | int | None = None
    ) -> Array:
        """Draw noisy answers to a product workload, for study. NOT a private release.

        Unit noise is added to ``(⊗ S_i) x``, the factors' standard forms, and answers are made of the sum: one factor
        after another along its own axis, so that nothing is larger than the data or the answers.
        Raises `InvalidInputError` or `InputTypeError` for data of another shape, a workload with other factors
        or queries that are not answered.
        Returns an array (m_1, …, m_r).

        - `x` (d_1, …, d_r): the records by the factors' cells;
        - `workload`: what to answer, its factors as the mechanism's;
        - `rng`: a generator or a seed that the noise comes from, by default the operating system's.
        """
        generator, parts = validate.generator(rng=rng), self._parts(workload)
        data = validate.finite(x=x)
        shape = tuple(part.shape[1] for part in parts)
        if data.shape != shape:
            raise InvalidInputError(f"x must have shape {shape}, the factors' cells, got {data.shape}")
        strategies = [_as_matrix_mechanism(factor).standard_form.queries for factor in self.factors]
        noisy = linalg.apply_along_axes(strategies, data)
        noisy = noisy + generator.standard_normal(noisy.shape)
        pairs = zip(parts, strategies, strict=True)
        return linalg.apply_along_axes(
            [linalg.represent(part.dense(), form, part.names) for part, form in pairs], noisy
        )

    def dense(self) -> LinearGaussianMechanism:
        """Return the same mechanism with its Kronecker products written out; refused where they are too large."""
        forms = [_as_matrix_mechanism(factor) for factor in self.factors]
        entries = math.prod(form.query_matrix.size for form in forms)
        check_written(entries, f"a product of {count_text(entries)} entries")
        written = LinearGaussianMechanism(
            linalg.kronecker([form.query_matrix for form in forms]),
            linalg.kronecker([form.covariance() for form in forms]),
        )
        share = 16 * len(forms) * linalg.EPS
        return written._rounded_from(rows=share, noise=share)

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name."""
        return {"factors": self.factors}

    def __repr__(self) -> str:
        return f"ProductMechanism({len(self.factors)} factors, rho={decimal_above(self.rho)})"

    def _parts(self, workload: ProductWorkload) -> tuple[Any, ...]:
        if not isinstance(workload, ProductWorkload):
            raise InputTypeError(f"workload must be made by dualmech.workloads.kron, got {type(workload).__name__}")
        parts = self._each("workload", workload.factors)
        for index, (factor, part) in enumerate(zip(self.factors, parts, strict=True)):
            if isinstance(factor, BlockMechanism) and part.domain != factor.domain:
                raise InvalidInputError(f"workload must have tables of the mechanism's domain at factors[{index}]")
        return parts

    def _each(self, name: str, items: Sequence[Any]) -> tuple[Any, ...]:
        if len(items) != len(self.factors):
            raise InvalidInputError(f"{name} must be {len(self.factors)}, one per factor, got {len(items)}")
        return tuple(items)


def _cells(factor: FactorMechanism) -> int:
    return factor.domain.cells if isinstance(factor, BlockMechanism) else int(factor.query_matrix.shape[1])


def _variance(factor: FactorMechanism, query: object) -> float:
    if isinstance(factor, BlockMechanism):
        if not isinstance(query, Mapping):
            raise InputTypeError(f"a query of tables must map attributes to factors, got {query!r}")
        return factor.variance_of(query)
    return float(factor.variances(Workload(validate.finite(1, query=query)[None, :]))[0])


def _as_matrix_mechanism(factor: FactorMechanism) -> LinearGaussianMechanism:
    written: LinearGaussianMechanism = factor.dense()
    return written
