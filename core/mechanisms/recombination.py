"""A mechanism in two parts, the one that is released first and what is left: how their answers make up its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dualmech import validate
from dualmech.errors import InvalidInputError
from dualmech.mechanisms.gaussian import LinearGaussianMechanism
from dualmech.mechanisms.records import Tables
from dualmech.validate import Array
from dualmech.workloads.lattice import Axes


@dataclass(frozen=True, slots=True, eq=False)
class Decomposition:
    """A mechanism in two parts, and how their answers make up its own (CMN, algorithm 4 and theorem 5.5).

    Attributes
    ----------
    target, common, residual : LinearGaussianMechanism
        The mechanism; the part of it that is released first; what is left of it (algorithm 3). Run independently,
        the two parts are equivalent to the target: their cost matrices add up to its own.
    from_common : (m, k) array
        A_*, on the answers of the common part.
    from_residual : (m, k') array
        A', on the answers of the residual.
    leftover : (m, m) array
        Covariance of the noise that is missing from the sum of both: 0 where the target's rows are independent. It is
        how far dependent rows contradict each other, and does not depend on the data.
    """

    target: LinearGaussianMechanism
    common: LinearGaussianMechanism
    residual: LinearGaussianMechanism
    from_common: Array
    from_residual: Array
    leftover: Array

    of_tables: ClassVar[bool] = False

    @property
    def consistent(self) -> LinearGaussianMechanism:
        """The distribution of `combine` without a generator: the target less its contradictions."""
        return LinearGaussianMechanism(
            self.target.query_matrix, self.target.covariance() - self.leftover, self.target.neighbours
        )

    def combine(
        self,
        common_answers: npt.ArrayLike,
        residual_answers: npt.ArrayLike,
        rng: np.random.Generator | int | None = None,
    ) -> Array:
        """Return the target's answers from those of both parts, which must have noise of their own.

        Simulated with one seed each, the parts would share theirs: give both the same generator instead, or two seeds.
        Raises `InvalidInputError` or `InputTypeError` for answers of other shapes, NaN or infinity.
        Returns an array, (m,) or (n, m).

        Parameters
        ----------
        common_answers, residual_answers : (k,) and (k',), or (n, k) and (n, k') arrays
            Of one run, or of n.
        rng : numpy.random.Generator or int, optional
            Where the leftover noise comes from, with which the answers have the target's own distribution. Without
            it they are consistent with one another, and worth as much.
        """
        first = _answers("common_answers", common_answers, self.from_common.shape[1])
        second = _answers("residual_answers", residual_answers, self.from_residual.shape[1])
        if first.shape[:-1] != second.shape[:-1]:
            raise InvalidInputError(
                f"residual_answers must be of as many runs as common_answers, got {second.shape} and {first.shape}"
            )
        combined = first @ self.from_common.T + second @ self.from_residual.T
        if rng is None or not np.any(self.leftover):
            return np.asarray(combined)
        values, vectors = np.linalg.eigh(self.leftover)
        draws = validate.generator(rng=rng).standard_normal(combined.shape)
        return np.asarray(combined + draws * np.sqrt(np.maximum(values, 0.0)) @ vectors.T)


@dataclass(frozen=True, slots=True, eq=False)
class TableDecomposition:
    """A mechanism of tables in two parts, all three on the blocks of all tables.

    Attributes
    ----------
    target, common, residual : BlockMechanism
        As those of a `Decomposition`.
    """

    target: Any
    common: Any
    residual: Any

    of_tables: ClassVar[bool] = True

    def combine(self, common_answers: Tables, residual_answers: Tables, rng: Any = None) -> dict[Axes, Array]:
        """Return what the target would measure from what both parts did, consistent: no noise is missing from it."""
        return self.target.recreate([(self.common, common_answers), (self.residual, residual_answers)])


def _answers(name: str, answers: npt.ArrayLike, size: int) -> Array:
    if size == 0:
        return np.zeros((*np.shape(answers)[:-1], 0))
    given = validate.finite(**{name: answers})
    if given.ndim not in (1, 2) or given.shape[-1] != size:
        raise InvalidInputError(f"{name} must have {size} entries in each row, got shape {given.shape}")
    return given
