"""The mechanism of query tables: noise on residual subspaces with a covariance of its own on every attribute."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dualmech import linalg, validate
from dualmech.display import decimal_above
from dualmech.errors import InputTypeError, InvalidInputError
from dualmech.geometry.split import Split, SplitForms, SplitPoint
from dualmech.immutable import freeze
from dualmech.mechanisms.gaussian import LinearGaussianMechanism, check_written
from dualmech.mechanisms.privacy import GaussianPrivacy
from dualmech.mechanisms.tables import IndexedTables, Tables, check_tables, marginal_of
from dualmech.validate import Array
from dualmech.workloads.base import MAX_NAMES, Workload, check_workload
from dualmech.workloads.domain import Axes, count_text
from dualmech.workloads.table_queries import TableWorkload


class SplitMechanism(GaussianPrivacy):
    """Independent noise ``τ_T ⊗_{i in T} K_i`` on the residuals of query tables, measured from low-order tables alone.

    With ``Σ_i = t θθ' + K`` on each attribute, the residual of a marginal table on T is ``⊗_{i in T} (I - θ_i 1')``
    times it: the rest, once every attribute's total is spread as θ_i says.
    Raises `InvalidInputError` or `InputTypeError` for shapes that are not positive definite, levels that are not
    positive, other sizes or another workload.

    Parameters
    ----------
    workload : TableWorkload
        What is to be answered; the sets measured are its tables' attributes and their subsets.
    shapes : sequence of (n_i, n_i) arrays
        Σ_i of each attribute, positive definite.
    noise : (t,) array
        τ_T > 0, in the order of ``workload.tables.lattice.axes``.

    Examples
    --------
    >>> import dualmech as dm
    >>> asked = dm.workloads.query_tables({"age": 3, "sex": 2}, {"age": dm.workloads.prefix(3)}, ways=2)
    >>> mechanism = dm.SplitMechanism(asked, [np.eye(3), np.eye(2)], [1.0, 1.0, 1.0, 1.0])
    >>> mechanism.variances(["age", "sex"]).shape
    (3, 2)
    """

    __slots__ = ("noise", "parts", "point", "workload", "worst")

    def __init__(self, workload: TableWorkload, shapes: Sequence[npt.ArrayLike], noise: npt.ArrayLike) -> None:
        if not isinstance(workload, TableWorkload):
            raise InputTypeError(
                f"workload must be made by dualmech.workloads.query_tables, got {type(workload).__name__}"
            )
        geometry = Split(workload)
        point = geometry.point(SplitPoint(validate.sequence(shapes=shapes), cast(Array, noise)))
        levels, parts = validate.positive(1, noise=point.levels), geometry.parts(point.shapes)
        if parts is None:
            raise InvalidInputError("shapes must be positive definite covariances")
        axes = workload.tables.lattice.axes
        self.workload, self.parts, self.point = workload, freeze(parts), point
        self.noise: dict[Axes, float] = dict(zip(axes, levels.tolist(), strict=True))
        forms = SplitForms(geometry, parts, levels)
        self.worst = forms.cost * (1 + forms.cost_rounding)

    @property
    def squared_privacy_cost(self) -> float:
        """``Σ_T Π_{i in T} k_i / τ_T``, the cost of the record whose values are the worst in every attribute."""
        return self.worst

    @property
    def profile(self) -> Array:
        """Squared privacy cost of a record in each cell (d,), ``Σ_T Π_{i in T} k_i / τ_T`` of its values.

        Raises `InvalidInputError` for more than 2^22 cells.
        """
        sizes, cells = self.workload.sizes, self.workload.shape[1]
        if cells > MAX_NAMES:
            raise InvalidInputError(
                f"costs of {count_text(cells)} cells are too many to write out (limit {MAX_NAMES}); "
                f"squared_privacy_cost is that of the worst"
            )
        costs = np.zeros(sizes)
        for axes, level in self.noise.items():
            spread = tuple(slice(None) if axis in axes else None for axis in range(len(sizes)))
            costs += _outer([self.parts[axis].residual_costs for axis in axes])[spread] / level
        return np.minimum(costs.ravel() * (1 + 16 * (len(sizes) + len(self.noise)) * linalg.EPS), self.worst)

    def point_on(self, geometry: object) -> SplitPoint:
        """Return the noise on a geometry that splits the same tables.

        Raises `InvalidInputError` for another geometry, or other tables.
        """
        if not isinstance(geometry, Split) or not geometry.workload.same_as(self.workload):
            raise InvalidInputError("a SplitMechanism answers its own tables on geometry 'split'")
        return self.point

    def scaled(self, factor: float) -> SplitMechanism:
        """Return the mechanism with all noise times a factor > 0: its cost is divided by that."""
        levels = self.point.levels * validate.positive_number(factor=factor)
        return SplitMechanism(self.workload, self.point.shapes, levels)

    def variance(self, attributes: Iterable[str]) -> float:
        """Return the largest variance of a query of a table."""
        return float(self.variances(attributes).max())

    def variances(self, attributes: Iterable[str] | TableWorkload) -> Array:
        """Return the variances of a table, an axis an attribute; of all tables of the workload, the largest of each.

        The allowance for their rounding is added, most of a variance that is a small part of its attribute's noise.
        """
        if isinstance(attributes, Workload):
            if not attributes.same_as(self.workload):
                raise InvalidInputError("workload must be the query tables that the mechanism was made for")
            return np.array([self.variance(names) for names in self.workload.tables.sets])
        axes = self._axes(attributes)
        spread = np.zeros(self.workload.table_shape(axes))
        for part in self._measured_subsets(axes):
            factors = [
                self.parts[axis].residual_variances if axis in part else self.parts[axis].total_parts for axis in axes
            ]
            spread += self.noise[part] * _outer(factors)
        return spread

    def as_targets(self, workload: Workload) -> Array:
        checked = check_workload(workload)
        return self.variances(self.workload) if checked.same_as(self.workload) else super().as_targets(checked)

    def measure(self, tables: Tables, rng: np.random.Generator | int | None = None) -> dict[Axes, Array]:
        """Draw the noisy residuals of all measured sets, for study. NOT a private release.

        Raises `InvalidInputError` or `InputTypeError` for a measured set that no table covers, a table of
        another shape.

        - ``tables``: marginal tables of the records that cover the measured sets (`dualmech.records.count` on
          ``workload.tables``);
        - `rng`: a generator or a seed that the noise comes from, by default the operating system's.
        """
        held = IndexedTables(check_tables(tables=tables))
        generator, domain = validate.generator(rng=rng), self.workload.tables.domain
        assert domain is not None
        measured = {}
        for axes, level in self.noise.items():
            table = marginal_of(domain, held, axes)
            draws = math.sqrt(level) * generator.standard_normal(table.shape)
            residuals = [np.eye(len(part.means)) - part.means[:, None] for part in (self.parts[axis] for axis in axes)]
            roots = [self.parts[axis].root for axis in axes]
            measured[axes] = linalg.apply_along_axes(residuals, table) + linalg.apply_along_axes(roots, draws)
        return measured

    def recombine(self, residuals: Tables, attributes: Iterable[str]) -> Array:
        """Return the unbiased estimate of a query table from noisy residuals."""
        axes, blocks = self._axes(attributes), check_tables(residuals=residuals)
        answers = np.zeros(self.workload.table_shape(axes))
        for part in self._measured_subsets(axes):
            name, shape = f"residuals[{part}]", tuple(self.workload.sizes[axis] for axis in part)
            if part not in blocks:
                raise InvalidInputError(f"residuals must hold {name}, of shape {shape}")
            array = validate.finite(**{name: blocks[part]})
            if array.shape != shape:
                raise InvalidInputError(f"{name} must have shape {shape}, got {array.shape}")
            inside = linalg.apply_along_axes([self.workload.matrix_of(axis) for axis in part], array)
            spread = tuple(slice(None) if axis in part else None for axis in axes)
            means = [
                np.ones(1) if axis in part else self.workload.matrix_of(axis) @ self.parts[axis].means for axis in axes
            ]
            answers += inside[spread] * _outer(means)
        return answers

    def dense(self) -> LinearGaussianMechanism:
        """Return the equivalent mechanism on the cells; refused if its query matrix is too large."""
        sizes, cells = self.workload.sizes, self.workload.shape[1]
        check_written(cells**2, f"a query matrix of {count_text(cells)} cells")
        rows, blocks = [], []
        for axes, level in self.noise.items():
            contrasts = {axis: scipy.linalg.helmert(sizes[axis]) for axis in axes}
            rows.append(
                linalg.kronecker(
                    [
                        contrasts[axis] @ (np.eye(sizes[axis]) - self.parts[axis].means[:, None])
                        if axis in axes
                        else np.ones((1, sizes[axis]))
                        for axis in range(len(sizes))
                    ]
                )
            )
            halves = [contrasts[axis] @ self.parts[axis].root for axis in axes]
            blocks.append(level * linalg.kronecker([half @ half.T for half in halves]))
        share = 16 * (max(sizes) + len(sizes)) * linalg.EPS
        written = LinearGaussianMechanism(np.vstack(rows), scipy.linalg.block_diag(*blocks))
        return written._rounded_from(rows=share, noise=share)

    def file_parts(self) -> dict[str, object]:
        """Return the fields to store, by name."""
        return {"workload": self.workload, "shapes": tuple(self.point.shapes), "noise": self.point.levels}

    def __repr__(self) -> str:
        return f"SplitMechanism({len(self.noise)} residual subspaces, rho={decimal_above(self.rho)})"

    def _axes(self, attributes: Iterable[str]) -> Axes:
        domain = self.workload.tables.domain
        assert domain is not None
        return domain.axes(attributes)

    def _measured_subsets(self, axes: Axes) -> list[Axes]:
        varying = {axis for axis in axes if self.workload.sizes[axis] > 1}
        subsets = [part for part in self.noise if varying.issuperset(part)]
        if len(subsets) < 2 ** len(varying):
            shown = " x ".join(self.workload.tables.domain.names[axis] for axis in axes)  # type: ignore[union-attr]
            raise InvalidInputError(f"{shown} is not answered: not all of its residuals are measured")
        return subsets


def _outer(factors: Sequence[Array]) -> Array:
    return np.asarray(functools.reduce(np.multiply.outer, factors, np.ones(())))
